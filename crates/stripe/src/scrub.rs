//! Looking at every fragment of every segment, and repairing what is missing or damaged.
//!
//! Segments that are being put at the moment are left alone: they are incomplete because they are not there yet.

use crate::health::StoreState;
use crate::layout::Layout;
use crate::put::Attempted;
use crate::{Stripe, StripeError};
use host::join_all;
use std::collections::{BTreeMap, BTreeSet};
use storage::api::StorageError;
use striped_log::segment::Segment;
use types::{FragmentId, SegmentId};

/// How far a scrub is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubProgress {
    /// Segments looked at.
    pub segments_done: u64,
    /// Segments in all.
    pub segments_total: u64,
    /// Fragments found missing or damaged so far.
    pub bad_fragments: u64,
}

/// What a scrub found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Segments looked at.
    pub segments: u64,
    /// Fragments verified.
    pub fragments: u64,
    /// Fragments that are not where they should be, or whose store does not answer.
    pub missing: u64,
    /// Fragments whose bytes do not match their checksums.
    pub damaged: u64,
    /// Segments that had lost redundancy and are complete again.
    pub repaired: u64,
    /// Segments that have lost redundancy and still lack it: no repair was asked for, or there are not enough healthy stores.
    pub unrepaired: Vec<SegmentId>,
    /// Segments of which too little is left. Remains of segments that were deleted, or never acknowledged, look like this too:
    /// data is lost only where the map still points at one of them.
    pub unreadable: Vec<SegmentId>,
}

impl Stripe {
    /// Every segment of which any store that answers has a fragment, and the bytes it takes on these stores.
    pub async fn segments(&self) -> Result<BTreeMap<SegmentId, u64>, StripeError> {
        let mut all = BTreeMap::new();
        for (_, segments) in self.ask_quorum(|s| s.segments()).await? {
            for (segment, bytes) in segments {
                *all.entry(segment).or_insert(0) += bytes;
            }
        }
        Ok(all)
    }

    /// Verifies all fragments of all segments; with `repair`, rebuilds those that are missing or damaged, in place if the store takes
    /// them, otherwise by putting the whole segment again to healthy stores. `progress` is called after each segment.
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

    async fn scrub_segment(&self, segment: SegmentId, repair: bool, report: &mut ScrubReport) {
        // Asked before the stores are: a put that has ended by now is seen complete.
        if self.attempts.lock().contains_key(&segment) {
            return;
        }
        let described = self.describe(segment).await;
        let Some(layout) = described.best(self.fs) else {
            // Nothing at all: deleted since.
            if !described.found.is_empty() {
                report.unreadable.push(segment);
            }
            return;
        };
        let bad = self.verify_all(segment, &layout, report).await;
        if bad.is_empty() {
            return;
        }
        if repair && self.repair(segment, &layout, &bad).await {
            report.repaired += 1;
        } else {
            report.unrepaired.push(segment);
        }
    }

    /// The fragments of a layout that are not there or not good.
    async fn verify_all(&self, segment: SegmentId, layout: &Layout, report: &mut ScrubReport) -> BTreeSet<u8> {
        let width = layout.info.geometry.width();
        let checks = (0..width).map(|index| async move {
            if !layout.present.contains(&index) {
                return Err(StorageError::NotFound(FragmentId { segment, index }));
            }
            self.verify(segment, layout, index).await
        });
        let mut bad = BTreeSet::new();
        for (index, check) in (0..width).zip(join_all(checks.collect()).await) {
            report.fragments += 1;
            match check {
                Ok(()) => continue,
                Err(StorageError::Damaged(_) | StorageError::Disk(_)) => report.damaged += 1,
                Err(_) => report.missing += 1,
            }
            bad.insert(index);
        }
        bad
    }

    /// Has one fragment checked by its store.
    async fn verify(&self, segment: SegmentId, layout: &Layout, index: u8) -> Result<(), StorageError> {
        let id = FragmentId { segment, index };
        let geometry = &layout.info.geometry;
        let at = geometry.members.get(usize::from(index)).and_then(|&store| self.place(store));
        let Some(at) = at else { return Err(StorageError::Unavailable) };
        let mut answer = self.ask(at, |s| s.verify(id)).await;
        if answer.is_err() && layout.shadowing.contains(&index) {
            // The store checks all attempts that it has, and the bad one may be one that nobody reads any more.
            let (attempt, len) = (layout.info.attempt, geometry.data_len(index));
            answer = self.ask(at, |s| s.read(id, attempt, 0..len)).await.map(|_| ());
        }
        if matches!(answer, Err(StorageError::Damaged(_) | StorageError::Disk(_))) {
            self.note_damaged(at, id);
        }
        answer
    }

    /// Makes a segment complete again. True when it is.
    async fn repair(&self, id: SegmentId, layout: &Layout, bad: &BTreeSet<u8>) -> bool {
        let segment = match self.read_segment(id).await {
            Ok(segment) => segment,
            Err(error) => {
                tracing::warn!(segment = %id, %error, "segment cannot be read for repair");
                return false;
            }
        };
        self.repair_in_place(&segment, layout, bad).await || self.repair_elsewhere(&segment).await
    }

    /// Puts the bad fragments back where they were. A store may keep a damaged fragment it has already, so each is verified
    /// afterwards.
    async fn repair_in_place(&self, segment: &Segment, layout: &Layout, bad: &BTreeSet<u8>) -> bool {
        let geometry = &layout.info.geometry;
        let fragments = segment.stripe(self.fs, layout.info.attempt, geometry.clone());
        for fragment in fragments.into_iter().filter(|f| bad.contains(&f.header.id.index)) {
            let index = fragment.header.id.index;
            let at = fragment.header.member().and_then(|store| self.place(store));
            let at = at.filter(|&at| self.health.lock().state(at) == StoreState::Up);
            let Some(at) = at else { return false };
            if self.ask_put(at, fragment).await.is_err() || self.verify(segment.id, layout, index).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Puts the whole segment again, as a new attempt, to healthy stores. Does not wait for stores to come back.
    async fn repair_elsewhere(&self, segment: &Segment) -> bool {
        let mut attempt = self.next_attempt(segment.id).await;
        while let Some(geometry) = self.choose_group(segment) {
            match self.put_attempt(segment, attempt, geometry).await {
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
