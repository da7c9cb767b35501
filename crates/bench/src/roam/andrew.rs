//! The Andrew benchmark on a warm cache over a slow link, against its own time on an unlimited one
//! (Huston and Honeyman, section 6.2), and the cost of replay (their Table 6).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::found::{Figure, Found, Table, median};
use super::rig::{MODEM, MODEM_DELAY, Rig, project};
use crate::report::number;
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::Outcome;

/// The folder that is copied.
const FOLDER: &str = "original";
/// The benchmark's own tree has about 70 files.
pub(super) const PROJECT: [u32; 3] = [55, 15, 55];
pub(super) const PROJECT_QUICK: [u32; 3] = [6, 2, 6];

/// The conditions of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Case {
    /// Over an unlimited link, but the mount is told that it is slow, so that it does the same
    /// work.
    Unlimited,
    /// Over an unlimited link, which the mount recognises: closing a file waits until the home has
    /// it.
    Connected,
    /// Over the slow link, with replay.
    Slow,
    /// Over the slow link, with replay only after the end.
    Later,
    /// Over the slow link; each change waits for the home.
    Through,
}

impl Case {
    const ALL: [Case; 5] = [Case::Unlimited, Case::Connected, Case::Slow, Case::Later, Case::Through];

    fn title(self) -> String {
        match self {
            Case::Unlimited => "unlimited link, taken for a slow one".into(),
            Case::Connected => "unlimited link, taken for what it is".into(),
            Case::Slow => format!("{MODEM}, replay running"),
            Case::Later => format!("{MODEM}, replay off (`--writes manual`)"),
            Case::Through => format!("{MODEM}, `--writes through`"),
        }
    }

    fn writes(self) -> &'static str {
        match self {
            Case::Unlimited | Case::Connected | Case::Slow => "lottery",
            Case::Later => "manual",
            Case::Through => "through",
        }
    }

    fn is_slow(self) -> bool {
        !matches!(self, Case::Unlimited | Case::Connected)
    }
}

/// One run of the benchmark.
#[derive(Debug, Serialize)]
struct Sample {
    case: Case,
    phases: Outcome,
    /// Operations that were not home at the end.
    pending: u64,
}

/// Runs the study.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let size = if quick { PROJECT_QUICK } else { PROJECT };
    let [sources, headers, _] = size;
    let (runs, runs_through) = if quick { (1, 1) } else { (15, 2) };
    let rig = Rig::mounted(site, "andrew", &[], project(FOLDER, size))?;
    rig.hoard(&[FOLDER])?;
    let mut samples = Vec::new();
    // The first run finds the kernel's caches cold, the compiler's among others.
    run(&rig, Case::Unlimited, "warm-up")?;
    for round in 0..runs {
        let mut cases = Case::ALL;
        cases.rotate_left(round % Case::ALL.len());
        for case in cases.into_iter().filter(|case| *case != Case::Through || round < runs_through) {
            let sample = run(&rig, case, &format!("copy-{round}-{}", case as usize))?;
            eprintln!("andrew: {}: {:?}", case.title(), sample.phases);
            samples.push(sample);
        }
    }
    Ok(Found {
        conditions: format!(
            "A project of {sources} sources and {headers} headers is copied and built in a mount that has it in its \
             cache. The link of {MODEM} has {} ms each way. Medians of {runs} rounds. All cases run in each, \
             in an order that rotates ({runs_through} with `--writes through`); ratios are medians of the rounds' \
             ratios.",
            MODEM_DELAY.as_millis()
        ),
        figures: figures(&samples),
        tables: vec![table(&samples)],
        samples: serde_json::to_value(&samples).context("samples as JSON")?,
        ..Found::default()
    })
}

/// The benchmark, in a child process.
pub(super) fn copy_and_build(source: &Path, target: &Path) -> Result<Outcome> {
    let mut arguments = arguments("andrew", source, &[]);
    arguments.push(target.display().to_string());
    work(&arguments)
}

fn run(rig: &Rig, case: Case, name: &str) -> Result<Sample> {
    rig.connect(if case == Case::Connected { "auto" } else { "weak" })?;
    rig.set(&["--writes", case.writes()])?;
    if case.is_slow() {
        rig.shape(Some(MODEM), MODEM_DELAY)?;
    }
    let target = rig.path(name);
    let phases = copy_and_build(&rig.path(FOLDER), &target)?;
    let pending = rig.number("/pending/operations")?;
    // As it was before.
    rig.shape_now(None, Duration::ZERO);
    rig.remove(&target)?;
    rig.send_all()?;
    Ok(Sample { case, phases, pending })
}

fn times(samples: &[Sample], case: Case, phase: &str) -> Vec<f64> {
    let of = samples.iter().filter(|sample| sample.case == case);
    of.filter_map(|sample| sample.phases.get(phase).copied()).collect()
}

/// The ratio of the times of two cases: the median over the rounds; the two cases of a round run
/// soon after each other.
fn ratio(samples: &[Sample], case: Case, of: Case) -> f64 {
    let [times, others] = [case, of].map(|case| times(samples, case, "seconds"));
    median(&times.iter().zip(&others).map(|(time, other)| time / other).collect::<Vec<_>>())
}

fn figures(samples: &[Sample]) -> Vec<Figure> {
    vec![
        Figure::at_most(
            format!("time over {MODEM}, replay running : on an unlimited link"),
            ratio(samples, Case::Slow, Case::Unlimited),
            1.10,
            "",
        ),
        Figure::at_most("time with replay : without", ratio(samples, Case::Slow, Case::Later), 1.05, ""),
        Figure::beside(
            format!("`--writes through` over {MODEM} : on an unlimited link"),
            format!("{} (Huston and Honeyman: 4.4)", number(ratio(samples, Case::Through, Case::Unlimited))),
        ),
        Figure::beside(
            format!("time over {MODEM} : on an unlimited link, taken for what it is"),
            number(ratio(samples, Case::Slow, Case::Connected)),
        ),
    ]
}

fn table(samples: &[Sample]) -> Table {
    let phases = ["make_dirs_s", "copy_s", "scan_s", "read_s", "build_s", "seconds"];
    let header =
        ["", "make directories", "copy", "scan", "read", "build", "total", "fastest to slowest", "not home at the end"];
    let mut table = Table::new("Seconds", header);
    for case in Case::ALL {
        let mut row = vec![case.title()];
        row.extend(phases.iter().map(|phase| number(median(&times(samples, case, phase)))));
        let all = times(samples, case, "seconds");
        let (least, most) = all.iter().fold((f64::INFINITY, 0.0f64), |(least, most), &x| (least.min(x), most.max(x)));
        row.push(format!("{}..{}", number(least), number(most)));
        let pending: Vec<f64> =
            samples.iter().filter(|sample| sample.case == case).map(|sample| sample.pending as f64).collect();
        row.push(number(median(&pending)));
        table.row(row);
    }
    table
}
