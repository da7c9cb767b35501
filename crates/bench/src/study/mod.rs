//! Studies of Starling alone, through real mounts: what overwriting costs when it is nearly full, how long it takes to
//! start after a crash, and how much memory files need.
//!
//! A study goes on after a failure (an error, bytes that do not read back, an error at the wrong call), reports it, and makes
//! the program fail: unlike a slow result, it is a bug.

mod memory;
mod recovery;
mod serving;
mod write_cost;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::report::{date, one_line};
use crate::results::Machine;
use crate::site::{self, RunFolder};
use crate::target::Site;
use crate::{Place, command};

use memory::Memory;
use recovery::Recovery;
use write_cost::WriteCost;

/// The options of `bench study`.
#[derive(Debug, Args)]
pub struct StudyOptions {
    /// Only this study
    #[arg(long, value_name = "NAME")]
    only: Option<Name>,
    /// Small sizes: whether everything works
    #[arg(long)]
    quick: bool,
    /// Write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables to this file: between its markers if it exists and has them
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// A study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Overwriting for ever in a nearly full file system, then filling it up
    WriteCost,
    /// Starting again after kill -9
    Recovery,
    /// Resident memory with up to a million files
    Memory,
}

/// What one study found.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    WriteCost(WriteCost),
    Recovery(Recovery),
    Memory(Memory),
}

/// All that was found; as JSON, this is the file that `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    unix_time_s: u64,
    machine: Machine,
    quick: bool,
    starling_args: String,
    /// By the study's name.
    studies: Vec<(&'static str, Found)>,
}

impl Name {
    /// The name on the command line; `study-NAME` is the section of the document.
    fn name(self) -> &'static str {
        match self {
            Name::WriteCost => "write-cost",
            Name::Recovery => "recovery",
            Name::Memory => "memory",
        }
    }

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
        let section = |(name, found): &(&str, Found)| {
            let mut text = self.preamble() + "\n\n" + &found.markdown();
            let failures = found.failures();
            if !failures.is_empty() {
                text.push_str("\n**Failed:**\n\n");
                failures.iter().for_each(|failure| text.push_str(&format!("- {}\n", one_line(failure))));
            }
            (format!("study-{name}"), text)
        };
        self.studies.iter().map(section).collect()
    }

    fn preamble(&self) -> String {
        let machine = &self.machine;
        format!(
            "{}One run on {}, on a machine that was not idle: {} processors ({}), {} MiB of memory, Linux {}, local {}{}.",
            if self.quick { "**Quick sizes: these numbers only show that everything runs.** " } else { "" },
            date(self.unix_time_s),
            machine.processor_count,
            machine.processor,
            machine.memory_mib,
            machine.kernel,
            machine.file_system,
            if self.starling_args.is_empty() { String::new() } else { format!(", `{}`", self.starling_args) },
        )
    }
}

/// Runs the studies and reports; succeeds if nothing failed.
pub fn run(options: &StudyOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let starling = site::starling_program(options.place.starling.as_deref())?;
    let folder = RunFolder::new(&options.place.dir, Some(starling), options.place.starling_args.clone())?;
    let mut report = Report {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        quick: options.quick,
        starling_args: options.place.starling_args.clone(),
        studies: Vec::new(),
    };
    for &name in Name::value_variants().iter().filter(|name| options.only.is_none_or(|only| only == **name)) {
        report.studies.push((name.name(), name.measure(folder.site(), options.quick)?));
    }
    let sections = report.sections();
    sections.iter().for_each(|(name, text)| println!("## {name}\n\n{text}"));
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report).context("write the report as JSON")?;
        std::fs::write(path, json + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &options.markdown {
        write_sections(path, &sections)?;
    }
    let failed = report.studies.iter().any(|(_, found)| !found.failures().is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Into the sections of a document that is there, or one after the other into a new one, which then has the sections.
pub fn write_sections(path: &Path, sections: &[(String, String)]) -> Result<()> {
    make_document(path, sections.iter().map(|(name, _)| name.as_str()))?;
    sections.iter().try_for_each(|(name, text)| crate::write_section(path, name, text))
}

/// Makes a document with empty sections, if there is none.
pub fn make_document<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let markers = |name: &str| format!("<!-- {name}:begin -->\n<!-- {name}:end -->\n");
    let empty = names.map(markers).collect::<Vec<_>>().join("\n");
    std::fs::write(path, empty).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for name in Name::value_variants() {
            assert_eq!(Name::from_str(name.name(), false), Ok(*name));
        }
    }

    #[test]
    fn sections_go_into_a_new_document_and_again_into_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.md");
        let sections = |text: &str| ["a", "b"].map(|name| (format!("study-{name}"), format!("{text} {name}")));
        write_sections(&path, &sections("first")).unwrap();
        write_sections(&path, &sections("second")[1..]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\nfirst a\n") && text.contains("\nsecond b\n") && !text.contains("first b"), "{text}");
        assert!(write_sections(&path, &[("study-c".to_owned(), String::new())]).is_err());
    }
}
