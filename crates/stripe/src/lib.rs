//! The client side of storage servers, shared by every writer and reader of logs: clients, managers
//! and the cleaner.
//!
//! - [`Stripe`]: put a segment by the commit rule, read with degraded reads, delete, recover a
//!   log's tail, scrub.
//! - [`LogWriter`]: one log's order: names segments, keeps several in flight, acknowledges in
//!   order.
//!
//! Stores are trusted to keep what they acknowledged; everything else about them may go wrong, at
//! no more than `m` of them at a time: errors, silence, damage, lost disks, coming back with an old
//! state. What must hold through all of it: an acknowledged segment reads back byte for byte, and
//! so does every segment before it in its log.

mod catch_up;
mod error;
mod group;
mod health;
mod layout;
mod log_tail;
mod maps;
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
pub use scrub::{ScrubProgress, ScrubReport};
pub use stripe::{Options, Stripe};
pub use survey::Surveyed;
pub use writer::LogWriter;
