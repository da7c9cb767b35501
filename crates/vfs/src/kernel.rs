//! What a file system asks of the kernel that keeps its answers.

use types::{BoxFuture, FileId};

/// What was recalled from this node, so that the kernel is to forget it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recalled {
    /// The files whose attributes and ACLs it is to forget.
    pub files: Vec<FileId>,
    /// It is also to forget all names, in every directory.
    pub names: bool,
}

/// The kernel, which answers programs from what it was told before.
pub trait Kernel: Send + Sync + 'static {
    /// Waits until every answer that the file system has begun is written to the kernel, then makes
    /// the kernel forget. Once the future is done, the kernel answers no call that begins later
    /// from attributes or names that it was told before.
    ///
    /// The future waits for no request: requests for these files may wait until it is done. So a
    /// file system that gives a token back first lets no new request for the file begin, and then
    /// calls this. Requests that have only begun to wait are no answers.
    fn forget(&self, what: Recalled) -> BoxFuture<()>;

    /// False if the kernel may take another directory for removed than the one that is, once it
    /// hears that its rmdir or rename was carried out. `parent` and `name` are the name that ends,
    /// or that a rename replaces, and `directory` is the directory that the name has; `None` if it
    /// has none. The request then has to fail with [`FsError::Stale`](types::FsError::Stale): the
    /// kernel looks the names up, and asks once more.
    ///
    /// A file system asks while it holds the tokens for the change, just before it makes it. The
    /// call waits for nothing.
    fn may_end(&self, _parent: FileId, _name: &[u8], _directory: Option<FileId>) -> bool {
        true
    }
}
