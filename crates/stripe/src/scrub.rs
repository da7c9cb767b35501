//! Scrub: verifies every fragment of every segment, and repairs missing and damaged ones.
//!
//! A segment that is being put at the moment is skipped: it is incomplete only because it is not
//! there yet. Fragments on stores that do not answer count as not checked. A segment that is being
//! deleted, or that a store shows again after its deletion, looks incomplete too. So callers that
//! delete segments check the [suspects](ScrubReport::suspects) again.

use crate::health::StoreState;
use crate::layout::{Described, Layout};
use crate::put::Attempted;
use crate::stripe::{Purpose, Whom};
use crate::{Stripe, StripeError};
use host::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use storage::api::StorageError;
use striped_log::segment::Segment;
use types::{FragmentId, SegmentId};

/// When a segment may be put elsewhere whose fragments cannot be put back where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Elsewhere {
    Always,
    /// While all stores are in service.
    WhileWhole,
}

/// How far a scrub is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubProgress {
    /// Segments checked so far.
    pub segments_done: u64,
    /// Segments in all.
    pub segments_total: u64,
    /// Fragments found missing or damaged so far.
    pub bad_fragments: u64,
}

/// The findings and repairs of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Segments checked.
    pub segments: u64,
    /// Fragments of these segments, including those that are missing or could not be checked.
    pub fragments: u64,
    /// Fragments that are not where they should be.
    pub missing: u64,
    /// Fragments that could not be checked, since their store does not answer.
    pub unchecked: u64,
    /// Fragments whose bytes do not match their checksums.
    pub damaged: u64,
    /// Segments that had lost redundancy and are complete again.
    pub repaired: u64,
    /// Segments that have lost redundancy and still lack it: no repair was asked for, there are not
    /// enough healthy stores, or the stores refuse the fragments because the log was sealed since.
    pub unrepaired: Vec<SegmentId>,
    /// Segments with fragments that could not be checked, and with none that is known to be bad.
    pub uncertain: Vec<SegmentId>,
    /// Segments with too few good fragments to read them. Remains of segments that were deleted, or
    /// never acknowledged, look like this too: data is lost only if a file still points at the
    /// segment.
    pub unreadable: Vec<SegmentId>,
}

/// The fragments of a segment that are not known to be good.
#[derive(Default)]
struct Checked {
    bad: BTreeSet<u8>,
    unchecked: BTreeSet<u8>,
}

impl ScrubReport {
    /// The segments that have, or may have, something wrong.
    pub fn suspects(&self) -> Vec<SegmentId> {
        [&self.unrepaired, &self.uncertain, &self.unreadable].into_iter().flatten().copied().collect()
    }

    /// Combines this report with a second report about all of its suspects.
    pub fn looked_again(self, again: ScrubReport) -> ScrubReport {
        ScrubReport {
            segments: self.segments,
            fragments: self.fragments,
            repaired: self.repaired + again.repaired,
            ..again
        }
    }
}

impl Stripe {
    /// Every segment that has a fragment on a store that answers, and the bytes that it takes on
    /// these stores.
    pub async fn segments(&self) -> Result<BTreeMap<SegmentId, u64>, StripeError> {
        let mut all = BTreeMap::new();
        for (_, segments) in self.ask_quorum(|s| s.segments()).await? {
            for (segment, bytes) in segments {
                *all.entry(segment).or_insert(0) += bytes;
            }
        }
        Ok(all)
    }

    /// Verifies all fragments of all segments. With `repair`, rebuilds missing and damaged ones: in
    /// place if the store takes them, otherwise by putting the whole segment again to healthy
    /// stores. Calls `progress` after each segment.
    pub async fn scrub(
        &self,
        repair: bool,
        progress: impl Fn(ScrubProgress) + Send + Sync,
    ) -> Result<ScrubReport, StripeError> {
        let segments = self.segments().await?;
        let mut report = ScrubReport::default();
        for &segment in segments.keys() {
            self.scrub_segment(segment, repair, &mut report).await;
            report.segments += 1;
            progress(ScrubProgress {
                segments_done: report.segments,
                segments_total: segments.len() as u64,
                bad_fragments: report.missing + report.damaged,
            });
        }
        Ok(report)
    }

    /// Like [`scrub`](Self::scrub), for some segments. Adds to `report`.
    pub async fn scrub_some(&self, segments: &[SegmentId], repair: bool, report: &mut ScrubReport) {
        for &segment in segments {
            self.scrub_segment(segment, repair, report).await;
            report.segments += 1;
        }
    }

    /// How long work that can wait, as [`restore`](Self::restore), should rest before its next
    /// step, so that programs keep the most of each store.
    pub async fn rest(&self) -> Duration {
        let up = self.health.lock().up();
        let answers = self.ask_each(&up, |store| store.rest()).await;
        answers.into_iter().filter_map(|(_, rest)| rest.ok()).max().unwrap_or_default()
    }

    /// Puts a segment's missing fragments again. True if it now lacks none, or if all stores answer
    /// that it is gone.
    pub async fn restore(&self, segment: SegmentId) -> bool {
        let described = self.describe(segment).await;
        let Some(layout) = described.best(self.fs) else {
            return described.found.is_empty() && described.answered.len() == self.stores.len();
        };
        let missing = layout.missing();
        missing.is_empty() || self.repair(segment, &layout, &described, &missing, Elsewhere::WhileWhole).await
    }

    async fn scrub_segment(&self, segment: SegmentId, repair: bool, report: &mut ScrubReport) {
        // Check this before asking the stores: a put that has ended by now is seen complete.
        if self.attempts.lock().contains_key(&segment) {
            return;
        }
        let described = self.describe(segment).await;
        let Some(layout) = described.best(self.fs) else {
            if described.answered.len() < self.stores.len() {
                report.uncertain.push(segment);
            } else if !described.found.is_empty() {
                report.unreadable.push(segment);
            }
            // Otherwise no store has it: it was deleted since.
            return;
        };
        let Checked { bad, unchecked } = self.verify_all(segment, &layout, &described, report).await;
        let lacking: BTreeSet<u8> = bad.union(&unchecked).copied().collect();
        if lacking.is_empty() {
            return;
        }
        let rest_suffices = lacking.len() <= usize::from(layout.info.geometry.m);
        if !rest_suffices && self.read_segment(segment, Purpose::Upkeep).await.is_err() {
            let whom = if unchecked.is_empty() { &mut report.unreadable } else { &mut report.uncertain };
            whom.push(segment);
        } else if repair && self.repair(segment, &layout, &described, &lacking, Elsewhere::Always).await {
            report.repaired += 1;
        } else if bad.is_empty() {
            report.uncertain.push(segment);
        } else {
            report.unrepaired.push(segment);
        }
    }

    /// The fragments of a layout that are missing or damaged, and those that could not be checked.
    async fn verify_all(
        &self,
        segment: SegmentId,
        layout: &Layout,
        described: &Described,
        report: &mut ScrubReport,
    ) -> Checked {
        let members = &layout.info.geometry.members;
        let checks = (0..).zip(members).map(|(index, store)| async move {
            if layout.present.contains(&index) {
                return self.verify(segment, layout, index).await;
            }
            match described.answered.contains(store) {
                true => Err(StorageError::NotFound(FragmentId { segment, index })),
                false => Err(StorageError::Unavailable),
            }
        });
        let mut checked = Checked::default();
        for (index, check) in (0..).zip(join_all(checks.collect()).await) {
            report.fragments += 1;
            let (count, whom) = match check {
                Ok(()) => continue,
                Err(StorageError::Unavailable) => (&mut report.unchecked, &mut checked.unchecked),
                Err(StorageError::Damaged(_) | StorageError::Disk(_)) => (&mut report.damaged, &mut checked.bad),
                Err(_) => (&mut report.missing, &mut checked.bad),
            };
            *count += 1;
            whom.insert(index);
        }
        checked
    }

    /// Has one fragment checked by its store.
    async fn verify(&self, segment: SegmentId, layout: &Layout, index: u8) -> Result<(), StorageError> {
        let id = FragmentId { segment, index };
        let geometry = &layout.info.geometry;
        let at = geometry.members.get(usize::from(index)).and_then(|&store| self.place(store));
        let Some(at) = at else { return Err(StorageError::Unavailable) };
        let mut answer = self.ask(at, |s| s.verify(id)).await;
        if answer.is_err() && layout.shadowing.contains(&index) {
            // The store checks all its attempts at the fragment. The bad one may be an attempt that
            // is not read any more, so check the attempt that is.
            let (attempt, len) = (layout.info.attempt, geometry.data_len(index));
            answer = self.ask(at, |s| s.read(id, attempt, 0..len)).await.map(|_| ());
        }
        if matches!(answer, Err(StorageError::Damaged(_) | StorageError::Disk(_))) {
            self.note_damaged(at, id);
        }
        answer
    }

    /// Makes a segment complete again. True if that succeeded.
    async fn repair(
        &self,
        id: SegmentId,
        layout: &Layout,
        described: &Described,
        bad: &BTreeSet<u8>,
        elsewhere: Elsewhere,
    ) -> bool {
        let (whole, asked) = (0..layout.info.geometry.payload_len, (Whom::Everybody, Purpose::Upkeep));
        let payload = match self.read_located(id, &layout.info, whole.clone(), asked).await {
            // Stores that had not said what they have may do so now.
            Err(StripeError::NotEnoughStores) => self.read_for(id, whole, asked).await,
            read => read,
        };
        let segment = match payload {
            Ok(payload) => layout.info.segment(id, payload),
            Err(error) => {
                tracing::warn!(segment = %id, %error, "segment cannot be read for repair");
                return false;
            }
        };
        if self.repair_in_place(&segment, layout, described, bad).await {
            return true;
        }
        // A store that has left service meanwhile may return.
        let may_move = elsewhere == Elsewhere::Always || self.is_whole();
        may_move && self.repair_elsewhere(&segment).await
    }

    /// Puts the bad fragments back where they were. A store may keep a damaged fragment that it
    /// has. So each is verified afterwards, unless the store has said that it has none.
    async fn repair_in_place(
        &self,
        segment: &Segment,
        layout: &Layout,
        described: &Described,
        bad: &BTreeSet<u8>,
    ) -> bool {
        let geometry = &layout.info.geometry;
        if bad.iter().any(|index| described.is_taken(layout, *index)) {
            return false;
        }
        let fragments = segment.stripe(self.fs, layout.info.attempt, geometry.clone());
        for fragment in fragments.into_iter().filter(|f| bad.contains(&f.header.id.index)) {
            let index = fragment.header.id.index;
            let Some(store) = fragment.header.member() else { return false };
            let is_new = described.answered.contains(&store) && !layout.present.contains(&index);
            let at = self.place(store).filter(|&at| self.health.lock().state(at) == StoreState::Up);
            let Some(at) = at else { return false };
            let is_put = self.ask_put(at, fragment, Purpose::Upkeep).await.is_ok();
            if !is_put || !is_new && self.verify(segment.id, layout, index).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Puts the whole segment again, as a new attempt, to healthy stores. Does not wait for stores
    /// to come back.
    async fn repair_elsewhere(&self, segment: &Segment) -> bool {
        let mut attempt = self.next_attempt(segment.id).await;
        while let Some(geometry) = self.choose_group(segment) {
            match self.put_attempt(segment, attempt, geometry, Purpose::Upkeep).await {
                Attempted::Complete => return true,
                Attempted::Fenced => return false,
                Attempted::Incomplete => {}
            }
            let Some(next) = attempt.checked_add(1) else { return false };
            attempt = next;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, LOG, Rig};
    use std::sync::Arc;
    use storage::api::Storage;

    /// Writes some segments of all sizes and returns them.
    fn fill(rig: &Rig, stripe: &Arc<Stripe>) -> Vec<Segment> {
        let segments: Vec<Segment> = [10, 70_000, 300_000, 2000, 65_536, 1 << 20]
            .iter()
            .zip(1..)
            .map(|(&len, seq)| rig.segment(seq, len))
            .collect();
        segments.iter().for_each(|s| rig.run(stripe.put(s)).unwrap());
        segments
    }

    fn assert_readable(rig: &Rig, segments: &[Segment]) {
        let stripe = rig.stripe();
        for segment in segments {
            let read = rig.run(stripe.read(segment.id, 0..segment.payload.len() as u32));
            assert_eq!(read.as_ref(), Ok(&segment.payload), "{}", segment.id);
        }
    }

    #[test]
    fn healthy_stores_give_a_clean_report() {
        let rig = Rig::new(1, 5, 1);
        let stripe = rig.stripe();
        fill(&rig, &stripe);
        let calls = parking_lot::Mutex::new(Vec::new());
        let report = rig.run(stripe.scrub(true, |p| calls.lock().push(p))).unwrap();
        assert_eq!(report, ScrubReport { segments: 6, fragments: 2 + 3 + 4 + 2 + 2 + 5, ..Default::default() });
        assert_eq!(calls.lock().len(), 6);
        let last = ScrubProgress { segments_done: 6, segments_total: 6, bad_fragments: 0 };
        assert_eq!(calls.lock().last(), Some(&last));
    }

    /// A store that refuses leaves service, and may return: until then its part is not put
    /// elsewhere. Only a scrub does not wait.
    #[test]
    fn regression_a_store_that_leaves_during_a_restore_has_nothing_put_elsewhere() {
        let rig = Rig::new(5, 5, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 1 << 20);
        rig.run(stripe.put(&segment)).unwrap();
        rig.stores[2].wipe();
        rig.stores[2].set(Fault::ReadOnly);
        assert!(!rig.run(stripe.restore(segment.id)));
        assert!(!stripe.is_whole());
        assert_eq!(rig.run(rig.stripe().info(segment.id)).unwrap().attempt, 0);
        assert_eq!(rig.run(stripe.scrub(true, |_| ())).unwrap().repaired, 1);
        assert_eq!(rig.run(rig.stripe().info(segment.id)).unwrap().attempt, 1);
    }

    /// A store had a fragment of another geometry under the number of the attempt that is read. It
    /// refused the lacking fragment, which took it out of service, so nothing was put elsewhere:
    /// again and again.
    #[test]
    fn regression_a_segment_with_two_geometries_under_one_attempt_number_is_restored() {
        let rig = Rig::new(15, 3, 1);
        let stripe = rig.stripe();
        let (segment, of_opener, of_writer) = rig.two_geometries(&stripe);
        for (geometry, index) in [(&of_opener, 0), (&of_opener, 2), (&of_writer, 1)] {
            rig.put_fragment(&stripe, &segment, geometry, 1, index);
        }
        assert!(rig.run(stripe.restore(segment.id)));
        assert!(stripe.is_whole());
        let layout = rig.run(stripe.describe(segment.id)).best(stripe.fs).unwrap();
        assert_eq!((layout.info.attempt, layout.missing().len()), (2, 0));
        assert_readable(&rig, &[segment]);
    }

    /// The read for the repair went by what the stores had said before, and failed.
    #[test]
    fn regression_a_store_that_is_back_during_a_scrub_is_read_for_the_repair() {
        let rig = Rig::new(16, 5, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 1 << 20);
        rig.run(stripe.put(&segment)).unwrap();
        rig.stores[1].damage(segment.id);
        rig.stores[2].set(Fault::Silent);
        let scrub = rig.client().run({
            let stripe = stripe.clone();
            async move {
                let mut report = ScrubReport::default();
                stripe.scrub_some(&[segment.id], true, &mut report).await;
                report
            }
        });
        rig.sim.run_for(stripe.options.put_timeout / 2);
        rig.heal();
        let report = rig.run(scrub).unwrap();
        assert_eq!((report.damaged, report.unchecked, report.repaired), (1, 1, 1), "{report:?}");
        rig.stores[2].set(Fault::Silent);
        assert_readable(&rig, &[segment]);
    }

    #[test]
    fn lost_disks_are_rebuilt_in_place() {
        for m in [1, 2] {
            let rig = Rig::new(2, 5, m);
            let stripe = rig.stripe();
            let segments = fill(&rig, &stripe);
            rig.stores[..usize::from(m)].iter().for_each(|s| s.wipe());
            let found = rig.run(stripe.scrub(false, |_| ())).unwrap();
            assert!(found.missing > 0 && found.repaired == 0 && !found.unrepaired.is_empty());
            let repaired = rig.run(stripe.scrub(true, |_| ())).unwrap();
            assert_eq!(repaired.repaired as usize, found.unrepaired.len());
            let clean = rig.run(stripe.scrub(true, |_| ())).unwrap();
            assert_eq!((clean.missing, clean.damaged, clean.repaired), (0, 0, 0));
            assert!(segments.iter().all(|s| rig.run(stripe.info(s.id)).unwrap().attempt == 0));
            rig.stores[2..][..usize::from(m)].iter().for_each(|s| s.set(Fault::Silent));
            assert_readable(&rig, &segments);
        }
    }

    #[test]
    fn damage_is_repaired_once_and_then_forgotten() {
        let rig = Rig::new(3, 5, 1);
        let stripe = rig.stripe();
        let segments = fill(&rig, &stripe);
        let damaged: usize = segments.iter().map(|s| rig.stores[1].damage(s.id)).sum();
        let report = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert_eq!((report.damaged as usize, report.repaired as usize), (damaged, damaged));
        let clean = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert_eq!((clean.missing, clean.damaged, clean.repaired), (0, 0, 0));
        rig.stores[3].set(Fault::Silent);
        assert_readable(&rig, &segments);
    }

    #[test]
    fn store_that_stays_away_is_replaced_by_others() {
        let rig = Rig::new(4, 5, 1);
        let stripe = rig.stripe();
        let segments = fill(&rig, &stripe);
        rig.stores[0].set(Fault::Down);
        let report = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert!(report.unchecked > 0 && report.repaired > 0 && report.unrepaired.is_empty());
        rig.stores[1].set(Fault::Silent);
        assert_readable(&rig, &segments);
    }

    #[test]
    fn regression_a_store_that_does_not_answer_is_no_damage() {
        for fault in [Fault::Down, Fault::Silent] {
            let rig = Rig::new(14, 5, 1);
            let stripe = rig.stripe();
            let segments = fill(&rig, &stripe);
            rig.stores[0].set(fault);
            let report = rig.run(stripe.scrub(false, |_| ())).unwrap();
            assert!(report.unchecked > 0 && !report.uncertain.is_empty(), "{report:?}");
            assert_eq!((report.missing, report.damaged), (0, 0));
            assert_eq!((&report.unrepaired, &report.unreadable), (&vec![], &vec![]));
            rig.heal();
            rig.sim.run_until_idle();
            let mut again = ScrubReport::default();
            rig.run(stripe.scrub_some(&report.suspects(), false, &mut again));
            let clean = ScrubReport { segments: 6, fragments: report.fragments, ..Default::default() };
            assert_eq!((report.looked_again(again), segments.len()), (clean, 6));
        }
    }

    #[test]
    fn too_few_stores_leave_segments_unrepaired_without_waiting() {
        let rig = Rig::new(5, 2, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 100);
        rig.run(stripe.put(&segment)).unwrap();
        rig.stores[0].wipe();
        rig.stores[0].set(Fault::ReadOnly);
        let report = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert_eq!((report.repaired, report.unrepaired), (0, vec![segment.id]));
    }

    #[test]
    fn remains_are_told_from_what_can_be_read() {
        let rig = Rig::new(6, 5, 1);
        let stripe = rig.stripe();
        let segments = fill(&rig, &stripe);
        rig.stores[..3].iter().for_each(|s| s.wipe());
        let report = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert!(report.unreadable.contains(&segments[5].id), "it was on all five stores: {report:?}");
        let left = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert_eq!((left.missing, left.unreadable), (0, report.unreadable));
    }

    #[test]
    fn regression_remains_that_have_rotted_are_unreadable_and_do_not_ask_for_repair() {
        for repair in [false, true] {
            let rig = Rig::new(13, 5, 1);
            let stripe = rig.stripe();
            let segments = fill(&rig, &stripe);
            // Each store shows a segment that the others have deleted, and its bytes are damaged.
            let of_one = |id| (0..5).find(|&at| rig.stores[at].holds(id) > 0).unwrap();
            for segment in &segments {
                let keeper = of_one(segment.id);
                assert_eq!(rig.stores[keeper].damage(segment.id), 1);
                for at in (0..5).filter(|&at| at != keeper) {
                    rig.run(rig.stores[at].delete(vec![segment.id])).unwrap();
                }
            }
            let report = rig.run(stripe.scrub(repair, |_| ())).unwrap();
            let all: Vec<SegmentId> = segments.iter().map(|s| s.id).collect();
            assert_eq!((report.unrepaired, report.unreadable), (vec![], all));
        }
    }

    #[test]
    fn segment_that_is_being_put_is_left_alone() {
        let rig = Rig::new(7, 3, 2);
        let (stripe, _, writer) = rig.writer();
        // The segment needs all three stores, so it cannot be completed for now.
        rig.stores[1].set(Fault::Silent);
        let name = writer.begin();
        let draft = rig.draft(name, 200_000);
        writer.submit(draft.clone());
        rig.sim.run_for(std::time::Duration::from_millis(50));
        assert!(rig.stores.iter().any(|s| s.holds(name.id) > 0), "not begun");
        let report = rig.run(stripe.scrub(true, |_| ())).unwrap();
        assert_eq!(ScrubReport { segments: 0, ..report }, ScrubReport::default());
        rig.heal();
        rig.run(writer.wait_committed(1)).unwrap();
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments, [name.id]);
        assert_readable(&rig, &[draft.assemble()]);
    }
}
