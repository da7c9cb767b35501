//! The consensus engine: agrees on the maps of a file system (docs/core.md#maps).
//!
//! It owns one voter of a Raft group (openraft), and the folder with the state that this voter must
//! not forget. The group agrees on one value: the maps in force, an epoch and opaque bytes. A
//! change names the epoch that it replaces, and is refused if another change came first. No data of
//! files passes through here.
//!
//! It must survive a crash or a loss of power at any point: an acknowledged change is still there,
//! and another one is there or not. It need not survive the loss of its folder: every store keeps
//! the maps too, and a start makes a new group from the newest of them ([`Consensus::create`]). A
//! folder that has rotted says so, and never goes back to an older state by itself.
//!
//! The group has one voter, in the process of the file system. So its log is short, its network has
//! no peers, and it sets no timers. More voters need a [`network`] and the usual timers; log, vote
//! and snapshot are kept as for any group.
//!
//! - [`runtime`]: openraft on the host's clock, tasks and randomness.
//! - [`image`], [`files`]: the bytes of the folder, and how they become durable.
//! - [`store`]: openraft's view of these bytes.

pub mod files;
pub mod image;
pub mod network;
pub mod runtime;
pub mod store;
#[doc(hidden)]
pub mod testing;

use files::{LoadError, VoterFiles};
use host::{Disk, Host};
use image::{Image, VoterChange, VoterState};
use network::NoPeers;
use openraft::error::{ClientWriteError, Fatal, RaftError};
use openraft::{
    BasicNode, CommittedLeaderId, Config, LogId, Membership, Raft, ServerState, SnapshotPolicy, StoredMembership,
};
use runtime::{HostRuntime, within};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::Arc;
use store::Store;
use thiserror::Error;
use types::{FsUuid, Maps};

/// Length of maps, in bytes, at most.
pub const MAPS_LEN_MAX: usize = 64 * 1024;
/// Number of log entries after which a snapshot replaces them.
const LOG_LEN_MAX: u64 = 16;
/// The id of the only voter.
const VOTER: u64 = 1;
/// Raft's heartbeat interval, in milliseconds: a day, since a single voter needs no timers.
const TICK_MS: u64 = 24 * 3600 * 1000;

/// The outcome of an entry: the maps' epoch; `Err` with the present epoch if the change expected
/// another.
pub type VoteOutcome = Result<u64, u64>;

openraft::declare_raft_types!(
    /// The types of this Raft group.
    pub Types:
        D = VoterChange,
        R = VoteOutcome,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = HostRuntime,
);

/// Why no voter could be opened from a folder.
#[derive(Debug, Error)]
pub enum VoterOpenError {
    /// The folder has no state.
    #[error("it is empty")]
    Empty,
    /// The folder cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The engine does not start.
    #[error("the engine does not start: {0}")]
    Engine(Box<Fatal<u64>>),
}

/// Why maps were not replaced.
#[derive(Debug, Error)]
pub enum ProposeError {
    /// Other maps are in force than the caller expected.
    #[error("the maps of epoch {expected} were to be replaced, but those of epoch {current} are in force")]
    Stale {
        /// The epoch that the caller expected.
        expected: u64,
        /// The epoch in force.
        current: u64,
    },
    /// The maps are longer than [`MAPS_LEN_MAX`] bytes.
    #[error("maps of {0} bytes are longer than the {MAPS_LEN_MAX} bytes allowed")]
    TooLong(usize),
    /// The voter does not lead its group; nothing was changed.
    #[error("this voter does not lead: {0}")]
    NotLeader(String),
    /// The engine has stopped. Whether the maps were replaced is unknown until the next start.
    #[error("the engine has stopped ({0}); whether the maps were replaced shows at the next start")]
    Stopped(String),
}

/// A voter's state, for `status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Raft's term.
    pub term: u64,
    /// Entries agreed on since the group was made.
    pub agreed_count: u64,
    /// Epoch of the maps in force.
    pub epoch: u64,
    /// Why the voter has stopped, if it has.
    pub stopped: Option<String>,
}

/// A running voter.
pub struct Consensus {
    host: Host,
    fs: FsUuid,
    raft: Raft<Types>,
    store: Store,
}

impl Consensus {
    /// Creates a group whose first state is `maps`, and replaces anything in the folder.
    pub async fn create(
        host: &Host,
        disk: &Arc<dyn Disk>,
        fs: FsUuid,
        maps: Maps,
    ) -> Result<Consensus, VoterOpenError> {
        // The state after the first entry of any group, which says who votes, and a snapshot. So
        // the group has its maps from the beginning.
        let first = LogId::new(CommittedLeaderId::new(0, 0), 0);
        let nodes = BTreeMap::from([(VOTER, BasicNode::default())]);
        let membership = Membership::new(vec![BTreeSet::from([VOTER])], nodes);
        let state =
            VoterState { applied: Some(first), membership: StoredMembership::new(Some(first), membership), maps };
        let image = Image { purged: Some(first), snapshot: Some(state), ..Image::default() };
        let mut files = VoterFiles::create(disk, fs).await.map_err(LoadError::Disk)?;
        files.write(&image).await.map_err(LoadError::Disk)?;
        Consensus::start(host, files, image).await
    }

    /// Opens the voter whose state is in the folder.
    pub async fn open(host: &Host, disk: &Arc<dyn Disk>) -> Result<Consensus, VoterOpenError> {
        let (files, image) = VoterFiles::load(disk).await?.ok_or(VoterOpenError::Empty)?;
        Consensus::start(host, files, image).await
    }

    async fn start(host: &Host, files: VoterFiles, image: Image) -> Result<Consensus, VoterOpenError> {
        let fs = files.fs();
        let store = Store::new(files, image);
        let config = Config {
            cluster_name: fs.to_string(),
            heartbeat_interval: TICK_MS,
            election_timeout_min: 2 * TICK_MS,
            election_timeout_max: 3 * TICK_MS,
            enable_tick: false,
            enable_heartbeat: false,
            enable_elect: false,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(LOG_LEN_MAX),
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let raft = within(host, async {
            let raft = Raft::new(VOTER, Arc::new(config), NoPeers, store.clone(), store.clone()).await?;
            // A voter that led when it stopped leads again at once. Otherwise elect it: there is no
            // other voter.
            if raft.with_raft_state(|state| state.server_state).await? != ServerState::Leader {
                raft.trigger().elect().await?;
            }
            let mut metrics = raft.metrics();
            loop {
                {
                    let now = metrics.borrow_and_update();
                    now.running_state.clone()?;
                    let applied = now.last_applied.map(|id| id.index);
                    if now.state == ServerState::Leader && applied == now.last_log_index {
                        break;
                    }
                }
                if metrics.changed().await.is_err() {
                    return Err(Fatal::Stopped);
                }
            }
            Ok(raft)
        });
        let raft = raft.await.map_err(|fatal| VoterOpenError::Engine(Box::new(fatal)))?;
        Ok(Consensus { host: host.clone(), fs, raft, store })
    }

    /// The file system that the maps are of.
    pub fn fs(&self) -> FsUuid {
        self.fs
    }

    /// The maps in force.
    pub fn maps(&self) -> Maps {
        self.store.state().maps
    }

    /// Replaces the maps of epoch `expected` by others of a higher epoch, durably. After an error,
    /// nothing was changed, except after [`ProposeError::Stopped`] or when the caller stopped
    /// waiting.
    pub async fn propose(&self, expected: u64, maps: Maps) -> Result<(), ProposeError> {
        if maps.bytes.len() > MAPS_LEN_MAX {
            return Err(ProposeError::TooLong(maps.bytes.len()));
        }
        let write = self.raft.client_write(VoterChange { expected, maps });
        match within(&self.host, write).await {
            Ok(response) => match response.data {
                Ok(_) => Ok(()),
                Err(current) => Err(ProposeError::Stale { expected, current }),
            },
            Err(RaftError::APIError(e @ ClientWriteError::ForwardToLeader(_))) => {
                Err(ProposeError::NotLeader(e.to_string()))
            }
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// The voter's state, for `status`.
    pub fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        Status {
            term: now.current_term,
            agreed_count: now.last_applied.map_or(0, |id| id.index + 1),
            epoch: self.maps().epoch,
            stopped: now.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Stops the voter. It writes nothing: everything that counts is durable.
    pub async fn close(&self) {
        // This never fails in this version of openraft, and the voter may have stopped already.
        let _ = within(&self.host, self.raft.shutdown()).await;
    }
}
