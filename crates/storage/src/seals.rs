//! The seals of a store.
//!
//! Of each log, a store keeps two. The **told** one is the newest that the store was told a quorum
//! has: what it discards is gone. One **under way** is of a later epoch: an opener has asked for
//! it, and has not told that a quorum took it. The store refuses the writers that it fences. But
//! its opener may have died, and a new leader may have let the writer before go on. So it discards
//! nothing, and does not replace the told one, before the store is told. Thus stores agree on an
//! opening as acceptors do in Paxos, which promise first and accept then.

use crate::seal::Seal;
use std::collections::BTreeMap;
use types::{LogId, SegmentId};

/// The seals of a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seals(BTreeMap<LogId, LogSeals>);

/// The seals of one log. The one under way is of a later epoch than the told one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct LogSeals {
    told: Option<Seal>,
    under_way: Option<Seal>,
}

impl LogSeals {
    fn each(&self) -> impl Iterator<Item = &Seal> {
        self.told.iter().chain(&self.under_way)
    }

    fn newest(&self) -> Option<&Seal> {
        self.under_way.as_ref().or(self.told.as_ref())
    }
}

impl Seals {
    /// Takes a seal if the present one of its kind [gives way](Seal::gives_way_to) to it, and, if
    /// it is under way, it is of a later epoch than the told one. A told one ends one under way
    /// that is not of a later epoch. True if it was taken.
    pub fn take(&mut self, seal: Seal) -> bool {
        let LogSeals { told, under_way } = self.0.entry(seal.log).or_default();
        let present = if seal.is_told() { &mut *told } else { &mut *under_way };
        if present.as_ref().is_some_and(|present| !present.gives_way_to(&seal)) {
            return false;
        }
        if seal.is_told() {
            under_way.take_if(|begun| begun.epoch <= seal.epoch);
            *told = Some(seal);
        } else if told.as_ref().is_none_or(|told| told.epoch < seal.epoch) {
            *under_way = Some(seal);
        } else {
            return false;
        }
        true
    }

    /// The seal of a log with the latest epoch.
    pub fn newest(&self, log: LogId) -> Option<&Seal> {
        self.0.get(&log)?.newest()
    }

    /// True if a put of the segment is refused.
    pub fn refuse(&self, segment: &SegmentId) -> bool {
        let of_log = self.0.get(&segment.log).into_iter();
        of_log.flat_map(LogSeals::each).any(|seal| seal.discards(segment))
    }

    /// The told seal of a log, if what it discards can be deleted. While another one is under way,
    /// that cannot: its opener may count what an opener before it has discarded.
    pub fn discarding(&self, log: LogId) -> Option<&Seal> {
        self.newest(log).filter(|seal| seal.is_told())
    }

    /// All seals. Each can be [taken](Self::take) after those before it.
    pub fn iter(&self) -> impl Iterator<Item = &Seal> {
        self.0.values().flat_map(LogSeals::each)
    }

    /// Marks all seals: the store has lost fragments, and does not know which.
    pub fn mark_lost(&mut self) {
        let all = self.0.values_mut().flat_map(|LogSeals { told, under_way }| told.iter_mut().chain(under_way));
        all.for_each(|seal| seal.has_lost = true);
    }
}

impl FromIterator<Seal> for Seals {
    fn from_iter<I: IntoIterator<Item = Seal>>(all: I) -> Self {
        let mut seals = Seals::default();
        for seal in all {
            seals.take(seal);
        }
        seals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Fence;
    use crate::testing::segment;
    use types::StoreId;

    const LOG: LogId = LogId::new(1);

    fn seal(epoch: u32, through: u64, nonce: u64) -> Seal {
        Seal::new(LOG, Fence { epoch, through }, nonce)
    }

    fn told(seal: &Seal) -> Seal {
        seal.told([1, 2].map(StoreId::new).into())
    }

    #[test]
    fn a_seal_under_way_refuses_and_discards_nothing() {
        let (first, second) = (seal(1, 0, 5), seal(2, 10, 6));
        let mut seals = Seals::default();
        assert!(seals.take(first.clone()) && seals.take(told(&first)) && seals.take(second.clone()));
        assert!(!seals.refuse(&segment(1, 1, 10)) && seals.refuse(&segment(1, 1, 11)));
        assert_eq!(seals.discarding(LOG), None);
        assert_eq!(seals.iter().collect::<Vec<_>>(), [&told(&first), &second]);
        assert!(!seals.take(seal(2, 11, 7)), "two openers with one epoch");
        assert_eq!(seals, seals.iter().cloned().collect());
        assert!(seals.take(told(&second)));
        assert_eq!((seals.discarding(LOG), seals.iter().count()), (Some(&told(&second)), 1));
        assert!(!seals.take(second) && !seals.take(told(&first)));
    }

    #[test]
    fn a_told_seal_is_taken_beside_one_under_way_that_came_to_nothing() {
        for (stray, is_left) in [(2, false), (3, true)] {
            let (stray, other) = (seal(stray, 10, 5), told(&seal(2, 20, 6)));
            let mut seals: Seals = [told(&seal(1, 0, 4)), stray.clone()].into_iter().collect();
            assert!(seals.take(other.clone()));
            assert_eq!(seals.newest(LOG), Some(if is_left { &stray } else { &other }));
            assert_eq!(seals.discarding(LOG), (!is_left).then_some(&other));
            assert_eq!(seals.iter().next(), Some(&other));
        }
    }

    #[test]
    fn a_store_that_has_lost_fragments_says_so_until_it_has_the_told_seal_of_a_later_epoch() {
        let (first, second) = (told(&seal(1, 0, 5)), seal(2, 10, 6));
        let mut seals: Seals = [first.clone()].into_iter().collect();
        seals.mark_lost();
        assert!(seals.take(second.clone()) && seals.iter().any(|seal| seal.has_lost));
        let mut restored = seals.clone();
        assert!(restored.take(first) && restored.iter().all(|seal| !seal.has_lost));
        assert!(seals.take(told(&second)) && seals.iter().all(|seal| !seal.has_lost));
    }
}
