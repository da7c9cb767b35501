//! The FUSE front end: decodes what the kernel asks, calls the [`FileSystem`](vfs::fs::FileSystem),
//! encodes its answer.
//!
//! - [`mount`] attaches a file system to a folder; a [`Mount`] is that attachment and undoes it
//!   when dropped.
//! - `front` is the decode, call, encode part: one method per FUSE request. `dispatch` makes the
//!   calls: no state but counters and a cache of groups. `listing` fills the replies of directory
//!   listings.
//! - `passing` answers opens, where the kernel may read files itself; `inodes` decides how.
//! - `forgetting` has the kernel forget names and files; `apart` has threads that a killed process
//!   need not wait for, `survivor` a process that fails what is asked while such a thread waits;
//!   `dead` takes away mounts of processes that have died.
//! - `observe` tells an observer what programs do with files.
//! - `attach` speaks to the kernel's mount(2) and to `fusermount3`; `mountinfo` reads what is
//!   mounted.
//!
//! # Invariants
//!
//! - An [`Answer::Now`](types::Answer::Now) is replied by the FUSE thread that read the request, an
//!   [`Answer::Later`](types::Answer::Later) by a task that this thread starts, and goes on
//!   elsewhere. A FUSE thread never waits for anything but requests.
//! - Every request is answered exactly once, also when the file system panics: then with EIO.
//! - A mount never unmounts anything but itself, though others may have unmounted it or mounted
//!   over it meanwhile.
//!
//! What is cached, which requests exist and who decides about locks:
//! docs/decisions/2026-11-21-fuser.md.

mod apart;
mod attach;
mod convert;
mod count;
mod dead;
mod dispatch;
mod error;
mod forgetting;
mod front;
mod groups;
mod inodes;
mod listing;
mod locks;
mod mount;
mod mountinfo;
mod observe;
mod options;
mod passing;
mod survivor;

pub use attach::check;
pub use dead::clear as clear_dead;
pub use error::{MountError, UnmountError};
pub use mount::{Invalidator, Mount, mount};
pub use observe::{Access, Observer};
pub use options::MountOptions;
