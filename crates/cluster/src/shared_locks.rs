//! A client's side of the file system's lock table.

use crate::lock_server::{LockOperation, LockRequest, LockServer};
use host::Host;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use types::{Answer, BoxFuture, ClientId, FileId, FsError};
use vfs::fs::{FileLock, LockSpace};
use vfs::locks::LockService;

/// The way to the lock table.
pub trait LockWay: Send + Sync + 'static {
    /// Asks the table. The way repeats a request whose answer is lost. Fails with
    /// [`FsError::Io`] if the client's session is over.
    fn ask(&self, request: LockRequest) -> BoxFuture<Result<Option<FileLock>, FsError>>;
}

/// The way to a table in the same process.
pub struct NearLocks {
    /// The table.
    pub server: Arc<LockServer>,
    /// The client that asks.
    pub client: ClientId,
}

impl LockWay for NearLocks {
    fn ask(&self, request: LockRequest) -> BoxFuture<Result<Option<FileLock>, FsError>> {
        self.server.ask(self.client, request).into_future()
    }
}

/// The numbers of a client's requests.
#[derive(Default)]
struct Numbers {
    last: u64,
    /// Requests of which the client does not know how they ended.
    open: BTreeSet<u64>,
    /// Files with owners that may have locks on them. Only their release is told.
    used: HashSet<(FileId, u128)>,
}

/// The locks of one client, decided by the table that all clients share.
pub struct SharedLocks {
    host: Host,
    way: Arc<dyn LockWay>,
    numbers: Arc<Mutex<Numbers>>,
}

/// A request whose answer has not come. If its caller stops waiting, the request is given up.
struct Asking {
    host: Host,
    way: Arc<dyn LockWay>,
    numbers: Arc<Mutex<Numbers>>,
    number: u64,
    is_over: bool,
}

impl Asking {
    /// The caller has learned how the request ended.
    fn answered(mut self) {
        self.is_over = true;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let give_up = {
            let numbers = &mut *self.numbers.lock();
            if self.is_over {
                numbers.open.remove(&self.number);
                return;
            }
            // The number stays open until the table knows that it was given up.
            numbers.next(LockOperation::GiveUp(self.number))
        };
        let (way, numbers, number) = (self.way.clone(), self.numbers.clone(), self.number);
        self.host.tasks.spawn(Box::pin(async move {
            // If the session is over, the table has dropped the request with it.
            let _ = way.ask(give_up).await;
            let open = &mut numbers.lock().open;
            open.remove(&give_up.number);
            open.remove(&number);
        }));
    }
}

impl Numbers {
    fn next(&mut self, operation: LockOperation) -> LockRequest {
        self.last += 1;
        let number = self.last;
        self.open.insert(number);
        let known_below = self.open.first().copied().unwrap_or(number);
        LockRequest { number, known_below, operation }
    }
}

impl SharedLocks {
    /// The locks of a client whose requests go this way. A new session needs a new one.
    pub fn new(host: Host, way: Arc<dyn LockWay>) -> SharedLocks {
        SharedLocks { host, way, numbers: Arc::default() }
    }

    fn ask(&self, operation: LockOperation) -> Answer<Option<FileLock>> {
        let request = self.numbers.lock().next(operation);
        let (host, way, numbers) = (self.host.clone(), self.way.clone(), self.numbers.clone());
        let asking = Asking { host, way, numbers, number: request.number, is_over: false };
        Answer::later(async move {
            let answer = asking.way.ask(request).await;
            asking.answered();
            answer
        })
    }
}

impl LockService for SharedLocks {
    fn test(&self, file: FileId, lock: FileLock) -> Answer<Option<FileLock>> {
        self.ask(LockOperation::Test(file, lock))
    }

    fn set(&self, file: FileId, lock: FileLock, wait: bool) -> Answer<()> {
        if lock.exclusive.is_some() {
            self.numbers.lock().used.insert((file, lock.owner));
        }
        let set = self.ask(LockOperation::Set(file, lock, wait)).into_future();
        Answer::later(async move { set.await.map(|_| ()) })
    }

    fn release_owner(&self, file: FileId, space: LockSpace, owner: u128) -> Answer<()> {
        if !self.numbers.lock().used.remove(&(file, owner)) {
            return Answer::ok(());
        }
        let released = self.ask(LockOperation::Release(file, space, owner as u64)).into_future();
        Answer::later(async move { released.await.map(|_| ()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::sim::Sim;
    use std::time::Duration;

    fn lock(owner: u64, exclusive: Option<bool>, start: u64, end: u64) -> FileLock {
        FileLock { space: LockSpace::Mixed, owner: owner.into(), pid: 1, exclusive, start, end }
    }

    /// A way on which answers are lost and requests are repeated.
    struct Lossy {
        host: Host,
        near: NearLocks,
    }

    impl LockWay for Lossy {
        fn ask(&self, request: LockRequest) -> BoxFuture<Result<Option<FileLock>, FsError>> {
            let (host, server, client) = (self.host.clone(), self.near.server.clone(), self.near.client);
            Box::pin(async move {
                loop {
                    host.clock.sleep(Duration::from_millis(host.random.next_u64() % 5)).await;
                    let asked = server.ask(client, request).into_future();
                    if host.random.next_u64().is_multiple_of(3) {
                        let _ = host::timeout(&*host.clock, Duration::from_millis(3), asked).await;
                        continue;
                    }
                    return asked.await;
                }
            })
        }
    }

    #[test]
    fn locks_exclude_other_clients_and_go_to_those_who_wait() {
        for seed in 0..40 {
            let sim = Sim::new(seed);
            let host = sim.machine("one").host();
            sim.block_on(async {
                let server = Arc::new(LockServer::new(host.clone()));
                let client = |n| {
                    let near = NearLocks { server: server.clone(), client: ClientId::new(n) };
                    SharedLocks::new(host.clone(), Arc::new(Lossy { host: host.clone(), near }))
                };
                let (one, two, three) = (client(1), client(2), client(3));
                let file = FileId::new(9);
                // The same number of an owner at two clients is two owners.
                one.set(file, lock(7, Some(true), 0, 99), false).await.unwrap();
                assert_eq!(two.set(file, lock(7, Some(true), 50, 60), false).await, Err(FsError::WouldBlock));
                let found = two.test(file, lock(7, Some(false), 0, 10)).await.unwrap();
                assert_eq!(found.map(|l| (l.start, l.end)), Some((0, 99)));
                let waits = two.set(file, lock(7, Some(true), 50, 60), true).into_future();
                let gives_up = three.set(file, lock(7, Some(true), 50, 60), true).into_future();
                let soon = Duration::from_millis(host.random.next_u64() % 30);
                assert!(host::timeout(&*host.clock, soon, gives_up).await.is_err(), "two clients have one lock");
                one.release_owner(file, LockSpace::Posix, 7).await.unwrap();
                waits.await.unwrap();
                assert_eq!(one.set(file, lock(7, Some(true), 55, 55), false).await, Err(FsError::WouldBlock));
                // A dead client's locks are free.
                server.leave(ClientId::new(2));
                one.set(file, lock(7, Some(true), 55, 55), true).await.unwrap();
                one.set(file, lock(7, None, 0, u64::MAX), false).await.unwrap();
                three.set(file, lock(8, Some(true), 0, u64::MAX), true).await.unwrap();
            });
        }
    }

    #[test]
    fn who_gives_up_has_what_it_had_before() {
        for seed in 0..40 {
            let sim = Sim::new(seed);
            let host = sim.machine("one").host();
            sim.block_on(async {
                let server = Arc::new(LockServer::new(host.clone()));
                let client = |n| {
                    let near = NearLocks { server: server.clone(), client: ClientId::new(n) };
                    SharedLocks::new(host.clone(), Arc::new(Lossy { host: host.clone(), near }))
                };
                let (one, two) = (client(1), client(2));
                let file = FileId::new(9);
                one.set(file, lock(1, Some(false), 0, 9), true).await.unwrap();
                // It may be granted, and the answer on its way, when the caller gives up.
                let upgrade = one.set(file, lock(1, Some(true), 0, 9), true).into_future();
                let time = Duration::from_millis(host.random.next_u64() % 12);
                let known = host::timeout(&*host.clock, time, upgrade).await;
                host.clock.sleep(Duration::from_secs(1)).await;
                let found = two.test(file, lock(1, Some(true), 0, 9)).await.unwrap();
                assert_eq!(found.map(|l| l.exclusive), Some(Some(known.is_ok())), "seed {seed}");
            });
        }
    }
}
