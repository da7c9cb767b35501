use super::machines::{Trial, hours_per_month, losses_per_year};
use super::report::Study;
use super::*;

fn layout(machines: u32, parities: u32, group: Option<u32>) -> Layout {
    Layout { machines, parities, group }
}

#[test]
fn without_rebuilding_it_is_the_binomial_distribution() {
    let down: f64 = 1.0 / 720.0;
    for machines in [1u32, 2, 7, 40, 150] {
        let up = 1.0 - down;
        let all_up = (0..machines).fold(1.0, |all, _| all * up);
        let one_down = f64::from(machines) * down * all_up / up;
        let two_down = f64::from(machines * (machines - 1) / 2) * down * down * all_up / up / up;
        for (parities, reachable) in [all_up, all_up + one_down, all_up + one_down + two_down].into_iter().enumerate() {
            let of = layout(machines, parities as u32, None);
            if of.check().is_ok() {
                let hours = Outages::monthly(of).hours_per_month();
                assert!((hours - (1.0 - reachable) * 720.0).abs() < 1e-9, "{of:?}: {hours}");
            }
        }
    }
    let alone = Outages::monthly(layout(1, 0, None)).hours_per_month();
    assert!((alone - 1.0).abs() < 1e-12, "an hour of each month");
}

/// Figure 4-4, as section 4.2.1 reads it.
#[test]
fn what_the_thesis_says_of_figure_4_4_is_found() {
    let study = Study::run(&Trial { hours: 200_000.0, seed: 1 }, || ());
    let findings = study.findings();
    let (stated, tried): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| !finding.stated.is_empty());
    assert_eq!((stated.len(), tried.len()), (5, Study::STEPS));
    assert!(stated.iter().all(|finding| finding.holds == Some(true)), "{stated:#?}");
    assert!(tried.iter().all(|finding| finding.holds != Some(false)), "{tried:#?}");
    assert!(tried.iter().filter(|finding| finding.holds == Some(true)).count() >= 6, "{tried:#?}");
    let figures = study.figures();
    assert_eq!(figures[0].curves.len(), 11);
    assert!(
        figures.iter().flat_map(|figure| &figure.curves).flat_map(|curve| &curve.points).all(|(_, y)| y.is_finite())
    );
}

#[test]
fn what_is_computed_is_what_is_found_by_trying() {
    let cases = [
        (layout(6, 0, None), None),
        (layout(12, 1, None), None),
        (layout(12, 2, None), None),
        (layout(25, 1, Some(10)), None),
        (layout(30, 2, Some(6)), None),
        (layout(12, 1, None), Some(0.5)),
        (layout(12, 2, None), Some(3.0)),
        (layout(23, 1, Some(5)), Some(1.0)),
    ];
    for (of, rebuild_hours) in cases {
        let of = Outages { layout: of, up_hours: 40.0, down_hours: 2.0, rebuild_hours };
        let (computed, found) = (of.hours_per_month(), hours_per_month(&of, &Trial { hours: 200_000.0, seed: 3 }));
        assert!(found.agrees(computed), "{of:?}: {computed} {found:?}");
        assert!(found.error < computed / 20.0, "{of:?}: {found:?} says something");
    }
}

#[test]
fn losses_are_as_often_as_computed() {
    for of in [layout(5, 0, None), layout(8, 1, None), layout(8, 2, None), layout(33, 1, Some(8))] {
        let of = Losses { layout: of, life_hours: 1000.0, rebuild_hours: 30.0 };
        let (computed, found) = (1.0 / of.years(), losses_per_year(&of, &Trial { hours: 1_000_000.0, seed: 5 }));
        assert!(found.agrees(computed), "{of:?}: {computed} {found:?}");
        assert!(found.error < computed / 10.0, "{of:?}: {found:?} says something");
    }
}

/// For disks that live long the known approximation for one parity holds: life² / (n (n - 1)
/// rebuild).
#[test]
fn a_raids_mean_time_to_data_loss_is_the_known_one() {
    let of = Losses { layout: layout(10, 1, None), life_hours: 500_000.0, rebuild_hours: 1.0 };
    let known = 500_000.0 * 500_000.0 / (10.0 * 9.0) / YEAR_HOURS;
    assert!((of.years() / known - 1.0).abs() < 1e-3, "{} {known}", of.years());
}

#[test]
fn who_rebuilds_sooner_is_down_less_and_loses_less() {
    let hours = |rebuild_hours| Outages { rebuild_hours, ..Outages::monthly(layout(100, 1, None)) }.hours_per_month();
    assert!(hours(Some(0.1)) < hours(Some(1.0)) && hours(Some(1.0)) < hours(None));
    assert!((hours(Some(1e9)) / hours(None) - 1.0).abs() < 1e-6, "what takes forever is as good as none");
    let years = |rebuild_hours| Losses { layout: layout(100, 2, None), life_hours: 1e6, rebuild_hours }.years();
    assert!(years(1.0) > years(10.0));
}

#[test]
fn a_trial_in_which_too_much_would_happen_is_refused() {
    let fault = |checked: Result<(), ParameterError>| checked.expect_err("too much").to_string().starts_with("hours");
    let (trial, of) = (Trial { hours: YEAR_HOURS, seed: 1 }, Outages::monthly(layout(2, 1, None)));
    let often = Outages { up_hours: 3e-7, down_hours: 3e-7, ..of };
    assert!(fault(trial.check_outages(&often)));
    // A machine that is rebuilt at once fails again, however long it would have been down; also
    // during the ignored start.
    assert!(fault(trial.check_outages(&Outages { up_hours: 3e-7, rebuild_hours: Some(3e-7), ..of })));
    let long = Outages { up_hours: 1.0, down_hours: 1e9, rebuild_hours: Some(1.0), ..of };
    assert!(fault(trial.check_outages(&long)));
    // Each return of a large group looks at all its machines, and each loss begins them anew.
    let large = Outages::monthly(layout(10_000, 13, None));
    assert!(fault(Trial { hours: 1000.0 * YEAR_HOURS, ..trial }.check_outages(&large)));
    let losses = Losses { layout: layout(100_000, 0, None), life_hours: 500_000.0, rebuild_hours: 1.0 };
    assert!(fault(Trial { hours: 10.0 * YEAR_HOURS, ..trial }.check_losses(&losses)));
    assert!(fault(trial.check_losses(&Losses { life_hours: 3e-7, ..losses })));
    // Usual parameters are accepted.
    let usual = Trial { hours: 2000.0 * YEAR_HOURS, ..trial };
    for of in [layout(1000, 0, None), layout(1000, 1, None), layout(10_000, 2, Some(10))] {
        assert_eq!(usual.check_outages(&Outages::monthly(of)), Ok(()), "{of:?}");
        let losses = Losses { layout: of, life_hours: 500_000.0, rebuild_hours: 24.0 };
        assert_eq!(usual.check_losses(&losses), Ok(()), "{of:?}");
    }
    assert_eq!(Study::check(&usual), Ok(()));
    assert!(fault(Study::check(&Trial { hours: 3e10, ..trial })));
}

#[test]
fn what_is_computed_here_is_not_shown_as_stated() {
    let findings = Study::run(&Trial { hours: 20_000.0, seed: 1 }, || ()).findings();
    for finding in findings.iter().filter(|finding| finding.stated.is_empty()) {
        assert!(finding.theirs.starts_with("not stated; computed: "), "{finding:?}");
        assert!(finding.ours.starts_with("tried: "), "{finding:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same() {
    let of = Outages::monthly(layout(100, 1, None));
    let found = |seed| hours_per_month(&of, &Trial { hours: 20_000.0, seed });
    assert_eq!(found(1), found(1));
    assert_ne!(found(1), found(2));
}

#[test]
fn the_last_machines_are_spread_over_the_groups() {
    assert_eq!(layout(25, 1, Some(10)).groups(), [(12, 1), (13, 1)]);
    assert_eq!(layout(20, 1, Some(10)).groups(), [(10, 2), (11, 0)]);
    assert_eq!(layout(7, 1, Some(10)).groups(), [(7, 1), (8, 0)]);
    assert_eq!(layout(7, 1, None).groups(), [(7, 1), (8, 0)]);
}

#[test]
fn what_makes_no_sense_is_named() {
    let fault = |of: Layout| of.check().expect_err("wrong").to_string();
    assert!(fault(layout(0, 0, None)).starts_with("machines"));
    assert!(fault(layout(2, 2, None)).starts_with("machines"));
    assert!(fault(layout(200, 17, None)).starts_with("parities"));
    assert!(fault(layout(200, 1, Some(0))).starts_with("group"));
    assert!(fault(layout(200, 2, Some(2))).starts_with("group"));
    assert!(fault(layout(20, 1, Some(50))).starts_with("group"));
    assert_eq!(layout(20, 1, Some(20)).check(), Ok(()));
    let of = Outages::monthly(layout(10, 1, None));
    assert!(Outages { up_hours: 0.0, ..of }.check().expect_err("wrong").to_string().starts_with("up-hours"));
    assert!(Outages { down_hours: f64::NAN, ..of }.check().expect_err("wrong").to_string().starts_with("down-hours"));
    assert!(
        Outages { rebuild_hours: Some(-1.0), ..of }
            .check()
            .expect_err("wrong")
            .to_string()
            .starts_with("rebuild-hours")
    );
    let of = Losses { layout: layout(10, 1, None), life_hours: 1e5, rebuild_hours: 1.0 };
    assert_eq!(of.check(), Ok(()));
    assert!(
        Losses { life_hours: f64::INFINITY, ..of }.check().expect_err("wrong").to_string().starts_with("life-hours")
    );
    assert!(Losses { rebuild_hours: 0.0, ..of }.check().expect_err("wrong").to_string().starts_with("rebuild-hours"));
    let outages = Outages::monthly(layout(10, 1, None));
    for hours in [0.0, f64::NAN, 1e12] {
        let trial = Trial { hours, seed: 1 };
        assert!(trial.check_outages(&outages).is_err() && trial.check_losses(&of).is_err(), "{hours}");
    }
    // Nothing overflows at the bounds.
    let most = Outages { layout: layout(1_000_000, 16, None), up_hours: 1e-3, down_hours: 1e9, rebuild_hours: None };
    assert_eq!(most.check(), Ok(()));
    assert!((most.hours_per_month() - 720.0).abs() < 1e-9);
}
