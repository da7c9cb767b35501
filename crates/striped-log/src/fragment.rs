//! Fragment headers.

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

/// How a segment was striped: enough to find and rebuild everything from any one fragment's header.
///
/// Data fragment `i` holds payload bytes `i * fragment_len .. min((i + 1) * fragment_len, payload_len)` at its true length;
/// parity fragments are `fragment_len` long (computed as if short data fragments were zero-padded). With one data fragment,
/// `fragment_len == payload_len`; otherwise `fragment_len` is a multiple of [`CHUNK_LEN`], so chunk `c` of the payload is in data
/// fragment `c / (fragment_len / CHUNK_LEN)` and never crosses fragments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Data fragments, 1..=16.
    pub k: u8,
    /// Parity fragments, 1 or 2.
    pub m: u8,
    /// See above, in bytes.
    pub fragment_len: u32,
    /// Bytes of the segment's payload.
    pub payload_len: u32,
    /// The stores that hold fragments `0..k+m`, in order.
    pub members: Vec<StoreId>,
}

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
