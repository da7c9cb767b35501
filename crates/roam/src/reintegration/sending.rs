//! What is known of operations that wait to go home, beside the log itself.

use crate::reintegration::seen::Seen;
use crate::reintegration::set_aside::{Outgoing, SetAside};
use host::File;
use roam_proto::piece::Hash;
use roam_proto::ranges::Ranges;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use types::{FileId, FsError};

/// A file that was read or written lately.
pub(crate) struct Lately {
    pub(super) file: FileId,
    /// The number of the file of the cache that has its bytes.
    pub(super) data: u64,
    pub(super) bytes: Arc<dyn File>,
    /// The version of these contents at home; 0: the home does not have them.
    pub(super) contents: u64,
    /// Its chunks, once they were computed.
    pub(super) chunks: Option<Arc<Vec<Chunk>>>,
}

/// A chunk of a file.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) hash: Hash,
}

/// Operations on their way home. All are known by their numbers in the log.
#[derive(Default)]
pub(crate) struct Sending {
    /// Operations that the home has done and answered, but not made durable yet. They are the first
    /// ones that wait.
    pub(crate) seen: Seen,
    /// Operations up to this one go home, even if the settings say later.
    promised: u64,
    /// Why the waiting operations could not be sent last; cleared when one was sent.
    held_up: Option<FsError>,
    /// Contents that were set aside to go home.
    aside: SetAside,
    /// Bytes of waiting stores whose file has other contents since.
    sources: HashMap<u64, Arc<dyn File>>,
    /// Ranges of stores that the home has before their turn: uploaded ahead on this connection, or
    /// found there.
    ahead: HashMap<u64, Ranges>,
    /// Files that were read or written lately, the last one last.
    pub(in crate::reintegration) lately: VecDeque<Lately>,
}

impl Sending {
    /// The last operation that goes home even if the settings say later.
    pub(crate) fn promised(&self) -> u64 {
        self.promised
    }

    /// Operations up to this one go home, even if the settings say later.
    pub(crate) fn promise(&mut self, seq: u64) {
        self.promised = self.promised.max(seq);
    }

    /// Why the waiting operations could not be sent last; `None` if one was sent since.
    pub(crate) fn held_up(&self) -> Option<FsError> {
        self.held_up
    }

    pub(crate) fn set_held_up(&mut self, why: Option<FsError>) {
        self.held_up = why;
    }

    /// The contents that were set aside for an operation.
    pub(crate) fn aside(&self, seq: u64) -> Option<&Outgoing> {
        self.aside.get(seq)
    }

    pub(crate) fn set_aside(&mut self, seq: u64, outgoing: Outgoing) {
        self.aside.insert(seq, outgoing);
    }

    /// True if `len` more bytes may be set aside in memory.
    pub(crate) fn has_room_inline(&self, len: u64) -> bool {
        self.aside.has_room(len)
    }

    /// The file that has the bytes of a store, if its own file has others since.
    pub(crate) fn source(&self, seq: u64) -> Option<Arc<dyn File>> {
        self.sources.get(&seq).cloned()
    }

    /// These stores keep their bytes in a file that their own file is about to leave.
    pub(crate) fn keep_source(&mut self, seqs: Vec<u64>, file: &Arc<dyn File>) {
        self.sources.extend(seqs.into_iter().map(|seq| (seq, file.clone())));
    }

    /// True if the bytes of a store are elsewhere than in its own file.
    pub(crate) fn is_spared(&self, seq: u64) -> bool {
        self.aside.get(seq).is_some() || self.sources.contains_key(&seq)
    }

    /// True if the bytes of a store take room on the disk beside its own file.
    pub(crate) fn takes_room(&self, seq: u64) -> bool {
        matches!(self.aside.get(seq), Some(Outgoing::File(..))) || self.sources.contains_key(&seq)
    }

    /// A store got other bytes, so those that were kept for it are of no use.
    pub(crate) fn forget_bytes(&mut self, seq: u64) {
        self.aside.remove(seq);
        self.sources.remove(&seq);
    }

    /// An operation was logged again under another number. What goes home is what was saved, even
    /// if the file has changed since.
    pub(crate) fn renumber(&mut self, before: u64, seq: u64) {
        if let Some(outgoing) = self.aside.remove(before) {
            self.aside.insert(seq, outgoing);
        }
        if let Some(source) = self.sources.remove(&before) {
            self.sources.insert(seq, source);
        }
    }

    /// Forgets an operation that the home has answered. Returns the number of the file that its
    /// contents were set aside in, if there is one.
    pub(crate) fn answered(&mut self, seq: u64) -> Option<u64> {
        self.ahead.remove(&seq);
        self.sources.remove(&seq);
        file_number(self.aside.remove(seq))
    }

    /// Drops contents that were set aside for operations for which `waits` is false. Returns the
    /// numbers of those that are in files.
    pub(crate) fn forget_gone(&mut self, waits: impl Fn(u64) -> bool) -> Vec<u64> {
        self.sources.retain(|seq, _| waits(*seq));
        let gone: Vec<u64> = self.aside.seqs().filter(|seq| !waits(*seq)).collect();
        gone.into_iter().filter_map(|seq| file_number(self.aside.remove(seq))).collect()
    }

    /// The client has attached again: the home may have restarted, and lost what was uploaded
    /// ahead. It has to be told again of everything that is not durable.
    pub(crate) fn begin_anew(&mut self) {
        self.ahead.clear();
        self.seen.begin_anew();
    }

    /// The part of a range of a store that the home does not have yet.
    pub(crate) fn missing_there(&self, seq: u64, range: Range<u64>) -> Ranges {
        self.ahead.get(&seq).map_or_else(|| Ranges::of(range.clone()), |ahead| ahead.missing(range.clone()))
    }

    /// The home has a range of a store before its turn.
    pub(crate) fn is_there(&mut self, seq: u64, range: Range<u64>) {
        self.ahead.entry(seq).or_default().add(range);
    }

    /// True for the first call about a store on this connection.
    pub(crate) fn begin_ahead(&mut self, seq: u64) -> bool {
        let is_first = !self.ahead.contains_key(&seq);
        self.ahead.entry(seq).or_default();
        is_first
    }

    /// The home may have dropped what was uploaded ahead of an operation.
    pub(crate) fn doubt_ahead(&mut self, seq: u64) {
        self.ahead.remove(&seq);
    }

    /// Closes files that were kept open to compare new files with them. True if there were any.
    pub(crate) fn forget_lately(&mut self) -> bool {
        !std::mem::take(&mut self.lately).is_empty()
    }
}

fn file_number(outgoing: Option<Outgoing>) -> Option<u64> {
    match outgoing {
        Some(Outgoing::File(_, number)) => Some(number),
        _ => None,
    }
}
