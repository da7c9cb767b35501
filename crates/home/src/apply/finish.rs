//! Finding the results of operations that a crash has left.

use super::Whose;
use crate::exported::Exported;
use crate::volume::{OTHERS, Print, Volume};
use crate::whose::cred;
use roam_proto::operation::{Change, Made, Operation, Place};
use std::collections::BTreeMap;
use types::{FileId, FsError, Kind};

/// A client, and its operations that may have been done.
type Pending = (Whose, Vec<(u64, Operation)>);

/// A file that a client may have made, with what the client may have done to it since.
struct Maybe<'a> {
    /// Where it was made, and where it went.
    places: Vec<&'a Place>,
    made: &'a Made,
    /// The stores to it.
    stores: Vec<&'a Change>,
    /// Files whose bytes it began with.
    copies: Vec<FileId>,
}

/// Returns the place at which an operation gives a file a name.
pub(crate) fn goes_to(operation: &Operation, file: FileId) -> Option<&Place> {
    match operation {
        Operation::Make { at, file: named, .. }
        | Operation::Link { file: named, at }
        | Operation::Rename { file: named, to: at, .. }
        | Operation::Exchange { file: named, to: at, .. }
            if *named == file =>
        {
            Some(at)
        }
        Operation::Exchange { other, from, .. } if *other == file => Some(from),
        _ => None,
    }
}

/// Returns the files that a client's operations may have made, in the order of making.
fn made_by(operations: &[(u64, Operation)]) -> Vec<(FileId, Maybe<'_>)> {
    let mut order = Vec::new();
    let mut all: BTreeMap<FileId, Maybe<'_>> = BTreeMap::new();
    for (_, operation) in operations {
        match operation {
            Operation::Make { at, file, made } => {
                order.push(*file);
                all.insert(*file, Maybe { places: vec![at], made, stores: Vec::new(), copies: Vec::new() });
            }
            Operation::Store { file, change } => {
                all.get_mut(file).into_iter().for_each(|maybe| maybe.stores.push(change));
            }
            Operation::Copy { file, from } => {
                all.get_mut(file).into_iter().for_each(|maybe| maybe.copies.push(*from));
            }
            _ => {}
        }
        for (file, maybe) in &mut all {
            maybe.places.extend(goes_to(operation, *file).filter(|at| maybe.places.last() != Some(at)));
        }
    }
    order.into_iter().filter_map(|file| Some((file, all.remove(&file)?))).collect()
}

impl Exported {
    /// Finds operations that were done before a crash and not remembered. Their results count as
    /// done by the client that asked. This ends before the home answers any request. The client
    /// sends the operations again, and the home then does those that were not done.
    pub(crate) async fn finish_operations(&self) -> Result<(), FsError> {
        let pending = self.pending()?;
        for (whose, operations) in &pending {
            self.finish_made(whose, operations).await?;
        }
        // Stores are found where the files are, so files come first.
        self.finish_stores().await?;
        for (whose, operations) in &pending {
            self.find_stored(whose.author, operations).await?;
            for (_, operation) in operations {
                // An operation that was refused or impossible was not done.
                if let Err(error @ (FsError::Io | FsError::TimedOut)) =
                    self.finish_changes(whose.author, operation).await
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the operations that may have been done, for each client.
    fn pending(&self) -> Result<Vec<Pending>, FsError> {
        let mut pending: Vec<Pending> = {
            let live = self.live.lock();
            let clients = live.state.clients.iter();
            let grants =
                clients.filter_map(|(key, client)| Some((*key, client.number, client.grants.get(&self.name)?)));
            let whose = |key, author, user, incarnation| Whose { key, author, user, incarnation };
            grants
                .map(|(key, author, grant)| {
                    (whose(key, author, grant.user.clone(), grant.incarnation), grant.applying.clone())
                })
                .collect()
        };
        for (_, operations) in &mut pending {
            let mut aliases = Vec::new();
            for (seq, operation) in &mut *operations {
                self.with(|volume| {
                    if volume.alias(operation.file()).is_some() {
                        aliases.push(*seq);
                    }
                    operation.rename_files(|file| volume.real(file));
                })?;
            }
            // The object existed already, so nothing was done to it.
            operations.retain(|(seq, operation)| {
                let is_own =
                    matches!(operation, Operation::Make { .. } | Operation::Set { .. } | Operation::SetXattr { .. });
                !(is_own && aliases.contains(seq))
            });
        }
        Ok(pending)
    }

    /// Finds what a client has made and moved. Files in a directory are found after the directory.
    async fn finish_made(&self, whose: &Whose, operations: &[(u64, Operation)]) -> Result<(), FsError> {
        let mut made = made_by(operations);
        loop {
            let count = made.len();
            let mut missing = Vec::new();
            let has_found = self.finish_moved(whose.author, operations).await?;
            for (file, maybe) in made {
                match self.finish_make(whose, file, &maybe).await {
                    Ok(true) => {}
                    Err(error @ (FsError::Io | FsError::TimedOut)) => return Err(error),
                    Ok(false) | Err(_) => missing.push((file, maybe)),
                }
            }
            if !has_found && missing.len() == count {
                return Ok(());
            }
            made = missing;
        }
    }

    /// Finds known files where a client has moved them. True if the home did not know the new place
    /// of one of them.
    async fn finish_moved(&self, author: u32, operations: &[(u64, Operation)]) -> Result<bool, FsError> {
        let mut has_found = false;
        for (_, operation) in operations.iter().rev() {
            let files = match operation {
                Operation::Rename { file, .. } => vec![*file],
                Operation::Exchange { file, other, .. } => vec![*file, *other],
                _ => continue,
            };
            for file in files {
                let Some(at) = goes_to(operation, file) else { continue };
                // A directory that is not where it was may be found later.
                let Some(dir) = self.source_now(at.0).await? else { continue };
                match self.fs.identified(dir, &at.1).await {
                    Ok((entry, identity)) => {
                        let is_it =
                            |volume: &Volume| volume.known(&identity) == Some(file) && volume.at(at) != Some(file);
                        if self.with(is_it)? {
                            self.saw(&entry, &identity, Some(at), author);
                            has_found = true;
                        }
                    }
                    Err(error @ (FsError::Io | FsError::TimedOut)) => return Err(error),
                    Err(_) => {}
                }
            }
        }
        Ok(has_found)
    }

    /// Looks for one file that a client may have made. True if the home knows it now.
    async fn finish_make(&self, whose: &Whose, file: FileId, maybe: &Maybe<'_>) -> Result<bool, FsError> {
        let cred = &cred(&whose.user);
        for at in maybe.places.iter().rev() {
            // The operation was only announced. The home might have refused it.
            let found = async {
                self.check_name(at).and(self.check_id(&whose.key, file))?;
                let dir = self.source_now(at.0).await?.ok_or(FsError::Stale)?;
                self.check_reach(cred, at.0).await?;
                self.fs.identified(dir, &at.1).await
            };
            let (entry, identity) = match found.await {
                Ok(found) => found,
                Err(error @ (FsError::Io | FsError::TimedOut)) => return Err(error),
                Err(_) => continue,
            };
            if self.with(|volume| volume.file(file).is_some())? {
                return Ok(true);
            }
            let (id, made) = (entry.attr.id, maybe.made);
            // A stored file has the store's time. A loss of power may have left it short.
            let (size, mtime) = (entry.attr.size, entry.attr.mtime);
            let of_store = |change: &&Change| mtime == change.mtime && size <= change.size;
            let of_copy = |from: FileId| {
                let print = |volume: &Volume| volume.file(volume.real(from)).map(|file| file.print);
                self.with(print).ok().flatten().is_some_and(|print| mtime == print.mtime && size <= print.size)
            };
            let stored = maybe.stores.iter().any(of_store) || maybe.copies.iter().any(|from| of_copy(*from));
            let alike = entry.attr.kind == made.kind
                && match made.kind {
                    Kind::Directory => true,
                    Kind::File => size == 0 || stored,
                    Kind::Symlink => self.fs.readlink(id).await? == made.target,
                    _ => entry.attr.rdev == made.rdev,
                };
            let is_theirs = cred.uid == 0 || cred.uid == entry.attr.uid;
            let is_new = self.with(|volume| volume.known(&identity).is_none())?;
            if !is_new || !alike || !is_theirs {
                continue;
            }
            let is_dressed = stored || entry.attr.mtime == made.when;
            let entry = if is_dressed { entry } else { self.dress(cred, &entry, made).await? };
            let author = whose.author;
            self.learn(author, |volume| Some(volume.made(file, &identity, Print::of(&entry.attr), Some(at), author)));
            self.means(file, id);
            if made.kind == Kind::Directory && !self.fs.list(id).await?.is_empty() {
                // Other programs have put something into it already.
                self.learn(OTHERS, |volume| volume.touched(file, OTHERS));
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Finds stores of a client if another program has removed the home's own folder, with the old
    /// contents. The client stores them again.
    async fn find_stored(&self, author: u32, operations: &[(u64, Operation)]) -> Result<(), FsError> {
        for (index, (_, operation)) in operations.iter().enumerate() {
            let Operation::Store { file, change } = operation else { continue };
            let known = self.with(|volume| volume.file(*file).and_then(|file| file.place().cloned()))?;
            let later = operations[index..].iter().filter_map(|(_, later)| goes_to(later, *file).cloned());
            for (parent, name) in known.into_iter().chain(later).rev() {
                let Some(dir) = self.source_now(parent).await? else { continue };
                let (entry, identity) = match self.fs.identified(dir, &name).await {
                    Ok(found) => found,
                    Err(error @ (FsError::Io | FsError::TimedOut)) => return Err(error),
                    Err(_) => continue,
                };
                let attr = &entry.attr;
                let is_as_stored = attr.kind == Kind::File && attr.mtime == change.mtime && attr.size <= change.size;
                if is_as_stored && self.with(|volume| volume.known(&identity).is_none())? {
                    self.learn(author, |volume| volume.stored(*file, &identity, Print::of(attr), author, None));
                    self.means(*file, attr.id);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes in changes of other files, except for changes of their contents.
    async fn finish_changes(&self, author: u32, operation: &Operation) -> Result<(), FsError> {
        let source = self.source(operation.file()).await?;
        let entry = self.fs.getattr(source).await?;
        let known = self.with(|volume| volume.file(operation.file()).cloned())?.ok_or(FsError::Stale)?;
        let set = match operation {
            Operation::Set { attributes, .. } => attributes.mtime,
            _ => None,
        };
        let attr = &entry.attr;
        let same_bytes = attr.size == known.print.size && (attr.mtime == known.print.mtime || Some(attr.mtime) == set);
        if same_bytes {
            self.saw(&entry, &known.identity, None, author);
        }
        Ok(())
    }
}
