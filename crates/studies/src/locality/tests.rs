use super::report::Study;
use super::*;
use crate::cooperative::experiments::comparison::Workload;
use trace::worst_case::{BLOCK_BYTES, WorstCase};
use trace::{Deed, Record};

const SECOND_US: u64 = 1_000_000;

#[derive(Clone, Copy)]
enum Do {
    Read(u64),
    Write(u64),
    Delete,
}

/// The accesses of deeds on blocks of files, a second after each other.
fn accesses(deeds: &[(u32, u64, Do)]) -> Accesses {
    let records = deeds.iter().zip(0..).map(|((client, file, what), at)| {
        let deed = match what {
            Do::Read(block) => Deed::Read { offset: block * 100, len: 100 },
            Do::Write(block) => Deed::Write { offset: block * 100, len: 100 },
            Do::Delete => Deed::Delete,
        };
        Ok::<_, ()>(Record { time_us: at * SECOND_US, client: *client, file: *file, deed })
    });
    Accesses::of(records, 100).expect("accesses")
}

fn outcomes(deeds: &[(u32, u64, Do)]) -> [Outcome; 3] {
    let parameters = Parameters { cache_blocks: 3, warm_up_us: 0, ..Parameters::default() };
    Study::run(&accesses(deeds), &parameters, || ()).outcomes
}

fn hops(deeds: &[(u32, u64, Do)]) -> [(u64, u64, u64); 3] {
    outcomes(deeds).map(|of| (of.read_hops, of.write_hops, of.delete_hops))
}

#[test]
fn who_makes_and_uses_a_file_alone_needs_no_messages_for_writes() {
    let write = (0, 5, Do::Write(0));
    let deeds = [write, write, (0, 5, Do::Read(0)), write];
    // It asks, gets an answer, and commits once.
    assert_eq!(hops(&deeds), [(0, 3, 0), (0, 0, 0), (0, 0, 0)]);
    let deleted = [write, (0, 5, Do::Delete)];
    // It is deleted before the commit.
    assert_eq!(hops(&deleted), [(0, 2, 2), (0, 0, 0), (0, 0, 0)]);
}

#[test]
fn a_read_is_forwarded_to_who_has_the_block() {
    // The owner commits its write; it is also the manager, or the manager asks it.
    let shared = [(0, 5, Do::Write(0)), (1, 5, Do::Read(0))];
    assert_eq!(hops(&shared), [(3, 3, 0), (2, 0, 0), (2, 0, 0)]);
    let again = [(0, 5, Do::Write(0)), (1, 5, Do::Read(0)), (0, 5, Do::Read(0)), (1, 5, Do::Read(0))];
    assert_eq!(hops(&again), hops(&shared));
    let [_, first, _] = outcomes(&shared);
    assert_eq!((first.reads, first.hits, first.shorter), (1, 0, 1));
}

#[test]
fn what_is_on_the_disk_only_comes_from_there_and_its_index_node_is_read_once() {
    let deeds = [(0, 5, Do::Read(0)), (0, 5, Do::Read(1))];
    let [(central, ..), (first, ..), _] = hops(&deeds);
    // With first writer, the only client is also the manager.
    assert_eq!((central, first), (2 + 3 + 3, 2 + 2 + 2));
    // The client that made the file knows where all of it is; blocks that left the cache are on the
    // disk, and were committed before.
    let evicted =
        [(0, 5, Do::Write(0)), (0, 5, Do::Write(1)), (0, 5, Do::Write(2)), (0, 5, Do::Write(3)), (0, 5, Do::Read(0))];
    assert_eq!(hops(&evicted)[0], (3, 4 * 3, 0));
    assert_eq!(hops(&evicted)[1], (2, 0, 0));
}

#[test]
fn a_writer_takes_the_block_from_all_others() {
    let deeds = [(0, 5, Do::Write(0)), (1, 5, Do::Read(0)), (2, 5, Do::Write(0)), (0, 5, Do::Read(0))];
    let [central, first, last] = outcomes(&deeds);
    // Each of two clients asks and commits, and two are told.
    assert_eq!((central.write_hops, central.read_hops), (2 * 3 + 2, 3 + 3));
    assert_eq!(central.invalidated, Contacts { count: 2, local: 0 });
    // The second writer asks and commits, and one of the two that are told is the manager. The
    // manager is asked, or asks.
    assert_eq!((first.write_hops, first.read_hops), (2 + 1 + 1, 2 + 2));
    assert_eq!(first.invalidated, Contacts { count: 2, local: 1 });
    // The client becomes the manager, and tells both. Then it serves.
    assert_eq!((last.write_hops, last.read_hops, last.moved), (2 + 2, 2 + 2, 1));
}

#[test]
fn only_writing_the_first_block_makes_a_last_writer() {
    let deeds = [(0, 5, Do::Write(0)), (0, 5, Do::Write(1)), (1, 5, Do::Write(1)), (1, 5, Do::Write(0))];
    let [_, _, last] = outcomes(&deeds);
    assert_eq!(last.moved, 1);
    assert_eq!(last.asked, Contacts { count: 4, local: 3 });
}

#[test]
fn whoever_has_deleted_blocks_is_told_once() {
    let deeds = [
        (0, 5, Do::Write(0)),
        (0, 5, Do::Write(1)),
        (1, 5, Do::Read(0)),
        (1, 5, Do::Read(1)),
        (2, 5, Do::Read(0)),
        (1, 5, Do::Delete),
        (1, 5, Do::Read(0)),
    ];
    let [central, first, _] = outcomes(&deeds);
    assert_eq!((central.delete_hops, central.told), (2 + 2, Contacts { count: 2, local: 0 }));
    assert_eq!((first.delete_hops, first.told), (2 + 1, Contacts { count: 2, local: 1 }));
    assert_eq!(central.hits, 0, "it is gone everywhere");
}

#[test]
fn commits_wait_for_half_a_minute() {
    let write = (0, 5, Do::Write(0));
    let mut deeds = vec![write; 61];
    // Commits at 0, 31 and at the end; the block is also committed at 30 s, before it is written
    // again.
    deeds.insert(0, (1, 9, Do::Write(0)));
    let [central, ..] = outcomes(&deeds);
    assert_eq!(central.committed.count, 1 + 3);
    assert_eq!(central.asked.count, 2);
}

#[test]
fn the_warm_up_only_fills_the_caches() {
    let deeds = accesses(&[(0, 5, Do::Write(0)), (0, 5, Do::Read(0)), (1, 5, Do::Read(0)), (1, 5, Do::Read(0))]);
    let policy = Policy::Centralized;
    let of = |warm_up_us| simulate(&deeds, &Parameters { policy, warm_up_us, ..Parameters::default() });
    let after = of(2 * SECOND_US);
    assert_eq!((after.reads, after.hits, after.writes, after.committed.count), (2, 1, 0, 1));
    assert_eq!(of(u64::MAX), Outcome::default());
}

/// Many random clients, files, blocks and deletes; mostly each client uses its own files.
fn random_accesses(seed: u64) -> Accesses {
    let random = SplitMix64::new(seed);
    let deeds: Vec<_> = (0..20_000)
        .map(|_| {
            let client = random.below(6) as u32;
            let own = random.chance(9, 10);
            let file = if own { u64::from(client) * 10 + random.below(10) } else { random.below(60) };
            let what = match random.below(40) {
                0 => Do::Delete,
                1..20 => Do::Write(random.below(6)),
                _ => Do::Read(random.below(6)),
            };
            (client, file, what)
        })
        .collect();
    accesses(&deeds)
}

#[test]
fn prop_where_managers_are_changes_messages_and_nothing_else() {
    for seed in 0..10 {
        let parameters = Parameters { cache_blocks: 20, warm_up_us: 0, seed, ..Parameters::default() };
        let study = Study::run(&random_accesses(seed), &parameters, || ());
        let [central, first, last] = study.outcomes;
        for of in [first, last] {
            assert_eq!((of.reads, of.hits, of.writes), (central.reads, central.hits, central.writes));
            assert_eq!((of.asked.count, of.committed.count), (central.asked.count, central.committed.count));
            assert_eq!((of.invalidated.count, of.told.count), (central.invalidated.count, central.told.count));
            // Interactions that are not local cost as much as with one manager for all.
            let all = |of: &Outcome| {
                of.write_hops + 2 * of.asked.local + of.invalidated.local + of.committed.local - 2 * of.moved
            };
            assert_eq!(all(&of), all(&central));
            assert_eq!(of.delete_hops + 2 * of.deletes.local + of.told.local, central.delete_hops);
        }
        assert_eq!((central.asked.local, central.shorter), (0, 0));
        assert!(first.hops() < central.hops() && central.hops_per_miss() >= Some(3.0));
        assert!(first.asked.local_share() > Some(0.8), "{first:?}");
        let findings = study.findings(Workload::Other);
        assert!(findings.iter().all(|finding| finding.holds != Some(false)), "{findings:#?}");
        assert_eq!(Study::run(&random_accesses(seed), &parameters, || ()), study, "the same again");
    }
}

#[test]
fn a_trace_of_reads_only_has_no_locality_but_by_chance() {
    let worst = WorstCase { requests: 20_000, ..WorstCase::default() };
    let accesses = Accesses::of(worst.records().map(Ok::<_, ()>), BLOCK_BYTES).expect("accesses");
    let parameters = Parameters { cache_blocks: 10, warm_up_us: 0, ..Parameters::default() };
    let study = Study::run(&accesses, &parameters, || ());
    let [central, first, _] = study.outcomes;
    // Ten of eleven blocks are cached, and each of ten files has an index node of its own.
    let misses = central.reads - central.hits;
    assert!((misses as f64 / central.reads as f64 - 1.0 / 11.0).abs() < 0.01);
    assert_eq!(central.read_hops, 3 * misses + 2 * 10);
    assert_eq!(first.read_hops, central.read_hops - first.shorter);
    assert_eq!((first.hops_per_write(), first.hops_per_delete()), (None, None));
    let empty = Study::run(&Accesses::default(), &parameters, || ());
    let per_read = |of| study.figures(of)[1].curves[0].points.iter().any(|(x, _)| *x == 1.0);
    // Auspex's trace lacks the hits in clients' own caches.
    assert!(per_read(Workload::Sprite) && !per_read(Workload::Auspex));
    for (of, count) in [(Workload::Sprite, 12), (Workload::Auspex, 4), (Workload::Other, 12)] {
        assert_eq!((study.findings(of).len(), empty.findings(of).len()), (count, count));
        assert!(empty.findings(of).iter().all(|finding| finding.holds.is_none()), "nothing was measured");
    }
}

#[test]
fn a_cache_of_nothing_is_refused() {
    let fault = Parameters { cache_blocks: 0, ..Parameters::default() }.check().expect_err("wrong").to_string();
    assert!(fault.starts_with("cache-blocks"));
    assert_eq!(Parameters::default().check(), Ok(()));
}
