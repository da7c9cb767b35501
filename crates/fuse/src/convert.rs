//! Converts between the kernel's numbers, fuser's types and ours. Pure.

use fuser::{Errno, FileAttr, FileType, INodeNo, WriteFlags};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use types::{Attr, FsError, Kind, Time};
use vfs::fs::{Fallocate, OpenFlags, RenameFlags, Seek, SetTime, XattrMode};

/// The flag that the kernel sets on an open for execution (`__FMODE_EXEC` in include/linux/fs.h;
/// not in libc).
const FMODE_EXEC: i32 = 0x20;
/// The bits of a mode that are permissions and set-id bits.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// The errno for an error.
pub(crate) fn errno(error: FsError) -> Errno {
    Errno::from_i32(error.errno())
}

/// fuser's name of a kind.
pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind that mknod(2) asks for; `None` for directories, symlinks and invalid modes.
pub(crate) fn node_kind(mode: u32) -> Option<Kind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Kind::File,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFBLK => Kind::BlockDevice,
        _ => return None,
    })
}

/// Attributes for the kernel. Device numbers lose the upper half of their 64 bits; the kernel
/// itself makes only 32-bit ones.
pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.id.raw()),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.crtime),
        kind: file_type(attr.kind),
        perm: (attr.mode & MODE_BITS) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev as u32,
        blksize: attr.block_size,
        flags: 0,
    }
}

/// Attributes with only an id and a kind, for names that the kernel does not cache: `.`, `..`, and
/// id 0, which means "no such name".
pub(crate) fn bare_attr(id: u64, kind: Kind) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Converts a time for fuser; a time that fuser cannot hold becomes 1970.
fn system_time(time: Time) -> SystemTime {
    let fraction = Duration::from_nanos(u64::from(time.nsec));
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let at = if time.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    at.and_then(|t| t.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}

/// Converts a time that fuser decoded from a request. For times before 1970, fuser 0.18 subtracts
/// the nanoseconds instead of adding them; this undoes that.
fn time(at: SystemTime) -> Time {
    let (sec, d) = match at.duration_since(UNIX_EPOCH) {
        Ok(d) => (i64::try_from(d.as_secs()).unwrap_or(i64::MAX), d),
        Err(before) => (0i64.saturating_sub_unsigned(before.duration().as_secs()), before.duration()),
    };
    Time { sec, nsec: d.subsec_nanos() }
}

/// Converts a time that a program sets.
pub(crate) fn set_time(at: fuser::TimeOrNow) -> SetTime {
    match at {
        fuser::TimeOrNow::Now => SetTime::Now,
        fuser::TimeOrNow::SpecificTime(at) => SetTime::At(time(at)),
    }
}

/// Flags of an open. O_APPEND is dropped: each write says whether it appends ([`appends`]). An
/// appending handle would be wrong, because the kernel may also write back mapped pages of other
/// processes through it, and because fcntl(2) can clear O_APPEND on an open file.
pub(crate) fn open_flags(flags: i32) -> OpenFlags {
    let access = flags & libc::O_ACCMODE;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: false,
        truncate: flags & libc::O_TRUNC != 0,
        execute: flags & FMODE_EXEC != 0,
    }
}

/// True if a write goes to the end of the file. The write's offset is then the kernel's idea of the
/// end, which is wrong if other clients write too. Pages that the kernel writes back from its cache
/// keep their place.
pub(crate) fn appends(flags: i32, write: WriteFlags) -> bool {
    flags & libc::O_APPEND != 0 && !write.contains(WriteFlags::FUSE_WRITE_CACHE)
}

/// Flags of a rename; `None` for unsupported ones.
pub(crate) fn rename_flags(flags: u32) -> Option<RenameFlags> {
    match flags {
        0 => Some(RenameFlags::default()),
        libc::RENAME_NOREPLACE => Some(RenameFlags { no_replace: true, exchange: false }),
        libc::RENAME_EXCHANGE => Some(RenameFlags { no_replace: false, exchange: true }),
        _ => None,
    }
}

/// Mode of a fallocate; `None` for unsupported ones.
pub(crate) fn fallocate_mode(mode: i32) -> Option<Fallocate> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    Some(match mode {
        0 => Fallocate::Allocate,
        KEEP => Fallocate::AllocateKeepSize,
        PUNCH => Fallocate::PunchHole,
        ZERO => Fallocate::ZeroRange,
        ZERO_KEEP => Fallocate::ZeroRangeKeepSize,
        _ => return None,
    })
}

/// `whence` of an lseek that the kernel does not answer itself; `None` for any other.
pub(crate) fn seek(whence: i32) -> Option<Seek> {
    match whence {
        libc::SEEK_DATA => Some(Seek::Data),
        libc::SEEK_HOLE => Some(Seek::Hole),
        _ => None,
    }
}

/// Flags of a setxattr; `None` for both at once and for unknown ones.
pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_reach_fuser_whole() {
        let half_before = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(system_time(Time { sec: -1, nsec: 500_000_000 }), half_before);
        assert_eq!(system_time(Time { sec: 7, nsec: 9 }), UNIX_EPOCH + Duration::new(7, 9));
    }

    #[test]
    fn regression_fuser_subtracts_nanoseconds_of_times_before_1970() {
        let as_fuser_decodes = UNIX_EPOCH - Duration::new(1, 500_000_000);
        assert_eq!(time(as_fuser_decodes), Time { sec: -1, nsec: 500_000_000 });
        assert_eq!(time(UNIX_EPOCH + Duration::new(1, 5)), Time { sec: 1, nsec: 5 });
    }

    #[test]
    fn absurd_times_do_not_panic() {
        for sec in [i64::MIN, i64::MIN + 1, i64::MAX] {
            for nsec in [0, 999_999_999] {
                time(system_time(Time { sec, nsec }));
            }
        }
    }

    #[test]
    fn open_flags_are_decoded_without_append() {
        let flags = open_flags(libc::O_RDONLY | FMODE_EXEC);
        assert_eq!(flags, OpenFlags { read: true, execute: true, ..OpenFlags::default() });
        let flags = open_flags(libc::O_RDWR | libc::O_TRUNC | libc::O_APPEND);
        assert_eq!(flags, OpenFlags { read: true, write: true, truncate: true, ..OpenFlags::default() });
    }

    #[test]
    fn writes_append_unless_the_page_cache_makes_them() {
        assert!(appends(libc::O_APPEND | libc::O_RDWR, WriteFlags::FUSE_WRITE_LOCKOWNER));
        assert!(!appends(libc::O_APPEND, WriteFlags::FUSE_WRITE_CACHE));
        assert!(!appends(libc::O_RDWR, WriteFlags::empty()));
    }

    #[test]
    fn unsupported_flags_are_refused() {
        assert_eq!(rename_flags(libc::RENAME_WHITEOUT), None);
        assert_eq!(rename_flags(libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE), None);
        assert_eq!(fallocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE), None);
        assert_eq!(seek(libc::SEEK_END), None);
        assert_eq!(xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE), None);
        assert_eq!(node_kind(libc::S_IFDIR), None);
    }
}
