//! A store that a client has promised, and that others see before it is done.

use crate::whose::Whose;
use parking_lot::Mutex;
use roam_proto::message::Facts;
use roam_proto::operation::Change;
use std::time::Duration;
use types::FileId;

/// A promised store.
pub(crate) struct Promise {
    pub(crate) file: FileId,
    pub(crate) whose: Whose,
    pub(crate) seq: u64,
    pub(crate) change: Change,
    /// The number of the promised contents.
    pub(crate) contents: u64,
    /// The claim that keeps others from changing the file.
    pub(crate) claim: u64,
    pub(crate) begun: Duration,
    pub(crate) progressed: Mutex<Duration>,
}

impl Promise {
    /// True if this is the client's store of this number.
    pub(crate) fn is_by(&self, whose: &Whose, seq: u64) -> bool {
        self.whose.author == whose.author && self.whose.incarnation == whose.incarnation && self.seq == seq
    }

    /// Replaces the attributes that the store will change.
    pub(crate) fn lay_over(&self, facts: &mut Facts) {
        (facts.size, facts.mtime, facts.ctime) = (self.change.size, self.change.mtime, self.change.mtime);
    }
}
