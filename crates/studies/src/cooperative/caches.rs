//! Many caches of blocks, and an index of which caches have a block.
//!
//! All places are in one vector, and refer to each other by their numbers in it. The blocks of a
//! cache are of several [kinds](DUPLICATE), and the cache knows the oldest of each kind. Places
//! that got their kind in the order of their last use are in a list. The others are in a heap,
//! where outdated entries stay until they come up. Each operation is O(1) in the sizes of the
//! caches, except for blocks whose kind changes while they are neither the oldest nor the newest of
//! it: these cost a logarithm.

use super::index::{Index, NONE, hash};
use policy::cooperative::n_chance::{Victim, victim};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Highest recirculation count; blocks that went on more often count as this.
pub const RECIRCULATED_MAX: usize = 15;
/// The kind of blocks that another cache has, too.
pub const DUPLICATE: u8 = 0;
/// The kind of blocks that no other cache has; each recirculation since the last use adds one.
pub const SINGLET: u8 = 1;
/// The kind of blocks that may be either.
pub const UNKNOWN: u8 = SINGLET + RECIRCULATED_MAX as u8 + 1;
const KINDS: usize = UNKNOWN as usize + 1;
/// If more caches than this have a block, the index finds its places; otherwise a search looks at
/// all of them.
const WALKED_MAX: u32 = 4;
/// A heap that is longer than this, and twice as long as its cache, has mostly outdated entries.
const STALE_MIN: usize = 64;

/// The place of a block in a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u32);

/// How blocks get their kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kinds {
    /// The true kind, at any time.
    True,
    /// The kind that their client believes; see [`Caches::believe`].
    Believed,
}

struct Slot {
    used: u64,
    block: u32,
    /// The cache; `NONE` if the place is free.
    cache: u32,
    /// Neighbours in the list of its kind.
    newer: u32,
    older: u32,
    /// Other places of the same block.
    next: u32,
    before: u32,
    kind: u8,
    recirculated: u8,
    /// In the list, and not in the heap.
    is_listed: bool,
}

#[derive(Clone, Copy)]
struct List {
    newest: u32,
    oldest: u32,
}

struct Cache {
    room: u32,
    len: u32,
    /// A bit for each kind that the cache has blocks of.
    present: u32,
    /// The number of blocks of each kind.
    counts: [u64; KINDS],
    lists: [List; KINDS],
    heaps: [BinaryHeap<Reverse<(u64, u32)>>; KINDS],
}

/// Many caches of blocks.
pub struct Caches {
    kinds: Kinds,
    slots: Vec<Slot>,
    free: Vec<u32>,
    caches: Vec<Cache>,
    /// By block, its first place and the number of its places.
    blocks: Vec<(u32, u32)>,
    index: Index,
}

impl Caches {
    /// Empty caches, each with room for this many blocks.
    pub fn new(rooms: impl IntoIterator<Item = u32>, kinds: Kinds) -> Caches {
        let cache = |room| Cache {
            room,
            len: 0,
            present: 0,
            counts: [0; KINDS],
            lists: [List { newest: NONE, oldest: NONE }; KINDS],
            heaps: std::array::from_fn(|_| BinaryHeap::new()),
        };
        let caches = rooms.into_iter().map(cache).collect();
        Caches { kinds, slots: Vec::new(), free: Vec::new(), caches, blocks: Vec::new(), index: Index::new() }
    }

    fn slot(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }

    fn slot_mut(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    /// The place of a block in a cache.
    pub fn find(&self, cache: u32, block: u32) -> Option<Place> {
        let (first, copies) = *self.blocks.get(block as usize)?;
        if copies > WALKED_MAX {
            let is = |at: u32| self.slot(at).block == block && self.slot(at).cache == cache;
            return self.index.find(hash(cache, block), is).map(Place);
        }
        let mut at = first;
        while at != NONE && self.slot(at).cache != cache {
            at = self.slot(at).next;
        }
        (at != NONE).then_some(Place(at))
    }

    /// A place of a block; of several, the newest.
    pub fn first(&self, block: u32) -> Option<Place> {
        self.blocks.get(block as usize).and_then(|(first, _)| (*first != NONE).then_some(Place(*first)))
    }

    /// A place of a block in any cache but `cache`.
    pub fn place_but(&self, block: u32, cache: Option<u32>) -> Option<Place> {
        let first = self.first(block)?;
        if Some(self.cache_of(first)) != cache {
            return Some(first);
        }
        let next = self.slot(first.0).next;
        (next != NONE).then_some(Place(next))
    }

    /// The number of caches that have a block.
    pub fn copies(&self, block: u32) -> u32 {
        self.blocks.get(block as usize).map_or(0, |(_, copies)| *copies)
    }

    /// The cache of a place.
    pub fn cache_of(&self, place: Place) -> u32 {
        self.slot(place.0).cache
    }

    /// The block at a place.
    pub fn block_of(&self, place: Place) -> u32 {
        self.slot(place.0).block
    }

    /// How often the block went on since it was used.
    pub fn recirculated(&self, place: Place) -> u8 {
        self.slot(place.0).recirculated
    }

    /// When the block was used last.
    pub fn used(&self, place: Place) -> u64 {
        self.slot(place.0).used
    }

    /// True if the cache has room for another block.
    pub fn has_room(&self, cache: u32) -> bool {
        let cache = &self.caches[cache as usize];
        cache.len < cache.room
    }

    /// True if the cache can never hold a block.
    pub fn is_nothing(&self, cache: u32) -> bool {
        self.caches[cache as usize].room == 0
    }

    /// Number of caches.
    pub fn count(&self) -> u32 {
        self.caches.len() as u32
    }

    /// The room of all caches, in blocks, taken or not.
    pub fn room(&self) -> u64 {
        self.caches.iter().map(|cache| u64::from(cache.room)).sum()
    }

    /// For one in `one_in` places: when it was used last (`None` if it is free), and its cache.
    pub fn sample(&self, one_in: usize) -> impl Iterator<Item = (Option<u64>, u32)> {
        let taken = self.slots.iter().step_by(one_in).filter(|slot| slot.cache != NONE);
        let rooms = self.caches.iter().zip(0..).flat_map(move |(cache, at)| {
            let left = cache.room.saturating_sub(cache.len) as usize / one_in;
            std::iter::repeat_n((None, at), left)
        });
        taken.map(|slot| (Some(slot.used), slot.cache)).chain(rooms)
    }

    /// The least recently used block of a cache.
    pub fn oldest(&mut self, cache: u32) -> Option<Place> {
        let mut found: Option<(u64, Place)> = None;
        let mut kinds = self.caches[cache as usize].present;
        while kinds != 0 {
            let kind = kinds.trailing_zeros() as u8;
            kinds &= kinds - 1;
            let Some(place) = self.oldest_of(cache, kind) else { continue };
            let used = self.used(place);
            if found.is_none_or(|(oldest, _)| used < oldest) {
                found = Some((used, place));
            }
        }
        found.map(|(_, place)| place)
    }

    /// The least recently used block of one kind.
    pub fn oldest_of(&mut self, cache: u32, kind: u8) -> Option<Place> {
        let Cache { present, lists, heaps, .. } = &mut self.caches[cache as usize];
        if *present >> kind & 1 == 0 {
            return None;
        }
        let (listed, heap) = (lists[kind as usize].oldest, &mut heaps[kind as usize]);
        while let Some(Reverse(top)) = heap.peek() {
            if is_so(&self.slots, cache, kind, top) {
                break;
            }
            heap.pop();
        }
        let at = match heap.peek() {
            Some(Reverse((used, at))) if listed == NONE || *used < self.slots[listed as usize].used => *at,
            _ => listed,
        };
        Some(Place(at))
    }

    /// The block that a cache gives up for one that is sent to it, by the policy's rule.
    pub fn victim(&mut self, cache: u32) -> Option<Place> {
        let counts = &self.caches[cache as usize].counts;
        let singlets = &counts[SINGLET as usize..UNKNOWN as usize];
        match victim(counts[DUPLICATE as usize], singlets)? {
            Victim::OldestDuplicate => self.oldest_of(cache, DUPLICATE),
            Victim::OldestSinglet(often) => self.oldest_of(cache, SINGLET + often),
        }
    }

    /// Records that the block was used now; `now` must be later than all times before.
    pub fn touch(&mut self, place: Place, now: u64) {
        let Slot { cache, kind, recirculated, is_listed, newer, .. } = *self.slot(place.0);
        self.slot_mut(place.0).used = now;
        let is_singlet = (SINGLET..UNKNOWN).contains(&kind);
        if is_listed && newer == NONE && (recirculated == 0 || !is_singlet) {
            self.slot_mut(place.0).recirculated = 0;
            return;
        }
        self.detach(place.0);
        let slot = self.slot_mut(place.0);
        slot.recirculated = 0;
        slot.kind = if is_singlet { SINGLET } else { kind };
        self.attach(cache, place.0);
    }

    /// Adds a block that the cache does not have. The cache must have room.
    pub fn insert(&mut self, cache: u32, block: u32, recirculated: u8, used: u64) {
        let recirculated = recirculated.min(RECIRCULATED_MAX as u8);
        if block as usize >= self.blocks.len() {
            self.blocks.resize(block as usize + 1, (NONE, 0));
        }
        let (next, copies) = self.blocks[block as usize];
        if copies == 1 && self.kinds == Kinds::True {
            self.set_kind(next, DUPLICATE);
        }
        let kind = match (self.kinds, copies) {
            (Kinds::True, 1..) => DUPLICATE,
            (Kinds::Believed, _) if recirculated == 0 => UNKNOWN,
            _ => SINGLET + recirculated,
        };
        let (newer, older, before, is_listed) = (NONE, NONE, NONE, false);
        let slot = Slot { used, block, cache, newer, older, next, before, kind, recirculated, is_listed };
        let at = match self.free.pop() {
            Some(at) => {
                *self.slot_mut(at) = slot;
                at
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        if next != NONE {
            self.slot_mut(next).before = at;
        }
        self.blocks[block as usize] = (at, copies + 1);
        if copies + 1 > WALKED_MAX {
            self.put_in_index(at, if copies == WALKED_MAX { WALKED_MAX + 1 } else { 1 });
        }
        self.caches[cache as usize].len += 1;
        self.attach(cache, at);
    }

    /// Removes a block. Returns its number, and how often it went on.
    pub fn remove(&mut self, place: Place) -> (u32, u8) {
        self.detach(place.0);
        let Slot { block, cache, next, before, recirculated, .. } = *self.slot(place.0);
        match self.copies(block) {
            copies if copies == WALKED_MAX + 1 => self.take_from_index(self.blocks[block as usize].0, copies),
            copies if copies > WALKED_MAX => self.take_from_index(place.0, 1),
            _ => {}
        }
        let (first, copies) = &mut self.blocks[block as usize];
        *copies -= 1;
        if *first == place.0 {
            *first = next;
        }
        let (first, copies) = (*first, *copies);
        if before != NONE {
            self.slot_mut(before).next = next;
        }
        if next != NONE {
            self.slot_mut(next).before = before;
        }
        if copies == 1 && self.kinds == Kinds::True {
            let kind = SINGLET + self.slot(first).recirculated;
            self.set_kind(first, kind);
        }
        self.slot_mut(place.0).cache = NONE;
        self.caches[cache as usize].len -= 1;
        self.free.push(place.0);
        (block, recirculated)
    }

    /// Puts `count` places of a block into the index, from `at` on.
    fn put_in_index(&mut self, mut at: u32, count: u32) {
        for _ in 0..count {
            let Slot { cache, block, next, .. } = *self.slot(at);
            let hash_of = |at: u32| hash(self.slots[at as usize].cache, self.slots[at as usize].block);
            self.index.insert(hash(cache, block), at, hash_of);
            at = next;
        }
    }

    /// Removes these places from the index.
    fn take_from_index(&mut self, mut at: u32, count: u32) {
        for _ in 0..count {
            let Slot { cache, block, next, .. } = *self.slot(at);
            let hash_of = |at: u32| hash(self.slots[at as usize].cache, self.slots[at as usize].block);
            self.index.remove(hash(cache, block), at, hash_of);
            at = next;
        }
    }

    /// Sets whether the client believes that the block is a singlet or a duplicate.
    pub fn believe(&mut self, place: Place, is_singlet: bool) {
        let kind = if is_singlet { SINGLET + self.recirculated(place) } else { DUPLICATE };
        self.set_kind(place.0, kind);
    }

    fn set_kind(&mut self, at: u32, kind: u8) {
        if self.slot(at).kind != kind {
            self.detach(at);
            self.slot_mut(at).kind = kind;
            self.attach(self.slot(at).cache, at);
        }
    }

    /// Takes the place out of its kind. An entry in a heap stays and is outdated.
    fn detach(&mut self, at: u32) {
        let Slot { cache, kind, newer, older, is_listed, .. } = *self.slot(at);
        let cache = &mut self.caches[cache as usize];
        cache.counts[kind as usize] -= 1;
        cache.present &= !(u32::from(cache.counts[kind as usize] == 0) << kind);
        if !is_listed {
            return;
        }
        let list = &mut cache.lists[kind as usize];
        match newer {
            NONE => list.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    /// Adds the place to its kind.
    fn attach(&mut self, cache: u32, at: u32) {
        let Slot { used, kind, .. } = *self.slot(at);
        let (cache_at, cache) = (cache, &mut self.caches[cache as usize]);
        cache.counts[kind as usize] += 1;
        cache.present |= 1 << kind;
        let list = &mut cache.lists[kind as usize];
        let (newer, older) = match *list {
            List { newest: NONE, .. } => (NONE, NONE),
            List { newest, .. } if self.slots[newest as usize].used <= used => (NONE, newest),
            List { oldest, .. } if self.slots[oldest as usize].used > used => (oldest, NONE),
            _ => {
                self.slots[at as usize].is_listed = false;
                let heap = &mut cache.heaps[kind as usize];
                heap.push(Reverse((used, at)));
                if heap.len() > 2 * cache.len as usize + STALE_MIN {
                    let mut all = std::mem::take(heap).into_vec();
                    all.retain(|Reverse(one)| is_so(&self.slots, cache_at, kind, one));
                    all.sort_unstable();
                    all.dedup();
                    *heap = BinaryHeap::from(all);
                }
                return;
            }
        };
        match newer {
            NONE => list.newest = at,
            newer => self.slots[newer as usize].older = at,
        }
        match older {
            NONE => list.oldest = at,
            older => self.slots[older as usize].newer = at,
        }
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older, slot.is_listed) = (newer, older, true);
    }
}

/// True if an entry of a heap is not outdated.
fn is_so(slots: &[Slot], cache: u32, kind: u8, (used, at): &(u64, u32)) -> bool {
    let slot = &slots[*at as usize];
    slot.cache == cache && slot.kind == kind && slot.used == *used
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::SplitMix64;

    /// A model: caches as lists of blocks with their recirculation counts, the oldest first.
    #[derive(Default, Clone)]
    struct Model(Vec<Vec<(u32, u8, u64)>>);

    impl Model {
        fn copies(&self, block: u32) -> usize {
            self.0.iter().flatten().filter(|(other, ..)| *other == block).count()
        }

        fn victim(&self, cache: usize) -> Option<u32> {
            let duplicate = self.0[cache].iter().find(|(block, ..)| self.copies(*block) > 1);
            let often = self.0[cache].iter().map(|(_, often, _)| *often).max();
            let singlet = self.0[cache].iter().find(|(_, other, _)| Some(*other) == often);
            duplicate.or(singlet).map(|(block, ..)| *block)
        }
    }

    #[test]
    fn caches_are_as_plain_lists() {
        const ROOMS: [u32; 8] = [40, 5, 5, 1, 30, 30, 30, 30];
        let random = SplitMix64::new(7);
        let (mut caches, mut model) = (Caches::new(ROOMS, Kinds::True), Model(vec![Vec::new(); ROOMS.len()]));
        for now in 1..20_000 {
            let (cache, block, often) = (random.below(8) as u32, random.below(60) as u32, random.below(4) as u8);
            let list = &mut model.0[cache as usize];
            let at = list.iter().position(|(other, ..)| *other == block);
            let found = caches.find(cache, block);
            assert_eq!(found.is_some(), at.is_some());
            match (found, at) {
                (Some(place), Some(at)) if random.chance(1, 3) => {
                    let (block, often, _) = list.remove(at);
                    assert_eq!(caches.remove(place), (block, often));
                }
                (Some(place), Some(at)) => {
                    caches.touch(place, now);
                    list.remove(at);
                    list.push((block, 0, now));
                }
                _ if caches.has_room(cache) => {
                    // Some were last used long ago, in other caches.
                    let used = if random.chance(1, 3) { random.below(now) } else { now };
                    if list.iter().all(|(.., other)| *other != used) {
                        caches.insert(cache, block, often, used);
                        let at = list.partition_point(|(.., other)| *other < used);
                        list.insert(at, (block, often, used));
                    }
                }
                _ => {
                    let oldest = caches.oldest(cache).map(|place| caches.remove(place));
                    let (block, often, _) = list.remove(0);
                    assert_eq!(oldest, Some((block, often)));
                }
            }
            assert_eq!(caches.copies(block) as usize, model.copies(block));
            for cache in 0..ROOMS.len() as u32 {
                let victim = caches.victim(cache).map(|place| caches.block_of(place));
                assert_eq!(victim, model.victim(cache as usize));
                let oldest = caches.oldest(cache).map(|place| caches.block_of(place));
                assert_eq!(oldest, model.0[cache as usize].first().map(|(block, ..)| *block));
            }
        }
    }

    #[test]
    fn a_block_whose_kind_changes_forever_takes_no_memory() {
        let mut caches = Caches::new([10, 10], Kinds::True);
        (0..3).for_each(|block| caches.insert(0, block, 0, u64::from(block)));
        for now in 3..10_000 {
            caches.insert(1, 1, 0, now);
            let place = caches.find(1, 1).expect("it is there");
            caches.remove(place);
        }
        assert!(caches.caches[0].heaps.iter().map(BinaryHeap::len).sum::<usize>() < 1000);
    }
}
