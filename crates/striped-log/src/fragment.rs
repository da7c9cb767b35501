//! Fragment headers. Each describes its fragment and the whole stripe, so that any one of a
//! segment's fragments tells how to read the others.
//!
//! A header is [`HEADER_LEN`] bytes with every field at a fixed place (docs/disk-format.md), and
//! ends with its own CRC-32C. It must survive torn writes, stray writes and rot; the checksum finds
//! them. It must also survive bytes that were made to deceive a decoder: every length is bounded
//! and checked against the others, so a decoded header can be used without further checks. Decoding
//! accepts exactly what encoding writes: each header has one encoding.

pub use crate::geometry::{
    CHUNK_LEN, DATA_FRAGMENTS_MAX, FRAGMENT_LEN_MAX, Geometry, MEMBERS_MAX, PARITY_FRAGMENTS_MAX,
};
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, SegmentId, StoreId};

/// Encoded length of a header in bytes; the payload follows it on disk.
pub const HEADER_LEN: usize = 512;
/// Most chunks of a fragment.
pub const CHUNKS_MAX: usize = (FRAGMENT_LEN_MAX / CHUNK_LEN) as usize;

/// The first bytes of every fragment.
pub const MAGIC: [u8; 8] = *b"STARFRAG";
/// The newest format of headers and of the payload that they describe. Version 1 had another code
/// for two parity fragments, and is refused.
pub const FORMAT_VERSION: u16 = 3;
/// The format of segments without an order. Only older programs made such segments, but repair
/// still writes fragments of them.
const FORMAT_VERSION_UNORDERED: u16 = 2;

/// Flag bit: the field `previous` is meaningful.
const FLAG_PREVIOUS: u8 = 1;
/// Where the header's own checksum is. It covers all bytes before it.
const CHECKSUM_OFFSET: usize = HEADER_LEN - 4;

/// The description of a fragment and its stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FragmentHeader {
    /// The file system that the fragment belongs to.
    pub fs: FsUuid,
    /// The fragment's name.
    pub id: FragmentId,
    /// The number of this attempt to put the segment. A later attempt has the same payload, perhaps
    /// with another geometry.
    pub attempt: u16,
    /// The stripe.
    pub geometry: Geometry,
    /// Where the segment's delta section begins in the payload; it ends at `payload_len`.
    pub delta_offset: u32,
    /// The segment before this one in the log; `None` for the first ever.
    pub previous: Option<SegmentId>,
    /// The segment's order among the segments of all logs (see
    /// [`LogPlace`](crate::builder::LogPlace)); 0 if an older program made it.
    pub order: u64,
    /// CRC-32C of each [`CHUNK_LEN`] chunk of this fragment's payload (the last one short).
    pub chunk_crcs: Vec<u32>,
    /// Payload bytes of this fragment.
    pub len: u32,
}

/// A fragment on its way to a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Its description.
    pub header: FragmentHeader,
    /// Its payload, `header.len` bytes.
    pub payload: bytes::Bytes,
}

impl Fragment {
    /// Checks that header and payload are well-formed and belong together, checksums included.
    pub fn check(&self) -> Result<(), DecodeError> {
        self.header.check()?;
        if self.payload.len() != self.header.len as usize {
            return Err(DecodeError::Invalid("fragment payload length"));
        }
        if chunk_crcs(&self.payload) != self.header.chunk_crcs {
            return Err(DecodeError::Checksum("fragment payload"));
        }
        Ok(())
    }
}

/// CRC-32C (Castagnoli), the checksum of headers and chunks.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The checksums of a fragment's payload, one for each [`CHUNK_LEN`] chunk.
pub fn chunk_crcs(payload: &[u8]) -> Vec<u32> {
    payload.chunks(CHUNK_LEN as usize).map(crc32c).collect()
}

impl FragmentHeader {
    /// The encoding with store generation 0, as it travels to a store.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        self.encode_with_generation(0)
    }

    /// The encoding as a store writes it. `generation` tells the store which use of its pages the
    /// fragment belongs to, and means nothing elsewhere. The header must pass
    /// [`check`](Self::check), or its encoding will not decode.
    pub fn encode_with_generation(&self, generation: u64) -> [u8; HEADER_LEN] {
        debug_assert_eq!(self.check(), Ok(()), "only well-formed headers are encoded");
        let g = &self.geometry;
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&MAGIC);
        out.put_u16(if self.order == 0 { FORMAT_VERSION_UNORDERED } else { FORMAT_VERSION });
        out.put_u16(self.attempt);
        out.put_u8(self.id.index);
        out.put_u8(g.k);
        out.put_u8(g.m);
        out.put_u8(if self.previous.is_some() { FLAG_PREVIOUS } else { 0 });
        out.extend_from_slice(&self.fs.0);
        self.id.segment.encode(&mut out);
        match &self.previous {
            Some(previous) => previous.encode(&mut out),
            None => out.extend_from_slice(&[0; SegmentId::ENCODED_LEN]),
        }
        out.put_u32(g.fragment_len);
        out.put_u32(g.payload_len);
        out.put_u32(self.delta_offset);
        out.put_u32(self.len);
        out.put_u64(generation);
        out.put_u64(self.order);
        for i in 0..CHUNKS_MAX {
            out.put_u32(self.chunk_crcs.get(i).copied().unwrap_or(0));
        }
        for i in 0..MEMBERS_MAX {
            out.put_u16(g.members.get(i).map_or(0, |store| store.raw()));
        }
        out.resize(CHECKSUM_OFFSET, 0);
        let checksum = crc32c(&out);
        out.put_u32(checksum);
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// Reads a header with any store generation. `bytes` may be longer than a header; the rest is
    /// ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with_generation(bytes).map(|(header, _)| header)
    }

    /// Reads a header and its store generation. `bytes` may be longer than a header; the rest is
    /// ignored.
    pub fn decode_with_generation(bytes: &[u8]) -> Result<(Self, u64), DecodeError> {
        let bytes = bytes.get(..HEADER_LEN).ok_or(DecodeError::Truncated("fragment header"))?;
        let (body, checksum) = bytes.split_at(CHECKSUM_OFFSET);
        let mut r = Reader::new(body);
        if r.take(MAGIC.len(), "fragment magic")? != MAGIC {
            return Err(DecodeError::Invalid("fragment magic"));
        }
        // This check precedes the version, so that a rotten version is not taken for that of
        // another program.
        if Reader::new(checksum).u32("header checksum")? != crc32c(body) {
            return Err(DecodeError::Checksum("fragment header"));
        }
        let version = r.u16("header version")?;
        if version == 0 {
            return Err(DecodeError::Invalid("header version"));
        }
        if !(FORMAT_VERSION_UNORDERED..=FORMAT_VERSION).contains(&version) {
            return Err(DecodeError::Version { what: "fragment header", found: version, known: FORMAT_VERSION });
        }
        let attempt = r.u16("attempt")?;
        let (index, k, m) = (r.u8("fragment index")?, r.u8("data fragment count")?, r.u8("parity fragment count")?);
        let flags = r.u8("header flags")?;
        let mut fs = FsUuid([0; 16]);
        fs.0.copy_from_slice(r.take(16, "file system id")?);
        let segment = SegmentId::decode(&mut r)?;
        let previous = match flags {
            0 => {
                zeros(r.take(SegmentId::ENCODED_LEN, "previous segment")?, "previous segment")?;
                None
            }
            FLAG_PREVIOUS => Some(SegmentId::decode(&mut r)?),
            _ => return Err(DecodeError::Invalid("header flags")),
        };
        let (fragment_len, payload_len) = (r.u32("fragment length")?, r.u32("payload length")?);
        let (delta_offset, len) = (r.u32("delta offset")?, r.u32("length")?);
        let generation = r.u64("store generation")?;
        let order = r.u64("order")?;
        if (order == 0) != (version == FORMAT_VERSION_UNORDERED) {
            return Err(DecodeError::Invalid("order"));
        }

        let chunk_crcs = fixed_array(&mut r, CHUNKS_MAX, chunk_count(len), |r| r.u32("chunk checksum"))?;
        let member_count = usize::from(k) + usize::from(m);
        let members = fixed_array(&mut r, MEMBERS_MAX, member_count, |r| r.u16("member"))?;
        zeros(r.take(r.remaining(), "header padding")?, "header padding")?;

        let members = members.into_iter().map(StoreId::new).collect();
        let geometry = Geometry { k, m, fragment_len, payload_len, members };
        let id = FragmentId { segment, index };
        let header = FragmentHeader { fs, id, attempt, geometry, delta_offset, previous, order, chunk_crcs, len };
        header.check()?;
        Ok((header, generation))
    }

    /// Checks that every field is in bounds and agrees with the others. [`decode`](Self::decode)
    /// returns only headers that pass.
    pub fn check(&self) -> Result<(), DecodeError> {
        self.geometry.check()?;
        if self.id.index >= self.geometry.width() {
            return Err(DecodeError::Invalid("fragment index"));
        }
        if self.len != self.geometry.data_len(self.id.index) {
            return Err(DecodeError::Invalid("length"));
        }
        if self.chunk_crcs.len() != chunk_count(self.len) {
            return Err(DecodeError::Invalid("chunk checksum count"));
        }
        if self.delta_offset > self.geometry.payload_len {
            return Err(DecodeError::Invalid("delta offset"));
        }
        if let Some(previous) = self.previous {
            let SegmentId { log, epoch, seq } = self.id.segment;
            if previous.log != log || previous.epoch > epoch || previous.seq.checked_add(1) != Some(seq) {
                return Err(DecodeError::Invalid("previous segment"));
            }
        }
        Ok(())
    }

    /// True if `bytes` are chunk `chunk_index` of this fragment's payload, whole and unchanged.
    pub fn verify_chunk(&self, chunk_index: usize, bytes: &[u8]) -> bool {
        let Some(&expected) = self.chunk_crcs.get(chunk_index) else { return false };
        let begin = chunk_index * CHUNK_LEN as usize;
        let len = (self.len as usize).saturating_sub(begin).min(CHUNK_LEN as usize);
        bytes.len() == len && crc32c(bytes) == expected
    }

    /// The store that the geometry names for this fragment.
    pub fn member(&self) -> Option<StoreId> {
        self.geometry.members.get(usize::from(self.id.index)).copied()
    }

    /// Another fragment of the same attempt of the same segment, with this index and payload.
    /// Repair puts it in the place of one that was lost.
    pub fn sibling(&self, index: u8, payload: bytes::Bytes) -> Fragment {
        let id = FragmentId { segment: self.id.segment, index };
        let header = FragmentHeader { id, chunk_crcs: chunk_crcs(&payload), len: payload.len() as u32, ..self.clone() };
        Fragment { header, payload }
    }
}

/// Number of chunks in `len` bytes.
fn chunk_count(len: u32) -> usize {
    len.div_ceil(CHUNK_LEN) as usize
}

/// Refuses bytes that no encoder sets: each header has one encoding.
fn zeros(bytes: &[u8], what: &'static str) -> Result<(), DecodeError> {
    if bytes.iter().all(|&b| b == 0) { Ok(()) } else { Err(DecodeError::Invalid(what)) }
}

/// Reads `slots` values and returns the first `used` of them. The rest must be zero.
fn fixed_array<T: Default + PartialEq>(
    r: &mut Reader<'_>,
    slots: usize,
    used: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    if used > slots {
        return Err(DecodeError::Invalid("header array length"));
    }
    let mut values = (0..slots).map(|_| read(r)).collect::<Result<Vec<T>, _>>()?;
    if values.drain(used..).any(|v| v != T::default()) {
        return Err(DecodeError::Invalid("header array padding"));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FS, header, segment};
    use proptest::prelude::*;

    /// The header with the most members and chunks: 16 + 2 fragments of 1 MiB.
    fn largest() -> FragmentHeader {
        let geometry = crate::testing::geometry(16 * FRAGMENT_LEN_MAX, 16, 2);
        assert_eq!(geometry.members.len(), MEMBERS_MAX);
        let fragment = segment(16 * FRAGMENT_LEN_MAX, 1).stripe(FS, u16::MAX, geometry).remove(17);
        assert_eq!(fragment.header.chunk_crcs.len(), CHUNKS_MAX);
        fragment.header
    }

    /// The bytes with the right checksum.
    fn resealed(mut bytes: [u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
        let checksum = crc32c(&bytes[..CHECKSUM_OFFSET]);
        bytes[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn the_largest_header_fits() {
        let bytes = largest().encode_with_generation(u64::MAX);
        assert_eq!(FragmentHeader::decode_with_generation(&bytes), Ok((largest(), u64::MAX)));
        assert_eq!(bytes[196..CHECKSUM_OFFSET], [0; 312], "room for what is to come");
    }

    #[test]
    fn crc32c_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_truncation_is_refused_and_longer_input_is_not() {
        let bytes = largest().encode();
        for len in 0..HEADER_LEN {
            assert_eq!(FragmentHeader::decode(&bytes[..len]), Err(DecodeError::Truncated("fragment header")));
        }
        let mut longer = bytes.to_vec();
        longer.push(1);
        assert_eq!(FragmentHeader::decode(&longer), Ok(largest()));
    }

    #[test]
    fn every_single_bit_flip_is_refused() {
        let good = largest().encode_with_generation(5);
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FragmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_byte_value_with_a_good_checksum_is_refused_or_is_what_encoding_it_gives() {
        for good in [largest().encode_with_generation(5), small().encode()] {
            for at in 0..CHECKSUM_OFFSET {
                for value in 0..=255 {
                    let mut bytes = good;
                    bytes[at] = value;
                    assert_canonical(resealed(bytes));
                }
            }
        }
    }

    fn small() -> FragmentHeader {
        let geometry = crate::testing::geometry(3 * CHUNK_LEN + 9, 4, 1);
        segment(3 * CHUNK_LEN + 9, 1).stripe(FS, 0, geometry).remove(3).header
    }

    fn assert_canonical(bytes: [u8; HEADER_LEN]) {
        if let Ok((header, generation)) = FragmentHeader::decode_with_generation(&bytes) {
            assert_eq!(header.check(), Ok(()));
            assert_eq!(header.encode_with_generation(generation), bytes);
        }
    }

    #[test]
    fn zeros_and_other_files_are_not_headers() {
        assert_eq!(FragmentHeader::decode(&[0; HEADER_LEN]), Err(DecodeError::Invalid("fragment magic")));
        assert_eq!(FragmentHeader::decode(&[0xff; HEADER_LEN]), Err(DecodeError::Invalid("fragment magic")));
    }

    #[test]
    fn another_version_says_so_and_a_rotten_one_does_not() {
        let mut bytes = small().encode();
        for found in [1, 4] {
            bytes[8] = found;
            assert_eq!(FragmentHeader::decode(&bytes), Err(DecodeError::Checksum("fragment header")));
            let other = DecodeError::Version { what: "fragment header", found: found.into(), known: 3 };
            assert_eq!(FragmentHeader::decode(&resealed(bytes)), Err(other));
        }
        bytes[8] = 0;
        assert_eq!(FragmentHeader::decode(&resealed(bytes)), Err(DecodeError::Invalid("header version")));
    }

    #[test]
    fn a_header_without_an_order_has_the_version_before_and_no_other() {
        let unordered = FragmentHeader { order: 0, ..small() };
        let (old, new) = (unordered.encode(), small().encode());
        assert_eq!((old[8], new[8]), (2, 3));
        assert_eq!(FragmentHeader::decode(&old), Ok(unordered));
        for mut bytes in [old, new] {
            bytes[8] = 5 - bytes[8];
            assert_eq!(FragmentHeader::decode(&resealed(bytes)), Err(DecodeError::Invalid("order")));
        }
    }

    #[test]
    fn check_refuses_fields_that_contradict_each_other() {
        let good = small();
        let broken = |change: fn(&mut FragmentHeader)| {
            let mut header = good.clone();
            change(&mut header);
            header.check()
        };
        let invalid = |what| Err(DecodeError::Invalid(what));
        assert_eq!(good.check(), Ok(()));
        assert_eq!(broken(|h| h.geometry.k = 0), invalid("data fragment count"));
        assert_eq!(broken(|h| h.id.index = 5), invalid("fragment index"));
        assert_eq!(broken(|h| h.len += 1), invalid("length"));
        assert_eq!(broken(|h| h.id.index = 4), invalid("length"));
        assert_eq!(broken(|h| h.chunk_crcs.clear()), invalid("chunk checksum count"));
        assert_eq!(broken(|h| h.delta_offset = h.geometry.payload_len + 1), invalid("delta offset"));
        assert_eq!(broken(|h| h.id.segment.seq += 1), invalid("previous segment"));
        assert_eq!(broken(|h| h.id.segment.epoch = 0), invalid("previous segment"));
        assert_eq!(broken(|h| h.id.segment.log = types::LogId::new(9)), invalid("previous segment"));
        assert_eq!(broken(|h| h.delta_offset = h.geometry.payload_len), Ok(()));
        assert_eq!(broken(|h| h.previous = None), Ok(()));
    }

    #[test]
    fn only_the_very_chunk_verifies() {
        let geometry = crate::testing::geometry(2 * 5 * CHUNK_LEN - 7, 2, 1);
        let fragments = segment(2 * 5 * CHUNK_LEN - 7, 3).stripe(FS, 0, geometry);
        let Fragment { header, payload } = &fragments[1];
        let chunks: Vec<&[u8]> = payload.chunks(CHUNK_LEN as usize).collect();
        assert_eq!((chunks.len(), chunks[4].len()), (5, CHUNK_LEN as usize - 7));
        for (i, chunk) in chunks.iter().enumerate() {
            for (j, other) in chunks.iter().enumerate() {
                assert_eq!(header.verify_chunk(i, other), i == j);
            }
            assert!(!header.verify_chunk(i, &chunk[1..]));
            let mut changed = chunk.to_vec();
            changed[17] ^= 4;
            assert!(!header.verify_chunk(i, &changed));
        }
        assert!(!header.verify_chunk(5, &[]));
        assert!(!header.verify_chunk(usize::MAX, chunks[0]));
    }

    #[test]
    fn a_fragments_check_sees_a_changed_payload() {
        let geometry = crate::testing::geometry(100, 1, 1);
        let mut fragment = segment(100, 3).stripe(FS, 0, geometry).remove(0);
        assert_eq!(fragment.check(), Ok(()));
        let good = fragment.payload.clone();
        fragment.payload = good.slice(1..);
        assert_eq!(fragment.check(), Err(DecodeError::Invalid("fragment payload length")));
        fragment.payload = crate::testing::payload(100, 4);
        assert_eq!(fragment.check(), Err(DecodeError::Checksum("fragment payload")));
    }

    proptest! {
        #[test]
        fn prop_headers_come_back_as_they_were(header in header(), generation: u64) {
            prop_assert_eq!(header.check(), Ok(()));
            let bytes = header.encode_with_generation(generation);
            prop_assert_eq!(FragmentHeader::decode_with_generation(&bytes), Ok((header.clone(), generation)));
            prop_assert_eq!(FragmentHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn prop_mutated_headers_are_refused_or_are_what_encoding_them_gives(
            header in header(),
            changes in proptest::collection::vec((0..CHECKSUM_OFFSET, any::<u8>()), 1..6),
        ) {
            let mut bytes = header.encode();
            for (at, value) in changes {
                bytes[at] = value;
            }
            assert_canonical(resealed(bytes));
        }

        #[test]
        fn prop_arbitrary_bytes_never_panic_the_decoder(body in proptest::collection::vec(any::<u8>(), 196)) {
            let mut bytes = [0; HEADER_LEN];
            bytes[..196].copy_from_slice(&body);
            bytes[..8].copy_from_slice(&MAGIC);
            for version in [FORMAT_VERSION_UNORDERED, FORMAT_VERSION] {
                bytes[8..10].copy_from_slice(&version.to_le_bytes());
                assert_canonical(resealed(bytes));
            }
        }
    }
}
