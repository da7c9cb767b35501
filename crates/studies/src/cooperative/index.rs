//! An index of places by cache and block: an open hash table. A removal leaves no gap that later
//! searches would have to cross.

/// No place.
pub const NONE: u32 = u32::MAX;
const LEN_MIN: usize = 64;

/// The hash of a block in a cache.
pub fn hash(cache: u32, block: u32) -> u64 {
    const MANY: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (u64::from(cache) << 32 | u64::from(block)).wrapping_mul(MANY);
    (mixed ^ mixed >> 32).wrapping_mul(MANY)
}

/// An index of places.
pub struct Index {
    table: Vec<u32>,
    len: usize,
}

impl Index {
    /// An empty index.
    pub fn new() -> Index {
        Index { table: vec![NONE; LEN_MIN], len: 0 }
    }

    /// The slot where the search for a hash begins.
    fn begin(&self, hash: u64) -> usize {
        (hash >> (64 - self.table.len().trailing_zeros())) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }

    /// The place with this hash for which `is` is true.
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.begin(hash);
        loop {
            match self.table[at] {
                NONE => return None,
                place if is(place) => return Some(place),
                _ => at = self.next(at),
            }
        }
    }

    /// Adds a place that is not in the table; `hash_of` gives the hash of each that is.
    pub fn insert(&mut self, hash: u64, place: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 2 > self.table.len() {
            let more = vec![NONE; self.table.len() * 2];
            let old = std::mem::replace(&mut self.table, more);
            old.into_iter().filter(|place| *place != NONE).for_each(|place| self.put(hash_of(place), place));
        }
        self.put(hash, place);
        self.len += 1;
    }

    fn put(&mut self, hash: u64, place: u32) {
        let mut at = self.begin(hash);
        while self.table[at] != NONE {
            at = self.next(at);
        }
        self.table[at] = place;
    }

    /// Removes a place that is in the table.
    pub fn remove(&mut self, hash: u64, place: u32, hash_of: impl Fn(u32) -> u64) {
        let mut gap = self.begin(hash);
        while self.table[gap] != place {
            gap = self.next(gap);
        }
        let (mut at, mask) = (gap, self.table.len() - 1);
        loop {
            at = self.next(at);
            let moved = self.table[at];
            if moved == NONE {
                break;
            }
            // An entry may move back to the gap if its search begins there or before.
            let begin = self.begin(hash_of(moved));
            if at.wrapping_sub(begin) & mask >= at.wrapping_sub(gap) & mask {
                self.table[gap] = moved;
                gap = at;
            }
        }
        self.table[gap] = NONE;
        self.len -= 1;
    }
}
