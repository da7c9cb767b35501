//! Putting contents in place: what is stored is made beside the file, whole, and exchanged with it, so that nobody ever sees half of it, and what
//! comes out of the exchange tells whether somebody else was there meanwhile (design, section 4.7).
//!
//! Where that cannot be, because a file has several names, is on a file system that is mounted below, the home may not give it its owner, or so much of it stays as it is that copying that
//! would keep others waiting, its bytes are changed in place: others may then see half of it, and a change by others in that moment may be lost.

use crate::apply::{Doing, Done, Scene, Stop, Whose};
use crate::exported::Exported;
use crate::uploads::Upload;
use crate::volume::Print;
use bytes::Bytes;
use roam_wire::message::{Conflict, DATA_LEN_MAX, Sent};
use roam_wire::operation::{Change, Place};
use roam_wire::ranges::Ranges;
use std::ops::Range;
use std::sync::Arc;
use types::{FileId, FsError, Kind};
use vfs::fs::{At, Cred, Entry, Handle, OpenFlags, RenameFlags, Seek, SetAttr, SetTime, XattrMode};

const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };
/// The extended attribute that lets a program do more than its user may.
const CAPABILITY: &[u8] = b"security.capability";
const READ: OpenFlags = OpenFlags { read: true, write: false, append: false, truncate: false, execute: false };

/// Where a store's bytes come from.
enum Data {
    Inline(Bytes),
    Uploaded(Arc<tokio::sync::Mutex<Upload>>),
}

/// What there was where bytes are copied to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Zeroes,
    Anything,
}

/// What a store is called while it is made.
fn temporary_name(author: u32, seq: u64) -> String {
    format!("store-{author}-{seq}")
}

impl Exported {
    /// Makes an empty file in the home's own directory.
    pub(crate) async fn make_own(&self, name: &str) -> Result<(FileId, Handle), FsError> {
        let superuser = self.fs.superuser();
        match self.fs.unlink(&superuser, self.own, name.as_bytes()).await {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let (entry, handle) = self.fs.create(&superuser, self.own, name.as_bytes(), 0o600, 0, READ_WRITE).await?;
        Ok((entry.attr.id, handle))
    }

    /// Removes all that earlier runs have left.
    pub(crate) async fn clear_own(&self) -> Result<(), FsError> {
        for (name, entry, _) in self.fs.list(self.own).await? {
            if entry.attr.kind != Kind::Directory {
                self.fs.unlink(&self.fs.superuser(), self.own, &name).await?;
            }
        }
        Ok(())
    }

    /// Stores that a crash has left: what was put in place is the file that it was to be.
    pub(crate) async fn finish_stores(&self) -> Result<(), FsError> {
        let intents: Vec<_> = {
            let live = self.live.lock();
            let clients = live.state.clients.values();
            let grants = clients.filter_map(|client| Some((client.number, client.grants.get(&self.name)?)));
            grants.filter_map(|(number, grant)| Some((number, grant.intent.clone()?))).collect()
        };
        for (author, intent) in intents {
            let known = self.with(|volume| volume.file(intent.file).cloned())?;
            let Some((parent, name)) = known.and_then(|file| file.place().cloned()) else { continue };
            let Ok(source) = self.source(parent).await else { continue };
            if let Ok((entry, identity)) = self.fs.identified(source, &name).await
                && identity == intent.identity
                && self.was_as_known(author, &intent, source, &name).await?
            {
                // Others may have changed it since, which is seen next.
                let mut print = Print::of(&entry.attr);
                (print.size, print.mtime) = intent.beside.unwrap_or((print.size, print.mtime));
                self.learn(author, |volume| volume.stored(intent.file, &identity, print, author, None));
                self.means(intent.file, entry.attr.id);
            }
        }
        Ok(())
    }

    /// True unless somebody else had changed a file when a client's store was exchanged with it, right before a crash: what came out then goes back to its
    /// place.
    async fn was_as_known(
        &self,
        author: u32,
        intent: &crate::state::Intent,
        dir: FileId,
        name: &[u8],
    ) -> Result<bool, FsError> {
        let temporary = temporary_name(author, intent.seq);
        let known = self.with(|volume| volume.file(intent.file).cloned())?;
        let (Some(known), Some(_)) = (known, intent.beside) else { return Ok(true) };
        if known.identity == intent.identity {
            // It was looked at before the crash.
            return Ok(true);
        }
        match self.fs.identified(self.own, temporary.as_bytes()).await {
            // It was looked at, and removed.
            Err(FsError::NotFound) => Ok(true),
            Err(error) => Err(error),
            Ok((out, identity)) => {
                let now = Print::of(&out.attr);
                let same = identity == known.identity && (now.size, now.mtime) == (known.print.size, known.print.mtime);
                if !same {
                    let flags = RenameFlags { no_replace: false, exchange: true };
                    let own = temporary.as_bytes();
                    self.fs.rename(&self.fs.superuser(), self.own, own, dir, name, flags).await?;
                }
                Ok(same)
            }
        }
    }

    /// True if an operation was answered. EINVAL if its log is not the client's any more.
    pub(crate) fn has_ended(&self, whose: &Whose, seq: u64) -> Result<bool, FsError> {
        let live = self.live.lock();
        let (_, grant) = live.state.grant(&whose.key, &self.name).ok_or(FsError::Stale)?;
        match grant.incarnation == whose.incarnation {
            true => Ok(seq <= grant.heard),
            false => Err(FsError::InvalidArgument),
        }
    }

    /// EACCES unless a user may write to a file. Its owner may: what is made read-only is written until it is closed, and he could make it writable.
    pub(crate) async fn check_write(&self, cred: &Cred, source: FileId, entry: &Entry) -> Result<(), FsError> {
        match self.fs.access(cred, source, vfs::perm::WRITE).await {
            Err(FsError::AccessDenied) if cred.uid == entry.attr.uid => Ok(()),
            allowed => allowed,
        }
    }

    /// An exchange has moved a directory's times, which a write does not do: they are known, and nobody is told.
    async fn absorb(&self, dir: FileId, author: u32) -> Result<(), FsError> {
        let entry = self.fs.getattr(self.source(dir).await?).await?;
        self.learn(author, |volume| volume.absorbed(dir, Print::of(&entry.attr)));
        // What else has changed is news.
        self.glance(dir, author).await.map(drop)
    }

    /// Copies bytes; to where there are only zeroes, what is not a hole.
    async fn copy(&self, from: At, to: At, len: u64, over: Over) -> Result<(), FsError> {
        let mut done = 0;
        while done < len {
            let mut end = len;
            if over == Over::Zeroes {
                let at = from.offset + done;
                done = match self.fs.lseek(from.id, from.handle, at, Seek::Data).await {
                    Ok(data) => data - from.offset,
                    Err(FsError::NoSuchAddress) => break,
                    Err(error) => return Err(error),
                };
                let hole = self.fs.lseek(from.id, from.handle, from.offset + done, Seek::Hole).await?;
                end = len.min(hole - from.offset);
            }
            while done < end {
                let (from, to) = (At { offset: from.offset + done, ..from }, At { offset: to.offset + done, ..to });
                match self.fs.copy_file_range(&self.fs.superuser(), from, to, end - done).await? {
                    0 => return Ok(()),
                    copied => done += copied,
                }
            }
        }
        Ok(())
    }
}

impl Doing<'_> {
    pub(crate) async fn store<'a>(&'a self, file: FileId, change: &Change, scene: &mut Scene<'a>) -> Done {
        let data = self.data(change)?;
        let volume = self.volume;
        self.check_reach_file(file).await?;
        let known = volume.with(|volume| volume.file(file).cloned())?;
        let Some(place) = known.and_then(|file| file.place().cloned()) else {
            return Err(Stop::Conflict(Conflict::Gone));
        };
        let dir = self.enter(place.0).await?;
        let redone = self.intended().filter(|intent| intent.file == file);
        let (source, entry) = match self.look(&place).await? {
            Some((there, entry)) if there == file => (entry.attr.id, entry),
            _ => return Err(Stop::Conflict(Conflict::Gone)),
        };
        if entry.attr.kind != Kind::File {
            return Err(Stop::Refused(FsError::InvalidArgument));
        }
        let identity = volume.with(|volume| volume.file(file).map(|file| file.identity.clone()))?.unwrap_or_default();
        // Before anything else: what is there is compared with what was sent.
        volume.check_write(&self.cred, source, &entry).await?;
        if redone.is_some_and(|intent| intent.identity == identity && intent.beside.is_some()) {
            // It was put in place, whole, before a crash.
            return Ok(());
        }
        // What was changed in place and only in part is known as this client's doing.
        if !self.is_as_known(file, self.sent.bases.0, false)? {
            return match self.is_stored(source, &entry, change).await? {
                true => Ok(()),
                false => Err(Stop::Conflict(Conflict::Changed)),
            };
        }
        let superuser = volume.fs.superuser();
        let owned = superuser.uid == 0 || superuser.uid == entry.attr.uid;
        let of_group =
            superuser.uid == 0 || superuser.gid == entry.attr.gid || superuser.groups.contains(&entry.attr.gid);
        let movable =
            owned && of_group && volume.fs.access(&superuser, dir, vfs::perm::WRITE | vfs::perm::EXECUTE).await.is_ok();
        let replaced = match entry.attr.nlink == 1 && movable {
            true => Some(self.replace(file, &place, dir, (source, &entry, &identity), (change, &data), scene).await),
            false => None,
        };
        match replaced {
            // The home may not make it what it has to be like.
            Some(Err(Stop::Refused(FsError::NotPermitted | FsError::NotSupported | FsError::CrossVolume))) | None => {
                self.overwrite(file, (source, &identity), (change, &data), scene).await?;
            }
            Some(replaced) => replaced?,
        }
        volume.absorb(place.0, self.whose.author).await?;
        Ok(())
    }

    /// The bytes that are to be stored, if all have come.
    fn data(&self, change: &Change) -> Result<Data, Stop> {
        let Sent { seq, data, .. } = self.sent;
        let (fits, len) = (change.fits(vfs::fs::FILE_SIZE_MAX), change.ranges.len());
        let uploaded = self.volume.uploads.lock().get(self.whose.author, *seq);
        match (fits, uploaded) {
            (true, _) if data.len() as u64 == len => Ok(Data::Inline(data.clone())),
            (true, Some(upload)) if upload.try_lock().is_ok_and(|upload| upload.have == Ranges::of(0..len)) => {
                Ok(Data::Uploaded(upload))
            }
            // After a restart of the home, what was uploaded has to come again.
            (true, _) if data.is_empty() => Err(Stop::Refused(FsError::TimedOut)),
            _ => Err(Stop::Refused(FsError::InvalidArgument)),
        }
    }

    /// Writes what is to be stored into an open file.
    async fn fill(
        &self,
        (id, handle): (FileId, Handle),
        change: &Change,
        data: &Data,
        over: Over,
    ) -> Result<(), FsError> {
        let (fs, superuser) = (&self.volume.fs, self.volume.fs.superuser());
        let mut at = 0;
        for range in change.ranges.iter() {
            let len = range.end - range.start;
            match data {
                Data::Inline(bytes) => {
                    let bytes = &bytes[at as usize..(at + len) as usize];
                    fs.write(&superuser, id, handle, range.start, bytes).await?;
                }
                Data::Uploaded(upload) => {
                    let open = upload.lock().await.open.ok_or(FsError::TimedOut)?;
                    let from = At { id: open.0, handle: open.1, offset: at };
                    self.volume.copy(from, At { id, handle, offset: range.start }, len, over).await?;
                }
            }
            at += len;
        }
        Ok(())
    }

    /// Makes the new contents beside the file and exchanges both.
    async fn replace<'a>(
        &'a self,
        file: FileId,
        place: &Place,
        dir: FileId,
        (source, entry, identity): (FileId, &Entry, &[u8]),
        (change, data): (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        let (volume, fs) = (self.volume, &self.volume.fs);
        let superuser = fs.superuser();
        let temporary = temporary_name(self.whose.author, self.sent.seq);
        let (new, handle) = volume.make_own(&temporary).await?;
        let made = async {
            let kept = change.cut.min(entry.attr.size);
            let kept = change.ranges.missing(0..kept);
            let is_long = kept.len() > fs.copied_len_max();
            if !kept.is_empty() {
                let from = fs.open(&superuser, source, READ).await?;
                let copied = async {
                    if is_long {
                        let (from, to) =
                            (At { id: source, handle: from, offset: 0 }, At { id: new, handle, offset: 0 });
                        fs.clone_file(from, to).await?;
                        let cut = SetAttr { size: Some(change.cut.min(entry.attr.size)), ..SetAttr::default() };
                        return fs.setattr(&superuser, new, Some(handle), cut).await.map(drop);
                    }
                    for Range { start, end } in kept.iter() {
                        let (from, to) =
                            (At { id: source, handle: from, offset: start }, At { id: new, handle, offset: start });
                        volume.copy(from, to, end - start, Over::Zeroes).await?;
                    }
                    Ok::<(), FsError>(())
                };
                let copied = copied.await;
                fs.release(source, from, None).await?;
                copied?;
            }
            let size = SetAttr { size: Some(change.size), ..SetAttr::default() };
            fs.setattr(&superuser, new, Some(handle), size).await?;
            self.fill((new, handle), change, data, if is_long { Over::Anything } else { Over::Zeroes }).await?;
            self.liken(&superuser, source, entry, new, change).await?;
            // The intent to come waits for what was done before it.
            if !self.home.log.synced().await?.contains(&volume.name) {
                fs.fsync(new, handle, false).await?;
            }
            fs.identity(new).await
        };
        let made = made.await;
        let _ = fs.release(new, handle, None).await;
        let own = temporary.as_bytes();
        let flags = RenameFlags { no_replace: false, exchange: true };
        let exchanged = async {
            let made = made.map_err(|error| match error {
                FsError::Stale => Stop::Refused(FsError::Io),
                error => Stop::Refused(error),
            })?;
            self.intend(file, &made, Some((change.size, change.mtime))).await?;
            *scene = Some(volume.scene.write().await);
            let exchanged = fs.rename(&superuser, volume.own, own, dir, &place.1, flags).await;
            exchanged.map_err(|error| match error {
                FsError::NotFound => Stop::Conflict(Conflict::Gone),
                error => error.into(),
            })?;
            Ok(made)
        };
        let made = match exchanged.await {
            Ok(made) => made,
            Err(stop) => {
                // Whoever does it in another way takes it again.
                *scene = None;
                // Unless it is in the file's place, and this is what was there.
                if let Ok((there, _)) = fs.identified(volume.own, own).await
                    && there.attr.id == new
                {
                    let _ = fs.unlink(&superuser, volume.own, own).await;
                }
                return Err(stop);
            }
        };
        // What came out is what went in, or somebody was there.
        let (out, out_identity) = fs.identified(volume.own, own).await?;
        let has_its_bytes =
            out_identity == identity && (out.attr.size, out.attr.mtime) == (entry.attr.size, entry.attr.mtime);
        let rights = |entry: &Entry| (entry.attr.mode, entry.attr.uid, entry.attr.gid);
        if !has_its_bytes || rights(&out) != rights(entry) {
            fs.rename(&superuser, volume.own, own, dir, &place.1, flags).await?;
            let (again, again_identity) = fs.identified(volume.own, own).await?;
            if again_identity == made && again.attr.size == change.size {
                fs.unlink(&superuser, volume.own, own).await?;
            } else {
                // Somebody was there twice: what came out now is kept beside.
                let kept = [&place.1[..], format!(" (kept {})", self.sent.seq).as_bytes()].concat();
                let flags = RenameFlags { no_replace: true, exchange: false };
                fs.rename(&superuser, volume.own, own, dir, &kept, flags).await?;
            }
            volume.look(place.0, &place.1, crate::volume::OTHERS).await?;
            return Err(match has_its_bytes {
                // The next try gives what is stored these rights.
                true => Stop::Refused(FsError::TimedOut),
                false => Stop::Conflict(Conflict::Changed),
            });
        }
        let now = fs.getattr(new).await?;
        let author = self.whose.author;
        let promised = volume.promised_by(self.whose, self.sent.seq).map(|promise| promise.contents);
        volume.learn(author, |volume| volume.stored(file, &made, Print::of(&now.attr), author, promised));
        volume.means(file, new);
        fs.unlink(&superuser, volume.own, own).await?;
        Ok(())
    }

    /// Gives a new file the owner, rights and attributes of the one whose place it takes.
    async fn liken(
        &self,
        superuser: &Cred,
        source: FileId,
        entry: &Entry,
        new: FileId,
        change: &Change,
    ) -> Result<(), FsError> {
        let (fs, attr) = (&self.volume.fs, &entry.attr);
        if superuser.uid == 0 {
            let owner = SetAttr { uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttr::default() };
            fs.setattr(superuser, new, None, owner).await?;
        } else if attr.gid != superuser.gid {
            let group = SetAttr { gid: Some(attr.gid), ..SetAttr::default() };
            fs.setattr(superuser, new, None, group).await?;
        }
        for name in fs.listxattr(superuser, source).await? {
            // Whoever changes a program takes from it what it may do beyond its user.
            if name == CAPABILITY || roam_wire::operation::is_of_machine(&name) {
                continue;
            }
            let value = fs.getxattr(superuser, source, &name).await?;
            fs.setxattr(superuser, new, &name, &value, XattrMode::Any).await?;
        }
        let mode = if self.cred.uid == 0 { attr.mode } else { vfs::perm::strip_setid(attr.mode) };
        let times = (Some(SetTime::At(attr.atime)), Some(SetTime::At(change.mtime)));
        let set = SetAttr { mode: Some(mode), atime: times.0, mtime: times.1, ..SetAttr::default() };
        fs.setattr(superuser, new, None, set).await?;
        Ok(())
    }

    /// Changes the file's own bytes.
    async fn overwrite<'a>(
        &'a self,
        file: FileId,
        (source, identity): (FileId, &[u8]),
        (change, data): (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        let fs = &self.volume.fs;
        // That the user may write was seen.
        let handle = fs.open(&fs.superuser(), source, OpenFlags { write: true, ..OpenFlags::default() }).await?;
        let written = async {
            self.intend(file, identity, None).await?;
            *scene = Some(self.volume.scene.write().await);
            for size in [change.cut, change.size] {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(&self.cred, source, Some(handle), set).await?;
            }
            self.fill((source, handle), change, data, Over::Anything).await?;
            let set = SetAttr { mtime: Some(SetTime::At(change.mtime)), ..SetAttr::default() };
            // Who may write need not own it.
            let _ = fs.setattr(&self.cred, source, None, set).await;
            fs.fsync(source, handle, false).await?;
            Ok(())
        };
        let written = written.await;
        let _ = fs.release(source, handle, None).await;
        let author = self.whose.author;
        if let Some(promise) = self.volume.promised_by(self.whose, self.sent.seq).filter(|_| written.is_ok()) {
            // Others have read it so already.
            let now = fs.getattr(source).await?;
            let (print, promised) = (Print::of(&now.attr), Some(promise.contents));
            self.volume.learn(author, |volume| volume.stored(file, identity, print, author, promised));
        }
        self.volume.glance(file, author).await?;
        written
    }

    /// True if the file has what is to be stored already.
    pub(crate) async fn is_stored(&self, source: FileId, entry: &Entry, change: &Change) -> Result<bool, Stop> {
        let (fs, data) = (&self.volume.fs, self.data(change)?);
        // Others may have changed what this store leaves as it was.
        if entry.attr.size != change.size || !change.ranges.missing(0..change.size).is_empty() {
            return Ok(false);
        }
        let there = fs.open(&fs.superuser(), source, READ).await?;
        let same = async {
            let mut at = 0;
            while at < change.size {
                let len = (change.size - at).min(DATA_LEN_MAX as u64) as u32;
                let stored = fs.read(source, there, at, len).await?;
                let new = match &data {
                    Data::Inline(bytes) => bytes.slice(at as usize..at as usize + len as usize),
                    Data::Uploaded(upload) => {
                        let (id, handle) = upload.lock().await.open.ok_or(FsError::TimedOut)?;
                        fs.read(id, handle, at, len).await?
                    }
                };
                if stored != new {
                    return Ok(false);
                }
                at += u64::from(len);
            }
            Ok(true)
        };
        let same = same.await;
        let _ = fs.release(source, there, None).await;
        same
    }
}
