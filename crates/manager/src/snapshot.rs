//! The pure halves of a checkpoint: what has to be written, and what changes once it is durable.
//!
//! A snapshot is the state at one instant; index nodes are shared with the cache and copied only if they change while the
//! checkpoint is being written. Every change after that instant has a later stamp and stays dirty. Until
//! [`State::install`] nothing is taken for saved, so a checkpoint that fails, or is given up half-way, loses nothing.

use crate::imap::{Imap, Piece, piece_of};
use crate::index_node::{IndexNode, LeafHomes};
use crate::root::Root;
use crate::state::{DurableRoot, State};
use crate::usage::Usage;
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
    /// Pieces to write even if none of their files changed.
    pub forced_pieces: BTreeSet<u64>,
    /// The root to be, but for the imap and the own log's usage, which are still those of the last checkpoint.
    pub root: Root,
}

/// What a checkpoint has written.
#[derive(Debug)]
pub struct Written {
    /// Where the leaves of each item are now; removed files have none.
    pub homes: Vec<(FileId, Arc<LeafHomes>)>,
    /// The imap with the new addresses.
    pub imap: Imap,
    /// Live bytes of the own log, without the root's records.
    pub own_usage: Usage,
    /// The segments of the own log whose live bytes changed.
    pub own_changed: BTreeSet<SegmentId>,
    /// The segment with the root record.
    pub root_segment: SegmentId,
    /// The root record and its parts.
    pub root_records: Vec<BlockAddr>,
}

impl State {
    /// True when a checkpoint would write something that recovery does not know.
    pub fn needs_checkpoint(&self) -> bool {
        let Some(root) = &self.root else { return true };
        !self.dirty.is_empty()
            || !self.forced_pieces.is_empty()
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
            forced_pieces: self.forced_pieces.clone(),
            root: Root {
                manager: self.identity.id,
                block_size: self.identity.block_size,
                file_count: self.file_count,
                positions: self.positions.clone(),
                reserves: self.frontiers.to_reserve(),
                orphans: self.orphans.clone(),
                imap: self.imap.clone(),
                data_usage: self.data_usage.clone(),
                own_usage: self.own_usage.clone(),
            },
        }
    }

    /// The checkpoint of a snapshot is durable.
    pub fn install(&mut self, snapshot: Snapshot, written: Written) {
        let Snapshot { stamp, number, items, forced_pieces, root } = snapshot;
        // Frees the snapshot's share of the index nodes, so that the next change need not copy them.
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
        self.imap = written.imap;
        self.own_usage = written.own_usage;
        written.own_changed.into_iter().for_each(|segment| self.changes.touch(segment));
        for key in &forced_pieces {
            self.forced_pieces.remove(key);
        }
        self.force_root = false;
        let covered_before = self.root.as_ref().map_or(0, |root| root.segment.seq);
        for (segment, _) in self.own_tail.range(covered_before + 1..=written.root_segment.seq).map(|(_, kept)| kept) {
            self.changes.cover(*segment);
        }
        for (segment, _) in self.own_tail.range(..written.root_segment.seq).map(|(_, kept)| kept) {
            self.changes.touch(*segment);
        }
        self.own_tail.retain(|&seq, _| seq >= written.root_segment.seq);
        let changes = &mut self.changes;
        self.uncovered.retain(|segment| {
            let is_covered = root.positions.get(&segment.log).is_some_and(|&through| segment.seq <= through);
            if is_covered {
                changes.cover(*segment);
            }
            !is_covered
        });
        self.frontiers.made_durable(&root.reserves);
        self.root = Some(DurableRoot {
            segment: written.root_segment,
            records: written.root_records,
            positions: root.positions,
            reserves: root.reserves,
        });
        self.installed = number;
        self.checkpoint_count += 1;
    }

    /// What the durable checkpoint covers of other logs; of the manager's own log everything up to the root.
    pub fn covered(&self) -> Vec<(LogId, u64)> {
        let Some(root) = &self.root else { return Vec::new() };
        let mut covered: BTreeMap<LogId, u64> = root.positions.clone();
        covered.insert(self.identity.log, root.segment.seq);
        covered.into_iter().collect()
    }
}

/// Accounts for what a checkpoint writes: the imap and the usage of the own log move together.
#[derive(Debug)]
pub struct Relocation {
    /// The imap so far.
    pub imap: Imap,
    /// The own log's usage so far.
    pub usage: Usage,
    /// Segments whose live bytes changed.
    pub changed: BTreeSet<SegmentId>,
    /// Pieces with changes that are not written yet, by number.
    pub pieces: BTreeMap<u64, Piece>,
}

impl Relocation {
    /// Starts from the last checkpoint.
    pub fn new(root: &Root) -> Self {
        Relocation {
            imap: root.imap.clone(),
            usage: root.own_usage.clone(),
            changed: BTreeSet::new(),
            pieces: BTreeMap::new(),
        }
    }

    /// A file's node is at `addr` now (`None`: the file is gone), its leaves at `new` instead of `old`. The file's piece is in
    /// memory, or does not exist.
    pub fn move_file(&mut self, file: FileId, addr: Option<BlockAddr>, old: &LeafHomes, new: &LeafHomes) {
        for (index, home) in old {
            if new.get(index) != Some(home) {
                self.sub(*home);
            }
        }
        for (index, home) in new {
            if old.get(index) != Some(home) {
                self.add(*home);
            }
        }
        let piece = self.piece_mut(piece_of(file));
        let before = piece.get(file);
        piece.set(file, addr);
        if let Some(before) = before {
            self.sub(before);
        }
        if let Some(addr) = addr {
            self.add(addr);
        }
    }

    fn add(&mut self, addr: BlockAddr) {
        self.usage.add(addr);
        self.changed.insert(addr.segment);
    }

    fn sub(&mut self, addr: BlockAddr) {
        self.usage.sub(addr);
        self.changed.insert(addr.segment);
    }

    /// A piece that is to be written.
    pub fn piece_mut(&mut self, key: u64) -> &mut Piece {
        let imap = &self.imap;
        self.pieces.entry(key).or_insert_with(|| imap.piece(key).map(|piece| Piece::clone(piece)).unwrap_or_default())
    }

    /// A piece is at `home` now (`None`: it is empty and has no record any more).
    pub fn move_piece(&mut self, key: u64, home: Option<BlockAddr>, piece: Piece) {
        if let Some(before) = self.imap.home(key) {
            self.sub(before);
        }
        match home {
            Some(home) => {
                self.add(home);
                self.imap.replace(key, home, Arc::new(piece));
            }
            None => self.imap.remove(key),
        }
    }

    /// The root to be written.
    pub fn root(&self, snapshot: &Root) -> Root {
        Root { imap: self.imap.clone(), own_usage: self.usage.clone(), ..snapshot.clone() }
    }
}
