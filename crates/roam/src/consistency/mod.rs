//! What a client may believe and change without asking the home.
//!
//! - `delegation`: works under the home's delegations; `locking`: locks between mounts.

pub(crate) mod delegation;
pub(crate) mod locking;
