//! The verdict on a log's tail: which segments count, from the fragments that the stores still have.
//!
//! Pure: the same fragments give the same verdict. What it must survive: up to `m` stores that do not answer, segments
//! of which only some fragments were stored before a crash, fragments of earlier epochs that a store kept because it was away while
//! they were discarded, and attempts that were given up. Every acknowledged segment counts: all its fragments and all of
//! every segment before it were stored, so `k` are found while at most `m` stores are bad.
//!
//! Where several epochs wrote the same seq, the newest evidence decides. A fragment of epoch `e` tells two things that were true
//! when `e` wrote it: its own segment is at its seq, and its `previous` is at the seq before. Recovery to epoch `e` has seen
//! what earlier epochs had acknowledged, so of contradicting evidence for a seq, that of the highest epoch holds, and what it
//! contradicts was discarded by a recovery, even if all its fragments turn up again.
//!
//! A store that was away may show discarded segments of which no fragment of a later epoch tells: callers first drop what the seals
//! that they know have discarded.

use crate::fragment::{FragmentHeader, Geometry};
use std::collections::{BTreeMap, BTreeSet};
use types::{SegmentId, StoreId};

/// A segment that is part of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CountedSegment {
    /// Its name.
    pub id: SegmentId,
    /// The attempt to read it from.
    pub attempt: u16,
    /// The header of any of that attempt's fragments.
    pub header: FragmentHeader,
    /// Where that attempt's fragments are: store and fragment index, in order of index.
    pub present: Vec<(StoreId, u8)>,
    /// All `k + m` fragments are there; otherwise the segment must be put again before the log goes on.
    pub complete: bool,
}

/// What a log's tail holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TailVerdict {
    /// The segments that count, in order of seq without gaps.
    pub counted: Vec<CountedSegment>,
    /// All other segments that were found, in order.
    pub discarded: Vec<SegmentId>,
    /// The seq with which the log goes on.
    pub next_seq: u64,
}

/// Judges the tail of one log from seq `from_seq` on. `after` is the segment with seq `from_seq - 1`, where it is known; without it
/// the first segment need not chain to anything. `found` holds the fragments of that log with their stores, in any
/// order; earlier ones are ignored.
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
        let Some(segment) = judge(last, fragments) else { break };
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

/// For each seq, the segment that the highest epoch's fragments name there, be it as their own or as their previous one.
fn newest_evidence(found: &[(StoreId, FragmentHeader)]) -> BTreeMap<u64, SegmentId> {
    let mut evidence: BTreeMap<u64, (u32, SegmentId)> = BTreeMap::new();
    for (_, header) in found {
        let witness = header.id.segment.epoch;
        for named in std::iter::once(header.id.segment).chain(header.previous) {
            let entry = evidence.entry(named.seq).or_insert((witness, named));
            // One epoch has one writer and does not contradict itself; by name then, so that order never matters.
            *entry = (*entry).max((witness, named));
        }
    }
    evidence.into_iter().map(|(seq, (_, id))| (seq, id)).collect()
}

/// The fragments of one attempt, by index.
type Present<'a> = BTreeMap<u8, (StoreId, &'a FragmentHeader)>;

/// The segment of which these are the fragments, if it follows `last` and one of its attempts can be read.
fn judge(last: Option<SegmentId>, fragments: &[(StoreId, FragmentHeader)]) -> Option<CountedSegment> {
    // Attempts are told apart by geometry too: two recoveries that did not see each other's may use one number.
    let mut attempts: BTreeMap<(u16, &Geometry), Present<'_>> = BTreeMap::new();
    for (store, header) in fragments {
        let chained = last.is_none() || header.previous == last;
        if chained && header.member() == Some(*store) {
            let attempt = attempts.entry((header.attempt, &header.geometry)).or_default();
            attempt.insert(header.id.index, (*store, header));
        }
    }
    let ((attempt, geometry), present) = attempts
        .into_iter()
        .filter(|((_, geometry), present)| present.len() >= usize::from(geometry.k))
        .max_by_key(|((attempt, _), present)| (*attempt, present.len()))?;
    let (_, (_, header)) = present.first_key_value()?;
    Some(CountedSegment {
        id: header.id.segment,
        attempt,
        header: (*header).clone(),
        complete: present.len() == usize::from(geometry.width()),
        present: present.iter().map(|(&index, &(store, _))| (store, index)).collect(),
    })
}
