//! Tells an observer what programs do with the contents of files.
//!
//! While the observer is off, a request costs one call that reads a flag. While it is on, files are
//! opened so that every read reaches the file system: without passthrough, and without the kernel's
//! cached pages. Files that were open before stay as they were.

use std::fmt::Debug;
use std::sync::Arc;
use types::{Answer, Attr, FileId, Kind};
use vfs::fs::{Cred, Entry, FileSystem};

/// What a program did with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It read these bytes.
    Read {
        /// The first byte.
        offset: u64,
        /// How many; more than none.
        len: u64,
    },
    /// It wrote these bytes.
    Write {
        /// The first byte.
        offset: u64,
        /// How many; more than none.
        len: u64,
    },
    /// It removed the last name of the file, or emptied the file.
    Delete,
}

/// Receives what programs do with files in a mount; see
/// [`MountOptions::observer`](crate::MountOptions::observer).
pub trait Observer: Debug + Send + Sync + 'static {
    /// True while the observer wants to receive accesses.
    fn is_on(&self) -> bool;
    /// Receives one access of a program. Must not wait.
    fn on_access(&self, file: FileId, access: Access);
    /// Says that the mount has ended. No more calls follow.
    fn on_end(&self);
}

/// An observer that was on when a request came.
#[derive(Clone)]
pub(crate) struct Observing(Arc<dyn Observer>);

impl Observing {
    /// `None` if there is no observer, or it is off.
    pub(crate) fn by(observer: Option<&Arc<dyn Observer>>) -> Option<Observing> {
        observer.filter(|observer| observer.is_on()).map(|observer| Observing(Arc::clone(observer)))
    }

    /// Records that a file was removed or emptied; nothing for `None`.
    pub(crate) fn note_removed(&self, file: Option<FileId>) {
        file.into_iter().for_each(|file| self.0.on_access(file, Access::Delete));
    }

    /// Records a read, unless it read nothing.
    pub(crate) fn note_read(&self, file: FileId, offset: u64, len: u64) {
        if len > 0 {
            self.0.on_access(file, Access::Read { offset, len });
        }
    }

    /// Records a write, unless it wrote nothing.
    pub(crate) fn note_write(&self, file: FileId, offset: u64, len: u64) {
        if len > 0 {
            self.0.on_access(file, Access::Write { offset, len });
        }
    }
}

/// The file with this name, if it has no other name, so that removing the name removes the file.
pub(crate) async fn only_name(fs: &Arc<dyn FileSystem>, cred: &Cred, parent: FileId, name: &[u8]) -> Option<FileId> {
    let found = attr_of(fs.lookup(cred, parent, name)).await?;
    (found.kind == Kind::File && found.nlink <= 1).then_some(found.id)
}

/// True if a file has bytes, so that emptying it removes them.
pub(crate) async fn has_bytes(fs: &Arc<dyn FileSystem>, file: FileId) -> bool {
    attr_of(fs.getattr(file)).await.is_some_and(|found| found.kind == Kind::File && found.size > 0)
}

async fn attr_of(answer: Answer<Entry>) -> Option<Attr> {
    Some(answer.await.ok()?.attr)
}
