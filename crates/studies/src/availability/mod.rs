//! How long data are unavailable, and how rarely they are lost, by the number of parities and with
//! or without stripe groups (Dahlin, section 4.2.1).
//!
//! - [`Outages`]: machines fail and return. Data are unavailable while more machines of a group are
//!   down than it has parities (figure 4-4).
//! - [`Losses`]: disks fail for good, and their data are rebuilt or lost.
//! - [`machines`]: the same by simulation, machine by machine, to check these formulas.
//! - [`cost`]: cost and performance of redundancy (table 4-1).
//! - [`report`]: figures and findings.
//!
//! The formulas are Markov chains over the number of a group's missing machines. Times are
//! exponentially distributed, and machines fail independently, as in the thesis.

pub mod cost;
pub mod machines;
pub mod report;

use crate::ParameterError::{self, Bounds, Range};
use serde::Serialize;

/// Hours of a month, of thirty days.
pub const MONTH_HOURS: f64 = 720.0;
/// Hours of a year.
pub const YEAR_HOURS: f64 = 8760.0;

const MACHINE_COUNT_MAX: u32 = 1_000_000;
/// Most parities: more than any of the product's codes has.
const PARITY_COUNT_MAX: u32 = 16;
const HOURS_MAX: f64 = 1e9;

/// The machines and their stripe groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Layout {
    /// Number of machines.
    pub machines: u32,
    /// Fragments of each stripe that may be missing.
    pub parities: u32,
    /// Machines of a stripe group, up to all of them; `None` means that all stripe together.
    /// Remaining machines that are too few for a group are spread over the others.
    pub group: Option<u32>,
}

impl Layout {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        ParameterError::first([
            (!(1..=MACHINE_COUNT_MAX).contains(&self.machines), Bounds("machines", 1, MACHINE_COUNT_MAX.into())),
            (self.parities > PARITY_COUNT_MAX, Bounds("parities", 0, PARITY_COUNT_MAX.into())),
            (self.machines <= self.parities, Range("machines", "more than parities")),
            (self.group.is_some_and(|group| group <= self.parities), Range("group", "more machines than parities")),
            (self.group.is_some_and(|group| group > self.machines), Range("group", "at most all machines")),
        ])
    }

    /// How many machines a group has, and how many groups have this size, for both sizes.
    pub fn groups(&self) -> [(u32, u32); 2] {
        let groups = self.group.map_or(1, |group| self.machines / group.max(1)).max(1);
        let (least, more) = (self.machines / groups, self.machines % groups);
        [(least, groups - more), (least + 1, more)]
    }
}

fn is_time(hours: f64) -> bool {
    hours > 0.0 && hours <= HOURS_MAX
}

/// Machines that fail for a time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Outages {
    /// The machines and groups.
    pub layout: Layout,
    /// Mean time that a machine is up, in hours.
    pub up_hours: f64,
    /// Mean time until a machine is back, in hours.
    pub down_hours: f64,
    /// Mean time until a missing machine's data are elsewhere, in hours; a rebuild proceeds only
    /// while all data can be read. `None` means that the group waits for the machine.
    pub rebuild_hours: Option<f64>,
}

impl Outages {
    /// As in the thesis: each machine is down for an hour of each month.
    pub fn monthly(layout: Layout) -> Outages {
        Outages { layout, up_hours: MONTH_HOURS - 1.0, down_hours: 1.0, rebuild_hours: None }
    }

    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        self.layout.check()?;
        ParameterError::first([
            (!is_time(self.up_hours), Range("up-hours", "more than 0, up to 1000000000")),
            (!is_time(self.down_hours), Range("down-hours", "more than 0, up to 1000000000")),
            (
                self.rebuild_hours.is_some_and(|hours| !is_time(hours)),
                Range("rebuild-hours", "more than 0, up to 1000000000"),
            ),
        ])
    }

    /// Hours of a month in which some data are unavailable.
    pub fn hours_per_month(&self) -> f64 {
        let out = self.layout.groups().into_iter().fold(0.0, |out, (machines, groups)| {
            let (one, _) = self.group_out(machines);
            (0..groups).fold(out, |out: f64, _| out + one - out * one)
        });
        out * MONTH_HOURS
    }

    /// How often per hour a group with too many missing machines returns, times its machines; for
    /// all groups.
    fn machines_back_per_hour(&self) -> f64 {
        let per_group = |machines: u32| {
            let (_, just_out) = self.group_out(machines);
            just_out * f64::from(self.layout.parities + 1) / self.down_hours * f64::from(machines)
        };
        let groups = self.layout.groups().into_iter().filter(|(_, groups)| *groups > 0);
        groups.map(|(machines, groups)| f64::from(groups) * per_group(machines)).sum()
    }

    /// The share of the time in which more machines of a group are missing than it has parities;
    /// and in which exactly one more is.
    fn group_out(&self, machines: u32) -> (f64, f64) {
        let (fails, returns) = (1.0 / self.up_hours, 1.0 / self.down_hours);
        let rebuilds = self.rebuild_hours.map_or(0.0, |hours| 1.0 / hours);
        // The probability that this many are missing, up to a factor.
        let (mut weight, mut up, mut out, mut just_out) = (1.0, 1.0, 0.0, 0.0);
        for missed in 1..=machines {
            let can_rebuild = missed <= self.layout.parities;
            let fewer = f64::from(missed) * (returns + if can_rebuild { rebuilds } else { 0.0 });
            weight *= f64::from(machines - missed + 1) * fails / fewer;
            *(if can_rebuild { &mut up } else { &mut out }) += weight;
            just_out = if missed == self.layout.parities + 1 { weight } else { just_out };
            if weight > 1e200 {
                [&mut weight, &mut up, &mut out, &mut just_out].into_iter().for_each(|sum| *sum /= 1e200);
            }
        }
        (out / (up + out), just_out / (up + out))
    }
}

/// Disks that fail for good.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Losses {
    /// The machines and groups.
    pub layout: Layout,
    /// Mean life of a disk, in hours.
    pub life_hours: f64,
    /// Mean time until its data are on other disks, in hours.
    pub rebuild_hours: f64,
}

impl Losses {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        self.layout.check()?;
        ParameterError::first([
            (!is_time(self.life_hours), Range("life-hours", "more than 0, up to 1000000000")),
            (!is_time(self.rebuild_hours), Range("rebuild-hours", "more than 0, up to 1000000000")),
        ])
    }

    /// Mean years from one loss of data to the next. After a loss, its group begins anew.
    pub fn years(&self) -> f64 {
        let groups = self.layout.groups().into_iter().filter(|(_, groups)| *groups > 0);
        let per_hour: f64 = groups.map(|(machines, groups)| f64::from(groups) / self.group_hours(machines)).sum();
        1.0 / per_hour / YEAR_HOURS
    }

    /// Mean time until a new group loses data, in hours.
    fn group_hours(&self, machines: u32) -> f64 {
        let (mut next, mut hours) = (0.0, 0.0);
        for missed in 0..=self.layout.parities {
            // The time until one more is missing for the first time: one fails, or one is rebuilt
            // and the chain goes one back.
            let fails = f64::from(machines - missed) / self.life_hours;
            next = (1.0 + f64::from(missed) / self.rebuild_hours * next) / fails;
            hours += next;
        }
        hours
    }
}

#[cfg(test)]
mod tests;
