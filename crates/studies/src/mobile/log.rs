//! The log: changes at the client that are not home yet.

use super::Logged;
use super::cache::{Key, Units};
use roam_proto::operation::{Change, Made, Operation};
use roam_proto::oplog::OpLog;
use roam_proto::ranges::Ranges;
use std::collections::BTreeMap;
use std::ops::Range;
use types::{FileId, Kind, Time};

/// The entry that has waited longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Oldest {
    /// Bytes of it to send.
    pub bytes: u64,
    /// When its wait began.
    pub since_us: u64,
}

/// The fate of what was logged: sent, cancelled, or waiting.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    pub logged_bytes: u64,
    pub cancelled_bytes: u64,
    pub waiting_bytes: u64,
}

/// A write, and its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub file: u32,
    pub offset: u64,
    pub len: u64,
    /// The file's size before, and now.
    pub sizes: (u64, u64),
    /// This write made the file.
    pub makes: bool,
    pub now_us: u64,
}

/// A log, which is sent in its order.
pub(super) trait Log {
    /// Logs a write.
    fn write(&mut self, written: &Written);
    /// Logs a removal.
    fn delete(&mut self, file: u32, now_us: u64);
    /// True if part of the unit waits.
    fn holds(&self, key: Key) -> bool;
    /// The next entry.
    fn oldest(&self) -> Option<Oldest>;
    /// The oldest entry is on its way, and no longer changes.
    fn begin(&mut self);
    /// The oldest entry is no longer on its way, and this many bytes of it are home.
    fn stop(&mut self, sent_bytes: u64);
    /// The oldest entry is home.
    fn end(&mut self);
    /// The counts.
    fn counts(&self) -> Counts;
}

/// The paper's log (section 4.3): each write is logged anew, and entries that it overlaps are
/// cancelled. No two entries overlap.
pub(super) struct PaperLog {
    logged: Logged,
    units: Units,
    waiting: BTreeMap<u64, (Place, Oldest)>,
    /// The entries, by file and the place where they begin.
    by_place: BTreeMap<(u32, u64), (u64, u64)>,
    /// The entry that is on its way.
    sending: Option<u64>,
    next: u64,
    counts: Counts,
}

/// The bytes of an entry: its file, where they begin, and where they end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    file: u32,
    start: u64,
    end: u64,
}

impl PaperLog {
    pub fn new(logged: Logged, units: Units) -> PaperLog {
        let (waiting, by_place, counts) = (BTreeMap::new(), BTreeMap::new(), Counts::default());
        PaperLog { logged, units, waiting, by_place, sending: None, next: 0, counts }
    }

    /// The beginnings of entries that contain some of these bytes.
    fn overlapping(&self, of: Place) -> impl Iterator<Item = (u32, u64)> {
        let before = self.by_place.range((of.file, 0)..(of.file, of.start)).next_back();
        let before = before.filter(move |(_, (end, _))| *end > of.start);
        let within = self.by_place.range((of.file, of.start)..(of.file, of.end));
        before.into_iter().chain(within).map(|(place, _)| *place)
    }

    /// Cancels the waiting bytes there, except for an entry on its way.
    fn cancel(&mut self, of: Place) {
        for place in self.overlapping(of).collect::<Vec<_>>() {
            let Some((_, number)) = self.by_place.remove(&place) else { continue };
            if self.sending == Some(number) {
                continue;
            }
            if let Some((_, entry)) = self.waiting.remove(&number) {
                self.counts.waiting_bytes -= entry.bytes;
                self.counts.cancelled_bytes += entry.bytes;
            }
        }
    }

    fn append(&mut self, place: Place, entry: Oldest) {
        self.cancel(place);
        self.counts.logged_bytes += entry.bytes;
        self.counts.waiting_bytes += entry.bytes;
        self.waiting.insert(self.next, (place, entry));
        self.by_place.insert((place.file, place.start), (place.end, self.next));
        self.next += 1;
    }

    /// True if no later write overlapped the entry.
    fn is_current(&self, number: u64, place: &Place) -> bool {
        self.by_place.get(&(place.file, place.start)).is_some_and(|(_, current)| *current == number)
    }
}

impl Log for PaperLog {
    fn write(&mut self, written: &Written) {
        let Written { file, offset, len, sizes: (_, size), now_us, .. } = *written;
        match self.logged {
            Logged::Writes if len == 0 => {}
            Logged::Writes => {
                let place = Place { file, start: offset, end: offset.saturating_add(len) };
                self.append(place, Oldest { bytes: len, since_us: now_us });
            }
            Logged::Units => {
                for key in self.units.of(file, offset, len) {
                    let Range { start, end } = self.units.range(key);
                    let entry = Oldest { bytes: self.units.bytes(key, size), since_us: now_us };
                    self.append(Place { file, start, end }, entry);
                }
            }
        }
    }

    fn delete(&mut self, file: u32, _: u64) {
        self.cancel(Place { file, start: 0, end: u64::MAX });
    }

    fn holds(&self, key: Key) -> bool {
        let Range { start, end } = self.units.range(key);
        self.overlapping(Place { file: key.file, start, end }).next().is_some()
    }

    fn oldest(&self) -> Option<Oldest> {
        self.waiting.first_key_value().map(|(_, (_, entry))| *entry)
    }

    fn begin(&mut self) {
        self.sending = self.waiting.keys().next().copied();
    }

    fn stop(&mut self, sent_bytes: u64) {
        self.sending = None;
        let Some(mut first) = self.waiting.first_entry() else { return };
        first.get_mut().1.bytes -= sent_bytes;
        self.counts.waiting_bytes -= sent_bytes;
        let (number, (place, rest)) = (*first.key(), *first.get());
        if !self.is_current(number, &place) {
            // It was written again or removed meanwhile.
            self.waiting.remove(&number);
            self.counts.waiting_bytes -= rest.bytes;
            self.counts.cancelled_bytes += rest.bytes;
        }
    }

    fn end(&mut self) {
        self.sending = None;
        let Some((number, (place, entry))) = self.waiting.pop_first() else { return };
        self.counts.waiting_bytes -= entry.bytes;
        if self.is_current(number, &place) {
            self.by_place.remove(&(place.file, place.start));
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

/// The product's own log of operations, with its own rules.
pub(super) struct ProductLog {
    units: Units,
    log: OpLog,
    /// When the waiting operations were done.
    done_us: BTreeMap<u64, u64>,
    counts: Counts,
}

impl ProductLog {
    pub fn new(units: Units) -> ProductLog {
        ProductLog { units, log: OpLog::default(), done_us: BTreeMap::new(), counts: Counts::default() }
    }

    /// Each file has an id, and a name made from it in one directory.
    fn id(file: u32) -> FileId {
        FileId::new(FileId::ROOT.raw() + 1 + u64::from(file))
    }

    fn place(file: u32) -> (FileId, Vec<u8>) {
        (FileId::ROOT, file.to_le_bytes().to_vec())
    }

    fn append(&mut self, operation: Operation, now_us: u64) {
        let (before, cost) = (self.log.cost(), operation.cost());
        let seq = self.log.append(operation);
        self.done_us.insert(seq, now_us);
        self.counts.waiting_bytes = self.log.cost();
        // Writes to very many places are sent with the bytes between them, which is more.
        let all = before + cost;
        self.counts.logged_bytes += cost + self.counts.waiting_bytes.saturating_sub(all);
        self.counts.cancelled_bytes += all.saturating_sub(self.counts.waiting_bytes);
    }
}

impl Log for ProductLog {
    fn write(&mut self, written: &Written) {
        let Written { file, offset, len, sizes: (before, size), makes, now_us } = *written;
        if makes {
            let (kind, target, when) = (Kind::File, Vec::new(), Time::default());
            let made = Made { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target, when };
            self.append(Operation::Make { at: Self::place(file), file: Self::id(file), made }, now_us);
        }
        let ranges = Ranges::of(offset..offset.saturating_add(len));
        let change = Change { cut: before, size, ranges, mtime: Time::default() };
        self.append(Operation::Store { file: Self::id(file), change }, now_us);
    }

    fn delete(&mut self, file: u32, now_us: u64) {
        self.append(Operation::Remove { at: Self::place(file), file: Self::id(file), last: true }, now_us);
    }

    fn holds(&self, key: Key) -> bool {
        let range = self.units.range(key);
        self.log.naming(Self::id(key.file)).any(|(_, operation)| match operation {
            Operation::Store { change, .. } => change.ranges.within(range.clone()).next().is_some(),
            _ => false,
        })
    }

    fn oldest(&self) -> Option<Oldest> {
        let (seq, operation) = self.log.iter().next()?;
        // A write that joined an earlier operation waits since that was done.
        let since_us = self.done_us.get(&seq).copied().unwrap_or(0);
        Some(Oldest { bytes: operation.cost(), since_us })
    }

    fn begin(&mut self) {
        if let Some(first) = self.log.first() {
            self.log.pin(first);
        }
    }

    /// The product completes what it has begun.
    fn stop(&mut self, _: u64) {}

    fn end(&mut self) {
        if let Some(first) = self.log.first() {
            self.log.remove(first);
            self.counts.waiting_bytes = self.log.cost();
            self.done_us = self.done_us.split_off(&(first + 1));
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
