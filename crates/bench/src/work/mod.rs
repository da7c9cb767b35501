//! The workloads. Each runs as a process of its own (`bench work NAME ...`), so that its memory and
//! CPU time do not mix with the measuring program's. It prints its measurements as one line of
//! JSON.
//!
//! A workload knows nothing of targets: it gets a folder and behaves like an ordinary program in
//! it. Any error ends it, because a number from a workload that failed halfway means nothing.

mod at_once;
mod directory;
mod files;
mod flock;
mod git;
mod hand_over;
mod lock;
mod many;
mod overwrite;
mod postmark;
mod probe;
mod project;
mod random;
mod steady;
mod stream;
mod touch;
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::requests::{self, Phase};

pub use at_once::monotonic_seconds;
pub use hand_over::Then;
pub use overwrite::BLOCK_BYTES;
pub use random::Random;

/// The measurements of a workload: names (which carry their unit) and numbers.
pub type Outcome = BTreeMap<String, f64>;

/// A workload with its parameters.
#[derive(Debug, Subcommand)]
pub enum Work {
    /// Create, write and close files of 1 KiB: `files_per_s`
    Create {
        /// Folder that is made, and holds a folder per process
        dir: PathBuf,
        /// How many files, shared out evenly among the processes
        #[arg(long, default_value_t = 2048)]
        files: u32,
        /// Processes that create at once
        #[arg(long, default_value_t = 1)]
        processes: u32,
        /// fsync each file before it is closed
        #[arg(long)]
        fsync: bool,
    },
    /// One process of `create`: starts when its stdin ends
    #[command(hide = true)]
    CreatePart {
        /// Existing folder
        dir: PathBuf,
        /// How many files
        #[arg(long)]
        files: u32,
        /// The number of the first
        #[arg(long, default_value_t = 0)]
        first: u32,
        /// fsync each file before it is closed
        #[arg(long)]
        fsync: bool,
    },
    /// Create, write and close files of 1 KiB in existing folders at once, by a process each, under
    /// different names: `files_per_s`
    CreateAtOnce {
        /// The folders; they may be one, through several mounts
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// How many files, shared out evenly
        #[arg(long, default_value_t = 2048)]
        files: u32,
    },
    /// Read what `create` with one process made: `files_per_s`
    Read {
        /// The folder given to `create`
        dir: PathBuf,
        /// How many files there are
        #[arg(long, default_value_t = 2048)]
        files: u32,
    },
    /// Unlink what `create` with one process made: `files_per_s`
    Unlink {
        /// The folder given to `create`
        dir: PathBuf,
        /// How many files there are
        #[arg(long, default_value_t = 2048)]
        files: u32,
    },
    /// Rename what `create` with one process made: `files_per_s`
    Rename {
        /// The folder given to `create`
        dir: PathBuf,
        /// How many files there are
        #[arg(long, default_value_t = 2048)]
        files: u32,
    },
    /// Make a tree of small files that look like source code, always the same
    MakeTree {
        /// Folder that is made
        dir: PathBuf,
        /// How many files
        #[arg(long, default_value_t = 2000)]
        files: u32,
    },
    /// Copy a tree with `cp -r`: `seconds`
    CopyTree {
        /// The tree
        source: PathBuf,
        /// The copy, which must not exist
        target: PathBuf,
    },
    /// Remove a tree with `rm -rf`: `seconds`
    RemoveTree {
        /// The tree
        dir: PathBuf,
    },
    /// Stat and list a tree that has been seen: `stats_per_s`, `entries_per_s`
    Walk {
        /// The tree
        dir: PathBuf,
    },
    /// `ls -lR` of a tree that has been seen, again and again: `times_per_s`
    ListLong {
        /// The tree
        dir: PathBuf,
    },
    /// PostMark: `seconds`, `transactions_per_s`
    Postmark {
        /// Folder that is made, and removed again
        dir: PathBuf,
        /// Files to begin with
        #[arg(long, default_value_t = 500)]
        files: u32,
        /// Transactions
        #[arg(long, default_value_t = 2000)]
        transactions: u32,
    },
    /// Write a file in order, 1 MiB at a time, and fsync it: `mb_per_s` (megabytes of 10^6)
    WriteStream {
        /// The file
        file: PathBuf,
        /// Its size in MiB
        #[arg(long, default_value_t = 512)]
        mib: u32,
    },
    /// Read a file in order, 1 MiB at a time, and check its content: `mb_per_s`
    ReadStream {
        /// A file made by `write-stream`
        file: PathBuf,
    },
    /// Append 4 KiB and fsync, repeatedly: `p50_us`, `p99_us`
    FsyncLatency {
        /// Existing folder
        dir: PathBuf,
        /// How often
        #[arg(long, default_value_t = 500)]
        samples: u32,
        /// Meanwhile write a large file without pause
        #[arg(long)]
        beside_stream: bool,
    },
    /// Make, fsync and read files of 16 KiB without a pause: `operations_per_s`, `p50_us`, `p99_us`
    Steady {
        /// Folder that is made
        dir: PathBuf,
        /// For how long
        #[arg(long)]
        seconds: u64,
        /// Programs that do so at once
        #[arg(long, default_value_t = 1)]
        programs: u32,
    },
    /// Set the time of one file of `make-files` after the other: `changes`, `longest_s`,
    /// `longest_ended_unix_s`
    TouchFiles {
        /// The folder given to `make-files`
        dir: PathBuf,
        /// A file that is made when the first change begins
        #[arg(long)]
        begun: PathBuf,
        /// For how long
        #[arg(long)]
        seconds: u64,
    },
    /// Create, list and remove many empty files in one directory: `create_per_s`, `list_per_s`,
    /// `remove_per_s`
    Directory {
        /// Folder that is made, and removed again
        dir: PathBuf,
        /// How many files
        #[arg(long, default_value_t = 1_000_000)]
        entries: u32,
    },
    /// Make files, this many per directory, and fsync the folder: `files_per_s`
    MakeFiles {
        /// Folder that is made
        dir: PathBuf,
        /// How many files
        #[arg(long)]
        files: u32,
        /// Size of each in bytes
        #[arg(long, default_value_t = 0)]
        bytes: u32,
        /// Files per directory
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        per_dir: u32,
    },
    /// List and stat everything below a folder: `files`
    StatFiles {
        /// The folder
        dir: PathBuf,
    },
    /// List folders, and stat and read everything below them: `files`, `bytes`, `seconds`
    ReadTree {
        /// The folders
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
    },
    /// Write a file in order, in blocks of 64 KiB, and fsync it: `seconds`
    Fill {
        /// The file
        file: PathBuf,
        /// Its size in blocks
        #[arg(long)]
        blocks: u64,
    },
    /// Overwrite blocks of what `fill` made at random, with an fsync after every 50: `writes`,
    /// `seconds`
    Overwrite {
        /// The file
        file: PathBuf,
        /// Its size in blocks
        #[arg(long, value_parser = clap::value_parser!(u64).range(10..))]
        blocks: u64,
        /// Overwrites that were made before
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Overwrites to make
        #[arg(long)]
        writes: u64,
        /// Nine of ten go to a tenth of the blocks
        #[arg(long)]
        hot: bool,
        /// End after this time, though not all are made
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        seconds: u64,
    },
    /// Compare all bytes of a file with what `fill` and `overwrite`, or `fill-up`, wrote: `bytes`
    Check {
        /// The file
        file: PathBuf,
        /// Its size
        #[arg(long)]
        bytes: u64,
        /// Overwrites that were made
        #[arg(long, default_value_t = 0)]
        writes: u64,
        /// As given to `overwrite`
        #[arg(long)]
        hot: bool,
    },
    /// Write a new file until there is no space left, which write must report, and not fsync or
    /// close: `bytes`
    FillUp {
        /// The file
        file: PathBuf,
    },
    /// Remove a file and `fill` another one, repeatedly until there is room for it: `seconds`
    MakeRoom {
        /// The file that is removed
        remove: PathBuf,
        /// The file that is written
        file: PathBuf,
        /// Its size in blocks
        #[arg(long)]
        blocks: u64,
        /// Give up after this time
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        seconds: u64,
    },
    /// What statvfs says of a file system: `total_bytes`, `available_bytes`
    Space {
        /// Any folder of it
        dir: PathBuf,
    },
    /// Make a project in C, always the same: `files`
    MakeProject {
        /// Folder that is made
        dir: PathBuf,
        /// Sources
        #[arg(long, default_value_t = 357)]
        sources: u32,
        /// Headers
        #[arg(long, default_value_t = 103)]
        headers: u32,
        /// Sources that are compiled; each of the others is included by one of them
        #[arg(long, default_value_t = 168)]
        units: u32,
    },
    /// Build what `make-project` made: `seconds`
    Build {
        /// The project
        dir: PathBuf,
    },
    /// Remove what `build` made: `seconds`
    Clean {
        /// The project
        dir: PathBuf,
    },
    /// Edit the first sources of a project: `files`
    Edit {
        /// The project
        dir: PathBuf,
        /// How many sources
        #[arg(long)]
        files: u32,
    },
    /// Make a bare repository of a project, always the same: `files`, `commits`
    MakeRepository {
        /// Folder that is made
        dir: PathBuf,
        /// Sources
        #[arg(long, default_value_t = 357)]
        sources: u32,
        /// Headers
        #[arg(long, default_value_t = 103)]
        headers: u32,
        /// Commits; each but the first edits some sources
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        commits: u32,
    },
    /// Clone a repository with git, as from another machine: `seconds`
    GitClone {
        /// The repository
        source: PathBuf,
        /// The clone, which must not exist
        target: PathBuf,
    },
    /// `git status` of a clone: `seconds`
    GitStatus {
        /// The clone
        dir: PathBuf,
    },
    /// `git add -A` and `git commit` in a clone: `seconds`
    GitCommit {
        /// The clone
        dir: PathBuf,
    },
    /// Edit some sources of a project, build and clean, repeatedly: `seconds`
    Session {
        /// The project
        dir: PathBuf,
        /// How often
        #[arg(long)]
        rounds: u32,
        /// Sources that are edited each time, always others
        #[arg(long)]
        edits: u32,
    },
    /// The Andrew benchmark with a project: seconds of each phase and `seconds` of all phases
    Andrew {
        /// The project
        source: PathBuf,
        /// Folder that is made
        target: PathBuf,
    },
    /// Make, stat, read, rename and remove small files, each timed: `operations_per_s`, `mean_ms`,
    /// `p50_ms`, `p99_ms`, `max_ms`
    Probe {
        /// Folder that is made
        dir: PathBuf,
        /// Seconds to go on
        #[arg(long, default_value_t = 5)]
        seconds: u32,
    },
    /// List each folder of a folder once, each timed, as `probe`
    ListEach {
        /// The folder
        dir: PathBuf,
    },
    /// Time each changing operation: `create_ms`, `setattr_ms` and so on
    Operations {
        /// Folder that is made
        dir: PathBuf,
        /// How often each
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        times: u32,
    },
    /// Take a lock that several clients compete for, repeatedly: `entered_N_s` and `left_N_s` of
    /// each time, `tries`, `lost`
    Lock {
        /// Existing folder, the same for all
        dir: PathBuf,
        /// The client's number
        #[arg(long)]
        client: u32,
        /// How often it takes the lock
        #[arg(long, default_value_t = 10)]
        times: u32,
        /// How long it keeps the lock
        #[arg(long, value_name = "MILLISECONDS", default_value_t = 10_000)]
        hold: u32,
        /// How long it waits before it tries again
        #[arg(long, value_name = "MILLISECONDS", default_value_t = 1_000)]
        pause: u32,
        /// End after this time, even if the lock was taken fewer times
        #[arg(long, value_name = "SECONDS", default_value_t = 1_700)]
        seconds: u32,
    },
    /// Use a file of 4 KiB through two mounts in turn: `write_p50_us`, `then_p50_us`, also `p99`
    /// and `max`
    HandOver {
        /// The file's two paths
        #[arg(required = true, num_args = 2)]
        paths: Vec<PathBuf>,
        /// How often
        #[arg(long, default_value_t = 1000)]
        rounds: u32,
        /// What the other side does after each write
        #[arg(long, value_name = "WHAT")]
        then: Then,
    },
    /// Take a lock of flock(2) by a process per path, all at once: `entered_C_N_s`, `left_C_N_s`
    Flock {
        /// The file's paths
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// How often each process takes it
        #[arg(long, default_value_t = 300)]
        times: u32,
        /// How long it keeps the lock
        #[arg(long, value_name = "MICROSECONDS", default_value_t = 1000)]
        hold_us: u32,
    },
    /// One process of `flock`: starts when its stdin ends
    #[command(hide = true)]
    FlockPart {
        /// The file
        path: PathBuf,
        /// How often it takes the lock
        #[arg(long)]
        times: u32,
        /// How long it keeps the lock, in microseconds
        #[arg(long)]
        hold_us: u32,
    },
    /// A phase of an operation whose requests are counted
    #[command(hide = true)]
    Operation {
        /// Root of the mount
        dir: PathBuf,
        /// The operation
        #[arg(long)]
        title: String,
        /// The phase
        #[arg(long)]
        phase: Phase,
    },
}

impl Work {
    /// Runs the workload and returns its measurements.
    pub fn run(&self) -> Result<Outcome> {
        match self {
            Work::Create { dir, files, processes, fsync } => files::create(dir, *files, *processes, *fsync),
            Work::CreatePart { dir, files, first, fsync } => files::create_part(dir, *files, *first, *fsync),
            Work::CreateAtOnce { dirs, files } => files::create_at_once(dirs, *files),
            Work::Read { dir, files } => files::read(dir, *files),
            Work::Unlink { dir, files } => files::unlink(dir, *files),
            Work::Rename { dir, files } => files::rename(dir, *files),
            Work::MakeTree { dir, files } => tree::make(dir, *files),
            Work::CopyTree { source, target } => tree::copy(source, target),
            Work::RemoveTree { dir } => tree::remove(dir),
            Work::Walk { dir } => tree::walk(dir),
            Work::ListLong { dir } => tree::list_long(dir),
            Work::Postmark { dir, files, transactions } => postmark::run(dir, *files, *transactions),
            Work::WriteStream { file, mib } => stream::write(file, *mib),
            Work::ReadStream { file } => stream::read(file),
            Work::FsyncLatency { dir, samples, beside_stream } => {
                stream::fsync_latency(dir, *samples as usize, *beside_stream)
            }
            Work::Steady { dir, seconds, programs } => steady::run(dir, Duration::from_secs(*seconds), *programs),
            Work::Directory { dir, entries } => directory::run(dir, *entries),
            Work::MakeFiles { dir, files, bytes, per_dir } => many::make(dir, *files, *bytes, *per_dir),
            Work::TouchFiles { dir, begun, seconds } => touch::run(dir, begun, Duration::from_secs(*seconds)),
            Work::StatFiles { dir } => many::stat(dir),
            Work::ReadTree { dirs } => many::read(dirs),
            Work::Fill { file, blocks } => overwrite::fill(file, *blocks),
            &Work::Overwrite { ref file, blocks, from, writes, hot, seconds } => {
                let what = overwrite::Overwrites { blocks, from, writes, hot, seconds_max: seconds };
                overwrite::overwrite(file, &what)
            }
            Work::Check { file, bytes, writes, hot } => overwrite::check(file, *bytes, *writes, *hot),
            Work::FillUp { file } => overwrite::fill_up(file),
            Work::MakeRoom { remove, file, blocks, seconds } => overwrite::make_room(remove, file, *blocks, *seconds),
            Work::Space { dir } => overwrite::space(dir),
            Work::MakeProject { dir, sources, headers, units } => project::make(dir, *sources, *headers, *units),
            Work::Build { dir } => project::build(dir),
            Work::Clean { dir } => project::clean(dir),
            Work::Edit { dir, files } => project::edit_all(dir, *files, "Edited."),
            Work::MakeRepository { dir, sources, headers, commits } => git::make(dir, *sources, *headers, *commits),
            Work::GitClone { source, target } => git::clone(source, target),
            Work::GitStatus { dir } => git::status(dir),
            Work::GitCommit { dir } => git::commit(dir),
            Work::Session { dir, rounds, edits } => project::session(dir, *rounds, *edits),
            Work::Andrew { source, target } => project::andrew(source, target),
            Work::Probe { dir, seconds } => probe::probe(dir, *seconds),
            Work::ListEach { dir } => probe::list_each(dir),
            Work::Operations { dir, times } => probe::operations(dir, *times),
            &Work::Lock { ref dir, client, times, hold, pause, seconds } => {
                let [hold, pause] = [hold, pause].map(|ms| Duration::from_millis(ms.into()));
                lock::run(dir, &lock::Use { client, times, hold, pause, time_max: Duration::from_secs(seconds.into()) })
            }
            Work::HandOver { paths, rounds, then } => hand_over::run(paths, *rounds, *then),
            Work::Flock { paths, times, hold_us } => flock::run(paths, *times, *hold_us),
            Work::FlockPart { path, times, hold_us } => {
                flock::part(path, *times, Duration::from_micros((*hold_us).into()))
            }
            Work::Operation { dir, title, phase } => requests::run_phase(title, *phase, dir).map(|()| Outcome::new()),
        }
    }

    /// Runs the workload and prints its measurements.
    pub fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string(&self.run()?)?);
        Ok(())
    }
}

/// Reads what [`Work::print`] printed.
pub fn parse_outcome(text: &str) -> Result<Outcome> {
    serde_json::from_str(text.trim()).with_context(|| format!("a workload printed {text:?}"))
}

fn outcome<const N: usize>(values: [(&str, f64); N]) -> Outcome {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The smallest value that at least `percent` of the ascending values do not exceed.
pub fn percentile(ascending: &[f64], percent: usize) -> f64 {
    let rank = (ascending.len() * percent).div_ceil(100).max(1);
    ascending.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 100.0);
        assert_eq!(percentile(&values, 99), 198.0);
        assert_eq!(percentile(&[4.0], 99), 4.0);
    }
}
