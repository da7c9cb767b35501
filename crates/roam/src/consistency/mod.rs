//! What a client may believe and change without asking the home.
//!
//! - `freshness`: what an answer is worth; `delegation`: works under the home's delegations;
//!   `locking`: locks between mounts; `kernel`: what the kernel caches.

pub(crate) mod delegation;
pub(crate) mod freshness;
pub(crate) mod kernel;
pub(crate) mod locking;
