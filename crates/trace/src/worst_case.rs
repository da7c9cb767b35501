//! The workload that hurts cooperative caching most, and the steps from it to better ones (Dahlin,
//! section 3.3.4.3).
//!
//! Each client has its own data, and reads random blocks of it in bursts. A burst has between a
//! tenth of and ten times as many requests as the client's cache has blocks, so most are longer
//! than the cache. Three parameters vary: the size of each client's data, the pause between bursts,
//! and the share of reads that go to other clients' data.

use crate::WorkloadError::{self, Bounds, NoOtherClients, Range};
use crate::{Deed, Record};
use host::SplitMix64;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Block size in bytes (Dahlin, section 3.2).
pub const BLOCK_BYTES: u64 = 8192;
/// Time between two requests of a burst, in microseconds.
const REQUEST_US: u64 = 1000;

const CLIENT_COUNT_MAX: u32 = 1 << 16;
/// Within these bounds no offset and no time overflows.
const CACHE_BLOCKS_MAX: u64 = 1 << 24;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstCase {
    /// Number of clients; 10 in the thesis.
    pub clients: u32,
    /// Blocks that each client's cache holds; 10 in the thesis.
    pub cache_blocks: u64,
    /// Size of each client's data, as a multiple of its cache; 1.1 is the worst.
    pub working_set: f64,
    /// Part of the requests that go to the client's own data; 1, the worst, is no sharing.
    pub locality: f64,
    /// Mean pause between bursts, as a multiple of the mean burst; 0 is the worst.
    pub gap: f64,
    /// Requests of all clients together.
    pub requests: u64,
    /// The same seed gives the same trace.
    pub seed: u64,
}

impl Default for WorstCase {
    /// The worst of all.
    fn default() -> WorstCase {
        let (working_set, locality, gap) = (1.1, 1.0, 0.0);
        WorstCase { clients: 10, cache_blocks: 10, working_set, locality, gap, requests: 100_000, seed: 1 }
    }
}

impl WorstCase {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), WorkloadError> {
        WorkloadError::first([
            (!(1..=CLIENT_COUNT_MAX).contains(&self.clients), Bounds("clients", 1, CLIENT_COUNT_MAX.into())),
            (!(1..=CACHE_BLOCKS_MAX).contains(&self.cache_blocks), Bounds("cache-blocks", 1, CACHE_BLOCKS_MAX)),
            (
                !(self.working_set > 0.0 && self.working_set <= 1e6),
                Range("working-set", "more than 0, up to 1000000 times a cache"),
            ),
            (!(0.0..=1.0).contains(&self.locality), Range("locality", "0 to 1")),
            (self.locality < 1.0 && self.clients == 1, NoOtherClients),
            (!(0.0..=1e3).contains(&self.gap), Range("gap", "0 to 1000 bursts")),
        ])
    }

    /// Blocks of each client's data, rounded.
    pub fn private_blocks(&self) -> u64 {
        ((self.cache_blocks as f64 * self.working_set).round() as u64).max(1)
    }

    /// The requests, in the order of time. The parameters must pass [`check`](Self::check).
    pub fn records(self) -> impl Iterator<Item = Record> {
        let random = SplitMix64::new(self.seed);
        let ready = (0..self.clients).map(|client| Reverse((self.pause(&random), client))).collect();
        let left = (0..self.clients).map(|_| self.burst(&random)).collect();
        Requests { of: self, random, ready, left, count: 0 }
    }

    /// Requests of a burst: from a tenth of to ten times the blocks of a cache.
    fn burst(&self, random: &SplitMix64) -> u64 {
        let (least, most) = ((self.cache_blocks / 10).max(1), self.cache_blocks * 10);
        least + random.below(most - least + 1)
    }

    /// Time between two bursts, in microseconds: up to twice the mean.
    fn pause(&self, random: &SplitMix64) -> u64 {
        let mean_burst = self.cache_blocks as f64 * 10.1 / 2.0;
        let most = 2.0 * self.gap * mean_burst * REQUEST_US as f64;
        random.below(most as u64 + 1)
    }
}

struct Requests {
    of: WorstCase,
    random: SplitMix64,
    /// When each client makes its next request.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    /// Requests left of each client's burst.
    left: Vec<u64>,
    count: u64,
}

impl Iterator for Requests {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.count == self.of.requests {
            return None;
        }
        self.count += 1;
        let Reverse((time_us, client)) = self.ready.pop()?;
        let own =
            self.of.locality >= 1.0 || (self.random.below(1 << 32) as f64) < self.of.locality * (1u64 << 32) as f64;
        let whose = match own {
            true => client,
            // Another client, each with the same chance.
            false => (client + 1 + self.random.below(u64::from(self.of.clients) - 1) as u32) % self.of.clients,
        };
        let offset = self.random.below(self.of.private_blocks()) * BLOCK_BYTES;
        let left = &mut self.left[client as usize];
        *left -= 1;
        let pause = match *left {
            0 => {
                *left = self.of.burst(&self.random);
                self.of.pause(&self.random)
            }
            _ => 0,
        };
        self.ready.push(Reverse((time_us + REQUEST_US + pause, client)));
        Some(Record { time_us, client, file: u64::from(whose), deed: Deed::Read { offset, len: BLOCK_BYTES } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn requests_are_as_they_are_set() {
        let of = WorstCase { working_set: 2.0, locality: 0.7, requests: 50_000, ..WorstCase::default() };
        let all: Vec<Record> = of.records().collect();
        assert_eq!(all.len(), 50_000);
        assert!(all.is_sorted_by_key(|record| record.time_us));
        let own = all.iter().filter(|record| u64::from(record.client) == record.file).count() as f64;
        assert!((0.69..0.71).contains(&(own / 50_000.0)), "{own}");
        let blocks: BTreeSet<_> = all.iter().map(|record| (record.file, record.deed_offset())).collect();
        assert_eq!(blocks.len(), 10 * 20);
        let mut counts = BTreeMap::<u32, u64>::new();
        all.iter().for_each(|record| *counts.entry(record.client).or_default() += 1);
        assert!(counts.values().all(|count| *count == 5000), "nobody pauses");
        assert_eq!(all, of.records().collect::<Vec<_>>());
        assert_ne!(all, WorstCase { seed: 2, ..of }.records().collect::<Vec<_>>());
    }

    #[test]
    fn pauses_are_as_long_as_bursts_where_that_is_set() {
        let of = WorstCase { gap: 1.0, requests: 200_000, ..WorstCase::default() };
        let last = of.records().last().expect("some").time_us;
        // Half of the time no client is busy.
        let busy = (of.requests / u64::from(of.clients) * REQUEST_US) as f64 / last as f64;
        assert!((0.47..0.53).contains(&busy), "{busy}");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let fault = |of: WorstCase| of.check().expect_err("wrong").to_string();
        let worst = WorstCase::default();
        assert!(fault(WorstCase { clients: 0, ..worst }).starts_with("clients"));
        assert!(fault(WorstCase { clients: u32::MAX, ..worst }).starts_with("clients"));
        assert!(fault(WorstCase { cache_blocks: 0, ..worst }).starts_with("cache-blocks"));
        assert!(fault(WorstCase { cache_blocks: u64::MAX, ..worst }).starts_with("cache-blocks"));
        assert!(fault(WorstCase { working_set: f64::NAN, ..worst }).starts_with("working-set"));
        assert!(fault(WorstCase { locality: 1.1, ..worst }).starts_with("locality"));
        assert!(fault(WorstCase { locality: 0.5, clients: 1, ..worst }).starts_with("locality"));
        assert!(fault(WorstCase { gap: -1.0, ..worst }).starts_with("gap"));
        assert_eq!(worst.check(), Ok(()));
        // The largest permitted parameters.
        let (clients, cache_blocks) = (CLIENT_COUNT_MAX, CACHE_BLOCKS_MAX);
        let most = WorstCase { clients, cache_blocks, working_set: 1e6, gap: 1e3, requests: 1000, ..worst };
        assert_eq!((most.check(), most.records().count()), (Ok(()), 1000));
    }

    impl Record {
        fn deed_offset(&self) -> u64 {
            match self.deed {
                Deed::Read { offset, .. } | Deed::Write { offset, .. } => offset,
                Deed::Delete => 0,
            }
        }
    }
}
