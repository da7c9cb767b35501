//! A file's identity, which no change of its name changes: its device, and the handle that the
//! local file system gives it (inode number and generation). Where the file system gives no handle,
//! the inode number and the time of birth take its place.
//!
//! Homes keep identities over restarts, with a [`VolumeMark`] in place of the device. For files of
//! a Starling file system, these identities are the index numbers.

use crate::stat;
use crate::volume::{VOLUME_LEN_MAX, VolumeMark};
use bytes::Bytes;
use rustix::fs::{AtFlags, Statx};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Longest handle that Linux has.
const HANDLE_LEN_MAX: usize = libc::MAX_HANDLE_SZ as usize;
/// The first byte of a handle or of its substitute: what the rest of [`FileIdentity::handle`] is.
/// These are on the disks of homes.
const HANDLE: u8 = 0;
const BIRTH: u8 = 1;
const NUMBER: u8 = 2;

/// Longest [lasting](Identity::lasting) identity, in bytes: the volume, the first byte, and the
/// handle with its kind.
pub const IDENTITY_LEN_MAX: usize = VOLUME_LEN_MAX + 1 + 4 + HANDLE_LEN_MAX;

/// A file's identity. Equal for the same file under all its names, as long as the file system stays
/// mounted.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileIdentity {
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

impl FileIdentity {
    /// Returns the identity of an open file, which `stat` describes.
    fn of(file: BorrowedFd, stat: &Statx) -> rustix::io::Result<FileIdentity> {
        let handle = match handle(file) {
            Ok(handle) => handle,
            Err(Errno::OPNOTSUPP | Errno::OVERFLOW | Errno::NOSYS | Errno::PERM) => birth(stat),
            // A failure that will pass must not give the file another identity.
            Err(e) => return Err(e),
        };
        Ok(FileIdentity { device: (stat.stx_dev_major, stat.stx_dev_minor), handle: handle.into() })
    }

    /// Returns the identity of an open file, with its attributes.
    pub fn seen(file: BorrowedFd) -> rustix::io::Result<(FileIdentity, Statx)> {
        let stat = stat::stat(file)?;
        Ok((FileIdentity::of(file, &stat)?, stat))
    }

    /// True if both are on one device.
    pub fn is_on_device_of(&self, other: &FileIdentity) -> bool {
        self.device == other.device
    }

    /// Encodes the identity for comparison with those that other processes have kept; see
    /// [`LocalDir::identity`](crate::LocalDir::identity).
    pub fn lasting(&self, volume: &VolumeMark, stat: &Statx) -> Bytes {
        // Handles of file systems in user space are valid for one mount only.
        let number = [&[NUMBER][..], &stat.stx_ino.to_le_bytes()].concat();
        let file = if matches!(volume, VolumeMark::Starling(_)) { &number } else { &self.handle[..] };
        [&volume.encode()[..], file].concat().into()
    }
}

fn birth(stat: &Statx) -> Vec<u8> {
    let (ino, birth) = (stat.stx_ino, stat.stx_btime);
    let mut own = vec![BIRTH];
    own.extend_from_slice(&ino.to_le_bytes());
    own.extend_from_slice(&birth.tv_sec.to_le_bytes());
    own.extend_from_slice(&birth.tv_nsec.to_le_bytes());
    own
}

fn handle(file: BorrowedFd) -> rustix::io::Result<Vec<u8>> {
    let mut raw = RawHandle { len: HANDLE_LEN_MAX as u32, kind: 0, bytes: [0; HANDLE_LEN_MAX] };
    let mut mount = 0;
    let empty = c"".as_ptr();
    let flags = AtFlags::EMPTY_PATH.bits() as i32;
    // SAFETY: `raw` is laid out as `struct file_handle` with room for `len` bytes; the other
    // pointers are to live values.
    let result = unsafe { libc::name_to_handle_at(file.as_raw_fd(), empty, (&raw mut raw).cast(), &mut mount, flags) };
    if result != 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let mut handle = vec![HANDLE];
    handle.extend_from_slice(&raw.kind.to_le_bytes());
    handle.extend_from_slice(&raw.bytes[..(raw.len as usize).min(HANDLE_LEN_MAX)]);
    Ok(handle)
}
