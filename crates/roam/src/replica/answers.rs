//! The home's answers to operations. An answered operation leaves the log, and its effect on names
//! moves into the names that the home has, below the operations that still wait.
//!
//! Something made here may exist at home already. A directory then becomes the home's. A file gives
//! way to the home's if that has the same contents.

use super::{Node, Replica, makes};
use roam_proto::message::{Applied, ConflictReason, Facts, Outcome};
use roam_proto::operation::{Operation, Place};
use types::{FileId, Kind};

impl Replica {
    /// Applies the home's answer to an operation.
    pub(super) fn answered(&mut self, applied: Applied) {
        self.answered = self.answered.max(applied.seq);
        applied.facts.iter().for_each(|facts| self.hears_of(facts.id));
        if let Outcome::Became(real) | Outcome::Empty(real) = applied.outcome {
            self.hears_of(real);
        }
        let Some(operation) = self.log.remove(applied.seq) else { return };
        let file = operation.file();
        match applied.outcome {
            Outcome::Done => self.reached_home(applied.seq, &operation),
            Outcome::Became(real) if self.node(file).is_ok_and(|node| node.facts.kind == Kind::File) => {
                self.give_way(operation, real);
            }
            Outcome::Became(real) => self.became(applied.seq, &operation, real, &applied.facts),
            Outcome::Empty(_) => self.fail(operation, Outcome::Conflict(ConflictReason::Taken)),
            failed => self.fail(operation, failed),
        }
        for facts in applied.facts {
            self.heard(facts);
        }
        if !self.is_own(file)
            && let Some(node) = self.nodes.get_mut(&file)
        {
            // The home has what is here.
            self.unused.push(std::mem::take(&mut node.base));
        }
        self.forget_done();
    }

    /// True if a file that was made here is empty and may be replaced by an empty file of the home:
    /// no operation but its making, and ones that set only times, names it.
    pub(crate) fn is_just_made(&self, file: FileId) -> bool {
        let is_own = |operation: &Operation| match operation {
            Operation::Set { attributes, .. } => !attributes.are_rights(),
            operation => makes(operation, file),
        };
        self.log.naming(file).all(|(_, operation)| is_own(operation))
            && self.node(file).is_ok_and(|node| !node.is_dirty() && node.facts.size == 0)
    }

    /// True if a file that was made here may be replaced by the home's file with the same contents:
    /// it was stored exactly once, was not changed since, and apart from that was only given
    /// attributes.
    pub(crate) fn may_give_way(&self, file: FileId) -> bool {
        let (mut stores, mut others) = (0, 0);
        for (_, operation) in self.log.naming(file) {
            match operation {
                Operation::Store { .. } => stores += 1,
                Operation::Set { .. } | Operation::SetXattr { .. } => {}
                operation => others += usize::from(!makes(operation, file)),
            }
        }
        (stores, others) == (1, 0) && self.node(file).is_ok_and(|node| !node.is_dirty())
    }

    /// Replaces a file that was made here by the home's file with the same contents.
    fn give_way(&mut self, operation: Operation, real: FileId) {
        let file = operation.file();
        let Operation::Make { at, .. } = &operation else { return };
        if !self.may_give_way(file) && !self.is_just_made(file) {
            return self.fail(operation, Outcome::Conflict(ConflictReason::Taken));
        }
        let own: Vec<u64> = self.log.naming(file).map(|(seq, _)| seq).collect();
        own.into_iter().for_each(|seq| drop(self.log.remove(seq)));
        let Some(mine) = self.nodes.remove(&file) else { return };
        self.unused.extend([mine.data, mine.base]);
        // Until the home has said more, what is known of the own file stands for the home's.
        let facts = Facts { id: real, version: 1, contents: 1, ..mine.facts.clone() };
        self.nodes.get_or_insert_with(real, || Node { facts, is_stale: true, base: 0, ..mine });
        self.conflicts.values_mut().filter(|conflict| conflict.file == file).for_each(|conflict| conflict.file = real);
        self.is_found(at, real);
    }

    /// Something made here exists at home under another id: from now on, its id means that one.
    /// Attributes that it was given here do not go to the home's file.
    fn became(&mut self, seq: u64, operation: &Operation, real: FileId, known: &[Facts]) {
        let (file, real) = (operation.file(), self.real(real));
        let Operation::Make { at, .. } = operation else { return };
        if real == file {
            return self.reached_home(seq, operation);
        }
        let is_own = |operation: &Operation| {
            matches!(operation, Operation::Set { .. } | Operation::SetXattr { .. }) && operation.file() == file
        };
        let own: Vec<u64> = self.log.naming(file).filter(|(_, o)| is_own(o)).map(|(seq, _)| seq).collect();
        own.into_iter().for_each(|seq| drop(self.log.remove(seq)));
        self.log.rename_file(file, real);
        if let Some(mine) = self.nodes.remove(&file) {
            let facts = known.iter().find(|facts| facts.id == real);
            let node = self.nodes.get_or_insert_with(real, || {
                // It is not this client's alone: others may have changed it since the home told of
                // it.
                let unknown = Facts { id: real, version: 1, contents: 1, ..mine.facts.clone() };
                let facts = facts.cloned().unwrap_or(unknown);
                Node { is_stale: true, ..Node::new(facts) }
            });
            // Operations that were done here since count.
            node.facts.nlink = match mine.facts.nlink {
                0 => 0,
                links => node.facts.nlink.saturating_add(links.saturating_sub(2)),
            };
            node.parent = mine.parent;
        }
        self.nodes.values_mut().filter(|node| node.parent == file).for_each(|node| node.parent = real);
        let name = |id: FileId| if id == file { real } else { id };
        self.conflicts.values_mut().for_each(|conflict| conflict.rename_files(name));
        self.aliases.values_mut().filter(|id| **id == file).for_each(|id| *id = real);
        self.aliases.insert(file, real);
        self.is_found(at, real);
    }

    /// Files that were made here and are not home yet, each with the number of the operation that
    /// makes it.
    pub(crate) fn made_here(&self) -> impl Iterator<Item = (u64, FileId)> {
        let makes = self.log.iter().filter(|(_, operation)| matches!(operation, Operation::Make { .. }));
        makes.map(|(seq, operation)| (seq, operation.file()))
    }

    /// Gives new ids to files that were made here and are not home yet: the home may have given
    /// their old ids to other files.
    pub(super) fn renumber_made(&mut self) {
        let made: Vec<FileId> = self.made_here().map(|(_, file)| file).collect();
        for before in made {
            let Some(file) = self.take_new_id() else { return };
            let name = |id: FileId| if id == before { file } else { id };
            self.log.renumber_file(before, file);
            if let Some(mut node) = self.nodes.remove(&before) {
                node.facts.id = file;
                self.nodes.insert(file, node);
            }
            self.nodes.values_mut().for_each(|node| node.parent = name(node.parent));
            self.conflicts.values_mut().for_each(|conflict| conflict.rename_files(name));
            self.meant.values_mut().for_each(|operation| operation.rename_files(name));
            // Programs that have it open still use the old id.
            self.aliases.values_mut().for_each(|id| *id = name(*id));
            self.aliases.insert(before, file);
        }
    }

    /// An id that nothing here uses.
    fn take_new_id(&mut self) -> Option<FileId> {
        loop {
            let id = self.take_id()?;
            if !self.nodes.contains_key(&id) && !self.log.names(id) && !self.aliases.contains_key(&id) {
                return Some(id);
            }
        }
    }

    /// Notes that others have put a file at a place. They may have moved it since.
    fn is_found(&mut self, at: &Place, file: FileId) {
        if let Some(dir) = self.nodes.get_mut(&at.0)
            && let Some(names) = dir.names.as_mut()
            && names.insert(at.1.clone(), file) != Some(file)
        {
            dir.names_of = None;
        }
    }

    /// Moves what an operation did to names into the names that the home has.
    fn reached_home(&mut self, seq: u64, operation: &Operation) {
        let mut put = |(dir, name): &Place, file: Option<FileId>, was: FileId| {
            let Some(node) = self.nodes.get_mut(dir) else { return };
            let Some(names) = node.names.as_mut() else { return };
            let before = match file {
                Some(file) => {
                    names.insert(name.clone(), file);
                    None
                }
                None => names.remove(name),
            };
            if before.is_some_and(|before| before != was) || seq <= node.listed_at {
                // Others may have put another file there since, or removed what was put there: only
                // the home knows.
                node.names_of = None;
            }
        };
        match operation {
            Operation::Make { at, file, .. } | Operation::Link { file, at } => put(at, Some(*file), *file),
            Operation::Remove { at, file, .. } => put(at, None, *file),
            Operation::Rename { file, from, to, .. } => {
                put(from, None, *file);
                put(to, Some(*file), *file);
            }
            Operation::Exchange { file, from, other, to } => {
                put(from, Some(*other), *file);
                put(to, Some(*file), *other);
            }
            Operation::Set { .. } | Operation::SetXattr { .. } | Operation::Store { .. } | Operation::Copy { .. } => {}
        }
    }

    /// Applies a file's attributes that came with an answer: the home did something to the file for
    /// this client, and no other client or program has changed its bytes.
    fn heard(&mut self, facts: Facts) {
        let own = self.is_own(facts.id) || self.log.changed_in(facts.id).next().is_some();
        let Some(node) = self.nodes.get_mut(&facts.id) else { return };
        if facts.version < node.facts.version {
            // The home has told something newer since, and the client could not take all of that in
            // while this operation waited.
            node.is_stale = true;
            return;
        }
        if node.names_of == Some(node.facts.contents) && !node.is_stale {
            node.names_of = Some(facts.contents);
        }
        if own {
            node.renumber(&facts);
        } else {
            // Users keep the times at which it was done here.
            let Facts { atime, mtime, ctime, crtime, .. } = node.facts;
            node.show(Facts { atime, mtime, ctime, crtime, ..facts });
        }
    }
}
