//! What a roaming client knows: the cached part of its home's files, the operations done since, and
//! their outcomes (docs/roaming.md). Pure. Every lasting change is a [`Record`], so a client that
//! replays its log after a crash has the same state again.
//!
//! Names are kept as the home has them, and the log's operations are laid on top ([`OpLog::at`]):
//! answers of the home and changes by others go below, and nothing has to be undone. Attributes are
//! those that users see. A file that this client changed is not refreshed until the home has heard
//! of the change.
//!
//! A file or directory that was made here may turn out to exist at home already, under another id.
//! From then on both ids mean the home's file: a caller that still uses the old id gets an answer
//! about the new one ([`Replica::real`]).
//!
//! `node`: one file; `changes`: which changes of its bytes are not logged yet; `fits`: which
//! records can be applied; `apply`: what operations do to files; `forgetting`: which metadata a
//! full cache forgets; `answers`: the home's answers to operations; [`conflict`]: operations that
//! the home could not do; `paths`: names and paths; `kept`: the encoding on disk.
//!
//! Invariants: a file that is neither stale nor changed here is as the home had it at
//! [`Replica::stamp`]; nothing that was changed here is forgotten before the home has answered; an
//! alias always leads to a real id, never to another alias.

mod answers;
mod apply;
mod changes;
pub mod conflict;
mod fits;
mod forgetting;
mod kept;
mod node;
mod paths;

pub use changes::Changes;
pub use node::{Node, Unlogged};
pub use paths::Paths;

use bytes::Bytes;
use conflict::{Case, Conflict, Deed};
use record_log::SnapshotMap;
use roam_proto::message::{Applied, Facts, NamedFacts, Outcome, User};
use roam_proto::operation::{Change, Operation};
use roam_proto::oplog::OpLog;
use roam_proto::ranges::Ranges;
use roam_proto::volume_stamp::Stamp;
use roam_proto::{wire_enum, wire_struct};
use std::collections::{BTreeMap, BTreeSet};
use types::{FileId, FsError, Time};
use vfs::fs::FILE_SIZE_MAX;

/// Greatest number of a file of the cache, or of a conflict, that a record may name. It is far
/// below `u64::MAX`, so counting on from there cannot overflow.
const NUMBER_MAX: u64 = 1 << 62;
/// Longest small file, in bytes. Longer ones are files of the cache from the start: copying their
/// bytes into the log would cost more than it saves.
pub(crate) const SMALL_LEN_MAX: u64 = 64 << 10;
/// Longest file whose earlier contents are kept as a base, in bytes.
pub(crate) const BASE_LEN_MAX: u64 = 16 << 20;

/// What the client learned when it was attached to its volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The volume's root directory.
    pub root: FileId,
    /// The user that the home acts as for this client.
    pub user: User,
    /// The log that the numbers of operations belong to. A client whose log begins anew gets
    /// another.
    pub incarnation: u64,
    /// Bytes of the longest file that the home can hold.
    pub file_len_max: u64,
}
wire_struct!(Membership { root, user, incarnation, file_len_max });

/// A lasting change of the replica, as the log has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The client was attached for the first time, or its membership has changed.
    Joined(Membership),
    /// The client has heard of every change up to this stamp.
    Stamped(Option<Stamp>),
    /// Others have changed these files.
    Broken(Vec<FileId>),
    /// Others may have changed any file.
    AllBroken,
    /// The home told a file's attributes.
    Known(Box<Facts>),
    /// The home told what is in a directory.
    Listed {
        /// The directory's own attributes.
        dir: Box<Facts>,
        /// All its entries.
        entries: Vec<NamedFacts>,
    },
    /// The home has no such file.
    Gone(FileId),
    /// These bytes of a file are durable in a file of the cache.
    Cached {
        /// The file.
        file: FileId,
        /// The number of the file of the cache.
        data: u64,
        /// Which bytes.
        have: Ranges,
    },
    /// A file's bytes are no longer cached.
    Dropped(FileId),
    /// A file's bytes should be in the cache, but are missing there.
    Lost(FileId),
    /// A file's bytes in the cache are about to be changed.
    Dirty {
        /// The file.
        file: FileId,
        /// The number of the file of the cache that has them.
        data: u64,
        /// The file of the cache that keeps the bytes as they were before; 0: none does.
        base: u64,
        /// Which bytes are durable there. The home has the others.
        have: Ranges,
        /// The file's length in bytes when the change begins; 0 if the file is emptied first.
        size: u64,
    },
    /// A program did an operation.
    Did {
        /// The operation.
        operation: Operation,
        /// When it was done.
        when: Time,
    },
    /// Operations up to this one may have reached the home.
    Pinned(u64),
    /// The home has answered an operation.
    Answered(Applied),
    /// The home gave ids for new files: the first, and how many.
    Ids(FileId, u64),
    /// As `Ids`, after the client gave up its earlier ids. Files that wait to be made at home get
    /// new ids from this range.
    Renewed(FileId, u64),
    /// A conflict was resolved.
    Settled(u64),
    /// The client forgot least lately used metadata, to keep its bound.
    Forgotten {
        /// The directory whose names it forgot.
        dir: Option<FileId>,
        /// Files and directories that it forgot.
        files: Vec<FileId>,
    },
    /// The resolution of a conflict was undone, so the conflict is open again.
    Reopened {
        /// The number that the conflict had.
        number: u64,
        /// The conflict.
        case: Box<Case>,
    },
    /// The bytes in the cache are as they were last logged.
    Clean(FileId),
    /// A file's bytes are about to be changed in memory. The cache keeps the logged bytes until
    /// [`Stored`](Self::Stored) or [`Held`](Self::Held).
    Marked(FileId),
    /// A small file was stored; its bytes are in this record.
    Stored {
        /// The file.
        file: FileId,
        /// The number of its contents.
        data: u64,
        /// The contents that keep the bytes as they were before; 0: none do.
        base: u64,
        /// The change that goes home.
        change: Change,
        /// Whether `bytes` is the whole file. Otherwise it holds only the ranges that the change
        /// names, one after the other, and the log has the rest.
        is_all: bool,
        /// The bytes.
        bytes: Bytes,
        /// When it was stored.
        when: Time,
    },
    /// A small file is being written; the record holds its contents so far.
    Held {
        /// The file.
        file: FileId,
        /// The number of its contents.
        data: u64,
        /// The contents that keep the bytes as they were before; 0: none do.
        base: u64,
        /// The whole contents.
        bytes: Bytes,
    },
    /// The contents with these numbers are now durable in files of the cache.
    Filed(Vec<u64>),
    /// A path, with everything below it, is hoarded; with `None`, no longer.
    Hoarded {
        /// From the root, without a leading slash.
        path: Vec<u8>,
        /// Its hoard priority, up to 100.
        priority: Option<u8>,
    },
}
wire_enum!(Record {
    1 => Joined(membership),
    2 => Stamped(stamp),
    3 => Broken(files),
    4 => AllBroken,
    5 => Known(facts),
    6 => Listed { dir, entries },
    7 => Gone(file),
    8 => Cached { file, data, have },
    9 => Dropped(file),
    10 => Dirty { file, data, base, have, size },
    11 => Did { operation, when },
    12 => Pinned(through),
    13 => Answered(applied),
    14 => Ids(first, count),
    15 => Settled(number),
    16 => Clean(file),
    17 => Hoarded { path, priority },
    18 => Lost(file),
    19 => Reopened { number, case },
    20 => Renewed(first, count),
    21 => Forgotten { dir, files },
    22 => Marked(file),
    23 => Stored { file, data, base, change, is_all, bytes, when },
    24 => Filed(numbers),
    25 => Held { file, data, base, bytes },
});

/// The contents after a change that writes these bytes. `None` if the change and the bytes do not
/// match, or the result is too long for a small file.
fn patched(before: &Bytes, change: &Change, mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut after = before.to_vec();
    after.truncate(usize::try_from(change.cut).unwrap_or(usize::MAX));
    if change.size > SMALL_LEN_MAX {
        return None;
    }
    after.resize(change.size as usize, 0);
    for range in change.ranges.iter() {
        let (piece, rest) = bytes.split_at_checked(usize::try_from(range.end - range.start).ok()?)?;
        after.get_mut(range.start as usize..range.end as usize)?.copy_from_slice(piece);
        bytes = rest;
    }
    bytes.is_empty().then_some(after)
}

fn makes(operation: &Operation, file: FileId) -> bool {
    matches!(operation, Operation::Make { .. }) && operation.file() == file
}

/// What a name leads to, as far as the client knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Child {
    /// This file.
    Is(FileId),
    /// Nothing.
    Nothing,
    /// The client cannot tell: only the home knows.
    Unknown,
}

/// All that a client knows and has done. Pure; see the module documentation for its invariants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replica {
    membership: Option<Membership>,
    stamp: Option<Stamp>,
    nodes: SnapshotMap<FileId, Node>,
    log: OpLog,
    /// When each waiting operation was done, by number.
    done: BTreeMap<u64, Time>,
    /// The last operation that the home has answered.
    answered: u64,
    /// The unused ids: the next one, and how many are left.
    ids: (u64, u64),
    /// The greatest id that the home has named.
    newest: u64,
    next_data: u64,
    /// Contents that are in the log but not in files of the cache, by number.
    contents: BTreeMap<u64, Bytes>,
    /// Their total length, in bytes.
    contents_len: u64,
    hoard: BTreeMap<Vec<u8>, u8>,
    /// Files of the cache that may be no longer needed. Not lasting.
    unused: Vec<u64>,
    /// Stores that were logged again: the old number, the new number, and the change.
    pub(crate) logged_again: Vec<(u64, u64, Change)>,
    conflicts: BTreeMap<u64, Conflict>,
    next_conflict: u64,
    /// For conflicts of attributes and of moved names: the operation that failed.
    meant: BTreeMap<u64, Operation>,
    /// Ids of files made here that the home had already, and the ids that they stand for.
    aliases: BTreeMap<FileId, FileId>,
}

impl Replica {
    /// The membership; `None` before the client was first attached.
    pub fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Bytes of the longest file that the home can hold, as it said last.
    pub fn file_len_max(&self) -> u64 {
        self.membership().map_or(FILE_SIZE_MAX, |membership| membership.file_len_max.min(FILE_SIZE_MAX))
    }

    /// Files that are not stale are as the home had them at this stamp.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// The operations that wait: the client has not taken in the home's answers to them. The home
    /// may have done the first ones already (see the module `seen`).
    pub fn log(&self) -> &OpLog {
        &self.log
    }

    /// The last operation whose outcome the client knows.
    pub fn acknowledged(&self) -> u64 {
        self.answered
    }

    /// When a waiting operation was done.
    pub fn done_at(&self, seq: u64) -> Option<Time> {
        self.done.range(..=seq).next_back().map(|(_, when)| *when)
    }

    /// Operations that the home could not do as they were, and their outcomes.
    pub fn conflicts(&self) -> impl Iterator<Item = (u64, &Conflict)> {
        self.conflicts.iter().map(|(number, conflict)| (*number, conflict))
    }

    /// The conflict with this number.
    pub fn conflict(&self, number: u64) -> Option<&Conflict> {
        self.conflicts.get(&number)
    }

    pub(crate) fn conflict_mut(&mut self, number: u64) -> Option<&mut Conflict> {
        self.conflicts.get_mut(&number)
    }

    /// The operation that failed, for a conflict of attributes or of a moved name.
    pub fn meant(&self, number: u64) -> Option<&Operation> {
        self.meant.get(&number)
    }

    /// Hoarded paths, with their priorities.
    pub fn hoard(&self) -> &BTreeMap<Vec<u8>, u8> {
        &self.hoard
    }

    /// Files that were made ready to be changed, or have changes to be logged.
    pub(crate) fn begun(&self) -> impl Iterator<Item = FileId> {
        self.nodes().filter(|(_, node)| node.changes.is_begun()).map(|(id, _)| id)
    }

    /// All files that are known.
    pub fn nodes(&self) -> impl Iterator<Item = (FileId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// How many files are known.
    pub fn file_count(&self) -> usize {
        self.nodes.len()
    }

    /// The file that an id means.
    pub fn real(&self, id: FileId) -> FileId {
        self.aliases.get(&id).copied().unwrap_or(id)
    }

    /// Forgets all aliases. The caller knows that no program uses the old ids any more.
    pub(crate) fn forget_aliases(&mut self) {
        self.aliases.clear();
    }

    /// A file. ESTALE if the client does not know it.
    pub fn node(&self, id: FileId) -> Result<&Node, FsError> {
        self.nodes.get(&self.real(id)).ok_or(FsError::Stale)
    }

    /// A file, for changes of its fields that are not lasting.
    pub fn node_mut(&mut self, id: FileId) -> Result<&mut Node, FsError> {
        let id = self.real(id);
        self.nodes.get_mut(&id).ok_or(FsError::Stale)
    }

    /// The greatest id that the home has named since the client's log began.
    pub fn newest(&self) -> FileId {
        FileId::new(self.newest)
    }

    /// How many ids are left.
    pub fn ids_left(&self) -> u64 {
        self.ids.1
    }

    /// The next id for a file that is made here.
    pub fn next_id(&self) -> Option<FileId> {
        (self.ids.1 > 0).then_some(FileId::new(self.ids.0))
    }

    /// A number that no file of the cache has.
    pub fn take_data_number(&mut self) -> u64 {
        self.next_data += 1;
        self.next_data
    }

    /// Files of the cache that have become unneeded since the last call.
    pub fn take_unused(&mut self) -> Vec<u64> {
        let unused = std::mem::take(&mut self.unused);
        let needed: BTreeSet<u64> = if unused.is_empty() { BTreeSet::new() } else { self.needed().collect() };
        unused.into_iter().filter(|number| *number > 0 && !needed.contains(number)).collect()
    }

    /// The numbers of all files of the cache that are needed.
    pub fn needed(&self) -> impl Iterator<Item = u64> {
        let logged = |node: &Node| node.unlogged.as_ref().map_or(0, |unlogged| unlogged.data.max(unlogged.base));
        let nodes = self.nodes.values().flat_map(move |node| [node.data, node.base, logged(node)]);
        let conflicts = self.conflicts.values().flat_map(|conflict| [conflict.base, conflict.kept]);
        nodes.chain(conflicts).filter(|number| *number > 0)
    }

    /// True if operations on a file wait, or its bytes have changes that are not logged yet.
    pub fn is_own(&self, id: FileId) -> bool {
        self.log.is_about(self.real(id)) || self.node(id).is_ok_and(Node::is_dirty)
    }

    /// The operation that made a file here, if the home has not answered it yet.
    pub(crate) fn made_at(&self, file: FileId) -> Option<u64> {
        self.log.naming(file).find(|(_, operation)| makes(operation, file)).map(|(seq, _)| seq)
    }

    /// All bytes of a file that waiting stores have written or cut; `None`: none.
    pub(crate) fn written(&self, id: FileId) -> Option<Change> {
        let stores = self.log.naming(self.real(id)).filter_map(|(_, operation)| match operation {
            Operation::Store { change, .. } => Some(change.clone()),
            _ => None,
        });
        stores.reduce(|earlier, later| later.along(&earlier))
    }

    /// True if the file is only partly cached, and the home cannot provide the rest yet, since the
    /// operation that makes or copies the file still waits.
    pub(crate) fn has_rest_nowhere(&self, id: FileId) -> bool {
        let begins = |o: &Operation| matches!(o, Operation::Make { .. } | Operation::Copy { .. });
        let file = self.real(id);
        !self.node(id).is_ok_and(Node::is_whole)
            && self.log.naming(file).any(|(_, operation)| begins(operation) && operation.file() == file)
    }

    /// True if others have changed the file since the client last asked the home about it.
    pub fn is_stale(&self, id: FileId) -> bool {
        self.node(id).is_ok_and(|node| node.is_stale) && !self.is_own(id)
    }

    /// True if the file's attributes are cached and not stale.
    pub(crate) fn is_fresh(&self, id: FileId) -> bool {
        self.node(id).is_ok() && !self.is_stale(id)
    }

    /// Makes a lasting change. `None`, and nothing has changed, if the record does not
    /// [fit](Self::fits) the state.
    pub fn apply(&mut self, record: Record) -> Option<()> {
        if self.fits(&record) { self.apply_fitting(record) } else { None }
    }

    /// As [`apply`](Self::apply), for a record that is known to fit.
    pub(crate) fn apply_fitting(&mut self, record: Record) -> Option<()> {
        match record {
            Record::Joined(membership) => {
                let known = self.membership.replace(membership).map(|membership| membership.incarnation);
                self.answered = 0;
                if known.is_some() && known != self.membership.as_ref().map(|membership| membership.incarnation) {
                    self.begin_anew();
                }
            }
            Record::Stamped(stamp) => self.stamp = stamp,
            Record::Broken(files) => {
                for file in files {
                    if let Some(node) = self.nodes.get_mut(&file) {
                        (node.is_stale, node.names_of) = (true, None);
                    }
                }
            }
            Record::AllBroken => self.nodes.values_mut().for_each(|node| node.is_stale = true),
            Record::Known(facts) => self.know(*facts),
            Record::Listed { dir, entries } => self.listed(*dir, entries),
            Record::Gone(file) => self.gone(file),
            Record::Cached { file, data, have } => {
                self.uses(data)?;
                let node = self.node_mut(file).ok()?;
                if node.data != data {
                    (node.data, node.have) = (data, Ranges::default());
                }
                node.have.add_all(&have);
                node.kept = have;
            }
            Record::Dropped(file) => {
                let file = self.real(file);
                let node = self.nodes.get_mut(&file)?;
                self.unused.push(node.data);
                (node.data, node.have, node.kept) = (0, Ranges::default(), Ranges::default());
            }
            Record::Forgotten { dir, files } => self.forget(dir, files),
            Record::Lost(file) => self.lost(file)?,
            Record::Dirty { file, data, base, have, size } => {
                self.uses(data)?;
                self.uses(base)?;
                let file = self.real(file);
                let node = self.nodes.get_mut(&file)?;
                let before = node.unlogged.take().map_or(node.data, |unlogged| unlogged.data);
                if node.data != data {
                    (node.data, node.have, node.kept) = (data, Ranges::default(), Ranges::default());
                }
                node.have.add_all(&have);
                (node.kept, node.begun_size) = (have, size);
                node.changes.mark();
                node.is_apart = false;
                let unused = node.keep_base(base);
                self.unused.extend([unused, if before == data { 0 } else { before }]);
            }
            Record::Hoarded { path, priority: Some(priority) } => {
                self.hoard.insert(path, priority);
            }
            Record::Hoarded { path, priority: None } => {
                self.hoard.remove(&path)?;
            }
            Record::Clean(file) => {
                let node = self.node_mut(file).ok()?;
                (node.changes, node.is_apart) = (Changes::Logged, false);
            }
            Record::Marked(file) => {
                let node = self.node_mut(file).ok()?;
                node.changes.mark();
                node.is_apart = true;
            }
            Record::Stored { file, data, base, change, is_all, bytes, when } => {
                let contents = match is_all {
                    true => bytes,
                    false => patched(self.contents.get(&data)?, &change, &bytes)?.into(),
                };
                if contents.len() as u64 != change.size {
                    return None;
                }
                self.has_contents(file, (data, base), contents)?;
                self.did(Operation::Store { file, change }, when)?;
            }
            Record::Held { file, data, base, bytes } => {
                let len = bytes.len() as u64;
                self.has_contents(file, (data, base), bytes)?;
                let node = self.node_mut(file).ok()?;
                node.changes.mark();
                node.begun_size = len;
                (node.facts.size, node.facts.blocks) = (len, len.div_ceil(512));
            }
            Record::Filed(numbers) => numbers.into_iter().for_each(|number| self.forget_contents(number)),
            Record::Did { operation, when } => self.did(operation, when)?,
            Record::Pinned(through) => self.log.pin(through),
            Record::Answered(applied) => self.answered(applied),
            Record::Ids(first, count) => {
                let end = first.raw().checked_add(count)?;
                self.hears_of(FileId::new(end.saturating_sub(1)));
                self.ids = (first.raw(), count);
            }
            Record::Renewed(first, count) => {
                let end = first.raw().checked_add(count)?;
                self.hears_of(FileId::new(end.saturating_sub(1)));
                self.ids = (first.raw(), count);
                self.renumber_made();
            }
            Record::Settled(number) => {
                let conflict = self.conflicts.remove(&number)?;
                self.unused.extend([conflict.base, conflict.kept]);
                self.meant.remove(&number);
            }
            Record::Reopened { number, case } => {
                let Case { conflict, meant } = *case;
                if number > NUMBER_MAX || self.conflicts.contains_key(&number) {
                    return None;
                }
                self.uses(conflict.base)?;
                self.uses(conflict.kept)?;
                self.next_conflict = self.next_conflict.max(number);
                self.conflicts.insert(number, conflict);
                self.meant.extend(meant.map(|meant| (number, meant)));
            }
        }
        Some(())
    }

    /// From now on the log holds the contents of a small file.
    fn has_contents(&mut self, file: FileId, (data, base): (u64, u64), contents: Bytes) -> Option<()> {
        self.uses(data)?;
        self.uses(base)?;
        let len = contents.len() as u64;
        if data == 0 || len > SMALL_LEN_MAX {
            return None;
        }
        let file = self.real(file);
        let node = self.nodes.get_mut(&file)?;
        let before = node.unlogged.take().map_or(node.data, |unlogged| unlogged.data);
        (node.data, node.have, node.kept) = (data, Ranges::of(0..len), Ranges::of(0..len));
        node.is_apart = false;
        let unused = node.keep_base(base);
        self.unused.extend([unused, if before == data { 0 } else { before }]);
        self.forget_contents(data);
        self.contents_len += len;
        self.contents.insert(data, contents);
        Some(())
    }

    /// Contents that only the log has, by number.
    pub fn contents(&self, number: u64) -> Option<&Bytes> {
        self.contents.get(&number)
    }

    /// All contents that only the log has, oldest first.
    pub(crate) fn all_contents(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.contents.iter().map(|(number, bytes)| (*number, bytes))
    }

    /// Their total length, in bytes.
    pub(crate) fn contents_len(&self) -> u64 {
        self.contents_len
    }

    /// Forgets contents: they are in a file now, or nothing needs them.
    pub(crate) fn forget_contents(&mut self, number: u64) {
        if let Some(bytes) = self.contents.remove(&number) {
            self.contents_len -= bytes.len() as u64;
        }
    }

    /// The client has a new incarnation: this cache may be a copy, and then it cannot know which
    /// ids the original has used since; or the home was restored, and may give the same ids again.
    /// So ids and stamp are dropped, and everything is stale.
    fn begin_anew(&mut self) {
        (self.stamp, self.ids, self.newest) = (None, (0, 0), 0);
        self.nodes.values_mut().for_each(|node| (node.is_stale, node.names_of) = (true, None));
    }

    /// Remembers the greatest id that the home has named.
    fn hears_of(&mut self, id: FileId) {
        self.newest = self.newest.max(id.raw());
    }

    /// Remembers that this number of a file of the cache is taken.
    fn uses(&mut self, data: u64) -> Option<()> {
        self.next_data = self.next_data.max(data);
        (data <= NUMBER_MAX).then_some(())
    }

    fn know(&mut self, facts: Facts) {
        let id = facts.id;
        self.hears_of(id);
        // The home has given this id to a file, so it no longer stands for another one.
        self.aliases.remove(&id);
        if self.is_own(id) {
            return;
        }
        let changes_names = self.log.changed_in(id).next().is_some();
        let node = self.nodes.get_or_insert_with(id, || Node::new(facts.clone()));
        if node.facts.contents != facts.contents {
            // The contents changed, so the cached bytes are of no use.
            self.unused.push(node.data);
            (node.data, node.have, node.kept) = (0, Ranges::default(), Ranges::default());
        }
        node.is_stale = false;
        match changes_names {
            true => node.renumber(&facts),
            false => node.show(facts),
        }
    }

    fn listed(&mut self, dir: Facts, entries: Vec<NamedFacts>) {
        let id = dir.id;
        self.hears_of(id);
        let mut names = BTreeMap::new();
        for NamedFacts { name, facts } in entries {
            names.insert(name, facts.id);
            let child = facts.id;
            self.know(facts);
            if let Some(node) = self.nodes.get_mut(&child) {
                node.parent = id;
            }
        }
        let own = self.log.is_about(id);
        let changes_names = self.log.changed_in(id).next().is_some();
        let is_nameless = |child: &FileId| self.nodes.get(child).is_some_and(|node| node.facts.nlink == 0);
        let nameless: Vec<(Vec<u8>, FileId)> =
            names.iter().filter(|(_, child)| is_nameless(child)).map(|(name, child)| (name.clone(), *child)).collect();
        let node = self.nodes.get_or_insert_with(id, || Node::new(dir.clone()));
        node.listed_at = self.log.pinned();
        (node.names, node.names_of, node.is_stale) = (Some(names), Some(dir.contents), false);
        match own || changes_names {
            true => node.renumber(&dir),
            false => node.show(dir),
        }
        for (name, child) in nameless {
            // A file that lost its last name here has a name at home that others gave it.
            if self.child(&(id, name)) == Child::Is(child)
                && let Some(node) = self.nodes.get_mut(&child)
            {
                node.facts.nlink = 1;
            }
        }
    }

    fn gone(&mut self, file: FileId) {
        if self.made_at(file).is_some()
            && let Some(node) = self.nodes.get_mut(&file)
        {
            // The home has not heard of this file, or no longer has it: no other client has put
            // anything into it.
            (node.is_stale, node.names_of) = (false, Some(node.facts.contents));
        }
        if !self.is_own(file)
            && !self.log.names(file)
            && let Some(node) = self.nodes.remove(&file)
        {
            self.unused.extend([node.data, node.base]);
        }
    }

    /// Handles bytes that are missing in the cache: the stores of this file leave the log, and a
    /// conflict records that they are lost.
    fn lost(&mut self, file: FileId) -> Option<()> {
        let is_store = |operation: &Operation| matches!(operation, Operation::Store { .. });
        let stores: Vec<u64> = self.log.naming(file).filter(|(_, o)| is_store(o)).map(|(seq, _)| seq).collect();
        let when = stores.last().and_then(|seq| self.done_at(*seq)).unwrap_or_default();
        stores.iter().for_each(|seq| drop(self.log.remove(*seq)));
        let is_made_here = self.made_at(file).is_some();
        let node = self.nodes.get_mut(&file)?;
        self.unused.push(node.data);
        (node.data, node.have, node.kept) = (0, Ranges::default(), Ranges::default());
        let was_own = std::mem::take(&mut node.changes) != Changes::Logged || !stores.is_empty();
        if !was_own || node.facts.nlink == 0 {
            return Some(());
        }
        let base = std::mem::take(&mut node.base);
        node.is_stale = true;
        if is_made_here {
            // The home has no bytes of it, either.
            (node.facts.size, node.facts.blocks) = (0, 0);
        }
        let (place, outcome) = (self.place_of(file), Outcome::Refused(FsError::Io));
        self.note(Conflict {
            deed: Deed::Lost,
            place,
            file,
            outcome,
            when,
            mine: None,
            copy: FileId::new(0),
            base,
            kept: 0,
            is_part: false,
        });
        Some(())
    }

    /// Applies an operation that was done here, and logs it.
    fn did(&mut self, mut operation: Operation, when: Time) -> Option<()> {
        operation.rename_files(|file| self.real(file));
        self.act(&operation, when)?;
        self.log_again(operation, when);
        self.forget_done();
        Some(())
    }

    fn forget_done(&mut self) {
        /// How many outdated entries of `done` may pile up before they are removed. The optimizer
        /// also takes earlier operations out of the log, and their times stay in `done` until then.
        const FORGOTTEN_COUNT: usize = 1000;
        if self.done.len() > 2 * self.log.len() + FORGOTTEN_COUNT {
            self.done.retain(|seq, _| self.log.has(*seq));
        }
        let first = self.log.first().unwrap_or(u64::MAX);
        self.done = match self.done.first_key_value() {
            Some((seq, _)) if *seq < first => self.done.split_off(&first),
            _ => std::mem::take(&mut self.done),
        };
    }

    /// Forgets a file that has no name and no waiting operations. True if it was known.
    pub fn forget_nameless(&mut self, file: FileId) -> bool {
        let file = self.real(file);
        let nameless = self.nodes.get(&file).is_some_and(|node| node.facts.nlink == 0) && !self.log.names(file);
        let Some(node) = self.nodes.get(&file).filter(|_| nameless) else { return false };
        self.unused.extend([node.data, node.base]);
        self.nodes.remove(&file).is_some()
    }

    /// Records a conflict.
    pub(crate) fn note(&mut self, conflict: Conflict) {
        self.next_conflict += 1;
        self.conflicts.insert(self.next_conflict, conflict);
    }

    /// Records a conflict with what was to be done.
    pub(crate) fn note_meant(&mut self, conflict: Conflict, operation: Operation) {
        self.note(conflict);
        self.meant.insert(self.next_conflict, operation);
    }

    /// Logs an operation again, as if it was done now. Returns its number; the log has no operation
    /// of that number if this one was merged into another.
    pub(crate) fn log_again(&mut self, operation: Operation, when: Time) -> u64 {
        let seq = self.log.append(operation);
        if self.log.has(seq) {
            self.done.insert(seq, when);
        }
        seq
    }

    /// Stores that were logged again under another number, and whose change is still the same: old
    /// and new numbers.
    pub(crate) fn take_logged_again(&mut self) -> Vec<(u64, u64)> {
        let all = std::mem::take(&mut self.logged_again);
        let is_same = |seq: u64, change: &Change| match self.log.get(seq) {
            Some(Operation::Store { change: now, .. }) => now == change,
            _ => false,
        };
        let same = all.into_iter().filter(|(_, seq, change)| is_same(*seq, change));
        same.map(|(before, seq, _)| (before, seq)).collect()
    }

    /// Takes an operation out of the log.
    pub(crate) fn unlog(&mut self, seq: u64) -> Option<Operation> {
        self.log.remove(seq)
    }

    /// Replaces what is known of a file.
    pub(crate) fn put(&mut self, id: FileId, node: Node) {
        self.nodes.insert(id, node);
    }

    /// Takes an unused id.
    pub(crate) fn take_id(&mut self) -> Option<FileId> {
        let id = self.next_id()?;
        self.ids = (id.raw() + 1, self.ids.1 - 1);
        Some(id)
    }
}
