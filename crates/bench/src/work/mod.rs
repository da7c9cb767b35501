//! The workloads. Each runs as a process of its own (`bench work NAME ...`), so that its memory and CPU time are not
//! mixed with the measuring program's, and prints what it measured as one line of JSON.
//!
//! A workload knows nothing of targets: it is given a folder and behaves like an ordinary program in it. Any error ends it,
//! because a number from a workload that failed halfway means nothing.

mod directory;
mod files;
mod postmark;
mod random;
mod stream;
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Subcommand;

use crate::requests::{self, Phase};

/// What a workload measured: names (which carry their unit) and numbers.
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
        /// fsync each file before it is closed
        #[arg(long)]
        fsync: bool,
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
    /// Stat and list a tree that has been seen: `stats_per_s`, `entries_per_s`
    Walk {
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
    /// Create, list and remove many empty files in one directory: `create_per_s`, `list_per_s`, `remove_per_s`
    Directory {
        /// Folder that is made, and removed again
        dir: PathBuf,
        /// How many files
        #[arg(long, default_value_t = 1_000_000)]
        entries: u32,
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
    /// Does the work and returns what was measured.
    pub fn run(&self) -> Result<Outcome> {
        match self {
            Work::Create { dir, files, processes, fsync } => files::create(dir, *files, *processes, *fsync),
            Work::CreatePart { dir, files, fsync } => files::create_part(dir, *files, *fsync),
            Work::Read { dir, files } => files::read(dir, *files),
            Work::Unlink { dir, files } => files::unlink(dir, *files),
            Work::MakeTree { dir, files } => tree::make(dir, *files),
            Work::CopyTree { source, target } => tree::copy(source, target),
            Work::Walk { dir } => tree::walk(dir),
            Work::Postmark { dir, files, transactions } => postmark::run(dir, *files, *transactions),
            Work::WriteStream { file, mib } => stream::write(file, *mib),
            Work::ReadStream { file } => stream::read(file),
            Work::FsyncLatency { dir, samples, beside_stream } => {
                stream::fsync_latency(dir, *samples as usize, *beside_stream)
            }
            Work::Directory { dir, entries } => directory::run(dir, *entries),
            Work::Operation { dir, title, phase } => requests::run_phase(title, *phase, dir).map(|()| Outcome::new()),
        }
    }

    /// Does the work and prints what was measured.
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
