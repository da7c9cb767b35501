//! What the kernel caches of this client's answers, and has to drop when it changes.

use tokio::sync::{mpsc, oneshot};
use types::FileId;

/// What the kernel, which caches this client's answers, has to drop.
#[derive(Debug)]
pub enum Forget {
    /// The reader of these messages replies on this channel when it has dropped everything before.
    All(oneshot::Sender<()>),
    /// A file's attributes and contents.
    File(FileId),
    /// What a name in a directory leads to.
    Name(FileId, Vec<u8>),
}

/// Tells the kernel what to drop.
#[derive(Default)]
pub(crate) struct KernelCache {
    /// `None`: no kernel caches this client's answers.
    told: Option<mpsc::UnboundedSender<Forget>>,
}

impl KernelCache {
    /// A kernel caches this client's answers from now on.
    pub(crate) fn connect(&mut self, told: mpsc::UnboundedSender<Forget>) {
        self.told = Some(told);
    }

    /// True if a kernel caches this client's answers.
    pub(crate) fn is_there(&self) -> bool {
        self.told.is_some()
    }

    fn tell(&self, forget: Forget) {
        if let Some(told) = &self.told {
            // An error means that the mount has ended.
            let _ = told.send(forget);
        }
    }

    /// Completes when the kernel has dropped all that it was told to. `None`: no kernel caches
    /// anything.
    pub(crate) fn forget_all(&self) -> Option<oneshot::Receiver<()>> {
        let (forgotten, told) = oneshot::channel();
        self.told.as_ref()?.send(Forget::All(forgotten)).ok().map(|()| told)
    }

    /// A file's attributes or contents have changed, or a directory has.
    pub(crate) fn forget_file(&self, file: FileId) {
        self.tell(Forget::File(file));
    }

    /// A name leads to another file.
    pub(crate) fn forget_name(&self, dir: FileId, name: &[u8]) {
        if self.is_there() {
            self.tell(Forget::Name(dir, name.to_vec()));
        }
    }
}
