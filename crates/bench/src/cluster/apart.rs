//! Three nodes that work in directories of their own: at once, and one after the other.

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Result, anyhow};
use serde::Serialize;

use super::rig::Cluster;
use super::{Effort, NODES};
use crate::command::{self, Interrupts};
use crate::daemon::DEADLINE;
use crate::mounts::Mounted;
use crate::report::number;
use crate::roam::found::{Figure, Found, Table, median};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// Most that an operation may cost when three nodes work, beside one.
const COST_MAX: f64 = 1.2;

/// What an operation cost on average, commits included.
#[derive(Clone, Copy, Debug, Serialize)]
struct Cost {
    frames: f64,
    cpu_us: f64,
}

/// A workload by the name of `bench work`.
struct Load {
    title: &'static str,
    name: &'static str,
    options: Vec<(&'static str, u64)>,
    /// Operations of one node.
    operations: u64,
}

impl Load {
    fn run(&self, dir: PathBuf) -> Result<()> {
        work(&arguments(self.name, &dir, &self.options)).map(drop)
    }
}

fn cost(cluster: &Cluster, operations: u64, act: impl FnOnce() -> Result<()>) -> Result<Cost> {
    cluster.sync()?;
    let (frames, usage) = (cluster.frames()?, cluster.usage());
    act()?;
    cluster.sync()?;
    let cpu = cluster.usage().cpu_seconds - usage.cpu_seconds;
    let frames = (cluster.frames()? - frames) as f64;
    Ok(Cost { frames: frames / operations as f64, cpu_us: cpu * 1e6 / operations as f64 })
}

/// Makes a directory for each node, and has each node look at all of them: what that costs is no
/// cost of working apart.
fn make_directories(cluster: &Cluster, name: impl Fn(usize) -> String) -> Result<()> {
    let run = |program: &str, paths: Vec<PathBuf>| {
        command::run(Command::new(program).args(paths), DEADLINE, Interrupts::Obey).map(drop)
    };
    (0..NODES).try_for_each(|node| run("mkdir", vec![cluster.path(node, &name(node))]))?;
    (0..NODES).try_for_each(|at| run("stat", (0..NODES).map(|node| cluster.path(at, &name(node))).collect()))
}

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let cluster = Cluster::start(site, "apart", NODES)?;
    // All files of all runs together fit into a node's cache of inodes: evicting costs messages.
    let scale = if effort.quick { 1 } else { 8 };
    let loads = [
        Load {
            title: "create 1 KiB files",
            name: "create",
            options: vec![("files", 500 * scale)],
            operations: 500 * scale,
        },
        Load {
            title: "PostMark, transactions",
            name: "postmark",
            options: vec![("files", 50 * scale), ("transactions", 500 * scale)],
            operations: 500 * scale,
        },
    ];
    let mut table = Table::new(
        "Costs of an operation",
        ["", "frames, one at a time", "three at once", "CPU µs, one at a time", "three at once"],
    );
    let (mut figures, mut samples) = (Vec::new(), Vec::new());
    for load in &loads {
        let (mut one, mut three) = (Vec::new(), Vec::new());
        for run in 0..effort.runs {
            let name = |node: usize| format!("{}-{run}-{node}", load.name);
            make_directories(&cluster, name)?;
            let dir = |node: usize, way: &str| cluster.path(node, &name(node)).join(way);
            let operations = load.operations * NODES as u64;
            one.push(cost(&cluster, operations, || (0..NODES).try_for_each(|node| load.run(dir(node, "one"))))?);
            three.push(cost(&cluster, operations, || {
                thread::scope(|scope| {
                    let all: Vec<_> =
                        (0..NODES).map(|node| scope.spawn(move || load.run(dir(node, "three")))).collect();
                    let join = |running: thread::ScopedJoinHandle<'_, Result<()>>| {
                        running.join().unwrap_or_else(|_| Err(anyhow!("a workload's thread failed")))
                    };
                    all.into_iter().map(join).collect::<Result<Vec<()>>>().map(drop)
                })
            })?);
        }
        let of = |costs: &[Cost], what: fn(&Cost) -> f64| median(&costs.iter().map(what).collect::<Vec<_>>());
        let [frames, cpu]: [fn(&Cost) -> f64; 2] = [|cost| cost.frames, |cost| cost.cpu_us];
        let cells = [of(&one, frames), of(&three, frames), of(&one, cpu), of(&three, cpu)];
        table.row([load.title.to_owned()].into_iter().chain(cells.map(number)));
        let ratio = |unit: &str, what| {
            let what_is = format!("{}: {unit} per operation, three at once beside one", load.title);
            Figure::at_most(what_is, of(&three, what) / of(&one, what), COST_MAX, "")
        };
        figures.extend([ratio("frames", frames), ratio("CPU", cpu)]);
        samples.push(serde_json::json!({ "load": load.title, "one": one, "three": three }));
    }
    Ok(Found {
        conditions: format!(
            "Each of {NODES} nodes does the same work in a directory of its own, which is there before, one node at a time, then all at \
             once; then all is committed. Frames are requests and answers between nodes; CPU is that of all nodes' processes. Medians of {} runs.",
            effort.runs
        ),
        figures,
        tables: vec![table],
        samples: serde_json::Value::Array(samples),
        ..Found::default()
    })
}
