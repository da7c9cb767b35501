//! The tree and the open handles: nodes, directories, handles.

use super::blocks::Blocks;
use crate::acl;
use crate::fs::{Cred, Entry, Handle, NAME_LEN_MAX, OpenFlags};
use crate::perm::{self, Subject};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use types::{Attr, FileId, FsError, Kind, Time};

/// Cookies of `.` and `..`; those of entries come after.
pub(super) const COOKIE_DOT: u64 = 1;
pub(super) const COOKIE_DOT_DOT: u64 = 2;

/// What a node holds, by kind.
#[derive(Clone)]
pub(super) enum Body {
    File(Blocks),
    Directory(Directory),
    Symlink(Bytes),
    /// FIFOs, sockets, devices.
    Special,
}

#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) cookie: u64,
    pub(super) id: FileId,
}

/// A directory's names. An entry keeps its cookie as long as its name exists, even if the name
/// comes to mean another file. So listings that go by cookie are stable.
#[derive(Clone)]
pub(super) struct Directory {
    pub(super) parent: FileId,
    pub(super) entries: BTreeMap<Vec<u8>, Slot>,
    pub(super) by_cookie: BTreeMap<u64, Vec<u8>>,
    last_cookie: u64,
}

impl Directory {
    pub(super) fn new(parent: FileId) -> Self {
        Directory { parent, entries: BTreeMap::new(), by_cookie: BTreeMap::new(), last_cookie: COOKIE_DOT_DOT }
    }

    /// Makes `name` mean `id`, whether it exists or not.
    pub(super) fn set(&mut self, name: &[u8], id: FileId) {
        if let Some(slot) = self.entries.get_mut(name) {
            slot.id = id;
            return;
        }
        self.last_cookie += 1;
        self.entries.insert(name.to_vec(), Slot { cookie: self.last_cookie, id });
        self.by_cookie.insert(self.last_cookie, name.to_vec());
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(slot) = self.entries.remove(name) {
            self.by_cookie.remove(&slot.cookie);
        }
    }
}

#[derive(Clone)]
pub(super) struct Node {
    /// Its size and blocks are not kept here: see [`Node::attr`].
    pub(super) fixed: Attr,
    pub(super) body: Body,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Handles that are open on it.
    pub(super) opens: u32,
}

impl Node {
    pub(super) fn attr(&self) -> Attr {
        let (size, stored) = match &self.body {
            Body::File(blocks) => (blocks.size(), blocks.stored_bytes()),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Directory(_) | Body::Special => (0, 0),
        };
        Attr { size, blocks: stored.div_ceil(512), ..self.fixed }
    }

    pub(super) fn entry(&self) -> Entry {
        Entry::new(self.attr(), Duration::ZERO)
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject::new(&self.fixed, self.xattrs.get(acl::XATTR_ACCESS).map(Vec::as_slice))
    }

    pub(super) fn check(&self, cred: &Cred, mask: u32) -> Result<(), FsError> {
        perm::check(cred, &self.subject(), mask)
    }

    pub(super) fn directory(&self) -> Result<&Directory, FsError> {
        match &self.body {
            Body::Directory(d) => Ok(d),
            _ => Err(FsError::NotADirectory),
        }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory, FsError> {
        match &mut self.body {
            Body::Directory(d) => Ok(d),
            _ => Err(FsError::NotADirectory),
        }
    }

    pub(super) fn blocks_mut(&mut self) -> Result<&mut Blocks, FsError> {
        match &mut self.body {
            Body::File(b) => Ok(b),
            Body::Directory(_) => Err(FsError::IsADirectory),
            _ => Err(FsError::InvalidArgument),
        }
    }

    /// Records that contents changed at `now`.
    pub(super) fn modified(&mut self, now: Time) {
        self.fixed.mtime = now;
        self.fixed.ctime = now;
    }

    /// Records that contents were read at `now`.
    pub(super) fn accessed(&mut self, now: Time) {
        let Attr { atime, mtime, ctime, .. } = self.fixed;
        if crate::atime::needs_update(atime, mtime, ctime, now) {
            self.fixed.atime = now;
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) id: FileId,
    pub(super) flags: OpenFlags,
    pub(super) directory: bool,
}

/// The whole file system. Methods that fail change nothing.
#[derive(Clone)]
pub(super) struct State {
    pub(super) block_size: u32,
    pub(super) nodes: BTreeMap<FileId, Node>,
    pub(super) last_id: u64,
    pub(super) handles: BTreeMap<Handle, Open>,
    pub(super) last_handle: u64,
}

impl State {
    /// An empty tree whose root belongs to the superuser, mode 0755.
    pub(super) fn new(block_size: u32, now: Time) -> Self {
        let mut state = State {
            block_size,
            nodes: BTreeMap::new(),
            last_id: FileId::ROOT.raw(),
            handles: BTreeMap::new(),
            last_handle: 0,
        };
        let root = state.new_node(FileId::ROOT, Body::Directory(Directory::new(FileId::ROOT)), Kind::Directory, now);
        state.nodes.insert(FileId::ROOT, root);
        state
    }

    /// The tree alone: no handles, no locks, no files without a name. Contents are shared until one
    /// side writes.
    pub(super) fn after_crash(&self) -> Self {
        let mut nodes = self.nodes.clone();
        nodes.retain(|_, node| node.fixed.nlink > 0);
        nodes.values_mut().for_each(|node| node.opens = 0);
        State {
            block_size: self.block_size,
            nodes,
            last_id: self.last_id,
            handles: BTreeMap::new(),
            last_handle: self.last_handle,
        }
    }

    /// A node of the superuser with one link (a directory: two), mode 0755, all times `now`.
    pub(super) fn new_node(&self, id: FileId, body: Body, kind: Kind, now: Time) -> Node {
        let fixed = Attr {
            id,
            kind,
            mode: 0o755,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: self.block_size,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
        };
        Node { fixed, body, xattrs: BTreeMap::new(), opens: 0 }
    }

    pub(super) fn node(&self, id: FileId) -> Result<&Node, FsError> {
        self.nodes.get(&id).ok_or(FsError::Stale)
    }

    pub(super) fn node_mut(&mut self, id: FileId) -> Result<&mut Node, FsError> {
        self.nodes.get_mut(&id).ok_or(FsError::Stale)
    }

    /// The file that `name` means in `parent`; checks that `cred` may search there.
    pub(super) fn find(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<FileId, FsError> {
        let node = self.node(parent)?;
        let directory = node.directory()?;
        node.check(cred, perm::EXECUTE)?;
        check_name(name)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(directory.parent),
            _ => Ok(directory.entries.get(name).ok_or(FsError::NotFound)?.id),
        }
    }

    /// As [`find`](Self::find), but a missing name is `None`. ENOENT if the directory has been
    /// removed.
    pub(super) fn find_free(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Option<FileId>, FsError> {
        match self.find(cred, parent, name) {
            Ok(id) => Ok(Some(id)),
            Err(FsError::NotFound) if !name.is_empty() && self.node(parent)?.fixed.nlink > 0 => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn open_handle(&mut self, id: FileId, flags: OpenFlags, directory: bool) -> Result<Handle, FsError> {
        self.node_mut(id)?.opens += 1;
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.handles.insert(handle, Open { id, flags, directory });
        Ok(handle)
    }

    /// EBADF unless `handle` is open on `id`.
    pub(super) fn handle(&self, id: FileId, handle: Handle, directory: bool) -> Result<Open, FsError> {
        match self.handles.get(&handle) {
            Some(open) if open.id == id && open.directory == directory => Ok(*open),
            _ => Err(FsError::BadHandle),
        }
    }

    /// EBADF unless `handle` is open on the directory `id`, or is [`Handle::NONE`].
    pub(super) fn open_directory(&self, id: FileId, handle: Handle) -> Result<(), FsError> {
        if handle == Handle::NONE { Ok(()) } else { self.handle(id, handle, true).map(drop) }
    }

    /// EBADF unless `handle` is open on the file `id` for writing.
    pub(super) fn writable(&self, id: FileId, handle: Handle) -> Result<Open, FsError> {
        let open = self.handle(id, handle, false)?;
        if open.flags.write { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// EBADF unless `handle` is open on the file `id` for reading or executing.
    pub(super) fn readable(&self, id: FileId, handle: Handle) -> Result<Open, FsError> {
        let open = self.handle(id, handle, false)?;
        if open.flags.read || open.flags.execute { Ok(open) } else { Err(FsError::BadHandle) }
    }

    pub(super) fn close(&mut self, id: FileId, handle: Handle, directory: bool) -> Result<(), FsError> {
        self.handle(id, handle, directory)?;
        self.handles.remove(&handle);
        self.node_mut(id)?.opens -= 1;
        self.reap(id);
        Ok(())
    }

    /// Forgets a node that has neither name nor handle.
    pub(super) fn reap(&mut self, id: FileId) {
        if self.nodes.get(&id).is_some_and(|n| n.fixed.nlink == 0 && n.opens == 0) {
            self.nodes.remove(&id);
        }
    }
}

/// ENOENT for an empty name, ENAMETOOLONG beyond 255 bytes, EINVAL for `/` or NUL within.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.is_empty() {
        Err(FsError::NotFound)
    } else if name.len() > NAME_LEN_MAX {
        Err(FsError::NameTooLong)
    } else if name.contains(&0) || name.contains(&b'/') {
        Err(FsError::InvalidArgument)
    } else {
        Ok(())
    }
}
