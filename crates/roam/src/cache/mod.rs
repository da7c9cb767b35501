//! What is cached, and how it is fetched.
//!
//! - `cached_files`: the files of the cache in use; `prefetch`: what is fetched ahead.
//! - `fetch`: asks the home; `batch_fetch`: fetches many small files and directories with one
//!   question.
//! - [`hoard`]: files that are to be cached always; `eviction`: what a full cache evicts, and which
//!   writers wait for room; `metadata`: bounds the cached attributes and names.

pub(crate) mod batch_fetch;
pub(crate) mod cached_files;
pub(crate) mod eviction;
pub(crate) mod fetch;
pub mod hoard;
pub(crate) mod metadata;
pub(crate) mod prefetch;
