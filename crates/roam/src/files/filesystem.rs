//! The [`FileSystem`] trait for a client.
//!
//! A call is answered at once if everything that it needs is cached. Otherwise the client asks the
//! home, and then tries the call again.

use crate::client::Client;
use crate::files::listings::{self, Listed};
use crate::live::{Live, Need, Stop};
use crate::replica::{Node, Record};
use bytes::Bytes;
use host::timeout;
use roam_proto::channel::Class;
use roam_proto::message::{Reply, Request};
use roam_proto::operation::{Attributes, Operation, is_of_machine};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::{Answer, Attr, FileId, FsError, Kind, Time};
use vfs::fs::{
    Appended, At, Backing, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, LockSpace, NewNode,
    OpenFlags, RenameFlags, Seek, SetAttr, XattrMode,
};
use vfs::perm::{self, XattrUse};

/// How long the kernel may believe an answer. The client tells it of changes earlier; an answer
/// that such news crosses on its way is right again after this time.
pub const VALID: Duration = Duration::from_secs(30);
/// How often a call is tried again while others keep changing what it needs.
const TRY_COUNT_MAX: u32 = 32;
/// The extended attribute that tells what of a file is cached.
const STATE_XATTR: &[u8] = b"user.starling.state";
/// How long statfs waits for the home. A link that works answers sooner.
const SPACE_TIME_MAX: Duration = Duration::from_secs(1);
/// What statfs reports before the home has answered.
const UNKNOWN_SPACE: FsStat =
    FsStat { total_bytes: 1 << 40, free_bytes: 1 << 39, files: 0, files_free: 1 << 32, block_size: 4096 };

impl Client {
    /// Answers from the cache, and asks the home for what is missing.
    fn run<T: Send + 'static>(
        &self,
        f: impl Fn(&mut Live, Time) -> Result<T, Stop> + Send + Sync + 'static,
    ) -> Answer<T> {
        match self.look_out() {
            None => self.run_now(f),
            Some(heard) => {
                let me = self.clone();
                Answer::later(async move {
                    heard.await;
                    me.run_now(f).await
                })
            }
        }
    }

    /// As [`run`](Self::run), without asking about the home's silence.
    fn run_now<T: Send + 'static>(
        &self,
        f: impl Fn(&mut Live, Time) -> Result<T, Stop> + Send + Sync + 'static,
    ) -> Answer<T> {
        let first = self.try_once(&f);
        match first {
            Ok(value) => Answer::ok(value),
            Err(Stop::Fs(error)) => Answer::err(error),
            Err(Stop::Need(need)) => {
                let me = self.clone();
                Answer::later(async move { me.run_later(need, f).await })
            }
        }
    }

    fn try_once<T>(&self, f: &impl Fn(&mut Live, Time) -> Result<T, Stop>) -> Result<T, Stop> {
        let now = self.0.host.clock.wall();
        f(&mut self.0.live.lock(), now)
    }

    async fn run_later<T>(&self, mut need: Need, f: impl Fn(&mut Live, Time) -> Result<T, Stop>) -> Result<T, FsError> {
        for _ in 0..TRY_COUNT_MAX {
            self.meet(need).await?;
            let tried = self.try_once(&f);
            self.used(need);
            match tried {
                Ok(value) => return Ok(value),
                Err(Stop::Fs(error)) => return Err(error),
                // Only the home knows the rest, and it cannot be asked.
                Err(Stop::Need(_)) if self.0.live.lock().link.is_offline() => return Err(FsError::TimedOut),
                Err(Stop::Need(other)) => need = other,
            }
        }
        Err(FsError::TimedOut)
    }

    /// Notes that a call was tried again with what it had asked for.
    pub(crate) fn used(&self, need: Need) {
        let used = match need {
            Need::Facts(file) => self.0.live.lock().used(&[file]),
            Need::Change(files) => self.0.live.lock().used(&files),
            Need::Names(_) | Need::Ids | Need::Room => false,
        };
        if used {
            self.0.wake();
        }
    }

    /// Does an operation. When this answers, the operation is in the log, and, if the call waits
    /// for a near home, the home has seen it.
    fn change<T: Send + 'static>(
        &self,
        f: impl Fn(&mut Live, Time) -> Result<T, Stop> + Send + Sync + 'static,
    ) -> Answer<T> {
        let now = self.0.host.clock.wall();
        let first = {
            let mut live = self.0.live.lock();
            let first = f(&mut live, now);
            if first.is_ok() && !self.waits(&live) {
                self.logged_more(&live);
                drop(live);
                return Answer::Now(first.map_err(|_| FsError::Io));
            }
            first
        };
        let me = self.clone();
        Answer::later(async move {
            let value = match first {
                Ok(value) => value,
                Err(Stop::Fs(error)) => return Err(error),
                Err(Stop::Need(need)) => me.run_later(need, f).await?,
            };
            me.logged().await?;
            me.0.wake();
            let seq = me.0.live.lock().replica.log().last();
            me.reach_home(seq).await;
            Ok(value)
        })
    }

    fn set_attributes(&self, id: FileId, attributes: Attributes) -> Answer<Attr> {
        self.change(move |live, now| {
            // Earlier writes get this time of modification too.
            if let (Some(mtime), Ok(node)) = (attributes.mtime, live.replica.node_mut(id)) {
                node.changes.date(mtime);
            }
            if attributes != Attributes::default() {
                let operation = Operation::Set { file: id, attributes };
                live.permit(&operation)?;
                live.record(Record::Did { operation, when: now })?;
            }
            Ok(live.node(id)?.facts.attr())
        })
    }

    /// The file that an id stands for. A file that was made here may have another id by now.
    fn real(&self, id: FileId) -> FileId {
        self.look(|replica, _| replica.real(id))
    }

    /// The identity that a caller acts as at home. The home knows one user; if that is the
    /// superuser, every caller acts as itself.
    fn act_as(&self, cred: &Cred) -> Cred {
        let live = self.0.live.lock();
        match live.replica.membership() {
            Some(membership) if membership.user.uid != 0 => {
                let user = &membership.user;
                Cred { uid: user.uid, gid: user.gid, groups: user.groups.clone() }
            }
            _ => cred.clone(),
        }
    }

    /// Attributes as this mount shows them: files of the home's user belong to the user who mounted
    /// it.
    fn shown(&self, attr: Attr) -> Entry {
        let owner = self.0.settings.lock().owner;
        let live = self.0.live.lock();
        // A recall does not wait until the kernel has dropped what it cached, so under delegations
        // the kernel may believe nothing.
        let told = live.kernel.is_there() && !live.freshness.is_delegated() && !live.replica.is_stale(attr.id);
        let valid = if told { VALID } else { Duration::ZERO };
        Entry::new(shown(&live, owner, attr), valid)
    }

    fn entry(&self, answer: Answer<Attr>) -> Answer<Entry> {
        match answer {
            Answer::Now(Ok(attr)) => Answer::ok(self.shown(attr)),
            Answer::Now(Err(error)) => Answer::err(error),
            Answer::Later(later) => {
                let me = self.clone();
                Answer::later(async move { Ok(me.shown(later.await?)) })
            }
        }
    }

    fn make(&self, cred: &Cred, parent: FileId, name: &[u8], new: NewNode) -> Answer<Entry> {
        let (cred, name) = (self.act_as(cred), name.to_vec());
        self.entry(self.change(move |live, now| {
            let operation = live.make(&cred, parent, &name, new, b"", now)?;
            let attr = live.did_make(operation, now)?;
            if attr.kind == Kind::File {
                // No program has it open for writing.
                live.record(Record::Clean(attr.id))?;
            }
            Ok(attr)
        }))
    }

    /// Does one operation on names or attributes, if `f` has one.
    fn operate(&self, f: impl Fn(&Live) -> Result<Option<Operation>, Stop> + Send + Sync + 'static) -> Answer<()> {
        let me = self.clone();
        let done = self.change(move |live, now| {
            let operation = f(live)?;
            let files = operation.as_ref().map_or_else(Vec::new, Operation::files);
            if let Some(operation) = operation {
                live.permit(&operation)?;
                live.record(Record::Did { operation, when: now })?;
            }
            Ok(files)
        });
        let reap = move |files: Vec<FileId>| files.into_iter().for_each(|file| me.0.reap(file));
        match done {
            Answer::Now(done) => Answer::Now(done.map(reap)),
            done => Answer::later(async move { done.await.map(reap) }),
        }
    }
}

fn shown(live: &Live, owner: Option<(u32, u32)>, mut attr: Attr) -> Attr {
    if let (Some((uid, gid)), Some(membership)) = (owner, live.replica.membership())
        && membership.user.uid != 0
    {
        if attr.uid == membership.user.uid {
            attr.uid = uid;
        }
        if attr.gid == membership.user.gid {
            attr.gid = gid;
        }
    }
    attr
}

impl Live {
    /// Does an operation that makes or links a file. Returns its attributes.
    fn did_make(&mut self, operation: Operation, now: Time) -> Result<Attr, Stop> {
        let id = operation.file();
        self.permit(&operation)?;
        self.record(Record::Did { operation, when: now })?;
        Ok(self.replica.node(id)?.facts.attr())
    }

    fn is_named(&self, dir: FileId, name: &[u8], id: FileId) -> bool {
        self.replica.child(&(dir, name.to_vec())) == crate::replica::Child::Is(id)
    }

    /// Makes sure that a named file is known. If not, the home is asked once: the file had lost its
    /// last name here, and only the home knows its state. If the home does not know it either, it
    /// is gone.
    fn know_named(&mut self, dir: FileId, name: &[u8], id: FileId, has_asked: &AtomicBool) -> Result<(), Stop> {
        self.doubt_nameless(id);
        let is_unknown = self.replica.node(id).is_err() && self.is_named(dir, name, id) && !self.link.is_offline();
        if is_unknown && !has_asked.swap(true, Relaxed) {
            self.replica.node_mut(dir)?.names_of = None;
            return Err(Stop::Need(Need::Names(dir)));
        }
        Ok(())
    }

    fn listed(&self, dir: FileId, name: &[u8], id: FileId, plus: bool) -> Option<(Kind, Option<Attr>)> {
        // It has gone since the listing began.
        let node = self.replica.node(id).ok()?;
        let still = self.is_named(dir, name, id);
        let fresh = !self.replica.is_stale(id) || self.link.is_offline();
        still.then(|| (node.facts.kind, (plus && fresh).then(|| node.facts.attr())))
    }
}

/// The state of a file in the cache, in a word.
fn state_of(live: &Live, id: FileId, node: &Node) -> &'static str {
    let mine = |place: &roam_proto::operation::Place| live.replica.child(place) == crate::replica::Child::Is(id);
    if live.replica.conflicts().any(|(_, conflict)| conflict.file == id || conflict.mine.as_ref().is_some_and(mine)) {
        return "in conflict";
    }
    if live.replica.is_own(id) {
        return "dirty";
    }
    let whole = match node.facts.kind {
        Kind::File => node.is_whole(),
        Kind::Directory => node.names.is_some(),
        _ => true,
    };
    let path = live.replica.path_of(id).unwrap_or_default();
    let below = |of: &[u8]| path == of || of.is_empty() || (path.starts_with(of) && path.get(of.len()) == Some(&b'/'));
    match whole {
        true if live.replica.hoard().keys().any(|of| below(of)) => "hoarded",
        true => "cached",
        false if node.have.is_empty() => "not cached",
        false => "partly cached",
    }
}

impl FileSystem for Client {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let (cred, name, has_asked) = (self.act_as(cred), name.to_vec(), AtomicBool::new(false));
        self.entry(self.run(move |live, _| {
            let id = live.find(&cred, parent, &name)?;
            live.know_named(parent, &name, id, &has_asked)?;
            let attr = live.node(id)?.facts.attr();
            live.touch(live.replica.real(parent));
            Ok(attr)
        }))
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.entry(self.run(move |live, _| Ok(live.node(id)?.facts.attr())))
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, mut set: SetAttr) -> Answer<Entry> {
        let id = self.real(id);
        let (me, cred) = (self.clone(), self.act_as(cred));
        // The user who mounted it is the home's user there.
        let owner = self.0.settings.lock().owner;
        if let (Some((uid, gid)), Some(user)) =
            (owner, self.look(|replica, _| replica.membership().map(|m| m.user.clone())))
            && user.uid != 0
        {
            set.uid = set.uid.map(|set| if set == uid { user.uid } else { set });
            set.gid = set.gid.map(|set| if set == gid { user.gid } else { set });
        }
        let checked = {
            let cred = cred.clone();
            self.run(move |live, now| {
                let writable = match handle {
                    Some(handle) => live.handle(id, handle, false)?.flags.write,
                    None => false,
                };
                live.setattr(&cred, id, writable, set, now)
            })
        };
        if let Answer::Now(Ok((attributes, None))) = checked {
            return self.entry(self.set_attributes(id, attributes));
        }
        Answer::later(async move {
            let (attributes, size) = checked.await?;
            if let Some(size) = size {
                me.end_of(size, 0)?;
                let resized = me.resize(&cred, id, size).await;
                let open = handle.is_some() && me.0.live.lock().open_files.is_open(id);
                // No close will log the change, even if resizing failed.
                let stored = if open { Ok(()) } else { me.store(id).await.map(drop) };
                resized.and(stored)?;
            }
            let attr = me.set_attributes(id, attributes).await?;
            Ok(me.shown(attr))
        })
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.run(move |live, _| {
            let facts = &live.node(id)?.facts;
            match facts.kind {
                Kind::Symlink => Ok(facts.target.clone().into()),
                _ => Err(Stop::Fs(FsError::InvalidArgument)),
            }
        })
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        match node.kind {
            Kind::Directory | Kind::Symlink => Answer::err(FsError::InvalidArgument),
            _ => self.make(cred, parent, name, node),
        }
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
        let (me, cred, name) = (self.clone(), self.act_as(cred), name.to_vec());
        let new = NewNode { kind: Kind::File, mode, umask, rdev: 0 };
        let made = self.change(move |live, now| {
            let operation = live.make(&cred, parent, &name, new, b"", now)?;
            let attr = live.did_make(operation, now)?;
            Ok((attr, live.open_handle(attr.id, flags, false)))
        });
        match made {
            Answer::Now(made) => Answer::Now(made.map(|(attr, handle)| (self.shown(attr), handle))),
            made => Answer::later(async move {
                let (attr, handle) = made.await?;
                Ok((me.shown(attr), handle))
            }),
        }
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        self.make(cred, parent, name, NewNode { kind: Kind::Directory, mode, umask, rdev: 0 })
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let (cred, name, target) = (self.act_as(cred), name.to_vec(), target.to_vec());
        self.entry(self.change(move |live, now| {
            let operation = live.symlink(&cred, parent, &name, &target, now)?;
            live.did_make(operation, now)
        }))
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        let (cred, name) = (self.act_as(cred), new_name.to_vec());
        self.entry(self.change(move |live, now| {
            let operation = live.link(&cred, id, new_parent, &name)?;
            live.did_make(operation, now)
        }))
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (self.act_as(cred), name.to_vec());
        self.operate(move |live| Ok(Some(live.unlink(&cred, parent, &name)?)))
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (self.act_as(cred), name.to_vec());
        self.operate(move |live| Ok(Some(live.rmdir(&cred, parent, &name)?)))
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
        let (cred, from, to) = (self.act_as(cred), (parent, name.to_vec()), (new_parent, new_name.to_vec()));
        self.operate(move |live| live.rename(&cred, from.clone(), to.clone(), flags))
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        let cred = self.act_as(cred);
        if mask & !7 != 0 {
            return Answer::err(FsError::InvalidArgument);
        }
        self.run(move |live, _| Ok(perm::check(&cred, &live.node(id)?.subject(), mask)?))
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        let id = self.real(id);
        let (me, cred) = (self.clone(), self.act_as(cred));
        let user = cred.clone();
        let opened = self.run(move |live, _| {
            let node = live.node(id)?;
            match node.facts.kind {
                Kind::Directory => return Err(Stop::Fs(FsError::IsADirectory)),
                Kind::Symlink => return Err(Stop::Fs(FsError::Loop)),
                _ => {}
            }
            let cuts = flags.truncate && node.facts.kind == Kind::File;
            perm::check(&user, &node.subject(), perm::open_mask(flags))?;
            Ok((live.open_handle(id, flags, false), cuts))
        });
        match opened {
            Answer::Now(Ok((handle, false))) => Answer::ok(handle),
            Answer::Now(Err(error)) => Answer::err(error),
            opened => Answer::later(async move {
                let (handle, cuts) = opened.await?;
                if cuts && let Err(error) = me.resize(&cred, id, 0).await {
                    me.0.live.lock().close(id, handle, false)?;
                    return Err(error);
                }
                Ok(handle)
            }),
        }
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        let id = self.real(id);
        let me = self.clone();
        Answer::later(async move { me.read(id, handle, offset, len).await })
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let id = self.real(id);
        match self.write_now(&self.act_as(cred), id, handle, Some(offset), data) {
            Ok(None) => {}
            done => return Answer::Now(done.map(|done| done.map_or(0, |done| done.count))),
        }
        let (me, cred, data) = (self.clone(), self.act_as(cred), Bytes::copy_from_slice(data));
        Answer::later(async move { me.write(cred, id, handle, Some(offset), data).await.map(|done| done.count) })
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        let id = self.real(id);
        match self.write_now(&self.act_as(cred), id, handle, None, data) {
            Ok(None) => {}
            Ok(Some(done)) => return Answer::ok(done),
            Err(error) => return Answer::err(error),
        }
        let (me, cred, data) = (self.clone(), self.act_as(cred), Bytes::copy_from_slice(data));
        Answer::later(async move { me.write(cred, id, handle, None, data).await })
    }

    fn fsync(&self, id: FileId, handle: Handle, _data_only: bool) -> Answer<()> {
        let id = self.real(id);
        let me = self.clone();
        Answer::later(async move {
            me.0.live.lock().handle(id, handle, false)?;
            me.store_durably(id).await
        })
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        let me = self.clone();
        Answer::later(async move {
            me.0.live.lock().open_directory(id, handle)?;
            me.durable().await
        })
    }

    fn flush(&self, asked: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        let id = self.real(asked);
        let open = self.0.live.lock().handle(id, handle, false).map(|open| open.flags.write);
        let writes = match open {
            Ok(writes) => writes,
            Err(error) => return Answer::err(error),
        };
        let unlocked = self.release_locks(asked, LockSpace::Posix, lock_owner);
        let dirty = self.look(|replica, _| replica.node(id).is_ok_and(Node::is_dirty));
        if !writes || !dirty {
            return unlocked;
        }
        match self.store_now(id) {
            Ok(true) => return unlocked,
            Ok(false) => {}
            Err(error) => return Answer::err(error),
        }
        let me = self.clone();
        Answer::later(async move {
            unlocked.await?;
            let seq = me.store(id).await?;
            me.reach_home(seq).await;
            Ok(())
        })
    }

    fn release(&self, asked: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        let id = self.real(asked);
        let closed = {
            let mut live = self.0.live.lock();
            let expected = live.expects_stores(id);
            live.close(id, handle, false).map(|last| (last, last || expected && !live.expects_stores(id)))
        };
        let (last, is_written) = match closed {
            Ok(closed) => closed,
            Err(error) => return Answer::err(error),
        };
        let released = flock_owner.map(|owner| self.release_locks(asked, LockSpace::Flock, owner));
        let unlocked = released.unwrap_or_else(|| Answer::ok(()));
        let dirty = self.look(|replica, _| replica.node(id).is_ok_and(|n| n.is_dirty() && n.facts.nlink > 0));
        if is_written && dirty && !matches!(self.store_now(id), Ok(true)) {
            let me = self.clone();
            return Answer::later(async move {
                me.store(id).await?;
                me.0.live.lock().remember(id);
                unlocked.await
            });
        }
        if last {
            self.0.live.lock().remember(id);
            self.0.leave_data(id);
            self.0.reap(id);
        }
        unlocked
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        let cred = self.act_as(cred);
        self.run(move |live, _| {
            let node = live.node(id)?;
            if node.facts.kind != Kind::Directory {
                return Err(Stop::Fs(FsError::NotADirectory));
            }
            perm::check(&cred, &node.subject(), perm::READ)?;
            live.directory(id)?;
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            Ok(live.open_handle(id, flags, true))
        })
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        let owner = self.0.settings.lock().owner;
        let has_asked = AtomicBool::new(false);
        self.run(move |live, now| {
            let id = live.replica.real(id);
            live.open_directory(id, handle)?;
            let (parent, removed) = {
                let node = live.known(id)?;
                let removed = node.facts.nlink == 0;
                if !removed && node.names.is_none() {
                    // The client may have forgotten the names since the listing began.
                    live.directory(id)?;
                }
                (node.parent, removed)
            };
            live.touch(id);
            let known = (cookie != 0).then(|| live.open_files.listing(id, now)).flatten();
            let listing = match known {
                _ if removed => Arc::new([]),
                Some(listing) => listing,
                None => {
                    live.directory(id)?;
                    let names = live.replica.list(id).ok_or(Stop::Need(Need::Names(id)))?;
                    live.open_files.begin_listing(id, names, now)
                }
            };
            let mut entries = Vec::new();
            for (at, name, of) in [(1, &b"."[..], id), (2, &b".."[..], parent)] {
                if at > cookie && !removed && entries.len() < count_max {
                    let attr = live.replica.node(of).ok().filter(|_| plus).map(|node| node.facts.attr());
                    let attr = attr.map(|attr| shown(live, owner, attr));
                    entries.push(DirEntry { name: name.to_vec(), id: of, kind: Kind::Directory, cookie: at, attr });
                }
            }
            for Listed { name, id: of, cookie } in listings::after(&listing, cookie) {
                if entries.len() >= count_max {
                    break;
                }
                let of = live.replica.real(*of);
                live.know_named(id, name, of, &has_asked)?;
                if let Some((kind, attr)) = live.listed(id, name, of, plus) {
                    let attr = attr.map(|attr| shown(live, owner, attr));
                    entries.push(DirEntry { name: name.clone(), id: of, kind, cookie: *cookie, attr });
                }
            }
            Ok(entries)
        })
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        let closed = self.0.live.lock().close(id, handle, true);
        self.0.reap(id);
        Answer::Now(closed.map(drop))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        if is_of_machine(name) {
            // Programs that list files ask for each of these, unless they hear that there are none
            // at all.
            return Answer::err(FsError::NotSupported);
        }
        let (cred, name) = (self.act_as(cred), name.to_vec());
        self.run(move |live, _| {
            let node = live.node(id)?;
            if name == STATE_XATTR {
                return Ok(Bytes::from_static(state_of(live, id, node).as_bytes()));
            }
            perm::xattr_access(&cred, &node.subject(), &name, XattrUse::Read)?;
            Ok(node.xattr(&name).map(Bytes::copy_from_slice).ok_or(FsError::NoSuchXattr)?)
        })
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        let (cred, name, value) = (self.act_as(cred), name.to_vec(), value.to_vec());
        if name == STATE_XATTR {
            return Answer::err(FsError::NotPermitted);
        }
        if is_of_machine(&name) {
            return Answer::err(FsError::NotSupported);
        }
        self.operate(move |live| Ok(Some(live.set_xattr(&cred, id, &name, &value, mode)?)))
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        let cred = self.act_as(cred);
        self.run(move |live, _| {
            let names = live.node(id)?.facts.xattrs.iter().map(|(name, _)| name.clone());
            Ok(names.filter(|name| perm::xattr_listed(&cred, name)).collect())
        })
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        let (cred, name) = (self.act_as(cred), name.to_vec());
        self.operate(move |live| Ok(Some(live.remove_xattr(&cred, id, &name)?)))
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        let id = self.real(id);
        let (me, cred) = (self.clone(), self.act_as(cred));
        Answer::later(async move { me.fallocate(&cred, At { id, handle, offset }, len, mode).await })
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        let id = self.real(id);
        Answer::Now(self.seek(id, handle, offset, whence))
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        let (me, cred) = (self.clone(), self.act_as(cred));
        let [from, to] = [from, to].map(|at| At { id: self.real(at.id), ..at });
        Answer::later(async move { me.copy(cred, from, to, len).await })
    }

    fn statfs(&self) -> Answer<FsStat> {
        let (known, is_offline) = {
            let live = self.0.live.lock();
            (live.cache.home_space(), live.link.is_offline())
        };
        if is_offline {
            return Answer::ok(known.unwrap_or(UNKNOWN_SPACE));
        }
        let (me, clock) = (self.clone(), self.0.host.clock.clone());
        let (tell, told) = tokio::sync::oneshot::channel();
        // The call does not wait for long, but the question goes on, so that a silent home is
        // noticed.
        self.0.host.tasks.spawn(Box::pin(async move {
            if let Ok(Reply::Space { total, free, files, files_free }) =
                me.0.ask(Class::Interactive, &Request::Space).await
            {
                let mut live = me.0.live.lock();
                // Waiting operations will take space there.
                let free_bytes = free.saturating_sub(live.replica.log().cost());
                let stat = FsStat { total_bytes: total, free_bytes, files, files_free, block_size: 4096 };
                live.cache.set_home_space(stat);
                let _ = tell.send(stat);
            }
        }));
        Answer::later(async move {
            let told = timeout(&*clock, SPACE_TIME_MAX, told).await;
            Ok(told.ok().and_then(Result::ok).or(known).unwrap_or(UNKNOWN_SPACE))
        })
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        let open = self.0.live.lock().handle(id, handle, false).map(drop);
        match open {
            Ok(()) => self.test_lock(id, lock),
            Err(error) => Answer::err(error),
        }
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        let open = self.0.live.lock().handle(id, handle, false).map(|open| lock.is_open_to(&open.flags));
        match open {
            Ok(true) => self.set_lock(id, lock, wait),
            Ok(false) => Answer::err(FsError::BadHandle),
            Err(error) => Answer::err(error),
        }
    }

    fn sync(&self) -> Answer<()> {
        let me = self.clone();
        Answer::later(async move {
            me.log_stores().await;
            let files: Vec<FileId> = me.look(|replica, _| replica.begun().collect());
            for file in files {
                me.store(file).await?;
            }
            me.durable().await
        })
    }

    fn backing(&self, id: FileId, handle: Handle) -> Answer<Option<Backing>> {
        let id = self.real(id);
        let sight = self.0.live.lock().sight(id, handle);
        let Some(sight) = sight else { return Answer::ok(None) };
        let me = self.clone();
        Answer::later(async move { Ok(me.show(id, handle, sight).await) })
    }

    fn will_be_mapped(&self, id: FileId, handle: Handle) -> Answer<()> {
        let id = self.real(id);
        let me = self.clone();
        Answer::later(async move { me.expect_stores(id, handle).await })
    }
}
