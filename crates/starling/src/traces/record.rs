//! `starling trace record`. This command writes the trace; the process that serves the mount sends
//! the records (see [`crate::recording`]).

use super::made::Made;
use crate::args;
use crate::control::{self, Request, ask};
use crate::names::folder_of;
use crate::recording::records_of;
use crate::usage;
use anyhow::Context;
use host::{Either, first};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use trace::format::Origin;

/// The records that have arrived.
struct Coming {
    made: Made,
    count: u64,
    /// Why a record was invalid, or could not be written.
    failed: Option<anyhow::Error>,
}

/// Refuses an output file on the mount: the trace would record its own writing.
fn check_apart(mountpoint: &Path, out: &Path) -> anyhow::Result<()> {
    let folder = folder_of(out);
    let device = |path: &Path| path.metadata().ok().map(|facts| facts.dev());
    match device(mountpoint).is_some_and(|mount| device(folder) == Some(mount)) {
        true => {
            Err(usage(format!("--out: {} is on the mount that is recorded: choose a place elsewhere", out.display())))
        }
        false => Ok(()),
    }
}

/// The mount point of the mount that `path` is on.
fn mount_of(path: &Path) -> PathBuf {
    let device = |path: &Path| path.metadata().ok().map(|facts| facts.dev());
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let of_mount = path.ancestors().take_while(|above| device(above) == device(&path));
    of_mount.last().unwrap_or(&path).to_owned()
}

/// Whether this process ignores SIGHUP and outlives its terminal, as under `nohup`.
fn is_hangup_ignored() -> bool {
    // SAFETY: the structure has only numbers, for which zero is valid.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call sets nothing, and writes to a local variable.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Runs `starling trace record`.
pub async fn run(asked: &args::Record) -> anyhow::Result<ExitCode> {
    let args::Record { mountpoint, out, seconds } = asked;
    control::check(mountpoint)?;
    check_apart(mountpoint, out)?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let mut hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup()).context("signals")?) };
    let made = Made::begin(out, &format!("recorded on {}", mount_of(mountpoint).display()))?;
    let coming = RefCell::new(Coming { made, count: 0, failed: None });
    let (number, begun_us, failed) = (Cell::new(None), Cell::new(None), Notify::new());
    let style = ProgressStyle::with_template("{spinner} {elapsed}: {msg}")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    let told = |line: &Value| {
        if let Some(begun) = line["number"].as_u64() {
            number.set(Some(begun));
            begun_us.set(line["begun_us"].as_u64());
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
        let hangup = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let signals = first(first(interrupt.recv(), terminate.recv()), hangup);
        first(first(signals, time), failed.notified()).await;
    };
    let recording = async {
        let mut recording = pin!(ask(mountpoint, Request::Record, told));
        match first(recording.as_mut(), end).await {
            Either::Left(answer) => Some(answer),
            // Writing failed: do not wait for the rest.
            Either::Right(_) if coming.borrow().failed.is_some() => None,
            Either::Right(_) => {
                let number = number.get()?;
                // If this fails, the process has ended, and the recording with it.
                let _ = ask(mountpoint, Request::EndRecord { number }, |_| {}).await;
                Some(recording.await)
            }
        }
    };
    let answer = recording.await;
    bar.finish_and_clear();
    let Coming { made, count, failed } = coming.into_inner();
    failed.map_or(Ok(()), Err)?;
    let answer = answer.context("the recording was ended before it began")?;
    if number.get().is_none() {
        answer.map_err(|error| usage(format!("{}: {error:#}", mountpoint.display())))?;
        anyhow::bail!("{}: nothing was recorded", mountpoint.display());
    }
    let lost_count = answer.as_ref().map_or(0, |answer| answer["lost"].as_u64().unwrap_or_default());
    made.finish_with(&Origin { begun_us: begun_us.get(), lost_count, is_cut_short: answer.is_err() })?;
    crate::say(&format!("{count} reads, writes and removals are in {}", out.display()));
    answer.context("the recording was cut short; the trace has the records up to then, and is marked as cut short")?;
    if lost_count > 0 {
        // The terminal may be gone.
        let _ = writeln!(io::stderr(), "note: {lost_count} more were lost: they came too fast to be written");
    }
    Ok(ExitCode::SUCCESS)
}

impl Coming {
    fn take(&mut self, line: &Value) -> anyhow::Result<()> {
        for record in
            records_of(line).context("the process that serves the mount sent no records: is it another version?")?
        {
            self.made.add(&record)?;
            self.count += 1;
        }
        Ok(())
    }
}
