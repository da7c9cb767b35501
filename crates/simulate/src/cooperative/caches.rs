//! Many caches of blocks, each a list in the order of use, and which of them have a block.
//!
//! Places are in one vector, and know each other by their numbers in it: the neighbours in the order of use, and the next cache that has the same block. A block that
//! few have is found without hashing. All is O(1) in the sizes of the caches, but for what looks for the oldest of a kind.

use policy::cooperative::Yields;

/// No place, or no block's.
const NONE: u32 = u32::MAX;
/// Blocks that went on more often count as having gone on so often.
pub const RECIRCULATED_MAX: usize = 15;

/// Where a cache has a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u32);

struct Slot {
    block: u32,
    cache: u32,
    newer: u32,
    older: u32,
    /// Another place of the same block.
    next: u32,
    recirculated: u8,
}

struct Cache {
    room: u32,
    len: u32,
    newest: u32,
    oldest: u32,
    duplicates: u64,
    /// By how often they went on.
    singlets: [u64; RECIRCULATED_MAX + 1],
}

/// See the module's header.
pub struct Caches {
    slots: Vec<Slot>,
    free: Vec<u32>,
    caches: Vec<Cache>,
    /// By block, the first place and how many there are.
    blocks: Vec<(u32, u32)>,
}

impl Caches {
    /// Empty ones, with room for so many blocks each.
    pub fn new(rooms: impl IntoIterator<Item = u32>) -> Caches {
        let cache = |room| Cache {
            room,
            len: 0,
            newest: NONE,
            oldest: NONE,
            duplicates: 0,
            singlets: [0; RECIRCULATED_MAX + 1],
        };
        let caches = rooms.into_iter().map(cache).collect();
        Caches { slots: Vec::new(), free: Vec::new(), caches, blocks: Vec::new() }
    }

    /// Where a cache has a block.
    pub fn find(&self, cache: u32, block: u32) -> Option<Place> {
        self.places(block).find(|place| self.cache_of(*place) == cache)
    }

    /// Where a block is, the newest copy first.
    fn places(&self, block: u32) -> impl Iterator<Item = Place> {
        let known = |at: u32| (at != NONE).then_some(Place(at));
        let first = self.blocks.get(block as usize).and_then(|(first, _)| known(*first));
        std::iter::successors(first, move |place| known(self.slots[place.0 as usize].next))
    }

    /// The first of these that is not that cache's.
    pub fn place_but(&self, block: u32, cache: Option<u32>) -> Option<Place> {
        self.places(block).find(|place| Some(self.cache_of(*place)) != cache)
    }

    /// How many caches have a block.
    pub fn copies(&self, block: u32) -> u32 {
        self.blocks.get(block as usize).map_or(0, |(_, copies)| *copies)
    }

    /// Whose a place is.
    pub fn cache_of(&self, place: Place) -> u32 {
        self.slots[place.0 as usize].cache
    }

    /// What is there.
    pub fn block_of(&self, place: Place) -> u32 {
        self.slots[place.0 as usize].block
    }

    /// How often it went on since it was used.
    pub fn recirculated(&self, place: Place) -> u8 {
        self.slots[place.0 as usize].recirculated
    }

    /// True if the cache has room for another block.
    pub fn has_room(&self, cache: u32) -> bool {
        let cache = &self.caches[cache as usize];
        cache.len < cache.room
    }

    /// True if it could never have one.
    pub fn is_nothing(&self, cache: u32) -> bool {
        self.caches[cache as usize].room == 0
    }

    /// What the cache used least recently.
    pub fn oldest(&self, cache: u32) -> Option<Place> {
        let oldest = self.caches[cache as usize].oldest;
        (oldest != NONE).then_some(Place(oldest))
    }

    /// What a cache gives up for a block that is sent to it, by the rule of the policy.
    pub fn yields(&self, cache: u32) -> Option<Place> {
        let Cache { duplicates, singlets, .. } = &self.caches[cache as usize];
        let wanted = policy::cooperative::yields(*duplicates, singlets)?;
        let is_wanted = |place: &Place| {
            let singlet = self.copies(self.block_of(*place)) == 1;
            match wanted {
                Yields::OldestDuplicate => !singlet,
                Yields::OldestSinglet(often) => singlet && self.recirculated(*place) == often,
            }
        };
        let newer = |place: &Place| {
            let newer = self.slots[place.0 as usize].newer;
            (newer != NONE).then_some(Place(newer))
        };
        std::iter::successors(self.oldest(cache), newer).find(is_wanted)
    }

    /// It was used.
    pub fn touch(&mut self, place: Place) {
        self.set_recirculated(place, 0);
        if self.caches[self.cache_of(place) as usize].newest != place.0 {
            self.unlink(place);
            self.link(place);
        }
    }

    /// The cache has a block that it did not have, as the newest. It has room.
    pub fn insert(&mut self, cache: u32, block: u32, recirculated: u8) {
        let recirculated = recirculated.min(RECIRCULATED_MAX as u8);
        if block as usize >= self.blocks.len() {
            self.blocks.resize(block as usize + 1, (NONE, 0));
        }
        let (next, copies) = self.blocks[block as usize];
        if copies == 1 {
            self.count_singlet(Place(next), false);
        }
        let slot = Slot { block, cache, newer: NONE, older: NONE, next, recirculated };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.blocks[block as usize] = (at, copies + 1);
        self.caches[cache as usize].len += 1;
        match copies {
            0 => self.caches[cache as usize].singlets[recirculated as usize] += 1,
            _ => self.caches[cache as usize].duplicates += 1,
        }
        self.link(Place(at));
    }

    /// The cache has it no more. Gives which it was, and how often it went on.
    pub fn remove(&mut self, place: Place) -> (u32, u8) {
        self.unlink(place);
        let Slot { block, cache, next, recirculated, .. } = self.slots[place.0 as usize];
        let (first, copies) = self.blocks[block as usize];
        let mut first = first;
        if first == place.0 {
            first = next;
        } else {
            let before = self.places(block).find(|before| self.slots[before.0 as usize].next == place.0);
            if let Some(before) = before {
                self.slots[before.0 as usize].next = next;
            }
        }
        self.blocks[block as usize] = (first, copies - 1);
        let of = &mut self.caches[cache as usize];
        of.len -= 1;
        match copies {
            1 => of.singlets[recirculated as usize] -= 1,
            _ => of.duplicates -= 1,
        }
        if copies == 2 {
            self.count_singlet(Place(first), true);
        }
        self.free.push(place.0);
        (block, recirculated)
    }

    fn set_recirculated(&mut self, place: Place, to: u8) {
        let Slot { block, cache, recirculated, .. } = self.slots[place.0 as usize];
        if recirculated != to {
            if self.copies(block) == 1 {
                let singlets = &mut self.caches[cache as usize].singlets;
                singlets[recirculated as usize] -= 1;
                singlets[to as usize] += 1;
            }
            self.slots[place.0 as usize].recirculated = to;
        }
    }

    /// The only copy of a block has become that, or is that no more.
    fn count_singlet(&mut self, place: Place, is_one: bool) {
        let Slot { cache, recirculated, .. } = self.slots[place.0 as usize];
        let Cache { duplicates, singlets, .. } = &mut self.caches[cache as usize];
        let singlets = &mut singlets[recirculated as usize];
        let (more, less) = if is_one { (singlets, duplicates) } else { (duplicates, singlets) };
        *more += 1;
        *less -= 1;
    }

    fn link(&mut self, place: Place) {
        let cache = &mut self.caches[self.slots[place.0 as usize].cache as usize];
        let before = std::mem::replace(&mut cache.newest, place.0);
        if before == NONE {
            cache.oldest = place.0;
        } else {
            self.slots[before as usize].newer = place.0;
        }
        let slot = &mut self.slots[place.0 as usize];
        (slot.older, slot.newer) = (before, NONE);
    }

    fn unlink(&mut self, place: Place) {
        let Slot { newer, older, cache, .. } = self.slots[place.0 as usize];
        match newer {
            NONE => self.caches[cache as usize].newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.caches[cache as usize].oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::SplitMix64;

    /// The same, as lists of blocks with their recirculation counts, the oldest first.
    #[derive(Default, Clone)]
    struct Model(Vec<Vec<(u32, u8)>>);

    impl Model {
        fn copies(&self, block: u32) -> usize {
            self.0.iter().flatten().filter(|(other, _)| *other == block).count()
        }

        fn yields(&self, cache: usize) -> Option<u32> {
            let duplicate = self.0[cache].iter().find(|(block, _)| self.copies(*block) > 1);
            let often = self.0[cache].iter().map(|(_, often)| *often).max();
            let singlet = self.0[cache].iter().find(|(_, other)| Some(*other) == often);
            duplicate.or(singlet).map(|(block, _)| *block)
        }
    }

    #[test]
    fn caches_are_as_plain_lists() {
        let random = SplitMix64::new(7);
        let (mut caches, mut model) = (Caches::new([5, 5, 5, 1]), Model(vec![Vec::new(); 4]));
        for _ in 0..20_000 {
            let (cache, block, often) = (random.below(4) as u32, random.below(12) as u32, random.below(4) as u8);
            let list = &mut model.0[cache as usize];
            let at = list.iter().position(|(other, _)| *other == block);
            let found = caches.find(cache, block);
            assert_eq!(found.is_some(), at.is_some());
            match (found, at) {
                (Some(place), Some(at)) if random.chance(1, 3) => {
                    assert_eq!(caches.remove(place), list.remove(at));
                }
                (Some(place), Some(at)) => {
                    caches.touch(place);
                    list.remove(at);
                    list.push((block, 0));
                }
                _ if caches.has_room(cache) => {
                    caches.insert(cache, block, often);
                    list.push((block, often));
                }
                _ => {
                    let oldest = caches.oldest(cache).map(|place| caches.remove(place));
                    assert_eq!(oldest, Some(list.remove(0)));
                }
            }
            assert_eq!(caches.copies(block) as usize, model.copies(block));
            for cache in 0..4 {
                let yields = caches.yields(cache).map(|place| caches.block_of(place));
                assert_eq!(yields, model.yields(cache as usize));
                assert_eq!(
                    caches.oldest(cache).map(|place| caches.block_of(place)),
                    model.0[cache as usize].first().map(|(b, _)| *b)
                );
            }
        }
    }
}
