//! A client with a slow link, on a trace (Froese and Bunt): what its user waits for, what waits to
//! go home and how long, and how much each delays the other.
//!
//! - `activity`: a trace as what one user does; `cache`: the cached units; `log`: what is not home
//!   yet; `line`: the link, where time passes; `turns`: what uses it next.
//! - [`study`]: the figures of the paper; [`findings`]: its statements about them, beside our
//!   results.
//!
//! The decisions are the product's: `policy::write_back` decides how long a change waits before it
//! goes home, and in which pieces; `policy::lottery`, by the product's rules, which side wins;
//! `policy::replacement` what leaves the cache; `policy::unit` what is fetched whole. As in section
//! 4.3, the client is in the office first, and caches everything it uses, as files. Then its link
//! is slow. Reads wait for missing data. Writes wait for nothing; the written bytes are then
//! cached, but not the rest of their unit. Changes that are not home yet are kept beside the cache,
//! and can be read. Files that do not fit into the cache are not kept, and reads of them fetch the
//! data each time.

pub(crate) mod activity;
mod cache;
pub mod findings;
mod line;
mod log;
pub mod study;
mod turns;
mod why;

use crate::ParameterError::{self, Bounds, Range};
pub use activity::{Activity, ActivityError};
use cache::{Cache, Key, Units};
use line::Line;
pub use line::Link;
use log::{Log, PaperLog, ProductLog, Written};
use policy::defaults::ROAMING_CACHE_BYTES;
use policy::lottery::TicketClass;
use policy::replacement::Replacement;
use policy::write_back::{DELAY, IDLE_TIME, TICKETS, Terms};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use trace::Deed;
use turns::Sharing;

/// The unit of caching, once the link is slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Whole files.
    File,
    /// Blocks.
    Block,
    /// The whole file if it can be fetched in some seconds, and otherwise blocks.
    Auto,
}

/// When changes go home (section 4.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBack {
    /// Not while the link is slow.
    Never,
    /// After the link was idle.
    Idle,
    /// When they win the lottery.
    Lottery,
    /// When they are old.
    Delayed,
    /// The same, but they stop for a user who waits. The product's policy never stops, and only
    /// delays prefetches: here it is the same as its `Lottery`.
    Preemptive,
}

impl WriteBack {
    /// All policies.
    pub const ALL: [WriteBack; 5] =
        [WriteBack::Idle, WriteBack::Lottery, WriteBack::Delayed, WriteBack::Preemptive, WriteBack::Never];

    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            WriteBack::Never => "never",
            WriteBack::Idle => "idle",
            WriteBack::Lottery => "lottery",
            WriteBack::Delayed => "delayed",
            WriteBack::Preemptive => "preemptive",
        }
    }
}

/// The rules besides the policy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// A transfer is a unit, or an entry of the log. Each write is logged anew, and waiting entries
    /// of the same bytes are cancelled. Only with the lottery can changes go home while the user
    /// waits, and even twice in a row.
    Paper,
    /// A transfer is a piece of what the link carries in a moment, and lots are drawn for each. The
    /// product's own log holds the written bytes. A change that waits for an idle link goes after
    /// some minutes at the latest.
    Product,
}

/// What the paper's log holds of a write. The product's log holds the written bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Logged {
    /// The written bytes, as section 4.3 says.
    Writes,
    /// The whole file or block. Only this lets blocks make the log smaller, as section 5.3 says
    /// they do.
    Units,
}

/// The parameters of section 4.6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Tuning {
    /// I: idle time after which the link counts as idle.
    pub idle_us: u64,
    /// A: age after which a change counts as old.
    pub age_us: u64,
    /// R: tickets of the user's fetches in the lottery.
    pub read_tickets: u32,
    /// W: tickets of what goes home.
    pub write_tickets: u32,
}

impl Tuning {
    /// The product's.
    pub const PRODUCT: Tuning = Tuning {
        idle_us: IDLE_TIME.as_micros() as u64,
        age_us: DELAY.as_micros() as u64,
        read_tickets: TICKETS[0].tickets,
        write_tickets: TICKETS[2].tickets,
    };
    /// The paper's.
    pub const PAPER: Tuning =
        Tuning { idle_us: 100_000, age_us: 15 * 60 * 1_000_000, read_tickets: 11, write_tickets: 1 };
}

/// The parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Parameters {
    /// Size of the cache.
    pub cache_bytes: u64,
    /// Size of a block.
    pub block_bytes: u64,
    /// The slow link.
    pub link: Link,
    /// Time from the beginning of the trace in which the client is in the office.
    pub hoard_us: u64,
    /// The unit of caching.
    pub unit: Unit,
    /// The replacement policy.
    #[serde(serialize_with = "name")]
    pub replacement: Replacement,
    /// When changes go home.
    pub write_back: WriteBack,
    /// The parameters of that.
    pub tuning: Tuning,
    /// The rules.
    pub rules: Rules,
    /// What the log holds by the paper's rules.
    pub logged: Logged,
    /// The same seed gives the same figures.
    pub seed: u64,
}

fn name<S: Serializer>(replacement: &Replacement, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(replacement.name())
}

const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;

impl Default for Parameters {
    /// As the product does it, on a modem.
    fn default() -> Parameters {
        Parameters {
            cache_bytes: ROAMING_CACHE_BYTES,
            unit: Unit::Auto,
            replacement: Replacement::default(),
            write_back: WriteBack::Lottery,
            tuning: Tuning::PRODUCT,
            rules: Rules::Product,
            ..Parameters::PAPER
        }
    }
}

const BLOCK_COUNT_MAX: u64 = 1 << 24;

impl Parameters {
    /// As in the paper, with nothing going home.
    pub const PAPER: Parameters = Parameters {
        cache_bytes: 10 << 20,
        block_bytes: 4096,
        link: Link::MODEM,
        hoard_us: DAY_US,
        unit: Unit::File,
        replacement: Replacement::Lru,
        write_back: WriteBack::Never,
        tuning: Tuning::PAPER,
        rules: Rules::Paper,
        logged: Logged::Writes,
        seed: 1,
    };

    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        let Tuning { idle_us, age_us, read_tickets, write_tickets } = self.tuning;
        let tickets = 1..=1000;
        ParameterError::first([
            (!(512..=1 << 20).contains(&self.block_bytes), Range("block", "512 to 1048576 bytes")),
            (self.cache_bytes < self.block_bytes, Range("cache", "at least a block")),
            (self.cache_bytes / self.block_bytes.max(1) > BLOCK_COUNT_MAX, Range("cache", "up to 16777216 blocks")),
            (!(1..=1_000_000_000_000).contains(&self.link.bits_per_second), Range("bandwidth", "1 b/s to 1 Tb/s")),
            (self.link.round_trip_us > 3_600_000_000, Range("latency", "up to an hour")),
            (!(1000..=DAY_US).contains(&idle_us), Range("idle", "1 ms to a day")),
            (age_us > 365 * DAY_US, Range("age", "up to 365 days")),
            (!tickets.contains(&read_tickets), Bounds("read-tickets", 1, 1000)),
            (!tickets.contains(&write_tickets), Bounds("write-tickets", 1, 1000)),
        ])
    }

    /// The same with the office's link, where every write is home at once.
    fn strong(&self) -> Parameters {
        Parameters { link: Link::STRONG, write_back: WriteBack::Never, tuning: Tuning::PAPER, ..*self }
    }

    /// These parameters for [`turns`].
    fn scheme(&self) -> (Option<Terms>, Sharing) {
        let Tuning { idle_us, age_us, read_tickets, write_tickets } = self.tuning;
        let [idle, age] = [idle_us, age_us].map(std::time::Duration::from_micros);
        let paper = Terms { idle, ..Terms::AT_ONCE };
        match self.rules {
            Rules::Paper => match self.write_back {
                WriteBack::Never => (None, Sharing::Ends),
                WriteBack::Idle => (Some(paper), Sharing::Ends),
                WriteBack::Lottery => (Some(paper), Sharing::Draws([read_tickets, write_tickets])),
                WriteBack::Delayed => (Some(Terms { age, ..paper }), Sharing::Ends),
                WriteBack::Preemptive => (Some(Terms { age, ..paper }), Sharing::Stops),
            },
            Rules::Product => {
                let terms = match self.write_back {
                    WriteBack::Never => None,
                    WriteBack::Idle => Some(Terms { idle, ..Terms::WHEN_IDLE }),
                    WriteBack::Lottery | WriteBack::Preemptive => Some(Terms::AT_ONCE),
                    WriteBack::Delayed => Some(Terms::delayed(age)),
                };
                let [demand, _, replay] = TICKETS;
                let classes =
                    [TicketClass { tickets: read_tickets, ..demand }, TicketClass { tickets: write_tickets, ..replay }];
                (terms, Sharing::DrawsAmongWaiting(classes))
            }
        }
    }
}

/// The result, from when the link became slow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// Reads.
    pub reads: u64,
    /// Reads that waited.
    pub misses: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes cached when the link became slow.
    pub hoarded_bytes: u64,
    /// Time of the trace if the user never waits.
    pub span_us: u64,
    /// The same without pauses of more than 15 minutes, in which the user is away (section 4.2).
    pub active_us: u64,
    /// Time that the user waits.
    pub stall_us: u64,
    /// Of that: waits for what goes home.
    pub interference_us: u64,
    /// Time that the user would wait with the office's link.
    pub strong_stall_us: u64,
    /// Bytes logged, counted each time.
    pub logged_bytes: u64,
    /// Of those: bytes that need not be sent, because they were written again or removed.
    pub cancelled_bytes: u64,
    /// Of those: bytes that are home.
    pub sent_bytes: u64,
    /// Of those: bytes that wait at the end.
    pub left_bytes: u64,
    /// The most bytes that waited at once.
    pub log_bytes_max: u64,
    /// Number of changes that went home.
    pub sent_count: u64,
    /// Mean wait of a change, from its write (by the product's rules, its first write) until home.
    pub reintegration_mean_us: Option<u64>,
    /// The longest such wait.
    pub reintegration_max_us: u64,
}

impl Outcome {
    /// The ratio of the total time to that with the office's link (section 4.4): 1.08 is 8 % more.
    /// `None` if it takes no time.
    pub fn time_expansion(&self) -> Option<f64> {
        ratio(self.span_us.saturating_add(self.stall_us), self.span_us.saturating_add(self.strong_stall_us))
    }

    /// The same for the time at work, without pauses.
    pub fn time_expansion_at_work(&self) -> Option<f64> {
        ratio(self.active_us.saturating_add(self.stall_us), self.active_us.saturating_add(self.strong_stall_us))
    }

    /// The part of the reads that waits.
    pub fn miss_rate(&self) -> Option<f64> {
        ratio(self.misses, self.reads)
    }

    /// The part of the time that is spent waiting for what goes home.
    pub fn interference(&self) -> Option<f64> {
        ratio(self.interference_us, self.span_us.saturating_add(self.stall_us))
    }

    /// The same for the time at work, without pauses.
    pub fn interference_at_work(&self) -> Option<f64> {
        ratio(self.interference_us, self.active_us.saturating_add(self.stall_us))
    }
}

fn ratio(one: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| one as f64 / of as f64)
}

/// Simulates one client. The parameters must pass [`check`](Parameters::check).
pub fn simulate(activity: &Activity, parameters: &Parameters) -> Outcome {
    Outcome { strong_stall_us: strong_stall_us(activity, &parameters.strong()), ..simulate_weak(activity, parameters) }
}

/// The same, but without a run for the office's link: as if the user never waited there.
pub(crate) fn simulate_weak(activity: &Activity, parameters: &Parameters) -> Outcome {
    let (outcome, _) = Client::new(activity, parameters, false).run();
    let (span_us, active_us) = activity.times_us(parameters.hoard_us);
    Outcome { span_us, active_us, ..outcome }
}

/// Time that the user waits with the office's link, in microseconds; see [`Parameters::strong`].
fn strong_stall_us(activity: &Activity, strong: &Parameters) -> u64 {
    Client::new(activity, strong, true).run().0.stall_us
}

/// Time that reads of each file are waited for, in microseconds, by the file's number.
pub(crate) fn waits_us(activity: &Activity, parameters: &Parameters) -> Vec<u64> {
    Client::new(activity, parameters, false).run().1
}

struct Client<'a> {
    activity: &'a Activity,
    of: &'a Parameters,
    /// The whole trace is in the office, where writes are home at once.
    is_strong: bool,
    units: Units,
    cache: Cache,
    line: Line<'a>,
    /// Units that were partly written while they were not cached: the rest is still missing.
    parts: BTreeSet<Key>,
    /// The present sizes of files.
    sizes: Vec<u64>,
    /// Time that reads of each file were waited for.
    waits_us: Vec<u64>,
    outcome: Outcome,
}

impl<'a> Client<'a> {
    fn new(activity: &'a Activity, of: &'a Parameters, is_strong: bool) -> Client<'a> {
        let units = Units::new(of, activity.files.iter().map(|file| file.most_bytes));
        let log: Box<dyn Log> = match of.rules {
            Rules::Paper => Box::new(PaperLog::new(of.logged, units.clone())),
            Rules::Product => Box::new(ProductLog::new(units.clone())),
        };
        let sizes = activity.files.iter().map(|file| file.had_bytes).collect();
        let (cache, line, parts) = (Cache::new(of), Line::new(of, log), BTreeSet::new());
        let (waits_us, outcome) = (vec![0; activity.files.len()], Outcome::default());
        Client { activity, of, is_strong, units, cache, line, parts, sizes, waits_us, outcome }
    }

    /// The result, and the time that each file was waited for.
    fn run(mut self) -> (Outcome, Vec<u64>) {
        let acts = &self.activity.acts;
        let (office, away) = acts.split_at(acts.partition_point(|act| act.time_us < self.of.hoard_us));
        let whole = self.units.whole();
        let units = std::mem::replace(&mut self.units, whole);
        for act in office {
            match act.deed {
                Deed::Read { offset, len } => drop(self.look(act.file, offset, len)),
                Deed::Write { offset, len } => drop(self.change(act.file, offset, len, true)),
                Deed::Delete => self.cache.forget(act.file),
            }
        }
        self.outcome.hoarded_bytes = self.cache.bytes();
        self.cache = self.cache.split(&units);
        self.units = units;
        for act in away {
            let now_us = act.time_us.saturating_add(self.outcome.stall_us);
            self.line.run_until(now_us);
            match act.deed {
                Deed::Read { offset, len } => self.read(act.file, offset, len, now_us),
                Deed::Write { offset, len } => self.write(act.file, offset, len, now_us),
                Deed::Delete => self.delete(act.file, now_us),
            }
        }
        let (counts, sent) = (self.line.log.counts(), self.line.sent);
        let outcome = Outcome {
            logged_bytes: counts.logged_bytes,
            cancelled_bytes: counts.cancelled_bytes,
            left_bytes: counts.waiting_bytes,
            sent_bytes: sent.bytes,
            sent_count: sent.count,
            reintegration_mean_us: sent.waited_us.checked_div(sent.count.into()).map(|mean| mean as u64),
            reintegration_max_us: sent.waited_max_us,
            ..self.outcome
        };
        (outcome, self.waits_us)
    }

    fn read(&mut self, file: u32, offset: u64, len: u64, now_us: u64) {
        self.outcome.reads += 1;
        let missing = self.look(file, offset, len);
        if missing.is_empty() {
            return;
        }
        let (until_us, interference_us) = self.line.fetch(now_us, &missing);
        let outcome = &mut self.outcome;
        outcome.misses += 1;
        outcome.fetched_bytes = missing.iter().fold(outcome.fetched_bytes, |all, bytes| all.saturating_add(*bytes));
        outcome.stall_us = outcome.stall_us.saturating_add(until_us - now_us);
        self.waits_us[file as usize] = self.waits_us[file as usize].saturating_add(until_us - now_us);
        outcome.interference_us = outcome.interference_us.saturating_add(interference_us);
    }

    fn write(&mut self, file: u32, offset: u64, len: u64, now_us: u64) {
        self.outcome.writes += 1;
        let (before, size) = self.change(file, offset, len, false);
        if self.is_strong {
            return;
        }
        let makes = before == 0 && self.activity.files[file as usize].is_made;
        self.line.log.write(&Written { file, offset, len, sizes: (before, size), makes, now_us });
        self.outcome.log_bytes_max = self.outcome.log_bytes_max.max(self.line.log.counts().waiting_bytes);
        self.line.logged(now_us);
    }

    fn delete(&mut self, file: u32, now_us: u64) {
        self.cache.forget(file);
        if !self.is_strong {
            self.line.log.delete(file, now_us);
            self.line.logged(now_us);
        }
    }

    /// The missing parts of these bytes, as transfers. They are cached from then on, if they fit.
    fn look(&mut self, file: u32, offset: u64, len: u64) -> Vec<u64> {
        let size = self.sizes[file as usize];
        let mut missing = Vec::new();
        for key in self.units.of(file, offset, len) {
            if self.cache.touch(key) {
                continue;
            }
            let bytes = self.units.bytes(key, size);
            let fits = bytes <= self.cache.capacity();
            if !self.waits_whole(key) {
                missing.push(if fits { bytes } else { len });
            }
            if fits {
                self.parts.remove(&key);
            }
            self.cache.put(key, bytes);
        }
        missing
    }

    /// True if a unit can be read completely from what is not home yet.
    fn waits_whole(&self, key: Key) -> bool {
        self.line.log.holds(key) && !self.parts.contains(&key)
    }

    /// The size of a file before a write, and after it. Units that are then complete are cached, if
    /// they fit; in the office every used unit is.
    fn change(&mut self, file: u32, offset: u64, len: u64, in_the_office: bool) -> (u64, u64) {
        let (before, end) = (self.sizes[file as usize], offset.saturating_add(len));
        let size = before.max(end);
        self.sizes[file as usize] = size;
        for key in self.units.of(file, offset, len) {
            let (start, had) = (self.units.range(key).start, self.units.bytes(key, before));
            let is_overwritten = had == 0 || (offset <= start && end >= start + had);
            if in_the_office || is_overwritten || self.cache.touch(key) || self.waits_whole(key) {
                self.parts.remove(&key);
                self.cache.put(key, self.units.bytes(key, size));
            } else {
                self.parts.insert(key);
            }
        }
        (before, size)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod study_tests;
#[cfg(test)]
mod tests;
