//! Near home and without one: the cost of small files and git on a roaming mount, beside sshfs and
//! Linux's NFS client to the same machine, a mount of the core, and the local disk; and the number
//! of syncs by the mount and its home.

mod place;
mod steps;
mod syncs;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use super::found::{Figure, Found, Table, median};
use crate::command::{self, check_interrupt};
use crate::report::number;
use crate::run::arguments;
use crate::scripted::Site;

use place::{Place, Who};
use steps::{STEPS, Sizes, Step, Unit};
use syncs::Syncs;

/// All runs of a step.
#[derive(Debug, Serialize)]
struct Sample {
    who: Who,
    step: &'static str,
    values: Vec<f64>,
}

/// The results, for the places and steps whose programs this machine has.
struct Results {
    places: Vec<Who>,
    steps: Vec<Step>,
    samples: Vec<Sample>,
}

/// Runs the study.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let sizes = Sizes::new(site, quick)?;
    let (mut left_out, mut failures) = (Vec::new(), Vec::new());
    let results = Results::measure(site, &sizes, &mut left_out, &mut failures)?;
    let syncs = if command::is_installed(syncs::PROGRAM) {
        noted(&mut failures, "syncs", syncs::measure(site, &sizes))?.unwrap_or_default()
    } else {
        left_out.push(format!("the syncs: not installed: {}", syncs::PROGRAM));
        Vec::new()
    };
    let mut figures = results.figures();
    figures.extend(syncs::figures(&syncs));
    let mut tables = results.tables();
    if !syncs.is_empty() {
        tables.push(syncs::table(&syncs));
    }
    Ok(Found {
        conditions: conditions(&sizes, &results, &syncs, &left_out),
        figures,
        tables,
        failures,
        samples: json!({ "timed": results.samples, "syncs": syncs }),
    })
}

/// Adds an error to the failures. An interrupt stays an error.
fn noted<T>(failures: &mut Vec<String>, what: &str, result: Result<T>) -> Result<Option<T>> {
    result.map(Some).or_else(|error| {
        check_interrupt()?;
        failures.push(format!("{what}: {error:#}"));
        Ok(None)
    })
}

fn conditions(sizes: &Sizes, results: &Results, syncs: &[Syncs], left_out: &[String]) -> String {
    let [first, transactions] = sizes.postmark;
    let mut text = format!(
        "Everything is on one machine: the home, the servers, and the mounts over loopback. {} files of \
         1 KiB ({} with fsync), `cp -r` of {} files from the local disk, PostMark with {first} files and {transactions} \
         transactions.",
        sizes.files, sizes.synced, sizes.tree_files
    );
    if results.steps.iter().any(|step| step.unit == Unit::Seconds) {
        text.push_str(&format!(
            " git clones a repository of {} files and {} commits from the local disk, as from another machine; {} files \
             are edited before the commit.",
            sizes.repository_files, sizes.commits, sizes.edits
        ));
    }
    if results.places.contains(&Who::Nfs) {
        text.push_str(
            " NFSv3 is nfs-ganesha and Linux's own client in a guest (User Mode Linux, one processor). The guest takes no \
             step that needs several processors, many processes, or files from outside the mount.",
        );
    }
    text.push_str(&format!(" Places by turns, medians of {}; before each step everything is home.", sizes.runs));
    if !syncs.is_empty() {
        text.push_str(
            " strace counts syncs in a run that is not timed, from before each step until everything is home.",
        );
    }
    if !left_out.is_empty() {
        text.push_str(&format!(" Left out: {}.", left_out.join("; ")));
    }
    text
}

impl Results {
    fn measure(site: &Site, sizes: &Sizes, left_out: &mut Vec<String>, failures: &mut Vec<String>) -> Result<Results> {
        let places = set_up(site, left_out, failures)?;
        let mut results = Results::new(&places, left_out);
        for run in 0..sizes.runs {
            for place in &places {
                results.run(place, sizes, run)?;
            }
        }
        Ok(results)
    }

    fn new(places: &[Place], left_out: &mut Vec<String>) -> Results {
        let (missing, steps): (Vec<Step>, Vec<Step>) = STEPS.into_iter().partition(|step| step.missing().is_some());
        let mut programs: Vec<&str> = missing.iter().filter_map(Step::missing).collect();
        programs.dedup();
        left_out.extend(programs.iter().map(|program| format!("steps with {program}: not installed: {program}")));
        Results { places: places.iter().map(|place| place.who).collect(), steps, samples: Vec::new() }
    }

    /// Takes all steps in a place, once.
    fn run(&mut self, place: &Place, sizes: &Sizes, run: u32) -> Result<()> {
        let dir = place.path(&format!("run-{run}"));
        place.work(&arguments("make-files", &dir, &[("files", 0)]))?;
        for step in self.steps.iter().filter(|step| step.is_for(place.who)) {
            let title = step.title;
            if let Some(prepare) = step.prepare {
                place.work(&prepare(&dir, sizes)).with_context(|| format!("before {title}"))?;
            }
            place.settle()?;
            let outcome = place.work(&(step.arguments)(&dir, sizes)).context(title)?;
            let value = (step.value)(&outcome, sizes).context("the workload did not measure it")?;
            eprintln!("near: {}: {}: {}", place.who.title(), step.label(), number(value));
            match self.samples.iter_mut().find(|sample| (sample.who, sample.step) == (place.who, title)) {
                Some(sample) => sample.values.push(value),
                None => self.samples.push(Sample { who: place.who, step: title, values: vec![value] }),
            }
        }
        place.settle()
    }

    /// NaN if it was not measured.
    fn median(&self, step: &Step, who: Who) -> f64 {
        let sample = self.samples.iter().find(|sample| sample.who == who && sample.step == step.title);
        sample.map_or(f64::NAN, |sample| median(&sample.values))
    }

    fn figures(&self) -> Vec<Figure> {
        let of = |who: Who| {
            let median = |step: &Step, who| self.median(step, who);
            self.steps.iter().flat_map(move |step| step.figures(who, &self.places, median))
        };
        Who::ALL.into_iter().flat_map(of).collect()
    }

    fn tables(&self) -> Vec<Table> {
        let is_rate = |step: &&Step| step.unit != Unit::Seconds;
        let (rates, seconds): (Vec<&Step>, Vec<&Step>) = self.steps.iter().partition(is_rate);
        let titled = [("Rates", rates), ("Seconds", seconds)].into_iter().filter(|(_, steps)| !steps.is_empty());
        titled.map(|(title, steps)| self.table(title, &steps)).collect()
    }

    fn table(&self, title: &str, steps: &[&Step]) -> Table {
        let is_column = |who: &&Who| steps.iter().any(|step| step.is_for(**who));
        let columns: Vec<Who> = self.places.iter().filter(is_column).copied().collect();
        let mut header = vec![String::new()];
        header.extend(columns.iter().map(|who| who.title().to_owned()));
        let mut table = Table::new(title, header);
        for step in steps {
            let values = columns.iter().map(|who| number(self.median(step, *who)));
            table.row([step.label()].into_iter().chain(values));
        }
        table
    }
}

/// Sets up the places whose programs this machine has. If the guest does not start, that is a
/// failure, and the study goes on without it.
fn set_up(site: &Site, left_out: &mut Vec<String>, failures: &mut Vec<String>) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for who in Who::ALL {
        if let Some(reason) = who.unavailable(site) {
            eprintln!("near: {}: {reason}", who.title());
            left_out.push(format!("{}: {}", who.title(), short(&reason)));
            continue;
        }
        let place = Place::new(site, who).with_context(|| format!("set up {}", who.title()));
        match who {
            Who::Nfs => places.extend(noted(failures, "NFSv3", place)?),
            _ => places.push(place?),
        }
    }
    Ok(places)
}

/// The part of a reason that names what is missing.
fn short(reason: &str) -> &str {
    reason.find("not installed").map_or(reason, |at| reason[at..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(places: &[Who], value: impl Fn(&Step, Who) -> f64) -> Results {
        let steps = Vec::from(STEPS);
        let pairs = steps.iter().flat_map(|step| places.iter().map(move |who| (step, *who)));
        let samples = pairs
            .filter(|(step, who)| step.is_for(*who))
            .map(|(step, who)| Sample { who, step: step.title, values: vec![value(step, who)] })
            .collect();
        Results { places: places.to_vec(), steps, samples }
    }

    fn markdown(results: &Results) -> String {
        Found { figures: results.figures(), tables: results.tables(), ..Found::default() }.markdown()
    }

    #[test]
    fn rates_and_times_are_judged_and_shown_apart() {
        let value = |_: &Step, who| if who == Who::Core { 1.0 } else { 3.0 };
        let text = markdown(&results(&Who::ALL, value));
        for line in [
            "| near home, of NFSv3's rate: create, write 1 KiB, close: files/s | ≥ 1.20x | 1.00x | **not reached** |",
            "| near home, of one's rate: the same by four processes: files/s | ≥ 2.00x | 1.00x | **not reached** |",
            "| near home, times the core mount's time: open, read, close what was read once | ≤ 1.50x | 0.333x | reached |",
            "| near home, times the core mount's time: `git clone` | ≤ 2.00x | 3.00x | **not reached** |",
            "| without a network, of the core mount's rate: unlink: files/s | ≥ 0.500x | 3.00x | reached |",
            "| `cp -r`: files/s | 3.00 | 3.00 | 3.00 | – | 1.00 | 3.00 |",
            "| `git status` | 3.00 | 3.00 | 3.00 | 1.00 | 3.00 |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_place_that_is_left_out_has_no_column_and_no_figure() {
        let places: Vec<Who> = Who::ALL.into_iter().filter(|who| *who != Who::Nfs).collect();
        let text = markdown(&results(&places, |_, _| 1.0));
        assert!(!text.contains("NFS") && text.contains("of sshfs's rate"), "{text}");
        assert_eq!(short("nfs.sh check: exit status: 1: not installed: rpcbind "), "not installed: rpcbind");
    }
}
