//! Studies of the fringe: homes and roaming mounts, over emulated links, compared with the figures
//! of the papers that the fringe follows.
//!
//! All ratios are within one run. A study goes on after a failure, reports it, and makes the
//! program fail.

mod andrew;
pub mod found;
mod handshakes;
mod lan;
mod locks;
mod lottery;
mod mutations;
mod near;
mod nfs;
mod repository;
mod revalidation;
mod rig;
mod session;
mod sshfs;
mod wan;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output::{Output, name_of, preamble};
use crate::results::Machine;
use crate::scripted::Site;
use crate::site::{self, RunFolder};
use crate::{Place, command};

use found::Found;

/// The options of `bench roam`.
#[derive(Debug, Args)]
pub struct RoamOptions {
    /// Only studies whose name contains one of these
    #[arg(long, value_name = "PATTERN,...", default_value = "")]
    only: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    place: Place,
}

/// A study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// How a cache is found valid after a gap (Mummert and Satyanarayanan)
    Revalidation,
    /// What a new connection costs, with and without 0-RTT
    Handshakes,
    /// The Andrew benchmark over a slow link (Huston and Honeyman)
    Andrew,
    /// Editing, compiling and cleaning: how much of it need not go home
    Session,
    /// A build far from home, beside sshfs (Zhao and Figueiredo)
    WanBuild,
    /// PostMark far from home, beside sshfs
    WanPostmark,
    /// A software repository that is updated at home
    WanRepository,
    /// A producer at home whose files are read far away
    WanProducer,
    /// Small files and git near home and without a network, beside sshfs and NFS
    Near,
    /// A cache near home, beside the local disk
    LanWarm,
    /// Very many cached files
    LanMany,
    /// Very many waiting operations
    LanPending,
    /// Shares of a slow link (Huston and Honeyman)
    LotteryShares,
    /// Small requests beside replay
    LotteryInteractive,
    /// The time of each changing operation
    LogOperations,
    /// How long operations wait to go home
    LogWaits,
    /// Six clients and a lock that is a file, beside attribute polling (Zhao and Figueiredo)
    StrongLocks,
}

impl Name {
    fn measure(self, site: &Site, quick: bool) -> Result<Found> {
        match self {
            Name::Revalidation => revalidation::measure(site, quick),
            Name::Handshakes => handshakes::measure(site, quick),
            Name::Andrew => andrew::measure(site, quick),
            Name::Session => session::measure(site, quick),
            Name::WanBuild => wan::measure_build(site, quick),
            Name::WanPostmark => wan::measure_postmark(site, quick),
            Name::WanRepository => repository::measure_repository(site, quick),
            Name::WanProducer => repository::measure_producer(site, quick),
            Name::Near => near::measure(site, quick),
            Name::LanWarm => lan::measure_warm(site, quick),
            Name::LanMany => lan::measure_many(site, quick),
            Name::LanPending => lan::measure_pending(site, quick),
            Name::LotteryShares => lottery::measure_shares(site, quick),
            Name::LotteryInteractive => lottery::measure_interactive(site, quick),
            Name::LogOperations => mutations::measure_operations(site, quick),
            Name::LogWaits => mutations::measure_log(site, quick),
            Name::StrongLocks => locks::measure(site, quick),
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
    fn section(&self, (name, found): &(String, Found)) -> (String, String) {
        let begin = preamble(self.quick, self.unix_time_s, &self.machine, "");
        (section_of(name), format!("{begin} {}", found.markdown()))
    }

    /// The section name and the text of each study that measured something.
    fn sections(&self) -> Vec<(String, String)> {
        let measured = self.studies.iter().filter(|(_, found)| !found.is_empty());
        measured.map(|study| self.section(study)).collect()
    }
}

/// The section of the document that a study is written to.
fn section_of(name: &str) -> String {
    format!("roam-{name}")
}

/// Runs the studies and reports. Succeeds if nothing failed and no target figure was missed; quick
/// sizes judge nothing.
pub fn run(options: &RoamOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let wanted = |name: &&Name| options.only.split(',').any(|part| name_of(**name).contains(part));
    let names: Vec<Name> = Name::value_variants().iter().filter(wanted).copied().collect();
    anyhow::ensure!(!names.is_empty(), "no study has a name with {:?}", options.only);
    let starling = site::starling_program(options.place.starling.as_deref())?;
    let folder = RunFolder::new(&options.place.dir, Some(starling), String::new())?;
    let mut report = Report {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        quick: options.output.quick,
        studies: Vec::new(),
    };
    options.output.make_document(names.iter().map(|name| section_of(&name_of(*name))))?;
    for name in names {
        eprintln!("{}", name_of(name));
        let found = name.measure(folder.site(), options.output.quick).or_else(|error| {
            command::check_interrupt()?;
            Ok::<_, anyhow::Error>(Found { failures: vec![format!("{error:#}")], ..Found::default() })
        })?;
        report.studies.push((name_of(name), found));
        // Each study is reported when it is done, in case the next one fails.
        let (section, text) = report.section(report.studies.last().context("no study")?);
        println!("## {section}\n\n{text}");
        let sections = report.sections();
        options.output.write_report(&report, &sections)?;
    }
    let bad = |found: &Found| !found.failures.is_empty() || !options.output.quick && found.missed();
    let failed = report.studies.iter().any(|(_, found)| bad(found));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
