//! A roaming client: opens its cache, and owns its files and background tasks.

use crate::connection::schedule::Schedule;
use crate::connection::state::LinkState;
use crate::connection::trunk::Line;
use crate::consistency::kernel::Forget;
use crate::durability::{COMMIT_TIME_MAX, Names, gather};
use crate::live::{Live, Need};
use crate::reintegration::conflict::{Case, Trouble};
use crate::replica::{Child, Node, Record, Replica};
use crate::settings::Settings;
use bytes::Bytes;
use host::{Disk, File, Host};
use parking_lot::{Mutex, MutexGuard};
use record_log::{AppendError, OpenError, RecordLog};
use roam_proto::codec::Wire;
use roam_proto::operation::{Change, Operation};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use thiserror::Error;
use tokio::sync::{Notify, OwnedMutexGuard, mpsc, watch};
use types::codec::DecodeError;
use types::{FileId, FsError, Time};
use vfs::locks::Locks;

/// The owner mark in the headers of a cache's log files.
const OWNER: [u8; 4] = *b"ROAM";

/// Why a cache cannot be opened.
#[derive(Debug, Error)]
pub enum CacheError {
    /// Its log cannot be opened.
    #[error("the cache: {0}")]
    Open(#[from] OpenError),
    /// A record or the snapshot cannot be decoded.
    #[error("the cache is damaged: {0}")]
    Damaged(#[from] DecodeError),
    /// Its log cannot be written.
    #[error("the cache: {0}")]
    Append(#[from] AppendError),
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
    names: Arc<Names>,
    fetches: Turns<Need>,
    byte_fetches: Turns<FileId>,
    /// The holder fetches ahead before all other tasks that fetch ahead.
    pub(crate) ahead: tokio::sync::Mutex<()>,
    /// Held while contents that are in memory are written to files of the cache.
    pub(crate) filing: tokio::sync::Mutex<()>,
    /// Held by the only writer of a file.
    writers: Turns<FileId>,
    /// Held while bytes are put into a file's file of the cache and recorded there.
    places: Turns<FileId>,
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

/// The name of a file of the cache.
pub fn data_name(number: u64) -> String {
    format!("d{number:x}")
}

/// The name of the file that keeps contents set aside for an operation.
pub(crate) fn outgoing_name(seq: u64) -> String {
    format!("o{seq:x}")
}

/// The change to log for a file that was being changed when the client ended. A file without holes
/// is logged whole. Otherwise what was durable in the cache, or lies beyond the length at which the
/// change began, counts as changed; the holes stay as the home has them. `len`: the length of the
/// file of the cache, if that exists. `None` if a file with holes has no file of the cache.
fn changed_since(node: Option<&Node>, len: Option<u64>, mtime: Time) -> Option<Change> {
    let has_holes = |node: &&Node| !node.kept.missing(0..node.begun_size).is_empty();
    let Some(node) = node.filter(has_holes) else {
        let size = len.unwrap_or(0);
        return Some(Change::of_all(size, mtime));
    };
    let size = len?;
    let mut ranges = node.kept.clone();
    ranges.add(node.begun_size..size);
    ranges.cut(size);
    Some(Change { cut: node.begun_size.min(size), size, ranges, mtime })
}

impl Client {
    /// Opens a cache and begins to look for the home.
    pub async fn open(host: &Host, disk: Arc<dyn Disk>, line: Line, settings: Settings) -> Result<Client, CacheError> {
        let found = record_log::open(&*disk, "cache", OWNER).await?;
        let mut replica = match &found.snapshot {
            Some(bytes) => Replica::from_bytes(bytes)?,
            None => Replica::default(),
        };
        for record in &found.records {
            replica.apply(Record::from_bytes(record)?).ok_or(DecodeError::Invalid("record of a cache"))?;
        }
        let live = Arc::new(Mutex::new(Live::new(replica)));
        let source = live.clone();
        let snapshot = Arc::new(move |cut: &mut dyn FnMut()| {
            let mut live = source.lock();
            cut();
            live.cache.unwritten.begin();
            let mut snapshot = live.replica.begin_snapshot();
            while live.replica.add_some_to(&mut snapshot) {
                MutexGuard::bump(&mut live);
            }
            drop(live);
            snapshot.finish()
        });
        let names = Arc::new(Names::default());
        let found = found.patiently().growing_to(settings.log_len);
        let found = found.lazily(COMMIT_TIME_MAX, gather(&live, &disk, &names));
        let log = found.start(host, &disk.tasks(host), snapshot).await?;
        live.lock().keep_in(log.clone());
        let inner = Inner {
            host: host.clone(),
            disk,
            log,
            live,
            locks: Locks::default(),
            schedule: line.trunk().schedule.clone(),
            line,
            settings: Mutex::new(settings),
            consistency_calls: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            found_there: AtomicU64::new(0),
            tick: watch::Sender::new(0),
            more: Arc::default(),
            seen_news: Arc::default(),
            unsettled: Mutex::default(),
            names,
            fetches: Mutex::default(),
            byte_fetches: Mutex::default(),
            ahead: tokio::sync::Mutex::default(),
            filing: tokio::sync::Mutex::default(),
            writers: Mutex::default(),
            places: Mutex::default(),
        };
        inner.schedule.set_tickets(inner.settings.lock().writes.tickets());
        inner.live.lock().work_under(inner.settings.lock().consistency, &host.clock);
        let client = Client(Arc::new(inner));
        client.recover().await?;
        client.start();
        Ok(client)
    }

    /// Logs the changes that were under way when the client ended, and removes files that nothing
    /// needs.
    async fn recover(&self) -> Result<(), CacheError> {
        let inner = &self.0;
        let names: BTreeSet<String> = inner.disk.list().await?.into_iter().collect();
        let (dirty, used) = {
            let mut live = inner.live.lock();
            let needed: BTreeSet<u64> = live.replica.needed().collect();
            let unneeded: Vec<u64> = live
                .replica
                .all_contents()
                .map(|(number, _)| number)
                .filter(|number| !needed.contains(number))
                .collect();
            unneeded.into_iter().for_each(|number| live.replica.forget_contents(number));
            let is_there = |data: u64| names.contains(&data_name(data)) || live.replica.contents(data).is_some();
            let lost = live.replica.nodes().filter(|(_, n)| !n.kept.is_empty() && !is_there(n.data));
            lost.map(|(id, _)| id).collect::<Vec<_>>().into_iter().for_each(|id| live.learn(Record::Lost(id)));
            // Bytes that were written in memory are lost: the file is as it was logged last.
            let apart: Vec<_> =
                live.replica.nodes().filter(|(_, n)| n.is_apart).map(|(id, n)| (id, n.to_log())).collect();
            let when = inner.host.clock.wall();
            for (id, owed) in apart {
                live.learn(match owed {
                    Some(change) => Record::Did { operation: Operation::Store { file: id, change }, when },
                    None => Record::Clean(id),
                });
            }
            let dirty: Vec<_> =
                live.replica.nodes().filter(|(_, n)| n.is_dirty()).map(|(id, n)| (id, n.data)).collect();
            let in_files = live.replica.needed().filter(|number| live.replica.contents(*number).is_none());
            let used: BTreeSet<String> = in_files.map(data_name).collect();
            (dirty, used)
        };
        for (id, data) in dirty {
            let name = data_name(data);
            let in_log = self.look(|replica, _| replica.contents(data).map(|bytes| bytes.len() as u64));
            let is_there = in_log.is_some() || names.contains(&name);
            let size = match in_log {
                Some(len) => len,
                // No byte was ever written.
                None if !is_there => 0,
                None => {
                    // What the kernel has of it may still be lost.
                    let file = inner.disk.open(&name, false).await?;
                    file.sync_data().await?;
                    inner.disk.sync_names().await?;
                    file.len().await?
                }
            };
            let when = inner.host.clock.wall();
            let mut live = inner.live.lock();
            let nameless = live.replica.node(id).map_or(true, |node| node.facts.nlink == 0);
            if !nameless {
                let change = changed_since(live.replica.node(id).ok(), is_there.then_some(size), when);
                live.learn(match change {
                    Some(change) => Record::Did { operation: Operation::Store { file: id, change }, when },
                    None => Record::Clean(id),
                });
            }
        }
        let bases: Vec<u64> = self.look(|replica, _| replica.nodes().map(|(_, node)| node.base).collect());
        for base in bases.into_iter().filter(|base| *base > 0) {
            let in_log = self.look(|replica, _| replica.contents(base).map(|bytes| bytes.len() as u64));
            let len = match in_log {
                Some(len) => len,
                None if names.contains(&data_name(base)) => {
                    inner.disk.open(&data_name(base), false).await?.len().await?
                }
                None => continue,
            };
            inner.live.lock().cache.keep_base(base, len);
        }
        for name in names {
            if name.starts_with(['d', 'o']) && !used.contains(&name) {
                inner.disk.remove(&name).await?;
            }
        }
        let mut live = inner.live.lock();
        live.replica.forget_aliases();
        let all: Vec<FileId> = live.replica.nodes().map(|(id, _)| id).collect();
        for id in all {
            live.replica.forget_nameless(id);
        }
        Ok(())
    }

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
            if !live.replica.troubles().any(|(known, _)| known == number) {
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
        let trouble = Trouble { base: 0, kept: 0, ..live.replica.trouble(number)?.clone() };
        Some(Case { trouble, meant: live.replica.meant(number).cloned() })
    }

    /// Undoes the resolution of a conflict, so that it is open again. `mine`: the name of this
    /// client's version beside the home's, if it had no place before.
    pub async fn reopen(&self, number: u64, case: Case, mine: Option<Vec<u8>>) -> Result<(), CacheError> {
        {
            let mut live = self.0.live.lock();
            if live.replica.trouble(number).is_some() {
                return Ok(());
            }
            let mut case = Box::new(case);
            let is_meant = case.meant.is_some();
            let trouble = &mut case.trouble;
            let root = live.replica.membership().map(|membership| membership.root);
            let dir = trouble.place.as_ref().map(|(dir, _)| *dir).or(root);
            trouble.mine = trouble.mine.take().or_else(|| Some((dir?, mine?)));
            if let Some(Child::Is(copy)) = trouble.mine.as_ref().map(|place| live.replica.child(place)) {
                trouble.copy = copy;
            }
            // Another file may be there by now.
            if (trouble.mine.is_some() || !is_meant)
                && let Some(Child::Is(file)) = trouble.place.as_ref().map(|place| live.replica.child(place))
            {
                trouble.file = file;
            }
            live.learn(Record::Reopened { number, case });
        }
        Ok(self.0.log.settled().await?)
    }

    /// Makes everything that was acknowledged durable, and ends.
    pub async fn close(&self) -> Result<(), CacheError> {
        self.log_stores().await;
        let files: Vec<FileId> = self.look(|replica, _| replica.begun().collect());
        for file in files {
            // A change that cannot be logged now is found when the cache is opened again.
            let _ = self.store(file).await;
        }
        self.settle_bytes().await;
        self.resign().await;
        let channel = self.0.live.lock().link.take_channel();
        if let Some(channel) = channel {
            channel.close();
        }
        Ok(self.0.log.close().await?)
    }

    /// Removes files of the cache that nothing needs any more, after the log says so durably:
    /// otherwise they would be missing after a crash.
    pub(crate) async fn remove_unused(&self) {
        let (unused, outgoing) = {
            let mut live = self.0.live.lock();
            live.forget_used();
            live.let_go();
            (live.replica.take_unused(), live.forget_outgoing())
        };
        outgoing.into_iter().for_each(|seq| self.0.remove_file(outgoing_name(seq)));
        if unused.is_empty() || self.0.log.settled_in_time().await.is_err() {
            return;
        }
        for number in unused {
            {
                let mut live = self.0.live.lock();
                live.cache.forget(number);
                if live.replica.contents(number).is_some() {
                    live.replica.forget_contents(number);
                }
            }
            // A file that cannot be removed now is removed when the cache is opened again.
            let _ = self.0.disk.remove(&data_name(number)).await;
        }
        if self.0.was_full() || self.0.log.room().is_some() {
            // A disk may keep the space of removed files until the removal is durable.
            let _ = self.0.disk.sync_names().await;
        }
    }

    /// Makes fetched bytes durable, so that they survive a crash.
    pub(crate) async fn settle_bytes(&self) {
        let files = std::mem::take(&mut *self.0.unsettled.lock());
        for id in files {
            let found = {
                let live = self.0.live.lock();
                live.replica.node(id).ok().filter(|node| !node.is_dirty()).map(|node| (node.data, node.have.clone()))
            };
            let Some((data, have)) = found.filter(|(data, _)| *data > 0) else { continue };
            let Ok(file) = self.0.open_data(data).await else { continue };
            if self.0.sync_bytes(&file).await.is_err() {
                continue;
            }
            let mut live = self.0.live.lock();
            let same = live.replica.node(id).is_ok_and(|node| node.data == data && !node.is_dirty());
            if same {
                live.learn(Record::Cached { file: id, data, have });
            }
        }
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

    /// The file of the cache with this number. ENOENT if there is none.
    pub(crate) async fn open_data(&self, number: u64) -> Result<Arc<dyn File>, FsError> {
        self.open_or_make(number, false).await
    }

    async fn open_or_make(&self, number: u64, make: bool) -> Result<Arc<dyn File>, FsError> {
        let known = {
            let live = self.live.lock();
            let small = live.in_memory(number).map(|small| small as Arc<dyn File>);
            small.or_else(|| live.cache.opened(number))
        };
        match known {
            Some(file) => Ok(file),
            None => self.open_file(number, make).await,
        }
    }

    /// Creates the file of the cache with this number on the disk, or opens it.
    pub(crate) async fn make_data_file(&self, number: u64) -> Result<Arc<dyn File>, FsError> {
        self.open_file(number, true).await
    }

    async fn open_file(&self, number: u64, make: bool) -> Result<Arc<dyn File>, FsError> {
        let file = loop {
            match self.disk.open(&data_name(number), make).await {
                Ok(file) => break file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(FsError::NotFound),
                Err(error) => {
                    let error = disk_error(&error);
                    if error != FsError::NoSpace || !self.free_disk(0, None).await {
                        return Err(error);
                    }
                }
            }
        };
        // The file may be new.
        if make {
            self.names.made();
        }
        Ok(self.live.lock().cache.keep_open(number, file))
    }

    /// Called when the last handle of a file is closed. A file that the kernel reads by itself
    /// stays open, since it is opened again and again.
    pub(crate) fn leave_data(&self, id: FileId) {
        let mut live = self.live.lock();
        let data = live.replica.node(id).map_or(0, |node| node.data);
        if !live.cache.is_shown(data) {
            live.cache.close(data);
        }
    }

    /// Makes a new file of the cache. Returns its number too.
    pub(crate) async fn new_data_file(&self) -> Result<(u64, Arc<dyn File>), FsError> {
        let number = self.live.lock().take_data_number();
        Ok((number, self.open_or_make(number, true).await?))
    }

    /// The file of the cache with a file's bytes, and its number. Makes a new one if there is none.
    pub(crate) async fn data_file(&self, id: FileId) -> Result<(u64, Arc<dyn File>), FsError> {
        let (number, is_new) = {
            let mut live = self.live.lock();
            let node = live.replica.node(id)?;
            // Another task may have taken the number and not made the file yet.
            match (node.data, node.have.is_empty()) {
                (0, _) => {
                    let number = live.take_data_number();
                    live.replica.node_mut(id)?.data = number;
                    (number, true)
                }
                known => known,
            }
        };
        Ok((number, self.open_or_make(number, is_new).await?))
    }

    /// Notes that files of the cache were made, whose names are not durable yet.
    pub(crate) fn made_names(&self) {
        self.names.made();
    }

    /// Makes everything on the cache's disk durable, names included.
    pub(crate) async fn sync_disk(&self) -> Result<(), FsError> {
        match self.disk.sync_all().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            synced => return synced.map_err(|error| disk_error(&error)),
        }
        Err(FsError::NotSupported)
    }

    /// Checks that a file's file of the cache exists and is long enough; if not, records the bytes
    /// as lost. The caller is the file's only writer.
    pub(crate) async fn check_data(&self, id: FileId) -> Result<(), FsError> {
        let (data, end) = {
            let live = self.live.lock();
            let node = live.replica.node(id)?;
            if live.in_memory(node.data).is_some() {
                return Ok(());
            }
            // A file that is being changed may have been cut.
            let end = node.have.iter().last().map(|range| if node.is_dirty() { 0 } else { range.end });
            match end {
                Some(end) => (node.data, end),
                None => return Ok(()),
            }
        };
        let is_there = match self.open_data(data).await {
            Err(FsError::NotFound) => false,
            file => file?.len().await.map_err(|error| disk_error(&error))? >= end,
        };
        let mut live = self.live.lock();
        if !is_there && live.replica.node(id)?.data == data {
            tracing::error!(file = id.raw(), "a file of the cache is missing or too short");
            let id = live.replica.real(id);
            live.record(Record::Lost(id))?;
            live.cache.close(data);
        }
        Ok(())
    }

    /// Makes the bytes of a file of the cache durable, and its name.
    pub(crate) async fn sync_bytes(&self, file: &Arc<dyn File>) -> Result<(), FsError> {
        file.sync_data().await.map_err(|error| disk_error(&error))?;
        self.names.sync(&*self.disk).await.map_err(|error| disk_error(&error))
    }

    /// Writes into a file of the cache.
    pub(crate) async fn put_bytes(&self, file: &Arc<dyn File>, offset: u64, bytes: Bytes) -> Result<(), FsError> {
        self.put_instead(file, offset, bytes, None).await
    }

    /// As [`put_bytes`](Self::put_bytes). On a full disk, `instead` allows it to evict only files
    /// of lower hoard priority than that one.
    pub(crate) async fn put_instead(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: Bytes,
        instead: Option<FileId>,
    ) -> Result<(), FsError> {
        loop {
            match file.write_at(offset, vec![bytes.clone()]).await.map_err(|error| disk_error(&error)) {
                Err(FsError::NoSpace) if self.free_disk(bytes.len() as u64, instead).await => {}
                written => return written,
            }
        }
    }

    /// Forgets a file that has neither name nor handle.
    pub(crate) fn reap(&self, id: FileId) {
        self.live.lock().doubt_nameless(id);
    }

    /// Removes a file of the cache in the background. If that fails, the next opening of the cache
    /// removes it.
    pub(crate) fn remove_file(&self, name: String) {
        let disk = self.disk.clone();
        self.host.tasks.spawn(Box::pin(async move { drop(disk.remove(&name).await) }));
    }
}

/// The error that users see when the cache's disk fails.
pub(crate) fn disk_error(error: &std::io::Error) -> FsError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FsError::NoSpace,
        ErrorKind::FileTooLarge => FsError::FileTooLarge,
        _ => {
            tracing::error!(%error, "the disk of the cache failed");
            FsError::Io
        }
    }
}
