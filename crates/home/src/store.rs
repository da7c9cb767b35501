//! Putting contents in place.
//!
//! The home makes the new contents whole, beside the file, and exchanges the two. So no program
//! ever sees half of a store, and what comes out of the exchange shows whether another program
//! changed the file meanwhile (docs/roaming.md#operations).
//!
//! Some files cannot be exchanged: they have several names, are on a file system that is mounted
//! below, have an owner that the home may not give, or keep so many bytes that copying them would
//! keep other clients waiting. The home changes their bytes [in place](crate::in_place). Then other
//! programs may see half of a store, and a change by another program in that moment may be lost.

use crate::apply::finish::goes_to;
use crate::apply::{Doing, Done, Scene, Stop};
use crate::exported::Exported;
use crate::state::VolumeGrant;
use crate::uploads::Upload;
use crate::volume::Print;
use crate::whose::Whose;
use bytes::Bytes;
use roam_proto::message::{ConflictReason, DATA_LEN_MAX, Sent};
use roam_proto::operation::{Change, Operation, Place};
use roam_proto::ranges::Ranges;
use std::ops::Range;
use std::sync::Arc;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{At, Cred, Entry, Handle, OpenFlags, RenameFlags, Seek, SetAttr, SetTime, XattrMode};

/// The extended attribute that gives a program more rights than its user has.
const CAPABILITY: &[u8] = b"security.capability";
pub(crate) const READ: OpenFlags =
    OpenFlags { read: true, write: false, append: false, truncate: false, execute: false };

/// Where a store's bytes come from.
pub(crate) enum Data {
    Inline(Bytes),
    Uploaded(Arc<tokio::sync::Mutex<Upload>>),
}

/// What is at the target of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Zeroes,
    Anything,
}

/// Returns the name of a store's file in the home's own folder: of the new contents while they are
/// made, and of the old contents until the store is durable.
fn temporary_name(author: u32, seq: u64) -> String {
    format!("store-{author}-{seq}")
}

/// Parses the name of a store's file: the client, and the operation's number.
fn store_of(name: &[u8]) -> Option<(u32, u64)> {
    let (author, seq) = std::str::from_utf8(name).ok()?.strip_prefix("store-")?.split_once('-')?;
    Some((author.parse().ok()?, seq.parse().ok()?))
}

impl Exported {
    /// Undoes stores that a crash has left and that may not be durable. The old contents of a file
    /// are in the home's own folder until the store is durable. The home puts them back, and the
    /// client sends the store again. If another client or program has changed the file since, the
    /// file stays as it is, and the store counts as done.
    pub(crate) async fn finish_stores(&self) -> Result<(), FsError> {
        let in_place: Vec<_> = {
            let live = self.live.lock();
            let clients = live.state.clients.values();
            let grants = clients.filter_map(|client| Some((client.number, client.grants.get(&self.name)?)));
            grants.filter_map(|(number, grant)| Some((number, grant.intent.clone()?))).collect()
        };
        for (author, intent) in in_place {
            self.finish_in_place(author, &intent).await?;
        }
        let own = self.own().await?;
        for (name, before, identity) in self.fs.list(own).await? {
            let Some((author, seq)) = store_of(&name) else { continue };
            let Some(file) = self.with(|volume| volume.known(&identity))? else { continue };
            self.undo_store((own, &name, &before), file, (author, seq)).await?;
        }
        Ok(())
    }

    /// Puts a file's old contents back to where a store, which may not be durable, has put the new
    /// ones.
    async fn undo_store(
        &self,
        (own, name, before): (FileId, &[u8], &Entry),
        file: FileId,
        (author, seq): (u32, u64),
    ) -> Result<(), FsError> {
        let mut announced: Vec<(u32, u64, Operation)> = {
            let live = self.live.lock();
            let grants = live.state.clients.values();
            let grants = grants.filter_map(|client| Some((client.number, client.grants.get(&self.name)?)));
            let all = |(number, grant): (u32, &VolumeGrant)| {
                grant.applying.clone().into_iter().map(move |(n, o)| (number, n, o))
            };
            grants.flat_map(all).collect()
        };
        self.with(|volume| {
            announced.iter_mut().for_each(|(.., operation)| operation.rename_files(|file| volume.real(file)));
        })?;
        let stored = announced.iter().find(|(by, number, _)| (*by, *number) == (author, seq));
        // A copy is announced without a size and a time.
        let made = match stored {
            Some((.., Operation::Store { change, .. })) => Some((change.size, change.mtime)),
            _ => None,
        };
        // Later stores, also of other clients, may not be durable either. Their clients send them
        // again, too.
        let stores: Vec<(u64, Time)> = announced
            .iter()
            .filter(|(by, number, _)| *by != author || *number >= seq)
            .filter_map(|(.., operation)| match *operation {
                Operation::Store { file: other, ref change } if other == file => Some((change.size, change.mtime)),
                _ => None,
            })
            .collect();
        let known = self.with(|volume| volume.file(file).and_then(|file| file.place().cloned()))?;
        let later = announced.iter().filter(|(by, number, _)| *by == author && *number > seq);
        let moved: Vec<Place> = later.filter_map(|(.., operation)| goes_to(operation, file).cloned()).collect();
        let is_moved = !moved.is_empty();
        // The place where it went last comes first: another file may have taken its old place
        // since.
        for (parent, at) in known.into_iter().chain(moved).rev() {
            let Some(dir) = self.source_now(parent).await? else { continue };
            let (entry, identity) = match self.fs.identified(dir, &at).await {
                Ok(found) => found,
                Err(FsError::NotFound | FsError::Stale | FsError::NotADirectory) => continue,
                Err(error) => return Err(error),
            };
            let is_other = self.with(|volume| volume.known(&identity).is_some())?;
            if is_other || entry.attr.kind != Kind::File {
                continue;
            }
            // A loss of power may have left it short.
            let is_of = |(size, mtime): &(u64, Time)| entry.attr.mtime == *mtime && entry.attr.size <= *size;
            let is_as_stored = made.is_none() || stores.iter().any(is_of);
            if is_as_stored && entry.attr.nlink > 1 {
                // It has got other names since, which stay its names.
                self.write_back(before, &entry).await?;
                let now = self.fs.getattr(entry.attr.id).await?;
                let print = Print::after(&now.attr, &before.attr);
                self.learn(author, |volume| volume.stored(file, &identity, print, author, None));
                self.means(file, entry.attr.id);
                return Ok(());
            }
            if is_as_stored {
                let flags = RenameFlags { no_replace: false, exchange: true };
                self.fs.rename(&self.fs.superuser(), own, name, dir, &at, flags).await?;
                // The exchange there and back has moved its times, and nothing else.
                let now = self.fs.getattr(before.attr.id).await?;
                self.learn(author, |volume| volume.absorbed(file, Print::of(&now.attr)));
                return Ok(());
            }
            if !is_moved {
                // Others have changed it since. The next look finds that.
                let mut print = Print::of(&entry.attr);
                (print.size, print.mtime) = made.unwrap_or((print.size, print.mtime));
                self.learn(author, |volume| volume.stored(file, &identity, print, author, None));
                self.means(file, entry.attr.id);
                self.seen.stored(author, seq);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies the bytes of one file to another.
    async fn write_back(&self, from: &Entry, to: &Entry) -> Result<(), FsError> {
        let superuser = self.fs.superuser();
        let (source, target) = (from.attr.id, to.attr.id);
        let read = self.fs.open(&superuser, source, READ).await?;
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let written = match self.fs.open(&superuser, target, flags).await {
            Ok(write) => {
                let written = async {
                    for size in [0, from.attr.size] {
                        let set = SetAttr { size: Some(size), ..SetAttr::default() };
                        self.fs.setattr(&superuser, target, Some(write), set).await?;
                    }
                    let (from_start, to_start) =
                        (At { id: source, handle: read, offset: 0 }, At { id: target, handle: write, offset: 0 });
                    self.copy(from_start, to_start, from.attr.size, Over::Zeroes).await?;
                    let mtime = Some(SetTime::At(from.attr.mtime));
                    self.fs.setattr(&superuser, target, None, SetAttr { mtime, ..SetAttr::default() }).await.map(drop)
                };
                let written = written.await;
                let _ = self.fs.release(target, write, None).await;
                written
            }
            Err(error) => Err(error),
        };
        let _ = self.fs.release(source, read, None).await;
        written
    }

    /// Takes in a file that was being changed in place.
    async fn finish_in_place(&self, author: u32, intent: &crate::state::Intent) -> Result<(), FsError> {
        let known = self.with(|volume| volume.file(intent.file).cloned())?;
        let Some((parent, name)) = known.and_then(|file| file.place().cloned()) else { return Ok(()) };
        let Ok(source) = self.source(parent).await else { return Ok(()) };
        if let Ok((entry, identity)) = self.fs.identified(source, &name).await
            && identity == intent.identity
        {
            self.learn(author, |volume| volume.stored(intent.file, &identity, Print::of(&entry.attr), author, None));
            self.means(intent.file, entry.attr.id);
            self.kept_before.lock().insert((author, intent.seq));
        }
        Ok(())
    }

    /// True if an operation was answered. EINVAL if its log is no longer the client's.
    pub(crate) fn has_ended(&self, whose: &Whose, seq: u64) -> Result<bool, FsError> {
        let live = self.live.lock();
        let (_, grant) = live.state.grant(&whose.key, &self.name).ok_or(FsError::Stale)?;
        match grant.incarnation == whose.incarnation {
            true => Ok(seq <= grant.heard),
            false => Err(FsError::InvalidArgument),
        }
    }

    /// EACCES unless a user may write to a file. The owner always may: a file may be made read-only
    /// while it is still open for writing, and the owner could make it writable.
    pub(crate) async fn check_write(&self, cred: &Cred, source: FileId, entry: &Entry) -> Result<(), FsError> {
        match self.fs.access(cred, source, vfs::perm::WRITE).await {
            Err(FsError::AccessDenied) if cred.uid == entry.attr.uid => Ok(()),
            allowed => allowed,
        }
    }

    /// Takes in that an exchange has moved a directory's times. A write would not do that, so no
    /// client is told.
    async fn absorb(&self, dir: FileId, author: u32) -> Result<(), FsError> {
        let entry = self.fs.getattr(self.source(dir).await?).await?;
        self.learn(author, |volume| volume.absorbed(dir, Print::of(&entry.attr)));
        // Any other change is news.
        self.glance(dir, author).await.map(drop)
    }

    /// Copies bytes. Holes are skipped if the target has only zeroes.
    pub(crate) async fn copy(&self, from: At, to: At, len: u64, over: Over) -> Result<(), FsError> {
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
                match self.copy_some(from, to, end - done).await? {
                    0 => return Ok(()),
                    copied => done += copied,
                }
            }
        }
        Ok(())
    }

    /// Copies as many bytes as one call can. Between file systems, where Linux has no call for it,
    /// it reads and writes.
    async fn copy_some(&self, from: At, to: At, len: u64) -> Result<u64, FsError> {
        let superuser = self.fs.superuser();
        match self.fs.copy_file_range(&superuser, from, to, len).await {
            Err(FsError::CrossVolume | FsError::NotSupported) => {
                let bytes =
                    self.fs.read(from.id, from.handle, from.offset, len.min(DATA_LEN_MAX as u64) as u32).await?;
                Ok(self.fs.write(&superuser, to.id, to.handle, to.offset, &bytes).await?.into())
            }
            copied => copied,
        }
    }
}

impl Doing<'_> {
    pub(crate) async fn store<'a>(&'a self, file: FileId, change: &Change, scene: &mut Scene<'a>) -> Done {
        let data = self.data(change)?;
        self.put(file, change, &data, None, scene).await
    }

    /// Gives a file that the client has made the bytes of another file, as they are now, if the
    /// user may read them.
    pub(crate) async fn begin_as<'a>(&'a self, file: FileId, from: FileId, scene: &mut Scene<'a>) -> Done {
        self.check_reach_file(from).await?;
        let (source, entry) = self.volume.glance(from, crate::volume::OTHERS).await?;
        self.volume.fs.access(&self.cred, source, vfs::perm::READ).await?;
        if entry.attr.kind != Kind::File || file == from {
            return Err(Stop::Refused(FsError::InvalidArgument));
        }
        let (size, mtime) = (entry.attr.size, entry.attr.mtime);
        let whole = Change { cut: size, size, ranges: Ranges::default(), mtime };
        self.put(file, &whole, &Data::Inline(Bytes::new()), Some((source, &entry)), scene).await
    }

    /// Makes a changed version of the file, or of `other`, and puts it in the file's place.
    async fn put<'a>(
        &'a self,
        file: FileId,
        change: &Change,
        data: &Data,
        other: Option<(FileId, &Entry)>,
        scene: &mut Scene<'a>,
    ) -> Done {
        let volume = self.volume;
        self.check_reach_file(file).await?;
        let known = volume.with(|volume| volume.file(file).cloned())?;
        let Some(place) = known.and_then(|file| file.place().cloned()) else {
            return Err(Stop::Conflict(ConflictReason::Gone));
        };
        let dir = self.enter(place.0).await?;
        let redone = self.intended().filter(|intent| intent.file == file);
        let (source, entry) = match self.look(&place).await? {
            Some((there, entry)) if there == file => (entry.attr.id, entry),
            _ => return Err(Stop::Conflict(ConflictReason::Gone)),
        };
        if entry.attr.kind != Kind::File {
            return Err(Stop::Refused(FsError::InvalidArgument));
        }
        let identity = volume.with(|volume| volume.file(file).map(|file| file.identity.clone()))?.unwrap_or_default();
        // Checked before the contents are compared, which would tell the client about them.
        volume.check_write(&self.cred, source, &entry).await?;
        let is_half_done = redone.is_some_and(|intent| intent.identity == identity);
        if self.volume.seen.has_stored(self.whose.author, self.sent.seq) {
            // The store was put in place, whole, before.
            return Ok(());
        }
        // A change in place that a crash interrupted counts as this client's doing.
        if !self.is_as_known(file, self.sent.bases.0, false)? {
            return match other.is_none() && self.is_stored(source, &entry, change).await? {
                true => Ok(()),
                false => Err(Stop::Conflict(ConflictReason::Changed)),
            };
        }
        if is_half_done {
            return self.go_on_in_place(file, (source, &entry, &identity), (change, data), scene).await;
        }
        let superuser = volume.fs.superuser();
        let owned = superuser.uid == 0 || superuser.uid == entry.attr.uid;
        let of_group =
            superuser.uid == 0 || superuser.gid == entry.attr.gid || superuser.groups.contains(&entry.attr.gid);
        let movable =
            owned && of_group && volume.fs.access(&superuser, dir, vfs::perm::WRITE | vfs::perm::EXECUTE).await.is_ok();
        let replaced = match entry.attr.nlink == 1 && movable {
            true => {
                let from = other.unwrap_or((source, &entry));
                let stored = (change, data);
                Some(self.replace(file, (&place, dir), (source, &entry, &identity), from, stored, scene).await)
            }
            false => None,
        };
        match replaced {
            // The bytes of another file cannot be written over the file's own.
            None if other.is_some() => return Err(Stop::Refused(FsError::NotSupported)),
            Some(stopped) if other.is_some() => stopped?,
            // The home may not give the new file all that it needs.
            Some(Err(Stop::Refused(FsError::NotPermitted | FsError::NotSupported | FsError::CrossVolume))) | None => {
                self.overwrite(file, (source, &entry, &identity), (change, data), scene).await?;
            }
            Some(replaced) => replaced?,
        }
        volume.absorb(place.0, self.whose.author).await?;
        Ok(())
    }

    /// Returns the bytes of the store, if all have come.
    fn data(&self, change: &Change) -> Result<Data, Stop> {
        let Sent { seq, data, .. } = self.sent;
        let (fits, len) = (change.fits(vfs::fs::FILE_SIZE_MAX), change.ranges.len());
        let uploaded = self.volume.uploads.lock().get(self.whose.author, *seq);
        match (fits, uploaded) {
            (true, _) if data.len() as u64 == len => Ok(Data::Inline(data.clone())),
            (true, Some(upload)) if upload.try_lock().is_ok_and(|upload| upload.have == Ranges::of(0..len)) => {
                Ok(Data::Uploaded(upload))
            }
            // After a restart of the home, the client has to upload again.
            (true, _) if data.is_empty() => Err(Stop::Refused(FsError::TimedOut)),
            _ => Err(Stop::Refused(FsError::InvalidArgument)),
        }
    }

    /// Reads part of the bytes of the store.
    pub(crate) async fn stored(&self, data: &Data, at: u64, len: u32) -> Result<Bytes, FsError> {
        match data {
            Data::Inline(bytes) => Ok(bytes.slice(at as usize..at as usize + len as usize)),
            Data::Uploaded(upload) => {
                let (id, handle) = upload.lock().await.open.ok_or(FsError::TimedOut)?;
                self.volume.fs.read(id, handle, at, len).await
            }
        }
    }

    /// Writes the bytes of the store into an open file.
    pub(crate) async fn fill(
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

    /// Makes the new contents beside the file, from what the store keeps of `kept_in`, and
    /// exchanges the two.
    async fn replace<'a>(
        &'a self,
        file: FileId,
        (place, dir): (&Place, FileId),
        (source, entry, identity): (FileId, &Entry, &[u8]),
        (kept_in, kept_entry): (FileId, &Entry),
        (change, data): (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        let (volume, fs) = (self.volume, &self.volume.fs);
        let superuser = fs.superuser();
        let own = volume.make_own(temporary_name(self.whose.author, self.sent.seq)).await.map_err(Stop::HomeFailed)?;
        let (new, handle) = (own.id, own.handle);
        let made = async {
            let kept = change.cut.min(kept_entry.attr.size);
            let kept = change.ranges.missing(0..kept);
            // The bytes of another file are always copied, however long that takes.
            let is_long = kept_in == source && kept.len() > fs.copied_len_max();
            if !kept.is_empty() {
                let from = fs.open(&superuser, kept_in, READ).await?;
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
                            (At { id: kept_in, handle: from, offset: start }, At { id: new, handle, offset: start });
                        volume.copy(from, to, end - start, Over::Zeroes).await?;
                    }
                    Ok::<(), FsError>(())
                };
                let copied = copied.await;
                fs.release(kept_in, from, None).await?;
                copied?;
            }
            let size = SetAttr { size: Some(change.size), ..SetAttr::default() };
            fs.setattr(&superuser, new, Some(handle), size).await?;
            self.fill((new, handle), change, data, if is_long { Over::Anything } else { Over::Zeroes }).await?;
            let likened = self.liken(&superuser, source, entry, new, change).await?;
            Ok((fs.identity(new).await?, likened))
        };
        let made = made.await;
        let _ = fs.release(new, handle, None).await;
        let (own_dir, temporary) = (own.dir, own.name.as_bytes());
        let flags = RenameFlags { no_replace: false, exchange: true };
        let exchanged = async {
            let made = made.map_err(|error| match error {
                FsError::Stale => Stop::Refused(FsError::Io),
                error => Stop::Refused(error),
            })?;
            *scene = Some(volume.scene.write().await);
            match fs.rename(&superuser, own_dir, temporary, dir, &place.1, flags).await {
                Ok(()) => Ok(made),
                Err(error) => Err(own.not_moved(volume, error).await),
            }
        };
        let (made, likened) = match exchanged.await {
            Ok(made) => made,
            Err(stop) => {
                // A change in place will take the lock again.
                *scene = None;
                // Removed only if it is still the new file: the exchange may have happened, and
                // this would be the old one.
                if let Ok((there, _)) = fs.identified(own_dir, temporary).await
                    && there.attr.id == new
                {
                    let _ = fs.unlink(&superuser, own_dir, temporary).await;
                }
                return Err(stop);
            }
        };
        // The old file must come out as it went in. Otherwise another program has changed it.
        let (has_its_bytes, has_its_rights) = match fs.identified(own_dir, temporary).await {
            Ok((out, out_identity)) => {
                let bytes = |entry: &Entry| (entry.attr.size, entry.attr.mtime);
                let rights = |entry: &Entry| (entry.attr.mode, entry.attr.uid, entry.attr.gid);
                (out_identity == identity && bytes(&out) == bytes(entry), rights(&out) == rights(entry))
            }
            // Another program has just removed it, with the home's own folder.
            Err(FsError::NotFound | FsError::Stale | FsError::NotADirectory) => (true, true),
            Err(error) => return Err(Stop::HomeFailed(error)),
        };
        if !has_its_bytes || !has_its_rights {
            fs.rename(&superuser, own_dir, temporary, dir, &place.1, flags).await.map_err(Stop::HomeFailed)?;
            let (again, again_identity) = fs.identified(own_dir, temporary).await.map_err(Stop::HomeFailed)?;
            if again_identity == made && again.attr.size == change.size {
                fs.unlink(&superuser, own_dir, temporary).await.map_err(Stop::HomeFailed)?;
            } else {
                // Another program came twice: what came out now is kept beside the file.
                let kept = [&place.1[..], format!(" (kept {})", self.sent.seq).as_bytes()].concat();
                let flags = RenameFlags { no_replace: true, exchange: false };
                fs.rename(&superuser, own_dir, temporary, dir, &kept, flags).await.map_err(Stop::HomeFailed)?;
            }
            volume.look(place.0, &place.1, crate::volume::OTHERS).await?;
            return Err(match has_its_bytes {
                // The next try gives the new file these rights.
                true => Stop::HomeFailed(FsError::TimedOut),
                false => Stop::Conflict(ConflictReason::Changed),
            });
        }
        let now = fs.getattr(new).await?;
        let print = Print::after(&now.attr, &likened.attr);
        let author = self.whose.author;
        let promised = volume.promised_by(self.whose, self.sent.seq).map(|promise| promise.contents);
        volume.learn(author, |volume| volume.stored(file, &made, print, author, promised));
        volume.means(file, new);
        // The old contents are needed until the store is durable.
        volume.seen.keep(own.name.clone());
        Ok(())
    }

    /// Gives a new file the owner, rights and attributes of the file whose place it takes. Returns
    /// its entry.
    async fn liken(
        &self,
        superuser: &Cred,
        source: FileId,
        entry: &Entry,
        new: FileId,
        change: &Change,
    ) -> Result<Entry, FsError> {
        let (fs, attr) = (&self.volume.fs, &entry.attr);
        if superuser.uid == 0 {
            let owner = SetAttr { uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttr::default() };
            fs.setattr(superuser, new, None, owner).await?;
        } else if attr.gid != superuser.gid {
            let group = SetAttr { gid: Some(attr.gid), ..SetAttr::default() };
            fs.setattr(superuser, new, None, group).await?;
        }
        for name in fs.listxattr(superuser, source).await? {
            // A changed program loses the rights beyond its user's.
            if name == CAPABILITY || roam_proto::operation::is_of_machine(&name) {
                continue;
            }
            let value = fs.getxattr(superuser, source, &name).await?;
            fs.setxattr(superuser, new, &name, &value, XattrMode::Any).await?;
        }
        let mode = if self.cred.uid == 0 { attr.mode } else { vfs::perm::strip_setid(attr.mode) };
        let times = (Some(SetTime::At(attr.atime)), Some(SetTime::At(change.mtime)));
        let set = SetAttr { mode: Some(mode), atime: times.0, mtime: times.1, ..SetAttr::default() };
        fs.setattr(superuser, new, None, set).await
    }

    /// True if the file has the store's contents already.
    pub(crate) async fn is_stored(&self, source: FileId, entry: &Entry, change: &Change) -> Result<bool, Stop> {
        let (fs, data) = (&self.volume.fs, self.data(change)?);
        // A store of a part proves nothing: others may have changed the rest.
        if entry.attr.size != change.size || !change.ranges.missing(0..change.size).is_empty() {
            return Ok(false);
        }
        let there = fs.open(&fs.superuser(), source, READ).await?;
        let same = async {
            let mut at = 0;
            while at < change.size {
                let len = (change.size - at).min(DATA_LEN_MAX as u64) as u32;
                if fs.read(source, there, at, len).await? != self.stored(&data, at, len).await? {
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
