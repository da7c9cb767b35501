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
//!    next opening has the same verdict and less to do. A store that has a seal of an opener which
//!    died half way may refuse these puts: then step 4 comes first.
//! 4. *Seal* the log at a quorum, with the next epoch and the last seq that counts. From now on
//!    these stores refuse the former writer. The seal is *under way* ([`storage::api::Seals`]): it
//!    discards nothing, and later openings do not heed it, but for its epoch. So it does no harm if
//!    a crash comes here, and another leader lets the former writer go on, because no store that it
//!    asks has the seal ([`let_go_on`](Stripe::let_go_on)). The seal carries the fences of the
//!    epochs before, and a random number of the opener. A store takes one seal of an epoch, so if
//!    two openers choose the same epoch, at most one finds its own seal at a quorum. Only stores
//!    that answered in step 1 are asked, and get the seals in force first. Those that took the seal
//!    show all their seals again. If one was told of another seal since, opening begins anew.
//! 5. *Tell* the stores that have the seal which stores have it. From the first one that is told,
//!    the seal is in force, and the former writer never goes on: any quorum shows the seal. A store
//!    that is told forgets the discarded segments. After a crash here, some stores may be told, and
//!    others not. The next opening may see none that is told, and may count more: whole segments
//!    that were not acknowledged. It puts them again.
//! 6. Only when a quorum is told hand out the new epoch. Quorums meet, so no epoch is handed out
//!    twice, and the next opening sees this seal.
//!
//! Between 2 and 3, opening refuses a verdict that is a guess, unless the operator
//! [accepts](crate::Options::accepts_loss) it. More than `m` stores that are absent, new, or set
//! back to a time before the last opening can hide acknowledged segments, and sealing the log would
//! discard these for good.
//!
//! Segments up to a seal's `through` were complete when it was set. If they are incomplete now,
//! stores have lost fragments. Scrub repairs that; opening does not.

use crate::catch_up::{in_force_by, newest_told};
use crate::health::StoreState;
use crate::mark::{MARK_LOG, begun, epoch_of, is_set_back};
use crate::stripe::{Patience, Purpose, Whom};
use crate::{StoreSet, Stripe, StripeError};
use host::join_all;
use std::collections::{BTreeMap, BTreeSet};
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
                // Another opening has told a store, or has sealed it: one that died half way, and
                // whose requests came late. The next try knows the seal.
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
        self.follow(log, from_seq, epoch, through, false).await
    }

    /// As [`follow_log`](Self::follow_log), for a new leader that lets the writer go on: also a
    /// seal under way fences the writer, if a store of the quorum that answers has it. Its opener
    /// may have told a store that was not asked, which then keeps less than the writer counts on.
    ///
    /// # Errors
    /// As [`follow_log`](Self::follow_log).
    pub async fn let_go_on(
        &self,
        log: LogId,
        from_seq: u64,
        epoch: u32,
        through: u64,
    ) -> Result<Vec<SegmentId>, StripeError> {
        self.follow(log, from_seq, epoch, through, true).await
    }

    async fn follow(
        &self,
        log: LogId,
        from_seq: u64,
        epoch: u32,
        through: u64,
        any_seal_fences: bool,
    ) -> Result<Vec<SegmentId>, StripeError> {
        let from_seq = from_seq.max(FIRST_SEQ);
        match self.try_follow(log, from_seq, epoch, through, (any_seal_fences, Whom::WhoAnswers)).await {
            Err(StripeError::NotEnoughStores | StripeError::LogBroken { .. }) => {
                self.try_follow(log, from_seq, epoch, through, (any_seal_fences, Whom::Everybody)).await
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
        (any_seal_fences, whom): (bool, Whom),
    ) -> Result<Vec<SegmentId>, StripeError> {
        let (seals, found) = self.gather(log, from_seq.saturating_sub(1), whom).await?;
        let of_log = |seal: &&Seal| seal.log == log && (any_seal_fences || seal.is_told());
        let epochs = seals.iter().flat_map(|(_, seals)| seals).filter(of_log).map(|seal| seal.epoch);
        let newest = found.iter().map(|(_, h)| h.id.segment.epoch).chain(epochs).max();
        if newest > Some(epoch) {
            return Err(StripeError::Fenced);
        }
        let seal = in_force_by(&seals).remove(&log);
        let (_, verdict) = judge(from_seq, &not_discarded(found, seal.as_ref()));
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
        let shown = || seals.iter().flat_map(|(_, seals)| seals).filter(|s| s.log == log);
        // Also of seals under way: no epoch is given twice.
        let epochs = found.iter().map(|(_, h)| h.id.segment.epoch).chain(shown().map(|s| s.epoch));
        let newest = epochs.max().unwrap_or(0);
        let in_force = in_force_by(&seals);
        let seal = in_force.get(&log);
        if after.is_some_and(|after| newest != after) {
            return Err(StripeError::Fenced);
        }
        let epoch = newest.checked_add(1).ok_or(StripeError::BadRequest("out of epochs"))?;

        let found = not_discarded(found, seal);
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
        // What a seal under way discards may become incomplete: a store may still be told.
        let is_safe = |c: &CountedSegment| shown().all(|seal| seal.is_told() || !seal.discards(&c.id));
        let may_lack = |c: &&CountedSegment| c.id.seq > sealed_through && !(c.complete && is_safe(c));
        let incomplete: Vec<&CountedSegment> = verdict.counted.iter().filter(may_lack).collect();
        if !incomplete.is_empty() || !verdict.discarded.is_empty() {
            let (again, discarded) = (incomplete.len(), verdict.discarded.len());
            tracing::info!(%log, again, discarded, "the log was not closed cleanly");
        }
        let current = self.bring_up_to_date(&seals, &in_force, !incomplete.is_empty()).await;
        // A store with such a seal may take these only when it has the next one. From then on it
        // deletes nothing for the former one.
        let are_refused = !incomplete.iter().all(|c| is_safe(c));
        let next = seal_after(seal, log, epoch, &verdict, self.host.random.next_u64());
        let mut held_by = BTreeSet::new();
        if are_refused {
            held_by = self.seal_under_way(&next, seal, &current).await?;
        }
        for group in incomplete.chunks(PUT_AGAIN_COUNT) {
            let puts = join_all(group.iter().map(|c| self.put_again(c.id)).collect()).await;
            puts.into_iter().collect::<Result<(), _>>()?;
        }
        if !are_refused {
            held_by = self.seal_under_way(&next, seal, &current).await?;
        }
        self.seal(&next.told(held_by), &current).await?;
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
        let _being_put = self.being_put(id);
        self.put_from(&segment, attempt).await
    }

    /// Reads a whole segment from any `k` fragments.
    pub(crate) async fn read_segment(&self, id: SegmentId, purpose: Purpose) -> Result<Segment, StripeError> {
        let info = self.locate(Whom::Everybody, id).await?;
        let payload = self.read_for(id, 0..info.geometry.payload_len, (Whom::Everybody, purpose)).await?;
        Ok(info.segment(id, payload))
    }

    /// An unused attempt number for a segment whose writer is gone. A store that does not answer
    /// may have a later attempt than the others. Then the number skips a random number of attempts,
    /// so that the two are not mistaken for each other.
    pub(crate) async fn next_attempt(&self, id: SegmentId) -> u16 {
        let described = self.describe_briefly(Whom::Everybody, id).await;
        let all = described.answered.len() == self.stores.len();
        let skip = if all { 0 } else { (self.host.random.next_u64() % 256) as u16 };
        described.attempt_max().map_or(0, |max| max.saturating_add(1).saturating_add(skip))
    }

    /// Gives the stores that answered the seals in force that they lack. Returns those that have
    /// all of them; the others leave service. If segments are `put_again` next, stores that did not
    /// answer do so, too. So every store that a segment of an epoch names has the seal of that
    /// epoch.
    async fn bring_up_to_date(
        &self,
        answers: &Gathered<Vec<Seal>>,
        in_force: &BTreeMap<LogId, Seal>,
        put_again: bool,
    ) -> Vec<usize> {
        let patience = self.options.put_patience();
        let give = |(at, has)| host::timeout(&*self.host.clock, patience, self.replay_seals(at, has, in_force));
        let given = join_all(answers.iter().map(|(at, has)| give((*at, has))).collect()).await;
        let taken = answers.iter().zip(given).filter(|(_, given)| matches!(given, Ok(Ok(()))));
        let current: Vec<usize> = taken.map(|((at, _), _)| *at).collect();
        let has_refused = |at: &usize| answers.iter().any(|(answered, _)| answered == at);
        let up = self.health.lock().up();
        let behind = up.into_iter().filter(|at| !current.contains(at) && (put_again || has_refused(at)));
        behind.for_each(|at| self.mark_bad(at, StoreState::Failing, "may have missed seals"));
        current
    }

    /// Seals a log at these stores, which have the seal in force, and looks whether another opener
    /// has told one of them meanwhile. Such a store may have deleted what this opening counts. From
    /// now on it deletes nothing for an earlier opener. Returns the stores that have the seal.
    async fn seal_under_way(
        &self,
        seal: &Seal,
        in_force: Option<&Seal>,
        whom: &[usize],
    ) -> Result<BTreeSet<StoreId>, StripeError> {
        let mut held_by = self.seal(seal, whom).await?;
        let holders: Vec<usize> = whom.iter().copied().filter(|at| held_by.contains(&self.stores[*at].id)).collect();
        let patience = Patience { quiet: self.options.read_patience(), busy: self.options.put_timeout };
        let asked = holders.iter().map(|&at| self.ask_briefly(at, patience, |s| s.seals()));
        for (at, seals) in holders.iter().zip(join_all(asked.collect()).await) {
            let Some(Ok(seals)) = seals else {
                // It may have been told before it took this seal.
                self.mark_bad(*at, StoreState::Failing, "did not say which seals it has");
                held_by.remove(&self.stores[*at].id);
                continue;
            };
            if newest_told(&seals).remove(&seal.log).map(|told| told.epoch) > in_force.map(|seal| seal.epoch) {
                return Err(StripeError::Fenced);
            }
        }
        if held_by.len() >= self.quorum() { Ok(held_by) } else { Err(StripeError::NotEnoughStores) }
    }

    /// Seals a log at those of these stores that answer. Succeeds if they are a quorum, and all
    /// that answer have taken exactly this seal. Returns them.
    async fn seal(&self, seal: &Seal, whom: &[usize]) -> Result<BTreeSet<StoreId>, StripeError> {
        self.health.lock().note_change();
        let patience = Patience { quiet: self.options.put_patience(), busy: self.options.put_timeout };
        let asked = whom.iter().map(|&at| self.ask_briefly(at, patience, |s| s.seal(seal.clone())));
        let answers = whom.iter().zip(join_all(asked.collect()).await);
        let mut answers: Vec<(usize, Seal)> = answers.filter_map(|(at, answer)| Some((*at, answer?.ok()?))).collect();
        if answers.len() < self.quorum() {
            let asked = self.ask_each(whom, |s| s.seal(seal.clone())).await;
            answers = asked.into_iter().filter_map(|(at, answer)| Some((at, answer.ok()?))).collect();
        }
        if answers.len() < self.quorum() {
            return Err(StripeError::NotEnoughStores);
        }
        // A store that has not taken the seal leaves service. So every store with a fragment of an
        // epoch has the seal of that epoch: a store gets missing seals before it is used again.
        let without = |at: &usize| answers.iter().all(|(sealed, _)| sealed != at);
        let up = self.health.lock().up();
        up.into_iter().filter(without).for_each(|at| self.mark_bad(at, StoreState::Failing, "did not take a seal"));
        match answers.iter().all(|(_, newest)| newest == seal) {
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
fn not_discarded(mut found: Found, seal: Option<&Seal>) -> Found {
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
mod tests;
