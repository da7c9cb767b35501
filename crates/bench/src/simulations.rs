//! The speed of trying policies on traces: block accesses per second of one processor, beside a
//! plain LRU cache on the same trace, and the memory.

use std::convert::Infallible;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use studies::cooperative::experiments::{BLOCK_BYTES, Setup};
use studies::cooperative::{Algorithm, Blocks, Parameters, simulate, yardstick};
use trace::Record;
use trace::synth::auspex::Auspex;
use trace::synth::sprite::Sprite;

use crate::command;
use crate::output::{Output, preamble};
use crate::report::number;
use crate::roam::found::{Figure, Found, Table};
use crate::site;

/// The target, with 42 clients.
const ACCESSES_PER_S: f64 = 5e6;
/// The limit, with 237 clients and 50 million accesses.
const MEMORY_MIB: f64 = 2048.0;
/// A client cache that most reads miss.
const SMALL_CACHE_BLOCKS: u32 = 128;
const SECTION: &str = "simulations";

/// The options of `bench simulations`.
#[derive(Debug, Args)]
pub struct SimulationsOptions {
    #[command(flatten)]
    output: Output,
}

/// Measures and reports. Succeeds if no target figure was missed; quick sizes judge nothing.
pub fn run(options: &SimulationsOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let quick = options.output.quick;
    let machine = site::machine(&std::env::temp_dir())?;
    let found = measure(quick)?;
    let text = format!("{} {}", preamble(quick, site::unix_time_s(), &machine, ""), found.markdown());
    println!("{text}");
    options.output.write_report(&found, &[(SECTION.to_string(), text)])?;
    Ok(if found.missed() && !quick { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(quick: bool) -> Result<Found> {
    let accesses = |usual: u64| if quick { usual / 100 } else { usual };
    let sprite = Sprite::default();
    let sprite = Sprite { accesses: accesses(sprite.accesses), ..sprite };
    let auspex = Auspex { accesses: accesses(50_000_000), ..Auspex::default() };
    let setup = Setup::thesis(0, 1);
    let titles =
        ["trace", "clients", "accesses", "local hits", "N-Chance, millions/s", "plain LRU, millions/s", "peak, MiB"];
    let mut table = Table::new("Accesses of blocks in a second of a processor", titles);
    let mut samples = Vec::new();
    let mut row = |name: &str, blocks: &Blocks, client_blocks: u32| -> Result<[f64; 2]> {
        command::check_interrupt()?;
        let (algorithm, server_blocks) =
            (Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS), setup.server_blocks);
        let parameters = Parameters { algorithm, client_blocks, server_blocks, warm_up: 0, seed: 1 };
        let (outcome, chance_s) = timed(|| simulate(blocks, &parameters))?;
        let (hits, lru_s) = timed(|| yardstick::hits(blocks, client_blocks))?;
        let reads: u64 = outcome.reads.iter().sum();
        let local = 100.0 * outcome.reads[0] as f64 / reads as f64;
        let speeds = [chance_s, lru_s].map(|seconds| blocks.len() as f64 / seconds);
        let peak = peak_mib()?;
        let shown = speeds.map(|speed| number(speed / 1e6));
        let counts = [blocks.clients().to_string(), blocks.len().to_string(), format!("{} %", number(local))];
        table.row([name.to_string()].into_iter().chain(counts).chain(shown).chain([number(peak)]));
        samples.push(json!({ "trace": name, "n_chance_per_s": speeds[0], "lru_per_s": speeds[1], "lru_hits": hits, "peak_mib": peak }));
        Ok([speeds[0], peak])
    };
    let blocks = blocks_of(sprite.records())?;
    let [usual, _] = row("like Sprite's", &blocks, setup.client_blocks)?;
    let [misses, _] = row("like Sprite's, small caches", &blocks, SMALL_CACHE_BLOCKS)?;
    drop(blocks);
    let [_, peak] = row("like Auspex's", &blocks_of(auspex.records())?, setup.client_blocks)?;
    let at_least = |what: &str, speed: f64| Figure::at_least(what, speed / 1e6, ACCESSES_PER_S / 1e6, " million/s");
    Ok(Found {
        conditions: format!(
            "Blocks of {BLOCK_BYTES} bytes; {} blocks for each client ({SMALL_CACHE_BLOCKS} where caches are small), {} for the \
             server; one plain LRU cache of as many blocks as a client has, on the same accesses. Seconds are those of the \
             processor; the memory is the most until then, traces included.",
            setup.client_blocks, setup.server_blocks
        ),
        figures: vec![
            at_least("N-Chance with 42 clients", usual),
            at_least("the same where caches are small", misses),
            Figure::at_most("memory with 237 clients and 50 million accesses", peak, MEMORY_MIB, " MiB"),
        ],
        tables: vec![table],
        samples: Value::Array(samples),
        ..Found::default()
    })
}

fn blocks_of(records: impl Iterator<Item = Record>) -> Result<Blocks> {
    let blocks = Blocks::of(records.map(Ok::<_, Infallible>), BLOCK_BYTES);
    blocks.map_err(|error| anyhow::anyhow!("the trace: {error:?}"))
}

/// The result of `work`, and the seconds of this thread's processor time that it took.
fn timed<T>(work: impl FnOnce() -> T) -> Result<(T, f64)> {
    let before = processor_s()?;
    let done = work();
    Ok((done, processor_s()? - before))
}

fn processor_s() -> Result<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and what is written to lives.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0;
    anyhow::ensure!(!failed, "the processor's time: {}", std::io::Error::last_os_error());
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// The most memory that this process has had.
fn peak_mib() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("this process's memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmHWM")?;
    Ok(kib / 1024.0)
}
