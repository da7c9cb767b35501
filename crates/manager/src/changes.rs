//! The changes of a manager's counts since its follower last asked, so that a round costs what
//! changed and not what there is.
//!
//! Only the names of segments are kept. Their counts are looked up when the follower asks, so after
//! a lost answer the follower simply asks again. Nothing is kept before the first question, nor
//! beyond [`CHANGES_MAX`] names: then the next answer is the whole table.

use std::collections::{BTreeMap, VecDeque};
use types::SegmentId;

/// Most names kept for a follower: some 64 MiB.
const CHANGES_MAX: usize = 1 << 20;

/// The names of segments whose count changed, and of those that became covered.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Number of the last answer; the first has number 1.
    number: u64,
    /// All names after this answer are kept; `None` while there is no follower.
    after: Option<u64>,
    /// For each segment: the number of the answer that first tells of its last change.
    touched: BTreeMap<SegmentId, u64>,
    /// Covered segments, each with the number of the answer that first tells of it.
    covered: VecDeque<(u64, SegmentId)>,
}

/// An answer to a follower.
#[derive(Debug)]
pub(crate) struct Told {
    /// The number of this answer, to be passed with the next question.
    pub(crate) until: u64,
    /// The segments whose count changed; `None` if the whole table must be told.
    pub(crate) touched: Option<Vec<SegmentId>>,
    /// The segments that became covered, in order of each log.
    pub(crate) covered: Vec<SegmentId>,
}

impl Changes {
    /// Notes that the count of a segment changes.
    pub(crate) fn touch(&mut self, segment: SegmentId) {
        if self.after.is_some() {
            self.touched.insert(segment, self.number + 1);
            self.bound();
        }
    }

    /// Notes that the durable checkpoint covers a segment from now on.
    pub(crate) fn cover(&mut self, segment: SegmentId) {
        if self.after.is_some() {
            self.covered.push_back((self.number + 1, segment));
            self.bound();
        }
    }

    /// Answers a follower that has seen all answers up to number `since`.
    pub(crate) fn tell(&mut self, since: u64) -> Told {
        self.number += 1;
        let until = self.number;
        if self.after.is_none_or(|after| since < after || since >= until) {
            self.forget();
            self.after = Some(until);
            return Told { until, touched: None, covered: Vec::new() };
        }
        self.after = Some(since);
        self.touched.retain(|_, number| *number > since);
        self.covered.retain(|(number, _)| *number > since);
        let covered = self.covered.iter().map(|&(_, segment)| segment).collect();
        Told { until, touched: Some(self.touched.keys().copied().collect()), covered }
    }

    fn bound(&mut self) {
        if self.touched.len() + self.covered.len() > CHANGES_MAX {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.after = None;
        self.touched.clear();
        self.covered.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::LogId;

    fn segment(seq: u64) -> SegmentId {
        SegmentId { log: LogId::new(3), epoch: 1, seq }
    }

    #[test]
    fn an_answer_that_was_lost_is_contained_in_the_next() {
        let mut changes = Changes::default();
        changes.touch(segment(1));
        let first = changes.tell(0);
        assert_eq!(first.touched, None, "the first answer is the whole table");
        let first = changes.tell(0);
        assert_eq!(first.touched, None, "the whole table was lost");
        changes.touch(segment(2));
        changes.cover(segment(2));
        let lost = changes.tell(first.until);
        assert_eq!((lost.touched, lost.covered), (Some(vec![segment(2)]), vec![segment(2)]));
        changes.touch(segment(3));
        let second = changes.tell(first.until);
        assert_eq!((second.touched, second.covered), (Some(vec![segment(2), segment(3)]), vec![segment(2)]));
        let third = changes.tell(second.until);
        assert_eq!((third.touched, third.covered), (Some(vec![]), vec![]));
    }

    #[test]
    fn a_number_of_another_start_gives_the_whole_table() {
        let mut changes = Changes::default();
        assert_eq!(changes.tell(17).touched, None);
        assert_eq!(changes.tell(17).touched, None);
        let followed = changes.tell(0).until;
        assert!(changes.tell(followed).touched.is_some());
    }

    #[test]
    fn a_follower_that_stopped_asking_costs_bounded_memory() {
        let mut changes = Changes::default();
        let first = changes.tell(0);
        for seq in 0..=CHANGES_MAX as u64 {
            changes.cover(segment(seq));
        }
        assert!(changes.covered.is_empty());
        assert_eq!(changes.tell(first.until).touched, None);
    }
}
