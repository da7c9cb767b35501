//! A running hash of every event in a simulated world.

use crate::random::mix;

/// The hash so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// Adds `value`; the order counts.
    pub fn fold(&mut self, value: u64) {
        self.0 = mix(self.0.rotate_left(7) ^ value);
    }

    /// The hash of all values added so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// A hash of `bytes`, the same on every machine and in every run.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let step = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| step(hash, u64::from_le_bytes(*word)));
    mix(rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte))))
}
