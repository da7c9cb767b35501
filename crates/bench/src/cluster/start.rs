//! Three nodes from nothing to three mounts that see each other's files.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::rig::Cluster;
use super::{Effort, NODES};
use crate::command::{self, Interrupts};
use crate::report::number;
use crate::roam::found::{Figure, Found, largest, median};
use crate::scripted::Site;

/// Longest time from nothing until all see each other's files, in seconds.
const START_S_MAX: f64 = 10.0;
/// Longest time to look at all files.
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);
/// Makes a file in each of these folders, and compares all of them in all folders.
const SEE_EACH_OTHER: &str = r#"
for own in "$@"; do echo "$own" > "$own/by-$(basename "$own")" || exit 1; done
for seen in "$@"; do
    for own in "$@"; do
        [ "$(cat "$seen/by-$(basename "$own")")" = "$own" ] || { echo "$seen does not show $own's file" >&2; exit 1; }
    done
done"#;

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let (mut mounted, mut seen) = (Vec::new(), Vec::new());
    for run in 0..effort.runs {
        let cluster = Cluster::start(site, &format!("start-{run}"), NODES)?;
        let looked = Instant::now();
        let mut look = Command::new("sh");
        look.args(["-c", SEE_EACH_OTHER, "sh"]).args(cluster.paths(""));
        command::run(&mut look, LOOK_TIME_MAX, Interrupts::Obey)?;
        mounted.push(cluster.started_in().as_secs_f64());
        seen.push((cluster.started_in() + looked.elapsed()).as_secs_f64());
    }
    let whole = largest(seen.iter().copied());
    Ok(Found {
        conditions: format!(
            "{NODES} nodes, one after the other: `up`, then an invitation and a join for each of the others. {} runs; the \
             longest counts.",
            effort.runs
        ),
        figures: vec![
            Figure::at_most("until all mounts see each other's files", whole, START_S_MAX, " s"),
            Figure::beside("until all have mounted, median", format!("{} s", number(median(&mounted)))),
        ],
        samples: serde_json::json!({ "mounted_s": mounted, "seen_s": seen }),
        ..Found::default()
    })
}
