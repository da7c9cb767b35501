//! What a store's loss, and a drain, cost programs, how long they take, and how well the time left
//! is told.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::rig::{Cluster, Serves, WORKER};
use super::{Effort, NODES};
use crate::daemon::DEADLINE;
use crate::report::{count, number};
use crate::roam::found::{Figure, Found, Table, median};
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::Outcome;

/// The node whose store is lost, and that drains; it neither leads nor has the programs.
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

/// What nodes said of work on a store, from its beginning to its end.
struct Watched {
    /// Bytes that were left at first.
    bytes: u64,
    seconds: f64,
    /// The median of how far each time left was from what came.
    time_left_error: f64,
    /// When how many bytes were left, and the time left that was told, in seconds.
    told: Vec<(f64, u64, Option<f64>)>,
}

impl Watched {
    /// MB per second until then.
    fn rate_until(&self, seconds: f64) -> f64 {
        let last = self.told.iter().take_while(|(at, ..)| *at <= seconds).last();
        last.map_or(f64::NAN, |(at, bytes, _)| (self.bytes - bytes) as f64 / 1e6 / at)
    }
}

/// Bytes that are left, and the time that is told.
type Left = Option<(u64, Option<f64>)>;

/// What is lacking, and the time left.
fn lacking(cluster: &Cluster) -> Result<Left> {
    let said = cluster.nodes()?;
    let redundancy = &said["redundancy"];
    Ok(redundancy["bytes"].as_u64().map(|bytes| (bytes, redundancy["left_s"].as_f64())))
}

/// What is left of a move of a store with so many bytes, and the time left.
fn moving(cluster: &Cluster, bytes: u64) -> Result<Left> {
    let said = cluster.nodes()?;
    let moving = &said["moving"];
    Ok(moving["percent"].as_u64().map(|percent| (bytes / 100 * (100 - percent), moving["left_s"].as_f64())))
}

/// Waits until something is left.
fn begin(left: impl Fn() -> Result<Left>) -> Result<()> {
    let until = Instant::now() + DEADLINE;
    while left()?.is_none() {
        ensure!(Instant::now() < until, "nothing is restored or moved");
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}

/// Gives up the store of [`LOSER`], and waits until it is known what that takes.
fn lose(cluster: &Cluster, disk: &Path) -> Result<()> {
    cluster.replace_store(LOSER, disk)?;
    begin(|| lacking(cluster))
}

/// The bytes that the store of the loser has.
fn stored_bytes(cluster: &Cluster, store: u64) -> Result<u64> {
    let status = cluster.status(0)?;
    let stores = status["stores"].as_array().context("no stores")?;
    let its = stores.iter().find(|its| its["id"] == store).context("no such store")?;
    its["used_bytes"].as_u64().context("no used_bytes")
}

/// Has the loser drain, or get its store back, and waits until the store moves.
fn drain(cluster: &Cluster, drains: bool, bytes: u64) -> Result<()> {
    cluster.drain(LOSER, drains)?;
    begin(|| moving(cluster, bytes))
}

/// Waits until the loser has so many stores. The node that leads says it a little later than that
/// nothing moves.
fn wait_for_stores(cluster: &Cluster, count: usize) -> Result<()> {
    let until = Instant::now() + DEADLINE;
    while cluster.said_of(&cluster.nodes()?, LOSER)?["stores"].as_array().map_or(0, Vec::len) != count {
        ensure!(Instant::now() < until, "the node that drains, or drains no more, does not come to {count} stores");
        std::thread::sleep(LOOK_PERIOD);
    }
    Ok(())
}

/// Watches until nothing is left.
fn watch(left: impl Fn() -> Result<Left>) -> Result<Watched> {
    let started = Instant::now();
    let now = || started.elapsed().as_secs_f64();
    let (mut bytes_max, mut told) = (0, Vec::new());
    while let Some((bytes, left)) = left()? {
        bytes_max = bytes.max(bytes_max);
        told.push((now(), bytes, left));
        ensure!(started.elapsed() < DEADLINE, "{bytes} bytes are still left");
        std::thread::sleep(LOOK_PERIOD);
    }
    let seconds = now();
    let real = told.iter().filter_map(|(at, _, left)| Some(((*left)?, seconds - at)));
    let real = real.filter(|(_, real)| *real >= TIME_LEFT_MIN_S);
    let errors: Vec<f64> = real.map(|(left, real)| (left - real).abs() / real).collect();
    Ok(Watched { bytes: bytes_max, seconds, time_left_error: median(&errors), told })
}

fn of(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.get(name).copied().with_context(|| format!("no {name}"))
}

/// Programs before, during and after work on a store.
#[derive(Default)]
struct Beside {
    table: Vec<[String; 4]>,
    /// The rate of the programs meanwhile, of that before and after.
    rates: Vec<f64>,
    /// The same for their 99th percentile.
    tails: Vec<f64>,
    /// MB per second of the work while the programs worked.
    work_rates: Vec<f64>,
}

impl Beside {
    /// Runs programs before, while `work` goes on, and after.
    fn run(
        &mut self,
        (title, seconds): (&str, u64),
        mut programs: impl FnMut() -> Result<Outcome> + Send,
        begin: impl FnOnce() -> Result<()>,
        watch: impl FnOnce() -> Result<Watched> + Send,
    ) -> Result<Watched> {
        let before = programs()?;
        begin()?;
        let (during, watched) = std::thread::scope(|scope| {
            let watched = scope.spawn(watch);
            let during = programs();
            (during, watched.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (during, watched) = (during?, watched?);
        ensure!(
            watched.seconds > seconds as f64,
            "{title}: all was done in {} s: too little data",
            number(watched.seconds)
        );
        let after = programs()?;
        for (when, outcome) in [("before", &before), ("meanwhile", &during), ("after", &after)] {
            let ms = |name| Ok::<_, anyhow::Error>(number(of(outcome, name)? / 1e3));
            let rate = number(of(outcome, "operations_per_s")?);
            self.table.push([format!("{title}: {when}"), rate, ms("p50_us")?, ms("p99_us")?]);
        }
        let times = |name| Ok::<_, anyhow::Error>(of(&during, name)? * 2.0 / (of(&before, name)? + of(&after, name)?));
        self.rates.push(times("operations_per_s")?);
        self.tails.push(times("p99_us")?);
        self.work_rates.push(watched.rate_until(seconds as f64));
        Ok(watched)
    }

    /// The figures of work that had this rate and error without programs.
    fn figures(&self, what: &str, alone: &Watched, disk: f64) -> Vec<Figure> {
        let rate = alone.bytes as f64 / 1e6 / alone.seconds;
        let title = |figure: &str| format!("{what}: {figure}");
        vec![
            Figure::at_least(title("throughput of programs meanwhile"), median(&self.rates), THROUGHPUT_MIN, " times"),
            Figure::at_most(title("their 99th percentile"), median(&self.tails), P99_MAX, " times"),
            Figure::at_least(title("rate without programs, of what the disk writes"), rate / disk, RATE_MIN, " times"),
            Figure::at_most(title("error of the time left, median"), alone.time_left_error, TIME_LEFT_ERROR_MAX, ""),
            Figure::beside(title("rate without programs"), format!("{} MB/s", number(rate))),
            Figure::beside(title("rate while they work"), format!("{} MB/s", number(median(&self.work_rates)))),
        ]
    }

    fn samples(&self, alone: &Watched) -> Value {
        json!({ "rates": self.rates, "tails": self.tails, "mb_per_s": self.work_rates, "alone_s": alone.seconds, "told": alone.told })
    }
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
    let (mut lost, mut drained) = (Beside::default(), Beside::default());
    for run in 0..effort.runs as usize {
        let begin = || lose(&cluster, &replaced(run));
        lost.run(("loss", seconds), &mut steady, begin, || watch(|| lacking(&cluster)))?;
    }
    lose(&cluster, &replaced(effort.runs as usize))?;
    let restored = watch(|| lacking(&cluster))?;
    let bytes = restored.bytes;
    let mut back = Vec::new();
    let store = cluster.said_of(&cluster.nodes()?, LOSER)?["stores"][0].as_u64().context("the loser has no store")?;
    for _ in 0..effort.runs {
        let bytes = stored_bytes(&cluster, store)?;
        let begin = || drain(&cluster, true, bytes);
        drained.run(("drain", seconds), &mut steady, begin, || watch(|| moving(&cluster, bytes)))?;
        wait_for_stores(&cluster, 0)?;
        let bytes = stored_bytes(&cluster, store)?;
        drain(&cluster, false, bytes)?;
        back.push(watch(|| moving(&cluster, bytes))?);
        wait_for_stores(&cluster, 1)?;
    }
    let back = back.pop().context("no run")?;
    let mut table = Table::new("Programs", ["", "operations per s", "p50, ms", "p99, ms"]);
    lost.table.iter().chain(&drained.table).for_each(|row| table.row(row.clone()));
    let mut figures = lost.figures("loss", &restored, disk);
    figures.extend(drained.figures("drain", &back, disk));
    figures.push(Figure::beside("the disk writes", format!("{} MB/s", number(disk))));
    Ok(Found {
        conditions: format!(
            "Three nodes with a store each. The store of one is given up, with {} MB in it, and {PROGRAMS} programs at another one make, \
             fsync and read files of 16 KiB for {seconds} s before, meanwhile and after. Then a store is lost while no program works. \
             The node drains beside such programs, and gets its store back while no program works. \
             All stores are on one disk, and all nodes on one machine.",
            count(bytes / 1_000_000),
        ),
        figures,
        tables: vec![table],
        samples: json!({ "disk_mb_per_s": disk, "loss": lost.samples(&restored), "drain": drained.samples(&back) }),
        ..Found::default()
    })
}
