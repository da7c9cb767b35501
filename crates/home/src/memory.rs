//! The model file system, as homes export it: for tests and simulated worlds. It outlives homes, as a disk does, and nobody but homes changes it
//! unless a test does and says so.

use crate::export::{Export, Listed, Noticed};
use bytes::Bytes;
use roam_wire::message::User;
use types::{Answer, BoxFuture, FileId, FsError};
use vfs::fs::{Cred, Entry, FileSystem};
use vfs::mem::MemFs;

/// A directory is listed in one go.
const COUNT_MAX: usize = usize::MAX;

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
                Ok((entry.name, Entry { attr, valid: std::time::Duration::ZERO }, identity(entry.id)))
            });
            listed.collect()
        })
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
