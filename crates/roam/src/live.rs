//! A client while it runs: what it knows, what is open, and the connection.

use crate::replay::Outgoing;
use crate::replica::{Node, Record, Replica};
use host::File;
use record_log::RecordLog;
use roam_wire::channel::Channel;
use roam_wire::codec::Wire;
use roam_wire::operation::Change;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use types::{FileId, FsError};
use vfs::fs::{FsStat, Handle, OpenFlags};

/// What the client thinks of the link to its home (design, section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// The home is near: what is done here is there when a file is closed.
    Connected,
    /// The home is far: what is done here goes there in the background.
    Weak,
    /// What is needed is fetched; what is done here waits.
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
    /// Attributes.
    Facts(FileId),
    /// Ids for new files.
    Ids,
}

/// What is in a directory, by name.
pub(crate) type Listing = Vec<(Vec<u8>, FileId)>;

/// An open file or directory.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) flags: OpenFlags,
    pub(crate) directory: bool,
    /// What is in the directory, as of when its listing began.
    pub(crate) listing: Option<Arc<Listing>>,
}

/// Bytes of a file that are being changed and were not logged yet.
pub(crate) struct Writing {
    pub(crate) change: Change,
    pub(crate) file: Arc<dyn File>,
}

/// See the module's header.
pub(crate) struct Live {
    pub(crate) replica: Replica,
    pub(crate) log: Option<RecordLog>,
    pub(crate) handles: BTreeMap<Handle, Open>,
    last_handle: u64,
    pub(crate) open_counts: HashMap<FileId, u32>,
    pub(crate) writing: BTreeMap<FileId, Writing>,
    /// Open files of the cache, by number.
    pub(crate) files: HashMap<u64, Arc<dyn File>>,
    /// Contents on their way home, by operation.
    pub(crate) outgoing: HashMap<u64, Outgoing>,
    pub(crate) channel: Option<Arc<dyn Channel>>,
    pub(crate) state: LinkState,
    /// What the home is asked at the moment, and may be told of changes of meanwhile.
    pub(crate) asking: usize,
    /// Files that others changed since somebody began to ask, with the number of that change.
    pub(crate) broken: HashMap<FileId, u64>,
    pub(crate) breaks: u64,
    pub(crate) space: Option<FsStat>,
}

impl Live {
    pub(crate) fn new(replica: Replica) -> Live {
        Live {
            replica,
            log: None,
            handles: BTreeMap::new(),
            last_handle: 0,
            open_counts: HashMap::new(),
            writing: BTreeMap::new(),
            files: HashMap::new(),
            outgoing: HashMap::new(),
            channel: None,
            state: LinkState::Disconnected,
            asking: 0,
            broken: HashMap::new(),
            breaks: 0,
            space: None,
        }
    }

    /// Makes a lasting change. It is durable when the log says so.
    pub(crate) fn record(&mut self, record: Record) {
        if let Some(log) = &self.log {
            // Whoever must know that it is durable waits for the log to settle.
            drop(log.append(record.to_bytes().into()));
        }
        let made = self.replica.apply(record);
        debug_assert!(made.is_some(), "a record that makes no sense");
    }

    /// True if the home cannot be asked.
    pub(crate) fn is_offline(&self) -> bool {
        self.state == LinkState::Disconnected
    }

    /// A file of which the attributes are as good as can be had.
    pub(crate) fn node(&self, id: FileId) -> Result<&Node, Stop> {
        if self.replica.is_stale(id) && !self.is_offline() {
            return Err(Stop::Need(Need::Facts(id)));
        }
        let node = self.replica.node(id)?;
        if node.facts.nlink == 0 && !self.open_counts.contains_key(&id) {
            return Err(Stop::Fs(FsError::Stale));
        }
        Ok(node)
    }

    /// A directory of which the names are as good as can be had.
    pub(crate) fn directory(&self, id: FileId) -> Result<&Node, Stop> {
        let node = self.node(id)?;
        if node.facts.kind != types::Kind::Directory {
            return Err(Stop::Fs(FsError::NotADirectory));
        }
        match (self.replica.has_names(id), &node.names) {
            (true, _) => Ok(node),
            (false, Some(_)) if self.is_offline() => Ok(node),
            _ => Err(Stop::Need(Need::Names(id))),
        }
    }

    pub(crate) fn open_handle(&mut self, id: FileId, flags: OpenFlags, directory: bool) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.handles.insert(handle, Open { id, flags, directory, listing: None });
        *self.open_counts.entry(id).or_default() += 1;
        handle
    }

    /// EBADF unless `handle` is open on `id`.
    pub(crate) fn handle(&self, id: FileId, handle: Handle, directory: bool) -> Result<&Open, FsError> {
        match self.handles.get(&handle) {
            Some(open) if open.id == id && open.directory == directory => Ok(open),
            _ => Err(FsError::BadHandle),
        }
    }

    /// EBADF unless `handle` is open on the file `id` for writing.
    pub(crate) fn writable(&self, id: FileId, handle: Handle) -> Result<&Open, FsError> {
        let open = self.handle(id, handle, false)?;
        if open.flags.write { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// EBADF unless `handle` is open on the file `id` for reading or executing.
    pub(crate) fn readable(&self, id: FileId, handle: Handle) -> Result<&Open, FsError> {
        let open = self.handle(id, handle, false)?;
        if open.flags.read || open.flags.execute { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// Closes. Gives true if nobody else has the file open.
    pub(crate) fn close(&mut self, id: FileId, handle: Handle, directory: bool) -> Result<bool, FsError> {
        self.handle(id, handle, directory)?;
        self.handles.remove(&handle);
        let count = self.open_counts.get_mut(&id).ok_or(FsError::BadHandle)?;
        *count -= 1;
        if *count > 0 {
            return Ok(false);
        }
        self.open_counts.remove(&id);
        Ok(true)
    }

    /// Others have changed these files.
    pub(crate) fn break_callbacks(&mut self, files: Vec<FileId>) {
        self.breaks += 1;
        if self.asking > 0 {
            self.broken.extend(files.iter().map(|file| (*file, self.breaks)));
        }
        let known: Vec<FileId> = files.into_iter().filter(|file| self.replica.node(*file).is_ok()).collect();
        if !known.is_empty() {
            self.record(Record::Broken(known));
        }
    }
}
