//! How a payload is spread over the fragments of a stripe. Pure arithmetic: every field is checked
//! before it is used.

use crate::parity::BLOCK_LEN;
use std::ops::Range;
use types::StoreId;
use types::codec::DecodeError;

/// Length of a chunk in bytes: the unit of a fragment's payload that has a checksum, and in which
/// payload is read and cached.
pub const CHUNK_LEN: u32 = 64 * 1024;
/// Longest payload of one fragment in bytes. Longer fragments make disks faster; a header has room
/// for the checksums of [`CHUNKS_MAX`](crate::fragment::CHUNKS_MAX) chunks.
pub const FRAGMENT_LEN_MAX: u32 = 1024 * 1024;
/// Most data fragments of a stripe.
pub const DATA_FRAGMENTS_MAX: usize = 16;
/// Most parity fragments of a stripe.
pub const PARITY_FRAGMENTS_MAX: usize = 2;
/// Most members of a stripe: one for each fragment.
pub const MEMBERS_MAX: usize = DATA_FRAGMENTS_MAX + PARITY_FRAGMENTS_MAX;

/// How a segment is striped. Any one fragment's header has it, and it is enough to find and rebuild
/// all fragments.
///
/// Data fragment `i` holds payload bytes `i * fragment_len .. min((i + 1) * fragment_len,
/// payload_len)`, at their true length. Parity fragments are `fragment_len` long, and are computed
/// as if short data fragments ended in zeros. With one data fragment, `fragment_len ==
/// payload_len`. Otherwise `fragment_len` is a multiple of [`CHUNK_LEN`], so chunk `c` of the
/// payload is in data fragment `c / (fragment_len / CHUNK_LEN)` and never crosses fragments.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Geometry {
    /// Data fragments, 1..=16.
    pub k: u8,
    /// Parity fragments, 1 or 2.
    pub m: u8,
    /// Length of parity fragments, and of all data fragments but the last, in bytes.
    pub fragment_len: u32,
    /// Bytes of the segment's payload.
    pub payload_len: u32,
    /// The stores that hold fragments `0..k+m`, in order; all different.
    pub members: Vec<StoreId>,
}

impl Geometry {
    /// Plans how to stripe `payload_len` bytes over at most `k_max` data fragments: `(k,
    /// fragment_len)`. A payload of up to one chunk has one data fragment, and so has any payload
    /// if `k_max` is 1. Otherwise fragments are as short as whole chunks allow, and `k` is as many
    /// of these as it takes. `m` makes no difference.
    ///
    /// # Panics
    /// If `k_max` is not in `1..=16` or `m` not in `1..=2`, or if the payload exceeds `k_max`
    /// fragments of [`FRAGMENT_LEN_MAX`]: the writer cuts segments to that size.
    pub fn plan(payload_len: u32, k_max: u8, m: u8) -> (u8, u32) {
        assert!((1..=DATA_FRAGMENTS_MAX).contains(&usize::from(k_max)), "k_max out of range");
        assert!((1..=PARITY_FRAGMENTS_MAX).contains(&usize::from(m)), "m out of range");
        assert!(payload_len <= u32::from(k_max) * FRAGMENT_LEN_MAX, "payload exceeds the widest stripe");
        if payload_len <= CHUNK_LEN || k_max == 1 {
            return (1, payload_len);
        }
        let fragment_len = CHUNK_LEN * payload_len.div_ceil(u32::from(k_max) * CHUNK_LEN);
        (payload_len.div_ceil(fragment_len) as u8, fragment_len)
    }

    /// The [planned](Self::plan) geometry on `members`, one for each of the `k + m` fragments.
    ///
    /// # Panics
    /// As `plan` does, and if the number of members is not `k + m`.
    pub fn new(payload_len: u32, k_max: u8, m: u8, members: Vec<StoreId>) -> Geometry {
        let (k, fragment_len) = Self::plan(payload_len, k_max, m);
        assert_eq!(members.len(), usize::from(k) + usize::from(m), "one member for each fragment");
        Geometry { k, m, fragment_len, payload_len, members }
    }

    /// Number of fragments, `k + m`.
    pub fn width(&self) -> u8 {
        self.k + self.m
    }

    /// Where chunk `chunk` of the payload is: data fragment, and chunk number in that fragment. The
    /// chunk must be within the payload.
    pub fn fragment_of_chunk(&self, chunk: u32) -> (u8, u32) {
        if self.k == 1 {
            return (0, chunk);
        }
        let per_fragment = (self.fragment_len / CHUNK_LEN).max(1);
        ((chunk / per_fragment) as u8, chunk % per_fragment)
    }

    /// Length in bytes of fragment `index`, data or parity, without its header.
    pub fn data_len(&self, index: u8) -> u32 {
        if index >= self.k {
            return self.fragment_len;
        }
        let begin = u64::from(index) * u64::from(self.fragment_len);
        u64::from(self.payload_len).saturating_sub(begin).min(u64::from(self.fragment_len)) as u32
    }

    /// The bytes of the payload that data fragment `index` holds.
    pub fn payload_range(&self, index: u8) -> Range<u32> {
        let begin = (u64::from(index) * u64::from(self.fragment_len)).min(u64::from(self.payload_len)) as u32;
        begin..begin + if index < self.k { self.data_len(index) } else { 0 }
    }

    /// The part of `range` that fragment `index` has. The rest counts as zeros in parity.
    pub fn clip(&self, index: u8, range: &Range<u32>) -> Range<u32> {
        let len = self.data_len(index);
        let begin = range.start.min(len);
        begin..range.end.min(len).max(begin)
    }

    /// The bytes of other fragments that it takes to rebuild bytes `range` of one fragment. `range`
    /// must be within the fragment. XOR and copies take the same range; the code for two parity
    /// fragments takes whole blocks.
    pub fn columns(&self, range: &Range<u32>) -> Range<u32> {
        if self.k == 1 || self.m == 1 || range.is_empty() {
            return range.clone();
        }
        let begin = range.start.min(self.fragment_len);
        begin - begin % BLOCK_LEN..range.end.min(self.fragment_len).next_multiple_of(BLOCK_LEN)
    }

    /// Checks that the fields are in bounds and agree, as [`Geometry`] describes.
    pub fn check(&self) -> Result<(), DecodeError> {
        let Geometry { k, m, fragment_len, payload_len, .. } = *self;
        if !(1..=DATA_FRAGMENTS_MAX).contains(&usize::from(k)) {
            return Err(DecodeError::Invalid("data fragment count"));
        }
        if !(1..=PARITY_FRAGMENTS_MAX).contains(&usize::from(m)) {
            return Err(DecodeError::Invalid("parity fragment count"));
        }
        if fragment_len > FRAGMENT_LEN_MAX {
            return Err(DecodeError::Invalid("fragment length"));
        }
        let lengths_agree = if k == 1 {
            fragment_len == payload_len
        } else {
            fragment_len > 0
                && fragment_len.is_multiple_of(CHUNK_LEN)
                && payload_len.div_ceil(fragment_len) == u32::from(k)
        };
        if !lengths_agree {
            return Err(DecodeError::Invalid("payload length"));
        }
        if self.members.len() != usize::from(k) + usize::from(m) {
            return Err(DecodeError::Invalid("member count"));
        }
        let repeated = |(i, store): (usize, &StoreId)| self.members[..i].contains(store);
        if self.members.iter().enumerate().any(repeated) {
            return Err(DecodeError::Invalid("members"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{geometry, payload_len};
    use proptest::prelude::*;

    #[test]
    fn up_to_one_chunk_takes_one_data_fragment_of_that_length() {
        for len in [0, 1, 4096, CHUNK_LEN] {
            assert_eq!(Geometry::plan(len, 8, 2), (1, len));
        }
        assert_eq!(Geometry::plan(CHUNK_LEN + 1, 8, 2), (2, CHUNK_LEN));
        assert_eq!(Geometry::plan(FRAGMENT_LEN_MAX, 1, 1), (1, FRAGMENT_LEN_MAX));
    }

    #[test]
    fn a_full_segment_takes_all_data_fragments_at_full_length() {
        assert_eq!(Geometry::plan(16 * FRAGMENT_LEN_MAX, 16, 2), (16, FRAGMENT_LEN_MAX));
    }

    #[test]
    fn fewer_fragments_are_used_where_whole_chunks_fill_them() {
        // 5 chunks over at most 4 fragments: 2 chunks each, so 3 fragments suffice.
        assert_eq!(Geometry::plan(5 * CHUNK_LEN, 4, 1), (3, 2 * CHUNK_LEN));
    }

    #[test]
    #[should_panic(expected = "widest stripe")]
    fn a_payload_beyond_the_widest_stripe_is_the_callers_fault() {
        Geometry::plan(2 * FRAGMENT_LEN_MAX + 1, 2, 1);
    }

    #[test]
    fn check_refuses_what_no_plan_gives() {
        let good = geometry(10 * CHUNK_LEN - 5, 4, 2);
        assert_eq!(good.check(), Ok(()));
        let broken = |change: fn(&mut Geometry)| {
            let mut g = good.clone();
            change(&mut g);
            g.check()
        };
        let invalid = |what| Err(DecodeError::Invalid(what));
        assert_eq!(broken(|g| g.k = 0), invalid("data fragment count"));
        assert_eq!(broken(|g| g.k = 17), invalid("data fragment count"));
        assert_eq!(broken(|g| g.m = 0), invalid("parity fragment count"));
        assert_eq!(broken(|g| g.m = 3), invalid("parity fragment count"));
        assert_eq!(broken(|g| g.fragment_len = FRAGMENT_LEN_MAX + CHUNK_LEN), invalid("fragment length"));
        assert_eq!(broken(|g| g.fragment_len = 0), invalid("payload length"));
        assert_eq!(broken(|g| g.fragment_len -= 1), invalid("payload length"));
        assert_eq!(broken(|g| g.payload_len = 12 * CHUNK_LEN + 1), invalid("payload length"));
        assert_eq!(broken(|g| g.payload_len = 9 * CHUNK_LEN), invalid("payload length"));
        assert_eq!(broken(|g| g.k = 1), invalid("payload length"));
        assert_eq!(broken(|g| g.members.truncate(3)), invalid("member count"));
        assert_eq!(broken(|g| g.members[3] = g.members[0]), invalid("members"));
    }

    proptest! {
        #[test]
        fn prop_every_payload_byte_is_in_one_fragment_and_chunks_never_cross(
            (k_max, len) in (1u8..=16).prop_flat_map(|k| (Just(k), payload_len(k, u32::MAX))),
            m in 1u8..=2,
        ) {
            let g = geometry(len, k_max, m);
            prop_assert_eq!(g.check(), Ok(()));
            prop_assert!(g.k <= k_max);
            let mut end = 0;
            for i in 0..g.k {
                let range = g.payload_range(i);
                prop_assert_eq!(range.start, end);
                prop_assert_eq!(range.end - range.start, g.data_len(i));
                prop_assert!(len == 0 || !range.is_empty());
                end = range.end;
            }
            prop_assert_eq!(end, len);
            for i in g.k..g.width() {
                prop_assert_eq!(g.data_len(i), g.fragment_len);
                prop_assert!(g.payload_range(i).is_empty());
            }
            for chunk in 0..len.div_ceil(CHUNK_LEN) {
                let (index, inner) = g.fragment_of_chunk(chunk);
                prop_assert_eq!(g.payload_range(index).start + inner * CHUNK_LEN, chunk * CHUNK_LEN);
                let chunk_end = ((chunk + 1) * CHUNK_LEN).min(len);
                prop_assert!(g.payload_range(index).end >= chunk_end);
            }
        }
    }
}
