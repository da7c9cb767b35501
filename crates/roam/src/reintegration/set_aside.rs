//! Contents that were set aside to go home as they were saved.

use bytes::Bytes;
use host::File;
use std::collections::HashMap;
use std::sync::Arc;

/// Most bytes of contents that are set aside in memory. Beyond this, only short contents are;
/// longer ones go to files.
const INLINE_TOTAL_MAX: u64 = 64 << 20;

/// The bytes of a store, set aside.
#[derive(Clone)]
pub(crate) enum Outgoing {
    Inline(Bytes),
    /// One range after the other, in the file of this number.
    File(Arc<dyn File>, u64),
}

impl Outgoing {
    fn inline_len(&self) -> u64 {
        match self {
            Outgoing::Inline(bytes) => bytes.len() as u64,
            Outgoing::File(..) => 0,
        }
    }
}

/// Contents that were set aside to go home, by operation.
#[derive(Default)]
pub(crate) struct SetAside {
    of: HashMap<u64, Outgoing>,
    /// Total length of those in memory, in bytes.
    inline_len: u64,
}

impl SetAside {
    pub(crate) fn get(&self, seq: u64) -> Option<&Outgoing> {
        self.of.get(&seq)
    }

    /// True if `len` more bytes may be set aside in memory.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.inline_len + len <= INLINE_TOTAL_MAX
    }

    pub(crate) fn seqs(&self) -> impl Iterator<Item = u64> {
        self.of.keys().copied()
    }

    pub(crate) fn insert(&mut self, seq: u64, outgoing: Outgoing) {
        self.remove(seq);
        self.inline_len += outgoing.inline_len();
        self.of.insert(seq, outgoing);
    }

    pub(crate) fn remove(&mut self, seq: u64) -> Option<Outgoing> {
        let outgoing = self.of.remove(&seq)?;
        self.inline_len -= outgoing.inline_len();
        Some(outgoing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_in_memory_is_counted() {
        let inline = |len: usize| Outgoing::Inline(vec![0; len].into());
        let mut aside = SetAside::default();
        [(1, 10), (2, 20), (1, 5)].into_iter().for_each(|(seq, len)| aside.insert(seq, inline(len)));
        assert_eq!(aside.inline_len, 25);
        assert!(aside.remove(3).is_none() && aside.remove(2).is_some());
        assert_eq!((aside.inline_len, aside.seqs().collect::<Vec<_>>()), (5, vec![1]));
    }
}
