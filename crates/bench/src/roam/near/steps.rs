//! The workloads in each place, and the limits for the results.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::place::Who;
use crate::command;
use crate::roam::found::Figure;
use crate::run::arguments;
use crate::scripted::Site;
use crate::work::{Outcome, Work};

/// A workload, and how its result is read from what it measured.
pub(super) struct Step {
    pub(super) title: &'static str,
    pub(super) unit: Unit,
    /// The program that it needs besides those that every machine has.
    program: Option<&'static str>,
    /// True if a guest runs it too. A guest has one processor, starts processes slowly, and reads
    /// this machine's files slowly, so some steps would measure the guest.
    in_guest: bool,
    /// A workload that runs before it and is not timed.
    pub(super) prepare: Option<Arguments>,
    pub(super) arguments: Arguments,
    pub(super) value: fn(&Outcome, &Sizes) -> Option<f64>,
    pub(super) bars: &'static [Bar],
}

type Arguments = fn(&Path, &Sizes) -> Vec<String>;

/// The unit of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A rate of these: more is better.
    PerSecond(&'static str),
    Seconds,
}

/// A limit for the result of a step.
pub(super) enum Bar {
    /// A place has at least this many times the other's rate.
    Rate(Who, f64, Who),
    /// A place has at least this many times its own rate of the first step.
    First(Who, f64),
    /// A place takes at most this many times as long as the other.
    Time(Who, f64, Who),
}

/// The sizes, and the sources of files.
pub(super) struct Sizes {
    pub(super) runs: u32,
    pub(super) files: u64,
    /// Files with an fsync each.
    pub(super) synced: u64,
    /// PostMark's files and transactions.
    pub(super) postmark: [u64; 2],
    /// The folder of the local disk that `cp -r` copies.
    pub(super) tree: PathBuf,
    pub(super) tree_files: u32,
    /// The repository on the local disk that git clones.
    repository: PathBuf,
    pub(super) repository_files: u32,
    pub(super) commits: u32,
    /// Files that a workload edits before the commit.
    pub(super) edits: u64,
}

impl Sizes {
    /// Makes the folder and the repository.
    pub(super) fn new(site: &Site, quick: bool) -> Result<Sizes> {
        let [tree, repository] = ["near-tree", "near-repository"].map(|name| site.root.join(name));
        let (runs, tree_files) = if quick { (1, 40) } else { (3, 2000) };
        let [files, synced, first, transactions] = if quick { [40, 5, 5, 10] } else { [1000, 200, 200, 1000] };
        let (sources, headers, commits, edits) = if quick { (16, 4, 2, 5) } else { (400, 100, 10, 50) };
        Work::MakeTree { dir: tree.clone(), files: tree_files }.run()?;
        let mut repository_files = 0;
        if command::is_installed(GIT) {
            let made = Work::MakeRepository { dir: repository.clone(), sources, headers, commits }.run()?;
            repository_files = made.get("files").map_or(0, |files| *files as u32);
        }
        let postmark = [first, transactions];
        Ok(Sizes { runs, files, synced, postmark, tree, tree_files, repository, repository_files, commits, edits })
    }
}

const GIT: &str = "git";
const FILES: Unit = Unit::PerSecond("files/s");

/// The folder of `create`, in the folder of a run.
fn one(dir: &Path) -> PathBuf {
    dir.join("one")
}

fn clone_in(dir: &Path) -> PathBuf {
    dir.join("clone")
}

fn from_to(action: &str, from: &Path, to: &Path) -> Vec<String> {
    let mut all = arguments(action, from, &[]);
    all.push(to.display().to_string());
    all
}

/// Creates files without an fsync.
pub(super) fn create(dir: &Path, sizes: &Sizes) -> Vec<String> {
    arguments("create", &one(dir), &[("files", sizes.files)])
}

/// Creates files with an fsync each.
pub(super) fn create_synced(dir: &Path, sizes: &Sizes) -> Vec<String> {
    let mut all = arguments("create", &dir.join("synced"), &[("files", sizes.synced)]);
    all.push("--fsync".to_owned());
    all
}

/// Removes what [`create`] made.
pub(super) fn unlink(dir: &Path, sizes: &Sizes) -> Vec<String> {
    arguments("unlink", &one(dir), &[("files", sizes.files)])
}

pub(super) fn copy(dir: &Path, sizes: &Sizes) -> Vec<String> {
    from_to("copy-tree", &sizes.tree, &dir.join("tree"))
}

fn read(dir: &Path, sizes: &Sizes) -> Vec<String> {
    arguments("read", &one(dir), &[("files", sizes.files)])
}

fn per_second(outcome: &Outcome, _: &Sizes) -> Option<f64> {
    outcome.get("files_per_s").copied()
}

fn seconds(outcome: &Outcome, _: &Sizes) -> Option<f64> {
    outcome.get("seconds").copied()
}

/// What most steps have in common.
const STEP: Step = Step {
    title: "",
    unit: FILES,
    program: None,
    in_guest: true,
    prepare: None,
    arguments: create,
    value: per_second,
    bars: &[],
};

const AWAY: Bar = Bar::Rate(Who::Away, 0.5, Who::Core);
const GIT_BARS: &[Bar] = &[Bar::Time(Who::Near, 2.0, Who::Core), Bar::Time(Who::Away, 2.0, Who::Core)];
const GIT_STEP: Step =
    Step { unit: Unit::Seconds, program: Some(GIT), in_guest: false, value: seconds, bars: GIT_BARS, ..STEP };

/// All steps, in this order in the folder of a run: some use what those before have made.
pub(super) const STEPS: [Step; 12] = [
    Step {
        title: "create, write 1 KiB, close",
        bars: &[Bar::Rate(Who::Near, 2.0, Who::Sshfs), Bar::Rate(Who::Near, 1.2, Who::Nfs), AWAY],
        ..STEP
    },
    Step {
        title: "the same by four processes",
        in_guest: false,
        arguments: |dir, sizes| arguments("create", &dir.join("four"), &[("files", sizes.files), ("processes", 4)]),
        bars: &[Bar::First(Who::Near, 2.0), AWAY],
        ..STEP
    },
    Step {
        title: "the same by one with fsync",
        arguments: create_synced,
        bars: &[Bar::Rate(Who::Near, 1.0, Who::Sshfs), AWAY],
        ..STEP
    },
    Step {
        title: "open, read, close what was read once",
        prepare: Some(read),
        arguments: read,
        bars: &[Bar::Time(Who::Near, 1.5, Who::Core)],
        ..STEP
    },
    Step { title: "unlink", arguments: unlink, bars: &[Bar::Rate(Who::Near, 1.0, Who::Sshfs), AWAY], ..STEP },
    Step {
        title: "rename",
        unit: Unit::PerSecond("names/s"),
        arguments: |dir, sizes| arguments("operations", &dir.join("operations"), &[("times", sizes.synced)]),
        value: |outcome, _| Some(1e3 / outcome.get("rename_ms")?),
        bars: &[Bar::Rate(Who::Near, 1.0, Who::Sshfs), AWAY],
        ..STEP
    },
    Step {
        title: "`cp -r`",
        in_guest: false,
        arguments: copy,
        value: |outcome, sizes| Some(f64::from(sizes.tree_files) / outcome.get("seconds")?),
        bars: &[Bar::Rate(Who::Near, 3.0, Who::Sshfs), AWAY],
        ..STEP
    },
    Step {
        title: "PostMark",
        unit: Unit::PerSecond("transactions/s"),
        arguments: |dir, sizes| {
            let [files, transactions] = sizes.postmark;
            arguments("postmark", &dir.join("postmark"), &[("files", files), ("transactions", transactions)])
        },
        // As users see it: including making and removing the files.
        value: |outcome, sizes| Some(sizes.postmark[1] as f64 / outcome.get("seconds")?),
        bars: &[Bar::Rate(Who::Near, 3.0, Who::Sshfs), AWAY],
        ..STEP
    },
    Step {
        title: "`git clone`",
        arguments: |dir, sizes| from_to("git-clone", &sizes.repository, &clone_in(dir)),
        ..GIT_STEP
    },
    Step { title: "`git status`", arguments: |dir, _| arguments("git-status", &clone_in(dir), &[]), ..GIT_STEP },
    Step {
        title: "`git add -A` and `git commit`",
        prepare: Some(|dir, sizes| arguments("edit", &clone_in(dir), &[("files", sizes.edits)])),
        arguments: |dir, _| arguments("git-commit", &clone_in(dir), &[]),
        ..GIT_STEP
    },
    Step {
        title: "`rm -rf` of the clone",
        arguments: |dir, _| arguments("remove-tree", &clone_in(dir), &[]),
        ..GIT_STEP
    },
];

impl Step {
    /// The program that it needs and this machine does not have.
    pub(super) fn missing(&self) -> Option<&'static str> {
        self.program.filter(|program| !command::is_installed(program))
    }

    pub(super) fn is_for(&self, who: Who) -> bool {
        self.in_guest || who != Who::Nfs
    }

    /// The title with the unit of rates.
    pub(super) fn label(&self) -> String {
        match self.unit {
            Unit::PerSecond(what) => format!("{}: {what}", self.title),
            Unit::Seconds => self.title.to_owned(),
        }
    }

    /// Compares the results with the bars of one place. Bars with a place that is not in `places`
    /// are left out. `median` gives the result of a step in a place.
    pub(super) fn figures(&self, of: Who, places: &[Who], median: impl Fn(&Step, Who) -> f64) -> Vec<Figure> {
        let rate = |step: &Step, who| match step.unit {
            Unit::PerSecond(_) => median(step, who),
            Unit::Seconds => 1.0 / median(step, who),
        };
        let ratio = |who, other| rate(self, who) / rate(self, other);
        let figure = |bar: &Bar| match *bar {
            Bar::Rate(who, limit, other) => {
                let what = format!("{}, of {} rate: {}", who.title(), other.whose(), self.label());
                Figure::at_least(what, ratio(who, other), limit, "x")
            }
            Bar::First(who, limit) => {
                let what = format!("{}, of one's rate: {}", who.title(), self.label());
                Figure::at_least(what, rate(self, who) / rate(&STEPS[0], who), limit, "x")
            }
            Bar::Time(who, limit, other) => {
                let what = format!("{}, times {} time: {}", who.title(), other.whose(), self.title);
                Figure::at_most(what, ratio(other, who), limit, "x")
            }
        };
        let asked = |bar: &&Bar| bar.who() == of && bar.places().iter().all(|who| places.contains(who));
        self.bars.iter().filter(asked).map(figure).collect()
    }
}

impl Bar {
    fn who(&self) -> Who {
        self.places()[0]
    }

    fn places(&self) -> [Who; 2] {
        match *self {
            Bar::Rate(who, _, other) | Bar::Time(who, _, other) => [who, other],
            Bar::First(who, _) => [who, who],
        }
    }
}
