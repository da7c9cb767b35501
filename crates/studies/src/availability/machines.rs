//! A simulation of machines that fail, return and are rebuilt, one by one. It checks the formulas
//! of [`Outages`] and [`Losses`].

use super::{Layout, Losses, MONTH_HOURS, Outages, YEAR_HOURS};
use crate::ParameterError::{self, LongTrial, Range};
use host::{Random, SplitMix64};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Parts of a trial; their differences give the standard error.
const PARTS: u32 = 32;
/// Microseconds of an hour.
const HOUR_US: f64 = 3.6e9;
/// Longest part of a trial, in hours: within this bound its microseconds can be counted.
const PART_HOURS_MAX: f64 = 1e9;
/// All machines are up at first. The trial ignores this many mean outages of time at the start.
const WARM_UP_OUTAGES: f64 = 20.0;
/// Most failures in a trial, together with the machines that begin anew; this many take minutes.
const EVENT_COUNT_MAX: f64 = 1e9;
/// The cost of looking at a machine, as a part of the cost of its failure.
const LOOK_PART: f64 = 0.02;

/// The length of a trial.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Trial {
    /// Hours of the machines' lives.
    pub hours: f64,
    /// The same seed gives the same.
    pub seed: u64,
}

impl Trial {
    /// Checks that the trial suits these outages and does not take too long; an error names the
    /// wrong parameter. The outages must pass [`Outages::check`].
    pub fn check_outages(&self, of: &Outages) -> Result<(), ParameterError> {
        self.check(self.events_of_outages(of))
    }

    /// The same for losses, which must pass [`Losses::check`].
    pub fn check_losses(&self, of: &Losses) -> Result<(), ParameterError> {
        self.check(self.events_of_losses(of))
    }

    fn check(&self, events: f64) -> Result<(), ParameterError> {
        let most = PART_HOURS_MAX * f64::from(PARTS);
        ParameterError::first([
            (!(self.hours > 0.0 && self.hours <= most), Range("hours", "more than 0, up to 32000000000")),
            (events > EVENT_COUNT_MAX, LongTrial),
        ])
    }

    /// The expected number of events: machines fail after their time up, and return or are rebuilt;
    /// and whenever a group is back, its machines are looked at.
    fn events_of_outages(&self, of: &Outages) -> f64 {
        let hours = self.hours + f64::from(PARTS) * WARM_UP_OUTAGES * of.down_hours;
        let missed_hours = of.rebuild_hours.map_or(of.down_hours, |hours| hours.min(of.down_hours));
        let failures_per_hour = f64::from(of.layout.machines) / (of.up_hours + missed_hours);
        hours * (failures_per_hour + of.machines_back_per_hour() * LOOK_PART)
    }

    /// The expected number of events: disks fail, and after each loss all disks of the group begin
    /// anew.
    fn events_of_losses(&self, of: &Losses) -> f64 {
        let [(machines, _), (_, larger)] = of.layout.groups();
        let group = f64::from(machines + u32::from(larger > 0));
        let losses = self.hours / (of.years() * YEAR_HOURS);
        f64::from(of.layout.machines) * self.hours / of.life_hours + losses * group
    }
}

/// A result of a trial.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    fn of(parts: &[f64]) -> Estimate {
        let count = parts.len() as f64;
        let mean = parts.iter().sum::<f64>() / count;
        let square: f64 = parts.iter().map(|part| (part - mean) * (part - mean)).sum();
        Estimate { mean, error: (square / (count * (count - 1.0))).sqrt() }
    }

    /// True if the result is consistent with this value: within four standard errors.
    pub fn agrees(&self, with: f64) -> bool {
        (self.mean - with).abs() <= 4.0 * self.error
    }
}

/// Hours of a month in which some data are unavailable.
pub fn hours_per_month(of: &Outages, trial: &Trial) -> Estimate {
    let part_hours = trial.hours / f64::from(PARTS);
    let warm_up_hours = WARM_UP_OUTAGES * of.down_hours;
    let parts = (0..PARTS).map(|part| {
        let mut machines = Machines::new(&of.layout, Times::of_outages(of), seed_of(trial, part));
        machines.run(warm_up_hours);
        machines.out_us = 0;
        machines.run(warm_up_hours + part_hours);
        machines.out_us as f64 / HOUR_US / part_hours * MONTH_HOURS
    });
    Estimate::of(&parts.collect::<Vec<_>>())
}

/// Losses of data per year.
pub fn losses_per_year(of: &Losses, trial: &Trial) -> Estimate {
    let part_hours = trial.hours / f64::from(PARTS);
    let parts = (0..PARTS).map(|part| {
        let mut machines = Machines::new(&of.layout, Times::of_losses(of), seed_of(trial, part));
        machines.run(part_hours);
        machines.losses as f64 / part_hours * YEAR_HOURS
    });
    Estimate::of(&parts.collect::<Vec<_>>())
}

fn seed_of(trial: &Trial, part: u32) -> u64 {
    SplitMix64::new(trial.seed.wrapping_add(u64::from(part) << 32)).next_u64()
}

/// Mean times, in hours; `None` for an event that never happens.
struct Times {
    up: f64,
    down: Option<f64>,
    rebuild: Option<f64>,
}

impl Times {
    fn of_outages(of: &Outages) -> Times {
        Times { up: of.up_hours, down: Some(of.down_hours), rebuild: of.rebuild_hours }
    }

    fn of_losses(of: &Losses) -> Times {
        Times { up: of.life_hours, down: None, rebuild: Some(of.rebuild_hours) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fails,
    Returns,
    Rebuilt,
}

/// One member of a group. After a rebuild, a spare is the member.
struct Machine {
    group: u32,
    is_up: bool,
    /// The member's number; events with another number are obsolete.
    now: u32,
    /// The same for its rebuild.
    rebuilding: u32,
}

struct Machines {
    times: Times,
    parities: u32,
    random: SplitMix64,
    machines: Vec<Machine>,
    /// By group, its first machine, the one after its last, and how many are missing.
    groups: Vec<(u32, u32, u32)>,
    /// Future events: the time, the machine, and its number.
    events: BinaryHeap<Reverse<(u64, u32, Event, u32)>>,
    time_us: u64,
    /// Groups with too many missing machines.
    out: u32,
    /// Time with at least one such group.
    out_us: u64,
    losses: u64,
}

impl Machines {
    fn new(layout: &Layout, times: Times, seed: u64) -> Machines {
        let (events, random) = (BinaryHeap::new(), SplitMix64::new(seed));
        let (machines, groups, parities) = (Vec::new(), Vec::new(), layout.parities);
        let mut all =
            Machines { times, parities, random, machines, groups, events, time_us: 0, out: 0, out_us: 0, losses: 0 };
        for (size, groups) in layout.groups() {
            for _ in 0..groups {
                let (group, first) = (all.groups.len() as u32, all.machines.len() as u32);
                all.groups.push((first, first + size, 0));
                let machine = || Machine { group, is_up: true, now: 0, rebuilding: 0 };
                all.machines.extend((0..size).map(|_| machine()));
            }
        }
        (0..all.machines.len() as u32).for_each(|machine| all.schedule(machine, Event::Fails));
        all
    }

    /// Simulates until this time.
    fn run(&mut self, hours: f64) {
        let end_us = (hours * HOUR_US) as u64;
        while let Some(&Reverse((at_us, machine, event, number))) = self.events.peek()
            && at_us <= end_us
        {
            self.events.pop();
            self.pass(at_us);
            let Machine { now, rebuilding, .. } = self.machines[machine as usize];
            match event {
                Event::Fails if number == now => self.fails(machine),
                Event::Returns if number == now => self.is_back(machine),
                Event::Rebuilt if number == rebuilding => self.is_back(machine),
                _ => {}
            }
        }
        self.pass(end_us);
    }

    fn pass(&mut self, to_us: u64) {
        self.out_us += if self.out > 0 { to_us - self.time_us } else { 0 };
        self.time_us = to_us;
    }

    fn fails(&mut self, machine: u32) {
        let of = &mut self.machines[machine as usize];
        (of.is_up, of.now, of.rebuilding) = (false, of.now.wrapping_add(1), of.rebuilding.wrapping_add(1));
        let (first, end, missed) = &mut self.groups[of.group as usize];
        *missed += 1;
        let (group, missed) = (*first..*end, *missed);
        if self.times.down.is_none() && missed > self.parities {
            self.losses += 1;
            group.for_each(|machine| self.begin(machine));
            return;
        }
        self.schedule(machine, Event::Returns);
        if missed <= self.parities {
            self.schedule(machine, Event::Rebuilt);
        } else if missed == self.parities + 1 {
            self.out += 1;
            // Nothing can be rebuilt while too many are missing.
            group.for_each(|machine| {
                let rebuilding = &mut self.machines[machine as usize].rebuilding;
                *rebuilding = rebuilding.wrapping_add(1);
            });
        }
    }

    /// The machine is up again, or a spare has taken its place.
    fn is_back(&mut self, machine: u32) {
        let (first, end, missed) = self.groups[self.machines[machine as usize].group as usize];
        self.begin(machine);
        if missed == self.parities + 1 {
            self.out -= 1;
            // Rebuilds resume, without memory of their progress.
            for machine in first..end {
                if !self.machines[machine as usize].is_up {
                    self.schedule(machine, Event::Rebuilt);
                }
            }
        }
    }

    fn begin(&mut self, machine: u32) {
        let of = &mut self.machines[machine as usize];
        if !of.is_up {
            of.is_up = true;
            self.groups[of.group as usize].2 -= 1;
        }
        (of.now, of.rebuilding) = (of.now.wrapping_add(1), of.rebuilding.wrapping_add(1));
        self.schedule(machine, Event::Fails);
    }

    fn schedule(&mut self, machine: u32, event: Event) {
        let Machine { now, rebuilding, .. } = self.machines[machine as usize];
        let (mean, number) = match event {
            Event::Fails => (Some(self.times.up), now),
            Event::Returns => (self.times.down, now),
            Event::Rebuilt => (self.times.rebuild, rebuilding),
        };
        let Some(mean) = mean else { return };
        // Above zero, and at most one.
        let chance = ((self.random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let after_us = (-libm::log(chance) * mean * HOUR_US) as u64;
        self.events.push(Reverse((self.time_us.saturating_add(after_us), machine, event, number)));
    }
}
