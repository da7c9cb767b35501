//! Where fragments go: the allocator over the pages of the `fragments` file. Pure; it touches no disk.
//!
//! A fragment takes whole pages, so that writing one never touches a page that holds another. Every free page can be put to
//! use: neighbouring free pages are one **extent**, whatever was in them before, and when no extent is long enough,
//! [`compaction`](Space::compaction) says which fragments to move to make one.
//!
//! The life of a page: *free*, then *reserved* (a durable checkpoint says that it may be written), *used*, and, when its
//! fragment is released, *quarantined* until a checkpoint has recorded that, then free again. What a checkpoint reserved and
//! nobody used is free when the next one is drafted.
//!
//! Invariants:
//! - Only what the checkpoint in force lists in its **reservation** is written, each of its extents from its start on and
//!   without gaps, so recovery needs to look nowhere else.
//! - Every fragment carries the random number of the checkpoint under which it was written (its *generation*). A
//!   checkpoint that was never durable was never written under, so what an earlier use of a page left behind has another
//!   generation and cannot be taken for a fragment, and neither can what a crash tore.
//! - A page is not written again while the checkpoint in force, which a crash would go back to, has a fragment in it.

use std::collections::{BTreeMap, BTreeSet};
use striped_log::fragment::{FRAGMENT_LEN_MAX, HEADER_LEN};

/// Bytes of a page; fragments begin at multiples of this.
pub const PAGE: u32 = 4096;
/// Pages of the largest fragment.
pub const PAGES_MAX: u32 = pages(FRAGMENT_LEN_MAX);
/// Extents shorter than [`PAGES_MAX`] that a reservation lists, at most: recovery looks at each.
const SHORT_EXTENTS_MAX: usize = 1024;

/// Pages that a fragment with `payload_len` bytes of payload takes, header and rounding included.
pub const fn pages(payload_len: u32) -> u32 {
    (HEADER_LEN as u32 + payload_len).div_ceil(PAGE)
}

/// The same in bytes.
pub const fn footprint(payload_len: u32) -> u32 {
    pages(payload_len) * PAGE
}

/// Pages that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent {
    /// The first.
    pub start: u32,
    /// How many.
    pub len: u32,
}

impl Extent {
    /// The page after the last.
    pub fn end(&self) -> u32 {
        self.start + self.len
    }

    /// True when all of `other` is within.
    pub fn holds(&self, other: &Extent) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Where it begins in the `fragments` file, in bytes.
    pub fn file_offset(&self) -> u64 {
        u64::from(self.start) * u64::from(PAGE)
    }

    /// How long it is, in bytes.
    pub fn byte_len(&self) -> u64 {
        u64::from(self.len) * u64::from(PAGE)
    }
}

/// What the next checkpoint will say of pages; takes effect with [`Space::adopt`], once that checkpoint is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    /// What may be written until the checkpoint after it, by start.
    pub reservation: Vec<Extent>,
    freed: usize,
}

impl Draft {
    /// True when a fragment of so many pages could be written under this draft.
    pub fn fits(&self, pages: u32) -> bool {
        self.reservation.iter().any(|extent| extent.len >= pages)
    }
}

/// How to make a long extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compaction {
    /// Free; long enough for the first fragments to move. Further ones go to where the first were.
    pub landing: Extent,
    /// What will be free, less what moves within: all fragments in it are to be moved.
    pub window: Extent,
}

/// Free extents, neighbours joined.
#[derive(Clone, Debug, Default)]
struct Pool {
    len_by_start: BTreeMap<u32, u32>,
}

impl Pool {
    fn insert(&mut self, mut extent: Extent) {
        if extent.len == 0 {
            return;
        }
        if let Some((&start, &len)) = self.len_by_start.range(..extent.start).next_back()
            && start + len == extent.start
        {
            extent = Extent { start, len: len + extent.len };
        }
        if let Some(len) = self.len_by_start.remove(&extent.end()) {
            extent.len += len;
        }
        self.len_by_start.insert(extent.start, extent.len);
    }

    /// Takes out an extent, all of which is in the pool.
    fn remove(&mut self, taken: Extent) {
        let Some((&start, &len)) = self.len_by_start.range(..=taken.start).next_back() else { return };
        let whole = Extent { start, len };
        debug_assert!(taken.end() <= whole.end(), "{taken:?} is not free");
        self.len_by_start.remove(&start);
        self.insert(Extent { start, len: taken.start - start });
        self.insert(Extent { start: taken.end(), len: whole.end() - taken.end() });
    }

    fn iter(&self) -> impl Iterator<Item = Extent> {
        self.len_by_start.iter().map(|(&start, &len)| Extent { start, len })
    }

    /// The longest extent, the first of several.
    fn longest(&self) -> Option<Extent> {
        self.iter().max_by_key(|extent| (extent.len, std::cmp::Reverse(extent.start)))
    }
}

/// The allocator.
///
/// Writing: [`allocate`](Self::allocate) until it has no place, then [`draft`](Self::draft), write the draft's reservation
/// in a checkpoint, [`adopt`](Self::adopt), and go on. [`release`](Self::release) at any time.
#[derive(Debug)]
pub struct Space {
    page_count: u32,
    free: Pool,
    /// In the order of being released.
    quarantined: Vec<Extent>,
    /// What may be written: lengths and starts of what is left of the reservation.
    reserved: BTreeSet<(u32, u32)>,
    used_pages: u64,
}

impl Space {
    /// An allocator over `page_count` pages, of which `live` are taken. Nothing may be written before the first
    /// [`adopt`](Self::adopt). Fails, saying what is wrong, if that cannot be.
    pub fn recover(page_count: u32, mut live: Vec<Extent>) -> Result<Space, &'static str> {
        live.sort_unstable();
        let mut space = Space {
            page_count,
            free: Pool::default(),
            quarantined: Vec::new(),
            reserved: BTreeSet::new(),
            used_pages: 0,
        };
        let mut end = 0;
        for extent in live {
            if extent.start < end {
                return Err("two fragments take the same page");
            }
            if extent.start.checked_add(extent.len).is_none_or(|end| end > page_count) {
                return Err("a fragment is beyond the last page");
            }
            space.free.insert(Extent { start: end, len: extent.start - end });
            space.used_pages += u64::from(extent.len);
            end = extent.end();
        }
        space.free.insert(Extent { start: end, len: page_count - end });
        Ok(space)
    }

    /// Number of pages.
    pub fn page_count(&self) -> u32 {
        self.page_count
    }

    /// Bytes taken by live fragments, headers and rounding included.
    pub fn used_bytes(&self) -> u64 {
        self.used_pages * u64::from(PAGE)
    }

    /// Pages that a draft of this instant could reserve for fragments of any length.
    pub fn roomy_pages(&self) -> u32 {
        self.pool(self.quarantined.len()).iter().map(|extent| extent.len).filter(|&len| len >= PAGES_MAX).sum()
    }

    /// Adds pages at the end.
    pub fn grow(&mut self, page_count: u32) {
        if let Some(len) = page_count.checked_sub(self.page_count) {
            self.free.insert(Extent { start: self.page_count, len });
            self.page_count = page_count;
        }
    }

    /// A place for a fragment: the start of the shortest reserved extent that is long enough. `None`: a checkpoint must come first.
    pub fn allocate(&mut self, pages: u32) -> Option<Extent> {
        let &(len, start) = self.reserved.range((pages, 0)..).next()?;
        self.reserved.remove(&(len, start));
        if len > pages {
            self.reserved.insert((len - pages, start + pages));
        }
        self.used_pages += u64::from(pages);
        Some(Extent { start, len: pages })
    }

    /// How many pages from `start` on may be written and are not used, if an allocation has just ended there.
    pub fn reserved_from(&self, start: u32) -> u32 {
        self.reserved.iter().find(|extent| extent.1 == start).map_or(0, |extent| extent.0)
    }

    /// Gives back the place of a fragment that is forgotten, or was never written.
    pub fn release(&mut self, place: Extent) {
        self.used_pages -= u64::from(place.len);
        self.quarantined.push(place);
    }

    /// All that is not used, as of a checkpoint that records the first `freed` releases.
    fn pool(&self, freed: usize) -> Pool {
        let mut pool = self.free.clone();
        let reserved = self.reserved.iter().map(|&(len, start)| Extent { start, len });
        reserved.chain(self.quarantined[..freed].iter().copied()).for_each(|extent| pool.insert(extent));
        pool
    }

    /// What a checkpoint of this instant may reserve: extents that any fragment fits into, in the order of the file, until
    /// they have `target` pages, and the longest of the others; but never `keep` pages of the longest extent, into which
    /// [`compaction`](Self::compaction) moves. What is quarantined now counts as free, since that checkpoint records it.
    pub fn draft(&self, target: u32, keep: u32) -> Draft {
        let freed = self.quarantined.len();
        let mut pool = self.pool(freed);
        if let Some(longest) = pool.longest() {
            let len = keep.min(longest.len);
            pool.remove(Extent { start: longest.end() - len, len });
        }
        let (mut reservation, mut short) = (Vec::new(), Vec::new());
        let mut left = target;
        for extent in pool.iter() {
            if extent.len < PAGES_MAX {
                short.push(extent);
            } else if left > 0 {
                let len = extent.len.min(left.max(PAGES_MAX));
                reservation.push(Extent { len, ..extent });
                left = left.saturating_sub(len);
            }
        }
        short.sort_unstable_by_key(|extent| std::cmp::Reverse(extent.len));
        reservation.extend(short.into_iter().take(SHORT_EXTENTS_MAX));
        reservation.sort_unstable();
        Draft { reservation, freed }
    }

    /// A draft that reserves just `extent`, no page of which is used.
    pub fn draft_only(&self, extent: Extent) -> Draft {
        Draft { reservation: vec![extent], freed: self.quarantined.len() }
    }

    /// Puts a draft into force. The checkpoint that records it is durable, and nothing was allocated since it was drafted.
    pub fn adopt(&mut self, draft: Draft) {
        let mut pool = self.pool(draft.freed);
        self.quarantined.drain(..draft.freed);
        draft.reservation.iter().for_each(|extent| pool.remove(*extent));
        self.free = pool;
        self.reserved = draft.reservation.iter().map(|extent| (extent.len, extent.start)).collect();
    }

    /// The longest extent that is not used, as of a checkpoint of this instant.
    pub fn longest(&self) -> Option<Extent> {
        self.pool(self.quarantined.len()).longest()
    }

    /// How to get at least `goal` free pages together, moving as little as possible. `live` are the places of all fragments in
    /// the order of the file; those whose start is in `unmovable` stay. `None`: there are not so many free pages on one side of those.
    pub fn compaction(&self, live: &[Extent], unmovable: &BTreeSet<u32>, goal: u32) -> Option<Compaction> {
        let gap_before = |i: usize| {
            let begin = i.checked_sub(1).map_or(0, |before| live[before].end());
            live.get(i).map_or(self.page_count, |next| next.start) - begin
        };
        let mut best: Option<(u32, std::ops::Range<usize>)> = None;
        // The run `first..=i` of fragments, what it takes to move them, and the free pages before, between and after them.
        let (mut first, mut moved, mut free) = (0, 0, gap_before(0));
        for (i, fragment) in live.iter().enumerate() {
            if unmovable.contains(&fragment.start) {
                (first, moved, free) = (i + 1, 0, gap_before(i + 1));
                continue;
            }
            moved += fragment.len;
            free += gap_before(i + 1);
            while first <= i && free >= goal {
                if best.as_ref().is_none_or(|(least, _)| moved < *least) {
                    best = Some((moved, first..i + 1));
                }
                moved -= live[first].len;
                free -= gap_before(first);
                first += 1;
            }
        }
        let (_, run) = best?;
        let start = live[run.start].start - gap_before(run.start);
        let end = live[run.end - 1].end() + gap_before(run.end);
        let window = Extent { start, len: end - start };
        Some(Compaction { landing: self.longest()?, window })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fresh(page_count: u32, target: u32) -> Space {
        let mut space = Space::recover(page_count, Vec::new()).unwrap();
        space.adopt(space.draft(target, 0));
        space
    }

    fn at(start: u32, len: u32) -> Extent {
        Extent { start, len }
    }

    #[test]
    fn nothing_is_written_before_a_checkpoint_is_in_force() {
        let mut space = Space::recover(4, Vec::new()).unwrap();
        assert_eq!(space.allocate(1), None);
        space.adopt(space.draft(1, 0));
        assert!(space.allocate(1).is_some());
    }

    #[test]
    fn fragments_follow_each_other() {
        let mut space = fresh(1000, 1000);
        assert_eq!(pages(FRAGMENT_LEN_MAX), 257);
        assert_eq!(space.allocate(257), Some(at(0, 257)));
        assert_eq!(space.allocate(1), Some(at(257, 1)));
        assert_eq!(space.allocate(742), Some(at(258, 742)));
        assert_eq!(space.allocate(1), None);
    }

    #[test]
    fn the_shortest_extent_that_fits_is_used() {
        let mut space = Space::recover(1000, vec![at(10, 90), at(103, 97)]).unwrap();
        space.adopt(space.draft(1000, 0));
        assert_eq!(space.allocate(2), Some(at(100, 2)));
        assert_eq!(space.allocate(2), Some(at(0, 2)));
        assert_eq!(space.allocate(1), Some(at(102, 1)));
        assert_eq!(space.allocate(9), Some(at(200, 9)));
    }

    #[test]
    fn released_pages_are_not_reused_before_a_checkpoint_has_recorded_it() {
        let mut space = fresh(300, 300);
        let place = space.allocate(200).unwrap();
        space.allocate(100).unwrap();
        space.release(place);
        assert_eq!(space.allocate(1), None);
        let draft = space.draft(300, 0);
        assert_eq!(draft.reservation, [place]);
        space.adopt(draft);
        assert_eq!(space.allocate(200), Some(place));
    }

    #[test]
    fn what_is_released_between_draft_and_adoption_waits_for_the_next_checkpoint() {
        let mut space = fresh(30, 30);
        let places: Vec<Extent> = (0..3).map(|_| space.allocate(10).unwrap()).collect();
        space.release(places[0]);
        let draft = space.draft(30, 0);
        space.release(places[1]);
        space.adopt(draft);
        assert_eq!(space.allocate(10), Some(places[0]));
        assert_eq!(space.allocate(10), None);
    }

    #[test]
    fn a_draft_leaves_what_it_must_keep_of_the_longest_extent() {
        let space = Space::recover(2000, vec![at(600, 10)]).unwrap();
        assert_eq!(space.draft(5000, 514).reservation, [at(0, 600), at(610, 876)]);
        assert_eq!(space.draft(1, 514).reservation, [at(0, 257)]);
        assert_eq!(space.draft(0, 5000).reservation, []);
        assert!(!space.draft(5000, 514).fits(877));
    }

    #[test]
    fn recovery_refuses_fragments_that_do_not_fit() {
        let recover = |live: &[Extent]| Space::recover(20, live.to_vec()).map(|s| s.used_bytes());
        assert_eq!(recover(&[at(0, 1), at(1, 1), at(10, 10)]), Ok(12 * 4096));
        assert!(recover(&[at(20, 1)]).is_err());
        assert!(recover(&[at(19, 2)]).is_err());
        assert!(recover(&[at(u32::MAX, 2)]).is_err());
        assert!(recover(&[at(3, 5), at(7, 1)]).is_err());
    }

    #[test]
    fn compaction_moves_the_least() {
        // Free: 0..100, 110..160, 560..600, 610..700.
        let live = [at(100, 10), at(160, 400), at(600, 10), at(700, 100)];
        let space = Space::recover(800, live.to_vec()).unwrap();
        let plan = |goal, unmovable: &[u32]| space.compaction(&live, &unmovable.iter().copied().collect(), goal);
        let window = |goal, unmovable: &[u32]| plan(goal, unmovable).map(|plan| plan.window);
        assert_eq!(window(120, &[]), Some(at(0, 160)));
        assert_eq!(window(120, &[100]), Some(at(560, 140)));
        assert_eq!(window(160, &[]), Some(at(0, 600)));
        assert_eq!(window(190, &[100]), None);
        assert_eq!(plan(120, &[]).map(|plan| plan.landing), Some(at(0, 100)));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Allocate(u32),
        Release(usize),
        Checkpoint(u32),
        ReleaseDuringCheckpoint(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1..=PAGES_MAX).prop_map(Op::Allocate),
            3 => (1..8u32).prop_map(Op::Allocate),
            4 => any::<usize>().prop_map(Op::Release),
            1 => (0..6 * PAGES_MAX).prop_map(Op::Checkpoint),
            1 => any::<usize>().prop_map(Op::ReleaseDuringCheckpoint),
        ]
    }

    proptest! {
        /// Live fragments never overlap; only reserved ranges are written; what the last checkpoint holds is never
        /// overwritten; a compaction is planned whenever there is room for one; counts agree with a plain list.
        #[test]
        fn prop_allocations_keep_the_invariants(ops in prop::collection::vec(op(), 1..200)) {
            const PAGES: u32 = 6 * PAGES_MAX;
            let mut space = Space::recover(PAGES, Vec::new()).unwrap();
            let mut live: Vec<Extent> = Vec::new();
            let mut recorded: Vec<Extent> = Vec::new();
            let mut reservation: Vec<Extent> = Vec::new();
            let overlap = |a: &Extent, b: &Extent| a.start < b.end() && b.start < a.end();
            for op in ops {
                match op {
                    Op::Allocate(pages) => if let Some(new) = space.allocate(pages) {
                        prop_assert_eq!(new.len, pages);
                        prop_assert!(live.iter().chain(&recorded).all(|old| !overlap(old, &new)));
                        prop_assert!(reservation.iter().any(|r| r.start <= new.start && new.end() <= r.end()));
                        live.push(new);
                    },
                    Op::Release(i) => if !live.is_empty() {
                        space.release(live.swap_remove(i % live.len()));
                    },
                    Op::Checkpoint(target) => {
                        let draft = space.draft(target, 0);
                        (recorded, reservation) = (live.clone(), draft.reservation.clone());
                        space.adopt(draft);
                    },
                    Op::ReleaseDuringCheckpoint(i) => {
                        let draft = space.draft(PAGES_MAX, 100);
                        (recorded, reservation) = (live.clone(), draft.reservation.clone());
                        if !live.is_empty() {
                            space.release(live.swap_remove(i % live.len()));
                        }
                        space.adopt(draft);
                    },
                }
                let used: u32 = live.iter().map(|l| l.len).sum();
                prop_assert_eq!(space.used_bytes(), u64::from(used) * 4096);
                let mut sorted = live.clone();
                sorted.sort_unstable();
                let plan = space.compaction(&sorted, &BTreeSet::new(), PAGES - used);
                prop_assert_eq!(plan.is_some(), !live.is_empty());
                if let Some(plan) = plan {
                    let apart = |f: &Extent| f.end() <= plan.window.start || plan.window.end() <= f.start;
                    prop_assert!(sorted.iter().all(|f| plan.window.holds(f) || apart(f)), "no fragment is cut");
                }
            }
            live.drain(..).for_each(|place| space.release(place));
            prop_assert_eq!(space.longest(), Some(Extent { start: 0, len: PAGES }), "all space comes back");
        }
    }
}
