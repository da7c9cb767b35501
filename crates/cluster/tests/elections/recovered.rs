//! A node that its user makes into the first one when too few voters are left, as `starling node
//! recover` does. It is no member any more, has the only voter, and appoints others. When one of
//! them is elected, it becomes a member with another number.

use crate::net::{End, First, Process, To, Up, certificate_as_member, name_as_first};
use crate::rig::{Disks, LEASE, PAUSE, ROOM, Rig, Seen, TIMING, VoterDisks, Ways, Wires, run};
use cluster::config::{FIRST_NODE, MemberEntry};
use cluster::leading::Leading;
use cluster::machine::CoreMachine;
use cluster::manager_service::ManagerService;
use cluster::maps::{Keeper, VoterHome, Voting};
use cluster::members::MembersConfig;
use cluster::remote_locks::LockTableService;
use cluster::spread::{RecordError, StorePlaces, decide_places};
use cluster::survivors::Arrivals;
use cluster::{AtNode, Claim, FsConfig, KnownNode, StorePlace, Succession};
use consensus::{Consensus, VoterSettings};
use host::sim::{Machine, SimDisk};
use host::{Disk, Either, SplitMix64, first, join_all};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use storage::api::{RemoteStorage, Storage, StoreIdentity};
use storage::server::StoreServer;
use storage::site;
use storage::wire::StoreName;
use types::{BoxFuture, FsUuid, NodeId, StoreId};

/// Time between two looks of a first node that waits for an election.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// The certificate of a node that its user has made into the first one.
fn certificate(node: NodeId) -> [u8; 32] {
    [200 + node.raw() as u8; 32]
}

/// What the data folder of such a node says.
pub struct AsFirst {
    claim: Claim,
    /// It has learned that it is this member.
    succeeded: Mutex<Option<NodeId>>,
    /// Stores that are at nodes. It has the others itself.
    at_nodes: Mutex<BTreeMap<StoreId, KnownNode>>,
}

impl Rig {
    /// The first node that a user has made, if there is one.
    pub fn recovered(&self) -> Option<NodeId> {
        self.disks.lock().iter().find(|(_, disks)| disks.first.is_some()).map(|(node, _)| *node)
    }

    /// The stores that a first node has itself, as its data folder says.
    fn stores_at(&self, first: NodeId) -> Vec<StoreId> {
        let disks = self.disks.lock();
        let Disks { stores, first, .. } = &disks[&first];
        let at_nodes = first.as_ref().map(|first| first.at_nodes.lock().clone()).unwrap_or_default();
        let all = (0..stores.len()).map(|store| StoreId::new(store as u16));
        all.filter(|store| !at_nodes.contains_key(store)).collect()
    }

    /// Takes all voters away for good but that of one node, kills these nodes, and makes this node
    /// into the first one. If that had happened before, the former first node is lost, with its
    /// stores. Returns the nodes that are to be started, the new first one before the others;
    /// `None` if no node can be made into the first one now.
    pub fn recover(&self, random: &SplitMix64) -> Option<Vec<NodeId>> {
        let former = self.recovered();
        // Its stores are lost with it, so the others must have everything.
        if former.is_some() && !self.is_whole() {
            return None;
        }
        let shelves = self.nodes().into_iter().filter_map(|node| self.net.process(node)?.shelf.get().cloned());
        let seen: Vec<(u64, FsConfig)> = shelves.flat_map(|shelf| shelf.all_maps_in_use()).collect();
        let config = seen.iter().max_by_key(|(epoch, _)| *epoch)?.1.clone();
        if seen.len() < config.least_with_data() {
            return None;
        }
        // The program of the former one finds that out, and makes it a member.
        if former.is_some_and(|former| config.first_node != Some(certificate(former))) {
            return None;
        }
        let lost: Vec<StoreId> = config.stores().filter(|store| config.place(*store) == FIRST_NODE).collect();
        // A store may have moved there just now: the maps say so later.
        if lost.len() > usize::from(config.parity) || former.is_some_and(|former| self.stores_at(former) != lost) {
            return None;
        }
        let has_store = |node: &NodeId| config.stores().any(|store| config.place(store) == *node);
        let able: Vec<NodeId> = config.members.keys().copied().filter(has_store).collect();
        let node = *able.get(random.below(able.len() as u64) as usize)?;
        let mut voters: Vec<NodeId> = config.voters.values().copied().filter(|at| *at != node).collect();
        if voters.len() <= config.voters.len() / 2 {
            return None;
        }
        let mut disks = self.disks.lock();
        voters.retain(|at| disks.contains_key(at) && Some(*at) != former);
        voters.iter().chain(&former).for_each(|lost| self.kill(*lost));
        self.kill(node);
        voters.iter().for_each(|lost| disks[lost].voters.lock().lose());
        former.iter().for_each(|lost| drop(disks.remove(lost)));
        let of_node = disks.get_mut(&node)?;
        lost.iter().for_each(|store| of_node.stores[usize::from(store.raw())].wipe());
        *of_node.voters.lock() = VoterDisks::default();
        let at_nodes = config.stores().filter(|store| ![FIRST_NODE, node].contains(&config.place(*store)));
        let succession = Succession::Recovered { node, former: config.first_node };
        of_node.first = Some(Arc::new(AsFirst {
            claim: Claim { certificate: Some(certificate(node)), succession: Some(succession) },
            succeeded: Mutex::default(),
            at_nodes: Mutex::new(
                at_nodes.filter_map(|store| Some((store, config.reach(config.place(store))?))).collect(),
            ),
        }));
        self.fates.lock().asked.insert(node);
        Some([node].into_iter().chain(voters).collect())
    }

    /// Makes a first node that a user had made into the member that it is, if it has learned that.
    /// Returns both numbers. The member is to be started.
    pub fn demote(&self) -> Option<(NodeId, NodeId)> {
        let first = self.recovered()?;
        let mut disks = self.disks.lock();
        let member = (*disks[&first].first.as_ref()?.succeeded.lock())?;
        self.kill(first);
        let Disks { stores, voters, .. } = disks.remove(&first)?;
        disks.insert(member, Disks { stores, voters, first: None });
        self.net.becomes_member(first, member);
        Some((first, member))
    }
}

/// The folders of its voters.
struct Voters {
    end: End,
    machine: Machine,
    disks: Arc<Mutex<VoterDisks>>,
}

impl Voters {
    fn settings(&self, voter: u64) -> VoterSettings {
        VoterSettings { voter, node: String::new(), peers: Arc::new(Wires(self.end.clone())), timing: Some(TIMING) }
    }

    /// The voter that it has made, if there is one.
    async fn open(&self) -> Option<Arc<Consensus>> {
        let made = self.disks.lock().made?;
        let disk: Arc<dyn Disk> = self.disks.lock().all[&made].mount(&self.machine);
        Consensus::open(&self.end.host, &disk, &self.settings(made)).await.ok().map(Arc::new)
    }
}

impl VoterHome for Voters {
    fn voter(&self, voter: u64) -> Result<(Arc<dyn Disk>, VoterSettings), String> {
        let mut disks = self.disks.lock();
        let disk = disks.all.entry(voter).or_insert_with(|| SimDisk::new(&self.end.net.sim, 2 * ROOM)).clone();
        (disks.begun, disks.made) = (Some(voter), Some(voter));
        Ok((disk.mount(&self.machine), self.settings(voter)))
    }
}

/// The voter of a first node that has started, and until when it leads.
type Started = (Option<Arc<Consensus>>, Option<Arc<Leading>>);

/// The first node on its machine.
pub struct Server {
    pub node: NodeId,
    pub fs: FsUuid,
    pub end: End,
    pub process: Arc<Process>,
    pub stores: Vec<SimDisk>,
    pub voters: Arc<Mutex<VoterDisks>>,
    pub first: Arc<AsFirst>,
}

impl Server {
    /// Serves while it leads, and starts again after that, or if a start fails. Ends with the
    /// process, or when it is a member.
    pub async fn serve(&self, seen: &Seen) {
        loop {
            let machine = self.end.net.sim.machine(&format!("first at {}", self.node));
            let here = self.end.net.new_first(&machine, Arrivals::new(machine.host(), LEASE));
            *self.process.first.lock() = Some(here.clone());
            let voters =
                Voters { end: self.end.clone(), machine: self.process.machine.clone(), disks: self.voters.clone() };
            let opened = voters.open().await;
            opened.iter().for_each(|voter| self.take(voter.clone()));
            let leading = match opened.as_ref().filter(|voter| voter.voters().len() > 1) {
                None => None,
                Some(voter) => match self.wait(voter).await {
                    Some(leading) => Some(leading),
                    None => return,
                },
            };
            let earlier = leading.iter().filter_map(|leading| leading.earlier_leases_left(LEASE));
            earlier.for_each(|left| here.arrivals.know_leases_left(left));
            let ends = async {
                match &leading {
                    Some(leading) => leading.over().await,
                    None => std::future::pending().await,
                }
            };
            let starts = machine.run(self.start(here, opened.clone(), leading.clone()));
            match first(starts, ends).await {
                Either::Left(Ok(Ok((voter, leading)))) => {
                    voter.into_iter().for_each(|voter| self.take(voter));
                    seen.led.fetch_add(1, SeqCst);
                    match leading {
                        Some(leading) => leading.over().await,
                        None => std::future::pending().await,
                    }
                }
                Either::Left(Ok(Err(why))) => {
                    *seen.why.lock() = format!("{} does not start as the first node: {why}", self.node);
                    seen.failed.fetch_add(1, SeqCst);
                }
                Either::Left(Err(_)) | Either::Right(()) => {}
            }
            // The process ends, and starts again.
            *self.process.first.lock() = None;
            machine.crash();
            self.process.voter.send_replace(None);
            if let Some(voter) = opened {
                voter.close().await;
            }
            self.end.host.clock.sleep(PAUSE).await;
        }
    }

    fn take(&self, voter: Arc<Consensus>) {
        let Some(id) = self.voters.lock().made else { return };
        self.end.net.voters.lock().insert(id, self.node);
        self.process.voter.send_replace(Some((id, voter)));
    }

    /// Waits until it leads; `None` if another one was elected.
    async fn wait(&self, voter: &Arc<Consensus>) -> Option<Arc<Leading>> {
        loop {
            let asked = self.first.at_nodes.lock().clone().into_iter().map(|(store, at)| {
                let store = self.end.store(To::Node(at.node), StoreName { fs: self.fs, store });
                async move { store.maps().await.ok() }
            });
            let found = join_all(asked.collect()).await.into_iter().flatten();
            let newest = found.chain([voter.maps()]).max_by_key(|maps| maps.epoch)?;
            let config = FsConfig::decode(&newest.bytes).expect("maps");
            if let Some((member, _)) = config.member_of(&certificate_as_member(self.node)) {
                *self.first.succeeded.lock() = Some(member);
                return None;
            }
            if voter.leadership().is_ready
                && let Some(leading) = Leading::begin(&self.end.host, voter).await
            {
                return Some(leading);
            }
            self.end.host.clock.sleep(LOOK_PERIOD).await;
        }
    }

    /// Starts it.
    fn start(
        &self,
        here: Arc<First>,
        opened: Option<Arc<Consensus>>,
        leading: Option<Arc<Leading>>,
    ) -> impl Future<Output = Result<Started, String>> + Send + use<> {
        let (node, fs) = (self.node, self.fs);
        let end = End { certificate: certificate(node), host: here.machine.host(), ..self.end.clone() };
        let (as_first, stores, disks) = (self.first.clone(), self.stores.clone(), self.voters.clone());
        async move {
            let host = end.host.clone();
            if let Some(config) = opened.as_ref().and_then(|voter| FsConfig::decode(&voter.maps().bytes).ok())
                && is_decided(&config, opened.as_ref())
            {
                let places = config.places.iter().filter_map(|(store, at)| Some((*store, config.reach(*at)?)));
                *as_first.at_nodes.lock() = places.collect();
            }
            let at_nodes = as_first.at_nodes.lock().clone();
            let place = |(at, disk): (usize, &SimDisk)| {
                let store = StoreId::new(at as u16);
                match at_nodes.get(&store) {
                    None => StorePlace::from(disk.mount(&here.machine) as Arc<dyn Disk>),
                    Some(at) => {
                        let remote = end.store(To::Node(at.node), StoreName { fs, store });
                        StorePlace::Node(AtNode { at: at.clone(), remote })
                    }
                }
            };
            let places: Vec<StorePlace> = stores.iter().enumerate().map(place).collect();
            let voting = match opened {
                Some(voter) => Voting::Led(voter),
                None => Voting::Alone(Arc::new(Voters { end: end.clone(), machine: here.machine.clone(), disks })),
            };
            let started =
                CoreMachine::start_after(host.clone(), &places, voting, run(as_first.claim), &here.arrivals).await;
            let core = started.map_err(|e| e.to_string())?;
            let voter = core.maps.voter().cloned();
            let leading = match (leading, &voter) {
                (None, Some(voter)) => Leading::begin(&host, voter).await,
                (leading, _) => leading,
            };
            let (name, address) = (name_as_first(node), format!("{node}:1"));
            let fingerprint = certificate_as_member(node);
            let member = MemberEntry { name: name.clone(), fingerprint, address: address.clone() };
            // If the maps do not say so, the next start tries it again.
            let _ = core.change_maps(|config| config.first_member = Some(member)).await;
            let managers = ManagerService::new(host.clone());
            let config =
                MembersConfig { lease: LEASE, name, address, is_mounted: true, member: None, leading: leading.clone() };
            let members = core.open_to_members(config, managers.clone(), Some(Arc::new(Ways(end.clone())))).await;
            let (machine, maps) = (here.machine.clone(), core.maps.clone());
            let spread = core.spread(members.clone(), Arc::new(Places { end, machine, maps, as_first, stores })).await;
            members.begin_leases();
            if leading.is_some() {
                host.tasks.spawn(Box::pin(members.clone().keep_voters(FIRST_NODE)));
            }
            let locks = Arc::new(LockTableService(members.clone()));
            assert!(here.up.set(Up { members, managers, locks, spread, core }).is_ok());
            Ok((voter, leading))
        }
    }
}

/// True if the maps decide where stores are.
fn is_decided(config: &FsConfig, voter: Option<&Arc<Consensus>>) -> bool {
    config.voters.len() > 1 || voter.is_some_and(|voter| voter.voters().len() > 1)
}

/// The places of stores, as its data folder records them.
struct Places {
    end: End,
    machine: Machine,
    maps: Arc<Keeper>,
    as_first: Arc<AsFirst>,
    stores: Vec<SimDisk>,
}

impl Places {
    fn disk(&self, store: StoreId) -> Arc<dyn Disk> {
        self.stores[usize::from(store.raw())].mount(&self.machine)
    }
}

impl StorePlaces for Places {
    fn reach(&self, at: &KnownNode, name: StoreName) -> Arc<dyn RemoteStorage> {
        self.end.store(To::Node(at.node), name)
    }

    fn record(&self, places: &BTreeMap<StoreId, KnownNode>) -> BoxFuture<Result<(), RecordError>> {
        let (maps, as_first, places) = (self.maps.clone(), self.as_first.clone(), places.clone());
        Box::pin(async move {
            let known = maps.config().map_err(|e| RecordError::Unchanged(io::Error::other(e)))?;
            let nodes = places.iter().map(|(store, at)| (*store, at.node)).collect();
            if is_decided(&known, maps.voter()) && known.places != nodes {
                decide_places(&maps, nodes).await?;
            }
            *as_first.at_nodes.lock() = places;
            Ok(())
        })
    }

    fn remove(&self, store: StoreId) -> BoxFuture<io::Result<()>> {
        let disk = self.disk(store);
        Box::pin(async move { site::clear(&*disk).await })
    }

    fn make(&self, identity: StoreIdentity) -> BoxFuture<io::Result<Arc<StoreServer>>> {
        let (host, disk) = (self.end.host.clone(), self.disk(identity.store));
        Box::pin(async move {
            site::clear(&*disk).await?;
            StoreServer::create(host, disk, identity).await.map_err(io::Error::other)
        })
    }
}
