//! Whether the link will soon be lost. Pure.
//!
//! No client can know. Two signs often come before a loss: the connection was lost several times
//! lately, or the link has become slow, and much slower than it was.

use std::collections::VecDeque;
use std::time::Duration;

/// This many losses of the connection,
const LOSS_COUNT: usize = 3;
/// within this time, mean that another will follow.
const LOSS_TIME: Duration = Duration::from_secs(300);
/// Losses within this time count as one: several volumes lose the same connection.
const ONE_LOSS_TIME: Duration = Duration::from_secs(4);
/// A link fades when its rate has dropped by this factor,
const FADE: f64 = 8.0;
/// to less than this, in bytes per second. A faster link is merely used for something else now.
const FADED_RATE: f64 = 128_000.0;
/// With fewer measurements, the earlier rate is not known well enough.
const RATE_COUNT_MIN: u32 = 8;
/// Weights of a new measurement: in the earlier rate, and in the present one.
const WEIGHTS: [f64; 2] = [1.0 / 32.0, 1.0 / 2.0];
/// After this time without a measurement, the present rate is unknown.
const RATE_TIME: Duration = Duration::from_secs(60);

/// The direction of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the home.
    Up,
    /// From the home.
    Down,
}

/// The rates in one direction, as logarithms: halving and doubling count alike.
#[derive(Clone, Copy, Default)]
struct Trend {
    was: f64,
    is: f64,
    count: u32,
    last: Duration,
}

/// Past losses and rates, from which a loss is forecast.
#[derive(Default)]
pub(crate) struct LossForecast {
    losses: VecDeque<Duration>,
    trends: [Trend; 2],
}

impl LossForecast {
    /// The connection was lost, and the user did not ask for that.
    pub(crate) fn lost(&mut self, now: Duration) {
        if self.losses.back().is_some_and(|last| now < *last + ONE_LOSS_TIME) {
            return;
        }
        self.losses.push_back(now);
        if self.losses.len() > LOSS_COUNT {
            self.losses.pop_front();
        }
    }

    /// The link carried `rate` bytes per second.
    pub(crate) fn measured(&mut self, now: Duration, direction: Direction, rate: f64) {
        let trend = &mut self.trends[direction as usize];
        let rate = rate.max(1.0).ln();
        if trend.count == 0 {
            (trend.was, trend.is) = (rate, rate);
        }
        trend.was += WEIGHTS[0] * (rate - trend.was);
        trend.is += WEIGHTS[1] * (rate - trend.is);
        (trend.count, trend.last) = (trend.count.saturating_add(1), now);
    }

    /// True if the link may soon be lost.
    pub(crate) fn disconnection_is_likely(&self, now: Duration) -> bool {
        let often = self.losses.len() >= LOSS_COUNT && self.losses.iter().all(|loss| now < *loss + LOSS_TIME);
        let fades = |trend: &Trend| {
            let is_known = trend.count >= RATE_COUNT_MIN && now < trend.last + RATE_TIME;
            is_known && trend.is < FADED_RATE.ln() && trend.is < trend.was - FADE.ln()
        };
        often || self.trends.iter().any(fades)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn measured(forecast: &mut LossForecast, rates: impl IntoIterator<Item = f64>) {
        rates.into_iter().for_each(|rate| forecast.measured(SECOND, Direction::Down, rate));
    }

    #[test]
    fn a_connection_that_is_lost_again_and_again_will_be_lost_again() {
        let mut forecast = LossForecast::default();
        for minute in [0, 10, 11] {
            forecast.lost(minute * 60 * SECOND);
            assert!(!forecast.disconnection_is_likely(minute * 60 * SECOND));
        }
        forecast.lost(12 * 60 * SECOND);
        assert!(forecast.disconnection_is_likely(13 * 60 * SECOND));
        // Until it has held for a while.
        assert!(!forecast.disconnection_is_likely(16 * 60 * SECOND));
    }

    #[test]
    fn a_link_that_becomes_slow_is_about_to_be_lost() {
        let mut forecast = LossForecast::default();
        measured(&mut forecast, [1e6; 20]);
        assert!(!forecast.disconnection_is_likely(SECOND));
        measured(&mut forecast, [5e5, 1e5, 3e4, 1e4, 1e4]);
        assert!(forecast.disconnection_is_likely(SECOND));
        assert!(!forecast.disconnection_is_likely(SECOND + RATE_TIME));
        // A link that stays slow is a slow link, and one that is fast again had a bad moment.
        measured(&mut forecast, [1e6; 4]);
        assert!(!forecast.disconnection_is_likely(SECOND));
        measured(&mut forecast, [1e4; 100]);
        assert!(!forecast.disconnection_is_likely(SECOND));
    }

    #[test]
    fn regression_what_all_volumes_lose_at_once_is_one_loss() {
        let mut forecast = LossForecast::default();
        (0..12).for_each(|line| forecast.lost(SECOND + line * Duration::from_millis(10)));
        assert!(!forecast.disconnection_is_likely(2 * SECOND));
        forecast.lost(10 * SECOND);
        forecast.lost(20 * SECOND);
        assert!(forecast.disconnection_is_likely(21 * SECOND));
    }

    #[test]
    fn one_bad_moment_and_short_messages_on_a_fast_link_mean_nothing() {
        let mut forecast = LossForecast::default();
        measured(&mut forecast, [1e6; 20]);
        measured(&mut forecast, [1e5]);
        assert!(!forecast.disconnection_is_likely(SECOND));
        let mut forecast = LossForecast::default();
        measured(&mut forecast, [1e9; 20]);
        measured(&mut forecast, [2e5; 20]);
        assert!(!forecast.disconnection_is_likely(SECOND));
        // A link that was always slow.
        let mut forecast = LossForecast::default();
        measured(&mut forecast, [1e3; 50]);
        assert!(!forecast.disconnection_is_likely(SECOND));
    }
}
