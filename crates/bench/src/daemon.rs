//! A process that serves: started, waited for until it says that it is ready, and gone when this is
//! dropped.

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

/// Starting takes no longer than this, or has failed. Neither does ending.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// See the module's header.
pub struct Daemon {
    child: Child,
    /// The line that said that it is ready.
    ready: String,
    /// From the start to that line.
    started_in: Duration,
}

impl Daemon {
    /// Starts it, with its errors appended to `log`, and waits for a line of its output that begins
    /// with `ready`.
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
        // Reads to the end, which comes with the process's.
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

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The line that said that it is ready.
    pub fn ready(&self) -> &str {
        &self.ready
    }

    /// How long it took from the start until it was ready.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// Waits until it has ended by itself. Fails if it does not, and if it failed.
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
    pub fn interrupt(self) -> Result<()> {
        // SAFETY: kill takes plain numbers; the child has not been waited for, so its number is its
        // own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGINT) };
        self.wait().map(drop)
    }

    /// Ends it as a crash would: nothing that it holds back is written.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("kill a process")?;
        self.child.wait().context("wait for a process").map(drop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended and was waited for cannot be meant: the child knows.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
