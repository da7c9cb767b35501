//! A client's side of the file system's lock table.

use crate::lock_server::{LockOperation, LockRequest, LockServer};
use host::Host;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use types::{Answer, BoxFuture, ClientId, FileId, FsError};
use vfs::fs::{FileLock, LockSpace};
use vfs::locks::{LockService, LockTable};

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
    /// The locks that owners have learned of, by file and owner: those of one owner never exclude
    /// each other.
    held: HashMap<(FileId, u128), LockTable>,
    /// How often the locks were listed for a new table. Answers that were asked for before may come
    /// from the former one.
    listed: u64,
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
    /// Notes what an owner has given up by asking, whether it gets something for it or not. The
    /// table may let others in before the owner learns of anything.
    fn asked(&mut self, operation: &LockOperation) {
        match *operation {
            LockOperation::Release(..) => self.learned(operation),
            LockOperation::Set(file, lock, waits) => {
                let Some(held) = self.held.get_mut(&(file, lock.owner)) else { return };
                // A flock that waits to become stronger is free meanwhile.
                let keeps = match (lock.exclusive, waits && lock.space == LockSpace::Flock) {
                    (None, _) => None,
                    (Some(false), _) => Some(false),
                    (Some(true), true) => None,
                    (Some(true), false) => return,
                };
                for before in held.held(file).into_iter().filter(|before| before.space == lock.space) {
                    let is_weaker = lock.exclusive.is_none() || before.exclusive != lock.exclusive;
                    let (start, end) = (before.start.max(lock.start), before.end.min(lock.end));
                    if start <= end && is_weaker && before.exclusive != keeps {
                        let _ = held.set(file, &FileLock { start, end, exclusive: keeps, ..before }, false);
                    }
                }
                if held.is_empty() {
                    self.held.remove(&(file, lock.owner));
                }
            }
            LockOperation::Test(..) | LockOperation::GiveUp(_) => {}
        }
    }

    /// Notes what an owner has learned.
    fn learned(&mut self, operation: &LockOperation) {
        match *operation {
            LockOperation::Set(file, lock, _) => {
                let held = self.held.entry((file, lock.owner)).or_default();
                // Within one owner a lock never waits.
                let _ = held.set(file, &lock, false);
                if held.is_empty() {
                    self.held.remove(&(file, lock.owner));
                }
            }
            LockOperation::Release(file, space, owner) => {
                let owner = u128::from(owner);
                let Some(held) = self.held.get_mut(&(file, owner)) else { return };
                for space in [space, LockSpace::Mixed] {
                    let _ = held.release_owner(file, space, owner);
                }
                if held.is_empty() {
                    self.held.remove(&(file, owner));
                }
            }
            LockOperation::Test(..) | LockOperation::GiveUp(_) => {}
        }
    }

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

    /// The locks that owners have learned of, for a table that has forgotten them. Ask before that
    /// table gets any request.
    pub fn list(&self) -> Vec<(FileId, FileLock)> {
        let numbers = &mut *self.numbers.lock();
        numbers.listed += 1;
        numbers.held.values().flat_map(LockTable::all_held).collect()
    }

    fn ask(&self, operation: LockOperation) -> Answer<Option<FileLock>> {
        let request = {
            let numbers = &mut *self.numbers.lock();
            numbers.asked(&operation);
            numbers.next(operation)
        };
        let (host, way, numbers) = (self.host.clone(), self.way.clone(), self.numbers.clone());
        let asking = Asking { host, way, numbers, number: request.number, is_over: false };
        Answer::later(async move {
            let answer = loop {
                let listed = asking.numbers.lock().listed;
                let answer = asking.way.ask(request).await;
                let numbers = &mut *asking.numbers.lock();
                if numbers.listed == listed {
                    if answer.is_ok() {
                        numbers.learned(&request.operation);
                    }
                    break answer;
                }
            };
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

    /// A way to a table that may be replaced by an empty one.
    struct Replaced {
        host: Host,
        server: Mutex<Arc<LockServer>>,
    }

    impl LockWay for Arc<Replaced> {
        fn ask(&self, request: LockRequest) -> BoxFuture<Result<Option<FileLock>, FsError>> {
            let (way, client) = (self.clone(), ClientId::new(1));
            Box::pin(async move {
                loop {
                    way.host.clock.sleep(Duration::from_millis(way.host.random.next_u64() % 5)).await;
                    let server = way.server.lock().clone();
                    let answer = server.ask(client, request).await;
                    way.host.clock.sleep(Duration::from_millis(way.host.random.next_u64() % 5)).await;
                    // The answer may have been on its way when the table went.
                    if Arc::ptr_eq(&server, &*way.server.lock()) || way.host.random.next_u64().is_multiple_of(2) {
                        return answer;
                    }
                }
            })
        }
    }

    #[test]
    fn a_new_table_gets_exactly_the_locks_that_owners_believe_to_have() {
        let mut on_the_way = 0;
        for seed in 0..200 {
            let sim = Sim::new(seed);
            let machine = sim.machine("one");
            let host = machine.host();
            let changed = sim.block_on(async {
                let server = || Arc::new(LockServer::new(host.clone()));
                let way = Arc::new(Replaced { host: host.clone(), server: Mutex::new(server()) });
                let locks = SharedLocks::new(host.clone(), Arc::new(way.clone()));
                let file = FileId::new(9);
                locks.set(file, lock(1, Some(true), 0, 99), false).await.unwrap();
                locks.set(file, lock(1, None, 20, 29), false).await.unwrap();
                locks.set(file, lock(2, Some(true), 200, 299), false).await.unwrap();
                locks.release_owner(file, LockSpace::Posix, 2).await.unwrap();
                let last = machine.run(locks.set(file, lock(3, Some(true), 300, 300), false).into_future());
                host.clock.sleep(Duration::from_millis(host.random.next_u64() % 12)).await;
                let (new, held) = (server(), locks.list());
                new.restore(ClientId::new(1), &held);
                *way.server.lock() = new;
                last.await.unwrap().unwrap();
                let other = ClientId::new(2);
                let server = way.server.lock().clone();
                let mut found = Vec::new();
                for (number, at) in (1..).zip([0, 20, 30, 99, 100, 200, 300]) {
                    let operation = LockOperation::Test(file, lock(9, Some(true), at, at));
                    let request = LockRequest { number, known_below: number, operation };
                    found.push(server.ask(other, request).await.unwrap().is_some());
                }
                assert_eq!(found, [true, false, true, true, false, false, true], "seed {seed}");
                held.len() == 2
            });
            on_the_way += usize::from(changed);
        }
        assert!(on_the_way > 20 && on_the_way < 180, "the last lock was asked for {on_the_way} times meanwhile");
    }

    #[test]
    fn what_an_owner_gives_up_by_asking_is_not_listed() {
        let file = FileId::new(9);
        let lock = |space, exclusive, start, end| FileLock { space, exclusive, ..lock(7, None, start, end) };
        let listed = |space, before: Option<bool>, asked: Option<bool>, waits| {
            let mut numbers = Numbers::default();
            numbers.learned(&LockOperation::Set(file, lock(space, before, 0, 9), false));
            numbers.asked(&LockOperation::Set(file, lock(space, asked, 0, 4), waits));
            let held = numbers.held.values().flat_map(LockTable::all_held);
            let held = held.map(|(_, lock)| (lock.start, lock.end, lock.exclusive));
            held.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let (shared, exclusive) = (Some(false), Some(true));
        for space in [LockSpace::Posix, LockSpace::Mixed] {
            assert_eq!(listed(space, exclusive, None, false), [(5, 9, exclusive)]);
            assert_eq!(listed(space, exclusive, shared, true), [(0, 4, shared), (5, 9, exclusive)]);
            assert_eq!(listed(space, shared, exclusive, true), [(0, 9, shared)], "it keeps the weaker one");
            assert_eq!(listed(space, exclusive, exclusive, true), [(0, 9, exclusive)]);
        }
        let whole = (0, u64::MAX);
        let flock = |before, asked, waits| {
            let all = listed(LockSpace::Flock, before, asked, waits);
            all.into_iter().map(|(start, end, exclusive)| ((start, end), exclusive)).collect::<Vec<_>>()
        };
        assert_eq!(flock(shared, exclusive, true), [], "it is free while it waits");
        assert_eq!(flock(shared, exclusive, false), [(whole, shared)]);
        assert_eq!(flock(exclusive, exclusive, true), [(whole, exclusive)]);
        assert_eq!(flock(exclusive, shared, true), [(whole, shared)]);
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
