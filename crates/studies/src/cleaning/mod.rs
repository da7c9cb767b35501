//! What making room costs a log (Dahlin, sections 4.2 to 4.4).
//!
//! - [`simulate`]: the write cost on a trace, over segment sizes and utilisations of the disk, with
//!   and without cooperative caches (table 4-2, figure 4-7).
//! - [`bookkeeping`]: the messages that tell a cleaner what is dead (figure 4-6).
//! - [`classic`]: the same under random writes, as the authors of log-structured file systems did
//!   it, where a formula gives the right result.
//! - [`log`]: segments, and the cleaner, which takes the segments that `policy::clean` chooses, as
//!   the product's does.
//! - [`report`]: figures and findings.
//!
//! As in section 4.4, each client fills a segment of its own, nothing is overwritten in place, and
//! one cleaner makes room when there is none. The trace is run twice. The first run only writes, so
//! that all data have a place. The second run also fills the caches, and its second half counts.

pub mod bookkeeping;
pub mod classic;
pub mod log;
pub mod report;

use crate::ParameterError::{self, Range};
use crate::cooperative::simulation::Simulation as Caches;
use crate::cooperative::{self, Algorithm, Conditions};
use crate::locality::accesses::{Accesses, What};
use log::{Cleaner, Counts, Log};
use policy::clean::Rule;
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;

/// Most blocks of a segment.
const SEGMENT_BLOCKS_MAX: u64 = 1 << 20;
/// Most segments of the disk.
const SEGMENT_COUNT_MAX: f64 = (1u64 << 26) as f64;
/// Least live share of the disk.
const UTILISATION_MIN: f64 = 0.01;

/// What counts as a segment's age.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ages {
    /// The number of segments that its log has written since, as in the product.
    Segments,
    /// The amount of data written since its youngest block was written, even if that was moved
    /// (Rosenblum and Ousterhout).
    Data,
}

/// When a cleaner begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Begins when no segment is free, and ends some segments later (section 4.4).
    Full,
    /// Begins when less is free than `policy::clean::FreeGoal` wants, and ends when that much is
    /// free, as the product does during writes. (When there are none, the product also merges
    /// half-empty segments.)
    Short,
}

/// There is no room, and cleaning makes none; or there would be more segments than the simulation
/// permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "utilisation: there is no room, and cleaning makes none: set less, other segments, or use a longer trace",
        )
    }
}

impl Error for Full {}

/// The usual name of a rule.
pub fn name(rule: Rule) -> &'static str {
    match rule {
        Rule::DampedCostBenefit => "damped-cost-benefit",
        Rule::CostBenefit => "cost-benefit",
        Rule::Greedy => "greedy",
    }
}

fn serialize_rule<S: Serializer>(rule: &Rule, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(name(*rule))
}

/// The parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Parameters {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Most live data at once, as a share of the disk.
    pub utilisation: f64,
    /// Which segments are cleaned first.
    #[serde(serialize_with = "serialize_rule")]
    pub rule: Rule,
    /// What counts as a segment's age.
    pub ages: Ages,
    /// The cleaner writes the blocks that it moves in the order of age.
    pub sorts: bool,
    /// When it cleans.
    pub when: When,
    /// Blocks that each client's cache holds, from which cleaners read; 0 means that they read from
    /// the disk.
    pub cache_blocks: u32,
    /// How long written data wait in their writer's memory, in microseconds; data that die there
    /// are not written.
    pub delay_us: u64,
    /// The same seed gives the same result.
    pub seed: u64,
}

impl Default for Parameters {
    /// As in section 4.4: 512 KiB, a disk that is 80 % full, no delay, no reads from caches, and
    /// cleaning as by Rosenblum and Ousterhout.
    fn default() -> Parameters {
        let (ages, sorts, when) = (Ages::Data, true, When::Full);
        let (segment_bytes, utilisation, rule) = (512 << 10, 0.8, Rule::CostBenefit);
        Parameters { segment_bytes, utilisation, rule, ages, sorts, when, cache_blocks: 0, delay_us: 0, seed: 1 }
    }
}

impl Parameters {
    /// The same, cleaned as the product does.
    pub fn product(self) -> Parameters {
        Parameters { rule: Rule::default(), ages: Ages::Segments, sorts: false, when: When::Short, ..self }
    }

    /// Checks the parameters for blocks of this many bytes; an error names the wrong one.
    pub fn check(&self, block_bytes: u64) -> Result<(), ParameterError> {
        let blocks = self.segment_bytes / block_bytes.max(1);
        ParameterError::first([
            (!(2..=SEGMENT_BLOCKS_MAX).contains(&blocks), Range("segment-bytes", "2 to 1048576 blocks")),
            (!self.segment_bytes.is_multiple_of(block_bytes.max(1)), Range("segment-bytes", "whole blocks")),
            (
                !(self.utilisation >= UTILISATION_MIN && self.utilisation < 1.0),
                Range("utilisation", "0.01 or more, less than 1"),
            ),
        ])
    }
}

/// The result of the second half of the second run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The work done.
    pub counts: Counts,
    /// See [`Counts::write_cost`]. `None` if no segment was written.
    pub write_cost: Option<f64>,
    /// Blocks that died before they were written.
    pub died_blocks: u64,
    /// Segments of the disk.
    pub disk_segments: u32,
}

/// Data that were written and are not in a log yet: the writer, and a number that orders the
/// writes.
type Waiting = Option<(u32, u64)>;

struct Simulation<'a> {
    of: &'a Accesses,
    delay_us: u64,
    log: Log,
    /// Clients' caches with N-Chance Forwarding, from which cleaners read; `None` if they do not.
    caches: Option<Caches>,
    /// By block, the data that wait.
    waiting: Vec<Waiting>,
    /// The data that wait, in the order of time, each with its number.
    due: VecDeque<(u64, u32, u64)>,
    number: u64,
    died: u64,
}

/// Runs a trace twice. The parameters must pass [`Parameters::check`]. [`Full`] if cleaning makes
/// no room: live data are too large a share of the disk, or of too few segments.
pub fn simulate(accesses: &Accesses, parameters: &Parameters) -> Result<Outcome, Full> {
    let segment_blocks = (parameters.segment_bytes / accesses.block_bytes().max(1)).clamp(2, SEGMENT_BLOCKS_MAX) as u32;
    let disk_segments = (most_alive(accesses) as f64 / parameters.utilisation / f64::from(segment_blocks)).ceil();
    if disk_segments > SEGMENT_COUNT_MAX {
        return Err(Full);
    }
    let disk_segments = (disk_segments as u32).max(1);
    let Parameters { rule, ages, sorts, when, cache_blocks, delay_us, seed, .. } = *parameters;
    let (blocks, clients) = (accesses.block_count(), accesses.clients());
    let mut simulation = Simulation {
        of: accesses,
        delay_us,
        log: Log::new(Cleaner { rule, ages, sorts, when }, segment_blocks, disk_segments, clients, blocks),
        caches: (cache_blocks > 0).then(|| caches(accesses, cache_blocks, seed)),
        waiting: vec![None; blocks],
        due: VecDeque::new(),
        number: 0,
        died: 0,
    };
    simulation.run(0..accesses.all().len(), false)?;
    simulation.flush(u64::MAX)?;
    let half = accesses.all().len() / 2;
    simulation.run(0..half, true)?;
    let (before, died) = (simulation.log.counts, simulation.died);
    simulation.run(half..accesses.all().len(), true)?;
    simulation.flush(u64::MAX)?;
    let counts = simulation.log.counts.since(&before);
    let died_blocks = simulation.died - died;
    Ok(Outcome { counts, write_cost: counts.write_cost(), died_blocks, disk_segments })
}

fn caches(accesses: &Accesses, client_blocks: u32, seed: u64) -> Caches {
    let algorithm = Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS);
    let of = cooperative::Parameters { algorithm, client_blocks, server_blocks: 0, warm_up: 0, seed };
    Caches::new(accesses.clients(), accesses.block_count() as u32, &of, &Conditions::default())
}

/// The most blocks that live at once when a trace is run twice.
fn most_alive(accesses: &Accesses) -> u64 {
    let mut lives = vec![false; accesses.block_count()];
    let (mut count, mut most) = (0u64, 0);
    for _ in 0..2 {
        for access in accesses.all() {
            match access.what {
                What::Read(_) => {}
                What::Write(block) => count += u64::from(!std::mem::replace(&mut lives[block as usize], true)),
                What::Delete(file) => {
                    let of = accesses.blocks_of(file).iter();
                    count -= of.filter(|block| std::mem::take(&mut lives[**block as usize])).count() as u64;
                }
            }
            most = most.max(count);
        }
    }
    most
}

impl Simulation<'_> {
    fn run(&mut self, range: std::ops::Range<usize>, with_caches: bool) -> Result<(), Full> {
        for access in &self.of.all()[range] {
            self.flush(access.time_us)?;
            if let Some(caches) = self.caches.as_mut().filter(|_| with_caches) {
                caches.now += 1;
                match access.what {
                    What::Read(block) => caches.read(access.client, block),
                    What::Write(block) => caches.write(access.client, block),
                    What::Delete(file) => self.of.blocks_of(file).iter().for_each(|block| caches.forget(*block, None)),
                }
            }
            match access.what {
                What::Read(_) => {}
                What::Write(block) => self.write(access.client, access.time_us, block)?,
                What::Delete(file) => {
                    for block in self.of.blocks_of(file) {
                        self.log.delete(*block);
                        self.died += u64::from(self.waiting[*block as usize].take().is_some());
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, client: u32, time_us: u64, block: u32) -> Result<(), Full> {
        match self.waiting[block as usize] {
            Some((writer, _)) if writer == client => {
                self.died += 1;
                return Ok(());
            }
            // A block is committed before another client writes it.
            Some((writer, _)) => self.append(writer, block)?,
            None => {}
        }
        if self.delay_us == 0 {
            return self.append(client, block);
        }
        self.number += 1;
        self.waiting[block as usize] = Some((client, self.number));
        self.due.push_back((time_us.saturating_add(self.delay_us), block, self.number));
        Ok(())
    }

    /// Writes the data that have waited long enough.
    fn flush(&mut self, time_us: u64) -> Result<(), Full> {
        while let Some(&(at_us, block, number)) = self.due.front()
            && at_us <= time_us
        {
            self.due.pop_front();
            if let Some((writer, waiting)) = self.waiting[block as usize]
                && waiting == number
            {
                self.waiting[block as usize] = None;
                self.append(writer, block)?;
            }
        }
        Ok(())
    }

    fn append(&mut self, writer: u32, block: u32) -> Result<(), Full> {
        let caches = &self.caches;
        self.log.write(writer, block, |block| caches.as_ref().is_some_and(|caches| caches.has(block)))
    }
}

#[cfg(test)]
mod tests;
