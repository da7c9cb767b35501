//! The fringe's clients (design, section 4): they keep working over slow, intermittent or absent networks.
//!
//! - [`replica`]: what a client knows and has done; [`oplog`]: what of that its home has not heard of; [`conflict`]: what becomes of what
//!   cannot be done at home. All pure.

pub mod conflict;
pub mod oplog;
pub mod replica;
