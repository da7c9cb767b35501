//! Near home: the cost of a mount when everything is cached and the link is a LAN, when very many
//! files are cached, and when very many changes wait to go home.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linkem::Rate;
use serde::Serialize;
use serde_json::json;

use super::found::{Figure, Found, Table, largest, median};
use super::rig::Rig;
use crate::mounts;
use crate::report::{count, number};
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::{Outcome, Work};

const RATE: Rate = Rate::mbits_per_s(1000);
/// Each way.
const DELAY: Duration = Duration::from_micros(100);
const RUNS: usize = 5;
/// Longest wait of a foreground that is not delayed, in seconds: as long as closing a file may wait
/// for a home that is near.
const WAIT_S_MAX: f64 = 1.0;
/// Longest time for a log to reach the home; beyond it, it is stuck.
const HOME_TIME_MAX: Duration = Duration::from_secs(1800);
/// Seconds for which the foreground is probed at a time.
const PROBE_S: u32 = 5;

fn conditions(more: &str) -> String {
    format!("A link of {RATE} with {} µs each way. {more}", DELAY.as_micros())
}

/// A number that a workload measured.
fn measured(outcome: &Outcome, name: &str) -> Result<f64> {
    outcome.get(name).copied().with_context(|| format!("the workload measured no {name}"))
}

/// Two places that are compared, measured in turn.
struct Pair {
    title: &'static str,
    local: Vec<f64>,
    mounted: Vec<f64>,
}

impl Pair {
    fn new(title: &'static str) -> Pair {
        Pair { title, local: Vec::new(), mounted: Vec::new() }
    }

    /// The mount's speed as a part of the local disk's.
    fn ratio(&self) -> f64 {
        median(&self.mounted) / median(&self.local)
    }

    fn row(&self, table: &mut Table) {
        let [local, mounted] = [&self.local, &self.mounted].map(|all| number(median(all)));
        table.row([self.title.to_owned(), local, mounted, format!("{:.2}", self.ratio())]);
    }
}

/// Reading a large file, and metadata, beside the local disk.
pub fn measure_warm(site: &Site, quick: bool) -> Result<Found> {
    let (mib, files) = if quick { (16, 100) } else { (512, 2000) };
    let fill = |source: &Path| {
        Work::WriteStream { file: source.join("large"), mib }.run()?;
        Work::MakeTree { dir: source.join("tree"), files }.run().map(drop)
    };
    let rig = Rig::mounted(site, "warm", &[], fill)?;
    rig.shape(Some(RATE), DELAY)?;
    rig.hoard(&["large"])?;
    rig.hoard(&["tree"])?;
    let take = |action: &str, name: &str, file: &str, pairs: &mut [(&str, &mut Pair)]| -> Result<()> {
        let places = [rig.source(), rig.path("")];
        for (place, is_local) in places.iter().zip([true, false]) {
            if name == "cold" {
                mounts::drop_caches()?;
            }
            let outcome = work(&arguments(action, &place.join(file), &[]))?;
            for (what, pair) in pairs.iter_mut() {
                let all = if is_local { &mut pair.local } else { &mut pair.mounted };
                all.push(measured(&outcome, what)?);
            }
        }
        Ok(())
    };
    let [mut warm, mut cold] = [Pair::new("read, warm, MB/s"), Pair::new("read, the kernel's caches dropped, MB/s")];
    let [mut stats, mut entries] = [Pair::new("stat, warm, files/s"), Pair::new("list, warm, entries/s")];
    let mut long = Pair::new("`ls -lR`, warm, times/s");
    for file in [rig.source().join("large"), rig.path("large")] {
        work(&arguments("read-stream", &file, &[]))?;
    }
    for _ in 0..RUNS {
        take("read-stream", "warm", "large", &mut [("mb_per_s", &mut warm)])?;
    }
    for _ in 0..RUNS {
        take("walk", "warm", "tree", &mut [("stats_per_s", &mut stats), ("entries_per_s", &mut entries)])?;
        take("list-long", "warm", "tree", &mut [("times_per_s", &mut long)])?;
    }
    for _ in 0..RUNS {
        take("read-stream", "cold", "large", &mut [("mb_per_s", &mut cold)])?;
    }
    let mut table = Table::new("Rates", ["", "local disk", "mount", "mount : local disk"]);
    let pairs = [&warm, &cold, &stats, &entries, &long];
    pairs.iter().for_each(|pair| pair.row(&mut table));
    let samples: Vec<_> =
        pairs.iter().map(|pair| json!({ "what": pair.title, "local": pair.local, "mounted": pair.mounted })).collect();
    Ok(Found {
        conditions: conditions(&format!(
            "A file of {mib} MiB and a tree of {files} files are hoarded, and read from the mount and from the folder \
             that is exported, by turns. Medians of {RUNS}."
        )),
        figures: vec![
            Figure::at_least("reads, warm, of the local disk's rate", 100.0 * warm.ratio(), 90.0, " %"),
            Figure::at_most("stat walk, times the local disk's time", 1.0 / stats.ratio(), 2.0, ""),
            Figure::at_most("listing, times the local disk's time", 1.0 / entries.ratio(), 2.0, ""),
            Figure::at_most("`ls -lR`, times the local disk's time", 1.0 / long.ratio(), 2.0, ""),
            Figure::beside(
                "reads, the kernel's caches dropped, of the local disk's rate",
                format!("{} %", number(100.0 * cold.ratio())),
            ),
        ],
        tables: vec![table],
        samples: json!(samples),
        ..Found::default()
    })
}

/// Very many files are cached, and the home returns.
pub fn measure_many(site: &Site, quick: bool) -> Result<Found> {
    let files = if quick { 2_000 } else { 150_000 };
    let fill =
        |source: &Path| Work::MakeFiles { dir: source.join("many"), files, bytes: 64, per_dir: 100 }.run().map(drop);
    let mut rig = Rig::mounted(site, "many", &[], fill)?;
    rig.shape(Some(RATE), DELAY)?;
    let started = Instant::now();
    rig.hoard(&["many"])?;
    let hoarded_s = started.elapsed().as_secs_f64();
    eprintln!("many: hoarded in {hoarded_s:.1} s");
    let cached = rig.number("/cache/files")?;
    ensure!(cached > u64::from(files), "{files} files were hoarded, {cached} are cached");
    let mut table =
        Table::new("Returns", ["", "seconds until attached", "hoard walk after that, seconds", "bytes on the wire"]);
    let mut seconds = Vec::new();
    let mut add = |rig: &Rig, what: &str, begun: Instant, before: super::rig::Wire| -> Result<f64> {
        rig.wait_attached(true)?;
        let attached_s = begun.elapsed().as_secs_f64();
        let bytes = rig.quiet()?.since(before).bytes();
        let walking = Instant::now();
        rig.walk()?;
        let walked_s = walking.elapsed().as_secs_f64();
        eprintln!("many: {what}: {attached_s:.3} s, walk {walked_s:.3} s");
        table.row([what.to_owned(), number(attached_s), number(walked_s), count(bytes)]);
        seconds.push(json!({ "what": what, "attached_s": attached_s, "walked_s": walked_s, "bytes": bytes }));
        Ok(attached_s)
    };
    rig.set(&["--consistency", "none"])?;
    rig.wait_attached(true)?;
    let (begun, before) = rig.gap(&["--consistency", "callbacks"], || Ok(()))?;
    let gap_s = add(&rig, "after a gap, over the connection that outlived it", begun, before)?;
    rig.down()?;
    let before = rig.quiet()?;
    let begun = Instant::now();
    let mounted_s = rig.mount(&[])?.as_secs_f64();
    let again_s = add(&rig, "unmounted and mounted again", begun, before)?;
    Ok(Found {
        conditions: conditions(&format!(
            "{} files of 64 bytes in directories of 100 are hoarded, which took {} s. A gap is as in the study of \
             revalidation.",
            count(files.into()),
            number(hoarded_s)
        )),
        figures: vec![
            Figure::at_most("attached again after a gap", gap_s, 2.0, " s"),
            Figure::at_most("mounted again and attached, from the start of the process", again_s, 2.0, " s"),
            Figure::beside("mounted again, from the start of the process", format!("{} s", number(mounted_s))),
        ],
        tables: vec![table],
        samples: json!(seconds),
        ..Found::default()
    })
}

/// The waits of the foreground.
#[derive(Debug, Serialize)]
struct Probe {
    when: String,
    outcomes: Vec<Outcome>,
}

impl Probe {
    fn worst(&self, name: &str) -> f64 {
        largest(self.values(name))
    }

    fn median(&self, name: &str) -> f64 {
        median(&self.values(name).collect::<Vec<_>>())
    }

    fn values(&self, name: &str) -> impl Iterator<Item = f64> {
        self.outcomes.iter().map(move |outcome| outcome.get(name).copied().unwrap_or(f64::NAN))
    }
}

/// Very many changes are made without a network, and go home while a user works.
pub fn measure_pending(site: &Site, quick: bool) -> Result<Found> {
    // Each file counts as a creation and a store; directories come on top.
    let files = if quick { 1_000 } else { 50_000 };
    let mut found = Found {
        conditions: conditions(&format!(
            "{} files of 64 bytes are made without a network; then it is there again. Meanwhile a program makes, stats, \
             reads, renames and removes small files, as fast as possible, in pieces of {PROBE_S} s.",
            count(files)
        )),
        ..Found::default()
    };
    let mut table = Table::new(
        "Waits of the foreground",
        ["", "pieces", "operations/s", "longest wait, ms", "99th percentile, ms", "median, ms"],
    );
    let mut samples = Vec::new();
    for (index, state) in ["weak", "auto"].into_iter().enumerate() {
        let rig = Rig::mounted(site, &format!("pending-{index}"), &[], |_| Ok(()))?;
        rig.shape(Some(RATE), DELAY)?;
        rig.connect(state)?;
        let probe = |name: &str| work(&arguments("probe", &rig.path(name), &[("seconds", PROBE_S.into())]));
        let idle = Probe { when: format!("{state}, nothing waits"), outcomes: vec![probe("idle")?] };
        rig.send_all()?;
        rig.connect("off")?;
        let started = Instant::now();
        work(&arguments("make-files", &rig.path("many"), &[("files", files), ("bytes", 64), ("per-dir", 500)]))?;
        let logged_s = started.elapsed().as_secs_f64();
        let logged = rig.number("/pending/operations")?;
        eprintln!("pending: {logged} operations logged in {logged_s:.1} s");
        if !quick && logged < 100_000 {
            found.failures.push(format!("only {logged} operations were logged"));
        }
        let started = Instant::now();
        rig.connect(state)?;
        rig.wait_attached(true)?;
        let mut busy = Probe { when: format!("{state}, replay running"), outcomes: Vec::new() };
        let mut left = Vec::new();
        loop {
            busy.outcomes.push(probe(&format!("busy-{}", busy.outcomes.len()))?);
            left.push(rig.number("/pending/operations")?);
            eprintln!("pending: {state}: {} left after {:.1} s", left[left.len() - 1], started.elapsed().as_secs_f64());
            // The probe's own changes may still wait.
            if left[left.len() - 1] < 1000 {
                break;
            }
            ensure!(
                started.elapsed() < HOME_TIME_MAX,
                "{} operations wait after {HOME_TIME_MAX:?}",
                left[left.len() - 1]
            );
        }
        rig.send_all()?;
        let replayed_s = started.elapsed().as_secs_f64();
        for probe in [&idle, &busy] {
            table.row([
                probe.when.clone(),
                probe.outcomes.len().to_string(),
                number(probe.median("operations_per_s")),
                number(probe.worst("max_ms")),
                number(probe.worst("p99_ms")),
                number(probe.median("p50_ms")),
            ]);
        }
        let what = format!("longest wait while {} operations go home, link {state}", count(logged));
        found.figures.push(Figure::at_most(what, busy.worst("max_ms") / 1e3, WAIT_S_MAX, " s").ours());
        let rate = logged as f64 / replayed_s;
        found.figures.push(Figure::beside(
            format!("logged without a network, and sent home, link {state}"),
            format!("{} s, {} s ({} operations/s)", number(logged_s), number(replayed_s), number(rate)),
        ));
        samples.push(
            json!({ "state": state, "logged": logged, "logged_s": logged_s, "replayed_s": replayed_s, "left": left,
            "probes": [idle, busy] }),
        );
    }
    found.tables = vec![table];
    found.samples = json!(samples);
    Ok(found)
}
