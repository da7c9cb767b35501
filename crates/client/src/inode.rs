//! A cached inode: what the client knows about a file under its tokens, and its changes that are
//! not in the log yet. Pure.
//!
//! Invariants:
//! - `map` has the address of a block as of the last cut, or as the manager said. A block in
//!   `dirty` is newer than the map.
//! - A block's bytes may end before the block does. The rest, up to the file's size, reads as
//!   zeroes.
//! - `record.stored_bytes` is the sum of the lengths of all blocks, each in its newest version.
//! - Before a write to a file, its whole map is known (`known_until == u64::MAX`). So an answer of
//!   the manager never meets changes that the manager does not have yet.

use crate::directory::{BLOCK_DELTA_BYTES, Directory};
use bytes::Bytes;
use manager::api::Opened;
use manager::extents::ExtentMap;
use manager::index_node::{INLINE_EXTENTS_MAX, LEAF_BLOCKS};
use manager::token::Mode;
use manager::{Delta, InodeRecord};
use policy::space;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use striped_log::fragment::CHUNK_LEN;
use types::{BlockAddr, Extent};

/// Changes of an inode since the last cut, besides its dirty blocks.
#[derive(Debug, Default)]
pub struct Pending {
    /// The record.
    pub record: bool,
    /// The symlink target (set once, at creation).
    pub target: bool,
    /// Ranges that became holes; they come before all blocks of the same cut.
    pub unmaps: Vec<(u64, u64)>,
    /// Extended attributes set or removed.
    pub xattrs: BTreeSet<Vec<u8>>,
}

/// A cached inode, with its changes since the last cut.
#[derive(Debug)]
pub struct Inode {
    /// Attributes.
    pub record: InodeRecord,
    /// Extended attributes by name.
    pub xattrs: BTreeMap<Vec<u8>, Bytes>,
    /// Symlinks: the target.
    pub target: Option<Bytes>,
    /// Addresses of blocks.
    pub map: ExtentMap,
    /// The map is complete for blocks before this one.
    pub known_until: u64,
    /// Blocks that are not in any segment yet.
    pub dirty: BTreeMap<u64, Vec<u8>>,
    /// Directories: the entries in memory.
    pub directory: Option<Directory>,
    /// Other changes since the last cut.
    pub pending: Pending,
    /// Seq of the last cut that had something of this inode in it.
    pub last_cut: u64,
    /// Seq of the cut that had, or will have, the newest change of its contents or size.
    pub contents_changed: u64,
    /// Seq of the cut that had, or will have, the newest change that a program made to its
    /// attributes.
    pub attributes_changed: u64,
    /// The managers know this inode, or will learn of it from a cut.
    pub logged: bool,
    /// It is in the list of dirty inodes.
    pub listed: bool,
    /// Bytes that the managers owe for it, as counted since the last cut.
    pub owed_bytes: u64,
    /// It was used since the eviction hand last passed.
    pub used: bool,
    /// The right that the client's token on it gives.
    pub mode: Mode,
    /// The number of the token's newest grant; 0 for a file that this client made.
    pub grant: u64,
    /// When that grant came.
    pub granted_at: Duration,
    /// Another client has it open, and removes it when its last name is gone.
    pub open_elsewhere: bool,
    /// The token is about to be given back: no operation uses it any more.
    pub closing: bool,
}

/// A set of changed blocks, summarised.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    first: u64,
    last: u64,
    count: u64,
}

impl Blocks {
    /// A summary of ascending block numbers; `None` if there are none.
    pub fn of(mut numbers: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) -> Option<Blocks> {
        let count = numbers.len() as u64;
        let first = numbers.next()?;
        Some(Blocks { first, last: numbers.next_back().unwrap_or(first), count })
    }

    /// Number of leaves of the map that these blocks are in, at most.
    fn leaf_count(self) -> u64 {
        self.count.min(self.last / LEAF_BLOCKS - self.first / LEAF_BLOCKS + 1)
    }
}

/// One stretch of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum BlockPiece {
    /// Zeroes.
    Hole(usize),
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes in the log.
    Log(BlockAddr),
}

impl Inode {
    /// A new inode, which is in no log yet.
    pub fn fresh(record: InodeRecord, block_size: u32) -> Self {
        let directory = (record.kind == types::Kind::Directory).then(|| Directory::fresh(block_size));
        Inode { directory, known_until: u64::MAX, logged: false, ..Inode::known(record, block_size) }
    }

    /// An inode as a manager knows it, without its map.
    pub fn known(record: InodeRecord, block_size: u32) -> Self {
        let directory = (record.kind == types::Kind::Directory).then(|| Directory::unloaded(block_size));
        Inode {
            record,
            xattrs: BTreeMap::new(),
            target: None,
            map: ExtentMap::new(block_size),
            known_until: 0,
            dirty: BTreeMap::new(),
            directory,
            pending: Pending::default(),
            last_cut: 0,
            contents_changed: 0,
            attributes_changed: 0,
            logged: true,
            listed: false,
            owed_bytes: 0,
            used: true,
            mode: Mode::Write,
            grant: 0,
            granted_at: Duration::ZERO,
            open_elsewhere: false,
            closing: false,
        }
    }

    /// An inode as a manager's answer describes it.
    pub fn opened(opened: Opened, block_size: u32) -> Self {
        let mut inode = Inode::known(opened.inode, block_size);
        inode.xattrs = opened.xattrs.into_iter().collect();
        inode.target = opened.target;
        opened.located.extents.into_iter().for_each(|extent| drop(inode.map.set(extent)));
        inode.known_until = opened.located.known_until;
        (inode.mode, inode.grant) = (opened.grant.mode, opened.grant.number);
        inode.open_elsewhere = opened.grant.open_elsewhere;
        inode
    }

    /// True if operations may use it so.
    pub fn allows(&self, mode: Mode) -> bool {
        self.mode >= mode && !self.closing
    }

    /// Bytes of the newest version of block `b`.
    pub fn block_len(&self, b: u64) -> u64 {
        match self.dirty.get(&b) {
            Some(bytes) => bytes.len() as u64,
            None => self.map.block(b).map_or(0, |a| a.len.into()),
        }
    }

    /// The address of block `b`, if a write of `[start, end)` in it needs the old contents: if they
    /// are only in the log, and the write does not replace them all.
    pub fn needed_for_write(&self, b: u64, start: u32, end: u32) -> Option<BlockAddr> {
        if self.dirty.contains_key(&b) {
            return None;
        }
        self.map.block(b).filter(|a| start > 0 || end < a.len)
    }

    /// Writes `data` at `start` of block `b`. `old` are the block's bytes from the log, if
    /// [`needed_for_write`](Self::needed_for_write) asked for them. Returns how many more bytes the
    /// next cut needs, at most.
    pub fn write_block(&mut self, b: u64, start: u32, data: &[u8], old: Option<&[u8]>) -> u64 {
        let (start, end) = (start as usize, start as usize + data.len());
        let before = self.block_len(b);
        let counted = self.dirty.get(&b).map(Vec::len);
        let block = self.dirty.entry(b).or_default();
        if let Some(old) = old {
            block.extend_from_slice(old);
        }
        if start >= block.len() {
            block.resize(start, 0);
            block.extend_from_slice(data);
        } else {
            if end > block.len() {
                block.resize(end, 0);
            }
            block[start..end].copy_from_slice(data);
        }
        let after = block.len();
        self.record.stored_bytes = self.record.stored_bytes - before + after as u64;
        match counted {
            Some(counted) => (after - counted) as u64,
            None => after as u64 + BLOCK_DELTA_BYTES,
        }
    }

    /// Makes the blocks `[first, end)` holes. Returns how many dirty bytes were dropped.
    pub fn unmap(&mut self, first: u64, end: u64) -> u64 {
        let mut dropped = 0;
        let gone: Vec<u64> = self.dirty.range(first..end).map(|(b, _)| *b).collect();
        for b in gone {
            if let Some(bytes) = self.dirty.remove(&b) {
                dropped += bytes.len() as u64;
                let beneath = self.map.block(b).map_or(0, |a| u64::from(a.len));
                self.record.stored_bytes = self.record.stored_bytes - bytes.len() as u64 + beneath;
            }
        }
        let removed = self.map.unmap(first, end);
        if !removed.is_empty() {
            self.record.stored_bytes -= removed.iter().map(|e| u64::from(e.addr.len)).sum::<u64>();
            self.pending.unmaps.push((first, end));
        }
        dropped
    }

    /// The address of the first `len` bytes of block `b`, if cutting the block there needs them: if
    /// it is longer, and only in the log.
    pub fn needed_for_trim(&self, b: u64, len: u32) -> Option<BlockAddr> {
        if self.dirty.contains_key(&b) {
            return None;
        }
        self.map.block(b).filter(|a| a.len > len).map(|a| BlockAddr { len, ..a })
    }

    /// Drops the bytes of block `b` from `len` on; `len` is not 0. `old` are the block's first
    /// `len` bytes, if [`needed_for_trim`](Self::needed_for_trim) asked for them. The block is
    /// written again, since an address that a file has left must never be named again: a cleaner
    /// may have emptied its segment. Returns how many dirty bytes were dropped.
    pub fn trim(&mut self, b: u64, len: u32, old: Option<&[u8]>) -> u64 {
        let before = self.block_len(b);
        let dropped = match (self.dirty.get_mut(&b), old) {
            (Some(bytes), _) => {
                let dropped = bytes.len().saturating_sub(len as usize) as u64;
                bytes.truncate(len as usize);
                dropped
            }
            (None, Some(old)) => {
                self.dirty.insert(b, old.to_vec());
                0
            }
            (None, None) => 0,
        };
        self.record.stored_bytes = self.record.stored_bytes - before + self.block_len(b);
        dropped
    }

    /// The stretch `[offset, offset + len)`, which must lie within the file's size, piece by piece.
    /// Runs that are contiguous in the log are one piece.
    pub fn plan_read(&self, offset: u64, len: u64, block_size: u32) -> Vec<BlockPiece> {
        let mut out = Vec::new();
        let bs = u64::from(block_size);
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let b = at / bs;
            let (start, stop) = ((at - b * bs) as usize, (end - b * bs).min(bs) as usize);
            let stored = self.block_len(b) as usize;
            let have = stored.min(stop);
            if start < have {
                match self.dirty.get(&b) {
                    Some(bytes) => out.push(BlockPiece::Bytes(Bytes::copy_from_slice(&bytes[start..have]))),
                    None => push_log(&mut out, self.map.block(b), start as u32, have as u32),
                }
            }
            let zero_from = start.max(have);
            if zero_from < stop {
                match out.last_mut() {
                    Some(BlockPiece::Hole(n)) => *n += stop - zero_from,
                    _ => out.push(BlockPiece::Hole(stop - zero_from)),
                }
            }
            at = b * bs + stop as u64;
        }
        out
    }

    /// First block at or after `b` that has bytes.
    pub fn next_data(&self, b: u64) -> Option<u64> {
        let dirty = self.dirty.range(b..).next().map(|(b, _)| *b);
        let mapped = self.map.next_mapped(b);
        dirty.into_iter().chain(mapped).min()
    }

    /// True if the log has everything about this inode.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && !self.pending.record
            && !self.pending.target
            && self.pending.unmaps.is_empty()
            && self.pending.xattrs.is_empty()
            && self.directory.as_ref().is_none_or(Directory::is_clean)
    }

    /// Bytes that a checkpoint writes for the file, at most, after changes of these blocks and its
    /// other pending changes.
    pub fn index_bytes(&self, blocks: Option<Blocks>) -> u64 {
        let attributes = self.xattrs.iter().map(|(name, value)| name.len() + value.len() + 16).sum::<usize>();
        let target = self.target.as_ref().map_or(0, |target| target.len());
        let (block_count, block_leaves) = blocks.map_or((0, 0), |blocks| (blocks.count, blocks.leaf_count()));
        // A hole changes the leaves at its ends, and can split an extent. A changed leaf is written
        // whole.
        let holes = self.pending.unmaps.len() as u64;
        let leaf_count = (block_leaves + 2 * holes).max(1);
        let of_leaves = (self.map.len() as u64 + block_count + holes).min(leaf_count.saturating_mul(LEAF_BLOCKS));
        let chunk_count = self.record.size.div_ceil(CHUNK_LEN.into());
        let unknown = if self.known_until == u64::MAX { 0 } else { chunk_count.min(INLINE_EXTENTS_MAX as u64) };
        // The index node has the address of each leaf.
        let leaves = chunk_count / LEAF_BLOCKS;
        space::index_bytes((attributes + target) as u64, of_leaves + unknown + leaves)
    }

    /// Bytes that the managers owe for the file beyond those counted since the last cut.
    pub fn owe(&mut self) -> u64 {
        let bytes = self.index_bytes(Blocks::of(self.dirty.keys().copied()));
        let more = bytes.saturating_sub(self.owed_bytes);
        self.owed_bytes += more;
        more
    }

    /// Takes the pending changes as deltas, for a cut; `placed` are the addresses that the dirty
    /// blocks got, ascending.
    pub fn cut(&mut self, seq: u64, placed: &[(u64, BlockAddr)], block_size: u32, deltas: &mut Vec<Delta>) {
        let file = self.record.id;
        let pending = std::mem::take(&mut self.pending);
        if pending.record || !self.logged {
            deltas.push(Delta::Inode(self.record));
        }
        if pending.target
            && let Some(target) = &self.target
        {
            deltas.push(Delta::Symlink { file, target: target.to_vec() });
        }
        for name in pending.xattrs {
            let value = self.xattrs.get(&name).map(|v| v.to_vec());
            deltas.push(Delta::Xattr { file, name, value });
        }
        for (first, end) in pending.unmaps {
            deltas.push(Delta::Unmap { file, first, end });
        }
        let mut run: Option<Extent> = None;
        for &(first, addr) in placed {
            let next = Extent { first, count: 1, addr };
            self.map.set(next);
            run = match run {
                Some(r) if r.continues(&next, block_size) => {
                    Some(Extent { count: r.count + 1, addr: BlockAddr { len: r.addr.len + addr.len, ..r.addr }, ..r })
                }
                Some(r) => {
                    deltas.push(Delta::Blocks { file, extent: r });
                    Some(next)
                }
                None => Some(next),
            };
        }
        deltas.extend(run.map(|extent| Delta::Blocks { file, extent }));
        self.last_cut = seq;
        self.logged = true;
        self.owed_bytes = 0;
    }
}

fn push_log(out: &mut Vec<BlockPiece>, addr: Option<BlockAddr>, start: u32, end: u32) {
    let Some(addr) = addr else { return };
    let next = BlockAddr { offset: addr.offset + start, len: end - start, ..addr };
    match out.last_mut() {
        Some(BlockPiece::Log(run)) if run.segment == next.segment && run.offset + run.len == next.offset => {
            run.len += next.len
        }
        _ => out.push(BlockPiece::Log(next)),
    }
}
