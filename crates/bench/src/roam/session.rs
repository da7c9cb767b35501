//! A session of editing, compiling and cleaning: how much of it never needs to go home.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::found::{Figure, Found, Table};
use super::rig::{MODEM, MODEM_DELAY, Rig, project};
use crate::report::{count, number};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// The folder of the session.
const FOLDER: &str = "project";
const PROJECT: [u32; 3] = [55, 15, 55];
const PROJECT_QUICK: [u32; 3] = [16, 2, 6];
const ROUNDS: u32 = 8;
const ROUNDS_QUICK: u32 = 2;
/// Sources that are edited in a round.
const EDITS: u32 = 5;
/// Fewest logged operations for a valid session.
const LOGGED_MIN: u64 = 1000;

/// The conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Case {
    /// Without a network.
    Off,
    /// Over a slow link: what is a quarter of an hour old goes home.
    Delayed,
    /// Over a slow link, which changes use whenever the user does not wait for it.
    Idle,
    /// Over a slow link: replay begins at once.
    Lottery,
}

impl Case {
    const ALL: [Case; 4] = [Case::Off, Case::Delayed, Case::Idle, Case::Lottery];

    fn title(self) -> String {
        match self {
            Case::Off => "without a network".into(),
            Case::Delayed => format!("{MODEM}, `--writes delayed=15m`"),
            Case::Idle => format!("{MODEM}, `--writes idle`"),
            Case::Lottery => format!("{MODEM}, `--writes lottery`"),
        }
    }

    fn prepare(self, rig: &Rig) -> Result<()> {
        let writes = match self {
            Case::Off => return rig.connect("off"),
            Case::Delayed => "delayed=15m",
            Case::Idle => "idle",
            Case::Lottery => "lottery",
        };
        rig.connect("weak")?;
        rig.set(&["--writes", writes])?;
        rig.shape(Some(MODEM), MODEM_DELAY)
    }
}

/// One session.
#[derive(Debug, Serialize)]
struct Sample {
    case: Case,
    seconds: f64,
    logged: u64,
    saved: u64,
    saved_bytes: u64,
    /// What is left at the end.
    pending: u64,
    pending_bytes: u64,
}

impl Sample {
    fn share(&self) -> f64 {
        100.0 * self.saved as f64 / self.logged.max(1) as f64
    }
}

/// Runs the study.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let size = if quick { PROJECT_QUICK } else { PROJECT };
    let [sources, headers, _] = size;
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    let mut found = Found {
        conditions: format!(
            "In a project of {sources} sources and {headers} headers that is cached, {rounds} times: {EDITS} sources \
             are edited (written anew and renamed), all is built with make, and cleaned, without a pause to think. The \
             link of {MODEM} has {} ms each way.",
            MODEM_DELAY.as_millis()
        ),
        ..Found::default()
    };
    let mut samples = Vec::new();
    for case in Case::ALL {
        let rig = Rig::mounted(site, &format!("session-{}", case as usize), &[], project(FOLDER, size))?;
        rig.hoard(&[FOLDER])?;
        case.prepare(&rig)?;
        let sample = run(&rig, case, rounds)?;
        eprintln!("session: {sample:?}");
        if !quick && sample.logged < LOGGED_MIN {
            found.failures.push(format!("{}: only {} operations were logged", case.title(), sample.logged));
        }
        samples.push(sample);
        // All changes go home in the end.
        rig.shape_now(None, Duration::ZERO);
        rig.connect("auto")?;
        rig.wait_attached(true)?;
        rig.send_all()?;
    }
    found.figures = samples
        .iter()
        .map(|sample| {
            let what = format!("operations that need not go home, {}", sample.case.title());
            match sample.case {
                // The session ends before any change is a quarter of an hour old: it is like the
                // one without a network.
                Case::Delayed => Figure::beside(what, format!("{} %", number(sample.share()))),
                _ => Figure::at_least(what, sample.share(), 70.0, " %"),
            }
        })
        .collect();
    found.tables = vec![table(&samples)];
    found.samples = serde_json::to_value(&samples).context("samples as JSON")?;
    Ok(found)
}

fn run(rig: &Rig, case: Case, rounds: u32) -> Result<Sample> {
    let numbers = || -> Result<[u64; 5]> {
        let status = rig.ask("status")?;
        let pointers = ["/saved/logged", "/saved/operations", "/saved/bytes", "/pending/operations", "/pending/bytes"];
        let mut all = [0; 5];
        for (number, pointer) in all.iter_mut().zip(pointers) {
            *number = status.pointer(pointer).and_then(|value| value.as_u64()).context("a number of the status")?;
        }
        Ok(all)
    };
    let [logged, saved, saved_bytes, ..] = numbers()?;
    let options = [("rounds", rounds.into()), ("edits", EDITS.into())];
    let seconds = *work(&arguments("session", &rig.path(FOLDER), &options))?.get("seconds").context("no seconds")?;
    let [logged_after, saved_after, saved_bytes_after, pending, pending_bytes] = numbers()?;
    Ok(Sample {
        case,
        seconds,
        logged: logged_after - logged,
        saved: saved_after - saved,
        saved_bytes: saved_bytes_after - saved_bytes,
        pending,
        pending_bytes,
    })
}

fn table(samples: &[Sample]) -> Table {
    let header = ["", "seconds", "logged", "saved", "of logged", "KiB saved", "pending at the end", "KiB pending"];
    let mut table = Table::new("Operations", header);
    for sample in samples {
        let kib = |bytes: u64| number(bytes as f64 / 1024.0);
        table.row([
            sample.case.title(),
            number(sample.seconds),
            count(sample.logged),
            count(sample.saved),
            format!("{} %", number(sample.share())),
            kib(sample.saved_bytes),
            count(sample.pending),
            kib(sample.pending_bytes),
        ]);
    }
    table
}
