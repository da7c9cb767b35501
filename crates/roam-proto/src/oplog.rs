//! The operation log and its optimizer (Huston and Honeyman, section 5.2;
//! docs/roaming.md#the-operation-log). Pure.
//!
//! The client sends operations home in their order, from the front. While they wait, the optimizer
//! takes out those that have no effect in the end: files that were made and removed, contents and
//! attributes that were overwritten, names that were only passed through. A [pinned](OpLog::pin)
//! operation may have reached the home. It stays as it is, and so does everything that depends on
//! it.
//!
//! Invariant: sending the optimized log leaves the home in the same state as sending every
//! operation would. If every operation of the full log can be done, so can every operation of the
//! optimized one. The log knows neither who may do what nor what a directory passes on to new files
//! in it. So it moves nothing past a change of rights, unless the outcome is the same with all
//! rights.

use crate::codec::Wire;
use crate::operation::{Operation, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use types::FileId;
use types::codec::{DecodeError, Reader};
use vfs::acl;

/// The greatest number of an operation in a decoded log. It leaves room for more than a client can
/// ever log.
const SEQ_MAX: u64 = 1 << 62;

/// True for an extended attribute that says who may do what. Setting and then removing such an
/// attribute still changes the mode.
fn is_acl(name: &[u8]) -> bool {
    name == acl::XATTR_ACCESS || name == acl::XATTR_DEFAULT
}

/// Counts of what the optimizer has saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// Operations that were logged.
    pub logged: u64,
    /// Of these, operations that need not be sent.
    pub operations: u64,
    /// What sending these would have cost, in bytes.
    pub bytes: u64,
}

/// The operations that wait, in order, with indices by file and by place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpLog {
    operations: BTreeMap<u64, Operation>,
    /// The operations that name a file in any part.
    by_file: HashMap<FileId, BTreeSet<u64>>,
    /// The operations that change a place.
    by_place: BTreeMap<Place, BTreeSet<u64>>,
    /// Operations up to this number may have reached the home.
    pinned: u64,
    last: u64,
    /// The cost of all operations that wait, in bytes.
    cost: u64,
    saved: Saved,
}

impl OpLog {
    /// Adds an operation and takes out those that it makes useless. Returns its number. The
    /// operation itself may be gone, or merged into another.
    pub fn append(&mut self, operation: Operation) -> u64 {
        self.last += 1;
        self.saved.logged = self.saved.logged.saturating_add(1);
        let before = self.cost.saturating_add(operation.cost());
        let count = self.operations.len() + 1;
        let seq = self.last;
        match operation {
            Operation::Store { file, change } => match self.last_about(file) {
                Some((at, Operation::Store { change: earlier, .. })) => {
                    let change = earlier.clone().then(change);
                    self.replace(at, Operation::Store { file, change });
                }
                _ => self.insert(seq, Operation::Store { file, change }),
            },
            Operation::Set { file, attributes } => match self.last_about(file) {
                Some((at, Operation::Set { attributes: earlier, .. }))
                    if !attributes.are_rights() || self.is_last(at) =>
                {
                    let attributes = earlier.then(attributes);
                    self.replace(at, Operation::Set { file, attributes });
                }
                _ => self.insert(seq, Operation::Set { file, attributes }),
            },
            Operation::SetXattr { file, name, value } => match self.last_about(file) {
                Some((at, Operation::SetXattr { name: earlier, .. })) if *earlier == name && !is_acl(&name) => {
                    self.replace(at, Operation::SetXattr { file, name, value });
                }
                _ => self.insert(seq, Operation::SetXattr { file, name, value }),
            },
            Operation::Remove { file, last: true, .. } => {
                self.insert(seq, operation);
                self.cancel(file, seq);
            }
            Operation::Rename { file, ref to, replaced, .. } => {
                let to = to.clone();
                self.insert(seq, operation);
                if let Some((gone, true)) = replaced {
                    self.cancel_replaced(gone, seq, &to);
                }
                self.fold(file, seq);
            }
            other => self.insert(seq, other),
        }
        self.saved.operations = self.saved.operations.saturating_add((count - self.operations.len()) as u64);
        self.saved.bytes = self.saved.bytes.saturating_add(before.saturating_sub(self.cost));
        seq
    }

    /// Returns the operations that wait, in order, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Operation)> {
        self.operations.iter().map(|(seq, operation)| (*seq, operation))
    }

    /// Returns the operations after `seq`, in order.
    pub fn iter_after(&self, seq: u64) -> impl Iterator<Item = (u64, &Operation)> {
        self.operations.range(seq.saturating_add(1)..).map(|(seq, operation)| (*seq, operation))
    }

    /// Returns the number of the first operation after `seq`.
    pub fn after(&self, seq: u64) -> Option<u64> {
        self.iter_after(seq).map(|(seq, _)| seq).next()
    }

    /// Returns an operation that waits.
    pub fn get(&self, seq: u64) -> Option<&Operation> {
        self.operations.get(&seq)
    }

    /// True if this operation waits.
    pub fn has(&self, seq: u64) -> bool {
        self.operations.contains_key(&seq)
    }

    /// Returns how many operations wait.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// True if no operation waits.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns what the optimizer has saved so far.
    pub fn saved(&self) -> Saved {
        self.saved
    }

    /// Keeps operations up to `through` as they are, since they are on their way.
    pub fn pin(&mut self, through: u64) {
        self.pinned = self.pinned.max(through);
    }

    /// Removes an operation that the home has answered.
    pub fn remove(&mut self, seq: u64) -> Option<Operation> {
        let operation = self.operations.remove(&seq)?;
        self.cost = self.cost.saturating_sub(operation.cost());
        for file in operation.files() {
            if let Some(seqs) = self.by_file.get_mut(&file) {
                seqs.remove(&seq);
                if seqs.is_empty() {
                    self.by_file.remove(&file);
                }
            }
        }
        for place in operation.places() {
            if let Some(seqs) = self.by_place.get_mut(place) {
                seqs.remove(&seq);
                if seqs.is_empty() {
                    self.by_place.remove(place);
                }
            }
        }
        Some(operation)
    }

    /// True if an operation that waits names the file.
    pub fn names(&self, file: FileId) -> bool {
        self.by_file.contains_key(&file)
    }

    /// Returns what the operations that wait have put at a place: a file, or nothing. `None` if
    /// they have not changed the place.
    pub fn at(&self, place: &Place) -> Option<Option<FileId>> {
        let last = self.by_place.get(place)?.last()?;
        Some(match self.operations.get(last)? {
            Operation::Make { file, .. } | Operation::Link { file, .. } => Some(*file),
            Operation::Rename { file, to, .. } => (to == place).then_some(*file),
            Operation::Exchange { file, from, other, .. } => Some(if from == place { *other } else { *file }),
            _ => None,
        })
    }

    /// Returns the names in a directory that the operations that wait have changed, with what is
    /// there now.
    pub fn changed_in(&self, dir: FileId) -> impl Iterator<Item = (&[u8], Option<FileId>)> {
        let places = self.by_place.range((dir, Vec::new())..).map(|(place, _)| place);
        places.take_while(move |(parent, _)| *parent == dir).filter_map(|place| Some((&place.1[..], self.at(place)?)))
    }

    /// True if an operation that waits is about the file itself, not only about names in it.
    pub fn is_about(&self, file: FileId) -> bool {
        let about = |seq: &u64| match self.operations.get(seq) {
            Some(Operation::Exchange { other, .. }) if *other == file => true,
            Some(Operation::Rename { replaced: Some((gone, _)), .. }) if *gone == file => true,
            Some(operation) => operation.file() == file,
            None => false,
        };
        self.by_file.get(&file).is_some_and(|seqs| seqs.iter().any(about))
    }

    /// Returns the operations that wait and name the file, in order.
    pub fn naming(&self, file: FileId) -> impl Iterator<Item = (u64, &Operation)> {
        let seqs = self.by_file.get(&file).into_iter().flatten();
        seqs.filter_map(|seq| Some((*seq, self.operations.get(seq)?)))
    }

    /// Returns the numbers of the operations that need `file` or one of the places in `at`,
    /// directly or through other such operations, in order. `at` has the place that the file was to
    /// come to, and the place that it was to leave.
    pub fn depending_on(&self, file: FileId, at: &[&Place]) -> Vec<u64> {
        let (mut files, mut places) =
            (BTreeSet::from([file]), at.iter().copied().cloned().collect::<BTreeSet<Place>>());
        let mut found = Vec::new();
        for (seq, operation) in &self.operations {
            let names = operation.files().iter().any(|file| files.contains(file));
            if !names && !operation.places().into_iter().any(|place| places.contains(place)) {
                continue;
            }
            found.push(*seq);
            places.extend(operation.places().into_iter().cloned());
            // A store to a file must come after the operation that gives the file its first bytes.
            if matches!(operation, Operation::Make { .. } | Operation::Copy { .. }) {
                files.insert(operation.file());
            }
        }
        found
    }

    /// Replaces a file's id where operations that wait name it, except where they make it.
    pub fn rename_file(&mut self, file: FileId, real: FileId) {
        for seq in self.by_file.get(&file).cloned().unwrap_or_default() {
            if let Some(mut operation) = self.remove(seq) {
                operation.rename_files(|named| if named == file { real } else { named });
                self.insert(seq, operation);
            }
        }
    }

    /// Replaces a file's id everywhere, also where it is made.
    pub fn renumber_file(&mut self, before: FileId, file: FileId) {
        for seq in self.by_file.get(&before).cloned().unwrap_or_default() {
            if let Some(mut operation) = self.remove(seq) {
                operation.rename_files(|named| if named == before { file } else { named });
                if let Operation::Make { file: made, .. } = &mut operation
                    && *made == before
                {
                    *made = file;
                }
                self.insert(seq, operation);
            }
        }
    }

    /// Returns the number of the first operation that waits.
    pub fn first(&self) -> Option<u64> {
        self.operations.keys().next().copied()
    }

    /// Returns the number of the last operation that was ever logged.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the last operation that may have reached the home.
    pub fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Returns an estimate of what sending all operations that wait costs, in bytes.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    fn insert(&mut self, seq: u64, operation: Operation) {
        for file in operation.files() {
            self.by_file.entry(file).or_default().insert(seq);
        }
        for place in operation.places() {
            self.by_place.entry(place.clone()).or_default().insert(seq);
        }
        self.cost = self.cost.saturating_add(operation.cost());
        self.operations.insert(seq, operation);
    }

    fn replace(&mut self, seq: u64, operation: Operation) {
        self.remove(seq);
        self.insert(seq, operation);
    }

    /// True if no later operation waits. Then nothing that waits depends on the rights that the
    /// caller is about to change.
    fn is_last(&self, seq: u64) -> bool {
        self.operations.last_key_value().is_some_and(|(last, _)| *last == seq)
    }

    /// Returns the operations that wait and name the file; `None` if one of them is pinned.
    fn free_about(&self, file: FileId) -> Option<Vec<u64>> {
        let all = self.by_file.get(&file)?;
        let is_free = all.first().is_some_and(|seq| *seq > self.pinned);
        is_free.then(|| all.iter().copied().collect())
    }

    /// Returns the newest operation about the file itself, if it may still be changed.
    fn last_about(&self, file: FileId) -> Option<(u64, &Operation)> {
        let seqs = self.by_file.get(&file)?.iter().rev();
        let is_about = |o: &Operation| match o {
            // Later operations on the file stay behind the operation that copies its bytes to
            // another file.
            Operation::Exchange { other, .. } | Operation::Copy { from: other, .. } if *other == file => true,
            _ => o.file() == file,
        };
        let (seq, operation) =
            seqs.filter_map(|seq| Some((*seq, self.operations.get(seq)?))).find(|(_, o)| is_about(o))?;
        (seq > self.pinned).then_some((seq, operation))
    }

    /// Returns all operations about a file from its making on, if no other operation depends on
    /// them. `end` is the operation that removed the file.
    fn life_of(&self, file: FileId, end: u64) -> Option<Vec<u64>> {
        let all = self.free_about(file)?;
        let is_own = |seq: &u64| match self.operations.get(seq) {
            Some(Operation::Exchange { .. }) | None => false,
            Some(operation) => *seq == end || operation.file() == file,
        };
        let made =
            matches!(self.operations.get(all.first()?), Some(Operation::Make { file: made, .. }) if *made == file);
        (made && all.iter().all(is_own)).then_some(all)
    }

    /// Takes out the operations of a file whose last name was removed at `end`, if the log also
    /// made the file.
    fn cancel(&mut self, file: FileId, end: u64) {
        let Some(life) = self.life_of(file, end) else { return };
        for seq in life {
            // The file that a rename replaced is still gone.
            if let Some(Operation::Rename { to, replaced: Some((gone, last)), .. }) = self.remove(seq) {
                self.insert(seq, Operation::Remove { at: to, file: gone, last });
            }
        }
    }

    /// Takes out the operations of a file that lost its last name to another file, which was moved
    /// to `place` at `end`, if the log also made the lost file. If the lost file had itself
    /// replaced an older file at that place, the rename at `end` now replaces the older one.
    fn cancel_replaced(&mut self, gone: FileId, end: u64, place: &Place) {
        let Some(life) = self.life_of(gone, end) else { return };
        // That holds only if the last change of the place before `end` was the arrival of the lost
        // file.
        let came = self.by_place.get(place).and_then(|all| all.range(..end).next_back().copied());
        let mut inherited = None;
        for seq in life.into_iter().filter(|seq| *seq != end) {
            if let Some(Operation::Rename { to, replaced: Some((older, last)), .. }) = self.remove(seq) {
                // The older file would keep this name until `end`. An operation in between that
                // depends on the number of its names would meet another number.
                let is_named = self.naming(older).any(|(other, _)| seq < other && other < end);
                if Some(seq) == came && to == *place && !is_named {
                    inherited = Some((older, last));
                } else {
                    self.insert(seq, Operation::Remove { at: to, file: older, last });
                }
            }
        }
        if let Some(Operation::Rename { file, from, to, .. }) = self.operations.get(&end).cloned() {
            self.replace(end, Operation::Rename { file, from, to, replaced: inherited });
        }
    }

    /// Merges the move of a file at `seq` into the operation that brought the file to its old
    /// place, if that waits. It does so only if both places are in one directory. Then the file
    /// inherits the same attributes and is reached the same way until `seq`, and a user who may put
    /// it at one place may put it at the other.
    fn fold(&mut self, file: FileId, seq: u64) {
        let Some(Operation::Rename { from, to, replaced: None, .. }) = self.operations.get(&seq).cloned() else {
            return;
        };
        let last_at = |place: &Place| self.by_place.get(place)?.range(..seq).next_back().copied();
        let Some(came) = last_at(&from) else { return };
        if came <= self.pinned || from.0 != to.0 || last_at(&to) > Some(came) {
            return;
        }
        let folded = match self.operations.get(&came) {
            Some(Operation::Make { at, file: made, made: how }) if *made == file && *at == from => {
                Operation::Make { at: to, file, made: how.clone() }
            }
            Some(Operation::Rename { file: moved, from: origin, to: at, replaced: None })
                if *moved == file && *at == from =>
            {
                if *origin == to {
                    self.remove(seq);
                    self.remove(came);
                    return;
                }
                Operation::Rename { file, from: origin.clone(), to, replaced: None }
            }
            _ => return,
        };
        self.remove(seq);
        self.replace(came, folded);
    }
}

/// Encoded as the operations that wait; decoding rebuilds the indices.
impl Wire for OpLog {
    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.last, self.pinned, self.saved.logged, self.saved.operations, self.saved.bytes] {
            number.encode(out);
        }
        self.operations.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, pinned) = (u64::decode(r)?, u64::decode(r)?);
        let saved = Saved { logged: u64::decode(r)?, operations: u64::decode(r)?, bytes: u64::decode(r)? };
        let mut log = OpLog { last, pinned, saved, ..OpLog::default() };
        let operations = BTreeMap::<u64, Operation>::decode(r)?;
        if last > SEQ_MAX {
            return Err(DecodeError::Invalid("number of operations"));
        }
        for (seq, operation) in operations {
            if seq > last {
                return Err(DecodeError::Invalid("number of an operation"));
            }
            log.insert(seq, operation);
        }
        Ok(log)
    }
}

#[cfg(test)]
mod tests;
