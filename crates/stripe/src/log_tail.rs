//! Opening a log: the verdict on its tail, made durable.
//!
//! These are the steps, and the reasons why a crash after any of them is safe. This holds while at
//! most `m` stores are bad, and one process at a time opens a log whose former writer has stopped.
//!
//! 1. *Ask* a quorum for its seals and for all fragments of the tail. Nothing has changed yet.
//! 2. *Judge* (`striped_log::tail`): going up the chain, segments that can be read count. All
//!    acknowledged segments count, since they were complete. Without a writer, the verdict can only
//!    grow from one opening to the next: segments that counted stay readable.
//! 3. *Put again* the counted segments that are not complete, as new attempts with the same
//!    payload. Each put only adds fragments of segments that count anyway. After a crash here the
//!    next opening has the same verdict and less to do. This step must come before the seal: stores
//!    refuse fragments of a sealed epoch.
//! 4. *Seal* the log at a quorum, with the next epoch and the last seq that counts. A store that
//!    takes the seal forgets the discarded segments. So a seal on any store says: everything of
//!    earlier epochs up to `through` was complete, and nothing beyond was ever acknowledged. The
//!    seal carries the fences of the epochs before, and a random number of the opener. A store
//!    takes one seal of an epoch, so if two openers choose the same epoch, at most one finds its
//!    own seal at a quorum. After a crash here, the next opening may see the seal, and
//!    reaches the same verdict from it. Or it does not see the seal, and may count more: whole
//!    segments that were not acknowledged. Then there are two seals of one epoch, and the one that
//!    counts more is in force. No fragment of the new epoch exists before a quorum has the seal.
//! 5. *Tell* the stores that have the seal which stores have it. So the next opening knows which
//!    stores may have been written to, even if no written fragment is left. If a crash comes before
//!    this step, nothing was written.
//! 6. Only then hand out the new epoch. Quorums meet, so no epoch is handed out twice.
//!
//! Between 2 and 3, opening refuses a verdict that is a guess, unless the operator
//! [accepts](crate::Options::accepts_loss) it. More than `m` stores that are absent, new, or set
//! back to a time before the last opening can hide acknowledged segments, and sealing the log would
//! discard these for good.
//!
//! Segments up to a seal's `through` were complete when it was set. If they are incomplete now,
//! stores have lost fragments. Scrub repairs that; opening does not.

use crate::catch_up::newest_seals;
use crate::health::StoreState;
use crate::mark::{MARK_LOG, begun, epoch_of, is_set_back};
use crate::stripe::{Purpose, Whom};
use crate::{StoreSet, Stripe, StripeError};
use host::join_all;
use std::collections::BTreeSet;
use std::ops::Range;
use storage::api::{Fence, Seal, Storage, StorageError};
use striped_log::fragment::FragmentHeader;
use striped_log::segment::Segment;
use striped_log::tail::{self, CountedSegment, Doubt, Stores, TailVerdict};
use types::{LogId, SegmentId, StoreId};

/// Most headers that a store lists in one answer.
const LIST_COUNT: usize = 4_096;
/// Most segments that are put again at the same time. Each is whole in memory.
const PUT_AGAIN_COUNT: usize = 8;
/// How many times opening a log is tried if a newer seal turns up in the middle of it.
const OPEN_TRIES: usize = 3;
/// The seq of a log's first segment. It is not 0, so that a seal with `through` 0 counts nothing.
const FIRST_SEQ: u64 = 1;

/// An opened log: the segments that it has, and the name of the next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogTail {
    /// The log.
    pub log: LogId,
    /// The epoch of the segments to come. Writers with an earlier epoch are fenced.
    pub epoch: u32,
    /// The seq of the next segment. The first segment of a log has seq 1.
    pub next_seq: u64,
    /// The segment before the next one, if it is known.
    pub last: Option<SegmentId>,
    /// The highest order of a segment of the log that opening saw; 0 if it saw none with an order.
    /// The order of the next segment is above it. A caller that knows of higher ones (of segments
    /// that are deleted by now, or of other logs) raises it.
    pub order: u64,
    /// The segments from `from_seq` on, in order, all durable. There is no gap between them but for
    /// `lost`.
    pub segments: Vec<SegmentId>,
    /// Seqs of durable segments that cannot be read, in order; empty unless the operator accepts
    /// the loss.
    pub lost: Vec<Range<u64>>,
}

impl Stripe {
    /// Recovers a log from `from_seq` on (0 or 1: from its beginning) and fences its former writer.
    /// All segments before `from_seq` must have been durable; they may be deleted already. The
    /// caller makes sure that no other process opens or writes the log meanwhile.
    ///
    /// # Errors
    /// `NotEnoughStores`; `Fenced` or `SegmentNotFound` (another process opens the log at the same
    /// time); `LogBroken`, `LogLost`, `StoresNeeded`; `Damaged` (a segment of the tail,
    /// acknowledged or not, cannot be read, so it is not known what to keep). The log is then as it
    /// was, or some steps of the opening are done. Nothing is discarded.
    pub async fn open_log(&self, log: LogId, from_seq: u64) -> Result<LogTail, StripeError> {
        self.open(log, from_seq, 0, None).await
    }

    /// As [`open_log`](Self::open_log), for a caller that knows that all segments through a seq
    /// were durable.
    ///
    /// # Errors
    /// As [`open_log`](Self::open_log); `LogBroken` also if segments through that seq cannot be
    /// read.
    pub async fn open_log_through(&self, log: LogId, from_seq: u64, through: u64) -> Result<LogTail, StripeError> {
        self.open(log, from_seq, through, None).await
    }

    /// As [`open_log`](Self::open_log), for an opener that may come too late: only if the log was
    /// opened last for the writer of `epoch`. Of several openers, also of one that opens it
    /// unconditionally, at most one succeeds.
    ///
    /// # Errors
    /// As [`open_log`](Self::open_log); `Fenced` also if the log was opened after this epoch.
    pub async fn open_log_after(&self, log: LogId, from_seq: u64, epoch: u32) -> Result<LogTail, StripeError> {
        self.open(log, from_seq, 0, Some(epoch)).await
    }

    async fn open(&self, log: LogId, from_seq: u64, through: u64, after: Option<u32>) -> Result<LogTail, StripeError> {
        let from_seq = from_seq.max(FIRST_SEQ);
        // A loss is accepted only when all have had their time.
        let mut whom = if self.options.accepts_loss { Whom::Everybody } else { Whom::WhoAnswers };
        for _ in 1..OPEN_TRIES {
            match self.try_open(log, from_seq, through, after, whom).await {
                // The seal of an opening that died half way has turned up. A store that came back
                // had it, or it was a late request, which also discards segments that the dead
                // opening had not seen. The next try knows the seal.
                Err(StripeError::Fenced | StripeError::SegmentNotFound(_)) if after.is_none() => {}
                Err(error) if whom == Whom::WhoAnswers && error != StripeError::Fenced => {
                    tracing::info!(%log, %error, "the stores that answer at once do not suffice to open a log");
                    whom = Whom::Everybody;
                }
                done => return done,
            }
        }
        self.try_open(log, from_seq, through, after, Whom::Everybody).await
    }

    /// The segments of a log from `from_seq` up to `through`, while its writer goes on: nothing is
    /// changed. The writer of `epoch` says that all segments up to `through` are durable.
    ///
    /// # Errors
    /// `Fenced` if the log was opened after this epoch; `NotEnoughStores`; `LogBroken` if some of
    /// the segments cannot be read.
    pub async fn follow_log(
        &self,
        log: LogId,
        from_seq: u64,
        epoch: u32,
        through: u64,
    ) -> Result<Vec<SegmentId>, StripeError> {
        match self.try_follow(log, from_seq.max(FIRST_SEQ), epoch, through, Whom::WhoAnswers).await {
            Err(StripeError::NotEnoughStores | StripeError::LogBroken { .. }) => {
                self.try_follow(log, from_seq.max(FIRST_SEQ), epoch, through, Whom::Everybody).await
            }
            done => done,
        }
    }

    async fn try_follow(
        &self,
        log: LogId,
        from_seq: u64,
        epoch: u32,
        through: u64,
        whom: Whom,
    ) -> Result<Vec<SegmentId>, StripeError> {
        let (seals, found) = self.gather(log, from_seq.saturating_sub(1), whom).await?;
        let in_force = newest_seals(seals.iter().flat_map(|(_, seals)| seals));
        let seal = in_force.get(&log);
        let newest = found.iter().map(|(_, h)| h.id.segment.epoch).chain(seal.map(|s| s.epoch)).max();
        if newest > Some(epoch) {
            return Err(StripeError::Fenced);
        }
        let (_, verdict) = judge(from_seq, &in_force_of(found, seal));
        if verdict.next_seq <= through {
            return Err(StripeError::LogBroken { log, next_seq: verdict.next_seq, counted: through });
        }
        let committed = verdict.counted.into_iter().map(|c| c.id).filter(|id| id.seq <= through);
        Ok(committed.collect())
    }

    async fn try_open(
        &self,
        log: LogId,
        from_seq: u64,
        through: u64,
        after: Option<u32>,
        whom: Whom,
    ) -> Result<LogTail, StripeError> {
        // Gather also the segment before, so that the first one can chain to it.
        let (seals, found) = self.gather(log, from_seq.saturating_sub(1), whom).await?;
        let in_force = newest_seals(seals.iter().flat_map(|(_, seals)| seals));
        let seal = in_force.get(&log);
        let epochs = found.iter().map(|(_, h)| h.id.segment.epoch).chain(seal.map(|s| s.epoch));
        let newest = epochs.max().unwrap_or(0);
        if after.is_some_and(|after| newest != after) {
            return Err(StripeError::Fenced);
        }
        let epoch = newest.checked_add(1).ok_or(StripeError::BadRequest("out of epochs"))?;

        let found = in_force_of(found, seal);
        let (before, mut verdict) = judge(from_seq, &found);
        let sealed_through = seal.map_or(0, |s| s.through);
        let mut counted = sealed_through.max(through);
        if self.options.accepts_loss {
            // A writer puts a segment only when all that are so far before it are committed. What
            // can be read of them is not given up.
            let newest = found.iter().map(|(_, h)| h.id.segment.seq).max().unwrap_or(0);
            counted = counted.max(newest.saturating_sub(self.options.in_flight_max));
        }
        let mut lost = Vec::new();
        if verdict.next_seq <= counted {
            let next_seq = verdict.next_seq;
            tracing::error!(%log, next_seq, counted, "acknowledged segments cannot be read");
            if !self.options.accepts_loss {
                return Err(StripeError::LogBroken { log, next_seq, counted });
            }
            tracing::warn!(%log, next_seq, counted, "a log goes on behind lost segments, since the operator accepts the loss");
            lost = pass_over_lost(&mut verdict, counted, &found);
        }
        if let Some(doubt) = tail::doubt(&verdict, &found, &self.known_of(log, &seals)) {
            let error = match doubt {
                Doubt::Lost { next_seq, beyond } => StripeError::LogLost { log, next_seq, beyond },
                Doubt::Unknown { next_seq, stores } => {
                    StripeError::StoresNeeded { log, next_seq, stores: StoreSet::from_iter(stores) }
                }
            };
            if !self.options.accepts_loss {
                tracing::info!(%error, "a log is not opened, because its end is not certain");
                return Err(error);
            }
            let discarded = verdict.discarded.len();
            tracing::warn!(%error, discarded, "a log is opened in spite of a doubt, since the operator accepts the loss");
        }
        let incomplete: Vec<&CountedSegment> =
            verdict.counted.iter().filter(|c| !c.complete && c.id.seq > sealed_through).collect();
        if !incomplete.is_empty() || !verdict.discarded.is_empty() {
            let (again, discarded) = (incomplete.len(), verdict.discarded.len());
            tracing::info!(%log, again, discarded, "the log was not closed cleanly");
        }
        for group in incomplete.chunks(PUT_AGAIN_COUNT) {
            let puts = join_all(group.iter().map(|c| self.put_again(c.id)).collect()).await;
            puts.into_iter().collect::<Result<(), _>>()?;
        }

        let seal = seal_after(seal, log, epoch, &verdict, self.host.random.next_u64());
        let held_by = self.seal(&seal).await?;
        self.seal(&seal.told(held_by)).await?;
        for (at, has) in &seals {
            // Give the store the seals of other logs that it missed. A store that does not take
            // them was noted as absent.
            let others = in_force.iter().filter(|(l, _)| **l != log).map(|(l, s)| (*l, s.clone())).collect();
            if self.replay_seals(*at, has, &others).await.is_err() {
                tracing::warn!(store = %self.stores[*at].id, "store did not take the seals that it had missed");
            }
        }
        // The next segment does not chain to one before a gap.
        let last = verdict.counted.last().or(before.as_ref());
        let last = last.filter(|c| lost.last().is_none_or(|gap: &Range<u64>| c.id.seq >= gap.end));
        Ok(LogTail {
            log,
            epoch,
            next_seq: verdict.next_seq,
            last: last.map(|c| c.id),
            // The order never decreases within a log.
            order: last.map_or(0, |c| c.header.order),
            segments: verdict.counted.iter().map(|c| c.id).collect(),
            lost,
        })
    }

    /// True if a segment that cannot be read was certainly never complete, or was deleted. False if
    /// it can be read, or if stores that may have its fragments do not answer or have lost their
    /// state.
    pub async fn is_torn(&self, segment: SegmentId) -> Result<bool, StripeError> {
        let seals = self.ask_quorum(|s| s.seals()).await?;
        let described = self.describe(segment).await;
        if described.answered.len() < self.quorum() {
            return Err(StripeError::NotEnoughStores);
        }
        let stores = self.known_of(segment.log, &seals);
        let readable = described.best(self.fs).is_some();
        Ok(!readable && tail::may_have_the_rest(&described.found, &stores).is_none())
    }

    /// The state of the stores for a verdict, by the seals of those that answered.
    fn known_of(&self, log: LogId, seals: &Gathered<Vec<Seal>>) -> Stores {
        let all = || seals.iter().flat_map(|(_, seals)| seals);
        let marked = begun(MARK_LOG, all());
        let sealed = seals.iter().map(|(at, seals)| {
            let store = self.stores[*at].id;
            let epoch = if is_set_back(store, seals, marked.as_ref()) { 0 } else { epoch_of(log, seals) };
            (store, epoch)
        });
        Stores {
            all: self.stores.iter().map(|store| store.id).collect(),
            sealed: sealed.collect(),
            begun: begun(log, all()),
            m: self.options.parity,
            in_flight_max: self.options.in_flight_max,
        }
    }

    /// The seals of a quorum of stores, and the fragments that they have of a log from a seq on.
    /// Asks absent stores only if the others are no quorum, and everybody is to be asked.
    async fn gather(&self, log: LogId, from_seq: u64, whom: Whom) -> Result<(Gathered<Vec<Seal>>, Found), StripeError> {
        let (present, absent) = self.present_and_absent();
        let rounds = match whom {
            Whom::WhoAnswers => vec![present],
            Whom::Everybody => vec![present, absent],
        };
        let mut seals = Vec::new();
        let mut found = Vec::new();
        for stores in rounds {
            let answers = join_all(stores.iter().map(|&at| self.tail_of(at, log, from_seq, whom)).collect()).await;
            for (at, answer) in stores.into_iter().zip(answers) {
                let Ok((its_seals, headers)) = answer else { continue };
                let store = self.stores[at].id;
                seals.push((at, its_seals));
                let ours = headers.into_iter().filter(|h| h.fs == self.fs && h.id.segment.log == log);
                found.extend(ours.map(|h| (store, h)));
            }
            if seals.len() >= self.quorum() {
                return Ok((seals, found));
            }
        }
        Err(StripeError::NotEnoughStores)
    }

    /// One store's seals and its part of a log.
    async fn tail_of(
        &self,
        at: usize,
        log: LogId,
        mut from_seq: u64,
        whom: Whom,
    ) -> Result<(Vec<Seal>, Vec<FragmentHeader>), StorageError> {
        let seals = self.ask_whom(at, whom, |s| s.seals()).await?;
        let mut headers: Vec<FragmentHeader> = Vec::new();
        loop {
            let page = self.ask_whom(at, whom, |s: &dyn Storage| s.list(log, from_seq, LIST_COUNT)).await?;
            let next = page.iter().map(|h| h.id.segment.seq).max().and_then(|seq| seq.checked_add(1));
            headers.extend(page);
            match next {
                Some(next) if next > from_seq => from_seq = next,
                _ => return Ok((seals, headers)),
            }
        }
    }

    /// Puts a readable segment again, whole, with an attempt number that was not used.
    async fn put_again(&self, id: SegmentId) -> Result<(), StripeError> {
        let segment = self.read_segment(id, Purpose::Program).await?;
        let attempt = self.next_attempt(id).await;
        self.put_from(&segment, attempt).await
    }

    /// Reads a whole segment from any `k` fragments.
    pub(crate) async fn read_segment(&self, id: SegmentId, purpose: Purpose) -> Result<Segment, StripeError> {
        let info = self.locate(id).await?;
        let payload = self.read_for(id, 0..info.geometry.payload_len, purpose).await?;
        Ok(info.segment(id, payload))
    }

    /// An unused attempt number for a segment whose writer is gone. A store that does not answer
    /// may have a later attempt than the others. Then the number skips a random number of attempts,
    /// so that the two are not mistaken for each other.
    pub(crate) async fn next_attempt(&self, id: SegmentId) -> u16 {
        let described = self.describe_briefly(id).await;
        let all = described.answered.len() == self.stores.len();
        let skip = if all { 0 } else { (self.host.random.next_u64() % 256) as u16 };
        described.attempt_max().map_or(0, |max| max.saturating_add(1).saturating_add(skip))
    }

    /// Seals a log at every store that answers. Succeeds if at least a quorum answers, and all that
    /// answer have taken exactly this seal. Returns these stores.
    async fn seal(&self, seal: &Seal) -> Result<BTreeSet<StoreId>, StripeError> {
        self.health.lock().note_change();
        let answers = self.ask_quorum_briefly(self.options.put_patience(), |s| s.seal(seal.clone())).await?;
        // A store that has not taken the seal leaves service. So every store with a fragment of an
        // epoch has the seal of that epoch: a store gets missing seals before it is used again.
        let without = |at: &usize| answers.iter().all(|(sealed, _)| sealed != at);
        let up = self.health.lock().up();
        up.into_iter().filter(without).for_each(|at| self.mark_bad(at, StoreState::Failing, "did not take a seal"));
        match answers.iter().all(|(_, in_force)| in_force == seal) {
            true => Ok(answers.iter().map(|(at, _)| self.stores[*at].id).collect()),
            false => Err(StripeError::Fenced),
        }
    }
}

/// Answers, each with the place (`at`) of the store that gave it.
type Gathered<T> = Vec<(usize, T)>;
/// Fragments, each with the store that has it.
type Found = Vec<(StoreId, FragmentHeader)>;

/// Removes the fragments that a seal has discarded.
fn in_force_of(mut found: Found, seal: Option<&Seal>) -> Found {
    if let Some(seal) = seal {
        found.retain(|(_, h)| !seal.discards(&h.id.segment));
    }
    found
}

/// The segment at `from_seq - 1`, if it can still be read, and the verdict from `from_seq` on.
fn judge(from_seq: u64, found: &Found) -> (Option<CountedSegment>, TailVerdict) {
    let before = tail::verdict(from_seq - 1, None, found.clone());
    let before = before.counted.into_iter().next().filter(|c| c.id.seq + 1 == from_seq);
    let verdict = tail::verdict(from_seq, before.as_ref().map(|c| c.id), found.clone());
    (before, verdict)
}

/// Counts also the segments that can be read behind lost ones, up to the end of the log and at
/// least to behind `counted`. Returns the seqs of the lost ones.
fn pass_over_lost(verdict: &mut TailVerdict, counted: u64, found: &Found) -> Vec<Range<u64>> {
    let mut lost = Vec::new();
    while verdict.next_seq <= counted {
        let from = verdict.next_seq;
        let seqs: BTreeSet<u64> = found.iter().map(|(_, h)| h.id.segment.seq).filter(|seq| *seq > from).collect();
        let behind = seqs.range(..=counted).map(|seq| (*seq, tail::verdict(*seq, None, found.clone())));
        let next = behind.into_iter().find(|(_, behind)| !behind.counted.is_empty());
        let (end, behind) = next.unwrap_or_else(|| (counted + 1, tail::verdict(counted + 1, None, found.clone())));
        lost.push(from..end);
        verdict.counted.extend(behind.counted);
        verdict.next_seq = behind.next_seq;
    }
    let counts: BTreeSet<SegmentId> = verdict.counted.iter().map(|c| c.id).collect();
    verdict.discarded.retain(|segment| !counts.contains(segment));
    lost
}

/// The seal for this verdict, with the fences before it.
fn seal_after(present: Option<&Seal>, log: LogId, epoch: u32, verdict: &TailVerdict, nonce: u64) -> Seal {
    let fence = Fence { epoch, through: verdict.next_seq - 1 };
    let Some(present) = present else { return Seal::new(log, fence, nonce) };
    let first = verdict.counted.iter().find(|c| c.id.epoch >= present.epoch).map(|c| c.id.seq);
    present.next(fence, first, nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogWriter;
    use crate::testing::{Fault, LOG, Rig};
    use bytes::Bytes;
    use std::sync::Arc;
    use std::time::Duration;
    use striped_log::builder::LogPlace;
    use types::Maps;

    /// Puts only some fragments of a segment, like a writer that dies in the middle.
    fn put_partly(rig: &Rig, segment: &Segment, fragments: &[usize]) {
        let stripe = rig.stripe();
        let geometry = stripe.choose_group(segment).unwrap();
        let all = segment.stripe(stripe.fs, 0, geometry);
        for &i in fragments {
            let at = stripe.place(all[i].header.member().unwrap()).unwrap();
            rig.run(stripe.ask_put(at, all[i].clone(), Purpose::Program)).unwrap();
        }
    }

    fn chain(rig: &Rig, tail: &LogTail) {
        let stripe = rig.stripe();
        for pair in tail.segments.windows(2) {
            assert_eq!(rig.run(stripe.info(pair[1])).unwrap().previous, Some(pair[0]));
        }
    }

    #[test]
    fn new_log_begins_with_seq_1_and_each_opening_has_an_epoch_of_its_own() {
        let rig = Rig::new(1, 5, 1);
        for epoch in 1..4 {
            let tail = rig.run(rig.stripe().open_log(LOG, 0)).unwrap();
            assert_eq!(
                tail,
                LogTail { log: LOG, epoch, next_seq: 1, last: None, order: 0, segments: vec![], lost: vec![] }
            );
        }
    }

    #[test]
    fn readable_tail_is_completed_and_what_follows_a_gap_is_discarded() {
        let rig = Rig::new(2, 5, 1);
        let stripe = rig.stripe();
        let segments: Vec<Segment> = (1..=5).map(|seq| rig.segment(seq, 200_000)).collect();
        rig.run(stripe.put(&segments[0])).unwrap();
        put_partly(&rig, &segments[1], &[0, 1, 2, 4]);
        put_partly(&rig, &segments[2], &[0, 3, 4]);
        put_partly(&rig, &segments[4], &[0, 1, 2, 3, 4]);
        assert_eq!(rig.stores.iter().map(|s| s.holds(segments[2].id)).sum::<usize>(), 3);

        let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
        // 200,000 bytes are four fragments; three and parity can be read, two and parity cannot.
        let counted: Vec<SegmentId> = segments[..2].iter().map(|s| s.id).collect();
        assert_eq!((tail.epoch, tail.next_seq, &tail.segments), (2, 3, &counted));
        // The discarded segments had 30 and 50.
        assert_eq!(tail.order, 20);
        chain(&rig, &tail);
        for discarded in [&segments[2], &segments[4]] {
            assert_eq!(rig.stores.iter().map(|s| s.holds(discarded.id)).sum::<usize>(), 0);
        }
        for store in &rig.stores {
            store.set(Fault::Down);
            let reader = rig.stripe();
            for s in &segments[..2] {
                assert_eq!(rig.run(reader.read(s.id, 0..200_000)).unwrap(), s.payload);
                assert_eq!(rig.run(reader.info(s.id)).unwrap().order, s.order);
            }
            store.set(Fault::None);
        }
        assert_eq!(rig.run(stripe.put(&segments[2])), Err(StripeError::Fenced));
    }

    #[test]
    fn regression_an_opening_waits_little_for_a_store_that_hangs() {
        for is_known in [false, true] {
            let rig = Rig::new(8, 5, 1);
            let stripe = rig.stripe();
            let segments: Vec<Segment> = (1..=2).map(|seq| rig.segment(seq, 200_000)).collect();
            rig.run(stripe.put(&segments[0])).unwrap();
            put_partly(&rig, &segments[1], &[0, 1, 2, 3]);
            rig.stores[4].set(Fault::Silent);
            if is_known {
                stripe.note_slow(4);
            }
            let begin = rig.sim.now();
            let tail = rig.run(stripe.open_log(LOG, 1)).unwrap();
            assert_eq!(tail.segments, [segments[0].id, segments[1].id]);
            let patience = if is_known { Duration::ZERO } else { stripe.options.read_patience() };
            let time_max = patience + stripe.options.put_timeout / 10;
            assert!(rig.sim.now() - begin < time_max, "{:?}", rig.sim.now() - begin);
            let begin = rig.sim.now();
            let followed = rig.run(stripe.follow_log(LOG, 1, tail.epoch, 2)).unwrap();
            assert_eq!(followed, tail.segments);
            assert!(rig.sim.now() - begin < time_max, "{:?}", rig.sim.now() - begin);
            // It gets the seal before it takes puts again, also if it was known to be slow.
            assert_eq!(stripe.health.lock().state(4), StoreState::Failing);
            rig.heal();
            rig.sim.run_for(2 * stripe.options.put_timeout);
            assert!(stripe.is_whole());
            let seals = rig.run(stripe.ask(4, |s| s.seals())).unwrap();
            assert_eq!(seals.iter().find(|seal| seal.log == LOG).map(|seal| seal.epoch), Some(tail.epoch));
        }
    }

    #[test]
    fn a_store_that_hangs_is_waited_for_if_the_log_needs_it() {
        let rig = Rig::new(9, 3, 1);
        let stripe = rig.stripe();
        rig.run(stripe.put(&rig.segment(1, 1000))).unwrap();
        rig.stores[0].set(Fault::Down);
        rig.stores[1].set(Fault::Silent);
        let opened = rig.client().run({
            let stripe = stripe.clone();
            async move { stripe.open_log(LOG, 1).await }
        });
        rig.sim.run_for(stripe.options.put_timeout / 2);
        rig.heal();
        assert_eq!(rig.run(opened).unwrap().unwrap().segments.len(), 1);
    }

    #[test]
    fn a_log_is_followed_while_its_writer_goes_on() {
        let rig = Rig::new(7, 5, 1);
        let (stripe, _, writer) = rig.writer();
        let names: Vec<LogPlace> = (0..4).map(|_| writer.begin()).collect();
        names.iter().for_each(|name| writer.submit(rig.draft(*name, 200_000)));
        rig.run(writer.wait_committed(4)).unwrap();
        let ids: Vec<SegmentId> = names.iter().map(|name| name.id).collect();
        rig.stores[2].set(Fault::Down);
        let follow = |from, epoch, through| rig.run(rig.stripe().follow_log(LOG, from, epoch, through));
        assert_eq!(follow(0, 1, 3), Ok(ids[..3].to_vec()));
        assert_eq!(follow(4, 1, 4), Ok(ids[3..].to_vec()));
        assert_eq!(follow(5, 1, 4), Ok(vec![]));
        assert_eq!(follow(1, 1, 5), Err(StripeError::LogBroken { log: LOG, next_seq: 5, counted: 5 }));
        rig.stores[2].set(Fault::None);
        let next = writer.begin();
        writer.submit(rig.draft(next, 1000));
        rig.run(writer.wait_committed(5)).unwrap();
        assert_eq!(follow(4, 1, 5), Ok(vec![ids[3], next.id]));
        rig.run(stripe.open_log(LOG, 1)).unwrap();
        assert_eq!(follow(1, 1, 5), Err(StripeError::Fenced));
    }

    #[test]
    fn later_from_seq_chains_to_the_segment_before_it_if_that_is_still_there() {
        let rig = Rig::new(3, 5, 1);
        let stripe = rig.stripe();
        let segments: Vec<Segment> = (1..=4).map(|seq| rig.segment(seq, 1000)).collect();
        segments.iter().for_each(|s| rig.run(stripe.put(s)).unwrap());
        let ids: Vec<SegmentId> = segments.iter().map(|s| s.id).collect();
        let tail = rig.run(stripe.open_log(LOG, 3)).unwrap();
        assert_eq!((tail.next_seq, tail.last, tail.order, tail.segments), (5, Some(ids[3]), 40, ids[2..].to_vec()));
        let tail = rig.run(stripe.open_log(LOG, 5)).unwrap();
        assert_eq!((tail.next_seq, tail.last, tail.order, tail.segments), (5, Some(ids[3]), 40, vec![]));
        rig.run(stripe.delete(ids));
        let tail = rig.run(stripe.open_log(LOG, 5)).unwrap();
        assert_eq!((tail.next_seq, tail.last, tail.order, tail.segments), (5, None, 0, vec![]));
    }

    #[test]
    fn log_is_not_opened_without_a_quorum_nor_with_acknowledged_segments_missing() {
        let rig = Rig::new(4, 5, 1);
        let (_, _, writer) = rig.writer();
        for _ in 0..3 {
            writer.submit(rig.draft(writer.begin(), 200_000));
        }
        rig.run(writer.wait_committed(3)).unwrap();
        rig.run(rig.stripe().open_log(LOG, 1)).unwrap();

        rig.stores[..2].iter().for_each(|s| s.set(Fault::Down));
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)), Err(StripeError::NotEnoughStores));
        rig.heal();
        let kept: Vec<_> = rig.stores[..2].iter().map(|s| std::mem::take(&mut s.contents.lock().fragments)).collect();
        let broken = rig.run(rig.stripe().open_log(LOG, 1));
        assert_eq!(broken, Err(StripeError::LogBroken { log: LOG, next_seq: 1, counted: 3 }));
        for (store, fragments) in rig.stores.iter().zip(kept) {
            store.contents.lock().fragments = fragments;
        }
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments.len(), 3);
    }

    #[test]
    fn a_log_goes_on_behind_lost_segments_only_if_the_operator_accepts_that() {
        let mut rig = Rig::new(14, 5, 1);
        let (_, _, writer) = rig.writer();
        let write = |writer: &Arc<LogWriter>, rig: &Rig, through| {
            (0..2).for_each(|_| writer.submit(rig.draft(writer.begin(), 200_000)));
            rig.run(writer.wait_committed(through)).unwrap();
        };
        [2, 4, 6].into_iter().for_each(|through| write(&writer, &rig, through));
        let lose = |seqs: Range<u64>| {
            for store in &rig.stores {
                store.contents.lock().fragments.retain(|(segment, _, _), _| !seqs.contains(&segment.seq));
            }
        };
        lose(5..7);
        let seqs = |tail: &LogTail| tail.segments.iter().map(|s| s.seq).collect::<Vec<_>>();
        let open = |rig: &Rig, from, through| rig.run(rig.stripe().open_log_through(LOG, from, through));
        // A manager had applied all of them.
        assert_eq!(open(&rig, 1, 6), Err(StripeError::LogBroken { log: LOG, next_seq: 5, counted: 6 }));
        lose(3..4);
        assert_eq!(open(&rig, 1, 6), Err(StripeError::LogBroken { log: LOG, next_seq: 3, counted: 6 }));
        rig.options.accepts_loss = true;
        let tail = open(&rig, 1, 6).unwrap();
        assert_eq!(
            (seqs(&tail), tail.lost.clone(), tail.next_seq, tail.last),
            (vec![1, 2, 4], vec![3..4, 5..7], 7, None)
        );
        let writer = LogWriter::new(rig.stripe(), tail);
        write(&writer, &rig, 8);
        rig.options.accepts_loss = false;
        assert_eq!(open(&rig, 2, 0), Err(StripeError::LogBroken { log: LOG, next_seq: 3, counted: 6 }));
        let tail = open(&rig, 7, 0).unwrap();
        assert_eq!((seqs(&tail), tail.lost), (vec![7, 8], vec![]));
        rig.options.accepts_loss = true;
        let tail = open(&rig, 1, 0).unwrap();
        assert_eq!((seqs(&tail), tail.lost, tail.next_seq), (vec![1, 2, 4, 7, 8], vec![3..4, 5..7], 9));
    }

    /// Takes the contents of two stores. [`put_back`] returns them.
    fn take(rig: &Rig, stores: [usize; 2]) -> Vec<(usize, crate::testing::Contents)> {
        stores.map(|at| (at, std::mem::take(&mut *rig.stores[at].contents.lock()))).into()
    }

    fn put_back(rig: &Rig, taken: Vec<(usize, crate::testing::Contents)>) {
        taken.into_iter().for_each(|(at, contents)| *rig.stores[at].contents.lock() = contents);
    }

    /// Two stores were replaced by new ones at once. The log was sealed where it could not be read
    /// any more, so the acknowledged segments were gone when the old stores came back.
    #[test]
    fn regression_acknowledged_segments_survive_an_opening_without_the_stores_that_have_them() {
        for (len, count) in [(1000, 5), (200_000, 5), (200_000, 200)] {
            let rig = Rig::new(9, 5, 1);
            let (_, _, writer) = rig.writer();
            (0..count).for_each(|_| writer.submit(rig.draft(writer.begin(), len)));
            rig.run(writer.wait_committed(count)).unwrap();
            rig.client().crash();
            let taken = take(&rig, [0, 1]);
            let refused = rig.run(rig.stripe().open_log(LOG, 1)).unwrap_err();
            assert!(matches!(refused, StripeError::StoresNeeded { .. } | StripeError::LogLost { .. }), "{refused}");
            put_back(&rig, taken);
            assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments.len() as u64, count);
        }
    }

    /// A store was replaced, and got the seals of the others when it came into service. So it
    /// looked as if it had all that was written under them. With another store away, the log was
    /// opened without its acknowledged end.
    #[test]
    fn regression_a_store_that_was_replaced_does_not_speak_for_what_it_lost() {
        let mut refused = 0;
        for seed in 0..24 {
            // Each segment is on two of the stores.
            let (away, by_opening) = (1 + seed as usize % 2, seed % 4 < 2);
            let rig = Rig::new(seed, 3, 1);
            let (stripe, _, writer) = rig.writer();
            rig.run(stripe.put_maps(Maps { epoch: 1, bytes: Bytes::new() })).unwrap();
            let count = 1 + seed % 3;
            let names: Vec<LogPlace> = (0..count).map(|_| writer.begin()).collect();
            names.iter().for_each(|name| writer.submit(rig.draft(*name, 1000)));
            rig.run(writer.wait_committed(count)).unwrap();
            rig.client().crash();
            rig.stores[0].wipe();
            let stripe = rig.stripe();
            if by_opening {
                // Of another log: all stores are in service as far as it knows.
                rig.run(stripe.open_log(LogId::new(9), 1)).unwrap();
                rig.run(stripe.put_maps(Maps { epoch: 2, bytes: Bytes::new() })).unwrap();
            } else {
                stripe.note_new(rig.stores[0].id);
                rig.sim.run_for(Duration::from_secs(1));
                assert!(stripe.is_whole());
            }
            rig.stores[away].set(Fault::Down);
            let open = || rig.run(rig.stripe().open_log(LOG, 1)).map(|tail| tail.segments.len() as u64);
            let opened = open();
            let is_refused = matches!(opened, Err(StripeError::StoresNeeded { .. }));
            assert!(is_refused || opened == Ok(count), "seed {seed}: {opened:?}");
            refused += u32::from(is_refused);
            // Once it has everything, it bears another loss.
            rig.heal();
            rig.sim.run_for(Duration::from_secs(1));
            names.iter().for_each(|name| assert!(rig.run(stripe.restore(name.id))));
            rig.run(stripe.clear_losses(stripe.return_count())).unwrap();
            rig.stores[away].set(Fault::Down);
            assert_eq!(open(), Ok(count));
        }
        assert!(refused > 4, "{refused} of 24");
    }

    /// A segment was missing everywhere, as when an older root is taken for the newest one. The
    /// opening discarded all segments behind it.
    #[test]
    fn regression_complete_segments_behind_a_long_gap_are_not_discarded() {
        let rig = Rig::new(10, 5, 1);
        let (stripe, _, writer) = rig.writer();
        let count = tail::IN_FLIGHT_MAX + 2;
        let first = writer.begin();
        writer.submit(rig.draft(first, 1000));
        (1..count).for_each(|_| writer.submit(rig.draft(writer.begin(), 1000)));
        rig.run(writer.wait_committed(count)).unwrap();
        rig.run(stripe.delete(vec![first.id]));
        let held = || rig.stores.iter().map(|s| s.contents.lock().fragments.len()).sum::<usize>();
        let before = held();
        let refused = rig.run(rig.stripe().open_log(LOG, 1));
        assert_eq!(refused, Err(StripeError::LogLost { log: LOG, next_seq: 1, beyond: count }));
        assert_eq!(held(), before);
    }

    #[test]
    fn log_is_not_sealed_before_what_counts_is_complete() {
        let rig = Rig::new(6, 3, 2);
        let segment = rig.segment(1, 1000);
        put_partly(&rig, &segment, &[0, 1]);
        let members = rig.stripe().choose_group(&segment).unwrap().members;
        let away = rig.stores.iter().find(|s| s.id == members[2]).unwrap();
        away.set(Fault::Down);
        // From two stores the segment can be read, but not completed.
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)), Err(StripeError::NotEnoughStores));
        assert!(rig.stores.iter().all(|s| s.contents.lock().seals[&LOG].epoch == 1));
        rig.heal();
        let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
        assert_eq!((tail.epoch, tail.segments), (2, vec![segment.id]));
        rig.stores.iter().filter(|s| s.id != away.id).for_each(|s| s.wipe());
        assert_eq!(rig.run(rig.stripe().read(segment.id, 0..1000)).unwrap(), segment.payload);
    }

    #[test]
    fn store_that_missed_an_opening_does_not_bring_back_what_was_discarded() {
        for write in [false, true] {
            let rig = Rig::new(5, 3, 1);
            let (_, _, writer) = rig.writer();
            let first = writer.begin();
            writer.submit(rig.draft(first, 1000));
            rig.run(writer.wait_committed(1)).unwrap();
            // The segment is mirrored, so it can be read from the one store that is away while the
            // log is opened and written.
            let stray = rig.segment(2, 1000);
            assert_eq!(stray.previous, Some(first.id));
            let geometry = rig.stripe().choose_group(&stray).unwrap();
            put_partly(&rig, &stray, &[0]);
            let away = rig.stores.iter().find(|s| s.id == geometry.members[0]).unwrap();
            away.set(Fault::Silent);
            let (_, tail, writer) = rig.writer();
            assert_eq!((tail.epoch, tail.next_seq), (2, 2));
            let mut segments = tail.segments;
            if write {
                let second = writer.begin();
                writer.submit(rig.draft(second, 1000));
                rig.run(writer.wait_committed(2)).unwrap();
                segments.push(second.id);
            }
            rig.client().crash();

            away.set(Fault::None);
            assert_eq!(away.holds(stray.id), 1);
            let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
            assert_eq!((tail.epoch, &tail.segments), (3, &segments));
            chain(&rig, &tail);
        }
    }

    #[test]
    fn regression_late_seal_of_a_dead_opener_does_not_fail_the_next_opening() {
        let mut counted = 0;
        for delay in 0..60 {
            let rig = Rig::new(8 + delay, 5, 1);
            let segment = rig.segment(1, 200_000);
            put_partly(&rig, &segment, &[0, 1, 2, 4]);
            let stripe = rig.stripe();
            let opening = rig.client().run(async move { stripe.open_log(LOG, 1).await });
            rig.sim.run_for(std::time::Duration::from_micros(500 * delay));
            // The dead opener had seen less of the tail than can be read, and its requests were on
            // their way all the time.
            let late = Seal::new(LOG, Fence { epoch: 2, through: 0 }, 0);
            let seals = rig.stores.iter().map(|s| s.seal(late.clone())).collect();
            let (opened, _) = rig.run(async { (opening.await, join_all(seals).await) });
            let tail = opened.unwrap().unwrap();
            let again = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
            assert_eq!((&again.segments, again.epoch), (&tail.segments, tail.epoch + 1));
            for &id in &tail.segments {
                assert_eq!(rig.run(rig.stripe().read(id, 0..200_000)).unwrap(), segment.payload);
                counted += 1;
            }
        }
        assert!((1..60).contains(&counted), "{counted} of 60 opened before the late seal");
    }

    /// The newest seal alone would let the writer go on: its next segment is at a seq that a later
    /// epoch has written and the seal counts.
    #[test]
    fn regression_a_writer_that_slept_through_two_epochs_is_fenced() {
        let rig = Rig::new(11, 5, 1);
        let write = |writer: &Arc<LogWriter>, count: u64| {
            (0..count).for_each(|_| writer.submit(rig.draft(writer.begin(), 1000)));
        };
        let (_, _, sleeper) = rig.writer();
        write(&sleeper, 2);
        rig.run(sleeper.wait_committed(2)).unwrap();
        let (_, _, second) = rig.writer();
        write(&second, 3);
        rig.run(second.wait_committed(5)).unwrap();
        let (_, third, writer) = rig.writer();
        assert_eq!((third.epoch, third.next_seq), (3, 6));

        write(&sleeper, 1);
        assert_eq!(rig.run(sleeper.wait_committed(3)), Err(StripeError::Fenced));
        write(&writer, 1);
        rig.run(writer.wait_committed(6)).unwrap();
        let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
        assert_eq!(tail.segments[..5], third.segments);
        assert_eq!(tail.segments.len(), 6);
        chain(&rig, &tail);
        // Segments that count can still be repaired, of any epoch.
        for &id in &tail.segments {
            rig.run(rig.stripe().put_again(id)).unwrap();
        }
    }

    /// Each opener may get an epoch, but never both the same.
    #[test]
    fn regression_two_openers_at_once_do_not_get_the_same_epoch() {
        let (mut both, mut refused) = (0, 0);
        for seed in 0..200 {
            let rig = Rig::new(seed, 5, 1);
            rig.stores[seed as usize % 5].set(if seed % 2 == 0 { Fault::Down } else { Fault::None });
            let machines = [rig.client(), rig.client()];
            let opened: Vec<_> = machines
                .iter()
                .map(|machine| {
                    let stores = rig.stores.iter().map(|s| (s.id, s.clone() as Arc<dyn Storage>)).collect();
                    let stripe = Stripe::new(machine.host(), crate::testing::FS, stores, rig.options);
                    let wait = Duration::from_micros(rig.random.below(4_000));
                    let clock = machine.host().clock;
                    machine.run(async move {
                        clock.sleep(wait).await;
                        stripe.open_log(LOG, 1).await
                    })
                })
                .collect();
            let opened: Vec<_> = rig.run(join_all(opened)).into_iter().map(|opened| opened.unwrap()).collect();
            match &opened[..] {
                [Ok(one), Ok(other)] => {
                    both += 1;
                    assert_ne!(one.epoch, other.epoch, "seed {seed}");
                }
                _ => refused += 1,
            }
        }
        assert!(both > 20 && refused + both == 200, "{both} {refused}");
    }

    #[test]
    fn one_of_two_stores_is_no_quorum() {
        // Otherwise the log could be opened at each store alone, and both openers would get the
        // same epoch.
        let rig = Rig::new(7, 2, 1);
        rig.stores[0].set(Fault::Down);
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)), Err(StripeError::NotEnoughStores));
    }

    /// Crashes the opener at every point, with a tail that has segments in every state, and opens
    /// the log again with another store away. Nothing acknowledged is lost, and no epoch is handed
    /// out twice.
    #[test]
    fn crash_at_any_point_of_opening_loses_nothing_acknowledged() {
        let mut crashes = 0;
        for seed in 0..3 {
            for polls in 1.. {
                let rig = Rig::new(seed, 5, 1);
                let (_, _, writer) = rig.writer();
                let drafts: Vec<_> = (0..3).map(|_| rig.draft(writer.begin(), 150_000)).collect();
                drafts.iter().for_each(|d| writer.submit(d.clone()));
                rig.run(writer.wait_committed(3)).unwrap();
                let last = writer.begin();
                rig.client().crash();
                let name = |seq| SegmentId { seq, ..last.id };
                let unsure = rig.draft(last, 150_000).assemble();
                let place = LogPlace { id: name(5), previous: Some(unsure.id), order: unsure.order + 1 };
                let beyond = rig.draft(place, 150_000).assemble();
                put_partly(&rig, &unsure, &[0, 1, 3]);
                put_partly(&rig, &beyond, &[1, 2]);

                let away = |at: usize| {
                    rig.heal();
                    rig.stores[at % 5].set(Fault::Down);
                };
                away(seed as usize);
                let machine = rig.client();
                machine.crash_after(polls);
                let stripe = rig.stripe();
                let first = rig.run(machine.run(async move { stripe.open_log(LOG, 1).await }));
                machine.crash();
                away(polls as usize);
                let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
                let acknowledged: Vec<SegmentId> = drafts.iter().map(|d| d.id()).collect();
                assert_eq!(tail.segments[..3], acknowledged, "polls {polls}");
                if let Ok(Ok(first)) = &first {
                    assert!(first.epoch < tail.epoch);
                    assert_eq!(first.segments, tail.segments, "what an opening counted stays");
                }
                chain(&rig, &tail);
                // Every segment that counts is complete again, so any store can be lost now.
                away(seed as usize + 2);
                let stripe = rig.stripe();
                for draft in &drafts {
                    let expected = draft.clone().assemble().payload;
                    assert_eq!(rig.run(stripe.read(draft.id(), 0..150_000)).unwrap(), expected);
                }
                if tail.segments.len() > 3 {
                    assert_eq!(rig.run(stripe.read(unsure.id, 0..150_000)).unwrap(), unsure.payload);
                }
                if first.is_ok() {
                    break;
                }
                crashes += 1;
            }
        }
        assert!(crashes > 30, "{crashes} crashes tell nothing");
    }
}
