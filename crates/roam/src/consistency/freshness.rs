//! What the client may believe of its cached state, and of answers that are on their way.
//!
//! One rule says what an answer is worth. Every answer has the number of the last change of the
//! volume that it includes. While a question is under way, the client notes which files changed
//! meanwhile, and up to which change. An answer is current for a file if it includes that change,
//! or if nothing changed since the question was asked. An answer that is not current may be taken
//! as stale, if it is newer than what the client knows.

use crate::consistency::delegations::Delegations;
use crate::consistency::lock_requests::LockRequests;
use roam_proto::delegation::Hold;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use types::FileId;

/// How a file changed while questions were under way. The first number of each is the value of
/// `breaks` then; 0: it did not change in this way.
#[derive(Clone, Copy, Default)]
struct Changed {
    /// Others changed it, up to this change of the volume.
    by_others: (u64, u64),
    /// The home answered this client's own operations on it.
    by_this: u64,
}

/// What the client may believe.
#[derive(Default)]
pub(crate) struct Freshness {
    /// Consistency `none`: cached data is believed, even if others change files.
    is_frozen: bool,
    /// Delegations, under `strong`: cached data is believed only as far as they say.
    pub(in crate::consistency) delegations: Option<Delegations>,
    pub(in crate::consistency) lock_requests: LockRequests,
    /// True under `strong`. Shared with the front end, which caches nothing then.
    pub(in crate::consistency) is_delegated: Arc<AtomicBool>,
    /// How many questions to the home are under way.
    asking: usize,
    /// Files that changed during these questions.
    changed: HashMap<FileId, Changed>,
    /// How often the home told of changes, or answered this client's operations.
    breaks: u64,
    /// How often the home told of changes by others to files that are known here.
    news: u64,
}

impl Freshness {
    /// True under consistency `none`.
    pub(crate) fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    pub(crate) fn freeze(&mut self, is_frozen: bool) {
        self.is_frozen = is_frozen;
    }

    /// True under `strong`.
    pub(crate) fn is_delegated(&self) -> bool {
        self.delegations.is_some()
    }

    /// True under `strong`. The front end, which caches nothing then, shares this.
    pub(crate) fn delegated_flag(&self) -> Arc<AtomicBool> {
        self.is_delegated.clone()
    }

    /// Files with a write delegation.
    pub(crate) fn held_to_write(&self) -> impl Iterator<Item = FileId> {
        self.delegations.iter().flat_map(|delegations| delegations.held_for(Hold::Write))
    }

    /// The home has answered a question that was asked at this time: the lease begins anew.
    pub(crate) fn renew_lease(&mut self, asked: Duration) {
        if let Some(delegations) = &mut self.delegations {
            delegations.renew(asked);
        }
    }

    /// The home says that the client has no delegations, or will soon have none.
    pub(crate) fn forfeit(&mut self) {
        if let Some(delegations) = &mut self.delegations {
            delegations.forfeit();
        }
    }

    /// True if a program may believe that it still holds a lock on the file that it has lost.
    pub(crate) fn has_lost_lock(&self, file: FileId) -> bool {
        self.lock_requests.has_lost(file)
    }

    /// True if a question to the home is under way.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking > 0
    }

    /// How often the home told of changes, or answered this client's operations.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks
    }

    /// How often the home told of changes by others to files that are known here.
    pub(crate) fn news(&self) -> u64 {
        self.news
    }

    pub(crate) fn has_news(&mut self) {
        self.news += 1;
    }

    /// Notes that the home has answered operations on these files: other answers that are on their
    /// way may describe them as they were before.
    pub(crate) fn overtake(&mut self, files: impl IntoIterator<Item = FileId>) {
        self.note(files, |changed, number| changed.by_this = number);
    }

    /// Notes that others have changed these files, up to the change `seq` of the volume.
    pub(crate) fn changed_by_others(&mut self, files: &[FileId], seq: u64) {
        self.note(files.iter().copied(), |changed, number| changed.by_others = (number, seq));
    }

    fn note(&mut self, files: impl IntoIterator<Item = FileId>, note: impl Fn(&mut Changed, u64)) {
        self.breaks += 1;
        if self.asking > 0 {
            files.into_iter().for_each(|file| note(self.changed.entry(file).or_default(), self.breaks));
        }
    }

    /// Begins to note which files change. Returns the number of changes that were noted before.
    pub(in crate::consistency) fn begin_question(&mut self) -> u64 {
        self.asking += 1;
        self.breaks
    }

    pub(in crate::consistency) fn end_question(&mut self) {
        self.asking -= 1;
        if self.asking == 0 {
            self.changed.clear();
        }
    }

    /// When others last changed a file during the questions that are under way, and up to which
    /// change of the volume.
    pub(in crate::consistency) fn changed_by_others_at(&self, file: FileId) -> (u64, u64) {
        self.changed.get(&file).map_or((0, 0), |changed| changed.by_others)
    }

    /// When the home last answered this client's operations on a file during these questions.
    pub(in crate::consistency) fn overtaken_at(&self, file: FileId) -> u64 {
        self.changed.get(&file).map_or(0, |changed| changed.by_this)
    }
}
