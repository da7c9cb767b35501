//! Copies of live blocks, on their way from segments that are to be emptied into a log
//! (docs/core.md#cleaning; Dahlin 4.3).
//!
//! Copies of live blocks go into the cleaner's log, or into that of a client, with `Move` deltas.
//! Managers apply a move only if the block is still at its old address. So whoever copies needs no
//! token: a client that changes the block meanwhile simply wins. If a block is copied twice, one of
//! the copies is dead.

use crate::Client;
use bytes::Bytes;
use manager::Delta;
use manager::api::{BlockAt, ManagerError, SegmentDeltas};
use manager::extents::well_formed;
use manager::planted::{self, Bug};
use std::sync::Arc;
use std::time::Duration;
use stripe::{Stripe, StripeError};
use striped_log::builder::{LogPlace, SegmentBuilder, SegmentDraft};
use striped_log::fragment::CHUNK_LEN;
use types::{BlockAddr, Extent, FileId};

/// Bytes of payload set aside for a segment's `Move` deltas.
const DELTA_ROOM: u32 = 256 * 1024;
/// Bytes of an encoded `Move`, rounded up.
const MOVE_LEN: u32 = 96;
/// How long a client may take to read what it is to copy.
const READ_TIME_MAX: Duration = Duration::from_secs(5);
/// How long it waits for the managers to apply the moves.
const APPLY_TIME_MAX: Duration = Duration::from_secs(30);

/// Live runs that fit into one segment of copies.
#[derive(Clone, Debug, Default)]
pub struct RunBatch {
    runs: Vec<BlockAt>,
    /// Bytes of all runs.
    len: u64,
}

impl RunBatch {
    /// Takes a run in. Returns false, and leaves it out, if there is no room: `payload_len_max` is
    /// the most bytes of payload in a segment.
    pub fn push(&mut self, run: BlockAt, payload_len_max: u32) -> bool {
        let len = self.len + u64::from(run.extent.addr.len);
        let room = u64::from(payload_len_max.saturating_sub(DELTA_ROOM));
        let fits = len <= room && self.runs.len() < (DELTA_ROOM / MOVE_LEN) as usize;
        if fits {
            self.runs.push(run);
            self.len = len;
        }
        fits
    }

    /// True if there is no run.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes of all runs.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The runs.
    pub fn runs(&self) -> &[BlockAt] {
        &self.runs
    }

    /// Reads the runs. Those that lie together in a segment are read at once.
    pub async fn read(mut self, stripe: &Stripe) -> Result<Copies, StripeError> {
        self.runs.sort_by_key(|run| (run.extent.addr.segment, run.extent.addr.offset));
        let mut copies = Vec::with_capacity(self.runs.len());
        for together in self.runs.chunk_by(|a, b| is_near(&a.extent.addr, &b.extent.addr)) {
            let Some(BlockAddr { segment, offset, .. }) = together.first().map(|run| run.extent.addr) else { continue };
            let end = together.iter().map(|run| run.extent.addr.offset + run.extent.addr.len).max();
            let bytes = stripe.read(segment, offset..end.unwrap_or(offset)).await?;
            copies.extend(together.iter().map(|&BlockAt { file, extent }| {
                let start = (extent.addr.offset - offset) as usize;
                CopiedRun { file, from: extent, bytes: bytes.slice(start..start + extent.addr.len as usize) }
            }));
        }
        Ok(Copies(copies))
    }
}

/// True if `next` begins where a run ends, but for the gap that aligns it.
fn is_near(run: &BlockAddr, next: &BlockAddr) -> bool {
    let end = run.offset + run.len;
    run.segment == next.segment && (end..end.saturating_add(CHUNK_LEN)).contains(&next.offset)
}

/// A copy of a run.
struct CopiedRun {
    file: FileId,
    /// Where the run is.
    from: Extent,
    bytes: Bytes,
}

/// Copies of runs, for one segment.
pub struct Copies(Vec<CopiedRun>);

impl Copies {
    /// A segment of the copies, and its deltas.
    pub fn into_segment(self, place: LogPlace) -> (SegmentDraft, SegmentDeltas) {
        let mut builder = SegmentBuilder::new(place);
        let (full, short): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|copy| (copy.bytes.len() as u32).is_multiple_of(CHUNK_LEN));
        let mut deltas = Vec::with_capacity(full.len() + short.len());
        for CopiedRun { file, from, bytes } in full {
            deltas.push(Delta::Move { file, from, to: builder.push_full_block(bytes) });
        }
        for CopiedRun { file, from, bytes } in short {
            deltas.push(Delta::Move { file, from, to: builder.push_block(bytes) });
        }
        if planted::is(Bug::CopiesCountAlways) {
            for delta in &mut deltas {
                if let Delta::Move { file, from, to } = *delta {
                    *delta = Delta::Blocks { file, extent: Extent { addr: to, ..from } };
                }
            }
        }
        let mut encoded = Vec::new();
        deltas.iter().for_each(|delta| delta.encode(&mut encoded));
        let deltas = SegmentDeltas { segment: place.id, order: place.order, deltas: Arc::new(deltas) };
        (builder.finish(encoded), deltas)
    }
}

impl Client {
    /// Moves live runs into the client's own log. Returns when the managers have applied that. The
    /// caller has made sure that there is room on the stores.
    ///
    /// # Errors
    /// If the runs cannot be read, or not soon, are malformed, or are too many for a segment; if
    /// the client or its log is over. [`ManagerError::Away`] if the managers do not apply the moves
    /// soon: some runs may move all the same.
    pub async fn relocate(&self, runs: Vec<BlockAt>) -> Result<(), ManagerError> {
        let (core, mut batch) = (&self.core, RunBatch::default());
        let (clock, block_size) = (&*core.host.clock, core.config.block_size);
        if !runs.iter().all(|run| well_formed(&run.extent, block_size)) {
            return Err(ManagerError::BadRequest("misfit runs"));
        }
        if !runs.into_iter().all(|run| batch.push(run, core.stripe.payload_len_max())) {
            return Err(ManagerError::BadRequest("more runs than a segment has room for"));
        }
        if batch.is_empty() {
            return Ok(());
        }
        // Who asked does not wait for long. Copies that come later would take room from others.
        let copies = host::timeout(clock, READ_TIME_MAX, batch.read(&core.stripe)).await;
        let copies = copies.map_err(|_| ManagerError::Away)?.map_err(ManagerError::Stores)?;
        let deltas = {
            let mut state = core.state.lock();
            if core.is_over() || state.is_sealed || core.log.ended().is_some() {
                return Err(ManagerError::Expelled);
            }
            // What changed before goes into the next segment, as the client has noted.
            let is_cut = !planted::is(Bug::CopiesAreNoCut);
            if is_cut {
                core.cut(&mut state);
            }
            let (draft, deltas) = copies.into_segment(core.log.begin());
            state.unapplied.insert(deltas.segment.seq, deltas.clone());
            if is_cut {
                state.last_cut = deltas.segment.seq;
            }
            core.log.submit(draft);
            deltas
        };
        tracing::debug!(runs = deltas.deltas.len(), segment = %deltas.segment, "copies for the cleaner");
        let applied = host::timeout(clock, APPLY_TIME_MAX, core.wait_applied(deltas.segment.seq)).await;
        applied.map_err(|_| ManagerError::Away)?;
        if core.is_over() {
            return Err(ManagerError::Expelled);
        }
        self.moved(&deltas.deltas);
        Ok(())
    }

    /// Tells the client that blocks have moved. Blocks that are no longer at the old place do not
    /// change.
    pub fn moved(&self, deltas: &[Delta]) {
        let block_size = self.core.config.block_size;
        let mut state = self.core.state.lock();
        for delta in deltas {
            let Delta::Move { file, from, to } = delta else { continue };
            let Some(inode) = state.inodes.get_mut(file) else { continue };
            for b in from.first..from.end() {
                let (Some(old), Some(here)) = (from.slice(b, b + 1, block_size), inode.map.block(b)) else { continue };
                if here == old.addr {
                    let offset = to.offset + (old.addr.offset - from.addr.offset);
                    let addr = BlockAddr { segment: to.segment, offset, len: here.len };
                    inode.map.set(Extent { first: b, count: 1, addr });
                }
            }
        }
    }
}
