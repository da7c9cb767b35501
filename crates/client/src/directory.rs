//! Directories as files of hashed entry blocks (docs/core.md#client).
//!
//! A directory with N buckets is a file whose block `b` is bucket `b`. The place of an entry is its
//! *cookie*, a keyed 63-bit hash of its name. Buckets partition the cookies into contiguous ranges,
//! by linear hashing over the cookie's **leading** bits. So
//!
//! - an insert or removal changes one bucket, and now and then a split changes one more;
//! - listing in cookie order is stable while buckets split and entries come and go: a listing
//!   resumes after a cookie, and an entry that was there all along is listed exactly once;
//! - finding a name needs only the bucket count.
//!
//! Each directory has a random hash key, so no program can make names collide. Two names with the
//! same 63 bits (probability 5e-8 in a directory of a million entries) cannot be in one directory:
//! the second is refused with ENOSPC.
//!
//! Everything here is pure. The client loads and stores the bytes of buckets.

use manager::DirectoryShape;
use siphasher::sip::SipHasher24;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use types::codec::{DecodeError, Put, Reader};
use types::{FileId, Kind};

/// Bytes that a cut needs to say where a block is, at most.
pub const BLOCK_DELTA_BYTES: u64 = 64;
/// The first cookie of a name. The cookies below it are the start of a listing, `.` and `..`.
pub const COOKIE_MIN: u64 = 3;
/// Mean bytes per bucket above which a bucket splits, or a sixteenth of a block if that is less.
/// Then no bucket outgrows its block.
const BUCKET_BYTES_TARGET: u64 = 2048;
const COOKIE_BITS: u32 = 63;
const ENTRY_LEN_MAX: u64 = 18 + 255;
const BUCKET_VERSION: u8 = 1;

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketEntry {
    /// The hash of the name, and its place in the listing.
    pub cookie: u64,
    /// The file that the name is of.
    pub id: FileId,
    /// Its type.
    pub kind: Kind,
    /// The name.
    pub name: Box<[u8]>,
}

impl BucketEntry {
    fn encoded_len(&self) -> u64 {
        8 + 8 + 1 + 1 + self.name.len() as u64
    }
}

/// The entries of one bucket, sorted by cookie.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bucket {
    entries: Vec<BucketEntry>,
}

impl Bucket {
    fn encoded_len(&self) -> u64 {
        1 + self.entries.iter().map(BucketEntry::encoded_len).sum::<u64>()
    }

    /// The bucket's block: version byte, then per entry cookie, id, kind, name length and name.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len() as usize);
        out.put_u8(BUCKET_VERSION);
        for e in &self.entries {
            out.put_u64(e.cookie);
            out.put_u64(e.id.raw());
            out.put_u8(e.kind as u8);
            out.put_u8(e.name.len() as u8);
            out.extend_from_slice(&e.name);
        }
        out
    }

    /// Decodes a bucket's block. No bytes at all (a hole) are an empty bucket.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let mut entries = Vec::new();
        if r.is_empty() {
            return Ok(Bucket { entries });
        }
        let version = r.u8("bucket version")?;
        if version != BUCKET_VERSION {
            return Err(DecodeError::Version {
                what: "directory block",
                found: version.into(),
                known: BUCKET_VERSION.into(),
            });
        }
        let mut last = 0;
        while !r.is_empty() {
            let cookie = r.u64("entry cookie")?;
            let id = FileId::new(r.u64("entry id")?);
            let kind = Kind::from_u8(r.u8("entry kind")?).ok_or(DecodeError::Invalid("entry kind"))?;
            let len = r.u8("entry name length")? as usize;
            let name = r.take(len, "entry name")?;
            if cookie <= last || cookie < COOKIE_MIN || cookie >> COOKIE_BITS != 0 || name.is_empty() {
                return Err(DecodeError::Invalid("entry order"));
            }
            last = cookie;
            entries.push(BucketEntry { cookie, id, kind, name: name.into() });
        }
        Ok(Bucket { entries })
    }

    fn find(&self, cookie: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&cookie, |e| e.cookie)
    }
}

/// Why a directory operation has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketStop {
    /// The client must load this bucket first.
    Load(u32),
    /// Another name in the directory has the same cookie.
    Collision,
    /// The bucket has no room. With a keyed hash, that would take thirty times as many names as a
    /// bucket has on average.
    Full,
}

/// The buckets of one directory that are in memory.
#[derive(Debug)]
pub struct Directory {
    block_size: u32,
    buckets: BTreeMap<u32, Bucket>,
    dirty: BTreeSet<u32>,
}

/// The cookie of a name in the directory with this shape.
fn cookie_of(shape: &DirectoryShape, name: &[u8]) -> u64 {
    let mut h = SipHasher24::new_with_keys(shape.hash_key, 0x7374_6172_6c69_6e67);
    h.write(name);
    (h.finish() >> 1).max(COOKIE_MIN)
}

/// The bucket of a cookie among `count` buckets: linear hashing over the cookie's bits, the leading
/// one first.
fn bucket_of(cookie: u64, count: u32) -> u32 {
    let level = count.ilog2();
    let reversed = (cookie << 1).reverse_bits();
    let wide = reversed & ((2u64 << level) - 1);
    let index = if wide < u64::from(count) { wide } else { wide & ((1u64 << level) - 1) };
    index as u32
}

/// The cookie after the last one that can be in `bucket` (`1 << 63` for the bucket that ends the
/// listing).
fn range_end(bucket: u32, count: u32) -> u64 {
    let level = count.ilog2();
    let split = count - (1 << level);
    let depth = if bucket < split || bucket >= 1 << level { level + 1 } else { level };
    if depth == 0 {
        return 1 << COOKIE_BITS;
    }
    let prefix = u64::from(bucket.reverse_bits() >> (32 - depth));
    (prefix + 1) << (COOKIE_BITS - depth)
}

impl Directory {
    /// A directory without any bucket in memory, in a volume with this block size in bytes.
    pub fn unloaded(block_size: u32) -> Self {
        Directory { block_size, buckets: BTreeMap::new(), dirty: BTreeSet::new() }
    }

    /// A new directory: one empty bucket, and nothing to load.
    pub fn fresh(block_size: u32) -> Self {
        Directory { block_size, buckets: BTreeMap::from([(0, Bucket::default())]), dirty: BTreeSet::new() }
    }

    /// Puts a bucket that was read from the log into memory, unless it is there already.
    pub fn loaded(&mut self, index: u32, bucket: Bucket) {
        self.buckets.entry(index).or_insert(bucket);
    }

    fn bucket(&self, index: u32) -> Result<&Bucket, BucketStop> {
        self.buckets.get(&index).ok_or(BucketStop::Load(index))
    }

    /// Finds a name.
    pub fn find(&self, shape: &DirectoryShape, name: &[u8]) -> Result<Option<&BucketEntry>, BucketStop> {
        let cookie = cookie_of(shape, name);
        let bucket = self.bucket(bucket_of(cookie, shape.buckets))?;
        Ok(bucket.find(cookie).ok().map(|i| &bucket.entries[i]).filter(|e| *e.name == *name))
    }

    /// Checks that everything that inserting `name` needs is in memory. If so,
    /// [`insert`](Self::insert) will not stop.
    pub fn can_insert(&self, shape: &DirectoryShape, name: &[u8]) -> Result<(), BucketStop> {
        let cookie = cookie_of(shape, name);
        let bucket = self.bucket(bucket_of(cookie, shape.buckets))?;
        if bucket.find(cookie).is_ok_and(|i| *bucket.entries[i].name != *name) {
            return Err(BucketStop::Collision);
        }
        if bucket.encoded_len() + ENTRY_LEN_MAX > u64::from(self.block_size) {
            return Err(BucketStop::Full);
        }
        self.bucket(shape.buckets - (1 << shape.buckets.ilog2()))?;
        Ok(())
    }

    /// Adds a name, and splits one bucket if the directory has become too full. Or gives an
    /// existing name another file, which does not change the answer of
    /// [`can_insert`](Self::can_insert) for other names. Returns how many more bytes the next cut
    /// needs, at most.
    pub fn insert(
        &mut self,
        shape: &mut DirectoryShape,
        name: &[u8],
        id: FileId,
        kind: Kind,
    ) -> Result<u64, BucketStop> {
        self.can_insert(shape, name)?;
        let cookie = cookie_of(shape, name);
        let index = bucket_of(cookie, shape.buckets);
        let bucket = self.buckets.get_mut(&index).ok_or(BucketStop::Load(index))?;
        let entry = BucketEntry { cookie, id, kind, name: name.into() };
        let len = entry.encoded_len();
        let is_new = match bucket.find(cookie) {
            Ok(i) => {
                bucket.entries[i] = entry;
                false
            }
            Err(i) => {
                shape.entries += 1;
                shape.entry_bytes += len;
                bucket.entries.insert(i, entry);
                true
            }
        };
        let mut dirtied = self.mark(index).unwrap_or(len);
        let target = BUCKET_BYTES_TARGET.min(u64::from(self.block_size) / 16);
        if is_new && shape.entry_bytes > u64::from(shape.buckets) * target && shape.buckets < u32::MAX / 2 {
            dirtied += self.split(shape)?;
        }
        Ok(dirtied)
    }

    /// Removes a name; `None` if it does not exist. Also returns how many more bytes the next cut
    /// needs, at most.
    pub fn remove(
        &mut self,
        shape: &mut DirectoryShape,
        name: &[u8],
    ) -> Result<Option<(BucketEntry, u64)>, BucketStop> {
        let cookie = cookie_of(shape, name);
        let index = bucket_of(cookie, shape.buckets);
        let bucket = self.buckets.get_mut(&index).ok_or(BucketStop::Load(index))?;
        match bucket.find(cookie) {
            Ok(i) if *bucket.entries[i].name == *name => {
                let entry = bucket.entries.remove(i);
                shape.entries -= 1;
                shape.entry_bytes -= entry.encoded_len();
                let dirtied = self.mark(index).unwrap_or(0);
                Ok(Some((entry, dirtied)))
            }
            _ => Ok(None),
        }
    }

    /// Lists a bucket as dirty, after a change. Returns the bytes that a cut needs for it, if it
    /// was not dirty before.
    fn mark(&mut self, index: u32) -> Option<u64> {
        let bucket = self.buckets.get(&index)?;
        self.dirty.insert(index).then(|| bucket.encoded_len() + BLOCK_DELTA_BYTES)
    }

    fn split(&mut self, shape: &mut DirectoryShape) -> Result<u64, BucketStop> {
        let from = shape.buckets - (1 << shape.buckets.ilog2());
        let to = shape.buckets;
        let source = self.buckets.get_mut(&from).ok_or(BucketStop::Load(from))?;
        let count = shape.buckets + 1;
        let (stay, go) =
            std::mem::take(&mut source.entries).into_iter().partition(|e| bucket_of(e.cookie, count) == from);
        source.entries = stay;
        self.buckets.insert(to, Bucket { entries: go });
        shape.buckets = count;
        Ok(self.mark(from).unwrap_or(0) + self.mark(to).unwrap_or(0))
    }

    /// All entries that are in memory.
    pub fn entries(&self) -> impl Iterator<Item = &BucketEntry> {
        self.buckets.values().flat_map(|bucket| &bucket.entries)
    }

    /// Up to `count_max` entries after `cookie`, in cookie order.
    pub fn list(&self, shape: &DirectoryShape, cookie: u64, count_max: usize) -> Result<Vec<BucketEntry>, BucketStop> {
        let mut out = Vec::new();
        let mut next = cookie.saturating_add(1).max(COOKIE_MIN);
        while next >> COOKIE_BITS == 0 && out.len() < count_max {
            let index = bucket_of(next, shape.buckets);
            let bucket = match self.bucket(index) {
                Ok(bucket) => bucket,
                // The entries so far are a good answer; the rest is loaded when the caller goes on.
                Err(_) if !out.is_empty() => break,
                Err(stop) => return Err(stop),
            };
            let start = bucket.find(next).unwrap_or_else(|i| i);
            out.extend(bucket.entries[start..].iter().take(count_max - out.len()).cloned());
            next = range_end(index, shape.buckets);
        }
        Ok(out)
    }

    /// Encodes the dirty buckets for a cut, and marks them as clean.
    pub fn take_dirty(&mut self) -> Vec<(u32, Vec<u8>)> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().filter_map(|i| self.buckets.get(&i).map(|b| (i, b.encode()))).collect()
    }

    /// True if no bucket differs from the log.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Bytes of memory that it takes, roughly.
    pub fn weight(&self) -> usize {
        self.buckets.values().map(|b| 64 + b.entries.iter().map(|e| 64 + e.name.len()).sum::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape() -> DirectoryShape {
        DirectoryShape { buckets: 1, entries: 0, entry_bytes: 0, hash_key: 42 }
    }

    /// Dirty buckets were once counted at their mean length, but more names fall into the longer
    /// ones. In a directory of some hundred thousand names, a cut did not fit into its segment, and
    /// the log broke.
    #[test]
    fn regression_what_a_change_dirties_covers_the_blocks_it_writes() {
        let (mut shape, mut directory) = (shape(), Directory::fresh(65536));
        let name = |i: u32| i.to_string().into_bytes();
        let mut counted = 0;
        for i in 0..40_000 {
            let new = directory.insert(&mut shape, &name(i), FileId::new(9), Kind::File);
            counted += new.unwrap();
            if i % 100 == 0 {
                let blocks = directory.take_dirty();
                let written: u64 = blocks.iter().map(|(_, bytes)| bytes.len() as u64 + BLOCK_DELTA_BYTES).sum();
                assert!(counted >= written, "{counted} counted, {written} written, {i} names");
                counted = 0;
            }
        }
        for i in 0..40_000 {
            counted += directory.remove(&mut shape, &name(i)).unwrap().unwrap().1;
            if i % 100 == 0 {
                let blocks = directory.take_dirty();
                let written: u64 = blocks.iter().map(|(_, bytes)| bytes.len() as u64 + BLOCK_DELTA_BYTES).sum();
                assert!(counted >= written, "{counted} counted, {written} written, {i} names removed");
                counted = 0;
            }
        }
    }

    /// Once, giving a name another file split a bucket if the directory was too full. The second
    /// half of an exchange could then need a further bucket in memory, and stopped. When it was
    /// tried again, both names had the same file, and there was nothing left to do.
    #[test]
    fn regression_two_names_that_may_be_changed_can_be_changed_one_after_the_other() {
        let (mut whole, mut shape) = (Directory::fresh(4096), shape());
        let name = |i: u64| format!("{i:0>255}").into_bytes();
        for i in 0..60 {
            whole.insert(&mut shape, &name(i), FileId::new(i), Kind::File).unwrap();
        }
        for (a, b) in (0..60).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let (mut some, mut shape) = (Directory::unloaded(4096), shape);
            while let Err(BucketStop::Load(bucket)) =
                some.can_insert(&shape, &name(a)).and_then(|()| some.can_insert(&shape, &name(b)))
            {
                some.loaded(bucket, whole.buckets[&bucket].clone());
            }
            some.insert(&mut shape, &name(a), FileId::new(b), Kind::File).unwrap();
            some.insert(&mut shape, &name(b), FileId::new(a), Kind::File).unwrap();
        }
    }

    #[test]
    fn buckets_partition_the_cookies_into_contiguous_ranges() {
        for count in 1..70u32 {
            let mut next = 0u64;
            let mut seen = BTreeSet::new();
            while next >> COOKIE_BITS == 0 {
                let b = bucket_of(next, count);
                assert!(b < count && seen.insert(b), "{count} {b}");
                let end = range_end(b, count);
                assert_eq!(bucket_of(end - 1, count), b);
                next = end;
            }
            assert_eq!(seen.len(), count as usize);
        }
    }

    #[test]
    fn listing_is_stable_while_entries_are_added() {
        let (mut d, mut s) = (Directory::fresh(65536), shape());
        for i in 0..500u64 {
            d.insert(&mut s, format!("old-{i}").as_bytes(), FileId::new(i), Kind::File).unwrap();
        }
        let (mut cookie, mut seen, mut round) = (0, BTreeSet::new(), 0);
        loop {
            let page = d.list(&s, cookie, 7).unwrap();
            let Some(last) = page.last() else { break };
            cookie = last.cookie;
            for e in page {
                if e.name.starts_with(b"old") {
                    assert!(seen.insert(e.id), "listed twice");
                }
            }
            round += 1;
            for i in 0..60 {
                d.insert(&mut s, format!("new-{round}-{i}").as_bytes(), FileId::new(9999), Kind::File).unwrap();
            }
        }
        assert_eq!(seen.len(), 500);
        assert!(s.buckets > 4);
    }

    proptest! {
        #[test]
        fn model_directory_is_a_map(ops in proptest::collection::vec((any::<bool>(), 0..200u16, any::<u64>()), 1..800)) {
            let (mut d, mut s) = (Directory::fresh(65536), shape());
            let mut model = BTreeMap::new();
            for (add, name, id) in ops {
                let name = format!("{name:0>60}").into_bytes();
                if add {
                    d.insert(&mut s, &name, FileId::new(id), Kind::File).unwrap();
                    model.insert(name, id);
                } else {
                    prop_assert_eq!(d.remove(&mut s, &name).unwrap().map(|(e, _)| e.id.raw()), model.remove(&name));
                }
                prop_assert_eq!(s.entries, model.len() as u64);
            }
            // Through the log and back.
            let mut again = Directory::unloaded(65536);
            for b in 0..s.buckets {
                let bytes = d.buckets[&b].encode();
                again.loaded(b, Bucket::decode(&bytes).unwrap());
            }
            for (name, id) in &model {
                prop_assert_eq!(again.find(&s, name).unwrap().unwrap().id.raw(), *id);
            }
            prop_assert_eq!(again.list(&s, 0, usize::MAX).unwrap().len(), model.len());
        }

        #[test]
        fn prop_bucket_decoder_survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Bucket::decode(&bytes);
        }
    }
}
