//! Attributes and errors of the local file system in Starling's terms.

use rustix::fs::{AtFlags, FileType, Mode, Statx, StatxFlags, StatxTimestamp, makedev};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use types::{Attr, FileId, FsError, Kind, Time};

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): ids of mounts that are never used again.
const MOUNT_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Returns all attributes of an open file.
pub fn stat(file: BorrowedFd) -> rustix::io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | MOUNT_UNIQUE;
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted)
}

/// Returns the mount that a file is on; `None` if the kernel may give its id to another mount
/// later.
pub fn mount(stat: &Statx) -> Option<u64> {
    StatxFlags::from_bits_retain(stat.stx_mask).contains(MOUNT_UNIQUE).then_some(stat.stx_mnt_id)
}

/// True if an open file is on a FUSE file system.
pub fn is_in_user_space(file: BorrowedFd) -> rustix::io::Result<bool> {
    const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
    Ok(rustix::fs::fstatfs(file)?.f_type as u64 == FUSE_SUPER_MAGIC)
}

/// Converts the attributes of the file with this id.
pub fn attributes(id: FileId, stat: &Statx) -> Attr {
    let mode = u32::from(stat.stx_mode);
    Attr {
        id,
        kind: kind_of(stat),
        mode: Mode::from_raw_mode(mode).as_raw_mode() & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        block_size: stat.stx_blksize,
        atime: time(&stat.stx_atime),
        mtime: time(&stat.stx_mtime),
        ctime: time(&stat.stx_ctime),
        crtime: time(&stat.stx_btime),
    }
}

/// Returns the kind of the file that `stat` describes.
pub fn kind_of(stat: &Statx) -> Kind {
    kind(FileType::from_raw_mode(stat.stx_mode.into()))
}

/// Converts the kind of a file.
pub fn kind(of: FileType) -> Kind {
    match of {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    }
}

fn time(time: &StatxTimestamp) -> Time {
    Time { sec: time.tv_sec, nsec: time.tv_nsec }
}

/// Converts an error of the kernel.
pub fn error(errno: Errno) -> FsError {
    let known = FsError::ALL.iter().find(|e| e.errno() == errno.raw_os_error());
    known.copied().unwrap_or(match errno {
        // A quota is used up; this is the nearest error that callers know.
        Errno::DQUOT => FsError::NoSpace,
        Errno::TXTBSY => FsError::Busy,
        Errno::NOSYS | Errno::NOTTY => FsError::NotSupported,
        _ => FsError::Io,
    })
}

/// True if a lookup fails with this error when a name no longer leads to the same file.
pub fn leads_elsewhere(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
}
