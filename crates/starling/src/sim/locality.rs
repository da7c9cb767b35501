//! `starling sim locality`: which machine manages which files.

use super::{Has, blocks_of, output, refused, wrong};
use crate::args::Locality;
use crate::traces::Source;
use crate::usage;
use serde_json::json;
use std::process::ExitCode;
use studies::cooperative::experiments::comparison::Workload;
use studies::locality::accesses::Accesses;
use studies::locality::report::Study;
use studies::locality::{Parameters, Policy};

/// Runs `starling sim locality`.
pub fn run(asked: &Locality) -> anyhow::Result<ExitCode> {
    let has = Has::of(&asked.machines)?;
    let cache_blocks = blocks_of("client-cache", has.client_cache, has.block, 1)?;
    output::check(&asked.output, Some(&asked.trace))?;
    let source = Source::open(&asked.trace, false)?;
    let about = source.about();
    let accesses = Accesses::of(source, has.block).map_err(|error| refused(&asked.trace, error))?;
    let times = accesses.all().first().zip(accesses.all().last()).map(|(first, last)| (first.time_us, last.time_us));
    let Some((first_us, last_us)) = times else {
        return Err(usage(format!("{}: nothing is done in it", asked.trace.display())));
    };
    let warm_up_us = asked.warm_up.unwrap_or(first_us + (last_us - first_us) / 2);
    if warm_up_us > last_us {
        return Err(usage("--warm-up is longer than the trace: nothing would be left to count"));
    }
    let (commit_us, seed) = (asked.commit, asked.seed);
    let parameters = Parameters { cache_blocks, commit_us, warm_up_us, seed, ..Parameters::default() };
    parameters.check().map_err(wrong)?;
    let bar = output::progress(Study::STEPS, "policies")?;
    let study = Study::run(&accesses, &parameters, || bar.inc(1));
    bar.finish_and_clear();
    let figures = study.figures(Workload::Other);
    let named = |(policy, outcome): (Policy, _)| json!({ "policy": policy, "outcome": outcome });
    let report = json!({
        "about": about,
        "clients": accesses.clients(),
        "block_bytes": has.block,
        "cache_blocks": cache_blocks,
        "commit_us": commit_us,
        "warm_up_us": warm_up_us,
        "seed": seed,
        "policies": Policy::ALL.into_iter().zip(&study.outcomes).map(named).collect::<Vec<_>>(),
        "figures": figures,
        "findings": study.findings(Workload::Other),
    });
    output::write(&asked.output, &report, &figures)?;
    println!("{about}");
    println!("clients: {}, each with {cache_blocks} blocks of {} bytes\n", accesses.clients(), has.block);
    println!(
        "{:<13} {:>12} {:>10} {:>10} {:>10} {:>10}",
        "manager", "messages", "per read", "per miss", "per write", "per delete"
    );
    let shown = |mean: Option<f64>| mean.map_or("-".into(), |mean| format!("{mean:.3}"));
    for (policy, of) in Policy::ALL.into_iter().zip(&study.outcomes) {
        println!(
            "{:<13} {:>12} {:>10} {:>10} {:>10} {:>10}",
            policy.name(),
            of.hops(),
            shown(of.hops_per_read()),
            shown(of.hops_per_miss()),
            shown(of.hops_per_write()),
            shown(of.hops_per_delete())
        );
    }
    Ok(ExitCode::SUCCESS)
}
