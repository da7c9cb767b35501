//! Sends operations home (docs/roaming.md#the-operation-log): in order, and each of them takes
//! effect once, even if messages are lost.
//!
//! Operations that may have reached the home stay as they are until it answers. That they may have
//! reached it is durable before they are sent. If an answer is lost, the client sends the same
//! operations again.

use crate::cache::data_files::{disk_error, outgoing_name};
use crate::client::{Client, Inner};
use crate::connection::schedule::{CHUNK_LEN_MAX, Direction};
use crate::connection::state::LinkState;
use crate::reintegration::set_aside::Outgoing;
use crate::replica::{Record, Replica};
use bytes::Bytes;
use host::{Either, File, first, timeout};
use roam_proto::channel::Class;
use roam_proto::codec::Wire;
use roam_proto::message::{Applied, ConflictReason, DATA_LEN_MAX, INLINE_LEN_MAX, Outcome, Reply, Request, Sent};
use roam_proto::operation::{Change, Operation, Place};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{FileId, FsError, Kind};

/// Most operations in one message.
const OPERATION_COUNT_MAX: usize = 512;
/// How long a client that is alone near its home gathers operations before it sends them.
const GATHER_TIME: Duration = Duration::from_millis(50);
/// How often the client looks whether waiting operations may go now.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Contents are set aside in pieces of this many bytes.
const CAPTURE_LEN: u64 = 1 << 20;

/// Sends waiting operations for as long as the client exists.
pub(crate) async fn replay(inner: Weak<Inner>) {
    let mut logged = 0;
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let (mut tick, more) = (client.0.tick.subscribe(), client.0.more.clone());
        let clock = client.0.host.clock.clone();
        let sent = match client.may_send() {
            May::Through(seq) => {
                // If operations came while the last batch was on its way, more will probably follow
                // soon.
                let logged_before = std::mem::replace(&mut logged, client.look(|replica, _| replica.log().last()));
                if logged > logged_before {
                    client.gather_some().await;
                }
                let sent = client.send_some(seq).await;
                client.0.live.lock().sending.set_held_up(sent.as_ref().err().copied());
                sent.map(|sent| if sent { May::Through(seq) } else { May::Not })
            }
            other => Ok(other),
        };
        drop(client);
        match sent {
            Ok(May::Through(_)) => {}
            Ok(May::Later) => clock.sleep(LOOK_PERIOD).await,
            Ok(May::Not) => {
                if let Either::Left(Err(_)) = first(tick.changed(), more.notified()).await {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "sending operations failed");
                clock.sleep(LOOK_PERIOD).await;
            }
        }
    }
}

/// Which operations may be sent now.
enum May {
    /// Operations up to this one.
    Through(u64),
    /// None now, but that may change with time.
    Later,
    /// None until something happens.
    Not,
}

impl Client {
    /// Which operations may be sent now, by the user's settings and the state of the link.
    fn may_send(&self) -> May {
        let (writes, pinned) = {
            let settings = self.0.settings.lock();
            (settings.writes, settings.pinned)
        };
        let live = self.0.live.lock();
        let log = live.replica.log();
        let Some(first) = log.after(live.sending.seen.through()) else { return May::Not };
        if live.link.is_offline() || pinned == Some(LinkState::FetchOnly) || live.sending.seen.has_failed() {
            return May::Not;
        }
        // Operations that were promised, or that have begun to go, go now.
        let promised = live.sending.promised().max(log.pinned());
        if first <= promised {
            return May::Through(promised);
        }
        if live.link.state() == LinkState::FetchOnly {
            return May::Not;
        }
        let near = live.link.is_near();
        let now = self.0.host.clock.wall();
        let older = |age: Duration| {
            let old = |seq: u64| {
                let done = live.replica.done_at(seq).unwrap_or(now);
                now.sec.saturating_sub(done.sec).unsigned_abs() >= age.as_secs()
            };
            let through =
                log.iter_after(live.sending.seen.through()).map(|(seq, _)| seq).take_while(|seq| old(*seq)).last();
            through.map_or(May::Later, May::Through)
        };
        let Some(terms) = writes.terms(near) else { return May::Not };
        match terms.age_now(self.0.schedule.idle_for()) {
            None => May::Later,
            Some(Duration::ZERO) => May::Through(u64::MAX),
            Some(age) => older(age),
        }
    }

    /// Bytes of operations in one message. The home makes all operations of a message durable
    /// together.
    fn batch_len(&self, state: LinkState) -> u64 {
        match state {
            LinkState::Connected => DATA_LEN_MAX as u64,
            _ => self.0.schedule.chunk_len(Direction::Up),
        }
    }

    /// Bytes of contents that travel with an operation. Longer contents are uploaded before it.
    fn inline_len_max(&self) -> u64 {
        let state = self.0.live.lock().link.state();
        match state {
            LinkState::Connected => CHUNK_LEN_MAX,
            _ => INLINE_LEN_MAX as u64,
        }
    }

    /// Waits a moment for more operations. Only a client that is alone does this: no other client
    /// waits for its changes.
    async fn gather_some(&self) {
        let hurried = async {
            let mut tick = self.0.tick.subscribe();
            loop {
                let is_hurried = {
                    let live = self.0.live.lock();
                    let first = live.replica.log().after(live.sending.seen.through());
                    let is_promised = first.is_none_or(|first| first <= live.sending.promised());
                    is_promised || live.link.has_others() || !live.link.is_near()
                };
                if is_hurried || tick.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(&*self.0.host.clock, GATHER_TIME, hurried).await;
    }

    /// Sends all operations up to now, even if the settings say later, and waits until they are
    /// home. ETIMEDOUT if the home cannot be reached.
    pub async fn send_all(&self) -> Result<(), FsError> {
        let newest_conflict = |replica: &Replica| replica.conflicts().map(|(number, _)| number).max();
        loop {
            let (last, conflict) = self.look(|replica, _| (replica.log().last(), newest_conflict(replica)));
            self.send_through(last).await?;
            // In a new conflict, this client's version becomes a file of its own, which has to go
            // home too.
            if self.look(|replica, _| newest_conflict(replica)) == conflict {
                return Ok(());
            }
        }
    }

    /// As [`send_all`](Self::send_all), up to an operation.
    pub(crate) async fn send_through(&self, last: u64) -> Result<(), FsError> {
        let mut tick = self.0.tick.subscribe();
        self.0.live.lock().sending.promise(last);
        self.0.hurry_durable(last);
        self.0.wake();
        loop {
            {
                let live = self.0.live.lock();
                if live.replica.log().first().is_none_or(|first| first > last) {
                    return Ok(());
                }
                let held = live.link.state() == LinkState::FetchOnly && self.0.settings.lock().pinned.is_some();
                if held || live.link.is_offline() {
                    return Err(FsError::TimedOut);
                }
            }
            if tick.changed().await.is_err() {
                return Err(FsError::TimedOut);
            }
        }
    }

    /// Logs changes of a file that were not logged when it was closed, because it had no name then.
    /// It has one again.
    fn store_left(&self, file: FileId) {
        let is_left = {
            let live = self.0.live.lock();
            let is_begun = live.replica.node(file).is_ok_and(|node| node.changes.is_begun() && node.facts.nlink > 0);
            is_begun && !live.open_files.is_open(file)
        };
        if is_left {
            let me = self.clone();
            self.0.host.tasks.spawn(Box::pin(async move {
                if let Err(error) = me.store(file).await {
                    tracing::warn!(file = file.raw(), %error, "changes of a closed file are not logged yet");
                }
            }));
        }
    }

    /// Sends the first waiting operations, up to `through`. False if there are none.
    async fn send_some(&self, through: u64) -> Result<bool, FsError> {
        let inner = &self.0;
        let (batch, acknowledged, attached) = {
            let mut live = inner.live.lock();
            let len_max = self.batch_len(live.link.state());
            let batch = first_batch(&live.replica, live.sending.seen.through(), len_max, through);
            let Some((last, _)) = batch.last() else { return Ok(false) };
            if *last > live.replica.log().pinned() {
                let last = *last;
                live.learn(Record::Pinned(last));
            }
            (batch, live.replica.acknowledged(), live.sending.seen.attached)
        };
        self.durable().await?;
        let mut operations = Vec::with_capacity(batch.len());
        for (seq, operation) in batch {
            let bases = {
                let live = inner.live.lock();
                let version = |file: FileId| live.replica.node(file).map_or(0, |node| node.seen);
                let second = match &operation {
                    Operation::Rename { replaced: Some((file, _)), .. } => *file,
                    Operation::Exchange { other, .. } | Operation::Copy { from: other, .. } => *other,
                    other => other.file(),
                };
                (version(operation.file()), version(second))
            };
            let data = match &operation {
                Operation::Store { file, change } => self.contents(seq, *file, change).await?,
                _ => Bytes::new(),
            };
            operations.push(Sent { seq, bases, operation, data });
        }
        let inline: usize = operations.iter().map(|sent| sent.data.len()).sum();
        let seqs: Vec<u64> = operations.iter().map(|sent| sent.seq).collect();
        let request = Request::Apply { acknowledged, operations };
        let reply = inner.ask(Class::Replay, &request).await.inspect_err(|_| {
            // The home may have dropped bytes that were uploaded ahead.
            let mut live = inner.live.lock();
            seqs.iter().for_each(|seq| live.sending.doubt_ahead(*seq));
        });
        match reply? {
            Reply::Applied(applied) => {
                inner.went_home(inline as u64);
                {
                    let mut live = inner.live.lock();
                    live.link.some_went(inner.host.clock.now());
                    if live.sending.seen.attached == attached {
                        live.sending.seen.add(applied);
                    }
                }
                inner.seen_news.notify_one();
                // Wakes calls that wait until the home has seen this.
                inner.wake();
                Ok(true)
            }
            _ => Err(FsError::Io),
        }
    }

    /// The bytes that travel with a store. Long contents are uploaded first, and nothing travels.
    async fn contents(&self, seq: u64, file: FileId, change: &Change) -> Result<Bytes, FsError> {
        let aside = match self.set_aside(seq, file, change).await {
            // The link may have become slow since the bytes were set aside.
            Ok(Outgoing::Inline(bytes)) if bytes.len() as u64 <= self.inline_len_max() => return Ok(bytes),
            Ok(aside) => Some(aside),
            // The bytes go home all the same, and that makes room.
            Err(FsError::NoSpace) => None,
            Err(error) => return Err(error),
        };
        let (mut offset, end) = (0, change.ranges.len());
        if let Some(Outgoing::File(from, _)) = &aside {
            self.take_there(seq, from, end).await?;
        }
        while offset < end {
            let chunk = offset..end.min(offset + self.0.schedule.chunk_len(Direction::Up));
            let missing = self.0.live.lock().sending.missing_there(seq, chunk.clone());
            let Some(missing) = missing.iter().next() else {
                offset = chunk.end;
                continue;
            };
            let data = match &aside {
                Some(Outgoing::Inline(bytes)) => bytes.slice(missing.start as usize..missing.end as usize),
                Some(Outgoing::File(from, _)) => self.outgoing(from, &missing).await?,
                None => self.still_there(seq, file, change, &missing).await?,
            };
            self.upload(Class::Replay, seq, missing.start, data).await?;
            offset = missing.end;
        }
        Ok(Bytes::new())
    }

    async fn outgoing(&self, from: &Arc<dyn File>, range: &Range<u64>) -> Result<Bytes, FsError> {
        let len = (range.end - range.start) as usize;
        from.read_at(range.start, len).await.map_err(|error| disk_error(&error))
    }

    /// Part of a store's bytes, read from the file because there is no room to set them aside. A
    /// writer sets them aside before it changes them, or does not change them.
    async fn still_there(&self, seq: u64, file: FileId, change: &Change, range: &Range<u64>) -> Result<Bytes, FsError> {
        let _only_writer = self.0.writer(file).await;
        let aside = self.0.live.lock().sending.aside(seq).cloned();
        if let Some(Outgoing::File(from, _)) = aside {
            return self.outgoing(&from, range).await;
        }
        let from = self.source(seq, file).await?;
        let end = from.len().await.map_err(|error| disk_error(&error))?;
        let (mut at, mut bytes) = (0, Vec::new());
        for written in change.ranges.iter() {
            let len = written.end - written.start;
            let (first, last) = (range.start.max(at), range.end.min(at + len));
            if first < last {
                let start = written.start + (first - at);
                bytes.extend(read_or_zeroes(&from, end, start, last - first).await?);
            }
            at += len;
        }
        Ok(bytes.into())
    }

    async fn upload(&self, class: Class, seq: u64, offset: u64, data: Bytes) -> Result<(), FsError> {
        let len = data.len() as u64;
        match self.0.ask(class, &Request::Upload { seq, offset, data }).await? {
            Reply::Done => {
                self.0.went_home(len);
                Ok(())
            }
            _ => Err(FsError::Io),
        }
    }

    /// Uploads part of a store before its turn.
    pub(crate) async fn upload_ahead(&self, seq: u64, range: Range<u64>) -> Result<(), FsError> {
        let outgoing = self.0.live.lock().sending.aside(seq).cloned();
        let Some(Outgoing::File(from, _)) = outgoing else { return Ok(()) };
        // A reader waits: nothing is looked up in other files first.
        self.0.live.lock().sending.begin_ahead(seq);
        let end = range.end.min(from.len().await.map_err(|error| disk_error(&error))?);
        let mut offset = range.start;
        while offset < end {
            let chunk = offset..end.min(offset + self.0.schedule.chunk_len(Direction::Up));
            offset = chunk.end;
            if self.0.live.lock().sending.missing_there(seq, chunk.clone()).is_empty() {
                continue;
            }
            let data = self.outgoing(&from, &chunk).await?;
            self.upload(Class::Demand, seq, chunk.start, data).await?;
            self.0.live.lock().sending.is_there(seq, chunk);
        }
        Ok(())
    }

    /// The bytes of a store, as they were when this was first called for it.
    pub(crate) async fn set_aside(&self, seq: u64, file: FileId, change: &Change) -> Result<Outgoing, FsError> {
        let known = || self.0.live.lock().sending.aside(seq).cloned();
        if let Some(outgoing) = known() {
            return Ok(outgoing);
        }
        let _only_writer = self.0.writer(file).await;
        // Another task may have done it meanwhile.
        if let Some(outgoing) = known() {
            return Ok(outgoing);
        }
        let outgoing = self.capture(seq, file, change).await?;
        self.0.live.lock().sending.set_aside(seq, outgoing.clone());
        Ok(outgoing)
    }

    /// The file that has the bytes of a store.
    async fn source(&self, seq: u64, file: FileId) -> Result<Arc<dyn File>, FsError> {
        let (emptied, data) = {
            let live = self.0.live.lock();
            (live.sending.source(seq), live.replica.node(file).map_or(0, |node| node.data))
        };
        if let Some(source) = emptied {
            return Ok(source);
        }
        self.0.check_data(file).await?;
        match self.0.open_data(data).await {
            // If the file was lost, the store has left the log.
            Err(FsError::NotFound) => Err(FsError::Io),
            from => from,
        }
    }

    /// Sets aside the bytes of a store, since the file may change while they are on their way.
    pub(crate) async fn capture(&self, seq: u64, file: FileId, change: &Change) -> Result<Outgoing, FsError> {
        if change.ranges.is_empty() {
            return Ok(Outgoing::Inline(Bytes::new()));
        }
        let from = self.source(seq, file).await?;
        // Bytes that were cut off since go home as zeroes; a later operation cuts them off there.
        let end = from.len().await.map_err(|error| disk_error(&error))?;
        let len = change.ranges.len();
        let has_room = || self.0.live.lock().sending.has_room_inline(len);
        if len <= INLINE_LEN_MAX as u64 || len <= self.inline_len_max() && has_room() {
            let mut bytes = Vec::new();
            for range in change.ranges.iter() {
                bytes.extend(read_or_zeroes(&from, end, range.start, range.end - range.start).await?);
            }
            return Ok(Outgoing::Inline(bytes.into()));
        }
        let to = self.0.disk.open(&outgoing_name(seq), true).await.map_err(|error| disk_error(&error))?;
        // The file may be left from before the store was merged into another.
        to.set_len(0).await.map_err(|error| disk_error(&error))?;
        let copied = async {
            let mut at = 0;
            for range in change.ranges.iter() {
                let mut start = range.start;
                while start < range.end {
                    let len = (range.end - start).min(CAPTURE_LEN);
                    let bytes = read_or_zeroes(&from, end, start, len).await?;
                    self.0.put_bytes(&to, at, bytes.into()).await?;
                    (at, start) = (at + len, start + len);
                }
            }
            Ok(())
        };
        if let Err(error) = copied.await {
            // A partial copy takes room that the disk may not have.
            let _ = to.set_len(0).await;
            return Err(error);
        }
        Ok(Outgoing::File(to, seq))
    }

    /// Takes in the home's answers. Returns the directories that were merged with ones that others
    /// made.
    pub(crate) fn answered(&self, applied: Vec<Applied>) -> Vec<FileId> {
        let (mut touched, mut sent, mut merged) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut live = self.0.live.lock();
            for mut applied in applied {
                let before = live.replica.conflicts().count();
                let about = live.replica.log().iter().find(|(seq, _)| *seq == applied.seq).map(|(_, o)| o.clone());
                if let Some(Operation::Make { file, made, .. }) = &about
                    && made.kind == Kind::File
                {
                    let is_open = live.open_files.is_open(*file);
                    applied.outcome = match applied.outcome {
                        Outcome::Empty(real) if !is_open && live.replica.is_just_made(*file) => Outcome::Became(real),
                        Outcome::Became(real) if !is_open && live.replica.may_give_way(*file) => Outcome::Became(real),
                        Outcome::Empty(_) | Outcome::Became(_) => Outcome::Conflict(ConflictReason::Taken),
                        other => other,
                    };
                }
                if let Some(operation) = &about {
                    touched.extend(operation.files());
                    live.freshness.overtake(operation.files());
                    live.doubt(operation);
                }
                sent.extend(live.sending.answered(applied.seq));
                let became = matches!(applied.outcome, Outcome::Became(_));
                let failed = applied.outcome != Outcome::Done && !became;
                if became && let Some(place) = about.as_ref().and_then(|o| live.replica.place_of(o.file())) {
                    live.kernel.forget_name(place.0, &place.1);
                }
                if (failed || became)
                    && let Some(operation) = &about
                {
                    // Users see again what the home has.
                    operation.files().into_iter().for_each(|file| live.forget(file));
                    for (dir, name) in operation.places() {
                        live.kernel.forget_name(*dir, name);
                    }
                }
                live.learn(Record::Answered(applied));
                if let Some(operation) = &about {
                    live.forget_doubtful(operation);
                }
                if let (Some(log), Some(operation)) = (live.log().cloned(), &about) {
                    live.cache.unwritten.were_taken(operation.files(), log.counts().0);
                }
                if became && let Some(Operation::Make { file, made, .. }) = &about {
                    live.became(*file);
                    merged.extend((made.kind == Kind::Directory).then(|| live.replica.real(*file)));
                }
                if let Some((number, conflict)) = live.replica.conflicts().last()
                    && live.replica.conflicts().count() > before
                {
                    let at = |place: &Place| live.replica.path_at(place).unwrap_or_else(|| place.1.clone());
                    let path = conflict.place.as_ref().map_or_else(Vec::new, at);
                    let (path, here, why) = (String::from_utf8_lossy(&path), conflict.deed.text(), conflict.why());
                    tracing::warn!(number, ?path, here, why, "a conflict; list it with `starling conflicts`");
                    if let Some((dir, _)) = conflict.mine {
                        live.kernel.forget_file(dir);
                    }
                }
            }
        }
        self.0.live.lock().recount();
        touched.sort_unstable();
        touched.dedup();
        for file in touched {
            self.0.reap(file);
            self.store_left(file);
        }
        sent.into_iter().for_each(|seq| self.0.remove_file(outgoing_name(seq)));
        self.0.wake();
        merged
    }
}

/// Bytes of a file, with zeroes beyond its end.
async fn read_or_zeroes(from: &Arc<dyn File>, end: u64, start: u64, len: u64) -> Result<Vec<u8>, FsError> {
    let there = len.min(end.saturating_sub(start)) as usize;
    let bytes = from.read_at(start.min(end), there).await.map_err(|error| disk_error(&error))?;
    let mut bytes = bytes.to_vec();
    bytes.resize(len as usize, 0);
    Ok(bytes)
}

/// Bytes of contents that an operation takes home.
fn contents_len(operation: &Operation) -> u64 {
    match operation {
        Operation::Store { change, .. } => change.ranges.len(),
        _ => 0,
    }
}

/// The first operations, up to `through`, that the home has not seen and that fit into one message.
/// A file that was made goes with what was stored in it, so that the home can tell whether it has
/// such a file already.
fn first_batch(replica: &Replica, seen: u64, len_max: u64, through: u64) -> Vec<(u64, Operation)> {
    let (mut batch, mut len) = (Vec::new(), 0);
    for (seq, operation) in replica.log().iter_after(seen).take(OPERATION_COUNT_MAX) {
        len = contents_len(operation).saturating_add(len).saturating_add(operation.to_bytes().len() as u64);
        let is_first = match (&batch[..], operation) {
            ([], _) => true,
            ([(_, Operation::Make { file: made, .. })], Operation::Store { file, .. }) => made == file,
            _ => false,
        };
        if seq > through || (!is_first && len > len_max) {
            if seq <= through && matches!(operation, Operation::Store { .. }) {
                batch.pop_if(|(_, last)| matches!(last, Operation::Make { .. }) && last.file() == operation.file());
            }
            break;
        }
        batch.push((seq, operation.clone()));
    }
    batch
}
