//! One node of three works, beside other cluster file systems that are spread over three nodes too.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::beside::{Course, ROWS, Round, Samples, name_of};
use super::rig::{Cluster, Serves, WORKER};
use super::{Effort, NODES};
use crate::command::check_interrupt;
use crate::mounts::Mounted;
use crate::network::Network;
use crate::report::number;
use crate::results::advantage;
use crate::roam::found::{Figure, Found, Table, smallest};
use crate::scenario::Metric;
use crate::scripted::Site;
use crate::scripted::{Script, Scripted};

/// Another cluster file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    title: &'static str,
    script: Script,
}

const PEERS: [Peer; 4] = [
    Peer {
        title: "GlusterFS 2+1",
        script: Script { name: "gluster-disperse", file: "gluster.sh", variant: "disperse" },
    },
    Peer {
        title: "GlusterFS replica 3",
        script: Script { name: "gluster-replica", file: "gluster.sh", variant: "replica" },
    },
    Peer { title: "MooseFS goal 2", script: Script { name: "moosefs", file: "moosefs.sh", variant: "goal2" } },
    Peer { title: "CephFS size 2", script: Script { name: "ceph", file: "ceph.sh", variant: "size2" } },
];

/// Least speed beside the best peer, with small files.
const SMALL_MIN: f64 = 3.0;
/// The same in all other rows.
const OTHERS_MIN: f64 = 1.0;

fn limit_of(metric: Metric) -> f64 {
    match metric {
        Metric::Create | Metric::CreateFsync | Metric::CopyTree | Metric::Postmark | Metric::ReadSmallCold => SMALL_MIN,
        _ => OTHERS_MIN,
    }
}

/// What was measured on one file system.
#[derive(Default)]
struct Measured {
    samples: Samples,
    /// Share of one processor that its processes used while nothing happened.
    idle_cpu: f64,
}

/// A peer, and why there is nothing of it, or not all.
#[derive(Clone, Debug)]
struct Trouble {
    peer: Peer,
    reason: String,
}

impl Trouble {
    fn text(&self) -> String {
        format!("{}: {}", self.peer.title, self.reason)
    }
}

/// A peer that was set up.
struct Rival {
    peer: Peer,
    /// `None` once it is given up.
    mounted: Option<Scripted>,
    measured: Measured,
}

impl Rival {
    fn cpu_seconds(&self) -> f64 {
        self.mounted.as_ref().map_or(0.0, |mounted| mounted.usage().cpu_seconds)
    }

    /// Runs a round. A peer that fails is mounted again; if it cannot be, it is given up.
    fn measure(&mut self, course: &Course, round: Round) -> Vec<Trouble> {
        let Some(mounted) = &mut self.mounted else { return Vec::new() };
        let trouble = |reason| Trouble { peer: self.peer, reason };
        let Err(error) = course.measure(mounted, round, &mut self.measured.samples) else { return Vec::new() };
        let mut troubles = vec![trouble(format!("{error:#}"))];
        if let Err(error) = mounted.revive() {
            troubles.push(trouble(format!("given up: {error:#}")));
            self.mounted = None;
        }
        troubles
    }
}

/// The peers that are not installed on this machine. Fails if none is.
fn absent(reason: impl Fn(Peer) -> Option<String>) -> Result<Vec<Trouble>> {
    let trouble = |peer| Some(Trouble { peer, reason: reason(peer)? });
    let absent: Vec<Trouble> = PEERS.into_iter().filter_map(trouble).collect();
    let reasons = absent.iter().map(Trouble::text).collect::<Vec<_>>().join("; ");
    ensure!(
        absent.len() < PEERS.len(),
        "no peer is installed (crates/bench/peers/install.sh installs them): {reasons}"
    );
    Ok(absent)
}

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let absent = absent(|peer| peer.script.unavailable(site))?;
    let installed = PEERS.into_iter().filter(|peer| absent.iter().all(|trouble| trouble.peer != *peer));
    let (mut rivals, mut failed) = (Vec::new(), Vec::new());
    for peer in installed {
        eprintln!("setting up {}", peer.title);
        match Network::new(NODES).and_then(|network| Scripted::set_up(peer.script, site, network, WORKER)) {
            Ok(mounted) => rivals.push(Rival { peer, mounted: Some(mounted), measured: Measured::default() }),
            Err(error) => {
                check_interrupt()?;
                failed.push(Trouble { peer, reason: format!("{error:#}") });
            }
        }
    }
    let reasons = || failed.iter().map(Trouble::text).collect::<Vec<_>>().join("; ");
    ensure!(!rivals.is_empty(), "no peer could be set up: {}", reasons());
    let course = Course::new(site, effort)?;
    let mut cluster = Cluster::start_with(site, "peers", NODES, Serves::EachNode)?;
    let mut starling = Measured::default();
    measure_idle(&cluster, &mut starling, &mut rivals, effort)?;
    for round in course.rounds() {
        course.measure(&mut cluster, round, &mut starling.samples)?;
        for rival in &mut rivals {
            failed.extend(rival.measure(&course, round));
            check_interrupt()?;
        }
    }
    let peers: Vec<(Peer, Measured)> = rivals.into_iter().map(|rival| (rival.peer, rival.measured)).collect();
    Ok(found(&starling, &peers, &absent, &failed, effort))
}

/// Measures what each file system uses while none has anything to do.
fn measure_idle(cluster: &Cluster, starling: &mut Measured, rivals: &mut [Rival], effort: Effort) -> Result<()> {
    let time = Duration::from_secs(if effort.quick { 2 } else { 20 });
    let started = Instant::now();
    let ours_before = cluster.usage().cpu_seconds;
    let before: Vec<f64> = rivals.iter().map(Rival::cpu_seconds).collect();
    while started.elapsed() < time {
        check_interrupt()?;
        thread::sleep(Duration::from_millis(100));
    }
    let share = |before: f64, after: f64| (after - before) / started.elapsed().as_secs_f64();
    starling.idle_cpu = share(ours_before, cluster.usage().cpu_seconds);
    for (rival, before) in rivals.iter_mut().zip(before) {
        rival.measured.idle_cpu = share(before, rival.cpu_seconds());
    }
    Ok(())
}

fn found(
    starling: &Measured,
    peers: &[(Peer, Measured)],
    absent: &[Trouble],
    failed: &[Trouble],
    effort: Effort,
) -> Found {
    let times_best = |metric: Metric| {
        let theirs = peers.iter().map(|(_, measured)| measured.samples.median(metric)).filter(|value| !value.is_nan());
        smallest(theirs.map(|theirs| advantage(metric, starling.samples.median(metric), theirs)))
    };
    let titles = peers.iter().map(|(peer, _)| peer.title);
    let header =
        ["", "Starling, one of three"].into_iter().chain(titles).chain(["times the best peer", "range of Starling"]);
    let mut table = Table::new("One node of three works, beside peers", header);
    for metric in ROWS {
        let medians = peers.iter().map(|(_, measured)| number(measured.samples.median(metric)));
        let ours = [metric.title().to_owned(), number(starling.samples.median(metric))];
        let last = [number(times_best(metric)), starling.samples.range(metric)];
        table.row(ours.into_iter().chain(medians).chain(last));
    }
    let mut idle = Table::new("While nothing happens", ["", "CPU of all processes, % of a processor"]);
    let mut idle_row =
        |title: &str, measured: &Measured| idle.row([title.to_owned(), number(measured.idle_cpu * 100.0)]);
    idle_row("Starling", starling);
    peers.iter().for_each(|(peer, measured)| idle_row(peer.title, measured));
    let figure = |metric: Metric| {
        Figure::at_least(format!("{}: times the best peer", name_of(metric)), times_best(metric), limit_of(metric), "")
    };
    let mut samples = serde_json::json!({ "Starling": starling.samples.json() });
    for (peer, measured) in peers {
        samples[peer.title] = measured.samples.json();
    }
    Found {
        conditions: conditions(absent, failed, effort),
        figures: ROWS.map(figure).into(),
        tables: vec![table, idle],
        samples,
        failures: failed.iter().map(Trouble::text).collect(),
    }
}

fn conditions(absent: &[Trouble], failed: &[Trouble], effort: Effort) -> String {
    let mut text = format!(
        "The scenarios of `bench run`, on the second of {NODES} nodes, while the others only serve. All file systems are up at \
         once and run each scenario in turn. Medians of {} runs. Starling has a store on each node, two data fragments and one of \
         parity, and managers on all. Peers have a server on each node: GlusterFS a brick, MooseFS a chunk server (the master is on the first node), CephFS an OSD with \
         BlueStore in a file (monitor, manager and metadata server are on the first node; the client is ceph-fuse). Starling \
         encrypts what goes between nodes; the peers do not. An fsync on MooseFS does not reach the disk: its chunk servers \
         leave that to the kernel, which is their default.",
        effort.runs
    );
    let parts = [("Not installed, so not measured", absent), ("Failed, so not or only partly measured", failed)];
    for (what, troubles) in parts {
        let of = |peer: &Peer| troubles.iter().any(|trouble| trouble.peer == *peer);
        let titles: Vec<&str> = PEERS.iter().filter(|peer| of(peer)).map(|peer| peer.title).collect();
        if !titles.is_empty() {
            text.push_str(&format!(" {what}: {}.", titles.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::has_script;

    const QUICK: Effort = Effort { quick: true, runs: 1 };

    fn measured(create: &[f64], copy: &[f64]) -> Measured {
        let mut samples = Samples::default();
        create.iter().for_each(|value| samples.add(Metric::Create, *value));
        copy.iter().for_each(|value| samples.add(Metric::CopyTree, *value));
        Measured { samples, idle_cpu: 0.02 }
    }

    #[test]
    fn peers_have_scripts_and_folders_of_their_own() {
        assert!(PEERS.iter().all(|peer| has_script(peer.script.file)));
        let names: std::collections::BTreeSet<&str> = PEERS.iter().map(|peer| peer.script.name).collect();
        assert_eq!(names.len(), PEERS.len());
    }

    #[test]
    fn figures_compare_with_the_best_peer_that_was_measured() {
        let [gluster, replica, moosefs, ceph] = PEERS;
        let peers = [
            (gluster, measured(&[100.0], &[4.0])),
            (moosefs, measured(&[900.0, 1_000.0, 1_100.0], &[1.0])),
            (ceph, measured(&[], &[])),
        ];
        let absent = [Trouble { peer: replica, reason: "not installed: glusterd".to_owned() }];
        let failed = ["no mount", "given up"].map(|reason| Trouble { peer: ceph, reason: reason.to_owned() });
        let text = found(&measured(&[3_500.0], &[0.5]), &peers, &absent, &failed, QUICK).markdown();
        for line in [
            "create 1 KiB files, 1 process: times the best peer | ≥ 3.00 | 3.50 | reached |",
            "cp -r of a source tree: times the best peer | ≥ 3.00 | 2.00 | **not reached** |",
            "Not installed, so not measured: GlusterFS replica 3. Failed, so not or only partly measured: CephFS size 2.",
            "- CephFS size 2: no mount",
            "|  | Starling, one of three | GlusterFS 2+1 | MooseFS goal 2 | CephFS size 2 |",
            "| CephFS size 2 | 2.00 |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn without_any_peer_the_error_says_what_to_install() {
        let error = absent(|peer| Some(format!("not installed: {}", peer.script.file))).unwrap_err().to_string();
        assert!(error.contains("install.sh") && error.contains("CephFS size 2: not installed: ceph.sh"), "{error}");
        let only_ceph = absent(|peer| (peer != PEERS[3]).then(|| "no".to_owned())).unwrap();
        assert_eq!(only_ceph.len(), 3);
        assert!(only_ceph.iter().all(|trouble| trouble.peer != PEERS[3]));
    }
}
