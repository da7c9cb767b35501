//! Doing what clients have done, each operation once (docs/roaming.md#operations).
//!
//! The home does an operation if its subject is as the client knew it, or was changed since only by
//! that client. An operation whose result exists already counts as done: two users who did the same
//! agree, and a crash between doing and remembering leaves no doubt.
//!
//! If another client or program has made a directory at the same place, the two are one. So are two
//! symlinks with the same target. From then on, the client's id means the existing one, in
//! everything that names it. Attributes that the client set before it knew are not set on the
//! existing one.
//!
//! `make`: making files, and merging with what exists; `finish`: what a crash has left.

pub(crate) mod finish;
mod make;

use self::finish::goes_to;
use crate::Inner;
use crate::announced::Announcement;
use crate::exported::Exported;
use crate::state::{ClientKey, HomeRecord, Intent};
use crate::volume::{DEPTH_MAX, Print};
use crate::whose::{Whose, cred};
use roam_proto::channel::MESSAGE_LEN_MAX;
use roam_proto::codec::Wire;
use roam_proto::message::{Applied, ConflictReason, DATA_LEN_MAX, Facts, Outcome, Sent};
use roam_proto::operation::{Attributes, Operation, Place, is_name};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, FsError, Kind};
use vfs::fs::{Cred, Entry, NAME_LEN_MAX, OpenFlags, RenameFlags, SetAttr, SetTime, XattrMode};

/// After this time, a client that sends many operations lets others go before the rest of them.
const TURN_TIME: Duration = Duration::from_millis(200);
/// Longest file, in bytes, that is compared with another while other clients wait.
const SAME_LEN_MAX: u64 = 64 << 20;

/// Why an operation was not done.
pub(crate) enum Stop {
    Conflict(ConflictReason),
    Refused(FsError),
    /// The home cannot do it now, for reasons of its own. The client asks again.
    HomeFailed(FsError),
    /// The object exists already: a directory or symlink, which the client's id means from now on,
    /// or a file with the same contents.
    Became(FileId),
    /// The same for an empty file.
    Empty(FileId),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        match error {
            // The subject, or a directory above it, is gone.
            FsError::Stale => Stop::Conflict(ConflictReason::Gone),
            error => Stop::Refused(error),
        }
    }
}

pub(crate) type Done = Result<(), Stop>;
/// Held while files are changed, until the change is known.
pub(crate) type Scene<'a> = Option<tokio::sync::RwLockWriteGuard<'a, ()>>;

fn conflict(conflict: ConflictReason) -> Done {
    Err(Stop::Conflict(conflict))
}

/// True if an operation removes the last name of a file.
fn removes(operation: &Operation, file: FileId) -> bool {
    match operation {
        Operation::Remove { file: gone, last: true, .. } => *gone == file,
        Operation::Rename { replaced: Some((gone, true)), .. } => *gone == file,
        _ => false,
    }
}

/// True if an operation makes a file that the same client has removed since: the client sends it
/// again after a crash, and what came in the file's place exists. To make the file again would put
/// it in the way of what came later.
fn is_made_and_gone(operation: &Operation, later: &[Operation], is_done: impl Fn(&Operation) -> bool) -> bool {
    let &Operation::Make { file, ref at, .. } = operation else { return false };
    let Some(end) = later.iter().position(|later| removes(later, file)) else { return false };
    let (life, after) = later.split_at(end);
    let places = || std::iter::once(at).chain(life.iter().filter_map(|operation| goes_to(operation, file)));
    // A missing file proves nothing.
    let gives = |later: &&Operation| !matches!(later, Operation::Remove { .. });
    let replaces = |later: &&Operation| later.places().into_iter().any(|place| places().any(|had| had == place));
    after.iter().filter(gives).filter(replaces).any(is_done)
}

/// True if an operation cannot be done only because the same client has done something since,
/// before a crash, or because the client removes the file itself later. An announced operation need
/// not have been done, so `is_done` looks for the result of a later one.
fn is_overtaken(
    operation: &Operation,
    conflict: ConflictReason,
    later: &[Operation],
    redone: bool,
    is_done: impl Fn(&Operation) -> bool,
) -> bool {
    let (file, places) = (operation.file(), operation.places());
    let removes = |later: &Operation| removes(later, file);
    let meets = |later: &Operation| {
        let meets = later.files().contains(&file) || later.places().iter().any(|place| places.contains(place));
        meets && is_done(later)
    };
    match operation {
        // Contents must not be lost.
        Operation::Make { .. } => false,
        Operation::Store { .. } | Operation::Copy { .. } => {
            conflict == ConflictReason::Gone && later.iter().any(removes)
        }
        Operation::Set { .. } | Operation::SetXattr { .. } if conflict == ConflictReason::Gone => {
            later.iter().any(removes) || redone && later.iter().any(meets)
        }
        _ => redone && later.iter().any(meets),
    }
}

/// The files and places of operations that depend on something that could not be made. The client
/// does not know of that yet, and will do these operations again in another way.
#[derive(Default)]
struct Unmade {
    files: BTreeSet<FileId>,
    places: BTreeSet<Place>,
}

impl Unmade {
    /// True if an operation depends on it. Then others may depend on this operation, too.
    fn touches(&mut self, operation: &Operation) -> bool {
        let touched = operation.files().iter().any(|file| self.files.contains(file))
            || operation.places().into_iter().any(|place| self.places.contains(place));
        if touched {
            self.add(operation);
        }
        touched
    }

    fn add(&mut self, operation: &Operation) {
        self.places.extend(operation.places().into_iter().cloned());
        if matches!(operation, Operation::Make { .. }) {
            self.files.insert(operation.file());
        }
    }
}

/// One operation that is being done.
pub(crate) struct Doing<'a> {
    pub(crate) home: &'a Inner,
    pub(crate) volume: &'a Arc<Exported>,
    pub(crate) whose: &'a Whose,
    pub(crate) cred: Cred,
    pub(crate) sent: &'a Sent,
    /// The operations after it in the same message.
    pub(crate) later: &'a [Sent],
    /// What it makes may be merged with what exists.
    pub(crate) may_merge: bool,
    /// Its subject was not claimed, since an id turned out to mean another file.
    pub(crate) is_unclaimed: bool,
}

impl Inner {
    /// Does operations in order, and returns how they ended. They become
    /// [durable](Exported::durable) later. After an error, the fate of the operations is unknown,
    /// and the client asks again.
    pub(crate) async fn apply(
        &self,
        volume: &Arc<Exported>,
        whose: &Whose,
        operations: &[Sent],
    ) -> Result<Vec<Applied>, FsError> {
        // Operations are looked up by number, so a number must not come twice.
        if operations.windows(2).any(|two| two[0].seq >= two[1].seq) {
            return Err(FsError::InvalidArgument);
        }
        // The messages of a client are worked on one after the other. Operations of other clients
        // may come between two operations of a message.
        let _one_at_a_time = volume.turn_of(whose.author).await;
        let durable = volume.seen.durable(whose.author);
        if !self.log.can_announce((whose.key, &volume.name), durable, operations) {
            volume.durable(whose.author, u64::MAX).await?;
        }
        let announced = self.announce(volume, whose, operations).await?;
        let last = operations.last().map_or(0, |sent| sent.seq);
        let mut applied = Vec::new();
        let (mut first_fresh, mut unmade) = (None, Unmade::default());
        let begun = self.host.clock.now();
        for (at, sent) in operations.iter().enumerate() {
            let known = {
                let live = self.live.lock();
                let (_, grant) = live.state.grant(&whose.key, &volume.name).ok_or(FsError::Stale)?;
                (sent.seq <= grant.heard).then(|| grant.outcomes.get(&sent.seq).copied())
            };
            if !applied.is_empty() && self.host.clock.now() >= begun + TURN_TIME {
                // The client sends the rest again.
                break;
            }
            let _nobody_else = volume.applying.lock().await;
            // An earlier operation may have found that an id means another file than the client
            // thought.
            let meant = volume.meant(sent)?;
            let may_merge = !unmade.touches(&meant.operation);
            let outcome = match known {
                Some(Some(outcome)) => outcome,
                // The client has acknowledged it, so it cannot ask for it.
                Some(None) => return Err(FsError::InvalidArgument),
                None => {
                    let (cred, is_unclaimed) = (cred(&whose.user), meant.operation != sent.operation);
                    let later = &operations[at + 1..];
                    let doing = Doing { home: self, volume, whose, cred, sent: &meant, later, may_merge, is_unclaimed };
                    first_fresh.get_or_insert(sent.seq);
                    let redone = announced.binary_search_by_key(&sent.seq, |(seq, _)| *seq).is_ok();
                    let as_sent = || {
                        let more = announced.iter().filter(|(seq, _)| *seq > last).map(|(_, later)| later);
                        later.iter().map(|sent| &sent.operation).chain(more)
                    };
                    let all_later = || as_sent().map(|later| volume.really(later)).collect::<Result<Vec<_>, _>>();
                    let is_done = |later: &Operation| volume.is_done(later);
                    let is_overtaken = |conflict| {
                        all_later().is_ok_and(|later| is_overtaken(&meant.operation, conflict, &later, redone, is_done))
                    };
                    let is_gone = redone
                        && as_sent().any(|later| removes(later, meant.operation.file()))
                        && !is_done(&meant.operation)
                        && is_made_and_gone(&meant.operation, &all_later()?, is_done);
                    let done = match is_gone || volume.comes_too_late(sent)? {
                        true => Ok(()),
                        false => doing.run().await,
                    };
                    match done {
                        Ok(()) => Outcome::Done,
                        Err(Stop::Became(real)) => Outcome::Became(real),
                        Err(Stop::Empty(real)) => Outcome::Empty(real),
                        Err(Stop::Conflict(conflict)) if is_overtaken(conflict) => Outcome::Done,
                        Err(Stop::Conflict(conflict)) => Outcome::Conflict(conflict),
                        // The file system or the home is in trouble, or full. The client tries
                        // again.
                        Err(
                            Stop::HomeFailed(error)
                            | Stop::Refused(error @ (FsError::Io | FsError::TimedOut | FsError::NoSpace)),
                        ) => match applied.is_empty() {
                            true => return Err(error),
                            false => break,
                        },
                        Err(Stop::Refused(error)) => Outcome::Refused(error),
                    }
                }
            };
            if let Operation::Make { file, .. } = meant.operation
                && outcome != Outcome::Done
                && volume.with(|volume| volume.alias(file).is_none())?
            {
                unmade.add(&meant.operation);
            }
            if known.is_none() {
                self.ended(volume, whose, sent.seq, outcome);
            }
            applied.push(Applied { seq: sent.seq, outcome, facts: Vec::new() });
        }
        if let Some(first) = first_fresh {
            volume.claims.progresses(whose.author, first);
        }
        let mut known_after = self.facts_after(volume, whose, &operations[..applied.len()]).await;
        let (mut len, mut fitting) = (0, 0);
        for (sent, applied) in operations.iter().zip(&mut applied) {
            applied.facts = known_after.remove(&sent.seq).unwrap_or_default();
            volume.drop_upload(whose.author, sent.seq).await;
            len += applied.to_bytes().len();
            fitting += usize::from(fitting == 0 || len <= MESSAGE_LEN_MAX / 2);
        }
        if let Some(last) = applied.last() {
            volume.drop_uploads_through(whose.author, last.seq).await;
        }
        applied.truncate(fitting);
        volume.tell().await;
        Ok(applied)
    }

    /// Records how an operation ended. All clients see the result; it is durable later.
    fn ended(&self, volume: &Exported, whose: &Whose, seq: u64, outcome: Outcome) {
        volume.conclude(whose, seq, outcome == Outcome::Done);
        let mut live = self.live.lock();
        let (key, name) = (whose.key, volume.name.clone());
        let is_known = live.state.grant(&key, &name).is_some_and(|(_, grant)| seq <= grant.heard);
        if !is_known {
            live.record_done(&volume.name, HomeRecord::Answered { key, volume: name, seq, outcome });
        }
        volume.seen.did(whose.author, seq);
    }

    /// Announces operations, so that a new run knows of them after a crash: see
    /// [`Exported::finish_operations`]. Returns those that may be done already, with their numbers.
    /// Some of them may come in other messages.
    async fn announce(
        &self,
        volume: &Arc<Exported>,
        whose: &Whose,
        operations: &[Sent],
    ) -> Result<Vec<(u64, Operation)>, FsError> {
        let (announcement, announced) = {
            let mut live = self.live.lock();
            let (key, name) = (whose.key, volume.name.clone());
            let (_, grant) = live.state.grant(&key, &name).ok_or(FsError::Stale)?;
            // The client has begun a new log since, and has sent this again there.
            if grant.incarnation != whose.incarnation {
                return Err(FsError::InvalidArgument);
            }
            let (heard, announced) = (grant.heard, grant.applying.clone());
            let last = operations.last().map_or(0, |sent| sent.seq);
            let fresh = operations.iter().filter(|sent| sent.seq > heard);
            let fresh: Vec<_> = fresh.map(|sent| (sent.seq, sent.operation.clone())).collect();
            let mut applying = fresh.clone();
            applying.extend(announced.iter().filter(|(seq, _)| *seq > last).cloned());
            let through = volume.seen.durable(whose.author);
            let announcement = (!fresh.is_empty()).then(|| {
                live.will_do(HomeRecord::Applying { key, volume: name.clone(), operations: applying });
                Announcement { key, volume: name, incarnation: whose.incarnation, through, operations: fresh }
            });
            (announcement, announced)
        };
        if let Some(announcement) = announcement {
            self.log.announce(announcement).await?;
        }
        Ok(announced)
    }

    /// Returns facts of the files that operations name, each with the last operation that names it.
    /// It leaves out files that others have changed since the client knew them, since the client's
    /// version of these is not the home's.
    async fn facts_after(
        &self,
        volume: &Arc<Exported>,
        whose: &Whose,
        operations: &[Sent],
    ) -> BTreeMap<u64, Vec<Facts>> {
        let real = |file| volume.real(file).unwrap_or(file);
        let mut last = BTreeMap::new();
        for sent in operations {
            for file in sent.operation.files() {
                let base = if real(file) == real(sent.operation.file()) { sent.bases.0 } else { sent.bases.1 };
                let base = base.max(last.get(&real(file)).map_or(0, |(_, base)| *base));
                last.insert(real(file), (sent.seq, base));
            }
        }
        let is_its_own = |file: FileId, base: u64| {
            let known = volume.with(|volume| {
                let base = volume.base(base);
                let file = volume.file(file)?;
                Some(file.print.kind == Kind::Directory || file.contents.is_as_known(base, whose.author))
            });
            known.ok().flatten().unwrap_or(false)
        };
        let mut facts: BTreeMap<u64, Vec<Facts>> = BTreeMap::new();
        let _scene = volume.scene.read().await;
        for (file, (seq, base)) in last {
            if is_its_own(file, base)
                && volume.check_reach(&cred(&whose.user), file).await.is_ok()
                && let Ok(known) = volume.facts(file, &whose.user).await
                // Looking may have found a change by others meanwhile.
                && is_its_own(file, base)
            {
                facts.entry(seq).or_default().push(known);
            }
        }
        facts
    }
}

impl Doing<'_> {
    async fn run(&self) -> Done {
        // A store takes the lock later, when its new contents are ready.
        let mut scene = match &self.sent.operation {
            Operation::Store { .. } | Operation::Copy { .. } => None,
            _ => Some(self.volume.scene.write().await),
        };
        if self.is_unclaimed && self.volume.claims.has_others(self.whose.author) {
            // The client sends it again with the right ids.
            return Err(Stop::Refused(FsError::TimedOut));
        }
        let dirs: Vec<FileId> = self.sent.operation.places().into_iter().map(|(dir, _)| *dir).collect();
        let version = |dir: FileId| self.volume.with(|volume| volume.file(dir).map(|dir| dir.version));
        let versions = dirs.iter().map(|dir| version(*dir)).collect::<Result<Vec<_>, _>>()?;
        self.act(&mut scene).await?;
        let mtime = match &self.sent.operation {
            Operation::Set { attributes, .. } => attributes.mtime,
            _ => None,
        };
        // Everything that the operation changed counts as this client's doing. What a store changed
        // is known already.
        let read = match &self.sent.operation {
            Operation::Copy { from, .. } => Some(*from),
            _ => None,
        };
        for file in self.sent.operation.files().into_iter().filter(|file| Some(*file) != read) {
            match self.volume.glance_done(file, self.whose.author, mtime).await {
                Ok(()) | Err(FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (dir, before) in dirs.into_iter().zip(versions) {
            // The directory's times need not have moved: a file system's clock has ticks, and a
            // store may have moved them within this one.
            if version(dir)? == before {
                self.volume.learn(self.whose.author, |volume| volume.touched(dir, self.whose.author));
            }
        }
        Ok(())
    }

    async fn act<'a>(&'a self, scene: &mut Scene<'a>) -> Done {
        match &self.sent.operation {
            Operation::Make { at, file, made } => self.make(at, *file, made).await,
            Operation::Link { file, at } => self.link(*file, at).await,
            Operation::Remove { at, file, last } => self.remove(at, *file, *last).await,
            Operation::Rename { file, from, to, replaced } => self.rename(*file, from, to, *replaced).await,
            Operation::Exchange { file, from, other, to } => self.exchange(*file, from, *other, to).await,
            Operation::Set { file, attributes } => self.set(*file, attributes).await,
            Operation::SetXattr { file, name, value } => self.set_xattr(*file, name, value.as_deref()).await,
            Operation::Store { file, change } => self.store(*file, change, scene).await,
            Operation::Copy { file, from } => self.begin_as(*file, *from, scene).await,
        }
    }

    /// Looks at a directory before this operation, so that changes by others are not taken for part
    /// of it.
    pub(crate) async fn enter(&self, dir: FileId) -> Result<FileId, Stop> {
        self.check_name_space(dir).await?;
        let (source, entry) = self.volume.glance(dir, crate::volume::OTHERS).await?;
        match entry.attr.kind {
            Kind::Directory => Ok(source),
            _ => Err(Stop::Refused(FsError::NotADirectory)),
        }
    }

    /// Fails unless the directories above let the user through.
    async fn check_name_space(&self, dir: FileId) -> Result<(), Stop> {
        Ok(self.volume.check_reach(&self.cred, dir).await?)
    }

    /// Looks at a place.
    pub(crate) async fn look(&self, place: &Place) -> Result<Option<(FileId, Entry)>, Stop> {
        self.volume.check_name(place)?;
        Ok(self.volume.look(place.0, &place.1, crate::volume::OTHERS).await?)
    }

    /// Refuses modes and owners that no file can have.
    fn check_rights(&self, mode: Option<u32>, owners: [Option<u32>; 2]) -> Result<(), Stop> {
        if mode.is_some_and(|mode| mode > 0o7777) || owners.contains(&Some(u32::MAX)) {
            return Err(Stop::Refused(FsError::InvalidArgument));
        }
        Ok(())
    }

    /// True if no other client or program has changed the file's contents, or its rights, since the
    /// client knew them.
    pub(crate) fn is_as_known(&self, file: FileId, base: u64, rights: bool) -> Result<bool, Stop> {
        let known = self.volume.with(|volume| {
            let file = volume.file(file)?;
            let aspect = if rights { file.rights } else { file.contents };
            Some(aspect.is_as_known(base, self.whose.author))
        })?;
        known.ok_or(Stop::Conflict(ConflictReason::Gone))
    }

    /// Takes in what was done at places, as this client's doing.
    async fn settle(&self, places: &[&Place]) -> Done {
        for (dir, name) in places.iter().copied() {
            self.volume.look(*dir, name, self.whose.author).await?;
        }
        Ok(())
    }

    async fn link(&self, file: FileId, at: &Place) -> Done {
        let dir = self.enter(at.0).await?;
        self.check_reach_file(file).await?;
        match self.look(at).await? {
            Some((there, _)) if there == file => return Ok(()),
            Some(_) => return conflict(ConflictReason::Taken),
            None => {}
        }
        if !self.volume.may_change(&self.whose.user, file).await {
            // It was not claimed, so others may have a delegation on it.
            return Err(Stop::Refused(FsError::NotPermitted));
        }
        let (source, _) = self.volume.glance(file, crate::volume::OTHERS).await?;
        match self.volume.fs.link(&self.cred, source, dir, &at.1).await {
            Err(FsError::Exists) => return conflict(ConflictReason::Taken),
            linked => linked?,
        };
        self.settle(&[at]).await
    }

    pub(crate) async fn check_reach_file(&self, file: FileId) -> Done {
        let parent = self.volume.with(|volume| volume.file(file).and_then(|file| file.place().cloned()))?;
        match parent {
            Some((parent, _)) => self.check_name_space(parent).await,
            None if file == self.volume.root()? => Ok(()),
            None => conflict(ConflictReason::Gone),
        }
    }

    async fn remove(&self, at: &Place, file: FileId, last: bool) -> Done {
        let found = match self.enter(at.0).await {
            Ok(dir) => self.look(at).await?.map(|(there, entry)| (dir, there, entry)),
            // It was removed with its directory.
            Err(Stop::Conflict(ConflictReason::Gone)) if self.volume.with(|volume| volume.file(at.0).is_some())? => {
                None
            }
            Err(stop) => return Err(stop),
        };
        let (dir, entry) = match found {
            // Others have done the same.
            None => return Ok(()),
            Some((dir, there, entry)) if there == file => (dir, entry),
            Some(_) => {
                // The name was removed already, and the file with it, or others have moved the
                // file.
                let elsewhere = self.volume.with(|volume| volume.file(file).is_some_and(|file| file.place().is_some()));
                return if last && elsewhere? { conflict(ConflictReason::Changed) } else { Ok(()) };
            }
        };
        let is_dir = entry.attr.kind == Kind::Directory;
        if !is_dir && !self.may_end(file, &entry, self.sent.bases.0, last)? {
            return conflict(ConflictReason::Changed);
        }
        let fs = &self.volume.fs;
        match is_dir {
            true => fs.rmdir(&self.cred, dir, &at.1).await,
            false => fs.unlink(&self.cred, dir, &at.1).await,
        }
        .map_err(|error| match error {
            FsError::NotEmpty => Stop::Conflict(ConflictReason::NotEmpty),
            error => error.into(),
        })?;
        self.settle(&[at]).await
    }

    /// True if a name of a file may be removed. If it is the last name, the client must have known
    /// the contents. If the client thought that it is not the last, it must not be.
    fn may_end(&self, file: FileId, entry: &Entry, base: u64, last: bool) -> Result<bool, Stop> {
        match last {
            true => self.is_as_known(file, base, false),
            false => Ok(entry.attr.nlink > 1),
        }
    }

    async fn rename(&self, file: FileId, from: &Place, to: &Place, replaced: Option<(FileId, bool)>) -> Done {
        let (from_dir, to_dir) = (self.enter(from.0).await?, self.enter(to.0).await?);
        let (source, target) = (self.look(from).await?, self.look(to).await?);
        let is = |at: &Option<(FileId, Entry)>, file: FileId| at.as_ref().is_some_and(|(there, _)| *there == file);
        if source.is_none() && is(&target, file) {
            return Ok(());
        }
        if is(&source, file) && is(&target, file) && from != to {
            // It was moved before a crash, and an earlier operation, sent again, has added the old
            // name again.
            self.volume.fs.unlink(&self.cred, from_dir, &from.1).await?;
            return self.settle(&[to, from]).await;
        }
        if !is(&source, file) {
            return conflict(ConflictReason::Gone);
        }
        let in_the_way = match (&target, replaced) {
            (None, _) => None,
            (Some((there, entry)), Some((gone, last))) if *there == gone => {
                let is_dir = entry.attr.kind == Kind::Directory;
                let may_go = is_dir || self.may_end(gone, entry, self.sent.bases.1, last)?;
                (!may_go).then_some(ConflictReason::Changed)
            }
            (Some(_), _) => Some(ConflictReason::Taken),
        };
        // Two users who have saved the same agree.
        if let (Some(why), Some((_, mine)), Some((_, theirs))) = (in_the_way, &source, &target)
            && !self.are_same(mine, theirs).await
        {
            return conflict(why);
        }
        let flags = RenameFlags { no_replace: target.is_none(), exchange: false };
        self.volume.fs.rename(&self.cred, from_dir, &from.1, to_dir, &to.1, flags).await.map_err(|e| match e {
            FsError::Exists => Stop::Conflict(ConflictReason::Taken),
            FsError::NotEmpty => Stop::Conflict(ConflictReason::NotEmpty),
            error => error.into(),
        })?;
        // The new place comes first, so the file never seems lost.
        self.settle(&[to, from]).await
    }

    /// True if two files have the same contents, rights and extended attributes, as far as the
    /// client may know. A file that cannot be read differs.
    async fn are_same(&self, one: &Entry, other: &Entry) -> bool {
        let (fs, me) = (&self.volume.fs, self.volume.fs.superuser());
        let about = |entry: &Entry| (entry.attr.kind, entry.attr.size, entry.attr.mode, entry.attr.uid, entry.attr.gid);
        let is_fit = one.attr.kind == Kind::File && one.attr.size <= SAME_LEN_MAX && one.attr.id != other.attr.id;
        if about(one) != about(other) || !is_fit || fs.access(&self.cred, other.attr.id, vfs::perm::READ).await.is_err()
        {
            return false;
        }
        let (a, b) = (one.attr.id, other.attr.id);
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let (mine, theirs) = (fs.open(&me, a, flags).await, fs.open(&me, b, flags).await);
        let compare = async {
            let (mine, theirs) = (mine?, theirs?);
            if self.volume.xattrs(a, one, &self.whose.user).await
                != self.volume.xattrs(b, other, &self.whose.user).await
            {
                return Ok(false);
            }
            let mut at = 0;
            while at < one.attr.size {
                let len = (one.attr.size - at).min(DATA_LEN_MAX as u64) as u32;
                if fs.read(a, mine, at, len).await? != fs.read(b, theirs, at, len).await? {
                    return Ok(false);
                }
                at += u64::from(len);
            }
            Ok(Print::of(&fs.getattr(b).await?.attr) == Print::of(&other.attr))
        };
        let same: Result<bool, FsError> = compare.await;
        for (id, opened) in [(a, mine), (b, theirs)] {
            if let Ok(handle) = opened {
                let _ = fs.release(id, handle, None).await;
            }
        }
        same.unwrap_or(false)
    }

    async fn exchange(&self, file: FileId, from: &Place, other: FileId, to: &Place) -> Done {
        let (from_dir, to_dir) = (self.enter(from.0).await?, self.enter(to.0).await?);
        let (a, b) = (self.look(from).await?, self.look(to).await?);
        let (Some((a, _)), Some((b, _))) = (a, b) else { return conflict(ConflictReason::Gone) };
        if (a, b) == (other, file) {
            return Ok(());
        }
        if (a, b) != (file, other) {
            return conflict(ConflictReason::Changed);
        }
        let flags = RenameFlags { no_replace: false, exchange: true };
        self.volume.fs.rename(&self.cred, from_dir, &from.1, to_dir, &to.1, flags).await?;
        self.settle(&[from, to]).await
    }

    async fn set(&self, file: FileId, attributes: &Attributes) -> Done {
        self.check_reach_file(file).await?;
        let (source, entry) = self.volume.glance(file, crate::volume::OTHERS).await?;
        let Attributes { mode, uid, gid, atime, mtime } = *attributes;
        self.check_rights(mode, [uid, gid])?;
        let attr = &entry.attr;
        let is = mode.is_none_or(|mode| mode == attr.mode)
            && uid.is_none_or(|uid| uid == attr.uid)
            && gid.is_none_or(|gid| gid == attr.gid)
            && mtime.is_none_or(|mtime| mtime == attr.mtime)
            && atime.is_none_or(|atime| atime == attr.atime);
        if is {
            return Ok(());
        }
        let rights = mode.is_some() || uid.is_some() || gid.is_some();
        if rights && !self.is_as_known(file, self.sent.bases.0, true)? {
            return conflict(ConflictReason::Changed);
        }
        // A time belongs to contents that the client knew.
        if mtime.is_some() && !self.is_as_known(file, self.sent.bases.0, false)? && attr.kind != Kind::Directory {
            return conflict(ConflictReason::Changed);
        }
        let (atime, mtime) = (atime.map(SetTime::At), mtime.map(SetTime::At));
        let set = SetAttr { mode, uid, gid, size: None, atime, mtime };
        self.volume.fs.setattr(&self.cred, source, None, set).await?;
        Ok(())
    }

    async fn set_xattr(&self, file: FileId, name: &[u8], value: Option<&[u8]>) -> Done {
        self.check_reach_file(file).await?;
        let (source, _) = self.volume.glance(file, crate::volume::OTHERS).await?;
        let fs = &self.volume.fs;
        let there = match fs.getxattr(&self.cred, source, name).await {
            Ok(there) => Some(there),
            Err(FsError::NoSuchXattr) => None,
            Err(error) => return Err(error.into()),
        };
        if there.as_deref() == value {
            return Ok(());
        }
        if !self.is_as_known(file, self.sent.bases.0, true)? {
            return conflict(ConflictReason::Changed);
        }
        match value {
            Some(value) => fs.setxattr(&self.cred, source, name, value, XattrMode::Any).await?,
            None => fs.removexattr(&self.cred, source, name).await?,
        }
        let author = self.whose.author;
        self.volume.learn(author, |volume| volume.touched(file, author));
        Ok(())
    }

    /// Records that a file is about to be changed in place, durably, before the change.
    pub(crate) async fn intend(&self, file: FileId, identity: &[u8]) -> Done {
        let intent = Intent { seq: self.sent.seq, identity: identity.to_vec(), file, beside: None };
        let (key, volume) = (self.whose.key, self.volume.name.clone());
        self.home.live.lock().record(HomeRecord::Intended { key, volume, intent });
        self.home.log.settled().await.map_err(|_| Stop::Refused(FsError::Io))
    }

    /// Returns the intent that a crash has left of this operation.
    pub(crate) fn intended(&self) -> Option<Intent> {
        let live = self.home.live.lock();
        let (_, grant) = live.state.grant(&self.whose.key, &self.volume.name)?;
        grant.intent.clone().filter(|intent| intent.seq == self.sent.seq)
    }
}

impl Exported {
    /// Returns an operation with the ids of the files that it means, and with versions that this
    /// home has given.
    fn meant(&self, sent: &Sent) -> Result<Sent, FsError> {
        let (one, other) = sent.bases;
        let bases = self.with(|volume| (volume.base(one), volume.base(other)))?;
        Ok(Sent { operation: self.really(&sent.operation)?, bases, ..sent.clone() })
    }

    /// Replaces ids by those of the files that they mean.
    fn really(&self, operation: &Operation) -> Result<Operation, FsError> {
        let mut operation = operation.clone();
        self.with(|volume| operation.rename_files(|file| volume.real(file)))?;
        Ok(operation)
    }

    /// True if the result of an operation exists, and hardly anything else could have caused it.
    fn is_done(&self, operation: &Operation) -> bool {
        let done = self.with(|volume| {
            let is_at = |place: &Place, file: FileId| volume.at(place) == Some(file);
            match operation {
                Operation::Make { file, .. } => volume.file(*file).is_some(),
                Operation::Link { file, at: to } | Operation::Rename { file, to, .. } => is_at(to, *file),
                Operation::Exchange { file, from, other, to } => is_at(to, *file) && is_at(from, *other),
                Operation::Remove { file, last: true, .. } => {
                    volume.file(*file).is_none_or(|file| file.place().is_none())
                }
                Operation::Remove { at, file, last: false } => !is_at(at, *file),
                Operation::Set { .. }
                | Operation::SetXattr { .. }
                | Operation::Store { .. }
                | Operation::Copy { .. } => false,
            }
        });
        done.unwrap_or(false)
    }

    /// True if a client sets attributes on an object that existed already, and did not know that.
    fn comes_too_late(&self, sent: &Sent) -> Result<bool, FsError> {
        match sent.operation {
            Operation::Set { file, .. } | Operation::SetXattr { file, .. } => {
                self.with(|volume| volume.alias(file).is_some())
            }
            _ => Ok(false),
        }
    }

    /// EINVAL for an invalid name, and for the name of the home's own folder; ENAMETOOLONG.
    pub(crate) fn check_name(&self, (dir, name): &Place) -> Result<(), FsError> {
        let own = self.is_own(*dir, name);
        if !is_name(name) || own {
            return Err(FsError::InvalidArgument);
        }
        if name.len() > NAME_LEN_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(())
    }

    /// EINVAL unless the client was given this id for files that it makes.
    fn check_id(&self, key: &ClientKey, file: FileId) -> Result<(), FsError> {
        let root = self.root()?;
        let live = self.live.lock();
        let grant = live.state.grant(key, &self.name);
        match grant.is_some_and(|(_, grant)| grant.was_given(file.index())) && file.volume() == root.volume() {
            true => Ok(()),
            false => Err(FsError::InvalidArgument),
        }
    }

    /// EACCES unless the user may search every directory from the root down to `dir`.
    pub(crate) async fn check_reach(&self, cred: &Cred, dir: FileId) -> Result<(), FsError> {
        if cred.uid == 0 {
            return Ok(());
        }
        let mut at = dir;
        let root = self.root()?;
        for _ in 0..DEPTH_MAX {
            let source = self.source(at).await?;
            if self.with(|volume| volume.file(at).is_some_and(|file| file.print.kind == Kind::Directory))? {
                self.fs.access(cred, source, vfs::perm::EXECUTE).await?;
            }
            if at == root {
                return Ok(());
            }
            let parent = self.with(|volume| volume.file(at).and_then(|file| file.place().cloned()))?;
            at = parent.ok_or(FsError::Stale)?.0;
        }
        Err(FsError::Stale)
    }
}
