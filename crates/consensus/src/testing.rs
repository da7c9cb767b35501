//! An image and messages with everything in them, for tests.

use crate::image::{Image, VoterChange, VoterState};
use crate::wire::{VoterReply, VoterRequest};
use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
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

/// Requests of every kind.
pub fn requests() -> Vec<VoterRequest> {
    let Image { vote, committed, purged, snapshot, entries } = example();
    let (vote, state) = (vote.unwrap_or_default(), snapshot.unwrap_or_default());
    let append = |entries| AppendEntriesRequest { vote, prev_log_id: purged, entries, leader_commit: committed };
    let candidate = Vote { committed: false, ..vote };
    vec![
        VoterRequest::Vote(VoteRequest { vote: candidate, last_log_id: None }),
        VoterRequest::Vote(VoteRequest { vote: candidate, last_log_id: committed }),
        VoterRequest::Append(append(entries)),
        VoterRequest::Append(append(Vec::new())),
        VoterRequest::Snapshot(vote, state),
        VoterRequest::Canvass(None),
        VoterRequest::Canvass(committed),
    ]
}

/// Replies of every kind.
pub fn replies() -> Vec<VoterReply> {
    let Image { vote, committed, .. } = example();
    let vote = vote.unwrap_or_default();
    vec![
        VoterReply::Vote(VoteResponse { vote, vote_granted: true, last_log_id: committed }, 2_100),
        VoterReply::Append(AppendEntriesResponse::Success),
        VoterReply::Append(AppendEntriesResponse::Conflict),
        VoterReply::Append(AppendEntriesResponse::HigherVote(vote)),
        VoterReply::Snapshot(vote),
        VoterReply::Failed,
        VoterReply::Canvassed(false),
        VoterReply::Canvassed(true),
    ]
}
