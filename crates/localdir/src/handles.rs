//! Open files and directories, by handle.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use types::{FileId, FsError};
use vfs::fs::{Handle, OpenFlags};

/// An open file or directory.
#[derive(Clone)]
pub struct OpenNode {
    /// Its id.
    pub id: FileId,
    /// Its descriptor. For special files this is only a path descriptor, since they are not read
    /// here.
    pub file: Arc<OwnedFd>,
    /// How it was opened; `None` for directories.
    pub flags: Option<OpenFlags>,
    /// Held while a directory is listed, since its descriptor has a position.
    pub listing: Arc<Mutex<()>>,
}

/// All open files and directories.
#[derive(Default)]
pub struct Handles {
    open: BTreeMap<u64, OpenNode>,
    last: u64,
}

impl Handles {
    /// Adds an open file.
    pub fn add(&mut self, id: FileId, file: OwnedFd, flags: Option<OpenFlags>) -> Handle {
        self.last += 1;
        self.open.insert(self.last, OpenNode { id, file: Arc::new(file), flags, listing: Arc::default() });
        Handle(self.last)
    }

    /// Returns what a handle stands for. EBADF unless it is open, belongs to this file, and is a
    /// directory's or not, as `directory` says.
    pub fn get(&self, id: FileId, handle: Handle, directory: bool) -> Result<OpenNode, FsError> {
        let open = self.open.get(&handle.0).filter(|open| open.id == id && open.flags.is_none() == directory);
        open.cloned().ok_or(FsError::BadHandle)
    }

    /// Returns the file of a handle that is open for writing. EBADF.
    pub fn writable(&self, id: FileId, handle: Handle) -> Result<OpenNode, FsError> {
        let open = self.get(id, handle, false)?;
        if open.flags.is_some_and(|flags| flags.write) { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// Closes a handle. EBADF.
    pub fn close(&mut self, id: FileId, handle: Handle, directory: bool) -> Result<(), FsError> {
        self.get(id, handle, directory)?;
        self.open.remove(&handle.0);
        Ok(())
    }

    /// Returns an open descriptor of a file. Its names do not matter.
    pub fn file_of(&self, id: FileId) -> Option<Arc<OwnedFd>> {
        self.open.values().find(|open| open.id == id).map(|open| open.file.clone())
    }
}
