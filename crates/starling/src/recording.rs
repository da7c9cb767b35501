//! Sends the records of a mount from the process that serves it to `trace record`.
//!
//! The command writes the trace, as the user who runs it. The serving process only sends numbers
//! over the control socket. It sends a line every [`TICK`], even an empty one: so it notices when
//! the command has died, and ends the recording. The command asks for the end over a second
//! connection, and still gets the records that were made before.

use crate::recorder::{RecordError, Recorder, Taken};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use trace::{Deed, Record};

/// Time between two lines. It bounds how long a dead command's recording goes on.
const TICK: Duration = Duration::from_millis(100);
/// Largest number of records in a line.
const LINE_COUNT_MAX: usize = 1000;
/// Numbers per record in a line.
const NUMBER_COUNT: usize = 5;

const READ: u64 = 1;
const WRITE: u64 = 2;
const DELETE: u64 = 3;

/// The recordings of a mount, one at a time.
pub struct Recordings {
    recorder: Arc<Recorder>,
    next: AtomicU64,
    /// All recordings up to this number are to end.
    ended: watch::Sender<u64>,
}

/// A record as the numbers that are sent.
fn numbers(record: &Record) -> [u64; NUMBER_COUNT] {
    let (what, offset, len) = match record.deed {
        Deed::Read { offset, len } => (READ, offset, len),
        Deed::Write { offset, len } => (WRITE, offset, len),
        Deed::Delete => (DELETE, 0, 0),
    };
    [record.time_us, record.file, what, offset, len]
}

/// The records in a line; `None` if the line is invalid.
pub fn records_of(line: &Value) -> Option<Vec<Record>> {
    let numbers: Vec<u64> = line["records"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    let (records, rest) = numbers.as_chunks::<NUMBER_COUNT>();
    let record = |&[time_us, file, what, offset, len]: &[u64; NUMBER_COUNT]| {
        let deed = match what {
            READ => Deed::Read { offset, len },
            WRITE => Deed::Write { offset, len },
            DELETE => Deed::Delete,
            _ => return None,
        };
        Some(Record { time_us, client: 0, file, deed })
    };
    if rest.is_empty() { records.iter().map(record).collect() } else { None }
}

impl Recordings {
    /// The recordings of the mount that `recorder` observes.
    pub fn new(recorder: Arc<Recorder>) -> Recordings {
        Recordings { recorder, next: AtomicU64::new(1), ended: watch::Sender::new(0) }
    }

    /// Records until the command asks for the end, its connection breaks, or the mount ends. Sends
    /// first the recording's number and when it began, in microseconds since 1970.
    pub async fn serve(&self, progress: mpsc::Sender<Value>) -> Result<Value, String> {
        let recording = self.recorder.begin().map_err(|error: RecordError| error.to_string())?;
        let begun_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let number = self.next.fetch_add(1, Relaxed);
        let mut ended = self.ended.subscribe();
        let mut lost_count = 0;
        let mut told = progress.send(json!({ "number": number, "begun_us": begun_us })).await;
        let mut is_last = false;
        while told.is_ok() && !is_last {
            let end = tokio::time::timeout(TICK, ended.wait_for(|ended| *ended >= number)).await.is_ok();
            let taken: Taken = recording.take();
            (is_last, lost_count) = (end || taken.is_last, lost_count + taken.lost_count);
            // At least one line: a failed send shows that the command has died.
            let mut lines = taken.records.chunks(LINE_COUNT_MAX);
            let mut line = lines.next().or(Some(&[]));
            while let (Some(records), Ok(())) = (line, &told) {
                let numbers: Vec<u64> = records.iter().flat_map(numbers).collect();
                told = progress.send(json!({ "records": numbers })).await;
                line = lines.next();
            }
        }
        told.map_err(|_| "the command that recorded has ended".to_owned())?;
        Ok(json!({ "lost": lost_count }))
    }

    /// Ends a recording, unless it has ended.
    pub fn end(&self, number: u64) -> Result<Value, String> {
        self.ended.send_if_modified(|ended| {
            let is_later = *ended < number && number < self.next.load(Relaxed);
            if is_later {
                *ended = number;
            }
            is_later
        });
        Ok(json!({}))
    }

    /// Ends the recording, and refuses others: the mount is about to end.
    pub fn close(&self) {
        self.recorder.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_records_is_understood_and_nothing_else_is() {
        let of = |deed| Record { time_us: 7, client: 0, file: 1 << 60, deed };
        let records =
            [of(Deed::Read { offset: 5, len: u64::MAX - 5 }), of(Deed::Write { offset: 0, len: 1 }), of(Deed::Delete)];
        let told: Vec<u64> = records.iter().flat_map(numbers).collect();
        assert_eq!(records_of(&json!({ "records": told })), Some(records.to_vec()));
        assert_eq!(records_of(&json!({ "records": [] })), Some(Vec::new()));
        for wrong in [json!([1, 2, 3, 4]), json!([1, 2, 9, 4, 5]), json!([1, 2, -1, 4, 5]), json!("text"), Value::Null]
        {
            assert_eq!(records_of(&json!({ "records": wrong })), None, "{wrong}");
        }
    }
}
