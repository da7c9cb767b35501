//! Directories of this machine, as homes export them.

use crate::export::{Export, Listed, Noticed, Whole};
use bytes::Bytes;
use localdir::LocalDir;
use localdir::users::Account;
use roam_proto::message::User;
use types::{Answer, BoxFuture, FileId, FsError};
use vfs::fs::{At, Cred, Entry};

impl Export for LocalDir {
    /// The process's own user. Only root can act as other users.
    fn superuser(&self) -> Cred {
        self.own_cred()
    }

    fn beside(&self) -> Option<FileId> {
        LocalDir::beside(self)
    }

    fn identity(&self, id: FileId) -> Answer<Bytes> {
        LocalDir::identity(self, id)
    }

    fn identified(&self, parent: FileId, name: &[u8]) -> Answer<(Entry, Bytes)> {
        LocalDir::identified(self, parent, name)
    }

    fn list(&self, dir: FileId) -> Answer<Vec<Listed>> {
        LocalDir::list(self, dir)
    }

    fn watch(&self, dir: FileId) -> Answer<()> {
        let (local, watched) = (self.clone(), LocalDir::watch(self, dir));
        Answer::later(async move {
            watched.await.map_err(|error| {
                if local.is_news(error) {
                    tracing::warn!(%error, "changes by other programs in some directories are noticed only now and then");
                }
                FsError::Io
            })
        })
    }

    fn user(&self, uid: u32) -> Answer<Option<User>> {
        let account = self.account(uid);
        Answer::later(async move { Ok(account.await?.map(|Account { uid, gid, groups }| User { uid, gid, groups })) })
    }

    fn file_len_max(&self) -> Answer<u64> {
        LocalDir::file_len_max(self)
    }

    fn clone_file(&self, from: At, to: At) -> Answer<()> {
        LocalDir::clone_file(self, from, to)
    }

    fn make_whole(&self, cred: &Cred, dir: FileId, name: &[u8], whole: Whole) -> Answer<(Entry, Bytes)> {
        let Whole { mode, owner, atime, mtime, size, pieces } = whole;
        LocalDir::make_whole(
            self,
            cred,
            dir,
            name,
            localdir::WholeFile { mode, owner, times: (atime, mtime), size, pieces },
        )
    }

    fn together(&self, work: BoxFuture<()>) -> BoxFuture<()> {
        LocalDir::together(self, work)
    }

    fn noticed(&self) -> BoxFuture<Noticed> {
        let noticed = LocalDir::noticed(self);
        Box::pin(async move {
            match noticed.await {
                localdir::DirNotice::Entry(dir, name, names_changed) => Noticed::Entry { dir, name, names_changed },
                localdir::DirNotice::Directory(dir) => Noticed::Directory(dir),
                localdir::DirNotice::Lost => Noticed::Lost,
            }
        })
    }
}
