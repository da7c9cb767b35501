//! What a file is, whatever its name: its device, and the handle that the local file system gives it (inode number and generation), or
//! where it gives none, inode number and time of birth.

use rustix::fs::{AtFlags, Statx};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Longest handle that Linux has.
const HANDLE_LEN_MAX: usize = libc::MAX_HANDLE_SZ as usize;

/// See the module's header.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Identity {
    device: (u32, u32),
    handle: Box<[u8]>,
}

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_LEN_MAX],
}

impl Identity {
    /// Of the open file that `stat` was told of.
    pub fn of(file: BorrowedFd, stat: &Statx) -> Identity {
        let handle = handle(file).unwrap_or_else(|_| {
            let birth = stat.stx_btime;
            [stat.stx_ino.to_le_bytes(), birth.tv_sec.to_le_bytes(), u64::from(birth.tv_nsec).to_le_bytes()].concat()
        });
        Identity { device: (stat.stx_dev_major, stat.stx_dev_minor), handle: handle.into() }
    }
}

fn handle(file: BorrowedFd) -> io::Result<Vec<u8>> {
    let mut raw = RawHandle { len: HANDLE_LEN_MAX as u32, kind: 0, bytes: [0; HANDLE_LEN_MAX] };
    let mut mount = 0;
    let empty = c"".as_ptr();
    let flags = AtFlags::EMPTY_PATH.bits() as i32;
    // SAFETY: `raw` is laid out as `struct file_handle` with room for `len` bytes; the other pointers are to live values.
    let result = unsafe { libc::name_to_handle_at(file.as_raw_fd(), empty, (&raw mut raw).cast(), &mut mount, flags) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut handle = raw.kind.to_le_bytes().to_vec();
    handle.extend_from_slice(&raw.bytes[..(raw.len as usize).min(HANDLE_LEN_MAX)]);
    Ok(handle)
}
