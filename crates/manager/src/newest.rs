//! Finds the newest roots of a manager's log at a start, without listing the whole log.
//!
//! The newest seq of the log takes a few requests for each doubling of it. The newest root, and the
//! one to fall back to, are mostly a few segments before it. So a short stretch of the log is
//! listed, and a longer one only if that has fewer than two roots.

use crate::api::ManagerError;
use crate::record::{RecordDirectory, RecordKey};
use std::time::Duration;
use stripe::{Stripe, StripeError};
use thiserror::Error;
use types::codec::DecodeError;
use types::{BlockAddr, LogId, SegmentId};

/// How often a segment is looked at that cannot be read, if the operator accepts a loss.
const LOOKS: usize = 5;
/// Time between two such looks.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Length of the first stretch, in seqs.
const FIRST_SPAN: u64 = 64;
/// How many times longer each further stretch is.
const SPAN_GROWTH: u64 = 16;

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

/// Segments of the own log that have a root, newest first, with the root's address: the newest, and
/// the one to fall back to. A segment is not part of the log if a later epoch has one at the same
/// seq or before: recovery cut the log there.
///
/// If a newest segment cannot be read, it is passed over only if it is certain that it was never
/// complete, or if the operator accepts the loss. The segments that an older root points at may be
/// deleted since, and going on from there would discard the log behind the gaps.
async fn root_candidates(
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
        match find_root_patiently(stripe, segment).await {
            Ok(Some(addr)) => candidates.push((segment, addr)),
            Ok(None) => {}
            // The segment is older than a readable root, so it may be the remains of a deletion.
            Err(_) if !candidates.is_empty() => break,
            Err(ReadError::Stripe(error)) => match stripe.is_torn(segment).await {
                Ok(true) => {}
                Ok(false) if stripe.accepts_loss() => {
                    tracing::warn!(%log, %segment, %error, "a segment is passed over, since the operator accepts the loss");
                }
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

/// As [`find_root`]. If the operator accepts a loss, what cannot be read again and again is lost,
/// and what fails once is not.
async fn find_root_patiently(stripe: &Stripe, segment: SegmentId) -> Result<Option<BlockAddr>, ReadError> {
    let mut found = find_root(stripe, segment).await;
    for _ in 1..LOOKS {
        if !stripe.accepts_loss() || !matches!(found, Err(ReadError::Stripe(_))) {
            break;
        }
        stripe.host().clock.sleep(LOOK_PERIOD).await;
        found = find_root(stripe, segment).await;
    }
    found
}

/// The address of the root in a segment, if it has one.
async fn find_root(stripe: &Stripe, segment: SegmentId) -> Result<Option<BlockAddr>, ReadError> {
    let directory = RecordDirectory::decode(&stripe.deltas(segment).await?)?;
    Ok(directory.records(segment).find(|(key, _)| *key == RecordKey::Root).map(|(_, addr)| addr))
}
