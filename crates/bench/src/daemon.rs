//! A serving process: starts it, waits until it says that it is ready, and ends it when dropped.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::check_interrupt;
use crate::report;

/// Longest time for a start, and for an end; beyond it, the process has failed.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// A serving process.
pub struct Daemon {
    child: Child,
    /// The line that said that it is ready.
    ready: String,
    /// From the start to that line.
    started_in: Duration,
}

impl Daemon {
    /// Starts the process, with its errors appended to `log`, and waits for a line of its output
    /// that begins with `ready`.
    pub fn start(command: &mut Command, log: &Path, ready: &str) -> Result<Daemon> {
        check_interrupt()?;
        let stderr = OpenOptions::new().create(true).append(true).open(log).context("create a log")?;
        // A group of its own: a ctrl-C is for this program, which then takes everything down.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let started = Instant::now();
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let mut daemon = Daemon { child, ready: String::new(), started_in: Duration::ZERO };
        let stdout = daemon.child.stdout.take().context("a process without stdout")?;
        let (send, receive) = mpsc::channel();
        // Reads to the end of the output, which comes with the end of the process.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        loop {
            match receive.recv_timeout(Duration::from_millis(100)) {
                Ok(line) if line.starts_with(ready) => {
                    (daemon.ready, daemon.started_in) = (line, started.elapsed());
                    return Ok(daemon);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    check_interrupt()?;
                    ensure!(started.elapsed() < DEADLINE, "{name} is not ready after {} s", DEADLINE.as_secs());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let log = fs::read_to_string(log).unwrap_or_default();
                    let end: Vec<&str> = log.lines().rev().take(3).collect();
                    bail!("{name} did not start; its log ends, backwards: {}", report::one_line(&end.join(" / ")));
                }
            }
        }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The line with which it became ready.
    pub fn ready(&self) -> &str {
        &self.ready
    }

    /// The time from its start until it was ready.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Waits until it has ended by itself. Fails if it does not end, or ends with a failure.
    pub fn ended(self) -> Result<()> {
        let status = self.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    fn wait(mut self) -> Result<ExitStatus> {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().context("wait for a process")? {
                return Ok(status);
            }
            ensure!(Instant::now() < until, "it still runs after {} s", DEADLINE.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends it SIGINT, and waits until it has ended. Its status does not count.
    pub fn interrupt(mut self) -> Result<()> {
        self.signal(libc::SIGINT)?;
        self.wait().map(drop)
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&mut self, signal: libc::c_int) -> Result<()> {
        if !self.has_ended()? {
            // SAFETY: kill takes plain numbers; the child has not been waited for, so its number is
            // its own.
            unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        }
        Ok(())
    }

    /// True if it does not run any more.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("look at a process")?.is_some())
    }

    /// Kills it as a crash would: data that it holds back are not written.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill a process")?;
        self.child.wait().context("wait for a process").map(drop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The child knows whether it was waited for, so this cannot hit another process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
