//! Studies of Starling alone, through real mounts: the cost of overwriting when it is nearly full,
//! the time of a start after a crash, and the memory for files.
//!
//! A study goes on after a failure (an error, bytes that do not read back, an error at the wrong
//! call), reports it, and makes the program fail: unlike a slow result, it is a bug.

mod memory;
mod recovery;
mod serving;
mod write_cost;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output::{Output, name_of, preamble};
use crate::report::one_line;
use crate::results::Machine;
use crate::scripted::Site;
use crate::site::{self, RunFolder};
use crate::{Place, UpOptions, command};

use memory::Memory;
use recovery::Recovery;
use write_cost::WriteCost;

/// The options of `bench study`.
#[derive(Debug, Args)]
pub struct StudyOptions {
    /// Only this study
    #[arg(long, value_name = "NAME")]
    only: Option<Name>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    up: UpOptions,
}

/// A study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Overwriting again and again in a nearly full file system, then filling it up
    WriteCost,
    /// Starting again after kill -9
    Recovery,
    /// Resident memory with up to a million files
    Memory,
}

/// The results of one study.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    WriteCost(WriteCost),
    Recovery(Recovery),
    Memory(Memory),
}

/// All results; as JSON, this is the file that `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    unix_time_s: u64,
    machine: Machine,
    quick: bool,
    starling_args: String,
    /// By the study's name.
    studies: Vec<(String, Found)>,
}

impl Name {
    fn measure(self, site: &Site, quick: bool) -> Result<Found> {
        Ok(match self {
            Name::WriteCost => Found::WriteCost(WriteCost::measure(site, quick)?),
            Name::Recovery => Found::Recovery(Recovery::measure(site, quick)?),
            Name::Memory => Found::Memory(Memory::measure(site, quick)?),
        })
    }
}

impl Found {
    fn failures(&self) -> Vec<String> {
        match self {
            Found::WriteCost(study) => study.failures(),
            Found::Recovery(study) => study.failures(),
            Found::Memory(study) => study.failures(),
        }
    }

    fn markdown(&self) -> String {
        match self {
            Found::WriteCost(study) => study.markdown(),
            Found::Recovery(study) => study.markdown(),
            Found::Memory(study) => study.markdown(),
        }
    }
}

impl Report {
    /// Per study, the name of its section and the text.
    fn sections(&self) -> Vec<(String, String)> {
        let begin = preamble(self.quick, self.unix_time_s, &self.machine, &self.starling_args);
        let section = |(name, found): &(String, Found)| {
            let mut text = format!("{begin}\n\n{}", found.markdown());
            let failures = found.failures();
            if !failures.is_empty() {
                text.push_str("\n**Failed:**\n\n");
                failures.iter().for_each(|failure| text.push_str(&format!("- {}\n", one_line(failure))));
            }
            (format!("study-{name}"), text)
        };
        self.studies.iter().map(section).collect()
    }
}

/// Runs the studies and reports; succeeds if nothing failed.
pub fn run(options: &StudyOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let starling = site::starling_program(options.place.starling.as_deref())?;
    let folder = RunFolder::new(&options.place.dir, Some(starling), options.up.starling_args.clone())?;
    let mut report = Report {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        quick: options.output.quick,
        starling_args: options.up.starling_args.clone(),
        studies: Vec::new(),
    };
    for &name in Name::value_variants().iter().filter(|name| options.only.is_none_or(|only| only == **name)) {
        report.studies.push((name_of(name), name.measure(folder.site(), options.output.quick)?));
    }
    let sections = report.sections();
    sections.iter().for_each(|(name, text)| println!("## {name}\n\n{text}"));
    options.output.write_report(&report, &sections)?;
    let failed = report.studies.iter().any(|(_, found)| !found.failures().is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
