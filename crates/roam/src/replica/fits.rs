//! Which records fit the state that they would change.
//!
//! A record that does not fit is refused before it is logged. Otherwise the log would have a record
//! that no later opening of the cache could apply.

use super::{NUMBER_MAX, Record, Replica, SMALL_LEN_MAX};
use bytes::Bytes;
use roam_proto::operation::{Change, Operation};
use types::FileId;
use vfs::Cred;
use vfs::perm;

impl Replica {
    /// True if [`apply`](Self::apply) can make the whole change.
    pub fn fits(&self, record: &Record) -> bool {
        match record {
            Record::Joined(_)
            | Record::Stamped(_)
            | Record::Broken(_)
            | Record::AllBroken
            | Record::Known(_)
            | Record::Listed { .. }
            | Record::Gone(_)
            | Record::Forgotten { .. }
            | Record::Filed(_)
            | Record::Pinned(_)
            | Record::Answered(_)
            | Record::Hoarded { priority: Some(_), .. } => true,
            Record::Hoarded { path, priority: None } => self.hoard.contains_key(path),
            Record::Cached { file, data, .. } => *data <= NUMBER_MAX && self.knows(*file),
            Record::Dropped(file) | Record::Clean(file) | Record::Marked(file) => self.knows(*file),
            Record::Lost(file) => self.nodes.contains_key(file),
            Record::Dirty { file, data, base, .. } => (*data).max(*base) <= NUMBER_MAX && self.knows(*file),
            Record::Stored { file, data, base, change, is_all, bytes, .. } => {
                let is_right = match is_all {
                    true => bytes.len() as u64 == change.size,
                    false => self.contents.contains_key(data) && matches(change, bytes),
                };
                is_right && self.may_have_contents(*file, (*data, *base), change.size)
            }
            Record::Held { file, data, base, bytes } => {
                self.may_have_contents(*file, (*data, *base), bytes.len() as u64)
            }
            Record::Did { operation, .. } => self.may_do(operation),
            Record::Ids(first, count) | Record::Renewed(first, count) => first.raw().checked_add(*count).is_some(),
            Record::Settled(number) => self.conflicts.contains_key(number),
            Record::Reopened { number, case } => {
                let numbers = [*number, case.conflict.base, case.conflict.kept];
                numbers.iter().all(|number| *number <= NUMBER_MAX) && !self.conflicts.contains_key(number)
            }
        }
    }

    fn knows(&self, file: FileId) -> bool {
        self.nodes.contains_key(&self.real(file))
    }

    fn may_have_contents(&self, file: FileId, (data, base): (u64, u64), len: u64) -> bool {
        data > 0 && data.max(base) <= NUMBER_MAX && len <= SMALL_LEN_MAX && self.knows(file)
    }

    /// True if everything that an operation changes is known.
    fn may_do(&self, operation: &Operation) -> bool {
        if let Operation::Copy { .. } = operation {
            return true;
        }
        let has_files = match operation {
            Operation::Make { .. } => true,
            Operation::Rename { file, replaced, .. } => {
                self.knows(*file) && replaced.is_none_or(|(gone, _)| self.knows(gone))
            }
            Operation::Exchange { file, other, .. } => self.knows(*file) && self.knows(*other),
            other => self.knows(other.file()),
        };
        let may_set = match operation {
            Operation::SetXattr { file, name, value: Some(value) } => self
                .nodes
                .get(&self.real(*file))
                .is_some_and(|node| perm::set_xattr(&Cred::ROOT, &node.subject(), name, value).is_ok()),
            _ => true,
        };
        has_files && may_set && operation.places().into_iter().all(|(dir, _)| self.knows(*dir))
    }
}

/// True if a change that keeps a file small, and the bytes that it writes, match.
fn matches(change: &Change, bytes: &Bytes) -> bool {
    let last = change.ranges.iter().last().map_or(0, |range| range.end);
    change.size <= SMALL_LEN_MAX && last <= change.size && change.ranges.len() == bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::Membership;
    use crate::replica::conflict::{Case, Conflict, Deed};
    use crate::testing;
    use host::SplitMix64;
    use roam_proto::codec::Wire;
    use roam_proto::message::{NamedFacts, Outcome, User};
    use roam_proto::operation::{Attributes, Made, Place};
    use roam_proto::ranges::Ranges;
    use types::{Kind, Time};

    const TIME: Time = Time { sec: 1, nsec: 0 };

    /// Draws records about few files. Some of the files exist.
    struct Draw(SplitMix64);

    impl Draw {
        fn id(&self) -> FileId {
            FileId::new(1 + self.0.below(6))
        }

        /// A number of a file of the cache; rarely one that is too great.
        fn number(&self) -> u64 {
            if self.0.chance(1, 20) { NUMBER_MAX + 1 } else { self.0.below(4) }
        }

        fn place(&self) -> Place {
            (self.id(), vec![b'a' + self.0.below(3) as u8])
        }

        fn ranges(&self) -> Ranges {
            let start = self.0.below(8);
            Ranges::of(start..start + self.0.below(8))
        }

        fn change(&self) -> Change {
            let (ranges, size) = (self.ranges(), self.0.below(20));
            let size = if self.0.chance(1, 20) { SMALL_LEN_MAX + 1 } else { size };
            Change { cut: self.0.below(8).min(size), size, ranges, mtime: TIME }
        }

        fn bytes(&self, len: u64) -> Bytes {
            vec![7; if self.0.chance(1, 5) { self.0.below(20) } else { len } as usize].into()
        }

        fn operation(&self) -> Operation {
            let (file, other, from, to) = (self.id(), self.id(), self.place(), self.place());
            let made = Made {
                kind: if self.0.chance(1, 2) { Kind::Directory } else { Kind::File },
                mode: 0o644,
                uid: 0,
                gid: 0,
                rdev: 0,
                target: Vec::new(),
                when: TIME,
            };
            match self.0.below(9) {
                0 => Operation::Make { at: to, file, made },
                1 => Operation::Link { file, at: to },
                2 => Operation::Remove { at: from, file, last: self.0.chance(1, 2) },
                3 => Operation::Rename { file, from, to, replaced: self.0.chance(1, 2).then_some((other, true)) },
                4 => Operation::Exchange { file, from, other, to },
                5 => Operation::Set { file, attributes: Attributes { mode: Some(0o600), ..Attributes::default() } },
                6 => {
                    let name = if self.0.chance(1, 2) { &b"user.a"[..] } else { vfs::acl::XATTR_ACCESS };
                    Operation::SetXattr { file, name: name.to_vec(), value: self.0.chance(2, 3).then(|| vec![1]) }
                }
                7 => Operation::Copy { file, from: other },
                _ => Operation::Store { file, change: self.change() },
            }
        }

        fn case(&self) -> Case {
            let (base, kept) = (self.number(), self.number());
            let conflict = Conflict {
                deed: Deed::Lost,
                place: None,
                file: self.id(),
                outcome: Outcome::Done,
                when: TIME,
                mine: None,
                copy: FileId::new(0),
                base,
                kept,
                is_part: false,
            };
            Case { conflict, meant: None }
        }

        fn record(&self) -> Record {
            let (file, data, base) = (self.id(), self.number(), self.number());
            let change = self.change();
            match self.0.below(18) {
                0 => Record::Cached { file, data, have: self.ranges() },
                1 => Record::Dropped(file),
                2 => Record::Lost(file),
                3 => Record::Dirty { file, data, base, have: self.ranges(), size: self.0.below(20) },
                4 => Record::Clean(file),
                5 => Record::Marked(file),
                6 => {
                    let bytes = self.bytes(change.size.min(20));
                    Record::Stored { file, data, base, change, is_all: true, bytes, when: TIME }
                }
                7 => {
                    let bytes = self.bytes(change.ranges.len());
                    Record::Stored { file, data, base, change, is_all: false, bytes, when: TIME }
                }
                8 => Record::Held { file, data, base, bytes: self.bytes(3) },
                9 => Record::Hoarded { path: vec![b'a'], priority: self.0.chance(1, 2).then_some(5) },
                10 => Record::Settled(self.number()),
                11 => Record::Reopened { number: self.number(), case: Box::new(self.case()) },
                12 => Record::Ids(FileId::new(u64::MAX - self.0.below(2)), self.0.below(3)),
                13 => Record::Gone(file),
                14 => Record::Known(Box::new(testing::facts(file, Kind::File))),
                15 => Record::Filed(vec![data]),
                _ => Record::Did { operation: self.operation(), when: TIME },
            }
        }
    }

    fn replica() -> Replica {
        let mut replica = Replica::default();
        let user = User { uid: 0, gid: 0, groups: Vec::new() };
        let root = FileId::new(1);
        let joined = Record::Joined(Membership { root, user, incarnation: 1, file_len_max: u64::MAX });
        let entry = |number: u64| {
            let kind = if number == 2 { Kind::Directory } else { Kind::File };
            NamedFacts { name: vec![b'a' + number as u8], facts: testing::facts(FileId::new(number), kind) }
        };
        let dir = Box::new(testing::facts(root, Kind::Directory));
        let listed = Record::Listed { dir, entries: (2..5).map(entry).collect() };
        for record in [joined, listed] {
            assert!(replica.apply(record).is_some());
        }
        replica
    }

    #[test]
    fn prop_a_record_that_does_not_fit_is_refused_and_changes_nothing() {
        let (mut fit, mut refused) = (0, 0);
        for seed in 0..300 {
            let draw = Draw(SplitMix64::new(seed));
            let mut replica = replica();
            for _ in 0..60 {
                let record = draw.record();
                let (fits, before) = (replica.fits(&record), replica.clone());
                let applied = replica.apply(record.clone());
                assert_eq!(fits, applied.is_some(), "seed {seed}: {record:?}");
                match applied {
                    Some(()) => fit += 1,
                    None => {
                        refused += 1;
                        assert_eq!(replica.to_bytes(), before.to_bytes(), "seed {seed}: {record:?}");
                    }
                }
            }
        }
        assert!(fit > 1000 && refused > 1000, "{fit} fit, {refused} were refused");
    }
}
