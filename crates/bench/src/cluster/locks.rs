//! A lock of flock(2) that programs on three nodes wait for.

use anyhow::{Context, Result};

use super::rig::Cluster;
use super::{Effort, NODES};
use crate::report::number;
use crate::roam::found::{Figure, Found, Table};
use crate::run::work;
use crate::scripted::Site;
use crate::work::{Outcome, percentile};

/// Longest hand-over in milliseconds, in the median.
const HAND_OVER_MS_MAX: f64 = 1.0;
/// When the first node is done, the one that had the lock least often had it at least this part as
/// often.
const SHARE_MIN: f64 = 0.8;

/// A time in which a node had the lock.
#[derive(Clone, Copy, Debug)]
struct Hold {
    client: usize,
    entered_s: f64,
    left_s: f64,
}

/// What the holds of a run show.
#[derive(Debug, PartialEq)]
struct Judged {
    /// Times in ms from a node's end to another node's begin, ascending.
    hand_overs_ms: Vec<f64>,
    /// How often a node had the lock before another one did.
    overlaps: usize,
    /// How often each node had had it when the first was done.
    had: Vec<usize>,
}

fn holds(outcome: &Outcome, clients: usize, times: u32) -> Result<Vec<Hold>> {
    let mut all = Vec::new();
    for client in 0..clients {
        for time in 0..times {
            let of = |what: &str| {
                let name = format!("{what}_{client}_{time}_s");
                outcome.get(&name).copied().with_context(|| format!("the workload did not measure {name}"))
            };
            all.push(Hold { client, entered_s: of("entered")?, left_s: of("left")? });
        }
    }
    all.sort_by(|one, other| one.entered_s.total_cmp(&other.entered_s));
    Ok(all)
}

fn judge(holds: &[Hold], clients: usize) -> Judged {
    let end = |client: usize| holds.iter().rfind(|hold| hold.client == client).map_or(f64::NAN, |hold| hold.left_s);
    let first_end = (0..clients).map(end).fold(f64::INFINITY, f64::min);
    let competed = || holds.iter().filter(|hold| hold.entered_s <= first_end);
    let had = (0..clients).map(|client| competed().filter(|hold| hold.client == client).count()).collect();
    let overlaps = holds.windows(2).filter(|pair| pair[1].entered_s < pair[0].left_s).count();
    let mut hand_overs_ms: Vec<f64> = competed()
        .zip(competed().skip(1))
        .filter(|(before, next)| before.client != next.client)
        .map(|(before, next)| (next.entered_s - before.left_s) * 1e3)
        .collect();
    hand_overs_ms.sort_by(f64::total_cmp);
    Judged { hand_overs_ms, overlaps, had }
}

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let times: u32 = if effort.quick { 20 } else { 500 };
    let hold_us = 1000;
    let cluster = Cluster::start(site, "lock", NODES)?;
    let paths = cluster.paths("lock");
    let mut all = vec!["flock".to_owned()];
    all.extend(paths.iter().map(|path| path.display().to_string()));
    all.extend(["--times".to_owned(), times.to_string(), "--hold-us".to_owned(), hold_us.to_string()]);
    let before = cluster.frames()?;
    let outcome = work(&all)?;
    let frames = (cluster.frames()? - before) as f64 / f64::from(times) / NODES as f64;
    let Judged { hand_overs_ms, overlaps, had } = judge(&holds(&outcome, NODES, times)?, NODES);
    let [p50, p99, longest] = [50, 99, 100].map(|percent| percentile(&hand_overs_ms, percent));
    let counts: Vec<String> = had.iter().map(usize::to_string).collect();
    let least = had.iter().min().copied().unwrap_or(0) as f64 / f64::from(times);
    let mut table = Table::new(
        "The lock",
        [
            "hand-overs",
            "median, ms",
            "p99, ms",
            "longest, ms",
            "each had it when the first was done",
            "frames per time",
        ],
    );
    let cells = [p50, p99, longest].map(number);
    table.row([hand_overs_ms.len().to_string()].into_iter().chain(cells).chain([counts.join(", "), number(frames)]));
    let failures = (overlaps > 0).then(|| format!("two nodes had the lock at once, {overlaps} times"));
    Ok(Found {
        conditions: format!(
            "A program on each of {NODES} nodes takes the lock {times} times with flock(2), which waits, and keeps it for {hold_us} µs \
             without sleeping. A hand-over lasts from before the holder's unlock until after the next one's lock."
        ),
        figures: vec![
            Figure::at_most("a hand-over, median", p50, HAND_OVER_MS_MAX, " ms"),
            Figure::at_least("had it when the first was done: the fewest times : the most", least, SHARE_MIN, "")
                .ours(),
        ],
        tables: vec![table],
        failures: failures.into_iter().collect(),
        samples: serde_json::json!({ "hand_overs_ms": hand_overs_ms, "had": had, "overlaps": overlaps }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_tell_hand_overs_overlaps_and_shares() {
        let hold = |client, entered_s, left_s| Hold { client, entered_s, left_s };
        let fair = [hold(0, 0.0, 1.0), hold(1, 1.5, 2.0), hold(0, 2.25, 3.0), hold(1, 4.0, 5.0)];
        assert_eq!(
            judge(&fair, 2),
            Judged { hand_overs_ms: vec![250.0, 500.0], overlaps: 0, had: vec![2, 1] },
            "the last hand-over comes when no other node competes any more"
        );
        let both = [hold(0, 0.0, 1.0), hold(1, 0.5, 2.0)];
        assert_eq!(judge(&both, 2).overlaps, 1);
    }

    #[test]
    fn holds_are_read_in_the_order_of_their_begins() {
        let outcome: Outcome =
            [("entered_0_0_s", 2.0), ("left_0_0_s", 3.0), ("entered_1_0_s", 0.0), ("left_1_0_s", 1.0)]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
        let order: Vec<usize> = holds(&outcome, 2, 1).unwrap().iter().map(|hold| hold.client).collect();
        assert_eq!(order, [1, 0]);
        assert!(holds(&outcome, 3, 1).is_err());
    }
}
