//! Applies deltas. A manager's files change nowhere else.
//!
//! Each delta is all or nothing. If some of a segment's deltas were applied and all are applied
//! again from the start, the end state and the utilisation are the same, because every count
//! follows the true contents of the map. So a batch that a failed read cut off is simply sent
//! again. And a checkpoint may come between two deltas of a segment: it records the position of the
//! segment before.

use crate::api::{BlockAt, ManagerError};
use crate::extents::well_formed;
use crate::index_node::IndexNode;
use crate::root::POSITIONS_MAX;
use crate::state::{ManagerState, MissingRecord};
use crate::{Delta, InodeRecord};
use bytes::Bytes;
use std::cmp::Ordering;
use types::{BlockAddr, ClientId, Extent, FileId, SegmentId};

/// Whether a segment's deltas can be applied now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Yes: it is the next segment of its log.
    Next,
    /// No need: it was applied before.
    Old,
    /// No: segments before it are missing.
    TooEarly,
    /// No: it is of a new log, and there are [`POSITIONS_MAX`] logs already.
    TooMany,
}

impl ManagerState {
    /// Whether it is a segment's turn. The first segment of a new log may have any seq: a new
    /// manager has no part in earlier ones.
    pub fn turn(&self, segment: SegmentId) -> Turn {
        match self.positions.get(&segment.log) {
            None if self.positions.len() >= POSITIONS_MAX => Turn::TooMany,
            None => Turn::Next,
            Some(&applied) => match segment.seq.cmp(&applied.saturating_add(1)) {
                Ordering::Less => Turn::Old,
                Ordering::Equal => Turn::Next,
                Ordering::Greater => Turn::TooEarly,
            },
        }
    }

    /// Notes that all deltas of a segment with this order were applied.
    pub fn advance(&mut self, segment: SegmentId, order: u64) {
        self.order = self.order.max(order);
        self.positions.insert(segment.log, segment.seq);
        self.uncovered.push_back(segment);
    }

    /// Fails if a delta is malformed. Check all deltas of a segment before any of them is applied.
    pub fn check(&self, delta: &Delta) -> Result<(), ManagerError> {
        let fits = |e: &Extent| well_formed(e, self.identity.block_size);
        match delta {
            Delta::Blocks { extent, .. } if !fits(extent) => Err(ManagerError::BadRequest("misfit blocks")),
            Delta::Unmap { first, end, .. } if first > end => Err(ManagerError::BadRequest("misfit unmap")),
            Delta::Move { from, to, .. }
                if !fits(from) || to.len != from.addr.len || !fits(&Extent { addr: *to, ..*from }) =>
            {
                Err(ManagerError::BadRequest("misfit move"))
            }
            _ => Ok(()),
        }
    }

    /// Applies `deltas[0]`. The others are the deltas that follow it in the same segment. A file
    /// that `author` makes so is under a write token of that client.
    pub fn apply(&mut self, author: Option<ClientId>, deltas: &[Delta]) -> Result<(), MissingRecord> {
        let Some((delta, rest)) = deltas.split_first() else { return Ok(()) };
        let file = delta.file();
        if !self.is_mine(file) {
            return Ok(());
        }
        match delta {
            Delta::Inode(inode) => self.apply_inode(author, inode),
            Delta::Blocks { extent, .. } => self.apply_blocks(author, file, *extent, rest),
            Delta::Unmap { first, end, .. } => self.apply_unmap(file, *first, *end),
            Delta::Xattr { name, value, .. } => {
                if self.find_or_create(author, file, rest)?
                    && let Some((node, _)) = self.node_mut(file)
                {
                    match value {
                        Some(value) => node.xattrs.insert(name.clone(), Bytes::copy_from_slice(value)),
                        None => node.xattrs.remove(name),
                    };
                }
                Ok(())
            }
            Delta::Symlink { target, .. } => {
                if self.find_or_create(author, file, rest)?
                    && let Some((node, _)) = self.node_mut(file)
                {
                    node.target = Some(Bytes::copy_from_slice(target));
                }
                Ok(())
            }
            Delta::Remove { .. } => self.apply_remove(file),
            Delta::Move { from, to, .. } => self.apply_move(file, from, *to),
        }
    }

    fn apply_inode(&mut self, author: Option<ClientId>, inode: &InodeRecord) -> Result<(), MissingRecord> {
        let mut was_orphan = false;
        if !self.find(inode.id)? {
            self.put(inode.id, Some(IndexNode::new(*inode, self.identity.block_size)));
            self.file_count += 1;
            author.into_iter().for_each(|client| self.tokens.created(client, inode.id));
        } else if let Some((node, _)) = self.node_mut(inode.id) {
            was_orphan = node.inode.nlink == 0;
            node.inode = *inode;
        }
        let is_orphan = inode.nlink == 0;
        if is_orphan != was_orphan {
            self.orphans.insert(inode.id, is_orphan);
        }
        Ok(())
    }

    /// Finds a file, or creates it if its inode comes later in the same segment. False if there is
    /// no such file.
    fn find_or_create(
        &mut self,
        author: Option<ClientId>,
        file: FileId,
        rest: &[Delta],
    ) -> Result<bool, MissingRecord> {
        if self.find(file)? {
            return Ok(true);
        }
        let inode = rest.iter().find_map(|delta| match delta {
            Delta::Inode(inode) if inode.id == file => Some(inode),
            _ => None,
        });
        match inode {
            Some(inode) => self.apply_inode(author, inode).map(|()| true),
            None => {
                tracing::warn!(%file, "a log changes a file that does not exist");
                Ok(false)
            }
        }
    }

    fn apply_blocks(
        &mut self,
        author: Option<ClientId>,
        file: FileId,
        extent: Extent,
        rest: &[Delta],
    ) -> Result<(), MissingRecord> {
        if !self.find_or_create(author, file, rest)? || !self.find_blocks(file, extent.first, extent.end())? {
            return Ok(());
        }
        self.map_blocks(file, extent);
        Ok(())
    }

    /// Maps blocks of a file and updates the counts. The leaves must be in memory.
    fn map_blocks(&mut self, file: FileId, extent: Extent) {
        let Some((node, stamp)) = self.node_mut(file) else { return };
        for old in node.set_blocks(extent, stamp) {
            self.data_usage.sub(old.addr);
            self.changes.touch(old.addr.segment);
        }
        self.data_usage.add(extent.addr);
        self.changes.touch(extent.addr.segment);
    }

    fn apply_unmap(&mut self, file: FileId, first: u64, end: u64) -> Result<(), MissingRecord> {
        if self.find_blocks(file, first, end)?
            && let Some((node, stamp)) = self.node_mut(file)
        {
            for old in node.unmap(first, end, stamp) {
                self.data_usage.sub(old.addr);
                self.changes.touch(old.addr.segment);
            }
        }
        Ok(())
    }

    fn apply_remove(&mut self, file: FileId) -> Result<(), MissingRecord> {
        if !self.find_blocks(file, 0, u64::MAX)? {
            return Ok(());
        }
        if let Some(entry) = self.cache.get(&file)
            && let Some(node) = &entry.content
        {
            if node.inode.nlink == 0 {
                self.orphans.insert(file, false);
            }
            for old in node.range(0, u64::MAX) {
                self.data_usage.sub(old.addr);
                self.changes.touch(old.addr.segment);
            }
        }
        self.put(file, None);
        self.tokens.forget(file);
        self.file_count -= 1;
        Ok(())
    }

    fn apply_move(&mut self, file: FileId, from: &Extent, to: BlockAddr) -> Result<(), MissingRecord> {
        if !self.find_blocks(file, from.first, from.end())? {
            return Ok(());
        }
        let (still, block_size) = (self.still_at(file, from), self.identity.block_size);
        if still.is_empty() {
            return Ok(());
        }
        let copy = Extent { addr: to, ..*from };
        for part in still.iter().filter_map(|run| copy.slice(run.first, run.end(), block_size)) {
            self.map_blocks(file, part);
        }
        Ok(())
    }

    /// The runs of `from` whose blocks are still exactly there. The leaves must be in memory.
    fn still_at(&self, file: FileId, from: &Extent) -> Vec<Extent> {
        let block_size = self.identity.block_size;
        let same = |run: &Extent| from.slice(run.first, run.end(), block_size).is_some_and(|f| f.addr == run.addr);
        let Some(node) = self.node(file) else { return Vec::new() };
        // Both runs are contiguous, and a block at an address never changes its length. So they
        // agree in all blocks or in none.
        node.range(from.first, from.end()).filter(same).collect()
    }

    /// The parts of a candidate that are still where the cleaner found them.
    pub fn live(&mut self, candidate: &BlockAt) -> Result<Vec<BlockAt>, MissingRecord> {
        let (file, from) = (candidate.file, candidate.extent);
        if !self.is_mine(file)
            || !well_formed(&from, self.identity.block_size)
            || !self.find_blocks(file, from.first, from.end())?
        {
            return Ok(Vec::new());
        }
        // Compare positions, not lengths: a block that a delta cut in place since would still be at
        // the candidate's address. (Clients write a block anew when they cut it.)
        let block_size = u64::from(self.identity.block_size);
        let there = |run: &Extent| {
            let offset = u64::from(from.addr.offset) + (run.first - from.first) * block_size;
            run.addr.segment == from.addr.segment && u64::from(run.addr.offset) == offset
        };
        let Some(node) = self.node(file) else { return Ok(Vec::new()) };
        Ok(node.range(from.first, from.end()).filter(there).map(|extent| BlockAt { file, extent }).collect())
    }
}
