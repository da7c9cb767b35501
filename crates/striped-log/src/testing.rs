//! Helpers that this crate's tests share.

use crate::builder::{LogPlace, PAYLOAD_LEN_MAX};
use crate::fragment::{CHUNK_LEN, FRAGMENT_LEN_MAX, FragmentHeader};
use crate::geometry::Geometry;
use crate::segment::Segment;
use bytes::Bytes;
use proptest::prelude::*;
use types::{FragmentId, FsUuid, LogId, SegmentId, StoreId};

pub const FS: FsUuid = FsUuid(*b"a file system id");

/// A segment of the one log of most tests.
pub fn id(epoch: u32, seq: u64) -> SegmentId {
    SegmentId { log: LogId::new(1), epoch, seq }
}

/// The place of a segment that is the first known of its log.
pub fn place(epoch: u32, seq: u64) -> LogPlace {
    LogPlace { id: id(epoch, seq), previous: None, order: seq + 100 }
}

/// Bytes that look random and differ from place to place.
pub fn payload(len: u32, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(len as usize + 8);
    while bytes.len() < len as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len as usize);
    Bytes::from(bytes)
}

/// The planned geometry on stores `1, 2, ..`.
pub fn geometry(payload_len: u32, k_max: u8, m: u8) -> Geometry {
    let (k, _) = Geometry::plan(payload_len, k_max, m);
    let members = (1..=u16::from(k) + u16::from(m)).map(StoreId::new).collect();
    Geometry::new(payload_len, k_max, m, members)
}

/// A segment of `len` bytes after another.
pub fn segment(len: u32, seed: u64) -> Segment {
    Segment { id: id(2, 7), previous: Some(id(1, 6)), order: 107, payload: payload(len, seed), delta_offset: len / 2 }
}

/// A payload length, most often near where the geometry changes.
pub fn payload_len(k_max: u8, len_max: u32) -> impl Strategy<Value = u32> {
    let most = (u32::from(k_max) * FRAGMENT_LEN_MAX).min(PAYLOAD_LEN_MAX).min(len_max);
    let near = (0..=most / 65536, -1i64..=1)
        .prop_map(move |(chunks, off)| (i64::from(chunks) * 65536 + off).clamp(0, i64::from(most)) as u32);
    prop_oneof![2 => near, 1 => 0..=most, 1 => 0..=most.min(100)]
}

/// Any header that encoders write.
pub fn header() -> impl Strategy<Value = FragmentHeader> {
    let shape = (1u8..=16, 1u8..=2)
        .prop_flat_map(|(k_max, m)| (payload_len(k_max, u32::MAX), Just(k_max), Just(m), any::<[u8; 16]>()));
    let name = (any::<u32>(), any::<u32>(), any::<u64>(), proptest::option::of(any::<u32>()));
    let order = prop_oneof![Just(0), any::<u64>()];
    let rest = (any::<u16>(), any::<u8>(), any::<u32>(), any::<u64>(), 0u16..60_000, order);
    (shape, name, rest).prop_map(
        |((payload_len, k_max, m, fs), (log, epoch, seq, back), (attempt, pick, deltas, seed, store, order))| {
            let mut geometry = geometry(payload_len, k_max, m);
            for member in &mut geometry.members {
                *member = StoreId::new(store + member.raw());
            }
            let index = pick % geometry.width();
            let len = geometry.data_len(index);
            let log = LogId::new(log);
            let previous = back.zip(seq.checked_sub(1));
            FragmentHeader {
                fs: FsUuid(fs),
                id: FragmentId { segment: SegmentId { log, epoch, seq }, index },
                attempt,
                delta_offset: deltas % (payload_len + 1),
                previous: previous.map(|(back, seq)| SegmentId { log, epoch: epoch.saturating_sub(back), seq }),
                order,
                chunk_crcs: (0..len.div_ceil(CHUNK_LEN)).map(|i| (seed as u32).rotate_left(i) ^ i).collect(),
                len,
                geometry,
            }
        },
    )
}
