//! The facts of a trace: which clients did how much, how large requests are, how long written bytes
//! last, what is shared.
//!
//! Memory is bounded. If there are more files and written pieces than [`PIECE_COUNT_MAX`], only a
//! part of the files is looked at, chosen by a hash of their numbers, and the facts about files are
//! scaled up from it ([`Facts::sampled`]). The facts about requests and clients cover all of them.
//! Adjacent bytes that a client writes within a second are one piece, as old as its first byte. If
//! one file alone has more pieces than the bound, every other piece is forgotten, and the figures
//! about overwriting are too low.

use crate::{Deed, Record};
use host::{Random, SplitMix64};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Most files and written pieces in memory.
pub const PIECE_COUNT_MAX: usize = 1 << 22;
/// Most clients that are told apart; those with higher numbers count as one.
pub const CLIENT_COUNT_MAX: u32 = 1 << 20;
/// A client that does nothing for longer than this is not active (Froese and Bunt, section 4.2), in
/// microseconds.
pub const PAUSE_US: u64 = 15 * 60 * 1_000_000;

/// Upper bounds of age classes, in seconds.
const AGES_S: [u64; 11] = [1, 10, 30, 60, 300, 900, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600, u64::MAX];

/// One class of a histogram: values up to a bound, and above the bound before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Bucket {
    /// The bound; the highest number means none.
    pub up_to: u64,
    /// How many.
    pub count: u64,
}

/// The facts of a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Facts {
    /// Seconds from its beginning to its last record.
    pub seconds: f64,
    /// Clients that did something.
    pub clients: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes read, counted each time.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written, counted each time.
    pub written_bytes: u64,
    /// Removals.
    pub deletes: u64,
    /// Reads by their length in bytes: powers of two.
    pub read_sizes: Vec<Bucket>,
    /// Writes by their length in bytes: powers of two.
    pub write_sizes: Vec<Bucket>,
    /// Hours in which at least one client is active: the trace without the pauses of all clients
    /// that are longer than 15 minutes.
    pub active_hours: f64,
    /// Hours in which a client is active, on average.
    pub client_active_hours: f64,
    /// Part of the reads and writes that come from the most active tenth of the clients.
    pub busiest_tenth: f64,
    /// Reads and writes by the hour of the day; the trace begins with the first.
    pub by_hour: [u64; 24],
    /// Part of the files from which the following facts are scaled up; 1 means all.
    pub sampled: f64,
    /// Files that were used.
    pub files: u64,
    /// Their lengths together, as far as they were read or written.
    pub bytes: u64,
    /// Files that more than one client used.
    pub shared_files: u64,
    /// Files that more than one client read.
    pub files_of_many_readers: u64,
    /// Files that more than one client wrote or removed.
    pub files_of_many_writers: u64,
    /// Written bytes that were overwritten or removed, by how many seconds they lasted.
    pub lifetimes_s: Vec<Bucket>,
    /// Of those, bytes that were overwritten or removed by the client that had written them.
    pub ended_by_writer_bytes: u64,
    /// Written bytes that are still there at the end.
    pub lasting_bytes: u64,
}

/// No client, one, or several.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Who {
    #[default]
    None,
    One(u32),
    Many,
}

impl Who {
    fn and(&mut self, client: u32) {
        *self = match *self {
            Who::None => Who::One(client),
            Who::One(one) if one == client => Who::One(one),
            _ => Who::Many,
        };
    }
}

#[derive(Default, Debug)]
struct File {
    users: Who,
    readers: Who,
    writers: Who,
    len: u64,
    /// Written pieces: by first byte, the end, the time, and the client.
    pieces: BTreeMap<u64, (u64, u64, u32)>,
}

#[derive(Default, Debug)]
struct Client {
    requests: u64,
    active_us: u64,
    last_us: u64,
}

/// Gathers [`Facts`].
#[derive(Debug)]
pub struct Summary {
    reads: [u64; 65],
    writes: [u64; 65],
    read_bytes: u64,
    written_bytes: u64,
    deletes: u64,
    by_hour: [u64; 24],
    all: Client,
    clients: BTreeMap<u32, Client>,
    files: HashMap<u64, File>,
    /// Only files are looked at whose hashed number ends in this many zero bits.
    noughts: u32,
    piece_count: usize,
    piece_count_max: usize,
    lifetimes: [u64; AGES_S.len()],
    by_writer: u64,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary::bounded(PIECE_COUNT_MAX)
    }
}

impl Summary {
    /// A summary with at most this many files and written pieces in memory.
    fn bounded(piece_count_max: usize) -> Summary {
        Summary {
            reads: [0; 65],
            writes: [0; 65],
            read_bytes: 0,
            written_bytes: 0,
            deletes: 0,
            by_hour: [0; 24],
            all: Client::default(),
            clients: BTreeMap::new(),
            files: HashMap::new(),
            noughts: 0,
            piece_count: 0,
            piece_count_max,
            lifetimes: [0; AGES_S.len()],
            by_writer: 0,
        }
    }

    /// Adds a record; they come in the order of time.
    pub fn add(&mut self, record: &Record) {
        let Record { time_us, client, deed, .. } = *record;
        let client = client.min(CLIENT_COUNT_MAX);
        let requests = match deed {
            Deed::Read { len, .. } => {
                self.reads[bits(len)] += 1;
                self.read_bytes = self.read_bytes.saturating_add(len);
                1
            }
            Deed::Write { len, .. } => {
                self.writes[bits(len)] += 1;
                self.written_bytes = self.written_bytes.saturating_add(len);
                1
            }
            Deed::Delete => {
                self.deletes += 1;
                0
            }
        };
        self.by_hour[(time_us / 3_600_000_000 % 24) as usize] += requests;
        let first = Client { last_us: time_us, ..Client::default() };
        for of in [&mut self.all, self.clients.entry(client).or_insert(first)] {
            let since_us = time_us.saturating_sub(of.last_us);
            of.active_us += if since_us <= PAUSE_US { since_us } else { 0 };
            (of.last_us, of.requests) = (time_us, of.requests + requests);
        }
        if self.is_looked_at(record.file) {
            self.look_at(record);
            while self.files.len() + self.piece_count > self.piece_count_max && (self.look_at_fewer() || self.forget())
            {
            }
        }
    }

    fn is_looked_at(&self, file: u64) -> bool {
        SplitMix64::new(file).next_u64().trailing_zeros() >= self.noughts
    }

    /// Looks at half as many files from now on; does nothing if no known file would stay.
    fn look_at_fewer(&mut self) -> bool {
        let noughts = self.noughts + 1;
        let stays = |file: &u64| SplitMix64::new(*file).next_u64().trailing_zeros() >= noughts;
        if !self.files.keys().any(stays) {
            return false;
        }
        self.noughts = noughts;
        self.files.retain(|file, _| stays(file));
        self.piece_count = self.files.values().map(|file| file.pieces.len()).sum();
        // The bytes that ended belonged to twice as many files.
        self.lifetimes.iter_mut().chain([&mut self.by_writer]).for_each(|bytes| *bytes /= 2);
        true
    }

    /// Forgets every other piece; false if there are none.
    fn forget(&mut self) -> bool {
        let (before, mut nth) = (self.piece_count, 0usize);
        for file in self.files.values_mut() {
            file.pieces.retain(|_, _| {
                nth += 1;
                nth.is_multiple_of(2)
            });
        }
        self.piece_count = before / 2;
        before > 0
    }

    fn look_at(&mut self, record: &Record) {
        let Record { time_us, client, file, deed } = *record;
        let of = self.files.entry(file).or_default();
        of.users.and(client);
        let (start, end) = match deed {
            Deed::Read { offset, len } => {
                of.readers.and(client);
                of.len = of.len.max(offset.saturating_add(len));
                return;
            }
            Deed::Write { offset, len } => (offset, offset.saturating_add(len)),
            Deed::Delete => (0, u64::MAX),
        };
        of.writers.and(client);
        let before = of.pieces.len();
        for (bytes, written_us, writer) in cut(&mut of.pieces, start, end) {
            let age_s = time_us.saturating_sub(written_us).div_ceil(1_000_000);
            let at = AGES_S.partition_point(|bound| *bound < age_s);
            self.lifetimes[at] = self.lifetimes[at].saturating_add(bytes);
            self.by_writer = self.by_writer.saturating_add(if writer == client { bytes } else { 0 });
        }
        if deed != Deed::Delete && end > start {
            insert(&mut of.pieces, start, (end, time_us, client));
            of.len = of.len.max(end);
        }
        self.piece_count = self.piece_count + of.pieces.len() - before;
    }

    /// The facts gathered so far.
    pub fn facts(self) -> Facts {
        let scale = 1u64 << self.noughts;
        let count = |is: fn(&File) -> bool| self.files.values().filter(|file| is(file)).count() as u64 * scale;
        let sum = |of: fn(&File) -> u64| -> u64 {
            self.files.values().map(of).fold(0u64, u64::saturating_add).saturating_mul(scale)
        };
        let mut requests: Vec<u64> = self.clients.values().map(|client| client.requests).collect();
        requests.sort_unstable_by(|one, other| other.cmp(one));
        let busiest: u64 = requests[..requests.len().div_ceil(10)].iter().sum();
        let active_us = self.clients.values().map(|client| client.active_us).fold(0, u64::saturating_add);
        let hours = |us: u64| us as f64 / 3.6e9;
        let lifetimes_s = AGES_S
            .iter()
            .zip(self.lifetimes)
            .map(|(up_to, bytes)| Bucket { up_to: *up_to, count: bytes.saturating_mul(scale) })
            .collect();
        Facts {
            seconds: self.all.last_us as f64 / 1e6,
            clients: self.clients.len() as u64,
            reads: self.reads.iter().sum(),
            read_bytes: self.read_bytes,
            writes: self.writes.iter().sum(),
            written_bytes: self.written_bytes,
            deletes: self.deletes,
            read_sizes: sizes(&self.reads),
            write_sizes: sizes(&self.writes),
            active_hours: hours(self.all.active_us),
            client_active_hours: hours(active_us) / self.clients.len().max(1) as f64,
            busiest_tenth: busiest as f64 / self.all.requests.max(1) as f64,
            by_hour: self.by_hour,
            sampled: 1.0 / scale as f64,
            files: count(|_| true),
            bytes: sum(|file| file.len),
            shared_files: count(|file| file.users == Who::Many),
            files_of_many_readers: count(|file| file.readers == Who::Many),
            files_of_many_writers: count(|file| file.writers == Who::Many),
            lifetimes_s,
            ended_by_writer_bytes: self.by_writer.saturating_mul(scale),
            lasting_bytes: sum(|file| file.pieces.iter().map(|(start, (end, ..))| end - start).sum()),
        }
    }
}

/// The exponent of the smallest power of two that is not less.
fn bits(len: u64) -> usize {
    (u64::BITS - len.saturating_sub(1).leading_zeros()) as usize
}

fn sizes(counts: &[u64; 65]) -> Vec<Bucket> {
    let bound = |bits: usize| 1u64.checked_shl(bits as u32).unwrap_or(u64::MAX);
    let last = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts[..last].iter().enumerate().map(|(bits, count)| Bucket { up_to: bound(bits), count: *count }).collect()
}

/// Cuts a range out of the written pieces; returns what was there, each with its bytes, time and
/// client.
fn cut(pieces: &mut BTreeMap<u64, (u64, u64, u32)>, start: u64, end: u64) -> Vec<(u64, u64, u32)> {
    let mut gone = Vec::new();
    while let Some((at, (stop, written_us, writer))) =
        pieces.range(..end).next_back().map(|(at, piece)| (*at, *piece)).filter(|(_, (stop, ..))| *stop > start)
    {
        pieces.remove(&at);
        if stop > end {
            pieces.insert(end, (stop, written_us, writer));
        }
        if at < start {
            pieces.insert(at, (start, written_us, writer));
        }
        gone.push((stop.min(end) - at.max(start), written_us, writer));
    }
    gone
}

/// Inserts a written piece where there is none; joins it with an adjacent piece that the same
/// client wrote in the same second.
fn insert(
    pieces: &mut BTreeMap<u64, (u64, u64, u32)>,
    mut start: u64,
    (mut end, mut written_us, client): (u64, u64, u32),
) {
    let second = |us: u64| us / 1_000_000;
    let is_same = |us: u64, writer: u32| writer == client && second(us) == second(written_us);
    let before = pieces.range(..start).next_back().map(|(at, piece)| (*at, *piece));
    let before = before.filter(|(_, (stop, us, writer))| *stop == start && is_same(*us, *writer));
    let after = pieces.get(&end).copied().filter(|(_, us, writer)| is_same(*us, *writer));
    if let Some((stop, us, _)) = after {
        pieces.remove(&end);
        (end, written_us) = (stop, written_us.min(us));
    }
    if let Some((at, (_, us, _))) = before {
        (start, written_us) = (at, written_us.min(us));
    }
    pieces.insert(start, (end, written_us, client));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(time_us: u64, client: u32, file: u64, offset: u64, len: u64) -> Record {
        Record { time_us, client, file, deed: Deed::Write { offset, len } }
    }

    fn facts(records: &[Record]) -> Facts {
        let mut summary = Summary::default();
        records.iter().for_each(|record| summary.add(record));
        summary.facts()
    }

    #[test]
    fn what_is_in_a_trace_is_counted() {
        let second = 1_000_000;
        let read = |time_us, client, len| Record { time_us, client, file: 1, deed: Deed::Read { offset: 0, len } };
        let delete = Record { time_us: 7200 * second, client: 0, file: 2, deed: Deed::Delete };
        let of = facts(&[
            write(0, 0, 1, 0, 100),
            read(second, 0, 100),
            read(2 * second, 1, 1),
            // Over half of it, after 20 seconds, by another client.
            write(20 * second, 1, 1, 50, 100),
            write(20 * second, 0, 2, 0, 4096),
            delete,
        ]);
        assert_eq!((of.clients, of.files, of.reads, of.writes, of.deletes), (2, 2, 2, 3, 1));
        assert_eq!((of.read_bytes, of.written_bytes, of.bytes), (101, 4296, 150 + 4096));
        assert_eq!((of.shared_files, of.files_of_many_readers, of.files_of_many_writers), (1, 1, 1));
        let lived = |up_to| of.lifetimes_s.iter().find(|bucket| bucket.up_to == up_to).expect("a bucket").count;
        assert_eq!((lived(10), lived(30), lived(6 * 3600)), (0, 50, 4096));
        assert_eq!((of.ended_by_writer_bytes, of.lasting_bytes), (4096, 150));
        assert_eq!(of.seconds, 7200.0);
        assert!((of.active_hours - 20.0 / 3600.0).abs() < 1e-9, "{}", of.active_hours);
        assert_eq!((of.by_hour[0], of.by_hour[2], of.sampled), (5, 0, 1.0));
        let bucket = |up_to, count| Bucket { up_to, count };
        assert_eq!(of.read_sizes.iter().filter(|bucket| bucket.count > 0).count(), 2);
        assert_eq!(
            (of.read_sizes[0], of.read_sizes[7], of.write_sizes[12]),
            (bucket(1, 1), bucket(128, 1), bucket(4096, 1))
        );
        assert_eq!((of.busiest_tenth, facts(&[]).clients), (0.6, 0));
    }

    #[test]
    fn memory_is_bounded_and_what_is_sampled_is_near() {
        let records = (0..100_000u64).map(|nth| write(nth * 1000, (nth % 3) as u32, nth % 20_000, 0, 10));
        let mut summary = Summary::bounded(5000);
        for record in records {
            summary.add(&record);
            assert!(summary.files.len() + summary.piece_count <= 5000);
        }
        let of = summary.facts();
        assert!(of.sampled < 0.2, "{}", of.sampled);
        let near = |found: u64, exact: f64| (found as f64 / exact - 1.0).abs() < 0.1;
        assert!(near(of.files, 20_000.0) && near(of.lasting_bytes, 200_000.0), "{of:?}");
        let ended: u64 = of.lifetimes_s.iter().map(|bucket| bucket.count).sum();
        assert!(near(ended, 800_000.0), "{ended}");
        assert_eq!((of.writes, of.written_bytes), (100_000, 1_000_000));
    }

    #[test]
    fn regression_one_large_file_is_not_lost() {
        let mut summary = Summary::bounded(100);
        (0..100_000u64).for_each(|nth| summary.add(&write(nth * 100, 0, 7, nth * 4096, 4096)));
        assert_eq!(summary.piece_count, 10);
        let of = summary.facts();
        assert_eq!((of.files, of.sampled, of.lasting_bytes), (1, 1.0, 4096 * 100_000));
        // Pieces that are apart from each other.
        let mut summary = Summary::bounded(100);
        for nth in 0..10_000u64 {
            summary.add(&write(nth * 100, 0, 7, nth * 8192, 4096));
            assert!(summary.files.len() + summary.piece_count <= 100);
            assert_eq!(summary.piece_count, summary.files[&7].pieces.len());
        }
        let of = summary.facts();
        assert_eq!((of.files, of.bytes), (1, 9_999 * 8192 + 4096));
    }

    proptest! {
        /// Against a model that has each byte.
        #[test]
        fn prop_bytes_live_from_their_writing_to_their_end(
            deeds in prop::collection::vec((0u64..100, 0u64..40, 1u64..20, 0u32..2, prop::bool::weighted(0.1)), 0..60),
        ) {
            let (mut bytes, mut now_s) = (BTreeMap::<u64, (u64, u32)>::new(), 0);
            let (mut records, mut lived, mut by_writer) = (Vec::new(), vec![0u64; AGES_S.len()], 0u64);
            for (since_s, offset, len, client, is_delete) in deeds {
                now_s += since_s;
                let range = if is_delete { 0..1000 } else { offset..offset + len };
                let gone: Vec<u64> = bytes.range(range.clone()).map(|(at, _)| *at).collect();
                for at in gone {
                    let (written_s, writer) = bytes.remove(&at).expect("there");
                    lived[AGES_S.iter().position(|bound| now_s - written_s <= *bound).expect("a bucket")] += 1;
                    by_writer += u64::from(writer == client);
                }
                let deed = match is_delete {
                    true => Deed::Delete,
                    false => Deed::Write { offset, len },
                };
                if !is_delete {
                    bytes.extend(range.map(|at| (at, (now_s, client))));
                }
                records.push(Record { time_us: now_s * 1_000_000, client, file: 1, deed });
            }
            let of = facts(&records);
            prop_assert_eq!(of.lifetimes_s.iter().map(|bucket| bucket.count).collect::<Vec<_>>(), lived);
            prop_assert_eq!((of.ended_by_writer_bytes, of.lasting_bytes), (by_writer, bytes.len() as u64));
        }

        #[test]
        fn prop_nothing_in_a_trace_is_too_large(
            deeds in prop::collection::vec((any::<u32>(), any::<u64>(), 0u64..3, any::<u64>()), 0..40),
        ) {
            let mut summary = Summary::default();
            for (client, offset, file, len) in deeds {
                let (offset, len) = (offset / 2, (len / 2).max(1));
                summary.add(&Record { time_us: u64::MAX, client, file, deed: Deed::Write { offset, len } });
                summary.add(&Record { time_us: u64::MAX, client, file, deed: Deed::Read { offset, len } });
            }
            summary.facts();
        }
    }
}
