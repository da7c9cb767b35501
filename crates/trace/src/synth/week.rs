//! A week of one user's work: sessions in the mornings and afternoons. Files are read whole or in
//! part, mostly those read lately, and some are written over and over in small pieces.
//!
//! The fields of [`Week`] are what Froese and Bunt state of their traces. What they do not state is
//! assumed: new files come as the square root of the requests done (Heaps' law), a fourth of the
//! files is also written, and files used later are preferred ([`Week::recency`]).

use super::draw::{chance, part, rank, size_at};
use super::hours::{DAY_COUNT_MAX, HOUR_US, Hours};
use crate::WorkloadError::{self, Bounds, FewReads, FewWrittenBytes, ManyReadBytes, Range, RareRequests};
use crate::{Deed, Record};
use host::SplitMix64;

const REQUEST_COUNT_MAX: u64 = 1 << 32;
const FILE_COUNT_MAX: u64 = 1 << 16;
const BYTES_MAX: u64 = 1 << 50;
/// Least mean size of the files, in bytes.
const FILE_BYTES_MIN: u64 = 64;
/// Most hours of work per day.
const HOURS_A_DAY_MAX: f64 = 4.0;
/// Longest pause within a session, roughly: the paper does not count longer ones as active.
const PAUSE_US_MAX: u64 = HOUR_US / 6;
/// Time between two requests of a burst, in microseconds.
const REQUEST_US: u64 = 5000;
/// Most requests of a burst.
const BURST_MAX: u64 = 60;
/// Most writes of a file that follow each other.
const WRITES_MAX: u64 = 200;
/// Part of the files that are large.
const LARGE: f64 = 0.02;
/// Part of the files that are also written, and their largest size in bytes.
const WRITTEN: f64 = 0.25;
const WRITTEN_BYTES_MAX: u64 = 256 << 10;
/// Part of the reads that read only a part of their file.
const PARTIAL: f64 = 0.22;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Week {
    /// Days. The first is a Monday.
    pub days: u32,
    /// Hours of work in all: no pause longer than 15 minutes counts.
    pub active_h: f64,
    /// Reads and writes.
    pub requests: u64,
    /// Part of them that are writes.
    pub writes: f64,
    /// Number of files that are used.
    pub files: u64,
    /// Size of all these files together, in bytes.
    pub unique_bytes: u64,
    /// Bytes read, counted each time.
    pub read_bytes: u64,
    /// Bytes written, counted each time.
    pub written_bytes: u64,
    /// How strongly files used lately are preferred: a power of the number of other files used
    /// since.
    pub recency: f64,
    /// The same seed gives the same trace.
    pub seed: u64,
}

impl Week {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let bytes = |of: u64| (1..=BYTES_MAX).contains(&of);
        WorkloadError::first([
            (!(1..=DAY_COUNT_MAX).contains(&self.days), Bounds("days", 1, DAY_COUNT_MAX.into())),
            (
                !(self.active_h >= 0.01 && self.active_h <= HOURS_A_DAY_MAX * f64::from(self.days)),
                Range("active-h", "a hundredth of an hour to four hours for each day"),
            ),
            (!(1..=REQUEST_COUNT_MAX).contains(&self.requests), Bounds("requests", 1, REQUEST_COUNT_MAX)),
            (self.active_us() / self.requests.max(1) > PAUSE_US_MAX, RareRequests),
            (!(0.0..=1.0).contains(&self.writes), Range("writes", "a part, 0 to 1")),
            (!(1..=FILE_COUNT_MAX).contains(&self.files), Bounds("files", 1, FILE_COUNT_MAX)),
            (self.reads() < self.files, FewReads),
            (
                !bytes(self.unique_bytes) || self.unique_bytes < self.files * FILE_BYTES_MIN,
                Range("unique-bytes", "64 for each file, to 1 PiB"),
            ),
            (
                !bytes(self.read_bytes) || self.read_bytes < self.unique_bytes,
                Range("read-bytes", "unique-bytes to 1 PiB"),
            ),
            (self.written_bytes > BYTES_MAX, Range("written-bytes", "to 1 PiB")),
            (self.written_bytes < self.requests - self.reads(), FewWrittenBytes),
            (!(0.0..=10.0).contains(&self.recency), Range("recency", "0 to 10")),
        ])?;
        let largest = self.sizes().into_iter().max().unwrap_or_default();
        match u128::from(self.read_bytes) > u128::from(largest) * u128::from(self.reads()) {
            true => Err(ManyReadBytes),
            false => Ok(()),
        }
    }

    fn active_us(&self) -> u64 {
        (self.active_h * HOUR_US as f64) as u64
    }

    fn reads(&self) -> u64 {
        self.requests - ((self.requests as f64 * self.writes).round() as u64).min(self.requests)
    }

    /// Size of each file in bytes, small ones first. They sum up to the parameter, and are spread
    /// as file sizes are elsewhere.
    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = (0..self.files).map(|nth| size_at((2 * nth + 1) * 500_000 / self.files)).collect();
        let all: u64 = sizes.iter().sum();
        let scale = |size: u64| (u128::from(size) * u128::from(self.unique_bytes) / u128::from(all)) as u64;
        sizes.iter_mut().for_each(|size| *size = scale(*size).max(1));
        // The largest file takes what rounding left.
        let last = sizes.len() - 1;
        let all: u64 = sizes[..last].iter().sum();
        sizes[last] = self.unique_bytes.saturating_sub(all).max(1);
        sizes
    }

    /// The requests, in the order of time. The parameters must pass [`check`](Self::check).
    pub fn records(self) -> Requests {
        let random = SplitMix64::new(self.seed);
        let hours = Hours::of_user(self.days, self.active_us(), &random);
        let sizes = self.sizes();
        let first_large = ((self.files as f64 * (1.0 - LARGE)) as usize).min(sizes.len() - 1);
        // The part of a file that a read reads on average: a partial read begins and ends anywhere,
        // and so reads a quarter.
        let read = 1.0 - PARTIAL * 0.75;
        let mean = |of: &[u64]| read * of.iter().map(|size| *size as f64).sum::<f64>() / of.len().max(1) as f64;
        let (small_mean, large_mean) = (mean(&sizes[..first_large]), mean(&sizes[first_large..]));
        // The order in which files appear.
        let mut coming: Vec<u32> = (0..self.files as u32).collect();
        (1..coming.len()).rev().for_each(|at| coming.swap(at, random.below(at as u64 + 1) as usize));
        let left = Left {
            reads: self.reads(),
            read_bytes: self.read_bytes,
            writes: self.requests - self.reads(),
            written_bytes: self.written_bytes,
        };
        let (small, large, written) = (Vec::new(), Vec::new(), Vec::new());
        let (request_us, burst_max) = {
            let mean_us = (hours.total_us() / self.requests).max(1);
            (REQUEST_US.min(mean_us / 2).max(1), (PAUSE_US_MAX / mean_us).clamp(1, BURST_MAX))
        };
        Requests {
            of: self,
            random,
            hours,
            sizes,
            first_large,
            means: (small_mean, large_mean),
            coming,
            small,
            large,
            written,
            left,
            writing: None,
            worked_us: 0,
            request_us,
            burst_max,
            burst_end: 0,
        }
    }
}

/// The work that is left.
#[derive(Debug)]
struct Left {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
}

/// The iterator of [`Week::records`].
#[derive(Debug)]
pub struct Requests {
    of: Week,
    random: SplitMix64,
    hours: Hours,
    /// By file.
    sizes: Vec<u64>,
    /// Files from this one on are large.
    first_large: usize,
    /// Mean bytes that a read of a small and of a large file reads.
    means: (f64, f64),
    /// Files that were not used yet, the next one last.
    coming: Vec<u32>,
    /// Files that were read and written, the latest one last.
    small: Vec<u32>,
    large: Vec<u32>,
    written: Vec<u32>,
    left: Left,
    /// The file that is being written, the offset, and how many writes are left.
    writing: Option<(u32, u64, u64)>,
    worked_us: u64,
    request_us: u64,
    burst_max: u64,
    burst_end: u64,
}

/// One of the files, preferring the last ones; it becomes the last.
fn reuse(of: &mut [u32], random: &SplitMix64, recency: f64) -> Option<u32> {
    let back = rank(random, of.len() as u64, recency) as usize;
    let at = of.len().checked_sub(1 + back)?;
    of[at..].rotate_left(1);
    of.last().copied()
}

impl Iterator for Requests {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let left = self.left.reads + self.left.writes;
        if left == 0 {
            return None;
        }
        let is_write = match self.writing {
            Some(_) => true,
            // Writes come several at a time.
            None => self.random.below(left) < self.left.writes,
        };
        let (file, deed) = if is_write { self.write() } else { self.read() };
        let time_us = self.hours.wall_us(self.worked_us);
        self.pace();
        Some(Record { time_us, client: 0, file: file.into(), deed })
    }
}

impl Requests {
    /// Sets when the next request comes.
    fn pace(&mut self) {
        let done = self.of.requests - self.left.reads - self.left.writes;
        self.worked_us += self.request_us;
        if done >= self.burst_end && self.writing.is_none() {
            let share = u128::from(self.hours.total_us()) * u128::from(done) / u128::from(self.of.requests);
            self.worked_us = self.worked_us.max(share as u64);
            self.burst_end = done + 1 + rank(&self.random, self.burst_max, 1.0);
        }
    }

    /// True if the next file is one that was not used before.
    fn is_new(&self) -> bool {
        let (coming, all) = (self.coming.len() as u64, self.of.files);
        let done = (self.of.requests - self.left.reads - self.left.writes + 1) as f64 / self.of.requests as f64;
        let due = (all as f64 * done.sqrt()) as u64;
        coming > 0 && (all - coming < due.max(1) || self.left.reads <= coming)
    }

    fn read(&mut self) -> (u32, Deed) {
        // The mean number of bytes that each read from now on must read.
        let wanted = self.left.read_bytes as f64 / self.left.reads as f64;
        let is_large = part(&self.random) < (wanted - self.means.0) / (self.means.1 - self.means.0).max(1.0);
        let new = if self.is_new() { self.coming.pop() } else { None };
        let used = match new {
            Some(_) => None,
            None if is_large => reuse(&mut self.large, &self.random, self.of.recency)
                .or_else(|| reuse(&mut self.small, &self.random, self.of.recency)),
            None => reuse(&mut self.small, &self.random, self.of.recency)
                .or_else(|| reuse(&mut self.large, &self.random, self.of.recency)),
        };
        // There is a used file, or one that was not used yet.
        let file = new.or(used).unwrap_or_default();
        let size = self.sizes[file as usize];
        if new.is_some() {
            let is_large = file as usize >= self.first_large;
            if is_large {
                self.large.push(file)
            } else {
                self.small.push(file)
            }
            if size <= WRITTEN_BYTES_MAX && chance(&self.random, WRITTEN) {
                self.written.push(file);
            }
        }
        let (mut offset, mut len) = (0, size);
        if new.is_none() && size > 1 && chance(&self.random, PARTIAL) {
            offset = self.random.below(size);
            len = 1 + self.random.below(size - offset);
        }
        self.left.reads -= 1;
        self.left.read_bytes = self.left.read_bytes.saturating_sub(len);
        (file, Deed::Read { offset, len })
    }

    fn write(&mut self) -> (u32, Deed) {
        let mean = self.left.written_bytes as f64 / self.left.writes as f64;
        let (file, offset, more) = match self.writing.take() {
            Some(writing) => writing,
            None => {
                let written = reuse(&mut self.written, &self.random, self.of.recency);
                let used = written.or_else(|| self.small.last().or(self.large.last()).copied());
                (used.unwrap_or_default(), 0, 1 + rank(&self.random, WRITES_MAX, 1.0))
            }
        };
        let size = self.sizes[file as usize];
        let len = ((mean * (0.5 + part(&self.random))).round() as u64).max(1);
        // The last write takes what is left; writes do not extend files.
        let len = if self.left.writes == 1 { self.left.written_bytes.max(1) } else { len }.min(size - offset);
        self.left.writes -= 1;
        self.left.written_bytes = self.left.written_bytes.saturating_sub(len);
        if more > 1 && offset + len < size && self.left.writes > 0 {
            self.writing = Some((file, offset + len, more - 1));
        }
        (file, Deed::Write { offset, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::office::Office;
    use crate::synth::stress::Stress;
    use std::collections::BTreeMap;

    /// True if it is within a hundredth.
    fn is_near(found: f64, stated: f64) -> bool {
        (found / stated - 1.0).abs() < 0.01
    }

    fn is_as_stated(of: Week) {
        assert_eq!(of.check(), Ok(()));
        let all: Vec<Record> = of.records().collect();
        assert_eq!(all.len() as u64, of.requests);
        assert!(all.is_sorted_by_key(|record| record.time_us));
        // By file, how far it was used.
        let mut files = BTreeMap::<u64, u64>::new();
        let (mut read, mut written, mut writes) = (0u64, 0u64, 0u64);
        for Record { file, deed, .. } in &all {
            let (offset, len) = match *deed {
                Deed::Read { offset, len } => {
                    read += len;
                    (offset, len)
                }
                Deed::Write { offset, len } => {
                    (written, writes) = (written + len, writes + 1);
                    (offset, len)
                }
                Deed::Delete => panic!("nothing is removed"),
            };
            assert!(len > 0);
            let end = files.entry(*file).or_default();
            *end = (*end).max(offset + len);
        }
        assert_eq!(files.len() as u64, of.files);
        assert_eq!(files.values().sum::<u64>(), of.unique_bytes);
        assert!(is_near(writes as f64, of.requests as f64 * of.writes), "{writes}");
        assert!(is_near(read as f64, of.read_bytes as f64), "{read} {}", of.read_bytes);
        assert!(is_near(written as f64, of.written_bytes as f64), "{written} {}", of.written_bytes);
        // What the paper counts as active.
        let gaps = all.windows(2).map(|pair| pair[1].time_us - pair[0].time_us);
        let active_us: u64 = gaps.filter(|gap_us| *gap_us <= HOUR_US / 4).sum();
        let active_h = active_us as f64 / HOUR_US as f64;
        assert!((active_h / of.active_h - 1.0).abs() < 0.05, "{active_h} {}", of.active_h);
        let last_us = all[all.len() - 1].time_us;
        assert!((6 * 24 * HOUR_US..7 * 24 * HOUR_US).contains(&last_us), "{last_us}");
    }

    #[test]
    fn weeks_are_as_the_paper_states() {
        for seed in [1, 2, 3] {
            is_as_stated(Week { seed, ..Office::default().0 });
            is_as_stated(Week { seed, ..Stress::default().0 });
        }
    }

    #[test]
    fn a_seed_gives_one_trace() {
        let of = Office::default().0;
        assert!(of.records().eq(of.records()));
        assert!(!of.records().eq(Week { seed: 2, ..of }.records()));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let week = Office::default().0;
        let fault = |of: Week| of.check().expect_err("wrong").to_string();
        for (of, name) in [
            (Week { days: 0, ..week }, "days"),
            (Week { active_h: 29.0, ..week }, "active-h"),
            (Week { active_h: f64::NAN, ..week }, "active-h"),
            (Week { requests: 0, ..week }, "requests"),
            (Week { requests: 50, ..week }, "requests"),
            (Week { writes: 1.1, ..week }, "writes"),
            (Week { files: 0, ..week }, "files"),
            (Week { writes: 1.0, ..week }, "files"),
            (Week { unique_bytes: 383, ..week }, "unique-bytes"),
            (Week { read_bytes: 1 << 20, ..week }, "read-bytes"),
            (Week { read_bytes: 1 << 49, ..week }, "read-bytes"),
            (Week { written_bytes: 10, ..week }, "written-bytes"),
            (Week { recency: -1.0, ..week }, "recency"),
        ] {
            assert!(fault(of).starts_with(name), "{name}: {}", fault(of));
        }
        // Extremes that are permitted.
        let one =
            Week { files: 1, unique_bytes: 64, read_bytes: 64 * 1000, written_bytes: 1000, requests: 2000, ..week };
        let one = Week { writes: 0.5, ..one };
        let many = Week { files: 13_000, unique_bytes: 1 << 50, read_bytes: 1 << 50, written_bytes: 1 << 50, ..week };
        for of in [one, many, Week { writes: 0.0, written_bytes: 0, ..week }] {
            assert_eq!(of.check(), Ok(()));
            assert_eq!(of.records().filter(|record| record.deed != Deed::Delete).count() as u64, of.requests);
        }
    }
}
