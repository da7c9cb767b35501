//! Local changes that go home later: the time of each operation, and its wait in the log (Huston
//! and Honeyman, their tables 3 and 5).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::andrew::{self, PROJECT, PROJECT_QUICK};
use super::found::{Figure, Found, Table, largest, smallest};
use super::rig::{MODEM, MODEM_DELAY, Rig, project};
use crate::report::{count, number};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// Their operations, with the milliseconds over Ethernet, and over SLIP connected and partially
/// connected.
const THEIRS: [(&str, [f64; 3]); 8] = [
    ("setattr", [12.8, 99.3, 52.9]),
    ("create", [18.9, 101.6, 59.8]),
    ("remove", [39.5, 171.5, 64.8]),
    ("rename", [26.8, 183.6, 71.3]),
    ("link", [26.2, 129.8, 71.4]),
    ("symlink", [38.3, 168.7, 66.3]),
    ("mkdir", [99.8, 286.1, 76.6]),
    ("rmdir", [37.2, 99.4, 60.4]),
];
/// How often the log is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Longest time for a log to reach the home; beyond it, it is stuck.
const HOME_TIME_MAX: Duration = Duration::from_secs(3600);

/// Their Table 3: the time of each operation.
pub fn measure_operations(site: &Site, quick: bool) -> Result<Found> {
    let times = if quick { 3 } else { 50 };
    let rig = Rig::mounted(site, "operations", &[], |_| Ok(()))?;
    let mut all = Vec::new();
    for (name, state, writes, rate) in [
        ("connected", "auto", "lottery", None),
        ("through", "weak", "through", Some(MODEM)),
        ("weak", "weak", "lottery", Some(MODEM)),
    ] {
        rig.connect(state)?;
        rig.set(&["--writes", writes])?;
        let delay = if rate.is_some() { MODEM_DELAY } else { Duration::ZERO };
        rig.shape(rate, delay)?;
        all.push(work(&arguments("operations", &rig.path(name), &[("times", times)]))?);
        rig.shape_now(None, Duration::ZERO);
        rig.send_all()?;
    }
    let header = ["ms", "unlimited link", "slow, `--writes through`", "slow", "theirs, Ethernet", "C-SLIP", "P-SLIP"];
    let mut table = Table::new("Each operation", header);
    let ours = |case: usize, name: &str| all[case].get(&format!("{name}_ms")).copied().unwrap_or(f64::NAN);
    for (name, theirs) in THEIRS {
        let cells = (0..3).map(|case| ours(case, name)).chain(theirs).map(number);
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    let worst = largest(THEIRS.iter().map(|(name, _)| ours(2, name) / ours(0, name)));
    Ok(Found {
        conditions: format!(
            "{MODEM} with {} ms each way, or an unlimited link. Means of {times}.",
            MODEM_DELAY.as_millis()
        ),
        figures: vec![
            Figure::beside("slow : unlimited link, the worst operation", number(worst)),
            Figure::beside(
                "`--writes through` : slow, the least",
                number(smallest(THEIRS.iter().map(|(name, _)| ours(1, name) / ours(2, name)))),
            ),
        ],
        tables: vec![table],
        samples: json!(all),
        ..Found::default()
    })
}

/// Their Table 5: how long the Andrew benchmark's operations wait in the log.
pub fn measure_log(site: &Site, quick: bool) -> Result<Found> {
    let size = if quick { PROJECT_QUICK } else { PROJECT };
    let [sources, ..] = size;
    let mut table = Table::new(
        "Waits in the log, seconds",
        [
            "cache",
            "benchmark",
            "until all was home",
            "operations that waited",
            "most at a time",
            "mean",
            "longest",
            "theirs: mean",
            "longest",
        ],
    );
    let mut samples = Vec::new();
    for (cache, theirs) in [("cold", ["88", "314"]), ("hot", ["107", "374"])] {
        let rig = Rig::mounted(site, &format!("log-{cache}"), &[], project("original", size))?;
        if cache == "hot" {
            rig.hoard(&["original"])?;
        }
        rig.connect("weak")?;
        rig.shape(Some(MODEM), MODEM_DELAY)?;
        let waits = watch(&rig)?;
        let all: Vec<f64> = waits.seen.values().map(|(first, last)| (*last - *first).as_secs_f64()).collect();
        eprintln!("log: {cache}: {} operations waited", all.len());
        ensure!(!all.is_empty(), "{cache}: no operation was seen to wait");
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        table.row([
            cache.to_owned(),
            number(waits.seconds),
            number(waits.home_s),
            count(all.len() as u64),
            count(waits.most),
            number(mean),
            number(largest(all.iter().copied())),
            theirs[0].to_owned(),
            theirs[1].to_owned(),
        ]);
        samples.push(json!({ "cache": cache, "benchmark_s": waits.seconds, "home_s": waits.home_s, "waits_s": all }));
    }
    Ok(Found {
        conditions: format!(
            "The Andrew benchmark with {sources} sources over {MODEM} with {} ms each way; it is looked at what waits \
             every {} ms, so that what waits for less may not be seen.",
            MODEM_DELAY.as_millis(),
            LOOK_PERIOD.as_millis()
        ),
        tables: vec![table],
        samples: json!(samples),
        ..Found::default()
    })
}

/// The log's contents while the benchmark ran, and until it was empty.
struct Waits {
    /// When each operation was seen first and last, by its number.
    seen: BTreeMap<u64, (Instant, Instant)>,
    most: u64,
    seconds: f64,
    home_s: f64,
}

fn watch(rig: &Rig) -> Result<Waits> {
    let (source, target) = (rig.path("original"), rig.path("copy"));
    let mut waits = Waits { seen: BTreeMap::new(), most: 0, seconds: 0.0, home_s: 0.0 };
    let started = Instant::now();
    std::thread::scope(|scope| {
        // A workload has a deadline of its own.
        let mut running = Some(scope.spawn(|| andrew::copy_and_build(&source, &target)));
        loop {
            let now = Instant::now();
            let pending = rig.ask("pending")?;
            let pending = pending.as_array().context("what waits is a list")?;
            for number in pending.iter().filter_map(|one| one.get("number").and_then(Value::as_u64)) {
                waits.seen.entry(number).and_modify(|(_, last)| *last = now).or_insert((now, now));
            }
            waits.most = waits.most.max(pending.len() as u64);
            if running.as_ref().is_some_and(|thread| thread.is_finished()) {
                let thread = running.take().context("it runs")?;
                let measured = thread.join().map_err(|_| anyhow::anyhow!("the benchmark failed"))??;
                waits.seconds = *measured.get("seconds").context("no seconds")?;
            } else if running.is_none() && pending.is_empty() {
                waits.home_s = started.elapsed().as_secs_f64();
                return Ok(waits);
            }
            ensure!(started.elapsed() < HOME_TIME_MAX, "{} operations wait after {HOME_TIME_MAX:?}", pending.len());
            std::thread::sleep(LOOK_PERIOD);
        }
    })
}
