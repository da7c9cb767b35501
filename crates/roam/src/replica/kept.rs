//! The encoding of a replica in a snapshot on disk.

use super::{NUMBER_MAX, Node, Replica};
use bytes::Bytes;
use roam_proto::codec::Wire;
use roam_proto::message::Facts;
use roam_proto::oplog::OpLog;
use roam_proto::ranges::Ranges;
use roam_proto::wire_struct;
use std::collections::BTreeMap;
use types::FileId;
use types::codec::{DecodeError, Reader};

/// Version of the encoding.
const VERSION: u16 = 7;
/// The version before, in which the log held no contents.
const VERSION_WITHOUT_CONTENTS: u16 = 6;

/// How many files go into a snapshot in one step. The lock is held during a step, which takes a
/// part of a millisecond.
const SNAPSHOT_FILE_COUNT: usize = 512;

/// A node, as the snapshot has it.
struct Kept {
    facts: Facts,
    seen: u64,
    is_stale: bool,
    names: Option<BTreeMap<Vec<u8>, FileId>>,
    names_of: Option<u64>,
    parent: FileId,
    data: u64,
    kept: Ranges,
    begun_size: u64,
    is_dirty: bool,
    base: u64,
}
wire_struct!(Kept { facts, seen, is_stale, names, names_of, parent, data, kept, begun_size, is_dirty, base });

/// The bytes of a replica as it was when the snapshot began. They are made step by step while the
/// replica changes.
pub(crate) struct Snapshot {
    bytes: Vec<u8>,
    /// The part of the encoding that comes after the files.
    rest: Vec<u8>,
    /// Files whose writes go to other contents than those that the log names.
    apart: Vec<FileId>,
    contents: BTreeMap<u64, Bytes>,
}

impl Snapshot {
    fn add(&mut self, id: FileId, node: &Node) {
        node.encode_kept(&mut self.bytes);
        if node.is_apart {
            self.apart.push(id);
        }
    }

    /// The bytes of the snapshot. The caller has added all files.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend(self.rest);
        self.apart.encode(&mut self.bytes);
        self.contents.encode(&mut self.bytes);
        self.bytes
    }
}

impl Node {
    /// Encodes the node as [`Kept`].
    fn encode_kept(&self, out: &mut Vec<u8>) {
        let Node { facts, seen, is_stale, names, names_of, parent, data, kept, begun_size, base, .. } = self;
        match &self.unlogged {
            None => facts.encode(out),
            Some(unlogged) => {
                let mut facts = facts.clone();
                (facts.size, facts.blocks) = (unlogged.size, unlogged.size.div_ceil(512));
                if Some(facts.mtime) == unlogged.written_at {
                    (facts.mtime, facts.ctime) = unlogged.times;
                }
                facts.encode(out);
            }
        }
        (*seen, *is_stale).encode(out);
        names.encode(out);
        (*names_of, *parent).encode(out);
        self.unlogged.as_ref().map_or(*data, |unlogged| unlogged.data).encode(out);
        kept.encode(out);
        begun_size.encode(out);
        self.is_dirty().encode(out);
        base.encode(out);
    }
}

impl Replica {
    /// Begins a snapshot of the present state.
    pub(crate) fn begin_snapshot(&mut self) -> Snapshot {
        self.nodes.begin_snapshot();
        self.snapshot_without_files()
    }

    /// Adds some files to a snapshot. False if there are no more.
    pub(crate) fn add_some_to(&mut self, snapshot: &mut Snapshot) -> bool {
        self.nodes.take_some(SNAPSHOT_FILE_COUNT, |id, node| snapshot.add(*id, node))
    }

    fn snapshot_without_files(&self) -> Snapshot {
        let (mut bytes, mut rest) = (Vec::new(), Vec::new());
        VERSION.encode(&mut bytes);
        self.membership.encode(&mut bytes);
        self.stamp.encode(&mut bytes);
        (self.nodes.len() as u64).encode(&mut bytes);
        self.log.encode(&mut rest);
        self.done.encode(&mut rest);
        self.answered.encode(&mut rest);
        self.ids.encode(&mut rest);
        self.newest.encode(&mut rest);
        self.next_data.encode(&mut rest);
        self.hoard.encode(&mut rest);
        self.conflicts.encode(&mut rest);
        self.next_conflict.encode(&mut rest);
        self.aliases.encode(&mut rest);
        self.meant.encode(&mut rest);
        Snapshot { bytes, rest, apart: Vec::new(), contents: self.contents.clone() }
    }
}

impl Wire for Replica {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut snapshot = self.snapshot_without_files();
        self.nodes.iter().for_each(|(id, node)| snapshot.add(*id, node));
        out.extend(snapshot.finish());
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = u16::decode(r)?;
        if version != VERSION && version != VERSION_WITHOUT_CONTENTS {
            return Err(DecodeError::Version { what: "the cache", found: version, known: VERSION });
        }
        let (membership, stamp) = (Wire::decode(r)?, Wire::decode(r)?);
        let (mut nodes, mut last) = (BTreeMap::new(), None);
        for _ in 0..u64::decode(r)? {
            let Kept { facts, seen, is_stale, names, names_of, parent, data, kept, begun_size, is_dirty, base } =
                Wire::decode(r)?;
            let have = kept.clone();
            let id = facts.id;
            if last.replace(id) >= Some(id) {
                return Err(DecodeError::Invalid("order of files"));
            }
            let mut node = Node {
                seen,
                is_stale,
                names,
                names_of,
                parent,
                data,
                have,
                kept,
                begun_size,
                base,
                ..Node::new(facts)
            };
            if is_dirty {
                node.changes.mark();
            }
            nodes.insert(id, node);
        }
        let log = OpLog::decode(r)?;
        nodes.values_mut().for_each(|node| node.listed_at = log.pinned());
        let mut replica = Replica {
            membership,
            stamp,
            nodes: nodes.into(),
            log,
            done: Wire::decode(r)?,
            answered: Wire::decode(r)?,
            ids: Wire::decode(r)?,
            newest: Wire::decode(r)?,
            next_data: Wire::decode(r)?,
            contents: BTreeMap::new(),
            contents_len: 0,
            hoard: Wire::decode(r)?,
            unused: Vec::new(),
            logged_again: Vec::new(),
            conflicts: Wire::decode(r)?,
            next_conflict: Wire::decode(r)?,
            aliases: Wire::decode(r)?,
            meant: Wire::decode(r)?,
        };
        if version == VERSION {
            for file in Vec::<FileId>::decode(r)? {
                replica.node_mut(file).map_err(|_| DecodeError::Invalid("file that is changed"))?.is_apart = true;
            }
            replica.contents = Wire::decode(r)?;
            let lens = replica.contents.values().map(|bytes| bytes.len() as u64);
            replica.contents_len = lens.sum();
            if replica.contents.keys().any(|number| *number == 0 || *number > NUMBER_MAX) {
                return Err(DecodeError::Invalid("number of contents"));
            }
        }
        if replica.aliases.values().any(|real| replica.aliases.contains_key(real)) {
            return Err(DecodeError::Invalid("id that means another file"));
        }
        let (first, count) = replica.ids;
        if first.checked_add(count).is_none() || replica.next_data.max(replica.next_conflict) > NUMBER_MAX {
            return Err(DecodeError::Invalid("numbers of a cache"));
        }
        Ok(replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{Membership, Record};
    use crate::testing::facts;
    use roam_proto::message::{NamedFacts, User};
    use roam_proto::operation::{Attributes, Operation};
    use types::{Kind, Time};

    const FILE_COUNT: u64 = 5 * SNAPSHOT_FILE_COUNT as u64;

    fn id(number: u64) -> FileId {
        FileId::new(FileId::ROOT.raw() + number)
    }

    fn listed(numbers: impl Iterator<Item = u64>) -> Record {
        let entry = |number: u64| NamedFacts {
            name: format!("{number:05}").into_bytes(),
            facts: facts(id(number), Kind::File),
        };
        Record::Listed { dir: Box::new(facts(FileId::ROOT, Kind::Directory)), entries: numbers.map(entry).collect() }
    }

    fn done(replica: &mut Replica, operation: Operation) {
        let when = Time { sec: 1, nsec: 0 };
        assert!(replica.apply(Record::Did { operation, when }).is_some());
    }

    #[test]
    fn a_snapshot_has_what_was_known_when_it_began() {
        let user = User { uid: 0, gid: 0, groups: Vec::new() };
        let membership = Membership { root: FileId::ROOT, user, incarnation: 1, file_len_max: u64::MAX };
        let mut replica = Replica::default();
        for record in [Record::Joined(membership), listed(1..FILE_COUNT)] {
            assert!(replica.apply(record).is_some());
        }
        replica.node_mut(id(7)).expect("file").is_apart = true;
        let before = replica.clone();
        let mut snapshot = replica.begin_snapshot();
        let mut rounds = 0;
        while replica.add_some_to(&mut snapshot) {
            rounds += 1;
            let (first, last) = (id(rounds), id(FILE_COUNT - rounds));
            for file in [first, last] {
                let attributes = Attributes { mode: Some(0o700), ..Attributes::default() };
                done(&mut replica, Operation::Set { file, attributes });
            }
            let gone = FILE_COUNT - 100 - rounds;
            let others = (1..FILE_COUNT).filter(|number| *number != gone);
            assert!(replica.apply(listed(others.chain([FILE_COUNT + rounds]))).is_some());
            if rounds == 3 {
                assert!(replica.apply(Record::AllBroken).is_some());
            }
        }
        assert_eq!(rounds, FILE_COUNT / SNAPSHOT_FILE_COUNT as u64);
        let bytes = snapshot.finish();
        assert!(bytes == before.to_bytes());
        assert!(bytes != replica.to_bytes());
        let mut read = Replica::from_bytes(&bytes).expect("a replica");
        assert_eq!(read.nodes().count(), FILE_COUNT as usize);
        assert!(read.node_mut(id(7)).expect("file").is_apart);
    }
}
