//! The model file system as a home exports it while other programs change it, too. The home notices
//! everything that happens in a watched directory, or notices that it has missed something. A
//! directory that others move is not found by its id until the home has looked at its new name.
//! What the home moves itself is not found by its id while the home moves it.

use bytes::Bytes;
use home::export::{Export, Listed, Noticed, Whole};
use host::{Clock, Random, SplitMix64};
use parking_lot::Mutex;
use roam_proto::message::User;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use types::{Answer, BoxFuture, FileId, FsError, Kind};
use vfs::fs::{
    Appended, At, Cred, DirEntry, Entry, FILE_SIZE_MAX, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode,
    OpenFlags, RenameFlags, Seek, SetAttr, XattrMode,
};
use vfs::mem::MemFs;

/// Longest time of one operation of the home, if operations take any time.
const PACE_MAX: Duration = Duration::from_micros(300);
/// Length of a block. Holes are whole blocks.
const BLOCK_LEN: u64 = 4096;

/// The model file system, with the faults that real file systems have.
struct Model {
    fs: MemFs,
    durable: Arc<Mutex<MemFs>>,
    /// The number of writes for which there is still room.
    room: AtomicU64,
    superuser: Mutex<Cred>,
    /// The longest file that there can be.
    file_len_max: AtomicU64,
    /// Directories that are on another file system.
    mounted: Mutex<BTreeSet<FileId>>,
    /// Directories that the home may not list.
    closed: Mutex<BTreeSet<FileId>>,
    /// An action of another program, and its moment.
    meddling: Mutex<Option<(Moment, Meddling)>>,
}

type Meddling = Box<dyn FnOnce(&MemFs) + Send>;

/// A moment between two steps of the home, in which another program acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    BeforeRename,
    AfterRename,
    AfterChmod,
    /// The home has made an empty file.
    AfterMknod,
    AfterWrite,
}

impl Deref for Model {
    type Target = MemFs;

    fn deref(&self) -> &MemFs {
        &self.fs
    }
}

/// Methods that replace those of the model.
impl Model {
    fn superuser(&self) -> Cred {
        self.superuser.lock().clone()
    }

    fn now_is(&self, moment: Moment) {
        let meddling = self.meddling.lock().take_if(|(when, _)| *when == moment);
        meddling.into_iter().for_each(|(_, meddling)| meddling(&self.fs));
    }

    fn room<T>(&self, then: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match self.room.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => then(),
            Err(_) => Answer::err(FsError::NoSpace),
        }
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
        self.now_is(Moment::BeforeRename);
        let is_mounted = |dir: FileId| self.mounted.lock().contains(&dir);
        if is_mounted(parent) != is_mounted(new_parent) {
            return Answer::err(FsError::CrossVolume);
        }
        let done = self.fs.rename(cred, parent, name, new_parent, new_name, flags);
        self.now_is(Moment::AfterRename);
        done
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: MaybeHandle, set: SetAttr) -> Answer<Entry> {
        let done = self.too_long(set.size, || self.fs.setattr(cred, id, handle, set));
        if set.mode.is_some() {
            self.now_is(Moment::AfterChmod);
        }
        done
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        let done = self.fs.mknod(cred, parent, name, node);
        self.now_is(Moment::AfterMknod);
        done
    }

    fn too_long<T>(&self, end: Option<u64>, then: impl FnOnce() -> Answer<T>) -> Answer<T> {
        match end {
            Some(end) if end > self.file_len_max.load(Relaxed) => Answer::err(FsError::FileTooLarge),
            _ => then(),
        }
    }

    fn sync(&self) -> Answer<()> {
        *self.durable.lock() = self.fs.snapshot();
        Answer::ok(())
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let end = offset.checked_add(data.len() as u64);
        let done = self.too_long(end, || self.room(|| self.fs.write(cred, id, handle, offset, data)));
        self.now_is(Moment::AfterWrite);
        done
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        self.room(|| self.fs.append(cred, id, handle, data))
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        self.room(|| self.fs.copy_file_range(cred, from, to, len))
    }

    /// Every block of zeroes is a hole, as on file systems that compress.
    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        fn now<T>(answer: Answer<T>) -> Result<T, FsError> {
            match answer {
                Answer::Now(known) => known,
                Answer::Later(_) => Err(FsError::Io),
            }
        }
        let mut at = offset;
        loop {
            if whence == Seek::Data {
                at = match now(self.fs.lseek(id, handle, at, Seek::Data)) {
                    Ok(data) => data,
                    Err(error) => return Answer::err(error),
                };
            }
            let len = BLOCK_LEN - at % BLOCK_LEN;
            let bytes = match now(self.fs.read(id, handle, at, len as u32)) {
                Ok(bytes) => bytes,
                Err(error) => return Answer::err(error),
            };
            let is_hole = bytes.iter().all(|byte| *byte == 0);
            match whence {
                Seek::Data if !is_hole => return Answer::ok(at),
                Seek::Hole if is_hole => return Answer::ok(at),
                _ => at += bytes.len() as u64,
            }
        }
    }
}

/// A handle of the exported tree, as other programs have it. Clones share the tree. Each start of a
/// home makes a new one.
#[derive(Clone)]
pub struct Tree(Arc<Inner>, Party);

/// Who has a handle of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Party {
    Home,
    Others,
}

struct Inner {
    fs: Model,
    /// Directories that others have moved, and those below them.
    moved: Mutex<BTreeSet<FileId>>,
    /// Files and directories that the home moves now.
    moving: Mutex<BTreeSet<FileId>>,
    /// The clock and random numbers by which the home's operations take time; `None`: they take
    /// none.
    pace: Option<(Arc<dyn Clock>, SplitMix64)>,
    watched: Mutex<BTreeSet<FileId>>,
    /// True if no more directories can be watched.
    is_watched_enough: AtomicBool,
    events: Mutex<VecDeque<Noticed>>,
    come: Notify,
}

impl Tree {
    /// `durable` has the files as they are after a loss of power.
    pub fn new(fs: MemFs, durable: Arc<Mutex<MemFs>>, pace: Option<(Arc<dyn Clock>, u64)>) -> Tree {
        let pace = pace.map(|(clock, seed)| (clock, SplitMix64::new(seed)));
        let (moved, moving, watched, is_watched_enough, events, come) = Default::default();
        let fs = Model {
            meddling: Mutex::default(),
            fs,
            durable,
            room: AtomicU64::new(u64::MAX),
            superuser: Mutex::new(Cred::ROOT),
            file_len_max: AtomicU64::new(FILE_SIZE_MAX),
            mounted: Mutex::default(),
            closed: Mutex::default(),
        };
        Tree(Arc::new(Inner { fs, moved, moving, pace, watched, is_watched_enough, events, come }), Party::Others)
    }

    /// The handle of the home.
    pub fn for_home(&self) -> Tree {
        Tree(self.0.clone(), Party::Home)
    }

    /// The directories below one, and itself.
    fn directories(&self, top: FileId) -> BTreeSet<FileId> {
        let all = self.0.fs.dump();
        let directories = || all.iter().filter(|entry| entry.attr.kind == Kind::Directory);
        let Some(top) = directories().find(|entry| entry.attr.id == top) else { return BTreeSet::new() };
        let below = directories().filter(|entry| entry.path.starts_with(&[&top.path[..], b"/"].concat()));
        below.chain([top]).map(|entry| entry.attr.id).collect()
    }

    /// Notes that a name was moved, if it is a directory's and others have done it.
    fn note_moved(&self, dir: FileId, name: &[u8]) {
        if self.1 == Party::Others
            && let Answer::Now(Ok(entry)) = self.0.fs.lookup(&Cred::ROOT, dir, name)
        {
            let moved = self.directories(entry.attr.id);
            self.0.moved.lock().extend(moved);
        }
    }

    /// ESTALE if the home does not know where a file or directory is.
    fn is_found(&self, id: FileId) -> Result<(), FsError> {
        let is_away = self.0.moved.lock().contains(&id) || self.0.moving.lock().contains(&id);
        if self.1 == Party::Home && is_away { Err(FsError::Stale) } else { Ok(()) }
    }

    /// Tells watchers of a rename that is done. If that was the home, its answer comes later.
    fn renamed(&self, places: [(FileId, &[u8]); 2], flags: RenameFlags) -> Answer<()> {
        let [from, to] = places;
        self.note_moved(to.0, to.1);
        if flags.exchange {
            self.note_moved(from.0, from.1);
        }
        // Notices come in no certain order.
        self.tell_name(to.0, to.1);
        self.tell_name(from.0, from.1);
        let Some(pause) = self.pause().filter(|_| self.1 == Party::Home) else { return Answer::ok(()) };
        for (dir, name) in places {
            if let Answer::Now(Ok(entry)) = self.0.fs.lookup(&Cred::ROOT, dir, name) {
                self.0.moving.lock().insert(entry.attr.id);
                self.0.moving.lock().extend(self.directories(entry.attr.id));
            }
        }
        let me = self.clone();
        Answer::later(async move {
            pause.await;
            me.0.moving.lock().clear();
            Ok(())
        })
    }

    /// Notes that the home sees a file by its name.
    fn finds(&self, id: FileId) {
        if self.1 == Party::Home && self.0.moved.lock().contains(&id) {
            let found = self.directories(id);
            self.0.moved.lock().retain(|id| !found.contains(id));
        }
    }

    /// Sets whether directories that are not watched yet can no longer be watched.
    pub fn watch_no_more(&self, enough: bool) {
        self.0.is_watched_enough.store(enough, Relaxed);
    }

    /// Sets whether there is no room for bytes.
    pub fn fill_up(&self, is_full: bool) {
        self.fill_up_after(if is_full { 0 } else { u64::MAX });
    }

    /// Leaves room for bytes in this many more writes.
    pub fn fill_up_after(&self, write_count: u64) {
        self.0.fs.room.store(write_count, Relaxed);
    }

    /// Makes another program act at the next such moment.
    pub fn meddle(&self, when: Moment, meddling: impl FnOnce(&MemFs) + Send + 'static) {
        *self.0.fs.meddling.lock() = Some((when, Box::new(meddling)));
    }

    /// True if that moment has not come yet.
    pub fn is_to_meddle(&self) -> bool {
        self.0.fs.meddling.lock().is_some()
    }

    /// Puts a directory on another file system than the others.
    pub fn mount(&self, dir: FileId) {
        self.0.fs.mounted.lock().insert(dir);
    }

    /// Forbids the home to list a directory.
    pub fn close_off(&self, dir: FileId) {
        self.0.fs.closed.lock().insert(dir);
    }

    /// Sets the longest file that there can be from now on.
    pub fn limit(&self, file_len_max: u64) {
        self.0.fs.file_len_max.store(file_len_max, Relaxed);
    }

    /// Sets the user that the home runs as.
    pub fn run_as(&self, superuser: Cred) {
        *self.0.fs.superuser.lock() = superuser;
    }

    /// Tells watchers of a directory that a name has changed.
    pub fn tell_name(&self, dir: FileId, name: &[u8]) {
        self.tell(dir, Noticed::Entry { dir, name: name.to_vec(), names_changed: true });
    }

    /// Tells watchers of a file's names that the file has changed.
    pub fn tell_file(&self, id: FileId) {
        if self.0.watched.lock().contains(&id) {
            self.tell(id, Noticed::Directory(id));
        }
        let all = self.0.fs.dump();
        for entry in all.iter().filter(|entry| entry.attr.id == id && !entry.path.is_empty()) {
            let slash = entry.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            if let Some(dir) = all.iter().find(|dir| dir.path == entry.path[..slash]) {
                let (dir, name) = (dir.attr.id, entry.path[slash + 1..].to_vec());
                self.tell(dir, Noticed::Entry { dir, name, names_changed: false });
            }
        }
    }

    fn tell(&self, dir: FileId, noticed: Noticed) {
        if self.0.watched.lock().contains(&dir) {
            self.0.events.lock().push_back(noticed);
            self.0.come.notify_one();
        }
    }

    /// Loses the waiting events. The home notices the loss.
    pub fn lose_events(&self) {
        let mut events = self.0.events.lock();
        events.clear();
        events.push_back(Noticed::Lost);
        self.0.come.notify_one();
    }

    fn run<T: Send + 'static>(&self, f: impl FnOnce(&Tree) -> Answer<T> + Send + 'static) -> Answer<T> {
        let Some((before, after)) = self.pause().zip(self.pause()) else { return f(self) };
        let me = self.clone();
        Answer::later(async move {
            before.await;
            let answer = f(&me).await;
            after.await;
            answer
        })
    }

    /// The time that a step takes, if any.
    fn pause(&self) -> Option<BoxFuture<()>> {
        let (clock, random) = self.0.pace.as_ref()?;
        let pause = random.next_u64() % PACE_MAX.as_nanos() as u64;
        Some(clock.sleep(Duration::from_nanos(pause)))
    }
}

fn then<T>(answer: Answer<T>, tell: impl FnOnce(&T)) -> Answer<T> {
    if let Answer::Now(Ok(value)) = &answer {
        tell(value);
    }
    answer
}

type MaybeHandle = Option<Handle>;
type MaybeOwner = Option<u64>;

macro_rules! kind {
    (Creds) => {
        &Cred
    };
    (Name) => {
        &[u8]
    };
    ($other:ident) => {
        $other
    };
}
macro_rules! own {
    (Creds, $e:ident) => {
        $e.clone()
    };
    (Name, $e:ident) => {
        $e.to_vec()
    };
    ($other:ident, $e:ident) => {
        $e
    };
}
macro_rules! lend {
    (Creds, $e:ident) => {
        &$e
    };
    (Name, $e:ident) => {
        &$e[..]
    };
    ($other:ident, $e:ident) => {
        $e
    };
}
/// Passes methods on to the model, and tells watchers of the changes. What the home asks about a
/// file or directory that has moved is refused, for a method with `where` and the file. Other
/// methods follow after `own`.
macro_rules! pass {
    (own { $($own:tt)* } $(fn $method:ident($($arg:ident: $kind:ident),*) -> $out:ty $(where $found:ident)? $(, $tree:ident, $value:ident => $tell:expr)?;)*) => {
        impl FileSystem for Tree {
            $($own)*

            $(fn $method(&self, $($arg: kind!($kind)),*) -> Answer<$out> {
                $(let $arg = own!($kind, $arg);)*
                self.run(move |tree| {
                    $(if let Err(error) = tree.is_found($found) {
                        return Answer::err(error);
                    })?
                    let answer = tree.0.fs.$method($(lend!($kind, $arg)),*);
                    $(let $tree = tree;
                    return then(answer, |$value| $tell);)?
                    #[allow(unreachable_code)]
                    answer
                })
            })*
        }
    };
}

pass! {
    own {
        fn rename(
            &self,
            cred: &Cred,
            parent: FileId,
            name: &[u8],
            new_parent: FileId,
            new_name: &[u8],
            flags: RenameFlags,
        ) -> Answer<()> {
            let (cred, name, new_name) = (cred.clone(), name.to_vec(), new_name.to_vec());
            self.run(move |tree| match tree.0.fs.rename(&cred, parent, &name, new_parent, &new_name, flags) {
                Answer::Now(Ok(())) => tree.renamed([(parent, &name), (new_parent, &new_name)], flags),
                failed => failed,
            })
        }
    }
    fn lookup(cred: Creds, parent: FileId, name: Name) -> Entry;
    fn getattr(id: FileId) -> Entry where id;
    fn setattr(cred: Creds, id: FileId, handle: MaybeHandle, set: SetAttr) -> Entry, tree, _done => tree.tell_file(id);
    fn readlink(id: FileId) -> Bytes where id;
    fn mknod(cred: Creds, parent: FileId, name: Name, node: NewNode) -> Entry, tree, _done => tree.tell_name(parent, &name);
    fn create(cred: Creds, parent: FileId, name: Name, mode: u32, umask: u32, flags: OpenFlags) -> (Entry, Handle),
        tree, _done => tree.tell_name(parent, &name);
    fn mkdir(cred: Creds, parent: FileId, name: Name, mode: u32, umask: u32) -> Entry, tree, _done => tree.tell_name(parent, &name);
    fn symlink(cred: Creds, parent: FileId, name: Name, target: Name) -> Entry, tree, _done => tree.tell_name(parent, &name);
    fn link(cred: Creds, id: FileId, new_parent: FileId, new_name: Name) -> Entry, tree, _done => {
        tree.tell_name(new_parent, &new_name);
        tree.tell_file(id);
    };
    fn unlink(cred: Creds, parent: FileId, name: Name) -> (), tree, _done => tree.tell_name(parent, &name);
    fn rmdir(cred: Creds, parent: FileId, name: Name) -> (), tree, _done => tree.tell_name(parent, &name);
    fn access(cred: Creds, id: FileId, mask: u32) -> () where id;
    fn open(cred: Creds, id: FileId, flags: OpenFlags) -> Handle where id, tree, _done => {
        if flags.truncate {
            tree.tell_file(id);
        }
    };
    fn read(id: FileId, handle: Handle, offset: u64, len: u32) -> Bytes;
    fn write(cred: Creds, id: FileId, handle: Handle, offset: u64, data: Name) -> u32, tree, _done => tree.tell_file(id);
    fn append(cred: Creds, id: FileId, handle: Handle, data: Name) -> Appended, tree, _done => tree.tell_file(id);
    fn fsync(id: FileId, handle: Handle, data_only: bool) -> ();
    fn fsync_dir(id: FileId, handle: Handle) -> ();
    fn flush(id: FileId, handle: Handle, lock_owner: u64) -> ();
    fn release(id: FileId, handle: Handle, flock_owner: MaybeOwner) -> ();
    fn opendir(cred: Creds, id: FileId) -> Handle where id;
    fn readdir(id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Vec<DirEntry>;
    fn releasedir(id: FileId, handle: Handle) -> ();
    fn getxattr(cred: Creds, id: FileId, name: Name) -> Bytes where id;
    fn setxattr(cred: Creds, id: FileId, name: Name, value: Name, mode: XattrMode) -> (), tree, _done => tree.tell_file(id);
    fn listxattr(cred: Creds, id: FileId) -> Vec<Vec<u8>> where id;
    fn removexattr(cred: Creds, id: FileId, name: Name) -> (), tree, _done => tree.tell_file(id);
    fn fallocate(cred: Creds, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> (), tree, _done => tree.tell_file(id);
    fn lseek(id: FileId, handle: Handle, offset: u64, whence: Seek) -> u64;
    fn copy_file_range(cred: Creds, from: At, to: At, len: u64) -> u64, tree, _done => tree.tell_file(to.id);
    fn statfs() -> FsStat;
    fn getlk(id: FileId, handle: Handle, lock: FileLock) -> Option<FileLock>;
    fn setlk(id: FileId, handle: Handle, lock: FileLock, wait: bool) -> ();
    fn sync() -> ();
}

impl Export for Tree {
    fn file_len_max(&self) -> Answer<u64> {
        Answer::ok(self.0.fs.file_len_max.load(Relaxed))
    }

    fn superuser(&self) -> Cred {
        self.0.fs.superuser()
    }

    fn identity(&self, id: FileId) -> Answer<Bytes> {
        self.run(move |tree| tree.0.fs.identity(id))
    }

    fn identified(&self, parent: FileId, name: &[u8]) -> Answer<(Entry, Bytes)> {
        let name = name.to_vec();
        self.run(move |tree| match tree.is_found(parent) {
            Ok(()) => then(tree.0.fs.identified(parent, &name), |(entry, _)| tree.finds(entry.attr.id)),
            Err(error) => Answer::err(error),
        })
    }

    fn make_whole(&self, cred: &Cred, dir: FileId, name: &[u8], whole: Whole) -> Answer<(Entry, Bytes)> {
        let (cred, name) = (cred.clone(), name.to_vec());
        self.run(move |tree| then(tree.0.fs.make_whole(&cred, dir, &name, whole), |_| tree.tell_name(dir, &name)))
    }

    fn list(&self, dir: FileId) -> Answer<Vec<Listed>> {
        self.run(move |tree| {
            let tree = tree.clone();
            Answer::later(async move {
                tree.is_found(dir)?;
                if tree.0.fs.closed.lock().contains(&dir) {
                    return Err(FsError::AccessDenied);
                }
                let listed = Export::list(&*tree.0.fs, dir).await?;
                listed.iter().for_each(|(_, entry, _)| tree.finds(entry.attr.id));
                Ok(listed)
            })
        })
    }

    fn watch(&self, dir: FileId) -> Answer<()> {
        let mut watched = self.0.watched.lock();
        if self.0.is_watched_enough.load(Relaxed) && !watched.contains(&dir) {
            return Answer::err(FsError::NoSpace);
        }
        watched.insert(dir);
        Answer::ok(())
    }

    fn user(&self, uid: u32) -> Answer<Option<User>> {
        self.0.fs.user(uid)
    }

    fn noticed(&self) -> BoxFuture<Noticed> {
        let me = self.clone();
        Box::pin(async move {
            loop {
                let next = me.0.events.lock().pop_front();
                match next {
                    Some(noticed) => return noticed,
                    None => me.0.come.notified().await,
                }
            }
        })
    }
}
