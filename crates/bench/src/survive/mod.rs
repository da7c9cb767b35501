//! Nodes of a cluster that die, stand still, are cut off or have bad disks, while programs use
//! every mount: how long calls on the other nodes stall, and whether anything is lost.
//!
//! Programs on each mount make, sync, rename, read, list and stat files, and hold an open file with
//! locks. In each round a fault hits one node, and is healed. Afterwards all files that were synced
//! on any node must be there, and the other nodes must still have their locks and open files. A
//! failed round is reported, and the next one gets a new cluster.

mod cluster;
mod disk;
mod judge;
mod ledger;
mod load;
mod nodes;
mod peer;
mod plan;
mod round;
mod watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use self::cluster::{Cluster, VOTERS};
use self::judge::Outcome;
use self::nodes::Nodes;
use self::peer::{Peer, PeerNodes};
use self::plan::{Fault, Pattern, Plan, Role, Round};
use self::round::{Arena, Timing};
use crate::output::{Output, preamble};
use crate::results::Machine;
use crate::roam::found::Found;
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::site::{self, RunFolder};
use crate::{Place, command};

pub use self::load::Part;

const SECTION: &str = "survive";
/// More than three leases: what a node holds has run out when it is back.
const TIMING: Timing =
    Timing { before: Duration::from_secs(4), fault: Duration::from_secs(24), after: Duration::from_secs(30) };
const QUICK_TIMING: Timing =
    Timing { before: Duration::from_secs(2), fault: Duration::from_secs(10), after: Duration::from_secs(8) };

/// The options of `bench survive`.
#[derive(Debug, Args)]
pub struct SurviveOptions {
    /// Only these: ROLE/FAULT, or all of a ROLE or a FAULT. Roles are client, member and leader;
    /// faults are kill, stop, cut, cut-in, cut-out and apart, and of disks full, hang and slow. And
    /// there is every/saturate
    #[arg(long, value_delimiter = ',', value_name = "ROLE/FAULT,...")]
    only: Vec<Pattern>,
    /// Rounds of each role and fault
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Go on with random rounds until so many seconds have passed
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    seconds: u64,
    /// How long a fault lasts that is not a kill
    #[arg(long, value_name = "COUNT")]
    fault_seconds: Option<u64>,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes; three of them have stores and vote, and the others are clients
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(VOTERS as i64 + 1..=50))]
    nodes: u8,
    /// Files that are made before the first round, beside those that the rounds make
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    files: u64,
    /// Hit another file system in the place of Starling. Only with kills, stops and cuts; its first
    /// node counts as the leader
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Keep the nodes' logs in this folder
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    place: Place,
}

/// All results; as JSON, this is the file that `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    unix_time_s: u64,
    machine: Machine,
    quick: bool,
    found: Found,
}

/// Does the rounds and reports. Succeeds if nothing was lost or failed, and no target figure was
/// missed; quick times judge no figures.
pub fn run(options: &SurviveOptions) -> Result<ExitCode> {
    command::catch_interrupts()?;
    let mut hits = plan::selected(&options.only);
    if options.peer.is_some() {
        hits.retain(|hit| hit.role != Role::Every && !hit.fault.is_of_disk() && hit.fault != Fault::Apart);
        ensure!(!hits.is_empty(), "a peer is hit by kill, stop, cut, cut-in and cut-out only");
    }
    let starling = match options.peer {
        Some(_) => None,
        None => Some(site::starling_program(options.place.starling.as_deref())?),
    };
    let folder = RunFolder::new(&options.place.dir, starling, String::new())?;
    let quick = options.output.quick;
    let mut report = Report {
        unix_time_s: site::unix_time_s(),
        machine: site::machine(&options.place.dir)?,
        quick,
        found: Found::default(),
    };
    options.output.make_document([SECTION.to_owned()].into_iter())?;
    let mut rounds = Rounds {
        site: folder.site().clone(),
        peer: options.peer,
        logs: options.logs.clone(),
        nodes: usize::from(options.nodes),
        files: options.files,
        own_disks: hits.iter().any(|hit| hit.fault.is_of_disk()),
        clusters: 0,
        arena: None,
    };
    let mut timing = if quick { QUICK_TIMING } else { TIMING };
    timing.fault = options.fault_seconds.map_or(timing.fault, Duration::from_secs);
    let mut plan = Plan::new(hits, options.rounds, options.seed);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut broken: Vec<String> = Vec::new();
    let started = Instant::now();
    loop {
        let round = plan.next();
        if !round.is_listed && started.elapsed() >= Duration::from_secs(options.seconds) {
            break;
        }
        eprintln!("round {}: {}", round.number, round.hit);
        match rounds.run(round, timing) {
            Ok(outcome) => {
                eprintln!("  {}", outcome.line());
                outcomes.push(outcome);
            }
            Err(error) => {
                command::check_interrupt()?;
                eprintln!("  failed: {error:#}");
                broken.push(format!("seed {}, round {}, {}: {error:#}", options.seed, round.number, round.hit));
            }
        }
        report.found = judge::found(&outcomes, options.seed);
        report.found.failures.extend(broken.iter().cloned());
        report.found.conditions = conditions(options, timing, rounds.own_disks);
        // Each round is reported when it is done, in case the next one fails.
        options.output.write_report(&report, &report.section()).context("report")?;
    }
    ensure!(!outcomes.is_empty() || !broken.is_empty(), "no rounds: give --rounds or --seconds");
    println!("## {SECTION}\n\n{}", report.found.markdown());
    let bad = !report.found.failures.is_empty() || !quick && report.found.missed();
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Report {
    fn section(&self) -> Vec<(String, String)> {
        let begin = preamble(self.quick, self.unix_time_s, &self.machine, "");
        vec![(SECTION.to_owned(), format!("{begin} {}", self.found.markdown()))]
    }
}

fn conditions(options: &SurviveOptions, timing: Timing, own_disks: bool) -> String {
    let what = match options.peer {
        Some(peer) => format!("{}, and a mount on each of {} nodes", peer.title(), options.nodes),
        None => {
            format!("{} nodes, {VOTERS} of them with a store, managers and a vote, the others clients", options.nodes)
        }
    };
    let files = match options.files {
        0 => String::new(),
        files => format!(", with {files} files before the first round"),
    };
    format!(
        "{what}{files}. Seed {}. \
         A node stands still, is cut off or has a bad disk for {} s. {} A round's stalls are of the nodes that were not hit, \
         from the fault until {} s after it was healed.",
        options.seed,
        timing.fault.as_secs(),
        if own_disks { "Each node with a store has ext4 on a loop device." } else { "All nodes use one disk." },
        timing.after.as_secs(),
    )
}

/// Does rounds on one cluster for as long as it is whole after each.
struct Rounds {
    site: Site,
    peer: Option<Peer>,
    logs: Option<PathBuf>,
    nodes: usize,
    /// Files that are made in each cluster before its first round.
    files: u64,
    /// True if nodes need disks of their own.
    own_disks: bool,
    /// Clusters that were started.
    clusters: usize,
    arena: Option<Arena>,
}

impl Rounds {
    fn run(&mut self, round: Round, timing: Timing) -> Result<Outcome> {
        let mut arena = match self.arena.take() {
            Some(arena) => arena,
            None => self.start().context("start a cluster")?,
        };
        let outcome = arena.round(round, timing)?;
        if outcome.whole_after_s.is_some() {
            self.arena = Some(arena);
        }
        Ok(outcome)
    }

    fn start(&mut self) -> Result<Arena> {
        let name = format!("cluster{}", self.clusters);
        self.clusters += 1;
        let root = self.site.root.join(&name);
        let nodes: Box<dyn Nodes> = match (self.peer, &self.site.starling) {
            (Some(peer), _) => Box::new(PeerNodes::start(peer, &self.site, &root, self.nodes)?),
            (None, program) => {
                let program = program.clone().context("no program to start")?;
                let logs = self.logs.as_deref().map_or_else(|| root.join("logs"), |logs| logs.join(&name));
                Box::new(Cluster::start(program, &root, &absolute(&logs)?, self.nodes, self.own_disks)?)
            }
        };
        if self.files > 0 {
            work(&arguments("make-files", &nodes.mount_point(0).join("before"), &[("files", self.files)]))?;
        }
        Ok(Arena { nodes, ledgers: root.join("ledgers"), started: 0 })
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}
