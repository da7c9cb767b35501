//! How a process that serves a mount tells `trace record` what is done there.
//!
//! The command makes the trace, as the user who runs it: from here come only numbers, over the
//! control socket, some every [`TICK`], even if there are none, so that a command that has died is
//! noticed and its recording ends. The command asks for the end over another connection; what there
//! is still to say comes first.

use crate::recorder::{RecordError, Recorder, Taken};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use trace::{Deed, Record};

/// How often something is said.
const TICK: Duration = Duration::from_millis(100);
/// Records that are told in one line.
const LINE_COUNT_MAX: usize = 1000;
/// Numbers that a record takes in a line.
const NUMBER_COUNT: usize = 5;

const READ: u64 = 1;
const WRITE: u64 = 2;
const DELETE: u64 = 3;

/// Recordings of a mount, of which there is one at a time.
pub struct Recordings {
    recorder: Arc<Recorder>,
    next: AtomicU64,
    /// The number of the last one that is to end.
    ended: watch::Sender<u64>,
}

/// A record as it is told.
fn numbers(record: &Record) -> [u64; NUMBER_COUNT] {
    let (what, offset, len) = match record.deed {
        Deed::Read { offset, len } => (READ, offset, len),
        Deed::Write { offset, len } => (WRITE, offset, len),
        Deed::Delete => (DELETE, 0, 0),
    };
    [record.time_us, record.file, what, offset, len]
}

/// The records that a line tells. `None` for what is none.
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
    /// Of a mount.
    pub fn new(recorder: Arc<Recorder>) -> Recordings {
        Recordings { recorder, next: AtomicU64::new(1), ended: watch::Sender::new(0) }
    }

    /// Records until the end is asked for, nobody listens any more, or the mount ends. Tells the
    /// recording's number first, and when it began, in microseconds since 1970.
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
            // At least one line, that the command be known to live.
            let mut lines = taken.records.chunks(LINE_COUNT_MAX);
            let mut line = lines.next().or(Some(&[]));
            while let (Some(records), Ok(())) = (line, &told) {
                let numbers: Vec<u64> = records.iter().flat_map(numbers).collect();
                told = progress.send(json!({ "records": numbers })).await;
                line = lines.next();
            }
        }
        told.map_err(|_| "nobody listens".to_owned())?;
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

    /// The mount is about to end.
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
