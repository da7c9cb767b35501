//! The promise of mounts under delegations, in random storms: there is one copy of each file, as
//! far as all programs can tell.
//!
//! Applications read and write registers, take a lock by linking to its name, and race for names,
//! while clients are cut off, crash and come back within their leases, and the home crashes, and
//! while another client works with callbacks. No client reads what was overwritten before, two
//! never have the lock, a name is made once, and nothing ends as a conflict.

use crate::rig::faults::Faults;
use crate::rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use crate::rig::{Network, Rig, VOLUME};
use host::sim::{Machine, SimDisk};
use host::{Clock, Random, SplitMix64};
use parking_lot::Mutex;
use roam::{Client, Consistency, Line, Settings, Writes};
use roam_proto::message::User;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const REGISTER_COUNT: u64 = 3;
/// Words of a file. Each file has another register at its end, which is written only together with
/// the whole file.
const WORD_COUNT: usize = 6000;
const CLIENT_COUNT: usize = 4;
/// The client that works with callbacks: others see its writes when these are home.
const OTHERWISE: usize = 3;
/// Longest time that a client is away: less than its lease.
const AWAY_MAX_MS: u64 = 15_000;
/// Time without faults after a client comes back: enough for it to know everything again.
const CALM: Duration = Duration::from_secs(25);
const STORM_TIME: Duration = Duration::from_secs(240);

/// Age from which an operation is durable, if the disk is not slow.
const YOUNG: Duration = Duration::from_millis(1_500);

/// The register of reads that do not count.
const NO_REGISTER: u64 = u64::MAX;

/// A read or a write of a register. Without an end, it may have happened or not.
#[derive(Clone, Debug)]
struct Event {
    #[allow(dead_code, reason = "failures show it")]
    client: usize,
    register: u64,
    writes: bool,
    value: u64,
    begun: Duration,
    ended: Option<Duration>,
}

#[derive(Default)]
struct History {
    events: Vec<Event>,
    next: u64,
    /// For each name, which clients made it, and when.
    made: BTreeMap<u64, Vec<(usize, Duration)>>,
    /// Increments under the lock that were done, by client and time, and the number of increments
    /// that were begun.
    counted: (Vec<(usize, Duration)>, u64),
    /// The client in the critical section.
    inside: Option<usize>,
    failures: Vec<String>,
    done: u64,
}

impl History {
    /// A client crashes. Its last writes need not be durable, and its last reads may be of these.
    fn crashed(&mut self, client: usize, now: Duration) {
        let is_young = |when: Duration| when + YOUNG > now;
        for event in self.events.iter_mut().filter(|event| event.client == client && event.ended.is_some_and(is_young))
        {
            match event.writes {
                true => event.ended = None,
                false => event.register = NO_REGISTER,
            }
        }
        let is_kept = |(who, when): &(usize, Duration)| *who != client || !is_young(*when);
        self.made.values_mut().for_each(|made| made.retain(is_kept));
        self.counted.0.retain(is_kept);
        if self.inside == Some(client) {
            // The crashed client never unlocks; the test no longer counts it as inside.
            self.inside = None;
        }
    }
}

struct Laptop {
    network: Network,
    disk: SimDisk,
    running: Option<(Machine, Client)>,
    ended: Arc<AtomicBool>,
    /// The time when it comes back, if it is away.
    away: Option<Duration>,
    calm_until: Duration,
}

struct Worker {
    number: usize,
    client: Client,
    clock: Arc<dyn Clock>,
    random: SplitMix64,
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    verbose: bool,
}

impl Worker {
    async fn work(self, ended: Arc<AtomicBool>) {
        while !self.stop.load(Relaxed) {
            self.clock.sleep(Duration::from_millis(self.random.below(1500))).await;
            let (register, what) = (self.random.below(REGISTER_COUNT), self.random.below(10));
            if self.verbose {
                println!("{:?} client {} begins {what} {register}", self.clock.now(), self.number);
            }
            let done = match what {
                _ if self.number == OTHERWISE => self.write_home(register).await,
                0..=3 => self.read(register).await,
                4..=6 => self.write(register).await,
                7 | 8 => self.count().await,
                _ => self.make_name().await,
            };
            if self.verbose {
                println!("{:?} client {} ends {what}: {done:?}", self.clock.now(), self.number);
            }
            match done {
                Ok(()) => self.history.lock().done += 1,
                Err(FsError::TimedOut | FsError::Exists | FsError::NotFound | FsError::Stale) => {}
                Err(error) => self.history.lock().failures.push(format!("client {}: {error}", self.number)),
            }
        }
        ended.store(true, Relaxed);
    }

    async fn read(&self, register: u64) -> Result<(), FsError> {
        let begun = self.clock.now();
        let id = find(&self.client, &format!("/r{register}")).await?;
        // Sometimes it reads only the end, before the bytes in front of it have come.
        let (values, first) = match self.random.chance(1, 3) {
            true => (self.read_end(id).await?, REGISTER_COUNT),
            false => (read_all(&self.client, id).await?, 0),
        };
        let ended = Some(self.clock.now());
        let value = |bytes: &[u8]| Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| FsError::Io)?));
        let end = values.len().checked_sub(8).ok_or(FsError::Io)?;
        for (register, value) in
            [(register + first, value(&values[..8])?), (register + REGISTER_COUNT, value(&values[end..])?)]
        {
            let event = Event { client: self.number, register, writes: false, value, begun, ended };
            self.history.lock().events.push(event);
        }
        Ok(())
    }

    async fn read_end(&self, id: FileId) -> Result<Vec<u8>, FsError> {
        let handle = self.client.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
        let read = self.client.read(id, handle, 8 * (WORD_COUNT as u64 - 1), 8).await;
        close(&self.client, id, handle).await?;
        read.map(|bytes| bytes.to_vec())
    }

    async fn write(&self, register: u64) -> Result<(), FsError> {
        let (at, words) = (self.begin_write(register), if self.random.chance(1, 2) { 1 } else { WORD_COUNT });
        let value = self.history.lock().events[at].value;
        let whole = (words > 1).then(|| {
            let mut history = self.history.lock();
            let event = Event { register: register + REGISTER_COUNT, ..history.events[at].clone() };
            history.events.push(event);
            history.events.len() - 1
        });
        self.put(&format!("/r{register}"), value, words).await?;
        let mut history = self.history.lock();
        for at in [Some(at), whole].into_iter().flatten() {
            history.events[at].ended = Some(self.clock.now());
        }
        Ok(())
    }

    async fn write_home(&self, register: u64) -> Result<(), FsError> {
        let conflicts = || self.client.look(|replica, _| replica.conflicts().count());
        let (at, before) = (self.begin_write(register), conflicts());
        let value = self.history.lock().events[at].value;
        self.put(&format!("/r{register}"), value, 1).await?;
        self.client.send_all().await?;
        if conflicts() == before {
            self.history.lock().events[at].ended = Some(self.clock.now());
        }
        Ok(())
    }

    fn begin_write(&self, register: u64) -> usize {
        let mut history = self.history.lock();
        history.next += 1;
        let (value, begun) = (history.next, self.clock.now());
        history.events.push(Event { client: self.number, register, writes: true, value, begun, ended: None });
        history.events.len() - 1
    }

    async fn put(&self, path: &str, value: u64, words: usize) -> Result<(), FsError> {
        let (id, handle) = open_to_write(&self.client, path, How::At(0)).await?;
        let written = self.client.write(&Cred::ROOT, id, handle, 0, &value.to_le_bytes().repeat(words)).await;
        close(&self.client, id, handle).await?;
        written.map(drop)
    }

    async fn get(&self, path: &str) -> Result<u64, FsError> {
        let bytes = read_all(&self.client, find(&self.client, path).await?).await?;
        Ok(u64::from_le_bytes(bytes[..].try_into().map_err(|_| FsError::Io)?))
    }

    /// Adds one to a counter, with a lock taken by linking to its name.
    async fn count(&self) -> Result<(), FsError> {
        let own = format!("/own{}", self.number);
        match perform(&self.client, &Op::Make(own.clone(), 0o644)).await {
            Ok(()) | Err(FsError::Exists) => {}
            Err(error) => return Err(error),
        }
        perform(&self.client, &Op::Link(own, "/lock".into())).await?;
        {
            let mut history = self.history.lock();
            if let Some(other) = history.inside.replace(self.number) {
                history.failures.push(format!("clients {other} and {} have the lock", self.number));
            }
            history.counted.1 += 1;
        }
        let counted = async {
            let count = self.get("/count").await?;
            self.put("/count", count + 1, 1).await
        };
        let counted = counted.await;
        {
            let mut history = self.history.lock();
            history.inside = None;
            if counted.is_ok() {
                history.counted.0.push((self.number, self.clock.now()));
            }
        }
        loop {
            match perform(&self.client, &Op::Unlink("/lock".into())).await {
                Err(FsError::TimedOut) => self.clock.sleep(Duration::from_millis(500)).await,
                done => return done,
            }
        }
    }

    async fn make_name(&self) -> Result<(), FsError> {
        let name = self.clock.now().as_secs() / 3;
        perform(&self.client, &Op::MakeDir(format!("/names/{name}"))).await?;
        self.history.lock().made.entry(name).or_default().push((self.number, self.clock.now()));
        Ok(())
    }
}

struct Storm {
    rig: Rig,
    random: SplitMix64,
    laptops: Vec<Laptop>,
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    home_back: Option<Duration>,
    /// How many times a reader had to wait for bytes of a promised store.
    wanted: u64,
    faults: Faults,
    verbose: bool,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let rig = Rig::with_pace(seed, seed.is_multiple_of(2));
        let random = SplitMix64::new(seed ^ 0x5eed);
        let made = rig.sim.block_on(async {
            perform(&rig.fs, &Op::MakeDir("/names".into())).await?;
            for (name, words) in [("/r0", WORD_COUNT), ("/r1", WORD_COUNT), ("/r2", WORD_COUNT), ("/count", 1)] {
                perform(&rig.fs, &Op::Write(name.into(), How::Replace, 0u64.to_le_bytes().repeat(words))).await?;
            }
            Ok::<_, FsError>(())
        });
        made.expect("files");
        let mut storm = Storm {
            random,
            laptops: Vec::new(),
            history: Arc::default(),
            stop: Arc::default(),
            home_back: None,
            wanted: 0,
            faults: Faults::default(),
            verbose: std::env::var_os("STORM_VERBOSE").is_some(),
            rig,
        };
        for number in 0..CLIENT_COUNT {
            let delay = Duration::from_millis(1 + storm.random.below(60));
            let network = storm.rig.network(number as u8 + 1, delay);
            network.repeat_requests.store(seed % 7 < 3, Relaxed);
            storm.rig.enroll(&network, User { uid: 0, gid: 0, groups: Vec::new() });
            let disk = SimDisk::new(&storm.rig.sim, 1 << 30);
            let calm_until = Duration::ZERO;
            storm.laptops.push(Laptop { network, disk, running: None, ended: Arc::default(), away: None, calm_until });
            storm.start(number);
        }
        storm.rig.sim.run_for(Duration::from_secs(2));
        storm
    }

    fn say(&self, what: impl std::fmt::Display) {
        if self.verbose {
            println!("{:?} {what}", self.rig.sim.now());
        }
    }

    fn start(&mut self, number: usize) {
        let seed = self.random.next_u64();
        let laptop = &mut self.laptops[number];
        let machine = self.rig.sim.machine(&format!("laptop {number}"));
        let consistency = if number == OTHERWISE { Consistency::Callbacks } else { Consistency::Strong };
        let settings = Settings { consistency, ..Settings::new(VOLUME) };
        let (host, disk, dialer) = (machine.host(), laptop.disk.mount(&machine), Arc::new(laptop.network.clone()));
        let client =
            self.rig.sim.block_on(Client::open(&host, disk, Line::alone(&host, dialer), settings)).expect("cache");
        laptop.ended.store(false, Relaxed);
        let (history, stop, random, verbose) =
            (self.history.clone(), self.stop.clone(), SplitMix64::new(seed), self.verbose);
        let worker = Worker { number, client: client.clone(), clock: host.clock, random, history, stop, verbose };
        drop(machine.run(worker.work(laptop.ended.clone())));
        laptop.running = Some((machine, client));
        self.say(format!("client {number} starts"));
    }

    fn crash(&mut self, number: usize) {
        let Some((machine, _)) = self.laptops[number].running.take() else { return };
        machine.crash();
        let power = self.random.chance(1, 2);
        if power {
            self.laptops[number].disk.power_loss();
        }
        self.faults.note(if power { "client loses power" } else { "client crashes" });
        self.history.lock().crashed(number, self.rig.sim.now());
        self.say(format!("client {number} crashes{}", if power { ", and loses power" } else { "" }));
    }

    fn step(&mut self) {
        let now = self.rig.sim.now();
        for number in 0..CLIENT_COUNT {
            let laptop = &mut self.laptops[number];
            if laptop.away.is_some_and(|until| now >= until) {
                laptop.away = None;
                laptop.network.up.store(true, Relaxed);
                laptop.calm_until = now + CALM;
                if laptop.running.is_none() {
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
        let laptop = &self.laptops[number];
        let free = laptop.away.is_none() && now >= laptop.calm_until && self.home_back.is_none();
        let away = now + Duration::from_millis(200 + self.random.below(AWAY_MAX_MS));
        match self.random.below(8) {
            0 | 1 if free => {
                self.laptops[number].network.up.store(false, Relaxed);
                self.laptops[number].away = Some(away);
                self.faults.note("network down");
                self.say(format!("client {number} is away until {away:?}"));
            }
            2 if free => {
                self.crash(number);
                self.laptops[number].away = Some(away);
            }
            3 => self.laptops[number].network.lag_ms.store(self.random.below(400), Relaxed),
            4 if self.laptops.iter().all(|laptop| laptop.away.is_none() && now >= laptop.calm_until) => {
                self.rig.crash_home();
                self.faults.note("home crashes");
                if self.random.chance(1, 2) {
                    self.rig.disk.power_loss();
                }
                self.home_back = Some(now + Duration::from_millis(self.random.below(5000)));
                // All leases begin again.
                self.laptops.iter_mut().for_each(|laptop| laptop.calm_until = now + CALM * 2);
                self.say("the home crashes");
            }
            _ => {}
        }
    }

    fn run(&mut self) -> Result<u64, String> {
        while self.rig.sim.now() < STORM_TIME {
            let pause = 100 + self.random.below(2000);
            self.rig.sim.run_for(Duration::from_millis(pause));
            self.step();
        }
        self.say("heals");
        if self.home_back.take().is_some() {
            self.rig.start_home();
        }
        for number in 0..CLIENT_COUNT {
            self.laptops[number].network.up.store(true, Relaxed);
            if self.laptops[number].running.is_none() {
                self.start(number);
            }
        }
        self.rig.sim.run_for(Duration::from_secs(120));
        self.stop.store(true, Relaxed);
        self.rig.sim.run_for(Duration::from_secs(120));
        for (number, laptop) in self.laptops.iter().enumerate() {
            let Some((_, client)) = &laptop.running else { return Err("a client is down".into()) };
            let conflicts: Vec<String> =
                client.look(|replica, _| replica.conflicts().map(|(_, conflict)| format!("{conflict:?}")).collect());
            let waits = client.look(|replica, _| replica.log().len());
            if (!conflicts.is_empty() && number != OTHERWISE) || waits > 0 || !laptop.ended.load(Relaxed) {
                let ended = laptop.ended.load(Relaxed);
                return Err(format!(
                    "client {number}: ended {ended}, {waits} operations wait, conflicts {conflicts:?}"
                ));
            }
        }
        let history = self.history.lock();
        if let Some(failure) = history.failures.first() {
            return Err(failure.clone());
        }
        if let Some((name, makers)) = history.made.iter().find(|(_, makers)| makers.len() > 1) {
            return Err(format!("clients have made {name}, and when: {makers:?}"));
        }
        check(&history.events)?;
        self.wanted = self.laptops.iter().map(|laptop| laptop.network.wanted.load(Relaxed)).sum();
        let count = self.rig.sim.block_on(async { read_all(&self.rig.fs, find(&self.rig.fs, "/count").await?).await });
        let count = u64::from_le_bytes(count.expect("counter")[..].try_into().expect("counter"));
        let (least, most) = (history.counted.0.len() as u64, history.counted.1);
        if !(least..=most).contains(&count) {
            return Err(format!("{least} to {most} were counted, and the counter says {count}"));
        }
        Ok(history.done)
    }
}

/// Checks that each register could have been in one place.
fn check(events: &[Event]) -> Result<(), String> {
    let wrote = |read: &Event| {
        let write = |event: &&Event| event.writes && event.register == read.register && event.value == read.value;
        events.iter().find(write)
    };
    let reads: Vec<&Event> = events.iter().filter(|event| !event.writes && event.register != NO_REGISTER).collect();
    for read in &reads {
        let source = wrote(read);
        if read.value > 0 && source.is_none_or(|write| write.begun > read.ended.unwrap_or_default()) {
            return Err(format!("no client has written {read:?}"));
        }
        // An event that had ended when another began came before that.
        let newer = |write: &&Event| {
            let after = source.is_none_or(|source| source.ended.is_some_and(|ended| ended < write.begun));
            write.writes && write.register == read.register && write.value != read.value && after
        };
        if let Some(write) =
            events.iter().filter(newer).find(|write| write.ended.is_some_and(|ended| ended < read.begun))
        {
            return Err(format!("{read:?} was overwritten by {write:?} before, written by {source:?}"));
        }
        let later = reads
            .iter()
            .filter(|later| later.register == read.register && later.begun > read.ended.unwrap_or_default());
        for later in later {
            let back = match (source, wrote(later)) {
                (Some(source), Some(before)) => before.ended.is_some_and(|ended| ended < source.begun),
                (Some(_), None) => true,
                (None, _) => false,
            };
            if back {
                return Err(format!("{later:?} came after {read:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn sim_clients_under_delegations_see_one_copy() {
    let (mut done, mut wanted, mut failed, mut faults) = (0, 0, Vec::new(), Faults::default());
    for seed in crate::rig::seeds(0, 60) {
        let storm = || {
            let mut storm = Storm::new(seed);
            storm.run().map(|done| (done, storm.wanted, std::mem::take(&mut storm.faults)))
        };
        match catch_unwind(AssertUnwindSafe(storm)) {
            Ok(Ok(more)) => {
                (done, wanted) = (done + more.0, wanted + more.1);
                faults.add(&more.2);
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
    let again = "STORM_VERBOSE=1 cargo test -p roam --test strong -- --nocapture";
    assert!(failed.is_empty(), "{} seeds failed; replay: STORM_SEED={} {again}", failed.len(), failed[0].0);
    println!("{done} operations, {wanted} times bytes of stores that were behind");
    assert!(done > 0 && wanted > 0);
    if std::env::var_os("STORM_SEED").is_none() {
        faults.happened(&["network down", "client crashes", "client loses power", "home crashes"]);
    }
}

/// Files that were exported from the start had the version of files that no other client knows.
#[test]
fn regression_a_name_in_a_home_that_is_new_is_made_once() {
    let rig = Rig::new(1);
    let clients = [1, 2].map(|key| {
        let (client, ..) = rig.new_client(key, Duration::from_millis(50));
        client.set(|settings| settings.consistency = Consistency::Strong);
        client
    });
    rig.sim.run_for(Duration::from_secs(5));
    let made = clients.each_ref().map(|client| rig.sim.block_on(perform(client, &Op::Make("/lock".into(), 0o644))));
    assert_eq!(made.map(|made| made.map(drop)), [Ok(()), Err(FsError::Exists)]);
}

/// The client wrote under a delegation that it has lost, and another client has written since.
#[test]
fn regression_what_waits_to_go_home_is_not_believed_when_its_delegation_was_lost() {
    let rig = Rig::new(1);
    let (one, network, ..) = rig.new_client(1, Duration::from_millis(5));
    let (other, ..) = rig.new_client(2, Duration::from_millis(5));
    for client in [&one, &other] {
        client.set(|settings| settings.consistency = Consistency::Strong);
    }
    rig.sim.run_for(Duration::from_secs(5));
    let write = |client: &Client, bytes: &[u8]| {
        rig.sim.block_on(perform(client, &Op::Write("/file".into(), How::Replace, bytes.to_vec())))
    };
    assert_eq!(write(&one, b"first"), Ok(()));
    rig.sim.block_on(one.send_all()).expect("sent");
    one.set(|settings| settings.writes = Writes::Manual);
    assert_eq!(write(&one, b"second"), Ok(()));
    network.up.store(false, Relaxed);
    rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(write(&other, b"third"), Ok(()));
    rig.sim.block_on(other.send_all()).expect("sent");
    network.up.store(true, Relaxed);
    rig.sim.run_for(Duration::from_secs(20));
    let read = rig.sim.block_on(async { read_all(&one, find(&one, "/file").await?).await });
    assert_eq!(read, Ok(b"third".to_vec()));
}

/// An answer to an operation tells the state of a directory. The client does not take that for its
/// own changes alone.
#[test]
fn what_others_do_before_what_waited_gets_home_is_seen() {
    let rig = Rig::new(1);
    let (one, network, ..) = rig.new_client(1, Duration::from_millis(50));
    let (other, ..) = rig.new_client(2, Duration::from_millis(5));
    for client in [&one, &other] {
        client.set(|settings| settings.consistency = Consistency::Strong);
    }
    rig.sim.run_for(Duration::from_secs(5));
    let done = |client: &Client, op| rig.sim.block_on(perform(client, &op)).map(drop);
    let make = |path: &str| Op::Make(path.into(), 0o644);
    assert_eq!(done(&one, Op::MakeDir("/d".into())), Ok(()));
    assert_eq!(done(&one, make("/d/first")), Ok(()));
    assert_eq!(done(&one, Op::List("/d".into())), Ok(()));
    rig.sim.block_on(one.send_all()).expect("sent");
    // The client hears of everything.
    rig.sim.run_for(Duration::from_secs(30));
    network.up.store(false, Relaxed);
    assert_eq!(done(&one, make("/d/mine")), Ok(()));
    rig.sim.run_for(Duration::from_secs(60));
    network.lag_ms.store(2000, Relaxed);
    network.up.store(true, Relaxed);
    while one.look(|_, state| state == roam::LinkState::Disconnected) {
        rig.sim.run_for(Duration::from_millis(10));
    }
    assert_eq!(done(&other, make("/d/between")), Ok(()));
    rig.sim.block_on(other.send_all()).expect("sent");
    assert!(one.look(|replica, _| !replica.log().is_empty()), "the waiting operation is home already");
    network.lag_ms.store(0, Relaxed);
    rig.sim.block_on(one.send_all()).expect("sent");
    for path in ["/d/first", "/d/mine", "/d/between"] {
        assert!(rig.sim.block_on(find(&one, path)).is_ok(), "{path}");
    }
}
