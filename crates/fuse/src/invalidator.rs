//! Makes the kernel forget, on behalf of the file system.

use crate::believed::Believed;
use crate::forgetting::Forgetting;
use crate::listings::Listings;
use crate::pages::Pages;
use crate::passing::Passing;
use crate::sections::Sections;
use crate::validity::Validity;
use fuser::INodeNo;
use host::Clock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{BoxFuture, FileId};
use vfs::{Kernel, Recalled};

/// Files whose attributes are forgotten before other tasks get their turn.
const BATCH: usize = 256;

/// Makes the kernel forget what it has cached.
///
/// [`file`](Self::file) and [`names`](Self::names) take effect soon; when the queue is full, the
/// caller waits for its turn. So code that serves requests must not call them.
/// [`forget`](Kernel::forget) has an end that can be awaited, and waits for no request. It needs
/// [`MountOptions::shared`](crate::MountOptions::shared).
#[derive(Clone)]
pub struct Invalidator {
    pub(crate) forgetting: Arc<Forgetting>,
    pub(crate) passing: Arc<Passing>,
    pub(crate) sections: Arc<Sections>,
    pub(crate) validity: Arc<Validity>,
    pub(crate) pages: Arc<Pages>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) believed: Arc<Believed>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Invalidator {
    /// Forgets a file's attributes and contents.
    pub fn file(&self, id: FileId) {
        for inode in self.passing.all(id) {
            self.forgetting.file_in_turn(INodeNo(inode));
        }
    }

    /// Forgets what names mean, each given with its directory, and the listings of those
    /// directories. Needs [`MountOptions::others_change`](crate::MountOptions::others_change).
    pub fn names(&self, names: &BTreeSet<(FileId, Vec<u8>)>) {
        let inode = |dir: &FileId| INodeNo(dir.raw());
        self.forgetting.names(names.iter().map(|(dir, name)| (inode(dir), &name[..])));
        let dirs: BTreeSet<FileId> = names.iter().map(|(dir, _)| *dir).collect();
        dirs.into_iter().for_each(|dir| self.file(dir));
    }

    /// Waits until the kernel has forgotten everything that [`file`](Self::file) and
    /// [`names`](Self::names) told it to forget, but not longer than `time`.
    pub fn has_forgotten(&self, time: Duration) {
        self.forgetting.has_forgotten(time);
    }

    /// Makes the kernel forget all names. With file systems mounted below this one, and before
    /// Linux 6.16, the kernel keeps no names that it is told from now on, and this waits until it
    /// has dropped the others.
    async fn all_names(&self) {
        if self.forgetting.all_names() {
            self.validity.keep_names();
            return;
        }
        self.validity.stop_keeping_names();
        // An answer under way may have decided earlier.
        self.sections.wait_for_all_before().await;
        let rest = self.validity.names_kept_for();
        if !rest.is_zero() {
            tracing::info!(?rest, "waiting until the kernel has dropped names that it cannot be told to forget");
            self.clock.sleep(rest).await;
        }
    }
}

impl Kernel for Invalidator {
    /// Beside that, pages of these files (private mappings, programs that run, sendfile(2)), and
    /// listings of directories that programs have open, are forgotten soon after, by another
    /// thread: the kernel may wait there for requests.
    fn forget(&self, what: Recalled) -> BoxFuture<()> {
        let this = self.clone();
        Box::pin(async move {
            this.sections.wait_for_all_before().await;
            if what.names {
                this.all_names().await;
            }
            for batch in what.files.chunks(BATCH) {
                for inode in batch.iter().flat_map(|file| this.passing.all(*file)) {
                    this.forgetting.attributes(INodeNo(inode));
                    if this.listings.recalled(inode) | this.pages.take(inode) {
                        this.forgetting.file(INodeNo(inode));
                    }
                }
                host::yield_now().await;
            }
        })
    }

    fn may_end(&self, parent: FileId, name: &[u8], directory: Option<FileId>) -> bool {
        self.believed.may_end(parent, name, directory)
    }
}
