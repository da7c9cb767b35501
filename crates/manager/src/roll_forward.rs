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
//! *Roll-forward.* A client's deltas are unconditional. A cleaner's apply only where a block is
//! still where the cleaner found it. So clients' logs are rolled forward before cleaners' logs.

use crate::Delta;
use crate::api::{Manager, ManagerError, SegmentDeltas};
use crate::newest::newest_roots;
use crate::record::{Directory, RecordKey};
use crate::root::Root;
use crate::server::{Config, Core, Server};
use crate::state::State;
use std::sync::Arc;
use stripe::{LogTail, LogWriter, Stripe, StripeError};
use thiserror::Error;
use types::codec::DecodeError;
use types::{BlockAddr, LogId, SegmentId};

/// How much a roll-forward read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RollForward {
    /// Segments read.
    pub segments: u64,
    /// Deltas in them.
    pub deltas: u64,
}

/// Why a part of a log could not be read. [`log_failed`] logs it.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Stripe(#[from] StripeError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Logs an error of a log, and makes it an error of the manager.
pub(crate) fn log_failed(log: LogId, doing: &'static str, error: impl Into<ReadError>) -> ManagerError {
    match error.into() {
        ReadError::Stripe(error) => {
            tracing::info!(%log, %error, "cannot {doing}");
            ManagerError::Stores(error)
        }
        ReadError::Decode(error) => {
            tracing::error!(%log, %error, "cannot {doing}");
            ManagerError::Log
        }
    }
}

/// Rolls one client's or cleaner's log forward for managers: reads the segments that some manager
/// has not applied, and applies them. Afterwards the log is open for a writer, and fenced against
/// the former one.
///
/// # Errors
/// [`ManagerError::Stores`] if the log, or a manager's own, cannot be read; [`ManagerError::Log`]
/// if the log has deltas that no client writes.
pub async fn roll_forward(
    stripe: &Arc<Stripe>,
    managers: &[Arc<Server>],
    log: LogId,
) -> Result<(LogTail, RollForward), ManagerError> {
    let applied = managers.iter().map(|m| m.applied(log).unwrap_or(0)).min().unwrap_or(0);
    let tail = stripe.open_log(log, applied + 1).await.map_err(|e| log_failed(log, "open a log", e))?;
    let mut done = RollForward::default();
    for &segment in &tail.segments {
        let bytes = stripe.deltas(segment).await.map_err(|e| log_failed(log, "read a log's deltas", e))?;
        let deltas = Delta::decode_all(&bytes).map_err(|e| log_failed(log, "decode a log's deltas", e))?;
        done.segments += 1;
        done.deltas += deltas.len() as u64;
        let deltas = SegmentDeltas { segment, deltas: Arc::new(deltas) };
        for manager in managers {
            manager.apply(vec![deltas.clone()]).await?;
        }
    }
    tracing::info!(%log, segments = done.segments, deltas = done.deltas, "log rolled forward");
    Ok((tail, done))
}

/// Opens a manager: restores its newest durable checkpoint, and opens its own log for writing.
pub(crate) async fn open_core(stripe: Arc<Stripe>, config: Config, from_seq_hint: u64) -> Result<Core, ManagerError> {
    let log = config.log;
    let candidates = newest_roots(&stripe, log, from_seq_hint).await?;
    let from = candidates.first().map_or(from_seq_hint, |(segment, _)| segment.seq);
    let tail = stripe.open_log(log, from).await.map_err(|e| log_failed(log, "open the manager's log", e))?;

    // A candidate counts if it is part of the opened log, or is before the part that was opened
    // (and durable by the rule above).
    let counts = |s: &SegmentId| s.seq < from || tail.segments.contains(s);
    let newest = candidates.into_iter().find(|(segment, _)| counts(segment));
    let untouched = tail.segments.first().map_or(tail.next_seq, |s| s.seq) == 1;
    if newest.is_none() && !untouched {
        tracing::error!(%log, next_seq = tail.next_seq, "the manager's log holds no checkpoint");
        return Err(ManagerError::Log);
    }

    let identity = config.identity();
    let rows_max = identity.rows_max;
    let root = match newest {
        None => None,
        Some((segment, addr)) => {
            let root = read_root(&stripe, addr, rows_max).await;
            let root = root.map_err(|e| log_failed(log, "read the newest checkpoint", e))?;
            if root.manager != config.id {
                return Err(ManagerError::BadRequest("the checkpoint is another manager's"));
            }
            if root.block_size != config.block_size {
                return Err(ManagerError::BadRequest("the file system was made with another block size"));
            }
            Some((root, segment, addr))
        }
    };
    let root_segment = root.as_ref().map(|(_, segment, _)| *segment);
    let mut state = State::new(identity, root.map(|(root, _, addr)| (root, addr)));
    let root_seq = root_segment.map_or(0, |s| s.seq);
    let after = tail.segments.iter().copied().filter(|s| s.seq > root_seq);
    for segment in root_segment.into_iter().chain(after) {
        let info = stripe.info(segment).await.map_err(|e| log_failed(log, "read the manager's log", e))?;
        state.keep_own_segment(segment, info.geometry.payload_len);
    }
    let writer = LogWriter::new(stripe.clone(), tail);
    Ok(Core::new(config, stripe, writer, state))
}

/// Segments of the own log that have a root, newest first, with the root's address: the newest, and
/// the one to fall back to. A segment is not part of the log if a later epoch has one at the same
/// seq or before: recovery cut the log there.
///
/// If a newest segment cannot be read, it is passed over only if it is certain that it was never
/// complete. The segments that an older root points at may be deleted since, and going on from
/// there would discard the log behind the gaps.
pub(crate) async fn root_candidates(
    stripe: &Stripe,
    log: LogId,
    from_seq: u64,
) -> Result<Vec<(SegmentId, BlockAddr)>, ManagerError> {
    let listed = stripe.log_segments(log, from_seq).await;
    let mut own = listed.map_err(|e| log_failed(log, "list the manager's log", e))?;
    own.sort_unstable_by_key(|s| (s.seq, s.epoch));
    let mut epoch_so_far = 0;
    own.retain(|s| {
        epoch_so_far = epoch_so_far.max(s.epoch);
        s.epoch == epoch_so_far
    });
    // If two segments have the same seq, the one of the later epoch counts.
    own.reverse();
    own.dedup_by_key(|s| s.seq);

    let mut candidates = Vec::new();
    for segment in own {
        match find_root(stripe, segment).await {
            Ok(Some(addr)) => candidates.push((segment, addr)),
            Ok(None) => {}
            // The segment is older than a readable root, so it may be the remains of a deletion.
            Err(_) if !candidates.is_empty() => break,
            Err(ReadError::Stripe(error)) => match stripe.is_torn(segment).await {
                Ok(true) => {}
                Ok(false) => return Err(log_failed(log, "read the newest segments of the manager's log", error)),
                Err(error) => return Err(log_failed(log, "read the newest segments of the manager's log", error)),
            },
            Err(error @ ReadError::Decode(_)) => return Err(log_failed(log, "read the manager's log", error)),
        }
        if candidates.len() == 2 {
            break;
        }
    }
    Ok(candidates)
}

/// The address of the root in a segment, if it has one.
async fn find_root(stripe: &Stripe, segment: SegmentId) -> Result<Option<BlockAddr>, ReadError> {
    let directory = Directory::decode(&stripe.deltas(segment).await?)?;
    Ok(directory.records(segment).find(|(key, _)| *key == RecordKey::Root).map(|(_, addr)| addr))
}

/// Reads a root.
async fn read_root(stripe: &Stripe, addr: BlockAddr, rows_max: usize) -> Result<Root, ReadError> {
    let record = stripe.read(addr.segment, addr.offset..addr.offset + addr.len).await?;
    Ok(Root::decode(&record, rows_max)?)
}
