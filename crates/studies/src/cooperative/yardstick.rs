//! A yardstick for speed: one plain LRU cache on the same accesses, as in simulators of single
//! caches.

use super::Blocks;
use super::blocks::Deal;
use super::index::NONE;

/// How many reads and writes of all clients would hit in one LRU cache of `room` blocks.
pub fn hits(blocks: &Blocks, room: u32) -> u64 {
    let mut cache = Lru { newer: Vec::new(), older: Vec::new(), newest: NONE, oldest: NONE, len: 0 };
    cache.newer = vec![NONE; blocks.count() as usize];
    cache.older = vec![ABSENT; blocks.count() as usize];
    let mut hits = 0;
    for access in blocks.accesses() {
        let there = cache.older[access.block as usize] != ABSENT;
        if access.deal == Deal::Forget || room == 0 {
            if there {
                cache.remove(access.block);
            }
            continue;
        }
        if there {
            hits += 1;
            if cache.newest == access.block {
                continue;
            }
            cache.remove(access.block);
        } else if cache.len == room {
            cache.remove(cache.oldest);
        }
        cache.insert(access.block);
    }
    hits
}

/// Stands in place of an older neighbour: the block is not in the cache.
const ABSENT: u32 = NONE - 1;

/// Blocks by their numbers.
struct Lru {
    newer: Vec<u32>,
    older: Vec<u32>,
    newest: u32,
    oldest: u32,
    len: u32,
}

impl Lru {
    fn insert(&mut self, block: u32) {
        let before = std::mem::replace(&mut self.newest, block);
        match before {
            NONE => self.oldest = block,
            before => self.newer[before as usize] = block,
        }
        (self.newer[block as usize], self.older[block as usize]) = (NONE, before);
        self.len += 1;
    }

    fn remove(&mut self, block: u32) {
        let (newer, older) = (self.newer[block as usize], self.older[block as usize]);
        match newer {
            NONE => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        self.older[block as usize] = ABSENT;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cooperative::{Algorithm, Parameters, simulate};
    use host::SplitMix64;
    use trace::{Deed, Record};

    #[test]
    fn it_hits_what_the_cache_of_a_lone_client_hits() {
        let random = SplitMix64::new(3);
        let records = (0..20_000).map(|time_us| {
            let (file, offset) = (random.below(10), random.below(20) * 10);
            let deed = if random.chance(1, 50) { Deed::Delete } else { Deed::Read { offset, len: 10 } };
            Ok::<_, ()>(Record { time_us, client: 0, file, deed })
        });
        let blocks = Blocks::of(records, 10).expect("blocks");
        for client_blocks in [1, 2, 50, 100, 1000] {
            let of = Parameters { algorithm: Algorithm::Base, client_blocks, server_blocks: 0, warm_up: 0, seed: 1 };
            assert_eq!(hits(&blocks, client_blocks), simulate(&blocks, &of).reads[0]);
        }
        assert_eq!(hits(&blocks, 0), 0);
    }
}
