//! Hundreds of worlds; a failure names the command that replays it.

use std::ops::Range;
use world::{Options, Outcome, run};

const CRASHES: Options =
    Options { operations: 120, crashes: true, faults: false, parity: None, fill: false, verbose: false };
const FAULTS: Options = Options { faults: true, ..CRASHES };

fn run_all(seeds: Range<u64>, options: Options) -> Outcome {
    seeds.fold(Outcome::default(), |sum, seed| match run(seed, options) {
        Ok(outcome) => sum.and(outcome),
        Err(failure) => panic!("{failure}"),
    })
}

#[test]
fn same_seed_gives_the_same_digest_and_another_seed_another() {
    let digest = |seed| run(seed, FAULTS).unwrap_or_else(|failure| panic!("{failure}")).digest;
    let digests: std::collections::BTreeSet<u64> = (9000..9010).map(digest).collect();
    assert_eq!(digests.len(), 10);
    assert_eq!((9000..9010).map(digest).collect::<std::collections::BTreeSet<u64>>(), digests);
}

#[test]
fn sim_without_crashes_every_answer_is_the_models() {
    let outcome = run_all(0..200, Options { crashes: false, ..CRASHES });
    assert!(outcome.cache_hits > 1000, "the modelled kernel caches nothing: {outcome:?}");
}

#[test]
fn crash_leaves_the_state_after_some_prefix_of_the_operations() {
    let outcome = run_all(1000..1400, CRASHES);
    assert!(outcome.crashes > 400 && outcome.power_losses > 100, "{outcome:?}");
}

#[test]
fn sim_faults_within_parity_show_nowhere_and_are_repaired() {
    let outcome = run_all(2000..2400, FAULTS);
    assert!(outcome.faults > 400 && outcome.repaired > 50, "{outcome:?}");
}

#[test]
fn sim_faults_in_long_runs() {
    let outcome = run_all(3000..3060, Options { operations: 800, ..FAULTS });
    assert!(outcome.deleted > 100, "{outcome:?}");
}
