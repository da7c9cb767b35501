//! Runs simulated worlds: one seed again, or many.

use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use world::{Options, Outcome};

/// Runs Starling on simulated disks under seeds, with crashes and faults, and compares it with a
/// model.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  world --seed 17 --verbose    one seed, with every operation\n  world --seconds 600          as many seeds as fit into ten minutes"
)]
struct Arguments {
    /// Runs this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// First of many seeds.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Ends after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Operations per seed.
    #[arg(long, default_value_t = 300)]
    operations: u64,
    /// Parity fragments; by default the seed chooses.
    #[arg(long)]
    parity: Option<u8>,
    /// No crashes.
    #[arg(long)]
    no_crashes: bool,
    /// No faults of stores.
    #[arg(long)]
    no_faults: bool,
    /// Now and then, more stores are bad than parity makes up for.
    #[arg(long)]
    beyond: bool,
    /// The limits that users have, instead of small ones that the seed draws.
    #[arg(long)]
    usual_limits: bool,
    /// Writes until space runs out.
    #[arg(long)]
    fill: bool,
    /// Goes on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Prints every operation.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let options = Options {
        operations: arguments.operations,
        crashes: !arguments.no_crashes,
        faults: !arguments.no_faults,
        parity: arguments.parity,
        beyond: arguments.beyond,
        usual_limits: arguments.usual_limits,
        fill: arguments.fill,
        verbose: arguments.verbose,
    };
    if let Some(seed) = arguments.seed {
        return match world::run(seed, options) {
            Ok(outcome) => {
                println!("{outcome:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let began = Instant::now();
    let time_max = arguments.seconds.map_or(Duration::MAX, Duration::from_secs);
    let count = arguments.seeds.unwrap_or(if arguments.seconds.is_some() { u64::MAX } else { 100 });
    let (mut sum, mut done, mut failures) = (Outcome::default(), 0, 0);
    for seed in arguments.from..arguments.from.saturating_add(count) {
        if began.elapsed() > time_max {
            break;
        }
        match world::run(seed, options) {
            Ok(outcome) => sum = sum.and(outcome),
            Err(failure) => {
                println!("{failure}");
                failures += 1;
            }
        }
        if failures > 0 && !arguments.keep_going {
            break;
        }
        done += 1;
    }
    println!("{done} seeds in {:?}, {failures} failed: {sum:?}", began.elapsed());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
