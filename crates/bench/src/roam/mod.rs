//! Studies of the fringe: homes and mounts that roam, over links that are emulated, held against the figures of the
//! papers that it follows.
//!
//! All ratios are within one run. A study goes on after a failure, reports it, and makes the program fail.

mod andrew;
mod found;
mod lan;
mod locks;
mod lottery;
mod mutations;
mod repository;
mod revalidation;
mod rig;
mod session;
mod sshfs;
mod wan;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::report::date;
use crate::results::Machine;
use crate::site::{self, RunFolder};
use crate::target::Site;
use crate::{Place, command, study};

use found::Found;

/// The options of `bench roam`.
#[derive(Debug, Args)]
pub struct RoamOptions {
    /// Only studies whose name contains one of these
    #[arg(long, value_name = "PATTERN,...", default_value = "")]
    only: String,
    /// Small sizes: whether everything works, not how fast it is
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
    /// A cache is found to be valid after a gap (Mummert and Satyanarayanan)
    Revalidation,
    /// The Andrew benchmark over a slow link (Huston and Honeyman)
    Andrew,
    /// Editing, compiling and cleaning: what need not go home
    Session,
    /// A build far from home, beside sshfs (Zhao and Figueiredo)
    WanBuild,
    /// PostMark far from home, beside sshfs
    WanPostmark,
    /// A repository of software that is updated at home
    WanRepository,
    /// A producer at home whose files are read far from there
    WanProducer,
    /// A cache near home, beside the local disk
    LanWarm,
    /// Very many cached files
    LanMany,
    /// Very many operations that wait
    LanPending,
    /// Shares of a slow link (Huston and Honeyman)
    LotteryShares,
    /// Small questions beside replay
    LotteryInteractive,
    /// The time of each operation that changes something
    LogOperations,
    /// How long operations wait to go home
    LogWaits,
    /// Six clients and a lock that is a file, beside attribute polling (Zhao and Figueiredo)
    StrongLocks,
}

impl Name {
    /// The name on the command line; `roam-NAME` is the section of the document.
    fn name(self) -> &'static str {
        match self {
            Name::Revalidation => "revalidation",
            Name::Andrew => "andrew",
            Name::Session => "session",
            Name::WanBuild => "wan-build",
            Name::WanPostmark => "wan-postmark",
            Name::WanRepository => "wan-repository",
            Name::WanProducer => "wan-producer",
            Name::LanWarm => "lan-warm",
            Name::LanMany => "lan-many",
            Name::LanPending => "lan-pending",
            Name::LotteryShares => "lottery-shares",
            Name::LotteryInteractive => "lottery-interactive",
            Name::LogOperations => "log-operations",
            Name::LogWaits => "log-waits",
            Name::StrongLocks => "strong-locks",
        }
    }

    fn measure(self, site: &Site, quick: bool) -> Result<Found> {
        match self {
            Name::Revalidation => revalidation::measure(site, quick),
            Name::Andrew => andrew::measure(site, quick),
            Name::Session => session::measure(site, quick),
            Name::WanBuild => wan::measure_build(site, quick),
            Name::WanPostmark => wan::measure_postmark(site, quick),
            Name::WanRepository => repository::measure_repository(site, quick),
            Name::WanProducer => repository::measure_producer(site, quick),
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

/// All that was found; as JSON, this is the file that `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    unix_time_s: u64,
    machine: Machine,
    quick: bool,
    /// By the study's name.
    studies: Vec<(&'static str, Found)>,
}

impl Report {
    /// To the files that were asked for.
    fn write(&self, options: &RoamOptions) -> Result<()> {
        if let Some(path) = &options.json {
            let json = serde_json::to_string_pretty(self).context("write the report as JSON")?;
            std::fs::write(path, json + "\n").with_context(|| format!("write {}", path.display()))?;
        }
        options.markdown.as_ref().map_or(Ok(()), |path| study::write_sections(path, &self.sections()))
    }

    /// Per study, the name of its section and the text.
    fn sections(&self) -> Vec<(String, String)> {
        let section =
            |(name, found): &(&str, Found)| (format!("roam-{name}"), self.preamble() + " " + &found.markdown());
        self.studies.iter().map(section).collect()
    }

    fn preamble(&self) -> String {
        let Machine { processor, processor_count, memory_mib, kernel, file_system } = &self.machine;
        format!(
            "{}One run on {}, on a machine that was not idle: {processor_count} processors ({processor}), {memory_mib} \
             MiB of memory, Linux {kernel}, local {file_system}.",
            if self.quick { "**Quick sizes: these numbers only show that everything runs.** " } else { "" },
            date(self.unix_time_s),
        )
    }
}

/// Runs the studies and reports. Succeeds if nothing failed and no figure was missed; quick sizes judge nothing.
pub fn run(options: &RoamOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let wanted = |name: &&Name| options.only.split(',').any(|part| name.name().contains(part));
    let names: Vec<Name> = Name::value_variants().iter().filter(wanted).copied().collect();
    anyhow::ensure!(!names.is_empty(), "no study has a name with {:?}", options.only);
    let starling = site::starling_program(options.place.starling.as_deref())?;
    let folder = RunFolder::new(&options.place.dir, Some(starling), options.place.starling_args.clone())?;
    let mut report = Report {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        quick: options.quick,
        studies: Vec::new(),
    };
    if let Some(path) = &options.markdown {
        let sections: Vec<String> = names.iter().map(|name| format!("roam-{}", name.name())).collect();
        study::make_document(path, sections.iter().map(String::as_str))?;
    }
    for name in names {
        eprintln!("{}", name.name());
        let found = name.measure(folder.site(), options.quick).or_else(|error| {
            command::check_interrupt()?;
            Ok::<_, anyhow::Error>(Found { failures: vec![format!("{error:#}")], ..Found::default() })
        })?;
        report.studies.push((name.name(), found));
        // What is done is said, whatever becomes of the next one.
        let (_, text) = report.sections().pop().context("no study")?;
        println!("## roam-{}\n\n{text}", name.name());
        report.write(options)?;
    }
    let bad = |found: &Found| !found.failures.is_empty() || !options.quick && found.missed();
    let failed = report.studies.iter().any(|(_, found)| bad(found));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
}
