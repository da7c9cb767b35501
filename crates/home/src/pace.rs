//! How fast a client may ask.

use std::time::Duration;

/// Most requests per second over one connection, in the long run.
const RATE_MAX: u32 = 10_000;
/// How much of its rate a silent client can save up, to ask that much at once.
const BURST: Duration = Duration::from_secs(1);

/// The time at which the next request has its turn.
#[derive(Default)]
pub(crate) struct Pace(Duration);

impl Pace {
    /// Returns how long a request that comes now has to wait for its turn.
    pub(crate) fn wait(&mut self, now: Duration) -> Duration {
        let turn = self.0.max(now.saturating_sub(BURST));
        self.0 = turn + Duration::from_secs(1) / RATE_MAX;
        turn.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_client_that_asks_without_end_is_slowed_down_to_the_rate() {
        let mut pace = Pace::default();
        let begun = Duration::from_secs(100);
        let mut now = begun;
        for _ in 0..3 * RATE_MAX {
            now += pace.wait(now);
        }
        assert!(now >= begun + Duration::from_millis(1900) && now <= begun + Duration::from_secs(2), "{now:?}");
        // A client that has rested may ask at once again.
        now += BURST * 5;
        assert!((0..=RATE_MAX).all(|_| pace.wait(now).is_zero()));
        assert!(!pace.wait(now).is_zero());
    }
}
