//! Files and directories as programs see them: each answers from the [replica](crate::replica), and
//! logs what it changes.
//!
//! - `filesystem`: the calls of `vfs::FileSystem`; `names`: their checks, and the operations that
//!   they log; `listings`: cookies.
//! - `content`: reads and writes of cached files; `holes`: of files that are not wholly cached;
//!   `small`: contents that stay in memory and travel in the log; `passthrough`: files that the
//!   kernel reads by itself.

pub(crate) mod content;
pub(crate) mod filesystem;
pub(crate) mod holes;
pub(crate) mod listings;
pub(crate) mod names;
pub(crate) mod passthrough;
pub(crate) mod small;
