//! The commit rule for one segment: acknowledged when all `k + m` fragments are durable.
//!
//! If a member fails, the segment is put again, whole, as the next attempt, to a group without it, so that one bad
//! store never eats the redundancy of something acknowledged. What was left of the failed attempt does no harm: its payload is
//! the same, and deleting the segment asks all stores.

use crate::layout::SegmentInfo;
use crate::{Stripe, StripeError};
use host::join_all;
use std::sync::Arc;
use std::time::Duration;
use storage::api::StorageError;
use striped_log::fragment::{DATA_FRAGMENTS_MAX, FRAGMENT_LEN_MAX};
use striped_log::geometry::Geometry;
use striped_log::segment::Segment;
use types::{SegmentId, StoreId};

/// First and longest pause while there are too few healthy stores.
const STARVED_PAUSE_MIN: Duration = Duration::from_millis(10);
const STARVED_PAUSE_MAX: Duration = Duration::from_millis(500);

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempted {
    /// All fragments are durable.
    Complete,
    /// Some member failed and is out of service now.
    Incomplete,
    /// The log is sealed against the segment's epoch.
    Fenced,
}

impl Stripe {
    /// Makes a segment durable with full redundancy, on whatever stores are healthy. Ok: all its fragments are durable.
    /// [`StripeError::NotEnoughStores`]: for `put_timeout` there were too few healthy stores; it is unknown whether the segment will be
    /// found by a recovery, and putting it again is right. [`StripeError::Fenced`]: give up. Other segments of the log may be
    /// put at the same time; [`LogWriter`](crate::LogWriter) keeps their order.
    pub async fn put(&self, segment: &Segment) -> Result<(), StripeError> {
        let attempt = self.attempts.lock().get(&segment.id).copied().unwrap_or(0);
        self.put_from(segment, attempt).await
    }

    /// As [`put`](Self::put), beginning with the given attempt.
    pub(crate) async fn put_from(&self, segment: &Segment, mut attempt: u16) -> Result<(), StripeError> {
        if segment.payload.len() > self.payload_len_max() as usize {
            return Err(StripeError::BadRequest("payload too long"));
        }
        let mut starved_since = None;
        let mut pause = STARVED_PAUSE_MIN;
        loop {
            let Some(geometry) = self.choose_group(segment) else {
                let now = self.host.clock.now();
                if now.saturating_sub(*starved_since.get_or_insert(now)) >= self.options.put_timeout {
                    return Err(StripeError::NotEnoughStores);
                }
                self.host.clock.sleep(pause).await;
                pause = (pause * 2).min(STARVED_PAUSE_MAX);
                continue;
            };
            let next = attempt.checked_add(1).ok_or(StripeError::NotEnoughStores)?;
            self.attempts.lock().insert(segment.id, next);
            match self.put_attempt(segment, attempt, geometry).await {
                Attempted::Incomplete => attempt = next,
                done => {
                    self.attempts.lock().remove(&segment.id);
                    return if done == Attempted::Complete { Ok(()) } else { Err(StripeError::Fenced) };
                }
            }
        }
    }

    /// A group of healthy stores for a segment, and the stripe over it; `None` when there are too few. The first member
    /// rotates with the segments, so that load and parity spread over all stores.
    pub(crate) fn choose_group(&self, segment: &Segment) -> Option<Geometry> {
        let up = self.health.lock().up();
        let m = self.options.parity;
        let k_max = up.len().checked_sub(usize::from(m))?.min(DATA_FRAGMENTS_MAX) as u8;
        let payload_len = u32::try_from(segment.payload.len()).ok()?;
        if k_max == 0 || payload_len > u32::from(k_max) * FRAGMENT_LEN_MAX {
            return None;
        }
        let (k, fragment_len) = Geometry::plan(payload_len, k_max, m);
        let first = segment.id.seq.wrapping_add(u64::from(segment.id.log.raw())) % up.len() as u64;
        let width = usize::from(k) + usize::from(m);
        let members: Vec<StoreId> =
            up.iter().cycle().skip(first as usize).take(width).map(|&at| self.stores[at].id).collect();
        Some(Geometry { k, m, fragment_len, payload_len, members })
    }

    /// Puts all fragments of one attempt at the same time and waits for all answers.
    pub(crate) async fn put_attempt(&self, segment: &Segment, attempt: u16, geometry: Geometry) -> Attempted {
        let fragments = segment.stripe(self.fs, attempt, geometry);
        let Some(first) = fragments.first() else { return Attempted::Incomplete };
        let info = Arc::new(SegmentInfo::of(&first.header));
        let puts = fragments.into_iter().map(|fragment| async move {
            let at = fragment.header.member().and_then(|store| self.place(store));
            let Some(at) = at else { return Err(StorageError::Unavailable) };
            self.ask_put(at, fragment).await
        });
        let answers = join_all(puts.collect()).await;
        if answers.iter().any(|answer| matches!(answer, Err(StorageError::Sealed(_)))) {
            return Attempted::Fenced;
        }
        if answers.iter().any(Result::is_err) {
            return Attempted::Incomplete;
        }
        self.layouts.lock().insert(segment.id, info);
        Attempted::Complete
    }

    /// Forgets segments on all stores. Not durable at once: a store that crashes may show them again, and a store that is away
    /// learns of it when it is back.
    pub async fn delete(&self, segments: Vec<SegmentId>) {
        {
            let mut layouts = self.layouts.lock();
            segments.iter().for_each(|s| layouts.remove(*s));
        }
        let (present, absent) = self.present_and_absent();
        let answers = self.ask_each(&present, |s| s.delete(segments.clone())).await;
        let failed = answers.into_iter().filter(|(_, answer)| answer.is_err()).map(|(at, _)| at);
        let missed: Vec<usize> = failed.chain(absent).collect();
        let mut health = self.health.lock();
        missed.into_iter().for_each(|at| health.owe(at, &segments));
    }
}
