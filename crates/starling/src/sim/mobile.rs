//! `starling sim mobile`: a client with a slow link.

use super::{named, output, wrong};
use crate::args::Mobile;
use crate::traces::Source;
use crate::usage;
use serde_json::json;
use std::process::ExitCode;
use studies::ParameterError;
use studies::mobile::findings::findings;
use studies::mobile::study::{Grid, figures, study};
use studies::mobile::{Activity, ActivityError, Link, Outcome, Parameters, Rules, Tuning, Unit, WriteBack, simulate};
use studies::sweep::sweep;

/// The parameters, for a trace whose middle is at `half_us`.
fn parameters(asked: &Mobile, half_us: u64) -> anyhow::Result<Parameters> {
    let rules = named("rules", &asked.rules, [("product", Rules::Product), ("paper", Rules::Paper)])?;
    let of = match rules {
        Rules::Product => Parameters::default(),
        Rules::Paper => Parameters::PAPER,
    };
    let units = [("file", Unit::File), ("block", Unit::Block), ("auto", Unit::Auto)];
    let unit = asked.unit.as_ref().map_or(Ok(of.unit), |unit| named("unit", unit, units))?;
    let replacements = policy::replacement::Replacement::ALL.map(|one| (one.name(), one));
    let parameters = Parameters {
        cache_bytes: asked.cache.unwrap_or(of.cache_bytes),
        block_bytes: asked.block,
        link: Link { bits_per_second: asked.bandwidth, round_trip_us: asked.latency },
        hoard_us: asked.hoard.unwrap_or(of.hoard_us.min(half_us)),
        unit,
        replacement: named("replacement", &asked.replacement, replacements)?,
        tuning: Tuning {
            idle_us: asked.idle.unwrap_or(of.tuning.idle_us),
            age_us: asked.age.unwrap_or(of.tuning.age_us),
            read_tickets: asked.read_tickets.unwrap_or(of.tuning.read_tickets),
            write_tickets: asked.write_tickets.unwrap_or(of.tuning.write_tickets),
        },
        seed: asked.seed,
        ..of
    };
    parameters.check().map_err(wrong)?;
    Ok(parameters)
}

/// The given values, or the paper's if none are given; ascending, each once.
fn varied(asked: &[u64], papers: Vec<u64>) -> Vec<u64> {
    let mut all = if asked.is_empty() { papers } else { asked.to_vec() };
    all.sort_unstable();
    all.dedup();
    all
}

/// Runs `starling sim mobile`.
pub fn run(asked: &Mobile) -> anyhow::Result<ExitCode> {
    let paper = Grid::paper();
    let grid = |base| Grid {
        base,
        caches_bytes: varied(&asked.caches, paper.caches_bytes.clone()),
        slow: varied(&asked.bandwidths, paper.slow.clone()),
        fast: if asked.bandwidths.is_empty() { paper.fast.clone() } else { Vec::new() },
    };
    let lists = |fault| match fault {
        ParameterError::Range("cache", what) => usage(format!("--caches: {what}")),
        ParameterError::Range("bandwidth", what) => usage(format!("--bandwidths: {what}")),
        _ => wrong(fault),
    };
    grid(parameters(asked, u64::MAX)?).check().map_err(lists)?;
    output::check(&asked.output, Some(&asked.trace))?;
    let shown = asked.trace.display();
    let source = Source::open(&asked.trace, false)?;
    let about = source.about();
    let (mut first_us, mut last_us) = (None, 0);
    let seen = source.inspect(|record| {
        if let Ok(record) = record {
            last_us = record.time_us;
            first_us.get_or_insert(record.time_us);
        }
    });
    let activity = Activity::of(seen).map_err(|error| match error {
        ActivityError::Trace(error) => error,
        ActivityError::Unsorted(record) => usage(format!("{shown}: record {record} is earlier than the one before it")),
        ActivityError::TooMany(what, record) => {
            usage(format!("{shown}: record {record}: more {what} than can be simulated"))
        }
    })?;
    let Some(first_us) = first_us else { return Err(usage(format!("{shown}: nothing is done in it"))) };
    let base = parameters(asked, first_us + (last_us - first_us) / 2)?;
    if base.hoard_us > last_us {
        return Err(usage("--hoard is longer than the trace: nothing would be left to count"));
    }
    let grid = grid(base);
    let bar = output::progress(WriteBack::ALL.len() + grid.count(1), "simulations")?;
    let all = WriteBack::ALL.map(|write_back| Parameters { write_back, ..base });
    let outcomes = sweep(&all, |of| simulate(&activity, of), || bar.inc(1));
    let found = study(&[("the trace", &activity)], &grid, || bar.inc(1));
    bar.finish_and_clear();
    let figures = figures(&found);
    let of_policy = |(parameters, outcome): (&Parameters, &Outcome)| {
        json!({
            "parameters": parameters,
            "outcome": outcome,
            "time_expansion": outcome.time_expansion(),
            "interference": outcome.interference(),
            "miss_rate": outcome.miss_rate(),
        })
    };
    let report = json!({
        "about": about,
        "records": activity.len(),
        "grid": grid,
        "policies": all.iter().zip(&outcomes).map(of_policy).collect::<Vec<_>>(),
        "figures": figures,
        "findings": findings(&found),
        "outcome": found,
    });
    output::write(&asked.output, &report, &figures)?;
    println!("{about}");
    println!(
        "{} of cache, {} kb/s; {} cached when the link became slow\n",
        crate::size::show(base.cache_bytes),
        asked.bandwidth as f64 / 1e3,
        crate::size::show(outcomes[0].hoarded_bytes)
    );
    println!(
        "{:<11} {:>9} {:>12} {:>15} {:>12} {:>12} {:>10} {:>10}",
        "write-back", "misses", "longer by", "interference", "home after", "largest log", "sent", "left"
    );
    WriteBack::ALL.into_iter().zip(&outcomes).for_each(print);
    Ok(ExitCode::SUCCESS)
}

fn print((write_back, outcome): (WriteBack, &Outcome)) {
    let part = |part: Option<f64>| part.map_or("-".into(), |part| format!("{:.2} %", 100.0 * part));
    let home = outcome.reintegration_mean_us.map_or("-".into(), |us| format!("{:.1} min", us as f64 / 60e6));
    println!(
        "{:<11} {:>9} {:>12} {:>15} {home:>12} {:>12} {:>10} {:>10}",
        write_back.name(),
        part(outcome.miss_rate()),
        part(outcome.time_expansion().map(|times| times - 1.0)),
        part(outcome.interference()),
        crate::size::show(outcome.log_bytes_max),
        crate::size::show(outcome.sent_bytes),
        crate::size::show(outcome.left_bytes)
    );
}
