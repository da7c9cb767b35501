//! The verdict on a log's tail: which segments count, from the fragments that the stores still
//! have.
//!
//! Pure: the same fragments give the same verdict. What it must survive: up to `m` stores that do
//! not answer, segments that a crash left with some of their fragments, fragments of earlier epochs
//! that a store kept because it was away while they were discarded, and attempts that were given
//! up. Every acknowledged segment counts: all its fragments and all of every segment before it were
//! stored, so `k` are found while at most `m` stores are bad.
//!
//! Where several epochs wrote the same seq, the newest evidence decides. A fragment of epoch `e`
//! tells two things that were true when `e` wrote it: its own segment is at its seq, and its
//! `previous` is at the seq before. The recovery that began epoch `e` had seen everything that
//! earlier epochs had acknowledged. So if evidence for a seq contradicts itself, that of the
//! highest epoch holds. A recovery discarded the other segments of that seq, even if all their
//! fragments turn up again.
//!
//! A store that was away may show discarded segments that no fragment of a later epoch contradicts.
//! So callers first drop the segments that the seals they know have discarded.
//!
//! More than `m` bad stores can make an acknowledged segment look torn. [`doubt`] tells a verdict
//! that is certain from one that is a guess; callers discard nothing on a guess. A segment is torn
//! for certain only if every attempt lacks a fragment on a store that answers and still has its
//! state: that store would have the fragment if the segment had been acknowledged. A store that
//! lacks the seal of an epoch whose writer used it, or could have, has lost its state (its disk is
//! new, or an old copy), and proves nothing.

use crate::fragment::{FragmentHeader, Geometry};
use std::collections::{BTreeMap, BTreeSet};
use types::{SegmentId, StoreId};

/// Most segments of a log that its writer has in flight at the same time, by default. The writer
/// puts a segment only when all segments this far before it are complete. So a longer gap in the
/// log was not left by a crash of the writer.
pub const IN_FLIGHT_MAX: u64 = 64;

/// A segment that is part of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedSegment {
    /// Its name.
    pub id: SegmentId,
    /// The attempt to read it from: a complete one if there is any, then the latest.
    pub attempt: u16,
    /// The header of any of that attempt's fragments.
    pub header: FragmentHeader,
    /// Where that attempt's fragments are: store and fragment index, in order of index.
    pub present: Vec<(StoreId, u8)>,
    /// True if all `k + m` fragments are there. Otherwise the segment must be put again before the
    /// log goes on.
    pub complete: bool,
}

/// A log's tail: the segments that count, and those that do not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TailVerdict {
    /// The segments that count, in order of seq without gaps.
    pub counted: Vec<CountedSegment>,
    /// All other segments that were found, in order.
    pub discarded: Vec<SegmentId>,
    /// The seq of the first segment that does not count. The log goes on with it.
    pub next_seq: u64,
}

/// Judges the tail of one log from seq `from_seq` on. `found` has the fragments of that log with
/// their stores, in any order; earlier ones are ignored.
///
/// `after` is the segment with seq `from_seq - 1`, if it is known; without it the first segment
/// need not chain to any. With it, the first segment may still be one of a later epoch that names
/// no previous one: when that epoch began, `after` was deleted already, and now a store that was
/// away shows it again.
pub fn verdict(from_seq: u64, after: Option<SegmentId>, found: Vec<(StoreId, FragmentHeader)>) -> TailVerdict {
    let found: Vec<_> = found.into_iter().filter(|(_, h)| h.id.segment.seq >= from_seq).collect();
    let in_force = newest_evidence(&found);
    let mut by_segment: BTreeMap<SegmentId, Vec<(StoreId, FragmentHeader)>> = BTreeMap::new();
    for (store, header) in found {
        by_segment.entry(header.id.segment).or_default().push((store, header));
    }

    let mut counted: Vec<CountedSegment> = Vec::new();
    let mut last = after;
    let mut next_seq = from_seq;
    while let Some(id) = in_force.get(&next_seq) {
        let fragments = by_segment.get(id).map(Vec::as_slice).unwrap_or_default();
        let begins_epoch = |header: &FragmentHeader| {
            counted.is_empty() && header.previous.is_none() && last.is_some_and(|l| l.epoch < header.id.segment.epoch)
        };
        let follows = |header: &FragmentHeader| last.is_none() || header.previous == last || begins_epoch(header);
        let Some(segment) = judge(follows, fragments) else { break };
        last = Some(segment.id);
        counted.push(segment);
        match next_seq.checked_add(1) {
            Some(seq) => next_seq = seq,
            None => break,
        }
    }
    let kept: BTreeSet<SegmentId> = counted.iter().map(|c| c.id).collect();
    let discarded = by_segment.into_keys().filter(|id| !kept.contains(id)).collect();
    TailVerdict { counted, discarded, next_seq }
}

/// The state of the stores that a verdict is about.
#[derive(Clone, Debug)]
pub struct Stores {
    /// All stores of the file system.
    pub all: BTreeSet<StoreId>,
    /// The stores that answered, with the epoch of their seal of the log; 0 if a store has no seal,
    /// or has lost fragments since.
    pub sealed: BTreeMap<StoreId, u32>,
    /// The newest epoch whose writer is known to have begun, and the stores that had its seal then.
    pub begun: Option<(u32, BTreeSet<StoreId>)>,
    /// Parity fragments of each stripe.
    pub m: u8,
    /// Most segments of a log that its writer has in flight at the same time.
    pub in_flight_max: u64,
}

impl Stores {
    /// The stores that do not answer.
    fn absent(&self) -> BTreeSet<StoreId> {
        self.all.iter().filter(|store| !self.sealed.contains_key(store)).copied().collect()
    }

    /// True if a store that the writer of `epoch` used answers and still has its state.
    fn has_state(&self, store: StoreId, epoch: u32) -> bool {
        self.sealed.get(&store).is_some_and(|sealed| *sealed >= epoch)
    }
}

/// Why a verdict may be wrong about where the log ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The log lost segments: `beyond` was put after all segments up to `beyond - in_flight_max`
    /// were complete.
    Lost {
        /// The seq of the first segment that cannot be read.
        next_seq: u64,
        /// The seq of the last segment that was found.
        beyond: u64,
    },
    /// The segment at `next_seq` may have been acknowledged: its missing fragments were on stores
    /// that do not answer or have lost their state.
    Unknown {
        /// The seq of the first segment that cannot be read.
        next_seq: u64,
        /// The stores that do not answer or have lost their state.
        stores: BTreeSet<StoreId>,
    },
}

/// What makes `verdict` a guess about the segments that it does not count; `None` if it is certain.
/// It is certain while at most `m` stores are bad. `found` has the fragments that the verdict was
/// given.
pub fn doubt(verdict: &TailVerdict, found: &[(StoreId, FragmentHeader)], stores: &Stores) -> Option<Doubt> {
    let next_seq = verdict.next_seq;
    let in_force = newest_evidence(found);
    let is_in_force = |h: &FragmentHeader| in_force.get(&h.id.segment.seq) == Some(&h.id.segment);
    let beyond = found.iter().filter(|(_, h)| is_in_force(h)).map(|(_, h)| h.id.segment.seq).max();
    if let Some(beyond) = beyond.filter(|beyond| beyond.saturating_sub(next_seq) >= stores.in_flight_max) {
        return Some(Doubt::Lost { next_seq, beyond });
    }
    let at_end: Vec<_> = found.iter().filter(|(_, h)| h.id.segment.seq == next_seq && is_in_force(h)).collect();
    if let Some(stores) = may_have_the_rest(at_end.iter().copied(), stores) {
        return Some(Doubt::Unknown { next_seq, stores });
    }
    // If an acknowledged segment left no fragment at all, all its stores are bad, and they are more
    // than `m`.
    let mut bad = stores.absent();
    let used =
        found.iter().map(|(_, header)| (header.id.segment.epoch, BTreeSet::from_iter(header.geometry.members.iter())));
    let had_seal = stores.begun.iter().map(|(epoch, holders)| (*epoch, holders.iter().collect()));
    for (epoch, used) in used.chain(had_seal) {
        let forgot = |store: &&StoreId| stores.sealed.contains_key(store) && !stores.has_state(**store, epoch);
        bad.extend(used.into_iter().filter(forgot));
    }
    (at_end.is_empty() && bad.len() > usize::from(stores.m)).then_some(Doubt::Unknown { next_seq, stores: bad })
}

/// The stores that may have the missing fragments of a segment: they do not answer, or have lost
/// their state. `fragments` are those that were found. `None` if the segment is torn for certain,
/// or if the fragments suffice to read it.
pub fn may_have_the_rest<'a>(
    fragments: impl IntoIterator<Item = &'a (StoreId, FragmentHeader)>,
    stores: &Stores,
) -> Option<BTreeSet<StoreId>> {
    let mut attempts: BTreeMap<(u32, u16, &Geometry), BTreeSet<StoreId>> = BTreeMap::new();
    for (store, header) in fragments.into_iter().filter(|(store, header)| header.member() == Some(*store)) {
        let attempt = (header.id.segment.epoch, header.attempt, &header.geometry);
        attempts.entry(attempt).or_default().insert(*store);
    }
    attempts.into_iter().find_map(|((epoch, _, geometry), present)| {
        let missing: BTreeSet<StoreId> = geometry.members.iter().filter(|s| !present.contains(s)).copied().collect();
        let torn = missing.iter().any(|store| stores.has_state(*store, epoch));
        (!torn && present.len() < usize::from(geometry.k)).then_some(missing)
    })
}

/// For each seq, the segment that fragments of the highest epoch name there, as their own or as
/// their previous one.
fn newest_evidence(found: &[(StoreId, FragmentHeader)]) -> BTreeMap<u64, SegmentId> {
    let mut evidence: BTreeMap<u64, (u32, SegmentId)> = BTreeMap::new();
    for (_, header) in found {
        let witness = header.id.segment.epoch;
        for named in std::iter::once(header.id.segment).chain(header.previous) {
            let entry = evidence.entry(named.seq).or_insert((witness, named));
            // One epoch has one writer and does not contradict itself. Ties go by name, so that the
            // order of `found` never matters.
            *entry = (*entry).max((witness, named));
        }
    }
    evidence.into_iter().map(|(seq, (_, id))| (seq, id)).collect()
}

/// The fragments of one attempt, by index.
type Present<'a> = BTreeMap<u8, (StoreId, &'a FragmentHeader)>;

/// The segment that has these fragments, if it `follows` the last one and one of its attempts can
/// be read.
fn judge(follows: impl Fn(&FragmentHeader) -> bool, fragments: &[(StoreId, FragmentHeader)]) -> Option<CountedSegment> {
    // Attempts differ by number and geometry: two recoveries that did not see each other's attempts
    // may use the same number.
    let mut attempts: BTreeMap<(u16, &Geometry), Present<'_>> = BTreeMap::new();
    for (store, header) in fragments {
        if follows(header) && header.member() == Some(*store) {
            let attempt = attempts.entry((header.attempt, &header.geometry)).or_default();
            attempt.insert(header.id.index, (*store, header));
        }
    }
    let ((attempt, geometry), present) =
        attempts.into_iter().filter(|((_, geometry), present)| present.len() >= usize::from(geometry.k)).max_by_key(
            |((attempt, geometry), present)| (present.len() == usize::from(geometry.width()), *attempt, present.len()),
        )?;
    let (_, (_, header)) = present.first_key_value()?;
    Some(CountedSegment {
        id: header.id.segment,
        attempt,
        header: (*header).clone(),
        complete: present.len() == usize::from(geometry.width()),
        present: present.iter().map(|(&index, &(store, _))| (store, index)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FS, id};
    use proptest::prelude::*;
    use types::FragmentId;

    type Found = Vec<(StoreId, FragmentHeader)>;

    /// The fragments of one attempt with `k` data and one parity fragment on stores `first ..`, as
    /// their stores have them.
    fn attempt(segment: SegmentId, previous: Option<SegmentId>, attempt: u16, k: u8, first: u16) -> Found {
        let members = (first..first + u16::from(k) + 1).map(StoreId::new).collect();
        stripe(segment, previous, attempt, k, members)
    }

    fn stripe(id: SegmentId, previous: Option<SegmentId>, attempt: u16, k: u8, members: Vec<StoreId>) -> Found {
        // Only headers matter: no payload is read.
        let len = if k == 1 { 100 } else { crate::fragment::CHUNK_LEN };
        let m = members.len() as u8 - k;
        let geometry = Geometry { k, m, fragment_len: len, payload_len: len * u32::from(k), members };
        let header = |(index, store): (u8, &StoreId)| {
            let header = FragmentHeader {
                fs: FS,
                id: FragmentId { segment: id, index },
                attempt,
                geometry: geometry.clone(),
                delta_offset: 0,
                previous,
                order: id.seq,
                chunk_crcs: vec![0],
                len,
            };
            assert_eq!(header.check(), Ok(()));
            (*store, header)
        };
        (0..).zip(&geometry.members).map(header).collect()
    }

    fn counted(verdict: &TailVerdict) -> Vec<SegmentId> {
        verdict.counted.iter().map(|c| c.id).collect()
    }

    /// Stores 0 to 5 with one parity fragment, sealed in epoch 1. `absent` ones do not answer, and
    /// `forgot` ones have lost their state.
    fn stores(absent: &[u16], forgot: &[u16]) -> Stores {
        let all: BTreeSet<StoreId> = (0..6).map(StoreId::new).collect();
        let answered = all.iter().filter(|s| !absent.contains(&s.raw()));
        let sealed = answered.map(|s| (*s, u32::from(!forgot.contains(&s.raw())))).collect();
        Stores { all, sealed, begun: None, m: 1, in_flight_max: IN_FLIGHT_MAX }
    }

    #[test]
    fn a_segment_is_torn_only_if_a_store_that_would_have_its_fragment_lacks_it() {
        let mut found = attempt(id(1, 1), None, 0, 2, 0);
        found.extend(attempt(id(1, 2), Some(id(1, 1)), 0, 2, 0).drain(..1));
        let v = verdict(1, None, found.clone());
        assert_eq!(v.next_seq, 2);
        let doubted = |absent: &[u16], forgot: &[u16]| doubt(&v, &found, &stores(absent, forgot));
        assert_eq!(doubted(&[], &[]), None);
        assert_eq!(doubted(&[1], &[]), None, "store 2 would have it");
        assert_eq!(doubted(&[], &[2]), None, "store 1 would have it");
        let unknown = Some(Doubt::Unknown { next_seq: 2, stores: [1, 2].map(StoreId::new).into() });
        assert_eq!(
            [doubted(&[1, 2], &[]), doubted(&[1], &[2]), doubted(&[], &[1, 2])],
            [&unknown; 3].map(Clone::clone)
        );
    }

    #[test]
    fn a_log_may_go_on_beyond_its_end_on_more_stores_than_parity_makes_up_for() {
        let found = attempt(id(1, 1), None, 0, 2, 0);
        let v = verdict(1, None, found.clone());
        let doubted = |absent: &[u16], forgot: &[u16]| doubt(&v, &found, &stores(absent, forgot));
        assert_eq!((doubted(&[], &[]), doubted(&[5], &[])), (None, None));
        assert_eq!(doubted(&[], &[5, 4]), None, "away all the time: nobody says that they could be used");
        let unknown = |stores: [u16; 2]| Some(Doubt::Unknown { next_seq: 2, stores: stores.map(StoreId::new).into() });
        assert_eq!(doubted(&[4, 5], &[]), unknown([4, 5]));
        assert_eq!(doubted(&[], &[0, 2]), unknown([0, 2]));
    }

    /// All later fragments were on two stores. One was set back to an old copy, and the other was
    /// lost, so no fragment that was left named these stores.
    #[test]
    fn regression_stores_that_had_the_seal_may_have_been_used() {
        let found = attempt(id(1, 1), None, 0, 2, 0);
        let v = verdict(1, None, found.clone());
        let had_seal = |holders: &[u16], forgot: &[u16]| {
            let holders = holders.iter().copied().map(StoreId::new).collect();
            doubt(&v, &found, &Stores { begun: Some((1, holders)), ..stores(&[], forgot) })
        };
        let unknown = Some(Doubt::Unknown { next_seq: 2, stores: [4, 5].map(StoreId::new).into() });
        assert_eq!(had_seal(&[0, 1, 2, 3, 4, 5], &[4, 5]), unknown);
        assert_eq!(had_seal(&[0, 1, 2, 3, 4, 5], &[5]), None, "parity makes up for one");
        assert_eq!(had_seal(&[0, 1, 2, 3, 4], &[4, 5]), None, "5 was away, and was never used");
    }

    #[test]
    fn a_gap_that_is_longer_than_what_is_in_flight_was_not_left_by_a_crash() {
        let mut found = attempt(id(1, 1), None, 0, 2, 0);
        found.extend(attempt(id(1, 1 + IN_FLIGHT_MAX), Some(id(1, IN_FLIGHT_MAX)), 0, 2, 0).drain(..1));
        let doubted = |found: &Found| doubt(&verdict(1, None, found.clone()), found, &stores(&[], &[]));
        assert_eq!(doubted(&found), None);
        found.extend(attempt(id(1, 2 + IN_FLIGHT_MAX), Some(id(1, 1 + IN_FLIGHT_MAX)), 0, 2, 0).drain(..1));
        assert_eq!(doubted(&found), Some(Doubt::Lost { next_seq: 2, beyond: 2 + IN_FLIGHT_MAX }));
    }

    #[test]
    fn an_empty_log_goes_on_where_it_was() {
        let expected = TailVerdict { counted: vec![], discarded: vec![], next_seq: 7 };
        assert_eq!(verdict(7, None, vec![]), expected);
    }

    #[test]
    fn a_segment_with_k_fragments_counts_and_with_fewer_ends_the_log() {
        let mut found = attempt(id(1, 1), None, 0, 2, 0);
        found.extend(attempt(id(1, 2), Some(id(1, 1)), 0, 2, 0).drain(..2));
        found.extend(attempt(id(1, 3), Some(id(1, 2)), 0, 2, 0).drain(..1));
        found.extend(attempt(id(1, 4), Some(id(1, 3)), 0, 2, 0));
        let v = verdict(1, None, found);
        assert_eq!(counted(&v), [id(1, 1), id(1, 2)]);
        assert_eq!((v.discarded.as_slice(), v.next_seq), ([id(1, 3), id(1, 4)].as_slice(), 3));
        assert!(v.counted[0].complete && !v.counted[1].complete);
        assert_eq!(v.counted[1].present, [(StoreId::new(0), 0), (StoreId::new(1), 1)]);
    }

    #[test]
    fn a_fragment_on_a_store_that_the_geometry_does_not_name_is_not_counted() {
        let mut found = attempt(id(1, 1), None, 0, 2, 0);
        found[0].0 = StoreId::new(9);
        found[2].0 = StoreId::new(1);
        assert_eq!(counted(&verdict(1, None, found)), []);
    }

    #[test]
    fn one_fragment_found_twice_is_one_fragment() {
        let mut found = attempt(id(1, 1), None, 0, 2, 0);
        found.truncate(1);
        found.push(found[0].clone());
        assert_eq!(counted(&verdict(1, None, found)), []);
    }

    #[test]
    fn a_segment_that_does_not_follow_the_last_one_ends_the_log() {
        let found = attempt(id(2, 5), Some(id(2, 4)), 0, 1, 0);
        assert_eq!(counted(&verdict(5, Some(id(1, 4)), found.clone())), []);
        assert_eq!(counted(&verdict(5, Some(id(2, 4)), found.clone())), [id(2, 5)]);
        assert_eq!(counted(&verdict(5, None, found)), [id(2, 5)]);
    }

    /// A store that was away showed a segment that had been deleted everywhere else. The log had
    /// gone on without it, and the whole log was discarded because it did not chain to that
    /// segment.
    #[test]
    fn regression_a_deleted_segment_that_turns_up_before_the_tail_discards_nothing() {
        let mut found = attempt(id(1, 2), Some(id(1, 1)), 0, 1, 0);
        found.extend(attempt(id(4, 3), None, 0, 1, 1));
        found.extend(attempt(id(4, 4), Some(id(4, 3)), 0, 1, 2));
        assert_eq!(counted(&verdict(3, Some(id(1, 2)), found.clone())), [id(4, 3), id(4, 4)]);
        // A segment of the same or an earlier epoch would name it.
        assert_eq!(counted(&verdict(3, Some(id(4, 2)), found.clone())), []);
        assert_eq!(counted(&verdict(3, Some(id(5, 2)), found)), []);
        // In the middle of the log every segment names the one before.
        let mut found = attempt(id(1, 3), Some(id(1, 2)), 0, 1, 0);
        found.extend(attempt(id(4, 4), None, 0, 1, 1));
        assert_eq!(counted(&verdict(3, Some(id(1, 2)), found)), [id(1, 3)]);
    }

    #[test]
    fn fragments_before_the_first_seq_are_ignored() {
        let mut found = attempt(id(1, 4), Some(id(1, 3)), 0, 1, 0);
        found.extend(attempt(id(1, 5), Some(id(1, 4)), 0, 1, 0));
        let v = verdict(5, None, found);
        assert_eq!((counted(&v), v.discarded.len()), (vec![id(1, 5)], 0));
    }

    #[test]
    fn the_highest_epoch_at_a_seq_supersedes_what_its_recovery_had_discarded() {
        let mut found = attempt(id(1, 5), Some(id(1, 4)), 0, 1, 0);
        found.extend(attempt(id(2, 5), Some(id(1, 4)), 0, 1, 2));
        let v = verdict(5, Some(id(1, 4)), found);
        assert_eq!((counted(&v), v.discarded), (vec![id(2, 5)], vec![id(1, 5)]));
    }

    #[test]
    fn a_torn_segment_of_a_later_epoch_still_supersedes_a_whole_one_of_an_earlier() {
        let mut found = attempt(id(1, 5), Some(id(1, 4)), 0, 2, 0);
        found.extend(attempt(id(2, 5), Some(id(1, 4)), 0, 2, 0).drain(..1));
        assert_eq!(counted(&verdict(5, Some(id(1, 4)), found)), []);
    }

    #[test]
    fn a_segment_superseded_by_one_of_which_only_the_successor_is_left_does_not_count() {
        let mut found = attempt(id(1, 5), Some(id(1, 4)), 0, 2, 0);
        found.extend(attempt(id(2, 6), Some(id(2, 5)), 0, 2, 0));
        let v = verdict(5, Some(id(1, 4)), found);
        assert_eq!((counted(&v), v.discarded), (vec![], vec![id(1, 5), id(2, 6)]));
    }

    #[test]
    fn a_later_epoch_that_goes_on_from_an_earlier_one_leaves_it_in_force() {
        let mut found = attempt(id(1, 5), Some(id(1, 4)), 0, 2, 0);
        found.extend(attempt(id(1, 6), Some(id(1, 5)), 0, 2, 0));
        found.extend(attempt(id(3, 6), Some(id(1, 5)), 0, 2, 0));
        assert_eq!(counted(&verdict(5, Some(id(1, 4)), found)), [id(1, 5), id(3, 6)]);
    }

    #[test]
    fn attempts_are_not_mixed_and_the_latest_complete_one_is_taken() {
        let segment = id(1, 1);
        let mut apart: Found = attempt(segment, None, 0, 2, 0).drain(..1).collect();
        apart.extend(attempt(segment, None, 1, 2, 3).drain(1..2));
        assert_eq!(counted(&verdict(1, None, apart)), []);

        let mut found = attempt(segment, None, 0, 2, 0);
        found.extend(attempt(segment, None, 1, 2, 3).drain(..2));
        assert_eq!(verdict(1, None, found.clone()).counted[0].attempt, 0, "the complete one");
        found.extend(attempt(segment, None, 2, 1, 6));
        assert_eq!(verdict(1, None, found.clone()).counted[0].attempt, 2, "the latest complete one");
        found.retain(|(_, h)| h.id.index == 0 || h.attempt == 1);
        assert_eq!(verdict(1, None, found).counted[0].attempt, 2, "the latest that can be read");
    }

    #[test]
    fn attempts_of_one_number_and_different_geometry_are_told_apart() {
        let segment = id(1, 1);
        let mut found: Found = attempt(segment, None, 1, 2, 0).drain(..1).collect();
        found.extend(attempt(segment, None, 1, 2, 3).drain(1..2));
        assert_eq!(counted(&verdict(1, None, found)), []);
    }

    #[test]
    fn the_last_of_all_seqs_ends_the_log() {
        let found = attempt(id(1, u64::MAX), None, 0, 1, 0);
        assert_eq!(counted(&verdict(u64::MAX, None, found)).len(), 1);
    }

    /// What happens to a log between two recoveries.
    #[derive(Clone, Debug)]
    struct Life {
        /// For each segment in turn: its wanted width and, for each attempt, the fragments that
        /// were stored (as bits). The last attempt of a segment is stored whole, and so
        /// acknowledged, unless the segment is one of the `torn` last ones.
        segments: Vec<(u8, Vec<u32>)>,
        /// How many of the last segments were in flight when the writer died.
        torn: usize,
        /// Stores (as bits, at most `m` of them are used) that do not answer during the recovery
        /// that follows.
        away: u32,
        /// The recovery dies after it has put this many segments again, with these fragments of the
        /// last one. Then it runs anew with other stores away.
        dies: Option<(usize, u32, u32)>,
        /// Where groups begin.
        shift: u16,
    }

    fn life() -> impl Strategy<Value = Life> {
        let segment = (1u8..=3, proptest::collection::vec(any::<u32>(), 1..3));
        let dies = proptest::option::of((0usize..3, any::<u32>(), any::<u32>()));
        (proptest::collection::vec(segment, 0..6), 0usize..4, any::<u32>(), dies, any::<u16>())
            .prop_map(|(segments, torn, away, dies, shift)| Life { segments, torn, away, dies, shift })
    }

    const STORES: u16 = 7;

    /// Stores with fragments and their newest seals `(epoch, through)`, and what must be true of
    /// the log.
    struct World {
        m: u8,
        stores: Vec<BTreeMap<(SegmentId, u8, u16), FragmentHeader>>,
        seals: Vec<(u32, u64)>,
        /// The last epoch in which each store was used.
        used_in: Vec<u32>,
        attempts: BTreeMap<SegmentId, u16>,
        acknowledged: Vec<SegmentId>,
        discarded: BTreeSet<SegmentId>,
    }

    impl World {
        fn group(&self, k: u8, shift: u16, away: &BTreeSet<u16>) -> Vec<StoreId> {
            let all = (0..STORES).map(|i| (i + shift % STORES) % STORES).filter(|i| !away.contains(i));
            all.take(usize::from(k + self.m)).map(StoreId::new).collect()
        }

        /// Puts the fragments that `bits` selects of the segment's next attempt.
        fn put(&mut self, id: SegmentId, previous: Option<SegmentId>, k: u8, members: Vec<StoreId>, bits: u32) {
            let attempt = self.attempts.entry(id).or_default();
            for member in &members {
                let used_in = &mut self.used_in[usize::from(member.raw())];
                *used_in = id.epoch.max(*used_in);
            }
            for (store, header) in stripe(id, previous, *attempt, k, members) {
                if bits >> header.id.index & 1 == 1 {
                    self.stores[usize::from(store.raw())].insert((id, header.id.index, *attempt), header);
                }
            }
            *attempt += 1;
        }

        /// The first `m` stores, at most, that the bits select.
        fn away(&self, bits: u32) -> BTreeSet<u16> {
            (0..STORES).filter(|i| bits >> i & 1 == 1).take(usize::from(self.m)).collect()
        }

        /// Asks the stores that answer, drops what their newest seal discards, and judges from the
        /// beginning.
        fn judge(&self, away: &BTreeSet<u16>) -> TailVerdict {
            let present = || (0..STORES).filter(|i| !away.contains(i));
            let (epoch, through) = present().map(|i| self.seals[usize::from(i)]).max().unwrap_or_default();
            let fragments = present().flat_map(|i| {
                self.stores[usize::from(i)].values().map(move |header| (StoreId::new(i), header.clone()))
            });
            let found = fragments.filter(|(_, h)| h.id.segment.epoch >= epoch || h.id.segment.seq <= through);
            verdict(1, None, found.collect())
        }

        /// The doubt about the verdict. It must be `None`: parity makes up for all bad stores.
        fn doubt(&self, away: &BTreeSet<u16>) -> Option<Doubt> {
            let all: BTreeSet<StoreId> = (0..STORES).map(StoreId::new).collect();
            let present = (0..STORES).filter(|i| !away.contains(i));
            // A store is given the seals that it missed before it is used.
            let epoch = |i: u16| self.seals[usize::from(i)].0.max(self.used_in[usize::from(i)]);
            let sealed: BTreeMap<StoreId, u32> = present.map(|i| (StoreId::new(i), epoch(i))).collect();
            let newest = (0..STORES).filter(|i| !away.contains(i)).map(|i| self.seals[usize::from(i)]).max();
            let (epoch, through) = newest.unwrap_or_default();
            let there = self.stores.iter().zip(0..).filter(|(_, i)| !away.contains(i));
            let found: Found = there.flat_map(|(f, i)| f.values().map(move |h| (StoreId::new(i), h.clone()))).collect();
            let found: Found =
                found.into_iter().filter(|(_, h)| h.id.segment.epoch >= epoch || h.id.segment.seq <= through).collect();
            doubt(
                &self.judge(away),
                &found,
                &Stores { all, sealed, begun: None, m: self.m, in_flight_max: IN_FLIGHT_MAX },
            )
        }

        fn check(&self, verdict: &TailVerdict) -> Result<(), TestCaseError> {
            let counted = counted(verdict);
            prop_assert!(counted.starts_with(&self.acknowledged), "{:?} not in {counted:?}", self.acknowledged);
            prop_assert!(counted.iter().all(|id| !self.discarded.contains(id)), "what was discarded is back");
            prop_assert!(verdict.discarded.iter().all(|id| !counted.contains(id)));
            prop_assert_eq!(verdict.next_seq, 1 + counted.len() as u64);
            let mut last = None;
            for c in &verdict.counted {
                prop_assert_eq!(c.header.previous, last);
                prop_assert!(c.present.len() >= usize::from(c.header.geometry.k));
                last = Some(c.id);
            }
            Ok(())
        }

        fn live(&mut self, epoch: u32, life: &Life) -> Result<(), TestCaseError> {
            let mut previous = self.acknowledged.last().copied();
            let acknowledged = life.segments.len().saturating_sub(life.torn);
            for (i, (k, attempts)) in life.segments.iter().enumerate() {
                let segment = id(epoch, previous.map_or(1, |p| p.seq + 1));
                for (n, &bits) in attempts.iter().enumerate() {
                    let whole = i < acknowledged && n + 1 == attempts.len();
                    let group = self.group(*k, life.shift.wrapping_add(n as u16), &BTreeSet::new());
                    self.put(segment, previous, *k, group, if whole { u32::MAX } else { bits });
                }
                if i < acknowledged {
                    self.acknowledged.push(segment);
                }
                previous = Some(segment);
            }
            let mut away = self.away(life.away);
            if let Some((puts, bits, away_later)) = life.dies {
                self.put_again(&away, puts, bits)?;
                away = self.away(away_later);
            }
            let verdict = self.put_again(&away, usize::MAX, u32::MAX)?;
            self.seal(epoch + 1, &verdict, &away);
            Ok(())
        }

        /// Puts the incomplete counted segments again, the first `count` of them. Of the last one,
        /// only the fragments that `bits` selects are stored.
        fn put_again(&mut self, away: &BTreeSet<u16>, count: usize, bits: u32) -> Result<TailVerdict, TestCaseError> {
            let verdict = self.judge(away);
            self.check(&verdict)?;
            prop_assert_eq!(self.doubt(away), None);
            let incomplete: Vec<_> = verdict.counted.iter().filter(|c| !c.complete).take(count).collect();
            for (i, c) in incomplete.iter().enumerate() {
                let k = c.header.geometry.k;
                let members = self.group(k, c.attempt + 1, away);
                self.put(c.id, c.header.previous, k, members, if i + 1 == incomplete.len() { bits } else { u32::MAX });
            }
            Ok(verdict)
        }

        /// Seals the log: counted segments are acknowledged from now on, and the stores that answer
        /// forget the others.
        fn seal(&mut self, epoch: u32, verdict: &TailVerdict, away: &BTreeSet<u16>) {
            self.acknowledged = counted(verdict);
            self.discarded.extend(&verdict.discarded);
            for i in (0..STORES).filter(|i| !away.contains(i)).map(usize::from) {
                self.seals[i] = (epoch, verdict.next_seq - 1);
                self.stores[i].retain(|(id, ..), _| id.epoch >= epoch || id.seq < verdict.next_seq);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Acknowledged segments count, and discarded ones do not come back, whichever segments are
        /// torn, half put again, or kept by stores that were away.
        #[test]
        fn model_every_acknowledged_segment_counts_through_all_recoveries(
            m in 1u8..=2,
            lives in proptest::collection::vec(life(), 1..6),
            away in any::<u32>(),
        ) {
            let mut world = World {
                m,
                stores: vec![BTreeMap::new(); usize::from(STORES)],
                seals: vec![(0, 0); usize::from(STORES)],
                used_in: vec![0; usize::from(STORES)],
                attempts: BTreeMap::new(),
                acknowledged: Vec::new(),
                discarded: BTreeSet::new(),
            };
            for (epoch, life) in (1..).zip(&lives) {
                world.live(epoch, life)?;
            }
            let verdict = world.judge(&world.away(away));
            world.check(&verdict)?;
            prop_assert_eq!(counted(&verdict), world.acknowledged);
        }

        #[test]
        fn prop_the_order_in_which_stores_answer_does_not_matter(
            fragments in proptest::collection::vec((1u32..4, 1u64..6, 0u32..4, 0u16..3, 1u8..4, 0u16..5, any::<u32>()), 0..12),
            seed in any::<u64>(),
        ) {
            let mut found = Found::new();
            for (epoch, seq, back, n, k, first, bits) in fragments {
                let previous = (seq > 1).then(|| id(epoch.saturating_sub(back).max(1), seq - 1));
                let all = attempt(id(epoch, seq), previous, n, k, first);
                found.extend(all.into_iter().filter(|(_, h)| bits >> h.id.index & 1 == 1));
            }
            let mut shuffled = found.clone();
            shuffled.sort_by_key(|(store, h)| {
                crate::fragment::crc32c(format!("{seed}{store}{h:?}").as_bytes())
            });
            prop_assert_eq!(verdict(1, None, found), verdict(1, None, shuffled));
        }
    }
}
