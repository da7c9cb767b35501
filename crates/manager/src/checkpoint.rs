//! Writing a checkpoint into the manager's own log (docs/disk-format-manager.md).
//!
//! Order: leaves and index nodes in order of file id, imap pieces, parts of the root if it has any, the root. The segment with
//! the root is put only after all segments before it are durable. So a root that can be read is a whole checkpoint, and
//! recovery may take the newest one, whether it was acknowledged or not.

use crate::api::ManagerError;
use crate::imap::{Lookup, piece_of};
use crate::index_node::{LeafHomes, encode_leaf};
use crate::record::{DIRECTORY_ENTRY_LEN, DIRECTORY_HEADER_LEN, Directory, RecordKey};
use crate::root::{RootRecord, encode_part};
use crate::server::Core;
use crate::snapshot::{Item, Relocation, Snapshot, Written};
use crate::state::Missing;
use bytes::Bytes;
use std::sync::Arc;
use stripe::LogWriter;
use striped_log::segment::SegmentBuilder;
use types::{BlockAddr, SegmentId};

/// Segments of a checkpoint that may be in flight at the same time.
const SEGMENTS_IN_FLIGHT_MAX: u64 = 4;
/// Bytes of a root record besides the root: kind, version, form, length.
const ROOT_FRAME_LEN: usize = 7;
/// Bytes of a root part besides its piece of the root: kind, version, number, length.
const PART_FRAME_LEN: usize = 14;

/// Lays records out in segments of the manager's own log.
struct RecordWriter<'a> {
    core: &'a Core,
    writer: &'a Arc<LogWriter>,
    payload_len_max: usize,
    open: Option<(SegmentBuilder, Directory)>,
}

impl<'a> RecordWriter<'a> {
    fn new(core: &'a Core) -> Self {
        let payload_len_max = core.segment_len_max as usize;
        RecordWriter { core, writer: &core.writer, payload_len_max, open: None }
    }

    /// Longest record that fits a segment.
    fn record_len_max(&self) -> usize {
        self.payload_len_max - DIRECTORY_HEADER_LEN - DIRECTORY_ENTRY_LEN
    }

    /// Adds a record and returns where it is.
    async fn push(&mut self, key: RecordKey, record: Vec<u8>) -> Result<BlockAddr, ManagerError> {
        self.make_room(record.len()).await?;
        Ok(self.place(key, record))
    }

    /// Sees to it that a record of `len` bytes fits the open segment, or that none is open.
    async fn make_room(&mut self, len: usize) -> Result<(), ManagerError> {
        if len > self.record_len_max() {
            tracing::error!(len, "a record of the manager's log exceeds a segment");
            return Err(ManagerError::Log);
        }
        let taken = |(builder, directory): &(SegmentBuilder, Directory)| {
            builder.len() as usize + directory.encoded_len() + DIRECTORY_ENTRY_LEN
        };
        if self.open.as_ref().is_some_and(|open| taken(open) + len > self.payload_len_max) {
            self.submit().await?;
        }
        Ok(())
    }

    /// Adds a record for which there is room.
    fn place(&mut self, key: RecordKey, record: Vec<u8>) -> BlockAddr {
        let (builder, directory) = self.open.get_or_insert_with(|| {
            let (id, previous) = self.writer.begin();
            (SegmentBuilder::new(id, previous), Directory::default())
        });
        let addr = builder.push_block(Bytes::from(record));
        directory.push(key, addr.offset, addr.len);
        addr
    }

    /// Ends the checkpoint with its root, once all segments but the open one are durable. Returns where the root is; its segment
    /// is on its way.
    async fn finish(&mut self, root: Vec<u8>) -> Result<BlockAddr, ManagerError> {
        self.make_room(root.len()).await?;
        let before = match &self.open {
            Some((builder, _)) => builder.id().seq.checked_sub(1),
            None => self.core.state.lock().own_tail.keys().next_back().copied(),
        };
        if let Some(seq) = before.filter(|&seq| seq > 0) {
            self.core.committed(seq).await?;
        }
        // Nothing may come between these two: a checkpoint that is given up must not send a root off early.
        let addr = self.place(RecordKey::Root, root);
        self.send();
        Ok(addr)
    }

    /// Sends the open segment off and waits while too many are in flight.
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
        // From now on it may be on stores, and must not look free to a cleaner.
        self.core.state.lock().keep_own_segment(id, draft.payload_len());
        self.writer.submit(draft);
        Some(id)
    }
}

impl Drop for RecordWriter<'_> {
    /// A segment that was begun must be submitted, or the log could never go on, not even after a checkpoint that was given up.
    fn drop(&mut self) {
        self.send();
    }
}

impl Core {
    /// Done when the segments of the own log up to `seq` are durable.
    pub(crate) async fn committed(&self, seq: u64) -> Result<(), ManagerError> {
        self.writer.wait_committed(seq).await.map_err(|error| {
            tracing::warn!(manager = %self.config.id, %error, "a checkpoint could not be written; all stays dirty");
            ManagerError::Log
        })
    }

    /// Writes a snapshot's checkpoint; durable when this returns.
    pub(crate) async fn write(&self, snapshot: &Snapshot) -> Result<Written, ManagerError> {
        // What an earlier attempt left behind comes first, so that failing checkpoints do not pile up in memory.
        let begun = self.state.lock().own_tail.keys().next_back().copied();
        if let Some(seq) = begun {
            self.committed(seq).await?;
        }
        let mut moved = Relocation::new(&snapshot.root);
        self.load_pieces(snapshot, &mut moved).await?;

        let mut records = RecordWriter::new(self);
        let mut homes = Vec::with_capacity(snapshot.items.len());
        for item in &snapshot.items {
            let (addr, new) = write_file(&mut records, item).await?;
            moved.move_file(item.file, addr, &item.homes, &new);
            homes.push((item.file, Arc::new(new)));
        }
        for &key in &snapshot.forced_pieces {
            moved.piece_mut(key);
        }
        for (key, piece) in std::mem::take(&mut moved.pieces) {
            let home = match piece.is_empty() {
                true => None,
                false => Some(records.push(RecordKey::Piece(key), piece.encode(key)).await?),
            };
            moved.move_piece(key, home, piece);
        }

        let (root, parts) = write_root(&mut records, moved.root(&snapshot.root).encode()).await?;
        let root_segment = root.segment;
        let root_records = std::iter::once(root).chain(parts).collect();
        self.committed(root_segment.seq).await?;
        let (own_usage, own_changed) = (moved.usage, moved.changed);
        Ok(Written { homes, imap: moved.imap, own_usage, own_changed, root_segment, root_records })
    }

    /// Loads the pieces that will change, before any segment is begun.
    async fn load_pieces(&self, snapshot: &Snapshot, moved: &mut Relocation) -> Result<(), ManagerError> {
        let of_items = snapshot.items.iter().filter_map(|item| match snapshot.root.imap.lookup(item.file) {
            Lookup::Unloaded(addr) => Some((piece_of(item.file), addr)),
            Lookup::Absent | Lookup::At(_) => None,
        });
        let forced = snapshot.forced_pieces.iter().filter_map(|&key| {
            let unloaded = snapshot.root.imap.piece(key).is_none();
            Some((key, snapshot.root.imap.home(key).filter(|_| unloaded)?))
        });
        let mut wanted: Vec<_> = of_items.chain(forced).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for (key, addr) in wanted {
            self.load(Missing::Piece { key, addr }).await?;
            if let Some(piece) = self.state.lock().imap.piece(key) {
                moved.imap.install(key, addr, piece.clone());
            }
        }
        Ok(())
    }
}

/// Writes a file's changed leaves and its node.
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

/// Writes the root, in parts if it must be. Returns where the root record and its parts are.
async fn write_root(
    records: &mut RecordWriter<'_>,
    body: Vec<u8>,
) -> Result<(BlockAddr, Vec<BlockAddr>), ManagerError> {
    let mut parts = Vec::new();
    let record = if body.len() + ROOT_FRAME_LEN <= records.record_len_max() {
        RootRecord::Whole(body)
    } else {
        for (part, bytes) in body.chunks(records.record_len_max() - PART_FRAME_LEN).enumerate() {
            let part = part as u64;
            parts.push(records.push(RecordKey::RootPart(part), encode_part(part, bytes)).await?);
        }
        RootRecord::Parts(parts.clone())
    };
    Ok((records.finish(record.encode()).await?, parts))
}
