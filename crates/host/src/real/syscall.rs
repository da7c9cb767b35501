//! The system calls that `std` does not wrap. All `unsafe` code of this crate is here.

use crate::DiskSpace;
use bytes::{BufMut, Bytes};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::time::Duration;

/// Most pieces that Linux accepts in one vectored call.
const PIECES_PER_CALL_MAX: usize = 1024;

/// The type that statfs(2) gives for FUSE file systems.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// 64 random bits from the kernel.
pub fn random_u64() -> io::Result<u64> {
    let mut seed = [0u8; 8];
    retry_interrupted(|| {
        // SAFETY: the pointer and length describe `seed`, which outlives the call.
        unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) }
    })?;
    Ok(u64::from_ne_bytes(seed))
}

/// Time since the system was started, including time in which it was suspended.
pub fn boot_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that outlives the call. Linux has this clock since
    // 2.6.39, so it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Makes all changes on the file system of an open file durable. `Unsupported` for FUSE: syncfs(2)
/// does not reach such file systems, yet reports success.
pub fn sync_all(file: &File) -> io::Result<()> {
    // SAFETY: zeroes are a valid statfs, and the pointer is to a statfs that outlives the call.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    retry_interrupted(|| unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) } as isize)?;
    if about.f_type as i64 == FUSE_SUPER_MAGIC {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: the descriptor is open.
    retry_interrupted(|| unsafe { libc::syncfs(file.as_raw_fd()) } as isize).map(drop)
}

/// How a read treats bytes that are not in the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Waits for the disk.
    ForDisk,
    /// Stops before them.
    Never,
}

/// A buffer to which reads append.
pub trait Fill: BufMut + std::ops::Deref<Target = [u8]> {}

impl<T: BufMut + std::ops::Deref<Target = [u8]>> Fill for T {}

/// Reads from `offset` on into `buffer` until it has `len` bytes, the file ends, or (with
/// [`Wait::Never`]) the next byte is not in memory. Bytes that `buffer` already has count as read,
/// and it must have room for the rest. `WouldBlock` if `Wait::Never` got nothing.
pub fn read(file: &File, buffer: &mut impl Fill, offset: u64, len: usize, wait: Wait) -> io::Result<()> {
    while buffer.len() < len && read_some(file, buffer, offset, len, wait)? > 0 {}
    Ok(())
}

/// As [`read`], but one system call; returns how many bytes it got.
pub fn read_some(file: &File, buffer: &mut impl Fill, offset: u64, len: usize, wait: Wait) -> io::Result<usize> {
    let flags = if wait == Wait::Never { libc::RWF_NOWAIT } else { 0 };
    let position = file_offset(offset, buffer.len())?;
    let want = len - buffer.len();
    let spare = buffer.chunk_mut();
    let want = want.min(spare.len());
    let piece = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: want };
    let got = retry_interrupted(|| {
        // SAFETY: `piece` describes `want` writable bytes of `buffer`'s spare capacity, borrowed
        // for the whole call; the kernel only writes there.
        unsafe { libc::preadv2(file.as_raw_fd(), &piece, 1, position, flags) }
    })?;
    // SAFETY: the kernel initialised the `got` bytes after the old length, and `got <= want <= `
    // spare capacity.
    unsafe { buffer.advance_mut(got) };
    Ok(got)
}

/// Writes all `pieces`, one after the other, from `offset` on.
pub fn write_all(file: &File, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
    let mut written = 0;
    let mut next = 0;
    // Bytes of `pieces[next]` that a short write has already taken.
    let mut skip = 0;
    let mut vector = Vec::with_capacity(pieces.len().min(PIECES_PER_CALL_MAX));
    loop {
        while next < pieces.len() && skip == pieces[next].len() {
            (next, skip) = (next + 1, 0);
        }
        if next == pieces.len() {
            return Ok(());
        }
        vector.clear();
        for (index, piece) in pieces[next..].iter().take(PIECES_PER_CALL_MAX).enumerate() {
            let piece = if index == 0 { &piece[skip..] } else { &piece[..] };
            vector.push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
        }
        let position = file_offset(offset, written)?;
        let mut put = retry_interrupted(|| {
            // SAFETY: each element of `vector` describes live bytes of `pieces`, which the kernel
            // only reads.
            unsafe { libc::pwritev(file.as_raw_fd(), vector.as_ptr(), vector.len() as libc::c_int, position) }
        })?;
        if put == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        written += put;
        while put > 0 {
            let taken = put.min(pieces[next].len() - skip);
            put -= taken;
            skip += taken;
            if skip == pieces[next].len() {
                (next, skip) = (next + 1, 0);
            }
        }
    }
}

/// Reserves space for the first `len` bytes and extends the file to `len`; if the file system
/// cannot reserve, only extends it.
pub fn allocate(file: &File, len: u64) -> io::Result<()> {
    let size = file_offset(len, 0)?;
    if size == 0 {
        return Ok(());
    }
    let result = retry_interrupted(|| {
        // SAFETY: no memory is passed.
        unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) as isize }
    });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            if file.metadata()?.len() < len {
                file.set_len(len)?;
            }
            Ok(())
        }
        other => other.map(|_| ()),
    }
}

/// Size and free space, as an unprivileged process may use it, of the file system of `file`.
pub fn space(file: &File) -> io::Result<DiskSpace> {
    // SAFETY: `statvfs` is plain data, for which all zeroes is a valid value.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    retry_interrupted(|| {
        // SAFETY: `stats` is a live, writable `statvfs`.
        unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stats) as isize }
    })?;
    Ok(DiskSpace {
        total_bytes: stats.f_blocks * stats.f_frsize,
        free_bytes: stats.f_bavail * stats.f_frsize,
        device: file.metadata()?.dev() ^ boot_number(),
    })
}

/// Identifies this boot of this machine: device numbers mean nothing elsewhere.
fn boot_number() -> u64 {
    static NUMBER: LazyLock<u64> = LazyLock::new(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    });
    *NUMBER
}

/// The unit of offsets and lengths for reads that bypass the page cache, in bytes; `None` if the
/// kernel does not say, or has no such reads.
pub fn direct_unit(file: &File) -> Option<u32> {
    // SAFETY: `statx` is plain data, for which all zeroes is a valid value.
    let mut stats: libc::statx = unsafe { std::mem::zeroed() };
    retry_interrupted(|| {
        let (empty, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
        // SAFETY: the path is a C string, and `stats` a live, writable `statx`.
        unsafe { libc::statx(file.as_raw_fd(), empty, flags, libc::STATX_DIOALIGN, &mut stats) as isize }
    })
    .ok()?;
    let said = stats.stx_mask & libc::STATX_DIOALIGN != 0 && stats.stx_dio_offset_align > 0;
    said.then_some(stats.stx_dio_offset_align)
}

fn file_offset(offset: u64, more: usize) -> io::Result<libc::off_t> {
    let sum = offset.checked_add(more as u64).and_then(|sum| libc::off_t::try_from(sum).ok());
    sum.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Repeats a call while a signal interrupts it; -1 becomes the error.
fn retry_interrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(result) = usize::try_from(call()) {
            return Ok(result);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
