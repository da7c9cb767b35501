//! Working hours: a clock that runs only during a client's hours, beside the wall clock.

use super::draw::chance;
use host::SplitMix64;

/// Microseconds of an hour.
pub const HOUR_US: u64 = 3_600_000_000;
/// Microseconds of a day.
pub const DAY_US: u64 = 24 * HOUR_US;
/// Most days of a trace.
pub const DAY_COUNT_MAX: u32 = 3660;

/// Hours of work, one span after the other. Never empty.
#[derive(Debug)]
pub struct Hours {
    /// Each span with its first microsecond and its length.
    spans: Vec<(u64, u64)>,
    /// The current span, and the time worked before it.
    at: usize,
    before_us: u64,
}

impl Hours {
    /// From these spans, in their order.
    pub fn new(spans: Vec<(u64, u64)>) -> Hours {
        Hours { spans, at: 0, before_us: 0 }
    }

    /// A client's hours over `days` days, the first a Monday: six to eleven hours from between
    /// eight and eleven o'clock. At weekends only one client in three works, and half as long.
    pub fn of_client(days: u32, random: &SplitMix64) -> Hours {
        let mut spans = Vec::new();
        for day in 0..u64::from(days) {
            let (start, mut len) = (8 * HOUR_US + random.below(3 * HOUR_US), 6 * HOUR_US + random.below(5 * HOUR_US));
            if day % 7 >= 5 {
                if !chance(random, 1.0 / 3.0) {
                    continue;
                }
                len /= 2;
            }
            spans.push((day * DAY_US + start, len));
        }
        if spans.is_empty() {
            spans.push((8 * HOUR_US, 8 * HOUR_US));
        }
        Hours::new(spans)
    }

    /// A user's sessions over `days` days, the first a Monday, `total_us` together, at most four
    /// hours per day. There is one session in the morning and one in the afternoon, a third as long
    /// at weekends. Between two sessions is more than half an hour.
    pub fn of_user(days: u32, total_us: u64, random: &SplitMix64) -> Hours {
        let weights: Vec<u64> = (0..2 * u64::from(days))
            .map(|nth| (500 + random.below(1000)) / if nth / 2 % 7 >= 5 { 3 } else { 1 })
            .collect();
        let all: u64 = weights.iter().sum();
        let span = |(nth, weight): (u64, &u64)| {
            let start_us = if nth % 2 == 0 { 8 * HOUR_US } else { 14 * HOUR_US };
            let len_us = (u128::from(total_us) * u128::from(*weight) / u128::from(all)) as u64;
            (nth / 2 * DAY_US + start_us + random.below(HOUR_US), len_us.max(1))
        };
        Hours::new((0..).zip(&weights).map(span).collect())
    }

    /// All hours together, in microseconds.
    pub fn total_us(&self) -> u64 {
        self.spans.iter().map(|(_, len)| len).sum()
    }

    /// The wall-clock time at which `worked_us` was worked, which must not be less than in the last
    /// call. Work beyond the last hour comes after it.
    pub fn wall_us(&mut self, worked_us: u64) -> u64 {
        while self.at + 1 < self.spans.len() && worked_us - self.before_us >= self.spans[self.at].1 {
            self.before_us += self.spans[self.at].1;
            self.at += 1;
        }
        self.spans[self.at].0 + (worked_us - self.before_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_its_hours() {
        let mut hours = Hours::new(vec![(100, 10), (200, 5), (300, 1)]);
        assert_eq!(hours.total_us(), 16);
        let walls: Vec<u64> = [0, 9, 10, 14, 15, 16].map(|worked| hours.wall_us(worked)).into();
        assert_eq!(walls, [100, 109, 200, 204, 300, 301]);
    }

    #[test]
    fn sessions_of_a_user_are_as_long_as_is_set_and_apart() {
        for seed in 0..200 {
            for days in [1, 2, 5, 7, 8, 20] {
                let total_us = u64::from(days) * 4 * HOUR_US;
                let hours = Hours::of_user(days, total_us, &SplitMix64::new(seed));
                assert!(hours.total_us().abs_diff(total_us) <= 2 * u64::from(days), "{seed} {days}");
                let apart = hours.spans.windows(2).all(|pair| pair[0].0 + pair[0].1 + HOUR_US / 2 < pair[1].0);
                assert!(apart, "{seed} {days}: {:?}", hours.spans);
            }
        }
    }

    #[test]
    fn clients_work_on_each_day_of_the_week() {
        let random = SplitMix64::new(1);
        for days in [1, 2, 7, 30] {
            let hours = Hours::of_client(days, &random);
            let weekdays = u64::from(days / 7 * 5 + (days % 7).min(5));
            assert!((weekdays * 6 * HOUR_US..u64::from(days) * 11 * HOUR_US).contains(&hours.total_us()), "{days}");
            assert!(hours.spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert!(hours.spans.iter().all(|(start, len)| start % DAY_US + len < DAY_US));
        }
    }
}
