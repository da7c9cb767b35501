//! All algorithms on one trace (Dahlin, sections 3.3.1 and 3.3.4.2): the time of reads, where they
//! are served, the load of the server, and the gain of each client.

mod shown;

pub use shown::{figures, findings, latencies};

use super::rates::{MOVED, Rates};
use super::{Setup, percent};
use crate::cooperative::{
    Algorithm, Blocks, Conditions, Knowledge, Level, Outcome, Parameters, Technology, mean_us, simulate_under,
};
use crate::sweep::sweep;
use serde::Serialize;
use trace::synth::auspex::HIDDEN_HITS;

/// Clients with less than one of this many reads do not count as hurt: a few reads from the disk
/// decide their result.
const ACTIVE: u64 = 1000;

/// The results of one algorithm.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Its usual name.
    pub name: String,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The outcome of the simulation.
    pub outcome: Outcome,
    /// How long a read takes from each level, in microseconds.
    pub times_us: [f64; 4],
    /// Mean time of a read in the trace, in microseconds.
    pub mean_us: f64,
    /// Its speed-up over the base case.
    pub speed_up: f64,
    /// The server's load, as a part of the base case's.
    pub load_of_base: f64,
    /// Of each client: the blocks it read, and its speed-up over the base case.
    pub clients: Vec<(u64, f64)>,
}

/// The results of all.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// The parameters.
    pub setup: Setup,
    /// The times.
    pub technology: Technology,
    /// In the order of the thesis; then Weighted LRU with more knowledge, and the base case with
    /// four fifths of the clients' memory moved to the server.
    pub rows: Vec<Row>,
}

/// The workload, which decides whose numbers are shown beside ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Sprite, traces five and six of one server (figure 3-3).
    Sprite,
    /// Berkeley's Auspex server (figure 3-17).
    Auspex,
    /// A user's own.
    Other,
}

impl Workload {
    /// Part of all reads that are taken to be hits in clients' own caches and are not in the trace.
    fn hidden_hits(self) -> f64 {
        if self == Workload::Auspex { HIDDEN_HITS } else { 0.0 }
    }
}

fn cases(blocks: &Blocks, setup: &Setup) -> Vec<(String, Parameters)> {
    let named = |algorithm: Algorithm| (algorithm.name().to_owned(), setup.parameters(algorithm));
    let moved = setup.client_blocks - setup.client_blocks / 5;
    let more = moved.saturating_mul(blocks.clients());
    let at_server = Parameters {
        client_blocks: setup.client_blocks - moved,
        server_blocks: setup.server_blocks.saturating_add(more),
        ..setup.parameters(Algorithm::Base)
    };
    let more = [
        named(Algorithm::WeightedLru(Knowledge::Global)),
        named(Algorithm::WeightedLru(Knowledge::SingletHints)),
        (MOVED.name.to_owned(), at_server),
    ];
    Algorithm::ALL.into_iter().map(named).chain(more).collect()
}

/// Number of runs.
pub const RUNS: usize = Algorithm::ALL.len() + 3;

/// Runs all algorithms. The setup must pass [`Setup::check`]; `done` is called for each of the
/// [`RUNS`].
pub fn compare(blocks: &Blocks, setup: &Setup, done: impl Fn() + Sync) -> Comparison {
    measure(blocks, setup, Technology::ATM, cases(blocks, setup), done)
}

/// Runs these algorithms with other times, each under its own name, and before them the base case,
/// with which they are compared. `done` is called for each.
pub fn compare_those(
    blocks: &Blocks,
    setup: &Setup,
    technology: Technology,
    algorithms: &[Algorithm],
    done: impl Fn() + Sync,
) -> Comparison {
    let others = algorithms.iter().filter(|algorithm| **algorithm != Algorithm::Base);
    let all = [Algorithm::Base].iter().chain(others);
    let cases = all.map(|algorithm| (algorithm.name().to_owned(), setup.parameters(*algorithm)));
    measure(blocks, setup, technology, cases.collect(), done)
}

fn measure(
    blocks: &Blocks,
    setup: &Setup,
    technology: Technology,
    cases: Vec<(String, Parameters)>,
    done: impl Fn() + Sync,
) -> Comparison {
    let conditions = Conditions { technology, ..Conditions::default() };
    let outcomes = sweep(&cases, |(_, parameters)| simulate_under(blocks, parameters, &conditions), done);
    let times = |algorithm| technology.times_us(algorithm);
    let base = outcomes.first().cloned();
    let mean = |reads: &[u64; 4], algorithm| mean_us(reads, &times(algorithm)).unwrap_or(0.0);
    let all = cases.into_iter().zip(outcomes);
    let row = |((name, Parameters { algorithm, .. }), outcome): ((String, Parameters), Outcome)| {
        let base = base.as_ref().unwrap_or(&outcome);
        let mean_us = mean(&outcome.reads, algorithm);
        let clients = outcome.clients.iter().zip(&base.clients).filter(|(own, _)| own.iter().sum::<u64>() > 0);
        let clients =
            clients.map(|(own, before)| (own.iter().sum(), mean(before, Algorithm::Base) / mean(own, algorithm)));
        Row {
            name,
            algorithm,
            times_us: times(algorithm),
            mean_us,
            speed_up: mean(&base.reads, Algorithm::Base) / mean_us,
            load_of_base: outcome.load.of_reads() as f64 / base.load.of_reads().max(1) as f64,
            clients: clients.collect(),
            outcome,
        }
    };
    Comparison { setup: *setup, technology, rows: all.map(row).collect() }
}

impl Row {
    /// Reads from a level, in percent of all.
    fn rate(&self, level: Level) -> f64 {
        percent(self.outcome.reads[level as usize], self.outcome.reads.iter().sum())
    }

    fn rates(&self) -> Rates {
        Rates::of(&self.outcome.reads)
    }

    /// Mean time of a read, in microseconds, if the part `hidden` of all reads is hits in clients'
    /// own caches that are not in the trace.
    fn mean_us_with(&self, hidden: f64) -> f64 {
        hidden * self.times_us[Level::Local as usize] + (1.0 - hidden) * self.mean_us
    }

    /// How many of the clients that read much are slower than in the base case by more than a
    /// hundredth, and the worst ratio of them.
    fn hurt(&self) -> (usize, f64) {
        let least = self.outcome.reads.iter().sum::<u64>() / ACTIVE;
        let slower = self.clients.iter().filter(|(reads, speed_up)| *reads >= least && *speed_up < 0.99);
        (slower.clone().count(), slower.map(|(_, speed_up)| *speed_up).fold(1.0, f64::min))
    }
}

impl Comparison {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// The speed-up of an algorithm over the base case, if the part `hidden` of all reads is hits
    /// in clients' own caches that are not in the trace.
    fn speed_up(&self, name: &str, hidden: f64) -> f64 {
        let rows = self.row("base").zip(self.row(name));
        rows.map_or(0.0, |(base, row)| base.mean_us_with(hidden) / row.mean_us_with(hidden))
    }
}
