//! The number of syncs that a mount near home and its home make for what programs do.
//!
//! strace counts the system calls of both processes, from before a step until everything is home.
//! It slows them down, so this is a run of its own that is not timed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use super::steps::{self, Sizes};
use crate::daemon::Daemon;
use crate::report::{count, number};
use crate::roam::found::{Figure, Table};
use crate::roam::rig::Rig;
use crate::run::{arguments, work};
use crate::scripted::Site;

/// The program that counts.
pub(super) const PROGRAM: &str = "strace";
/// The system calls that make something durable.
const CALLS: [&str; 5] = ["fsync", "fdatasync", "syncfs", "sync_file_range", "sync"];
/// strace prints this when it has attached to a process and its threads.
const READY: &str = "strace: Process ";
/// The most syncs per operation in a step without fsync.
const UNASKED_MAX: f64 = 0.1;
/// The most syncs that an fsync of a new file may wait for.
const ASKED_MAX: f64 = 2.0;

/// The syncs of a step.
#[derive(Debug, Serialize)]
pub(super) struct Syncs {
    step: &'static str,
    operations: u64,
    /// The workload calls fsync in each operation.
    asked: bool,
    by_mount: u64,
    by_home: u64,
}

impl Syncs {
    fn per_operation(&self) -> f64 {
        (self.by_mount + self.by_home) as f64 / self.operations as f64
    }

    fn figure(&self) -> Figure {
        if self.asked {
            let waited = self.by_mount as f64 / self.operations as f64;
            return Figure::at_most(format!("syncs that an fsync waits for: {}", self.step), waited, ASKED_MAX, "");
        }
        let what = format!("near home, syncs per operation: {}", self.step);
        Figure::at_most(what, self.per_operation(), UNASKED_MAX, "")
    }
}

/// Compares the counts with their limits.
pub(super) fn figures(all: &[Syncs]) -> impl Iterator<Item = Figure> {
    all.iter().map(Syncs::figure)
}

/// All counts.
pub(super) fn table(all: &[Syncs]) -> Table {
    let header = ["", "operations", "by the mount", "by the home", "of both, per operation"];
    let mut table = Table::new("Syncs near home", header);
    for syncs in all {
        let counts = [syncs.operations, syncs.by_mount, syncs.by_home].map(count);
        let cells = [syncs.step.to_owned()].into_iter().chain(counts);
        table.row(cells.chain([number(syncs.per_operation())]));
    }
    table
}

/// Counts the syncs of each step. Creating and writing a file is one operation.
pub(super) fn measure(site: &Site, sizes: &Sizes) -> Result<Vec<Syncs>> {
    let rig = Rig::mounted(site, "syncs", &[], |_| Ok(()))?;
    let dir = rig.path("run");
    let renamed = dir.join("renamed");
    work(&arguments("make-files", &dir, &[("files", 0)]))?;
    work(&arguments("create", &renamed, &[("files", sizes.files)]))?;
    let counted = |step, operations, asked, arguments: Vec<String>| {
        let [by_mount, by_home] = around(&rig, site, || work(&arguments).map(drop)).context(step)?;
        let syncs = Syncs { step, operations, asked, by_mount, by_home };
        eprintln!("near: {syncs:?}");
        Ok::<_, anyhow::Error>(syncs)
    };
    Ok(vec![
        counted("create, write 1 KiB, close", sizes.files, false, steps::create(&dir, sizes))?,
        counted("the same with fsync", sizes.synced, true, steps::create_synced(&dir, sizes))?,
        counted("unlink", sizes.files, false, steps::unlink(&dir, sizes))?,
        counted("rename", sizes.files, false, arguments("rename", &renamed, &[("files", sizes.files)]))?,
        counted("`cp -r`", sizes.tree_files.into(), false, steps::copy(&dir, sizes))?,
    ])
}

/// The syncs of the mount and of the home while `what` runs and until everything is home.
fn around(rig: &Rig, site: &Site, what: impl FnOnce() -> Result<()>) -> Result<[u64; 2]> {
    rig.send_all()?;
    let [mount, home] = rig.processes()?;
    let mount = Counter::attach(mount, site.root.join("strace-mount"))?;
    let home = Counter::attach(home, site.root.join("strace-home"))?;
    what()?;
    rig.send_all()?;
    Ok([mount.detach()?, home.detach()?])
}

/// strace, attached to a process.
struct Counter {
    strace: Daemon,
    summary: PathBuf,
}

impl Counter {
    /// strace writes to `summary` when it ends.
    fn attach(pid: u32, summary: PathBuf) -> Result<Counter> {
        // The message that it has attached goes to stderr.
        let mut strace = Command::new("sh");
        strace.args(["-c", "exec \"$@\" 2>&1", "sh", PROGRAM, "-f", "-c", "-o"]).arg(&summary);
        strace.args(["-e", &format!("trace={}", CALLS.join(",")), "-p", &pid.to_string()]);
        let strace = Daemon::start(&mut strace, &summary.with_extension("log"), READY).context("attach strace")?;
        Ok(Counter { strace, summary })
    }

    /// Lets the process go on without it, and returns how many syncs it counted.
    fn detach(self) -> Result<u64> {
        self.strace.interrupt().context("detach strace")?;
        read_summary(&self.summary)
    }
}

fn read_summary(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Ok(calls_in(&text))
}

/// The calls in a summary of strace. A line is the share of the time, seconds, microseconds a call,
/// calls, errors if there are any, and the name.
fn calls_in(summary: &str) -> u64 {
    let calls = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.last().filter(|name| CALLS.contains(name)).and(words.get(3))?;
        name.parse::<u64>().ok()
    };
    summary.lines().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_summary_are_added_up() {
        let summary = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n \
            75.00    0.003000          30       100           fdatasync\n \
            25.00    0.001000          50        20         3 fsync\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.004000          33       120         3 total\n";
        assert_eq!(calls_in(summary), 120);
        assert_eq!(calls_in(""), 0);
    }
}
