//! `starling fsck`: checks a file system that is not running.

use crate::ask::maps_line;
use crate::core_report::maps_json;
use crate::folder::Folder;
use crate::location::Location;
use crate::node::joined;
use crate::usage;
use anyhow::Context;
use cluster::check::{self, Report};
use cluster::machine::{CoreMachine, INDEX_RANGE_LEN, Lengths, Run, StartError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use stripe::StoreState;

const CACHE_BYTES: u64 = 256 << 20;

/// What to do about a file system that other machines serve, too.
const USE_SCRUB: &str = "a check of one data folder alone could change what they have agreed on. Start the machines, and give `starling scrub` at the \
                         one that leads (`starling nodes`)";

/// Runs `starling fsck`. Exit code 1 if anything is wrong.
pub async fn run(data: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    if joined::is_node_folder(data) {
        return Err(usage(format!("{} belongs to a node that has joined: {USE_SCRUB}", data.display())));
    }
    let folder = Folder::open(data, false)?;
    let stores = folder.stores()?.ok_or_else(|| usage(format!("{} holds no file system", data.display())))?;
    let host = host::real::host(tokio::runtime::Handle::current()).context("host")?;
    let places = folder.places(&host, &stores)?;
    let run = Run {
        cache_bytes: CACHE_BYTES,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
        index_range_len: INDEX_RANGE_LEN,
        manager_lengths: Lengths::LARGEST,
        accepts_loss: false,
        claim: folder.claim(&stores)?,
    };
    let machine = CoreMachine::start(host, &places, &folder.consensus()?, run).await;
    let machine = machine.map_err(|e| explain(e, &stores.places))?;
    let bar = if as_json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    bar.set_style(ProgressStyle::with_template("{spinner} {pos} files checked, {elapsed}")?);
    let report = check::check(&machine, |files| bar.set_position(files)).await;
    bar.finish_and_clear();
    let states = machine.stripe.status().await;
    let away = states.iter().filter(|s| s.state != StoreState::Up);
    let away: Vec<String> = away.map(|s| stores.places[usize::from(s.id.raw())].shown()).collect();
    let consensus = maps_json(&machine.maps.status());
    // Show the report before a failure to close damaged stores ends the command.
    let shown = report.context("check").and_then(|report| show(&report, &consensus, &away, as_json).map(|()| report));
    let stopped = machine.stop().await.context("close the stores");
    let report = shown?;
    stopped?;
    Ok(if report.problem_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The error of a failed start: either the check cannot be done as it was asked for, or the damage
/// is so great that no file can be reached.
fn explain(e: StartError, places: &[Location]) -> anyhow::Error {
    match e {
        StartError::Refused { .. } => anyhow::anyhow!(
            "{e}{}. If that is impossible, the index of all files is damaged beyond what parity can repair: restore everything \
             from a copy",
            crate::up::wanted(&e, places)
        ),
        StartError::Manager(_) | StartError::Stripe(_) | StartError::Root(_) => anyhow::anyhow!(
            "{e}: the index of all files is damaged beyond what parity can repair. Bring back missing stores and check \
             again; otherwise restore everything from a copy"
        ),
        StartError::OthersVote => usage(format!("other machines vote with this one: {USE_SCRUB}")),
        other => usage(other.to_string()),
    }
}

fn show(report: &Report, consensus: &Value, away: &[String], as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let value = json!({
            "files": report.file_count,
            "bytes": report.byte_count,
            "live_bytes": report.live_bytes,
            "consensus": consensus,
            "stores_away": away,
            "problems": report.problems,
            "problem_count": report.problem_count,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!("{} files, {} read back", report.file_count, crate::size::show(report.byte_count));
    println!("consensus: {}", maps_line(consensus));
    for place in away {
        println!("store {place} is not there or fails");
    }
    for problem in &report.problems {
        println!("problem: {problem}");
    }
    let left_out = report.problem_count - report.problems.len() as u64;
    match report.problem_count {
        0 => println!("no problems: every inode is reachable, every block readable, utilisation adds up"),
        n if left_out > 0 => println!("{n} problems, {left_out} of them not listed"),
        n => println!("{n} problems"),
    }
    if report.unreadable_count > 0 && !away.is_empty() {
        println!("what to do: bring the stores back that are missing, then check again");
    } else if report.unreadable_count > 0 {
        println!(
            "what to do: more is damaged than parity can repair. Restore the files named above from a copy; the others can be used, \
             and `starling scrub --repair` rebuilds what parity still covers"
        );
    }
    Ok(())
}
