//! Bytes of stores that have not come yet: they wait in files of the home's own, until their operation comes, or the client has gone away.

use crate::apply::Whose;
use crate::exported::Exported;
use host::Clock;
use roam_proto::operation::RANGE_COUNT_MAX;
use roam_proto::ranges::Ranges;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::Handle;

/// Most uploads that a client has under way.
const UPLOAD_COUNT_MAX: usize = 256;
/// Most bytes of them, but for the longest one: a file may be as long as it likes.
const UPLOAD_LEN_MAX: u64 = 1 << 30;
/// What a client that is not connected has uploaded is kept for so long after it sent something last; when it comes back it sends all of it again.
const UPLOAD_TIME_MAX: Duration = Duration::from_secs(3600);

/// What the bytes of a store are called.
fn upload_name(author: u32, seq: u64) -> String {
    format!("upload-{author}-{seq}")
}

type Shared = Arc<tokio::sync::Mutex<Upload>>;

/// The bytes of a store, as far as they have come.
#[derive(Default)]
pub(crate) struct Upload {
    /// Where they are; `None` before the first.
    pub(crate) open: Option<(FileId, Handle)>,
    pub(crate) have: Ranges,
    /// The store has ended: nobody wants them.
    ended: bool,
}

struct Slot {
    upload: Shared,
    /// How many bytes have come.
    len: u64,
    /// When the last of them came.
    touched: Duration,
}

/// Uploads under way, by author and operation.
#[derive(Default)]
pub(crate) struct Uploads(HashMap<(u32, u64), Slot>);

impl Uploads {
    pub(crate) fn get(&self, author: u32, seq: u64) -> Option<Shared> {
        self.0.get(&(author, seq)).map(|slot| slot.upload.clone())
    }

    /// The upload to which so many bytes are added. EBUSY if the client has too much under way.
    fn admit(&mut self, author: u32, seq: u64, len: u64, now: Duration) -> Result<Shared, FsError> {
        let (mut count, mut all, mut longest) = (0, 0, 0);
        for ((_, other), slot) in self.0.iter().filter(|((by, _), _)| *by == author) {
            let slot_len = if *other == seq { slot.len.saturating_add(len) } else { slot.len };
            (count, all, longest) = (count + 1, slot_len.saturating_add(all), longest.max(slot_len));
        }
        if !self.0.contains_key(&(author, seq)) {
            (count, all, longest) = (count + 1, len.saturating_add(all), longest.max(len));
        }
        if count > UPLOAD_COUNT_MAX || all - longest > UPLOAD_LEN_MAX {
            return Err(FsError::Busy);
        }
        let begin = || Slot { upload: Shared::default(), len: 0, touched: now };
        let slot = self.0.entry((author, seq)).or_insert_with(begin);
        slot.touched = now;
        Ok(slot.upload.clone())
    }

    fn came(&mut self, author: u32, seq: u64, len: u64) {
        if let Some(slot) = self.0.get_mut(&(author, seq)) {
            slot.len = len;
        }
    }

    fn take(&mut self, which: impl Fn(u32, u64, Duration) -> bool) -> Vec<(u32, u64, Shared)> {
        let taken = self.0.extract_if(|(author, seq), slot| which(*author, *seq, slot.touched));
        taken.map(|((author, seq), slot)| (author, seq, slot.upload)).collect()
    }
}

impl Exported {
    /// Takes bytes of a store that is to come. They may come twice, and in any order, and are dropped if the store has ended: whoever sends
    /// them again then is told so when it asks for the outcome.
    pub(crate) async fn upload(&self, whose: &Whose, seq: u64, offset: u64, data: &[u8]) -> Result<(), FsError> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > vfs::fs::FILE_SIZE_MAX) {
            return Err(FsError::FileTooLarge);
        }
        let author = whose.author;
        let upload = {
            let mut uploads = self.uploads.lock();
            // Stores end before their uploads are dropped: what is taken here is dropped later.
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

    /// A store has ended.
    pub(crate) async fn drop_upload(&self, author: u32, seq: u64) {
        self.drop_those(|by, other, _| (by, other) == (author, seq)).await;
    }

    /// A client has begun another log: all that was sent ahead is of no use.
    pub(crate) async fn drop_uploads(&self, author: u32) {
        self.drop_those(|by, _, _| by == author).await;
    }

    /// Operations up to this one have ended: what was sent ahead for one that did not come in the end is of no use.
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

    /// Drops what clients have uploaded that have gone away since. Whoever comes back meanwhile finds all of it, or nothing.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_uploads_are_bounded_by_their_bytes() {
        let mut uploads = Uploads::default();
        let mut add = |author, seq, len| {
            let added = uploads.admit(author, seq, len, Duration::ZERO).map(drop);
            if added.is_ok() {
                uploads.came(author, seq, len);
            }
            added
        };
        assert_eq!(add(1, 1, UPLOAD_LEN_MAX * 50), Ok(()), "a file may be long");
        assert_eq!(add(1, 2, UPLOAD_LEN_MAX), Ok(()));
        assert_eq!(add(1, 3, 1), Err(FsError::Busy));
        assert_eq!(add(2, 3, 1), Ok(()), "another client has room of its own");
        assert_eq!(uploads.take(|by, seq, _| (by, seq) == (1, 1)).len(), 1);
        assert!(uploads.admit(1, 3, 1, Duration::ZERO).is_ok(), "that one is the longest now");
    }
}
