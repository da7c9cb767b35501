//! Which nodes have voters, as the leader of the group decides it.
//!
//! One voter while fewer than three nodes could have one; three from three nodes on, five from five
//! on: a majority of two or of four voters bears the loss of no more voters than one of one or
//! three. The maps say which node is to have which voter, and give each an id that was never used
//! before. Its node makes the voter when it learns the maps, and then the leader brings it into the
//! group. A voter that is away stays one for ten minutes, and longer if no other node can take its
//! place; one that has lost its memory is replaced at once, under another id.
//!
//! The leader appoints others only if they could go on without its machine. Otherwise a voter that
//! is elected would wait for the stores of a machine that waits for its own election.

use crate::config::{ConfigError, FIRST_NODE, FsConfig, VOTER_COUNT_MAX};
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
/// How long a new voter may take to be brought up to date.
const BRING_IN_TIME_MAX: Duration = Duration::from_secs(10);
/// For how long a node gets no voter after its last one could not be brought up to date.
const AVOIDED_TIME: Duration = Duration::from_secs(300);
/// A voter that is away for longer is replaced if another node can vote.
const AWAY_TIME_MAX: Duration = Duration::from_secs(600);

/// How the nodes stand to voting, as the leader sees them.
#[derive(Default)]
struct Standing {
    /// They are here, and take a voter.
    willing: BTreeSet<NodeId>,
    /// They are here, and take none, or have lost the one that they had.
    unwilling: BTreeSet<NodeId>,
    /// They have been away for [`AWAY_TIME_MAX`], or drain: all others go before them.
    last: BTreeSet<NodeId>,
}

impl Standing {
    /// `present`: the nodes that are here, and whether each takes a voter. `away`: for how long
    /// others have been away. Those that drain get no voter.
    fn of(present: BTreeMap<NodeId, bool>, away: BTreeMap<NodeId, Duration>, draining: &BTreeSet<NodeId>) -> Standing {
        let (willing, unwilling): (BTreeMap<NodeId, bool>, _) = present.into_iter().partition(|(_, takes)| *takes);
        Standing {
            willing: willing.into_keys().filter(|node| !draining.contains(node)).collect(),
            unwilling: unwilling.into_keys().collect(),
            last: {
                let long_away = away.into_iter().filter(|(_, time)| *time >= AWAY_TIME_MAX).map(|(node, _)| node);
                long_away.chain(draining.iter().copied()).collect()
            },
        }
    }

    /// Has these nodes get no voter.
    fn leave_out(&mut self, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            self.willing.remove(&node);
            self.unwilling.insert(node);
        }
    }
}

/// The nodes that are to have voters. `own` is the leader's node. Voters that are here come before
/// those that are away, so that what is left has a majority.
fn wanted(config: &FsConfig, own: NodeId, standing: &Standing, goes_on_without_own: bool) -> BTreeSet<NodeId> {
    let mut all = vec![own];
    if goes_on_without_own {
        let has_voter = |node: &NodeId| config.voters.values().any(|at| at == node);
        let voters = config.voters.values().filter(|node| **node != own && !standing.unwilling.contains(node));
        let (here, away): (Vec<&NodeId>, Vec<&NodeId>) = voters.partition(|node| standing.willing.contains(node));
        let (last, away): (Vec<&NodeId>, Vec<&NodeId>) =
            away.into_iter().partition(|node| standing.last.contains(node));
        let new = standing.willing.iter().filter(|node| **node != own && !has_voter(node));
        all.extend(here.into_iter().chain(away).chain(new).chain(last));
    }
    let count = all.len().min(VOTER_COUNT_MAX);
    all.into_iter().take(if count % 2 == 0 { count - 1 } else { count }).collect()
}

/// True if the others can start without the machine of the leader, at `own`. Members have their
/// stores, those of the first node are at its machine.
pub fn goes_on_without(config: &FsConfig, own: NodeId) -> bool {
    let count = config.stores().filter(|store: &StoreId| config.place(*store) == own).count();
    let rest = usize::from(config.store_count) - count;
    // An elected leader has taken the place of another one. The next one can do the same.
    let is_elected = own != FIRST_NODE;
    let can_follow = count <= usize::from(config.parity) && rest >= config.least_working();
    is_elected || config.first_member.is_some() && can_follow
}

/// Gives voters to these nodes, too.
fn appoint(config: &mut FsConfig, nodes: &BTreeSet<NodeId>) -> Result<(), ConfigError> {
    let new = nodes.iter().filter(|node| config.voter_of(**node).is_none()).copied().collect::<Vec<_>>();
    new.into_iter().try_for_each(|node| config.add_voter(node).map(drop))
}

impl Members {
    /// Has the right nodes vote, from now on. `own` is the node of this machine's voter. Ends when
    /// this machine is no leader any more.
    pub async fn keep_voters(self: Arc<Self>, own: NodeId) {
        let Some(voter) = self.keeper().voter().cloned() else { return };
        let mut avoided = BTreeMap::new();
        while self.is_at_work() {
            let now = self.host().clock.now();
            avoided.retain(|_, until| *until > now);
            if let Err(why) = self.look_at_voters(&voter, own, &mut avoided).await {
                tracing::info!("the voters stay as they are for now: {why}");
            }
            self.host().clock.sleep(TICK).await;
        }
    }

    /// New voters get into the maps, so that their nodes make them and others find them; then the
    /// group changes; only then do those that were left out go from the maps. Until the group has
    /// changed, they are needed.
    ///
    /// A node whose voter cannot be brought up to date is left out for a while, so that it does not
    /// keep others out. `avoided` says until when.
    async fn look_at_voters(
        &self,
        voter: &Consensus,
        own: NodeId,
        avoided: &mut BTreeMap<NodeId, Duration>,
    ) -> Result<(), String> {
        let config = self.keeper().config().map_err(|e| e.to_string())?;
        let mut standing = Standing::of(self.present(), self.away(), &config.draining.keys().copied().collect());
        standing.leave_out(avoided.keys().copied());
        let wanted = wanted(&config, own, &standing, goes_on_without(&config, own));
        if wanted.iter().any(|node| config.voter_of(*node).is_none()) {
            tracing::info!(nodes = ?wanted, "these nodes are to vote");
            self.change_voters(|config| appoint(config, &wanted)).await?;
        }
        let config = self.keeper().config().map_err(|e| e.to_string())?;
        let voters = config.voters.iter().filter(|(_, node)| wanted.contains(node));
        // The maps say where voters are.
        let voters: BTreeMap<u64, String> = voters.map(|(voter, _)| (*voter, String::new())).collect();
        if voter.voters() != voters {
            for (id, node) in voters.iter().filter(|(id, _)| !voter.voters().contains_key(*id)) {
                let brought = host::timeout(&*self.host().clock, BRING_IN_TIME_MAX, voter.bring_in(*id, node)).await;
                if brought.is_err() {
                    let at = config.voters[id];
                    avoided.insert(at, self.host().clock.now() + AVOIDED_TIME);
                    // The group forgets it.
                    let same = voter.voters();
                    let _ = host::timeout(&*self.host().clock, SET_TIME_MAX, voter.set_voters(&same)).await;
                    return Err(format!("voter {id} at {at} cannot be brought up to date"));
                }
                brought.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            }
            // A start that finds only the stores must know who votes.
            self.keeper().settle().await.map_err(|e| e.to_string())?;
            let set = host::timeout(&*self.host().clock, SET_TIME_MAX, voter.set_voters(&voters)).await;
            set.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
            tracing::info!(voters = ?voters.keys(), "these vote from now on");
        }
        if config.voters.len() > voters.len() {
            let leave = |config: &mut FsConfig| {
                config.voters.retain(|voter, _| voters.contains_key(voter));
                Ok(())
            };
            self.change_voters(leave).await?;
        }
        Ok(())
    }

    async fn change_voters(&self, change: impl FnOnce(&mut FsConfig) -> Result<(), ConfigError>) -> Result<(), String> {
        let mut possible = Ok(());
        let changed = self.keeper().change(|config| possible = change(config)).await;
        possible.map_err(|e| e.to_string())?;
        changed.map(drop).map_err(|e| e.to_string())
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
            draining: BTreeMap::new(),
            through_first: BTreeSet::new(),
            first_member: Some(member("first")),
            voters: first_voters(),
            next_voter: 2,
            is_whole: true,
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

    fn willing(all: &[u16]) -> Standing {
        Standing { willing: nodes(all), ..Standing::default() }
    }

    #[test]
    fn the_number_of_voters_is_odd_and_follows_the_nodes() {
        let mut config = config(6);
        for (there, expected) in [
            (&[][..], &[0][..]),
            (&[1], &[0]),
            (&[1, 2], &[0, 1, 2]),
            (&[1, 2, 3], &[0, 1, 2]),
            (&[3, 4, 5, 6], &[0, 1, 2, 3, 4]),
            (&[], &[0, 1, 2, 3, 4]),
        ] {
            let wanted = wanted(&config, FIRST_NODE, &willing(there), true);
            assert_eq!(wanted, nodes(expected), "{there:?}");
            let before = config.clone();
            appoint(&mut config, &wanted).expect("appoint");
            assert_eq!((before.may_become(&config), config.check()), (Ok(()), Ok(())));
        }
        assert_eq!(config.voters.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        // One that was removed makes room for another. Those that are here go on.
        config.remove_member(NodeId::new(2));
        assert_eq!(wanted(&config, FIRST_NODE, &willing(&[]), true), nodes(&[0, 1, 3]));
        assert_eq!(wanted(&config, FIRST_NODE, &willing(&[3, 4]), true), nodes(&[0, 3, 4]));
        assert_eq!(wanted(&config, FIRST_NODE, &willing(&[6]), true), nodes(&[0, 1, 3, 4, 6]));
        assert_eq!(wanted(&config, FIRST_NODE, &willing(&[6]), false), nodes(&[0]));
        assert_eq!(wanted(&config, NodeId::new(4), &willing(&[4, 6]), true), nodes(&[0, 1, 3, 4, 6]));
    }

    #[test]
    fn voters_that_are_lost_or_long_away_are_replaced() {
        let mut config = config(4);
        appoint(&mut config, &nodes(&[0, 1, 2])).expect("appoint");
        let lost = Standing { unwilling: nodes(&[1]), ..willing(&[2, 3]) };
        assert_eq!(wanted(&config, FIRST_NODE, &lost, true), nodes(&[0, 2, 3]));
        let alone = Standing { unwilling: nodes(&[1]), ..willing(&[2]) };
        assert_eq!(wanted(&config, FIRST_NODE, &alone, true), nodes(&[0]));
        let away = |present: &[u16], seconds| {
            let present = present.iter().map(|node| (NodeId::new(*node), *node != 4)).collect();
            let away = BTreeMap::from([(NodeId::new(1), Duration::from_secs(seconds))]);
            Standing::of(present, away, &BTreeSet::new())
        };
        assert_eq!(wanted(&config, FIRST_NODE, &away(&[2, 3, 4], 599), true), nodes(&[0, 1, 2]));
        assert_eq!(wanted(&config, FIRST_NODE, &away(&[2, 3, 4], 600), true), nodes(&[0, 2, 3]));
        assert_eq!(wanted(&config, FIRST_NODE, &away(&[2, 4], 600), true), nodes(&[0, 1, 2]), "there is no other");
    }

    #[test]
    fn others_vote_only_if_they_can_go_on() {
        assert!(goes_on_without(&config(2), FIRST_NODE));
        assert!(!goes_on_without(&config(1), FIRST_NODE), "two stores are at the first node");
        let unknown = FsConfig { first_member: None, ..config(2) };
        assert!(!goes_on_without(&unknown, FIRST_NODE), "it has no place as a member");
        assert!(goes_on_without(&FsConfig { first_member: None, ..config(1) }, NodeId::new(1)));
    }
}
