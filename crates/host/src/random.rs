//! The project's only random number generator, seeded by the operating system or by a simulation.

use crate::Random;
use std::sync::atomic::{AtomicU64, Ordering};

/// SplitMix64: one atomic addition per number, so it needs no lock and its sequence depends on the
/// seed alone. Not for secrets.
#[derive(Debug)]
pub struct SplitMix64(AtomicU64);

impl SplitMix64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        SplitMix64(AtomicU64::new(seed))
    }

    /// A uniform number below `bound`; 0 if `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }
}

impl Random for SplitMix64 {
    fn next_u64(&self) -> u64 {
        let state = self.0.fetch_add(Self::STEP, Ordering::Relaxed).wrapping_add(Self::STEP);
        mix(state)
    }
}

/// Spreads every bit of `x` over all bits of the result.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_the_published_one() {
        let random = SplitMix64::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let random = SplitMix64::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
