//! What a client that is over had not made durable: the changes that are lost with it, or may be.
//!
//! A client is over when others have declared it dead. By then the end of its log is sealed: what
//! it had cut counts up to some segment, and nothing after that. [`Client::unsynced`] lists the
//! changes after the last segment that the client knows to be durable, with the contents of changed
//! files. Once the log was opened again, [`Unsynced::settle`] leaves out those that count after
//! all.
//!
//! Access times are not listed, nor are blocks that only the cleaner has moved.

use crate::Client;
use crate::core::Core;
use crate::inode::{BlockPiece, Inode};
use crate::state::{ClientState, NameChange};
use bytes::Bytes;
use manager::{Delta, InodeRecord};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use types::{BlockAddr, FileId, Kind};

/// A file up to this size in bytes is listed with all of its contents, a longer one with the parts
/// that have changed.
const WHOLE_LEN_MAX: u64 = 64 << 20;
/// Bytes of whole files in one list, at most. Changed parts are always listed.
const WHOLE_TOTAL_MAX: u64 = 256 << 20;
/// Directories above a file, at most: more cannot be, unless something is wrong.
const DEPTH_MAX: usize = 4096;

/// Where a file was for the client.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnsyncedPath {
    /// The directory where the path begins: the root, unless the client had no directory above this
    /// one in memory any more.
    pub from: FileId,
    /// The path below that directory; empty for the directory itself.
    pub path: Vec<u8>,
}

/// Bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsyncedPiece {
    /// Where in the file they are.
    pub offset: u64,
    /// The bytes, or where in the log they are.
    pub bytes: Result<Bytes, BlockAddr>,
}

impl UnsyncedPiece {
    /// The number of bytes.
    pub fn len(&self) -> u64 {
        match &self.bytes {
            Ok(bytes) => bytes.len() as u64,
            Err(addr) => addr.len.into(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Contents of a file as they were for the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsyncedContents {
    /// Seq of the segment that their newest change went into, or was to go into.
    pub seq: u64,
    /// These are all of the file's bytes; all others are zeroes. Otherwise only those that have
    /// changed.
    pub is_whole: bool,
    /// The bytes, by offset.
    pub pieces: Vec<UnsyncedPiece>,
    /// Unless they are whole: stretches that became zeroes before these bytes were written.
    pub zeroes: Vec<Range<u64>>,
}

/// A file whose contents or attributes were changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsyncedFile {
    /// Where it was; `None` if the client did not know a name of it.
    pub path: Option<UnsyncedPath>,
    /// Its attributes.
    pub inode: InodeRecord,
    /// Its extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Bytes>,
    /// Seq of the segment that the newest change of its attributes went into, or was to go into; 0
    /// if they have not changed.
    pub attributes_seq: u64,
    /// Its contents, if these have changed.
    pub contents: Option<UnsyncedContents>,
}

impl UnsyncedFile {
    /// Seq of the segment that its newest change went into, or was to go into.
    pub fn seq(&self) -> u64 {
        self.contents.as_ref().map_or(0, |contents| contents.seq).max(self.attributes_seq)
    }
}

/// A change of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsyncedName {
    /// The name, below the directory that it is in.
    pub path: UnsyncedPath,
    /// Seq of the segment that the change went into, or was to go into.
    pub seq: u64,
    /// The file that had the name before.
    pub before: Option<FileId>,
    /// The file that it was given; `None` if it was removed.
    pub to: Option<(FileId, Kind)>,
    /// That file's attributes, if they are in memory.
    pub inode: Option<InodeRecord>,
    /// The target, if that is a symbolic link.
    pub target: Option<Bytes>,
}

/// What a client that is over had not made durable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unsynced {
    /// Seq of the last segment that was on its way to the stores. What was to go into a later one
    /// is lost; up to there it is not known yet.
    pub last_cut: u64,
    /// Files.
    pub files: Vec<UnsyncedFile>,
    /// Changes of names, in order.
    pub names: Vec<UnsyncedName>,
}

impl Unsynced {
    /// The number of files and of changes of names.
    pub fn count(&self) -> usize {
        self.files.len() + self.names.len()
    }

    /// True if nothing was changed that may be lost.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The last change of each name that has another file than before the first. The file before
    /// is the one before the first.
    pub fn net_names(&self) -> Vec<UnsyncedName> {
        let mut net: BTreeMap<&UnsyncedPath, UnsyncedName> = BTreeMap::new();
        for name in &self.names {
            let before = net.get(&name.path).map_or(name.before, |earlier| earlier.before);
            net.insert(&name.path, UnsyncedName { before, ..name.clone() });
        }
        net.into_values().filter(|name| name.before != name.to.map(|(file, _)| file)).collect()
    }

    /// Leaves out what counts after all: the log has all segments up to `through`, and none of that
    /// client after it.
    pub fn settle(&mut self, through: u64) {
        for file in &mut self.files {
            file.contents.take_if(|contents| contents.seq <= through);
        }
        self.files.retain(|file| file.seq() > through);
        self.names.retain(|name| name.seq > through);
        if self.net_names().is_empty() {
            // All names are as they were.
            self.names.clear();
        }
    }
}

impl Client {
    /// What the client has changed that it does not know to be durable, in one instant. From then
    /// on it changes nothing, and cuts no segment: the client is over.
    pub fn unsynced(&self) -> Unsynced {
        let core = &*self.core;
        let mut state = core.state.lock();
        state.is_sealed = true;
        let committed = core.log.committed_seq().unwrap_or(0);
        let changed = state.changed_after(committed);
        let paths = Paths::of(&state, &changed);
        let mut room = WHOLE_TOTAL_MAX;
        let files = changed.iter().filter_map(|id| {
            let inode = state.inodes.get(id)?;
            let has_contents = inode.contents_changed > committed && inode.record.kind == Kind::File;
            let zeroes = || state.unmapped_after(committed, inode);
            let has_attributes = inode.attributes_changed > committed;
            Some(UnsyncedFile {
                path: paths.of_file(*id),
                inode: inode.record,
                xattrs: inode.xattrs.clone(),
                attributes_seq: if has_attributes { inode.attributes_changed } else { 0 },
                contents: has_contents.then(|| core.contents(inode, committed, zeroes, &mut room)),
            })
        });
        let files = files.collect();
        let inode = |change: &NameChange| change.to.and_then(|(id, _)| state.inodes.get(&id));
        let named = |change: &&NameChange| change.seq > committed;
        let names = state.name_changes.iter().filter(named).map(|change| UnsyncedName {
            path: paths.below(change.directory, &change.name),
            seq: change.seq,
            before: change.before,
            to: change.to,
            inode: inode(change).map(|inode| inode.record),
            target: inode(change).and_then(|inode| inode.target.clone()),
        });
        let names = names.collect();
        Unsynced { last_cut: state.last_cut, files, names }
    }
}

impl ClientState {
    /// Files with names whose contents or attributes were changed after this cut.
    fn changed_after(&self, seq: u64) -> BTreeSet<FileId> {
        let cut = self.unapplied.range(seq + 1..).flat_map(|(_, cut)| cut.deltas.iter().map(Delta::file));
        let all: BTreeSet<FileId> = self.dirty_list.iter().copied().chain(cut).collect();
        let is_changed = |id: &FileId| {
            let inode = self.inodes.get(id);
            inode.is_some_and(|inode| {
                inode.record.nlink > 0 && inode.contents_changed.max(inode.attributes_changed) > seq
            })
        };
        all.into_iter().filter(is_changed).collect()
    }

    /// Blocks of a file that were made holes after this cut.
    fn unmapped_after(&self, seq: u64, inode: &Inode) -> Vec<(u64, u64)> {
        let cut = self.unapplied.range(seq + 1..).flat_map(|(_, cut)| cut.deltas.iter());
        let cut = cut.filter_map(|delta| match delta {
            Delta::Unmap { file, first, end } if *file == inode.record.id => Some((*first, *end)),
            _ => None,
        });
        cut.chain(inode.pending.unmaps.iter().copied()).collect()
    }
}

impl Core {
    /// The contents of a file whose map is known: all of them if they fit into `room`, which they
    /// take. `unmapped` are the blocks that were made holes.
    fn contents(
        &self,
        inode: &Inode,
        committed: u64,
        unmapped: impl FnOnce() -> Vec<(u64, u64)>,
        room: &mut u64,
    ) -> UnsyncedContents {
        let (size, block_size) = (inode.record.size, u64::from(self.config.block_size));
        let (mut pieces, mut zeroes) = (Vec::new(), Vec::new());
        let is_whole = size <= WHOLE_LEN_MAX.min(*room);
        if is_whole {
            *room -= size;
            self.pieces(inode, 0, size, &mut pieces);
        } else {
            let is_new = |addr: BlockAddr| addr.segment.log == self.log.id() && addr.segment.seq > committed;
            let cut = inode.map.iter().filter(|extent| is_new(extent.addr)).flat_map(|e| e.first..e.end());
            let changed: BTreeSet<u64> = cut.chain(inode.dirty.keys().copied()).collect();
            for block in changed {
                let offset = block * block_size;
                let len = block_size.min(size.saturating_sub(offset));
                self.pieces(inode, offset, len, &mut pieces);
            }
            let bytes = |block: u64| block.saturating_mul(block_size).min(size);
            let stretches = unmapped().into_iter().map(|(first, end)| bytes(first)..bytes(end));
            zeroes = stretches.filter(|stretch| !stretch.is_empty()).collect();
        }
        UnsyncedContents { seq: inode.contents_changed, is_whole, pieces, zeroes }
    }

    /// The bytes of a stretch of a file, without holes.
    fn pieces(&self, inode: &Inode, mut offset: u64, len: u64, out: &mut Vec<UnsyncedPiece>) {
        for piece in inode.plan_read(offset, len, self.config.block_size) {
            match piece {
                BlockPiece::Hole(len) => offset += len as u64,
                BlockPiece::Bytes(bytes) => push(out, &mut offset, Ok(bytes)),
                BlockPiece::Log(addr) => {
                    let mut found = Vec::new();
                    match self.cache.gather(addr.segment, addr.offset..addr.offset + addr.len, &mut found) {
                        Ok(()) => found.into_iter().for_each(|bytes| push(out, &mut offset, Ok(bytes))),
                        Err(_) => push(out, &mut offset, Err(addr)),
                    }
                }
            }
        }
    }
}

fn push(out: &mut Vec<UnsyncedPiece>, offset: &mut u64, bytes: Result<Bytes, BlockAddr>) {
    let piece = UnsyncedPiece { offset: *offset, bytes };
    *offset += piece.len();
    out.push(piece);
}

/// The names that the client has in memory of directories and of some files.
struct Paths<'s>(HashMap<FileId, (FileId, &'s [u8])>);

impl<'s> Paths<'s> {
    fn of(state: &'s ClientState, files: &BTreeSet<FileId>) -> Paths<'s> {
        let mut names = HashMap::new();
        for (id, inode) in &state.inodes {
            for entry in inode.directory.iter().flat_map(|directory| directory.entries()) {
                if entry.kind == Kind::Directory || files.contains(&entry.id) {
                    names.insert(entry.id, (*id, &*entry.name));
                }
            }
        }
        // Directories that were removed, or have moved.
        for change in &state.name_changes {
            if let Some(before) = change.before {
                names.entry(before).or_insert((change.directory, &*change.name));
            }
        }
        Paths(names)
    }

    /// The path of a file; `None` if no name of it is in memory.
    fn of_file(&self, file: FileId) -> Option<UnsyncedPath> {
        match self.0.get(&file) {
            Some((directory, name)) => Some(self.below(*directory, name)),
            None => (file == FileId::ROOT).then(|| UnsyncedPath { from: file, path: Vec::new() }),
        }
    }

    /// The path of a name in a directory.
    fn below(&self, directory: FileId, name: &[u8]) -> UnsyncedPath {
        let (mut from, mut parts) = (directory, vec![name]);
        while let Some((above, name)) = self.0.get(&from).filter(|_| parts.len() < DEPTH_MAX) {
            parts.push(name);
            from = *above;
        }
        parts.reverse();
        UnsyncedPath { from, path: parts.join(&b'/') }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str, seq: u64, before: Option<u64>, to: Option<u64>) -> UnsyncedName {
        UnsyncedName {
            path: UnsyncedPath { from: FileId::ROOT, path: path.into() },
            seq,
            before: before.map(FileId::new),
            to: to.map(|to| (FileId::new(to), Kind::File)),
            inode: None,
            target: None,
        }
    }

    fn net(unsynced: &Unsynced) -> Vec<(String, bool)> {
        let text = |name: &UnsyncedName| String::from_utf8(name.path.path.clone()).unwrap();
        unsynced.net_names().iter().map(|name| (text(name), name.to.is_some())).collect()
    }

    /// Once, names that were as before in the end were left out before it was known which changes
    /// count: a rename that counts, whose way back does not, was then said by nothing.
    #[test]
    fn regression_names_are_summed_up_over_the_changes_that_are_lost() {
        let there = [name("a", 9, Some(5), None), name("b", 9, None, Some(5))];
        let back = [name("b", 11, Some(5), None), name("a", 11, None, Some(5))];
        let all = Unsynced { names: there.into_iter().chain(back).collect(), ..Default::default() };
        assert!(!all.is_empty() && net(&all).is_empty());
        let settled = |through| {
            let mut settled = all.clone();
            settled.settle(through);
            settled
        };
        assert!(settled(8).is_empty() && settled(11).is_empty());
        for through in [9, 10] {
            assert_eq!(net(&settled(through)), [("a".to_string(), true), ("b".to_string(), false)]);
        }
    }
}
