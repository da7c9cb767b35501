//! Programs at one mount. Each call is one system call that sends at most one request which others
//! could notice, so that calls of several mounts have an order.

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Statx, StatxFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use types::{Attr, FileId, FsError, Kind, Time};
use vfs::fs::{DirEntry, Entry, XattrMode};
use vfs::tree::{ContentHash, TreeEntry};
use world::clients::call::{Answered, Call, OpenNumber, Seen};

/// Bytes for one listing: enough for all that a directory has.
const LISTING_BYTES: usize = 32 << 10;
/// How often programs look, and try again, where a kernel may have refused by what it knew.
const LOOKS_MAX: usize = 5;
/// Bytes for extended attributes.
const XATTR_BYTES: usize = 4 << 10;

/// What a program has open.
pub struct OpenFile {
    fd: OwnedFd,
    /// The file.
    pub id: FileId,
    /// True if writes go to the end.
    pub is_append: bool,
    /// True if the program may write.
    pub can_write: bool,
    /// True if the program may read.
    pub can_read: bool,
    /// True if it is a directory.
    pub is_directory: bool,
    /// Held while the position is in use.
    position: Mutex<()>,
}

/// Programs at a mount.
pub struct Program {
    root: PathBuf,
    /// What the programs have found.
    found: Mutex<BTreeMap<FileId, Arc<OwnedFd>>>,
    opens: Mutex<BTreeMap<OpenNumber, Arc<OpenFile>>>,
}

fn kind_of(mode: u32) -> Kind {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Symlink,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFBLK => Kind::BlockDevice,
        _ => Kind::File,
    }
}

/// What a comparison with the model looks at.
fn attr(id: u64, mode: u32, nlink: u64, (uid, gid): (u32, u32), size: u64) -> Attr {
    let none = Time { sec: 0, nsec: 0 };
    Attr {
        id: FileId::new(id),
        kind: kind_of(mode),
        mode: mode & 0o7777,
        nlink: nlink as u32,
        uid,
        gid,
        rdev: 0,
        size,
        blocks: 0,
        block_size: 4096,
        atime: none,
        mtime: none,
        ctime: none,
        crtime: none,
    }
}

fn stat(fd: impl AsFd, flags: AtFlags) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH | flags, StatxFlags::BASIC_STATS)
}

/// The id of an open file. Sends no request.
fn id_of(fd: impl AsFd) -> Result<FileId, Errno> {
    Ok(FileId::new(stat(fd, AtFlags::STATX_DONT_SYNC)?.stx_ino))
}

/// The path by which the kernel opens again what is open.
fn again(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The answer to an errno. `None`: the mount is dead.
fn error(errno: Errno) -> Option<FsError> {
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED => None,
        errno => Some(FsError::ALL.iter().copied().find(|e| e.errno() == errno.raw_os_error()).unwrap_or(FsError::Io)),
    }
}

impl Program {
    /// Programs that have found the root only.
    pub fn new(root: &Path) -> Program {
        let program = Program { root: root.to_owned(), found: Mutex::default(), opens: Mutex::default() };
        program.begin_anew();
        program
    }

    /// Forgets everything that is open and found, besides the root.
    pub fn begin_anew(&self) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.opens.lock().expect("opens").clear();
        let mut found = self.found.lock().expect("found");
        found.clear();
        let root = rustix::fs::open(&self.root, flags, Mode::empty()).expect("the root");
        found.insert(FileId::ROOT, Arc::new(root));
    }

    /// True if the programs have found a file.
    pub fn knows(&self, id: FileId) -> bool {
        self.found.lock().expect("found").contains_key(&id)
    }

    /// Forgets found files, but the root and those that `keeps` wants.
    pub fn forget(&self, keeps: impl Fn(FileId) -> bool) {
        self.found.lock().expect("found").retain(|id, _| *id == FileId::ROOT || keeps(*id));
    }

    /// All that is open.
    pub fn opens(&self) -> Vec<(OpenNumber, Arc<OpenFile>)> {
        self.opens.lock().expect("opens").iter().map(|(number, file)| (*number, file.clone())).collect()
    }

    fn node(&self, id: FileId) -> Result<Arc<OwnedFd>, Errno> {
        self.found.lock().expect("found").get(&id).cloned().ok_or(Errno::BADF)
    }

    fn open_file(&self, open: OpenNumber) -> Result<Arc<OpenFile>, Errno> {
        self.opens.lock().expect("opens").get(&open).cloned().ok_or(Errno::BADF)
    }

    fn learn(&self, fd: OwnedFd) -> Result<FileId, Errno> {
        let id = id_of(&fd)?;
        self.found.lock().expect("found").entry(id).or_insert(Arc::new(fd));
        Ok(id)
    }

    fn opened(&self, number: OpenNumber, fd: OwnedFd, flags: OFlags) -> Result<FileId, Errno> {
        let id = id_of(&fd)?;
        let open = OpenFile {
            fd,
            id,
            is_append: flags.contains(OFlags::APPEND),
            can_write: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
            can_read: !flags.contains(OFlags::WRONLY),
            is_directory: flags.contains(OFlags::DIRECTORY),
            position: Mutex::default(),
        };
        self.opens.lock().expect("opens").insert(number, Arc::new(open));
        Ok(id)
    }

    /// Makes a call. `None` if the mount has died.
    pub fn perform(&self, call: &Call) -> Option<Answered> {
        let mut made = self.attempt(call);
        // A kernel may know a directory at the place from where another mount moved it. While
        // something is renamed, it cannot find it at its new place, and says ESTALE. By the old
        // place, it may take a rename for one of a directory below itself. A program that looks at
        // the paths first tells the kernel. What was refused has done nothing, and is tried again.
        for _ in 0..LOOKS_MAX {
            let is_by_place = match made {
                Err(Errno::STALE) => true,
                Err(Errno::INVAL | Errno::NOTEMPTY) => matches!(call, Call::Rename { .. }),
                _ => false,
            };
            if !is_by_place {
                break;
            }
            look_below(&self.root);
            made = self.attempt(call);
        }
        match made {
            Ok(seen) => Some(Ok(seen)),
            Err(errno) => error(errno).map(Err),
        }
    }

    fn attempt(&self, call: &Call) -> Result<Seen, Errno> {
        match call {
            Call::Lookup { .. } | Call::Getattr { .. } | Call::ReadLink { .. } | Call::List { .. } => self.look(call),
            Call::Create { .. }
            | Call::MakeDirectory { .. }
            | Call::Symlink { .. }
            | Call::Link { .. }
            | Call::Unlink { .. }
            | Call::RemoveDirectory { .. }
            | Call::Rename { .. } => self.change_names(call),
            Call::Mode { .. }
            | Call::SetXattr { .. }
            | Call::GetXattr { .. }
            | Call::RemoveXattr { .. }
            | Call::ListXattr { .. } => self.attributes(call),
            _ => self.with_open(call),
        }
    }

    fn look(&self, call: &Call) -> Result<Seen, Errno> {
        Ok(match call {
            Call::Lookup { dir, name } => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(&*self.node(*dir)?, name.as_str(), flags, Mode::empty())?;
                Seen::File(self.learn(fd)?)
            }
            Call::Getattr { id } => {
                let s = stat(&*self.node(*id)?, AtFlags::empty())?;
                let attr = attr(s.stx_ino, s.stx_mode.into(), s.stx_nlink.into(), (s.stx_uid, s.stx_gid), s.stx_size);
                Seen::Entry(Entry::new(attr, Default::default()))
            }
            Call::ReadLink { id } => {
                Seen::Bytes(rustix::fs::readlinkat(&*self.node(*id)?, "", Vec::new())?.into_bytes().into())
            }
            Call::List { open, .. } => {
                let open = self.open_file(*open)?;
                let _position = open.position.lock().expect("position");
                rustix::fs::seek(&open.fd, rustix::fs::SeekFrom::Start(0))?;
                // The kernel itself refuses to list a directory that was removed at this mount.
                let is_removed = || stat(&open.fd, AtFlags::STATX_DONT_SYNC).is_ok_and(|s| s.stx_nlink == 0);
                let mut entries = match list_once(&open.fd) {
                    Err(Errno::NOENT) if is_removed() => Vec::new(),
                    listed => listed?,
                };
                entries.sort_by(|a, b| a.name.cmp(&b.name));
                Seen::Listed(entries)
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn change_names(&self, call: &Call) -> Result<Seen, Errno> {
        match call {
            Call::Create { dir, name, mode, open, append } => {
                let mut flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                flags.set(OFlags::APPEND, *append);
                let mode = Mode::from_raw_mode(*mode);
                let fd = rustix::fs::openat(&*self.node(*dir)?, name.as_str(), flags, mode)?;
                self.learn(rustix::fs::open(again(&fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)?;
                return Ok(Seen::File(self.opened(*open, fd, flags)?));
            }
            Call::MakeDirectory { dir, name } => {
                rustix::fs::mkdirat(&*self.node(*dir)?, name.as_str(), Mode::from_raw_mode(0o755))?
            }
            Call::Symlink { dir, name, target } => {
                rustix::fs::symlinkat(target.as_str(), &*self.node(*dir)?, name.as_str())?
            }
            Call::Link { id, dir, name } => {
                let (from, to) = (self.node(*id)?, self.node(*dir)?);
                rustix::fs::linkat(&*from, "", &*to, name.as_str(), AtFlags::EMPTY_PATH)?
            }
            Call::Unlink { dir, name } => rustix::fs::unlinkat(&*self.node(*dir)?, name.as_str(), AtFlags::empty())?,
            Call::RemoveDirectory { dir, name } => {
                rustix::fs::unlinkat(&*self.node(*dir)?, name.as_str(), AtFlags::REMOVEDIR)?
            }
            Call::Rename { dir, name, to_dir, to, flags } => {
                let mut how = RenameFlags::empty();
                how.set(RenameFlags::NOREPLACE, flags.no_replace);
                how.set(RenameFlags::EXCHANGE, flags.exchange);
                let (from, into) = (self.node(*dir)?, self.node(*to_dir)?);
                rustix::fs::renameat_with(&*from, name.as_str(), &*into, to.as_str(), how)?
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(Seen::Done)
    }

    fn attributes(&self, call: &Call) -> Result<Seen, Errno> {
        match call {
            Call::Mode { id, mode } => rustix::fs::chmod(again(&*self.node(*id)?), Mode::from_raw_mode(*mode))?,
            Call::SetXattr { id, name, value, mode } => {
                let flags = match mode {
                    XattrMode::Any => XattrFlags::empty(),
                    XattrMode::Create => XattrFlags::CREATE,
                    XattrMode::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::setxattr(again(&*self.node(*id)?), name.as_str(), value.as_bytes(), flags)?
            }
            Call::GetXattr { id, name } => {
                let mut value = vec![0; XATTR_BYTES];
                let len = rustix::fs::getxattr(again(&*self.node(*id)?), name.as_str(), &mut value[..])?;
                value.truncate(len);
                return Ok(Seen::Bytes(value.into()));
            }
            Call::RemoveXattr { id, name } => rustix::fs::removexattr(again(&*self.node(*id)?), name.as_str())?,
            Call::ListXattr { id } => return Ok(Seen::Names(xattr_names(again(&*self.node(*id)?).as_ref())?)),
            _ => return Err(Errno::NOSYS),
        }
        Ok(Seen::Done)
    }

    fn with_open(&self, call: &Call) -> Result<Seen, Errno> {
        Ok(match call {
            Call::Open { id, open, flags } => {
                let mut how = OFlags::CLOEXEC;
                how |= match (flags.read, flags.write) {
                    (true, true) => OFlags::RDWR,
                    (false, true) => OFlags::WRONLY,
                    _ => OFlags::RDONLY,
                };
                how.set(OFlags::APPEND, flags.append);
                how.set(OFlags::TRUNC, flags.truncate);
                let fd = rustix::fs::open(again(&*self.node(*id)?), how, Mode::empty())?;
                self.opened(*open, fd, how)?;
                Seen::Opened(vfs::Handle::NONE)
            }
            Call::OpenDirectory { id, open } => {
                let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let fd = rustix::fs::open(again(&*self.node(*id)?), how, Mode::empty())?;
                self.opened(*open, fd, how)?;
                Seen::Opened(vfs::Handle::NONE)
            }
            Call::Read { open, offset, len } => {
                let mut bytes = vec![0; *len as usize];
                let count = rustix::io::pread(&self.open_file(*open)?.fd, &mut bytes[..], *offset)?;
                bytes.truncate(count);
                Seen::Bytes(bytes.into())
            }
            Call::Write { open, offset, fill, len } => {
                let bytes = vec![*fill; *len as usize];
                Seen::Count(rustix::io::pwrite(&self.open_file(*open)?.fd, &bytes, *offset)? as u32)
            }
            Call::Append { open, fill, len } => {
                Seen::Count(rustix::io::pwrite(&self.open_file(*open)?.fd, &vec![*fill; *len as usize], 0)? as u32)
            }
            Call::Truncate { id, size } => {
                let path = CString::new(again(&*self.node(*id)?)).map_err(|_| Errno::INVAL)?;
                // SAFETY: the path ends in NUL.
                let done = unsafe { libc::truncate(path.as_ptr(), *size as libc::off_t) };
                if done != 0 {
                    return Err(last_errno());
                }
                Seen::Done
            }
            Call::TruncateOpen { open, size } => {
                rustix::fs::ftruncate(&self.open_file(*open)?.fd, *size)?;
                Seen::Done
            }
            Call::Fsync { open } => {
                rustix::fs::fsync(&self.open_file(*open)?.fd)?;
                Seen::Done
            }
            Call::Lock { open, exclusive, first, last } => {
                self.lock(&self.open_file(*open)?.fd, *exclusive, (*first, *last))?;
                Seen::Done
            }
            Call::Close { open } | Call::CloseDirectory { open } => {
                drop(self.opens.lock().expect("opens").remove(open).ok_or(Errno::BADF)?);
                Seen::Done
            }
            Call::Sync => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::fsync(rustix::fs::open(&self.root, flags, Mode::empty())?)?;
                Seen::Done
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    /// Locks all of a file by flock, and a part by the open file's own fcntl locks.
    fn lock(&self, fd: &OwnedFd, exclusive: Option<bool>, (first, last): (u64, u64)) -> Result<(), Errno> {
        if last == u64::MAX && first == 0 {
            let how = match exclusive {
                None => FlockOperation::NonBlockingUnlock,
                Some(true) => FlockOperation::NonBlockingLockExclusive,
                Some(false) => FlockOperation::NonBlockingLockShared,
            };
            return rustix::fs::flock(fd, how);
        }
        let kind = match exclusive {
            None => libc::F_UNLCK,
            Some(true) => libc::F_WRLCK,
            Some(false) => libc::F_RDLCK,
        };
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: first as i64,
            l_len: (last - first + 1) as i64,
            l_pid: 0,
        };
        // SAFETY: the structure outlives the call.
        let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
        if done == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Everything below the root.
    pub fn tree(&self) -> Vec<TreeEntry> {
        let mut firsts = BTreeMap::new();
        let mut todo = vec![(Vec::new(), self.root.clone())];
        let mut entries = Vec::new();
        while let Some((name, path)) = todo.pop() {
            let seen = std::fs::symlink_metadata(&path).expect("stat");
            let attr = attr(seen.ino(), seen.mode(), seen.nlink(), (seen.uid(), seen.gid()), seen.size());
            let (mut content, mut target) = (ContentHash::default(), None);
            match attr.kind {
                Kind::File => content.add(0, &std::fs::read(&path).expect("read")),
                Kind::Symlink => {
                    target = Some(std::fs::read_link(&path).expect("link").as_os_str().as_bytes().to_vec())
                }
                Kind::Directory => {
                    let below =
                        std::fs::read_dir(&path).expect("list").map(|entry| entry.expect("an entry").file_name());
                    let mut below: Vec<_> = below.collect();
                    below.sort_by(|a, b| b.cmp(a));
                    todo.extend(below.into_iter().map(|n| ([&name[..], b"/", n.as_bytes()].concat(), path.join(n))));
                }
                _ => {}
            }
            let names = if target.is_none() { xattr_names(&path).expect("xattrs") } else { Vec::new() };
            let value = |xattr: &Vec<u8>| {
                let mut value = vec![0; XATTR_BYTES];
                let len = rustix::fs::getxattr(&path, xattr.as_slice(), &mut value[..]).expect("xattr");
                value.truncate(len);
                value
            };
            let xattrs = names.into_iter().map(|xattr| (xattr.clone(), value(&xattr))).collect();
            let first_path = firsts.entry(attr.id).or_insert_with(|| name.clone()).clone();
            entries.push(TreeEntry { path: name, first_path, attr, content: content.finish(), target, xattrs });
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries
    }
}

/// Looks at all directories below a path, as far as they can be found.
fn look_below(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if std::fs::symlink_metadata(entry.path()).is_ok_and(|found| found.is_dir()) {
            look_below(&entry.path());
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn xattr_names(path: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = vec![0u8; XATTR_BYTES];
    let len = rustix::fs::listxattr(path, &mut names[..])?;
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec);
    let mut names: Vec<_> = names.collect();
    names.sort();
    Ok(names)
}

/// What one call for entries gives, without `.` and `..`.
fn list_once(fd: &OwnedFd) -> Result<Vec<DirEntry>, Errno> {
    let mut buffer = vec![0u8; LISTING_BYTES];
    // SAFETY: the buffer has the length given.
    let len = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
    let len = usize::try_from(len).map_err(|_| last_errno())?;
    let (mut entries, mut rest) = (Vec::new(), &buffer[..len]);
    // Each is: inode, cookie, length of all of it, type, name, NUL.
    while rest.len() > 19 {
        let number = |at: usize| u64::from_le_bytes(rest[at..at + 8].try_into().expect("eight bytes"));
        let length = usize::from(u16::from_le_bytes([rest[16], rest[17]]));
        let name = rest[19..length].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        let (id, cookie, kind) = (FileId::new(number(0)), number(8), kind_of(u32::from(rest[18]) << 12));
        if name != b"." && name != b".." {
            entries.push(DirEntry { name, id, kind, cookie, attr: None });
        }
        rest = &rest[length..];
    }
    Ok(entries)
}
