//! What is known of each store's health, and the task that looks after those that are not well.
//!
//! A store leaves service the moment a request to it fails, and comes back only through a probe that finds it writable *and*
//! has brought it up to date (see `catch_up`). The probing task exists only while some store is out of service.

use crate::Stripe;
use std::collections::BTreeSet;
use std::sync::Arc;
use storage::api::StoreStatus;
use striped_log::fragment::FRAGMENT_LEN_MAX;
use types::{FragmentId, SegmentId, StoreId};

/// Most deletions that are remembered for a store that is away; what is beyond stays there until the whole is compared
/// (a leak of space, nothing else).
const OWED_DELETES_MAX: usize = 65_536;
/// Most damaged fragments that are remembered, so that each is logged and counted once.
const DAMAGED_MAX: usize = 4_096;

/// Whether a store is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreState {
    /// Takes puts and reads.
    Up,
    /// Refuses puts, since its disk has failed or is full; is read from.
    Failing,
    /// Does not answer.
    Absent,
}

/// A store as `status` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreHealth {
    /// Which store.
    pub id: StoreId,
    /// Whether it is used.
    pub state: StoreState,
    /// Different fragments on it that were found damaged since start.
    pub damaged_count: u64,
    /// What it says of itself, if it answers.
    pub status: Option<StoreStatus>,
}

/// All stores' health; pure bookkeeping.
pub(crate) struct Health {
    stores: Vec<Entry>,
    damaged: BTreeSet<(usize, FragmentId)>,
    /// The probing task is there.
    probing: bool,
}

struct Entry {
    state: StoreState,
    damaged_count: u64,
    /// Deletions it missed.
    owed: BTreeSet<SegmentId>,
}

impl Health {
    pub(crate) fn new(store_count: usize) -> Self {
        let entry = || Entry { state: StoreState::Up, damaged_count: 0, owed: BTreeSet::new() };
        Health { stores: (0..store_count).map(|_| entry()).collect(), damaged: BTreeSet::new(), probing: false }
    }

    pub(crate) fn state(&self, at: usize) -> StoreState {
        self.stores[at].state
    }

    pub(crate) fn up(&self) -> Vec<usize> {
        (0..self.stores.len()).filter(|&at| self.state(at) == StoreState::Up).collect()
    }

    /// Remembers deletions that the store has missed.
    pub(crate) fn owe(&mut self, at: usize, segments: &[SegmentId]) {
        let owed = &mut self.stores[at].owed;
        owed.extend(segments.iter().take(OWED_DELETES_MAX.saturating_sub(owed.len())));
    }

    pub(crate) fn take_owed(&mut self, at: usize) -> Vec<SegmentId> {
        std::mem::take(&mut self.stores[at].owed).into_iter().collect()
    }
}

/// True when the store can be expected to take the largest fragment.
fn takes_puts(status: &StoreStatus) -> bool {
    status.writable && status.capacity_bytes.saturating_sub(status.used_bytes) >= 2 * u64::from(FRAGMENT_LEN_MAX)
}

impl Stripe {
    /// Notes a store's state; starts probing when it is not well.
    pub(crate) fn mark(&self, at: usize, state: StoreState, why: &str) {
        let start = {
            let mut health = self.health.lock();
            if std::mem::replace(&mut health.stores[at].state, state) == state {
                return;
            }
            state != StoreState::Up && !std::mem::replace(&mut health.probing, true)
        };
        let id = self.stores[at].id;
        match state {
            StoreState::Up => tracing::info!(store = %id, "store is back in service"),
            StoreState::Failing => tracing::warn!(store = %id, why, "store takes no more puts"),
            StoreState::Absent => tracing::warn!(store = %id, why, "store is out of service"),
        }
        if start {
            let (me, clock, pause) = (self.me.clone(), self.host.clock.clone(), self.options.probe_interval);
            self.host.tasks.spawn(Box::pin(async move {
                loop {
                    clock.sleep(pause).await;
                    let Some(stripe) = me.upgrade() else { return };
                    if stripe.probe().await {
                        return;
                    }
                }
            }));
        }
    }

    /// Notes that a fragment is damaged; logs it the first time.
    pub(crate) fn note_damaged(&self, at: usize, fragment: FragmentId) {
        let new = {
            let mut health = self.health.lock();
            if health.damaged.len() >= DAMAGED_MAX {
                health.damaged.clear();
            }
            let new = health.damaged.insert((at, fragment));
            health.stores[at].damaged_count += u64::from(new);
            new
        };
        if new {
            tracing::warn!(store = %self.stores[at].id, %fragment, "fragment is damaged");
        }
    }

    /// Looks at every store that is out of service. True when none is left: the task ends.
    async fn probe(self: &Arc<Self>) -> bool {
        let up = self.health.lock().up();
        for at in self.everyone() {
            if !up.contains(&at) {
                self.probe_store(at).await;
            }
        }
        let mut health = self.health.lock();
        let done = health.stores.iter().all(|s| s.state == StoreState::Up);
        if done {
            health.probing = false;
        }
        done
    }

    async fn probe_store(&self, at: usize) {
        match self.ask(at, |s| s.status()).await {
            Err(_) => self.mark(at, StoreState::Absent, "does not answer"),
            Ok(status) if !takes_puts(&status) => self.mark(at, StoreState::Failing, "not writable or full"),
            Ok(_) => {
                if self.catch_up(at).await {
                    self.mark(at, StoreState::Up, "");
                }
            }
        }
    }

    /// All stores, in order of their ids.
    pub async fn status(&self) -> Vec<StoreHealth> {
        let statuses = self.ask_each(&self.everyone(), |s| s.status()).await;
        let health = self.health.lock();
        let healths = statuses.into_iter().map(|(at, status)| StoreHealth {
            id: self.stores[at].id,
            state: health.stores[at].state,
            damaged_count: health.stores[at].damaged_count,
            status: status.ok(),
        });
        healths.collect()
    }
}
