//! What clients that roam and their homes say to each other, and how it gets across.
//!
//! - [`channel`]: connections, as traits; [`line`]: several volumes on one of them.
//! - [`message`]: requests, answers and what is pushed; [`codec`]: how they are encoded.
//! - [`operation`]: something that a client has done and its home is to do; [`oplog`]: the
//!   operations that wait, and their optimizer; [`ranges`]: sets of bytes; [`piece`]: bytes that
//!   the home has already.
//! - [`journal`]: what changed in a volume since when; [`delegation`]: what a client may do without
//!   asking; [`lock`]: locks between mounts.

pub mod channel;
pub mod codec;
pub mod delegation;
pub mod journal;
pub mod line;
pub mod lock;
pub mod message;
pub mod operation;
pub mod oplog;
pub mod piece;
pub mod ranges;
