//! How fast something goes, and how long the rest of it takes.

use std::collections::VecDeque;
use std::time::Duration;

/// How far back the pace is looked at: short enough to follow a change of the load, long enough for
/// many steps of the work.
const WINDOW: Duration = Duration::from_secs(20);
/// Time between a mark and the one after the next, at least.
const MARK_PAUSE: Duration = Duration::from_millis(250);
/// Work that was not noted for so long has rested.
const REST: Duration = Duration::from_secs(10);
/// No time is told before the work has gone on for so long.
const SEEN_MIN: Duration = Duration::from_secs(1);

/// The pace of work that is counted in bytes, over the last seconds.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When how many bytes were done, ascending. The first one is older than the window, or is the
    /// beginning.
    marks: VecDeque<(Duration, u64)>,
}

impl Pace {
    /// Notes that `done` bytes are done in all, at `now` on some clock. Neither may decrease.
    pub fn note(&mut self, now: Duration, done: u64) {
        if self.marks.back().is_some_and(|last| now > last.0 + REST) {
            self.rest();
        }
        let before = self.marks.len().checked_sub(2).and_then(|at| self.marks.get(at));
        if before.is_some_and(|before| now < before.0 + MARK_PAUSE) {
            // The last mark is of no use yet.
            self.marks.pop_back();
        }
        self.marks.push_back((now, done));
        while self.marks.get(1).is_some_and(|second| second.0 + WINDOW <= now) {
            self.marks.pop_front();
        }
    }

    /// The work has ended, or rests: what follows has a pace of its own.
    pub fn rest(&mut self) {
        self.marks.clear();
    }

    /// Bytes per second; `None` before that can be told.
    pub fn rate(&self) -> Option<f64> {
        let (first, last) = (self.marks.front()?, self.marks.back()?);
        let time = last.0.checked_sub(first.0).filter(|time| *time >= SEEN_MIN)?;
        Some((last.1 - first.1) as f64 / time.as_secs_f64())
    }

    /// How long so many bytes take; `None` before that can be told, or if nothing moves.
    pub fn time_for(&self, bytes: u64) -> Option<Duration> {
        Duration::try_from_secs_f64(bytes as f64 / self.rate()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_left_follows_the_pace_of_the_last_seconds() {
        let mut pace = Pace::default();
        assert_eq!(pace.time_for(1), None);
        let mut done = 0;
        for at in 0..1000 {
            // At first 1 MB/s, and then 3.
            let now = SECOND * at / 10;
            done += if at <= 500 { 100_000 } else { 300_000 };
            pace.note(now, done);
            match at {
                0..10 => assert_eq!(pace.time_for(1), None, "too early at {at}"),
                10..=500 => assert!((pace.time_for(10_000_000).unwrap().as_secs_f64() - 10.0).abs() < 0.5),
                720.. => assert!((pace.time_for(30_000_000).unwrap().as_secs_f64() - 10.0).abs() < 0.5),
                _ => {}
            }
            assert!(pace.marks.len() < 170);
        }
        pace.note(SECOND * 200, done);
        assert_eq!(pace.rate(), None, "it has rested");
    }

    #[test]
    fn work_that_stands_still_takes_no_known_time() {
        let mut pace = Pace::default();
        (0..100).for_each(|at| pace.note(SECOND * at, 5));
        assert_eq!((pace.rate(), pace.time_for(7)), (Some(0.0), None));
    }
}
