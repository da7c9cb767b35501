//! Fragment headers as the index keeps them: one small allocation each.
//!
//! A store keeps a header in memory for every fragment. The fields that the index key and the store
//! itself have (file system, fragment id, attempt) are left out. The others are kept as the bytes
//! that also go into checkpoints:
//!
//! ```text
//! len u32 | chunk CRC u32 x ceil(len / 64 KiB) | k u8 | m u8 | fragment_len u32 | payload_len u32 | delta_offset u32
//!   | member u16 x (k + m) | flags u8 | previous segment (16 bytes, if flag 1 is set) | order u64 (if flag 2 is set)
//! ```
//!
//! An order of 0 is left out.
//!
//! A [`PackedHeader`] is always well-formed: it is made from a checked header, or by
//! [`PackedHeader::decode`], which checks it.

use striped_log::fragment::{CHUNK_LEN, FRAGMENT_LEN_MAX, FragmentHeader, Geometry};
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, SegmentId, StoreId};

/// The fields of a [`FragmentHeader`] that the index key does not have, encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedHeader(Box<[u8]>);

/// Flag: the segment before follows.
const FLAG_PREVIOUS: u8 = 1;
/// Flag: the order follows. It is not 0.
const FLAG_ORDER: u8 = 2;

/// Number of checksummed chunks in `len` payload bytes.
pub fn chunk_count(len: u32) -> u32 {
    len.div_ceil(CHUNK_LEN)
}

impl PackedHeader {
    /// Packs `header`. The caller has checked the header with [`FragmentHeader::check`].
    pub fn new(header: &FragmentHeader) -> Self {
        let g = &header.geometry;
        let mut out =
            Vec::with_capacity(27 + 4 * header.chunk_crcs.len() + 2 * g.members.len() + SegmentId::ENCODED_LEN);
        out.put_u32(header.len);
        for crc in &header.chunk_crcs {
            out.put_u32(*crc);
        }
        out.put_u8(g.k);
        out.put_u8(g.m);
        out.put_u32(g.fragment_len);
        out.put_u32(g.payload_len);
        out.put_u32(header.delta_offset);
        for member in &g.members {
            out.put_u16(member.raw());
        }
        let previous = if header.previous.is_some() { FLAG_PREVIOUS } else { 0 };
        let order = if header.order == 0 { 0 } else { FLAG_ORDER };
        out.put_u8(previous | order);
        if let Some(segment) = &header.previous {
            segment.encode(&mut out);
        }
        if header.order != 0 {
            out.put_u64(header.order);
        }
        PackedHeader(out.into_boxed_slice())
    }

    /// The encoding, for a checkpoint.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Takes over bytes from a checkpoint, after checking that they are a whole and well-formed
    /// header of fragment `id`.
    pub fn decode(bytes: &[u8], fs: FsUuid, id: FragmentId, attempt: u16) -> Result<Self, DecodeError> {
        let header = unpack(bytes, fs, id, attempt)?;
        header.check()?;
        Ok(PackedHeader(bytes.into()))
    }

    /// Payload length in bytes.
    pub fn len(&self) -> u32 {
        self.word(0)
    }

    /// Number of data fragments of its stripe.
    pub fn k(&self) -> u8 {
        self.0[4 * (1 + chunk_count(self.len()) as usize)]
    }

    /// CRC-32C of chunk `chunk_index`, which must be below [`chunk_count`] of [`len`](Self::len).
    pub fn chunk_crc(&self, chunk_index: u32) -> u32 {
        self.word(1 + chunk_index as usize)
    }

    /// The whole header again.
    pub fn unpack(&self, fs: FsUuid, id: FragmentId, attempt: u16) -> Result<FragmentHeader, DecodeError> {
        unpack(&self.0, fs, id, attempt)
    }

    fn word(&self, index: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.0[4 * index..4 * index + 4]);
        u32::from_le_bytes(word)
    }
}

fn unpack(bytes: &[u8], fs: FsUuid, id: FragmentId, attempt: u16) -> Result<FragmentHeader, DecodeError> {
    let r = &mut Reader::new(bytes);
    let len = r.u32("fragment length")?;
    if len > FRAGMENT_LEN_MAX {
        return Err(DecodeError::Invalid("fragment length"));
    }
    let chunk_crcs = (0..chunk_count(len)).map(|_| r.u32("chunk checksum")).collect::<Result<_, _>>()?;
    let (k, m) = (r.u8("k")?, r.u8("m")?);
    let (fragment_len, payload_len) = (r.u32("stripe fragment length")?, r.u32("payload length")?);
    let delta_offset = r.u32("delta offset")?;
    let members =
        (0..u16::from(k) + u16::from(m)).map(|_| r.u16("member").map(StoreId::new)).collect::<Result<Vec<_>, _>>()?;
    let flags = r.u8("packed header flags")?;
    if flags & !(FLAG_PREVIOUS | FLAG_ORDER) != 0 {
        return Err(DecodeError::Invalid("packed header flags"));
    }
    let previous = if flags & FLAG_PREVIOUS == 0 { None } else { Some(SegmentId::decode(r)?) };
    let order = if flags & FLAG_ORDER == 0 { 0 } else { r.u64("order")? };
    if order == 0 && flags & FLAG_ORDER != 0 {
        return Err(DecodeError::Invalid("order"));
    }
    if !r.is_empty() {
        return Err(DecodeError::Invalid("packed header length"));
    }
    Ok(FragmentHeader {
        fs,
        id,
        attempt,
        geometry: Geometry { k, m, fragment_len, payload_len, members },
        delta_offset,
        previous,
        order,
        chunk_crcs,
        len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FS, fragment};
    use types::LogId;

    #[test]
    fn packing_keeps_everything() {
        for len in [0, 1, 65_536, 65_537, 1024 * 1024] {
            for (order, previous) in [(0, true), (5, true), (0, false), (u64::MAX, false)] {
                let mut header = fragment(3, 7, 1, len).header;
                header.order = order;
                header.previous = header.previous.filter(|_| previous);
                let packed = PackedHeader::new(&header);
                assert_eq!(packed.len(), len);
                for (i, crc) in header.chunk_crcs.iter().enumerate() {
                    assert_eq!(packed.chunk_crc(i as u32), *crc);
                }
                assert_eq!(packed.unpack(FS, header.id, header.attempt), Ok(header.clone()));
                assert_eq!(PackedHeader::decode(packed.as_bytes(), FS, header.id, header.attempt), Ok(packed));
            }
        }
    }

    #[test]
    fn unknown_flags_and_an_order_of_0_are_refused() {
        let header = fragment(3, 7, 1, 10).header;
        let good = PackedHeader::new(&header).as_bytes().to_vec();
        let refused = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            PackedHeader::decode(&bytes, FS, header.id, 0).err()
        };
        let flags = good.len() - 8 - SegmentId::ENCODED_LEN - 1;
        assert_eq!((good[flags], refused(flags, 7)), (3, Some(DecodeError::Invalid("packed header flags"))));
        assert_eq!((good[good.len() - 8], refused(good.len() - 8, 0)), (7, Some(DecodeError::Invalid("order"))));
    }

    #[test]
    fn a_header_cut_short_or_with_bytes_too_many_is_refused() {
        let header = fragment(3, 7, 1, 70_000).header;
        let bytes = PackedHeader::new(&header).as_bytes().to_vec();
        for len in 0..bytes.len() {
            assert!(PackedHeader::decode(&bytes[..len], FS, header.id, 0).is_err(), "{len} bytes");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(PackedHeader::decode(&longer, FS, header.id, 0).is_err());
    }

    #[test]
    fn an_index_outside_the_stripe_is_refused() {
        let header = fragment(3, 7, 1, 10).header;
        let id = FragmentId { segment: SegmentId { log: LogId::new(3), epoch: 0, seq: 7 }, index: 2 };
        assert!(PackedHeader::decode(PackedHeader::new(&header).as_bytes(), FS, id, 0).is_err());
    }
}
