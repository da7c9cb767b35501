//! Several clients of one file system, each on a machine of its own, under a seed.
//!
//! One machine runs stores, managers and the first client. The others reach its managers through
//! messages that take their time, overtake each other and repeat. Programs call through models of
//! kernels that cache names and attributes. In each round some programs make one call each, at the
//! same time. Some serial order of these calls must give the same answers on [`vfs::mem::MemFs`]
//! (the module `oracle`). Clients stall, and crash, and come back as new ones. At the end every
//! client closes everything; then all must see the same tree, and no token, orphan or count may be
//! left over.
//!
//! In some seeds, the machine with all roles cleans segments meanwhile, and asks the other clients
//! to copy blocks (the module `cleaning`).
//!
//! Some seeds make a *hot* world (the module `heat`): a few files in one or two directories, and
//! programs that make several calls without a pause, at the same time.
//!
//! The oracle does not know times of files. The module `times` checks that none goes back. While
//! no client stalls or crashes, each call must end soon.
//!
//! [`call`], [`choice`] and [`oracle`] serve tests of real mounts, too.

pub mod call;
pub mod choice;
mod cleaning;
mod event;
mod heat;
mod lost;
mod mount;
mod nameless;
pub mod oracle;
mod times;
mod ways;
mod wire;

use crate::Failure;
use call::{Call, Seen};
use choice::{Choice, View};
use cleaning::{Site, Sites};
use client::{Client, ClientConfig, Managers};
use cluster::StorePlace;
use cluster::config::{CLIENT_LOG, STORE_CAPACITY_BYTES_MIN};
use cluster::machine::{CoreMachine, Create, Lengths, Limits, Run, create};
use heat::Heat;
use host::sim::{Crashed, Machine, Sim, SimDisk};
use host::{Disk, Either, Host, SplitMix64, first, join_all, timeout};
use manager::api::{Manager, ManagerAdmin};
use manager::planted::{self, Bug};
use manager::server::ManagerServer;
use mount::Mount;
use oracle::{Event, Known, Oracle};
use parking_lot::Mutex;
use policy::space::{Reserves, SpaceAccount, SpaceClaim};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use times::Times;
use types::{BoxFuture, ClientId, FileId, FsError, LogId};
use vfs::fs::FileSystem;
use vfs::tree::{TreeEntry, walk};
use wire::{Distant, Network, Session, Wire};

/// Options of a run with several clients. The seed decides what is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientsOptions {
    /// Number of clients.
    pub clients: Option<u64>,
    /// Calls in total, at least.
    pub operations: u64,
    /// Clients crash and stall.
    pub faults: bool,
    /// Print every call.
    pub verbose: bool,
}

/// Counts of runs with several clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientsOutcome {
    /// Digest of all events: equal for equal seeds, options and code.
    pub digest: u64,
    /// Rounds.
    pub rounds: u64,
    /// Calls made.
    pub operations: u64,
    /// Calls that failed as they should.
    pub refused: u64,
    /// Calls that kernels answered from memory.
    pub cache_hits: u64,
    /// Recalls sent.
    pub recalls: u64,
    /// Questions for attributes sent to clients that could change the file.
    pub questions: u64,
    /// Calls that were answered with what such a client told.
    pub glimpses: u64,
    /// Recalls and questions that came twice.
    pub repeated: u64,
    /// Crashes of clients.
    pub crashes: u64,
    /// Crashes after which something was lost.
    pub losses: u64,
    /// Clients that came back after a crash.
    pub returns: u64,
    /// Times that a client stalled.
    pub stalls: u64,
    /// Times that everything ended and started again.
    pub restarts: u64,
    /// Rounds after which more than one state explained the answers.
    pub ambiguous: u64,
    /// Hot worlds.
    pub hot: u64,
    /// Rounds in which segments were cleaned.
    pub cleanings: u64,
    /// Requests to copy blocks that a client answered.
    pub copies: u64,
    /// The longest call that had to end soon.
    pub longest: Duration,
}

impl ClientsOutcome {
    /// The sum of two outcomes, with the digests combined.
    pub fn and(self, other: ClientsOutcome) -> ClientsOutcome {
        ClientsOutcome {
            digest: self.digest.rotate_left(1) ^ other.digest,
            rounds: self.rounds + other.rounds,
            operations: self.operations + other.operations,
            refused: self.refused + other.refused,
            cache_hits: self.cache_hits + other.cache_hits,
            recalls: self.recalls + other.recalls,
            questions: self.questions + other.questions,
            glimpses: self.glimpses + other.glimpses,
            repeated: self.repeated + other.repeated,
            crashes: self.crashes + other.crashes,
            losses: self.losses + other.losses,
            returns: self.returns + other.returns,
            stalls: self.stalls + other.stalls,
            restarts: self.restarts + other.restarts,
            ambiguous: self.ambiguous + other.ambiguous,
            hot: self.hot + other.hot,
            cleanings: self.cleanings + other.cleanings,
            copies: self.copies + other.copies,
            longest: self.longest.max(other.longest),
        }
    }
}

/// Runs one world with several clients.
pub fn run_clients(seed: u64, options: ClientsOptions) -> Result<ClientsOutcome, Failure> {
    let sim = Sim::new(seed);
    let mut world = World::new(&sim, seed, options);
    let result = sim.block_on(world.run());
    let mut outcome = world.outcome;
    outcome.digest = sim.digest();
    result.map(|()| outcome).map_err(|what| Failure { seed, what, command: options.command(seed) })
}

impl ClientsOptions {
    /// The command that runs this world again.
    fn command(&self, seed: u64) -> String {
        let count = self.clients.map_or(String::from("0"), |count| count.to_string());
        let faults = if self.faults { "" } else { " --no-faults" };
        let operations = self.operations;
        format!(
            "cargo run --release -p world -- --clients {count} --seed {seed} --operations {operations}{faults} --verbose"
        )
    }
}

const DISK_BYTES: u64 = 8 * STORE_CAPACITY_BYTES_MIN;
const STORE_COUNT: usize = 3;
const CACHE_BYTES: u64 = 4 << 20;
const ROOT_MODE: u32 = 0o755;
/// Virtual time in which a round must end, and each step of a start or an end.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Virtual time in which each call must end while no client stalls or crashes, if messages take
/// less than [`QUICK_DELAY_MAX`]: less than a client waits before it makes its changes durable by
/// itself.
const CALL_TIME_MAX: Duration = Duration::from_secs(3);
const QUICK_DELAY_MAX: Duration = Duration::from_millis(2);
/// Calls of a client that it repeats sometimes.
const LOOKED_MAX: usize = 6;
/// Most clients of a world.
const CLIENTS_MAX: u64 = 4;

/// The machine with all roles.
struct Center {
    on: Machine,
    machine: Arc<CoreMachine>,
}

/// A client on its machine.
struct Member {
    on: Machine,
    /// The number of its session.
    number: u64,
    session: Arc<Session>,
    mount: Mount,
    /// Files that answers to this client have named.
    named: BTreeSet<FileId>,
    /// The newest calls of this client that its kernel may know the answer of, and what they found.
    looked: Vec<(Call, FileId)>,
}

struct World {
    sim: Sim,
    random: SplitMix64,
    options: ClientsOptions,
    disks: Vec<SimDisk>,
    consensus: SimDisk,
    create: Create,
    index_range_len: u64,
    inode_count_max: usize,
    lease: Duration,
    name_count: u64,
    heat: Option<Heat>,
    network: Arc<Network>,
    /// Segments are cleaned while programs work.
    is_cleaned: bool,
    limits: Limits,
    /// The clients that can be asked to copy blocks.
    sites: Sites,
    /// Numbers the sessions.
    session_count: u64,
    oracle: Oracle,
    times: Times,
    center: Option<Center>,
    /// By number; `None` after a crash.
    members: Vec<Option<Member>>,
    next_open: u64,
    operations: u64,
    is_created: bool,
    outcome: ClientsOutcome,
}

/// The calls that a program of a client makes in a round, one after the other, each after a pause.
struct Planned {
    client: usize,
    calls: Vec<(Duration, Call)>,
}

/// What a program did in a round.
type Record = Arc<Mutex<Vec<Made>>>;

/// A call that a program has begun.
struct Made {
    event: Event,
    /// False if its kernel did not know the access times in the answer.
    shows_access_time: bool,
}

fn client_id(number: usize) -> ClientId {
    ClientId::new(number as u32 + 1)
}

fn log_of(number: usize) -> LogId {
    if number == 0 { CLIENT_LOG } else { LogId::new(1024 + number as u32) }
}

impl World {
    fn new(sim: &Sim, seed: u64, options: ClientsOptions) -> World {
        let random = SplitMix64::new(seed ^ 0xc11e);
        let heat = Heat::draw(seed);
        let clients = 2 + random.below(CLIENTS_MAX - 1);
        let clients = clients.max(heat.as_ref().map_or(0, |heat| heat.clients_min));
        let clients = options.clients.unwrap_or(clients).clamp(1, CLIENTS_MAX);
        let block_size = 4096;
        let host = sim.machine("network").host();
        let delay_max = [Duration::from_micros(200), Duration::from_millis(2), Duration::from_millis(30)];
        let network = Network {
            host,
            random: SplitMix64::new(seed ^ 0x3e7),
            delay_max: delay_max[random.below(3) as usize],
            recall_count: AtomicU64::new(0),
            question_count: AtomicU64::new(0),
            repeated_count: AtomicU64::new(0),
        };
        let cleaning = SplitMix64::new(seed ^ 0xc1ea);
        let is_cleaned = cleaning.chance(1, 3);
        let writer_copies_min = [0, 0, 5_000, 50_000][cleaning.below(4) as usize];
        let manager_count = 1 + random.below(3) as u16;
        let has_one_manager = heat.as_ref().is_some_and(|heat| heat.has_one_manager);
        World {
            sim: sim.clone(),
            options,
            disks: (0..STORE_COUNT).map(|_| SimDisk::new(sim, DISK_BYTES)).collect(),
            consensus: SimDisk::new(sim, DISK_BYTES),
            create: Create {
                parity: 1,
                block_size,
                manager_count: if has_one_manager { 1 } else { manager_count },
                store_capacity_bytes: Some(STORE_CAPACITY_BYTES_MIN),
            },
            index_range_len: [2, 8, 64][random.below(3) as usize],
            inode_count_max: [2, 4, 8, 1000][random.below(4) as usize],
            lease: if random.chance(1, 4) { Duration::from_secs(2) } else { Duration::from_secs(3600) },
            name_count: 2 + random.below(4),
            heat,
            network: Arc::new(network),
            is_cleaned,
            limits: Limits { writer_copies_min, ..Limits::default() },
            sites: Sites::default(),
            session_count: 0,
            oracle: Oracle::new(block_size, ROOT_MODE),
            times: Times::default(),
            center: None,
            members: (0..clients).map(|_| None).collect(),
            next_open: 1,
            operations: 0,
            is_created: false,
            outcome: ClientsOutcome::default(),
            random,
        }
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.options.verbose {
            println!("{:>12?} -- {}", self.sim.now(), text());
        }
    }

    fn host(&self) -> Host {
        self.network.host.clone()
    }

    async fn in_time<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T, String> {
        let clock = self.host().clock;
        timeout(&*clock, TIME_MAX, future).await.map_err(|_| format!("{what}: nothing for {TIME_MAX:?}"))
    }

    /// Does work on a machine.
    async fn on<T: Send + 'static>(
        &self,
        on: &Machine,
        what: &str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        self.in_time(what, on.run(work)).await?.map_err(|Crashed| format!("{what}: the machine crashed"))
    }

    async fn run(&mut self) -> Result<(), String> {
        self.say(|| {
            let (clients, create, delay) = (self.members.len(), self.create, self.network.delay_max);
            format!(
                "{clients} clients, {create:?}, delays below {delay:?}, {} inodes, ranges of {}, {} names, lease {:?}",
                self.inode_count_max, self.index_range_len, self.name_count, self.lease
            )
        });
        self.start().await?;
        if self.random.chance(1, 2) {
            self.restart().await?;
        }
        self.start_clients().await?;
        while self.operations < self.options.operations {
            let rounds = 5 + self.random.below(if self.heat.is_some() { 15 } else { 40 });
            for _ in 0..rounds {
                self.round().await?;
            }
            self.settle().await?;
            if self.random.chance(1, 8) {
                self.restart().await?;
                self.start_clients().await?;
            }
            for number in 1..self.members.len() {
                if self.members[number].is_none() && self.random.chance(1, 2) {
                    self.start_client(number).await?;
                    self.outcome.returns += 1;
                }
            }
        }
        self.end().await?;
        self.outcome.hot = self.heat.is_some().into();
        self.outcome.recalls = self.network.recall_count.load(SeqCst);
        self.outcome.questions = self.network.question_count.load(SeqCst);
        self.outcome.copies = self.sites.done_count();
        self.outcome.repeated = self.network.repeated_count.load(SeqCst);
        Ok(())
    }

    /// Ends all clients and all roles, and starts the roles again. Managers have written
    /// checkpoints, so that the order of the logs does not matter.
    async fn restart(&mut self) -> Result<(), String> {
        self.say(|| "everything ends and starts again".into());
        self.sync_all().await?;
        for manager in self.managers() {
            let written = async move { manager.checkpoint().await };
            self.on(&self.center()?.on, "checkpoint", written).await?.map_err(|e| e.to_string())?;
        }
        for number in 0..self.members.len() {
            self.outcome.cache_hits += self.members[number].as_ref().map_or(0, |member| member.mount.cache_hits());
            self.oracle.close_all(number);
        }
        self.oracle.start_again();
        self.end_all();
        self.start().await?;
        self.outcome.restarts += 1;
        Ok(())
    }

    async fn start_clients(&mut self) -> Result<(), String> {
        for number in 1..self.members.len() {
            self.start_client(number).await?;
        }
        Ok(())
    }

    /// Starts the machine with all roles, and its client.
    async fn start(&mut self) -> Result<(), String> {
        let on = self.sim.machine("one");
        let places: Vec<StorePlace> = self.disks.iter().map(|disk| disk.mount(&on).into()).collect();
        let consensus: Arc<dyn Disk> = self.consensus.mount(&on);
        let run = Run {
            cache_bytes: CACHE_BYTES,
            root_mode: ROOT_MODE,
            root_uid: 0,
            root_gid: 0,
            index_range_len: self.index_range_len,
            manager_lengths: Lengths::LARGEST,
            accepts_loss: false,
            claim: cluster::Claim::NONE,
        };
        let (host, how, limits) = (on.host(), self.create, self.limits);
        let is_new = !std::mem::replace(&mut self.is_created, true);
        let started = self.on(&on, "start", async move {
            if is_new {
                create(&host, &places, &consensus, how).await?;
            }
            CoreMachine::start_within(host, &places, &consensus, run, limits, None).await
        });
        let machine = Arc::new(started.await?.map_err(|e| format!("start: {e}"))?);
        if self.is_cleaned {
            machine.maintenance.copy_with(Arc::new(self.sites.clone()));
        }
        self.center = Some(Center { on: on.clone(), machine: machine.clone() });
        // Others join some time after the first client began.
        self.host().clock.sleep(Duration::from_millis(self.random.below(2) * 100)).await;
        self.admit(0, on, machine.client.clone(), Session::new(self.network.clone()));
        Ok(())
    }

    fn center(&self) -> Result<&Center, String> {
        self.center.as_ref().ok_or_else(|| "not started".into())
    }

    fn managers(&self) -> Vec<Arc<ManagerServer>> {
        self.center.as_ref().map(|center| center.machine.servers()).unwrap_or_default()
    }

    fn admit(&mut self, number: usize, on: Machine, client: Client, session: Arc<Session>) {
        let mount = Mount::new(client.clone(), session.clone(), self.host().clock, self.lease);
        let holder = Arc::new(Distant { client, session: session.clone() });
        for manager in self.managers() {
            manager.admit(client_id(number), log_of(number), holder.clone());
        }
        let named = BTreeSet::from([FileId::ROOT]);
        self.members[number] =
            Some(Member { on, number: self.session_count, session, mount, named, looked: Vec::new() });
    }

    /// Starts a client on a machine of its own.
    async fn start_client(&mut self, number: usize) -> Result<(), String> {
        self.say(|| format!("client {number} starts"));
        let machine = self.center()?.machine.clone();
        let (stripe, managers, log) = (machine.stripe.clone(), machine.managers.clone(), log_of(number));
        let opened = async move { manager::roll_forward::roll_forward(&stripe, &managers, log).await };
        let (tail, _) = self.on(&self.center()?.on.clone(), "open a log", opened).await?.map_err(|e| e.to_string())?;
        let on = self.sim.machine(&format!("client-{number}"));
        let session = Session::new(self.network.clone());
        let wires = machine.servers().into_iter().map(|manager| Wire::new(manager, session.clone()));
        let wires = wires.map(|wire| wire as Arc<dyn Manager>).collect();
        let config = ClientConfig {
            id: client_id(number),
            block_size: machine.config.block_size,
            cache_bytes: CACHE_BYTES,
            inode_count_max: self.inode_count_max,
            lease: self.lease,
            lease_until: None,
        };
        let space = SpaceAccount::new(Reserves::new(0, 0), u64::MAX, 0);
        let managers = Managers::new(machine.config.managers.clone(), wires);
        let client = Client::start(on.host(), config, space, managers, machine.stripe.clone(), tail);
        self.session_count += 1;
        if self.is_cleaned {
            let (maintenance, session_number) = (machine.maintenance.clone(), self.session_count);
            let joined = async move { maintenance.join(session_number, log, &SpaceClaim::default()).await };
            self.on(&self.center()?.on.clone(), "join", joined).await?;
            self.sites.come(log, Site { on: on.clone(), client: client.clone(), session: session.clone() });
        }
        self.admit(number, on, client, session);
        Ok(())
    }

    /// The calls of a round.
    fn plan(&mut self) -> Vec<Planned> {
        let random = &self.random;
        let all = self.oracle.files();
        let member = self.members[random.below(self.members.len() as u64) as usize].as_ref();
        let looked = member.map_or(&[][..], |member| &member.looked);
        // What one of the kernels may know, if there is something.
        let hot = looked.get(random.below(2 * LOOKED_MAX as u64) as usize).map(|(_, id)| *id);
        let hot = hot.or(all.get(random.below(2 * all.len() as u64) as usize).map(|file| file.id));
        let choice = Choice { random, block_size: self.create.block_size.into(), name_count: self.name_count, hot };
        let mut living: Vec<usize> = (0..self.members.len()).filter(|&n| self.members[n].is_some()).collect();
        let count = match &self.heat {
            Some(heat) => {
                heat.choose_clients(random, &mut living);
                heat.programs(random)
            }
            None => [1, 1, 1, 2, 2, 2, 3, 4][random.below(8) as usize],
        };
        let focus = self.heat.as_ref().map(|heat| heat.focus(random, &all, self.members.len()));
        let is_crowded = random.chance(1, 3) || self.heat.is_some();
        let (mut planned, mut closed): (Vec<Planned>, BTreeSet<u64>) = (Vec::new(), BTreeSet::new());
        for _ in 0..count {
            let client = living[random.below(living.len() as u64) as usize];
            let programs = planned.iter().filter(|p| p.client == client).count();
            if programs > usize::from(is_crowded) {
                continue;
            }
            let Some(member) = &self.members[client] else { continue };
            let is_known = |f: &&Known| member.named.contains(&f.id);
            let files: Vec<Known> = all.iter().filter(is_known).copied().collect();
            let (mut calls, mut last): (Vec<(Duration, Call)>, Option<Call>) = (Vec::new(), None);
            let all_planned = planned.iter().map(|p| p.calls.len() as u64).sum();
            for number in 0..self.heat.as_ref().map_or(1, |heat| heat.calls(random, all_planned)) {
                let opens = member.mount.opens().into_iter().filter(|(open, _)| !closed.contains(open));
                let opens: Vec<_> = opens.collect();
                let looked = &member.looked;
                let again = random.chance(1, 4).then(|| looked.get(random.below(looked.len() as u64) as usize));
                let view = View { files: &files, opens: &opens, next_open: self.next_open };
                let hot = choice.hot.filter(|hot| member.named.contains(hot));
                let again = again.flatten().map(|(call, _)| call.clone());
                let glimpse = random.chance(1, 10).then(|| self.open_elsewhere(client)).flatten();
                let call = glimpse.map(|id| Call::Getattr { id }).or(again);
                let call = call.filter(|_| focus.as_ref().is_none_or(|focus| focus.lets_look(client)));
                let call = call.or_else(|| {
                    let (heat, focus) = self.heat.as_ref().zip(focus.as_ref())?;
                    heat.call(random, client, focus, &view, last.as_ref())
                });
                let call = call.unwrap_or_else(|| Choice { hot, ..choice }.call(&view));
                if let Some(open) = call.uses() {
                    let is_used = planned.iter().filter(|p| p.client == client).flat_map(|p| &p.calls);
                    if is_used.map(|(_, call)| call.uses()).any(|used| used == Some(open)) && call.closes() {
                        continue;
                    }
                    if call.closes() {
                        closed.insert(open);
                    }
                }
                self.next_open += u64::from(call.opens().is_some());
                last = Some(call.clone());
                calls.push((self.pause(number == 0), call));
            }
            planned.push(Planned { client, calls });
        }
        planned
    }

    /// How long a program waits before a call. Later calls of a program begin after the one before
    /// has ended.
    fn pause(&self, is_first: bool) -> Duration {
        let start_max = self.network.delay_max.as_nanos() as u64;
        match is_first {
            true => Duration::from_nanos(self.random.below(2 * start_max) * u64::from(self.random.chance(1, 2))),
            false => Duration::from_nanos(1 + self.random.below(start_max) * u64::from(self.random.chance(1, 3))),
        }
    }

    /// A file that another client has open, and may be changing.
    fn open_elsewhere(&self, client: usize) -> Option<FileId> {
        let named = &self.members[client].as_ref()?.named;
        let others = self.living().into_iter().filter(|(number, _)| *number != client);
        let opens = others.flat_map(|(_, member)| member.mount.opens());
        let open: Vec<FileId> = opens.map(|(_, id)| id).filter(|id| named.contains(id)).collect();
        open.get(self.random.below(open.len() as u64) as usize).copied()
    }

    /// Some programs make calls, at the same time.
    async fn round(&mut self) -> Result<(), String> {
        let planned = self.plan();
        let calls = planned.iter().flat_map(|p| p.calls.iter().map(|(_, call)| (p.client, call)));
        let plan: Vec<String> = calls.map(|(client, call)| format!("client {client} {call:?}")).collect();
        self.outcome.rounds += 1;
        self.operations += plan.len() as u64;
        self.outcome.operations += plan.len() as u64;
        if self.options.faults && self.random.chance(1, 60) {
            self.stall();
        }
        let rounds_per_crash = self.heat.as_ref().map_or(40, |heat| heat.rounds_per_crash);
        let victim = match self.options.faults && self.random.chance(1, rounds_per_crash) {
            true => Some(1 + self.random.below(self.members.len() as u64 - 1) as usize),
            false => None,
        };
        let victim = victim.filter(|&number| self.members[number].is_some());
        if let Some(number) = victim
            && let Some(member) = &self.members[number]
        {
            member.on.crash_after(1 + self.random.below(1 << self.random.below(8)));
        }
        let clock = self.host().clock;
        let is_quick = victim.is_none()
            && self.network.delay_max <= QUICK_DELAY_MAX
            && !self.living().iter().any(|(_, member)| member.session.is_stalled());
        let (mut runs, mut records): (Vec<BoxFuture<()>>, Vec<Record>) = (Vec::new(), Vec::new());
        for Planned { client, calls } in planned {
            let Some(member) = &self.members[client] else { continue };
            let (mount, record, timer) = (member.mount.clone(), Record::default(), clock.clone());
            records.push(record.clone());
            let run = member.on.run(async move {
                for (pause, call) in calls {
                    timer.sleep(pause).await;
                    let (began, ended) = (timer.now(), Duration::MAX);
                    let event = Event { client, call: call.clone(), answered: None, began, ended, is_raced: false };
                    record.lock().push(Made { event, shows_access_time: false });
                    let performed = mount.perform(call).await;
                    if let Some(made) = record.lock().last_mut() {
                        (made.event.answered, made.event.ended) = (Some(performed.answered), timer.now());
                        made.shows_access_time = performed.shows_access_time;
                    }
                }
            });
            runs.push(Box::pin(async move {
                // What it did before a crash is in the record.
                let _ = run.await;
            }));
        }
        if self.is_cleaned && self.random.chance(1, 6) {
            let (Center { on, machine }, pause) = (self.center()?, self.pause(true));
            let (maintenance, timer) = (machine.maintenance.clone(), clock.clone());
            let cleans = on.run(async move {
                timer.sleep(pause).await;
                maintenance.clean().await
            });
            self.outcome.cleanings += 1;
            let say = self.options.verbose;
            runs.push(Box::pin(async move {
                // What fails is tried again in a later round.
                let cleaned = cleans.await;
                if say {
                    println!("-- cleaned: {cleaned:?}");
                }
            }));
        }
        let mut calls = join_all(runs);
        match victim {
            None => drop(self.in_time(&format!("round of {plan:#?}"), calls).await?),
            Some(number) => {
                let mut death = Box::pin(self.bury(number));
                match self.in_time(&format!("round with a crash of {plan:#?}"), first(&mut calls, &mut death)).await? {
                    Either::Left(_) => {
                        if let Some(member) = &self.members[number] {
                            member.on.crash();
                        }
                        death.await?;
                    }
                    Either::Right(buried) => {
                        buried?;
                        self.in_time(&format!("the rest of a round with a crash of {plan:#?}"), calls).await?;
                    }
                }
            }
        }
        let made: Vec<Made> = records.into_iter().flat_map(|record| std::mem::take(&mut *record.lock())).collect();
        if is_quick {
            self.check_durations(&made)?;
        }
        match victim {
            None => self.times.round(&made)?,
            Some(_) => self.times.forget(),
        }
        let events: Vec<Event> = made.into_iter().map(|made| made.event).collect();
        for event in &events {
            self.say(|| event.to_string());
            if let (Some(member), Some(answered)) = (&mut self.members[event.client], &event.answered) {
                choice::named(answered, &mut member.named);
                let found: Vec<FileId> = match answered {
                    Ok(Seen::Entry(entry)) => vec![entry.attr.id],
                    Ok(Seen::Listed(entries)) => {
                        let count = if self.heat.is_some() { LOOKED_MAX } else { 1 };
                        entries.iter().map(|entry| entry.id).take(count).collect()
                    }
                    _ => Vec::new(),
                };
                for id in found {
                    let is_lookup = matches!(event.call, Call::Lookup { .. });
                    let call = if is_lookup { event.call.clone() } else { Call::Getattr { id } };
                    member.looked.push((call, id));
                    if member.looked.len() > LOOKED_MAX {
                        member.looked.remove(0);
                    }
                }
            }
            self.outcome.refused += u64::from(matches!(event.answered, Some(Err(_))));
            self.outcome.glimpses += u64::from(event.is_glimpse());
        }
        match victim {
            None => self.oracle.round(&events)?,
            Some(number) => self.after_crash(number, &events).await?,
        }
        self.outcome.ambiguous += u64::from(self.oracle.state_count() > 1);
        if self.random.chance(1, 6) {
            let scale = 1 << self.random.below(14);
            clock.sleep(Duration::from_millis(self.random.below(scale))).await;
        }
        Ok(())
    }

    /// Checks that each of these calls has ended soon enough.
    fn check_durations(&mut self, made: &[Made]) -> Result<(), String> {
        for Made { event, .. } in made {
            let time = event.ended.saturating_sub(event.began);
            self.outcome.longest = self.outcome.longest.max(time);
            if time > CALL_TIME_MAX {
                return Err(format!("{event} took {time:?}, although no client stalled"));
            }
        }
        Ok(())
    }

    fn stall(&mut self) {
        let number = self.random.below(self.members.len() as u64) as usize;
        let time = Duration::from_millis(self.random.below(5000));
        if let Some(member) = &self.members[number] {
            self.say(|| format!("client {number} stalls for {time:?}"));
            member.session.stall(time);
            self.outcome.stalls += 1;
        }
    }

    /// Waits until a client's machine has crashed, and takes its tokens away.
    async fn bury(&self, number: usize) -> Result<(), String> {
        let Some(member) = &self.members[number] else { return Ok(()) };
        member.on.crashed().await;
        self.say(|| format!("client {number} has crashed"));
        self.host().clock.sleep(Duration::from_millis(self.random.below(4000))).await;
        member.session.end();
        let Center { on, machine } = self.center()?;
        let (stripe, managers, log) = (machine.stripe.clone(), machine.managers.clone(), log_of(number));
        let work = async move { manager::roll_forward::roll_forward(&stripe, &managers, log).await };
        if planted::is(Bug::ExpelsBeforeRollForward) {
            machine.servers().iter().for_each(|manager| manager.expel(client_id(number)));
            self.host().clock.sleep(Duration::from_secs(2)).await;
        }
        let (_, rolled) = self.on(on, "roll forward", work).await?.map_err(|e| format!("roll forward: {e}"))?;
        machine.servers().iter().for_each(|manager| manager.expel(client_id(number)));
        if self.is_cleaned {
            machine.maintenance.leave(member.number).await;
        }
        let first = machine.client.clone();
        let swept = self.on(on, "sweep orphans", async move { first.sweep_orphans().await }).await?;
        let swept = swept.map_err(|e| format!("sweep orphans: {e}"))?;
        self.say(|| format!("client {number} is expelled: {rolled:?}, {swept} orphans"));
        Ok(())
    }

    async fn after_crash(&mut self, number: usize, events: &[Event]) -> Result<(), String> {
        self.members[number] = None;
        self.outcome.crashes += 1;
        self.sync_all().await?;
        let tree = self.tree().await?;
        self.outcome.losses += u64::from(self.oracle.crashed(number, events, &tree)?);
        self.oracle.settled(&tree)
    }

    fn living(&self) -> Vec<(usize, &Member)> {
        self.members.iter().enumerate().filter_map(|(number, member)| Some((number, member.as_ref()?))).collect()
    }

    /// Makes everything durable, and known to the managers.
    async fn sync_all(&self) -> Result<(), String> {
        for (_, member) in self.living() {
            let client = member.mount.client().clone();
            let work = async move {
                client.sync().await?;
                client.settle().await;
                Ok::<(), FsError>(())
            };
            self.on(&member.on, "sync", work).await?.map_err(|e| format!("sync: {e}"))?;
        }
        Ok(())
    }

    /// The tree that one of the clients sees.
    async fn tree(&self) -> Result<Vec<TreeEntry>, String> {
        let living = self.living();
        let (number, member) = living[self.random.below(living.len() as u64) as usize];
        self.tree_of(number, member).await
    }

    async fn tree_of(&self, number: usize, member: &Member) -> Result<Vec<TreeEntry>, String> {
        let client = member.mount.client().clone();
        let tree = self.on(&member.on, "read the tree", async move { walk(&client).await }).await?;
        member.mount.has_read_all();
        tree.map_err(|e| format!("client {number} reads the tree: {e}"))
    }

    async fn settle(&mut self) -> Result<(), String> {
        self.sync_all().await?;
        let tree = self.tree().await?;
        self.oracle.settled(&tree)
    }

    /// Closes everything, and checks what is left.
    async fn end(&mut self) -> Result<(), String> {
        for number in 0..self.members.len() {
            let Some(member) = &self.members[number] else { continue };
            for (open, id) in member.mount.opens() {
                let is_directory = self.oracle.files().iter().any(|f| f.id == id && f.kind == types::Kind::Directory);
                let call = if is_directory { Call::CloseDirectory { open } } else { Call::Close { open } };
                let mount = member.mount.clone();
                let closed = self.on(&member.on, "close", async move { mount.perform(call).await }).await?;
                closed.answered.map_err(|e| format!("client {number} closes {id}: {e}"))?;
                self.say(|| format!("client {number} closes {id}"));
            }
            self.oracle.close_all(number);
        }
        self.host().clock.sleep(Duration::from_secs(20)).await;
        for number in 0..self.members.len() {
            self.sync_all().await?;
            let Some(member) = &self.members[number] else { continue };
            let tree = self.tree_of(number, member).await?;
            self.oracle.settled(&tree).map_err(|e| format!("client {number} at the end: {e}"))?;
        }
        self.host().clock.sleep(Duration::from_secs(20)).await;
        let managers = self.managers();
        let granted: u64 = managers.iter().map(|manager| manager.status().token_count).sum();
        let held: u64 = self.living().iter().map(|(_, member)| member.mount.client().status().inode_count).sum();
        if granted != held {
            return Err(format!("managers count {granted} tokens, clients have {held} files in memory"));
        }
        for manager in &managers {
            let (orphans, audited) = (manager.orphans(), manager.clone());
            let orphans = self.in_time("list orphans", orphans.into_future()).await?.map_err(|e| e.to_string())?;
            if !orphans.is_empty() {
                return Err(format!("orphans are left: {orphans:?}"));
            }
            let on = &self.center()?.on;
            let report = self.on(on, "audit", async move { audited.audit().await }).await?;
            let report = report.map_err(|e| e.to_string())?;
            if !report.is_clean() || !report.orphans.is_empty() {
                return Err(format!("the audit finds {report:?}"));
            }
        }
        self.restart().await?;
        let tree = self.tree().await?;
        self.oracle.settled(&tree).map_err(|e| format!("after a restart: {e}"))?;
        self.end_all();
        Ok(())
    }

    /// Crashes everything.
    fn end_all(&mut self) {
        let managers = self.managers();
        for (number, member) in self.members.iter_mut().enumerate() {
            if let Some(member) = member.take() {
                member.session.end();
                member.on.crash();
                managers.iter().for_each(|manager| manager.expel(client_id(number)));
            }
        }
        if let Some(center) = self.center.take() {
            center.on.crash();
        }
    }
}
