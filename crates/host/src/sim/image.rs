//! The bytes of one file, sparse, in pages that copies share.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes per page.
pub const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// A file's bytes. Missing pages are zeroes. Invariant: no non-zero byte at or after `len`.
#[derive(Clone, Default)]
pub struct DiskImage {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl DiskImage {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// `len` bytes at `offset`, or `None` if the image ends before.
    pub fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        if offset.checked_add(len as u64)? > self.len {
            return None;
        }
        let mut bytes = vec![0; len];
        for (page, within, part) in parts(offset, len) {
            if let Some(page) = self.pages.get(&page) {
                bytes[part].copy_from_slice(&page[within]);
            }
        }
        Some(bytes)
    }

    /// Puts `bytes` at `offset`, extending the image if needed.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, part) in parts(offset, bytes.len()) {
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within].copy_from_slice(&bytes[part]);
        }
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    /// Cuts or extends with zeroes.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE));
            let kept = (len % PAGE) as usize;
            if kept > 0
                && let Some(page) = self.pages.get_mut(&(len / PAGE))
            {
                Arc::make_mut(page)[kept..].fill(0);
            }
        }
        self.len = len;
    }

    /// Flips one bit, if the image reaches that far.
    pub fn flip(&mut self, offset: u64, bit: u8) {
        if let Some(byte) = self.read(offset, 1) {
            self.write(offset, &[byte[0] ^ (1 << (bit % 8))]);
        }
    }

    /// The number of pages in the page range `range` that take up space.
    pub fn pages_in(&self, range: Range<u64>) -> u64 {
        if range.is_empty() { 0 } else { self.pages.range(range).count() as u64 }
    }

    /// Uses `other`'s page wherever both have the same bytes in the byte range, to save memory.
    pub fn share(&mut self, other: &DiskImage, range: Range<u64>) {
        for (index, page) in self.pages.range_mut(range.start / PAGE..range.end.div_ceil(PAGE)) {
            if let Some(theirs) = other.pages.get(index)
                && page == theirs
            {
                *page = theirs.clone();
            }
        }
    }
}

/// Splits a byte range at pages: page index, range within the page, range within the whole.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % PAGE) as usize;
        let count = (PAGE as usize - start).min(len - done);
        done += count;
        Some((at / PAGE, start..start + count, done - count..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        SetLen(u64),
        Flip(u64, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        let offset = 0u64..20_000;
        prop_oneof![
            (offset.clone(), proptest::collection::vec(any::<u8>(), 0..9000))
                .prop_map(|(at, bytes)| Step::Write(at, bytes)),
            offset.clone().prop_map(Step::SetLen),
            (offset, any::<u8>()).prop_map(|(at, bit)| Step::Flip(at, bit)),
        ]
    }

    proptest! {
        #[test]
        fn model_image_is_a_vector_of_bytes(steps in proptest::collection::vec(step(), 0..30)) {
            let (mut image, mut model) = (DiskImage::default(), Vec::new());
            for step in steps {
                let before = image.clone();
                let model_before = model.clone();
                match step {
                    Step::Write(at, bytes) => {
                        image.write(at, &bytes);
                        if !bytes.is_empty() {
                            let (at, end) = (at as usize, at as usize + bytes.len());
                            model.resize(model.len().max(end), 0);
                            model[at..end].copy_from_slice(&bytes);
                        }
                    }
                    Step::SetLen(len) => {
                        image.set_len(len);
                        model.resize(len as usize, 0);
                    }
                    Step::Flip(at, bit) => {
                        image.flip(at, bit);
                        if let Some(byte) = model.get_mut(at as usize) {
                            *byte ^= 1 << (bit % 8);
                        }
                    }
                }
                prop_assert_eq!(image.read(0, model.len()), Some(model.clone()));
                prop_assert_eq!(image.len(), model.len() as u64);
                prop_assert_eq!(image.read(0, model.len() + 1), None);
                prop_assert_eq!(before.read(0, model_before.len()), Some(model_before), "a copy changed");
            }
        }
    }
}
