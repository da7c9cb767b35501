//! Looking at a volume's files: which id means which file of the file system behind, what the file
//! is like now, and what others have changed.

use crate::claims::Claims;
use crate::company::Company;
use crate::export::{Export, Noticed};
use crate::live::Live;
use crate::promised_store::Promise;
use crate::seen::Seen;
use crate::uploads::Uploads;
use crate::volume::{DEPTH_MAX, Learned, OTHERS, Print, Volume};
use crate::whose::cred;
use bytes::Bytes;
use host::Clock;
use parking_lot::Mutex;
use roam_proto::message::{Facts, User, pack};
use roam_proto::operation::{Place, is_of_machine};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::Entry;

/// Most bytes of a file's extended attributes that a client is told of. ACLs come first and take
/// less.
const XATTRS_LEN_MAX: usize = 256 << 10;
/// How many files that were not where they were are kept in mind at least.
const LOST_COUNT_MAX: usize = 4096;
/// Least time between two looks at directories that cannot be watched.
const LOOK_PAUSE_MIN: Duration = Duration::from_secs(30);
/// How many names the home looks at in one go, while clients wait.
const LOOK_COUNT: usize = 64;
/// The pause between looks at directories is at least so many times the duration of a look.
const LOOK_SHARE: u32 = 20;

/// The ids that the file system behind gives to files, both ways.
#[derive(Default)]
pub(crate) struct Sources {
    of: HashMap<FileId, FileId>,
    /// Also for files that were not where they were. Such a directory is still watched, and may be
    /// found again.
    is: HashMap<FileId, FileId>,
    /// The last files that were not where they were, and those before them.
    lost: [HashMap<FileId, FileId>; 2],
}

impl Sources {
    fn set(&mut self, id: FileId, source: FileId) {
        if self.of.get(&id) != Some(&source) {
            if let Some(before) = self.of.insert(id, source) {
                self.is.remove(&before);
            }
            self.is.insert(source, id);
        }
    }

    /// The file is not where it was.
    fn loses(&mut self, id: FileId) {
        let Some(source) = self.of.remove(&id) else { return };
        self.lost[0].insert(id, source);
        if self.lost[0].len() >= LOST_COUNT_MAX {
            let older = std::mem::take(&mut self.lost[1]);
            self.lost[1] = std::mem::take(&mut self.lost[0]);
            for (id, source) in older {
                if self.of.get(&id) != Some(&source) && self.lost[1].get(&id) != Some(&source) {
                    self.is.remove(&source);
                }
            }
        }
    }
}

/// Where a file is.
enum Found {
    /// The file system's id for it.
    Source(FileId),
    /// It has no known place.
    Nowhere,
    /// This file, the wanted one or a directory above it, is not at this place, where it was.
    Lost(FileId, Place),
}

/// A volume and the file system behind it.
pub(crate) struct Exported {
    pub(crate) name: String,
    pub(crate) fs: Arc<dyn Export>,
    pub(crate) live: Arc<Mutex<Live>>,
    pub(crate) sources: Mutex<Sources>,
    /// Directories whose facts clients have got since the home started, or since it last lost
    /// notices. Each is watched, or in `unwatched`.
    pub(crate) told_of: Mutex<HashSet<FileId>>,
    /// Directories that cannot be watched.
    pub(crate) unwatched: watch::Sender<BTreeSet<FileId>>,
    /// Held while one operation of a client is done.
    pub(crate) applying: tokio::sync::Mutex<()>,
    /// Held, per client, while one of its messages with operations is worked on.
    pub(crate) turns: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<()>>>>,
    /// What was done, and may not be durable.
    pub(crate) seen: Seen,
    /// Held while clients are told of changes, so that they are told in order.
    pub(crate) telling: tokio::sync::Mutex<()>,
    /// Held for writing while an operation changes files, until the change is known as the client's
    /// doing. Held for reading by requests that look, which so see files before or after an
    /// operation.
    pub(crate) scene: tokio::sync::RwLock<()>,
    pub(crate) uploads: Mutex<Uploads>,
    /// Files with promised contents: they are not yet what clients are told.
    pub(crate) promises: Mutex<HashMap<FileId, Arc<Promise>>>,
    /// Stores in place that have kept a copy of the old contents, by author and operation.
    pub(crate) kept_before: Mutex<BTreeSet<(u32, u64)>>,
    /// Rises when bytes of a promised store have come.
    pub(crate) arrived: watch::Sender<u64>,
    pub(crate) claims: Claims,
    pub(crate) company: Company,
}

impl Exported {
    /// Waits for a client's turn. Until the guard is dropped, the home does no operations of other
    /// messages of the client.
    pub(crate) async fn turn_of(&self, author: u32) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = self.turns.lock().entry(author).or_default().clone();
        turn.lock_owned().await
    }

    /// Calls `f` with what is known of the volume.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Volume) -> T) -> Result<T, FsError> {
        self.live.lock().volume(&self.name).map(f).ok_or(FsError::Stale)
    }

    pub(crate) fn root(&self) -> Result<FileId, FsError> {
        self.with(Volume::root)
    }

    /// Returns the id of the file that a client's id means.
    pub(crate) fn real(&self, id: FileId) -> Result<FileId, FsError> {
        self.with(|volume| volume.real(id))
    }

    /// Begins to notice what others do in a directory. If it cannot be watched, the home looks at
    /// it now and then.
    pub(crate) async fn watch(&self, dir: FileId, source: FileId) {
        let watched = self.fs.watch(source).await;
        let changed = self.unwatched.send_if_modified(|unwatched| match watched {
            Ok(()) => unwatched.remove(&dir),
            Err(_) => unwatched.insert(dir),
        });
        if changed && watched.is_err() {
            tracing::debug!("changes in a directory are noticed only now and then");
        }
    }

    /// Takes in that a file was seen. Returns its id.
    pub(crate) fn saw(&self, entry: &Entry, identity: &[u8], place: Option<&Place>, author: u32) -> Option<FileId> {
        let id = {
            let mut live = self.live.lock();
            let volume = live.volume(&self.name)?;
            let known = volume.known(identity);
            match volume.seen(identity, Print::of(&entry.attr), place, author) {
                Some(learned) => {
                    let id = learned.id;
                    live.learn(&self.name, learned, author);
                    id
                }
                None => known?,
            }
        };
        self.means(id, entry.attr.id);
        Some(id)
    }

    /// Takes in a file, as [`saw`](Self::saw) does, after a client's operation that leaves its
    /// bytes alone, and sets its time of modification to `mtime`, if given. If the bytes have
    /// changed for all that, another program has changed them.
    fn saw_done(
        &self,
        entry: &Entry,
        identity: &[u8],
        place: Option<&Place>,
        author: u32,
        mtime: Option<Time>,
    ) -> Option<FileId> {
        let (size, now) = (entry.attr.size, entry.attr.mtime);
        self.learn(OTHERS, |volume| {
            let known = volume.file(volume.known(identity)?)?.print;
            let is_same = size == known.size && (now == known.mtime || Some(now) == mtime);
            let theirs = Print { size, mtime: now, ..known };
            volume.seen(identity, theirs, None, OTHERS).filter(|_| !is_same && known.kind != Kind::Directory)
        });
        self.saw(entry, identity, place, author)
    }

    /// Tells attached clients what changed. The changes need not be durable: after a crash no other
    /// change gets their numbers, and a client that shows such a number is told that it knows more
    /// than the home.
    pub(crate) async fn tell(&self) {
        self.tell_with(None).await;
    }

    /// Tells clients, as [`tell`](Self::tell) does, and tells this idle client everything.
    pub(crate) async fn tell_idle(&self, author: u32) {
        self.tell_with(Some(author)).await;
    }

    /// Tells attached clients what others changed, if there are changes.
    async fn tell_news(&self) {
        let has_news = {
            let live = self.live.lock();
            let mut attached = live.attached.get(&self.name).into_iter().flatten();
            attached.any(|attached| !attached.changed.is_empty() || !attached.claimed.is_empty())
        };
        if has_news {
            self.tell().await;
        }
    }

    async fn tell_with(&self, idle: Option<u32>) {
        let _in_order = self.telling.lock().await;
        let untold = self.live.lock().untold(&self.name, &self.claims, idle);
        for mut untold in untold {
            untold.files = self.reached(&untold.user, untold.files).await;
            let push = untold.push.clone();
            if !untold.files.is_empty() {
                self.company.pushed(&push, untold.stamp.seq);
            }
            if untold.messages().iter().any(|message| push.push(pack(message)).is_err())
                && let Some(attached) = self.live.lock().attached.get_mut(&self.name)
            {
                attached.retain(|attached| !Arc::ptr_eq(&attached.push, &push));
            }
        }
    }

    /// Notes the file system's id for a file.
    pub(crate) fn means(&self, id: FileId, source: FileId) {
        self.sources.lock().set(id, source);
    }

    /// Takes in what was learned.
    pub(crate) fn learn(&self, author: u32, what: impl FnOnce(&Volume) -> Option<Learned>) {
        let mut live = self.live.lock();
        if let Some(learned) = live.volume(&self.name).and_then(what) {
            live.learn(&self.name, learned, author);
        }
    }

    /// Returns the file system's id for a file. ESTALE if the file cannot be found.
    pub(crate) async fn source(&self, id: FileId) -> Result<FileId, FsError> {
        match self.find(id).await? {
            Found::Source(source) => Ok(source),
            Found::Nowhere => Err(FsError::Stale),
            Found::Lost(lost, from) => {
                // The home may have moved it meanwhile.
                let is_there = |volume: &Volume| volume.file(lost).and_then(|file| file.place()) == Some(&from);
                self.learn(OTHERS, |volume| volume.lost(lost).filter(|_| is_there(volume)));
                Err(FsError::Stale)
            }
        }
    }

    /// Returns the file system's id, as [`source`](Self::source) does, or `None` if the file is not
    /// where it was. It may still be found elsewhere.
    pub(crate) async fn source_now(&self, id: FileId) -> Result<Option<FileId>, FsError> {
        match self.find(id).await? {
            Found::Source(source) => Ok(Some(source)),
            Found::Nowhere | Found::Lost(..) => Ok(None),
        }
    }

    async fn find(&self, id: FileId) -> Result<Found, FsError> {
        let (mut at, mut way) = (id, Vec::new());
        let mut source = loop {
            if let Some(source) = self.sources.lock().of.get(&at) {
                break *source;
            }
            let known = self.with(|volume| {
                let file = volume.file(at)?;
                Some((file.place()?.clone(), file.identity.clone()))
            })?;
            let Some(((parent, name), identity)) = known.filter(|_| way.len() < DEPTH_MAX) else {
                return Ok(Found::Nowhere);
            };
            way.push((at, (parent, name), identity));
            at = parent;
        };
        while let Some((id, place, identity)) = way.pop() {
            source = match self.fs.identified(source, &place.1).await {
                Ok((entry, found)) if found == identity => entry.attr.id,
                Ok(_) | Err(FsError::NotFound | FsError::NotADirectory) => return Ok(Found::Lost(id, place)),
                Err(error) => return Err(error),
            };
        }
        Ok(Found::Source(source))
    }

    /// Looks at a name of a directory.
    pub(crate) async fn look(&self, dir: FileId, name: &[u8], author: u32) -> Result<Option<(FileId, Entry)>, FsError> {
        let source = self.source(dir).await?;
        let place = (dir, name.to_vec());
        match self.fs.identified(source, name).await {
            Ok((entry, identity)) => {
                let id = match author {
                    OTHERS => self.saw(&entry, &identity, Some(&place), author),
                    _ => self.saw_done(&entry, &identity, Some(&place), author, None),
                };
                Ok(id.map(|id| (id, entry)))
            }
            Err(FsError::NotFound) => {
                self.learn(author, |volume| volume.left(&place));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Looks at a file. ESTALE if it cannot be found.
    pub(crate) async fn glance(&self, id: FileId, author: u32) -> Result<(FileId, Entry), FsError> {
        self.glance_with(id, author, |entry, identity| {
            self.saw(entry, identity, None, author);
        })
        .await
    }

    /// Looks at a file, as [`glance`](Self::glance) does, after a client's operation that leaves
    /// its bytes alone; see [`saw_done`](Self::saw_done).
    pub(crate) async fn glance_done(&self, id: FileId, author: u32, mtime: Option<Time>) -> Result<(), FsError> {
        let saw = |entry: &Entry, identity: &[u8]| {
            self.saw_done(entry, identity, None, author, mtime);
        };
        self.glance_with(id, author, saw).await.map(drop)
    }

    async fn glance_with(
        &self,
        id: FileId,
        author: u32,
        saw: impl FnOnce(&Entry, &[u8]),
    ) -> Result<(FileId, Entry), FsError> {
        let source = self.source(id).await?;
        match self.fs.getattr(source).await {
            Ok(entry) => {
                let identity = self.with(|volume| volume.file(id).map(|file| file.identity.clone()))?;
                saw(&entry, &identity.ok_or(FsError::Stale)?);
                Ok((source, entry))
            }
            Err(FsError::Stale | FsError::NotFound) => {
                self.sources.lock().loses(id);
                self.learn(author, |volume| volume.lost(id));
                Err(FsError::Stale)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns all that a user may know of a file, except for its contents.
    pub(crate) async fn facts(&self, id: FileId, user: &User) -> Result<Facts, FsError> {
        let (source, entry) = self.glance(id, OTHERS).await?;
        self.facts_of(id, source, &entry, user).await
    }

    /// Returns the extended attributes that a user may read.
    pub(crate) async fn xattrs(&self, source: FileId, entry: &Entry, user: &User) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (superuser, cred) = (self.fs.superuser(), cred(user));
        let mut names = self.fs.listxattr(&superuser, source).await.unwrap_or_default();
        names.retain(|name| vfs::perm::xattr_listed(&cred, name) && !is_of_machine(name));
        // ACLs decide who may do what: none is left out.
        names.sort_by_key(|name| !name.starts_with(b"system."));
        // An owner can always make the file readable.
        let reader = if user.uid == entry.attr.uid { superuser } else { cred };
        let (mut xattrs, mut len) = (Vec::new(), 0);
        for name in names {
            let Ok(value) = self.fs.getxattr(&reader, source, &name).await else { continue };
            len += name.len() + value.len();
            if len > XATTRS_LEN_MAX {
                break;
            }
            xattrs.push((name, value.to_vec()));
        }
        xattrs
    }

    /// Returns the facts, as [`facts`](Self::facts) does, of a file that was just seen.
    pub(crate) async fn facts_of(
        &self,
        id: FileId,
        source: FileId,
        entry: &Entry,
        user: &User,
    ) -> Result<Facts, FsError> {
        let seen_again;
        let mut entry = entry;
        if entry.attr.kind == Kind::Directory && self.told_of.lock().insert(id) {
            // Other programs change a directory's times and links by changes in it, also before any
            // client lists it.
            self.watch(id, source).await;
            (_, seen_again) = self.glance(id, OTHERS).await?;
            entry = &seen_again;
        }
        let (version, contents) =
            self.with(|volume| volume.file(id).map(|file| (file.version, file.contents.seq)))?.ok_or(FsError::Stale)?;
        let xattrs = self.xattrs(source, entry, user).await;
        let target = match entry.attr.kind {
            Kind::Symlink => self.fs.readlink(source).await?,
            _ => Bytes::new(),
        };
        let attr = &entry.attr;
        // The home's own folder is hidden.
        let hidden = u32::from(id == self.root()? && self.is_own_within().await);
        let mut facts = Facts {
            id,
            version,
            contents,
            kind: attr.kind,
            mode: attr.mode,
            nlink: attr.nlink.saturating_sub(hidden),
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            crtime: attr.crtime,
            target: target.to_vec(),
            xattrs,
        };
        if let Some(promise) = self.promised(id, contents) {
            promise.lay_over(&mut facts);
        }
        Ok(facts)
    }

    /// Lists a directory, in the order of names. Changes by others in it are noticed from now on.
    pub(crate) async fn list(&self, dir: FileId) -> Result<Vec<(Vec<u8>, FileId, Entry)>, FsError> {
        let source = self.source(dir).await?;
        self.watch(dir, source).await;
        self.glance(dir, OTHERS).await?;
        let mut all = Vec::new();
        for (name, entry, identity) in self.fs.list(source).await? {
            if self.is_own(dir, &name) {
                continue;
            }
            let place = (dir, name);
            if let Some(id) = self.saw(&entry, &identity, Some(&place), OTHERS) {
                all.push((place.1, id, entry));
            }
        }
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// Looks at all known directories, from the root down. Then the home knows everything that
    /// others have changed, and will notice what they change later.
    pub(crate) async fn look_at_all(&self) -> Result<(), FsError> {
        let root = self.root()?;
        let (mut waiting, mut closed) = (vec![root], BTreeSet::new());
        loop {
            let Some(dir) = waiting.pop() else {
                // What is known below directories that cannot be looked at.
                waiting = self.with(|volume| volume.directories_in(&std::mem::take(&mut closed)))?;
                match waiting.is_empty() {
                    true => break,
                    false => continue,
                }
            };
            match self.list_known(dir).await {
                Ok(listed) => waiting.extend(listed),
                Err(FsError::Stale | FsError::NotFound | FsError::NotADirectory) => {}
                Err(error) if dir == root => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, volume = self.name, dir = dir.raw(), "a directory is looked at again later");
                    self.unwatched.send_if_modified(|unwatched| unwatched.insert(dir));
                    closed.insert(dir);
                }
            }
        }
        // A file that was not found where it was is gone.
        let known: Vec<FileId> = self.with(|volume| volume.placed().collect())?;
        for id in known {
            if !self.sources.lock().of.contains_key(&id) {
                let _ = self.source(id).await;
            }
        }
        self.tell().await;
        Ok(())
    }

    /// Looks at the known files of a directory. Returns the known directories among them.
    async fn list_known(&self, dir: FileId) -> Result<Vec<FileId>, FsError> {
        let source = self.source(dir).await?;
        self.watch(dir, source).await;
        self.glance(dir, OTHERS).await?;
        let mut directories = Vec::new();
        for (name, entry, identity) in self.fs.list(source).await? {
            if self.with(|volume| volume.known(&identity).is_none())? {
                continue;
            }
            if let Some(id) = self.saw(&entry, &identity, Some(&(dir, name)), OTHERS)
                && entry.attr.kind == Kind::Directory
            {
                directories.push(id);
            }
        }
        Ok(directories)
    }

    /// Looks at something that may have changed, and tells attached clients.
    async fn check(&self, noticed: Noticed) {
        self.take_in(noticed).await;
        self.tell_news().await;
    }

    /// Looks at a directory that cannot be watched, and at all names that were seen in it, and
    /// tries to watch it again. The work is done in parts, so that clients wait only for a part of
    /// it.
    async fn look_again(&self, dir: FileId, names: Vec<Vec<u8>>) {
        let version = || self.with(|volume| volume.file(dir).map(|file| file.contents.seq)).ok().flatten();
        let before = version();
        let mut changed = false;
        for names in std::iter::once(&[][..]).chain(names.chunks(LOOK_COUNT)) {
            let _one_at_a_time = self.applying.lock().await;
            let _nobody_else = self.scene.write().await;
            match self.source(dir).await {
                Ok(source) if names.is_empty() => self.watch(dir, source).await,
                Ok(_) => {}
                Err(FsError::Stale) => {
                    self.unwatched.send_if_modified(|unwatched| unwatched.remove(&dir));
                    // If it is found again, it is to be watched again.
                    self.told_of.lock().remove(&dir);
                    return self.tell().await;
                }
                // The next look may succeed.
                Err(_) => return,
            }
            for name in names {
                let place = (dir, name.clone());
                let was = self.with(|volume| volume.at(&place)).ok().flatten();
                let has_changed = self.look_known(&place).await.is_ok_and(|now| now != was);
                changed |= has_changed;
                if let Some(gone) = was.filter(|_| has_changed) {
                    self.look_at_links(gone).await;
                }
            }
            let _ = self.glance(dir, OTHERS).await;
            if changed && version() == before {
                self.learn(OTHERS, |volume| volume.touched(dir, OTHERS));
            }
            self.tell().await;
        }
    }

    async fn take_in(&self, noticed: Noticed) {
        let id_of = |source: FileId| self.sources.lock().is.get(&source).copied();
        match noticed {
            Noticed::Entry { dir, name, names_changed } => {
                let Some(dir) = id_of(dir) else { return };
                if self.is_own(dir, &name) {
                    // When the folder comes or goes, that changes the root.
                    let _ = self.glance(dir, OTHERS).await;
                    return;
                }
                let place = (dir, name);
                let before = self.with(|volume| volume.at(&place)).ok().flatten();
                let version = |id| self.with(|volume| volume.file(id).map(|file| file.contents.seq)).ok().flatten();
                let dir_before = version(dir);
                let now = match self.look_known(&place).await {
                    Ok(now) => now,
                    // Others may have moved a directory above it since. Clients are told to ask
                    // again, and the home looks again when they do.
                    Err(_) => {
                        if let Some(file) = before {
                            self.learn(OTHERS, |volume| volume.unsure(file));
                        }
                        let dir = place.0;
                        self.learn(OTHERS, |volume| match names_changed {
                            true => volume.touched(dir, OTHERS),
                            false => volume.unsure(dir),
                        });
                        return;
                    }
                };
                if let Some(gone) = before.filter(|_| now != before) {
                    self.look_at_links(gone).await;
                }
                let _ = self.glance(dir, OTHERS).await;
                if names_changed && before != now && version(dir) == dir_before {
                    self.learn(OTHERS, |volume| volume.touched(dir, OTHERS));
                }
            }
            Noticed::Directory(dir) => {
                if let Some(dir) = id_of(dir) {
                    // The watch may have ended.
                    self.told_of.lock().remove(&dir);
                    let _ = self.glance(dir, OTHERS).await;
                }
            }
            Noticed::Lost => {
                self.told_of.lock().clear();
                if let Err(error) = self.look_at_all().await {
                    tracing::error!(%error, volume = self.name, "cannot look through the volume after notices were lost");
                }
            }
        }
    }

    /// Takes in the link count of a file that has lost a name. Watches of its other names do not
    /// report that.
    async fn look_at_links(&self, file: FileId) {
        let is_elsewhere = self.with(|volume| volume.file(file).is_some_and(|file| file.place().is_some()));
        if is_elsewhere.unwrap_or(false) {
            // A client that asks for the file meets the failure again.
            let _ = self.glance(file, OTHERS).await;
        }
    }

    /// Looks at a place. A file that no client knows of stays unknown; the answer is then an id
    /// that no file has.
    async fn look_known(&self, place: &Place) -> Result<Option<FileId>, FsError> {
        let source = self.source(place.0).await?;
        match self.fs.identified(source, &place.1).await {
            Ok((_, identity)) if self.with(|volume| volume.known(&identity).is_none())? => {
                self.learn(OTHERS, |volume| volume.left(place));
                Ok(Some(FileId::new(0)))
            }
            Ok((entry, identity)) => Ok(self.saw(&entry, &identity, Some(place), OTHERS)),
            Err(FsError::NotFound) => {
                self.learn(OTHERS, |volume| volume.left(place));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Looks at everything that may have changed, as long as the volume is exported.
pub(crate) async fn notice(volume: Weak<Exported>) {
    loop {
        let Some(next) = volume.upgrade().map(|volume| volume.fs.noticed()) else { return };
        let noticed = next.await;
        let Some(volume) = volume.upgrade() else { return };
        let fs = volume.fs.clone();
        let check = async move {
            // Locked, so that clients' own changes are not taken for those of others.
            let _one_at_a_time = volume.applying.lock().await;
            let _nobody_else = volume.scene.write().await;
            volume.check(noticed).await;
        };
        fs.together(Box::pin(check)).await;
    }
}

/// Looks now and then at directories that cannot be watched, as long as the volume is exported.
pub(crate) async fn look_now_and_then(volume: Weak<Exported>, clock: Arc<dyn Clock>) {
    let Some(mut unwatched) = volume.upgrade().map(|volume| volume.unwatched.subscribe()) else { return };
    let mut pause = LOOK_PAUSE_MIN;
    while unwatched.wait_for(|unwatched| !unwatched.is_empty()).await.is_ok() {
        clock.sleep(pause).await;
        let Some(volume) = volume.upgrade() else { return };
        let begun = clock.now();
        let unwatched = volume.unwatched.borrow().clone();
        for (dir, names) in volume.with(|volume| volume.names_in(&unwatched)).unwrap_or_default() {
            volume.look_again(dir, names).await;
        }
        pause = LOOK_PAUSE_MIN.max(clock.now().saturating_sub(begun) * LOOK_SHARE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_lost_is_known_by_its_notices_but_not_for_ever() {
        let mut sources = Sources::default();
        let (id, source) = (FileId::new, |number| FileId::new(number + (1 << 40)));
        sources.set(id(0), source(0));
        sources.loses(id(0));
        assert_eq!((sources.of.get(&id(0)), sources.is.get(&source(0))), (None, Some(&id(0))));
        // It is found again, and another one is not.
        sources.set(id(0), source(0));
        sources.set(id(1), source(1));
        sources.loses(id(1));
        for number in 2..2 + 3 * LOST_COUNT_MAX as u64 {
            sources.set(id(number), source(number));
            sources.loses(id(number));
        }
        assert_eq!(sources.is.get(&source(0)), Some(&id(0)));
        assert_eq!(sources.is.get(&source(1)), None);
        assert!(sources.is.len() <= 1 + 2 * LOST_COUNT_MAX);
        // It is another file of the file system by now.
        sources.set(id(0), source(1));
        assert_eq!((sources.is.get(&source(0)), sources.is.get(&source(1))), (None, Some(&id(0))));
    }
}
