//! One machine with all roles of the core: creation, start with recovery, stop.
//!
//! A start opens the stores and the consensus folder, settles the maps, and opens the managers at
//! their last checkpoints. It recovers the tails of all clients' logs, those of other nodes too,
//! and then that of the cleaner's, and rolls them forward. The logs of sessions that go on are only
//! read. Only then does it let a client in. Its cost grows with the work since the last checkpoint,
//! not with the size of the stores.

use crate::cleaner::Cleaner;
use crate::config::{
    CLEANER_LOG, CLIENT_LOG, FIRST_NODE, FsConfig, KnownNode, client_id, client_log, first_manager_map, first_voters,
    manager_log,
};
use crate::maintenance::Maintenance;
use crate::maps::{self, ChangeError, Keeper, Voting};
use crate::room;
use crate::seat::Seat;
use crate::seats::{Opening, end_of};
use crate::stores::{self, CLOSE_TIMEOUT, Opened, StorePlace};
use crate::succession::Claim;
use crate::survivors::{Arrivals, Survivor};
use crate::switch::SwitchStore;
use client::{Client, Holdings, Managers};
use host::{Disk, Host};
use manager::api::{Manager, ManagerAdmin, ManagerError};
use manager::server::{ManagerConfig, ManagerServer};
use manager::{LivingLog, WriterLog};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use storage::api::{Storage, StorageError};
use storage::server::StoreServer;
use stripe::{LogWriter, Options, Stripe};
use types::{FsUuid, LogId, ManagerId, Maps, NodeId, StoreId};
use vfs::fs::FileSystem;

pub use crate::limits::Limits;
pub use crate::start_error::StartError;
pub use manager::Lengths;
pub use manager::api::INDEX_RANGE_LEN;

/// How long kernels may cache what the client's tokens cover. All roles share one process, so the
/// lease cannot expire while the mount exists.
const LEASE: Duration = Duration::from_secs(3600);
/// The client's inodes may take one in this many bytes of all caches, and the managers' inodes
/// together as much again.
const INODE_SHARE: u64 = 8;
/// Bytes that an inode takes in the memory of client and manager together, roughly: for bounding
/// their number.
const INODE_MEMORY_BYTES: u64 = 2048;
/// Number of inodes in memory, at least: amply what one operation needs at a time.
const INODE_COUNT_MIN: u64 = 64;
/// How long a request to a store may take before the store counts as absent.
pub(crate) const PUT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stop waits for managers to apply what clients have made durable.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(30);
/// Time between probes of stores that are out of service.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// How stripes of this file system are written and read.
pub(crate) fn stripe_options(config: &FsConfig, in_flight_max: u64, accepts_loss: bool) -> Options {
    Options {
        parity: config.parity,
        put_timeout: PUT_TIMEOUT,
        probe_interval: PROBE_INTERVAL,
        in_flight_max,
        accepts_loss,
    }
}

/// Bytes of all caches that a client's inodes may take.
pub(crate) fn inode_bytes(cache_bytes: u64) -> u64 {
    cache_bytes / INODE_SHARE
}

/// Number of inodes in memory, for caches of this many bytes.
pub(crate) fn inode_count_max(cache_bytes: u64) -> usize {
    (inode_bytes(cache_bytes) / INODE_MEMORY_BYTES).max(INODE_COUNT_MIN) as usize
}

/// The properties of a new file system.
#[derive(Clone, Copy, Debug)]
pub struct Create {
    /// Parity fragments per stripe.
    pub parity: u8,
    /// Block size in bytes.
    pub block_size: u32,
    /// Number of managers.
    pub manager_count: u16,
    /// Bytes that each store may use. `None`: nine tenths of the free space of the fullest disk,
    /// shared among the stores on it.
    pub store_capacity_bytes: Option<u64>,
}

impl Create {
    /// Checks these numbers for this many stores, before anything is touched.
    pub fn check(&self, store_count: u16) -> Result<(), StartError> {
        let capacity = self.store_capacity_bytes.unwrap_or(u64::MAX);
        self.config(FsUuid([0; 16]), store_count, capacity).check().map_err(StartError::Impossible)
    }

    fn config(&self, fs: FsUuid, store_count: u16, store_capacity_bytes: u64) -> FsConfig {
        let Create { parity, block_size, manager_count, .. } = *self;
        let managers = first_manager_map(manager_count);
        FsConfig {
            fs,
            store_count,
            parity,
            block_size,
            store_capacity_bytes,
            managers,
            members: BTreeMap::new(),
            next_node: 1,
            places: BTreeMap::new(),
            first_node: None,
            draining: Default::default(),
            through_first: Default::default(),
            first_member: None,
            voters: first_voters(),
            next_voter: 2,
            is_whole: true,
        }
    }
}

/// How a machine runs.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Bound of all caches in bytes.
    pub cache_bytes: u64,
    /// Mode of a new root directory.
    pub root_mode: u32,
    /// Its owner.
    pub root_uid: u32,
    /// Its group.
    pub root_gid: u32,
    /// How many index numbers a manager gives the client at once; normally [`INDEX_RANGE_LEN`].
    pub index_range_len: u64,
    /// Bounds of what managers write; normally [`Lengths::LARGEST`].
    pub manager_lengths: Lengths,
    /// See [`Options::accepts_loss`].
    pub accepts_loss: bool,
    /// By what right it starts.
    pub claim: Claim,
}

/// The work that recovery did at a start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovery {
    /// Segments rolled forward.
    pub segment_count: u64,
    /// Deltas in these segments.
    pub delta_count: u64,
    /// Time that it took, for managers and logs.
    pub time: Duration,
}

/// A running machine.
pub struct CoreMachine {
    /// The file system's configuration, by the maps in force at the start.
    pub config: FsConfig,
    /// The maps.
    pub maps: Arc<Keeper>,
    /// The file system.
    pub client: Client,
    /// The stripes.
    pub stripe: Arc<Stripe>,
    /// The managers, here and at other nodes.
    pub managers: Vec<Arc<Seat>>,
    /// Checkpoints and cleaning.
    pub maintenance: Arc<Maintenance>,
    /// What recovery did.
    pub recovery: Recovery,
    pub(crate) limits: Limits,
    host: Host,
    by_id: Vec<(StoreId, SwitchStore)>,
    /// The stores of this process.
    pub(crate) servers: Arc<Mutex<Vec<Arc<StoreServer>>>>,
    /// Where the stores at other nodes were at the start.
    pub(crate) at_nodes: BTreeMap<StoreId, KnownNode>,
    /// The members whose sessions go on.
    pub(crate) survivors: BTreeMap<NodeId, Survivor>,
    /// The managers' term.
    pub(crate) term: u64,
    /// How far the logs of members go whose sessions do not go on.
    pub(crate) ended: BTreeMap<LogId, LivingLog>,
    /// How managers are opened.
    manager: ManagerConfig,
    cleaner_log: Arc<LogWriter>,
}

/// Creates a file system over empty places for its stores, and a disk for the consensus engine.
/// That disk may have leftovers of an earlier attempt.
pub async fn create(
    host: &Host,
    places: &[StorePlace],
    consensus: &Arc<dyn Disk>,
    create: Create,
) -> Result<FsConfig, StartError> {
    let mut fs = [0; 16];
    fs[..8].copy_from_slice(&host.random.next_u64().to_le_bytes());
    fs[8..].copy_from_slice(&host.random.next_u64().to_le_bytes());
    let most = room::capacity_max(&stores::spaces(places).await?);
    let capacity = create.store_capacity_bytes.unwrap_or(most);
    if capacity > most {
        return Err(StartError::NoSpace { capacity, most });
    }
    let config = create.config(FsUuid(fs), u16::try_from(places.len()).unwrap_or(u16::MAX), capacity);
    config.check().map_err(StartError::Impossible)?;
    let first = Maps { epoch: 1, bytes: config.encode() };
    stores::create(host, &config, places, first.clone()).await?;
    maps::create(host, consensus, &config, first).await?;
    Ok(config)
}

impl CoreMachine {
    /// Starts all roles over the places, in the order of their stores, with the maps that these
    /// voters decide. Members' sessions do not survive: if there may
    /// be some, nothing may change files before their leases are over.
    pub async fn start(
        host: Host,
        places: &[StorePlace],
        voting: impl Into<Voting>,
        run: Run,
    ) -> Result<CoreMachine, StartError> {
        Self::start_within(host, places, voting, run, Limits::default(), None).await
    }

    /// Like [`start`](Self::start), but first waits for the members. The sessions of those that
    /// survive go on with [`open_to_members`](Self::open_to_members); until then nothing may use
    /// the client.
    pub async fn start_after(
        host: Host,
        places: &[StorePlace],
        voting: impl Into<Voting>,
        run: Run,
        arrivals: &Arrivals,
    ) -> Result<CoreMachine, StartError> {
        Self::start_within(host, places, voting, run, Limits::default(), Some(arrivals)).await
    }

    /// Like [`start`](Self::start), with other limits, and after these arrivals.
    pub async fn start_within(
        host: Host,
        places: &[StorePlace],
        voting: impl Into<Voting>,
        run: Run,
        limits: Limits,
        arrivals: Option<&Arrivals>,
    ) -> Result<CoreMachine, StartError> {
        let voting = voting.into();
        let Opened { config, maps: newest, behind, made_anew, by_id, late, servers, at_nodes, new_member } =
            stores::open(&host, places, &run.claim, voting.known()).await?;
        let agreed = maps::agree(&host, &voting, &config, &newest).await?;
        let behind = behind || agreed.maps.epoch > newest.epoch;
        let config = config.continued(&agreed.maps.bytes)?;
        stores::check_places(&config, places)?;
        let began = host.clock.now();
        let options = stripe_options(&config, limits.in_flight_max, run.accepts_loss);
        let switches = by_id.iter().map(|(id, store)| (*id, Arc::new(store.clone()) as Arc<dyn Storage>));
        let stripe = Stripe::new(host.clone(), config.fs, switches.collect(), options);
        late.into_iter().for_each(|store| stripe.note_late(store));
        let inode_count_max = inode_count_max(run.cache_bytes);
        let maps = Arc::new(Keeper::start(host.clone(), stripe.clone(), agreed, behind, made_anew).await?);
        let refused = |e| StartError::of_manager(&stripe, e);
        let (map, manager_ids) = (config.managers.clone(), config.manager_ids());
        let like_all = ManagerConfig {
            id: ManagerId::new(0),
            log: manager_log(0),
            block_size: config.block_size,
            map: map.clone(),
            cached_inodes_max: inode_count_max / manager_ids.len(),
            index_range_len: run.index_range_len,
            lengths: run.manager_lengths,
            after_epoch: None,
        };
        let mut managers = Vec::new();
        for &id in &manager_ids {
            let manager = ManagerConfig { id, log: manager_log(id.raw()), ..like_all.clone() };
            let opened = ManagerServer::open(host.clone(), stripe.clone(), manager, 1).await;
            managers.push(opened.map_err(refused)?);
        }
        let mut survivors = match arrivals {
            Some(arrivals) => arrivals
                .survivors(&config, new_member, &stripe, run.accepts_loss)
                .await
                .map_err(|e| refused(ManagerError::Stores(e)))?,
            None => BTreeMap::new(),
        };
        let living = survivors.iter().map(|(node, survivor)| (client_log(*node), &survivor.resume.holdings));
        let living: BTreeMap<LogId, &Holdings> = living.collect();
        let logs = config.client_logs().map(|log| match living.get(&log) {
            Some(&&Holdings { epoch, committed_seq, .. }) => WriterLog::Living(LivingLog { log, epoch, committed_seq }),
            None => WriterLog::Ended(log),
        });
        // This fences the sessions that do not go on, and has all that they made durable.
        let logs: Vec<WriterLog> = logs.collect();
        let rolled = manager::roll_forward_all(&stripe, &managers, &logs, &[WriterLog::Ended(CLEANER_LOG)]).await;
        let mut rolled = rolled.map_err(refused)?;
        survivors.retain(|node, _| !rolled.is_open(client_log(*node)));
        let term = arrivals.map_or_else(|| host.random.next_u64(), Arrivals::term);
        managers.iter().for_each(|manager| manager.begin_term(term));
        if run.accepts_loss {
            // The next start must not look for lost segments again: it would be refused.
            for manager in &managers {
                manager.checkpoint().await?;
            }
        }
        for (node, survivor) in &survivors {
            let tokens = &survivor.resume.holdings.tokens;
            managers.iter().for_each(|manager| manager.restore(client_id(*node), tokens));
        }
        let (tail, cleaner_tail) = (rolled.take(CLIENT_LOG)?, rolled.take(CLEANER_LOG)?);
        let ended = rolled.rest().map(|tail| (tail.log, end_of(&tail))).collect();
        let recovery = Recovery {
            segment_count: rolled.read.segments,
            delta_count: rolled.read.deltas,
            time: host.clock.now().saturating_sub(began),
        };
        let client_config = client::ClientConfig {
            id: client_id(FIRST_NODE),
            block_size: config.block_size,
            // The client and the managers both have inodes in memory.
            cache_bytes: run.cache_bytes - 2 * inode_bytes(run.cache_bytes),
            inode_count_max,
            lease: LEASE,
            lease_until: None,
        };
        let space = room::space(&config, &stripe, managers.iter().flat_map(|manager| manager.owed()));
        let managers: Vec<Arc<Seat>> = managers.into_iter().map(Seat::here).collect();
        let by_manager = managers.iter().map(|m| m.clone() as Arc<dyn Manager>).collect();
        let client = Client::start(
            host.clone(),
            client_config,
            space,
            Managers::new(map.clone(), by_manager),
            stripe.clone(),
            tail,
        );
        let cleaner_log = LogWriter::new(stripe.clone(), cleaner_tail);
        let cleaner = Cleaner {
            stripe: stripe.clone(),
            log: cleaner_log.clone(),
            managers: managers.clone(),
            map,
            client: client.clone(),
            block_size: config.block_size,
            host: host.clone(),
            writers: OnceLock::new(),
            writer_copies_min: limits.writer_copies_min,
            avoided: Default::default(),
            copied: Default::default(),
            unapplied: Default::default(),
        };
        let maintenance = Maintenance::start(
            host.clone(),
            config.clone(),
            limits,
            stripe.clone(),
            managers.clone(),
            client.clone(),
            cleaner,
        )
        .await?;
        // With survivors there is a root, and files without a name may be open there.
        if survivors.is_empty() {
            client.prepare(run.root_mode, run.root_uid, run.root_gid).await.map_err(StartError::Root)?;
        }
        if run.accepts_loss {
            stripe.mark_these().await?;
        }
        Ok(CoreMachine {
            config,
            maps,
            client,
            stripe,
            managers,
            maintenance,
            recovery,
            host,
            limits,
            by_id,
            servers: Arc::new(Mutex::new(servers)),
            at_nodes,
            survivors,
            term,
            ended,
            manager: like_all,
            cleaner_log,
        })
    }

    /// The managers that are served here now.
    pub fn servers(&self) -> Vec<Arc<ManagerServer>> {
        self.managers.iter().filter_map(|manager| manager.server()).collect()
    }

    /// What managers need that are opened here later.
    pub(crate) fn opening(&self, lease: Duration) -> Opening {
        Opening {
            host: self.host.clone(),
            stripe: self.stripe.clone(),
            config: self.manager.clone(),
            client: self.client.clone(),
            cleaner: self.cleaner_log.clone(),
            lease,
        }
    }

    /// The host that it runs on.
    pub fn host(&self) -> Host {
        self.host.clone()
    }

    /// All stores, wherever they are, for other nodes too.
    pub fn stores(&self) -> &[(StoreId, SwitchStore)] {
        &self.by_id
    }

    /// Changes the maps; see [`Keeper::change`].
    pub async fn change_maps(&self, change: impl FnOnce(&mut FsConfig)) -> Result<u64, ChangeError> {
        self.maps.change(change).await
    }

    /// Commits everything, writes checkpoints, and closes the stores, so that the next start has
    /// nothing to recover. After an error, everything that was synced is as safe as after a crash.
    pub async fn stop(&self) -> Result<(), StartError> {
        self.client.sync().await.map_err(StartError::Root)?;
        // A manager's node may be gone. The next start reads what its managers have not applied.
        let _ = host::timeout(&*self.host.clock, SETTLE_TIME_MAX, self.client.settle()).await;
        self.maintenance.stop().await;
        self.client.stop();
        for manager in self.servers() {
            manager.checkpoint().await?;
        }
        self.maintenance.mark().await;
        self.maps.close().await;
        let mut closed = Ok(());
        let servers = std::mem::take(&mut *self.servers.lock());
        for store in servers {
            let close = host::timeout(&*self.host.clock, CLOSE_TIMEOUT, store.close());
            if let Err(e) = close.await.unwrap_or(Err(StorageError::Unavailable)) {
                // Close the others all the same.
                closed = closed.and(Err(StartError::Storage(store.identity().store, e)));
            }
        }
        closed
    }
}
