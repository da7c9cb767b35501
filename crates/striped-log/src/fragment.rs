//! Fragment headers: what a fragment says of itself, so that any one of a segment's fragments tells how to read the rest.
//!
//! A header is [`HEADER_LEN`] bytes with every field at a fixed place (docs/disk-format.md) and a CRC-32C of its own at the end.
//! It must survive: torn and stray writes (checksum), rot (checksum), and bytes that were made to deceive a decoder (every
//! length is bounded and checked against the others, so what decodes can be used without further checks). Decoding
//! accepts exactly what encoding writes: each header has one encoding.

pub use crate::geometry::Geometry;
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, SegmentId, StoreId};

/// Checksummed unit of a fragment's payload, in bytes; also the unit in which payload is read and cached.
pub const CHUNK_LEN: u32 = 64 * 1024;
/// Largest payload of one fragment in bytes.
pub const FRAGMENT_LEN_MAX: u32 = 1024 * 1024;
/// Encoded length of a header in bytes; the payload follows it on disk.
pub const HEADER_LEN: usize = 512;
/// Most data fragments per stripe.
pub const DATA_FRAGMENTS_MAX: usize = 16;
/// Most parity fragments per stripe.
pub const PARITY_FRAGMENTS_MAX: usize = 2;
/// Most chunks in one fragment.
pub const CHUNKS_MAX: usize = (FRAGMENT_LEN_MAX / CHUNK_LEN) as usize;
/// Most members of a stripe.
pub const MEMBERS_MAX: usize = DATA_FRAGMENTS_MAX + PARITY_FRAGMENTS_MAX;

/// The first bytes of every fragment.
pub const MAGIC: [u8; 8] = *b"STARFRAG";
/// The newest header format this program knows, and the one it writes.
pub const FORMAT_VERSION: u16 = 1;

/// Flag bit: the field `previous` is meaningful.
const FLAG_PREVIOUS: u8 = 1;
/// Where the header's own checksum is; it covers all before it.
const CHECKSUM_OFFSET: usize = HEADER_LEN - 4;

/// Everything a fragment says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FragmentHeader {
    /// The file system it belongs to.
    pub fs: FsUuid,
    /// Its name.
    pub id: FragmentId,
    /// Which try at storing the segment this is; a later attempt has the same payload, maybe another geometry.
    pub attempt: u16,
    /// The stripe.
    pub geometry: Geometry,
    /// Where the segment's delta section begins in the payload; it ends at `payload_len`.
    pub delta_offset: u32,
    /// The segment before this one in the log; `None` for the first ever.
    pub previous: Option<SegmentId>,
    /// CRC-32C of each [`CHUNK_LEN`] chunk of this fragment's payload (the last one short).
    pub chunk_crcs: Vec<u32>,
    /// Payload bytes of this fragment.
    pub len: u32,
}

/// A fragment on its way to a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// What it says of itself.
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

    /// The encoding as a store writes it: `generation` says which use of a slot the fragment belongs to, and means nothing
    /// elsewhere. The header must pass [`check`](Self::check); otherwise what is encoded will not decode.
    pub fn encode_with_generation(&self, generation: u64) -> [u8; HEADER_LEN] {
        debug_assert_eq!(self.check(), Ok(()), "only well-formed headers are encoded");
        let g = &self.geometry;
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&MAGIC);
        out.put_u16(FORMAT_VERSION);
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
        out.put_u64(0);
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

    /// Reads a header, whatever its store generation. `bytes` may be longer than a header; the rest is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with_generation(bytes).map(|(header, _)| header)
    }

    /// Reads a header and its store generation. `bytes` may be longer than a header; the rest is not looked at.
    pub fn decode_with_generation(bytes: &[u8]) -> Result<(Self, u64), DecodeError> {
        let bytes = bytes.get(..HEADER_LEN).ok_or(DecodeError::Truncated("fragment header"))?;
        let (body, checksum) = bytes.split_at(CHECKSUM_OFFSET);
        let mut r = Reader::new(body);
        if r.take(MAGIC.len(), "fragment magic")? != MAGIC {
            return Err(DecodeError::Invalid("fragment magic"));
        }
        // Before the version, so that a rotten version is not taken for a newer program's.
        if Reader::new(checksum).u32("header checksum")? != crc32c(body) {
            return Err(DecodeError::Checksum("fragment header"));
        }
        let version = r.u16("header version")?;
        if version > FORMAT_VERSION {
            return Err(DecodeError::Version { what: "fragment header", found: version, known: FORMAT_VERSION });
        }
        if version == 0 {
            return Err(DecodeError::Invalid("header version"));
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
        zeros(r.take(8, "reserved bytes")?, "reserved bytes")?;

        let chunk_crcs = fixed_array(&mut r, CHUNKS_MAX, chunk_count(len), |r| r.u32("chunk checksum"))?;
        let member_count = usize::from(k) + usize::from(m);
        let members = fixed_array(&mut r, MEMBERS_MAX, member_count, |r| r.u16("member"))?;
        zeros(r.take(r.remaining(), "header padding")?, "header padding")?;

        let members = members.into_iter().map(StoreId::new).collect();
        let geometry = Geometry { k, m, fragment_len, payload_len, members };
        let id = FragmentId { segment, index };
        let header = FragmentHeader { fs, id, attempt, geometry, delta_offset, previous, chunk_crcs, len };
        header.check()?;
        Ok((header, generation))
    }

    /// Checks that every field is in bounds and agrees with the others. What [`decode`](Self::decode) returns has passed.
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

    /// True when `bytes` are chunk `chunk_index` of this fragment's payload: the whole chunk, unchanged.
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

    /// The fragment with index `index` and this payload of the same attempt of the same segment: what repair puts in the place of
    /// one that was lost.
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

/// Reads `slots` values, of which the first `used` count and the rest are zero.
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
