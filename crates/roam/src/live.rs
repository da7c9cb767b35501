//! A client while it runs: what it knows, what is open, and the connection.

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

/// What the client thinks of the link to its home (docs/roaming.md#the-link), the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkState {
    /// The home is near: what is done here is there when a file is closed.
    Connected,
    /// The home is far: what is done here goes there in the background.
    Weak,
    /// What is needed is fetched; what is done here waits, but for what somebody waits to be home.
    /// Unless the user has chosen it, the link is slow, and somebody fetches: then it does not wait
    /// for long.
    FetchOnly,
    /// The home cannot be reached.
    Disconnected,
}

/// Why something cannot be answered yet.
pub(crate) enum Stop {
    Fs(FsError),
    Need(Need),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Fs(error)
    }
}

/// What only the home knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Need {
    /// What is in a directory.
    Names(FileId),
    /// Attributes, and that they may be believed.
    Facts(FileId),
    /// That nobody else knows of these, or changes them.
    Change(Wanted),
    /// Ids for new files.
    Ids,
    /// Room for the log, which nobody but this machine has.
    Room,
}

/// An open file or directory.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) flags: OpenFlags,
    pub(crate) directory: bool,
}

/// Something that whoever has cached what this client answered must forget.
#[derive(Debug)]
pub enum Forget {
    /// The reader of these messages sends on this when it has forgotten all that came before.
    All(oneshot::Sender<()>),
    /// A file's attributes and contents.
    File(FileId),
    /// What a name of a directory means.
    Name(FileId, Vec<u8>),
}

/// See the module's header.
pub(crate) struct Live {
    pub(crate) replica: Replica,
    pub(crate) log: Option<RecordLog>,
    pub(crate) unwritten: Unwritten,
    pub(crate) handles: BTreeMap<Handle, Open>,
    pub(crate) listings: Listings,
    last_handle: u64,
    pub(crate) open_counts: HashMap<FileId, u32>,
    /// The files of the cache with bytes that are being changed: they stay open, so that a sync
    /// hears of all that went wrong.
    pub(crate) held: HashMap<FileId, Arc<dyn File>>,
    /// Files of the cache that are changed in memory, by number.
    pub(crate) small: HashMap<u64, Arc<SmallFile>>,
    /// Those whose bytes the log does not have all, with their lengths.
    pub(crate) unheld: BTreeMap<u64, (FileId, u64)>,
    /// The sum of these lengths, in bytes.
    pub(crate) unheld_len: u64,
    /// Open files of the cache, by number.
    pub(crate) files: HashMap<u64, Arc<dyn File>>,
    /// Files of the cache, by number, that others were given to read or map: what is in them
    /// changes as the file does.
    pub(crate) shown: HashSet<u64>,
    /// Of them, those that others may have mapped to write to: of which file each is, and its mark
    /// when all that was changed there was known.
    pub(crate) mapped: HashMap<u64, (FileId, u128)>,
    /// Operations up to this one go home whatever was said of when.
    pub(crate) promised: u64,
    /// What the home has done and answered, and does not have durably yet: the first operations
    /// that wait.
    pub(crate) seen: Seen,
    /// Why the home, or whoever answers instead of it, would not be attached to last, if it was not
    /// just out of reach.
    pub(crate) turned_away: Option<String>,
    /// Why what waits could not be sent last, for as long as none of it has been sent since.
    pub(crate) held_up: Option<FsError>,
    /// Since when nothing was sent, since the link is slow and somebody fetches.
    pub(crate) held_since: Option<Duration>,
    /// What is cached is believed, whatever others have done.
    pub(crate) is_frozen: bool,
    /// What is cached is believed only as far as these say.
    pub(crate) delegations: Option<Delegations>,
    pub(crate) lockings: Lockings,
    /// Whether they do, for whoever may cache what this client answers.
    pub(crate) is_delegated: Arc<AtomicBool>,
    /// When files were used last, in uses.
    pub(crate) used: HashMap<FileId, u64>,
    pub(crate) uses: u64,
    /// File count from which on the client looks again for metadata to forget.
    pub(crate) known_enough: usize,
    /// Files that the client has forgotten since it opened the cache.
    pub(crate) forgotten: u64,
    /// Files of which the rest is being fetched.
    pub(crate) completing: HashSet<FileId>,
    /// Contents on their way home, by operation.
    pub(crate) outgoing: SetAside,
    /// Waits for small files, by their directories.
    pub(crate) waits: HashMap<FileId, Waits>,
    /// Directories that are looked into ahead, or were of late in vain, since when.
    pub(crate) listed_ahead: HashMap<FileId, Duration>,
    /// Where the bytes are of stores that wait, by operation, if the file was emptied since.
    pub(crate) sources: HashMap<u64, Arc<dyn File>>,
    /// Files that were read or written lately, the last one last.
    pub(crate) lately: VecDeque<Lately>,
    /// What of it was uploaded before its turn, on this connection, or did not have to be.
    pub(crate) ahead: HashMap<u64, Ranges>,
    pub(crate) channel: Option<Arc<dyn Channel>>,
    /// The connection over which the home tells of every change since it was attached to, whether
    /// or not it counts as lost meanwhile.
    pub(crate) told_over: Option<Weak<dyn Channel>>,
    /// The connection whose attach answer this client has applied. A stamp pushed before that must
    /// not count: the answer may tell of earlier changes.
    pub(crate) attached_over: Option<Weak<dyn Channel>>,
    /// Whether other clients are attached to the volume, as far as the home has said.
    pub(crate) company: Company,
    /// The home is near since a while ago, and does not know that this client hears.
    pub(crate) has_come_near: bool,
    /// When all that it had told had come, last.
    pub(crate) caught_up: Duration,
    /// When the last connection ended, by the clock; `None` if it fell silent, or was given up.
    pub(crate) ended_at: Option<Duration>,
    /// What the home is asked at the moment after a silence.
    pub(crate) probe: Option<Probe>,
    pub(crate) state: LinkState,
    /// What the home is asked at the moment, and may be told of changes of meanwhile.
    pub(crate) asking: usize,
    /// Files that others changed since somebody began to ask, with the number of that, and by when,
    /// as the home counts.
    pub(crate) broken: HashMap<FileId, (u64, u64)>,
    /// The same of files that this client's own operations have changed at home.
    pub(crate) overtaken: HashMap<FileId, u64>,
    pub(crate) breaks: u64,
    /// How often others were said to have changed what is known here.
    pub(crate) news: u64,
    pub(crate) space: Option<FsStat>,
    pub(crate) spare: Spare,
    /// How long files of the cache are that have what was there before a change.
    pub(crate) base_lens: HashMap<u64, u64>,
    /// Who has cached what this client answered.
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

    /// Makes a lasting change. It is durable when the log says so.
    pub(crate) fn record(&mut self, record: Record) {
        if let Some(log) = &self.log {
            // Whoever must know that it is durable waits for the log to settle.
            log.post(record.to_bytes().into());
        }
        let made = self.replica.apply(record);
        debug_assert!(made.is_some(), "a record that makes no sense");
        for (before, seq) in self.replica.take_logged_again() {
            // What goes home is what was saved, although it has changed since.
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

    /// Stores of a file that wait, and of which the bytes are nowhere but in the file.
    pub(crate) fn unspared(&self, file: FileId) -> impl Iterator<Item = (u64, &Change)> {
        let stores =
            self.replica.log().naming(self.replica.real(file)).filter_map(|(seq, operation)| match operation {
                Operation::Store { change, .. } => Some((seq, change)),
                _ => None,
            });
        stores.filter(|(seq, _)| self.outgoing.get(*seq).is_none() && !self.sources.contains_key(seq))
    }

    /// Logs what was written to a file.
    pub(crate) fn did_store(&mut self, file: FileId, change: Change, when: Time) {
        let file = self.replica.real(file);
        self.did_store_with(file, Record::Did { operation: Operation::Store { file, change }, when });
    }

    /// Logs what was written to a file, by a record.
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
            // It is part of one that waits, which writes something else now.
            self.outgoing.remove(seq);
            self.sources.remove(&seq);
        }
    }

    /// Contents that were set aside for operations that are not sent any more are of no use. Gives
    /// the numbers of those that are in files.
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

    /// Some of what waits has gone home.
    pub(crate) fn some_went(&mut self, now: Duration) {
        self.held_since = (self.state == LinkState::FetchOnly).then_some(now);
    }

    /// True if what is cached has to do.
    pub(crate) fn is_content(&self) -> bool {
        (self.is_offline() || self.is_frozen) && self.delegations.is_none()
    }

    /// A file of which the attributes are as good as can be had.
    pub(crate) fn node(&self, id: FileId) -> Result<&Node, Stop> {
        let id = self.replica.real(id);
        if self.replica.is_stale(id) && !self.is_content() || self.is_passed(id) {
            return Err(Stop::Need(Need::Facts(id)));
        }
        let node = self.known(id)?;
        // What has no name any more is nobody else's.
        if node.facts.nlink > 0 && !self.may_believe(id) {
            return Err(Stop::Need(Need::Facts(id)));
        }
        if node.facts.nlink == 0 && !self.open_counts.contains_key(&id) {
            return Err(Stop::Fs(FsError::Stale));
        }
        Ok(node)
    }

    /// A file that is cached. The home has to be asked for one that the client has forgotten.
    pub(crate) fn known(&self, id: FileId) -> Result<&Node, Stop> {
        self.replica.node(id).map_err(|_| Stop::Need(Need::Facts(self.replica.real(id))))
    }

    /// Forgets what has no name as far as is known here, and is not open.
    pub(crate) fn doubt_nameless(&mut self, id: FileId) {
        let id = self.replica.real(id);
        let data = self.replica.node(id).map_or(0, |node| node.data);
        if !self.open_counts.contains_key(&id) && self.replica.forget_nameless(id) {
            self.held.remove(&id);
            self.leave_small(data);
        }
    }

    /// A directory of which the names are as good as can be had.
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

    /// A file was used.
    pub(crate) fn touch(&mut self, id: FileId) {
        self.uses += 1;
        self.used.insert(id, self.uses);
    }

    /// What is not being changed any more need not stay open.
    pub(crate) fn let_go(&mut self) {
        let Live { held, replica, .. } = self;
        held.retain(|file, _| replica.node(*file).is_ok_and(|node| node.changes.is_begun()));
    }

    /// When files were used that are not known any more is of no interest.
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

    /// EBADF unless `handle` is open on the directory `id`, or is that of all directories.
    pub(crate) fn open_directory(&self, id: FileId, handle: Handle) -> Result<(), FsError> {
        if handle == Handle::NONE { Ok(()) } else { self.handle(id, handle, true).map(drop) }
    }

    /// EIO if somebody may believe that he still has a lock of a file.
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

    /// Closes. Gives true if nobody else has the file open.
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

    /// The home has answered operations on these files: what else it is about to answer of them may
    /// tell of before.
    pub(crate) fn overtake(&mut self, files: impl IntoIterator<Item = FileId>) {
        self.breaks += 1;
        if self.asking > 0 {
            let number = self.breaks;
            self.overtaken.extend(files.into_iter().map(|file| (file, number)));
        }
    }

    /// Others have changed these files, up to `seq`.
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

    /// Others may have changed anything.
    pub(crate) fn break_all(&mut self) {
        if self.cachers.is_some() {
            let all: Vec<FileId> = self.replica.nodes().map(|(id, _)| id).collect();
            all.into_iter().for_each(|file| self.forget(file));
        }
        self.record(Record::AllBroken);
    }

    /// What was made here turned out to be another file: whoever has it open has that open.
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

    /// Ids came after those before were given up: what was made here, and is not home, has others.
    /// Programs that have it open have that open.
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

    /// Tells whoever has cached it that a name means something else.
    pub(crate) fn forget_name(&self, dir: FileId, name: &[u8]) {
        if let Some(cachers) = &self.cachers {
            let _ = cachers.send(Forget::Name(dir, name.to_vec()));
        }
    }

    /// Tells whoever has cached it that there is something new in a directory.
    pub(crate) fn forget_listing(&self, dir: FileId) {
        if let Some(cachers) = &self.cachers {
            let _ = cachers.send(Forget::File(dir));
        }
    }

    /// An operation was answered. While it waited, the kernel was shown what it had done. If only
    /// the home knows now what came of that, the kernel asks again.
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

    /// Tells whoever has cached it that a file is not what it was.
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
