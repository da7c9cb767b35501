//! The trace format: a header, records in the order of time, compressed, and a checksum
//! (docs/trace-format.md).
//!
//! A trace ends with the number of its records, so a truncated trace is not taken for a short one,
//! and a checksum covers each byte. A reader rejects anything else, and names the record where it
//! noticed. No input makes a reader panic, or allocate memory by a number in the file.

use crate::{Deed, Record};
use crc_fast::{CrcAlgorithm, Digest};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use thiserror::Error;
use types::codec::{self, Put};

const MAGIC: &[u8; 8] = b"starlint";
const VERSION: u16 = 2;
/// Magic and version; other versions may differ after them.
const PREFIX_LEN: usize = 10;
/// The [`Origin`] follows, and a checksum of everything before it.
const HEADER_LEN: usize = PREFIX_LEN + 8 + 8 + 1 + CHECKSUM_LEN;
const CHECKSUM_LEN: usize = 4;
/// Flags of the origin.
const HAS_BEGUN: u8 = 1;
const IS_CUT_SHORT: u8 = 2;
/// Largest window of the compression, as a power of two: as much as decoders should support (RFC
/// 8878, section 3.1.1.1.2), and more than [`LEVEL`] uses.
const WINDOW_LOG_MAX: u32 = 23;
/// Longest description of a trace's source, in bytes.
const SOURCE_LEN_MAX: u64 = 4096;
const LEVEL: i32 = 3;
/// Most bytes of an encoded number.
const NUMBER_LEN_MAX: usize = 10;

const END: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const DELETE: u8 = 3;

/// Why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file is not a trace.
    #[error("not a Starling trace: make one with `starling trace`")]
    Foreign,
    /// Another version of the program made it.
    #[error("version {0} of the format, this program knows {VERSION}: use the version of starling that made it")]
    Version(u16),
    /// The trace breaks off.
    #[error("it breaks off after {0} records: it was copied in part, or is still being made")]
    Truncated(u64),
    /// Its bytes are not those that were written.
    #[error("damaged after record {record}: {what}")]
    Damaged {
        /// Records read before the damage; some of them may be wrong.
        record: u64,
        /// How the damage shows.
        what: String,
    },
    /// The content is one that no writer writes.
    #[error("record {record}: {what}")]
    Invalid {
        /// The record, from 1; 0 is the header.
        record: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An error of the disk.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// When a trace was recorded, and what it lacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Origin {
    /// The start time, in microseconds since 1970 (UTC); `None` if it is unknown, or if the trace
    /// was made up.
    pub begun_us: Option<u64>,
    /// Records that were left out because they came faster than they could be written.
    pub lost_count: u64,
    /// The recording ended before its user stopped it.
    pub is_cut_short: bool,
}

impl Origin {
    fn header(&self) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.put_u16(VERSION);
        header.put_u64(self.begun_us.unwrap_or_default());
        header.put_u64(self.lost_count);
        let has_begun = if self.begun_us.is_some() { HAS_BEGUN } else { 0 };
        header.put_u8(has_begun | if self.is_cut_short { IS_CUT_SHORT } else { 0 });
        let mut checksum = checksum();
        checksum.update(&header);
        header.put_u32(checksum.finalize() as u32);
        header
    }

    /// Decodes the bytes between prefix and checksum, which match. `None` if no writer writes them.
    fn parse(header: &[u8; HEADER_LEN]) -> Option<Origin> {
        let mut from = codec::Reader::new(&header[PREFIX_LEN..]);
        let (begun_us, lost_count) = (from.u64("begun").ok()?, from.u64("lost").ok()?);
        let flags = from.u8("flags").ok()?;
        let begun_us = (flags & HAS_BEGUN != 0).then_some(begun_us);
        let origin = Origin { begun_us, lost_count, is_cut_short: flags & IS_CUT_SHORT != 0 };
        (origin.header() == header).then_some(origin)
    }
}

/// CRC-32C.
fn checksum() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

/// A stream whose bytes are added to a checksum.
struct Summed<T> {
    inner: T,
    checksum: Digest,
}

impl<T> Summed<T> {
    fn new(inner: T) -> Summed<T> {
        Summed { inner, checksum: checksum() }
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.checksum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl<R: BufRead> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.checksum.update(&buffer[..count]);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Summed<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // These bytes were buffered before, so this call reads nothing.
        if let Ok(shown) = self.inner.fill_buf() {
            self.checksum.update(&shown[..count]);
        }
        self.inner.consume(count);
    }
}

/// Writes a trace.
pub struct Writer<W: Write> {
    to: zstd::stream::write::Encoder<'static, Summed<W>>,
    count: u64,
    time_us: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace; `source` describes it for users. It has no [`Origin`] unless it is [finished
    /// with one](Writer::finish_with).
    pub fn new(mut to: W, source: &str) -> Result<Writer<W>, TraceError> {
        to.write_all(&Origin::default().header())?;
        let mut to = zstd::stream::write::Encoder::new(Summed::new(to), LEVEL)?;
        let end = source.floor_char_boundary(SOURCE_LEN_MAX as usize);
        let mut buffer = Vec::new();
        buffer.put_number(end as u64);
        buffer.extend(&source.as_bytes()[..end]);
        to.write_all(&buffer)?;
        Ok(Writer { to, count: 0, time_us: 0, buffer })
    }

    /// Adds the next record. `Invalid` if its time is before the last one's, or if it has no bytes.
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
            return invalid("it has no bytes, or reaches beyond the largest file");
        }
        self.buffer.clear();
        self.buffer.push(op);
        [since, client.into(), file].into_iter().for_each(|number| self.buffer.put_number(number));
        range.into_iter().flat_map(|(offset, len)| [offset, len]).for_each(|number| self.buffer.put_number(number));
        self.to.write_all(&self.buffer)?;
        (self.count, self.time_us) = (self.count + 1, time_us);
        Ok(())
    }

    /// Ends the trace, and returns the writer below. Without this, the trace reads as truncated.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.buffer.clear();
        self.buffer.push(END);
        self.buffer.put_number(self.count);
        self.to.write_all(&self.buffer)?;
        let Summed { inner: mut to, checksum } = self.to.finish()?;
        to.write_all(&(checksum.finalize() as u32).to_le_bytes())?;
        to.flush()?;
        Ok(to)
    }
}

impl<W: Write + Seek> Writer<W> {
    /// [Ends](Writer::finish) the trace, which must start at the beginning of the writer, and adds
    /// its origin.
    pub fn finish_with(self, origin: &Origin) -> Result<W, TraceError> {
        let mut to = self.finish()?;
        to.seek(SeekFrom::Start(0))?;
        to.write_all(&origin.header())?;
        to.seek(SeekFrom::End(0))?;
        to.flush()?;
        Ok(to)
    }
}

/// Reads a trace: an iterator over its records, which ends after the first error.
pub struct Reader<R: BufRead> {
    from: BufReader<zstd::stream::read::Decoder<'static, Summed<R>>>,
    origin: Origin,
    source: String,
    count: u64,
    time_us: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    pub fn new(mut from: R) -> Result<Reader<R>, TraceError> {
        let mut header = [0; HEADER_LEN];
        from.read_exact(&mut header[..PREFIX_LEN]).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => TraceError::Foreign,
            _ => TraceError::Io(error),
        })?;
        let version = u16::from_le_bytes([header[PREFIX_LEN - 2], header[PREFIX_LEN - 1]]);
        if !header.starts_with(MAGIC) {
            return Err(TraceError::Foreign);
        }
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        from.read_exact(&mut header[PREFIX_LEN..]).map_err(|error| broken(0, error))?;
        let origin = Origin::parse(&header);
        let origin = origin.ok_or_else(|| TraceError::Damaged { record: 0, what: "its header has changed".into() })?;
        let mut from = zstd::stream::read::Decoder::with_buffer(Summed::new(from))?.single_frame();
        from.window_log_max(WINDOW_LOG_MAX)?;
        let from = BufReader::new(from);
        let mut reader = Reader { from, origin, source: String::new(), count: 0, time_us: 0, ended: false };
        let len = reader.number()?;
        if len > SOURCE_LEN_MAX {
            return Err(TraceError::Invalid { record: 0, what: "its text is too long" });
        }
        let mut source = vec![0; len as usize];
        reader.from.read_exact(&mut source).map_err(|error| reader.broken(error))?;
        reader.source =
            String::from_utf8(source).map_err(|_| TraceError::Invalid { record: 0, what: "its text is not UTF-8" })?;
        Ok(reader)
    }

    /// The description of the source, for users.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// When the trace was recorded, and what it lacks.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    fn broken(&self, error: std::io::Error) -> TraceError {
        broken(self.count, error)
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
        number.map_err(|_| self.invalid("a number is too large, or not in its shortest form"))
    }

    fn range(&mut self) -> Result<(u64, u64), TraceError> {
        let (offset, len) = (self.number()?, self.number()?);
        match len > 0 && offset.checked_add(len).is_some() {
            true => Ok((offset, len)),
            false => Err(self.invalid("it has no bytes, or reaches beyond the largest file")),
        }
    }

    /// Checks the bytes after the last record.
    fn end(&mut self) -> Result<(), TraceError> {
        let (count, number) = (self.count, self.number()?);
        let is_end = self.from.fill_buf().map_err(|error| broken(count, error))?.is_empty();
        if number != count || !is_end {
            return Err(self.invalid("the end has a wrong number of records, or is not the end"));
        }
        let Summed { inner, checksum } = self.from.get_mut().get_mut();
        let mut written = [0; CHECKSUM_LEN];
        inner.read_exact(&mut written).map_err(|error| broken(count, error))?;
        if u32::from_le_bytes(written) != checksum.finalize() as u32 {
            return Err(TraceError::Damaged { record: count, what: "its bytes do not match their checksum".into() });
        }
        match inner.fill_buf()?.is_empty() {
            true => Ok(()),
            false => Err(self.invalid("something follows the end")),
        }
    }

    fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let op = self.byte()?;
        if op == END {
            return self.end().map(|()| None);
        }
        let (since, client, file) = (self.number()?, self.number()?, self.number()?);
        let client = u32::try_from(client).map_err(|_| self.invalid("its client's number is too large"))?;
        let time_us = self.time_us.checked_add(since).ok_or_else(|| self.invalid("its time is too large"))?;
        let deed = match op {
            READ => self.range().map(|(offset, len)| Deed::Read { offset, len })?,
            WRITE => self.range().map(|(offset, len)| Deed::Write { offset, len })?,
            DELETE => Deed::Delete,
            _ => return Err(self.invalid("it has a kind that this version does not know")),
        };
        (self.count, self.time_us) = (self.count + 1, time_us);
        Ok(Some(Record { time_us, client, file, deed }))
    }
}

/// The reason why reading failed after `record` records: the disk, the end of the file, or bytes
/// that cannot be decompressed.
fn broken(record: u64, error: std::io::Error) -> TraceError {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => TraceError::Truncated(record),
        _ if error.raw_os_error().is_some() => TraceError::Io(error),
        _ => TraceError::Damaged { record, what: error.to_string() },
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
            prop_assert!(matches!(read(part), Err(TraceError::Foreign | TraceError::Truncated(_))));
        }

        #[test]
        fn prop_a_trace_with_a_changed_byte_is_refused(records in records(), at in 0.0..1.0f64, change in 1..=u8::MAX) {
            let mut bytes = written(&records);
            let at = (bytes.len() as f64 * at) as usize;
            bytes[at] ^= change;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn prop_garbage_is_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..300), records in records(), part in 0.0..=1.0f64, is_compressed: bool,
        ) {
            let trace = written(&records);
            // After a part of a trace, which may be empty or all of it.
            let kept = &trace[..(trace.len() as f64 * part) as usize];
            let bytes = if is_compressed { zstd::bulk::compress(&bytes, LEVEL).expect("compressed") } else { bytes };
            let garbage = [kept, &bytes].concat();
            prop_assume!(garbage != trace);
            prop_assert!(read(&garbage).is_err());
            // As the compressed part, under a correct checksum: it is not the right number of
            // records, or does not end with it.
            let framed = framed(&bytes);
            prop_assert!(read(&framed).is_err());
        }
    }

    /// A trace up to its compressed part, and then `frame`.
    fn framed(frame: &[u8]) -> Vec<u8> {
        let mut sum = checksum();
        sum.update(frame);
        [&Origin::default().header(), frame, &(sum.finalize() as u32).to_le_bytes()].concat()
    }

    #[test]
    fn a_trace_with_any_bit_changed_is_refused() {
        let record = |time_us, deed| Record { time_us, client: 0, file: 300, deed };
        let records: Vec<Record> = (0..200)
            .map(|nth| match nth % 3 {
                0 => record(nth * 1000, Deed::Read { offset: nth * 4096, len: 4096 }),
                1 => record(nth * 1000, Deed::Write { offset: nth, len: 1 << 40 }),
                _ => record(nth * 1000, Deed::Delete),
            })
            .collect();
        let mut bytes = written(&records);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes).is_err(), "bit {bit} of {}", bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(read(&bytes).expect("as it was written"), records);
    }

    #[test]
    fn where_a_trace_is_from_is_kept() {
        for origin in [
            Origin { begun_us: Some(1_700_000_000_000_000), lost_count: 3, is_cut_short: true },
            Origin { begun_us: Some(0), lost_count: u64::MAX, is_cut_short: false },
            Origin::default(),
        ] {
            let mut writer = Writer::new(std::io::Cursor::new(Vec::new()), "a test").expect("begun");
            writer.add(&Record { time_us: 1, client: 2, file: 3, deed: Deed::Delete }).expect("added");
            let bytes = writer.finish_with(&origin).expect("ended").into_inner();
            let reader = Reader::new(&bytes[..]).expect("a trace");
            assert_eq!((reader.origin(), reader.source()), (origin, "a test"));
            assert_eq!(reader.filter(Result::is_ok).count(), 1);
            assert_eq!(read(&bytes).expect("whole").len(), 1);
        }
    }

    #[test]
    fn what_a_disk_says_is_said_once() {
        let error = TraceError::from(std::io::Error::from_raw_os_error(28));
        assert!(std::error::Error::source(&error).is_none(), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_the_place() {
        let record = |time_us, len| Record { time_us, client: 0, file: 1, deed: Deed::Read { offset: 0, len } };
        let mut writer = Writer::new(Vec::new(), "a test").expect("begun");
        writer.add(&record(5, 1)).expect("added");
        for (wrong, said) in [(record(4, 1), "record 2: earlier"), (record(6, 0), "record 2: it has no bytes")] {
            let error = writer.add(&wrong).expect_err("wrong");
            assert!(error.to_string().starts_with(said), "{error}");
        }
        let mut newer = written(&[]);
        newer[8] = 9;
        assert!(matches!(read(&newer), Err(TraceError::Version(9))));
        let mut more = written(&[record(5, 1)]);
        more.extend(zstd::bulk::compress(b"more", LEVEL).expect("compressed"));
        assert!(matches!(read(&more), Err(TraceError::Invalid { record: 2, .. })));
        let mut damaged = written(&(5..20_000).map(|time_us| record(time_us, time_us * time_us)).collect::<Vec<_>>());
        let at = damaged.len() - 200;
        damaged[at..at + 100].fill(0xff);
        let error = read(&damaged).expect_err("damaged").to_string();
        let nth =
            error.strip_prefix("damaged after record ").and_then(|rest| rest.split(':').next()?.parse::<u64>().ok());
        assert!(nth.is_some_and(|nth| nth > 1000), "{error}");
    }
}
