//! Surveys a log page by page: which segments the stores have, how many bytes these take, and which
//! of them lack fragments.
//!
//! A survey reads only headers, which stores have in memory. A page costs the same in a log of any
//! length.

use crate::layout::Described;
use crate::{Stripe, StripeError};
use host::join_all;
use std::collections::{BTreeMap, BTreeSet};
use types::{LogId, SegmentId};

/// Most fragments that each store lists for a page.
const PAGE_COUNT: usize = 512;
/// Most segments that stores are asked about at the same time.
const DESCRIBED_AT_ONCE: usize = 64;

/// A page of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Surveyed {
    /// The segments, by seq, with the bytes that they take on the stores that answered.
    pub segments: Vec<(SegmentId, u64)>,
    /// The segments that can be read but lack fragments, with the bytes of these. Empty unless
    /// `all_answered`: a store that does not answer may have the fragments.
    pub lacking: Vec<(SegmentId, u64)>,
    /// The segments that cannot be read: none of their attempts has enough fragments. Nothing may
    /// need them: some are being put or deleted, or were never complete. Empty unless
    /// `all_answered`.
    pub unreadable: Vec<SegmentId>,
    /// True if all stores have answered.
    pub all_answered: bool,
    /// The seq where the next page begins; `None` if this is the last page.
    pub next_seq: Option<u64>,
}

impl Stripe {
    /// The page of a log that begins at a seq. Fails with [`StripeError::NotEnoughStores`] unless a
    /// quorum answers.
    pub async fn survey(&self, log: LogId, from_seq: u64) -> Result<Surveyed, StripeError> {
        let answers = self.ask_quorum(|s| s.list(log, from_seq, PAGE_COUNT)).await?;
        let all_answered = answers.len() == self.stores.len();
        // A store lists whole seqs, so its list is complete up to its last seq. The page ends at
        // the lowest of these last seqs.
        let last = |page: &[striped_log::fragment::FragmentHeader]| page.iter().map(|h| h.id.segment.seq).max();
        let through = answers.iter().filter_map(|(_, page)| last(page)).min();
        let Some(through) = through.filter(|seq| *seq >= from_seq) else {
            let (segments, lacking, unreadable) = (Vec::new(), Vec::new(), Vec::new());
            return Ok(Surveyed { segments, lacking, unreadable, all_answered, next_seq: None });
        };
        let mut found: BTreeMap<(u64, SegmentId), (u64, Described)> = BTreeMap::new();
        for (at, page) in answers {
            let ours = page.into_iter().filter(|h| h.fs == self.fs && h.id.segment.log == log && h.check().is_ok());
            for header in ours.filter(|h| (from_seq..=through).contains(&h.id.segment.seq)) {
                let segment = header.id.segment;
                let described = || (0, Described { found: Vec::new(), answered: BTreeSet::new() });
                let (bytes, described) = found.entry((segment.seq, segment)).or_insert_with(described);
                *bytes += u64::from(storage::footprint(header.len));
                described.found.push((self.stores[at].id, header));
            }
        }
        let lacks = |described: &Described| described.best(self.fs).is_some_and(|layout| !layout.missing().is_empty());
        let suspects = found.iter().filter(|(_, (_, described))| all_answered && lacks(described));
        let suspects: Vec<SegmentId> = suspects.map(|((_, segment), _)| *segment).collect();
        let mut lacking = Vec::new();
        for some in suspects.chunks(DESCRIBED_AT_ONCE) {
            // A segment that was being put while the stores were asked is complete by now, or still
            // on its way.
            let missing = join_all(some.iter().map(|segment| self.missing(*segment)).collect()).await;
            lacking.extend(some.iter().copied().zip(missing).filter(|(_, bytes)| *bytes > 0));
        }
        let cannot = found.iter().filter(|(_, (_, described))| all_answered && described.best(self.fs).is_none());
        let unreadable = cannot.map(|((_, segment), _)| *segment).collect();
        let segments = found.into_iter().map(|((_, segment), (bytes, _))| (segment, bytes)).collect();
        Ok(Surveyed { segments, lacking, unreadable, all_answered, next_seq: through.checked_add(1) })
    }

    /// True if all stores answer, and a segment cannot be read from what they have. It is not being
    /// put at the moment.
    pub async fn is_lost(&self, segment: SegmentId) -> bool {
        if self.attempts.lock().contains_key(&segment) {
            return false;
        }
        let described = self.describe(segment).await;
        described.answered.len() == self.stores.len() && described.best(self.fs).is_none()
    }

    /// Bytes of the fragments that a readable segment lacks; 0 if the segment is being put at the
    /// moment.
    async fn missing(&self, segment: SegmentId) -> u64 {
        // Check this before asking the stores: a put that has ended by now is seen complete.
        if self.attempts.lock().contains_key(&segment) {
            return 0;
        }
        self.describe(segment).await.best(self.fs).map_or(0, |layout| layout.missing_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, LOG, Rig};
    use parking_lot::Mutex;
    use std::sync::Arc;
    use striped_log::segment::Segment;

    const LENGTHS: [usize; 6] = [10, 70_000, 300_000, 2000, 65_536, 1 << 20];

    fn fill(rig: &Rig, stripe: &Arc<Stripe>) -> Vec<Segment> {
        let segments: Vec<Segment> = LENGTHS.iter().zip(1..).map(|(&len, seq)| rig.segment(seq, len)).collect();
        segments.iter().for_each(|s| rig.run(stripe.put(s)).unwrap());
        segments
    }

    /// All pages as one.
    fn survey(rig: &Rig, stripe: &Stripe) -> Surveyed {
        let mut all = rig.run(stripe.survey(LOG, 0)).unwrap();
        while let Some(next_seq) = all.next_seq {
            let page = rig.run(stripe.survey(LOG, next_seq)).unwrap();
            all.segments.extend(page.segments);
            all.lacking.extend(page.lacking);
            all.unreadable.extend(page.unreadable);
            all.all_answered &= page.all_answered;
            all.next_seq = page.next_seq;
        }
        all
    }

    #[test]
    fn what_stores_lack_is_found_and_restored_without_reading_the_rest() {
        for m in [1, 2] {
            let rig = Rig::new(12, 5, m);
            let stripe = rig.stripe();
            let segments = fill(&rig, &stripe);
            let reads = || rig.stores.iter().map(|s| s.contents.lock().read_count).sum::<u64>();
            assert_eq!(survey(&rig, &stripe).lacking, []);
            assert_eq!(reads(), 0);
            // Stores are emptied one after the other, more than m in all.
            for lost in 0..5 {
                rig.stores[lost].wipe();
                let lacking = survey(&rig, &stripe).lacking;
                assert!(!lacking.is_empty());
                for &(segment, bytes) in &lacking {
                    let used = || {
                        let contents = rig.stores[lost].contents.lock();
                        contents.fragments.values().map(|f| u64::from(storage::footprint(f.header.len))).sum::<u64>()
                    };
                    let before = used();
                    assert!(rig.run(stripe.restore(segment)));
                    assert_eq!(used(), before + bytes);
                }
                assert_eq!(survey(&rig, &stripe).lacking, []);
            }
            for segment in &segments {
                let read = rig.run(stripe.read(segment.id, 0..segment.payload.len() as u32));
                assert_eq!(read.as_ref(), Ok(&segment.payload));
            }
            rig.stores[1].wipe();
            rig.stores[0].set(Fault::Silent);
            let seen = survey(&rig, &stripe);
            assert_eq!((seen.all_answered, seen.lacking), (false, vec![]), "who knows what it has");
        }
    }

    /// It counted as gone, so that its fragments were not restored.
    #[test]
    fn regression_a_segment_whose_stores_do_not_answer_is_not_restored() {
        let rig = Rig::new(12, 5, 1);
        let stripe = rig.stripe();
        let segments = fill(&rig, &stripe);
        let silence = |fault| rig.stores.iter().for_each(|store| store.set(fault));
        silence(Fault::Silent);
        assert!(!rig.run(stripe.restore(segments[0].id)));
        silence(Fault::None);
        assert!(rig.run(stripe.restore(segments[0].id)));
        let gone = SegmentId { seq: u64::MAX, ..segments[0].id };
        assert!(rig.run(stripe.restore(gone)));
        rig.stores[3].set(Fault::Silent);
        assert!(!rig.run(stripe.restore(gone)), "the silent store may have it");
    }

    #[test]
    fn pages_have_every_segment_once_and_what_a_follower_was_told() {
        let rig = Rig::new(13, 5, 1);
        let stripe = rig.stripe();
        let told = Arc::new(Mutex::new(Vec::new()));
        let follower = told.clone();
        assert!(stripe.on_stored(move |segment, bytes| follower.lock().push((segment, bytes))));
        assert!(!stripe.on_stored(|_, _| ()), "one follower");
        fill(&rig, &stripe);
        let seen = survey(&rig, &stripe);
        assert_eq!(seen.segments, *told.lock());
        assert!(seen.all_answered);
        assert_eq!(rig.run(stripe.survey(LOG, 1000)).unwrap().next_seq, None);
    }
}
