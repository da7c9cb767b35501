//! The commands that talk to a serving process: down, sync, status, scrub.

use crate::args::Process;
use crate::control::{Request, ask, ask_process};
use crate::kept;
use crate::roaming_status::age;
use crate::size::show;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long `down` waits for the process to end, after it has committed everything.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// A store's report that is older than this is shown with its age.
const SHOWN_AGE_MS: u64 = 1000;

/// Whether a process is still running. Its first thread can end before others, and each thread
/// keeps the process's files open, so all must have ended. A zombie, whose parent does not wait for
/// it, has ended.
fn has_threads(process: &Value) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let is_zombie = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
    threads > 1 || threads == 1 && !is_zombie
}

/// `starling down`. When it returns, `up` can use the same folder again.
pub async fn down(process: &Process) -> anyhow::Result<ExitCode> {
    let answer = ask_process(process, Request::Down, |_| {}).await?;
    let deadline = Instant::now() + END_TIME_MAX;
    while has_threads(&answer["process"]) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let told = answer["told"].as_str().unwrap_or_default();
    match (&process.mountpoint, &process.data) {
        (Some(mountpoint), _) => println!("unmounted {}: {told}", mountpoint.display()),
        (None, data) => println!("ended {}: {told}", data.as_deref().unwrap_or(Path::new("")).display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// `starling sync`.
pub async fn sync(path: &Path, home: bool) -> anyhow::Result<ExitCode> {
    ask(path, Request::Sync { home }, |_| {}).await?;
    println!("{}: everything is {}", path.display(), if home { "home" } else { "committed" });
    Ok(ExitCode::SUCCESS)
}

/// The same as a line of text.
pub fn maps_line(maps: &Value) -> String {
    let reason = maps["reason"].as_str().map(|r| format!(" ({r})")).unwrap_or_default();
    let term = maps["term"].as_u64().map(|term| format!(", term {term}")).unwrap_or_default();
    format!("{}{reason}, maps of epoch {}{term}", maps["state"].as_str().unwrap_or("?"), maps["epoch"])
}

/// `starling status`.
pub async fn status(process: &Process, as_json: bool) -> anyhow::Result<ExitCode> {
    let s = ask_process(process, Request::Status, |_| {}).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&s)?);
        return Ok(ExitCode::SUCCESS);
    }
    if s.get("roaming").is_some() {
        crate::roaming_status::show_status(&s);
        return Ok(ExitCode::SUCCESS);
    }
    if s.get("node").is_some() {
        crate::node::status::show_status(&s);
        return Ok(ExitCode::SUCCESS);
    }
    show_core(&s);
    Ok(ExitCode::SUCCESS)
}

/// Shows what `status` says of the core as lines.
pub fn show_core(s: &Value) {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    let bytes = |v: &Value| v.as_u64().map_or("?".to_string(), show);
    println!(
        "file system   {}, parity {}, blocks of {}",
        text(&s["file_system"]),
        s["parity"],
        bytes(&s["block_size"])
    );
    if let Some(why) = s["read_only"].as_str() {
        println!("READ-ONLY     {why}; changes that were not synced cannot be: restart the mount");
    }
    kept::show_summary(&s["kept"]);
    for store in s["stores"].as_array().into_iter().flatten() {
        let read_only = if store["writable"] == json!(false) {
            ", takes no puts: its disk hangs, or failed (then its log says why, and it must be started again)"
        } else {
            ""
        };
        let damaged = match store["damaged"].as_u64() {
            Some(n) if n > 0 => format!(", {n} damaged reads"),
            _ => String::new(),
        };
        let age = match store["age_ms"].as_u64() {
            Some(ms) if ms >= SHOWN_AGE_MS => format!(", as of {} s ago", ms / 1000),
            _ => String::new(),
        };
        println!(
            "store {:<7} {}: {} of {} used, {} fragments{read_only}{damaged}{age}, {}",
            store["id"],
            text(&store["state"]),
            bytes(&store["used_bytes"]),
            bytes(&store["capacity_bytes"]),
            store["fragments"].as_u64().map_or("?".to_string(), |n| n.to_string()),
            text(&store["place"])
        );
    }
    println!("consensus     {}", maps_line(&s["consensus"]));
    let space = &s["space"];
    println!("space         {} of {} used", bytes(&space["used_bytes"]), bytes(&space["admitted_bytes"]));
    println!(
        "segments      {}: {} live, {} reclaimable (at the last checkpoint), {} parity",
        s["segments"],
        bytes(&space["live_bytes"]),
        bytes(&space["reclaimable_bytes"]),
        bytes(&space["parity_bytes"])
    );
    let redundancy = &s["redundancy"];
    let lacking = match redundancy["lacking_segments"].as_u64() {
        None => "unknown until all stores are in service and compared".to_string(),
        Some(0) => "whole".to_string(),
        Some(n) => {
            let left = redundancy["left_s"].as_u64().map(|left| format!(", {} left", age(&json!(left))));
            format!("{n} segments lack {}{}", bytes(&redundancy["lacking_bytes"]), left.unwrap_or_default())
        }
    };
    println!(
        "redundancy    {lacking}; {} in {} segments restored",
        bytes(&redundancy["restored_bytes"]),
        redundancy["restored_segments"]
    );
    if let Some(lost @ 1..) = redundancy["lost_segments"].as_u64() {
        println!(
            "lost          {lost} segments or more, when the stores were last compared; `starling fsck` names the files, after `down`; where several machines vote it cannot, and reads of these files fail with EIO"
        );
    }
    println!("uncommitted   {}", bytes(&s["uncommitted_bytes"]));
    let cache = &s["cache"];
    println!(
        "cache         {} of data: {} hits, {} from stores, {} of them rebuilt from parity; {} inodes, {} from managers",
        bytes(&cache["clean_bytes"]),
        cache["hits"],
        cache["misses"],
        cache["rebuilt"],
        cache["inodes"],
        cache["inode_misses"]
    );
    let cleaner = &s["cleaner"];
    println!(
        "cleaner       {} segments deleted empty, {} cleaned, {} moved",
        cleaner["deleted_segments"],
        cleaner["cleaned_segments"],
        bytes(&cleaner["moved_bytes"])
    );
}

/// `starling scrub`. Exit code 1 if any segment lacks redundancy, or could not be checked.
pub async fn scrub(process: &Process, repair: bool, as_json: bool) -> anyhow::Result<ExitCode> {
    let bar = if as_json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} segments, {msg}, {eta} left");
    bar.set_style(style?);
    let report = ask_process(process, Request::Scrub { repair }, |p| {
        bar.set_length(p["total"].as_u64().unwrap_or(0));
        bar.set_position(p["done"].as_u64().unwrap_or(0));
        bar.set_message(format!("{} bad", p["bad"]));
    })
    .await?;
    bar.finish_and_clear();
    let left = |key: &str| report[key].as_array().map_or(0, Vec::len);
    let (unrepaired, unreadable) = (left("unrepaired_segments"), left("unreadable_segments"));
    let uncertain = left("uncertain_segments");
    if as_json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!(
            "{} fragments of {} segments checked: {} missing, {} damaged, {} segments repaired",
            report["fragments"], report["segments"], report["missing"], report["damaged"], report["repaired_segments"]
        );
        if unrepaired > 0 && !repair {
            let which = match (&process.mountpoint, &process.data) {
                (Some(mountpoint), _) => mountpoint.display().to_string(),
                (None, data) => format!("--data {}", data.as_deref().unwrap_or(Path::new("")).display()),
            };
            println!("{unrepaired} segments lack redundancy: run `starling scrub --repair {which}`");
        } else if unrepaired > 0 {
            println!("{unrepaired} segments could not be repaired: look at the stores with `starling status`");
        }
        if uncertain > 0 {
            println!(
                "{} fragments could not be checked because their stores do not answer: scrub again when they do",
                report["unchecked"]
            );
        }
        if unreadable > 0 {
            println!(
                "{unreadable} segments cannot be read: bring back missing stores; `starling fsck` tells which files, after `down`; where several machines vote it cannot, and reads of these files fail with EIO"
            );
        }
    }
    Ok(if unrepaired + uncertain + unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
