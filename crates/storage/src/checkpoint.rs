//! The bytes of checkpoints.
//!
//! Checkpoints are written to two files, see [`record_log::checkpoint_pair`]. A body that does not
//! match the newest head is reported instead of silently going back in time, which would lose
//! fragments that were acknowledged.
//!
//! A body is a sequence of parts. First come all fragments, then an end; then, for each checkpoint
//! since, the fragments that changed, those that are gone, and an end. Later parts override earlier
//! ones.
//!
//! All integers are little-endian.
//!
//! ```text
//! head: magic "STARSTOR" | version u16 | store u16 | file system 16 | capacity_bytes u64 | sequence u64 | generation u64
//!       | body_len u64 | body CRC-32C u32 | zeroes | CRC-32C of the 508 bytes before u32
//! body: parts, the last of which is an end
//! part: 1 u8 | count u32 x fragment (segment 16 | index u8 | attempt u16 | page u32 | packed header (len u32, bytes))
//!     | 2 u8 | count u32 x fragment that is gone (segment 16 | index u8 | attempt u16)
//!     | 3 u8 | end: page_count u32
//!            | count u32 x seal (log u32 | epoch u32 | through u64 | nonce u64 | count u32 x fence (epoch u32 | through u64)
//!                         | count u32 x store u16 | lost fragments u8)
//!            | maps epoch u64 | maps blob (len u32, bytes)
//!            | count u32 x reserved (start u32 | length u32)
//! ```

use crate::api::{Seal, Seals, StoreIdentity};
use crate::index::{FragmentKey, Held, Index};
use crate::packed::PackedHeader;
use crate::pages::{PageExtent, pages};
use crate::seal::SEAL_LEN_MIN;
use bytes::Bytes;
use record_log::checkpoint_pair::Owner;
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, Maps, SegmentId, StoreId};

/// The format that this program writes. It covers the fragments too, since the index does not have
/// their version. So raise it with [`striped_log::fragment::FORMAT_VERSION`], and when the place of
/// the landing changes.
pub const VERSION: u16 = 8;
/// The oldest format that this program reads. Version 7 had no segments with an order. Versions 1
/// to 6 were never released.
const VERSION_OLDEST: u16 = 7;

/// The head of a checkpoint: names it and vouches for its body. All fragments that are written
/// under the checkpoint carry its generation, and the generation is secret. Otherwise a user who
/// can write a file could write bytes that recovery takes for a fragment.
pub type StoreHead = record_log::checkpoint_pair::Head<StoreIdentity>;

impl Owner for StoreIdentity {
    const MAGIC: &'static [u8; 8] = b"STARSTOR";
    const VERSION: u16 = VERSION;
    const VERSION_OLDEST: u16 = VERSION_OLDEST;
    const WHAT: &'static str = "store";
    const HAS_GENERATION: bool = true;

    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.store.raw());
        out.extend_from_slice(&self.fs.0);
        out.put_u64(self.capacity_bytes);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let store = StoreId::new(r.u16("store")?);
        let mut fs = FsUuid([0; 16]);
        fs.0.copy_from_slice(r.take(16, "file system")?);
        Ok(StoreIdentity { fs, store, capacity_bytes: r.u64("capacity")? })
    }
}

/// The contents of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body {
    /// Pages of the `fragments` file. All places are within them.
    pub page_count: u32,
    /// The seals.
    pub seals: Seals,
    /// The newest maps.
    pub maps: Maps,
    /// The pages that may be written until the next checkpoint.
    pub reservation: Vec<PageExtent>,
    /// All fragments.
    pub index: Index,
}

/// First byte of a part with fragments.
const HELD: u8 = 1;
/// First byte of a part with fragments that are gone.
const GONE: u8 = 2;
/// First byte of an end.
const END: u8 = 3;
/// Encoded length of a key in bytes.
const KEY_LEN: usize = SegmentId::ENCODED_LEN + 3;

impl FragmentKey {
    fn encode(&self, out: &mut Vec<u8>) {
        self.segment().encode(out);
        out.put_u8(self.index);
        out.put_u16(self.attempt);
    }

    fn decode(r: &mut Reader<'_>) -> Result<FragmentKey, DecodeError> {
        let segment = SegmentId::decode(r)?;
        let id = FragmentId { segment, index: r.u8("fragment index")? };
        Ok(FragmentKey::new(id, r.u16("attempt")?))
    }
}

/// Begins a part with a count of 0, to be [set](set_count). Returns the offset after the count.
fn begin_part(kind: u8, out: &mut Vec<u8>) -> usize {
    out.put_u8(kind);
    out.put_u32(0);
    out.len()
}

fn set_count(out: &mut [u8], begin: usize, count: u32) {
    out[begin - 4..begin].copy_from_slice(&count.to_le_bytes());
}

/// Appends a part with these fragments, if there are any. Returns the last of them.
pub fn encode_held<'a>(
    held: impl Iterator<Item = (&'a FragmentKey, &'a Held)>,
    out: &mut Vec<u8>,
) -> Option<FragmentKey> {
    let (mut count, mut last, begin) = (0, None, begin_part(HELD, out));
    for (key, held) in held {
        key.encode(out);
        out.put_u32(held.place.start);
        out.put_blob(held.header.as_bytes());
        (count, last) = (count + 1, Some(*key));
    }
    set_count(out, begin, count);
    if last.is_none() {
        out.truncate(begin - 5);
    }
    last
}

/// Appends a part with fragments that are gone, if there are any.
pub fn encode_gone<'a>(gone: impl Iterator<Item = &'a FragmentKey>, out: &mut Vec<u8>) {
    let (mut count, begin) = (0, begin_part(GONE, out));
    for key in gone {
        key.encode(out);
        count += 1;
    }
    set_count(out, begin, count);
    if count == 0 {
        out.truncate(begin - 5);
    }
}

/// Encodes the end of a checkpoint.
pub fn encode_end(page_count: u32, seals: &Seals, maps: &Maps, reservation: &[PageExtent]) -> Vec<u8> {
    let seal_count = seals.iter().count();
    let mut out = Vec::with_capacity(64 + 64 * seal_count + maps.bytes.len() + 8 * reservation.len());
    out.put_u8(END);
    out.put_u32(page_count);
    out.put_u32(seal_count as u32);
    seals.iter().for_each(|seal| seal.encode(&mut out));
    out.put_u64(maps.epoch);
    out.put_blob(&maps.bytes);
    out.put_u32(reservation.len() as u32);
    for part in reservation {
        out.put_u32(part.start);
        out.put_u32(part.len);
    }
    out
}

impl Body {
    /// Encodes the body of a checkpoint that adds to no earlier one.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        encode_held(self.index.iter(), &mut out);
        out.extend(self.encode_end());
        out
    }

    /// Encodes the end of this body.
    pub fn encode_end(&self) -> Vec<u8> {
        encode_end(self.page_count, &self.seals, &self.maps, &self.reservation)
    }

    fn holds(&self, extent: PageExtent) -> bool {
        extent.start.checked_add(extent.len).is_some_and(|end| end <= self.page_count)
    }

    /// Reads a body; the caller has compared its checksum. `fs` is from the head. Also returns the
    /// length of the base: the bytes before the first end.
    pub fn decode(bytes: &[u8], fs: FsUuid) -> Result<(Body, u64), DecodeError> {
        let r = &mut Reader::new(bytes);
        let (mut body, mut base_len, mut is_whole) = (Body::default(), None, false);
        while !r.is_empty() {
            let at = (bytes.len() - r.remaining()) as u64;
            is_whole = false;
            match r.u8("part of a checkpoint")? {
                HELD => body.decode_held(r, fs)?,
                GONE => {
                    for _ in 0..r.count(KEY_LEN, "fragments that are gone")? {
                        body.index.remove(&FragmentKey::decode(r)?);
                    }
                }
                END => {
                    body.decode_end(r)?;
                    base_len.get_or_insert(at);
                    is_whole = true;
                }
                _ => return Err(DecodeError::Invalid("part of a checkpoint")),
            }
        }
        let are_held = body.index.iter().all(|(_, held)| body.holds(held.place));
        match base_len.filter(|_| is_whole) {
            None => Err(DecodeError::Invalid("checkpoint without an end")),
            Some(_) if !are_held => Err(DecodeError::Invalid("place of a fragment")),
            Some(base_len) => Ok((body, base_len)),
        }
    }

    fn decode_held(&mut self, r: &mut Reader<'_>, fs: FsUuid) -> Result<(), DecodeError> {
        let mut last = None;
        for _ in 0..r.count(KEY_LEN + 8, "fragments")? {
            let key = FragmentKey::decode(r)?;
            let start = r.u32("page")?;
            let header = PackedHeader::decode(r.blob("packed header")?, fs, key.id(), key.attempt)?;
            if last.replace(key).is_some_and(|last| last >= key) {
                return Err(DecodeError::Invalid("order of fragments"));
            }
            self.index.insert(key, Held { place: PageExtent { start, len: pages(header.len()) }, header });
        }
        Ok(())
    }

    fn decode_end(&mut self, r: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.page_count = r.u32("page count")?;
        self.seals = Seals::default();
        for _ in 0..r.count(SEAL_LEN_MIN, "seals")? {
            if !self.seals.take(Seal::decode(r)?) {
                return Err(DecodeError::Invalid("seals of a log"));
            }
        }
        self.maps.epoch = r.u64("maps epoch")?;
        self.maps.bytes = Bytes::copy_from_slice(r.blob("maps")?);
        self.reservation.clear();
        for _ in 0..r.count(8, "reservation")? {
            let part = PageExtent { start: r.u32("reserved start")?, len: r.u32("reserved length")? };
            if !self.holds(part) {
                return Err(DecodeError::Invalid("reservation"));
            }
            self.reservation.push(part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FS, STORE, body};
    use proptest::prelude::*;
    use record_log::checkpoint_pair::{HEAD_LEN, crc32c};

    fn identity() -> StoreIdentity {
        StoreIdentity { fs: FS, store: STORE, capacity_bytes: 123_456_789 }
    }

    #[test]
    fn a_head_reads_back_and_any_flipped_bit_is_noticed() {
        let head = StoreHead::of(identity(), 42, 43, b"the body");
        let bytes = head.encode();
        assert_eq!(bytes.len(), HEAD_LEN);
        assert_eq!(StoreHead::decode(&bytes), Ok(head));
        for bit in 0..HEAD_LEN * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(StoreHead::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(StoreHead::decode(&bytes[..HEAD_LEN - 1]).is_err());
    }

    #[test]
    fn a_head_of_an_unknown_version_says_so_and_one_of_version_7_is_read() {
        for other in [VERSION_OLDEST - 1, VERSION + 1] {
            let mut bytes = StoreHead::of(identity(), 42, 43, b"").encode().to_vec();
            bytes[8..10].copy_from_slice(&other.to_le_bytes());
            let crc = crc32c(&bytes[..HEAD_LEN - 4]);
            bytes[HEAD_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
            let refused = StoreHead::decode(&bytes).unwrap_err();
            assert_eq!(refused, DecodeError::Version { what: "store", found: other, known: VERSION });
            let refused = crate::files::StoreOpenError::from(refused).to_string();
            assert!(refused.contains("use the version of starling that wrote it"), "{refused}");
        }
        let head = StoreHead::of(identity(), 42, 43, b"");
        let mut old = head.encode().to_vec();
        old[8] = 7;
        let crc = crc32c(&old[..HEAD_LEN - 4]);
        old[HEAD_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(StoreHead::decode(&old), Ok(head));
    }

    #[test]
    fn a_body_reads_back() {
        for body in [body(), Body::default()] {
            let (bytes, end_len) = (body.encode(), body.encode_end().len());
            assert_eq!(Body::decode(&bytes, FS), Ok((body, (bytes.len() - end_len) as u64)));
        }
    }

    /// Two fragments change and one is gone; the pages, seals and maps are other ones.
    #[test]
    fn what_is_added_counts_and_the_base_is_told_apart() {
        let (before, mut after) = (body(), body());
        let keys: Vec<FragmentKey> = before.index.iter().map(|(key, _)| *key).collect();
        let moved = Held {
            place: PageExtent { start: 1999, ..before.index.get(&keys[0]).unwrap().place },
            ..before.index.get(&keys[0]).unwrap().clone()
        };
        after.index.insert(keys[0], moved);
        after.index.remove(&keys[2]);
        (after.page_count, after.maps.epoch) = (3000, 5);
        after.seals = Seals::default();
        after.reservation.pop();
        let mut bytes = before.encode();
        let base_len = (bytes.len() - before.encode_end().len()) as u64;
        encode_held(after.index.iter().take(2), &mut bytes);
        encode_gone([keys[2]].iter(), &mut bytes);
        assert_eq!(Body::decode(&bytes, FS), Err(DecodeError::Invalid("checkpoint without an end")));
        bytes.extend(after.encode_end());
        assert_eq!(Body::decode(&bytes, FS), Ok((after, base_len)));
    }

    #[test]
    fn a_body_cut_anywhere_is_refused() {
        let bytes = body().encode();
        for len in 0..bytes.len() {
            assert!(Body::decode(&bytes[..len], FS).is_err(), "{len} bytes");
        }
    }

    proptest! {
        /// For any bytes, decoding ends with a body or an error.
        #[test]
        fn prop_mutated_bodies_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let mut bytes = body().encode();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok((body, _)) = Body::decode(&bytes, FS) {
                prop_assert!(body.index.iter().all(|(_, held)| held.place.end() <= body.page_count));
            }
        }
    }
}
