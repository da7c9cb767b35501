//! What homes ask besides the [`FileSystem`](vfs::fs::FileSystem) trait: files with identities that last.
//!
//! Nothing here checks permissions: the homes have done so.

use crate::filesystem::{LISTING_LEN, check_name};
use crate::identity::Identity;
use crate::stat::error;
use crate::volume::Parent;
use crate::{Inner, LocalDir};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags, RawDir, Statx};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use types::{Answer, FileId, FsError};
use vfs::fs::{At, Entry};

impl LocalDir {
    /// Makes an open file share all bytes of another. EOPNOTSUPP where files cannot.
    pub fn clone_file(&self, from: At, to: At) -> Answer<()> {
        self.later(move |dir| dir.share(from, to))
    }

    /// What tells this file from all others, over restarts, too: equal for the same file wherever it is moved, and different for another
    /// one, whose inode may have the same number. At most [`IDENTITY_LEN_MAX`](crate::identity::IDENTITY_LEN_MAX) bytes, to be compared only.
    ///
    /// It is the file's [`Identity`] with the file system's id or UUID in place of the device number, which changes when disks are found in another
    /// order; see [`volume`](crate::volume) for which, and why. Where there is only the device number, files may be other ones after a restart of the
    /// system. Where handles do not last (FAT, FUSE), they may be so after any restart. Copies of a file system with the same UUID are
    /// taken for one another.
    pub fn identity(&self, id: FileId) -> Answer<Bytes> {
        self.later(move |dir| Ok(dir.identified(id)?.1))
    }

    /// Looks up a name as this process, and says the identity, too.
    pub fn identified(&self, parent: FileId, name: &[u8]) -> Answer<(Entry, Bytes)> {
        let name = name.to_vec();
        self.later(move |dir| match &name[..] {
            b"" => Err(FsError::NotFound),
            b"." => dir.identified(parent),
            b".." => dir.identified(dir.parent_of(parent)),
            _ => {
                check_name(&name)?;
                dir.identified_at(&dir.file(parent)?, parent, &name)
            }
        })
    }

    /// All of a directory but `.` and `..`, with identities. What others rename meanwhile may be there twice or not at all; each entry was
    /// true when it was looked at. Errs if one of the files cannot be looked at: left out, it would seem removed.
    pub fn list(&self, dir: FileId) -> Answer<Vec<(Vec<u8>, Entry, Bytes)>> {
        self.later(move |local| local.list(dir))
    }
}

impl Inner {
    fn identified(&self, id: FileId) -> Result<(Entry, Bytes), FsError> {
        let file = self.file(id)?;
        let parent = || {
            let place = self.nodes.lock().place(id).cloned();
            self.file(place?.0).ok()
        };
        let (identity, stat) = Identity::seen(file.as_fd()).map_err(error)?;
        let lasting = self.lasting(&file, &identity, &stat, parent)?;
        Ok((self.entry(identity, &stat, None), lasting))
    }

    /// What is at a name of an open directory.
    fn identified_at(&self, dir: &Arc<OwnedFd>, parent: FileId, name: &[u8]) -> Result<(Entry, Bytes), FsError> {
        // Opened once, so that attributes and identity are of one file whatever takes its name meanwhile.
        let file = self.at(dir, parent, name)?;
        let (identity, stat) = Identity::seen(file.as_fd()).map_err(error)?;
        let lasting = self.lasting(&file, &identity, &stat, || Some(dir.clone()))?;
        Ok((self.entry(identity, &stat, Some((parent, name.to_vec()))), lasting))
    }

    fn lasting(
        &self,
        file: &OwnedFd,
        identity: &Identity,
        stat: &Statx,
        parent: impl Parent,
    ) -> Result<Bytes, FsError> {
        Ok(identity.lasting(&self.volumes.of(file.as_fd(), stat, parent).map_err(error)?, stat))
    }

    fn list(&self, id: FileId) -> Result<Vec<(Vec<u8>, Entry, Bytes)>, FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Arc::new(rustix::fs::openat(self.file(id)?, c".", flags, Mode::empty()).map_err(error)?);
        let (mut entries, mut buffer) = (Vec::new(), Vec::with_capacity(LISTING_LEN));
        let mut listing = RawDir::new(&dir, buffer.spare_capacity_mut());
        while let Some(found) = listing.next() {
            let found = found.map_err(error)?;
            let name = found.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            match self.identified_at(&dir, id, name) {
                Ok((entry, identity)) => entries.push((name.to_vec(), entry, identity)),
                Err(FsError::NotFound) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(entries)
    }
}
