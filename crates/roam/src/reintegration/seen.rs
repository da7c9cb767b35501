//! Operations that the home has seen, but perhaps not made durable yet.
//!
//! The home answers operations when it has done them ([`Outcome`](roam_proto::message::Outcome));
//! from then on all clients see the results. The operations stay unchanged in this client's log
//! until the home says that they are durable ([`Request::Durable`]). Only then do they count as
//! home, and the client takes in their answers. A home that crashes before that gets them again.
//!
//! Not lasting: a client that attaches again sends every operation that waits.

use roam_proto::message::{Applied, Outcome};
use std::collections::VecDeque;

/// With this many answers to take in, it asks at once.
const SEEN_COUNT_MAX: usize = 4096;

/// Answers to operations that are not durable yet, in the order of the operations.
#[derive(Default)]
pub(crate) struct Seen {
    pub(super) answers: VecDeque<Applied>,
    /// The last operation that the home has seen.
    pub(super) through: u64,
    /// Operations up to this one, which the home has seen, are to be durable because a call waits
    /// for that.
    wanted: u64,
    /// As `wanted`, for an operation that the home had not seen when the call began. The client
    /// asks once the home has seen it. If it asked after each message before, the home would sync
    /// for each of them.
    wanted_later: u64,
    /// How often the client has attached: counts how often everything here began anew.
    pub(crate) attached: u64,
}

impl Seen {
    /// The last operation that the home has seen.
    pub(crate) fn through(&self) -> u64 {
        self.through
    }

    /// Takes in the home's answers to operations.
    pub(crate) fn add(&mut self, applied: Vec<Applied>) {
        for applied in applied.into_iter() {
            if applied.seq > self.through {
                self.through = applied.seq;
                self.answers.push_back(applied);
            }
        }
        if self.through >= self.wanted_later {
            self.wanted = self.wanted.max(self.wanted_later);
        }
    }

    /// Notes that a call waits until operations up to this one are durable.
    pub(super) fn want(&mut self, seq: u64) {
        match seq <= self.through {
            true => self.wanted = self.wanted.max(seq),
            false => self.wanted_later = self.wanted_later.max(seq),
        }
    }

    /// The client has attached again, and sends every operation that is not durable.
    pub(crate) fn begin_anew(&mut self) {
        *self = Seen { attached: self.attached + 1, ..Seen::default() };
    }

    /// True if an operation failed or was merged. What follows depends on that answer, which has to
    /// be taken in first.
    pub(crate) fn has_failed(&self) -> bool {
        self.answers.iter().any(|applied| applied.outcome != Outcome::Done)
    }

    /// True if the client asks the home at once.
    pub(super) fn is_urgent(&self) -> bool {
        let is_wanted = self.answers.front().is_some_and(|first| first.seq <= self.wanted);
        is_wanted || self.answers.len() >= SEEN_COUNT_MAX || self.has_failed()
    }

    pub(super) fn take(&mut self, through: u64) -> Vec<Applied> {
        let count = self.answers.iter().take_while(|applied| applied.seq <= through).count();
        self.answers.drain(..count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(seqs: std::ops::RangeInclusive<u64>) -> Vec<Applied> {
        seqs.map(|seq| Applied { seq, outcome: Outcome::Done, facts: Vec::new() }).collect()
    }

    #[test]
    fn a_home_is_asked_at_once_when_it_has_seen_all_that_a_call_waits_for() {
        let mut all = Seen::default();
        all.want(10);
        all.add(seen(1..=5));
        assert!(!all.is_urgent());
        all.want(3);
        assert!(all.is_urgent());
        all.take(5);
        all.add(seen(6..=10));
        assert!(all.is_urgent());
        all.take(10);
        all.add(seen(11..=12));
        assert!(!all.is_urgent());
    }
}
