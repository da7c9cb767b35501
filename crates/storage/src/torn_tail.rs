//! The walk over an extent that finds the fragments that a crash left. Pure; [`crate::files`] reads
//! the bytes.
//!
//! Only extents that the newest checkpoint reserved can hold fragments that it does not list. The
//! walk goes from header to header: the length of each gives the place of the next. It ends at the
//! first header that is not whole, or that does not carry the checkpoint's random number and so was
//! not written under it. There may be any bytes, also bytes that a user wrote into a file. A
//! fragment with a whole header and a torn payload was never acknowledged, or has rotted. The walk
//! leaves it out and goes on, since acknowledged fragments may follow.
//!
//! A header that is not whole, and yet has the checkpoint's random number, has rotted. Acknowledged
//! fragments may have been behind it.
//!
//! The payload of a fragment is never taken for another fragment: the walk does not look for
//! headers inside payloads.

use crate::pages::{PAGE, PageExtent, footprint, pages};
use striped_log::fragment::{FragmentHeader, HEADER_LEN, chunk_crcs};

/// A fragment found in an extent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundFragments {
    /// Its header.
    pub header: FragmentHeader,
    /// Byte offset of the header from where the walk began.
    pub offset: u32,
    /// True if the payload matches the header's checksums.
    pub intact: bool,
}

impl FoundFragments {
    /// Where the payload is in the bytes that were walked.
    pub fn payload_range(&self) -> std::ops::Range<usize> {
        let begin = self.offset as usize + HEADER_LEN;
        begin..begin + self.header.len as usize
    }

    /// The pages that it takes, if the walk began at page `begin`.
    pub fn place(&self, begin: u32) -> PageExtent {
        PageExtent { start: begin + self.offset / PAGE, len: pages(self.header.len) }
    }
}

/// Finds the fragments in `bytes`, which are an extent from its start on. Also returns the offset
/// at which the walk ended. `belongs` judges each header and its generation; the first that does
/// not belong ends the walk.
pub fn walk(bytes: &[u8], belongs: impl Fn(&FragmentHeader, u64) -> bool) -> (Vec<FoundFragments>, u32) {
    let (mut found, mut offset) = (Vec::new(), 0);
    while let Some(rest) = bytes.get(offset as usize..).filter(|rest| rest.len() >= PAGE as usize) {
        let Ok((header, generation)) = FragmentHeader::decode_with_generation(rest) else { break };
        if !belongs(&header, generation) || footprint(header.len) as usize > rest.len() {
            break;
        }
        let payload = &rest[HEADER_LEN..HEADER_LEN + header.len as usize];
        let intact = chunk_crcs(payload) == header.chunk_crcs;
        let here = FoundFragments { header, offset, intact };
        offset += footprint(here.header.len);
        found.push(here);
    }
    (found, offset)
}

/// True if these bytes, which do not decode as a header, once were one under the checkpoint with
/// this random number. No other sector has the number, and a crash tears no sector.
pub fn is_rotten(sector: &[u8], generation: u64) -> bool {
    sector.windows(8).any(|bytes| bytes == generation.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fragment;

    const EXTENT_LEN: u32 = footprint(1 << 20);

    /// An extent with fragments of these lengths, written under these generations.
    fn extent(fragments: &[(u32, u64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, (len, generation)) in fragments.iter().enumerate() {
            let fragment = fragment(1, i as u64, 0, *len);
            bytes.extend_from_slice(&fragment.header.encode_with_generation(*generation));
            bytes.extend_from_slice(&fragment.payload);
            bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        }
        bytes.resize(EXTENT_LEN as usize, 0);
        bytes
    }

    fn walked(bytes: &[u8]) -> (Vec<(u64, bool)>, u32) {
        let (found, end) = walk(bytes, |_, generation| generation == 5);
        (found.iter().map(|f| (f.header.id.segment.seq, f.intact)).collect(), end)
    }

    #[test]
    fn all_fragments_of_the_generation_are_found() {
        let bytes = extent(&[(100, 5), (70_000, 5), (0, 5)]);
        assert_eq!(walked(&bytes), (vec![(0, true), (1, true), (2, true)], 4096 + 73728 + 4096));
        assert_eq!(walked(&extent(&[(1 << 20, 5)])), (vec![(0, true)], EXTENT_LEN));
        assert_eq!(walked(&vec![0; EXTENT_LEN as usize]), (vec![], 0));
        assert_eq!(walked(&[]), (vec![], 0));
    }

    #[test]
    fn an_earlier_use_of_the_pages_ends_the_walk() {
        assert_eq!(walked(&extent(&[(100, 5), (100, 4), (100, 5)])), (vec![(0, true)], 4096));
    }

    #[test]
    fn a_torn_header_ends_the_walk_and_a_torn_payload_is_told() {
        let mut bytes = extent(&[(100, 5), (100, 5), (100, 5), (100, 5)]);
        bytes[4096 + HEADER_LEN + 50] ^= 1;
        bytes[3 * 4096 + 50] ^= 1;
        assert_eq!(walked(&bytes), (vec![(0, true), (1, false), (2, true)], 3 * 4096));
    }

    #[test]
    fn a_header_that_has_rotted_is_told_from_one_that_was_never_written() {
        let mut bytes = extent(&[(100, 5), (100, 0x1122_3344_5566_7788)]);
        bytes[4096 + 50] ^= 1;
        let sector = &bytes[4096..4096 + HEADER_LEN];
        assert!(is_rotten(sector, 0x1122_3344_5566_7788));
        assert!(!is_rotten(sector, 5 << 32) && !is_rotten(&[0; HEADER_LEN], 0x1122_3344_5566_7788));
    }

    #[test]
    fn a_fragment_that_would_reach_beyond_the_extent_is_not_taken() {
        let bytes = extent(&[(100, 5), (70_000, 5)]);
        assert_eq!(walked(&bytes[..8192]), (vec![(0, true)], 4096));
    }
}
