//! The cost of maintenance by the amount of data: how long a round after one small change takes and
//! how much it writes, how long a start after kill -9 takes, and the memory.
//!
//! A process of its own makes each size, and each start is a process, so that memory is told apart
//! and a kill is a real one.

mod rig;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use cluster::machine::CoreMachine;
use serde::{Deserialize, Serialize};
use types::FileId;
use vfs::fs::{Cred, FileSystem, OpenFlags};

use crate::command;
use crate::output::{Output, preamble};
use crate::report::number;
use crate::roam::found::{Figure, Found, Table, largest, median};
use crate::site::{self, RunFolder};
use rig::Rig;

/// Number of rounds; their median counts.
const ROUNDS: usize = 21;
/// How often the status is asked for while a machine works.
const STATUS_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time for a status, in milliseconds.
const STATUS_MS_MAX: f64 = 100.0;
/// Largest ratio of a round's time with the most segments to that with the fewest: tables are
/// trees.
const ROUND_GROWTH_MAX: f64 = 3.0;
/// Most memory per segment, in bytes: two fragments in the stores, and its row in the table.
const SEGMENT_MEMORY_BYTES_MAX: f64 = 1024.0;
const FILES_PER_SEGMENT: u64 = 10;
const SECTION: &str = "scale";

/// The options of `bench scale`.
#[derive(Debug, Args)]
pub struct ScaleOptions {
    /// The most segments; the fewest are 10,000, and each size has ten times as many as the one
    /// before
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10_000..))]
    segments: u64,
    /// The most files; up to this number, there are ten per segment
    #[arg(long, value_name = "COUNT", default_value_t = 10_000_000)]
    files: u64,
    /// An existing folder on the local disk to work in
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// One process of `bench scale`.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Make a machine in a folder
    Make {
        /// The folder
        dir: PathBuf,
        /// Full segments
        #[arg(long)]
        segments: u64,
        /// Files in them
        #[arg(long)]
        files: u64,
    },
    /// Start the machine, make small changes with a round of maintenance after each, print the
    /// measurements, and be killed
    Run {
        /// The folder
        dir: PathBuf,
        /// The least number of its segments
        #[arg(long)]
        segments: u64,
    },
}

/// The results of a start and the rounds after it.
#[derive(Debug, Serialize, Deserialize)]
struct Ran {
    started_s: f64,
    /// Time from the start until all segments were known.
    known_s: f64,
    resident_bytes: u64,
    round_ms: Vec<f64>,
    round_bytes: Vec<f64>,
    status_ms_max: f64,
}

/// A size, and its results.
#[derive(Debug, Serialize)]
struct Row {
    segments: u64,
    files: u64,
    /// After a stop.
    first: Ran,
    /// After kill -9.
    again: Ran,
}

/// Measures and reports. Succeeds if no target figure was missed; quick sizes judge nothing.
pub fn run(options: &ScaleOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let quick = options.output.quick;
    let machine = site::machine(&options.dir)?;
    let folder = RunFolder::new(&options.dir, None, String::new())?;
    let most = if quick { 10_000 } else { options.segments };
    let mut rows = Vec::new();
    for segments in std::iter::successors(Some(10_000u64), |size| size.checked_mul(10)).take_while(|size| *size <= most)
    {
        command::check_interrupt()?;
        rows.push(measure(&folder, segments, (segments * FILES_PER_SEGMENT).min(options.files.max(segments)))?);
    }
    let found = found(rows)?;
    let text = format!("{} {}", preamble(quick, site::unix_time_s(), &machine, ""), found.markdown());
    println!("{text}");
    options.output.write_report(&found, &[(SECTION.to_owned(), text)])?;
    Ok(if found.missed() && !quick { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(folder: &RunFolder, segments: u64, files: u64) -> Result<Row> {
    let dir = folder.site().root.join(format!("scale-{segments}"));
    let program = std::env::current_exe().context("find this program")?;
    let part = |name: &str| {
        let mut part = Command::new(&program);
        part.args(["scale-part", name]).arg(&dir).args(["--segments", &segments.to_string()]);
        part
    };
    let made = part("make").args(["--files", &files.to_string()]).status().context("run this program")?;
    ensure!(made.success(), "a machine with {segments} segments could not be made: {made}");
    let started = || -> Result<Ran> {
        let done = part("run").stderr(Stdio::inherit()).output().context("run this program")?;
        let text = String::from_utf8_lossy(&done.stdout);
        serde_json::from_str(text.trim())
            .with_context(|| format!("a machine with {segments} segments: {}", done.status))
    };
    let row = Row { segments, files, first: started()?, again: started()? };
    eprintln!("scale: {row:?}");
    std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(row)
}

fn found(rows: Vec<Row>) -> Result<Found> {
    let header = [
        "segments",
        "files",
        "round, ms",
        "written in a round, KiB",
        "start after kill -9, s",
        "until all are known, s",
        "memory, MiB",
        "status, ms",
    ];
    let mut table = Table::new("One machine with two stores, by how much there is", header);
    for row in &rows {
        let (ran, kib) = (&row.again, median(&row.again.round_bytes) / 1024.0);
        let status = ran.status_ms_max.max(row.first.status_ms_max);
        let figures =
            [median(&ran.round_ms), kib, ran.started_s, ran.known_s, ran.resident_bytes as f64 / 1_048_576.0, status];
        table.row([row.segments.to_string(), row.files.to_string()].into_iter().chain(figures.map(number)));
    }
    let (fewest, most) = (rows.first().context("a size")?, rows.last().context("a size")?);
    let growth = |of: fn(&Ran) -> f64| of(&most.again) / of(&fewest.again);
    let more_bytes = most.again.resident_bytes.saturating_sub(fewest.again.resident_bytes) as f64;
    let more_segments = most.segments.saturating_sub(fewest.segments).max(1) as f64;
    let status = largest(rows.iter().flat_map(|row| [row.first.status_ms_max, row.again.status_ms_max]));
    let beside = |what: &str, at_most: f64, measured: f64, unit: &str| Figure::at_most(what, measured, at_most, unit);
    Ok(Found {
        conditions: format!(
            "Sizes are made by listing full segments in the stores' checkpoints, without their bytes, and by having the manager apply \
             what they hold. A round follows a file of 1 KiB that is synced: the median of {ROUNDS}. Memory is that after all segments \
             are known."
        ),
        figures: vec![
            beside(
                "a round with the most beside one with the fewest",
                ROUND_GROWTH_MAX,
                growth(|ran| median(&ran.round_ms)),
                " times",
            )
            .ours(),
            beside("what it writes, likewise", ROUND_GROWTH_MAX, growth(|ran| median(&ran.round_bytes)), " times")
                .ours(),
            beside("memory for each segment more", SEGMENT_MEMORY_BYTES_MAX, more_bytes / more_segments, " bytes")
                .ours(),
            beside("status", STATUS_MS_MAX, status, " ms"),
        ],
        tables: vec![table],
        samples: serde_json::to_value(&rows)?,
        ..Found::default()
    })
}

/// Does one part.
pub fn part(part: &Part) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    match part {
        Part::Make { dir, segments, files } => {
            command::catch_interrupts()?;
            runtime.block_on(async { Rig::new(dir)?.make(*segments, *files).await })?;
            Ok(ExitCode::SUCCESS)
        }
        Part::Run { dir, segments } => {
            let ran = runtime.block_on(run_machine(dir, *segments))?;
            println!("{}", serde_json::to_string(&ran)?);
            // SAFETY: kills this process, and nothing else.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn run_machine(dir: &Path, segments: u64) -> Result<Ran> {
    let begun = Instant::now();
    let machine = Rig::new(dir)?.start().await?;
    let started_s = begun.elapsed().as_secs_f64();
    let mut status_ms_max: f64 = 0.0;
    while machine.maintenance.done().segment_count < segments {
        status_ms_max = status_ms_max.max(status_ms(&machine).await);
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
    let known_s = begun.elapsed().as_secs_f64();
    let mut ran = Ran {
        started_s,
        known_s,
        resident_bytes: resident_bytes()?,
        round_ms: vec![],
        round_bytes: vec![],
        status_ms_max,
    };
    for round in 0..ROUNDS {
        create(&machine, &format!("file-{}-{round}", std::process::id())).await?;
        let (since, before) = (Instant::now(), written_bytes()?);
        machine.maintenance.tidy(false).await.context("a round")?;
        ran.round_ms.push(since.elapsed().as_secs_f64() * 1e3);
        ran.round_bytes.push((written_bytes()? - before) as f64);
        ran.status_ms_max = ran.status_ms_max.max(status_ms(&machine).await);
    }
    create(&machine, &format!("file-{}-last", std::process::id())).await?;
    Ok(ran)
}

/// The time of a `starling status`, in milliseconds.
async fn status_ms(machine: &CoreMachine) -> f64 {
    let since = Instant::now();
    std::hint::black_box((machine.maintenance.done(), machine.stripe.glance().await));
    since.elapsed().as_secs_f64() * 1e3
}

async fn create(machine: &CoreMachine, name: &str) -> Result<()> {
    let fs = &machine.client;
    let flags = OpenFlags { read: false, write: true, ..OpenFlags::default() };
    let (entry, handle) =
        fs.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, flags).await.context("create")?;
    let id = entry.attr.id;
    fs.write(&Cred::ROOT, id, handle, 0, &[7; 1024]).await.context("write")?;
    fs.fsync(id, handle, false).await.context("fsync")?;
    fs.release(id, handle, None).await.context("close")
}

/// A number of this process in a file of `/proc/self`.
fn own(file: &str, field: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).context("this process")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).with_context(|| field.to_owned())?;
    line.trim().trim_end_matches(" kB").parse().with_context(|| field.to_owned())
}

fn resident_bytes() -> Result<u64> {
    Ok(own("status", "VmRSS:")? << 10)
}

fn written_bytes() -> Result<u64> {
    own("io", "wchar:")
}
