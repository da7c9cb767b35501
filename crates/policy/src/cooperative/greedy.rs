//! Greedy Forwarding (Dahlin, section 3.1.2): clients read from each other's caches, and each
//! client manages its own cache for itself alone.
//!
//! It is N-Chance Forwarding without a chance: a block that leaves a cache is discarded, even if it
//! is the last copy.

/// How many times an unused singlet may move to another client: never.
pub const RECIRCULATIONS: u8 = 0;
