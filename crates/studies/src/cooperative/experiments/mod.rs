//! The thesis's studies of cooperative caching, and ours beside them. Each is a function from a
//! trace and parameters to results, which it shows as figures and beside the statements of the
//! thesis.
//!
//! - [`calibration`]: traces that meet everything that the thesis states of Sprite's, and the
//!   spread of results between them.
//! - [`comparison`]: all algorithms on one trace (figures 3-3 to 3-6, 3-17 and 3-18, tables 3-2 and
//!   3-3).
//! - [`sensitivity`]: each parameter, varied (figures 3-7 to 3-14, table 3-4, and today's
//!   machines).
//! - [`worst`]: the workload that hurts most (figures 3-19 to 3-21).
//! - `rates`: where the thesis's reads were served, and what that explains of the difference to
//!   ours.

pub mod calibration;
pub mod comparison;
mod rates;
pub mod sensitivity;
pub mod worst;

use super::blocks::Deal;
use super::{Algorithm, Blocks, Conditions, Level, Parameters, mean_us, simulate_under};
use crate::ParameterError;
use crate::figure::Curve;
use serde::Serialize;

/// Size of the thesis's blocks, in bytes.
pub const BLOCK_BYTES: u64 = 8192;

/// Parameters common to all algorithms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Setup {
    /// Bytes of a block: for the labels.
    pub block_bytes: u64,
    /// Blocks that each client's cache holds.
    pub client_blocks: u32,
    /// Blocks that the server's memory holds.
    pub server_blocks: u32,
    /// Reads and writes of blocks at the beginning that only fill the caches.
    pub warm_up: u64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

impl Setup {
    /// 16 MiB for each client and 128 MiB for the server (section 3.3.1).
    pub fn thesis(warm_up: u64, seed: u64) -> Setup {
        Setup { block_bytes: BLOCK_BYTES, client_blocks: 2048, server_blocks: 16_384, warm_up, seed }
    }

    /// Checks the parameters for these blocks; an error names the wrong one.
    pub fn check(&self, blocks: &Blocks) -> Result<(), ParameterError> {
        if self.block_bytes == 0 {
            return Err(ParameterError::EmptyBlock);
        }
        self.parameters(Algorithm::Base).check(blocks)?;
        let counted = blocks.accesses().filter(|access| access.deal != Deal::Forget).skip(self.warm_up as usize);
        match counted.into_iter().any(|access| access.deal == Deal::Read) {
            true => Ok(()),
            false => Err(ParameterError::NothingRead(self.warm_up)),
        }
    }

    fn parameters(&self, algorithm: Algorithm) -> Parameters {
        let Setup { client_blocks, server_blocks, warm_up, seed, .. } = *self;
        Parameters { algorithm, client_blocks, server_blocks, warm_up, seed }
    }

    /// This many blocks, in MiB.
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

/// The results of one run of a study.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measured<S> {
    /// The study.
    pub study: S,
    /// The curve.
    pub curve: String,
    /// The x value.
    pub x: f64,
    /// Reads by [`Level`].
    pub reads: [u64; 4],
    /// Mean time of a read, in microseconds.
    pub mean_us: f64,
    /// The part of it that goes to reads from the disk.
    pub disk_us: f64,
    /// The server's load, in units of a message.
    pub load: u64,
}

/// Reads by level, and the server's load.
type Run = ([u64; 4], u64);

fn run<S>(blocks: &Blocks, case: &Case<S>) -> Run {
    let outcome = simulate_under(blocks, &case.parameters, &case.conditions);
    (outcome.reads, outcome.load.of_reads())
}

impl<S: Copy> Case<S> {
    /// The results of a run, with this case's technology.
    fn measured(&self, (reads, load): Run) -> Measured<S> {
        let times_us = self.conditions.technology.times_us(self.parameters.algorithm);
        let mut of_disk = [0.0; 4];
        of_disk[Level::Disk as usize] = times_us[Level::Disk as usize];
        let mean = |times_us| mean_us(&reads, times_us).unwrap_or(0.0);
        let (mean_us, disk_us) = (mean(&times_us), mean(&of_disk));
        Measured { study: self.study, curve: self.curve.clone(), x: self.x, reads, mean_us, disk_us, load }
    }
}

/// The results of one study as curves.
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

/// One of the results.
fn found<'a, S: PartialEq>(all: &'a [Measured<S>], study: S, curve: &str, x: f64) -> Option<&'a Measured<S>> {
    all.iter().find(|one| one.study == study && one.curve == curve && one.x == x)
}

/// The speed-up of `other` over `base`; `None` if one was not measured.
fn speed_up<S>(base: Option<&Measured<S>>, other: Option<&Measured<S>>) -> Option<f64> {
    base.zip(other).map(|(base, other)| base.mean_us / other.mean_us)
}

/// A number as reports show it, also if it was not measured.
fn shown(number: Option<f64>, digits: usize, unit: &str) -> String {
    number.map_or("not measured".into(), |number| format!("{number:.digits$}{unit}"))
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

#[cfg(test)]
mod tests;
