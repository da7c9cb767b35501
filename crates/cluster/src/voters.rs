//! Which nodes have voters, as the leader of the group decides it.
//!
//! One voter while fewer than three nodes could have one; three from three nodes on, five from five
//! on: a majority of two or of four voters bears the loss of no more voters than one of one or
//! three. The maps say which node is to have which voter, and give each an id that was never used
//! before. Its node makes the voter when it learns the maps, and then the leader brings it into the
//! group. A voter that is away stays one: a node that is removed has none any more.
//!
//! The leader appoints others only if they could go on without its machine. Otherwise a voter that
//! is elected would wait for the stores of a machine that waits for its own election.

use crate::config::{FIRST_NODE, FsConfig, VOTER_COUNT_MAX};
use crate::members::Members;
use consensus::Consensus;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::{NodeId, StoreId};

/// Time between two looks at who should vote.
const TICK: Duration = Duration::from_secs(1);
/// How long a change of the voters may take before it is given up for now.
const SET_TIME_MAX: Duration = Duration::from_secs(20);

/// The nodes that are to have voters. `own` is the leader's node, `electable` are the nodes that
/// take voters and are there now.
fn wanted(config: &FsConfig, own: NodeId, electable: &BTreeSet<NodeId>, goes_on_without_own: bool) -> BTreeSet<NodeId> {
    let mut all = vec![own];
    if goes_on_without_own {
        let has_voter = |node: &NodeId| config.voters.values().any(|at| at == node);
        all.extend(config.voters.values().filter(|node| **node != own));
        all.extend(electable.iter().filter(|node| **node != own && !has_voter(node)));
    }
    let count = all.len().min(VOTER_COUNT_MAX);
    all.into_iter().take(if count % 2 == 0 { count - 1 } else { count }).collect()
}

/// True if the others can start without the machine of the first node, whose stores are those that
/// no member has.
fn goes_on_without_first(config: &FsConfig) -> bool {
    let own = config.stores().filter(|store: &StoreId| config.place(*store) == FIRST_NODE).count();
    let rest = usize::from(config.store_count) - own;
    config.first_member.is_none() || own <= usize::from(config.parity) && rest >= config.least_working()
}

/// Gives voters to these nodes, and to no other ones.
fn appoint(config: &mut FsConfig, nodes: &BTreeSet<NodeId>) {
    config.voters.retain(|_, node| nodes.contains(node));
    for node in nodes {
        if config.voter_of(*node).is_none() {
            // There is room for it, and ids do not run out.
            let _ = config.add_voter(*node);
        }
    }
}

impl Members {
    /// Has the right nodes vote, from now until this stops. `own` is the node of this machine's
    /// voter.
    pub async fn keep_voters(self: Arc<Self>, own: NodeId) {
        let Some(voter) = self.keeper().voter().cloned() else { return };
        while self.is_at_work() {
            if let Err(why) = self.look_at_voters(&voter, own).await {
                tracing::info!("the voters stay as they are for now: {why}");
            }
            self.host().clock.sleep(TICK).await;
        }
    }

    async fn look_at_voters(&self, voter: &Consensus, own: NodeId) -> Result<(), String> {
        let config = self.keeper().config().map_err(|e| e.to_string())?;
        let wanted = wanted(&config, own, &self.electable(), goes_on_without_first(&config));
        let has = |config: &FsConfig| config.voters.values().copied().collect::<BTreeSet<NodeId>>();
        if has(&config) != wanted {
            tracing::info!(nodes = ?wanted, "these nodes are to vote");
            let changed = self.keeper().change(|config| appoint(config, &wanted)).await;
            changed.map_err(|e| e.to_string())?;
        }
        let config = self.keeper().config().map_err(|e| e.to_string())?;
        // The maps say where voters are.
        let voters: BTreeMap<u64, String> = config.voters.keys().map(|voter| (*voter, String::new())).collect();
        if voter.voters() != voters {
            let set = host::timeout(&*self.host().clock, SET_TIME_MAX, voter.set_voters(&voters)).await;
            set.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            tracing::info!(voters = ?voters.keys(), "these vote from now on");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MemberEntry, first_manager_map, first_voters};
    use types::FsUuid;

    fn member(name: &str) -> MemberEntry {
        MemberEntry { name: name.into(), fingerprint: [name.len() as u8; 32], address: "a:1".into() }
    }

    /// With this many members, and a store at each of the first nodes.
    fn config(members: usize) -> FsConfig {
        let mut config = FsConfig {
            fs: FsUuid([1; 16]),
            store_count: 3,
            parity: 1,
            block_size: 65536,
            store_capacity_bytes: 1 << 30,
            managers: first_manager_map(1),
            members: BTreeMap::new(),
            next_node: 1,
            places: BTreeMap::new(),
            first_node: Some([9; 32]),
            draining: BTreeSet::new(),
            through_first: BTreeSet::new(),
            first_member: Some(member("first")),
            voters: first_voters(),
            next_voter: 2,
        };
        for number in 1..=members {
            config.add_member(member(&"m".repeat(number))).expect("add");
        }
        config.places = (1..=members.min(2) as u16).map(|at| (StoreId::new(at), NodeId::new(at))).collect();
        config
    }

    fn nodes(all: &[u16]) -> BTreeSet<NodeId> {
        all.iter().copied().map(NodeId::new).collect()
    }

    #[test]
    fn the_number_of_voters_is_odd_and_follows_the_nodes() {
        let mut config = config(6);
        for (electable, expected) in [
            (&[][..], &[0][..]),
            (&[1], &[0]),
            (&[1, 2], &[0, 1, 2]),
            (&[1, 2, 3], &[0, 1, 2]),
            (&[3, 4, 5, 6], &[0, 1, 2, 3, 4]),
            (&[], &[0, 1, 2, 3, 4]),
        ] {
            let wanted = wanted(&config, FIRST_NODE, &nodes(electable), true);
            assert_eq!(wanted, nodes(expected), "{electable:?}");
            let before = config.clone();
            appoint(&mut config, &wanted);
            assert_eq!((before.may_become(&config), config.check()), (Ok(()), Ok(())));
        }
        assert_eq!(config.voters.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        // One that was removed makes room for another.
        config.remove_member(NodeId::new(2));
        assert_eq!(wanted(&config, FIRST_NODE, &nodes(&[]), true), nodes(&[0, 1, 3]));
        assert_eq!(wanted(&config, FIRST_NODE, &nodes(&[6]), true), nodes(&[0, 1, 3, 4, 6]));
        assert_eq!(wanted(&config, FIRST_NODE, &nodes(&[6]), false), nodes(&[0]));
        assert_eq!(wanted(&config, NodeId::new(4), &nodes(&[4, 6]), true), nodes(&[0, 1, 3, 4, 6]));
    }

    #[test]
    fn others_vote_only_if_they_can_go_on() {
        assert!(goes_on_without_first(&config(2)));
        assert!(!goes_on_without_first(&config(1)), "two stores are at the first node");
        let elected = FsConfig { first_member: None, ..config(1) };
        assert!(goes_on_without_first(&elected), "it has no stores of its own");
    }
}
