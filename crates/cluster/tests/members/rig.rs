//! A first node and members in simulated time, and the way between them.

use bytes::Bytes;
use cluster::config::MemberEntry;
use cluster::control::{ControlAnswer, ControlError, ControlRequest, NodeReport};
use cluster::lock_server::LockRequest;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use cluster::member::{FirstNode, Member, MemberConfig};
use cluster::members::{Holders, Members, MembersConfig};
use cluster::shared_locks::LockWay;
use cluster::survivors::Arrivals;
use cluster::{FsConfig, StorePlace};
use host::sim::{Machine, Sim, SimDisk};
use host::{Disk, Host};
use manager::api::{
    BlockAt, CheckpointState, GiveBack, IndexRange, Located, Manager, ManagerError, ManagerStatus, Opened,
    SegmentDeltas, SegmentUsage, TokenHolder, TokenRecall, UsageChanges,
};
use manager::token::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::api::{Seal, Storage, StorageError, StoreStatus};
use striped_log::fragment::{Fragment, FragmentHeader};
use types::{Answer, BoxFuture, ClientId, FileId, FragmentId, FsError, LogId, Maps, NodeId, SegmentId, StoreId};
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
};
pub const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };

/// What runs on the first node at the moment.
pub struct First {
    pub machine: Machine,
    pub core: CoreMachine,
    pub members: Arc<Members>,
}

/// The way to the first node, for all members.
#[derive(Clone, Default)]
pub struct Way(pub Arc<WayState>);

/// A node, and what takes its recalls.
pub type Reached = (NodeId, Arc<dyn TokenHolder>);

#[derive(Default)]
pub struct WayState {
    /// `None` while it is down, or starts.
    pub first: Mutex<Option<Arc<First>>>,
    /// What takes requests while it starts.
    pub arrivals: Mutex<Option<Arc<Arrivals>>>,
    /// Nodes whose messages do not get through.
    pub cut: Mutex<BTreeSet<NodeId>>,
    /// What takes the recalls of each session.
    pub holders: Mutex<BTreeMap<u64, Reached>>,
}

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
                if self.up().is_none() && host.random.next_u64().is_multiple_of(2) {
                    // The answer was received, and the task that waits for it gets its turn late.
                    host.clock.sleep(Duration::from_millis(host.random.next_u64() % 5000)).await;
                }
                if let Ok(done) = done {
                    return done;
                }
            }
        }
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
        while self.0.cut.lock().expect("cut").contains(&node) {
            host.clock.sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Recalls travel too.
struct Relay {
    way: Way,
    session: u64,
    host: Host,
}

impl TokenHolder for Relay {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        let (way, session, host) = (self.way.clone(), self.session, self.host.clone());
        self.host.tasks.spawn(Box::pin(async move {
            host.clock.sleep(DELAY).await;
            let known = way.0.holders.lock().expect("holders").get(&session).cloned();
            if let Some((node, holder)) = known {
                way.travel(node, &host).await;
                holder.recall(recalls);
            }
        }));
    }
}

/// Sends recalls from the first node.
struct Recaller {
    way: Way,
    host: Host,
}

impl Holders for Recaller {
    fn holder(&self, session: u64) -> Arc<dyn TokenHolder> {
        Arc::new(Relay { way: self.way.clone(), session, host: self.host.clone() })
    }

    fn quiesce(&self, _session: u64) -> BoxFuture<()> {
        let host = self.host.clone();
        Box::pin(async move { host.clock.sleep(DELAY).await })
    }
}

/// The first node, as one member sees it.
struct Remote {
    way: Way,
    node: NodeId,
    /// The member's own host.
    host: Host,
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
        let remote = |index| RemoteManager { at: (self.way.clone(), self.node, self.host.clone()), session, index };
        (0..count).map(|index| Arc::new(remote(index)) as Arc<dyn Manager>).collect()
    }

    fn stores(&self, _session: u64, config: &FsConfig) -> Vec<(StoreId, Arc<dyn Storage>)> {
        let store = |id| (id, Arc::new(FarStore { way: self.way.clone(), id }) as Arc<dyn Storage>);
        config.stores().map(store).collect()
    }

    fn can_resume(&self, _session: u64) -> bool {
        true
    }

    fn follow(&self, _config: &FsConfig) {}

    fn locks(&self, session: u64) -> Arc<dyn LockWay> {
        Arc::new(RemoteLocks { at: (self.way.clone(), self.node, self.host.clone()), session })
    }

    fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>) {
        self.way.0.holders.lock().expect("holders").insert(session, (self.node, holder));
    }

    fn end(&self, session: u64) {
        self.way.0.holders.lock().expect("holders").remove(&session);
    }
}

/// A store of the first node, as others see it: away while that is down.
struct FarStore {
    way: Way,
    id: StoreId,
}

impl FarStore {
    fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn Storage) -> BoxFuture<Result<T, StorageError>> + Send + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        let (way, id) = (self.way.clone(), self.id);
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

/// A manager of the first node, as one session sees it.
struct RemoteManager {
    at: (Way, NodeId, Host),
    session: u64,
    index: usize,
}

impl RemoteManager {
    fn ask<T: Send + 'static>(
        &self,
        ask: impl Fn(&dyn Manager, ClientId) -> Answer<T, ManagerError> + Send + Sync + 'static,
    ) -> Answer<T, ManagerError> {
        let ((way, node, host), session, index) = (self.at.clone(), self.session, self.index);
        Answer::later(async move {
            let ask = Arc::new(ask);
            let work = move |first: Arc<First>| -> BoxFuture<_> {
                let ask = ask.clone();
                Box::pin(async move {
                    let client = first.members.client(session).ok_or(ManagerError::Expelled)?;
                    ask(&*first.core.managers[index], client).await
                })
            };
            way.have(node, &host, work).await
        })
    }

    fn tell(&self, tell: impl Fn(&dyn Manager, ClientId) + Send + Sync + 'static) {
        let told = self.ask(move |manager, client| {
            tell(manager, client);
            Answer::ok(())
        });
        self.at.2.tasks.spawn(Box::pin(async move {
            let _ = told.await;
        }));
    }
}

impl Manager for RemoteManager {
    fn open(&self, _: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.ask(move |manager, client| manager.open(client, file, mode))
    }
    fn open_many(
        &self,
        _: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let files = files.to_vec();
        self.ask(move |manager, client| manager.open_many(client, &files, mode))
    }
    fn locate(&self, _: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.ask(move |manager, client| manager.locate(client, file, first))
    }
    fn release(&self, _: ClientId, file: FileId, number: u64) {
        self.tell(move |manager, client| manager.release(client, file, number));
    }
    fn give_back(&self, _: ClientId, back: GiveBack) {
        self.tell(move |manager, client| manager.give_back(client, back));
    }
    fn closed(&self, _: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.ask(move |manager, client| manager.closed(client, file))
    }
    fn allocate(&self, _: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        self.ask(move |manager, client| manager.allocate(client, volume))
    }
    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        self.ask(move |manager, _| manager.apply(segments.clone()))
    }
    fn live(&self, candidates: Vec<BlockAt>) -> Answer<Vec<BlockAt>, ManagerError> {
        self.ask(move |manager, _| manager.live(candidates.clone()))
    }
    fn usage(&self) -> Answer<Vec<SegmentUsage>, ManagerError> {
        self.ask(|manager, _| manager.usage())
    }
    fn usage_changes(&self, since: u64) -> Answer<UsageChanges, ManagerError> {
        self.ask(move |manager, _| manager.usage_changes(since))
    }
    fn checkpoint(&self) -> Answer<CheckpointState, ManagerError> {
        self.ask(|manager, _| manager.checkpoint())
    }
    fn evacuate(&self, segments: Vec<SegmentId>) -> Answer<(), ManagerError> {
        self.ask(move |manager, _| manager.evacuate(segments.clone()))
    }
    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        self.ask(|manager, _| manager.orphans())
    }
    fn status(&self) -> ManagerStatus {
        ManagerStatus::default()
    }
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
    pub stores: Vec<SimDisk>,
    pub consensus: SimDisk,
    pub way: Way,
}

impl Rig {
    pub fn new(seed: u64, store_bytes: u64) -> Rig {
        let sim = Sim::new(seed);
        let disk = || SimDisk::new(&sim, 4 * store_bytes);
        let rig =
            Rig { stores: (0..3).map(|_| disk()).collect(), consensus: disk(), sim: sim.clone(), way: Way::default() };
        let (host, places, consensus) = rig.mounts(&sim.machine("first"));
        let store_capacity_bytes = Some(store_bytes);
        let how = Create { parity: 1, block_size: 65536, manager_count: 2, store_capacity_bytes };
        sim.block_on(create(&host, &places, &consensus, how)).expect("create");
        rig.start_first();
        rig
    }

    pub fn mounts(&self, machine: &Machine) -> (Host, Vec<StorePlace>, Arc<dyn Disk>) {
        let places = self.stores.iter().map(|disk| disk.mount(machine).into()).collect();
        (machine.host(), places, self.consensus.mount(machine))
    }

    /// Starts the first node, after a crash if there was one before.
    pub fn start_first(&self) {
        self.sim.block_on(self.starts_first());
    }

    pub async fn starts_first(&self) {
        self.way.0.first.lock().expect("first").take();
        self.sim.machine("first").crash();
        let machine = self.sim.machine("first");
        let (host, places, consensus) = self.mounts(&machine);
        let arrivals = Arrivals::new(host.clone(), LEASE);
        *self.way.0.arrivals.lock().expect("arrivals") = Some(arrivals.clone());
        let core = CoreMachine::start_after(host.clone(), &places, &consensus, RUN, &arrivals).await.expect("start");
        let config =
            MembersConfig { lease: LEASE, name: "first".into(), address: "10.0.0.1:7440".into(), is_mounted: true };
        let recaller = Arc::new(Recaller { way: self.way.clone(), host });
        let members = core.open_to_members(config, recaller).await;
        *self.way.0.first.lock().expect("first") = Some(Arc::new(First { machine, core, members }));
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
        let remote = Remote { way: self.way.clone(), node, host: host.clone() };
        let (address, takes_stores) = (String::new(), false);
        let config = MemberConfig { node, cache_bytes: 16 << 20, is_mounted: true, address, takes_stores };
        let member = Member::start(host, config, Arc::new(remote));
        let fs = member.file_system();
        Node { machine, member, fs }
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
        self.sim.block_on(async {
            let entry = fs.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await?;
            let handle = fs.open(&Cred::ROOT, entry.attr.id, OpenFlags { read: true, ..Default::default() }).await?;
            let bytes = fs.read(entry.attr.id, handle, 0, 1 << 20).await;
            fs.release(entry.attr.id, handle, None).await?;
            Ok(bytes?.to_vec())
        })
    }

    pub fn report(&self, node: NodeId) -> NodeReport {
        let nodes = self.first().members.nodes().expect("nodes");
        nodes.nodes.into_iter().find(|report| report.id == node).expect("a node")
    }

    pub fn run_for(&self, seconds: u64) {
        self.sim.run_for(Duration::from_secs(seconds));
    }
}
