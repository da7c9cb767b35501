//! Pure decisions: which segment to clean, what to evict, which cache a block goes to, how far to
//! read ahead, which traffic a slow link carries next, when a roaming client's operations go home,
//! how much of a file to fetch, whether a change fits on the stores, how clients share what is
//! free, how long work takes, how much of a store is for work that can wait, and how much of that
//! is done at once.
//!
//! Nothing here does I/O or reads a clock: ages and offsets are arguments, decisions come back as
//! values, and the same arguments give the same decision. Production and the studies call the same
//! functions.

pub mod cache;
pub mod clean;
pub mod cooperative;
pub mod defaults;
pub mod gauge;
pub mod lottery;
pub mod pace;
pub mod readahead;
pub mod replacement;
pub mod segments;
pub mod shares;
pub mod space;
pub mod stride;
pub mod unit;
pub mod write_back;
