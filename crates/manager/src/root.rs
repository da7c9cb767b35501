//! The root record: the end of a checkpoint, and the beginning of recovery
//! (docs/disk-format-manager.md).
//!
//! Its length is bounded in a store of any size: positions and reserves are bounded by number, and
//! everything that grows with the store is a tree, and the root has only its top page. So a root
//! fits in a segment, and it is one record.

use crate::frontier::LogReserves;
use crate::record::RecordKey;
use crate::tree::{PAGE_ROWS_LEAST, PAGE_ROWS_MAX, Tree};
use std::collections::BTreeMap;
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, FileId, LogId, ManagerId, SegmentId};

/// Most logs of clients and cleaners that a manager follows. All are in each root, so this bounds
/// its length.
pub const POSITIONS_MAX: usize = 1024;
/// Length of the longest encoded row of a tree's top page, in bytes.
const ROW_LEN_MAX: usize = 20 + BlockAddr::ENCODED_LEN;
/// A segment is at least this many times as long as the top pages of all trees together.
const TOPS_PER_SEGMENT: usize = 2;
/// Number of trees in a root.
const TREE_COUNT: usize = crate::record::Table::ALL.len();

/// Most rows of a page, so that roots fit in segments of this length.
pub fn page_rows_max(wanted: usize, segment_len_max: u32) -> usize {
    let fitting = segment_len_max as usize / (TOPS_PER_SEGMENT * TREE_COUNT * ROW_LEN_MAX);
    wanted.min(fitting).clamp(PAGE_ROWS_LEAST, PAGE_ROWS_MAX)
}

/// The tables of a manager, as the newest durable checkpoint has them.
#[derive(Clone, Debug)]
pub struct Trees {
    /// Addresses of index nodes.
    pub imap: Tree<FileId, BlockAddr>,
    /// Live bytes in segments of clients' and cleaners' logs.
    pub data_usage: Tree<SegmentId, u64>,
    /// Live bytes in segments of the manager's own log, without the root and without this tree's
    /// own pages. The tree itself has the addresses of its pages.
    pub own_usage: Tree<SegmentId, u64>,
    /// Files with nlink 0.
    pub orphans: Tree<FileId, ()>,
}

impl Trees {
    /// Empty tables.
    pub fn new(rows_max: usize) -> Self {
        Trees {
            imap: Tree::new(rows_max),
            data_usage: Tree::new(rows_max),
            own_usage: Tree::new(rows_max),
            orphans: Tree::new(rows_max),
        }
    }

    /// Drops leaves from memory until each table has at most `leaves_max`, but at most `steps_max`
    /// of each table.
    pub fn trim(&mut self, leaves_max: usize, steps_max: usize) {
        self.imap.trim(leaves_max, steps_max);
        self.data_usage.trim(leaves_max, steps_max);
        self.own_usage.trim(leaves_max, steps_max);
        self.orphans.trim(leaves_max, steps_max);
    }
}

/// The contents of a root.
#[derive(Clone, Debug)]
pub struct Root {
    /// The manager that wrote it.
    pub manager: ManagerId,
    /// Length of a block in bytes, the same for all files.
    pub block_size: u32,
    /// Number of files under the manager's control.
    pub file_count: u64,
    /// For each client's and cleaner's log: the last seq that the checkpoint covers.
    pub positions: BTreeMap<LogId, u64>,
    /// The highest order of the segments that the checkpoint covers, those that are deleted by now
    /// included; 0 if none has an order.
    pub order: u64,
    /// Where allocation of index numbers goes on after a restart.
    pub reserves: LogReserves,
    /// The tables.
    pub trees: Trees,
}

impl Root {
    /// The root of a manager without files.
    pub fn empty(manager: ManagerId, block_size: u32, rows_max: usize) -> Self {
        Root {
            manager,
            block_size,
            file_count: 0,
            positions: BTreeMap::new(),
            order: 0,
            reserves: LogReserves::default(),
            trees: Trees::new(rows_max),
        }
    }

    /// Encodes the record. All pages must have been written.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        RecordKey::Root.begin(&mut out);
        out.put_u16(self.manager.raw());
        out.put_u32(self.block_size);
        out.put_u64(self.file_count);
        out.put_u64(self.order);
        out.put_u32(self.positions.len() as u32);
        for (log, seq) in &self.positions {
            out.put_u32(log.raw());
            out.put_u64(*seq);
        }
        self.reserves.encode(&mut out);
        self.trees.imap.encode(&mut out);
        self.trees.data_usage.encode(&mut out);
        self.trees.own_usage.encode(&mut out);
        self.trees.orphans.encode(&mut out);
        out
    }

    /// Reads what [`encode`](Self::encode) wrote. Pages that change from now on have at most
    /// `rows_max` rows.
    pub fn decode(bytes: &[u8], rows_max: usize) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let version = RecordKey::Root.check(&mut r)?;
        let (manager, block_size) = (ManagerId::new(r.u16("root manager")?), r.u32("root block size")?);
        let file_count = r.u64("root file count")?;
        let order = if version < 3 { 0 } else { r.u64("root order")? };
        let mut positions = BTreeMap::new();
        for _ in 0..r.count(12, "positions")? {
            positions.insert(LogId::new(r.u32("position log")?), r.u64("position seq")?);
        }
        let reserves = LogReserves::decode(&mut r)?;
        let trees = Trees {
            imap: Tree::decode(&mut r, rows_max)?,
            data_usage: Tree::decode(&mut r, rows_max)?,
            own_usage: Tree::decode(&mut r, rows_max)?,
            orphans: Tree::decode(&mut r, rows_max)?,
        };
        if !r.is_empty() {
            return Err(DecodeError::Invalid("root length"));
        }
        Ok(Root { manager, block_size, file_count, positions, order, reserves, trees })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::{Frontiers, RESERVES_MAX};
    use proptest::prelude::*;

    fn addr(seq: u64, len: u32) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(9), epoch: 2, seq }, offset: 8, len }
    }

    fn sample() -> Root {
        let mut root = Root { file_count: 17, order: 1 << 40, ..Root::empty(ManagerId::new(3), 65536, 8) };
        root.positions.insert(LogId::new(4), 99);
        root.trees.orphans.edit(&[(FileId::new(5000), ())], |_, _, ()| Some(())).unwrap();
        root.trees.imap.edit(&[(FileId::new(12), addr(4, 100))], |_, _, addr| Some(*addr)).unwrap();
        root.trees.data_usage.edit(&[(addr(7, 1).segment, 1000)], |_, _, live| Some(*live)).unwrap();
        root
    }

    #[test]
    fn a_root_round_trips() {
        let bytes = sample().encode();
        let again = Root::decode(&bytes, 8).unwrap();
        assert_eq!(again.encode(), bytes);
        assert_eq!((again.manager, again.file_count, again.block_size), (ManagerId::new(3), 17, 65536));
        assert_eq!(again.order, 1 << 40);
        assert_eq!(again.positions, BTreeMap::from([(LogId::new(4), 99)]));
        assert_eq!(again.trees.imap.get(FileId::new(12)), Ok(Some(addr(4, 100))));
    }

    #[test]
    fn a_root_of_version_2_has_no_order() {
        let bytes = sample().encode();
        // The kind, the version, the manager, the block size and the number of files come first.
        let (before, after) = (&bytes[..16], &bytes[24..]);
        let old = [&[before[0], 2], &before[2..], after].concat();
        let read = Root::decode(&old, 8).unwrap();
        assert_eq!((read.order, Root { order: 1 << 40, ..read }.encode()), (0, bytes));
    }

    #[test]
    fn the_longest_root_is_half_a_segment_at_most() {
        let segment_len_max = 256 << 10;
        let rows = page_rows_max(PAGE_ROWS_MAX, segment_len_max);
        assert_eq!(rows, PAGE_ROWS_MAX);
        let mut frontiers = Frontiers::new(vec![0], 16, &LogReserves::default());
        for volume in 0..=u16::MAX {
            frontiers.allocate(volume);
        }
        let mut reserves = Vec::new();
        frontiers.to_reserve().encode(&mut reserves);
        assert_eq!(reserves.len(), 4 + 12 * RESERVES_MAX);
        let longest = 64 + 12 * POSITIONS_MAX + reserves.len() + TREE_COUNT * (5 + rows * ROW_LEN_MAX);
        assert!(longest < segment_len_max as usize / 2, "{longest}");
    }

    proptest! {
        #[test]
        fn prop_rotten_roots_never_panic(noise in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, flip: u8) {
            let _ = Root::decode(&noise, 8);
            let mut bytes = sample().encode();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let _ = Root::decode(&bytes, 8);
        }
    }
}
