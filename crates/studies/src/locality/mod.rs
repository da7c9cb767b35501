//! Which machine manages which files, and the messages that reads, writes and deletes take because
//! of it (Dahlin, section 5.3).
//!
//! - [`Policy`]: the machine of a file's manager.
//! - [`simulate`]: messages on a trace, counted by the protocol of sections 5.2.1 and 5.2.2.
//! - [`accesses`]: a trace in blocks and files.
//! - [`report`]: figures and findings.
//!
//! Each client has an LRU cache and a manager; storage servers are always other machines. Any
//! client that caches a block serves it to others. The thesis leaves some things open. Here:
//!
//! - A client that asks waits for an answer, which is a message, too. A client that is told that a
//!   block is gone does not answer.
//! - Blocks are written as wholes. A write is committed after [`Parameters::commit_us`], when it
//!   leaves the cache, or when another client asks for the block; the manager is told of each
//!   block.
//! - A manager keeps the index nodes that it has read, and those of files that were made meanwhile;
//!   reading one takes two messages.
//! - A client that becomes the manager of a file asks the file's former manager for its index node:
//!   two messages.

pub mod accesses;
pub mod report;

use crate::ParameterError;
use accesses::{Access, Accesses, What};
use host::SplitMix64;
use policy::cache::WeightedLru;
use serde::Serialize;
use std::collections::VecDeque;

/// The machine of a file's manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One machine that is not a client manages all files.
    Centralized,
    /// The client that made the file.
    FirstWriter,
    /// The client that last began to write the file's first block.
    LastWriter,
}

impl Policy {
    /// All of them, in the order of the thesis.
    pub const ALL: [Policy; 3] = [Policy::Centralized, Policy::FirstWriter, Policy::LastWriter];

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Centralized => "centralized",
            Policy::FirstWriter => "first writer",
            Policy::LastWriter => "last writer",
        }
    }
}

/// The parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Parameters {
    /// The policy.
    pub policy: Policy,
    /// Blocks that each client's cache holds.
    pub cache_blocks: u32,
    /// How long written data stay with the client, in microseconds.
    pub commit_us: u64,
    /// Time at the beginning that only fills the caches, in microseconds.
    pub warm_up_us: u64,
    /// Files from before the trace get a random manager; the same seed gives the same one.
    pub seed: u64,
}

impl Default for Parameters {
    /// As in section 5.3.1: 16 MiB in blocks of 8 KiB; a day.
    fn default() -> Parameters {
        let (policy, day_us) = (Policy::FirstWriter, 86_400_000_000);
        Parameters { policy, cache_blocks: 2048, commit_us: 30_000_000, warm_up_us: day_us, seed: 1 }
    }
}

impl Parameters {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        match self.cache_blocks {
            0 => Err(ParameterError::Range("cache-blocks", "at least one")),
            _ => Ok(()),
        }
    }
}

/// An interaction with a manager, and how often the manager was on the same machine.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Contacts {
    /// How often.
    pub count: u64,
    /// How often without a message.
    pub local: u64,
}

impl Contacts {
    /// The local share. `None` if there were none.
    pub fn local_share(&self) -> Option<f64> {
        (self.count > 0).then(|| self.local as f64 / self.count as f64)
    }
}

/// The result, after the caches were filled.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// Reads of blocks.
    pub reads: u64,
    /// Reads that the client's own cache served.
    pub hits: u64,
    /// Other reads that took one message less, because the manager is on the client that asks or
    /// the one that serves.
    pub shorter: u64,
    /// Messages for reads.
    pub read_hops: u64,
    /// Writes of blocks.
    pub writes: u64,
    /// Requests for the right to write.
    pub asked: Contacts,
    /// Notices to clients that another client has written a block of theirs.
    pub invalidated: Contacts,
    /// Notices to the manager where a block is in the log.
    pub committed: Contacts,
    /// Files that got another manager.
    pub moved: u64,
    /// Messages for writes.
    pub write_hops: u64,
    /// Files that were deleted.
    pub deletes: Contacts,
    /// Notices to clients that a block of theirs was deleted.
    pub told: Contacts,
    /// Messages for deleting.
    pub delete_hops: u64,
}

fn mean(hops: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| hops as f64 / count as f64)
}

impl Outcome {
    /// All messages.
    pub fn hops(&self) -> u64 {
        self.read_hops + self.write_hops + self.delete_hops
    }

    /// Mean messages of a read. `None` without reads.
    pub fn hops_per_read(&self) -> Option<f64> {
        mean(self.read_hops, self.reads)
    }

    /// Mean messages of a read that the client's own cache does not serve.
    pub fn hops_per_miss(&self) -> Option<f64> {
        mean(self.read_hops, self.reads - self.hits)
    }

    /// Mean messages of a write of a block.
    pub fn hops_per_write(&self) -> Option<f64> {
        mean(self.write_hops, self.writes)
    }

    /// Mean messages of deleting a file.
    pub fn hops_per_delete(&self) -> Option<f64> {
        mean(self.delete_hops, self.deletes.count)
    }
}

/// No client: the machine of the central manager, or no manager yet.
const NOBODY: u32 = u32::MAX;

/// The state of a block.
#[derive(Clone, Default)]
struct Block {
    /// The clients that cache it.
    holders: Vec<u32>,
    /// The client that may write it without asking.
    owner: Option<u32>,
    /// Not committed yet; a number that orders the writes.
    dirty: Option<u64>,
}

#[derive(Clone, Copy)]
struct File {
    manager: u32,
    is_assigned: bool,
    /// The manager has its index node.
    is_indexed: bool,
}

struct Simulation<'a> {
    of: &'a Accesses,
    parameters: &'a Parameters,
    caches: Vec<WeightedLru<u32, ()>>,
    blocks: Vec<Block>,
    files: Vec<File>,
    /// Blocks to commit, in the order of time, each with its number.
    dirty: VecDeque<(u64, u32, u64)>,
    written: u64,
    counts: bool,
    outcome: Outcome,
}

/// Simulates one policy. The parameters must pass [`Parameters::check`].
pub fn simulate(accesses: &Accesses, parameters: &Parameters) -> Outcome {
    let cache = || WeightedLru::new(parameters.cache_blocks.into());
    let file = File { manager: NOBODY, is_assigned: false, is_indexed: false };
    let mut simulation = Simulation {
        of: accesses,
        parameters,
        caches: (0..accesses.clients()).map(|_| cache()).collect(),
        blocks: vec![Block::default(); accesses.block_count()],
        files: vec![file; accesses.file_count()],
        dirty: VecDeque::new(),
        written: 0,
        counts: false,
        outcome: Outcome::default(),
    };
    for access in accesses.all() {
        simulation.step(access);
    }
    simulation.commit_until(u64::MAX);
    simulation.outcome
}

impl Simulation<'_> {
    fn step(&mut self, access: &Access) {
        self.counts = access.time_us >= self.parameters.warm_up_us;
        self.commit_until(access.time_us);
        // The accesses that only fill the caches do not count.
        let outcome = self.outcome;
        match access.what {
            What::Read(block) => self.read(access.client, block),
            What::Write(block) => self.write(access, block),
            What::Delete(file) => self.delete(access.client, file),
        }
        if !self.counts {
            self.outcome = outcome;
        }
    }

    /// The machine of a file's manager.
    fn manager(&mut self, file: u32) -> u32 {
        let of = &mut self.files[file as usize];
        if !of.is_assigned && self.parameters.policy != Policy::Centralized {
            // The file is older than the trace: a random client made it.
            let random = SplitMix64::new(self.parameters.seed.wrapping_add(u64::from(file) << 20));
            of.manager = random.below(self.of.clients().into()) as u32;
        }
        of.manager
    }

    fn read(&mut self, client: u32, block: u32) {
        self.outcome.reads += 1;
        if self.caches[client as usize].get(&block).is_some() {
            self.outcome.hits += 1;
            return;
        }
        let file = self.of.block(block).file;
        let manager = self.manager(file);
        let asks = u64::from(client != manager);
        let holders = &self.blocks[block as usize].holders;
        let server = if holders.contains(&manager) { Some(manager) } else { holders.first().copied() };
        let forwards = u64::from(server != Some(manager));
        let index = if server.is_none() && !self.files[file as usize].is_indexed { 2 } else { 0 };
        self.outcome.read_hops += asks + forwards + 1 + index;
        self.outcome.shorter += u64::from(asks + forwards < 2);
        self.files[file as usize].is_indexed |= server.is_none();
        // The client that could write it without asking no longer can; the others see the committed
        // block.
        self.commit(block);
        self.blocks[block as usize].owner = None;
        self.keep(client, block);
    }

    fn write(&mut self, access: &Access, block: u32) {
        let client = access.client;
        self.outcome.writes += 1;
        if self.blocks[block as usize].owner == Some(client) {
            self.caches[client as usize].get(&block);
        } else {
            self.own(client, block);
        }
        if self.blocks[block as usize].dirty.is_none() {
            self.written += 1;
            self.blocks[block as usize].dirty = Some(self.written);
            let at_us = access.time_us.saturating_add(self.parameters.commit_us);
            self.dirty.push_back((at_us, block, self.written));
        }
    }

    /// The client gets the right to write, and the other clients drop their copies.
    fn own(&mut self, client: u32, block: u32) {
        // A block is committed before another client writes it.
        self.commit(block);
        let accesses::Block { file, is_first } = self.of.block(block);
        let is_last_writer = self.parameters.policy == Policy::LastWriter && is_first;
        self.manager(file);
        let of = &mut self.files[file as usize];
        if !of.is_assigned && self.parameters.policy != Policy::Centralized {
            of.manager = client;
        } else if is_last_writer && of.manager != client {
            of.manager = client;
            self.outcome.moved += 1;
            self.outcome.write_hops += 2;
        }
        (of.is_assigned, of.is_indexed) = (true, true);
        let manager = of.manager;
        self.outcome.write_hops += contact(&mut self.outcome.asked, client, manager, 2);
        for holder in std::mem::take(&mut self.blocks[block as usize].holders) {
            if holder != client {
                self.caches[holder as usize].remove(&block);
                self.outcome.write_hops += contact(&mut self.outcome.invalidated, manager, holder, 1);
            } else {
                self.blocks[block as usize].holders.push(client);
            }
        }
        self.keep(client, block);
        self.blocks[block as usize].owner = Some(client);
    }

    /// Puts the block into the client's cache, as the most recently used one.
    fn keep(&mut self, client: u32, block: u32) {
        if self.caches[client as usize].get(&block).is_some() {
            return;
        }
        for (left, ()) in self.caches[client as usize].insert(block, (), 1) {
            if self.blocks[left as usize].owner == Some(client) {
                self.commit(left);
                self.blocks[left as usize].owner = None;
            }
            self.blocks[left as usize].holders.retain(|holder| *holder != client);
        }
        self.blocks[block as usize].holders.push(client);
    }

    /// Commits a write: it is in its owner's log, and the manager knows where.
    fn commit(&mut self, block: u32) {
        let of = &mut self.blocks[block as usize];
        if let (Some(_), Some(owner)) = (of.dirty.take(), of.owner) {
            let manager = self.files[self.of.block(block).file as usize].manager;
            self.outcome.write_hops += contact(&mut self.outcome.committed, owner, manager, 1);
        }
    }

    fn commit_until(&mut self, time_us: u64) {
        let outcome = self.outcome;
        while let Some(&(at_us, block, number)) = self.dirty.front()
            && at_us <= time_us
        {
            self.dirty.pop_front();
            if self.blocks[block as usize].dirty == Some(number) {
                self.commit(block);
            }
        }
        if !self.counts {
            self.outcome = outcome;
        }
    }

    fn delete(&mut self, client: u32, file: u32) {
        let manager = self.manager(file);
        let mut holders = Vec::new();
        for block in self.of.blocks_of(file) {
            let of = std::mem::take(&mut self.blocks[*block as usize]);
            for holder in &of.holders {
                self.caches[*holder as usize].remove(block);
            }
            holders.extend(of.holders.into_iter().filter(|holder| *holder != client));
        }
        holders.sort_unstable();
        holders.dedup();
        self.outcome.delete_hops += contact(&mut self.outcome.deletes, client, manager, 2);
        for holder in holders {
            self.outcome.delete_hops += contact(&mut self.outcome.told, manager, holder, 1);
        }
    }
}

/// Counts an interaction of two machines; returns its messages, none if they are the same.
fn contact(contacts: &mut Contacts, one: u32, other: u32, hops: u64) -> u64 {
    contacts.count += 1;
    contacts.local += u64::from(one == other);
    if one == other { 0 } else { hops }
}

#[cfg(test)]
mod tests;
