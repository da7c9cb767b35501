//! One machine with all roles of the core: creation, start with recovery, stop.
//!
//! A start opens the stores and the consensus folder, settles the maps, and opens the managers at
//! their last checkpoints. It recovers the tail of the client's log and then that of the cleaner's,
//! and rolls them forward. Only then does it let a client in. Its cost grows with the work since
//! the last checkpoint, not with the size of the stores.

use crate::cleaner::Cleaner;
use crate::config::{CLEANER_LOG, CLIENT_LOG, FsConfig, first_manager_map, manager_log};
use crate::maintenance::Maintenance;
use crate::maps::{self, ChangeError, Keeper};
use crate::room;
use crate::stores::{self, CLOSE_TIMEOUT, Opened, Place};
use client::{Client, Managers};
use host::{Disk, Host};
use manager::api::{Manager, ManagerError};
use manager::server::{Config as ManagerConfig, Server as ManagerServer};
use std::sync::Arc;
use std::time::Duration;
use storage::api::StorageError;
use storage::server::{OpenError, Server as StoreServer};
use stripe::{LogWriter, Options, StoreSet, Stripe, StripeError};
use thiserror::Error;
use types::{ClientId, FsError, FsUuid, Maps, StoreId};
use vfs::fs::FileSystem;

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
const PUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between probes of stores that are out of service.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

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
        FsConfig { fs, store_count, parity, block_size, store_capacity_bytes, managers }
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
}

/// Bounds that users do not choose. Tests draw small ones, so that rare events become common.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bound of the segments of a log in flight; see [`Options::in_flight_max`]. It stays the same
    /// for the life of a file system.
    pub in_flight_max: u64,
    /// Number of cuts after which maintenance has a checkpoint written: bounds recovery.
    pub cuts_per_checkpoint_max: u64,
    /// How long one step of restoring redundancy may take, before other maintenance gets its turn.
    pub restore_step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            in_flight_max: Options::default().in_flight_max,
            cuts_per_checkpoint_max: 64,
            restore_step: Duration::from_millis(500),
        }
    }
}

/// Why a file system did not start. Nothing was changed, except that stores may have been brought
/// up to date.
#[derive(Debug, Error)]
pub enum StartError {
    /// The numbers asked for are invalid.
    #[error("{0}")]
    Impossible(String),
    /// The stores would be larger than their disks can hold.
    #[error(
        "no room for stores of {capacity} bytes: their disks have room for {most} bytes each; use a smaller --store-size, or more disks"
    )]
    NoSpace {
        /// Bytes asked for.
        capacity: u64,
        /// Bytes that fit.
        most: u64,
    },
    /// A store holds a file system already.
    #[error("store {0} holds a file system already; use it, or give another folder")]
    Exists(StoreId),
    /// Too few stores could be opened.
    #[error(
        "only {opened} of {count} stores can be opened and at least {least} are needed; bring back the others ({reasons})"
    )]
    NotEnoughStores {
        /// Number of stores that could be opened.
        opened: usize,
        /// Number of all stores.
        count: usize,
        /// Number of stores that are needed.
        least: usize,
        /// Why the others could not be opened.
        reasons: String,
    },
    /// A store belongs to another file system, or to another place in this one.
    #[error("the place of store {place} holds {found} of file system {fs}; give the stores in their order")]
    Foreign {
        /// The place where it was given.
        place: StoreId,
        /// The store that it says it is.
        found: StoreId,
        /// The file system that it says it belongs to.
        fs: FsUuid,
    },
    /// The consensus folder is that of another file system.
    #[error(
        "the consensus folder belongs to file system {found}, the stores to {fs}: put back the right one, or remove it, and it is \
         made anew from the stores"
    )]
    ForeignConsensus {
        /// The file system that the folder belongs to.
        found: FsUuid,
        /// The file system that the stores belong to.
        fs: FsUuid,
    },
    /// The consensus folder cannot be made, or was written by a newer program.
    #[error("the consensus folder: {0}")]
    Consensus(consensus::OpenError),
    /// The maps cannot be read.
    #[error("the configuration kept by the stores: {0}")]
    Config(#[from] types::codec::DecodeError),
    /// A place cannot take a new store.
    #[error("{0}: {1}")]
    Unusable(StoreId, String),
    /// A remote store cannot be reached, or refuses.
    #[error("{0}: {1}")]
    Remote(StoreId, std::io::Error),
    /// A store's folder could not be opened or created.
    #[error("{0}: {1}")]
    Store(StoreId, OpenError),
    /// A store failed an operation.
    #[error("{0}: {1}")]
    Storage(StoreId, StorageError),
    /// Segments cannot be read or written.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// The stores do not have a whole log, or that is not certain. Going on would discard segments
    /// that may come back.
    #[error("{error}. Nothing was discarded: {}", what_to_do(stores))]
    Refused {
        /// What is wrong.
        error: StripeError,
        /// The stores that may have the missing segments.
        stores: StoreSet,
    },
    /// A manager cannot start.
    #[error("manager: {0}")]
    Manager(#[from] ManagerError),
    /// The root directory cannot be read or made.
    #[error("root directory: {0}")]
    Root(FsError),
    /// A disk failed.
    #[error("disk: {0}")]
    Disk(#[from] std::io::Error),
}

impl StartError {
    fn refused(stripe: &Stripe, error: StripeError) -> StartError {
        let stores = match error {
            StripeError::StoresNeeded { stores, .. } => stores,
            _ => stripe.out_of_service(),
        };
        StartError::Refused { error, stores }
    }

    fn of_manager(stripe: &Stripe, error: ManagerError) -> StartError {
        match error {
            ManagerError::Stores(error) => StartError::refused(stripe, error),
            error => StartError::Manager(error),
        }
    }
}

fn what_to_do(stores: &StoreSet) -> String {
    match stores.iter().next() {
        Some(_) => format!("bring back {stores} as last used, and start again"),
        None => {
            "all stores answer, so some hold old copies or have rotted; put back the right ones, and start again".into()
        }
    }
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
pub struct Machine {
    /// The file system's configuration, by the maps in force at the start.
    pub config: FsConfig,
    /// The maps.
    pub maps: Keeper,
    /// The file system.
    pub client: Client,
    /// The stripes.
    pub stripe: Arc<Stripe>,
    /// The managers.
    pub managers: Vec<Arc<ManagerServer>>,
    /// Checkpoints and cleaning.
    pub maintenance: Arc<Maintenance>,
    /// What recovery did.
    pub recovery: Recovery,
    host: Host,
    stores: Vec<Arc<StoreServer>>,
}

/// Creates a file system over empty places for its stores, and a disk for the consensus engine.
/// That disk may have leftovers of an earlier attempt.
pub async fn create(
    host: &Host,
    places: &[Place],
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

impl Machine {
    /// Starts all roles over the places, in the order of their stores, and the disk of the
    /// consensus engine, whose contents may be lost.
    pub async fn start(
        host: Host,
        places: &[Place],
        consensus: &Arc<dyn Disk>,
        run: Run,
    ) -> Result<Machine, StartError> {
        Self::start_within(host, places, consensus, run, Limits::default()).await
    }

    /// Like [`start`](Self::start), with other limits.
    pub async fn start_within(
        host: Host,
        places: &[Place],
        consensus: &Arc<dyn Disk>,
        run: Run,
        limits: Limits,
    ) -> Result<Machine, StartError> {
        let Opened { config, maps: newest, behind, by_id, servers } = stores::open(&host, places).await?;
        let agreed = maps::agree(&host, consensus, &config, &newest).await?;
        let behind = behind || agreed.maps.epoch > newest.epoch;
        let config = config.continued(&agreed.maps.bytes)?;
        let began = host.clock.now();
        let options = Options {
            parity: config.parity,
            put_timeout: PUT_TIMEOUT,
            probe_interval: PROBE_INTERVAL,
            in_flight_max: limits.in_flight_max,
            accepts_loss: run.accepts_loss,
        };
        let stripe = Stripe::new(host.clone(), config.fs, by_id, options);
        let inode_bytes = run.cache_bytes / INODE_SHARE;
        let inode_count_max = (inode_bytes / INODE_MEMORY_BYTES).max(INODE_COUNT_MIN) as usize;
        let maps = Keeper::start(host.clone(), stripe.clone(), agreed, behind).await;
        let maps = maps.map_err(|e| StartError::refused(&stripe, e))?;
        let refused = |e| StartError::of_manager(&stripe, e);
        let (map, manager_ids) = (config.managers.clone(), config.manager_ids());
        let mut managers = Vec::new();
        for &id in &manager_ids {
            let manager = ManagerConfig {
                id,
                log: manager_log(id.raw()),
                block_size: config.block_size,
                map: map.clone(),
                cached_inodes_max: inode_count_max / manager_ids.len(),
                index_range_len: run.index_range_len,
                lengths: run.manager_lengths,
            };
            let opened = ManagerServer::open(host.clone(), stripe.clone(), manager, 1).await;
            managers.push(opened.map_err(refused)?);
        }
        let rolled = manager::roll_forward::roll_forward(&stripe, &managers, CLIENT_LOG).await;
        let (tail, rolled) = rolled.map_err(refused)?;
        let rolled_cleaner = manager::roll_forward::roll_forward(&stripe, &managers, CLEANER_LOG).await;
        let (cleaner_tail, cleaner_rolled) = rolled_cleaner.map_err(refused)?;
        let recovery = Recovery {
            segment_count: rolled.segments + cleaner_rolled.segments,
            delta_count: rolled.deltas + cleaner_rolled.deltas,
            time: host.clock.now().saturating_sub(began),
        };
        let client_config = client::Config {
            id: ClientId::new(1),
            block_size: config.block_size,
            // The client and the managers both have inodes in memory.
            cache_bytes: run.cache_bytes - 2 * inode_bytes,
            inode_count_max,
            lease: LEASE,
        };
        let space = room::space(&config, &stripe, managers.iter().flat_map(|manager| manager.owed()));
        let by_id = managers.iter().map(|m| m.clone() as Arc<dyn Manager>).collect();
        let client =
            Client::start(host.clone(), client_config, space, Managers::new(map.clone(), by_id), stripe.clone(), tail);
        let cleaner = Cleaner {
            stripe: stripe.clone(),
            log: LogWriter::new(stripe.clone(), cleaner_tail),
            managers: managers.clone(),
            map,
            client: client.clone(),
            block_size: config.block_size,
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
        client.prepare(run.root_mode, run.root_uid, run.root_gid).await.map_err(StartError::Root)?;
        Ok(Machine { config, maps, client, stripe, managers, maintenance, recovery, host, stores: servers })
    }

    /// The host that it runs on.
    pub fn host(&self) -> Host {
        self.host.clone()
    }

    /// Changes the maps; see [`Keeper::change`].
    pub async fn change_maps(&self, change: impl FnOnce(&mut FsConfig)) -> Result<u64, ChangeError> {
        self.maps.change(change).await
    }

    /// Commits everything, writes checkpoints, and closes the stores, so that the next start has
    /// nothing to recover. After an error, everything that was synced is as safe as after a crash.
    pub async fn stop(&self) -> Result<(), StartError> {
        self.client.sync().await.map_err(StartError::Root)?;
        self.client.settle().await;
        self.maintenance.stop().await;
        self.client.stop();
        for manager in &self.managers {
            manager.checkpoint().await?;
        }
        self.maps.close().await;
        let mut closed = Ok(());
        for store in &self.stores {
            let close = host::timeout(&*self.host.clock, CLOSE_TIMEOUT, store.close());
            if let Err(e) = close.await.unwrap_or(Err(StorageError::Unavailable)) {
                // Close the others all the same.
                closed = closed.and(Err(StartError::Storage(store.identity().store, e)));
            }
        }
        closed
    }
}
