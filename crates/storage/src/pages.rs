//! Pages of the `fragments` file, and runs of them. Pure.

use striped_log::fragment::{FRAGMENT_LEN_MAX, HEADER_LEN};

/// Length of a page in bytes. Fragments begin at multiples of this.
pub const PAGE: u32 = 4096;
/// Pages of the longest fragment.
pub const PAGES_MAX: u32 = pages(FRAGMENT_LEN_MAX);
/// Pages at the beginning of the file that only moved fragments use (the landing): room for the
/// longest fragment.
pub const LANDING_PAGES: u32 = PAGES_MAX;

/// Pages that a fragment with `payload_len` bytes of payload takes, header and rounding included.
pub const fn pages(payload_len: u32) -> u32 {
    (HEADER_LEN as u32 + payload_len).div_ceil(PAGE)
}

/// Bytes that a fragment with `payload_len` bytes of payload takes, header and rounding included.
pub const fn footprint(payload_len: u32) -> u32 {
    pages(payload_len) * PAGE
}

/// A run of consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageExtent {
    /// The first page.
    pub start: u32,
    /// Number of pages.
    pub len: u32,
}

impl PageExtent {
    /// The page after the last.
    pub fn end(&self) -> u32 {
        self.start + self.len
    }

    /// True if all of `other` is within.
    pub fn holds(&self, other: &PageExtent) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Where it begins in the `fragments` file, in bytes.
    pub fn file_offset(&self) -> u64 {
        u64::from(self.start) * u64::from(PAGE)
    }

    /// How long it is, in bytes.
    pub fn byte_len(&self) -> u64 {
        u64::from(self.len) * u64::from(PAGE)
    }
}
