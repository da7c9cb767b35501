//! The protocol between roaming clients and their homes. No I/O.
//!
//! - [`channel`]: connections, as traits; [`line`]: several volumes on one connection.
//! - [`message`]: requests, answers and pushed messages; [`codec`]: their encoding.
//! - [`operation`]: a change that a client made and its home is to make; [`oplog`]: the operations
//!   that wait, and their optimizer; [`ranges`]: sets of bytes; [`piece`]: bytes that the home has
//!   already.
//! - [`volume_stamp`]: validates all that is cached of a volume at once; [`volume_journal`]: which
//!   files of a volume changed since a stamp.
//! - [`delegation`]: what a client may do without asking; [`lock`]: locks between mounts.

pub mod channel;
pub mod codec;
pub mod delegation;
pub mod line;
pub mod lock;
pub mod message;
pub mod operation;
pub mod oplog;
pub mod piece;
pub mod ranges;
pub mod volume_journal;
pub mod volume_stamp;
