//! Giving segments back the fragments that a store has lost or never had: it was replaced, came back with an older content, or was
//! away while others took its part.
//!
//! As long as nobody does this, the next store that fails takes data with it. So all stores are compared once all of them are in
//! service: after a start, and after one of them came back; what they lack is put there again, a little at a time. Only which fragments
//! there are is compared; whether they are good, a scrub tells.

use host::Host;
use std::sync::Arc;
use std::time::Duration;
use stripe::{Stripe, StripeError};
use types::SegmentId;

/// How long one step may take, so that other maintenance gets its turn.
const STEP_TIME: Duration = Duration::from_millis(500);
/// After so long the stores are compared again though none was away, and what could not be restored is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Segments that lack fragments, as far as is known; `None` before all stores were compared.
    pub lacking_count: Option<u64>,
    /// Segments that were given what they lacked, since start.
    pub restored_count: u64,
}

/// See the module's header.
pub(crate) struct Restore {
    host: Host,
    stripe: Arc<Stripe>,
    /// When the stores were last compared, and how often some had come back by then.
    compared: Option<(Duration, u64)>,
    todo: Vec<SegmentId>,
    failed_count: u64,
    restored_count: u64,
}

impl Restore {
    pub(crate) fn new(host: Host, stripe: Arc<Stripe>) -> Restore {
        Restore { host, stripe, compared: None, todo: Vec::new(), failed_count: 0, restored_count: 0 }
    }

    pub(crate) fn progress(&self) -> Restored {
        let lacking = self.todo.len() as u64 + self.failed_count;
        Restored { lacking_count: self.compared.map(|_| lacking), restored_count: self.restored_count }
    }

    /// True if the stores are to be compared.
    pub(crate) fn is_due(&self) -> bool {
        let returns = self.stripe.return_count();
        let current = |(at, seen)| seen == returns && self.host.clock.now() < at + LOOK_AGAIN;
        self.stripe.is_whole() && !self.compared.is_some_and(current)
    }

    /// Compares the stores; the number of segments that lack something.
    pub(crate) async fn compare(&mut self) -> Result<usize, StripeError> {
        let returns = self.stripe.return_count();
        self.todo = self.stripe.lacking().await?;
        self.compared = Some((self.host.clock.now(), returns));
        self.failed_count = 0;
        Ok(self.todo.len())
    }

    /// Restores some segments. Nobody may delete segments meanwhile.
    pub(crate) async fn step(&mut self) {
        let end = self.host.clock.now() + STEP_TIME;
        while self.host.clock.now() < end
            && self.stripe.is_whole()
            && let Some(segment) = self.todo.pop()
        {
            match self.stripe.restore(segment).await {
                true => self.restored_count += 1,
                false => self.failed_count += 1,
            }
        }
    }

    /// True if there is something left to do.
    pub(crate) fn is_busy(&self) -> bool {
        !self.todo.is_empty()
    }
}
