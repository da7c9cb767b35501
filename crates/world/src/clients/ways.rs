//! Where kernels may think that directories lie.

use super::call::{Call, Seen, at_once, perform};
use std::collections::{BTreeMap, BTreeSet};
use types::{FileId, Kind};
use vfs::mem::MemFs;

/// The directories in which each directory has ever been.
#[derive(Clone, Default)]
pub(super) struct Ways {
    parents: BTreeMap<FileId, BTreeSet<FileId>>,
}

impl Ways {
    /// Learns where the directories are that this call has made or moved.
    pub(super) fn learn(&mut self, fs: &MemFs, call: &Call) {
        if matches!(call, Call::MakeDirectory { .. } | Call::Rename { .. }) {
            for (dir, id) in named_directories(fs, call) {
                self.parents.entry(id).or_default().insert(dir);
            }
        }
    }

    /// True if this call may fail with ELOOP: it looks up a directory, and the kernel may think
    /// that the place of the lookup lies within that directory. Another client has moved both, and
    /// the kernel has not looked the place up since (fs/dcache.c, `d_splice_alias`).
    pub(super) fn may_loop(&self, fs: &MemFs, call: &Call) -> bool {
        named_directories(fs, call).into_iter().any(|(dir, id)| self.may_lie_within(dir, id))
    }

    fn may_lie_within(&self, dir: FileId, outer: FileId) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![dir]);
        while let Some(id) = next.pop() {
            if id == outer {
                return true;
            }
            if seen.insert(id) {
                next.extend(self.parents.get(&id).into_iter().flatten());
            }
        }
        false
    }
}

/// The directories that the names of this call stand for, each with the directory it is in.
fn named_directories(fs: &MemFs, call: &Call) -> Vec<(FileId, FileId)> {
    let names = call.names().into_iter();
    let found = names.filter_map(|(dir, name)| {
        let lookup = Call::Lookup { dir, name: name.into() };
        match at_once(perform(fs, &lookup, None)) {
            Some(Ok(Seen::Entry(entry))) if entry.attr.kind == Kind::Directory => Some((dir, entry.attr.id)),
            _ => None,
        }
    });
    found.collect()
}
