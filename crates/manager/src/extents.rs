//! Where a file's blocks are: a map from block numbers to log addresses, kept as runs.
//!
//! Invariants: runs do not overlap; every run is [`well_formed`] for the map's block size; two
//! neighbours that continue each other in the file and in the segment are one run. A block that is
//! shorter than the block size ends its run. It may be anywhere in the file: if the file grows past
//! a short block by a hole, the block stays short, and the missing bytes read as zeroes.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use types::{BlockAddr, Extent};

/// True if a run is well-formed for this block size: all blocks but the last are full, the last has
/// at least one byte, and no number overflows. Runs from outside must pass this before they reach
/// an [`ExtentMap`].
pub fn well_formed(extent: &Extent, block_size: u32) -> bool {
    let (len, full) = (u64::from(extent.addr.len), u64::from(extent.count) * u64::from(block_size));
    extent.count > 0
        && len <= full
        && len > full - u64::from(block_size)
        && extent.first.checked_add(u64::from(extent.count)).is_some()
        && extent.addr.offset.checked_add(extent.addr.len).is_some()
}

/// A map from block numbers to addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExtentMap {
    block_size: u32,
    /// By first block.
    runs: BTreeMap<u64, Extent>,
}

impl ExtentMap {
    /// An empty map for blocks of `block_size` bytes.
    pub fn new(block_size: u32) -> Self {
        ExtentMap { block_size, runs: BTreeMap::new() }
    }

    /// True if no block is mapped.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// All runs in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Extent> + '_ {
        self.runs.values()
    }

    /// Maps a run, in place of any earlier one. Returns the pieces that it replaced, in ascending
    /// order.
    ///
    /// `extent` must be [`well_formed`] for the map's block size.
    pub fn set(&mut self, extent: Extent) -> Vec<Extent> {
        debug_assert!(well_formed(&extent, self.block_size), "{extent:?} with blocks of {}", self.block_size);
        let replaced = self.unmap(extent.first, extent.end());
        let mut run = extent;
        if let Some((&first, before)) = self.runs.range(..run.first).next_back()
            && before.continues(&run, self.block_size)
        {
            run = join(before, &run);
            self.runs.remove(&first);
        }
        if let Some(after) = self.runs.get(&run.end())
            && run.continues(after, self.block_size)
        {
            run = join(&run, after);
            self.runs.remove(&extent.end());
        }
        self.runs.insert(run.first, run);
        replaced
    }

    /// Makes the blocks `first .. end` holes. Returns the pieces that were there, in ascending
    /// order.
    pub fn unmap(&mut self, first: u64, end: u64) -> Vec<Extent> {
        let removed: Vec<Extent> = self.range(first, end).collect();
        let (Some(head), Some(tail)) = (removed.first(), removed.last()) else {
            return removed;
        };
        // Only the outermost runs can reach beyond the range; their outer parts stay.
        let left = self.run_at(head.first).and_then(|run| run.slice(run.first, first, self.block_size));
        let right = self.run_at(tail.first).and_then(|run| run.slice(end, run.end(), self.block_size));
        self.runs.remove(&left.map_or(head.first, |l| l.first));
        for piece in &removed[1..] {
            self.runs.remove(&piece.first);
        }
        for piece in [left, right].into_iter().flatten() {
            self.runs.insert(piece.first, piece);
        }
        removed
    }

    /// Where one block is.
    pub fn block(&self, b: u64) -> Option<BlockAddr> {
        self.run_at(b)?.slice(b, b.checked_add(1)?, self.block_size).map(|e| e.addr)
    }

    /// The mapped blocks of `first .. end` in ascending order; runs that reach beyond the range are
    /// clipped.
    pub fn range(&self, first: u64, end: u64) -> impl Iterator<Item = Extent> + '_ {
        let begin = self.run_at(first).map_or(first, |run| run.first);
        self.runs
            .range(begin..)
            .map(|(_, run)| run)
            .take_while(move |run| run.first < end)
            .filter_map(move |run| run.slice(first, end, self.block_size))
    }

    /// The first mapped block at or after `from`.
    pub fn next_mapped(&self, from: u64) -> Option<u64> {
        if self.run_at(from).is_some() {
            return Some(from);
        }
        self.runs.range((Excluded(from), Unbounded)).next().map(|(&first, _)| first)
    }

    /// The whole run that contains a block.
    fn run_at(&self, b: u64) -> Option<&Extent> {
        self.runs.range(..=b).next_back().map(|(_, run)| run).filter(|run| run.end() > b)
    }
}

/// Joins two runs that continue each other.
fn join(left: &Extent, right: &Extent) -> Extent {
    Extent {
        first: left.first,
        count: left.count + right.count,
        addr: BlockAddr { len: left.addr.len + right.addr.len, ..left.addr },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::{LogId, SegmentId};

    const BLOCK: u32 = 4096;

    fn addr(seq: u64, offset: u32, len: u32) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(1), epoch: 1, seq }, offset, len }
    }

    fn run(first: u64, count: u32, seq: u64, offset: u32) -> Extent {
        Extent { first, count, addr: addr(seq, offset, count * BLOCK) }
    }

    #[test]
    fn neighbours_in_file_and_segment_become_one_run() {
        let mut map = ExtentMap::new(BLOCK);
        map.set(run(0, 2, 1, 0));
        map.set(run(4, 1, 1, 4 * BLOCK));
        map.set(run(2, 2, 1, 2 * BLOCK));
        assert_eq!(map.iter().copied().collect::<Vec<_>>(), [run(0, 5, 1, 0)]);
    }

    #[test]
    fn a_short_block_is_not_joined_with_what_follows() {
        let mut map = ExtentMap::new(BLOCK);
        map.set(Extent { first: 0, count: 1, addr: addr(1, 0, 100) });
        map.set(Extent { first: 1, count: 1, addr: addr(1, 100, BLOCK) });
        assert_eq!(map.len(), 2);
        assert_eq!(map.block(0), Some(addr(1, 0, 100)));
    }

    #[test]
    fn overwriting_the_middle_splits_and_returns_what_was_there() {
        let mut map = ExtentMap::new(BLOCK);
        map.set(run(0, 10, 1, 0));
        assert_eq!(map.set(run(3, 2, 2, 0)), [run(3, 2, 1, 3 * BLOCK)]);
        assert_eq!(
            map.iter().copied().collect::<Vec<_>>(),
            [run(0, 3, 1, 0), run(3, 2, 2, 0), run(5, 5, 1, 5 * BLOCK)]
        );
    }

    #[test]
    fn unmap_to_the_end_of_time_keeps_the_short_tail_exact() {
        let mut map = ExtentMap::new(BLOCK);
        map.set(Extent { first: 0, count: 3, addr: addr(1, 0, 2 * BLOCK + 7) });
        assert_eq!(map.unmap(1, u64::MAX), [Extent { first: 1, count: 2, addr: addr(1, BLOCK, BLOCK + 7) }]);
        assert_eq!(map.next_mapped(1), None);
        assert_eq!(map.block(0), Some(addr(1, 0, BLOCK)));
    }

    #[test]
    fn misfit_runs_are_recognised() {
        let fits = |count, len| well_formed(&Extent { first: 0, count, addr: addr(1, 0, len) }, BLOCK);
        assert!(fits(1, 1) && fits(2, BLOCK + 1) && fits(2, 2 * BLOCK));
        assert!(!fits(1, 0) && !fits(0, 0) && !fits(2, BLOCK) && !fits(1, BLOCK + 1) && !fits(u32::MAX, 1));
        assert!(!well_formed(&Extent { first: u64::MAX, count: 1, addr: addr(1, 0, 1) }, BLOCK));
        assert!(!well_formed(&Extent { first: 0, count: 1, addr: addr(1, u32::MAX, 1) }, BLOCK));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Set(Extent),
        Unmap(u64, u64),
    }

    /// Addresses come from few segments at matching offsets, so that joins happen often.
    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0u64..48, 1u32..12, 1u64..4, 0u32..3, prop_oneof![Just(0), 1..BLOCK]).prop_map(
                |(first, count, seq, shift, cut)| Op::Set(Extent {
                    first,
                    count,
                    addr: addr(seq, (first as u32 + shift) * BLOCK, count * BLOCK - cut),
                })
            ),
            1 => (0u64..64, 0u64..20).prop_map(|(a, n)| Op::Unmap(a, a + n)),
            1 => (0u64..64).prop_map(|a| Op::Unmap(a, u64::MAX)),
        ]
    }

    /// The model: one address per block.
    type Model = BTreeMap<u64, BlockAddr>;

    fn blocks(extents: &[Extent]) -> Model {
        let mut out = Model::new();
        for e in extents {
            for b in e.first..e.end() {
                assert!(out.insert(b, e.slice(b, b + 1, BLOCK).unwrap().addr).is_none(), "block twice");
            }
        }
        out
    }

    proptest! {
        #[test]
        fn prop_behaves_like_one_address_per_block(
            ops in prop::collection::vec(op(), 1..60), a in 0u64..70, n in 0u64..30,
        ) {
            let mut map = ExtentMap::new(BLOCK);
            let mut model = Model::new();
            for op in ops {
                let (first, end) = match &op {
                    Op::Set(e) => (e.first, e.end()),
                    Op::Unmap(a, b) => (*a, *b),
                };
                let expected: Model = model.range(first..end).map(|(&b, &x)| (b, x)).collect();
                model.retain(|b, _| !(first..end).contains(b));
                let got = match op {
                    Op::Set(e) => {
                        model.extend(blocks(&[e]));
                        map.set(e)
                    }
                    Op::Unmap(a, b) => map.unmap(a, b),
                };
                prop_assert_eq!(blocks(&got), expected);
                prop_assert!(got.iter().all(|e| well_formed(e, BLOCK)));
                let all: Vec<Extent> = map.iter().copied().collect();
                prop_assert_eq!(&blocks(&all), &model);
                for pair in all.windows(2) {
                    prop_assert!(pair[0].end() <= pair[1].first && !pair[0].continues(&pair[1], BLOCK));
                }
            }
            let clipped: Vec<Extent> = map.range(a, a + n).collect();
            prop_assert_eq!(blocks(&clipped), model.range(a..a + n).map(|(&b, &x)| (b, x)).collect::<Model>());
            prop_assert_eq!(map.block(a), model.get(&a).copied());
            prop_assert_eq!(map.next_mapped(a), model.range(a..).next().map(|(&b, _)| b));
            prop_assert_eq!(map.is_empty(), model.is_empty());
        }
    }
}
