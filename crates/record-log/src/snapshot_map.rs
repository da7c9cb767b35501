//! A map that can be snapshotted in small steps while it changes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::Deref;

/// A map that can be snapshotted in small steps. The snapshot is the map as it was when the
/// snapshot began. The map may change between two steps: a value that was not taken yet is copied
/// before it changes. So no writer waits for a whole snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotMap<K, V> {
    map: BTreeMap<K, V>,
    snapshot: Option<Snapshot<K, V>>,
}

/// A snapshot that is being taken.
#[derive(Clone, Debug)]
struct Snapshot<K, V> {
    /// Keys up to this one were taken.
    through: Option<K>,
    /// The former values of later keys that have changed since the snapshot began; `None` if a key
    /// had no value.
    before: BTreeMap<K, Option<V>>,
}

impl<K, V> Default for SnapshotMap<K, V> {
    fn default() -> Self {
        BTreeMap::new().into()
    }
}

impl<K, V> From<BTreeMap<K, V>> for SnapshotMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        SnapshotMap { map, snapshot: None }
    }
}

/// Compares the present contents. Snapshots do not count.
impl<K: PartialEq, V: PartialEq> PartialEq for SnapshotMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K: Eq, V: Eq> Eq for SnapshotMap<K, V> {}

/// Gives read access to the present contents.
impl<K, V> Deref for SnapshotMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.map
    }
}

impl<K: Ord + Copy, V: Clone> SnapshotMap<K, V> {
    /// Begins a snapshot of the present contents. Drops an earlier snapshot that was not finished.
    pub fn begin_snapshot(&mut self) {
        self.snapshot = Some(Snapshot { through: None, before: BTreeMap::new() });
    }

    /// Takes the next values of the snapshot, in the order of their keys, at most `count`. False if
    /// there are no more, or if no snapshot was begun.
    pub fn take_some(&mut self, count: usize, mut take: impl FnMut(&K, &V)) -> bool {
        let Some(snapshot) = &mut self.snapshot else { return false };
        let after = snapshot.through.map_or(Unbounded, Excluded);
        let mut now = self.map.range((after, Unbounded)).peekable();
        for _ in 0..count {
            let unchanged = now.peek().map(|(key, _)| **key);
            let changed = snapshot.before.keys().next().copied();
            let Some(key) = unchanged.into_iter().chain(changed).min() else {
                self.snapshot = None;
                return false;
            };
            let value = now.next_if(|(next, _)| **next == key).map(|(_, value)| value);
            match snapshot.before.remove(&key) {
                Some(Some(before)) => take(&key, &before),
                Some(None) => {}
                None => value.into_iter().for_each(|value| take(&key, value)),
            }
            snapshot.through = Some(key);
        }
        true
    }

    /// Keeps the value of a key for the snapshot. Called before the value changes.
    fn keep(&mut self, key: &K) {
        if let Some(Snapshot { through, before }) = &mut self.snapshot
            && through.is_none_or(|through| through < *key)
            && let Entry::Vacant(vacant) = before.entry(*key)
        {
            vacant.insert(self.map.get(key).cloned());
        }
    }

    /// The value of a key, for changes.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if self.snapshot.is_some() && self.map.contains_key(key) {
            self.keep(key);
        }
        self.map.get_mut(key)
    }

    /// The value of a key, for changes. Makes one if there is none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.keep(&key);
        self.map.entry(key).or_insert_with(make)
    }

    /// Adds or replaces a value.
    pub fn insert(&mut self, key: K, value: V) {
        self.keep(&key);
        self.map.insert(key, value);
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        if self.snapshot.is_some() && self.map.contains_key(key) {
            self.keep(key);
        }
        self.map.remove(key)
    }

    /// All values, for changes. Copies the rest of an unfinished snapshot at once.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        if let Some(Snapshot { through, before }) = &mut self.snapshot {
            for (key, value) in self.map.range((through.map_or(Unbounded, Excluded), Unbounded)) {
                before.entry(*key).or_insert_with(|| Some(value.clone()));
            }
        }
        self.map.values_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Change(u8, u8),
        Insert(u8, u8),
        GetOrInsert(u8, u8),
        Remove(u8),
        ChangeAll,
        Take(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (key, value) = (0..24u8, any::<u8>());
        prop_oneof![
            (key.clone(), value).prop_map(|(key, value)| Step::Change(key, value)),
            (key.clone(), value).prop_map(|(key, value)| Step::Insert(key, value)),
            (key.clone(), value).prop_map(|(key, value)| Step::GetOrInsert(key, value)),
            key.prop_map(Step::Remove),
            Just(Step::ChangeAll),
            (1..4usize).prop_map(Step::Take),
        ]
    }

    fn perform(map: &mut SnapshotMap<u8, u8>, step: &Step, taken: &mut Vec<(u8, u8)>) {
        match *step {
            Step::Change(key, value) => map.get_mut(&key).into_iter().for_each(|there| *there = value),
            Step::Insert(key, value) => map.insert(key, value),
            Step::GetOrInsert(key, value) => *map.get_or_insert_with(key, || value) = value / 2,
            Step::Remove(key) => drop(map.remove(&key)),
            Step::ChangeAll => map.values_mut().for_each(|value| *value = value.wrapping_add(1)),
            Step::Take(count) => drop(map.take_some(count, |key, value| taken.push((*key, *value)))),
        }
    }

    proptest! {
        #[test]
        fn prop_a_snapshot_is_what_there_was_when_it_began(
            before in proptest::collection::vec(step(), 0..30),
            meanwhile in proptest::collection::vec(step(), 0..60),
        ) {
            let (mut map, mut taken) = (SnapshotMap::default(), Vec::new());
            before.iter().for_each(|step| perform(&mut map, step, &mut taken));
            let there: Vec<(u8, u8)> = map.iter().map(|(key, value)| (*key, *value)).collect();
            taken.clear();
            map.begin_snapshot();
            meanwhile.iter().for_each(|step| perform(&mut map, step, &mut taken));
            while map.take_some(3, |key, value| taken.push((*key, *value))) {}
            prop_assert_eq!(taken, there);
            prop_assert!(!map.take_some(1, |_, _| panic!("there is no snapshot")));
        }
    }
}
