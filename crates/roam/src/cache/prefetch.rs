//! What is fetched before programs ask for it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use types::FileId;

/// Programs' waits for small files of one directory.
#[derive(Default)]
pub(crate) struct Waits {
    pub(super) count: u32,
    pub(super) last: Duration,
    /// A task fetches others of them ahead.
    pub(super) ahead: bool,
}

/// Fetches that go on in the background, and the signs by which they begin.
#[derive(Default)]
pub(crate) struct Prefetch {
    /// Programs' waits for small files, by directory.
    pub(in crate::cache) waits: HashMap<FileId, Waits>,
    /// Directories that the client lists ahead, or lately tried to in vain, and since when.
    pub(in crate::cache) listed_ahead: HashMap<FileId, Duration>,
    /// Files whose rest is being fetched in the background.
    completing: HashSet<FileId>,
}

impl Prefetch {
    /// A task wants to fetch the rest of a file. False if another one does already.
    pub(crate) fn begin_to_complete(&mut self, id: FileId) -> bool {
        self.completing.insert(id)
    }

    /// The task has ended.
    pub(crate) fn end_completing(&mut self, id: FileId) {
        self.completing.remove(&id);
    }

    /// Files whose rest is being fetched.
    pub(crate) fn completing(&self) -> impl Iterator<Item = FileId> {
        self.completing.iter().copied()
    }
}
