//! [`Turns`]: several clients of one file system as one, which takes each operation to another of
//! them.

use crate::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode, OpenFlags,
    RenameFlags, Seek, SetAttr, XattrMode,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use types::{Answer, FileId, FsError};

/// Which client an operation goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnOrder {
    /// The one after that of the operation before.
    Next,
    /// The first for what changes something, the last for what only looks.
    ChangesApart,
}

/// Clients of one file system as one file system. Calls must not overlap.
///
/// - A client reaches a file as programs do: it looks up the names that lead there when it has to
///   do with the file for the first time, and panics if one is missing. Each client may have ids of
///   its own.
/// - What is opened is open at every client, so that each can serve the next operation through the
///   handle.
/// - Syncs go to every client, since a client makes durable what was done through it.
/// - An owner of locks stays with one client, as programs do.
/// - A file without a name that no program has open is gone, though a client may remove it a little
///   later.
pub struct Turns(Arc<Clients>);

struct Clients {
    systems: Vec<Arc<dyn FileSystem>>,
    turn: TurnOrder,
    count: AtomicUsize,
    files: Mutex<Files>,
    /// The clients' handles, by what the caller was given. They stay after they are closed, because
    /// only the clients say what is wrong with them then.
    handles: Mutex<HashMap<Handle, Vec<Handle>>>,
}

/// Ids that callers were given count from here. No client gives such numbers out.
const GIVEN_MIN: u64 = 1 << 46;

/// A file, by the id that callers have, and a name: in that directory, or of that file.
type Place = (FileId, Vec<u8>);

/// All files that exist, by the ids that callers have.
struct Files {
    at_place: HashMap<Place, FileId>,
    places: HashMap<FileId, BTreeSet<Place>>,
    next: u64,
    /// By client: its own ids, and the other way around.
    own: Vec<HashMap<FileId, FileId>>,
    given: Vec<HashMap<FileId, FileId>>,
    /// By client: files that another client has given other names.
    moved: Vec<HashSet<FileId>>,
    /// How often each file is open.
    open_count: HashMap<FileId, usize>,
}

impl Files {
    fn new(count: usize) -> Files {
        let root = HashMap::from([(FileId::ROOT, FileId::ROOT)]);
        Files {
            at_place: HashMap::new(),
            places: HashMap::new(),
            next: GIVEN_MIN,
            own: vec![root.clone(); count],
            given: vec![root; count],
            moved: vec![HashSet::new(); count],
            open_count: HashMap::new(),
        }
    }

    fn learn(&mut self, client: usize, file: FileId, own: FileId) {
        let known = self.own[client].insert(file, own);
        assert!(known.is_none_or(|known| known == own), "client {client} calls {known:?} {own} now");
        self.given[client].insert(own, file);
        self.moved[client].remove(&file);
    }

    /// The file of a client's own id, which the client found at a place.
    fn found(&mut self, client: usize, place: Place, own: FileId) -> FileId {
        if let Some(file) = self.given[client].get(&own) {
            return *file;
        }
        let file = match &place {
            (dir, name) if name == b"." => Some(*dir),
            (dir, name) if name == b".." => self.places.get(dir).and_then(BTreeSet::first).map(|(above, _)| *above),
            place => self.at_place.get(place).copied(),
        };
        let file = file.unwrap_or_else(|| panic!("client {client} finds {own} at {place:?}, where nothing is"));
        self.learn(client, file, own);
        file
    }

    /// Takes in that a client has made a file.
    fn made(&mut self, client: usize, place: Place, own: FileId) -> FileId {
        let file = FileId::new(self.next);
        self.next += 1;
        self.learn(client, file, own);
        self.put(client, place, file);
        file
    }

    fn put(&mut self, client: usize, place: Place, file: FileId) {
        self.remove(client, &place);
        self.at_place.insert(place.clone(), file);
        self.places.entry(file).or_default().insert(place);
        self.has_moved(client, file);
    }

    fn remove(&mut self, client: usize, place: &Place) -> Option<FileId> {
        let file = self.at_place.remove(place)?;
        self.places.entry(file).or_default().remove(place);
        self.has_moved(client, file);
        Some(file)
    }

    fn has_moved(&mut self, by: usize, file: FileId) {
        for (_, moved) in self.moved.iter_mut().enumerate().filter(|(client, _)| *client != by) {
            moved.insert(file);
        }
    }

    fn renamed(&mut self, client: usize, from: Place, to: Place, flags: RenameFlags) {
        if self.at_place.get(&from) == self.at_place.get(&to) {
            return;
        }
        let (moved, replaced) = (self.remove(client, &from), self.remove(client, &to));
        if let Some(moved) = moved {
            self.put(client, to, moved);
        }
        if let Some(replaced) = replaced.filter(|_| flags.exchange) {
            self.put(client, from, replaced);
        }
    }

    /// The names that lead a client to a file, from a file that it knows, and its id of that one.
    /// `None` if none do.
    fn way(&self, client: usize, file: FileId) -> Option<(FileId, Vec<Place>)> {
        let (mut names, mut at) = (Vec::new(), file);
        loop {
            let place = self.places.get(&at).and_then(BTreeSet::first);
            let own = self.own[client].get(&at).filter(|_| place.is_none() || !self.moved[client].contains(&at));
            if let Some(own) = own {
                names.reverse();
                return Some((*own, names));
            }
            let (above, name) = place?;
            names.push((at, name.clone()));
            at = *above;
        }
    }
}

impl Turns {
    /// Joins at least one client of a file system in which nothing is.
    pub fn new(systems: Vec<Arc<dyn FileSystem>>, turn: TurnOrder) -> Turns {
        let files = Mutex::new(Files::new(systems.len()));
        Turns(Arc::new(Clients { systems, turn, count: AtomicUsize::new(0), files, handles: Mutex::default() }))
    }

    /// An operation at a client.
    fn run<T, F>(&self, at: usize, operation: impl FnOnce(Arc<Clients>, usize) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        Answer::later(operation(self.0.clone(), at))
    }

    /// Something that only looks.
    fn looks<T, F>(&self, look: impl FnOnce(Arc<Clients>, usize) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        self.run(self.0.next(self.0.systems.len() - 1), look)
    }

    fn changes<T, F>(&self, change: impl FnOnce(Arc<Clients>, usize) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        self.run(self.0.next(0), change)
    }

    /// Does something through a handle at every client, one after the other. The first error
    /// counts.
    fn everywhere(
        &self,
        (id, handle): (FileId, Handle),
        act: impl Fn(&dyn FileSystem, usize, FileId, Handle) -> Answer<()> + Send + Sync + 'static,
    ) -> Answer<()> {
        let clients = self.0.clone();
        Answer::later(async move {
            let mut result = Ok(());
            for (at, fs) in clients.systems.iter().enumerate() {
                let id = clients.own(at, id).await;
                result = result.and(act(&**fs, at, id, clients.handle(handle, at)).await);
            }
            result
        })
    }

    /// Closes a handle at every client.
    fn close(
        &self,
        (file, handle): (FileId, Handle),
        close: impl Fn(&dyn FileSystem, usize, FileId, Handle) -> Answer<()> + Send + Sync + 'static,
    ) -> Answer<()> {
        let (clients, closed) = (self.0.clone(), self.everywhere((file, handle), close));
        Answer::later(async move {
            closed.await?;
            let mut files = clients.files.lock();
            files.open_count.entry(file).and_modify(|count| *count = count.saturating_sub(1));
            Ok(())
        })
    }

    /// The client of an owner of locks.
    fn of_owner(&self, owner: u128) -> usize {
        (owner % self.0.systems.len() as u128) as usize
    }
}

impl Clients {
    fn next(&self, apart: usize) -> usize {
        match self.turn {
            TurnOrder::Next => self.count.fetch_add(1, Relaxed) % self.systems.len(),
            TurnOrder::ChangesApart => apart,
        }
    }

    /// A client's handle. What was never given out is passed on as it is.
    fn handle(&self, handle: Handle, at: usize) -> Handle {
        self.handles.lock().get(&handle).map_or(handle, |handles| handles[at])
    }

    /// A client's id of a file. An id that no client knows is passed on as it is.
    async fn own(&self, at: usize, file: FileId) -> FileId {
        let Some((mut own, names)) = self.files.lock().way(at, file) else { return file };
        for (file, name) in names {
            let found = self.systems[at].lookup(&Cred::ROOT, own, &name).await;
            own = match found {
                Ok(entry) => entry.attr.id,
                Err(e) => panic!("client {at} does not find {:?}: {e:?}", String::from_utf8_lossy(&name)),
            };
            self.files.lock().learn(at, file, own);
        }
        own
    }

    /// An answer about a file as callers know it.
    fn known(&self, file: FileId, mut entry: Entry) -> Entry {
        entry.attr.id = file;
        entry
    }

    fn found(&self, at: usize, place: Place, entry: Entry) -> Entry {
        let file = self.files.lock().found(at, place, entry.attr.id);
        self.known(file, entry)
    }

    fn made(&self, at: usize, place: Place, entry: Entry) -> Entry {
        let file = self.files.lock().made(at, place, entry.attr.id);
        self.known(file, entry)
    }

    /// Opens at every other client what one has opened.
    async fn open_others(
        &self,
        (opener, handle): (usize, Handle),
        file: FileId,
        open: impl Fn(&dyn FileSystem, FileId) -> Answer<Handle>,
    ) -> Result<Handle, FsError> {
        let mut handles = Vec::new();
        for (at, fs) in self.systems.iter().enumerate() {
            let own = self.own(at, file).await;
            handles.push(if at == opener { handle } else { open(&**fs, own).await? });
        }
        *self.files.lock().open_count.entry(file).or_default() += 1;
        let mut all = self.handles.lock();
        let given = Handle(1 << 60 | all.len() as u64);
        all.insert(given, handles);
        Ok(given)
    }

    /// Opens a file at every other client. The opener has checked the caller's rights, and has cut
    /// the file if that was asked for.
    async fn open_file(&self, opened: (usize, Handle), file: FileId, flags: OpenFlags) -> Result<Handle, FsError> {
        let flags = OpenFlags { read: flags.read || flags.execute, truncate: false, execute: false, ..flags };
        self.open_others(opened, file, |fs, own| fs.open(&Cred::ROOT, own, flags)).await
    }
}

impl FileSystem for Turns {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.looks(|t, at| async move {
            let own = t.own(at, parent).await;
            let entry = t.systems[at].lookup(&cred, own, &name).await?;
            Ok(t.found(at, (parent, name), entry))
        })
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.looks(|t, at| async move {
            let own = t.own(at, id).await;
            let entry = t.systems[at].getattr(own).await?;
            let is_open = t.files.lock().open_count.get(&id).is_some_and(|count| *count > 0);
            if entry.attr.nlink == 0 && !is_open { Err(FsError::Stale) } else { Ok(t.known(id, entry)) }
        })
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        let cred = cred.clone();
        self.changes(|t, at| async move {
            let own = t.own(at, id).await;
            let handle = handle.map(|handle| t.handle(handle, at));
            Ok(t.known(id, t.systems[at].setattr(&cred, own, handle, set).await?))
        })
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.looks(|t, at| async move { t.systems[at].readlink(t.own(at, id).await).await })
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.changes(|t, at| async move {
            let own = t.own(at, parent).await;
            let entry = t.systems[at].mknod(&cred, own, &name, node).await?;
            Ok(t.made(at, (parent, name), entry))
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
        let (cred, name) = (cred.clone(), name.to_vec());
        self.changes(|t, at| async move {
            let own = t.own(at, parent).await;
            let (entry, handle) = t.systems[at].create(&cred, own, &name, mode, umask, flags).await?;
            let entry = t.made(at, (parent, name), entry);
            Ok((entry, t.open_file((at, handle), entry.attr.id, flags).await?))
        })
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.changes(|t, at| async move {
            let own = t.own(at, parent).await;
            let entry = t.systems[at].mkdir(&cred, own, &name, mode, umask).await?;
            Ok(t.made(at, (parent, name), entry))
        })
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let cred = cred.clone();
        let name = name.to_vec();
        let target = target.to_vec();
        self.changes(|t, at| async move {
            let own = t.own(at, parent).await;
            let entry = t.systems[at].symlink(&cred, own, &name, &target).await?;
            Ok(t.made(at, (parent, name), entry))
        })
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        let (cred, new_name) = (cred.clone(), new_name.to_vec());
        self.changes(|t, at| async move {
            let (own, into) = (t.own(at, id).await, t.own(at, new_parent).await);
            let entry = t.systems[at].link(&cred, own, into, &new_name).await?;
            t.files.lock().put(at, (new_parent, new_name), id);
            Ok(t.known(id, entry))
        })
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.changes(|t, at| async move {
            let own = t.own(at, parent).await;
            t.systems[at].unlink(&cred, own, &name).await?;
            t.files.lock().remove(at, &(parent, name));
            Ok(())
        })
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.changes(|t, at| async move {
            let own = t.own(at, parent).await;
            t.systems[at].rmdir(&cred, own, &name).await?;
            t.files.lock().remove(at, &(parent, name));
            Ok(())
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
        let (cred, name, new_name) = (cred.clone(), name.to_vec(), new_name.to_vec());
        self.changes(|t, at| async move {
            let (from, to) = (t.own(at, parent).await, t.own(at, new_parent).await);
            t.systems[at].rename(&cred, from, &name, to, &new_name, flags).await?;
            t.files.lock().renamed(at, (parent, name), (new_parent, new_name), flags);
            Ok(())
        })
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        let cred = cred.clone();
        self.looks(|t, at| async move { t.systems[at].access(&cred, t.own(at, id).await, mask).await })
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        let cred = cred.clone();
        self.changes(|t, at| async move {
            let handle = t.systems[at].open(&cred, t.own(at, id).await, flags).await?;
            t.open_file((at, handle), id, flags).await
        })
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        self.looks(
            |t, at| async move { t.systems[at].read(t.own(at, id).await, t.handle(handle, at), offset, len).await },
        )
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let cred = cred.clone();
        let data = data.to_vec();
        self.changes(|t, at| async move {
            t.systems[at].write(&cred, t.own(at, id).await, t.handle(handle, at), offset, &data).await
        })
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        let cred = cred.clone();
        let data = data.to_vec();
        self.changes(|t, at| async move {
            t.systems[at].append(&cred, t.own(at, id).await, t.handle(handle, at), &data).await
        })
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.everywhere((id, handle), move |fs, _, id, handle| fs.fsync(id, handle, data_only))
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.everywhere((id, handle), move |fs, _, id, handle| fs.fsync_dir(id, handle))
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.run(self.of_owner(lock_owner.into()), |t, at| async move {
            t.systems[at].flush(t.own(at, id).await, t.handle(handle, at), lock_owner).await
        })
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        let owner = flock_owner.map(|owner| (self.of_owner(owner.into()), owner));
        self.close((id, handle), move |fs, at, id, handle| {
            fs.release(id, handle, owner.filter(|(client, _)| *client == at).map(|(_, owner)| owner))
        })
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        let cred = cred.clone();
        self.looks(|t, at| async move {
            let handle = t.systems[at].opendir(&cred, t.own(at, id).await).await?;
            t.open_others((at, handle), id, |fs, own| fs.opendir(&Cred::ROOT, own)).await
        })
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        self.looks(|t, at| async move {
            let own = t.own(at, id).await;
            let mut entries = t.systems[at].readdir(own, t.handle(handle, at), cookie, count_max, plus).await?;
            let mut files = t.files.lock();
            for entry in &mut entries {
                entry.id = files.found(at, (id, entry.name.clone()), entry.id);
                if let Some(attr) = &mut entry.attr {
                    attr.id = entry.id;
                }
            }
            Ok(entries)
        })
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.close((id, handle), move |fs, _, id, handle| fs.releasedir(id, handle))
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.looks(|t, at| async move { t.systems[at].getxattr(&cred, t.own(at, id).await, &name).await })
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        let cred = cred.clone();
        let name = name.to_vec();
        let value = value.to_vec();
        self.changes(
            |t, at| async move { t.systems[at].setxattr(&cred, t.own(at, id).await, &name, &value, mode).await },
        )
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        let cred = cred.clone();
        self.looks(|t, at| async move { t.systems[at].listxattr(&cred, t.own(at, id).await).await })
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        let cred = cred.clone();
        let name = name.to_vec();
        self.changes(|t, at| async move { t.systems[at].removexattr(&cred, t.own(at, id).await, &name).await })
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        let cred = cred.clone();
        self.changes(|t, at| async move {
            t.systems[at].fallocate(&cred, t.own(at, id).await, t.handle(handle, at), offset, len, mode).await
        })
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.looks(|t, at| async move {
            t.systems[at].lseek(t.own(at, id).await, t.handle(handle, at), offset, whence).await
        })
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        let cred = cred.clone();
        self.changes(|t, at| async move {
            let from = At { id: t.own(at, from.id).await, handle: t.handle(from.handle, at), ..from };
            let to = At { id: t.own(at, to.id).await, handle: t.handle(to.handle, at), ..to };
            t.systems[at].copy_file_range(&cred, from, to, len).await
        })
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.looks(|t, at| async move { t.systems[at].statfs().await })
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.run(self.of_owner(lock.owner), |t, at| async move {
            let found = t.systems[at].getlk(t.own(at, id).await, t.handle(handle, at), lock).await?;
            // A client says above the owner's 64 bits whose owner it is.
            Ok(found.map(|lock| FileLock { owner: u128::from(lock.owner as u64), ..lock }))
        })
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        self.run(self.of_owner(lock.owner), |t, at| async move {
            t.systems[at].setlk(t.own(at, id).await, t.handle(handle, at), lock, wait).await
        })
    }

    fn sync(&self) -> Answer<()> {
        let clients = self.0.clone();
        Answer::later(async move {
            for fs in &clients.systems {
                fs.sync().await?;
            }
            Ok(())
        })
    }
}
