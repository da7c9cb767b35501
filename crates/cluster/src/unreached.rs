//! Nodes that cannot be reached, and since when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::NodeId;

/// Since when nodes cannot be reached.
#[derive(Default)]
pub(crate) struct Unreached(BTreeMap<NodeId, Duration>);

impl Unreached {
    /// The nodes that could not be reached for as long as `patience`. `now` are those that cannot
    /// be reached now, which is at this time.
    pub fn note(&mut self, now: BTreeSet<NodeId>, at: Duration, patience: Duration) -> Vec<NodeId> {
        self.0.retain(|node, _| now.contains(node));
        for node in now {
            self.0.entry(node).or_insert(at);
        }
        self.0.iter().filter(|(_, since)| at >= **since + patience).map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_out_of_reach_all_the_time_counts() {
        let [one, two] = [1, 2].map(NodeId::new);
        let second = Duration::from_secs(1);
        let mut unreached = Unreached::default();
        let mut note = |now: &[NodeId], at: u32| unreached.note(now.iter().copied().collect(), at * second, 3 * second);
        assert_eq!(note(&[one, two], 10), []);
        assert_eq!(note(&[one], 12), []);
        assert_eq!(note(&[one, two], 13), [one]);
        assert_eq!(note(&[one, two], 16), [one, two]);
        assert_eq!(note(&[], 17), []);
        assert_eq!(note(&[one], 30), []);
    }
}
