//! A manager's memory: the pure core behind the server.
//!
//! Two layers describe a file. The cache of index nodes is the newer one; a file that was removed
//! since the last checkpoint is there as a tombstone. The imap of the newest durable checkpoint
//! counts for files that are not in the cache. A file in neither does not exist. Live bytes and
//! orphans are the tables of the newest durable checkpoint, plus the difference since. A method
//! that needs a record that is only in the log returns [`MissingRecord`] **before it changes
//! anything**; the server loads the record and calls again.
//!
//! Invariants:
//! - An entry that differs from the log (`changed > saved`) is in `dirty` and is never evicted.
//! - `homes` of an entry are the leaf records that the durable checkpoint has for the file, even if
//!   the file has changed or was removed since.
//! - `trees`, `own_pages` and `root` change only when a checkpoint has become durable
//!   ([`crate::snapshot`]).
//! - Every cached file is exactly once in `ring`.
//!
//! Memory: an index node takes about 1.2 KiB, a leaf of a table at most 4 KiB; both are bounded by
//! number ([`ManagerIdentity`]). Not bounded are the inner pages, with half a byte per file and one
//! byte per segment, and 24 bytes per segment that changed since the last checkpoint.

use crate::api::{BlockAt, ManagerError, ManagerStatus, NodeSize, Opened, Progress, RUN_EXTENTS_MAX};
use crate::changes::Changes;
use crate::clients::Step;
use crate::frontier::{Frontiers, LogReserves};
use crate::index_node::{IndexNode, LeafHomes, decode_leaf};
use crate::manager_map::ManagerMap;
use crate::record::Table;
use crate::root::{Root, Trees};
use crate::s_file::Difference;
use crate::token::Mode;
use crate::token_table::{Decision, TokenTable};
use crate::tree::{PAGE_ROWS_MAX, Unloaded};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use types::codec::DecodeError;
use types::{BlockAddr, ClientId, FileId, LogId, ManagerId, SegmentId};

/// Most bytes that are read to get neighbouring index nodes along with one: a chunk, which is read
/// and verified anyway.
const READ_AROUND_BYTES: u32 = 64 * 1024;
/// Most entries that one operation considers for eviction. This makes up for what one load brings
/// in: the index nodes of a page of the imap. Each of them may get a second chance first.
pub(crate) const EVICTION_STEPS_MAX: usize = 8 * PAGE_ROWS_MAX;
/// For this many index nodes in memory, each table may have one leaf in memory.
const INODES_PER_LEAF: usize = 16;
/// Leaves that each table may have in memory in any case.
const LEAVES_LEAST: usize = 8;

/// The identity and the bounds of a manager.
#[derive(Clone, Debug)]
pub struct ManagerIdentity {
    /// The manager.
    pub id: ManagerId,
    /// Its own log.
    pub log: LogId,
    /// Which manager serves which file.
    pub map: ManagerMap,
    /// Length of a block in bytes.
    pub block_size: u32,
    /// Most index nodes to keep in memory. Dirty ones may be more.
    pub cached_inodes_max: usize,
    /// How many index numbers a client gets at once.
    pub index_range_len: u64,
    /// Most rows of a page of its tables.
    pub rows_max: usize,
}

/// A page of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageAt {
    /// The table.
    pub table: Table,
    /// The page.
    pub page: Unloaded,
}

/// A record that must be read from the manager's own log first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingRecord {
    /// A page of the imap.
    Page(Unloaded),
    /// An index node.
    Node {
        /// The file.
        file: FileId,
        /// The record's address.
        addr: BlockAddr,
    },
    /// A leaf of a block map.
    Leaf {
        /// The file.
        file: FileId,
        /// The leaf's number.
        index: u64,
        /// The record's address.
        addr: BlockAddr,
    },
}

/// Why a step on the state has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApplyStop {
    /// A record is missing: load it, then repeat the step.
    Missing(MissingRecord),
    /// The request is refused.
    Refused(ManagerError),
}

impl From<Unloaded> for MissingRecord {
    fn from(page: Unloaded) -> Self {
        MissingRecord::Page(page)
    }
}
impl From<MissingRecord> for ApplyStop {
    fn from(missing: MissingRecord) -> Self {
        ApplyStop::Missing(missing)
    }
}
impl From<ManagerError> for ApplyStop {
    fn from(error: ManagerError) -> Self {
        ApplyStop::Refused(error)
    }
}

/// A file in the cache.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The index node; `None` if the file was removed since the last checkpoint.
    pub(crate) content: Option<Arc<IndexNode>>,
    /// Leaf records in the durable checkpoint.
    pub(crate) homes: Arc<LeafHomes>,
    /// Stamp of the last change; 0 for a node as it was loaded.
    pub(crate) changed: u64,
    /// Changes up to this stamp are in the durable checkpoint.
    pub(crate) saved: u64,
    /// True if it was used since eviction last considered it.
    referenced: bool,
}

/// A manager's memory.
#[derive(Debug)]
pub struct ManagerState {
    pub(crate) identity: ManagerIdentity,
    /// Grows with every change.
    pub(crate) stamp: u64,
    pub(crate) cache: HashMap<FileId, Entry>,
    /// Cached files in the order in which eviction considers them.
    ring: VecDeque<FileId>,
    /// Files that differ from the log.
    pub(crate) dirty: BTreeSet<FileId>,
    /// The tables of the newest durable checkpoint.
    pub(crate) trees: Trees,
    /// How the live bytes of the logs of clients and cleaners differ from `trees`.
    pub(crate) data_usage: Difference,
    /// Live bytes of the pages of `trees.own_usage`, which no table counts.
    pub(crate) own_pages: Difference,
    /// All segments of the own log from the newest durable root on, by seq, with their payload
    /// length. They count as fully live.
    pub(crate) own_tail: BTreeMap<u64, (SegmentId, u32)>,
    /// Names of segments for the follower of the counts.
    pub(crate) changes: Changes,
    /// Files that have become orphans since the last checkpoint (true), or ceased to be (false).
    pub(crate) orphans: BTreeMap<FileId, bool>,
    /// Segments that were applied and that no durable checkpoint covers yet, in order of each log.
    pub(crate) uncovered: VecDeque<SegmentId>,
    /// For each log: the last seq that was applied.
    pub(crate) positions: BTreeMap<LogId, u64>,
    /// The highest order of a segment that was applied; 0 if none had an order.
    pub(crate) order: u64,
    pub(crate) frontiers: Frontiers,
    pub(crate) file_count: u64,
    pub(crate) tokens: TokenTable,
    /// The logs of the clients that were let in.
    pub(crate) owners: BTreeMap<LogId, ClientId>,
    /// The newest durable root; `None` before the first checkpoint.
    pub(crate) root: Option<DurableRoot>,
    /// Pages that the next checkpoint writes anew, if they are still at these addresses.
    pub(crate) forced_pages: BTreeSet<PageAt>,
    /// The next checkpoint is written even if nothing changed.
    pub(crate) force_root: bool,
    /// How many snapshots were taken.
    pub(crate) snapshot_count: u64,
    /// Number of the newest snapshot that became durable.
    pub(crate) installed: u64,
    pub(crate) checkpoint_count: u64,
}

/// The newest durable root: its address, and its values that have no other record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DurableRoot {
    pub(crate) record: BlockAddr,
    pub(crate) positions: BTreeMap<LogId, u64>,
    pub(crate) reserves: LogReserves,
}

impl ManagerState {
    /// Which changes are applied.
    pub fn progress(&self) -> Progress {
        Progress { applied: self.positions.clone(), order: self.order }
    }

    /// The state of the newest durable root, which is stored at the address. Without a root, the
    /// state of a manager without files.
    pub fn new(identity: ManagerIdentity, root: Option<(Root, BlockAddr)>) -> Self {
        let (root, record) = match root {
            Some((root, record)) => (root, Some(record)),
            None => (Root::empty(identity.id, identity.block_size, identity.rows_max), None),
        };
        let slots = identity.map.slots_of(identity.id).collect();
        ManagerState {
            stamp: 0,
            cache: HashMap::new(),
            ring: VecDeque::new(),
            dirty: BTreeSet::new(),
            trees: root.trees,
            data_usage: Difference::default(),
            own_pages: Difference::default(),
            own_tail: BTreeMap::new(),
            changes: Changes::default(),
            uncovered: VecDeque::new(),
            orphans: BTreeMap::new(),
            frontiers: Frontiers::new(slots, identity.index_range_len, &root.reserves),
            file_count: root.file_count,
            tokens: TokenTable::new(),
            owners: BTreeMap::new(),
            root: record.map(|record| DurableRoot {
                record,
                positions: root.positions.clone(),
                reserves: root.reserves,
            }),
            positions: root.positions,
            order: root.order,
            forced_pages: BTreeSet::new(),
            force_root: false,
            snapshot_count: 0,
            installed: 0,
            checkpoint_count: 0,
            identity,
        }
    }

    /// Fails if another manager serves the file's slot.
    pub(crate) fn serves(&self, file: FileId) -> Result<(), ManagerError> {
        match self.is_mine(file) {
            true => Ok(()),
            false => Err(ManagerError::StaleMap(self.identity.map.epoch)),
        }
    }

    /// True if this manager controls the file.
    pub(crate) fn is_mine(&self, file: FileId) -> bool {
        self.identity.map.owner_of(file) == self.identity.id
    }

    /// True if the file exists. Its index node is in the cache then.
    pub(crate) fn find(&mut self, file: FileId) -> Result<bool, MissingRecord> {
        if let Some(entry) = self.cache.get_mut(&file) {
            entry.referenced = true;
            return Ok(entry.content.is_some());
        }
        match self.node_record(file)? {
            None => Ok(false),
            Some(addr) => Err(MissingRecord::Node { file, addr }),
        }
    }

    /// The address of a file's index node in the newest durable checkpoint.
    pub(crate) fn node_record(&self, file: FileId) -> Result<Option<BlockAddr>, MissingRecord> {
        Ok(self.trees.imap.get(file)?)
    }

    /// Keeps a segment of the own log that recovery may need, or that is being written: it counts
    /// as fully live.
    pub(crate) fn keep_own_segment(&mut self, segment: SegmentId, payload_len: u32) {
        self.own_tail.insert(segment.seq, (segment, payload_len));
        self.changes.touch(segment);
    }

    /// Like [`find`](Self::find). Also finds all leaves with blocks of `first .. end`.
    pub(crate) fn find_blocks(&mut self, file: FileId, first: u64, end: u64) -> Result<bool, MissingRecord> {
        if !self.find(file)? {
            return Ok(false);
        }
        match self.cache.get(&file).and_then(|e| Some((e, e.content.as_ref()?.missing(first, end)?))) {
            None => Ok(true),
            Some((entry, index)) => match entry.homes.get(&index) {
                Some(&addr) => Err(MissingRecord::Leaf { file, index, addr }),
                // Unloaded leaves come from a node record, together with their homes.
                None => unreachable!("a leaf that is not in memory has a record"),
            },
        }
    }

    /// The index node of a file in the cache, for reading.
    pub(crate) fn node(&self, file: FileId) -> Option<&IndexNode> {
        self.cache.get(&file)?.content.as_deref()
    }

    /// The index node of a file in the cache, for a change, and the stamp of the change. The file
    /// is dirty from now on.
    pub(crate) fn node_mut(&mut self, file: FileId) -> Option<(&mut IndexNode, u64)> {
        let entry = self.cache.get_mut(&file)?;
        let content = entry.content.as_mut()?;
        self.stamp += 1;
        if entry.changed <= entry.saved {
            self.dirty.insert(file);
        }
        entry.changed = self.stamp;
        Some((Arc::make_mut(content), self.stamp))
    }

    /// Puts a new file, or the tombstone of a removed one (`None`), in the cache, as dirty.
    pub(crate) fn put(&mut self, file: FileId, content: Option<IndexNode>) {
        self.stamp += 1;
        let ring = &mut self.ring;
        let entry = self.cache.entry(file).or_insert_with(|| {
            ring.push_back(file);
            Entry { content: None, homes: Arc::default(), changed: 0, saved: 0, referenced: true }
        });
        entry.content = content.map(Arc::new);
        entry.changed = self.stamp;
        self.dirty.insert(file);
    }

    /// Takes a token on a file for a client, and returns the file's inode and locations.
    pub(crate) fn grant(&mut self, client: ClientId, file: FileId, mode: Mode) -> Result<Step, ApplyStop> {
        self.serves(file)?;
        if !self.find_blocks(file, 0, 1)? {
            return Err(ManagerError::NotFound.into());
        }
        let grant = match self.tokens.request(client, file, mode) {
            Decision::Granted(grant) => grant,
            Decision::Blocked(recalls) => return Ok(Step::Blocked(recalls)),
        };
        let Some(node) = self.node(file) else { return Err(ManagerError::NotFound.into()) };
        Ok(Step::Opened(Box::new(Opened {
            inode: node.inode,
            xattrs: node.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            target: node.target.clone(),
            located: node.locate(0, RUN_EXTENTS_MAX),
            grant,
            order: self.order,
        })))
    }

    /// True if the file has no name any more, and no client without a token has it open.
    pub fn is_abandoned(&mut self, file: FileId) -> Result<bool, ApplyStop> {
        self.serves(file)?;
        Ok(self.find(file)? && !self.tokens.is_open(file) && self.node(file).is_some_and(|n| n.inode.nlink == 0))
    }

    /// Locations from block `first` on.
    pub fn locate(&mut self, file: FileId, first: u64) -> Result<crate::api::Located, ApplyStop> {
        self.serves(file)?;
        if !self.find_blocks(file, first, first.saturating_add(1))? {
            return Err(ManagerError::NotFound.into());
        }
        let mut located = self.node(file).map(|node| node.locate(first, RUN_EXTENTS_MAX)).unwrap_or_default();
        if located.known_until == first {
            // `first` is the highest block number, which cannot be in any run.
            located.known_until = u64::MAX;
        }
        Ok(located)
    }

    /// The index nodes to read together with a file's, from one stretch of the log: those of files
    /// of the same page that come right after it. Checkpoints write nodes in order of file id, so a
    /// walk over files reads once for many of them.
    pub fn around(&self, file: FileId, addr: BlockAddr) -> Vec<(FileId, BlockAddr)> {
        let Ok(rows) = self.trees.imap.leaf(file) else { return vec![(file, addr)] };
        let end = addr.offset.saturating_add(READ_AROUND_BYTES.max(addr.len));
        let close = |a: &BlockAddr| a.segment == addr.segment && a.offset >= addr.offset && a.offset + a.len <= end;
        let near = rows.iter().filter(|(f, a)| *f == file || (close(a) && !self.cache.contains_key(f)));
        near.copied().collect()
    }

    /// Installs a page of the imap that was read.
    pub fn install_page(&mut self, page: &Unloaded, bytes: &[u8]) -> Result<(), DecodeError> {
        self.trees.imap.install(Table::Imap, page, bytes)
    }

    /// Installs an index node that was read from `addr`, unless there is a newer one by now.
    pub fn install_node(&mut self, file: FileId, addr: BlockAddr, bytes: &[u8]) -> Result<(), DecodeError> {
        let (node, homes) = IndexNode::decode(bytes, self.identity.block_size)?;
        if node.inode.id != file {
            return Err(DecodeError::Invalid("index node owner"));
        }
        if self.trees.imap.get(file) == Ok(Some(addr)) && !self.cache.contains_key(&file) {
            let content = Some(Arc::new(node));
            let homes = Arc::new(homes);
            self.cache.insert(file, Entry { content, homes, changed: 0, saved: 0, referenced: false });
            self.ring.push_back(file);
        }
        Ok(())
    }

    /// Installs a leaf that was read from `addr`, unless there is a newer one by now.
    pub fn install_leaf(&mut self, file: FileId, index: u64, addr: BlockAddr, bytes: &[u8]) -> Result<(), DecodeError> {
        let map = decode_leaf(bytes, file.raw(), index, self.identity.block_size)?;
        if let Some(entry) = self.cache.get_mut(&file)
            && entry.homes.get(&index) == Some(&addr)
            && let Some(node) = &mut entry.content
        {
            Arc::make_mut(node).install_leaf(index, map);
        }
        Ok(())
    }

    /// True if a missing record is still at its address. Meanwhile a checkpoint may have moved it,
    /// and the cleaner may have deleted the old copy.
    pub fn is_current(&self, missing: &MissingRecord) -> bool {
        match *missing {
            MissingRecord::Page(page) => self.trees.imap.lacks(&page),
            MissingRecord::Node { file, addr } => self.trees.imap.get(file) == Ok(Some(addr)),
            MissingRecord::Leaf { file, index, addr } => {
                self.cache.get(&file).is_some_and(|entry| entry.homes.get(&index) == Some(&addr))
            }
        }
    }

    /// Drops clean index nodes and leaves of tables if there are too many. The work of a call is
    /// bounded. True if there may still be too many index nodes.
    pub fn evict(&mut self) -> bool {
        let leaves_max = (self.identity.cached_inodes_max / INODES_PER_LEAF).max(LEAVES_LEAST);
        self.trees.trim(leaves_max, EVICTION_STEPS_MAX);
        self.evict_nodes()
    }

    /// Drops index nodes that were not used for long, by the clock algorithm: a used one gets a
    /// second chance.
    fn evict_nodes(&mut self) -> bool {
        for _ in 0..EVICTION_STEPS_MAX {
            if self.cache.len() <= self.identity.cached_inodes_max || self.cache.len() == self.dirty.len() {
                return false;
            }
            let Some(file) = self.ring.pop_front() else { return false };
            let Some(entry) = self.cache.get_mut(&file) else { continue };
            if entry.changed > entry.saved || entry.referenced {
                entry.referenced = false;
                self.ring.push_back(file);
            } else {
                self.cache.remove(&file);
            }
        }
        true
    }

    /// Number of index nodes in memory.
    pub fn cached_count(&self) -> usize {
        self.cache.len()
    }

    /// Drops a tombstone whose removal is durable.
    pub(crate) fn drop_tombstone(&mut self, file: FileId) {
        self.cache.remove(&file);
        // Its place in the ring is removed when the clock passes, or here when there are many.
        if self.ring.len() > 2 * self.cache.len() + 1024 {
            let cache = &self.cache;
            self.ring.retain(|file| cache.contains_key(file));
        }
    }

    /// The files that the next checkpoint writes, with the size of their nodes. Removed files have
    /// none.
    pub fn owed(&self) -> Vec<(FileId, Option<NodeSize>)> {
        let size = |file: &FileId| Some(self.node(*file)?.size(0, u64::MAX));
        self.dirty.iter().map(|file| (*file, size(file))).collect()
    }

    /// How much the next checkpoint writes for a file if this run of it is moved; `None` if the
    /// file is gone.
    pub fn size(&mut self, run: &BlockAt) -> Result<Option<NodeSize>, MissingRecord> {
        let (file, extent) = (run.file, run.extent);
        let is_there = self.is_mine(file) && self.find_blocks(file, extent.first, extent.end())?;
        Ok(self.node(file).filter(|_| is_there).map(|node| node.size(extent.first, extent.end())))
    }

    /// The manager's numbers for `status`.
    pub fn status(&self) -> ManagerStatus {
        ManagerStatus {
            file_count: self.file_count,
            cached_count: self.cache.len() as u64,
            dirty_count: self.dirty.len() as u64,
            token_count: self.tokens.count(),
            checkpoint_count: self.checkpoint_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BLOCK, inode};
    use types::Extent;

    fn addr(seq: u64) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(3), epoch: 1, seq }, offset: 0, len: 100 }
    }

    /// A manager with one file in its checkpoint, at `addr(1)`.
    fn state(file: FileId) -> ManagerState {
        let id = ManagerId::new(0);
        let map = ManagerMap::single(id);
        let identity = ManagerIdentity {
            id,
            log: LogId::new(3),
            map,
            block_size: BLOCK,
            cached_inodes_max: 4,
            index_range_len: 16,
            rows_max: 8,
        };
        let mut state = ManagerState::new(identity, None);
        state.trees.imap.edit(&[(file, addr(1))], |_, _, addr| Some(*addr)).unwrap();
        state.file_count = 1;
        state
    }

    #[test]
    fn a_record_that_was_moved_while_it_was_read_is_not_taken() {
        let file = FileId::new(5000);
        let mut state = state(file);
        let record = IndexNode::new(inode(file, 1, 1), BLOCK).encode(None);
        assert_eq!(state.find(file), Err(MissingRecord::Node { file, addr: addr(1) }));
        state.install_node(file, addr(2), &record).unwrap();
        assert!(state.find(file).is_err(), "a stale record was taken");
        assert!(state.is_current(&MissingRecord::Node { file, addr: addr(1) }));
        assert!(!state.is_current(&MissingRecord::Node { file, addr: addr(2) }));
        state.install_node(file, addr(1), &record).unwrap();
        assert_eq!(state.find(file), Ok(true));
        let other = IndexNode::new(inode(FileId::new(5001), 1, 1), BLOCK).encode(None);
        assert!(state.install_node(file, addr(1), &other).is_err(), "another file's record was taken");
    }

    #[test]
    fn a_loaded_record_does_not_replace_what_changed_meanwhile() {
        let file = FileId::new(5000);
        let mut state = state(file);
        let record = IndexNode::new(inode(file, 1, 1), BLOCK).encode(None);
        state.install_node(file, addr(1), &record).unwrap();
        let extent = Extent { first: 0, count: 1, addr: BlockAddr { len: BLOCK, ..addr(7) } };
        state.apply(None, &[crate::Delta::Blocks { file, extent }]).unwrap();
        state.install_node(file, addr(1), &record).unwrap();
        assert_eq!(state.node(file).map(|node| node.range(0, 9).count()), Some(1));
        state.apply(None, &[crate::Delta::Remove { file }]).unwrap();
        state.install_node(file, addr(1), &record).unwrap();
        assert_eq!(state.find(file), Ok(false), "a removed file came back");
    }
}
