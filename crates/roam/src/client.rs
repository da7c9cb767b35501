//! A roaming client: opens its cache, and owns its files and background tasks.

use crate::cache::unwritten::Names;
use crate::connection::schedule::Schedule;
use crate::connection::state::LinkState;
use crate::connection::trunk::Line;
use crate::consistency::kernel::Forget;
use crate::live::{Live, Need};
use crate::replica::conflict::{Case, Conflict};
use crate::replica::{Child, Record, Replica};
use crate::settings::Settings;
use host::{Disk, Host};
use parking_lot::Mutex;
use record_log::{AppendError, LogOpenError, RecordLog};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use thiserror::Error;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc, watch};
use types::codec::DecodeError;
use types::{FileId, FsError};
use vfs::locks::Locks;

/// Why a cache cannot be opened.
#[derive(Debug, Error)]
pub enum CacheError {
    /// Its log cannot be opened.
    #[error("the cache: {0}")]
    Open(#[from] LogOpenError),
    /// A record or the snapshot cannot be decoded.
    #[error("the cache is damaged: {0}")]
    Damaged(#[from] DecodeError),
    /// Its log cannot be written.
    #[error("the cache: {0}")]
    Append(#[from] AppendError),
    /// A conflict cannot be opened again, since what was kept of it is damaged.
    #[error("what was kept of the conflict is damaged")]
    Case,
    /// Its disk failed.
    #[error("the cache: {0}")]
    Disk(#[from] std::io::Error),
}

/// A roaming client. Clones share their state.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) host: Host,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: RecordLog,
    pub(crate) live: Arc<Mutex<Live>>,
    pub(crate) locks: Locks,
    pub(crate) line: Line,
    /// A task that holds this lock takes no other lock.
    pub(crate) settings: Mutex<Settings>,
    pub(crate) schedule: Arc<Schedule>,
    /// How often cached data was confirmed or revoked: questions to the home, and what it said
    /// unasked.
    pub(crate) consistency_calls: AtomicU64,
    /// How often the client tried to attach.
    pub(crate) attempts: AtomicU64,
    /// Bytes of stores that were not sent because the home had them already.
    pub(crate) found_there: AtomicU64,
    /// Rises whenever a waiting task may go on.
    pub(crate) tick: watch::Sender<u64>,
    /// Wakes the replay task: there may be more to send home.
    pub(crate) more: Arc<Notify>,
    /// The home has seen more, or a task waits until that is durable there.
    pub(crate) seen_news: Arc<Notify>,
    /// Files with fetched bytes in the cache that are not durable yet.
    pub(crate) unsettled: Mutex<BTreeSet<FileId>>,
    pub(crate) names: Arc<Names>,
    pub(crate) fetches: Turns<Need>,
    pub(crate) byte_fetches: Turns<FileId>,
    /// The holder fetches ahead before all other tasks that fetch ahead.
    pub(crate) ahead: tokio::sync::Mutex<()>,
    /// Held while contents that are in memory are written to files of the cache.
    pub(crate) filing: tokio::sync::Mutex<()>,
    /// Held by the only writer of a file.
    pub(crate) writers: Turns<FileId>,
    /// Held while bytes are put into a file's file of the cache and recorded there.
    pub(crate) places: Turns<FileId>,
}

/// Locks by key: one task at a time works on each.
type Turns<K> = Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>;

async fn turn<K: Hash + Eq>(turns: &Turns<K>, on: K) -> OwnedMutexGuard<()> {
    let lock = {
        let mut turns = turns.lock();
        turns.retain(|_, lock| Arc::strong_count(lock) > 1);
        turns.entry(on).or_default().clone()
    };
    lock.lock_owned().await
}

/// `None` if another task is at work on it.
fn try_turn<K: Hash + Eq>(turns: &Turns<K>, on: K) -> Option<OwnedMutexGuard<()>> {
    turns.lock().entry(on).or_default().clone().try_lock_owned().ok()
}

impl Client {
    /// Shows the client's state to a function.
    pub fn look<T>(&self, f: impl FnOnce(&Replica, LinkState) -> T) -> T {
        let live = self.0.live.lock();
        f(&live.replica, live.link.state())
    }

    /// The settings in effect.
    pub fn settings(&self) -> Settings {
        self.0.settings.lock().clone()
    }

    /// Changes the settings. The volume stays.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        let (anew, consistency) = {
            let mut settings = self.0.settings.lock();
            let before = settings.clone();
            change(&mut settings);
            settings.volume = before.volume;
            let anew = (settings.consistency, settings.validation) != (before.consistency, before.validation);
            (anew, settings.consistency)
        };
        self.0.schedule.set_tickets(self.settings().writes.tickets());
        self.0.live.lock().cache.spare.look_again();
        if anew {
            {
                let mut live = self.0.live.lock();
                live.work_under(consistency, &self.0.host.clock);
                live.link.must_attach();
            }
            // To attach again settles what the home is to push, and tells what the client missed.
            let channel = self.0.live.lock().link.channel().cloned();
            channel.into_iter().for_each(|channel| self.0.lost(&channel));
        }
        self.0.wake();
    }

    /// The schedule of the link.
    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.0.schedule
    }

    /// Why the waiting operations could not be sent home last; `None` if one was sent since.
    pub fn held_up(&self) -> Option<FsError> {
        self.0.live.lock().sending.held_up()
    }

    /// Questions to the home whether cached data is valid, and what the home said of that unasked,
    /// since the cache was opened.
    pub fn consistency_calls(&self) -> u64 {
        self.0.consistency_calls.load(Relaxed)
    }

    /// Pins the link to a state, or unpins it.
    pub fn pin(&self, state: Option<LinkState>) {
        self.0.settings.lock().pinned = state;
        if state == Some(LinkState::Disconnected) {
            let channel = self.0.live.lock().link.channel().cloned();
            if let Some(channel) = channel {
                channel.close();
                self.0.lost(&channel);
            }
        }
        self.0.judge();
        self.0.wake();
    }

    /// Tells the kernel, through this channel, of changes by others from now on. From now on
    /// answers say how long they may be cached.
    pub fn cached_by(&self) -> mpsc::UnboundedReceiver<Forget> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.live.lock().kernel.connect(sender);
        receiver
    }

    /// True while the client works under delegations. Then no other program may cache its answers,
    /// since a recall does not wait until that has dropped them.
    pub fn is_delegated(&self) -> Arc<AtomicBool> {
        self.0.live.lock().freshness.delegated_flag()
    }

    /// Waits until the client is attached to its home.
    pub async fn attached(&self) {
        let mut tick = self.0.tick.subscribe();
        loop {
            let ready = self.look(|replica, state| {
                let known = replica.membership().is_some_and(|membership| replica.node(membership.root).is_ok());
                known && replica.ids_left() > 0 && state != LinkState::Disconnected
            });
            if ready || tick.changed().await.is_err() {
                return;
            }
        }
    }

    /// Marks a conflict as resolved. False if there is no conflict of this number.
    pub async fn settle(&self, number: u64) -> Result<bool, CacheError> {
        {
            let mut live = self.0.live.lock();
            if !live.replica.conflicts().any(|(known, _)| known == number) {
                return Ok(false);
            }
            live.learn(Record::Settled(number));
        }
        self.0.log.settled().await?;
        Ok(true)
    }

    /// A conflict, in the form in which a resolver keeps it to undo the resolution later. `None` if
    /// there is no conflict of this number.
    pub fn case(&self, number: u64) -> Option<Case> {
        let live = self.0.live.lock();
        let conflict = Conflict { base: 0, kept: 0, ..live.replica.conflict(number)?.clone() };
        Some(Case { conflict, meant: live.replica.meant(number).cloned() })
    }

    /// Undoes the resolution of a conflict, so that it is open again. `mine`: the name of this
    /// client's version beside the home's, if it had no place before.
    pub async fn reopen(&self, number: u64, case: Case, mine: Option<Vec<u8>>) -> Result<(), CacheError> {
        {
            let mut live = self.0.live.lock();
            if live.replica.conflict(number).is_some() {
                return Ok(());
            }
            let mut case = Box::new(case);
            let is_meant = case.meant.is_some();
            let conflict = &mut case.conflict;
            let root = live.replica.membership().map(|membership| membership.root);
            let dir = conflict.place.as_ref().map(|(dir, _)| *dir).or(root);
            conflict.mine = conflict.mine.take().or_else(|| Some((dir?, mine?)));
            if let Some(Child::Is(copy)) = conflict.mine.as_ref().map(|place| live.replica.child(place)) {
                conflict.copy = copy;
            }
            // Another file may be there by now.
            if (conflict.mine.is_some() || !is_meant)
                && let Some(Child::Is(file)) = conflict.place.as_ref().map(|place| live.replica.child(place))
            {
                conflict.file = file;
            }
            live.record(Record::Reopened { number, case }).map_err(|_| CacheError::Case)?;
        }
        Ok(self.0.log.settled().await?)
    }
}

impl Inner {
    pub(crate) fn wake(&self) {
        self.tick.send_modify(|tick| *tick += 1);
    }

    /// Wakes the replay task: there may be more to send home.
    pub(crate) fn wake_replay(&self) {
        self.more.notify_one();
    }

    /// Waits for the right to fetch this; one task at a time has it.
    pub(crate) async fn fetching(&self, need: Need) -> OwnedMutexGuard<()> {
        turn(&self.fetches, need).await
    }

    /// As [`fetching`](Self::fetching), without waiting. `None` if another task has the right.
    pub(crate) fn try_fetching(&self, need: Need) -> Option<OwnedMutexGuard<()>> {
        try_turn(&self.fetches, need)
    }

    /// Waits for the right to fetch a file's bytes; one task at a time has it.
    pub(crate) async fn fetching_bytes(&self, id: FileId) -> OwnedMutexGuard<()> {
        turn(&self.byte_fetches, id).await
    }

    /// As [`fetching_bytes`](Self::fetching_bytes), without waiting. `None` if another task has the
    /// right.
    pub(crate) fn try_fetching_bytes(&self, id: FileId) -> Option<OwnedMutexGuard<()>> {
        try_turn(&self.byte_fetches, id)
    }

    /// Files whose bytes are being fetched.
    pub(crate) fn fetched_now(&self) -> HashSet<FileId> {
        let fetches = self.byte_fetches.lock();
        fetches.iter().filter(|(_, lock)| Arc::strong_count(lock) > 1).map(|(id, _)| *id).collect()
    }

    /// Waits for the right to change a file's bytes; one task at a time has it.
    pub(crate) async fn writer(&self, id: FileId) -> OwnedMutexGuard<()> {
        turn(&self.writers, id).await
    }

    /// As [`writer`](Self::writer), without waiting. `None` if another task has the right.
    pub(crate) fn try_writer(&self, id: FileId) -> Option<OwnedMutexGuard<()>> {
        try_turn(&self.writers, id)
    }

    /// True if no task changes a file's bytes, or puts some into the cache. A caller that holds the
    /// lock of `Live` may do both until it unlocks.
    pub(crate) fn is_idle(&self, id: FileId) -> bool {
        let is_idle = |turns: &Turns<FileId>| turns.lock().get(&id).is_none_or(|lock| lock.try_lock().is_ok());
        is_idle(&self.writers) && is_idle(&self.places)
    }

    /// Until this is dropped, no other task puts bytes into this file's file of the cache. The
    /// holder does not wait for the home.
    pub(crate) async fn placing(&self, id: FileId) -> OwnedMutexGuard<()> {
        turn(&self.places, id).await
    }

    /// Forgets a file that has neither name nor handle.
    pub(crate) fn reap(&self, id: FileId) {
        self.live.lock().doubt_nameless(id);
    }
}
