//! `starling hoard`: files that a roaming mount always keeps in its cache.

use crate::control::{Request, ask};
use crate::size::show;
use crate::usage;
use host::join_all;
use indicatif::{ProgressBar, ProgressStyle};
use roam::hoard::Walk;
use roam::replica::Replica;
use roam::{Client, Missing, Validation};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Longest wait for missing files when the user goes offline.
const READY_TIME_MAX: Duration = Duration::from_secs(30);

/// The hoarded paths of a volume, as JSON.
pub fn listed(replica: &Replica, prefix: &str) -> Vec<Value> {
    let path = |path: &[u8]| format!("{prefix}{}", String::from_utf8_lossy(path));
    replica.hoard().iter().map(|(of, priority)| json!({ "path": path(of), "priority": priority })).collect()
}

/// Fetches the rest of partly cached files before the user goes offline, for [`READY_TIME_MAX`] at
/// most. Reports how much is missing, and returns what is still missing in the end.
pub async fn get_ready(clients: &[Client], now: bool, progress: mpsc::Sender<Value>) -> Value {
    let shown = |left: &[Missing]| {
        let sum = |of: fn(&Missing) -> u64| left.iter().map(of).sum::<u64>();
        json!({ "files": sum(|left| left.files), "bytes": sum(|left| left.bytes) })
    };
    let left: Vec<Missing> = clients.iter().map(Client::missing).collect();
    if now {
        return shown(&left);
    }
    let left = Mutex::new(left);
    let all = clients.iter().enumerate().map(|(at, client)| {
        let (left, progress) = (&left, &progress);
        client.get_ready(READY_TIME_MAX, move |one| {
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            left[at] = one;
            // If the queue is full, a progress line is dropped.
            let _ = progress.try_send(shown(&left));
        })
    });
    shown(&join_all(all.collect()).await)
}

/// A spinner, shown while a command waits.
pub fn spinner() -> anyhow::Result<ProgressBar> {
    Ok(ProgressBar::no_length().with_style(ProgressStyle::with_template("{spinner} {msg}")?))
}

/// Shows how much is still to be fetched before the mount goes offline.
pub fn tell_missing(bar: &ProgressBar, left: &Value) {
    let bytes = show(left["bytes"].as_u64().unwrap_or(0));
    bar.set_message(format!("fetching missing parts of {} files: {bytes}; --now does not wait", left["files"]));
    bar.tick();
}

/// What could not be fetched before the mount went offline, in words.
pub fn still_missing(left: &Value) -> String {
    match left["files"].as_u64().unwrap_or(0) {
        0 => String::new(),
        files => {
            let bytes = show(left["bytes"].as_u64().unwrap_or(0));
            format!("; of {files} files that are open or hoarded, {bytes} are not cached")
        }
    }
}

/// Fetches the hoarded files of volumes, each given with the prefix of its paths, and reports
/// progress.
pub async fn serve_walk(volumes: Vec<(String, Client)>, progress: mpsc::Sender<Value>) -> Result<Value, String> {
    let so_far = Arc::new(Mutex::new(vec![(0, 0, 0); volumes.len()]));
    let walks = volumes.iter().enumerate().map(|(at, (_, client))| {
        let (progress, so_far, client) = (progress.clone(), so_far.clone(), client.clone());
        let tell = move |walk: &Walk| {
            let (files, bytes, cached) = {
                let mut all = so_far.lock().unwrap_or_else(PoisonError::into_inner);
                all[at] = (walk.files, walk.bytes, walk.cached);
                all.iter().fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2))
            };
            // If the queue is full, a progress line is dropped.
            let _ = progress.try_send(json!({ "files": files, "bytes": bytes, "cached": cached }));
        };
        async move { client.walk(tell).await }
    });
    let one_by_one = volumes.iter().any(|(_, client)| client.settings().validation != Validation::Volume);
    // All volumes at once, so that they share one validation question. One by one if the user chose
    // a validation to compare with.
    let walked: Vec<_> = match one_by_one {
        false => join_all(walks.collect()).await,
        true => {
            let mut walked = Vec::new();
            for walk in walks {
                walked.push(walk.await);
            }
            walked
        }
    };
    let walked = walked.into_iter().collect::<Result<Vec<Walk>, _>>();
    let walked = walked.map_err(|_| "the home cannot be reached: the cache has not changed")?;
    let sum = |of: fn(&Walk) -> u64| walked.iter().map(of).sum::<u64>();
    let missing = volumes.iter().zip(&walked).flat_map(|((prefix, _), walk)| {
        walk.missing.iter().map(move |path| format!("{prefix}{}", String::from_utf8_lossy(path)))
    });
    Ok(json!({
        "files": sum(|walk| walk.files),
        "bytes": sum(|walk| walk.bytes),
        "cached": sum(|walk| walk.cached),
        "missing": missing.collect::<Vec<_>>(),
        "complete": walked.iter().all(Walk::is_complete),
    }))
}

/// The root of the mount that a path is on, and the path without links.
pub fn mount_of(path: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let path = path.canonicalize().map_err(|e| usage(format!("{}: {e}", path.display())))?;
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let on = device(&path);
    let root = path.ancestors().take_while(|above| device(above) == on).last().unwrap_or(&path).to_owned();
    Ok((root, path))
}

/// A path relative to the root of its mount.
pub fn inside(path: &Path) -> anyhow::Result<String> {
    let (root, path) = mount_of(path)?;
    let inside = path.strip_prefix(&root).unwrap_or(Path::new(""));
    inside.to_str().map(str::to_string).ok_or_else(|| usage(format!("{}: a path in UTF-8 is wanted", path.display())))
}

/// `starling hoard add`.
pub async fn add(
    path: Option<PathBuf>,
    priority: u8,
    profile: Option<PathBuf>,
    mount: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    if let Some(path) = path {
        let name = inside(&path)?;
        ask(&path, Request::Hoard { path: name, priority: Some(priority) }, |_| {}).await?;
        println!("{} is hoarded with priority {priority}; `starling hoard walk` fetches it now", path.display());
    }
    if let (Some(profile), Some(mount)) = (profile, mount) {
        let text = std::fs::read_to_string(&profile).map_err(|e| usage(format!("{}: {e}", profile.display())))?;
        let entries = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let parsed = entries.map(|(i, line)| {
            let entry = line.trim().split_once(char::is_whitespace);
            let entry = entry.and_then(|(priority, path)| Some((priority.parse::<u8>().ok()?, path.trim())));
            entry.filter(|(priority, _)| (1..=100).contains(priority)).ok_or_else(|| {
                usage(format!("{}, line {}: write PRIORITY PATH, with a priority up to 100", profile.display(), i + 1))
            })
        });
        // Parse the whole file before hoarding anything.
        let parsed = parsed.collect::<anyhow::Result<Vec<_>>>()?;
        for (priority, path) in &parsed {
            let path = path.trim_matches('/').to_string();
            ask(&mount, Request::Hoard { path, priority: Some(*priority) }, |_| {}).await?;
        }
        println!("{} paths are hoarded; `starling hoard walk` fetches them now", parsed.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// `starling hoard remove`. The path may be of a file that no longer exists.
pub async fn remove(path: &Path) -> anyhow::Result<ExitCode> {
    let there = path.ancestors().find(|above| above.symlink_metadata().is_ok());
    let there = there.filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let gone = path.strip_prefix(there).unwrap_or(path);
    let gone = gone.to_str().ok_or_else(|| usage(format!("{}: a path in UTF-8 is wanted", path.display())))?;
    let name = [&inside(there)?[..], gone].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    ask(there, Request::Hoard { path: name, priority: None }, |_| {}).await?;
    println!("{} is not hoarded any more", path.display());
    Ok(ExitCode::SUCCESS)
}

/// `starling hoard list`.
pub async fn list(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = ask(path, Request::Hoarded, |_| {}).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let all = all.as_array().cloned().unwrap_or_default();
    if all.is_empty() {
        println!("nothing is hoarded");
    }
    for one in all {
        println!("{:>4}  /{}", one["priority"], one["path"].as_str().unwrap_or("?"));
    }
    Ok(ExitCode::SUCCESS)
}

/// `starling hoard walk`. Exit code 1 if some hoarded files are not cached.
pub async fn walk(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let bar = spinner()?;
    let told = |p: &Value| {
        let bytes = |field: &str| show(p[field].as_u64().unwrap_or(0));
        bar.set_message(format!("{} files, {} of {} cached", p["files"], bytes("cached"), bytes("bytes")));
        bar.tick();
    };
    let walk = ask(path, Request::Walk { path: inside(path)? }, told).await?;
    bar.finish_and_clear();
    let complete = walk["complete"] == json!(true);
    if as_json {
        println!("{}", serde_json::to_string_pretty(&walk)?);
    } else {
        println!("{} files, {} cached", walk["files"], show(walk["cached"].as_u64().unwrap_or(0)));
        for missing in walk["missing"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            println!("missing: /{missing}");
        }
        println!("{}", if complete { "you can unplug now" } else { "some hoarded files are not cached" });
    }
    Ok(ExitCode::from(u8::from(!complete)))
}
