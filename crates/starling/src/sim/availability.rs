//! `starling sim availability`: how long data are out of reach, how rarely they are lost, and the
//! cost of redundancy.

use super::{output, wrong};
use crate::args::Availability;
use crate::usage;
use serde_json::json;
use std::process::ExitCode;
use studies::ParameterError;
use studies::availability::cost::{self, Disks};
use studies::availability::machines::{Trial, hours_per_month, losses_per_year};
use studies::availability::report::Study;
use studies::availability::{Layout, Losses, Outages, YEAR_HOURS};

/// Hours to rebuild a disk without `--rebuild`.
const REBUILD_HOURS: f64 = 24.0;

fn hours(us: u64) -> f64 {
    us as f64 / 3.6e9
}

/// Turns a study's error into one that names the option.
fn checked(checked: Result<(), ParameterError>) -> anyhow::Result<()> {
    checked.map_err(|fault| wrong(fault.to_string().replacen("-hours", "", 1)))
}

/// The disks of table 4-1, with one parity in each group.
fn disks(asked: &Availability) -> Disks {
    let default = Disks::default();
    // A group of one machine has no room for parity: take it as two.
    let group = asked.group.map_or(default.group.min(asked.data.unwrap_or(default.group)), |group| group.max(2) - 1);
    Disks { data: asked.data.unwrap_or(default.data.max(group)), group, small: asked.small }
}

/// Runs `starling sim availability`.
pub fn run(asked: &Availability) -> anyhow::Result<ExitCode> {
    let layout = Layout { machines: asked.machines, parities: asked.parities, group: asked.group };
    let rebuild_hours = asked.rebuild.map(hours);
    let outages = Outages { layout, up_hours: hours(asked.up), down_hours: hours(asked.down), rebuild_hours };
    let rebuild_hours = rebuild_hours.unwrap_or(REBUILD_HOURS);
    let losses = Losses { layout, life_hours: hours(asked.life), rebuild_hours };
    let disks = disks(asked);
    if asked.years == 0 {
        return Err(usage("--years must be at least 1"));
    }
    let trial = Trial { hours: f64::from(asked.years) * YEAR_HOURS, seed: asked.seed };
    checked(outages.check())?;
    checked(losses.check())?;
    checked(disks.check())?;
    let tried = trial.check_outages(&outages).and(trial.check_losses(&losses)).and(Study::check(&trial));
    tried.map_err(|_| usage("--years: machines would fail too often to simulate; give fewer years"))?;
    output::check(&asked.output, None)?;
    let bar = output::progress(2 + Study::STEPS, "trials")?;
    let (computed, tried) = (outages.hours_per_month(), hours_per_month(&outages, &trial));
    bar.inc(1);
    let (years, lost) = (losses.years(), losses_per_year(&losses, &trial));
    bar.inc(1);
    let study = Study::run(&trial, || bar.inc(1));
    bar.finish_and_clear();
    let figures = study.figures();
    let (findings, costs) = (study.findings(), cost::findings(&disks));
    let report = json!({
        "outages": outages,
        "losses": losses,
        "disks": disks,
        "trial": trial,
        "hours_per_month": { "computed": computed, "tried": tried },
        "years_between_losses": years,
        "losses_per_year_tried": lost,
        "outcome": study,
        "figures": figures,
        "findings": findings,
        "cost": costs,
    });
    output::write(&asked.output, &report, &figures)?;
    let groups = asked.group.map_or("striped over all".into(), |group| format!("in groups of {group}"));
    println!("{} machines {groups}, {} of each stripe can be missing", asked.machines, asked.parities);
    println!("some data out of reach   {computed:.6} hours per month; tried: {:.6} ± {:.6}", tried.mean, tried.error);
    println!("from one loss to the next {years:.3e} years; tried: {:.3e} ± {:.3e} a year\n", lost.mean, lost.error);
    output::print(findings.iter().filter(|finding| !finding.stated.is_empty()));
    let Disks { data, group, .. } = disks;
    let what = format!("{data} disks of data in groups of {group}, each with one parity, as in table 4-1");
    println!("\n{what}; performance, and performance per disk:");
    output::print(&costs);
    Ok(ExitCode::SUCCESS)
}
