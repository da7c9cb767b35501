//! Processes that begin at the same time.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Outcome, parse_outcome};

const READY: &[u8] = b"ready\n";

/// Starts a process of `bench work` for each list of arguments, lets all begin at once, and returns
/// what each measured. Each calls [`wait_for_start`].
pub(super) fn run(all: &[Vec<String>]) -> Result<Vec<Outcome>> {
    let program = std::env::current_exe().context("find this program")?;
    let mut children: Vec<Child> = Vec::new();
    for arguments in all {
        let mut command = Command::new(&program);
        command.arg("work").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        children.push(command.spawn().context("start a process")?);
    }
    // Each process says on stdout that it is ready; only then do they begin.
    for child in &mut children {
        let stdout = child.stdout.as_mut().context("a child without stdout")?;
        stdout.read_exact(&mut [0; READY.len()]).context("wait for a process to be ready")?;
    }
    for child in &mut children {
        drop(child.stdin.take());
    }
    let ended = |child: Child| {
        let output = child.wait_with_output().context("wait for a process")?;
        ensure!(output.status.success(), "a process failed: {}", output.status);
        parse_outcome(&String::from_utf8_lossy(&output.stdout))
    };
    children.into_iter().map(ended).collect()
}

/// Says that this process is ready, and waits until all others are.
pub(super) fn wait_for_start() -> Result<()> {
    std::io::stdout().write_all(READY).and_then(|()| std::io::stdout().flush()).context("say that it is ready")?;
    std::io::stdin().read_to_end(&mut Vec::new()).context("wait for the start")?;
    Ok(())
}

/// The clock that all processes of the machine share.
pub fn monotonic_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a structure of the right type that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
