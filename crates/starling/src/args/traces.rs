//! The command line of `starling trace`.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use std::path::PathBuf;
use trace::synth::auspex;
use trace::synth::community::Habits;
use trace::synth::sprite;
use trace::synth::week::Week;

/// Arguments of `trace`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling trace record ./mnt --out work.trace
  starling trace synth sprite --seed 1 --out sprite.trace
  starling trace show work.trace")]
pub struct Trace {
    /// What to do.
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What `trace` does.
#[derive(Subcommand, Debug)]
pub enum TraceCommand {
    /// Record what programs do with the files of a mount, until Ctrl-C or for some time.
    #[command(after_help = "Examples:
  starling trace record ./mnt --out work.trace                  until Ctrl-C; then the trace is made
  starling trace record ./mnt --out work.trace --seconds 3600   an hour
  starling trace show work.trace
  starling sim cooperative --trace work.trace

Of mounts of `starling up` and `starling mount`. The trace says when it began, and of which mount it is; neither names nor contents of files are recorded, and whoever may not stop the mount may not record it. One
recording at a time.

Reads that the kernel answers from memory are not seen. So files that are opened during the recording are read by way of Starling, and anew
after each open: that takes some time, and a read in the trace is one that the kernel asked for, in whole pages and with what it read ahead. What is
read twice while a file is open is in the trace once. Of files that were open before, only what the kernel did not have is.
Writes and removals are as they are done, those to files that are mapped into memory when the kernel writes them back.")]
    Record(Record),
    /// Make a synthetic trace.
    #[command(after_help = "Examples:
  starling trace synth sprite --seed 1 --out sprite.trace
  starling trace synth worst-case --working-set 200% --out larger.trace
  starling trace synth office --help                             what can be set, and to what it is")]
    Synth {
        /// Of what.
        #[command(subcommand)]
        command: SynthCommand,
    },
    /// Make a trace of what another program has recorded.
    #[command(after_help = "Examples:
  strace -f -y -ttt -e trace=file,desc,process -o make.strace make
  starling trace import strace make.strace --out make.trace
  starling trace import csv table.csv --out table.trace
  zcat table.csv.gz | starling trace import csv - --out table.trace

A table begins with the line time_s,client,op,file,offset,len; each line after it says what was done: read, write or delete. See docs/trace-format.md.")]
    Import(Import),
    /// Make one trace of several, in the order of time; each has clients of its own.
    #[command(after_help = "Examples:
  starling trace merge one.trace two.trace --out both.trace
  starling trace merge one.trace two.trace --same-files --out both.trace     both were recorded from one file system
  starling trace merge one.trace two.trace --begin 0,90 --out both.trace     the second began 90 s after the first")]
    Merge(Merge),
    /// Show what is in a trace.
    #[command(
        after_help = "Examples:\n  starling trace show worst.trace\n  starling trace show worst.trace --json | jq .files"
    )]
    Show {
        /// The trace.
        trace: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `trace record`.
#[derive(ClapArgs, Debug)]
pub struct Record {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
    /// The file that is made, elsewhere than on the mount.
    #[arg(long)]
    pub out: PathBuf,
    /// End after so many seconds; without this, at Ctrl-C.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
}

/// What can be imported.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// What `strace -f` writes.
    Strace,
    /// A plain table.
    Csv,
}

/// Arguments of `trace import`.
#[derive(ClapArgs, Debug)]
pub struct Import {
    /// What has recorded it.
    pub format: Format,
    /// What it has written; - is standard input.
    pub file: PathBuf,
    /// The file that is made.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `trace merge`.
#[derive(ClapArgs, Debug)]
pub struct Merge {
    /// The traces.
    #[arg(required = true)]
    pub traces: Vec<PathBuf>,
    /// They are of one file system: files with the same number are the same file. Without this,
    /// each trace has its own.
    #[arg(long)]
    pub same_files: bool,
    /// When each of them begins, in seconds; without this, when they were recorded, if all say so,
    /// and else all at once.
    #[arg(long, value_delimiter = ',')]
    pub begin: Vec<f64>,
    /// The file that is made.
    #[arg(long)]
    pub out: PathBuf,
}

/// What `trace synth` makes.
#[derive(Subcommand, Debug)]
pub enum SynthCommand {
    /// Clients of a server like those of Dahlin's Sprite trace (section 3.2).
    #[command(after_help = "Examples:
  starling trace synth sprite --seed 1 --out sprite.trace
  starling trace synth sprite --clients 100 --accesses 2000000 --out more.trace

The trace itself was never published: this one matches what the thesis states of it.
Then: starling sim cooperative --trace sprite.trace --warm-up 400000")]
    Sprite(Sprite),
    /// Clients of a server as the network saw those of Dahlin's Auspex trace (section 3.3.4.2).
    #[command(after_help = "Examples:
  starling trace synth auspex --seed 1 --out auspex.trace
  starling trace synth auspex --accesses 1000000 --unseen-s 0 --out seen.trace

The trace itself was never published: this one matches what the thesis states of it.
Then: starling sim cooperative --trace auspex.trace --warm-up 1000000")]
    Auspex(Auspex),
    /// The workload that hurts cooperative caching most, or one on the way from there to better
    /// ones (Dahlin, section 3.3.4.3).
    #[command(after_help = "Examples:
  starling trace synth worst-case --out worst.trace
  starling trace synth worst-case --working-set 200% --out larger.trace
  starling trace synth worst-case --locality 50% --out shared.trace
  starling trace synth worst-case --gap 1 --out bursts.trace            clients pause as long as they are busy

Then: starling sim cooperative --trace worst.trace --client-cache 80KiB --server-cache 0")]
    WorstCase(WorstCase),
    /// A week of one user's everyday work (Froese and Bunt, trace 1).
    #[command(after_help = "Examples:
  starling trace synth office --seed 1 --out office.trace
  starling trace synth office --active-h 20 --requests 40000 --out busy.trace

The trace itself was never published: this one matches what the paper states of it.")]
    Office(Office),
    /// A week of one user with many more writes (Froese and Bunt, trace 2).
    #[command(after_help = "Examples:
  starling trace synth stress --seed 1 --out stress.trace
  starling trace synth stress --writes 90% --out writes.trace

The trace itself was never published: this one matches what the paper states of it.")]
    Stress(Stress),
}

/// Arguments of `trace synth worst-case`.
#[derive(ClapArgs, Debug)]
pub struct WorstCase {
    /// How many clients there are.
    #[arg(long, default_value_t = 10)]
    pub clients: u32,
    /// Blocks of 8 KiB that each one's cache holds.
    #[arg(long, default_value_t = 10)]
    pub cache_blocks: u64,
    /// Each one's data, of its cache.
    #[arg(long, default_value = "110%", value_parser = part)]
    pub working_set: f64,
    /// Part of its requests that go to its own data.
    #[arg(long, default_value = "100%", value_parser = part)]
    pub locality: f64,
    /// How long it pauses between bursts, of how long these take.
    #[arg(long, default_value = "0", value_parser = part)]
    pub gap: f64,
    /// How many requests there are of all.
    #[arg(long, default_value_t = 100_000)]
    pub requests: u64,
    /// The same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The file that is made.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `trace synth sprite`.
#[derive(ClapArgs, Debug)]
pub struct Sprite {
    /// How many clients there are.
    #[arg(long, default_value_t = sprite::Sprite::default().clients)]
    pub clients: u32,
    /// Reads and writes of all clients, each of a block of 8 KiB.
    #[arg(long, default_value_t = sprite::Sprite::default().accesses)]
    pub accesses: u64,
    /// Days over which they are spread.
    #[arg(long, default_value_t = sprite::Sprite::default().days)]
    pub days: u32,
    /// Part of the uses of files that are writes.
    #[arg(long, default_value_t = sprite::Sprite::default().writes, value_parser = part)]
    pub writes: f64,
    /// What clients tend to do.
    #[command(flatten)]
    pub tendencies: Box<Tendencies>,
    /// The same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The file that is made.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `trace synth auspex`.
#[derive(ClapArgs, Debug)]
pub struct Auspex {
    /// How many clients there are.
    #[arg(long, default_value_t = auspex::Auspex::default().clients)]
    pub clients: u32,
    /// Reads and writes of all clients, each of a block of 8 KiB.
    #[arg(long, default_value_t = auspex::Auspex::default().accesses)]
    pub accesses: u64,
    /// Days over which they are spread.
    #[arg(long, default_value_t = auspex::Auspex::default().days)]
    pub days: u32,
    /// Part of the uses of files that are writes.
    #[arg(long, default_value_t = auspex::Auspex::default().writes, value_parser = part)]
    pub writes: f64,
    /// A client's second read of a file within so many seconds is not seen; 0: all are.
    #[arg(long, default_value_t = auspex::Auspex::default().unseen_s)]
    pub unseen_s: f64,
    /// What clients tend to do.
    #[command(flatten)]
    pub tendencies: Box<Tendencies>,
    /// The same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The file that is made.
    #[arg(long)]
    pub out: PathBuf,
}

/// What clients of a server tend to do, which no paper states. What is not given is as in the trace
/// that is made.
#[derive(ClapArgs, Clone, Copy, Debug)]
#[command(next_help_heading = "What clients tend to do (by default as in the trace of that name)")]
pub struct Tendencies {
    /// Files that all clients use.
    #[arg(long)]
    common_files: Option<u64>,
    /// How much rather the popular ones of them: the power of Zipf's law.
    #[arg(long)]
    common_steepness: Option<f64>,
    /// Part of the reads of files: of those that all use.
    #[arg(long, value_parser = part)]
    common: Option<f64>,
    /// Part of the reads: of what another client of the group has used lately.
    #[arg(long, value_parser = part)]
    group: Option<f64>,
    /// Part of the reads: of files that nobody has used before.
    #[arg(long, value_parser = part)]
    fresh: Option<f64>,
    /// Part of the reads: of the last few files that the client itself has used.
    #[arg(long, value_parser = part)]
    latest: Option<f64>,
    /// All others are of what the client itself has used: how much rather lately, as a power.
    #[arg(long)]
    recency: Option<f64>,
    /// Part of the reads that are of a part of their file.
    #[arg(long, value_parser = part)]
    partial: Option<f64>,
    /// Part of the writes of files: new ones, which are removed again.
    #[arg(long, value_parser = part)]
    passing: Option<f64>,
    /// Seconds until such a file is removed, at most.
    #[arg(long)]
    passing_s: Option<f64>,
    /// Part of the writes: of files that the client has written before.
    #[arg(long, value_parser = part)]
    again: Option<f64>,
    /// How much rather lately, as a power.
    #[arg(long)]
    again_recency: Option<f64>,
    /// Part of those that another client of the group has written.
    #[arg(long, value_parser = part)]
    foreign: Option<f64>,
    /// Part of the writes of blocks: of the block that was just written, as by programs that write
    /// less than a block at a time.
    #[arg(long, value_parser = part)]
    same_block: Option<f64>,
    /// Removals of files from before the trace, for each removal of one that was made in it.
    #[arg(long)]
    old_removals: Option<f64>,
}

impl Tendencies {
    /// These habits, but for what was given.
    pub fn over(self, of: Habits) -> Habits {
        Habits {
            common_files: self.common_files.unwrap_or(of.common_files),
            common_steepness: self.common_steepness.unwrap_or(of.common_steepness),
            common: self.common.unwrap_or(of.common),
            group: self.group.unwrap_or(of.group),
            fresh: self.fresh.unwrap_or(of.fresh),
            latest: self.latest.unwrap_or(of.latest),
            recency: self.recency.unwrap_or(of.recency),
            partial: self.partial.unwrap_or(of.partial),
            passing: self.passing.unwrap_or(of.passing),
            passing_s: self.passing_s.unwrap_or(of.passing_s),
            again: self.again.unwrap_or(of.again),
            again_recency: self.again_recency.unwrap_or(of.again_recency),
            foreign: self.foreign.unwrap_or(of.foreign),
            same_block: self.same_block.unwrap_or(of.same_block),
            old_removals: self.old_removals.unwrap_or(of.old_removals),
        }
    }
}

macro_rules! week {
    ($(#[$meaning:meta])* $name:ident of $like:path: $unique:literal, $read:literal, $written:literal) => {
        $(#[$meaning])*
        #[derive(ClapArgs, Debug)]
        pub struct $name {
            /// Days, of which the first is a Monday.
            #[arg(long, default_value_t = <$like>::default().0.days)]
            days: u32,
            /// Hours of work in all.
            #[arg(long, default_value_t = <$like>::default().0.active_h)]
            active_h: f64,
            /// Reads and writes.
            #[arg(long, default_value_t = <$like>::default().0.requests)]
            requests: u64,
            /// Part of them that are writes.
            #[arg(long, default_value_t = <$like>::default().0.writes, value_parser = part)]
            writes: f64,
            /// How many files are used.
            #[arg(long, default_value_t = <$like>::default().0.files)]
            files: u64,
            /// Bytes of all these files.
            #[arg(long, default_value = $unique, value_parser = crate::size::parse)]
            unique_bytes: u64,
            /// Bytes read, counted each time.
            #[arg(long, default_value = $read, value_parser = crate::size::parse)]
            read_bytes: u64,
            /// Bytes written, counted each time.
            #[arg(long, default_value = $written, value_parser = crate::size::parse)]
            written_bytes: u64,
            /// How much rather files are used that were used lately, as a power.
            #[arg(long, default_value_t = <$like>::default().0.recency)]
            recency: f64,
            /// The same seed gives the same trace.
            #[arg(long, default_value_t = 1)]
            seed: u64,
            /// The file that is made.
            #[arg(long)]
            pub out: PathBuf,
        }

        impl $name {
            /// What is asked for.
            pub fn week(&self) -> Week {
                let $name { days, active_h, requests, writes, files, unique_bytes, read_bytes, .. } = *self;
                let $name { written_bytes, recency, seed, .. } = *self;
                Week { days, active_h, requests, writes, files, unique_bytes, read_bytes, written_bytes, recency, seed }
            }
        }
    };
}
week!(
    /// Arguments of `trace synth office`.
    Office of trace::synth::office::Office: "17MiB", "4596MiB", "4MiB"
);
week!(
    /// Arguments of `trace synth stress`.
    Stress of trace::synth::stress::Stress: "18MiB", "4718MiB", "35MiB"
);

/// `110%` or `1.1`.
pub(super) fn part(text: &str) -> Result<f64, String> {
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| format!("{text:?} is not a part: write 110% or 1.1"))?;
    Ok(number / of)
}
