//! Tokens: the right to cache (read) or to modify (write) part of an object (docs/core.md#manager).

/// What a token covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The inode's attributes; of a directory: its entries too.
    Inode,
    /// Blocks `first .. end` of the file; `end` may be `u64::MAX`.
    Blocks {
        /// First block.
        first: u64,
        /// Block after the last.
        end: u64,
    },
}

/// Read: cache it. Write: modify it, and so be its only holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}
