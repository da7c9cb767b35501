//! Reintegration: sends home what was done here.
//!
//! - `sending`: what is known of operations that wait; `replay`: sends the log; `dedup`: finds bytes that the home has already; `seen`: waits until
//!   the home has seen operations and made them durable.
//! - [`conflict`]: handles operations that the home could not do.

pub mod conflict;
pub(crate) mod dedup;
pub(crate) mod replay;
pub(crate) mod seen;
pub(crate) mod sending;
