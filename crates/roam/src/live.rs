//! A client's state in memory: one lock, never held across an await.

use crate::cache::batch_fetch::Waits;
use crate::cache::eviction::Spare;
use crate::connection::silence::Probe;
use crate::consistency::delegation::{Delegations, Wanted};
use crate::consistency::locking::Lockings;
use crate::durability::Unwritten;
use crate::files::listings::Listings;
use crate::files::small::SmallFile;
use crate::reintegration::dedup::Lately;
use crate::reintegration::replay::{Outgoing, SetAside};
use crate::reintegration::seen::Seen;
use crate::replica::{Node, Record, Replica};
use host::File;
use record_log::RecordLog;
use roam_proto::channel::Channel;
use roam_proto::codec::Wire;
use roam_proto::message::Company;
use roam_proto::operation::{Change, Operation};
use roam_proto::ranges::Ranges;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{FsStat, Handle, OpenFlags};

/// The state of the link to the home (docs/roaming.md#the-link), best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkState {
    /// The home is near. Calls wait until it has seen their operations, if other clients are
    /// attached.
    Connected,
    /// The home is far. Operations go there in the background.
    Weak,
    /// Only fetches use the link, and operations wait. If the user has chosen this state, all of
    /// them wait. Otherwise the link is slow and a program is fetching: operations that a program
    /// waits for still go home, and the others wait for two minutes at most.
    FetchOnly,
    /// The home cannot be reached.
    Disconnected,
}

/// Why a call cannot be answered yet.
pub(crate) enum Stop {
    Fs(FsError),
    Need(Need),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Fs(error)
    }
}

/// What a call needs before it can be answered. All but `Room` comes from the home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Need {
    /// The names in a directory.
    Names(FileId),
    /// A file's attributes, and leave to believe them.
    Facts(FileId),
    /// Write delegations on these files.
    Change(Wanted),
    /// Ids for new files.
    Ids,
    /// Room in the log. It comes from this machine's disk.
    Room,
}

/// An open file or directory.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) flags: OpenFlags,
    pub(crate) directory: bool,
}

/// What the kernel, which caches this client's answers, has to drop.
#[derive(Debug)]
pub enum Forget {
    /// The reader of these messages replies on this channel when it has dropped everything before.
    All(oneshot::Sender<()>),
    /// A file's attributes and contents.
    File(FileId),
    /// What a name in a directory leads to.
    Name(FileId, Vec<u8>),
}

/// A client's state in memory: one lock, never held across an await.
pub(crate) struct Live {
    pub(crate) replica: Replica,
    pub(crate) log: Option<RecordLog>,
    pub(crate) unwritten: Unwritten,
    pub(crate) handles: BTreeMap<Handle, Open>,
    pub(crate) listings: Listings,
    last_handle: u64,
    pub(crate) open_counts: HashMap<FileId, u32>,
    /// Files of the cache whose bytes are being changed. They stay open, so that a sync reports
    /// every write error.
    pub(crate) held: HashMap<FileId, Arc<dyn File>>,
    /// Files that are changed in memory, by the number of their contents.
    pub(crate) small: HashMap<u64, Arc<SmallFile>>,
    /// Those whose newest bytes the log does not have, with the file and its length.
    pub(crate) unheld: BTreeMap<u64, (FileId, u64)>,
    /// The sum of these lengths, in bytes.
    pub(crate) unheld_len: u64,
    /// Open files of the cache, by number.
    pub(crate) files: HashMap<u64, Arc<dyn File>>,
    /// Files of the cache, by number, that the kernel was given to read or map. Their contents
    /// change as the file does.
    pub(crate) shown: HashSet<u64>,
    /// Of them, those that programs may have mapped for writing: the file, and the mark up to which
    /// the client knows what changed there.
    pub(crate) mapped: HashMap<u64, (FileId, u128)>,
    /// Operations up to this one go home, even if the settings say later.
    pub(crate) promised: u64,
    /// Operations that the home has done and answered, but not made durable yet. They are the first
    /// ones that wait.
    pub(crate) seen: Seen,
    /// Why the client could not be attached last: the home refused, or another program answered.
    /// `None` if the home was only out of reach.
    pub(crate) turned_away: Option<String>,
    /// Why the waiting operations could not be sent last; cleared when one was sent.
    pub(crate) held_up: Option<FsError>,
    /// Since when operations have been held back because the link is slow and a program fetches.
    pub(crate) held_since: Option<Duration>,
    /// Consistency `none`: cached data is believed, even if others change files.
    pub(crate) is_frozen: bool,
    /// Delegations, under `strong`: cached data is believed only as far as they say.
    pub(crate) delegations: Option<Delegations>,
    pub(crate) lockings: Lockings,
    /// True under `strong`. Shared with the front end, which caches nothing then.
    pub(crate) is_delegated: Arc<AtomicBool>,
    /// The number of each file's last use.
    pub(crate) used: HashMap<FileId, u64>,
    pub(crate) uses: u64,
    /// File count from which on the client looks again for metadata to forget.
    pub(crate) known_enough: usize,
    /// Files that the client has forgotten since it opened the cache.
    pub(crate) forgotten: u64,
    /// Files whose rest is being fetched in the background.
    pub(crate) completing: HashSet<FileId>,
    /// Contents that were set aside to go home, by operation.
    pub(crate) outgoing: SetAside,
    /// Programs' waits for small files, by directory.
    pub(crate) waits: HashMap<FileId, Waits>,
    /// Directories that the client lists ahead, or lately tried to in vain, and since when.
    pub(crate) listed_ahead: HashMap<FileId, Duration>,
    /// Bytes of waiting stores, by operation, whose file has other contents since.
    pub(crate) sources: HashMap<u64, Arc<dyn File>>,
    /// Files that were read or written lately, the last one last.
    pub(crate) lately: VecDeque<Lately>,
    /// Ranges of stores, by operation, that the home has before their turn: uploaded ahead on this
    /// connection, or found there.
    pub(crate) ahead: HashMap<u64, Ranges>,
    pub(crate) channel: Option<Arc<dyn Channel>>,
    /// The connection over which the home has told of every change since the client attached, even
    /// if it counts as lost meanwhile.
    pub(crate) told_over: Option<Weak<dyn Channel>>,
    /// The connection whose attach answer this client has applied. A stamp pushed before that must
    /// not count: the answer may tell of earlier changes.
    pub(crate) attached_over: Option<Weak<dyn Channel>>,
    /// Whether other clients are attached to the volume, as far as the home has said.
    pub(crate) company: Company,
    /// The home came near some time ago, and this client has not yet told it that it hears of
    /// changes.
    pub(crate) has_come_near: bool,
    /// The last time at which everything that the home had pushed was known to have arrived.
    pub(crate) caught_up: Duration,
    /// When the last connection ended; `None` if it fell silent, or was given up.
    pub(crate) ended_at: Option<Duration>,
    /// The question after a silence that is under way.
    pub(crate) probe: Option<Probe>,
    pub(crate) state: LinkState,
    /// How many questions to the home are under way. Changes that it tells meanwhile go to `broken`
    /// and `overtaken`.
    pub(crate) asking: usize,
    /// Files that others changed during these questions: the value of `breaks` then, and the
    /// volume's change number up to which they changed.
    pub(crate) broken: HashMap<FileId, (u64, u64)>,
    /// Files that this client's own operations changed at home during these questions, with the
    /// value of `breaks` then.
    pub(crate) overtaken: HashMap<FileId, u64>,
    pub(crate) breaks: u64,
    /// How often the home told of changes by others to files that are known here.
    pub(crate) news: u64,
    pub(crate) space: Option<FsStat>,
    pub(crate) spare: Spare,
    /// Lengths in bytes of the files of the cache that keep a base, by number.
    pub(crate) base_lens: HashMap<u64, u64>,
    /// Tells the kernel what to drop; `None`: no kernel caches this client's answers.
    pub(crate) cachers: Option<mpsc::UnboundedSender<Forget>>,
}

impl Live {
    pub(crate) fn new(replica: Replica) -> Live {
        Live {
            replica,
            log: None,
            unwritten: Unwritten::default(),
            handles: BTreeMap::new(),
            listings: Listings::default(),
            last_handle: 0,
            open_counts: HashMap::new(),
            held: HashMap::new(),
            small: HashMap::new(),
            unheld: BTreeMap::new(),
            unheld_len: 0,
            files: HashMap::new(),
            shown: HashSet::new(),
            mapped: HashMap::new(),
            promised: 0,
            seen: Seen::default(),
            turned_away: None,
            held_up: None,
            held_since: None,
            is_frozen: false,
            delegations: None,
            lockings: Lockings::default(),
            is_delegated: Arc::default(),
            used: HashMap::new(),
            uses: 0,
            known_enough: 0,
            forgotten: 0,
            completing: HashSet::new(),
            outgoing: SetAside::default(),
            waits: HashMap::new(),
            listed_ahead: HashMap::new(),
            sources: HashMap::new(),
            lately: VecDeque::new(),
            ahead: HashMap::new(),
            channel: None,
            told_over: None,
            attached_over: None,
            company: Company { number: 0, others: true },
            has_come_near: false,
            caught_up: Duration::ZERO,
            ended_at: None,
            probe: None,
            state: LinkState::Disconnected,
            asking: 0,
            broken: HashMap::new(),
            overtaken: HashMap::new(),
            breaks: 0,
            news: 0,
            space: None,
            spare: Spare::default(),
            base_lens: HashMap::new(),
            cachers: None,
        }
    }

    /// Makes a lasting change. It is durable once the log has settled.
    pub(crate) fn record(&mut self, record: Record) {
        if let Some(log) = &self.log {
            // A caller that needs it durable waits for the log to settle.
            log.post(record.to_bytes().into());
        }
        let made = self.replica.apply(record);
        debug_assert!(made.is_some(), "a record must fit the state that it changes");
        for (before, seq) in self.replica.take_logged_again() {
            // What goes home is what was saved, even if the file has changed since.
            if let Some(outgoing) = self.outgoing.remove(before) {
                self.outgoing.insert(seq, outgoing);
            }
            if let Some(source) = self.sources.remove(&before) {
                self.sources.insert(seq, source);
            }
        }
    }

    /// The number of a new file of the cache.
    pub(crate) fn take_data_number(&mut self) -> u64 {
        let number = self.replica.take_data_number();
        self.unwritten.made(number);
        number
    }

    /// Waiting stores of a file whose bytes are only in the file itself.
    pub(crate) fn unspared(&self, file: FileId) -> impl Iterator<Item = (u64, &Change)> {
        let stores =
            self.replica.log().naming(self.replica.real(file)).filter_map(|(seq, operation)| match operation {
                Operation::Store { change, .. } => Some((seq, change)),
                _ => None,
            });
        stores.filter(|(seq, _)| self.outgoing.get(*seq).is_none() && !self.sources.contains_key(seq))
    }

    /// Logs a change of a file's contents.
    pub(crate) fn did_store(&mut self, file: FileId, change: Change, when: Time) {
        let file = self.replica.real(file);
        self.did_store_with(file, Record::Did { operation: Operation::Store { file, change }, when });
    }

    /// Logs a change of a file's contents, by the given record.
    pub(crate) fn did_store_with(&mut self, file: FileId, record: Record) {
        let last = |live: &Live| {
            let mut naming = live.replica.log().naming(file);
            naming
                .by_ref()
                .filter(|(_, operation)| matches!(operation, Operation::Store { .. }))
                .last()
                .map(|(seq, _)| seq)
        };
        let before = last(self);
        self.record(record);
        if let Some(seq) = before
            && last(self) == before
        {
            // The store became part of one that waits, whose bytes are now different.
            self.outgoing.remove(seq);
            self.sources.remove(&seq);
        }
    }

    /// Drops contents that were set aside for operations that are no longer sent. Returns the
    /// numbers of those that are in files.
    pub(crate) fn forget_outgoing(&mut self) -> Vec<u64> {
        let log = self.replica.log();
        self.sources.retain(|seq, _| log.has(*seq));
        let gone: Vec<u64> = self.outgoing.seqs().filter(|seq| !log.has(*seq)).collect();
        let file = |seq| match self.outgoing.remove(seq) {
            Some(Outgoing::File(_, number)) => Some(number),
            _ => None,
        };
        gone.into_iter().filter_map(file).collect()
    }

    /// True if the home cannot be asked.
    pub(crate) fn is_offline(&self) -> bool {
        self.state == LinkState::Disconnected
    }

    /// Notes that some of the waiting operations have gone home.
    pub(crate) fn some_went(&mut self, now: Duration) {
        self.held_since = (self.state == LinkState::FetchOnly).then_some(now);
    }

    /// True if cached data has to do, whether stale or not.
    pub(crate) fn is_content(&self) -> bool {
        (self.is_offline() || self.is_frozen) && self.delegations.is_none()
    }

    /// A file whose attributes are as new as they can be now.
    pub(crate) fn node(&self, id: FileId) -> Result<&Node, Stop> {
        let id = self.replica.real(id);
        if self.replica.is_stale(id) && !self.is_content() || self.is_passed(id) {
            return Err(Stop::Need(Need::Facts(id)));
        }
        let node = self.known(id)?;
        // A file without a name belongs to this client alone.
        if node.facts.nlink > 0 && !self.may_believe(id) {
            return Err(Stop::Need(Need::Facts(id)));
        }
        if node.facts.nlink == 0 && !self.open_counts.contains_key(&id) {
            return Err(Stop::Fs(FsError::Stale));
        }
        Ok(node)
    }

    /// A cached file. If the client has forgotten it, the home has to be asked.
    pub(crate) fn known(&self, id: FileId) -> Result<&Node, Stop> {
        self.replica.node(id).map_err(|_| Stop::Need(Need::Facts(self.replica.real(id))))
    }

    /// Forgets a file that has no name here, unless a program has it open.
    pub(crate) fn doubt_nameless(&mut self, id: FileId) {
        let id = self.replica.real(id);
        let data = self.replica.node(id).map_or(0, |node| node.data);
        if !self.open_counts.contains_key(&id) && self.replica.forget_nameless(id) {
            self.held.remove(&id);
            self.leave_small(data);
        }
    }

    /// A directory whose names are as new as they can be now.
    pub(crate) fn directory(&self, id: FileId) -> Result<&Node, Stop> {
        let node = self.node(id)?;
        if node.facts.kind != Kind::Directory {
            return Err(Stop::Fs(FsError::NotADirectory));
        }
        match (self.replica.has_names(id), &node.names) {
            (true, _) => Ok(node),
            (false, Some(_)) if self.is_content() => Ok(node),
            _ => Err(Stop::Need(Need::Names(id))),
        }
    }

    pub(crate) fn open_handle(&mut self, id: FileId, flags: OpenFlags, directory: bool) -> Handle {
        let id = self.replica.real(id);
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.handles.insert(handle, Open { id, flags, directory });
        *self.open_counts.entry(id).or_default() += 1;
        self.touch(id);
        handle
    }

    /// Notes that a file was used.
    pub(crate) fn touch(&mut self, id: FileId) {
        self.uses += 1;
        self.used.insert(id, self.uses);
    }

    /// Closes files of the cache that are no longer being changed.
    pub(crate) fn let_go(&mut self) {
        let Live { held, replica, .. } = self;
        held.retain(|file, _| replica.node(*file).is_ok_and(|node| node.changes.is_begun()));
    }

    /// Drops the last uses of files that are no longer known.
    pub(crate) fn forget_used(&mut self) {
        if self.used.len() > 2 * self.replica.file_count() {
            self.used.retain(|file, _| self.replica.node(*file).is_ok());
        }
    }

    /// EBADF unless `handle` is open on `id`.
    pub(crate) fn handle(&self, id: FileId, handle: Handle, directory: bool) -> Result<&Open, FsError> {
        match self.handles.get(&handle) {
            Some(open) if open.id == self.replica.real(id) && open.directory == directory => Ok(open),
            _ => Err(FsError::BadHandle),
        }
    }

    /// EBADF unless `handle` is open on the directory `id`, or is the one handle of all
    /// directories.
    pub(crate) fn open_directory(&self, id: FileId, handle: Handle) -> Result<(), FsError> {
        if handle == Handle::NONE { Ok(()) } else { self.handle(id, handle, true).map(drop) }
    }

    /// EIO if a program may believe that it still holds a lock on the file that it has lost.
    fn not_lost(&self, id: FileId) -> Result<(), FsError> {
        if self.lockings.has_lost(self.replica.real(id)) { Err(FsError::Io) } else { Ok(()) }
    }

    /// EBADF unless `handle` is open on the file `id` for writing.
    pub(crate) fn writable(&self, id: FileId, handle: Handle) -> Result<&Open, FsError> {
        let open = self.handle(id, handle, false)?;
        self.not_lost(id)?;
        if open.flags.write { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// EBADF unless `handle` is open on the file `id` for reading or executing.
    pub(crate) fn readable(&self, id: FileId, handle: Handle) -> Result<&Open, FsError> {
        let open = self.handle(id, handle, false)?;
        self.not_lost(id)?;
        if open.flags.read || open.flags.execute { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// Closes a handle. True if it was the file's last.
    pub(crate) fn close(&mut self, id: FileId, handle: Handle, directory: bool) -> Result<bool, FsError> {
        self.handle(id, handle, directory)?;
        self.handles.remove(&handle);
        let id = self.replica.real(id);
        let count = self.open_counts.get_mut(&id).ok_or(FsError::BadHandle)?;
        *count -= 1;
        if *count > 0 {
            return Ok(false);
        }
        self.open_counts.remove(&id);
        Ok(true)
    }

    /// Notes that the home has answered operations on these files: other answers that are on their
    /// way may describe them as they were before.
    pub(crate) fn overtake(&mut self, files: impl IntoIterator<Item = FileId>) {
        self.breaks += 1;
        if self.asking > 0 {
            let number = self.breaks;
            self.overtaken.extend(files.into_iter().map(|file| (file, number)));
        }
    }

    /// Notes that others have changed these files, up to `seq`.
    pub(crate) fn break_callbacks(&mut self, files: Vec<FileId>, seq: u64) {
        self.breaks += 1;
        if self.asking > 0 {
            self.broken.extend(files.iter().map(|file| (*file, (self.breaks, seq))));
        }
        let news = |file: &FileId| self.replica.node(*file).is_ok() && !self.was_told(*file, seq);
        let known: Vec<FileId> = files.into_iter().filter(news).collect();
        if !known.is_empty() {
            self.news += 1;
            known.iter().for_each(|file| self.forget(*file));
            self.record(Record::Broken(known));
        }
    }

    /// Notes that others may have changed any file.
    pub(crate) fn break_all(&mut self) {
        if self.cachers.is_some() {
            let all: Vec<FileId> = self.replica.nodes().map(|(id, _)| id).collect();
            all.into_iter().for_each(|file| self.forget(file));
        }
        self.record(Record::AllBroken);
    }

    /// Something made here turned out to be another file: its open handles become handles of that
    /// file.
    pub(crate) fn became(&mut self, file: FileId) {
        let real = self.replica.real(file);
        self.disown(file);
        self.handles.values_mut().filter(|open| open.id == file).for_each(|open| open.id = real);
        self.listings.became(file, real);
        if let Some(count) = self.open_counts.remove(&file) {
            *self.open_counts.entry(real).or_default() += count;
        }
        self.forget(real);
    }

    /// Takes new ids, after the earlier ones were given up. Files that were made here and are not
    /// home get new ids, and so do their open handles.
    pub(crate) fn renew_ids(&mut self, first: FileId, count: u64) {
        let before: Vec<(u64, FileId)> = self.replica.made_here().collect();
        before.iter().for_each(|(_, file)| self.forget(*file));
        self.record(Record::Renewed(first, count));
        let after: BTreeMap<u64, FileId> = self.replica.made_here().collect();
        for (seq, before) in before {
            let Some(file) = after.get(&seq).copied() else { continue };
            if let Some(Operation::Make { at, .. }) = self.replica.log().get(seq) {
                self.forget_name(at.0, &at.1);
            }
            self.disown(before);
            self.handles.values_mut().filter(|open| open.id == before).for_each(|open| open.id = file);
            self.listings.became(before, file);
            if let Some(count) = self.open_counts.remove(&before) {
                self.open_counts.insert(file, count);
            }
            self.mapped.values_mut().filter(|(id, _)| *id == before).for_each(|(id, _)| *id = file);
        }
    }

    /// Completes when the kernel has forgotten all that it was told to forget. `None`: no kernel
    /// caches what this client answers.
    pub(crate) fn forget_all(&self) -> Option<oneshot::Receiver<()>> {
        let (forgotten, told) = oneshot::channel();
        let cachers = self.cachers.as_ref()?;
        cachers.send(Forget::All(forgotten)).ok().map(|()| told)
    }

    /// Tells the kernel that a name leads to another file.
    pub(crate) fn forget_name(&self, dir: FileId, name: &[u8]) {
        if let Some(cachers) = &self.cachers {
            let _ = cachers.send(Forget::Name(dir, name.to_vec()));
        }
    }

    /// Tells the kernel that a directory has changed.
    pub(crate) fn forget_listing(&self, dir: FileId) {
        if let Some(cachers) = &self.cachers {
            let _ = cachers.send(Forget::File(dir));
        }
    }

    /// Called when an operation was answered. While it waited, the kernel was shown its result. If
    /// only the home knows now what came of that, the kernel has to ask again.
    pub(crate) fn forget_doubtful(&self, operation: &Operation) {
        if self.cachers.is_none() {
            return;
        }
        for (dir, name) in operation.places() {
            let dir = self.replica.real(*dir);
            if !self.replica.has_names(dir) {
                self.forget_name(dir, name);
                self.forget_listing(dir);
            }
        }
        let doubtful = operation.files().into_iter().map(|file| self.replica.real(file));
        doubtful.filter(|file| self.replica.is_stale(*file)).for_each(|file| self.forget_listing(file));
    }

    /// Tells the kernel that a file, or a directory with its names, has changed.
    pub(crate) fn forget(&self, file: FileId) {
        let Some(cachers) = &self.cachers else { return };
        let _ = cachers.send(Forget::File(file));
        let Ok(node) = self.replica.node(file) else { return };
        if node.facts.kind == Kind::Directory {
            for name in self.replica.list(file).into_iter().flatten().map(|(name, _)| name) {
                let _ = cachers.send(Forget::Name(file, name));
            }
        }
    }
}
