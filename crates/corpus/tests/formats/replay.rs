//! Runs a fuzz target's check without a fuzzer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// Random changes per input of the corpus.
const MUTATIONS: u32 = 5_000;
/// Bytes that a check may allocate in all: this many,
const ALLOCATED_BYTES_MAX: usize = 4 << 20;
/// and this many more per byte of the input.
const ALLOCATED_BYTES_PER_BYTE_MAX: usize = 100;

/// The system's allocator, with a count of the bytes that each thread asked for.
struct Counting;

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above; the same allocator made the block.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static MEMORY: Counting = Counting;

/// A small random generator (xorshift), the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    /// Makes one to four changes such as fuzzers make: bytes set, bits flipped, pieces cut out,
    /// doubled or overwritten by extremes.
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

/// Runs one check, which may allocate memory only in proportion to the input.
fn bounded(check: fn(&[u8]) -> bool, input: &[u8]) -> bool {
    ALLOCATED_BYTES.set(0);
    let accepted = check(input);
    let (allocated, len) = (ALLOCATED_BYTES.get(), input.len());
    assert!(
        allocated <= ALLOCATED_BYTES_MAX + len * ALLOCATED_BYTES_PER_BYTE_MAX,
        "{allocated} bytes of memory for {len} bytes of input: {input:?}"
    );
    accepted
}

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs a check over the corpus of the target and over changes of it; returns how many of each were
/// accepted.
pub fn run(target: &str, check: fn(&[u8]) -> bool) -> (usize, u32) {
    let mut files: Vec<_> = std::fs::read_dir(folder(target))
        .expect("the corpus is there")
        .map(|entry| entry.expect("the corpus can be listed").path())
        .collect();
    files.sort();
    let (mut kept, mut changed) = (0, 0);
    for (seed, file) in (1..).zip(&files) {
        let input = std::fs::read(file).expect("the corpus can be read");
        kept += usize::from(bounded(check, &input));
        let mut random = Random(seed);
        for _ in 0..MUTATIONS {
            let mut bytes = input.clone();
            random.mutate(&mut bytes);
            changed += u32::from(bounded(check, &bytes));
        }
    }
    (kept, changed)
}

/// Checks that the corpus of the target follows the format: a change of the written bytes shows
/// here, and `STARLING_BLESS=1` writes the new bytes. `encoded` has file names with the bytes that
/// the program writes, after the byte that gives the target's kind.
pub fn compare(target: &str, encoded: &[(&str, Vec<u8>)]) {
    for (name, bytes) in encoded {
        let path = folder(target).join(name);
        if std::env::var_os("STARLING_BLESS").is_some() {
            std::fs::create_dir_all(folder(target)).expect("the corpus's folder can be made");
            std::fs::write(&path, bytes).expect("the corpus can be written");
        }
        assert!(std::fs::read(&path).is_ok_and(|kept| kept == *bytes), "{} differs from new output", path.display());
    }
}
