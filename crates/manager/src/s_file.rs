//! Live bytes of each segment, as one manager counts them: the s-file record
//! (docs/core.md#manager).
//!
//! Counts are exact: every byte that becomes reachable is added once, and every byte that stops
//! being reachable is subtracted once, with the true old address. A segment without live bytes has
//! no row.
//!
//! The tables are trees that change with a checkpoint. Between checkpoints only differences are
//! kept, so that a count can be changed without being in memory.

use std::collections::BTreeMap;
use types::{BlockAddr, SegmentId};

/// For each segment, by how much its live bytes differ. No entry is zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Difference {
    bytes: BTreeMap<SegmentId, i64>,
}

impl Difference {
    /// Notes that these bytes are reachable now.
    pub fn add(&mut self, addr: BlockAddr) {
        self.change(addr.segment, addr.len.into());
    }

    /// Notes that these bytes are not reachable any more.
    pub fn sub(&mut self, addr: BlockAddr) {
        self.change(addr.segment, -i64::from(addr.len));
    }

    /// Adds another difference.
    pub fn merge(&mut self, other: &Difference) {
        other.iter().for_each(|(segment, bytes)| self.change(segment, bytes));
    }

    /// Subtracts a difference that the tables have taken over.
    pub fn settle(&mut self, other: &Difference) {
        other.iter().for_each(|(segment, bytes)| self.change(segment, -bytes));
    }

    /// The difference of one segment.
    pub fn of(&self, segment: SegmentId) -> i64 {
        self.bytes.get(&segment).copied().unwrap_or(0)
    }

    /// All segments with a difference, in order.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentId, i64)> + '_ {
        self.bytes.iter().map(|(&segment, &bytes)| (segment, bytes))
    }

    fn change(&mut self, segment: SegmentId, by: i64) {
        let bytes = self.bytes.entry(segment).or_insert(0);
        *bytes += by;
        if *bytes == 0 {
            self.bytes.remove(&segment);
        }
    }
}

/// A segment's count after a difference; `None` if it has no live bytes any more.
pub fn counted(segment: SegmentId, before: Option<u64>, difference: i64) -> Option<u64> {
    let old = before.unwrap_or(0);
    match old.checked_add_signed(difference) {
        Some(live) => Some(live).filter(|&live| live > 0),
        // A segment must never be freed too early. So a wrong count is kept high, and fsck reports
        // it.
        None => {
            debug_assert!(false, "{segment}: {difference} bytes freed, but only {old} are counted");
            tracing::error!(%segment, counted = old, difference, "the count of a segment's live bytes is wrong; run `starling fsck`");
            before
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::LogId;

    fn addr(seq: u64, len: u32) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(3), epoch: 1, seq }, offset: 0, len }
    }

    proptest! {
        #[test]
        fn prop_counts_what_was_added_and_not_yet_taken_away(
            adds in prop::collection::vec((1u64..5, 0u32..1000), 0..40), keep in prop::collection::vec(any::<bool>(), 40),
            cut in 0usize..40,
        ) {
            let (mut whole, mut first, mut second) = <(Difference, Difference, Difference)>::default();
            let mut sums: BTreeMap<u64, i64> = BTreeMap::new();
            for (n, (&(seq, len), &keep)) in adds.iter().zip(&keep).enumerate() {
                let half = if n < cut { &mut first } else { &mut second };
                for difference in [&mut whole, half] {
                    difference.add(addr(seq, len));
                    if !keep {
                        difference.sub(addr(seq, len));
                    }
                }
                *sums.entry(seq).or_insert(0) += if keep { i64::from(len) } else { 0 };
            }
            sums.retain(|_, live| *live > 0);
            prop_assert_eq!(whole.iter().map(|(s, bytes)| (s.seq, bytes)).collect::<BTreeMap<_, _>>(), sums);
            let mut rest = whole.clone();
            rest.settle(&first);
            prop_assert_eq!(&rest, &second);
            rest.merge(&first);
            prop_assert_eq!(rest, whole);
        }
    }

    #[test]
    fn a_count_is_its_base_and_the_difference() {
        let segment = addr(1, 1).segment;
        assert_eq!(counted(segment, None, 5), Some(5));
        assert_eq!(counted(segment, Some(7), -2), Some(5));
        assert_eq!(counted(segment, Some(7), -7), None);
    }
}
