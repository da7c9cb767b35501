//! Recovery: the newest checkpoint from the manager's own log, then roll-forward of the clients'
//! and cleaners' logs.
//!
//! *The newest checkpoint.* Old segments of the own log are deleted anywhere, so the log is not a
//! chain that could be followed from its beginning. But a root is put only after all segments
//! before it are durable, and cleaners see the segment with the newest durable root, and all after
//! it, as fully live. So the log is whole from the newest root that can be read, and is opened from
//! there. A root that only a store with an old state still shows does not count: the opened log
//! must contain it.
//!
//! *Roll-forward.* Of two clients' changes to one thing, the later one is in the segment with the
//! higher order ([`striped_log::builder::LogPlace`]). So clients' logs are merged by order. A
//! manager skips the segments that its checkpoint covers. Of all changes to one thing, these are
//! the first ones: a client may change a thing only when the manager has applied what others
//! changed. So the merge brings the rest in its order. Segments of older programs have order 0.
//! Only one client wrote such segments, and the merge keeps the order of each log.
//!
//! The log of a client that goes on is read up to the position that the client names. What it makes
//! durable later, it tells the managers itself. No other client has changed these things: this one
//! still holds its tokens, and no token moves before the managers serve. Moves can come at any
//! time.
//!
//! Moves apply only where a block is still where a cleaner found it; all other deltas are
//! unconditional. Clients' logs have moves, too. A block's contents are those that its last other
//! delta gave it, since a move only copies them. So the place of a move in the order decides only
//! which copy counts, and none that counts is missing: if a delta that is applied here names a
//! segment, not all checkpoints cover that segment, so nobody has deleted it. And what a checkpoint
//! names is deleted only after a delta that this applies, too, has moved or replaced it.

use crate::Delta;
use crate::api::{ManagerAdmin, ManagerError, Progress, SegmentDeltas};
use crate::newest::{ReadError, log_failed};
use crate::planted::{self, Bug};
use host::join_all;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::slice::Iter;
use std::sync::Arc;
use stripe::{LogTail, Stripe, StripeError};
use types::{LogId, SegmentId};

/// The log of a client or a cleaner, for [`roll_forward_all`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriterLog {
    /// Its writer is gone, or is to be fenced.
    Ended(LogId),
    /// Its writer goes on, and keeps its tokens.
    Living(LivingLog),
    /// It is only read. If it was opened after the epoch, that is an error.
    ReadOnly(LivingLog),
}

/// How far a log is to be read that is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LivingLog {
    /// The log.
    pub log: LogId,
    /// The epoch of its writer.
    pub epoch: u32,
    /// The writer says that all segments up to this seq are durable.
    pub committed_seq: u64,
}

impl WriterLog {
    /// The log.
    pub fn id(&self) -> LogId {
        match self {
            WriterLog::Ended(log)
            | WriterLog::Living(LivingLog { log, .. })
            | WriterLog::ReadOnly(LivingLog { log, .. }) => *log,
        }
    }
}

/// How much a roll-forward read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RollForward {
    /// Segments read.
    pub segments: u64,
    /// Deltas in them.
    pub deltas: u64,
}

/// Logs that were rolled forward together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RolledForward {
    /// How much was read.
    pub read: RollForward,
    tails: BTreeMap<LogId, LogTail>,
}

impl RolledForward {
    /// True if the log is open for a new writer.
    pub fn is_open(&self, log: LogId) -> bool {
        self.tails.contains_key(&log)
    }

    /// Takes out all tails that were not taken.
    pub fn rest(&mut self) -> impl Iterator<Item = LogTail> + use<> {
        std::mem::take(&mut self.tails).into_values()
    }

    /// Takes out the tail of an opened log, for its writer.
    ///
    /// # Errors
    /// [`ManagerError::BadRequest`] if the log was not rolled forward, or its tail is taken.
    pub fn take(&mut self, log: LogId) -> Result<LogTail, ManagerError> {
        self.tails.remove(&log).ok_or(ManagerError::BadRequest("the log was not rolled forward"))
    }
}

/// Rolls one client's or cleaner's log forward for managers: reads the segments that some manager
/// has not applied, and applies them. Afterwards the log is open for a writer, and fenced against
/// the former one.
///
/// If managers have not applied everything in other clients' logs yet, none of it may concern the
/// things that this log changes. That is so while the owner of this log, alive or dead, still holds
/// its tokens. Moves of others' blocks need no token: they may be applied at any time. After a
/// crash of managers use [`roll_forward_all`].
///
/// # Errors
/// [`ManagerError::Stores`] if the log, or a manager's own, cannot be read; [`ManagerError::Log`]
/// if the log has deltas that no client writes.
pub async fn roll_forward<M: ManagerAdmin + ?Sized>(
    stripe: &Arc<Stripe>,
    managers: &[Arc<M>],
    log: LogId,
) -> Result<(LogTail, RollForward), ManagerError> {
    let mut replay = Replay::new(stripe, managers).await?;
    let tail = replay.open(log).await?;
    replay.merge(&[tail.segments.as_slice()]).await?;
    let order = replay.order().await?;
    Ok((finished(tail, order), replay.read))
}

/// Rolls the logs of all clients and cleaners forward, for managers that were just opened. Each log
/// is named once. Reads one segment at a time. Afterwards the logs are open for writers, and fenced
/// against the former ones. Living logs go on as they are, unless they were opened after the epoch
/// that their writer names: such a log is opened like one that has ended.
///
/// # Errors
/// As [`roll_forward`]. Some logs may be open then, and some of their segments applied; the whole
/// can be tried again.
pub async fn roll_forward_all<M: ManagerAdmin + ?Sized>(
    stripe: &Arc<Stripe>,
    managers: &[Arc<M>],
    clients: &[WriterLog],
    cleaners: &[WriterLog],
) -> Result<RolledForward, ManagerError> {
    let mut replay = Replay::new(stripe, managers).await?;
    let (mut tails, of_clients) = replay.open_all(clients).await?;
    let logs: Vec<&[SegmentId]> = of_clients.iter().map(|(_, segments)| segments.as_slice()).collect();
    match planted::is(Bug::LivingLogsComeLast) {
        true => {
            let (living, ended): (Vec<_>, Vec<_>) = of_clients.iter().partition(|(is_living, _)| *is_living);
            for some in [ended, living] {
                replay.merge(&some.iter().map(|(_, segments)| segments.as_slice()).collect::<Vec<_>>()).await?;
            }
        }
        false => replay.merge(&logs).await?,
    }
    let (of_cleaners, segments) = replay.open_all(cleaners).await?;
    replay.merge(&segments.iter().map(|(_, segments)| segments.as_slice()).collect::<Vec<_>>()).await?;
    tails.extend(of_cleaners);
    let order = replay.order().await?;
    let tails = tails.into_iter().map(|tail| (tail.log, finished(tail, order))).collect();
    Ok(RolledForward { read: replay.read, tails })
}

/// A roll-forward that is going on.
struct Replay<'a, M: ?Sized> {
    stripe: &'a Arc<Stripe>,
    managers: &'a [Arc<M>],
    /// What each manager had applied at the beginning.
    progress: Vec<Progress>,
    /// The lost segments of opened logs, with the logs' epochs.
    lost: BTreeMap<LogId, (u32, VecDeque<Range<u64>>)>,
    read: RollForward,
}

/// The next segment of a log, and those after it.
struct Rest<'a> {
    next: SegmentId,
    after: Iter<'a, SegmentId>,
}

async fn progress<M: ManagerAdmin + ?Sized>(managers: &[Arc<M>]) -> Result<Vec<Progress>, ManagerError> {
    let asked = managers.iter().map(|manager| manager.progress().into_future()).collect();
    join_all(asked).await.into_iter().collect()
}

impl<'a, M: ManagerAdmin + ?Sized> Replay<'a, M> {
    async fn new(stripe: &'a Arc<Stripe>, managers: &'a [Arc<M>]) -> Result<Self, ManagerError> {
        let progress = progress(managers).await?;
        Ok(Replay { stripe, managers, progress, lost: BTreeMap::new(), read: RollForward::default() })
    }

    /// The first segment of a log that some manager has not applied.
    fn first_unapplied(&self, log: LogId) -> u64 {
        self.progress.iter().map(|progress| progress.of(log)).min().unwrap_or(0) + 1
    }

    /// Opens the logs that have ended, and follows those that go on. Returns the tails of the
    /// former, and for each log whether it goes on, and the segments to apply.
    async fn open_all(
        &mut self,
        logs: &[WriterLog],
    ) -> Result<(Vec<LogTail>, Vec<(bool, Vec<SegmentId>)>), ManagerError> {
        let (mut tails, mut all) = (Vec::new(), Vec::new());
        for log in logs {
            match self.follow(log).await? {
                Some(segments) => all.push((true, segments)),
                None => {
                    let tail = self.open(log.id()).await?;
                    all.push((false, tail.segments.clone()));
                    tails.push(tail);
                }
            }
        }
        Ok((tails, all))
    }

    /// Opens a log at the first segment that some manager has not applied. What any of them has
    /// applied was durable.
    async fn open(&mut self, log: LogId) -> Result<LogTail, ManagerError> {
        let through = self.progress.iter().map(|progress| progress.of(log)).max().unwrap_or(0);
        let opened = self.stripe.open_log_through(log, self.first_unapplied(log), through).await;
        let tail = opened.map_err(|e| log_failed(log, "open a log", e))?;
        if !tail.lost.is_empty() {
            self.lost.insert(log, (tail.epoch, tail.lost.clone().into()));
        }
        Ok(tail)
    }

    /// Has the managers pass over the lost segments of a log before a seq, so that they take the
    /// ones behind them.
    async fn pass_over_lost(&mut self, log: LogId, before: u64) -> Result<(), ManagerError> {
        let Some((epoch, lost)) = self.lost.get_mut(&log) else { return Ok(()) };
        while let Some(gap) = lost.pop_front_if(|gap| gap.end <= before) {
            let nothing = |seq| {
                let segment = SegmentId { log, epoch: *epoch, seq };
                SegmentDeltas { segment, order: 0, deltas: Arc::default() }
            };
            let all: Vec<SegmentDeltas> = gap.map(nothing).collect();
            for manager in self.managers {
                manager.replay(all.clone()).await?;
            }
        }
        Ok(())
    }

    /// The segments of a living log that some manager has not applied; `None` if the log has ended.
    async fn follow(&self, log: &WriterLog) -> Result<Option<Vec<SegmentId>>, ManagerError> {
        let (LivingLog { log, epoch, committed_seq }, may_end) = match *log {
            WriterLog::Ended(_) => return Ok(None),
            WriterLog::Living(living) => (living, true),
            WriterLog::ReadOnly(closed) => (closed, false),
        };
        match self.stripe.follow_log(log, self.first_unapplied(log), epoch, committed_seq).await {
            Ok(segments) => {
                tracing::debug!(%log, segments = segments.len(), "a living log is rolled forward");
                Ok(Some(segments))
            }
            Err(StripeError::Fenced) if may_end => Ok(None),
            Err(e) => Err(log_failed(log, "read a living log", e)),
        }
    }

    /// Applies all segments of several logs by order, and those with the same order by log.
    async fn merge(&mut self, logs: &[&[SegmentId]]) -> Result<(), ManagerError> {
        let mut rests = BTreeMap::new();
        for segments in logs {
            self.await_turn(&mut rests, segments.iter()).await?;
        }
        while let Some(((order, _), Rest { next, after })) = rests.pop_first() {
            self.pass_over_lost(next.log, next.seq).await?;
            self.apply(next, order).await?;
            self.await_turn(&mut rests, after).await?;
        }
        for log in self.lost.keys().copied().collect::<Vec<_>>() {
            self.pass_over_lost(log, u64::MAX).await?;
        }
        Ok(())
    }

    /// Has the next segment of a log, if there is one, wait for its turn.
    async fn await_turn<'b>(
        &self,
        rests: &mut BTreeMap<(u64, LogId), Rest<'b>>,
        mut after: Iter<'b, SegmentId>,
    ) -> Result<(), ManagerError> {
        if let Some(&next) = after.next() {
            let info = self.stripe.info(next).await.map_err(|e| unreadable(next, e))?;
            rests.insert((info.order, next.log), Rest { next, after });
        }
        Ok(())
    }

    /// Reads one segment and applies its deltas at all managers.
    async fn apply(&mut self, segment: SegmentId, order: u64) -> Result<(), ManagerError> {
        let bytes = self.stripe.deltas(segment).await.map_err(|e| unreadable(segment, e))?;
        let deltas = Delta::decode_all(&bytes).map_err(|e| log_failed(segment.log, "decode a log's deltas", e))?;
        self.read.segments += 1;
        self.read.deltas += deltas.len() as u64;
        let deltas = SegmentDeltas { segment, order, deltas: Arc::new(deltas) };
        for manager in self.managers {
            manager.replay(vec![deltas.clone()]).await?;
        }
        Ok(())
    }

    /// The highest order that any manager knows. The segments of an opened log may all be deleted
    /// by now; the managers' checkpoints cover what they had.
    async fn order(&self) -> Result<u64, ManagerError> {
        Ok(progress(self.managers).await?.iter().map(|progress| progress.order).max().unwrap_or(0))
    }
}

/// A tail after the roll-forward: managers know orders up to `order`.
fn finished(tail: LogTail, order: u64) -> LogTail {
    let order = order.max(tail.order);
    tracing::info!(log = %tail.log, segments = tail.segments.len(), order, "log rolled forward");
    LogTail { order, ..tail }
}

fn unreadable(segment: SegmentId, error: impl Into<ReadError>) -> ManagerError {
    log_failed(segment.log, "read a log's deltas", error)
}
