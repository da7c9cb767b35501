use super::*;
use trace::Deed;

const SECOND_US: u64 = 1_000_000;

fn read(offset: u64, len: u64) -> Deed {
    Deed::Read { offset, len }
}

fn write(offset: u64, len: u64) -> Deed {
    Deed::Write { offset, len }
}

/// The evidence of deeds, each with client and file, a second after each other.
fn evidence(deeds: impl IntoIterator<Item = (u32, u64, Deed)>) -> Evidence {
    evidence_each(SECOND_US, deeds)
}

/// The same, this many microseconds after each other.
fn evidence_each(step_us: u64, deeds: impl IntoIterator<Item = (u32, u64, Deed)>) -> Evidence {
    let records = (0..)
        .zip(deeds)
        .map(|(at, (client, file, deed))| Ok::<_, ()>(Record { time_us: at * step_us, client, file, deed }));
    Evidence::of(records).expect("a right one")
}

fn items(of: &Evidence) -> Vec<Item> {
    advise(of, || ()).items
}

fn only<'a>(items: &'a [Item], subject: &str, link: &str) -> &'a Item {
    let is =
        |item: &&Item| item.subject == subject && item.link.as_deref().is_none_or(|of| link.is_empty() || of == link);
    let mut found = items.iter().filter(is);
    let one = found.next().expect(subject);
    assert!(found.next().is_none(), "{items:#?}");
    one
}

fn setting<'a>(items: &'a [Item], subject: &str, link: &str) -> Option<&'a str> {
    only(items, subject, link).setting.as_deref()
}

#[test]
fn who_uses_the_same_little_again_and_again_need_change_nothing() {
    let deeds = (0..600).map(|at| (0, at % 5, if at % 3 == 0 { write(0, 1000) } else { read(0, 1000) }));
    let found = items(&evidence(deeds));
    assert!(found.iter().all(|item| item.verdict == Verdict::Keep && item.setting.is_none()), "{found:#?}");
    assert!(only(&found, "cache on disk", "").reason.contains("16MiB would do as well"), "{found:#?}");
    assert_eq!(found.len(), 1 + LINKS.len() + 1 + LINKS.len() + 2);
}

#[test]
fn of_little_that_was_done_nothing_is_said() {
    let found = items(&evidence((0..60).map(|at| (0, at, read(0, 1000)))));
    assert!(found.iter().all(|item| item.verdict == Verdict::Unknown && item.gain.is_none()), "{found:#?}");
    let none = items(&evidence([]));
    assert!(none.iter().all(|item| item.verdict == Verdict::Unknown), "{none:#?}");
}

#[test]
fn what_is_read_once_says_nothing_of_memory() {
    let found = items(&evidence((0..3000).map(|at| (0, at, read(0, 1000)))));
    for subject in ["memory", "cooperative caching"] {
        assert_eq!(only(&found, subject, "").verdict, Verdict::Unknown);
    }
}

#[test]
fn what_is_written_again_and_again_waits_where_the_link_is_busy_with_it() {
    let found = items(&evidence((0..2000).map(|at| (0, at % 3, write(0, 4096))).flat_map(|one| [one; 4])));
    let slow = only(&found, "write-back", "9.6 kb/s");
    assert_eq!(
        slow.setting.as_deref(),
        Some("starling set MOUNT --writes delayed=15m"),
        "an hour is too much of the trace"
    );
    let gain = slow.gain.as_ref().expect("some");
    assert!(gain.unit == "bytes" && gain.part() > 0.9, "{slow:#?}");
    assert_eq!(setting(&found, "write-back", "10 Mb/s"), None);
    assert_eq!(only(&found, "unit", "").verdict, Verdict::Unknown, "nothing is read");
}

#[test]
fn regression_changes_do_not_wait_longer_for_home_than_what_that_saves_is_worth() {
    // A quarter of an hour would save more bytes than five minutes, from half an hour of work.
    let found = items(&evidence((0..930).map(|at| (0, at % 3, write(0, 4096))).flat_map(|one| [one; 4])));
    let slow = only(&found, "write-back", "9.6 kb/s");
    assert_eq!(slow.setting.as_deref(), Some("starling set MOUNT --writes delayed=5m"), "{slow:#?}");
}

#[test]
fn where_what_goes_home_hinders_who_reads_it_waits() {
    // Between the reads, the link is never idle.
    let deeds = (0..400).map(|at| (0, at, if at % 2 == 0 { write(0, 20_000) } else { read(0, 1200) }));
    let found = items(&evidence_each(SECOND_US / 10, deeds));
    let slow = only(&found, "write-back", "9.6 kb/s");
    assert_eq!(slow.setting.as_deref(), Some("starling set MOUNT --writes idle"), "{slow:#?}");
    let gain = slow.gain.as_ref().expect("some");
    assert!(gain.unit == "s" && gain.part() > WORTH, "{slow:#?}");
}

#[test]
fn who_reads_a_little_of_each_file_fetches_blocks() {
    // All but the first 1000 bytes of each file are read only in the office.
    let at_home = (0..500).map(|file| (0, file, read(40_000, 10_000)));
    let others = (500..1000).map(|file| (0, file, read(40_000, 10_000)));
    let found = items(&evidence(at_home.chain(others)));
    assert_eq!(setting(&found, "unit", "64 kb/s"), Some("starling set MOUNT --unit block"));
    assert_eq!(setting(&found, "unit", "9.6 kb/s"), None, "such a file takes too long there anyway");
}

#[test]
fn who_reads_all_of_files_in_small_parts_fetches_files() {
    let deeds = (0..200u64).flat_map(|file| (0..8).map(move |part| (0, file, read(part * 4096, 4096))));
    let found = items(&evidence(deeds));
    let slow = only(&found, "unit", "9.6 kb/s");
    assert_eq!(slow.setting.as_deref(), Some("starling set MOUNT --unit file"));
    assert_eq!(setting(&found, "unit", "64 kb/s"), None, "that is done anyway");
}

#[test]
fn what_was_never_used_before_can_be_hoarded_only_by_who_knows_it() {
    let before = (0..400).map(|at| (0, at % 4, read(0, 1000)));
    // Away, ten small files are read again and again, and a large one that is made there.
    let made = [(0, 99, write(0, 1 << 20))];
    let away = (0..400).map(|at| (0, 10 + at % 10, read(0, 200_000)));
    let found = items(&evidence(before.chain(made).chain(away)));
    let hoard = only(&found, "hoarding", "");
    assert_eq!((hoard.verdict, &hoard.setting, &hoard.gain), (Verdict::Unknown, &None, &None), "{hoard:#?}");
    assert!(hoard.reason.contains("With perfect foresight, and the 9 files (1.7 MiB) hoarded"), "{hoard:#?}");
}

#[test]
fn what_is_to_be_hoarded_is_what_was_read_most_before() {
    // Ten files again and again, and then others once. The first of these does not fit into half
    // of the cache.
    let often = |count: u64| (0..count).map(|at| (0, at % 10, read(0, 10_000)));
    let once = [(0, 50, read(0, 300_000))].into_iter().chain((100..250).map(|file| (0, file, read(0, 10_000))));
    let large = (0..500).map(|at| (0, 50, read(at % 30 * 10_000, 10_000)));
    let evidence = evidence(large.chain(often(300)).chain(once).chain(often(300)));
    let mut plan = evidence.plans().pop().expect("a client");
    plan.base.cache_bytes = 400_000;
    plan.base.hoard_us = 951 * SECOND_US;
    let found = plan.items(|| ());
    let hoard = only(&found, "hoarding", "");
    assert_eq!(hoard.setting.as_deref(), Some("starling hoard add PATH"), "{hoard:#?}");
    assert!(hoard.reason.starts_with("With the 20 files (195.3 KiB) hoarded that were read most"), "{hoard:#?}");
}

#[test]
fn a_cache_that_is_too_small_is_to_be_the_smallest_that_is_not() {
    let evidence = evidence((0..2000).map(|at| (0, at % 100, read(0, 100_000))));
    let mut plan = evidence.plans().pop().expect("a client");
    plan.base.cache_bytes = 1 << 20;
    let found = plan.items(|| ());
    assert_eq!(setting(&found, "cache on disk", ""), Some("starling set MOUNT --cache-size 16MiB"));
    plan.base.cache_bytes = 32 << 20;
    assert_eq!(setting(&plan.items(|| ()), "cache on disk", ""), None);
}

#[test]
fn memory_is_to_hold_what_is_read_in_turn() {
    let reads = (0..3).flat_map(|_| (0..700).map(|file| (0, file, read(0, 1 << 20))));
    let found = items(&evidence(reads));
    let memory = only(&found, "memory", "");
    assert_eq!(memory.setting.as_deref(), Some("starling up MOUNT --data DATA --cache-size 1GiB"));
    let gain = memory.gain.as_ref().expect("some");
    assert!((gain.after - 7.0).abs() < 1e-9 && gain.before > 100.0, "{memory:#?}");
    assert!(only(&found, "cooperative caching", "").reason.contains("no other client"));
}

#[test]
fn what_memory_is_worth_is_without_others_who_serve() {
    // Both read the same blocks in turn, more than each can cache.
    let reads = |clients: u32| {
        (0..3)
            .flat_map(move |_| (0..700).flat_map(move |file| (0..clients).map(move |of| (of, file, read(0, 1 << 20)))))
    };
    let memory = |clients| {
        let found = items(&evidence(reads(clients)));
        let of_all = found.into_iter().find(|item| item.subject == "memory" && item.client.is_none());
        of_all.expect("memory").gain.expect("a gain").before
    };
    assert_eq!(memory(2), memory(1));
}

#[test]
fn it_pays_to_be_served_by_who_read_it_before_and_not_without_sharing() {
    let shared = items(&evidence((0..2000).map(|at| (at as u32 % 2, at / 2, read(0, 1000)))));
    let cooperation = only(&shared, "cooperative caching", "");
    assert!(
        cooperation.reason.contains("it would pay") && cooperation.reason.contains("50 % of the reads"),
        "{cooperation:#?}"
    );
    assert!(cooperation.reason.starts_with("Starling's clients do not serve each other yet"), "{cooperation:#?}");
    assert!(cooperation.setting.is_none() && cooperation.gain.as_ref().is_some_and(|gain| gain.part() > 0.2));
    let own = items(&evidence((0..2000).map(|at| (at as u32 % 2, at % 10, read(0, 1000)))));
    assert!(only(&own, "cooperative caching", "").reason.contains("would not pay"));
    let memories = own.iter().filter(|item| item.subject == "memory");
    assert_eq!(memories.map(|item| item.client).collect::<Vec<_>>(), [None, Some(0), Some(1)]);
}

#[test]
fn only_so_many_clients_get_advice_of_their_own() {
    let evidence = evidence((0..6000).map(|at| ((at * at % 7) as u32, at % 10, read(0, 1000))));
    let found = items(&evidence);
    let clients: std::collections::BTreeSet<u32> = found.iter().filter_map(|item| item.client).collect();
    assert!(clients.len() <= CLIENT_COUNT_MAX);
    let many = Evidence::of(
        (0..600).map(|at| Ok::<_, ()>(Record { time_us: at, client: at as u32 % 9, file: 1, deed: read(0, 10) })),
    );
    let advice = advise(&many.expect("right"), || ());
    assert_eq!((advice.clients, advice.records), (9, 600));
    assert!(only(&advice.items, "other clients", "").reason.starts_with("The trace has 9 clients"));
}

#[test]
fn the_same_trace_gives_the_same_advice_and_all_steps_are_told() {
    let deeds =
        || (0..800).map(|at| (at as u32 % 2, at * 7 % 40, if at % 4 == 0 { write(0, 3000) } else { read(0, 5000) }));
    let evidence = evidence(deeds());
    let told = std::sync::atomic::AtomicUsize::new(0);
    let tell = || {
        told.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let one = serde_json::to_string(&advise(&evidence, tell)).expect("numbers");
    assert_eq!(told.into_inner(), steps(&evidence));
    assert_eq!(one, serde_json::to_string(&advise(&evidence, || ())).expect("numbers"));
}

#[test]
fn a_trace_that_goes_back_in_time_is_refused() {
    let record = |time_us| Ok::<_, ()>(Record { time_us, client: time_us as u32, file: 0, deed: read(0, 1) });
    assert!(matches!(Evidence::of([record(2), record(3), record(1)]), Err(ActivityError::Unsorted(3))));
    assert!(matches!(Evidence::of([Err("broken")]), Err(ActivityError::Trace("broken"))));
}

#[test]
fn sizes_and_times_are_as_people_write_them() {
    assert_eq!([0, 1000, 64 << 10, 20 << 30].map(size), ["0B", "1000B", "64KiB", "20GiB"]);
    assert_eq!([0, 1000, 1536, 3 << 40].map(about), ["0 bytes", "1000 bytes", "1.5 KiB", "3.0 TiB"]);
    assert_eq!([0.0, 119e6, 120e6, 7.2e9].map(time), ["0.0 s", "119.0 s", "2.0 min", "2.0 h"]);
    assert_eq!([0.012, 0.5].map(percent), ["1.2 %", "50 %"]);
}
