//! The interface that all layers of Starling share: each is a [`FileSystem`] or wraps one, so
//! layers stack.
//!
//! - [`fs`]: the trait and its argument types; [`joined`]: several file systems as one.
//! - [`perm`]: POSIX permission rules as pure functions, shared by all implementations; [`acl`]:
//!   POSIX ACLs; [`atime`]: when reads update access times; [`locks`]: advisory locks.
//! - [`kernel`]: what a file system asks of the kernel that keeps its answers.
//! - [`mem`]: [`MemFs`], the model that tests compare with: written for clarity, not speed.
//! - [`suite`]: the behaviour that docs/semantics.md promises, as checks that run against any
//!   implementation.
//! - [`tree`]: whole trees as lists, to compare file systems.

pub mod acl;
pub mod atime;
pub mod fs;
pub mod joined;
pub mod kernel;
pub mod locks;
pub mod mem;
pub mod perm;
pub mod suite;
pub mod tree;

pub use fs::{Cred, FileSystem, Handle};
pub use kernel::{Kernel, Recalled};
pub use mem::MemFs;
