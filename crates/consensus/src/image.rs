//! A voter's durable state, and its bytes: vote, log, snapshot.
//!
//! It is small and bounded, so each change writes it whole; see [`files`](crate::files) for where.
//! The bytes are canonical: every image that is accepted encodes to the bytes that were read. All
//! integers are little-endian. An *option* is a byte 0, or a byte 1 and the value. A *list* is a
//! count u32 and its elements.
//!
//! ```text
//! image:      option vote (term u64 | node u64 | committed u8)
//!             | option log id: committed | option log id: purged
//!             | option state: snapshot | list of entries
//! log id:     term u64 | node u64 | index u64
//! entry:      log id | 0: blank
//!                    | 1: expected epoch u64 | epoch u64 | maps blob (len u32, bytes)
//!                    | 2: membership
//! state:      option log id: applied | option log id: of the membership | membership
//!             | epoch u64 | maps blob
//! membership: list of (list of voters u64) | list of (node u64 | address blob)
//! ```

use crate::{MAPS_LEN_MAX, Types};
use bytes::Bytes;
use openraft::{BasicNode, CommittedLeaderId, Entry, EntryPayload, LogId, Membership, StoredMembership, Vote};
use std::collections::{BTreeMap, BTreeSet};
use types::Maps;
use types::codec::{DecodeError, Put, Reader};

/// Smallest encoded entry, in bytes.
const ENTRY_LEN_MIN: usize = 25;

/// A proposal: replace the maps of epoch `expected`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VoterChange {
    /// Epoch of the maps to replace; if other maps are in force, nothing changes.
    pub expected: u64,
    /// The new maps, of a higher epoch.
    pub maps: Maps,
}

/// The agreed state after an entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VoterState {
    /// That entry.
    pub applied: Option<LogId<u64>>,
    /// The voters, and the entry that made them so.
    pub membership: StoredMembership<u64, BasicNode>,
    /// The maps.
    pub maps: Maps,
}

impl VoterState {
    /// True if it is the state of a group.
    pub(crate) fn is_of_group(&self) -> bool {
        self.applied.is_some() && has_voters(self.membership.membership())
    }

    /// Applies an agreed change. Returns the maps' epoch after it. `Err` with the present epoch,
    /// and nothing changes, if the change expected another epoch or its maps have no higher one.
    pub fn apply(&mut self, change: VoterChange) -> Result<u64, u64> {
        if change.expected != self.maps.epoch || change.maps.epoch <= change.expected {
            return Err(self.maps.epoch);
        }
        self.maps = change.maps;
        Ok(self.maps.epoch)
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_option(out, self.applied.as_ref(), put_log_id);
        put_option(out, self.membership.log_id().as_ref(), put_log_id);
        put_membership(out, self.membership.membership());
        put_maps(out, &self.maps);
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<VoterState, DecodeError> {
        let applied = option(r, log_id)?;
        let agreed = option(r, log_id)?;
        Ok(VoterState { applied, membership: StoredMembership::new(agreed, membership(r)?), maps: maps(r)? })
    }
}

/// A voter's durable state.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Image {
    /// This voter's last vote.
    pub vote: Option<Vote<u64>>,
    /// Entries up to here are agreed on; it may lag behind.
    pub committed: Option<LogId<u64>>,
    /// Entries up to here are no longer in the log; the snapshot has their effects.
    pub purged: Option<LogId<u64>>,
    /// The state after some entry.
    pub snapshot: Option<VoterState>,
    /// The log after `purged`, without gaps.
    pub entries: Vec<Entry<Types>>,
}

impl Image {
    /// The id of the last entry.
    pub fn last(&self) -> Option<LogId<u64>> {
        self.entries.last().map(|entry| entry.log_id).or(self.purged)
    }

    /// Drops the entries up to one that the snapshot has.
    pub(crate) fn purge(&mut self, through: LogId<u64>) {
        self.entries.retain(|entry| entry.log_id.index > through.index);
        self.purged = self.purged.max(Some(through));
    }

    /// The encoded image.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_option(&mut out, self.vote.as_ref(), put_vote);
        put_option(&mut out, self.committed.as_ref(), put_log_id);
        put_option(&mut out, self.purged.as_ref(), put_log_id);
        put_option(&mut out, self.snapshot.as_ref(), |out, state| state.encode(out));
        put_entries(&mut out, &self.entries);
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Image, DecodeError> {
        let r = &mut Reader::new(bytes);
        let vote = option(r, vote)?;
        let committed = option(r, log_id)?;
        let purged = option(r, log_id)?;
        let snapshot = option(r, VoterState::decode)?;
        let entries = entries(r, purged)?;
        let image = Image { vote, committed, purged, snapshot, entries };
        let applied = image.snapshot.as_ref().and_then(|state| state.applied);
        if image.purged > applied {
            return Err(DecodeError::Invalid("log: entries before it are in no snapshot"));
        }
        if image.committed.max(applied) > image.last() {
            return Err(DecodeError::Invalid("log: it ends before what was agreed on"));
        }
        if !r.is_empty() {
            return Err(DecodeError::Invalid("length of the consensus state"));
        }
        Ok(image)
    }
}

/// A number that has a next one.
fn number(r: &mut Reader<'_>, what: &'static str) -> Result<u64, DecodeError> {
    match r.u64(what)? {
        u64::MAX => Err(DecodeError::Invalid(what)),
        number => Ok(number),
    }
}

pub(crate) fn put_vote(out: &mut Vec<u8>, vote: &Vote<u64>) {
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.node_id);
    out.put_u8(vote.committed.into());
}

pub(crate) fn vote(r: &mut Reader<'_>) -> Result<Vote<u64>, DecodeError> {
    let mut vote = Vote::new(number(r, "vote's term")?, r.u64("vote's node")?);
    vote.committed = flag(r, "vote's flag")?;
    Ok(vote)
}

pub(crate) fn put_entries(out: &mut Vec<u8>, entries: &[Entry<Types>]) {
    out.put_u32(entries.len() as u32);
    for entry in entries {
        put_log_id(out, &entry.log_id);
        match &entry.payload {
            EntryPayload::Blank => out.put_u8(0),
            EntryPayload::Normal(change) => {
                out.put_u8(1);
                out.put_u64(change.expected);
                put_maps(out, &change.maps);
            }
            EntryPayload::Membership(membership) => {
                out.put_u8(2);
                put_membership(out, membership);
            }
        }
    }
}

/// Reads entries that follow `before` in the log without a gap.
pub(crate) fn entries(r: &mut Reader<'_>, before: Option<LogId<u64>>) -> Result<Vec<Entry<Types>>, DecodeError> {
    let count = r.count(ENTRY_LEN_MIN, "log entries")?;
    let mut entries: Vec<Entry<Types>> = Vec::with_capacity(count);
    for _ in 0..count {
        let log_id = log_id(r)?;
        let last = entries.last().map(|entry| entry.log_id).or(before);
        let next = last.map_or(Some(0), |last| last.index.checked_add(1));
        if next != Some(log_id.index) || last.is_some_and(|last| last.leader_id > log_id.leader_id) {
            return Err(DecodeError::Invalid("order of log entries"));
        }
        let payload = match r.u8("kind of log entry")? {
            0 => EntryPayload::Blank,
            1 => EntryPayload::Normal(VoterChange { expected: r.u64("expected epoch")?, maps: maps(r)? }),
            2 => match membership(r)? {
                membership if has_voters(&membership) => EntryPayload::Membership(membership),
                _ => return Err(DecodeError::Invalid("voters: there are none")),
            },
            _ => return Err(DecodeError::Invalid("kind of log entry")),
        };
        entries.push(Entry { log_id, payload });
    }
    Ok(entries)
}

pub(crate) fn put_option<T>(out: &mut Vec<u8>, thing: Option<&T>, put: impl FnOnce(&mut Vec<u8>, &T)) {
    out.put_u8(thing.is_some().into());
    if let Some(thing) = thing {
        put(out, thing);
    }
}

pub(crate) fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid(what)),
    }
}

pub(crate) fn option<T>(
    r: &mut Reader<'_>,
    get: impl FnOnce(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Option<T>, DecodeError> {
    Ok(if flag(r, "option")? { Some(get(r)?) } else { None })
}

pub(crate) fn put_log_id(out: &mut Vec<u8>, id: &LogId<u64>) {
    out.put_u64(id.leader_id.term);
    out.put_u64(id.leader_id.node_id);
    out.put_u64(id.index);
}

pub(crate) fn log_id(r: &mut Reader<'_>) -> Result<LogId<u64>, DecodeError> {
    let leader = CommittedLeaderId::new(number(r, "term")?, r.u64("node")?);
    Ok(LogId::new(leader, number(r, "index")?))
}

fn put_maps(out: &mut Vec<u8>, maps: &Maps) {
    out.put_u64(maps.epoch);
    out.put_blob(&maps.bytes);
}

fn maps(r: &mut Reader<'_>) -> Result<Maps, DecodeError> {
    let epoch = r.u64("maps' epoch")?;
    let bytes = r.blob("maps")?;
    if bytes.len() > MAPS_LEN_MAX {
        return Err(DecodeError::Invalid("length of maps"));
    }
    Ok(Maps { epoch, bytes: Bytes::copy_from_slice(bytes) })
}

fn put_membership(out: &mut Vec<u8>, membership: &Membership<u64, BasicNode>) {
    let configs = membership.get_joint_config();
    out.put_u32(configs.len() as u32);
    for voters in configs {
        out.put_u32(voters.len() as u32);
        voters.iter().for_each(|voter| out.put_u64(*voter));
    }
    let nodes: Vec<_> = membership.nodes().collect();
    out.put_u32(nodes.len() as u32);
    for (id, node) in nodes {
        out.put_u64(*id);
        out.put_blob(node.addr.as_bytes());
    }
}

fn membership(r: &mut Reader<'_>) -> Result<Membership<u64, BasicNode>, DecodeError> {
    let mut configs = Vec::new();
    for _ in 0..r.count(4, "voters")? {
        let mut voters = BTreeSet::new();
        for _ in 0..r.count(8, "voters")? {
            let voter = r.u64("voter")?;
            if voters.last().is_some_and(|last| *last >= voter) {
                return Err(DecodeError::Invalid("order of voters"));
            }
            voters.insert(voter);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..r.count(12, "members")? {
        let id = r.u64("member")?;
        if nodes.last_key_value().is_some_and(|(last, _)| *last >= id) {
            return Err(DecodeError::Invalid("order of members"));
        }
        let address = std::str::from_utf8(r.blob("address")?).map_err(|_| DecodeError::Invalid("address"))?;
        nodes.insert(id, BasicNode::new(address));
    }
    if !configs.iter().flatten().all(|voter| nodes.contains_key(voter)) {
        return Err(DecodeError::Invalid("voters: one is no member"));
    }
    Ok(Membership::new(configs, nodes))
}

/// True if a majority of the membership is some voter at least.
fn has_voters(membership: &Membership<u64, BasicNode>) -> bool {
    let configs = membership.get_joint_config();
    !configs.is_empty() && configs.iter().all(|voters| !voters.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::example;

    #[test]
    fn every_kind_of_entry_comes_back_and_every_truncation_is_refused() {
        let image = example();
        let bytes = image.encode();
        assert_eq!(Image::decode(&bytes), Ok(image));
        for len in 0..bytes.len() {
            assert!(Image::decode(&bytes[..len]).is_err(), "{len} bytes of {}", bytes.len());
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(Image::decode(&longer).is_err());
        assert_eq!(Image::decode(&Image::default().encode()), Ok(Image::default()));
    }

    #[test]
    fn logs_that_contradict_themselves_are_refused() {
        let refused = |change: fn(&mut Image)| {
            let mut image = example();
            change(&mut image);
            Image::decode(&image.encode()).is_err()
        };
        assert!(!refused(|_| ()));
        assert!(refused(|image| drop(image.entries.remove(1))), "a gap");
        assert!(refused(|image| image.snapshot = None), "what was purged is nowhere");
        assert!(refused(|image| image.entries.clear()), "less than was agreed on");
    }

    #[test]
    fn a_change_that_expects_another_epoch_changes_nothing() {
        let change =
            |expected, epoch| VoterChange { expected, maps: Maps { epoch, bytes: Bytes::from_static(b"new") } };
        let mut state =
            VoterState { maps: Maps { epoch: 4, bytes: Bytes::from_static(b"old") }, ..VoterState::default() };
        for (expected, epoch) in [(3, 4), (3, 5), (5, 6), (4, 4), (4, 3)] {
            assert_eq!(state.apply(change(expected, epoch)), Err(4));
            assert_eq!(&state.maps.bytes[..], b"old");
        }
        assert_eq!(state.apply(change(4, 5)), Ok(5));
        assert_eq!(&state.maps.bytes[..], b"new");
    }
}
