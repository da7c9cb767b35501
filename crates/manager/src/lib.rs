//! Managers: who controls which file, where its blocks are, and who may cache or modify it
//! (docs/core.md#manager).
//!
//! What others use:
//! - [`api`]: what clients and cleaners ask of a manager.
//! - [`manager_map`]: which manager serves which file.
//! - [`server`], [`roll_forward`](mod@roll_forward): a manager, and how its memory comes back after
//!   a crash.
//! - [`delta`], [`inode`], [`token`]: what commits say of files, what is stored of a file, and what
//!   a token covers.
//! - [`extents`]: a file's map from blocks to log addresses; clients use it too.
//!
//! Decisions, pure:
//! - [`state`]: all of a manager's memory; [`apply`] changes it, [`snapshot`] says what a
//!   checkpoint writes.
//! - [`token_table`]: which client holds which token.
//! - [`frontier`]: which index numbers were handed out.
//! - [`index_node`], [`s_file`]: a manager's knowledge of files, and of live bytes.
//! - [`tree`]: its tables, in pages that are copied when they change.
//! - `changes`: the names of segments whose counts changed, for the follower of a manager.
//! - [`record`], [`root`]: the records of a manager's own log.
//!
//! Plumbing: [`server`], [`roll_forward`](mod@roll_forward), [`audit`], the writing of checkpoints
//! and the reading of tables.

pub mod api;
pub mod apply;
pub mod audit;
mod changes;
mod checkpoint;
pub mod delta;
pub mod extents;
pub mod frontier;
pub mod index_node;
pub mod inode;
pub mod manager_map;
mod newest;
pub mod record;
pub mod roll_forward;
pub mod root;
pub mod s_file;
pub mod server;
pub mod snapshot;
pub mod state;
mod tables;
pub mod token;
pub mod token_table;
pub mod tree;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use delta::Delta;
pub use inode::{DirectoryShape, InodeRecord};
pub use manager_map::ManagerMap;
pub use roll_forward::{RollForward, roll_forward};
pub use server::{Config, Lengths, Server};
