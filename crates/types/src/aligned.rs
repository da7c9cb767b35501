//! Byte buffers that begin at a disk page, so that disks can take them without a copy in between.
//!
//! When a large buffer is dropped, its memory is kept for the next one: for fresh memory the kernel
//! would have to zero pages, which costs as much as filling them. At most [`KEPT_BYTES_MAX`] are
//! kept.

use bytes::buf::UninitSlice;
use bytes::{BufMut, Bytes};
use parking_lot::Mutex;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Alignment of the buffers in bytes: a page, and any disk's sector.
pub const PAGE_LEN: usize = 4096;
/// Memory of at least this many bytes is kept. Less is cheap to get anew.
const LARGE_LEN: usize = 64 << 10;
/// Most bytes that are kept for later buffers. More saves more zeroing and holds more memory.
const KEPT_BYTES_MAX: usize = 24 << 20;

/// Memory of dropped buffers.
static KEPT: Mutex<Kept> = Mutex::new(Kept { waiting: VecDeque::new(), bytes: 0 });

/// A buffer that does not grow, aligned to [`PAGE_LEN`].
pub struct AlignedBuffer {
    start: NonNull<u8>,
    /// The layout of all memory at `start`, which may be more than `len_max`.
    layout: Layout,
    /// Bytes that have a value.
    len: usize,
    /// Bytes that fit.
    len_max: usize,
}

// SAFETY: the buffer owns its memory and hands out references by the ordinary borrowing rules only.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; `&AlignedBuffer` gives shared reads only.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer with `len` zeroes.
    ///
    /// # Panics
    /// If no address space has `len` bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::with_room(len);
        buffer.put_bytes(0, len);
        buffer
    }

    /// An empty buffer with room for `len_max` bytes, which come in through [`BufMut`].
    ///
    /// # Panics
    /// If no address space has `len_max` bytes.
    pub fn with_room(len_max: usize) -> Self {
        let kept = if len_max >= LARGE_LEN { KEPT.lock().take(len_max) } else { None };
        let memory = ManuallyDrop::new(kept.unwrap_or_else(|| Memory::of(len_max)));
        AlignedBuffer { start: memory.start, layout: memory.layout, len: 0, len_max }
    }

    /// The bytes, which can then be shared and sliced without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        let memory = Memory { start: self.start, layout: self.layout };
        if memory.layout.size() >= LARGE_LEN {
            let gone = KEPT.lock().put(memory);
            drop(gone);
        }
    }
}

/// Memory that no buffer uses. It is freed when dropped.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a `Memory` owns its memory, and nothing else refers to it.
unsafe impl Send for Memory {}

impl Memory {
    /// Gets `len` bytes from the allocator. They may have any value.
    fn of(len: usize) -> Memory {
        let layout = Layout::from_size_align(len.max(1), PAGE_LEN);
        let layout = layout.unwrap_or_else(|_| panic!("no address space has {len} bytes for a buffer"));
        // SAFETY: the layout's size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        Memory { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not freed before.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory of dropped buffers, in the order in which they were dropped.
struct Kept {
    waiting: VecDeque<Memory>,
    bytes: usize,
}

impl Kept {
    /// Takes memory for `len` bytes that is at most a quarter longer. The latest dropped comes
    /// first.
    fn take(&mut self, len: usize) -> Option<Memory> {
        let fits = |memory: &Memory| (len..=len + len / 4).contains(&memory.layout.size());
        let memory = self.waiting.remove(self.waiting.iter().rposition(fits)?)?;
        self.bytes -= memory.layout.size();
        Some(memory)
    }

    /// Keeps `memory`, and returns the oldest memory that no longer fits.
    fn put(&mut self, memory: Memory) -> Vec<Memory> {
        let mut gone = Vec::new();
        self.bytes += memory.layout.size();
        self.waiting.push_back(memory);
        while self.bytes > KEPT_BYTES_MAX
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.bytes -= oldest.layout.size();
            gone.push(oldest);
        }
        gone
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

// SAFETY: `chunk_mut` is the memory behind the bytes that have a value, `remaining_mut` its length,
// and `advance_mut` refuses more.
unsafe impl BufMut for AlignedBuffer {
    fn remaining_mut(&self) -> usize {
        self.len_max - self.len
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.remaining_mut(), "beyond the buffer's end");
        self.len += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        // SAFETY: the memory from `start + len` on for `remaining_mut` bytes belongs to this buffer
        // and is borrowed mutably.
        unsafe { UninitSlice::from_raw_parts_mut(self.start.as_ptr().add(self.len), self.remaining_mut()) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
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

    #[test]
    fn memory_is_used_again_only_where_it_fits_and_little_of_it_waits() {
        let memory = |len| Memory::of(len);
        let mut kept = Kept { waiting: VecDeque::new(), bytes: 0 };
        assert!(kept.put(memory(1 << 20)).is_empty() && kept.put(memory(100_000)).is_empty());
        assert!(kept.take(200_000).is_none() && kept.take(70_000).is_none());
        assert_eq!(kept.take(90_000).map(|m| m.layout.size()), Some(100_000));
        assert_eq!(kept.take(1 << 20).map(|m| m.layout.size()), Some(1 << 20));
        assert_eq!((kept.waiting.len(), kept.bytes), (0, 0));
        for _ in 0..100 {
            kept.put(memory(1 << 20));
        }
        assert_eq!((kept.waiting.len(), kept.bytes), (24, 24 << 20));
        assert_eq!(kept.put(memory(KEPT_BYTES_MAX + 1)).len(), 25);
    }

    #[test]
    fn buffers_of_kept_memory_never_share_it() {
        let mut held = Vec::new();
        for round in 0..40u8 {
            for len in [70_000, 300_000, 1_500_000] {
                let mut buffer = AlignedBuffer::with_room(len);
                buffer.put_bytes(round, len);
                assert!(AlignedBuffer::zeroed(len).iter().all(|b| *b == 0));
                held.push((round, buffer.freeze()));
            }
            if round % 3 == 0 {
                held.drain(..held.len() / 2);
            }
            assert!(held.iter().all(|(round, bytes)| bytes.iter().all(|b| b == round)));
        }
    }
}
