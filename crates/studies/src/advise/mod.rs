//! Advice on settings for a user's own trace: the studies' simulations with the product's defaults,
//! and with the alternatives.
//!
//! - [`Evidence`]: a trace, as each client's activity and as accesses of blocks.
//! - `roaming`: a client with a slow link: its cache on disk, the caching unit, the write-back
//!   policy, and what to hoard.
//! - `together`: the memory of each client, and whether it pays that clients serve each other.
//! - [`Advice`]: the result. A change is advised only if it is better by more than [`WORTH`], and
//!   only if the trace has enough evidence; otherwise an item says that nothing should change, or
//!   that nothing can be said.
//!
//! The recorded use is taken for the future use. The first half of the trace fills the caches; for
//! `roaming`, it is the first half of each client's part, and at most a day, which counts as work
//! near the home.

mod roaming;
mod together;

use crate::cooperative::{Blocks, blocks};
use crate::mobile::{Activity, ActivityError, Link, activity};
use roaming::Plan;
use serde::Serialize;
use std::collections::BTreeMap;
use trace::Record;

/// An improvement by no more than this part is not worth a change.
pub const WORTH: f64 = 0.02;
/// Most clients that get advice of their own: the busiest ones.
pub const CLIENT_COUNT_MAX: usize = 4;
/// The product's default block size, in bytes.
pub const BLOCK_BYTES: u64 = policy::defaults::BLOCK_BYTES as u64;

/// The links to try, with their usual names. The round-trip times are typical of such links.
pub const LINKS: [(&str, Link); 4] = [
    ("10 Mb/s", Link { bits_per_second: 10_000_000, round_trip_us: 20_000 }),
    ("2 Mb/s", Link { bits_per_second: 2_000_000, round_trip_us: 50_000 }),
    ("64 kb/s", Link { bits_per_second: 64_000, round_trip_us: 100_000 }),
    ("9.6 kb/s", Link { bits_per_second: 9600, round_trip_us: 500_000 }),
];

/// A trace, as advice needs it.
#[derive(Debug)]
pub struct Evidence {
    /// The activity of each client, by its number.
    clients: BTreeMap<u32, Activity>,
    /// The accesses of all clients.
    blocks: Blocks,
}

impl Evidence {
    /// The evidence of a trace. Fails with the trace's own error, if the records are not in the
    /// order of time, or if there are too many to count.
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

    /// Plans for the busiest clients, by their numbers.
    fn plans(&self) -> Vec<Plan<'_>> {
        let mut all: Vec<(u32, &Activity)> = self.clients.iter().map(|(client, of)| (*client, of)).collect();
        all.sort_by_key(|(client, of)| (std::cmp::Reverse(of.len()), *client));
        all.truncate(CLIENT_COUNT_MAX);
        all.sort_by_key(|(client, _)| *client);
        all.into_iter().map(|(client, of)| Plan::new(client, of)).collect()
    }
}

/// The result of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A setting other than the default is better.
    Change,
    /// No setting is better by more than [`WORTH`].
    Keep,
    /// The trace has too little evidence.
    Unknown,
}

/// The gain of a change.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// The measure; less is better.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// The value with the default.
    pub before: f64,
    /// The value as advised.
    pub after: f64,
}

impl Gain {
    fn new(measure: &str, unit: &str, before: f64, after: f64) -> Gain {
        Gain { measure: measure.into(), unit: unit.into(), before, after }
    }

    /// The part that is saved; negative if the value grows.
    pub fn part(&self) -> f64 {
        if self.before > 0.0 { 1.0 - self.after / self.before } else { 0.0 }
    }
}

/// Advice on one setting.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Item {
    /// The subject: "cache on disk", "unit", "write-back", "hoarding", "memory", "cooperative
    /// caching".
    pub subject: String,
    /// The client, by its number in the trace; `None` means all.
    pub client: Option<u32>,
    /// The link, by its name in [`LINKS`]; `None` means any.
    pub link: Option<String>,
    /// The result.
    pub verdict: Verdict,
    /// The command to type, if something should change; capitals stand for values that only the
    /// user knows.
    pub setting: Option<String>,
    /// The reason, with the figures.
    pub reason: String,
    /// The gain, if something should change or has no setting.
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

/// Advice for a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// Clients in the trace.
    pub clients: u64,
    /// Records in the trace.
    pub records: u64,
    /// The part from which on an improvement is worth a change.
    pub worth: f64,
    /// Advice on each setting.
    pub items: Vec<Item>,
}

/// How often [`advise`] reports progress.
pub fn steps(evidence: &Evidence) -> usize {
    evidence.plans().iter().map(|plan| plan.cases().len()).sum::<usize>() + together::RUNS
}

/// Computes the advice. `done` is called after each of the [`steps`].
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

/// A size as settings write it, such as `512MiB`: in the largest unit that gives a whole number.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(|| format!("{bytes}B"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// A size for users, such as `1.5 MiB`.
fn about(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let at = ((bytes.max(1).ilog2() / 10) as usize).min(units.len() - 1);
    match at {
        0 => format!("{bytes} bytes"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * at)) as f64, units[at]),
    }
}

/// A part in percent, such as `12 %`.
fn percent(part: f64) -> String {
    let part = 100.0 * part;
    if part.abs() < 10.0 { format!("{part:.1} %") } else { format!("{part:.0} %") }
}

/// A time for users, such as `3.2 s`, `4.0 min`, `1.5 h`.
fn time(us: f64) -> String {
    match us / 1e6 {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests;
