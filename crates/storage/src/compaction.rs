//! Which fragments move when no free extent is long enough. Pure: each step is planned from where
//! fragments are now.
//!
//! The first pages of the file are the **landing**: room for the longest fragment, which nothing
//! but compaction ever writes. A step moves fragments in one of three ways:
//!
//! 1. *Return*: what is in the landing goes to the first free extent that holds it.
//! 2. *Slide*: the first fragments of the window go to the front of the window, if the gap there
//!    holds them.
//! 3. *Land*: if the gap is too short, they go to the landing. The gap has then grown by the pages
//!    that they had.
//!
//! The window is the run of fragments that takes least moving to free `goal` pages together. The
//! next step needs no memory of the steps before, so a crash after any step changes nothing: the
//! store goes on from the fragments that it finds.
//!
//! - *There is always a place to return to.* The hole that the fragments left holds them all, and
//!   puts get no pages while the landing holds fragments: the commit loop empties it before it
//!   reserves pages for puts.
//! - *It ends.* The pages that are left to move in the best window shrink with each slide, and with
//!   each landing and its return.

use crate::pages::PageExtent;
use std::collections::BTreeSet;
use std::ops::Range;

/// What to move next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: the landing is empty, and enough pages are free together.
    Done,
    /// These fragments, one after the other, to the front of a free extent that holds them all.
    Move {
        /// Where they are.
        from: Vec<PageExtent>,
        /// Where they go.
        to: PageExtent,
    },
    /// Nothing, and the goal cannot be reached: between fragments that cannot be moved there are
    /// too few free pages.
    Stuck,
}

/// The places of fragments outside the landing.
struct Layout<'a> {
    /// The first page behind the landing.
    begin: u32,
    page_count: u32,
    /// Outside the landing, in the order of the file.
    live: &'a [PageExtent],
}

/// The next step towards `goal` free pages together, outside the first `landing` of `page_count`
/// pages. `live` are the places of all fragments in the order of the file; those whose start is in
/// `unmovable` stay.
pub fn next(page_count: u32, landing: u32, live: &[PageExtent], unmovable: &BTreeSet<u32>, goal: u32) -> Next {
    let (landed, live) = live.split_at(live.partition_point(|place| place.start < landing));
    let layout = Layout { begin: landing, page_count, live };
    let is_movable = |place: &&PageExtent| !unmovable.contains(&place.start);
    let landed_movable: Vec<PageExtent> = landed.iter().filter(is_movable).copied().collect();
    if let Some(first) = landed_movable.first() {
        let all = landed_movable.iter().map(|place| place.len).sum();
        return match (layout.first_gap_of(all), layout.first_gap_of(first.len)) {
            (Some(to), _) => Next::Move { from: landed_movable, to },
            (None, Some(to)) => Next::Move { from: vec![*first], to },
            (None, None) => Next::Stuck,
        };
    }
    if layout.first_gap_of(goal).is_some() {
        return Next::Done;
    }
    let Some(window) = layout.window(unmovable, goal) else { return Next::Stuck };
    let gap = layout.gap_before(window.start);
    let to = if live[window.start].len <= gap.len { gap } else { PageExtent { start: 0, len: landing } };
    if to.start < landing && !landed.is_empty() {
        // A rotten fragment stays in the landing until it is deleted or repaired.
        return Next::Stuck;
    }
    let mut len = 0;
    let fits = |place: &&PageExtent| {
        len += place.len;
        len <= to.len
    };
    Next::Move { from: live[window].iter().take_while(fits).copied().collect(), to }
}

impl Layout<'_> {
    /// The free pages before fragment `i`, or after the last one.
    fn gap_before(&self, i: usize) -> PageExtent {
        let start = i.checked_sub(1).map_or(self.begin, |before| self.live[before].end());
        let end = self.live.get(i).map_or(self.page_count, |next| next.start);
        PageExtent { start, len: end.saturating_sub(start) }
    }

    /// The first free extent of at least `len` pages.
    fn first_gap_of(&self, len: u32) -> Option<PageExtent> {
        (0..=self.live.len()).map(|i| self.gap_before(i)).find(|gap| gap.len >= len)
    }

    /// The run of fragments that frees `goal` pages together with the fewest pages to move.
    fn window(&self, unmovable: &BTreeSet<u32>, goal: u32) -> Option<Range<usize>> {
        let mut best: Option<(u32, Range<usize>)> = None;
        // The run `first..=i`, its pages, and the free pages before, between and after its
        // fragments.
        let (mut first, mut moved, mut free) = (0, 0, self.gap_before(0).len);
        for (i, fragment) in self.live.iter().enumerate() {
            if unmovable.contains(&fragment.start) {
                (first, moved, free) = (i + 1, 0, self.gap_before(i + 1).len);
                continue;
            }
            moved += fragment.len;
            free += self.gap_before(i + 1).len;
            while first <= i && free >= goal {
                if best.as_ref().is_none_or(|(least, _)| moved < *least) {
                    best = Some((moved, first..i + 1));
                }
                moved -= self.live[first].len;
                free -= self.gap_before(first).len;
                first += 1;
            }
        }
        best.map(|(_, run)| run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Draft, PageSpace};
    use host::SplitMix64;
    use std::collections::BTreeMap;

    fn at(start: u32, len: u32) -> PageExtent {
        PageExtent { start, len }
    }

    fn step(live: &[PageExtent], unmovable: &[u32], goal: u32) -> Next {
        next(800, 20, live, &unmovable.iter().copied().collect(), goal)
    }

    fn moves(from: &[PageExtent], to: PageExtent) -> Next {
        Next::Move { from: from.to_vec(), to }
    }

    #[test]
    fn the_window_that_moves_least_is_compacted() {
        // Free: 20..100, 110..160, 560..600, 610..700.
        let live = [at(100, 10), at(160, 400), at(600, 10), at(700, 100)];
        assert_eq!(step(&live, &[], 90), Next::Done);
        assert_eq!(step(&live, &[], 120), moves(&[at(100, 10)], at(20, 80)));
        assert_eq!(step(&live, &[100], 120), moves(&[at(600, 10)], at(560, 40)));
        assert_eq!(step(&live, &[100], 190), Next::Stuck);
    }

    #[test]
    fn fragments_longer_than_the_gap_go_through_the_landing_together() {
        let live = [at(25, 6), at(31, 10), at(41, 10), at(60, 740)];
        let landed = moves(&live[..2], at(0, 20));
        assert_eq!(step(&live, &[60], 14), landed);
        let live = [at(0, 6), at(6, 10), at(41, 10), at(60, 740)];
        assert_eq!(step(&live, &[60], 14), moves(&live[..2], at(20, 21)));
        assert_eq!(step(&live, &[60], 0), moves(&live[..2], at(20, 21)), "the landing is emptied in any case");
        assert_eq!(step(&live, &[0, 6, 60], 25), moves(&[at(41, 10)], at(20, 21)));
    }

    /// A loss of power.
    struct Crash;

    /// A store as the allocator sees it: pages that say which fragment was written to them.
    struct Store {
        space: PageSpace,
        landing: u32,
        /// Fragments by number, with places.
        index: BTreeMap<u32, PageExtent>,
        /// What the checkpoint in force lists.
        recorded: BTreeMap<u32, PageExtent>,
        /// Fragments that were put since, not moved ones.
        fresh: BTreeMap<u32, PageExtent>,
        disk: Vec<u32>,
        unmovable: BTreeSet<u32>,
        steps_left: u32,
        moves: u32,
    }

    impl Store {
        fn new(page_count: u32, landing: u32) -> Store {
            Store {
                space: PageSpace::recover(page_count, landing, Vec::new()).unwrap(),
                landing,
                index: BTreeMap::new(),
                recorded: BTreeMap::new(),
                fresh: BTreeMap::new(),
                disk: vec![0; page_count as usize],
                unmovable: BTreeSet::new(),
                steps_left: u32::MAX,
                moves: 0,
            }
        }

        /// Counts a write to the disk, and crashes before it if its turn has come.
        fn effect(&mut self) -> Result<(), Crash> {
            self.steps_left = self.steps_left.checked_sub(1).ok_or(Crash)?;
            Ok(())
        }

        fn record(&mut self, draft: Draft) -> Result<(), Crash> {
            self.effect()?;
            self.recorded = self.index.clone();
            self.fresh.clear();
            self.space.adopt(draft);
            Ok(())
        }

        fn write(&mut self, number: u32, place: PageExtent) -> Result<(), Crash> {
            let overwritten = self
                .recorded
                .iter()
                .chain(&self.fresh)
                .find(|(_, other)| other.start < place.end() && place.start < other.end());
            assert_eq!(overwritten, None, "{number} is written to {place:?}");
            self.effect()?;
            self.disk[place.start as usize..place.end() as usize].fill(number);
            Ok(())
        }

        fn compact(&mut self, goal: u32) -> Result<bool, Crash> {
            for _ in 0..1000 {
                let mut live: Vec<PageExtent> = self.index.values().copied().collect();
                live.sort_unstable();
                let (from, to) = match self.space.compaction(&live, &self.unmovable, goal) {
                    Next::Done => return Ok(true),
                    Next::Stuck => return Ok(false),
                    Next::Move { from, to } => (from, to),
                };
                let draft = self.space.draft_only(to).expect("it is free");
                self.record(draft)?;
                for from in from {
                    let place = self.space.allocate(from.len).expect("reserved");
                    let number = *self.index.iter().find(|(_, place)| **place == from).unwrap().0;
                    self.write(number, place)?;
                    self.index.insert(number, place);
                    self.space.release(from);
                    self.moves += 1;
                }
            }
            panic!("it never ends");
        }

        fn checkpoint(&mut self) -> Result<(), Crash> {
            if self.space.has_landed() {
                self.compact(0)?;
                assert!(!self.space.has_landed() || !self.unmovable.is_empty(), "there is a place to return to");
            }
            self.record(self.space.draft(10, 0))
        }

        /// Puts a fragment. False if the store is full.
        fn put(&mut self, number: u32, len: u32) -> Result<bool, Crash> {
            loop {
                if let Some(place) = self.space.allocate(len) {
                    assert!(place.start >= self.landing, "a put gets no page of the landing");
                    self.write(number, place)?;
                    self.index.insert(number, place);
                    self.fresh.insert(number, place);
                    return Ok(true);
                }
                if self.space.draft(10, 0).fits(len) {
                    self.checkpoint()?;
                } else if !self.compact(len)? {
                    return Ok(false);
                }
            }
        }

        fn delete(&mut self, number: u32) {
            self.fresh.remove(&number);
            if let Some(place) = self.index.remove(&number) {
                self.space.release(place);
            }
        }

        /// Goes back to the state after a crash: the checkpoint, and the fragments put since. Later
        /// moves are undone.
        fn restart(&mut self) {
            self.index = self.recorded.clone();
            self.index.extend(&self.fresh);
            let live = self.index.values().copied().collect();
            self.space = PageSpace::recover(self.disk.len() as u32, self.landing, live).expect("no two in one place");
            self.steps_left = u32::MAX;
        }

        fn check(&self) {
            for (number, place) in &self.index {
                let pages = &self.disk[place.start as usize..place.end() as usize];
                assert!(pages.iter().all(|page| page == number), "fragment {number} at {place:?} is {pages:?}");
            }
        }

        fn free_pages(&self) -> u32 {
            self.disk.len() as u32 - self.landing - self.index.values().map(|place| place.len).sum::<u32>()
        }
    }

    /// Puts, deletions and compactions with tiny fragments, and a crash at any write. No write
    /// touches a fragment that a restart would show, and a store is full only if too few pages are
    /// free.
    #[test]
    fn crash_at_any_step_of_moving_costs_no_fragment() {
        let (mut crashes, mut landed, mut full, mut moves) = (0, 0, 0, 0);
        for seed in 0..3000 {
            let random = SplitMix64::new(seed);
            let below = |n: u32| (host::Random::next_u64(&random) % u64::from(n)) as u32;
            let landing = 1 + below(8);
            let mut store = Store::new(landing + 2 + below(50), landing);
            for number in 1..120 {
                if below(4) == 0 {
                    store.steps_left = below(12);
                }
                let len = 1 + below(landing);
                let free = store.free_pages();
                match store.put(number, len) {
                    Ok(true) => {}
                    Ok(false) => {
                        full += 1;
                        assert!(free < len, "seed {seed}: {len} pages refused, {free} are free");
                    }
                    Err(Crash) => {
                        crashes += 1;
                        store.restart();
                        landed += u32::from(store.space.has_landed());
                    }
                }
                store.check();
                while store.index.len() > 1 && below(3) > 0 {
                    let nth = below(store.index.len() as u32) as usize;
                    let gone = *store.index.keys().nth(nth).unwrap();
                    store.delete(gone);
                    if below(2) == 0 {
                        break;
                    }
                }
            }
            moves += store.moves;
        }
        assert!(crashes > 1000 && landed > 50 && full > 1000 && moves > 1000, "{crashes} {landed} {full} {moves}");
    }
}
