//! Byte buffers that begin at a disk page, so that disks can take them without a copy in between.

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of the buffers in bytes: a page, and any disk's sector.
pub const PAGE_LEN: usize = 4096;

/// A buffer that does not grow, aligned to [`PAGE_LEN`].
pub struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
    /// Bytes that have a value.
    len: usize,
    len_max: usize,
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
        // SAFETY: the layout's size is not zero.
        let (start, layout) = Self::allocated(len, |layout| unsafe { alloc_zeroed(layout) });
        AlignedBuffer { start, layout, len, len_max: len }
    }

    /// Empty, with room for `len_max` bytes, which come in through [`BufMut`].
    ///
    /// # Panics
    /// When `len_max` is beyond what any address space has.
    pub fn with_room(len_max: usize) -> Self {
        // SAFETY: the layout's size is not zero.
        let (start, layout) = Self::allocated(len_max, |layout| unsafe { alloc(layout) });
        AlignedBuffer { start, layout, len: 0, len_max }
    }

    fn allocated(len: usize, allocate: impl FnOnce(Layout) -> *mut u8) -> (NonNull<u8>, Layout) {
        let layout = Layout::from_size_align(len.max(1), PAGE_LEN);
        let layout = layout.unwrap_or_else(|_| panic!("a buffer of {len} bytes cannot be"));
        let Some(start) = NonNull::new(allocate(layout)) else { handle_alloc_error(layout) };
        (start, layout)
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

// SAFETY: `chunk_mut` is the memory behind the bytes that have a value, `remaining_mut` its length, and `advance_mut` refuses more.
unsafe impl BufMut for AlignedBuffer {
    fn remaining_mut(&self) -> usize {
        self.len_max - self.len
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.remaining_mut(), "beyond the buffer's end");
        self.len += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        // SAFETY: the memory from `start + len` on for `remaining_mut` bytes belongs to this buffer and is borrowed mutably.
        unsafe { UninitSlice::from_raw_parts_mut(self.start.as_ptr().add(self.len), self.remaining_mut()) }
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

    #[test]
    fn buffers_with_room_have_what_was_put_in_and_take_no_more() {
        for len in [0, 1, 4096, 10_000] {
            let mut buffer = AlignedBuffer::with_room(len);
            assert_eq!((buffer.len(), buffer.remaining_mut()), (0, len));
            let source: Vec<u8> = (0..len).map(|i| i as u8).collect();
            for piece in source.chunks(999) {
                buffer.put_slice(piece);
            }
            assert_eq!((&buffer[..], buffer.remaining_mut()), (&source[..], 0));
            assert!(std::panic::catch_unwind(move || buffer.put_u8(1)).is_err());
        }
    }
}
