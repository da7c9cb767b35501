//! `starling sim cleaning`: the cost of cleaning a log.

use super::{Has, blocks_of, output, refused, wrong};
use crate::args::Cleaning;
use crate::traces::Source;
use crate::usage;
use serde_json::json;
use std::process::ExitCode;
use studies::ParameterError;
use studies::cleaning::Parameters;
use studies::cleaning::report::Study;
use studies::cooperative::experiments::comparison::Workload;
use studies::figure::Figure;
use studies::locality::accesses::Accesses;

/// Runs `starling sim cleaning`.
pub fn run(asked: &Cleaning) -> anyhow::Result<ExitCode> {
    let has = Has::of(&asked.machines)?;
    let cache_blocks = blocks_of("client-cache", has.client_cache, has.block, 1)?;
    let (segment_bytes, utilisation, seed) = (asked.segment.unwrap_or(has.segment), asked.utilisation, asked.seed);
    let parameters = Parameters { segment_bytes, utilisation, cache_blocks, seed, ..Parameters::default() };
    let option = |fault: ParameterError| wrong(fault.to_string().replacen("segment-bytes", "segment", 1));
    parameters.check(has.block).map_err(option)?;
    output::check(&asked.output, Some(&asked.trace))?;
    let source = Source::open(&asked.trace, false)?;
    let about = source.about();
    let accesses = Accesses::of(source, has.block).map_err(|error| refused(&asked.trace, error))?;
    let bar = output::progress(Study::STEPS, "simulations")?;
    let study = Study::run(&accesses, &parameters, || bar.inc(1));
    bar.finish_and_clear();
    let costs = study.sizes.iter().chain(study.utilisations.iter().flatten());
    if costs.into_iter().all(|run| run.outcome.is_none_or(|outcome| outcome.write_cost.is_none())) {
        let path = asked.trace.display();
        return Err(usage(format!(
            "{path}: too little is written to fill segments: use a longer trace, or a smaller --segment"
        )));
    }
    let figures = study.figures();
    let report = json!({
        "about": about,
        "clients": accesses.clients(),
        "block_bytes": has.block,
        "parameters": parameters,
        "outcome": study,
        "figures": figures,
        "findings": study.findings(Workload::Other),
    });
    output::write(&asked.output, &report, &figures)?;
    println!("{about}");
    for figure in &figures {
        print(figure);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a figure as a table: one row per value of x, one column per curve.
fn print(figure: &Figure) {
    println!("\n{}: {}", figure.title, figure.y.label);
    for (at, curve) in figure.curves.iter().enumerate() {
        println!("  {}: {}", at + 1, curve.name);
    }
    let mut all: Vec<f64> = figure.curves.iter().flat_map(|curve| &curve.points).map(|point| point.0).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let heads: String = (1..=figure.curves.len()).map(|at| format!("{at:>9}")).collect();
    println!("  {heads}  {}", figure.x.label);
    for x in all {
        let at = |points: &[(f64, f64)]| points.iter().find(|point| point.0 == x).map(|point| point.1);
        let shown = |y: Option<f64>| y.map_or(format!("{:>9}", "-"), |y| format!("{y:>9.3}"));
        let row: String = figure.curves.iter().map(|curve| shown(at(&curve.points))).collect();
        println!("  {row}  {}", (x * 1e6).round() / 1e6);
    }
}
