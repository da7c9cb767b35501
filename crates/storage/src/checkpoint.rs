//! The bytes of checkpoints.
//!
//! Checkpoints are written to two files by turns, see [`host::checkpoint_pair`]. A body that does not match the newest head is
//! reported instead of silently going back in time, which would lose fragments that were acknowledged.
//!
//! All integers are little-endian.
//!
//! ```text
//! head: magic "STARSTOR" | version u16 | store u16 | file system 16 | capacity_bytes u64 | sequence u64 | generation u64
//!       | body_len u64 | body CRC-32C u32 | zeroes | CRC-32C of the 508 bytes before u32
//! body: page_count u32
//!       | count u32 x seal (log u32 | epoch u32 | through u64 | nonce u64 | count u32 x fence (epoch u32 | through u64))
//!       | maps epoch u64 | maps blob (len u32, bytes)
//!       | count u32 x reserved (start u32 | length u32)
//!       | count u32 x fragment (segment 16 | index u8 | attempt u16 | page u32 | packed header (len u32, bytes))
//! ```

use crate::api::{Maps, Seal};
use crate::index::{Held, Index, Key};
use crate::packed::PackedHeader;
use crate::seal::SEAL_LEN_MIN;
use crate::space::{Extent, PAGE, pages};
use bytes::Bytes;
use host::checkpoint_pair::Owner;
use std::collections::BTreeMap;
use striped_log::fragment::FragmentHeader;
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, LogId, SegmentId, StoreId};

/// The format that this program writes and reads. It counts for the fragments too, whose version the index does not say: it is
/// raised with [`striped_log::fragment::FORMAT_VERSION`], and with the place of the landing. Versions 1 to 4 were never released.
pub const VERSION: u16 = 5;

/// Whose fragments a store holds, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The file system.
    pub fs: FsUuid,
    /// The store.
    pub store: StoreId,
    /// Bytes that the `fragments` file may take.
    pub capacity_bytes: u64,
}

impl Identity {
    /// True when the header says that this store holds the fragment.
    pub(crate) fn is_member(&self, header: &FragmentHeader) -> bool {
        header.geometry.members.get(usize::from(header.id.index)) == Some(&self.store)
    }

    /// Pages that the `fragments` file may have.
    pub(crate) fn page_count_max(&self) -> u32 {
        u32::try_from(self.capacity_bytes / u64::from(PAGE)).unwrap_or(u32::MAX)
    }
}

/// Names a checkpoint and vouches for its body. The generation is carried by all fragments that are written under the checkpoint, and known
/// to nobody else: else whoever can write a file could write what recovery takes for a fragment.
pub type Head = host::checkpoint_pair::Head<Identity>;

impl Owner for Identity {
    const MAGIC: &'static [u8; 8] = b"STARSTOR";
    const VERSION: u16 = VERSION;
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
        Ok(Identity { fs, store, capacity_bytes: r.u64("capacity")? })
    }
}

/// What a checkpoint records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body {
    /// Pages of the `fragments` file; all places are within.
    pub page_count: u32,
    /// The fences in force.
    pub seals: BTreeMap<LogId, Seal>,
    /// The newest maps.
    pub maps: Maps,
    /// What may be written until the next checkpoint.
    pub reservation: Vec<Extent>,
    /// All fragments.
    pub index: Index,
}

/// Encodes a body from its parts, which the caller keeps.
pub fn encode_body(
    page_count: u32,
    seals: &BTreeMap<LogId, Seal>,
    maps: &Maps,
    reservation: &[Extent],
    index: &Index,
) -> Vec<u8> {
    const FRAGMENT_LEN_USUAL: usize = 128;
    let mut out =
        Vec::with_capacity(1024 + maps.bytes.len() + 8 * reservation.len() + FRAGMENT_LEN_USUAL * index.len());
    out.put_u32(page_count);
    out.put_u32(seals.len() as u32);
    for seal in seals.values() {
        seal.encode(&mut out);
    }
    out.put_u64(maps.epoch);
    out.put_blob(&maps.bytes);
    out.put_u32(reservation.len() as u32);
    for part in reservation {
        out.put_u32(part.start);
        out.put_u32(part.len);
    }
    out.put_u32(index.len() as u32);
    for (key, held) in index.iter() {
        key.segment().encode(&mut out);
        out.put_u8(key.index);
        out.put_u16(key.attempt);
        out.put_u32(held.place.start);
        out.put_blob(held.header.as_bytes());
    }
    out
}

impl Body {
    fn holds(&self, extent: Extent) -> bool {
        extent.start.checked_add(extent.len).is_some_and(|end| end <= self.page_count)
    }

    /// Reads what [`encode_body`] wrote; the caller has compared the checksum. `fs` is the head's.
    pub fn decode(bytes: &[u8], fs: FsUuid) -> Result<Body, DecodeError> {
        let r = &mut Reader::new(bytes);
        let mut body = Body { page_count: r.u32("page count")?, ..Body::default() };
        for _ in 0..r.count(SEAL_LEN_MIN, "seals")? {
            let seal = Seal::decode(r)?;
            body.seals.insert(seal.log, seal);
        }
        body.maps.epoch = r.u64("maps epoch")?;
        body.maps.bytes = Bytes::copy_from_slice(r.blob("maps")?);
        for _ in 0..r.count(8, "reservation")? {
            let part = Extent { start: r.u32("reserved start")?, len: r.u32("reserved length")? };
            if !body.holds(part) {
                return Err(DecodeError::Invalid("reservation"));
            }
            body.reservation.push(part);
        }
        for _ in 0..r.count(27, "fragments")? {
            let segment = SegmentId::decode(r)?;
            let id = FragmentId { segment, index: r.u8("fragment index")? };
            let attempt = r.u16("attempt")?;
            let start = r.u32("page")?;
            let header = PackedHeader::decode(r.blob("packed header")?, fs, id, attempt)?;
            let place = Extent { start, len: pages(header.len()) };
            if !body.holds(place) {
                return Err(DecodeError::Invalid("place of a fragment"));
            }
            if body.index.insert(Key::new(id, attempt), Held { place, header }).is_some() {
                return Err(DecodeError::Invalid("fragment listed twice"));
            }
        }
        if !r.is_empty() {
            return Err(DecodeError::Invalid("checkpoint length"));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FS, STORE, body};
    use host::checkpoint_pair::{HEAD_LEN, crc32c};
    use proptest::prelude::*;

    fn identity() -> Identity {
        Identity { fs: FS, store: STORE, capacity_bytes: 123_456_789 }
    }

    fn encoded(body: &Body) -> Vec<u8> {
        encode_body(body.page_count, &body.seals, &body.maps, &body.reservation, &body.index)
    }

    #[test]
    fn a_head_reads_back_and_any_flipped_bit_is_noticed() {
        let head = Head::of(identity(), 42, 43, b"the body");
        let bytes = head.encode();
        assert_eq!(bytes.len(), HEAD_LEN);
        assert_eq!(Head::decode(&bytes), Ok(head));
        for bit in 0..HEAD_LEN * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::decode(&bad).is_err(), "bit {bit}");
        }
        assert!(Head::decode(&bytes[..HEAD_LEN - 1]).is_err());
    }

    #[test]
    fn a_head_of_another_version_says_so() {
        for other in [VERSION - 1, VERSION + 1] {
            let mut bytes = Head::of(identity(), 42, 43, b"").encode().to_vec();
            bytes[8..10].copy_from_slice(&other.to_le_bytes());
            let crc = crc32c(&bytes[..HEAD_LEN - 4]);
            bytes[HEAD_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
            let refused = Head::decode(&bytes).unwrap_err();
            assert_eq!(refused, DecodeError::Version { what: "store", found: other, known: VERSION });
            let refused = crate::files::OpenError::from(refused).to_string();
            assert!(refused.contains("use the version of starling that wrote it"), "{refused}");
        }
    }

    #[test]
    fn a_body_reads_back() {
        assert_eq!(Body::decode(&encoded(&body()), FS), Ok(body()));
        assert_eq!(Body::decode(&encoded(&Body::default()), FS), Ok(Body::default()));
    }

    #[test]
    fn a_body_cut_anywhere_is_refused() {
        let bytes = encoded(&body());
        for len in 0..bytes.len() {
            assert!(Body::decode(&bytes[..len], FS).is_err(), "{len} bytes");
        }
    }

    proptest! {
        /// Whatever the bytes, decoding ends with a body or an error.
        #[test]
        fn prop_mutated_bodies_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
            let mut bytes = encoded(&body());
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Ok(body) = Body::decode(&bytes, FS) {
                prop_assert!(body.index.iter().all(|(_, held)| held.place.end() <= body.page_count));
            }
        }
    }
}
