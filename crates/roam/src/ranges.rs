//! Sets of bytes of a file, as ranges.

use std::ops::Range;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn model_ranges_are_a_set_of_numbers(steps in prop::collection::vec((0u64..60, 0u64..12, any::<bool>()), 0..30)) {
            let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
            for (start, len, cuts) in steps {
                match cuts {
                    true => {
                        ranges.cut(start + 20);
                        set.retain(|n| *n < start + 20);
                    }
                    false => {
                        ranges.add(start..start + len);
                        set.extend(start..start + len);
                    }
                }
                prop_assert_eq!(ranges.iter().flatten().collect::<BTreeSet<u64>>(), set.clone());
                prop_assert_eq!((ranges.len(), ranges.is_empty()), (set.len() as u64, set.is_empty()));
                let all: Vec<_> = ranges.iter().collect();
                prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start) && all.iter().all(|r| !r.is_empty()));
            }
        }
    }
}
