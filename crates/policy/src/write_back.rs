//! When what was done here may go home over a slow link, and in which pieces (Froese and Bunt,
//! section 4.6; Huston and Honeyman, section 5.2).
//!
//! [`Terms`] say for how long something waits before it may go. The paper's policies are these:
//! *Idle*, after the link was idle for a moment; *Delayed*, when it has also waited for some time;
//! *Preemptive*, the same, and it stops for whatever somebody waits for; *Lottery*, when it wins.
//! The product has all of them, and draws lots for each chunk wherever two want the link
//! ([`TICKETS`], [`crate::lottery`]).

use crate::lottery::Class;
use std::time::Duration;

/// The link counts as idle when nobody has waited for it for so long.
pub const IDLE_TIME: Duration = Duration::from_secs(1);
/// What waits for an idle link goes after so long although the link is used.
pub const IDLE_WAIT_MAX: Duration = Duration::from_secs(300);
/// What is to wait waits for so long, where nothing else is said.
pub const DELAY: Duration = Duration::from_secs(15 * 60);

/// What is drawn for what somebody waits for, for what is fetched ahead, and for what goes home.
/// What goes home is never left behind for good.
pub const TICKETS: [Class; 3] = [
    Class { tickets: 60, wait_max: None },
    Class { tickets: 10, wait_max: Some(Duration::from_secs(120)) },
    Class { tickets: 30, wait_max: Some(Duration::from_secs(30)) },
];

/// A chunk, for which lots are drawn, takes so long on its way, at most.
pub const CHUNK_TIME: Duration = Duration::from_millis(500);
/// It is made to take this part of that: the rate is not known better, and small questions wait for
/// it.
const CHUNK_PART: f64 = 0.875;
/// Shortest chunk, in bytes.
pub const CHUNK_LEN_MIN: u64 = 1 << 10;
/// Longest chunk, in bytes.
pub const CHUNK_LEN_MAX: u64 = 256 << 10;

/// How many bytes make a chunk on a link that carries so many a second.
pub fn chunk_len(bytes_per_second: f64) -> u64 {
    let len = bytes_per_second * CHUNK_TIME.as_secs_f64() * CHUNK_PART;
    (len as u64).clamp(CHUNK_LEN_MIN, CHUNK_LEN_MAX)
}

/// For how long something waits before it may go home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// For so long,
    pub age: Duration,
    /// and until nobody has used the link for so long;
    pub idle: Duration,
    /// or else for so long, whatever the link does.
    pub age_max: Option<Duration>,
}

impl Terms {
    /// It need not wait.
    pub const AT_ONCE: Terms = Terms::delayed(Duration::ZERO);
    /// Until the link is idle, though not for ever.
    pub const WHEN_IDLE: Terms = Terms { age: Duration::ZERO, idle: IDLE_TIME, age_max: Some(IDLE_WAIT_MAX) };

    /// For so long, whatever the link does.
    pub const fn delayed(age: Duration) -> Terms {
        Terms { age, idle: Duration::ZERO, age_max: None }
    }

    /// How long what goes now has waited at least, if nobody has used the link for `idle_for`.
    /// Nothing: nothing goes.
    pub fn age_now(&self, idle_for: Duration) -> Option<Duration> {
        let at_most = |age: Duration| self.age_max.map_or(age, |most| most.min(age));
        if idle_for >= self.idle { Some(at_most(self.age)) } else { self.age_max }
    }

    /// How much longer something waits that has waited for so long, if nobody uses the link
    /// meanwhile.
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
        /// What waits may go after exactly as long as it is said to wait.
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
