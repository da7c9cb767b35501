//! Has the kernel forget the contents and attributes of files, on a thread of its own: the kernel makes it wait for pages that are locked
//! until requests are answered, so no thread that answers requests may ask for this.

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;

/// Inodes that callers who can wait let pile up.
const WAITING_MAX: usize = 1024;

#[derive(Default)]
struct Waiting {
    inodes: BTreeSet<u64>,
    ended: bool,
}

/// See the module's header.
#[derive(Default)]
pub(crate) struct Forgetting {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Forgetting {
    /// Has an inode forgotten soon. Never waits; callers have at most one request each under way, which bounds what piles up.
    pub(crate) fn file(&self, inode: INodeNo) {
        let mut waiting = self.waiting.lock();
        if !waiting.ended && waiting.inodes.insert(inode.0) {
            self.changed.notify_all();
        }
    }

    /// The same for callers who can wait for their turn.
    pub(crate) fn file_in_turn(&self, inode: INodeNo) {
        let mut waiting = self.waiting.lock();
        while waiting.inodes.len() >= WAITING_MAX && !waiting.ended {
            self.changed.wait(&mut waiting);
        }
        drop(waiting);
        self.file(inode);
    }

    /// Ends [`run`](Self::run).
    pub(crate) fn end(&self) {
        self.waiting.lock().ended = true;
        self.changed.notify_all();
    }

    /// Tells the kernel, until it ends.
    pub(crate) fn run(&self, kernel: &Notifier) {
        loop {
            let mut waiting = self.waiting.lock();
            let inode = loop {
                match waiting.inodes.pop_first() {
                    _ if waiting.ended => return,
                    Some(inode) => break inode,
                    None => self.changed.wait(&mut waiting),
                }
            };
            drop(waiting);
            self.changed.notify_all();
            if let Err(error) = kernel.inval_inode(INodeNo(inode), 0, 0) {
                // The mount has ended.
                tracing::debug!(%error, "the kernel was told to forget a file");
            }
        }
    }
}
