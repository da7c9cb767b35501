//! Counts the faults that a storm injects, so that a storm without them is not taken for a proof.

use std::collections::BTreeMap;

/// How often each kind of fault happened.
#[derive(Clone, Default, Debug)]
pub struct Faults(BTreeMap<&'static str, u64>);

impl Faults {
    pub fn note(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub fn add(&mut self, others: &Faults) {
        others.0.iter().for_each(|(kind, count)| *self.0.entry(kind).or_default() += count);
    }

    /// Asserts that each of these kinds happened.
    pub fn happened(&self, kinds: &[&str]) {
        let missing: Vec<_> = kinds.iter().filter(|kind| !self.0.contains_key(*kind)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}; of {:?}", self.0);
    }
}
