//! Locks between mounts under `strong`, in random storms. Programs count under a lock, while
//! clients are cut off for longer than their leases, crash, and are interrupted, messages come late
//! and twice, and the home crashes. No two programs whose count succeeded have counted the same
//! number.

use crate::rig::faults::Faults;
use crate::rig::session::{How, Op, close, find, open_to_write, perform, read_all, read_open};
use crate::rig::{Network, Rig, VOLUME};
use host::sim::{Machine, SimDisk};
use host::{Clock, Random, SplitMix64, timeout};
use parking_lot::Mutex;
use roam::{Client, Consistency, Line, Settings};
use roam_proto::lock::OPEN_COUNT_MAX;
use roam_proto::message::User;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::{Cred, FileLock, FileSystem, Handle, LockSpace};

const CLIENT_COUNT: usize = 3;
/// Programs on each client.
const PROGRAM_COUNT: u64 = 2;
const STORM_TIME: Duration = Duration::from_secs(400);
/// Longest time that a client is cut off: sometimes longer than a lease.
const AWAY_MAX_MS: u64 = 60_000;
const SECOND: Duration = Duration::from_secs(1);

fn lock(owner: u64, exclusive: Option<bool>, start: u64, end: u64) -> FileLock {
    FileLock { space: LockSpace::Mixed, owner: owner.into(), pid: owner as u32, exclusive, start, end }
}

fn whole(owner: u64, exclusive: Option<bool>) -> FileLock {
    lock(owner, exclusive, 0, u64::MAX)
}

#[derive(Default)]
struct History {
    /// For each value of the counter, the program whose count to it succeeded.
    counted: BTreeMap<u64, (usize, u64)>,
    begun: u64,
    interrupted: u64,
    lost: u64,
    failures: Vec<String>,
}

struct Program {
    client: Client,
    clock: Arc<dyn Clock>,
    /// The client's number, and the program's own.
    number: (usize, u64),
    random: SplitMix64,
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    verbose: bool,
}

impl Program {
    async fn work(self) {
        while !self.stop.load(Relaxed) {
            self.clock.sleep(Duration::from_millis(self.random.below(3000))).await;
            let counted = self.count().await;
            if self.verbose {
                println!("{:?} {:?} {counted:?}", self.clock.now(), self.number);
            }
            match counted {
                Ok(()) | Err(FsError::TimedOut | FsError::WouldBlock | FsError::Interrupted) => {}
                Err(FsError::Io) => self.history.lock().lost += 1,
                Err(error) => self.history.lock().failures.push(format!("{:?}: {error}", self.number)),
            }
        }
    }

    async fn count(&self) -> Result<(), FsError> {
        let (id, handle) = open_to_write(&self.client, "/count", How::At(0)).await?;
        // Each kernel has owners of its own.
        let owner = 1 << 40 | (self.number.0 as u64) << 8 | self.number.1;
        let counted = self.count_locked(id, handle, owner).await;
        let unlocked = match self.random.below(3) {
            // The close below unlocks.
            0 => Ok(()),
            _ => self.client.setlk(id, handle, whole(owner, None), false).await,
        };
        let flushed = self.client.flush(id, handle, owner).await;
        self.client.release(id, handle, Some(owner)).await?;
        counted.and(unlocked).and(flushed)
    }

    async fn count_locked(&self, id: FileId, handle: Handle, owner: u64) -> Result<(), FsError> {
        let waits = self.random.chance(3, 4);
        let locked = self.client.setlk(id, handle, whole(owner, Some(true)), waits);
        let patience = Duration::from_millis(self.random.below(if waits { 30_000 } else { 200_000 }));
        match timeout(&*self.clock, patience, locked.into_future()).await {
            Ok(locked) => locked?,
            Err(_) => {
                self.history.lock().interrupted += 1;
                return Err(FsError::Interrupted);
            }
        }
        let bytes = read_open(&self.client, id, handle).await?;
        let count = u64::from_le_bytes(bytes[..].try_into().map_err(|_| FsError::InvalidArgument)?);
        if self.verbose {
            println!("{:?} {:?} has the lock, and reads {count}", self.clock.now(), self.number);
        }
        // A program may hold a lock for long.
        let longest = if self.random.chance(1, 20) { 2 * AWAY_MAX_MS } else { 4000 };
        self.clock.sleep(Duration::from_millis(self.random.below(longest))).await;
        self.history.lock().begun += 1;
        self.client.write(&Cred::ROOT, id, handle, 0, &(count + 1).to_le_bytes()).await?;
        self.client.fsync(id, handle, false).await?;
        if self.verbose {
            println!("{:?} {:?} has written {}", self.clock.now(), self.number, count + 1);
        }
        self.client.send_all().await?;
        let other = self.history.lock().counted.insert(count + 1, self.number);
        if let Some(other) = other {
            let failure = format!("{:?} {:?} and {other:?} counted {}", self.clock.now(), self.number, count + 1);
            self.history.lock().failures.push(failure);
        }
        Ok(())
    }
}

struct Laptop {
    network: Network,
    disk: SimDisk,
    running: Option<(Machine, Client)>,
    away: Option<Duration>,
}

struct Storm {
    rig: Rig,
    random: SplitMix64,
    laptops: Vec<Laptop>,
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    home_back: Option<Duration>,
    faults: Faults,
    verbose: bool,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let rig = Rig::with_pace(seed, seed.is_multiple_of(2));
        let random = SplitMix64::new(seed ^ 0x10c4);
        let made = Op::Write("/count".into(), How::Replace, 0u64.to_le_bytes().to_vec());
        rig.sim.block_on(perform(&rig.fs, &made)).expect("made");
        let verbose = std::env::var_os("STORM_VERBOSE").is_some();
        let (history, stop) = (Arc::default(), Arc::default());
        let faults = Faults::default();
        let mut storm = Storm { rig, random, laptops: Vec::new(), history, stop, home_back: None, faults, verbose };
        for number in 0..CLIENT_COUNT {
            let delay = Duration::from_millis(1 + storm.random.below(60));
            let network = storm.rig.network(number as u8 + 1, delay);
            network.repeat_requests.store(storm.random.chance(1, 2), Relaxed);
            storm.rig.enroll(&network, User { uid: 0, gid: 0, groups: Vec::new() });
            let disk = SimDisk::new(&storm.rig.sim, 1 << 30);
            storm.laptops.push(Laptop { network, disk, running: None, away: None });
            storm.start(number);
        }
        storm.rig.sim.run_for(2 * SECOND);
        storm
    }

    fn say(&self, what: impl std::fmt::Display) {
        if self.verbose {
            println!("{:?} {what}", self.rig.sim.now());
        }
    }

    fn start(&mut self, number: usize) {
        let laptop = &mut self.laptops[number];
        let machine = self.rig.sim.machine(&format!("laptop {number}"));
        let settings = Settings { consistency: Consistency::Strong, ..Settings::new(VOLUME) };
        let (host, disk, dialer) = (machine.host(), laptop.disk.mount(&machine), Arc::new(laptop.network.clone()));
        let opened = Client::open(&host, disk, Line::alone(&host, dialer), settings);
        let client = self.rig.sim.block_on(opened).expect("cache");
        for program in 0..PROGRAM_COUNT {
            let (history, stop, verbose) = (self.history.clone(), self.stop.clone(), self.verbose);
            let random = SplitMix64::new(self.random.next_u64());
            let (client, clock, number) = (client.clone(), host.clock.clone(), (number, program));
            drop(machine.run(Program { client, clock, number, random, history, stop, verbose }.work()));
        }
        laptop.running = Some((machine, client));
        self.say(format!("client {number} starts"));
    }

    fn step(&mut self) {
        if self.verbose {
            let count =
                self.rig.sim.block_on(async { read_all(&self.rig.fs, find(&self.rig.fs, "/count").await?).await });
            println!("{:?} home {count:?}", self.rig.sim.now());
        }
        let now = self.rig.sim.now();
        for number in 0..CLIENT_COUNT {
            if self.laptops[number].away.is_some_and(|until| now >= until) {
                self.laptops[number].away = None;
                self.laptops[number].network.up.store(true, Relaxed);
                if self.laptops[number].running.is_none() {
                    self.start(number);
                }
                self.say(format!("client {number} is back"));
            }
        }
        if self.home_back.is_some_and(|until| now >= until) {
            self.home_back = None;
            self.rig.start_home();
            self.say("the home starts");
        }
        let number = self.random.below(CLIENT_COUNT as u64) as usize;
        let away = now + Duration::from_millis(200 + self.random.below(AWAY_MAX_MS));
        let is_here = self.laptops[number].away.is_none();
        let laptop = &mut self.laptops[number];
        match self.random.below(12) {
            0 | 1 if is_here => {
                laptop.network.up.store(false, Relaxed);
                laptop.away = Some(away);
                self.faults.note("network down");
                self.say(format!("client {number} is away until {away:?}"));
            }
            2 if is_here => {
                if let Some((machine, _)) = laptop.running.take() {
                    machine.crash();
                    self.faults.note("client crashes");
                }
                laptop.away = Some(away);
                self.say(format!("client {number} crashes until {away:?}"));
            }
            3 => laptop.network.lag_ms.store(self.random.below(400), Relaxed),
            4 => laptop.network.answer_lag_ms.store(self.random.below(400), Relaxed),
            5 => {
                let lose = self.random.chance(1, 3);
                laptop.network.lose_answers.store(lose, Relaxed);
                if lose {
                    self.faults.note("answers lost");
                }
            }
            6 if self.home_back.is_none() && self.random.chance(1, 3) => {
                self.rig.crash_home();
                self.faults.note("home crashes");
                self.home_back = Some(now + Duration::from_millis(self.random.below(5000)));
                self.say("the home crashes");
            }
            _ => {}
        }
    }

    fn run(&mut self) -> Result<(History, Faults), String> {
        while self.rig.sim.now() < STORM_TIME {
            let pause = 100 + self.random.below(3000);
            self.rig.sim.run_for(Duration::from_millis(pause));
            self.step();
        }
        self.say("heals");
        if self.home_back.take().is_some() {
            self.rig.start_home();
        }
        for number in 0..CLIENT_COUNT {
            let network = &self.laptops[number].network;
            network.up.store(true, Relaxed);
            network.lose_answers.store(false, Relaxed);
            if self.laptops[number].running.is_none() {
                self.start(number);
            }
        }
        let counted = self.history.lock().counted.len();
        self.rig.sim.run_for(120 * SECOND);
        self.stop.store(true, Relaxed);
        self.rig.sim.run_for(60 * SECOND);
        let history = std::mem::take(&mut *self.history.lock());
        if let Some(failure) = history.failures.first() {
            return Err(failure.clone());
        }
        if history.counted.len() <= counted {
            return Err("no program has counted since all is well: some program has a lock and does not know it".into());
        }
        let count = self.rig.sim.block_on(async { read_all(&self.rig.fs, find(&self.rig.fs, "/count").await?).await });
        let count = u64::from_le_bytes(count.expect("counter")[..].try_into().expect("counter"));
        let most = history.counted.last_key_value().map_or(0, |(count, _)| *count);
        if count < most {
            return Err(format!("{most} was counted, and the counter says {count}"));
        }
        Ok((history, std::mem::take(&mut self.faults)))
    }
}

#[test]
fn sim_counters_under_locks_count_everything_once() {
    let (mut all, mut failed) = (History::default(), Vec::new());
    let (mut counted, mut faults) = (0, Faults::default());
    for seed in crate::rig::seeds(0, 40) {
        match catch_unwind(AssertUnwindSafe(|| Storm::new(seed).run())) {
            Ok(Ok((history, more))) => {
                faults.add(&more);
                counted += history.counted.len();
                all.begun += history.begun;
                all.interrupted += history.interrupted;
                all.lost += history.lost;
            }
            Ok(Err(failure)) => failed.push((seed, failure)),
            Err(_) => failed.push((seed, "a panic".into())),
        }
        if !failed.is_empty() && std::env::var_os("STORM_KEEP_GOING").is_none() {
            break;
        }
    }
    for (seed, failure) in &failed {
        println!("seed {seed}: {failure}");
    }
    let again = "STORM_VERBOSE=1 cargo test -p roam --test locking -- --nocapture";
    assert!(failed.is_empty(), "{} seeds failed; replay: STORM_SEED={} {again}", failed.len(), failed[0].0);
    println!("{counted} counted of {} begun, {} interrupted, {} lost", all.begun, all.interrupted, all.lost);
    assert!(counted > 0 && all.interrupted > 0 && all.lost > 0);
    if std::env::var_os("STORM_SEED").is_none() {
        faults.happened(&["network down", "client crashes", "answers lost", "home crashes"]);
    }
}

/// Two clients under `strong` that have one file open.
struct Two {
    rig: Rig,
    clients: [Client; 2],
    networks: [Network; 2],
    handles: [(FileId, Handle); 2],
}

impl Two {
    fn new() -> Two {
        Two::of(Rig::new(1), Duration::from_millis(5))
    }

    fn of(rig: Rig, delay: Duration) -> Two {
        let (mut clients, mut networks) = (Vec::new(), Vec::new());
        for key in [1, 2] {
            let (client, network, ..) = rig.new_client(key, delay);
            client.set(|settings| settings.consistency = Consistency::Strong);
            clients.push(client);
            networks.push(network);
        }
        rig.sim.run_for(5 * SECOND);
        let handles = [0, 1].map(|client: usize| {
            rig.sim.block_on(open_to_write(&clients[client], "/file", How::At(0))).expect("opened")
        });
        let array = |_| unreachable!("there are two");
        let clients = clients.try_into().map_err(array).expect("two");
        Two { rig, clients, networks: networks.try_into().map_err(|_| ()).expect("two"), handles }
    }

    fn set(&self, client: usize, lock: FileLock) -> Result<(), FsError> {
        let (id, handle) = self.handles[client];
        self.rig.sim.block_on(self.clients[client].setlk(id, handle, lock, false).into_future())
    }

    fn write(&self, client: usize) -> Result<u32, FsError> {
        let (id, handle) = self.handles[client];
        self.rig.sim.block_on(self.clients[client].write(&Cred::ROOT, id, handle, 0, b"text").into_future())
    }
}

#[test]
fn locks_of_two_mounts_exclude_each_other_by_bytes() {
    let two = Two::new();
    assert_eq!(two.set(0, lock(7, Some(true), 0, 9)), Ok(()));
    assert_eq!(two.set(1, lock(7, Some(true), 9, 12)), Err(FsError::WouldBlock), "owners of two mounts differ");
    assert_eq!(two.set(1, lock(7, Some(true), 10, 12)), Ok(()));
    let (id, handle) = two.handles[1];
    let test = |wanted| two.rig.sim.block_on(two.clients[1].getlk(id, handle, wanted).into_future());
    let found = test(lock(8, Some(false), 0, 20)).expect("asked").expect("in the way");
    assert_eq!(
        (found.start, found.end, found.exclusive),
        (10, 12, Some(true)),
        "the client knows its own mount's lock"
    );
    let found = test(lock(7, Some(false), 0, 20)).expect("asked").expect("in the way");
    assert_eq!((found.start, found.end, found.exclusive, found.pid), (0, 9, Some(true), 0));
    assert_eq!(two.set(0, lock(7, Some(false), 0, 9)), Ok(()), "the lock becomes weaker");
    assert_eq!(two.set(1, lock(9, Some(false), 5, 9)), Ok(()));
    // Closing unlocks the rest.
    two.rig.sim.block_on(close(&two.clients[0], two.handles[0].0, two.handles[0].1)).expect("closed");
    assert_eq!(two.set(1, lock(9, Some(true), 5, 9)), Err(FsError::WouldBlock), "another owner closed");
}

#[test]
fn a_lock_is_lost_with_its_lease_and_the_program_that_had_it_hears_of_that() {
    let two = Two::new();
    assert_eq!(two.set(0, whole(7, Some(true))), Ok(()));
    assert_eq!(two.write(0), Ok(4));
    two.rig.sim.block_on(two.clients[0].send_all()).expect("sent");
    two.networks[0].up.store(false, Relaxed);
    assert_eq!(two.set(1, whole(8, Some(true))), Err(FsError::WouldBlock), "the other's lease goes on");
    two.rig.sim.run_for(40 * SECOND);
    assert_eq!(two.set(1, whole(8, Some(true))), Ok(()));
    assert_eq!(two.write(0), Err(FsError::TimedOut));
    two.networks[0].up.store(true, Relaxed);
    two.rig.sim.run_for(30 * SECOND);
    assert_eq!(two.write(0), Err(FsError::Io), "the program believes that it has the lock");
    let (id, handle) = two.handles[0];
    two.rig.sim.block_on(two.clients[0].flush(id, handle, 7).into_future()).expect("flushed");
    assert_eq!(two.write(0), Ok(4), "the program has closed the file, which others have open");
    assert_eq!(two.set(0, whole(7, Some(true))), Err(FsError::WouldBlock));
}

#[test]
fn a_lock_outlives_the_home() {
    let two = Two::new();
    assert_eq!(two.set(0, whole(7, Some(true))), Ok(()));
    two.rig.crash_home();
    two.rig.sim.run_for(3 * SECOND);
    two.rig.start_home();
    two.rig.sim.run_for(2 * SECOND);
    assert_eq!(two.set(1, whole(8, Some(true))), Err(FsError::WouldBlock));
    assert_eq!(two.write(0), Ok(4));
    assert_eq!(two.set(0, whole(7, None)), Ok(()));
    assert_eq!(two.set(1, whole(8, Some(true))), Ok(()));
}

#[test]
fn a_client_that_comes_back_to_a_new_home_has_its_locks_before_others_get_any() {
    let two = Two::new();
    assert_eq!(two.set(0, whole(7, Some(true))), Ok(()));
    two.networks[0].up.store(false, Relaxed);
    two.rig.crash_home();
    two.rig.start_home();
    two.rig.sim.run_for(2 * SECOND);
    let (id, handle) = two.handles[1];
    let other = two.clients[1].setlk(id, handle, whole(8, Some(true)), false).into_future();
    let asked = Arc::<Mutex<Option<Result<(), FsError>>>>::default();
    let machine = two.rig.sim.machine("a program");
    let told = asked.clone();
    drop(machine.run(async move { *told.lock() = Some(other.await) }));
    two.rig.sim.run_for(10 * SECOND);
    assert_eq!(*asked.lock(), None, "the home does not wait for clients that may have had locks");
    two.networks[0].up.store(true, Relaxed);
    two.rig.sim.run_for(15 * SECOND);
    assert_eq!(*asked.lock(), Some(Err(FsError::WouldBlock)));
    assert_eq!(two.write(0), Ok(4));
}

#[test]
fn a_program_that_gives_up_waiting_leaves_the_lock_to_others() {
    let two = Two::new();
    assert_eq!(two.set(0, whole(7, Some(true))), Ok(()));
    let (id, handle) = two.handles[1];
    let patient = two.clients[1].setlk(id, handle, whole(8, Some(true)), true).into_future();
    let clock = two.rig.sim.machine("a program").host().clock;
    assert!(two.rig.sim.block_on(timeout(&*clock, 10 * SECOND, patient)).is_err());
    assert_eq!(two.set(0, whole(7, None)), Ok(()));
    assert_eq!(two.set(0, whole(9, Some(true))), Ok(()), "no other request is in its way");
}

/// As flock(2) says, a program that waits to convert its lock has none meanwhile. The home knew
/// that, and the client did not: a program that was interrupted seemed to have its lock still.
#[test]
fn regression_a_conversion_that_is_given_up_leaves_no_lock() {
    let two = Two::new();
    let flock = |owner: u64, exclusive| FileLock { space: LockSpace::Flock, ..whole(owner, exclusive) };
    for client in 0..2 {
        assert_eq!(two.set(client, flock(7, Some(false))), Ok(()));
    }
    let (id, handle) = two.handles[1];
    let patient = two.clients[1].setlk(id, handle, flock(7, Some(true)), true).into_future();
    let clock = two.rig.sim.machine("a program").host().clock;
    assert!(two.rig.sim.block_on(timeout(&*clock, 10 * SECOND, patient)).is_err());
    two.rig.sim.run_for(SECOND);
    assert_eq!(two.set(0, flock(7, Some(true))), Ok(()));
    assert_eq!(two.set(0, flock(7, None)), Ok(()));
    // Its own machine has no lock of it either.
    assert_eq!(two.set(1, flock(8, Some(true))), Ok(()));
}

#[test]
fn a_program_that_waits_for_long_is_in_nobodys_way() {
    let two = Two::new();
    assert_eq!(two.set(0, lock(7, Some(true), 0, 9)), Ok(()));
    let (id, handle) = two.handles[1];
    let waits = two.clients[1].setlk(id, handle, lock(8, Some(true), 0, 9), true).into_future();
    let has = Arc::<Mutex<Option<Result<(), FsError>>>>::default();
    let told = has.clone();
    drop(two.rig.sim.machine("a program").run(async move { *told.lock() = Some(waits.await) }));
    // More requests than a home remembers for a client.
    for _ in 0..OPEN_COUNT_MAX {
        assert_eq!(two.set(1, lock(9, Some(true), 20, 29)), Ok(()));
        assert_eq!(two.set(1, lock(9, None, 20, 29)), Ok(()));
    }
    assert_eq!(*has.lock(), None);
    assert_eq!(two.set(0, lock(7, None, 0, 9)), Ok(()));
    two.rig.sim.run_for(2 * SECOND);
    assert_eq!(*has.lock(), Some(Ok(())));
}

/// A request for a lock looked at the file while the home exchanged it with its new contents. The
/// home then took the file for one that was gone.
#[test]
fn regression_a_lock_is_asked_for_while_the_home_exchanges_the_file() {
    let two = Two::of(Rig::with_pace(1, true), Duration::from_micros(100));
    let (ended, failed) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<FsError>>>::default());
    let machine = two.rig.sim.machine("a program");
    let ((id, handle), client, clock) = (two.handles[1], two.clients[1].clone(), machine.host().clock);
    let (until, told) = (ended.clone(), failed.clone());
    drop(machine.run(async move {
        while !until.load(Relaxed) {
            for exclusive in [Some(true), None] {
                let locked = client.setlk(id, handle, whole(8, exclusive), false).await;
                told.lock().extend(locked.err());
            }
            clock.sleep(Duration::from_micros(100)).await;
        }
    }));
    let (id, handle) = two.handles[0];
    for _ in 0..200 {
        assert_eq!(two.write(0), Ok(4));
        let stored = async {
            two.clients[0].fsync(id, handle, false).await?;
            two.clients[0].send_all().await
        };
        assert_eq!(two.rig.sim.block_on(stored), Ok(()));
    }
    ended.store(true, Relaxed);
    assert_eq!(*failed.lock(), []);
}

/// A client took over nothing that others did to a file that it had made, and that was open and
/// not written yet. So its programs saw an empty file, and what they wrote ended as a conflict.
#[test]
fn regression_a_file_that_is_made_and_not_written_is_seen_as_others_wrote_it() {
    let two = Two::new();
    let read = |number: usize| {
        let (id, handle) = two.handles[number];
        two.rig.sim.block_on(read_open(&two.clients[number], id, handle))
    };
    assert_eq!(two.write(1), Ok(4));
    assert_eq!(read(0), Ok(b"text".to_vec()), "client 0 has made it");
    assert_eq!(two.write(0), Ok(4));
    assert_eq!(two.rig.sim.block_on(two.clients[0].send_all()), Ok(()));
    assert_eq!(two.clients[0].look(|replica, _| replica.conflicts().count()), 0);
}

/// Each write is seen by its program until the next one, and none ends as a conflict: short ones,
/// and long ones, whose bytes come home after the delegation was returned.
#[test]
fn regression_two_write_one_file_in_turn_near_the_home() {
    for (seed, len) in (0..10).flat_map(|seed| [(seed, 8), (seed, 300_000)]) {
        let two = Two::of(Rig::with_pace(seed, true), Duration::from_micros(100));
        let failed = Arc::<Mutex<Vec<String>>>::default();
        let write = |number: usize| {
            let ((id, handle), client, failed) = (two.handles[number], two.clients[number].clone(), failed.clone());
            let machine = two.rig.sim.machine("a program");
            let clock = machine.host().clock;
            let random = SplitMix64::new(seed + number as u64);
            drop(machine.run(async move {
                for round in 0..30_u8 {
                    let (at, own) = (len * number, vec![round; len]);
                    let worked = async {
                        client.write(&Cred::ROOT, id, handle, at as u64, &own).await?;
                        if round % 2 == 0 {
                            client.fsync(id, handle, false).await?;
                            client.send_all().await?;
                        }
                        read_open(&client, id, handle).await
                    };
                    match worked.await {
                        Ok(bytes) if bytes.get(at..at + len) == Some(&own) => {}
                        Ok(bytes) => failed.lock().push(format!("round {round} of {number}: {} bytes", bytes.len())),
                        Err(error) => failed.lock().push(format!("round {round} of {number}: {error}")),
                    }
                    clock.sleep(Duration::from_micros(random.below(2000))).await;
                }
            }));
        };
        write(0);
        write(1);
        two.rig.sim.run_for(60 * SECOND);
        assert_eq!(*failed.lock(), [] as [String; 0], "seed {seed}, length {len}");
        for client in &two.clients {
            let conflicts: Vec<String> =
                client.look(|replica, _| replica.conflicts().map(|(_, conflict)| format!("{conflict:?}")).collect());
            assert_eq!(conflicts, [] as [String; 0], "seed {seed}, length {len}");
        }
    }
}
