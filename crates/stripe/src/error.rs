//! Errors of operations on the set of stores.

use std::fmt;
use thiserror::Error;
use types::{LogId, SegmentId, StoreId};

/// A set of a file system's stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSet([u64; 4]);

impl StoreSet {
    /// The stores in it, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = StoreId> + '_ {
        (0..256).filter(|raw| self.0[usize::from(raw / 64)] >> (raw % 64) & 1 == 1).map(StoreId::new)
    }
}

impl FromIterator<StoreId> for StoreSet {
    /// Leaves out stores with numbers of 256 and more. No file system has such stores.
    fn from_iter<I: IntoIterator<Item = StoreId>>(stores: I) -> Self {
        let mut set = StoreSet::default();
        for raw in stores.into_iter().map(StoreId::raw) {
            if let Some(word) = set.0.get_mut(usize::from(raw / 64)) {
                *word |= 1 << (raw % 64);
            }
        }
        set
    }
}

impl fmt::Display for StoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.iter().map(|store| store.to_string()).collect();
        write!(f, "{}", names.join(", "))
    }
}

/// Why an operation on the stores failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StripeError {
    /// Another process has recovered the log, so this writer must stop. Never retried. Everything
    /// that was not acknowledged is *unknown*.
    #[error("the log was sealed against this writer")]
    Fenced,
    /// At the moment, too few stores answer or take puts. The operation is *unknown* and may be
    /// tried again.
    #[error("not enough stores are available")]
    NotEnoughStores,
    /// No store has the segment. Either the cleaner deleted it, and the caller must ask the
    /// managers for the new address. Or, if the managers still give this address, more stores have
    /// lost it than parity makes up for.
    #[error("segment {0} is not on the stores")]
    SegmentNotFound(SegmentId),
    /// The segment is there, but too many of its fragments are damaged to read it.
    #[error("segment {0} is damaged beyond its redundancy")]
    Damaged(SegmentId),
    /// Segments up to `counted` were durable, as an earlier recovery or a manager's checkpoint
    /// says, but they cannot be read from `next_seq` on. The log is not opened, because that would
    /// discard acknowledged segments.
    #[error("log {log} ends at seq {next_seq}, but was complete up to {counted}: bring the missing stores back")]
    LogBroken {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The last seq that was durable.
        counted: u64,
    },
    /// The log goes on up to `beyond`, behind a gap that is longer than a crash of the writer can
    /// leave: stores lost segments. The log is not opened, because that would discard the segments
    /// behind the gap.
    #[error("log {log} lost segments: it cannot be read at seq {next_seq}, but goes on up to {beyond}")]
    LogLost {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The last seq that has any fragment.
        beyond: u64,
    },
    /// It is not certain where the log ends. Its segment `next_seq` may have been on these stores,
    /// which do not answer or have lost their contents. The log is not opened, because that would
    /// discard the segment.
    #[error("log {log} may go on at seq {next_seq} on stores that do not answer or have lost their contents: {stores}")]
    StoresNeeded {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The stores that may have had the segment.
        stores: StoreSet,
    },
    /// The caller asked for something that can never succeed (range beyond the payload, payload
    /// longer than [`payload_len_max`](crate::Stripe::payload_len_max)).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

impl StripeError {
    /// True if the error is a doubt about where a log ends. The log is opened all the same if the
    /// operator [accepts the loss](crate::Options::accepts_loss).
    pub fn is_a_doubt(&self) -> bool {
        use StripeError::{LogBroken, LogLost, StoresNeeded};
        matches!(self, LogBroken { .. } | LogLost { .. } | StoresNeeded { .. })
    }
}
