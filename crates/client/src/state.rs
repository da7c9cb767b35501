//! The client's state in memory, under one lock that is held only for short work in memory.
//!
//! Operations are written as *attempts*. With the lock held, an attempt checks whether everything
//! that it needs is in memory. It does all of its work, or nothing, and then it says what is
//! [missing](Miss). An attempt that succeeds at once is answered on the caller's thread. Otherwise
//! the client fetches the missing thing without the lock, and repeats the attempt (see `core`). So
//! an attempt never changes anything before its last check.

use crate::cache::Expect;
use crate::directory;
use crate::inode::Inode;
use crate::tokens::Tokens;
use crate::touched;
use manager::api::SegmentDeltas;
use manager::planted::{self, Bug};
use manager::token::Mode;
use policy::space::SpaceAccount;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;
use types::{BlockAddr, FileId, FsError, Kind};
use vfs::fs::{Handle, OpenFlags};

/// What an attempt needs before it can succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// A token on this file.
    Token(FileId, Mode),
    /// The attributes of this file, with a token to read or without one.
    Glimpse(FileId),
    /// The attributes of those of these files that still exist.
    Attributes(Vec<FileId>),
    /// This bucket of this directory.
    Bucket(FileId, u32),
    /// The map of this file, complete.
    Map(FileId),
    /// The map of this file, at least for blocks before this one.
    MapUntil(FileId, u64),
    /// Bytes of this file in the data cache, and how they will be used.
    Data(FileId, Vec<BlockAddr>, Expect),
    /// Fresh index numbers.
    Range,
    /// Fewer bytes than this on their way to the stores.
    Room(u64),
    /// Free space, after maintenance has looked for some.
    Space,
    /// Managers that have applied more cuts.
    Applied,
}

/// Why an attempt has not succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It never will succeed.
    Fail(FsError),
    /// It may succeed once this is available.
    Miss(Miss),
}

impl From<FsError> for Stop {
    fn from(e: FsError) -> Self {
        Stop::Fail(e)
    }
}

/// The result of an attempt.
pub type Attempt<T> = Result<T, Stop>;

/// Turns a directory's stop into the client's.
pub fn in_directory(dir: FileId) -> impl Fn(directory::BucketStop) -> Stop {
    move |stop| match stop {
        directory::BucketStop::Load(bucket) => Stop::Miss(Miss::Bucket(dir, bucket)),
        directory::BucketStop::Collision | directory::BucketStop::Full => Stop::Fail(FsError::NoSpace),
    }
}

/// An open file or directory.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The file.
    pub id: FileId,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Made by opendir.
    pub is_directory: bool,
    /// What has been read through it, for read-ahead.
    pub window: policy::readahead::Window,
}

/// Handles of one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenCount {
    /// All of them.
    all: u32,
    /// Those that may write.
    writers: u32,
}

/// Fresh index numbers that the client holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// The next one.
    pub next: u64,
    /// One past the last.
    pub end: u64,
}

/// A change of one name in a directory, for the list of those that may be lost.
#[derive(Debug)]
pub(crate) struct NameChange {
    /// Seq of the cut that it goes into.
    pub(crate) seq: u64,
    pub(crate) directory: FileId,
    pub(crate) name: Box<[u8]>,
    /// The file that had the name before.
    pub(crate) before: Option<FileId>,
    /// The file that has the name now; `None` if none has.
    pub(crate) to: Option<(FileId, Kind)>,
}

/// A client's in-memory state: one lock, never held across an await.
pub struct ClientState {
    /// Inodes in memory, all under tokens.
    pub inodes: HashMap<FileId, Inode>,
    /// Order in which the eviction hand looks at inodes.
    pub hand: VecDeque<FileId>,
    /// Open handles.
    pub handles: HashMap<u64, OpenFile>,
    /// The next handle's number.
    pub next_handle: u64,
    /// Inodes with changes that are in no cut yet.
    pub dirty_list: Vec<FileId>,
    /// Upper bound of the next cut's payload in bytes.
    pub dirty_bytes: u64,
    /// When the oldest of these changes was made.
    pub dirty_since: Option<Duration>,
    /// Files that the log knows, and that were removed since the last cut.
    pub removals: BTreeSet<FileId>,
    /// Removed files with the seq of the cut that removes them, until the managers have applied it.
    pub gone: BTreeMap<FileId, u64>,
    /// How many handles each open file has.
    pub opens: HashMap<FileId, OpenCount>,
    /// What the client knows of its tokens.
    pub(crate) tokens: Tokens,
    /// Fresh index numbers.
    pub numbers: Numbers,
    /// Seq of the last cut, 0 before the first.
    pub last_cut: u64,
    /// When a program last called fsync.
    pub synced_at: Option<Duration>,
    /// All cuts up to this one are applied by the managers.
    pub applied: u64,
    /// The room on the stores, for admission.
    pub space: SpaceAccount,
    /// Cuts that the managers have not applied yet, by seq.
    pub unapplied: BTreeMap<u64, SegmentDeltas>,
    /// Changes of names that may not be durable yet, in order.
    pub(crate) name_changes: VecDeque<NameChange>,
    /// The client is over, and what it has not synced was listed: nothing is changed or cut any
    /// more.
    pub(crate) is_sealed: bool,
}

impl ClientState {
    /// An empty state; `last_cut` is the seq of the log's last segment.
    pub fn new(last_cut: u64, space: SpaceAccount) -> Self {
        ClientState {
            inodes: HashMap::new(),
            hand: VecDeque::new(),
            handles: HashMap::new(),
            next_handle: 1,
            dirty_list: Vec::new(),
            dirty_bytes: 0,
            dirty_since: None,
            removals: BTreeSet::new(),
            gone: BTreeMap::new(),
            opens: HashMap::new(),
            tokens: Tokens::default(),
            numbers: Numbers::default(),
            last_cut,
            synced_at: None,
            applied: last_cut,
            space,
            unapplied: BTreeMap::new(),
            name_changes: VecDeque::new(),
            is_sealed: false,
        }
    }

    /// An inode to look at, or the miss.
    pub fn inode(&mut self, id: FileId) -> Attempt<&mut Inode> {
        self.under(id, Mode::Read)
    }

    /// An inode to change, or the miss. Attempts call this for all that they will change before
    /// they change anything.
    pub fn writable(&mut self, id: FileId) -> Attempt<&mut Inode> {
        self.under(id, Mode::Write)
    }

    pub(crate) fn under(&mut self, id: FileId, mode: Mode) -> Attempt<&mut Inode> {
        touched::note(id, mode);
        match self.inodes.get_mut(&id) {
            Some(inode) if inode.allows(mode) || (mode == Mode::Read && planted::is(Bug::LeavesGateOpenToReads)) => {
                inode.used = true;
                Ok(inode)
            }
            _ => Err(Stop::Miss(Miss::Token(id, mode))),
        }
    }

    /// An inode that is in memory and may be looked at.
    pub fn readable(&self, id: FileId) -> Option<&Inode> {
        self.inodes.get(&id).filter(|inode| inode.allows(Mode::Read) || planted::is(Bug::ListsClosingInodes))
    }

    /// The inode of a directory.
    pub fn directory(&mut self, id: FileId) -> Attempt<&mut Inode> {
        let inode = self.inode(id)?;
        if inode.record.kind != Kind::Directory {
            return Err(FsError::NotADirectory.into());
        }
        Ok(inode)
    }

    /// Looks a name up; `None` if the directory has no such name.
    pub fn find(&mut self, dir: FileId, name: &[u8]) -> Attempt<Option<(FileId, Kind)>> {
        let inode = self.directory(dir)?;
        let Some(d) = &inode.directory else { return Err(FsError::NotADirectory.into()) };
        let found = d.find(&inode.record.shape, name).map_err(in_directory(dir))?;
        Ok(found.map(|e| (e.id, e.kind)))
    }

    /// Opens a handle.
    pub fn open(&mut self, id: FileId, flags: OpenFlags) -> Handle {
        let number = self.next_handle;
        self.next_handle += 1;
        let is_directory = self.inodes.get(&id).is_some_and(|inode| inode.record.kind == Kind::Directory);
        self.handles.insert(number, OpenFile { id, flags, is_directory, window: Default::default() });
        let count = self.opens.entry(id).or_default();
        count.all += 1;
        count.writers += u32::from(flags.write);
        Handle(number)
    }

    /// The handle of a file.
    pub fn handle(&mut self, id: FileId, handle: Handle) -> Result<&mut OpenFile, FsError> {
        self.handles.get_mut(&handle.0).filter(|h| h.id == id && !h.is_directory).ok_or(FsError::BadHandle)
    }

    /// The handle of a directory.
    pub fn directory_handle(&mut self, id: FileId, handle: Handle) -> Result<&mut OpenFile, FsError> {
        self.handles.get_mut(&handle.0).filter(|h| h.id == id && h.is_directory).ok_or(FsError::BadHandle)
    }

    /// True if the managers lack changes of a file, or a program may be about to change it.
    pub(crate) fn is_changing(&self, id: FileId, inode: &Inode) -> bool {
        let is_unknown = inode.listed || inode.last_cut > self.applied;
        is_unknown || self.opens.get(&id).is_some_and(|count| count.writers > 0)
    }

    /// Lists an inode as dirty, and counts the bytes that the next cut will need for the change.
    pub fn mark(&mut self, id: FileId, bytes: u64, now: Duration) {
        self.dirty_bytes += bytes;
        self.dirty_since.get_or_insert(now);
        let Some(inode) = self.inodes.get_mut(&id) else { return };
        self.space.owe(id.raw(), inode.owe(), self.last_cut + 1);
        if !inode.listed {
            inode.listed = true;
            self.dirty_list.push(id);
            self.dirty_bytes += INODE_DELTA_BYTES;
        }
    }

    /// Notes that the next cut has a change of a file's contents or size.
    pub(crate) fn note_contents(&mut self, id: FileId) {
        let seq = self.last_cut + 1;
        self.inodes.get_mut(&id).into_iter().for_each(|inode| inode.contents_changed = seq);
    }

    /// Notes that the next cut gives a name another file, or none.
    pub(crate) fn note_name(
        &mut self,
        directory: FileId,
        name: &[u8],
        before: Option<FileId>,
        to: Option<(FileId, Kind)>,
    ) {
        let seq = self.last_cut + 1;
        self.name_changes.push_back(NameChange { seq, directory, name: name.into(), before, to });
    }

    /// The managers have applied all cuts up to this one.
    pub(crate) fn applied(&mut self, last: u64) {
        self.applied = last;
        self.unapplied = self.unapplied.split_off(&(last + 1));
        self.space.applied(last);
        self.gone.retain(|_, seq| *seq > last);
    }

    /// True if the next cut would have anything in it.
    pub fn is_dirty(&self) -> bool {
        !self.dirty_list.is_empty() || !self.removals.is_empty()
    }

    /// Closes a handle. True if it was the file's last one here.
    pub fn close(&mut self, id: FileId, handle: Handle) -> bool {
        let was_writer = self.handles.remove(&handle.0).is_some_and(|open| open.flags.write);
        let Some(count) = self.opens.get_mut(&id) else { return true };
        count.all -= 1;
        count.writers -= u32::from(was_writer);
        let is_last = count.all == 0;
        if is_last {
            self.opens.remove(&id);
        }
        is_last
    }

    /// Removes an inode that the client may change if its last name and its last handle are gone.
    pub fn remove_if_unused(&mut self, id: FileId, now: Duration) {
        let Some(inode) = self.inodes.get(&id) else { return };
        if inode.record.nlink > 0 || self.opens.contains_key(&id) {
            return;
        }
        let (logged, dirty) = (inode.logged, inode.dirty.values().map(|b| b.len() as u64).sum::<u64>());
        self.inodes.remove(&id);
        self.dirty_bytes = self.dirty_bytes.saturating_sub(dirty);
        if logged {
            self.space.owe(id.raw(), 0, self.last_cut + 1);
            self.removals.insert(id);
            self.dirty_bytes += INODE_DELTA_BYTES;
            self.dirty_since.get_or_insert(now);
        }
    }
}

/// Bytes that a cut needs for an inode's record and the fixed part of its other deltas, at most.
pub const INODE_DELTA_BYTES: u64 = 320;
