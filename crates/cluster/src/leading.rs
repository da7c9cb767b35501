//! Until when the leader of a group of voters may serve as the first node.
//!
//! It asks a majority of the voters again and again whether it still leads
//! ([`Consensus::still_leads`]). Each answer lets it serve for a lease from when it asked. When the
//! lease is over, another voter may have been elected, and its node may serve.
//!
//! The lease belongs to one term. A voter that was elected again has been without the lease
//! meanwhile: what its machine knows may be old, and it starts as any first node.
//!
//! The leases that it gives to members run from such a question, too. So a leader that was elected
//! after it knows when they are over, without having heard of them.

use crate::lease::with_drift;
use consensus::Consensus;
use host::Host;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of questions in the length of a lease.
const QUESTIONS_PER_LEASE: u32 = 4;
/// Time before a question that failed is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a leader that has no lease asks before it leaves leading to others.
const FIRST_QUESTIONS: usize = 3;
/// For how long a node that cannot do what a leader must leaves leading to others: longer than an
/// election takes.
const STANDS_BACK: Duration = Duration::from_secs(8);

/// Leaves leading to others for a while, if any of them can.
pub async fn stand_back(host: &Host, voter: &Consensus) {
    voter.stand_back(true);
    host.clock.sleep(STANDS_BACK).await;
    voter.stand_back(false);
}

/// The lease of a leader.
pub struct Leading {
    host: Host,
    voter: Arc<Consensus>,
    term: u64,
    /// No leader before it asked after this time, if it is known; see
    /// [`Consensus::begin_to_lead`].
    earlier_asked: Option<Duration>,
    /// When the lease is over, in nanoseconds of the host's clock.
    until: AtomicU64,
}

impl Leading {
    /// Begins to ask. `None` if the voter does not lead, or hears no answers. Others may hear that
    /// it leads all the same, so it [stands back](stand_back) first.
    pub async fn begin(host: &Host, voter: &Arc<Consensus>) -> Option<Arc<Leading>> {
        let term = voter.leadership().term;
        let (earlier_asked, until) = (voter.begin_to_lead().await, AtomicU64::new(0));
        let leading = Arc::new(Leading { host: host.clone(), voter: voter.clone(), term, earlier_asked, until });
        let mut count = 0;
        while !leading.ask().await {
            count += 1;
            if !voter.leadership().is_ready {
                return None;
            }
            if count == FIRST_QUESTIONS {
                tracing::warn!("this node leads, but a majority of the voters does not answer in time");
                stand_back(host, voter).await;
                return None;
            }
            host.clock.sleep(PAUSE).await;
        }
        host.tasks.spawn(Box::pin(keep(Arc::downgrade(&leading))));
        Some(leading)
    }

    /// Asks once. False if there was no answer, or the voter does not lead in this term any more.
    async fn ask(&self) -> bool {
        let asked = host::timeout(&*self.host.clock, self.voter.lease(), self.voter.still_leads()).await;
        let Ok(Ok(until)) = asked else { return false };
        // A voter that was elected again answers for another term.
        if self.voter.leadership().term != self.term {
            return false;
        }
        self.until.fetch_max(until.as_nanos() as u64, SeqCst);
        true
    }

    fn left(&self) -> Duration {
        Duration::from_nanos(self.until.load(SeqCst)).saturating_sub(self.host.clock.now())
    }

    /// True while no other node can be the first one. A voter that is alone needs no lease, and one
    /// that has stopped is no reason to stop serving then.
    pub fn may_serve(&self) -> bool {
        !self.left().is_zero() || self.voter.is_alone()
    }

    /// What it may give a member of a lease of this length; `None` if it may not serve any more.
    pub fn lease_for_member(&self, length: Duration) -> Option<Duration> {
        if self.voter.is_alone() {
            return Some(length);
        }
        let left = Some(self.left()).filter(|left| !left.is_zero())?;
        Some(length.saturating_sub(self.voter.lease().saturating_sub(left)))
    }

    /// Time until all members' leases of this length are over that earlier leaders gave; `None` if
    /// that is not known.
    pub fn earlier_leases_left(&self, length: Duration) -> Option<Duration> {
        Some((self.earlier_asked? + with_drift(length)).saturating_sub(self.host.clock.now()))
    }

    /// Waits until the lease is over for good.
    pub async fn over(&self) {
        while self.may_serve() {
            let left = self.left();
            self.host.clock.sleep(if left.is_zero() { PAUSE } else { left }).await;
        }
    }
}

/// Asks until the lease is over, or the machine is gone.
async fn keep(leading: Weak<Leading>) {
    while let Some(leading) = leading.upgrade() {
        if !leading.may_serve() {
            return;
        }
        let pause = match leading.ask().await {
            true => leading.voter.lease() / QUESTIONS_PER_LEASE,
            false => PAUSE,
        };
        let clock = leading.host.clock.clone();
        drop(leading);
        clock.sleep(pause).await;
    }
}
