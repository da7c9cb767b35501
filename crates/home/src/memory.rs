//! The model file system, as homes export it, for tests and simulated worlds. It outlives homes, as
//! a disk does. Only homes change it, unless a test says otherwise.

use crate::export::{Export, Listed, Noticed, Whole};
use bytes::Bytes;
use roam_proto::message::User;
use types::{Answer, BoxFuture, FileId, FsError};
use vfs::fs::{Cred, Entry, FileSystem, OpenFlags, SetAttr, SetTime};
use vfs::mem::MemFs;

/// A directory is listed in one call.
const COUNT_MAX: usize = usize::MAX;

/// The model answers at once.
fn now<T>(answer: Answer<T>) -> Result<T, FsError> {
    match answer {
        Answer::Now(result) => result,
        Answer::Later(_) => Err(FsError::Io),
    }
}

fn identity(id: FileId) -> Bytes {
    Bytes::copy_from_slice(&id.raw().to_le_bytes())
}

impl Export for MemFs {
    fn superuser(&self) -> Cred {
        Cred::ROOT
    }

    fn identity(&self, id: FileId) -> Answer<Bytes> {
        match self.getattr(id) {
            Answer::Now(known) => Answer::Now(known.map(|entry| identity(entry.attr.id))),
            Answer::Later(_) => Answer::err(FsError::Io),
        }
    }

    fn identified(&self, parent: FileId, name: &[u8]) -> Answer<(Entry, Bytes)> {
        match self.lookup(&Cred::ROOT, parent, name) {
            Answer::Now(found) => Answer::Now(found.map(|entry| (entry, identity(entry.attr.id)))),
            Answer::Later(_) => Answer::err(FsError::Io),
        }
    }

    fn list(&self, dir: FileId) -> Answer<Vec<Listed>> {
        let opened = self.opendir(&Cred::ROOT, dir).into_future();
        let fs = self.clone();
        Answer::later(async move {
            let handle = opened.await?;
            let entries = fs.readdir(dir, handle, 0, COUNT_MAX, true).await;
            fs.releasedir(dir, handle).await?;
            let entries = entries?.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..");
            let listed = entries.map(|entry| {
                let attr = entry.attr.ok_or(FsError::Io)?;
                Ok((entry.name, Entry::new(attr, std::time::Duration::ZERO), identity(entry.id)))
            });
            listed.collect()
        })
    }

    fn make_whole(&self, cred: &Cred, dir: FileId, name: &[u8], whole: Whole) -> Answer<(Entry, Bytes)> {
        let made = || {
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let (entry, handle) = now(self.create(cred, dir, name, whole.mode, 0, flags))?;
            let id = entry.attr.id;
            now(self.setattr(cred, id, Some(handle), SetAttr { size: Some(whole.size), ..SetAttr::default() }))?;
            for (offset, bytes) in &whole.pieces {
                now(self.write(&Cred::ROOT, id, handle, *offset, bytes))?;
            }
            if cred.uid == 0 && whole.owner != (entry.attr.uid, entry.attr.gid) {
                let (uid, gid) = (Some(whole.owner.0), Some(whole.owner.1));
                now(self.setattr(cred, id, None, SetAttr { uid, gid, ..SetAttr::default() }))?;
                now(self.setattr(cred, id, None, SetAttr { mode: Some(whole.mode), ..SetAttr::default() }))?;
            }
            let (atime, mtime) = (Some(SetTime::At(whole.atime)), Some(SetTime::At(whole.mtime)));
            let entry = now(self.setattr(cred, id, None, SetAttr { atime, mtime, ..SetAttr::default() }))?;
            now(self.release(id, handle, None))?;
            Ok((entry, identity(id)))
        };
        Answer::Now(made())
    }

    fn watch(&self, _: FileId) -> Answer<()> {
        Answer::ok(())
    }

    fn user(&self, _: u32) -> Answer<Option<User>> {
        Answer::ok(None)
    }

    fn noticed(&self) -> BoxFuture<Noticed> {
        Box::pin(std::future::pending())
    }
}
