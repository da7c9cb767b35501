//! Pure decisions: which segment to clean, what to evict, which cache a block goes to, how far to
//! read ahead, who sends next, when what was done here goes home, how much of a file is fetched,
//! what the stores have room for.
//!
//! Nothing here does I/O or reads a clock: ages and offsets are arguments, decisions come back as
//! values, and the same arguments give the same decision. What production decides with, the
//! simulator decides with.

pub mod cache;
pub mod clean;
pub mod cooperative;
pub mod defaults;
pub mod lottery;
pub mod readahead;
pub mod replacement;
pub mod segments;
pub mod space;
pub mod unit;
pub mod write_back;
