//! Near home and without one: what small files cost on a mount that roams, beside sshfs to the same machine,
//! a mount of the core, and the local disk.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::found::{Figure, Found, Table, median};
use super::rig::Rig;
use crate::report::number;
use crate::run::{arguments, work};
use crate::target::{Site, Target, TargetKind, sync_all};
use crate::work::{Outcome, Work};

/// What is measured, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Who {
    Near,
    Away,
    Sshfs,
    Core,
    Local,
}

impl Who {
    const ALL: [Who; 5] = [Who::Near, Who::Away, Who::Sshfs, Who::Core, Who::Local];

    fn title(self) -> &'static str {
        match self {
            Who::Near => "near home",
            Who::Away => "without a network",
            Who::Sshfs => "sshfs",
            Who::Core => "core mount",
            Who::Local => "local disk",
        }
    }
}

/// It, mounted.
enum Subject {
    Roaming(Rig),
    Target(Target),
}

impl Subject {
    fn new(site: &Site, who: Who) -> Result<Subject> {
        let kind = match who {
            Who::Near => return Ok(Subject::Roaming(Rig::mounted(site, "near", &[], |_| Ok(()))?)),
            Who::Away => {
                let rig = Rig::mounted(site, "away", &[], |_| Ok(()))?;
                // What the root has is known then.
                work(&arguments("stat-files", &rig.path(""), &[]))?;
                rig.connect("off")?;
                return Ok(Subject::Roaming(rig));
            }
            Who::Sshfs => TargetKind::Sshfs,
            Who::Core => TargetKind::Starling,
            Who::Local => TargetKind::Ext4,
        };
        Ok(Subject::Target(Target::set_up(kind, site)?))
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Subject::Roaming(rig) => rig.path(name),
            Subject::Target(target) => target.dir().join(name),
        }
    }

    /// What the step before left behind is home and on the disk, so that the next one does not pay for it.
    fn settle(&self, who: Who) -> Result<()> {
        if let (Subject::Roaming(rig), Who::Near) = (self, who) {
            rig.send_all()?;
        }
        sync_all();
        Ok(())
    }
}

/// A step, and how its result is read from what the workload measured: always more is better.
struct Step {
    title: &'static str,
    arguments: fn(&Path, &Sizes) -> Vec<String>,
    rate: fn(&Outcome, &Sizes) -> Option<f64>,
}

struct Sizes {
    files: u64,
    synced: u64,
    postmark: [u64; 2],
    tree: PathBuf,
    tree_files: u32,
}

fn per_second(outcome: &Outcome, _: &Sizes) -> Option<f64> {
    outcome.get("files_per_s").copied()
}

const STEPS: [Step; 7] = [
    Step {
        title: "create, write 1 KiB, close: files/s",
        arguments: |dir, sizes| arguments("create", &dir.join("one"), &[("files", sizes.files)]),
        rate: per_second,
    },
    Step {
        title: "the same by four processes: files/s",
        arguments: |dir, sizes| arguments("create", &dir.join("four"), &[("files", sizes.files), ("processes", 4)]),
        rate: per_second,
    },
    Step {
        title: "the same by one with fsync: files/s",
        arguments: |dir, sizes| {
            let mut all = arguments("create", &dir.join("synced"), &[("files", sizes.synced)]);
            all.push("--fsync".to_owned());
            all
        },
        rate: per_second,
    },
    Step {
        title: "unlink: files/s",
        arguments: |dir, sizes| arguments("unlink", &dir.join("one"), &[("files", sizes.files)]),
        rate: per_second,
    },
    Step {
        title: "rename: names/s",
        arguments: |dir, sizes| arguments("operations", &dir.join("operations"), &[("times", sizes.synced)]),
        rate: |outcome, _| Some(1e3 / outcome.get("rename_ms")?),
    },
    Step {
        title: "`cp -r`: files/s",
        arguments: |dir, sizes| {
            let mut all = arguments("copy-tree", &sizes.tree, &[]);
            all.push(dir.join("tree").display().to_string());
            all
        },
        rate: |outcome, sizes| Some(f64::from(sizes.tree_files) / outcome.get("seconds")?),
    },
    Step {
        title: "PostMark: transactions/s",
        arguments: |dir, sizes| {
            let [files, transactions] = sizes.postmark;
            arguments("postmark", &dir.join("postmark"), &[("files", files), ("transactions", transactions)])
        },
        // As users wait for it: with its files made and removed.
        rate: |outcome, sizes| Some(sizes.postmark[1] as f64 / outcome.get("seconds")?),
    },
];

/// All runs of a step.
#[derive(Debug, Serialize)]
struct Sample {
    who: Who,
    step: &'static str,
    rates: Vec<f64>,
}

/// See the module's header.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let (runs, tree_files) = if quick { (1, 40) } else { (3, 2000) };
    let tree = site.root.join("near-tree");
    Work::MakeTree { dir: tree.clone(), files: tree_files }.run()?;
    let [files, synced, first, transactions] = if quick { [40, 5, 5, 10] } else { [1000, 200, 200, 1000] };
    let sizes = Sizes { files, synced, postmark: [first, transactions], tree, tree_files };
    let subjects = Who::ALL.map(|who| Subject::new(site, who).map(|subject| (who, subject)));
    let subjects = subjects.into_iter().collect::<Result<Vec<_>>>()?;
    let mut samples: Vec<Sample> = Vec::new();
    for run in 0..runs {
        for (who, subject) in &subjects {
            let dir = subject.path(&format!("run-{run}"));
            work(&arguments("make-files", &dir, &[("files", 0)]))?;
            for step in &STEPS {
                subject.settle(*who)?;
                let outcome = work(&(step.arguments)(&dir, &sizes)).with_context(|| step.title)?;
                let rate = (step.rate)(&outcome, &sizes).context("the workload measured no rate")?;
                eprintln!("near: {}: {}: {}", who.title(), step.title, number(rate));
                match samples.iter_mut().find(|sample| (sample.who, sample.step) == (*who, step.title)) {
                    Some(sample) => sample.rates.push(rate),
                    None => samples.push(Sample { who: *who, step: step.title, rates: vec![rate] }),
                }
            }
            subject.settle(*who)?;
        }
    }
    let rate = |who, step: &str| {
        let sample = samples.iter().find(|sample| sample.who == who && sample.step == step);
        sample.map_or(f64::NAN, |sample| median(&sample.rates))
    };
    let mut header = vec![String::new()];
    header.extend(Who::ALL.map(|who| who.title().to_owned()));
    let mut table = Table::new("Rates", header);
    for step in &STEPS {
        let rates = Who::ALL.map(|who| number(rate(who, step.title)));
        table.row([step.title.to_owned()].into_iter().chain(rates));
    }
    let [one, four, synced, unlink, rename, copy, postmark] = STEPS.map(|step| step.title);
    let beside_sshfs = |step: &'static str, limit| {
        let what = format!("near home, of sshfs's rate: {step}");
        Figure::at_least(what, rate(Who::Near, step) / rate(Who::Sshfs, step), limit, "x")
    };
    let mut figures = vec![
        beside_sshfs(one, 2.0),
        Figure::at_least(
            "near home, four processes, of one's rate",
            rate(Who::Near, four) / rate(Who::Near, one),
            2.0,
            "x",
        ),
        beside_sshfs(synced, 1.0),
        beside_sshfs(unlink, 1.0),
        beside_sshfs(rename, 1.0),
        beside_sshfs(copy, 3.0),
        beside_sshfs(postmark, 3.0),
    ];
    figures.extend(STEPS.iter().map(|step| {
        let what = format!("without a network, of the core mount's rate: {}", step.title);
        Figure::at_least(what, rate(Who::Away, step.title) / rate(Who::Core, step.title), 0.5, "x")
    }));
    Ok(Found {
        conditions: format!(
            "Everything is on one machine: the home, sshfs's server, and the mounts over loopback. {} files of 1 KiB \
             ({} with fsync), `cp -r` of {tree_files} files from the local disk, PostMark with {first} files and \
             {transactions} transactions. Places by turns, medians of {runs}; before each step everything is home.",
            sizes.files, sizes.synced
        ),
        figures,
        tables: vec![table],
        samples: serde_json::to_value(&samples).context("samples as JSON")?,
        ..Found::default()
    })
}
