//! Runs simulated worlds: one seed, or many.

use clap::Parser;
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use world::{ClientsOptions, ClientsOutcome, Failure, Options, Outcome, run_clients};

/// Runs the core of Starling in simulated time, with crashes and faults chosen by a seed, and
/// compares it with a model.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  world --seed 17 --verbose    one seed, with every operation\n  world --seconds 600          as many seeds as fit into ten minutes"
)]
struct Arguments {
    /// Run this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// First of several seeds.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Number of seeds [default: 100, or as many as fit into --seconds].
    #[arg(long)]
    seeds: Option<u64>,
    /// End after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Operations per seed.
    #[arg(long, default_value_t = 300)]
    operations: u64,
    /// Parity fragments [default: the seed chooses].
    #[arg(long)]
    parity: Option<u8>,
    /// Do without crashes.
    #[arg(long)]
    no_crashes: bool,
    /// Do without faults of stores.
    #[arg(long)]
    no_faults: bool,
    /// Now and then, let more stores fail than parity makes up for.
    #[arg(long)]
    beyond: bool,
    /// Use the limits that users have, instead of small ones that the seed draws.
    #[arg(long)]
    usual_limits: bool,
    /// Write until space runs out.
    #[arg(long)]
    fill: bool,
    /// Run worlds of this many clients on machines of their own (0: the seed chooses).
    #[arg(long)]
    clients: Option<u64>,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Print every operation.
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
    match arguments.clients {
        None => repeat(&arguments, |seed| world::run(seed, options), Outcome::and),
        Some(clients) => {
            let options = ClientsOptions {
                clients: Some(clients).filter(|count| *count > 0),
                operations: arguments.operations,
                faults: !arguments.no_faults,
                verbose: arguments.verbose,
            };
            repeat(&arguments, |seed| run_clients(seed, options), ClientsOutcome::and)
        }
    }
}

/// Runs the worlds that the arguments ask for.
#[expect(clippy::disallowed_methods, reason = "the program says how long it took")]
fn repeat<T: Default + Debug>(
    arguments: &Arguments,
    run: impl Fn(u64) -> Result<T, Failure>,
    and: impl Fn(T, T) -> T,
) -> ExitCode {
    if let Some(seed) = arguments.seed {
        return match run(seed) {
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
    let (mut sum, mut done, mut failures) = (T::default(), 0, 0);
    for seed in arguments.from..arguments.from.saturating_add(count) {
        if began.elapsed() > time_max {
            break;
        }
        match run(seed) {
            Ok(outcome) => sum = and(sum, outcome),
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
