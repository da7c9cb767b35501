//! A lock of flock(2) that several programs wait for.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::at_once::{self, monotonic_seconds};
use super::{Outcome, outcome};

/// Takes the lock at each path in a process of its own, all at once: `entered_C_N_s` and
/// `left_C_N_s` of the Nth time that client C had it.
pub(super) fn run(paths: &[PathBuf], times: u32, hold_us: u32) -> Result<Outcome> {
    for path in paths {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("create {}", path.display()))?;
    }
    let arguments = |path: &PathBuf| {
        let [times, hold] = [times, hold_us].map(|number| number.to_string());
        let path = path.display().to_string();
        ["flock-part", &path, "--times", &times, "--hold-us", &hold].map(str::to_owned).to_vec()
    };
    let mut all = Outcome::new();
    for (client, part) in at_once::run(&paths.iter().map(arguments).collect::<Vec<_>>())?.into_iter().enumerate() {
        for (name, value) in part {
            let named = name.split_once('_').map(|(what, rest)| format!("{what}_{client}_{rest}"));
            all.insert(named.context("a result without a number")?, value);
        }
    }
    Ok(all)
}

/// Takes the lock so many times: `entered_N_s` and `left_N_s`.
pub(super) fn part(path: &Path, times: u32, hold: Duration) -> Result<Outcome> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    at_once::wait_for_start()?;
    let mut measured = Outcome::new();
    for time in 0..times {
        lock(&file, libc::LOCK_EX).with_context(|| format!("lock {}", path.display()))?;
        let entered = monotonic_seconds();
        let until = Instant::now() + hold;
        while Instant::now() < until {
            std::thread::yield_now();
        }
        let left = monotonic_seconds();
        lock(&file, libc::LOCK_UN).with_context(|| format!("unlock {}", path.display()))?;
        measured.extend(outcome([(&*format!("entered_{time}_s"), entered), (&*format!("left_{time}_s"), left)]));
    }
    Ok(measured)
}

fn lock(file: &File, operation: libc::c_int) -> std::io::Result<()> {
    // SAFETY: flock takes plain numbers; the descriptor is open.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
