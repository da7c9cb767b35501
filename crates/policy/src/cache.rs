//! What to evict: a least-recently-used map that is bounded by the weight of its entries.
//!
//! All operations are O(1) (hashing aside). The order of use is a doubly linked list whose links
//! are indices into one vector, so there is no allocation per entry. The weights of what is in the
//! map never sum to more than its capacity.

use std::collections::HashMap;
use std::hash::Hash;

/// The index that stands for "no node".
const NIL: usize = usize::MAX;

/// One entry; free places keep only `newer`, the next free place.
#[derive(Debug)]
struct Node<K, V> {
    entry: Option<(K, V)>,
    weight: u64,
    newer: usize,
    older: usize,
}

/// A map that evicts its least recently used entries before the weights exceed its capacity.
#[derive(Debug)]
pub struct WeightedLru<K, V> {
    places: HashMap<K, usize>,
    nodes: Vec<Node<K, V>>,
    newest: usize,
    oldest: usize,
    free: usize,
    weight: u64,
    capacity: u64,
}

impl<K: Hash + Eq + Clone, V> WeightedLru<K, V> {
    /// An empty map. Weights sum to at most `capacity`, which has the unit of the weights.
    pub fn new(capacity: u64) -> Self {
        let (newest, oldest, free) = (NIL, NIL, NIL);
        WeightedLru { places: HashMap::new(), nodes: Vec::new(), newest, oldest, free, weight: 0, capacity }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }
    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
    /// Sum of the weights of all entries.
    pub fn weight(&self) -> u64 {
        self.weight
    }
    /// The most that the weights may sum to.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Adds an entry as the most recently used. Returns the entries that left the map for it: the
    /// key's earlier value first, then the evicted entries, oldest first. An entry that is heavier
    /// than the capacity is itself returned, and evicts no other.
    pub fn insert(&mut self, key: K, value: V, weight: u64) -> Vec<(K, V)> {
        let mut left = Vec::new();
        if let Some(&place) = self.places.get(&key) {
            left.extend(self.take(place));
        }
        if weight > self.capacity {
            left.push((key, value));
            return left;
        }
        while self.weight > self.capacity - weight {
            left.extend(self.take(self.oldest));
        }
        let place = self.allocate(Node { entry: Some((key.clone(), value)), weight, newer: NIL, older: NIL });
        self.places.insert(key, place);
        self.weight += weight;
        self.link_newest(place);
        left
    }

    /// The value of `key`, which becomes the most recently used.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        let place = *self.places.get(key)?;
        if self.newest != place {
            self.unlink(place);
            self.link_newest(place);
        }
        self.nodes[place].entry.as_ref().map(|(_, value)| value)
    }

    /// The value of `key`. This does not count as a use.
    pub fn peek(&self, key: &K) -> Option<&V> {
        let place = *self.places.get(key)?;
        self.nodes[place].entry.as_ref().map(|(_, value)| value)
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = *self.places.get(key)?;
        self.take(place).map(|(_, value)| value)
    }

    /// Takes out the entry at `place`, which is in use, and frees the place.
    fn take(&mut self, place: usize) -> Option<(K, V)> {
        self.unlink(place);
        let node = &mut self.nodes[place];
        let entry = node.entry.take();
        self.weight -= node.weight;
        node.newer = self.free;
        self.free = place;
        if let Some((key, _)) = &entry {
            self.places.remove(key);
        }
        entry
    }

    fn allocate(&mut self, node: Node<K, V>) -> usize {
        if self.free == NIL {
            self.nodes.push(node);
            return self.nodes.len() - 1;
        }
        let place = self.free;
        self.free = self.nodes[place].newer;
        self.nodes[place] = node;
        place
    }

    fn unlink(&mut self, place: usize) {
        let Node { newer, older, .. } = self.nodes[place];
        match newer {
            NIL => self.newest = older,
            newer => self.nodes[newer].older = older,
        }
        match older {
            NIL => self.oldest = newer,
            older => self.nodes[older].newer = newer,
        }
    }

    fn link_newest(&mut self, place: usize) {
        self.nodes[place].newer = NIL;
        self.nodes[place].older = self.newest;
        match self.newest {
            NIL => self.oldest = place,
            newest => self.nodes[newest].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn evicts_what_was_not_used_for_longest() {
        let mut lru = WeightedLru::new(3);
        for key in 1..=3 {
            assert_eq!(lru.insert(key, key * 10, 1), []);
        }
        assert_eq!(lru.get(&1), Some(&10));
        assert_eq!(lru.peek(&2), Some(&20), "a peek is no use");
        assert_eq!(lru.insert(4, 40, 2), [(2, 20), (3, 30)]);
        assert_eq!((lru.len(), lru.weight()), (2, 3));
    }

    #[test]
    fn an_entry_that_cannot_fit_comes_back_and_evicts_nothing() {
        let mut lru = WeightedLru::new(3);
        lru.insert(1, "a", 3);
        assert_eq!(lru.insert(2, "b", 4), [(2, "b")]);
        assert_eq!(lru.get(&1), Some(&"a"));
    }

    #[test]
    fn a_replaced_value_comes_back_and_its_weight_is_gone() {
        let mut lru = WeightedLru::new(4);
        lru.insert(1, "a", 4);
        assert_eq!(lru.insert(1, "b", 1), [(1, "a")]);
        assert_eq!((lru.weight(), lru.get(&1)), (1, Some(&"b")));
    }

    #[test]
    fn places_are_used_again() {
        let mut lru = WeightedLru::new(2);
        for key in 0..1000 {
            lru.insert(key, (), 1);
        }
        assert_eq!(lru.nodes.len(), 2);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u64),
        Get(u8),
        Remove(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u8..20, 0u64..6).prop_map(|(k, w)| Step::Insert(k, w)),
            2 => (0u8..20).prop_map(Step::Get),
            1 => (0u8..20).prop_map(Step::Remove),
        ]
    }

    proptest! {
        /// The model is a vector in order of use, oldest first.
        #[test]
        fn model_behaves_as_a_list_in_order_of_use(
            capacity in 0u64..20,
            steps in proptest::collection::vec(step(), 0..300),
        ) {
            let mut lru = WeightedLru::new(capacity);
            let mut model: Vec<(u8, usize, u64)> = Vec::new();
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(k, w) => {
                        let mut expected = Vec::new();
                        if let Some(i) = model.iter().position(|e| e.0 == k) {
                            let e = model.remove(i);
                            expected.push((e.0, e.1));
                        }
                        if w > capacity {
                            expected.push((k, value));
                        } else {
                            model.push((k, value, w));
                            while model.iter().map(|e| e.2).sum::<u64>() > capacity {
                                let e = model.remove(0);
                                expected.push((e.0, e.1));
                            }
                        }
                        prop_assert_eq!(lru.insert(k, value, w), expected);
                    }
                    Step::Get(k) => {
                        let expected = model.iter().position(|e| e.0 == k).map(|i| {
                            let e = model.remove(i);
                            model.push(e);
                            e.1
                        });
                        prop_assert_eq!(lru.get(&k).copied(), expected);
                    }
                    Step::Remove(k) => {
                        let expected = model.iter().position(|e| e.0 == k).map(|i| model.remove(i).1);
                        prop_assert_eq!(lru.remove(&k), expected);
                    }
                }
                prop_assert_eq!(lru.len(), model.len());
                prop_assert_eq!(lru.weight(), model.iter().map(|e| e.2).sum::<u64>());
            }
        }
    }
}
