//! The one interface: every layer of Starling is a [`FileSystem`] or a wrapper of one, so layers stack (design, section 1).
//!
//! - [`fs`]: the trait and its argument types.
//! - [`perm`]: POSIX permission rules and ACLs as pure functions, shared by all implementations.
//! - [`mem`]: [`MemFs`](mem::MemFs), the model and test oracle: written for clarity, not speed.
//! - [`suite`]: the behaviour that docs/semantics.md promises, as checks that run against any implementation.

pub mod fs;
