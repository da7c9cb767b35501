//! Sets of bytes of a file, as ranges.

use crate::codec::Wire;
use std::ops::Range;
use types::codec::{DecodeError, Reader};

/// Disjoint ranges that do not touch, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Of one range.
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

    /// Adds all of another set.
    pub fn add_all(&mut self, other: &Ranges) {
        other.iter().for_each(|range| self.add(range));
    }

    /// Takes away what is at or beyond `end`.
    pub fn cut(&mut self, end: u64) {
        self.0.retain(|r| r.start < end);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(end);
        }
    }

    /// Takes away a range.
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

    /// What of a range is not in the set.
    pub fn missing(&self, range: Range<u64>) -> Ranges {
        let mut missing = Ranges::of(range);
        self.iter().for_each(|r| missing.remove(r));
        missing
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().cloned()
    }

    /// Bytes in all of them.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// As the distances between the ends, the first from 0.
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
                let missing = ranges.missing(start..start + 30);
                prop_assert_eq!(missing.iter().flatten().collect::<BTreeSet<u64>>(), (start..start + 30).filter(|n| !set.contains(n)).collect::<BTreeSet<_>>());
                prop_assert_eq!(Ranges::from_bytes(&ranges.to_bytes()), Ok(ranges.clone()));
                prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start) && all.iter().all(|r| !r.is_empty()));
            }
        }
    }
}
