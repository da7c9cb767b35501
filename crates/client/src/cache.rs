//! The data cache: bytes of log addresses.
//!
//! The bytes at an address never change, so nothing here is ever invalidated for coherence. Entries
//! are dropped to make room, and with their segment. An entry is a stretch of one segment's
//! payload, of any length; stretches do not overlap within the cache. Blocks of segments that are
//! not durable yet are **pinned**: they exist nowhere else.
//!
//! Data of long sequential reads keep to a part of the cache, and push out other entries only where
//! that part is too small for one read. The kernel has these data too, and a program that reads
//! more than fits would find nothing of it anyway.
//!
//! The cache is sharded by segment. A lookup takes one shard's lock for a tree search and a
//! reference count, never during I/O.

use bytes::Bytes;
use parking_lot::Mutex;
use policy::cache::WeightedLru;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use types::SegmentId;

/// Number of shards, at most: enough that threads rarely meet at a lock.
const SHARD_COUNT_MAX: u64 = 16;
/// Size of a shard in bytes, at least: room for several of the largest reads, so that fetched data
/// are still there when the read looks for them.
const SHARD_BYTES_MIN: u64 = 32 << 20;
/// Bytes of memory that an entry takes besides its contents, roughly.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// Streams have one part in this many of the cache.
const STREAM_SHARE: u64 = 4;

type Key = (SegmentId, u32);

/// How an entry will be used after its first read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// It is likely to be read again.
    Reuse,
    /// The reader goes on to the data after it.
    Stream,
}

struct Shard {
    clean: WeightedLru<Key, Bytes>,
    /// Like `clean`, for entries that are likely to be read only once.
    streams: WeightedLru<Key, Bytes>,
    /// The entries of both, from offset to length, to find the entry that contains an offset.
    index: BTreeMap<Key, u32>,
    pinned: BTreeMap<Key, Pinned>,
}

/// A block of a segment that is not durable yet.
struct Pinned {
    bytes: Bytes,
    keep: bool,
}

/// The data cache: clean entries within a bound, and pinned blocks.
pub struct DataCache {
    shards: Vec<Mutex<Shard>>,
    pinned_bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Stretches found.
    pub hits: u64,
    /// Stretches that had to be read from stores.
    pub misses: u64,
    /// Bytes of clean entries.
    pub clean_bytes: u64,
    /// Bytes that are pinned until their segment is durable.
    pub pinned_bytes: u64,
}

impl DataCache {
    /// A cache of at most `capacity_bytes` of clean entries. Pinned blocks are bounded by the log's
    /// bytes in flight.
    pub fn new(capacity_bytes: u64) -> Self {
        let count = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX);
        let each = (capacity_bytes / count).max(1);
        let shard = || Shard {
            clean: WeightedLru::new(each - each / STREAM_SHARE),
            streams: WeightedLru::new(each / STREAM_SHARE),
            index: BTreeMap::new(),
            pinned: BTreeMap::new(),
        };
        DataCache {
            shards: (0..count).map(|_| Mutex::new(shard())).collect(),
            pinned_bytes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn shard(&self, segment: SegmentId) -> &Mutex<Shard> {
        &self.shards[(segment.seq as usize ^ segment.log.raw() as usize) % self.shards.len()]
    }

    /// Appends the bytes `range` of a segment to `out`, as slices of cached entries. On a miss it
    /// returns the first missing part, and appends nothing.
    pub fn gather(&self, segment: SegmentId, range: Range<u32>, out: &mut Vec<Bytes>) -> Result<(), Range<u32>> {
        let mut shard = self.shard(segment).lock();
        let (had, mut at) = (out.len(), range.start);
        while at < range.end {
            let Some((start, bytes)) = shard.containing(segment, at) else {
                out.truncate(had);
                let next = shard.next_start(segment, at).unwrap_or(range.end);
                self.misses.fetch_add(1, Relaxed);
                return Err(at..range.end.min(next));
            };
            let end = range.end.min(start + bytes.len() as u32);
            out.push(bytes.slice((at - start) as usize..(end - start) as usize));
            at = end;
        }
        self.hits.fetch_add(1, Relaxed);
        Ok(())
    }

    /// True if all of `range` is cached.
    pub fn contains(&self, segment: SegmentId, range: Range<u32>) -> bool {
        let mut shard = self.shard(segment).lock();
        let mut at = range.start;
        while at < range.end {
            match shard.containing(segment, at) {
                Some((start, bytes)) => at = start + bytes.len() as u32,
                None => return false,
            }
        }
        true
    }

    /// Adds bytes read from stores; entries that are here already stay.
    pub fn insert(&self, segment: SegmentId, offset: u32, bytes: Bytes, expect: Expect) {
        let mut shard = self.shard(segment).lock();
        shard.insert(segment, offset, bytes, expect);
    }

    /// Adds a block of a segment that is not durable yet. `keep` says whether the block stays in
    /// the cache once it is durable. A directory's block does not: the directory is in memory in a
    /// better form.
    pub fn pin(&self, segment: SegmentId, offset: u32, bytes: Bytes, keep: bool) {
        if !bytes.is_empty() {
            self.pinned_bytes.fetch_add(bytes.len() as u64, Relaxed);
            self.shard(segment).lock().pinned.insert((segment, offset), Pinned { bytes, keep });
        }
    }

    /// The segment is durable: its blocks become ordinary entries.
    pub fn unpin(&self, segment: SegmentId) {
        let mut shard = self.shard(segment).lock();
        let mut rest = shard.pinned.split_off(&(segment, 0));
        let mut tail = rest.split_off(&(SegmentId { seq: segment.seq + 1, ..segment }, 0));
        shard.pinned.append(&mut tail);
        for ((_, offset), Pinned { bytes, keep }) in rest {
            self.pinned_bytes.fetch_sub(bytes.len() as u64, Relaxed);
            if keep {
                shard.insert(segment, offset, bytes, Expect::Reuse);
            }
        }
    }

    /// Counts since start.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            hits: self.hits.load(Relaxed),
            misses: self.misses.load(Relaxed),
            clean_bytes: self.shards.iter().map(|shard| shard.lock().clean_bytes()).sum(),
            pinned_bytes: self.pinned_bytes.load(Relaxed),
        }
    }
}

impl Shard {
    /// The entry that contains offset `at`: its start and its bytes.
    fn containing(&mut self, segment: SegmentId, at: u32) -> Option<(u32, Bytes)> {
        let up_to = ..=(segment, at);
        if let Some((&(s, start), Pinned { bytes, .. })) = self.pinned.range(up_to).next_back()
            && s == segment
            && at < start + bytes.len() as u32
        {
            return Some((start, bytes.clone()));
        }
        let (&(s, start), &len) = self.index.range(up_to).next_back()?;
        if s != segment || at >= start + len {
            return None;
        }
        let key = (s, start);
        let bytes = self.clean.get(&key).or_else(|| self.streams.get(&key))?;
        Some((start, bytes.clone()))
    }

    fn clean_bytes(&self) -> u64 {
        self.clean.weight() + self.streams.weight()
    }

    /// Start of the first entry after `at`.
    fn next_start(&self, segment: SegmentId, at: u32) -> Option<u32> {
        let from = (segment, at)..;
        let clean = self.index.range(from.clone()).next().map(|(k, _)| *k);
        let pinned = self.pinned.range(from).next().map(|(k, _)| *k);
        clean.into_iter().chain(pinned).filter(|k| k.0 == segment).map(|k| k.1).min()
    }

    /// Inserts the parts of `bytes` that are not here yet.
    fn insert(&mut self, segment: SegmentId, offset: u32, bytes: Bytes, expect: Expect) {
        let end = offset + bytes.len() as u32;
        let mut at = offset;
        while at < end {
            if let Some((start, there)) = self.containing(segment, at) {
                at = start + there.len() as u32;
                continue;
            }
            let stop = self.next_start(segment, at).map_or(end, |s| s.min(end));
            let part = bytes.slice((at - offset) as usize..(stop - offset) as usize);
            let key = (segment, at);
            let weight = part.len() as u64 + ENTRY_OVERHEAD_BYTES;
            self.index.insert(key, part.len() as u32);
            let entries = match expect {
                Expect::Reuse => &mut self.clean,
                Expect::Stream => &mut self.streams,
            };
            for (gone, _) in entries.insert(key, part, weight) {
                self.index.remove(&gone);
            }
            at = stop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::LogId;

    fn seg(seq: u64) -> SegmentId {
        SegmentId { log: LogId::new(1), epoch: 1, seq }
    }
    fn text(cache: &DataCache, seq: u64, range: Range<u32>) -> Result<Vec<u8>, Range<u32>> {
        let mut out = Vec::new();
        cache.gather(seg(seq), range, &mut out).map(|()| out.concat())
    }

    #[test]
    fn overlapping_inserts_keep_what_is_there_and_fill_the_gaps() {
        let cache = DataCache::new(1 << 20);
        cache.insert(seg(1), 4, Bytes::from_static(b"4567"), Expect::Stream);
        cache.insert(seg(1), 0, Bytes::from_static(b"0123456789"), Expect::Reuse);
        assert_eq!(text(&cache, 1, 0..10).unwrap(), b"0123456789");
        assert_eq!(text(&cache, 1, 8..12), Err(10..12));
        assert_eq!(text(&cache, 2, 0..1), Err(0..1));
    }

    #[test]
    fn pinned_blocks_are_found_until_and_after_they_are_unpinned() {
        let cache = DataCache::new(1 << 20);
        cache.pin(seg(1), 0, Bytes::from_static(b"abc"), true);
        cache.pin(seg(1), 3, Bytes::from_static(b"def"), false);
        cache.pin(seg(17), 0, Bytes::from_static(b"xyz"), true);
        assert_eq!(text(&cache, 1, 1..5).unwrap(), b"bcde");
        cache.unpin(seg(1));
        assert_eq!(cache.counts().pinned_bytes, 3);
        assert_eq!(text(&cache, 1, 0..3).unwrap(), b"abc");
        assert_eq!(text(&cache, 1, 2..4), Err(3..4));
        assert_eq!(text(&cache, 17, 0..3).unwrap(), b"xyz");
    }

    #[test]
    fn clean_entries_are_bounded_and_pinned_ones_never_dropped() {
        let cache = DataCache::new(64 << 10);
        cache.pin(seg(16), 0, Bytes::from_static(b"keep"), true);
        cache.insert(seg(32), 0, Bytes::from(vec![7; 1000]), Expect::Reuse);
        for i in 0..1000 {
            cache.insert(seg(16 * (i + 3)), 0, Bytes::from(vec![0; 1000]), Expect::Stream);
        }
        assert!(cache.counts().clean_bytes <= (16 << 10) + 1200);
        assert_eq!(text(&cache, 32, 0..1000).unwrap(), [7; 1000]);
        for i in 0..1000 {
            cache.insert(seg(16 * (i + 2)), 1000, Bytes::from(vec![0; 1000]), Expect::Reuse);
        }
        assert!(cache.counts().clean_bytes <= 64 << 10);
        assert_eq!(text(&cache, 16, 0..4).unwrap(), b"keep");
    }
}
