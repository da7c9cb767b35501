//! When reading updates the access time: relatime, as Linux mounts by default.

use types::Time;

/// Access times older than this are updated by any read, in seconds.
pub const ATIME_AGE_MAX_SEC: i64 = 24 * 60 * 60;

/// True if a read at `now` updates `atime`: it is not newer than the last change of contents or
/// attributes, or it is a day old.
pub fn needs_update(atime: Time, mtime: Time, ctime: Time, now: Time) -> bool {
    atime <= mtime || atime <= ctime || now.sec.saturating_sub(atime.sec) >= ATIME_AGE_MAX_SEC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atime_moves_only_past_changes_or_daily() {
        let t = |sec| Time { sec, nsec: 5 };
        assert!(needs_update(t(10), t(10), t(1), t(11)), "written since");
        assert!(needs_update(t(10), t(1), t(10), t(11)), "changed since");
        assert!(!needs_update(t(10), t(1), t(9), t(11)));
        assert!(!needs_update(t(10), t(1), t(9), t(10 + ATIME_AGE_MAX_SEC - 1)));
        assert!(needs_update(t(10), t(1), t(9), t(10 + ATIME_AGE_MAX_SEC)), "a day old");
    }
}
