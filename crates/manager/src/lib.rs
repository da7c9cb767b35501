//! Managers: which manager controls which file, where a file's blocks are, and which client may
//! cache or change them (docs/core.md#manager).
//!
//! For other crates:
//! - [`api`]: the requests of clients and cleaners to a manager.
//! - [`manager_map`]: which manager serves which file.
//! - [`server`], [`roll_forward`](mod@roll_forward): a manager, and the recovery of its memory
//!   after a crash.
//! - [`delta`], [`inode`], [`token`]: what commits say about files, what is stored of a file, and
//!   what a token covers.
//! - [`extents`]: a file's map from blocks to log addresses; clients use it too.
//!
//! Decisions, pure:
//! - [`state`]: all of a manager's memory; [`apply`] changes it, [`snapshot`] decides what a
//!   checkpoint writes.
//! - [`token_table`]: which client has which token.
//! - [`frontier`]: which index numbers were handed out.
//! - [`index_node`], [`s_file`]: one file, and the counts of live bytes.
//! - [`tree`]: tables in pages that are copied when they change.
//! - `questions`: the questions for attributes that clients have not answered.
//! - `changes`: the names of segments whose counts changed, for the follower of a manager.
//! - [`record`], [`root`]: the records of a manager's own log.
//! - [`wire`], [`admin_wire`]: the interfaces as bytes, for clients on other nodes, and for
//!   managers there.
//!
//! Plumbing: [`server`], `clients`, `glimpse`, [`roll_forward`](mod@roll_forward), [`audit`], the
//! writing of checkpoints and the reading of tables.

pub mod admin_wire;
pub mod api;
pub mod apply;
pub mod audit;
mod changes;
mod checkpoint;
mod clients;
pub mod delta;
pub mod extents;
pub mod frontier;
mod glimpse;
pub mod index_node;
pub mod inode;
pub mod manager_map;
mod newest;
mod opening;
pub mod planted;
mod questions;
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
pub mod wire;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use delta::Delta;
pub use inode::{DirectoryShape, InodeRecord};
pub use manager_map::ManagerMap;
pub use roll_forward::{LivingLog, RollForward, RolledForward, WriterLog, roll_forward, roll_forward_all};
pub use server::{Lengths, ManagerConfig, ManagerServer};
