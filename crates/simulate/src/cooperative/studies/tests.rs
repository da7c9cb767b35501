use super::comparison::{self, Workload};
use super::*;
use crate::cooperative::Technology;
use crate::figure::{Figure, Finding};
use host::SplitMix64;
use std::sync::atomic::{AtomicUsize, Ordering};
use trace::{Deed, Record};

/// Clients that read and write much of the same, and something that is their own; some more than others.
fn office() -> Blocks {
    let random = SplitMix64::new(2);
    let mut time_us = 0;
    let records = (0..40_000).map(|_| {
        time_us += random.below(20_000);
        let client = random.below(12).min(random.below(12)) as u32;
        let own = u64::from(client + 1) * 1000;
        let file = if random.chance(1, 3) { random.below(400) } else { own + random.below(120).min(random.below(120)) };
        let deed = match random.chance(1, 8) {
            true => Deed::Write { offset: 0, len: 1 },
            false => Deed::Read { offset: 0, len: 1 },
        };
        Ok::<_, ()>(Record { time_us, client, file, deed })
    });
    Blocks::of(records, 1).expect("blocks")
}

const SETUP: Setup = Setup { block_bytes: 1 << 20, client_blocks: 40, server_blocks: 60, warm_up: 20_000, seed: 1 };

fn tell(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn sound(figures: &[Figure]) {
    for figure in figures {
        assert!(!figure.curves.is_empty(), "{}", figure.title);
        for curve in &figure.curves {
            let what = format!("{}: {}", figure.title, curve.name);
            assert!(!curve.points.is_empty() && curve.points.is_sorted_by_key(|(x, _)| *x), "{what}");
            assert!(curve.points.iter().all(|(x, y)| x.is_finite() && y.is_finite() && *y >= 0.0), "{what}");
        }
    }
}

fn holds(findings: &[Finding]) {
    for finding in findings {
        assert_ne!(finding.holds, Some(false), "{finding:#?}");
        assert!(!finding.ours.contains("not measured") && !finding.ours.contains("NaN"), "{finding:#?}");
    }
}

#[test]
fn table_3_2_is_exact() {
    let findings = comparison::latencies();
    assert_eq!(findings.len(), 6);
    assert!(findings.iter().all(|finding| finding.holds == Some(true)), "{findings:#?}");
}

#[test]
fn what_the_thesis_says_of_the_worst_case_holds() {
    let told = AtomicUsize::new(0);
    let found = worst::study(&worst::Setup { requests: 100_000, seed: 1 }, || tell(&told));
    assert_eq!(told.into_inner(), worst::WORKLOADS);
    let figures = worst::figures(&found);
    sound(&figures);
    assert_eq!(figures.iter().map(|figure| figure.curves.len()).collect::<Vec<_>>(), [8, 8, 8]);
    holds(&worst::findings(&found));
    let few = worst::Setup { requests: 9999, seed: 1 };
    assert!(few.check().expect_err("wrong").starts_with("requests"));
}

#[test]
fn a_comparison_is_of_all_and_adds_up() {
    let blocks = office();
    let told = AtomicUsize::new(0);
    let found = comparison::compare(&blocks, &SETUP, || tell(&told));
    assert_eq!((told.into_inner(), found.rows.len()), (comparison::RUNS, comparison::RUNS));
    let figures = comparison::figures(&found, Workload::Sprite);
    sound(&figures);
    for (row, at) in found.rows.iter().zip(0..10) {
        let sum = |figure: &Figure| figure.curves.iter().map(|curve| curve.points[at].1).sum::<f64>();
        assert!((sum(&figures[0]) - row.mean_us / 1000.0).abs() < 1e-9, "{}", row.name);
        assert!((sum(&figures[2]) / 100.0 - row.load_of_base).abs() < 1e-9, "{}", row.name);
        let reads: u64 = row.clients.iter().map(|(reads, _)| reads).sum();
        assert_eq!(reads, row.outcome.reads.iter().sum::<u64>());
    }
    let base = &found.rows[0];
    assert_eq!((base.speed_up, base.load_of_base), (1.0, 1.0));
    assert!(base.clients.iter().all(|(_, speed_up)| *speed_up == 1.0));
    for row in &found.rows[1..10] {
        let best = &found.rows[9];
        assert!(row.algorithm == Algorithm::Direct || row.mean_us >= best.mean_us, "{}", row.name);
    }
    assert!(comparison::findings(&found, Workload::Other).len() < comparison::findings(&found, Workload::Sprite).len());
    assert_eq!(found, comparison::compare(&blocks, &SETUP, || ()), "one seed, one result");
}

#[test]
fn what_is_varied_is_what_changes() {
    use sensitivity::Varied;
    let blocks = office();
    let runs = sensitivity::Runs::of(&blocks, &SETUP);
    let told = AtomicUsize::new(0);
    let found = sensitivity::study(&blocks, &runs, || tell(&told));
    assert_eq!(told.into_inner(), runs.len());
    sound(&sensitivity::figures(&found));
    let findings = sensitivity::findings(&found);
    assert!(findings.iter().all(|finding| !finding.ours.contains("not measured")), "{findings:#?}");
    let us = |study, curve: &str, x| super::found(&found.measured, study, curve, x).expect("measured").mean_us;
    // What is as in the comparison, wherever it is varied.
    let compared = comparison::compare(&blocks, &SETUP, || ());
    let n_chance = compared.rows.iter().find(|row| row.name == "n-chance").expect("compared").mean_us;
    let same = [(Varied::Chances, 2.0), (Varied::Client, 1.0), (Varied::Unlike, 0.0), (Varied::Network, 800.0)];
    for (study, x) in same {
        assert!((us(study, "n-chance", x) / n_chance - 1.0).abs() < 1e-12, "{study:?}");
    }
    let central = compared.rows.iter().find(|row| row.name == "central").expect("compared").mean_us;
    assert_eq!(us(Varied::Common, "40 MiB", 80.0), central);
    let greedy = compared.rows.iter().find(|row| row.name == "greedy").expect("compared").mean_us;
    assert_eq!(us(Varied::Chances, "n-chance", 0.0), greedy);
    // Nothing is managed for all: the base case.
    assert_eq!(us(Varied::Common, "40 MiB", 0.0), compared.rows[0].mean_us);
    let nvme = Technology::NVME_100_GBPS;
    let base = mean_us(&compared.rows[0].outcome.reads, &nvme.times_us(Algorithm::Base)).expect("reads");
    assert_eq!(us(Varied::Disk100, "base", nvme.disk_us), base);
    assert!(us(Varied::Network, "n-chance", 10.0) < us(Varied::Network, "n-chance", 10_000.0));
}

#[test]
fn what_makes_no_sense_is_named() {
    let blocks = office();
    let fault = |setup: Setup| setup.check(&blocks).expect_err("wrong");
    assert!(fault(Setup { block_bytes: 0, ..SETUP }).starts_with("block"));
    assert!(fault(Setup { client_blocks: 0, ..SETUP }).starts_with("client-cache"));
    assert!(fault(Setup { warm_up: 1 << 40, ..SETUP }).starts_with("warm-up"));
    assert_eq!(SETUP.check(&blocks), Ok(()));
    let write = Record { time_us: 0, client: 0, file: 0, deed: Deed::Write { offset: 0, len: 1 } };
    let written = Blocks::of([Ok::<_, ()>(write), Ok(write)], 1).expect("blocks");
    let setup = Setup { warm_up: 0, ..SETUP };
    assert!(setup.check(&written).expect_err("wrong").starts_with("warm-up: nothing is read"));
}
