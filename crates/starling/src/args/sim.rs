//! The command line of `starling sim`.

use clap::{Args as ClapArgs, Subcommand};
use policy::replacement::Replacement;
use std::path::PathBuf;

/// Arguments of `sim`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling sim mobile --trace work.trace --plot work.svg
  starling sim papers --out report/

`starling trace` makes traces; `starling advise` recommends settings in words.")]
pub struct Sim {
    /// What to try.
    #[command(subcommand)]
    pub command: SimCommand,
}

/// What `sim` does.
#[derive(Subcommand, Debug)]
pub enum SimCommand {
    /// Cooperative caching: clients serve each other from their caches (Dahlin, chapter 3).
    #[command(after_help = "Examples:
  starling sim cooperative --trace work.trace
  starling sim cooperative --trace worst.trace --rules paper --client-cache 80KiB --server-cache 0
  starling sim cooperative --trace work.trace --algorithm greedy,n-chance --json work.json --plot work.svg
  starling sim cooperative --trace work.trace --algorithm n-chance --n 1 --client-cache 64MiB
  starling sim cooperative --trace work.trace --technology nvme-25g

Algorithms: base (no cooperation; the others are compared with it); direct (each client has as much memory again on another machine); greedy; central; hash;
weighted-lru (uses only what clients are told anyway); weighted-lru-singlets (knows everything but which copies are the last); weighted-lru-global (knows
everything); n-chance; two-choices; epochs; best (has all memory twice). best is the thesis's yardstick, not a bound: a policy that evicts other blocks can beat it.

Technologies: atm is a 155 Mb/s network and a disk of 1994, as in the thesis. A block takes 250 us from local memory, 1250 us from another client's memory, 1050 us
from the server's memory, and 15850 us from disk. nvme-25g and nvme-100g are disks of today, with TCP over 25 Gb/s, or kernel bypass over 100 Gb/s.")]
    Cooperative(Cooperative),
    /// A mobile client with a slow link: how long its user waits, and when changes get home (Froese
    /// and Bunt).
    #[command(after_help = "Examples:
  starling sim mobile --trace office.trace --rules paper
  starling sim mobile --trace work.trace --cache 200MiB --bandwidth 1000000 --latency 40ms --hoard 4h
  starling sim mobile --trace work.trace --caches 50MiB,100MiB,200MiB --bandwidths 250000,1000000 --plot work.svg

The client first works in the office and caches what it uses; then its link is slow. The study runs each write-back policy with the given options, and then all
of them over --caches and --bandwidths. Without --rules paper, the client behaves as Starling does, with Starling's defaults.")]
    Mobile(Mobile),
    /// The cost of cleaning a log (Dahlin, sections 4.2 to 4.4).
    #[command(after_help = "Examples:
  starling sim cleaning --trace work.trace
  starling sim cleaning --trace auspex.trace --rules paper
  starling sim cleaning --trace work.trace --utilisation 90% --segment 1MiB --json work.json --plot work.svg

The study runs the trace twice and counts the second half of the second run. It also varies the segment size and how full the disk is.")]
    Cleaning(Cleaning),
    /// Placement of managers: which machine manages which files, and how many messages that costs
    /// (Dahlin, section 5.3).
    #[command(after_help = "Examples:
  starling sim locality --trace work.trace
  starling sim locality --trace work.trace --client-cache 64MiB --warm-up 1h --json work.json --plot work.svg")]
    Locality(Locality),
    /// Availability: how long data are out of reach, how rarely they are lost, and what that costs,
    /// by parity and stripe groups (Dahlin, chapter 4).
    #[command(after_help = "Examples:
  starling sim availability
  starling sim availability --machines 50 --parities 2 --group 10 --rebuild 6h
  starling sim availability --up 30d --down 1d --years 20000 --json out.json --plot out.svg

The study computes each figure, and also simulates it machine by machine. It needs no trace.")]
    Availability(Availability),
    /// Run all studies of the papers: one page with Starling's figures beside the papers' numbers.
    #[command(after_help = "Examples:
  starling sim papers --out report/
  starling sim papers --out other-seed/ --seed 2
  starling sim papers --out try/ --quick              takes seconds, to see that it works: its numbers mean little

The report is index.html, which needs no other file; figures.json has all numbers. Traces are synthetic: see docs/simulations.md.")]
    Papers(Papers),
}

/// Arguments of `sim papers`.
#[derive(ClapArgs, Debug)]
pub struct Papers {
    /// The folder for the report; made if it does not exist, otherwise it must be empty.
    #[arg(long)]
    pub out: PathBuf,
    /// The same seed gives the same numbers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Use a small part of the traces, to see that it works; the report says so.
    #[arg(long)]
    pub quick: bool,
}

/// Files that a study writes its figures to.
#[derive(ClapArgs, Debug)]
pub struct Output {
    /// Also write all numbers to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also draw the figures to this file, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// The machines of the core.
#[derive(ClapArgs, Debug)]
pub struct Machines {
    /// Defaults for options that are not given: product (Starling's own) or paper.
    #[arg(long, default_value = "product")]
    pub rules: String,
    /// Memory of each client [product: 512MiB, paper: 16MiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub client_cache: Option<u64>,
    /// Size of blocks [product: 64KiB, paper: 8KiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub block: Option<u64>,
}

/// Arguments of `sim cooperative`.
#[derive(ClapArgs, Debug)]
pub struct Cooperative {
    /// The trace.
    #[arg(long)]
    pub trace: PathBuf,
    /// Algorithms to run, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    pub algorithm: Vec<String>,
    /// How often n-chance forwards the last copy of a block.
    #[arg(long, default_value_t = policy::cooperative::n_chance::RECIRCULATIONS, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub n: u8,
    /// The machines of the core.
    #[command(flatten)]
    pub machines: Machines,
    /// Disks and networks: atm, nvme-25g or nvme-100g [product: nvme-25g, paper: atm].
    #[arg(long)]
    pub technology: Option<String>,
    /// Memory of a server beside the clients [product: 0, since no machine is special; paper:
    /// 128MiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub server_cache: Option<u64>,
    /// Block accesses at the beginning that fill the caches and are not counted [default: half of
    /// them].
    #[arg(long)]
    pub warm_up: Option<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Files to write.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim mobile`.
#[derive(ClapArgs, Debug)]
pub struct Mobile {
    /// The trace; all its clients are taken for one user.
    #[arg(long)]
    pub trace: PathBuf,
    /// Defaults for options that are not given: product (Starling's own) or paper.
    #[arg(long, default_value = "product")]
    pub rules: String,
    /// The client's cache [product: 20GiB, paper: 10MiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub cache: Option<u64>,
    /// Bandwidth of the slow link, in bits per second.
    #[arg(long, default_value_t = 28_800)]
    pub bandwidth: u64,
    /// Round trip time of the slow link, such as 40ms.
    #[arg(long, default_value = "0ms", value_parser = duration_us)]
    pub latency: u64,
    /// How long the client is in the office, from the beginning of the trace [default: a day, or
    /// half of a shorter trace].
    #[arg(long, value_parser = duration_us)]
    pub hoard: Option<u64>,
    /// What a read fetches over the slow link: file, block, or auto [product: auto, paper: file].
    #[arg(long)]
    pub unit: Option<String>,
    /// What the cache evicts first: lru, lfu, random, largest or smallest.
    #[arg(long, default_value = Replacement::default().name())]
    pub replacement: String,
    /// Size of blocks.
    #[arg(long, default_value = "4KiB", value_parser = crate::size::parse)]
    pub block: u64,
    /// I: the link counts as idle after this time without use [product: 1s, paper: 100ms].
    #[arg(long, value_parser = duration_us)]
    pub idle: Option<u64>,
    /// A: the age at which a change is sent [15m].
    #[arg(long, value_parser = duration_us)]
    pub age: Option<u64>,
    /// R: lottery tickets of reads that the user waits for [product: 60, paper: 11].
    #[arg(long)]
    pub read_tickets: Option<u32>,
    /// W: lottery tickets of changes that go home [product: 30, paper: 1].
    #[arg(long)]
    pub write_tickets: Option<u32>,
    /// Cache sizes to run, separated by commas [default: the paper's].
    #[arg(long, value_delimiter = ',', value_parser = crate::size::parse)]
    pub caches: Vec<u64>,
    /// Bandwidths to run, in bits per second, separated by commas [default: the paper's].
    #[arg(long, value_delimiter = ',')]
    pub bandwidths: Vec<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Files to write.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim cleaning`.
#[derive(ClapArgs, Debug)]
pub struct Cleaning {
    /// The trace.
    #[arg(long)]
    pub trace: PathBuf,
    /// Memory of each client, from which cleaners can read, and block size.
    #[command(flatten)]
    pub machines: Machines,
    /// Segment size, where the study does not vary it [product: 4MiB, paper: 512KiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub segment: Option<u64>,
    /// Largest share of the disk that live data fill, where the study does not vary it.
    #[arg(long, default_value = "80%", value_parser = super::traces::part)]
    pub utilisation: f64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Files to write.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim locality`.
#[derive(ClapArgs, Debug)]
pub struct Locality {
    /// The trace.
    #[arg(long)]
    pub trace: PathBuf,
    /// The machines of the core.
    #[command(flatten)]
    pub machines: Machines,
    /// How long a client holds a change before it commits.
    #[arg(long, default_value = "30s", value_parser = duration_us)]
    pub commit: u64,
    /// Time at the beginning of the trace that fills the caches and is not counted [default: half
    /// of it].
    #[arg(long, value_parser = duration_us)]
    pub warm_up: Option<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Files to write.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim availability`.
#[derive(ClapArgs, Debug)]
pub struct Availability {
    /// Number of machines.
    #[arg(long, default_value_t = 100)]
    pub machines: u32,
    /// Parity fragments per stripe. The costs of redundancy are always those of one.
    #[arg(long, default_value_t = 1)]
    pub parities: u32,
    /// Machines per stripe group [default: all].
    #[arg(long)]
    pub group: Option<u32>,
    /// Mean time that a machine is up.
    #[arg(long, default_value = "719h", value_parser = duration_us)]
    pub up: u64,
    /// Mean time until a machine that failed is back.
    #[arg(long, default_value = "1h", value_parser = duration_us)]
    pub down: u64,
    /// Time to rebuild the data of a machine or disk elsewhere [default: machines are waited for,
    /// and disks take a day].
    #[arg(long, value_parser = duration_us)]
    pub rebuild: Option<u64>,
    /// Mean life of a disk.
    #[arg(long, default_value = "500000h", value_parser = duration_us)]
    pub life: u64,
    /// Years to simulate.
    #[arg(long, default_value_t = 2000)]
    pub years: u32,
    /// Data disks, for the costs of redundancy [default: 90, or the data disks of one group if that
    /// is more].
    #[arg(long)]
    pub data: Option<u32>,
    /// Bandwidth of small accesses, as a share of that of large ones.
    #[arg(long, default_value = "7%", value_parser = super::traces::part)]
    pub small: f64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Files to write.
    #[command(flatten)]
    pub output: Output,
}

/// Parses `40ms`, `30s`, `15m`, `24h` or `2d` to microseconds.
fn duration_us(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a time: write a number with ms, s, m, h or d");
    let units = [("ms", 1000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000u64)];
    let (unit, times) = units.into_iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
    let number: u64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| wrong())?;
    number.checked_mul(times).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(duration_us("40ms"), Ok(40_000));
        assert_eq!(duration_us("15 m"), Ok(900_000_000));
        assert_eq!(duration_us("2d"), Ok(172_800_000_000));
        for wrong in ["", "5", "s", "-1s", "1.5h", "99999999999d"] {
            assert!(duration_us(wrong).is_err(), "{wrong}");
        }
    }
}

/// Arguments of `advise`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling trace record ./work --out work.trace          a day of work, say
  starling advise --trace work.trace
  starling advise --trace work.trace --json advice.json

The command simulates each setting on the trace, beside the default. It changes nothing: apply its advice by `starling set` or at the next mount.")]
pub struct Advise {
    /// A trace of your own work, recorded or imported.
    #[arg(long)]
    pub trace: PathBuf,
    /// Also write the advice to this file, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}
