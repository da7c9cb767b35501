//! The kernel behind a mount, as the file system that it caches sees it.

use types::{BoxFuture, FileId};

/// A kernel that caches names and attributes of a mount.
pub trait Kernel: Send + Sync + 'static {
    /// Makes the kernel forget the attributes of these files, and with `names` all names. When it
    /// ends, no program gets an answer from what was cached when it was called, nor from answers
    /// that were computed before that and were still on their way to the kernel. Waits for no
    /// program.
    fn forget(&self, files: Vec<FileId>, names: bool) -> BoxFuture<()>;
}
