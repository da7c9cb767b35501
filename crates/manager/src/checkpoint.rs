//! Writes a checkpoint into the manager's own log (docs/disk-format-manager.md).
//!
//! Order: leaves and index nodes in order of file id, changed pages of the tables, the root. The
//! segment with the root is put only after all segments before it are durable. So a root that can
//! be read is a whole checkpoint, and recovery may take the newest one, whether it was acknowledged
//! or not.
//!
//! A checkpoint writes in proportion to what changed: for each changed row of a table at most one
//! page per level, and a root of bounded length.
//!
//! *The usage of this log.* Writing a checkpoint changes the log's own usage, which is itself a
//! table with pages in this log. This ends, because the table does not count its own pages: it is
//! written last, when its rows are known, and the places of its pages change none of them. The
//! table's pages are known from its inner pages, which are read at start (one in eighty leaves, and
//! a leaf has about a hundred segments). So their bytes are counted in memory, in `own_pages`. The
//! root itself is kept by the rule for the log's tail: its segment and all after it count as fully
//! live.

use crate::api::ManagerError;
use crate::index_node::{LeafHomes, encode_leaf};
use crate::record::{DIRECTORY_ENTRY_LEN, DIRECTORY_HEADER_LEN, RecordDirectory, RecordKey, Table};
use crate::root::Root;
use crate::s_file::{Difference, counted};
use crate::server::Core;
use crate::snapshot::{Item, TreeSnapshot, Written};
use crate::state::PageAt;
use crate::tree::{Combine, Tree, TreeKey, Value};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stripe::LogWriter;
use striped_log::builder::SegmentBuilder;
use types::{BlockAddr, SegmentId};

/// Most segments of a checkpoint that are in flight at the same time. This bounds memory.
const SEGMENTS_IN_FLIGHT_MAX: u64 = 4;

/// Lays records out in segments of the manager's own log.
struct RecordWriter<'a> {
    core: &'a Core,
    writer: &'a Arc<LogWriter>,
    payload_len_max: usize,
    open: Option<(SegmentBuilder, RecordDirectory)>,
}

impl<'a> RecordWriter<'a> {
    fn new(core: &'a Core) -> Self {
        let payload_len_max = core.config.lengths.segment_len_max as usize;
        RecordWriter { core, writer: &core.writer, payload_len_max, open: None }
    }

    /// Length of the longest record that fits in a segment.
    fn record_len_max(&self) -> usize {
        self.payload_len_max - DIRECTORY_HEADER_LEN - DIRECTORY_ENTRY_LEN
    }

    /// Adds a record and returns its address.
    async fn push(&mut self, key: RecordKey, record: Vec<u8>) -> Result<BlockAddr, ManagerError> {
        self.make_room(record.len()).await?;
        Ok(self.place(key, record))
    }

    /// Submits the open segment if a record of `len` bytes does not fit in it.
    async fn make_room(&mut self, len: usize) -> Result<(), ManagerError> {
        if len > self.record_len_max() {
            tracing::error!(len, "a record of the manager's log exceeds a segment");
            return Err(ManagerError::Log);
        }
        let taken = |(builder, directory): &(SegmentBuilder, RecordDirectory)| {
            builder.len() as usize + directory.encoded_len() + DIRECTORY_ENTRY_LEN
        };
        if self.open.as_ref().is_some_and(|open| taken(open) + len > self.payload_len_max) {
            self.submit().await?;
        }
        Ok(())
    }

    /// Adds a record. There must be room for it.
    fn place(&mut self, key: RecordKey, record: Vec<u8>) -> BlockAddr {
        let (builder, directory) =
            self.open.get_or_insert_with(|| (SegmentBuilder::new(self.writer.begin()), RecordDirectory::default()));
        let addr = builder.push_block(Bytes::from(record));
        directory.push(key, addr.offset, addr.len);
        addr
    }

    /// Waits until all segments but the open one are durable, then ends the checkpoint with its
    /// root. Returns the root's address; its segment is in flight.
    async fn finish(&mut self, root: Vec<u8>) -> Result<BlockAddr, ManagerError> {
        self.make_room(root.len()).await?;
        let before = match &self.open {
            Some((builder, _)) => builder.id().seq.checked_sub(1),
            None => self.core.state.lock().own_tail.keys().next_back().copied(),
        };
        if let Some(seq) = before.filter(|&seq| seq > 0) {
            self.core.committed(seq).await?;
        }
        // Nothing may come between these two: a checkpoint that is given up must not submit a root
        // early.
        let addr = self.place(RecordKey::Root, root);
        self.send();
        Ok(addr)
    }

    /// Submits the open segment, and waits while too many are in flight.
    async fn submit(&mut self) -> Result<(), ManagerError> {
        if let Some(id) = self.send()
            && id.seq > SEGMENTS_IN_FLIGHT_MAX
        {
            self.core.committed(id.seq - SEGMENTS_IN_FLIGHT_MAX).await?;
        }
        Ok(())
    }

    fn send(&mut self) -> Option<SegmentId> {
        let (builder, directory) = self.open.take()?;
        let draft = builder.finish(directory.encode());
        let id = draft.id();
        // From now on the segment may be on stores, and must not look free to a cleaner.
        self.core.state.lock().keep_own_segment(id, draft.payload_len());
        self.writer.submit(draft);
        Some(id)
    }
}

impl Drop for RecordWriter<'_> {
    /// Submits a segment that was begun. Otherwise the log could never go on after a checkpoint
    /// that was given up.
    fn drop(&mut self) {
        self.send();
    }
}

impl Core {
    /// Waits until the segments of the own log up to `seq` are durable.
    pub(crate) async fn committed(&self, seq: u64) -> Result<(), ManagerError> {
        self.writer.wait_committed(seq).await.map_err(|error| {
            tracing::warn!(manager = %self.config.id, %error, "a checkpoint could not be written; its changes stay dirty");
            ManagerError::Log
        })
    }

    /// Writes the checkpoint of a snapshot. It is durable when this returns.
    pub(crate) async fn write(&self, snapshot: &TreeSnapshot) -> Result<Written, ManagerError> {
        // Wait for the segments of an earlier attempt first, so that failing checkpoints do not
        // pile up in memory.
        let begun = self.state.lock().own_tail.keys().next_back().copied();
        if let Some(seq) = begun {
            self.committed(seq).await?;
        }
        let mut records = RecordWriter::new(self);
        let (mut own, mut own_pages) = <(Difference, Difference)>::default();
        let mut homes = Vec::with_capacity(snapshot.items.len());
        let mut nodes = Vec::with_capacity(snapshot.items.len());
        for item in &snapshot.items {
            let (addr, new) = write_file(&mut records, item).await?;
            nodes.push((item.file, addr));
            moved_leaves(&item.homes, &new, &mut own);
            homes.push((item.file, Arc::new(new)));
        }

        let mut trees = snapshot.root.trees.clone();
        for before in self.values(Table::Imap, &mut trees.imap, nodes.iter().map(|&(file, _)| file)).await? {
            own.sub(before);
        }
        nodes.iter().filter_map(|&(_, addr)| addr).for_each(|addr| own.add(addr));
        let mut tables = TableWriter { core: self, forced: &snapshot.forced_pages, records: &mut records };
        let node_moved = |_, _, addr: &Option<BlockAddr>| *addr;
        tables.write(Table::Imap, &mut trees.imap, &nodes, node_moved, &mut own).await?;
        let difference: Vec<_> = snapshot.data_usage.iter().collect();
        let count = |segment, before, by: &i64| counted(segment, before, *by);
        tables.write(Table::DataUsage, &mut trees.data_usage, &difference, count, &mut own).await?;
        let orphans: Vec<_> = snapshot.orphans.iter().map(|(&file, &is_orphan)| (file, is_orphan)).collect();
        let is_orphan = |_, _, is_orphan: &bool| is_orphan.then_some(());
        tables.write(Table::Orphans, &mut trees.orphans, &orphans, is_orphan, &mut own).await?;
        let difference: Vec<_> = own.iter().collect();
        tables.write(Table::OwnUsage, &mut trees.own_usage, &difference, count, &mut own_pages).await?;

        let root = Root { trees, ..snapshot.root.clone() };
        let addr = records.finish(root.encode()).await?;
        self.committed(addr.segment.seq).await?;
        Ok(Written { homes, trees: root.trees, own_usage: own, own_pages, root: addr })
    }
}

/// Adds new leaf records of a file to the usage of the own log, and subtracts old ones.
fn moved_leaves(old: &LeafHomes, new: &LeafHomes, own: &mut Difference) {
    old.iter().filter(|(index, home)| new.get(index) != Some(home)).for_each(|(_, home)| own.sub(*home));
    new.iter().filter(|(index, home)| old.get(index) != Some(home)).for_each(|(_, home)| own.add(*home));
}

/// Writes the pages of tables.
struct TableWriter<'a, 'b> {
    core: &'a Core,
    forced: &'a BTreeSet<PageAt>,
    records: &'a mut RecordWriter<'b>,
}

impl TableWriter<'_, '_> {
    /// Changes a table, and writes its changed and its forced pages. Adds their bytes to `usage`,
    /// and subtracts those of the pages that they replace.
    async fn write<K: TreeKey, V: Value, C: Sync>(
        &mut self,
        table: Table,
        tree: &mut Tree<K, V>,
        changes: &[(K, C)],
        combine: Combine<K, V, C>,
        usage: &mut Difference,
    ) -> Result<(), ManagerError> {
        let mut freed = loop {
            match tree.edit(changes, combine) {
                Ok(freed) => break freed,
                Err(missing) => self.core.fetch(table, tree, missing).await?,
            }
        };
        for page in self.forced.iter().filter(|page| page.table == table) {
            freed.extend(loop {
                match tree.rewrite(&page.page) {
                    Ok(freed) => break freed,
                    Err(missing) => self.core.fetch(table, tree, vec![missing]).await?,
                }
            });
        }
        freed.into_iter().for_each(|home| usage.sub(home));
        for level in 0..tree.height() {
            for link in tree.unwritten(level) {
                let (key, record) = link.encode(table, level);
                let home = self.records.push(key, record).await?;
                link.set_home(home);
                usage.add(home);
            }
        }
        Ok(())
    }
}

/// Writes a file's changed leaves and its index node. Returns their addresses.
async fn write_file(
    records: &mut RecordWriter<'_>,
    item: &Item,
) -> Result<(Option<BlockAddr>, LeafHomes), ManagerError> {
    let mut homes = LeafHomes::new();
    let Some(node) = &item.content else { return Ok((None, homes)) };
    let raw = item.file.raw();
    if !node.is_inline() {
        for index in node.leaf_indices() {
            let unchanged = node.leaf_changed(index).is_some_and(|changed| changed <= item.saved);
            let addr = match (item.homes.get(&index).filter(|_| unchanged), node.leaf(index)) {
                (Some(&home), _) => home,
                (None, Some(map)) => records.push(RecordKey::Leaf(raw, index), encode_leaf(raw, index, map)).await?,
                (None, None) => unreachable!("a leaf that is not in memory is as its record says"),
            };
            homes.insert(index, addr);
        }
    }
    let record = node.encode((!homes.is_empty()).then_some(&homes));
    Ok((Some(records.push(RecordKey::Node(raw), record).await?), homes))
}
