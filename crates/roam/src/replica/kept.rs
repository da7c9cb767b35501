//! What a client knows, as it is kept on its disk.

use super::{NUMBER_MAX, Node, Replica};
use crate::oplog::OpLog;
use roam_wire::codec::Wire;
use roam_wire::message::Facts;
use roam_wire::ranges::Ranges;
use roam_wire::wire_struct;
use std::collections::BTreeMap;
use types::FileId;
use types::codec::{DecodeError, Reader};

/// Version of what is kept.
const VERSION: u16 = 7;
/// Before, no contents were in the log.
const VERSION_WITHOUT_CONTENTS: u16 = 6;

/// A node, as it is kept.
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

impl Wire for Replica {
    fn encode(&self, out: &mut Vec<u8>) {
        VERSION.encode(out);
        self.membership.encode(out);
        self.stamp.encode(out);
        (self.nodes.len() as u64).encode(out);
        for node in self.nodes.values() {
            let is_dirty = node.is_dirty();
            let Node { mut facts, seen, is_stale, names, names_of, parent, mut data, kept, begun_size, base, .. } =
                node.clone();
            if let Some(unlogged) = &node.unlogged {
                data = unlogged.data;
                (facts.size, facts.blocks) = (unlogged.size, unlogged.size.div_ceil(512));
                if Some(facts.mtime) == unlogged.written_at {
                    (facts.mtime, facts.ctime) = unlogged.times;
                }
            }
            Kept { facts, seen, is_stale, names, names_of, parent, data, kept, begun_size, is_dirty, base }.encode(out);
        }
        self.log.encode(out);
        self.done.encode(out);
        self.answered.encode(out);
        self.ids.encode(out);
        self.newest.encode(out);
        self.next_data.encode(out);
        self.hoard.encode(out);
        self.troubles.encode(out);
        self.next_trouble.encode(out);
        self.aliases.encode(out);
        self.meant.encode(out);
        let apart: Vec<FileId> = self.nodes().filter(|(_, node)| node.is_apart).map(|(id, _)| id).collect();
        apart.encode(out);
        self.contents.encode(out);
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
            nodes,
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
            troubles: Wire::decode(r)?,
            next_trouble: Wire::decode(r)?,
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
        if first.checked_add(count).is_none() || replica.next_data.max(replica.next_trouble) > NUMBER_MAX {
            return Err(DecodeError::Invalid("numbers of a cache"));
        }
        Ok(replica)
    }
}
