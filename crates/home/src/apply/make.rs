//! Making files, and merging them with what exists already.

use super::{Doing, Done, Stop, conflict};
use crate::export::Whole;
use crate::exported::Exported;
use crate::state::HomeRecord;
use crate::volume::{OTHERS, Print, Volume};
use bytes::Bytes;
use roam_proto::message::{ConflictReason, Sent};
use roam_proto::operation::{Made, Operation, Place};
use types::{FileId, FsError, Kind};
use vfs::fs::{Cred, Entry, FILE_SIZE_MAX, NewNode, SetAttr, SetTime};

/// How many operations may come between a file's making and the store that is done with it. Each of
/// several processes that make files may have a few operations on the way.
const STORE_DISTANCE_MAX: usize = 64;

impl Doing<'_> {
    pub(super) async fn make(&self, at: &Place, file: FileId, made: &Made) -> Done {
        self.volume.check_name(at)?;
        self.volume.check_id(&self.whose.key, file)?;
        self.check_rights(Some(made.mode), [Some(made.uid), Some(made.gid)])?;
        if let Some((real, kind)) = self.volume.with(|volume| {
            let real = volume.alias(file)?;
            Some((real, volume.file(real)?.print.kind))
        })? {
            // It was merged with what existed, before a crash or in an earlier message.
            return Err(if kind == made.kind { Stop::Became(real) } else { Stop::Refused(FsError::InvalidArgument) });
        }
        if let Some(kind) = self.volume.with(|volume| volume.file(file).map(|file| file.print.kind))? {
            // The file was made before a crash, with this id, which the client got for this log. It
            // may be elsewhere by now.
            return if kind == made.kind { Ok(()) } else { Err(Stop::Refused(FsError::InvalidArgument)) };
        }
        let dir = self.enter(at.0).await?;
        let fs = &self.volume.fs;
        if self.make_whole((at, dir), file, made).await? {
            return Ok(());
        }
        if let Some((entry, identity)) = self.found(dir, at).await? {
            return self.meet(at, file, made, (&entry, &identity)).await;
        }
        let name = &at.1[..];
        let entry = match made.kind {
            Kind::Directory => fs.mkdir(&self.cred, dir, name, made.mode, 0).await,
            Kind::Symlink => fs.symlink(&self.cred, dir, name, &made.target).await,
            kind => {
                let node = NewNode { kind, mode: made.mode, umask: 0, rdev: made.rdev };
                fs.mknod(&self.cred, dir, name, node).await
            }
        };
        let entry = match entry {
            // Another program made something here in this moment.
            Err(FsError::Exists) => {
                return match self.found(dir, at).await? {
                    Some((entry, identity)) => self.meet(at, file, made, (&entry, &identity)).await,
                    None => conflict(ConflictReason::Taken),
                };
            }
            entry => entry?,
        };
        let mut entry = self.volume.dress(&self.cred, &entry, made).await?;
        if made.kind == Kind::File {
            // Writes by other programs since the making are found by the next look.
            entry.attr.size = 0;
        }
        let identity = fs.identity(entry.attr.id).await?;
        if made.kind == Kind::Directory {
            self.volume.watch(file, entry.attr.id).await;
        }
        self.bind(at, file, &entry, &identity).await
    }

    /// Makes a file with its contents in one step. That needs three things: the client's first
    /// operation on the file is a store, the bytes came in the same message, and the place is free.
    /// The store is then [in place](crate::seen) when its turn comes.
    async fn make_whole(&self, (at, dir): (&Place, FileId), file: FileId, made: &Made) -> Result<bool, Stop> {
        let about = |sent: &&Sent| made.kind == Kind::File && sent.operation.files().contains(&file);
        let Some(Sent { seq, operation: Operation::Store { change, .. }, data, .. }) =
            self.later.iter().take(STORE_DISTANCE_MAX).find(about)
        else {
            return Ok(false);
        };
        if !change.fits(FILE_SIZE_MAX) || data.len() as u64 != change.ranges.len() {
            return Ok(false);
        }
        let mut from = 0;
        let pieces = change.ranges.iter().map(|range| {
            let len = (range.end - range.start) as usize;
            from += len;
            (range.start, data.slice(from - len..from))
        });
        let whole = Whole {
            // A write by a user other than root clears the set-id bits.
            mode: if self.cred.uid == 0 { made.mode } else { vfs::perm::strip_setid(made.mode) },
            owner: (made.uid, made.gid),
            atime: made.when,
            mtime: change.mtime,
            size: change.size,
            pieces: pieces.collect(),
        };
        match self.volume.fs.make_whole(&self.cred, dir, &at.1, whole).await {
            Ok((entry, identity)) => {
                self.bind(at, file, &entry, &identity).await?;
                self.volume.seen.stored(self.whose.author, *seq);
                Ok(true)
            }
            Err(FsError::Exists | FsError::NotSupported) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn found(&self, dir: FileId, at: &Place) -> Result<Option<(Entry, Bytes)>, FsError> {
        match self.volume.fs.identified(dir, &at.1).await {
            Ok(found) => Ok(Some(found)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Handles a file that exists where a client makes one.
    async fn meet(&self, at: &Place, file: FileId, made: &Made, (entry, identity): (&Entry, &[u8])) -> Done {
        // Perhaps this client has made it, and the home has forgotten.
        let known = self.volume.with(|volume| volume.known(identity))?;
        if known == Some(file) {
            return Ok(());
        }
        let is_alike = entry.attr.kind == made.kind
            && match made.kind {
                Kind::Directory => true,
                Kind::Symlink => self.volume.fs.readlink(entry.attr.id).await? == made.target,
                Kind::File => entry.attr.size == 0,
                _ => entry.attr.rdev == made.rdev,
            };
        let owner = if self.cred.uid == 0 { made.uid } else { self.cred.uid };
        let is_same = is_alike && entry.attr.mode == made.mode && entry.attr.uid == owner;
        // The client's later writes were meant for those who may read its own file.
        let is_as_private = entry.attr.uid == owner && entry.attr.mode & !made.mode == 0;
        match made.kind {
            Kind::Directory if is_alike => self.merge(at, file, (entry, identity)).await,
            _ if is_same && known.is_none() => self.bind(at, file, entry, identity).await,
            Kind::Symlink if is_alike => self.merge(at, file, (entry, identity)).await,
            Kind::File if is_alike && self.may_merge && self.is_all(file) && is_as_private => {
                match self.volume.saw(entry, identity, Some(at), OTHERS) {
                    Some(real) => Err(Stop::Empty(real)),
                    None => conflict(ConflictReason::Taken),
                }
            }
            Kind::File if self.may_merge && self.is_there(file, entry).await? => {
                match self.volume.saw(entry, identity, Some(at), OTHERS) {
                    Some(real) => Err(Stop::Became(real)),
                    None => conflict(ConflictReason::Taken),
                }
            }
            _ => conflict(ConflictReason::Taken),
        }
    }

    /// Returns what the client has sent about the file that it made, except for attributes.
    fn later_about(&self, file: FileId) -> impl Iterator<Item = &Sent> {
        let is_set = |o: &Operation| matches!(o, Operation::Set { .. } | Operation::SetXattr { .. });
        self.later.iter().filter(move |sent| sent.operation.files().contains(&file) && !is_set(&sent.operation))
    }

    /// True if the client has only made the file and set its times, as far as it has sent its
    /// operations.
    fn is_all(&self, file: FileId) -> bool {
        let mut later = self.later.iter().filter(|sent| sent.operation.files().contains(&file));
        later.all(|sent| matches!(&sent.operation, Operation::Set { attributes, .. } if !attributes.are_rights()))
    }

    /// True if the existing file contains what the client has stored in its own, the store came in
    /// the same message, and the client did nothing else but set attributes.
    async fn is_there(&self, file: FileId, entry: &Entry) -> Result<bool, Stop> {
        let later: Vec<&Sent> = self.later_about(file).collect();
        let [sent @ Sent { operation: Operation::Store { change, .. }, .. }] = later[..] else {
            return Ok(false);
        };
        let (fs, source) = (&self.volume.fs, entry.attr.id);
        if entry.attr.kind != Kind::File || fs.access(&self.cred, source, vfs::perm::READ).await.is_err() {
            return Ok(false);
        }
        let same =
            Doing { sent, later: &[], cred: self.cred.clone(), ..*self }.is_stored(source, entry, change).await?;
        let now = fs.getattr(source).await?;
        Ok(same && Print::of(&now.attr) == Print::of(&entry.attr))
    }

    /// Makes the client's id mean what exists. That is durable before anything else is done to it.
    async fn merge(&self, at: &Place, file: FileId, (entry, identity): (&Entry, &[u8])) -> Done {
        if !self.may_merge || !self.volume.with(Volume::has_room_for_aliases)? {
            return conflict(ConflictReason::Taken);
        }
        let Some(real) = self.volume.saw(entry, identity, Some(at), OTHERS) else {
            return conflict(ConflictReason::Taken);
        };
        if entry.attr.kind == Kind::Directory {
            self.volume.watch(real, entry.attr.id).await;
        }
        let volume = self.volume.name.clone();
        // Another program may have made it without making it durable.
        let became = HomeRecord::Became { volume: volume.clone(), alias: file, real };
        self.home.live.lock().record_done(&volume, became);
        self.home.log.settled().await.map_err(|_| Stop::Refused(FsError::Io))?;
        Err(Stop::Became(real))
    }

    /// Gives the client's id to this file.
    async fn bind(&self, at: &Place, file: FileId, entry: &Entry, identity: &[u8]) -> Done {
        let author = self.whose.author;
        self.volume.learn(author, |volume| Some(volume.made(file, identity, Print::of(&entry.attr), Some(at), author)));
        self.volume.means(file, entry.attr.id);
        Ok(())
    }
}

impl Exported {
    /// Gives a new object its owner, rights and times.
    pub(super) async fn dress(&self, cred: &Cred, entry: &Entry, made: &Made) -> Result<Entry, FsError> {
        let id = entry.attr.id;
        if cred.uid == 0 && (made.uid, made.gid) != (entry.attr.uid, entry.attr.gid) {
            let owner = SetAttr { uid: Some(made.uid), gid: Some(made.gid), ..SetAttr::default() };
            self.fs.setattr(cred, id, None, owner).await?;
            if made.kind != Kind::Symlink {
                // Changing the owner cleared the set-id bits.
                let mode = SetAttr { mode: Some(made.mode), ..SetAttr::default() };
                self.fs.setattr(cred, id, None, mode).await?;
            }
        }
        let when = Some(SetTime::At(made.when));
        let times = SetAttr { atime: when, mtime: when, ..SetAttr::default() };
        self.fs.setattr(cred, id, None, times).await
    }
}
