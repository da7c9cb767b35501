//! Puts the roles of the core together on one machine.
//!
//! - [`config`]: what a file system is; the contents of its maps.
//! - [`maps`]: the maps in force, decided by the consensus engine and kept by every store.
//! - [`machine`]: creation, start with recovery, stop.
//! - [`stores`]: where the stores are; opening and creating them.
//! - [`cleaner`]: moves live blocks out of segments worth emptying.
//! - [`maintenance`]: checkpoints, deletion of empty segments, when to clean, what is left for
//!   writers.
//! - `table`: follows which segments there are, and what lives in them.
//! - `room`: what the stores can still take, and what of it writers may have.
//! - [`check`]: the offline check behind `starling fsck`.

pub mod check;
pub mod cleaner;
pub mod config;
pub mod machine;
pub mod maintenance;
pub mod maps;
pub mod restore;
mod room;
pub mod stores;
mod table;

pub use config::FsConfig;
pub use machine::{Create, Machine, Run, StartError};
pub use stores::Place;
