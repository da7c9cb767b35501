//! The FUSE front end: decodes a request of the kernel, calls the
//! [`FileSystem`](vfs::fs::FileSystem), and encodes its answer.
//!
//! - [`mount`] attaches a file system to a folder. A [`Mount`] is that attachment; dropping it
//!   unmounts.
//! - `front` decodes, calls and encodes: one method per FUSE request. `dispatch` makes the calls;
//!   its only state is counters and a cache of groups. `listing` fills the replies of directory
//!   listings.
//! - `passing` answers opens of files that the kernel may read by itself (passthrough); `inodes`
//!   decides how.
//! - `invalidator` makes the kernel forget what other clients change. It waits for answers under
//!   way (`sections`). `validity` says what the kernel may keep, `pages` which files it has pages
//!   of, and `listings` when it drops the listings of directories.
//! - `forgetting` makes the kernel drop cached names and files. Its thread runs `apart`, so a
//!   killed process need not wait for it. `survivor` is a process that fails requests while such a
//!   thread waits. `dead` removes mounts whose process has died.
//! - `observe` tells an observer what programs do with files.
//! - `attach` speaks to the kernel's mount(2) and to `fusermount3`; `mountinfo` reads what is
//!   mounted.
//!
//! # Invariants
//!
//! - The FUSE thread that read a request replies an [`Answer::Now`](types::Answer::Now) itself. For
//!   an [`Answer::Later`](types::Answer::Later) it starts a task, and the task replies. A FUSE
//!   thread waits for nothing but requests.
//! - Every request is answered exactly once. If the file system panics, the answer is EIO.
//! - A mount unmounts only itself, even if other programs have unmounted it or mounted over it.
//!
//! Which requests exist, what the kernel caches, and who decides about locks:
//! docs/decisions/2026-11-21-fuser.md.

mod apart;
mod attach;
mod believed;
mod convert;
mod count;
mod dead;
mod dispatch;
mod error;
mod forgetting;
mod front;
mod groups;
mod inodes;
mod invalidator;
mod listing;
mod listings;
mod locks;
mod mount;
mod mountinfo;
mod observe;
mod options;
mod pages;
mod passing;
mod sections;
mod survivor;
mod validity;

pub use attach::check;
pub use dead::clear as clear_dead;
pub use error::{MountError, UnmountError};
pub use invalidator::Invalidator;
pub use mount::{Mount, mount};
pub use observe::{Access, Observer};
pub use options::MountOptions;
