//! File locks for all clients of a file system: one table at the first node.
//!
//! A client numbers its requests. A request that arrives again, because its answer was lost, is not
//! done again. What was granted to a client that has not learned of it can be given up: then the
//! owner has again what it had before. A request that comes after it was given up does nothing.

use host::Host;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;
use types::{Answer, BoxFuture, ClientId, FileId, FsError};
use vfs::fs::{FileLock, LockSpace};
use vfs::locks::{Locks, Unlearned};

/// What a client asks of the lock table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOperation {
    /// Which lock is in the way of this one.
    Test(FileId, FileLock),
    /// Sets a lock or unlocks; waits for it if the last value is true.
    Set(FileId, FileLock, bool),
    /// Drops the owner's locks on the file in this space, and those whose kind is not known.
    Release(FileId, LockSpace, u64),
    /// Gives up the request with this number.
    GiveUp(u64),
}

/// A numbered request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// Grows with each request of a session.
    pub number: u64,
    /// The client knows how all requests below this number ended.
    pub known_below: u64,
    /// What it asks.
    pub operation: LockOperation,
}

/// A lock of a client, or one that it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientLock {
    /// The client.
    pub client: ClientId,
    /// The lock. The owner is the client's own number.
    pub lock: FileLock,
}

/// The locks on a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LocksOnFile {
    /// Those that are held.
    pub held: Vec<ClientLock>,
    /// Those for which requests wait, in the order in which the requests came.
    pub waiting: Vec<ClientLock>,
}

type Outcome = Result<Option<FileLock>, FsError>;

/// What became of a request to set a lock.
enum Grant {
    Waits(BoxFuture<Result<Unlearned, FsError>>),
    Granted(Unlearned),
    /// It failed, or it was given up.
    Over,
}

/// A request that the client may repeat or give up.
struct Asked {
    outcome: watch::Receiver<Option<Outcome>>,
    /// Replacing it gives the request up, and takes back what was granted, at once.
    grant: Arc<Mutex<Grant>>,
}

impl Asked {
    fn ended(outcome: Outcome, grant: Grant) -> Asked {
        Asked { outcome: watch::channel(Some(outcome)).1, grant: Arc::new(Mutex::new(grant)) }
    }

    fn learned(self) {
        let grant = std::mem::replace(&mut *self.grant.lock(), Grant::Over);
        if let Grant::Granted(unlearned) = grant {
            unlearned.learned();
        }
    }

    fn give_up(self) {
        let grant = std::mem::replace(&mut *self.grant.lock(), Grant::Over);
        drop(grant);
    }
}

/// The requests of a client.
#[derive(Default)]
struct Requests {
    /// The client knows how all requests below this number ended. One that comes late, over an old
    /// connection, is not done.
    known_below: u64,
    open: BTreeMap<u64, Asked>,
}

/// The lock table, with the requests of each client.
pub struct LockServer {
    host: Host,
    locks: Locks,
    asked: Mutex<BTreeMap<ClientId, Requests>>,
}

/// Makes a client's owner unique among all.
fn of_client(client: ClientId, owner: u64) -> u128 {
    u128::from(client.raw()) << 64 | u128::from(owner)
}

impl LockServer {
    /// A server without locks.
    pub fn new(host: Host) -> LockServer {
        LockServer { host, locks: Locks::default(), asked: Mutex::default() }
    }

    /// Answers a request, or a repetition of it. Owners of locks are the client's own numbers.
    pub fn ask(&self, client: ClientId, request: LockRequest) -> Answer<Option<FileLock>> {
        let mut outcome = {
            let mut all = self.asked.lock();
            let Requests { known_below, open: asked } = all.entry(client).or_default();
            *known_below = request.known_below.max(*known_below);
            if request.number < *known_below {
                return Answer::err(FsError::Interrupted);
            }
            let open = asked.split_off(known_below);
            // The owners keep what they were granted.
            std::mem::replace(asked, open).into_values().for_each(Asked::learned);
            if let LockOperation::GiveUp(number) = request.operation {
                let ended = Asked::ended(Err(FsError::Interrupted), Grant::Over);
                asked.insert(number, ended).into_iter().for_each(Asked::give_up);
            }
            let known = asked.entry(request.number).or_insert_with(|| self.begin(client, request.operation));
            known.outcome.clone()
        };
        let known = *outcome.borrow_and_update();
        if let Some(known) = known {
            return Answer::Now(known);
        }
        Answer::later(async move {
            let outcome = outcome.wait_for(Option::is_some).await.map_err(|_| FsError::Interrupted)?;
            outcome.unwrap_or(Err(FsError::Interrupted))
        })
    }

    fn begin(&self, client: ClientId, operation: LockOperation) -> Asked {
        let own = |lock: FileLock| FileLock { owner: of_client(client, lock.owner as u64), ..lock };
        match operation {
            LockOperation::Test(file, lock) => Asked::ended(self.locks.test(file, &own(lock)), Grant::Over),
            LockOperation::Release(file, space, owner) => {
                for space in [space, LockSpace::Mixed] {
                    self.locks.release_owner(file, space, of_client(client, owner));
                }
                Asked::ended(Ok(None), Grant::Over)
            }
            LockOperation::GiveUp(_) => Asked::ended(Ok(None), Grant::Over),
            LockOperation::Set(file, lock, wait) => match self.locks.set_unlearned(file, own(lock), wait) {
                Answer::Now(Ok(unlearned)) => Asked::ended(Ok(None), Grant::Granted(unlearned)),
                Answer::Now(Err(e)) => Asked::ended(Err(e), Grant::Over),
                Answer::Later(granted) => self.wait(granted),
            },
        }
    }

    /// Has a task wait for a lock.
    fn wait(&self, granted: BoxFuture<Result<Unlearned, FsError>>) -> Asked {
        let (tell, outcome) = watch::channel(None);
        let grant = Arc::new(Mutex::new(Grant::Waits(granted)));
        let asked = Asked { outcome, grant: grant.clone() };
        self.host.tasks.spawn(Box::pin(poll_fn(move |cx| {
            let mut grant = grant.lock();
            let Grant::Waits(granted) = &mut *grant else { return Poll::Ready(()) };
            let Poll::Ready(granted) = granted.as_mut().poll(cx) else { return Poll::Pending };
            let outcome = granted.as_ref().map(|_| None).map_err(|e| *e);
            *grant = granted.map_or(Grant::Over, Grant::Granted);
            tell.send_replace(Some(outcome));
            Poll::Ready(())
        })));
        asked
    }

    /// The locks on a file, and the requests that wait for some.
    pub fn on_file(&self, file: FileId) -> LocksOnFile {
        let of = |lock: FileLock| {
            let client = ClientId::new((lock.owner >> 64) as u32);
            ClientLock { client, lock: FileLock { owner: u128::from(lock.owner as u64), ..lock } }
        };
        let (held, waiting) = self.locks.on_file(file);
        LocksOnFile { held: held.into_iter().map(of).collect(), waiting: waiting.into_iter().map(of).collect() }
    }

    /// Gives a client the locks that it had in a table before this one. Owners of locks are the
    /// client's own numbers.
    pub fn restore(&self, client: ClientId, locks: &[(FileId, FileLock)]) {
        for (file, lock) in locks {
            let own = FileLock { owner: of_client(client, lock.owner as u64), ..*lock };
            if !matches!(self.locks.set(*file, own, false), Answer::Now(Ok(()))) {
                tracing::error!(%client, %file, "a file lock from before the start is not free any more");
            }
        }
    }

    /// Drops all locks and requests of a client that is gone.
    pub fn leave(&self, client: ClientId) {
        let asked = self.asked.lock().remove(&client);
        asked.into_iter().flat_map(|requests| requests.open.into_values()).for_each(Asked::give_up);
        self.locks.release_owners(|owner| (owner >> 64) as u32 == client.raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::sim::Sim;

    #[test]
    fn locks_on_a_file_are_told_with_those_that_are_waited_for() {
        let sim = Sim::new(1);
        let server = LockServer::new(sim.machine("one").host());
        let (file, one, two) = (FileId::new(9), ClientId::new(1), ClientId::new(2));
        let lock = |owner, exclusive| {
            let (space, exclusive) = (LockSpace::Mixed, Some(exclusive));
            FileLock { space, owner, pid: owner as u32, exclusive, start: 0, end: 9 }
        };
        let set = |client, number, lock| {
            let operation = LockOperation::Set(file, lock, true);
            server.ask(client, LockRequest { number, known_below: 1, operation })
        };
        assert_eq!(server.on_file(file), LocksOnFile::default());
        assert!(matches!(set(one, 1, lock(7, true)), Answer::Now(Ok(None))));
        let waits = [set(two, 1, lock(7, false)), set(one, 2, lock(8, true))];
        let known = server.on_file(file);
        assert_eq!(known.held, [ClientLock { client: one, lock: lock(7, true) }]);
        let wanted =
            [ClientLock { client: two, lock: lock(7, false) }, ClientLock { client: one, lock: lock(8, true) }];
        assert_eq!(known.waiting, wanted);
        drop(waits);
    }

    #[test]
    fn regression_a_request_that_comes_after_it_was_given_up_locks_nothing() {
        let sim = Sim::new(1);
        let server = LockServer::new(sim.machine("one").host());
        let (file, one, two) = (FileId::new(9), ClientId::new(1), ClientId::new(2));
        let exclusive = Some(true);
        let lock = FileLock { space: LockSpace::Mixed, owner: 7, pid: 1, exclusive, start: 0, end: 9 };
        let ask = |client, number, known_below, operation| {
            let answer = server.ask(client, LockRequest { number, known_below, operation });
            sim.block_on(async move { answer.await })
        };
        let set = LockOperation::Set(file, lock, false);
        assert_eq!(ask(one, 2, 1, LockOperation::GiveUp(1)), Ok(None));
        assert_eq!(ask(one, 1, 1, set), Err(FsError::Interrupted));
        assert_eq!(ask(one, 3, 3, LockOperation::Test(file, lock)), Ok(None));
        assert_eq!(ask(one, 1, 1, set), Err(FsError::Interrupted));
        assert_eq!(ask(two, 1, 1, set), Ok(None), "no client has it");
        // The next session of the client begins with 1 again.
        server.leave(two);
        server.leave(one);
        assert_eq!(ask(one, 1, 1, set), Ok(None));
    }
}
