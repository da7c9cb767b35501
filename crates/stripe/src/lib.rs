//! All stores of a file system as one: the client side of storage servers. Every writer and reader
//! of logs uses it: clients, managers and the cleaner.
//!
//! - [`Stripe`]: puts a segment by the commit rule, reads with degraded reads, deletes, recovers a
//!   log's tail, scrubs.
//! - [`LogWriter`]: keeps the order of one log: names segments, has several in flight, acknowledges
//!   them in order.
//!
//! Stores are trusted to keep what they acknowledged. Everything else may go wrong at up to `m`
//! stores at a time: errors, silence, damage, lost disks, and stores that come back with an old
//! state. Through all of it this must hold: an acknowledged segment reads back byte for byte, and
//! so does every segment before it in its log.

mod catch_up;
mod error;
mod group;
mod health;
mod layout;
mod log_tail;
mod maps;
mod mark;
mod newest;
mod put;
mod read;
mod scrub;
mod stripe;
mod survey;
mod writer;

#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod testing;

pub use error::{StoreSet, StripeError};
pub use health::{StoreHealth, StoreState};
pub use layout::SegmentInfo;
pub use log_tail::LogTail;
pub use mark::MARK_LOG;
pub use scrub::{ScrubProgress, ScrubReport};
pub use stripe::{Options, Stripe, Whom};
pub use survey::Surveyed;
pub use writer::LogWriter;
