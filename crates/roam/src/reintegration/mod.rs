//! Reintegration: sends home what was done here.
//!
//! - `sending`: what is known of operations that wait; `seen`: which of them the home has seen;
//!   `set_aside`: the contents that go with them.
//! - `replay`: sends the log; `harvest`: takes in the answers; `dedup`: finds bytes that the home
//!   has already.

pub(crate) mod dedup;
pub(crate) mod harvest;
pub(crate) mod replay;
pub(crate) mod seen;
pub(crate) mod sending;
pub(crate) mod set_aside;
