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
use crate::newest::log_failed;
use crate::server::ManagerServer;
use std::sync::Arc;
use stripe::{LogTail, Stripe};
use types::LogId;

/// How much a roll-forward read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RollForward {
    /// Segments read.
    pub segments: u64,
    /// Deltas in them.
    pub deltas: u64,
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
    managers: &[Arc<ManagerServer>],
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
