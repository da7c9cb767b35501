//! Watches a program that uses a mount: every call that it has begun and ended, as it says.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::judge::Call;
use crate::command::check_interrupt;

/// How often a line is looked for that is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Longest time until a killed program is gone, unless it waits for a mount that does not answer.
const KILL_DEADLINE: Duration = Duration::from_secs(1);

/// A program on a node. Dropping it kills it.
pub struct Watched {
    node: usize,
    child: Child,
    stdin: Option<ChildStdin>,
    heard: Arc<Mutex<Heard>>,
}

/// What a program has said.
#[derive(Default)]
pub struct Heard {
    /// All calls; only the last one may lack its end.
    pub calls: Vec<Call>,
    /// Other lines.
    pub lines: Vec<String>,
    /// True if nothing more comes.
    pub has_ended: bool,
}

impl Heard {
    fn hear(&mut self, node: usize, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (word, time, rest) = (words.next(), words.next().and_then(|time| time.parse().ok()), words.next());
        match (word, time) {
            (Some("begin"), Some(begun_s)) => {
                let kind = rest.unwrap_or_default().to_owned();
                self.calls.push(Call { node, kind, begun_s, ended_s: None, error: None });
            }
            (Some("end"), Some(ended_s)) => {
                if let Some(call) = self.calls.last_mut() {
                    (call.ended_s, call.error) = (Some(ended_s), rest.map(str::to_owned));
                }
            }
            _ => self.lines.push(line.to_owned()),
        }
    }
}

impl Watched {
    /// Starts `bench survive-part ARGUMENTS` for a node.
    pub fn start(node: usize, arguments: &[String]) -> Result<Watched> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.arg("survive-part").args(arguments).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start a program that uses a mount")?;
        let stdout = child.stdout.take().context("a process without stdout")?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let hears = Arc::clone(&heard);
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.for_each(|line| lock(&hears).hear(node, &line));
            lock(&hears).has_ended = true;
        });
        Ok(Watched { node, stdin: child.stdin.take(), child, heard })
    }

    /// The node on whose mount it works.
    pub fn node(&self) -> usize {
        self.node
    }

    /// What it has said so far.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }

    /// Writes a line to its stdin.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        stdin.write_all(format!("{line}\n").as_bytes()).context("tell a program")
    }

    /// Waits for a line that begins with `word`, and returns the rest of it. Fails at the deadline,
    /// or if the program ends before.
    pub fn wait_for(&self, word: &str, deadline: Duration) -> Result<String> {
        let until = Instant::now() + deadline;
        loop {
            check_interrupt()?;
            let heard = self.heard();
            if let Some(rest) = heard.lines.iter().find_map(|line| line.strip_prefix(word)) {
                return Ok(rest.trim_start().to_owned());
            }
            if heard.has_ended {
                bail!("the program has ended");
            }
            if Instant::now() > until {
                let call = heard.calls.last().filter(|call| call.ended_s.is_none());
                let within = call.map_or_else(|| "no call".to_owned(), |call| call.kind.clone());
                bail!("nothing is said for {} s, within {within}", deadline.as_secs());
            }
            drop(heard);
            std::thread::sleep(LOOK_PERIOD);
        }
    }

    /// Lets it end after its call.
    pub fn let_end(&mut self) {
        self.stdin = None;
    }

    /// Waits until it has ended; false at the deadline.
    pub fn ends_within(&mut self, deadline: Duration) -> Result<bool> {
        let until = Instant::now() + deadline;
        while self.child.try_wait().context("wait for a program")?.is_none() || !self.heard().has_ended {
            check_interrupt()?;
            if Instant::now() > until {
                return Ok(false);
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        Ok(true)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The child knows whether it was waited for, so this cannot hit another process.
        let _ = self.child.kill();
        let until = Instant::now() + KILL_DEADLINE;
        // A program that waits for a mount dies when the mount is aborted, and not before.
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(LOOK_PERIOD);
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_other_lines_are_told_apart() {
        let mut heard = Heard::default();
        for line in
            ["begin 1.5 fsync", "end 2.5", "begin 3 open", "end 3.5 No such file", "bad a is missing", "begin 4 read"]
        {
            heard.hear(2, line);
        }
        let call = |kind: &str, begun_s, ended_s, error: Option<&str>| Call {
            node: 2,
            kind: kind.to_owned(),
            begun_s,
            ended_s,
            error: error.map(str::to_owned),
        };
        assert_eq!(
            heard.calls,
            [
                call("fsync", 1.5, Some(2.5), None),
                call("open", 3.0, Some(3.5), Some("No such file")),
                call("read", 4.0, None, None)
            ]
        );
        assert_eq!(heard.lines, ["bad a is missing"]);
    }
}
