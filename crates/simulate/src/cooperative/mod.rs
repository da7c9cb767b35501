//! Cooperative caching on a trace (Dahlin, chapter 3): which reads are served from where, how long they take, and what the server does.
//!
//! - `caches`: the caches, and who has what.
//! - [`Algorithm`]: who looks where, and what becomes of what leaves a cache; N-Chance's decisions are `policy::cooperative`'s.
//! - [`Technology`]: from where blocks come in which time (table 3-2).
//!
//! As in section 3.2: blocks of one size; what is written goes through to the server, and other clients' copies of it are gone; no queues.

mod caches;

use caches::{Caches, Place};
use host::{Random, SplitMix64};
use policy::cooperative::{Leaving, leaving};
use serde::Serialize;
use std::collections::HashMap;
use trace::{Deed, Record};

/// Part of each cache that is managed for all, where that is set apart (section 3.3.2.3).
pub const COMMON_PART: f64 = 0.8;

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
    /// The last copy of a block goes on to other clients for so long (3.1.6).
    NChance(u8),
    /// All memory twice: once as each client would have it, and once for all together. None that shares what memory there is, and gives up what was used least
    /// recently, can be better (3.2).
    Best,
}

impl Algorithm {
    /// All of them, in the order of the thesis.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::Base,
        Algorithm::Direct,
        Algorithm::Greedy,
        Algorithm::Central,
        Algorithm::Hash,
        Algorithm::NChance(policy::cooperative::RECIRCULATIONS),
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
            Algorithm::NChance(_) => "n-chance",
            Algorithm::Best => "best",
        }
    }
}

/// How long things take, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Technology {
    /// A block from one's own memory.
    pub local_us: f64,
    /// A block over the network, without its hops.
    pub transfer_us: f64,
    /// One message from one machine to another.
    pub hop_us: f64,
    /// A block from the server's disk.
    pub disk_us: f64,
}

impl Technology {
    /// 155 Mb/s ATM, and a disk of 1994 (section 3.2).
    pub const ATM: Technology = Technology { local_us: 250.0, transfer_us: 400.0, hop_us: 200.0, disk_us: 14_800.0 };

    /// How long a read takes from each [`Level`], in microseconds (table 3-2).
    pub fn times_us(&self, algorithm: Algorithm) -> [f64; 4] {
        let over = |hops: f64| self.local_us + self.transfer_us + hops * self.hop_us;
        let (remote, server) = match algorithm {
            // Who has it is known without asking.
            Algorithm::Direct => (2.0, 2.0),
            // The server is asked by whoever was asked first.
            Algorithm::Hash => (2.0, 3.0),
            _ => (3.0, 2.0),
        };
        [self.local_us, over(remote), over(server), over(server) + self.disk_us]
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

/// What the server does for reads, in units of a message without data (section 3.3.1): a block over the network is two more, and two from or to a disk.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Load {
    /// For reads that its disk serves.
    pub disk: u64,
    /// For those that other clients serve.
    pub remote: u64,
    /// For those that its memory serves.
    pub server: u64,
    /// Telling clients that what they have was changed, answering whether a block is the last one, and sending what leaves its cache.
    pub other: u64,
}

const MESSAGE: u64 = 1;
const BLOCK: u64 = 3;
const DISK: u64 = 2;

impl Load {
    /// All of it.
    pub fn total(&self) -> u64 {
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

/// What came of it, after the caches were filled.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Reads of blocks, by [`Level`].
    pub reads: [u64; 4],
    /// The same of each client.
    pub clients: Vec<[u64; 4]>,
    /// See [`Load`].
    pub load: Load,
}

/// Mean time of reads, in microseconds. Nothing without reads.
pub fn mean_us(reads: &[u64; 4], times_us: &[f64; 4]) -> Option<f64> {
    let count: u64 = reads.iter().sum();
    let time: f64 = reads.iter().zip(times_us).map(|(count, time)| *count as f64 * time).sum();
    (count > 0).then(|| time / count as f64)
}

/// What a client does with one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
    /// It is gone with its file.
    Forget,
}

/// A trace as accesses of single blocks, which have numbers from 0.
#[derive(Default, Debug)]
pub struct Blocks {
    accesses: Vec<(u32, u32, Access)>,
    clients: u32,
}

impl Blocks {
    /// Those of a trace, in blocks of so many bytes. The trace's own error, or that it is of more blocks or clients than can be counted.
    pub fn of<E>(
        records: impl IntoIterator<Item = Result<Record, E>>,
        block_bytes: u64,
    ) -> Result<Blocks, BlocksError<E>> {
        let (mut blocks, mut known, mut of_file) = (Blocks::default(), HashMap::new(), HashMap::<u64, Vec<u32>>::new());
        for record in records {
            let Record { client, file, deed, .. } = record.map_err(BlocksError::Trace)?;
            if client >= CLIENT_COUNT_MAX {
                return Err(BlocksError::TooMany("clients"));
            }
            blocks.clients = blocks.clients.max(client + 1);
            let (range, access) = match deed {
                Deed::Read { offset, len } => {
                    (offset / block_bytes..(offset + len).div_ceil(block_bytes), Access::Read)
                }
                Deed::Write { offset, len } => {
                    (offset / block_bytes..(offset + len).div_ceil(block_bytes), Access::Write)
                }
                Deed::Delete => {
                    let gone = of_file.remove(&file).unwrap_or_default();
                    blocks.accesses.extend(gone.into_iter().map(|block| (client, block, Access::Forget)));
                    continue;
                }
            };
            if blocks.accesses.len() as u64 + (range.end - range.start) > ACCESS_COUNT_MAX {
                return Err(BlocksError::TooMany("blocks"));
            }
            for index in range {
                let next = known.len() as u32;
                let block = *known.entry((file, index)).or_insert(next);
                if block == next {
                    of_file.entry(file).or_default().push(block);
                }
                blocks.accesses.push((client, block, access));
            }
        }
        Ok(blocks)
    }

    /// How many reads and writes of blocks there are.
    pub fn len(&self) -> u64 {
        self.accesses.iter().filter(|(_, _, access)| *access != Access::Forget).count() as u64
    }

    /// True if nothing is read or written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many clients there are.
    pub fn clients(&self) -> u32 {
        self.clients
    }
}

const CLIENT_COUNT_MAX: u32 = 1 << 16;
const ACCESS_COUNT_MAX: u64 = 1 << 31;

/// Why a trace cannot be simulated.
#[derive(Debug)]
pub enum BlocksError<E> {
    /// See there.
    Trace(E),
    /// There are more of these than this can count.
    TooMany(&'static str),
}

struct Simulation {
    of: Parameters,
    /// What clients manage for themselves.
    local: Caches,
    server: Caches,
    /// What is managed for others: one cache for each client, or one for all.
    common: Caches,
    clients: u32,
    random: SplitMix64,
    outcome: Outcome,
}

/// Simulates one algorithm.
pub fn simulate(blocks: &Blocks, parameters: &Parameters) -> Outcome {
    let (clients, own) = (blocks.clients, parameters.client_blocks);
    let shared = (f64::from(own) * COMMON_PART).round() as u32;
    let all = own.saturating_mul(clients);
    let each = |room: u32| Caches::new((0..clients).map(|_| room));
    let one = |room: u32| Caches::new([room]);
    let (local, common) = match parameters.algorithm {
        Algorithm::Base | Algorithm::Greedy | Algorithm::NChance(_) => (each(own), one(0)),
        Algorithm::Direct => (each(own), each(own)),
        Algorithm::Central => (each(own - shared), one(shared.saturating_mul(clients))),
        Algorithm::Hash => (each(own - shared), each(shared)),
        Algorithm::Best => (each(own), one(all)),
    };
    let outcome = Outcome { reads: [0; 4], clients: vec![[0; 4]; clients as usize], load: Load::default() };
    let (server, random) = (one(parameters.server_blocks), SplitMix64::new(parameters.seed));
    let mut simulation = Simulation { of: *parameters, local, server, common, clients, random, outcome };
    let mut count = 0;
    for (client, block, access) in &blocks.accesses {
        let counts = count >= parameters.warm_up;
        count += u64::from(*access != Access::Forget);
        match access {
            Access::Read => simulation.read(*client, *block, counts),
            Access::Write => simulation.write(*client, *block, counts),
            Access::Forget => simulation.forget(*block, None, counts),
        }
    }
    simulation.outcome
}

impl Simulation {
    fn read(&mut self, client: u32, block: u32, counts: bool) {
        let level = self.look(client, block);
        if level != Level::Local {
            self.keep(client, block, counts);
        }
        if !counts {
            return;
        }
        self.outcome.reads[level as usize] += 1;
        self.outcome.clients[client as usize][level as usize] += 1;
        let load = &mut self.outcome.load;
        match (level, self.of.algorithm) {
            (Level::Local, _) | (Level::Remote, Algorithm::Direct | Algorithm::Hash) => {}
            (Level::Remote, _) => load.remote += 2 * MESSAGE,
            (Level::Server, _) => load.server += MESSAGE + BLOCK,
            (Level::Disk, _) => load.disk += MESSAGE + DISK + BLOCK,
        }
    }

    /// Where a block is found first.
    fn look(&mut self, client: u32, block: u32) -> Level {
        if let Some(place) = self.local.find(client, block) {
            self.local.touch(place);
            return Level::Local;
        }
        if self.of.algorithm == Algorithm::Direct
            && let Some(place) = self.common.find(client, block)
        {
            // It is in the client's own cache from now on.
            self.common.remove(place);
            return Level::Remote;
        }
        if self.of.algorithm == Algorithm::Hash && self.touch_common(self.part_of(block), block) {
            return Level::Remote;
        }
        if let Some(place) = self.server.find(0, block) {
            self.server.touch(place);
            return Level::Server;
        }
        let is_remote = match self.of.algorithm {
            Algorithm::Greedy | Algorithm::NChance(_) => self.serve(block),
            Algorithm::Central | Algorithm::Best => self.touch_common(0, block),
            Algorithm::Base | Algorithm::Direct | Algorithm::Hash => false,
        };
        match is_remote {
            true => Level::Remote,
            false => {
                self.keep_at_server(block);
                Level::Disk
            }
        }
    }

    /// True if a client has it, who sends it. One that only goes round is given up by whoever had it.
    fn serve(&mut self, block: u32) -> bool {
        let Some(place) = self.local.place_but(block, None) else { return false };
        if self.local.recirculated(place) > 0 {
            self.local.remove(place);
        }
        true
    }

    fn touch_common(&mut self, cache: u32, block: u32) -> bool {
        let place = self.common.find(cache, block);
        place.into_iter().for_each(|place| self.common.touch(place));
        place.is_some()
    }

    /// The client whose part of the common cache a block belongs to.
    fn part_of(&self, block: u32) -> u32 {
        (SplitMix64::new(block.into()).next_u64() % u64::from(self.clients)) as u32
    }

    /// What came from the disk stays in the server's memory. What leaves that goes to the common cache.
    fn keep_at_server(&mut self, block: u32) {
        let leaves = match self.server.is_nothing(0) {
            true => Some(block),
            false => {
                let leaves = match self.server.has_room(0) {
                    true => None,
                    false => self.server.oldest(0).map(|place| self.server.remove(place).0),
                };
                self.server.insert(0, block, 0);
                leaves
            }
        };
        let Some(leaves) = leaves else { return };
        let cache = match self.of.algorithm {
            Algorithm::Central | Algorithm::Best => 0,
            Algorithm::Hash => self.part_of(leaves),
            _ => return,
        };
        self.keep_common(cache, leaves);
    }

    fn keep_common(&mut self, cache: u32, block: u32) {
        if self.touch_common(cache, block) || self.common.is_nothing(cache) {
            return;
        }
        if !self.common.has_room(cache)
            && let Some(oldest) = self.common.oldest(cache)
        {
            self.common.remove(oldest);
        }
        self.common.insert(cache, block, 0);
    }

    /// A client has it in its cache from now on.
    fn keep(&mut self, client: u32, block: u32, counts: bool) {
        if self.local.is_nothing(client) {
            return;
        }
        if !self.local.has_room(client)
            && let Some(oldest) = self.local.oldest(client)
        {
            self.leave(client, oldest, counts);
        }
        self.local.insert(client, block, 0);
    }

    /// A client gives up what it used least recently.
    fn leave(&mut self, client: u32, place: Place, counts: bool) {
        let block = self.local.block_of(place);
        let is_singlet = self.local.copies(block) == 1;
        let (_, recirculated) = self.local.remove(place);
        match self.of.algorithm {
            Algorithm::Direct => self.keep_common(client, block),
            Algorithm::NChance(n) => {
                if counts && recirculated == 0 {
                    // Whoever has used it asks whether it is the last; what was sent to it is.
                    self.outcome.load.other += 2 * MESSAGE;
                }
                if self.clients > 1
                    && let Leaving::Forward(recirculated) = leaving(is_singlet, recirculated, n)
                {
                    let other = (client + 1 + self.random.below(u64::from(self.clients) - 1) as u32) % self.clients;
                    self.forward(other, block, recirculated);
                }
            }
            _ => {}
        }
    }

    fn forward(&mut self, client: u32, block: u32, recirculated: u8) {
        if !self.local.has_room(client) {
            let Some(yields) = self.local.yields(client) else { return };
            self.local.remove(yields);
        }
        self.local.insert(client, block, recirculated);
    }

    fn write(&mut self, client: u32, block: u32, counts: bool) {
        self.forget(block, Some(client), counts);
        match self.local.find(client, block) {
            Some(place) => self.local.touch(place),
            None => self.keep(client, block, counts),
        }
        // It goes through to the server.
        match self.server.find(0, block) {
            Some(place) => self.server.touch(place),
            None => self.keep_at_server(block),
        }
    }

    /// Nobody has it any more, but for that client.
    fn forget(&mut self, block: u32, but: Option<u32>, counts: bool) {
        while let Some(place) = self.local.place_but(block, but) {
            self.local.remove(place);
            self.outcome.load.other += if counts { MESSAGE } else { 0 };
        }
        while let Some(place) = self.common.place_but(block, None) {
            self.common.remove(place);
        }
        if but.is_none()
            && let Some(place) = self.server.find(0, block)
        {
            self.server.remove(place);
        }
    }
}

#[cfg(test)]
mod tests;
