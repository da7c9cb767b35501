//! The [`FileSystem`] trait for [`LocalDir`].

use crate::alias::alias;
use crate::handles::OpenNode;
use crate::identity::FileIdentity;
use crate::nodes::NodePlace;
use crate::stat::{self, attributes, error};
use crate::{Inner, LocalDir};
use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, Dev, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags as RawRename, SeekFrom, Statx,
    Timespec, Timestamps, XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::hash_map::Entry::Vacant;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use types::{Answer, FileId, FsError, Kind};
use vfs::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, LockSpace, NewNode,
    OpenFlags, RenameFlags, Seek, SetAttr, SetTime, XATTR_VALUE_LEN_MAX, XattrMode,
};

/// How long attributes stay valid: other programs may change everything at any time.
const VALID: Duration = Duration::ZERO;
/// Cookies of `.` and `..`. Cookies of other entries are the local file system's positions, moved
/// up by [`COOKIES`].
const DOTS: [(&[u8], u64); 2] = [(b".", 1), (b"..", 2)];
const COOKIES: u64 = 2;
/// Bytes of directory entries that are read at a time.
pub(crate) const LISTING_LEN: usize = 32 << 10;
fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o7777)
}

/// Makes durable everything that was done on the file system of an open file. syncfs(2) does not
/// reach a file system in user space: it writes mapped pages, and succeeds. So fsync(2) of this
/// file asks it, which syncs all of it if it is Starling's.
fn sync_all(file: &OwnedFd) -> rustix::io::Result<()> {
    rustix::fs::syncfs(file)?;
    if stat::is_in_user_space(file.as_fd())? { rustix::fs::fsync(file) } else { Ok(()) }
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) { Err(FsError::InvalidArgument) } else { Ok(()) }
}

fn flags_of(flags: OpenFlags) -> OFlags {
    let access = match (flags.read || flags.execute, flags.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let more = [(flags.append, OFlags::APPEND), (flags.truncate, OFlags::TRUNC)];
    more.into_iter()
        .filter(|(set, _)| *set)
        .fold(access | OFlags::CLOEXEC | OFlags::NOCTTY, |all, (_, flag)| all | flag)
}

impl Inner {
    /// Returns the entry of an open file, and records the place where it was seen, if there is one.
    fn entry_of(&self, file: BorrowedFd, place: Option<NodePlace>) -> Result<Entry, FsError> {
        let (identity, stat) = FileIdentity::seen(file).map_err(error)?;
        Ok(self.entry(identity, &stat, place))
    }

    /// Makes the entry of a file, and records the place where it was seen, if there is one.
    pub(crate) fn entry(&self, identity: FileIdentity, stat: &Statx, place: Option<NodePlace>) -> Entry {
        let id = match place {
            Some(place) => self.nodes.lock().seen(identity, place),
            None => self.nodes.lock().id_of(identity),
        };
        Entry::new(attributes(id, stat), VALID)
    }

    /// Looks up a name in an open directory, which the caller may search.
    fn find(&self, dir: &OwnedFd, parent: FileId, name: &[u8]) -> Result<Entry, FsError> {
        self.entry_of(self.at(dir, parent, name)?.as_fd(), Some((parent, name.to_vec())))
    }

    /// Opens what is at a name of an open directory, for anything but reading and writing.
    pub(crate) fn at(&self, dir: &OwnedFd, parent: FileId, name: &[u8]) -> Result<OwnedFd, FsError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|e| {
            if e == Errno::NOENT {
                self.nodes.lock().left(&(parent, name.to_vec()));
            }
            error(e)
        })
    }

    /// Makes something in a directory as the caller, and looks it up.
    fn make(
        &self,
        cred: &Cred,
        umask: u32,
        parent: FileId,
        name: &[u8],
        make: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> Result<Entry, FsError> {
        check_name(name)?;
        let dir = self.file(parent)?;
        self.act_with_umask(cred, umask, || make(&dir).map_err(error))?;
        self.touched(&dir)?;
        self.find(&dir, parent, name)
    }

    /// Notes that a file or directory was changed, so that the next [`sync`](Self::sync) makes the
    /// change durable, on any file system.
    pub(crate) fn touched(&self, file: &OwnedFd) -> Result<(), FsError> {
        let device = rustix::fs::fstat(file).map_err(error)?.st_dev;
        if device == self.root_device {
            return Ok(());
        }
        if let Vacant(entry) = self.unsynced.lock().entry(device) {
            // Opened for reading, as the process itself: syncfs(2) takes no path descriptor.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            entry.insert(rustix::fs::open(alias(file), flags, Mode::empty()).map_err(error)?);
        }
        Ok(())
    }

    /// Does the same for a file that need not be one that can be opened.
    fn touched_file(&self, id: FileId, file: &OwnedFd) -> Result<(), FsError> {
        match kind_of(file)? {
            Kind::File | Kind::Directory => self.touched(file),
            _ => self.touched(&*self.file(self.parent_of(id))?),
        }
    }

    fn sync(&self) -> Result<(), FsError> {
        sync_all(&self.root).map_err(error)?;
        let elsewhere = std::mem::take(&mut *self.unsynced.lock());
        for (device, file) in elsewhere {
            if let Err(e) = sync_all(&file) {
                self.unsynced.lock().insert(device, file);
                return Err(error(e));
            }
        }
        Ok(())
    }

    pub(crate) fn parent_of(&self, id: FileId) -> FileId {
        self.nodes.lock().place(id).map_or(FileId::ROOT, |(parent, _)| *parent)
    }

    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Entry, FsError> {
        if name.is_empty() {
            return Err(FsError::NotFound);
        }
        check_name(name)?;
        let dir = self.file(parent)?;
        if name == b"." || name == b".." {
            // Opened only to check that the caller may search it.
            self.act(cred, || {
                rustix::fs::openat(&dir, c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(error)
            })?;
            let id = if name == b"." { parent } else { self.parent_of(parent) };
            return self.getattr(id);
        }
        self.act(cred, || self.find(&dir, parent, name))
    }

    fn getattr(&self, id: FileId) -> Result<Entry, FsError> {
        self.entry_of(self.file(id)?.as_fd(), None)
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Result<Entry, FsError> {
        let file = self.file(id)?;
        let open = handle.map(|handle| self.handles.lock().get(id, handle, false)).transpose()?;
        let writable = open.filter(|open| open.flags.is_some_and(|flags| flags.write));
        if [set.uid, set.gid].contains(&Some(u32::MAX)) {
            return Err(FsError::InvalidArgument);
        }
        self.act(cred, || {
            if set.uid.is_some() || set.gid.is_some() {
                let (uid, gid) = (set.uid.map(rustix::fs::Uid::from_raw), set.gid.map(rustix::fs::Gid::from_raw));
                rustix::fs::chownat(&file, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(error)?;
            }
            if let Some(bits) = set.mode {
                if kind_of(&file)? == Kind::Symlink {
                    return Err(FsError::NotSupported);
                }
                rustix::fs::chmod(alias(&file), mode(bits)).map_err(error)?;
            }
            if let Some(size) = set.size {
                match &writable {
                    Some(open) => rustix::fs::ftruncate(&open.file, size).map_err(error)?,
                    None => self.truncate(&file, size)?,
                }
            }
            if set.atime.is_some() || set.mtime.is_some() {
                let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
                rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH).map_err(error)?;
            }
            Ok(())
        })?;
        self.touched_file(id, &file)?;
        self.entry_of(file.as_fd(), None)
    }

    fn truncate(&self, file: &OwnedFd, size: u64) -> Result<(), FsError> {
        match kind_of(file)? {
            Kind::File => {}
            Kind::Directory => return Err(FsError::IsADirectory),
            _ => return Err(FsError::InvalidArgument),
        }
        let opened = rustix::fs::open(alias(file), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(error)?;
        rustix::fs::ftruncate(opened, size).map_err(error)
    }

    fn create(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        (bits, umask): (u32, u32),
        flags: OpenFlags,
    ) -> Result<(Entry, Handle), FsError> {
        check_name(name)?;
        let dir = self.file(parent)?;
        let how = flags_of(flags) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let made =
            self.act_with_umask(cred, umask, || rustix::fs::openat(&dir, name, how, mode(bits)).map_err(error))?;
        self.touched(&dir)?;
        let entry = self.entry_of(made.as_fd(), Some((parent, name.to_vec())))?;
        let handle = self.handles.lock().add(entry.attr.id, made, Some(flags));
        Ok((entry, handle))
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Result<Entry, FsError> {
        let kind = match node.kind {
            Kind::File => FileType::RegularFile,
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::CharDevice => FileType::CharacterDevice,
            Kind::BlockDevice => FileType::BlockDevice,
            Kind::Directory | Kind::Symlink => return Err(FsError::InvalidArgument),
        };
        self.make(cred, node.umask, parent, name, |dir| {
            rustix::fs::mknodat(dir, name, kind, mode(node.mode), node.rdev as Dev)
        })
    }

    fn link(&self, cred: &Cred, id: FileId, parent: FileId, name: &[u8]) -> Result<Entry, FsError> {
        let file = self.file(id)?;
        self.make(cred, 0, parent, name, |dir| {
            rustix::fs::linkat(CWD, alias(&file), dir, name, AtFlags::SYMLINK_FOLLOW)
        })
    }

    fn remove(&self, cred: &Cred, parent: FileId, name: &[u8], flags: AtFlags) -> Result<(), FsError> {
        check_name(name)?;
        let dir = self.file(parent)?;
        self.act(cred, || rustix::fs::unlinkat(&dir, name, flags).map_err(error))?;
        self.touched(&dir)?;
        self.nodes.lock().left(&(parent, name.to_vec()));
        Ok(())
    }

    fn rename(&self, cred: &Cred, from: NodePlace, to: NodePlace, flags: RenameFlags) -> Result<(), FsError> {
        check_name(&from.1)?;
        check_name(&to.1)?;
        let (from_dir, to_dir) = (self.file(from.0)?, self.file(to.0)?);
        let mut raw = RawRename::empty();
        raw.set(RawRename::NOREPLACE, flags.no_replace);
        raw.set(RawRename::EXCHANGE, flags.exchange);
        // A rename between two names of one file changes nothing.
        let same = || -> Option<bool> {
            let id = |dir: &OwnedFd, name: &[u8]| {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
                Some(FileIdentity::seen(file.as_fd()).ok()?.0)
            };
            Some(id(&from_dir, &from.1)? == id(&to_dir, &to.1)?)
        };
        let _renaming = self.renaming.lock();
        let same = same().unwrap_or(false);
        self.act(cred, || rustix::fs::renameat_with(&from_dir, &from.1[..], &to_dir, &to.1[..], raw).map_err(error))?;
        self.touched(&to_dir)?;
        let mut nodes = self.nodes.lock();
        match (same, flags.exchange) {
            (true, _) => {}
            (false, true) => nodes.exchanged(&from, &to),
            (false, false) => nodes.moved(&from, to),
        }
        Ok(())
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Result<Handle, FsError> {
        let file = self.file(id)?;
        let kind = kind_of(&file)?;
        let mask = (u32::from(flags.read && !flags.execute) * 4)
            | (u32::from(flags.write || flags.truncate) * 2)
            | u32::from(flags.execute);
        let opened = match kind {
            Kind::Directory => return Err(FsError::IsADirectory),
            Kind::Symlink => return Err(FsError::Loop),
            Kind::File if flags.execute => {
                // To execute a file, its bytes must be read, even where reading is not allowed.
                self.may(cred, &file, mask)?;
                self.act(&Cred { uid: own_uid(), ..Cred::ROOT }, || {
                    rustix::fs::open(alias(&file), flags_of(flags), Mode::empty()).map_err(error)
                })?
            }
            Kind::File => {
                self.act(cred, || rustix::fs::open(alias(&file), flags_of(flags), Mode::empty()).map_err(error))?
            }
            // Opening a special file has effects, which belong on the client's machine.
            _ => {
                self.may(cred, &file, mask)?;
                file.try_clone().map_err(|_| FsError::Io)?
            }
        };
        Ok(self.handles.lock().add(id, opened, Some(flags)))
    }

    /// EACCES unless the caller has all the rights.
    fn may(&self, cred: &Cred, file: &OwnedFd, mask: u32) -> Result<(), FsError> {
        let access = rustix::fs::Access::from_bits(mask).ok_or(FsError::InvalidArgument)?;
        self.act(cred, || rustix::fs::accessat(CWD, alias(file), access, AtFlags::EACCESS).map_err(error))
    }

    fn open_for(&self, id: FileId, handle: Handle, wanted: impl Fn(&OpenFlags) -> bool) -> Result<OpenNode, FsError> {
        let open = self.handles.lock().get(id, handle, false)?;
        if open.flags.as_ref().is_some_and(wanted) { Ok(open) } else { Err(FsError::BadHandle) }
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Result<Bytes, FsError> {
        let open = self.open_for(id, handle, |flags| flags.read || flags.execute)?;
        let mut data = vec![0; len as usize];
        let mut filled = 0;
        while filled < data.len() {
            match rustix::io::pread(&open.file, &mut data[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                // There is nothing beyond what the local file system can address.
                Err(Errno::INVAL | Errno::OVERFLOW) if offset > i64::MAX as u64 - u64::from(len) => break,
                Err(e) => return Err(error(e)),
            }
        }
        data.truncate(filled);
        Ok(data.into())
    }

    /// Writes all of the data, or as much as can be written. Fails only if nothing could be.
    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Result<u32, FsError> {
        let open = self.handles.lock().writable(id, handle)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > vfs::fs::FILE_SIZE_MAX) {
            return Err(FsError::FileTooLarge);
        }
        self.act(cred, || {
            let mut written = 0;
            while written < data.len() {
                match rustix::io::pwrite(&open.file, &data[written..], offset + written as u64) {
                    Ok(n) => written += n,
                    Err(Errno::INTR) => {}
                    Err(_) if written > 0 => break,
                    Err(e) => return Err(error(e)),
                }
            }
            Ok(written as u32)
        })
    }

    /// Appends data. If other programs append at the same time, `offset` may be the end of theirs.
    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Result<Appended, FsError> {
        let open = self.handles.lock().writable(id, handle)?;
        self.act(cred, || {
            let mut count = 0;
            while count < data.len() {
                let rest = [IoSlice::new(&data[count..])];
                match rustix::io::pwritev2(&open.file, &rest, 0, ReadWriteFlags::APPEND) {
                    Ok(n) => count += n,
                    Err(Errno::INTR) => {}
                    Err(_) if count > 0 => break,
                    Err(e) => return Err(error(e)),
                }
            }
            let end = rustix::fs::fstat(&open.file).map_err(error)?.st_size as u64;
            Ok(Appended { offset: end.saturating_sub(count as u64), count: count as u32 })
        })
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Result<Handle, FsError> {
        let file = self.file(id)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = self.act(cred, || rustix::fs::open(alias(&file), flags, Mode::empty()).map_err(error))?;
        Ok(self.handles.lock().add(id, opened, None))
    }

    fn readdir(
        &self,
        id: FileId,
        handle: Handle,
        cookie: u64,
        count_max: usize,
        plus: bool,
    ) -> Result<Vec<DirEntry>, FsError> {
        let open = self.handles.lock().get(id, handle, true)?;
        let mut entries = Vec::new();
        for ((name, own), dot) in DOTS.into_iter().zip([id, self.parent_of(id)]) {
            if cookie < own && entries.len() < count_max {
                let attr = if plus { self.getattr(dot).ok().map(|entry| entry.attr) } else { None };
                entries.push(DirEntry { name: name.to_vec(), id: dot, kind: Kind::Directory, cookie: own, attr });
            }
        }
        let _one_at_a_time = open.listing.lock();
        rustix::fs::seek(&open.file, SeekFrom::Start(cookie.saturating_sub(COOKIES))).map_err(error)?;
        let mut buffer = Vec::with_capacity(LISTING_LEN);
        let mut listing = RawDir::new(&open.file, buffer.spare_capacity_mut());
        while entries.len() < count_max
            && let Some(found) = listing.next()
        {
            let found = found.map_err(error)?;
            let name = found.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let cookie = found.next_entry_cookie().wrapping_add(COOKIES);
            // An entry that was removed meanwhile is not listed.
            if let Ok(Entry { attr, .. }) = self.find(&open.file, id, name) {
                let attr_asked = plus.then_some(attr);
                entries.push(DirEntry { name: name.to_vec(), id: attr.id, kind: attr.kind, cookie, attr: attr_asked });
            }
        }
        Ok(entries)
    }

    /// Does something to a file's extended attributes as the caller, through a path of the file.
    fn xattrs<T>(
        &self,
        cred: &Cred,
        id: FileId,
        act: impl FnOnce(&str) -> rustix::io::Result<T>,
    ) -> Result<T, FsError> {
        let file = self.file(id)?;
        self.act(cred, || act(&alias(&file)).map_err(error))
    }

    fn fallocate(
        &self,
        cred: &Cred,
        id: FileId,
        handle: Handle,
        (offset, len): (u64, u64),
        how: Fallocate,
    ) -> Result<(), FsError> {
        let open = self.handles.lock().writable(id, handle)?;
        if len > 0 && offset.checked_add(len).is_none_or(|end| end > vfs::fs::FILE_SIZE_MAX) {
            return Err(FsError::FileTooLarge);
        }
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = match how {
            Fallocate::Allocate => FallocateFlags::empty(),
            Fallocate::AllocateKeepSize => keep,
            Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
            Fallocate::ZeroRange => FallocateFlags::ZERO_RANGE,
            Fallocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
        };
        self.act(cred, || rustix::fs::fallocate(&open.file, flags, offset, len).map_err(error))
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Result<u64, FsError> {
        let open = self.handles.lock().get(id, handle, false)?;
        let to = match whence {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&open.file, to).map_err(error)
    }

    pub(crate) fn share(&self, from: At, to: At) -> Result<(), FsError> {
        let source = self.open_for(from.id, from.handle, |flags| flags.read)?;
        let target = self.handles.lock().writable(to.id, to.handle)?;
        rustix::fs::ioctl_ficlone(&target.file, &source.file).map_err(|failed| match failed {
            // File systems that cannot share bytes report it by different errors.
            Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL | Errno::XDEV => FsError::NotSupported,
            failed => error(failed),
        })
    }

    fn copy(&self, cred: &Cred, from: At, to: At, len: u64) -> Result<u64, FsError> {
        let source = self.open_for(from.id, from.handle, |flags| flags.read)?;
        let target = self.handles.lock().writable(to.id, to.handle)?;
        let (mut from_offset, mut to_offset) = (from.offset, to.offset);
        self.act(cred, || {
            let mut copied = 0;
            while copied < len {
                let (from, to) = (Some(&mut from_offset), Some(&mut to_offset));
                let step = usize::try_from(len - copied).unwrap_or(usize::MAX).min(1 << 30);
                match rustix::fs::copy_file_range(&source.file, from, &target.file, to, step) {
                    Ok(0) => break,
                    Ok(n) => copied += n as u64,
                    Err(Errno::INTR) => {}
                    Err(_) if copied > 0 => break,
                    Err(e) => return Err(error(e)),
                }
            }
            Ok(copied)
        })
    }

    fn statfs(&self) -> Result<FsStat, FsError> {
        let stats = rustix::fs::fstatvfs(&self.root).map_err(error)?;
        Ok(FsStat {
            total_bytes: stats.f_blocks * stats.f_frsize,
            free_bytes: stats.f_bavail * stats.f_frsize,
            files: stats.f_files.saturating_sub(stats.f_ffree),
            files_free: stats.f_favail,
            block_size: u32::try_from(stats.f_frsize).unwrap_or(u32::MAX),
        })
    }
}

fn kind_of(file: &OwnedFd) -> Result<Kind, FsError> {
    Ok(stat::kind(FileType::from_raw_mode(rustix::fs::fstat(file).map_err(error)?.st_mode)))
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn timespec(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(SetTime::At(time)) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
    }
}

impl FileSystem for LocalDir {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| dir.lookup(&cred, parent, &name))
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.later(move |dir| dir.getattr(id))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        let cred = cred.clone();
        self.later(move |dir| dir.setattr(&cred, id, handle, set))
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.later(move |dir| {
            let target = rustix::fs::readlinkat(dir.file(id)?, c"", Vec::new());
            // With an empty path, Linux reports ENOENT for a file that is no symlink.
            let target = target.map_err(|e| if e == Errno::NOENT { FsError::InvalidArgument } else { error(e) })?;
            Ok(target.into_bytes().into())
        })
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| dir.mknod(&cred, parent, &name, node))
    }

    fn create(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> Answer<(Entry, Handle)> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| dir.create(&cred, parent, &name, (mode, umask), flags))
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], bits: u32, umask: u32) -> Answer<Entry> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| {
            dir.make(&cred, umask, parent, &name, |at| rustix::fs::mkdirat(at, &name[..], mode(bits)))
        })
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let (cred, name, target) = (cred.clone(), name.to_vec(), target.to_vec());
        self.later(move |dir| dir.make(&cred, 0, parent, &name, |at| rustix::fs::symlinkat(&target[..], at, &name[..])))
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        let (cred, name) = (cred.clone(), new_name.to_vec());
        self.later(move |dir| dir.link(&cred, id, new_parent, &name))
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| dir.remove(&cred, parent, &name, AtFlags::empty()))
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| dir.remove(&cred, parent, &name, AtFlags::REMOVEDIR))
    }

    fn rename(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new_parent: FileId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Answer<()> {
        let (cred, from, to) = (cred.clone(), (parent, name.to_vec()), (new_parent, new_name.to_vec()));
        self.later(move |dir| dir.rename(&cred, from, to, flags))
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        let cred = cred.clone();
        self.later(move |dir| dir.may(&cred, &*dir.file(id)?, mask))
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        let cred = cred.clone();
        self.later(move |dir| dir.open(&cred, id, flags))
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        self.later(move |dir| dir.read(id, handle, offset, len))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let (cred, data) = (cred.clone(), data.to_vec());
        self.later(move |dir| dir.write(&cred, id, handle, offset, &data))
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        let (cred, data) = (cred.clone(), data.to_vec());
        self.later(move |dir| dir.append(&cred, id, handle, &data))
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.later(move |dir| {
            let open = dir.handles.lock().get(id, handle, false)?;
            let sync = if data_only { rustix::fs::fdatasync::<&OwnedFd> } else { rustix::fs::fsync };
            sync(&open.file).map_err(error)
        })
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.later(move |dir| {
            let open = dir.handles.lock().get(id, handle, true)?;
            rustix::fs::fsync(&open.file).map_err(error)
        })
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        let open = self.0.handles.lock().get(id, handle, false);
        Answer::Now(open.map(|_| self.0.locks.release_owner(id, LockSpace::Posix, lock_owner.into())))
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        let closed = self.0.handles.lock().close(id, handle, false);
        if let Some(owner) = flock_owner.filter(|_| closed.is_ok()) {
            self.0.locks.release_owner(id, LockSpace::Flock, owner.into());
        }
        Answer::Now(closed)
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        let cred = cred.clone();
        self.later(move |dir| dir.opendir(&cred, id))
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        self.later(move |dir| dir.readdir(id, handle, cookie, count_max, plus))
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        Answer::Now(self.0.handles.lock().close(id, handle, true))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| {
            let mut value = vec![0; XATTR_VALUE_LEN_MAX];
            let len = dir.xattrs(&cred, id, |path| rustix::fs::getxattr(path, &name[..], &mut value[..]))?;
            value.truncate(len);
            Ok(value.into())
        })
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        let (cred, name, value) = (cred.clone(), name.to_vec(), value.to_vec());
        let flags = match mode {
            XattrMode::Any => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        self.later(move |dir| {
            // Linux takes an ACL of no bytes for a request to remove it.
            if value.is_empty() && name.starts_with(b"system.posix_acl_") {
                return Err(FsError::InvalidArgument);
            }
            dir.xattrs(&cred, id, |path| rustix::fs::setxattr(path, &name[..], &value, flags))?;
            dir.touched_file(id, &*dir.file(id)?)
        })
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        let cred = cred.clone();
        self.later(move |dir| {
            let mut names = vec![0; XATTR_VALUE_LEN_MAX];
            let len = dir.xattrs(&cred, id, |path| rustix::fs::listxattr(path, &mut names[..]))?;
            Ok(names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
        })
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.later(move |dir| {
            dir.xattrs(&cred, id, |path| rustix::fs::removexattr(path, &name[..]))?;
            dir.touched_file(id, &*dir.file(id)?)
        })
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        let cred = cred.clone();
        self.later(move |dir| dir.fallocate(&cred, id, handle, (offset, len), mode))
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.later(move |dir| dir.lseek(id, handle, offset, whence))
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        let cred = cred.clone();
        self.later(move |dir| dir.copy(&cred, from, to, len))
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.later(Inner::statfs)
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        let open = self.0.handles.lock().get(id, handle, false);
        Answer::Now(open.and_then(|_| self.0.locks.test(id, &lock)))
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        match self.0.open_for(id, handle, |flags| lock.is_open_to(flags)) {
            Ok(_) => self.0.locks.set(id, lock, wait),
            Err(e) => Answer::err(e),
        }
    }

    fn sync(&self) -> Answer<()> {
        self.later(Inner::sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// Only the exported file system was synced, and not file systems mounted below it.
    #[test]
    fn regression_what_is_done_on_another_file_system_below_is_synced_too() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("temporary folder");
        let (root, below) = (Path::new("/"), folder.path());
        let local = LocalDir::open(root).expect("open");
        let device = |path: &Path| rustix::fs::stat(path).expect("stat").st_dev;
        assert_ne!(device(root), device(below), "this test wants /dev/shm to be another file system");
        let run = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        run.block_on(async {
            let cred = local.own_cred();
            let mut dir = FileId::ROOT;
            for name in below.components().skip(1) {
                dir = local.lookup(&cred, dir, name.as_os_str().as_bytes()).await.expect("it is there").attr.id;
            }
            let unsynced = || local.0.unsynced.lock().len();
            let made = local.mkdir(&cred, dir, b"made", 0o755, 0).await.expect("mkdir").attr.id;
            assert_eq!(unsynced(), 1);
            local.sync().await.expect("sync");
            assert_eq!(unsynced(), 0);
            let link = local.symlink(&cred, made, b"link", b"target").await.expect("symlink").attr.id;
            local.sync().await.expect("sync");
            let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            local.setattr(&cred, link, None, times).await.expect("set");
            assert_eq!(unsynced(), 1);
            local.sync().await.expect("sync");
            local.unlink(&cred, made, b"link").await.expect("unlink");
            assert_eq!(unsynced(), 1);
            local.sync().await.expect("sync");
            assert_eq!(unsynced(), 0);
        });
    }
}
