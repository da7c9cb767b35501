//! Advisory file locks as a pure state machine: fcntl byte ranges and flock, for any number of
//! files.
//!
//! Owns: which locks are held, which requests wait for them, which requests are granted when a lock
//! goes, and the refusal of waits that would never end. It makes no futures: [`LockTable::set`]
//! says that a request waits, later calls say which waiting requests were granted, and the caller
//! wakes them.
//!
//! Invariants: two overlapping locks of one file and space have the same owner or are both shared;
//! locks of one owner do not overlap, and neighbours of one kind are merged; a request that could
//! be granted does not wait.

mod waiting;

use crate::fs::{FileLock, LockSpace};
use std::collections::{BTreeMap, BTreeSet};
use types::{FileId, FsError};

pub use waiting::Locks;

/// Most locks held and requests waiting on one file, all spaces together. Beyond it, locking fails
/// with ENOLCK.
pub const LOCK_COUNT_MAX: usize = 65_536;

/// A request that waits for its lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WaiterId(u64);

/// What [`LockTable::set`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct SetOutcome {
    /// The request waits under this id; `None` if it was granted.
    pub waits: Option<WaiterId>,
    /// Waiting requests that were granted, in the order in which they began to wait.
    pub woken: Vec<WaiterId>,
}

#[derive(Default)]
struct FileLocks {
    held: Vec<FileLock>,
    /// By the order of arrival.
    waiting: BTreeMap<WaiterId, FileLock>,
}

/// All locks of a file system (deadlocks go through several files).
#[derive(Default)]
pub struct LockTable {
    files: BTreeMap<FileId, FileLocks>,
    last_waiter: u64,
}

impl LockTable {
    /// The first lock, by start, that conflicts with `lock`; always `None` for an unlock.
    pub fn test(&self, file: FileId, lock: &FileLock) -> Option<FileLock> {
        let lock = normal(lock);
        self.files.get(&file)?.blockers(&lock).min_by_key(|held| (held.start, held.owner)).copied()
    }

    /// Sets a lock, replacing what its owner holds in the range, or unlocks the range.
    ///
    /// EAGAIN on conflict unless `wait`; EDEADLK if a byte-range request would wait for owners that
    /// wait for its own; EINVAL for an empty range; ENOLCK beyond [`LOCK_COUNT_MAX`]. An owner that
    /// waits to convert a flock lock first gives up the old one, as flock(2) says. An owner that is
    /// refused keeps its lock.
    pub fn set(&mut self, file: FileId, lock: &FileLock, wait: bool) -> Result<SetOutcome, FsError> {
        if lock.start > lock.end {
            return Err(FsError::InvalidArgument);
        }
        let lock = normal(lock);
        if lock.exclusive.is_none() {
            return Ok(SetOutcome { waits: None, woken: self.unlock(file, &lock) });
        }
        if self.files.get(&file).is_some_and(|f| f.held.len() + f.waiting.len() >= LOCK_COUNT_MAX) {
            return Err(FsError::NoLocks);
        }
        if self.test(file, &lock).is_none() {
            // A lock that became weaker or was split can let waiting requests in.
            let locks = self.files.entry(file).or_default();
            locks.place(&lock);
            return Ok(SetOutcome { waits: None, woken: locks.grant_waiting() });
        }
        if !wait {
            return Err(FsError::WouldBlock);
        }
        if lock.space != LockSpace::Flock && self.would_deadlock(file, &lock) {
            return Err(FsError::Deadlock);
        }
        let waiter = WaiterId(self.last_waiter);
        self.last_waiter += 1;
        let mut woken = Vec::new();
        if lock.space == LockSpace::Flock {
            woken = self.unlock(file, &FileLock { exclusive: None, ..lock });
        }
        self.files.entry(file).or_default().waiting.insert(waiter, lock);
        Ok(SetOutcome { waits: Some(waiter), woken })
    }

    /// Ends a wait. If the request was granted, and its caller has not learned of that, the lock is
    /// taken back. `lock` is the request as it was made. Returns the requests that this grants.
    pub fn cancel(&mut self, file: FileId, waiter: WaiterId, lock: &FileLock) -> Vec<WaiterId> {
        let Some(locks) = self.files.get_mut(&file) else { return Vec::new() };
        if locks.waiting.remove(&waiter).is_some() {
            self.forget_if_empty(file);
            return Vec::new();
        }
        self.unlock(file, &FileLock { exclusive: None, ..normal(lock) })
    }

    /// Drops all locks of an owner in one space of a file, as closing does. Returns the requests
    /// that this grants.
    pub fn release_owner(&mut self, file: FileId, space: LockSpace, owner: u128) -> Vec<WaiterId> {
        self.unlock(file, &FileLock { space, owner, pid: 0, exclusive: None, start: 0, end: u64::MAX })
    }

    /// Drops all locks and requests of the owners for which `are_gone` is true. Returns the
    /// requests that this grants. Looks at every lock.
    pub fn release_owners(&mut self, are_gone: impl Fn(u128) -> bool) -> Vec<WaiterId> {
        let mut woken = Vec::new();
        self.files.retain(|_, locks| {
            locks.held.retain(|held| !are_gone(held.owner));
            locks.waiting.retain(|_, wanted| !are_gone(wanted.owner));
            woken.extend(locks.grant_waiting());
            !locks.held.is_empty() || !locks.waiting.is_empty()
        });
        woken
    }

    /// Locks that conflict with `lock`.
    pub fn blockers(&self, file: FileId, lock: &FileLock) -> Vec<FileLock> {
        let lock = normal(lock);
        self.files.get(&file).map_or_else(Vec::new, |locks| locks.blockers(&lock).copied().collect())
    }

    /// All locks that are held, ordered by file.
    pub fn all_held(&self) -> Vec<(FileId, FileLock)> {
        let held = self.files.iter().flat_map(|(file, locks)| locks.held.iter().map(|lock| (*file, *lock)));
        held.collect()
    }

    /// Locks held on a file, ordered by space, start and owner.
    pub fn held(&self, file: FileId) -> Vec<FileLock> {
        let mut held = self.files.get(&file).map_or_else(Vec::new, |f| f.held.clone());
        held.sort_by_key(|l| (l.space, l.start, l.owner));
        held
    }

    /// True if no lock is held and no request waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn unlock(&mut self, file: FileId, lock: &FileLock) -> Vec<WaiterId> {
        let Some(locks) = self.files.get_mut(&file) else { return Vec::new() };
        locks.place(lock);
        let woken = locks.grant_waiting();
        self.forget_if_empty(file);
        woken
    }

    fn forget_if_empty(&mut self, file: FileId) {
        if self.files.get(&file).is_some_and(|f| f.held.is_empty() && f.waiting.is_empty()) {
            self.files.remove(&file);
        }
    }

    /// True if the owner of `lock` would wait for itself. Follows "waits for the holder of" from
    /// the blockers, over all files. Byte ranges only: as on Linux, flock waits are not checked.
    fn would_deadlock(&self, file: FileId, lock: &FileLock) -> bool {
        let blockers = |file: &FileId, lock: &FileLock| -> Vec<u128> {
            self.files.get(file).map_or_else(Vec::new, |f| f.blockers(lock).map(|b| b.owner).collect())
        };
        let mut reached = BTreeSet::new();
        let mut todo = blockers(&file, lock);
        while let Some(owner) = todo.pop() {
            if owner == lock.owner {
                return true;
            }
            if reached.insert(owner) {
                for (file, locks) in &self.files {
                    for wanted in locks.waiting.values() {
                        if wanted.space != LockSpace::Flock && wanted.owner == owner {
                            todo.extend(blockers(file, wanted));
                        }
                    }
                }
            }
        }
        false
    }
}

impl FileLocks {
    fn blockers<'a>(&'a self, lock: &'a FileLock) -> impl Iterator<Item = &'a FileLock> {
        self.held.iter().filter(|held| conflict(held, lock))
    }

    /// Puts `lock` in place of everything that its owner holds in its range; an unlock leaves
    /// nothing there.
    fn place(&mut self, lock: &FileLock) {
        let mut new = *lock;
        let mut kept = Vec::with_capacity(self.held.len() + 2);
        for held in self.held.drain(..) {
            if held.space != lock.space || held.owner != lock.owner {
                kept.push(held);
            } else if held.exclusive == new.exclusive && touches(&held, &new) {
                new.start = new.start.min(held.start);
                new.end = new.end.max(held.end);
            } else {
                if held.start < lock.start {
                    kept.push(FileLock { end: held.end.min(lock.start - 1), ..held });
                }
                if held.end > lock.end {
                    kept.push(FileLock { start: held.start.max(lock.end + 1), ..held });
                }
            }
        }
        if new.exclusive.is_some() {
            kept.push(new);
        }
        self.held = kept;
    }

    /// Grants what can be granted, in the order of arrival. A request that cannot be granted does
    /// not hold up those behind it.
    fn grant_waiting(&mut self) -> Vec<WaiterId> {
        let mut woken = Vec::new();
        loop {
            let next = self.waiting.iter().find(|(_, lock)| self.blockers(lock).next().is_none());
            let Some((&id, &lock)) = next else { return woken };
            self.waiting.remove(&id);
            self.place(&lock);
            woken.push(id);
        }
    }
}

/// Extends flock locks to the whole file.
fn normal(lock: &FileLock) -> FileLock {
    match lock.space {
        LockSpace::Posix | LockSpace::Mixed => *lock,
        LockSpace::Flock => FileLock { start: 0, end: u64::MAX, ..*lock },
    }
}

fn overlap(a: &FileLock, b: &FileLock) -> bool {
    a.start <= b.end && b.start <= a.end
}

/// True if the ranges overlap or are adjacent.
fn touches(a: &FileLock, b: &FileLock) -> bool {
    a.start <= b.end.saturating_add(1) && b.start <= a.end.saturating_add(1)
}

fn conflict(held: &FileLock, wanted: &FileLock) -> bool {
    held.space == wanted.space
        && held.owner != wanted.owner
        && wanted.exclusive.is_some()
        && (held.exclusive == Some(true) || wanted.exclusive == Some(true))
        && overlap(held, wanted)
}

#[cfg(test)]
mod tests;
