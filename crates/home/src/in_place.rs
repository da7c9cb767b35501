//! Changing files in place, where nothing can be exchanged with them.
//!
//! A crash may leave such a file half changed, and other programs may change it before the home is there
//! again. So the home keeps a copy of what there was before, durable before the first byte changes, until the
//! client has its answer. When the client asks again, each byte must be as it was before or as the store makes
//! it. If one is not, or the copy is gone, others have changed the file, or may have: that is a conflict, unless
//! the file has what the store makes of it already, from the first byte to the last.

use crate::apply::{Doing, Done, Scene, Stop};
use crate::exported::Exported;
use crate::own::before_name;
use crate::store::{Data, Over, READ};
use crate::volume::{OTHERS, Print};
use roam_proto::message::{Conflict, DATA_LEN_MAX};
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::ops::Range;
use types::{FileId, FsError};
use vfs::fs::{At, Entry, Handle, OpenFlags, SetAttr, SetTime};

impl Exported {
    /// A store has ended: what there was before it is not needed.
    pub(crate) async fn drop_before(&self, author: u32, seq: u64) {
        let is_kept = self.kept_before.lock().remove(&(author, seq));
        if is_kept {
            self.remove_own(&before_name(author, seq)).await;
        }
    }
}

/// What a store changes of what there was in a file of so many bytes.
fn touched(change: &Change, size: u64) -> Ranges {
    let mut touched = Ranges::default();
    let stored = change.ranges.iter().chain(std::iter::once(change.cut..u64::MAX));
    stored.map(|range| range.start.min(size)..range.end.min(size)).for_each(|range| touched.add(range));
    touched
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
        self.keep_before(source, entry, stored.0).await.map_err(Stop::Trouble)?;
        self.intend(file, identity).await?;
        self.write_in_place(file, (source, identity), stored, scene).await
    }

    /// Goes on after a crash, unless others have changed the file since.
    pub(crate) async fn go_on_in_place<'a>(
        &'a self,
        file: FileId,
        (source, entry, identity): (FileId, &Entry, &[u8]),
        (change, data): (&Change, &Data),
        scene: &mut Scene<'a>,
    ) -> Done {
        if !self.is_half_stored((source, entry), change, data).await? {
            if self.is_stored(source, entry, change).await? {
                // The same bytes are written over themselves, so a crash can leave nothing else.
                let change = Change { cut: change.size, ..change.clone() };
                return self.write_in_place(file, (source, identity), (&change, data), scene).await;
            }
            self.volume.learn(OTHERS, |volume| volume.rewritten(file, OTHERS));
            return Err(Stop::Conflict(Conflict::Changed));
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
        // That the user may write was seen.
        let handle = fs.open(&fs.superuser(), source, OpenFlags { write: true, ..OpenFlags::default() }).await?;
        let written = async {
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

    /// Keeps a copy of what is in a file, durably. Of a long one only what the store changes is kept, where the file system behind cannot clone it, and of
    /// too much of that nothing.
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
                // The copy and its name are durable before the intent that tells of them.
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

    /// True if every byte of a file is as it was before this store, or as this store makes it.
    async fn is_half_stored(
        &self,
        (source, entry): (FileId, &Entry),
        change: &Change,
        data: &Data,
    ) -> Result<bool, Stop> {
        let (fs, superuser) = (&self.volume.fs, self.volume.fs.superuser());
        let own = self.volume.own().await.map_err(Stop::Trouble)?;
        let name = before_name(self.whose.author, self.sent.seq);
        let before = match fs.lookup(&superuser, own, name.as_bytes()).await {
            Ok(before) => before,
            Err(FsError::NotFound) => return Ok(false),
            Err(error) => return Err(Stop::Trouble(error)),
        };
        if ![before.attr.size, change.cut, change.size].contains(&entry.attr.size) {
            return Ok(false);
        }
        let now = (source, fs.open(&superuser, source, READ).await?);
        let was = match fs.open(&superuser, before.attr.id, READ).await {
            Ok(handle) => Ok((before.attr.id, handle)),
            Err(error) => Err(error),
        };
        // Of a long file only what the store changes need have been kept; the rest is not touched, whoever has changed it.
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
                    if !self.is_part_half_stored((now, was), change, data, at..at + len).await? {
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
        same.map_err(Stop::Trouble)
    }

    async fn is_part_half_stored(
        &self,
        (now, was): ((FileId, Handle), (FileId, Handle)),
        change: &Change,
        data: &Data,
        range: std::ops::Range<u64>,
    ) -> Result<bool, FsError> {
        let (fs, len) = (&self.volume.fs, (range.end - range.start) as usize);
        let now = fs.read(now.0, now.1, range.start, len as u32).await?;
        let mut was = fs.read(was.0, was.1, range.start, len as u32).await?.to_vec();
        was.resize(len, 0);
        // What was cut off is zeroes, until it is written.
        let is_cut = |at: usize| range.start + at as u64 >= change.cut;
        let fits = now.iter().zip(&was).enumerate().map(|(at, (now, was))| now == was || *now == 0 && is_cut(at));
        let mut fits: Vec<bool> = fits.collect();
        for (stored, from) in change.ranges.within(range.clone()) {
            let new = self.stored(data, from, (stored.end - stored.start) as u32).await?;
            let first = (stored.start - range.start) as usize;
            for (at, new) in (first..).zip(&new) {
                if let (Some(fits), Some(now)) = (fits.get_mut(at), now.get(at)) {
                    *fits |= now == new;
                }
            }
        }
        Ok(now.len() == len && fits.into_iter().all(|fits| fits))
    }
}
