//! A [`LockTable`] that gives waiting callers futures.

use super::{LockTable, WaiterId};
use crate::fs::{FileLock, LockSpace};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use types::{Answer, FileId, FsError};

/// All locks of a file system, and the futures of waiting requests. Clones share both.
#[derive(Clone, Default)]
pub struct Locks(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    table: LockTable,
    waiting: BTreeMap<WaiterId, oneshot::Sender<()>>,
}

impl Inner {
    /// Tells waiting requests that they were granted. A request that gave up meanwhile releases its
    /// lock when dropped.
    fn wake(&mut self, woken: Vec<WaiterId>) {
        for sender in woken.iter().filter_map(|waiter| self.waiting.remove(waiter)) {
            let _ = sender.send(());
        }
    }
}

/// A request that waits. Dropping it before it has learned of the grant gives up, and releases the
/// lock if it was granted.
struct Waiting {
    locks: Locks,
    file: FileId,
    waiter: WaiterId,
    lock: FileLock,
    granted: bool,
}

impl Waiting {
    fn end(mut self) {
        self.granted = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.granted {
            let mut inner = self.locks.0.lock();
            inner.waiting.remove(&self.waiter);
            let woken = inner.table.cancel(self.file, self.waiter, &self.lock);
            inner.wake(woken);
        }
    }
}

impl Locks {
    /// As [`LockTable::test`]; EINVAL for an unlock or an empty range.
    pub fn test(&self, file: FileId, lock: &FileLock) -> Result<Option<FileLock>, FsError> {
        if lock.exclusive.is_none() || lock.start > lock.end {
            return Err(FsError::InvalidArgument);
        }
        Ok(self.0.lock().table.test(file, lock))
    }

    /// As [`LockTable::set`]; the answer comes when the lock is granted.
    pub fn set(&self, file: FileId, lock: FileLock, wait: bool) -> Answer<()> {
        let mut inner = self.0.lock();
        let outcome = match inner.table.set(file, &lock, wait) {
            Ok(outcome) => outcome,
            Err(e) => return Answer::err(e),
        };
        inner.wake(outcome.woken);
        let Some(waiter) = outcome.waits else { return Answer::ok(()) };
        let (sender, granted) = oneshot::channel();
        inner.waiting.insert(waiter, sender);
        drop(inner);
        let waiting = Waiting { locks: self.clone(), file, waiter, lock, granted: false };
        Answer::later(async move {
            // The sender goes away only with the whole file system.
            granted.await.map_err(|_| FsError::Interrupted)?;
            waiting.end();
            Ok(())
        })
    }

    /// As [`LockTable::release_owner`].
    pub fn release_owner(&self, file: FileId, space: LockSpace, owner: u128) {
        let mut inner = self.0.lock();
        let woken = inner.table.release_owner(file, space, owner);
        inner.wake(woken);
    }

    /// As [`LockTable::held`].
    pub fn held(&self, file: FileId) -> Vec<FileLock> {
        self.0.lock().table.held(file)
    }

    /// As [`LockTable::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.0.lock().table.is_empty()
    }

    /// As [`LockTable::all_held`].
    pub fn all_held(&self) -> Vec<(FileId, FileLock)> {
        self.0.lock().table.all_held()
    }
}
