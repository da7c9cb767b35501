//! Random choices, and sizes of files, from one random number generator. The same on all machines:
//! `libm` computes what the processors' own arithmetic does not define.

use host::{Random, SplitMix64};

/// A number from 0 up to, but not including, 1.
pub fn part(random: &SplitMix64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// True with the probability `of`.
pub fn chance(random: &SplitMix64, of: f64) -> bool {
    part(random) < of
}

/// A number below `count`, higher ones less often: `k` with a probability proportional to `(k + 1)`
/// to the power of `-steepness`. 0 if `count` is 0.
pub fn rank(random: &SplitMix64, count: u64, steepness: f64) -> u64 {
    let (most, power) = ((count + 1) as f64, 1.0 - steepness);
    let x = match power.abs() < 1e-6 {
        true => libm::exp(part(random) * libm::log(most)),
        false => libm::pow(1.0 + part(random) * (libm::pow(most, power) - 1.0), 1.0 / power),
    };
    (x as u64).saturating_sub(1).min(count.saturating_sub(1))
}

/// Sizes of files, as (of a thousand files, how many; no larger than these bytes); between two
/// lines sizes are spread evenly. As on most systems, most files are of one block, and most bytes
/// are in few files.
const SIZES: [(u64, u64); 9] = [
    (0, 64),
    (250, 1 << 10),
    (500, 3 << 10),
    (750, 9 << 10),
    (900, 30 << 10),
    (970, 120 << 10),
    (990, 400 << 10),
    (998, 1 << 20),
    (1000, 4 << 20),
];

/// The size in bytes of the file with this number, computed and not stored.
pub fn size_bytes(file: u64, seed: u64) -> u64 {
    let random = SplitMix64::new(seed ^ file.wrapping_mul(0x9e6c_63d0_876a_68ee));
    // Steps of a millionth are fine enough.
    size_at(random.below(1_000_000))
}

/// The size below which this many of a million files are.
pub fn size_at(millionth: u64) -> u64 {
    let mut from = SIZES[0];
    for to in &SIZES[1..] {
        if millionth < to.0 * 1000 {
            let (within, all) = (millionth - from.0 * 1000, (to.0 - from.0) * 1000);
            return from.1 + (to.1 - from.1) * within / all;
        }
        from = *to;
    }
    from.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_as_steeply_as_is_set() {
        for steepness in [0.0, 0.7, 1.0, 1.4] {
            let (random, mut counts) = (SplitMix64::new(1), [0u32; 100]);
            (0..200_000).for_each(|_| counts[rank(&random, 100, steepness) as usize] += 1);
            // What a continuous curve gives for each.
            let curve = |x: f64| match steepness == 1.0 {
                true => libm::log(x),
                false => (libm::pow(x, 1.0 - steepness) - 1.0) / (1.0 - steepness),
            };
            for at in [0usize, 1, 9, 50, 99] {
                let expected = 200_000.0 * (curve(at as f64 + 2.0) - curve(at as f64 + 1.0)) / curve(101.0);
                let found = f64::from(counts[at]);
                assert!((found - expected).abs() < 5.0 * expected.sqrt(), "{steepness} {at}: {found} {expected}");
            }
        }
        let random = SplitMix64::new(1);
        assert_eq!((rank(&random, 0, 1.0), rank(&random, 1, 2.0), rank(&random, 1, 1.0)), (0, 0, 0));
    }

    #[test]
    fn most_files_are_small_and_most_bytes_are_in_large_ones() {
        let mut sizes: Vec<u64> = (0..20_000).map(|file| size_bytes(file, 7)).collect();
        sizes.sort();
        let (all, large): (u64, u64) = (sizes.iter().sum(), sizes[18_000..].iter().sum());
        assert!((2 << 10..4 << 10).contains(&sizes[10_000]), "{}", sizes[10_000]);
        assert!(large * 2 > all, "{large} of {all}");
        assert_eq!(size_bytes(5, 7), size_bytes(5, 7));
    }
}
