//! Segments: striping into fragments, reading back, rebuilding lost fragments.
//!
//! A segment is the unit of commit: blocks and the deltas that describe them, immutable once
//! striped. With `m` parity fragments, any `k` of its `k + m` fragments give the whole segment
//! back.

use crate::fragment::{CHUNK_LEN, Fragment, FragmentHeader, Geometry, crc32c};
use crate::parity;
use bytes::Bytes;
use std::ops::Range;
use thiserror::Error;
use types::aligned::AlignedBuffer;
use types::{FragmentId, FsUuid, SegmentId};

/// A segment in memory, ready to be striped. The payload has full blocks first, so that they are
/// chunk-aligned, then short blocks, then the delta section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its name.
    pub id: SegmentId,
    /// The segment before it in the log.
    pub previous: Option<SegmentId>,
    /// Its order among the segments of all logs (see [`LogPlace`](crate::builder::LogPlace)); 0 if
    /// an older program made it.
    pub order: u64,
    /// The payload, at most `k_max * FRAGMENT_LEN_MAX` bytes.
    pub payload: Bytes,
    /// Where the deltas begin in the payload.
    pub delta_offset: u32,
}

/// Why fragments could not be rebuilt or put together.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum RebuildError {
    /// More fragments are missing than parity can make up for.
    #[error("only {have} of the {need} fragments that are needed can be read")]
    TooFew {
        /// Usable fragments.
        have: usize,
        /// Fragments needed (`k`).
        need: usize,
    },
    /// The fragment with this index is not part of this stripe, has the wrong length, or is there
    /// twice.
    #[error("fragment {0} does not fit the stripe")]
    Unfit(u8),
    /// The range is not within the fragment.
    #[error("range is outside the fragment")]
    Range,
    /// The library that computes two parity fragments refuses the pieces. Geometry and pieces are
    /// checked before, so no case is known.
    #[error("the erasure code refuses the pieces: {0}")]
    Code(#[from] reed_solomon_simd::Error),
}

impl Segment {
    /// The fragments to put, in order of index: `k` slices of the payload, then the parity, all
    /// with checksums. `geometry` must be for a payload of this length.
    ///
    /// # Panics
    /// If `geometry` is for another length or not well-formed: one caller makes both.
    pub fn stripe(&self, fs: FsUuid, attempt: u16, geometry: Geometry) -> Vec<Fragment> {
        assert_eq!(geometry.payload_len as usize, self.payload.len(), "geometry is for another payload");
        assert_eq!(geometry.check(), Ok(()), "geometry is not well-formed");
        let (k, width) = (geometry.k, geometry.width());
        let mut payloads: Vec<Bytes> = (0..k)
            .map(|i| {
                let range = geometry.payload_range(i);
                self.payload.slice(range.start as usize..range.end as usize)
            })
            .collect();
        let mut crcs: Vec<Vec<u32>> = vec![Vec::new(); usize::from(width)];
        if k == 1 {
            // The parity of one fragment is its copy, so there is nothing to compute.
            crcs.fill(crate::fragment::chunk_crcs(&payloads[0]));
            payloads.resize(usize::from(width), payloads[0].clone());
        } else {
            let parity = |_| AlignedBuffer::zeroed(geometry.fragment_len as usize);
            let mut parities: Vec<AlignedBuffer> = (0..geometry.m).map(parity).collect();
            let mut views: Vec<&mut [u8]> = parities.iter_mut().map(|p| &mut p[..]).collect();
            let encoded = encode(&payloads, &mut views, Some(&mut crcs));
            assert_eq!(encoded, Ok(()), "a well-formed geometry has lengths that can be encoded");
            payloads.extend(parities.into_iter().map(AlignedBuffer::freeze));
        }
        let fragments = (0..width).zip(payloads.into_iter().zip(crcs)).map(|(index, (payload, chunk_crcs))| {
            let header = FragmentHeader {
                fs,
                id: FragmentId { segment: self.id, index },
                attempt,
                geometry: geometry.clone(),
                delta_offset: self.delta_offset,
                previous: self.previous,
                order: self.order,
                chunk_crcs,
                len: payload.len() as u32,
            };
            Fragment { header, payload }
        });
        fragments.collect()
    }

    /// Puts a segment together from at least `k` whole fragments of one attempt, in any order. The
    /// caller has checked headers and checksums.
    pub fn from_fragments(fragments: &[Fragment]) -> Result<Segment, RebuildError> {
        let Some(first) = fragments.first() else { return Err(RebuildError::TooFew { have: 0, need: 1 }) };
        let header = &first.header;
        for f in fragments {
            let same = f.header.id.segment == header.id.segment && f.header.geometry == header.geometry;
            if !same {
                return Err(RebuildError::Unfit(f.header.id.index));
            }
        }
        let have: Vec<(u8, Bytes)> = fragments.iter().map(|f| (f.header.id.index, f.payload.clone())).collect();
        let wanted: Vec<u8> = (0..header.geometry.k).collect();
        let pieces = rebuild(&header.geometry, &wanted, &have)?;
        Ok(Segment {
            id: header.id.segment,
            previous: header.previous,
            order: header.order,
            payload: join(pieces),
            delta_offset: header.delta_offset,
        })
    }

    /// The encoded delta section.
    pub fn deltas(&self) -> &[u8] {
        self.payload.get(self.delta_offset as usize..).unwrap_or_default()
    }
}

/// Joins data fragments, in order, to a payload. A single one is not copied.
fn join(mut pieces: Vec<(u8, Bytes)>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0).1;
    }
    let mut payload = Vec::with_capacity(pieces.iter().map(|(_, piece)| piece.len()).sum());
    for (_, piece) in &pieces {
        payload.extend_from_slice(piece);
    }
    Bytes::from(payload)
}

/// Computes the parity fragments of two or more `data` fragments, and the checksums of all. It goes
/// chunk by chunk, so that it reads the data from memory once and computes checksums while chunks
/// are in the CPU's cache.
fn encode(
    data: &[Bytes],
    parities: &mut [&mut [u8]],
    mut crcs: Option<&mut Vec<Vec<u32>>>,
) -> Result<(), reed_solomon_simd::Error> {
    let len = parities.first().map_or(0, |p| p.len());
    let chunk_len = CHUNK_LEN as usize;
    let mut chunks: Vec<&[u8]> = Vec::with_capacity(data.len());
    for begin in (0..len).step_by(chunk_len) {
        let end = (begin + chunk_len).min(len);
        chunks.clear();
        chunks.extend(data.iter().map(|d| &d[begin.min(d.len())..end.min(d.len())]));
        match parities {
            [parity] => parity::encode_one(&chunks, &mut parity[begin..end]),
            [first, second] => parity::encode_two(&chunks, &mut first[begin..end], &mut second[begin..end])?,
            _ => {}
        }
        if let Some(crcs) = crcs.as_deref_mut() {
            let all = chunks.iter().copied().chain(parities.iter().map(|p| &p[begin..end]));
            for (crcs, chunk) in crcs.iter_mut().zip(all) {
                if !chunk.is_empty() {
                    crcs.push(crc32c(chunk));
                }
            }
        }
    }
    Ok(())
}

/// Rebuilds the whole fragments `wanted`, in that order, from the whole fragments `have`. Needs at
/// least `k` of them.
pub fn rebuild(geometry: &Geometry, wanted: &[u8], have: &[(u8, Bytes)]) -> Result<Vec<(u8, Bytes)>, RebuildError> {
    solve(geometry, wanted, 0..geometry.fragment_len, have)
}

/// Rebuilds bytes `range` of fragment `wanted` from pieces of at least `k` other fragments. A piece
/// is a fragment's part of [`Geometry::columns`] of the range, and is shorter or empty where a
/// short data fragment ends. The caller may leave empty pieces out: they are known to be zeros.
pub fn rebuild_range(
    geometry: &Geometry,
    wanted: u8,
    range: Range<u32>,
    have: &[(u8, Bytes)],
) -> Result<Bytes, RebuildError> {
    if range.start > range.end || range.end > geometry.data_len(wanted) {
        return Err(RebuildError::Range);
    }
    let columns = geometry.columns(&range);
    let mut pieces = solve(geometry, &[wanted], columns.clone(), have)?;
    let (_, piece) = pieces.pop().ok_or(RebuildError::Unfit(wanted))?;
    Ok(piece.slice((range.start - columns.start) as usize..(range.end - columns.start) as usize))
}

/// Rebuilds the `wanted` fragments' parts of `range`, columns within `0..fragment_len`.
fn solve(
    geometry: &Geometry,
    wanted: &[u8],
    range: Range<u32>,
    have: &[(u8, Bytes)],
) -> Result<Vec<(u8, Bytes)>, RebuildError> {
    geometry.check().map_err(|_| RebuildError::Range)?;
    let (k, width) = (usize::from(geometry.k), usize::from(geometry.width()));
    if let Some(&index) = wanted.iter().find(|&&index| usize::from(index) >= width) {
        return Err(RebuildError::Unfit(index));
    }
    let mut pieces = known_pieces(geometry, &range, have)?;
    let known = pieces.iter().flatten().count();
    if wanted.iter().any(|&index| pieces[usize::from(index)].is_none()) {
        if known < k {
            return Err(RebuildError::TooFew { have: known, need: k });
        }
        if k == 1 {
            // All fragments are copies.
            let copy = pieces.iter().flatten().next().cloned();
            pieces.fill(copy);
        } else {
            recover_data(geometry, &range, &mut pieces)?;
            if wanted.iter().any(|&index| pieces[usize::from(index)].is_none()) {
                recover_parity(geometry, &range, &mut pieces)?;
            }
        }
    }
    let found = wanted.iter().filter_map(|&index| Some((index, pieces[usize::from(index)].clone()?)));
    Ok(found.collect())
}

/// Sorts `have` by index, checks it, and adds the data fragments that end before `range`.
fn known_pieces(
    geometry: &Geometry,
    range: &Range<u32>,
    have: &[(u8, Bytes)],
) -> Result<Vec<Option<Bytes>>, RebuildError> {
    let mut pieces: Vec<Option<Bytes>> = vec![None; usize::from(geometry.width())];
    for (index, piece) in have {
        let slot = pieces.get_mut(usize::from(*index)).ok_or(RebuildError::Unfit(*index))?;
        let expected = geometry.clip(*index, range).len();
        if slot.is_some() || piece.len() != expected {
            return Err(RebuildError::Unfit(*index));
        }
        *slot = Some(piece.clone());
    }
    for (index, piece) in (0..geometry.k).zip(pieces.iter_mut()) {
        if piece.is_none() && geometry.clip(index, range).is_empty() {
            *piece = Some(Bytes::new());
        }
    }
    Ok(pieces)
}

/// Fills in the missing data pieces. The caller has checked that `k` pieces are there, and `k` is
/// at least 2.
fn recover_data(geometry: &Geometry, range: &Range<u32>, pieces: &mut [Option<Bytes>]) -> Result<(), RebuildError> {
    let (data, parities) = pieces.split_at(usize::from(geometry.k));
    let Some(lost) = (0..geometry.k).find(|&i| data[usize::from(i)].is_none()) else { return Ok(()) };
    let data: Vec<Option<&[u8]>> = data.iter().map(Option::as_deref).collect();
    let found = match parities {
        [Some(parity)] => vec![(lost, parity::recover_one(&data, parity))],
        [first, second] => parity::recover_two(&data, [first.as_deref(), second.as_deref()], range.len())?,
        _ => Vec::new(),
    };
    for (index, mut bytes) in found {
        // The rest is zeros: in parity, a short fragment is extended with them.
        bytes.truncate(geometry.clip(index, range).len());
        pieces[usize::from(index)] = Some(Bytes::from(bytes));
    }
    Ok(())
}

/// Fills in the missing parity pieces. All data pieces are there, two or more.
fn recover_parity(geometry: &Geometry, range: &Range<u32>, pieces: &mut [Option<Bytes>]) -> Result<(), RebuildError> {
    let (data, parity_pieces) = pieces.split_at_mut(usize::from(geometry.k));
    let data: Vec<Bytes> = data.iter().flatten().cloned().collect();
    let mut parities = vec![vec![0; range.len()]; usize::from(geometry.m)];
    let mut views: Vec<&mut [u8]> = parities.iter_mut().map(|p| &mut p[..]).collect();
    encode(&data, &mut views, None)?;
    for (piece, parity) in parity_pieces.iter_mut().zip(parities) {
        piece.get_or_insert(Bytes::from(parity));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FS, geometry, payload_len, segment};
    use proptest::prelude::*;

    const MIB: u32 = 1024 * 1024;

    fn pieces(fragments: &[Fragment]) -> Vec<(u8, Bytes)> {
        fragments.iter().map(|f| (f.header.id.index, f.payload.clone())).collect()
    }

    /// All ways to lose at most `m` of `n` fragments.
    fn losses(n: u8, m: u8) -> Vec<Vec<u8>> {
        let mut losses = vec![vec![]];
        losses.extend((0..n).map(|i| vec![i]));
        if m == 2 {
            losses.extend((0..n).flat_map(|i| (i + 1..n).map(move |j| vec![i, j])));
        }
        losses
    }

    #[test]
    fn data_fragments_share_the_payloads_memory() {
        let s = segment(5 * MIB / 2, 1);
        let fragments = s.stripe(FS, 0, geometry(5 * MIB / 2, 4, 1));
        for f in &fragments[..4] {
            let offset = f.header.geometry.payload_range(f.header.id.index).start;
            assert_eq!(f.payload.as_ptr(), s.payload[offset as usize..].as_ptr());
        }
    }

    #[test]
    fn a_small_segment_is_mirrored_without_a_copy() {
        let s = segment(5000, 1);
        for f in s.stripe(FS, 0, geometry(5000, 8, 2)) {
            assert_eq!(f.payload.as_ptr(), s.payload.as_ptr());
            assert_eq!(f.payload, s.payload);
            assert_eq!(f.check(), Ok(()));
        }
    }

    #[test]
    fn any_copy_of_a_mirrored_segment_gives_the_others_without_a_copy() {
        let g = geometry(5001, 8, 2);
        let fragments = segment(5001, 1).stripe(FS, 0, g.clone());
        for have in pieces(&fragments) {
            let rebuilt = rebuild(&g, &[0, 1, 2], std::slice::from_ref(&have));
            assert_eq!(rebuilt, Ok(pieces(&fragments)));
            assert!(rebuilt.iter().flatten().all(|(_, piece)| piece.as_ptr() == have.1.as_ptr()));
        }
        let have = [(2, fragments[2].payload.slice(7..11))];
        assert_eq!(rebuild_range(&g, 0, 7..11, &have), Ok(fragments[0].payload.slice(7..11)));
    }

    #[test]
    fn rebuilding_a_part_takes_whole_blocks_of_the_others_only_where_the_code_mixes_them() {
        let range = 65_000..65_537;
        assert_eq!(geometry(4 * MIB, 4, 1).columns(&range), range);
        assert_eq!(geometry(4 * MIB, 4, 2).columns(&range), 64_960..65_600);
        assert_eq!(geometry(4 * MIB, 4, 2).columns(&(MIB - 1..MIB)), MIB - 64..MIB);
        assert_eq!(geometry(4 * MIB, 4, 2).columns(&(7..7)), 7..7);
        assert_eq!(geometry(60_000, 4, 2).columns(&(7..9)), 7..9, "copies");
    }

    #[test]
    fn an_empty_payload_is_striped_and_comes_back() {
        let s = segment(0, 1);
        let fragments = s.stripe(FS, 0, geometry(0, 8, 1));
        assert_eq!(fragments.len(), 2);
        assert_eq!(Segment::from_fragments(&fragments[1..]), Ok(s));
    }

    #[test]
    #[should_panic(expected = "geometry is for another payload")]
    fn a_geometry_for_another_length_is_the_callers_fault() {
        segment(100, 1).stripe(FS, 0, geometry(101, 1, 1));
    }

    #[test]
    fn too_few_fragments_are_refused_with_the_count() {
        let g = geometry(4 * MIB, 4, 2);
        let fragments = segment(4 * MIB, 1).stripe(FS, 0, g.clone());
        let have = pieces(&fragments[3..]);
        assert_eq!(rebuild(&g, &[0], &have), Err(RebuildError::TooFew { have: 3, need: 4 }));
        assert_eq!(Segment::from_fragments(&fragments[..3]), Err(RebuildError::TooFew { have: 3, need: 4 }));
        assert_eq!(Segment::from_fragments(&[]), Err(RebuildError::TooFew { have: 0, need: 1 }));
        assert_eq!(rebuild_range(&g, 0, 0..10, &[]), Err(RebuildError::TooFew { have: 0, need: 4 }));
    }

    #[test]
    fn fragments_that_are_there_need_no_others() {
        let g = geometry(4 * MIB, 4, 1);
        let fragments = segment(4 * MIB, 1).stripe(FS, 0, g.clone());
        let have = pieces(&fragments[2..3]);
        assert_eq!(rebuild(&g, &[2], &have), Ok(have));
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let g = geometry(4 * MIB, 4, 1);
        let have = pieces(&segment(4 * MIB, 1).stripe(FS, 0, g.clone())[1..]);
        let with = |index: u8, bytes: Bytes| {
            let mut have = have.clone();
            have.push((index, bytes));
            rebuild(&g, &[0], &have)
        };
        assert_eq!(with(1, have[0].1.clone()), Err(RebuildError::Unfit(1)), "twice");
        assert_eq!(with(5, have[0].1.clone()), Err(RebuildError::Unfit(5)), "no such index");
        assert_eq!(with(0, have[0].1.slice(1..)), Err(RebuildError::Unfit(0)), "short");
        assert_eq!(rebuild(&g, &[5], &have), Err(RebuildError::Unfit(5)));
        assert_eq!(rebuild_range(&g, 0, 0..1, &have), Err(RebuildError::Unfit(1)), "whole pieces for a part");
    }

    #[test]
    fn ranges_outside_the_fragment_are_refused() {
        // The last data fragment is short.
        let g = geometry(4 * MIB - 100, 4, 1);
        let reversed = Range { start: 5, end: 4 };
        for (wanted, range) in [(0, 0..MIB + 1), (3, 0..MIB), (3, MIB - 100..MIB - 99), (0, reversed)] {
            assert_eq!(rebuild_range(&g, wanted, range, &[]), Err(RebuildError::Range));
        }
    }

    #[test]
    fn a_fragment_that_ends_before_the_range_counts_as_known() {
        let g = geometry(3 * MIB + 10, 4, 1);
        let fragments = segment(3 * MIB + 10, 1).stripe(FS, 0, g.clone());
        let last = g.k - 1;
        let range = g.fragment_len - 50..g.fragment_len;
        assert!(g.clip(last, &range).is_empty());
        let have: Vec<(u8, Bytes)> = (1..g.width())
            .filter(|&i| i != last)
            .map(|i| (i, fragments[usize::from(i)].payload.slice(range.start as usize..range.end as usize)))
            .collect();
        let expected = fragments[0].payload.slice(range.start as usize..);
        assert_eq!(rebuild_range(&g, 0, range, &have), Ok(expected));
    }

    #[test]
    fn fragments_of_different_geometry_are_not_put_together() {
        let s = segment(2 * MIB, 1);
        let mut fragments = s.stripe(FS, 0, geometry(2 * MIB, 2, 1));
        fragments.extend(s.stripe(FS, 1, geometry(2 * MIB, 1 + 2, 1)));
        assert_eq!(Segment::from_fragments(&fragments[1..5]), Err(RebuildError::Unfit(0)));
    }

    #[test]
    fn a_sibling_is_what_striping_gives() {
        let g = geometry(4 * MIB - 9, 4, 2);
        let fragments = segment(4 * MIB - 9, 1).stripe(FS, 3, g.clone());
        for index in 0..g.width() {
            let rebuilt = rebuild(&g, &[index], &pieces(&fragments[2..])).map(|mut r| r.remove(0).1);
            let payload = rebuilt.unwrap_or_default();
            assert_eq!(fragments[2].header.sibling(index, payload), fragments[usize::from(index)]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn prop_any_k_fragments_give_everything_back(
            (k_max, len) in (1u8..=16).prop_flat_map(|k| (Just(k), payload_len(k, 3 * MIB / 2))),
            m in 1u8..=2,
            pick: prop::sample::Index,
            seed: u64,
        ) {
            let s = segment(len, seed);
            let g = geometry(len, k_max, m);
            let fragments = s.stripe(FS, 9, g.clone());
            prop_assert_eq!(fragments.len(), usize::from(g.width()));
            for (i, f) in (0..).zip(&fragments) {
                prop_assert_eq!(f.check(), Ok(()));
                prop_assert_eq!((f.header.id.index, f.header.attempt, f.header.fs), (i, 9, FS));
                prop_assert_eq!((f.header.id.segment, f.header.previous), (s.id, s.previous));
                prop_assert_eq!(f.header.order, s.order);
            }
            let losses = losses(g.width(), m);
            let lost = pick.get(&losses);
            let mut left = fragments.clone();
            left.retain(|f| !lost.contains(&f.header.id.index));
            left.reverse();
            let all: Vec<u8> = (0..g.width()).collect();
            let rebuilt = rebuild(&g, &all, &pieces(&left));
            prop_assert_eq!(rebuilt, Ok(pieces(&fragments)));
            prop_assert_eq!(Segment::from_fragments(&left), Ok(s));
        }

        #[test]
        fn prop_any_range_is_rebuilt_from_the_same_columns_of_any_k_others(
            (k_max, len) in (1u8..=16).prop_flat_map(|k| (Just(k), payload_len(k, MIB))),
            m in 1u8..=2,
            (wanted, other) in any::<(prop::sample::Index, prop::sample::Index)>(),
            (a, b) in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let g = geometry(len, k_max, m);
            let fragments = segment(len, 5).stripe(FS, 0, g.clone());
            let wanted = wanted.index(usize::from(g.width())) as u8;
            let other = other.index(usize::from(g.width())) as u8;
            let bounds = [a, b].map(|i| i.index(g.data_len(wanted) as usize + 1) as u32);
            let range = bounds[0].min(bounds[1])..bounds[0].max(bounds[1]);
            let have: Vec<(u8, Bytes)> = pieces(&fragments)
                .into_iter()
                .filter(|(i, _)| *i != wanted && (m == 1 || *i != other))
                .map(|(i, payload)| {
                    let part = g.clip(i, &g.columns(&range));
                    (i, payload.slice(part.start as usize..part.end as usize))
                })
                .collect();
            let expected = fragments[usize::from(wanted)].payload.slice(range.start as usize..range.end as usize);
            prop_assert_eq!(rebuild_range(&g, wanted, range, &have), Ok(expected));
        }
    }
}
