//! The cleaner: empties segments by moving their live blocks (docs/core.md#cleaning; Dahlin 4.3).
//!
//! A victim's deltas say which blocks were put there, and the managers say which of them still are.
//! The cleaner copies these into its own log, as `Move` deltas. Once that is durable, it offers the
//! moves to the managers, which apply a move only if the block is still at its old address. Nothing
//! is locked: a client that overwrites the block meanwhile simply wins.

use crate::seat::Seat;
use bytes::Bytes;
use client::Client;
use manager::Delta;
use manager::api::{BlockAt, ManagerAdmin, ManagerError, NodeSize, SegmentDeltas};
use manager::index_node::LEAF_BLOCKS;
use manager::manager_map::ManagerMap;
use parking_lot::Mutex;
use policy::space::{Loan, Moved};
use std::collections::VecDeque;
use std::sync::Arc;
use stripe::{LogWriter, Stripe, StripeError};
use striped_log::builder::SegmentBuilder;
use striped_log::fragment::CHUNK_LEN;
use thiserror::Error;
use types::{BlockAddr, Extent, FileId, SegmentId};

/// Bytes of payload set aside for a segment's `Move` deltas.
const DELTA_ROOM: u32 = 256 * 1024;
/// Bytes of an encoded `Move`, rounded up.
const MOVE_LEN: u32 = 96;

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

/// A run of a file, its old addresses, and the address of its copy.
type Move = (FileId, Extent, BlockAddr);

/// The cleaner, with its log.
pub struct Cleaner {
    pub(crate) stripe: Arc<Stripe>,
    pub(crate) log: Arc<LogWriter>,
    pub(crate) managers: Vec<Arc<Seat>>,
    pub(crate) map: ManagerMap,
    pub(crate) client: Client,
    pub(crate) block_size: u32,
    /// Segments of the cleaner's log that not all managers have applied. One caller at a time works
    /// on them.
    pub(crate) unapplied: Mutex<VecDeque<(SegmentDeltas, Vec<Move>)>>,
}

/// A live run on its way to the cleaner's log.
struct Moving {
    file: FileId,
    from: Extent,
    bytes: Bytes,
}

impl Cleaner {
    /// Moves live blocks out of `victims`, segments of client and cleaner logs: all blocks, or
    /// those that the loan has room for.
    pub async fn clean(&self, victims: &[SegmentId], loan: &mut Loan) -> Result<Cleaned, CleanError> {
        // First apply moves that an earlier call left, so that never more than one batch waits.
        self.apply_committed().await?;
        let mut report = Cleaned::default();
        let mut batch: Vec<Moving> = Vec::new();
        let mut batch_len = 0;
        let room = self.stripe.payload_len_max() - DELTA_ROOM;
        for &victim in victims {
            report.segment_count += 1;
            for BlockAt { file, extent } in self.live_runs(victim).await? {
                for from in self.split(extent) {
                    let (offset, len) = (from.addr.offset, from.addr.len);
                    let Some(moved) = self.moved(file, from).await? else { continue };
                    if !loan.take(moved, |bytes| self.stripe.share_of(bytes)) {
                        report.is_cut_short = true;
                        self.flush(batch).await?;
                        return Ok(report);
                    }
                    if batch_len + len > room || batch.len() as u32 >= DELTA_ROOM / MOVE_LEN {
                        self.flush(std::mem::take(&mut batch)).await?;
                        batch_len = 0;
                    }
                    let bytes = self.stripe.read(victim, offset..offset + len).await?;
                    report.moved_bytes += u64::from(len);
                    batch_len += len;
                    batch.push(Moving { file, from, bytes });
                }
            }
        }
        self.flush(batch).await?;
        Ok(report)
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

    /// Writes a batch to the cleaner's log and offers the moves.
    async fn flush(&self, batch: Vec<Moving>) -> Result<(), CleanError> {
        if batch.is_empty() {
            return Ok(());
        }
        let place = self.log.begin();
        let mut builder = SegmentBuilder::new(place);
        let (full, short): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|m| (m.bytes.len() as u32).is_multiple_of(CHUNK_LEN));
        let mut moves: Vec<Move> = Vec::new();
        for m in full {
            moves.push((m.file, m.from, builder.push_full_block(m.bytes)));
        }
        for m in short {
            moves.push((m.file, m.from, builder.push_block(m.bytes)));
        }
        let deltas: Vec<Delta> = moves.iter().map(|&(file, from, to)| Delta::Move { file, from, to }).collect();
        let mut encoded = Vec::new();
        deltas.iter().for_each(|d| d.encode(&mut encoded));
        self.log.submit(builder.finish(encoded));
        let deltas = SegmentDeltas { segment: place.id, order: place.order, deltas: Arc::new(deltas) };
        self.unapplied.lock().push_back((deltas, moves));
        self.apply_committed().await
    }

    /// Offers moves to the managers, in the order of the log, once their segments are durable.
    async fn apply_committed(&self) -> Result<(), CleanError> {
        loop {
            let Some((deltas, moves)) = self.unapplied.lock().front().cloned() else { return Ok(()) };
            self.log.wait_committed(deltas.segment.seq).await?;
            for manager in &self.managers {
                manager.replay(vec![deltas.clone()]).await?;
            }
            for (file, from, to) in moves {
                self.client.moved(file, from, to);
            }
            self.unapplied.lock().pop_front();
        }
    }
}
