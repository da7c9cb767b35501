//! Byte buffers that begin at a disk page, so that disks can take them without a copy in between.

use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of the buffers in bytes: a page, and any disk's sector.
pub const PAGE_LEN: usize = 4096;

/// A fixed-length buffer of zeroes at the start, aligned to [`PAGE_LEN`].
pub struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the buffer owns its memory and hands out references by the ordinary borrowing rules only.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; `&AlignedBuffer` gives shared reads only.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` zeroes.
    ///
    /// # Panics
    /// When `len` is beyond what any address space has.
    pub fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), PAGE_LEN);
        let layout = layout.unwrap_or_else(|_| panic!("a buffer of {len} bytes cannot be"));
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuffer { start, layout, len }
    }

    /// The bytes, which can then be shared and sliced without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl std::ops::Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to at least `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_keep_what_is_written() {
        for len in [0, 1, 511, 4096, 1 << 20] {
            let mut buffer = AlignedBuffer::zeroed(len);
            assert!(buffer.iter().all(|b| *b == 0) && buffer.len() == len);
            buffer.fill(7);
            let bytes = buffer.freeze();
            assert_eq!(bytes.as_ptr() as usize % PAGE_LEN, 0);
            assert!(bytes.iter().all(|b| *b == 7) && bytes.len() == len);
        }
    }
}
