//! One simulated file: the bytes that readers see, the bytes that survive a power loss, and the
//! pending changes in between.

use super::image::{DiskImage, PAGE};
use crate::SplitMix64;
use bytes::Bytes;
use std::ops::Range;

/// The unit that reaches the disk whole or not at all, in bytes.
pub const SECTOR: u64 = 512;

/// A file. Invariant: `durable` never depends on a change that is still pending or was lost by a
/// failed sync.
#[derive(Clone, Default)]
pub struct Content {
    visible: DiskImage,
    durable: DiskImage,
    pending: Vec<(u64, Change)>,
    /// The number of changes so far; a pending change carries its number.
    changes: u64,
    /// Bytes reserved from the start of the file, a multiple of the page size.
    reserved_bytes: u64,
    /// Pages in use beyond the reserved ones.
    extra_pages: u64,
}

#[derive(Clone)]
enum Change {
    Write(u64, Bytes),
    SetLen(u64),
}

/// What a power loss does to changes that were not synced.
#[derive(Clone, Copy)]
pub enum Loss {
    /// None reached the disk.
    All,
    /// All reached the disk.
    Nothing,
    /// The changes before some point reached it, in order, and the next was torn.
    Suffix,
    /// Each change by itself reached it, did not, or was torn.
    Any,
}

impl Loss {
    /// Picks one of the ways.
    pub fn pick(random: &SplitMix64) -> Self {
        match random.below(6) {
            0 => Loss::All,
            1 => Loss::Nothing,
            2 => Loss::Suffix,
            _ => Loss::Any,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Torn,
    Lost,
}

impl Content {
    /// The bytes that readers see.
    pub fn visible(&self) -> &DiskImage {
        &self.visible
    }

    /// Disk space in use, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.reserved_bytes + self.extra_pages * PAGE
    }

    /// Disk space that a write would need beyond the space in use, in bytes.
    pub fn growth_bytes(&self, offset: u64, len: usize) -> u64 {
        let pages = self.unreserved_pages(offset, len);
        (pages.end - pages.start - self.visible.pages_in(pages.clone())) * PAGE
    }

    /// Disk space that an allocation of the first `len` bytes would need beyond the space in use,
    /// in bytes.
    pub fn allocation_bytes(&self, len: u64) -> u64 {
        let pages = self.reserved_bytes / PAGE..len.div_ceil(PAGE);
        pages.end.saturating_sub(pages.start + self.visible.pages_in(pages.clone())) * PAGE
    }

    /// Writes; not yet durable.
    pub fn write(&mut self, offset: u64, bytes: Bytes) {
        self.extra_pages += self.growth_bytes(offset, bytes.len()) / PAGE;
        self.visible.write(offset, &bytes);
        self.pend(Change::Write(offset, bytes));
    }

    /// Cuts or extends; not yet durable.
    pub fn set_len(&mut self, len: u64) {
        self.visible.set_len(len);
        self.pend(Change::SetLen(len));
        self.recount(len);
    }

    /// Reserves space for the first `len` bytes and extends the file to it.
    pub fn allocate(&mut self, len: u64) {
        if len > self.visible.len() {
            self.visible.set_len(len);
            self.pend(Change::SetLen(len));
        }
        self.reserved_bytes = self.reserved_bytes.max(len.next_multiple_of(PAGE));
        self.recount(u64::MAX);
    }

    /// The number of changes so far, for [`sync`](Self::sync).
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Makes the first `changes` changes durable.
    pub fn sync(&mut self, changes: u64) {
        for change in self.take_pending(changes) {
            self.settle(change);
        }
    }

    /// A failed sync of the first `changes` changes. Each of them is durable or never will be,
    /// although readers see it: Linux marks pages clean even when writing them back failed.
    pub fn fail_sync(&mut self, changes: u64, random: &SplitMix64) {
        for change in self.take_pending(changes) {
            if random.chance(1, 2) {
                self.settle(change);
            }
        }
    }

    /// Loses power: some of the pending changes remain, whole or in sectors.
    pub fn lose_power(&mut self, loss: Loss, random: &SplitMix64) {
        let pending = self.take_pending(u64::MAX);
        let kept_first = random.below(pending.len() as u64 + 1);
        for (index, change) in (0..).zip(pending) {
            let fate = match loss {
                Loss::All => Fate::Lost,
                Loss::Nothing => Fate::Kept,
                Loss::Suffix if index < kept_first => Fate::Kept,
                Loss::Suffix if index == kept_first => Fate::Torn,
                Loss::Suffix => Fate::Lost,
                Loss::Any => [Fate::Kept, Fate::Torn, Fate::Lost][random.below(3) as usize],
            };
            match (fate, change) {
                (Fate::Kept, change) => self.settle(change),
                (Fate::Torn, Change::Write(offset, bytes)) => self.tear(offset, &bytes, random),
                // A change of length is one record of the file system: it is kept whole or not at
                // all.
                (Fate::Torn | Fate::Lost, _) => {}
            }
        }
        self.visible = self.durable.clone();
        self.recount(self.durable.len());
    }

    /// Makes everything that readers see durable.
    pub fn settle_all(&mut self) {
        self.pending.clear();
        self.durable = self.visible.clone();
    }

    /// Flips a bit on the disk.
    pub fn flip(&mut self, offset: u64, bit: u8) {
        self.visible.flip(offset, bit);
        self.durable.flip(offset, bit);
    }

    fn pend(&mut self, change: Change) {
        self.pending.push((self.changes, change));
        self.changes += 1;
    }

    fn take_pending(&mut self, changes: u64) -> Vec<Change> {
        let end = self.pending.partition_point(|(number, _)| *number < changes);
        self.pending.drain(..end).map(|(_, change)| change).collect()
    }

    fn settle(&mut self, change: Change) {
        match change {
            Change::Write(offset, bytes) => {
                self.durable.write(offset, &bytes);
                self.durable.share(&self.visible, offset..offset + bytes.len() as u64);
            }
            Change::SetLen(len) => self.durable.set_len(len),
        }
    }

    /// Some sectors of a write reach the disk; the file may grow over the missing ones.
    fn tear(&mut self, offset: u64, bytes: &[u8], random: &SplitMix64) {
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let next = ((at / SECTOR + 1) * SECTOR).min(end);
            if random.chance(1, 2) {
                self.durable.write(at, &bytes[(at - offset) as usize..(next - offset) as usize]);
            }
            at = next;
        }
        if end > self.durable.len() && random.chance(1, 2) {
            self.durable.set_len(end);
        }
    }

    fn unreserved_pages(&self, offset: u64, len: usize) -> Range<u64> {
        let end = (offset + len as u64).div_ceil(PAGE);
        (offset / PAGE).max(self.reserved_bytes / PAGE).min(end)..end
    }

    /// Counts the space again after the file was cut to `len`.
    fn recount(&mut self, len: u64) {
        self.reserved_bytes = self.reserved_bytes.min(len.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX));
        self.extra_pages = self.visible.pages_in(self.reserved_bytes / PAGE..u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_covers_the_changes_it_was_given_and_no_later_one() {
        let mut content = Content::default();
        content.write(0, Bytes::from_static(b"first"));
        let changes = content.changes();
        content.write(0, Bytes::from_static(b"later"));
        content.sync(changes);
        assert_eq!(content.visible().read(0, 5).unwrap(), b"later");
        content.lose_power(Loss::All, &SplitMix64::new(1));
        assert_eq!(content.visible().read(0, 5).unwrap(), b"first");
    }

    #[test]
    fn space_follows_every_kind_of_change() {
        let mut content = Content::default();
        content.allocate(3 * PAGE - 1);
        assert_eq!((content.used_bytes(), content.visible().len()), (3 * PAGE, 3 * PAGE - 1));
        assert_eq!(content.growth_bytes(2 * PAGE, 2 * PAGE as usize), PAGE);
        content.write(2 * PAGE, vec![1; 2 * PAGE as usize].into());
        content.write(9 * PAGE, Bytes::from_static(b"sparse"));
        assert_eq!(content.used_bytes(), 5 * PAGE);
        assert_eq!(content.allocation_bytes(10 * PAGE), 5 * PAGE);
        content.set_len(4 * PAGE);
        assert_eq!(content.used_bytes(), 4 * PAGE);
        content.set_len(1);
        assert_eq!(content.used_bytes(), PAGE);
        content.set_len(0);
        assert_eq!(content.used_bytes(), 0);
    }
}
