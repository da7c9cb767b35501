//! A node that its user makes into the first one when too few voters are left, as `starling node
//! recover` does. It is no member any more, has the only voter, and appoints no others.

use crate::net::{End, First, Process, To, Up};
use crate::rig::{LEASE, PAUSE, ROOM, Rig, Seen, Ways, run};
use cluster::config::FIRST_NODE;
use cluster::machine::CoreMachine;
use cluster::manager_service::ManagerService;
use cluster::maps::{VoterHome, Voting};
use cluster::members::MembersConfig;
use cluster::remote_locks::LockTableService;
use cluster::spread::{RecordError, StorePlaces};
use cluster::survivors::Arrivals;
use cluster::{AtNode, Claim, FsConfig, KnownNode, StorePlace, Succession};
use consensus::VoterSettings;
use host::sim::{Machine, SimDisk};
use host::{Disk, SplitMix64};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use storage::api::{RemoteStorage, StoreIdentity};
use storage::server::StoreServer;
use storage::site;
use storage::wire::StoreName;
use types::{BoxFuture, FsUuid, NodeId, StoreId};

/// The certificate of a node that its user has made into the first one.
fn certificate(node: NodeId) -> [u8; 32] {
    [200 + node.raw() as u8; 32]
}

/// What the data folder of such a node says.
pub struct AsFirst {
    claim: Claim,
    voter: SimDisk,
    /// Stores that are at nodes. It has the others itself.
    at_nodes: Mutex<BTreeMap<StoreId, KnownNode>>,
}

impl AsFirst {
    pub fn power_loss(&self) {
        self.voter.power_loss();
    }
}

impl Rig {
    /// The first node that a user has made, if there is one.
    pub fn recovered(&self) -> Option<NodeId> {
        self.disks.lock().iter().find(|(_, disks)| disks.first.is_some()).map(|(node, _)| *node)
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
        let lost: Vec<StoreId> = config.stores().filter(|store| config.place(*store) == FIRST_NODE).collect();
        if lost.len() > usize::from(config.parity) {
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
        *of_node.voters.lock() = Default::default();
        let at_nodes = config.stores().filter(|store| ![FIRST_NODE, node].contains(&config.place(*store)));
        let succession = Succession::Recovered { node, former: config.first_node };
        of_node.first = Some(Arc::new(AsFirst {
            claim: Claim { certificate: Some(certificate(node)), succession: Some(succession) },
            voter: SimDisk::new(&self.net.sim, 2 * ROOM),
            at_nodes: Mutex::new(
                at_nodes.filter_map(|store| Some((store, config.reach(config.place(store))?))).collect(),
            ),
        }));
        self.fates.lock().asked.insert(node);
        Some([node].into_iter().chain(voters).collect())
    }
}

/// The folder of the only voter.
struct OnlyVoter(Arc<dyn Disk>);

impl VoterHome for OnlyVoter {
    fn voter(&self, voter: u64) -> Result<(Arc<dyn Disk>, VoterSettings), String> {
        Ok((self.0.clone(), VoterSettings { voter, ..VoterSettings::alone() }))
    }
}

/// The first node on its machine.
pub struct Server {
    pub node: NodeId,
    pub fs: FsUuid,
    pub end: End,
    pub process: Arc<Process>,
    pub stores: Vec<SimDisk>,
    pub first: Arc<AsFirst>,
}

impl Server {
    /// Serves, and starts again if a start fails. Ends with the process.
    pub async fn serve(&self, seen: &Seen) {
        loop {
            let machine = self.end.net.sim.machine(&format!("first at {}", self.node));
            let here = self.end.net.new_first(&machine, Arrivals::new(machine.host(), LEASE));
            *self.process.first.lock() = Some(here.clone());
            let started = machine.run(self.start(here)).await;
            if let Ok(Ok(())) = started {
                seen.led.fetch_add(1, SeqCst);
                return;
            }
            if let Ok(Err(why)) = started {
                *seen.why.lock() = format!("{} does not start as the first node: {why}", self.node);
                seen.failed.fetch_add(1, SeqCst);
            }
            *self.process.first.lock() = None;
            machine.crash();
            self.end.host.clock.sleep(PAUSE).await;
        }
    }

    fn start(&self, here: Arc<First>) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let (node, fs) = (self.node, self.fs);
        let end = End { certificate: certificate(node), host: here.machine.host(), ..self.end.clone() };
        let (first, stores) = (self.first.clone(), self.stores.clone());
        async move {
            let host = end.host.clone();
            let at_nodes = first.at_nodes.lock().clone();
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
            let voting = Voting::Alone(Arc::new(OnlyVoter(first.voter.mount(&here.machine))));
            let started =
                CoreMachine::start_after(host.clone(), &places, voting, run(first.claim), &here.arrivals).await;
            let core = started.map_err(|e| e.to_string())?;
            let managers = ManagerService::new(host.clone());
            let (name, address) = (format!("first-{node}"), format!("{node}:1"));
            let config = MembersConfig { lease: LEASE, name, address, is_mounted: true, member: None, leading: None };
            let members = core.open_to_members(config, managers.clone(), Some(Arc::new(Ways(end.clone())))).await;
            let machine = here.machine.clone();
            let spread = core.spread(members.clone(), Arc::new(Places { end, machine, first, stores })).await;
            members.begin_leases();
            let locks = Arc::new(LockTableService(members.clone()));
            assert!(here.up.set(Up { members, managers, locks, spread, core }).is_ok());
            Ok(())
        }
    }
}

/// The places of stores, as its data folder records them.
struct Places {
    end: End,
    machine: Machine,
    first: Arc<AsFirst>,
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
        *self.first.at_nodes.lock() = places.clone();
        Box::pin(async { Ok(()) })
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
