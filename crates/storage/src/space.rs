//! The allocator over the pages of the `fragments` file: where fragments go. Pure; it touches no
//! disk.
//!
//! A fragment takes whole pages, so writing one never touches a page of another. Every free page
//! can be used: neighbouring free pages are one **extent**, and if no extent is long enough,
//! [`compaction`](crate::compaction) decides which fragments to move to make one. The first pages
//! of the file, the **landing**, are for that alone. Puts never get them.
//!
//! The life of a page: *free*, then *reserved* (a durable checkpoint says that it may be written),
//! then *used*. When its fragment is released, the page is *quarantined* until a checkpoint has
//! recorded that, and then free again. Reserved pages that were not used are free when the next
//! checkpoint is drafted.
//!
//! Invariants:
//! - Only the extents in the **reservation** of the checkpoint in force are written, each from its
//!   start on and without gaps. So recovery needs to look nowhere else.
//! - Every fragment carries the random number of the checkpoint under which it was written (its
//!   *generation*). Nothing is written under a checkpoint before it is durable. So bytes of an
//!   earlier use of a page have another generation and are not taken for a fragment, and neither is
//!   a write that a crash has torn.
//! - A page is not written again while the checkpoint in force, to which a crash would go back, has
//!   a fragment in it.

use crate::compaction;
use crate::pages::{PAGE, PAGES_MAX, PageExtent};
use std::collections::{BTreeMap, BTreeSet};

/// Most extents shorter than [`PAGES_MAX`] in a reservation. More let short fragments use more
/// gaps, but recovery reads a header in each.
const SHORT_EXTENTS_MAX: usize = 1024;

/// The reservation that the next checkpoint will record. It takes effect with [`PageSpace::adopt`],
/// once that checkpoint is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    /// The pages that may be written until the checkpoint after it, by start.
    pub reservation: Vec<PageExtent>,
    /// How many quarantined extents the checkpoint frees.
    freed: usize,
}

impl Draft {
    /// True if a fragment of `pages` pages could be written under this draft.
    pub fn fits(&self, pages: u32) -> bool {
        self.reservation.iter().any(|extent| extent.len >= pages)
    }
}

/// Free extents, neighbours joined.
#[derive(Clone, Debug, Default)]
struct Pool {
    len_by_start: BTreeMap<u32, u32>,
}

impl Pool {
    fn insert(&mut self, mut extent: PageExtent) {
        if extent.len == 0 {
            return;
        }
        if let Some((&start, &len)) = self.len_by_start.range(..extent.start).next_back()
            && start + len == extent.start
        {
            extent = PageExtent { start, len: len + extent.len };
        }
        if let Some(len) = self.len_by_start.remove(&extent.end()) {
            extent.len += len;
        }
        self.len_by_start.insert(extent.start, extent.len);
    }

    /// The free extent that has all of `part`.
    fn around(&self, part: &PageExtent) -> Option<PageExtent> {
        let (&start, &len) = self.len_by_start.range(..=part.start).next_back()?;
        Some(PageExtent { start, len }).filter(|whole| whole.holds(part))
    }

    /// Takes out an extent. If not all of it is in the pool, changes nothing and returns false.
    fn remove(&mut self, taken: PageExtent) -> bool {
        let Some(whole) = self.around(&taken) else { return false };
        self.len_by_start.remove(&whole.start);
        self.insert(PageExtent { start: whole.start, len: taken.start - whole.start });
        self.insert(PageExtent { start: taken.end(), len: whole.end() - taken.end() });
        true
    }

    fn iter(&self) -> impl Iterator<Item = PageExtent> {
        self.len_by_start.iter().map(|(&start, &len)| PageExtent { start, len })
    }
}

/// The allocator of pages.
///
/// To write, call [`allocate`](Self::allocate) until it has no place. Then [`draft`](Self::draft),
/// write the draft's reservation in a checkpoint, [`adopt`](Self::adopt) it, and go on. Call
/// [`release`](Self::release) at any time.
#[derive(Debug)]
pub struct PageSpace {
    page_count: u32,
    /// Number of pages at the beginning of the file that only compaction writes. The longest
    /// fragment fits in.
    landing: u32,
    /// Pages of the landing that fragments take.
    landed_pages: u32,
    free: Pool,
    /// Released extents, in the order of their release.
    quarantined: Vec<PageExtent>,
    /// The rest of the reservation: `(len, start)` of each extent that may be written.
    reserved: BTreeSet<(u32, u32)>,
    used_pages: u64,
}

impl PageSpace {
    /// An allocator over `page_count` pages. `live` are the places of fragments, and the first
    /// `landing` pages are for compaction. Nothing may be written before the first
    /// [`adopt`](Self::adopt). Fails if the places overlap or are out of bounds.
    pub fn recover(page_count: u32, landing: u32, mut live: Vec<PageExtent>) -> Result<PageSpace, &'static str> {
        live.sort_unstable();
        let mut space = PageSpace {
            page_count,
            landing,
            landed_pages: 0,
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
            if extent.start < landing && extent.end() > landing {
                return Err("a fragment is partly in the landing");
            }
            space.put_free(end, extent.start);
            space.count_used(extent);
            end = extent.end();
        }
        space.put_free(end, page_count);
        Ok(space)
    }

    fn in_landing(&self, place: &PageExtent) -> bool {
        place.start < self.landing
    }

    /// Adds the pages from `start` to `end` to the free ones, except those of the landing.
    fn put_free(&mut self, start: u32, end: u32) {
        let start = start.max(self.landing);
        self.free.insert(PageExtent { start, len: end.saturating_sub(start) });
    }

    fn count_used(&mut self, place: PageExtent) {
        self.used_pages += u64::from(place.len);
        if self.in_landing(&place) {
            self.landed_pages += place.len;
        }
    }

    /// True if there are fragments in the landing: a compaction was cut short. No page may be
    /// reserved for puts before these fragments have left it.
    pub fn has_landed(&self) -> bool {
        self.landed_pages > 0
    }

    /// Number of pages.
    pub fn page_count(&self) -> u32 {
        self.page_count
    }

    /// Bytes taken by live fragments, headers and rounding included.
    pub fn used_bytes(&self) -> u64 {
        self.used_pages * u64::from(PAGE)
    }

    /// Pages that a draft made now could reserve for fragments of any length.
    pub fn roomy_pages(&self) -> u32 {
        self.pool(self.quarantined.len()).iter().map(|extent| extent.len).filter(|&len| len >= PAGES_MAX).sum()
    }

    /// Adds free pages at the end, up to `page_count` in all.
    pub fn grow(&mut self, page_count: u32) {
        if page_count > self.page_count {
            self.put_free(self.page_count, page_count);
            self.page_count = page_count;
        }
    }

    /// A place for a fragment: the start of the shortest reserved extent that is long enough. If
    /// there is none (`None`), a checkpoint must come first.
    pub fn allocate(&mut self, pages: u32) -> Option<PageExtent> {
        let &(len, start) = self.reserved.range((pages, 0)..).next()?;
        self.reserved.remove(&(len, start));
        if len > pages {
            self.reserved.insert((len - pages, start + pages));
        }
        let place = PageExtent { start, len: pages };
        self.count_used(place);
        Some(place)
    }

    /// How many reserved pages follow an allocation that has just ended at `start`.
    pub fn reserved_from(&self, start: u32) -> u32 {
        self.reserved.iter().find(|extent| extent.1 == start).map_or(0, |extent| extent.0)
    }

    /// Releases the place of a fragment that was removed, or was never written.
    pub fn release(&mut self, place: PageExtent) {
        self.used_pages -= u64::from(place.len);
        if self.in_landing(&place) {
            self.landed_pages -= place.len;
        } else {
            self.quarantined.push(place);
        }
    }

    /// All unused pages outside the landing, under a checkpoint that records the first `freed`
    /// releases.
    fn pool(&self, freed: usize) -> Pool {
        let mut pool = self.free.clone();
        let reserved = self.reserved.iter().map(|&(len, start)| PageExtent { start, len });
        reserved
            .filter(|extent| !self.in_landing(extent))
            .chain(self.quarantined[..freed].iter().copied())
            .for_each(|extent| pool.insert(extent));
        pool
    }

    /// The reservation of a checkpoint that is written now. It has extents that any fragment fits
    /// into, in the order of the file, until they have `target` pages; and the longest of the short
    /// extents. It leaves out the last `spare` pages of the longest extent. Quarantined pages count
    /// as free, since that checkpoint records their release.
    pub fn draft(&self, target: u32, spare: u32) -> Draft {
        let freed = self.quarantined.len();
        let mut pool = self.pool(freed);
        if let Some(longest) = pool.iter().max_by_key(|extent| extent.len) {
            let len = spare.min(longest.len);
            pool.remove(PageExtent { start: longest.end() - len, len });
        }
        let (mut reservation, mut short) = (Vec::new(), Vec::new());
        let mut left = target;
        for extent in pool.iter() {
            if extent.len < PAGES_MAX {
                short.push(extent);
            } else if left > 0 {
                let len = extent.len.min(left.max(PAGES_MAX));
                reservation.push(PageExtent { len, ..extent });
                left = left.saturating_sub(len);
            }
        }
        short.sort_unstable_by_key(|extent| std::cmp::Reverse(extent.len));
        reservation.extend(short.into_iter().take(SHORT_EXTENTS_MAX));
        reservation.sort_unstable();
        Draft { reservation, freed }
    }

    /// A draft that reserves only `to`, for a step of compaction. `None` if some of its pages are
    /// in use.
    pub fn draft_only(&self, to: PageExtent) -> Option<Draft> {
        let freed = self.quarantined.len();
        let is_landing = to == PageExtent { start: 0, len: self.landing } && to.end() <= self.page_count;
        let is_free = if is_landing { !self.has_landed() } else { self.pool(freed).around(&to).is_some() };
        is_free.then(|| Draft { reservation: vec![to], freed })
    }

    /// Puts a draft into force. Call it when the checkpoint that records the draft is durable. No
    /// page may have been allocated since the draft was made.
    pub fn adopt(&mut self, draft: Draft) {
        let mut pool = self.pool(draft.freed);
        self.quarantined.drain(..draft.freed);
        let reserved = draft.reservation.into_iter().filter(|extent| self.in_landing(extent) || pool.remove(*extent));
        self.reserved = reserved.map(|extent| (extent.len, extent.start)).collect();
        self.free = pool;
    }

    /// The next step towards `goal` free pages together; see [`compaction::next`].
    pub fn compaction(&self, live: &[PageExtent], unmovable: &BTreeSet<u32>, goal: u32) -> compaction::Next {
        compaction::next(self.page_count, self.landing, live, unmovable, goal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fresh(page_count: u32, target: u32) -> PageSpace {
        let mut space = PageSpace::recover(page_count, 0, Vec::new()).unwrap();
        space.adopt(space.draft(target, 0));
        space
    }

    fn at(start: u32, len: u32) -> PageExtent {
        PageExtent { start, len }
    }

    #[test]
    fn nothing_is_written_before_a_checkpoint_is_in_force() {
        let mut space = PageSpace::recover(4, 0, Vec::new()).unwrap();
        assert_eq!(space.allocate(1), None);
        space.adopt(space.draft(1, 0));
        assert!(space.allocate(1).is_some());
    }

    #[test]
    fn fragments_follow_each_other() {
        let mut space = fresh(1000, 1000);
        assert_eq!(space.allocate(257), Some(at(0, 257)));
        assert_eq!(space.allocate(1), Some(at(257, 1)));
        assert_eq!(space.allocate(742), Some(at(258, 742)));
        assert_eq!(space.allocate(1), None);
    }

    #[test]
    fn the_shortest_extent_that_fits_is_used() {
        let mut space = PageSpace::recover(1000, 0, vec![at(10, 90), at(103, 97)]).unwrap();
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
        let places: Vec<PageExtent> = (0..3).map(|_| space.allocate(10).unwrap()).collect();
        space.release(places[0]);
        let draft = space.draft(30, 0);
        space.release(places[1]);
        space.adopt(draft);
        assert_eq!(space.allocate(10), Some(places[0]));
        assert_eq!(space.allocate(10), None);
    }

    #[test]
    fn a_draft_leaves_the_landing_alone() {
        let space = PageSpace::recover(2000, 300, vec![at(600, 10)]).unwrap();
        assert_eq!(space.draft(5000, 0).reservation, [at(300, 300), at(610, 1390)]);
        assert_eq!(space.draft(1, 0).reservation, [at(300, 257)]);
        assert_eq!(space.roomy_pages(), 1690);
    }

    #[test]
    fn a_step_reserves_only_what_is_free() {
        let mut space = PageSpace::recover(40, 10, vec![at(3, 5), at(20, 5)]).unwrap();
        assert!(space.has_landed());
        assert_eq!(space.draft_only(at(0, 10)), None);
        assert_eq!(space.draft_only(at(10, 11)), None);
        space.adopt(space.draft_only(at(10, 10)).unwrap());
        assert_eq!(space.allocate(5), Some(at(10, 5)));
        space.release(at(3, 5));
        assert!(!space.has_landed());
        space.adopt(space.draft_only(at(0, 10)).unwrap());
        assert_eq!(space.allocate(5), Some(at(0, 5)));
        space.adopt(space.draft(100, 0));
        assert_eq!(space.allocate(6), Some(at(25, 6)), "what is left of the landing is for nothing else");
    }

    #[test]
    fn recovery_refuses_fragments_that_do_not_fit() {
        let recover = |live: &[PageExtent]| PageSpace::recover(20, 2, live.to_vec()).map(|s| s.used_bytes());
        assert_eq!(recover(&[at(0, 1), at(1, 1), at(10, 10)]), Ok(12 * 4096));
        assert!(recover(&[at(1, 2)]).is_err());
        assert!(recover(&[at(20, 1)]).is_err());
        assert!(recover(&[at(19, 2)]).is_err());
        assert!(recover(&[at(u32::MAX, 2)]).is_err());
        assert!(recover(&[at(3, 5), at(7, 1)]).is_err());
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
        /// Live fragments never overlap, only reserved ranges are written, fragments of the last
        /// checkpoint are never overwritten, and counts agree with a plain list.
        #[test]
        fn prop_allocations_keep_the_invariants(ops in prop::collection::vec(op(), 1..200)) {
            const PAGES: u32 = 6 * PAGES_MAX;
            let mut space = PageSpace::recover(PAGES, 0, Vec::new()).unwrap();
            let mut live: Vec<PageExtent> = Vec::new();
            let mut recorded: Vec<PageExtent> = Vec::new();
            let mut reservation: Vec<PageExtent> = Vec::new();
            let overlap = |a: &PageExtent, b: &PageExtent| a.start < b.end() && b.start < a.end();
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
                        let draft = space.draft(PAGES_MAX, 0);
                        (recorded, reservation) = (live.clone(), draft.reservation.clone());
                        if !live.is_empty() {
                            space.release(live.swap_remove(i % live.len()));
                        }
                        space.adopt(draft);
                    },
                }
                let used: u32 = live.iter().map(|l| l.len).sum();
                prop_assert_eq!(space.used_bytes(), u64::from(used) * 4096);
            }
            live.drain(..).for_each(|place| space.release(place));
            prop_assert_eq!(space.draft(PAGES, 0).reservation, [PageExtent { start: 0, len: PAGES }], "all space comes back");
        }
    }
}
