//! Moves stores away from other nodes, while all are used: a node that drains can then be removed.
//!
//! Other nodes send their requests straight to the node that has a store, so nothing here can hold
//! them up. A move therefore has three parts:
//!
//! 1. The store is copied while other nodes use it as before. This takes almost all of the time.
//! 2. The maps say that all nodes reach the store through the first one, which passes requests on.
//!    When each session has learned these maps, and requests that were sent before have ended, all
//!    changes come through here.
//! 3. What changed meanwhile is copied, and the new place is recorded, as when a store of the first
//!    node moves ([`spread`](crate::spread)).
//!
//! The maps say until the end where the store is, so a node that looks at them finds it if the
//! first node is lost. The record of the places changes only at the end. So a crash leaves the
//! store where it was, and the next start begins anew; or it has moved, and the maps follow.

use crate::config::{DrainRate, FIRST_NODE};
use crate::lease::with_drift;
use crate::machine::PUT_TIMEOUT;
use crate::maps::ChangeError;
use crate::removal::RemovalError;
use crate::spread::{MoveError, Spread, TICK};
use host::{Either, first};
use std::time::Duration;
use types::StoreId;

/// How long sessions may take to learn new maps. They ask for them several times in a lease.
const LEARN_TIME_MAX: Duration = Duration::from_secs(60);

impl Spread {
    /// Has a node drain from now on at this rate, the first one too, or stop draining. A copy that
    /// is under way follows another rate.
    pub async fn drain_node(&self, name: &str, drains: Option<DrainRate>) -> Result<(), RemovalError> {
        let config = self.maps.config().map_err(ChangeError::from)?;
        let members = config.members.iter().map(|(node, member)| (*node, &member.name[..]));
        let mut nodes = members.chain([(FIRST_NODE, self.members.first_name())]);
        let found = nodes.find(|(_, known)| *known == name);
        let node = found.ok_or_else(|| RemovalError::NoSuchNode(name.to_string()))?.0;
        if config.draining.get(&node).copied() != drains {
            let change = |config: &mut crate::FsConfig| match drains {
                Some(rate) => drop(config.draining.insert(node, rate)),
                None => drop(config.draining.remove(&node)),
            };
            self.maps.change(change).await?;
        }
        Ok(())
    }

    /// Ends the move of a store away from another node, while all changes come through here.
    pub(crate) async fn with_all_through_here(
        &self,
        store: StoreId,
        end: impl Future<Output = Result<(), MoveError>> + Send,
    ) -> Result<(), MoveError> {
        self.through_here.lock().insert(store);
        let moved = async {
            self.come_through_here(self.until_given_up(store)).await?;
            end.await
        };
        let moved = moved.await;
        if !matches!(moved, Err(MoveError::Unknown(_))) {
            self.through_here.lock().remove(&store);
            self.try_tell_maps().await;
        }
        moved
    }

    /// Waits until no session sends requests to the stores that come through here any other way, or
    /// that is given up.
    pub(crate) async fn come_through_here(
        &self,
        given_up: impl Future<Output = MoveError> + Send,
    ) -> Result<(), MoveError> {
        self.tell_maps().await.map_err(MoveError::Maps)?;
        let epoch = self.maps.maps().epoch;
        let learn = async {
            while !self.members.all_know(epoch) {
                self.host.clock.sleep(TICK).await;
            }
            // Requests that were sent before end within this time.
            self.host.clock.sleep(with_drift(PUT_TIMEOUT)).await;
        };
        let learned = host::timeout(&*self.host.clock, LEARN_TIME_MAX + with_drift(PUT_TIMEOUT), learn);
        match first(learned, given_up).await {
            Either::Left(learned) => learned.map_err(|_| MoveError::NotLearned),
            Either::Right(why) => Err(why),
        }
    }
}
