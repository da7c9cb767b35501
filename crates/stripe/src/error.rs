//! Why the stores, taken together, did not do what was asked.

use thiserror::Error;
use types::{LogId, SegmentId};

/// Why an operation on the stores failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StripeError {
    /// Another owner has recovered the log: this writer must stop. Never retried. Whatever was not acknowledged is *unknown*.
    #[error("the log was sealed against this writer")]
    Fenced,
    /// Too few stores answer, or take puts, for the moment. The operation is *unknown* and may be tried again.
    #[error("not enough stores are available")]
    NotEnoughStores,
    /// No store that could hold it does: the cleaner deleted the segment (ask the map again), or, if the map still points here,
    /// more stores than the redundancy covers have lost it.
    #[error("segment {0} is not on the stores")]
    SegmentNotFound(SegmentId),
    /// The segment is there, but too many of its fragments are damaged for it to be read.
    #[error("segment {0} is damaged beyond its redundancy")]
    Damaged(SegmentId),
    /// Segments that an earlier recovery had counted (up to `counted`) are no longer readable from `next_seq` on. The log is not
    /// opened, because that would discard acknowledged segments; bring the missing stores back.
    #[error("log {log} ends at seq {next_seq}, but was complete up to {counted}: bring the missing stores back")]
    LogBroken {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The last seq that was complete when the log was opened before.
        counted: u64,
    },
    /// The caller asked for something that can never succeed (range beyond the payload, payload longer than
    /// [`payload_len_max`](crate::Stripe::payload_len_max)).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}
