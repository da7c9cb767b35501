//! Cooperative caching on a trace (Dahlin, chapter 3): where reads are served, how long they take,
//! and the load of the server.
//!
//! - [`Algorithm`]: where clients look for a block, and what happens to blocks that leave a cache.
//!   The decisions are those of `policy::cooperative`.
//! - [`Blocks`]: a trace as accesses of single blocks; [`simulate`] runs one algorithm on it.
//! - [`Technology`]: how long a block takes from each place (table 3-2).
//! - [`experiments`]: the thesis's studies, repeated.
//! - [`yardstick`]: plain LRU, to judge the speed of the simulation.
//!
//! As in section 3.2: all blocks have one size; writes go through to the server, and remove the
//! copies at other clients; there are no queues.

pub(crate) mod blocks;
mod caches;
mod epochs;
pub mod experiments;
mod index;
pub(crate) mod simulation;
mod technology;
mod weighted_lru;
pub mod yardstick;

pub use blocks::{Blocks, BlocksError};
pub use simulation::{simulate, simulate_under};
pub use technology::{Technology, mean_us};

use crate::ParameterError;
use caches::RECIRCULATED_MAX;
use serde::Serialize;

/// Part of each cache that is managed for all clients, in algorithms that reserve one (section
/// 3.3.2.3).
pub const COMMON_PART: f64 = 0.8;

/// What clients know when they make room, with Weighted LRU (table 3-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knowledge {
    /// Everything about all clients.
    Global,
    /// Which of their own blocks were singlets when they asked, and everything about other clients.
    SingletHints,
    /// That, and what the server knew of other clients when it answered last.
    AllHints,
}

/// An algorithm: where clients look for a block, and what happens to blocks that leave a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// No cooperation: each client has its cache, and the server its own.
    Base,
    /// Each client has a second cache of the same size on another machine, for blocks that leave
    /// its own (3.1.1).
    Direct,
    /// Clients are also served from each other's caches (3.1.2).
    Greedy,
    /// The server manages most of each client's cache, for blocks that leave its own (3.1.3).
    Central,
    /// The same, but each block belongs to one client, which is asked first (3.1.4).
    Hash,
    /// The block whose loss costs least over all clients is given up, in any cache (3.1.5).
    WeightedLru(Knowledge),
    /// The last copy of a block goes on to other clients this many times (3.1.6).
    NChance(u8),
    /// The last copy of a block goes once to the less busy of two clients (3.1.7).
    TwoChoices,
    /// The last copy of a block goes to a client that had old blocks when all last reported their
    /// ages (3.1.7).
    Epochs,
    /// The thesis's best case (3.2): all memory twice, once as each client would use it, and once
    /// as one cache for all clients, both with LRU. It is not a bound: another replacement policy
    /// can read less from the disk, and N-Chance Forwarding did so on a block trace that was not
    /// synthetic.
    Best,
}

impl Algorithm {
    /// All algorithms, in the order of the thesis, with their default parameters.
    pub const ALL: [Algorithm; 10] = [
        Algorithm::Base,
        Algorithm::Direct,
        Algorithm::Greedy,
        Algorithm::Central,
        Algorithm::Hash,
        Algorithm::WeightedLru(Knowledge::AllHints),
        Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS),
        Algorithm::TwoChoices,
        Algorithm::Epochs,
        Algorithm::Best,
    ];

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Base => "base",
            Algorithm::Direct => "direct",
            Algorithm::Greedy => "greedy",
            Algorithm::Central => "central",
            Algorithm::Hash => "hash",
            Algorithm::WeightedLru(Knowledge::AllHints) => "weighted-lru",
            Algorithm::WeightedLru(Knowledge::SingletHints) => "weighted-lru-singlets",
            Algorithm::WeightedLru(Knowledge::Global) => "weighted-lru-global",
            Algorithm::NChance(_) => "n-chance",
            Algorithm::TwoChoices => "two-choices",
            Algorithm::Epochs => "epochs",
            Algorithm::Best => "best",
        }
    }
}

/// Where a block comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The client's own cache.
    Local,
    /// Another client's cache.
    Remote,
    /// The server's memory.
    Server,
    /// The server's disk.
    Disk,
}

/// The load of the server, in units of a message without data (section 3.3.1): a block over the
/// network is two more, and two from or to a disk. As there, the load for reads leaves out deletes,
/// and the cost of writes that is the same for all algorithms. Messages between clients are not the
/// server's load.
///
/// The thesis counts notices that a block was changed as "other load". Reads do not cause that
/// work, so it is separate here, with everything else that writes cause.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Load {
    /// For reads that its disk serves.
    pub disk: u64,
    /// For reads that other clients serve.
    pub remote: u64,
    /// For reads that its memory serves.
    pub server: u64,
    /// For blocks that clients and the server give up to make room for reads: answering whether a
    /// block is the last copy, and sending blocks that leave the server's memory to clients that
    /// keep them for all.
    pub other: u64,
    /// The same for writes, and notices to clients that their copies were changed, a message each.
    pub writes: u64,
}

impl Load {
    /// All load that reads cause.
    pub fn of_reads(&self) -> u64 {
        self.disk + self.remote + self.server + self.other
    }
}

/// The parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Parameters {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Blocks that each client's cache holds.
    pub client_blocks: u32,
    /// Blocks that the server's memory holds; 0 means that it has no cache.
    pub server_blocks: u32,
    /// Reads and writes of blocks at the beginning that only fill the caches.
    pub warm_up: u64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

impl Parameters {
    /// Checks the parameters for these blocks; an error names the wrong one.
    pub fn check(&self, blocks: &Blocks) -> Result<(), ParameterError> {
        let often = matches!(self.algorithm, Algorithm::NChance(n) if n as usize > RECIRCULATED_MAX);
        ParameterError::first([
            (self.client_blocks == 0, ParameterError::EmptyCache),
            (often, ParameterError::Bounds("n", 0, RECIRCULATED_MAX as u64)),
            (self.warm_up >= blocks.len(), ParameterError::NothingLeft(blocks.len())),
        ])
    }
}

/// Conditions that are as in the thesis by default.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Conditions {
    /// The times that Weighted LRU weighs.
    pub technology: Technology,
    /// Part of each cache that is managed for all clients, in algorithms that reserve one.
    pub common_part: f64,
    /// Blocks that each client has on another machine with direct cooperation; `None` means as many
    /// as in its own cache.
    pub remote_blocks: Option<u32>,
    /// Blocks that the caches of the first clients hold, if clients differ. The others have the
    /// common number.
    pub rooms: Vec<u32>,
}

impl Default for Conditions {
    fn default() -> Conditions {
        Conditions { technology: Technology::ATM, common_part: COMMON_PART, remote_blocks: None, rooms: Vec::new() }
    }
}

impl Conditions {
    /// Checks the conditions; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        self.technology.check()?;
        match (0.0..=1.0).contains(&self.common_part) {
            true => Ok(()),
            false => Err(ParameterError::Range("common-part", "0 to 1")),
        }
    }
}

/// The result, after the caches were filled.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Reads of blocks, by [`Level`].
    pub reads: [u64; 4],
    /// The reads of each client.
    pub clients: Vec<[u64; 4]>,
    /// The server's load.
    pub load: Load,
    /// Blocks that a client sent to another client to keep.
    pub forwarded: u64,
}

#[cfg(test)]
mod tests;
