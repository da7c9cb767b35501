//! The connection to the home.
//!
//! - `link`: opens and reopens the connection; [`trunk`]: shares one connection among volumes;
//!   `silence`: finds out whether a silent home is still there.
//! - [`schedule`]: which traffic uses a slow link next.
//! - `state`: the state of the link, and how it is judged.
//! - `forecast`: whether the link will soon be lost; `predisconnect`: what the client fetches
//!   before.

pub(crate) mod forecast;
pub(crate) mod link;
pub(crate) mod predisconnect;
pub mod schedule;
pub(crate) mod silence;
pub(crate) mod state;
pub mod trunk;
