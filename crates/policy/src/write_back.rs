//! When a roaming client's operations may go home over a slow link, and in which pieces (Froese and
//! Bunt, section 4.6; Huston and Honeyman, section 5.2).
//!
//! [`Terms`] say how long an operation waits before it may go. The paper has four policies. *Idle*:
//! it goes after the link was idle for a moment. *Delayed*: it must also have waited for some time.
//! *Preemptive*: like *Delayed*, but it stops for anything that a program waits for. *Lottery*: it
//! goes when it wins a draw. Roaming clients have all four, and draw lots for each chunk when
//! several classes of traffic want the link ([`TICKETS`], [`crate::lottery`]).

use crate::lottery::TicketClass;
use std::time::Duration;

/// The link counts as idle when no program has waited for it for this long.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
/// An operation that waits for an idle link goes after this time even if the link is busy.
pub const IDLE_WAIT_MAX: Duration = Duration::from_secs(300);
/// How long a delayed operation waits, by default.
pub const DELAY: Duration = Duration::from_secs(15 * 60);

/// The classes of traffic: what a program waits for, what is fetched ahead, and what goes home. The
/// last two have a bound on their wait, so neither starves.
pub const TICKETS: [TicketClass; 3] = [
    TicketClass { tickets: 60, wait_max: None },
    TicketClass { tickets: 10, wait_max: Some(Duration::from_secs(120)) },
    TicketClass { tickets: 30, wait_max: Some(Duration::from_secs(30)) },
];

/// How long a slow link is busy with one chunk, at most. Lots are drawn for each chunk, so a
/// request that wins the next draw waits no longer than this.
pub const CHUNK_TIME: Duration = Duration::from_millis(500);
/// A chunk is planned to take this part of [`CHUNK_TIME`]: the link's rate is an estimate, and
/// small requests wait for the chunk too.
const CHUNK_PART: f64 = 0.875;
/// Shortest chunk, in bytes.
pub const CHUNK_LEN_MIN: u64 = 1 << 10;
/// Longest chunk, in bytes.
pub const CHUNK_LEN_MAX: u64 = 256 << 10;

/// Length of a chunk in bytes, on a link that carries `bytes_per_second`.
pub fn chunk_len(bytes_per_second: f64) -> u64 {
    let len = bytes_per_second * CHUNK_TIME.as_secs_f64() * CHUNK_PART;
    (len as u64).clamp(CHUNK_LEN_MIN, CHUNK_LEN_MAX)
}

/// How long an operation waits before it may go home. It goes when both `age` and `idle` have
/// passed, or when `age_max` has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The operation must have waited this long.
    pub age: Duration,
    /// The link must have been idle this long.
    pub idle: Duration,
    /// An operation that has waited this long goes even if the link is not idle.
    pub age_max: Option<Duration>,
}

impl Terms {
    /// Operations do not wait.
    pub const AT_ONCE: Terms = Terms::delayed(Duration::ZERO);
    /// Operations wait until the link is idle, but no longer than [`IDLE_WAIT_MAX`].
    pub const WHEN_IDLE: Terms = Terms { age: Duration::ZERO, idle: IDLE_TIME, age_max: Some(IDLE_WAIT_MAX) };

    /// Operations wait for `age`, whether the link is idle or not.
    pub const fn delayed(age: Duration) -> Terms {
        Terms { age, idle: Duration::ZERO, age_max: None }
    }

    /// The age from which on operations may go now, if the link has been idle for `idle_for`.
    /// `None` if no operation may go.
    pub fn age_now(&self, idle_for: Duration) -> Option<Duration> {
        let at_most = |age: Duration| self.age_max.map_or(age, |most| most.min(age));
        if idle_for >= self.idle { Some(at_most(self.age)) } else { self.age_max }
    }

    /// How much longer an operation waits that has waited for `waited`, if the link stays idle.
    pub fn wait(&self, waited: Duration, idle_for: Duration) -> Duration {
        let wait = self.age.saturating_sub(waited).max(self.idle.saturating_sub(idle_for));
        self.age_max.map_or(wait, |most| wait.min(most.saturating_sub(waited)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn terms_say_from_which_age_on_something_goes() {
        assert_eq!(Terms::AT_ONCE.age_now(Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(Terms::delayed(DELAY).age_now(Duration::ZERO), Some(DELAY));
        assert_eq!(Terms::WHEN_IDLE.age_now(IDLE_TIME), Some(Duration::ZERO));
        assert_eq!(Terms::WHEN_IDLE.age_now(Duration::ZERO), Some(IDLE_WAIT_MAX));
        let for_ever = Terms { age_max: None, ..Terms::WHEN_IDLE };
        assert_eq!(for_ever.age_now(IDLE_TIME - Duration::from_nanos(1)), None);
    }

    proptest! {
        /// An operation may go after exactly the time that `wait` gives.
        #[test]
        fn prop_the_wait_ends_when_the_age_is_reached(
            (age, idle, waited, idle_for) in (0u64..50, 0u64..50, 0u64..80, 0u64..80),
            age_max in proptest::option::of(0u64..60),
        ) {
            let terms = Terms { age: seconds(age), idle: seconds(idle), age_max: age_max.map(seconds) };
            let may_go = |later: u64| {
                terms.age_now(seconds(idle_for + later)).is_some_and(|least| seconds(waited + later) >= least)
            };
            let wait = terms.wait(seconds(waited), seconds(idle_for)).as_secs();
            prop_assert!(may_go(wait));
            prop_assert!(wait == 0 || !may_go(wait - 1));
        }
    }
}
