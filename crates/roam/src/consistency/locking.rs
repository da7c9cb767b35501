//! File locks under `strong`, which exclude processes on other mounts too.
//!
//! The home decides about each lock; this client knows which ones it has. It tells the home of an
//! unlock until the home has heard it, and asks for no lock of the same owner on the same file
//! before. Its locks end with its lease. A program that has lost a lock gets EIO from the file
//! until it unlocks or closes the file.

use crate::client::{Client, Inner};
use crate::live::Live;
use host::timeout;
use roam_proto::channel::Class;
use roam_proto::delegation::Kept;
use roam_proto::lock::{LOCK_COUNT_MAX, Lock, LockKind, Locking, OPEN_COUNT_MAX};
use roam_proto::message::{Reply, Request};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{Answer, FileId, FsError};
use vfs::fs::{FileLock, LockSpace};

/// Pause before the home is told again of an unlock that it has not heard.
const TELL_PERIOD: Duration = Duration::from_millis(500);
/// Longest time for which a program waits until the home has heard of its unlock.
const UNLOCK_TIME_MAX: Duration = Duration::from_secs(4);
/// Longest wait for a home that decides about no locks now, for a request that does not wait for
/// others to unlock.
const DECIDE_TIME_MAX: Duration = Duration::from_secs(120);

/// A lock in the form that the home knows.
fn told(file: FileId, lock: &FileLock) -> Lock {
    let space = match lock.space {
        LockSpace::Posix => LockKind::Posix,
        LockSpace::Flock => LockKind::Flock,
        LockSpace::Mixed => LockKind::Mixed,
    };
    let FileLock { owner, pid, exclusive, start, end, .. } = *lock;
    // The kernel's owners have 64 bits.
    Lock { file, space, owner: owner as u64, pid, exclusive, start, end }
}

impl Inner {
    /// The locks that this client has, in the form that the home knows.
    pub(crate) fn locks_had(&self) -> Vec<Lock> {
        self.locks.all_held().iter().map(|(file, lock)| told(*file, lock)).collect()
    }
}

impl Client {
    /// Called when the client is attached again, after it told the home of these locks. In a new
    /// term it keeps those if the home says so, and has lost all others.
    pub(crate) fn relocked(&self, live: &mut Live, kept: Kept, told_of: &[Lock]) {
        if kept.term == live.freshness.lock_requests.term {
            return;
        }
        (live.freshness.lock_requests.term, live.freshness.lock_requests.number) = (kept.term, 0);
        live.freshness.lock_requests.open.clear();
        live.freshness.lock_requests.untold.clear();
        let at_home = if kept.locks { told_of } else { &[] };
        let mut gone: Vec<Lock> = at_home.to_vec();
        for (file, lock) in self.0.locks.all_held() {
            let lock_told = told(file, &lock);
            if at_home.contains(&lock_told) {
                gone.retain(|gone| *gone != lock_told);
                continue;
            }
            live.freshness.lock_requests.lost.entry(file).or_default().insert(lock.owner);
            drop(self.0.locks.set(file, FileLock { exclusive: None, ..lock }, false));
        }
        // The rest was unlocked while the attach request was under way.
        for lock in gone {
            self.tell(live, Lock { exclusive: None, ..lock }, 0);
        }
    }

    /// As [`FileSystem::setlk`](vfs::fs::FileSystem::setlk).
    pub(crate) fn set_lock(&self, id: FileId, lock: FileLock, wait: bool) -> Answer<()> {
        if lock.start > lock.end {
            return Answer::err(FsError::InvalidArgument);
        }
        if lock.exclusive.is_none() {
            return self.unlock(id, lock);
        }
        let (file, is_delegated) = {
            let live = self.0.live.lock();
            (live.replica.real(id), live.freshness.is_delegated())
        };
        if !is_delegated {
            return self.0.locks.set(file, lock, wait);
        }
        let me = self.clone();
        Answer::later(async move { me.lock_at_home(file, lock, wait).await })
    }

    /// As [`FileSystem::getlk`](vfs::fs::FileSystem::getlk).
    pub(crate) fn test_lock(&self, id: FileId, lock: FileLock) -> Answer<Option<FileLock>> {
        let (file, is_delegated) = {
            let live = self.0.live.lock();
            (live.replica.real(id), live.freshness.is_delegated())
        };
        let here = self.0.locks.test(file, &lock);
        if !is_delegated || !matches!(here, Ok(None)) {
            return Answer::Now(here);
        }
        let me = self.clone();
        Answer::later(async move {
            me.send_made(file).await?;
            match me.0.ask_in_turn(&None, Class::Interactive, &Request::TestLock(told(file, &lock))).await? {
                Reply::InTheWay(found) => Ok(found.map(|Lock { pid, exclusive, start, end, .. }| FileLock {
                    owner: 0,
                    pid,
                    exclusive,
                    start,
                    end,
                    ..lock
                })),
                _ => Err(FsError::Io),
            }
        })
    }

    /// Drops all locks of an owner, as closing a file does.
    pub(crate) fn release_locks(&self, id: FileId, space: LockSpace, owner: u64) -> Answer<()> {
        let gone = |space| FileLock { space, owner: owner.into(), pid: 0, exclusive: None, start: 0, end: u64::MAX };
        let all = [space, LockSpace::Mixed].map(|space| self.unlock(id, gone(space)));
        if all.iter().all(|unlocked| matches!(unlocked, Answer::Now(_))) {
            return Answer::ok(());
        }
        Answer::later(async move {
            for unlocked in all {
                unlocked.await?;
            }
            Ok(())
        })
    }

    /// Sends the making of a file home first, since the home has no locks on files that it does not
    /// know.
    async fn send_made(&self, file: FileId) -> Result<(), FsError> {
        match self.look(|replica, _| replica.made_at(file)) {
            Some(seq) => self.send_through(seq).await,
            None => Ok(()),
        }
    }

    /// Unlocks a file, also under the id that it had when it was locked.
    fn unlock(&self, id: FileId, lock: FileLock) -> Answer<()> {
        let real = self.look(|replica, _| replica.real(id));
        let before = if real == id { Answer::ok(()) } else { self.unlock_known(id, lock) };
        match (before, self.unlock_known(real, lock)) {
            (Answer::Now(_), unlocked) => unlocked,
            (before, unlocked) => Answer::later(async move { before.await.and(unlocked.await) }),
        }
    }

    fn unlock_known(&self, file: FileId, lock: FileLock) -> Answer<()> {
        {
            let mut live = self.0.live.lock();
            let lost = live.freshness.lock_requests.lost.get_mut(&file);
            if lost.is_some_and(|owners| owners.remove(&lock.owner) && owners.is_empty()) {
                live.freshness.lock_requests.lost.remove(&file);
            }
        }
        let is_part = |held: &FileLock| {
            (held.space, held.owner) == (lock.space, lock.owner) && held.start <= lock.end && lock.start <= held.end
        };
        let has = self.0.locks.held(file).iter().any(is_part);
        if !has {
            return Answer::ok(());
        }
        let unlocked = self.0.locks.set(file, lock, false);
        {
            let mut live = self.0.live.lock();
            if !live.freshness.is_delegated() {
                return unlocked;
            }
            self.tell(&mut live, told(file, &lock), 0);
        }
        let me = self.clone();
        Answer::later(async move {
            let heard = me.until_told(file, lock.owner);
            // If the home is out of reach now, the unlock is told again later.
            let _ = timeout(&*me.0.host.clock, UNLOCK_TIME_MAX, heard).await;
            Ok(())
        })
    }

    /// Waits until the home has heard of all unlocks of an owner. ETIMEDOUT if it is out of reach.
    async fn until_told(&self, file: FileId, owner: u128) -> Result<(), FsError> {
        let mut tick = self.0.tick.subscribe();
        loop {
            {
                let live = self.0.live.lock();
                if !live.freshness.lock_requests.is_untold(file, owner) {
                    return Ok(());
                }
                if live.link.is_offline() {
                    return Err(FsError::TimedOut);
                }
            }
            if tick.changed().await.is_err() {
                return Err(FsError::TimedOut);
            }
        }
    }

    async fn lock_at_home(&self, file: FileId, lock: FileLock, wait: bool) -> Result<(), FsError> {
        self.until_told(file, lock.owner).await?;
        if self.look(|replica, _| replica.node(file).is_ok_and(|node| node.facts.nlink == 0)) {
            // No other client can open the file any more.
            return self.0.locks.set(file, lock, wait).await;
        }
        self.send_made(file).await?;
        if self.0.locks.all_held().len() >= LOCK_COUNT_MAX {
            return Err(FsError::NoLocks);
        }
        let asked = {
            let mut live = self.0.live.lock();
            // Half of the open requests are left for unlocks.
            if live.freshness.lock_requests.open.len() >= OPEN_COUNT_MAX / 2 {
                return Err(FsError::NoLocks);
            }
            live.freshness.lock_requests.begin(told(file, &lock), wait)
        };
        let mut giving_up = GivesUp { client: self.clone(), asked: Some(asked.clone()) };
        let end = self.0.host.clock.now() + DECIDE_TIME_MAX;
        loop {
            let request = self.0.live.lock().freshness.lock_requests.request(&asked);
            match self.0.ask_in_turn(&None, Class::Interactive, &request).await {
                Ok(_) => {
                    giving_up.asked = None;
                    return self.has_locked(&asked, lock).await;
                }
                Err(FsError::Busy) if wait || self.0.host.clock.now() < end => {}
                Err(FsError::Busy) => return Err(FsError::TimedOut),
                // These are the home's decisions.
                Err(error @ (FsError::WouldBlock | FsError::Deadlock | FsError::NoLocks)) => {
                    giving_up.asked = None;
                    let mut live = self.0.live.lock();
                    if live.freshness.lock_requests.term == asked.term {
                        live.freshness.lock_requests.open.remove(&asked.number);
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a lock that the home has granted.
    fn has_locked(&self, asked: &Locking, lock: FileLock) -> Answer<()> {
        let mut live = self.0.live.lock();
        if live.freshness.lock_requests.term != asked.term || !live.freshness.is_delegated() {
            // The client has lost all locks of that term.
            return Answer::err(FsError::TimedOut);
        }
        live.freshness.lock_requests.open.remove(&asked.number);
        self.0.locks.set(asked.lock.file, lock, false)
    }

    /// Tells the home of an unlock, or that a request is given up.
    fn tell(&self, live: &mut Live, lock: Lock, gives_up: u64) {
        let owner = u128::from(lock.owner);
        *live.freshness.lock_requests.untold.entry((lock.file, owner)).or_default() += 1;
        let asked = Locking { gives_up, ..live.freshness.lock_requests.begin(lock, false) };
        self.0.host.tasks.spawn(Box::pin(tell(Arc::downgrade(&self.0), asked)));
    }
}

/// Tells the home of an unlock until it has heard it, or the client has lost all its locks.
async fn tell(inner: Weak<Inner>, asked: Locking) {
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let request = {
            let live = client.0.live.lock();
            if live.freshness.lock_requests.term != asked.term || !live.freshness.is_delegated() {
                return;
            }
            live.freshness.lock_requests.request(&asked)
        };
        // ESTALE: the request of this number is over.
        if let Ok(_) | Err(FsError::Stale) = client.0.ask_in_turn(&None, Class::Interactive, &request).await {
            let mut live = client.0.live.lock();
            if live.freshness.lock_requests.term == asked.term {
                live.freshness.lock_requests.open.remove(&asked.number);
                live.freshness.lock_requests.open.remove(&asked.gives_up);
                let of = (asked.lock.file, asked.lock.owner.into());
                let left = live.freshness.lock_requests.untold.get(&of).map_or(0, |count| count - 1);
                match left {
                    0 => drop(live.freshness.lock_requests.untold.remove(&of)),
                    left => drop(live.freshness.lock_requests.untold.insert(of, left)),
                }
            }
            drop(live);
            client.0.wake();
            return;
        }
        let clock = client.0.host.clock.clone();
        drop(client);
        clock.sleep(TELL_PERIOD).await;
    }
}

/// A lock request that is given up when this is dropped, unless the home has decided it. The
/// program was interrupted, or the home is out of reach.
struct GivesUp {
    client: Client,
    asked: Option<Locking>,
}

impl Drop for GivesUp {
    fn drop(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        let mut live = self.client.0.live.lock();
        if live.freshness.lock_requests.term != asked.term {
            return;
        }
        self.client.tell(&mut live, asked.lock, asked.number);
        // As flock(2) says, an owner that waits to convert its lock has given up the old one.
        if asked.waits && asked.lock.space == LockKind::Flock {
            self.client.0.locks.release_owner(asked.lock.file, LockSpace::Flock, asked.lock.owner.into());
            self.client.tell(&mut live, Lock { exclusive: None, ..asked.lock }, 0);
        }
    }
}
