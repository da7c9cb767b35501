//! Fragment headers as the index keeps them: one small allocation each.
//!
//! A store keeps a header in memory for every fragment. The fields that the index key and the store
//! itself have (file system, fragment id, attempt) are left out. The others are kept as the bytes
//! that also go into checkpoints:
//!
//! ```text
//! len u32 | chunk CRC u32 x ceil(len / 64 KiB) | k u8 | m u8 | fragment_len u32 | payload_len u32 | delta_offset u32
//!   | member u16 x (k + m) | has_previous u8 | previous segment (16 bytes, if has_previous is 1)
//! ```
//!
//! A [`PackedHeader`] is always well-formed: it is made from a checked header, or by
//! [`PackedHeader::decode`], which checks it.

use striped_log::fragment::{CHUNK_LEN, FRAGMENT_LEN_MAX, FragmentHeader, Geometry};
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, SegmentId, StoreId};

/// The fields of a [`FragmentHeader`] that the index key does not have, encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackedHeader(Box<[u8]>);

/// Number of checksummed chunks in `len` payload bytes.
pub fn chunk_count(len: u32) -> u32 {
    len.div_ceil(CHUNK_LEN)
}

impl PackedHeader {
    /// Packs `header`. The caller has checked the header with [`FragmentHeader::check`].
    pub fn new(header: &FragmentHeader) -> Self {
        let g = &header.geometry;
        let mut out =
            Vec::with_capacity(19 + 4 * header.chunk_crcs.len() + 2 * g.members.len() + SegmentId::ENCODED_LEN);
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
        match &header.previous {
            None => out.put_u8(0),
            Some(segment) => {
                out.put_u8(1);
                segment.encode(&mut out);
            }
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
    let previous = match r.u8("previous")? {
        0 => None,
        1 => Some(SegmentId::decode(r)?),
        _ => return Err(DecodeError::Invalid("previous")),
    };
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
            let header = fragment(3, 7, 1, len).header;
            let packed = PackedHeader::new(&header);
            assert_eq!(packed.len(), len);
            for (i, crc) in header.chunk_crcs.iter().enumerate() {
                assert_eq!(packed.chunk_crc(i as u32), *crc);
            }
            assert_eq!(packed.unpack(FS, header.id, header.attempt), Ok(header.clone()));
            assert_eq!(PackedHeader::decode(packed.as_bytes(), FS, header.id, header.attempt), Ok(packed));
        }
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
