//! Files and directories that programs have open.

use crate::files::listings::{Listing, Listings};
use std::collections::{BTreeMap, HashMap};
use types::{FileId, FsError, Time};
use vfs::fs::{Handle, OpenFlags};

/// An open file or directory.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) flags: OpenFlags,
    directory: bool,
}

/// The open handles, and the listings that go on.
#[derive(Default)]
pub(crate) struct OpenFiles {
    handles: BTreeMap<Handle, Open>,
    last_handle: u64,
    /// How many handles are open on each file.
    counts: HashMap<FileId, u32>,
    listings: Listings,
}

impl OpenFiles {
    pub(crate) fn open(&mut self, id: FileId, flags: OpenFlags, directory: bool) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.handles.insert(handle, Open { id, flags, directory });
        *self.counts.entry(id).or_default() += 1;
        handle
    }

    /// EBADF unless `handle` is open on `id`.
    pub(crate) fn handle(&self, id: FileId, handle: Handle, directory: bool) -> Result<&Open, FsError> {
        match self.handles.get(&handle) {
            Some(open) if open.id == id && open.directory == directory => Ok(open),
            _ => Err(FsError::BadHandle),
        }
    }

    /// Closes a handle. True if it was the file's last.
    pub(crate) fn close(&mut self, id: FileId, handle: Handle, directory: bool) -> Result<bool, FsError> {
        self.handle(id, handle, directory)?;
        self.handles.remove(&handle);
        let count = self.counts.get_mut(&id).ok_or(FsError::BadHandle)?;
        *count -= 1;
        if *count > 0 {
            return Ok(false);
        }
        self.counts.remove(&id);
        Ok(true)
    }

    pub(crate) fn is_open(&self, id: FileId) -> bool {
        self.counts.contains_key(&id)
    }

    /// True if any handle on a file may both read and write, as one must to map it for writing.
    pub(crate) fn may_map(&self, id: FileId) -> bool {
        self.handles.values().any(|open| open.id == id && open.flags.read && open.flags.write)
    }

    /// The files that are open.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FileId> {
        self.counts.keys().copied()
    }

    /// A file turned out to be another one, or got another id: its handles become handles of that
    /// one.
    pub(crate) fn became(&mut self, file: FileId, real: FileId) {
        self.handles.values_mut().filter(|open| open.id == file).for_each(|open| open.id = real);
        self.listings.became(file, real);
        if let Some(count) = self.counts.remove(&file) {
            *self.counts.entry(real).or_default() += count;
        }
    }

    /// The listing of a directory that was begun last. `None`: it has to begin again.
    pub(crate) fn listing(&self, dir: FileId, now: Time) -> Option<Listing> {
        self.listings.of(dir, now)
    }

    /// Begins a listing of a directory's present names.
    pub(crate) fn begin_listing(&mut self, dir: FileId, names: BTreeMap<Vec<u8>, FileId>, now: Time) -> Listing {
        self.listings.begin(dir, names, now)
    }
}
