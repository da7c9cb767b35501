//! Finds the newest roots of a manager's log at a start, without listing the whole log.
//!
//! The newest seq of the log takes a few requests for each doubling of it. The newest root, and the
//! one to fall back to, are mostly a few segments before it. So a short stretch of the log is
//! listed, and a longer one only if that has fewer than two roots.

use crate::api::ManagerError;
use crate::roll_forward::{log_failed, root_candidates};
use stripe::Stripe;
use types::{BlockAddr, LogId, SegmentId};

/// Length of the first stretch, in seqs.
const FIRST_SPAN: u64 = 64;
/// How many times longer each further stretch is.
const SPAN_GROWTH: u64 = 16;

/// The two newest roots with seq >= `from_seq`, newest first; fewer if there are no more.
pub(crate) async fn newest_roots(
    stripe: &Stripe,
    log: LogId,
    from_seq: u64,
) -> Result<Vec<(SegmentId, BlockAddr)>, ManagerError> {
    let newest = stripe.newest_seq(log).await.map_err(|e| log_failed(log, "find the end of the manager's log", e))?;
    let mut span = FIRST_SPAN;
    loop {
        let from = newest.saturating_sub(span).max(from_seq);
        let candidates = root_candidates(stripe, log, from).await?;
        if candidates.len() == 2 || from <= from_seq.max(1) {
            return Ok(candidates);
        }
        span = span.saturating_mul(SPAN_GROWTH);
    }
}
