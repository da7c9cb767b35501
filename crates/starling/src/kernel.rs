//! The kernel behind a mount that is still being made.

use std::sync::Arc;
use tokio::sync::watch;
use types::{BoxFuture, FileId};
use vfs::kernel::{Kernel, Recalled};

/// The kernel behind a mount, before there is the mount: a client must know its kernel before it
/// answers the first request, and a mount answers requests as soon as it is there.
pub struct KernelToCome(watch::Sender<Option<Arc<dyn Kernel>>>);

impl KernelToCome {
    /// A kernel that forgets nothing yet: who asks for that waits.
    pub fn new() -> Arc<KernelToCome> {
        Arc::new(KernelToCome(watch::Sender::new(None)))
    }

    /// The mount is there.
    pub fn came(&self, kernel: Arc<dyn Kernel>) {
        self.0.send_replace(Some(kernel));
    }
}

impl Kernel for KernelToCome {
    fn forget(&self, what: Recalled) -> BoxFuture<()> {
        let mut came = self.0.subscribe();
        Box::pin(async move {
            // If the sender has gone, there will be no mount, and no kernel has anything to forget.
            let kernel = match came.wait_for(Option::is_some).await {
                Ok(kernel) => kernel.clone(),
                Err(_) => None,
            };
            if let Some(kernel) = kernel {
                kernel.forget(what).await;
            }
        })
    }

    fn may_end(&self, parent: FileId, name: &[u8], directory: Option<FileId>) -> bool {
        // A kernel without a mount believes nothing.
        self.0.borrow().as_ref().is_none_or(|kernel| kernel.may_end(parent, name, directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Told(Mutex<Vec<Recalled>>);

    impl Kernel for Told {
        fn forget(&self, what: Recalled) -> BoxFuture<()> {
            self.0.lock().unwrap().push(what);
            Box::pin(async {})
        }

        fn may_end(&self, _: FileId, name: &[u8], _: Option<FileId>) -> bool {
            name == b"may"
        }
    }

    #[test]
    fn the_kernel_is_asked_once_it_is_there() {
        let (kernel, id) = (KernelToCome::new(), FileId::new(1));
        let asked = || [&b"may"[..], b"may not"].map(|name| kernel.may_end(id, name, Some(id)));
        assert_eq!(asked(), [true; 2]);
        kernel.came(Arc::new(Told::default()));
        assert_eq!(asked(), [true, false]);
    }

    #[tokio::test]
    async fn what_is_to_be_forgotten_waits_for_the_mount() {
        let (kernel, told) = (KernelToCome::new(), Arc::new(Told::default()));
        let forget = |id| Recalled { files: vec![FileId::new(id)], names: true };
        let early = tokio::spawn(kernel.forget(forget(1)));
        tokio::task::yield_now().await;
        assert!(!early.is_finished() && told.0.lock().unwrap().is_empty());
        kernel.came(told.clone());
        early.await.unwrap();
        kernel.forget(forget(2)).await;
        assert_eq!(*told.0.lock().unwrap(), [forget(1), forget(2)]);
        // A mount that could not be made has nothing to forget.
        let never = KernelToCome::new();
        let waits = never.forget(forget(3));
        drop(never);
        waits.await;
    }
}
