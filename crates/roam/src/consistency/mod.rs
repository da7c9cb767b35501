//! What a client may believe and do without asking.
//!
//! - `delegation`: works under delegations of the home; `locking`: locks between mounts.

pub(crate) mod delegation;
pub(crate) mod locking;
