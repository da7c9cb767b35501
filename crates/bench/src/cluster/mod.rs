//! Several nodes that mount one file system, each in a network namespace of its own.
//!
//! All ratios are within one run. A study goes on after a failure, reports it, and makes the
//! program fail.

mod alone;
mod apart;
mod beside;
mod contention;
mod failover;
mod locks;
mod peers;
mod rebuild;
mod rig;
mod start;
mod upkeep;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output::{Output, name_of, preamble};
use crate::results::Machine;
use crate::roam::found::Found;
use crate::scripted::Site;
use crate::site::{self, RunFolder};
use crate::{Place, command};

/// Nodes of a cluster.
const NODES: usize = 3;

/// The options of `bench cluster`.
#[derive(Debug, Args)]
pub struct ClusterOptions {
    /// Only studies whose name contains one of these
    #[arg(long, value_name = "PATTERN,...", default_value = "")]
    only: String,
    /// Runs of what is measured several times; the tables show medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    place: Place,
}

/// A study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Three nodes from nothing
    Start,
    /// One node of three works
    Alone,
    /// One node of three works, beside other cluster file systems
    Peers,
    /// What each operation costs in FUSE requests and frames on a node that joined
    Operations,
    /// Three nodes in directories of their own
    Apart,
    /// Two nodes in one directory
    OneDirectory,
    /// Two nodes and one file
    OneFile,
    /// A lock that goes around three nodes
    Lock,
    /// Memory of tokens, and messages of an idle cluster
    Upkeep,
    /// A store is lost while programs work
    Rebuild,
    /// The node of a manager dies that has granted very many tokens
    Failover,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    quick: bool,
    runs: u32,
}

impl Name {
    fn measure(self, site: &Site, effort: Effort) -> Result<Found> {
        match self {
            Name::Start => start::measure(site, effort),
            Name::Alone => alone::measure(site, effort),
            Name::Peers => peers::measure(site, effort),
            Name::Operations => alone::measure_operations(site),
            Name::Apart => apart::measure(site, effort),
            Name::OneDirectory => contention::measure_directory(site, effort),
            Name::OneFile => contention::measure_file(site, effort),
            Name::Lock => locks::measure(site, effort),
            Name::Upkeep => upkeep::measure(site, effort),
            Name::Rebuild => rebuild::measure(site, effort),
            Name::Failover => failover::measure(site, effort),
        }
    }
}

/// All results; as JSON, this is the file that `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    unix_time_s: u64,
    machine: Machine,
    quick: bool,
    /// By the study's name.
    studies: Vec<(String, Found)>,
}

impl Report {
    /// The section name and the text of each study that measured something.
    fn sections(&self) -> Vec<(String, String)> {
        let begin = preamble(self.quick, self.unix_time_s, &self.machine, "");
        let measured = self.studies.iter().filter(|(_, found)| !found.is_empty());
        measured.map(|(name, found)| (section_of(name), format!("{begin} {}", found.markdown()))).collect()
    }
}

/// The section of the document that a study is written to.
fn section_of(name: &str) -> String {
    format!("cluster-{name}")
}

/// Runs the studies and reports. Succeeds if nothing failed and no target figure was missed; quick
/// sizes judge nothing.
pub fn run(options: &ClusterOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let quick = options.output.quick;
    let wanted = |name: &&Name| options.only.split(',').any(|part| name_of(**name).contains(part));
    let names: Vec<Name> = Name::value_variants().iter().filter(wanted).copied().collect();
    ensure!(!names.is_empty(), "no study has a name with {:?}", options.only);
    let starling = site::starling_program(options.place.starling.as_deref())?;
    let folder = RunFolder::new(&options.place.dir, Some(starling), String::new())?;
    let mut report = Report {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        quick,
        studies: Vec::new(),
    };
    options.output.make_document(names.iter().map(|name| section_of(&name_of(*name))))?;
    for name in names {
        eprintln!("{}", name_of(name));
        let found = name.measure(folder.site(), Effort { quick, runs: options.runs }).or_else(|error| {
            command::check_interrupt()?;
            Ok::<_, anyhow::Error>(Found { failures: vec![format!("{error:#}")], ..Found::default() })
        })?;
        println!("## {}\n\n{}", section_of(&name_of(name)), found.markdown());
        report.studies.push((name_of(name), found));
        // Each study is reported when it is done, in case the next one fails.
        options.output.write_report(&report, &report.sections()).context("report")?;
    }
    let bad = |found: &Found| !found.failures.is_empty() || !quick && found.missed();
    let failed = report.studies.iter().any(|(_, found)| bad(found));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
