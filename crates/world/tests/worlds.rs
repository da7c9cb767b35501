//! Runs hundreds of worlds; a failure names the command that replays it.

use std::ops::Range;
use world::{Options, Outcome, run};

const CRASHES: Options = Options {
    operations: 120,
    crashes: true,
    faults: false,
    parity: None,
    beyond: false,
    usual_limits: false,
    fill: false,
    verbose: false,
};
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
    let outcome = run_all(0..120, Options { crashes: false, ..CRASHES });
    assert!(outcome.cache_hits > 600, "the modelled kernel caches nothing: {outcome:?}");
    assert!(outcome.lock_waits > 120, "workers never meet: {outcome:?}");
    assert!(outcome.overlaps > 30, "requests never overlap: {outcome:?}");
    assert!(outcome.refused_right > 120, "everybody may do everything: {outcome:?}");
    let (two, used) = (outcome.two_managers, outcome.two_used);
    assert!(two > 30 && used > two / 2, "the second manager has no files: {outcome:?}");
}

#[test]
fn crash_leaves_the_state_after_some_prefix_of_the_operations() {
    let outcome = run_all(1000..1180, CRASHES);
    assert!(outcome.crashes > 180 && outcome.power_losses > 60, "{outcome:?}");
}

#[test]
fn sim_faults_within_parity_show_nowhere_and_are_repaired() {
    let outcome = run_all(2000..2360, FAULTS);
    assert!(outcome.faults > 180 && outcome.repaired > 6 && outcome.restored > 0, "{outcome:?}");
    assert!(outcome.consensus_faults > 60 && outcome.map_changes > 180, "{outcome:?}");
    assert!(outcome.remote_stores > 180 && outcome.store_starts > 2 * outcome.remote_stores, "{outcome:?}");
    assert!(outcome.cuts > 3 && outcome.emptied > 1, "{outcome:?}");
    assert_eq!(outcome.refused_space, 0, "full disks within parity are done without: {outcome:?}");
}

#[test]
fn sim_faults_beyond_parity_destroy_nothing() {
    let outcome = run_all(5000..5120, Options { beyond: true, ..FAULTS });
    assert!(outcome.ordeals > 45 && outcome.ordeals_refused > 33 && outcome.ordeals_survived > 13, "{outcome:?}");
    assert!(outcome.ordeals_unnoticed <= 1 && outcome.ordeals_stuck <= 2 && outcome.ordeals_vouched > 3, "{outcome:?}");
}

#[test]
fn sim_faults_in_long_runs() {
    let outcome = run_all(3000..3036, Options { operations: 800, ..FAULTS });
    assert!(outcome.deleted > 60 && outcome.refused_space == 0, "{outcome:?}");
}

#[test]
fn sim_stores_fill_and_are_emptied_again() {
    let outcome = run_all(4000..4003, Options { operations: 1500, fill: true, ..CRASHES });
    assert!(outcome.cleaned > 100 && outcome.refused_space > 20, "{outcome:?}");
}

/// A task that read along met errors, since it still did so when the file system had stopped.
#[test]
fn regression_what_reads_along_ends_before_the_file_system_stops() {
    run_all(302_009..302_010, FAULTS);
}
