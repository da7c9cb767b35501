//! How traces are kept: a header, and records in the order of time, compressed (docs/trace-format.md).
//!
//! A trace ends with the number of its records, so that one that breaks off is not taken for a short one. Whatever is not a trace is refused with the number of
//! the record where that shows; nothing in a file makes a reader panic, or take more memory than a record needs.

use crate::{Deed, Record};
use std::io::{BufRead, Read, Write};
use thiserror::Error;
use types::codec::{self, Put};

const MAGIC: &[u8; 8] = b"starlint";
const VERSION: u16 = 1;
/// Longest text that says where a trace is from, in bytes.
const SOURCE_LEN_MAX: u64 = 4096;
const LEVEL: i32 = 3;
/// Most bytes of a number.
const NUMBER_LEN_MAX: usize = 10;

const END: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const DELETE: u8 = 3;

/// Why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum TraceError {
    /// It is something else.
    #[error("not a trace of Starling's: traces are made by `starling trace`")]
    Foreign,
    /// Made by a newer program.
    #[error("version {0} of the format, this program knows up to {VERSION}: use the version of starling that made it")]
    Version(u16),
    /// It breaks off.
    #[error("it breaks off after {0} records: it was copied in part, or is still being made")]
    Truncated(u64),
    /// What no writer writes.
    #[error("record {record}: {what}")]
    Invalid {
        /// Which, from 1; 0: the header.
        record: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The disk's, or the compression's.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Writes a trace.
pub struct Writer<W: Write> {
    to: zstd::stream::write::Encoder<'static, W>,
    count: u64,
    time_us: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace; `source` says what it is of, for people.
    pub fn new(mut to: W, source: &str) -> Result<Writer<W>, TraceError> {
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let mut to = zstd::stream::write::Encoder::new(to, LEVEL)?;
        let end = source.floor_char_boundary(SOURCE_LEN_MAX as usize);
        let mut buffer = Vec::new();
        buffer.put_number(end as u64);
        buffer.extend(&source.as_bytes()[..end]);
        to.write_all(&buffer)?;
        Ok(Writer { to, count: 0, time_us: 0, buffer })
    }

    /// Adds what was done next. `Invalid` if it was done before the one before it, or to no bytes.
    pub fn add(&mut self, record: &Record) -> Result<(), TraceError> {
        let Record { time_us, client, file, deed } = *record;
        let invalid = |what| Err(TraceError::Invalid { record: self.count + 1, what });
        let Some(since) = time_us.checked_sub(self.time_us) else {
            return invalid("earlier than the one before it: sort them by time");
        };
        let (op, range) = match deed {
            Deed::Read { offset, len } => (READ, Some((offset, len))),
            Deed::Write { offset, len } => (WRITE, Some((offset, len))),
            Deed::Delete => (DELETE, None),
        };
        if range.is_some_and(|(offset, len)| len == 0 || offset.checked_add(len).is_none()) {
            return invalid("it is of no bytes, or of more than a file can have");
        }
        self.buffer.clear();
        self.buffer.push(op);
        [since, client.into(), file].into_iter().for_each(|number| self.buffer.put_number(number));
        range.into_iter().flat_map(|(offset, len)| [offset, len]).for_each(|number| self.buffer.put_number(number));
        self.to.write_all(&self.buffer)?;
        (self.count, self.time_us) = (self.count + 1, time_us);
        Ok(())
    }

    /// Ends the trace. Without this, it reads as one that breaks off. Gives what it was written to.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.buffer.clear();
        self.buffer.push(END);
        self.buffer.put_number(self.count);
        self.to.write_all(&self.buffer)?;
        let mut to = self.to.finish()?;
        to.flush()?;
        Ok(to)
    }
}

/// Reads a trace: an iterator of its records, which ends after the first error.
pub struct Reader<R: BufRead> {
    from: std::io::BufReader<zstd::stream::read::Decoder<'static, R>>,
    source: String,
    count: u64,
    time_us: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    pub fn new(mut from: R) -> Result<Reader<R>, TraceError> {
        let mut header = [0; 10];
        from.read_exact(&mut header).map_err(|_| TraceError::Foreign)?;
        let (magic, version) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(TraceError::Foreign);
        }
        let version = u16::from_le_bytes([version[0], version[1]]);
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        let from = std::io::BufReader::new(zstd::stream::read::Decoder::with_buffer(from)?);
        let mut reader = Reader { from, source: String::new(), count: 0, time_us: 0, ended: false };
        let len = reader.number()?;
        if len > SOURCE_LEN_MAX {
            return Err(TraceError::Invalid { record: 0, what: "too long a text" });
        }
        let mut source = vec![0; len as usize];
        reader.from.read_exact(&mut source).map_err(|error| reader.broken(error))?;
        reader.source =
            String::from_utf8(source).map_err(|_| TraceError::Invalid { record: 0, what: "its text is none" })?;
        Ok(reader)
    }

    /// What it is of, for people.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn broken(&self, error: std::io::Error) -> TraceError {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => TraceError::Truncated(self.count),
            _ => TraceError::Io(error),
        }
    }

    fn invalid(&self, what: &'static str) -> TraceError {
        TraceError::Invalid { record: self.count + 1, what }
    }

    fn byte(&mut self) -> Result<u8, TraceError> {
        let mut byte = [0];
        self.from.read_exact(&mut byte).map_err(|error| self.broken(error))?;
        Ok(byte[0])
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        let (mut bytes, mut len) = ([0; NUMBER_LEN_MAX], 0);
        while len == 0 || (len < NUMBER_LEN_MAX && bytes[len - 1] >= 0x80) {
            bytes[len] = self.byte()?;
            len += 1;
        }
        let number = codec::Reader::new(&bytes[..len]).number("number");
        number.map_err(|_| self.invalid("a number that is too large, or longer than it need be"))
    }

    fn range(&mut self) -> Result<(u64, u64), TraceError> {
        let (offset, len) = (self.number()?, self.number()?);
        match len > 0 && offset.checked_add(len).is_some() {
            true => Ok((offset, len)),
            false => Err(self.invalid("it is of no bytes, or of more than a file can have")),
        }
    }

    fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let op = self.byte()?;
        if op == END {
            return match self.number()? == self.count && self.from.fill_buf()?.is_empty() {
                true => Ok(None),
                false => Err(self.invalid("the end does not say how many records there are, or is not the end")),
            };
        }
        let (since, client, file) = (self.number()?, self.number()?, self.number()?);
        let client = u32::try_from(client).map_err(|_| self.invalid("a client's number that is too large"))?;
        let time_us = self.time_us.checked_add(since).ok_or_else(|| self.invalid("a time that is too late"))?;
        let deed = match op {
            READ => self.range().map(|(offset, len)| Deed::Read { offset, len })?,
            WRITE => self.range().map(|(offset, len)| Deed::Write { offset, len })?,
            DELETE => Deed::Delete,
            _ => return Err(self.invalid("something is done that this version does not know")),
        };
        (self.count, self.time_us) = (self.count + 1, time_us);
        Ok(Some(Record { time_us, client, file, deed }))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.record().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let range = || (0..=u64::MAX / 2, 1..=u64::MAX / 2);
        let deed = prop_oneof![
            range().prop_map(|(offset, len)| Deed::Read { offset, len }),
            range().prop_map(|(offset, len)| Deed::Write { offset, len }),
            Just(Deed::Delete),
        ];
        let record = (0..1u64 << 40, any::<u32>(), any::<u64>(), deed);
        prop::collection::vec(record, 0..50).prop_map(|all| {
            let mut time_us = 0;
            let mut later = |since| {
                time_us += since;
                time_us
            };
            all.into_iter()
                .map(|(since, client, file, deed)| Record { time_us: later(since), client, file, deed })
                .collect()
        })
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), "a test").expect("begun");
        records.iter().for_each(|record| writer.add(record).expect("added"));
        writer.finish().expect("ended")
    }

    fn read(bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
        Reader::new(bytes)?.collect()
    }

    proptest! {
        #[test]
        fn prop_what_is_read_is_what_was_written(records in records()) {
            prop_assert_eq!(read(&written(&records)).expect("read"), records);
        }

        #[test]
        fn prop_no_part_of_a_trace_is_taken_for_a_trace(records in records(), part in 0.0..1.0f64) {
            let bytes = written(&records);
            let part = &bytes[..(bytes.len() as f64 * part) as usize];
            prop_assert!(matches!(read(part), Err(TraceError::Foreign | TraceError::Truncated(_) | TraceError::Io(_))));
        }

        #[test]
        fn prop_garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), header: bool) {
            let mut garbage = if header { written(&[])[..10].to_vec() } else { Vec::new() };
            if header {
                garbage.extend(zstd::bulk::compress(&bytes, LEVEL).expect("compressed"));
            } else {
                garbage.extend(&bytes);
            }
            // An error, or what happens to be one.
            let _ = read(&garbage);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_place() {
        let record = |time_us, len| Record { time_us, client: 0, file: 1, deed: Deed::Read { offset: 0, len } };
        let mut writer = Writer::new(Vec::new(), "a test").expect("begun");
        writer.add(&record(5, 1)).expect("added");
        for (wrong, said) in [(record(4, 1), "record 2: earlier"), (record(6, 0), "record 2: it is of no bytes")] {
            let error = writer.add(&wrong).expect_err("wrong");
            assert!(error.to_string().starts_with(said), "{error}");
        }
        let mut newer = written(&[]);
        newer[8] = 9;
        assert!(matches!(read(&newer), Err(TraceError::Version(9))));
        let mut more = written(&[record(5, 1)]);
        more.extend(zstd::bulk::compress(b"more", LEVEL).expect("compressed"));
        assert!(matches!(read(&more), Err(TraceError::Invalid { record: 2, .. })));
    }
}
