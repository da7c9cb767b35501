use super::comparison::{self, Workload};
use super::*;
use crate::cooperative::Technology;
use crate::figure::{Figure, Finding};
use host::SplitMix64;
use std::sync::atomic::{AtomicUsize, Ordering};
use trace::{Deed, Record};

/// Clients that read and write many shared blocks, and some of their own; some clients do more than
/// others.
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
    assert!(few.check().expect_err("wrong").to_string().starts_with("requests"));
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
        // The load of writes is drawn on top of it.
        let writes = figures[2].curves.last().expect("a curve").points[at].1;
        assert!(((sum(&figures[2]) - writes) / 100.0 - row.load_of_base).abs() < 1e-9, "{}", row.name);
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
    // With many clients, the figure shows which part of them gains how much.
    let mut many = found.clone();
    many.rows.iter_mut().for_each(|row| row.clients = (0..=100).map(|at| (5, 2.0 - f64::from(at) / 100.0)).collect());
    let drawn = &comparison::figures(&many, Workload::Other)[3];
    assert!(drawn.curves.iter().all(|curve| curve.points.len() == 21 && curve.points[5] == (25.0, 1.25)), "{drawn:?}");
    sound(std::slice::from_ref(drawn));
    assert!(comparison::findings(&found, Workload::Other).len() < comparison::findings(&found, Workload::Sprite).len());
    assert_eq!(found, comparison::compare(&blocks, &SETUP, || ()), "one seed, one result");
}

#[test]
fn hits_that_are_not_in_auspex_s_trace_take_their_time() {
    let found = comparison::compare(&office(), &SETUP, || ());
    let [sprite, auspex] = [Workload::Sprite, Workload::Auspex].map(|of| comparison::figures(&found, of));
    sound(&auspex);
    let names: Vec<&str> = auspex[0].curves.iter().map(|curve| curve.name.as_str()).collect();
    assert_eq!(names, ["inferred local hits", "local memory", "server's memory", "other client", "disk"]);
    for (row, at) in found.rows.iter().zip(0..10) {
        // Four hits of 250 µs for each read in the trace.
        assert!((auspex[0].curves[0].points[at].1 - 0.2).abs() < 1e-9);
        let mean_ms: f64 = auspex[0].curves.iter().map(|curve| curve.points[at].1).sum();
        assert!((mean_ms - (4.0 * 0.25 + row.mean_us / 1000.0) / 5.0).abs() < 1e-9, "{}", row.name);
    }
    // The other figures do not include them.
    assert_eq!(auspex[2].curves, sprite[2].curves);
    let findings = comparison::findings(&found, Workload::Auspex);
    assert!(findings.iter().all(|finding| !finding.why.contains("  ")), "{findings:#?}");
    let ours = |what: &str| {
        let all: Vec<&Finding> = findings.iter().filter(|finding| finding.what.starts_with(what)).collect();
        all.into_iter().map(|finding| (finding.theirs.clone(), finding.ours.clone())).collect::<Vec<_>>()
    };
    let mean_us = |name: &str| found.rows.iter().find(|row| row.name == name).expect("compared").mean_us;
    let speed_up = |name, hits: f64| {
        let [base, own] = ["base", name].map(|name| hits * 250.0 + mean_us(name));
        format!("{:.2}", base / own)
    };
    let best = [("2.02", 4.0), ("1.68", 9.0), ("2.22", 7.0 / 3.0)];
    let best = best.map(|(theirs, hits)| (theirs.to_owned(), speed_up("best", hits)));
    assert_eq!(ours("speed-up of the best case"), best);
    let moved = ("1.93".to_owned(), speed_up("memory at the server", 4.0));
    assert_eq!(ours("speed-up with four fifths"), [moved]);
}

#[test]
fn the_thesis_s_numbers_of_sprite_are_not_said_to_be_of_another_trace() {
    let found = comparison::compare(&office(), &SETUP, || ());
    for workload in [Workload::Auspex, Workload::Other] {
        for finding in comparison::findings(&found, workload) {
            let of_sprite = ["22%", "1.63", "1.64", "1.73", "1.74", "10%"];
            assert!(!of_sprite.iter().any(|number| finding.theirs.contains(number)), "{finding:#?}");
        }
    }
    // If the speed-ups differ, the finding computes why.
    let findings = comparison::findings(&found, Workload::Sprite);
    let speed_ups: Vec<&Finding> = findings
        .iter()
        .filter(|finding| finding.stated.ends_with("3-3") && finding.what.contains("speed-up"))
        .collect();
    assert_eq!(speed_ups.len(), 6);
    let is_computed = |finding: &&&Finding| finding.why.contains("it would be") && finding.why.contains("ours");
    assert_eq!(speed_ups.iter().filter(is_computed).count(), 6, "{speed_ups:#?}");
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
    let values = ["3-7", "3-8", "3-10", "3-4", "3-13", "3-14"];
    let of_values = findings.iter().filter(|finding| values.iter().any(|figure| finding.stated.ends_with(figure)));
    assert!(
        of_values.clone().count() == 10
            && of_values.clone().all(|one| one.why.contains('%') || one.why.contains("would give"))
    );
    let us = |study, curve: &str, x| super::found(&found.measured, study, curve, x).expect("measured").mean_us;
    // Results at the default parameters are as in the comparison, in every study.
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
    // With no common part it is the base case.
    assert_eq!(us(Varied::Common, "40 MiB", 0.0), compared.rows[0].mean_us);
    let nvme = Technology::NVME_100_GBPS;
    let base = mean_us(&compared.rows[0].outcome.reads, &nvme.times_us(Algorithm::Base)).expect("reads");
    assert_eq!(us(Varied::Disk100, "base", nvme.disk_us), base);
    assert!(us(Varied::Network, "n-chance", 10.0) < us(Varied::Network, "n-chance", 10_000.0));
}

#[test]
fn what_makes_no_sense_is_named() {
    let blocks = office();
    let fault = |setup: Setup| setup.check(&blocks).expect_err("wrong").to_string();
    assert!(fault(Setup { block_bytes: 0, ..SETUP }).starts_with("block"));
    assert!(fault(Setup { client_blocks: 0, ..SETUP }).starts_with("client-cache"));
    assert!(fault(Setup { warm_up: 1 << 40, ..SETUP }).starts_with("warm-up"));
    assert_eq!(SETUP.check(&blocks), Ok(()));
    let write = Record { time_us: 0, client: 0, file: 0, deed: Deed::Write { offset: 0, len: 1 } };
    let written = Blocks::of([Ok::<_, ()>(write), Ok(write)], 1).expect("blocks");
    let setup = Setup { warm_up: 0, ..SETUP };
    assert!(setup.check(&written).expect_err("wrong").to_string().starts_with("warm-up: nothing is read"));
}
