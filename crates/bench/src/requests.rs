//! The number of FUSE requests of each operation of an application, with the do-nothing file system
//! and with Starling. For Starling also the number of messages between roles and of disk syncs.
//!
//! The do-nothing file system prints each request, and this program counts them. Starling counts by
//! itself: `starling status --json` has `fuse_requests` (an object: request name to count) and may
//! have `messages`, `disk_syncs` and `frames_sent` (numbers).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{self, Interrupts, check_interrupt};
use crate::mounts::Mounted;
use crate::report::{table_header, table_row};
use crate::scripted::Site;
use crate::target::{Target, TargetKind};

/// How often each operation is done; counts are divided by it. An occasional request shows as a
/// fraction.
const REPEATS: u32 = 20;

/// Requests that do not belong to an operation: the kernel forgets at any time, and mounts are not
/// measured.
const IGNORED: [&str; 5] = ["FORGET", "BATCH_FORGET", "INIT", "DESTROY", "INTERRUPT"];

/// An operation: its preparation, and the part that is counted.
struct Operation {
    title: &'static str,
    prepare: fn(&Path) -> Result<()>,
    /// Mount again in between, so that nothing is cached.
    cold: bool,
    act: fn(&Path) -> Result<()>,
}

const OPERATIONS: [Operation; 10] = [
    Operation { title: "create, write 1 KiB, close", prepare: nothing, cold: false, act: |dir| create(dir, false) },
    Operation {
        title: "create, write 1 KiB, fsync, close",
        prepare: nothing,
        cold: false,
        act: |dir| create(dir, true),
    },
    Operation {
        title: "stat, already seen",
        prepare: |dir| create(dir, false).and_then(|()| stat(dir)),
        cold: false,
        act: stat,
    },
    Operation { title: "stat, cold", prepare: |dir| create(dir, false), cold: true, act: stat },
    Operation { title: "open, read 1 KiB, close, cold", prepare: |dir| create(dir, false), cold: true, act: read },
    Operation { title: "rename", prepare: |dir| create(dir, false).and_then(|()| stat(dir)), cold: false, act: rename },
    Operation { title: "unlink", prepare: |dir| create(dir, false).and_then(|()| stat(dir)), cold: false, act: unlink },
    Operation { title: "mkdir", prepare: nothing, cold: false, act: mkdir },
    Operation { title: "write 1 MiB of a file written in order", prepare: nothing, cold: false, act: write_in_order },
    Operation {
        title: "open, list and close a directory of 100, cold",
        prepare: make_directories,
        cold: true,
        act: list_directories,
    },
];

/// The cost of an operation on a target, per time it is done; or counts since the mount.
#[derive(Clone, Debug, Default, PartialEq)]
struct Cost {
    requests: BTreeMap<String, f64>,
    others: BTreeMap<String, f64>,
}

impl Cost {
    fn minus(&self, earlier: &Cost) -> Cost {
        let minus = |now: &BTreeMap<String, f64>, earlier: &BTreeMap<String, f64>| {
            now.iter().map(|(name, n)| (name.clone(), n - earlier.get(name).copied().unwrap_or(0.0))).collect()
        };
        Cost { requests: minus(&self.requests, &earlier.requests), others: minus(&self.others, &earlier.others) }
    }
}

/// Counts that stand still except for the cost of reading them: `starling status` finds its server
/// by an extended attribute of the mount, and so makes a request itself.
#[derive(Debug)]
struct Reading {
    cost: Cost,
    of_reading: Cost,
    /// How often the counts were read.
    readings: u32,
}

/// Counts everything on the available targets, and returns the table as markdown.
pub fn table(site: &Site) -> Result<String> {
    let kinds = [TargetKind::FusePassthrough, TargetKind::FusePassthroughWriteback, TargetKind::Starling];
    let mut columns = Vec::new();
    let mut notes = String::new();
    for kind in kinds {
        match count_on(kind, site) {
            Ok(costs) => columns.push((kind, costs)),
            Err(error) => {
                check_interrupt()?;
                notes.push_str(&format!("\n{} was not counted: {error:#}\n", kind.title()));
            }
        }
    }
    if columns.is_empty() {
        bail!("nothing could be counted:{notes}");
    }
    Ok(markdown(&columns) + &notes)
}

fn markdown(columns: &[(TargetKind, Vec<Cost>)]) -> String {
    let mut out = String::new();
    let mut header = vec!["Operation".to_owned()];
    for (kind, costs) in columns {
        header.push(format!("{}, requests", kind.title()));
        header.extend(others(costs).into_iter().map(|name| format!("{}, {}", kind.title(), name.replace('_', " "))));
    }
    table_header(&mut out, &header);
    for (index, operation) in OPERATIONS.iter().enumerate() {
        let mut row = vec![operation.title.to_owned()];
        for (_, costs) in columns {
            let Some(cost) = costs.get(index) else { continue };
            row.push(requests_cell(&cost.requests));
            row.extend(others(costs).into_iter().map(|name| count_text(cost.others.get(name).copied().unwrap_or(0.0))));
        }
        table_row(&mut out, &row);
    }
    out
}

/// The counts besides requests that the target has.
fn others(costs: &[Cost]) -> Vec<&String> {
    let names: std::collections::BTreeSet<&String> = costs.iter().flat_map(|cost| cost.others.keys()).collect();
    names.into_iter().collect()
}

fn requests_cell(requests: &BTreeMap<String, f64>) -> String {
    let total: f64 = requests.values().sum();
    let parts: Vec<String> = requests.iter().map(|(name, count)| format!("{name} {}", count_text(*count))).collect();
    if parts.is_empty() { "0".to_owned() } else { format!("**{}**: {}", count_text(total), parts.join(", ")) }
}

fn count_text(count: f64) -> String {
    let text = format!("{count:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn count_on(kind: TargetKind, site: &Site) -> Result<Vec<Cost>> {
    if let Some(reason) = Target::unavailable(kind, site) {
        bail!("{reason}");
    }
    let log = site.root.join(format!("{kind}-requests"));
    let site = Site { request_log: Some(log.clone()), ..site.clone() };
    let mut target = Target::set_up(kind, &site)?;
    let counter = match (&site.starling, kind) {
        (Some(program), TargetKind::Starling) => {
            Counter::Status { program: program.clone(), mount_point: target.dir().to_owned(), counts: LOCAL_COUNTS }
        }
        _ => Counter::Log(log),
    };
    let dir = target.dir().to_owned();
    count_all(&mut target, &dir, &counter).with_context(|| kind.to_string())
}

fn count_all(on: &mut impl Mounted, dir: &Path, counter: &Counter) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for operation in &OPERATIONS {
        check_interrupt()?;
        costs.push(count(operation, on, dir, counter).with_context(|| operation.title)?);
    }
    Ok(costs)
}

/// For each operation on a mount of Starling that other nodes share: its title, its FUSE requests,
/// and the frames that the mount's process sends to other nodes.
pub fn of_node(on: &mut impl Mounted, mount_point: &Path, program: &Path) -> Result<Vec<[String; 3]>> {
    let counter =
        Counter::Status { program: program.to_owned(), mount_point: mount_point.to_owned(), counts: &[FRAMES_SENT] };
    let costs = count_all(on, mount_point, &counter)?;
    let cells = |(operation, cost): (&Operation, Cost)| {
        let frames = cost.others.get(FRAMES_SENT).copied().unwrap_or(f64::NAN);
        [operation.title.to_owned(), requests_cell(&cost.requests), count_text(frames)]
    };
    Ok(OPERATIONS.iter().zip(costs).map(cells).collect())
}

/// Counts an operation in the root of a mount, so that no path leads through a folder whose name
/// and attributes would cost requests too.
fn count(operation: &Operation, on: &mut impl Mounted, dir: &Path, counter: &Counter) -> Result<Cost> {
    in_process(operation, Phase::Prepare, dir)?;
    if operation.cold {
        on.make_cold()?;
    }
    let before = counter.settled()?;
    in_process(operation, Phase::Act, dir)?;
    let after = counter.settled()?;
    in_process(operation, Phase::Empty, dir)?;
    Ok(per_operation(&before, &after))
}

/// A phase of counting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Phase {
    /// Makes the preparation.
    Prepare,
    /// Does the operation.
    Act,
    /// Removes everything.
    Empty,
}

/// Longest time of a phase; beyond it, the file system hangs.
const PHASE_DEADLINE: Duration = Duration::from_secs(60);

/// Runs a phase in a process of its own, which can be killed if the file system hangs.
fn in_process(operation: &Operation, phase: Phase, dir: &Path) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    let phase = format!("{phase:?}").to_lowercase();
    command.args(["work", "operation", "--title", operation.title, "--phase", &phase]).arg(dir);
    command::run(&mut command, PHASE_DEADLINE, Interrupts::Obey).map(drop)
}

/// Runs a phase of the operation with that title in this process.
pub fn run_phase(title: &str, phase: Phase, dir: &Path) -> Result<()> {
    let operation = OPERATIONS.iter().find(|operation| operation.title == title);
    let operation = operation.with_context(|| format!("no operation {title:?}"))?;
    match phase {
        Phase::Prepare => (operation.prepare)(dir),
        Phase::Act => (operation.act)(dir),
        Phase::Empty => empty(dir),
    }
}

/// The counts between two readings, without the cost of the readings.
fn per_operation(before: &Reading, after: &Reading) -> Cost {
    let counted = after.cost.minus(&before.cost);
    let mut cost = Cost::default();
    for (name, count) in &counted.requests {
        let own = after.of_reading.requests.get(name).copied().unwrap_or(0.0) * f64::from(after.readings);
        if count - own > 0.0 && !IGNORED.contains(&name.as_str()) {
            cost.requests.insert(name.clone(), (count - own) / f64::from(REPEATS));
        }
    }
    cost.others = counted.others.iter().map(|(name, count)| (name.clone(), count / f64::from(REPEATS))).collect();
    cost
}

/// The counts besides requests of a file system in one process.
const LOCAL_COUNTS: &[&str] = &["messages", "disk_syncs"];
/// The count of frames that a process has sent to other nodes.
const FRAMES_SENT: &str = "frames_sent";

/// The source of a target's counts.
enum Counter {
    /// The output of the file system that does nothing.
    Log(PathBuf),
    /// `starling status --json`.
    Status {
        /// The program.
        program: PathBuf,
        /// The mount to ask about.
        mount_point: PathBuf,
        /// The counts besides requests.
        counts: &'static [&'static str],
    },
}

impl Counter {
    fn read(&self) -> Result<Cost> {
        match self {
            Counter::Log(path) => {
                let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
                Ok(Cost { requests: requests_in_log(&String::from_utf8_lossy(&text)), ..Cost::default() })
            }
            Counter::Status { program, mount_point, counts } => {
                let mut command = Command::new(program);
                command.arg("status").arg(mount_point).arg("--json");
                counts_in_status(&command::run(&mut command, Duration::from_secs(20), Interrupts::Obey)?, counts)
            }
        }
    }

    /// Reads the counts until they stand still: a RELEASE arrives after close has returned.
    fn settled(&self) -> Result<Reading> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut last = self.read()?;
        let mut of_reading = None;
        for readings in 2.. {
            std::thread::sleep(Duration::from_millis(150));
            let now = self.read()?;
            let more = now.minus(&last);
            if of_reading.as_ref().is_some_and(|before: &Cost| before.requests == more.requests) {
                return Ok(Reading { cost: now, of_reading: more, readings });
            }
            if Instant::now() > until {
                break;
            }
            of_reading = Some(more);
            last = now;
        }
        bail!("requests keep coming although nothing is done")
    }
}

/// Counts lines such as `unique: 8, opcode: LOOKUP (1), nodeid: 1, insize: 42, pid: 11455`.
fn requests_in_log(text: &str) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let name = line
            .strip_prefix("unique: ")
            .and_then(|rest| rest.split_once("opcode: "))
            .and_then(|(_, rest)| rest.split_once(" ("));
        if let Some((name, number)) = name {
            // A request without a name in libfuse, as newer kernels send.
            let name = match name {
                "???" => format!("opcode {}", number.split(')').next().unwrap_or_default()),
                _ => name.to_owned(),
            };
            *counts.entry(name).or_insert(0.0) += 1.0;
        }
    }
    counts
}

fn counts_in_status(text: &str, others: &[&str]) -> Result<Cost> {
    let status: Value = serde_json::from_str(text).context("`starling status --json` is not JSON")?;
    let Some(Value::Object(by_name)) = status.get("fuse_requests") else {
        bail!("`starling status --json` has no object `fuse_requests`");
    };
    let mut cost = Cost::default();
    for (name, count) in by_name {
        let count = count.as_f64().with_context(|| format!("fuse_requests.{name} is not a number"))?;
        cost.requests.insert(name.to_uppercase(), count);
    }
    for &name in others {
        if let Some(count) = status.get(name).and_then(Value::as_f64) {
            cost.others.insert(name.to_owned(), count);
        }
    }
    Ok(cost)
}

fn nothing(_dir: &Path) -> Result<()> {
    Ok(())
}

fn each(dir: &Path, stem: &str, act: impl Fn(&Path) -> std::io::Result<()>) -> Result<()> {
    for index in 0..REPEATS {
        let path = dir.join(format!("{stem}{index}"));
        act(&path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn create(dir: &Path, fsync: bool) -> Result<()> {
    each(dir, "file", |path| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&[b'a'; 1024])?;
        if fsync { file.sync_all() } else { Ok(()) }
    })
}

fn stat(dir: &Path) -> Result<()> {
    each(dir, "file", |path| fs::symlink_metadata(path).map(drop))
}

fn read(dir: &Path) -> Result<()> {
    // One read(2), as the operation says; a second one would only find the end of the file.
    each(dir, "file", |path| File::open(path)?.read_exact(&mut [0; 1024]))
}

fn rename(dir: &Path) -> Result<()> {
    each(dir, "file", |path| fs::rename(path, path.with_extension("renamed")))
}

fn unlink(dir: &Path) -> Result<()> {
    each(dir, "file", |path| fs::remove_file(path))
}

fn mkdir(dir: &Path) -> Result<()> {
    each(dir, "dir", |path| fs::create_dir(path))
}

fn write_in_order(dir: &Path) -> Result<()> {
    let mib = vec![7; 1 << 20];
    let mut file = File::create(dir.join("large")).context("create the large file")?;
    for _ in 0..REPEATS {
        file.write_all(&mib).context("write the large file")?;
    }
    Ok(())
}

fn make_directories(dir: &Path) -> Result<()> {
    each(dir, "dir", |path| {
        fs::create_dir(path)?;
        for index in 0..100 {
            File::create(path.join(format!("entry{index}")))?;
        }
        Ok(())
    })
}

fn list_directories(dir: &Path) -> Result<()> {
    each(dir, "dir", |path| {
        for entry in fs::read_dir(path)? {
            entry?;
        }
        Ok(())
    })
}

fn empty(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).context("list the mount")? {
        let path = entry.context("list the mount")?.path();
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_counted_by_request() {
        let log = "FUSE library version: 3.14\n\
            unique: 8, opcode: LOOKUP (1), nodeid: 1, insize: 42, pid: 11455\n\
            LOOKUP /a\n   unique: 8, error: -2 (No such file or directory), outsize: 16\n\
            unique: 10, opcode: LOOKUP (1), nodeid: 1, insize: 42, pid: 11455\n\
            unique: 12, opcode: ??? (52), nodeid: 2, insize: 83, pid: 11455\n";
        let counts = requests_in_log(log);
        assert_eq!(counts, BTreeMap::from([("LOOKUP".to_owned(), 2.0), ("opcode 52".to_owned(), 1.0)]));
    }

    #[test]
    fn every_operation_finds_what_it_needs_and_can_be_cleared_away() {
        let dir = tempfile::tempdir().unwrap();
        for operation in &OPERATIONS {
            for phase in [Phase::Prepare, Phase::Act, Phase::Empty] {
                run_phase(operation.title, phase, dir.path()).unwrap();
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{}", operation.title);
        }
        assert!(run_phase("nothing of that name", Phase::Act, dir.path()).is_err());
    }

    #[test]
    fn status_without_counts_is_an_error_and_extras_are_optional() {
        assert!(counts_in_status("{}", LOCAL_COUNTS).unwrap_err().to_string().contains("fuse_requests"));
        assert!(counts_in_status("nonsense", LOCAL_COUNTS).is_err());
        let cost =
            counts_in_status(r#"{"fuse_requests":{"lookup":3},"messages":4,"frames_sent":1}"#, LOCAL_COUNTS).unwrap();
        assert_eq!(cost.requests["LOOKUP"], 3.0);
        assert_eq!(cost.others, BTreeMap::from([("messages".to_owned(), 4.0)]));
    }

    #[test]
    fn cost_is_per_operation_and_without_what_is_ignored() {
        let counts = |write, forget, getxattr| Cost {
            requests: [("WRITE", write), ("FORGET", forget), ("GETXATTR", getxattr)]
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
            others: BTreeMap::new(),
        };
        let reading = |cost, readings| Reading { cost, of_reading: counts(0.0, 0.0, 1.0), readings };
        // Four readings after the operations, each with the cost of one GETXATTR.
        let before = reading(counts(5.0, 1.0, 3.0), 3);
        let after = reading(counts(5.0 + f64::from(REPEATS) * 1.5, 9.0, 7.0), 4);
        let cost = per_operation(&before, &after);
        assert_eq!(cost.requests, BTreeMap::from([("WRITE".to_owned(), 1.5)]));
        assert_eq!(requests_cell(&cost.requests), "**1.5**: WRITE 1.5");
    }
}
