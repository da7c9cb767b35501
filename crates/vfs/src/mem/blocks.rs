//! A file's contents: sparse, in blocks, cheap to clone.
//!
//! A block that was ever written is data until all of it is punched out or cut off. Blocks never
//! written are holes and take no memory. Invariant: stored bytes at or beyond the size are zeroes,
//! so an extension reads as zeroes.

use crate::fs::Seek;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contents of one file.
#[derive(Clone)]
pub(super) struct Blocks {
    block_size: u64,
    size: u64,
    /// At most `block_size` bytes each; missing bytes at a block's end are zero. Clones share them.
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Blocks {
    pub(super) fn new(block_size: u64) -> Self {
        Blocks { block_size, size: 0, blocks: BTreeMap::new() }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of data: all blocks, the last one only up to the end of the file.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.blocks.keys().map(|&b| self.block_size.min(self.size - b * self.block_size)).sum()
    }

    /// The bytes of `offset .. offset + len` that lie within the file.
    pub(super) fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return Vec::new();
        }
        let mut out = vec![0; (end - offset) as usize];
        for (&index, block) in self.blocks.range(offset / self.block_size..end.div_ceil(self.block_size)) {
            let start = index * self.block_size;
            let (from, to) = (offset.max(start), end.min(start + block.len() as u64));
            if from < to {
                let piece = &block[(from - start) as usize..(to - start) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(piece);
            }
        }
        out
    }

    /// Writes, extending the file if needed. The caller keeps the end within the largest file size.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % self.block_size) as usize;
            let (piece, tail) = rest.split_at(rest.len().min(self.block_size as usize - within));
            let block = Arc::make_mut(self.blocks.entry(at / self.block_size).or_default());
            if block.len() < within + piece.len() {
                block.resize(within + piece.len(), 0);
            }
            block[within..within + piece.len()].copy_from_slice(piece);
            at += piece.len() as u64;
            rest = tail;
        }
        if !data.is_empty() {
            self.size = self.size.max(at);
        }
    }

    /// Makes `start .. end` read as zeroes. Blocks that are covered whole become holes; for the
    /// last block, its part within the file counts as whole. The size stays.
    pub(super) fn zero(&mut self, start: u64, end: u64) {
        let (first, last) = (start / self.block_size, end.div_ceil(self.block_size));
        let touched: Vec<u64> = self.blocks.range(first..last.max(first)).map(|(&i, _)| i).collect();
        for index in touched {
            let block_start = index * self.block_size;
            if start <= block_start && (block_start + self.block_size).min(self.size) <= end {
                self.blocks.remove(&index);
            } else if let Some(block) = self.blocks.get_mut(&index) {
                let block = Arc::make_mut(block);
                let from = start.saturating_sub(block_start).min(block.len() as u64) as usize;
                let to = (end - block_start).min(block.len() as u64) as usize;
                block[from..to].fill(0);
            }
        }
    }

    /// Cuts or extends; an extension is a hole.
    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.blocks.split_off(&size.div_ceil(self.block_size));
            self.zero(size, size.next_multiple_of(self.block_size));
        }
        self.size = size;
    }

    /// The next data or hole at or after `offset`; `None` at or beyond the end, or if no data
    /// follows.
    pub(super) fn seek(&self, offset: u64, whence: Seek) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut index = offset / self.block_size;
        match whence {
            Seek::Data => {
                let (&data, _) = self.blocks.range(index..).next()?;
                Some(offset.max(data * self.block_size))
            }
            Seek::Hole => {
                while self.blocks.contains_key(&index) {
                    index += 1;
                }
                Some(offset.max(index * self.block_size).min(self.size))
            }
        }
    }

    /// Start and bytes of all data, in order.
    pub(super) fn data(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.blocks.iter().map(|(&index, block)| (index * self.block_size, block.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn far_offsets_take_one_block() {
        let mut b = Blocks::new(4096);
        b.write((1 << 62) + 5, b"x");
        assert_eq!((b.size(), b.stored_bytes()), ((1 << 62) + 6, 6));
        assert_eq!(b.seek(0, Seek::Data), Some(1 << 62));
        assert_eq!(b.read(1 << 62, 100), b"\0\0\0\0\0x");
    }

    proptest! {
        #[test]
        fn model_blocks_read_like_a_vector(steps in proptest::collection::vec((0u8..4, 0u64..40, 0u64..20), 0..30)) {
            let mut b = Blocks::new(8);
            let mut v: Vec<u8> = Vec::new();
            for (i, (op, at, len)) in steps.into_iter().enumerate() {
                let end = (at + len) as usize;
                match op {
                    0 => {
                        b.write(at, &vec![i as u8 + 1; len as usize]);
                        if len > 0 {
                            v.resize(v.len().max(end), 0);
                            v[at as usize..end].fill(i as u8 + 1);
                        }
                    }
                    1 => {
                        b.zero(at, at + len);
                        let end = end.min(v.len());
                        v[(at as usize).min(end)..end].fill(0);
                    }
                    _ => {
                        b.set_size(at);
                        v.resize(at as usize, 0);
                    }
                }
                prop_assert_eq!(b.read(0, 1000), v.clone());
                prop_assert_eq!(b.size(), v.len() as u64);
                for offset in 0..v.len() as u64 {
                    if let Some(data) = b.seek(offset, Seek::Data) {
                        prop_assert!(v[offset as usize..data as usize].iter().all(|&x| x == 0));
                        prop_assert!(data < v.len() as u64);
                    }
                    let hole = b.seek(offset, Seek::Hole).unwrap();
                    prop_assert!(offset <= hole && hole <= v.len() as u64);
                    prop_assert!(hole == v.len() as u64 || hole == offset || hole.is_multiple_of(8));
                }
            }
        }
    }
}
