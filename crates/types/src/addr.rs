//! Where bytes live in logs: segments, fragments, block addresses, extents.

use crate::codec::{DecodeError, Put, Reader};
use crate::ids::LogId;
use std::fmt;

/// One segment of one log. `(log, epoch, seq)` is never reused. `seq` grows by one per segment
/// through all epochs of a log. The epoch changes when the log's tail is recovered, so a discarded
/// segment and its successor never share a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// The log.
    pub log: LogId,
    /// The log's epoch when the segment was begun.
    pub epoch: u32,
    /// Position in the log.
    pub seq: u64,
}

impl SegmentId {
    /// Encoded length in bytes.
    pub const ENCODED_LEN: usize = 16;

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.log.raw());
        out.put_u32(self.epoch);
        out.put_u64(self.seq);
    }
    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(SegmentId {
            log: LogId::new(r.u32("segment log")?),
            epoch: r.u32("segment epoch")?,
            seq: r.u64("segment seq")?,
        })
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.log.raw(), self.epoch, self.seq)
    }
}
impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// One fragment of one segment: data fragments are `0..k`, parity fragments `k..k+m`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId {
    /// The segment.
    pub segment: SegmentId,
    /// The fragment's index in the stripe.
    pub index: u8,
}

impl fmt::Debug for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}", self.segment, self.index)
    }
}
impl fmt::Display for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A log address: `len` bytes at `offset` of a segment's payload. It does not depend on how the
/// segment is striped, so it stays true when a segment is put again with another geometry. The
/// bytes at an address never change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockAddr {
    /// The segment.
    pub segment: SegmentId,
    /// Byte offset in the segment's payload.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

impl BlockAddr {
    /// Encoded length in bytes.
    pub const ENCODED_LEN: usize = SegmentId::ENCODED_LEN + 8;

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.segment.encode(out);
        out.put_u32(self.offset);
        out.put_u32(self.len);
    }
    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let addr = BlockAddr {
            segment: SegmentId::decode(r)?,
            offset: r.u32("address offset")?,
            len: r.u32("address length")?,
        };
        if addr.offset.checked_add(addr.len).is_none() {
            return Err(DecodeError::Invalid("address"));
        }
        Ok(addr)
    }
}

/// A run of `count` consecutive blocks of a file, stored back to back at `addr`. All blocks but the
/// last of the run are full; `addr.len` is the whole run's length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block number in the file.
    pub first: u64,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// Where the run is.
    pub addr: BlockAddr,
}

impl Extent {
    /// Encoded length in bytes.
    pub const ENCODED_LEN: usize = 12 + BlockAddr::ENCODED_LEN;

    /// The block after the run.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// The blocks `[from, to)` of this run as an extent of its own, where `block_size` is the
    /// file's block size in bytes. `None` when the ranges do not meet.
    pub fn slice(&self, from: u64, to: u64, block_size: u32) -> Option<Extent> {
        let (from, to) = (from.max(self.first), to.min(self.end()));
        if from >= to {
            return None;
        }
        // Extents come from disks and clients, and may claim more blocks than bytes: no product may
        // leave `addr`.
        let bytes = |blocks: u64| (blocks * u64::from(block_size)).min(u64::from(self.addr.len)) as u32;
        let skip = bytes(from - self.first);
        let end = if to == self.end() { self.addr.len } else { bytes(to - self.first) };
        Some(Extent {
            first: from,
            count: (to - from) as u32,
            addr: BlockAddr { segment: self.addr.segment, offset: self.addr.offset + skip, len: end - skip },
        })
    }

    /// True if `next` continues this run in the file and in the segment, so that both can be one
    /// extent.
    pub fn continues(&self, next: &Extent, block_size: u32) -> bool {
        self.end() == next.first
            && self.addr.segment == next.addr.segment
            && self.addr.offset + self.addr.len == next.addr.offset
            && u64::from(self.addr.len) == u64::from(self.count) * u64::from(block_size)
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.first);
        out.put_u32(self.count);
        self.addr.encode(out);
    }
    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let e = Extent { first: r.u64("extent first")?, count: r.u32("extent count")?, addr: BlockAddr::decode(r)? };
        if e.count == 0 || e.first.checked_add(u64::from(e.count)).is_none() {
            return Err(DecodeError::Invalid("extent"));
        }
        Ok(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_round_trip, assert_truncations_are_refused};
    use proptest::prelude::*;

    const BLOCK: u32 = 4096;

    fn run(first: u64, count: u32, len: u32) -> Extent {
        let segment = SegmentId { log: LogId::new(1), epoch: 2, seq: 3 };
        Extent { first, count, addr: BlockAddr { segment, offset: 100, len } }
    }

    #[test]
    fn names_are_written_as_people_read_them() {
        let segment = SegmentId { log: LogId::new(1), epoch: 2, seq: 3 };
        assert_eq!(format!("{segment} {}", FragmentId { segment, index: 4 }), "1.2.3 1.2.3#4");
    }

    #[test]
    fn an_address_that_ends_beyond_all_offsets_is_refused() {
        let mut bytes = Vec::new();
        BlockAddr { offset: u32::MAX, len: 0, ..run(0, 1, 1).addr }.encode(&mut bytes);
        assert!(BlockAddr::decode(&mut Reader::new(&bytes)).is_ok());
        bytes[20..24].copy_from_slice(&1u32.to_le_bytes());
        assert_eq!(BlockAddr::decode(&mut Reader::new(&bytes)), Err(DecodeError::Invalid("address")));
    }

    #[test]
    fn extents_without_blocks_or_beyond_all_block_numbers_are_refused() {
        for bad in [run(5, 0, 1), run(u64::MAX, 1, 1)] {
            let mut bytes = Vec::new();
            bad.encode(&mut bytes);
            assert_eq!(Extent::decode(&mut Reader::new(&bytes)), Err(DecodeError::Invalid("extent")));
        }
    }

    #[test]
    fn a_slice_has_the_blocks_that_both_have_and_the_short_end_stays_with_the_last() {
        let e = run(10, 3, 2 * BLOCK + 5);
        assert_eq!(e.slice(0, 100, BLOCK), Some(e));
        assert_eq!(e.slice(0, 10, BLOCK), None);
        assert_eq!(e.slice(13, 20, BLOCK), None);
        let part = |first, count, skip, len| {
            Some(Extent { first, count, addr: BlockAddr { offset: 100 + skip, len, ..e.addr } })
        };
        assert_eq!(e.slice(0, 11, BLOCK), part(10, 1, 0, BLOCK));
        assert_eq!(e.slice(11, 12, BLOCK), part(11, 1, BLOCK, BLOCK));
        assert_eq!(e.slice(11, 13, BLOCK), part(11, 2, BLOCK, BLOCK + 5));
        assert_eq!(e.slice(12, u64::MAX, BLOCK), part(12, 1, 2 * BLOCK, 5));
    }

    #[test]
    fn only_full_runs_that_meet_in_file_and_segment_continue() {
        let e = run(10, 2, 2 * BLOCK);
        let next = Extent { first: 12, addr: BlockAddr { offset: 100 + 2 * BLOCK, len: 7, ..e.addr }, count: 1 };
        assert!(e.continues(&next, BLOCK));
        assert!(!e.continues(&Extent { first: 13, ..next }, BLOCK));
        assert!(!e.continues(&Extent { addr: BlockAddr { offset: 101 + 2 * BLOCK, ..next.addr }, ..next }, BLOCK));
        let other = SegmentId { epoch: 9, ..e.addr.segment };
        assert!(!e.continues(&Extent { addr: BlockAddr { segment: other, ..next.addr }, ..next }, BLOCK));
        let short = run(10, 2, 2 * BLOCK - 1);
        let after_short = Extent { addr: BlockAddr { offset: 99 + 2 * BLOCK, ..next.addr }, ..next };
        assert!(!short.continues(&after_short, BLOCK));
    }

    fn addr() -> impl Strategy<Value = BlockAddr> {
        (any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
            |(log, epoch, seq, offset, len)| {
                let segment = SegmentId { log: LogId::new(log), epoch, seq };
                BlockAddr { segment, offset, len: len.min(u32::MAX - offset) }
            },
        )
    }

    fn extent() -> impl Strategy<Value = Extent> {
        (any::<u64>(), 1..=u32::MAX, addr()).prop_map(|(first, count, addr)| Extent {
            first: first.min(u64::MAX - u64::from(count)),
            count,
            addr,
        })
    }

    proptest! {
        #[test]
        fn prop_extents_come_back_as_they_were(e in extent()) {
            assert_round_trip(&e, Extent::encode, Extent::decode);
            assert_truncations_are_refused(&e, Extent::encode, Extent::decode);
            let mut bytes = Vec::new();
            e.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), Extent::ENCODED_LEN);
        }

        /// This holds also for extents that no honest writer makes.
        #[test]
        fn prop_slices_of_any_extent_stay_within_it(e in extent(), from: u64, count: u32, block_size: u32) {
            for from in [from, e.first.saturating_add(from % 8)] {
                let to = from.saturating_add(u64::from(count));
                if let Some(s) = e.slice(from, to, block_size) {
                    prop_assert!(s.first >= e.first.max(from) && s.end() <= e.end().min(to) && s.count > 0);
                    let end = |a: &BlockAddr| u64::from(a.offset) + u64::from(a.len);
                    prop_assert!(s.addr.offset >= e.addr.offset && end(&s.addr) <= end(&e.addr));
                    prop_assert_eq!(s.addr.segment, e.addr.segment);
                }
            }
        }
    }
}
