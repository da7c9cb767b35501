//! Times of strace's lines.

use super::StraceError;
use crate::import::time_us;

/// Stamps of at least this many seconds count from 1970, and not from the line before.
const SINCE_1970_S: u64 = 100_000_000;
const DAY_US: u64 = 86_400_000_000;
/// If a clock goes back by at most this much, time stands still; beyond it, the trace is unsorted.
const BACK_US_MAX: u64 = 1_000_000;

/// The meaning of a line's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stamp {
    /// The time of day (-t, -tt).
    OfDay,
    /// Time since 1970.
    Since1970,
    /// Time since the line before it.
    SinceLast,
}

/// Converts times, in any of strace's formats; all lines must use the same one.
#[derive(Debug, Default)]
pub struct Clock {
    kind: Option<Stamp>,
    begun_us: Option<u64>,
    /// The last line's time as written, and since the beginning.
    stamp_us: u64,
    pub now_us: u64,
}

impl Clock {
    /// The time of the first line, in microseconds since 1970; `None` before it was read, or if
    /// times do not count from 1970.
    pub fn begun_us(&self) -> Option<u64> {
        self.begun_us.filter(|_| self.kind == Some(Stamp::Since1970))
    }

    /// The time since the first line.
    pub fn at(&mut self, stamp: &str) -> Result<u64, StraceError> {
        let wrong = || StraceError::NotTime(stamp.to_owned());
        let (us, kind) = match stamp.split(':').collect::<Vec<_>>()[..] {
            [hours, minutes, seconds] => {
                let part = |text: &str, most: u64| time_us(text).filter(|us| *us < most * 1_000_000);
                let (hours, minutes) = (part(hours, 24), part(minutes, 60));
                let of_day = hours.zip(minutes).zip(part(seconds, 61));
                let ((hours, minutes), seconds) = of_day.ok_or_else(wrong)?;
                let mut us = hours * 3600 + minutes * 60 + seconds;
                // A day begins at each midnight.
                while self.begun_us.is_some() && us + DAY_US / 2 < self.stamp_us {
                    us += DAY_US;
                }
                (us, Stamp::OfDay)
            }
            [seconds] => {
                let us = time_us(seconds).ok_or_else(wrong)?;
                (us, if us < SINCE_1970_S * 1_000_000 { Stamp::SinceLast } else { Stamp::Since1970 })
            }
            _ => return Err(wrong()),
        };
        if *self.kind.get_or_insert(kind) != kind {
            return Err(StraceError::OtherTime(stamp.to_owned()));
        }
        if kind == Stamp::SinceLast {
            // Counts from the line before it; the first line has none.
            if self.begun_us.replace(0).is_some() {
                self.now_us = self.now_us.checked_add(us).ok_or_else(wrong)?;
            }
            return Ok(self.now_us);
        }
        let begun_us = *self.begun_us.get_or_insert(us);
        if us + BACK_US_MAX < self.stamp_us {
            return Err(StraceError::Earlier);
        }
        self.stamp_us = us.max(self.stamp_us);
        self.now_us = us.saturating_sub(begun_us).max(self.now_us);
        Ok(self.now_us)
    }
}
