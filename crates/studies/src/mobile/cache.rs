//! The client's cache of files.

use super::{Parameters, Unit};
use host::{Random, SplitMix64};
use policy::replacement::Shelf;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// A block of a file, or all of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub file: u32,
    /// The block; [`WHOLE`] means the whole file.
    index: u64,
}

const WHOLE: u64 = u64::MAX;

impl Key {
    pub fn whole(file: u32) -> Key {
        Key { file, index: WHOLE }
    }

    /// All units of a file.
    pub fn all_of(file: u32) -> RangeInclusive<Key> {
        Key { file, index: 0 }..=Key::whole(file)
    }
}

/// The units of files: blocks or whole files.
#[derive(Clone, Debug)]
pub(super) struct Units {
    pub block_bytes: u64,
    /// By file, whether its unit is the whole file.
    is_whole: Arc<[bool]>,
}

impl Units {
    /// The units of files with these final sizes, over this link.
    pub fn new(of: &Parameters, most_bytes: impl Iterator<Item = u64>) -> Units {
        let is_whole = most_bytes.map(|bytes| match of.unit {
            Unit::File => true,
            Unit::Block => false,
            Unit::Auto => policy::unit::is_whole(bytes, of.link.bytes_per_second()),
        });
        Units { block_bytes: of.block_bytes, is_whole: is_whole.collect() }
    }

    /// The same, with all files whole.
    pub fn whole(&self) -> Units {
        Units { is_whole: self.is_whole.iter().map(|_| true).collect(), ..*self }
    }

    /// The units that contain these bytes.
    pub fn of(&self, file: u32, offset: u64, len: u64) -> impl Iterator<Item = Key> + use<> {
        let indices = match self.is_whole.get(file as usize) {
            Some(false) if len > 0 => {
                offset / self.block_bytes..(offset.saturating_add(len)).div_ceil(self.block_bytes)
            }
            Some(false) => 0..0,
            _ => WHOLE..WHOLE,
        };
        let whole = (indices.start == WHOLE).then_some(Key::whole(file));
        indices.map(move |index| Key { file, index }).chain(whole)
    }

    /// The bytes of a unit when its file has this size.
    pub fn bytes(&self, key: Key, size: u64) -> u64 {
        let Range { start, end } = self.range(key);
        end.min(size).saturating_sub(start)
    }

    /// Its range in the file.
    pub fn range(&self, key: Key) -> Range<u64> {
        if key.index == WHOLE {
            return 0..u64::MAX;
        }
        let start = key.index.saturating_mul(self.block_bytes);
        start..start.saturating_add(self.block_bytes)
    }
}

/// The cached units, besides what is not home yet.
pub(super) struct Cache {
    shelf: Shelf<Key>,
    random: SplitMix64,
}

impl Cache {
    pub fn new(of: &Parameters) -> Cache {
        Cache { shelf: Shelf::new(of.replacement, of.cache_bytes), random: SplitMix64::new(of.seed) }
    }

    /// True if the unit is cached; marks it as used.
    pub fn touch(&mut self, key: Key) -> bool {
        self.shelf.touch(key)
    }

    /// Caches a unit, and marks it as used, if it fits.
    pub fn put(&mut self, key: Key, bytes: u64) {
        let Cache { shelf, random } = self;
        shelf.put(key, bytes, || random.next_u64());
    }

    /// Drops a file.
    pub fn forget(&mut self, file: u32) {
        self.shelf.remove_range(Key::all_of(file));
    }

    pub fn capacity(&self) -> u64 {
        self.shelf.capacity()
    }

    pub fn bytes(&self) -> u64 {
        self.shelf.weight()
    }

    /// Splits cached files into these units.
    pub fn split(self, units: &Units) -> Cache {
        let split = |key: Key, bytes| {
            let units = units.clone();
            units.of(key.file, 0, bytes).map(move |key| (key, units.bytes(key, bytes)))
        };
        Cache { shelf: self.shelf.split(split), random: self.random }
    }
}
