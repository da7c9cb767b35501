//! The command line of `starling trace`.

use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

/// Arguments of `trace`.
#[derive(ClapArgs, Debug)]
pub struct Trace {
    /// What to do.
    #[command(subcommand)]
    pub command: TraceCommand,
}

/// What `trace` does.
#[derive(Subcommand, Debug)]
pub enum TraceCommand {
    /// Make a synthetic trace.
    Synth {
        /// Of what.
        #[command(subcommand)]
        command: SynthCommand,
    },
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

/// What `trace synth` makes.
#[derive(Subcommand, Debug)]
pub enum SynthCommand {
    /// The workload that hurts cooperative caching most, or one on the way from there to better ones (Dahlin, section 3.3.4.3).
    #[command(after_help = "Examples:
  starling trace synth worst-case --out worst.trace
  starling trace synth worst-case --working-set 200% --out larger.trace
  starling trace synth worst-case --locality 50% --out shared.trace
  starling trace synth worst-case --gap 1 --out bursts.trace            clients pause as long as they are busy

Then: starling sim cooperative --trace worst.trace --client-cache 80KiB --server-cache 0")]
    WorstCase(WorstCase),
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

/// `110%` or `1.1`.
pub(super) fn part(text: &str) -> Result<f64, String> {
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| format!("{text:?} is not a part: write 110% or 1.1"))?;
    Ok(number / of)
}
