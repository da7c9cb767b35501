//! Finding the newest roots of a manager's log at start, without looking at all of it.
//!
//! The stores tell the newest seq of the log in a few questions for each doubling of it. The newest
//! root, and the one to fall back to, are mostly a few segments before that, so a short stretch of
//! the log is looked at, and a longer one only if there are not two.

use crate::api::ManagerError;
use crate::roll_forward::{log_failed, root_candidates};
use stripe::Stripe;
use types::{BlockAddr, LogId, SegmentId};

/// Seqs that are looked at first.
const FIRST_SPAN: u64 = 64;
/// How much longer each further stretch is.
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
