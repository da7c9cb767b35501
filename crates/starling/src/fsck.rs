//! `starling fsck`: checks a file system that is not running.

use crate::ask::{maps_json, maps_line};
use crate::folder::Folder;
use crate::usage;
use anyhow::Context;
use cluster::check::{self, Report};
use cluster::machine::{INDEX_RANGE_LEN, Machine, Run};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

const CACHE_BYTES: u64 = 256 << 20;

/// Exit code 1 if anything is wrong.
pub async fn run(data: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let folder = Folder::open(data, false)?;
    let stores = folder.stores()?.ok_or_else(|| usage(format!("{} holds no file system", data.display())))?;
    let host = host::real::host(tokio::runtime::Handle::current()).context("host")?;
    let places = folder.places(&host, &stores)?;
    let run =
        Run { cache_bytes: CACHE_BYTES, root_mode: 0o755, root_uid: 0, root_gid: 0, index_range_len: INDEX_RANGE_LEN };
    let machine = Machine::start(host, &places, &folder.consensus()?, run).await.map_err(|e| usage(e.to_string()))?;
    let bar = if as_json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
    bar.set_style(ProgressStyle::with_template("{spinner} {pos} files checked, {elapsed}")?);
    let report = check::check(&machine, |files| bar.set_position(files)).await;
    bar.finish_and_clear();
    let consensus = maps_json(&machine.maps.status());
    machine.stop().await.context("close the stores")?;
    let report = report.context("check")?;
    show(&report, &consensus, as_json)?;
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(report: &Report, consensus: &Value, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let value = json!({
            "files": report.file_count,
            "bytes": report.byte_count,
            "live_bytes": report.live_bytes,
            "consensus": consensus,
            "problems": report.problems,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!("{} files, {} read back", report.file_count, crate::size::show(report.byte_count));
    println!("consensus: {}", maps_line(consensus));
    for problem in &report.problems {
        println!("problem: {problem}");
    }
    match report.problems.len() {
        0 => println!("no problems: every inode is reachable, every block readable, utilisation adds up"),
        n => println!("{n} problems"),
    }
    Ok(())
}
