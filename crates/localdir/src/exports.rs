//! What homes need besides the [`FileSystem`](vfs::fs::FileSystem) trait: above all, identities
//! that last.
//!
//! Except where a caller's identity is an argument, nothing here checks permissions: the homes have
//! done so.

use crate::alias::alias;
use crate::filesystem::{LISTING_LEN, check_name};
use crate::identity::FileIdentity;
use crate::stat::error;
use crate::volume::Parent;
use crate::{Inner, LocalDir};
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Statx, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use types::{Answer, FileId, FsError, Time};
use vfs::fs::{At, Cred, Entry};

/// A new file with all its contents.
pub struct WholeFile {
    /// The lower twelve bits of the mode.
    pub mode: u32,
    /// Owner and group, which only root can give.
    pub owner: (u32, u32),
    /// Last access, and last change of contents.
    pub times: (Time, Time),
    /// Length in bytes.
    pub size: u64,
    /// Bytes, each piece with its offset. All else is zeroes.
    pub pieces: Vec<(u64, Bytes)>,
}

impl LocalDir {
    /// Makes an open file share all bytes of another. EOPNOTSUPP where the file system cannot.
    pub fn clone_file(&self, from: At, to: At) -> Answer<()> {
        self.later(move |dir| dir.share(from, to))
    }

    /// Returns an identity that outlasts restarts: equal for the same file wherever it is moved,
    /// and different for another file with the same inode number. At most
    /// [`IDENTITY_LEN_MAX`](crate::identity::IDENTITY_LEN_MAX) bytes, for comparison only.
    ///
    /// It is the file's [`FileIdentity`] with the file system's id or UUID in place of the device
    /// number, which changes when Linux finds disks in another order; see
    /// [`volume`](crate::volume). Limits:
    ///
    /// - Where there is only the device number, files may seem to be other ones after a restart of
    ///   the system.
    /// - Where handles do not last (FAT, FUSE), they may seem so after any restart.
    /// - Copies of a file system with the same UUID are taken for one another.
    pub fn identity(&self, id: FileId) -> Answer<Bytes> {
        self.later(move |dir| Ok(dir.identified(id)?.1))
    }

    /// Looks up a name as this process. Returns the entry with its identity.
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

    /// Makes a file as a user at a free name, with all its contents. The name appears when the file
    /// is complete. EEXIST; EOPNOTSUPP where the file system has no unnamed files.
    pub fn make_whole(&self, cred: &Cred, parent: FileId, name: &[u8], whole: WholeFile) -> Answer<(Entry, Bytes)> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| dir.make_whole(&cred, parent, &name, &whole))
    }

    /// Lists a directory, with identities, without `.` and `..`. An entry that another program
    /// renames meanwhile may appear twice or not at all. Fails if one of the files cannot be looked
    /// at: left out, it would seem removed.
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
        let (identity, stat) = FileIdentity::seen(file.as_fd()).map_err(error)?;
        let lasting = self.lasting(&file, &identity, &stat, parent)?;
        Ok((self.entry(identity, &stat, None), lasting))
    }

    fn make_whole(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        whole: &WholeFile,
    ) -> Result<(Entry, Bytes), FsError> {
        check_name(name)?;
        let dir = self.file(parent)?;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let made = self.act(cred, || {
            rustix::fs::openat(&dir, c".", flags, Mode::from_raw_mode(whole.mode & 0o7777)).map_err(|errno| match errno
            {
                // The errors of file systems and kernels without unnamed files.
                Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT => FsError::NotSupported,
                errno => error(errno),
            })
        })?;
        for (offset, bytes) in &whole.pieces {
            let (mut at, mut rest) = (*offset, &bytes[..]);
            while !rest.is_empty() {
                let written = rustix::io::pwrite(&made, rest, at).map_err(error)?;
                (at, rest) = (at + written as u64, &rest[written..]);
            }
        }
        let mut stat = rustix::fs::fstat(&made).map_err(error)?;
        if stat.st_size as u64 != whole.size {
            rustix::fs::ftruncate(&made, whole.size).map_err(error)?;
        }
        if cred.uid == 0 && whole.owner != (stat.st_uid, stat.st_gid) {
            let (uid, gid) = (Uid::from_raw(whole.owner.0), Gid::from_raw(whole.owner.1));
            rustix::fs::fchown(&made, Some(uid), Some(gid)).map_err(error)?;
            // Changing the owner cleared the set-id bits.
            stat.st_mode &= !0o7777;
        }
        if stat.st_mode & 0o7777 != whole.mode & 0o7777 && cred.uid == 0 {
            rustix::fs::fchmod(&made, Mode::from_raw_mode(whole.mode & 0o7777)).map_err(error)?;
        }
        let time = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
        let (atime, mtime) = whole.times;
        let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
        rustix::fs::futimens(&made, &times).map_err(error)?;
        // As soon as the file has a name, other programs may change it.
        let stat = rustix::fs::fstat(&made).map_err(error)?;
        let (size, mtime) = (stat.st_size as u64, Time { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 });
        self.act(cred, || rustix::fs::linkat(CWD, alias(&made), &dir, name, AtFlags::SYMLINK_FOLLOW).map_err(error))?;
        self.touched(&dir)?;
        let (identity, stat) = FileIdentity::seen(made.as_fd()).map_err(error)?;
        let lasting = self.lasting(&made, &identity, &stat, || Some(dir.clone()))?;
        let mut entry = self.entry(identity, &stat, Some((parent, name.to_vec())));
        (entry.attr.size, entry.attr.mtime) = (size, mtime);
        Ok((entry, lasting))
    }

    /// Looks up a name in an open directory, with the identity.
    fn identified_at(&self, dir: &Arc<OwnedFd>, parent: FileId, name: &[u8]) -> Result<(Entry, Bytes), FsError> {
        // Opened once, so that attributes and identity are of one file, even if another takes its
        // name meanwhile.
        let file = self.at(dir, parent, name)?;
        let (identity, stat) = FileIdentity::seen(file.as_fd()).map_err(error)?;
        let lasting = self.lasting(&file, &identity, &stat, || Some(dir.clone()))?;
        Ok((self.entry(identity, &stat, Some((parent, name.to_vec()))), lasting))
    }

    fn lasting(
        &self,
        file: &OwnedFd,
        identity: &FileIdentity,
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
