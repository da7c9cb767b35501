//! Operations on names: making, linking, removing and renaming, and listing.

use super::blocks::Blocks;
use super::state::{Body, COOKIE_DOT, COOKIE_DOT_DOT, Directory, Node, State};
use crate::acl;
use crate::fs::{Cred, DirEntry, Entry, Handle, LINK_COUNT_MAX, NewNode, OpenFlags, RenameFlags, SYMLINK_LEN_MAX};
use crate::perm;
use bytes::Bytes;
use types::{FileId, FsError, Kind, Time};

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl State {
    pub(super) fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Entry, FsError> {
        Ok(self.node(self.find(cred, parent, name)?)?.entry())
    }

    /// Makes a node of any kind under a new name.
    pub(super) fn make(
        &mut self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new: NewNode,
        target: &[u8],
        now: Time,
    ) -> Result<Entry, FsError> {
        if self.find_free(cred, parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let dir = self.node(parent)?;
        perm::may_create(cred, &dir.subject())?;
        if matches!(new.kind, Kind::CharDevice | Kind::BlockDevice) && cred.uid != 0 {
            return Err(FsError::NotPermitted);
        }
        let default = dir.xattrs.get(acl::XATTR_DEFAULT).map(Vec::as_slice);
        let start = perm::new_node_mode(cred, &dir.subject(), default, new.kind, new.mode, new.umask)?;

        let id = FileId::new(self.last_id + 1);
        let body = match new.kind {
            Kind::File => Body::File(Blocks::new(self.block_size.into())),
            Kind::Directory => Body::Directory(Directory::new(parent)),
            Kind::Symlink => Body::Symlink(Bytes::copy_from_slice(target)),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => Body::Special,
        };
        let mut node = self.new_node(id, body, new.kind, now);
        node.fixed.mode = start.mode;
        node.fixed.uid = cred.uid;
        node.fixed.gid = start.gid;
        if matches!(new.kind, Kind::CharDevice | Kind::BlockDevice) {
            node.fixed.rdev = new.rdev;
        }
        node.xattrs.extend(start.access_acl.map(|v| (acl::XATTR_ACCESS.to_vec(), v)));
        node.xattrs.extend(start.default_acl.map(|v| (acl::XATTR_DEFAULT.to_vec(), v)));
        let entry = node.entry();

        let dir = self.node_mut(parent)?;
        dir.directory_mut()?.set(name, id);
        dir.modified(now);
        if new.kind == Kind::Directory {
            dir.fixed.nlink += 1;
        }
        self.last_id = id.raw();
        self.nodes.insert(id, node);
        Ok(entry)
    }

    pub(super) fn mknod(
        &mut self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new: NewNode,
        now: Time,
    ) -> Result<Entry, FsError> {
        if matches!(new.kind, Kind::Directory | Kind::Symlink) {
            return Err(FsError::InvalidArgument);
        }
        self.make(cred, parent, name, new, b"", now)
    }

    pub(super) fn create(
        &mut self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new: NewNode,
        flags: OpenFlags,
        now: Time,
    ) -> Result<(Entry, Handle), FsError> {
        let entry = self.make(cred, parent, name, new, b"", now)?;
        Ok((entry, self.open_handle(entry.attr.id, flags, false)?))
    }

    pub(super) fn symlink(
        &mut self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        target: &[u8],
        now: Time,
    ) -> Result<Entry, FsError> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_LEN_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.contains(&0) {
            return Err(FsError::InvalidArgument);
        }
        let new = NewNode { kind: Kind::Symlink, mode: 0o777, umask: 0, rdev: 0 };
        self.make(cred, parent, name, new, target, now)
    }

    pub(super) fn readlink(&mut self, id: FileId, now: Time) -> Result<Bytes, FsError> {
        let node = self.node_mut(id)?;
        let Body::Symlink(target) = &node.body else { return Err(FsError::InvalidArgument) };
        let target = target.clone();
        node.accessed(now);
        Ok(target)
    }

    pub(super) fn link(
        &mut self,
        cred: &Cred,
        id: FileId,
        parent: FileId,
        name: &[u8],
        now: Time,
    ) -> Result<Entry, FsError> {
        let attr = self.node(id)?.fixed;
        if self.find_free(cred, parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        perm::may_create(cred, &self.node(parent)?.subject())?;
        if attr.kind == Kind::Directory {
            return Err(FsError::NotPermitted);
        }
        if attr.nlink == 0 {
            return Err(FsError::NotFound);
        }
        if attr.nlink >= LINK_COUNT_MAX {
            return Err(FsError::TooManyLinks);
        }
        let dir = self.node_mut(parent)?;
        dir.directory_mut()?.set(name, id);
        dir.modified(now);
        let node = self.node_mut(id)?;
        node.fixed.nlink += 1;
        node.fixed.ctime = now;
        Ok(node.entry())
    }

    pub(super) fn unlink(&mut self, cred: &Cred, parent: FileId, name: &[u8], now: Time) -> Result<(), FsError> {
        let id = self.find(cred, parent, name)?;
        if is_dots(name) {
            return Err(FsError::IsADirectory);
        }
        let victim = self.node(id)?.fixed;
        perm::may_delete(cred, &self.node(parent)?.subject(), victim.uid)?;
        if victim.kind == Kind::Directory {
            return Err(FsError::IsADirectory);
        }
        self.take_name(parent, name, now)?;
        self.lose_link(id, now)
    }

    pub(super) fn rmdir(&mut self, cred: &Cred, parent: FileId, name: &[u8], now: Time) -> Result<(), FsError> {
        let id = self.find(cred, parent, name)?;
        match name {
            b"." => return Err(FsError::InvalidArgument),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        let victim = self.node(id)?;
        perm::may_delete(cred, &self.node(parent)?.subject(), victim.fixed.uid)?;
        if !victim.directory()?.entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.take_name(parent, name, now)?;
        self.node_mut(parent)?.fixed.nlink -= 1;
        self.lose_link(id, now)
    }

    fn take_name(&mut self, parent: FileId, name: &[u8], now: Time) -> Result<(), FsError> {
        let dir = self.node_mut(parent)?;
        dir.directory_mut()?.remove(name);
        dir.modified(now);
        Ok(())
    }

    /// Removes one link. A directory has only one name besides its own `.`.
    fn lose_link(&mut self, id: FileId, now: Time) -> Result<(), FsError> {
        let node = self.node_mut(id)?;
        node.fixed.nlink = if node.fixed.kind == Kind::Directory { 0 } else { node.fixed.nlink - 1 };
        node.fixed.ctime = now;
        self.reap(id);
        Ok(())
    }

    /// True if `id` equals `below` or is one of its ancestors.
    fn is_above(&self, id: FileId, below: FileId) -> Result<bool, FsError> {
        let mut at = below;
        while at != id {
            let parent = self.node(at)?.directory()?.parent;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Ok(true)
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn rename(
        &mut self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new_parent: FileId,
        new_name: &[u8],
        flags: RenameFlags,
        now: Time,
    ) -> Result<(), FsError> {
        if flags.no_replace && flags.exchange {
            return Err(FsError::InvalidArgument);
        }
        for dir in [parent, new_parent] {
            let node = self.node(dir)?;
            node.directory()?;
            node.check(cred, perm::EXECUTE)?;
        }
        let source = self.find(cred, parent, name)?;
        let target = self.find_free(cred, new_parent, new_name)?;
        if is_dots(name) || is_dots(new_name) {
            return Err(FsError::Busy);
        }
        if flags.no_replace && target.is_some() {
            return Err(FsError::Exists);
        }
        if flags.exchange && target.is_none() {
            return Err(FsError::NotFound);
        }
        if self.is_above(source, new_parent)? {
            return Err(FsError::InvalidArgument);
        }
        if let Some(target) = target
            && self.is_above(target, parent)?
        {
            return Err(if flags.exchange { FsError::InvalidArgument } else { FsError::NotEmpty });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.may_rename(cred, (parent, source), (new_parent, target), flags.exchange)?;

        self.node_mut(new_parent)?.directory_mut()?.set(new_name, source);
        match target {
            Some(target) if flags.exchange => self.node_mut(parent)?.directory_mut()?.set(name, target),
            _ => self.node_mut(parent)?.directory_mut()?.remove(name),
        }
        self.moved(source, parent, new_parent, now)?;
        if let Some(target) = target {
            if flags.exchange {
                self.moved(target, new_parent, parent, now)?;
            } else {
                if self.node(target)?.fixed.kind == Kind::Directory {
                    self.node_mut(new_parent)?.fixed.nlink -= 1;
                }
                self.lose_link(target, now)?;
            }
        }
        self.node_mut(parent)?.modified(now);
        self.node_mut(new_parent)?.modified(now);
        Ok(())
    }

    /// Checks rights and types for a rename whose names were both found, in Linux's order.
    fn may_rename(
        &self,
        cred: &Cred,
        (parent, source): (FileId, FileId),
        (new_parent, target): (FileId, Option<FileId>),
        exchange: bool,
    ) -> Result<(), FsError> {
        let from = self.node(source)?;
        let is_dir = |node: &Node| node.fixed.kind == Kind::Directory;
        perm::may_delete(cred, &self.node(parent)?.subject(), from.fixed.uid)?;
        let new_dir = self.node(new_parent)?.subject();
        let to = target.map(|target| self.node(target)).transpose()?;
        match to {
            Some(to) => perm::may_delete(cred, &new_dir, to.fixed.uid)?,
            None => perm::may_create(cred, &new_dir)?,
        }
        let replaced = to.filter(|_| !exchange);
        match replaced.map(is_dir) {
            Some(false) if is_dir(from) => return Err(FsError::NotADirectory),
            Some(true) if !is_dir(from) => return Err(FsError::IsADirectory),
            _ => {}
        }
        if parent != new_parent {
            // The `..` of a directory that moves changes.
            for moved in [Some(from), to.filter(|_| exchange)].into_iter().flatten().filter(|node| is_dir(node)) {
                moved.check(cred, perm::WRITE)?;
            }
        }
        match replaced {
            Some(replaced) if is_dir(replaced) && !replaced.directory()?.entries.is_empty() => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Updates `id` after its name moved to `to`: its ctime, its `..`, and the link count that `..`
    /// adds.
    fn moved(&mut self, id: FileId, from: FileId, to: FileId, now: Time) -> Result<(), FsError> {
        let node = self.node_mut(id)?;
        node.fixed.ctime = now;
        if let Body::Directory(directory) = &mut node.body {
            directory.parent = to;
            self.node_mut(from)?.fixed.nlink -= 1;
            self.node_mut(to)?.fixed.nlink += 1;
        }
        Ok(())
    }

    pub(super) fn readdir(
        &mut self,
        id: FileId,
        handle: Handle,
        cookie: u64,
        count_max: usize,
        plus: bool,
        now: Time,
    ) -> Result<Vec<DirEntry>, FsError> {
        self.open_directory(id, handle)?;
        self.node_mut(id)?.accessed(now);
        let node = self.node(id)?;
        let directory = node.directory()?;
        let dots = [(COOKIE_DOT, &b"."[..], id), (COOKIE_DOT_DOT, b"..", directory.parent)];
        let dots = dots.into_iter().filter(|_| node.fixed.nlink > 0);
        let names = directory.by_cookie.range(cookie.saturating_add(1)..);
        let names = names.map(|(&cookie, name)| (cookie, &name[..], directory.entries[name].id));
        let listed = dots.chain(names).filter(|e| e.0 > cookie).take(count_max);
        listed
            .map(|(cookie, name, id)| {
                let attr = self.node(id)?.attr();
                Ok(DirEntry { name: name.to_vec(), id, kind: attr.kind, cookie, attr: plus.then_some(attr) })
            })
            .collect()
    }
}
