//! File systems beside each other: they run the same scenarios in turn.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Effort;
use super::rig::{Cluster, WORKER};
use crate::command::check_interrupt;
use crate::mounts::Mounted;
use crate::report::number;
use crate::roam::found::{largest, median, smallest};
use crate::run::run_scenario;
use crate::scenario::{Metric, Places, Sizes, scenario};
use crate::scripted::Scripted;
use crate::scripted::Site;
use crate::target::Target;
use crate::work::Work;

const SCENARIOS: [&str; 6] = ["create", "create-fsync", "copy-tree", "postmark", "small-cold", "stream"];
/// The rows of a table, in its order.
pub(super) const ROWS: [Metric; 12] = [
    Metric::Create,
    Metric::CreateFsync,
    Metric::CopyTree,
    Metric::Postmark,
    Metric::ReadSmallCold,
    Metric::Unlink,
    Metric::StatWarm,
    Metric::ReaddirWarm,
    Metric::WriteStream,
    Metric::ReadStreamCold,
    Metric::WriteCpu,
    Metric::ReadCpu,
];

/// A metric's title without its unit.
pub(super) fn name_of(metric: Metric) -> &'static str {
    let title = metric.title();
    title.rsplit_once(", ").map_or(title, |(name, _)| name)
}

/// Samples of one file system.
#[derive(Default)]
pub(super) struct Samples(Vec<(Metric, f64)>);

impl Samples {
    pub(super) fn add(&mut self, metric: Metric, value: f64) {
        self.0.push((metric, value));
    }

    fn of(&self, metric: Metric) -> Vec<f64> {
        self.0.iter().filter(|(name, _)| *name == metric).map(|(_, value)| *value).collect()
    }

    /// The median. NaN if nothing was measured.
    pub(super) fn median(&self, metric: Metric) -> f64 {
        median(&self.of(metric))
    }

    /// The smallest and the largest value, as a cell of a table.
    pub(super) fn range(&self, metric: Metric) -> String {
        [smallest(self.of(metric)), largest(self.of(metric))].map(number).join("..")
    }

    /// All values by the titles of their metrics.
    pub(super) fn json(&self) -> Value {
        let by_metric = |metric: Metric| (metric.title(), self.of(metric));
        serde_json::json!(Metric::ALL.into_iter().map(by_metric).collect::<BTreeMap<_, _>>())
    }
}

/// A file system, and the folder in it where the scenarios run.
pub(super) trait Side: Mounted {
    fn dir(&self) -> PathBuf;
}

impl Side for Cluster {
    fn dir(&self) -> PathBuf {
        self.path(WORKER, "")
    }
}

impl Side for Target {
    fn dir(&self) -> PathBuf {
        Target::dir(self).to_owned()
    }
}

impl Side for Scripted {
    fn dir(&self) -> PathBuf {
        Scripted::dir(self).to_owned()
    }
}

/// A scenario that is run once.
#[derive(Clone, Copy)]
pub(super) struct Round {
    scenario: &'static str,
    run: u32,
}

/// The scenarios with their sizes, and the source tree that they copy.
pub(super) struct Course {
    sizes: Sizes,
    runs: u32,
    tree: PathBuf,
}

impl Course {
    /// Makes the source tree, which is there as long as this is.
    pub(super) fn new(site: &Site, effort: Effort) -> Result<Course> {
        let sizes = if effort.quick { Sizes::QUICK } else { Sizes::FULL };
        let course = Course { sizes, runs: effort.runs, tree: site.root.join("tree") };
        Work::MakeTree { dir: course.tree.clone(), files: sizes.tree_files }.run()?;
        Ok(course)
    }

    /// Each scenario as often as it is run. All file systems do a round before the next one begins:
    /// a machine that gets slower or faster meanwhile does so for all.
    pub(super) fn rounds(&self) -> impl Iterator<Item = Round> + use<> {
        let runs = self.runs;
        SCENARIOS.into_iter().flat_map(move |scenario| (0..runs).map(move |run| Round { scenario, run }))
    }

    /// Runs a round on one file system.
    pub(super) fn measure(&self, on: &mut dyn Side, round: Round, samples: &mut Samples) -> Result<()> {
        check_interrupt()?;
        let Round { scenario: name, run } = round;
        let dir = on.dir().join(format!("{name}-{run}"));
        let places = Places { dir: &dir, tree: &self.tree };
        let scenario = scenario(name, &self.sizes, &places, false).context("no such scenario")?;
        for (metric, value) in run_scenario(on, &scenario, &dir).context(name)? {
            samples.add(metric, value);
        }
        Ok(())
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.tree) {
            eprintln!("bench: remove {}: {error}", self.tree.display());
        }
    }
}
