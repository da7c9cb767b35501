//! Looking at a volume's files: which id means which file of the file system behind, what it is
//! like now, and what others have changed.

use crate::claims::Claims;
use crate::company::Company;
use crate::export::{Export, Noticed};
use crate::live::Live;
use crate::promise::Promise;
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

/// Most bytes of a file's extended attributes that a client is told of; ACLs, which come first,
/// take less.
const XATTRS_LEN_MAX: usize = 256 << 10;
/// Least time between two looks at directories that cannot be watched.
const LOOK_PAUSE_MIN: Duration = Duration::from_secs(30);
/// Names that are looked at while clients wait.
const LOOK_COUNT: usize = 64;
/// The time between them is at least so many times as long as a look takes.
const LOOK_SHARE: u32 = 20;

/// What files are to the file system behind.
#[derive(Default)]
pub(crate) struct Sources {
    of: HashMap<FileId, FileId>,
    is: HashMap<FileId, FileId>,
}

impl Sources {
    fn set(&mut self, id: FileId, source: FileId) {
        if self.of.get(&id) != Some(&source) {
            self.forget(id);
            self.of.insert(id, source);
            self.is.insert(source, id);
        }
    }

    fn forget(&mut self, id: FileId) {
        if let Some(before) = self.of.remove(&id) {
            self.is.remove(&before);
        }
    }
}

/// Where a file is.
enum Found {
    /// What it is to the file system.
    Source(FileId),
    /// It has no place.
    Nowhere,
    /// This file, or directory above it, is not where it was.
    Lost(FileId),
}

/// A volume and the file system behind it.
pub(crate) struct Exported {
    pub(crate) name: String,
    pub(crate) fs: Arc<dyn Export>,
    pub(crate) live: Arc<Mutex<Live>>,
    pub(crate) sources: Mutex<Sources>,
    /// Directories whose facts clients have got since the home started or last lost notices. Each
    /// is watched, or in `unwatched`.
    pub(crate) told_of: Mutex<HashSet<FileId>>,
    /// Directories that cannot be watched.
    pub(crate) unwatched: watch::Sender<BTreeSet<FileId>>,
    /// One operation of clients at a time.
    pub(crate) applying: tokio::sync::Mutex<()>,
    /// One message at a time of each client.
    pub(crate) turns: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<()>>>>,
    /// What was done, and may not be durable.
    pub(crate) seen: Seen,
    /// Whoever is told of changes is told in their order.
    pub(crate) telling: tokio::sync::Mutex<()>,
    /// Whoever looks sees files before or after what a client does to them, and what that was is
    /// known as its doing first.
    pub(crate) scene: tokio::sync::RwLock<()>,
    pub(crate) uploads: Mutex<Uploads>,
    /// Files that are not yet what clients are told that they are.
    pub(crate) promises: Mutex<HashMap<FileId, Arc<Promise>>>,
    /// Stores that have kept what there was before they change a file in place, by author and
    /// operation.
    pub(crate) kept_before: Mutex<BTreeSet<(u32, u64)>>,
    /// Rises when bytes of a promised store have come.
    pub(crate) arrived: watch::Sender<u64>,
    pub(crate) claims: Claims,
    pub(crate) company: Company,
}

impl Exported {
    /// Until this is dropped, nothing else is done for a client.
    pub(crate) async fn turn_of(&self, author: u32) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = self.turns.lock().entry(author).or_default().clone();
        turn.lock_owned().await
    }

    /// The volume as it is known.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Volume) -> T) -> Result<T, FsError> {
        self.live.lock().volume(&self.name).map(f).ok_or(FsError::Stale)
    }

    pub(crate) fn root(&self) -> Result<FileId, FsError> {
        self.with(Volume::root)
    }

    /// The file that an id means which a client has named.
    pub(crate) fn real(&self, id: FileId) -> Result<FileId, FsError> {
        self.with(|volume| volume.real(id))
    }

    /// Begins to notice what others do in a directory; where that cannot be, it is looked at now
    /// and then.
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

    /// A file of the file system was seen. Gives its id.
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

    /// As [`saw`](Self::saw), of a file to which a client has done something that leaves its bytes
    /// alone, and gives it this time of modification, if any: if they have changed, somebody else
    /// has changed them.
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

    /// Tells those who are attached what changed. It need not be durable: after a crash no other
    /// change gets its number, and a client that shows this number is told that it knows of more
    /// than the home.
    pub(crate) async fn tell(&self) {
        self.tell_with(None).await;
    }

    /// As [`tell`](Self::tell), and this client is idle.
    pub(crate) async fn tell_idle(&self, author: u32) {
        self.tell_with(Some(author)).await;
    }

    /// Tells those who are attached what others changed, if they changed anything.
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

    /// What an id means to the file system.
    pub(crate) fn means(&self, id: FileId, source: FileId) {
        self.sources.lock().set(id, source);
    }

    /// Takes in something that was learned.
    pub(crate) fn learn(&self, author: u32, what: impl FnOnce(&Volume) -> Option<Learned>) {
        let mut live = self.live.lock();
        if let Some(learned) = live.volume(&self.name).and_then(what) {
            live.learn(&self.name, learned, author);
        }
    }

    /// What a file is to the file system. ESTALE if it is nowhere to be found.
    pub(crate) async fn source(&self, id: FileId) -> Result<FileId, FsError> {
        match self.find(id).await? {
            Found::Source(source) => Ok(source),
            Found::Nowhere => Err(FsError::Stale),
            Found::Lost(lost) => {
                self.learn(OTHERS, |volume| volume.lost(lost));
                Err(FsError::Stale)
            }
        }
    }

    /// As [`source`](Self::source), `None` if it is not where it was: it may still be found
    /// elsewhere.
    pub(crate) async fn source_now(&self, id: FileId) -> Result<Option<FileId>, FsError> {
        match self.find(id).await? {
            Found::Source(source) => Ok(Some(source)),
            Found::Nowhere | Found::Lost(_) => Ok(None),
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
            way.push((at, name, identity));
            at = parent;
        };
        while let Some((id, name, identity)) = way.pop() {
            source = match self.fs.identified(source, &name).await {
                Ok((entry, found)) if found == identity => entry.attr.id,
                Ok(_) | Err(FsError::NotFound | FsError::NotADirectory) => return Ok(Found::Lost(id)),
                Err(error) => return Err(error),
            };
        }
        Ok(Found::Source(source))
    }

    /// What is at a name of a directory now.
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

    /// What a file is like now. ESTALE if it is nowhere to be found.
    pub(crate) async fn glance(&self, id: FileId, author: u32) -> Result<(FileId, Entry), FsError> {
        self.glance_with(id, author, |entry, identity| {
            self.saw(entry, identity, None, author);
        })
        .await
    }

    /// As [`glance`](Self::glance), after a client has done something to it that leaves its bytes
    /// alone: see [`saw_done`](Self::saw_done).
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
                self.sources.lock().forget(id);
                self.learn(author, |volume| volume.lost(id));
                Err(FsError::Stale)
            }
            Err(error) => Err(error),
        }
    }

    /// All that a user may know of a file but its contents.
    pub(crate) async fn facts(&self, id: FileId, user: &User) -> Result<Facts, FsError> {
        let (source, entry) = self.glance(id, OTHERS).await?;
        self.facts_of(id, source, &entry, user).await
    }

    /// Extended attributes, as far as a user may read them.
    pub(crate) async fn xattrs(&self, source: FileId, entry: &Entry, user: &User) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (superuser, cred) = (self.fs.superuser(), cred(user));
        let mut names = self.fs.listxattr(&superuser, source).await.unwrap_or_default();
        names.retain(|name| vfs::perm::xattr_listed(&cred, name) && !is_of_machine(name));
        // Who may do what depends on ACLs: none is left out.
        names.sort_by_key(|name| !name.starts_with(b"system."));
        // An owner can always make his files readable.
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

    /// As [`facts`](Self::facts), of a file that was just seen.
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
            // Other programs change its times and links by changes in it, also before any client
            // lists it.
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
        // The home's own folder is not seen.
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

    /// All of a directory, in the order of names. Whatever others change in it from now on is
    /// noticed.
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

    /// Looks at all directories that are known, from the root down, so that whatever others have
    /// changed is known, and will be.
    pub(crate) async fn look_at_all(&self) -> Result<(), FsError> {
        let mut waiting = vec![self.root()?];
        while let Some(dir) = waiting.pop() {
            let listed = match self.list_known(dir).await {
                Err(FsError::Stale | FsError::NotFound | FsError::NotADirectory) => continue,
                listed => listed?,
            };
            waiting.extend(listed);
        }
        // Whatever was not found where it was is gone.
        let known: Vec<FileId> = self.with(|volume| volume.placed().collect())?;
        for id in known {
            if !self.sources.lock().of.contains_key(&id) {
                let _ = self.source(id).await;
            }
        }
        self.tell().await;
        Ok(())
    }

    /// Looks at what is known of a directory. Gives the directories in it that are known.
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

    /// Something may have changed, of which those who are attached are told.
    async fn check(&self, noticed: Noticed) {
        self.take_in(noticed).await;
        self.tell_news().await;
    }

    /// Looks at a directory that cannot be watched, and at all that was seen in it; and tries to
    /// watch it again. Clients wait no longer than a part of it takes.
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
                    return self.tell().await;
                }
                // Later perhaps.
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
                    // Its coming and going is a change of the root.
                    let _ = self.glance(dir, OTHERS).await;
                    return;
                }
                let place = (dir, name);
                let before = self.with(|volume| volume.at(&place)).ok().flatten();
                let version = |id| self.with(|volume| volume.file(id).map(|file| file.contents.seq)).ok().flatten();
                let dir_before = version(dir);
                let now = match self.look_known(&place).await {
                    Ok(now) => now,
                    Err(_) => return,
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
                    // It may be that the watch has ended.
                    self.told_of.lock().remove(&dir);
                    let _ = self.glance(dir, OTHERS).await;
                }
            }
            Noticed::Lost => {
                self.told_of.lock().clear();
                if let Err(error) = self.look_at_all().await {
                    tracing::error!(%error, volume = self.name, "looking at everything");
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

    /// What is at a place now; a file that nobody knows of remains unknown, which is told by an id
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

/// Looks at whatever may have changed, as long as the volume is exported.
pub(crate) async fn notice(volume: Weak<Exported>) {
    loop {
        let Some(next) = volume.upgrade().map(|volume| volume.fs.noticed()) else { return };
        let noticed = next.await;
        let Some(volume) = volume.upgrade() else { return };
        let fs = volume.fs.clone();
        let check = async move {
            // What clients do is not mistaken for what others do.
            let _one_at_a_time = volume.applying.lock().await;
            let _nobody_else = volume.scene.write().await;
            volume.check(noticed).await;
        };
        fs.together(Box::pin(check)).await;
    }
}

/// Looks at directories that cannot be watched, now and then, as long as the volume is exported.
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
