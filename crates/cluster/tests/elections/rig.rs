//! Nodes with a store, a voter and programs each. The one that voters elect serves as the first
//! node, on a simulated machine of its own that ends with its lease.

use crate::net::{End, First, Net, Shelf, To, Up, certificate, first_certificate, name_as_first};
use crate::recovered::{AsFirst, Server};
use bytes::Bytes;
use cluster::config::{DrainRate, FIRST_NODE, MemberEntry, STORE_CAPACITY_BYTES_MIN};
use cluster::control::{ControlAnswer, ControlError, ControlRequest};
use cluster::host_service::ManagerHost;
use cluster::leading::{Leading, stand_back};
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use cluster::manager_service::ManagerService;
use cluster::manager_ways::ManagerWays;
use cluster::maps::Voting;
use cluster::member::{FirstNode, Member, MemberConfig};
use cluster::members::MembersConfig;
use cluster::remote_locks::{LockTableService, RemoteLocks};
use cluster::removal::Removal;
use cluster::seat::HostWay;
use cluster::seats::HostWays;
use cluster::shared_locks::LockWay;
use cluster::spread::DecidedPlaces;
use cluster::succession::after_election;
use cluster::survivors::Arrivals;
use cluster::switch::SwitchStore;
use cluster::{AtNode, Claim, FsConfig, KnownNode, StorePlace, Succession};
use consensus::network::{PeerError, Peers};
use consensus::{Consensus, GroupTiming, VoterSettings};
use host::sim::{Machine, Sim, SimDisk};
use host::{Disk, Either, first};
use link::OrderedLane;
use manager::admin_wire::HostRequest;
use manager::api::{Manager, ManagerError, TokenHolder};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use storage::api::Storage;
use storage::wire::StoreName;
use types::{BoxFuture, FsUuid, ManagerId, NodeId, StoreId};

/// Nodes at first. Each has a store.
pub const NODES: u16 = 3;
pub const LEASE: Duration = Duration::from_secs(8);
pub const TIMING: GroupTiming = GroupTiming {
    heartbeat: Duration::from_millis(300),
    election_min: Duration::from_millis(700),
    election_max: Duration::from_secs(2),
};
pub const ROOM: u64 = 8 * STORE_CAPACITY_BYTES_MIN;
/// Time before a node that led may lead again.
pub const PAUSE: Duration = Duration::from_secs(1);
const MAKER: [u8; 32] = [99; 32];

pub fn run(claim: Claim) -> Run {
    Run {
        cache_bytes: 16 << 20,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
        index_range_len: INDEX_RANGE_LEN,
        manager_lengths: Lengths::LARGEST,
        accepts_loss: false,
        claim,
    }
}

/// The disks of a node: one for each store that may come to it.
#[derive(Clone)]
pub struct Disks {
    pub stores: Vec<SimDisk>,
    pub voters: Arc<Mutex<VoterDisks>>,
    /// Its user has made it into the first node.
    pub first: Option<Arc<AsFirst>>,
}

impl Disks {
    fn new(sim: &Sim) -> Disks {
        let disk = |_| SimDisk::new(sim, 2 * ROOM);
        Disks { stores: (0..NODES).map(disk).collect(), voters: Arc::default(), first: None }
    }
}

/// The disks of the voters that a node had, and the one that it has begun last.
#[derive(Default)]
pub struct VoterDisks {
    pub all: BTreeMap<u64, SimDisk>,
    pub begun: Option<u64>,
    /// The one that it has made. Another one that was begun is lost.
    pub made: Option<u64>,
}

impl VoterDisks {
    fn is_lost(&self) -> bool {
        self.begun.is_some() && self.begun != self.made
    }

    /// All are lost.
    pub fn lose(&mut self) {
        (self.made, self.all) = Default::default();
    }
}

/// A file system on three nodes.
pub struct Rig {
    fs: FsUuid,
    pub net: Arc<Net>,
    /// Of all nodes that have ever joined.
    pub disks: Mutex<BTreeMap<NodeId, Disks>>,
    /// How often a node has led, and how often it was elected and could not start.
    pub led: Arc<AtomicU64>,
    pub failed: Arc<AtomicU64>,
    /// How often a voter was opened again after its disk had failed.
    pub reopened: Arc<AtomicU64>,
    /// Why a node could not start.
    pub why: Arc<Mutex<String>>,
    pub fates: Arc<Mutex<Fates>>,
}

/// What the leaders were asked of nodes, and have answered.
#[derive(Default)]
pub struct Fates {
    /// They joined, as was answered.
    pub joined: BTreeSet<NodeId>,
    /// They were to be removed, or a user has made them into the first node.
    pub asked: BTreeSet<NodeId>,
    /// They were removed, as was answered.
    pub removed: BTreeSet<NodeId>,
    /// How many of them had stores, which were made anew.
    pub made_anew: u64,
}

/// The nodes that are there at first.
pub fn nodes() -> impl Iterator<Item = NodeId> {
    (1..=NODES).map(NodeId::new)
}

fn member(node: NodeId) -> MemberEntry {
    MemberEntry { name: format!("{node}"), fingerprint: certificate(node), address: format!("{node}:7440") }
}

/// The node with a store.
fn home(store: StoreId) -> NodeId {
    NodeId::new(store.raw() + 1)
}

impl Rig {
    pub fn new(seed: u64) -> Rig {
        let sim = Sim::new(seed);
        let disks: BTreeMap<NodeId, Disks> = nodes().map(|node| (node, Disks::new(&sim))).collect();
        let first_voter = SimDisk::new(&sim, 2 * ROOM);
        let maker = sim.machine("maker");
        let places =
            (0..).zip(disks.values()).map(|(store, disks): (usize, _)| disks.stores[store].mount(&maker).into());
        let (places, voter): (Vec<StorePlace>, Arc<dyn Disk>) = (places.collect(), first_voter.mount(&maker));
        *disks[&NodeId::new(1)].voters.lock() =
            VoterDisks { all: [(1, first_voter)].into(), begun: Some(1), made: Some(1) };
        let how = Create { parity: 1, block_size: 65536, manager_count: 3, store_capacity_bytes: Some(ROOM) };
        sim.block_on(create(&maker.host(), &places, &voter, how)).expect("create");
        let core = sim.block_on(CoreMachine::start(maker.host(), &places, &voter, run(Claim::NONE))).expect("start");
        // As after an election: all nodes are members.
        let members = |config: &mut FsConfig| {
            for node in nodes() {
                config.add_member(member(node)).expect("add");
            }
            config.places = config.stores().map(|store| (store, home(store))).collect();
            config.first_node = Some(MAKER);
            config.voters.values_mut().for_each(|node| *node = NodeId::new(1));
        };
        sim.block_on(core.change_maps(members)).expect("change");
        sim.block_on(core.stop()).expect("stop");
        maker.crash();
        let fs = core.config.fs;
        let (net, disks) = (Net::new(&sim), Mutex::new(disks));
        let (led, failed, reopened, why, fates) = Default::default();
        Rig { fs, net, disks, led, failed, reopened, why, fates }
    }

    pub fn machine(&self, node: NodeId) -> Machine {
        self.net.sim.machine(&format!("{node}"))
    }

    /// The machine of what a node serves as the first one.
    pub fn first_machine(&self, node: NodeId) -> Machine {
        self.net.sim.machine(&format!("first at {node}"))
    }

    /// The process of a node stops, or goes on.
    pub fn pause(&self, node: NodeId, is_paused: bool) {
        self.machine(node).pause(is_paused);
        self.first_machine(node).pause(is_paused);
    }

    /// Nothing gets from a node to the others any more, nor back.
    pub fn cut_off(&self, node: NodeId) {
        for other in self.nodes().into_iter().filter(|other| *other != node) {
            self.net.cut(node, other, true);
            self.net.cut(other, node, true);
        }
    }

    /// A node is killed.
    pub fn kill(&self, node: NodeId) {
        self.net.end(node);
        self.first_machine(node).crash();
        self.machine(node).crash();
    }

    /// A node that was killed has lost power.
    pub fn power_loss(&self, node: NodeId) {
        let disks = self.disks.lock();
        let Disks { stores, voters, .. } = &disks[&node];
        stores.iter().chain(voters.lock().all.values()).for_each(SimDisk::power_loss);
    }

    /// The disk of a node's voter, if there is one, fails at the next change of what it knows.
    pub fn fail_voter_disk(&self, node: NodeId, by_sync: bool) {
        let Some((id, _)) = self.net.process(node).and_then(|process| process.voter()) else { return };
        let disks = self.disks.lock();
        let voters = disks[&node].voters.lock();
        match by_sync {
            true => voters.all[&id].fail_next_syncs(1),
            false => voters.all[&id].fail_next_writes(1),
        }
    }

    /// Starts a node; one that a user has made into the first node is no member.
    pub fn start(&self, node: NodeId) -> Option<Arc<Member>> {
        self.kill(node);
        let machine = self.machine(node);
        let certificate = self.net.certificate(node);
        let end = End { net: self.net.clone(), node, certificate, host: machine.host() };
        if let Some((first, Disks { stores, voters, .. })) = self.as_first(node) {
            let managers = ManagerHost::new(end.host.clone()).service();
            let process = self.net.begin(node, &machine, managers);
            let server = Server { node, fs: self.fs, end, process, stores, voters, first };
            let seen = self.seen();
            machine.host().tasks.spawn(Box::pin(async move { server.serve(&seen).await }));
            return None;
        }
        Some(self.start_member(node, end))
    }

    fn as_first(&self, node: NodeId) -> Option<(Arc<AsFirst>, Disks)> {
        let disks = self.disks.lock()[&node].clone();
        Some((disks.first.clone()?, disks))
    }

    fn start_member(&self, node: NodeId, end: End) -> Arc<Member> {
        self.disks.lock()[&node].voters.lock().all.values().for_each(|disk| {
            disk.fail_next_syncs(0);
            disk.fail_next_writes(0);
        });
        let (machine, host) = (self.machine(node), end.host.clone());
        let managers = ManagerHost::new(host.clone());
        let process = self.net.begin(node, &machine, managers.service());
        let (shelves, voters): (Vec<Arc<dyn Disk>>, _) = {
            let disks = self.disks.lock();
            let Disks { stores, voters, .. } = &disks[&node];
            (stores.iter().map(|disk| disk.mount(&machine) as Arc<dyn Disk>).collect(), voters.clone())
        };
        let takes_votes = !voters.lock().is_lost();
        let leader = Leader { node, rig: self.seen(), process: process.clone(), end: end.clone() };
        let votes = Votes { node, fs: self.fs, machine: machine.clone(), process, end: end.clone(), disks: voters };
        let (ways, stores) = (ManagerWays::new(host.clone()), Mutex::default());
        let remote = Remote { end, ways, managers: managers.clone(), stores };
        self.net.hosts.lock().insert(node, managers.clone());
        let config = MemberConfig {
            node,
            cache_bytes: 16 << 20,
            is_mounted: true,
            address: format!("{node}:7440"),
            takes_stores: true,
            takes_managers: true,
            takes_votes,
        };
        let member = Member::start(host.clone(), config, Arc::new(remote), managers);
        let mut maps = member.maps();
        let here = host.clone();
        host.tasks.spawn(Box::pin(async move {
            let shelf = Shelf::open(node, &here, shelves).await;
            assert!(votes.process.shelf.set(shelf).is_ok());
            votes.open_made().await;
            here.tasks.spawn(Box::pin(async move { leader.lead_whenever_elected().await }));
            while maps.changed().await.is_ok() {
                let config = FsConfig::decode(&maps.borrow_and_update().bytes).expect("maps");
                votes.follow(&config).await;
            }
        }));
        member
    }

    /// The nodes that have ever joined, as far as known.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.disks.lock().keys().copied().collect()
    }

    /// The nodes that belong to the file system, as the leader knows it.
    pub fn members(&self) -> Option<BTreeSet<NodeId>> {
        Some(self.led()?.up.get()?.core.maps.config().ok()?.members.into_keys().collect())
    }

    /// The first node that the leader serves.
    pub fn led(&self) -> Option<Arc<First>> {
        self.net.process(self.leader()?)?.first.lock().clone()
    }

    /// Has the leader take a new node in. True if there is a leader.
    pub fn invite(&self) -> bool {
        let Some(first) = self.led() else { return false };
        let (there, fates) = (first.clone(), self.fates.clone());
        first.machine.host().tasks.spawn(Box::pin(async move {
            let up = there.up.get().expect("it has started");
            let mut new = None;
            let add = |config: &mut FsConfig| new = config.add_member(member(NodeId::new(config.next_node))).ok();
            // It may lead no more.
            if up.core.maps.change(add).await.is_ok() {
                fates.lock().joined.extend(new);
            }
        }));
        true
    }

    /// Gives disks to nodes that were taken in. Returns them.
    pub fn newcomers(&self) -> Vec<NodeId> {
        let members = self.members().unwrap_or_default();
        let mut disks = self.disks.lock();
        let new: Vec<NodeId> = members.into_iter().filter(|node| !disks.contains_key(node)).collect();
        new.iter().for_each(|node| drop(disks.insert(*node, Disks::new(&self.net.sim))));
        new
    }

    /// Has the leader take out a node, which is down.
    pub fn remove(&self, node: NodeId, how: Removal) {
        let Some(first) = self.led() else { return };
        let (there, fates, name) = (first.clone(), self.fates.clone(), self.net.name(node));
        fates.lock().asked.insert(node);
        first.machine.host().tasks.spawn(Box::pin(async move {
            let up = there.up.get().expect("it has started");
            let done = up.spread.remove_node(&name, how).await;
            println!("{node} is removed with {how:?}: {done:?}");
            if let Ok(stores) = done {
                let mut fates = fates.lock();
                fates.removed.insert(node);
                fates.made_anew += u64::from(stores.iter().next().is_some());
            }
        }));
    }

    fn seen(&self) -> Seen {
        let (led, failed, reopened) = (self.led.clone(), self.failed.clone(), self.reopened.clone());
        Seen { led, failed, reopened, why: self.why.clone() }
    }

    /// The node that leads, and has started.
    pub fn leader(&self) -> Option<NodeId> {
        self.nodes().into_iter().find(|node| {
            let process = self.net.process(*node);
            process.is_some_and(|process| process.first.lock().as_ref().is_some_and(|first| first.up.get().is_some()))
        })
    }

    /// Has the leader drain a node, or stop that. True if there is a leader.
    pub fn drain(&self, node: NodeId, drains: bool) -> bool {
        let Some(first) = self.led() else { return false };
        let there = first.clone();
        let name = if self.recovered() == Some(node) { name_as_first(node) } else { self.net.name(node) };
        first.machine.host().tasks.spawn(Box::pin(async move {
            let up = there.up.get().expect("it has started");
            // It may lead no more.
            let _ = up.spread.drain_node(&name, drains.then(DrainRate::default), true).await;
        }));
        true
    }

    /// Kills a node with one store and replaces its disks, if the others have everything. True if
    /// it did.
    pub fn replace_disks(&self, node: NodeId) -> bool {
        let is_whole = self.is_whole();
        let has_one = self.places().is_some_and(|places| places.values().filter(|at| **at == node).count() == 1);
        let replaces = has_one && is_whole;
        if replaces {
            self.kill(node);
            self.disks.lock()[&node].stores.iter().for_each(SimDisk::wipe);
        }
        replaces
    }

    /// True if the stores have everything, as the leader knows it.
    pub fn is_whole(&self) -> bool {
        let Some(first) = self.led() else { return false };
        let there = first.clone();
        let is_whole = first.machine.run(async move {
            let core = &there.up.get().expect("it has started").core;
            core.maintenance.has_compared_all().await && core.stripe.is_whole()
        });
        let clock = self.net.sim.machine("dice").host().clock;
        let is_whole = self.net.sim.block_on(host::timeout(&*clock, LEASE, is_whole));
        matches!(is_whole, Ok(Ok(true)))
    }

    /// Where the stores are, as the leader knows it.
    pub fn places(&self) -> Option<BTreeMap<StoreId, NodeId>> {
        Some(self.led()?.up.get()?.core.maps.config().ok()?.places)
    }

    /// What the voters know, who serves, and why a node could not.
    pub fn shown(&self) -> String {
        let shown = self.nodes().into_iter().filter_map(|node| self.net.process(node)).map(|process| {
            let voter = process
                .voter()
                .map(|(id, voter)| (id, voter.leadership(), voter.voters().into_keys().collect::<Vec<_>>()));
            let first = process.first.lock().as_ref().map(|first| (first.up.get().is_some(), first.arrivals.awaited()));
            let sessions = process.first.lock().as_ref().and_then(|first| first.up.get()?.members.nodes().ok());
            format!("\n{}: voter {voter:?}, first {first:?} {sessions:#?}", process.node)
        });
        format!("{}\n{}", shown.collect::<String>(), self.why.lock())
    }

    pub fn run_for(&self, time: Duration) {
        self.net.sim.run_for(time);
    }
}

/// A voter's way to the others.
pub struct Wires(pub End);

impl Peers for Wires {
    fn ask(&self, voter: u64, _: &str, request: Bytes) -> BoxFuture<Result<Bytes, PeerError>> {
        let (end, to) = (self.0.clone(), self.0.net.voters.lock().get(&voter).copied());
        Box::pin(async move {
            let asked = async {
                let to = to?;
                end.travel(to).await.ok()?;
                let there = end.net.process(to)?;
                let (_, voter) = there.voter().filter(|(id, _)| *id == voter)?;
                let answer = async move { voter.answer(&request).await.expect("a request") };
                let answer = there.machine.run(answer).await.ok()?;
                end.come_back(to).await.ok()?;
                Some(answer)
            };
            asked.await.ok_or_else(|| PeerError { voter, why: "it is away".into() })
        })
    }
}

/// Gives a node the voters that the maps say, as its data folder does.
struct Votes {
    node: NodeId,
    fs: FsUuid,
    machine: Machine,
    process: Arc<crate::net::Process>,
    end: End,
    disks: Arc<Mutex<VoterDisks>>,
}

impl Votes {
    fn settings(&self, voter: u64) -> VoterSettings {
        VoterSettings { voter, node: String::new(), peers: Arc::new(Wires(self.end.clone())), timing: Some(TIMING) }
    }

    fn take(&self, id: u64, voter: Consensus) {
        self.end.net.voters.lock().insert(id, self.node);
        self.process.voter.send_replace(Some((id, Arc::new(voter))));
    }

    /// Opens the voter that was made before.
    async fn open_made(&self) {
        let made = {
            let disks = self.disks.lock();
            let made = disks.made.filter(|_| !disks.is_lost());
            made.map(|id| (id, disks.all[&id].mount(&self.machine) as Arc<dyn Disk>))
        };
        if let Some((id, disk)) = made {
            let voter = Consensus::open(&self.end.host, &disk, &self.settings(id)).await;
            self.take(id, voter.expect("a voter"));
        }
    }

    /// Has the voter that these maps give to the node, or none.
    async fn follow(&self, config: &FsConfig) {
        let (is, wanted) = (self.process.voter().map(|(id, _)| id), config.voter_of(self.node));
        if is == wanted {
            return;
        }
        if let Some((_, voter)) = self.process.voter.send_replace(None) {
            voter.close().await;
        }
        let was_begun = {
            let mut disks = self.disks.lock();
            let was_begun = disks.begun == wanted;
            disks.begun = wanted;
            disks.made = disks.made.filter(|_| was_begun);
            was_begun
        };
        // One that was cut short is lost: it may have voted.
        let Some(id) = wanted.filter(|_| !was_begun) else { return };
        let disk = SimDisk::new(&self.end.net.sim, 2 * ROOM);
        let mounted: Arc<dyn Disk> = disk.mount(&self.machine);
        self.disks.lock().all.insert(id, disk);
        let voter = Consensus::join(&self.end.host, &mounted, &self.settings(id), self.fs).await;
        self.disks.lock().made = Some(id);
        self.take(id, voter.expect("a voter"));
    }
}

pub struct Seen {
    pub led: Arc<AtomicU64>,
    pub failed: Arc<AtomicU64>,
    reopened: Arc<AtomicU64>,
    pub why: Arc<Mutex<String>>,
}

/// Has a node lead while voters elect it.
struct Leader {
    node: NodeId,
    rig: Seen,
    process: Arc<crate::net::Process>,
    end: End,
}

impl Leader {
    async fn lead_whenever_elected(&self) {
        let host = &self.end.host;
        let mut voters = self.process.voter.subscribe();
        loop {
            let found = voters.wait_for(Option::is_some).await.expect("the process has it").clone();
            let voter = &found.expect("a voter").1;
            let now = voter.leadership_until(|now| now.is_ready).await;
            if now.has_stopped {
                self.open_again(voter).await;
            }
            if !now.has_stopped
                && let Some(leading) = Leading::begin(host, voter).await
            {
                let led = self.lead(voter, &leading).await;
                // Its questions would keep others from an election.
                drop(leading);
                *self.process.first.lock() = None;
                self.machine().crash();
                if let Err(why) = led {
                    *self.rig.why.lock() = format!("node {} is elected, and cannot lead: {why}", self.node);
                    self.rig.failed.fetch_add(1, SeqCst);
                    stand_back(host, voter).await;
                }
            }
            host.clock.sleep(PAUSE).await;
        }
    }

    /// Opens a voter again whose disk failed, unless it goes.
    async fn open_again(&self, stopped: &Arc<Consensus>) {
        let Ok(again) = stopped.open_again().await else { return };
        let again = Arc::new(again);
        let taken = self.process.voter.send_if_modified(|now| match now {
            Some((_, is)) if Arc::ptr_eq(is, stopped) => {
                *is = again.clone();
                true
            }
            _ => false,
        });
        match taken {
            true => drop(self.rig.reopened.fetch_add(1, SeqCst)),
            false => again.close().await,
        }
    }

    fn machine(&self) -> Machine {
        self.end.net.sim.machine(&format!("first at {}", self.node))
    }

    async fn lead(&self, voter: &Arc<Consensus>, leading: &Arc<Leading>) -> Result<(), String> {
        let machine = self.machine();
        let arrivals = Arrivals::new(machine.host(), LEASE);
        leading.earlier_leases_left(LEASE).into_iter().for_each(|left| arrivals.know_leases_left(left));
        let here = self.end.net.new_first(&machine, arrivals);
        *self.process.first.lock() = Some(here.clone());
        let end = End { certificate: first_certificate(self.node), host: machine.host(), ..self.end.clone() };
        let starts = machine.run(start(end, here, voter.clone(), leading.clone()));
        match first(starts, leading.over()).await {
            Either::Left(started) => started.map_err(|e| e.to_string())??,
            Either::Right(()) => return Err("it does not lead any more".into()),
        }
        self.rig.led.fetch_add(1, SeqCst);
        leading.over().await;
        Ok(())
    }
}

async fn start(end: End, here: Arc<First>, voter: Arc<Consensus>, leading: Arc<Leading>) -> Result<(), String> {
    let (host, node, net) = (end.host.clone(), end.node, end.net.clone());
    let known = FsConfig::decode(&voter.maps().bytes).expect("maps");
    let config = after_election(&known, end.certificate).map_err(|e| e.to_string())?;
    here.arrivals.expect(config.clone());
    let places = config.stores().map(|store| {
        let at = config.reach(config.place(store)).expect("an address");
        let remote = end.store(To::Node(at.node), StoreName { fs: config.fs, store });
        StorePlace::Node(AtNode { at, remote })
    });
    let places: Vec<StorePlace> = places.collect();
    let claim = Claim { certificate: Some(end.certificate), succession: Some(Succession::Elected(node)) };
    let started = CoreMachine::start_after(host.clone(), &places, Voting::Led(voter), run(claim), &here.arrivals).await;
    let core = started.map_err(|e| e.to_string())?;
    let managers = ManagerService::new(host.clone());
    let config = MembersConfig {
        lease: LEASE,
        name: net.name(node),
        address: format!("{node}:1"),
        is_mounted: false,
        member: Some(node),
        leading: Some(leading),
    };
    let ways = Arc::new(Ways(end.clone()));
    let members = core.open_to_members(config, managers.clone(), Some(ways)).await;
    let places = DecidedPlaces::new(core.maps.clone(), Box::new(move |at, name| end.store(To::Node(at.node), name)));
    let spread = core.spread(members.clone(), places).await;
    members.begin_leases();
    let locks = Arc::new(LockTableService(members.clone()));
    host.tasks.spawn(Box::pin(members.clone().keep_voters(node)));
    assert!(here.up.set(Up { members, managers, locks, spread, core }).is_ok());
    Ok(())
}

/// The first node's ways to nodes that serve managers.
pub struct Ways(pub End);

impl HostWays for Ways {
    fn reach(&self, at: &KnownNode) -> Arc<dyn HostWay> {
        Arc::new(HostLink(self.0.clone(), at.node))
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.0.certificate
    }
}

struct HostLink(End, NodeId);

impl HostWay for HostLink {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, ManagerError>> {
        let (end, node) = (self.0.clone(), self.1);
        Box::pin(async move {
            let asked = async {
                let (session, request) = HostRequest::decode(&request).expect("a request");
                end.travel(node).await.ok()?;
                let process = end.net.process(node)?;
                let managers = end.net.hosts.lock().get(&node).cloned()?;
                let first = end.certificate;
                let work = async move { managers.ask(Some(first), session, request).await.encode() };
                let answer = process.machine.run(work).await.ok()?;
                end.come_back(node).await.ok()?;
                Some(answer)
            };
            asked.await.ok_or(ManagerError::Away)
        })
    }

    fn is_up(&self) -> bool {
        self.0.net.is_up(self.0.node, self.1)
    }

    fn lane(&self) -> Arc<dyn OrderedLane> {
        self.0.lane(To::Node(self.1))
    }
}

/// The first node, as one member sees it.
struct Remote {
    end: End,
    ways: ManagerWays,
    managers: Arc<ManagerHost>,
    /// The stores of the session.
    stores: Mutex<BTreeMap<StoreId, SwitchStore>>,
}

impl Remote {
    fn store(&self, config: &FsConfig, store: StoreId) -> Arc<dyn Storage> {
        let at = match config.place(store) {
            FIRST_NODE => To::First,
            _ if config.through_first.contains(&store) => To::First,
            node => To::Node(node),
        };
        self.end.store(at, StoreName { fs: config.fs, store })
    }
}

impl FirstNode for Remote {
    fn control(&self, request: ControlRequest) -> BoxFuture<Result<ControlAnswer, ControlError>> {
        let end = self.end.clone();
        Box::pin(async move {
            let (node, certificate) = (end.node, end.certificate);
            let request = ControlRequest::decode(&request.encode()).expect("a request");
            let Some((first, at, _)) = end.net.first_of(node) else {
                return Err(ControlError::Unavailable("no node leads".into()));
            };
            let asked = async {
                end.travel(at).await.ok()?;
                let there = first.clone();
                let work = async move {
                    match there.up.get() {
                        Some(up) => up.members.control(&certificate, request).await,
                        None => there.arrivals.control(&certificate, request),
                    }
                };
                let answer = first.machine.run(work).await.ok()?;
                end.come_back(at).await.ok()?;
                Some(answer)
            };
            let answer = asked.await.unwrap_or(Err(ControlError::Unavailable("no answer".into())));
            if matches!(answer, Err(ControlError::Unavailable(_))) {
                // The next try may be at another one.
                end.net.forget_first(node);
            }
            ControlAnswer::decode(&ControlAnswer::encode(&answer))
        })
    }

    fn managers(&self, session: u64, count: usize) -> Vec<Arc<dyn Manager>> {
        self.ways.managers(session, count, &self.end.lane(To::First))
    }

    fn seat(&self, session: u64, managers: &[(ManagerId, Option<KnownNode>)]) {
        self.ways.seat(session, managers, |at| {
            Some(match at {
                None => self.end.lane(To::First),
                Some(at) if at.node == self.end.node => self.managers.lane(self.end.certificate),
                Some(at) => self.end.lane(To::Node(at.node)),
            })
        });
    }

    fn unseat(&self, session: u64, managers: &[ManagerId]) {
        self.ways.unseat(session, managers);
    }

    fn moved(&self) -> BoxFuture<()> {
        self.ways.moved()
    }

    fn unreached(&self, session: u64) -> BTreeSet<NodeId> {
        let (net, own) = (&self.end.net, self.end.node);
        let nodes = self.ways.nodes(session).into_iter().map(|at| at.node).filter(|node| *node != own);
        nodes.filter(|node| net.process(*node).is_none() || net.is_apart(own, *node)).collect()
    }

    fn stores(&self, _: u64, config: &FsConfig) -> Vec<(StoreId, Arc<dyn Storage>)> {
        let switches = config.stores().map(|store| (store, SwitchStore::new(self.store(config, store))));
        let switches: BTreeMap<StoreId, SwitchStore> = switches.collect();
        *self.stores.lock() = switches.clone();
        switches.into_iter().map(|(store, switch)| (store, Arc::new(switch) as Arc<dyn Storage>)).collect()
    }

    fn can_resume(&self, session: u64) -> bool {
        self.ways.can_go_on(session)
    }

    fn follow(&self, config: &FsConfig) {
        let stores = self.stores.lock();
        stores.iter().for_each(|(store, switch)| switch.set(self.store(config, *store)));
    }

    fn locks(&self, session: u64) -> Arc<dyn LockWay> {
        RemoteLocks::new(&self.end.host, self.end.lane(To::First), session)
    }

    fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>) {
        self.ways.recalls(session, holder, self.end.lane(To::First));
    }

    fn end(&self, session: u64) {
        self.ways.end(session);
    }
}
