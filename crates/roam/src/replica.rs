//! What a client that roams knows: its home's files as far as they are cached, what it has done since, and what became of it (design, sections 4.1, 4.4 and
//! 4.6). Pure; every lasting change is a [`Record`], so that the same state comes back after a crash.
//!
//! Names are kept as the home has them, with what was done here on top ([`OpLog::at`]): answers of the home and changes by others go below,
//! and nothing has to be undone. Attributes are those that users see. What this client has changed is not refreshed before the home has
//! heard of it.
//!
//! What was made here may turn out to be there already, as another file. Everything means that from then on, and
//! whoever still asks by the id from before is answered of it ([`Replica::real`]).
//!
//! `node`: one file; `answers`: what the home answers to operations.
//!
//! Invariants: what is neither stale nor changed here is as the home had it at [`Replica::stamp`]; nothing that was changed here is forgotten
//! before the home has answered; what an id means instead has no other meaning itself.

mod answers;
mod node;

pub use node::Node;

use crate::conflict::{Case, Deed, Trouble};
use crate::oplog::OpLog;
use roam_wire::codec::Wire;
use roam_wire::journal::Stamp;
use roam_wire::message::{Applied, Facts, NamedFacts, Outcome, User};
use roam_wire::operation::{Attributes, Change, Made, Operation, Place};
use roam_wire::ranges::Ranges;
use roam_wire::{wire_enum, wire_struct};
use std::collections::{BTreeMap, BTreeSet};
use types::codec::{DecodeError, Reader};
use types::{FileId, FsError, Kind, Time};
use vfs::acl;
use vfs::perm::{self, XattrEffect};

/// Version of what is kept. The first did not know what attributes were to be in troubles.
const VERSION: u16 = 2;

/// Files of the cache, and troubles, are numbered up to here, which leaves room for more.
const NUMBER_MAX: u64 = 1 << 62;

/// A node, as it is kept.
struct Kept {
    facts: Facts,
    seen: u64,
    is_stale: bool,
    names: Option<BTreeMap<Vec<u8>, FileId>>,
    names_of: Option<u64>,
    parent: FileId,
    data: u64,
    kept: Ranges,
    is_dirty: bool,
    base: u64,
}
wire_struct!(Kept { facts, seen, is_stale, names, names_of, parent, data, kept, is_dirty, base });

/// Where a client belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The volume's root directory.
    pub root: FileId,
    /// As whom the home does what this client asks.
    pub user: User,
    /// Which log the numbers of operations are of.
    pub incarnation: u64,
}
wire_struct!(Membership { root, user, incarnation });

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
    /// A trouble was seen to.
    Settled(u64),
    /// What was done about a trouble was taken back.
    Reopened {
        /// The number that it had.
        number: u64,
        /// The trouble.
        case: Box<Case>,
    },
    /// A file's bytes were not changed since they were last logged.
    Clean(FileId),
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
    10 => Dirty { file, data, base },
    11 => Did { operation, when },
    12 => Pinned(through),
    13 => Answered(applied),
    14 => Ids(first, count),
    15 => Settled(number),
    16 => Clean(file),
    17 => Hoarded { path, priority },
    18 => Lost(file),
    19 => Reopened { number, case },
});

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
    nodes: BTreeMap<FileId, Node>,
    log: OpLog,
    /// When operations were done that wait.
    done: BTreeMap<u64, Time>,
    /// The last operation that the home has answered.
    answered: u64,
    /// Ids that were not used yet.
    ids: (u64, u64),
    next_data: u64,
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

    /// What is at a path from the root, as far as that is known.
    pub fn at_path(&self, path: &[u8]) -> Child {
        let Some(membership) = &self.membership else { return Child::Unknown };
        let mut at = membership.root;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match self.child(&(at, name.to_vec())) {
                Child::Is(id) => at = id,
                other => return other,
            }
        }
        Child::Is(at)
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
        let nodes = self.nodes.values().flat_map(|node| [node.data, node.base]);
        let troubles = self.troubles.values().flat_map(|trouble| [trouble.base, trouble.kept]);
        nodes.chain(troubles).filter(|number| *number > 0)
    }

    /// True if what is known of a file is this client's own, before the home has heard of it.
    pub fn is_own(&self, id: FileId) -> bool {
        self.log.is_about(self.real(id)) || self.node(id).is_ok_and(|node| node.is_dirty)
    }

    /// The operation that made a file here, if the home has not answered it.
    pub(crate) fn made_at(&self, file: FileId) -> Option<u64> {
        self.log.naming(file).find(|(_, operation)| makes(operation, file)).map(|(seq, _)| seq)
    }

    /// True if others have changed the file, and nobody has asked the home since.
    pub fn is_stale(&self, id: FileId) -> bool {
        self.node(id).is_ok_and(|node| node.is_stale) && !self.is_own(id)
    }

    /// True if what is known of a directory's names is as the home has them, but for what was done here.
    pub fn has_names(&self, dir: FileId) -> bool {
        let known = self.node(dir);
        known.is_ok_and(|node| node.names.is_some() && node.names_of == Some(node.facts.contents) && !node.is_stale)
    }

    /// What a name means.
    pub fn child(&self, place: &Place) -> Child {
        if let Some(here) = self.log.at(place) {
            return here.map_or(Child::Nothing, Child::Is);
        }
        let names = self.nodes.get(&place.0).and_then(|dir| dir.names.as_ref());
        match names.map(|names| names.get(&place.1)) {
            Some(Some(id)) => Child::Is(*id),
            Some(None) => Child::Nothing,
            None => Child::Unknown,
        }
    }

    /// What is in a directory; `None` if only the home knows.
    pub fn list(&self, dir: FileId) -> Option<BTreeMap<Vec<u8>, FileId>> {
        let dir = self.real(dir);
        let mut names = self.nodes.get(&dir)?.names.clone()?;
        for (name, here) in self.log.changed_in(dir) {
            match here {
                Some(id) => names.insert(name.to_vec(), id),
                None => names.remove(name),
            };
        }
        Some(names)
    }

    /// Makes a lasting change. `None` if it makes no sense, which only a damaged log can bring about.
    pub fn apply(&mut self, record: Record) -> Option<()> {
        match record {
            Record::Joined(membership) => {
                self.membership = Some(membership);
                self.answered = 0;
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
                let node = self.nodes.get_mut(&file)?;
                if node.data != data {
                    (node.data, node.have) = (data, Ranges::default());
                }
                node.have.add_all(&have);
                node.kept = have;
            }
            Record::Dropped(file) => {
                let node = self.nodes.get_mut(&file)?;
                self.unused.push(node.data);
                (node.data, node.have, node.kept) = (0, Ranges::default(), Ranges::default());
            }
            Record::Lost(file) => self.lost(file)?,
            Record::Dirty { file, data, base } => {
                self.uses(data)?;
                self.uses(base)?;
                let node = self.nodes.get_mut(&file)?;
                if node.data != data {
                    self.unused.push(node.data);
                    (node.data, node.have, node.kept) = (data, Ranges::default(), Ranges::default());
                }
                node.is_dirty = true;
                // What the home has is what was there before the first change since it heard of one.
                let unused = if node.base == 0 { std::mem::replace(&mut node.base, base) } else { base };
                self.unused.push(unused);
            }
            Record::Hoarded { path, priority: Some(priority) } => {
                self.hoard.insert(path, priority);
            }
            Record::Hoarded { path, priority: None } => {
                self.hoard.remove(&path)?;
            }
            Record::Clean(file) => self.nodes.get_mut(&file)?.is_dirty = false,
            Record::Did { operation, when } => self.did(operation, when)?,
            Record::Pinned(through) => self.log.pin(through),
            Record::Answered(applied) => self.answered(applied),
            Record::Ids(first, count) => {
                first.raw().checked_add(count)?;
                self.ids = (first.raw(), count);
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

    /// A file of the cache has this number.
    fn uses(&mut self, data: u64) -> Option<()> {
        self.next_data = self.next_data.max(data);
        (data <= NUMBER_MAX).then_some(())
    }

    fn know(&mut self, facts: Facts) {
        let id = facts.id;
        if self.is_own(id) {
            return;
        }
        let changes_names = self.log.changed_in(id).next().is_some();
        let node = self.nodes.entry(id).or_insert_with(|| Node::new(facts.clone()));
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
        let node = self.nodes.entry(id).or_insert_with(|| Node::new(dir.clone()));
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
            // The home has not heard of it, or has it no more: nobody else has put anything into it.
            (node.is_stale, node.names_of) = (false, Some(node.facts.contents));
        }
        if !self.is_own(file)
            && !self.log.names(file)
            && let Some(node) = self.nodes.remove(&file)
        {
            self.unused.extend([node.data, node.base]);
        }
    }

    /// Bytes that should be in the cache are not there: the home does not hear of what they were changed to.
    fn lost(&mut self, file: FileId) -> Option<()> {
        let is_store = |operation: &Operation| matches!(operation, Operation::Store { .. });
        let stores: Vec<u64> = self.log.naming(file).filter(|(_, o)| is_store(o)).map(|(seq, _)| seq).collect();
        let when = stores.last().and_then(|seq| self.done_at(*seq)).unwrap_or_default();
        stores.iter().for_each(|seq| drop(self.log.remove(*seq)));
        let is_made_here = self.made_at(file).is_some();
        let node = self.nodes.get_mut(&file)?;
        self.unused.push(node.data);
        (node.data, node.have, node.kept) = (0, Ranges::default(), Ranges::default());
        let was_own = std::mem::take(&mut node.is_dirty) || !stores.is_empty();
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
        self.note(Trouble { deed: Deed::Lost, place, file, outcome, when, mine: None, base, kept: 0 });
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
        /// The optimizer takes out operations that were there before, too: when they were done is forgotten now and then.
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

    /// What an operation does to what users see.
    fn act(&mut self, operation: &Operation, when: Time) -> Option<()> {
        match operation {
            Operation::Make { at, file, made } => self.make(at, *file, made, when)?,
            Operation::Link { file, at } => {
                self.nodes.get_mut(&at.0)?.modified(when);
                let node = self.nodes.get_mut(file)?;
                node.facts.nlink = node.facts.nlink.saturating_add(1);
                node.facts.ctime = when;
            }
            Operation::Remove { at, file, .. } => {
                self.nodes.get_mut(&at.0)?.modified(when);
                self.lose_link(*file, at.0, when)?;
            }
            Operation::Rename { file, from, to, replaced } => {
                self.nodes.get_mut(&from.0)?.modified(when);
                self.nodes.get_mut(&to.0)?.modified(when);
                self.moved(*file, from.0, to.0, when)?;
                if let Some((gone, _)) = replaced {
                    self.lose_link(*gone, to.0, when)?;
                }
            }
            Operation::Exchange { file, from, other, to } => {
                self.nodes.get_mut(&from.0)?.modified(when);
                self.nodes.get_mut(&to.0)?.modified(when);
                self.moved(*file, from.0, to.0, when)?;
                self.moved(*other, to.0, from.0, when)?;
            }
            Operation::Set { file, attributes } => self.set(*file, attributes, when)?,
            Operation::SetXattr { file, name, value } => {
                let node = self.nodes.get_mut(file)?;
                let set = value.as_ref().map(|v| perm::set_xattr(&vfs::Cred::ROOT, &node.subject(), name, v));
                match set {
                    Some(Ok((effect, mode))) => {
                        node.facts.mode = mode;
                        let value = match effect {
                            XattrEffect::Store(value) => Some(value),
                            XattrEffect::Remove => None,
                        };
                        node.set_xattr(name, value);
                    }
                    Some(Err(_)) => return None,
                    None => node.set_xattr(name, None),
                }
                node.facts.ctime = when;
            }
            Operation::Store { file, change } => {
                let node = self.nodes.get_mut(file)?;
                node.have.cut(change.cut);
                // Beyond where it was cut, it is zeroes, but for what was written.
                node.have.add(change.cut..change.size);
                node.have.add_all(&change.ranges);
                node.kept = node.have.clone();
                node.is_dirty = false;
                node.facts.size = change.size;
                node.facts.blocks = change.size.div_ceil(512);
                node.facts.mtime = change.mtime;
                node.facts.ctime = node.facts.ctime.max(change.mtime);
            }
        }
        Some(())
    }

    fn make(&mut self, at: &Place, file: FileId, made: &Made, when: Time) -> Option<()> {
        let dir = self.nodes.get_mut(&at.0)?;
        dir.modified(when);
        let is_dir = made.kind == Kind::Directory;
        dir.facts.nlink = dir.facts.nlink.saturating_add(u32::from(is_dir));
        let mut xattrs = Vec::new();
        if let Some(acl) = dir.xattr(acl::XATTR_DEFAULT)
            && made.kind != Kind::Symlink
            && let Ok((_, access, default)) = acl::inherit(acl, made.mode)
        {
            xattrs.extend(access.map(|acl| (acl::XATTR_ACCESS.to_vec(), acl)));
            xattrs.extend(default.filter(|_| is_dir).map(|acl| (acl::XATTR_DEFAULT.to_vec(), acl)));
        }
        let facts = Facts {
            id: file,
            version: 0,
            contents: 0,
            kind: made.kind,
            mode: made.mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: made.uid,
            gid: made.gid,
            rdev: made.rdev,
            size: made.target.len() as u64,
            blocks: 0,
            atime: when,
            mtime: when,
            ctime: when,
            crtime: when,
            target: made.target.clone(),
            xattrs,
        };
        let mut node = Node::new(facts);
        node.parent = at.0;
        (node.names, node.names_of) = (is_dir.then(BTreeMap::new), is_dir.then_some(0));
        node.is_dirty = made.kind == Kind::File;
        self.nodes.insert(file, node);
        if (self.ids.0..self.ids.0.saturating_add(self.ids.1)).contains(&file.raw()) {
            let used = file.raw() - self.ids.0 + 1;
            self.ids = (self.ids.0 + used, self.ids.1 - used);
        }
        Some(())
    }

    fn lose_link(&mut self, file: FileId, from: FileId, when: Time) -> Option<()> {
        let node = self.nodes.get_mut(&file)?;
        node.facts.ctime = when;
        if node.facts.kind == Kind::Directory {
            node.facts.nlink = 0;
            let dir = self.nodes.get_mut(&from)?;
            dir.facts.nlink = dir.facts.nlink.saturating_sub(1);
        } else {
            node.facts.nlink = node.facts.nlink.saturating_sub(1);
        }
        Some(())
    }

    fn moved(&mut self, file: FileId, from: FileId, to: FileId, when: Time) -> Option<()> {
        let node = self.nodes.get_mut(&file)?;
        node.facts.ctime = when;
        node.parent = to;
        if node.facts.kind == Kind::Directory {
            let dir = self.nodes.get_mut(&from)?;
            dir.facts.nlink = dir.facts.nlink.saturating_sub(1);
            let dir = self.nodes.get_mut(&to)?;
            dir.facts.nlink = dir.facts.nlink.saturating_add(1);
        }
        Some(())
    }

    fn set(&mut self, file: FileId, attributes: &Attributes, when: Time) -> Option<()> {
        let node = self.nodes.get_mut(&file)?;
        if let Some(mode) = attributes.mode
            && let Some(acl) = node.xattr(acl::XATTR_ACCESS)
            && let Ok(acl) = acl::chmod(acl, mode)
        {
            node.set_xattr(acl::XATTR_ACCESS, Some(acl));
        }
        let facts = &mut node.facts;
        facts.mode = attributes.mode.unwrap_or(facts.mode);
        facts.uid = attributes.uid.unwrap_or(facts.uid);
        facts.gid = attributes.gid.unwrap_or(facts.gid);
        facts.atime = attributes.atime.unwrap_or(facts.atime);
        facts.mtime = attributes.mtime.unwrap_or(facts.mtime);
        facts.ctime = when;
        Some(())
    }

    /// Forgets a file that has no name, and about which the home need not hear anything. True if it was there.
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

    /// Logs an operation again, as if it was done now. Gives the number that it has, if it did not become part of another.
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

    /// A place that leads to a file, if one is known.
    pub fn place_of(&self, file: FileId) -> Option<Place> {
        let file = self.real(file);
        let in_dir = |dir: FileId| {
            let at_home = self.nodes.get(&dir).and_then(|dir| dir.names.as_ref());
            let at_home = at_home.into_iter().flatten().filter(|(_, id)| **id == file).map(|(name, _)| name.clone());
            let here = self.log.changed_in(dir).filter(|(_, id)| *id == Some(file)).map(|(name, _)| name.to_vec());
            let mut places = here.chain(at_home).map(|name| (dir, name));
            places.find(|place| self.child(place) == Child::Is(file))
        };
        let likely = self.nodes.get(&file).and_then(|node| in_dir(node.parent));
        likely.or_else(|| self.nodes.keys().find_map(|dir| in_dir(*dir)))
    }

    /// A place that leads to a file, one that the home knows too if there is such a one.
    pub(crate) fn old_place_of(&self, file: FileId) -> Option<Place> {
        let file = self.real(file);
        let parent = self.nodes.get(&file)?.parent;
        let names = self.nodes.get(&parent).and_then(|dir| dir.names.as_ref());
        let known = names.into_iter().flatten().filter(|(_, id)| **id == file);
        let mut places = known.map(|(name, _)| (parent, name.clone()));
        places.find(|place| self.child(place) == Child::Is(file)).or_else(|| self.place_of(file))
    }

    /// A path that leads to a file from the root, without a slash at its beginning.
    pub fn path_of(&self, file: FileId) -> Option<Vec<u8>> {
        self.path_by(file, |file| self.place_of(file))
    }

    /// The path of a file by places that lead to files.
    fn path_by(&self, file: FileId, place_of: impl Fn(FileId) -> Option<Place>) -> Option<Vec<u8>> {
        let root = self.membership.as_ref()?.root;
        let (mut names, mut at) = (Vec::new(), file);
        while at != root {
            let (parent, name) = place_of(at)?;
            names.push(name);
            at = parent;
            if names.len() > self.nodes.len() {
                return None;
            }
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// The path of a name, whether there is anything or not. In a directory that was removed here, it is where it was.
    pub fn path_at(&self, (dir, name): &Place) -> Option<Vec<u8>> {
        let removed_from = |file| match self.log.naming(file).last()? {
            (_, Operation::Remove { at, file: gone, .. }) if *gone == file => Some(at.clone()),
            _ => None,
        };
        let dir = self.path_by(*dir, |dir| self.place_of(dir).or_else(|| removed_from(dir)))?;
        Some(if dir.is_empty() { name.clone() } else { [&dir[..], b"/", name].concat() })
    }
}

impl Wire for Replica {
    fn encode(&self, out: &mut Vec<u8>) {
        VERSION.encode(out);
        self.membership.encode(out);
        self.stamp.encode(out);
        (self.nodes.len() as u64).encode(out);
        for node in self.nodes.values() {
            let Node { facts, seen, is_stale, names, names_of, parent, data, kept, is_dirty, base, .. } = node.clone();
            Kept { facts, seen, is_stale, names, names_of, parent, data, kept, is_dirty, base }.encode(out);
        }
        self.log.encode(out);
        self.done.encode(out);
        self.answered.encode(out);
        self.ids.encode(out);
        self.next_data.encode(out);
        self.hoard.encode(out);
        self.troubles.encode(out);
        self.next_trouble.encode(out);
        self.aliases.encode(out);
        self.meant.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = u16::decode(r)?;
        if !(1..=VERSION).contains(&version) {
            return Err(DecodeError::Version { what: "the cache", found: version, known: VERSION });
        }
        let (membership, stamp) = (Wire::decode(r)?, Wire::decode(r)?);
        let (mut nodes, mut last) = (BTreeMap::new(), None);
        for _ in 0..u64::decode(r)? {
            let Kept { facts, seen, is_stale, names, names_of, parent, data, kept, is_dirty, base } = Wire::decode(r)?;
            let have = kept.clone();
            let id = facts.id;
            if last.replace(id) >= Some(id) {
                return Err(DecodeError::Invalid("order of files"));
            }
            let node =
                Node { seen, is_stale, names, names_of, parent, data, have, kept, is_dirty, base, ..Node::new(facts) };
            nodes.insert(id, node);
        }
        let log = OpLog::decode(r)?;
        nodes.values_mut().for_each(|node| node.listed_at = log.pinned());
        let replica = Replica {
            membership,
            stamp,
            nodes,
            log,
            done: Wire::decode(r)?,
            answered: Wire::decode(r)?,
            ids: Wire::decode(r)?,
            next_data: Wire::decode(r)?,
            hoard: Wire::decode(r)?,
            unused: Vec::new(),
            logged_again: Vec::new(),
            troubles: Wire::decode(r)?,
            next_trouble: Wire::decode(r)?,
            aliases: Wire::decode(r)?,
            meant: if version == 1 { BTreeMap::new() } else { Wire::decode(r)? },
        };
        if replica.aliases.values().any(|real| replica.aliases.contains_key(real)) {
            return Err(DecodeError::Invalid("id that means another file"));
        }
        let (first, count) = replica.ids;
        if first.checked_add(count).is_none() || replica.next_data.max(replica.next_trouble) > NUMBER_MAX {
            return Err(DecodeError::Invalid("numbers of a cache"));
        }
        Ok(replica)
    }
}
