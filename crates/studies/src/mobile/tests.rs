use super::model::{BYTES, Model};
use super::*;
use host::{Random, SplitMix64};
use trace::Record;

fn activity(records: impl IntoIterator<Item = Record>) -> Activity {
    Activity::of(records.into_iter().map(Ok::<_, ()>)).expect("a right one")
}

fn record(time_us: u64, file: u64, deed: Deed) -> Record {
    Record { time_us, client: 0, file, deed }
}

fn read(offset: u64, len: u64) -> Deed {
    Deed::Read { offset, len }
}

fn write(offset: u64, len: u64) -> Deed {
    Deed::Write { offset, len }
}

/// Random use of files of some blocks, with pauses here and there; all in milliseconds and blocks.
fn small(seed: u64, count: u64) -> Activity {
    let (random, mut time_us) = (SplitMix64::new(seed), 0);
    activity((0..count).map(|_| {
        time_us += 1000 * if random.chance(1, 10) { random.below(60) } else { random.below(4) };
        let offset = random.below(6) * BYTES;
        let len = (1 + random.below(4)) * BYTES;
        let deed = match random.below(20) {
            0 => Deed::Delete,
            1..9 => write(offset, len),
            _ => read(offset, len),
        };
        record(time_us, random.below(8), deed)
    }))
}

/// A link of a kilobyte per millisecond, and times to match.
fn small_parameters() -> Parameters {
    let tuning = Tuning { idle_us: 3000, age_us: 40_000, ..Tuning::PAPER };
    let (cache_bytes, link) = (20 * BYTES, Link::of(8_000_000));
    Parameters { cache_bytes, block_bytes: BYTES, link, hoard_us: 500_000, tuning, ..Parameters::PAPER }
}

#[test]
fn small_traces_give_what_plain_lists_give() {
    let policies = [WriteBack::Never, WriteBack::Idle, WriteBack::Delayed, WriteBack::Preemptive];
    let replacements = [Replacement::Lru, Replacement::Lfu, Replacement::Largest, Replacement::Smallest];
    let mut seen = Outcome::default();
    for seed in 0..40 {
        let activity = small(seed, 600);
        for write_back in policies {
            let unit = if seed % 2 == 0 { Unit::File } else { Unit::Block };
            let replacement = replacements[seed as usize / 2 % 4];
            let cache_bytes = [5, 20, 40][seed as usize % 3] * BYTES;
            let logged = if seed / 2 % 2 == 0 { Logged::Writes } else { Logged::Units };
            let of = Parameters { unit, write_back, replacement, cache_bytes, logged, ..small_parameters() };
            let (model, waited_ms) = Model::run(&activity, &of);
            let ours = simulate(&activity, &of);
            let mean = (ours.sent_count > 0).then(|| waited_ms * 1000 / ours.sent_count);
            assert_eq!(ours.reintegration_mean_us, mean, "{seed}: {of:?}");
            let (active_us, span_us, strong_stall_us) = (ours.active_us, ours.span_us, ours.strong_stall_us);
            let (reintegration_mean_us, reintegration_max_us) = (mean, ours.reintegration_max_us);
            let model =
                Outcome { active_us, span_us, strong_stall_us, reintegration_mean_us, reintegration_max_us, ..model };
            assert_eq!(ours, model, "{seed}: {of:?}");
            seen.interference_us += ours.interference_us;
            seen.cancelled_bytes += ours.cancelled_bytes;
        }
    }
    assert!(seen.interference_us > 0 && seen.cancelled_bytes > 0, "{seen:?}");
}

#[test]
fn what_is_logged_is_sent_or_cancelled_or_waits() {
    for seed in 0..10 {
        let activity = small(seed, 800);
        for (rules, write_back) in [Rules::Paper, Rules::Product]
            .into_iter()
            .flat_map(|rules| WriteBack::ALL.map(|write_back| (rules, write_back)))
        {
            for unit in [Unit::File, Unit::Block, Unit::Auto] {
                for replacement in [Replacement::Lru, Replacement::Random] {
                    let logged = if seed % 2 == 0 { Logged::Writes } else { Logged::Units };
                    let of = Parameters { rules, write_back, unit, replacement, logged, seed, ..small_parameters() };
                    let found = simulate(&activity, &of);
                    let all = found.cancelled_bytes + found.sent_bytes + found.left_bytes;
                    assert_eq!(found.logged_bytes, all, "{of:?}");
                    assert!(found.logged_bytes > 0 && found.interference_us <= found.stall_us, "{of:?}");
                    assert_eq!(write_back == WriteBack::Never, found.sent_bytes == 0, "{of:?}");
                    assert_eq!(
                        serde_json::to_string(&found).ok(),
                        serde_json::to_string(&simulate(&activity, &of)).ok()
                    );
                }
            }
        }
    }
}

/// A large change waits, and the user reads one block after the other without a pause.
fn contested(blocks: u64) -> Activity {
    let last = record(1, 1, read(0, blocks * 4096));
    activity([record(0, 0, write(0, blocks * 4096)), last])
}

#[test]
fn who_waits_for_blocks_loses_as_many_lots_as_the_paper_says() {
    let of = Parameters { hoard_us: 0, unit: Unit::Block, write_back: WriteBack::Lottery, ..Parameters::PAPER };
    let of = Parameters { cache_bytes: 1 << 30, logged: Logged::Units, ..of };
    let count = 12_000;
    let found = simulate(&contested(count), &of);
    let share = found.interference_us as f64 / found.stall_us as f64;
    assert!((share * 12.0 - 1.0).abs() < 0.1, "{share}");
    // All other policies let the user go first.
    for write_back in [WriteBack::Idle, WriteBack::Delayed, WriteBack::Preemptive] {
        assert_eq!(simulate(&contested(count), &Parameters { write_back, ..of }).interference_us, 0);
    }
}

#[test]
fn in_the_product_what_goes_home_has_a_third_of_a_link_that_somebody_waits_for() {
    let of = Parameters { hoard_us: 0, ..Parameters::default() };
    let found = simulate(&contested(12_000), &of);
    let share = found.interference_us as f64 / found.stall_us as f64;
    assert!((share * 3.0 - 1.0).abs() < 0.05, "{share}");
    // A change that waits for an idle link goes after five minutes all the same; a change that must
    // be old does not go before.
    let idle = simulate(&contested(12_000), &Parameters { write_back: WriteBack::Idle, ..of });
    assert!(idle.interference_us > 0 && idle.interference_us < found.interference_us);
    let delayed = simulate(&contested(12_000), &Parameters { write_back: WriteBack::Delayed, ..of });
    assert!(delayed.interference_us > 0 && delayed.interference_us < idle.interference_us);
}

#[test]
fn in_the_product_what_goes_home_does_not_make_the_link_busy() {
    let records = [record(0, 0, write(0, 1000)), record(0, 1, write(0, 1000)), record(60_000_000, 0, read(0, 1))];
    let link = Link::of(8_000_000);
    let of = Parameters { hoard_us: 0, write_back: WriteBack::Idle, link, ..Parameters::default() };
    let found = simulate(&activity(records), &of);
    assert_eq!((found.left_bytes, found.reintegration_max_us), (0, Tuning::PRODUCT.idle_us + found.sent_bytes));
    // By the paper's rules it does: the second waits once more.
    let of = Parameters { rules: Rules::Paper, tuning: Tuning::PAPER, ..of };
    assert_eq!(simulate(&activity(records), &of).reintegration_max_us, 2 * (Tuning::PAPER.idle_us + 1000));
}

#[test]
fn the_lottery_sends_home_over_an_idle_link_what_wins_against_nobody() {
    // One block a minute: lots are drawn for each tenth of a second, and it wins every twelfth
    // time.
    let records = (0..3000).map(|at| record(at * 60_000_000, at, write(0, 4096)));
    let of = Parameters { hoard_us: 0, write_back: WriteBack::Lottery, ..Parameters::PAPER };
    let mean = simulate(&activity(records), &of).reintegration_mean_us.expect("some") as f64 / 1e6;
    let sending = 4096.0 * 8.0 / 28_800.0;
    assert!((mean - sending - 1.2).abs() < 0.15, "{mean}");
}

#[test]
fn the_products_log_knows_what_was_made_and_removed_and_what_was_written_again() {
    let of = Parameters { hoard_us: 0, write_back: WriteBack::Never, ..Parameters::default() };
    let made = [record(0, 7, write(0, 5000)), record(1, 7, write(4000, 3000)), record(2, 7, Deed::Delete)];
    let found = simulate(&activity(made), &of);
    assert_eq!((found.left_bytes, found.cancelled_bytes), (0, found.logged_bytes));
    let had = [record(0, 7, read(0, 9000)), record(1, 7, write(0, 5000)), record(1, 7, write(4000, 3000))];
    let found = simulate(&activity(had), &of);
    // A kilobyte twice, and the header of the second.
    assert_eq!((found.left_bytes, found.cancelled_bytes), (32 + 7000, 32 + 1000));
}

#[test]
fn what_is_not_home_yet_is_read_without_the_link() {
    let records = [
        record(0, 0, write(0, 8192)),
        record(1, 1, read(0, 8192)),
        record(2, 2, read(0, 8192)),
        record(3, 0, read(0, 8192)),
        record(4, 1, read(0, 8192)),
    ];
    for rules in [Rules::Paper, Rules::Product] {
        for unit in [Unit::File, Unit::Block] {
            let of = Parameters { hoard_us: 0, cache_bytes: 8192, unit, rules, ..Parameters::PAPER };
            let found = simulate(&activity(records), &of);
            assert_eq!((found.reads, found.misses), (4, 3), "{rules:?} {unit:?}");
        }
    }
}

#[test]
fn a_file_that_does_not_fit_is_read_in_parts() {
    let of = Parameters { hoard_us: 0, cache_bytes: 8192, ..Parameters::PAPER };
    let records = [record(0, 0, read(0, 1 << 20)), record(1, 0, read(0, 100)), record(2, 0, read(0, 100))];
    assert_eq!(simulate(&activity(records), &of).fetched_bytes, (1 << 20) + 200);
}

#[test]
fn a_round_trip_is_waited_for_once_in_each_read_and_each_write() {
    let link = Link { round_trip_us: 500_000, ..Link::of(8_000_000) };
    let of = Parameters { hoard_us: 0, unit: Unit::Block, link, write_back: WriteBack::Idle, ..Parameters::PAPER };
    let records =
        [record(0, 0, read(0, 8192)), record(1_000_000, 1, write(0, 4096)), record(60_000_000, 0, read(0, 1))];
    let found = simulate(&activity(records), &of);
    assert_eq!(found.stall_us, 500_000 + 8192);
    // The link was last used before that write.
    assert_eq!(found.reintegration_mean_us, Some(500_000 + 4096));
}

#[test]
fn time_is_expanded_by_what_is_waited_for() {
    // Ten seconds; one of them fetches the read.
    let of = Parameters { hoard_us: 0, link: Link::of(1_000_000), ..Parameters::PAPER };
    let found = simulate(&activity([record(0, 0, read(0, 125_000)), record(10_000_000, 0, read(0, 1))]), &of);
    assert_eq!((found.stall_us, found.strong_stall_us, found.active_us), (1_000_000, 100_000, 10_000_000));
    assert_eq!(found.time_expansion(), Some(11.0 / 10.1));
    assert_eq!(found.interference(), Some(0.0));
    // A user who is away waits for nothing, but time passes.
    let found = Outcome { span_us: 21_000_000, interference_us: 500_000, ..found };
    assert_eq!(
        (found.time_expansion(), found.time_expansion_at_work()),
        (Some(22_000_000.0 / 21_100_000.0), Some(11.0 / 10.1))
    );
    assert_eq!((found.interference(), found.interference_at_work()), (Some(0.5 / 22.0), Some(0.5 / 11.0)));
    assert_eq!(Outcome::default().time_expansion(), None);
}

#[test]
fn nothing_panics_on_any_trace() {
    let random = SplitMix64::new(9);
    let far = [0, 1, 4095, 4096, 1 << 20, 1 << 30, (1 << 44) - 1];
    for seed in 0..20 {
        let mut time_us = 0u64;
        let records = (0..60).map(|_| {
            let pick = |random: &SplitMix64| far[random.below(far.len() as u64) as usize];
            time_us = time_us.saturating_add(random.next_u64() >> random.below(64));
            let offset = pick(&random);
            let len = pick(&random).min((1 << 44) - offset).min(1 << 24);
            let deed = match random.below(6) {
                0 => Deed::Delete,
                1 | 2 => write(offset, len),
                _ => read(offset, len),
            };
            record(time_us, random.below(4), deed)
        });
        let activity = activity(records.collect::<Vec<_>>());
        for rules in [Rules::Paper, Rules::Product] {
            let write_back = WriteBack::ALL[seed as usize % 5];
            let unit = [Unit::File, Unit::Block, Unit::Auto][seed as usize % 3];
            let bits_per_second = [1, 9600, 1_000_000_000_000][seed as usize % 3];
            let link = Link { bits_per_second, round_trip_us: 3_600_000_000 };
            let of = Parameters { rules, write_back, unit, link, hoard_us: time_us / 3, seed, ..Parameters::default() };
            let of = Parameters { cache_bytes: 1 << 30, ..of };
            assert_eq!(of.check(), Ok(()));
            simulate(&activity, &of);
        }
    }
    assert_eq!(simulate(&Activity::default(), &Parameters::default()).time_expansion(), None);
}

#[test]
fn what_makes_no_sense_is_named() {
    let fault = |of: Parameters| of.check().expect_err("wrong").to_string();
    let tuned = |tuning| fault(Parameters { tuning, ..Parameters::PAPER });
    let right = Parameters::PAPER;
    assert!(fault(Parameters { cache_bytes: 4095, ..right }).starts_with("cache"));
    assert!(fault(Parameters { cache_bytes: u64::MAX, ..right }).starts_with("cache"));
    assert!(fault(Parameters { block_bytes: 0, ..right }).starts_with("block"));
    assert!(fault(Parameters { link: Link::of(0), ..right }).starts_with("bandwidth"));
    let link = Link { round_trip_us: u64::MAX, ..Link::MODEM };
    assert!(fault(Parameters { link, ..right }).starts_with("latency"));
    assert!(tuned(Tuning { idle_us: 0, ..Tuning::PAPER }).starts_with("idle"));
    assert!(tuned(Tuning { age_us: u64::MAX, ..Tuning::PAPER }).starts_with("age"));
    assert!(tuned(Tuning { read_tickets: 0, ..Tuning::PAPER }).starts_with("read-tickets"));
    assert!(tuned(Tuning { write_tickets: 1001, ..Tuning::PAPER }).starts_with("write-tickets"));
    assert_eq!((right.check(), Parameters::default().check()), (Ok(()), Ok(())));
}
