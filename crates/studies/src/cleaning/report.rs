//! Table 4-2, figures 4-6 and 4-7, and the statements of sections 4.2.1, 4.3.1 and 4.4 about them.

use super::bookkeeping::Bookkeeping;
use super::log::Counts;
use super::{Ages, Outcome, Parameters, simulate};
use crate::cooperative::experiments::comparison::Workload;
use crate::figure::{Axis, Curve, Figure, Finding, Kind, Scale, Shape};
use crate::locality::accesses::Accesses;
use crate::sweep::sweep;
use policy::clean::Rule;
use serde::Serialize;

/// Segment sizes, in eighths of the parameter: with the thesis's 512 KiB, from 64 KiB to 1 MiB.
const SIZES_EIGHTHS: [u64; 5] = [1, 2, 4, 8, 16];
const UTILISATIONS: [f64; 7] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
/// Blocks of a client's cache of 16 MiB, of 8 KiB (section 4.4).
const CACHE_BLOCKS: u32 = 2048;
/// Table 4-2: counts for segments of this many KiB, and the stated write cost.
const TABLE_4_2: [(u64, Counts, &str); 2] = [
    (
        64,
        Counts {
            written: 61_370,
            cleaned: 63_357,
            empty: 58_974,
            cached: 0,
            read: 4383,
            rewritten: 960,
            moved_blocks: 0,
        },
        "1.087",
    ),
    (
        512,
        Counts { written: 7671, cleaned: 8844, empty: 4678, cached: 0, read: 4166, rewritten: 1142, moved_blocks: 0 },
        "1.693",
    ),
];

const VARIANT_COUNT: usize = 7;

/// The variants to compare at each utilisation.
fn variants(of: &Parameters) -> [(&'static str, Parameters); VARIANT_COUNT] {
    let from_disk = Parameters { cache_blocks: 0, delay_us: 0, rule: Rule::CostBenefit, ..*of };
    let cache_blocks = if of.cache_blocks > 0 { of.cache_blocks } else { CACHE_BLOCKS };
    let delay_us = super::bookkeeping::WRITE_DELAY_US;
    [
        ("live data read from the disk", from_disk),
        ("live data read from caches, too", Parameters { cache_blocks, ..from_disk }),
        ("from the disk; emptiest segment first", Parameters { rule: Rule::Greedy, ..from_disk }),
        ("from the disk; 30 s in memory before it is written", Parameters { delay_us, ..from_disk }),
        ("from the disk; as the product cleans", from_disk.product()),
        ("from the disk; cost-benefit with damped age", Parameters { rule: Rule::DampedCostBenefit, ..from_disk }),
        (
            "from the disk; as the product cleans, with ages of data",
            Parameters { ages: Ages::Data, ..from_disk.product() },
        ),
    ]
}

/// The result of one set of parameters; `None` if there was no room.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Run {
    /// The parameters.
    pub parameters: Parameters,
    /// The result.
    pub outcome: Option<Outcome>,
}

impl Run {
    fn cost(&self) -> Option<f64> {
        self.outcome?.write_cost
    }
}

/// All results on one trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Study {
    /// By size of segments.
    pub sizes: Vec<Run>,
    /// By variant, and by utilisation.
    pub utilisations: Vec<Vec<Run>>,
    /// The bookkeeping messages.
    pub bookkeeping: Bookkeeping,
}

impl Study {
    /// How often [`run`](Self::run) reports progress.
    pub const STEPS: usize = SIZES_EIGHTHS.len() + VARIANT_COUNT * UTILISATIONS.len();

    /// Runs all simulations; varies the sizes, utilisations, rule and delay of the parameters.
    pub fn run(accesses: &Accesses, of: &Parameters, done: impl Fn() + Sync) -> Study {
        let [(_, from_disk), ..] = variants(of);
        let sizes = SIZES_EIGHTHS.map(|part| Parameters { segment_bytes: of.segment_bytes / 8 * part, ..from_disk });
        let fuller = variants(of)
            .into_iter()
            .flat_map(|(_, of)| UTILISATIONS.map(|utilisation| Parameters { utilisation, ..of }));
        let all: Vec<Parameters> = sizes.into_iter().chain(fuller).collect();
        let study = |parameters: &Parameters| {
            let outcome = match parameters.check(accesses.block_bytes()) {
                Ok(()) => simulate(accesses, parameters).ok(),
                Err(_) => None,
            };
            Run { parameters: *parameters, outcome }
        };
        let mut sizes = sweep(&all, study, done);
        let utilisations = sizes.split_off(SIZES_EIGHTHS.len());
        let utilisations = utilisations.chunks(UTILISATIONS.len()).map(<[_]>::to_vec).collect();
        Study { sizes, utilisations, bookkeeping: Bookkeeping::of(accesses) }
    }

    /// Table 4-2 as a curve, and figures 4-6 and 4-7.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |title: &str, repeats: &str, x: Axis, y: &str, curves| Figure {
            title: title.into(),
            repeats: repeats.into(),
            theirs: Vec::new(),
            shape: Shape::Lines,
            x,
            y: Axis { label: y.into(), scale: Scale::Linear },
            curves,
        };
        let axis = |label: &str, scale| Axis { label: label.into(), scale };
        let over = |name: &str, runs: &[Run], x: fn(&Parameters) -> f64| {
            let points = runs.iter().filter_map(|run| Some((x(&run.parameters), run.cost()?)));
            Curve { name: name.into(), points: points.collect() }
        };
        let sizes = over("live data read from the disk", &self.sizes, |of| of.segment_bytes as f64 / 1024.0);
        let theirs = TABLE_4_2.iter().filter_map(|(kib, counts, _)| Some((*kib as f64, counts.write_cost()?)));
        let theirs = Curve { name: "the thesis's".into(), points: theirs.collect() };
        let names = variants(&Parameters::default()).map(|(name, _)| name);
        let fuller = names.into_iter().zip(&self.utilisations);
        let fuller = fuller.map(|(name, runs)| over(name, runs, |of| of.utilisation * 100.0));
        let Bookkeeping { by_other, by_same_soon, by_same_later } = self.bookkeeping;
        let all = self.bookkeeping.pessimistic().max(1) as f64;
        let bar = |name: &str, parts: [u64; 3]| {
            let points = parts.into_iter().zip(1u32..).map(|(part, x)| (f64::from(x), part as f64 / all * 100.0));
            Curve { name: name.into(), points: points.collect() }
        };
        vec![
            Figure {
                theirs: vec![theirs],
                ..figure(
                    "Write cost by size of segments",
                    "Dahlin, table 4-2",
                    axis("segment (KiB)", Scale::Log),
                    "write cost",
                    vec![sizes],
                )
            },
            Figure {
                theirs: Vec::new(),
                shape: Shape::Bars,
                ..figure(
                    "Messages to know what is dead",
                    "Dahlin, figure 4-6",
                    axis("modified by: 1 another client, 2 the same within 30 s, 3 the same later", Scale::Linear),
                    "messages, as a share of all modified blocks (%)",
                    vec![
                        bar("centralized, pessimistic", [by_other, by_same_soon, by_same_later]),
                        bar("centralized, optimistic", [by_other, 0, by_same_later]),
                        bar("distributed", [by_other, 0, 0]),
                    ],
                )
            },
            figure(
                "Write cost by how full the disk is",
                "Dahlin, figure 4-7",
                axis("peak disk utilisation (%)", Scale::Linear),
                "write cost",
                fuller.collect(),
            ),
        ]
    }

    fn at(&self, variant: usize, utilisation: f64) -> Option<f64> {
        self.utilisations.get(variant)?.iter().find(|run| run.parameters.utilisation == utilisation)?.cost()
    }

    /// The statements of the thesis, beside our results on this workload.
    pub fn findings(&self, of: Workload) -> Vec<Finding> {
        let mut findings = self.by_size();
        findings.extend(self.with_caches());
        findings.extend(self.by_rule());
        findings.extend(self.messages(of));
        findings
    }

    pub(super) fn by_size(&self) -> Vec<Finding> {
        let stated = "Dahlin, table 4-2";
        let mut findings = Vec::new();
        let mut costs = Vec::new();
        for (kib, counts, cost) in &TABLE_4_2 {
            let found = self.sizes.iter().find(|run| run.parameters.segment_bytes == kib << 10);
            let Some(Run { outcome, .. }) = found.copied() else { continue };
            costs.push(outcome.and_then(|outcome| outcome.write_cost));
            let share = |of: &Counts| (of.cleaned > 0).then(|| of.read as f64 / of.cleaned as f64);
            let recomputed = text(counts.write_cost(), 3);
            findings.push(finding(
                stated,
                &format!("write cost of {kib} KiB segments, from the table's own counts"),
                cost,
                recomputed.clone(),
                None,
                if recomputed == *cost {
                    ""
                } else {
                    "the table's counts do not give what it has, by one in the last place"
                },
            ));
            findings.push(finding(
                stated,
                &format!("write cost of {kib} KiB segments"),
                cost,
                text(costs.last().copied().flatten(), 3),
                None,
                "",
            ));
            findings.push(finding(
                stated,
                &format!("cleaned segments of {kib} KiB that are read"),
                &percent(share(counts)),
                percent(outcome.and_then(|outcome| share(&outcome.counts))),
                None,
                "",
            ));
        }
        let &[small, large] = costs.as_slice() else { return findings };
        let more = large.zip(small).map(|(large, small)| large / small - 1.0);
        findings.push(finding(
            "Dahlin, section 4.2.1",
            "what 512 KiB segments cost more than 64 KiB",
            "56 %",
            percent(more),
            more.map(|more| more >= 0.0),
            "",
        ));
        findings
    }

    fn with_caches(&self) -> Vec<Finding> {
        let stated = "Dahlin, section 4.4";
        let both = |at| self.at(0, at).zip(self.at(1, at));
        let mut findings = Vec::new();
        for (at, cost, overhead) in [(0.9, "20 %", "40 %"), (0.6, "7 %", "40 %")] {
            let full = format!("on a disk that is {:.0} % full", at * 100.0);
            let saved = both(at).map(|(disk, caches)| 1.0 - caches / disk);
            let less = both(at).filter(|(disk, _)| *disk > 1.0).map(|(disk, caches)| (disk - caches) / (disk - 1.0));
            findings.push(finding(
                stated,
                &format!("what caches save of the write cost {full}"),
                cost,
                percent(saved),
                saved.map(|saved| saved >= 0.0),
                "",
            ));
            findings.push(finding(
                stated,
                &format!("what caches save of the cleaner's part of it {full}"),
                overhead,
                percent(less),
                None,
                "",
            ));
        }
        findings.push(finding(
            stated,
            "write cost with caches on a disk that is 90 % full",
            "less than 2.0",
            text(self.at(1, 0.9), 3),
            None,
            "",
        ));
        let grows = self.at(0, 0.6).zip(self.at(0, 0.9)).map(|(less, more)| less <= more);
        let ours = format!("{} and {}", text(self.at(0, 0.6), 3), text(self.at(0, 0.9), 3));
        findings.push(finding(
            "Dahlin, figure 4-7",
            "write cost on a disk that is 60 % and 90 % full",
            "more on the fuller one",
            ours,
            grows,
            "",
        ));
        findings
    }

    fn by_rule(&self) -> [Finding; 3] {
        let full = "write cost on a disk that is 80 % full, by";
        let cost = |variant| self.at(variant, 0.8);
        let pair = |one, other| format!("{} and {}", text(cost(one), 3), text(cost(other), 3));
        let less = |one, other| cost(one).zip(cost(other)).map(|(one, other)| one < other);
        let stated = "Rosenblum and Ousterhout, section 3.5";
        let theirs = "cost-benefit is better with locality";
        let why = match (less(0, 2), less(5, 0)) {
            (Some(false), Some(true)) => format!(
                "Ages weigh too much. Here blocks of all ages die, old ones more rarely, and ages of segments differ by far more than a hundredfold: by age alone, full segments are \
                 moved that free little. With the fourth root of the age, cost-benefit costs {}.",
                text(cost(5), 3)
            ),
            _ => String::new(),
        };
        let sooner = match (less(0, 4), less(6, 4)) {
            (Some(true), Some(true)) => format!(
                "The product begins before the disk is full, so that writers need not wait, and finds fuller segments. It counts a segment's age in segments of its own log, which says \
                 little where there are many logs: with ages of data it costs {}.",
                text(cost(6), 3)
            ),
            _ => String::new(),
        };
        [
            finding(
                stated,
                &format!("{full} cost-benefit and by the emptiest first"),
                theirs,
                pair(0, 2),
                less(0, 2),
                &why,
            ),
            finding(
                "",
                &format!("{full} cost-benefit with the fourth root of the age, and by the emptiest first"),
                "not stated; the product's rule should be the better one",
                pair(5, 2),
                less(5, 2),
                "",
            ),
            finding(
                "",
                &format!("{full} cost-benefit as theirs and as the product cleans"),
                "",
                pair(0, 4),
                None,
                &sooner,
            ),
        ]
    }

    fn messages(&self, workload: Workload) -> Vec<Finding> {
        let stated = "Dahlin, section 4.3.1";
        let of = &self.bookkeeping;
        let (input, follows) = match workload {
            Workload::Auspex => ("an input: the trace is made so", "follows from the three above, which are inputs"),
            Workload::Sprite | Workload::Other => ("", ""),
        };
        let share = |part: u64| (of.pessimistic() > 0).then(|| part as f64 / of.pessimistic() as f64);
        let times = |all: u64| (of.distributed() > 0).then(|| all as f64 / of.distributed() as f64);
        vec![
            finding(stated, "blocks modified or deleted", "about a million", of.pessimistic().to_string(), None, input),
            finding(
                stated,
                "of those, by the same client within 30 s",
                "33 %",
                percent(share(of.by_same_soon)),
                None,
                input,
            ),
            finding(
                "Dahlin, section 5.3.1",
                "of those, by the client that wrote them",
                "96 %",
                percent(share(of.by_same_soon + of.by_same_later)),
                None,
                input,
            ),
            finding(
                stated,
                "messages of centralized optimistic, as a multiple of distributed",
                "18",
                text(times(of.optimistic()), 1),
                None,
                follows,
            ),
            finding(
                stated,
                "messages of centralized pessimistic, as a multiple of distributed",
                "more than 10",
                text(times(of.pessimistic()), 1),
                None,
                follows,
            ),
        ]
    }
}

fn text(of: Option<f64>, places: usize) -> String {
    of.map_or("none".into(), |of| format!("{of:.places$}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("none".into(), |share| format!("{:.1} %", share * 100.0))
}

fn finding(stated: &str, what: &str, theirs: &str, ours: String, holds: Option<bool>, why: &str) -> Finding {
    let (kind, why) = (Kind::Measured, why.into());
    Finding { stated: stated.into(), what: what.into(), theirs: theirs.into(), ours, kind, holds, why }
}
