//! [`MemFs`]: a complete file system in memory, the model that every other implementation is
//! compared with.
//!
//! Written for clarity, not speed: one mutex, ordered maps, every answer at once (except for locks
//! that wait). It is deterministic: the same calls with the same times give the same answers, file
//! ids and cookies. It promises what docs/semantics.md says and nothing more. The test decides what
//! survives a crash, by [`MemFs::snapshot`]s.

mod blocks;
mod files;
mod names;
mod state;

use crate::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, LockSpace, NewNode,
    OpenFlags, RenameFlags, Seek, SetAttr, XattrMode,
};
use crate::locks::Locks;
use crate::tree::{ContentHash, TreeEntry};
use bytes::Bytes;
use parking_lot::Mutex;
use state::{Body, State};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Answer, FileId, FsError, Kind, Time};

/// The clock of a [`MemFs`]: gives the time of each change.
pub type TimeSource = Arc<dyn Fn() -> Time + Send + Sync>;

/// Block size of [`MemFs::new`], in bytes.
pub const BLOCK_SIZE: u32 = 65_536;
/// The size that statfs shows, in bytes. No call fails for lack of space.
const TOTAL_BYTES: u64 = 1 << 50;
const FILES_MAX: u64 = 1 << 32;

/// A file system in memory. Clones are the same file system; [`snapshot`](Self::snapshot) makes
/// copies.
#[derive(Clone)]
pub struct MemFs {
    state: Arc<Mutex<State>>,
    locks: Locks,
    time: TimeSource,
}

impl MemFs {
    /// An empty file system with blocks of [`BLOCK_SIZE`].
    pub fn new(time: TimeSource) -> Self {
        Self::with_block_size(time, BLOCK_SIZE)
    }

    /// An empty file system; holes are of whole blocks of `block_size` bytes (a power of two, 4096
    /// at least).
    pub fn with_block_size(time: TimeSource, block_size: u32) -> Self {
        assert!(block_size.is_power_of_two() && block_size >= 4096, "{block_size} is no block size");
        let state = State::new(block_size, time());
        MemFs { state: Arc::new(Mutex::new(state)), locks: Locks::default(), time }
    }

    /// A copy as after a crash now, with everything durable: no handles, no locks, no files without
    /// a name. The copies share file contents until one of them writes.
    pub fn snapshot(&self) -> MemFs {
        let state = self.state.lock().after_crash();
        MemFs { state: Arc::new(Mutex::new(state)), locks: Locks::default(), time: self.time.clone() }
    }

    /// A copy that is as this one is now, also its handles and the files without a name, but has no
    /// locks. Ids and handles mean the same in both. They share file contents until one writes.
    pub fn fork(&self) -> MemFs {
        let state = self.state.lock().clone();
        MemFs { state: Arc::new(Mutex::new(state)), locks: Locks::default(), time: self.time.clone() }
    }

    /// Returns to the state of `copy`, as after a loss of power. Ids and handles given since are
    /// not given again.
    pub fn restore(&self, copy: &MemFs) {
        let before = copy.state.lock().after_crash();
        let mut state = self.state.lock();
        let (last_id, last_handle) = (state.last_id, state.last_handle);
        *state = State { last_id, last_handle, ..before };
    }

    /// The whole tree in the order of paths. Does not touch access times.
    pub fn dump(&self) -> Vec<TreeEntry> {
        let state = self.state.lock();
        let mut todo = vec![(Vec::new(), FileId::ROOT)];
        let mut first_paths = BTreeMap::new();
        let mut out = Vec::new();
        while let Some((path, id)) = todo.pop() {
            let node = &state.nodes[&id];
            let mut content = ContentHash::default();
            let mut target = None;
            match &node.body {
                Body::File(blocks) => blocks.data().for_each(|(offset, data)| content.add(offset, data)),
                Body::Symlink(t) => target = Some(t.to_vec()),
                Body::Directory(d) => {
                    // The stack returns the last one first.
                    todo.extend(d.entries.iter().rev().map(|(n, slot)| ([&path[..], b"/", n].concat(), slot.id)));
                }
                Body::Special => {}
            }
            let first_path = first_paths.entry(id).or_insert_with(|| path.clone()).clone();
            let (attr, xattrs) = (node.attr(), node.xattrs.clone());
            out.push(TreeEntry { path, first_path, attr, content: content.finish(), target, xattrs });
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        out
    }

    /// Runs one operation at one instant of the clock.
    fn at<T>(&self, f: impl FnOnce(&mut State, Time) -> Result<T, FsError>) -> Answer<T> {
        let mut state = self.state.lock();
        let now = (self.time)();
        Answer::Now(f(&mut state, now))
    }
}

impl FileSystem for MemFs {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        self.at(|s, _| s.lookup(cred, parent, name))
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.at(|s, _| Ok(s.node(id)?.entry()))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        self.at(|s, now| s.setattr(cred, id, handle, set, now))
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.at(|s, now| s.readlink(id, now))
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        self.at(|s, now| s.mknod(cred, parent, name, node, now))
    }

    fn create(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> Answer<(Entry, Handle)> {
        let new = NewNode { kind: Kind::File, mode, umask, rdev: 0 };
        self.at(|s, now| s.create(cred, parent, name, new, flags, now))
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        let new = NewNode { kind: Kind::Directory, mode, umask, rdev: 0 };
        self.at(|s, now| s.make(cred, parent, name, new, b"", now))
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        self.at(|s, now| s.symlink(cred, parent, name, target, now))
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        self.at(|s, now| s.link(cred, id, new_parent, new_name, now))
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.at(|s, now| s.unlink(cred, parent, name, now))
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.at(|s, now| s.rmdir(cred, parent, name, now))
    }

    fn rename(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new_parent: FileId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Answer<()> {
        self.at(|s, now| s.rename(cred, parent, name, new_parent, new_name, flags, now))
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        self.at(|s, _| s.access(cred, id, mask))
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        self.at(|s, now| s.open(cred, id, flags, now))
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        self.at(|s, now| s.read(id, handle, offset, len, now))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        self.at(|s, now| s.write(cred, id, handle, Some(offset), data, now).map(|done| done.count))
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        self.at(|s, now| s.write(cred, id, handle, None, data, now))
    }

    fn fsync(&self, id: FileId, handle: Handle, _data_only: bool) -> Answer<()> {
        self.at(|s, _| s.handle(id, handle, false).map(drop))
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.at(|s, _| s.open_directory(id, handle))
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.at(|s, _| {
            s.handle(id, handle, false)?;
            self.locks.release_owner(id, LockSpace::Posix, lock_owner.into());
            Ok(())
        })
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        self.at(|s, _| {
            s.close(id, handle, false)?;
            if let Some(owner) = flock_owner {
                self.locks.release_owner(id, LockSpace::Flock, owner.into());
            }
            Ok(())
        })
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        self.at(|s, _| s.opendir(cred, id))
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        self.at(|s, now| s.readdir(id, handle, cookie, count_max, plus, now))
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.at(|s, _| s.close(id, handle, true))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        self.at(|s, _| s.getxattr(cred, id, name))
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.at(|s, now| s.setxattr(cred, id, name, value, mode, now))
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        self.at(|s, _| s.listxattr(cred, id))
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        self.at(|s, now| s.removexattr(cred, id, name, now))
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        self.at(|s, now| s.fallocate(cred, At { id, handle, offset }, len, mode, now))
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.at(|s, _| s.lseek(id, handle, offset, whence))
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        self.at(|s, now| s.copy_file_range(cred, from, to, len, now))
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.at(|s, _| {
            let used: u64 = s.nodes.values().map(|n| n.attr().blocks * 512).sum();
            let files = s.nodes.len() as u64;
            Ok(FsStat {
                total_bytes: TOTAL_BYTES,
                free_bytes: TOTAL_BYTES.saturating_sub(used),
                files,
                files_free: FILES_MAX.saturating_sub(files),
                block_size: s.block_size,
            })
        })
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.at(|s, _| {
            s.handle(id, handle, false)?;
            self.locks.test(id, &lock)
        })
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        let open = self.state.lock().handle(id, handle, false).map(|open| lock.is_open_to(&open.flags));
        match open {
            Ok(true) => self.locks.set(id, lock, wait),
            Ok(false) => Answer::err(FsError::BadHandle),
            Err(e) => Answer::err(e),
        }
    }

    fn sync(&self) -> Answer<()> {
        Answer::ok(())
    }
}

#[cfg(test)]
mod tests;
