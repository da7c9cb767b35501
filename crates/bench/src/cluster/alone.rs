//! One node of three works, beside a file system of one node whose stores are reached over TCP.

use std::path::Path;

use anyhow::{Context, Result};

use super::rig::{Cluster, WORKER};
use super::{Effort, NODES};
use crate::command::check_interrupt;
use crate::mounts::Mounted;
use crate::report::number;
use crate::requests;
use crate::results::advantage;
use crate::roam::found::{Figure, Found, Table, median};
use crate::run::run_scenario;
use crate::scenario::{Metric, Places, Sizes, scenario};
use crate::scripted::Site;
use crate::target::{Target, TargetKind};
use crate::work::Work;

/// Least speed of a joined node, beside that of the file system of one node.
const SHARE_MIN: f64 = 0.8;
const SCENARIOS: [&str; 6] = ["create", "create-fsync", "copy-tree", "postmark", "small-cold", "stream"];
/// The rows with a figure to reach.
const JUDGED: [Metric; 7] = [
    Metric::Create,
    Metric::CopyTree,
    Metric::Postmark,
    Metric::WriteStream,
    Metric::ReadStreamCold,
    Metric::StatWarm,
    Metric::ReaddirWarm,
];
/// Rows that are shown beside.
const SHOWN: [Metric; 5] =
    [Metric::CreateFsync, Metric::ReadSmallCold, Metric::Unlink, Metric::WriteCpu, Metric::ReadCpu];

/// Samples of one file system.
#[derive(Default)]
struct Samples(Vec<(Metric, f64)>);

impl Samples {
    fn of(&self, metric: Metric) -> Vec<f64> {
        self.0.iter().filter(|(name, _)| *name == metric).map(|(_, value)| *value).collect()
    }
}

fn measure_on(on: &mut impl Mounted, name: &'static str, sizes: &Sizes, places: &Places<'_>) -> Result<Samples> {
    check_interrupt()?;
    let scenario = scenario(name, sizes, places, false).context("no such scenario")?;
    run_scenario(on, &scenario, places.dir).map(Samples).with_context(|| name.to_owned())
}

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let sizes = if effort.quick { Sizes::QUICK } else { Sizes::FULL };
    let tree = site.root.join("tree");
    Work::MakeTree { dir: tree.clone(), files: sizes.tree_files }.run()?;
    let kinds = [TargetKind::StarlingTcp, TargetKind::StarlingTls];
    let mut targets = kinds.iter().map(|kind| Target::set_up(*kind, site)).collect::<Result<Vec<_>>>()?;
    let mut cluster = Cluster::start(site, "alone", NODES)?;
    let mut all = [Samples::default(), Samples::default(), Samples::default()];
    for name in SCENARIOS {
        for run in 0..effort.runs {
            let folder = format!("{name}-{run}");
            let places = |dir: &Path| (dir.join(&folder), tree.clone());
            for (samples, target) in all.iter_mut().zip(&mut targets) {
                let (dir, tree) = places(target.dir());
                samples.0.extend(measure_on(target, name, &sizes, &Places { dir: &dir, tree: &tree })?.0);
            }
            let (dir, tree) = places(&cluster.path(WORKER, ""));
            all[2].0.extend(measure_on(&mut cluster, name, &sizes, &Places { dir: &dir, tree: &tree })?.0);
        }
    }
    drop((targets, cluster));
    std::fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
    Ok(found(&all, effort))
}

/// What each operation costs.
pub(super) fn measure_operations(site: &Site) -> Result<Found> {
    let mut cluster = Cluster::start(site, "operations", NODES)?;
    let program = site.starling.as_deref().context("no program: give --starling PATH")?;
    let mount_point = cluster.path(WORKER, "");
    let rows = requests::of_node(&mut cluster, &mount_point, program)?;
    let mut table = Table::new("An operation on a node that joined", ["operation", "FUSE requests", "frames sent"]);
    let samples = serde_json::json!(rows);
    rows.into_iter().for_each(|row| table.row(row));
    Ok(Found {
        conditions:
            "Each operation is done 20 times, as by `bench requests`. Frames are those that the node sends, with its \
                     renewals and commits; each is answered."
                .to_owned(),
        tables: vec![table],
        samples,
        ..Found::default()
    })
}

fn found([tcp, tls, joined]: &[Samples; 3], effort: Effort) -> Found {
    let share = |metric: Metric| advantage(metric, median(&joined.of(metric)), median(&tcp.of(metric)));
    let header = ["", "one node, stores over TCP", "one node, stores over TLS", "one of three", "share", "range"];
    let mut table = Table::new("One of three nodes works", header);
    for metric in Metric::ALL.into_iter().filter(|metric| JUDGED.contains(metric) || SHOWN.contains(metric)) {
        let values = joined.of(metric);
        let ends = [f64::min as fn(f64, f64) -> f64, f64::max].map(|of| values.iter().copied().reduce(of));
        let range = ends.map(|end| number(end.unwrap_or(f64::NAN))).join("..");
        let medians = [tcp, tls, joined].map(|samples| number(median(&samples.of(metric))));
        table.row([metric.title().to_owned()].into_iter().chain(medians).chain([number(share(metric)), range]));
    }
    let samples = |of: &Samples| {
        let by_metric = |metric: Metric| (metric.title(), of.of(metric));
        serde_json::json!(Metric::ALL.into_iter().map(by_metric).collect::<std::collections::BTreeMap<_, _>>())
    };
    let figure = |metric: Metric| {
        let title = metric.title();
        let what = title.rsplit_once(", ").map_or(title, |(what, _)| what);
        Figure::at_least(format!("{what}: share of the speed over TCP"), share(metric), SHARE_MIN, "")
    };
    Found {
        conditions: format!(
            "The scenarios of `bench run`, on the second of {NODES} nodes, while the others do nothing. Medians of {} runs. The \
             share is that of the speed of one node whose five stores are processes of their own, reached over TCP.",
            effort.runs
        ),
        figures: JUDGED.map(figure).into(),
        tables: vec![table],
        samples: serde_json::json!({ "tcp": samples(tcp), "tls": samples(tls), "joined": samples(joined) }),
        ..Found::default()
    }
}
