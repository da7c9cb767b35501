//! The thesis's studies of cooperative caching, and ours beside them: each a function from a trace
//! and what is set to what was measured, and what that shows as figures and beside what the thesis
//! states.
//!
//! - [`calibration`]: traces that meet all that the thesis states of Sprite's, and how far results
//!   differ between them.
//! - [`comparison`]: all algorithms on one trace (figures 3-3 to 3-6, 3-17 and 3-18, tables 3-2 and
//!   3-3).
//! - [`sensitivity`]: each thing that is set, varied (figures 3-7 to 3-14, table 3-4, and today's
//!   machines).
//! - [`worst`]: the workload that hurts most (figures 3-19 to 3-21).
//! - `rates`: from where the thesis's reads were served, and how much of a difference to ours that
//!   makes.

pub mod calibration;
pub mod comparison;
mod rates;
pub mod sensitivity;
pub mod worst;

use super::blocks::Deal;
use super::{Algorithm, Blocks, Conditions, Level, Parameters, mean_us, simulate_under};
use crate::figure::Curve;
use serde::Serialize;

/// Bytes of the thesis's blocks.
pub const BLOCK_BYTES: u64 = 8192;

/// What is set for all algorithms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Setup {
    /// Bytes of a block: for the labels.
    pub block_bytes: u64,
    /// Blocks that each client's cache holds.
    pub client_blocks: u32,
    /// Blocks that the server's memory holds.
    pub server_blocks: u32,
    /// Reads and writes of blocks that only fill the caches.
    pub warm_up: u64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

impl Setup {
    /// 16 MiB for each client and 128 MiB for the server (section 3.3.1).
    pub fn thesis(warm_up: u64, seed: u64) -> Setup {
        Setup { block_bytes: BLOCK_BYTES, client_blocks: 2048, server_blocks: 16_384, warm_up, seed }
    }

    /// What makes no sense for these blocks, by the name of what is set.
    pub fn check(&self, blocks: &Blocks) -> Result<(), String> {
        if self.block_bytes == 0 {
            return Err("block: a block has at least one byte".into());
        }
        self.parameters(Algorithm::Base).check(blocks)?;
        let counted = blocks.accesses().filter(|access| access.deal != Deal::Forget).skip(self.warm_up as usize);
        match counted.into_iter().any(|access| access.deal == Deal::Read) {
            true => Ok(()),
            false => Err(format!("warm-up: nothing is read after the first {} accesses of blocks", self.warm_up)),
        }
    }

    fn parameters(&self, algorithm: Algorithm) -> Parameters {
        let Setup { client_blocks, server_blocks, warm_up, seed, .. } = *self;
        Parameters { algorithm, client_blocks, server_blocks, warm_up, seed }
    }

    /// So many blocks, in MiB.
    fn mib(&self, blocks: f64) -> f64 {
        blocks * self.block_bytes as f64 / f64::from(1 << 20)
    }
}

/// One run.
#[derive(Clone, Debug)]
struct Case<S> {
    study: S,
    curve: String,
    x: f64,
    parameters: Parameters,
    conditions: Conditions,
}

/// What one run of a study came to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured<S> {
    /// Of which study.
    pub study: S,
    /// On which curve.
    pub curve: String,
    /// Where on it.
    pub x: f64,
    /// Reads by [`Level`].
    pub reads: [u64; 4],
    /// Mean time of a read, in microseconds.
    pub mean_us: f64,
    /// That part of it which goes to reads from the disk.
    pub disk_us: f64,
    /// What the server does, in units of a message.
    pub load: u64,
}

/// Reads by level, and the server's load.
type Run = ([u64; 4], u64);

fn run<S>(blocks: &Blocks, case: &Case<S>) -> Run {
    let outcome = simulate_under(blocks, &case.parameters, &case.conditions);
    (outcome.reads, outcome.load.of_reads())
}

impl<S: Copy> Case<S> {
    /// What a run came to, with this case's technology.
    fn measured(&self, (reads, load): Run) -> Measured<S> {
        let times_us = self.conditions.technology.times_us(self.parameters.algorithm);
        let mut of_disk = [0.0; 4];
        of_disk[Level::Disk as usize] = times_us[Level::Disk as usize];
        let mean = |times_us| mean_us(&reads, times_us).unwrap_or(0.0);
        let (mean_us, disk_us) = (mean(&times_us), mean(&of_disk));
        Measured { study: self.study, curve: self.curve.clone(), x: self.x, reads, mean_us, disk_us, load }
    }
}

/// Those of one study as curves.
fn curves<S: PartialEq>(all: &[Measured<S>], study: S, y: impl Fn(&Measured<S>) -> f64) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for one in all.iter().filter(|one| one.study == study) {
        let point = (one.x, y(one));
        match curves.iter_mut().find(|curve| curve.name == one.curve) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name: one.curve.clone(), points: vec![point] }),
        }
    }
    curves
}

/// One that was measured.
fn found<'a, S: PartialEq>(all: &'a [Measured<S>], study: S, curve: &str, x: f64) -> Option<&'a Measured<S>> {
    all.iter().find(|one| one.study == study && one.curve == curve && one.x == x)
}

/// How many times as fast as the other; nothing if one was not measured.
fn speed_up<S>(base: Option<&Measured<S>>, other: Option<&Measured<S>>) -> Option<f64> {
    base.zip(other).map(|(base, other)| base.mean_us / other.mean_us)
}

/// What the reports say of a number that was not measured.
fn shown(number: Option<f64>, digits: usize, unit: &str) -> String {
    number.map_or("not measured".into(), |number| format!("{number:.digits$}{unit}"))
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests;
