//! A first node and members in simulated time, and the way between them.

use bytes::Bytes;
use cluster::config::{FIRST_NODE, MemberEntry};
use cluster::control::{ControlAnswer, ControlError, ControlRequest, NodeReport};
use cluster::host_service::ManagerHost;
use cluster::lock_server::LockRequest;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use cluster::manager_service::ManagerService;
use cluster::manager_ways::ManagerWays;
use cluster::member::{FirstNode, Member, MemberConfig};
use cluster::members::{Members, MembersConfig};
use cluster::seat::HostWay;
use cluster::seats::HostWays;
use cluster::shared_locks::LockWay;
use cluster::survivors::Arrivals;
use cluster::{Claim, FsConfig, KnownNode, StartError, StorePlace, Succession};
use host::sim::{Machine, Sim, SimDisk};
use host::{Disk, Host, timeout};
use link::{LinkError, Message, NodeService, OrderedLane, Peer};
use manager::admin_wire::{HostAnswer, HostRequest};
use manager::api::{Manager, ManagerError, TokenHolder};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::api::{Seal, Storage, StorageError, StoreStatus};
use striped_log::fragment::{Fragment, FragmentHeader};
use tokio::sync::{mpsc, oneshot};
use types::{BoxFuture, FileId, FragmentId, FsError, LogId, ManagerId, Maps, NodeId, SegmentId, StoreId};
use vfs::fs::{Cred, FileLock, FileSystem, Handle, OpenFlags};

pub const LEASE: Duration = Duration::from_secs(8);
/// How long a message travels.
pub const DELAY: Duration = Duration::from_millis(1);
pub const RUN: Run = Run {
    cache_bytes: 16 << 20,
    root_mode: 0o755,
    root_uid: 0,
    root_gid: 0,
    index_range_len: INDEX_RANGE_LEN,
    manager_lengths: Lengths::LARGEST,
    accepts_loss: false,
    claim: cluster::Claim::NONE,
};
pub const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };

/// The seeds of a model: 20 from this one on, unless the environment says otherwise.
pub fn seeds(from: u64) -> Range<u64> {
    let from = std::env::var("STARLING_MEMBERS_FROM").map_or(from, |from| from.parse().expect("a seed"));
    let count = std::env::var("STARLING_MEMBERS_COUNT").map_or(20, |count| count.parse().expect("a count"));
    from..from + count
}

/// What runs on the first node at the moment.
pub struct First {
    pub machine: Machine,
    pub core: CoreMachine,
    pub members: Arc<Members>,
    service: Arc<ManagerService>,
    number: u64,
}

/// Managers that a member serves, since its start.
struct Serving {
    machine: Machine,
    managers: Arc<ManagerHost>,
    number: u64,
}

/// The ways between nodes.
#[derive(Clone, Default)]
pub struct Way(pub Arc<WayState>);

#[derive(Default)]
pub struct WayState {
    /// The certificate of the first node, once another machine has become it.
    certificate: Mutex<Option<[u8; 32]>>,
    /// `None` while it is down, or starts.
    pub first: Mutex<Option<Arc<First>>>,
    /// What takes requests while it starts.
    pub arrivals: Mutex<Option<Arc<Arrivals>>>,
    /// Nodes whose messages do not get through.
    pub cut: Mutex<BTreeSet<NodeId>>,
    /// Nodes between which no message gets through.
    pub apart: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// The members.
    serving: Mutex<BTreeMap<NodeId, Arc<Serving>>>,
    /// What the first node has asked nodes about managers.
    asked: Mutex<Vec<(NodeId, Vec<u8>)>>,
    /// Stores that do not answer a member.
    silent_stores: Mutex<BTreeSet<(NodeId, StoreId)>>,
    /// Requests to copy blocks are lost.
    refuses_copies: AtomicBool,
    /// Numbers the starts of nodes.
    starts: AtomicU64,
}

/// Who takes requests to the managers of a node: the number of the node's start, its machine, and
/// the service.
type Reached = (u64, Machine, Arc<ManagerService>);

impl Way {
    pub fn up(&self) -> Option<Arc<First>> {
        self.0.first.lock().expect("first").clone()
    }

    pub fn first(&self) -> Arc<First> {
        self.up().expect("a first node")
    }

    /// Has the first node work for a member. If it dies meanwhile, the next one does it again.
    pub async fn have<T: Send + 'static>(
        &self,
        node: NodeId,
        host: &Host,
        work: impl Fn(Arc<First>) -> BoxFuture<T> + Send + Sync + 'static,
    ) -> T {
        loop {
            self.travel(node, host).await;
            if let Some(first) = self.up() {
                let done = first.machine.run(work(first.clone())).await;
                self.travel(node, host).await;
                if self.up().is_none() {
                    be_late(host).await;
                }
                if let Ok(done) = done {
                    return done;
                }
            }
        }
    }

    /// The managers' service of a node, and its machine; `None` while the node is down.
    fn service(&self, node: NodeId) -> Option<Reached> {
        if node == FIRST_NODE {
            return self.up().map(|first| (first.number, first.machine.clone(), first.service.clone()));
        }
        let serving = self.0.serving.lock().expect("serving").get(&node).cloned()?;
        Some((serving.number, serving.machine.clone(), serving.managers.service()))
    }

    /// The fingerprint of the first node's certificate.
    fn first_certificate(&self) -> [u8; 32] {
        self.0.certificate.lock().expect("certificate").unwrap_or(fingerprint(FIRST_NODE))
    }

    fn next_number(&self) -> u64 {
        1 + self.0.starts.fetch_add(1, SeqCst)
    }

    fn set_apart(&self, one: NodeId, other: NodeId, are_apart: bool) {
        let mut apart = self.0.apart.lock().expect("apart");
        for pair in [(one, other), (other, one)] {
            if are_apart {
                apart.insert(pair)
            } else {
                apart.remove(&pair)
            };
        }
    }

    /// Has a node get again all requests to take managers that it ever got.
    pub async fn repeat_takes(&self, node: NodeId) -> Vec<HostAnswer> {
        let serving = self.0.serving.lock().expect("serving").get(&node).cloned().expect("a node");
        let asked = self.0.asked.lock().expect("asked").clone();
        let mut answers = Vec::new();
        for (_, request) in asked.into_iter().filter(|(to, _)| *to == node) {
            let (session, request) = HostRequest::decode(&request).expect("a request");
            if matches!(request, HostRequest::Take(_)) {
                let managers = serving.managers.clone();
                let first = self.first_certificate();
                let work = async move { managers.ask(Some(first), session, request).await };
                answers.push(serving.machine.run(work).await.expect("up"));
            }
        }
        answers
    }

    /// Number of requests to copy blocks that a node was sent.
    pub fn asked_to_copy(&self, node: NodeId) -> usize {
        let asked = self.0.asked.lock().expect("asked");
        let asked = asked.iter().filter(|(to, _)| *to == node);
        asked.filter(|(_, request)| matches!(HostRequest::decode(request), Ok((_, HostRequest::Relocate(_))))).count()
    }

    /// No node copies blocks from now on, or all do.
    pub fn refuse_copies(&self, is_refused: bool) {
        self.0.refuses_copies.store(is_refused, SeqCst);
    }

    /// Has no message get through between two nodes.
    pub fn part(&self, one: NodeId, other: NodeId) {
        self.set_apart(one, other, true);
    }

    /// Has messages get through again.
    pub fn join(&self, one: NodeId, other: NodeId) {
        self.set_apart(one, other, false);
    }

    /// Waits until messages get through between two nodes, and one has travelled.
    async fn travel_between(&self, from: NodeId, to: NodeId, host: &Host) {
        self.travel(from, host).await;
        while self.0.apart.lock().expect("apart").contains(&(from, to)) || self.is_cut(to) {
            host.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// From now on these stores do not answer a member, and all others do.
    pub fn silence(&self, node: NodeId, stores: Range<u16>) {
        let mut silent = self.0.silent_stores.lock().expect("stores");
        silent.retain(|(to, _)| *to != node);
        silent.extend(stores.map(|store| (node, StoreId::new(store))));
    }

    fn is_cut(&self, node: NodeId) -> bool {
        self.0.cut.lock().expect("cut").contains(&node)
    }

    pub fn cut(&self, node: NodeId, is_cut: bool) {
        let mut cut = self.0.cut.lock().expect("cut");
        if is_cut {
            cut.insert(node)
        } else {
            cut.remove(&node)
        };
    }

    /// Waits until messages of a node get through, and one has travelled.
    pub async fn travel(&self, node: NodeId, host: &Host) {
        host.clock.sleep(DELAY).await;
        while self.is_cut(node) {
            host.clock.sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Sometimes an answer was received, and the task that waits for it gets its turn late.
async fn be_late(host: &Host) {
    if host.random.next_u64().is_multiple_of(2) {
        host.clock.sleep(Duration::from_millis(host.random.next_u64() % 5000)).await;
    }
}

/// A message on its way, and who waits for the answer.
type Sent = (u64, Message, oneshot::Sender<Result<Message, LinkError>>);

/// A connection to the managers' service of a node. It breaks when that node starts again.
struct SimLane {
    way: Way,
    host: Host,
    to: NodeId,
    queue: mpsc::UnboundedSender<Sent>,
}

impl SimLane {
    fn new(way: &Way, host: &Host, from: NodeId, to: NodeId) -> Arc<SimLane> {
        let (queue, mut sent) = mpsc::unbounded_channel::<Sent>();
        let (way, host) = (way.clone(), host.clone());
        let (through, at) = (way.clone(), host.clone());
        host.tasks.spawn(Box::pin(async move {
            while let Some((connection, message, done)) = sent.recv().await {
                through.travel_between(from, to, &at).await;
                let Some((_, machine, service)) = through.service(to).filter(|(number, ..)| *number == connection)
                else {
                    let _ = done.send(Err(LinkError::Lost));
                    continue;
                };
                let certificate = if from == FIRST_NODE { through.first_certificate() } else { fingerprint(from) };
                let peer = Peer { fingerprint: Some(certificate), address: ([10, 0, 0, 1], 7440).into() };
                // The service takes requests in the order in which they come.
                let answer = service.serve(&peer, message.head, message.tail).expect("a request");
                let (through, host) = (through.clone(), at.clone());
                at.tasks.spawn(Box::pin(async move {
                    let answer = machine.run(answer).await.map_err(|_| LinkError::Lost);
                    through.travel_between(to, from, &host).await;
                    let is_up = through.service(to).is_some_and(|(number, ..)| number == connection);
                    if !is_up {
                        be_late(&host).await;
                    }
                    let _ = done.send(answer);
                }));
            }
        }));
        Arc::new(SimLane { way, host, to, queue })
    }
}

impl OrderedLane for SimLane {
    fn connection(&self) -> Option<u64> {
        self.way.service(self.to).map(|(number, ..)| number)
    }

    fn next_connection(&self, after: u64) -> BoxFuture<u64> {
        let (way, host, to) = (self.way.clone(), self.host.clone(), self.to);
        Box::pin(async move {
            loop {
                let up = way.service(to).map(|(number, ..)| number);
                if let Some(up) = up.filter(|up| *up > after) {
                    return up;
                }
                host.clock.sleep(10 * DELAY).await;
            }
        })
    }

    fn ask_in(&self, connection: u64, _: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        if self.connection() != Some(connection) {
            return Box::pin(std::future::ready(Err(LinkError::Down)));
        }
        let (done, answer) = oneshot::channel();
        let _ = self.queue.send((connection, message, done));
        Box::pin(async move { answer.await.unwrap_or(Err(LinkError::Lost)) })
    }
}

/// The first node's ways to nodes that serve managers.
struct Ways(Way, Host);

impl HostWays for Ways {
    fn reach(&self, at: &KnownNode) -> Arc<dyn HostWay> {
        Arc::new(HostLink { way: self.0.clone(), host: self.1.clone(), node: at.node })
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.0.first_certificate()
    }
}

struct HostLink {
    way: Way,
    host: Host,
    node: NodeId,
}

impl HostWay for HostLink {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, ManagerError>> {
        let (way, host, node) = (self.way.clone(), self.host.clone(), self.node);
        way.0.asked.lock().expect("asked").push((node, request.clone()));
        Box::pin(async move {
            let (session, request) = HostRequest::decode(&request).expect("a request");
            way.travel_between(FIRST_NODE, node, &host).await;
            if matches!(request, HostRequest::Relocate(_)) && way.0.refuses_copies.load(SeqCst) {
                return Err(ManagerError::Away);
            }
            let serving = way.0.serving.lock().expect("serving").get(&node).cloned().ok_or(ManagerError::Away)?;
            let managers = serving.managers.clone();
            let first = way.first_certificate();
            let work = async move { managers.ask(Some(first), session, request).await.encode() };
            let answer = serving.machine.run(work).await.map_err(|_| ManagerError::Away)?;
            way.travel_between(node, FIRST_NODE, &host).await;
            Ok(answer)
        })
    }

    /// A node that is cut off goes silent like one that stands still. No connection breaks.
    fn is_up(&self) -> bool {
        let is_apart = self.way.0.apart.lock().expect("apart").contains(&(FIRST_NODE, self.node));
        !is_apart && self.way.service(self.node).is_some()
    }

    fn lane(&self) -> Arc<dyn OrderedLane> {
        SimLane::new(&self.way, &self.host, FIRST_NODE, self.node)
    }
}

/// The first node, as one member sees it.
struct Remote {
    way: Way,
    node: NodeId,
    /// The member's own host.
    host: Host,
    ways: ManagerWays,
    managers: Arc<ManagerHost>,
}

impl Remote {
    fn to_first(&self) -> Arc<dyn OrderedLane> {
        SimLane::new(&self.way, &self.host, self.node, FIRST_NODE)
    }
}

impl FirstNode for Remote {
    fn control(&self, request: ControlRequest) -> BoxFuture<Result<ControlAnswer, ControlError>> {
        let (way, node, host) = (self.way.clone(), self.node, self.host.clone());
        Box::pin(async move {
            way.travel(node, &host).await;
            // The messages are bytes on their way.
            let request = ControlRequest::decode(&request.encode()).expect("a request");
            let is_down = || Err(ControlError::Unavailable("the first node is down".into()));
            let (first, arrivals) = (way.up(), way.0.arrivals.lock().expect("arrivals").clone());
            let answer = match (first, arrivals) {
                (Some(first), _) => {
                    let members = first.members.clone();
                    let work = async move { members.control(&fingerprint(node), request).await };
                    first.machine.run(work).await.unwrap_or_else(|_| is_down())
                }
                (None, Some(arrivals)) => arrivals.control(&fingerprint(node), request),
                (None, None) => is_down(),
            };
            way.travel(node, &host).await;
            ControlAnswer::decode(&ControlAnswer::encode(&answer))
        })
    }

    fn managers(&self, session: u64, count: usize) -> Vec<Arc<dyn Manager>> {
        self.ways.managers(session, count, &self.to_first())
    }

    fn seat(&self, session: u64, managers: &[(ManagerId, Option<KnownNode>)]) {
        self.ways.seat(session, managers, |at| {
            Some(match at {
                None => self.to_first(),
                Some(at) if at.node == self.node => self.managers.lane(fingerprint(self.node)),
                Some(at) => SimLane::new(&self.way, &self.host, self.node, at.node),
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
        let nodes = self.ways.nodes(session).into_iter().map(|at| at.node).filter(|node| *node != self.node);
        let apart = self.way.0.apart.lock().expect("apart");
        let is_reached = |node: &NodeId| self.way.service(*node).is_some() && !apart.contains(&(self.node, *node));
        nodes.filter(|node| !is_reached(node)).collect()
    }

    fn stores(&self, _session: u64, config: &FsConfig) -> Vec<(StoreId, Arc<dyn Storage>)> {
        let store = |id| (id, Arc::new(FarStore { way: self.way.clone(), node: self.node, id }) as Arc<dyn Storage>);
        config.stores().map(store).collect()
    }

    fn can_resume(&self, session: u64) -> bool {
        self.ways.can_go_on(session)
    }

    fn follow(&self, _config: &FsConfig) {}

    fn locks(&self, session: u64) -> Arc<dyn LockWay> {
        Arc::new(RemoteLocks { at: (self.way.clone(), self.node, self.host.clone()), session })
    }

    fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>) {
        self.ways.recalls(session, holder, self.to_first());
    }

    fn end(&self, session: u64) {
        self.ways.end(session);
    }
}

/// A store of the first node, as a member sees it: away while that is down.
struct FarStore {
    way: Way,
    node: NodeId,
    id: StoreId,
}

impl FarStore {
    fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn Storage) -> BoxFuture<Result<T, StorageError>> + Send + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        let (way, id) = (self.way.clone(), self.id);
        if way.0.silent_stores.lock().expect("stores").contains(&(self.node, id)) {
            return Box::pin(std::future::pending());
        }
        Box::pin(async move {
            let first = way.up().ok_or(StorageError::Unavailable)?;
            let store = first.core.stores().iter().find(|(known, _)| *known == id).expect("a store").1.now();
            first.machine.run(async move { request(&*store).await }).await.unwrap_or(Err(StorageError::Unavailable))
        })
    }
}

impl Storage for FarStore {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.ask(|store| store.put(fragment))
    }
    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.ask(move |store| store.read(id, attempt, range))
    }
    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.ask(|store| store.put_behind(fragment))
    }
    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.ask(move |store| store.read_behind(id, attempt, range))
    }
    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        self.ask(|store| store.rest())
    }
    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.ask(move |store| store.describe(segment))
    }
    fn list(&self, log: LogId, from: u64, count: usize) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.ask(move |store| store.list(log, from, count))
    }
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.ask(|store| store.segments())
    }
    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.ask(|store| store.delete(segments))
    }
    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.ask(|store| store.seal(seal))
    }
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.ask(|store| store.seals())
    }
    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.ask(|store| store.put_maps(maps))
    }
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.ask(|store| store.maps())
    }
    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.ask(move |store| store.verify(id))
    }
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        self.ask(|store| store.status())
    }
}

/// The table of file locks, as one session sees it.
struct RemoteLocks {
    at: (Way, NodeId, Host),
    session: u64,
}

impl LockWay for RemoteLocks {
    fn ask(&self, request: LockRequest) -> BoxFuture<Result<Option<FileLock>, FsError>> {
        let ((way, node, host), session) = (self.at.clone(), self.session);
        Box::pin(async move {
            let work = move |first: Arc<First>| -> BoxFuture<_> {
                Box::pin(async move {
                    let client = first.members.client(session).ok_or(FsError::Io)?;
                    first.members.locks().ask(client, request).await
                })
            };
            way.have(node, &host, work).await
        })
    }
}

pub async fn read(fs: &dyn FileSystem, name: &str) -> Result<Vec<u8>, FsError> {
    let entry = fs.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await?;
    let handle = fs.open(&Cred::ROOT, entry.attr.id, OpenFlags { read: true, ..Default::default() }).await?;
    let bytes = fs.read(entry.attr.id, handle, 0, 1 << 20).await;
    fs.release(entry.attr.id, handle, None).await?;
    Ok(bytes?.to_vec())
}

pub fn fingerprint(node: NodeId) -> [u8; 32] {
    [node.raw() as u8; 32]
}

/// A member's machine.
pub struct Node {
    pub machine: Machine,
    pub member: Arc<Member>,
    pub fs: Arc<dyn FileSystem>,
}

/// A file system with members.
pub struct Rig {
    pub sim: Sim,
    /// Members serve managers, too.
    pub spreads: bool,
    pub stores: Vec<SimDisk>,
    pub consensus: SimDisk,
    pub way: Way,
    /// The machine of the first node, and by what right it is that.
    pub first_machine: Mutex<(String, Claim)>,
}

impl Rig {
    pub fn new(seed: u64, store_bytes: u64) -> Rig {
        Rig::of(seed, store_bytes, false)
    }

    /// Members serve managers, too.
    pub fn spread(seed: u64, store_bytes: u64) -> Rig {
        Rig::of(seed, store_bytes, true)
    }

    fn of(seed: u64, store_bytes: u64, spreads: bool) -> Rig {
        let sim = Sim::new(seed);
        let disk = || SimDisk::new(&sim, 4 * store_bytes);
        let (stores, consensus) = ((0..3).map(|_| disk()).collect(), disk());
        let first_machine =
            Mutex::new(("first".into(), Claim { certificate: Some(fingerprint(FIRST_NODE)), ..Claim::NONE }));
        let rig = Rig { sim: sim.clone(), spreads, stores, consensus, way: Way::default(), first_machine };
        let (host, places, consensus) = rig.mounts(&sim.machine("first"));
        let store_capacity_bytes = Some(store_bytes);
        let how =
            Create { parity: 1, block_size: 65536, manager_count: if spreads { 4 } else { 2 }, store_capacity_bytes };
        sim.block_on(create(&host, &places, &consensus, how)).expect("create");
        rig.start_first();
        let record = |config: &mut FsConfig| config.first_node = Some(fingerprint(FIRST_NODE));
        sim.block_on(rig.first().core.change_maps(record)).expect("change");
        rig
    }

    pub fn mounts(&self, machine: &Machine) -> (Host, Vec<StorePlace>, Arc<dyn Disk>) {
        let places = self.stores.iter().map(|disk| disk.mount(machine).into()).collect();
        (machine.host(), places, self.consensus.mount(machine))
    }

    /// Starts the first node, after a crash if there was one before.
    pub fn start_first(&self) {
        self.sim.block_on(self.starts_first()).expect("start");
    }

    pub async fn starts_first(&self) -> Result<(), StartError> {
        self.way.0.first.lock().expect("first").take();
        let (name, claim) = self.first_machine.lock().expect("machine").clone();
        self.sim.machine(&name).crash();
        let machine = self.sim.machine(&name);
        let (host, places, consensus) = self.mounts(&machine);
        let arrivals = Arrivals::new(host.clone(), LEASE);
        *self.way.0.arrivals.lock().expect("arrivals") = Some(arrivals.clone());
        let run = Run { claim, ..RUN };
        let core = CoreMachine::start_after(host.clone(), &places, &consensus, run, &arrivals).await?;
        let config = MembersConfig {
            lease: LEASE,
            name: "first".into(),
            address: "10.0.0.1:7440".into(),
            is_mounted: true,
            member: None,
            leading: None,
        };
        let service = ManagerService::new(host.clone());
        let ways: Arc<dyn HostWays> = Arc::new(Ways(self.way.clone(), host));
        let members = core.open_to_members(config, service.clone(), Some(ways).filter(|_| self.spreads)).await;
        *self.way.0.first.lock().expect("first") =
            Some(Arc::new(First { machine, core, members, service, number: self.way.next_number() }));
        Ok(())
    }

    /// The first machine is lost, with one store and the consensus folder. From now on the machine
    /// of this member, which has ended, is to start as the first node.
    pub fn succeed(&self, node: NodeId, lost: usize) {
        self.way.0.first.lock().expect("first").take();
        let mut first = self.first_machine.lock().expect("machine");
        self.sim.machine(&first.0).crash();
        self.stores[lost].wipe();
        self.consensus.wipe();
        let certificate = [128 + node.raw() as u8; 32];
        let succession = Succession::Recovered { node, former: first.1.certificate };
        *first =
            (format!("first {}", node.raw()), Claim { certificate: Some(certificate), succession: Some(succession) });
        *self.way.0.certificate.lock().expect("certificate") = Some(certificate);
    }

    pub fn first(&self) -> Arc<First> {
        self.way.first()
    }

    /// Has a node join.
    pub fn join(&self, name: &str) -> NodeId {
        let first = self.first();
        let add = |config: &mut FsConfig| {
            let node = NodeId::new(config.next_node);
            let entry = MemberEntry { name: name.into(), fingerprint: fingerprint(node), address: String::new() };
            config.add_member(entry).expect("add");
        };
        self.sim.block_on(first.core.change_maps(add)).expect("change");
        let config = first.core.maps.config().expect("config");
        NodeId::new(config.next_node - 1)
    }

    /// Starts a member, after a crash if there was one before.
    pub fn start(&self, node: NodeId) -> Node {
        let name = format!("node {}", node.raw());
        self.sim.machine(&name).crash();
        let machine = self.sim.machine(&name);
        let host = machine.host();
        let (ways, managers) = (ManagerWays::new(host.clone()), ManagerHost::new(host.clone()));
        let serving =
            Arc::new(Serving { machine: machine.clone(), managers: managers.clone(), number: self.way.next_number() });
        self.way.0.serving.lock().expect("serving").insert(node, serving);
        let remote = Remote { way: self.way.clone(), node, host: host.clone(), ways, managers: managers.clone() };
        let address = if self.spreads { format!("10.0.0.{}:7440", 1 + node.raw()) } else { String::new() };
        let config = MemberConfig {
            node,
            cache_bytes: 16 << 20,
            is_mounted: true,
            address,
            takes_stores: false,
            takes_managers: true,
            takes_votes: false,
        };
        let member = Member::start(host, config, Arc::new(remote), managers);
        let fs = member.file_system();
        Node { machine, member, fs }
    }

    /// Crashes a member.
    pub fn crash(&self, node: NodeId, started: &Node) {
        self.way.0.serving.lock().expect("serving").remove(&node);
        started.machine.crash();
    }

    /// A member with a session.
    pub fn joined(&self, name: &str) -> (NodeId, Node) {
        let node = self.join(name);
        let started = self.start(node);
        self.sim.block_on(started.member.ready()).expect("ready");
        (node, started)
    }

    /// The first node's own file system.
    pub fn own(&self) -> client::Client {
        self.first().core.client.clone()
    }

    pub fn write(&self, fs: &dyn FileSystem, name: &str, contents: &[u8]) -> Result<(FileId, Handle), FsError> {
        self.sim.block_on(async {
            let (entry, handle) = fs.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).await?;
            fs.write(&Cred::ROOT, entry.attr.id, handle, 0, contents).await?;
            Ok((entry.attr.id, handle))
        })
    }

    pub fn sync(&self, fs: &dyn FileSystem) -> Result<(), FsError> {
        self.sim.block_on(async { fs.sync().await })
    }

    pub fn read(&self, fs: &dyn FileSystem, name: &str) -> Result<Vec<u8>, FsError> {
        self.sim.block_on(read(fs, name))
    }

    /// `None` if it takes too long.
    pub fn read_in_time(&self, fs: &dyn FileSystem, name: &str) -> Option<Result<Vec<u8>, FsError>> {
        let clock = self.sim.machine("dice").host().clock;
        self.sim.block_on(timeout(&*clock, Duration::from_secs(60), read(fs, name))).ok()
    }

    pub fn report(&self, node: NodeId) -> NodeReport {
        let nodes = self.first().members.nodes().expect("nodes");
        nodes.nodes.into_iter().find(|report| report.id == node).expect("a node")
    }

    pub fn run_for(&self, seconds: u64) {
        self.sim.run_for(Duration::from_secs(seconds));
    }
}
