//! What programs do with files while somebody records it: a bounded queue, from which whoever records takes.
//!
//! While nobody does, a request costs one look at a flag. While somebody does, files are opened so that the kernel asks for what is read: not passed by, and
//! without what the kernel has cached of them. What was open before stays as it was. What the queue has no room for is counted.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use trace::{Deed, Record};
use types::{Answer, Attr, FileId, Kind};
use vfs::fs::{Cred, Entry, FileSystem};

/// Records that wait to be taken.
const QUEUE_COUNT_MAX: usize = 1 << 18;

/// What is recorded of a mount. One at a time may record.
pub struct Recorder {
    is_on: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// When the recording began that goes on.
    begun: Option<Instant>,
    records: Vec<Record>,
    lost_count: u64,
    /// No recording begins any more.
    closed: bool,
}

/// What was recorded since the last time.
#[derive(Default, Debug)]
pub struct Taken {
    /// In the order of time since the recording began, all of client 0.
    pub records: Vec<Record>,
    /// How many there was no room for.
    pub lost_count: u64,
    /// The mount has ended: nothing more comes.
    pub is_last: bool,
}

/// Why nothing can be recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Somebody else records.
    #[error("it is being recorded already: end that recording first")]
    Busy,
    /// The mount is about to end.
    #[error("it is about to be unmounted")]
    Closed,
}

/// A recording, which goes on until this is dropped.
pub struct Recording(Arc<Recorder>);

impl Recorder {
    pub(crate) fn new() -> Arc<Recorder> {
        Arc::new(Recorder { is_on: AtomicBool::new(false), queue: Mutex::default() })
    }

    /// Begins a recording.
    pub fn begin(self: &Arc<Self>) -> Result<Recording, RecordError> {
        let mut queue = self.queue.lock();
        match *queue {
            Queue { closed: true, .. } => return Err(RecordError::Closed),
            Queue { begun: Some(_), .. } => return Err(RecordError::Busy),
            _ => *queue = Queue { begun: Some(Instant::now()), ..Queue::default() },
        }
        self.is_on.store(true, Relaxed);
        Ok(Recording(Arc::clone(self)))
    }

    /// Ends the recording that goes on, if any, and lets no other begin; what was recorded may still be taken.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        self.is_on.store(false, Relaxed);
    }

    /// To note with what is done, while somebody records.
    pub(crate) fn if_on(self: &Arc<Self>) -> Option<Arc<Self>> {
        self.is_on.load(Relaxed).then(|| Arc::clone(self))
    }

    /// Notes what was done.
    pub(crate) fn note(&self, file: FileId, deed: Deed) {
        let mut queue = self.queue.lock();
        let Some(begun) = queue.begun.filter(|_| !queue.closed) else { return };
        if queue.records.len() >= QUEUE_COUNT_MAX {
            queue.lost_count += 1;
            return;
        }
        let time_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        queue.records.push(Record { time_us, client: 0, file: file.raw(), deed });
    }

    /// Notes that a file was removed or emptied, if one was.
    pub(crate) fn note_removed(&self, file: Option<FileId>) {
        file.into_iter().for_each(|file| self.note(file, Deed::Delete));
    }

    /// Notes that bytes were read, if any.
    pub(crate) fn note_read(&self, file: FileId, offset: u64, len: u64) {
        if len > 0 {
            self.note(file, Deed::Read { offset, len });
        }
    }

    /// Notes that bytes were written, if any.
    pub(crate) fn note_write(&self, file: FileId, offset: u64, len: u64) {
        if len > 0 {
            self.note(file, Deed::Write { offset, len });
        }
    }
}

impl Recording {
    /// What was recorded since the last time.
    pub fn take(&self) -> Taken {
        let mut queue = self.0.queue.lock();
        let records = std::mem::take(&mut queue.records);
        Taken { records, lost_count: std::mem::take(&mut queue.lost_count), is_last: queue.closed }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.is_on.store(false, Relaxed);
        let mut queue = self.0.queue.lock();
        *queue = Queue { closed: queue.closed, ..Queue::default() };
    }
}

/// A file that has this name, and no other: removing the name removes the file.
pub(crate) async fn only_name(fs: &Arc<dyn FileSystem>, cred: &Cred, parent: FileId, name: &[u8]) -> Option<FileId> {
    let found = attr_of(fs.lookup(cred, parent, name)).await?;
    (found.kind == Kind::File && found.nlink <= 1).then_some(found.id)
}

/// Whether there is anything in a file: emptying it removes that.
pub(crate) async fn has_bytes(fs: &Arc<dyn FileSystem>, file: FileId) -> bool {
    attr_of(fs.getattr(file)).await.is_some_and(|found| found.kind == Kind::File && found.size > 0)
}

async fn attr_of(answer: Answer<Entry>) -> Option<Attr> {
    Some(answer.await.ok()?.attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId::new(7);

    #[test]
    fn only_one_records_and_nothing_is_noted_while_nobody_does() {
        let recorder = Recorder::new();
        assert!(recorder.if_on().is_none());
        recorder.note(FILE, Deed::Delete);
        let recording = recorder.begin().expect("nobody records");
        assert_eq!(recorder.begin().err(), Some(RecordError::Busy));
        assert!(recorder.if_on().is_some());
        recorder.note_read(FILE, 5, 0);
        recorder.note_write(FILE, 5, 3);
        recorder.note(FILE, Deed::Delete);
        let taken = recording.take();
        let deeds: Vec<_> = taken.records.iter().map(|record| (record.file, record.client, record.deed)).collect();
        assert_eq!(deeds, [(7, 0, Deed::Write { offset: 5, len: 3 }), (7, 0, Deed::Delete)]);
        assert!(taken.records.is_sorted_by_key(|record| record.time_us));
        assert!(recording.take().records.is_empty());
        recorder.note(FILE, Deed::Delete);
        drop(recording);
        assert!(recorder.if_on().is_none());
        let next = recorder.begin().expect("nobody records any more");
        assert!(next.take().records.is_empty(), "what others did not take is not the next one's");
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let recorder = Recorder::new();
        let recording = recorder.begin().expect("nobody records");
        (0..QUEUE_COUNT_MAX + 3).for_each(|_| recorder.note(FILE, Deed::Delete));
        let taken = recording.take();
        assert_eq!((taken.records.len(), taken.lost_count), (QUEUE_COUNT_MAX, 3));
        recorder.note(FILE, Deed::Delete);
        assert_eq!((recording.take().lost_count, taken.is_last), (0, false));
    }

    #[test]
    fn the_end_of_a_mount_ends_a_recording_whose_rest_can_be_taken() {
        let recorder = Recorder::new();
        let recording = recorder.begin().expect("nobody records");
        recorder.note(FILE, Deed::Delete);
        recorder.close();
        recorder.note(FILE, Deed::Delete);
        let taken = recording.take();
        assert_eq!((taken.records.len(), taken.is_last), (1, true));
        assert_eq!(recorder.begin().err(), Some(RecordError::Closed));
        drop(recording);
        assert_eq!(recorder.begin().err(), Some(RecordError::Closed));
    }
}
