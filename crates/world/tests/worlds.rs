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
    assert!(outcome.consensus_faults > 100 && outcome.map_changes > 400, "{outcome:?}");
}

#[test]
fn sim_faults_in_long_runs() {
    let outcome = run_all(3000..3060, Options { operations: 800, ..FAULTS });
    assert!(outcome.deleted > 100, "{outcome:?}");
}

#[test]
fn sim_stores_fill_and_are_emptied_again() {
    let outcome = run_all(4000..4006, Options { operations: 2000, fill: true, ..CRASHES });
    assert!(outcome.cleaned > 100 && outcome.refused_space > 20, "{outcome:?}");
}

/// A file was cut in the middle of a block while the cleaner moved that block: the cut named the block's old address, which the
/// cleaner's segment had replaced, and the old segment was deleted.
#[test]
fn regression_cutting_a_block_does_not_undo_the_cleaners_move() {
    run_all(30003..30004, Options { operations: 1500, fill: true, ..CRASHES });
}

/// The stores were full of dead segments when the machine crashed, and the log's tail could not be put again.
#[test]
fn regression_machine_starts_though_the_stores_are_full_of_dead_segments() {
    run_all(30005..30006, Options { operations: 1500, fill: true, ..CRASHES });
}

/// A store came back with a segment that had been deleted while it was away, and what the log had gone on with was discarded.
#[test]
fn regression_a_deleted_segment_that_turns_up_again_discards_nothing() {
    run_all(4978..4979, FAULTS);
}
