//! Keeps the table of segments up to date: from the stripe, which segments are put; from the
//! managers, how many bytes live; from maintenance, which segments it deletes and which the stores
//! list.

use crate::seat::Seat;
use manager::api::{ManagerAdmin, ManagerError};
use parking_lot::Mutex;
use policy::segments::Segments;
use std::collections::BTreeMap;
use std::sync::Arc;
use stripe::Stripe;
use types::SegmentId;

/// Number of changes taken in at a time: puts that end meanwhile wait for the table.
const CHANGES_AT_ONCE: usize = 1024;

/// The table of segments, with the managers whose counts it follows.
pub(crate) struct Table {
    managers: Vec<Arc<Seat>>,
    segments: Arc<Mutex<Segments>>,
    /// For each manager, the last answer whose changes were taken in. Held while asking.
    since: tokio::sync::Mutex<Vec<Since>>,
}

/// The last answer of a manager.
#[derive(Clone, Copy, Default)]
struct Since {
    /// When the manager was at the place that answered; see [`Seat::turn`].
    turn: u64,
    /// See [`manager::api::UsageChanges::until`].
    until: u64,
}

impl Table {
    /// An empty table, which learns of every segment put from now on.
    pub(crate) fn new(stripe: &Stripe, managers: &[Arc<Seat>]) -> Table {
        let (k, m) = stripe.redundancy();
        let segments = Arc::new(Mutex::new(Segments::new(managers.len(), k, m)));
        let followed = segments.clone();
        stripe.on_stored(move |segment, bytes| followed.lock().stored(segment, bytes));
        let since = tokio::sync::Mutex::new(vec![Since::default(); managers.len()]);
        Table { managers: managers.to_vec(), segments, since }
    }

    /// Takes in the changes of the managers' counts. The first time, and when a manager does not
    /// remember far enough back, that is all counts.
    pub(crate) async fn follow(&self) -> Result<(), ManagerError> {
        let mut since = self.since.lock().await;
        for (at, manager) in self.managers.iter().enumerate() {
            // Another place does not know what this one has told.
            let turn = manager.turn();
            let known = if since[at].turn == turn { since[at].until } else { 0 };
            let changes = manager.usage_changes(known).await?;
            if manager.turn() != turn {
                return Err(ManagerError::Away);
            }
            let mut counts: BTreeMap<SegmentId, u64> = BTreeMap::new();
            if changes.is_whole {
                counts.extend(self.look(|table| table.counted_by(at).map(|id| (id, 0)).collect::<Vec<_>>()));
            }
            counts.extend(changes.changed.iter().map(|usage| (usage.segment, usage.live_bytes)));
            self.tell(counts, |table, (segment, live_bytes)| table.counted(at, segment, live_bytes)).await;
            since[at] = Since { turn, until: changes.until };
        }
        Ok(())
    }

    /// Takes in segments that stores list, with the bytes that they take.
    pub(crate) async fn saw(&self, seen: Vec<(SegmentId, u64)>) {
        self.tell(seen, |table, (segment, bytes)| table.stored(segment, bytes)).await;
    }

    /// Takes in deleted segments.
    pub(crate) async fn deleted(&self, segments: Vec<SegmentId>) {
        self.tell(segments, Segments::deleted).await;
    }

    /// Asks the table a question that takes a bounded time.
    pub(crate) fn look<T>(&self, ask: impl FnOnce(&Segments) -> T) -> T {
        ask(&self.segments.lock())
    }

    /// Tells the table one change after the other, and lets other users of it have their turn.
    async fn tell<T>(&self, all: impl IntoIterator<Item = T>, take: impl Fn(&mut Segments, T)) {
        let mut all = all.into_iter().peekable();
        while all.peek().is_some() {
            {
                let mut segments = self.segments.lock();
                all.by_ref().take(CHANGES_AT_ONCE).for_each(|change| take(&mut segments, change));
            }
            if all.peek().is_some() {
                host::yield_now().await;
            }
        }
    }
}
