//! Applies operations to a file system, as a process with some open files does, and summarises the
//! answers.

use crate::operation::{Operation, Path, SLOT_COUNT, data, name};
use std::sync::Arc;
use types::{Attr, FileId, FsError, Kind};
use vfs::fs::{At, Cred, FileSystem, Handle, NewNode, OpenFlags, SetAttr};

/// The answer of an operation, for messages: the [`Oracle`](crate::oracle::Oracle) has compared it
/// already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It succeeded without a value.
    Done,
    /// It was skipped: no file is open.
    Skipped,
    /// A number of bytes or names, or an offset.
    Count(u64),
    /// Attributes: kind, mode, links, owner, size.
    Attributes(Kind, u32, u32, u32, u64),
}

impl From<Attr> for Seen {
    fn from(a: Attr) -> Self {
        Seen::Attributes(a.kind, a.mode, a.nlink, a.uid, a.size)
    }
}

impl From<()> for Seen {
    fn from((): ()) -> Self {
        Seen::Done
    }
}

/// One worker's open files.
pub struct Session {
    fs: Arc<dyn FileSystem>,
    slots: [Option<(FileId, Handle, bool)>; SLOT_COUNT],
}

impl Session {
    /// A session with nothing open.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Session { fs, slots: Default::default() }
    }

    async fn find(&self, cred: &Cred, path: &[u16]) -> Result<FileId, FsError> {
        let mut id = FileId::ROOT;
        for number in path {
            id = self.fs.lookup(cred, id, &name(*number)).await?.attr.id;
        }
        Ok(id)
    }

    async fn parent(&self, cred: &Cred, path: &Path) -> Result<(FileId, Vec<u8>), FsError> {
        let (last, parents) = path.split_last().ok_or(FsError::InvalidArgument)?;
        let parent = self.find(cred, parents).await?;
        // Like the kernel, which asks for names in directories only.
        match self.fs.getattr(parent).await?.attr.kind {
            Kind::Directory => Ok((parent, name(*last))),
            _ => Err(FsError::NotADirectory),
        }
    }

    /// The open file in a slot, or in the next slot that has one.
    fn file(&self, slot: usize) -> Option<(FileId, Handle)> {
        let from = self.slots[slot..].iter().chain(&self.slots[..slot]).flatten();
        from.copied().find(|(_, _, directory)| !directory).map(|(id, handle, _)| (id, handle))
    }

    /// Closes the file or directory in a slot.
    async fn close(&mut self, slot: usize) -> Result<Seen, FsError> {
        Ok(match self.slots[slot].take() {
            Some((id, handle, true)) => self.fs.releasedir(id, handle).await?.into(),
            Some((id, handle, false)) => self.fs.release(id, handle, None).await?.into(),
            None => Seen::Skipped,
        })
    }

    /// Applies `operation` for a user.
    pub async fn apply(&mut self, cred: &Cred, operation: &Operation) -> Result<Seen, FsError> {
        use Operation::*;
        let fs = self.fs.clone();
        if let Create { slot, .. } | Open { slot, .. } | OpenDirectory { slot, .. } = operation {
            self.close(*slot).await?;
        }
        Ok(match operation {
            Create { path, slot, mode, append } => {
                let (parent, name) = self.parent(cred, path).await?;
                let flags = OpenFlags { read: true, write: true, append: *append, ..Default::default() };
                let (entry, handle) = fs.create(cred, parent, &name, *mode, 0, flags).await?;
                self.slots[*slot] = Some((entry.attr.id, handle, false));
                entry.attr.into()
            }
            Open { path, slot, flags } => {
                let id = self.find(cred, path).await?;
                let handle = fs.open(cred, id, *flags).await?;
                self.slots[*slot] = Some((id, handle, false));
                Seen::Done
            }
            OpenDirectory { path, slot } => {
                let id = self.find(cred, path).await?;
                let handle = fs.opendir(cred, id).await?;
                self.slots[*slot] = Some((id, handle, true));
                Seen::Done
            }
            Close { slot } => self.close(*slot).await?,
            Fsync { slot, data_only } => match (self.slots[*slot], self.file(*slot)) {
                (Some((id, handle, true)), _) => fs.fsync_dir(id, handle).await?.into(),
                (_, Some((id, handle))) => fs.fsync(id, handle, *data_only).await?.into(),
                (_, None) => Seen::Skipped,
            },
            Write { slot, offset, len, fill } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                Seen::Count(fs.write(cred, id, handle, *offset, &data(*fill, *len)).await?.into())
            }
            Read { slot, offset, len } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                Seen::Count(fs.read(id, handle, *offset, *len).await?.len() as u64)
            }
            Allocate { slot, offset, len, mode } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                fs.fallocate(cred, id, handle, *offset, *len, *mode).await?.into()
            }
            Seek { slot, offset, whence } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                Seen::Count(fs.lseek(id, handle, *offset, *whence).await?)
            }
            Copy { from, offset, to, to_offset, len } => {
                let at = |(id, handle), offset: &u64| At { id, handle, offset: *offset };
                let (Some(from), Some(to)) = (self.file(*from), self.file(*to)) else { return Ok(Seen::Skipped) };
                Seen::Count(fs.copy_file_range(cred, at(from, offset), at(to, to_offset), *len).await?)
            }
            Truncate { path, size } => {
                let id = self.find(cred, path).await?;
                fs.setattr(cred, id, None, SetAttr { size: Some(*size), ..Default::default() }).await?.attr.into()
            }
            Mode { path, mode } => {
                let id = self.find(cred, path).await?;
                fs.setattr(cred, id, None, SetAttr { mode: Some(*mode), ..Default::default() }).await?.attr.into()
            }
            TruncateOpen { slot, size } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                let set = SetAttr { size: Some(*size), ..Default::default() };
                fs.setattr(cred, id, Some(handle), set).await?.attr.into()
            }
            Owner { path, uid, gid } => {
                let id = self.find(cred, path).await?;
                fs.setattr(cred, id, None, SetAttr { uid: *uid, gid: *gid, ..Default::default() }).await?.attr.into()
            }
            Access { path, mask } => fs.access(cred, self.find(cred, path).await?, *mask).await?.into(),
            MakeNode { path, mode } => {
                let (parent, name) = self.parent(cred, path).await?;
                let node = NewNode { kind: Kind::File, mode: *mode, umask: 0, rdev: 0 };
                fs.mknod(cred, parent, &name, node).await?.attr.into()
            }
            MakeDirectory { path, mode } => {
                let (parent, name) = self.parent(cred, path).await?;
                fs.mkdir(cred, parent, &name, *mode, 0).await?.attr.into()
            }
            Symlink { path, target_len } => {
                let (parent, name) = self.parent(cred, path).await?;
                fs.symlink(cred, parent, &name, &vec![b't'; *target_len]).await?.attr.into()
            }
            Link { path, to } => {
                let id = self.find(cred, path).await?;
                let (parent, name) = self.parent(cred, to).await?;
                fs.link(cred, id, parent, &name).await?.attr.into()
            }
            Unlink { path } => {
                let (parent, name) = self.parent(cred, path).await?;
                fs.unlink(cred, parent, &name).await?.into()
            }
            RemoveDirectory { path } => {
                let (parent, name) = self.parent(cred, path).await?;
                fs.rmdir(cred, parent, &name).await?.into()
            }
            Rename { path, to, flags } => {
                let (parent, name) = self.parent(cred, path).await?;
                let (new_parent, new_name) = self.parent(cred, to).await?;
                fs.rename(cred, parent, &name, new_parent, &new_name, *flags).await?.into()
            }
            Stat { path } => fs.getattr(self.find(cred, path).await?).await?.attr.into(),
            ReadLink { path } => {
                let entry = fs.getattr(self.find(cred, path).await?).await?;
                if entry.attr.kind != Kind::Symlink {
                    return Ok(Seen::Skipped);
                }
                Seen::Count(fs.readlink(entry.attr.id).await?.len() as u64)
            }
            List { path, page } => Seen::Count(list(&*fs, cred, self.find(cred, path).await?, *page).await?),
            SetXattr { path, name, len, mode } => {
                let id = self.find(cred, path).await?;
                fs.setxattr(cred, id, &xattr(*name), &data(*len as u64, *len as u64), *mode).await?.into()
            }
            GetXattr { path, name } => {
                let id = self.find(cred, path).await?;
                Seen::Count(fs.getxattr(cred, id, &xattr(*name)).await?.len() as u64)
            }
            RemoveXattr { path, name } => {
                let id = self.find(cred, path).await?;
                fs.removexattr(cred, id, &xattr(*name)).await?.into()
            }
            ListXattr { path } => {
                let id = self.find(cred, path).await?;
                Seen::Count(fs.listxattr(cred, id).await?.len() as u64)
            }
            Sync => fs.sync().await?.into(),
        })
    }
}

fn xattr(number: u8) -> Vec<u8> {
    format!("user.x{number}").into()
}

/// Lists a whole directory, `page` entries at a time. Returns their number.
async fn list(fs: &dyn FileSystem, cred: &Cred, id: FileId, page: usize) -> Result<u64, FsError> {
    let handle = fs.opendir(cred, id).await?;
    let (mut count, mut cookie) = (0, 0);
    loop {
        let entries = fs.readdir(id, handle, cookie, page, page.is_multiple_of(2)).await?;
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        count += entries.len() as u64;
    }
    fs.releasedir(id, handle).await?;
    Ok(count)
}
