//! Works under delegations (docs/roaming.md#delegations; Zhao and Figueiredo, section 4.3): cached
//! data is believed, and changed, only as far as the home has promised that no other client
//! interferes.
//!
//! Nothing here is lasting. After a crash the client asks for delegations again. Operations that it
//! did under old ones are in the operation log, and their preconditions tell whether another client
//! has changed the same files since.

use crate::client::{Client, Inner};
use crate::connection::schedule::Direction;
use crate::consistency::delegations::{Delegations, OWN_LEASE};
use crate::consistency::question::Question;
use crate::live::{Live, Need, Stop};
use crate::replica::{Node, Record};
use crate::settings::Consistency;
use host::{Clock, timeout};
use roam_proto::channel::{Channel, Class};
use roam_proto::delegation::{Behind, Hold, Kept, Recall, Watch};
use roam_proto::lock::Lock;
use roam_proto::message::{INLINE_LEN_MAX, Reply, Request};
use roam_proto::operation::Operation;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{FileId, FsError};

/// A lease is renewed when it was not renewed for this long.
const RENEW_AFTER: Duration = Duration::from_secs(15);
/// How often the client looks whether it has to renew.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
/// Longest wait, after a recall, for an answer that gives the same delegation, or for the call that
/// asked for it.
const USE_TIME_MAX: Duration = Duration::from_millis(500);
/// If a return takes longer than this, the client tells the home which operations go first.
const RETURN_TIME: Duration = Duration::from_secs(5);
/// How often a file is claimed for a change while others claim it too.
pub(crate) const CLAIM_COUNT_MAX: u32 = 1000;

impl Live {
    /// Takes over the user's choice of consistency.
    pub(crate) fn work_under(&mut self, consistency: Consistency, clock: &Arc<dyn Clock>) {
        self.freshness.is_delegated.store(consistency == Consistency::Strong, Relaxed);
        match consistency {
            Consistency::Strong if self.freshness.delegations.is_some() => {}
            Consistency::Strong => {
                self.freshness.delegations = Some(Delegations::new(clock.clone()));
                let all: Vec<FileId> = self.replica.nodes().map(|(id, _)| id).collect();
                all.into_iter().for_each(|file| self.forget(file));
            }
            _ => self.freshness.delegations = None,
        }
    }

    /// What the home is to watch for a client that works under delegations and has these locks.
    /// `None` for other clients.
    pub(crate) fn watch(&self, locks: Vec<Lock>) -> Option<Watch> {
        let delegations = self.freshness.delegations.as_ref()?;
        let mut changed: BTreeSet<FileId> = self.replica.begun().collect();
        changed.extend(self.replica.log().iter().flat_map(|(_, operation)| operation.files()));
        let term = self.freshness.lock_requests.term();
        let run = if delegations.is_valid() { delegations.run } else { 0 };
        Some(Watch::Delegations { run, changed: changed.into_iter().take(CHANGED_COUNT_MAX).collect(), locks, term })
    }

    /// The client is attached again.
    pub(crate) fn rejoined(&mut self, kept: Kept, asked: Duration) {
        let Some(delegations) = &mut self.freshness.delegations else { return };
        if !kept.all || kept.run != delegations.run {
            delegations.lose();
        }
        delegations.run = kept.run;
        delegations.renew(asked);
    }

    /// True if no other client may have changed a file, so that its cached state may be believed.
    pub(crate) fn may_believe(&self, file: FileId) -> bool {
        let file = self.replica.real(file);
        self.freshness.delegations.as_ref().is_none_or(|delegations| delegations.holds(file, Hold::Read))
            || self.is_private(file)
    }

    /// True if this client has changed a file under delegations that it has lost, and the changes
    /// are not home: others may have changed the file since. The cached state is believed again
    /// once the home has answered.
    pub(super) fn is_doubtful(&mut self, file: FileId) -> bool {
        let file = self.replica.real(file);
        let last = self.replica.log().last();
        let Some(delegations) = &mut self.freshness.delegations else { return false };
        if std::mem::take(&mut delegations.has_lost) {
            delegations.doubtful = last;
        }
        let (through, held) = (delegations.doubtful, delegations.holds(file, Hold::Write));
        let is_dirty = !held && self.replica.node(file).is_ok_and(Node::is_dirty);
        !self.is_private(file) && (is_dirty || self.replica.log().naming(file).any(|(seq, _)| seq <= through))
    }

    /// True if no other client knows the file: it was not sent yet, or has no name any more. Once
    /// its making may have reached the home, others may know it, even before the home has answered.
    fn is_private(&self, file: FileId) -> bool {
        let (node, pinned) = (self.replica.node(file), self.replica.log().pinned());
        node.is_ok_and(|node| node.facts.nlink == 0) || self.replica.made_at(file).is_some_and(|seq| seq > pinned)
    }

    /// True if this client may change a file.
    pub(crate) fn may_change(&self, file: FileId) -> bool {
        let file = self.replica.real(file);
        self.freshness.delegations.as_ref().is_none_or(|delegations| delegations.holds(file, Hold::Write))
            || self.is_private(file)
    }

    /// Notes that calls have used the delegations that they asked for. True if a recall may wait
    /// for that.
    pub(crate) fn used(&mut self, files: &[FileId]) -> bool {
        let fresh = self.freshness.delegations.as_mut().map(|delegations| &mut delegations.fresh);
        fresh.is_some_and(|fresh| files.iter().filter(|file| fresh.remove(file)).count() > 0)
    }

    /// Checks whether an operation may be done here. If not, says what it needs.
    pub(crate) fn permit(&mut self, operation: &Operation) -> Result<(), Stop> {
        self.has_room_for(operation)?;
        if self.freshness.delegations.is_none() {
            return Ok(());
        }
        let made = match operation {
            Operation::Make { file, .. } => Some(*file),
            _ => None,
        };
        let files: Vec<FileId> = operation.files().into_iter().filter(|file| Some(*file) != made).collect();
        let place = operation.makes().map(|(dir, name)| (self.replica.real(*dir), name));
        if let (Some((dir, name)), Some(delegations)) = (&place, &mut self.freshness.delegations) {
            delegations.will_make(*dir, name);
        }
        if let Some(first) = files.iter().find(|file| !self.may_change(**file)) {
            let mut wanted = [*first; 4];
            wanted.iter_mut().zip(&files).for_each(|(wanted, file)| *wanted = *file);
            return Err(Stop::Need(Need::Change(wanted)));
        }
        let Some(delegations) = &mut self.freshness.delegations else { return Ok(()) };
        for file in &files {
            delegations.fresh.remove(file);
        }
        match (operation, place) {
            (operation, Some((dir, _))) => delegations.did_name(dir, operation.file()),
            (Operation::Remove { at, file, .. }, None) => {
                if let Some(named) = delegations.named.get_mut(&at.0) {
                    named.remove(file);
                }
            }
            _ => {}
        }
        if let Some(file) = made {
            // No other client can know the new file.
            delegations.held.insert(file, (Hold::Write, 0));
        }
        Ok(())
    }

    /// The name that a program will probably make in a directory, if it is free.
    pub(crate) fn makes(&self, dir: FileId) -> Option<Vec<u8>> {
        self.freshness.delegations.as_ref()?.made.get(&dir).cloned()
    }

    /// The home has let the client make that name, so the program that looked for it has its turn.
    /// The client does not ask for the name again without need.
    pub(crate) fn may_make(&mut self, dir: FileId) {
        if let Some(delegations) = &mut self.freshness.delegations {
            delegations.made.remove(&dir);
            delegations.fresh.insert(dir);
        }
    }

    /// The home has answered an operation. Files that may not be believed become stale, since
    /// others may have changed them before it.
    pub(crate) fn doubt(&mut self, operation: &Operation) {
        let files = operation.files().into_iter().map(|file| self.replica.real(file));
        let doubtful = files.filter(|file| self.replica.node(*file).is_ok() && !self.may_believe(*file));
        let doubtful: Vec<FileId> = doubtful.collect();
        if !doubtful.is_empty() {
            self.learn(Record::Broken(doubtful));
        }
    }

    /// A file that was made here is another one: drops what is held on its old id.
    pub(crate) fn disown(&mut self, file: FileId) {
        if let Some(delegations) = &mut self.freshness.delegations {
            delegations.held.remove(&file);
            delegations.fresh.remove(&file);
        }
    }

    /// Gives a delegation up, or lowers it to what the recall lets the client keep.
    fn give_up(&mut self, Recall { number, file, keep, .. }: Recall) {
        let asking = self.freshness.is_asking();
        let Some(delegations) = &mut self.freshness.delegations else { return };
        if !asking {
            delegations.returned.clear();
        }
        delegations.returned.insert(file, number);
        delegations.fresh.remove(&file);
        match delegations.held.get_mut(&file) {
            Some((held, _)) if keep => *held = Hold::Read,
            _ => {
                delegations.held.remove(&file);
                self.forget(file);
            }
        }
    }

    /// True if the facts of a file, which came with a delegation, include changes up to this one.
    pub(crate) fn was_told(&self, file: FileId, seq: u64) -> bool {
        let held = self.freshness.delegations.as_ref().and_then(|delegations| delegations.held.get(&file));
        held.is_some_and(|(_, told)| *told >= seq)
    }
}

/// Most files that a client names as changed when it attaches.
const CHANGED_COUNT_MAX: usize = 1 << 15;

impl Client {
    /// Asks for delegations on files, and for their attributes.
    pub(crate) async fn delegate(&self, files: &[FileId], hold: Hold) -> Result<(), FsError> {
        let mut files = files.to_vec();
        files.sort_unstable();
        files.dedup();
        {
            let live = self.0.live.lock();
            let enough = |file: &FileId| match hold {
                Hold::Read => live.may_believe(*file) && live.replica.is_fresh(*file),
                Hold::Write => live.may_change(*file) && !live.replica.is_stale(*file),
            };
            if files.iter().all(enough) {
                return Ok(());
            }
        }
        // The home gives no delegations on files that it has not heard of.
        let made = self.look(|replica, _| files.iter().filter_map(|file| replica.made_at(*file)).max());
        if let Some(seq) = made {
            self.send_through(seq).await?;
        }
        for file in &files {
            let doubtful = self.0.live.lock().is_doubtful(*file);
            if doubtful {
                self.send_home(*file).await?;
            }
        }
        let question = Question::new(&self.0);
        let request = Request::Delegate { files: files.clone(), hold };
        let Reply::Delegated { known, given, seq } = self.0.ask(Class::Interactive, &request).await? else {
            return Err(FsError::Io);
        };
        let mut live = self.0.live.lock();
        let has_gone = |file: &FileId| live.replica.node(*file).is_err();
        if known.is_empty() && (hold == Hold::Write || files.iter().all(has_gone)) {
            return Err(FsError::Stale);
        }
        for facts in &known {
            let is_given = question.gives(&mut live, facts.id, hold, (given, seq));
            if let Some(delegations) = live.freshness.delegations.as_mut().filter(|_| is_given) {
                delegations.fresh.insert(facts.id);
            }
        }
        self.take_facts(&mut live, question.asking(), &files, (known, seq));
        Ok(())
    }

    /// Makes sure that this client may change a file.
    pub(crate) async fn claim(&self, file: FileId) -> Result<(), FsError> {
        let may = self.0.live.lock().may_change(file);
        if may { Ok(()) } else { self.fetch(Need::Change([file; 4])).await }
    }

    /// Handles recalls: sends home what was done under the delegations, and returns them.
    async fn recalled(&self, channel: &Arc<dyn Channel>, recalls: &[Recall]) {
        // An answer that gives one may be on its way, and the call that asked for it is to get its
        // turn.
        let mut tick = self.0.tick.subscribe();
        let used = async {
            loop {
                let waits = {
                    let live = self.0.live.lock();
                    let asking = live.freshness.is_asking();
                    let waits_for = |delegations: &Delegations| {
                        recalls.iter().any(|Recall { file, held, .. }| {
                            let coming = asking && delegations.held.get(file).is_none_or(|known| known.0 < *held);
                            coming || delegations.fresh.contains(file)
                        })
                    };
                    live.freshness.delegations.as_ref().is_some_and(waits_for)
                };
                if !waits || tick.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(&*self.0.host.clock, USE_TIME_MAX, used).await;
        for recall in recalls {
            let _only_writer = self.0.writer(recall.file).await;
            self.0.live.lock().give_up(*recall);
        }
        let mut returning = Box::pin(self.give_back(channel, recalls));
        if timeout(&*self.0.host.clock, RETURN_TIME, &mut returning).await.is_err() {
            let through = {
                let live = self.0.live.lock();
                // Writes to these files may still be logged before they are sent.
                live.replica.log().last() + recalls.len() as u64
            };
            let recalls = recalls.iter().map(|recall| recall.number).collect();
            // Without this message, the home waits only for as long as a lease.
            let _ = self.0.ask_over(channel, Class::Interactive, &Request::Returning { recalls, through }).await;
            returning.await;
        }
    }

    /// Sends home what was done under delegations that are given up, and tells the home that they
    /// are returned.
    async fn give_back(&self, channel: &Arc<dyn Channel>, recalls: &[Recall]) {
        let (mut numbers, mut lowered) = (Vec::new(), Vec::new());
        for recall in recalls {
            lowered.extend(self.lower(recall));
            if let Ok(Some(behind)) = self.send_but_last(recall.file, recall).await {
                let returned =
                    Request::Returned { recalls: vec![recall.number], lowered: Vec::new(), behind: Some(behind) };
                if let Ok(Reply::Done) = self.0.ask_over(channel, Class::Interactive, &returned).await {
                    continue;
                }
            }
            if self.send_home(recall.file).await.is_ok() {
                numbers.push(recall.number);
            }
        }
        if !numbers.is_empty() {
            let returned = Request::Returned { recalls: numbers, lowered, behind: None };
            let _ = self.0.ask_over(channel, Class::Interactive, &returned).await;
        }
    }

    /// Lowers delegations on files that were lately named in a directory, with the directory's own:
    /// a client that asks for the names will read the files too. Only files without changes that go
    /// home later than the directory's are lowered. Returns them.
    fn lower(&self, recall: &Recall) -> Vec<FileId> {
        let dir = recall.file;
        let named =
            self.0.live.lock().freshness.delegations.as_mut().and_then(|delegations| delegations.named.remove(&dir));
        let lower = |file: &FileId| {
            // A task that is about to write the file relies on its delegation.
            let Some(_only_writer) = self.0.try_writer(*file) else { return false };
            let mut live = self.0.live.lock();
            let last = |file| live.replica.log().naming(live.replica.real(file)).map(|(seq, _)| seq).last();
            let is_begun = live.replica.node(*file).is_ok_and(|node| node.changes.is_begun());
            let is_done = !is_begun && last(*file) <= last(dir);
            let Some(delegations) = live.freshness.delegations.as_mut().filter(|_| is_done) else { return false };
            let is_used = delegations.fresh.contains(file);
            match delegations.held.get_mut(file) {
                Some((held, _)) if *held == Hold::Write && !is_used => *held = Hold::Read,
                _ => return false,
            }
            delegations.returned.insert(*file, recall.number);
            true
        };
        named.into_iter().flatten().filter(lower).collect()
    }

    /// True if changes of a file have to be logged before they are sent, or may soon be made. What
    /// others have done to such a file is not taken over.
    fn is_dirty(&self, file: FileId) -> bool {
        self.look(|replica, _| replica.node(file).is_ok_and(Node::is_dirty))
    }

    /// If others only want to read a file and its last operation is a long store, sends home
    /// everything but that store, and returns it: its bytes can come later.
    async fn send_but_last(&self, file: FileId, recall: &Recall) -> Result<Option<Behind>, FsError> {
        if self.is_dirty(file) {
            self.store(file).await?;
        }
        let least = self.0.schedule.chunk_len(Direction::Up).max(INLINE_LEN_MAX as u64);
        let (seq, change, before) = {
            let live = self.0.live.lock();
            let mut about: Vec<_> = live.replica.log().naming(live.replica.real(file)).collect();
            match about.pop() {
                Some((seq, Operation::Store { change, .. })) if recall.keep && change.ranges.len() > least => {
                    (seq, change.clone(), about.last().map(|(seq, _)| *seq))
                }
                _ => return Ok(None),
            }
        };
        if let Some(before) = before {
            self.send_through(before).await?;
        }
        let base = {
            let mut live = self.0.live.lock();
            live.sending.promise(seq);
            if seq > live.replica.log().pinned() {
                live.learn(Record::Pinned(seq));
            }
            live.replica.node(file).map_or(0, |node| node.seen)
        };
        self.durable().await?;
        self.set_aside(seq, file, &change).await?;
        self.0.wake();
        Ok(Some(Behind { seq, base, change }))
    }

    /// Uploads bytes of a store that is behind before others, because a reader waits for them at
    /// home.
    pub(crate) fn hurry(&self, seq: u64, range: Range<u64>) {
        let me = self.clone();
        self.0.host.tasks.spawn(Box::pin(async move {
            if let Err(error) = me.upload_ahead(seq, range).await {
                // The reader asks again.
                tracing::debug!(%error, seq, "uploading bytes that a reader waits for failed");
            }
        }));
    }

    /// Sends home what was done to a file, and waits until it is there.
    async fn send_home(&self, file: FileId) -> Result<(), FsError> {
        if self.is_dirty(file) {
            self.store(file).await?;
        }
        let last = {
            let live = self.0.live.lock();
            live.replica.log().naming(live.replica.real(file)).map(|(seq, _)| seq).last()
        };
        match last {
            Some(seq) => self.send_through(seq).await,
            None => Ok(()),
        }
    }

    /// Handles recalls in a task of their own, so that other pushes are heard meanwhile.
    pub(crate) fn recall(&self, channel: &Arc<dyn Channel>, recalls: Vec<Recall>) {
        self.0.consistency_calls.fetch_add(1, Relaxed);
        let (me, channel) = (self.clone(), channel.clone());
        self.0.host.tasks.spawn(Box::pin(async move { me.recalled(&channel, &recalls).await }));
    }

    /// Returns all delegations, if every operation that was done under them is home.
    pub(crate) async fn resign(&self) {
        let works = {
            let live = self.0.live.lock();
            live.freshness.delegations.is_some() && live.replica.log().is_empty() && !live.link.is_offline()
        };
        if works {
            // If this fails, they end with their lease.
            let _ = timeout(&*self.0.host.clock, USE_TIME_MAX, self.0.ask(Class::Interactive, &Request::Resign)).await;
        }
    }
}

/// Renews the lease, if anything depends on it, for as long as the client exists.
pub(crate) async fn renew(inner: Weak<Inner>) {
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        let has_locks = !client.0.locks.is_empty();
        let due = {
            let live = client.0.live.lock();
            let ages = |delegations: &Delegations| {
                (!delegations.held.is_empty() || has_locks) && clock.now() + OWN_LEASE > delegations.until + RENEW_AFTER
            };
            live.freshness.delegations.as_ref().is_some_and(ages) && !live.link.is_offline()
        };
        if due {
            // Without an answer in time, the delegations end with their lease.
            let _ = client.0.ask(Class::Interactive, &Request::Renew).await;
        }
        drop(client);
        clock.sleep(LOOK_PERIOD).await;
    }
}
