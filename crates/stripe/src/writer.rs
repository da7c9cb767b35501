//! The writer of one log: it names segments one after the other, puts several at a time, and
//! acknowledges them in order.
//!
//! A segment is *committed* when it and all before it are durable. It is put only when the segment
//! `in_flight_max` before it is committed. So a recovery that finds it knows that all up to there
//! were complete. While there are too few healthy stores, segments stay in memory and are tried
//! again without end. Waiters learn of each failed try ([`StripeError::NotEnoughStores`]), and a
//! later wait can still succeed; nothing is lost but time. A writer that is fenced stays so.

use crate::log_tail::LogTail;
use crate::{Stripe, StripeError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use striped_log::builder::{LogPlace, SegmentDraft};
use tokio::sync::Notify;
use types::{BoxFuture, LogId, SegmentId};

/// Longest payload in bytes that the caller's own thread puts together. Handing a short one over to
/// another thread takes no less time than the work itself.
const SHORT_LEN_MAX: u32 = 64 << 10;

/// Called for each committed segment.
type OnCommit = Arc<dyn Fn(SegmentId) + Send + Sync>;

/// The writer of one log.
pub struct LogWriter {
    stripe: Arc<Stripe>,
    log: LogId,
    epoch: u32,
    state: Mutex<State>,
    /// Set once the log cannot go on: why.
    ended: OnceLock<StripeError>,
    /// Notified when `state` or `ended` changes in a way that waiters wait for.
    changed: Notify,
}

struct State {
    next_seq: u64,
    last: Option<SegmentId>,
    /// The highest order that was given to a segment or learned. It never decreases.
    order: u64,
    /// Segments that were begun and are not committed, by seq.
    flights: BTreeMap<u64, Flight>,
    bytes_in_flight: u64,
    /// The last seq that is committed.
    committed: Option<u64>,
    /// The last seq whose callbacks have returned. Waiters wait for it.
    delivered: Option<u64>,
    /// True while a thread calls the callbacks.
    delivering: bool,
    callbacks: Vec<OnCommit>,
    /// Counts failed tries, so that a waiter can tell those after it began to wait.
    failures: u64,
}

#[derive(Default)]
struct Flight {
    bytes: u64,
    durable: bool,
    /// `State::failures` at its last failed try; 0 if no try failed.
    failed_at: u64,
}

impl LogWriter {
    /// The writer of a log that [`Stripe::open_log`] has opened.
    pub fn new(stripe: Arc<Stripe>, tail: LogTail) -> Arc<LogWriter> {
        let committed = tail.next_seq.checked_sub(1).filter(|&seq| seq > 0);
        Arc::new(LogWriter {
            stripe,
            log: tail.log,
            epoch: tail.epoch,
            state: Mutex::new(State {
                next_seq: tail.next_seq,
                last: tail.last,
                order: tail.order,
                flights: BTreeMap::new(),
                bytes_in_flight: 0,
                committed,
                delivered: committed,
                delivering: false,
                callbacks: Vec::new(),
                failures: 0,
            }),
            ended: OnceLock::new(),
            changed: Notify::new(),
        })
    }

    /// The log.
    pub fn id(&self) -> LogId {
        self.log
    }

    /// The epoch of the segments that it writes.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Names the next segment, the one before it, and its order. The caller must
    /// [`submit`](Self::submit) it: no later segment is committed before it is.
    pub fn begin(&self) -> LogPlace {
        let mut state = self.state.lock();
        let id = SegmentId { log: self.log, epoch: self.epoch, seq: state.next_seq };
        state.next_seq += 1;
        state.order = state.order.saturating_add(1);
        state.flights.insert(id.seq, Flight::default());
        LogPlace { id, previous: state.last.replace(id), order: state.order }
    }

    /// Gives all segments that begin from now on a higher order than this. The caller has learned
    /// that a manager had applied a segment of this order when it granted the caller something.
    /// Call it before anything changes by virtue of that grant.
    pub fn learn_order(&self, order: u64) {
        let mut state = self.state.lock();
        state.order = state.order.max(order);
    }

    /// Puts a segment together and on the stores, in the background, at the same time as others.
    /// Each segment may be submitted once.
    pub fn submit(self: &Arc<Self>, draft: SegmentDraft) {
        if let Some(work) = self.accept(draft) {
            self.stripe.host.tasks.spawn(work);
        }
    }

    /// Like [`submit`](Self::submit), for a caller that is going to wait. A short segment is put
    /// together and sent to the stores before this returns, which saves a hand-over to another
    /// thread. The caller must hold no lock.
    pub fn submit_here(self: &Arc<Self>, draft: SegmentDraft) {
        if draft.payload_len() > SHORT_LEN_MAX {
            self.submit(draft);
        } else if let Some(work) = self.accept(draft) {
            self.stripe.host.tasks.start_short(work);
        }
    }

    /// Counts a segment as in flight, and returns the future that puts it on the stores.
    fn accept(self: &Arc<Self>, draft: SegmentDraft) -> Option<BoxFuture<()>> {
        let (id, bytes) = (draft.id(), u64::from(draft.payload_len()));
        {
            let mut state = self.state.lock();
            let Some(flight) = state.flights.get_mut(&id.seq) else {
                debug_assert!(false, "segment {id} was not begun here, or is submitted twice");
                return None;
            };
            flight.bytes = bytes;
            state.bytes_in_flight += bytes;
        }
        let writer = self.clone();
        Some(Box::pin(async move { writer.carry(draft).await }))
    }

    /// Puts one segment until it is durable or the log has ended.
    async fn carry(&self, draft: SegmentDraft) {
        let segment = draft.assemble();
        let (seq, _being_put) = (segment.id.seq, self.stripe.being_put(segment.id));
        let is_next =
            |state: &State| seq <= state.committed.unwrap_or(0).saturating_add(self.stripe.options.in_flight_max);
        self.wait_for(|state| (is_next(state) || self.ended.get().is_some()).then_some(())).await;
        loop {
            if self.ended.get().is_some() {
                return;
            }
            match self.stripe.put(&segment).await {
                Ok(()) => break,
                Err(StripeError::NotEnoughStores) => {
                    tracing::warn!(segment = %segment.id, "not enough stores to make a segment durable; trying again");
                    let mut state = self.state.lock();
                    state.failures += 1;
                    let failures = state.failures;
                    if let Some(flight) = state.flights.get_mut(&segment.id.seq) {
                        flight.failed_at = failures;
                    }
                }
                Err(error) => {
                    if self.ended.set(error).is_ok() {
                        tracing::error!(segment = %segment.id, %error, "the log cannot be written any more: its client changes nothing any more");
                    }
                }
            }
            self.changed.notify_waiters();
        }
        if let Some(flight) = self.state.lock().flights.get_mut(&segment.id.seq) {
            flight.durable = true;
        }
        self.deliver();
    }

    /// Commits durable segments from the front on, and calls the callbacks: one segment at a time,
    /// in order, on one thread.
    fn deliver(&self) {
        if std::mem::replace(&mut self.state.lock().delivering, true) {
            // The thread that delivers looks again after each segment, so it sees this one.
            return;
        }
        loop {
            let (id, callbacks) = {
                let mut state = self.state.lock();
                let Some((&seq, flight)) = state.flights.first_key_value().filter(|(_, flight)| flight.durable) else {
                    state.delivering = false;
                    break;
                };
                let bytes = flight.bytes;
                state.flights.remove(&seq);
                state.bytes_in_flight -= bytes;
                state.committed = Some(seq);
                (SegmentId { log: self.log, epoch: self.epoch, seq }, state.callbacks.clone())
            };
            callbacks.iter().for_each(|callback| callback(id));
            self.state.lock().delivered = Some(id.seq);
            self.changed.notify_waiters();
        }
        self.changed.notify_waiters();
    }

    /// Why the log cannot be written any more; `None` while it can. This is final. Segments that
    /// were not committed by then are unknown.
    pub fn ended(&self) -> Option<StripeError> {
        self.ended.get().copied()
    }

    /// How many segments were begun and not committed, and the payload bytes of those submitted.
    pub fn in_flight(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.flights.len(), state.bytes_in_flight)
    }

    /// The last seq up to which all segments are durable; `None` while the log is empty.
    pub fn committed_seq(&self) -> Option<u64> {
        self.state.lock().committed
    }

    /// Waits until the segment and all before it (seq 0: none) are durable and their
    /// [`on_commit`](Self::on_commit) calls have returned. Fails with
    /// [`StripeError::NotEnoughStores`] if one of them could not be put since this was called. It
    /// is still being tried, so a later call may succeed.
    pub async fn wait_committed(&self, seq: u64) -> Result<(), StripeError> {
        let failures = self.state.lock().failures;
        self.wait_for(|state| {
            if seq == 0 || state.delivered >= Some(seq) {
                return Some(Ok(()));
            }
            if let Some(error) = self.ended.get() {
                return Some(Err(*error));
            }
            let failed = state.flights.range(..=seq).any(|(_, flight)| flight.failed_at > failures);
            failed.then_some(Err(StripeError::NotEnoughStores))
        })
        .await
    }

    /// Waits until fewer payload bytes than `bytes` are in flight, or no segment is, or the log
    /// cannot go on.
    pub async fn wait_in_flight_below(&self, bytes: u64) {
        self.wait_for(|state| {
            let below = state.bytes_in_flight < bytes || state.flights.is_empty() || self.ended.get().is_some();
            below.then_some(())
        })
        .await
    }

    /// Calls `callback` for every segment that is committed from now on: in log order, once each,
    /// never two at a time. The callback must be short and must not wait. It may call the writer.
    pub fn on_commit(&self, callback: Box<dyn Fn(SegmentId) + Send + Sync>) {
        self.state.lock().callbacks.push(Arc::from(callback));
    }

    async fn wait_for<T>(&self, ready: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Register before looking, so that no change is missed.
            changed.as_mut().enable();
            let value = ready(&self.state.lock());
            if let Some(value) = value {
                return value;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, LOG, Rig};
    use std::time::Duration;
    use striped_log::tail::IN_FLIGHT_MAX;

    #[test]
    fn segments_are_committed_in_order_once_each_with_several_in_flight() {
        for seed in 0..20 {
            let rig = Rig::new(seed, 5, 1);
            let (stripe, _, writer) = rig.writer();
            let committed = Arc::new(Mutex::new(Vec::new()));
            let seen = committed.clone();
            writer.on_commit(Box::new(move |id| seen.lock().push(id)));
            let mut begun = Vec::new();
            for i in 0..20 {
                let name = writer.begin();
                assert_eq!(name.previous, begun.last().copied());
                begun.push(name.id);
                // The first segments take longest.
                writer.submit(rig.draft(name, 400_000 - 20_000 * i));
            }
            assert_eq!((writer.in_flight().0, writer.committed_seq()), (20, None));
            rig.run(writer.wait_committed(10)).unwrap();
            assert!(committed.lock().len() >= 10, "callbacks come before waiters");
            rig.run(writer.wait_in_flight_below(1));
            assert_eq!((writer.in_flight(), writer.committed_seq()), ((0, 0), Some(20)));
            assert_eq!(*committed.lock(), begun);
            assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments, begun);
            assert!(stripe.attempts.lock().is_empty());
        }
    }

    #[test]
    fn nothing_is_committed_before_what_was_begun_first() {
        let rig = Rig::new(1, 3, 1);
        let (_, _, writer) = rig.writer();
        let (first, second) = (writer.begin(), writer.begin());
        writer.submit(rig.draft(second, 1000));
        rig.sim.run_until_idle();
        assert_eq!(writer.committed_seq(), None);
        writer.submit(rig.draft(first, 1000));
        rig.run(writer.wait_committed(2)).unwrap();
    }

    #[test]
    fn failed_wait_is_followed_by_one_that_succeeds_when_stores_come_back() {
        let rig = Rig::new(2, 2, 1);
        let (stripe, _, writer) = rig.writer();
        rig.stores[0].set(Fault::Silent);
        let name = writer.begin();
        let draft = rig.draft(name, 1000);
        writer.submit(draft.clone());
        for _ in 0..3 {
            assert_eq!(rig.run(writer.wait_committed(1)), Err(StripeError::NotEnoughStores));
            assert_eq!(writer.in_flight(), (1, 1000));
        }
        rig.heal();
        rig.run(writer.wait_committed(1)).unwrap();
        assert_eq!(rig.run(stripe.read(name.id, 0..1000)).unwrap(), draft.assemble().payload);
    }

    #[test]
    fn segments_wait_until_those_far_before_them_are_committed() {
        let rig = Rig::new(5, 3, 1);
        let (_, _, writer) = rig.writer();
        let first = writer.begin();
        let count = 2 * IN_FLIGHT_MAX;
        (1..count).for_each(|_| writer.submit(rig.draft(writer.begin(), 1000)));
        rig.sim.run_until_idle();
        let newest = |s: &std::sync::Arc<crate::testing::MemStore>| {
            s.contents.lock().fragments.keys().map(|(segment, _, _)| segment.seq).max()
        };
        assert_eq!(rig.stores.iter().map(newest).max().flatten(), Some(IN_FLIGHT_MAX));
        writer.submit(rig.draft(first, 1000));
        rig.run(writer.wait_committed(count)).unwrap();
    }

    #[test]
    fn fenced_writer_stops_for_good() {
        let rig = Rig::new(3, 3, 1);
        let (_, _, writer) = rig.writer();
        let first = writer.begin();
        writer.submit(rig.draft(first, 1000));
        rig.run(writer.wait_committed(1)).unwrap();
        let (_, tail, successor) = rig.writer();
        assert_eq!((tail.epoch, tail.segments.as_slice()), (2, &[first.id][..]));

        let second = writer.begin();
        writer.submit(rig.draft(second, 1000));
        assert_eq!(writer.ended(), None);
        assert_eq!(rig.run(writer.wait_committed(2)), Err(StripeError::Fenced));
        assert_eq!(writer.ended(), Some(StripeError::Fenced));
        rig.run(writer.wait_in_flight_below(1));
        assert_eq!(writer.committed_seq(), Some(1));

        let other = successor.begin();
        assert_eq!((other.id.seq, other.previous), (2, Some(first.id)));
        successor.submit(rig.draft(other, 1000));
        rig.run(successor.wait_committed(2)).unwrap();
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments, [first.id, other.id]);
    }

    #[test]
    fn orders_grow_from_segment_to_segment_above_what_was_learned_and_through_openings() {
        let rig = Rig::new(6, 5, 1);
        let mut expected = Vec::new();
        for learned in [0, 40, 7] {
            let (stripe, tail, writer) = rig.writer();
            let found: Vec<u64> = tail.segments.iter().map(|id| rig.run(stripe.info(*id)).unwrap().order).collect();
            assert_eq!((&found, tail.order), (&expected, expected.last().copied().unwrap_or(0)));
            for _ in 0..2 {
                writer.learn_order(learned);
                let place = writer.begin();
                expected.push(place.order);
                writer.submit(rig.draft(place, 1000));
                rig.run(writer.wait_committed(place.id.seq)).unwrap();
            }
        }
        assert_eq!(expected, [1, 2, 41, 42, 43, 44]);
    }

    #[test]
    fn waits_for_earlier_segments_do_not_fail_with_later_ones() {
        let rig = Rig::new(4, 3, 2);
        let (_, _, writer) = rig.writer();
        let (first, second) = (writer.begin(), writer.begin());
        rig.stores[1].set(Fault::Silent);
        writer.submit(rig.draft(second, 1000));
        let clock = rig.client().host().clock;
        let waiting = {
            let writer = writer.clone();
            rig.client().run(async move { writer.wait_committed(1).await })
        };
        rig.run(clock.sleep(Duration::from_secs(5)));
        rig.heal();
        writer.submit(rig.draft(first, 1000));
        assert_eq!(rig.run(waiting), Ok(Ok(())));
    }
}
