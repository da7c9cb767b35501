//! What a machine had not synced when its session was over: kept aside, so that users lose nothing
//! silently. `starling kept`: lists and forgets it.
//!
//! `writer`: the folders with what is kept.

mod writer;

use crate::names::{get, shown};
use crate::roaming_status::age;
use crate::{size, usage};
use client::unsynced::Unsynced;
use cluster::aside::Aside;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stripe::Stripe;
use tokio::sync::{mpsc, oneshot};
use writer::{Kept, Number};

/// Names of files that are logged if they cannot be kept, at most.
const LOGGED_MAX: usize = 20;
/// How long after stores did not answer they are asked again for what copies lack.
const READ_PAUSE: Duration = Duration::from_secs(10);

/// What [`KeptAside`] is to do, in order.
enum Work {
    Keep(Unsynced),
    Settle(u64, Arc<Stripe>),
    /// Tell when everything before is done.
    Tell(oneshot::Sender<()>),
}

/// Keeps in a data folder what sessions had not synced.
pub struct KeptAside(mpsc::UnboundedSender<Work>);

impl KeptAside {
    /// Keeps in this data folder, which the caller has locked.
    pub fn start(data: &Path) -> Arc<KeptAside> {
        if let Err(e) = writer::clear_unfinished(data) {
            eprintln!("warning: what an earlier process did not finish keeping is left: {e:#}");
        }
        let (sender, work) = mpsc::unbounded_channel();
        tokio::spawn(keep_all(data.to_path_buf(), work));
        Arc::new(KeptAside(sender))
    }

    /// Waits until everything that is to be kept is durable.
    pub async fn flush(&self) {
        let (tell, told) = oneshot::channel();
        if self.0.send(Work::Tell(tell)).is_ok() {
            let _ = told.await;
        }
    }
}

impl Aside for KeptAside {
    fn keep(&self, unsynced: Unsynced) {
        if self.0.send(Work::Keep(unsynced)).is_err() {
            tracing::error!("changes that were not synced are lost: nothing is kept any more");
        }
    }

    fn settle(&self, through: u64, stripe: Arc<Stripe>) {
        // Without a worker nothing was kept.
        let _ = self.0.send(Work::Settle(through, stripe));
    }
}

async fn keep_all(data: PathBuf, mut work: mpsc::UnboundedReceiver<Work>) {
    // What may count, and what is known to be lost and may lack bytes that are only in the log.
    let (mut unsettled, mut unread): (Vec<Kept>, Vec<Kept>) = Default::default();
    let (mut way, mut last) = (None, 0);
    loop {
        let waits = if unread.is_empty() { Duration::MAX } else { READ_PAUSE };
        match tokio::time::timeout(waits, work.recv()).await {
            Ok(None) => return,
            Ok(Some(Work::Keep(unsynced))) => {
                // The session is over, and so is the way.
                way = None;
                unsettled.extend(keep(&data, last, unsynced).await);
                last = unsettled.last().map_or(last, |kept| kept.number);
            }
            Ok(Some(Work::Settle(through, stripe))) => {
                way = Some(stripe);
                unread.extend(unsettled.drain(..).filter_map(|kept| settle(kept, through)));
            }
            Ok(Some(Work::Tell(tell))) => {
                let _ = tell.send(());
                continue;
            }
            Err(_) => {}
        }
        let Some(stripe) = &way else { continue };
        let mut still = Vec::new();
        for mut kept in unread {
            match kept.read_missing(stripe).await {
                Ok(true) => {}
                Ok(false) => still.push(kept),
                Err(e) => tracing::error!("kept {}: {e:#}", kept.number),
            }
        }
        unread = still;
    }
}

/// Leaves out what counts. `None` if nothing is left.
fn settle(mut kept: Kept, through: u64) -> Option<Kept> {
    let (number, before) = (kept.number, kept.count());
    match tokio::task::block_in_place(|| kept.settle(through)) {
        Ok(true) => {
            let counts = before.saturating_sub(kept.count());
            tracing::warn!("kept {number}: of {before} changes {counts} have come in time");
            Some(kept)
        }
        Ok(false) => {
            tracing::warn!("kept {number}: all changes have come in time; nothing is kept of them");
            None
        }
        Err(e) => {
            tracing::error!("kept {number}: {e:#}");
            None
        }
    }
}

/// Keeps what a session had not synced. If that is impossible, says what is lost.
async fn keep(data: &Path, last: Number, unsynced: Unsynced) -> Option<Kept> {
    let of_files = unsynced.files.iter().filter_map(|file| file.path.as_ref());
    let paths = of_files.chain(unsynced.names.iter().map(|name| &name.path));
    let paths: Vec<String> = paths.take(LOGGED_MAX).map(|path| shown(OsStr::from_bytes(&path.path))).collect();
    let (folder, count) = (data.to_path_buf(), unsynced.count());
    let written = tokio::task::spawn_blocking(move || Kept::write(&folder, last, unsynced)).await;
    let written = written.map_err(anyhow::Error::from).and_then(|written| written);
    match written {
        Ok(kept) => {
            let data = data.display();
            tracing::warn!("{count} changes that were not synced are kept: see `starling kept list --data {data}`");
            Some(kept)
        }
        Err(e) => {
            let paths = paths.join(", ");
            tracing::error!("{count} changes that were not synced are lost, as they cannot be kept: {e:#}: {paths}");
            None
        }
    }
}

/// Keeps what a client had not synced whose process is about to end. Returns what to tell the user.
pub async fn keep_last(data: &Path, unsynced: Unsynced) -> &'static str {
    match unsynced.is_empty() {
        true => "",
        false => match keep(data, 0, unsynced).await {
            Some(_) => "; what was not synced is kept",
            None => "; what was not synced is lost",
        },
    }
}

/// How many sessions there are of which something is kept.
fn count(data: &Path) -> usize {
    writer::numbers(data).map_or(0, |numbers| numbers.len())
}

/// What `status` shows, as JSON.
pub fn summary(data: &Path) -> Value {
    let mut summary = json!({ "sessions": count(data) });
    crate::names::put(&mut summary, "data", data.as_os_str().as_bytes());
    summary
}

/// Shows it as a line, if something is kept.
pub fn show_summary(summary: &Value) {
    let data = get(summary, "data").map(|data| shown(OsStr::from_bytes(&data))).unwrap_or_default();
    match summary["sessions"].as_u64().unwrap_or(0) {
        0 => {}
        count => {
            let sessions = if count == 1 { "a session that has".into() } else { format!("{count} sessions that have") };
            println!("KEPT          what was not synced of {sessions} ended: `starling kept list --data {data}`");
        }
    }
}

/// What to add to an error if something is kept.
pub fn hint(data: &Path) -> String {
    match count(data) {
        0 => String::new(),
        _ => format!(": see `starling kept list --data {}`", data.display()),
    }
}

/// `starling kept list`.
pub fn list(data: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    check(data)?;
    let mut all = Vec::new();
    for number in writer::numbers(data)? {
        let folder = writer::folder_of(data).join(number.to_string());
        // One that is damaged does not hide the others.
        let about = writer::about(data, number);
        let mut about = about.unwrap_or_else(|e| json!({ "trouble": format!("{e:#}") }));
        about["kept"] = json!(number);
        crate::names::put(&mut about, "folder", folder.as_os_str().as_bytes());
        all.push((folder, about));
    }
    if as_json {
        let all: Vec<Value> = all.into_iter().map(|(_, about)| about).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        println!("nothing is kept: no session ended before everything was synced, or it was forgotten");
    }
    for (folder, about) in all {
        if let Some(trouble) = about["trouble"].as_str() {
            println!("kept {}: it cannot be read: {trouble}; look into {}", about["kept"], shown(folder));
            continue;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let ago = json!(now.saturating_sub(about["ended"].as_u64().unwrap_or(0)));
        println!("kept {}: changes that were not synced when a session ended, {} ago", about["kept"], age(&ago));
        let lines = about["files"].as_array().into_iter().flatten().map(|file| file_line(&folder, file));
        let lines = lines.chain(about["names"].as_array().into_iter().flatten().map(name_line));
        lines.for_each(|line| println!("  {line}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn path(of: &Value) -> String {
    let path = get(of, "path").map(|path| shown(OsStr::from_bytes(&path)));
    path.unwrap_or_else(|| format!("(file {}, whose name is not known)", of["number"]))
}

/// What to say of a change that the file system may have.
fn doubt(of: &Value) -> &'static str {
    if of["is_lost"] == json!(true) { "" } else { "; the file system may have this change" }
}

fn file_line(folder: &Path, file: &Value) -> String {
    let (path, doubt, length) = (path(file), doubt(file), size::show(file["size"].as_u64().unwrap_or(0)));
    if let Some(trouble) = file["trouble"].as_str() {
        return format!("changed   {path}, {length}: its contents could not be copied: {trouble}{doubt}");
    }
    let Some(copy) = get(file, "copy") else {
        let mode = file["mode"].as_u64().unwrap_or(0);
        return format!(
            "changed   {path}: only its attributes: mode {mode:o}, owner {}:{}{doubt}",
            file["uid"], file["gid"]
        );
    };
    let part = if file["is_whole"] == json!(true) { "" } else { ", only the parts that were changed" };
    let lacks = file["lacks"].as_array().into_iter().flatten();
    let lacks = match lacks.filter_map(|piece| piece[1].as_u64()).sum::<u64>() {
        0 => String::new(),
        bytes => format!(", {} of it missing", size::show(bytes)),
    };
    let copy = shown(folder.join(OsStr::from_bytes(&copy)));
    format!("changed   {path}, {length}: {copy}{part}{lacks}{doubt}")
}

fn name_line(name: &Value) -> String {
    let what = name["kind"].as_str().map(|kind| format!(", a {kind}")).unwrap_or_default();
    let target = get(name, "target").map(|target| format!(" to {}", shown(OsStr::from_bytes(&target))));
    let did = name["did"].as_str().unwrap_or("?");
    format!("{did:<8}  {}{what}{}{}", path(name), target.unwrap_or_default(), doubt(name))
}

/// `starling kept forget`.
pub fn forget(data: &Path, number: Number) -> anyhow::Result<ExitCode> {
    check(data)?;
    if !writer::numbers(data)?.contains(&number) {
        return Err(usage(format!("there is no kept {number}: see `starling kept list --data {}`", data.display())));
    }
    writer::forget(&writer::folder_of(data).join(number.to_string()))?;
    println!("kept {number} is removed");
    Ok(ExitCode::SUCCESS)
}

/// Refuses what is no data folder.
fn check(data: &Path) -> anyhow::Result<()> {
    match data.is_dir() {
        true => Ok(()),
        false => Err(usage(format!("{} is no folder: give the data folder of the machine", data.display()))),
    }
}
