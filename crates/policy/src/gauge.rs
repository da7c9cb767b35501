//! How busy a store is with requests of programs, and how long other work should rest.
//!
//! Work that can wait, such as restoring redundancy, takes what programs leave: all of a store that
//! no program uses, and a small part of one that programs keep busy. It should cost them less than
//! a tenth, and it always goes on.

use std::time::Duration;

/// The time over which shares are averaged.
const MEMORY: Duration = Duration::from_millis(500);
/// For each part of the time that programs use a store, other work leaves it alone for so many
/// parts: while they wait for the processor or the network, they use it, too, and are not seen.
const LEFT_ALONE: f64 = 4.0;
/// The share of its time that a store has for other work in any case. Such work costs programs more
/// than this, since it takes processors, too.
const SHARE_MIN: f64 = 0.07;

/// Less than this of a store's time is allowed: programs use it.
const IN_USE: f64 = 0.5;
/// The shortest rest while programs use a store. So who asks knows it, and may rest longer.
const REST_MIN: Duration = Duration::from_millis(1);

/// The share of time in which something was under way, in the last moments.
#[derive(Clone, Debug, Default)]
struct Busy {
    under_way: u32,
    share: f64,
    /// When `share` was right.
    at: Duration,
}

impl Busy {
    fn share_at(&self, now: Duration) -> f64 {
        let rest = f64::exp(-(now.saturating_sub(self.at).as_secs_f64() / MEMORY.as_secs_f64()));
        self.share * rest + if self.under_way > 0 { 1.0 - rest } else { 0.0 }
    }

    fn set(&mut self, now: Duration, under_way: u32) {
        (self.share, self.at) = (self.share_at(now), now);
        self.under_way = under_way;
    }
}

/// What a store does, and for whom. Times are of one clock, and do not decrease.
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    programs: Busy,
    others: Busy,
}

/// Without what is smaller than a millisecond, so that all processors find the same.
fn in_ms(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}

impl Gauge {
    /// A request begins. `can_wait`: it is not of a program.
    pub fn begin(&mut self, now: Duration, can_wait: bool) {
        let busy = self.of(can_wait);
        busy.set(now, busy.under_way + 1);
    }

    /// A request has ended, or was given up.
    pub fn end(&mut self, now: Duration, can_wait: bool) {
        let busy = self.of(can_wait);
        busy.set(now, busy.under_way.saturating_sub(1));
    }

    /// How long work that can wait should rest before its next request. Zero only if programs
    /// hardly use the store.
    pub fn rest(&self, now: Duration) -> Duration {
        let allowed = (1.0 - LEFT_ALONE * self.programs.share_at(now)).max(SHARE_MIN);
        let used = self.others.share_at(now);
        let least = if allowed < IN_USE { REST_MIN } else { Duration::ZERO };
        if used <= allowed { least } else { in_ms(MEMORY.mul_f64((used / allowed).ln())).max(least) }
    }

    fn of(&mut self, can_wait: bool) -> &mut Busy {
        if can_wait { &mut self.others } else { &mut self.programs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The share of ten seconds that other work gets, in requests of 5 ms, while a program has a
    /// request of `busy_ms` under way in each 20 ms.
    fn share(busy_ms: u32) -> f64 {
        let (mut gauge, mut rests_until, mut worked) = (Gauge::default(), MS, 0);
        for at in (0..10_000).step_by(5) {
            let now = MS * at;
            if at % 20 == 0 && busy_ms > 0 {
                gauge.begin(now, false);
            }
            if at % 20 == busy_ms && busy_ms > 0 && busy_ms < 20 {
                gauge.end(now, false);
            }
            if now >= rests_until {
                gauge.begin(now, true);
                gauge.end(now + 5 * MS, true);
                rests_until = now + 5 * MS + gauge.rest(now + 5 * MS);
                worked += 5;
            }
        }
        f64::from(worked) / 10_000.0
    }

    #[test]
    fn other_work_has_what_programs_leave_and_always_some_of_it() {
        assert!(share(0) > 0.99, "{}", share(0));
        for busy in [5, 10, 15, 20] {
            assert!((0.05..0.13).contains(&share(busy)), "{busy}: {}", share(busy));
        }
    }

    #[test]
    fn a_store_that_was_busy_is_free_again_after_moments() {
        let mut gauge = Gauge::default();
        gauge.begin(Duration::ZERO, false);
        gauge.begin(Duration::ZERO, true);
        let now = 5000 * MS;
        assert!(gauge.rest(now) > MEMORY, "both are busy all the time");
        gauge.end(now, false);
        assert!(gauge.rest(now + 5 * MEMORY) < 20 * MS);
        gauge.end(now, true);
        gauge.end(now, true);
        assert_eq!(gauge.rest(now + 5 * MEMORY), Duration::ZERO);
        assert_eq!(gauge.others.under_way, 0, "an end too many does no harm");
    }

    #[test]
    fn a_rest_that_was_taken_is_enough() {
        let mut gauge = Gauge::default();
        gauge.begin(Duration::ZERO, false);
        gauge.begin(3000 * MS, true);
        gauge.end(3500 * MS, true);
        let rest = gauge.rest(3500 * MS);
        assert!(rest > 100 * MS && rest < 3 * MEMORY, "{rest:?}");
        assert_eq!(gauge.rest(3500 * MS + rest), REST_MIN);
    }
}
