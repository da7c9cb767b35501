//! Managers: who controls which file, where its blocks are, and who may cache or modify it (design, section 3.3).
//!
//! What others use:
//! - [`api`]: what clients and cleaners ask of a manager.
//! - [`map`]: which manager serves which file.
//! - [`server`], [`recovery`]: a manager, and how its memory comes back after a crash.
//! - [`extents`]: a file's map from blocks to log addresses; clients use it too.
//!
//! Decisions, pure:
//! - [`state`]: all of a manager's memory; [`apply`] changes it, [`snapshot`] says what a checkpoint writes.
//! - [`tokens`]: who holds which token.
//! - [`frontier`]: which index numbers were handed out.
//! - [`index_node`], [`imap`], [`usage`]: a manager's knowledge of files, of where that is stored, and of live bytes.
//! - `changes`: the names of segments whose counts changed, for the follower of a manager.
//! - [`record`], [`root`]: the records of a manager's own log.
//!
//! Plumbing: [`server`], [`recovery`], [`audit`] and the writing of checkpoints.

pub mod api;
pub mod apply;
pub mod audit;
mod changes;
mod checkpoint;
pub mod extents;
pub mod frontier;
pub mod imap;
pub mod index_node;
pub mod map;
pub mod record;
pub mod recovery;
pub mod root;
pub mod server;
pub mod snapshot;
pub mod state;
pub mod tokens;
pub mod usage;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use map::ManagerMap;
pub use recovery::{RollForward, roll_forward};
pub use server::{Config, Server};
