//! Applies operations to a file system and notes what there is to see: the same for the file system under test and for the
//! model, so that the two can be compared.
//!
//! Not seen, because they may differ: file ids, times, disk blocks, sizes of directories, and the order of listings.

use crate::operation::{Operation, Path, SLOT_COUNT, data, name};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{Attr, FileId, FsError, Kind};
use vfs::fs::{Cred, FileSystem, Handle, NewNode, OpenFlags, SetAttr};

/// What an operation answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It succeeded and there is nothing more to say.
    Done,
    /// It makes no sense now: the slot is in use, or not.
    Skipped,
    /// It was refused.
    Refused(FsError),
    /// How many bytes, or where.
    Count(u64),
    /// Length and hash of bytes.
    Bytes(usize, u64),
    /// Kind, mode, links, size (0 for directories) of a file.
    Attributes(Kind, u32, u32, u64),
    /// A directory's names and their kinds.
    Names(BTreeMap<Vec<u8>, Kind>),
    /// Names of extended attributes, sorted.
    Xattrs(Vec<Vec<u8>>),
}

impl From<Attr> for Seen {
    fn from(a: Attr) -> Self {
        Seen::Attributes(a.kind, a.mode, a.nlink, if a.kind == Kind::Directory { 0 } else { a.size })
    }
}

impl From<()> for Seen {
    fn from((): ()) -> Self {
        Seen::Done
    }
}

/// One worker's view of one file system: a directory of its own and its open files.
pub struct Session {
    fs: Arc<dyn FileSystem>,
    top: Vec<u8>,
    slots: [Option<(FileId, Handle, bool)>; SLOT_COUNT],
}

const USER: Cred = Cred::ROOT;

impl Session {
    /// A session in the directory `top` of the root.
    pub fn new(fs: Arc<dyn FileSystem>, top: Vec<u8>) -> Self {
        Session { fs, top, slots: Default::default() }
    }

    /// Makes the session's directory.
    pub async fn prepare(&self) -> Result<(), FsError> {
        self.fs.mkdir(&USER, FileId::ROOT, &self.top, 0o755, 0).await.map(drop)
    }

    /// Applies `operation`.
    pub async fn apply(&mut self, operation: &Operation) -> Seen {
        match self.try_apply(operation).await {
            Ok(seen) => seen,
            Err(e) => Seen::Refused(e),
        }
    }

    async fn find(&self, path: &[u16]) -> Result<FileId, FsError> {
        let mut id = self.fs.lookup(&USER, FileId::ROOT, &self.top).await?.attr.id;
        for number in path {
            id = self.fs.lookup(&USER, id, &name(*number)).await?.attr.id;
        }
        Ok(id)
    }

    async fn parent(&self, path: &Path) -> Result<(FileId, Vec<u8>), FsError> {
        let (last, parents) = path.split_last().ok_or(FsError::InvalidArgument)?;
        let parent = self.find(parents).await?;
        // As the kernel does, which asks for names in directories only.
        match self.fs.getattr(parent).await?.attr.kind {
            Kind::Directory => Ok((parent, name(*last))),
            _ => Err(FsError::NotADirectory),
        }
    }

    /// The open file in a slot.
    fn file(&self, slot: usize) -> Option<(FileId, Handle)> {
        self.slots[slot].filter(|(_, _, directory)| !directory).map(|(id, handle, _)| (id, handle))
    }

    async fn try_apply(&mut self, operation: &Operation) -> Result<Seen, FsError> {
        use Operation::*;
        let fs = self.fs.clone();
        Ok(match operation {
            Create { slot, .. } | Open { slot, .. } | OpenDirectory { slot, .. } if self.slots[*slot].is_some() => {
                Seen::Skipped
            }
            Create { path, slot, mode, append } => {
                let (parent, name) = self.parent(path).await?;
                let flags = OpenFlags { read: true, write: true, append: *append, ..Default::default() };
                let (entry, handle) = fs.create(&USER, parent, &name, *mode, 0, flags).await?;
                self.slots[*slot] = Some((entry.attr.id, handle, false));
                entry.attr.into()
            }
            Open { path, slot, flags } => {
                let id = self.find(path).await?;
                let handle = fs.open(&USER, id, *flags).await?;
                self.slots[*slot] = Some((id, handle, false));
                Seen::Done
            }
            OpenDirectory { path, slot } => {
                let id = self.find(path).await?;
                let handle = fs.opendir(&USER, id).await?;
                self.slots[*slot] = Some((id, handle, true));
                Seen::Done
            }
            Close { slot } => match self.slots[*slot].take() {
                Some((id, handle, true)) => fs.releasedir(id, handle).await?.into(),
                Some((id, handle, false)) => fs.release(id, handle, None).await?.into(),
                None => Seen::Skipped,
            },
            Fsync { slot, data_only } => match self.slots[*slot] {
                Some((id, handle, true)) => fs.fsync_dir(id, handle).await?.into(),
                Some((id, handle, false)) => fs.fsync(id, handle, *data_only).await?.into(),
                None => Seen::Skipped,
            },
            Write { slot, offset, len, fill } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                Seen::Count(fs.write(&USER, id, handle, *offset, &data(*fill, *len)).await?.into())
            }
            Read { slot, offset, len } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                seen_bytes(&fs.read(id, handle, *offset, *len).await?)
            }
            Allocate { slot, offset, len, mode } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                fs.fallocate(id, handle, *offset, *len, *mode).await?.into()
            }
            Seek { slot, offset, whence } => {
                let Some((id, handle)) = self.file(*slot) else { return Ok(Seen::Skipped) };
                Seen::Count(fs.lseek(id, handle, *offset, *whence).await?)
            }
            Copy { from, offset, to, to_offset, len } => {
                let (Some((id, handle)), Some((id_to, handle_to))) = (self.file(*from), self.file(*to)) else {
                    return Ok(Seen::Skipped);
                };
                Seen::Count(fs.copy_file_range(id, handle, *offset, id_to, handle_to, *to_offset, *len).await?)
            }
            Truncate { path, size } => {
                let id = self.find(path).await?;
                fs.setattr(&USER, id, None, SetAttr { size: Some(*size), ..Default::default() }).await?.attr.into()
            }
            Mode { path, mode } => {
                let id = self.find(path).await?;
                fs.setattr(&USER, id, None, SetAttr { mode: Some(*mode), ..Default::default() }).await?.attr.into()
            }
            MakeNode { path, mode } => {
                let (parent, name) = self.parent(path).await?;
                let node = NewNode { kind: Kind::File, mode: *mode, umask: 0, rdev: 0 };
                fs.mknod(&USER, parent, &name, node).await?.attr.into()
            }
            MakeDirectory { path, mode } => {
                let (parent, name) = self.parent(path).await?;
                fs.mkdir(&USER, parent, &name, *mode, 0).await?.attr.into()
            }
            Symlink { path, target_len } => {
                let (parent, name) = self.parent(path).await?;
                fs.symlink(&USER, parent, &name, &vec![b't'; *target_len]).await?.attr.into()
            }
            Link { path, to } => {
                let id = self.find(path).await?;
                let (parent, name) = self.parent(to).await?;
                fs.link(&USER, id, parent, &name).await?.attr.into()
            }
            Unlink { path } => {
                let (parent, name) = self.parent(path).await?;
                fs.unlink(&USER, parent, &name).await?.into()
            }
            RemoveDirectory { path } => {
                let (parent, name) = self.parent(path).await?;
                fs.rmdir(&USER, parent, &name).await?.into()
            }
            Rename { path, to, flags } => {
                let (parent, name) = self.parent(path).await?;
                let (new_parent, new_name) = self.parent(to).await?;
                fs.rename(&USER, parent, &name, new_parent, &new_name, *flags).await?.into()
            }
            Stat { path } => fs.getattr(self.find(path).await?).await?.attr.into(),
            ReadLink { path } => {
                let entry = fs.getattr(self.find(path).await?).await?;
                if entry.attr.kind != Kind::Symlink {
                    return Ok(Seen::Skipped);
                }
                seen_bytes(&fs.readlink(entry.attr.id).await?)
            }
            List { path, page } => Seen::Names(list(&*fs, self.find(path).await?, *page).await?),
            SetXattr { path, name, len, mode } => {
                let id = self.find(path).await?;
                fs.setxattr(&USER, id, &xattr(*name), &data(*len as u64, *len as u64), *mode).await?.into()
            }
            GetXattr { path, name } => {
                let id = self.find(path).await?;
                seen_bytes(&fs.getxattr(&USER, id, &xattr(*name)).await?)
            }
            RemoveXattr { path, name } => {
                let id = self.find(path).await?;
                fs.removexattr(&USER, id, &xattr(*name)).await?.into()
            }
            ListXattr { path } => {
                let id = self.find(path).await?;
                let mut names = fs.listxattr(&USER, id).await?;
                names.sort();
                Seen::Xattrs(names)
            }
            Sync => fs.sync().await?.into(),
        })
    }
}

/// A hash that is the same in every run.
fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn xattr(number: u8) -> Vec<u8> {
    format!("user.x{number}").into()
}

fn seen_bytes(bytes: &[u8]) -> Seen {
    Seen::Bytes(bytes.len(), hash_bytes(bytes))
}

/// A whole directory, `page` entries at a time. A name that is listed twice is an error that no file system gives.
async fn list(fs: &dyn FileSystem, id: FileId, page: usize) -> Result<BTreeMap<Vec<u8>, Kind>, FsError> {
    let handle = fs.opendir(&USER, id).await?;
    let mut names = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let entries = fs.readdir(id, handle, cookie, page, page.is_multiple_of(2)).await?;
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        for entry in entries {
            if names.insert(entry.name, entry.kind).is_some() {
                return Err(FsError::NoLocks);
            }
        }
    }
    fs.releasedir(id, handle).await?;
    Ok(names)
}
