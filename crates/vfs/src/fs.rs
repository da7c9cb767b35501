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

/// The user who makes a request. Requests do not carry supplementary groups, so the front end looks
/// them up and passes them here.
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

/// An open file or directory. [`FileSystem::release`] closes it. Its number is not reused while it
/// is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Handle(pub u64);

impl Handle {
    /// Stands for every directory, if the file system needs no directory handles. The kernel then
    /// need not ask to open directories, and decides itself who may read them.
    pub const NONE: Handle = Handle(0);
}

/// A place in an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct At {
    /// The file.
    pub id: FileId,
    /// The handle that it is open by.
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

/// A directory entry that was found or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Attributes of the file that the name means.
    pub attr: Attr,
    /// How long the caller may cache the attributes (never beyond the token's lease).
    pub valid: Duration,
    /// How long the caller may cache that the name means this file (never beyond the lease).
    pub name_valid: Duration,
}

impl Entry {
    /// An entry whose name and attributes the caller may cache for the same time.
    pub fn new(attr: Attr, valid: Duration) -> Entry {
        Entry { attr, valid, name_valid: valid }
    }
}

/// One entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name; `.` and `..` come first, with cookies 1 and 2.
    pub name: Vec<u8>,
    /// The file that it means.
    pub id: FileId,
    /// Its type.
    pub kind: Kind,
    /// Pass this to continue after the entry. Stable: an entry that exists during the whole listing
    /// is listed exactly once, even if other names are created or removed meanwhile.
    pub cookie: u64,
    /// Attributes, if asked for; may be missing even then.
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
    /// The server's current time.
    Now,
    /// This time.
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

/// What mknod makes; regular files too.
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

/// Modes of fallocate(2). No space is set aside for holes, because a log never overwrites in place;
/// see docs/semantics.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Extend the size if needed.
    Allocate,
    /// Change nothing visible.
    AllocateKeepSize,
    /// Make a hole; the size stays.
    PunchHole,
    /// Write zeroes; extend the size if needed.
    ZeroRange,
    /// Write zeroes; the size stays.
    ZeroRangeKeepSize,
}

/// What lseek looks for: SEEK_DATA or SEEK_HOLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Next data at or after the offset.
    Data,
    /// Next hole at or after the offset (the end of the file is one).
    Hole,
}

/// A file of this machine with exactly the contents of an open file, for as long as that is open.
#[derive(Clone)]
pub struct Backing {
    /// The file of this machine.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// Identifies the local file: while the number stays the same, only calls, and stores to
    /// mappings of it, change its contents.
    pub number: u64,
    /// Reads through the handle may go to the local file.
    pub may_read: bool,
}

/// The numbers that statvfs(2) shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsStat {
    /// Bytes of user data that the file system can hold, without redundancy.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Files that exist.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
    /// Block size in bytes.
    pub block_size: u32,
}

/// A lock space of a file. Locks of different spaces are independent of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum LockSpace {
    /// fcntl byte ranges.
    Posix,
    /// flock, whole file.
    Flock,
    /// Either kind: FUSE does not say which. Such locks exclude each other, as over NFS.
    Mixed,
}

/// A lock to set or test. `end` is inclusive; `u64::MAX` means to the end of the file, however it
/// grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    /// The lock space.
    pub space: LockSpace,
    /// The owner, opaque and unique: the kernel's 64 bits, and above them the client's number if
    /// several mounts share a table.
    pub owner: u128,
    /// Process id to show to other programs.
    pub pid: u32,
    /// `None` unlocks; `Some(true)` is exclusive.
    pub exclusive: Option<bool>,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

impl FileLock {
    /// True if a file opened with `flags` may take this lock: a byte range needs write access for a
    /// write lock, and read access for a read lock.
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
    /// How long a caller may keep it that a name does not exist, if a lookup has just said so: ask
    /// in the same instant. Zero: not at all.
    fn absence_valid(&self) -> Duration {
        Duration::ZERO
    }
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

    /// access(2): EACCES unless `cred` has all of the wanted rights (bits 4 read, 2 write, 1
    /// execute).
    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()>;
    /// Opens a regular file (or device node, without any I/O on it).
    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle>;
    /// Up to `len` bytes at `offset`; shorter only at the end of the file.
    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes>;
    /// Writes all of `data` at `offset`, or at the end if the handle is append-only; clears set-id
    /// bits if `cred` is not privileged. ENOSPC and EFBIG mean that nothing was written.
    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32>;
    /// Writes all of `data` at the end of the file, otherwise as [`write`](Self::write) does. No
    /// offset is passed, because only the file system knows where the end is: a kernel that caches
    /// sizes may have an old one.
    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended>;
    /// Makes this file durable, and with it everything that was acknowledged before.
    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()>;
    /// Makes a directory durable, by a handle of it.
    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()>;
    /// Drops POSIX locks of the owner; called at each close(2).
    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()>;
    /// Closes the handle, and drops the flock locks of the owner given.
    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()>;

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle>;
    /// Entries after `cookie` (0 = from the start), at most `count_max`; empty at the end. With
    /// `plus`, attributes too.
    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>>;
    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()>;

    /// The value of an attribute; ENODATA if there is none. POSIX ACLs are
    /// `system.posix_acl_access` and `system.posix_acl_default` in the kernel's format.
    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes>;
    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()>;
    /// Names of the attributes that `cred` may see.
    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>>;
    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()>;

    /// Clears set-id bits as [`write`](Self::write) does, in every mode, as Linux does.
    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()>;
    /// The next data or hole. ENXIO beyond the end, or when no data follows.
    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64>;
    /// Copies up to `len` bytes between files; returns how many. EINVAL when ranges of one file
    /// overlap. Clears set-id bits of the target as [`write`](Self::write) does.
    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64>;
    fn statfs(&self) -> Answer<FsStat>;
    /// The first lock that conflicts with `lock`, if any.
    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>>;
    /// Sets or clears a lock. On a conflict, EAGAIN without `wait`. With `wait`, `Later` until the
    /// lock is granted, or EDEADLK if the wait would never end. Dropping the future gives up
    /// waiting.
    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()>;
    /// Makes everything acknowledged so far durable.
    fn sync(&self) -> Answer<()>;

    /// The local file with the contents that this handle reads, if the caller may read that file
    /// instead of asking.
    fn backing(&self, _id: FileId, _handle: Handle) -> Answer<Option<Backing>> {
        Answer::ok(None)
    }
    /// Tells the file system that programs which may write through `handle` can now map the file
    /// that [`backing`](Self::backing) gave. The file system must find stores to such mappings by
    /// itself.
    fn will_be_mapped(&self, _id: FileId, _handle: Handle) -> Answer<()> {
        Answer::ok(())
    }
}
