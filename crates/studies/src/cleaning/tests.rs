use super::report::Study;
use super::*;
use crate::cooperative::experiments::comparison::Workload;
use host::SplitMix64;
use trace::{Deed, Record};

const BLOCK_BYTES: u64 = 8192;

/// Clients that write files of one to eight blocks, read them, write them again and delete them; a
/// few much more often than others.
fn accesses(records: u64, seed: u64) -> Accesses {
    let random = SplitMix64::new(seed);
    let records = (0..records).map(|at| {
        let client = random.below(4) as u32;
        let rank = if random.chance(3, 4) { random.below(20) } else { random.below(400) };
        let owner = if random.chance(1, 30) { random.below(4) } else { client.into() };
        let file = owner * 400 + rank;
        let len = (1 + file % 8) * BLOCK_BYTES;
        let deed = match random.below(10) {
            0..5 => Deed::Write { offset: 0, len },
            5..9 => Deed::Read { offset: 0, len },
            _ => Deed::Delete,
        };
        Ok::<_, ()>(Record { time_us: at * 100_000, client, file, deed })
    });
    Accesses::of(records, BLOCK_BYTES).expect("accesses")
}

fn parameters() -> Parameters {
    Parameters { segment_bytes: 128 << 10, ..Parameters::default() }
}

#[test]
fn what_the_thesis_orders_is_in_this_order() {
    let accesses = accesses(30_000, 1);
    let study = Study::run(&accesses, &parameters(), || ());
    // Sizes are varied around the parameter; only around the thesis's size are both of table 4-2.
    let of_sizes = Study::run(&accesses, &Parameters::default(), || ()).by_size();
    assert!(study.by_size().len() < of_sizes.len());
    let mut findings = study.findings(Workload::Other);
    findings.extend(of_sizes);
    assert!(findings.iter().all(|finding| finding.holds != Some(false)), "{findings:#?}");
    assert!(findings.iter().filter(|finding| finding.holds.is_some()).count() >= 4, "{findings:#?}");
    assert!(findings.iter().all(|finding| !finding.ours.contains("none")), "{findings:#?}");
    assert_eq!(study.figures().len(), 3);
    let runs = study.sizes.len() + study.utilisations.iter().map(Vec::len).sum::<usize>();
    assert_eq!(runs, Study::STEPS);
}

#[test]
fn caches_spare_the_cleaner_reads_and_change_nothing_else() {
    let accesses = accesses(10_000, 2);
    let run = |cache_blocks| simulate(&accesses, &Parameters { cache_blocks, ..parameters() }).expect("room").counts;
    let (without, small, all) = (run(0), run(50), run(1 << 20));
    assert!(without.read > small.read && small.read > all.read, "{without:?} {small:?} {all:?}");
    for of in [small, all] {
        assert_eq!(Counts { cached: 0, read: of.read + of.cached, ..of }, without);
    }
    assert_eq!(without, run(0), "the same again");
}

#[test]
fn what_dies_in_memory_is_not_written() {
    let accesses = accesses(10_000, 3);
    let run = |delay_us| simulate(&accesses, &Parameters { delay_us, ..parameters() }).expect("room");
    let (at_once, later, last) = (run(0), run(30_000_000), run(u64::MAX));
    assert_eq!(at_once.died_blocks, 0);
    assert!(at_once.counts.written > later.counts.written && later.counts.written > last.counts.written);
    // Every write of a client is written to a log, or dies.
    let bytes = |of: &Outcome| of.counts.written * 16 + of.died_blocks;
    assert!(bytes(&at_once).abs_diff(bytes(&later)) < 500, "{at_once:?} {later:?}");
}

#[test]
fn a_disk_is_as_large_as_its_utilisation_says() {
    let write = |file: u64, blocks: u64| {
        let deed = Deed::Write { offset: 0, len: blocks * BLOCK_BYTES };
        Ok::<_, ()>(Record { time_us: 0, client: 0, file, deed })
    };
    let delete = Ok(Record { time_us: 1, client: 0, file: 1, deed: Deed::Delete });
    // 60 blocks, then 20, then 50: at most 60. The second run of the trace has the deleted file
    // again: 50 + 40.
    let records = [write(1, 40), write(2, 20), delete, write(3, 30)];
    let accesses = Accesses::of(records, BLOCK_BYTES).expect("accesses");
    let parameters = Parameters { segment_bytes: 10 * BLOCK_BYTES, utilisation: 0.5, ..Parameters::default() };
    assert_eq!(simulate(&accesses, &parameters).expect("room").disk_segments, 18);
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_nothing() {
    let full = Parameters { utilisation: 0.999, ..parameters() };
    assert_eq!((full.check(BLOCK_BYTES), simulate(&accesses(10_000, 4), &full)), (Ok(()), Err(Full)));
    assert!(Full.to_string().starts_with("utilisation"));
    let fault = |of: Parameters| of.check(BLOCK_BYTES).expect_err("wrong").to_string();
    assert!(fault(Parameters { segment_bytes: 8192, ..parameters() }).starts_with("segment-bytes"));
    assert!(fault(Parameters { segment_bytes: 20_000, ..parameters() }).starts_with("segment-bytes"));
    assert!(fault(Parameters { segment_bytes: u64::MAX, ..parameters() }).starts_with("segment-bytes"));
    assert!(fault(Parameters { utilisation: 0.0, ..parameters() }).starts_with("utilisation"));
    assert!(fault(Parameters { utilisation: 1e-9, ..parameters() }).starts_with("utilisation"));
    assert!(fault(Parameters { utilisation: f64::NAN, ..parameters() }).starts_with("utilisation"));
    let empty = Study::run(&Accesses::default(), &parameters(), || ());
    assert!(empty.findings(Workload::Auspex).iter().all(|finding| finding.holds != Some(false)));
    assert_eq!(empty.figures().len(), 3);
}
