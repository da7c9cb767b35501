//! The [`FileSystem`] trait.

use bytes::Bytes;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, Attr, FileId, Kind, Time};

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Longest symlink target, in bytes.
pub const SYMLINK_LEN_MAX: usize = 4095;
/// Longest extended attribute value, in bytes (as Linux's XATTR_SIZE_MAX).
pub const XATTR_VALUE_LEN_MAX: usize = 65_536;
/// Longest extended attribute name, in bytes.
pub const XATTR_NAME_LEN_MAX: usize = 255;
/// Largest file size in bytes.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Most hard links of one file.
pub const LINK_COUNT_MAX: u32 = 65_000;

/// Who asks. Supplementary groups that the caller's front end cannot see cheaply are looked up by
/// it and passed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cred {
    /// File-system user id; 0 passes every permission check.
    pub uid: u32,
    /// File-system group id, given to new files unless the directory is set-gid.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Cred {
    /// The superuser.
    pub const ROOT: Cred = Cred { uid: 0, gid: 0, groups: Vec::new() };

    /// True if `gid` is the caller's group or one of its supplementary groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// An open file or directory. Closed with [`FileSystem::release`]. Never reused while open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Handle(pub u64);

impl Handle {
    /// Of all directories, where the file system can do without handles of them: the kernel need
    /// not ask to open them then, and decides who may read them.
    pub const NONE: Handle = Handle(0);
}

/// A place in an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The file.
    pub id: FileId,
    /// How it is open.
    pub handle: Handle,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// Where an append went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// Where the file ended before.
    pub offset: u64,
    /// Bytes written there.
    pub count: u32,
}

/// A found or made directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Attributes of what the name means.
    pub attr: Attr,
    /// How long the caller may cache the name and the attributes (never beyond the lease of the
    /// token).
    pub valid: Duration,
}

/// One entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name; `.` and `..` come first, with cookies 1 and 2.
    pub name: Vec<u8>,
    /// What it means.
    pub id: FileId,
    /// Its type.
    pub kind: Kind,
    /// Pass this to continue after the entry. Stable: an entry that is there during the whole
    /// listing is listed exactly once, whatever is created or removed meanwhile.
    pub cookie: u64,
    /// Attributes, when asked for and at hand.
    pub attr: Option<Attr>,
}

/// How to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Reads wanted.
    pub read: bool,
    /// Writes wanted.
    pub write: bool,
    /// Every write goes to the end (O_APPEND).
    pub append: bool,
    /// Cut to length 0 (O_TRUNC).
    pub truncate: bool,
    /// Opened to be executed: execute permission is checked in place of read permission.
    pub execute: bool,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The server's now.
    Now,
    /// This.
    At(Time),
}

/// What to change with setattr; `None` = leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Lower twelve bits of the mode.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this length.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// Flags of rename(2). `exchange` excludes `no_replace`. RENAME_WHITEOUT is not supported (EINVAL
/// in front ends).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// Fail with EEXIST if the new name exists.
    pub no_replace: bool,
    /// Swap both names.
    pub exchange: bool,
}

/// What to make with mknod; regular files too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Any kind but directory and symlink.
    pub kind: Kind,
    /// Lower twelve bits.
    pub mode: u32,
    /// The caller's umask; ignored where the directory has a default ACL.
    pub umask: u32,
    /// Device number, for devices.
    pub rdev: u64,
}

/// Flags of setxattr(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// EEXIST if there.
    Create,
    /// ENODATA if not there.
    Replace,
}

/// Modes of fallocate(2). Space is not set aside for holes (a log never overwrites in place); see
/// docs/semantics.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Extend the size if needed.
    Allocate,
    /// Change nothing visible.
    AllocateKeepSize,
    /// Make a hole; size stays.
    PunchHole,
    /// Zeroes; extend the size if needed.
    ZeroRange,
    /// Zeroes; size stays.
    ZeroRangeKeepSize,
}

/// SEEK_DATA or SEEK_HOLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Next data at or after the offset.
    Data,
    /// Next hole at or after the offset (the end of the file is one).
    Hole,
}

/// A file of this machine that has exactly what is in a file, for as long as that is open.
#[derive(Clone)]
pub struct Backing {
    /// The file of this machine.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// Which one it is: as long as this is the same, what is in it changes only by calls, and by
    /// stores to mappings of it.
    pub number: u64,
    /// Reads through the handle may go there.
    pub may_read: bool,
}

/// What statvfs(2) shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsStat {
    /// Bytes of user data the file system can hold, redundancy taken off.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Files there are.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
    /// Block size in bytes.
    pub block_size: u32,
}

/// Which lock space of a file: locks of different ones are independent of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum LockSpace {
    /// fcntl byte ranges.
    Posix,
    /// flock, whole file.
    Flock,
    /// Either of them: FUSE does not say which. Such locks exclude each other, as over NFS.
    Mixed,
}

/// A lock to set or test; `end` is inclusive, `u64::MAX` = to the end of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// Which space.
    pub space: LockSpace,
    /// Who owns it, opaque and unique per owner: the kernel's 64 bits, and above them the client's
    /// number where several mounts share a table.
    pub owner: u128,
    /// Process id shown to others.
    pub pid: u32,
    /// `None` unlocks; `Some(true)` is exclusive.
    pub exclusive: Option<bool>,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

impl FileLock {
    /// True if a file opened so may be locked so: a byte range is locked for writing by who may
    /// write it, and for reading by who may read it.
    pub fn is_open_to(&self, flags: &OpenFlags) -> bool {
        match (self.space, self.exclusive) {
            (LockSpace::Posix, Some(true)) => flags.write,
            (LockSpace::Posix, Some(false)) => flags.read,
            _ => true,
        }
    }
}

/// A POSIX file system, inode-based. One per mount or upstream; cheap to share.
///
/// Every mutation is *applied* (Ok), *not applied* (Err, unless the error is
/// [`FsError::Io`](types::FsError::Io) or [`FsError::TimedOut`](types::FsError::TimedOut), which
/// mean *unknown*), and is durable only after [`fsync`](Self::fsync),
/// [`fsync_dir`](Self::fsync_dir) or [`sync`](Self::sync). Permissions are checked here against
/// `cred`, except on handles, which carry the right they were opened with. A file that has no name
/// left lives until its last handle is released.
#[allow(missing_docs)]
pub trait FileSystem: Send + Sync + 'static {
    /// Finds `name` (also `.` and `..`) in a directory. ENOENT, ENOTDIR, EACCES, ENAMETOOLONG.
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry>;
    /// Attributes; `valid` says for how long they may be cached.
    fn getattr(&self, id: FileId) -> Answer<Entry>;
    /// chmod, chown, truncate, utimens. `handle`, when given and opened for writing, gives the
    /// right to truncate. Clears set-id bits as Linux does on chown and truncate by non-owners.
    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry>;
    /// Target of a symbolic link.
    fn readlink(&self, id: FileId) -> Answer<Bytes>;
    /// Makes a file, FIFO, socket or device.
    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry>;
    /// Makes a regular file and opens it, as one operation. EEXIST if the name exists (front ends
    /// open it then).
    fn create(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> Answer<(Entry, Handle)>;
    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry>;
    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry>;
    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry>;
    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()>;
    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()>;
    fn rename(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new_parent: FileId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Answer<()>;

    /// access(2): EACCES unless all of the wanted rights (bits 4 read, 2 write, 1 execute) are
    /// there.
    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()>;
    /// Opens a regular file (or device node, without any I/O on it).
    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle>;
    /// Up to `len` bytes at `offset`; shorter only at the end of the file.
    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes>;
    /// Writes all of `data` at `offset`, or at the end if the handle is append-only; clears set-id
    /// bits if `cred` is not privileged. ENOSPC and EFBIG mean that nothing was written.
    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32>;
    /// Writes all of `data` at the end of the file, otherwise as [`write`](Self::write) does. Only
    /// the file system knows where the end is: a kernel that caches sizes may think it elsewhere,
    /// so no offset is passed.
    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended>;
    /// Everything of this file (and with it all that was acknowledged before) is durable.
    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()>;
    /// The same for a directory handle.
    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()>;
    /// Drops POSIX locks of the owner; called at each close(2).
    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()>;
    /// Closes; drops flock locks of the owner given.
    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()>;

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle>;
    /// Entries after `cookie` (0 = from the start), at most `count_max`; empty at the end. With
    /// `plus`, attributes too.
    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>>;
    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()>;

    /// The value. ENODATA. POSIX ACLs are `system.posix_acl_access` and `system.posix_acl_default`
    /// in the kernel's format.
    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes>;
    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()>;
    /// Names of the attributes that `cred` may see.
    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>>;
    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()>;

    /// Clears set-id bits as [`write`](Self::write) does, in every mode, as Linux does.
    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()>;
    /// ENXIO beyond the end, or when no data follows.
    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64>;
    /// Copies up to `len` bytes between files; returns how many. EINVAL when ranges of one file
    /// overlap. Clears set-id bits of the target as [`write`](Self::write) does.
    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64>;
    fn statfs(&self) -> Answer<FsStat>;
    /// The first lock that stands in the way of `lock`, if any.
    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>>;
    /// Sets or clears a lock; EAGAIN if it conflicts and not `wait`; with `wait`, `Later` until it
    /// is granted (EDEADLK when waiting would never end). Dropping the future gives up waiting.
    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()>;
    /// Everything acknowledged so far is durable.
    fn sync(&self) -> Answer<()>;

    /// Where the file is that has what is read through this handle, if somebody may look there in
    /// place of asking.
    fn backing(&self, _id: FileId, _handle: Handle) -> Answer<Option<Backing>> {
        Answer::ok(None)
    }
    /// From now on, whoever may write through `handle` can map the file that
    /// [`backing`](Self::backing) gave: what is stored there is for the file system to find.
    fn will_be_mapped(&self, _id: FileId, _handle: Handle) -> Answer<()> {
        Answer::ok(())
    }
}
