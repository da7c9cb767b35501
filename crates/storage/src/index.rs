//! The index: which fragments the store has, and where.
//!
//! It is one ordered map. Keys sort by log, then seq, then epoch, so that listing a log's tail is
//! one range walk. Two attempts at the same fragment are two entries: until the later attempt is
//! complete on all its stores, the segment may be readable only by the earlier one, and a store
//! cannot know. Deleting the segment removes both.

use crate::api::Seal;
use crate::packed::PackedHeader;
use crate::pages::PageExtent;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeInclusive};
use striped_log::fragment::FragmentHeader;
use types::codec::DecodeError;
use types::{FragmentId, FsUuid, LogId, SegmentId};

/// The name of a stored fragment. The order of the fields is the order of listing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FragmentKey {
    /// The log.
    pub log: LogId,
    /// Position in the log.
    pub seq: u64,
    /// The log's epoch.
    pub epoch: u32,
    /// The fragment's index in its stripe.
    pub index: u8,
    /// The attempt at putting the segment.
    pub attempt: u16,
}

impl FragmentKey {
    /// The key of a fragment.
    pub fn new(id: FragmentId, attempt: u16) -> Self {
        let SegmentId { log, epoch, seq } = id.segment;
        FragmentKey { log, seq, epoch, index: id.index, attempt }
    }
    /// The fragment's name.
    pub fn id(&self) -> FragmentId {
        FragmentId { segment: self.segment(), index: self.index }
    }
    /// The segment's name.
    pub fn segment(&self) -> SegmentId {
        SegmentId { log: self.log, epoch: self.epoch, seq: self.seq }
    }
}

/// One fragment that is on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its pages. They begin with the header.
    pub place: PageExtent,
    /// Its header.
    pub header: PackedHeader,
}

/// All fragments that are on the disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Index {
    held: BTreeMap<FragmentKey, Held>,
    parity_bytes: u64,
}

/// Bytes that a fragment takes if it is parity, otherwise 0.
fn parity_bytes(key: &FragmentKey, held: &Held) -> u64 {
    if key.index >= held.header.k() { held.place.byte_len() } else { 0 }
}

/// All keys of a segment.
fn of_segment(segment: SegmentId) -> RangeInclusive<FragmentKey> {
    let SegmentId { log, epoch, seq } = segment;
    FragmentKey { log, seq, epoch, index: 0, attempt: 0 }..=FragmentKey {
        log,
        seq,
        epoch,
        index: u8::MAX,
        attempt: u16::MAX,
    }
}

/// All keys of a log from a seq on.
fn of_log(log: LogId, from_seq: u64) -> RangeInclusive<FragmentKey> {
    FragmentKey { log, seq: from_seq, epoch: 0, index: 0, attempt: 0 }..=FragmentKey {
        log,
        seq: u64::MAX,
        epoch: u32::MAX,
        index: u8::MAX,
        attempt: u16::MAX,
    }
}

impl Index {
    /// Number of fragments.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// The fragment, if it is here.
    pub fn get(&self, key: &FragmentKey) -> Option<&Held> {
        self.held.get(key)
    }

    /// Adds a fragment. Returns the one that had the key before.
    pub fn insert(&mut self, key: FragmentKey, held: Held) -> Option<Held> {
        self.parity_bytes += parity_bytes(&key, &held);
        let before = self.held.insert(key, held);
        self.parity_bytes -= before.as_ref().map_or(0, |held| parity_bytes(&key, held));
        before
    }

    /// Bytes that parity fragments take.
    pub fn parity_bytes(&self) -> u64 {
        self.parity_bytes
    }

    /// All fragments in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&FragmentKey, &Held)> {
        self.held.iter()
    }

    /// All attempts at a fragment that are here.
    pub fn attempts(&self, id: FragmentId) -> impl Iterator<Item = (&FragmentKey, &Held)> {
        self.held.range(FragmentKey::new(id, 0)..=FragmentKey::new(id, u16::MAX))
    }

    /// The fragments after a key, in order; without a key, all.
    pub fn after(&self, key: Option<FragmentKey>) -> impl Iterator<Item = (&FragmentKey, &Held)> {
        self.held.range((key.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
    }

    /// Removes one fragment.
    pub fn remove(&mut self, key: &FragmentKey) {
        if let Some(held) = self.held.remove(key) {
            self.parity_bytes -= parity_bytes(key, &held);
        }
    }

    /// Removes all fragments of a segment, and returns them.
    pub fn remove_segment(&mut self, segment: SegmentId) -> Vec<(FragmentKey, Held)> {
        self.extract(of_segment(segment), |_| true)
    }

    /// Removes the fragments that recovery discarded with this seal, and returns them.
    pub fn remove_discarded(&mut self, seal: &Seal) -> Vec<(FragmentKey, Held)> {
        let Some(from_seq) = seal.least_through().checked_add(1) else { return Vec::new() };
        self.extract(of_log(seal.log, from_seq), |key| seal.discards(&key.segment()))
    }

    fn extract(
        &mut self,
        range: RangeInclusive<FragmentKey>,
        is_out: impl Fn(&FragmentKey) -> bool,
    ) -> Vec<(FragmentKey, Held)> {
        let removed: Vec<(FragmentKey, Held)> = self.held.extract_if(range, |key, _| is_out(key)).collect();
        self.parity_bytes -= removed.iter().map(|(key, held)| parity_bytes(key, held)).sum::<u64>();
        removed
    }

    /// Headers of all fragments of a segment.
    pub fn describe(&self, fs: FsUuid, segment: SegmentId) -> Result<Vec<FragmentHeader>, DecodeError> {
        self.held.range(of_segment(segment)).map(|entry| unpack(fs, entry)).collect()
    }

    /// Headers of a log's fragments from `from_seq` on, ordered by seq. Lists whole seqs, at least
    /// one, so that a caller that goes on after the last seq sees all. Lists at most `count_max`
    /// headers unless the first seq alone has more.
    pub fn list(
        &self,
        fs: FsUuid,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> Result<Vec<FragmentHeader>, DecodeError> {
        let (mut whole, mut seq) = (0, None);
        let mut headers: Vec<FragmentHeader> = Vec::new();
        for entry in self.held.range(of_log(log, from_seq)) {
            if seq != Some(entry.0.seq) {
                (whole, seq) = (headers.len(), Some(entry.0.seq));
            }
            if headers.len() >= count_max && whole > 0 {
                headers.truncate(whole);
                return Ok(headers);
            }
            headers.push(unpack(fs, entry)?);
        }
        Ok(headers)
    }

    /// All segments with a fragment here, and the bytes these take.
    pub fn segments(&self) -> Vec<(SegmentId, u64)> {
        let mut segments: Vec<(SegmentId, u64)> = Vec::new();
        for (key, held) in &self.held {
            let bytes = held.place.byte_len();
            match segments.last_mut() {
                Some((segment, sum)) if *segment == key.segment() => *sum += bytes,
                _ => segments.push((key.segment(), bytes)),
            }
        }
        segments
    }
}

fn unpack(fs: FsUuid, (key, held): (&FragmentKey, &Held)) -> Result<FragmentHeader, DecodeError> {
    held.header.unpack(fs, key.id(), key.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Fence;
    use crate::testing::{FS, fragment_of, segment};

    fn seal(through: u64) -> Seal {
        Seal::new(LogId::new(1), Fence { epoch: 2, through }, 0)
    }

    fn index_of(fragments: &[(SegmentId, u8, u16)]) -> Index {
        let mut index = Index::default();
        for (i, (segment, n, attempt)) in fragments.iter().enumerate() {
            let header = fragment_of(*segment, *n, *attempt, 100).header;
            let held = Held { place: PageExtent { start: i as u32, len: 1 }, header: PackedHeader::new(&header) };
            assert!(index.insert(FragmentKey::new(header.id, *attempt), held).is_none());
        }
        index
    }

    fn recounted(index: &Index) -> u64 {
        index.iter().map(|(key, held)| parity_bytes(key, held)).sum()
    }

    #[test]
    fn parity_is_counted_through_every_change() {
        let mut index = index_of(&[
            (segment(1, 1, 4), 0, 0),
            (segment(1, 1, 4), 1, 0),
            (segment(1, 1, 5), 1, 0),
            (segment(2, 1, 5), 1, 0),
        ]);
        let parity = index.iter().next_back().map(|(key, held)| (*key, held.clone())).unwrap();
        assert_eq!(parity.1.header.k(), 1);
        assert_eq!((index.parity_bytes(), recounted(&index)), (3 * 4096, 3 * 4096));
        index.insert(parity.0, Held { place: PageExtent { start: 9, len: 2 }, ..parity.1 });
        assert_eq!((index.parity_bytes(), recounted(&index)), (4 * 4096, 4 * 4096));
        index.remove_segment(segment(1, 1, 4));
        index.remove_discarded(&seal(4));
        assert_eq!((index.parity_bytes(), recounted(&index)), (2 * 4096, 2 * 4096));
    }

    #[test]
    fn listing_goes_by_seq_through_epochs_and_keeps_seqs_whole() {
        let index = index_of(&[
            (segment(1, 2, 5), 0, 0),
            (segment(1, 1, 4), 0, 0),
            (segment(1, 1, 5), 1, 0),
            (segment(1, 1, 5), 1, 1),
            (segment(1, 2, 6), 0, 0),
            (segment(2, 1, 5), 0, 0),
        ]);
        let seqs = |from, max| -> Vec<(u64, u32)> {
            let headers = index.list(FS, LogId::new(1), from, max).unwrap();
            headers.iter().map(|h| (h.id.segment.seq, h.id.segment.epoch)).collect()
        };
        assert_eq!(seqs(0, 100), [(4, 1), (5, 1), (5, 1), (5, 2), (6, 2)]);
        assert_eq!(seqs(5, 3), [(5, 1), (5, 1), (5, 2)]);
        assert_eq!(seqs(4, 3), [(4, 1)], "seq 5 does not fit whole");
        assert_eq!(seqs(5, 1), [(5, 1), (5, 1), (5, 2)], "the first seq comes whole, or the caller would be stuck");
        assert_eq!(seqs(7, 10), []);
    }

    #[test]
    fn a_seal_discards_old_epochs_beyond_it_and_nothing_else() {
        let mut index = index_of(&[
            (segment(1, 1, 4), 0, 0),
            (segment(1, 1, 5), 0, 0),
            (segment(1, 2, 5), 0, 0),
            (segment(2, 1, 9), 0, 0),
        ]);
        assert_eq!(index.remove_discarded(&seal(4)).len(), 1);
        let left: Vec<SegmentId> = index.segments().into_iter().map(|(s, _)| s).collect();
        assert_eq!(left, [segment(1, 1, 4), segment(1, 2, 5), segment(2, 1, 9)]);
        assert!(index.remove_discarded(&seal(u64::MAX)).is_empty());
    }

    #[test]
    fn a_segment_is_removed_with_all_its_fragments_and_attempts() {
        let mut index = index_of(&[
            (segment(1, 1, 4), 0, 0),
            (segment(1, 1, 4), 0, 1),
            (segment(1, 1, 4), 1, 0),
            (segment(1, 2, 4), 0, 0),
        ]);
        assert_eq!(index.segments(), [(segment(1, 1, 4), 3 * 4096), (segment(1, 2, 4), 4096)]);
        assert_eq!(index.remove_segment(segment(1, 1, 4)).len(), 3);
        assert_eq!(index.parity_bytes(), recounted(&index));
        assert_eq!(index.describe(FS, segment(1, 2, 4)).unwrap().len(), 1);
        assert_eq!(index.describe(FS, segment(1, 1, 4)).unwrap().len(), 0);
        assert_eq!(index.len(), 1);
    }
}
