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

/// Who decides about the locks of a file system's files.
pub trait LockService: Send + Sync + 'static {
    /// As [`LockTable::test`]. EINVAL for an unlock and for an empty range.
    fn test(&self, file: FileId, lock: FileLock) -> Answer<Option<FileLock>>;
    /// As [`LockTable::set`]. A caller that stops waiting gives the request up.
    fn set(&self, file: FileId, lock: FileLock, wait: bool) -> Answer<()>;
    /// As [`LockTable::release_owner`].
    fn release_owner(&self, file: FileId, space: LockSpace, owner: u128) -> Answer<()>;
}

impl LockService for Locks {
    fn test(&self, file: FileId, lock: FileLock) -> Answer<Option<FileLock>> {
        Answer::Now(Locks::test(self, file, &lock))
    }

    fn set(&self, file: FileId, lock: FileLock, wait: bool) -> Answer<()> {
        Locks::set(self, file, lock, wait)
    }

    fn release_owner(&self, file: FileId, space: LockSpace, owner: u128) -> Answer<()> {
        Locks::release_owner(self, file, space, owner);
        Answer::ok(())
    }
}

/// A request that waits. Dropping it before it has learned of the grant gives up, and takes the
/// lock back if it was granted.
struct Waiting {
    locks: Locks,
    file: FileId,
    waiter: WaiterId,
    lock: FileLock,
    /// `None` once the request has learned of the grant.
    granted: Option<oneshot::Receiver<Vec<FileLock>>>,
}

impl Waiting {
    /// The request has learned of the grant.
    fn learned(mut self) {
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

/// A lock that was granted to an owner that has not learned of it. Dropping this takes the lock
/// back.
pub struct Unlearned {
    locks: Locks,
    file: FileId,
    lock: FileLock,
    /// `None` once the owner has learned of the grant.
    replaced: Option<Vec<FileLock>>,
}

impl Unlearned {
    /// The owner has learned of the grant, and keeps the lock.
    pub fn learned(mut self) {
        self.replaced = None;
    }
}

impl Drop for Unlearned {
    fn drop(&mut self) {
        if let Some(replaced) = self.replaced.take() {
            let mut inner = self.locks.0.lock();
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
        match self.set_unlearned(file, lock, wait) {
            Answer::Now(answer) => Answer::Now(answer.map(Unlearned::learned)),
            Answer::Later(granted) => Answer::later(async move { granted.await.map(Unlearned::learned) }),
        }
    }

    /// Like [`set`](Self::set), for an owner that learns of the grant later.
    pub fn set_unlearned(&self, file: FileId, lock: FileLock, wait: bool) -> Answer<Unlearned> {
        let mut inner = self.0.lock();
        let outcome = match inner.table.set(file, &lock, wait) {
            Ok(outcome) => outcome,
            Err(e) => return Answer::err(e),
        };
        inner.wake(outcome.woken);
        let locks = self.clone();
        let granted = move |replaced| Unlearned { locks, file, lock, replaced: lock.exclusive.and(Some(replaced)) };
        let Some(waiter) = outcome.waits else { return Answer::ok(granted(outcome.replaced)) };
        let (sender, told) = oneshot::channel();
        inner.waiting.insert(waiter, sender);
        drop(inner);
        let mut waiting = Waiting { locks: self.clone(), file, waiter, lock, granted: Some(told) };
        Answer::later(async move {
            // The sender goes away only with the whole file system.
            let replaced = match &mut waiting.granted {
                Some(told) => told.await.map_err(|_| FsError::Interrupted)?,
                None => return Err(FsError::Interrupted),
            };
            waiting.learned();
            Ok(granted(replaced))
        })
    }

    /// Drops all locks and requests of the owners for which `are_gone` is true.
    pub fn release_owners(&self, are_gone: impl Fn(u128) -> bool) {
        let mut inner = self.0.lock();
        let woken = inner.table.release_owners(are_gone);
        inner.wake(woken);
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

    /// As [`LockTable::held`] and [`LockTable::waiting`], at one instant.
    pub fn on_file(&self, file: FileId) -> (Vec<FileLock>, Vec<FileLock>) {
        let inner = self.0.lock();
        (inner.table.held(file), inner.table.waiting(file))
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
