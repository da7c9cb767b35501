//! Seals keep the former writers of a log out.
//!
//! Each opening of a log hands out an epoch and leaves a **fence**: segments of earlier epochs
//! count up to a seq, and no further. A seal has the fence of its own epoch and those of the epochs
//! before it. The newest fence alone is not enough: it lets a writer of epoch 1 that slept through
//! epochs 2 and 3 write up to where epoch 3 began, over the segments of epoch 2.
//!
//! A fence is dropped if a later one is not above it, since the later one then discards everything
//! that it discards. So openings that no segment was written after leave no fence. Of the other
//! fences the newest [`FENCES_MAX`] are kept. A writer comes through a dropped one only if it slept
//! through more epochs than that, with segments in each.
//!
//! The **nonce** is a random number of the opener. A store takes one seal of an epoch. So if two
//! openers choose the same epoch, they cannot both find their own seal at a quorum of stores, and
//! at most one of them goes on to write.
//!
//! When a quorum has the seal, the opener tells these stores **which stores have it**, and only
//! then writes. If a store is named so and has only an older seal, it has lost its state: its disk
//! is new, or an old copy. A store that finds rotten fragments that it cannot name marks its seals
//! with **has lost**. So is each seal that others give to a store which was made in place of a lost
//! one: it has nothing of what the lost one took under that seal. That counts as a lost state too,
//! until the store has the seal of a later epoch, or everything that it lacked.

use std::collections::BTreeSet;
use types::codec::{DecodeError, Put, Reader};
use types::{LogId, SegmentId, StoreId};

/// Most fences of earlier epochs that a seal keeps. This bounds the length of seals.
pub const FENCES_MAX: usize = 1024;
/// Encoded length in bytes of a seal without earlier fences and without named stores.
pub const SEAL_LEN_MIN: usize = 33;

/// Where a log goes on with a new epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The first epoch that may write beyond `through`.
    pub epoch: u32,
    /// The last seq of earlier epochs that counts.
    pub through: u64,
}

/// The newest fence of a log, with those before it. A store that has the seal refuses segments of
/// epochs before `epoch` with a seq beyond `through`. Once it is told that a quorum has the seal,
/// it deletes those that it has: recovery discarded them. Segments up to `through` count, and may
/// be put again for repair, unless an earlier fence discards them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seal {
    /// The log.
    pub log: LogId,
    /// The first epoch that may still write.
    pub epoch: u32,
    /// The last seq of earlier epochs that counts.
    pub through: u64,
    /// A random number of the opener.
    pub nonce: u64,
    /// Fences of earlier epochs that discard more than later ones. Both epochs and seqs grow.
    earlier: Vec<Fence>,
    /// The stores that had this seal before a writer wrote under it. Empty until the opener has
    /// told them.
    pub held_by: BTreeSet<StoreId>,
    /// The store that shows this seal, or the one in whose place it was made, has lost fragments
    /// since it took the seal, and does not know which. Openers never set it.
    pub has_lost: bool,
}

impl Seal {
    /// A seal of a log that was not sealed before.
    pub fn new(log: LogId, fence: Fence, nonce: u64) -> Seal {
        Seal {
            log,
            epoch: fence.epoch,
            through: fence.through,
            nonce,
            earlier: Vec::new(),
            held_by: BTreeSet::new(),
            has_lost: false,
        }
    }

    /// True if a quorum has the seal, so that what it discards can be forgotten. Until then, its
    /// opener may have died half way, and the writer before may have been let go on.
    pub fn is_told(&self) -> bool {
        !self.held_by.is_empty()
    }

    /// The same seal, with the stores that have it.
    pub fn told(&self, held_by: BTreeSet<StoreId>) -> Seal {
        Seal { held_by, has_lost: false, ..self.clone() }
    }

    /// The same seal, shown by a store that has lost fragments since it took it, or by one that has
    /// not.
    pub fn shown_by(self, has_lost: bool) -> Seal {
        Seal { has_lost, ..self }
    }

    /// True if a store that has this seal takes the other one: it is of a later epoch, or it is the
    /// same seal and names the stores that have it, or says no more that the store has lost
    /// fragments.
    pub fn gives_way_to(&self, other: &Seal) -> bool {
        let is_told = self.held_by.is_empty() && !other.held_by.is_empty();
        let is_whole_again = self.has_lost && !other.has_lost && self.held_by == other.held_by;
        let is_same = self.epoch == other.epoch && self.nonce == other.nonce;
        self.epoch < other.epoch || is_same && (is_told || is_whole_again)
    }

    /// The seal after this one. `first_seq` is the seq of the first segment that counts and is of
    /// this seal's epoch or a later one. This seal's own fence cannot be beyond that, even if it
    /// comes from an opener that died while another one got the epoch.
    pub fn next(&self, fence: Fence, first_seq: Option<u64>, nonce: u64) -> Seal {
        let through = first_seq.map_or(self.through, |first| self.through.min(first.saturating_sub(1)));
        let before = self.earlier.iter().copied().chain([Fence { epoch: self.epoch, through }]);
        let mut earlier: Vec<Fence> = Vec::new();
        for fence in before.chain([fence]) {
            while earlier.last().is_some_and(|last| last.through >= fence.through) {
                earlier.pop();
            }
            earlier.push(fence);
        }
        earlier.pop();
        earlier.drain(..earlier.len().saturating_sub(FENCES_MAX));
        Seal { earlier, ..Seal::new(self.log, fence, nonce) }
    }

    /// True if recovery has discarded this segment.
    pub fn discards(&self, segment: &SegmentId) -> bool {
        if segment.log != self.log || segment.epoch >= self.epoch {
            return false;
        }
        // Of the fences against its epoch, the first discards most.
        let first = self.earlier.partition_point(|fence| fence.epoch <= segment.epoch);
        segment.seq > self.earlier.get(first).map_or(self.through, |fence| fence.through)
    }

    /// The seq up to which no segment is discarded.
    pub fn least_through(&self) -> u64 {
        self.earlier.first().map_or(self.through, |fence| fence.through)
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.log.raw());
        out.put_u32(self.epoch);
        out.put_u64(self.through);
        out.put_u64(self.nonce);
        out.put_u32(self.earlier.len() as u32);
        for fence in &self.earlier {
            out.put_u32(fence.epoch);
            out.put_u64(fence.through);
        }
        out.put_u32(self.held_by.len() as u32);
        self.held_by.iter().for_each(|store| out.put_u16(store.raw()));
        out.put_u8(self.has_lost.into());
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Seal, DecodeError> {
        let log = LogId::new(r.u32("seal log")?);
        let own = Fence { epoch: r.u32("seal epoch")?, through: r.u64("seal through")? };
        let nonce = r.u64("seal nonce")?;
        let mut earlier: Vec<Fence> = Vec::new();
        for _ in 0..r.count(12, "fences")? {
            earlier.push(Fence { epoch: r.u32("fence epoch")?, through: r.u64("fence through")? });
        }
        let all = earlier.iter().chain([&own]);
        let grow = all.clone().zip(all.skip(1)).all(|(a, b)| a.epoch < b.epoch && a.through < b.through);
        if !grow || earlier.len() > FENCES_MAX {
            return Err(DecodeError::Invalid("fences"));
        }
        let mut held_by = BTreeSet::new();
        for _ in 0..r.count(2, "stores with a seal")? {
            let store = StoreId::new(r.u16("store with a seal")?);
            if held_by.last().is_some_and(|last| *last >= store) {
                return Err(DecodeError::Invalid("order of stores with a seal"));
            }
            held_by.insert(store);
        }
        let has_lost = match r.u8("seal of a store that has lost fragments")? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Invalid("seal of a store that has lost fragments")),
        };
        Ok(Seal { earlier, held_by, has_lost, ..Seal::new(log, own, nonce) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::segment;
    use proptest::prelude::*;

    fn fence(epoch: u32, through: u64) -> Fence {
        Fence { epoch, through }
    }

    #[test]
    fn each_epoch_is_held_to_the_first_fence_against_it() {
        let seal = Seal::new(LogId::new(1), fence(2, 10), 7).next(fence(3, 20), Some(11), 8);
        let discards = |epoch, seq| seal.discards(&segment(1, epoch, seq));
        assert!(!discards(1, 10) && discards(1, 11) && discards(1, 20));
        assert!(!discards(2, 20) && discards(2, 21));
        assert!(!discards(3, 21));
        assert!(!seal.discards(&segment(2, 1, 11)), "another log");
        assert_eq!(seal.least_through(), 10);
    }

    #[test]
    fn fences_that_a_later_one_covers_are_dropped() {
        let mut seal = Seal::new(LogId::new(1), fence(2, 10), 0);
        for epoch in 3..10 {
            seal = seal.next(fence(epoch, 10), None, 0);
        }
        assert_eq!(seal, Seal::new(LogId::new(1), fence(9, 10), 0));
        let seal = seal.next(fence(10, 30), Some(6), 0);
        assert!(seal.discards(&segment(1, 8, 6)), "what counts shows that the opener of epoch 9 counted too much");
        assert!(!seal.discards(&segment(1, 9, 30)));
    }

    #[test]
    fn a_seal_keeps_so_many_fences_and_no_more() {
        let mut seal = Seal::new(LogId::new(1), fence(1, 0), 0);
        for i in 1..2000 {
            seal = seal.next(fence(i + 1, u64::from(i)), None, 0);
        }
        assert_eq!(seal.earlier.len(), FENCES_MAX);
        assert!(seal.discards(&segment(1, 1500, 1501)) && !seal.discards(&segment(1, 1500, 1500)));
    }

    #[test]
    fn a_store_is_told_once_who_has_its_seal() {
        let seal = Seal::new(LogId::new(1), fence(2, 10), 7);
        let held_by = |stores: &[u16], seal: &Seal| seal.told(stores.iter().copied().map(StoreId::new).collect());
        let told = held_by(&[1, 2], &seal);
        assert!(seal.gives_way_to(&told) && !seal.gives_way_to(&seal));
        assert!(!told.gives_way_to(&seal) && !told.gives_way_to(&held_by(&[1, 3], &seal)));
        let of_another_opener = held_by(&[1, 2], &Seal::new(LogId::new(1), fence(2, 10), 8));
        assert!(!seal.gives_way_to(&of_another_opener));
        assert!(told.gives_way_to(&seal.next(fence(3, 10), None, 9)));
        let lost = Seal { has_lost: true, ..told.clone() };
        assert!(lost.gives_way_to(&told) && !told.gives_way_to(&lost));
        assert!(!lost.gives_way_to(&seal) && !lost.gives_way_to(&held_by(&[1, 3], &seal)));
    }

    proptest! {
        /// A seal discards exactly the segments that any of all fences discards, and decodes to
        /// itself.
        #[test]
        fn prop_a_seal_agrees_with_a_list_of_all_fences(steps in prop::collection::vec((1..3u32, 0..4u64), 1..12)) {
            let (mut epoch, mut through) = (1, 0);
            let mut fences = vec![fence(epoch, through)];
            let mut seal = Seal::new(LogId::new(1), fences[0], 5);
            for (epochs, written) in steps {
                (epoch, through) = (epoch + epochs, through + written);
                let first = (written > 0).then_some(through - written + 1);
                fences.push(fence(epoch, through));
                seal = seal.next(fence(epoch, through), first, 5);
            }
            for epoch in 0..epoch + 1 {
                for seq in 0..through + 2 {
                    let discards = fences.iter().any(|f| epoch < f.epoch && seq > f.through);
                    prop_assert_eq!(seal.discards(&segment(1, epoch, seq)), discards, "{}.{}", epoch, seq);
                }
            }
            seal.held_by.extend((0..through as u16).map(StoreId::new));
            seal.has_lost = through % 2 == 0;
            let mut bytes = Vec::new();
            seal.encode(&mut bytes);
            prop_assert_eq!(Seal::decode(&mut Reader::new(&bytes)), Ok(seal));
        }
    }
}
