//! Where bytes live in logs: segments, fragments, block addresses, extents.

use crate::codec::{DecodeError, Put, Reader};
use crate::ids::LogId;
use std::fmt;

/// One segment of one log. `(log, epoch, seq)` is never reused. `seq` grows by one per segment through all epochs of a log;
/// the epoch changes when the log's tail was recovered, so a discarded segment and its successor never share a name.
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

/// A log address: `len` bytes at `offset` of a segment's payload. Independent of how the segment was striped, so it stays
/// true when a segment is put again with another geometry. What is at an address never changes.
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

/// A run of `count` consecutive blocks of a file, stored back to back at `addr`. All blocks but the last of the run are
/// full; `addr.len` is the whole run's length in bytes.
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

    /// The blocks `[from, to)` of this run as an extent of its own, where `block_size` is the file's block size in bytes.
    /// `None` when the ranges do not meet.
    pub fn slice(&self, from: u64, to: u64, block_size: u32) -> Option<Extent> {
        let (from, to) = (from.max(self.first), to.min(self.end()));
        if from >= to {
            return None;
        }
        let skip = (from - self.first) as u32 * block_size;
        let end = if to == self.end() { self.addr.len } else { (to - self.first) as u32 * block_size };
        Some(Extent {
            first: from,
            count: (to - from) as u32,
            addr: BlockAddr { segment: self.addr.segment, offset: self.addr.offset + skip, len: end - skip },
        })
    }

    /// True when `next` continues this run in the file and in the segment, so that both can be one extent.
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
