//! Files and directories as programs see them: calls are answered from the
//! [replica](crate::replica), and changes are logged.
//!
//! - `filesystem`: the calls of `vfs::FileSystem`; `names`: checks names and logs the operations
//!   that change them; `open_files`: open handles; `listings`: directory cookies.
//! - `content`: reads and writes of cached files; `holes`: files that are only partly cached;
//!   `small_file`, `small`: contents that stay in memory and travel in the log; `passthrough`:
//!   files that the kernel reads by itself.

pub(crate) mod content;
pub(crate) mod filesystem;
pub(crate) mod holes;
pub(crate) mod listings;
pub(crate) mod names;
pub(crate) mod open_files;
pub(crate) mod passthrough;
pub(crate) mod small;
pub(crate) mod small_file;
