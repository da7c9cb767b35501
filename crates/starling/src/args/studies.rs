//! The command line of `starling sim`.

use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

/// Arguments of `sim`.
#[derive(ClapArgs, Debug)]
pub struct Sim {
    /// What to try.
    #[command(subcommand)]
    pub command: SimCommand,
}

/// What `sim` does.
#[derive(Subcommand, Debug)]
pub enum SimCommand {
    /// Clients that serve each other from their caches (Dahlin, chapter 3).
    #[command(after_help = "Examples:
  starling sim cooperative --trace worst.trace --client-cache 80KiB --server-cache 0
  starling sim cooperative --trace work.trace --algorithm greedy,n-chance --json work.json
  starling sim cooperative --trace work.trace --algorithm n-chance --n 1

Algorithms: base, direct (each client has as much memory again elsewhere), greedy, central, hash, n-chance, and best, which has all memory twice and
bounds those that share what there is. Times are those of a 155 Mb/s network and a disk of
1994, as in the thesis: a block takes 250 us from the own memory, 1250 us from another client's, 1050 us from the server's, and 15850 us from disk.")]
    Cooperative(Cooperative),
}

/// Arguments of `sim cooperative`.
#[derive(ClapArgs, Debug)]
pub struct Cooperative {
    /// The trace.
    #[arg(long)]
    pub trace: PathBuf,
    /// Which algorithms; all if none is given.
    #[arg(long, value_delimiter = ',')]
    pub algorithm: Vec<String>,
    /// How often n-chance sends a block on.
    #[arg(long, default_value_t = policy::cooperative::RECIRCULATIONS, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub n: u8,
    /// Memory of each client.
    #[arg(long, default_value = "16MiB", value_parser = crate::size::parse)]
    pub client_cache: u64,
    /// Memory of the server.
    #[arg(long, default_value = "128MiB", value_parser = crate::size::parse)]
    pub server_cache: u64,
    /// Size of blocks.
    #[arg(long, default_value = "8KiB", value_parser = crate::size::parse)]
    pub block: u64,
    /// Accesses of blocks that fill the caches and are not counted; half of them if not given.
    #[arg(long)]
    pub warm_up: Option<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write all figures to this file, too.
    #[arg(long)]
    pub json: Option<PathBuf>,
}
