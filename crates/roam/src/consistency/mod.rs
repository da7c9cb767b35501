//! What a client may believe and change without asking the home.
//!
//! - `freshness`: what changes meanwhile; `question`: what the home's answers are worth.
//! - `delegations`: the delegations that the client holds; `delegation`: works under them.
//! - `locking`: locks between mounts; `lock_requests`: those under way.
//! - `kernel`: what the kernel caches.

pub(crate) mod delegation;
pub(crate) mod delegations;
pub(crate) mod freshness;
pub(crate) mod kernel;
pub(crate) mod lock_requests;
pub(crate) mod locking;
pub(crate) mod question;
