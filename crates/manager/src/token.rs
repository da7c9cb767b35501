//! Tokens: the right to cache (read) or to change (write) a file (docs/core.md#manager).
//!
//! A token covers the whole file: its attributes, a directory's names, and its contents.

/// The right that a token gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// To cache. Several clients may have it.
    Read,
    /// To change. No other client has a token then.
    Write,
}
