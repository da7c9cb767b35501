//! The processes that belong to one target, found through `/proc`: what they have used, and how to
//! end them.
//!
//! A target's processes are those with its marker in their environment, those that its script named
//! in a file (daemons that overwrite their environment), and all descendants of both. The marker is
//! unique to this run and target, so a process that this program did not start cannot be among
//! them. A named process is remembered with its start time, so a reused number is not mistaken for
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the environment variable that marks a process as belonging to a target.
pub const MARKER_VARIABLE: &str = "STARLING_BENCH_TARGET";

/// The processes of one target.
pub struct Processes {
    marker: String,
    named_in: PathBuf,
    named: BTreeSet<(i32, u64)>,
}

/// The resources that a set of processes has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time, of live processes and of their children that ended.
    pub cpu_seconds: f64,
    /// The sum of the processes' largest resident sizes since the last [`Processes::reset_peak`].
    pub peak_bytes: u64,
}

impl Processes {
    /// The processes marked with `marker`, and those whose numbers are in the file `named_in`, one
    /// per line.
    pub fn new(marker: String, named_in: PathBuf) -> Processes {
        Processes { marker, named_in, named: BTreeSet::new() }
    }

    /// The marker's value, for [`MARKER_VARIABLE`].
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// Reads the file of named processes. Call it right after the script that wrote it, while the
    /// numbers are fresh.
    pub fn learn_named(&mut self) {
        let text = std::fs::read_to_string(&self.named_in).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.trim().parse().ok()) {
            if let Some(stat) = Stat::read(pid) {
                self.named.insert((pid, stat.start_ticks));
            }
        }
    }

    /// The target's live processes.
    pub fn list(&self) -> Vec<i32> {
        let all = all_stats();
        let environment = format!("{MARKER_VARIABLE}={}", self.marker);
        let roots: BTreeSet<i32> = all
            .iter()
            .filter(|(pid, stat)| {
                self.named.contains(&(**pid, stat.start_ticks)) || has_environment(**pid, environment.as_bytes())
            })
            .map(|(pid, _)| *pid)
            .collect();
        with_descendants(roots, &all).into_iter().filter(|pid| *pid != std::process::id() as i32).collect()
    }

    /// The resources that the target's live processes have used so far.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        // SAFETY: sysconf takes a plain number and has no effect.
        let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        for pid in self.list() {
            let Some(stat) = Stat::read(pid) else { continue };
            usage.cpu_seconds += stat.cpu_ticks as f64 / ticks_per_second;
            usage.peak_bytes += memory_bytes(pid, "VmHWM").unwrap_or(0);
        }
        usage
    }

    /// Resets [`Usage::peak_bytes`] to the present size.
    pub fn reset_peak(&self) {
        for pid in self.list() {
            // A process may have ended meanwhile; then there is nothing to reset.
            let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
        }
    }

    /// Ends all of the target's processes: asks, waits a little, then kills. Returns how many had
    /// to be asked.
    pub fn end(&self) -> usize {
        let asked = self.list();
        for (signal, patience) in [(libc::SIGTERM, Duration::from_secs(5)), (libc::SIGKILL, Duration::from_secs(5))] {
            let until = Instant::now() + patience;
            loop {
                let left = self.list();
                if left.is_empty() {
                    return asked.len();
                }
                for pid in left {
                    // SAFETY: kill takes plain numbers; `list` names only processes of this target.
                    unsafe { libc::kill(pid, signal) };
                }
                if Instant::now() >= until {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        asked.len()
    }
}

/// The fields of `/proc/PID/stat` that are needed here.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: i32,
    cpu_ticks: u64,
    start_ticks: u64,
}

impl Stat {
    /// `None` if there is no such process, or if it has ended and was not yet waited for.
    fn read(pid: i32) -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name is in parentheses and may itself contain spaces and parentheses.
        let rest = text.rsplit_once(") ")?.1;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            cpu_ticks: number(14)? + number(15)? + number(16)? + number(17)?,
            start_ticks: number(22)?,
        })
    }
}

fn all_stats() -> BTreeMap<i32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, Stat::read(pid)?))
        })
        .collect()
}

fn with_descendants(mut found: BTreeSet<i32>, all: &BTreeMap<i32, Stat>) -> BTreeSet<i32> {
    loop {
        let before = found.len();
        let children: Vec<i32> =
            all.iter().filter(|(_, stat)| found.contains(&stat.parent)).map(|(pid, _)| *pid).collect();
        found.extend(children);
        if found.len() == before {
            return found;
        }
    }
}

fn has_environment(pid: i32, wanted: &[u8]) -> bool {
    let bytes = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

/// A size in `/proc/PID/status`: `VmRSS` is the resident size, `VmHWM` its peak. `None` if there is
/// no such process.
pub fn memory_bytes(pid: i32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn stat_survives_a_name_with_parentheses() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 0 0 0 0 0 10 20 1 2 20 0 1 0 555 0 0";
        assert_eq!(Stat::parse(text), Some(Stat { parent: 3, cpu_ticks: 33, start_ticks: 555 }));
        assert_eq!(Stat::parse("7 (a) S 3"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn marked_processes_and_their_descendants_are_found_and_ended() {
        let marker = format!("test-{}", std::process::id());
        let processes = Processes::new(marker, PathBuf::from("/nonexistent"));
        let mut shell = Command::new("sh");
        // The grandchild has lost the marker, and is found as a descendant.
        shell.args(["-c", "env -i sleep 1000; true"]).env(MARKER_VARIABLE, processes.marker());
        let mut child = shell.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while processes.list().len() < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(processes.list().contains(&(child.id() as i32)));
        assert_eq!(processes.list().len(), 2);
        assert!(processes.usage().peak_bytes > 0);
        processes.end();
        child.wait().unwrap();
        assert!(processes.list().is_empty());
    }
}
