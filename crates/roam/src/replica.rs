//! What a client that roams knows: its home's files as far as they are cached, what it has done
//! since, and what became of it (docs/roaming.md). Pure; every lasting change is a [`Record`], so
//! that the same state comes back after a crash.
//!
//! Names are kept as the home has them, with what was done here on top ([`OpLog::at`]): answers of
//! the home and changes by others go below, and nothing has to be undone. Attributes are those that
//! users see. What this client has changed is not refreshed before the home has heard of it.
//!
//! What was made here may turn out to be there already, as another file. Everything means that from
//! then on, and whoever still asks by the id from before is answered of it ([`Replica::real`]).
//!
//! `node`: one file; `changes`: what of its bytes was not logged yet; `apply`: what operations do
//! to files; `forgetting`: which metadata a full cache forgets; `answers`: what the home answers to
//! operations; `paths`: names, and where they lead; `kept`: all of it, as it is on the disk.
//!
//! Invariants: what is neither stale nor changed here is as the home had it at [`Replica::stamp`];
//! nothing that was changed here is forgotten before the home has answered; what an id means
//! instead has no other meaning itself.

mod answers;
mod apply;
mod changes;
mod forgetting;
mod kept;
mod node;
mod paths;

pub use changes::Changes;
pub use node::{Node, Unlogged};
pub use paths::Paths;

use crate::files::small::SMALL_LEN_MAX;
use crate::reintegration::conflict::{Case, Deed, Trouble};
use bytes::Bytes;
use record_log::SnapshotMap;
use roam_proto::journal::Stamp;
use roam_proto::message::{Applied, Facts, NamedFacts, Outcome, User};
use roam_proto::operation::{Change, Operation};
use roam_proto::oplog::OpLog;
use roam_proto::ranges::Ranges;
use roam_proto::{wire_enum, wire_struct};
use std::collections::{BTreeMap, BTreeSet};
use types::{FileId, FsError, Time};
use vfs::fs::FILE_SIZE_MAX;

/// Files of the cache, and troubles, are numbered up to here, which leaves room for more.
const NUMBER_MAX: u64 = 1 << 62;

/// Where a client belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The volume's root directory.
    pub root: FileId,
    /// As whom the home does what this client asks.
    pub user: User,
    /// Which log the numbers of operations are of.
    pub incarnation: u64,
    /// Bytes of the longest file that the home can hold.
    pub file_len_max: u64,
}
wire_struct!(Membership { root, user, incarnation, file_len_max });

/// A lasting change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The client was attached, for the first time or as somebody else.
    Joined(Membership),
    /// Nothing older than this is missing.
    Stamped(Option<Stamp>),
    /// Others have changed these files.
    Broken(Vec<FileId>),
    /// Others may have changed anything.
    AllBroken,
    /// What the home says of a file.
    Known(Box<Facts>),
    /// What the home says of a directory.
    Listed {
        /// Of the directory itself.
        dir: Box<Facts>,
        /// All that is in it.
        entries: Vec<NamedFacts>,
    },
    /// The home has no such file.
    Gone(FileId),
    /// These bytes of a file are in a file of the cache, durably.
    Cached {
        /// The file.
        file: FileId,
        /// Its bytes' place.
        data: u64,
        /// Which.
        have: Ranges,
    },
    /// The bytes are not cached any more.
    Dropped(FileId),
    /// The bytes are not in the cache, though they should be.
    Lost(FileId),
    /// A file's bytes are about to be changed in the cache.
    Dirty {
        /// The file.
        file: FileId,
        /// Their place.
        data: u64,
        /// Where they are kept as they were; 0: nowhere.
        base: u64,
        /// Which of them are there, durably. The others are as the home has them.
        have: Ranges,
        /// How long the file is when the change begins, in bytes: 0 if it begins with an empty one.
        size: u64,
    },
    /// Something was done here.
    Did {
        /// What.
        operation: Operation,
        /// When.
        when: Time,
    },
    /// Operations up to this one may have reached the home.
    Pinned(u64),
    /// The home has answered.
    Answered(Applied),
    /// Ids for files made here: the first, and how many.
    Ids(FileId, u64),
    /// Ids for files made here, after those before were given up: the first, and how many. What
    /// waits to be made at home is made with these.
    Renewed(FileId, u64),
    /// A trouble was seen to.
    Settled(u64),
    /// The client forgot least lately used metadata, to keep its bound.
    Forgotten {
        /// The directory whose names it forgot.
        dir: Option<FileId>,
        /// Files and directories that it forgot.
        files: Vec<FileId>,
    },
    /// What was done about a trouble was taken back.
    Reopened {
        /// The number that it had.
        number: u64,
        /// The trouble.
        case: Box<Case>,
    },
    /// A file's bytes were not changed since they were last logged.
    Clean(FileId),
    /// A file's bytes are about to be changed in memory. The cache keeps them as they are until
    /// [`Stored`](Self::Stored).
    Marked(FileId),
    /// Something was stored in a small file. The log has its bytes.
    Stored {
        /// The file.
        file: FileId,
        /// The number of its contents.
        data: u64,
        /// Where they are kept as they were; 0: nowhere.
        base: u64,
        /// What the home is to hear of.
        change: Change,
        /// The bytes are all of the file; otherwise they are what the change says, range after
        /// range, of contents that the log has.
        is_all: bool,
        /// The bytes.
        bytes: Bytes,
        /// When.
        when: Time,
    },
    /// A small file is being written, and the log has what is in it so far.
    Held {
        /// The file.
        file: FileId,
        /// The number of its contents.
        data: u64,
        /// Where they are kept as they were; 0: nowhere.
        base: u64,
        /// All of them.
        bytes: Bytes,
    },
    /// Contents of these numbers are files of the cache now, durably.
    Filed(Vec<u64>),
    /// A path is to be kept in the cache, with all below it; `None`: not any more.
    Hoarded {
        /// From the root, without a slash at its beginning.
        path: Vec<u8>,
        /// How dear it is, up to 100.
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

/// Contents after a change with these bytes. `None` if they do not go together.
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

/// What a name means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Child {
    /// This file.
    Is(FileId),
    /// Nothing.
    Nothing,
    /// Only the home knows.
    Unknown,
}

/// See the module's header.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replica {
    membership: Option<Membership>,
    stamp: Option<Stamp>,
    nodes: SnapshotMap<FileId, Node>,
    log: OpLog,
    /// When operations were done that wait.
    done: BTreeMap<u64, Time>,
    /// The last operation that the home has answered.
    answered: u64,
    /// Ids that were not used yet.
    ids: (u64, u64),
    /// The greatest id that the home has named.
    newest: u64,
    next_data: u64,
    /// Contents that are in the log, and not in files of the cache, by their numbers.
    contents: BTreeMap<u64, Bytes>,
    /// How many bytes these are.
    contents_len: u64,
    hoard: BTreeMap<Vec<u8>, u8>,
    /// Files of the cache that nobody needs any more; not lasting.
    unused: Vec<u64>,
    /// Stores that were logged again: with which number before, and with which now.
    pub(crate) logged_again: Vec<(u64, u64, Change)>,
    troubles: BTreeMap<u64, Trouble>,
    next_trouble: u64,
    /// What was to be done, in troubles of attributes and of names that were moved.
    meant: BTreeMap<u64, Operation>,
    /// Ids of what was made here and was there already, as these files.
    aliases: BTreeMap<FileId, FileId>,
}

impl Replica {
    /// Where the client belongs; `None` before it was first attached.
    pub fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Bytes of the longest file that the home can hold, as it said last.
    pub fn file_len_max(&self) -> u64 {
        self.membership().map_or(FILE_SIZE_MAX, |membership| membership.file_len_max.min(FILE_SIZE_MAX))
    }

    /// What is not stale is as the home had it then.
    pub fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// What the home has not heard of.
    pub fn log(&self) -> &OpLog {
        &self.log
    }

    /// The client knows how its operations ended, up to this one.
    pub fn acknowledged(&self) -> u64 {
        self.answered
    }

    /// When an operation that waits was done.
    pub fn done_at(&self, seq: u64) -> Option<Time> {
        self.done.range(..=seq).next_back().map(|(_, when)| *when)
    }

    /// What became of operations that could not be done at home as they were.
    pub fn troubles(&self) -> impl Iterator<Item = (u64, &Trouble)> {
        self.troubles.iter().map(|(number, trouble)| (*number, trouble))
    }

    /// What has gone wrong by this number.
    pub fn trouble(&self, number: u64) -> Option<&Trouble> {
        self.troubles.get(&number)
    }

    pub(crate) fn trouble_mut(&mut self, number: u64) -> Option<&mut Trouble> {
        self.troubles.get_mut(&number)
    }

    /// What was to be done, in a trouble of attributes, or of a name that was moved.
    pub fn meant(&self, number: u64) -> Option<&Operation> {
        self.meant.get(&number)
    }

    /// Paths that are to be kept in the cache, with how dear they are.
    pub fn hoard(&self) -> &BTreeMap<Vec<u8>, u8> {
        &self.hoard
    }

    /// Files that were made ready to be changed, or of which something is to be logged.
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

    /// Nobody asks by ids that mean another file any more.
    pub(crate) fn forget_aliases(&mut self) {
        self.aliases.clear();
    }

    /// A file. ESTALE if it is not known.
    pub fn node(&self, id: FileId) -> Result<&Node, FsError> {
        self.nodes.get(&self.real(id)).ok_or(FsError::Stale)
    }

    /// A file, to change what is not lasting of it.
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

    /// Files of the cache that nobody has needed since this was asked last.
    pub fn take_unused(&mut self) -> Vec<u64> {
        let unused = std::mem::take(&mut self.unused);
        let needed: BTreeSet<u64> = if unused.is_empty() { BTreeSet::new() } else { self.needed().collect() };
        unused.into_iter().filter(|number| *number > 0 && !needed.contains(number)).collect()
    }

    /// All files of the cache that are needed.
    pub fn needed(&self) -> impl Iterator<Item = u64> {
        let logged = |node: &Node| node.unlogged.as_ref().map_or(0, |unlogged| unlogged.data.max(unlogged.base));
        let nodes = self.nodes.values().flat_map(move |node| [node.data, node.base, logged(node)]);
        let troubles = self.troubles.values().flat_map(|trouble| [trouble.base, trouble.kept]);
        nodes.chain(troubles).filter(|number| *number > 0)
    }

    /// True if what is known of a file is this client's own, before the home has heard of it.
    pub fn is_own(&self, id: FileId) -> bool {
        self.log.is_about(self.real(id)) || self.node(id).is_ok_and(Node::is_dirty)
    }

    /// The operation that made a file here, if the home has not answered it.
    pub(crate) fn made_at(&self, file: FileId) -> Option<u64> {
        self.log.naming(file).find(|(_, operation)| makes(operation, file)).map(|(seq, _)| seq)
    }

    /// Bytes of a file that operations that wait have written or cut, in all; `None`: none.
    pub(crate) fn written(&self, id: FileId) -> Option<Change> {
        let stores = self.log.naming(self.real(id)).filter_map(|(_, operation)| match operation {
            Operation::Store { change, .. } => Some(change.clone()),
            _ => None,
        });
        stores.reduce(|earlier, later| later.along(&earlier))
    }

    /// True if not all of a file is here, and the home does not have what it begins with yet.
    pub(crate) fn has_rest_nowhere(&self, id: FileId) -> bool {
        let begins = |o: &Operation| matches!(o, Operation::Make { .. } | Operation::Copy { .. });
        let file = self.real(id);
        !self.node(id).is_ok_and(Node::is_whole)
            && self.log.naming(file).any(|(_, operation)| begins(operation) && operation.file() == file)
    }

    /// True if others have changed the file, and nobody has asked the home since.
    pub fn is_stale(&self, id: FileId) -> bool {
        self.node(id).is_ok_and(|node| node.is_stale) && !self.is_own(id)
    }

    /// True if the cached facts of a file are there and not stale.
    pub(crate) fn is_fresh(&self, id: FileId) -> bool {
        self.node(id).is_ok() && !self.is_stale(id)
    }

    /// Makes a lasting change. `None` if it makes no sense, which only a damaged log can bring
    /// about.
    pub fn apply(&mut self, record: Record) -> Option<()> {
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
                let trouble = self.troubles.remove(&number)?;
                self.unused.extend([trouble.base, trouble.kept]);
                self.meant.remove(&number);
            }
            Record::Reopened { number, case } => {
                let Case { trouble, meant } = *case;
                if number > NUMBER_MAX || self.troubles.contains_key(&number) {
                    return None;
                }
                self.uses(trouble.base)?;
                self.uses(trouble.kept)?;
                self.next_trouble = self.next_trouble.max(number);
                self.troubles.insert(number, trouble);
                self.meant.extend(meant.map(|meant| (number, meant)));
            }
        }
        Some(())
    }

    /// The log has what is in a small file from now on.
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

    /// Contents that only the log has.
    pub fn contents(&self, number: u64) -> Option<&Bytes> {
        self.contents.get(&number)
    }

    /// All of them, the oldest first.
    pub(crate) fn all_contents(&self) -> impl Iterator<Item = (u64, &Bytes)> {
        self.contents.iter().map(|(number, bytes)| (*number, bytes))
    }

    /// How many bytes they are.
    pub(crate) fn contents_len(&self) -> u64 {
        self.contents_len
    }

    /// The log does not have these contents any more, or nothing needs them.
    pub(crate) fn forget_contents(&mut self, number: u64) {
        if let Some(bytes) = self.contents.remove(&number) {
            self.contents_len -= bytes.len() as u64;
        }
    }

    /// This may be a copy of what it was, which does not know what that has made with its ids
    /// since; or the home is, and may give its own again.
    fn begin_anew(&mut self) {
        (self.stamp, self.ids, self.newest) = (None, (0, 0), 0);
        self.nodes.values_mut().for_each(|node| (node.is_stale, node.names_of) = (true, None));
    }

    /// The home has named a file by this id.
    fn hears_of(&mut self, id: FileId) {
        self.newest = self.newest.max(id.raw());
    }

    /// A file of the cache has this number.
    fn uses(&mut self, data: u64) -> Option<()> {
        self.next_data = self.next_data.max(data);
        (data <= NUMBER_MAX).then_some(())
    }

    fn know(&mut self, facts: Facts) {
        let id = facts.id;
        self.hears_of(id);
        // What the home has by this id is not what programs may have open by it.
        self.aliases.remove(&id);
        if self.is_own(id) {
            return;
        }
        let changes_names = self.log.changed_in(id).next().is_some();
        let node = self.nodes.get_or_insert_with(id, || Node::new(facts.clone()));
        if node.facts.contents != facts.contents {
            // Other bytes; what there is of the old ones is of no use.
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
            // What lost its last name here was given another by others.
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
            // The home has not heard of it, or has it no more: nobody else has put anything into
            // it.
            (node.is_stale, node.names_of) = (false, Some(node.facts.contents));
        }
        if !self.is_own(file)
            && !self.log.names(file)
            && let Some(node) = self.nodes.remove(&file)
        {
            self.unused.extend([node.data, node.base]);
        }
    }

    /// Bytes that should be in the cache are not there: the home does not hear of what they were
    /// changed to.
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
            // The home has nothing of it, either.
            (node.facts.size, node.facts.blocks) = (0, 0);
        }
        let (place, outcome) = (self.place_of(file), Outcome::Refused(FsError::Io));
        self.note(Trouble {
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

    /// Something was done here.
    fn did(&mut self, mut operation: Operation, when: Time) -> Option<()> {
        operation.rename_files(|file| self.real(file));
        self.act(&operation, when)?;
        self.log_again(operation, when);
        self.forget_done();
        Some(())
    }

    fn forget_done(&mut self) {
        /// The optimizer takes out operations that were there before, too: when they were done is
        /// forgotten now and then.
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

    /// Forgets a file that has no name, and about which the home need not hear anything. True if it
    /// was there.
    pub fn forget_nameless(&mut self, file: FileId) -> bool {
        let file = self.real(file);
        let nameless = self.nodes.get(&file).is_some_and(|node| node.facts.nlink == 0) && !self.log.names(file);
        let Some(node) = self.nodes.get(&file).filter(|_| nameless) else { return false };
        self.unused.extend([node.data, node.base]);
        self.nodes.remove(&file).is_some()
    }

    /// Records a trouble.
    pub(crate) fn note(&mut self, trouble: Trouble) {
        self.next_trouble += 1;
        self.troubles.insert(self.next_trouble, trouble);
    }

    /// Records a trouble with what was to be done.
    pub(crate) fn note_meant(&mut self, trouble: Trouble, operation: Operation) {
        self.note(trouble);
        self.meant.insert(self.next_trouble, operation);
    }

    /// Logs an operation again, as if it was done now. Gives the number that it has, if it did not
    /// become part of another.
    pub(crate) fn log_again(&mut self, operation: Operation, when: Time) -> u64 {
        let seq = self.log.append(operation);
        if self.log.has(seq) {
            self.done.insert(seq, when);
        }
        seq
    }

    /// Stores that have another number since they were logged again, and are what they were.
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

    /// Puts a node in place of what was known.
    pub(crate) fn put(&mut self, id: FileId, node: Node) {
        self.nodes.insert(id, node);
    }

    /// Uses up an id.
    pub(crate) fn take_id(&mut self) -> Option<FileId> {
        let id = self.next_id()?;
        self.ids = (id.raw() + 1, self.ids.1 - 1);
        Some(id)
    }
}
