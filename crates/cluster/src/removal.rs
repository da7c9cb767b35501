//! Removes a node from the file system, with the stores that are lost with it.
//!
//! A store that is lost is made anew at the first node, empty, and maintenance fills it from the
//! others: redundancy first. Nodes that have fewer stores take it from there later ([`Spread`]).
//! What the others cannot give is looked for first: then the lost store is still needed.
//!
//! The maps forget the old place before the new one is recorded. So a crash in between leaves the
//! store where it was, and one after that leaves a node without stores: the same request goes on.

use crate::cleaner::CleanError;
use crate::config::KnownNode;
use crate::maps::ChangeError;
use crate::seats::SessionBook;
use crate::spread::{RecordError, Spread};
use crate::stores::Absent;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use storage::api::Presence;
use storage::wire::StoreName;
use stripe::StoreSet;
use thiserror::Error;
use types::{SegmentId, StoreId};

/// How long a store may take to answer before it counts as lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Why a node was not removed. Nothing was changed, unless the error says so.
#[derive(Debug, Error)]
pub enum RemovalError {
    /// No member has this name.
    #[error("there is no node {0} that has joined: see `starling nodes`")]
    NoSuchNode(String),
    /// The node has a session.
    #[error("node {0} is up: end it there with `starling down`; one that has died is down after eight seconds")]
    IsUp(String),
    /// The node has stores.
    #[error("node {name} has {stores}: if its disks are lost for good, say --dead, and the stores are made anew here")]
    HasStores {
        /// The node.
        name: String,
        /// Its stores.
        stores: StoreSet,
    },
    /// A store is there.
    #[error("{store} answers at node {name}, so it is not lost: end that node first")]
    Answers {
        /// The node.
        name: String,
        /// Its store.
        store: StoreId,
    },
    /// Other stores do not answer either.
    #[error("{0} is out of service, too: bring that back first, since the lost stores are made anew from the others")]
    OthersAway(StoreSet),
    /// The others do not have all data.
    #[error(
        "without {stores}, {segment} cannot be read, so files would lose data: start node {name} again, and wait until `starling status` \
         says that no segment lacks fragments"
    )]
    HeldBack {
        /// The node.
        name: String,
        /// Its stores.
        stores: StoreSet,
        /// What only they have.
        segment: SegmentId,
    },
    /// It cannot be found out whether the others have all data.
    #[error("the other stores cannot be compared: {0}")]
    Compare(#[from] CleanError),
    /// No store can be made.
    #[error("{store} cannot be made anew here: {error}")]
    Make {
        /// The store.
        store: StoreId,
        /// Why.
        error: io::Error,
    },
    /// The maps were not changed.
    #[error("the maps: {0}")]
    Maps(#[from] ChangeError),
    /// The data folder was not changed.
    #[error("the new place of {0} cannot be recorded: {1}")]
    NotRecorded(StoreId, io::Error),
    /// The data folder may have been changed.
    #[error("whether the new place of {0} is recorded is unknown ({1}): start this node again")]
    Unknown(StoreId, io::Error),
}

impl Spread {
    /// Removes the node with this name, which is down. If it `is_dead`, its stores are lost: they
    /// are made anew here. Returns these.
    pub async fn remove_node(&self, name: &str, is_dead: bool) -> Result<StoreSet, RemovalError> {
        let _turn = self.turn.lock().await;
        let config = self.maps.config().map_err(ChangeError::from)?;
        let found = config.members.iter().find(|(_, member)| member.name == name);
        let Some((&node, _)) = found else { return Err(RemovalError::NoSuchNode(name.to_string())) };
        if self.members.of(node).is_some() {
            return Err(RemovalError::IsUp(name.to_string()));
        }
        let at_nodes = self.at_nodes.lock().clone();
        let there: BTreeMap<StoreId, KnownNode> = at_nodes.into_iter().filter(|(_, at)| at.node == node).collect();
        let stores: StoreSet = there.keys().copied().collect();
        if !there.is_empty() {
            if !is_dead {
                return Err(RemovalError::HasStores { name: name.to_string(), stores });
            }
            self.check_lost(name, &there).await?;
        }
        for store in there.keys() {
            self.make_anew(*store).await?;
        }
        self.maps.change(|config| config.remove_member(node)).await?;
        tracing::info!(%node, name, ?stores, "the node is removed");
        Ok(stores)
    }

    /// Refuses unless these stores of a node are lost, and the others have all data.
    async fn check_lost(&self, name: &str, there: &BTreeMap<StoreId, KnownNode>) -> Result<(), RemovalError> {
        for (store, at) in there {
            let remote = self.places.reach(at, StoreName { fs: self.config.fs, store: *store });
            let answer = host::timeout(&*self.host.clock, ANSWER_TIME_MAX, remote.presence()).await;
            if matches!(answer, Ok(Ok(Presence::Store(_)))) {
                return Err(RemovalError::Answers { name: name.to_string(), store: *store });
            }
        }
        let away = self.members.stores_out_of_service().await;
        let others: StoreSet = away.iter().filter(|store| !there.contains_key(store)).collect();
        if others.iter().next().is_some() {
            return Err(RemovalError::OthersAway(others));
        }
        match self.members.held_back().await? {
            Some(segment) => {
                let stores = there.keys().copied().collect();
                Err(RemovalError::HeldBack { name: name.to_string(), stores, segment })
            }
            None => Ok(()),
        }
    }

    /// Makes a store anew at this node, empty.
    async fn make_anew(&self, store: StoreId) -> Result<(), RemovalError> {
        let failed = |error| RemovalError::Make { store, error };
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let server = match self.make_here(store).await {
            Ok(made) => made.map_err(failed)?,
            Err(_) => return Err(failed(late())),
        };
        let before = {
            let mut at_nodes = self.at_nodes.lock();
            let before = at_nodes.clone();
            at_nodes.remove(&store);
            before
        };
        let recorded = match self.tell_maps().await {
            Ok(()) => {
                let now = self.at_nodes.lock().clone();
                let recorded = self.in_time(self.places.record(&now)).await;
                recorded.unwrap_or_else(|_| Err(RecordError::Unknown(late())))
            }
            Err(error) => {
                *self.at_nodes.lock() = before;
                return Err(error.into());
            }
        };
        match recorded {
            Ok(()) => {}
            Err(RecordError::Unchanged(error)) => {
                *self.at_nodes.lock() = before;
                self.try_tell_maps().await;
                return Err(RemovalError::NotRecorded(store, error));
            }
            Err(RecordError::Unknown(error)) => {
                self.switch(store).into_iter().for_each(|switch| switch.set(Arc::new(Absent)));
                return Err(RemovalError::Unknown(store, error));
            }
        }
        self.switch(store).into_iter().for_each(|switch| switch.set_server(&server));
        self.servers.lock().push(server);
        Ok(())
    }
}
