//! Cooperative caching: what a client does with a block that leaves its cache, when clients also
//! read from each other's caches (Dahlin, section 3.1). One file for each algorithm that decides
//! something at that moment:
//!
//! | File | Algorithm | Section |
//! | --- | --- | --- |
//! | [`greedy`] | Greedy Forwarding | 3.1.2 |
//! | [`weighted_lru`] | Weighted LRU | 3.1.5 |
//! | [`n_chance`] | N-Chance Forwarding, which Starling uses | 3.1.6 |
//! | [`two_choices`] | forwarding to the less busy of two clients (Adler and others) | 3.1.7 |
//! | [`epochs`] | global memory management in epochs (Feeley and others) | 3.1.7 |
//!
//! Direct cooperation, central coordination and hash distribution only place blocks; the crate
//! `studies` does that.

pub mod epochs;
pub mod greedy;
pub mod n_chance;
pub mod two_choices;
pub mod weighted_lru;
