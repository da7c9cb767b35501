//! The scenarios: each is a few steps in a fresh folder of a target. Some steps yield metrics.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A number of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "`title` says what each is")]
pub enum Metric {
    Create,
    CreateByFour,
    CreateFsync,
    CopyTree,
    Postmark,
    ReadSmallCold,
    Unlink,
    StatWarm,
    ReaddirWarm,
    WriteStream,
    ReadStreamCold,
    WriteCpu,
    ReadCpu,
    FsyncP50,
    FsyncP99,
    FsyncBesideP50,
    FsyncBesideP99,
    PeakMemory,
    DirectoryCreate,
    DirectoryList,
    DirectoryRemove,
    DirectoryPeakMemory,
}

/// Whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// A rate.
    Higher,
    /// A time or a cost.
    Lower,
}

/// How the samples of several runs are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The middle one.
    Median,
    /// The largest: for values that must be bounded.
    Largest,
}

impl Metric {
    /// All metrics, in the order of the report's rows.
    pub const ALL: [Metric; 22] = [
        Metric::Create,
        Metric::CreateByFour,
        Metric::CreateFsync,
        Metric::CopyTree,
        Metric::Postmark,
        Metric::ReadSmallCold,
        Metric::Unlink,
        Metric::StatWarm,
        Metric::ReaddirWarm,
        Metric::WriteStream,
        Metric::ReadStreamCold,
        Metric::WriteCpu,
        Metric::ReadCpu,
        Metric::FsyncP50,
        Metric::FsyncP99,
        Metric::FsyncBesideP50,
        Metric::FsyncBesideP99,
        Metric::PeakMemory,
        Metric::DirectoryCreate,
        Metric::DirectoryList,
        Metric::DirectoryRemove,
        Metric::DirectoryPeakMemory,
    ];

    /// Its title, with its unit.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Create => "create 1 KiB files, 1 process, files/s",
            Metric::CreateByFour => "create 1 KiB files, 4 processes, files/s",
            Metric::CreateFsync => "create 1 KiB files, fsync each, files/s",
            Metric::CopyTree => "cp -r of a source tree, s",
            Metric::Postmark => "PostMark, s",
            Metric::ReadSmallCold => "read 1 KiB files, cold, files/s",
            Metric::Unlink => "unlink, files/s",
            Metric::StatWarm => "stat, tree already seen, per s",
            Metric::ReaddirWarm => "readdir, tree already seen, entries/s",
            Metric::WriteStream => "write in order and fsync, MB/s",
            Metric::ReadStreamCold => "read in order, cold, MB/s",
            Metric::WriteCpu => "CPU of servers and client, write, s/GB",
            Metric::ReadCpu => "CPU of servers and client, read, s/GB",
            Metric::FsyncP50 => "append 4 KiB and fsync, p50, µs",
            Metric::FsyncP99 => "append 4 KiB and fsync, p99, µs",
            Metric::FsyncBesideP50 => "the same beside a streaming writer, p50, µs",
            Metric::FsyncBesideP99 => "the same beside a streaming writer, p99, µs",
            Metric::PeakMemory => "largest memory of servers and client, MiB",
            Metric::DirectoryCreate => "large directory: create, entries/s",
            Metric::DirectoryList => "large directory: list, entries/s",
            Metric::DirectoryRemove => "large directory: remove, entries/s",
            Metric::DirectoryPeakMemory => "large directory: largest memory, MiB",
        }
    }

    /// Whether more is better.
    pub fn better(self) -> Better {
        match self {
            Metric::CopyTree
            | Metric::Postmark
            | Metric::WriteCpu
            | Metric::ReadCpu
            | Metric::FsyncP50
            | Metric::FsyncP99
            | Metric::FsyncBesideP50
            | Metric::FsyncBesideP99
            | Metric::PeakMemory
            | Metric::DirectoryPeakMemory => Better::Lower,
            _ => Better::Higher,
        }
    }

    /// How its samples are combined.
    pub fn summary(self) -> Summary {
        match self {
            Metric::PeakMemory | Metric::DirectoryPeakMemory => Summary::Largest,
            _ => Summary::Median,
        }
    }
}

/// The sizes of all scenarios.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sizes {
    /// Small files.
    pub files: u32,
    /// Files of the source tree.
    pub tree_files: u32,
    /// PostMark's files to begin with.
    pub postmark_files: u32,
    /// PostMark's transactions.
    pub postmark_transactions: u32,
    /// The large file, in MiB.
    pub stream_mib: u32,
    /// Number of timed fsyncs.
    pub fsync_samples: u32,
    /// Entries of the large directory.
    pub directory_entries: u32,
    /// Entries of the large directory on peers. Some peers would take hours for more.
    pub directory_entries_peers: u32,
}

impl Sizes {
    /// The sizes whose results count.
    pub const FULL: Sizes = Sizes {
        files: 2048,
        tree_files: 2000,
        postmark_files: 500,
        postmark_transactions: 2000,
        stream_mib: 512,
        fsync_samples: 500,
        directory_entries: 1_000_000,
        directory_entries_peers: 20_000,
    };

    /// Sizes that show in a minute or two whether everything works.
    pub const QUICK: Sizes = Sizes {
        files: 256,
        tree_files: 200,
        postmark_files: 50,
        postmark_transactions: 200,
        stream_mib: 32,
        fsync_samples: 40,
        directory_entries: 20_000,
        directory_entries_peers: 1_000,
    };
}

/// A metric of the target's processes, and not of the workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuPerGb {
    /// The metric.
    pub metric: Metric,
    /// The 10^9 bytes the step moves.
    pub gigabytes: f64,
}

/// A step of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Runs `bench work` with these arguments.
    Work {
        /// The arguments.
        arguments: Vec<String>,
        /// The results that become metrics.
        results: Vec<(&'static str, Metric)>,
        /// The CPU time as a metric, if it is one.
        cpu: Option<CpuPerGb>,
    },
    /// Empties all caches.
    Cold,
    /// Removes the scenario's folder, for the space of its large file. Small files stay until the
    /// run ends: after many removals, ext4, which is below most targets, makes files slowly for
    /// minutes.
    Remove,
}

/// A sequence of steps in a fresh folder.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The steps.
    pub steps: Vec<Step>,
    /// The metric for the largest memory of the target's processes.
    pub memory: Metric,
    /// Run only once, in every plan, because it is long.
    pub once: bool,
}

/// Paths in a scenario's steps.
pub struct Places<'a> {
    /// The scenario's folder on the target, which exists.
    pub dir: &'a Path,
    /// The source tree on the local disk.
    pub tree: &'a Path,
}

/// The large directory: the only scenario that is run once, and smaller on peers.
const DIRECTORY: &str = "directory";

/// The names of all scenarios, in the order in which they run.
pub const NAMES: [&str; 9] =
    ["create", "create-4", "create-fsync", "copy-tree", "postmark", "small-cold", "stream", "fsync-latency", DIRECTORY];

/// The scenario of this name, for a target that is (or is not) a peer.
pub fn scenario(name: &'static str, sizes: &Sizes, places: &Places<'_>, peer: bool) -> Option<Scenario> {
    let at = |leaf: &str| places.dir.join(leaf).display().to_string();
    let gigabytes = f64::from(sizes.stream_mib) * f64::from(1 << 20) / 1e9;
    let steps = match name {
        "create" => vec![create(&at("files"), sizes.files, &[], Some(Metric::Create))],
        "create-4" => vec![create(&at("files"), sizes.files, &["--processes", "4"], Some(Metric::CreateByFour))],
        "create-fsync" => vec![create(&at("files"), sizes.files, &["--fsync"], Some(Metric::CreateFsync))],
        "copy-tree" => vec![
            work(&["copy-tree", &places.tree.display().to_string(), &at("tree")], &[("seconds", Metric::CopyTree)]),
            work(&["walk", &at("tree")], &[("stats_per_s", Metric::StatWarm), ("entries_per_s", Metric::ReaddirWarm)]),
        ],
        "postmark" => vec![work(
            &[
                "postmark",
                "--files",
                &sizes.postmark_files.to_string(),
                "--transactions",
                &sizes.postmark_transactions.to_string(),
                &at("pool"),
            ],
            &[("seconds", Metric::Postmark)],
        )],
        "small-cold" => vec![
            create(&at("files"), sizes.files, &[], None),
            Step::Cold,
            work(
                &["read", "--files", &sizes.files.to_string(), &at("files")],
                &[("files_per_s", Metric::ReadSmallCold)],
            ),
            work(&["unlink", "--files", &sizes.files.to_string(), &at("files")], &[("files_per_s", Metric::Unlink)]),
        ],
        "stream" => vec![
            with_cpu(
                work(
                    &["write-stream", "--mib", &sizes.stream_mib.to_string(), &at("large")],
                    &[("mb_per_s", Metric::WriteStream)],
                ),
                CpuPerGb { metric: Metric::WriteCpu, gigabytes },
            ),
            Step::Cold,
            with_cpu(
                work(&["read-stream", &at("large")], &[("mb_per_s", Metric::ReadStreamCold)]),
                CpuPerGb { metric: Metric::ReadCpu, gigabytes },
            ),
            Step::Remove,
        ],
        "fsync-latency" => vec![
            work(
                &["fsync-latency", "--samples", &sizes.fsync_samples.to_string(), &at("")],
                &[("p50_us", Metric::FsyncP50), ("p99_us", Metric::FsyncP99)],
            ),
            work(
                &["fsync-latency", "--samples", &sizes.fsync_samples.to_string(), "--beside-stream", &at("")],
                &[("p50_us", Metric::FsyncBesideP50), ("p99_us", Metric::FsyncBesideP99)],
            ),
            Step::Remove,
        ],
        DIRECTORY => {
            let entries = if peer { sizes.directory_entries_peers } else { sizes.directory_entries };
            vec![work(
                &["directory", "--entries", &entries.to_string(), &at("many")],
                &[
                    ("create_per_s", Metric::DirectoryCreate),
                    ("list_per_s", Metric::DirectoryList),
                    ("remove_per_s", Metric::DirectoryRemove),
                ],
            )]
        }
        _ => return None,
    };
    let once = name == DIRECTORY;
    let memory = if once { Metric::DirectoryPeakMemory } else { Metric::PeakMemory };
    Some(Scenario { steps, memory, once })
}

fn work(arguments: &[&str], results: &[(&'static str, Metric)]) -> Step {
    Step::Work {
        arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        results: results.to_vec(),
        cpu: None,
    }
}

fn with_cpu(step: Step, cpu: CpuPerGb) -> Step {
    match step {
        Step::Work { arguments, results, .. } => Step::Work { arguments, results, cpu: Some(cpu) },
        other => other,
    }
}

fn create(dir: &str, files: u32, options: &[&str], metric: Option<Metric>) -> Step {
    let files = files.to_string();
    let mut arguments = vec!["create", "--files", &files];
    arguments.extend_from_slice(options);
    arguments.push(dir);
    let results: Vec<(&'static str, Metric)> = metric.map(|metric| ("files_per_s", metric)).into_iter().collect();
    work(&arguments, &results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_metric_is_yielded_by_some_scenario() {
        let places = Places { dir: Path::new("/dir"), tree: Path::new("/tree") };
        let mut yielded = BTreeSet::new();
        for name in NAMES {
            let scenario = scenario(name, &Sizes::FULL, &places, false).unwrap();
            yielded.insert(scenario.memory);
            for step in scenario.steps {
                if let Step::Work { results, cpu, .. } = step {
                    yielded.extend(results.iter().map(|(_, metric)| *metric));
                    yielded.extend(cpu.map(|cpu| cpu.metric));
                }
            }
        }
        assert_eq!(yielded, Metric::ALL.into_iter().collect());
    }

    #[test]
    fn arguments_are_those_of_the_workloads() {
        use clap::Parser;

        #[derive(Parser)]
        struct Line {
            #[command(subcommand)]
            _work: crate::work::Work,
        }
        let places = Places { dir: Path::new("/dir"), tree: Path::new("/tree") };
        for name in NAMES {
            for step in scenario(name, &Sizes::QUICK, &places, true).unwrap().steps {
                if let Step::Work { arguments, .. } = step {
                    let line = std::iter::once("bench".to_owned()).chain(arguments.clone());
                    assert!(Line::try_parse_from(line).is_ok(), "{arguments:?}");
                }
            }
        }
    }
}
