//! Asks the home for what is not cached, and for what others have changed.

use crate::cache::data_files::disk_error;
use crate::client::{Client, Inner};
use crate::connection::schedule::{Direction, Permit};
use crate::consistency::question::{Asking, Question};
use crate::live::{Live, Need};
use crate::replica::{Node, Record};
use crate::settings::Unit;
use bytes::Bytes;
use host::{Either, first, timeout};
use policy::unit::is_whole;
use roam_proto::channel::{Channel, Class, Lost};
use roam_proto::delegation::Hold;
use roam_proto::message::{DATA_LEN_MAX, Facts, NamedFacts, Refusal, Reply, Request, pack, unpack};
use roam_proto::operation::is_name;
use roam_proto::ranges::Ranges;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::NAME_LEN_MAX;

/// The home counts as out of reach when nothing comes from it for this long while a question waits
/// for its answer.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// When nothing has come for this long while a question waits, the client asks whether the home is
/// there. A home that was killed with the question and runs again replies that it does not know the
/// connection. Without this second message it would reply nothing, since the client would send
/// nothing.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// How long calls wait for another connection after one has ended. Homes are restarted.
const RESTART_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the client goes on asking for a file on which other clients have delegations.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// How often a file's bytes are asked for again because others changed them.
const CHANGE_COUNT_MAX: u32 = 32;
/// No directory has more names than this. It bounds what a listing may take.
const NAME_COUNT_MAX: usize = 1 << 24;

impl Inner {
    /// Asks over a connection, and waits as long as anything comes from the home. ETIMEDOUT: the
    /// home may or may not have heard the question.
    pub(crate) async fn ask_over(
        &self,
        channel: &Arc<dyn Channel>,
        class: Class,
        request: &Request,
    ) -> Result<Reply, FsError> {
        let message = pack(request);
        let turn = match request {
            Request::Read { len, .. } => self.admit(class, Direction::Down, (*len).into()).await,
            _ => self.admit(class, Direction::Up, message.len() as u64).await,
        };
        self.ask_now(channel, &turn, class, request, message).await
    }

    /// Waits for the right to send or fetch `len` bytes.
    pub(crate) async fn admit(&self, class: Class, direction: Direction, len: u64) -> Option<Permit> {
        // To a near home, transfers do not disturb each other.
        let near = self.live.lock().link.is_near();
        if near { None } else { Some(self.schedule.admit(class, direction, len).await) }
    }

    /// Asks at once; the caller has the turn.
    async fn ask_now(
        &self,
        channel: &Arc<dyn Channel>,
        turn: &Option<Permit>,
        class: Class,
        request: &Request,
        message: Bytes,
    ) -> Result<Reply, FsError> {
        use Request::{Delegate, Facts, List, Renew, Since, Validate};
        // An answer to a recall belongs to the recall, and is not counted again.
        if let Since { .. } | Facts { .. } | Validate { .. } | List { .. } | Delegate { .. } | Renew = request {
            self.consistency_calls.fetch_add(1, Relaxed);
        }
        let (sent, begun) = (message.len() as u64, self.host.clock.now());
        let bytes = self.patiently(channel, channel.ask(class, message)).await?;
        let (took, received) = (self.host.clock.now().saturating_sub(begun), bytes.len() as u64);
        let (direction, len) = match sent > received {
            true => (Direction::Up, sent),
            false => (Direction::Down, received),
        };
        self.schedule.measured(turn.as_ref(), direction, len, took, &channel.path());
        let reply = unpack(&bytes);
        if !matches!(reply, Ok(Reply::Refused(_))) {
            self.live.lock().freshness.renew_lease(begun);
        }
        reply.map_err(|error| self.garbled(channel, &error))
    }

    /// Waits for an answer as long as anything comes from the home. ETIMEDOUT if nothing does; then
    /// the home is out of reach.
    pub(crate) async fn patiently<T>(
        &self,
        channel: &Arc<dyn Channel>,
        mut answer: impl Future<Output = Result<T, Lost>> + Unpin,
    ) -> Result<T, FsError> {
        let is_lost = || {
            self.lost(channel);
            Err(FsError::TimedOut)
        };
        loop {
            let before = channel.path().received;
            let is_silent = || channel.path().received == before;
            let mut answered = timeout(&*self.host.clock, PROBE_AFTER, &mut answer).await;
            if answered.is_err() && is_silent() {
                let lost = async {
                    if channel.caught_up().await.is_ok() {
                        std::future::pending::<()>().await;
                    }
                };
                let rest = timeout(&*self.host.clock, SILENCE_MAX - PROBE_AFTER, &mut answer);
                answered = match first(Box::pin(rest), Box::pin(lost)).await {
                    Either::Left(answered) => answered,
                    Either::Right(()) => return is_lost(),
                };
            }
            match answered {
                Ok(Ok(answer)) => return Ok(answer),
                Err(_) if !is_silent() => {}
                Ok(Err(Lost)) | Err(_) => return is_lost(),
            }
        }
    }

    fn garbled(&self, channel: &Arc<dyn Channel>, error: &types::codec::DecodeError) -> FsError {
        tracing::error!(%error, "the home's answer cannot be decoded");
        channel.close();
        self.lost(channel);
        FsError::Io
    }

    /// Asks the home. ETIMEDOUT if it cannot be reached.
    pub(crate) async fn ask(&self, class: Class, request: &Request) -> Result<Reply, FsError> {
        let channel = self.channel()?;
        let reply = self.ask_over(&channel, class, request).await?;
        self.accept(&channel, reply)
    }

    /// As [`ask`](Self::ask), with a turn that the caller has.
    pub(crate) async fn ask_in_turn(
        &self,
        turn: &Option<Permit>,
        class: Class,
        request: &Request,
    ) -> Result<Reply, FsError> {
        let channel = self.channel()?;
        let reply = self.ask_now(&channel, turn, class, request, pack(request)).await?;
        self.accept(&channel, reply)
    }

    fn channel(&self) -> Result<Arc<dyn Channel>, FsError> {
        self.live.lock().link.channel().cloned().ok_or(FsError::TimedOut)
    }

    fn accept(&self, channel: &Arc<dyn Channel>, reply: Reply) -> Result<Reply, FsError> {
        match reply {
            Reply::Failed(error) => Err(error),
            Reply::Refused(Refusal::Detached) => {
                self.detached(channel);
                Err(FsError::TimedOut)
            }
            Reply::Refused(refusal) => {
                tracing::warn!(?refusal, "the home refused a request");
                Err(FsError::TimedOut)
            }
            reply => Ok(reply),
        }
    }

    /// The session at the home has ended, even if the connection works.
    pub(crate) fn detached(&self, channel: &Arc<dyn Channel>) {
        {
            let mut live = self.live.lock();
            live.freshness.forfeit();
            live.link.must_attach();
        }
        self.lost(channel);
    }

    /// The connection is of no use for now: the client is disconnected.
    pub(crate) fn lost(&self, channel: &Arc<dyn Channel>) {
        let mut live = self.live.lock();
        if live.link.lose(channel, self.host.clock.now()) {
            drop(live);
            self.wake();
        }
    }
}

/// A file that is shorter at home than the client knows has changed: the client asks for it again.
fn not_empty(reply: Reply) -> Reply {
    match reply {
        Reply::Data(bytes) if bytes.is_empty() => {
            tracing::warn!("a file is shorter at home than this client knew");
            Reply::Changed
        }
        reply => reply,
    }
}

impl Client {
    /// Gets from the home what a call needs.
    pub(crate) async fn fetch(&self, need: Need) -> Result<(), FsError> {
        let end = self.0.host.clock.now() + WAIT_MAX;
        let mut may_ask_again = true;
        loop {
            let _one_at_a_time = self.0.fetching(need).await;
            match self.fetch_once(need).await {
                Err(FsError::TimedOut) if std::mem::take(&mut may_ask_again) && self.is_back().await => {}
                // Others have it, and the home has asked them for it.
                Err(FsError::Busy) if self.0.host.clock.now() < end => {}
                Err(FsError::Busy) => return Err(FsError::TimedOut),
                fetched => return fetched,
            }
        }
    }

    /// True if the connection ended a moment ago and there is a new one soon, since the home was
    /// restarted. The caller then asks once more.
    async fn is_back(&self) -> bool {
        let Some(ended_at) = self.0.live.lock().link.ended_at() else { return false };
        let clock = &self.0.host.clock;
        let rest = (ended_at + RESTART_TIME_MAX).saturating_sub(clock.now());
        !rest.is_zero() && timeout(&**clock, rest, Box::pin(self.attached())).await.is_ok()
    }

    async fn fetch_once(&self, need: Need) -> Result<(), FsError> {
        let delegated = self.0.live.lock().freshness.is_delegated();
        if let Need::Names(file) | Need::Facts(file) = need {
            self.take_seen(file).await?;
        }
        match need {
            Need::Names(dir) => {
                self.fetch_names(dir, None).await?;
                self.0.live.lock().touch(dir);
                self.was_listed(dir);
                self.bound_metadata();
                Ok(())
            }
            Need::Facts(file) if delegated => self.delegate(&[file], Hold::Read).await,
            Need::Facts(file) => {
                let files = self.stale_together(file);
                self.fetch_facts(&files).await
            }
            Need::Change(files) => self.delegate(&files, Hold::Write).await,
            Need::Ids => self.fetch_ids().await,
            Need::Room => self.free_log().await,
        }
    }

    pub(crate) async fn fetch_ids(&self) -> Result<(), FsError> {
        match self.0.ask(Class::Interactive, &Request::Ids).await? {
            Reply::Ids(first, count) if first.raw().checked_add(count).is_some() => {
                self.0.live.lock().record(Record::Ids(first, count))
            }
            _ => Err(FsError::Io),
        }
    }

    /// Fetches the attributes of files. ESTALE if the home no longer has the first one.
    pub(crate) async fn fetch_facts(&self, files: &[FileId]) -> Result<(), FsError> {
        let inner = &self.0;
        {
            let live = inner.live.lock();
            if files.iter().all(|file| live.replica.is_fresh(*file)) {
                return Ok(());
            }
        }
        let asking = Asking::new(inner);
        let Reply::Facts(known) = inner.ask(Class::Interactive, &Request::Facts { files: files.to_vec() }).await?
        else {
            return Err(FsError::Io);
        };
        let mut live = inner.live.lock();
        let is_gone = |file: &&FileId| !known.iter().any(|facts| facts.id == **file);
        let gone = files.first().filter(is_gone);
        self.take_facts(&mut live, &asking, files, (known, 0));
        gone.map_or(Ok(()), |file| live.replica.node(*file).map(drop))
    }

    /// Takes in the attributes of files, which include all changes up to a number. Files that the
    /// answer does not mention are gone.
    pub(crate) fn take_facts(
        &self,
        live: &mut Live,
        asking: &Asking<'_>,
        files: &[FileId],
        (known, seq): (Vec<Facts>, u64),
    ) {
        for file in files {
            if !known.iter().any(|facts| facts.id == *file) && asking.is_current(live, *file, seq) {
                live.learn(Record::Gone(*file));
            }
        }
        for facts in known {
            if asking.is_behind(live, &facts, seq) {
                continue;
            }
            let (id, version) = (facts.id, facts.version);
            if !asking.is_broken(live, id, seq) {
                live.learn(Record::Known(Box::new(facts)));
            } else if live.replica.node(id).is_ok_and(|node| node.facts.version < version) {
                // What the client learned meanwhile is older still, so this is recorded, as stale.
                // A write under a delegation that came with the answer does not look at the
                // attributes again.
                live.learn(Record::Known(Box::new(facts)));
                live.learn(Record::Broken(vec![id]));
            }
        }
    }

    /// Fetches the names of a directory, unless they are known. With `turn`, no program waits, and
    /// a directory that is too long for one answer is left out.
    pub(crate) async fn fetch_names(&self, dir: FileId, turn: Option<&Option<Permit>>) -> Result<(), FsError> {
        let inner = &self.0;
        let (names_of, makes) = {
            let live = inner.live.lock();
            if live.replica.has_names(dir) && live.may_believe(dir) {
                return Ok(());
            }
            (
                live.replica.node(dir).ok().filter(|node| node.names.is_some()).and_then(|node| node.names_of),
                live.makes(dir),
            )
        };
        let question = Question::new(inner);
        let asking = question.asking();
        let (mut all, mut after, mut withheld) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut known = (u64::MAX, u64::MAX);
        let (dir_facts, is_same, hold) = loop {
            let names_of = names_of.filter(|_| after.is_empty()).unwrap_or(0);
            let makes = makes.clone().filter(|_| after.is_empty());
            let request = Request::List { dir, after: std::mem::take(&mut after), known: names_of, makes };
            let reply = match turn {
                Some(turn) => inner.ask_in_turn(turn, Class::Prefetch, &request).await,
                None => inner.ask(Class::Interactive, &request).await,
            };
            let reply = match reply {
                Err(FsError::Stale) => {
                    let mut live = inner.live.lock();
                    if !asking.is_current(&live, dir, 0) {
                        // A caller that still needs it asks again.
                        return Ok(());
                    }
                    live.learn(Record::Gone(dir));
                    // The home may not have heard of it yet.
                    return if live.replica.has_names(dir) { Ok(()) } else { Err(FsError::Stale) };
                }
                reply => reply?,
            };
            let Reply::Listing { dir: facts, entries, same, more, withheld: some, given, seq, hold } = reply else {
                return Err(FsError::Io);
            };
            if more && turn.is_some() {
                return Ok(());
            }
            withheld.extend(some);
            known = (known.0.min(given), known.1.min(seq));
            // Names come in ascending order, each once. A listing that would not end is refused.
            let names = all.last().into_iter().chain(&entries).map(|entry: &NamedFacts| &entry.name[..]);
            if !are_listed_names(names) || (more && entries.is_empty()) || all.len() > NAME_COUNT_MAX {
                tracing::error!(dir = dir.raw(), "the home's listing is malformed");
                return Err(FsError::Io);
            }
            all.extend(entries);
            match all.last() {
                Some(last) if more => after = last.name.clone(),
                _ => break (facts, same, hold),
            }
        };
        let mut live = inner.live.lock();
        // It may have turned out to be another directory meanwhile.
        let dir = dir_facts.id;
        if asking.is_overtaken(&live, dir) || asking.is_behind(&live, &dir_facts, known.1) {
            // A caller that still needs it asks again.
            return Ok(());
        }
        let mut behind = Vec::new();
        for entry in &mut all {
            if asking.is_behind(&live, &entry.facts, known.1) {
                match live.replica.node(entry.facts.id) {
                    Ok(node) => entry.facts = node.facts.clone(),
                    Err(_) => behind.push(entry.facts.id),
                }
            }
        }
        let broken: Vec<FileId> = std::iter::once(dir)
            .chain(all.iter().map(|entry| entry.facts.id))
            .filter(|file| !asking.is_current(&live, *file, known.1))
            .chain(behind)
            .collect();
        let told = all.iter().map(|entry| entry.facts.id).filter(|file| !withheld.contains(file));
        for file in told.collect::<Vec<_>>() {
            question.gives(&mut live, file, Hold::Read, known);
        }
        if question.gives(&mut live, dir, hold, known) && hold == Hold::Write {
            live.may_make(dir);
        }
        live.learn(match is_same {
            true => Record::Known(dir_facts),
            false => Record::Listed { dir: dir_facts, entries: all },
        });
        if !broken.is_empty() {
            live.learn(Record::Broken(broken));
        }
        drop(live);
        Ok(())
    }

    /// Fetches bytes of a file into the cache. ETIMEDOUT if the home cannot be reached.
    pub(crate) async fn fetch_bytes(&self, id: FileId, offset: u64, len: u64, class: Class) -> Result<(), FsError> {
        let inner = &self.0;
        let waits_until = inner.host.clock.now() + WAIT_MAX;
        let mut changes = 0;
        let mut may_ask_again = true;
        loop {
            if class == Class::Demand {
                inner.schedule.is_wanted();
            }
            // A program that waits for these bytes is not queued behind everything that is fetched
            // ahead.
            let _one_at_a_time = inner.fetching_bytes(id).await;
            let chunk = inner.schedule.chunk_len(Direction::Down);
            let (missing, contents, near) = {
                let live = inner.live.lock();
                let node = live.replica.node(id)?;
                if live.replica.has_rest_nowhere(id) {
                    return Err(FsError::TimedOut);
                }
                let end = offset.saturating_add(len).min(node.facts.size);
                let missing = node.have.missing(offset.min(end)..end);
                let Some(first) = missing.iter().next() else { return Ok(()) };
                // The bytes that follow will be wanted too, as far as they are missing.
                let end = first.end.max(first.start.saturating_add(chunk)).min(node.facts.size);
                let missing = node.have.missing(first.start..end).iter().next().unwrap_or(first);
                (missing, node.facts.contents, live.link.is_near())
            };
            let len_max = if near { DATA_LEN_MAX as u64 } else { chunk.min(DATA_LEN_MAX as u64) };
            let len = (missing.end - missing.start).min(len_max) as u32;
            let request = Request::Read { file: id, contents, offset: missing.start, len };
            match inner.ask(class, &request).await.map(not_empty) {
                Ok(Reply::Data(bytes)) if bytes.len() <= len as usize => {
                    self.cache_bytes(id, contents, missing.start, bytes, class).await?
                }
                Ok(Reply::Changed) if inner.live.lock().replica.is_own(id) => {
                    self.wait_for_answer(id, contents, waits_until).await?;
                }
                Ok(Reply::Changed) if changes < CHANGE_COUNT_MAX => {
                    changes += 1;
                    inner.live.lock().break_callbacks(vec![id], u64::MAX);
                    self.fetch_facts(&[id]).await?;
                }
                // Others change it again and again, or the home only says so.
                Ok(Reply::Changed) => return Err(FsError::TimedOut),
                Ok(_) => return Err(FsError::Io),
                Err(FsError::Stale) => {
                    inner.live.lock().learn(Record::Gone(id));
                    return Err(FsError::Stale);
                }
                // Another client has them, and the home has asked it for them.
                Err(FsError::Busy) if inner.host.clock.now() < waits_until => {}
                Err(FsError::Busy) => return Err(FsError::TimedOut),
                Err(FsError::TimedOut) if std::mem::take(&mut may_ask_again) && self.is_back().await => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads bytes for a program while the disk has no room to cache them. Cached bytes, which this
    /// client may have written, come from the cache, and the others from the home. All bytes are of
    /// one version of the contents. Returns fewer than `len` only at the end of the file.
    pub(crate) async fn read_past_cache(&self, id: FileId, offset: u64, len: u64) -> Result<Bytes, FsError> {
        let inner = &self.0;
        let (mut read, mut version, mut changes) = (Vec::new(), None, 0);
        let waits_until = inner.host.clock.now() + WAIT_MAX;
        loop {
            let (contents, data, at, end, missing) = {
                let live = inner.live.lock();
                let node = live.replica.node(id)?;
                if version.replace(node.facts.contents).is_some_and(|before| before != node.facts.contents) {
                    read.clear();
                    changes += 1;
                }
                if changes > CHANGE_COUNT_MAX {
                    return Err(FsError::TimedOut);
                }
                if live.replica.has_rest_nowhere(id) {
                    return Err(FsError::TimedOut);
                }
                let (at, end) = (offset + read.len() as u64, offset.saturating_add(len).min(node.facts.size));
                (node.facts.contents, node.data, at, end, node.have.missing(at.min(end)..end).iter().next())
            };
            if at >= end {
                return Ok(read.into());
            }
            let missing = missing.unwrap_or(end..end);
            if missing.start > at {
                let cached = inner.open_data(data).await?.read_at(at, (missing.start - at) as usize).await;
                read.extend(cached.map_err(|error| disk_error(&error))?);
                continue;
            }
            let len = (missing.end - at).min(inner.schedule.chunk_len(Direction::Down)) as u32;
            let request = Request::Read { file: id, contents, offset: at, len };
            match inner.ask(Class::Demand, &request).await.map(not_empty) {
                Ok(Reply::Data(bytes)) if bytes.len() <= len as usize => read.extend(bytes),
                Ok(Reply::Changed) if inner.live.lock().replica.is_own(id) => {
                    self.wait_for_answer(id, contents, waits_until).await?;
                }
                Ok(Reply::Changed) if changes < CHANGE_COUNT_MAX => {
                    changes += 1;
                    inner.live.lock().break_callbacks(vec![id], u64::MAX);
                    self.fetch_facts(&[id]).await?;
                }
                Ok(Reply::Changed) => return Err(FsError::TimedOut),
                Ok(_) => return Err(FsError::Io),
                Err(FsError::Busy) if inner.host.clock.now() < waits_until => {}
                Err(FsError::Busy) => return Err(FsError::TimedOut),
                Err(error) => return Err(error),
            }
        }
    }

    /// True if a read of some of a file is to fetch all of it.
    pub(crate) fn wants_whole(&self, size: u64) -> bool {
        let unit = self.0.settings.lock().unit;
        match unit {
            Unit::File => true,
            Unit::Block => false,
            Unit::Auto => is_whole(size, self.0.schedule.rate(Direction::Down)),
        }
    }

    /// Puts bytes of a file, as the home has them in version `contents`, into the cache where they
    /// are missing. Bytes that are there already are newer, or were written here. That is safe
    /// because a program that rewrites a file writes to another file of the cache, or has all of it
    /// there before.
    pub(crate) async fn cache_bytes(
        &self,
        id: FileId,
        contents: u64,
        offset: u64,
        bytes: Bytes,
        class: Class,
    ) -> Result<(), FsError> {
        let inner = &self.0;
        let len = bytes.len() as u64;
        if len == 0 {
            return Err(FsError::Io);
        }
        let (number, file) = inner.data_file(id).await?;
        // Bytes that a program writes here meanwhile stay.
        let _placing = inner.placing(id).await;
        let is_wanted = |node: &Node| node.facts.contents == contents && node.data == number;
        let missing = {
            let live = inner.live.lock();
            let node = live.replica.node(id)?;
            // The file may be shorter by now.
            let end = (offset + len).min(node.facts.size);
            if is_wanted(node) { node.have.missing(offset.min(end)..end) } else { Ranges::default() }
        };
        for part in missing.iter() {
            let bytes = bytes.slice((part.start - offset) as usize..(part.end - offset) as usize);
            let put = match class {
                Class::Prefetch if inner.was_full() => Err(FsError::NoSpace),
                // A fetch that no program waits for evicts only files of lower priority.
                Class::Prefetch => inner.put_instead(&file, part.start, bytes, Some(id)).await,
                _ => inner.put_bytes(&file, part.start, bytes).await,
            };
            put?;
        }
        let mut live = inner.live.lock();
        live.cache.spare.take(missing.len());
        let node = live.replica.node_mut(id)?;
        if is_wanted(node) {
            node.have.add_all(&missing);
        }
        drop(live);
        inner.unsettled.lock().insert(id);
        Ok(())
    }
}

/// True if a home can list these names: each is a valid name, and they ascend.
fn are_listed_names<'a>(names: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
    let can_be = |name: &[u8]| is_name(name) && name.len() <= NAME_LEN_MAX;
    names.clone().all(can_be) && names.is_sorted_by(|a, b| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::trunk::Line;
    use crate::settings::Settings;
    use crate::testing;
    use host::sim::{Sim, SimDisk};
    use types::Kind;

    fn facts(version: u64) -> Facts {
        Facts { version, contents: version, ..testing::facts(FileId::new(7), Kind::File) }
    }

    /// Under a delegation the home reports no newer version, and a write uses the version that the
    /// answer had.
    #[test]
    fn regression_what_was_learned_while_a_newer_answer_was_on_its_way_is_not_believed() {
        let sim = Sim::new(1);
        let machine = sim.machine("laptop");
        let (host, disk) = (machine.host(), SimDisk::new(&sim, 1 << 20).mount(&machine));
        let open = Client::open(&host, disk, Line::alone(&host, Arc::new(testing::NoHome)), Settings::new("v"));
        let client = sim.block_on(open).expect("cache");
        let take = |learned: u64, answer: u64| {
            let asking = Asking::new(&client.0);
            let mut live = client.0.live.lock();
            // A read found that the file has changed.
            live.break_callbacks(vec![facts(0).id], u64::MAX);
            live.learn(Record::Known(Box::new(facts(learned))));
            client.take_facts(&mut live, &asking, &[facts(0).id], (vec![facts(answer)], answer));
            let known = (live.replica.is_stale(facts(0).id), live.replica.node(facts(0).id).expect("known").seen);
            drop(live);
            known
        };
        assert_eq!(take(2, 3), (true, 3));
        assert_eq!(take(3, 3), (false, 3));
        assert_eq!(take(5, 4), (false, 5), "the answer is older");
    }

    #[test]
    fn regression_names_that_are_none_are_not_taken_from_a_home() {
        assert!(are_listed_names([&b"..."[..], b"a", &[b'b'; NAME_LEN_MAX], b"c\xff\n"].into_iter()));
        for none in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; NAME_LEN_MAX + 1]] {
            assert!(!are_listed_names(std::iter::once(none)), "{none:?}");
        }
        assert!(!are_listed_names([&b"b"[..], b"a"].into_iter()));
        assert!(!are_listed_names([&b"a"[..], b"a"].into_iter()));
    }
}
