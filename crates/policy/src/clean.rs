//! Which segments to clean (Rosenblum and Ousterhout, "The Design and Implementation of a
//! Log-Structured File System", section 3.5; Dahlin, chapter 4).
//!
//! Cleaning a segment of utilisation `u` reads and rewrites its live bytes and frees the rest.
//! Cost-benefit weighs the space gained by how long it will stay free, for which the age of the
//! segment's data is the estimate: `(1 - u) * age / (1 + u)`. So cold segments are cleaned at
//! higher utilisations than hot ones, whose blocks will soon die by themselves. A [`FreeGoal`] says
//! when it is time to clean.
//!
//! Starling weighs the fourth root of the age ([`Rule::DampedCostBenefit`]). Ages of segments
//! differ by a factor of a million, utilisations by a factor of ten. With the age itself, the
//! cleaner moves full segments over and over because they are old, and the emptiest-first rule
//! beats it on traces of whole communities. docs/decisions/2026-11-23-cleaning-by-damped-age.md has
//! the measurements.

use std::cmp::Ordering;
use std::time::Duration;
use types::SegmentId;

/// What is known of a segment's use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentUse {
    /// The segment.
    pub id: SegmentId,
    /// Bytes that are still referenced.
    pub live_bytes: u64,
    /// Bytes that the segment takes.
    pub total_bytes: u64,
    /// Time since its data was written.
    pub age: Duration,
}

/// A segment is cleaned only if more than one part in this many of its bytes is dead. Moving a
/// fuller one frees mostly headers and rounding.
const GAIN_SHARE_MIN: u64 = 16;

/// How much space the cleaner tries to gain between two looks at what is free, in full segments.
pub const GAIN_SEGMENTS: u32 = 16;

/// Most segments that the cleaner empties between two looks at what is free: two for each segment
/// of [`GAIN_SEGMENTS`]. If victims gain less, the cleaner looks again before it goes on.
pub const VICTIMS_MAX: usize = 2 * GAIN_SEGMENTS as usize;

/// Upper bound of [`FreeGoal::low`], in percent of the capacity. A [`FreeGoal`] is lower where live
/// data leaves less. The more must be free, the fuller are the segments that are cleaned for it.
const FREE_PERCENT_LOW: u64 = 25;
/// Upper bound of [`FreeGoal::high`], in percent of the capacity.
const FREE_PERCENT_HIGH: u64 = 35;

/// How many bytes should be free. Live data and the reserves leave spare space. Free space gets a
/// part of it, and dead bytes that are not worth cleaning yet get the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeGoal {
    /// Cleaning begins when fewer bytes are free.
    pub low: u64,
    /// Cleaning stops when this many bytes are free.
    pub high: u64,
}

impl FreeGoal {
    /// The goal for stores of `capacity` bytes. `live` counts live bytes with their parity, and
    /// `reserve` the bytes that writers may not use.
    pub fn new(capacity: u64, live: u64, reserve: u64) -> FreeGoal {
        let spare = capacity.saturating_sub(live.saturating_add(reserve));
        FreeGoal {
            low: (reserve + spare / 4).min(capacity / 100 * FREE_PERCENT_LOW),
            high: (reserve + spare / 2).min(capacity / 100 * FREE_PERCENT_HIGH),
        }
    }
}

/// How many of the best segments [`choose_by`] sorts at first. Each further step sorts twice as
/// many.
const SORTED_AT_ONCE: usize = 16;

/// How segments are ranked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rule {
    /// By benefit over cost, with the fourth root of the age. Starling uses this rule.
    #[default]
    DampedCostBenefit,
    /// By benefit over cost, as Rosenblum and Ousterhout have it.
    CostBenefit,
    /// The emptiest first; best when all data is equally likely to be overwritten.
    Greedy,
}

impl SegmentUse {
    /// Bytes that become free when the live ones are moved elsewhere. Zero if the count of live
    /// bytes exceeds the segment's size.
    pub fn gain_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.live_bytes)
    }

    /// False if moving the live bytes would free mostly headers and rounding.
    pub(crate) fn is_worth_cleaning(&self) -> bool {
        self.gain_bytes() > self.total_bytes / GAIN_SHARE_MIN
    }

    /// Live share, 0 to 1.
    fn utilisation(&self) -> f64 {
        if self.total_bytes == 0 { 1.0 } else { self.live_bytes as f64 / self.total_bytes as f64 }
    }

    /// Space gained per byte moved, times the weight of the segment's age.
    fn benefit(&self, weight: f64) -> f64 {
        let u = self.utilisation();
        (1.0 - u) * weight / (1.0 + u)
    }
}

/// A segment and the values that rank it.
struct Ranked {
    segment: SegmentUse,
    /// Zero for every segment under [`Rule::Greedy`].
    benefit: f64,
    utilisation: f64,
}

impl Rule {
    #[cfg(test)]
    pub(crate) fn benefit(self, segment: SegmentUse) -> f64 {
        self.ranked(segment).benefit
    }

    fn ranked(self, segment: SegmentUse) -> Ranked {
        let age = segment.age.as_secs_f64();
        let benefit = match self {
            // IEEE square roots are exact, so all machines choose alike. `powf` is not.
            Rule::DampedCostBenefit => segment.benefit(age.sqrt().sqrt()),
            Rule::CostBenefit => segment.benefit(age),
            Rule::Greedy => 0.0,
        };
        Ranked { segment, benefit, utilisation: segment.utilisation() }
    }
}

impl Ranked {
    /// `Less` if this segment is cleaned before the other. The order is total, so ties do not
    /// depend on the order of arguments.
    fn compare(&self, other: &Ranked) -> Ordering {
        let (one, another) = (&self.segment, &other.segment);
        // An empty segment costs nothing to clean, at any age.
        let empty_first = (another.live_bytes == 0).cmp(&(one.live_bytes == 0));
        let by_benefit = other.benefit.total_cmp(&self.benefit);
        let emptiest_first = self.utilisation.total_cmp(&other.utilisation);
        empty_first.then(by_benefit).then(emptiest_first).then(one.id.cmp(&another.id))
    }
}

/// The segments to clean by the default rule, best first. Takes as many as gain `want_free_bytes`
/// together, or else all that are worth cleaning.
pub fn choose(segments: impl Iterator<Item = SegmentUse>, want_free_bytes: u64) -> Vec<SegmentId> {
    choose_by(Rule::default(), segments, want_free_bytes)
}

/// Like [`choose`], by the given rule.
pub fn choose_by(rule: Rule, segments: impl Iterator<Item = SegmentUse>, want_free_bytes: u64) -> Vec<SegmentId> {
    let worth = segments.filter(SegmentUse::is_worth_cleaning);
    let mut candidates: Vec<Ranked> = worth.map(|segment| rule.ranked(segment)).collect();
    // Fewer victims cannot gain enough: no segment gains more than the largest one takes.
    let largest = candidates.iter().map(|of| of.segment.total_bytes).max().unwrap_or(0);
    let least = want_free_bytes.checked_div(largest).unwrap_or(0).min(candidates.len() as u64);
    let mut rest = candidates.as_mut_slice();
    let mut best_count = SORTED_AT_ONCE.max(least as usize);
    let mut gained: u64 = 0;
    let mut chosen = Vec::new();
    while gained < want_free_bytes && !rest.is_empty() {
        // The caller mostly wants few of many, so only the best ones are sorted.
        if best_count < rest.len() {
            rest.select_nth_unstable_by(best_count, Ranked::compare);
        }
        let (best, others) = rest.split_at_mut(best_count.min(rest.len()));
        best.sort_unstable_by(Ranked::compare);
        for Ranked { segment, .. } in best {
            if gained >= want_free_bytes {
                break;
            }
            gained = gained.saturating_add(segment.gain_bytes());
            chosen.push(segment.id);
        }
        rest = others;
        best_count *= 2;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::LogId;

    fn segment(seq: u64, live_bytes: u64, age_s: u64) -> SegmentUse {
        let id = SegmentId { log: LogId::new(1), epoch: 1, seq };
        SegmentUse { id, live_bytes, total_bytes: 100, age: Duration::from_secs(age_s) }
    }

    fn seqs(chosen: Vec<SegmentId>) -> Vec<u64> {
        chosen.into_iter().map(|id| id.seq).collect()
    }

    #[test]
    fn cost_benefit_takes_a_cold_segment_before_an_emptier_hot_one() {
        let segments = [segment(1, 30, 1), segment(2, 75, 1000)];
        assert_eq!(seqs(choose(segments.into_iter(), 1)), [2]);
        assert_eq!(seqs(choose_by(Rule::CostBenefit, segments.into_iter(), 1)), [2]);
        assert_eq!(seqs(choose_by(Rule::Greedy, segments.into_iter(), 1)), [1]);
    }

    #[test]
    fn regression_a_full_segment_is_not_cleaned_for_its_age_alone() {
        let segments = [segment(1, 30, 1000), segment(2, 90, 20_000)];
        assert_eq!(seqs(choose_by(Rule::CostBenefit, segments.into_iter(), 1)), [2]);
        assert_eq!(seqs(choose(segments.into_iter(), 1)), [1]);
    }

    #[test]
    fn benefit_is_the_formula_of_the_paper() {
        assert_eq!(Rule::CostBenefit.ranked(segment(1, 50, 30)).benefit, 0.5 * 30.0 / 1.5);
        assert_eq!(Rule::CostBenefit.ranked(segment(1, 100, 30)).benefit, 0.0);
        assert_eq!(Rule::DampedCostBenefit.ranked(segment(1, 50, 81)).benefit, 0.5 * 3.0 / 1.5);
    }

    #[test]
    fn empty_segments_come_first_however_young() {
        let segments = [segment(1, 10, 1_000_000), segment(2, 0, 0)];
        assert_eq!(seqs(choose(segments.into_iter(), 150)), [2, 1]);
    }

    #[test]
    fn segments_that_are_almost_full_or_overfull_are_never_chosen() {
        let segments = [segment(1, 100, 1000), segment(2, 120, 1000), segment(3, 94, 1000), segment(4, 93, 0)];
        assert_eq!(seqs(choose(segments.into_iter(), u64::MAX)), [4]);
    }

    #[test]
    fn the_less_there_is_to_spare_the_less_is_to_be_free() {
        let goal = |live, reserve| FreeGoal::new(10_000, live, reserve);
        assert_eq!(goal(0, 0), FreeGoal { low: 2500, high: 3500 });
        assert_eq!(goal(8000, 0), FreeGoal { low: 500, high: 1000 });
        assert_eq!(goal(8000, 400), FreeGoal { low: 800, high: 1200 });
        assert_eq!(goal(u64::MAX, 400), FreeGoal { low: 400, high: 400 });
    }

    #[test]
    fn nothing_is_chosen_when_nothing_is_wanted() {
        assert_eq!(choose([segment(1, 0, 0)].into_iter(), 0), []);
    }

    proptest! {
        #[test]
        fn prop_gains_what_is_wanted_with_no_segment_too_many_in_any_order_of_arguments(
            uses in proptest::collection::vec((0u64..=110, 0u64..1000), 0..100),
            want in 0u64..7500,
            rule in prop::sample::select(vec![Rule::DampedCostBenefit, Rule::CostBenefit, Rule::Greedy]),
        ) {
            let segments: Vec<_> = (0..).zip(&uses).map(|(seq, &(live, age))| segment(seq, live, age)).collect();
            let chosen = choose_by(rule, segments.iter().copied(), want);
            prop_assert_eq!(&chosen, &choose_by(rule, segments.iter().rev().copied(), want));

            let in_order = |pair: &[SegmentId]| {
                let [a, b] = [0, 1].map(|at| segments[pair[at].seq as usize]);
                rule.ranked(a).compare(&rule.ranked(b)).is_lt()
            };
            prop_assert!(chosen.windows(2).all(in_order));
            let worst = chosen.last().map(|id| segments[id.seq as usize]);
            let left = segments.iter().filter(|s| s.gain_bytes() > 100 / 16 && !chosen.contains(&s.id));
            prop_assert!(left.into_iter().all(|s| worst.is_none_or(|worst| rule.ranked(worst).compare(&rule.ranked(*s)).is_lt())));

            let gain = |ids: &[SegmentId]| ids.iter().map(|id| segments[id.seq as usize].gain_bytes()).sum::<u64>();
            let possible: u64 = segments.iter().map(|s| s.gain_bytes()).filter(|gain| *gain > 100 / 16).sum();
            prop_assert!(gain(&chosen) >= want.min(possible));
            if let Some((_, needed)) = chosen.split_last() {
                prop_assert!(gain(needed) < want);
            }
        }
    }
}
