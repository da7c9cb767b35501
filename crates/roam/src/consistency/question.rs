//! Questions to the home that are under way, and what their answers are worth.

use crate::client::Inner;
use crate::live::Live;
use crate::replica::Node;
use roam_proto::delegation::Hold;
use roam_proto::message::Facts;
use types::FileId;

/// A question to the home that is under way. It notes which files change meanwhile.
pub(crate) struct Asking<'a> {
    inner: &'a Inner,
    /// The value of `breaks` when the question was asked.
    since: u64,
}

impl<'a> Asking<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Asking<'a> {
        let freshness = &mut inner.live.lock().freshness;
        Asking { inner, since: freshness.begin_question() }
    }

    /// True if, as far as the home has said, no client has changed the file since the question was
    /// asked. The answer includes all changes up to `seq`.
    pub(crate) fn is_current(&self, live: &Live, file: FileId, seq: u64) -> bool {
        !self.is_broken(live, file, seq) && !self.is_overtaken(live, file)
    }

    /// True if others have changed the file since the question was asked, or the home wanted it
    /// back, and the answer does not include that.
    pub(crate) fn is_broken(&self, live: &Live, file: FileId, seq: u64) -> bool {
        let (number, through) = live.freshness.changed_by_others_at(file);
        number > self.since && through > seq
    }

    /// True if this client's own operations have changed the file at home since the question was
    /// asked: the client knows something newer than the answer.
    pub(crate) fn is_overtaken(&self, live: &Live, file: FileId) -> bool {
        live.freshness.overtaken_at(file) > self.since
    }

    /// True if the client knows something newer of a file than the answer, which includes all
    /// changes up to `seq`: an answer to an operation, or one that gave a delegation, came before
    /// it.
    pub(crate) fn is_behind(&self, live: &Live, facts: &Facts, seq: u64) -> bool {
        let (was_told, is_overtaken) =
            (live.was_told(facts.id, seq.saturating_add(1)), self.is_overtaken(live, facts.id));
        match live.replica.node(facts.id) {
            Ok(Node { facts: known, .. }) => {
                (was_told && known.version > facts.version) || (is_overtaken && known.version >= facts.version)
            }
            // The client has forgotten the file meanwhile.
            Err(_) => was_told || is_overtaken,
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.inner.live.lock().freshness.end_question();
    }
}

/// A question whose answer may give delegations.
pub(crate) struct Question<'a> {
    asking: Asking<'a>,
    losses: u64,
}

impl<'a> Question<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Question<'a> {
        let losses = inner.live.lock().freshness.delegations.as_ref().map_or(0, |delegations| delegations.losses);
        Question { asking: Asking::new(inner), losses }
    }

    pub(crate) fn asking(&self) -> &Asking<'a> {
        &self.asking
    }

    /// Takes a delegation from the answer, unless it is void. `given` is its number; the answer
    /// includes changes up to `seq`. True if it was taken.
    pub(crate) fn gives(&self, live: &mut Live, file: FileId, hold: Hold, (given, seq): (u64, u64)) -> bool {
        let Some(delegations) = &mut live.freshness.delegations else { return false };
        let returned = delegations.returned.get(&file).is_some_and(|recall| *recall > given);
        if returned || delegations.losses != self.losses || live.is_doubtful(file) {
            return false;
        }
        let Some(delegations) = &mut live.freshness.delegations else { return false };
        let held = delegations.held.entry(file).or_insert((hold, seq));
        *held = (hold.max(held.0), seq.max(held.1));
        true
    }
}
