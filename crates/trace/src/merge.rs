//! Merges several traces into one, in the order of time: several clients, each recorded by itself.
//!
//! Clients get new numbers, in the order in which they first do something, and traces never share a
//! client. Files keep their numbers if the traces are of one file system ([`Files::Same`]), or get
//! new ones, so that each trace has its own ([`Files::Distinct`]). New numbers take memory for each
//! file.

use crate::Record;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use thiserror::Error;

/// Whether the traces share files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Files {
    /// A number is the same file in every trace.
    Same,
    /// Each trace has its own files.
    Distinct,
}

/// Why traces cannot be merged.
#[derive(Debug, Error)]
pub enum MergeError<E> {
    /// One of the traces has an error.
    #[error("trace {trace}: {error}")]
    Trace {
        /// The trace, from 1.
        trace: usize,
        /// Its error.
        error: E,
    },
    /// The times of a trace go backwards.
    #[error("trace {trace}: record {record} is earlier than the one before it: sort it by time")]
    Unsorted {
        /// The trace, from 1.
        trace: usize,
        /// The record, from 1.
        record: u64,
    },
    /// A time of a trace is larger than a number can hold.
    #[error("trace {trace}: record {record} is too late")]
    Late {
        /// The trace, from 1.
        trace: usize,
        /// The record, from 1.
        record: u64,
    },
    /// There are more clients than numbers.
    #[error("more clients than can be numbered")]
    Clients,
}

/// One trace, and how much later than the others it began.
#[derive(Debug)]
pub struct Source<I> {
    /// Its records.
    pub records: I,
    /// When it begins, in microseconds after the merged trace's beginning.
    pub begins_us: u64,
}

/// Merges traces: an iterator over records, which ends after the first error. Records of the same
/// time are in the order of the traces.
pub fn merge<I, E>(sources: impl IntoIterator<Item = Source<I>>, files: Files) -> Merged<I, E>
where
    I: Iterator<Item = Result<Record, E>>,
{
    let (sources, counts): (Vec<Source<I>>, Vec<u64>) = sources.into_iter().map(|source| (source, 0)).unzip();
    let waiting = sources.iter().map(|_| None).collect();
    Merged {
        sources,
        counts,
        files,
        waiting,
        order: BinaryHeap::new(),
        clients: HashMap::new(),
        numbers: HashMap::new(),
        begun: false,
        failed: None,
        ended: false,
    }
}

/// The iterator of [`merge`].
pub struct Merged<I, E> {
    sources: Vec<Source<I>>,
    /// How many records each trace has given.
    counts: Vec<u64>,
    files: Files,
    /// The next record of each trace, and their order in time.
    waiting: Vec<Option<Record>>,
    order: BinaryHeap<Reverse<(u64, usize)>>,
    /// New numbers, by trace and old number.
    clients: HashMap<(usize, u32), u32>,
    numbers: HashMap<(usize, u64), u64>,
    begun: bool,
    /// The error to return after the record before it.
    failed: Option<MergeError<E>>,
    ended: bool,
}

impl<I: Iterator<Item = Result<Record, E>>, E> Merged<I, E> {
    /// Takes the next record of a trace, which must not be before `before_us`.
    fn advance(&mut self, at: usize, before_us: u64) -> Result<(), MergeError<E>> {
        let source = &mut self.sources[at];
        let Some(record) = source.records.next() else { return Ok(()) };
        let record = record.map_err(|error| MergeError::Trace { trace: at + 1, error })?;
        self.counts[at] += 1;
        let time_us = record.time_us.checked_add(source.begins_us);
        let (trace, nth) = (at + 1, self.counts[at]);
        let time_us = time_us.ok_or(MergeError::Late { trace, record: nth })?;
        if time_us < before_us {
            return Err(MergeError::Unsorted { trace, record: nth });
        }
        self.waiting[at] = Some(Record { time_us, ..record });
        self.order.push(Reverse((time_us, at)));
        Ok(())
    }

    fn renumber(&mut self, at: usize, record: Record) -> Result<Record, MergeError<E>> {
        let next = u32::try_from(self.clients.len());
        let client = match self.clients.get(&(at, record.client)) {
            Some(client) => *client,
            None => *self.clients.entry((at, record.client)).or_insert(next.map_err(|_| MergeError::Clients)?),
        };
        let next = self.numbers.len() as u64;
        let file = match self.files {
            Files::Same => record.file,
            Files::Distinct => *self.numbers.entry((at, record.file)).or_insert(next),
        };
        Ok(Record { client, file, ..record })
    }

    fn step(&mut self) -> Result<Option<Record>, MergeError<E>> {
        if !self.begun {
            self.begun = true;
            (0..self.sources.len()).try_for_each(|at| self.advance(at, 0))?;
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(Reverse((time_us, at))) = self.order.pop() else { return Ok(None) };
        let Some(record) = self.waiting[at].take() else { return Ok(None) };
        // An error in the next record must not hold this one back.
        self.failed = self.advance(at, time_us).err();
        self.renumber(at, record).map(Some)
    }
}

impl<I: Iterator<Item = Result<Record, E>>, E> Iterator for Merged<I, E> {
    type Item = Result<Record, MergeError<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.step().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deed;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    type Good = Result<Record, &'static str>;

    fn record(time_us: u64, client: u32, file: u64) -> Record {
        Record { time_us, client, file, deed: Deed::Delete }
    }

    fn source(begins_us: u64, records: Vec<Good>) -> Source<std::vec::IntoIter<Good>> {
        Source { records: records.into_iter(), begins_us }
    }

    fn good(begins_us: u64, records: &[Record]) -> Source<std::vec::IntoIter<Good>> {
        source(begins_us, records.iter().map(|record| Ok(*record)).collect())
    }

    #[test]
    fn traces_are_merged_by_time_and_their_clients_are_told_apart() {
        let traces = || [good(0, &[record(1, 7, 5), record(9, 8, 5)]), good(2, &[record(0, 7, 5), record(7, 7, 6)])];
        let same: Vec<Record> = merge(traces(), Files::Same).map(|record| record.expect("good")).collect();
        assert_eq!(same, [record(1, 0, 5), record(2, 1, 5), record(9, 2, 5), record(9, 1, 6)]);
        let own: Vec<Record> = merge(traces(), Files::Distinct).map(|record| record.expect("good")).collect();
        assert_eq!(own, [record(1, 0, 0), record(2, 1, 1), record(9, 2, 0), record(9, 1, 2)]);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_trace() {
        let said = |sources: Vec<Source<std::vec::IntoIter<Good>>>| -> (usize, String) {
            let mut all: Vec<_> = merge(sources, Files::Same).collect();
            let error = all.pop().expect("an error").expect_err("an error").to_string();
            assert!(all.iter().all(Result::is_ok));
            (all.len(), error)
        };
        let broken = source(0, vec![Ok(record(1, 0, 0)), Err("it breaks off")]);
        assert_eq!(said(vec![good(0, &[record(1, 0, 0)]), broken]), (2, "trace 2: it breaks off".into()));
        let unsorted = good(0, &[record(5, 0, 0), record(4, 0, 0)]);
        assert!(said(vec![unsorted]).1.starts_with("trace 1: record 2 is earlier"));
        assert!(said(vec![good(1, &[record(u64::MAX, 0, 0)])]).1.starts_with("trace 1: record 1 is too late"));
    }

    proptest! {
        #[test]
        fn prop_a_merged_trace_has_all_records_in_order(
            mut traces in prop::collection::vec(prop::collection::vec((0u64..50, 0u32..3, 0u64..3), 0..30), 0..5),
        ) {
            traces.iter_mut().for_each(|trace| trace.sort());
            let of = |trace: &Vec<(u64, u32, u64)>| -> Vec<Record> {
                trace.iter().map(|(time_us, client, file)| record(*time_us, *client, *file)).collect()
            };
            let sources = traces.iter().map(|trace| good(0, &of(trace)));
            let merged: Vec<Record> = merge(sources, Files::Distinct).map(|record| record.expect("good")).collect();
            prop_assert!(merged.is_sorted_by_key(|record| record.time_us));
            prop_assert_eq!(merged.len(), traces.iter().map(Vec::len).sum::<usize>());
            let count = |part: fn(&(u64, u32, u64)) -> u64| -> usize {
                traces.iter().map(|trace| trace.iter().map(part).collect::<BTreeSet<u64>>().len()).sum()
            };
            let clients: BTreeSet<u32> = merged.iter().map(|record| record.client).collect();
            let files: BTreeSet<u64> = merged.iter().map(|record| record.file).collect();
            prop_assert_eq!(clients.len(), count(|(_, client, _)| u64::from(*client)));
            prop_assert_eq!(files.len(), count(|(_, _, file)| *file));
            prop_assert!(clients.into_iter().eq(0..count(|(_, client, _)| u64::from(*client)) as u32));
        }
    }
}
