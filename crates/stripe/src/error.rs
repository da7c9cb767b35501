//! Why the stores, taken together, did not do what was asked.

use std::fmt;
use thiserror::Error;
use types::{LogId, SegmentId, StoreId};

/// Some of a file system's stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSet([u64; 4]);

impl StoreSet {
    /// The stores in it, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = StoreId> + '_ {
        (0..256).filter(|raw| self.0[usize::from(raw / 64)] >> (raw % 64) & 1 == 1).map(StoreId::new)
    }
}

impl FromIterator<StoreId> for StoreSet {
    /// Stores with numbers of 256 and more, which no file system has, are left out.
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
    /// Another owner has recovered the log: this writer must stop. Never retried. Whatever was not
    /// acknowledged is *unknown*.
    #[error("the log was sealed against this writer")]
    Fenced,
    /// Too few stores answer, or take puts, for the moment. The operation is *unknown* and may be
    /// tried again.
    #[error("not enough stores are available")]
    NotEnoughStores,
    /// No store that could hold it does: the cleaner deleted the segment (ask the map again), or,
    /// if the map still points here, more stores than the redundancy covers have lost it.
    #[error("segment {0} is not on the stores")]
    SegmentNotFound(SegmentId),
    /// The segment is there, but too many of its fragments are damaged for it to be read.
    #[error("segment {0} is damaged beyond its redundancy")]
    Damaged(SegmentId),
    /// Segments that an earlier recovery had counted (up to `counted`) are no longer readable from
    /// `next_seq` on. The log is not opened, because that would discard acknowledged segments;
    /// bring the missing stores back.
    #[error("log {log} ends at seq {next_seq}, but was complete up to {counted}: bring the missing stores back")]
    LogBroken {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The last seq that was complete when the log was opened before.
        counted: u64,
    },
    /// The log goes on at `beyond`, and what is missing before it is more than a writer that died
    /// can have left incomplete: stores lost segments. The log is not opened, because that would
    /// discard those behind the gap.
    #[error("log {log} lost segments: it cannot be read at seq {next_seq}, but goes on up to {beyond}")]
    LogLost {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The last seq of which something is there.
        beyond: u64,
    },
    /// It is not known where the log ends: its segment `next_seq` may have been on these stores,
    /// which do not answer, or have lost what they had. The log is not opened, because that would
    /// discard the segment.
    #[error("log {log} may go on at seq {next_seq} on stores that do not answer or have lost their contents: {stores}")]
    StoresNeeded {
        /// The log.
        log: LogId,
        /// The first seq that cannot be read.
        next_seq: u64,
        /// The stores.
        stores: StoreSet,
    },
    /// The caller asked for something that can never succeed (range beyond the payload, payload
    /// longer than [`payload_len_max`](crate::Stripe::payload_len_max)).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

impl StripeError {
    /// True if it is about where a log ends, so that the log is opened when the operator [accepts
    /// the loss](crate::Options::accepts_loss).
    pub fn is_a_doubt(&self) -> bool {
        matches!(self, StripeError::LogLost { .. } | StripeError::StoresNeeded { .. })
    }
}
