//! Records what programs do in a mount: the mount's observer, with a bounded queue from which one
//! recording at a time takes.
//!
//! The recorder counts the records that the queue has no room for.

use fuse::{Access, Observer};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use trace::{Deed, Record};
use types::FileId;

/// Bound of the records that wait to be taken. A record takes some 48 bytes, so the queue stays
/// within some 12 MiB.
const QUEUE_COUNT_MAX: usize = 1 << 18;

/// Records what programs do in a mount, for one recording at a time.
#[derive(Debug)]
pub struct Recorder {
    is_on: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default, Debug)]
struct Queue {
    /// When the current recording began.
    begun: Option<Instant>,
    records: Vec<Record>,
    lost_count: u64,
    /// No further recording may begin.
    closed: bool,
}

/// What was recorded since the last [`take`](Recording::take).
#[derive(Default, Debug)]
pub struct Taken {
    /// The records, ordered by time since the recording began; their client is 0.
    pub records: Vec<Record>,
    /// Number of records that the queue had no room for.
    pub lost_count: u64,
    /// The mount has ended: nothing more comes.
    pub is_last: bool,
}

/// Why a recording cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Another recording is under way.
    #[error("this mount is being recorded already: end that recording first")]
    Busy,
    /// The mount is about to end.
    #[error("this mount is about to be unmounted")]
    Closed,
}

/// A recording; it ends when this is dropped.
pub struct Recording(Arc<Recorder>);

impl Recorder {
    /// A recorder that is off.
    pub fn new() -> Arc<Recorder> {
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

    /// Ends the current recording, if any, and refuses others. What was recorded can still be
    /// taken.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        self.is_on.store(false, Relaxed);
    }
}

impl Observer for Recorder {
    fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    fn on_access(&self, file: FileId, access: Access) {
        let mut queue = self.queue.lock();
        let Some(begun) = queue.begun.filter(|_| !queue.closed) else { return };
        if queue.records.len() >= QUEUE_COUNT_MAX {
            queue.lost_count += 1;
            return;
        }
        let time_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let deed = match access {
            Access::Read { offset, len } => Deed::Read { offset, len },
            Access::Write { offset, len } => Deed::Write { offset, len },
            Access::Delete => Deed::Delete,
        };
        queue.records.push(Record { time_us, client: 0, file: file.raw(), deed });
    }

    fn on_end(&self) {
        self.close();
    }
}

impl Recording {
    /// Takes what was recorded since the last call.
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

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId::new(7);

    #[test]
    fn only_one_records_and_nothing_is_noted_while_nobody_does() {
        let recorder = Recorder::new();
        assert!(!recorder.is_on());
        recorder.on_access(FILE, Access::Delete);
        let recording = recorder.begin().expect("no recording goes on");
        assert_eq!(recorder.begin().err(), Some(RecordError::Busy));
        assert!(recorder.is_on());
        recorder.on_access(FILE, Access::Write { offset: 5, len: 3 });
        recorder.on_access(FILE, Access::Delete);
        let taken = recording.take();
        let deeds: Vec<_> = taken.records.iter().map(|record| (record.file, record.client, record.deed)).collect();
        assert_eq!(deeds, [(7, 0, Deed::Write { offset: 5, len: 3 }), (7, 0, Deed::Delete)]);
        assert!(taken.records.is_sorted_by_key(|record| record.time_us));
        assert!(recording.take().records.is_empty());
        recorder.on_access(FILE, Access::Delete);
        drop(recording);
        assert!(!recorder.is_on());
        let next = recorder.begin().expect("no recording goes on");
        assert!(next.take().records.is_empty(), "what others did not take is not the next one's");
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let recorder = Recorder::new();
        let recording = recorder.begin().expect("no recording goes on");
        (0..QUEUE_COUNT_MAX + 3).for_each(|_| recorder.on_access(FILE, Access::Delete));
        let taken = recording.take();
        assert_eq!((taken.records.len(), taken.lost_count), (QUEUE_COUNT_MAX, 3));
        recorder.on_access(FILE, Access::Delete);
        assert_eq!((recording.take().lost_count, taken.is_last), (0, false));
    }

    #[test]
    fn the_end_of_a_mount_ends_a_recording_whose_rest_can_be_taken() {
        let recorder = Recorder::new();
        let recording = recorder.begin().expect("no recording goes on");
        recorder.on_access(FILE, Access::Delete);
        recorder.close();
        recorder.on_access(FILE, Access::Delete);
        let taken = recording.take();
        assert_eq!((taken.records.len(), taken.is_last), (1, true));
        assert_eq!(recorder.begin().err(), Some(RecordError::Closed));
        drop(recording);
        assert_eq!(recorder.begin().err(), Some(RecordError::Closed));
    }
}
