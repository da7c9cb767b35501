use super::*;
use trace::worst_case::{BLOCK_BYTES, WorstCase};

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

#[test]
fn times_are_those_of_table_3_2() {
    let times = |algorithm| Technology::ATM.times_us(algorithm);
    assert_eq!(times(Algorithm::Direct), [250.0, 1050.0, 1050.0, 15_850.0]);
    assert_eq!(times(Algorithm::Hash), [250.0, 1050.0, 1250.0, 16_050.0]);
    for algorithm in [Algorithm::Greedy, Algorithm::Central, N_CHANCE] {
        assert_eq!(times(algorithm), [250.0, 1250.0, 1050.0, 15_850.0]);
    }
}

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
        let ratio = time(of, N_CHANCE) / base;
        assert!((0.99..=1.20).contains(&ratio), "{percent}: {ratio}");
        // It has a fifth for each, and four fifths for all.
        let central = time(of, Algorithm::Central) / base;
        assert!(central > if percent == 400 { 1.0 } else { 1.1 }, "{percent}: {central}");
    }
    let most = |of: WorstCase| time(of, N_CHANCE) / time(of, Algorithm::Base);
    let at = |percent: f64| most(WorstCase { working_set: percent / 100.0, ..worst });
    assert!(at(110.0) > at(150.0) && at(110.0) > at(90.0), "{} {} {}", at(90.0), at(110.0), at(150.0));
}

/// Figure 3-20: who pauses lends his memory.
#[test]
fn once_pauses_are_as_long_as_bursts_cooperation_wins() {
    let at = |gap: f64| {
        let of = WorstCase { gap, requests: 200_000, ..WorstCase::default() };
        time(of, N_CHANCE) / time(of, Algorithm::Base)
    };
    let ratios: Vec<f64> = [0.0, 1.0, 4.0].map(at).into();
    assert!(ratios[0] > 1.0 && ratios[1] < 1.0 && ratios[2] < ratios[1], "{ratios:?}");
}

/// Figure 3-21: who shares gains.
#[test]
fn where_data_are_shared_all_but_the_base_case_gain() {
    let of = WorstCase { locality: 0.0, ..WorstCase::default() };
    let base = time(of, Algorithm::Base);
    for algorithm in [Algorithm::Greedy, Algorithm::Central, Algorithm::Hash, N_CHANCE, Algorithm::Best] {
        assert!(time(of, algorithm) < base, "{algorithm:?}");
    }
}

/// The algorithms as plain lists, without anything that makes them fast.
mod model {
    use super::*;

    #[derive(Default)]
    pub struct Lists(Vec<Vec<u32>>);

    impl Lists {
        fn of(clients: u32) -> Lists {
            Lists(vec![Vec::new(); clients as usize])
        }

        /// True if it was there; then it is the newest.
        fn touch(&mut self, cache: u32, block: u32) -> bool {
            let list = &mut self.0[cache as usize];
            let there = list.contains(&block);
            if there {
                list.retain(|other| *other != block);
                list.push(block);
            }
            there
        }

        /// Gives what had to go.
        fn insert(&mut self, cache: u32, block: u32, room: u32) -> Option<u32> {
            let list = &mut self.0[cache as usize];
            list.push(block);
            (list.len() > room as usize).then(|| list.remove(0))
        }
    }

    pub fn reads(blocks: &Blocks, of: &Parameters) -> [u64; 4] {
        let (mut local, mut server) = (Lists::of(blocks.clients), Lists::of(1));
        let (mut common, mut reads) = (Lists::of(blocks.clients), [0; 4]);
        let to_server = |server: &mut Lists, block| {
            if of.server_blocks > 0 && !server.touch(0, block) {
                server.insert(0, block, of.server_blocks);
            }
        };
        for (at, (client, block, access)) in blocks.accesses.iter().enumerate() {
            let (client, block) = (*client, *block);
            let keep = |local: &mut Lists, common: &mut Lists| {
                if let Some(left) = local.insert(client, block, of.client_blocks)
                    && of.algorithm == Algorithm::Direct
                {
                    common.insert(client, left, of.client_blocks);
                }
            };
            if *access == Access::Write {
                for lists in [&mut local, &mut common] {
                    for (other, list) in lists.0.iter_mut().enumerate() {
                        list.retain(|known| *known != block || other == client as usize);
                    }
                }
                common.0[client as usize].retain(|known| *known != block);
                if !local.touch(client, block) {
                    keep(&mut local, &mut common);
                }
                to_server(&mut server, block);
                continue;
            }
            let own = of.algorithm == Algorithm::Direct && common.0[client as usize].contains(&block);
            let greedy = of.algorithm == Algorithm::Greedy && local.0.iter().any(|list| list.contains(&block));
            let level = if local.touch(client, block) {
                Level::Local
            } else if own {
                common.0[client as usize].retain(|known| *known != block);
                Level::Remote
            } else if server.touch(0, block) {
                Level::Server
            } else if greedy {
                Level::Remote
            } else {
                to_server(&mut server, block);
                Level::Disk
            };
            if level != Level::Local {
                keep(&mut local, &mut common);
            }
            reads[level as usize] += u64::from(at as u64 >= of.warm_up);
        }
        reads
    }
}

#[test]
fn small_traces_give_what_plain_lists_give() {
    for seed in 0..30 {
        let random = SplitMix64::new(seed);
        let accesses = (0..3000).map(|_| {
            let access = if random.chance(1, 5) { Access::Write } else { Access::Read };
            (random.below(4) as u32, random.below(25) as u32, access)
        });
        let blocks = Blocks { accesses: accesses.collect(), clients: 4 };
        for algorithm in [Algorithm::Base, Algorithm::Direct, Algorithm::Greedy] {
            let server_blocks = random.below(8) as u32;
            let of = Parameters { algorithm, client_blocks: 5, server_blocks, warm_up: 500, seed };
            assert_eq!(simulate(&blocks, &of).reads, model::reads(&blocks, &of), "{of:?}");
        }
        // Greedy Forwarding is N-Chance Forwarding without a chance.
        let of = |algorithm| Parameters { algorithm, client_blocks: 5, server_blocks: 3, warm_up: 0, seed };
        let reads = |algorithm| simulate(&blocks, &of(algorithm)).reads;
        assert_eq!(reads(Algorithm::NChance(0)), reads(Algorithm::Greedy));
    }
}

#[test]
fn what_is_gone_is_nowhere() {
    let (one, two) = ((0, 7, Access::Read), (1, 7, Access::Read));
    let gone = (0, 7, Access::Forget);
    for algorithm in Algorithm::ALL {
        let blocks = Blocks { accesses: vec![one, two, gone, one, gone, two], clients: 2 };
        let of = Parameters { algorithm, client_blocks: 10, server_blocks: 10, warm_up: 0, seed: 1 };
        let reads = simulate(&blocks, &of).reads;
        assert_eq!(reads[Level::Disk as usize], 3, "{algorithm:?}: {reads:?}");
    }
}
