//! Which entries a client's cache evicts to make room (Froese and Bunt, section 4.5): the least
//! recently used, the least often used, any, the largest or the smallest.
//!
//! - [`Replacement::rank`]: the order of eviction.
//! - [`give_up`]: chooses from a list of entries. The caller keeps the entries.
//! - [`Shelf`]: keeps the entries itself. Their weights never sum to more than its capacity. A use
//!   costs the logarithm of the number of entries. `cache::WeightedLru` is faster, but evicts only
//!   by least recent use.

use std::collections::{BTreeMap, BTreeSet};

/// The order in which entries are evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Replacement {
    /// The least recently used first. Roaming clients do this.
    #[default]
    Lru,
    /// The least often used first, counted since it came; among equals, the least recently used.
    Lfu,
    /// Each with the same chance.
    Random,
    /// The heaviest first, so that few must go.
    Largest,
    /// The lightest first, so that entries that take long to fetch stay.
    Smallest,
}

/// What a policy ranks an entry by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// When it was last used: the number of that use among all uses.
    pub used: u64,
    /// How many times it was used.
    pub count: u64,
    /// Its weight, in the unit of the capacity.
    pub weight: u64,
}

/// An entry's place in the order of eviction: the lowest goes first.
pub type Rank = (u64, u64);

impl Replacement {
    /// All of them.
    pub const ALL: [Replacement; 5] =
        [Replacement::Lru, Replacement::Lfu, Replacement::Random, Replacement::Largest, Replacement::Smallest];

    /// The name that users type and read.
    pub fn name(self) -> &'static str {
        match self {
            Replacement::Lru => "lru",
            Replacement::Lfu => "lfu",
            Replacement::Random => "random",
            Replacement::Largest => "largest",
            Replacement::Smallest => "smallest",
        }
    }

    /// An entry's place in the order of eviction. `Random` does not use it.
    pub fn rank(self, known: &Known) -> Rank {
        match self {
            Replacement::Lru | Replacement::Random => (known.used, 0),
            Replacement::Lfu => (known.count, known.used),
            Replacement::Largest => (u64::MAX - known.weight, known.used),
            Replacement::Smallest => (known.weight, known.used),
        }
    }
}

/// Chooses the entries to evict, in order, until their weights sum to at least `wanted`. `kept` has
/// for each entry how dear it is, its use and its key. The least dear go first, then the lowest by
/// `replacement`, then the lowest by key.
pub fn give_up<K: Ord + Copy>(
    replacement: Replacement,
    kept: impl Iterator<Item = (u8, Known, K)>,
    wanted: u64,
) -> impl Iterator<Item = K> {
    let mut kept: Vec<_> = kept.map(|(dear, known, key)| (dear, replacement.rank(&known), key, known.weight)).collect();
    kept.sort_unstable_by_key(|(dear, rank, key, _)| (*dear, *rank, *key));
    let mut given = 0u64;
    kept.into_iter().map_while(move |(.., key, weight)| {
        let is_wanted = given < wanted;
        given = given.saturating_add(weight);
        is_wanted.then_some(key)
    })
}

#[derive(Clone, Debug)]
struct Entry {
    known: Known,
    /// Its index in [`Shelf::any`]. Used only with [`Replacement::Random`].
    at: usize,
}

/// A bounded set of weighted keys that evicts by a [`Replacement`] policy.
#[derive(Clone, Debug)]
pub struct Shelf<K> {
    replacement: Replacement,
    entries: BTreeMap<K, Entry>,
    /// All keys in the order of eviction. Empty with [`Replacement::Random`].
    order: BTreeSet<(Rank, K)>,
    /// All keys in any order. Empty except with [`Replacement::Random`].
    any: Vec<K>,
    weight: u64,
    capacity: u64,
    uses: u64,
}

impl<K: Ord + Copy> Shelf<K> {
    /// An empty shelf. Weights sum to at most `capacity`, which has the unit of the weights.
    pub fn new(replacement: Replacement, capacity: u64) -> Shelf<K> {
        let (entries, order, any) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Shelf { replacement, entries, order, any, weight: 0, capacity, uses: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sum of the weights of all entries.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// The most that the weights may sum to.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Counts a use of an entry. False if it is not there.
    pub fn touch(&mut self, key: K) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        let before = entry.known;
        self.uses += 1;
        entry.known = Known { used: self.uses, count: before.count + 1, ..before };
        let (from, to) = (self.replacement.rank(&before), self.replacement.rank(&entry.known));
        if self.replacement != Replacement::Random && from != to {
            self.order.remove(&(from, key));
            self.order.insert((to, key));
        }
        true
    }

    /// Adds an entry, or gives it a new weight, and counts a use. Returns the evicted entries in
    /// order. An entry that is heavier than the capacity is itself returned, and evicts no other.
    /// `random` gives uniform numbers.
    pub fn put(&mut self, key: K, weight: u64, mut random: impl FnMut() -> u64) -> Vec<K> {
        let count = self.take(key).map_or(0, |known| known.count);
        if weight > self.capacity {
            return vec![key];
        }
        let mut gone = Vec::new();
        while self.weight > self.capacity - weight {
            let Some(first) = self.first(&mut random) else { break };
            self.take(first);
            gone.push(first);
        }
        self.uses += 1;
        self.insert(key, Known { used: self.uses, count: count + 1, weight });
        gone
    }

    /// Removes all entries in this range.
    pub fn remove_range(&mut self, range: std::ops::RangeInclusive<K>) {
        let keys: Vec<K> = self.entries.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            self.take(key);
        }
    }

    /// Replaces each entry by parts. Each part keeps the entry's time and count of uses.
    pub fn split<I: Iterator<Item = (K, u64)>>(self, into: impl Fn(K, u64) -> I) -> Shelf<K> {
        let mut split = Shelf::new(self.replacement, self.capacity);
        split.uses = self.uses;
        for (key, entry) in &self.entries {
            for (part, weight) in into(*key, entry.known.weight) {
                split.insert(part, Known { weight, ..entry.known });
            }
        }
        split
    }

    fn first(&self, random: &mut impl FnMut() -> u64) -> Option<K> {
        match self.replacement {
            Replacement::Random => {
                // The product's upper half is uniform below the number of entries, as near as makes
                // no difference.
                let at = (u128::from(random()) * self.any.len() as u128) >> 64;
                self.any.get(at as usize).copied()
            }
            _ => self.order.first().map(|(_, key)| *key),
        }
    }

    fn insert(&mut self, key: K, known: Known) {
        let at = self.any.len();
        match self.replacement {
            Replacement::Random => self.any.push(key),
            _ => drop(self.order.insert((self.replacement.rank(&known), key))),
        }
        self.weight += known.weight;
        self.entries.insert(key, Entry { known, at });
    }

    fn take(&mut self, key: K) -> Option<Known> {
        let Entry { known, at } = self.entries.remove(&key)?;
        match self.replacement {
            Replacement::Random => {
                self.any.swap_remove(at);
                if let Some(moved) = self.any.get(at).and_then(|key| self.entries.get_mut(key)) {
                    moved.at = at;
                }
            }
            _ => drop(self.order.remove(&(self.replacement.rank(&known), key))),
        }
        self.weight -= known.weight;
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::WeightedLru;
    use proptest::prelude::*;

    /// What a shelf of capacity 10 evicts for a new entry of weight 4. It has a of weight 2, b of 5
    /// and c of 3, used in that order; then a was used twice more, and b once.
    fn goes(replacement: Replacement, random: u64) -> Vec<char> {
        let mut shelf = Shelf::new(replacement, 10);
        for (key, weight) in [('a', 2), ('b', 5), ('c', 3)] {
            assert!(shelf.put(key, weight, || 0).is_empty());
        }
        assert!("aab".chars().all(|key| shelf.touch(key)) && !shelf.touch('d'));
        shelf.put('d', 4, || random)
    }

    #[test]
    fn each_policy_gives_up_what_it_says() {
        assert_eq!(goes(Replacement::Lru, 0), ['c', 'a']);
        assert_eq!(goes(Replacement::Lfu, 0), ['c', 'b']);
        assert_eq!(goes(Replacement::Largest, 0), ['b']);
        assert_eq!(goes(Replacement::Smallest, 0), ['a', 'c']);
        assert_eq!(goes(Replacement::Random, 0), ['a', 'c']);
        assert_eq!(goes(Replacement::Random, u64::MAX), ['c', 'b']);
    }

    #[test]
    fn what_is_least_dear_goes_first_and_then_what_was_used_least_lately() {
        let file = |dear, used, key| (dear, Known { used, count: 0, weight: 10 }, key);
        let all = [file(5, 1, 'a'), file(0, 9, 'b'), file(0, 2, 'c'), file(1, 0, 'd')];
        let given = |wanted| give_up(Replacement::default(), all.into_iter(), wanted).collect::<String>();
        assert_eq!([0, 1, 10, 11, u64::MAX].map(given), ["", "c", "c", "cb", "cbda"]);
    }

    #[test]
    fn what_cannot_fit_leaves_all_else_where_it_is() {
        for replacement in Replacement::ALL {
            let mut shelf = Shelf::new(replacement, 10);
            shelf.put(1, 10, || 0);
            assert_eq!(shelf.put(2, 11, || 0), [2]);
            assert!(shelf.touch(1));
            // An entry that grows too heavy does not stay either.
            assert_eq!(shelf.put(1, 11, || 0), [1]);
            assert!(shelf.is_empty() && shelf.weight() == 0);
        }
    }

    #[test]
    fn parts_were_used_as_the_whole_was() {
        let mut shelf = Shelf::new(Replacement::Lru, 10);
        shelf.put((2, 0), 4, || 0);
        shelf.put((1, 0), 2, || 0);
        let mut shelf = shelf.split(|(file, _), weight| (0..weight).map(move |part| ((file, part), 1)));
        assert_eq!((shelf.len(), shelf.weight()), (6, 6));
        assert_eq!(shelf.put((3, 0), 6, || 0), [(2, 0), (2, 1)]);
        assert_eq!(shelf.put((3, 0), 9, || 0), [(2, 2), (2, 3), (1, 0)]);
        shelf.remove_range((3, 0)..=(3, u64::MAX));
        assert_eq!((shelf.len(), shelf.weight()), (1, 1));
    }

    #[test]
    fn of_many_any_goes_as_often() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        };
        let (mut shelf, mut gone) = (Shelf::new(Replacement::Random, 8), [0; 9]);
        for key in 0..8 {
            shelf.put(key, 1, &mut random);
        }
        let mut out = 8;
        for _ in 0..9000 {
            let left = shelf.put(out, 1, &mut random);
            out = left[0];
            gone[out] += 1;
        }
        assert!(gone.iter().all(|count| (900..1100).contains(count)), "{gone:?}");
    }

    proptest! {
        /// A shelf evicts what `give_up` chooses from a list of the same entries.
        #[test]
        fn model_a_shelf_gives_up_what_goes_first(
            at in 0usize..4,
            uses in proptest::collection::vec(0u8..20, 0..100),
            weights in proptest::collection::vec(1u64..6, 20),
            wanted in 1u64..60,
        ) {
            let replacement = [Replacement::Lru, Replacement::Lfu, Replacement::Largest, Replacement::Smallest][at];
            let (mut shelf, mut list) = (Shelf::new(replacement, 100), BTreeMap::<u8, Known>::new());
            for (key, used) in uses.into_iter().zip(1..) {
                let weight = weights[key as usize];
                if !shelf.touch(key) {
                    shelf.put(key, weight, || 0);
                }
                let known = list.entry(key).or_insert(Known { used, count: 0, weight });
                *known = Known { used, count: known.count + 1, weight };
            }
            let wanted_of_list = (shelf.weight() + wanted).saturating_sub(100);
            let given: Vec<u8> =
                give_up(replacement, list.into_iter().map(|(key, known)| (0, known, key)), wanted_of_list).collect();
            prop_assert_eq!(shelf.put(255, wanted, || 0), given);
        }

        /// With `Lru`, a shelf does what `WeightedLru` does.
        #[test]
        fn model_least_recently_used_is_as_in_the_other_map(
            capacity in 0u64..20,
            steps in proptest::collection::vec((0u8..3, 0u8..20, 0u64..6), 0..300),
        ) {
            let mut shelf = Shelf::new(Replacement::Lru, capacity);
            let mut model = WeightedLru::new(capacity);
            for (what, key, weight) in steps {
                match what {
                    0 => {
                        // `WeightedLru` also returns the earlier value of the key.
                        let before = usize::from(model.peek(&key).is_some());
                        let gone = model.insert(key, (), weight);
                        let expected: Vec<u8> = gone.iter().skip(before).map(|(key, ())| *key).collect();
                        prop_assert_eq!(shelf.put(key, weight, || 0), expected);
                    }
                    1 => prop_assert_eq!(shelf.touch(key), model.get(&key).is_some()),
                    _ => {
                        shelf.remove_range(key..=key);
                        model.remove(&key);
                    }
                }
                prop_assert_eq!((shelf.len(), shelf.weight()), (model.len(), model.weight()));
            }
        }
    }
}
