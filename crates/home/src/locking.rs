//! Which clients have which locks of a volume's files. Pure.
//!
//! Invariants: a client's request is done once, however often it arrives. A request of an earlier
//! term of a client does nothing.

use roam_proto::lock::{LOCK_COUNT_MAX, Lock, LockKind, Locking, OPEN_COUNT_MAX};
use std::collections::{BTreeMap, BTreeSet};
use types::{FileId, FsError};
use vfs::fs::{FileLock, LockSpace};
use vfs::locks::{Granted, LockTable, SetOutcome, WaiterId};

/// Most requests of a client that it does not know to be over, without unlocks.
const ASKED_COUNT_MAX: usize = OPEN_COUNT_MAX;
/// The same with unlocks. A client that does its part has far fewer.
const UNLOCKED_COUNT_MAX: usize = 4 * ASKED_COUNT_MAX;

/// The state of a request.
#[derive(PartialEq, Eq, Debug)]
enum Asked {
    Waits(WaiterId),
    /// It was granted, and replaced these locks of its owner.
    Granted(Vec<FileLock>),
    /// It was refused or given up, or it gave up another one.
    Ended(Result<(), FsError>),
}

impl Asked {
    fn outcome(&self) -> Result<Locked, FsError> {
        match self {
            Asked::Waits(_) => Ok(Locked::Waits),
            Asked::Granted(_) => Ok(Locked::Done),
            Asked::Ended(result) => result.map(|()| Locked::Done),
        }
    }
}

/// A client's term, with its requests.
struct Term {
    number: u64,
    /// The client knows how requests up to this one ended, except for the open ones.
    over: u64,
    open: BTreeSet<u64>,
    asked: BTreeMap<u64, Asked>,
    /// How many locks the client has.
    held_count: usize,
}

impl Term {
    fn is_open(&self, number: u64) -> bool {
        number > self.over || self.open.contains(&number)
    }

    /// Takes in that the client knows how all requests up to `over` ended, except for the open
    /// ones. An older message may arrive after a newer one, and is ignored.
    fn is_over(&mut self, over: u64, open: &[u64]) {
        if over < self.over {
            return;
        }
        let before = std::mem::replace(&mut self.over, over);
        let known = std::mem::take(&mut self.open);
        self.open = open.iter().copied().filter(|open| *open > before || known.contains(open)).collect();
        let Term { over, open, asked, .. } = self;
        asked.retain(|number, _| number > over || open.contains(number));
    }
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locked {
    /// It is done.
    Done,
    /// Others have the lock.
    Waits,
}

/// All locks of a volume.
#[derive(Default)]
pub struct LockedFiles {
    table: LockTable,
    terms: BTreeMap<u32, Term>,
    /// Which client's request each waiter is, by its number.
    waiting: BTreeMap<WaiterId, (u32, u64)>,
}

/// Returns the client of an owner.
fn client_of(owner: u128) -> u32 {
    (owner >> 64) as u32
}

/// Makes a client's lock unique among those of all clients.
fn of_client(client: u32, lock: &Lock) -> FileLock {
    let space = match lock.space {
        LockKind::Posix => LockSpace::Posix,
        LockKind::Flock => LockSpace::Flock,
        LockKind::Mixed => LockSpace::Mixed,
    };
    let owner = u128::from(client) << 64 | u128::from(lock.owner);
    FileLock { space, owner, pid: lock.pid, exclusive: lock.exclusive, start: lock.start, end: lock.end }
}

impl LockedFiles {
    /// Returns the term of a client, if it has one.
    pub fn term(&self, client: u32) -> Option<u64> {
        self.terms.get(&client).map(|term| term.number)
    }

    /// Begins a client's term with these locks. False: the client has none of them, since others
    /// have conflicting ones.
    pub fn begin(&mut self, client: u32, term: u64, locks: &[Lock]) -> bool {
        self.leave(client);
        self.terms.insert(
            client,
            Term { number: term, over: 0, open: BTreeSet::new(), asked: BTreeMap::new(), held_count: 0 },
        );
        let fits = locks.len() <= LOCK_COUNT_MAX;
        let all = fits
            && locks.iter().all(|lock| {
                let (file, lock) = (lock.file, of_client(client, lock));
                lock.exclusive.is_some() && self.change(file, |table| table.set(file, &lock, false)).is_ok()
            });
        if !all {
            self.drop_locks(client);
        }
        all
    }

    /// Drops all locks of a client.
    pub fn leave(&mut self, client: u32) {
        if self.terms.remove(&client).is_some() {
            self.drop_locks(client);
        }
    }

    fn drop_locks(&mut self, client: u32) {
        let woken = self.table.release_owners(|owner| client_of(owner) == client);
        self.waiting.retain(|_, (other, _)| *other != client);
        self.wake(woken);
        let all = self.table.all_held();
        self.terms.values_mut().for_each(|term| term.held_count = 0);
        all.iter().for_each(|(_, held)| self.count(held.owner, 1));
    }

    fn count(&mut self, owner: u128, more: isize) {
        if let Some(term) = self.terms.get_mut(&client_of(owner)) {
            term.held_count = term.held_count.saturating_add_signed(more);
        }
    }

    /// Changes the locks of a file, and wakes the requests that this grants.
    fn change(
        &mut self,
        file: FileId,
        change: impl FnOnce(&mut LockTable) -> Result<SetOutcome, FsError>,
    ) -> Result<Asked, FsError> {
        let before = self.table.held(file);
        let outcome = change(&mut self.table)?;
        let after = self.table.held(file);
        before.iter().for_each(|held| self.count(held.owner, -1));
        after.iter().for_each(|held| self.count(held.owner, 1));
        self.wake(outcome.woken);
        Ok(outcome.waits.map_or(Asked::Granted(outcome.replaced), Asked::Waits))
    }

    /// Marks requests that waited as granted.
    fn wake(&mut self, woken: Vec<Granted>) {
        for Granted { waiter, replaced } in woken {
            let asker = self.waiting.remove(&waiter);
            let asked = asker.and_then(|(client, number)| self.terms.get_mut(&client)?.asked.get_mut(&number));
            if let Some(asked) = asked {
                *asked = Asked::Granted(replaced);
            }
        }
    }

    /// Returns the other clients that have conflicting locks.
    pub fn in_the_way(&self, client: u32, lock: &Lock) -> BTreeSet<u32> {
        let blockers = self.table.blockers(lock.file, &of_client(client, lock));
        blockers.into_iter().map(|held| client_of(held.owner)).filter(|other| *other != client).collect()
    }

    /// Returns the first lock that conflicts with a client's, without its owner, which is of no use
    /// to another client.
    pub fn test(&self, client: u32, lock: &Lock) -> Option<Lock> {
        let held = self.table.test(lock.file, &of_client(client, lock))?;
        // A process id of another machine would mean another process.
        let pid = if client_of(held.owner) == client { held.pid } else { 0 };
        Some(Lock { owner: 0, pid, exclusive: held.exclusive, start: held.start, end: held.end, ..*lock })
    }

    /// Does a request of a client. Asked again, it returns the request's state. ESTALE: the request
    /// is over, or of another term. ENOLCK: the client has, or asks for, too many locks.
    pub fn ask(&mut self, client: u32, asked: &Locking) -> Result<Locked, FsError> {
        let Locking { term, number, over, ref open, lock, waits, gives_up } = *asked;
        let known = self.terms.get_mut(&client).filter(|known| known.number == term).ok_or(FsError::Stale)?;
        if open.len() > OPEN_COUNT_MAX {
            return Err(FsError::ArgumentTooBig);
        }
        if lock.start > lock.end {
            return Err(FsError::InvalidArgument);
        }
        known.is_over(over, open);
        if !known.is_open(number) {
            return Err(FsError::Stale);
        }
        if let Some(before) = known.asked.get(&number) {
            return before.outcome();
        }
        let unlocks = lock.exclusive.is_none() || gives_up > 0;
        if known.asked.len() >= if unlocks { UNLOCKED_COUNT_MAX } else { ASKED_COUNT_MAX } {
            return Err(FsError::NoLocks);
        }
        let has_room = known.held_count < LOCK_COUNT_MAX || unlocks;
        let (file, lock) = (lock.file, of_client(client, &lock));
        let ended = match gives_up {
            0 if !has_room => Asked::Ended(Err(FsError::NoLocks)),
            0 => match self.change(file, |table| table.set(file, &lock, waits)) {
                Ok(asked) => {
                    if let Asked::Waits(waiter) = asked {
                        self.waiting.insert(waiter, (client, number));
                    }
                    asked
                }
                Err(error) => Asked::Ended(Err(error)),
            },
            given_up => {
                self.give_up(client, given_up, file, &lock);
                Asked::Ended(Ok(()))
            }
        };
        let outcome = ended.outcome();
        if let Some(known) = self.terms.get_mut(&client) {
            known.asked.insert(number, ended);
        }
        outcome
    }

    /// Gives up a client's request, whether or not it has arrived yet.
    fn give_up(&mut self, client: u32, number: u64, file: FileId, lock: &FileLock) {
        let Some(known) = self.terms.get_mut(&client).filter(|known| known.is_open(number)) else { return };
        let before = known.asked.insert(number, Asked::Ended(Err(FsError::Interrupted)));
        match before {
            Some(Asked::Waits(waiter)) => {
                self.waiting.remove(&waiter);
                let waited = self.table.cancel(file, waiter);
                debug_assert!(waited, "a request that waits has not been granted");
            }
            Some(Asked::Granted(replaced)) => {
                let taken_back = self.change(file, |table| {
                    let woken = table.take_back(file, lock, &replaced);
                    Ok(SetOutcome { woken, ..SetOutcome::default() })
                });
                debug_assert!(taken_back.is_ok(), "a granted lock can be taken back");
            }
            Some(Asked::Ended(_)) | None => {}
        }
    }
}
