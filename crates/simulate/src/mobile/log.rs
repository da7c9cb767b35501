//! What was written at the client and is not home yet.

use super::cache::{Key, Units};
use roam::oplog::OpLog;
use roam_wire::operation::{Change, Made, Operation};
use roam_wire::ranges::Ranges;
use std::collections::BTreeMap;
use types::{FileId, Kind, Time};

/// What waits longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Oldest {
    /// What of it is to be sent.
    pub bytes: u64,
    /// Since when it waits.
    pub since_us: u64,
}

/// What of the log is of whom: what was logged was sent, is cancelled, or waits.
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
    /// What the file had before, and has now.
    pub sizes: (u64, u64),
    /// The file was made by this.
    pub makes: bool,
    pub now_us: u64,
}

/// What waits. It is sent in its order.
pub(super) trait Log {
    /// Something was written.
    fn write(&mut self, written: &Written);
    /// A file was removed.
    fn delete(&mut self, file: u32, now_us: u64);
    /// True if some of it waits.
    fn holds(&self, key: Key) -> bool;
    /// What is next.
    fn oldest(&self) -> Option<Oldest>;
    /// The oldest is on its way, and stays as it is.
    fn begin(&mut self);
    /// The oldest is not on its way any more, but so many bytes of it are home.
    fn stop(&mut self, sent_bytes: u64);
    /// The oldest is home.
    fn end(&mut self);
    /// See there.
    fn counts(&self) -> Counts;
}

/// As in the paper (section 4.3): units as they are cached, each of them once, when it was written last.
pub(super) struct UnitLog {
    units: Units,
    waiting: BTreeMap<u64, (Key, Oldest)>,
    by_key: BTreeMap<Key, u64>,
    /// Of what is on its way.
    sending: Option<u64>,
    next: u64,
    counts: Counts,
}

impl UnitLog {
    pub fn new(units: Units) -> UnitLog {
        let (waiting, by_key) = (BTreeMap::new(), BTreeMap::new());
        UnitLog { units, waiting, by_key, sending: None, next: 0, counts: Counts::default() }
    }

    /// What waits of it need not be sent, unless it is on its way.
    fn cancel(&mut self, key: Key) {
        let Some(number) = self.by_key.remove(&key) else { return };
        if self.sending == Some(number) {
            return;
        }
        if let Some((_, entry)) = self.waiting.remove(&number) {
            self.counts.waiting_bytes -= entry.bytes;
            self.counts.cancelled_bytes += entry.bytes;
        }
    }
}

impl Log for UnitLog {
    fn write(&mut self, written: &Written) {
        let Written { file, offset, len, sizes: (_, size), now_us, .. } = *written;
        for key in self.units.of(file, offset, len) {
            self.cancel(key);
            let entry = Oldest { bytes: self.units.bytes(key, size), since_us: now_us };
            self.counts.logged_bytes += entry.bytes;
            self.counts.waiting_bytes += entry.bytes;
            self.waiting.insert(self.next, (key, entry));
            self.by_key.insert(key, self.next);
            self.next += 1;
        }
    }

    fn delete(&mut self, file: u32, _: u64) {
        let keys: Vec<Key> = self.by_key.range(Key::all_of(file)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.cancel(key));
    }

    fn holds(&self, key: Key) -> bool {
        self.by_key.contains_key(&key)
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
        let (number, (key, rest)) = (*first.key(), *first.get());
        if self.by_key.get(&key) != Some(&number) {
            // It was written again, or is gone, since.
            first.remove();
            self.counts.waiting_bytes -= rest.bytes;
            self.counts.cancelled_bytes += rest.bytes;
        }
    }

    fn end(&mut self) {
        self.sending = None;
        let Some((number, (key, entry))) = self.waiting.pop_first() else { return };
        self.counts.waiting_bytes -= entry.bytes;
        if self.by_key.get(&key) == Some(&number) {
            self.by_key.remove(&key);
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

/// As the product has it: its own log of operations, with its own rules.
pub(super) struct ProductLog {
    units: Units,
    log: OpLog,
    /// When operations were done that wait.
    done_us: BTreeMap<u64, u64>,
    counts: Counts,
}

impl ProductLog {
    pub fn new(units: Units) -> ProductLog {
        ProductLog { units, log: OpLog::default(), done_us: BTreeMap::new(), counts: Counts::default() }
    }

    /// Files have ids of their own, and names by them in one directory.
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
        // What was written to very many places is sent with what is between them: that is more.
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
        // What became part of an earlier operation waits since that was done.
        let since_us = self.done_us.get(&seq).copied().unwrap_or(0);
        Some(Oldest { bytes: operation.cost(), since_us })
    }

    fn begin(&mut self) {
        if let Some(first) = self.log.first() {
            self.log.pin(first);
        }
    }

    /// The product ends what it has begun.
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
