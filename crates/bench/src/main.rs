//! Measures Starling beside the local disk, a do-nothing FUSE file system, and its peers: on one
//! machine, in one run, interleaved. So ratios are meaningful, although absolute numbers depend on
//! the machine.
//!
//! `bench run` measures and reports. `bench requests` counts what each operation costs. `bench
//! study` looks at Starling alone (when nearly full, after a crash, with many files), `bench roam`
//! at homes and roaming mounts, `bench cluster` at several nodes, `bench survive` at nodes that die
//! or are cut off, `bench simulations` at the speed of trying policies on traces, and `bench scale`
//! at the cost of maintenance by the amount of data. `bench work` is a single workload, which the
//! others start as processes of their own.
//! docs/performance-method.md says how to use it. Needs root: it mounts, drops caches and makes
//! network namespaces.

mod cluster;
mod command;
mod daemon;
mod figures;
mod mounts;
mod network;
mod output;
mod process;
mod report;
mod requests;
mod results;
mod roam;
mod run;
mod scale;
mod scenario;
mod scripted;
mod simulations;
mod site;
mod study;
mod survive;
mod target;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, Parser, Subcommand};

use crate::figures::Verdict;
use crate::output::{Document, Output};
use crate::report::Report;
use crate::results::Conditions;
use crate::run::Plan;
use crate::scenario::Sizes;
use crate::site::RunFolder;
use crate::target::TargetKind;

/// Measures Starling beside local ext4 and its peers.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all scenarios on all targets and print the tables
    #[command(
        after_help = "Examples:\n  bench run --quick\n  bench run --only create --targets ext4,fuse-passthrough,\
        starling\n  bench run --runs 5 --json result.json --markdown docs/performance.md"
    )]
    Run(RunOptions),
    /// Print what each operation costs in FUSE requests, messages and disk syncs
    Requests(RequestsOptions),
    /// Study Starling alone: nearly full, after a crash, with very many files
    #[command(
        after_help = "Examples:\n  bench study --quick\n  bench study --only recovery\n  bench study --json study.json \
        --markdown docs/performance.md\n\nThe exit code is not 0 if anything failed, such as a write before the file system was full."
    )]
    Study(study::StudyOptions),
    /// Study homes and mounts that roam, over slow and broken links
    #[command(
        after_help = "Examples:\n  bench roam --quick\n  bench roam --only revalidation\n  bench roam --only andrew,session \
        --json roam.json\n  bench roam --markdown docs/performance.md\n\nThe exit code is not 0 if anything failed, or a figure was missed."
    )]
    Roam(roam::RoamOptions),
    /// Study several nodes that mount one file system
    #[command(
        after_help = "Examples:\n  bench cluster --quick\n  bench cluster --only alone,one-file --json cluster.json\n  \
        bench cluster --markdown docs/performance.md\n\nThe exit code is not 0 if anything failed, or a figure was missed."
    )]
    Cluster(cluster::ClusterOptions),
    /// Let nodes of a cluster die, hang, be cut off and have bad disks, and see what others notice
    #[command(after_help = "Examples:\n  bench survive --quick\n  bench survive --only leader/kill,cut --rounds 3\n  \
        bench survive --only full,hang,slow\n  bench survive --peer gluster --only client,member\n  \
        bench survive --seconds 3600 --seed 7 --logs ./logs --json survive.json\n\n\
        The exit code is not 0 if a synced file, a lock or an open file was lost, if anything else failed, or if a figure \
        was missed.")]
    Survive(survive::SurviveOptions),
    /// One program of `survive`
    #[command(hide = true)]
    SurvivePart {
        #[command(subcommand)]
        part: survive::Part,
    },
    /// Measure how fast policies are tried on traces
    #[command(
        after_help = "Examples:\n  bench simulations --quick\n  bench simulations --markdown docs/performance.md"
    )]
    Simulations(simulations::SimulationsOptions),
    /// Measure what maintenance, a start and memory cost, by numbers of segments and files
    #[command(
        after_help = "Examples:\n  bench scale --quick\n  bench scale --segments 10000000 --dir /big --markdown docs/performance.md"
    )]
    Scale(scale::ScaleOptions),
    /// One process of `scale`
    #[command(hide = true)]
    ScalePart {
        #[command(subcommand)]
        part: scale::Part,
    },
    /// Run one workload in a folder and print what it measured as JSON
    Work {
        /// The workload
        #[command(subcommand)]
        work: work::Work,
    },
}

#[derive(Debug, Args)]
struct RunOptions {
    /// Only scenarios whose name contains one of these
    #[arg(long, value_name = "PATTERN,...", default_value = "")]
    only: String,
    /// Targets; `fuse-passthrough` means both of its modes. Targets that are not installed are
    /// reported and left out
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_values_t = TargetKind::ALL)]
    targets: Vec<TargetKind>,
    /// Runs of each scenario; the tables show medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    output: Output,
    /// Limit of Starling's cache, passed to `starling up --cache-size` and compared with its memory
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    cache_mib: u64,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    up: UpOptions,
}

#[derive(Debug, Args)]
struct RequestsOptions {
    #[command(flatten)]
    document: Document,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    up: UpOptions,
}

#[derive(Debug, Args)]
struct Place {
    /// Starling's program; built if not given
    #[arg(long, value_name = "PATH")]
    starling: Option<PathBuf>,
    /// An existing folder on the local disk to work in
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
}

#[derive(Debug, Args)]
struct UpOptions {
    /// More arguments for `starling up`, split at spaces
    #[arg(long, value_name = "ARGUMENTS", default_value = "", allow_hyphen_values = true)]
    starling_args: String,
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Run(options) => run_all(&options),
        Command::Requests(options) => count_requests(&options),
        Command::Simulations(options) => simulations::run(&options),
        Command::Scale(options) => scale::run(&options),
        Command::ScalePart { part } => scale::part(&part),
        Command::Study(options) => require_root().and_then(|()| study::run(&options)),
        Command::Roam(options) => require_root().and_then(|()| roam::run(&options)),
        Command::Cluster(options) => require_root().and_then(|()| cluster::run(&options)),
        Command::Survive(options) => require_root().and_then(|()| survive::run(&options)),
        Command::SurvivePart { part } => part.run().map(|()| ExitCode::SUCCESS),
        Command::Work { work } => work.print().map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Succeeds if no target figure was missed; runs of quick sizes judge nothing.
fn run_all(options: &RunOptions) -> Result<ExitCode> {
    require_root()?;
    command::catch_interrupts()?;
    let targets = with_both_modes(&options.targets);
    let starling = match targets.iter().any(|kind| TargetKind::STARLING.contains(kind)) {
        true => Some(site::starling_program(options.place.starling.as_deref())?),
        false => None,
    };
    let starling_args = format!("--cache-size {}MiB {}", options.cache_mib, options.up.starling_args);
    let folder = RunFolder::new(&options.place.dir, starling, starling_args)?;
    let sizes = if options.output.quick { Sizes::QUICK } else { Sizes::FULL };
    let conditions = Conditions {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        sizes,
        quick: options.output.quick,
        runs: options.runs,
        cache_mib: options.cache_mib,
        starling_args: options.up.starling_args.clone(),
    };
    let plan = Plan { only: options.only.clone(), targets, runs: options.runs, sizes };
    let (samples, missing) = run::run(&plan, folder.site())?;
    let figures = figures::judge(&samples, options.cache_mib);
    let missed = !options.output.quick && figures.iter().any(|figure| figure.verdict == Verdict::Fail);
    let report = Report { conditions, samples, figures, missing };
    let text = report.markdown();
    println!("{text}");
    options.output.write_report(&report, &[("bench".to_owned(), text)])?;
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn count_requests(options: &RequestsOptions) -> Result<ExitCode> {
    require_root()?;
    command::catch_interrupts()?;
    // Without Starling the table is still of use; the reason is printed below it.
    let starling = site::starling_program(options.place.starling.as_deref());
    if let Err(error) = &starling {
        eprintln!("bench: {error:#}");
    }
    let folder = RunFolder::new(&options.place.dir, starling.ok(), options.up.starling_args.clone())?;
    let text = requests::table(folder.site())?;
    println!("{text}");
    options.document.write(&[("requests".to_owned(), text)])?;
    Ok(ExitCode::SUCCESS)
}

fn require_root() -> Result<()> {
    // SAFETY: geteuid takes nothing and cannot fail.
    ensure!(unsafe { libc::geteuid() } == 0, "run it as root: it mounts file systems and drops caches");
    Ok(())
}

/// Adds the second mode of the do-nothing file system if one is asked for: the better one counts.
fn with_both_modes(targets: &[TargetKind]) -> Vec<TargetKind> {
    let wanted = |kind: &TargetKind| {
        targets.contains(kind)
            || *kind == TargetKind::FusePassthroughWriteback && targets.contains(&TargetKind::FusePassthrough)
    };
    TargetKind::ALL.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
        let line = CommandLine::try_parse_from(["bench", "run", "--targets", "starling,fuse-passthrough"]).unwrap();
        let Command::Run(options) = line.command else { panic!("not `run`") };
        assert_eq!(
            with_both_modes(&options.targets),
            [TargetKind::FusePassthrough, TargetKind::FusePassthroughWriteback, TargetKind::Starling]
        );
        assert!(CommandLine::try_parse_from(["bench", "run", "--targets", "nfs"]).is_err());
        assert!(CommandLine::try_parse_from(["bench", "run", "--runs", "0"]).is_err());
        assert!(CommandLine::try_parse_from(["bench", "study", "--starling-args", "--parity 2"]).is_ok());
        assert!(CommandLine::try_parse_from(["bench", "roam", "--starling-args", "x"]).is_err(), "it has no `up`");
    }
}
