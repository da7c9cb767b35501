//! How long data are out of reach, and how rarely they are lost, by the number of parities and with
//! or without stripe groups (Dahlin, section 4.2.1).
//!
//! - [`Outages`]: machines fail and come back; what is down when more of a group are than it has
//!   parities is out of reach (figure 4-4).
//! - [`Losses`]: disks fail for good; what they had is rebuilt, or lost.
//! - [`machines`]: the same by trying, machine by machine, to check what is computed here.
//! - [`cost`]: what redundancy costs and performs (table 4-1).
//! - [`report`]: figures and findings.
//!
//! Computed as chains of how many of a group's machines are gone. Times are exponentially
//! distributed, and machines fail independently, as in the thesis.

pub mod cost;
pub mod machines;
pub mod report;

use serde::Serialize;

/// Hours of a month, of thirty days.
pub const MONTH_HOURS: f64 = 720.0;
/// Hours of a year.
pub const YEAR_HOURS: f64 = 8760.0;

const MACHINE_COUNT_MAX: u32 = 1_000_000;
/// More than any code of the product's has.
const PARITY_COUNT_MAX: u32 = 16;
const HOURS_MAX: f64 = 1e9;

/// Which machines stripe together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Layout {
    /// How many there are.
    pub machines: u32,
    /// Fragments of each stripe that can be missing.
    pub parities: u32,
    /// Machines of a stripe group, up to all of them; nothing: all stripe together. The last ones
    /// that are too few for a group are spread over the others.
    pub group: Option<u32>,
}

impl Layout {
    /// What makes no sense, by the name of what is set.
    pub fn check(&self) -> Result<(), String> {
        let fault = [
            (!(1..=MACHINE_COUNT_MAX).contains(&self.machines), "machines: 1 to 1000000"),
            (self.parities > PARITY_COUNT_MAX, "parities: 0 to 16"),
            (self.machines <= self.parities, "machines: more than parities"),
            (self.group.is_some_and(|group| group <= self.parities), "group: more machines than parities"),
            (self.group.is_some_and(|group| group > self.machines), "group: at most all machines"),
        ];
        first(&fault)
    }

    /// How many machines each group has, and how many such groups there are.
    pub fn groups(&self) -> [(u32, u32); 2] {
        let groups = self.group.map_or(1, |group| self.machines / group.max(1)).max(1);
        let (least, more) = (self.machines / groups, self.machines % groups);
        [(least, groups - more), (least + 1, more)]
    }
}

/// The first thing that is wrong.
fn first(fault: &[(bool, &str)]) -> Result<(), String> {
    fault.iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err((*what).into()))
}

fn is_time(hours: f64) -> bool {
    hours > 0.0 && hours <= HOURS_MAX
}

/// Machines that fail for a time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Outages {
    /// See [`Layout`].
    pub layout: Layout,
    /// Mean time that a machine is up, in hours.
    pub up_hours: f64,
    /// Mean time until it is back.
    pub down_hours: f64,
    /// Mean time until what a machine had is elsewhere, in hours, so that it is not missed; that
    /// goes on only while all can be read. Nothing: it is waited for.
    pub rebuild_hours: Option<f64>,
}

impl Outages {
    /// As the thesis has it: each machine is down for an hour of each month.
    pub fn monthly(layout: Layout) -> Outages {
        Outages { layout, up_hours: MONTH_HOURS - 1.0, down_hours: 1.0, rebuild_hours: None }
    }

    /// What makes no sense, by the name of what is set.
    pub fn check(&self) -> Result<(), String> {
        self.layout.check()?;
        first(&[
            (!is_time(self.up_hours), "up-hours: more than nothing, up to 1000000000"),
            (!is_time(self.down_hours), "down-hours: more than nothing, up to 1000000000"),
            (
                self.rebuild_hours.is_some_and(|hours| !is_time(hours)),
                "rebuild-hours: more than nothing, up to 1000000000",
            ),
        ])
    }

    /// Hours of a month in which some data are out of reach.
    pub fn hours_per_month(&self) -> f64 {
        let out = self.layout.groups().into_iter().fold(0.0, |out, (machines, groups)| {
            let (one, _) = self.group_out(machines);
            (0..groups).fold(out, |out: f64, _| out + one - out * one)
        });
        out * MONTH_HOURS
    }

    /// How often a group comes back of which more was missed than it has parities, times its
    /// machines: in an hour, for all groups.
    fn machines_back_per_hour(&self) -> f64 {
        let per_group = |machines: u32| {
            let (_, just_out) = self.group_out(machines);
            just_out * f64::from(self.layout.parities + 1) / self.down_hours * f64::from(machines)
        };
        let groups = self.layout.groups().into_iter().filter(|(_, groups)| *groups > 0);
        groups.map(|(machines, groups)| f64::from(groups) * per_group(machines)).sum()
    }

    /// Share of the time in which more machines of a group are missed than it has parities; and in
    /// which one more is.
    fn group_out(&self, machines: u32) -> (f64, f64) {
        let (fails, returns) = (1.0 / self.up_hours, 1.0 / self.down_hours);
        let rebuilds = self.rebuild_hours.map_or(0.0, |hours| 1.0 / hours);
        // How likely it is that so many are missed, up to a factor.
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
    /// See [`Layout`].
    pub layout: Layout,
    /// Mean life of a disk, in hours.
    pub life_hours: f64,
    /// Mean time until what it had is on others, in hours.
    pub rebuild_hours: f64,
}

impl Losses {
    /// What makes no sense, by the name of what is set.
    pub fn check(&self) -> Result<(), String> {
        self.layout.check()?;
        first(&[
            (!is_time(self.life_hours), "life-hours: more than nothing, up to 1000000000"),
            (!is_time(self.rebuild_hours), "rebuild-hours: more than nothing, up to 1000000000"),
        ])
    }

    /// Mean years from one loss of data to the next. What was lost is not there any more: its group
    /// begins anew.
    pub fn years(&self) -> f64 {
        let groups = self.layout.groups().into_iter().filter(|(_, groups)| *groups > 0);
        let per_hour: f64 = groups.map(|(machines, groups)| f64::from(groups) / self.group_hours(machines)).sum();
        1.0 / per_hour / YEAR_HOURS
    }

    /// Mean time until a group that has lost nothing has lost something, in hours.
    fn group_hours(&self, machines: u32) -> f64 {
        let (mut next, mut hours) = (0.0, 0.0);
        for missed in 0..=self.layout.parities {
            // Until one more is missed for the first time: one fails, or one is rebuilt and all
            // begins one earlier.
            let fails = f64::from(machines - missed) / self.life_hours;
            next = (1.0 + f64::from(missed) / self.rebuild_hours * next) / fails;
            hours += next;
        }
        hours
    }
}

#[cfg(test)]
mod tests;
