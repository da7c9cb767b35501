//! Homes: they export file systems to roaming clients, and do what clients did while they were
//! away.
//!
//! Pure: [`state`] is what a home must not forget; [`volume`], what it knows of files;
//! [`delegations`], what clients may do without asking; [`locking`], which locks they have.
//!
//! The file system behind: [`export`] is what a home needs of it; [`local`], directories of this
//! machine; [`memory`], the model for tests; `own`, the home's own folder in it.
//!
//! Clients: [`invitation`], which clients will be served; [`clients`], which are served, and
//! turning clients away; `session`, one client's requests; `pace`, how fast a client may ask;
//! `company`, whether a client is alone; `live`, which clients are attached and what each was told.
//!
//! Looking: `exported` finds files and notices what others change; `open` begins to export.
//!
//! Doing: `apply` does clients' operations; `store` puts contents in place, and `in_place` changes
//! them there; `uploads` and `uploading` keep bytes of stores that have not come yet; `claims`
//! waits for what other clients have, and `rights` says which users may claim it; `promised_store`
//! and `promised_stores` show a store to others before it is done.
//!
//! Durability: `ledger` has the logs, and what must be durable before their records; `announced`,
//! what is about to be done; `seen`, what was done and may not be durable; `durable` makes it
//! durable.
//!
//! Must survive: crashes and loss of power at any point. A home does each operation once, and gives
//! a client that asks again the same answer. Clients keep their operations until they are durable
//! here, and send them again after a crash. The home recognises what it had done by its
//! announcement and by its result. It undoes a store that may not be durable.

mod announced;
mod apply;
mod claims;
pub mod clients;
mod company;
pub mod delegations;
mod durable;
pub mod export;
mod exported;
mod in_place;
pub mod invitation;
mod ledger;
mod live;
pub mod local;
pub mod locking;
pub mod memory;
mod open;
mod own;
mod pace;
mod promised_store;
mod promised_stores;
mod rights;
mod seen;
mod session;
pub mod state;
mod store;
mod uploading;
mod uploads;
pub mod volume;
mod whose;

use crate::announced::{Announced, Announcement};
use crate::export::Export;
use crate::exported::Exported;
use crate::ledger::Ledger;
use crate::live::Live;
use crate::state::{HomeRecord, HomeState};
use host::{Disk, Host};
use parking_lot::Mutex;
use record_log::{AppendError, LogOpenError};
use roam_proto::channel::{PeerKey, Push, Service, Session};
use roam_proto::codec::Wire;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use thiserror::Error;
use types::FsError;
use types::codec::DecodeError;

/// What the files of a home's state begin with.
const OWNER: [u8; 4] = *b"HOME";
/// What the files of its announcements begin with.
const OWNER_OF_ANNOUNCEMENTS: [u8; 4] = *b"HOMA";

/// Why a home cannot be opened.
#[derive(Debug, Error)]
pub enum HomeError {
    /// The state cannot be opened.
    #[error("the home's state: {0}")]
    Open(#[from] LogOpenError),
    /// The state is damaged.
    #[error("the home's state is damaged: {0}")]
    Damaged(#[from] DecodeError),
    /// The state cannot be written.
    #[error("the home's state: {0}")]
    Append(#[from] AppendError),
    /// The state, or what was done to the volumes, cannot be made durable.
    #[error("making the home's state durable: {0}")]
    Durable(FsError),
    /// A volume cannot be exported.
    #[error("volume {name}: {error}")]
    Export {
        /// The volume's name.
        name: String,
        /// The file system's error.
        error: FsError,
    },
}

/// A home that serves. Clones share everything.
#[derive(Clone)]
pub struct Home(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) host: Host,
    /// The number of this run. No other run of the home has it.
    pub(crate) run: u64,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) connection_count: AtomicU64,
    pub(crate) live: Arc<Mutex<Live>>,
    pub(crate) log: Arc<Ledger>,
    pub(crate) volumes: BTreeMap<String, Arc<Exported>>,
}

impl Home {
    /// Opens a home with its state in `disk`, and begins to export file systems under the names of
    /// their volumes. Looks at everything that clients know of, since other programs may have
    /// changed it while no home ran.
    pub async fn open(
        host: &Host,
        disk: Arc<dyn Disk>,
        exports: Vec<(String, Arc<dyn Export>)>,
    ) -> Result<Home, HomeError> {
        Home::open_with(host, disk, exports, record_log::LOG_LEN).await
    }

    /// Opens a home, as [`open`](Self::open) does, with the length in bytes at which its log begins
    /// anew with a snapshot. Only the simulator chooses it.
    pub async fn open_with(
        host: &Host,
        disk: Arc<dyn Disk>,
        exports: Vec<(String, Arc<dyn Export>)>,
        log_len: u64,
    ) -> Result<Home, HomeError> {
        let found = record_log::open(&*disk, "home", OWNER).await?;
        let mut state = match &found.snapshot {
            Some(bytes) => HomeState::from_bytes(bytes)?,
            None => HomeState::default(),
        };
        for record in &found.records {
            state.apply(HomeRecord::from_bytes(record)?).ok_or(DecodeError::Invalid("record of a home"))?;
        }
        let before = record_log::open(&*disk, "announced", OWNER_OF_ANNOUNCEMENTS).await?;
        let announced = Announced::found(before.snapshot.as_deref(), &before.records)?;
        for Announcement { key, volume, incarnation, operations, .. } in announced.all() {
            let heard = match state.grant(&key, &volume) {
                Some((_, grant)) if grant.incarnation == incarnation => grant.heard,
                _ => continue,
            };
            let operations = operations.into_iter().filter(|(seq, _)| *seq > heard).collect();
            state.apply(HomeRecord::Applying { key, volume, operations });
        }
        let announced = Arc::new(Mutex::new(announced));
        let live = Arc::new(Mutex::new(Live::new(state)));
        let source = live.clone();
        let snapshot = Arc::new(move |cut: &mut dyn FnMut()| {
            let live = source.lock();
            cut();
            live.state.to_bytes()
        });
        let log = found.growing_to(log_len).start(host, &disk.tasks(host), snapshot).await?;
        let source = announced.clone();
        let snapshot = Arc::new(move |cut: &mut dyn FnMut()| {
            let announced = source.lock();
            cut();
            announced.all().to_bytes()
        });
        let announcements = before.growing_to(log_len).start(host, &disk.tasks(host), snapshot).await?;
        let log = Ledger::new(log, (announcements, announced), &exports);
        live.lock().log = Some(log.clone());
        let mut volumes = BTreeMap::new();
        for (name, fs) in exports {
            let volume = Exported::open(host, &live, &name, fs);
            let volume = volume.await.map_err(|error| HomeError::Export { name: name.clone(), error })?;
            volumes.insert(name, volume);
        }
        log.settled().await.map_err(HomeError::Durable)?;
        let run = host.random.next_u64() | 1;
        Ok(Home(Arc::new(Inner {
            host: host.clone(),
            run,
            disk,
            connection_count: AtomicU64::new(0),
            live,
            log,
            volumes,
        })))
    }

    /// Ends the home, with its state durable. Sessions must have ended before.
    pub async fn close(&self) -> Result<(), HomeError> {
        self.0.log.close().await.map_err(HomeError::Durable)
    }

    /// Returns a copy of the state, for tests.
    pub fn state(&self) -> HomeState {
        self.0.live.lock().state.clone()
    }
}

impl Service for Home {
    fn connected(&self, peer: PeerKey, push: Arc<dyn Push>) -> Arc<dyn Session> {
        Arc::new(session::Connection::new(self.0.clone(), peer, push))
    }

    fn knows(&self, peer: PeerKey) -> bool {
        self.0.live.lock().state.serves(&peer.0)
    }
}
