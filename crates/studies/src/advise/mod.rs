//! What to set, for somebody's own trace: the studies' simulations with what the product has where
//! nothing is set, and with what could be set instead.
//!
//! - [`Evidence`]: a trace, as each client's doings and as accesses of blocks.
//! - `roaming`: a client with a slow link: its cache on disk, the unit, when what was written goes
//!   home, and what to hoard.
//! - `together`: memory of each client, and whether it pays that clients serve each other.
//! - [`Advice`]: what came of it. Something is advised only where it is better by more than
//!   [`WORTH`], and only where the trace has enough to say so; otherwise an item says that nothing
//!   is to be changed, or that nothing can be said.
//!
//! What was recorded is taken for what will be done. What fills the caches is the first half of it,
//! for `roaming` of each client, and at most a day: that is taken to be done near the home.

mod roaming;
mod together;

use crate::cooperative::{Blocks, blocks};
use crate::mobile::{Activity, ActivityError, Link, activity};
use roaming::Plan;
use serde::Serialize;
use std::collections::BTreeMap;
use trace::Record;

/// What is better by no more than this part is not worth a change.
pub const WORTH: f64 = 0.02;
/// Clients that get advice of their own: those that do most.
pub const CLIENT_COUNT_MAX: usize = 4;
/// Bytes of the product's blocks, where nothing else is said.
pub const BLOCK_BYTES: u64 = policy::defaults::BLOCK_BYTES as u64;

/// Links that are tried, with what people call them. What takes the time of a round trip is typical
/// of such links.
pub const LINKS: [(&str, Link); 4] = [
    ("10 Mb/s", Link { bits_per_second: 10_000_000, round_trip_us: 20_000 }),
    ("2 Mb/s", Link { bits_per_second: 2_000_000, round_trip_us: 50_000 }),
    ("64 kb/s", Link { bits_per_second: 64_000, round_trip_us: 100_000 }),
    ("9.6 kb/s", Link { bits_per_second: 9600, round_trip_us: 500_000 }),
];

/// A trace, as advice needs it.
#[derive(Debug)]
pub struct Evidence {
    /// What each client does, by its number.
    clients: BTreeMap<u32, Activity>,
    /// What all of them do.
    blocks: Blocks,
}

impl Evidence {
    /// That of a trace. The trace's own error, or that it is not in the order of time, or of more
    /// than can be counted.
    pub fn of<E>(records: impl IntoIterator<Item = Result<Record, E>>) -> Result<Evidence, ActivityError<E>> {
        let mut clients = BTreeMap::<u32, activity::Gathering>::new();
        let mut blocks = blocks::Gathering::new(BLOCK_BYTES);
        let mut last_us = 0;
        for (record, number) in records.into_iter().zip(1..) {
            let record = record.map_err(ActivityError::Trace)?;
            if record.time_us < last_us {
                return Err(ActivityError::Unsorted(number));
            }
            last_us = record.time_us;
            let too_many = |what| ActivityError::TooMany(what, number);
            blocks.add(record).map_err(too_many)?;
            clients.entry(record.client).or_default().add(record).map_err(too_many)?;
        }
        let clients = clients.into_iter().map(|(client, gathering)| (client, gathering.end())).collect();
        Ok(Evidence { clients, blocks: blocks.end() })
    }

    /// Those that do most, by their numbers.
    fn plans(&self) -> Vec<Plan<'_>> {
        let mut all: Vec<(u32, &Activity)> = self.clients.iter().map(|(client, of)| (*client, of)).collect();
        all.sort_by_key(|(client, of)| (std::cmp::Reverse(of.len()), *client));
        all.truncate(CLIENT_COUNT_MAX);
        all.sort_by_key(|(client, _)| *client);
        all.into_iter().map(|(client, of)| Plan::new(client, of)).collect()
    }
}

/// What an item comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Something else than what is set where nothing is said is better.
    Change,
    /// Nothing is better by more than [`WORTH`].
    Keep,
    /// The trace does not say.
    Unknown,
}

/// What is gained.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// What is measured; less of it is better.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// How much it is where nothing is set.
    pub before: f64,
    /// How much as advised.
    pub after: f64,
}

impl Gain {
    fn new(measure: &str, unit: &str, before: f64, after: f64) -> Gain {
        Gain { measure: measure.into(), unit: unit.into(), before, after }
    }

    /// Which part of what it was is saved; less than 0: it is more.
    pub fn part(&self) -> f64 {
        if self.before > 0.0 { 1.0 - self.after / self.before } else { 0.0 }
    }
}

/// One thing that could be set.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Item {
    /// What it is: "cache on disk", "unit", "write-back", "hoarding", "memory", "cooperative
    /// caching".
    pub subject: String,
    /// For which client, by its number in the trace; nothing: for all.
    pub client: Option<u32>,
    /// On which link, by its name in [`LINKS`]; nothing: on any.
    pub link: Option<String>,
    /// See there.
    pub verdict: Verdict,
    /// What to type for it, if something is to be changed; capitals stand for what only the user
    /// knows.
    pub setting: Option<String>,
    /// Why, with what was found.
    pub reason: String,
    /// What it is worth, where something is to be changed or has no setting.
    pub gain: Option<Gain>,
}

impl Item {
    fn new(subject: &str, verdict: Verdict, reason: String) -> Item {
        let (client, link, setting, gain) = (None, None, None, None);
        Item { subject: subject.into(), client, link, verdict, setting, reason, gain }
    }

    fn change(subject: &str, setting: String, reason: String, gain: Gain) -> Item {
        Item { setting: Some(setting), gain: Some(gain), ..Item::new(subject, Verdict::Change, reason) }
    }
}

/// What to set.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// Clients in the trace.
    pub clients: u64,
    /// What they do.
    pub records: u64,
    /// From which part on what is found is worth a change.
    pub worth: f64,
    /// Each thing that could be set.
    pub items: Vec<Item>,
}

/// How often [`advise`] says that something is done.
pub fn steps(evidence: &Evidence) -> usize {
    evidence.plans().iter().map(|plan| plan.cases().len()).sum::<usize>() + together::RUNS
}

/// What to set. `done` is told of each of the [`steps`].
pub fn advise(evidence: &Evidence, done: impl Fn() + Sync) -> Advice {
    let mut items: Vec<Item> = evidence.plans().iter().flat_map(|plan| plan.items(&done)).collect();
    if evidence.clients.len() > CLIENT_COUNT_MAX {
        let all = evidence.clients.len();
        let reason = format!("The trace has {all} clients. This advice looks at the {CLIENT_COUNT_MAX} busiest.");
        items.push(Item::new("other clients", Verdict::Unknown, reason));
    }
    items.extend(together::items(&evidence.blocks, &done));
    let records = evidence.clients.values().map(|of| of.len() as u64).sum();
    Advice { clients: evidence.clients.len() as u64, records, worth: WORTH, items }
}

/// `512MiB`, as settings have it: in the largest unit of which it is a whole number.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes}B"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// `1.5 MiB`, for people.
fn about(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let at = ((bytes.max(1).ilog2() / 10) as usize).min(units.len() - 1);
    match at {
        0 => format!("{bytes} bytes"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * at)) as f64, units[at]),
    }
}

/// `12 %`, of a part.
fn percent(part: f64) -> String {
    let part = 100.0 * part;
    if part.abs() < 10.0 { format!("{part:.1} %") } else { format!("{part:.0} %") }
}

/// `3.2 s`, `4.0 min`, `1.5 h`.
fn time(us: f64) -> String {
    match us / 1e6 {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests;
