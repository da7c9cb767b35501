//! One machine with all roles of the core: creation, start with recovery, stop.
//!
//! Start: open the stores and the consensus folder, agree on the maps, open the managers at their
//! last checkpoints, recover the tails of the client's and then the cleaner's log and roll them
//! forward, and only then let a client in. What it takes follows the work since the last
//! checkpoint, not the size of the stores.

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
/// lease cannot be lost while the mount is there.
const LEASE: Duration = Duration::from_secs(3600);
/// The client's inodes may take one in so many bytes of all caches, and those of all managers as
/// much.
const INODE_SHARE: u64 = 8;
/// What an inode in the client's and the manager's memory takes together, roughly, in bytes: for
/// bounding their number.
const INODE_MEMORY_BYTES: u64 = 2048;
/// Inodes that one operation may need at a time, amply.
const INODE_COUNT_MIN: u64 = 64;
const PUT_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// What a new file system is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Create {
    /// Parity fragments per stripe.
    pub parity: u8,
    /// Block size in bytes.
    pub block_size: u32,
    /// Managers.
    pub manager_count: u16,
    /// Bytes each store may use; `None`: what the fullest disk has free, less a tenth, shared among
    /// the stores on it.
    pub store_capacity_bytes: Option<u64>,
}

impl Create {
    /// What is wrong with these numbers for so many stores, before anything is touched.
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
    /// How many inode numbers a manager gives the client at once, [`INDEX_RANGE_LEN`] if nothing
    /// speaks against it.
    pub index_range_len: u64,
    /// How long what managers write may be, [`Lengths::LARGEST`] if nothing speaks against it.
    pub manager_lengths: Lengths,
    /// See [`Options::accepts_loss`].
    pub accepts_loss: bool,
}

/// Numbers that no user chooses, since the usual ones suit everybody. Tests draw small ones, so
/// that what is rare becomes common.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most segments of a log in flight; see [`Options::in_flight_max`]. For the life of a file
    /// system.
    pub in_flight_max: u64,
    /// Cuts since the last checkpoint after which there is another one: bounds recovery.
    pub cuts_per_checkpoint_max: u64,
    /// How long one step of restoring redundancy may take.
    pub restore_step: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            in_flight_max: Options::default().in_flight_max,
            cuts_per_checkpoint_max: 64,
            // Other maintenance gets its turn.
            restore_step: Duration::from_millis(500),
        }
    }
}

/// Why there is no running file system. Nothing was changed, except that stores may have been
/// brought up to date.
#[derive(Debug, Error)]
pub enum StartError {
    /// The numbers asked for make no sense.
    #[error("{0}")]
    Impossible(String),
    /// The stores would be larger than their disks can hold.
    #[error(
        "no room for stores of {capacity} bytes: their disks have room for {most} bytes each; use a smaller --store-size, or more disks"
    )]
    NoSpace {
        /// Bytes asked for.
        capacity: u64,
        /// Bytes there could be.
        most: u64,
    },
    /// There is a file system already.
    #[error("store {0} holds a file system already; use it, or give another folder")]
    Exists(StoreId),
    /// Too few stores could be opened.
    #[error(
        "only {opened} of {count} stores can be opened and at least {least} are needed; bring back the others ({reasons})"
    )]
    NotEnoughStores {
        /// Opened.
        opened: usize,
        /// All.
        count: usize,
        /// Needed.
        least: usize,
        /// What was wrong with the others.
        reasons: String,
    },
    /// A store belongs to another file system, or to another place in this one.
    #[error("the place of store {place} holds {found} of file system {fs}; give the stores in their order")]
    Foreign {
        /// Where it was given.
        place: StoreId,
        /// What it says it is.
        found: StoreId,
        /// Whose it is.
        fs: FsUuid,
    },
    /// The consensus folder is that of another file system.
    #[error(
        "the consensus folder belongs to file system {found}, the stores to {fs}: put back the right one, or remove it, and it is \
         made anew from the stores"
    )]
    ForeignConsensus {
        /// Whose it is.
        found: FsUuid,
        /// Whose the stores are.
        fs: FsUuid,
    },
    /// The consensus folder cannot be made, or was written by a newer program.
    #[error("the consensus folder: {0}")]
    Consensus(consensus::OpenError),
    /// The maps cannot be read.
    #[error("the configuration kept by the stores: {0}")]
    Config(#[from] types::codec::DecodeError),
    /// There is no place for a new store.
    #[error("{0}: {1}")]
    Unusable(StoreId, String),
    /// A remote store cannot be reached, or refuses.
    #[error("{0}: {1}")]
    Remote(StoreId, std::io::Error),
    /// A store's folder could not be opened or created.
    #[error("{0}: {1}")]
    Store(StoreId, OpenError),
    /// A store does not do what it must.
    #[error("{0}: {1}")]
    Storage(StoreId, StorageError),
    /// Segments cannot be read or written.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// The stores do not have a log as a whole, or that is not certain. To go on would discard what
    /// may come back.
    #[error("{error}. Nothing was discarded: {}", what_to_do(stores))]
    Refused {
        /// What is wrong.
        error: StripeError,
        /// The stores that may make it whole.
        stores: StoreSet,
    },
    /// A manager cannot start.
    #[error("manager: {0}")]
    Manager(#[from] ManagerError),
    /// The root directory cannot be read or made.
    #[error("root directory: {0}")]
    Root(FsError),
    /// A disk.
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

/// What start found to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovery {
    /// Segments rolled forward.
    pub segment_count: u64,
    /// Deltas in them.
    pub delta_count: u64,
    /// Time it took, managers and logs.
    pub time: Duration,
}

/// A running machine.
pub struct Machine {
    /// What the file system is, by the maps in force at the start.
    pub config: FsConfig,
    /// The maps.
    pub maps: Keeper,
    /// The file system.
    pub client: Client,
    /// The stripes beneath.
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

/// Makes a new file system over empty places for its stores, and a disk for the consensus engine,
/// on which an earlier attempt may have left something.
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
    /// Starts all roles over the places given in the order of their stores and the disk of the
    /// consensus engine, whose contents may be lost.
    pub async fn start(
        host: Host,
        places: &[Place],
        consensus: &Arc<dyn Disk>,
        run: Run,
    ) -> Result<Machine, StartError> {
        Self::start_within(host, places, consensus, run, Limits::default()).await
    }

    /// As [`start`](Self::start), with other limits than the usual ones.
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
            // The client has inodes in memory, and so have the managers.
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

    /// What it runs on.
    pub fn host(&self) -> Host {
        self.host.clone()
    }

    /// Changes the maps; see [`Keeper::change`].
    pub async fn change_maps(&self, change: impl FnOnce(&mut FsConfig)) -> Result<u64, ChangeError> {
        self.maps.change(change).await
    }

    /// Commits everything, writes checkpoints, and closes the stores, so that the next start has
    /// nothing to recover. On error what was synced is as safe as after a crash.
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
                // The others are closed nevertheless.
                closed = closed.and(Err(StartError::Storage(store.identity().store, e)));
            }
        }
        closed
    }
}
