//! The command line of `starling sim`.

use clap::{Args as ClapArgs, Subcommand};
use policy::replacement::Replacement;
use std::path::PathBuf;

/// Arguments of `sim`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling sim mobile --trace work.trace --plot work.svg
  starling sim papers --out report/

Traces come from `starling trace`; `starling advise` says in words what to set.")]
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
  starling sim cooperative --trace work.trace
  starling sim cooperative --trace worst.trace --rules paper --client-cache 80KiB --server-cache 0
  starling sim cooperative --trace work.trace --algorithm greedy,n-chance --json work.json --plot work.svg
  starling sim cooperative --trace work.trace --algorithm n-chance --n 1 --client-cache 64MiB
  starling sim cooperative --trace work.trace --technology nvme-25g

Algorithms: base, with which all are compared; direct (each client has as much memory again elsewhere); greedy; central; hash; weighted-lru, which knows what clients
are told anyway; weighted-lru-singlets, which knows all but whose copy is the last; weighted-lru-global, which knows all; n-chance; two-choices; epochs; and best,
which has all memory twice. It is the thesis's yardstick, and no bound: a policy that gives up other blocks can beat it.

Technologies: atm is a 155 Mb/s network and a disk of 1994, as in the thesis: a block takes 250 us from the own memory, 1250 us from another client's, 1050 us from the
server's, and 15850 us from disk. nvme-25g and nvme-100g are today's disks, with TCP on 25 Gb/s and past the kernel on 100 Gb/s.")]
    Cooperative(Cooperative),
    /// A client with a slow link: what its user waits for, and when what he writes is home (Froese
    /// and Bunt).
    #[command(after_help = "Examples:
  starling sim mobile --trace office.trace --rules paper
  starling sim mobile --trace work.trace --cache 200MiB --bandwidth 1000000 --latency 40ms --hoard 4h
  starling sim mobile --trace work.trace --caches 50MiB,100MiB,200MiB --bandwidths 250000,1000000 --plot work.svg

The client is in the office first, and caches what it uses; then its link is slow. Each write-back policy is tried with what is given, and all of them over
--caches and --bandwidths. Without --rules paper, all is as Starling does it, and defaults are its own.")]
    Mobile(Mobile),
    /// What making room costs a log (Dahlin, sections 4.2 to 4.4).
    #[command(after_help = "Examples:
  starling sim cleaning --trace work.trace
  starling sim cleaning --trace auspex.trace --rules paper
  starling sim cleaning --trace work.trace --utilisation 90% --segment 1MiB --json work.json --plot work.svg

The trace is run twice, and the second half of the second run counts. Sizes of segments and how full the disk is are varied, too.")]
    Cleaning(Cleaning),
    /// Who manages which files, and the messages that takes (Dahlin, section 5.3).
    #[command(after_help = "Examples:
  starling sim locality --trace work.trace
  starling sim locality --trace work.trace --client-cache 64MiB --warm-up 1h --json work.json --plot work.svg")]
    Locality(Locality),
    /// How long data are out of reach and how rarely they are lost, by parities and stripe groups,
    /// and what that costs (Dahlin, chapter 4).
    #[command(after_help = "Examples:
  starling sim availability
  starling sim availability --machines 50 --parities 2 --group 10 --rebuild 6h
  starling sim availability --up 30d --down 1d --years 20000 --json out.json --plot out.svg

What is computed is also tried, machine by machine. No trace is needed.")]
    Availability(Availability),
    /// All studies of the papers, as one page: our figures beside their numbers.
    #[command(after_help = "Examples:
  starling sim papers --out report/
  starling sim papers --out other-seed/ --seed 2
  starling sim papers --out try/ --quick              in seconds, to see that it works: its numbers say little

The report is in index.html, which needs no other file; figures.json has all numbers. Traces are synthetic: see docs/simulations.md.")]
    Papers(Papers),
}

/// Arguments of `sim papers`.
#[derive(ClapArgs, Debug)]
pub struct Papers {
    /// The folder that is made; if it is there, it must be empty.
    #[arg(long)]
    pub out: PathBuf,
    /// The same seed gives the same numbers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A small part of the traces, to see that it works; the report says so.
    #[arg(long)]
    pub quick: bool,
}

/// Where figures go, too.
#[derive(ClapArgs, Debug)]
pub struct Output {
    /// Write all numbers to this file, too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the figures, as SVG.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// What the machines of the core are like.
#[derive(ClapArgs, Debug)]
pub struct Machines {
    /// Whose machines, for what else is not said here: product (what Starling has where nothing is
    /// set) or paper.
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
    /// Which algorithms; all if none is given.
    #[arg(long, value_delimiter = ',')]
    pub algorithm: Vec<String>,
    /// How often n-chance sends a block on.
    #[arg(long, default_value_t = policy::cooperative::n_chance::RECIRCULATIONS, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub n: u8,
    /// See there.
    #[command(flatten)]
    pub machines: Machines,
    /// Disks and networks: atm, nvme-25g or nvme-100g [product: nvme-25g, paper: atm].
    #[arg(long)]
    pub technology: Option<String>,
    /// Memory of a server, beside clients' [product: 0, since no machine is special; paper:
    /// 128MiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub server_cache: Option<u64>,
    /// Accesses of blocks that fill the caches and are not counted; half of them if not given.
    #[arg(long)]
    pub warm_up: Option<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// See there.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim mobile`.
#[derive(ClapArgs, Debug)]
pub struct Mobile {
    /// The trace, all of whose clients are one user's.
    #[arg(long)]
    pub trace: PathBuf,
    /// Whose rules there are for what else is not said here: product or paper.
    #[arg(long, default_value = "product")]
    pub rules: String,
    /// The client's cache [product: 20GiB, paper: 10MiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub cache: Option<u64>,
    /// Bits per second of the slow link.
    #[arg(long, default_value_t = 28_800)]
    pub bandwidth: u64,
    /// Its round trip, such as 40ms.
    #[arg(long, default_value = "0ms", value_parser = duration_us)]
    pub latency: u64,
    /// How long the client is in the office, from the beginning of the trace; a day, or half of the
    /// trace if that is less.
    #[arg(long, value_parser = duration_us)]
    pub hoard: Option<u64>,
    /// What is cached once the link is slow: file, block, or auto [product: auto, paper: file].
    #[arg(long)]
    pub unit: Option<String>,
    /// What the cache gives up first: lru, lfu, random, largest or smallest.
    #[arg(long, default_value = Replacement::default().name())]
    pub replacement: String,
    /// Size of blocks.
    #[arg(long, default_value = "4KiB", value_parser = crate::size::parse)]
    pub block: u64,
    /// I: the link is idle after so long [product: 1s, paper: 100ms].
    #[arg(long, value_parser = duration_us)]
    pub idle: Option<u64>,
    /// A: what was written is old after so long [15m].
    #[arg(long, value_parser = duration_us)]
    pub age: Option<u64>,
    /// R: tickets of whoever waits for something, in the lottery [product: 60, paper: 11].
    #[arg(long)]
    pub read_tickets: Option<u32>,
    /// W: tickets of what goes home [product: 30, paper: 1].
    #[arg(long)]
    pub write_tickets: Option<u32>,
    /// Caches that are varied; those of the paper if none is given.
    #[arg(long, value_delimiter = ',', value_parser = crate::size::parse)]
    pub caches: Vec<u64>,
    /// Bandwidths that are varied, in bits per second; those of the paper if none is given.
    #[arg(long, value_delimiter = ',')]
    pub bandwidths: Vec<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// See there.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim cleaning`.
#[derive(ClapArgs, Debug)]
pub struct Cleaning {
    /// The trace.
    #[arg(long)]
    pub trace: PathBuf,
    /// Memory of each client, from which cleaners may read, and size of blocks.
    #[command(flatten)]
    pub machines: Machines,
    /// Size of segments, where that is not varied [product: 4MiB, paper: 512KiB].
    #[arg(long, value_parser = crate::size::parse)]
    pub segment: Option<u64>,
    /// The most that lives at once, as a part of the disk, where that is not varied.
    #[arg(long, default_value = "80%", value_parser = super::traces::part)]
    pub utilisation: f64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// See there.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim locality`.
#[derive(ClapArgs, Debug)]
pub struct Locality {
    /// The trace.
    #[arg(long)]
    pub trace: PathBuf,
    /// See there.
    #[command(flatten)]
    pub machines: Machines,
    /// How long what is written stays with the client.
    #[arg(long, default_value = "30s", value_parser = duration_us)]
    pub commit: u64,
    /// Time from the beginning of the trace that fills the caches and is not counted; half of it if
    /// not given.
    #[arg(long, value_parser = duration_us)]
    pub warm_up: Option<u64>,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// See there.
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `sim availability`.
#[derive(ClapArgs, Debug)]
pub struct Availability {
    /// How many machines there are.
    #[arg(long, default_value_t = 100)]
    pub machines: u32,
    /// Fragments of each stripe that can be missing. What redundancy costs is always shown for one.
    #[arg(long, default_value_t = 1)]
    pub parities: u32,
    /// Machines of a stripe group; all if not given.
    #[arg(long)]
    pub group: Option<u32>,
    /// How long a machine is up, on the average.
    #[arg(long, default_value = "719h", value_parser = duration_us)]
    pub up: u64,
    /// How long it is down then.
    #[arg(long, default_value = "1h", value_parser = duration_us)]
    pub down: u64,
    /// How long it takes to have elsewhere what a machine or disk had; if it is not given, machines
    /// are waited for, and disks take a day.
    #[arg(long, value_parser = duration_us)]
    pub rebuild: Option<u64>,
    /// How long a disk lasts, on the average.
    #[arg(long, default_value = "500000h", value_parser = duration_us)]
    pub life: u64,
    /// Years of the machines' lives that are tried.
    #[arg(long, default_value_t = 2000)]
    pub years: u32,
    /// Disks' worth of data, for what redundancy costs; 90 if not given, or as many as a larger
    /// group has of data.
    #[arg(long)]
    pub data: Option<u32>,
    /// Bandwidth of small accesses, as a part of that of large ones.
    #[arg(long, default_value = "7%", value_parser = super::traces::part)]
    pub small: f64,
    /// The same seed gives the same figures.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// See there.
    #[command(flatten)]
    pub output: Output,
}

/// Microseconds of `40ms`, `30s`, `15m`, `24h` or `2d`.
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

Each setting is simulated on the trace beside what is set where nothing is said. Nothing is changed: set what is advised by `starling set` or at the next mount.")]
pub struct Advise {
    /// The trace: of one's own work, recorded or imported.
    #[arg(long)]
    pub trace: PathBuf,
    /// Write all of it to this file, too.
    #[arg(long)]
    pub json: Option<PathBuf>,
}
