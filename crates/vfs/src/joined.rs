//! [`Joined`]: several file systems as one, each a directory of its root. Files of a part have the
//! part's number, counted from 1, as their volume. The root itself never changes.

use crate::fs::{
    Appended, At, Backing, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode, OpenFlags,
    RenameFlags, Seek, SetAttr, XattrMode,
};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, Attr, FileId, FsError, Kind, Time};

/// How long callers may cache answers about the root.
const ROOT_VALID: Duration = Duration::from_secs(3600);
/// The cookies of `.` and `..`; those of the parts come after.
const DOT_COUNT: u64 = 2;
/// Most parts: volume numbers have 16 bits.
pub const PART_COUNT_MAX: usize = u16::MAX as usize;

/// Several file systems as one.
pub struct Joined {
    parts: Vec<Part>,
    root: Attr,
}

/// A file system whose files all have volume 0, and its name.
struct Part {
    name: Vec<u8>,
    fs: Arc<dyn FileSystem>,
}

/// The id outside of a file of a part, counted from 0. `None` if the file is not of volume 0.
pub fn outer(part: usize, id: FileId) -> Option<FileId> {
    let volume = u64::try_from(part + 1).ok().filter(|volume| *volume <= PART_COUNT_MAX as u64)?;
    (id.volume() == 0).then(|| FileId::new(volume << 48 | id.raw()))
}

/// The root, or a file of a part by its id there.
enum In<'a> {
    Root,
    Part(usize, &'a dyn FileSystem, FileId),
}

fn then<T: Send + 'static, U: 'static>(
    answer: Answer<T>,
    f: impl FnOnce(T) -> Result<U, FsError> + Send + 'static,
) -> Answer<U> {
    match answer {
        Answer::Now(result) => Answer::Now(result.and_then(f)),
        Answer::Later(later) => Answer::later(async move { later.await.and_then(f) }),
    }
}

fn entry_of(part: usize, mut entry: Entry) -> Result<Entry, FsError> {
    entry.attr.id = outer(part, entry.attr.id).ok_or(FsError::Io)?;
    Ok(entry)
}

fn entry(part: usize, answer: Answer<Entry>) -> Answer<Entry> {
    then(answer, move |entry| entry_of(part, entry))
}

impl Joined {
    /// Joins file systems under their names, which must differ and be valid names of a directory.
    /// The root belongs to `uid` and `gid`, and all its times are `made`. `None` if there are more
    /// than [`PART_COUNT_MAX`].
    pub fn new(parts: Vec<(String, Arc<dyn FileSystem>)>, (uid, gid): (u32, u32), made: Time) -> Option<Joined> {
        let nlink = 2 + u32::try_from(parts.len()).ok().filter(|count| *count <= PART_COUNT_MAX as u32)?;
        let root = Attr {
            id: FileId::ROOT,
            kind: Kind::Directory,
            mode: 0o555,
            nlink,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            atime: made,
            mtime: made,
            ctime: made,
            crtime: made,
        };
        let parts = parts.into_iter().map(|(name, fs)| Part { name: name.into_bytes(), fs }).collect();
        Some(Joined { parts, root })
    }

    /// The part that has a file. ESTALE if none has.
    fn find(&self, id: FileId) -> Result<In<'_>, FsError> {
        if id == FileId::ROOT {
            return Ok(In::Root);
        }
        let at = usize::from(id.volume()).checked_sub(1).ok_or(FsError::Stale)?;
        let part = self.parts.get(at).ok_or(FsError::Stale)?;
        Ok(In::Part(at, &*part.fs, FileId::new(id.index())))
    }

    /// Asks the part that has the file; `of_root` answers for the root.
    fn ask<T>(
        &self,
        id: FileId,
        of_root: impl FnOnce() -> Result<T, FsError>,
        of_part: impl FnOnce(usize, &dyn FileSystem, FileId) -> Answer<T>,
    ) -> Answer<T> {
        match self.find(id) {
            Ok(In::Root) => Answer::Now(of_root()),
            Ok(In::Part(at, fs, id)) => of_part(at, fs, id),
            Err(error) => Answer::err(error),
        }
    }

    /// Changes a file of a part. The root is read-only.
    fn change<T>(&self, id: FileId, of_part: impl FnOnce(usize, &dyn FileSystem, FileId) -> Answer<T>) -> Answer<T> {
        self.ask(id, || Err(FsError::ReadOnly), of_part)
    }

    /// Uses an open file of a part. The root has no file handles.
    fn with_open<T>(&self, id: FileId, of_part: impl FnOnce(&dyn FileSystem, FileId) -> Answer<T>) -> Answer<T> {
        self.ask(id, || Err(FsError::BadHandle), |_, fs, id| of_part(fs, id))
    }

    /// Uses two files of the same part.
    fn with_both<T>(
        &self,
        (first, second): (FileId, FileId),
        of_part: impl FnOnce(usize, &dyn FileSystem, FileId, FileId) -> Answer<T>,
    ) -> Answer<T> {
        match (self.find(first), self.find(second)) {
            (Ok(In::Part(at, fs, first)), Ok(In::Part(other, _, second))) if at == other => {
                of_part(at, fs, first, second)
            }
            (Ok(In::Part(..)), Ok(In::Part(..))) => Answer::err(FsError::CrossVolume),
            (Ok(_), Ok(_)) => Answer::err(FsError::ReadOnly),
            (Err(error), _) | (_, Err(error)) => Answer::err(error),
        }
    }

    fn root_entries(&self) -> impl Iterator<Item = DirEntry> {
        let dots = [b".".to_vec(), b"..".to_vec()].map(|name| (name, Some(FileId::ROOT)));
        let parts = self.parts.iter().enumerate().map(|(at, part)| (part.name.clone(), outer(at, FileId::ROOT)));
        let all = dots.into_iter().chain(parts).zip(1..);
        all.filter_map(|((name, id), cookie)| {
            Some(DirEntry { name, id: id?, kind: Kind::Directory, cookie, attr: None })
        })
    }
}

impl FileSystem for Joined {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        match self.find(parent) {
            Ok(In::Root) if name == b"." || name == b".." => self.getattr(FileId::ROOT),
            Ok(In::Root) => match self.parts.iter().position(|part| part.name == name) {
                Some(at) => entry(at, self.parts[at].fs.getattr(FileId::ROOT)),
                None => Answer::err(FsError::NotFound),
            },
            Ok(In::Part(_, _, FileId::ROOT)) if name == b".." => self.getattr(FileId::ROOT),
            Ok(In::Part(at, fs, parent)) => entry(at, fs.lookup(cred, parent, name)),
            Err(error) => Answer::err(error),
        }
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        let root = Entry::new(self.root, ROOT_VALID);
        self.ask(id, || Ok(root), |at, fs, id| entry(at, fs.getattr(id)))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        self.change(id, |at, fs, id| entry(at, fs.setattr(cred, id, handle, set)))
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.ask(id, || Err(FsError::InvalidArgument), |_, fs, id| fs.readlink(id))
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        self.change(parent, |at, fs, parent| entry(at, fs.mknod(cred, parent, name, node)))
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
        self.change(parent, |at, fs, parent| {
            let made = fs.create(cred, parent, name, mode, umask, flags);
            then(made, move |(entry, handle)| Ok((entry_of(at, entry)?, handle)))
        })
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        self.change(parent, |at, fs, parent| entry(at, fs.mkdir(cred, parent, name, mode, umask)))
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        self.change(parent, |at, fs, parent| entry(at, fs.symlink(cred, parent, name, target)))
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        self.with_both((id, new_parent), |at, fs, id, parent| entry(at, fs.link(cred, id, parent, new_name)))
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.change(parent, |_, fs, parent| fs.unlink(cred, parent, name))
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.change(parent, |_, fs, parent| fs.rmdir(cred, parent, name))
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
        self.with_both((parent, new_parent), |_, fs, parent, new_parent| {
            fs.rename(cred, parent, name, new_parent, new_name, flags)
        })
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        let of_root = || if mask & 2 == 0 { Ok(()) } else { Err(FsError::ReadOnly) };
        self.ask(id, of_root, |_, fs, id| fs.access(cred, id, mask))
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        self.ask(id, || Err(FsError::IsADirectory), |_, fs, id| fs.open(cred, id, flags))
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        self.with_open(id, |fs, id| fs.read(id, handle, offset, len))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        self.with_open(id, |fs, id| fs.write(cred, id, handle, offset, data))
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        self.with_open(id, |fs, id| fs.append(cred, id, handle, data))
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.with_open(id, |fs, id| fs.fsync(id, handle, data_only))
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.ask(id, || Ok(()), |_, fs, id| fs.fsync_dir(id, handle))
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.with_open(id, |fs, id| fs.flush(id, handle, lock_owner))
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        self.with_open(id, |fs, id| fs.release(id, handle, flock_owner))
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        self.ask(id, || Ok(Handle(0)), |_, fs, id| fs.opendir(cred, id))
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        let of_root = || Ok(self.root_entries().filter(|entry| entry.cookie > cookie).take(count_max).collect());
        self.ask(id, of_root, |at, fs, dir| {
            then(fs.readdir(dir, handle, cookie, count_max, plus), move |mut entries| {
                for entry in &mut entries {
                    let is_above = dir == FileId::ROOT && entry.cookie == DOT_COUNT && entry.name == b"..";
                    entry.id = if is_above { FileId::ROOT } else { outer(at, entry.id).ok_or(FsError::Io)? };
                    // The attributes are those of the part's root.
                    entry.attr = entry.attr.filter(|_| !is_above);
                    if let Some(attr) = &mut entry.attr {
                        attr.id = entry.id;
                    }
                }
                Ok(entries)
            })
        })
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.ask(id, || Ok(()), |_, fs, id| fs.releasedir(id, handle))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        self.ask(id, || Err(FsError::NoSuchXattr), |_, fs, id| fs.getxattr(cred, id, name))
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.change(id, |_, fs, id| fs.setxattr(cred, id, name, value, mode))
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        self.ask(id, || Ok(Vec::new()), |_, fs, id| fs.listxattr(cred, id))
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        self.change(id, |_, fs, id| fs.removexattr(cred, id, name))
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        self.with_open(id, |fs, id| fs.fallocate(cred, id, handle, offset, len, mode))
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.with_open(id, |fs, id| fs.lseek(id, handle, offset, whence))
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        self.with_both((from.id, to.id), |_, fs, from_id, to_id| {
            fs.copy_file_range(cred, At { id: from_id, ..from }, At { id: to_id, ..to }, len)
        })
    }

    /// The figures of the largest part: some parts may share their space, so a sum could count it
    /// twice.
    fn statfs(&self) -> Answer<FsStat> {
        let all: Vec<_> = self.parts.iter().map(|part| part.fs.statfs()).collect();
        Answer::later(async move {
            let mut largest: Option<FsStat> = None;
            for one in all {
                let one = one.await?;
                largest = largest.filter(|largest| largest.total_bytes >= one.total_bytes).or(Some(one));
            }
            largest.ok_or(FsError::Io)
        })
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.with_open(id, |fs, id| fs.getlk(id, handle, lock))
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        self.with_open(id, |fs, id| fs.setlk(id, handle, lock, wait))
    }

    fn backing(&self, id: FileId, handle: Handle) -> Answer<Option<Backing>> {
        self.ask(id, || Ok(None), |_, fs, id| fs.backing(id, handle))
    }

    fn will_be_mapped(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.with_open(id, |fs, id| fs.will_be_mapped(id, handle))
    }

    fn sync(&self) -> Answer<()> {
        let all: Vec<_> = self.parts.iter().map(|part| part.fs.sync()).collect();
        Answer::later(async move {
            let mut synced = Ok(());
            for one in all {
                synced = synced.and(one.await);
            }
            synced
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemFs;
    use std::task::{Context, Poll, Waker};

    const ME: Cred = Cred::ROOT;
    const TIME: Time = Time { sec: 7, nsec: 0 };

    fn joined() -> (Joined, [MemFs; 2]) {
        let parts = [(); 2].map(|()| MemFs::new(Arc::new(|| TIME)));
        let named = ["one", "two"].into_iter().zip(&parts);
        let named = named.map(|(name, fs)| (name.to_string(), Arc::new(fs.clone()) as Arc<dyn FileSystem>)).collect();
        (Joined::new(named, (1, 2), TIME).unwrap(), parts)
    }

    fn now<T>(answer: Answer<T>) -> Result<T, FsError> {
        match answer {
            Answer::Now(result) => result,
            Answer::Later(mut later) => match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(result) => result,
                Poll::Pending => panic!("the model never waits"),
            },
        }
    }

    fn names(fs: &Joined, id: FileId) -> Vec<(String, FileId)> {
        let handle = now(fs.opendir(&ME, id)).unwrap();
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let some = now(fs.readdir(id, handle, cookie, 1, true)).unwrap();
            let Some(last) = some.last() else { break };
            cookie = last.cookie;
            assert!(some.iter().all(|entry| entry.attr.is_none_or(|attr| attr.id == entry.id)));
            all.extend(some.into_iter().map(|entry| (String::from_utf8(entry.name).unwrap(), entry.id)));
        }
        now(fs.releasedir(id, handle)).unwrap();
        all
    }

    #[test]
    fn each_part_is_a_directory_of_the_root() {
        let (fs, _) = joined();
        let root = now(fs.getattr(FileId::ROOT)).unwrap().attr;
        assert_eq!((root.kind, root.nlink, root.uid, root.gid), (Kind::Directory, 4, 1, 2));
        let listed = names(&fs, FileId::ROOT);
        let one = now(fs.lookup(&ME, FileId::ROOT, b"one")).unwrap().attr.id;
        let two = now(fs.lookup(&ME, FileId::ROOT, b"two")).unwrap().attr.id;
        let expected = [(".", FileId::ROOT), ("..", FileId::ROOT), ("one", one), ("two", two)];
        assert_eq!(listed, expected.map(|(name, id)| (name.to_string(), id)));
        assert_ne!(one, two);
        assert_eq!(names(&fs, one), [(".".to_string(), one), ("..".to_string(), FileId::ROOT)]);
        assert_eq!(now(fs.lookup(&ME, one, b"..")).unwrap().attr.id, FileId::ROOT);
        assert_eq!(now(fs.lookup(&ME, FileId::ROOT, b"three")).err(), Some(FsError::NotFound));
    }

    #[test]
    fn what_is_done_in_a_part_is_done_there() {
        let (fs, parts) = joined();
        let two = now(fs.lookup(&ME, FileId::ROOT, b"two")).unwrap().attr.id;
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let (made, handle) = now(fs.create(&ME, two, b"file", 0o644, 0, flags)).unwrap();
        let id = made.attr.id;
        assert_eq!(now(fs.write(&ME, id, handle, 0, b"text")), Ok(4));
        assert_eq!(now(fs.read(id, handle, 0, 9)).unwrap(), "text");
        assert_eq!(names(&fs, two)[2], ("file".to_string(), id));
        assert_eq!(now(parts[1].lookup(&ME, FileId::ROOT, b"file")).unwrap().attr.size, 4);
        assert_eq!(now(parts[0].lookup(&ME, FileId::ROOT, b"file")).err(), Some(FsError::NotFound));
        let found = now(fs.lookup(&ME, two, b"file")).unwrap().attr;
        assert_eq!((found.id, found.size), (id, 4));
        assert_eq!(now(fs.release(id, handle, None)), Ok(()));
        assert_eq!(now(fs.sync()), Ok(()));
    }

    #[test]
    fn nothing_moves_between_parts_or_changes_the_root() {
        let (fs, _) = joined();
        let [one, two] = ["one", "two"].map(|name| now(fs.lookup(&ME, FileId::ROOT, name.as_bytes())).unwrap().attr.id);
        let dir = now(fs.mkdir(&ME, one, b"dir", 0o755, 0)).unwrap().attr.id;
        let rename = |from, name: &[u8], to| now(fs.rename(&ME, from, name, to, b"new", RenameFlags::default()));
        assert_eq!(rename(one, b"dir", two), Err(FsError::CrossVolume));
        assert_eq!(rename(FileId::ROOT, b"one", two), Err(FsError::ReadOnly));
        assert_eq!(rename(one, b"dir", FileId::ROOT), Err(FsError::ReadOnly));
        assert_eq!(now(fs.link(&ME, dir, two, b"new")).err(), Some(FsError::CrossVolume));
        assert_eq!(now(fs.mkdir(&ME, FileId::ROOT, b"three", 0o755, 0)).err(), Some(FsError::ReadOnly));
        assert_eq!(now(fs.rmdir(&ME, FileId::ROOT, b"one")), Err(FsError::ReadOnly));
        assert_eq!(now(fs.access(&ME, FileId::ROOT, 2)), Err(FsError::ReadOnly));
        assert_eq!(now(fs.access(&ME, FileId::ROOT, 5)), Ok(()));
        assert_eq!(rename(one, b"dir", one), Ok(()));
    }

    #[test]
    fn what_belongs_to_no_part_is_stale() {
        let (fs, _) = joined();
        for id in [FileId::new(2), FileId::new(3 << 48 | 1), FileId::new(u64::MAX)] {
            assert_eq!(now(fs.getattr(id)).err(), Some(FsError::Stale), "{id}");
        }
        assert_eq!(outer(0, FileId::new(1 << 48)), None);
        assert_eq!(outer(PART_COUNT_MAX, FileId::ROOT), None);
    }
}
