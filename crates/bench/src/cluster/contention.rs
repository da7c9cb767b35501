//! Two nodes that want the same: names in one directory, or one file.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::rig::{Cluster, WORKER};
use super::{Effort, NODES};
use crate::command::{self, Interrupts};
use crate::report::number;
use crate::roam::found::{Figure, Found, Table, largest, median};
use crate::run::{STEP_DEADLINE, work};
use crate::scripted::Site;
use crate::work::{Outcome, Then};

/// Least rate of two nodes together in one directory, beside that of one.
const TOGETHER_MIN: f64 = 0.5;
/// Longest hand-over of a file, in milliseconds, beyond an fsync.
const HAND_OVER_MS_MAX: f64 = 2.0;
/// Most times that a node has to take back its token on a file that it writes, for each stat of
/// another node. The first claim of the file is among them.
const CLAIMS_MAX: f64 = 0.05;
/// The pairs of nodes that are measured.
const PAIRS: [(&str, [usize; 2]); 2] = [("two that joined", [1, 2]), ("the first and one that joined", [0, 1])];

/// A number of a workload.
fn of(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.get(name).copied().with_context(|| format!("the workload did not measure {name}"))
}

/// `work`, and the frames that it took.
fn counted(cluster: &Cluster, arguments: &[String]) -> Result<(Outcome, f64)> {
    cluster.sync()?;
    let before = cluster.frames()?;
    let outcome = work(arguments)?;
    Ok((outcome, (cluster.frames()? - before) as f64))
}

/// The arguments of a workload with some paths.
fn arguments(name: &str, paths: &[PathBuf], options: &[&str]) -> Vec<String> {
    let paths = paths.iter().map(|path| path.display().to_string());
    [name.to_owned()].into_iter().chain(paths).chain(options.iter().map(|&option| option.to_owned())).collect()
}

pub(super) fn measure_directory(site: &Site, effort: Effort) -> Result<Found> {
    let files = if effort.quick { 200 } else { 4000 };
    let cluster = Cluster::start(site, "directory", NODES)?;
    let ways: [(&str, &[usize]); 3] =
        [("one that joined", &[WORKER]), (PAIRS[0].0, &PAIRS[0].1), (PAIRS[1].0, &PAIRS[1].1)];
    let mut rates = [const { Vec::new() }; 3];
    let mut frames = [const { Vec::new() }; 3];
    for run in 0..effort.runs {
        for (index, (_, nodes)) in ways.iter().enumerate() {
            let name = format!("together-{run}-{index}");
            let mut mkdir = Command::new("mkdir");
            command::run(mkdir.arg(cluster.path(WORKER, &name)), STEP_DEADLINE, Interrupts::Obey)?;
            let dirs: Vec<PathBuf> = nodes.iter().map(|node| cluster.path(*node, &name)).collect();
            let (outcome, sent) =
                counted(&cluster, &arguments("create-at-once", &dirs, &["--files", &files.to_string()]))?;
            rates[index].push(of(&outcome, "files_per_s")?);
            frames[index].push(sent / f64::from(files));
        }
    }
    let mut table =
        Table::new("Nodes that create in one directory", ["", "files/s", "of one node's", "frames per file"]);
    let one = median(&rates[0]);
    for (index, (name, _)) in ways.iter().enumerate() {
        let rate = median(&rates[index]);
        table.row([(*name).to_owned(), number(rate), number(rate / one), number(median(&frames[index]))]);
    }
    Ok(Found {
        conditions: format!("{files} files of 1 KiB in all, with names of their own. Medians of {} runs.", effort.runs),
        figures: vec![Figure::at_least("two nodes together, beside one", median(&rates[1]) / one, TOGETHER_MIN, "")],
        tables: vec![table],
        samples: serde_json::json!({ "files_per_s": rates, "frames_per_file": frames }),
        ..Found::default()
    })
}

pub(super) fn measure_file(site: &Site, effort: Effort) -> Result<Found> {
    let rounds = if effort.quick { 40 } else { 1000 };
    let cluster = Cluster::start(site, "file", NODES)?;
    let local = site.root.join("local");
    std::fs::create_dir_all(&local).with_context(|| format!("create {}", local.display()))?;
    let syncs = |dir: PathBuf| -> Result<f64> {
        of(&work(&arguments("fsync-latency", &[dir], &["--samples", &rounds.to_string()]))?, "p50_us")
    };
    let disk_us = syncs(local)?;
    let mount_us = syncs(cluster.path(WORKER, ""))?;
    let title = "A file of 4 KiB that two nodes use in turn, milliseconds of each call";
    let header = ["nodes", "one writes", "p99", "longest", "then the other", "", "p99", "longest", "frames per round"];
    let mut table = Table::new(title, header);
    let (mut figures, mut samples) = (Vec::new(), Vec::new());
    for (pair, nodes) in PAIRS {
        for (then, says) in [(Then::Read, "reads"), (Then::Write, "writes"), (Then::Stat, "stats")] {
            let paths = nodes.map(|node| cluster.path(node, says));
            let options = ["--rounds", &rounds.to_string(), "--then", says.trim_end_matches('s')];
            let claims_before = cluster.claims(nodes[0])?;
            let (outcome, sent) = counted(&cluster, &arguments("hand-over", &paths, &options))?;
            let claims = (cluster.claims(nodes[0])? - claims_before) as f64 / f64::from(rounds);
            let ms = |name: &str| of(&outcome, name).map(|us| us / 1e3);
            let frames = sent / f64::from(rounds);
            let wrote = [ms("write_p50_us")?, ms("write_p99_us")?, ms("write_max_us")?];
            let after = [ms("then_p50_us")?, ms("then_p99_us")?, ms("then_max_us")?];
            table.row(
                [pair.to_owned()]
                    .into_iter()
                    .chain(wrote.map(number))
                    .chain([says.to_owned()])
                    .chain(after.map(number))
                    .chain([number(frames)]),
            );
            if nodes == PAIRS[0].1 {
                let over = (largest([wrote[0], after[0]]) - disk_us.min(mount_us) / 1e3).max(0.0);
                figures.push(match then {
                    Then::Read => Figure::at_most(
                        "a hand-over to read or to write, beyond an fsync, median",
                        over,
                        HAND_OVER_MS_MAX,
                        " ms",
                    ),
                    Then::Write => Figure::at_most(
                        "a hand-over between two writers, beyond an fsync, median",
                        over,
                        HAND_OVER_MS_MAX,
                        " ms",
                    ),
                    Then::Stat => Figure::at_most(
                        "hand-overs for each stat of a file that another node writes",
                        claims,
                        CLAIMS_MAX,
                        "",
                    ),
                });
            }
            samples.push(serde_json::json!({ "pair": pair, "then": says, "outcome": outcome, "frames": frames, "claims": claims }));
        }
    }
    figures.push(Figure::beside("append and fsync on the disk", format!("{} ms", number(disk_us / 1e3))));
    figures.push(Figure::beside("append and fsync on a node that joined", format!("{} ms", number(mount_us / 1e3))));
    Ok(Found {
        conditions: format!(
            "{rounds} rounds. \"Reads\": the one that has read writes next. \"Writes\": both write in turn. \"Stats\": one always \
             writes. \"Beyond an fsync\": beyond the quicker of those of the disk and of a node, below."
        ),
        figures,
        tables: vec![table],
        samples: serde_json::json!({ "disk_fsync_us": disk_us, "mount_fsync_us": mount_us, "rounds": samples }),
        ..Found::default()
    })
}
