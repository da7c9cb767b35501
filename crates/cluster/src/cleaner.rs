//! The cleaner: empties segments by moving their live blocks (docs/core.md#cleaning; Dahlin 4.3).
//!
//! A victim's deltas say which blocks were put there, and the managers say which of them still are.
//! A copy of each goes into a log, with a `Move` delta ([`client::copies`]). Once that is durable,
//! the managers hear of it, and apply a move only if the block is still at its old address. Nothing
//! is locked: a client that overwrites the block meanwhile simply wins.
//!
//! The first node plans: it chooses the victims, asks managers what lives, and sees to the room
//! that the copies take. Other nodes copy what their own clients wrote, into these clients' logs,
//! all at the same time ([`Writers`]). The rest goes into the cleaner's log: what the first node
//! wrote, what nodes wrote that are away, what a node was asked for and did not do, and what is too
//! little for a segment of its own.

use crate::seat::Seat;
use client::Client;
use client::copies::RunBatch;
use host::{Host, join_all};
use manager::Delta;
use manager::api::{BlockAt, ManagerAdmin, ManagerError, NodeSize, SegmentDeltas};
use manager::index_node::LEAF_BLOCKS;
use manager::manager_map::ManagerMap;
use parking_lot::Mutex;
use policy::space::{Loan, Moved};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stripe::{LogWriter, Stripe, StripeError};
use thiserror::Error;
use types::{BoxFuture, Extent, FileId, LogId, SegmentId};

/// How long the cleaner copies the blocks of a log itself after its writer did not do it.
const AVOIDED_TIME: Duration = Duration::from_secs(300);
/// How long the writer of a log may copy in one step of cleaning, before the cleaner helps.
const STEP_TIME_MAX: Duration = Duration::from_secs(10);

/// The writers of logs that can be asked to copy blocks into them.
pub trait Writers: Send + Sync + 'static {
    /// The way to ask the writer of a log; `None` if it is away, or cannot be asked.
    fn writer(&self, log: LogId) -> Option<Arc<dyn Copier>>;
}

/// Who copies blocks into its own log.
pub trait Copier: Send + Sync + 'static {
    /// Moves these runs. Answers when the managers have applied that. After an error it is unknown
    /// which runs have moved, and others may move them.
    fn relocate(&self, runs: Vec<BlockAt>) -> BoxFuture<Result<(), ManagerError>>;
}

/// Why cleaning stopped. Nothing is lost: blocks that were not moved are at their old addresses.
#[derive(Debug, Error)]
pub enum CleanError {
    /// A segment could not be read or written.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// A manager did not answer.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// A segment's deltas cannot be decoded.
    #[error("segment {0}: {1}")]
    Decode(SegmentId, types::codec::DecodeError),
}

/// The result of cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Segments looked at.
    pub segment_count: u64,
    /// Live bytes copied.
    pub moved_bytes: u64,
    /// It stopped before the end of a segment because the loan was used up.
    pub is_cut_short: bool,
}

/// A segment to be emptied, and the bytes that live in it.
#[derive(Clone, Copy, Debug)]
pub struct LiveVictim {
    pub(crate) segment: SegmentId,
    pub(crate) live_bytes: u64,
}

/// The cleaner, with its log.
pub struct Cleaner {
    pub(crate) stripe: Arc<Stripe>,
    pub(crate) log: Arc<LogWriter>,
    pub(crate) managers: Vec<Arc<Seat>>,
    pub(crate) map: ManagerMap,
    pub(crate) client: Client,
    pub(crate) block_size: u32,
    pub(crate) host: Host,
    /// Who else copies, if other nodes can.
    pub(crate) writers: OnceLock<Arc<dyn Writers>>,
    /// Live bytes in the victims of a log from which on its writer is asked.
    pub(crate) writer_copies_min: u64,
    /// Logs whose writers are not asked up to this time.
    pub(crate) avoided: Mutex<BTreeMap<LogId, Duration>>,
    /// Segments of copies that other nodes have put.
    pub(crate) copied: AtomicU64,
    /// Segments of the cleaner's log that not all managers have applied.
    pub(crate) unapplied: tokio::sync::Mutex<VecDeque<SegmentDeltas>>,
}

/// Copying that is going on: the victims of one writer.
struct Copying<'a> {
    /// `None` is the cleaner itself.
    writer: Option<(LogId, Arc<dyn Copier>)>,
    /// When the cleaner begins to help.
    until: Duration,
    loan: &'a Mutex<&'a mut Loan>,
    report: Cleaned,
    batch: RunBatch,
}

impl Cleaner {
    /// Moves live blocks out of `victims`, segments of client and cleaner logs: all blocks, or
    /// those that the loan has room for.
    pub async fn clean(&self, victims: &[LiveVictim], loan: &mut Loan) -> Result<Cleaned, CleanError> {
        // First apply moves that an earlier call left, so that few batches wait.
        self.apply_committed(&mut *self.unapplied.lock().await).await?;
        let mut by_log: BTreeMap<Option<LogId>, Vec<SegmentId>> = BTreeMap::new();
        let mut writers: BTreeMap<LogId, Arc<dyn Copier>> = BTreeMap::new();
        let live_bytes = |log| victims.iter().filter(|v| v.segment.log == log).map(|v| v.live_bytes).sum::<u64>();
        let logs: BTreeSet<LogId> = victims.iter().map(|victim| victim.segment.log).collect();
        for log in logs.into_iter().filter(|log| live_bytes(*log) >= self.writer_copies_min) {
            writers.extend(self.writer(log).map(|writer| (log, writer)));
        }
        for LiveVictim { segment, .. } in victims {
            let log = Some(segment.log).filter(|log| writers.contains_key(log));
            by_log.entry(log).or_default().push(*segment);
        }
        let until = self.host.clock.now() + STEP_TIME_MAX;
        let loan = &Mutex::new(loan);
        let copying = by_log.into_iter().map(|(log, victims)| {
            let writer = log.and_then(|log| Some((log, writers.remove(&log)?)));
            let copying = Copying { writer, until, loan, report: Cleaned::default(), batch: RunBatch::default() };
            self.copy(victims, copying)
        });
        let mut all = Cleaned::default();
        for copied in join_all(copying.collect()).await {
            let Cleaned { segment_count, moved_bytes, is_cut_short } = copied?;
            all.segment_count += segment_count;
            all.moved_bytes += moved_bytes;
            all.is_cut_short |= is_cut_short;
        }
        Ok(all)
    }

    /// The writer of a log, if it can be asked.
    fn writer(&self, log: LogId) -> Option<Arc<dyn Copier>> {
        let writers = self.writers.get()?;
        let now = self.host.clock.now();
        let mut avoided = self.avoided.lock();
        avoided.retain(|_, until| now < *until);
        if avoided.contains_key(&log) { None } else { writers.writer(log) }
    }

    /// Moves the live blocks of some victims, or those that the loan has room for.
    async fn copy(&self, victims: Vec<SegmentId>, mut copying: Copying<'_>) -> Result<Cleaned, CleanError> {
        for victim in victims {
            copying.report.segment_count += 1;
            for BlockAt { file, extent } in self.live_runs(victim).await? {
                for extent in self.split(extent) {
                    let Some(moved) = self.moved(file, extent).await? else { continue };
                    if !copying.loan.lock().take(moved, |bytes| self.stripe.share_of(bytes)) {
                        copying.report.is_cut_short = true;
                        self.flush(&mut copying).await?;
                        return Ok(copying.report);
                    }
                    let (run, most) = (BlockAt { file, extent }, self.stripe.payload_len_max());
                    if !copying.batch.push(run, most) {
                        self.flush(&mut copying).await?;
                        copying.batch.push(run, most);
                    }
                    copying.report.moved_bytes += u64::from(extent.addr.len);
                }
            }
        }
        self.flush(&mut copying).await?;
        Ok(copying.report)
    }

    /// The room that moving a run takes; `None` if its file is gone.
    async fn moved(&self, file: FileId, from: Extent) -> Result<Option<Moved>, CleanError> {
        let manager = &self.managers[self.map.owner_of(file).raw() as usize];
        let size = manager.size(BlockAt { file, extent: from }).await?;
        Ok(size.map(|NodeSize { attribute_bytes, extent_count }| Moved {
            file: file.raw(),
            leaf: from.first / LEAF_BLOCKS,
            len: from.addr.len.into(),
            attribute_bytes,
            extent_count,
        }))
    }

    /// The live blocks of a segment, by the managers.
    async fn live_runs(&self, victim: SegmentId) -> Result<Vec<BlockAt>, CleanError> {
        let deltas =
            Delta::decode_all(&self.stripe.deltas(victim).await?).map_err(|e| CleanError::Decode(victim, e))?;
        let mut by_manager = vec![Vec::new(); self.managers.len()];
        for delta in deltas {
            let candidate = match delta {
                Delta::Blocks { file, extent } => BlockAt { file, extent },
                Delta::Move { file, from, to } => BlockAt { file, extent: Extent { addr: to, ..from } },
                _ => continue,
            };
            if candidate.extent.addr.segment == victim {
                by_manager[self.map.owner_of(candidate.file).raw() as usize].push(candidate);
            }
        }
        let mut live = Vec::new();
        for (manager, candidates) in self.managers.iter().zip(by_manager) {
            live.extend(manager.live(candidates).await?);
        }
        Ok(live)
    }

    /// Cuts a run into pieces that can be placed at whole chunks, and its short rest. Only runs of
    /// files have several blocks: a directory's block is never full, so it is always alone.
    fn split(&self, run: Extent) -> Vec<Extent> {
        let bs = self.block_size;
        let full = u64::from(run.addr.len / bs);
        let per_piece = u64::from((self.stripe.payload_len_max() / 4 / bs).max(1));
        let mut out = Vec::new();
        let mut at = run.first;
        while at < run.end() {
            let full_left = (run.first + full).saturating_sub(at);
            let step = full_left.min(per_piece).max(1);
            out.extend(run.slice(at, at + step, bs));
            at += step;
        }
        out
    }

    /// Has the batch copied.
    async fn flush(&self, copying: &mut Copying<'_>) -> Result<(), CleanError> {
        let batch = std::mem::take(&mut copying.batch);
        if batch.is_empty() {
            return Ok(());
        }
        if self.host.clock.now() >= copying.until {
            copying.writer = None;
        }
        if let Some((log, writer)) = &copying.writer {
            let Err(error) = writer.relocate(batch.runs().to_vec()).await else {
                self.copied.fetch_add(1, SeqCst);
                return Ok(());
            };
            tracing::info!(%log, "the writer of a log does not copy blocks, so the cleaner does: {error}");
            if error == ManagerError::Away {
                self.avoided.lock().insert(*log, self.host.clock.now() + AVOIDED_TIME);
            }
            copying.writer = None;
            // The writer may have put its copies all the same.
            let (len, run_count) = (batch.len(), batch.runs().len() as u64);
            if !copying.loan.lock().take_again(len, run_count, |bytes| self.stripe.share_of(bytes)) {
                copying.report.moved_bytes -= len;
                copying.report.is_cut_short = true;
                return Ok(());
            }
        }
        let copies = batch.read(&self.stripe).await?;
        let mut unapplied = self.unapplied.lock().await;
        let (draft, deltas) = copies.into_segment(self.log.begin());
        self.log.submit(draft);
        unapplied.push_back(deltas);
        self.apply_committed(&mut unapplied).await
    }

    /// Offers moves to the managers, in the order of the log, once their segments are durable.
    async fn apply_committed(&self, unapplied: &mut VecDeque<SegmentDeltas>) -> Result<(), CleanError> {
        while let Some(deltas) = unapplied.front() {
            self.log.wait_committed(deltas.segment.seq).await?;
            for manager in &self.managers {
                manager.replay(vec![deltas.clone()]).await?;
            }
            self.client.moved(&deltas.deltas);
            unapplied.pop_front();
        }
        Ok(())
    }
}
