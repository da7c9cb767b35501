//! Removes a node from the file system, with the stores that are lost with it.
//!
//! A store that is lost is made anew at the first node, empty, and maintenance fills it from the
//! others: redundancy first. Nodes that have fewer stores take it from there later ([`Spread`]). A
//! first node that has no disks of its own has it made at the node with fewest stores.
//! The others must be known to have everything. A small segment may lie wholly on stores that are
//! not there, so no look at the others alone can tell that: it is known if the stores were compared
//! when all were there, and nothing was lacking. The maps say whether that was so, for a leader
//! that has not seen them all.
//!
//! As in a drain, all nodes reach the store through the first one before its new place is recorded.
//! A crash leaves the store where it was, or made anew at a node without stores: the same request
//! goes on. It may need `accepts_loss` then: the maps say that a store lacks everything before
//! there is one, and while the lost one is away no look at all stores can correct them.

use crate::config::KnownNode;
use crate::maps::ChangeError;
use crate::seats::SessionBook;
use crate::spread::{Made, MoveError, RecordError, Spread};
use crate::stores::Absent;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use storage::api::Presence;
use storage::wire::StoreName;
use stripe::StoreSet;
use thiserror::Error;
use types::StoreId;

/// How long a store may take to answer before it counts as lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Why a node was not removed. Nothing was changed, unless the error says so.
#[derive(Debug, Error)]
pub enum RemovalError {
    /// No node has this name.
    #[error("there is no node {0}: see `starling nodes`")]
    NoSuchNode(String),
    /// It is the first node.
    #[error(
        "{0} leads the file system: end it, and give this command at another node then. If no other one votes (`starling nodes`), \
         drain it first, end it, and make another one the first with `starling node recover` there"
    )]
    IsFirst(String),
    /// The node has a session.
    #[error(
        "node {0} is up: end it there with `starling down`; one that has died is down after its lease, five seconds, or a few more while its managers are opened elsewhere: try again then"
    )]
    IsUp(String),
    /// The node has stores.
    #[error(
        "node {name} has {stores}: if its disks are lost for good, say --dead, and the stores are made anew at another node"
    )]
    HasStores {
        /// The node.
        name: String,
        /// Its stores.
        stores: StoreSet,
    },
    /// It would leave another node with more stores than may be lost.
    #[error(
        "without {name}, {at} would have {count} stores, and parity makes up for the loss of {parity}: if {at} were lost then, so would be data. Let another machine \
         join with --store first, or say --accept-risk"
    )]
    Crowds {
        /// The node that was to drain.
        name: String,
        /// Another node.
        at: String,
        /// How many stores this one would have.
        count: usize,
        /// How many stores may be lost.
        parity: usize,
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
    #[error(
        "{0} is out of service, too: bring that back first, since the lost stores are made anew from the others. If its node is lost for good, \
         too, and parity makes up for all of them, --accept-loss goes on"
    )]
    OthersAway(StoreSet),
    /// It is not known whether the others have all data.
    #[error(
        "the other stores may not have everything that {stores} had: one of them was made anew or lacked something when they were compared last. If node {name} \
         cannot be started again until `starling status` says that redundancy is whole, --accept-loss gives up what only it had"
    )]
    NotCompared {
        /// The node.
        name: String,
        /// Its stores.
        stores: StoreSet,
    },
    /// The place of another store is being changed.
    #[error("the places of stores are being changed: see `starling nodes`, and try again")]
    Busy,
    /// Other nodes go on to ask the lost store.
    #[error("not all nodes have learned that {0} is lost: try again")]
    NotLearned(StoreId),
    /// No store can be made.
    #[error("{store} cannot be made anew: {error}")]
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
    #[error("the new place of {0} cannot be recorded: {1}. Mend that, and try again")]
    NotRecorded(StoreId, io::Error),
    /// The data folder may have been changed, now or before.
    #[error("whether the new place of {0} is recorded is unknown ({1}): start the machine that leads again")]
    Unknown(StoreId, io::Error),
}

/// How a node is removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Removal {
    /// Its stores are lost for good. They are made anew.
    pub is_dead: bool,
    /// What only its stores had is given up.
    pub accepts_loss: bool,
}

impl Spread {
    /// Removes the node with this name, which is down. Returns its stores.
    pub async fn remove_node(&self, name: &str, how: Removal) -> Result<StoreSet, RemovalError> {
        let _turn = self.take_turn().await.map_err(|_| RemovalError::Busy)?;
        let config = self.maps.config().map_err(ChangeError::from)?;
        if name == self.members.first_name() {
            return Err(RemovalError::IsFirst(name.to_string()));
        }
        let found = config.members.iter().find(|(_, member)| member.name == name);
        let Some((&node, _)) = found else { return Err(RemovalError::NoSuchNode(name.to_string())) };
        if self.members.of(node).is_some() {
            return Err(RemovalError::IsUp(name.to_string()));
        }
        let unsure = *self.unsure.lock();
        if let Some(store) = unsure {
            return Err(RemovalError::Unknown(store, io::Error::other("it was not known before")));
        }
        let at_nodes = self.at_nodes.lock().clone();
        let there: BTreeMap<StoreId, KnownNode> = at_nodes.into_iter().filter(|(_, at)| at.node == node).collect();
        let stores: StoreSet = there.keys().copied().collect();
        if !there.is_empty() {
            if !how.is_dead {
                return Err(RemovalError::HasStores { name: name.to_string(), stores });
            }
            self.check_lost(name, &there, how).await?;
            let is_found_lacking = self.members.are_stores_whole() == Some(false);
            let is_known = config.is_whole && !is_found_lacking || self.members.has_compared_all().await;
            if !how.accepts_loss && !is_known {
                return Err(RemovalError::NotCompared { name: name.to_string(), stores });
            }
        }
        for (store, at) in &there {
            self.make_anew(name, *store, at).await?;
        }
        self.tell_maps().await?;
        if self.members.of(node).is_some() {
            // It has come meanwhile. Its programs may have changed something.
            return Err(RemovalError::IsUp(name.to_string()));
        }
        match self.maps.change(|config| config.remove_member(node)).await {
            // It is decided. Stores that were not told learn it with the next change.
            Ok(_) | Err(ChangeError::Push(_)) => {}
            Err(error) => return Err(error.into()),
        }
        tracing::info!(%node, name, ?stores, "the node is removed");
        Ok(stores)
    }

    /// Refuses unless these stores of a node are lost, and all others are in service. A loss may be
    /// accepted while the nodes of those are down, too, and parity makes up for all.
    async fn check_lost(
        &self,
        name: &str,
        there: &BTreeMap<StoreId, KnownNode>,
        how: Removal,
    ) -> Result<(), RemovalError> {
        for (store, at) in there {
            self.check_silent(name, *store, at).await?;
        }
        let away = self.members.stores_out_of_service().await;
        let others: StoreSet = away.iter().filter(|store| !there.contains_key(store)).collect();
        if others.iter().next().is_none() {
            return Ok(());
        }
        let at_nodes = self.at_nodes.lock().clone();
        let is_down = |store| at_nodes.get(&store).is_some_and(|at| self.members.of(at.node).is_none());
        let is_made_up_for = there.len() + others.iter().count() <= usize::from(self.config.parity);
        if how.accepts_loss && is_made_up_for && others.iter().all(is_down) {
            tracing::warn!(%others, name, "these stores are out of service, too, and the node is removed all the same");
            return Ok(());
        }
        Err(RemovalError::OthersAway(others))
    }

    /// Refuses if a store of a node answers.
    async fn check_silent(&self, name: &str, store: StoreId, at: &KnownNode) -> Result<(), RemovalError> {
        let remote = self.places.reach(at, StoreName { fs: self.config.fs, store });
        let answer = host::timeout(&*self.host.clock, ANSWER_TIME_MAX, remote.presence()).await;
        match answer {
            Ok(Ok(Presence::Store(_))) => Err(RemovalError::Answers { name: name.to_string(), store }),
            _ => Ok(()),
        }
    }

    /// The other nodes that may have a lost store: first the one which has fewest.
    fn takers(&self) -> Vec<KnownNode> {
        let places = self.all_places();
        let count = |at: &KnownNode| places.values().filter(|place| **place == at.node).count();
        let mut takers = self.members.takers();
        takers.sort_by_key(|at| (count(at), at.node));
        takers
    }

    /// An empty store in place of a lost one: here, or at the first other node that takes it.
    async fn make_anywhere(&self, store: StoreId) -> Result<(Made, Option<KnownNode>), RemovalError> {
        let mut failed = io::Error::other("no node that is up takes stores: have one join with --store");
        if self.places.has_room_here() {
            match self.make_here(store).await {
                Ok(Ok(made)) => return Ok((Made::Here(made), None)),
                Ok(Err(error)) => failed = error,
                Err(error) => failed = io::Error::other(error),
            }
        }
        for taker in self.takers() {
            match self.make(store, &taker).await {
                Ok(made) => return Ok((Made::There(made), Some(taker))),
                Err(error) => failed = io::Error::other(format!("at {}: {error}", self.name(taker.node))),
            }
        }
        Err(RemovalError::Make { store, error: failed })
    }

    /// Has the maps say whether the stores have everything.
    async fn say_whole(&self, is_whole: bool) -> Result<(), RemovalError> {
        self.maps.change(|config| config.is_whole = is_whole).await?;
        Ok(())
    }

    /// Makes a store of a node anew, empty.
    async fn make_anew(&self, name: &str, store: StoreId, at: &KnownNode) -> Result<(), RemovalError> {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        let (made, taker) = self.make_anywhere(store).await?;
        let mut at_nodes = self.at_nodes.lock().clone();
        match taker {
            Some(taker) => at_nodes.insert(store, taker),
            None => at_nodes.remove(&store),
        };
        self.through_here.lock().insert(store);
        let given_up = async {
            self.until_stop().await;
            MoveError::Stopped
        };
        let ready = match self.come_through_here(given_up).await {
            // It may have come back meanwhile.
            Ok(()) => self.check_silent(name, store, at).await,
            Err(MoveError::Maps(error)) => Err(RemovalError::Maps(error)),
            Err(_) => Err(RemovalError::NotLearned(store)),
        };
        // The maps say it before there is a store that lacks everything.
        let was_whole = self.maps.config().map_err(ChangeError::from)?.is_whole;
        let ready = match ready {
            Ok(()) if was_whole => self.say_whole(false).await,
            ready => ready,
        };
        let recorded = match ready {
            Ok(()) => {
                let recorded = self.in_time(self.places.record(&at_nodes)).await;
                recorded.unwrap_or_else(|_| Err(RecordError::Unknown(late())))
            }
            Err(error) => {
                self.through_here.lock().remove(&store);
                self.try_tell_maps().await;
                return Err(error);
            }
        };
        if let Err(RecordError::Unknown(error)) = recorded {
            *self.unsure.lock() = Some(store);
            self.switch(store).into_iter().for_each(|switch| switch.set(Arc::new(Absent)));
            return Err(RemovalError::Unknown(store, error));
        }
        self.through_here.lock().remove(&store);
        if let Err(RecordError::Unchanged(error)) = recorded {
            if was_whole {
                self.say_whole(true).await?;
            }
            self.try_tell_maps().await;
            return Err(RemovalError::NotRecorded(store, error));
        }
        self.members.note_new_store(store);
        self.members.compare_stores();
        *self.at_nodes.lock() = at_nodes;
        match made {
            Made::Here(server) => {
                self.switch(store).into_iter().for_each(|switch| switch.set_server(&server));
                self.servers.lock().push(server);
            }
            Made::There(remote) => self.switch(store).into_iter().for_each(|switch| switch.set(remote.clone())),
        }
        Ok(())
    }
}
