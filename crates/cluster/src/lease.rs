//! Leases of sessions: how long a node may serve without asking. Pure.
//!
//! A node's lease runs from the *sending* of the renewal that was answered, on the node's clock.
//! The first node counts from the renewal's arrival, which is later, on its own clock, and waits
//! longer by [`DRIFT_PERCENT`]. So if their clocks do not drift apart faster than that, a node's
//! lease is over before the first node declares it dead.

use std::collections::BTreeMap;
use std::time::Duration;

/// How much faster one clock may run than another, in percent.
pub const DRIFT_PERCENT: u32 = 1;

/// How long the first node waits for the end of a lease of this length.
pub fn with_drift(lease: Duration) -> Duration {
    lease + lease * DRIFT_PERCENT / 100
}

/// The sessions and their leases, on the first node's clock.
#[derive(Debug)]
pub struct LeaseTable {
    lease: Duration,
    /// When each session can be declared dead.
    deadlines: BTreeMap<u64, Duration>,
}

impl LeaseTable {
    /// A table of leases of this length.
    pub fn new(lease: Duration) -> LeaseTable {
        LeaseTable { lease, deadlines: BTreeMap::new() }
    }

    /// The length of a lease.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Begins a session with a lease.
    pub fn begin(&mut self, session: u64, now: Duration) {
        self.deadlines.insert(session, now + with_drift(self.lease));
    }

    /// Renews the lease of a session. False if there is no such session, or its lease is over.
    pub fn renew(&mut self, session: u64, now: Duration) -> bool {
        match self.deadlines.get_mut(&session) {
            Some(deadline) if *deadline > now => {
                *deadline = now + with_drift(self.lease);
                true
            }
            _ => false,
        }
    }

    /// The sessions whose lease is over. They stay in the table until they [end](Self::end).
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = u64> + '_ {
        self.deadlines.iter().filter(move |(_, deadline)| **deadline <= now).map(|(session, _)| *session)
    }

    /// When the first lease is over that is not renewed.
    pub fn first_end(&self) -> Option<Duration> {
        self.deadlines.values().min().copied()
    }

    /// Time until a session's lease is over; `None` if there is no such session.
    pub fn left(&self, session: u64, now: Duration) -> Option<Duration> {
        self.deadlines.get(&session).map(|deadline| deadline.saturating_sub(now))
    }

    /// Ends a session.
    pub fn end(&mut self, session: u64) {
        self.deadlines.remove(&session);
    }
}

/// A lease as its holder knows it, on the holder's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    until: Duration,
}

impl Lease {
    /// The request that was sent at `sent` was answered with a lease of this length.
    pub fn renewed(&mut self, sent: Duration, lease: Duration) {
        self.until = self.until.max(sent + lease);
    }

    /// When it is over.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// True if the holder must not serve any more.
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE: Duration = Duration::from_secs(8);
    const SESSION: u64 = 7;

    proptest! {
        /// Renewals take any time, answers get lost, and the holder's clock is slower or faster by
        /// the bound.
        #[test]
        fn prop_a_lease_is_over_before_the_session_is_declared_dead(
            speed in 9901u64..=10_100,
            renewals in proptest::collection::vec((0u64..9000, 0u64..5000, 0u64..5000, any::<bool>()), 0..20),
        ) {
            let holder = |at_ms: u64| Duration::from_micros(at_ms * speed / 10);
            let (mut table, mut lease) = (LeaseTable::new(LEASE), Lease::default());
            table.begin(SESSION, Duration::ZERO);
            lease.renewed(Duration::ZERO, LEASE);
            let (mut sent, mut at) = (0, 0);
            for (pause, there, back, is_answered) in renewals {
                sent = at.max(sent) + pause;
                let arrived = sent + there;
                if !table.renew(SESSION, Duration::from_millis(arrived)) {
                    break;
                }
                at = arrived;
                if is_answered {
                    at += back;
                    lease.renewed(holder(sent), LEASE);
                }
                let left = table.left(SESSION, Duration::from_millis(arrived)).expect("a session");
                let dead = arrived + left.as_millis() as u64;
                prop_assert_eq!(table.expired(Duration::from_millis(dead)).next(), Some(SESSION));
                prop_assert!(lease.is_over(holder(dead)), "{:?} at {dead} ms", lease.until());
            }
        }
    }

    #[test]
    fn a_lease_that_is_over_is_not_renewed() {
        let mut table = LeaseTable::new(LEASE);
        table.begin(SESSION, Duration::ZERO);
        let end = with_drift(LEASE);
        let before = end - Duration::from_nanos(1);
        assert_eq!((table.first_end(), table.expired(before).count()), (Some(end), 0));
        assert!(table.renew(SESSION, before) && !table.renew(SESSION, before + end));
        assert_eq!(table.expired(before + end).collect::<Vec<_>>(), [SESSION]);
        table.end(SESSION);
        assert_eq!(table.first_end(), None);
        assert_eq!((table.expired(before + end).count(), table.left(SESSION, before)), (0, None));
        assert!(!table.renew(SESSION, before));
    }
}
