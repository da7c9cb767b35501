//! Operations on one file: attributes, opening, contents, extended attributes.

use super::state::State;
use crate::acl;
use crate::fs::{
    Appended, At, Cred, Entry, FILE_SIZE_MAX, Fallocate, Handle, OpenFlags, Seek, SetAttr, SetTime, XattrMode,
};
use crate::perm::{self, XattrEffect, XattrUse};
use bytes::Bytes;
use types::{FileId, FsError, Kind, Time};

/// Most bytes that one copy_file_range copies.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// EFBIG unless `offset + len` is a possible file size; otherwise that sum.
fn end_of(offset: u64, len: u64) -> Result<u64, FsError> {
    offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX).ok_or(FsError::FileTooLarge)
}

impl State {
    pub(super) fn setattr(
        &mut self,
        cred: &Cred,
        id: FileId,
        handle: Option<Handle>,
        set: SetAttr,
        now: Time,
    ) -> Result<Entry, FsError> {
        let writable = match handle {
            Some(h) => self.handle(id, h, false)?.flags.write,
            None => false,
        };
        let node = self.node_mut(id)?;
        let set = perm::setattr(cred, &node.subject(), &set, writable)?;
        let acl = match (set.mode, node.xattrs.get(acl::XATTR_ACCESS)) {
            (Some(mode), Some(acl)) => Some(acl::chmod(acl, mode).map_err(|_| FsError::Io)?),
            _ => None,
        };
        if let Some(size) = set.size {
            node.blocks_mut()?.set_size(size);
            node.modified(now);
        }
        let attr = &mut node.fixed;
        attr.mode = set.mode.unwrap_or(attr.mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        let time = |t| match t {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        if set != SetAttr::default() {
            attr.ctime = now;
        }
        node.xattrs.extend(acl.map(|v| (acl::XATTR_ACCESS.to_vec(), v)));
        Ok(node.entry())
    }

    pub(super) fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Result<(), FsError> {
        if mask & !7 != 0 {
            return Err(FsError::InvalidArgument);
        }
        self.node(id)?.check(cred, mask)
    }

    pub(super) fn open(&mut self, cred: &Cred, id: FileId, flags: OpenFlags, now: Time) -> Result<Handle, FsError> {
        let node = self.node_mut(id)?;
        match node.fixed.kind {
            Kind::Directory => return Err(FsError::IsADirectory),
            Kind::Symlink => return Err(FsError::Loop),
            _ => {}
        }
        node.check(cred, perm::open_mask(flags))?;
        if flags.truncate && node.fixed.kind == Kind::File {
            let mode = perm::mode_after_write(cred, &node.subject());
            node.blocks_mut()?.set_size(0);
            node.fixed.mode = mode.unwrap_or(node.fixed.mode);
            node.modified(now);
        }
        self.open_handle(id, flags, false)
    }

    pub(super) fn opendir(&mut self, cred: &Cred, id: FileId) -> Result<Handle, FsError> {
        let node = self.node(id)?;
        node.directory()?;
        node.check(cred, perm::READ)?;
        self.open_handle(id, OpenFlags { read: true, ..OpenFlags::default() }, true)
    }

    pub(super) fn read(
        &mut self,
        id: FileId,
        handle: Handle,
        offset: u64,
        len: u32,
        now: Time,
    ) -> Result<Bytes, FsError> {
        self.readable(id, handle)?;
        let node = self.node_mut(id)?;
        let data = node.blocks_mut()?.read(offset, len.into());
        if len > 0 {
            node.accessed(now);
        }
        Ok(data.into())
    }

    /// Writes at an offset, or at the end.
    pub(super) fn write(
        &mut self,
        cred: &Cred,
        id: FileId,
        handle: Handle,
        offset: Option<u64>,
        data: &[u8],
        now: Time,
    ) -> Result<Appended, FsError> {
        let open = self.writable(id, handle)?;
        let node = self.node_mut(id)?;
        let mode = perm::mode_after_write(cred, &node.subject());
        let blocks = node.blocks_mut()?;
        let count = u32::try_from(data.len()).map_err(|_| FsError::InvalidArgument)?;
        let offset = offset.filter(|_| !open.flags.append).unwrap_or(blocks.size());
        end_of(offset, count.into())?;
        if count > 0 {
            blocks.write(offset, data);
            node.fixed.mode = mode.unwrap_or(node.fixed.mode);
            node.modified(now);
        }
        Ok(Appended { offset, count })
    }

    pub(super) fn fallocate(
        &mut self,
        cred: &Cred,
        At { id, handle, offset }: At,
        len: u64,
        mode: Fallocate,
        now: Time,
    ) -> Result<(), FsError> {
        self.writable(id, handle)?;
        let node = self.node_mut(id)?;
        let mode_after = perm::mode_after_write(cred, &node.subject());
        let blocks = node.blocks_mut()?;
        if len == 0 {
            return Err(FsError::InvalidArgument);
        }
        let end = end_of(offset, len)?;
        let size = blocks.size();
        if matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize) {
            blocks.zero(offset, end);
        }
        if matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange) {
            blocks.set_size(end.max(size));
        }
        let changes = match mode {
            Fallocate::AllocateKeepSize => false,
            Fallocate::Allocate => end > size,
            _ => true,
        };
        if changes || mode_after.is_some() {
            node.fixed.mode = mode_after.unwrap_or(node.fixed.mode);
            node.modified(now);
        }
        Ok(())
    }

    pub(super) fn lseek(&mut self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Result<u64, FsError> {
        self.handle(id, handle, false)?;
        self.node_mut(id)?.blocks_mut()?.seek(offset, whence).ok_or(FsError::NoSuchAddress)
    }

    pub(super) fn copy_file_range(
        &mut self,
        cred: &Cred,
        from: At,
        to: At,
        len: u64,
        now: Time,
    ) -> Result<u64, FsError> {
        self.readable(from.id, from.handle)?;
        if self.writable(to.id, to.handle)?.flags.append {
            return Err(FsError::BadHandle);
        }
        self.node_mut(to.id)?.blocks_mut()?;
        let source = self.node_mut(from.id)?;
        let size_in = source.blocks_mut()?.size();
        let len = len.min(size_in.saturating_sub(from.offset));
        if from.id == to.id && from.offset.abs_diff(to.offset) < len {
            return Err(FsError::InvalidArgument);
        }
        let len = len.min(COPY_BYTES_MAX);
        end_of(to.offset, len)?;
        if len == 0 {
            return Ok(0);
        }
        let data = source.blocks_mut()?.read(from.offset, len);
        source.accessed(now);
        let target = self.node_mut(to.id)?;
        target.fixed.mode = perm::mode_after_write(cred, &target.subject()).unwrap_or(target.fixed.mode);
        target.blocks_mut()?.write(to.offset, &data);
        target.modified(now);
        Ok(len)
    }

    pub(super) fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Result<Bytes, FsError> {
        let node = self.node(id)?;
        perm::xattr_access(cred, &node.subject(), name, XattrUse::Read)?;
        node.xattrs.get(name).map(|v| Bytes::copy_from_slice(v)).ok_or(FsError::NoSuchXattr)
    }

    pub(super) fn setxattr(
        &mut self,
        cred: &Cred,
        id: FileId,
        name: &[u8],
        value: &[u8],
        xattr_mode: XattrMode,
        now: Time,
    ) -> Result<(), FsError> {
        let node = self.node_mut(id)?;
        perm::xattr_access(cred, &node.subject(), name, XattrUse::Write)?;
        let (effect, mode) = perm::set_xattr(cred, &node.subject(), name, value)?;
        match (xattr_mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoSuchXattr),
            _ => {}
        }
        match effect {
            XattrEffect::Store(value) => node.xattrs.insert(name.to_vec(), value),
            XattrEffect::Remove => node.xattrs.remove(name),
        };
        node.fixed.mode = mode;
        node.fixed.ctime = now;
        Ok(())
    }

    pub(super) fn listxattr(&self, cred: &Cred, id: FileId) -> Result<Vec<Vec<u8>>, FsError> {
        let names = self.node(id)?.xattrs.keys();
        Ok(names.filter(|n| perm::xattr_listed(cred, n)).cloned().collect())
    }

    pub(super) fn removexattr(&mut self, cred: &Cred, id: FileId, name: &[u8], now: Time) -> Result<(), FsError> {
        let node = self.node_mut(id)?;
        perm::xattr_access(cred, &node.subject(), name, XattrUse::Write)?;
        if node.xattrs.remove(name).is_none() {
            return Err(FsError::NoSuchXattr);
        }
        node.fixed.ctime = now;
        Ok(())
    }
}
