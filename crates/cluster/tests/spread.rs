//! Stores move to nodes that have joined, in simulated time: beside writers, through crashes of the
//! first node at any moment, and what the file system survives afterwards.

#[path = "spread/leaving.rs"]
mod leaving;

use cluster::config::MemberEntry;
use cluster::control::{ControlRequest, Hello};
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, StartError, create};
use cluster::manager_service::ManagerService;
use cluster::maps::Keeper;
use cluster::members::{Members, MembersConfig};
use cluster::spread::{RecordError, Spread, StorePlaces, decide_places};
use cluster::{AtNode, FsConfig, KnownNode, StorePlace};
use host::sim::{Machine, Sim, SimDisk};
use host::{Disk, Host, Random, SplitMix64};
use link::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use storage::api::{Presence, RemoteStorage, StorageError, StoreIdentity};
use storage::calls::{Ask, ServedStores, answer, what_is_there};
use storage::server::StoreServer;
use storage::site::Site;
use storage::wire::{StoreAnswer, StoreName, StoreRequest};
use types::{BoxFuture, FileId, FsUuid, NodeId, StoreId};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const STORES: u16 = 3;
/// The machines of the nodes that join.
const NAMES: [&str; 4] = ["node 1", "node 2", "node 3", "node 4"];
const STORE_BYTES: u64 = 128 << 20;
/// Sessions last as long as a test.
const LEASE: Duration = Duration::from_secs(100_000);
/// How long a message travels.
const DELAY: Duration = Duration::from_millis(1);
const RUN: Run = Run {
    cache_bytes: 16 << 20,
    root_mode: 0o777,
    root_uid: 0,
    root_gid: 0,
    index_range_len: INDEX_RANGE_LEN,
    manager_lengths: Lengths::LARGEST,
    accepts_loss: false,
    claim: cluster::Claim::NONE,
};
const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };

/// The stores of a node that has joined: a disk and a site for each.
struct NodeStores {
    sim: Sim,
    node: NodeId,
    name: &'static str,
    disks: Vec<SimDisk>,
    sites: Mutex<BTreeMap<StoreId, Arc<Site>>>,
}

impl NodeStores {
    fn new(sim: &Sim, node: u16, name: &'static str, stores: u16) -> Arc<NodeStores> {
        let disks = (0..stores).map(|_| SimDisk::new(sim, 2 * STORE_BYTES)).collect();
        Arc::new(NodeStores { sim: sim.clone(), node: NodeId::new(node), name, disks, sites: Mutex::default() })
    }

    /// The machine that it runs on now.
    fn machine(&self) -> Machine {
        self.sim.machine(self.name)
    }

    /// It starts again, after a crash.
    fn restart(&self) {
        self.machine().crash();
        self.sites.lock().expect("sites").clear();
    }

    fn disk(&self, store: StoreId) -> &SimDisk {
        &self.disks[usize::from(store.raw())]
    }

    async fn site(&self, store: StoreId) -> Arc<Site> {
        let known = self.sites.lock().expect("sites").get(&store).cloned();
        if let Some(known) = known {
            return known;
        }
        let site = Site::open(self.machine().host(), self.disk(store).mount(&self.machine())).await.expect("site");
        self.sites.lock().expect("sites").entry(store).or_insert(site).clone()
    }

    /// An empty store, in place of what a move left that was cut short.
    async fn make(&self, identity: StoreIdentity) {
        let left = self.sites.lock().expect("sites").remove(&identity.store);
        if let Some(site) = left {
            site.close().await.expect("close");
        }
        self.disk(identity.store).wipe();
        self.site(identity.store).await.initialise(identity).await.expect("make a store");
    }
}

/// A store at a node, as the first node reaches it.
struct NodeStore {
    world: Arc<World>,
    node: Arc<NodeStores>,
    name: StoreName,
    /// The first node's host.
    host: Host,
}

impl NodeStore {
    fn send(&self, request: StoreRequest) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        let (node, name, host) = (self.node.clone(), self.name, self.host.clone());
        let is_silent = *self.world.silent.lock().expect("silent") == Some(node.node);
        let is_away = self.world.away.lock().expect("away").contains(&name.store);
        Box::pin(async move {
            host.clock.sleep(DELAY).await;
            if is_away {
                return Err(StorageError::Unavailable);
            }
            if is_silent {
                std::future::pending::<()>().await;
            }
            let there = node.clone();
            let work = async move {
                let stores: Arc<dyn ServedStores> = there.site(name.store).await;
                answer(&stores, name, request).await
            };
            let Message { head, tail } = node.machine().run(work).await.map_err(|_| StorageError::Unavailable)?;
            host.clock.sleep(DELAY).await;
            Ok(StoreAnswer::decode(&head, tail).expect("an answer"))
        })
    }
}

impl Ask for NodeStore {
    fn ask(&self, request: StoreRequest, _: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        self.send(request)
    }
}

impl RemoteStorage for NodeStore {
    fn presence(&self) -> BoxFuture<io::Result<Presence>> {
        let asked = self.send(StoreRequest::Presence);
        Box::pin(async move { what_is_there(asked.await.map_err(io::Error::other)?) })
    }
    fn initialise(&self, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        self.world.made_count.fetch_add(1, SeqCst);
        let node = self.node.clone();
        Box::pin(async move {
            node.make(identity).await;
            Ok(())
        })
    }
    fn expect(&self, _: FsUuid, _: StoreId) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// What a write of the data folder does.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Recording {
    Works,
    IsRefused,
    FailsBefore,
    FailsAfter,
    Hangs,
}

/// The first node's data folder, and the way to the nodes.
struct World {
    /// The node that takes requests and answers none.
    silent: Mutex<Option<NodeId>>,
    nodes: Vec<Arc<NodeStores>>,
    disks: Vec<SimDisk>,
    record: Mutex<BTreeMap<StoreId, KnownNode>>,
    recording: Mutex<Recording>,
    /// The stores at nodes that do not answer.
    away: Mutex<BTreeSet<StoreId>>,
    /// The maps decide the record, as they do while others vote.
    decides: AtomicBool,
    /// Stores that were made, one for each move that was begun.
    made_count: AtomicU64,
    random: SplitMix64,
}

/// The data folder, for what runs on the first node.
struct DataFolder {
    world: Arc<World>,
    maps: OnceLock<Arc<Keeper>>,
    machine: Machine,
    host: Host,
}

impl DataFolder {
    fn at(&self, node: NodeId, name: StoreName) -> Arc<NodeStore> {
        let node = self.world.nodes[usize::from(node.raw()) - 1].clone();
        Arc::new(NodeStore { world: self.world.clone(), node, name, host: self.host.clone() })
    }
}

impl StorePlaces for DataFolder {
    fn reach(&self, at: &KnownNode, name: StoreName) -> Arc<dyn RemoteStorage> {
        self.at(at.node, name)
    }
    fn record(&self, places: &BTreeMap<StoreId, KnownNode>) -> BoxFuture<Result<(), RecordError>> {
        let (world, host, places) = (self.world.clone(), self.host.clone(), places.clone());
        let maps = self.maps.get().filter(|_| world.decides.load(SeqCst)).cloned();
        Box::pin(async move {
            if let Some(maps) = maps {
                let nodes = places.iter().map(|(store, at)| (*store, at.node)).collect();
                decide_places(&maps, nodes).await?;
            }
            // A crash can come before or after.
            host.clock.sleep(Duration::from_millis(world.random.below(800))).await;
            let recording = *world.recording.lock().expect("recording");
            if recording == Recording::Hangs {
                std::future::pending::<()>().await;
            }
            if recording == Recording::IsRefused {
                return Err(RecordError::Unchanged(io::ErrorKind::StorageFull.into()));
            }
            if recording != Recording::FailsBefore {
                *world.record.lock().expect("record") = places;
            }
            host.clock.sleep(Duration::from_millis(world.random.below(800))).await;
            match recording {
                Recording::Works => Ok(()),
                _ => Err(RecordError::Unknown(io::Error::other("the disk is broken"))),
            }
        })
    }
    fn remove(&self, store: StoreId) -> BoxFuture<io::Result<()>> {
        self.world.disks[usize::from(store.raw())].wipe();
        Box::pin(std::future::ready(Ok(())))
    }
    fn make(&self, identity: StoreIdentity) -> BoxFuture<io::Result<Arc<StoreServer>>> {
        let disk = &self.world.disks[usize::from(identity.store.raw())];
        disk.wipe();
        self.world.made_count.fetch_add(1, SeqCst);
        let (host, disk) = (self.host.clone(), disk.mount(&self.machine));
        Box::pin(async move { StoreServer::create(host, disk, identity).await.map_err(io::Error::other) })
    }
}

/// What runs on the first node.
struct First {
    core: CoreMachine,
    members: Arc<Members>,
    spread: Arc<Spread>,
}

/// A file system whose first node has three stores, and two nodes.
struct Rig {
    sim: Sim,
    consensus: SimDisk,
    world: Arc<World>,
    /// What was synced: the number of each file in its contents.
    synced: Vec<u64>,
    next_file: u64,
}

fn fingerprint(node: NodeId) -> [u8; 32] {
    [node.raw() as u8; 32]
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig::of(seed, 2, STORES, 1)
    }

    /// A file system with as many nodes besides the first one, and stores.
    fn of(seed: u64, nodes: u16, stores: u16, parity: u8) -> Rig {
        let sim = Sim::new(seed);
        let disks: Vec<SimDisk> = (0..stores).map(|_| SimDisk::new(&sim, 2 * STORE_BYTES)).collect();
        let world = World {
            silent: Mutex::default(),
            nodes: (1..=nodes).zip(NAMES).map(|(node, name)| NodeStores::new(&sim, node, name, stores)).collect(),
            disks,
            record: Mutex::default(),
            recording: Mutex::new(Recording::Works),
            away: Mutex::default(),
            decides: AtomicBool::new(false),
            made_count: AtomicU64::new(0),
            random: SplitMix64::new(seed),
        };
        let consensus = SimDisk::new(&sim, STORE_BYTES);
        let rig = Rig { sim, consensus, world: Arc::new(world), synced: Vec::new(), next_file: 0 };
        let on = rig.sim.machine("one");
        let places: Vec<StorePlace> = rig.world.disks.iter().map(|disk| disk.mount(&on).into()).collect();
        let consensus: Arc<dyn Disk> = rig.consensus.mount(&on);
        let how = Create { parity, block_size: 4096, manager_count: 2, store_capacity_bytes: Some(STORE_BYTES) };
        rig.sim.block_on(create(&on.host(), &places, &consensus, how)).expect("create");
        rig
    }

    /// Starts the first node, after a crash if it ran.
    fn start(&self) -> Result<First, StartError> {
        self.sim.machine("one").crash();
        let on = self.sim.machine("one");
        let folder = Arc::new(DataFolder {
            world: self.world.clone(),
            maps: OnceLock::new(),
            machine: on.clone(),
            host: on.host(),
        });
        let fs = self.file_system(&on);
        let record = self.world.record.lock().expect("record").clone();
        let place = |(at, disk): (usize, &SimDisk)| {
            let store = StoreId::new(at as u16);
            match record.get(&store) {
                Some(at) => {
                    let remote = folder.at(at.node, StoreName { fs, store });
                    StorePlace::Node(AtNode { at: at.clone(), remote })
                }
                None => disk.mount(&on).into(),
            }
        };
        let places: Vec<StorePlace> = self.world.disks.iter().enumerate().map(place).collect();
        let consensus: Arc<dyn Disk> = self.consensus.mount(&on);
        let core = self.sim.block_on(CoreMachine::start(on.host(), &places, &consensus, RUN))?;
        let config = MembersConfig {
            lease: LEASE,
            name: "one".into(),
            address: "one:1".into(),
            is_mounted: true,
            member: None,
            leading: None,
        };
        let service = ManagerService::new(core.host());
        let members = self.sim.block_on(core.open_to_members(config, service, None));
        folder.maps.set(core.maps.clone()).ok().expect("set once");
        let spread = self.sim.block_on(core.spread(members.clone(), folder));
        Ok(First { core, members, spread })
    }

    fn file_system(&self, on: &Machine) -> FsUuid {
        let disk = self.world.disks[0].mount(on);
        let host = on.host();
        self.sim.block_on(async move {
            let server = StoreServer::open(host, disk).await.expect("store 0 stays");
            let fs = server.identity().fs;
            server.close().await.expect("close");
            fs
        })
    }

    fn join(&self, first: &First) {
        let add = |config: &mut FsConfig| {
            for node in &self.world.nodes {
                let (name, fingerprint) = (format!("node-{}", node.node.raw()), fingerprint(node.node));
                config.add_member(MemberEntry { name, fingerprint, address: String::new() }).expect("add");
            }
        };
        self.sim.block_on(first.core.change_maps(add)).expect("change");
    }

    /// A node renews its lease, and knows the newest maps or not.
    fn renew(&self, first: &First, node: u16, session: u64, knows: bool) {
        let node = NodeId::new(node);
        let maps_epoch = if knows { first.core.maps.maps().epoch } else { 1 };
        let (store_bytes, live_bytes, wants_space, seating, unreached) = (0, 0, false, 0, Vec::new());
        let renewal =
            ControlRequest::Renew { session, store_bytes, live_bytes, wants_space, maps_epoch, seating, unreached };
        let members = first.members.clone();
        self.sim.block_on(async move { members.control(&fingerprint(node), renewal).await }).expect("renew");
    }

    fn hello(&self, first: &First, node: u16) -> u64 {
        let node = NodeId::new(node);
        let (version, address) = (cluster::control::CONTROL_VERSION, format!("node{}:1", node.raw()));
        let (is_mounted, takes_stores, takes_managers, takes_votes) = (false, true, true, false);
        let program = String::new();
        let hello = Hello { node, version, is_mounted, address, takes_stores, takes_managers, takes_votes, program };
        let members = first.members.clone();
        self.sim.block_on(async move { members.hello(&hello, &fingerprint(node)).await }).expect("hello").session
    }

    /// Makes some files; those before a sync that succeeds are safe.
    fn write(&mut self, first: &First, count: u64) {
        let fs = &first.core.client;
        let numbers: Vec<u64> = (self.next_file..).take(count as usize).collect();
        self.next_file += count;
        let synced = self.sim.block_on(async {
            for number in &numbers {
                let name = format!("{number}");
                let (entry, handle) =
                    fs.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).await?;
                fs.write(&Cred::ROOT, entry.attr.id, handle, 0, &contents(*number)).await?;
                fs.release(entry.attr.id, handle, None).await?;
            }
            fs.sync().await
        });
        synced.expect("sync");
        self.synced.extend(numbers);
    }

    /// Removes some files.
    fn remove(&mut self, first: &First, count: usize) {
        let fs = &first.core.client;
        for _ in 0..count.min(self.synced.len()) {
            let at = self.world.random.below(self.synced.len() as u64) as usize;
            let name = self.synced.swap_remove(at).to_string();
            self.sim.block_on(async { fs.unlink(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await }).expect("unlink");
        }
        self.sim.block_on(async { fs.sync().await }).expect("sync");
    }

    /// Reads everything that was synced, past the client's cache as far as a fresh start has one.
    fn check(&self, first: &First) {
        let fs = &first.core.client;
        for number in &self.synced {
            let name = number.to_string();
            let read = self.sim.block_on(async {
                let entry = fs.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await?;
                let handle = fs.open(&Cred::ROOT, entry.attr.id, READ_WRITE).await?;
                let bytes = fs.read(entry.attr.id, handle, 0, 1 << 20).await?;
                fs.release(entry.attr.id, handle, None).await?;
                Ok::<_, types::FsError>(bytes)
            });
            let read = read.unwrap_or_else(|e| panic!("seed {}: file {number}: {e}", self.sim.seed()));
            assert!(read == contents(*number), "seed {}: file {number} has other bytes", self.sim.seed());
        }
    }

    /// Like [`check`](Self::check), without one of the stores. The first node must start anew after
    /// it.
    fn check_without(&self, first: &First, store: u16) {
        let disk = &self.world.disks[usize::from(store)];
        self.world.away.lock().expect("away").insert(StoreId::new(store));
        disk.offline(true);
        self.check(first);
        disk.offline(false);
        self.world.away.lock().expect("away").clear();
    }

    /// All fragments of all segments are there and good.
    fn check_whole(&self, first: &First) {
        let report = self.sim.block_on(first.core.maintenance.scrub(false, |_| ())).expect("scrub");
        assert!(report.suspects().is_empty(), "seed {}: {report:?}", self.sim.seed());
    }

    fn places(&self) -> Vec<u16> {
        let record = self.world.record.lock().expect("record");
        let place = |store| record.get(&StoreId::new(store)).map_or(0, |at| at.node.raw());
        (0..self.world.disks.len() as u16).map(place).collect()
    }

    fn run_for(&self, millis: u64) {
        self.sim.run_for(Duration::from_millis(millis));
    }

    /// Runs until each node has a store.
    fn settle(&self) {
        for _ in 0..200 {
            self.run_for(1000);
            if self.places() == [0, 2, 1] {
                self.run_for(2000);
                return;
            }
        }
        panic!("seed {}: the stores do not spread: {:?}", self.sim.seed(), self.places());
    }
}

fn contents(number: u64) -> Vec<u8> {
    let random = SplitMix64::new(number);
    (0..200 + number * 371 % 9000).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn stores_spread_over_nodes_and_any_one_disk_may_be_lost() {
    let mut rig = Rig::new(1);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 40);
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.settle();
    rig.write(&first, 40);
    rig.remove(&first, 10);
    rig.check_whole(&first);
    let config = first.core.maps.config().expect("config");
    assert_eq!(config.stores().map(|store| config.place(store).raw()).collect::<Vec<_>>(), [0, 2, 1]);
    let report = first.members.nodes().expect("nodes");
    assert_eq!((report.spread.moving, &report.spread.trouble[..]), (None, ""));
    rig.sim.block_on(first.spread.stop());
    rig.sim.block_on(first.core.stop()).expect("stop");
    for lost in [1, 2, 0] {
        let disk = match lost {
            0 => &rig.world.disks[0],
            node => rig.world.nodes[node - 1].disk(StoreId::new(3 - node as u16)),
        };
        // The rig asks the first node's disk for the file system's name, so that one fails later.
        disk.offline(lost > 0);
        let first = rig.start().expect("start");
        disk.offline(true);
        rig.check(&first);
        disk.offline(false);
        if lost > 0 {
            // The node starts again, and its store gets what it lacks.
            rig.world.nodes[lost - 1].restart();
            let first = rig.start().expect("start");
            rig.hello(&first, 1);
            rig.hello(&first, 2);
            rig.run_for(120_000);
            rig.check_whole(&first);
        }
    }
}

/// Moves a store beside a writer, crashes the first node at some moment, and goes on until the
/// stores are spread.
fn crash_during_moves(seed: u64) {
    let mut rig = Rig::new(seed);
    let mut first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 30);
    let crashes = 1 + rig.world.random.below(4);
    for _ in 0..crashes {
        rig.hello(&first, 1);
        rig.hello(&first, 2);
        for _ in 0..rig.world.random.below(6) {
            rig.run_for(rig.world.random.below(700));
            let count = 1 + rig.world.random.below(8);
            rig.write(&first, count);
            if rig.world.random.below(2) == 0 {
                rig.remove(&first, 3);
            }
        }
        rig.run_for(rig.world.random.below(1500));
        first = rig.start().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        // After a crash at any moment, the others can do without any one store.
        let lost = rig.world.random.below(u64::from(STORES)) as u16;
        rig.check_without(&first, lost);
        first = rig.start().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        rig.check(&first);
    }
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.settle();
    rig.write(&first, 5);
    rig.check(&first);
    rig.check_whole(&first);
    let first = rig.start().expect("start");
    rig.check(&first);
}

#[test]
fn crash_of_the_first_node_at_any_moment_of_a_move_loses_nothing() {
    (100..108).for_each(crash_during_moves);
}

#[test]
fn a_place_that_may_be_recorded_or_not_is_used_no_more_until_the_next_start() {
    for (seed, recording, place) in [(1, Recording::FailsBefore, 0), (2, Recording::FailsAfter, 1)] {
        let mut rig = Rig::new(seed);
        let first = rig.start().expect("start");
        rig.join(&first);
        rig.write(&first, 20);
        *rig.world.recording.lock().expect("recording") = recording;
        rig.hello(&first, 1);
        rig.hello(&first, 2);
        rig.run_for(60_000);
        let trouble = first.members.nodes().expect("nodes").spread.trouble;
        assert!(trouble.contains("store-2") && trouble.contains("start the machine that leads again"), "{trouble}");
        // The other stores have all that is written from now on.
        rig.write(&first, 20);
        *rig.world.recording.lock().expect("recording") = Recording::Works;
        let first = rig.start().expect("start");
        assert_eq!(rig.places()[2], place, "{recording:?}");
        rig.check(&first);
        rig.run_for(60_000);
        rig.check_whole(&first);
    }
}

#[test]
fn nothing_is_put_at_a_new_place_before_it_is_recorded() {
    let mut rig = Rig::new(3);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 20);
    *rig.world.recording.lock().expect("recording") = Recording::Hangs;
    rig.hello(&first, 1);
    rig.run_for(3000);
    assert!(first.members.nodes().expect("nodes").spread.moving.is_some(), "the move has ended");
    // The record hangs. What is written now, a segment each, is safe all the same.
    (0..12).for_each(|_| rig.write(&first, 1));
    // A start puts again what it finds with too few fragments, so the disk is lost before it.
    rig.world.disks[1].offline(true);
    let first = rig.start().expect("start");
    assert_eq!(rig.places(), [0, 0, 0]);
    rig.check(&first);
}

#[test]
fn a_record_that_is_refused_leaves_the_store_in_use() {
    let mut rig = Rig::new(4);
    let first = rig.start().expect("start");
    rig.join(&first);
    *rig.world.recording.lock().expect("recording") = Recording::IsRefused;
    rig.hello(&first, 1);
    rig.write(&first, 20);
    rig.run_for(5000);
    let trouble = first.members.nodes().expect("nodes").spread.trouble;
    assert!(trouble.contains("cannot be recorded"), "{trouble}");
    rig.write(&first, 20);
    rig.check_whole(&first);
    *rig.world.recording.lock().expect("recording") = Recording::Works;
    rig.run_for(60_000);
    assert_eq!(rig.places(), [0, 0, 1], "it was tried again");
    assert_eq!(first.members.nodes().expect("nodes").spread.trouble, "");
}

#[test]
fn a_node_that_does_not_answer_holds_up_neither_the_end_nor_other_nodes() {
    let mut rig = Rig::new(5);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 20);
    *rig.world.silent.lock().expect("silent") = Some(NodeId::new(1));
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.run_for(120_000);
    assert_eq!(rig.places(), [0, 0, 2]);
    rig.write(&first, 20);
    rig.sim.block_on(async {
        first.spread.stop().await;
        first.core.stop().await.expect("stop");
    });
}

#[test]
fn an_old_record_of_the_places_is_refused() {
    let mut rig = Rig::new(6);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 20);
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.settle();
    let newest = rig.world.record.lock().expect("record").clone();
    rig.world.record.lock().expect("record").remove(&StoreId::new(1));
    let refused = rig.start().err().expect("refused").to_string();
    assert!(refused.contains("has moved to"), "{refused}");
    *rig.world.record.lock().expect("record") = newest;
    let first = rig.start().expect("start");
    rig.check(&first);
}
