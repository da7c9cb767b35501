//! An image with everything in it, for tests.

use crate::image::{Image, VoterChange, VoterState};
use bytes::Bytes;
use openraft::{BasicNode, CommittedLeaderId, Entry, EntryPayload, LogId, Membership, StoredMembership, Vote};
use std::collections::{BTreeMap, BTreeSet};
use types::Maps;

/// Two voters on their way to three, a learner, a snapshot, and one entry of each kind.
pub fn example() -> Image {
    let id = |term, index| LogId::new(CommittedLeaderId::new(term, 1), index);
    let maps = |epoch, bytes: &'static str| Maps { epoch, bytes: Bytes::from_static(bytes.as_bytes()) };
    let nodes: BTreeMap<u64, BasicNode> =
        (1..=4).map(|node| (node, BasicNode::new(format!("host-{node}:7000")))).collect();
    let membership = Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([1, 2, 3])], nodes);
    let snapshot = VoterState {
        applied: Some(id(3, 7)),
        membership: StoredMembership::new(Some(id(1, 0)), membership.clone()),
        maps: maps(5, "five"),
    };
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(VoterChange { expected: 5, maps: maps(6, "six") }),
        EntryPayload::Membership(membership),
    ];
    let mut vote = Vote::new(4, 1);
    vote.committed = true;
    Image {
        vote: Some(vote),
        committed: Some(id(4, 9)),
        purged: Some(id(3, 7)),
        snapshot: Some(snapshot),
        entries: (8..).zip(payloads).map(|(index, payload)| Entry { log_id: id(4, index), payload }).collect(),
    }
}
