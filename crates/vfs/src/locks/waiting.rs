//! A [`LockTable`] that gives waiting callers futures.

use super::{Granted, LockTable, WaiterId};
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
    /// What tells each request that it was granted, and what that replaced.
    waiting: BTreeMap<WaiterId, oneshot::Sender<Vec<FileLock>>>,
}

impl Inner {
    /// Tells waiting requests that they were granted. A request that gives up meanwhile takes its
    /// lock back when dropped.
    fn wake(&mut self, woken: Vec<Granted>) {
        for Granted { waiter, replaced } in woken {
            if let Some(sender) = self.waiting.remove(&waiter) {
                let _ = sender.send(replaced);
            }
        }
    }
}

/// A request that waits. Dropping it before it has learned of the grant gives up, and takes the
/// lock back if it was granted.
struct Waiting {
    locks: Locks,
    file: FileId,
    waiter: WaiterId,
    lock: FileLock,
    /// `None` once the caller has learned of the grant.
    granted: Option<oneshot::Receiver<Vec<FileLock>>>,
}

impl Waiting {
    /// The caller learns of the grant.
    fn end(mut self) {
        self.granted = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(granted) = &mut self.granted else { return };
        let mut inner = self.locks.0.lock();
        inner.waiting.remove(&self.waiter);
        if !inner.table.cancel(self.file, self.waiter)
            && let Ok(replaced) = granted.try_recv()
        {
            let woken = inner.table.take_back(self.file, &self.lock, &replaced);
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
        let mut waiting = Waiting { locks: self.clone(), file, waiter, lock, granted: Some(granted) };
        Answer::later(async move {
            if let Some(granted) = &mut waiting.granted {
                // The sender goes away only with the whole file system.
                granted.await.map_err(|_| FsError::Interrupted)?;
            }
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
