//! Changing files in place, where they cannot be exchanged with new ones.
//!
//! A crash may leave such a file half changed, and other programs may change it before the home
//! runs again. So the home keeps a copy of the old contents, durable before the first byte changes,
//! until the store is durable. When the client sends the store again, each byte must be as it
//! was before, or as the store makes it. If a byte is neither, or the copy is gone, other programs
//! have changed the file, or may have. That is a conflict, unless the file has already all bytes of
//! the store, from the first to the last.

use crate::apply::{Doing, Done, Scene, Stop};
use crate::exported::Exported;
use crate::own::before_name;
use crate::store::{Data, Over, READ};
use crate::volume::{OTHERS, Print};
use roam_proto::message::{ConflictReason, DATA_LEN_MAX};
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::ops::Range;
use types::{FileId, FsError};
use vfs::fs::{At, Entry, Handle, OpenFlags, SetAttr, SetTime};

impl Exported {
    /// Removes the copy of what was there before a store that has ended.
    pub(crate) async fn drop_before(&self, author: u32, seq: u64) {
        let is_kept = self.kept_before.lock().remove(&(author, seq));
        if is_kept {
            self.remove_own(&before_name(author, seq)).await;
        }
    }
}

/// Returns which bytes of a file of `size` bytes a store changes.
fn touched(change: &Change, size: u64) -> Ranges {
    let mut touched = Ranges::default();
    let stored = change.ranges.iter().chain(std::iter::once(change.cut..u64::MAX));
    stored.map(|range| range.start.min(size)..range.end.min(size)).for_each(|range| touched.add(range));
    touched
}

/// How much of a store a file is expected to have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SoFar {
    /// A crash may have interrupted the store.
    Part,
    /// The store was done to its end.
    Whole,
}

impl Doing<'_> {
    /// Changes the file's own bytes.
    pub(crate) async fn overwrite<'a>(
        &'a self,
        file: FileId,
        (source, entry, identity): (FileId, &Entry, &[u8]),
        stored: (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        self.keep_before(source, entry, stored.0).await.map_err(Stop::HomeFailed)?;
        self.intend(file, identity).await?;
        self.write_in_place(file, (source, identity), stored, scene).await
    }

    /// Goes on with a store after a crash, unless others have changed the file since.
    pub(crate) async fn go_on_in_place<'a>(
        &'a self,
        file: FileId,
        (source, entry, identity): (FileId, &Entry, &[u8]),
        (change, data): (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        if !self.is_stored_so_far((source, entry), change, data, SoFar::Part).await? {
            if self.is_stored(source, entry, change).await? {
                // Writing the same bytes again is safe: a crash can leave nothing else.
                let change = Change { cut: change.size, ..change.clone() };
                return self.write_in_place(file, (source, identity), (&change, data), scene).await;
            }
            self.volume.learn(OTHERS, |volume| volume.rewritten(file, OTHERS));
            return Err(Stop::Conflict(ConflictReason::Changed));
        }
        self.write_in_place(file, (source, identity), (change, data), scene).await
    }

    async fn write_in_place<'a>(
        &'a self,
        file: FileId,
        (source, identity): (FileId, &[u8]),
        (change, data): (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        let fs = &self.volume.fs;
        // The caller has checked that the user may write.
        let handle = fs.open(&fs.superuser(), source, OpenFlags { write: true, ..OpenFlags::default() }).await?;
        let written = async {
            *scene = Some(self.volume.scene.write().await);
            for size in [change.cut, change.size] {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(&self.cred, source, Some(handle), set).await?;
            }
            self.fill((source, handle), change, data, Over::Anything).await?;
            let set = SetAttr { mtime: Some(SetTime::At(change.mtime)), ..SetAttr::default() };
            let now = match fs.setattr(&self.cred, source, None, set).await {
                Ok(now) => now,
                // A user who may write need not be the owner.
                Err(_) => fs.getattr(source).await?,
            };
            fs.fsync(source, handle, false).await?;
            Ok(now)
        };
        let written = written.await;
        let _ = fs.release(source, handle, None).await;
        let author = self.whose.author;
        let now = match written {
            Ok(now) => now,
            Err(stop) => {
                // The partial change counts as this client's doing.
                self.volume.glance(file, author).await?;
                return Err(stop);
            }
        };
        // Others may have read some of the promised contents already.
        let promised = self.volume.promised_by(self.whose, self.sent.seq).map(|promise| promise.contents);
        let print = Print { size: change.size, ..Print::of(&now.attr) };
        self.volume.learn(author, |volume| volume.stored(file, identity, print, author, promised));
        // The time that was just set hides earlier writes by other programs.
        if !self.is_stored_so_far((source, &now), change, data, SoFar::Whole).await.unwrap_or(false) {
            self.volume.learn(OTHERS, |volume| volume.rewritten(file, OTHERS));
        }
        Ok(())
    }

    /// Keeps a durable copy of a file's contents. Of a long file that the file system behind cannot
    /// clone, it keeps only what the store changes. If even that is too much, it keeps nothing.
    async fn keep_before(&self, source: FileId, entry: &Entry, change: &Change) -> Result<(), FsError> {
        let (volume, fs, superuser) = (self.volume, &self.volume.fs, self.volume.fs.superuser());
        let (author, seq, size) = (self.whose.author, self.sent.seq, entry.attr.size);
        let touched = touched(change, size);
        let from = fs.open(&superuser, source, READ).await?;
        let kept = async {
            volume.kept_before.lock().insert((author, seq));
            let own = volume.make_own(before_name(author, seq)).await?;
            let kept = async {
                let from = At { id: source, handle: from, offset: 0 };
                let to = At { id: own.id, handle: own.handle, offset: 0 };
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let is_long = size > fs.copied_len_max();
                match fs.clone_file(from, to).await {
                    Ok(()) => {}
                    Err(_) if is_long && touched.len() > fs.copied_len_max() => return Ok(false),
                    Err(_) => {
                        fs.setattr(&superuser, own.id, Some(own.handle), set).await?;
                        let wanted = if is_long { touched.clone() } else { Ranges::of(0..size) };
                        for Range { start, end } in wanted.iter() {
                            let (from, to) = (At { offset: start, ..from }, At { offset: start, ..to });
                            volume.copy(from, to, end - start, Over::Zeroes).await?;
                        }
                    }
                }
                // The copy and its name must be durable before the intent that tells of them.
                if !self.home.log.synced().await?.contains(&volume.name) {
                    fs.sync().await?;
                }
                Ok(true)
            };
            let kept = kept.await;
            let _ = fs.release(own.id, own.handle, None).await;
            kept
        };
        let kept = kept.await;
        let _ = fs.release(source, from, None).await;
        if !matches!(kept, Ok(true)) {
            volume.drop_before(author, seq).await;
        }
        kept.map(drop)
    }

    /// True if every byte of a file is as this store makes it; or, for [part](SoFar::Part) of a
    /// store, as it was before.
    async fn is_stored_so_far(
        &self,
        (source, entry): (FileId, &Entry),
        change: &Change,
        data: &Data,
        so_far: SoFar,
    ) -> Result<bool, Stop> {
        if so_far == SoFar::Whole && entry.attr.size != change.size {
            return Ok(false);
        }
        let (fs, superuser) = (&self.volume.fs, self.volume.fs.superuser());
        let own = self.volume.own().await.map_err(Stop::HomeFailed)?;
        let name = before_name(self.whose.author, self.sent.seq);
        let before = match fs.lookup(&superuser, own, name.as_bytes()).await {
            Ok(before) => before,
            Err(FsError::NotFound) if so_far == SoFar::Whole => {
                // A file that was too long to copy is too long to read again.
                let is_all = change.ranges.missing(0..change.size).is_empty();
                return if is_all { self.is_stored(source, entry, change).await } else { Ok(true) };
            }
            Err(FsError::NotFound) => return Ok(false),
            Err(error) => return Err(Stop::HomeFailed(error)),
        };
        if ![before.attr.size, change.cut, change.size].contains(&entry.attr.size) {
            return Ok(false);
        }
        let now = (source, fs.open(&superuser, source, READ).await?);
        let was = match fs.open(&superuser, before.attr.id, READ).await {
            Ok(handle) => Ok((before.attr.id, handle)),
            Err(error) => Err(error),
        };
        // Of a long file, only what the store changes may have been kept. The rest is left alone,
        // even if others have changed it.
        let mut compared = Ranges::of(0..entry.attr.size);
        if before.attr.size > fs.copied_len_max() {
            compared = touched(change, before.attr.size);
            compared.add(before.attr.size..entry.attr.size.max(before.attr.size));
        }
        let compare = async {
            let was = was?;
            for Range { start, end } in compared.iter() {
                let (mut at, end) = (start, end.min(entry.attr.size));
                while at < end {
                    let len = (end - at).min(DATA_LEN_MAX as u64);
                    if !self.is_range_stored_so_far((now, was), change, data, at..at + len, so_far).await? {
                        return Ok(false);
                    }
                    at += len;
                }
            }
            Ok::<bool, FsError>(true)
        };
        let same = compare.await;
        for (id, handle) in [Ok(now), was].into_iter().flatten() {
            let _ = fs.release(id, handle, None).await;
        }
        same.map_err(Stop::HomeFailed)
    }

    async fn is_range_stored_so_far(
        &self,
        (now, was): ((FileId, Handle), (FileId, Handle)),
        change: &Change,
        data: &Data,
        range: std::ops::Range<u64>,
        so_far: SoFar,
    ) -> Result<bool, FsError> {
        let (fs, len) = (&self.volume.fs, (range.end - range.start) as usize);
        let now = fs.read(now.0, now.1, range.start, len as u32).await?;
        let mut was = fs.read(was.0, was.1, range.start, len as u32).await?.to_vec();
        was.resize(len, 0);
        // Bytes beyond the cut are zeroes until they are written.
        let is_cut = |at: usize| range.start + at as u64 >= change.cut;
        let as_before = |at: usize, now: &u8, was: &u8| match so_far {
            SoFar::Whole if is_cut(at) => *now == 0,
            SoFar::Whole => now == was,
            SoFar::Part => now == was || *now == 0 && is_cut(at),
        };
        let fits = now.iter().zip(&was).enumerate().map(|(at, (now, was))| as_before(at, now, was));
        let mut fits: Vec<bool> = fits.collect();
        for (stored, from) in change.ranges.within(range.clone()) {
            let new = self.stored(data, from, (stored.end - stored.start) as u32).await?;
            let first = (stored.start - range.start) as usize;
            for (at, new) in (first..).zip(&new) {
                if let (Some(fits), Some(now)) = (fits.get_mut(at), now.get(at)) {
                    *fits = now == new || so_far == SoFar::Part && *fits;
                }
            }
        }
        Ok(now.len() == len && fits.into_iter().all(|fits| fits))
    }
}
