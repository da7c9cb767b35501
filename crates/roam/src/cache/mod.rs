//! What is cached, and how it comes there.
//!
//! - `fetch`: asks the home; `batch_fetch`: many small files and directories in one question.
//! - [`hoard`]: what is to be cached always; `eviction`: what is given up for room, and who waits
//!   for room; `metadata`: the bound of cached attributes and names.

pub(crate) mod batch_fetch;
pub(crate) mod eviction;
pub(crate) mod fetch;
pub mod hoard;
pub(crate) mod metadata;
