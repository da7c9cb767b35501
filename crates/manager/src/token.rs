//! Tokens: the right to cache (read) or to change (write) part of a file (docs/core.md#manager).

/// The part of a file that a token covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The inode's attributes; for a directory, its entries too.
    Inode,
    /// Blocks `first .. end` of the file; `end` may be `u64::MAX`.
    Blocks {
        /// First block.
        first: u64,
        /// Block after the last.
        end: u64,
    },
}

/// The right that a token gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// To cache. Several clients may have it.
    Read,
    /// To change. No other client has a token then.
    Write,
}
