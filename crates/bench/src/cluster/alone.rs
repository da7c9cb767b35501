//! One node of three works, beside a file system of one node whose stores are reached over TCP.

use anyhow::{Context, Result};

use super::beside::{Course, ROWS, Samples, Side, name_of};
use super::rig::{Cluster, WORKER};
use super::{Effort, NODES};
use crate::report::number;
use crate::requests;
use crate::results::advantage;
use crate::roam::found::{Figure, Found, Table};
use crate::scenario::Metric;
use crate::scripted::Site;
use crate::target::{Target, TargetKind};

/// Least speed of a joined node, beside that of the file system of one node.
const SHARE_MIN: f64 = 0.8;
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

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let course = Course::new(site, effort)?;
    let mut tcp = Target::set_up(TargetKind::StarlingTcp, site)?;
    let mut tls = Target::set_up(TargetKind::StarlingTls, site)?;
    let mut joined = Cluster::start(site, "alone", NODES)?;
    let mut all = [Samples::default(), Samples::default(), Samples::default()];
    for round in course.rounds() {
        let sides: [&mut dyn Side; 3] = [&mut tcp, &mut tls, &mut joined];
        for (samples, side) in all.iter_mut().zip(sides) {
            course.measure(side, round, samples)?;
        }
    }
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
    let share = |metric: Metric| advantage(metric, joined.median(metric), tcp.median(metric));
    let header = ["", "one node, stores over TCP", "one node, stores over TLS", "one of three", "share", "range"];
    let mut table = Table::new("One of three nodes works", header);
    for metric in ROWS {
        let medians = [tcp, tls, joined].map(|samples| number(samples.median(metric)));
        let last = [number(share(metric)), joined.range(metric)];
        table.row([metric.title().to_owned()].into_iter().chain(medians).chain(last));
    }
    let figure = |metric: Metric| {
        let what = format!("{}: share of the speed over TCP", name_of(metric));
        Figure::at_least(what, share(metric), SHARE_MIN, "")
    };
    Found {
        conditions: format!(
            "The scenarios of `bench run`, on the second of {NODES} nodes, while the others do nothing. Medians of {} runs. The \
             share is that of the speed of one node whose five stores are processes of their own, reached over TCP.",
            effort.runs
        ),
        figures: JUDGED.map(figure).into(),
        tables: vec![table],
        samples: serde_json::json!({ "tcp": tcp.json(), "tls": tls.json(), "joined": joined.json() }),
        ..Found::default()
    }
}
