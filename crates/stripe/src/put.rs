//! The commit rule for one segment: it is acknowledged when all `k + m` fragments are durable.
//!
//! If a member fails, or hangs while there are enough other stores, the segment is put again,
//! whole, as the next attempt, to a group without that member. So a bad store never takes
//! redundancy from an acknowledged segment. The fragments of the failed attempt do no harm: they
//! have the same payload, and a deletion asks all stores.

use crate::layout::SegmentInfo;
use crate::stripe::Purpose;
use crate::{Stripe, StripeError};
use host::{Either, first, join_all};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use storage::api::StorageError;
use striped_log::geometry::Geometry;
use striped_log::segment::Segment;
use types::SegmentId;

/// First pause before another try while there are too few healthy stores. Pauses double.
const STARVED_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause before another try while there are too few healthy stores.
const STARVED_PAUSE_MAX: Duration = Duration::from_millis(500);

/// How one attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempted {
    /// All fragments are durable.
    Complete,
    /// A member failed and is out of service now, or it hangs.
    Incomplete,
    /// The log is sealed against the segment's epoch.
    Fenced,
}

/// A segment is being put, again and again if need be. When this is dropped, it does not count as
/// one that is being put any more, even if it is not durable.
pub(crate) struct BeingPut<'a> {
    stripe: &'a Stripe,
    segment: SegmentId,
}

impl Drop for BeingPut<'_> {
    fn drop(&mut self) {
        self.stripe.attempts.lock().remove(&self.segment);
    }
}

impl Stripe {
    /// To be held from the first put of a segment until no task goes on with it.
    pub(crate) fn being_put(&self, segment: SegmentId) -> BeingPut<'_> {
        BeingPut { stripe: self, segment }
    }

    /// Makes a segment durable with full redundancy on healthy stores. Succeeds when all its
    /// fragments are durable. Other segments of the log may be put at the same time;
    /// [`LogWriter`](crate::LogWriter) keeps their order.
    ///
    /// # Errors
    /// [`StripeError::NotEnoughStores`]: for `put_timeout` there were too few healthy stores. It is
    /// unknown whether a recovery will find the segment, and the caller may put it again.
    /// [`StripeError::Fenced`]: the caller must give up.
    pub async fn put(&self, segment: &Segment) -> Result<(), StripeError> {
        let attempt = self.attempts.lock().get(&segment.id).copied().unwrap_or(0);
        self.put_from(segment, attempt).await
    }

    /// Like [`put`](Self::put), beginning with the given attempt.
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
            match self.put_attempt(segment, attempt, geometry, Purpose::Program).await {
                Attempted::Incomplete => attempt = next,
                done => {
                    self.attempts.lock().remove(&segment.id);
                    return if done == Attempted::Complete { Ok(()) } else { Err(StripeError::Fenced) };
                }
            }
        }
    }

    /// Puts all fragments of one attempt at the same time and waits for all answers. Does not wait
    /// for stores that hang, if there are enough others.
    pub(crate) async fn put_attempt(
        &self,
        segment: &Segment,
        attempt: u16,
        geometry: Geometry,
        purpose: Purpose,
    ) -> Attempted {
        let fragments = segment.stripe(self.fs, attempt, geometry);
        let Some(one) = fragments.first() else { return Attempted::Incomplete };
        let info = Arc::new(SegmentInfo::of(&one.header));
        let stored_bytes = fragments.iter().map(|f| u64::from(storage::footprint(f.header.len))).sum();
        let Some(me) = self.me.upgrade() else { return Attempted::Incomplete };
        let members: Vec<Option<usize>> = info.geometry.members.iter().map(|&store| self.place(store)).collect();
        let puts = fragments.into_iter().zip(&members).map(|(fragment, &at)| {
            let me = me.clone();
            async move {
                let Some(at) = at else { return Err(StorageError::Unavailable) };
                me.ask_put(at, fragment, purpose).await
            }
        });
        let mut puts = join_all(puts.collect());
        let patience = self.options.put_patience();
        let mut waits = self.host.clock.sleep(patience);
        let answers = loop {
            let left = pin!(self.left.notified());
            let is_over = match first(&mut puts, first(&mut waits, left)).await {
                Either::Left(answers) => break answers,
                Either::Right(Either::Left(())) => true,
                Either::Right(Either::Right(())) => false,
            };
            let silent: Vec<usize> = puts.running().into_iter().filter_map(|index| members[index]).collect();
            let up = self.health.lock().up();
            let now = self.host.clock.now();
            // Those that have left service meanwhile are not waited for either.
            let hangs = |at: &usize| !up.contains(at) || is_over && self.stores[*at].puts.are_quiet(now, patience);
            let mut others = self.quick_ones(&up);
            others.retain(|at| !silent.contains(at));
            if silent.iter().all(hangs) && self.suffice(others.len()) {
                silent.into_iter().filter(|at| up.contains(at)).for_each(|at| self.note_hanging_puts(at));
                // The puts go on. It does no harm if they succeed, and a store that never answers
                // is noted as absent.
                self.host.tasks.spawn(Box::pin(async move { drop(puts.await) }));
                return Attempted::Incomplete;
            }
            if is_over {
                break puts.await;
            }
        };
        if answers.iter().any(|answer| matches!(answer, Err(StorageError::Sealed(_)))) {
            return Attempted::Fenced;
        }
        if answers.iter().any(Result::is_err) {
            return Attempted::Incomplete;
        }
        self.layouts.lock().insert(segment.id, info);
        if let Some(on_stored) = self.on_stored.get() {
            on_stored(segment.id, stored_bytes);
        }
        Attempted::Complete
    }

    /// Deletes segments on all stores. This is not durable at once: a store that crashes may show
    /// them again. A store that is away learns of the deletion when it is back.
    pub async fn delete(&self, segments: Vec<SegmentId>) {
        {
            let mut layouts = self.layouts.lock();
            segments.iter().for_each(|s| layouts.remove(*s));
        }
        let (present, absent) = self.present_and_absent();
        // Note this before waiting, so that a store that comes back meanwhile is told.
        let owe = |missed: Vec<usize>| {
            let mut health = self.health.lock();
            missed.into_iter().for_each(|at| health.owe(at, &segments));
        };
        owe(absent);
        let answers = self.ask_each(&present, |s| s.delete(segments.clone())).await;
        owe(answers.into_iter().filter(|(_, answer)| answer.is_err()).map(|(at, _)| at).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, LOG, Rig};
    use storage::api::{Fence, Seal, Storage};

    #[test]
    fn acknowledged_segment_has_all_fragments() {
        let rig = Rig::new(1, 5, 1);
        let stripe = rig.stripe();
        assert_eq!((stripe.redundancy(), stripe.payload_len_max()), ((4, 1), 3 << 20));
        for (seq, len, fragments) in [(1, 0, 2), (2, 1000, 2), (3, 65_537, 3), (4, 3 << 20, 5)] {
            let segment = rig.segment(seq, len);
            rig.run(stripe.put(&segment)).unwrap();
            assert_eq!(rig.stores.iter().map(|s| s.holds(segment.id)).sum::<usize>(), fragments);
            assert_eq!(rig.run(stripe.read(segment.id, 0..len as u32)).unwrap(), segment.payload);
        }
    }

    #[test]
    fn regression_a_put_waits_little_for_stores_that_hang() {
        for m in [1, 2] {
            let rig = Rig::new(7, 6, m);
            let stripe = rig.stripe();
            rig.stores[..usize::from(m)].iter().for_each(|s| s.set(Fault::Silent));
            let took = |seq| {
                let begin = rig.sim.now();
                let segment = rig.segment(seq, 2 << 20);
                rig.run(stripe.put(&segment)).unwrap();
                let held: usize = rig.stores[usize::from(m)..].iter().map(|s| s.holds(segment.id)).sum();
                assert!(held >= 6 - usize::from(m), "a whole stripe on the others");
                rig.sim.now() - begin
            };
            assert!(took(1) < stripe.options.put_timeout / 2);
            assert!(took(2) < stripe.options.read_patience(), "one put waits for all");
            rig.sim.run_for(stripe.options.put_timeout);
            assert_eq!(stripe.health.lock().up().len(), 6 - usize::from(m), "who hangs is found out all the same");
        }
    }

    #[test]
    fn no_put_waits_for_a_store_whose_machine_is_gone() {
        let rig = Rig::new(10, 4, 1);
        let stripe = rig.stripe();
        rig.stores[0].set(Fault::Silent);
        let put = |seq| {
            let (stripe, segment) = (stripe.clone(), rig.segment(seq, 2 << 20));
            rig.client().run(async move { stripe.put(&segment).await })
        };
        let is_quick = |put| {
            let begin = rig.sim.now();
            assert_eq!(rig.run(put), Ok(Ok(())));
            rig.sim.now() - begin < stripe.options.put_patience() / 10
        };
        let begun = put(1);
        rig.sim.run_for(stripe.options.put_patience() / 2);
        stripe.note_gone([stripe.stores[0].id].into_iter().collect());
        assert!(is_quick(begun), "a put that is under way");
        assert!(is_quick(put(2)), "a new one");
        rig.heal();
        rig.sim.run_for(stripe.options.put_timeout + 2 * stripe.options.probe_interval);
        assert_eq!(stripe.health.lock().up().len(), 4);
    }

    /// The reads that a store answered from memory hid that its disk had hung: a put, and any other
    /// read, waited for all of its time.
    #[test]
    fn regression_no_request_waits_long_for_a_disk_that_hangs_behind_answers_from_memory() {
        let rig = Rig::new(9, 4, 1);
        let stripe = rig.stripe();
        let [first, second] = [1, 2].map(|seq| rig.segment(seq, 2 << 20));
        rig.run(stripe.put(&first)).unwrap();
        rig.run(stripe.put(&second)).unwrap();
        rig.stores[0].set(Fault::Hanging);
        rig.client().host().tasks.spawn(Box::pin({
            let (stripe, first, clock) = (stripe.clone(), first.clone(), rig.client().host().clock);
            async move {
                loop {
                    assert_eq!(stripe.read(first.id, 0..2 << 20).await.as_ref(), Ok(&first.payload));
                    clock.sleep(Duration::from_millis(10)).await;
                }
            }
        }));
        let took = |seq| {
            let begin = rig.sim.now();
            rig.run(stripe.put(&rig.segment(seq, 1 << 20))).unwrap();
            rig.sim.now() - begin
        };
        let begin = rig.sim.now();
        assert_eq!(rig.run(stripe.read(second.id, 0..2 << 20)).as_ref(), Ok(&second.payload));
        assert!(rig.sim.now() - begin < stripe.options.put_timeout / 2);
        assert!(took(3) < stripe.options.put_timeout / 2);
        for seq in 4..6 {
            assert!(took(seq) < stripe.options.read_patience(), "one put waits for all");
        }
        rig.heal();
        rig.sim.run_for(stripe.options.put_timeout + 2 * stripe.options.probe_interval);
        let before = rig.stores[0].contents.lock().put_count;
        for seq in 6..10 {
            took(seq);
        }
        assert!(rig.stores[0].contents.lock().put_count > before, "it is not used any more");
    }

    #[test]
    fn regression_a_put_gives_stores_their_time_when_there_are_no_others() {
        let rig = Rig::new(8, 3, 1);
        let stripe = rig.stripe();
        rig.stores.iter().for_each(|s| s.set(Fault::Silent));
        let segment = rig.segment(1, 1000);
        let put = rig.client().run({
            let (stripe, segment) = (stripe.clone(), segment.clone());
            async move { stripe.put(&segment).await }
        });
        rig.sim.run_for(2 * stripe.options.put_patience());
        assert_eq!(stripe.attempts.lock().get(&segment.id), Some(&1), "still the first attempt");
        rig.heal();
        assert_eq!(rig.run(put), Ok(Ok(())));
    }

    #[test]
    fn segment_is_put_again_whole_without_the_failed_member() {
        for fault in [Fault::Silent, Fault::Mute, Fault::Down, Fault::ReadOnly, Fault::Full] {
            for m in [1, 2] {
                let rig = Rig::new(2, 6, m);
                let stripe = rig.stripe();
                let bad = usize::from(m);
                rig.stores[..bad].iter().for_each(|s| s.set(fault));
                let len = stripe.payload_len_max();
                let segment = rig.segment(1, len as usize);
                rig.run(stripe.put(&segment)).unwrap();
                let info = rig.run(stripe.info(segment.id)).unwrap();
                let failed: Vec<_> = rig.stores[..bad].iter().map(|s| s.id).collect();
                assert!(info.attempt > 0 && info.geometry.members.iter().all(|s| !failed.contains(s)), "{info:?}");
                // The fragments on the failed stores do not matter any more.
                rig.stores[..bad].iter().for_each(|s| s.wipe());
                assert_eq!(rig.run(rig.stripe().read(segment.id, 0..len)).unwrap(), segment.payload);
            }
        }
    }

    #[test]
    fn too_few_stores_are_reported_and_the_same_put_succeeds_later_as_a_new_attempt() {
        let rig = Rig::new(3, 3, 2);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 5000);
        rig.stores[1].set(Fault::Silent);
        assert_eq!(rig.run(stripe.put(&segment)), Err(StripeError::NotEnoughStores));
        rig.heal();
        rig.run(stripe.put(&segment)).unwrap();
        assert_eq!(rig.run(stripe.info(segment.id)).unwrap().attempt, 1);
        assert!(stripe.attempts.lock().is_empty());
    }

    #[test]
    fn put_waits_for_a_store_to_come_back() {
        let rig = Rig::new(4, 2, 1);
        let stripe = rig.stripe();
        rig.stores[0].set(Fault::Down);
        let segment = rig.segment(1, 5000);
        let healed = async {
            rig.client().host().clock.sleep(Duration::from_millis(200)).await;
            rig.heal();
        };
        let (put, ()) = rig.run(async {
            let put = rig.client().run({
                let (stripe, segment) = (stripe.clone(), segment.clone());
                async move { stripe.put(&segment).await }
            });
            healed.await;
            (put.await, ())
        });
        assert_eq!(put, Ok(Ok(())));
    }

    #[test]
    fn sealed_writer_is_fenced_and_its_store_stays_in_service() {
        let rig = Rig::new(5, 3, 1);
        let stripe = rig.stripe();
        let seal = Seal::new(LOG, Fence { epoch: 2, through: 0 }, 0);
        rig.run(rig.stores[1].seal(seal)).unwrap();
        for seq in 1..4 {
            let fenced = rig.run(stripe.put(&rig.segment(seq, 70_000)));
            assert_eq!(fenced, Err(StripeError::Fenced), "all three stores are members");
        }
        assert_eq!(stripe.health.lock().up().len(), 3);
        assert!(stripe.attempts.lock().is_empty());
    }

    #[test]
    fn whatever_is_accepted_still_fits_after_the_loss_of_m_stores() {
        for (n, m) in [(3, 1), (5, 1), (6, 2), (5, 2), (20, 2)] {
            let rig = Rig::new(6, n, m);
            let stripe = rig.stripe();
            rig.stores.iter().take(usize::from(m)).for_each(|s| s.set(Fault::Down));
            rig.run(stripe.put(&rig.segment(1, stripe.payload_len_max() as usize))).unwrap();
            let too_long = rig.segment(2, stripe.payload_len_max() as usize + 1);
            assert_eq!(rig.run(stripe.put(&too_long)), Err(StripeError::BadRequest("payload too long")));
        }
    }

    #[test]
    fn load_and_parity_spread_over_all_stores() {
        let rig = Rig::new(7, 5, 1);
        let stripe = rig.stripe();
        for seq in 1..=50 {
            rig.run(stripe.put(&rig.segment(seq, 1000))).unwrap();
        }
        for store in &rig.stores {
            let contents = store.contents.lock();
            let parities = contents.fragments.keys().filter(|key| key.1 == 1).count();
            assert_eq!((contents.put_count, parities), (20, 10));
        }
    }

    #[test]
    fn deleted_segment_is_gone_from_all_stores_also_from_one_that_was_away() {
        let rig = Rig::new(8, 3, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 100_000);
        rig.run(stripe.put(&segment)).unwrap();
        rig.stores[2].set(Fault::Down);
        rig.run(stripe.delete(vec![segment.id]));
        let gone = rig.run(stripe.read(segment.id, 0..10));
        assert_eq!(gone, Err(StripeError::SegmentNotFound(segment.id)));
        rig.heal();
        rig.sim.run_until_idle();
        assert_eq!(rig.stores.iter().map(|s| s.holds(segment.id)).sum::<usize>(), 0);
    }
}
