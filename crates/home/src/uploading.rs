//! Taking bytes of stores that have not come yet. They wait in files of the home's own folder until
//! their operation comes, or the client has gone away.

use crate::exported::Exported;
use crate::uploads::Shared;
use crate::whose::Whose;
use host::Clock;
use roam_proto::operation::RANGE_COUNT_MAX;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::FsError;

/// How long the home keeps the uploads of a client that is not connected, after it last sent
/// something. A client that comes back later sends everything again.
const UPLOAD_TIME_MAX: Duration = Duration::from_secs(3600);

/// Returns the name of the file for the bytes of a store.
fn upload_name(author: u32, seq: u64) -> String {
    format!("upload-{author}-{seq}")
}

impl Exported {
    /// Takes bytes of a store that is to come. They may come twice, and in any order. If the store
    /// has ended, they are dropped: a client that sent them again learns of the end when it asks
    /// for the outcome.
    pub(crate) async fn upload(&self, whose: &Whose, seq: u64, offset: u64, data: &[u8]) -> Result<(), FsError> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > vfs::fs::FILE_SIZE_MAX) {
            return Err(FsError::FileTooLarge);
        }
        let author = whose.author;
        let upload = {
            let mut uploads = self.uploads.lock();
            // Stores end before their uploads are dropped, so this upload will be dropped later.
            if self.has_ended(whose, seq)? {
                return Ok(());
            }
            uploads.admit(author, seq, data.len() as u64, self.claims.clock().now())?
        };
        let mut upload = upload.lock().await;
        if upload.ended || upload.have.count() > RANGE_COUNT_MAX {
            return Err(FsError::InvalidArgument);
        }
        let (id, handle) = match upload.open {
            Some(open) => open,
            None => {
                let made = self.make_own(upload_name(author, seq)).await?;
                *upload.open.insert((made.id, made.handle))
            }
        };
        self.fs.write(&self.fs.superuser(), id, handle, offset, data).await?;
        let range = offset..offset + data.len() as u64;
        if !upload.have.missing(range.clone()).is_empty() {
            upload.have.add(range);
            self.uploads.lock().came(author, seq, upload.have.len());
            self.claims.progresses(author, seq);
            self.progresses(whose, seq, self.claims.clock().now());
        }
        Ok(())
    }

    /// Drops the upload of a store that has ended.
    pub(crate) async fn drop_upload(&self, author: u32, seq: u64) {
        self.drop_those(|by, other, _| (by, other) == (author, seq)).await;
    }

    /// Drops all uploads of a client that has begun another log.
    pub(crate) async fn drop_uploads(&self, author: u32) {
        self.drop_those(|by, _, _| by == author).await;
    }

    /// Drops a client's uploads for operations up to `last`, which have ended. The upload may be
    /// for an operation that never came.
    pub(crate) async fn drop_uploads_through(&self, author: u32, last: u64) {
        self.drop_those(|by, seq, _| by == author && seq <= last).await;
    }

    async fn drop_those(&self, which: impl Fn(u32, u64, Duration) -> bool) {
        let dropped = self.uploads.lock().take(which);
        self.end_uploads(dropped).await;
    }

    async fn end_uploads(&self, dropped: Vec<(u32, u64, Shared)>) {
        for (author, seq, upload) in dropped {
            let mut upload = upload.lock().await;
            upload.ended = true;
            let Some((id, handle)) = upload.open.take() else { continue };
            let _ = self.fs.release(id, handle, None).await;
            self.remove_own(&upload_name(author, seq)).await;
        }
    }

    /// Drops the uploads of clients that have gone away. A client that comes back meanwhile finds
    /// all of its upload, or nothing.
    async fn drop_forgotten_uploads(&self, now: Duration) {
        let dropped = {
            let live = self.live.lock();
            let connected = live.newest.keys().filter(|(_, volume)| *volume == self.name);
            let connected = connected.filter_map(|(key, _)| live.state.clients.get(key));
            let connected: Vec<u32> = connected.map(|client| client.number).collect();
            let is_forgotten = |author, _, touched| now >= touched + UPLOAD_TIME_MAX && !connected.contains(&author);
            self.uploads.lock().take(is_forgotten)
        };
        self.end_uploads(dropped).await;
    }
}

/// Looks for forgotten uploads, as long as the volume is exported.
pub(crate) async fn tidy(volume: Weak<Exported>, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep(UPLOAD_TIME_MAX).await;
        let Some(volume) = volume.upgrade() else { return };
        volume.drop_forgotten_uploads(clock.now()).await;
    }
}
