//! Storage servers: dumb and fast (design, section 3.1).
//!
//! - [`api`]: what anybody may ask of a storage server, and its errors.
//! - [`server`]: the server over a [`host::Disk`].

pub mod api;
