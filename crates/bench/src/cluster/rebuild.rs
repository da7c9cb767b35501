//! What a store's loss costs programs while the other stores make up for it, how long that takes,
//! and how well the time left is told.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::rig::{Cluster, Serves, WORKER};
use super::{Effort, NODES};
use crate::daemon::DEADLINE;
use crate::report::{count, number};
use crate::roam::found::{Figure, Found, Table, median};
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::Outcome;

/// The node whose store is lost; it neither leads nor has the programs.
const LOSER: usize = 2;
/// Least throughput of programs meanwhile, of that before and after.
const THROUGHPUT_MIN: f64 = 0.9;
/// Most that the 99th percentile may rise to.
const P99_MAX: f64 = 1.5;
/// Least rate while no program works, of that of the disk.
const RATE_MIN: f64 = 0.5;
/// Most by which the time left may be wrong.
const TIME_LEFT_ERROR_MAX: f64 = 0.2;
/// Programs at a node.
const PROGRAMS: u64 = 4;
/// How often the nodes are asked.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Shorter times left are not judged: they are told in whole seconds.
const TIME_LEFT_MIN_S: f64 = 5.0;

/// What nodes said of a loss, from its beginning to its end.
struct Restored {
    /// Bytes that were lacking at first.
    bytes: u64,
    seconds: f64,
    /// The median of how far each time left was from what came.
    time_left_error: f64,
    /// When how many bytes were lacking, and the time left that was told, in seconds.
    told: Vec<(f64, u64, Option<f64>)>,
}

impl Restored {
    /// MB per second until then.
    fn rate_until(&self, seconds: f64) -> f64 {
        let last = self.told.iter().take_while(|(at, ..)| *at <= seconds).last();
        last.map_or(f64::NAN, |(at, bytes, _)| (self.bytes - bytes) as f64 / 1e6 / at)
    }
}

/// What is lacking, and the time left.
fn lacking(cluster: &Cluster) -> Result<Option<(u64, Option<f64>)>> {
    let said = cluster.nodes()?;
    let redundancy = &said["redundancy"];
    Ok(redundancy["bytes"].as_u64().map(|bytes| (bytes, redundancy["left_s"].as_f64())))
}

/// Gives up the store of [`LOSER`], and waits until it is known what that takes.
fn lose(cluster: &Cluster, disk: &Path) -> Result<()> {
    cluster.replace_store(LOSER, disk)?;
    let until = Instant::now() + DEADLINE;
    while lacking(cluster)?.is_none() {
        ensure!(Instant::now() < until, "nothing is restored");
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}

/// Watches until nothing is lacking any more.
fn watch(cluster: &Cluster) -> Result<Restored> {
    let started = Instant::now();
    let now = || started.elapsed().as_secs_f64();
    let (mut bytes_max, mut told) = (0, Vec::new());
    while let Some((bytes, left)) = lacking(cluster)? {
        bytes_max = bytes.max(bytes_max);
        told.push((now(), bytes, left));
        ensure!(started.elapsed() < DEADLINE, "{bytes} bytes are still lacking");
        std::thread::sleep(LOOK_PERIOD);
    }
    let seconds = now();
    let real = told.iter().filter_map(|(at, _, left)| Some(((*left)?, seconds - at)));
    let real = real.filter(|(_, real)| *real >= TIME_LEFT_MIN_S);
    let errors: Vec<f64> = real.map(|(left, real)| (left - real).abs() / real).collect();
    Ok(Restored { bytes: bytes_max, seconds, time_left_error: median(&errors), told })
}

fn of(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.get(name).copied().with_context(|| format!("no {name}"))
}

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let (files, seconds) = if effort.quick { (2_000, 3) } else { (30_000, 15) };
    let cluster = Cluster::start_with(site, "rebuild", NODES, Serves::EachNode)?;
    work(&arguments("make-files", &cluster.path(WORKER, "data"), &[("files", files), ("bytes", 64 << 10)]))?;
    cluster.sync()?;
    cluster.settle()?;
    let disk = of(&work(&arguments("write-stream", &site.root.join("stream"), &[("mib", 1024)]))?, "mb_per_s")?;
    let mut programs = 0;
    let mut steady = || {
        programs += 1;
        let options = [("seconds", seconds), ("programs", PROGRAMS)];
        work(&arguments("steady", &cluster.path(WORKER, &format!("steady{programs}")), &options))
    };
    let replaced = |number: usize| site.root.join(format!("disk{number}"));
    steady()?;
    let mut table = Table::new("Programs", ["", "operations per s", "p50, ms", "p99, ms"]);
    let (mut rates, mut tails, mut restored) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..effort.runs as usize {
        let before = steady()?;
        lose(&cluster, &replaced(run))?;
        let (during, watched) = std::thread::scope(|scope| {
            let watched = scope.spawn(|| watch(&cluster));
            let during = steady();
            (during, watched.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (during, watched) = (during?, watched?);
        ensure!(watched.seconds > seconds as f64, "all was restored in {} s: too little data", number(watched.seconds));
        let after = steady()?;
        for (title, outcome) in [("before", &before), ("meanwhile", &during), ("after", &after)] {
            let ms = |name| Ok::<_, anyhow::Error>(number(of(outcome, name)? / 1e3));
            table.row([title.to_owned(), number(of(outcome, "operations_per_s")?), ms("p50_us")?, ms("p99_us")?]);
        }
        let beside = |name| Ok::<_, anyhow::Error>((of(&before, name)? + of(&after, name)?) / 2.0);
        rates.push(of(&during, "operations_per_s")? / beside("operations_per_s")?);
        tails.push(of(&during, "p99_us")? / beside("p99_us")?);
        restored.push(watched);
    }
    lose(&cluster, &replaced(effort.runs as usize))?;
    let alone = watch(&cluster)?;
    let rate = alone.bytes as f64 / 1e6 / alone.seconds;
    // Only while the programs worked.
    let meanwhile: Vec<f64> = restored.iter().map(|restored| restored.rate_until(seconds as f64)).collect();
    Ok(Found {
        conditions: format!(
            "Three nodes with a store each. The store of one is given up, with {} MB in it, and {PROGRAMS} programs at another one make, \
             fsync and read files of 16 KiB for {seconds} s before, meanwhile and after. Then a store is lost while no program works. \
             All stores are on one disk, and all nodes on one machine.",
            count(alone.bytes / 1_000_000),
        ),
        figures: vec![
            Figure::at_least("throughput of programs meanwhile", median(&rates), THROUGHPUT_MIN, " times"),
            Figure::at_most("their 99th percentile", median(&tails), P99_MAX, " times"),
            Figure::at_least("rate without programs, of what the disk writes", rate / disk, RATE_MIN, " times"),
            Figure::at_most("error of the time left, median", alone.time_left_error, TIME_LEFT_ERROR_MAX, ""),
            Figure::beside("rate without programs", format!("{} MB/s", number(rate))),
            Figure::beside("rate while they work", format!("{} MB/s", number(median(&meanwhile)))),
            Figure::beside("the disk writes", format!("{} MB/s", number(disk))),
        ],
        tables: vec![table],
        samples: json!({ "rates": rates, "tails": tails, "mb_per_s": meanwhile, "alone_mb_per_s": rate, "disk_mb_per_s": disk, "told": alone.told }),
        ..Found::default()
    })
}
