//! What a client's cache gives up for room (Froese and Bunt, section 4.5): what was used longest
//! ago, least often, any, or by size.
//!
//! - [`Replacement::rank`]: the order in which they go.
//! - [`give_up`]: those that go first, of whatever there is when room is wanted.
//! - [`Shelf`]: knows what is kept; the weights of what is kept never sum to more than its
//!   capacity. What a use costs grows with the logarithm of the number of entries;
//!   `cache::WeightedLru` is the one for those that need only the first of these orders, and
//!   faster.

use std::collections::{BTreeMap, BTreeSet};

/// In which order entries go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Replacement {
    /// What was used longest ago first; the product's.
    #[default]
    Lru,
    /// What was used least often since it came first, and of that, what was used longest ago.
    Lfu,
    /// Any, with the same chance.
    Random,
    /// The heaviest first: few have to go.
    Largest,
    /// The lightest first: what is dear to fetch stays.
    Smallest,
}

/// What is known of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// When it was used last, in uses.
    pub used: u64,
    /// How often it was used.
    pub count: u64,
    /// What it weighs.
    pub weight: u64,
}

/// Where an entry stands: what is less goes first.
pub type Rank = (u64, u64);

impl Replacement {
    /// All of them.
    pub const ALL: [Replacement; 5] =
        [Replacement::Lru, Replacement::Lfu, Replacement::Random, Replacement::Largest, Replacement::Smallest];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Replacement::Lru => "lru",
            Replacement::Lfu => "lfu",
            Replacement::Random => "random",
            Replacement::Largest => "largest",
            Replacement::Smallest => "smallest",
        }
    }

    /// Where an entry stands. With `Random`, chance decides, and this is of no use.
    pub fn rank(self, known: &Known) -> Rank {
        match self {
            Replacement::Lru | Replacement::Random => (known.used, 0),
            Replacement::Lfu => (known.count, known.used),
            Replacement::Largest => (u64::MAX - known.weight, known.used),
            Replacement::Smallest => (known.weight, known.used),
        }
    }
}

/// Which of these go, in that order, for as much as is wanted: of what is least dear, what
/// `replacement` says, and of that, what is least. No more than it takes.
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
    /// Where it is among those of which any may go.
    at: usize,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Shelf<K> {
    replacement: Replacement,
    entries: BTreeMap<K, Entry>,
    order: BTreeSet<(Rank, K)>,
    /// Those of which any may go.
    any: Vec<K>,
    weight: u64,
    capacity: u64,
    uses: u64,
}

impl<K: Ord + Copy> Shelf<K> {
    /// An empty one for entries of together at most `capacity`, in whatever unit the weights are.
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

    /// An entry is used. False if it is not there.
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

    /// An entry is used, and from now on there, and as heavy as this. Gives what went for it, in
    /// that order. One that is heavier than the capacity is itself among these, and nothing else
    /// goes. `random` gives uniform numbers.
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

    /// Takes out all in this range.
    pub fn remove_range(&mut self, range: std::ops::RangeInclusive<K>) {
        let keys: Vec<K> = self.entries.range(range).map(|(key, _)| *key).collect();
        for key in keys {
            self.take(key);
        }
    }

    /// Each entry becomes these, which were used as it was.
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

    /// What goes for a last entry of weight 4 from a shelf for 10, on which are a of weight 2, b of
    /// 5 and c of 3, used in that order, and then a twice more and b once.
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
            // Nor does what has grown too heavy.
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
        /// What a shelf gives up is what is chosen from a list of the same.
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

        /// Least recently used is what it is everywhere.
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
                        // There, what it was before comes back first.
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
