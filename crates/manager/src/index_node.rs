//! Index nodes: everything that a manager stores of one file (docs/core.md#manager).
//!
//! The block map is cut into leaves of [`LEAF_BLOCKS`] blocks, so that a checkpoint of a huge file
//! rewrites only changed leaves, and a lookup loads only the leaves that it needs. A small map is
//! stored inside the index node. Otherwise each leaf is a record of its own, and the node has their
//! addresses.
//!
//! Invariants: leaves are in ascending order; no leaf is empty (a leaf that lost its last block is
//! dropped); every extent lies within its leaf. A leaf whose map is not in memory is exactly as its
//! record says. `changed` of a leaf is the stamp of its last change, 0 if it was loaded. The owner
//! of the node knows whether that is newer than the leaf's record in the log.
//!
//! Memory: about 1.2 KiB for a file with a short map, plus 50 bytes per extent beyond eleven.

use crate::InodeRecord;
use crate::api::{Located, NodeSize};
use crate::extents::{ExtentMap, well_formed};
use crate::record::RecordKey;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, Extent};

/// Number of blocks of a leaf. Smaller leaves make small changes cheaper; larger ones keep the list
/// of leaves in the node short.
pub const LEAF_BLOCKS: u64 = 8192;
/// Most extents of a map that is stored inside the index node. All of it must be in memory. More
/// save records; fewer keep nodes short, which are rewritten whole.
pub const INLINE_EXTENTS_MAX: usize = 64;

/// Addresses of a file's leaf records, by leaf number; empty for a map that is stored inline.
pub type LeafHomes = BTreeMap<u64, BlockAddr>;

/// A part of the block map.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Leaf {
    index: u64,
    changed: u64,
    /// `None`: not loaded.
    map: Option<Arc<ExtentMap>>,
}

/// Everything that a manager stores of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexNode {
    /// The inode.
    pub inode: InodeRecord,
    /// Extended attributes by full name.
    pub xattrs: BTreeMap<Vec<u8>, Bytes>,
    /// Symlinks: the target.
    pub target: Option<Bytes>,
    block_size: u32,
    leaves: Vec<Leaf>,
}

/// The numbers of the leaves with blocks of `first .. end`, as an inclusive range; `None` if the
/// range is empty.
fn leaf_span(first: u64, end: u64) -> Option<(u64, u64)> {
    (first < end).then(|| (first / LEAF_BLOCKS, (end - 1) / LEAF_BLOCKS))
}

/// The blocks of a leaf.
fn leaf_range(index: u64) -> (u64, u64) {
    let first = index.saturating_mul(LEAF_BLOCKS);
    (first, first.saturating_add(LEAF_BLOCKS))
}

impl IndexNode {
    /// A file without blocks.
    pub fn new(inode: InodeRecord, block_size: u32) -> Self {
        IndexNode { inode, xattrs: BTreeMap::new(), target: None, block_size, leaves: Vec::new() }
    }

    /// The first leaf with blocks of `first .. end` that is not in memory.
    pub fn missing(&self, first: u64, end: u64) -> Option<u64> {
        self.leaves_in(first, end).iter().find(|leaf| leaf.map.is_none()).map(|leaf| leaf.index)
    }

    /// How much a checkpoint writes for this node if blocks within `first .. end` have changed.
    pub fn size(&self, first: u64, end: u64) -> NodeSize {
        let attributes = self.xattrs.iter().map(|(name, value)| name.len() + value.len() + 16).sum::<usize>();
        let target = self.target.as_ref().map_or(0, |target| target.len());
        // The record has all extents, or the addresses of all leaves.
        let (changed, addresses) =
            if self.is_inline() { (&self.leaves[..], 0) } else { (self.leaves_in(first, end), self.leaves.len()) };
        let extents = changed.iter().filter_map(|leaf| leaf.map.as_ref()).map(|map| map.len()).sum::<usize>();
        NodeSize { attribute_bytes: (attributes + target) as u64, extent_count: (extents + addresses) as u64 }
    }

    /// Numbers of all leaves, ascending.
    pub fn leaf_indices(&self) -> impl Iterator<Item = u64> + '_ {
        self.leaves.iter().map(|leaf| leaf.index)
    }

    /// The extents of a leaf that is in memory.
    pub fn leaf(&self, index: u64) -> Option<&Arc<ExtentMap>> {
        self.leaves[self.position(index).ok()?].map.as_ref()
    }

    /// Stamp of the last change of a leaf.
    pub fn leaf_changed(&self, index: u64) -> Option<u64> {
        Some(self.leaves[self.position(index).ok()?].changed)
    }

    /// Installs the map of a leaf that was not in memory. Has no effect if the leaf is in memory by
    /// now, or is gone.
    pub fn install_leaf(&mut self, index: u64, map: ExtentMap) {
        if let Ok(at) = self.position(index) {
            self.leaves[at].map.get_or_insert_with(|| Arc::new(map));
        }
    }

    /// Marks a leaf as changed, so that the next checkpoint writes it anew.
    pub fn touch_leaf(&mut self, index: u64, stamp: u64) {
        if let Ok(at) = self.position(index) {
            self.leaves[at].changed = stamp;
        }
    }

    /// Maps a run. Its leaves must be in memory. Returns the runs that it replaced.
    pub fn set_blocks(&mut self, extent: Extent, stamp: u64) -> Vec<Extent> {
        let mut replaced = Vec::new();
        let Some((low, high)) = leaf_span(extent.first, extent.end()) else { return replaced };
        for index in low..=high {
            let (first, end) = leaf_range(index);
            let Some(part) = extent.slice(first, end, self.block_size) else { continue };
            let at = self.position(index).unwrap_or_else(|at| {
                let map = Some(Arc::new(ExtentMap::new(self.block_size)));
                self.leaves.insert(at, Leaf { index, changed: stamp, map });
                at
            });
            let leaf = &mut self.leaves[at];
            debug_assert!(leaf.map.is_some(), "leaf {index} is not loaded");
            if let Some(map) = &mut leaf.map {
                replaced.append(&mut Arc::make_mut(map).set(part));
                leaf.changed = stamp;
            }
        }
        replaced
    }

    /// Makes blocks holes. Their leaves must be in memory. Returns the runs that were there.
    pub fn unmap(&mut self, first: u64, end: u64, stamp: u64) -> Vec<Extent> {
        let mut removed = Vec::new();
        let Some((low, high)) = leaf_span(first, end) else { return removed };
        let begin = self.position(low).unwrap_or_else(|at| at);
        for leaf in self.leaves[begin..].iter_mut().take_while(|leaf| leaf.index <= high) {
            debug_assert!(leaf.map.is_some(), "leaf {} is not loaded", leaf.index);
            if let Some(map) = &mut leaf.map
                && map.next_mapped(first).is_some_and(|b| b < end)
            {
                removed.append(&mut Arc::make_mut(map).unmap(first, end));
                leaf.changed = stamp;
            }
        }
        self.leaves.retain(|leaf| leaf.map.as_ref().is_none_or(|map| !map.is_empty()));
        removed
    }

    /// The mapped runs of `first .. end` among the leaves that are in memory, ascending and
    /// clipped.
    pub fn range(&self, first: u64, end: u64) -> impl Iterator<Item = Extent> + '_ {
        self.leaves_in(first, end)
            .iter()
            .filter_map(|leaf| leaf.map.as_ref())
            .flat_map(move |map| map.range(first, end))
    }

    /// Locations from block `first` on: at most `count_max` runs, and not beyond the first leaf
    /// that is not in memory.
    pub fn locate(&self, first: u64, count_max: usize) -> Located {
        let known_until = self.missing(first, u64::MAX).map_or(u64::MAX, |index| leaf_range(index).0.max(first));
        let mut extents: Vec<Extent> = self.range(first, known_until).take(count_max + 1).collect();
        match extents.len() > count_max {
            true => {
                let known_until = extents.pop().map_or(first, |e| e.first);
                Located { extents, known_until }
            }
            false => Located { extents, known_until },
        }
    }

    /// True if the whole map is in memory and short enough to be stored inside the node.
    pub fn is_inline(&self) -> bool {
        let mut count = 0;
        self.leaves.iter().all(|leaf| {
            count += leaf.map.as_ref().map_or(INLINE_EXTENTS_MAX + 1, |map| map.len());
            count <= INLINE_EXTENTS_MAX
        })
    }

    /// Encodes the record of this node. `homes` has the addresses of all leaves; `None` if the map
    /// is stored inline.
    pub fn encode(&self, homes: Option<&LeafHomes>) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        RecordKey::Node(0).begin(&mut out);
        self.inode.encode(&mut out);
        out.put_u32(self.xattrs.len() as u32);
        for (name, value) in &self.xattrs {
            out.put_blob(name);
            out.put_blob(value);
        }
        out.put_u8(self.target.is_some().into());
        if let Some(target) = &self.target {
            out.put_blob(target);
        }
        match homes {
            None => {
                out.put_u8(0);
                let extents: Vec<Extent> = self.range(0, u64::MAX).collect();
                put_extents(&extents, &mut out);
            }
            Some(homes) => {
                out.put_u8(1);
                out.put_u32(homes.len() as u32);
                for (index, addr) in homes {
                    out.put_u64(*index);
                    addr.encode(&mut out);
                }
            }
        }
        out
    }

    /// Reads a node's record. Also returns the addresses of its leaves; these are not in memory
    /// then.
    pub fn decode(bytes: &[u8], block_size: u32) -> Result<(Self, LeafHomes), DecodeError> {
        let mut r = Reader::new(bytes);
        RecordKey::Node(0).check(&mut r)?;
        let mut node = IndexNode::new(InodeRecord::decode(&mut r)?, block_size);
        for _ in 0..r.count(8, "xattrs")? {
            let name = r.blob("xattr name")?.to_vec();
            node.xattrs.insert(name, Bytes::copy_from_slice(r.blob("xattr value")?));
        }
        node.target = match r.u8("target flag")? {
            0 => None,
            1 => Some(Bytes::copy_from_slice(r.blob("symlink target")?)),
            _ => return Err(DecodeError::Invalid("target flag")),
        };
        let mut homes = LeafHomes::new();
        match r.u8("map form")? {
            0 => {
                for extent in take_extents(&mut r, 0, u64::MAX, block_size)? {
                    node.set_blocks(extent, 0);
                }
            }
            1 => {
                for _ in 0..r.count(8 + BlockAddr::ENCODED_LEN, "leaves")? {
                    let (index, addr) = (r.u64("leaf number")?, BlockAddr::decode(&mut r)?);
                    if index > u64::MAX / LEAF_BLOCKS || homes.last_key_value().is_some_and(|(&last, _)| last >= index)
                    {
                        return Err(DecodeError::Invalid("leaf number"));
                    }
                    homes.insert(index, addr);
                    node.leaves.push(Leaf { index, changed: 0, map: None });
                }
            }
            _ => return Err(DecodeError::Invalid("map form")),
        }
        if !r.is_empty() {
            return Err(DecodeError::Invalid("index node length"));
        }
        Ok((node, homes))
    }

    fn position(&self, index: u64) -> Result<usize, usize> {
        self.leaves.binary_search_by_key(&index, |leaf| leaf.index)
    }

    /// The leaves with blocks of `first .. end`.
    fn leaves_in(&self, first: u64, end: u64) -> &[Leaf] {
        let Some((low, high)) = leaf_span(first, end) else { return &[] };
        let begin = self.position(low).unwrap_or_else(|at| at);
        let end = self.position(high).map_or_else(|at| at, |at| at + 1);
        &self.leaves[begin..end]
    }
}

/// Encodes the record of one leaf.
pub fn encode_leaf(file: u64, index: u64, map: &ExtentMap) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + map.len() * Extent::ENCODED_LEN);
    RecordKey::Leaf(file, index).begin(&mut out);
    out.put_u64(file);
    out.put_u64(index);
    let extents: Vec<Extent> = map.iter().copied().collect();
    put_extents(&extents, &mut out);
    out
}

/// Reads the record of leaf `index` of a file.
pub fn decode_leaf(bytes: &[u8], file: u64, index: u64, block_size: u32) -> Result<ExtentMap, DecodeError> {
    let mut r = Reader::new(bytes);
    RecordKey::Leaf(file, index).check(&mut r)?;
    if r.u64("leaf file")? != file || r.u64("leaf number")? != index {
        return Err(DecodeError::Invalid("leaf owner"));
    }
    let (first, end) = leaf_range(index);
    let mut map = ExtentMap::new(block_size);
    for extent in take_extents(&mut r, first, end, block_size)? {
        map.set(extent);
    }
    if !r.is_empty() {
        return Err(DecodeError::Invalid("leaf length"));
    }
    Ok(map)
}

fn put_extents(extents: &[Extent], out: &mut Vec<u8>) {
    out.put_u32(extents.len() as u32);
    for extent in extents {
        extent.encode(out);
    }
}

/// Reads extents. They must be well-formed, ascending, within `first .. end`, and each within one
/// leaf.
fn take_extents(r: &mut Reader<'_>, first: u64, end: u64, block_size: u32) -> Result<Vec<Extent>, DecodeError> {
    let count = r.count(Extent::ENCODED_LEN, "extents")?;
    let mut from = first;
    (0..count)
        .map(|_| {
            let extent = Extent::decode(r)?;
            if !well_formed(&extent, block_size) || extent.first < from || extent.end() > end {
                return Err(DecodeError::Invalid("extent"));
            }
            from = extent.end();
            if leaf_span(extent.first, from).is_none_or(|(low, high)| low != high) {
                return Err(DecodeError::Invalid("extent"));
            }
            Ok(extent)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DirectoryShape;
    use proptest::prelude::*;
    use types::{FileId, Kind, LogId, SegmentId, Time};

    const BLOCK: u32 = 4096;

    fn addr(seq: u64, offset: u32, len: u32) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(1), epoch: 1, seq }, offset, len }
    }
    fn run(first: u64, count: u32, seq: u64) -> Extent {
        Extent { first, count, addr: addr(seq, 0, count * BLOCK) }
    }
    fn inode() -> InodeRecord {
        let t = Time { sec: -5, nsec: 7 };
        InodeRecord {
            id: FileId::new(4711),
            kind: Kind::File,
            mode: 0o640,
            nlink: 1,
            uid: 3,
            gid: 4,
            rdev: 0,
            size: 12345,
            stored_bytes: 4096,
            atime: t,
            mtime: t,
            ctime: t,
            crtime: t,
            parent: FileId::new(0),
            shape: DirectoryShape::default(),
        }
    }

    #[test]
    fn a_run_across_leaves_is_split_and_found_whole() {
        let mut node = IndexNode::new(inode(), BLOCK);
        node.set_blocks(run(LEAF_BLOCKS - 3, 10, 1), 5);
        assert_eq!(node.leaf_indices().collect::<Vec<_>>(), [0, 1]);
        let parts: Vec<Extent> = node.range(0, u64::MAX).collect();
        assert_eq!(
            parts,
            [
                Extent { first: LEAF_BLOCKS - 3, count: 3, addr: addr(1, 0, 3 * BLOCK) },
                Extent { first: LEAF_BLOCKS, count: 7, addr: addr(1, 3 * BLOCK, 7 * BLOCK) },
            ]
        );
        assert_eq!(node.unmap(0, LEAF_BLOCKS, 6).len(), 1);
        assert_eq!(node.leaf_indices().collect::<Vec<_>>(), [1]);
        assert_eq!(node.leaf_changed(1), Some(5));
    }

    #[test]
    fn locations_stop_at_a_leaf_that_is_not_loaded() {
        let mut node = IndexNode::new(inode(), BLOCK);
        for leaf in 0..3 {
            node.set_blocks(run(leaf * LEAF_BLOCKS + 5, 2, leaf), 1);
        }
        let homes: LeafHomes = (0..3).map(|i| (i, addr(9, i as u32 * 100, 100))).collect();
        let (mut loaded, got) = IndexNode::decode(&node.encode(Some(&homes)), BLOCK).unwrap();
        assert_eq!(got, homes);
        assert_eq!(loaded.locate(0, 10), Located { extents: vec![], known_until: 0 });
        assert_eq!(loaded.missing(0, 1), Some(0));
        let map = node.leaf(0).unwrap();
        let again = decode_leaf(&encode_leaf(4711, 0, map), 4711, 0, BLOCK).unwrap();
        assert!(decode_leaf(&encode_leaf(4711, 0, map), 4711, 1, BLOCK).is_err());
        loaded.install_leaf(0, again);
        assert_eq!(
            loaded.locate(6, 10),
            Located {
                extents: vec![run(6, 1, 0)]
                    .into_iter()
                    .map(|mut e| {
                        e.addr.offset = BLOCK;
                        e
                    })
                    .collect(),
                known_until: LEAF_BLOCKS
            }
        );
    }

    #[test]
    fn an_answer_that_is_full_says_where_to_go_on() {
        let mut node = IndexNode::new(inode(), BLOCK);
        for b in 0..5 {
            node.set_blocks(run(b * 2, 1, b), 1);
        }
        let located = node.locate(1, 2);
        assert_eq!((located.extents.len(), located.known_until), (2, 6));
        assert_eq!(node.locate(6, 2).known_until, u64::MAX);
    }

    /// An inline extent across 128 leaves made 128 maps out of 36 bytes. A megabyte of such extents
    /// took gigabytes of memory.
    #[test]
    fn regression_an_inline_extent_across_leaves_is_refused() {
        let mut node = IndexNode::new(inode(), BLOCK);
        node.set_blocks(run(LEAF_BLOCKS - 2, 2, 1), 1);
        let mut record = node.encode(None);
        assert!(IndexNode::decode(&record, BLOCK).is_ok());
        record.truncate(record.len() - Extent::ENCODED_LEN);
        run(LEAF_BLOCKS - 1, 2, 1).encode(&mut record);
        assert_eq!(IndexNode::decode(&record, BLOCK), Err(DecodeError::Invalid("extent")));
    }

    /// Runs around leaf boundaries, from several segments.
    fn extent() -> impl Strategy<Value = Extent> {
        (0u64..4, 0u64..30, 1u32..20, 1u64..5, 0..BLOCK).prop_map(|(leaf, shift, count, seq, cut)| Extent {
            first: (leaf * LEAF_BLOCKS + shift).saturating_sub(15),
            count,
            addr: addr(seq, shift as u32 * BLOCK, count * BLOCK - cut),
        })
    }

    proptest! {
        #[test]
        fn prop_leaves_together_behave_like_one_map(
            sets in prop::collection::vec((extent(), any::<bool>()), 1..40), from in 0u64..40000,
        ) {
            let mut node = IndexNode::new(inode(), BLOCK);
            let mut map = ExtentMap::new(BLOCK);
            for (i, (e, is_set)) in sets.into_iter().enumerate() {
                let bytes = |pieces: &[Extent]| pieces.iter().map(|p| u64::from(p.addr.len)).sum::<u64>();
                if is_set {
                    prop_assert_eq!(bytes(&node.set_blocks(e, i as u64)), bytes(&map.set(e)));
                } else {
                    prop_assert_eq!(bytes(&node.unmap(e.first, e.end(), 1)), bytes(&map.unmap(e.first, e.end())));
                }
                prop_assert!(node.leaves.windows(2).all(|w| w[0].index < w[1].index));
                prop_assert!(node.leaves.iter().all(|l| !l.map.as_ref().unwrap().is_empty()));
            }
            let mut joined = ExtentMap::new(BLOCK);
            for e in node.range(0, u64::MAX) {
                joined.set(e);
            }
            prop_assert_eq!(&joined, &map);
            prop_assert_eq!(node.range(from, from + 9000).map(|e| u64::from(e.count)).sum::<u64>(),
                map.range(from, from + 9000).map(|e| u64::from(e.count)).sum::<u64>());

            // Both stored forms decode to the node.
            node.xattrs.insert(b"user.a".to_vec(), Bytes::from_static(b"b"));
            node.target = Some(Bytes::from_static(b"there"));
            let (inline, homes) = IndexNode::decode(&node.encode(None), BLOCK).unwrap();
            prop_assert!(homes.is_empty());
            prop_assert_eq!(inline.range(0, u64::MAX).collect::<Vec<_>>(), node.range(0, u64::MAX).collect::<Vec<_>>());
            prop_assert_eq!((&inline.inode, &inline.xattrs, &inline.target), (&node.inode, &node.xattrs, &node.target));
            let homes: LeafHomes = node.leaf_indices().map(|i| (i, addr(9, 0, 10))).collect();
            let (mut split, _) = IndexNode::decode(&node.encode(Some(&homes)), BLOCK).unwrap();
            for index in node.leaf_indices() {
                let record = encode_leaf(4711, index, node.leaf(index).unwrap());
                split.install_leaf(index, decode_leaf(&record, 4711, index, BLOCK).unwrap());
            }
            prop_assert_eq!(&split, &inline);
        }

        #[test]
        fn prop_rotten_records_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..200, flip: u8) {
            let _ = IndexNode::decode(&bytes, BLOCK);
            let _ = decode_leaf(&bytes, 1, 0, BLOCK);
            let mut node = IndexNode::new(inode(), BLOCK);
            node.set_blocks(run(3, 4, 1), 1);
            let mut record = node.encode(None);
            let at = at % record.len();
            record[at] ^= flip;
            let _ = IndexNode::decode(&record, BLOCK);
        }
    }
}
