//! [`MemberFs`]: the file system of a node that has joined, over the client of its present session.
//!
//! Handles belong to the session in which they were opened. When that is over, everything through
//! them fails with EIO, as what was written through them may be lost; only closing them succeeds.
//! Other operations wait for a new session, two minutes at most, and then fail with EIO.
//!
//! While the lease is out, answers wait, and fail with EIO in the end. Nothing may be cached longer
//! than the lease lasts.

use crate::member::{Member, Serving};
use bytes::Bytes;
use client::Client;
use host::{Either, first};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, FileId, FsError};
use vfs::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode, OpenFlags,
    RenameFlags, Seek, SetAttr, XattrMode,
};

/// A handle's number is that of the client, with the count of the session above these bits.
const SESSION_SHIFT: u32 = 40;

/// The file system of a node that has joined.
struct MemberFs {
    member: Arc<Member>,
}

/// Answers that depend on the session.
trait Within: Sized {
    /// The answer as the session's.
    fn within(self, _serving: &Serving) -> Self {
        self
    }
}

impl Within for Entry {
    fn within(self, serving: &Serving) -> Self {
        let bounded = |valid: Duration| valid.min(serving.lease_left());
        Entry { valid: bounded(self.valid), name_valid: bounded(self.name_valid), ..self }
    }
}

impl Within for Handle {
    fn within(self, serving: &Serving) -> Self {
        Handle(serving.count << SESSION_SHIFT | self.0)
    }
}

impl Within for (Entry, Handle) {
    fn within(self, serving: &Serving) -> Self {
        (self.0.within(serving), self.1.within(serving))
    }
}

impl Within for () {}
impl Within for u32 {}
impl Within for u64 {}
impl Within for Bytes {}
impl Within for Appended {}
impl Within for FsStat {}
impl Within for Vec<DirEntry> {}
impl Within for Vec<Vec<u8>> {}
impl Within for Option<FileLock> {}

impl Member {
    /// The file system.
    pub fn file_system(self: &Arc<Self>) -> Arc<dyn FileSystem> {
        Arc::new(MemberFs { member: self.clone() })
    }
}

impl MemberFs {
    /// An operation: at once if there is a session, otherwise when there is one.
    fn run<T: Within + Send + 'static>(
        &self,
        now: impl FnOnce(&Client) -> Answer<T>,
        later: impl FnOnce() -> Box<dyn FnOnce(&Client) -> Answer<T> + Send>,
    ) -> Answer<T> {
        if let Some(serving) = self.member.serving() {
            let answer = now(&serving.client);
            return within(serving, answer);
        }
        let (member, operation) = (self.member.clone(), later());
        Answer::later(async move {
            let serving = member.wait_serving().await.ok_or(FsError::Io)?;
            let answer = operation(&serving.client);
            within(serving, answer).await
        })
    }

    /// The session of a handle, and its number there. EIO if the session is over, EBADF if there
    /// was no such session yet.
    fn of(&self, handle: Handle) -> Result<(Arc<Serving>, Handle), FsError> {
        let serving = self.member.session().ok_or(FsError::Io)?;
        let inner = Handle(handle.0 & ((1 << SESSION_SHIFT) - 1));
        match serving.count.cmp(&(handle.0 >> SESSION_SHIFT)) {
            Ordering::Equal => Ok((serving, inner)),
            Ordering::Greater => Err(FsError::Io),
            Ordering::Less => Err(FsError::BadHandle),
        }
    }

    /// An operation through a handle.
    fn through<T: Within + Send + 'static>(
        &self,
        handle: Handle,
        operation: impl FnOnce(&Client, Handle) -> Answer<T>,
    ) -> Answer<T> {
        match self.of(handle) {
            Ok((serving, inner)) => {
                let answer = operation(&serving.client, inner);
                within(serving, answer)
            }
            Err(e) => Answer::err(e),
        }
    }

    /// Closes a handle. The handles of a session that is over are closed already.
    fn close(&self, handle: Handle, operation: impl FnOnce(&Client, Handle) -> Answer<()>) -> Answer<()> {
        match self.of(handle) {
            Ok((serving, inner)) => operation(&serving.client, inner),
            Err(FsError::Io) => Answer::ok(()),
            Err(e) => Answer::err(e),
        }
    }
}

/// A session's answer. While the lease is out it waits; EIO if the session is over.
fn within<T: Within + Send + 'static>(serving: Arc<Serving>, answer: Answer<T>) -> Answer<T> {
    match answer {
        Answer::Now(result) if !serving.lease_left().is_zero() => {
            Answer::Now(result.map(|value| value.within(&serving)))
        }
        answer => {
            let answer = answer.into_future();
            Answer::later(async move {
                let Either::Left(result) = first(answer, serving.over()).await else { return Err(FsError::Io) };
                if !serving.may_answer().await {
                    return Err(FsError::Io);
                }
                result.map(|value| value.within(&serving))
            })
        }
    }
}

impl FileSystem for MemberFs {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        self.run(
            |client| client.lookup(cred, parent, name),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.lookup(&cred, parent, &name))
            },
        )
    }

    fn absence_valid(&self) -> Duration {
        self.member.serving().map_or(Duration::ZERO, |serving| serving.client.absence_valid())
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.run(|client| client.getattr(id), || Box::new(move |client: &Client| client.getattr(id)))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        if let Some(handle) = handle {
            return self.through(handle, |client, handle| client.setattr(cred, id, Some(handle), set));
        }
        self.run(
            |client| client.setattr(cred, id, None, set),
            || {
                let cred = cred.clone();
                Box::new(move |client: &Client| client.setattr(&cred, id, None, set))
            },
        )
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.run(|client| client.readlink(id), || Box::new(move |client: &Client| client.readlink(id)))
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        self.run(
            |client| client.mknod(cred, parent, name, node),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.mknod(&cred, parent, &name, node))
            },
        )
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
        self.run(
            |client| client.create(cred, parent, name, mode, umask, flags),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.create(&cred, parent, &name, mode, umask, flags))
            },
        )
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        self.run(
            |client| client.mkdir(cred, parent, name, mode, umask),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.mkdir(&cred, parent, &name, mode, umask))
            },
        )
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        self.run(
            |client| client.symlink(cred, parent, name, target),
            || {
                let (cred, name, target) = (cred.clone(), name.to_vec(), target.to_vec());
                Box::new(move |client: &Client| client.symlink(&cred, parent, &name, &target))
            },
        )
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        self.run(
            |client| client.link(cred, id, new_parent, new_name),
            || {
                let (cred, new_name) = (cred.clone(), new_name.to_vec());
                Box::new(move |client: &Client| client.link(&cred, id, new_parent, &new_name))
            },
        )
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.run(
            |client| client.unlink(cred, parent, name),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.unlink(&cred, parent, &name))
            },
        )
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        self.run(
            |client| client.rmdir(cred, parent, name),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.rmdir(&cred, parent, &name))
            },
        )
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
        self.run(
            |client| client.rename(cred, parent, name, new_parent, new_name, flags),
            || {
                let (cred, name, new_name) = (cred.clone(), name.to_vec(), new_name.to_vec());
                Box::new(move |client: &Client| client.rename(&cred, parent, &name, new_parent, &new_name, flags))
            },
        )
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        self.run(
            |client| client.access(cred, id, mask),
            || {
                let cred = cred.clone();
                Box::new(move |client: &Client| client.access(&cred, id, mask))
            },
        )
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        self.run(
            |client| client.open(cred, id, flags),
            || {
                let cred = cred.clone();
                Box::new(move |client: &Client| client.open(&cred, id, flags))
            },
        )
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        self.through(handle, |client, handle| client.read(id, handle, offset, len))
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        self.through(handle, |client, handle| client.write(cred, id, handle, offset, data))
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        self.through(handle, |client, handle| client.append(cred, id, handle, data))
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.through(handle, |client, handle| client.fsync(id, handle, data_only))
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.through(handle, |client, handle| client.fsync_dir(id, handle))
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.through(handle, |client, handle| client.flush(id, handle, lock_owner))
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        self.close(handle, |client, handle| client.release(id, handle, flock_owner))
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        self.run(
            |client| client.opendir(cred, id),
            || {
                let cred = cred.clone();
                Box::new(move |client: &Client| client.opendir(&cred, id))
            },
        )
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        self.through(handle, |client, handle| client.readdir(id, handle, cookie, count_max, plus))
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.close(handle, |client, handle| client.releasedir(id, handle))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        self.run(
            |client| client.getxattr(cred, id, name),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.getxattr(&cred, id, &name))
            },
        )
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.run(
            |client| client.setxattr(cred, id, name, value, mode),
            || {
                let (cred, name, value) = (cred.clone(), name.to_vec(), value.to_vec());
                Box::new(move |client: &Client| client.setxattr(&cred, id, &name, &value, mode))
            },
        )
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        self.run(
            |client| client.listxattr(cred, id),
            || {
                let cred = cred.clone();
                Box::new(move |client: &Client| client.listxattr(&cred, id))
            },
        )
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        self.run(
            |client| client.removexattr(cred, id, name),
            || {
                let (cred, name) = (cred.clone(), name.to_vec());
                Box::new(move |client: &Client| client.removexattr(&cred, id, &name))
            },
        )
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        self.through(handle, |client, handle| client.fallocate(cred, id, handle, offset, len, mode))
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.through(handle, |client, handle| client.lseek(id, handle, offset, whence))
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        let (serving, source, target) = match (self.of(from.handle), self.of(to.handle)) {
            (Ok((serving, source)), Ok((other, target))) if serving.count == other.count => (serving, source, target),
            (Err(FsError::BadHandle), _) | (_, Err(FsError::BadHandle)) => return Answer::err(FsError::BadHandle),
            _ => return Answer::err(FsError::Io),
        };
        let answer =
            serving.client.copy_file_range(cred, At { handle: source, ..from }, At { handle: target, ..to }, len);
        within(serving, answer)
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.run(|client| client.statfs(), || Box::new(|client: &Client| client.statfs()))
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.through(handle, |client, handle| client.getlk(id, handle, lock))
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        self.through(handle, |client, handle| client.setlk(id, handle, lock, wait))
    }

    /// Fails once after changes were lost with a session. Needs stores, but no lease: what is
    /// durable in the log stays, whether the session goes on or not.
    fn sync(&self) -> Answer<()> {
        // In this order: a session that ends says first that it has lost something.
        let session = self.member.session();
        if self.member.take_loss() {
            return Answer::err(FsError::Io);
        }
        match session {
            Some(session) => session.client.sync(),
            None => Answer::ok(()),
        }
    }
}
