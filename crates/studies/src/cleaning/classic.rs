//! Cleaning under random writes (Rosenblum and Ousterhout, "The Design and Implementation of a
//! Log-Structured File System", section 3.5): blocks are overwritten, all with the same
//! probability, or some more often than others.

use super::log::{Cleaner, Counts, Log};
use super::{Ages, Full, When, serialize_rule};
use crate::ParameterError::{self, Bounds, NothingCold, Range};
use crate::figure::{Axis, Curve, Figure, Finding, Kind, Scale, Shape};
use crate::sweep::sweep;
use host::SplitMix64;
use policy::clean::Rule;
use serde::Serialize;

/// Most blocks of the disk.
const BLOCK_COUNT_MAX: u64 = 1 << 26;

/// The parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Classic {
    /// Segments of the disk.
    pub segments: u32,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Share of the disk that is live.
    pub utilisation: f64,
    /// Share of the blocks that is hot.
    pub hot: f64,
    /// Share of the writes that goes to hot blocks.
    pub hot_writes: f64,
    /// Which segments are cleaned first.
    #[serde(serialize_with = "serialize_rule")]
    pub rule: Rule,
    /// What counts as a segment's age.
    pub ages: Ages,
    /// The cleaner writes the blocks that it moves in the order of age.
    pub sorts: bool,
    /// When it cleans.
    pub when: When,
    /// Turnovers of the live data before anything counts, so that cold blocks reach the place where
    /// they stay.
    pub warm_up_turnovers: u32,
    /// Turnovers that count.
    pub turnovers: u32,
    /// The same seed gives the same result.
    pub seed: u64,
}

impl Default for Classic {
    /// Every block equally often, on a disk that is 75 % full, cleaned as in the paper.
    fn default() -> Classic {
        Classic {
            segments: 500,
            segment_blocks: 128,
            utilisation: 0.75,
            hot: 1.0,
            hot_writes: 1.0,
            rule: Rule::CostBenefit,
            ages: Ages::Data,
            sorts: true,
            when: When::Full,
            warm_up_turnovers: 20,
            turnovers: 10,
            seed: 1,
        }
    }
}

impl Classic {
    /// A tenth of the blocks gets nine tenths of the writes.
    pub fn hot_and_cold() -> Classic {
        Classic { hot: 0.1, hot_writes: 0.9, ..Classic::default() }
    }

    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        ParameterError::first([
            (!(20..=1 << 20).contains(&self.segments), Bounds("segments", 20, 1 << 20)),
            (!(2..=1 << 12).contains(&self.segment_blocks), Bounds("segment-blocks", 2, 1 << 12)),
            (!(self.utilisation > 0.0 && self.utilisation < 1.0), Range("utilisation", "more than 0, less than 1")),
            (
                u64::from(self.segments) * u64::from(self.segment_blocks) > BLOCK_COUNT_MAX,
                Range("segments", "of together up to 67108864 blocks"),
            ),
            (!(self.hot > 0.0 && self.hot <= 1.0), Range("hot", "more than 0, up to 1")),
            (!(0.0..=1.0).contains(&self.hot_writes), Range("hot-writes", "0 to 1")),
            (self.hot == 1.0 && self.hot_writes < 1.0, NothingCold),
            (self.warm_up_turnovers > 1000, Bounds("warm-up-turnovers", 0, 1000)),
            (!(1..=1000).contains(&self.turnovers), Bounds("turnovers", 1, 1000)),
        ])
    }

    /// Number of live blocks.
    fn blocks(&self) -> u32 {
        let disk = f64::from(self.segments) * f64::from(self.segment_blocks);
        ((disk * self.utilisation) as u32).max(1)
    }

    /// Runs the writes; the parameters must pass [`check`](Self::check). [`Full`] if cleaning makes
    /// no room.
    pub fn run(&self) -> Result<Counts, Full> {
        let Classic { rule, ages, sorts, when, .. } = *self;
        let (blocks, random) = (self.blocks(), SplitMix64::new(self.seed));
        let mut log =
            Log::new(Cleaner { rule, ages, sorts, when }, self.segment_blocks, self.segments, 1, blocks as usize);
        for block in 0..blocks {
            log.write(0, block, |_| false)?;
        }
        let hot = ((f64::from(blocks) * self.hot).round() as u32).clamp(1, blocks);
        let share = (self.hot_writes * (1u64 << 32) as f64) as u64;
        let warm_up = u64::from(blocks) * u64::from(self.warm_up_turnovers);
        let mut before = log.counts;
        for count in 0..warm_up + u64::from(blocks) * u64::from(self.turnovers) {
            if count == warm_up {
                before = log.counts;
            }
            let block = match hot == blocks || random.chance(share, 1 << 32) {
                true => random.below(hot.into()) as u32,
                false => hot + random.below(u64::from(blocks - hot)) as u32,
            };
            log.write(0, block, |_| false)?;
        }
        Ok(log.counts.since(&before))
    }
}

/// The utilisation of segments when they are cleaned, if all blocks are overwritten with the same
/// probability and the oldest segment is cleaned: the solution `u` of `utilisation = (u - 1) / ln
/// u`. Cleaning the emptiest segment first is a little better.
pub fn utilisation_of_cleaned(utilisation: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if (middle - 1.0) / libm::log(middle) < utilisation {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The write cost if segments have this utilisation when they are cleaned: each is read, its live
/// part is written, and the rest is for new data (section 3.4 there).
pub fn write_cost(utilisation_of_cleaned: f64) -> f64 {
    2.0 / (1.0 - utilisation_of_cleaned)
}

const UTILISATIONS: [f64; 10] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9];

const VARIANT_COUNT: usize = 7;

/// The variants to compare, with their names.
fn variants() -> [(&'static str, Classic); VARIANT_COUNT] {
    let (even, hot) = (Classic::default(), Classic::hot_and_cold());
    let product =
        |of: Classic| Classic { rule: Rule::default(), ages: Ages::Segments, sorts: false, when: When::Short, ..of };
    [
        ("uniform, greedy", Classic { rule: Rule::Greedy, ..even }),
        ("hot-and-cold, greedy", Classic { rule: Rule::Greedy, ..hot }),
        ("hot-and-cold, cost-benefit", hot),
        ("hot-and-cold, cost-benefit with damped age", Classic { rule: Rule::DampedCostBenefit, ..hot }),
        ("uniform, as the product cleans", product(even)),
        ("hot-and-cold, as the product cleans", product(hot)),
        ("hot-and-cold, as the product cleans, sorted by age", Classic { sorts: true, ..product(hot) }),
    ]
}

/// The results of all variants, over the utilisation of the disk.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Study {
    /// Write costs by variant, and by utilisation.
    costs: Vec<Vec<Option<f64>>>,
}

impl Study {
    /// How often [`run`](Self::run) reports progress.
    pub const STEPS: usize = VARIANT_COUNT * UTILISATIONS.len();

    /// Runs each variant with this many writes, on a disk of this size.
    pub fn run(of: &Classic, done: impl Fn() + Sync) -> Study {
        let size = |other: Classic| Classic {
            hot: other.hot,
            hot_writes: other.hot_writes,
            rule: other.rule,
            ages: other.ages,
            sorts: other.sorts,
            when: other.when,
            ..*of
        };
        let all = variants()
            .into_iter()
            .flat_map(|(_, of)| UTILISATIONS.map(|utilisation| Classic { utilisation, ..size(of) }));
        let study = |of: &Classic| of.run().ok().and_then(|counts| counts.write_cost());
        let costs = sweep(&all.collect::<Vec<_>>(), study, done);
        Study { costs: costs.chunks(UTILISATIONS.len()).map(<[_]>::to_vec).collect() }
    }

    fn cost(&self, variant: usize, utilisation: f64) -> Option<f64> {
        let at = UTILISATIONS.iter().position(|other| *other == utilisation)?;
        *self.costs.get(variant)?.get(at)?
    }

    /// The write cost over the utilisation of the disk.
    pub fn figures(&self) -> Vec<Figure> {
        let points = |costs: &[Option<f64>]| {
            UTILISATIONS.iter().zip(costs).filter_map(|(at, cost)| Some((at * 100.0, (*cost)?))).collect()
        };
        let measured = variants().into_iter().zip(&self.costs);
        let measured = measured.map(|((name, _), costs)| Curve { name: name.into(), points: points(costs) });
        let formula = UTILISATIONS.map(|at| Some(write_cost(utilisation_of_cleaned(at))));
        let no_variance = UTILISATIONS.map(|at| Some(write_cost(at)));
        let computed = [("uniform, computed", formula), ("all segments equally full", no_variance)];
        let computed = computed.map(|(name, costs)| Curve { name: name.into(), points: points(&costs) });
        vec![Figure {
            title: "Write cost with writes by chance".into(),
            repeats: "Rosenblum and Ousterhout, figures 4 and 7".into(),
            theirs: Vec::new(),
            shape: Shape::Lines,
            x: Axis { label: "disk utilisation (%)".into(), scale: Scale::Linear },
            y: Axis { label: "write cost".into(), scale: Scale::Linear },
            curves: measured.chain(computed).collect(),
        }]
    }

    /// The statements of their section 3.5, beside our results.
    pub fn findings(&self) -> Vec<Finding> {
        let stated = "Rosenblum and Ousterhout, section 3.5";
        let finding = |what: String, theirs: String, ours: String, holds: Option<bool>, why: &str| Finding {
            stated: stated.into(),
            what,
            theirs,
            ours,
            kind: Kind::Measured,
            holds,
            why: why.into(),
        };
        let text = |cost: Option<f64>| cost.map_or("no room".into(), |cost| format!("{cost:.2}"));
        let mut findings = Vec::new();
        for at in [0.5, 0.75] {
            let (theirs, ours) = (write_cost(utilisation_of_cleaned(at)), self.cost(0, at));
            findings.push(finding(
                format!("write cost of a disk that is {:.0} % full, uniform, greedy; computed", at * 100.0),
                format!("{theirs:.2}"),
                text(ours),
                ours.map(|ours| (ours / theirs - 1.0).abs() < 0.05),
                "the formula knows no segments that are free meanwhile",
            ));
        }
        for at in [0.75, 0.8, 0.85, 0.9] {
            let (greedy, cost_benefit) = (self.cost(1, at), self.cost(2, at));
            findings.push(finding(
                format!("write cost of a disk that is {:.0} % full, hot-and-cold", at * 100.0),
                "cost-benefit below greedy".into(),
                format!("{} and {}", text(cost_benefit), text(greedy)),
                greedy.zip(cost_benefit).map(|(greedy, cost_benefit)| cost_benefit < greedy),
                "",
            ));
        }
        for at in [0.75, 0.8, 0.85, 0.9] {
            let both = self.cost(2, at).zip(self.cost(3, at));
            findings.push(Finding {
                stated: String::new(),
                ..finding(
                    format!("write cost of a disk that is {:.0} % full, hot-and-cold, with the age damped", at * 100.0),
                    "not stated; the product's rule beside theirs".into(),
                    both.map_or("no room".into(), |(theirs, damped)| format!("{damped:.2} and {theirs:.2}")),
                    None,
                    "",
                )
            });
        }
        let saved = UTILISATIONS.iter().filter_map(|at| Some(1.0 - self.cost(2, *at)? / self.cost(1, *at)?));
        findings.push(finding(
            "what cost-benefit saves of greedy's write cost at most, hot-and-cold".into(),
            "as much as 50 %".into(),
            format!("{:.0} %", saved.fold(0.0, f64::max) * 100.0),
            None,
            "their simulator cleans other numbers of segments at a time, and their disk is of another size",
        ));
        let (even, hot) = (self.cost(0, 0.5), self.cost(1, 0.5));
        findings.push(finding(
            "greedy, a disk that is 50 % full".into(),
            "worse with hot and cold blocks than without".into(),
            format!("{} and {}", text(hot), text(even)),
            None,
            "not so at every utilisation: their simulator cleans other numbers of segments at a time",
        ));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: Classic) -> Counts {
        Classic { turnovers: 5, ..of }.run().expect("room")
    }

    #[test]
    fn uniform_writes_cost_what_the_formula_says() {
        assert!((utilisation_of_cleaned(0.8) - 0.6286).abs() < 1e-3);
        for utilisation in [0.3, 0.5, 0.65, 0.8] {
            let of = counts(Classic { utilisation, rule: Rule::Greedy, ..Classic::default() });
            let (cost, formula) = (of.write_cost().expect("written"), write_cost(utilisation_of_cleaned(utilisation)));
            assert!((cost / formula - 1.0).abs() < 0.05, "{utilisation}: {cost} {formula}");
            // The result is as they derive it, except for empty segments and at the ends.
            let cleaned = of.moved_blocks as f64 / of.cleaned as f64 / 128.0;
            assert!((cost / write_cost(cleaned) - 1.0).abs() < 0.03, "{utilisation}: {of:?}");
        }
    }

    #[test]
    fn cost_benefit_beats_greedy_where_some_blocks_are_hot_and_the_disk_is_full() {
        let cost = |of: Classic| counts(of).write_cost().expect("written");
        for utilisation in [0.8, 0.9] {
            let hot = Classic { utilisation, ..Classic::hot_and_cold() };
            let greedy = cost(Classic { rule: Rule::Greedy, ..hot });
            let product =
                Classic { rule: Rule::default(), ages: Ages::Segments, sorts: false, when: When::Short, ..hot };
            assert!(cost(hot) < 0.95 * greedy, "{utilisation}: {} {greedy}", cost(hot));
            let so_soon = cost(Classic { rule: Rule::Greedy, ..product });
            assert!(cost(product) < 0.9 * so_soon, "{utilisation}: {} {so_soon}", cost(product));
            assert!(so_soon > greedy, "{utilisation}: who cleans sooner finds fuller segments");
            // Without hot blocks, ages carry no information.
            let even = Classic { utilisation, ..Classic::default() };
            assert!(cost(even) > cost(Classic { rule: Rule::Greedy, ..even }), "{utilisation}");
        }
    }

    #[test]
    fn what_they_say_holds() {
        let study = Study::run(&Classic { segments: 200, segment_blocks: 64, ..Classic::default() }, || ());
        let findings = study.findings();
        assert_eq!(findings.len(), 2 + 4 + 4 + 2);
        assert!(findings.iter().all(|finding| finding.holds != Some(false)), "{findings:#?}");
        let figures = study.figures();
        assert!(figures[0].curves.iter().all(|curve| curve.points.len() == UTILISATIONS.len()));
        assert_eq!(variants().len() * UTILISATIONS.len(), Study::STEPS);
    }

    #[test]
    fn a_disk_that_cannot_be_cleaned_is_full() {
        let of = Classic { utilisation: 0.999, rule: Rule::Greedy, ..Classic::default() };
        assert_eq!((of.check(), of.run()), (Ok(()), Err(Full)));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let fault = |of: Classic| of.check().expect_err("wrong").to_string();
        let of = Classic::hot_and_cold();
        assert!(fault(Classic { segments: 19, ..of }).starts_with("segments"));
        assert!(fault(Classic { segment_blocks: 1, ..of }).starts_with("segment-blocks"));
        assert!(fault(Classic { segments: 1 << 20, segment_blocks: 4096, ..of }).starts_with("segments"));
        assert!(fault(Classic { utilisation: 1.0, ..of }).starts_with("utilisation"));
        assert!(fault(Classic { hot: f64::NAN, ..of }).starts_with("hot:"));
        assert!(fault(Classic { hot_writes: -0.1, ..of }).starts_with("hot-writes"));
        assert!(fault(Classic { hot: 1.0, ..of }).starts_with("hot-writes"));
        assert!(fault(Classic { turnovers: 0, ..of }).starts_with("turnovers"));
        assert_eq!(of.check(), Ok(()));
    }
}
