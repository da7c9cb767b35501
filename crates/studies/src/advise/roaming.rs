//! Settings (`starling set`) and hoarding for one client with a slow link.
//!
//! Settings are compared by the time at work, including waits; a user who does nothing for 15
//! minutes is not at work. Write-back policies are compared by that time and by how long changes
//! take to reach the home. Until a change is home, other clients do not see it, it can conflict
//! with their changes, and a lost laptop loses it ([`HOME_WEIGHT`]). If two policies are equal by
//! both, the one that sends less wins if the link is busy. A trace does not contain prefetches. So
//! `preemptive`, which delays only those, counts as `lottery`.

use super::{Gain, Item, LINKS, Verdict, WORTH, about, percent, size, time};
use crate::mobile::{Activity, Link, Outcome, Parameters, Tuning, Unit, WriteBack, simulate_weak, waits_us};
use crate::sweep::sweep;
use std::collections::{BTreeMap, BTreeSet};
use trace::Deed;

/// Fewest reads for advice that depends on reads.
const READS_MIN: u64 = 100;
/// Fewest writes for advice that depends on writes.
const WRITES_MIN: u64 = 20;
/// Largest part of the cache that advice fills with hoarded files.
const HOARD_PART: f64 = 0.5;
/// Part of the earlier reads, or of the waits, that hoarding should cover: the rest takes many
/// files for little gain.
const HOARD_ENOUGH: f64 = 0.9;
/// Part of the link's time above which the amount sent home counts: the link is busy.
const BUSY: f64 = 0.1;
/// The value of having a change home an hour sooner, as a part of an hour of work: three minutes.
const HOME_WEIGHT: f64 = 0.05;
/// A difference up to this, in microseconds, does not count as sooner.
const SOONER_US: u64 = 10_000_000;
/// Cache sizes to try, in bytes.
const CACHES: [u64; 7] = [16 << 20, 64 << 20, 256 << 20, 1 << 30, 4 << 30, 16 << 30, 64 << 30];
/// Ages to try, in minutes.
const DELAYS_MIN: [u64; 3] = [5, 15, 60];
/// Most blocks that are told apart; if there are more, blocks are made larger.
const BLOCK_COUNT_MAX: u64 = 1 << 18;
const BLOCK_BYTES_MAX: u64 = 1 << 20;
const MINUTE_US: u64 = 60_000_000;
const DAY_US: u64 = 24 * 60 * MINUTE_US;
/// The link with which the cache and hoarding are tried: a slow one.
const MIDDLE: usize = 2;

/// The simulations for one client.
pub(super) struct Plan<'a> {
    client: u32,
    activity: &'a Activity,
    /// The product's defaults.
    pub base: Parameters,
    /// Bytes of all files that the client used.
    used_bytes: u64,
    reads: u64,
    writes: u64,
    /// From leaving the office on: the time until the end, and the part of it at work.
    span_us: u64,
    active_us: u64,
}

impl<'a> Plan<'a> {
    pub fn new(client: u32, activity: &'a Activity) -> Plan<'a> {
        let (acts, files) = (&activity.acts, &activity.files);
        let time_of = |at: usize| acts.get(at).map_or(0, |act| act.time_us);
        let leaves_us = time_of(acts.len() / 2).min(time_of(0).saturating_add(DAY_US)).max(1);
        let used_bytes = files.iter().map(|file| file.most_bytes).fold(0, u64::saturating_add);
        let mut base = Parameters { hoard_us: leaves_us, ..Parameters::default() };
        while used_bytes / base.block_bytes > BLOCK_COUNT_MAX && base.block_bytes < BLOCK_BYTES_MAX {
            base.block_bytes *= 2;
        }
        let away = &acts[acts.partition_point(|act| act.time_us < leaves_us)..];
        let count = |is: fn(&Deed) -> bool| away.iter().filter(|act| is(&act.deed)).count() as u64;
        let (reads, writes) =
            (count(|deed| matches!(deed, Deed::Read { .. })), count(|deed| matches!(deed, Deed::Write { .. })));
        let (span_us, active_us) = activity.times_us(leaves_us);
        Plan { client, activity, base, used_bytes, reads, writes, span_us, active_us }
    }

    fn on(&self, link: usize) -> Parameters {
        Parameters { link: LINKS[link].1, ..self.base }
    }

    fn units(&self, link: usize) -> [(&'static str, Parameters); 3] {
        [("auto", Unit::Auto), ("file", Unit::File), ("block", Unit::Block)]
            .map(|(name, unit)| (name, Parameters { unit, ..self.on(link) }))
    }

    /// The write-back policies that the simulator knows, the default first. A policy that waits
    /// longer than half of the trace cannot be judged.
    fn write_backs(&self, link: usize) -> Vec<(String, Parameters)> {
        let with = |write_back| Parameters { write_back, ..self.on(link) };
        let delayed = |minutes: &u64| {
            let tuning = Tuning { age_us: minutes * MINUTE_US, ..self.base.tuning };
            (format!("delayed={minutes}m"), Parameters { tuning, ..with(WriteBack::Delayed) })
        };
        let known = [("lottery".to_owned(), self.on(link)), ("idle".to_owned(), with(WriteBack::Idle))];
        let delays = DELAYS_MIN.iter().filter(|minutes| **minutes * MINUTE_US <= self.span_us / 2);
        known.into_iter().chain(delays.map(delayed)).collect()
    }

    /// The default cache, and others that could make a difference.
    fn caches(&self) -> Vec<Parameters> {
        let on = self.on(MIDDLE);
        let others = CACHES.into_iter().filter(|bytes| *bytes < self.used_bytes || *bytes > on.cache_bytes);
        let others = others.filter(|bytes| *bytes < on.cache_bytes || self.used_bytes > on.cache_bytes);
        [on].into_iter().chain(others.map(|cache_bytes| Parameters { cache_bytes, ..on })).collect()
    }

    /// All parameters to simulate, each once.
    pub fn cases(&self) -> Vec<Parameters> {
        let mut all = BTreeSet::new();
        if self.reads >= READS_MIN {
            all.extend(self.caches());
            all.extend((0..LINKS.len()).flat_map(|link| self.units(link)).map(|(_, of)| of));
        }
        if self.writes >= WRITES_MIN {
            all.extend((0..LINKS.len()).flat_map(|link| self.write_backs(link)).map(|(_, of)| of));
        }
        all.into_iter().collect()
    }

    /// The advice for this client.
    pub fn items(&self, done: impl Fn() + Sync) -> Vec<Item> {
        let cases = self.cases();
        let found = sweep(&cases, |of| simulate_weak(self.activity, of), done);
        let found: BTreeMap<Parameters, Outcome> = cases.into_iter().zip(found).collect();
        let mut items = Vec::new();
        if self.reads < READS_MIN {
            let few = format!(
                "In its second half, this client reads only {} times. Advice needs {READS_MIN} reads.",
                self.reads
            );
            let unknown = |subject: &str| Item::new(subject, Verdict::Unknown, few.clone());
            items.extend(["cache on disk", "unit", "hoarding"].map(unknown));
        } else {
            items.push(self.cache(&found));
            items.extend((0..LINKS.len()).map(|link| self.unit(link, &found)));
            items.push(self.hoarding(&found));
        }
        if self.writes < WRITES_MIN {
            let few = format!(
                "In its second half, this client writes only {} times. Advice needs {WRITES_MIN} writes.",
                self.writes
            );
            items.push(Item::new("write-back", Verdict::Unknown, few));
        } else {
            items.extend((0..LINKS.len()).map(|link| self.write_back(link, &found)));
        }
        items.into_iter().map(|item| Item { client: Some(self.client), ..item }).collect()
    }

    /// The time at work, including waits, in microseconds.
    fn work_us(&self, of: &Outcome) -> f64 {
        (self.active_us.saturating_add(of.stall_us)) as f64
    }

    fn gain(&self, before: &Outcome, after: &Outcome) -> Gain {
        work(self.work_us(before), self.work_us(after))
    }

    fn cache(&self, found: &BTreeMap<Parameters, Outcome>) -> Item {
        let caches = self.caches();
        let tried = |of: &Parameters| (of.cache_bytes, found[of]);
        let (default_bytes, default) = tried(&caches[0]);
        let mut all: Vec<(u64, Outcome)> = caches.iter().map(tried).collect();
        all.sort_by_key(|(bytes, _)| *bytes);
        let best = all.iter().map(|(_, of)| self.work_us(of)).fold(f64::INFINITY, f64::min);
        let least = |us: f64| all.iter().find(|(_, of)| self.work_us(of) <= us * (1.0 + WORTH)).copied();
        let (name, subject, count) = (LINKS[MIDDLE].0, "cache on disk", self.activity.files.len());
        let used = format!("This client uses {count} files, {} in all.", about(self.used_bytes));
        let item = match least(best).filter(|_| is_better(best, self.work_us(&default))) {
            Some((bytes, of)) => Item::change(
                subject,
                format!("starling set MOUNT --cache-size {}", size(bytes)),
                format!(
                    "{used} Over {name} its user waits {} with a cache of {}, and {} with {}.",
                    time(default.stall_us as f64),
                    size(default_bytes),
                    time(of.stall_us as f64),
                    size(bytes)
                ),
                self.gain(&default, &of),
            ),
            None => {
                let all_fits = CACHES.into_iter().find(|bytes| *bytes >= self.used_bytes);
                let as_good = least(self.work_us(&default)).map(|(bytes, _)| bytes);
                let enough = all_fits.into_iter().chain(as_good).min().filter(|bytes| *bytes < default_bytes);
                let also = enough.map_or(String::new(), |bytes| format!(" {} would do as well.", size(bytes)));
                let reason = format!("{used} A cache larger than {} gains nothing.{also}", size(default_bytes));
                Item::new(subject, Verdict::Keep, reason)
            }
        };
        Item { link: Some(name.into()), ..item }
    }

    fn unit(&self, link: usize, found: &BTreeMap<Parameters, Outcome>) -> Item {
        let [auto, others @ ..] = self.units(link).map(|(name, of)| (name, found[&of]));
        let mut best = auto;
        for other in others {
            if self.work_us(&other.1) < self.work_us(&best.1) {
                best = other;
            }
        }
        let waits = |(name, of): &(&str, Outcome)| {
            format!(
                "with {name}, {} of the reads wait, {} in all",
                percent(of.miss_rate().unwrap_or(0.0)),
                time(of.stall_us as f64)
            )
        };
        let item = match is_better(self.work_us(&best.1), self.work_us(&auto.1)) {
            true => Item::change(
                "unit",
                format!("starling set MOUNT --unit {}", best.0),
                format!("In {} of work {}; {}.", time(self.active_us as f64), waits(&auto), waits(&best)),
                self.gain(&auto.1, &best.1),
            ),
            false => Item::new(
                "unit",
                Verdict::Keep,
                format!("In {} of work {}.", time(self.active_us as f64), waits(&auto)),
            ),
        };
        Item { link: Some(LINKS[link].0.into()), ..item }
    }

    /// Advice on hoarding. Files are chosen by the first half, and tried on the second. A choice by
    /// the second half only shows how much could be gained at most.
    fn hoarding(&self, found: &BTreeMap<Parameters, Outcome>) -> Item {
        let (of, name) = (self.on(MIDDLE), LINKS[MIDDLE].0);
        let before = found[&of];
        let there = self.activity.there_at(self.base.hoard_us);
        let tried = |worth: Vec<u64>| {
            let chosen = self.chosen(&worth, &there);
            let with = self.activity.with_hoarded(&chosen, self.base.hoard_us);
            (chosen, simulate_weak(&with, &of))
        };
        let helps = |after: &Outcome| is_better(self.work_us(after), self.work_us(&before));
        let waits = |after: &Outcome| {
            format!(
                "over {name} its user would have waited {} instead of {}, for {} of the reads instead of {}",
                time(after.stall_us as f64),
                time(before.stall_us as f64),
                percent(after.miss_rate().unwrap_or(0.0)),
                percent(before.miss_rate().unwrap_or(0.0)),
            )
        };
        let many = |chosen: &[(u32, u64)]| {
            let bytes = chosen.iter().map(|(_, bytes)| bytes).sum();
            format!("{} files ({})", chosen.len(), about(bytes))
        };
        let waits_us = waits_us(self.activity, &of);
        let item = match tried(self.activity.read_before(self.base.hoard_us)) {
            _ if (0..there.len()).all(|file| waits_us[file] == 0 || there[file] == 0) => {
                Item::new("hoarding", Verdict::Keep, "The user waits for no file that was there before.".into())
            }
            (chosen, after) if helps(&after) => Item::change(
                "hoarding",
                "starling hoard add PATH".into(),
                format!("With the {} hoarded that were read most before, {}.", many(&chosen), waits(&after)),
                self.gain(&before, &after),
            ),
            _ => {
                let most = "Hoarding what was read most before gains nothing.";
                match tried(waits_us) {
                    (chosen, after) if helps(&after) => Item::new(
                        "hoarding",
                        Verdict::Unknown,
                        format!(
                            "{most} With perfect foresight, and the {} hoarded that are waited for longest for their size, {}.",
                            many(&chosen),
                            waits(&after)
                        ),
                    ),
                    _ => Item::new(
                        "hoarding",
                        Verdict::Keep,
                        format!("{most} Hoarding exactly what is waited for gains nothing either."),
                    ),
                }
            }
        };
        Item { link: Some(name.into()), ..item }
    }

    /// Files to hoard, with their bytes: the highest worth per byte first, as much as fits.
    fn chosen(&self, worth: &[u64], bytes: &[u64]) -> Vec<(u32, u64)> {
        let of = |file: u32| (worth[file as usize], bytes[file as usize]);
        let mut files: Vec<u32> = (0..worth.len() as u32).filter(|file| of(*file).0 > 0 && of(*file).1 > 0).collect();
        files.sort_by(|one, other| {
            let product = |worth: u64, bytes: u64| u128::from(worth) * u128::from(bytes);
            let ((one_worth, one_bytes), (other_worth, other_bytes)) = (of(*one), of(*other));
            product(other_worth, one_bytes).cmp(&product(one_worth, other_bytes)).then(one.cmp(other))
        });
        let all: f64 = files.iter().map(|file| of(*file).0 as f64).sum();
        let room = self.base.cache_bytes as f64 * HOARD_PART;
        let (mut chosen, mut filled, mut reached) = (Vec::new(), 0u64, 0.0);
        for file in files {
            let (worth, bytes) = of(file);
            if reached >= all * HOARD_ENOUGH {
                break;
            }
            if (filled + bytes) as f64 <= room {
                (filled, reached) = (filled + bytes, reached + worth as f64);
                chosen.push((file, bytes));
            }
        }
        chosen
    }

    fn write_back(&self, link: usize, found: &BTreeMap<Parameters, Outcome>) -> Item {
        let tried = |(name, of): (String, Parameters)| {
            let of = &found[&of];
            let home_us = of.reintegration_mean_us.unwrap_or(0);
            Tried {
                name,
                work_us: self.work_us(of),
                sent_bytes: of.sent_bytes + of.left_bytes,
                left_bytes: of.left_bytes,
                home_us,
            }
        };
        let mut all: Vec<Tried> = self.write_backs(link).into_iter().map(tried).collect();
        all.push(self.through(&found[&self.on(link)], &LINKS[link].1));
        let default = &all[0];
        let bytes_us = |bytes: u64| bytes as f64 * 8e6 / LINKS[link].1.bits_per_second as f64;
        let busy = bytes_us(default.sent_bytes) / self.span_us.max(1) as f64;
        let no_worse = || all.iter().filter(|of| of.cost_us() <= default.cost_us() * (1.0 + WORTH));
        let cheapest = all.iter().min_by(|one, other| one.cost_us().total_cmp(&other.cost_us()));
        let cheapest = cheapest.filter(|of| is_better(of.cost_us(), default.cost_us()));
        let fewest = no_worse().min_by_key(|of| of.sent_bytes);
        let fewest = fewest.filter(|of| busy > BUSY && is_better(of.sent_bytes as f64, default.sent_bytes as f64));
        let soonest = no_worse().filter(|of| of.left_bytes == 0).min_by_key(|of| of.home_us);
        let soonest = soonest.filter(|of| of.home_us + SOONER_US <= default.home_us);
        let says = |of: &Tried| {
            let left = match of.left_bytes {
                0 => String::new(),
                left => format!(", but {} not by the end of the trace", about(left)),
            };
            format!(
                "with {} work takes {}, {} go home, and a change is home after {} on average{left}",
                of.name,
                time(of.work_us),
                about(of.sent_bytes),
                time(of.home_us as f64)
            )
        };
        let gain = |of: &Tried| match (cheapest, fewest) {
            (Some(_), _) if is_better(of.work_us, default.work_us) => work(default.work_us, of.work_us),
            (None, Some(_)) => Gain::new("what goes home", "bytes", default.sent_bytes as f64, of.sent_bytes as f64),
            _ => Gain::new(
                "mean time until a change is home",
                "s",
                default.home_us as f64 / 1e6,
                of.home_us as f64 / 1e6,
            ),
        };
        let link_is = format!("Sending changes home takes {} of the link's time", percent(busy.min(1.0)));
        let item = match cheapest.or(fewest).or(soonest) {
            Some(of) => Item::change(
                "write-back",
                format!("starling set MOUNT --writes {}", of.name),
                format!("{link_is}: {}; {}.", says(default), says(of)),
                gain(of),
            ),
            None => Item::new("write-back", Verdict::Keep, format!("{link_is}: {}.", says(default))),
        };
        Item { link: Some(LINKS[link].0.into()), ..item }
    }

    /// Writing through: a program waits until its write is home, for all bytes, and for a round
    /// trip whenever it goes on with another file.
    fn through(&self, default: &Outcome, link: &Link) -> Tried {
        let acts = &self.activity.acts;
        let first = acts.partition_point(|act| act.time_us < self.base.hoard_us);
        let (mut bytes, mut round_trips, mut before) = (0u64, 0u64, None);
        for act in &acts[first..] {
            let written = match act.deed {
                Deed::Write { len, .. } => Some(len),
                Deed::Read { .. } | Deed::Delete => None,
            };
            bytes = bytes.saturating_add(written.unwrap_or(0));
            let now = written.map(|_| act.file);
            round_trips += u64::from(now.is_some() && now != before);
            before = now;
        }
        let waits_us =
            round_trips as f64 * link.round_trip_us as f64 + bytes as f64 * 8e6 / link.bits_per_second as f64;
        let work_us = self.work_us(default) - default.interference_us as f64 + waits_us;
        Tried { name: "through".into(), work_us, sent_bytes: bytes, left_bytes: 0, home_us: 0 }
    }
}

/// A write-back policy that was tried.
struct Tried {
    name: String,
    work_us: f64,
    /// Bytes sent home, and bytes not home at the end.
    sent_bytes: u64,
    left_bytes: u64,
    /// Mean time until a change is home.
    home_us: u64,
}

impl Tried {
    /// The time at work, and the cost of late changes.
    fn cost_us(&self) -> f64 {
        self.work_us + HOME_WEIGHT * self.home_us as f64
    }
}

/// True if `one` is less by more than [`WORTH`].
fn is_better(one: f64, than: f64) -> bool {
    one < than * (1.0 - WORTH)
}

/// A gain in the time at work, given in microseconds.
fn work(before_us: f64, after_us: f64) -> Gain {
    Gain::new("time at work, with what is waited for", "s", before_us / 1e6, after_us / 1e6)
}
