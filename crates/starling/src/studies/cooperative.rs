//! `starling sim cooperative`: clients that serve each other from their caches.

use crate::args::Cooperative;
use crate::traces::Source;
use crate::usage;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use simulate::cooperative::{Algorithm, Blocks, BlocksError, Outcome, Parameters, Technology, mean_us, simulate};
use std::process::ExitCode;

fn blocks_of(name: &str, bytes: u64, block_bytes: u64, least: u64) -> anyhow::Result<u32> {
    let blocks = bytes / block_bytes;
    if blocks < least {
        return Err(usage(format!(
            "--{name}: {bytes} bytes hold no block of {block_bytes}: give more, or a smaller --block"
        )));
    }
    u32::try_from(blocks).map_err(|_| usage(format!("--{name}: {blocks} blocks are more than can be simulated")))
}

/// Which are asked for, without what is asked for twice.
fn algorithms(asked: &[String], n: u8) -> anyhow::Result<Vec<Algorithm>> {
    let all = Algorithm::ALL.map(|algorithm| match algorithm {
        Algorithm::NChance(_) => Algorithm::NChance(n),
        other => other,
    });
    if let Some(unknown) = asked.iter().find(|name| all.iter().all(|one| one.name() != **name)) {
        let names = all.map(Algorithm::name).join(", ");
        return Err(usage(format!("--algorithm: {unknown:?} is none: there are {names}")));
    }
    Ok(all.into_iter().filter(|one| asked.is_empty() || asked.iter().any(|name| name == one.name())).collect())
}

/// Does what is asked for.
pub fn run(asked: &Cooperative) -> anyhow::Result<ExitCode> {
    let block_bytes = asked.block;
    if block_bytes == 0 {
        return Err(usage("--block: a block has at least one byte"));
    }
    let client_blocks = blocks_of("client-cache", asked.client_cache, block_bytes, 1)?;
    let server_blocks = blocks_of("server-cache", asked.server_cache, block_bytes, 0)?;
    let wanted = algorithms(&asked.algorithm, asked.n)?;
    let shown = asked.trace.display();
    let source = Source::open(&asked.trace, false)?;
    let about = source.about();
    let blocks = Blocks::of(source, block_bytes).map_err(|error| match error {
        BlocksError::Trace(error) => error,
        BlocksError::TooMany(what) => usage(format!("{shown}: more {what} than can be simulated")),
    })?;
    let warm_up = asked.warm_up.unwrap_or(blocks.len() / 2);
    if warm_up >= blocks.len() {
        return Err(usage(format!(
            "--warm-up: the trace has {} accesses of blocks, nothing would be left to count",
            blocks.len()
        )));
    }
    let parameters = |algorithm| Parameters { algorithm, client_blocks, server_blocks, warm_up, seed: asked.seed };
    let bar = ProgressBar::new(wanted.len() as u64);
    let bar = bar.with_style(ProgressStyle::with_template("{wide_bar} {pos} of {len} algorithms, {eta} left")?);
    let mut results = Vec::new();
    // What all are compared with.
    let base = simulate(&blocks, &parameters(Algorithm::Base));
    for algorithm in wanted {
        let outcome = match algorithm {
            Algorithm::Base => base.clone(),
            other => simulate(&blocks, &parameters(other)),
        };
        results.push((algorithm, outcome));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let base_us = mean_us(&base.reads, &Technology::ATM.times_us(Algorithm::Base));
    let Some(base_us) = base_us else {
        return Err(usage(format!("{shown}: nothing is read after the first {warm_up} accesses of blocks")));
    };
    let rows: Vec<Row> =
        results.iter().map(|(algorithm, outcome)| Row::new(*algorithm, outcome, &base, base_us)).collect();
    if let Some(path) = &asked.json {
        let report = json!({
            "about": about,
            "clients": blocks.clients(),
            "accesses": blocks.len(),
            "block_bytes": block_bytes,
            "client_blocks": client_blocks,
            "server_blocks": server_blocks,
            "warm_up": warm_up,
            "seed": asked.seed,
            "technology": Technology::ATM,
            "algorithms": rows.iter().map(Row::json).collect::<Vec<_>>(),
        });
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    println!("{about}");
    println!(
        "{} clients with {client_blocks} blocks of {block_bytes} bytes each, {server_blocks} at the server; of {} accesses {warm_up} fill the caches\n",
        blocks.clients(),
        blocks.len()
    );
    println!(
        "{:<10} {:>11} {:>9} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "algorithm", "mean read", "speed-up", "local", "remote", "server", "disk", "server load"
    );
    rows.iter().for_each(Row::print);
    Ok(ExitCode::SUCCESS)
}

struct Row<'a> {
    algorithm: Algorithm,
    outcome: &'a Outcome,
    mean_us: f64,
    speed_up: f64,
    /// Of the base case's.
    load: f64,
}

impl Row<'_> {
    fn new<'a>(algorithm: Algorithm, outcome: &'a Outcome, base: &Outcome, base_us: f64) -> Row<'a> {
        let mean_us = mean_us(&outcome.reads, &Technology::ATM.times_us(algorithm)).unwrap_or(f64::NAN);
        let load = outcome.load.total() as f64 / base.load.total().max(1) as f64;
        Row { algorithm, outcome, mean_us, speed_up: base_us / mean_us, load }
    }

    fn json(&self) -> Value {
        json!({
            "algorithm": self.algorithm,
            "mean_us": self.mean_us,
            "speed_up": self.speed_up,
            "times_us": Technology::ATM.times_us(self.algorithm),
            "reads": self.outcome.reads,
            "clients": self.outcome.clients,
            "load": self.outcome.load,
            "load_of_base": self.load,
        })
    }

    fn print(&self) {
        let count: u64 = self.outcome.reads.iter().sum();
        let [local, remote, server, disk] =
            self.outcome.reads.map(|reads| format!("{:.1} %", 100.0 * reads as f64 / count as f64));
        println!(
            "{:<10} {:>8.0} µs {:>9.2} {local:>8} {remote:>8} {server:>8} {disk:>8} {:>10.0} %",
            self.algorithm.name(),
            self.mean_us,
            self.speed_up,
            100.0 * self.load
        );
    }
}
