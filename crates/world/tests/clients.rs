//! Runs worlds of several clients; a failure names the command that replays it.

use std::ops::Range;
use world::{ClientsOptions, ClientsOutcome, run_clients};

const FAULTS: ClientsOptions = ClientsOptions { clients: None, operations: 120, faults: true, verbose: false };

fn run_all(seeds: Range<u64>, options: ClientsOptions) -> ClientsOutcome {
    seeds.fold(ClientsOutcome::default(), |sum, seed| match run_clients(seed, options) {
        Ok(outcome) => sum.and(outcome),
        Err(failure) => panic!("{failure}"),
    })
}

#[test]
fn same_seed_gives_the_same_digest() {
    let digest = |seed| run_clients(seed, FAULTS).unwrap_or_else(|failure| panic!("{failure}")).digest;
    let digests: Vec<u64> = (9000..9005).map(digest).collect();
    assert_eq!((9000..9005).map(digest).collect::<Vec<_>>(), digests);
}

#[test]
fn sim_calls_of_several_clients_have_a_serial_order() {
    let outcome = run_all(0..60, ClientsOptions { faults: false, ..FAULTS });
    assert!(outcome.recalls > 2000 && outcome.repeated > 500, "clients never meet: {outcome:?}");
    assert!(outcome.glimpses > 200, "clients do not look at what others change: {outcome:?}");
    assert!(outcome.cache_hits > 200, "kernels answer nothing: {outcome:?}");
    assert!(outcome.operations > outcome.rounds * 5 / 4, "calls never overlap: {outcome:?}");
}

#[test]
fn crash_of_a_client_loses_only_what_nobody_has_seen() {
    let outcome = run_all(1000..1080, FAULTS);
    assert!(outcome.crashes > 50 && outcome.losses > 5 && outcome.returns > 40, "{outcome:?}");
    assert!(outcome.stalls > 40 && outcome.glimpses > 200, "{outcome:?}");
}
