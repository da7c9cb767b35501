//! The redundancy codes, as functions on slices.
//!
//! One parity fragment is the XOR of the data fragments. Two are a Reed-Solomon code over GF(2^16),
//! computed by `reed-solomon-simd`, which picks its instructions at run time
//! (docs/decisions/2026-11-21-parity.md). Any two of the `k + 2` fragments can be lost. The library
//! has two codes. This module always uses "high rate", because the code decides the bytes on disk
//! (docs/disk-format.md).
//!
//! Both codes work on columns: the result for a range of a fragment depends only on the same range
//! of the others. With two parity fragments, a column is a block of [`BLOCK_LEN`] bytes, and ranges
//! must consist of whole blocks.
//!
//! Data slices may be shorter than the parity slices. Missing bytes count as zeros.

use reed_solomon_simd::Error;
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{HighRateDecoder, HighRateEncoder, RateDecoder, RateEncoder};
use std::cell::RefCell;

/// Length of a block in bytes. The code for two parity fragments mixes bytes of the same block, and
/// never those of different blocks.
pub const BLOCK_LEN: u32 = 64;
/// Length of a strip in bytes: what recovery computes of each fragment at once. A strip costs the
/// library some 0.2 ms besides the cost of its bytes, so it should be long. But a strip of each
/// fragment has to fit the CPU's cache.
const RECOVERY_STRIP_LEN: usize = 128 * 1024;

type Encoder = HighRateEncoder<DefaultEngine>;
type Decoder = HighRateDecoder<DefaultEngine>;

/// The library's working memory, kept from call to call: at most 1 MiB for encoding and 4 MiB for
/// recovery.
#[derive(Default)]
struct Work {
    encoder: Option<Encoder>,
    decoder: Option<Decoder>,
    /// A short slice, followed by zeros.
    padded: Vec<u8>,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// The kept encoder, or a new one, for `k` slices of `len` bytes.
fn encoder(kept: &mut Option<Encoder>, k: usize, len: usize) -> Result<&mut Encoder, Error> {
    match kept {
        Some(encoder) => encoder.reset(k, 2, len).map(|()| encoder),
        None => Ok(kept.insert(Encoder::new(k, 2, len, DefaultEngine::new(), None)?)),
    }
}

/// The kept decoder, or a new one, for `k` slices of `len` bytes.
fn decoder(kept: &mut Option<Decoder>, k: usize, len: usize) -> Result<&mut Decoder, Error> {
    match kept {
        Some(decoder) => decoder.reset(k, 2, len).map(|()| decoder),
        None => Ok(kept.insert(Decoder::new(k, 2, len, DefaultEngine::new(), None)?)),
    }
}

/// Returns `slice`, extended with zeros to `len` bytes if it is shorter.
fn pad<'a>(slice: &'a [u8], len: usize, padded: &'a mut Vec<u8>) -> &'a [u8] {
    if slice.len() >= len {
        return slice;
    }
    padded.clear();
    padded.extend_from_slice(slice);
    padded.resize(len, 0);
    padded
}

/// Computes `a ^= b` over the length of `b`, which is not longer than `a`.
fn xor_into(a: &mut [u8], b: &[u8]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a ^= b;
    }
}

/// Computes the one parity slice of `data`, and overwrites `parity` with it. No slice of `data` may
/// be longer than `parity`.
pub fn encode_one(data: &[&[u8]], parity: &mut [u8]) {
    parity.fill(0);
    for d in data {
        xor_into(parity, d);
    }
}

/// Recovers the one data slice that is `None` in `data` from the one parity slice. No slice may be
/// longer than `parity`.
pub fn recover_one(data: &[Option<&[u8]>], parity: &[u8]) -> Vec<u8> {
    let mut lost = parity.to_vec();
    for d in data.iter().flatten() {
        xor_into(&mut lost, d);
    }
    lost
}

/// Computes the two parity slices of `data`, and overwrites `first` and `second` with them. Both
/// must have the same length, a multiple of [`BLOCK_LEN`] above 0, and no slice of `data` may be
/// longer. Otherwise this fails.
pub fn encode_two(data: &[&[u8]], first: &mut [u8], second: &mut [u8]) -> Result<(), Error> {
    let len = block_multiple(first.len())?;
    WORK.with_borrow_mut(|work| {
        let encoder = encoder(&mut work.encoder, data.len(), len)?;
        for d in data {
            encoder.add_original_shard(pad(d, len, &mut work.padded))?;
        }
        let encoded = encoder.encode()?;
        for (parity, bytes) in [first, second].into_iter().zip(encoded.recovery_iter()) {
            parity.copy_from_slice(bytes);
        }
        Ok(())
    })
}

/// Recovers the data slices that are `None` in `data`. Returns the number and bytes of each, `len`
/// bytes long. At least as many parity slices must be there as data slices are missing. `len` must
/// be the length of the parity slices, a multiple of [`BLOCK_LEN`], and no slice of `data` may be
/// longer. Otherwise this fails.
pub fn recover_two(
    data: &[Option<&[u8]>],
    parities: [Option<&[u8]>; 2],
    len: usize,
) -> Result<Vec<(u8, Vec<u8>)>, Error> {
    let lost = (0u8..).zip(data).filter(|(_, d)| d.is_none());
    let mut found: Vec<(u8, Vec<u8>)> = lost.map(|(i, _)| (i, Vec::with_capacity(len))).collect();
    for begin in (0..block_multiple(len)?).step_by(RECOVERY_STRIP_LEN) {
        let end = (begin + RECOVERY_STRIP_LEN).min(len);
        let strip = |slice: &'_ [u8]| begin.min(slice.len())..end.min(slice.len());
        WORK.with_borrow_mut(|work| {
            let decoder = decoder(&mut work.decoder, data.len(), end - begin)?;
            for (i, d) in data.iter().enumerate() {
                if let Some(d) = d {
                    decoder.add_original_shard(i, pad(&d[strip(d)], end - begin, &mut work.padded))?;
                }
            }
            for (i, parity) in parities.iter().enumerate() {
                if let Some(parity) = parity {
                    decoder.add_recovery_shard(i, &parity[strip(parity)])?;
                }
            }
            let decoded = decoder.decode()?;
            for (i, bytes) in &mut found {
                bytes.extend_from_slice(decoded.restored_original(usize::from(*i)).unwrap_or_default());
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// Refuses lengths that are not whole blocks. The library would accept them, but it lays out their
/// last block differently.
fn block_multiple(len: usize) -> Result<usize, Error> {
    if len.is_multiple_of(BLOCK_LEN as usize) { Ok(len) } else { Err(Error::InvalidShardSize { shard_bytes: len }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::payload;
    use proptest::prelude::*;
    use std::ops::Range;

    fn slices(data: &[bytes::Bytes]) -> Vec<&[u8]> {
        data.iter().map(|d| &d[..]).collect()
    }

    fn encoded(data: &[&[u8]], len: usize) -> [Vec<u8>; 2] {
        let (mut first, mut second) = (vec![0xee; len], vec![0xee; len]);
        assert_eq!(encode_two(data, &mut first, &mut second), Ok(()));
        [first, second]
    }

    fn resized(slice: &[u8], len: usize) -> Vec<u8> {
        let mut bytes = slice.to_vec();
        bytes.resize(len, 0);
        bytes
    }

    #[test]
    fn one_parity_slice_is_the_xor() {
        let mut parity = [0xee; 3];
        encode_one(&[&[1, 0x80, 7], &[2, 0x80, 9], &[3, 0x80]], &mut parity);
        assert_eq!(parity, [0, 0x80, 14]);
        assert_eq!(recover_one(&[Some(&[1, 0x80, 7]), Some(&[2, 0x80, 9]), None], &parity), [3, 0x80, 0]);
    }

    #[test]
    fn every_single_and_double_loss_of_the_widest_stripe_is_recovered() {
        const LEN: usize = 3 * BLOCK_LEN as usize;
        // The last fragment is short, and ends within a block.
        let data: Vec<_> = (0..16).map(|i| payload(if i == 15 { 77 } else { LEN as u32 }, i)).collect();
        let slices = slices(&data);
        let parities = encoded(&slices, LEN);
        let all = 0..18usize;
        for lost in all.clone().flat_map(|x| all.clone().map(move |y| [x, y])) {
            let left: Vec<Option<&[u8]>> =
                slices.iter().enumerate().map(|(i, d)| (!lost.contains(&i)).then_some(*d)).collect();
            let left_parities = [0, 1].map(|i| (!lost.contains(&(16 + i))).then_some(&parities[i][..]));
            let expected: Vec<(u8, Vec<u8>)> = (0u8..16)
                .filter(|i| lost.contains(&usize::from(*i)))
                .map(|i| (i, resized(slices[usize::from(i)], LEN)))
                .collect();
            assert_eq!(recover_two(&left, left_parities, LEN), Ok(expected), "{lost:?}");
        }
    }

    #[test]
    fn what_the_code_cannot_take_is_refused() {
        let data = [1; 64];
        let (mut first, mut second) = ([0; 64], [0; 64]);
        assert!(encode_two(&[&data, &data], &mut first[..62], &mut second[..62]).is_err(), "part of a block");
        assert!(encode_two(&[&data, &[1; 65]], &mut first, &mut second).is_err(), "longer than parity");
        assert!(encode_two(&[], &mut first, &mut second).is_err(), "no data");
        let recovered = |data: &[Option<&[u8]>], parity: &[u8], len| recover_two(data, [Some(parity), None], len);
        assert!(recovered(&[None, None], &first, 64).is_err(), "more lost than parity is there");
        assert!(recovered(&[None, Some(&data)], &first[..62], 62).is_err(), "part of a block");
        assert!(recovered(&[None, Some(&data)], &first[..32], 64).is_err(), "short parity");
        assert_eq!(encode_two(&[&data, &data], &mut first, &mut second), Ok(()), "usable after errors");
        assert_eq!(recovered(&[None, Some(&data)], &first, 64), Ok(vec![(0, data.to_vec())]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Degraded reads rest on this: the parity of a range is that range of the parity, however
        /// the fragments are cut into strips. And the lost bytes of a range are recovered from the
        /// same range of the other fragments.
        #[test]
        fn prop_ranges_of_whole_blocks_stand_alone(
            k in 2u8..=16,
            block_count in 1usize..=40,
            last_len: prop::sample::Index,
            bounds in any::<[prop::sample::Index; 2]>(),
            lost in any::<[prop::sample::Index; 2]>(),
        ) {
            let len = block_count * BLOCK_LEN as usize;
            let last_len = 1 + last_len.index(len);
            let data: Vec<_> =
                (1..=k).map(|i| payload(if i == k { last_len } else { len } as u32, u64::from(i))).collect();
            let whole = encoded(&slices(&data), len);

            let bounds = bounds.map(|i| i.index(block_count));
            let (begin, end) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]) + 1);
            let range = begin * BLOCK_LEN as usize..end * BLOCK_LEN as usize;
            let clip = |slice: &'_ [u8]| -> Range<usize> { range.start.min(slice.len())..range.end.min(slice.len()) };
            let parts: Vec<&[u8]> = data.iter().map(|d| &d[clip(d)]).collect();
            let expected = [0, 1].map(|i| whole[i][range.clone()].to_vec());
            prop_assert_eq!(&encoded(&parts, range.len()), &expected);

            let lost = lost.map(|i| i.index(usize::from(k)));
            let left: Vec<Option<&[u8]>> =
                parts.iter().enumerate().map(|(i, d)| (!lost.contains(&i)).then_some(*d)).collect();
            let found = recover_two(&left, [Some(&expected[0]), Some(&expected[1])], range.len()).unwrap();
            prop_assert_eq!(found.len(), if lost[0] == lost[1] { 1 } else { 2 });
            for (i, bytes) in found {
                prop_assert_eq!(bytes, resized(parts[usize::from(i)], range.len()));
            }
        }
    }
}
