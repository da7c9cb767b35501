//! A model of the kernel between applications and the client: what Linux's FUSE keeps and answers without asking.
//!
//! Names, attributes (for as long as [`Entry::valid`] says) and pages of files, kept over close and open as the mount option
//! `keep_cache` has it. Changes made through the mount update or drop what is cached as fs/fuse does; nothing else ever does. Comparing
//! what this answers with the model therefore shows whether the client keeps to its side: what it let the kernel cache never changes
//! behind the kernel's back.
//!
//! Callers that share a file or a directory must not call at the same time: the kernel's own locks are not modelled.

use bytes::{Bytes, BytesMut};
use host::Clock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, Attr, FileId, FsError, Kind};
use vfs::fs::{
    Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode, OpenFlags, RenameFlags, Seek,
    SetAttr, XattrMode,
};

const PAGE: u64 = 4096;
/// How long a name that is not there may be remembered, as the mount does it.
const ABSENT_VALID: Duration = Duration::from_secs(1);

/// See the module's header. Clones are the same kernel.
#[derive(Clone)]
pub struct Kernel {
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    cached: Arc<Mutex<Cached>>,
}

#[derive(Default)]
struct Cached {
    /// `None`: known not to be there. With the time until which that is valid.
    names: BTreeMap<(FileId, Vec<u8>), (Option<FileId>, Duration)>,
    attributes: BTreeMap<FileId, (Attr, Duration)>,
    /// Whole pages; the last one of a file is filled up with zeroes.
    pages: BTreeMap<(FileId, u64), Bytes>,
    /// How each handle was opened.
    handles: BTreeMap<u64, OpenFlags>,
    hits: u64,
}

impl Cached {
    fn keep(&mut self, now: Duration, entry: &Entry) {
        self.attributes.insert(entry.attr.id, (entry.attr, now + entry.valid));
    }

    fn keep_name(&mut self, now: Duration, parent: FileId, name: &[u8], entry: &Entry) {
        self.names.insert((parent, name.to_vec()), (Some(entry.attr.id), now + entry.valid));
        self.keep(now, entry);
    }

    fn attribute(&mut self, now: Duration, id: FileId) -> Option<Entry> {
        let (attr, until) = *self.attributes.get(&id)?;
        (now < until).then(|| {
            self.hits += 1;
            Entry { attr, valid: until - now }
        })
    }

    /// The object behind a name lost that name.
    fn unlinked(&mut self, parent: FileId, name: &[u8]) {
        self.attributes.remove(&parent);
        let Some((Some(id), _)) = self.names.remove(&(parent, name.to_vec())) else { return };
        if let Some((attr, _)) = self.attributes.get_mut(&id) {
            attr.nlink = if attr.kind == Kind::Directory { 0 } else { attr.nlink.saturating_sub(1) };
        }
    }

    /// Both names were looked up before.
    fn renamed(&mut self, from: (FileId, Vec<u8>), to: (FileId, Vec<u8>), exchange: bool) {
        self.forget(from.0);
        self.forget(to.0);
        if from == to {
            return;
        }
        match (self.names.remove(&from), self.names.remove(&to)) {
            // Two names of one file: nothing happened.
            (Some(one), Some(other)) if one.0 == other.0 => self.names.extend([(from, one), (to, other)]),
            (Some(one), Some(other)) if exchange => self.names.extend([(from, other), (to, one)]),
            (one, other) => {
                if let Some(other) = other {
                    self.names.insert(to.clone(), other);
                    self.unlinked(to.0, &to.1);
                }
                self.names.extend(one.map(|one| (to, one)));
            }
        }
    }

    fn forget(&mut self, id: FileId) {
        self.attributes.remove(&id);
    }

    fn drop_pages(&mut self, id: FileId, bytes: Range<u64>) {
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        self.pages.extract_if((id, pages.start)..(id, pages.end), |_, _| true).for_each(drop);
    }

    /// A new size: what is beyond is gone, and zeroes if the file grows again.
    fn resize(&mut self, id: FileId, size: u64) {
        self.drop_pages(id, size.next_multiple_of(PAGE)..u64::MAX / 2);
        if let Some(page) = self.pages.get_mut(&(id, size / PAGE)) {
            let mut changed = BytesMut::from(&page[..]);
            changed[(size % PAGE) as usize..].fill(0);
            *page = changed.freeze();
        }
    }

    /// What was written is in the cache too, where the page was there or is written whole.
    fn wrote(&mut self, id: FileId, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for index in offset / PAGE..end.div_ceil(PAGE) {
            let (start, stop) = (offset.max(index * PAGE), end.min((index + 1) * PAGE));
            let piece = &data[(start - offset) as usize..(stop - offset) as usize];
            let whole = piece.len() as u64 == PAGE;
            let Some(old) = self.pages.get(&(id, index)).cloned().or(whole.then(Bytes::new)) else { continue };
            let mut page = BytesMut::from(&old[..]);
            page.resize(PAGE as usize, 0);
            page[(start - index * PAGE) as usize..(stop - index * PAGE) as usize].copy_from_slice(piece);
            self.pages.insert((id, index), page.freeze());
        }
    }
}

impl Kernel {
    /// A kernel that has cached nothing of `fs`.
    pub fn new(fs: Arc<dyn FileSystem>, clock: Arc<dyn Clock>) -> Self {
        Kernel { fs, clock, cached: Arc::default() }
    }

    /// Requests and pages that were answered from memory so far.
    pub fn hits(&self) -> u64 {
        self.cached.lock().hits
    }

    /// Passes a call on and lets `update` change what is cached, if it succeeded.
    fn pass<T: Send + 'static>(
        &self,
        answer: Answer<T>,
        update: impl FnOnce(&mut Cached, Duration, &T) + Send + 'static,
    ) -> Answer<T> {
        let kernel = self.clone();
        Answer::later(async move {
            let result = answer.await?;
            update(&mut kernel.cached.lock(), kernel.clock.now(), &result);
            Ok(result)
        })
    }

    fn passed_new(&self, answer: Answer<Entry>, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let name = name.to_vec();
        self.pass(answer, move |c, now, entry| {
            c.attributes.remove(&parent);
            c.keep_name(now, parent, &name, entry);
        })
    }

    async fn read_cached(self, id: FileId, handle: Handle, offset: u64, len: u32) -> Result<Bytes, FsError> {
        if self.cached.lock().handles.get(&handle.0).is_some_and(|flags| !flags.read) {
            return Err(FsError::BadHandle);
        }
        // As the kernel does, the size is taken from the attributes.
        let size = self.getattr(id).await?.attr.size;
        let end = offset.saturating_add(len.into()).min(size);
        if offset >= end {
            return Ok(Bytes::new());
        }
        let missing: Vec<u64> = {
            let cached = self.cached.lock();
            (offset / PAGE..end.div_ceil(PAGE)).filter(|index| !cached.pages.contains_key(&(id, *index))).collect()
        };
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let start = first * PAGE;
            let bytes = self.fs.read(id, handle, start, ((last + 1) * PAGE - start) as u32).await?;
            let mut cached = self.cached.lock();
            for index in missing {
                let at = ((index * PAGE - start) as usize).min(bytes.len());
                let mut page = BytesMut::from(&bytes[at..(at + PAGE as usize).min(bytes.len())]);
                page.resize(PAGE as usize, 0);
                cached.pages.insert((id, index), page.freeze());
            }
        }
        let mut cached = self.cached.lock();
        let mut out = Vec::with_capacity((end - offset) as usize);
        for index in offset / PAGE..end.div_ceil(PAGE) {
            cached.hits += 1;
            let (start, stop) = (offset.max(index * PAGE), end.min((index + 1) * PAGE));
            let page = cached.pages.get(&(id, index)).ok_or(FsError::Io)?;
            out.extend_from_slice(&page[(start - index * PAGE) as usize..(stop - index * PAGE) as usize]);
        }
        Ok(out.into())
    }
}

impl FileSystem for Kernel {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let (kernel, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        Answer::later(async move {
            let now = kernel.clock.now();
            let known =
                kernel.cached.lock().names.get(&(parent, name.clone())).copied().filter(|(_, until)| now < *until);
            match known {
                Some((Some(id), _)) => return kernel.getattr(id).await,
                Some((None, _)) => return Err(FsError::NotFound),
                None => {}
            }
            let result = kernel.fs.lookup(&cred, parent, &name).await;
            let (now, mut cached) = (kernel.clock.now(), kernel.cached.lock());
            match &result {
                Ok(entry) => cached.keep_name(now, parent, &name, entry),
                Err(FsError::NotFound) => {
                    cached.names.insert((parent, name), (None, now + ABSENT_VALID));
                }
                Err(_) => {}
            }
            result
        })
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        let known = self.cached.lock().attribute(self.clock.now(), id);
        if let Some(entry) = known {
            return Answer::ok(entry);
        }
        self.pass(self.fs.getattr(id), |c, now, entry| c.keep(now, entry))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        self.pass(self.fs.setattr(cred, id, handle, set), move |c, now, entry| {
            if let Some(size) = set.size {
                c.resize(id, size);
            }
            c.keep(now, entry);
        })
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.fs.readlink(id)
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        self.passed_new(self.fs.mknod(cred, parent, name, node), parent, name)
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
        let named = name.to_vec();
        self.pass(self.fs.create(cred, parent, name, mode, umask, flags), move |c, now, (entry, handle)| {
            c.attributes.remove(&parent);
            c.keep_name(now, parent, &named, entry);
            c.handles.insert(handle.0, flags);
        })
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        self.passed_new(self.fs.mkdir(cred, parent, name, mode, umask), parent, name)
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        self.passed_new(self.fs.symlink(cred, parent, name, target), parent, name)
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        self.passed_new(self.fs.link(cred, id, new_parent, new_name), new_parent, new_name)
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (kernel, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        Answer::later(async move {
            kernel.lookup(&cred, parent, &name).await?;
            let named = name.clone();
            kernel.pass(kernel.fs.unlink(&cred, parent, &name), move |c, _, ()| c.unlinked(parent, &named)).await
        })
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (kernel, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        Answer::later(async move {
            kernel.lookup(&cred, parent, &name).await?;
            let named = name.clone();
            kernel.pass(kernel.fs.rmdir(&cred, parent, &name), move |c, _, ()| c.unlinked(parent, &named)).await
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
        let (from, to) = ((parent, name.to_vec()), (new_parent, new_name.to_vec()));
        let (kernel, cred) = (self.clone(), cred.clone());
        Answer::later(async move {
            // The kernel knows both before it asks; whether they must exist is for the file system to say.
            let _ = kernel.lookup(&cred, from.0, &from.1).await;
            let _ = kernel.lookup(&cred, to.0, &to.1).await;
            kernel.fs.rename(&cred, from.0, &from.1, to.0, &to.1, flags).await?;
            kernel.cached.lock().renamed(from, to, flags.exchange);
            Ok(())
        })
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        self.fs.access(cred, id, mask)
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        self.pass(self.fs.open(cred, id, flags), move |c, _, handle| {
            c.handles.insert(handle.0, flags);
            if flags.truncate {
                c.resize(id, 0);
                c.attributes.remove(&id);
            }
        })
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        Answer::later(self.clone().read_cached(id, handle, offset, len))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let (kernel, cred, data) = (self.clone(), cred.clone(), data.to_vec());
        Answer::later(async move {
            let append = kernel.cached.lock().handles.get(&handle.0).is_some_and(|flags| flags.append);
            // The kernel appends at the size it knows.
            let offset = if append { kernel.getattr(id).await?.attr.size } else { offset };
            let written = kernel.fs.write(&cred, id, handle, offset, &data).await?;
            let mut cached = kernel.cached.lock();
            cached.wrote(id, offset, &data[..written as usize]);
            cached.attributes.remove(&id);
            Ok(written)
        })
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.fs.fsync(id, handle, data_only)
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.fs.fsync_dir(id, handle)
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.fs.flush(id, handle, lock_owner)
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        self.cached.lock().handles.remove(&handle.0);
        self.fs.release(id, handle, flock_owner)
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        self.fs.opendir(cred, id)
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        self.fs.readdir(id, handle, cookie, count_max, plus)
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.fs.releasedir(id, handle)
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        self.fs.getxattr(cred, id, name)
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.pass(self.fs.setxattr(cred, id, name, value, mode), move |c, _, ()| c.forget(id))
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        self.fs.listxattr(cred, id)
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        self.pass(self.fs.removexattr(cred, id, name), move |c, _, ()| c.forget(id))
    }

    fn fallocate(&self, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        self.pass(self.fs.fallocate(id, handle, offset, len, mode), move |c, _, ()| {
            if !matches!(mode, Fallocate::Allocate | Fallocate::AllocateKeepSize) {
                c.drop_pages(id, offset..offset + len);
            }
            c.attributes.remove(&id);
        })
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.fs.lseek(id, handle, offset, whence)
    }

    fn copy_file_range(
        &self,
        id_in: FileId,
        handle_in: Handle,
        offset_in: u64,
        id_out: FileId,
        handle_out: Handle,
        offset_out: u64,
        len: u64,
    ) -> Answer<u64> {
        let copied = self.fs.copy_file_range(id_in, handle_in, offset_in, id_out, handle_out, offset_out, len);
        self.pass(copied, move |c, _, copied| {
            c.drop_pages(id_out, offset_out..offset_out + copied);
            c.attributes.remove(&id_out);
        })
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.fs.statfs()
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.fs.getlk(id, handle, lock)
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        self.fs.setlk(id, handle, lock, wait)
    }

    fn sync(&self) -> Answer<()> {
        self.fs.sync()
    }
}
