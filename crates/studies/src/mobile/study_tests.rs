use super::findings::findings;
use super::study::{Grid, figures, study};
use super::*;
use crate::figure::Finding;
use host::SplitMix64;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use trace::Record;

const MINUTE_US: u64 = 60_000_000;

/// A user at work for hours. The reads are of a few documents and many files, some of them large
/// with little used. The writes, `often` times as often, save a document again, or change some
/// blocks of a large file.
fn work(often: u64, seed: u64) -> Activity {
    let (random, mut time_us, mut records) = (SplitMix64::new(seed), 0, Vec::new());
    let size = |file: u64| if file.is_multiple_of(8) { 150_000 } else { 4_000 + SplitMix64::new(file).below(40_000) };
    for episode in 0..260u64 {
        // The set of files in use moves on.
        let file = (episode / 8 + random.below(24)) % 160;
        let start = if size(file) > 100_000 { random.below(26) * 4096 } else { 0 };
        for piece in 0..(size(file) - start).min(40_000).div_ceil(8192) {
            time_us += 20_000;
            let offset = start + piece * 8192;
            records.push((time_us, file, Deed::Read { offset, len: (size(file) - offset).min(8192) }));
        }
        for _ in 0..random.below(2 * often + 1) {
            time_us += 2_000_000 + random.below(20_000_000);
            let file = if random.chance(1, 2) { file - file % 8 } else { 1 + episode / 40 };
            let offset = if size(file) > 100_000 { random.below(35) * 4096 } else { 0 };
            records.push((time_us, file, Deed::Write { offset, len: (size(file) - offset).min(8192) }));
        }
        time_us += random.below(2 * MINUTE_US) + if episode.is_multiple_of(50) { 20 * MINUTE_US } else { 0 };
    }
    let records = records.into_iter().map(|(time_us, file, deed)| Record { time_us, client: 0, file, deed });
    Activity::of(records.map(Ok::<_, ()>)).expect("a right one")
}

fn grid() -> Grid {
    let base = Parameters { hoard_us: 60 * MINUTE_US, cache_bytes: 4 << 20, ..Parameters::PAPER };
    Grid { base, caches_bytes: vec![1 << 20, 4 << 20, 8 << 20], slow: vec![9600, 14_400, 57_600], fast: vec![512_000] }
}

#[test]
fn every_statement_of_the_paper_has_its_finding_and_every_figure_its_curves() {
    let (little, much) = (work(1, 1), work(5, 2));
    let (grid, done) = (grid(), AtomicU64::new(0));
    let tell = || {
        done.fetch_add(1, Ordering::Relaxed);
    };
    let found = study(&[("little", &little), ("much", &much)], &grid, tell);
    assert_eq!(done.into_inner(), grid.count(2) as u64);
    let drawn = figures(&found);
    let repeated: BTreeSet<&str> = drawn.iter().map(|figure| &figure.repeats[..]).collect();
    for number in 2..=12 {
        assert!(repeated.contains(&format!("Froese and Bunt, figure {number}")[..]), "{number}");
    }
    assert!(drawn.iter().all(|figure| figure.curves.iter().any(|curve| curve.points.len() > 1)), "{drawn:?}");
    let findings = findings(&found);
    // Findings that do not hold, and those with numbers, are explained by numbers of each trace,
    // and no two alike.
    let explained: Vec<&Finding> = findings.iter().filter(|one| !one.why.is_empty()).collect();
    for one in &findings {
        let is_explained = one.why.contains("little: ") && one.why.contains("much: ");
        let has_value = one.theirs.contains(|letter: char| letter.is_ascii_digit()) && !one.theirs.contains("trace");
        assert!(is_explained || (one.holds == Some(true) && !has_value), "{one:?}");
    }
    let whys: BTreeSet<&str> = explained.iter().map(|one| &one.why[..]).collect();
    assert!(whys.len() * 3 > explained.len() * 2, "{whys:#?}");
    // This work, small as it is, shows these.
    for what in [
        "more bandwidth expands time less",
        "larger caches expand time less",
        "with a larger cache, less bandwidth gives the same time expansion",
        "aggressive policies reintegrate sooner than conservative ones",
        "aggressive policies make the log smaller than if nothing goes home, by",
        "conservative policies interfere less than aggressive ones",
        "aggressive policies expand time slightly more than conservative ones",
        "with Idle, blocks interfere less than files (if all of a file or block is logged)",
        "with blocks, fewer bytes go home (if all of a file or block is logged)",
        "blocks make the log smaller by (if all of a file or block is logged)",
        "blocks shorten the time until reintegration (if all of a file or block is logged)",
        "what is delayed is written back less often than by Idle",
    ] {
        let one = findings.iter().find(|one| one.what == what).expect(what);
        assert_eq!(one.holds, Some(true), "{one:?}");
    }
    // The same input gives the same result.
    let again = study(&[("little", &little), ("much", &much)], &grid, || ());
    let runs = serde_json::to_value(&found).expect("numbers");
    let of_trace = |at: usize| runs[at]["runs"].as_array().map(Vec::len);
    assert_eq!((runs[1]["name"].as_str(), of_trace(0), of_trace(1)), (Some("much"), Some(grid.count(1)), of_trace(0)));
    let text =
        |of: &study::Study| serde_json::to_string(&(figures(of), super::findings::findings(of))).expect("numbers");
    assert_eq!(text(&found), text(&again));
}

#[test]
fn one_trace_is_compared_with_no_other_and_an_empty_one_says_nothing() {
    let grid = grid();
    let two = findings(&study(&[("one", &work(1, 1)), ("other", &work(1, 2))], &grid, || ()));
    let one = findings(&study(&[("one", &work(1, 1))], &grid, || ()));
    assert_eq!(two.len() - one.len(), 3);
    let empty = study(&[("empty", &Activity::default())], &grid, || ());
    assert!(!findings(&empty).is_empty() && !figures(&empty).is_empty());
    assert!(findings(&empty).iter().all(|one| one.holds.is_none()), "{:#?}", findings(&empty));
    assert!(findings(&study(&[], &grid, || ())).iter().all(|one| one.holds.is_none()));
}

/// Findings that say yes or no about these deeds, a minute after each other, with a slow link from
/// the beginning.
fn said_of(deeds: &[(u64, Deed)]) -> Vec<Finding> {
    let records = (0..).zip(deeds).map(|(at, (file, deed))| Record {
        time_us: at * MINUTE_US,
        client: 0,
        file: *file,
        deed: *deed,
    });
    let activity = Activity::of(records.map(Ok::<_, ()>)).expect("a right one");
    let grid = Grid { base: Parameters { hoard_us: 0, ..grid().base }, ..grid() };
    let mut all = findings(&study(&[("one", &activity), ("other", &activity)], &grid, || ()));
    assert!(!all.iter().any(|one| one.ours.contains("NaN") || one.ours.contains("inf")), "{all:#?}");
    all.retain(|one| one.holds.is_some());
    all
}

#[test]
fn where_nothing_was_measured_nothing_is_said() {
    let read = Deed::Read { offset: 0, len: 8192 };
    let write = Deed::Write { offset: 0, len: 8192 };
    // Nothing is written, and all of a file is read, as a file or as blocks: only bandwidth makes a
    // difference.
    let said = said_of(&[(0, read)]);
    assert_eq!(said.iter().map(|one| &one.what[..]).collect::<Vec<_>>(), ["more bandwidth expands time less"]);
    assert_eq!(said[0].holds, Some(true), "{said:#?}");
    // Nothing is read: the findings are about what goes home, and none about waits.
    let said = said_of(&(0..40).map(|at| (at, write)).collect::<Vec<_>>());
    let wrong = ["expand", "interfere", "bandwidth"];
    assert!(!said.iter().any(|one| wrong.iter().any(|word| one.what.contains(word))), "{said:#?}");
    assert!(said.iter().any(|one| one.what.contains("reintegrate sooner")), "{said:#?}");
}

#[test]
fn why_values_differ_is_said_of_what_was_simulated() {
    // The cache and unit of the base are not among the varied ones.
    let grid = grid();
    let base = Parameters { hoard_us: grid.base.hoard_us, link: Link::of(20_000), ..Parameters::default() };
    let found = findings(&study(&[("one", &work(5, 2))], &Grid { base, ..grid }, || ()));
    for one in found.iter().filter(|one| !one.why.is_empty()) {
        assert!(
            !one.why.contains(" of 0 reads") && !one.why.contains("one: 0 ") && !one.why.contains("never"),
            "{one:?}"
        );
    }
    // The product logs the written bytes, and has no policy that stops for a user who waits.
    let why = |what: &str| &found.iter().find(|one| one.what.starts_with(what)).expect(what).why;
    assert_eq!(found.iter().filter(|one| one.what.starts_with("blocks make the log smaller")).count(), 1);
    assert!(why("conservative policies take more than five times").contains("the product's Preemptive"));
}

#[test]
fn a_grid_with_nothing_in_it_is_refused() {
    assert_eq!((Grid::paper().check(), grid().check()), (Ok(()), Ok(())));
    assert!(Grid { caches_bytes: vec![], ..grid() }.check().expect_err("wrong").to_string().starts_with("caches"));
    assert!(Grid { slow: vec![], ..grid() }.check().expect_err("wrong").to_string().starts_with("bandwidths"));
    assert!(Grid { slow: vec![0], ..grid() }.check().expect_err("wrong").to_string().starts_with("bandwidth"));
}
