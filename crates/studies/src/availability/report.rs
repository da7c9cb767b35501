//! Figure 4-4, the same over rebuild times, and the statements of section 4.2.1.

use super::machines::{self, Estimate, Trial};
use super::{Layout, Losses, MONTH_HOURS, Outages};
use crate::ParameterError;
use crate::figure::{Axis, Curve, Figure, Finding, Kind, Scale, Shape};
use crate::sweep::sweep;
use serde::Serialize;

/// Machines of a stripe group, as in figure 4-4.
const GROUP: Option<u32> = Some(10);
/// The organisations of figure 4-4: parities and groups.
const ORGANIZATIONS: [(&str, u32, Option<u32>); 5] = [
    ("no parity", 0, None),
    ("one parity", 1, None),
    ("two parities", 2, None),
    ("one parity per group of 10", 1, GROUP),
    ("two parities per group of 10", 2, GROUP),
];
const MACHINES: [u32; 19] = [1, 2, 3, 5, 10, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000];
/// Numbers of machines that are also simulated.
const TRIED: [u32; 3] = [10, 50, 200];
const REBUILD_HOURS: [f64; 11] = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
/// Number of machines when rebuild times are varied.
const REBUILD_MACHINES: u32 = 100;
/// Mean time of outages when rebuild times are varied, in hours: machines that wait for a person.
const LONG_OUTAGE_HOURS: f64 = 24.0;
/// Mean life of disks, in hours.
const LIFE_HOURS: f64 = 500_000.0;

/// A simulated value beside the computed one.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Tried {
    organization: usize,
    machines: u32,
    computed: f64,
    found: Estimate,
}

/// The study of section 4.2.1.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Study {
    tried: Vec<Tried>,
}

impl Study {
    /// How often [`run`](Self::run) reports progress.
    pub const STEPS: usize = ORGANIZATIONS.len() * TRIED.len();

    /// Checks that the trial is not too long; an error names the wrong parameter.
    pub fn check(trial: &Trial) -> Result<(), ParameterError> {
        let all = ORGANIZATIONS.iter().flat_map(|of| TRIED.map(|machines| (of, machines)));
        all.into_iter().try_for_each(|(&(_, parities, group), machines)| {
            let layout = Layout { machines, parities, group };
            trial.check_outages(&Outages::monthly(layout))
        })
    }

    /// Runs the study: simulates, for the length of the trial, what is also computed.
    pub fn run(trial: &Trial, done: impl Fn() + Sync) -> Study {
        let all = (0..ORGANIZATIONS.len()).flat_map(|of| TRIED.map(|machines| (of, machines)));
        let study = |(organization, machines): &(usize, u32)| {
            let (_, parities, group) = ORGANIZATIONS[*organization];
            let outages = Outages::monthly(Layout { machines: *machines, parities, group });
            let (computed, found) = (outages.hours_per_month(), machines::hours_per_month(&outages, trial));
            Tried { organization: *organization, machines: *machines, computed, found }
        };
        Study { tried: sweep(&all.collect::<Vec<_>>(), study, done) }
    }

    /// Figure 4-4, the same with machines that are rebuilt, and how rarely data are lost.
    pub fn figures(&self) -> Vec<Figure> {
        vec![self.downtime(), rebuilt(), lost()]
    }

    fn downtime(&self) -> Figure {
        let curve = |(name, parities, group): (&str, u32, Option<u32>)| {
            let layout = |machines: u32| Layout { machines, parities, group };
            let possible = MACHINES.into_iter().map(layout).filter(|layout| layout.check().is_ok());
            let point = |of: Layout| (f64::from(of.machines), Outages::monthly(of).hours_per_month());
            Curve { name: name.into(), points: possible.map(point).collect() }
        };
        let one = Curve { name: "one server".into(), points: MACHINES.map(|n| (f64::from(n), one_server())).into() };
        let tried = |organization: usize| {
            let found = self.tried.iter().filter(move |tried| tried.organization == organization);
            let points = found.map(|tried| (f64::from(tried.machines), tried.found.mean));
            let name = format!("{}, tried", ORGANIZATIONS[organization].0);
            Curve { name, points: points.collect() }
        };
        Figure {
            title: "Time in which some data are out of reach".into(),
            repeats: "Dahlin, figure 4-4".into(),
            theirs: Vec::new(),
            shape: Shape::Lines,
            x: Axis { label: "storage servers".into(), scale: Scale::Log },
            y: Axis { label: "downtime (hours per month)".into(), scale: Scale::Log },
            curves: [one]
                .into_iter()
                .chain(ORGANIZATIONS.map(curve))
                .chain((0..ORGANIZATIONS.len()).map(tried))
                .collect(),
        }
    }

    /// The statements of section 4.2.1, beside our results.
    pub fn findings(&self) -> Vec<Finding> {
        let hours =
            |machines, parities, group| Outages::monthly(Layout { machines, parities, group }).hours_per_month();
        // The largest number of machines that is better than one machine.
        let most = |parities: u32, group: Option<u32>| {
            let better = |machines: &u32| hours(*machines, parities, group) < one_server();
            (parities + 1..1000).take_while(better).last().unwrap_or(0)
        };
        let finding = |what: &str, theirs: &str, ours: String, holds: bool| Finding {
            stated: "Dahlin, section 4.2.1".into(),
            what: what.into(),
            theirs: theirs.into(),
            ours,
            kind: Kind::Computed,
            holds: Some(holds),
            why: String::new(),
        };
        let (one, two, grouped) = (most(1, None), most(2, None), most(1, GROUP));
        let about_150 = |machines: u32| (140..=160).contains(&machines);
        let minutes = |machines| hours(machines, 2, GROUP) * 60.0;
        let better = "storage servers that are together down less than a single one";
        let mut findings = vec![
            finding(&format!("{better}, one parity"), "fewer than 40", format!("up to {one}"), one == 39),
            finding(&format!("{better}, two parities"), "about 150", format!("up to {two}"), about_150(two)),
            finding(
                &format!("{better}, one parity per group of 10"),
                "about 150",
                format!("up to {grouped}"),
                about_150(grouped),
            ),
        ];
        for (machines, at_most) in [(1000, 2.0), (10_000, 14.0)] {
            let ours = minutes(machines);
            findings.push(finding(
                &format!("downtime of {machines} storage servers with two parities per group of 10"),
                &format!("less than {at_most} minutes per month"),
                format!("{ours:.2} minutes per month"),
                ours < at_most,
            ));
        }
        findings.extend(self.tried.iter().map(|tried| {
            let (name, ..) = ORGANIZATIONS[tried.organization];
            let Estimate { mean, error } = tried.found;
            Finding {
                stated: String::new(),
                what: format!("downtime of {} machines, {name}: by trying as by the formula", tried.machines),
                theirs: format!("not stated; computed: {:.6} hours per month", tried.computed),
                ours: format!("tried: {mean:.6} ± {error:.6} hours per month"),
                kind: Kind::Measured,
                // A few outages determine neither the mean nor its error.
                holds: (mean > 5.0 * error).then(|| tried.found.agrees(tried.computed)),
                why: if mean > 5.0 * error { String::new() } else { "too rare to be met often in this time".into() },
            }
        }));
        findings
    }
}

fn one_server() -> f64 {
    Outages::monthly(Layout { machines: 1, parities: 0, group: None }).hours_per_month()
}

/// A measure over the rebuild time, for each organisation that has parities.
fn over_rebuild(measure: impl Fn(Layout, f64) -> f64) -> Vec<Curve> {
    let with_parities = ORGANIZATIONS.into_iter().filter(|(_, parities, _)| *parities > 0);
    let curve = |(name, parities, group): (&str, u32, Option<u32>)| {
        let layout = Layout { machines: REBUILD_MACHINES, parities, group };
        let points = REBUILD_HOURS.map(|hours| (hours, measure(layout, hours)));
        Curve { name: name.into(), points: points.into() }
    };
    with_parities.map(curve).collect()
}

fn rebuilt() -> Figure {
    let measure = |layout: Layout, hours: f64| {
        // The same share of time down as in the thesis, but a day at a time.
        let up_hours = LONG_OUTAGE_HOURS * (MONTH_HOURS - 1.0);
        let of = Outages { layout, up_hours, down_hours: LONG_OUTAGE_HOURS, rebuild_hours: Some(hours) };
        of.hours_per_month()
    };
    Figure {
        title: format!(
            "{REBUILD_MACHINES} storage servers, each down for a day every two years, and rebuilt meanwhile"
        ),
        repeats: String::new(),
        theirs: Vec::new(),
        shape: Shape::Lines,
        x: Axis { label: "time to rebuild a machine (hours)".into(), scale: Scale::Log },
        y: Axis { label: "downtime (hours per month)".into(), scale: Scale::Log },
        curves: over_rebuild(measure),
    }
}

fn lost() -> Figure {
    let measure = |layout, rebuild_hours| Losses { layout, life_hours: LIFE_HOURS, rebuild_hours }.years();
    Figure {
        title: format!("{REBUILD_MACHINES} disks of a mean life of {LIFE_HOURS} hours"),
        repeats: String::new(),
        theirs: Vec::new(),
        shape: Shape::Lines,
        x: Axis { label: "time to rebuild a disk (hours)".into(), scale: Scale::Log },
        y: Axis { label: "years from one loss of data to the next".into(), scale: Scale::Log },
        curves: over_rebuild(measure),
    }
}
