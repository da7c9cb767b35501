//! The table of segments: for each segment, the bytes that it takes on the stores and the bytes
//! that still live.
//!
//! It is kept current by increments, so that a round of maintenance costs what changed and not what
//! there is: a segment was written ([`Segments::stored`]), a manager's count changed
//! ([`Segments::counted`]), a segment was deleted ([`Segments::deleted`]). A count may come before
//! or after its segment was seen on the stores, and a repeated event changes nothing.
//!
//! Victims are found without looking at every segment. Segments worth cleaning are in buckets by
//! log and by utilisation, and in a bucket by age. [`Segments::candidates`] takes the oldest
//! [`VICTIMS_MAX`] of each, and [`clean::choose`](crate::clean::choose) chooses among these. If a
//! segment is left out, [`VICTIMS_MAX`] others of its bucket were taken. These are at least as old
//! and at most 1/256 of a segment fuller. So, with any weight of ages, the benefit of the n-th
//! victim is at least that of the n-th best segment of all, divided by [`BENEFIT_RATIO_MAX`], for n
//! up to [`VICTIMS_MAX`].

use crate::clean::{SegmentUse, VICTIMS_MAX};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{LogId, SegmentId};

/// Number of buckets by utilisation, from empty to full. More buckets make victims better (see
/// [`BENEFIT_RATIO_MAX`]) and give more candidates to choose from.
const BUCKET_COUNT: u64 = 256;
/// How much better a segment that is left out can be than those taken in its place, as a ratio of
/// benefits. The ratio of `(1 - u) / (1 + u)` at the two ends of a bucket is largest in the fullest
/// bucket that is cleaned, which ends at a utilisation of 15/16.
pub const BENEFIT_RATIO_MAX: f64 = (17.0 / 495.0) / (16.0 / 496.0);

/// The sizes of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Entry {
    /// Bytes on all stores, with parity; 0: not seen there yet, or deleted.
    stored_bytes: u64,
    /// Live bytes, the sum of all managers' counts.
    live_bytes: u64,
}

/// Sums over all segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Segments on the stores.
    pub segment_count: u64,
    /// Bytes they take there.
    pub stored_bytes: u64,
    /// The part of `stored_bytes` in segments that have live bytes.
    pub used_bytes: u64,
    /// Live bytes.
    pub live_bytes: u64,
}

/// A segment's place within its log: `(seq, epoch)`, so that places sort by age.
type Place = (u64, u32);

/// The table of all segments, kept current by increments.
#[derive(Debug, Default)]
pub struct Segments {
    data_fragments: u64,
    all_fragments: u64,
    entries: BTreeMap<SegmentId, Entry>,
    /// For each manager: the live bytes that it counts in each segment, without zeroes.
    counts: Vec<BTreeMap<SegmentId, u64>>,
    /// For each log: the highest `seq` that was seen.
    newest: BTreeMap<LogId, u64>,
    /// Stored segments without live bytes.
    empty: BTreeMap<LogId, BTreeSet<Place>>,
    /// Stored segments that are worth cleaning, by log and utilisation.
    buckets: BTreeMap<(LogId, u16), BTreeSet<Place>>,
    totals: Totals,
}

impl Segments {
    /// An empty table, for stripes of `data` and `parity` fragments.
    pub fn new(manager_count: usize, data: u8, parity: u8) -> Segments {
        Segments {
            data_fragments: data.max(1).into(),
            all_fragments: u64::from(data.max(1)) + u64::from(parity),
            counts: vec![BTreeMap::new(); manager_count],
            ..Segments::default()
        }
    }

    /// A segment takes at least `bytes` on the stores, with parity.
    pub fn stored(&mut self, segment: SegmentId, bytes: u64) {
        self.change(segment, |entry| entry.stored_bytes = entry.stored_bytes.max(bytes));
        let newest = self.newest.entry(segment.log).or_default();
        *newest = segment.seq.max(*newest);
    }

    /// A segment was deleted from the stores.
    pub fn deleted(&mut self, segment: SegmentId) {
        self.change(segment, |entry| entry.stored_bytes = 0);
    }

    /// A manager now counts `live_bytes` in a segment.
    pub fn counted(&mut self, manager: usize, segment: SegmentId, live_bytes: u64) {
        let counts = &mut self.counts[manager];
        let before = match live_bytes {
            0 => counts.remove(&segment),
            _ => counts.insert(segment, live_bytes),
        };
        let before = before.unwrap_or(0);
        if before != live_bytes {
            self.change(segment, |entry| entry.live_bytes = entry.live_bytes - before + live_bytes);
        }
    }

    /// The segments in which a manager counts live bytes. When a manager reports all its counts
    /// anew, the caller [counts](Self::counted) zero in those that it no longer names.
    pub fn counted_by(&self, manager: usize) -> impl Iterator<Item = SegmentId> + '_ {
        self.counts[manager].keys().copied()
    }

    /// The highest `seq` of this log that was seen on the stores; 0 if none was.
    pub fn newest(&self, log: LogId) -> u64 {
        self.newest.get(&log).copied().unwrap_or(0)
    }

    /// Live bytes in a segment, by all managers' counts.
    pub fn live_bytes(&self, segment: SegmentId) -> u64 {
        self.entries.get(&segment).map_or(0, |entry| entry.live_bytes)
    }

    /// True if a segment was seen on the stores and not deleted since.
    pub fn is_stored(&self, segment: SegmentId) -> bool {
        self.entries.get(&segment).is_some_and(|entry| entry.stored_bytes > 0)
    }

    /// Segments with live bytes that were not seen on the stores. Looks at all segments.
    pub fn unseen(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let entries = self.entries.iter();
        entries.filter(|(_, entry)| entry.live_bytes > 0 && entry.stored_bytes == 0).map(|(segment, _)| *segment)
    }

    /// Sums over all segments.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The first segments of a log without live bytes, up to position `through`, at most
    /// `count_max`.
    pub fn empty_through(&self, log: LogId, through: u64, count_max: usize) -> Vec<SegmentId> {
        let places = self.empty.get(&log).into_iter().flat_map(|places| places.range(..=(through, u32::MAX)));
        places.take(count_max).map(|&(seq, epoch)| SegmentId { log, epoch, seq }).collect()
    }

    /// Candidates for cleaning that gain at least `gain_percent` of what they take, at most
    /// [`VICTIMS_MAX`] from each log and bucket.
    pub fn candidates(&self, gain_percent: u64) -> impl Iterator<Item = SegmentUse> + '_ {
        let full = (BUCKET_COUNT * (100 - gain_percent.min(100)) / 100) as u16;
        let buckets = self.buckets.iter().filter(move |((_, bucket), _)| *bucket <= full);
        let oldest = buckets.flat_map(|((log, _), places)| {
            let ids = places.iter().map(|&(seq, epoch)| SegmentId { log: *log, epoch, seq });
            ids.take(VICTIMS_MAX).filter_map(|id| Some(self.use_of(id, *self.entries.get(&id)?)))
        });
        oldest.filter(move |s| s.gain_bytes() * 100 >= s.total_bytes * gain_percent)
    }

    /// A segment's use. Its age is the number of segments written to its log since, as seconds.
    fn use_of(&self, id: SegmentId, entry: Entry) -> SegmentUse {
        let age = Duration::from_secs(self.newest(id.log).saturating_sub(id.seq) + 1);
        SegmentUse { id, live_bytes: entry.live_bytes, total_bytes: self.total_bytes(entry), age }
    }

    /// What a segment takes on the stores, without parity.
    fn total_bytes(&self, entry: Entry) -> u64 {
        (entry.stored_bytes * self.data_fragments / self.all_fragments).max(entry.live_bytes)
    }

    /// The bucket of a segment; `None` if it is not worth cleaning.
    fn bucket(&self, entry: Entry) -> Option<u16> {
        let Entry { stored_bytes, live_bytes } = entry;
        let total_bytes = self.total_bytes(entry);
        let id = SegmentId { log: LogId::new(0), epoch: 0, seq: 0 };
        let is_worth = SegmentUse { id, live_bytes, total_bytes, age: Duration::ZERO }.is_worth_cleaning();
        (stored_bytes > 0 && live_bytes > 0 && is_worth).then(|| (live_bytes * BUCKET_COUNT / total_bytes) as u16)
    }

    /// Changes an entry, and updates the lists and sums that are derived from it.
    fn change(&mut self, segment: SegmentId, change: impl FnOnce(&mut Entry)) {
        let (before, after) = match self.entries.entry(segment) {
            Slot::Occupied(mut slot) => {
                let before = *slot.get();
                change(slot.get_mut());
                let after = *slot.get();
                if after == Entry::default() {
                    slot.remove();
                }
                (before, after)
            }
            Slot::Vacant(slot) => {
                let mut after = Entry::default();
                change(&mut after);
                if after != Entry::default() {
                    slot.insert(after);
                }
                (Entry::default(), after)
            }
        };
        let (log, place) = (segment.log, (segment.seq, segment.epoch));
        let is_empty = |entry: Entry| entry.stored_bytes > 0 && entry.live_bytes == 0;
        match (is_empty(before), is_empty(after)) {
            (false, true) => drop(self.empty.entry(log).or_default().insert(place)),
            (true, false) => drop(self.empty.entry(log).or_default().remove(&place)),
            _ => {}
        }
        let (was, is) = (self.bucket(before), self.bucket(after));
        if was != is {
            if let Some(bucket) = was
                && let Slot::Occupied(mut places) = self.buckets.entry((log, bucket))
            {
                places.get_mut().remove(&place);
                if places.get().is_empty() {
                    places.remove();
                }
            }
            if let Some(bucket) = is {
                self.buckets.entry((log, bucket)).or_default().insert(place);
            }
        }
        self.totals.remove(before);
        self.totals.add(after);
    }
}

impl Totals {
    fn add(&mut self, entry: Entry) {
        self.segment_count += u64::from(entry.stored_bytes > 0);
        self.stored_bytes += entry.stored_bytes;
        self.used_bytes += if entry.live_bytes > 0 { entry.stored_bytes } else { 0 };
        self.live_bytes += entry.live_bytes;
    }

    fn remove(&mut self, entry: Entry) {
        self.segment_count -= u64::from(entry.stored_bytes > 0);
        self.stored_bytes -= entry.stored_bytes;
        self.used_bytes -= if entry.live_bytes > 0 { entry.stored_bytes } else { 0 };
        self.live_bytes -= entry.live_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clean::{Rule, choose};
    use proptest::prelude::*;

    const MANAGERS: usize = 2;

    fn segment(log: u32, seq: u64) -> SegmentId {
        SegmentId { log: LogId::new(log), epoch: 1 + (seq / 40) as u32, seq }
    }

    #[derive(Clone, Debug)]
    enum Event {
        Stored(SegmentId, u64),
        Deleted(SegmentId),
        Counted(usize, SegmentId, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let id = || (1u32..4, 1u64..80).prop_map(|(log, seq)| segment(log, seq));
        prop_oneof![
            4 => (id(), 1u64..5000).prop_map(|(id, bytes)| Event::Stored(id, bytes)),
            1 => id().prop_map(Event::Deleted),
            6 => (0..MANAGERS, id(), 0u64..2000).prop_map(|(manager, id, live)| Event::Counted(manager, id, live)),
            2 => (0..MANAGERS, id()).prop_map(|(manager, id)| Event::Counted(manager, id, 0)),
        ]
    }

    /// The model: all events, counted anew for each question.
    #[derive(Default)]
    struct Recount {
        stored: BTreeMap<SegmentId, u64>,
        counts: BTreeMap<(SegmentId, usize), u64>,
        newest: BTreeMap<LogId, u64>,
    }

    impl Recount {
        fn take(&mut self, event: &Event) {
            match *event {
                Event::Stored(id, bytes) => {
                    let stored = self.stored.entry(id).or_default();
                    *stored = bytes.max(*stored);
                    let newest = self.newest.entry(id.log).or_default();
                    *newest = id.seq.max(*newest);
                }
                Event::Deleted(id) => drop(self.stored.remove(&id)),
                Event::Counted(manager, id, live) => drop(self.counts.insert((id, manager), live)),
            }
        }

        fn live(&self, id: SegmentId) -> u64 {
            (0..MANAGERS).filter_map(|manager| self.counts.get(&(id, manager))).sum()
        }

        fn totals(&self) -> Totals {
            let used = self.stored.iter().filter(|(id, _)| self.live(**id) > 0);
            Totals {
                segment_count: self.stored.len() as u64,
                stored_bytes: self.stored.values().sum(),
                used_bytes: used.map(|(_, bytes)| bytes).sum(),
                live_bytes: self.counts.values().sum(),
            }
        }

        fn candidates(&self, gain_percent: u64) -> Vec<SegmentUse> {
            let uses = self.stored.iter().map(|(&id, stored)| {
                let live_bytes = self.live(id);
                let age = Duration::from_secs(self.newest[&id.log] - id.seq + 1);
                SegmentUse { id, live_bytes, total_bytes: (stored * 4 / 5).max(live_bytes), age }
            });
            let worth = |s: &SegmentUse| s.gain_bytes() * 100 >= s.total_bytes * gain_percent;
            uses.filter(|s| s.live_bytes > 0 && s.is_worth_cleaning() && worth(s)).collect()
        }
    }

    proptest! {
        #[test]
        fn prop_the_table_says_what_a_recount_says(events in proptest::collection::vec(event(), 0..400), through in 0u64..90) {
            let mut table = Segments::new(MANAGERS, 4, 1);
            let mut recount = Recount::default();
            for event in &events {
                recount.take(event);
                match *event {
                    Event::Stored(id, bytes) => table.stored(id, bytes),
                    Event::Deleted(id) => table.deleted(id),
                    Event::Counted(manager, id, live) => table.counted(manager, id, live),
                }
            }
            prop_assert_eq!(table.totals(), recount.totals());
            for log in (1..4).map(LogId::new) {
                prop_assert_eq!(table.newest(log), recount.newest.get(&log).copied().unwrap_or(0));
                let empty = recount.stored.keys().filter(|id| id.log == log && id.seq <= through && recount.live(**id) == 0);
                let mut empty: Vec<SegmentId> = empty.copied().collect();
                empty.sort_by_key(|id| (id.seq, id.epoch));
                prop_assert_eq!(table.empty_through(log, through, usize::MAX), empty);
            }
            let mut all = recount.candidates(0);
            all.sort_by_key(|s| s.id);
            let mut some: Vec<SegmentUse> = table.candidates(0).collect();
            some.sort_by_key(|s| s.id);
            prop_assert_eq!(&some, &all, "no bucket holds more than are taken");
        }

        #[test]
        fn prop_victims_are_almost_as_good_as_if_all_segments_had_been_looked_at(
            uses in proptest::collection::vec((1u64..1000, 1u64..1000, 1u32..3), 1..3000),
        ) {
            let mut table = Segments::new(1, 4, 1);
            let mut recount = Recount::default();
            for (seq, &(stored, live, log)) in (1..).zip(&uses) {
                // Most segments are alike, so that some buckets have more than `VICTIMS_MAX`.
                let (stored, live) = if seq % 3 > 0 { (1250, 600 + live % 9) } else { (stored, live) };
                let id = segment(log, seq);
                table.stored(id, stored);
                table.counted(0, id, live);
                recount.take(&Event::Stored(id, stored));
                recount.take(&Event::Counted(0, id, live));
            }
            let benefits = |uses: &[SegmentUse]| {
                let by_id: BTreeMap<SegmentId, SegmentUse> = uses.iter().map(|s| (s.id, *s)).collect();
                let chosen = choose(uses.iter().copied(), u64::MAX);
                chosen.into_iter().take(VICTIMS_MAX).map(|id| Rule::default().benefit(by_id[&id])).collect::<Vec<f64>>()
            };
            let some: Vec<SegmentUse> = table.candidates(0).collect();
            let (found, best) = (benefits(&some), benefits(&recount.candidates(0)));
            prop_assert_eq!(found.len(), best.len());
            for (found, best) in found.into_iter().zip(best) {
                prop_assert!(found * BENEFIT_RATIO_MAX * (1.0 + 1e-9) >= best, "{found} instead of {best}");
            }
        }
    }

    #[test]
    fn regression_a_choice_looks_at_a_bounded_number_of_segments() {
        let mut table = Segments::new(1, 4, 1);
        for seq in 1..=100_000 {
            table.stored(segment(1, seq), 1250);
            table.counted(0, segment(1, seq), 1 + seq % 1000);
        }
        assert!(table.candidates(0).count() <= VICTIMS_MAX * BUCKET_COUNT as usize);
        assert_eq!(table.newest(LogId::new(1)), 100_000);
    }

    #[test]
    fn a_segment_is_no_candidate_before_it_is_seen_on_the_stores() {
        let mut table = Segments::new(1, 4, 1);
        table.counted(0, segment(1, 5), 10);
        assert_eq!((table.candidates(0).count(), table.totals().segment_count), (0, 0));
        assert_eq!(table.empty_through(LogId::new(1), 9, 9), []);
        table.stored(segment(1, 5), 1250);
        assert_eq!(table.candidates(0).count(), 1);
        table.counted(0, segment(1, 5), 0);
        assert_eq!(table.empty_through(LogId::new(1), 9, 9), [segment(1, 5)]);
        assert_eq!(table.empty_through(LogId::new(1), 4, 9), []);
        table.deleted(segment(1, 5));
        assert_eq!(table.totals(), Totals::default());
    }
}
