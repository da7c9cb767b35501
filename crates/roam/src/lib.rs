//! The fringe (design, section 4): homes that export a file system to clients that come and go, and these clients.
//!
//! - [`journal`]: what changed in a volume since when.

pub mod journal;
