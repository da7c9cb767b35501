//! A client with a slow link, on a trace (Froese and Bunt): what its user waits for, what waits to
//! go home and for how long, and how much the one hinders the other.
//!
//! - `activity`: a trace as what one user does; `cache`: what the client has; `log`: what is not
//!   home yet; `line`: the link, where time passes; `turns`: who uses it next.
//! - [`study`]: the figures of the paper; [`findings`]: what it says of them, beside what is found
//!   here.
//!
//! For how long something waits before it goes home, and in which pieces, `policy::write_back`
//! says; who wins, by the product's rules, `policy::lottery`; what goes from the cache,
//! `policy::replacement`; what is fetched whole, `policy::unit`. As in section 4.3: the client is
//! in the office first, and caches whatever it uses, as files. Then its link is slow. Reads wait
//! for what is not there; writes wait for nothing, and what they write is there, but not what else
//! the same unit has. What is not home yet is kept beside the cache, and can be read. Files that do
//! not fit into the cache are not kept, and what is read of them is fetched each time.

pub(crate) mod activity;
mod cache;
pub mod findings;
mod line;
mod log;
pub mod study;
mod turns;
mod why;

pub use activity::{Activity, ActivityError};
use cache::{Cache, Key, Units};
use line::Line;
pub use line::Link;
use log::{Log, PaperLog, ProductLog, Written};
use policy::defaults::ROAMING_CACHE_BYTES;
use policy::lottery::Class;
use policy::replacement::Replacement;
use policy::write_back::{DELAY, IDLE_TIME, TICKETS, Terms};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;
use trace::Deed;
use turns::Sharing;

/// What is cached, once the link is slow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// All of a file.
    File,
    /// Blocks.
    Block,
    /// All of a file if that is fetched in some seconds, and otherwise blocks.
    Auto,
}

/// When what was written goes home (section 4.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBack {
    /// Not while the link is slow.
    Never,
    /// When the link was idle.
    Idle,
    /// When it wins.
    Lottery,
    /// When it is old.
    Delayed,
    /// The same, but it stops for whoever waits. The product's stops for nobody, and only hinders
    /// what is fetched ahead: here it is as its `Lottery`.
    Preemptive,
}

impl WriteBack {
    /// All of them.
    pub const ALL: [WriteBack; 5] =
        [WriteBack::Idle, WriteBack::Lottery, WriteBack::Delayed, WriteBack::Preemptive, WriteBack::Never];

    /// What people call it.
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

/// Whose rules there are besides the policy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// What goes over the link is a unit, or an entry of the log. What is written is logged anew,
    /// and what waited of the same is cancelled. Only the lottery lets what goes home have its turn
    /// while somebody waits, and can do so twice in a row.
    Paper,
    /// What goes over the link is a piece of what it carries in a moment, lots are drawn for each,
    /// and what is logged are the bytes that were written, in the product's own log. What was to
    /// wait for an idle link goes after some minutes at the latest.
    Product,
}

/// What the paper's log holds of a write. The product's log holds the bytes that were written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Logged {
    /// The bytes that were written, as section 4.3 says.
    Writes,
    /// All of the file or block that was written to. Only so can blocks make the log smaller, as
    /// section 5.3 says that they do.
    Units,
}

/// The parameters of section 4.6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Tuning {
    /// I: the link is idle after so long.
    pub idle_us: u64,
    /// A: something is old after so long.
    pub age_us: u64,
    /// R: what whoever waits for something holds in the lottery.
    pub read_tickets: u32,
    /// W: what goes home holds.
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

/// What is set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Parameters {
    /// What of files may be cached.
    pub cache_bytes: u64,
    /// What makes a block.
    pub block_bytes: u64,
    /// The slow link.
    pub link: Link,
    /// For so long from the beginning of the trace, the client is in the office.
    pub hoard_us: u64,
    /// See there.
    pub unit: Unit,
    /// See there.
    #[serde(serialize_with = "name")]
    pub replacement: Replacement,
    /// See there.
    pub write_back: WriteBack,
    /// See there.
    pub tuning: Tuning,
    /// See there.
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

    /// What makes no sense, by the name of what is set.
    pub fn check(&self) -> Result<(), String> {
        let Tuning { idle_us, age_us, read_tickets, write_tickets } = self.tuning;
        let tickets = 1..=1000;
        let fault = [
            (!(512..=1 << 20).contains(&self.block_bytes), "block: 512 to 1048576 bytes"),
            (self.cache_bytes < self.block_bytes, "cache: at least a block"),
            (self.cache_bytes / self.block_bytes.max(1) > BLOCK_COUNT_MAX, "cache: up to 16777216 blocks"),
            (!(1..=1_000_000_000_000).contains(&self.link.bits_per_second), "bandwidth: 1 b/s to 1 Tb/s"),
            (self.link.round_trip_us > 3_600_000_000, "latency: up to an hour"),
            (!(1000..=DAY_US).contains(&idle_us), "idle: 1 ms to a day"),
            (age_us > 365 * DAY_US, "age: up to 365 days"),
            (!tickets.contains(&read_tickets), "read-tickets: 1 to 1000"),
            (!tickets.contains(&write_tickets), "write-tickets: 1 to 1000"),
        ];
        fault.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err(what.into()))
    }

    /// The same with the office's link, where writes are home at once, however they are.
    fn strong(&self) -> Parameters {
        Parameters { link: Link::STRONG, write_back: WriteBack::Never, tuning: Tuning::PAPER, ..*self }
    }

    /// What that is for [`turns`].
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
                let classes = [Class { tickets: read_tickets, ..demand }, Class { tickets: write_tickets, ..replay }];
                (terms, Sharing::DrawsAmongWaiting(classes))
            }
        }
    }
}

/// What came of it, from when the link was slow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    /// Reads.
    pub reads: u64,
    /// Of them: those that waited for something.
    pub misses: u64,
    /// What was fetched.
    pub fetched_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// What was cached when the link became slow.
    pub hoarded_bytes: u64,
    /// How long all takes if nothing is waited for.
    pub span_us: u64,
    /// The same without the pauses in which whoever works is away: those of more than 15 minutes
    /// (section 4.2).
    pub active_us: u64,
    /// How long he waits.
    pub stall_us: u64,
    /// Of that: for what goes home.
    pub interference_us: u64,
    /// How long he would wait with the office's link.
    pub strong_stall_us: u64,
    /// What was logged: each time that a unit was written, all of it.
    pub logged_bytes: u64,
    /// Of it: what need not be sent, since it was written again, or removed.
    pub cancelled_bytes: u64,
    /// Of it: what is home.
    pub sent_bytes: u64,
    /// Of it: what waits at the end.
    pub left_bytes: u64,
    /// The most that waited.
    pub log_bytes_max: u64,
    /// How much went home one by one.
    pub sent_count: u64,
    /// How long that waited on the average, from when it was written (or first written, by the
    /// product's rules).
    pub reintegration_mean_us: Option<u64>,
    /// The longest.
    pub reintegration_max_us: u64,
}

impl Outcome {
    /// By how much longer all takes than with the office's link (section 4.4): 1.08 is 8 % more.
    /// Nothing if it takes no time.
    pub fn time_expansion(&self) -> Option<f64> {
        ratio(self.span_us.saturating_add(self.stall_us), self.span_us.saturating_add(self.strong_stall_us))
    }

    /// The same of the time at work, without pauses.
    pub fn time_expansion_at_work(&self) -> Option<f64> {
        ratio(self.active_us.saturating_add(self.stall_us), self.active_us.saturating_add(self.strong_stall_us))
    }

    /// Which part of reads waits for something.
    pub fn miss_rate(&self) -> Option<f64> {
        ratio(self.misses, self.reads)
    }

    /// Which part of all the time is waited for what goes home.
    pub fn interference(&self) -> Option<f64> {
        ratio(self.interference_us, self.span_us.saturating_add(self.stall_us))
    }

    /// The same of the time at work, without pauses.
    pub fn interference_at_work(&self) -> Option<f64> {
        ratio(self.interference_us, self.active_us.saturating_add(self.stall_us))
    }
}

fn ratio(one: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| one as f64 / of as f64)
}

/// Simulates one client. Its parameters are as [`check`](Parameters::check) lets them be.
pub fn simulate(activity: &Activity, parameters: &Parameters) -> Outcome {
    Outcome { strong_stall_us: strong_stall_us(activity, &parameters.strong()), ..simulate_weak(activity, parameters) }
}

/// The same, without what it would be with the office's link: as if nobody waited there.
pub(crate) fn simulate_weak(activity: &Activity, parameters: &Parameters) -> Outcome {
    let (outcome, _) = Client::new(activity, parameters, false).run();
    let (span_us, active_us) = activity.times_us(parameters.hoard_us);
    Outcome { span_us, active_us, ..outcome }
}

/// How long is waited with the office's link, in microseconds; as [`Parameters::strong`] says.
fn strong_stall_us(activity: &Activity, strong: &Parameters) -> u64 {
    Client::new(activity, strong, true).run().0.stall_us
}

/// For how long reads of each file are waited for, in microseconds, by its number.
pub(crate) fn waits_us(activity: &Activity, parameters: &Parameters) -> Vec<u64> {
    Client::new(activity, parameters, false).run().1
}

struct Client<'a> {
    activity: &'a Activity,
    of: &'a Parameters,
    /// Everything is in the office, where writes are home at once.
    is_strong: bool,
    units: Units,
    cache: Cache,
    line: Line<'a>,
    /// Units of which some was written while they were not there: the rest still is not.
    parts: BTreeSet<Key>,
    /// What files have now.
    sizes: Vec<u64>,
    /// For how long reads of files were waited for.
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

    /// What came of it, and for how long each file was waited for.
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

    /// What of these bytes is not there, one transfer after the other. It is there from then on, if
    /// it fits.
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

    /// True if all of a unit can be read from what is not home yet.
    fn waits_whole(&self, key: Key) -> bool {
        self.line.log.holds(key) && !self.parts.contains(&key)
    }

    /// What a file had before bytes were written to it, and has now. Units of which all is there
    /// are there from then on, if they fit; all that is used in the office is.
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
