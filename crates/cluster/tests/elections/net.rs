//! The way between nodes: messages take their time, and are lost while a way is cut. Ways are cut
//! in one direction or in both.

use cluster::FsConfig;
use cluster::host_service::ManagerHost;
use cluster::machine::CoreMachine;
use cluster::manager_service::ManagerService;
use cluster::members::Members;
use cluster::remote_locks::LockTableService;
use cluster::spread::Spread;
use cluster::survivors::Arrivals;
use cluster::switch::SwitchStore;
use consensus::Consensus;
use host::sim::{Machine, Sim};
use host::{Disk, Either, Host, first};
use link::{LinkError, Message, NodeService, OrderedLane, Peer, kinds};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use storage::api::{Presence, RemoteStorage, Storage, StorageError, StoreIdentity};
use storage::calls::{Ask, ServedStores, is_done, what_is_there};
use storage::site::{self, Site};
use storage::tcp::StoreService;
use storage::wire::{StoreAnswer, StoreName, StoreRequest};
use tokio::sync::{mpsc, oneshot, watch};
use types::{BoxFuture, FsUuid, NodeId, StoreId};

/// A connection counts as broken after its messages do not get through for so long.
const LOST_AFTER: Duration = Duration::from_secs(3);
/// Time before a way that is down is tried again.
const RECONNECTED_AFTER: Duration = Duration::from_secs(1);
/// How long a request to a store may take: between these two, in milliseconds.
const STORE_TIME_MAX: std::ops::Range<u64> = 1000..5000;
/// How often a way that is cut is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// The certificate of a node as a member.
pub fn certificate(node: NodeId) -> [u8; 32] {
    [node.raw() as u8; 32]
}

/// The certificate of a node as the first one.
pub fn first_certificate(node: NodeId) -> [u8; 32] {
    [100 + node.raw() as u8; 32]
}

/// The certificate of a node that a user has made into the first one, with which it becomes a
/// member when another one is elected.
pub fn certificate_as_member(node: NodeId) -> [u8; 32] {
    [230 + node.raw() as u8; 32]
}

/// The name of a node that a user has made into the first one.
pub fn name_as_first(node: NodeId) -> String {
    format!("first-{node}")
}

/// What runs on a node since its start.
pub struct Process {
    pub node: NodeId,
    /// Of all starts.
    number: u64,
    pub machine: Machine,
    pub managers: Arc<ManagerService>,
    pub shelf: OnceLock<Arc<Shelf>>,
    /// Its voter and the id of it, which the maps may give it and take from it.
    pub voter: watch::Sender<Option<(u64, Arc<Consensus>)>>,
    /// Present while it is elected.
    pub first: Mutex<Option<Arc<First>>>,
}

impl Process {
    /// The voter, if there is one.
    pub fn voter(&self) -> Option<(u64, Arc<Consensus>)> {
        self.voter.borrow().clone()
    }
}

/// The first node in the process of a member.
pub struct First {
    number: u64,
    pub machine: Machine,
    /// Takes requests while it starts.
    pub arrivals: Arc<Arrivals>,
    pub up: OnceLock<Up>,
}

/// The first node once it has started.
pub struct Up {
    pub members: Arc<Members>,
    pub managers: Arc<ManagerService>,
    pub locks: Arc<LockTableService>,
    pub spread: Arc<Spread>,
    /// Its tasks end with it.
    pub core: CoreMachine,
}

/// A first node, where it is, and the number of the connection to it.
type Chosen = (Arc<First>, NodeId, u64);
/// The way of the holder of a certificate to a node.
type Way = ([u8; 32], NodeId);

/// All nodes, and the ways between them.
pub struct Net {
    pub sim: Sim,
    processes: Mutex<BTreeMap<NodeId, Arc<Process>>>,
    /// What serves managers at each node.
    pub hosts: Mutex<BTreeMap<NodeId, Arc<ManagerHost>>>,
    /// Where voters are.
    pub voters: Mutex<BTreeMap<u64, NodeId>>,
    /// Nodes of which no message gets from the one to the other.
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Requests to stores are given up after this time.
    pub store_time_max: Mutex<Option<Duration>>,
    /// Messages to and from this node take so much longer.
    slow: Mutex<Option<(NodeId, Duration)>>,
    /// The first node that a node talks to now, and the number of the connection.
    chosen: Mutex<BTreeMap<NodeId, Chosen>>,
    /// The connection of one to the process of a node: the numbers of both.
    connections: Mutex<BTreeMap<Way, (u64, u64)>>,
    /// Ways to stores that are down since a request was lost there.
    down: Mutex<BTreeMap<Way, Duration>>,
    numbers: AtomicU64,
    /// What members were called as first nodes that a user had made, before another was elected.
    former: Mutex<BTreeMap<NodeId, NodeId>>,
}

/// A message did not get through.
pub struct Lost;

impl Net {
    pub fn new(sim: &Sim) -> Arc<Net> {
        let (processes, hosts, voters, cut, store_time_max) = Default::default();
        let (slow, chosen, connections, down, numbers, former) = Default::default();
        Arc::new(Net {
            sim: sim.clone(),
            processes,
            hosts,
            voters,
            cut,
            store_time_max,
            slow,
            chosen,
            connections,
            down,
            numbers,
            former,
        })
    }

    /// A first node that a user had made is this member from now on.
    pub fn becomes_member(&self, first: NodeId, member: NodeId) {
        self.former.lock().insert(member, first);
    }

    /// The certificate of a member.
    pub fn certificate(&self, node: NodeId) -> [u8; 32] {
        self.former.lock().get(&node).map_or_else(|| certificate(node), |first| certificate_as_member(*first))
    }

    /// The name of a member.
    pub fn name(&self, node: NodeId) -> String {
        self.former.lock().get(&node).map_or_else(|| format!("{node}"), |first| name_as_first(*first))
    }

    fn next_number(&self) -> u64 {
        1 + self.numbers.fetch_add(1, SeqCst)
    }

    pub fn begin(&self, node: NodeId, machine: &Machine, managers: Arc<ManagerService>) -> Arc<Process> {
        let (shelf, first, voter) = (OnceLock::new(), Mutex::default(), watch::Sender::new(None));
        let number = self.next_number();
        let process = Arc::new(Process { node, number, machine: machine.clone(), managers, shelf, voter, first });
        self.processes.lock().insert(node, process.clone());
        process
    }

    pub fn end(&self, node: NodeId) {
        self.processes.lock().remove(&node);
    }

    pub fn process(&self, node: NodeId) -> Option<Arc<Process>> {
        self.processes.lock().get(&node).cloned()
    }

    pub fn new_first(&self, machine: &Machine, arrivals: Arc<Arrivals>) -> Arc<First> {
        Arc::new(First { number: self.next_number(), machine: machine.clone(), arrivals, up: OnceLock::new() })
    }

    /// Nothing gets from the one node to the other any more, or again.
    pub fn cut(&self, from: NodeId, to: NodeId, is_cut: bool) {
        let mut cut = self.cut.lock();
        if is_cut {
            cut.insert((from, to));
        } else {
            cut.remove(&(from, to));
        }
    }

    /// Messages to and from this node take so much longer from now on.
    pub fn slow(&self, node: NodeId, by: Duration) {
        *self.slow.lock() = Some((node, by));
    }

    /// All messages get through, and none is slow.
    pub fn mend(&self) {
        self.cut.lock().clear();
        *self.slow.lock() = None;
    }

    /// True if messages get through between two nodes, both ways, and the second one is up.
    pub fn is_up(&self, from: NodeId, to: NodeId) -> bool {
        !self.is_cut(from, to) && !self.is_cut(to, from) && self.process(to).is_some()
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        from != to && self.cut.lock().contains(&(from, to))
    }

    /// Messages are lost between two nodes, in one direction at least.
    pub fn is_apart(&self, one: NodeId, other: NodeId) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }

    /// A way on which a request was lost is down until a new connection could be made.
    fn is_down(&self, from: &End, to: NodeId) -> bool {
        let mut down = self.down.lock();
        let Some(since) = down.get(&(from.certificate, to)) else { return false };
        let can_connect = !self.is_apart(from.node, to) && self.process(to).is_some_and(|at| !at.machine.is_paused());
        if can_connect && self.sim.now() > *since + RECONNECTED_AFTER {
            down.remove(&(from.certificate, to));
            return false;
        }
        true
    }

    /// A message is on its way, from a machine with this host.
    pub async fn travel(&self, from: NodeId, to: NodeId, host: &Host) -> Result<(), Lost> {
        let dice = host.random.next_u64();
        let delay = if dice.is_multiple_of(40) { dice % 300_000 } else { dice % 1500 };
        let slow = self.slow.lock().filter(|(node, _)| from != to && (*node == from || *node == to));
        let more = slow.map_or(Duration::ZERO, |(_, by)| by);
        host.clock.sleep(Duration::from_micros(delay) + more).await;
        let until = host.clock.now() + LOST_AFTER;
        while self.is_cut(from, to) {
            if host.clock.now() >= until {
                return Err(Lost);
            }
            host.clock.sleep(LOOK_PERIOD).await;
        }
        Ok(())
    }

    /// The first node that a node talks to: the same one as before, while it is there.
    pub fn first_of(&self, node: NodeId) -> Option<Chosen> {
        let mut chosen = self.chosen.lock();
        if let Some(known) = chosen.get(&node) {
            if self.is_there(known) {
                return Some(known.clone());
            }
            chosen.remove(&node);
        }
        let processes: Vec<Arc<Process>> = self.processes.lock().values().cloned().collect();
        let there = processes.iter().filter_map(|at| Some((at.first.lock().clone()?, at.node)));
        let reached = there.filter(|(_, at)| !self.is_apart(node, *at));
        let mut reached: Vec<(Arc<First>, NodeId)> = reached.collect();
        if reached.is_empty() {
            return None;
        }
        let random = self.sim.machine("network").host().random;
        let (there, at) = reached.swap_remove((random.next_u64() % reached.len() as u64) as usize);
        let found = (there, at, self.next_number());
        chosen.insert(node, found.clone());
        Some(found)
    }

    fn is_there(&self, (first, at, _): &Chosen) -> bool {
        self.process(*at).is_some_and(|process| {
            let there = process.first.lock();
            there.as_ref().is_some_and(|there| there.number == first.number)
        })
    }

    /// The node looks for the first node anew.
    pub fn forget_first(&self, node: NodeId) {
        self.chosen.lock().remove(&node);
    }

    /// Who takes requests for managers and locks.
    fn service(&self, from: &End, to: To) -> Option<Reached> {
        match to {
            To::First => {
                let (first, node, connection) = self.first_of(from.node)?;
                let Up { locks, managers, .. } = first.up.get()?;
                let (machine, managers, locks) = (first.machine.clone(), managers.clone(), Some(locks.clone()));
                Some(Reached { connection, node, machine, managers, locks })
            }
            To::Node(node) => {
                let process = self.process(node)?;
                let (machine, managers) = (process.machine.clone(), process.managers.clone());
                let mut connections = self.connections.lock();
                let known = connections.entry((from.certificate, node)).or_default();
                if known.0 != process.number {
                    *known = (process.number, self.next_number());
                }
                Some(Reached { connection: known.1, node, machine, managers, locks: None })
            }
        }
    }

    /// A connection has broken. The next one has another number.
    fn broke(&self, from: &End, to: To) {
        match to {
            To::First => self.forget_first(from.node),
            To::Node(node) => drop(self.connections.lock().remove(&(from.certificate, node))),
        }
    }
}

/// Where a lane leads.
#[derive(Clone, Copy)]
pub enum To {
    First,
    Node(NodeId),
}

struct Reached {
    connection: u64,
    node: NodeId,
    machine: Machine,
    managers: Arc<ManagerService>,
    locks: Option<Arc<LockTableService>>,
}

/// The end of a way.
#[derive(Clone)]
pub struct End {
    pub net: Arc<Net>,
    pub node: NodeId,
    pub certificate: [u8; 32],
    pub host: Host,
}

impl End {
    pub async fn travel(&self, to: NodeId) -> Result<(), Lost> {
        self.net.travel(self.node, to, &self.host).await
    }

    pub async fn come_back(&self, from: NodeId) -> Result<(), Lost> {
        self.net.travel(from, self.node, &self.host).await
    }

    pub fn peer(&self) -> Peer {
        Peer { fingerprint: Some(self.certificate), address: ([10, 0, 0, 1], 7440).into() }
    }

    pub fn lane(&self, to: To) -> Arc<dyn OrderedLane> {
        Lane::new(self.clone(), to)
    }

    /// A store at a node, or reached through the first one.
    pub fn store(&self, at: To, name: StoreName) -> Arc<FarStore> {
        Arc::new(FarStore { end: self.clone(), at, name })
    }
}

/// A message on its way, and who waits for the answer.
type Sent = (u64, u8, Message, oneshot::Sender<Result<Message, LinkError>>);

struct Lane {
    end: End,
    to: To,
    queue: mpsc::UnboundedSender<Sent>,
}

impl Lane {
    fn new(end: End, to: To) -> Arc<Lane> {
        let (queue, mut sent) = mpsc::unbounded_channel::<Sent>();
        let at = end.clone();
        end.host.tasks.spawn(Box::pin(async move {
            while let Some((connection, kind, message, done)) = sent.recv().await {
                let there = || at.net.service(&at, to).filter(|there| there.connection == connection);
                let Some(node) = there().map(|there| there.node) else {
                    let _ = done.send(Err(LinkError::Lost));
                    continue;
                };
                let travelled = at.travel(node).await.is_ok();
                let Some(Reached { machine, managers, locks, .. }) = there().filter(|_| travelled) else {
                    if !travelled && there().is_some() {
                        at.net.broke(&at, to);
                    }
                    let _ = done.send(Err(LinkError::Lost));
                    continue;
                };
                let (peer, Message { head, tail }) = (at.peer(), message);
                // The service takes requests in the order in which they come.
                let answer = match (kind, locks) {
                    (kinds::LOCKS, Some(locks)) => locks.serve(&peer, head, tail),
                    _ => managers.serve(&peer, head, tail),
                };
                let answer = answer.expect("a request");
                let back = at.clone();
                at.host.tasks.spawn(Box::pin(async move {
                    let is_up = || back.net.service(&back, to).is_some_and(|there| there.connection == connection);
                    let breaks = async {
                        while is_up() {
                            back.host.clock.sleep(LOOK_PERIOD).await;
                        }
                    };
                    let answer = match first(machine.run(answer), breaks).await {
                        Either::Left(Ok(answer)) => answer,
                        _ => return drop(done.send(Err(LinkError::Lost))),
                    };
                    if back.come_back(node).await.is_err() && is_up() {
                        back.net.broke(&back, to);
                    }
                    let _ = done.send(if is_up() { Ok(answer) } else { Err(LinkError::Lost) });
                }));
            }
        }));
        Arc::new(Lane { end, to, queue })
    }
}

impl OrderedLane for Lane {
    fn connection(&self) -> Option<u64> {
        self.end.net.service(&self.end, self.to).map(|there| there.connection)
    }

    fn next_connection(&self, after: u64) -> BoxFuture<u64> {
        let (end, to) = (self.end.clone(), self.to);
        Box::pin(async move {
            loop {
                let there = end.net.service(&end, to).map(|there| there.connection);
                if let Some(there) = there.filter(|there| *there > after) {
                    return there;
                }
                end.host.clock.sleep(LOOK_PERIOD).await;
            }
        })
    }

    fn ask_in(&self, connection: u64, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        if self.connection() != Some(connection) {
            return Box::pin(std::future::ready(Err(LinkError::Down)));
        }
        let (done, answer) = oneshot::channel();
        let _ = self.queue.send((connection, kind, message, done));
        Box::pin(async move { answer.await.unwrap_or(Err(LinkError::Lost)) })
    }
}

/// The stores of a node. It admits those whose certificates are in the maps of the stores that are
/// in use there.
pub struct Shelf {
    node: NodeId,
    host: Host,
    disks: Vec<Arc<dyn Disk>>,
    sites: Mutex<BTreeMap<StoreId, Arc<Site>>>,
}

impl Shelf {
    /// With a disk for each store.
    pub async fn open(node: NodeId, host: &Host, disks: Vec<Arc<dyn Disk>>) -> Arc<Shelf> {
        let mut sites = BTreeMap::new();
        for (at, disk) in disks.iter().enumerate() {
            let site = Site::open(host.clone(), disk.clone()).await.expect("a disk");
            sites.insert(StoreId::new(at as u16), site);
        }
        Arc::new(Shelf { node, host: host.clone(), disks, sites: Mutex::new(sites) })
    }

    /// The maps of all stores that are in use here.
    pub fn all_maps_in_use(&self) -> Vec<(u64, FsConfig)> {
        self.sites.lock().values().filter_map(|site| self.maps_in_use(site)).collect()
    }

    fn site(&self, store: StoreId) -> Arc<Site> {
        self.sites.lock()[&store].clone()
    }

    /// The maps that a store has, if they say that it is in use here.
    fn maps_in_use(&self, site: &Site) -> Option<(u64, FsConfig)> {
        let identity = site.identity()?;
        let maps = site.store(StoreName { fs: identity.fs, store: identity.store })?.newest_maps();
        let config = FsConfig::decode(&maps.bytes).ok()?;
        (config.place(identity.store) == self.node).then_some((maps.epoch, config))
    }
}

impl ServedStores for Shelf {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        ServedStores::store(&*self.site(name.store), name)
    }

    fn admits(&self, certificate: &[u8; 32]) -> bool {
        let newest = self.all_maps_in_use().into_iter().max_by_key(|(epoch, _)| *epoch);
        newest.is_none_or(|(_, config)| config.has_node(certificate))
    }

    fn look_for(self: Arc<Self>, name: StoreName) -> BoxFuture<io::Result<Presence>> {
        Box::pin(async move { self.site(name.store).presence().await })
    }

    fn make(self: Arc<Self>, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        Box::pin(async move {
            let left = self.site(identity.store);
            if self.maps_in_use(&left).is_some() {
                return Err(io::Error::other("it is in use here"));
            }
            let disk = self.disks[usize::from(identity.store.raw())].clone();
            left.close().await.map_err(io::Error::other)?;
            site::clear(&*disk).await?;
            let anew = Site::open(self.host.clone(), disk).await.map_err(io::Error::other)?;
            self.sites.lock().insert(identity.store, anew.clone());
            anew.initialise(identity).await.map_err(io::Error::other)
        })
    }
}

/// All stores, as the first node passes requests on to them.
struct PassedOn(Vec<(StoreId, SwitchStore)>);

impl ServedStores for PassedOn {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        let found = self.0.iter().find(|(store, _)| *store == name.store);
        found.map(|(_, store)| Arc::new(store.clone()) as Arc<dyn Storage>)
    }
}

/// A store at a node, or reached through the first one.
pub struct FarStore {
    end: End,
    at: To,
    name: StoreName,
}

impl FarStore {
    /// The node to ask, what serves there, and the machine that it runs on.
    fn service(&self) -> Option<(NodeId, Arc<dyn ServedStores>, Machine)> {
        match self.at {
            To::Node(node) => {
                let process = self.end.net.process(node)?;
                let shelf: Arc<dyn ServedStores> = process.shelf.get()?.clone();
                Some((node, shelf, process.machine.clone()))
            }
            To::First => {
                let (first, node, _) = self.end.net.first_of(self.end.node)?;
                let stores = first.up.get()?.core.stores().to_vec();
                Some((node, Arc::new(PassedOn(stores)), first.machine.clone()))
            }
        }
    }

    fn send(&self, request: StoreRequest) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        let (from, name, found) = (self.end.clone(), self.name, self.service());
        let (end, clock) = (from.clone(), from.host.clock.clone());
        let node = match (self.at, &found) {
            (To::Node(node), _) => node,
            (To::First, Some((node, ..))) => *node,
            (To::First, None) => return Box::pin(async { Err(StorageError::Unavailable) }),
        };
        let asked = async move {
            end.travel(node).await.ok()?;
            let (_, stores, machine) = found?;
            let service = StoreService::new(stores);
            let Message { head, tail } = request.encode(name);
            let answer = service.serve(&end.peer(), head, tail).expect("a request");
            let Message { head, tail } = machine.run(answer).await.ok()?;
            end.come_back(node).await.ok()?;
            Some(StoreAnswer::decode(&head, tail).expect("an answer"))
        };
        let random = from.host.random.next_u64() % (STORE_TIME_MAX.end - STORE_TIME_MAX.start);
        let time_max = Duration::from_millis(STORE_TIME_MAX.start + random);
        let time_max = from.net.store_time_max.lock().unwrap_or(time_max);
        Box::pin(async move {
            if from.net.is_down(&from, node) {
                return Err(StorageError::Unavailable);
            }
            let answer = host::timeout(&*clock, time_max, asked).await.ok().flatten();
            answer.ok_or_else(|| {
                from.net.down.lock().insert((from.certificate, node), clock.now());
                StorageError::Unavailable
            })
        })
    }
}

impl Ask for FarStore {
    fn ask(&self, request: StoreRequest, _: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        self.send(request)
    }
}

impl RemoteStorage for FarStore {
    fn presence(&self) -> BoxFuture<io::Result<Presence>> {
        let asked = self.send(StoreRequest::Presence);
        Box::pin(async move { what_is_there(asked.await.map_err(io::Error::other)?) })
    }

    fn initialise(&self, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        let asked = self.send(StoreRequest::Initialise(identity));
        Box::pin(async move { is_done(asked.await.map_err(io::Error::other)?) })
    }

    fn expect(&self, _: FsUuid, _: StoreId) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}
