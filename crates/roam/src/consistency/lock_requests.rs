//! The requests for locks that are under way, and the locks that were lost. Pure.

use roam_proto::lock::{Lock, Locking};
use roam_proto::message::Request;
use std::collections::{BTreeSet, HashMap};
use types::FileId;

/// What the client knows about locking, beside the locks that it has.
#[derive(Default)]
pub(crate) struct LockRequests {
    /// The term of the client's locks; 0: it has not been attached yet.
    pub(super) term: u64,
    /// The number of the last request.
    pub(super) number: u64,
    /// Requests whose outcome is unknown.
    pub(super) open: BTreeSet<u64>,
    /// Unlocks that the home has not heard of: how many, by file and owner.
    pub(super) untold: HashMap<(FileId, u128), usize>,
    /// Owners that have lost a lock, by file.
    pub(super) lost: HashMap<FileId, BTreeSet<u128>>,
}

impl LockRequests {
    pub(super) fn begin(&mut self, lock: Lock, waits: bool) -> Locking {
        self.number += 1;
        self.open.insert(self.number);
        Locking { term: self.term, number: self.number, over: 0, open: Vec::new(), lock, waits, gives_up: 0 }
    }

    /// A request to the home, which says too which other requests are over.
    pub(super) fn request(&self, asked: &Locking) -> Request {
        let open = self.open.iter().copied().collect();
        Request::Lock(Locking { over: self.number, open, ..asked.clone() })
    }

    /// The term of the client's locks.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// True if an owner has lost a lock on a file, and may believe that it still has it.
    pub(crate) fn has_lost(&self, file: FileId) -> bool {
        self.lost.contains_key(&file)
    }

    pub(super) fn is_untold(&self, file: FileId, owner: u128) -> bool {
        self.untold.contains_key(&(file, owner))
    }
}
