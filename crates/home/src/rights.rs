//! Which files a client is told of, and which it may claim. Other clients give up what they
//! have only for a user who may use it.

use crate::exported::Exported;
use crate::volume::{Reach, Volume};
use crate::whose::cred;
use roam_proto::message::User;
use roam_proto::volume_stamp::Since;
use std::collections::{BTreeSet, HashMap};
use types::{FileId, FsError};
use vfs::perm::{EXECUTE, WRITE};

impl Exported {
    /// Returns those of some files that a user can reach. The home does not even tell a client that
    /// other files have changed.
    pub(crate) async fn reached(&self, user: &User, files: Vec<FileId>) -> Vec<FileId> {
        let (mut reached, mut closed) = (Vec::new(), HashMap::new());
        for file in files {
            let unsure = |volume: &Volume| match volume.reach(user, file) {
                Reach::No => Some(None),
                Reach::Unsure => Some(volume.file(file)?.place().map(|(dir, _)| *dir)),
                Reach::Likely => None,
            };
            let is_reached = match self.with(unsure) {
                Ok(None) => true,
                Ok(Some(Some(dir))) => match closed.get(&dir) {
                    Some(is_closed) => !is_closed,
                    None => {
                        let is_closed = self.check_reach(&cred(user), dir).await == Err(FsError::AccessDenied);
                        closed.insert(dir, is_closed);
                        !is_closed
                    }
                },
                Ok(Some(None)) | Err(_) => false,
            };
            if is_reached {
                reached.push(file);
            }
        }
        reached
    }

    /// Filters what changed by what a user can reach.
    pub(crate) async fn since_seen(&self, user: &User, since: Since) -> Since {
        match since {
            Since::Changed { files, stamp } => Since::Changed { files: self.reached(user, files).await, stamp },
            since => since,
        }
    }

    /// Returns those of some files that a user may change in any way.
    pub(crate) async fn may_change_all(&self, user: &User, files: &BTreeSet<FileId>) -> BTreeSet<FileId> {
        let mut may = BTreeSet::new();
        for file in files {
            if self.may_change(user, *file).await {
                may.insert(*file);
            }
        }
        may
    }

    /// True if a user may change the bytes of a file, its attributes as its owner, or one of its
    /// names.
    pub(crate) async fn may_change(&self, user: &User, file: FileId) -> bool {
        let user = cred(user);
        let Ok(source) = self.source(file).await else { return false };
        if self.fs.access(&user, source, WRITE).await.is_ok() {
            return true;
        }
        if self.fs.getattr(source).await.is_ok_and(|entry| entry.attr.uid == user.uid) {
            return true;
        }
        let places = self.with(|volume| volume.file(file).map(|file| file.places.clone()));
        for (dir, _) in places.ok().flatten().unwrap_or_default() {
            if let Ok(dir) = self.source(dir).await
                && self.fs.access(&user, dir, WRITE | EXECUTE).await.is_ok()
            {
                return true;
            }
        }
        false
    }
}
