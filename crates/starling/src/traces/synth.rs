//! `starling trace synth`: makes synthetic traces.

use super::made::Made;
use crate::args::{SynthCommand, WorstCase};
use crate::usage;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::process::ExitCode;
use trace::synth::{auspex, office, sprite, stress};
use trace::{Deed, Record, WorkloadError, worst_case};

/// Runs `starling trace synth`.
pub fn run(command: &SynthCommand) -> anyhow::Result<ExitCode> {
    match command {
        SynthCommand::Sprite(asked) => {
            let (clients, accesses, days, seed) = (asked.clients, asked.accesses, asked.days, asked.seed);
            let (writes, habits) = (asked.writes, asked.tendencies.over(sprite::HABITS));
            let of = sprite::Sprite { clients, accesses, days, writes, habits, seed };
            checked(of.check())?;
            let source = format!("synthetic, like Sprite's: {clients} clients, {days} days, seed {seed}");
            create(&asked.out, &source, accesses, of.records())
        }
        SynthCommand::Auspex(asked) => {
            let (clients, accesses, days, seed) = (asked.clients, asked.accesses, asked.days, asked.seed);
            let (writes, unseen_s, habits) = (asked.writes, asked.unseen_s, asked.tendencies.over(auspex::HABITS));
            let of = auspex::Auspex { clients, accesses, days, writes, unseen_s, habits, seed };
            checked(of.check())?;
            let source =
                format!("synthetic, like Auspex's as the network saw it: {clients} clients, {days} days, seed {seed}");
            create(&asked.out, &source, accesses, of.records())
        }
        SynthCommand::WorstCase(asked) => worst(asked),
        SynthCommand::Office(asked) => {
            let of = office::Office(asked.week());
            checked(of.check())?;
            let source = format!("synthetic, everyday work of one user: {} days, seed {}", of.0.days, of.0.seed);
            create(&asked.out, &source, of.0.requests, of.records())
        }
        SynthCommand::Stress(asked) => {
            let of = stress::Stress(asked.week());
            checked(of.check())?;
            let source = format!("synthetic, many writes of one user: {} days, seed {}", of.0.days, of.0.seed);
            create(&asked.out, &source, of.0.requests, of.records())
        }
    }
}

fn checked(check: Result<(), WorkloadError>) -> anyhow::Result<()> {
    check.map_err(|fault| usage(format!("--{fault}")))
}

fn worst(asked: &WorstCase) -> anyhow::Result<ExitCode> {
    let WorstCase { clients, cache_blocks, working_set, locality, gap, requests, seed, out } = asked;
    let of = worst_case::WorstCase {
        clients: *clients,
        cache_blocks: *cache_blocks,
        working_set: *working_set,
        locality: *locality,
        gap: *gap,
        requests: *requests,
        seed: *seed,
    };
    checked(of.check())?;
    let source = format!(
        "synthetic, worst case: {clients} clients, working set {working_set} of {cache_blocks} blocks, locality {locality}, gap {gap}, seed {seed}"
    );
    create(out, &source, *requests, of.records())
}

fn create(out: &Path, source: &str, requests: u64, records: impl Iterator<Item = Record>) -> anyhow::Result<ExitCode> {
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} requests, {eta} left")?;
    let bar = ProgressBar::new(requests).with_style(style);
    let mut made = Made::begin(out, source)?;
    for record in records {
        made.add(&record)?;
        bar.inc(u64::from(record.deed != Deed::Delete));
    }
    made.finish()?;
    bar.finish_and_clear();
    println!("{requests} reads and writes are in {}: {source}", out.display());
    Ok(ExitCode::SUCCESS)
}
