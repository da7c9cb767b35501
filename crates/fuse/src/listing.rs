//! Fills one reply of READDIR or READDIRPLUS with entries, in several reads of the directory if
//! needed.

use crate::convert::{bare_attr, errno, file_type};
use crate::passing::Passing;
use crate::validity::Validity;
use fuser::{Errno, FileAttr, Generation, INodeNo, Notifier, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use types::{FileId, FsError, Kind};
use vfs::fs::{DirEntry, FileSystem, Handle};

/// Entries per read of the directory. fuser does not tell how many bytes the kernel has room for (4
/// KiB to 1 MiB), and entries that do not fit are read in vain. A plus entry takes about 170 bytes,
/// so a batch is a third of the 32 KiB that getdents(2) asks for.
const BATCH: usize = 64;

/// One listing: its directory, where it starts, and how long its entries may be cached.
pub(crate) struct Listing {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) passing: Arc<Passing>,
    pub(crate) validity: Arc<Validity>,
    pub(crate) id: FileId,
    pub(crate) handle: Handle,
    pub(crate) cookie: u64,
    pub(crate) valid: Duration,
    /// The inode whose listing the kernel must forget when this reply ends it.
    pub(crate) forget: Option<(Arc<OnceLock<Notifier>>, INodeNo)>,
}

/// The two forms of reply.
pub(crate) trait ListingReply: Send + 'static {
    /// Whether entries carry attributes.
    const PLUS: bool;
    /// Adds an entry; true if it did not fit.
    fn add(&mut self, entry: &DirEntry, attr: &FileAttr, valid: Duration) -> bool;
    /// Sends what was added.
    fn ok(self);
    /// Sends a failure.
    fn error(self, errno: Errno);
}

impl ListingReply for ReplyDirectory {
    const PLUS: bool = false;
    fn add(&mut self, entry: &DirEntry, attr: &FileAttr, _: Duration) -> bool {
        let name = OsStr::from_bytes(&entry.name);
        ReplyDirectory::add(self, attr.ino, entry.cookie, file_type(entry.kind), name)
    }
    fn ok(self) {
        ReplyDirectory::ok(self);
    }
    fn error(self, errno: Errno) {
        ReplyDirectory::error(self, errno);
    }
}

impl ListingReply for ReplyDirectoryPlus {
    const PLUS: bool = true;
    fn add(&mut self, entry: &DirEntry, attr: &FileAttr, valid: Duration) -> bool {
        let name = OsStr::from_bytes(&entry.name);
        ReplyDirectoryPlus::add(self, attr.ino, entry.cookie, name, &valid, attr, Generation(0))
    }
    fn ok(self) {
        ReplyDirectoryPlus::ok(self);
    }
    fn error(self, errno: Errno) {
        ReplyDirectoryPlus::error(self, errno);
    }
}

impl Listing {
    /// Fills and sends `reply`. A failure after some entries ends the reply early. The kernel then
    /// asks again, and gets the error.
    pub(crate) async fn send<R: ListingReply>(mut self, mut reply: R) {
        let mut added = 0usize;
        let filled = self.fill(&mut reply, &mut added).await;
        if added == 0
            && let Some((kernel, inode)) = &self.forget
            && let Some(Err(error)) = kernel.get().map(|kernel| kernel.inval_inode(*inode, 0, 0))
        {
            // The kernel has cached none of it.
            tracing::debug!(%error, "the kernel was told to forget a listing");
        }
        match filled {
            Err(error) if added == 0 => reply.error(errno(error)),
            Ok(()) | Err(_) => reply.ok(),
        }
    }

    async fn fill<R: ListingReply>(&mut self, reply: &mut R, added: &mut usize) -> Result<(), FsError> {
        loop {
            let entries = self.fs.readdir(self.id, self.handle, self.cookie, BATCH, R::PLUS).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                self.cookie = entry.cookie;
                let Some((attr, valid)) = self.attr_of::<R>(&entry).await? else { continue };
                if reply.add(&entry, &attr, valid) {
                    return Ok(());
                }
                *added += 1;
            }
        }
    }

    /// The attributes of an entry; `None` if a plus entry has vanished since it was listed.
    async fn attr_of<R: ListingReply>(&self, entry: &DirEntry) -> Result<Option<(FileAttr, Duration)>, FsError> {
        // For `.` and `..`, and in plain listings, the kernel keeps only name, id and kind.
        if !R::PLUS || entry.name == b"." || entry.name == b".." {
            return Ok(Some((bare_attr(self.passing.inode(entry.id), entry.kind), Duration::ZERO)));
        }
        if let Some(attr) = &entry.attr {
            return Ok(Some((self.passing.attr(attr), self.validity.whole_entry(self.valid))));
        }
        // fuser cannot encode an entry without attributes, so they must be fetched.
        match self.fs.getattr(entry.id).await {
            Ok(found) => {
                Ok(Some((self.passing.attr(&found.attr), self.validity.whole_entry(found.valid.min(found.name_valid)))))
            }
            Err(FsError::NotFound | FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The attributes of a name that does not exist. Id 0 means that, and the kernel may cache it.
pub(crate) fn nothing() -> FileAttr {
    bare_attr(0, Kind::File)
}
