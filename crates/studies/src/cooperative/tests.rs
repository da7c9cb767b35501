mod model;

use super::*;
use host::SplitMix64;
use trace::worst_case::{BLOCK_BYTES, WorstCase};
use trace::{Deed, Record};

fn blocks(of: WorstCase) -> Blocks {
    let records = of.records().map(Ok::<_, ()>);
    Blocks::of(records, BLOCK_BYTES).expect("blocks")
}

fn parameters(algorithm: Algorithm) -> Parameters {
    Parameters { algorithm, client_blocks: 10, server_blocks: 0, warm_up: 20_000, seed: 1 }
}

/// Mean time of reads, in microseconds.
fn time(of: WorstCase, algorithm: Algorithm) -> f64 {
    let outcome = simulate(&blocks(of), &parameters(algorithm));
    mean_us(&outcome.reads, &Technology::ATM.times_us(algorithm)).expect("reads")
}

const N_CHANCE: Algorithm = Algorithm::NChance(2);

/// The algorithms whose split between own and common blocks changes by itself.
const DYNAMIC: [Algorithm; 6] = [
    Algorithm::WeightedLru(Knowledge::Global),
    Algorithm::WeightedLru(Knowledge::SingletHints),
    Algorithm::WeightedLru(Knowledge::AllHints),
    N_CHANCE,
    Algorithm::TwoChoices,
    Algorithm::Epochs,
];

/// Figure 3-19: no sharing, no pauses.
#[test]
fn without_sharing_and_pauses_cooperation_costs_little() {
    let worst = WorstCase::default();
    for percent in [50, 90, 110, 150, 200, 400] {
        let of = WorstCase { working_set: f64::from(percent) / 100.0, ..worst };
        let base = time(of, Algorithm::Base);
        // Of n blocks that are read at random, ten are there.
        let there = (10.0 / of.private_blocks() as f64).min(1.0);
        let expected = there * 250.0 + (1.0 - there) * 15_850.0;
        assert!((base / expected - 1.0).abs() < 0.02, "{percent}: {base} {expected}");
        assert_eq!(time(of, Algorithm::Greedy), base, "{percent}");
        for algorithm in DYNAMIC {
            let ratio = time(of, algorithm) / base;
            assert!((0.99..=1.20).contains(&ratio), "{algorithm:?} {percent}: {ratio}");
        }
        // It has a fifth of the memory for each client, and four fifths for all.
        let central = time(of, Algorithm::Central) / base;
        assert!(central > if percent == 400 { 1.0 } else { 1.1 }, "{percent}: {central}");
    }
    let most = |of: WorstCase| time(of, N_CHANCE) / time(of, Algorithm::Base);
    let at = |percent: f64| most(WorstCase { working_set: percent / 100.0, ..worst });
    assert!(at(110.0) > at(150.0) && at(110.0) > at(90.0), "{} {} {}", at(90.0), at(110.0), at(150.0));
}

/// Figure 3-20: clients that pause lend their memory.
#[test]
fn once_pauses_are_as_long_as_bursts_cooperation_wins() {
    let at = |gap: f64, algorithm| {
        let of = WorstCase { gap, requests: 100_000, ..WorstCase::default() };
        time(of, algorithm) / time(of, Algorithm::Base)
    };
    for algorithm in DYNAMIC {
        let ratios: Vec<f64> = [0.0, 1.0, 4.0].map(|gap| at(gap, algorithm)).into();
        assert!(ratios[0] > 1.0 && ratios[1] < 1.0 && ratios[2] < ratios[1], "{algorithm:?} {ratios:?}");
    }
}

/// Figure 3-21: clients that share gain.
#[test]
fn where_data_are_shared_all_but_the_base_case_gain() {
    let of = WorstCase { locality: 0.0, ..WorstCase::default() };
    let base = time(of, Algorithm::Base);
    for algorithm in
        [Algorithm::Greedy, Algorithm::Central, Algorithm::Hash, Algorithm::Best].into_iter().chain(DYNAMIC)
    {
        assert!(time(of, algorithm) < base, "{algorithm:?}");
    }
}

/// Clients that read and write blocks of a few files of five, and sometimes remove one.
fn any(seed: u64) -> Blocks {
    let random = SplitMix64::new(seed);
    let mut time_us = 0;
    let records = (0..2500).map(|_| {
        // Some accesses are simultaneous, and sometimes there is none for long.
        time_us += if random.chance(1, 100) { random.below(8_000_000) } else { random.below(3) * 40 };
        let (client, file) = (random.below(7) as u32, random.below(6));
        let (offset, len) = (random.below(5), 1);
        let deed = match random.below(40) {
            0 => Deed::Delete,
            1..8 => Deed::Write { offset, len },
            _ => Deed::Read { offset, len },
        };
        Ok::<_, ()>(Record { time_us, client, file, deed })
    });
    Blocks::of(records, 1).expect("blocks")
}

#[test]
fn model_small_traces_give_what_plain_lists_give() {
    let others = [Knowledge::Global, Knowledge::SingletHints].map(Algorithm::WeightedLru);
    let n = [0, 1, 5].map(Algorithm::NChance);
    let mut forwarded = [0; DYNAMIC.len()];
    for seed in 0..40 {
        let (blocks, random) = (any(seed), SplitMix64::new(seed));
        for algorithm in Algorithm::ALL.into_iter().chain(others).chain(n) {
            let (client_blocks, server_blocks) = (1 + random.below(12) as u32, random.below(8) as u32);
            let of = Parameters { algorithm, client_blocks, server_blocks, warm_up: 500, seed };
            let rooms = if random.chance(1, 2) { vec![3, 9, 0] } else { Vec::new() };
            let conditions = Conditions { rooms, ..Conditions::default() };
            let (ours, model) = (simulate_under(&blocks, &of, &conditions), model::run(&blocks, &of, &conditions));
            assert_eq!(ours, model, "{of:?} {conditions:?}");
            let at = DYNAMIC.iter().position(|one| *one == algorithm);
            at.into_iter().for_each(|at| forwarded[at] += ours.forwarded);
        }
    }
    // The test must not be vacuous.
    assert!(forwarded.into_iter().all(|count| count > 1000), "{forwarded:?}");
}

#[test]
fn a_lone_client_hits_what_it_has_and_no_trace_is_too_short() {
    let read =
        |time_us| Ok::<_, ()>(Record { time_us, client: 0, file: time_us % 7, deed: Deed::Read { offset: 0, len: 1 } });
    for algorithm in Algorithm::ALL.into_iter().chain(DYNAMIC) {
        for count in [0, 1, 500] {
            let blocks = Blocks::of((0..count).map(read), 1).expect("blocks");
            for (client_blocks, server_blocks) in [(1, 0), (3, 2), (70, 0), (u32::MAX, u32::MAX)] {
                let of = Parameters { algorithm, client_blocks, server_blocks, warm_up: 0, seed: 1 };
                let outcome = simulate(&blocks, &of);
                assert_eq!(outcome.reads.iter().sum::<u64>(), count, "{of:?}");
                let disk = outcome.reads[Level::Disk as usize];
                assert!(client_blocks < 70 || disk == count.min(7), "{of:?} {outcome:?}");
                assert!(algorithm == Algorithm::Direct || outcome.forwarded == 0);
            }
        }
    }
}

#[test]
fn greedy_forwarding_is_n_chance_forwarding_without_a_chance() {
    let of = |algorithm| Parameters { algorithm, client_blocks: 5, server_blocks: 3, warm_up: 0, seed: 1 };
    let outcome = |algorithm| simulate(&any(1), &of(algorithm));
    assert_eq!(outcome(Algorithm::NChance(0)), outcome(Algorithm::Greedy));
}

#[test]
fn a_lone_client_has_nobody_to_send_anything_to() {
    let read =
        |time_us| Ok::<_, ()>(Record { time_us, client: 0, file: time_us % 7, deed: Deed::Read { offset: 0, len: 1 } });
    let blocks = Blocks::of((0..500).map(read), 1).expect("blocks");
    let of = |algorithm| Parameters { algorithm, client_blocks: 3, server_blocks: 2, warm_up: 0, seed: 1 };
    let outcome = |algorithm| simulate(&blocks, &of(algorithm));
    for algorithm in [Algorithm::Greedy, N_CHANCE, Algorithm::TwoChoices, Algorithm::Epochs] {
        assert_eq!(outcome(algorithm), outcome(Algorithm::Base), "{algorithm:?}");
    }
}

/// The server's load for deeds on the first blocks of some files. Each client has room for five
/// blocks, the server for one.
fn load(algorithm: Algorithm, deeds: &[(u32, u64, Deed)]) -> Load {
    let records = deeds
        .iter()
        .map(|(client, file, deed)| Ok::<_, ()>(Record { time_us: 0, client: *client, file: *file, deed: *deed }));
    let of = Parameters { algorithm, client_blocks: 5, server_blocks: 1, warm_up: 0, seed: 1 };
    simulate(&Blocks::of(records, 1).expect("blocks"), &of).load
}

const READ: Deed = Deed::Read { offset: 0, len: 1 };
const WRITE: Deed = Deed::Write { offset: 0, len: 1 };

#[test]
fn what_leaves_the_servers_memory_for_others_is_sent_by_it() {
    let reads = [(0, 1, READ), (0, 2, READ), (0, 3, READ)];
    for algorithm in Algorithm::ALL {
        let sent = match algorithm {
            Algorithm::Central | Algorithm::Hash | Algorithm::Best => 2,
            _ => 0,
        };
        assert_eq!(load(algorithm, &reads), Load { disk: 3 * 6, other: sent * 3, ..Load::default() }, "{algorithm:?}");
    }
}

#[test]
fn each_copy_that_a_write_makes_stale_is_a_message_wherever_it_is() {
    // Two clients have read it. It left the first one's own cache, if that holds one block, and the
    // server's.
    let read = [(0, 1, READ), (1, 1, READ), (0, 2, READ), (0, 3, READ)];
    let stale = |algorithm, writer| {
        let written = [&read[..], &[(writer, 1, WRITE)]].concat();
        let [before, after] = [&read[..], &written].map(|deeds| load(algorithm, deeds));
        assert_eq!(Load { writes: 0, ..before }, Load { writes: 0, ..after }, "no read causes it");
        // The written block takes the place of the server's block, which the server sends.
        let is_sent = matches!(algorithm, Algorithm::Central | Algorithm::Hash | Algorithm::Best);
        after.writes - before.writes - if is_sent { 3 } else { 0 }
    };
    for algorithm in [Algorithm::Base, Algorithm::Direct, Algorithm::Greedy, N_CHANCE] {
        assert_eq!((stale(algorithm, 2), stale(algorithm, 1)), (2, 1), "{algorithm:?}");
    }
    // The copy of the second client, and the common one unless it is with the writer.
    assert_eq!((stale(Algorithm::Central, 2), stale(Algorithm::Central, 1)), (2, 1));
    let [first, second, third] = [0, 1, 2].map(|writer| stale(Algorithm::Hash, writer));
    assert_eq!((first, second + third), (2, 2));
    // With direct cooperation, another client may hold a client's own copy.
    let deeds: Vec<(u32, u64, Deed)> = (1..9).map(|file| (0, file, READ)).collect();
    let with = |writer| load(Algorithm::Direct, &[&deeds[..], &[(writer, 1, WRITE)]].concat()).writes;
    assert_eq!((with(0), with(1)), (0, 1));
}

#[test]
fn deletes_are_no_load() {
    let deeds = [(0, 1, READ), (1, 1, READ), (0, 2, READ), (0, 1, Deed::Delete), (1, 2, Deed::Delete)];
    for algorithm in Algorithm::ALL {
        assert_eq!(load(algorithm, &deeds), load(algorithm, &deeds[..3]), "{algorithm:?}");
    }
}

#[test]
fn what_is_gone_is_nowhere() {
    let of = |client, deed| Ok::<_, ()>(Record { time_us: 0, client, file: 7, deed });
    let read = |client| of(client, Deed::Read { offset: 0, len: 1 });
    let gone = || of(0, Deed::Delete);
    for algorithm in Algorithm::ALL {
        let records = [read(0), read(1), gone(), read(0), gone(), read(1)];
        let blocks = Blocks::of(records, 1).expect("blocks");
        let of = Parameters { algorithm, client_blocks: 10, server_blocks: 10, warm_up: 0, seed: 1 };
        let reads = simulate(&blocks, &of).reads;
        assert_eq!(reads[Level::Disk as usize], 3, "{algorithm:?}: {reads:?}");
    }
}

#[test]
fn parameters_that_make_no_sense_are_named() {
    let blocks = any(1);
    let of = Parameters { algorithm: N_CHANCE, client_blocks: 1, server_blocks: 0, warm_up: 0, seed: 1 };
    let fault = |of: Parameters| of.check(&blocks).expect_err("wrong").to_string();
    assert!(fault(Parameters { client_blocks: 0, ..of }).starts_with("client-cache"));
    assert!(fault(Parameters { warm_up: blocks.len(), ..of }).starts_with("warm-up"));
    assert!(fault(Parameters { algorithm: Algorithm::NChance(16), ..of }).starts_with("n:"));
    assert_eq!(of.check(&blocks), Ok(()));
    let conditions = Conditions { common_part: 1.5, ..Conditions::default() };
    assert!(conditions.check().expect_err("wrong").to_string().starts_with("common-part"));
}
