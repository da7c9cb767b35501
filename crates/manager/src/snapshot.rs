//! The pure halves of a checkpoint: what has to be written, and what changes once it is durable.
//!
//! A snapshot is the state at one instant; index nodes and pages are shared with the state and
//! copied only if they change while the checkpoint is being written. Every change after that
//! instant has a later stamp and stays dirty, or is in a difference that the snapshot does not
//! have. Until [`State::install`] nothing is taken for saved, so a checkpoint that fails, or is
//! given up half-way, loses nothing.

use crate::index_node::{IndexNode, LeafHomes};
use crate::root::{Root, Trees};
use crate::s_file::Difference;
use crate::state::{DurableRoot, PageAt, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{BlockAddr, FileId, LogId, SegmentId};

/// A file that differs from the log.
#[derive(Clone, Debug)]
pub struct Item {
    /// The file.
    pub file: FileId,
    /// `None`: removed.
    pub content: Option<Arc<IndexNode>>,
    /// Its leaf records as of the last checkpoint.
    pub homes: Arc<LeafHomes>,
    /// Leaves that changed after this stamp differ from their records.
    pub saved: u64,
}

/// What a checkpoint writes.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Changes up to this stamp are contained.
    pub stamp: u64,
    /// Which snapshot, counted from 1.
    pub number: u64,
    /// In order of file id.
    pub items: Vec<Item>,
    /// Pages to write even if nothing in them changed.
    pub forced_pages: BTreeSet<PageAt>,
    /// How the live bytes of clients' and cleaners' logs differ from the last checkpoint.
    pub data_usage: Difference,
    /// Files that have become orphans since the last checkpoint, or ceased to be.
    pub orphans: BTreeMap<FileId, bool>,
    /// The root to be, but for the trees, which are still those of the last checkpoint.
    pub root: Root,
}

/// What a checkpoint has written.
#[derive(Debug)]
pub struct Written {
    /// Where the leaves of each item are now; removed files have none.
    pub homes: Vec<(FileId, Arc<LeafHomes>)>,
    /// The tables, with the new addresses.
    pub trees: Trees,
    /// How the live bytes of the own log differ from the last checkpoint: those that its table
    /// counts.
    pub own_usage: Difference,
    /// And those of this table's own pages.
    pub own_pages: Difference,
    /// The root record.
    pub root: BlockAddr,
}

impl State {
    /// True when a checkpoint would write something that recovery does not know.
    pub fn needs_checkpoint(&self) -> bool {
        let Some(root) = &self.root else { return true };
        !self.dirty.is_empty()
            || !self.forced_pages.is_empty()
            || self.force_root
            || root.positions != self.positions
            || root.reserves != self.frontiers.to_reserve()
    }

    /// The state now, to be written.
    pub fn snapshot(&mut self) -> Snapshot {
        self.snapshot_count += 1;
        let items = self.dirty.iter().filter_map(|file| {
            let entry = self.cache.get(file)?;
            let (content, homes) = (entry.content.clone(), entry.homes.clone());
            Some(Item { file: *file, content, homes, saved: entry.saved })
        });
        Snapshot {
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
                reserves: self.frontiers.to_reserve(),
                trees: self.trees.clone(),
            },
        }
    }

    /// The checkpoint of a snapshot is durable.
    pub fn install(&mut self, snapshot: Snapshot, written: Written) {
        let Snapshot { stamp, number, items, forced_pages, data_usage, orphans, root } = snapshot;
        // Frees the snapshot's share of the index nodes, so that the next change need not copy
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

    /// What the durable checkpoint covers of other logs; of the manager's own log everything up to
    /// the root.
    pub fn covered(&self) -> Vec<(LogId, u64)> {
        let Some(root) = &self.root else { return Vec::new() };
        let mut covered: BTreeMap<LogId, u64> = root.positions.clone();
        covered.insert(self.identity.log, root.record.segment.seq);
        covered.into_iter().collect()
    }
}
