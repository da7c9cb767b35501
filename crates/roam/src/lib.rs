//! The fringe (design, section 4): homes that export a file system to clients that come and go, and these clients.
//!
//! - [`journal`]: what changed in a volume since when.
//! - [`oplog`]: what a client has done that its home has not heard of; [`operation`]: one such thing; [`ranges`]: sets of bytes.

pub mod journal;
pub mod operation;
pub mod oplog;
pub mod ranges;
