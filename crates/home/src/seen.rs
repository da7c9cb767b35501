//! What was done for clients: how far it is durable, and what can be removed when it is.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// How far a client's operations have come.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// The last operation that was done, or refused.
    pub(crate) done: u64,
    /// The last of these that is durable.
    pub(crate) durable: u64,
}

/// What was done to a volume.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) of: Mutex<BTreeMap<u32, Progress>>,
    /// Files of the home's own folder that can be removed when everything done is durable.
    pub(crate) replaced: Mutex<BTreeSet<String>>,
    /// Stores that are in place before their turn comes, by author and operation: those that a
    /// crash has left, and those that came in one message with the making of their file.
    in_place: Mutex<BTreeSet<(u32, u64)>>,
    pub(crate) settling: tokio::sync::Mutex<()>,
}

impl Seen {
    /// Notes that a client's operations were done up to `seq`.
    pub(crate) fn did(&self, author: u32, seq: u64) {
        let mut of = self.of.lock();
        let progress = of.entry(author).or_default();
        progress.done = progress.done.max(seq);
        drop(of);
        self.in_place.lock().retain(|(of, store)| *of != author || *store > seq);
    }

    /// Returns the last durable operation of a client.
    pub(crate) fn durable(&self, author: u32) -> u64 {
        self.of.lock().get(&author).map_or(0, |progress| progress.durable)
    }

    /// Forgets a client that begins another log.
    pub(crate) fn forget(&self, author: u32) {
        self.of.lock().remove(&author);
        self.in_place.lock().retain(|(of, _)| *of != author);
    }

    /// Notes a file of the home's own folder that has the old contents of a store.
    pub(crate) fn keep(&self, name: String) {
        self.replaced.lock().insert(name);
    }

    /// Notes a store that is in place before its turn comes.
    pub(crate) fn stored(&self, author: u32, seq: u64) {
        self.in_place.lock().insert((author, seq));
    }

    /// True if a store is in place already.
    pub(crate) fn has_stored(&self, author: u32, seq: u64) -> bool {
        self.in_place.lock().contains(&(author, seq))
    }

    /// True if a client's operations up to `through` are durable, as far as they were done.
    pub(crate) fn is_durable(&self, author: u32, through: u64) -> bool {
        self.of.lock().get(&author).is_none_or(|progress| progress.durable >= through.min(progress.done))
    }

    /// True if everything that was done is durable.
    pub(crate) fn is_all_durable(&self) -> bool {
        self.of.lock().values().all(|progress| progress.durable >= progress.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of a client's next log begin again. A store that was in place for the old log is
    /// not done for the new one.
    #[test]
    fn regression_a_store_that_was_in_place_is_not_taken_for_one_of_the_next_log() {
        let seen = Seen::default();
        seen.stored(1, 17);
        seen.stored(2, 17);
        assert!(seen.has_stored(1, 17) && !seen.has_stored(1, 18));
        seen.forget(1);
        assert!(!seen.has_stored(1, 17) && seen.has_stored(2, 17));
    }

    #[test]
    fn a_store_that_was_answered_is_not_remembered() {
        let seen = Seen::default();
        [17, 19].into_iter().for_each(|seq| seen.stored(1, seq));
        seen.did(1, 18);
        assert!(!seen.has_stored(1, 17) && seen.has_stored(1, 19));
    }
}
