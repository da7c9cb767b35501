//! The home's own folder, in which it makes files before it moves them to their places.
//!
//! The folder is [beside](crate::export::Export::beside) the exported directory, if the file system
//! behind has such a place. Otherwise it is [`OWN`] at the root of the exported directory. There,
//! other programs may remove it at any time, so each use looks for it and makes it again.
//!
//! The folder belongs to the home's user and is closed to all others: a user who could write to it
//! could change what clients store, and one who could read it would see what clients upload. The
//! home puts nothing into another user's folder.
//!
//! A failure of the folder is [a failure of the home](crate::apply::Stop::HomeFailed) and never a
//! conflict: operations never get ENOENT or ESTALE because of the folder.

use crate::apply::Stop;
use crate::exported::Exported;
use types::{FileId, FsError, Kind};
use vfs::fs::{Entry, Handle, OpenFlags, SetAttr};

/// The name of the home's own folder at the root of the exported directory. Clients do not see it.
pub(crate) const OWN: &[u8] = b".starling";
/// The rights of all users but the owner.
const OF_OTHERS: u32 = 0o077;

const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };

/// An open file that the home has made in its own folder.
pub(crate) struct OwnFile {
    /// The folder at that time.
    pub(crate) dir: FileId,
    pub(crate) name: String,
    pub(crate) id: FileId,
    pub(crate) handle: Handle,
}

/// Returns the name of the copy of what was there before a store that changes a file in place.
pub(crate) fn before_name(author: u32, seq: u64) -> String {
    format!("before-{author}-{seq}")
}

/// Converts an error of the folder that another program has just removed: the next try makes it
/// again.
fn of_home(error: FsError) -> FsError {
    match error {
        FsError::NotFound | FsError::Stale | FsError::NotADirectory => FsError::TimedOut,
        error => error,
    }
}

impl Exported {
    /// Returns the home's own folder. EPERM if it belongs to another user.
    pub(crate) async fn own(&self) -> Result<FileId, FsError> {
        self.find_own().await.map_err(of_home)
    }

    async fn find_own(&self) -> Result<FileId, FsError> {
        let superuser = self.fs.superuser();
        let Entry { attr, .. } = match self.fs.beside() {
            Some(folder) => self.fs.getattr(folder).await?,
            None => match self.fs.lookup(&superuser, FileId::ROOT, OWN).await {
                Err(FsError::NotFound) => self.fs.mkdir(&superuser, FileId::ROOT, OWN, 0o700, 0).await?,
                found => found?,
            },
        };
        if attr.kind != Kind::Directory || attr.uid != superuser.uid {
            tracing::warn!(volume = self.name, owner = attr.uid, "the home's own folder belongs to another user");
            return Err(FsError::NotPermitted);
        }
        if attr.mode & OF_OTHERS != 0 {
            let closed = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            self.fs.setattr(&superuser, attr.id, None, closed).await?;
        }
        Ok(attr.id)
    }

    /// Makes an empty file in the home's own folder, in place of one of this name.
    pub(crate) async fn make_own(&self, name: String) -> Result<OwnFile, FsError> {
        let (superuser, dir) = (self.fs.superuser(), self.own().await?);
        match self.fs.unlink(&superuser, dir, name.as_bytes()).await {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(of_home(error)),
        }
        let made = self.fs.create(&superuser, dir, name.as_bytes(), 0o600, 0, READ_WRITE).await;
        let (entry, handle) = made.map_err(of_home)?;
        Ok(OwnFile { dir, name, id: entry.attr.id, handle })
    }

    /// Removes a file from the home's own folder, if it is there. If this fails, the next start
    /// removes it.
    pub(crate) async fn remove_own(&self, name: &str) {
        if let Ok(dir) = self.own().await {
            let _ = self.fs.unlink(&self.fs.superuser(), dir, name.as_bytes()).await;
        }
    }

    /// Removes all that earlier runs have left, except for copies of files that they may have
    /// changed in part.
    pub(crate) async fn clear_own(&self) -> Result<(), FsError> {
        let superuser = self.fs.superuser();
        let own = self.own().await?;
        let kept = self.kept_before.lock().clone();
        let kept: Vec<String> = kept.into_iter().map(|(author, seq)| before_name(author, seq)).collect();
        for (name, entry, _) in self.fs.list(own).await? {
            if entry.attr.kind != Kind::Directory && !kept.iter().any(|kept| kept.as_bytes() == name) {
                self.fs.unlink(&superuser, own, &name).await?;
            }
        }
        if self.fs.beside().is_some() {
            // The home no longer uses this folder. If it is not empty, other programs' files are in
            // it.
            let _ = self.fs.rmdir(&superuser, FileId::ROOT, OWN).await;
        }
        Ok(())
    }

    /// True if the home's own folder is at the root of the exported directory.
    pub(crate) async fn is_own_within(&self) -> bool {
        let found = self.fs.lookup(&self.fs.superuser(), FileId::ROOT, OWN).await;
        found.is_ok_and(|found| found.attr.kind == Kind::Directory)
    }

    /// True if a name in a directory is that of the home's own folder.
    pub(crate) fn is_own(&self, dir: FileId, name: &[u8]) -> bool {
        name == OWN && self.root().is_ok_and(|root| root == dir)
    }
}

impl OwnFile {
    /// Explains why a file of the home's own folder could not be moved to a place.
    pub(crate) async fn not_moved(&self, volume: &Exported, error: FsError) -> Stop {
        if !matches!(error, FsError::NotFound | FsError::Stale) {
            return error.into();
        }
        match volume.fs.identified(self.dir, self.name.as_bytes()).await {
            Ok((there, _)) if there.attr.id == self.id => FsError::Stale.into(),
            // The file was removed, not what is at the place.
            _ => Stop::HomeFailed(FsError::TimedOut),
        }
    }
}
