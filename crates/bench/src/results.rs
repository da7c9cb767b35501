//! The samples of a run, and the numbers made from them.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::scenario::{Better, Metric, Sizes, Summary};
use crate::target::TargetKind;

/// The samples of one run of the benchmark.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Samples(BTreeMap<Metric, BTreeMap<TargetKind, Vec<f64>>>);

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, metric: Metric, target: TargetKind, value: f64) {
        self.0.entry(metric).or_default().entry(target).or_default().push(value);
    }

    /// The samples of a metric on a target, in the order in which they were taken.
    pub fn of(&self, metric: Metric, target: TargetKind) -> &[f64] {
        self.0.get(&metric).and_then(|targets| targets.get(&target)).map_or(&[], Vec::as_slice)
    }

    /// The number that represents a metric on a target. `None` if it was not measured.
    pub fn value(&self, metric: Metric, target: TargetKind) -> Option<f64> {
        let mut values = self.of(metric, target).to_vec();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match metric.summary() {
            Summary::Largest => values.last().copied(),
            Summary::Median if values.is_empty() => None,
            Summary::Median if values.len() % 2 == 1 => Some(values[middle]),
            Summary::Median => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }

    /// The best of several targets, among those that were measured.
    pub fn best(&self, metric: Metric, targets: &[TargetKind]) -> Option<(TargetKind, f64)> {
        let measured = targets.iter().filter_map(|&target| Some((target, self.value(metric, target)?)));
        measured.reduce(|best, other| if advantage(metric, other.1, best.1) > 1.0 { other } else { best })
    }

    /// The spread of the samples, as a fraction of the value; 0 for fewer than two samples.
    pub fn spread(&self, metric: Metric, target: TargetKind) -> f64 {
        let samples = self.of(metric, target);
        let (min, max) = samples.iter().fold((f64::INFINITY, 0.0f64), |(min, max), &x| (min.min(x), max.max(x)));
        match self.value(metric, target) {
            Some(value) if samples.len() > 1 && value > 0.0 => (max - min) / value,
            _ => 0.0,
        }
    }

    /// The metrics that were measured on any target, in the order of the report.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        Metric::ALL.into_iter().filter(|metric| self.0.contains_key(metric))
    }

    /// The targets on which anything was measured, in the order of the report.
    pub fn targets(&self) -> Vec<TargetKind> {
        let measured = |target: &TargetKind| self.0.values().any(|targets| targets.contains_key(target));
        TargetKind::ALL.into_iter().filter(measured).collect()
    }
}

/// How many times better `ours` is than `theirs`: 2 means twice the rate, or half the time.
pub fn advantage(metric: Metric, ours: f64, theirs: f64) -> f64 {
    match metric.better() {
        Better::Higher => ours / theirs,
        Better::Lower => theirs / ours,
    }
}

/// A target, or one scenario on it, without results.
#[derive(Debug, Serialize)]
pub struct Missing {
    /// The target.
    pub target: TargetKind,
    /// The scenario, or `None` if the target was not measured at all.
    pub scenario: Option<&'static str>,
    /// The reason.
    pub reason: String,
}

/// The machine on which a run took place.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Processors available.
    pub processor_count: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// Type of the local file system.
    pub file_system: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, processor_count, memory_mib, kernel, file_system } = self;
        write!(
            f,
            "{processor_count} processors ({processor}), {memory_mib} MiB of memory, Linux {kernel}, local {file_system}"
        )
    }
}

/// The parameters of a run.
#[derive(Debug, Serialize)]
pub struct Conditions {
    /// When it was run, in seconds since 1970.
    pub unix_time_s: u64,
    /// The machine.
    pub machine: Machine,
    /// The sizes.
    pub sizes: Sizes,
    /// True if the sizes are too small for the results to count.
    pub quick: bool,
    /// Runs of each scenario.
    pub runs: u32,
    /// The limit of Starling's cache in MiB.
    pub cache_mib: u64,
    /// More arguments that `starling up` was given.
    pub starling_args: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use TargetKind::{GlusterDisperse, Moosefs, Sshfs, Starling};

    #[test]
    fn value_is_the_median_or_the_largest() {
        let mut samples = Samples::default();
        for value in [30.0, 10.0, 20.0] {
            samples.add(Metric::Create, Starling, value);
            samples.add(Metric::PeakMemory, Starling, value);
        }
        assert_eq!(samples.value(Metric::Create, Starling), Some(20.0));
        assert_eq!(samples.value(Metric::PeakMemory, Starling), Some(30.0));
        samples.add(Metric::Create, Starling, 40.0);
        assert_eq!(samples.value(Metric::Create, Starling), Some(25.0));
        assert_eq!(samples.value(Metric::Create, Sshfs), None);
        assert_eq!(samples.spread(Metric::Create, Starling), 30.0 / 25.0);
    }

    #[test]
    fn best_is_the_fastest_or_the_shortest() {
        let mut samples = Samples::default();
        for (target, value) in [(GlusterDisperse, 300.0), (Moosefs, 1500.0)] {
            samples.add(Metric::Create, target, value);
            samples.add(Metric::Postmark, target, value);
        }
        let peers = TargetKind::REDUNDANT_PEERS;
        assert_eq!(samples.best(Metric::Create, &peers), Some((Moosefs, 1500.0)));
        assert_eq!(samples.best(Metric::Postmark, &peers), Some((GlusterDisperse, 300.0)));
        assert_eq!(samples.best(Metric::Unlink, &peers), None);
    }

    #[test]
    fn samples_become_json_with_names_as_keys() {
        let mut samples = Samples::default();
        samples.add(Metric::CreateFsync, GlusterDisperse, 1.5);
        assert_eq!(serde_json::to_string(&samples).unwrap(), r#"{"create_fsync":{"gluster":[1.5]}}"#);
    }
}
