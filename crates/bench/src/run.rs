//! One run of the benchmark: sets the targets up, runs each scenario on all of them in turn, and
//! collects samples.
//!
//! The targets are interleaved (for each scenario: for each run: every target, in an order that
//! rotates). So a machine that gets slower or faster meanwhile does so for all. A scenario that
//! fails on a target is reported as missing and is not fatal; a target that then cannot be mounted
//! again is given up. This program itself never touches a target's files. Only child processes with
//! a deadline do, so a hung file system cannot hang the clean-up.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{self, Interrupts, check_interrupt};
use crate::mounts::{self, Mounted};
use crate::results::{Missing, Samples};
use crate::scenario::{self, Metric, NAMES, Places, Scenario, Sizes, Step};
use crate::scripted::Site;
use crate::target::{Target, TargetKind};
use crate::work::{Outcome, Work, parse_outcome};

/// The plan of a run.
pub struct Plan {
    /// Scenarios whose name contains one of these, separated by commas; all if empty.
    pub only: String,
    /// The targets.
    pub targets: Vec<TargetKind>,
    /// Runs of each scenario.
    pub runs: u32,
    /// The sizes.
    pub sizes: Sizes,
}

/// Longest time of a step; beyond it, the step has failed.
pub const STEP_DEADLINE: Duration = Duration::from_secs(1800);

/// Runs the plan. Fails only if it is interrupted or the local disk fails.
pub fn run(plan: &Plan, site: &Site) -> Result<(Samples, Vec<Missing>)> {
    let mut run =
        Run { site, sizes: plan.sizes, tree: site.root.join("tree"), samples: Samples::default(), missing: vec![] };
    Work::MakeTree { dir: run.tree.clone(), files: plan.sizes.tree_files }.run()?;
    let mut targets = run.set_up(&plan.targets)?;
    for name in NAMES.into_iter().filter(|name| plan.only.split(',').any(|part| name.contains(part))) {
        for round in 0..plan.runs {
            if round > 0 && !targets.is_empty() {
                targets.rotate_left(1);
            }
            targets = run.round(name, round, targets)?;
        }
    }
    Ok((run.samples, run.missing))
}

struct Run<'a> {
    site: &'a Site,
    sizes: Sizes,
    tree: PathBuf,
    samples: Samples,
    missing: Vec<Missing>,
}

impl Run<'_> {
    fn set_up(&mut self, kinds: &[TargetKind]) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        for &kind in kinds {
            check_interrupt()?;
            let ready = match Target::unavailable(kind, self.site) {
                Some(reason) => Err(reason),
                None => {
                    eprintln!("setting up {kind}");
                    Target::set_up(kind, self.site).map_err(|error| format!("{error:#}"))
                }
            };
            match ready {
                Ok(target) => targets.push(target),
                Err(reason) => self.note_missing(kind, None, reason),
            }
        }
        Ok(targets)
    }

    /// Runs a scenario once on every target, and returns the targets that still work.
    fn round(&mut self, name: &'static str, round: u32, targets: Vec<Target>) -> Result<Vec<Target>> {
        let mut good = Vec::new();
        for mut target in targets {
            check_interrupt()?;
            let dir = target.dir().join(format!("bench-{name}-{round}"));
            let peer = target.kind() != TargetKind::Ext4
                && !TargetKind::STARLING.contains(&target.kind())
                && !TargetKind::DO_NOTHING.contains(&target.kind());
            let places = Places { dir: &dir, tree: &self.tree };
            let Some(scenario) = scenario::scenario(name, &self.sizes, &places, peer) else { continue };
            if scenario.once && round > 0 {
                good.push(target);
                continue;
            }
            match run_scenario(&mut target, &scenario, &dir) {
                Ok(samples) => {
                    for (metric, value) in samples {
                        eprintln!("{name} {} {}: {} {value:.3}", round + 1, target.kind(), metric.title());
                        self.samples.add(metric, target.kind(), value);
                    }
                    good.push(target);
                }
                Err(error) => {
                    check_interrupt()?;
                    self.note_missing(target.kind(), Some(name), format!("{error:#}"));
                    match target.revive() {
                        Ok(()) => good.push(target),
                        Err(error) => self.note_missing(target.kind(), None, format!("given up: {error:#}")),
                    }
                }
            }
        }
        Ok(good)
    }

    fn note_missing(&mut self, target: TargetKind, scenario: Option<&'static str>, reason: String) {
        eprintln!("{target} {}: {reason}", scenario.unwrap_or_default());
        self.missing.push(Missing { target, scenario, reason });
    }
}

/// Runs a scenario once, in a folder that it makes.
pub fn run_scenario(target: &mut dyn Mounted, scenario: &Scenario, dir: &Path) -> Result<Vec<(Metric, f64)>> {
    tool(Command::new("mkdir").arg(dir))?;
    target.reset_peak();
    let mut samples = Vec::new();
    let mut peak_bytes = 0;
    for step in &scenario.steps {
        settle(dir)?;
        match step {
            Step::Cold => {
                // The client's process ends here, and its peak with it.
                peak_bytes = peak_bytes.max(target.usage().peak_bytes);
                target.make_cold()?;
            }
            Step::Remove => tool(Command::new("rm").arg("-rf").arg(dir))?,
            Step::Work { arguments, results, cpu } => {
                let before = target.usage();
                let outcome = work(arguments)?;
                let after = target.usage();
                for (name, metric) in results {
                    let value = outcome.get(*name).with_context(|| format!("{arguments:?} did not measure {name}"))?;
                    samples.push((*metric, *value));
                }
                if let Some(cpu) = cpu.filter(|_| after.peak_bytes > 0) {
                    samples.push((cpu.metric, (after.cpu_seconds - before.cpu_seconds) / cpu.gigabytes));
                }
            }
        }
    }
    peak_bytes = peak_bytes.max(target.usage().peak_bytes);
    if peak_bytes > 0 {
        samples.push((scenario.memory, peak_bytes as f64 / f64::from(1 << 20)));
    }
    mounts::sync_all();
    Ok(samples)
}

/// Runs a workload (`bench work ARGUMENTS`) as a process of its own and returns what it measured.
pub fn work(arguments: &[String]) -> Result<Outcome> {
    let program = std::env::current_exe().context("find this program")?;
    let printed = command::run(Command::new(program).arg("work").args(arguments), STEP_DEADLINE, Interrupts::Obey)?;
    parse_outcome(&printed)
}

/// A workload's arguments, from text and a path: the name, the path, and the options.
pub fn arguments(name: &str, path: &Path, options: &[(&str, u64)]) -> Vec<String> {
    let mut all = vec![name.to_owned(), path.display().to_string()];
    all.extend(options.iter().flat_map(|(option, value)| [format!("--{option}"), value.to_string()]));
    all
}

/// Writes out what the step before left behind, so that the next step does not pay for it. The
/// folder's fsync reaches a FUSE file system's own buffers, which sync(2) does not.
fn settle(dir: &Path) -> Result<()> {
    tool(Command::new("sync").arg(dir))?;
    mounts::sync_all();
    Ok(())
}

fn tool(command: &mut Command) -> Result<()> {
    command::run(command, STEP_DEADLINE, Interrupts::Obey).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_in_the_order_of_the_command_line() {
        assert_eq!(arguments("fill", Path::new("/f"), &[("blocks", 3)]), ["fill", "/f", "--blocks", "3"]);
    }
}
