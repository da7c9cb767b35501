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
    /// Record file accesses on a mount, until Ctrl-C or for some time.
    #[command(after_help = "Examples:
  starling trace record ./mnt --out work.trace                  records until Ctrl-C
  starling trace record ./mnt --out work.trace --seconds 3600   records for an hour
  starling trace show work.trace
  starling sim cooperative --trace work.trace

This works on mounts of `starling up` and `starling mount`, one recording of a mount at a time. Only users who can stop the mount can
record it. The trace has the starting time and the mount point, but no names and no contents of files.

Starling does not see reads that the kernel answers from its page cache. So while it records, each open of a file makes the kernel read
the file from Starling again, which takes some time. A read in the trace is one of the kernel's: in whole pages, with its read-ahead.
Data that a program reads twice while the file is open are in the trace once. Of files that were open before the recording, the trace
has only reads that the page cache could not answer. Writes and removals are recorded as programs make them; writes to mapped files,
when the kernel writes them back.")]
    Record(Record),
    /// Make a synthetic trace.
    #[command(after_help = "Examples:
  starling trace synth sprite --seed 1 --out sprite.trace
  starling trace synth worst-case --working-set 200% --out larger.trace
  starling trace synth office --help                             shows the options and their defaults")]
    Synth {
        /// The workload.
        #[command(subcommand)]
        command: SynthCommand,
    },
    /// Make a trace from a recording of another program.
    #[command(after_help = "Examples:
  strace -f -y -ttt -e trace=file,desc,process -o make.strace make
  starling trace import strace make.strace --out make.trace
  starling trace import csv table.csv --out table.trace
  zcat table.csv.gz | starling trace import csv - --out table.trace

A table begins with the line time_s,client,op,file,offset,len; each further line is one read, write or delete. See docs/trace-format.md.")]
    Import(Import),
    /// Merge several traces into one, in the order of time; each keeps clients of its own.
    #[command(after_help = "Examples:
  starling trace merge one.trace two.trace --out both.trace
  starling trace merge one.trace two.trace --same-files --out both.trace     both were recorded on one file system
  starling trace merge one.trace two.trace --begin 0,90 --out both.trace     the second began 90 s after the first")]
    Merge(Merge),
    /// Summarise a trace: times, clients, reads, writes, files.
    #[command(
        after_help = "Examples:\n  starling trace show worst.trace\n  starling trace show worst.trace --json | jq .files"
    )]
    Show {
        /// The trace.
        trace: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `trace record`.
#[derive(ClapArgs, Debug)]
pub struct Record {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
    /// The trace to make, outside the mount.
    #[arg(long)]
    pub out: PathBuf,
    /// End after this many seconds [default: at Ctrl-C].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
}

/// Formats that can be imported.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// The output of `strace -f`.
    Strace,
    /// A plain table.
    Csv,
}

/// Arguments of `trace import`.
#[derive(ClapArgs, Debug)]
pub struct Import {
    /// The format of the recording.
    pub format: Format,
    /// The recording; - is standard input.
    pub file: PathBuf,
    /// The trace to make.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `trace merge`.
#[derive(ClapArgs, Debug)]
pub struct Merge {
    /// The traces.
    #[arg(required = true)]
    pub traces: Vec<PathBuf>,
    /// The traces are from one file system: a file number means the same file in all of them.
    /// Without this, each trace has files of its own.
    #[arg(long)]
    pub same_files: bool,
    /// When each trace begins, in seconds, separated by commas [default: when it was recorded, if
    /// all traces say so; otherwise all begin together].
    #[arg(long, value_delimiter = ',')]
    pub begin: Vec<f64>,
    /// The trace to make.
    #[arg(long)]
    pub out: PathBuf,
}

/// What `trace synth` makes.
#[derive(Subcommand, Debug)]
pub enum SynthCommand {
    /// Clients of a file server, like those of Dahlin's Sprite trace (section 3.2).
    #[command(after_help = "Examples:
  starling trace synth sprite --seed 1 --out sprite.trace
  starling trace synth sprite --clients 100 --accesses 2000000 --out more.trace

The original trace was never published. This one matches the properties that the thesis states.
Then: starling sim cooperative --trace sprite.trace --warm-up 400000")]
    Sprite(Sprite),
    /// Clients of a file server as seen on the network, like those of Dahlin's Auspex trace
    /// (section 3.3.4.2).
    #[command(after_help = "Examples:
  starling trace synth auspex --seed 1 --out auspex.trace
  starling trace synth auspex --accesses 1000000 --unseen-s 0 --out seen.trace

The original trace was never published. This one matches the properties that the thesis states.
Then: starling sim cooperative --trace auspex.trace --warm-up 1000000")]
    Auspex(Auspex),
    /// The workload that is worst for cooperative caching, or one between that and better ones
    /// (Dahlin, section 3.3.4.3).
    #[command(after_help = "Examples:
  starling trace synth worst-case --out worst.trace
  starling trace synth worst-case --working-set 200% --out larger.trace
  starling trace synth worst-case --locality 50% --out shared.trace
  starling trace synth worst-case --gap 1 --out bursts.trace            clients pause as long as they are busy

Then: starling sim cooperative --trace worst.trace --client-cache 80KiB --server-cache 0")]
    WorstCase(WorstCase),
    /// A week of one user's everyday office work (Froese and Bunt, trace 1).
    #[command(after_help = "Examples:
  starling trace synth office --seed 1 --out office.trace
  starling trace synth office --active-h 20 --requests 40000 --out busy.trace

The original trace was never published. This one matches the properties that the paper states.")]
    Office(Office),
    /// A week of one user with many more writes (Froese and Bunt, trace 2).
    #[command(after_help = "Examples:
  starling trace synth stress --seed 1 --out stress.trace
  starling trace synth stress --writes 90% --out writes.trace

The original trace was never published. This one matches the properties that the paper states.")]
    Stress(Stress),
}

/// Arguments of `trace synth worst-case`.
#[derive(ClapArgs, Debug)]
pub struct WorstCase {
    /// Number of clients.
    #[arg(long, default_value_t = 10)]
    pub clients: u32,
    /// Size of each client's cache, in blocks of 8 KiB.
    #[arg(long, default_value_t = 10)]
    pub cache_blocks: u64,
    /// Size of each client's own data, relative to its cache.
    #[arg(long, default_value = "110%", value_parser = part)]
    pub working_set: f64,
    /// Share of a client's requests that go to its own data.
    #[arg(long, default_value = "100%", value_parser = part)]
    pub locality: f64,
    /// Mean pause between bursts, relative to the mean length of a burst.
    #[arg(long, default_value = "0", value_parser = part)]
    pub gap: f64,
    /// Number of requests of all clients.
    #[arg(long, default_value_t = 100_000)]
    pub requests: u64,
    /// The same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The trace to make.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `trace synth sprite`.
#[derive(ClapArgs, Debug)]
pub struct Sprite {
    /// Number of clients.
    #[arg(long, default_value_t = sprite::Sprite::default().clients)]
    pub clients: u32,
    /// Number of reads and writes of all clients, each of a block of 8 KiB.
    #[arg(long, default_value_t = sprite::Sprite::default().accesses)]
    pub accesses: u64,
    /// Length of the trace in days.
    #[arg(long, default_value_t = sprite::Sprite::default().days)]
    pub days: u32,
    /// Share of file uses that are writes.
    #[arg(long, default_value_t = sprite::Sprite::default().writes, value_parser = part)]
    pub writes: f64,
    /// Habits of clients.
    #[command(flatten)]
    pub tendencies: Box<Tendencies>,
    /// The same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The trace to make.
    #[arg(long)]
    pub out: PathBuf,
}

/// Arguments of `trace synth auspex`.
#[derive(ClapArgs, Debug)]
pub struct Auspex {
    /// Number of clients.
    #[arg(long, default_value_t = auspex::Auspex::default().clients)]
    pub clients: u32,
    /// Number of reads and writes of all clients, each of a block of 8 KiB.
    #[arg(long, default_value_t = auspex::Auspex::default().accesses)]
    pub accesses: u64,
    /// Length of the trace in days.
    #[arg(long, default_value_t = auspex::Auspex::default().days)]
    pub days: u32,
    /// Share of file uses that are writes.
    #[arg(long, default_value_t = auspex::Auspex::default().writes, value_parser = part)]
    pub writes: f64,
    /// Reads that a client's own cache hides from the network: a second read of a file within this
    /// many seconds; 0 hides none.
    #[arg(long, default_value_t = auspex::Auspex::default().unseen_s)]
    pub unseen_s: f64,
    /// Habits of clients.
    #[command(flatten)]
    pub tendencies: Box<Tendencies>,
    /// The same seed gives the same trace.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The trace to make.
    #[arg(long)]
    pub out: PathBuf,
}

/// Habits of clients, which no paper states. Options that are not given keep the values of the
/// trace's own workload.
#[derive(ClapArgs, Clone, Copy, Debug)]
#[command(next_help_heading = "Habits of clients (by default those of the named trace)")]
pub struct Tendencies {
    /// Number of files that all clients use.
    #[arg(long)]
    common_files: Option<u64>,
    /// How unevenly those files are used: the exponent of Zipf's law.
    #[arg(long)]
    common_steepness: Option<f64>,
    /// Share of file reads that go to the files that all clients use.
    #[arg(long, value_parser = part)]
    common: Option<f64>,
    /// Share of file reads that go to files another client of the group has used lately.
    #[arg(long, value_parser = part)]
    group: Option<f64>,
    /// Share of file reads that go to files no client has used before.
    #[arg(long, value_parser = part)]
    fresh: Option<f64>,
    /// Share of file reads that go to the last few files the client itself has used.
    #[arg(long, value_parser = part)]
    latest: Option<f64>,
    /// How strongly all other reads prefer files that the client itself has used lately, as an
    /// exponent.
    #[arg(long)]
    recency: Option<f64>,
    /// Share of file reads that read only a part of the file.
    #[arg(long, value_parser = part)]
    partial: Option<f64>,
    /// Share of file writes that make a new file which is removed again.
    #[arg(long, value_parser = part)]
    passing: Option<f64>,
    /// Longest life of such a file, in seconds.
    #[arg(long)]
    passing_s: Option<f64>,
    /// Share of file writes that go to files the client has written before.
    #[arg(long, value_parser = part)]
    again: Option<f64>,
    /// How strongly those writes prefer files written lately, as an exponent.
    #[arg(long)]
    again_recency: Option<f64>,
    /// Share of those writes that go to files another client of the group has written.
    #[arg(long, value_parser = part)]
    foreign: Option<f64>,
    /// Share of block writes that write the block just written again, as programs do that write
    /// less than a block at a time.
    #[arg(long, value_parser = part)]
    same_block: Option<f64>,
    /// Removals of files from before the trace, per removal of a file made in the trace.
    #[arg(long)]
    old_removals: Option<f64>,
}

impl Tendencies {
    /// `of`, with the habits that were given in place of its own.
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
            /// Length in days; the first day is a Monday.
            #[arg(long, default_value_t = <$like>::default().0.days)]
            days: u32,
            /// Hours of work, in total.
            #[arg(long, default_value_t = <$like>::default().0.active_h)]
            active_h: f64,
            /// Number of reads and writes.
            #[arg(long, default_value_t = <$like>::default().0.requests)]
            requests: u64,
            /// Share of them that are writes.
            #[arg(long, default_value_t = <$like>::default().0.writes, value_parser = part)]
            writes: f64,
            /// Number of files used.
            #[arg(long, default_value_t = <$like>::default().0.files)]
            files: u64,
            /// Total size of these files.
            #[arg(long, default_value = $unique, value_parser = crate::size::parse)]
            unique_bytes: u64,
            /// Bytes read, with repetition.
            #[arg(long, default_value = $read, value_parser = crate::size::parse)]
            read_bytes: u64,
            /// Bytes written, with repetition.
            #[arg(long, default_value = $written, value_parser = crate::size::parse)]
            written_bytes: u64,
            /// How strongly the user prefers files used lately, as an exponent.
            #[arg(long, default_value_t = <$like>::default().0.recency)]
            recency: f64,
            /// The same seed gives the same trace.
            #[arg(long, default_value_t = 1)]
            seed: u64,
            /// The trace to make.
            #[arg(long)]
            pub out: PathBuf,
        }

        impl $name {
            /// The options as a [`Week`].
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

/// Parses `110%` or `1.1`.
pub(super) fn part(text: &str) -> Result<f64, String> {
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| format!("{text:?} is not a part: write 110% or 1.1"))?;
    Ok(number / of)
}
