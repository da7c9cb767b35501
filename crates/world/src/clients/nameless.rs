//! Files that have lost their last name and their last handle.
//!
//! A client removes such a file some time later. First it asks the file's manager whether another
//! client has the file open, and takes the right to change the file. Until then, calls that name
//! the file by its id find it as it was. A program has such an id in a descriptor with O_PATH.
//! Once a call has not found the file, none does any more: only a kernel still knows what the
//! attributes were.
//!
//! Only a file that another client has had open may outlive an unlink or a rename: the client that
//! takes the last name leaves the file to that client.

use super::call::{Call, Seen, at_once, perform};
use std::collections::{BTreeMap, BTreeSet};
use types::{Attr, FileId, Kind};
use vfs::fs::{FileSystem, Handle, OpenFlags};
use vfs::mem::MemFs;

/// The files without a name that no program has open, by the model's ids. Each is kept in the
/// model until a call has not found it.
#[derive(Clone, Default)]
pub(super) struct Nameless {
    /// The handles that keep them.
    kept: BTreeMap<FileId, Handle>,
    /// Which clients have opened which files, by the ids that answers have named.
    opened: BTreeSet<(FileId, usize)>,
    /// The attributes of those that are gone.
    last_known: BTreeMap<FileId, Attr>,
}

impl Nameless {
    pub(super) fn has(&self, id: FileId) -> bool {
        self.kept.contains_key(&id)
    }

    /// The attributes that a file had when it went.
    pub(super) fn last_known(&self, id: FileId) -> Option<Attr> {
        self.last_known.get(&id).copied()
    }

    /// Notes that a client has opened a file, given the id that answers have named.
    pub(super) fn opened(&mut self, client: usize, id: FileId) {
        self.opened.insert((id, client));
    }

    /// Takes over what is known of opened files: a crash does not undo that managers have heard of
    /// it.
    pub(super) fn know_opened_of(&mut self, other: &Nameless) {
        self.opened.extend(&other.opened);
    }

    /// The file that a client's call may end, and that may outlive this. `at` is the file that the
    /// call uses, and `named` tells the ids that answers have named.
    pub(super) fn ends(
        &self,
        fs: &MemFs,
        client: usize,
        call: &Call,
        at: Option<FileId>,
        named: impl Fn(FileId) -> Option<FileId>,
    ) -> Option<FileId> {
        let (dir, name) = match call {
            call if call.closes() => return at,
            Call::Unlink { dir, name } | Call::RemoveDirectory { dir, name } => (*dir, name),
            Call::Rename { to_dir, to, .. } => (*to_dir, to),
            _ => return None,
        };
        let lookup = Call::Lookup { dir, name: name.clone() };
        let Some(Ok(Seen::Entry(entry))) = at_once(perform(fs, &lookup, None)) else { return None };
        let id = entry.attr.id;
        let is_other = |(file, other): &(FileId, usize)| Some(*file) == named(id) && *other != client;
        self.opened.iter().any(is_other).then_some(id)
    }

    /// Keeps a file in the model.
    pub(super) fn keep(&mut self, fs: &MemFs, id: FileId) {
        if self.has(id) {
            return;
        }
        let flags = OpenFlags { read: true, ..Default::default() };
        let open = match attr(fs, id).map(|attr| attr.kind) {
            Some(Kind::File) => Call::Open { id, open: 0, flags },
            Some(Kind::Directory) => Call::OpenDirectory { id, open: 0 },
            _ => return,
        };
        if let Some(Ok(Seen::Opened(handle))) = at_once(perform(fs, &open, None)) {
            self.kept.insert(id, handle);
        }
    }

    /// Lets a file go that has a name, or that a program has open.
    pub(super) fn let_go_if_used(&mut self, fs: &MemFs, id: FileId, is_open: bool) {
        if is_open || attr(fs, id).is_none_or(|attr| attr.nlink > 0) {
            self.let_go(fs, id);
        }
    }

    /// Ends a file.
    pub(super) fn end(&mut self, fs: &MemFs, id: FileId) {
        self.last_known.extend(attr(fs, id).map(|attr| (id, attr)));
        self.let_go(fs, id);
    }

    /// Ends all files.
    pub(super) fn end_all(&mut self, fs: &MemFs) {
        let all: Vec<FileId> = self.kept.keys().copied().collect();
        all.into_iter().for_each(|id| self.end(fs, id));
    }

    fn let_go(&mut self, fs: &MemFs, id: FileId) {
        if let Some(handle) = self.kept.remove(&id) {
            release(fs, id, handle);
        }
    }
}

fn attr(fs: &MemFs, id: FileId) -> Option<Attr> {
    match at_once(perform(fs, &Call::Getattr { id }, None)) {
        Some(Ok(Seen::Entry(entry))) => Some(entry.attr),
        _ => None,
    }
}

/// Closes a file or directory of the model.
pub(super) fn release(fs: &MemFs, id: FileId, handle: Handle) {
    if at_once(fs.release(id, handle, None).into_future()) != Some(Ok(())) {
        at_once(fs.releasedir(id, handle).into_future());
    }
}
