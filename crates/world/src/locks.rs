//! The kernel's locks: they decide which requests wait for others before they reach the file
//! system.
//!
//! They follow Linux 6.18, with a mount like Starling's (FUSE_PARALLEL_DIROPS, no write-back
//! cache):
//!
//! - Each inode has a lock (`i_rwsem`). These take it exclusively: write, truncate, chmod, chown,
//!   utimens, fallocate, SEEK_DATA and SEEK_HOLE, fsync, setting and removing extended attributes,
//!   and copy_file_range for its target.
//! - These take a directory's lock exclusively: making, linking, removing and renaming names in it.
//!   They then also take the lock of the file or directory that loses a name or gets another,
//!   exclusively. These take a directory's lock shared: looking up names that the kernel does not
//!   know, and listing.
//! - A rename between directories takes the file system's rename lock first, then both directories,
//!   an ancestor before its descendant, then the directories that move or vanish, then files, by
//!   id.
//! - These take no lock: stat, read (of pages or by READ), open (also with O_TRUNC, which FUSE
//!   passes on), access, readlink, reading extended attributes. They overlap with everything, also
//!   with writes and truncates of the same file.
//! - close does not wait for its RELEASE.
//!
//! One lock does not exist in Linux. There, copy_file_range does not keep its source from changing.
//! A copy beside a write to its source may have some of both, and the model could not tell which
//! copies are wrong. Here a copy waits for changes of its source, and they wait for it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::RwLock;
use types::FileId;

/// A lock that is held; dropping it releases the lock.
pub type Held = Box<dyn Send>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Inode(FileId),
    /// Changes of a file's contents hold it shared; a copy from the file holds it exclusively.
    Contents(FileId),
}

/// All locks of one kernel. Waiting requests get a lock in the order of arrival.
#[derive(Default)]
pub struct Locks {
    each: Mutex<BTreeMap<Which, Arc<RwLock<()>>>>,
    rename: Arc<tokio::sync::Mutex<()>>,
    wait_count: AtomicU64,
}

impl Locks {
    fn at(&self, which: Which) -> Arc<RwLock<()>> {
        self.each.lock().entry(which).or_default().clone()
    }

    /// Times that a request had to wait for an inode's lock.
    pub fn wait_count(&self) -> u64 {
        self.wait_count.load(Relaxed)
    }

    /// An inode's lock, shared.
    pub async fn shared(&self, id: FileId) -> Held {
        let lock = self.at(Which::Inode(id));
        if let Ok(held) = lock.clone().try_read_owned() {
            return Box::new(held);
        }
        self.wait_count.fetch_add(1, Relaxed);
        Box::new(lock.read_owned().await)
    }

    /// An inode's lock, exclusively.
    pub async fn exclusive(&self, id: FileId) -> Held {
        let lock = self.at(Which::Inode(id));
        if let Ok(held) = lock.clone().try_write_owned() {
            return Box::new(held);
        }
        self.wait_count.fetch_add(1, Relaxed);
        Box::new(lock.write_owned().await)
    }

    /// Keeps a file's contents from being copied.
    pub async fn changing(&self, id: FileId) -> Held {
        Box::new(self.at(Which::Contents(id)).read_owned().await)
    }

    /// Keeps the contents of `from` from changing, and those of `to` from being copied.
    pub async fn copying(&self, from: FileId, to: FileId) -> Held {
        let source = || self.at(Which::Contents(from)).write_owned();
        if from == to {
            return Box::new(source().await);
        }
        // In the order of ids, so that two copies to each other's source do not deadlock.
        if from < to {
            Box::new((source().await, self.changing(to).await))
        } else {
            Box::new((self.changing(to).await, source().await))
        }
    }

    /// The file system's rename lock.
    pub async fn rename(&self) -> Held {
        Box::new(self.rename.clone().lock_owned().await)
    }
}
