//! Storage servers: dumb and fast (docs/core.md#storage-server).
//!
//! - [`api`]: what anybody may ask of a storage server, and its errors.
//! - [`server`]: the server over a [`host::Disk`].
//! - [`site`]: a folder that a process serves, with a store or without.
//! - [`wire`]: the interface as bytes; [`calls`]: what turns calls into requests and back; `tcp`
//!   (with the feature of that name): a site over a network.
//!
//! Inside: `commit` is the loop that writes, `shared` what it shares with requests, `chain` says
//! which checkpoint comes next, `files` reads and writes them. Pure: `space` (where fragments go),
//! `compaction` (which move), `seal` (what keeps former writers out), `index` and `packed` (what is
//! where), `checkpoint` (its bytes), `torn_tail` (what a crash left).

pub mod api;
pub mod calls;
mod chain;
pub mod checkpoint;
mod commit;
mod compaction;
mod files;
mod index;
mod packed;
mod seal;
pub mod server;
mod shared;
pub mod site;
pub mod space;
#[cfg(feature = "tcp")]
pub mod tcp;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod torn_tail;
pub mod wire;

pub use space::footprint;
