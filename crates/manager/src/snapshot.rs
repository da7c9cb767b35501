//! The pure halves of a checkpoint: the snapshot that is to be written, and the changes of the
//! state once it is durable.
//!
//! A snapshot is the state at one instant. It shares index nodes and pages with the state; they are
//! copied only if they change while the checkpoint is being written. A change after that instant
//! has a later stamp and stays dirty, or is in a difference that the snapshot does not have. Before
//! [`ManagerState::install`] nothing counts as saved, so a checkpoint that fails, or is given up
//! half-way, loses nothing.

use crate::index_node::{IndexNode, LeafHomes};
use crate::root::{Root, Trees};
use crate::s_file::Difference;
use crate::state::{DurableRoot, ManagerState, PageAt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{BlockAddr, FileId, LogId, SegmentId};

/// A file that differs from the log.
#[derive(Clone, Debug)]
pub struct Item {
    /// The file.
    pub file: FileId,
    /// Its index node; `None` if the file was removed.
    pub content: Option<Arc<IndexNode>>,
    /// Its leaf records as of the last checkpoint.
    pub homes: Arc<LeafHomes>,
    /// Leaves that changed after this stamp differ from their records.
    pub saved: u64,
}

/// The state that a checkpoint writes.
#[derive(Clone, Debug)]
pub struct TreeSnapshot {
    /// The snapshot has all changes up to this stamp.
    pub stamp: u64,
    /// The number of this snapshot, counted from 1.
    pub number: u64,
    /// The files that differ from the log, in order of file id.
    pub items: Vec<Item>,
    /// Pages to write even if nothing in them changed.
    pub forced_pages: BTreeSet<PageAt>,
    /// How the live bytes of clients' and cleaners' logs differ from the last checkpoint.
    pub data_usage: Difference,
    /// Files that have become orphans since the last checkpoint (true), or ceased to be (false).
    pub orphans: BTreeMap<FileId, bool>,
    /// The new root, except that the trees are still those of the last checkpoint.
    pub root: Root,
}

/// A checkpoint that has been written.
#[derive(Debug)]
pub struct Written {
    /// The new addresses of the leaves of each item. Removed files have none.
    pub homes: Vec<(FileId, Arc<LeafHomes>)>,
    /// The tables, with the new addresses.
    pub trees: Trees,
    /// How the live bytes of the own log differ from the last checkpoint, without the pages of the
    /// table that counts them.
    pub own_usage: Difference,
    /// How the live bytes of that table's own pages differ.
    pub own_pages: Difference,
    /// The address of the root record.
    pub root: BlockAddr,
}

impl ManagerState {
    /// True if a checkpoint would write anything that the durable one does not have.
    pub fn needs_checkpoint(&self) -> bool {
        let Some(root) = &self.root else { return true };
        !self.dirty.is_empty()
            || !self.forced_pages.is_empty()
            || self.force_root
            || root.positions != self.positions
            || root.reserves != self.frontiers.to_reserve()
    }

    /// Takes a snapshot of the present state.
    pub fn snapshot(&mut self) -> TreeSnapshot {
        self.snapshot_count += 1;
        let items = self.dirty.iter().filter_map(|file| {
            let entry = self.cache.get(file)?;
            let (content, homes) = (entry.content.clone(), entry.homes.clone());
            Some(Item { file: *file, content, homes, saved: entry.saved })
        });
        TreeSnapshot {
            stamp: self.stamp,
            number: self.snapshot_count,
            items: items.collect(),
            forced_pages: self.forced_pages.clone(),
            data_usage: self.data_usage.clone(),
            orphans: self.orphans.clone(),
            root: Root {
                manager: self.identity.id,
                block_size: self.identity.block_size,
                file_count: self.file_count,
                positions: self.positions.clone(),
                order: self.order,
                reserves: self.frontiers.to_reserve(),
                trees: self.trees.clone(),
            },
        }
    }

    /// Takes over a checkpoint that is durable.
    pub fn install(&mut self, snapshot: TreeSnapshot, written: Written) {
        let TreeSnapshot { stamp, number, items, forced_pages, data_usage, orphans, root } = snapshot;
        // Give up the snapshot's share of the index nodes, so that the next change need not copy
        // them.
        drop(items);
        for (file, homes) in written.homes {
            let Some(entry) = self.cache.get_mut(&file) else { continue };
            entry.saved = stamp;
            entry.homes = homes;
            if entry.changed <= stamp {
                self.dirty.remove(&file);
                if entry.content.is_none() {
                    self.drop_tombstone(file);
                }
            }
        }
        self.trees = written.trees;
        self.data_usage.settle(&data_usage);
        self.orphans.retain(|file, is_orphan| orphans.get(file) != Some(is_orphan));
        self.own_pages.merge(&written.own_pages);
        for page in &forced_pages {
            self.forced_pages.remove(page);
        }
        self.force_root = false;
        let own_changed = written.own_usage.iter().chain(written.own_pages.iter()).map(|(segment, _)| segment);
        own_changed.for_each(|segment| self.changes.touch(segment));
        self.cover(&root.positions, written.root.segment);
        self.frontiers.made_durable(&root.reserves);
        self.root = Some(DurableRoot { record: written.root, positions: root.positions, reserves: root.reserves });
        self.installed = number;
        self.checkpoint_count += 1;
    }

    /// Tells the follower which segments a new root covers, and ends the tail of the own log at the
    /// root.
    fn cover(&mut self, positions: &BTreeMap<LogId, u64>, root: SegmentId) {
        let covered_before = self.root.as_ref().map_or(0, |root| root.record.segment.seq);
        for (segment, _) in self.own_tail.range(covered_before + 1..=root.seq).map(|(_, kept)| kept) {
            self.changes.cover(*segment);
        }
        for (segment, _) in self.own_tail.range(..root.seq).map(|(_, kept)| kept) {
            self.changes.touch(*segment);
        }
        self.own_tail.retain(|&seq, _| seq >= root.seq);
        let changes = &mut self.changes;
        self.uncovered.retain(|segment| {
            let is_covered = positions.get(&segment.log).is_some_and(|&through| segment.seq <= through);
            if is_covered {
                changes.cover(*segment);
            }
            !is_covered
        });
    }

    /// How far the durable checkpoint covers each log. The manager's own log is covered up to the
    /// root.
    pub fn covered(&self) -> Vec<(LogId, u64)> {
        let Some(root) = &self.root else { return Vec::new() };
        let mut covered: BTreeMap<LogId, u64> = root.positions.clone();
        covered.insert(self.identity.log, root.record.segment.seq);
        covered.into_iter().collect()
    }
}
