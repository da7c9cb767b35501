//! What was done here goes home.
//!
//! - `replay`: sends it; `dedup`: finds what of it the home has already; `seen`: waits until the
//!   home has seen it, and made it durable.
//! - [`conflict`]: what becomes of what cannot be done at home.

pub mod conflict;
pub(crate) mod dedup;
pub(crate) mod replay;
pub(crate) mod seen;
