//! How far to read ahead of a reader.
//!
//! There is one [`Window`] per open file. It watches the reads. When the reader comes near the end
//! of the fetched bytes, it asks for more, twice as much each time. So a long sequential read soon
//! keeps all disks of a stripe busy, and a short one wastes little.

use std::ops::Range;

/// The first window in bytes.
pub const WINDOW_BYTES_MIN: u64 = 128 * 1024;
/// The largest window in bytes.
pub const WINDOW_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// A window of this many bytes marks a stream: its reader probably reads a long file from one end
/// to the other.
const STREAM_WINDOW_BYTES_MIN: u64 = 1024 * 1024;
/// How far from the expected offset a read may begin and still belong to the sequence, in bytes. A
/// kernel sends several reads of one sequential reader at a time, and these arrive in any order.
const DISORDER_BYTES_MIN: u64 = 256 * 1024;
/// Like [`DISORDER_BYTES_MIN`], but in multiples of the read's length. The larger of both counts.
const DISORDER_READS: u64 = 4;

/// Detects sequential reading of one open file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// End of the sequence so far: where the next read should begin.
    expected: u64,
    /// End of the bytes that were asked for.
    fetched: u64,
    /// Bytes to keep ahead of the reader from the next request on.
    window: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window::new()
    }
}

impl Window {
    /// The window of a file that was not read yet. A first read near its beginning counts as
    /// sequential.
    pub fn new() -> Self {
        Window { expected: 0, fetched: 0, window: WINDOW_BYTES_MIN }
    }

    /// True if the sequence is so long that its reader will hardly read the same bytes again.
    pub fn is_stream(&self) -> bool {
        self.window >= STREAM_WINDOW_BYTES_MIN
    }

    /// Notes a read of `len` bytes at `offset` (in bytes) and tells which bytes to fetch besides,
    /// if any. The range begins at or after the end of the read and may exceed the file: the caller
    /// clips it.
    pub fn on_read(&mut self, offset: u64, len: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(len);
        if offset.abs_diff(self.expected) > DISORDER_BYTES_MIN.max(len.saturating_mul(DISORDER_READS)) {
            *self = Window { expected: end, fetched: end, window: WINDOW_BYTES_MIN };
            return None;
        }
        if end <= self.expected {
            // A latecomer, or the same bytes again: neither advances nor ends the sequence.
            return None;
        }
        self.expected = end;
        self.fetched = self.fetched.max(end);
        if self.fetched - end >= self.window / 2 {
            return None;
        }
        let range = self.fetched..end.saturating_add(self.window);
        self.fetched = range.end;
        self.window = (self.window * 2).min(WINDOW_BYTES_MAX);
        (!range.is_empty()).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1024;
    const FAR: u64 = 1 << 30;

    #[test]
    fn the_first_read_at_the_beginning_fetches_the_smallest_window() {
        assert_eq!(Window::new().on_read(0, 4 * KIB), Some(4 * KIB..132 * KIB));
    }

    #[test]
    fn a_first_read_elsewhere_fetches_nothing_until_it_goes_on() {
        let mut w = Window::new();
        assert_eq!(w.on_read(FAR, 4 * KIB), None);
        assert_eq!(w.on_read(FAR + 4 * KIB, 4 * KIB), Some(FAR + 8 * KIB..FAR + 136 * KIB));
    }

    #[test]
    fn a_jump_shrinks_the_window_to_the_smallest() {
        let mut w = Window::new();
        for i in 0..1000 {
            w.on_read(i * 64 * KIB, 64 * KIB);
        }
        assert!(w.window == WINDOW_BYTES_MAX && w.is_stream());
        assert_eq!(w.on_read(FAR, KIB), None);
        assert!(w.window == WINDOW_BYTES_MIN && !w.is_stream());
    }

    #[test]
    fn reads_out_of_order_do_not_end_the_sequence() {
        let mut w = Window::new();
        w.on_read(0, 128 * KIB);
        let grown = w.window;
        w.on_read(256 * KIB, 128 * KIB);
        assert_eq!(w.on_read(128 * KIB, 128 * KIB), None);
        assert!(w.window > grown);
        assert_eq!(w.expected, 384 * KIB);
    }

    #[test]
    fn long_reads_may_be_as_much_out_of_order_as_kernels_send_them() {
        let mut w = Window::new();
        for i in [0, 3, 1, 2, 5, 4, 7, 6, 9, 8] {
            w.on_read(i * 1024 * KIB, 1024 * KIB);
        }
        assert!(w.is_stream());
        assert_eq!(w.on_read(20 * 1024 * KIB, 4 * KIB), None);
        assert!(!w.is_stream());
    }

    #[test]
    fn reading_the_same_place_again_fetches_nothing() {
        let mut w = Window::new();
        w.on_read(0, 4 * KIB);
        assert_eq!(w.on_read(0, 4 * KIB), None);
    }

    #[test]
    fn the_end_of_all_offsets_is_no_obstacle() {
        let mut w = Window::new();
        w.on_read(u64::MAX - 1, 10);
        assert_eq!(w.on_read(u64::MAX, 10), None);
    }

    proptest! {
        #[test]
        fn prop_a_sequential_reader_is_always_ahead_of_nothing_and_nothing_is_fetched_twice(
            reads in proptest::collection::vec(1u64..=256 * KIB, 1..200)
        ) {
            let mut w = Window::new();
            let (mut at, mut fetched, mut largest) = (0, 0, 0);
            for len in reads {
                let range = w.on_read(at, len);
                at += len;
                if let Some(range) = range {
                    prop_assert!(range.start >= at && range.start >= fetched && range.start < range.end);
                    prop_assert_eq!(range.start, at.max(fetched), "without a gap");
                    largest = largest.max(range.end - at);
                    fetched = range.end;
                }
                prop_assert!(fetched >= at + WINDOW_BYTES_MIN / 2);
            }
            prop_assert!(largest <= WINDOW_BYTES_MAX);
        }
    }
}
