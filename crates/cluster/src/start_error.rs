//! Why a file system does not start.

use crate::config::ConfigError;
use manager::api::ManagerError;
use storage::api::StorageError;
use storage::server::StoreOpenError;
use stripe::{StoreSet, Stripe, StripeError};
use thiserror::Error;
use types::{FsError, FsUuid, NodeId, StoreId};

/// Why a file system did not start. Nothing was changed, except that stores may have been brought
/// up to date.
#[derive(Debug, Error)]
pub enum StartError {
    /// The numbers asked for are invalid.
    #[error("{0}")]
    Impossible(ConfigError),
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
    /// A store has moved to a node, but its place says otherwise.
    #[error(
        "{store} has moved to {node}, but the data folder says that it is elsewhere: put back the newest stores.json; do not give --store for it"
    )]
    Moved {
        /// The store.
        store: StoreId,
        /// Where the maps say that it is.
        node: NodeId,
    },
    /// The maps name another machine as the first node.
    #[error(
        "another node has become the first node of this file system, and has what was in this data folder: to use this machine \
         again, let it join with another data folder (`starling node invite` there). If that is wrong, node.pem in this folder is not the right one: put that back"
    )]
    Succeeded,
    /// The folder of this node's voter is lost, and other nodes have voters.
    #[error(
        "the consensus folder is lost or damaged, and other nodes vote: they elect another first node. Start this one again when \
         `starling nodes` works at one of them; if more voters are lost than the others make up for, see `starling node recover`"
    )]
    VoterLost,
    /// Other nodes vote with this one, and it cannot reach them.
    #[error("other nodes vote with this one, so it cannot start alone: add --listen ADDRESS:PORT")]
    OthersVote,
    /// The voters did not decide what this start needs.
    #[error(
        "the voters have not decided on the maps: {0}. This is tried again; if no majority of the voters is up, start more of them"
    )]
    NotDecided(String),
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
    Consensus(consensus::VoterOpenError),
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
    Store(StoreId, StoreOpenError),
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

fn what_to_do(stores: &StoreSet) -> String {
    match stores.iter().next() {
        Some(_) => format!("bring back {stores} as last used, and start again"),
        None => {
            "all stores answer, so some hold old copies or have rotted; put back the right ones, and start again".into()
        }
    }
}

impl StartError {
    pub(crate) fn refused(stripe: &Stripe, error: StripeError) -> StartError {
        let stores = match error {
            StripeError::StoresNeeded { stores, .. } => stores,
            _ => stripe.out_of_service(),
        };
        StartError::Refused { error, stores }
    }

    pub(crate) fn of_manager(stripe: &Stripe, error: ManagerError) -> StartError {
        match error {
            ManagerError::Stores(error) => StartError::refused(stripe, error),
            error => StartError::Manager(error),
        }
    }
}
