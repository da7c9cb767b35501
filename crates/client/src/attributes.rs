//! Attributes: setattr, access, symlink targets, extended attributes, as attempts (see `state`).

use crate::core::Core;
use crate::inode::Inode;
use crate::namespace::subject;
use crate::state::{Attempt, ClientState};
use bytes::Bytes;
use manager::planted::{self, Bug};
use policy::space::Purpose;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{Cred, Entry, Handle, SetAttr, SetTime, XATTR_NAME_LEN_MAX, XattrMode};
use vfs::perm::{self, XattrEffect, XattrUse};
use vfs::{acl, fs::FsStat};

/// Bytes of names and values of all extended attributes of one file, at most: they are kept in its
/// index node.
const XATTR_TOTAL_LEN_MAX: usize = 256 * 1024;

impl Core {
    pub(crate) fn try_setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Attempt<Entry> {
        let s = &mut *self.begin();
        let writable = match handle {
            Some(h) => s.handle(id, h)?.flags.write,
            None => false,
        };
        let inode = s.inode(id)?;
        let allowed = perm::setattr(cred, &subject(inode), &set, writable)?;
        let access = match (allowed.mode, inode.xattrs.get(acl::XATTR_ACCESS)) {
            (Some(mode), Some(value)) => Some(acl::chmod(value, mode).map_err(|_| FsError::Io)?),
            _ => None,
        };
        let access_bytes = access.as_ref().map_or(0, |value| xattr_bytes(acl::XATTR_ACCESS, value));
        if set != SetAttr::default() && !planted::is(Bug::SetattrUnderRead) {
            s.writable(id)?;
        }
        match allowed.size {
            Some(size) => self.resize(s, cred, id, size, access_bytes)?,
            None => self.admit(s, access_bytes, Purpose::Change)?,
        }
        let now = self.wall();
        let chosen = |t: SetTime| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        let inode = s.inode(id)?;
        if let Some(value) = access {
            inode.xattrs.insert(acl::XATTR_ACCESS.to_vec(), value.into());
            inode.pending.xattrs.insert(acl::XATTR_ACCESS.to_vec());
        }
        let r = &mut inode.record;
        r.mode = allowed.mode.unwrap_or(r.mode);
        r.uid = allowed.uid.unwrap_or(r.uid);
        r.gid = allowed.gid.unwrap_or(r.gid);
        r.atime = allowed.atime.map_or(r.atime, chosen);
        r.mtime = allowed.mtime.map_or(r.mtime, chosen);
        if set != SetAttr::default() {
            self.changed(s, id, access_bytes, now);
        }
        Ok(self.entry(self.attr(s.inode(id)?)))
    }

    /// Records a change of an inode: sets its ctime, and puts it into the next cut.
    fn changed(&self, s: &mut ClientState, id: FileId, bytes: u64, now: Time) {
        let next_cut = s.last_cut + 1;
        if let Some(inode) = s.inodes.get_mut(&id) {
            inode.record.ctime = now;
            inode.pending.record = true;
            inode.attributes_changed = next_cut;
        }
        s.mark(id, bytes, self.host.clock.now());
    }

    pub(crate) fn try_access(&self, cred: &Cred, id: FileId, mask: u32) -> Attempt<()> {
        if mask & !7 != 0 {
            return Err(FsError::InvalidArgument.into());
        }
        let s = &mut *self.begin();
        Ok(perm::check(cred, &subject(s.inode(id)?), mask)?)
    }

    pub(crate) fn try_readlink(&self, id: FileId) -> Attempt<Bytes> {
        let s = &mut *self.begin();
        self.access_time(s, id);
        let inode = s.inode(id)?;
        if inode.record.kind != Kind::Symlink {
            return Err(FsError::InvalidArgument.into());
        }
        Ok(inode.target.clone().ok_or(FsError::Io)?)
    }

    pub(crate) fn try_getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Attempt<Bytes> {
        let s = &mut *self.begin();
        let inode = s.inode(id)?;
        perm::xattr_access(cred, &subject(inode), name, XattrUse::Read)?;
        Ok(inode.xattrs.get(name).cloned().ok_or(FsError::NoSuchXattr)?)
    }

    pub(crate) fn try_listxattr(&self, cred: &Cred, id: FileId) -> Attempt<Vec<Vec<u8>>> {
        let s = &mut *self.begin();
        Ok(s.inode(id)?.xattrs.keys().filter(|n| perm::xattr_listed(cred, n)).cloned().collect())
    }

    pub(crate) fn try_setxattr(
        &self,
        cred: &Cred,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Attempt<()> {
        let s = &mut *self.begin();
        let inode = s.inode(id)?;
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(FsError::BufferTooSmall.into());
        }
        perm::xattr_access(cred, &subject(inode), name, XattrUse::Write)?;
        let (effect, new_mode) = perm::set_xattr(cred, &subject(inode), name, value)?;
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(FsError::Exists.into()),
            (XattrMode::Replace, false) => return Err(FsError::NoSuchXattr.into()),
            _ => {}
        }
        if xattr_len(inode, name) + name.len() + value.len() > XATTR_TOTAL_LEN_MAX {
            return Err(FsError::NoSpace.into());
        }
        let need = xattr_bytes(name, value);
        s.writable(id)?;
        self.admit(s, need, Purpose::Write)?;
        let inode = s.inode(id)?;
        match effect {
            XattrEffect::Store(value) => {
                inode.xattrs.insert(name.to_vec(), value.into());
            }
            XattrEffect::Remove => {
                inode.xattrs.remove(name);
            }
        }
        inode.pending.xattrs.insert(name.to_vec());
        inode.record.mode = new_mode;
        let now = self.wall();
        self.changed(s, id, need, now);
        Ok(())
    }

    pub(crate) fn try_removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Attempt<()> {
        let s = &mut *self.begin();
        let inode = s.inode(id)?;
        perm::xattr_access(cred, &subject(inode), name, XattrUse::Write)?;
        if !inode.xattrs.contains_key(name) {
            return Err(FsError::NoSuchXattr.into());
        }
        let need = xattr_bytes(name, &[]);
        s.writable(id)?;
        self.admit(s, need, Purpose::Remove)?;
        let inode = s.inode(id)?;
        inode.xattrs.remove(name);
        inode.pending.xattrs.insert(name.to_vec());
        let now = self.wall();
        self.changed(s, id, need, now);
        Ok(())
    }

    pub(crate) fn try_statfs(&self) -> FsStat {
        let files: u64 = self.managers.each().map(|m| m.status().file_count).sum();
        let s = self.state.lock();
        let used_bytes = s.space.used_bytes() + s.dirty_bytes;
        let free_bytes = s.space.limit_bytes().saturating_sub(used_bytes);
        FsStat {
            total_bytes: used_bytes + free_bytes,
            free_bytes,
            files,
            files_free: free_bytes / 512,
            block_size: self.config.block_size,
        }
    }
}

/// Bytes that a cut needs for an extended attribute, at most.
fn xattr_bytes(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len() + 64) as u64
}

/// Bytes of all extended attributes but `name`.
fn xattr_len(inode: &Inode, name: &[u8]) -> usize {
    inode.xattrs.iter().filter(|(n, _)| *n != name).map(|(n, v)| n.len() + v.len()).sum()
}
