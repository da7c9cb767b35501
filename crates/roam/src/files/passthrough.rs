//! Passthrough: files of the cache that the kernel reads by itself.
//!
//! The contents of a file that is shown to the kernel change only as the file does here. What
//! others change at home comes into another file of the cache. A program may also have mapped the
//! shown file for writing. The client then finds stores by the file's change mark, and all of the
//! file counts as changed.

use crate::cache::data_files::disk_error;
use crate::client::Client;
use crate::live::Live;
use host::File;
use std::sync::Arc;
use types::{FileId, FsError, Kind};
use vfs::fs::{Backing, Cred, FILE_SIZE_MAX, Handle};

/// Shorter files are not shown, in bytes: the costlier open would take more time than reads by the
/// kernel save (docs/performance.md).
const SHOWN_LEN_MIN: u64 = 1 << 20;

/// What may be shown to the holder of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sight {
    /// The number of the file of the cache.
    number: u64,
    /// Its length in bytes.
    len: u64,
    may_read: bool,
}

impl Live {
    /// True if the kernel reads a file's bytes by itself, or may have them mapped.
    pub(crate) fn is_shown(&self, id: FileId) -> bool {
        self.replica.node(id).is_ok_and(|node| self.cache.is_shown(node.data))
    }

    /// What may be shown to the holder of this handle.
    pub(crate) fn sight(&self, id: FileId, handle: Handle) -> Option<Sight> {
        let flags = self.handle(id, handle, false).ok()?.flags;
        let node = self.replica.node(id).ok()?;
        if self.freshness.is_delegated() || node.facts.kind != Kind::File || node.data == 0 || !node.is_whole() {
            return None;
        }
        let may_read = !flags.write && !flags.truncate;
        let sight = Sight { number: node.data, len: node.facts.size, may_read };
        let is_worth_it = may_read && !node.is_dirty() && sight.len >= SHOWN_LEN_MIN;
        (is_worth_it || self.cache.is_shown(sight.number)).then_some(sight)
    }

    /// True if a program that has the file open may store to mappings of it. Until it closes the
    /// file, the file counts as being written.
    pub(crate) fn expects_stores(&self, id: FileId) -> bool {
        let id = self.replica.real(id);
        self.mark(id).is_some() && self.open_files.may_map(id)
    }

    /// The change mark up to which the client knows the stores to a file's mappings.
    fn mark(&self, id: FileId) -> Option<(u64, u128)> {
        let number = self.replica.node(id).ok()?.data;
        self.cache.mark(number).map(|mark| (number, mark))
    }
}

async fn mark_of(file: &Arc<dyn File>) -> Result<u128, FsError> {
    file.change_mark().await.map_err(|error| disk_error(&error))
}

impl Client {
    /// Shows a file that was found fit to the kernel.
    pub(crate) async fn show(&self, id: FileId, handle: Handle, Sight { number, .. }: Sight) -> Option<Backing> {
        let data = self.0.open_data(number).await.ok()?;
        let len = data.len().await.ok()?;
        let file = data.descriptor()?;
        let mut live = self.0.live.lock();
        let sight = live.sight(id, handle).filter(|sight| sight.number == number)?;
        // The file of the cache may be longer than the file.
        let is_fit = live.cache.is_shown(number) || len == sight.len;
        is_fit.then(|| {
            live.cache.show(number);
            Backing { file, number, may_read: sight.may_read }
        })
    }

    /// Prepares a file for stores to mappings: the holder of this handle may map what is shown.
    pub(crate) async fn expect_stores(&self, id: FileId, handle: Handle) -> Result<(), FsError> {
        self.0.live.lock().writable(id, handle)?;
        let _only_writer = self.only_writer(id).await?;
        self.find_stores(id).await?;
        // After a crash, all of it goes home.
        self.complete(id).await?;
        self.prepare(id, false).await?;
        if self.0.live.lock().is_in_memory(id) {
            self.leave_memory(id).await?;
        }
        self.spare(id, 0..FILE_SIZE_MAX).await?;
        let number = self.0.live.lock().replica.node(id)?.data;
        let mark = mark_of(&self.0.open_data(number).await?).await?;
        self.0.live.lock().cache.map(number, id, mark);
        Ok(())
    }

    /// The number of a file's file of the cache and its change mark, if that has changed since the
    /// client looked last.
    async fn new_mark(&self, id: FileId) -> Result<Option<(u64, u128)>, FsError> {
        let known = self.0.live.lock().mark(id);
        let Some((number, mark)) = known else { return Ok(None) };
        let now = mark_of(&self.0.open_data(number).await?).await?;
        Ok((now != mark).then_some((number, now)))
    }

    /// True if a file's bytes may have changed by stores to mappings that the client has not found
    /// yet.
    pub(crate) async fn has_new_stores(&self, id: FileId) -> Result<bool, FsError> {
        Ok(self.new_mark(id).await?.is_some())
    }

    /// Finds stores to mappings of a file; if there are any, all of it counts as changed. The
    /// caller is the file's only writer, and has changed nothing since stores were last known.
    pub(crate) async fn find_stores(&self, id: FileId) -> Result<bool, FsError> {
        let Some((number, mark)) = self.new_mark(id).await? else { return Ok(false) };
        self.prepare(id, false).await?;
        // Stores since then are found the next time.
        self.0.live.lock().cache.know_stores(number, mark);
        self.changed(&Cred::ROOT, id, |change| change.ranges.add(0..change.size))?;
        // The kernel's own cache may have older pages.
        self.0.live.lock().forget(id);
        Ok(true)
    }

    /// Notes that every change of a file so far is known, after the client has changed it itself.
    /// The caller is its only writer. A store since the last [`find_stores`](Self::find_stores) is
    /// missed until the next change.
    pub(crate) async fn know_stores(&self, id: FileId) -> Result<(), FsError> {
        let known = self.0.live.lock().mark(id);
        let Some((number, _)) = known else { return Ok(()) };
        let mark = mark_of(&self.0.open_data(number).await?).await?;
        self.0.live.lock().cache.know_stores(number, mark);
        Ok(())
    }

    /// Logs stores to mappings of any file since the last call. Mappings can outlive the open file.
    pub(crate) async fn log_stores(&self) {
        let mapped: Vec<(u64, FileId)> = {
            let mut live = self.0.live.lock();
            let Live { cache, replica, .. } = &mut *live;
            cache.follow_mappings(|number, id| replica.holder_of(number, id));
            cache.mapped().collect()
        };
        for (number, id) in mapped {
            let found = async {
                let _only_writer = self.only_writer(id).await?;
                let is_found = self.find_stores(id).await?;
                // If an earlier attempt to log them failed, no close of the file makes another one.
                let live = self.0.live.lock();
                Ok(is_found || live.replica.node(id)?.changes.is_begun() && !live.open_files.is_open(id))
            };
            let logged = match found.await {
                Ok(true) => self.store(id).await.map(drop),
                other => other.map(drop),
            };
            if let Err(error) = logged {
                tracing::warn!(file = id.raw(), number, %error, "stores to a mapping are not logged yet");
            }
        }
    }
}
