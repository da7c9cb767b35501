//! Builds a segment at a cut: lays out blocks and deltas.
//!
//! A block gets its address when it is pushed. The bytes are copied together later, so a cut, which
//! holds the client's lock, copies nothing. The layout is: full blocks, so that each begins at a
//! chunk boundary; short blocks, packed; the delta section.

use crate::fragment::{CHUNK_LEN, DATA_FRAGMENTS_MAX, FRAGMENT_LEN_MAX};
use crate::segment::Segment;
use bytes::{BufMut, Bytes};
use types::aligned::AlignedBuffer;
use types::{BlockAddr, SegmentId};

/// Longest payload of any segment in bytes: what the widest stripe holds.
pub const PAYLOAD_LEN_MAX: u32 = DATA_FRAGMENTS_MAX as u32 * FRAGMENT_LEN_MAX;

/// A segment's place in its log, and among the segments of all logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPlace {
    /// The segment's name.
    pub id: SegmentId,
    /// The segment before it in the log.
    pub previous: Option<SegmentId>,
    /// Above the order of every segment before it in the log, and of every segment that a manager
    /// had applied when it granted the writer something. The right to change a thing moves to
    /// another writer only when all changes so far are applied. So of two changes to one thing,
    /// the later one has the higher order.
    pub order: u64,
}

/// Collects a segment's blocks: first all full ones, then the short ones, then
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct SegmentBuilder {
    place: LogPlace,
    blocks: Vec<Bytes>,
    /// Bytes pushed so far.
    len: u32,
}

impl SegmentBuilder {
    /// An empty segment at this place.
    pub fn new(place: LogPlace) -> Self {
        SegmentBuilder { place, blocks: Vec::new(), len: 0 }
    }

    /// The segment's name.
    pub fn id(&self) -> SegmentId {
        self.place.id
    }

    /// Bytes of the blocks pushed so far.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True if no block was pushed.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Adds a block whose length is a multiple of [`CHUNK_LEN`]. All of these come before any other
    /// block. Returns its address.
    ///
    /// # Panics
    /// If the blocks together exceed [`PAYLOAD_LEN_MAX`].
    pub fn push_full_block(&mut self, block: Bytes) -> BlockAddr {
        debug_assert!(block.len().is_multiple_of(CHUNK_LEN as usize), "not a full block");
        debug_assert!(self.len.is_multiple_of(CHUNK_LEN), "full blocks come before short ones");
        self.push_block(block)
    }

    /// Adds a block of any length. Returns its address.
    ///
    /// # Panics
    /// If the blocks together exceed [`PAYLOAD_LEN_MAX`].
    pub fn push_block(&mut self, block: Bytes) -> BlockAddr {
        let len = block.len();
        assert!(len <= (PAYLOAD_LEN_MAX - self.len) as usize, "a segment's blocks exceed the widest stripe");
        let addr = BlockAddr { segment: self.place.id, offset: self.len, len: len as u32 };
        self.len += addr.len;
        self.blocks.push(block);
        addr
    }

    /// Ends the segment with its encoded deltas. Copies nothing.
    ///
    /// # Panics
    /// If blocks and deltas together exceed [`PAYLOAD_LEN_MAX`].
    pub fn finish(self, deltas: Vec<u8>) -> SegmentDraft {
        assert!(deltas.len() <= (PAYLOAD_LEN_MAX - self.len) as usize, "a segment's payload exceeds the widest stripe");
        let SegmentBuilder { place, blocks, len } = self;
        SegmentDraft { place, blocks, delta_offset: len, deltas }
    }
}

/// A segment with fixed addresses whose bytes are not copied together yet.
#[derive(Clone, Debug)]
pub struct SegmentDraft {
    place: LogPlace,
    blocks: Vec<Bytes>,
    delta_offset: u32,
    deltas: Vec<u8>,
}

impl SegmentDraft {
    /// The segment's name.
    pub fn id(&self) -> SegmentId {
        self.place.id
    }

    /// Length of the payload in bytes.
    pub fn payload_len(&self) -> u32 {
        self.delta_offset + self.deltas.len() as u32
    }

    /// Copies the blocks and deltas into one payload. It is page-aligned, so that fragments go to
    /// disks without another copy.
    pub fn assemble(self) -> Segment {
        let mut payload = AlignedBuffer::with_room(self.payload_len() as usize);
        self.blocks.iter().for_each(|block| payload.put_slice(block));
        payload.put_slice(&self.deltas);
        let LogPlace { id, previous, order } = self.place;
        Segment { id, previous, order, payload: payload.freeze(), delta_offset: self.delta_offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{payload, place};
    use proptest::prelude::*;

    #[test]
    fn an_empty_segment_is_its_deltas() {
        let builder = SegmentBuilder::new(place(1, 1));
        assert!(builder.is_empty());
        let segment = builder.finish(b"deltas".to_vec()).assemble();
        assert_eq!((segment.delta_offset, segment.deltas()), (0, &b"deltas"[..]));
    }

    #[test]
    #[should_panic(expected = "full blocks come before short ones")]
    fn full_blocks_after_short_ones_are_refused() {
        let mut builder = SegmentBuilder::new(place(1, 1));
        builder.push_block(payload(1, 0));
        builder.push_full_block(payload(CHUNK_LEN, 0));
    }

    #[test]
    #[should_panic(expected = "not a full block")]
    fn short_blocks_are_not_taken_for_full_ones() {
        SegmentBuilder::new(place(1, 1)).push_full_block(payload(CHUNK_LEN + 1, 0));
    }

    #[test]
    #[should_panic(expected = "exceed the widest stripe")]
    fn more_than_the_widest_stripe_is_refused() {
        let mut builder = SegmentBuilder::new(place(1, 1));
        let block = payload(FRAGMENT_LEN_MAX, 0);
        for _ in 0..=DATA_FRAGMENTS_MAX {
            builder.push_full_block(block.clone());
        }
    }

    proptest! {
        #[test]
        fn prop_every_block_is_at_its_address_and_full_ones_begin_at_chunks(
            full in proptest::collection::vec(1u32..=3, 0..4),
            short in proptest::collection::vec(1u32..=5000, 0..8),
            delta_len in 0u32..3000,
        ) {
            let place = LogPlace { previous: Some(place(2, 8).id), ..place(3, 9) };
            let mut builder = SegmentBuilder::new(place);
            let mut placed = Vec::new();
            for (seed, chunks) in (0..).zip(&full) {
                let block = payload(chunks * CHUNK_LEN, seed);
                let addr = builder.push_full_block(block.clone());
                prop_assert_eq!(addr.offset % CHUNK_LEN, 0);
                placed.push((addr, block));
            }
            for (seed, len) in (100..).zip(&short) {
                let block = payload(*len, seed);
                placed.push((builder.push_block(block.clone()), block));
            }
            let deltas = payload(delta_len, 1000);
            let draft = builder.finish(deltas.to_vec());
            let payload_len = draft.payload_len();
            prop_assert_eq!(draft.id(), place.id);
            let segment = draft.assemble();

            prop_assert_eq!(segment.payload.len(), payload_len as usize);
            let Segment { id, previous, order, .. } = segment;
            prop_assert_eq!((LogPlace { id, previous, order }, segment.deltas()), (place, &deltas[..]));
            let mut end = 0;
            for (addr, block) in placed {
                prop_assert_eq!((addr.segment, addr.offset, addr.len as usize), (place.id, end, block.len()));
                end += addr.len;
                prop_assert_eq!(&segment.payload[addr.offset as usize..end as usize], &block[..]);
            }
            prop_assert_eq!(end, segment.delta_offset);
        }
    }
}
