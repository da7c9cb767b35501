//! `starling trace record`. The trace is made here, of what the process that serves the mount tells (see [`crate::recording`]).

use super::made::Made;
use crate::args;
use crate::control::{self, Request, ask};
use crate::recording::records_of;
use crate::usage;
use anyhow::Context;
use host::{Either, first};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// What has come so far.
struct Coming {
    made: Made,
    count: u64,
    /// What is wrong with it, or with where it is written.
    failed: Option<anyhow::Error>,
}

/// A trace on the mount would be of its own writing.
fn check_apart(mountpoint: &Path, out: &Path) -> anyhow::Result<()> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let device = |path: &Path| path.metadata().ok().map(|facts| facts.dev());
    match device(mountpoint).is_some_and(|mount| device(folder) == Some(mount)) {
        true => {
            Err(usage(format!("--out: {} is on the mount that is recorded: choose a place elsewhere", out.display())))
        }
        false => Ok(()),
    }
}

/// Records.
pub async fn run(asked: &args::Record) -> anyhow::Result<ExitCode> {
    let args::Record { mountpoint, out, seconds } = asked;
    control::check(mountpoint)?;
    check_apart(mountpoint, out)?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let made = Made::begin(out, "recorded on a mount")?;
    let coming = RefCell::new(Coming { made, count: 0, failed: None });
    let (number, failed) = (Cell::new(None), Notify::new());
    let style = ProgressStyle::with_template("{spinner} {elapsed}: {msg}")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    let told = |line: &Value| {
        if let Some(begun) = line["number"].as_u64() {
            number.set(Some(begun));
            crate::say(&format!("recording {}", mountpoint.display()));
            return bar.set_message("Ctrl-C ends it");
        }
        let mut coming = coming.borrow_mut();
        if coming.failed.is_none() {
            coming.failed = coming.take(line).err();
            bar.set_message(format!("{} reads, writes and removals; Ctrl-C ends it", coming.count));
            bar.tick();
        }
        if coming.failed.is_some() {
            failed.notify_one();
        }
    };
    let end = async {
        let time = async {
            match seconds {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(*seconds)).await,
                None => std::future::pending().await,
            }
        };
        first(first(first(interrupt.recv(), terminate.recv()), time), failed.notified()).await;
    };
    let recording = async {
        let mut recording = pin!(ask(mountpoint, Request::Record, told));
        match first(recording.as_mut(), end).await {
            Either::Left(answer) => Some(answer),
            // What cannot be written is not waited for.
            Either::Right(_) if coming.borrow().failed.is_some() => None,
            Either::Right(_) => {
                let number = number.get()?;
                // If it cannot be asked for, the process has ended, and the recording with it.
                let _ = ask(mountpoint, Request::EndRecord { number }, |_| {}).await;
                Some(recording.await)
            }
        }
    };
    let answer = recording.await;
    bar.finish_and_clear();
    let Coming { made, count, failed } = coming.into_inner();
    failed.map_or(Ok(()), Err)?;
    let answer = answer.context("it was ended before it began")?;
    if number.get().is_none() {
        answer.map_err(|error| usage(format!("{}: {error:#}", mountpoint.display())))?;
        anyhow::bail!("{}: nothing was recorded", mountpoint.display());
    }
    made.finish()?;
    crate::say(&format!("{count} reads, writes and removals are in {}", out.display()));
    let lost = answer.context("the recording was cut short; the trace has what was done before")?["lost"].as_u64();
    if let Some(lost) = lost.filter(|lost| *lost > 0) {
        eprintln!("note: {lost} more are not: they came faster than they could be written");
    }
    Ok(ExitCode::SUCCESS)
}

impl Coming {
    fn take(&mut self, line: &Value) -> anyhow::Result<()> {
        for record in
            records_of(line).context("the process that serves the mount says something else: is it another version?")?
        {
            self.made.add(&record)?;
            self.count += 1;
        }
        Ok(())
    }
}
