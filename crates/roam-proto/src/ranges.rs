//! Sets of bytes of a file, as ranges.

use crate::codec::Wire;
use std::ops::Range;
use types::codec::{DecodeError, Reader};

/// Ranges in order that neither overlap nor touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Makes a set of one range.
    pub fn of(range: Range<u64>) -> Ranges {
        let mut ranges = Ranges::default();
        ranges.add(range);
        ranges
    }

    /// Adds a range.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|r| r.end < range.start);
        let after = self.0.partition_point(|r| r.start <= range.end);
        let merged = self.0[first..after].iter().fold(range, |all, r| all.start.min(r.start)..all.end.max(r.end));
        self.0.splice(first..after, [merged]);
    }

    /// Adds all ranges of another set.
    pub fn add_all(&mut self, other: &Ranges) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(other.iter());
        all.sort_by_key(|range| range.start);
        for range in all {
            match self.0.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => self.0.push(range),
            }
        }
    }

    /// Reduces the set to at most `count_max` ranges (one at least), by filling the shortest gaps.
    pub fn coarsen(&mut self, count_max: usize) {
        let excess = self.0.len().saturating_sub(count_max.max(1));
        let mut gaps: Vec<u64> = self.0.windows(2).map(|two| two[1].start - two[0].end).collect();
        let Some(last) = excess.checked_sub(1) else { return };
        let (shorter, longest, _) = gaps.select_nth_unstable(last);
        let longest = *longest;
        // Of the gaps of this length, only as many are filled as must be.
        let mut as_long = excess - shorter.iter().filter(|gap| **gap < longest).count();
        let mut coarse: Vec<Range<u64>> = Vec::with_capacity(self.0.len() - excess);
        for range in self.0.drain(..) {
            match coarse.last_mut() {
                Some(before) if range.start - before.end < longest => before.end = range.end,
                Some(before) if range.start - before.end == longest && as_long > 0 => {
                    as_long -= 1;
                    before.end = range.end;
                }
                _ => coarse.push(range),
            }
        }
        self.0 = coarse;
    }

    /// Removes what is at or beyond `end`.
    pub fn cut(&mut self, end: u64) {
        self.0.retain(|r| r.start < end);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(end);
        }
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for r in self.0.drain(..) {
            left.extend(
                [r.start..r.end.min(range.start), r.start.max(range.end)..r.end].into_iter().filter(|r| !r.is_empty()),
            );
        }
        self.0 = left;
    }

    /// Returns the parts of a range that are not in the set.
    pub fn missing(&self, range: Range<u64>) -> Ranges {
        let (mut missing, mut at) = (Vec::new(), range.start);
        let first = self.0.partition_point(|r| r.end <= range.start);
        for r in self.0[first..].iter().take_while(|r| r.start < range.end) {
            if at < r.start {
                missing.push(at..r.start);
            }
            at = at.max(r.end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        Ranges(missing)
    }

    /// Returns the parts of a range that are in the set. Each comes with its offset in all ranges
    /// of the set, put one after the other.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let mut before = 0;
        let placed = self.0.iter().map(move |r| {
            let at = before;
            before += r.end - r.start;
            (r, at)
        });
        placed.skip_while(move |(r, _)| r.end <= range.start).take_while(move |(r, _)| r.start < range.end).map(
            move |(r, at)| {
                let (start, end) = (r.start.max(range.start), r.end.min(range.end));
                (start..end, at + (start - r.start))
            },
        )
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    /// Number of bytes in all ranges.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Encoded as the distances between the ends of ranges, the first from 0.
impl Wire for Ranges {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.0.len() as u64).encode(out);
        let mut at = 0;
        for range in &self.0 {
            (range.start - at).encode(out);
            (range.end - range.start).encode(out);
            at = range.end;
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let invalid = DecodeError::Invalid("ranges");
        let (mut ranges, mut at) = (Vec::new(), 0u64);
        for i in 0..u64::decode(r)? {
            let start = at.checked_add(u64::decode(r)?).filter(|start| i == 0 || *start > at).ok_or(invalid)?;
            let end = start.checked_add(u64::decode(r)?).filter(|end| *end > start).ok_or(invalid)?;
            ranges.push(start..end);
            at = end;
        }
        Ok(Ranges(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn model_ranges_are_a_set_of_numbers(steps in prop::collection::vec((0u64..60, 0u64..12, 0..3), 0..30)) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (start, len, what) in steps {
                match what {
                    0 => {
                        ranges.cut(start + 20);
                        set.retain(|n| *n < start + 20);
                    }
                    1 => {
                        ranges.remove(start..start + len);
                        set.retain(|n| !(start..start + len).contains(n));
                    }
                    _ => {
                        ranges.add(start..start + len);
                        set.extend(start..start + len);
                    }
                }
                prop_assert_eq!(ranges.iter().flatten().collect::<BTreeSet<u64>>(), set.clone());
                prop_assert_eq!((ranges.len(), ranges.is_empty()), (set.len() as u64, set.is_empty()));
                let all: Vec<_> = ranges.iter().collect();
                let mut all_of_both = ranges.clone();
                all_of_both.add_all(&Ranges::of(start..start + len));
                let mut one_by_one = ranges.clone();
                one_by_one.add(start..start + len);
                prop_assert_eq!(all_of_both, one_by_one);
                for count_max in [1, 2, 4] {
                    let mut coarse = ranges.clone();
                    coarse.coarsen(count_max);
                    prop_assert_eq!(coarse.count(), ranges.count().min(count_max));
                    prop_assert!(ranges.iter().all(|r| coarse.missing(r).is_empty()));
                    prop_assert!(coarse.iter().collect::<Vec<_>>().windows(2).all(|two| two[0].end < two[1].start));
                    let ends = |r: &Ranges| r.iter().next().map(|first| first.start).zip(r.iter().last().map(|last| last.end));
                    prop_assert_eq!(ends(&coarse), ends(&ranges));
                }
                let missing = ranges.missing(start..start + 30);
                prop_assert_eq!(missing.iter().flatten().collect::<BTreeSet<u64>>(), (start..start + 30).filter(|n| !set.contains(n)).collect::<BTreeSet<_>>());
                // `within` gives each byte of the set its offset among all bytes of the set.
                let places: Vec<(u64, u64)> = ranges.iter().flatten().zip(0..).filter(|(n, _)| (start..start + 30).contains(n)).collect();
                let within: Vec<_> = ranges.within(start..start + 30).flat_map(|(r, at)| r.zip(at..)).collect();
                prop_assert_eq!(within, places);
                prop_assert_eq!(Ranges::from_bytes(&ranges.to_bytes()), Ok(ranges.clone()));
                prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start) && all.iter().all(|r| !r.is_empty()));
            }
        }
    }
}
