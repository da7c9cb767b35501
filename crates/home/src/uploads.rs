//! The uploads under way, and how much each client may have.

use roam_proto::ranges::Ranges;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::Handle;

/// Most uploads that a client has under way.
const UPLOAD_COUNT_MAX: usize = 256;
/// Most bytes of a client's uploads, except for the longest one, since a file may have any length.
const UPLOAD_LEN_MAX: u64 = 1 << 30;

/// An upload. The lock is held by the request that writes to it.
pub(crate) type Shared = Arc<tokio::sync::Mutex<Upload>>;

/// The bytes of a store, as far as they have come.
#[derive(Default)]
pub(crate) struct Upload {
    /// The file that has the bytes; `None` before the first byte.
    pub(crate) open: Option<(FileId, Handle)>,
    pub(crate) have: Ranges,
    /// The store has ended, and its bytes are no longer needed.
    pub(crate) ended: bool,
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

    /// Returns the upload to which a client wants to add `len` bytes, and begins it if it is new.
    /// EBUSY if the client has too much under way.
    pub(crate) fn admit(&mut self, author: u32, seq: u64, len: u64, now: Duration) -> Result<Shared, FsError> {
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

    /// Notes how many bytes of an upload have come.
    pub(crate) fn came(&mut self, author: u32, seq: u64, len: u64) {
        if let Some(slot) = self.0.get_mut(&(author, seq)) {
            slot.len = len;
        }
    }

    /// Takes out the uploads that `which` selects by author, operation, and the time of the last
    /// bytes.
    pub(crate) fn take(&mut self, which: impl Fn(u32, u64, Duration) -> bool) -> Vec<(u32, u64, Shared)> {
        let taken = self.0.extract_if(|(author, seq), slot| which(*author, *seq, slot.touched));
        taken.map(|((author, seq), slot)| (author, seq, slot.upload)).collect()
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
