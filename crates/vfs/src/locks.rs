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

pub use waiting::{LockService, Locks, Unlearned};

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
    /// The locks of the owner that a granted request replaced, whole or in part.
    pub replaced: Vec<FileLock>,
    /// Waiting requests that were granted, in the order in which they began to wait.
    pub woken: Vec<Granted>,
}

/// A request that waited and was granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The request.
    pub waiter: WaiterId,
    /// The locks of the owner that it replaced, whole or in part.
    pub replaced: Vec<FileLock>,
}

#[derive(Clone, Default)]
struct FileLocks {
    held: Vec<FileLock>,
    /// By the order of arrival.
    waiting: BTreeMap<WaiterId, FileLock>,
}

/// All locks of a file system (deadlocks go through several files).
#[derive(Clone, Default)]
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
            return Ok(SetOutcome { woken: self.unlock(file, &lock), ..SetOutcome::default() });
        }
        if self.files.get(&file).is_some_and(|f| f.held.len() + f.waiting.len() >= LOCK_COUNT_MAX) {
            return Err(FsError::NoLocks);
        }
        if self.test(file, &lock).is_none() {
            // A lock that became weaker or was split can let waiting requests in.
            let locks = self.files.entry(file).or_default();
            let replaced = locks.place(&lock);
            return Ok(SetOutcome { waits: None, replaced, woken: locks.grant_waiting() });
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
        Ok(SetOutcome { waits: Some(waiter), replaced: Vec::new(), woken })
    }

    /// Ends a wait. False: the request does not wait any more, since it was granted.
    pub fn cancel(&mut self, file: FileId, waiter: WaiterId) -> bool {
        let waited = self.files.get_mut(&file).is_some_and(|locks| locks.waiting.remove(&waiter).is_some());
        self.forget_if_empty(file);
        waited
    }

    /// Takes back a lock that was granted to a caller that has not learned of it. The owner has
    /// again what the lock replaced, where it has not unlocked that since. A lock that was stronger
    /// before stays weak if others were let in meanwhile. Returns the requests that this grants.
    pub fn take_back(&mut self, file: FileId, lock: &FileLock, replaced: &[FileLock]) -> Vec<Granted> {
        let lock = FileLock { exclusive: None, ..normal(lock) };
        let Some(locks) = self.files.get_mut(&file) else { return Vec::new() };
        let now = locks.place(&lock);
        for (before, now) in replaced.iter().flat_map(|before| now.iter().map(move |now| (before, now))) {
            let (start, end) = (before.start.max(now.start).max(lock.start), before.end.min(now.end).min(lock.end));
            if start > end {
                continue;
            }
            let again = FileLock { start, end, ..*before };
            let fits = locks.blockers(&again).next().is_none();
            locks.place(&if fits { again } else { FileLock { start, end, ..*now } });
        }
        let woken = locks.grant_waiting();
        self.forget_if_empty(file);
        woken
    }

    /// Drops all locks of an owner in one space of a file, as closing does. Returns the requests
    /// that this grants.
    pub fn release_owner(&mut self, file: FileId, space: LockSpace, owner: u128) -> Vec<Granted> {
        self.unlock(file, &FileLock { space, owner, pid: 0, exclusive: None, start: 0, end: u64::MAX })
    }

    /// Drops all locks and requests of the owners for which `are_gone` is true. Returns the
    /// requests that this grants. Looks at every lock.
    pub fn release_owners(&mut self, are_gone: impl Fn(u128) -> bool) -> Vec<Granted> {
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

    /// The requests that wait for a lock on a file, in the order in which they came.
    pub fn waiting(&self, file: FileId) -> Vec<FileLock> {
        self.files.get(&file).map_or_else(Vec::new, |locks| locks.waiting.values().copied().collect())
    }

    /// True if no lock is held and no request waits.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn unlock(&mut self, file: FileId, lock: &FileLock) -> Vec<Granted> {
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
    /// nothing there. Returns the locks of the owner that reached into the range.
    fn place(&mut self, lock: &FileLock) -> Vec<FileLock> {
        let mut new = *lock;
        let mut kept = Vec::with_capacity(self.held.len() + 2);
        let mut replaced = Vec::new();
        for held in self.held.drain(..) {
            if held.space != lock.space || held.owner != lock.owner {
                kept.push(held);
                continue;
            }
            if overlap(&held, lock) {
                replaced.push(held);
            }
            if held.exclusive == new.exclusive && touches(&held, &new) {
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
        replaced
    }

    /// Grants what can be granted, in the order of arrival. A request that cannot be granted does
    /// not hold up those behind it.
    fn grant_waiting(&mut self) -> Vec<Granted> {
        let mut woken = Vec::new();
        loop {
            let next = self.waiting.iter().find(|(_, lock)| self.blockers(lock).next().is_none());
            let Some((&waiter, &lock)) = next else { return woken };
            self.waiting.remove(&waiter);
            woken.push(Granted { waiter, replaced: self.place(&lock) });
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
