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
use std::collections::BTreeMap;
use std::time::Duration;
use types::{NodeId, StoreId};

/// How long sessions may take to learn new maps. They ask for them several times in a lease.
const LEARN_TIME_MAX: Duration = Duration::from_secs(60);

/// The node with most of these stores, and how many it has.
fn most(places: &BTreeMap<StoreId, NodeId>) -> Option<(usize, NodeId)> {
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    places.values().for_each(|node| *counts.entry(*node).or_default() += 1);
    counts.into_iter().map(|(node, count)| (count, node)).max()
}

/// Where all stores are once `leaving` has none. Each goes to the node with fewest, as when they
/// move. Without another node that takes stores, they stay.
fn after_drain(
    mut places: BTreeMap<StoreId, NodeId>,
    leaving: NodeId,
    takers: impl Iterator<Item = NodeId>,
) -> BTreeMap<StoreId, NodeId> {
    let takers: Vec<NodeId> = takers.filter(|node| *node != leaving).collect();
    let stores: Vec<StoreId> = places.iter().filter(|(_, at)| **at == leaving).map(|(store, _)| *store).collect();
    for store in stores {
        let count = |node: &NodeId| places.values().filter(|place| *place == node).count();
        if let Some(to) = takers.iter().copied().min_by_key(|node| (count(node), *node)) {
            places.insert(store, to);
        }
    }
    places
}

impl Spread {
    /// Has a node drain from now on at this rate, the first one too, or stop draining. A copy that
    /// is under way follows another rate.
    ///
    /// # Errors
    /// The loss of any one node is survived now, and would not be afterwards, unless the user
    /// `accepts_risk`.
    pub async fn drain_node(
        &self,
        name: &str,
        drains: Option<DrainRate>,
        accepts_risk: bool,
    ) -> Result<(), RemovalError> {
        let config = self.maps.config().map_err(ChangeError::from)?;
        let members = config.members.iter().map(|(node, member)| (*node, &member.name[..]));
        let mut nodes = members.chain([(FIRST_NODE, self.members.first_name())]);
        let found = nodes.find(|(_, known)| *known == name);
        let node = found.ok_or_else(|| RemovalError::NoSuchNode(name.to_string()))?.0;
        if drains.is_some() && !accepts_risk && !config.draining.contains_key(&node) {
            let (places, parity) = (self.all_places(), usize::from(config.parity));
            let is_survived = most(&places).is_none_or(|(count, _)| count <= parity);
            let after = after_drain(places, node, self.taking_nodes(&config).into_iter());
            if let (true, Some((count, at))) = (is_survived, most(&after).filter(|(count, _)| *count > parity)) {
                return Err(RemovalError::Crowds { name: name.into(), at: self.name(at), count, parity });
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_stores_are_after_a_drain_and_who_has_most() {
        let places = |at: &[u16]| -> BTreeMap<StoreId, NodeId> {
            (0..).map(StoreId::new).zip(at.iter().copied().map(NodeId::new)).collect()
        };
        let after = |at: &[u16], leaving, takers: &[u16]| {
            after_drain(places(at), NodeId::new(leaving), takers.iter().copied().map(NodeId::new))
        };
        assert_eq!(after(&[0, 1, 2], 2, &[0, 1, 2]), places(&[0, 1, 0]));
        assert_eq!(after(&[2, 2, 2, 1, 0], 2, &[0, 1, 3]), places(&[3, 0, 1, 1, 0]));
        // A node that takes none keeps what it has.
        assert_eq!(after(&[0, 1, 2], 2, &[0]), places(&[0, 1, 0]));
        assert_eq!(after(&[0, 1, 2], 2, &[2]), places(&[0, 1, 2]));
        assert_eq!(most(&places(&[0, 1, 0])), Some((2, NodeId::new(0))));
        assert_eq!(most(&places(&[])), None);
    }
}
