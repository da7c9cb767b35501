//! Attributes as applications see them.

use crate::ids::FileId;

/// Wall-clock time: seconds and nanoseconds since 1970, UTC; seconds may be negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

/// What a directory entry names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Unix socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

impl Kind {
    /// From its stored number.
    pub fn from_u8(v: u8) -> Option<Kind> {
        Some(match v {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            4 => Kind::Fifo,
            5 => Kind::Socket,
            6 => Kind::CharDevice,
            7 => Kind::BlockDevice,
            _ => return None,
        })
    }
}

/// What stat(2) shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Identity, also the inode number.
    pub id: FileId,
    /// Type.
    pub kind: Kind,
    /// The lower twelve bits of st_mode: permissions, set-id, sticky.
    pub mode: u32,
    /// Number of names (directories: 2 + subdirectories).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files, as the kernel encodes it (`makedev`).
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Bytes really stored, in units of 512.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
    /// Last access (see the atime policy in docs/semantics.md).
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
}
