//! [`FileSystem`] over the attempts: tried at once on the caller's thread, and as a future only if
//! something is missing.

use crate::Client;
use crate::core::Core;
use crate::namespace::Making;
use crate::state::{Attempt, ClientState, Miss, Stop};
use crate::touched;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, FileId, FsError, Kind};
use vfs::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, LockSpace, NewNode,
    OpenFlags, RenameFlags, Seek, SetAttr, XattrMode,
};

impl FileSystem for Client {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let core = &self.core;
        core.answer(core.try_lookup(cred, parent, name), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_lookup(&cred, parent, &name)
        })
    }

    fn absence_valid(&self) -> Duration {
        self.core.valid()
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.core.answer(self.core.try_getattr(id), || move |core| core.try_getattr(id))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        self.core.answer(self.core.try_setattr(cred, id, handle, set), || {
            let cred = cred.clone();
            move |core| core.try_setattr(&cred, id, handle, set)
        })
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.core.answer(self.core.try_readlink(id), || move |core| core.try_readlink(id))
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        self.core.answer(self.core.try_mknod(cred, parent, name, node), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_mknod(&cred, parent, &name, node)
        })
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
        self.core.answer(self.core.try_create(cred, parent, name, (mode, umask), flags), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_create(&cred, parent, &name, (mode, umask), flags)
        })
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        let new = move || Making { kind: Kind::Directory, mode, umask, rdev: 0, target: None };
        self.core.answer(self.core.try_make(cred, parent, name, new()), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_make(&cred, parent, &name, new())
        })
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let new = |target| Making { kind: Kind::Symlink, mode: 0o777, umask: 0, rdev: 0, target: Some(target) };
        self.core.answer(self.core.try_make(cred, parent, name, new(target)), || {
            let (cred, name, target) = (cred.clone(), name.to_vec(), target.to_vec());
            move |core| {
                let new = Making { kind: Kind::Symlink, mode: 0o777, umask: 0, rdev: 0, target: Some(&target) };
                core.try_make(&cred, parent, &name, new)
            }
        })
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        self.core.answer(self.core.try_link(cred, id, new_parent, new_name), || {
            let (cred, name) = (cred.clone(), new_name.to_vec());
            move |core| core.try_link(&cred, id, new_parent, &name)
        })
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.core.answer(self.core.try_unlink(cred, parent, name), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_unlink(&cred, parent, &name)
        })
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.core.answer(self.core.try_rmdir(cred, parent, name), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_rmdir(&cred, parent, &name)
        })
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
        self.core.answer(self.core.try_rename(cred, (parent, name), (new_parent, new_name), flags), || {
            let (cred, name, new_name) = (cred.clone(), name.to_vec(), new_name.to_vec());
            move |core| core.try_rename(&cred, (parent, &name), (new_parent, &new_name), flags)
        })
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        self.core.answer(self.core.try_access(cred, id, mask), || {
            let cred = cred.clone();
            move |core| core.try_access(&cred, id, mask)
        })
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        self.core.answer(self.core.try_open(cred, id, flags), || {
            let cred = cred.clone();
            move |core| core.try_open(&cred, id, flags)
        })
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        self.core
            .answer(self.core.try_read(id, handle, offset, len), || move |core| core.try_read(id, handle, offset, len))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        self.put(cred, (id, handle), Some(offset), data, |done| done.count)
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        self.put(cred, (id, handle), None, data, |done| done)
    }

    fn fsync(&self, id: FileId, handle: Handle, _data_only: bool) -> Answer<()> {
        let open = self.core.state.lock().handle(id, handle).map(|_| ());
        match open {
            Ok(()) => self.core.fsync(),
            Err(e) => Answer::err(e),
        }
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        let open = self.core.state.lock().directory_handle(id, handle).map(|_| ());
        match open {
            Ok(()) => self.core.fsync(),
            Err(e) => Answer::err(e),
        }
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        let result = self.core.state.lock().handle(id, handle).map(|_| ());
        match self.core.locks().release_owner(id, LockSpace::Posix, lock_owner.into()) {
            Answer::Now(released) => Answer::Now(result.and(released)),
            Answer::Later(released) => Answer::later(async move { released.await.and(result) }),
        }
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        {
            let s = &mut *self.core.state.lock();
            let open = s.handle(id, handle).map(|_| ());
            if let Err(e) = open {
                return Answer::err(e);
            }
            self.close(s, id, handle);
        }
        match flock_owner {
            Some(owner) => self.core.locks().release_owner(id, LockSpace::Flock, owner.into()),
            None => Answer::ok(()),
        }
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        self.core.answer(self.core.try_opendir(cred, id), || {
            let cred = cred.clone();
            move |core| core.try_opendir(&cred, id)
        })
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        let first = self.core.try_readdir(id, handle, cookie, count_max, plus, true);
        let mut load = !matches!(first, Err(Stop::Miss(Miss::Attributes(_))));
        self.core.answer(first, || {
            move |core| -> Attempt<Vec<DirEntry>> {
                let result = core.try_readdir(id, handle, cookie, count_max, plus, load);
                load &= !matches!(result, Err(Stop::Miss(Miss::Attributes(_))));
                result
            }
        })
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        let s = &mut *self.core.state.lock();
        let open = s.directory_handle(id, handle).map(|_| ());
        if let Err(e) = open {
            return Answer::err(e);
        }
        self.close(s, id, handle);
        Answer::ok(())
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        self.core.answer(self.core.try_getxattr(cred, id, name), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_getxattr(&cred, id, &name)
        })
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.core.answer(self.core.try_setxattr(cred, id, name, value, mode), || {
            let (cred, name, value) = (cred.clone(), name.to_vec(), value.to_vec());
            move |core| core.try_setxattr(&cred, id, &name, &value, mode)
        })
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        self.core.answer(self.core.try_listxattr(cred, id), || {
            let cred = cred.clone();
            move |core| core.try_listxattr(&cred, id)
        })
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        self.core.answer(self.core.try_removexattr(cred, id, name), || {
            let (cred, name) = (cred.clone(), name.to_vec());
            move |core| core.try_removexattr(&cred, id, &name)
        })
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        self.core.answer(self.core.try_fallocate(cred, id, handle, offset, len, mode), || {
            let cred = cred.clone();
            move |core| core.try_fallocate(&cred, id, handle, offset, len, mode)
        })
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.core.answer(self.core.try_lseek(id, handle, offset, whence), || {
            move |core| core.try_lseek(id, handle, offset, whence)
        })
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        let rights = {
            let s = &mut *self.core.state.lock();
            let readable = s.handle(from.id, from.handle).map(|open| open.flags.read);
            // copy_file_range(2) does not allow a handle that appends.
            let writable = s.handle(to.id, to.handle).map(|open| open.flags.write && !open.flags.append);
            readable.and_then(|r| Ok(r && writable?))
        };
        if !matches!(rights, Ok(true)) {
            return Answer::err(FsError::BadHandle);
        }
        if from.offset.checked_add(len).is_none() || to.offset.checked_add(len).is_none() {
            return Answer::err(FsError::Overflow);
        }
        let (fs, cred) = (self.clone(), cred.clone());
        Answer::later(async move {
            // The copy ends at the file's present size: it does not copy bytes that it adds itself.
            let size = fs.core.answer(fs.core.try_size(from.id), || move |core| core.try_size(from.id)).await?;
            let len = len.min(size.saturating_sub(from.offset));
            if from.id == to.id && from.offset < to.offset + len && to.offset < from.offset + len {
                return Err(FsError::InvalidArgument);
            }
            let mut done = 0;
            while done < len {
                let part = (len - done).min(fs.core.write_len_max as u64) as u32;
                let copied = async {
                    let bytes = fs.read(from.id, from.handle, from.offset + done, part).await?;
                    if bytes.is_empty() {
                        return Ok(0);
                    }
                    fs.write(&cred, to.id, to.handle, to.offset + done, &bytes).await
                };
                match copied.await {
                    Ok(0) => break,
                    Ok(n) => done += u64::from(n),
                    Err(_) if done > 0 => break,
                    Err(e) => return Err(e),
                }
            }
            Ok(done)
        })
    }

    fn statfs(&self) -> Answer<FsStat> {
        Answer::ok(self.core.try_statfs())
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        let open = self.core.state.lock().handle(id, handle).map(|_| ());
        match open {
            Ok(()) => self.core.locks().test(id, lock),
            Err(e) => Answer::err(e),
        }
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        let open = self.core.state.lock().handle(id, handle).map(|open| lock.is_open_to(&open.flags));
        match open {
            Ok(true) => self.core.locks().set(id, lock, wait),
            Ok(false) => Answer::err(FsError::BadHandle),
            Err(e) => Answer::err(e),
        }
    }

    fn sync(&self) -> Answer<()> {
        self.core.commit()
    }
}

impl Client {
    /// Writes at an offset, or at the end. A long write is done in parts, and each part is in one
    /// segment.
    fn put<T: Send + 'static>(
        &self,
        cred: &Cred,
        (id, handle): (FileId, Handle),
        offset: Option<u64>,
        data: &[u8],
        answer: fn(Appended) -> T,
    ) -> Answer<T> {
        let core = &self.core;
        if data.len() <= core.write_len_max {
            return core.answer(core.try_write(cred, id, handle, offset, data).map(answer), || {
                let (cred, data) = (cred.clone(), data.to_vec());
                move |core| core.try_write(&cred, id, handle, offset, &data).map(answer)
            });
        }
        let (core, cred, data) = (core.clone(), cred.clone(), data.to_vec());
        Answer::later(async move {
            let mut done: Option<Appended> = None;
            for part in data.chunks(core.write_len_max) {
                let at = offset.map(|offset| offset + u64::from(done.map_or(0, |done| done.count)));
                let attempt = |core: &Arc<Core>| core.try_write(&cred, id, handle, at, part);
                let written = match attempt(&core) {
                    Ok(written) => Ok(written),
                    Err(Stop::Fail(e)) => Err(e),
                    Err(Stop::Miss(miss)) => core.clone().repeat(miss, touched::needs(), attempt).await,
                };
                match (written, &mut done) {
                    (Ok(more), Some(done)) => done.count += more.count,
                    (Ok(first), None) => done = Some(first),
                    (Err(_), Some(_)) => break,
                    (Err(e), None) => return Err(e),
                }
            }
            done.map(answer).ok_or(FsError::Io)
        })
    }

    fn close(&self, s: &mut ClientState, id: FileId, handle: Handle) {
        if s.close(id, handle) {
            self.core.abandoned(s, id);
        }
    }
}
