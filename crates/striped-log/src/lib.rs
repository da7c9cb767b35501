//! The bytes of the log: segments, fragments, parity, and the verdict on a log's tail. No I/O, no
//! clock.
//!
//! - [`fragment`]: the self-describing header of a fragment, with its checksums.
//! - [`geometry`]: how a payload is spread over fragments, and where each byte of it is.
//! - [`parity`]: the two redundancy codes, as arithmetic on slices.
//! - [`builder`]: lays out blocks and deltas as the payload of a segment.
//! - [`segment`]: stripes a segment into fragments with parity, reads it back, and rebuilds lost
//!   fragments.
//! - [`tail`]: the verdict on a log's tail after a crash, from the fragments that stores still
//!   have.
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
