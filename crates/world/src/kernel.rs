//! A model of the kernel between applications and the client: what Linux's FUSE caches and answers
//! without asking, and which requests wait for others.
//!
//! It caches names, attributes (for as long as [`Entry::valid`] says) and pages of files, which
//! stay over close and open as with the mount option `keep_cache`. Changes through the mount update
//! or drop cached items as fs/fuse does; nothing else ever does. So comparing its answers with the
//! model shows whether the client keeps its promise: data that it let the kernel cache never change
//! behind the kernel's back. The locks are in [`locks`](crate::locks); they are held until the
//! answer arrives.
//!
//! - Requests take a while to reach the client. Answers take no time, so cached items are true.
//!   Linux copes with late answers by itself (attribute versions, page locks); a test with late
//!   answers would test Linux and not the client.
//! - A read of several pages happens at one instant. Linux promises this for one page only; the
//!   difference is not the client's.
//! - The client checks permissions, except for walking cached names, which the kernel does without
//!   asking.
//! - The kernel handles O_APPEND: it does not pass it on.
//! - The kernel handles flock and fcntl locks too; the client never sees them. They are not
//!   modelled, since a test of them would test nothing of Starling.

use crate::locks::{Held, Locks};
use crate::twin::Twin;
use bytes::{Bytes, BytesMut};
use host::Host;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, Attr, FileId, FsError, Kind};
use vfs::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode, OpenFlags,
    RenameFlags, Seek, SetAttr, XattrMode,
};
use vfs::perm::{self, Subject};

const PAGE: u64 = 4096;
/// How long the kernel may remember that a name does not exist, as on a real mount.
const ABSENT_VALID: Duration = Duration::from_secs(1);
/// How long the kernel may remember the entries of a listing, as on a real mount.
const LISTED_VALID: Duration = Duration::from_secs(1);

/// Longest time that a request travels to the client, in microseconds.
const REQUEST_US_MAX: u64 = 200;

/// The modelled kernel. Clones are the same kernel.
#[derive(Clone)]
pub struct Kernel {
    fs: Twin,
    host: Host,
    locks: Arc<Locks>,
    cached: Arc<Mutex<Cached>>,
}

#[derive(Default)]
struct Cached {
    /// Names, and the time until which they are valid; `None` if the name is known not to exist.
    names: BTreeMap<(FileId, Vec<u8>), (Option<FileId>, Duration)>,
    attributes: BTreeMap<FileId, (Attr, Duration)>,
    /// Whole pages; the last one of a file is filled up with zeroes.
    pages: BTreeMap<(FileId, u64), Bytes>,
    /// How each handle was opened.
    handles: BTreeMap<u64, OpenFlags>,
    /// The parents of directories that were seen.
    parents: BTreeMap<FileId, FileId>,
    hits: u64,
}

/// What the kernel knows about a name without asking.
enum Walked {
    Known(Result<Entry, FsError>),
    /// It can answer once it has these attributes.
    Needs(FileId),
    Unknown,
}

/// The inode lock that a request needs.
enum Lock {
    Free,
    Shared(FileId),
    Exclusive(FileId),
}

impl Cached {
    fn keep(&mut self, now: Duration, entry: &Entry) {
        self.attributes.insert(entry.attr.id, (entry.attr, now + entry.valid));
    }

    fn keep_name(&mut self, now: Duration, parent: FileId, name: &[u8], entry: &Entry) {
        self.names.insert((parent, name.to_vec()), (Some(entry.attr.id), now + entry.name_valid));
        if entry.attr.kind == Kind::Directory {
            self.parents.insert(entry.attr.id, parent);
        }
        self.keep(now, entry);
    }

    /// True if the directory `id` is `below` or above it.
    fn is_above(&self, id: FileId, below: FileId) -> bool {
        std::iter::successors(Some(below), |at| self.parents.get(at).copied()).any(|at| at == id)
    }

    /// Walks one name of a path, and checks the right to search.
    fn walk(&mut self, now: Duration, cred: &Cred, parent: FileId, name: &[u8]) -> Walked {
        let Some((id, until)) = self.names.get(&(parent, name.to_vec())).copied() else { return Walked::Unknown };
        if now >= until {
            return Walked::Unknown;
        }
        let Some(dir) = self.attribute(now, parent) else { return Walked::Needs(parent) };
        if let Err(e) = perm::check(cred, &Subject::new(&dir.attr, None), perm::EXECUTE) {
            return Walked::Known(Err(e));
        }
        match id.map(|id| self.attribute(now, id).ok_or(id)) {
            None => Walked::Known(Err(FsError::NotFound)),
            Some(Ok(entry)) => Walked::Known(Ok(entry)),
            Some(Err(id)) => Walked::Needs(id),
        }
    }

    fn readable(&self, handle: Handle) -> bool {
        self.handles.get(&handle.0).is_some_and(|flags| flags.read)
    }

    fn appends(&self, handle: Handle) -> bool {
        self.handles.get(&handle.0).is_some_and(|flags| flags.append)
    }

    /// Bytes of a file from `offset` to `end`, or the first and last page that are missing.
    fn pages_of(&mut self, id: FileId, offset: u64, end: u64) -> Result<Bytes, (u64, u64)> {
        let indices = offset / PAGE..end.div_ceil(PAGE);
        let missing = |index: &u64| !self.pages.contains_key(&(id, *index));
        if let (Some(first), Some(last)) = (indices.clone().find(missing), indices.clone().rfind(missing)) {
            return Err((first, last));
        }
        self.hits += indices.end - indices.start;
        let mut out = Vec::with_capacity((end - offset) as usize);
        for ((_, index), page) in self.pages.range((id, indices.start)..(id, indices.end)) {
            let (start, stop) = (offset.max(index * PAGE), end.min((index + 1) * PAGE));
            out.extend_from_slice(&page[(start - index * PAGE) as usize..(stop - index * PAGE) as usize]);
        }
        Ok(out.into())
    }

    fn attribute(&mut self, now: Duration, id: FileId) -> Option<Entry> {
        let (attr, until) = *self.attributes.get(&id)?;
        (now < until).then(|| {
            self.hits += 1;
            Entry::new(attr, until - now)
        })
    }

    /// Updates the cache after the removal of a name.
    fn unlinked(&mut self, parent: FileId, name: &[u8]) {
        self.attributes.remove(&parent);
        let Some((Some(id), _)) = self.names.remove(&(parent, name.to_vec())) else { return };
        if let Some((attr, _)) = self.attributes.get_mut(&id) {
            attr.nlink = if attr.kind == Kind::Directory { 0 } else { attr.nlink.saturating_sub(1) };
        }
        // Forget the names in a directory that is gone.
        if self.parents.remove(&id).is_some() {
            self.names
                .extract_if((id, Vec::new())..(FileId::new(id.raw() + 1), Vec::new()), |_, _| true)
                .for_each(drop);
        }
    }

    /// Updates the cache after a rename; both names were looked up before.
    fn renamed(&mut self, from: (FileId, Vec<u8>), to: (FileId, Vec<u8>), exchange: bool) {
        self.forget(from.0);
        self.forget(to.0);
        if from == to {
            return;
        }
        match (self.names.remove(&from), self.names.remove(&to)) {
            // Two names of one file: rename does nothing.
            (Some(one), Some(other)) if one.0 == other.0 => self.names.extend([(from, one), (to, other)]),
            (Some(one), Some(other)) if exchange => {
                self.moved(&one, to.0);
                self.moved(&other, from.0);
                self.names.extend([(from, other), (to, one)]);
            }
            (one, other) => {
                if let Some(other) = other {
                    self.names.insert(to.clone(), other);
                    self.unlinked(to.0, &to.1);
                }
                if let Some(one) = one {
                    self.moved(&one, to.0);
                    self.names.insert(to, one);
                }
            }
        }
    }

    fn moved(&mut self, (id, _): &(Option<FileId>, Duration), parent: FileId) {
        if let Some(at) = id.and_then(|id| self.parents.get_mut(&id)) {
            *at = parent;
        }
    }

    fn forget(&mut self, id: FileId) {
        self.attributes.remove(&id);
    }

    fn drop_pages(&mut self, id: FileId, bytes: Range<u64>) {
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        self.pages.extract_if((id, pages.start)..(id, pages.end), |_, _| true).for_each(drop);
    }

    /// Updates the cache after a change of size: pages beyond it go, and the rest of the last page
    /// becomes zeroes.
    fn resize(&mut self, id: FileId, size: u64) {
        self.drop_pages(id, size.next_multiple_of(PAGE)..u64::MAX / 2);
        if let Some(page) = self.pages.get_mut(&(id, size / PAGE)) {
            let mut changed = BytesMut::from(&page[..]);
            changed[(size % PAGE) as usize..].fill(0);
            *page = changed.freeze();
        }
    }

    /// Updates cached pages after a write, and caches pages that were written whole.
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
    /// A kernel on a machine, with an empty cache, over `fs`.
    pub fn new(fs: Twin, host: Host) -> Self {
        Kernel { fs, host, locks: Arc::default(), cached: Arc::default() }
    }

    /// Requests and pages that were answered from memory so far.
    pub fn hits(&self) -> u64 {
        self.cached.lock().hits
    }

    /// Times that a request had to wait for an inode's lock.
    pub fn lock_waits(&self) -> u64 {
        self.locks.wait_count()
    }

    fn now(&self) -> Duration {
        self.host.clock.now()
    }

    /// Lets a request travel to the client.
    async fn travel(&self) {
        let random = self.host.random.next_u64();
        if random.is_multiple_of(4) {
            self.host.clock.sleep(Duration::from_micros((random >> 32) % REQUEST_US_MAX)).await;
        }
    }

    async fn lock(&self, lock: Lock) -> Option<Held> {
        match lock {
            Lock::Free => None,
            Lock::Shared(id) => Some(self.locks.shared(id).await),
            Lock::Exclusive(id) => Some(self.locks.exclusive(id).await),
        }
    }

    /// Makes a request under a lock. If it succeeds, `update` changes the cache.
    fn request<T: Send + 'static>(
        &self,
        lock: Lock,
        call: impl FnOnce(&Twin) -> Answer<T> + Send + 'static,
        update: impl FnOnce(&mut Cached, Duration, &T) + Send + 'static,
    ) -> Answer<T> {
        let kernel = self.clone();
        Answer::later(async move {
            let _held = kernel.lock(lock).await;
            kernel.travel().await;
            let result = call(&kernel.fs).await?;
            update(&mut kernel.cached.lock(), kernel.now(), &result);
            Ok(result)
        })
    }

    /// Like [`request`](Self::request), for changes of a file's contents.
    fn change<T: Send + 'static>(
        &self,
        lock: Lock,
        id: FileId,
        call: impl FnOnce(&Twin) -> Answer<T> + Send + 'static,
        update: impl FnOnce(&mut Cached, Duration, &T) + Send + 'static,
    ) -> Answer<T> {
        let kernel = self.clone();
        Answer::later(async move {
            let _held = kernel.lock(lock).await;
            let _changing = kernel.locks.changing(id).await;
            kernel.request(Lock::Free, call, update).await
        })
    }

    /// A request that makes a name.
    fn make(
        &self,
        parent: FileId,
        name: &[u8],
        call: impl FnOnce(&Twin) -> Answer<Entry> + Send + 'static,
    ) -> Answer<Entry> {
        let name = name.to_vec();
        self.request(Lock::Exclusive(parent), call, move |c, now, entry| {
            c.forget(parent);
            c.keep_name(now, parent, &name, entry);
        })
    }

    /// A request that removes a name.
    fn remove(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        call: impl FnOnce(&Twin) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        let (kernel, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        Answer::later(async move {
            let _parent = kernel.locks.exclusive(parent).await;
            let victim = kernel.find(&cred, parent, &name).await?.attr.id;
            kernel.request(Lock::Exclusive(victim), call, move |c, _, ()| c.unlinked(parent, &name)).await
        })
    }

    /// The cached answer for a name, after asking for missing attributes; `None` if the name is not
    /// cached.
    async fn find_known(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Option<Result<Entry, FsError>> {
        loop {
            let walked = self.cached.lock().walk(self.now(), cred, parent, name);
            let id = match walked {
                Walked::Known(answer) => {
                    self.fs.confirm_lookup(cred, parent, name, &answer);
                    return Some(answer);
                }
                Walked::Needs(id) => id,
                Walked::Unknown => return None,
            };
            let asked = self.request(Lock::Free, move |fs| fs.getattr(id), |c, now, entry| c.keep(now, entry)).await;
            // The file may have been removed meanwhile, but then its name is gone too.
            if let Err(e) = asked
                && matches!(self.cached.lock().walk(self.now(), cred, parent, name), Walked::Needs(needs) if needs == id)
            {
                return Some(Err(e));
            }
        }
    }

    /// Looks a name up; the caller holds the directory's lock.
    async fn find(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Entry, FsError> {
        if let Some(answer) = self.find_known(cred, parent, name).await {
            return answer;
        }
        self.travel().await;
        let result = self.fs.lookup(cred, parent, name).await;
        let (now, mut cached) = (self.now(), self.cached.lock());
        match &result {
            Ok(entry) => cached.keep_name(now, parent, name, entry),
            Err(FsError::NotFound) => {
                cached.names.insert((parent, name.to_vec()), (None, now + ABSENT_VALID));
            }
            Err(_) => {}
        }
        result
    }

    /// Locks the directories of a rename: one, or an ancestor before its descendant.
    async fn lock_parents(&self, from: FileId, to: FileId) -> Held {
        if from == to {
            return self.locks.exclusive(from).await;
        }
        let rename = self.locks.rename().await;
        let to_first = {
            let cached = self.cached.lock();
            cached.is_above(to, from) || (!cached.is_above(from, to) && to < from)
        };
        let (first, second) = if to_first { (to, from) } else { (from, to) };
        Box::new((rename, self.locks.exclusive(first).await, self.locks.exclusive(second).await))
    }

    /// Locks the files and directories that a rename moves or replaces, directories first. Linux
    /// refuses a rename that would make a loop before this point; here it is passed on, and the
    /// client refuses it.
    async fn lock_children(
        &self,
        from: (FileId, Option<Attr>),
        to: (FileId, Option<Attr>),
        exchange: bool,
    ) -> Vec<Held> {
        let crosses = from.0 != to.0;
        let makes_loop = {
            let cached = self.cached.lock();
            let is_above = |child: Option<Attr>, dir| child.is_some_and(|child| cached.is_above(child.id, dir));
            is_above(from.1, to.0) || is_above(to.1, from.0)
        };
        if makes_loop {
            return Vec::new();
        }
        let wanted = [(from.1, crosses), (to.1, crosses || !exchange)];
        let mut children: Vec<(bool, FileId)> = wanted
            .into_iter()
            .filter_map(|(child, if_directory)| child.map(|child| (child, if_directory)))
            .filter(|(child, if_directory)| child.kind != Kind::Directory || *if_directory)
            .map(|(child, _)| (child.kind != Kind::Directory, child.id))
            .collect();
        children.sort();
        children.dedup();
        let mut held = Vec::new();
        for (_, id) in children {
            held.push(self.locks.exclusive(id).await);
        }
        held
    }

    async fn read_cached(self, id: FileId, handle: Handle, offset: u64, len: u32) -> Result<Bytes, FsError> {
        if !self.cached.lock().readable(handle) {
            return Err(FsError::BadHandle);
        }
        loop {
            // Like the kernel, take the size from the attributes.
            let size = self.getattr(id).await?.attr.size;
            let end = offset.saturating_add(len.into()).min(size);
            let found = if offset < end { self.cached.lock().pages_of(id, offset, end) } else { Ok(Bytes::new()) };
            let (first, last) = match found {
                Ok(bytes) => {
                    self.fs.confirm_read(id, handle, offset, len, &bytes);
                    return Ok(bytes);
                }
                Err(missing) => missing,
            };
            let start = first * PAGE;
            let call = move |fs: &Twin| fs.read(id, handle, start, ((last + 1) * PAGE - start) as u32);
            let fill = move |c: &mut Cached, _, bytes: &Bytes| {
                for index in first..=last {
                    let at = ((index * PAGE - start) as usize).min(bytes.len());
                    let mut page = BytesMut::from(&bytes[at..(at + PAGE as usize).min(bytes.len())]);
                    page.resize(PAGE as usize, 0);
                    c.pages.entry((id, index)).or_insert(page.freeze());
                }
            };
            self.request(Lock::Free, call, fill).await?;
        }
    }

    /// Closes a file or directory, without waiting for the answer.
    fn close(&self, handle: Handle, call: impl FnOnce(&Twin) -> Answer<()> + Send + 'static) -> Answer<()> {
        self.cached.lock().handles.remove(&handle.0);
        let released = self.request(Lock::Free, call, |_, _, ()| ());
        self.host.tasks.spawn(Box::pin(async move {
            // The twin compares the answer like every other; the application does not get it.
            let _ = released.await;
        }));
        Answer::ok(())
    }
}

fn passed_on(flags: OpenFlags) -> OpenFlags {
    OpenFlags { append: false, ..flags }
}

impl FileSystem for Kernel {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let (kernel, cred, name) = (self.clone(), cred.clone(), name.to_vec());
        Answer::later(async move {
            if let Some(answer) = kernel.find_known(&cred, parent, &name).await {
                return answer;
            }
            let _parent = kernel.locks.shared(parent).await;
            kernel.find(&cred, parent, &name).await
        })
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        let known = self.cached.lock().attribute(self.now(), id);
        if let Some(entry) = known {
            self.fs.confirm_attributes(&entry);
            return Answer::ok(entry);
        }
        self.request(Lock::Free, move |fs| fs.getattr(id), |c, now, entry| c.keep(now, entry))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        let cred = cred.clone();
        let call = move |fs: &Twin| fs.setattr(&cred, id, handle, set);
        self.change(Lock::Exclusive(id), id, call, move |c, now, entry| {
            if let Some(size) = set.size {
                c.resize(id, size);
            }
            c.keep(now, entry);
        })
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.request(Lock::Free, move |fs| fs.readlink(id), |_, _, _| ())
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        let (cred, named) = (cred.clone(), name.to_vec());
        self.make(parent, name, move |fs| fs.mknod(&cred, parent, &named, node))
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
        let (cred, name, named) = (cred.clone(), name.to_vec(), name.to_vec());
        let call = move |fs: &Twin| fs.create(&cred, parent, &name, mode, umask, passed_on(flags));
        self.request(Lock::Exclusive(parent), call, move |c, now, (entry, handle)| {
            c.forget(parent);
            c.keep_name(now, parent, &named, entry);
            c.handles.insert(handle.0, flags);
        })
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        let (cred, named) = (cred.clone(), name.to_vec());
        self.make(parent, name, move |fs| fs.mkdir(&cred, parent, &named, mode, umask))
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let (cred, named, target) = (cred.clone(), name.to_vec(), target.to_vec());
        self.make(parent, name, move |fs| fs.symlink(&cred, parent, &named, &target))
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        let (kernel, cred, name) = (self.clone(), cred.clone(), new_name.to_vec());
        Answer::later(async move {
            let _parent = kernel.locks.exclusive(new_parent).await;
            // A directory cannot get another name, so Linux does not lock it for that.
            let is_directory = id == FileId::ROOT || kernel.cached.lock().parents.contains_key(&id);
            let lock = if is_directory { Lock::Free } else { Lock::Exclusive(id) };
            let named = name.clone();
            let call = move |fs: &Twin| fs.link(&cred, id, new_parent, &named);
            let update = move |c: &mut Cached, now, entry: &Entry| {
                c.forget(new_parent);
                c.keep_name(now, new_parent, &name, entry);
            };
            kernel.request(lock, call, update).await
        })
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (c, named) = (cred.clone(), name.to_vec());
        self.remove(cred, parent, name, move |fs| fs.unlink(&c, parent, &named))
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (c, named) = (cred.clone(), name.to_vec());
        self.remove(cred, parent, name, move |fs| fs.rmdir(&c, parent, &named))
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
            let _parents = kernel.lock_parents(from.0, to.0).await;
            // The kernel looks both names up before it asks. The file system decides whether they
            // must exist.
            let source = kernel.find(&cred, from.0, &from.1).await.ok().map(|found| found.attr);
            let target = kernel.find(&cred, to.0, &to.1).await.ok().map(|found| found.attr);
            let _children = kernel.lock_children((from.0, source), (to.0, target), flags.exchange).await;
            let (old, new) = (from.clone(), to.clone());
            let call = move |fs: &Twin| fs.rename(&cred, old.0, &old.1, new.0, &new.1, flags);
            kernel.request(Lock::Free, call, move |c, _, ()| c.renamed(from, to, flags.exchange)).await
        })
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        let cred = cred.clone();
        self.request(Lock::Free, move |fs| fs.access(&cred, id, mask), |_, _, ()| ())
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        let cred = cred.clone();
        let call = move |fs: &Twin| fs.open(&cred, id, passed_on(flags));
        if !flags.truncate {
            let update = move |c: &mut Cached, _, handle: &Handle| {
                c.handles.insert(handle.0, flags);
            };
            return self.request(Lock::Free, call, update);
        }
        self.change(Lock::Free, id, call, move |c, _, handle| {
            c.handles.insert(handle.0, flags);
            c.resize(id, 0);
            c.forget(id);
        })
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        Answer::later(self.clone().read_cached(id, handle, offset, len))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let (kernel, cred, data) = (self.clone(), cred.clone(), Bytes::copy_from_slice(data));
        Answer::later(async move {
            let _inode = kernel.locks.exclusive(id).await;
            let bytes = data.clone();
            if kernel.cached.lock().appends(handle) {
                // The kernel sends the offset where it believes the file ends; Starling's front end
                // ignores it.
                let offset = kernel.getattr(id).await?.attr.size;
                let call = move |fs: &Twin| fs.append(&cred, id, handle, &data);
                let update = move |c: &mut Cached, _, done: &Appended| {
                    c.wrote(id, offset, &bytes[..done.count as usize]);
                    if done.offset != offset {
                        c.drop_pages(id, 0..u64::MAX / 2);
                    }
                    c.forget(id);
                };
                return Ok(kernel.change(Lock::Free, id, call, update).await?.count);
            }
            let call = move |fs: &Twin| fs.write(&cred, id, handle, offset, &data);
            let update = move |c: &mut Cached, _, written: &u32| {
                c.wrote(id, offset, &bytes[..*written as usize]);
                c.forget(id);
            };
            kernel.change(Lock::Free, id, call, update).await
        })
    }

    /// A kernel has no such call: a handle that appends does so at each write.
    fn append(&self, _: &Cred, _: FileId, _: Handle, _: &[u8]) -> Answer<Appended> {
        Answer::err(FsError::NotSupported)
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.request(Lock::Exclusive(id), move |fs| fs.fsync(id, handle, data_only), |_, _, ()| ())
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.request(Lock::Exclusive(id), move |fs| fs.fsync_dir(id, handle), |_, _, ()| ())
    }

    fn flush(&self, _: FileId, _: Handle, _: u64) -> Answer<()> {
        // The mount tells the kernel at each open that it does not want flush.
        Answer::ok(())
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        self.close(handle, move |fs| fs.release(id, handle, flock_owner))
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        let cred = cred.clone();
        self.request(Lock::Free, move |fs| fs.opendir(&cred, id), |_, _, _| ())
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        let call = move |fs: &Twin| fs.readdir(id, handle, cookie, count_max, plus);
        self.request(Lock::Shared(id), call, move |c, now, entries| {
            for entry in entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
                if let Some(attr) = entry.attr {
                    c.keep_name(now, id, &entry.name, &Entry::new(attr, LISTED_VALID));
                }
            }
        })
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.close(handle, move |fs| fs.releasedir(id, handle))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.request(Lock::Free, move |fs| fs.getxattr(&cred, id, &name), |_, _, _| ())
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        let (cred, name, value) = (cred.clone(), name.to_vec(), value.to_vec());
        let call = move |fs: &Twin| fs.setxattr(&cred, id, &name, &value, mode);
        self.request(Lock::Exclusive(id), call, move |c, _, ()| c.forget(id))
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        let cred = cred.clone();
        self.request(Lock::Free, move |fs| fs.listxattr(&cred, id), |_, _, _| ())
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (cred.clone(), name.to_vec());
        let call = move |fs: &Twin| fs.removexattr(&cred, id, &name);
        self.request(Lock::Exclusive(id), call, move |c, _, ()| c.forget(id))
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        let cred = cred.clone();
        let call = move |fs: &Twin| fs.fallocate(&cred, id, handle, offset, len, mode);
        self.change(Lock::Exclusive(id), id, call, move |c, _, ()| {
            if !matches!(mode, Fallocate::Allocate | Fallocate::AllocateKeepSize) {
                c.drop_pages(id, offset..offset + len);
            }
            c.forget(id);
        })
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.request(Lock::Exclusive(id), move |fs| fs.lseek(id, handle, offset, whence), |_, _, _| ())
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        if self.cached.lock().appends(to.handle) {
            return Answer::err(FsError::BadHandle);
        }
        let (kernel, cred) = (self.clone(), cred.clone());
        Answer::later(async move {
            let _target = kernel.locks.exclusive(to.id).await;
            let _contents = kernel.locks.copying(from.id, to.id).await;
            let call = move |fs: &Twin| fs.copy_file_range(&cred, from, to, len);
            let update = move |c: &mut Cached, _, copied: &u64| {
                c.drop_pages(to.id, to.offset..to.offset + copied);
                c.forget(to.id);
            };
            kernel.request(Lock::Free, call, update).await
        })
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.fs.statfs()
    }

    fn getlk(&self, _: FileId, _: Handle, _: FileLock) -> Answer<Option<FileLock>> {
        Answer::err(FsError::NotSupported)
    }

    fn setlk(&self, _: FileId, _: Handle, _: FileLock, _: bool) -> Answer<()> {
        Answer::err(FsError::NotSupported)
    }

    fn sync(&self) -> Answer<()> {
        self.request(Lock::Free, |fs| fs.sync(), |_, _, ()| ())
    }
}
