//! A trace like Berkeley's of its Auspex server (Dahlin, section 3.3.4.2): what the network saw of
//! a department's week.
//!
//! Stated there: 237 clients, seven days, a million reads and writes that fill the caches and four
//! million more; users of the same kind as Sprite's. The trace was gathered on the network, so it
//! lacks the hits in the clients' own caches. Requests for attributes show some of those hits, but
//! none for a file whose attributes were requested within three seconds before. So this trace also
//! leaves out a client's second read of a file within three seconds. Four fifths of all reads are
//! taken to be such hits ([`HIDDEN_HITS`]). About a million blocks were written and later
//! overwritten or removed, a third of them within 30 seconds by the same client (4.3.1.1); 96 % of
//! them were written by the same client (5.3.1).
//!
//! The habits of clients ([`HABITS`]) are set as is known of such file systems. Only
//! [`Auspex::writes`] was fitted, to the number of blocks that do not last (seed 1 gives 1.02
//! million, 34 % and 96 %). The thesis states no base rates of this trace, and nothing was fitted
//! to the results of algorithms on it.

use super::community::{Community, Habits, Requests};
use crate::WorkloadError;

/// Reads and writes at the beginning that only fill the caches.
pub const WARM_UP: u64 = 1_000_000;
/// Part of all reads that are taken to be hits in clients' own caches, which the trace lacks
/// (footnote 1 of the section).
pub const HIDDEN_HITS: f64 = 0.8;

/// The habits of these clients.
pub const HABITS: Habits = Habits {
    common_files: 4000,
    common_steepness: 0.9,
    common: 0.04,
    group: 0.05,
    fresh: 0.125,
    latest: 0.5,
    recency: 1.0,
    partial: 0.22,
    passing: 0.5,
    passing_s: 1000.0,
    again: 0.35,
    again_recency: 1.0,
    foreign: 0.04,
    same_block: 0.0,
    old_removals: 0.0,
};

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auspex {
    /// Number of clients.
    pub clients: u32,
    /// Reads and writes of all clients, each of a block.
    pub accesses: u64,
    /// Days over which they are spread.
    pub days: u32,
    /// Part of the uses of files that are writes; the part of the requests is somewhat lower.
    pub writes: f64,
    /// A client's second read of a file within this many seconds is left out; 0 leaves out none.
    pub unseen_s: f64,
    /// The habits of clients.
    pub habits: Habits,
    /// The same seed gives the same trace.
    pub seed: u64,
}

impl Default for Auspex {
    /// As in the thesis.
    fn default() -> Auspex {
        let habits = HABITS;
        Auspex { clients: 237, accesses: 5_000_000, days: 7, writes: 0.32, unseen_s: 3.0, habits, seed: 1 }
    }
}

impl Auspex {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), WorkloadError> {
        self.community().check()
    }

    /// The requests, in the order of time. The parameters must pass [`check`](Self::check).
    pub fn records(self) -> Requests {
        self.community().records()
    }

    fn community(self) -> Community {
        let Auspex { clients, accesses, days, writes, unseen_s, habits, seed } = self;
        Community { clients, accesses, days, writes, unseen_s, habits, seed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::community::BLOCK_BYTES;
    use crate::{Deed, Record};
    use std::collections::{BTreeMap, BTreeSet, HashMap};

    #[test]
    fn the_trace_is_as_the_thesis_states() {
        let (mut clients, mut accesses, mut last_us) = (BTreeSet::new(), 0u64, 0);
        // When each block was written, and by which client; how many ended, how many of them soon,
        // and how many by the same client.
        let mut written = HashMap::<u64, BTreeMap<u64, (u64, u32)>>::new();
        let (mut gone, mut soon, mut own) = (0u32, 0u32, 0u32);
        for Record { time_us, client, file, deed } in Auspex::default().records() {
            assert!(last_us <= time_us);
            last_us = time_us;
            clients.insert(client);
            let before: Vec<(u64, u32)> = match deed {
                Deed::Read { .. } => Vec::new(),
                Deed::Write { offset, .. } => {
                    let blocks = written.entry(file).or_default();
                    blocks.insert(offset / BLOCK_BYTES, (time_us, client)).into_iter().collect()
                }
                Deed::Delete => written.remove(&file).unwrap_or_default().into_values().collect(),
            };
            accesses += u64::from(deed != Deed::Delete);
            for (written_us, writer) in before {
                let is_own = writer == client;
                (gone, own) = (gone + 1, own + u32::from(is_own));
                soon += u32::from(is_own && time_us - written_us <= 30_000_000);
            }
        }
        assert!(clients.into_iter().eq(0..237));
        assert_eq!(accesses, 5_000_000);
        assert!((5 * 24..7 * 24).contains(&(last_us / 3_600_000_000)));
        assert!((950_000..1_050_000).contains(&gone), "{gone}");
        let part = |of: u32| f64::from(of) / f64::from(gone);
        assert!((0.31..0.35).contains(&part(soon)) && (0.95..0.98).contains(&part(own)), "{soon} {own} of {gone}");
    }

    #[test]
    fn no_file_is_read_again_within_three_seconds() {
        let of = Auspex { clients: 20, accesses: 100_000, writes: 0.0, ..Auspex::default() };
        let repeats = |of: Auspex| {
            let (mut since, mut runs, mut repeats) = (HashMap::new(), 0u32, 0u32);
            let mut last = HashMap::new();
            for record in of.records() {
                // A request that goes on where the client's last one ended belongs to the same use.
                let before = last.insert(record.client, (record.file, record.deed));
                let goes_on = match (before, record.deed) {
                    (Some((file, Deed::Read { offset: before, .. })), Deed::Read { offset, .. }) => {
                        file == record.file && offset == before + BLOCK_BYTES
                    }
                    _ => false,
                };
                if goes_on {
                    continue;
                }
                runs += 1;
                let used_us = since.insert((record.client, record.file), record.time_us);
                repeats += u32::from(used_us.is_some_and(|used_us| record.time_us - used_us < 3_000_000));
            }
            f64::from(repeats) / f64::from(runs)
        };
        assert!(repeats(of) < 0.01, "{}", repeats(of));
        assert!(repeats(Auspex { unseen_s: 0.0, ..of }) > 0.2);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let fault = Auspex { unseen_s: -1.0, ..Auspex::default() }.check().expect_err("wrong").to_string();
        assert!(fault.starts_with("unseen-s"), "{fault}");
        assert_eq!(Auspex::default().check(), Ok(()));
    }
}
