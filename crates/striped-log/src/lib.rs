//! Bytes only: what segments and fragments are made of. No I/O, no clock.
//!
//! - [`fragment`]: the self-describing header of a fragment and its checksums.
//! - [`segment`]: building a segment's payload from blocks and deltas, striping it into fragments with parity, reading it back
//!   and rebuilding lost fragments.
//! - [`tail`]: the verdict on a log's tail after a crash, from what the storage servers still hold.

pub mod fragment;
pub mod segment;
pub mod tail;
