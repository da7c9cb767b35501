//! `starling sim cooperative`: clients serve each other from their caches.

use super::{Has, blocks_of, named, output, refused, wrong};
use crate::args::Cooperative;
use crate::traces::Source;
use crate::usage;
use serde_json::json;
use std::process::ExitCode;
use studies::cooperative::experiments::Setup;
use studies::cooperative::experiments::comparison::{self, Row, Workload};
use studies::cooperative::{Algorithm, Blocks, Knowledge, Technology};

/// The chosen algorithms, each once; all if none is chosen.
fn algorithms(asked: &[String], n: u8) -> anyhow::Result<Vec<Algorithm>> {
    let mut all = Vec::new();
    for algorithm in Algorithm::ALL {
        all.push(match algorithm {
            Algorithm::NChance(_) => Algorithm::NChance(n),
            other => other,
        });
        if matches!(algorithm, Algorithm::WeightedLru(_)) {
            all.extend([Knowledge::SingletHints, Knowledge::Global].map(Algorithm::WeightedLru));
        }
    }
    if let Some(unknown) = asked.iter().find(|name| all.iter().all(|one| one.name() != **name)) {
        let names: Vec<&str> = all.iter().map(|algorithm| algorithm.name()).collect();
        return Err(usage(format!("unknown --algorithm {unknown:?}; choose from: {}", names.join(", "))));
    }
    Ok(all.into_iter().filter(|one| asked.is_empty() || asked.iter().any(|name| name == one.name())).collect())
}

/// Runs `starling sim cooperative`.
pub fn run(asked: &Cooperative) -> anyhow::Result<ExitCode> {
    let has = Has::of(&asked.machines)?;
    let block_bytes = has.block;
    let client_blocks = blocks_of("client-cache", has.client_cache, block_bytes, 1)?;
    let server_blocks = blocks_of("server-cache", asked.server_cache.unwrap_or(has.server_cache), block_bytes, 0)?;
    let wanted = algorithms(&asked.algorithm, asked.n)?;
    let technologies =
        [("atm", Technology::ATM), ("nvme-25g", Technology::NVME_25_GBPS), ("nvme-100g", Technology::NVME_100_GBPS)];
    let technology = named("technology", asked.technology.as_deref().unwrap_or(has.technology), technologies)?;
    output::check(&asked.output, Some(&asked.trace))?;
    let source = Source::open(&asked.trace, false)?;
    let about = source.about();
    let blocks = Blocks::of(source, block_bytes).map_err(|error| refused(&asked.trace, error))?;
    let warm_up = asked.warm_up.unwrap_or(blocks.len() / 2);
    let setup = Setup { block_bytes, client_blocks, server_blocks, warm_up, seed: asked.seed };
    setup.check(&blocks).map_err(wrong)?;
    let others = wanted.iter().filter(|algorithm| **algorithm != Algorithm::Base).count();
    let bar = output::progress(1 + others, "algorithms")?;
    let found = comparison::compare_those(&blocks, &setup, technology, &wanted, || bar.inc(1));
    bar.finish_and_clear();
    let figures = comparison::figures(&found, Workload::Other);
    let report = json!({
        "about": about,
        "clients": blocks.clients(),
        "accesses": blocks.len(),
        "setup": setup,
        "technology": technology,
        "algorithms": found.rows,
        "figures": figures,
    });
    output::write(&asked.output, &report, &figures)?;
    println!("{about}");
    println!(
        "clients: {}, each with {client_blocks} blocks of {block_bytes} bytes; {server_blocks} at the server; of {} accesses {warm_up} fill the caches\n",
        blocks.clients(),
        blocks.len()
    );
    println!(
        "{:<21} {:>11} {:>9} {:>8} {:>8} {:>8} {:>8} {:>12}",
        "algorithm", "mean read", "speed-up", "local", "remote", "server", "disk", "server load"
    );
    found.rows.iter().for_each(print);
    Ok(ExitCode::SUCCESS)
}

fn print(row: &Row) {
    let count: u64 = row.outcome.reads.iter().sum();
    let [local, remote, server, disk] =
        row.outcome.reads.map(|reads| format!("{:.1} %", 100.0 * reads as f64 / count as f64));
    println!(
        "{:<21} {:>8.1} µs {:>9.2} {local:>8} {remote:>8} {server:>8} {disk:>8} {:>10.0} %",
        row.name,
        row.mean_us,
        row.speed_up,
        100.0 * row.load_of_base
    );
}
