//! Storage servers: dumb and fast (docs/core.md#storage-server).
//!
//! - [`api`]: the requests to a storage server, and their errors.
//! - [`server`]: the server over a [`host::Disk`].
//! - [`site`]: a folder that a process serves, with a store or without.
//! - [`wire`]: the interface as bytes; [`calls`]: turns calls into requests and back; [`tcp`]: both
//!   over a network.
//!
//! Inside: `commit` is the loop that writes, `shared` is the state that it shares with requests,
//! `chain` writes one checkpoint after the other, `files` reads and writes the files. Pure: `space`
//! (where fragments go), `compaction` (which fragments move), `seal` and `seals` (keep former
//! writers out), `index` and `packed` (which fragments there are, and where), `checkpoint` (its
//! bytes), `torn_tail` (finds the fragments that a crash left).

pub mod api;
pub mod calls;
mod chain;
pub mod checkpoint;
mod commit;
mod compaction;
mod files;
mod identity;
mod index;
mod packed;
pub mod pages;
mod seal;
mod seals;
pub mod server;
mod shared;
pub mod site;
pub mod space;
pub mod tcp;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod torn_tail;
pub mod wire;

pub use pages::footprint;
