//! Makes the stores of members anew whose disks were replaced.
//!
//! A start does so for each empty place that it finds ([`stores`](crate::stores)). A leader that
//! runs goes by a like rule: as many others are in service as a start needs, and the place says
//! itself that it is empty. One whose disk is only not mounted says that it is missing, since its
//! node remembers what it made where. The store is out of service, so it gets seals and maps like
//! any that comes back. Then maintenance fills it.

use crate::config::KnownNode;
use crate::maps::ChangeError;
use crate::seats::SessionBook;
use crate::spread::{LOOK_PERIOD, MoveError, Spread};
use std::time::Duration;
use storage::api::Presence;
use storage::wire::StoreName;
use thiserror::Error;
use types::StoreId;

/// How long a node may take to say what is at a place. No store moves meanwhile.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Why a lost store was not made anew.
#[derive(Debug, Error)]
enum RefillError {
    #[error("{in_service} of the other stores are in service, and {least} are needed: bring back more of them first")]
    TooFew { in_service: usize, least: usize },
    #[error("the maps do not say so: {0}")]
    Maps(#[from] ChangeError),
    #[error("{0}")]
    Make(#[from] MoveError),
}

impl Spread {
    /// Why a store was not made anew; empty if there is no such one.
    pub(crate) fn trouble_of_places(&self) -> String {
        let looks = self.looks.lock();
        looks.values().map(|(_, trouble)| trouble).find(|trouble| !trouble.is_empty()).cloned().unwrap_or_default()
    }

    /// Makes the stores of members anew that are out of service, and whose places are empty.
    pub(crate) async fn refill_places(&self) {
        let away = self.members.stores_away();
        self.looks.lock().retain(|store, _| away.iter().any(|other| other == *store));
        for store in away.iter() {
            let Some(at) = self.at_nodes.lock().get(&store).cloned() else { continue };
            let now = self.host.clock.now();
            let is_due = self.looks.lock().get(&store).is_none_or(|(seen, _)| now >= *seen + LOOK_PERIOD);
            if !is_due || self.members.of(at.node).is_none() {
                continue;
            }
            let mut trouble = String::new();
            if self.is_place_empty(store, &at).await
                && let Err(error) = self.refill(store, &at).await
            {
                trouble = format!("{store} at {} is lost, and is not made anew: {error}", self.name(at.node));
                if self.looks.lock().get(&store).is_none_or(|(_, before)| *before != trouble) {
                    tracing::warn!(%store, node = %at.node, "its place is empty, and it is not made anew: {error}");
                }
            }
            self.looks.lock().insert(store, (self.host.clock.now(), trouble));
        }
    }

    /// True if another store than this one is to be made anew.
    pub(crate) async fn has_empty_place_of_other(&self, than: StoreId) -> bool {
        for store in self.members.stores_away().iter().filter(|store| *store != than) {
            let at = self.at_nodes.lock().get(&store).cloned();
            let at = at.filter(|at| self.members.of(at.node).is_some());
            if let Some(at) = at
                && self.is_place_empty(store, &at).await
            {
                return true;
            }
        }
        false
    }

    async fn is_place_empty(&self, store: StoreId, at: &KnownNode) -> bool {
        let remote = self.places.reach(at, StoreName { fs: self.config.fs, store });
        let answer = host::timeout(&*self.host.clock, ANSWER_TIME_MAX, remote.presence()).await;
        matches!(answer, Ok(Ok(Presence::Empty(_))))
    }

    async fn refill(&self, store: StoreId, at: &KnownNode) -> Result<(), RefillError> {
        let away = self.members.stores_out_of_service().await;
        let (in_service, least) = (self.switches.len() - away.iter().count(), self.config.least_stores());
        if in_service < least {
            return Err(RefillError::TooFew { in_service, least });
        }
        // The maps say it before there is a store that lacks everything.
        if self.maps.config().map_err(ChangeError::from)?.is_whole {
            self.maps.change(|config| config.is_whole = false).await?;
        }
        let remote = self.make(store, at).await?;
        self.members.note_new_store(store);
        self.switch(store).into_iter().for_each(|switch| switch.set(remote.clone()));
        self.members.compare_stores();
        tracing::warn!(%store, node = %at.node, "its place was empty: it is made anew, and the others fill it");
        Ok(())
    }
}
