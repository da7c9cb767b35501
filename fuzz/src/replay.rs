//! Runs a fuzz target's check without a fuzzer. Included by the tests of the crates that the targets are about.

use std::path::Path;

/// Changed inputs per input of the corpus.
const MUTATIONS: u32 = 5_000;

/// A small random generator (xorshift), the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    /// One to four changes such as fuzzers make: bytes set, bits flipped, pieces cut out, doubled or overwritten by extremes.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(16)).min(bytes.len());
            match self.below(6) {
                _ if bytes.is_empty() => bytes.push(self.below(256) as u8),
                0 => bytes[at] = self.below(256) as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at..end].fill(0),
                3 => bytes[at..end].fill(0xff),
                4 => drop(bytes.drain(at..end)),
                _ => bytes.extend_from_within(at..end),
            }
        }
    }
}

/// Runs a check over the corpus of the target and over changes of it; tells how many of either were accepted.
pub fn run(target: &str, check: fn(&[u8]) -> bool) -> (usize, u32) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("the corpus can be listed").path())
        .collect();
    files.sort();
    let (mut kept, mut changed) = (0, 0);
    for (seed, file) in (1..).zip(&files) {
        let input = std::fs::read(file).expect("the corpus can be read");
        kept += usize::from(check(&input));
        let mut random = Random(seed);
        for _ in 0..MUTATIONS {
            let mut bytes = input.clone();
            random.mutate(&mut bytes);
            changed += u32::from(check(&bytes));
        }
    }
    (kept, changed)
}
