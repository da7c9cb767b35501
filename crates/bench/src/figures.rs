//! The target figures for Starling, and the verdict on each.

use serde::Serialize;

use crate::results::{Samples, advantage};
use crate::scenario::{Better, Metric};
use crate::target::TargetKind;

/// The target for a metric of Starling; the same for each judged way to run it.
#[derive(Clone, Copy, Debug)]
enum Bar {
    /// At least this many times better than the best peer with redundancy.
    RedundantPeer(f64),
    /// At least this many times better than GlusterFS disperse 4+1.
    Gluster(f64),
    /// At least this many times as good as the better mode of the do-nothing file system.
    DoNothing(f64),
    /// At most this many times as long as the better mode of the do-nothing file system.
    DoNothingTime(f64),
    /// At most this many times another metric of Starling.
    Own(Metric, f64),
    /// At most this many MiB.
    Mib(u64),
    /// At most the cache limit and this many MiB.
    CacheAndMib(u64),
}

/// Memory that Starling may use besides its cache: for index nodes, fragment indexes, buffers, and
/// the program itself.
const MEMORY_OVERHEAD_MIB: u64 = 256;

const FIGURES: [(Metric, Bar); 21] = [
    (Metric::Create, Bar::RedundantPeer(6.0)),
    (Metric::Create, Bar::DoNothing(0.85)),
    (Metric::CreateByFour, Bar::RedundantPeer(6.0)),
    (Metric::CreateByFour, Bar::DoNothing(0.85)),
    (Metric::CreateFsync, Bar::RedundantPeer(2.5)),
    (Metric::CopyTree, Bar::RedundantPeer(4.0)),
    (Metric::CopyTree, Bar::DoNothingTime(1.5)),
    (Metric::Postmark, Bar::RedundantPeer(5.0)),
    (Metric::Postmark, Bar::DoNothingTime(2.0)),
    (Metric::ReadSmallCold, Bar::RedundantPeer(3.0)),
    (Metric::WriteStream, Bar::Gluster(2.5)),
    (Metric::WriteStream, Bar::DoNothing(0.8)),
    (Metric::ReadStreamCold, Bar::RedundantPeer(1.0)),
    (Metric::ReadStreamCold, Bar::DoNothing(0.9)),
    (Metric::WriteCpu, Bar::Gluster(2.0)),
    (Metric::ReadCpu, Bar::Gluster(2.0)),
    (Metric::FsyncBesideP99, Bar::Own(Metric::FsyncP99, 10.0)),
    (Metric::StatWarm, Bar::RedundantPeer(3.0)),
    (Metric::ReaddirWarm, Bar::RedundantPeer(3.0)),
    (Metric::PeakMemory, Bar::CacheAndMib(MEMORY_OVERHEAD_MIB)),
    (Metric::DirectoryPeakMemory, Bar::Mib(1024)),
];

/// Whether a figure was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Reached.
    Pass,
    /// Not reached.
    Fail,
    /// Something needed for it was not measured.
    NotMeasured,
}

/// A figure with its verdict.
#[derive(Debug, Serialize)]
pub struct Judged {
    /// The way to run Starling.
    pub target: TargetKind,
    /// What is measured.
    pub metric: Metric,
    /// The target, in words.
    pub wanted: String,
    /// The measured value, in the same terms.
    pub measured: Option<f64>,
    /// How `measured` is written.
    pub measured_text: String,
    /// Whether the target was reached.
    pub verdict: Verdict,
}

/// Judges every figure. `cache_mib` is the limit that Starling's cache was given.
pub fn judge(samples: &Samples, cache_mib: u64) -> Vec<Judged> {
    let judge_all =
        |target| FIGURES.iter().map(move |&(metric, bar)| judge_one(samples, cache_mib, target, metric, bar));
    TargetKind::JUDGED.into_iter().flat_map(judge_all).collect()
}

fn judge_one(samples: &Samples, cache_mib: u64, target: TargetKind, metric: Metric, bar: Bar) -> Judged {
    let ours = samples.value(metric, target);
    let judged = |wanted: String, measured, unit, enough: &dyn Fn(f64) -> bool| {
        judged(target, metric, wanted, measured, unit, enough)
    };
    let against = |others: &[TargetKind]| Some((ours?, samples.best(metric, others)?));
    let at_least = |wanted: String, bound: f64, others: &[TargetKind]| {
        let measured = against(others).map(|(ours, (other, theirs))| (advantage(metric, ours, theirs), Some(other)));
        judged(wanted, measured, "x", &|ratio| ratio >= bound)
    };
    let less = if metric.better() == Better::Lower { " less than" } else { "" };
    match bar {
        Bar::RedundantPeer(bound) => {
            at_least(format!("≥ {bound}x{less} the best redundant peer"), bound, &TargetKind::REDUNDANT_PEERS)
        }
        Bar::Gluster(bound) => {
            at_least(format!("≥ {bound}x{less} GlusterFS 4+1"), bound, &[TargetKind::GlusterDisperse])
        }
        Bar::DoNothing(bound) => at_least(format!("≥ {bound}x{less} do-nothing"), bound, &TargetKind::DO_NOTHING),
        Bar::DoNothingTime(bound) => {
            let measured = against(&TargetKind::DO_NOTHING).map(|(ours, (other, theirs))| (ours / theirs, Some(other)));
            judged(format!("≤ {bound}x do-nothing's time"), measured, "x", &|ratio| ratio <= bound)
        }
        Bar::Own(other, bound) => {
            let measured = ours.zip(samples.value(other, target)).map(|(a, b)| (a / b, None));
            judged(format!("≤ {bound}x its own p99 when idle"), measured, "x", &|ratio| ratio <= bound)
        }
        Bar::Mib(bound) => {
            let measured = ours.map(|ours| (ours, None));
            judged(format!("≤ {bound} MiB"), measured, " MiB", &|ours| ours <= bound as f64)
        }
        Bar::CacheAndMib(overhead) => {
            let bound = cache_mib + overhead;
            let measured = ours.map(|ours| (ours, None));
            let wanted = format!("≤ {bound} MiB (cache limit + {overhead})");
            judged(wanted, measured, " MiB", &|ours| ours <= bound as f64)
        }
    }
}

fn judged(
    target: TargetKind,
    metric: Metric,
    wanted: String,
    measured: Option<(f64, Option<TargetKind>)>,
    unit: &str,
    enough: &dyn Fn(f64) -> bool,
) -> Judged {
    let verdict = match measured {
        None => Verdict::NotMeasured,
        Some((value, _)) if enough(value) => Verdict::Pass,
        Some(_) => Verdict::Fail,
    };
    let measured_text = match measured {
        None => "not measured".to_owned(),
        Some((value, None)) => format!("{value:.2}{unit}"),
        Some((value, Some(other))) => format!("{value:.2}{unit} ({})", other.title()),
    };
    Judged { target, metric, wanted, measured: measured.map(|(value, _)| value), measured_text, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TargetKind::{
        FusePassthrough, FusePassthroughWriteback, GlusterDisperse, Moosefs, Starling, StarlingTcp, StarlingTls,
    };

    fn verdict(samples: &Samples, metric: Metric, bar: Bar) -> (Verdict, Option<f64>) {
        let judged = judge_one(samples, 100, Starling, metric, bar);
        (judged.verdict, judged.measured)
    }

    #[test]
    fn rates_are_compared_with_the_best_of_each_kind() {
        let mut samples = Samples::default();
        for (target, value) in [
            (Starling, 9000.0),
            (GlusterDisperse, 300.0),
            (Moosefs, 1500.0),
            (FusePassthrough, 10_000.0),
            (FusePassthroughWriteback, 12_000.0),
        ] {
            samples.add(Metric::Create, target, value);
        }
        assert_eq!(verdict(&samples, Metric::Create, Bar::RedundantPeer(6.0)), (Verdict::Pass, Some(6.0)));
        assert_eq!(verdict(&samples, Metric::Create, Bar::Gluster(31.0)), (Verdict::Fail, Some(30.0)));
        assert_eq!(verdict(&samples, Metric::Create, Bar::DoNothing(0.85)), (Verdict::Fail, Some(0.75)));
    }

    #[test]
    fn times_and_costs_are_better_when_smaller() {
        let mut samples = Samples::default();
        for (target, value) in [(Starling, 0.3), (GlusterDisperse, 1.2), (FusePassthrough, 0.25)] {
            samples.add(Metric::CopyTree, target, value);
        }
        assert_eq!(verdict(&samples, Metric::CopyTree, Bar::RedundantPeer(4.0)).0, Verdict::Pass);
        let (verdict, measured) = verdict(&samples, Metric::CopyTree, Bar::DoNothingTime(1.5));
        assert_eq!((verdict, measured.map(|ratio| (ratio * 100.0).round())), (Verdict::Pass, Some(120.0)));
    }

    #[test]
    fn memory_is_held_against_the_cache_limit() {
        let mut samples = Samples::default();
        samples.add(Metric::PeakMemory, Starling, 300.0);
        assert_eq!(verdict(&samples, Metric::PeakMemory, Bar::CacheAndMib(256)).0, Verdict::Pass);
        assert_eq!(verdict(&samples, Metric::PeakMemory, Bar::CacheAndMib(100)).0, Verdict::Fail);
    }

    #[test]
    fn stores_over_tcp_are_held_against_the_same_figures_and_over_tls_against_none() {
        let mut samples = Samples::default();
        for (target, value) in [(Starling, 700.0), (StarlingTcp, 600.0), (StarlingTls, 1.0), (Moosefs, 100.0)] {
            samples.add(Metric::Create, target, value);
        }
        let judged = judge(&samples, 100);
        let of_create: Vec<_> = judged.iter().filter(|f| f.verdict != Verdict::NotMeasured).collect();
        assert_eq!(
            of_create.iter().map(|f| (f.target, f.measured)).collect::<Vec<_>>(),
            [(Starling, Some(7.0)), (StarlingTcp, Some(6.0))]
        );
    }

    #[test]
    fn nothing_measured_is_neither_pass_nor_fail() {
        let judged = judge(&Samples::default(), 100);
        assert_eq!(judged.len(), 2 * FIGURES.len());
        assert!(judged.iter().all(|figure| figure.verdict == Verdict::NotMeasured));
    }
}
