//! The fringe's clients (design, section 4): they keep working over slow, intermittent or absent networks.
//!
//! - [`oplog`]: what a client has done that its home has not heard of.

pub mod oplog;
