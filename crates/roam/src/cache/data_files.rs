//! The files of the cache, by number: opens, makes, writes, checks and removes them.

use crate::client::{Client, Inner};
use crate::replica::Record;
use bytes::Bytes;
use host::File;
use std::io::ErrorKind;
use std::sync::Arc;
use types::{FileId, FsError};

/// The name of a file of the cache.
pub fn data_name(number: u64) -> String {
    format!("d{number:x}")
}

/// The name of the file that keeps contents set aside for an operation.
pub(crate) fn outgoing_name(seq: u64) -> String {
    format!("o{seq:x}")
}

/// The error that users see when the cache's disk fails.
pub(crate) fn disk_error(error: &std::io::Error) -> FsError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FsError::NoSpace,
        ErrorKind::FileTooLarge => FsError::FileTooLarge,
        _ => {
            tracing::error!(%error, "the disk of the cache failed");
            FsError::Io
        }
    }
}

impl Client {
    /// Removes files of the cache that nothing needs any more, after the log says so durably:
    /// otherwise they would be missing after a crash.
    pub(crate) async fn remove_unused(&self) {
        let (unused, outgoing) = {
            let mut live = self.0.live.lock();
            live.forget_used();
            live.let_go();
            (live.replica.take_unused(), live.forget_outgoing())
        };
        outgoing.into_iter().for_each(|seq| self.0.remove_file(outgoing_name(seq)));
        if unused.is_empty() || self.0.log.settled_in_time().await.is_err() {
            return;
        }
        for number in unused {
            {
                let mut live = self.0.live.lock();
                live.cache.forget(number);
                if live.replica.contents(number).is_some() {
                    live.replica.forget_contents(number);
                }
            }
            // A file that cannot be removed now is removed when the cache is opened again.
            let _ = self.0.disk.remove(&data_name(number)).await;
        }
        if self.0.was_full() || self.0.log.room().is_some() {
            // A disk may keep the space of removed files until the removal is durable.
            let _ = self.0.disk.sync_names().await;
        }
    }

    /// Makes fetched bytes durable, so that they survive a crash.
    pub(crate) async fn settle_bytes(&self) {
        let files = std::mem::take(&mut *self.0.unsettled.lock());
        for id in files {
            let found = {
                let live = self.0.live.lock();
                live.replica.node(id).ok().filter(|node| !node.is_dirty()).map(|node| (node.data, node.have.clone()))
            };
            let Some((data, have)) = found.filter(|(data, _)| *data > 0) else { continue };
            let Ok(file) = self.0.open_data(data).await else { continue };
            if self.0.sync_bytes(&file).await.is_err() {
                continue;
            }
            let mut live = self.0.live.lock();
            let same = live.replica.node(id).is_ok_and(|node| node.data == data && !node.is_dirty());
            if same {
                live.learn(Record::Cached { file: id, data, have });
            }
        }
    }
}

impl Inner {
    /// The file of the cache with this number. ENOENT if there is none.
    pub(crate) async fn open_data(&self, number: u64) -> Result<Arc<dyn File>, FsError> {
        self.open_or_make(number, false).await
    }

    async fn open_or_make(&self, number: u64, make: bool) -> Result<Arc<dyn File>, FsError> {
        let known = {
            let live = self.live.lock();
            let small = live.in_memory(number).map(|small| small as Arc<dyn File>);
            small.or_else(|| live.cache.opened(number))
        };
        match known {
            Some(file) => Ok(file),
            None => self.open_file(number, make).await,
        }
    }

    /// Creates the file of the cache with this number on the disk, or opens it.
    pub(crate) async fn make_data_file(&self, number: u64) -> Result<Arc<dyn File>, FsError> {
        self.open_file(number, true).await
    }

    async fn open_file(&self, number: u64, make: bool) -> Result<Arc<dyn File>, FsError> {
        let file = loop {
            match self.disk.open(&data_name(number), make).await {
                Ok(file) => break file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(FsError::NotFound),
                Err(error) => {
                    let error = disk_error(&error);
                    if error != FsError::NoSpace || !self.free_disk(0, None).await {
                        return Err(error);
                    }
                }
            }
        };
        // The file may be new.
        if make {
            self.names.made();
        }
        Ok(self.live.lock().cache.keep_open(number, file))
    }

    /// Called when the last handle of a file is closed. A file that the kernel reads by itself
    /// stays open, since it is opened again and again.
    pub(crate) fn leave_data(&self, id: FileId) {
        let mut live = self.live.lock();
        let data = live.replica.node(id).map_or(0, |node| node.data);
        if !live.cache.is_shown(data) {
            live.cache.close(data);
        }
    }

    /// Makes a new file of the cache. Returns its number too.
    pub(crate) async fn new_data_file(&self) -> Result<(u64, Arc<dyn File>), FsError> {
        let number = self.live.lock().take_data_number();
        Ok((number, self.open_or_make(number, true).await?))
    }

    /// The file of the cache with a file's bytes, and its number. Makes a new one if there is none.
    pub(crate) async fn data_file(&self, id: FileId) -> Result<(u64, Arc<dyn File>), FsError> {
        let (number, is_new) = {
            let mut live = self.live.lock();
            let node = live.replica.node(id)?;
            // Another task may have taken the number and not made the file yet.
            match (node.data, node.have.is_empty()) {
                (0, _) => {
                    let number = live.take_data_number();
                    live.replica.node_mut(id)?.data = number;
                    (number, true)
                }
                known => known,
            }
        };
        Ok((number, self.open_or_make(number, is_new).await?))
    }

    /// Notes that files of the cache were made, whose names are not durable yet.
    pub(crate) fn made_names(&self) {
        self.names.made();
    }

    /// Makes everything on the cache's disk durable, names included.
    pub(crate) async fn sync_disk(&self) -> Result<(), FsError> {
        match self.disk.sync_all().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            synced => return synced.map_err(|error| disk_error(&error)),
        }
        Err(FsError::NotSupported)
    }

    /// Checks that a file's file of the cache exists and is long enough; if not, records the bytes
    /// as lost. The caller is the file's only writer.
    pub(crate) async fn check_data(&self, id: FileId) -> Result<(), FsError> {
        let (data, end) = {
            let live = self.live.lock();
            let node = live.replica.node(id)?;
            if live.in_memory(node.data).is_some() {
                return Ok(());
            }
            // A file that is being changed may have been cut.
            let end = node.have.iter().last().map(|range| if node.is_dirty() { 0 } else { range.end });
            match end {
                Some(end) => (node.data, end),
                None => return Ok(()),
            }
        };
        let is_there = match self.open_data(data).await {
            Err(FsError::NotFound) => false,
            file => file?.len().await.map_err(|error| disk_error(&error))? >= end,
        };
        let mut live = self.live.lock();
        if !is_there && live.replica.node(id)?.data == data {
            tracing::error!(file = id.raw(), "a file of the cache is missing or too short");
            let id = live.replica.real(id);
            live.record(Record::Lost(id))?;
            live.cache.close(data);
        }
        Ok(())
    }

    /// Makes the bytes of a file of the cache durable, and its name.
    pub(crate) async fn sync_bytes(&self, file: &Arc<dyn File>) -> Result<(), FsError> {
        file.sync_data().await.map_err(|error| disk_error(&error))?;
        self.names.sync(&*self.disk).await.map_err(|error| disk_error(&error))
    }

    /// Writes into a file of the cache.
    pub(crate) async fn put_bytes(&self, file: &Arc<dyn File>, offset: u64, bytes: Bytes) -> Result<(), FsError> {
        self.put_instead(file, offset, bytes, None).await
    }

    /// As [`put_bytes`](Self::put_bytes). On a full disk, `instead` allows it to evict only files
    /// of lower hoard priority than that one.
    pub(crate) async fn put_instead(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: Bytes,
        instead: Option<FileId>,
    ) -> Result<(), FsError> {
        loop {
            match file.write_at(offset, vec![bytes.clone()]).await.map_err(|error| disk_error(&error)) {
                Err(FsError::NoSpace) if self.free_disk(bytes.len() as u64, instead).await => {}
                written => return written,
            }
        }
    }

    /// Removes a file of the cache in the background. If that fails, the next opening of the cache
    /// removes it.
    pub(crate) fn remove_file(&self, name: String) {
        let disk = self.disk.clone();
        self.host.tasks.spawn(Box::pin(async move { drop(disk.remove(&name).await) }));
    }
}
