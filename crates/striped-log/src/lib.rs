//! Bytes only: what segments and fragments are made of. No I/O, no clock.
//!
//! - [`fragment`]: the self-describing header of a fragment and its checksums.
//! - [`geometry`]: how a payload of some length is spread over fragments, and where each byte of it
//!   went.
//! - [`parity`]: the two redundancy codes, as arithmetic on slices.
//! - [`segment`]: building a segment's payload from blocks and deltas, striping it into fragments
//!   with parity, reading it back and rebuilding lost fragments.
//! - [`tail`]: the verdict on a log's tail after a crash, from what the storage servers still hold.
//!
//! The bytes are described in `docs/disk-format.md`, and a test holds the two together.

pub mod builder;
pub mod fragment;
pub mod geometry;
pub mod parity;
pub mod segment;
pub mod tail;

#[cfg(test)]
mod testing;
