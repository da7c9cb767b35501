//! What becomes of operations that the home could not do as they were (docs/roaming.md#conflicts).
//! Pure.
//!
//! The home's version stays in its place. This client's version of a file becomes a file beside it,
//! under a name that says so, and goes home like any other. A [`Conflict`] stays on record until a
//! user resolves it. What the home refuses to make or store, it would refuse beside its version
//! too; this stays in the cache. So does a copy that meets a conflict itself while the first one is
//! open: there are never copies of copies.

use super::{BASE_LEN_MAX, Changes, Child, Node, Replica};
use roam_proto::codec::Wire;
use roam_proto::message::{ConflictReason, Outcome};
use roam_proto::operation::{Change, Made, Operation, Place};
use roam_proto::ranges::Ranges;
use roam_proto::{wire_enum, wire_struct};
use types::codec::{DecodeError, Reader};
use types::{FileId, Kind, Time};
use vfs::acl;
use vfs::fs::NAME_LEN_MAX;

/// Most numbered names beside a file that are recognised as tried before.
const TRIED_COUNT_MAX: u32 = 1 << 12;

/// What a failed operation was to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// A file or directory was made.
    Make,
    /// A file got another name.
    Link,
    /// A name was removed.
    Remove,
    /// A name was moved.
    Rename,
    /// Attributes were set.
    Set,
    /// Contents were changed.
    Store,
    /// Contents were changed, and were missing in the cache when they were to go home.
    Lost,
}
wire_enum!(Deed { 1 => Make, 2 => Link, 3 => Remove, 4 => Rename, 5 => Set, 6 => Store, 7 => Lost });

impl Deed {
    /// In words for users.
    pub fn text(self) -> &'static str {
        match self {
            Deed::Make => "made",
            Deed::Link => "linked",
            Deed::Remove => "removed",
            Deed::Rename => "renamed",
            Deed::Set => "attributes set",
            Deed::Store => "changed",
            Deed::Lost => "changed and lost",
        }
    }
}

/// A conflict: an operation that the home could not do as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// What the operation was to do.
    pub deed: Deed,
    /// Its place.
    pub place: Option<Place>,
    /// Its file.
    pub file: FileId,
    /// Why the home did not do it.
    pub outcome: Outcome,
    /// When it was done here.
    pub when: Time,
    /// Where this client's version is.
    pub mine: Option<Place>,
    /// The file that was made, or moved, to be this client's version; 0: there is none.
    pub copy: FileId,
    /// The file of the cache with the contents that both versions were made from; 0: there is none.
    pub base: u64,
    /// The file of the cache with this client's version, if that has no place in the tree; 0: there
    /// is none.
    pub kept: u64,
    /// This client's version has only what was written or read here. The rest was not fetched, and
    /// is zeroes.
    pub is_part: bool,
}
wire_struct!(Conflict { deed, place, file, outcome, when, mine, copy, base, kept, is_part });

/// A conflict in the form in which a resolver keeps it, so that the resolution can be undone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The conflict, without its files of the cache, which are gone.
    pub conflict: Conflict,
    /// The operation that failed, where the conflict does not say all of it.
    pub meant: Option<Operation>,
}

/// Version of an encoded case.
const CASE_VERSION: u16 = 3;

impl Wire for Case {
    fn encode(&self, out: &mut Vec<u8>) {
        CASE_VERSION.encode(out);
        self.conflict.encode(out);
        self.meant.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u16::decode(r)? {
            CASE_VERSION => Ok(Case { conflict: Wire::decode(r)?, meant: Wire::decode(r)? }),
            found => Err(DecodeError::Version { what: "a conflict", found, known: CASE_VERSION }),
        }
    }
}

impl Conflict {
    /// Replaces the ids in it.
    pub(crate) fn rename_files(&mut self, name: impl Fn(FileId) -> FileId) {
        let dirs = self.place.iter_mut().chain(&mut self.mine).map(|(dir, _)| dir);
        dirs.chain([&mut self.file, &mut self.copy]).for_each(|id| *id = name(*id));
    }

    /// Why the operation was not done, in words for users.
    pub fn why(&self) -> String {
        match self.is_part {
            true => self.reason() + "; what was not fetched before is missing from this mount's version",
            false => self.reason(),
        }
    }

    fn reason(&self) -> String {
        match self.outcome {
            _ if self.deed == Deed::Lost => "a file of the cache is not there".to_string(),
            Outcome::Done => "done".to_string(),
            Outcome::Became(_) | Outcome::Empty(_) => "it was there at home already".to_string(),
            Outcome::Conflict(ConflictReason::Changed) => "changed at home meanwhile".to_string(),
            Outcome::Conflict(ConflictReason::Gone) => "gone at home meanwhile".to_string(),
            Outcome::Conflict(ConflictReason::Taken) => "something else is there at home".to_string(),
            Outcome::Conflict(ConflictReason::NotEmpty) => "not empty at home".to_string(),
            Outcome::Refused(error) => format!("the home refuses: {error}"),
        }
    }
}

/// The name under which this client's version of NAME is kept: `STEM (conflict)EXTENSION`, and for
/// `number` from 1 on `STEM (conflict N)EXTENSION` with N from 2 on.
pub fn name_of_mine(name: &[u8], number: u32) -> Vec<u8> {
    let mark = match number {
        0 => b" (conflict)".to_vec(),
        n => format!(" (conflict {})", n + 1).into_bytes(),
    };
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0 && name.len() - at <= 16);
    let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
    let mut len = stem.len().min(NAME_LEN_MAX - mark.len() - extension.len());
    // A character is not cut in two.
    while len < stem.len() && len > 0 && stem[len] & 0xc0 == 0x80 {
        len -= 1;
    }
    [&stem[..len], &mark, extension].concat()
}

impl Replica {
    /// Handles an operation that the home did not do.
    pub(crate) fn fail(&mut self, operation: Operation, outcome: Outcome) {
        let when = self.done_at(self.log().first().unwrap_or(u64::MAX)).unwrap_or_default();
        let file = operation.file();
        let (deed, place) = match &operation {
            Operation::Make { at, .. } => (Deed::Make, Some(at.clone())),
            Operation::Link { at, .. } => (Deed::Link, Some(at.clone())),
            Operation::Remove { at, .. } => (Deed::Remove, Some(at.clone())),
            Operation::Rename { to, .. } | Operation::Exchange { to, .. } => (Deed::Rename, Some(to.clone())),
            Operation::Set { .. } | Operation::SetXattr { .. } => (Deed::Set, self.place_of(file)),
            Operation::Store { .. } => (Deed::Store, self.old_place_of(file)),
            Operation::Copy { .. } => return self.misses_rest(file),
        };
        if let Operation::Store { change, .. } = &operation
            && let Ok(node) = self.node_mut(file)
        {
            let (size, mtime) = (node.facts.size, node.facts.mtime);
            let dropped = match node.is_whole() {
                true => Change::of_all(size, mtime),
                false => Change { size, mtime, ..change.clone() },
            };
            if node.changes.owe(dropped) {
                // The file is being changed again. The next store includes this change, and will
                // meet the same conflict.
                return;
            }
        }
        // The place where this client's version was to be kept was taken too, which this client did
        // not know.
        let before = match &operation {
            Operation::Make { at, .. } | Operation::Rename { to: at, .. } => self.conflict_kept_at(at),
            Operation::Store { .. } => self.conflict_of_copy(file),
            _ => None,
        };
        let mine = match &operation {
            Operation::Make { at, .. } if matches!(outcome, Outcome::Refused(_)) => {
                let since = self.log().depending_on(file, &[at]);
                self.withdraw(since, outcome, when);
                None
            }
            Operation::Make { at, made, .. } => self.make_beside(at, file, made, outcome, when),
            // A copy that was made for a conflict gets no copy itself.
            Operation::Store { .. } if matches!(outcome, Outcome::Refused(_)) || before.is_some() => None,
            Operation::Store { change, .. } => self.store_beside(file, change, place.as_ref(), when),
            Operation::Rename { from, to, .. }
                if matches!(outcome, Outcome::Conflict(ConflictReason::Changed | ConflictReason::Taken)) =>
            {
                self.rename_beside(file, from, to, when)
            }
            _ => None,
        };
        if matches!(operation, Operation::Remove { last: true, .. } | Operation::Rename { replaced: Some(_), .. }) {
            self.undo_link(&operation);
        }
        // What this client believed of these files and directories is not what the home has.
        for id in operation.files() {
            if let Ok(node) = self.node_mut(id) {
                (node.is_stale, node.names_of) = (true, None);
            }
        }
        let base = match (&operation, self.node_mut(file)) {
            (Operation::Store { .. }, Ok(node)) => std::mem::take(&mut node.base),
            (Operation::Rename { replaced: Some((gone, _)), .. }, Ok(_)) if mine.is_some() => self.take_base(*gone),
            _ => 0,
        };
        let is_part = self.node(file).is_ok_and(|node| !node.is_whole());
        let kept = match (deed, &mine) {
            (Deed::Make, None) => self.put_aside(file),
            (Deed::Store, None) => self.keep_stored(file),
            _ => 0,
        };
        let is_part = is_part && kept > 0;
        if let Some(conflict) = before.and_then(|before| self.conflict_mut(before)) {
            conflict.is_part |= is_part;
            if conflict.kept == 0 || kept == 0 {
                conflict.mine = mine;
                conflict.kept = conflict.kept.max(kept);
                return;
            }
        }
        let copy = match mine.as_ref().map(|at| self.child(at)) {
            None => FileId::new(0),
            Some(Child::Is(copy)) if deed == Deed::Store => copy,
            Some(_) => file,
        };
        let conflict = Conflict { deed, place, file, outcome, when, mine, copy, base, kept, is_part };
        match deed {
            Deed::Set | Deed::Rename => self.note_meant(conflict, operation),
            _ => self.note(conflict),
        }
    }

    /// The file whose bytes are in the file of the cache `number`: `file`, which had it last, or
    /// the copy of it that was made for a conflict.
    pub(crate) fn holder_of(&self, number: u64, file: FileId) -> Option<FileId> {
        let copies = self.conflicts().filter(|(_, conflict)| conflict.file == file).map(|(_, conflict)| conflict.copy);
        std::iter::once(file).chain(copies).find(|id| self.node(*id).is_ok_and(|node| node.data == number))
    }

    /// The conflict whose copy is this file.
    fn conflict_of_copy(&self, file: FileId) -> Option<u64> {
        self.conflicts().find(|(_, conflict)| conflict.copy == file).map(|(number, _)| number)
    }

    /// The conflict whose copy was to be at this place.
    fn conflict_kept_at(&self, at: &Place) -> Option<u64> {
        self.conflicts().find(|(_, conflict)| conflict.mine.as_ref() == Some(at)).map(|(number, _)| number)
    }

    /// A free place in a directory for this client's version of what is at `at`. If `at` is itself
    /// the place of such a version, the name is made from the original's, with the next number.
    fn beside(&self, dir: FileId, at: &Place) -> Place {
        let before = self.conflict_kept_at(at).and_then(|number| self.conflict(number));
        let name = before.and_then(|conflict| conflict.place.as_ref()).map_or(&at.1, |(_, name)| name);
        let tried = (0..TRIED_COUNT_MAX).find(|number| name_of_mine(name, *number) == at.1);
        let mut number = tried.map_or(0, |tried| tried + 1);
        loop {
            let beside = (dir, name_of_mine(name, number));
            if !matches!(self.child(&beside), Child::Is(_)) {
                return beside;
            }
            number += 1;
        }
    }

    /// Withdraws operations that depend on something that the home refuses. Files that were made
    /// leave the tree, and the cache keeps them.
    fn withdraw(&mut self, since: Vec<u64>, outcome: Outcome, when: Time) {
        for seq in since {
            let Some(operation) = self.unlog(seq) else { continue };
            self.undo_link(&operation);
            for id in operation.files() {
                if let Ok(node) = self.node_mut(id) {
                    (node.is_stale, node.names_of) = (true, None);
                }
            }
            if let Operation::Make { at, file, .. } = operation {
                let is_part = self.node(file).is_ok_and(|node| !node.is_whole());
                let (place, copy, kept) = (Some(at), FileId::new(0), self.put_aside(file));
                let (mine, base) = (None, 0);
                self.note(Conflict { deed: Deed::Make, place, file, outcome, when, mine, copy, base, kept, is_part });
            }
        }
    }

    /// Takes a file that was made here out of the tree. Returns the number of the file of the cache
    /// that has its bytes.
    fn put_aside(&mut self, file: FileId) -> u64 {
        let Ok(node) = self.node_mut(file) else { return 0 };
        node.facts.nlink = 0;
        self.take_bytes(file)
    }

    /// Withdraws all waiting stores of a file. Returns the number of the file of the cache that has
    /// the result.
    fn keep_stored(&mut self, file: FileId) -> u64 {
        let stores = self.log().naming(file).filter(|(_, operation)| matches!(operation, Operation::Store { .. }));
        let stores: Vec<u64> = stores.map(|(seq, _)| seq).collect();
        stores.into_iter().for_each(|seq| drop(self.unlog(seq)));
        self.take_bytes(file)
    }

    /// Takes a file's bytes away from it. Returns the number of the file of the cache that has
    /// them.
    fn take_bytes(&mut self, file: FileId) -> u64 {
        let Ok(node) = self.node_mut(file) else { return 0 };
        (node.have, node.kept, node.changes) = (Ranges::default(), Ranges::default(), Changes::Logged);
        node.is_apart = false;
        let data = std::mem::take(&mut node.data);
        node.unlogged.take().map_or(data, |unlogged| unlogged.data)
    }

    /// Gives a file its last name back: the name was not removed at home.
    fn undo_link(&mut self, operation: &Operation) {
        let gone = match operation {
            Operation::Remove { file, .. } => *file,
            Operation::Rename { replaced: Some((file, _)), .. } => *file,
            _ => return,
        };
        if let Ok(node) = self.node_mut(gone) {
            node.facts.nlink = node.facts.nlink.max(1);
        }
    }

    /// Makes a file beside a place that others have taken, or in the root if its directory is gone,
    /// and repeats what was done to it since.
    fn make_beside(&mut self, at: &Place, file: FileId, made: &Made, outcome: Outcome, when: Time) -> Option<Place> {
        let dir = match outcome {
            Outcome::Conflict(ConflictReason::Gone) => self.membership()?.root,
            _ => at.0,
        };
        let since: Vec<u64> = self.log().depending_on(file, &[at]);
        let since: Vec<(u64, Operation)> = since.into_iter().filter_map(|seq| Some((seq, self.unlog(seq)?))).collect();
        let beside = self.beside(dir, at);
        if let Ok(node) = self.node_mut(file)
            && node.parent == at.0
        {
            node.parent = dir;
        }
        self.log_again(Operation::Make { at: beside.clone(), file, made: made.clone() }, when);
        self.go_on_beside(since, at, &beside, when);
        Some(beside)
    }

    /// Moves a file beside a place where the home has something else, as after a program saved it
    /// by way of another name. Repeats what was done since.
    fn rename_beside(&mut self, file: FileId, from: &Place, to: &Place, when: Time) -> Option<Place> {
        if self.node(file).ok()?.facts.kind != Kind::File {
            return None;
        }
        let since: Vec<u64> = self.log().depending_on(file, &[to, from]);
        let since: Vec<(u64, Operation)> = since.into_iter().filter_map(|seq| Some((seq, self.unlog(seq)?))).collect();
        let beside = self.beside(to.0, to);
        let (from, to_beside) = (from.clone(), beside.clone());
        self.log_again(Operation::Rename { file, from, to: to_beside, replaced: None }, when);
        self.go_on_beside(since, to, &beside, when);
        Some(beside)
    }

    /// The base of a file that this client has replaced. Returns the number of the file of the
    /// cache that has it; 0: there is none.
    fn take_base(&mut self, gone: FileId) -> u64 {
        let is_stored = self.log().naming(gone).any(|(_, operation)| matches!(operation, Operation::Store { .. }));
        let Ok(node) = self.node_mut(gone) else { return 0 };
        let base = std::mem::take(&mut node.base);
        let is_as_it_was = !is_stored && !node.is_dirty() && node.is_whole() && node.facts.size <= BASE_LEN_MAX;
        match base {
            0 if is_as_it_was => self.take_bytes(gone),
            base => base,
        }
    }

    /// Logs later operations again, with the new place where they named the old one.
    fn go_on_beside(&mut self, since: Vec<(u64, Operation)>, at: &Place, beside: &Place, when: Time) {
        // Until an operation frees the old place, operations there mean the new place.
        let mut occupied = true;
        for (before, mut operation) in since {
            if occupied {
                occupied = !operation.vacates(at);
                operation
                    .places_mut()
                    .into_iter()
                    .filter(|place| *place == at)
                    .for_each(|place| *place = beside.clone());
            }
            let stored = if let Operation::Store { change, .. } = &operation { Some(change.clone()) } else { None };
            let seq = self.log_again(operation, when);
            if let Some(change) = stored {
                self.logged_again.push((before, seq, change));
            }
        }
    }

    /// Notes that the home has no file that a copy could begin with: what was not fetched is
    /// missing.
    fn misses_rest(&mut self, file: FileId) {
        let Some(place) = self.place_of(file) else { return };
        let number = self.conflict_kept_at(&place);
        if let Some(conflict) = number.and_then(|number| self.conflict_mut(number)) {
            conflict.is_part = true;
        }
    }

    /// Makes this client's version of a file a file of its own, beside the home's. If it was only
    /// partly cached, the copy begins as the home's file is then, with the changes made here: the
    /// earlier version is gone.
    fn store_beside(&mut self, file: FileId, failed: &Change, place: Option<&Place>, when: Time) -> Option<Place> {
        let written = self.written(file).map_or_else(|| failed.clone(), |later| later.along(failed));
        // The copy includes what waiting operations would have made of the file.
        let since: Vec<u64> = self
            .log()
            .naming(file)
            .filter(|(_, operation)| {
                matches!(operation, Operation::Store { .. } | Operation::Set { .. } | Operation::SetXattr { .. })
            })
            .map(|(seq, _)| seq)
            .collect();
        since.into_iter().for_each(|seq| drop(self.unlog(seq)));
        let node = self.node(file).ok()?.clone();
        let lost = (self.membership()?.root, b"lost".to_vec());
        let at = place.unwrap_or(&lost);
        let beside = self.beside(at.0, at);
        let mine = self.take_id()?;
        let facts = &node.facts;
        let (mode, uid, gid) = (facts.mode, facts.uid, facts.gid);
        let made = Made { kind: Kind::File, mode, uid, gid, rdev: 0, target: Vec::new(), when };
        let mut copy = Node { seen: 0, is_stale: false, changes: Changes::Logged, base: 0, ..node.clone() };
        (copy.facts.id, copy.facts.version, copy.facts.contents, copy.facts.nlink) = (mine, 0, 0, 1);
        let (size, mtime) = (facts.size, facts.mtime);
        let change = match node.is_whole() {
            true => Change::of_all(size, mtime),
            false => {
                copy.have = written.ranges.clone();
                copy.have.add(written.cut..size);
                copy.kept = copy.have.clone();
                Change { size, mtime, ..written }
            }
        };
        let is_part = !node.is_whole();
        self.put(mine, copy);
        self.log_again(Operation::Make { at: beside.clone(), file: mine, made }, when);
        if is_part {
            self.log_again(Operation::Copy { file: mine, from: file }, when);
        }
        self.log_again(Operation::Store { file: mine, change }, when);
        // Other attributes mean something to the home, or come with the making of a file.
        let is_users = |name: &[u8]| name.starts_with(b"user.") || name == acl::XATTR_ACCESS;
        for (name, value) in node.facts.xattrs.into_iter().filter(|(name, _)| is_users(name)) {
            self.log_again(Operation::SetXattr { file: mine, name, value: Some(value) }, when);
        }
        // The bytes belong to the copy now.
        self.take_bytes(file);
        Some(beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_that_they_are_of_a_conflict_and_keep_their_extension() {
        assert_eq!(name_of_mine(b"thesis.tex", 0), b"thesis (conflict).tex");
        assert_eq!(name_of_mine(b"thesis.tex", 2), b"thesis (conflict 3).tex");
        assert_eq!(name_of_mine(b".bashrc", 0), b".bashrc (conflict)");
        let long = name_of_mine("ä".repeat(127).as_bytes(), 11);
        assert!(long.len() <= NAME_LEN_MAX && String::from_utf8(long).is_ok());
    }
}
