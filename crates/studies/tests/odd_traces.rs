//! All studies on small odd traces: one client or one file, no reads or no writes, times all equal
//! or far apart, offsets at the largest values. Nothing panics, counts add up, and rejections name
//! what is wrong.

use host::SplitMix64;
use studies::cooperative::experiments::comparison::Workload;
use studies::cooperative::{Algorithm, Conditions, Knowledge};
use studies::locality::accesses::Accesses;
use studies::mobile::{Activity, Link, Rules, Tuning, Unit, WriteBack};
use studies::{advise, cleaning, cooperative, locality, mobile};
use trace::{Deed, Record};

const SEEDS: u64 = 50;

/// Random records; the seed also determines their kind.
fn records(seed: u64) -> Vec<Record> {
    let random = SplitMix64::new(seed);
    let pick = |of: &[u64]| of[random.below(of.len() as u64) as usize];
    let (count, clients, files) =
        (if seed < 3 { seed } else { pick(&[30, 300, 1000]) }, pick(&[1, 2, 5, 900]), pick(&[1, 3, 40]));
    let (reads, writes, deletes) = (pick(&[0, 1, 10]), pick(&[0, 1, 10]), pick(&[0, 0, 1]));
    let (step_us, far) =
        (pick(&[0, 1, 1000, 60_000_000, 1 << 50]), pick(&[1, 1 << 16, 1 << 30, (1 << 44) - (1 << 23)]));
    let len_max = pick(&[1, 5000, 100_000, 1 << 20]).min(if count > 30 { 50_000 } else { u64::MAX });
    let mut time_us = pick(&[0, 1, 1 << 40]);
    let record = |_| {
        time_us = time_us.saturating_add(random.below(step_us + 1));
        let (offset, len) = (random.below(far), 1 + random.below(len_max));
        let deed = match random.below((reads + writes + deletes).max(1)) {
            which if which < reads => Deed::Read { offset, len },
            which if which < reads + writes => Deed::Write { offset, len },
            _ => Deed::Delete,
        };
        Record { time_us, client: random.below(clients) as u32, file: u64::MAX - random.below(files), deed }
    };
    (0..count).map(record).collect()
}

fn right<T: IntoIterator<Item = Record>>(records: T) -> impl Iterator<Item = Result<Record, std::convert::Infallible>> {
    records.into_iter().map(Ok)
}

#[test]
fn prop_cooperative_caching_serves_each_read_from_somewhere() {
    for seed in 0..SEEDS {
        let blocks =
            cooperative::Blocks::of(right(records(seed)), [1 << 20, 8192][seed as usize % 2]).expect("not too many");
        let warm_up = [0, blocks.len() / 2][seed as usize / 2 % 2];
        let others = [
            Algorithm::WeightedLru(Knowledge::Global),
            Algorithm::WeightedLru(Knowledge::SingletHints),
            Algorithm::NChance(0),
            Algorithm::NChance(15),
        ];
        for algorithm in Algorithm::ALL.into_iter().chain(others) {
            for (client_blocks, server_blocks) in [(1, 0), (3, 1), (u32::MAX, u32::MAX)] {
                let of = cooperative::Parameters { algorithm, client_blocks, server_blocks, warm_up, seed };
                assert_eq!(of.check(&blocks).is_err(), blocks.is_empty());
                let conditions = Conditions {
                    common_part: [0.8, 0.0, 1.0][seed as usize % 3],
                    remote_blocks: [None, Some(0), Some(1)][seed as usize / 3 % 3],
                    rooms: [vec![], vec![0, 1, 2]][seed as usize / 5 % 2].clone(),
                    ..Conditions::default()
                };
                let found = cooperative::simulate_under(&blocks, &of, &conditions);
                let each = found.clients.iter().flatten().sum::<u64>();
                assert_eq!(found.reads.iter().sum::<u64>(), each, "{seed} {of:?}");
                assert!(each <= blocks.len() - warm_up, "{seed} {of:?}");
            }
        }
    }
}

#[test]
fn prop_cooperative_studies_say_something_or_refuse() {
    for seed in 0..SEEDS / 4 {
        let blocks = cooperative::Blocks::of(right(records(seed)), 8192).expect("not too many");
        let setup =
            cooperative::experiments::Setup { client_blocks: 4, server_blocks: 2, warm_up: 0, seed, block_bytes: 8192 };
        if setup.check(&blocks).is_ok() {
            use cooperative::experiments::{comparison, sensitivity};
            let compared = comparison::compare(&blocks, &setup, || ());
            assert!(serde_json::to_string(&compared).is_ok());
            assert!(
                comparison::findings(&compared, comparison::Workload::Other).iter().all(|one| one.holds != Some(false))
            );
            let runs = sensitivity::Runs::of(&blocks, &setup);
            let varied = sensitivity::study(&blocks, &runs, || ());
            assert!(serde_json::to_string(&(sensitivity::figures(&varied), sensitivity::findings(&varied))).is_ok());
        }
    }
}

#[test]
fn prop_cleaning_and_locality_count_what_there_is() {
    for seed in 0..SEEDS {
        let records = records(seed);
        let accesses = Accesses::of(right(records), 8192).expect("not too many");
        let parameters = cleaning::Parameters { segment_bytes: 64 << 10, seed, ..cleaning::Parameters::default() };
        let study = cleaning::report::Study::run(&accesses, &parameters, || ());
        assert!(serde_json::to_string(&(study.figures(), study.findings(Workload::Other))).is_ok());
        let parameters =
            locality::Parameters { cache_blocks: 2, warm_up_us: 0, seed, ..locality::Parameters::default() };
        let study = locality::report::Study::run(&accesses, &parameters, || ());
        let [central, first, last] = study.outcomes;
        assert_eq!((central.reads, central.writes), (first.reads, first.writes));
        assert!(last.hits == central.hits && first.hits <= first.reads, "{seed}");
        assert!(serde_json::to_string(&(study.figures(Workload::Other), study.findings(Workload::Other))).is_ok());
    }
}

#[test]
fn prop_a_client_that_roams_sends_or_keeps_or_need_not_send_what_it_wrote() {
    for seed in 0..SEEDS {
        let records = records(seed);
        let activity = Activity::of(right(records.clone())).expect("not too many");
        let last_us = records.last().map_or(0, |record| record.time_us);
        let which = seed as usize;
        for write_back in WriteBack::ALL {
            let of = mobile::Parameters {
                write_back,
                cache_bytes: [1 << 20, 1 << 30][which % 2],
                unit: [Unit::File, Unit::Block, Unit::Auto][which % 3],
                rules: [Rules::Paper, Rules::Product][which / 3 % 2],
                hoard_us: [0, last_us / 2, u64::MAX][which / 2 % 3],
                link: Link { bits_per_second: [1, 9600, 1_000_000_000_000][which / 5 % 3], round_trip_us: 1000 },
                tuning: [Tuning::PAPER, Tuning::PRODUCT][which % 2],
                seed,
                block_bytes: 1 << 20,
                ..mobile::Parameters::default()
            };
            assert_eq!(of.check(), Ok(()));
            let found = mobile::simulate(&activity, &of);
            let all = found.sent_bytes.saturating_add(found.cancelled_bytes).saturating_add(found.left_bytes);
            assert_eq!(found.logged_bytes, all, "{seed} {of:?}");
            assert!(found.misses <= found.reads && found.reads + found.writes <= records.len() as u64);
            assert!(serde_json::to_string(&found).is_ok());
        }
    }
}

#[test]
fn prop_there_is_advice_for_any_trace() {
    for seed in 0..SEEDS / 2 {
        let evidence = advise::Evidence::of(right(records(seed))).expect("not too many");
        let advice = advise::advise(&evidence, || ());
        assert!(!advice.items.is_empty());
        for item in &advice.items {
            assert_eq!(item.setting.is_some(), item.verdict == advise::Verdict::Change, "{item:?}");
            assert!(
                item.reason.ends_with('.') && !item.reason.contains("NaN") && !item.reason.contains("inf"),
                "{item:?}"
            );
            if let Some(gain) = item.gain.as_ref().filter(|_| item.verdict == advise::Verdict::Change) {
                assert!(gain.part() > 0.0 && gain.after.is_finite(), "{item:?}");
            }
        }
        assert!(serde_json::to_string(&advice).is_ok());
    }
}
