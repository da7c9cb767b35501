//! Finds the newest segments of a log without listing them all.

use crate::catch_up::in_force_by;
use crate::{Stripe, StripeError};
use std::collections::BTreeSet;
use storage::api::Storage;
use striped_log::fragment::FragmentHeader;
use types::{LogId, SegmentId};

/// Most headers that a store lists in one answer.
const LIST_COUNT: usize = 4_096;

impl Stripe {
    /// The segments of a log that any store shows, from a seq on, without those that the seal in
    /// force has discarded.
    pub async fn log_segments(&self, log: LogId, from_seq: u64) -> Result<Vec<SegmentId>, StripeError> {
        let seals = self.ask_quorum_briefly(self.options.read_patience(), |s| s.seals()).await?;
        let seal = in_force_by(&seals).remove(&log);
        let (mut all, mut next) = (BTreeSet::new(), Some(from_seq));
        while let Some(from) = next {
            let pages = self.pages(log, from, LIST_COUNT).await?;
            // Each store's page may end at another seq. Only up to the first of these ends it is
            // known what all stores have.
            next = pages.iter().filter_map(|page| page.last()?.seq.checked_add(1)).min();
            all.extend(pages.into_iter().flatten());
        }
        let counts = |s: &SegmentId| !seal.as_ref().is_some_and(|seal| seal.discards(s));
        Ok(all.into_iter().filter(counts).collect())
    }

    /// The seq of the newest segment of a log that any store shows, discarded ones included; 0 if
    /// there is none. Asks the stores twice for each doubling of the seq, for a log of any length.
    pub async fn newest_seq(&self, log: LogId) -> Result<u64, StripeError> {
        // There is a segment at `least`, unless that is 0. There was none from `beyond` on.
        let (mut least, mut beyond) = (0u64, None);
        loop {
            let from = match beyond {
                None => least.saturating_mul(2).max(1),
                Some(beyond) => least + (beyond - least) / 2,
            };
            if from == least {
                return Ok(least);
            }
            match self.pages(log, from, 1).await?.into_iter().flatten().map(|s| s.seq).max() {
                None => beyond = Some(from),
                Some(seq) => least = seq,
            }
        }
    }

    /// The first segments of a log from a seq on, as each store of a quorum shows them, in order of
    /// seq.
    async fn pages(&self, log: LogId, from_seq: u64, count: usize) -> Result<Vec<Vec<SegmentId>>, StripeError> {
        let patience = self.options.read_patience();
        let answers = self.ask_quorum_briefly(patience, |s: &dyn Storage| s.list(log, from_seq, count)).await?;
        let ours = |h: &FragmentHeader| h.fs == self.fs && h.id.segment.log == log && h.id.segment.seq >= from_seq;
        let page = |headers: Vec<FragmentHeader>| {
            let mut page: Vec<SegmentId> = headers.iter().filter(|h| ours(h)).map(|h| h.id.segment).collect();
            page.sort_unstable_by_key(|s| s.seq);
            page
        };
        Ok(answers.into_iter().map(|(_, headers)| page(headers)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, LOG, Rig};
    use striped_log::segment::Segment;

    #[test]
    fn newest_segment_is_found_whatever_was_deleted() {
        let rig = Rig::new(1, 5, 1);
        assert_eq!(rig.run(rig.stripe().newest_seq(LOG)), Ok(0));
        let segments: Vec<Segment> = (1..=300).map(|seq| rig.segment(seq, 100)).collect();
        for (count, segment) in segments.iter().enumerate() {
            rig.run(rig.stripe().put(segment)).unwrap();
            if count % 37 == 0 {
                assert_eq!(rig.run(rig.stripe().newest_seq(LOG)), Ok(segment.id.seq));
            }
        }
        let all: Vec<SegmentId> = segments.iter().map(|s| s.id).collect();
        assert_eq!(rig.run(rig.stripe().log_segments(LOG, 0)), Ok(all.clone()));
        assert_eq!(rig.run(rig.stripe().log_segments(LOG, 290)), Ok(all[289..].to_vec()));
        rig.run(rig.stripe().delete(all[10..299].to_vec()));
        assert_eq!(rig.run(rig.stripe().newest_seq(LOG)), Ok(300));
        rig.run(rig.stripe().delete(all[10..].to_vec()));
        assert_eq!(rig.run(rig.stripe().newest_seq(LOG)), Ok(10));
        rig.stores[0].set(Fault::Down);
        assert_eq!(rig.run(rig.stripe().newest_seq(LOG)), Ok(10));
        rig.stores[1].set(Fault::Down);
        assert_eq!(rig.run(rig.stripe().newest_seq(LOG)), Err(StripeError::NotEnoughStores));
    }

    #[test]
    fn segments_that_a_seal_discarded_are_not_listed() {
        let rig = Rig::new(2, 5, 1);
        let segments: Vec<Segment> = (1..=3).map(|seq| rig.segment(seq, 100)).collect();
        segments.iter().for_each(|segment| rig.run(rig.stripe().put(segment)).unwrap());
        // One store is away while the other stores discard the segments, and still has its
        // fragments.
        rig.stores[4].set(Fault::Down);
        for segment in &segments[1..] {
            for store in &rig.stores[..4] {
                store.contents.lock().fragments.retain(|key, _| key.0 != segment.id);
            }
        }
        let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
        assert_eq!(tail.next_seq, 2);
        rig.stores[4].set(Fault::None);
        rig.stores[0].set(Fault::Down);
        assert_eq!(rig.run(rig.stripe().log_segments(LOG, 0)), Ok(vec![segments[0].id]));
    }
}
