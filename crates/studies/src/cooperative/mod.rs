//! Cooperative caching on a trace (Dahlin, chapter 3): which reads are served from where, how long
//! they take, and what the server does.
//!
//! - [`Algorithm`]: who looks where, and what becomes of what leaves a cache; what is decided there
//!   is decided by `policy::cooperative`.
//! - [`Blocks`]: a trace as accesses of single blocks; [`simulate`] runs one algorithm on it.
//! - [`Technology`]: from where blocks come in which time (table 3-2).
//! - [`experiments`]: what the thesis studied, repeated.
//! - [`yardstick`]: plain LRU, to see how fast this is.
//!
//! As in section 3.2: blocks of one size; what is written goes through to the server, and other
//! clients' copies of it are gone; no queues.

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

use caches::RECIRCULATED_MAX;
use serde::Serialize;

/// Part of each cache that is managed for all, where that is set apart (section 3.3.2.3).
pub const COMMON_PART: f64 = 0.8;

/// What clients know when they make room, with Weighted LRU (table 3-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knowledge {
    /// Everything about everybody.
    Global,
    /// Which of their own blocks were singlets when they asked, and everything about the others.
    SingletHints,
    /// That, and what the server knew of the others when it answered last.
    AllHints,
}

/// Who looks where, and what becomes of what leaves a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Each client has its cache, and the server its own.
    Base,
    /// Each client has as much again on another machine, for what leaves its cache (3.1.1).
    Direct,
    /// Clients are also served from each other's caches (3.1.2).
    Greedy,
    /// Most of each client's cache is managed by the server, for what leaves the server's (3.1.3).
    Central,
    /// The same, each block having its client, who is asked first (3.1.4).
    Hash,
    /// What costs everybody least goes, wherever it is (3.1.5).
    WeightedLru(Knowledge),
    /// The last copy of a block goes on to other clients for so long (3.1.6).
    NChance(u8),
    /// The last copy of a block goes once to the less busy one of two clients (3.1.7).
    TwoChoices,
    /// The last copy of a block goes to where old blocks were when all said how old theirs are
    /// (3.1.7).
    Epochs,
    /// The thesis's best case (3.2): all memory twice, once as each client would have it, and once
    /// for all together, each giving up what was used least recently. It is no bound: a policy that
    /// gives up something else can read less from the disk, and N-Chance Forwarding did so on a
    /// block trace that was not synthetic.
    Best,
}

impl Algorithm {
    /// All of them, in the order of the thesis, as they are where nothing else is said.
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

    /// What people call it.
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

/// From where a block comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The client's own cache.
    Local,
    /// Another client's.
    Remote,
    /// The server's memory.
    Server,
    /// Its disk.
    Disk,
}

/// What the server does, in units of a message without data (section 3.3.1): a block over the
/// network is two more, and two from or to a disk. As there, the load for reads leaves out deletes,
/// and what writes cost whatever the algorithm. What clients say to each other is not the server's
/// load.
///
/// The thesis counts telling clients that a block was changed among "other load". Reads do not
/// cause that work, so it is apart here, with all else that writes cause.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Load {
    /// For reads that its disk serves.
    pub disk: u64,
    /// For those that other clients serve.
    pub remote: u64,
    /// For those that its memory serves.
    pub server: u64,
    /// For what clients and the server give up to make room for what is read: answering whether a
    /// block is the last one, and sending what leaves the server's memory to clients who keep it
    /// for all.
    pub other: u64,
    /// The same for what is written, and telling clients that their copies were changed, a message
    /// each.
    pub writes: u64,
}

impl Load {
    /// All of it that reads cause.
    pub fn of_reads(&self) -> u64 {
        self.disk + self.remote + self.server + self.other
    }
}

/// What is set.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Parameters {
    /// See [`Algorithm`].
    pub algorithm: Algorithm,
    /// Blocks that each client's cache holds.
    pub client_blocks: u32,
    /// Blocks that the server's memory holds; 0: it has no cache.
    pub server_blocks: u32,
    /// Reads and writes of blocks that only fill the caches.
    pub warm_up: u64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

impl Parameters {
    /// What makes no sense for these blocks, by the name of what is set.
    pub fn check(&self, blocks: &Blocks) -> Result<(), String> {
        let often = matches!(self.algorithm, Algorithm::NChance(n) if n as usize > RECIRCULATED_MAX);
        let fault = [
            (self.client_blocks == 0, "client-cache: it holds no block".to_owned()),
            (often, format!("n: 0 to {RECIRCULATED_MAX}")),
            (
                self.warm_up >= blocks.len(),
                format!("warm-up: the trace has {} accesses of blocks, nothing would be left to count", blocks.len()),
            ),
        ];
        fault.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err(what))
    }
}

/// What is as in the thesis where nothing else is said.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Conditions {
    /// By what Weighted LRU weighs.
    pub technology: Technology,
    /// Part of each cache that is managed for all, where that is set apart.
    pub common_part: f64,
    /// Blocks that each client has elsewhere with direct cooperation; nothing: as many as in its
    /// own cache.
    pub remote_blocks: Option<u32>,
    /// Blocks that each client's cache holds, of clients that are not alike. Those that are not
    /// named have as many as all.
    pub rooms: Vec<u32>,
}

impl Default for Conditions {
    fn default() -> Conditions {
        Conditions { technology: Technology::ATM, common_part: COMMON_PART, remote_blocks: None, rooms: Vec::new() }
    }
}

impl Conditions {
    /// What makes no sense, by the name of what is set.
    pub fn check(&self) -> Result<(), String> {
        self.technology.check()?;
        match (0.0..=1.0).contains(&self.common_part) {
            true => Ok(()),
            false => Err("common-part: 0 to 1".into()),
        }
    }
}

/// What came of it, after the caches were filled.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Reads of blocks, by [`Level`].
    pub reads: [u64; 4],
    /// The same of each client.
    pub clients: Vec<[u64; 4]>,
    /// See [`Load`].
    pub load: Load,
    /// Blocks that a client sent to another one for it to keep them.
    pub forwarded: u64,
}

#[cfg(test)]
mod tests;
