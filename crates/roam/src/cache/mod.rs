//! What is cached, and how it is fetched.
//!
//! - `cached_files`: the files of the cache in use; `data_files`: opens, writes and removes them;
//!   `unwritten`: those that must be durable before the log says so.
//! - `fetch`: asks the home; `prefetch`: what is fetched ahead; `batch_fetch`: fetches many small
//!   files and directories with one question.
//! - [`hoard`]: files that are to be cached always; `room`: how much room there is; `eviction`:
//!   what a full cache evicts, and which writers wait for room; `metadata`: bounds the cached
//!   attributes and names.

pub(crate) mod batch_fetch;
pub(crate) mod cached_files;
pub(crate) mod data_files;
pub(crate) mod eviction;
pub(crate) mod fetch;
pub mod hoard;
pub(crate) mod metadata;
pub(crate) mod prefetch;
pub(crate) mod room;
pub(crate) mod unwritten;
