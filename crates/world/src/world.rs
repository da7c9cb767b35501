//! One run: a file system on simulated disks and behind simulated links, from its creation to the
//! last check.

use crate::faults::{self, DISK_BYTES, Episode, Fault, Store};
use crate::kernel::Kernel;
use crate::node::Node;
use crate::operation::Generator;
use crate::oracle::{Found, Oracle, new_model};
use crate::twin::Twin;
use crate::worker::{Desk, Shared, Worker};
use client::Client;
use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, Lengths, Limits, Run};
use host::sim::{Crashed, Sim, SimDisk};
use host::{Disk, SplitMix64, join_all};
use manager::api::Manager;
use manager::tree::{PAGE_ROWS_LEAST, PAGE_ROWS_MAX};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stripe::{ScrubReport, StoreState};
use types::{BoxFuture, FileId, FsError, Kind};
use vfs::fs::{Cred, FileSystem, OpenFlags};
use vfs::tree::walk;

mod ordeal;
mod outcome;

use ordeal::Copies;
pub use outcome::{Failure, Options, Outcome};

/// Why a stretch of a run ended early.
enum End {
    Crashed,
    /// The file system refuses to start.
    Refused(String),
    Failed(String),
}

impl From<Crashed> for End {
    fn from(Crashed: Crashed) -> Self {
        End::Crashed
    }
}

fn failed(what: impl std::fmt::Display) -> End {
    End::Failed(what.to_string())
}

/// Runs one world.
pub fn run(seed: u64, options: Options) -> Result<Outcome, Failure> {
    let sim = Sim::new(seed);
    let mut world = World::new(&sim, seed, options);
    let result = sim.block_on(world.run());
    let mut outcome = world.outcome;
    outcome.digest = sim.digest();
    outcome.map_changes = world.map_epochs.lock().change_count;
    if world.create.manager_count == 2 {
        (outcome.two_managers, outcome.two_used) = (1, world.all_used.into());
    }
    for node in world.nodes() {
        let counts = node.counts();
        outcome.remote_stores += 1;
        (outcome.cuts, outcome.store_starts) = (outcome.cuts + counts.cuts, outcome.store_starts + counts.starts);
    }
    let shared = world.shared.lock();
    (outcome.operations, outcome.overlaps, outcome.faults) = (shared.operations, shared.overlaps, shared.faults);
    (outcome.refused_space, outcome.refused_right) = (shared.refused_space, shared.refused_right);
    match shared.failure.clone().or(result.err()) {
        None => Ok(outcome),
        Some(what) => Err(Failure { seed, what, command: options.command(seed) }),
    }
}

/// Reads the whole tree, again and again, while workers change it, until it is to end. Its results
/// depend on the moment, but it never meets an error that a file's removal does not explain.
async fn read_along(
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn host::Clock>,
    shared: Arc<Mutex<Shared>>,
    pause: Duration,
    ends: Arc<AtomicBool>,
) {
    loop {
        clock.sleep(pause.max(Duration::from_millis(1))).await;
        if ends.load(Ordering::Relaxed) {
            return;
        }
        match walk(&*fs).await {
            Ok(_) | Err(FsError::NotFound | FsError::Stale | FsError::NoSuchXattr | FsError::NoSuchAddress) => {}
            Err(e) => {
                shared.lock().failure.get_or_insert(format!("reading along met {e}"));
                return;
            }
        }
    }
}

/// Raises the manager map's epoch.
async fn change_maps(machine: &CoreMachine, epochs: &Mutex<MapEpochs>) {
    let mut asked = 0;
    let changed = machine.change_maps(|config| {
        config.managers.epoch += 1;
        asked = config.managers.epoch;
        let mut epochs = epochs.lock();
        epochs.asked = epochs.asked.max(asked);
    });
    if changed.await.is_ok() {
        let mut epochs = epochs.lock();
        epochs.known = epochs.known.max(asked);
        epochs.change_count += 1;
    }
}

/// Removes everything in a directory.
fn remove_all_in(fs: &Client, dir: FileId) -> BoxFuture<Result<(), FsError>> {
    let fs = fs.clone();
    Box::pin(async move {
        let handle = fs.opendir(&Cred::ROOT, dir).await?;
        let mut cookie = 0;
        loop {
            let entries = fs.readdir(dir, handle, cookie, 100, false).await?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in entries.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
                if entry.kind == Kind::Directory {
                    remove_all_in(&fs, entry.id).await?;
                    fs.rmdir(&Cred::ROOT, dir, &entry.name).await?;
                } else {
                    fs.unlink(&Cred::ROOT, dir, &entry.name).await?;
                }
            }
        }
        fs.releasedir(dir, handle).await
    })
}

struct World {
    sim: Sim,
    random: SplitMix64,
    options: Options,
    create: Create,
    limits: Limits,
    stores: Vec<Store>,
    copies: Copies,
    /// The disk of the consensus engine.
    consensus: SimDisk,
    consensus_faults: faults::Consensus,
    map_epochs: Arc<Mutex<MapEpochs>>,
    /// Mode of the root directory, in which all workers work.
    root_mode: u32,
    manager_lengths: Lengths,
    workers: Vec<Arc<Mutex<Worker>>>,
    oracle: Arc<Mutex<Oracle>>,
    shared: Arc<Mutex<Shared>>,
    episode: Episode,
    /// Stores whose checkpoints have rotted since they were last seen to open.
    rotten: Vec<usize>,
    /// The operator vouches for what the stores have.
    accepts_loss: bool,
    outcome: Outcome,
    created: bool,
    /// All managers had files.
    all_used: bool,
}

/// Bounds of the manager map's epoch: the part of the maps that this world changes.
struct MapEpochs {
    /// Acknowledged, or seen by a start: it is never less from then on.
    known: u64,
    /// Asked for: it is never more.
    asked: u64,
    change_count: u64,
}

/// A started machine of the file system, on a simulated machine.
struct Running {
    on: host::sim::Machine,
    machine: Arc<CoreMachine>,
    twin: Twin,
    kernel: Kernel,
}

/// Size of all caches in bytes: small, so that reads often go to stores.
const CACHE_BYTES: u64 = 4 << 20;
const STORE_BYTES: u64 = 64 << 20;
/// Length of a range of index numbers: short, so that small trees live on all managers.
const INDEX_RANGE_LEN: u64 = 16;
/// Shortest segment of a manager, in bytes: an index node with all attributes that the world sets
/// fits.
const MANAGER_SEGMENT_LEN_LEAST: u32 = 160 << 10;
/// Virtual time that a bad store gets to open.
const BAD_STORE_TIME_MAX: Duration = Duration::from_secs(5);
/// Virtual time that a start, a stop or a scrub may take.
const STEP_TIME_MAX: Duration = Duration::from_secs(3600);

/// Small limits, so that rare events become common.
fn small_limits(seed: u64) -> Limits {
    let random = SplitMix64::new(seed ^ 0x11a1);
    let power = |most: u64| 1u64 << random.below(most + 1);
    Limits {
        in_flight_max: power(6),
        cuts_per_checkpoint_max: power(6),
        restore_step: Duration::from_millis(power(9)),
        ..Limits::default()
    }
}

impl World {
    fn new(sim: &Sim, seed: u64, options: Options) -> Self {
        let random = SplitMix64::new(seed ^ 0x5eed);
        let parity = options.parity.unwrap_or(1 + random.below(2) as u8);
        let count = u64::from(parity) + 2 + random.below(4);
        let create = Create {
            parity,
            block_size: if random.chance(1, 2) { 4096 } else { 65536 },
            manager_count: 1 + random.below(2) as u16,
            store_capacity_bytes: Some(STORE_BYTES + random.below(3) * (8 << 20)),
        };
        let root_mode = if random.chance(1, 2) { 0o777 } else { 0o1777 };
        let manager_lengths = Lengths {
            segment_len_max: [MANAGER_SEGMENT_LEN_LEAST, u32::MAX][random.below(2) as usize],
            page_rows_max: [PAGE_ROWS_LEAST, 10, PAGE_ROWS_MAX][random.below(3) as usize],
        };
        let workers = (0..1 + random.below(4)).map(|index| {
            let generator = Generator::new(seed.wrapping_mul(31).wrapping_add(index), create.block_size, options.fill);
            Arc::new(Mutex::new(Worker { generator, number: 0 }))
        });
        let elsewhere_of_3 = if random.chance(1, 2) { 1 + random.below(3) } else { 0 };
        let stores = (0..count).map(|store| {
            let disk = SimDisk::new(sim, DISK_BYTES);
            let elsewhere = random.chance(elsewhere_of_3, 3);
            let node = elsewhere.then(|| {
                Node::new(sim, format!("store-{store}"), disk.clone(), seed.wrapping_mul(37).wrapping_add(store))
            });
            Store { disk, node }
        });
        let stores = stores.collect();
        World {
            sim: sim.clone(),
            options,
            create,
            limits: if options.usual_limits { Limits::default() } else { small_limits(seed) },
            stores,
            copies: Copies::default(),
            consensus: SimDisk::new(sim, DISK_BYTES),
            consensus_faults: faults::Consensus::default(),
            map_epochs: Arc::new(Mutex::new(MapEpochs { known: 1, asked: 1, change_count: 0 })),
            root_mode,
            manager_lengths,
            workers: workers.collect(),
            oracle: Arc::new(Mutex::new(Oracle::new(&new_model(create.block_size, root_mode)))),
            shared: Arc::new(Mutex::new(Shared { verbose: options.verbose, ..Default::default() })),
            episode: Episode::default(),
            rotten: Vec::new(),
            accepts_loss: false,
            outcome: Outcome::default(),
            created: false,
            all_used: false,
            random,
        }
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.options.verbose {
            println!("{:>12?} -- {}", self.sim.now(), text());
        }
    }

    /// Number of stores that may be bad at a time: parity must make up for them, and the other
    /// stores must hold whole stripes.
    fn bad_max(&self) -> u64 {
        let parity = u64::from(self.create.parity);
        parity.min(self.stores.len() as u64 - parity - 1)
    }

    async fn run(&mut self) -> Result<(), String> {
        self.say(|| {
            let (count, elsewhere, workers) = (self.stores.len(), self.nodes().count(), self.workers.len());
            format!("{:?} on {count} stores, {elsewhere} of them elsewhere, {workers} workers", self.create)
        });
        while self.shared.lock().operations < self.options.operations && self.shared.lock().failure.is_none() {
            match self.stretch().await {
                Ok(()) | Err(End::Crashed) => {}
                Err(End::Failed(what) | End::Refused(what)) => return Err(what),
            }
            self.down();
        }
        if self.shared.lock().failure.is_some() {
            return Ok(());
        }
        match self.last_checks().await {
            Ok(()) => Ok(()),
            Err(End::Failed(what) | End::Refused(what)) => Err(what),
            Err(End::Crashed) => Err("a machine crashed by itself".into()),
        }
    }

    /// One stretch of the run, from a start to the next crash or stop.
    async fn stretch(&mut self) -> Result<(), End> {
        if self.options.faults && self.created {
            if self.episode.bad.is_empty() && self.random.chance(1, 2) {
                self.episode = Episode::new(&self.random, &self.stores, self.bad_max());
                self.say(|| self.episode.bad.iter().map(|b| format!("store {} {:?};", b.store, b.fault)).collect());
            } else if !self.episode.bad.is_empty() && self.random.chance(1, 2) {
                self.heal().await?;
                self.down();
            }
        }
        if self.options.beyond && self.created {
            if self.episode.bad.is_empty() && self.random.chance(1, 2) {
                self.ordeal().await?;
                self.down();
            }
            self.copies.copy(&self.random, &self.stores);
        }
        self.episode.before_start(&self.random, &self.stores);
        if self.options.faults
            && self.created
            && let Some(what) = self.consensus_faults.before_start(&self.random, &self.consensus)
        {
            self.say(|| format!("consensus folder {what}"));
            self.outcome.consensus_faults += 1;
        }
        let on = self.sim.machine("one");
        if self.options.crashes && self.random.chance(1, 8) {
            on.crash_after(1 + self.random.below(2000));
        }
        let mut running = self.start(&on).await?;
        self.settle(&running).await?;
        if self.random.chance(2, 3) {
            // Reading the tree has brought all of it into memory.
            on.crash();
            let on = self.sim.machine("one");
            running = self.start(&on).await?;
        }
        if self.episode.bad.is_empty() && self.random.chance(1, 3) {
            self.find_nothing_wrong(&running).await?;
        }
        self.work(&running).await?;
        let copies =
            (self.options.beyond && self.random.chance(1, 2)).then(|| Copies::at_work(&self.random, &self.stores));
        if copies.is_some() {
            self.work(&running).await?;
        }
        if self.shared.lock().failure.is_some() {
            return Ok(());
        }
        let choice = self.random.below(4);
        if self.options.crashes && choice > if copies.is_some() { 1 } else { 0 } {
            self.say(|| "crash".into());
            return Err(End::Crashed);
        }
        let have_everything = running.machine.maintenance.has_compared_all().await;
        self.stop(&running).await?;
        if let Some(copies) = copies.filter(|_| have_everything) {
            // Its clean end has marked the stores, so that these copies are known to be older.
            self.copies = copies;
        }
        Ok(())
    }

    /// Lets all workers work until they are done or the machine crashes.
    async fn work(&mut self, running: &Running) -> Result<(), End> {
        let on = &running.on;
        if self.options.crashes && self.random.chance(3, 4) {
            let scale = 1 << (4 + self.random.below(11));
            on.crash_after(1 + self.random.below(scale));
        }
        let share = 1 + self.random.below(self.options.operations.div_ceil(self.workers.len() as u64));
        let clock = on.host().clock;
        let tasks = self.workers.iter().enumerate().map(|(index, worker)| {
            let desk = Desk { worker: worker.clone(), index, shared: self.shared.clone() };
            on.run(desk.work(Arc::new(running.kernel.clone()), clock.clone(), share))
        });
        let work = join_all(tasks.collect());
        let pause = Duration::from_millis(self.random.below(3000));
        let fs: Arc<dyn FileSystem> = Arc::new(running.twin.clone());
        let reading_ends = Arc::new(AtomicBool::new(false));
        let reading = self
            .random
            .chance(1, 3)
            .then(|| on.run(read_along(fs, clock.clone(), self.shared.clone(), pause, reading_ends.clone())));
        let trouble = self.trouble(running, clock.clone());
        let ended = match host::first(work, trouble).await {
            host::Either::Left(ended) => ended.into_iter().collect::<Result<Vec<()>, Crashed>>(),
            host::Either::Right(()) => Ok(Vec::new()),
        };
        reading_ends.store(true, Ordering::Relaxed);
        if let Some(reading) = reading {
            // What reads a file system that has stopped meets errors. A crash has ended it.
            let watch = self.sim.machine("watch").host().clock;
            if host::timeout(&*watch, STEP_TIME_MAX, reading).await.is_err() {
                return Err(failed("reading along hangs"));
            }
        }
        self.all_used |= running.machine.managers.iter().all(|manager| manager.status().file_count > 1);
        let done = running.machine.maintenance.done();
        (self.outcome.cleaned, self.outcome.deleted) =
            (self.outcome.cleaned + done.cleaned_count, self.outcome.deleted + done.deleted_count);
        self.outcome.restored += done.redundancy.restored_count;
        self.outcome.cache_hits += running.kernel.hits();
        self.outcome.lock_waits += running.kernel.lock_waits();
        ended?;
        Ok(())
    }

    /// Makes things happen to a file system at work, now and then. Never ends.
    fn trouble(&self, running: &Running, clock: Arc<dyn host::Clock>) -> impl Future<Output = ()> + use<'_> {
        let (on, machine) = (running.on.clone(), running.machine.clone());
        async move {
            loop {
                let scale = 1 << self.random.below(14);
                clock.sleep(Duration::from_micros(1 + self.random.below(1000 * scale))).await;
                match self.random.below(5) {
                    3 => {
                        let (machine, epochs) = (machine.clone(), self.map_epochs.clone());
                        // Errors as below. A change that was not acknowledged may be in force or
                        // not.
                        let _ = on.run(async move { change_maps(&machine, &epochs).await }).await;
                    }
                    0 => {
                        let (machine, clean) = (machine.clone(), self.random.chance(1, 2));
                        // This fails only if the machine crashes first, or if stores are bad: then
                        // workers notice.
                        let _ = on
                            .run(async move {
                                match clean {
                                    true => machine.maintenance.clean().await.map(drop),
                                    false => machine.maintenance.tidy(true).await,
                                }
                            })
                            .await;
                    }
                    1..3 if self.episode.strike(&self.random, &self.stores) => self.shared.lock().faults += 1,
                    _ => {}
                }
            }
        }
    }

    async fn on_machine<T: Send + 'static>(
        &self,
        on: &host::sim::Machine,
        what: &str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, End> {
        let clock = self.sim.machine("watch").host().clock;
        match host::timeout(&*clock, STEP_TIME_MAX, on.run(work)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(failed(format!("{what} hangs"))),
        }
    }

    /// The machines of stores that are on machines of their own.
    fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.stores.iter().filter_map(|store| store.node.as_ref())
    }

    /// Starts the machines of stores, and waits until the healthy ones serve. Stores that are
    /// `missing` stay down, and one that keeps crashing may stay down.
    async fn start_nodes(&self, missing: &[usize]) -> Result<(), End> {
        let clock = self.sim.machine("watch").host().clock;
        for (at, store) in self.stores.iter().enumerate() {
            let Some(node) = &store.node else { continue };
            let stays_down = missing.contains(&at) || self.episode.has(at, Fault::Crash) && self.random.chance(1, 2);
            if !stays_down {
                node.start();
            }
        }
        for (at, store) in self.stores.iter().enumerate() {
            let Some(node) = &store.node else { continue };
            let is_bad = missing.contains(&at) || self.episode.is_bad(at) || self.rotten.contains(&at);
            let time = if is_bad { BAD_STORE_TIME_MAX } else { STEP_TIME_MAX };
            let opened = host::timeout(&*clock, time, node.opened()).await;
            if !is_bad && opened != Ok(true) {
                return Err(failed(format!("store {at} does not open: {opened:?}")));
            }
        }
        Ok(())
    }

    async fn start(&mut self, on: &host::sim::Machine) -> Result<Running, End> {
        if !self.created {
            self.create_all(on).await?;
        }
        let missing = (0..self.stores.len()).filter(|store| self.episode.is_missing(*store)).collect::<Vec<_>>();
        self.start_without(on, &missing).await
    }

    async fn create_all(&mut self, on: &host::sim::Machine) -> Result<(), End> {
        for store in &self.stores {
            store.replace(SimDisk::wipe);
        }
        self.consensus.wipe();
        self.start_nodes(&[]).await?;
        let places: Vec<StorePlace> = self.stores.iter().map(|store| store.place(on)).collect();
        let consensus: Arc<dyn Disk> = self.consensus.mount(on);
        let (host, create) = (on.host(), self.create);
        let work = async move { cluster::machine::create(&host, &places, &consensus, create).await.map_err(failed) };
        self.on_machine(on, "create", work).await??;
        let running = self.start_without(on, &[]).await?;
        self.stop(&running).await?;
        self.created = true;
        Ok(())
    }

    async fn start_without(&self, on: &host::sim::Machine, missing: &[usize]) -> Result<Running, End> {
        self.start_nodes(missing).await?;
        let place = |(at, store): (usize, &Store)| match store.node.is_none() && missing.contains(&at) {
            true => StorePlace::Missing("taken away".into()),
            false => store.place(on),
        };
        let places: Vec<StorePlace> = self.stores.iter().enumerate().map(place).collect();
        let run = Run {
            cache_bytes: CACHE_BYTES,
            root_mode: self.root_mode,
            root_uid: 0,
            root_gid: 0,
            index_range_len: INDEX_RANGE_LEN,
            manager_lengths: self.manager_lengths,
            accepts_loss: self.accepts_loss,
            claim: cluster::Claim::NONE,
        };
        let consensus: Arc<dyn Disk> = self.consensus.mount(on);
        let (host, limits) = (on.host(), self.limits);
        let work = async move {
            let started = CoreMachine::start_within(host, &places, &consensus, run, limits, None).await;
            started.map_err(|e| End::Refused(format!("start: {e}")))
        };
        let machine = Arc::new(self.on_machine(on, "start", work).await??);
        self.say(|| format!("started: {:?}, {:?}", machine.recovery, machine.maps.status()));
        let found = machine.config.managers.epoch;
        {
            let mut epochs = self.map_epochs.lock();
            if !(epochs.known..=epochs.asked).contains(&found) {
                let (known, asked) = (epochs.known, epochs.asked);
                return Err(failed(format!(
                    "the manager map has epoch {found}, {known} was in force, {asked} asked for"
                )));
            }
            epochs.known = found;
        }
        let client: Arc<dyn FileSystem> = Arc::new(machine.client.clone());
        let twin = Twin::new(client, self.oracle.clone(), self.shared.clone(), on.host().clock);
        let kernel = Kernel::new(twin.clone(), on.host());
        Ok(Running { on: on.clone(), machine, twin, kernel })
    }

    async fn stop(&self, running: &Running) -> Result<(), End> {
        self.say(|| "stop".into());
        let machine = running.machine.clone();
        let work = async move { machine.stop().await };
        let stopped = self.on_machine(&running.on, "stop", work).await?;
        if let Err(e) = stopped {
            if self.episode.bad.is_empty() {
                return Err(failed(format!("stop: {e}")));
            }
            return Ok(());
        }
        let stopping: Vec<_> = self.nodes().filter(|_| self.random.chance(1, 4)).map(|node| node.stop()).collect();
        join_all(stopping).await;
        let mut oracle = self.oracle.lock();
        let all = oracle.mark();
        oracle.durable_up_to(all);
        Ok(())
    }

    /// Crashes the file system's machine; sometimes its power fails, or the power of all machines.
    fn down(&mut self) {
        self.sim.machine("one").crash();
        self.outcome.crashes += 1;
        if self.options.crashes && self.random.chance(1, 2) {
            self.say(|| "power loss".into());
            self.outcome.power_losses += 1;
            let of_all = self.random.chance(1, 2);
            for store in &self.stores {
                match &store.node {
                    Some(node) if of_all => node.power_loss(),
                    Some(_) => {}
                    None => store.disk.power_loss(),
                }
            }
            self.consensus.power_loss();
        }
    }

    /// After a start: compares the tree with the states that the crash may leave, and goes on from
    /// the one found.
    async fn settle(&mut self, running: &Running) -> Result<(), End> {
        let client = running.machine.client.clone();
        let work = async move { Found::of(&client).await.map_err(|e| failed(format!("read the tree: {e}"))) };
        let found = self.on_machine(&running.on, "reading the tree", work).await??;
        let fresh = Oracle::new(&new_model(self.create.block_size, self.root_mode));
        let mut oracle = std::mem::replace(&mut *self.oracle.lock(), fresh);
        let (durable, found, made) = oracle.recover(&found).await.map_err(failed)?;
        *self.oracle.lock() = oracle;
        self.say(|| format!("recovered {durable}<={found}<={made}"));
        Ok(())
    }

    /// Ends all faults. A scrub restores redundancy, or maintenance does if nothing has rotted.
    async fn heal(&mut self) -> Result<(), End> {
        self.say(|| "heal".into());
        let by_itself = !self.episode.has_rotted() && self.random.chance(1, 2);
        self.rotten = (0..self.stores.len()).filter(|at| self.episode.has(*at, Fault::RotCheckpoints)).collect();
        self.episode.end(&self.stores);
        let on = self.sim.machine("one");
        let mut running = self.start_without(&on, &[]).await?;
        let unopened = self.out_of_service(&running).await?;
        if unopened.iter().any(|store| !self.rotten.contains(store)) {
            let rotten = &self.rotten;
            return Err(failed(format!("stores {unopened:?} do not open, though only {rotten:?} may be damaged")));
        }
        self.rotten.clear();
        if !unopened.is_empty() {
            // Give them up: a start makes new stores in empty folders.
            self.say(|| format!("stores {unopened:?} are emptied"));
            self.outcome.emptied += unopened.len() as u64;
            on.crash();
            unopened.iter().for_each(|store| self.stores[*store].replace(SimDisk::wipe));
            let on = self.sim.machine("one");
            running = self.start_without(&on, &[]).await?;
        }
        self.settle(&running).await?;
        match by_itself {
            true => self.wait_until_whole(&running).await?,
            false => self.scrub(&running).await?,
        }
        self.stop(&running).await
    }

    /// The stores that are out of service although their faults have ended.
    async fn out_of_service(&self, running: &Running) -> Result<Vec<usize>, End> {
        let stripe = running.machine.stripe.clone();
        let states = self.on_machine(&running.on, "status", async move { stripe.status().await }).await?;
        Ok((0..).zip(states).filter(|(_, health)| health.state == StoreState::Absent).map(|(at, _)| at).collect())
    }

    async fn wait_until_whole(&mut self, running: &Running) -> Result<(), End> {
        let machine = running.machine.clone();
        let work = async move {
            while machine.maintenance.done().redundancy.lacking_count != Some(0) {
                machine.host().clock.sleep(Duration::from_secs(1)).await;
            }
            let restored = machine.maintenance.done().redundancy.restored_count;
            let report = machine.maintenance.scrub(false, |_| ()).await.map_err(|e| failed(format!("scrub: {e}")))?;
            Ok::<_, End>((restored, report))
        };
        let (restored, report) = self.on_machine(&running.on, "restoring redundancy", work).await??;
        self.say(|| format!("{restored} segments restored by themselves: {report:?}"));
        self.outcome.restored += restored;
        match report.missing + report.damaged {
            0 => Ok(()),
            _ => Err(failed(format!("redundancy is not restored: {report:?}"))),
        }
    }

    /// Repairs everything; then nothing may be left to repair.
    async fn scrub(&mut self, running: &Running) -> Result<(), End> {
        let report = self.look_at_all(running, true).await?;
        self.outcome.repaired += report.repaired;
        if !report.unrepaired.is_empty() {
            return Err(failed(format!("scrub leaves segments without redundancy: {report:?}")));
        }
        self.find_nothing_wrong(running).await
    }

    /// Checks that a scrub finds nothing wrong, also right after a restart.
    async fn find_nothing_wrong(&self, running: &Running) -> Result<(), End> {
        let report = self.look_at_all(running, false).await?;
        match report.suspects().is_empty() {
            true => Ok(()),
            false => Err(failed(format!("scrub finds something wrong: {report:?}"))),
        }
    }

    async fn look_at_all(&self, running: &Running, repair: bool) -> Result<ScrubReport, End> {
        let maintenance = running.machine.maintenance.clone();
        let work = async move { maintenance.scrub(repair, |_| ()).await.map_err(|e| failed(format!("scrub: {e}"))) };
        let report = self.on_machine(&running.on, "scrub", work).await??;
        self.say(|| format!("{report:?}"));
        Ok(report)
    }

    async fn last_checks(&mut self) -> Result<(), End> {
        self.heal().await?;
        self.down();
        let mut without: Vec<Vec<usize>> = vec![Vec::new()];
        let takes_stores_away = self.random.chance(1, 4);
        if takes_stores_away {
            without.extend((0..self.stores.len()).map(|store| vec![store]));
        }
        for missing in without {
            self.say(|| format!("check without {missing:?}"));
            missing.iter().filter_map(|store| self.stores[*store].node.as_ref()).for_each(|node| node.crash());
            let on = self.sim.machine("one");
            let running = self.start_without(&on, &missing).await?;
            self.settle(&running).await?;
            let machine = running.machine.clone();
            let work = async move {
                machine.client.settle().await;
                cluster::check::check(&machine, |_| ()).await.map_err(|e| failed(format!("check: {e}")))
            };
            let report = self.on_machine(&on, "check", work).await??;
            if !report.problems.is_empty() {
                return Err(failed(format!("check: {:?}", report.problems)));
            }
            if self.options.fill && missing.is_empty() {
                self.empty(&running).await?;
            }
            if missing.is_empty() && takes_stores_away {
                // Until then no other store must be lost, as users are told: a store that was
                // replaced still says that it has lost something.
                let machine = running.machine.clone();
                let work = async move {
                    while !machine.maintenance.has_compared_all().await {
                        machine.host().clock.sleep(Duration::from_secs(1)).await;
                    }
                };
                self.on_machine(&on, "waiting until all stores are compared", work).await?;
            }
            self.stop(&running).await?;
            on.crash();
        }
        Ok(())
    }

    /// Removes everything, and checks that there is space again.
    async fn empty(&mut self, running: &Running) -> Result<(), End> {
        let (client, random) = (running.machine.client.clone(), SplitMix64::new(self.random.below(u64::MAX)));
        let work = async move {
            remove_all_in(&client, FileId::ROOT).await?;
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let (entry, handle) = client.create(&Cred::ROOT, FileId::ROOT, b"again", 0o644, 0, flags).await?;
            for offset in 0..60 {
                let data = crate::operation::data(random.below(u64::MAX), 200_000);
                client.write(&Cred::ROOT, entry.attr.id, handle, offset * 200_000, &data).await?;
            }
            client.fsync(entry.attr.id, handle, false).await?;
            client.release(entry.attr.id, handle, None).await?;
            remove_all_in(&client, FileId::ROOT).await
        };
        let result: Result<(), FsError> = self.on_machine(&running.on, "emptying", work).await?;
        result.map_err(|e| failed(format!("no space after everything was removed: {e}")))?;
        *self.oracle.lock() = Oracle::new(&new_model(self.create.block_size, self.root_mode));
        Ok(())
    }
}
