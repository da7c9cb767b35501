//! The workload that hurts cooperative caching most, and the steps from it to better ones (Dahlin,
//! section 3.3.4.3): the only workload that the thesis specifies completely.

use super::{Case, Measured, curves, found, shown, speed_up};
use crate::ParameterError;
use crate::cooperative::{Algorithm, Blocks, Conditions, Knowledge, Parameters};
use crate::figure::{Axis, Figure, Finding, Kind, Scale, Shape};
use crate::sweep::sweep;
use serde::Serialize;
use trace::worst_case::{BLOCK_BYTES, WorstCase};

/// The varied parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Varied {
    /// Each client's data, in percent of its cache.
    WorkingSet,
    /// Pauses, in mean bursts.
    Gap,
    /// Requests to the client's own data, in percent.
    Locality,
}

/// The algorithms to compare.
pub const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::Base,
    Algorithm::Greedy,
    Algorithm::Central,
    Algorithm::Hash,
    Algorithm::WeightedLru(Knowledge::AllHints),
    Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS),
    Algorithm::TwoChoices,
    Algorithm::Epochs,
];
const DYNAMIC: [&str; 2] = ["weighted-lru", "n-chance"];
const WORKING_SETS: [f64; 16] =
    [10.0, 30.0, 50.0, 70.0, 80.0, 90.0, 100.0, 110.0, 120.0, 130.0, 140.0, 150.0, 200.0, 250.0, 300.0, 400.0];
const GAPS: [f64; 10] = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0];
const LOCALITIES: [f64; 12] = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 100.0];

/// The parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Setup {
    /// Requests of each run; a quarter of them only fill the caches. With a million, chance makes a
    /// difference of a third of a percent, with a hundred thousand of more than one.
    pub requests: u64,
    /// The same seed gives the same figures.
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { requests: 1_000_000, seed: 1 }
    }
}

/// Fewest requests: with fewer, chance decides which algorithm is better.
const REQUESTS_MIN: u64 = 10_000;
const REQUESTS_MAX: u64 = 100_000_000;

impl Setup {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        match (REQUESTS_MIN..=REQUESTS_MAX).contains(&self.requests) {
            true => Ok(()),
            false => Err(ParameterError::Bounds("requests", REQUESTS_MIN, REQUESTS_MAX)),
        }
    }
}

/// The results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worst {
    /// The parameters.
    pub setup: Setup,
    /// All runs.
    pub measured: Vec<Measured<Varied>>,
}

fn workloads(setup: &Setup) -> Vec<(Varied, f64, WorstCase)> {
    let worst = WorstCase { requests: setup.requests, seed: setup.seed, ..WorstCase::default() };
    let sets = WORKING_SETS.map(|x| (Varied::WorkingSet, x, WorstCase { working_set: x / 100.0, ..worst }));
    let gaps = GAPS.map(|x| (Varied::Gap, x, WorstCase { gap: x, ..worst }));
    let localities = LOCALITIES.map(|x| (Varied::Locality, x, WorstCase { locality: x / 100.0, ..worst }));
    sets.into_iter().chain(gaps).chain(localities).collect()
}

/// Number of workloads.
pub const WORKLOADS: usize = WORKING_SETS.len() + GAPS.len() + LOCALITIES.len();

/// Runs all workloads. The setup must pass [`Setup::check`]; `done` is called for each of the
/// [`WORKLOADS`].
pub fn study(setup: &Setup, done: impl Fn() + Sync) -> Worst {
    let of_workload = |(study, x, workload): &(Varied, f64, WorstCase)| {
        let records = workload.records().map(Ok::<_, std::convert::Infallible>);
        let Ok(blocks) = Blocks::of(records, BLOCK_BYTES) else { return Vec::new() };
        let client_blocks = workload.cache_blocks as u32;
        let run = |algorithm: Algorithm| {
            let (warm_up, seed) = (setup.requests / 4, setup.seed);
            let parameters = Parameters { algorithm, client_blocks, server_blocks: 0, warm_up, seed };
            let (curve, conditions) = (algorithm.name().to_owned(), Conditions::default());
            let case = Case { study: *study, curve, x: *x, parameters, conditions };
            case.measured(super::run(&blocks, &case))
        };
        ALGORITHMS.map(run).into()
    };
    let measured = sweep(&workloads(setup), of_workload, done);
    Worst { setup: *setup, measured: measured.into_iter().flatten().collect() }
}

/// Figures 3-19 to 3-21.
pub fn figures(of: &Worst) -> Vec<Figure> {
    let figure = |study, title: &str, repeats: &str, label: &str| Figure {
        title: title.into(),
        repeats: repeats.into(),
        theirs: Vec::new(),
        shape: Shape::Lines,
        x: Axis { label: label.into(), scale: Scale::Linear },
        y: Axis { label: "mean time of a read (ms)".into(), scale: Scale::Linear },
        curves: curves(&of.measured, study, |one| one.mean_us / 1000.0),
    };
    vec![
        figure(
            Varied::WorkingSet,
            "The size of each client's data, without sharing and pauses",
            "Dahlin, figure 3-19",
            "each client's data (% of its cache)",
        ),
        figure(
            Varied::Gap,
            "Pauses, with data of 110% of a cache and no sharing",
            "Dahlin, figure 3-20",
            "mean pause (mean bursts)",
        ),
        figure(
            Varied::Locality,
            "Sharing, with data of 110% of a cache and no pauses",
            "Dahlin, figure 3-21",
            "requests to one's own data (%)",
        ),
    ]
}

/// The statements of the thesis, beside our results. The thesis specifies this workload, so its
/// statements about the curves must hold.
pub fn findings(of: &Worst) -> Vec<Finding> {
    let slower =
        |study, name: &str, x| speed_up(found(&of.measured, study, name, x), found(&of.measured, study, "base", x));
    let finding = |stated: &str, what: String, theirs: &str, ours: String, holds: bool| Finding {
        stated: stated.into(),
        what,
        theirs: theirs.into(),
        ours,
        kind: Kind::Measured,
        holds: Some(holds),
        why: String::new(),
    };
    let computed = |finding: Finding| Finding { kind: Kind::Computed, ..finding };
    let percent = |ratio: Option<f64>| shown(ratio.map(|ratio| 100.0 * (ratio - 1.0)), 1, "%");
    let mut all = Vec::new();
    let sets = "Dahlin, figure 3-19";
    let base = found(&of.measured, Varied::WorkingSet, "base", 110.0).map(|one| one.mean_us);
    // Of eleven blocks that are read at random, ten are there.
    let formula_us = (10.0 * 250.0 + 15_850.0) / 11.0;
    all.push(finding(
        sets,
        "mean time of the base case at 110%, computed from table 3-2".into(),
        &format!("{formula_us:.0} µs"),
        shown(base, 0, " µs"),
        base.is_some_and(|base| (base / formula_us - 1.0).abs() < 0.05),
    ));
    for name in DYNAMIC {
        let ratios = WORKING_SETS.map(|x| (x, slower(Varied::WorkingSet, name, x).unwrap_or(f64::NAN)));
        let (x, most) = ratios.into_iter().fold((0.0, 0.0), |most, one| if one.1 > most.1 { one } else { most });
        all.push(finding(
            sets,
            format!("where {name} is slower than the base case, at most"),
            "20% at 110%",
            format!("{:.1}% at {x:.0}%", 100.0 * (most - 1.0)),
            // Rounded to whole percents, as in the thesis.
            x == 110.0 && (100.0 * most).round() <= 120.0,
        ));
        let small = slower(Varied::WorkingSet, name, 90.0);
        let fits = finding(sets, format!("{name} slower while all fits in"), "0%", percent(small), small == Some(1.0));
        all.push(computed(fits));
        let large = slower(Varied::WorkingSet, name, 400.0);
        let little = large.is_some_and(|ratio| ratio < 1.03);
        all.push(finding(
            sets,
            format!("{name} slower with four times as much as fits in"),
            "little",
            percent(large),
            little,
        ));
    }
    let same = WORKING_SETS.iter().all(|x| slower(Varied::WorkingSet, "greedy", *x) == Some(1.0));
    let ours = if same { "the same" } else { "not the same" };
    all.push(computed(finding(sets, "greedy without sharing".into(), "the same as the base case", ours.into(), same)));
    let central = slower(Varied::WorkingSet, "central", 50.0);
    let (what, theirs) = ("central slower at 50%", "slower once data are more than the fifth that is one's own");
    all.push(finding(sets, what.into(), theirs, percent(central), central.is_some_and(|ratio| ratio > 1.0)));
    for name in DYNAMIC {
        let (none, equal) = (slower(Varied::Gap, name, 0.0), slower(Varied::Gap, name, 1.0));
        all.push(finding(
            "Dahlin, figure 3-20",
            format!("{name} slower than the base case without pauses, and with pauses as long as bursts"),
            "slower, and faster",
            format!("{}, {}", percent(none), percent(equal)),
            none.is_some_and(|ratio| ratio > 1.0) && equal.is_some_and(|ratio| ratio < 1.0),
        ));
        let (shared, insular) = (slower(Varied::Locality, name, 0.0), slower(Varied::Locality, name, 95.0));
        all.push(finding(
            "Dahlin, figure 3-21",
            format!("{name} slower where all is shared, and where 95% of the requests are to one's own data"),
            "faster for all but the most insular",
            format!("{}, {}", percent(shared), percent(insular)),
            [shared, insular].into_iter().all(|ratio| ratio.is_some_and(|ratio| ratio < 1.0)),
        ));
    }
    let all_gain = ALGORITHMS[1..].iter().map(|algorithm| slower(Varied::Locality, algorithm.name(), 0.0));
    let most = all_gain.flatten().fold(0.0, f64::max);
    let (what, theirs) = ("the slowest of all, where all is shared", "faster than the base case");
    all.push(finding("Dahlin, figure 3-21", what.into(), theirs, percent(Some(most)), most < 1.0));
    let shared = |name| percent(slower(Varied::Locality, name, 0.0));
    all.push(Finding {
        stated: "Dahlin, section 3.1.7".into(),
        what: "epochs slower than the base case where all is shared; greedy and n-chance beside it".into(),
        theirs: "that it does not prefer to give up what others have, too, seems wrong".into(),
        ours: format!("{}; {}, {}", shared("epochs"), shared("greedy"), shared("n-chance")),
        kind: Kind::Measured,
        holds: None,
        why: "The thesis leaves it to later work; here what is as old as the oldest goes nowhere, even where copies are younger.".into(),
    });
    all
}
