//! The connection to the home.
//!
//! - `link`: keeps the connection; [`trunk`]: shares one among volumes; `silence`: finds out
//!   whether a silent home is still there.
//! - [`schedule`]: who uses a slow link next.
//! - `forecast`: whether the link will soon be lost; `predisconnect`: what is fetched before.

pub(crate) mod forecast;
pub(crate) mod link;
pub(crate) mod predisconnect;
pub mod schedule;
pub(crate) mod silence;
pub mod trunk;
