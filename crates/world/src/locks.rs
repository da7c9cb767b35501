//! The kernel's locks: who waits for whom before a request reaches the file system.
//!
//! As in Linux 6.18, with a mount like ours (FUSE_PARALLEL_DIROPS, no write-back cache):
//!
//! - Each inode has a lock (`i_rwsem`). Exclusively for it: write, truncate, chmod, chown, utimens,
//!   fallocate, SEEK_DATA and SEEK_HOLE, fsync, setting and removing extended attributes, and being
//!   the target of copy_file_range.
//! - A directory's, exclusively: making, linking, removing and renaming names in it; shared:
//!   looking up what the kernel does not know, and listing. Then also exclusively that of the file
//!   or directory that loses a name or gets another.
//! - rename between directories has the file system's rename lock first, then both directories, an
//!   ancestor before its descendant, then the directories that move or vanish, then files, by id.
//! - No lock: stat, read (of pages or by READ), open (with O_TRUNC too, which FUSE passes on),
//!   access, readlink, reading extended attributes. They overlap with everything, writes and
//!   truncates of the same file too.
//! - close does not wait for its RELEASE.
//!
//! One lock is made up. copy_file_range does not keep its source from changing, so that a copy
//! beside a write to its source may have some of both, and nobody could say which copies are wrong.
//! Here a copy waits for changes of its source, and they for it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::RwLock;
use types::FileId;

/// Whoever drops it lets others in.
pub type Held = Box<dyn Send>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Inode(FileId),
    /// Held shared by whoever changes a file's contents, exclusively by whoever copies from it.
    Contents(FileId),
}

/// All locks of one kernel. Waiting is in the order of arrival.
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

    /// Times somebody had to wait for an inode's lock.
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
        // By id, so that two that copy to each other's source do not wait for ever.
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
