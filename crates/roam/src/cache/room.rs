//! How much room the cache has. Pure.

use std::time::Duration;

/// A full cache is emptied to this share of its bound.
pub(super) const LOW_WATER: (u64, u64) = (9, 10);

/// What the cache holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) all: u64,
    /// Part of `all`: can be fetched again, and is not in use.
    pub(super) idle: u64,
    /// Part of `all`: becomes evictable when the operations that wait are home.
    pub(super) waiting: u64,
}

/// Whether there is room for a write or a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Yes, and this many bytes are free in all.
    Free(u64),
    /// After this many bytes were evicted.
    GiveUp(u64),
    /// After some of the operations that wait have gone home.
    Wait,
    /// Not within the bound, and waiting does not help.
    Beyond,
}

pub(super) fn room_for(len: u64, usage: Usage, bound: u64, goes_home: bool) -> Room {
    let wanted = usage.all.saturating_add(len);
    match wanted.checked_sub(bound) {
        None | Some(0) => Room::Free(bound - usage.all),
        Some(_) if usage.idle > 0 => Room::GiveUp(wanted - bound / LOW_WATER.1 * LOW_WATER.0),
        Some(_) if goes_home && usage.waiting > 0 => Room::Wait,
        Some(_) => Room::Beyond,
    }
}

/// What the client knows about its room.
#[derive(Default)]
pub(crate) struct Spare {
    /// Bytes that may enter the cache before the client looks again how full it is.
    pub(super) left: u64,
    /// How many writers wait for room.
    pub(super) waiting: usize,
    /// Bytes that have gone home since a writer waits, and that no writer has used up yet.
    earned: u64,
    /// The log line that writers wait was written.
    pub(super) told: bool,
    /// When the full disk last refused something.
    pub(super) full: Option<Duration>,
}

impl Spare {
    /// Notes that `len` bytes have entered the cache, or are about to. False if the client has to
    /// look how full it is.
    pub(crate) fn take(&mut self, len: u64) -> bool {
        let left = self.left.checked_sub(len);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Notes that `len` bytes have gone home. True if a writer waits for that.
    pub(crate) fn went_home(&mut self, len: u64) -> bool {
        let waits = self.waiting > 0;
        self.earned = if waits { self.earned.saturating_add(len) } else { 0 };
        waits
    }

    /// Uses up bytes that have gone home for a write. False if there are not enough.
    pub(super) fn earn(&mut self, len: u64) -> bool {
        let rest = self.earned.checked_sub(len);
        self.earned = rest.unwrap_or(self.earned);
        rest.is_some()
    }

    /// Forces a look at how full the cache is, since its bound has changed.
    pub(crate) fn look_again(&mut self) {
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_had_again_goes_before_anybody_waits_and_nobody_waits_for_nothing() {
        let usage = |all, idle, waiting| Usage { all, idle, waiting };
        for goes_home in [false, true] {
            assert_eq!(room_for(10, usage(90, 50, 40), 100, goes_home), Room::Free(10));
            assert_eq!(room_for(11, usage(90, 50, 40), 100, goes_home), Room::GiveUp(11));
            assert_eq!(room_for(0, usage(101, 1, 100), 100, goes_home), Room::GiveUp(11));
            // Bytes that are being written cannot go home.
            assert_eq!(room_for(1, usage(100, 0, 0), 100, goes_home), Room::Beyond);
        }
        assert_eq!(room_for(1, usage(100, 0, 1), 100, true), Room::Wait);
        assert_eq!(room_for(1, usage(100, 0, 1), 100, false), Room::Beyond);
        assert_eq!(room_for(u64::MAX, usage(0, 0, 0), 100, true), Room::Beyond);
    }

    #[test]
    fn whoever_writes_goes_on_when_as_much_has_gone_home() {
        let mut spare = Spare::default();
        assert!(!spare.went_home(10) && !spare.earn(1));
        spare.waiting = 2;
        assert!(spare.went_home(10) && spare.went_home(5));
        assert!(!spare.earn(16) && spare.earn(14));
        // Bytes that one writer has used do not count for another.
        assert!(!spare.earn(14) && spare.earn(1));
    }
}
