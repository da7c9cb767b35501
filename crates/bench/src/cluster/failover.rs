//! The node of a manager dies while another node has very many of its files in its cache.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::rig::{Cluster, Serves, WORKER};
use super::{Effort, NODES};
use crate::command;
use crate::report::{count, number};
use crate::roam::found::{Figure, Found};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// Longest time from when another node serves the manager until its files can be used, in seconds.
const USABLE_S_MAX: f64 = 2.0;
/// The node that has the files in its cache, and goes on.
const USER: usize = WORKER + 1;
/// A cache that holds all files.
const CACHE: &str = "--cache-size 8GiB";
/// Time from when the user begins to change files until the node dies.
const BEFORE: Duration = Duration::from_secs(5);
/// For how long the user changes files, in seconds.
const CHANGES_S: u64 = 45;
/// Longest time until the user begins.
const BEGIN_DEADLINE: Duration = Duration::from_secs(300);
/// The node that leads writes this to its log when a manager is at its new place, before it tells
/// other nodes.
const MOVED: &str = "a manager has moved";
const DAY_S: f64 = 86_400.0;

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    // The files are of four managers in turn, and one of these dies.
    let files = if effort.quick { 8_000 } else { 600_000 };
    let mut cluster = Cluster::start_with(&with_large_caches(site), "failover", NODES, Serves::EachNode)?;
    work(&arguments("make-files", &cluster.path(WORKER, "many"), &[("files", files)]))?;
    cluster.sync()?;
    work(&arguments("stat-files", &cluster.path(USER, "many"), &[]))?;
    let dying = cluster.said_of(&cluster.nodes()?, WORKER)?["managers"].as_u64().context("no managers")?;
    ensure!(dying == 1, "node {WORKER} serves {dying} managers, not one");
    let begun = site.root.join("begun");
    let mut changes = arguments("touch-files", &cluster.path(USER, "many"), &[("seconds", CHANGES_S)]);
    changes.extend(["--begun".to_owned(), begun.display().to_string()]);
    let log_before = cluster.log(0)?.len();
    let (done, killed) = std::thread::scope(|scope| {
        let changes = scope.spawn(|| work(&changes));
        let killed = wait_for(&begun).and_then(|()| {
            command::pause(BEFORE)?;
            cluster.kill(WORKER)
        });
        (changes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), killed)
    });
    killed?;
    let done = done?;
    let of = |name: &str| done.get(name).copied().with_context(|| format!("no {name}"));
    let (longest, ended) = (of("longest_s")?, of("longest_ended_unix_s")?);
    let log = cluster.log(0)?;
    let moved = log[log_before..].lines().find(|line| line.contains(MOVED)).context("no manager has moved")?;
    let since = (ended - day_seconds(moved)? + DAY_S / 2.0).rem_euclid(DAY_S) - DAY_S / 2.0;
    ensure!(
        since > -1.0 && since < longest,
        "the longest call, of {longest} s, is not one that waited for the manager"
    );
    let tokens = tokens(&cluster.status(0)?, moved)?;
    Ok(Found {
        conditions: format!(
            "{NODES} nodes with a store and managers each. One makes {} empty files, and another one looks at all of them. Then that one \
             changes one file after the other, and the first of the two is killed. Its manager has a quarter of the files.",
            count(files)
        ),
        figures: vec![
            Figure::at_most(
                "from when the manager is at its new place until the longest call ends",
                since,
                USABLE_S_MAX,
                " s",
            ),
            Figure::beside("the longest call", format!("{} s", number(longest))),
            Figure::beside("tokens of the manager at its new place", count(tokens)),
            Figure::beside("changes in all", count(of("changes")? as u64)),
        ],
        samples: json!({ "tokens": tokens, "usable_s": since, "longest_s": longest, "moved": moved }),
        ..Found::default()
    })
}

fn with_large_caches(site: &Site) -> Site {
    let mut site = site.clone();
    site.starling_args = format!("{} {CACHE}", site.starling_args);
    site
}

/// Waits until a file is there.
fn wait_for(file: &Path) -> Result<()> {
    let until = Instant::now() + BEGIN_DEADLINE;
    while !file.exists() {
        ensure!(Instant::now() < until, "the changes do not begin");
        command::pause(Duration::from_millis(50))?;
    }
    Ok(())
}

/// The tokens that the manager has granted that this line of a log names.
fn tokens(status: &Value, line: &str) -> Result<u64> {
    let id = line.split("manager-").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let id: usize = id.and_then(|id| id.parse().ok()).with_context(|| format!("no manager in {line:?}"))?;
    let managers = status.get("managers").and_then(Value::as_array).context("the status has no managers")?;
    let manager = managers.get(id).with_context(|| format!("the status has no manager {id}"))?;
    manager.get("tokens").and_then(Value::as_u64).context("no tokens")
}

/// The second of the day at which a line of a log was written: `2026-11-24T01:02:03.456Z INFO ...`.
fn day_seconds(line: &str) -> Result<f64> {
    let time = line.split_once('T').and_then(|(_, rest)| rest.split_once('Z')).context("a line without a time")?.0;
    let parts: Vec<f64> =
        time.split(':').map(str::parse).collect::<Result<_, _>>().context("read the time of a line")?;
    let [hours, minutes, seconds] = parts[..] else { anyhow::bail!("{time} is no time of a day") };
    Ok((hours * 60.0 + minutes) * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "2026-11-24T01:02:03.500Z  INFO cluster::seats: a manager has moved manager=manager-2 node=node-0";

    #[test]
    fn times_of_lines_are_seconds_of_the_day() {
        assert_eq!(day_seconds(LINE).unwrap(), 3723.5);
        for wrong in ["", "no time", "2026-11-24T01:02Z", "2026-11-24Tx:y:zZ"] {
            assert!(day_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_names_the_manager_whose_tokens_count() {
        let status = json!({ "managers": [{ "tokens": 1 }, { "tokens": 2 }, { "tokens": 3 }] });
        assert_eq!(tokens(&status, LINE).unwrap(), 3);
        assert!(tokens(&status, "manager=manager-7").is_err() && tokens(&status, "no manager").is_err());
    }
}
