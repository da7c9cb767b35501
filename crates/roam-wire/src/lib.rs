//! What clients that roam and their homes say to each other, and how it gets across.
//!
//! - [`channel`]: connections, as traits.

pub mod channel;
