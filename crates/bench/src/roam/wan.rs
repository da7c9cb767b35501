//! The setting of Zhao and Figueiredo (section 5): 40 ms round trip, 4 Mb/s. A build and PostMark,
//! beside sshfs over the same kind of link, and beside the same client writing through.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use linkem::{Rate, Shape};
use serde::Serialize;

use super::found::{Figure, Found, Table, median};
use super::rig::{Rig, project};
use super::sshfs::Sshfs;
use crate::report::{count, number};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// The rate of the link.
pub const RATE: Rate = Rate::mbits_per_s(4);
/// Each way.
pub const DELAY: Duration = Duration::from_millis(20);
const FOLDER: &str = "project";
/// Sources, headers, and compiled units.
const PROJECT: [u32; 3] = [357, 103, 168];
const PROJECT_QUICK: [u32; 3] = [12, 4, 6];

/// The subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Who {
    Starling,
    Through,
    Sshfs,
}

impl Who {
    const ALL: [Who; 3] = [Who::Starling, Who::Through, Who::Sshfs];

    fn title(self) -> &'static str {
        match self {
            Who::Starling => "Starling",
            Who::Through => "Starling, `--writes through`",
            Who::Sshfs => "sshfs",
        }
    }
}

/// A subject, mounted beyond the link.
enum Subject {
    Starling(Rig),
    Sshfs(Sshfs),
}

impl Subject {
    fn new(site: &Site, who: Who, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Subject> {
        let name = format!("{name}-{}", who as usize);
        let writes = match who {
            Who::Starling => "lottery",
            Who::Through => "through",
            Who::Sshfs => {
                let shape = Shape { rate: Some(RATE), delay: DELAY, ..Shape::default() };
                return Ok(Subject::Sshfs(Sshfs::new(site, &name, shape, fill)?));
            }
        };
        let mut rig = Rig::new(site, &name, fill)?;
        rig.shape(Some(RATE), DELAY)?;
        rig.mount(&["--writes", writes])?;
        rig.wait_attached(true)?;
        Ok(Subject::Starling(rig))
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Subject::Starling(rig) => rig.path(name),
            Subject::Sshfs(sshfs) => sshfs.path(name),
        }
    }

    /// The number of changes that are not home yet, and the time until they are.
    fn settle(&self) -> Result<(u64, f64)> {
        let Subject::Starling(rig) = self else { return Ok((0, 0.0)) };
        let pending = rig.number("/pending/operations")?;
        let started = Instant::now();
        rig.send_all()?;
        Ok((pending, started.elapsed().as_secs_f64()))
    }
}

/// One run of a workload.
#[derive(Debug, Serialize)]
struct Sample {
    who: Who,
    seconds: f64,
    /// Operations that were not home when it ended.
    pending: u64,
    /// Time until they were.
    home_s: f64,
}

impl Sample {
    fn take(who: Who, subject: &Subject, arguments: &[String]) -> Result<Sample> {
        let seconds = *work(arguments)?.get("seconds").context("no seconds")?;
        let (pending, home_s) = subject.settle()?;
        let sample = Sample { who, seconds, pending, home_s };
        eprintln!("wan: {sample:?}");
        Ok(sample)
    }
}

fn conditions(more: &str) -> String {
    format!("A link of {RATE} with {} ms each way. {more}", DELAY.as_millis())
}

/// How many times longer the others take, over chosen runs.
fn figures(what: &str, samples: &[Sample], wanted: f64, runs: impl Fn(&[f64]) -> f64) -> Vec<Figure> {
    let time = |who| runs(&samples.iter().filter(|s| s.who == who).map(|s| s.seconds).collect::<Vec<_>>());
    [Who::Sshfs, Who::Through]
        .map(|who| {
            let text = format!("{what}: {} takes longer than Starling by", who.title());
            Figure::at_least(text, time(who) / time(Who::Starling), wanted, "x")
        })
        .into()
}

fn table(title: &str, samples: &[Sample]) -> Table {
    let mut table = Table::new(title, ["", "seconds, run after run", "not home at the end", "seconds until it was"]);
    for who in Who::ALL {
        let list = |of: &dyn Fn(&Sample) -> String| {
            samples.iter().filter(|sample| sample.who == who).map(of).collect::<Vec<_>>().join(", ")
        };
        table.row([
            who.title().to_owned(),
            list(&|sample| number(sample.seconds)),
            list(&|sample| count(sample.pending)),
            list(&|sample| number(sample.home_s)),
        ]);
    }
    table
}

/// The build: once with nothing cached, and again after it was cleaned.
pub fn measure_build(site: &Site, quick: bool) -> Result<Found> {
    let size = if quick { PROJECT_QUICK } else { PROJECT };
    let [sources, headers, units] = size;
    let runs = if quick { 2 } else { 3 };
    let mut samples = Vec::new();
    for who in Who::ALL {
        let subject = Subject::new(site, who, "wan-build", project(FOLDER, size))?;
        let arguments = |action: &str| arguments(action, &subject.path(FOLDER), &[]);
        for run in 0..runs {
            if run > 0 {
                work(&arguments("clean"))?;
                subject.settle()?;
            }
            samples.push(Sample::take(who, &subject, &arguments("build"))?);
        }
    }
    let following = |times: &[f64]| median(times.get(1..).unwrap_or_default());
    let first = |times: &[f64]| times.first().copied().unwrap_or(f64::NAN);
    Ok(Found {
        conditions: conditions(&format!(
            "A project of {sources} sources and {headers} headers is built into {units} objects with make, first with \
             nothing in any cache, then again after `make clean` (not timed); between runs everything goes home."
        )),
        figures: [
            figures("build, first run", &samples, 3.0, first),
            figures("build, following runs", &samples, 3.0, following),
        ]
        .into_iter()
        .flatten()
        .collect(),
        tables: vec![table("Builds", &samples)],
        samples: serde_json::to_value(&samples).context("samples as JSON")?,
        ..Found::default()
    })
}

/// PostMark.
pub fn measure_postmark(site: &Site, quick: bool) -> Result<Found> {
    let ([files, transactions], runs) = if quick { ([5, 10], 1) } else { ([100, 300], 2) };
    let subjects =
        Who::ALL.map(|who| Subject::new(site, who, "wan-postmark", |_| Ok(())).map(|subject| (who, subject)));
    let subjects = subjects.into_iter().collect::<Result<Vec<_>>>()?;
    let mut samples = Vec::new();
    for run in 0..runs {
        for (who, subject) in &subjects {
            let dir = subject.path(&format!("postmark-{run}"));
            let arguments = arguments("postmark", &dir, &[("files", files), ("transactions", transactions)]);
            samples.push(Sample::take(*who, subject, &arguments)?);
        }
    }
    Ok(Found {
        conditions: conditions(&format!("PostMark with {files} files and {transactions} transactions, {runs} runs.")),
        figures: figures("PostMark", &samples, 5.0, median),
        tables: vec![table("PostMark", &samples)],
        samples: serde_json::to_value(&samples).context("samples as JSON")?,
        ..Found::default()
    })
}
