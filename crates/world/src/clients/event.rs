//! The calls that programs made, and when.

use super::call::{Answered, Call, shown};
use std::time::Duration;

/// A call that a program made.
#[derive(Clone, Debug)]
pub struct Event {
    /// The number of the client.
    pub client: usize,
    /// The call.
    pub call: Call,
    /// The answer; `None` if the client crashed first.
    pub answered: Option<Answered>,
    /// When it began.
    pub began: Duration,
    /// When it ended; `MAX` if the client crashed first.
    pub ended: Duration,
    /// True if another client renamed something at the same time. The oracle finds out.
    pub is_raced: bool,
}

impl Event {
    /// True if a kernel may have done this rename by doing nothing: it looks for the old name and
    /// for the new one, and another client moved the file from the one to the other in between.
    pub(super) fn did_nothing(&self, model: &Answered) -> bool {
        self.is_raced && matches!((&self.call, &self.answered, model), (Call::Rename { .. }, Some(Ok(_)), Err(_)))
    }

    /// True if it ended before the other one began: then it comes before it in every order.
    pub(super) fn ends_before(&self, other: &Event) -> bool {
        self.ended < other.began
    }

    /// True if what the client did before is durable.
    pub(super) fn has_synced(&self, client: usize) -> bool {
        self.client == client && self.call.syncs() && matches!(self.answered, Some(Ok(_)))
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let answered = self.answered.as_ref().map_or("nothing".into(), shown);
        write!(f, "{:?} client {} {:?} -> {answered}", self.began, self.client, self.call)
    }
}
