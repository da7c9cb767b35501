//! Opens files so that the kernel reads them itself (FUSE passthrough), if the kernel lets this
//! process offer that. `inodes` decides.

use crate::convert::{errno, file_attr};
use crate::inodes::{Inodes, Offer, Way};
use crate::validity::Validity;
use fuser::{BackingId, Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyCreate, ReplyOpen};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use types::{Attr, FileId, FsError};
use vfs::fs::{Entry, FileSystem, Handle};

/// Whether passthrough is on, and how the kernel has files open while it is.
pub(crate) struct Passing {
    /// Opens are counted only once this is set, and it is never cleared.
    is_on: AtomicBool,
    inodes: Mutex<Inodes<BackingId>>,
}

impl Passing {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Passing { is_on: AtomicBool::new(false), inodes: Mutex::new(Inodes::new()) })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Turns passthrough on if the kernel accepts backing files from this process. Call it before
    /// the first request is answered.
    pub(crate) fn begin(&self, kernel: &OwnedFd) {
        // The kernel checks rights first. A folder cannot be a backing file, so EISDIR or EINVAL
        // means that the rights were there.
        let refused = File::open("/").and_then(|folder| BackingId::create_raw(kernel, folder));
        let is_on = match &refused {
            Err(error) => matches!(error.raw_os_error(), Some(libc::EISDIR | libc::EINVAL)),
            Ok(_) => false,
        };
        tracing::debug!(is_on, said = ?refused.err(), "passthrough");
        self.is_on.store(is_on, Relaxed);
    }

    /// The file with this inode number.
    pub(crate) fn file(&self, inode: INodeNo) -> FileId {
        if self.is_on() { self.inodes.lock().file(inode.0) } else { FileId::new(inode.0) }
    }

    /// The inode number of a file.
    pub(crate) fn inode(&self, file: FileId) -> u64 {
        if self.is_on() { self.inodes.lock().inode(file) } else { file.raw() }
    }

    /// All inode numbers by which the kernel may know a file.
    pub(crate) fn all(&self, file: FileId) -> Vec<u64> {
        if self.is_on() { self.inodes.lock().all(file) } else { vec![file.raw()] }
    }

    /// Attributes of a file that was looked up.
    pub(crate) fn attr(&self, attr: &Attr) -> FileAttr {
        FileAttr { ino: INodeNo(self.inode(attr.id)), ..file_attr(attr) }
    }

    /// Attributes of a file, under the inode number that the kernel asked for.
    pub(crate) fn attr_of(&self, inode: INodeNo, attr: &Attr) -> FileAttr {
        let found = file_attr(attr);
        if self.file(inode) == attr.id { FileAttr { ino: inode, ..found } } else { found }
    }

    /// Counts one close of an inode.
    pub(crate) fn close(&self, inode: INodeNo) {
        if self.is_on() {
            let unused = self.inodes.lock().close(inode.0);
            drop(unused);
        }
    }
}

/// A reply to a request that opens a file: it can register a backing file.
trait Register {
    fn register(&self, file: &dyn AsFd) -> io::Result<BackingId>;
}

impl Register for ReplyOpen {
    fn register(&self, file: &dyn AsFd) -> io::Result<BackingId> {
        self.open_backing(file.as_fd())
    }
}

impl Register for ReplyCreate {
    fn register(&self, file: &dyn AsFd) -> io::Result<BackingId> {
        self.open_backing(file.as_fd())
    }
}

/// Answers opens.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) passing: Arc<Passing>,
    pub(crate) validity: Arc<Validity>,
    /// The flags of an open without a backing file.
    pub(crate) flags: FopenFlags,
    /// The program opened the file so that it can map it and store to the mapping.
    pub(crate) may_store: bool,
    /// Every read must reach the file system, for an observer.
    pub(crate) is_recorded: bool,
}

impl Opening {
    /// The flags of an open with a backing file: the page cache's flags must not be among them.
    fn backed_flags(&self) -> FopenFlags {
        self.flags & FopenFlags::FOPEN_NOFLUSH
    }

    /// Decides how the kernel opens a file that the file system has opened. On failure, closes the
    /// file.
    async fn way(
        &self,
        inode: INodeNo,
        file: FileId,
        handle: Handle,
        reply: &(impl Register + Sync),
    ) -> Result<Way<BackingId>, FsError> {
        if !self.passing.is_on() {
            return Ok(Way::Cached);
        }
        // Without a backing file, every read comes here.
        let backing = self.fs.backing(file, handle).await.unwrap_or(None);
        let offer = backing
            .as_ref()
            .map(|backing| Offer { number: backing.number, may_read: backing.may_read && !self.is_recorded });
        let register = || {
            let registered = reply.register(&*backing.as_ref()?.file);
            registered.inspect_err(|error| tracing::debug!(%error, "the kernel takes no backing file")).ok()
        };
        let way = self.passing.inodes.lock().open(inode.0, offer, register);
        if let (Way::Direct(_), true) = (&way, self.may_store)
            && let Err(error) = self.fs.will_be_mapped(file, handle).await
        {
            self.passing.close(inode);
            self.close(file, handle).await;
            return Err(error);
        }
        Ok(way)
    }

    async fn close(&self, file: FileId, handle: Handle) {
        if let Err(error) = self.fs.release(file, handle, None).await {
            tracing::debug!(%error, "closing what could not be opened");
        }
    }

    /// Answers an open after the file system has opened the file.
    pub(crate) async fn opened(self, reply: ReplyOpen, inode: INodeNo, file: FileId, handle: Handle) {
        let at = FileHandle(handle.0);
        match self.way(inode, file, handle, &reply).await {
            Ok(Way::Cached) => reply.opened(at, self.flags),
            Ok(Way::Passed(backing)) => reply.opened_passthrough(at, self.backed_flags(), &backing),
            Ok(Way::Direct(backing)) => {
                reply.opened_passthrough(at, self.backed_flags() | FopenFlags::FOPEN_DIRECT_IO, &backing);
            }
            Ok(Way::Elsewhere) => {
                self.close(file, handle).await;
                // The kernel looks the name up again, and finds the other inode.
                reply.error(Errno::ESTALE);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Answers a create after the file system has made and opened the file.
    pub(crate) async fn created(self, reply: ReplyCreate, entry: Entry, handle: Handle) {
        let (at, file) = (FileHandle(handle.0), entry.attr.id);
        loop {
            let attr = self.passing.attr(&entry.attr);
            let (valid, generation) = (&self.validity.whole_entry(entry.valid.min(entry.name_valid)), Generation(0));
            let flags = self.backed_flags();
            match self.way(attr.ino, file, handle, &reply).await {
                Ok(Way::Cached) => return reply.created(valid, &attr, generation, at, self.flags),
                Ok(Way::Passed(backing)) => {
                    return reply.created_passthrough(valid, &attr, generation, at, flags, &backing);
                }
                Ok(Way::Direct(backing)) => {
                    let flags = flags | FopenFlags::FOPEN_DIRECT_IO;
                    return reply.created_passthrough(valid, &attr, generation, at, flags, &backing);
                }
                Ok(Way::Elsewhere) => {}
                Err(error) => return reply.error(errno(error)),
            }
        }
    }
}
