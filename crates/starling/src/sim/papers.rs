//! `starling sim papers`: all studies, on traces made for them, as one page.
//!
//! `traces` makes the traces; `page` writes the page.

mod page;
mod traces;

use super::output;
use crate::args::Papers;
use crate::names::folder_of;
use crate::usage;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use studies::availability::cost::{self, Disks};
use studies::availability::machines::Trial;
use studies::availability::{self, YEAR_HOURS};
use studies::cleaning::{self, classic};
use studies::cooperative::Blocks;
use studies::cooperative::experiments::comparison::{self, Workload};
use studies::cooperative::experiments::{BLOCK_BYTES, Setup, calibration, sensitivity, worst};
use studies::figure::{Figure, Finding, Kind};
use studies::locality::accesses::Accesses;
use studies::{locality, mobile};
use traces::Traces;

const PAGE: &str = "index.html";
const NUMBERS: &str = "figures.json";

/// One study of the report.
#[derive(Serialize)]
struct Section {
    /// Its name in links.
    id: &'static str,
    title: &'static str,
    /// Which part of the paper it repeats, and how.
    about: &'static str,
    parameters: Value,
    figures: Vec<Figure>,
    findings: Vec<Finding>,
    /// All numbers that were measured.
    outcome: Value,
}

/// The whole report.
#[derive(Serialize)]
struct Report {
    seed: u64,
    /// Made with `--quick`: from small parts of the traces, so its numbers mean little.
    quick: bool,
    sections: Vec<Section>,
}

/// The progress bar of the studies, which run one after the other, each in steps.
struct Steps(ProgressBar);

impl Steps {
    fn begin(&self, what: &'static str, count: usize) {
        self.0.set_message(what);
        self.0.set_length(count as u64);
        self.0.set_position(0);
    }

    fn done(&self) {
        self.0.inc(1);
    }
}

/// Runs `starling sim papers`.
pub fn run(asked: &Papers) -> anyhow::Result<ExitCode> {
    let partial = partial(&asked.out)?;
    let traces = Traces { seed: asked.seed, quick: asked.quick };
    let style = ProgressStyle::with_template("{msg:32} {wide_bar} {pos} of {len}, {eta} left")?;
    let steps = Steps(ProgressBar::new(0).with_style(style));
    let (sprite, managed) = of_sprite(&traces, &steps)?;
    let mut sections = vec![of_worst(&traces, &steps)];
    sections.extend(sprite);
    sections.extend(of_auspex(&traces, &steps)?);
    sections.push(managed);
    sections.push(of_chance(&traces, &steps));
    sections.extend(of_machines(&traces, &steps));
    sections.push(of_mobile(&traces, &steps)?);
    steps.0.finish_and_clear();
    let report = Report { seed: asked.seed, quick: asked.quick, sections };
    let files = [(PAGE, page::html(&report)?), (NUMBERS, output::json(&report)?)];
    let written = || -> anyhow::Result<()> {
        std::fs::create_dir(&partial)?;
        files.iter().try_for_each(|(name, text)| output::write_synced(&partial.join(name), text))?;
        Ok(std::fs::rename(&partial, &asked.out)?)
    };
    let written = written().inspect_err(|_| drop(std::fs::remove_dir_all(&partial)));
    written.with_context(|| format!("write {}", asked.out.display()))?;
    let all = report.sections.iter().flat_map(|section| &section.findings);
    let count = |kind, holds| all.clone().filter(|one| (one.kind, one.holds) == (kind, Some(holds))).count();
    if asked.quick {
        println!("a quick report: its numbers mean little");
    }
    let [measured, computed] = [Kind::Measured, Kind::Computed].map(|kind| [count(kind, true), count(kind, false)]);
    println!("simulated: {} orderings hold, {} do not", measured[0], measured[1]);
    println!("computed: {} values are as stated, {} are not", computed[0], computed[1]);
    for section in &report.sections {
        for finding in section.findings.iter().filter(|finding| finding.holds == Some(false)) {
            println!("  {}: {} ({}): {}", section.title, finding.what, finding.stated, finding.ours);
        }
    }
    println!("{}", asked.out.join(PAGE).display());
    Ok(ExitCode::SUCCESS)
}

/// The folder that the report is written to until it is complete. Refuses an output folder that has
/// something in it.
fn partial(out: &Path) -> anyhow::Result<PathBuf> {
    let wrong = |what: &str| usage(format!("--out: {}: {what}", out.display()));
    let name = out.file_name().ok_or_else(|| wrong("give the report's folder a name"))?;
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = out.with_file_name(partial);
    if out.symlink_metadata().is_ok() && !out.read_dir().is_ok_and(|mut list| list.next().is_none()) {
        return Err(wrong("it exists and is not an empty folder: remove it, or give another name"));
    }
    if partial.symlink_metadata().is_ok() {
        return Err(wrong(&format!("remove {}, the rest of an unfinished report", partial.display())));
    }
    let folder = folder_of(out);
    if !folder.is_dir() {
        return Err(wrong("its folder does not exist"));
    }
    Ok(partial)
}

fn of_worst(traces: &Traces, steps: &Steps) -> Section {
    let setup = traces.worst_case();
    steps.begin("worst case", worst::WORKLOADS);
    let found = worst::study(&setup, || steps.done());
    Section {
        id: "worst",
        title: "Cooperative caching: the worst case",
        about: "Dahlin, section 3.3.4.3: clients read their own data at random, and a little more data than fits their caches. The thesis specifies this workload completely, so the \
                curves must be the same. The study varies the size of the data, the pauses between bursts, and sharing.",
        parameters: json!({ "setup": setup, "clients": 10, "cache_blocks": 10, "server_blocks": 0 }),
        figures: worst::figures(&found),
        findings: worst::findings(&found),
        outcome: json!(found),
    }
}

/// Cooperative caching on the Sprite trace, and the placement of managers.
fn of_sprite(traces: &Traces, steps: &Steps) -> anyhow::Result<([Section; 2], Section)> {
    let (warm_up, draws) = (traces.sprite_warm_up(), traces.sprite_draws());
    steps.begin("Sprite: its trace", draws);
    let calibrated = calibration::calibrate(traces.sprite(), warm_up, draws, || steps.done());
    let trace = calibrated.first().map_or(traces.sprite(), |nearest| nearest.trace);
    steps.begin("Sprite: other such traces", draws);
    let ranges = calibration::ranges(&calibrated, warm_up, || steps.done());
    let blocks = traces::blocks(trace.records())?;
    let accesses = traces::accesses(trace.records())?;
    let setup = Setup::thesis(warm_up, traces.seed);
    let parameters = json!({ "trace": format!("{trace:?}"), "setup": setup });
    setup.check(&blocks)?;
    steps.begin("Sprite: algorithms", comparison::RUNS);
    let compared = comparison::compare(&blocks, &setup, || steps.done());
    let runs = sensitivity::Runs::of(&blocks, &setup);
    steps.begin("Sprite: parameters", runs.len());
    let varied = sensitivity::study(&blocks, &runs, || steps.done());
    let mut findings = comparison::latencies();
    findings.extend(calibration::findings(&calibrated, &ranges));
    findings.extend(comparison::findings(&compared, Workload::Sprite));
    let comparison = Section {
        id: "sprite",
        title: "Cooperative caching: Sprite",
        about: "Dahlin, sections 3.2 and 3.3.1: 42 clients of one server for two days. Where clients find blocks that are not in their own caches, how long reads take by table 3-2, what \
                the server does, and which clients gain. Two-choices and epochs are algorithms that the thesis leaves to later work.",
        parameters: parameters.clone(),
        figures: comparison::figures(&compared, Workload::Sprite),
        findings,
        outcome: json!({ "compared": compared, "ranges": ranges }),
    };
    let sensitivity = Section {
        id: "sensitivity",
        title: "Cooperative caching: other parameters",
        about: "Dahlin, sections 3.3.2 and 3.3.3, on the trace like Sprite's. The study varies sizes of caches, parameters of the algorithms and networks, and uses the thesis's projection \
                of technology, and disks and networks of today.",
        parameters,
        figures: sensitivity::figures(&varied),
        findings: sensitivity::findings(&varied),
        outcome: json!(varied),
    };
    steps.begin("Sprite: managers", locality::report::Study::STEPS);
    let managed = managers(&accesses, traces, &format!("{trace:?}"), Workload::Sprite, || steps.done());
    Ok(([comparison, sensitivity], managed))
}

fn of_auspex(traces: &Traces, steps: &Steps) -> anyhow::Result<Vec<Section>> {
    let trace = traces.auspex();
    let about_trace = format!("{trace:?}");
    steps.begin("Auspex: its trace", 2);
    let blocks: Blocks = traces::blocks(trace.records())?;
    steps.done();
    let accesses: Accesses = traces::accesses(trace.records())?;
    let setup = Setup::thesis(traces.auspex_warm_up(), traces.seed);
    setup.check(&blocks)?;
    steps.begin("Auspex: algorithms", comparison::RUNS);
    let compared = comparison::compare(&blocks, &setup, || steps.done());
    let cleaning_of = cleaning::Parameters { seed: traces.seed, ..cleaning::Parameters::default() };
    steps.begin("Auspex: cleaning", cleaning::report::Study::STEPS);
    let cleaned = cleaning::report::Study::run(&accesses, &cleaning_of, || steps.done());
    steps.begin("Auspex: managers", locality::report::Study::STEPS);
    let managed = managers(&accesses, traces, &about_trace, Workload::Auspex, || steps.done());
    let comparison = Section {
        id: "auspex",
        title: "Cooperative caching: Auspex",
        about: "Dahlin, section 3.3.4.2: 237 clients for a week, as seen on the network. Such a trace lacks reads that clients served from their own caches. Figure 3-17 adds four such \
                hits to each read, as the thesis does; all other figures are of the reads in the trace.",
        parameters: json!({ "trace": about_trace, "setup": setup }),
        figures: comparison::figures(&compared, Workload::Auspex),
        findings: comparison::findings(&compared, Workload::Auspex),
        outcome: json!(compared),
    };
    let cleaning = Section {
        id: "cleaning",
        title: "Cleaning",
        about: "Dahlin, sections 4.2 to 4.4, on the trace like Auspex's: the cost of cleaning, by segment size and utilisation of the disks, with live data read from disks or from \
                clients' caches; and the messages that keep track of dead data.",
        parameters: json!({ "trace": about_trace, "block_bytes": BLOCK_BYTES, "of": cleaning_of }),
        figures: cleaned.figures(),
        findings: cleaned.findings(Workload::Auspex),
        outcome: json!(cleaned),
    };
    Ok(vec![comparison, cleaning, managed])
}

/// The placement of managers, on one trace.
fn managers(accesses: &Accesses, traces: &Traces, trace: &str, of: Workload, done: impl Fn() + Sync) -> Section {
    let parameters = locality::Parameters { seed: traces.seed, ..locality::Parameters::default() };
    let found = locality::report::Study::run(accesses, &parameters, done);
    let (id, title, about) = match of {
        Workload::Auspex => (
            "locality-auspex",
            "Locality of management: Auspex",
            "Dahlin, section 5.3, on the trace like Auspex's: how the placement of managers changes the number of messages of reads, writes and deletes. The trace lacks reads that \
             clients served from their own caches, so the figures are of the other reads.",
        ),
        Workload::Sprite | Workload::Other => (
            "locality-sprite",
            "Locality of management: Sprite",
            "Dahlin, section 5.3, on the trace like Sprite's: how the placement of managers changes the number of messages of reads, writes and deletes.",
        ),
    };
    Section {
        id,
        title,
        about,
        parameters: json!({ "trace": trace, "block_bytes": BLOCK_BYTES, "of": parameters }),
        figures: found.figures(of),
        findings: found.findings(of),
        outcome: json!(found),
    }
}

fn of_chance(traces: &Traces, steps: &Steps) -> Section {
    let of = traces.classic();
    steps.begin("cleaning, random writes", classic::Study::STEPS);
    let found = classic::Study::run(&of, || steps.done());
    Section {
        id: "classic",
        title: "Cleaning: random writes",
        about: "Rosenblum and Ousterhout, sections 3.4 and 3.5: the same cleaner with random writes, for which a formula predicts the result; and greedy against cost-benefit choice.",
        parameters: json!({ "of": format!("{of:?}") }),
        figures: found.figures(),
        findings: found.findings(),
        outcome: json!(found),
    }
}

fn of_machines(traces: &Traces, steps: &Steps) -> [Section; 2] {
    let trial = Trial { hours: traces.trial_years() * YEAR_HOURS, seed: traces.seed };
    steps.begin("availability", availability::report::Study::STEPS);
    let found = availability::report::Study::run(&trial, || steps.done());
    let disks = Disks::default();
    let availability = Section {
        id: "availability",
        title: "Availability",
        about: "Dahlin, section 4.2.1: how long data are out of reach, by number of machines, with 0, 1 and 2 parities, with and without stripe groups; computed, and simulated machine \
                by machine. Also how this, and the loss of data, depend on how fast machines are rebuilt.",
        parameters: json!({ "trial": trial }),
        figures: found.figures(),
        findings: found.findings(),
        outcome: json!(found),
    };
    let cost = Section {
        id: "cost",
        title: "The cost of redundancy",
        about: "Dahlin, section 4.1.5: performance, and performance per cost, of mirrors, AutoRAID, and RAID 5 with a log and in place.",
        parameters: json!({ "disks": disks }),
        figures: Vec::new(),
        findings: cost::findings(&disks),
        outcome: Value::Null,
    };
    [availability, cost]
}

fn of_mobile(traces: &Traces, steps: &Steps) -> anyhow::Result<Section> {
    let grid = traces.mobile_grid();
    let (office, stress) = (traces.office(), traces.stress());
    steps.begin("mobile: its traces", 1);
    let first = traces::activity(office.records())?;
    let second = traces::activity(stress.records())?;
    let all = [("office", &first), ("stress", &second)];
    steps.begin("mobile", grid.count(all.len()));
    let found = mobile::study::study(&all, &grid, || steps.done());
    Ok(Section {
        id: "mobile",
        title: "A mobile client",
        about: "Froese and Bunt: a client is in the office for a day, and caches what it uses; then its link is a modem. How much longer everything takes, how long changes wait to go \
                home, how many of them wait, and how much they delay reads; by cache size, bandwidth, write-back policy, and caching of files or blocks. The office trace is like \
                their trace 1, the stress trace like their trace 2.",
        parameters: json!({ "office": format!("{office:?}"), "stress": format!("{stress:?}"), "grid": grid }),
        figures: mobile::study::figures(&found),
        findings: mobile::findings::findings(&found),
        outcome: json!(found),
    })
}
