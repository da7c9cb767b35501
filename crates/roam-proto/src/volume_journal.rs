//! The volume journal: which files of a volume changed since a stamp
//! (docs/roaming.md#one-number-for-versions-stamps-and-the-journal). Pure.
//!
//! One mechanism serves three papers. A client that comes back presents the stamp at which it was
//! current. It learns that nothing changed (Mummert's volume validation), or which files changed
//! (Zhao and Figueiredo's GETINV), or that the journal does not reach back that far. So coming back
//! costs one round trip, and bytes in proportion to the changes, not to the cache.
//!
//! The journal has one entry for each file: its last change. So it never has more entries than
//! there are files, and repeated changes of one file push no other file out.

use crate::volume_stamp::{Since, Stamp};
use std::collections::{BTreeMap, HashMap};
use types::FileId;

/// A volume's journal: the number of each file's last change, as far back as it reaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Journal {
    epoch: u64,
    seq: u64,
    /// The journal has forgotten all changes up to this number.
    floor: u64,
    by_seq: BTreeMap<u64, FileId>,
    last: HashMap<FileId, u64>,
    entry_count_max: usize,
}

impl Journal {
    /// Makes the journal of a new volume, with at most `entry_count_max` entries. The caller never
    /// uses an epoch twice. The numbers begin with 1, so nothing that a home knows has version 0.
    pub fn new(epoch: u64, entry_count_max: usize) -> Journal {
        Journal { epoch, seq: 1, floor: 0, by_seq: BTreeMap::new(), last: HashMap::new(), entry_count_max }
    }

    /// Rebuilds the journal from its [`entries`](Self::entries). `None` if they contradict each
    /// other.
    pub fn restore(
        stamp: Stamp,
        floor: u64,
        entries: impl IntoIterator<Item = (u64, FileId)>,
        entry_count_max: usize,
    ) -> Option<Journal> {
        let mut journal = Journal { seq: stamp.seq, floor, ..Journal::new(stamp.epoch, entry_count_max) };
        let mut before = floor;
        for (seq, file) in entries {
            if seq <= before || seq > stamp.seq || journal.last.insert(file, seq).is_some() {
                return None;
            }
            journal.by_seq.insert(seq, file);
            before = seq;
        }
        journal.shorten();
        (floor <= stamp.seq).then_some(journal)
    }

    /// Returns the newest stamp.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, seq: self.seq }
    }

    /// The journal has no changes up to this number.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the files that changed after `seq`, as far as the journal reaches back.
    pub fn changed_after(&self, seq: u64) -> impl Iterator<Item = FileId> {
        self.by_seq.range(seq.saturating_add(1)..).map(|(_, file)| *file)
    }

    /// Returns all entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = (u64, FileId)> {
        self.by_seq.iter().map(|(seq, file)| (*seq, *file))
    }

    /// Makes the next change have a greater number than `seq`.
    pub fn skip_to(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
    }

    /// Records a change of a file. Returns the stamp that includes it.
    pub fn note(&mut self, file: FileId) -> Stamp {
        self.replace(file);
        self.stamp()
    }

    /// Records a change of a file, as [`note`](Self::note) does. Returns the file that lost its
    /// entry to make room for it, if any.
    pub fn replace(&mut self, file: FileId) -> Option<FileId> {
        self.seq += 1;
        if let Some(before) = self.last.insert(file, self.seq) {
            self.by_seq.remove(&before);
        }
        self.by_seq.insert(self.seq, file);
        self.shorten()
    }

    fn shorten(&mut self) -> Option<FileId> {
        let mut forgotten = None;
        while self.by_seq.len() > self.entry_count_max
            && let Some((seq, file)) = self.by_seq.pop_first()
        {
            self.last.remove(&file);
            self.floor = seq;
            forgotten = Some(file);
        }
        forgotten
    }

    /// Tells what changed since `stamp`, of the files that the client `may_see`. The answer does
    /// not tell that other files changed.
    pub fn since(&self, stamp: Stamp, may_see: impl Fn(FileId) -> bool) -> Since {
        let newest = self.stamp();
        if stamp == newest {
            return Since::Current;
        }
        // A stamp of the future: this home gave it and has forgotten it since.
        if stamp.epoch != self.epoch || stamp.seq < self.floor || stamp.seq > self.seq {
            return Since::Reset { stamp: newest };
        }
        let files = self.by_seq.range(stamp.seq + 1..).map(|(_, file)| *file).filter(|file| may_see(*file)).collect();
        Since::Changed { files, stamp: newest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn file(number: u64) -> FileId {
        FileId::new(number)
    }

    #[test]
    fn nothing_something_and_too_much() {
        let mut journal = Journal::new(7, 3);
        let first = journal.stamp();
        assert_eq!(journal.since(first, |_| true), Since::Current);
        for number in [1, 2, 1, 1, 2] {
            journal.note(file(number));
        }
        let stamp = Stamp { epoch: 7, seq: 6 };
        assert_eq!(journal.since(first, |_| true), Since::Changed { files: vec![file(1), file(2)], stamp });
        assert_eq!(journal.since(first, |f| f == file(2)), Since::Changed { files: vec![file(2)], stamp });
        journal.note(file(3));
        journal.note(file(4));
        let stamp = journal.stamp();
        assert_eq!(journal.since(first, |_| true), Since::Reset { stamp }, "the first change was forgotten");
        assert_eq!(journal.since(Stamp { epoch: 6, seq: 5 }, |_| true), Since::Reset { stamp });
        assert_eq!(journal.since(Stamp { epoch: 7, seq: 9 }, |_| true), Since::Reset { stamp });
    }

    #[test]
    fn what_contradicts_itself_is_not_restored() {
        let stamp = Stamp { epoch: 1, seq: 5 };
        let restore = |floor, entries: &[(u64, u64)]| {
            Journal::restore(stamp, floor, entries.iter().map(|(seq, f)| (*seq, file(*f))), 10)
        };
        assert!(restore(2, &[(3, 1), (5, 2)]).is_some());
        for (floor, entries) in
            [(2, &[(2, 1)][..]), (0, &[(3, 1), (3, 2)]), (0, &[(3, 1), (4, 1)]), (0, &[(6, 1)]), (6, &[])]
        {
            assert_eq!(restore(floor, entries), None, "{floor} {entries:?}");
        }
    }

    proptest! {
        /// A client that asks the journal now and then learns of every change.
        #[test]
        fn prop_a_client_that_asks_now_and_then_misses_nothing(
            changes in prop::collection::vec((0u64..12, any::<bool>(), any::<bool>()), 0..200),
            entry_count_max in 1usize..20,
        ) {
            let mut journal = Journal::new(3, entry_count_max);
            let (mut stamp, mut stale) = (journal.stamp(), BTreeSet::new());
            for (number, asks, restarts) in changes {
                journal.note(file(number));
                stale.insert(file(number));
                if restarts {
                    let again = Journal::restore(journal.stamp(), journal.floor(), journal.entries(), entry_count_max);
                    prop_assert_eq!(again.as_ref(), Some(&journal));
                }
                prop_assert!(journal.entries().count() <= entry_count_max);
                if !asks {
                    continue;
                }
                match journal.since(stamp, |_| true) {
                    Since::Current => prop_assert!(stale.is_empty()),
                    Since::Changed { files, stamp: newest } => {
                        prop_assert_eq!(files.len(), stale.len());
                        stale.retain(|f| !files.contains(f));
                        prop_assert!(stale.is_empty());
                        stamp = newest;
                    }
                    Since::Reset { stamp: newest } => {
                        prop_assert!(stale.len() > entry_count_max, "{} files would have fitted", stale.len());
                        stale.clear();
                        stamp = newest;
                    }
                }
            }
        }
    }
}
