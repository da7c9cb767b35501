//! A model of the study, for tests: millisecond by millisecond, with plain lists, by the rules of
//! the paper without its lottery.

use super::*;

const MS: u64 = 1000;
/// Bytes that the link carries in a millisecond.
pub const BYTES: u64 = 1000;

type Unit = (u32, Option<u64>);

struct Cached {
    unit: Unit,
    bytes: u64,
    used: u64,
    count: u64,
}

struct Entry {
    file: u32,
    /// Its bytes.
    range: std::ops::Range<u64>,
    bytes: u64,
    since: u64,
    on_its_way: bool,
    /// It was written again or removed while it was on its way.
    old: bool,
}

impl Entry {
    fn has(&self, file: u32, range: &std::ops::Range<u64>) -> bool {
        self.file == file && self.range.start < range.end && range.start < self.range.end
    }
}

pub struct Model<'a> {
    of: &'a Parameters,
    sizes: Vec<u64>,
    cached: Vec<Cached>,
    uses: u64,
    log: Vec<Entry>,
    parts: Vec<Unit>,
    by_blocks: bool,
    waited_ms: u64,
    outcome: Outcome,
}

impl<'a> Model<'a> {
    fn units(&self, file: u32, offset: u64, len: u64) -> Vec<Unit> {
        match self.by_blocks {
            false => vec![(file, None)],
            true => (offset / BYTES..(offset + len).div_ceil(BYTES)).map(|index| (file, Some(index))).collect(),
        }
    }

    fn bytes(&self, (file, index): Unit) -> u64 {
        let size = self.sizes[file as usize];
        index.map_or(size, |index| (size - index * BYTES).min(BYTES))
    }

    fn touch(&mut self, unit: Unit) -> bool {
        self.uses += 1;
        let found = self.cached.iter_mut().find(|one| one.unit == unit);
        found.map(|one| (one.used, one.count) = (self.uses, one.count + 1)).is_some()
    }

    fn put(&mut self, unit: Unit) {
        self.uses += 1;
        let bytes = self.bytes(unit);
        let count = self.cached.iter().find(|one| one.unit == unit).map_or(0, |one| one.count);
        self.cached.retain(|one| one.unit != unit);
        if bytes > self.of.cache_bytes {
            return;
        }
        while self.cached.iter().map(|one| one.bytes).sum::<u64>() + bytes > self.of.cache_bytes {
            let first = self.cached.iter().min_by_key(|one| match self.of.replacement {
                Replacement::Lru | Replacement::Random => (one.used, 0, one.unit),
                Replacement::Lfu => (one.count, one.used, one.unit),
                Replacement::Largest => (u64::MAX - one.bytes, one.used, one.unit),
                Replacement::Smallest => (one.bytes, one.used, one.unit),
            });
            let first = first.expect("some").unit;
            self.cached.retain(|one| one.unit != first);
        }
        self.cached.push(Cached { unit, bytes, used: self.uses, count: count + 1 });
    }

    /// Milliseconds that it takes to fetch what is missing.
    fn look(&mut self, file: u32, offset: u64, len: u64) -> u64 {
        let mut missing = 0;
        for unit in self.units(file, offset, len) {
            if self.touch(unit) {
                continue;
            }
            let bytes = self.bytes(unit);
            if !self.is_logged(unit) {
                missing += if bytes > self.of.cache_bytes { len } else { bytes };
            }
            self.parts.retain(|part| *part != unit || bytes > self.of.cache_bytes);
            self.put(unit);
        }
        missing.div_ceil(BYTES)
    }

    fn range(unit: Unit) -> std::ops::Range<u64> {
        unit.1.map_or(0..u64::MAX, |index| index * BYTES..(index + 1) * BYTES)
    }

    fn is_logged(&self, unit: Unit) -> bool {
        let has = |entry: &Entry| entry.has(unit.0, &Self::range(unit)) && !entry.old;
        self.log.iter().any(has) && !self.parts.contains(&unit)
    }

    fn write(&mut self, file: u32, offset: u64, len: u64, away: bool) {
        let before = self.sizes[file as usize];
        self.sizes[file as usize] = before.max(offset + len);
        for unit in self.units(file, offset, len) {
            // Checks block by block whether the write covers everything that the unit had.
            let (first, count) = unit.1.map_or((0, before / BYTES), |index| (index, 1));
            let mut had = (first..first + count).filter(|index| index * BYTES < before);
            let written = |index: u64| (offset..offset + len).contains(&(index * BYTES));
            if !away || had.all(written) || self.touch(unit) || self.is_logged(unit) {
                self.parts.retain(|part| *part != unit);
                self.put(unit);
            } else {
                self.parts.push(unit);
            }
        }
    }

    fn cancel(&mut self, file: u32, range: &std::ops::Range<u64>) {
        self.log.iter_mut().filter(|entry| entry.has(file, range)).for_each(|entry| entry.old = true);
        self.drop_old();
    }

    fn drop_old(&mut self) {
        let waits = |entry: &Entry| entry.on_its_way || !entry.old;
        self.outcome.cancelled_bytes += self.log.iter().filter(|one| !waits(one)).map(|one| one.bytes).sum::<u64>();
        self.log.retain(waits);
    }

    fn log(&mut self, file: u32, offset: u64, len: u64, now: u64) {
        let all: Vec<(std::ops::Range<u64>, u64)> = match self.of.logged {
            Logged::Writes => vec![(offset..offset + len, len)],
            Logged::Units => {
                let units = self.units(file, offset, len);
                units.into_iter().map(|unit| (Self::range(unit), self.bytes(unit))).collect()
            }
        };
        for (range, bytes) in all {
            self.cancel(file, &range);
            self.outcome.logged_bytes += bytes;
            self.log.push(Entry { file, range, bytes, since: now, on_its_way: false, old: false });
        }
        let waiting = self.log.iter().map(|entry| entry.bytes).sum();
        self.outcome.log_bytes_max = self.outcome.log_bytes_max.max(waiting);
    }

    /// The result. Of the times it has only the waits, and the sum of all times until home; in all
    /// else it equals [`simulate`].
    pub fn run(activity: &Activity, of: &'a Parameters) -> (Outcome, u64) {
        let sizes = activity.files.iter().map(|file| file.had_bytes).collect();
        let (cached, log, parts, outcome) = (Vec::new(), Vec::new(), Vec::new(), Outcome::default());
        let (uses, by_blocks, waited_ms) = (0, false, 0);
        let mut me = Model { of, sizes, cached, uses, log, parts, by_blocks, waited_ms, outcome };
        let (office, away): (Vec<&activity::Act>, Vec<&activity::Act>) =
            activity.acts.iter().partition(|act| act.time_us < of.hoard_us);
        for act in office {
            match act.deed {
                Deed::Read { offset, len } => drop(me.look(act.file, offset, len)),
                Deed::Write { offset, len } => me.write(act.file, offset, len, false),
                Deed::Delete => me.cached.retain(|one| one.unit.0 != act.file),
            }
        }
        if of.unit == super::Unit::Block {
            me.by_blocks = true;
            for one in std::mem::take(&mut me.cached) {
                for unit in me.units(one.unit.0, 0, one.bytes) {
                    let bytes = (one.bytes - unit.1.expect("a block") * BYTES).min(BYTES);
                    me.cached.push(Cached { unit, bytes, ..one });
                }
            }
        }
        me.outcome.hoarded_bytes = me.cached.iter().map(|one| one.bytes).sum();
        me.away(&away);
        me.outcome.left_bytes = me.log.iter().map(|entry| entry.bytes).sum();
        (me.outcome, me.waited_ms)
    }

    fn away(&mut self, acts: &[&activity::Act]) {
        let [idle, age] = [self.of.tuning.idle_us / MS, self.of.tuning.age_us / MS];
        let (idle, age) = match self.of.write_back {
            WriteBack::Never => (u64::MAX, u64::MAX),
            WriteBack::Idle => (idle, 0),
            _ => (idle, age),
        };
        let (mut now, mut next, mut idle_since, mut shift) = (0, 0, 0, 0);
        // The rest of the user's fetch, and when it came.
        let mut wanted: Option<(u64, u64)> = None;
        // The rest of what goes home, and its size.
        let mut sending: Option<(u64, u64)> = None;
        while next < acts.len() || wanted.is_some() {
            if let Some((left, all)) = &mut sending {
                *left -= 1;
                if *left == 0 {
                    let entry = self.log.remove(0);
                    self.outcome.sent_bytes += *all;
                    self.outcome.sent_count += 1;
                    self.waited_ms += now - entry.since;
                    (sending, idle_since) = (None, now);
                }
                self.outcome.interference_us += if wanted.is_some() { MS } else { 0 };
            } else if let Some((left, came)) = &mut wanted {
                *left -= 1;
                if *left == 0 {
                    self.outcome.stall_us += (now - *came) * MS;
                    shift += now - *came;
                    (wanted, idle_since) = (None, now);
                }
            }
            while let Some(act) = acts.get(next).filter(|act| act.time_us / MS + shift == now && wanted.is_none()) {
                next += 1;
                match act.deed {
                    Deed::Read { offset, len } => {
                        self.outcome.reads += 1;
                        let time = self.look(act.file, offset, len);
                        if time == 0 {
                            continue;
                        }
                        self.outcome.misses += 1;
                        self.outcome.fetched_bytes += time * BYTES;
                        wanted = Some((time, now));
                        if self.of.write_back == WriteBack::Preemptive
                            && let Some((left, _)) = sending.take()
                        {
                            let sent = self.log[0].bytes - left * BYTES;
                            self.log[0].bytes -= sent;
                            self.log[0].on_its_way = false;
                            self.outcome.sent_bytes += sent;
                            self.drop_old();
                        }
                    }
                    Deed::Write { offset, len } => {
                        self.outcome.writes += 1;
                        self.write(act.file, offset, len, true);
                        self.log(act.file, offset, len, now);
                    }
                    Deed::Delete => {
                        self.cached.retain(|one| one.unit.0 != act.file);
                        self.cancel(act.file, &(0..u64::MAX));
                    }
                }
            }
            if wanted.is_none()
                && sending.is_none()
                && now - idle_since >= idle
                && let Some(entry) = self.log.first_mut().filter(|entry| now - entry.since >= age)
            {
                entry.on_its_way = true;
                sending = Some((entry.bytes / BYTES, entry.bytes));
            }
            now += 1;
        }
    }
}
