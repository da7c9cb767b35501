//! Changes of a file's bytes in the cache that are not logged yet.
//!
//! All transitions are here. Two things hold, even if a step fails:
//!
//! - A file is [`Changes::Logged`] only if users see the same bytes that the home will be told of.
//! - If a waiting store is dropped because its file is about to change again ([`Changes::owe`]),
//!   its change is part of what is logged next.

use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use types::Time;

/// Changes of a file's bytes in the cache that are not logged yet. Only whether the state is
/// [`Logged`](Self::Logged) is lasting. After a crash, the client logs all bytes that the cache has
/// of files in other states. Changes in memory that the log does not hold are lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Changes {
    /// Nothing.
    #[default]
    Logged,
    /// Nothing yet, but a writer is about to make the file ready to be changed.
    Marked,
    /// As `Marked`, and this change of a dropped store is to be logged.
    Owed(Change),
    /// Nothing yet, and the file is ready to be changed.
    Ready,
    /// This change is to be logged, and the file is ready to be changed further.
    Made(Change),
}

impl Changes {
    /// Notes that the log durably allows the bytes to change.
    pub(crate) fn mark(&mut self) {
        if *self == Changes::Logged {
            *self = Changes::Marked;
        }
    }

    /// Notes that the file was made ready, with its bytes as they were. False if the file is no
    /// longer to be changed.
    pub(crate) fn ready(&mut self) -> bool {
        *self = match std::mem::take(self) {
            Changes::Logged => return false,
            Changes::Marked => Changes::Ready,
            Changes::Owed(change) => Changes::Made(change),
            begun => begun,
        };
        true
    }

    /// Notes that the file was made ready, and emptied.
    pub(crate) fn ready_empty(&mut self, mtime: Time) {
        *self = Changes::Made(Change::of_all(0, mtime));
    }

    /// Notes a change of the bytes of a file of this size. `None` if the file is not ready.
    pub(crate) fn make(&mut self, size: u64, mtime: Time, make: impl FnOnce(&mut Change)) -> Option<&Change> {
        if *self == Changes::Ready {
            *self = Changes::Made(Change { cut: size, size, ranges: Ranges::default(), mtime });
        }
        let Changes::Made(change) = self else { return None };
        change.mtime = mtime;
        make(change);
        change.bound();
        Some(change)
    }

    /// Takes over the change of a waiting store that is not sent any more. True if what is logged
    /// next includes it; false if nothing will be logged.
    pub(crate) fn owe(&mut self, dropped: Change) -> bool {
        *self = match std::mem::take(self) {
            Changes::Logged => return false,
            Changes::Marked => Changes::Owed(dropped),
            Changes::Owed(before) => Changes::Owed(dropped.along(&before)),
            Changes::Ready => Changes::Made(dropped),
            Changes::Made(change) => Changes::Made(change.along(&dropped)),
        };
        true
    }

    /// The change that is to be logged; `None`: none.
    pub(crate) fn to_log(&self) -> Option<&Change> {
        match self {
            Changes::Logged | Changes::Marked | Changes::Ready => None,
            Changes::Owed(change) | Changes::Made(change) => Some(change),
        }
    }

    /// Sets the time of modification that the user asked for.
    pub(crate) fn date(&mut self, mtime: Time) {
        if let Changes::Made(change) = self {
            change.mtime = mtime;
        }
    }

    /// True if the file is ready to be changed.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Changes::Ready | Changes::Made(_))
    }

    /// True if the file was made ready, or has a change to be logged.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_ready() || matches!(self, Changes::Owed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10;

    const THEN: Time = Time { sec: 1, nsec: 0 };

    fn write(changes: &mut Changes) {
        assert!(changes.make(SIZE, THEN, |change| change.ranges.add(0..1)).is_some());
    }

    /// Drops a store after some of the steps that change its file, and looks at what is logged.
    #[test]
    fn a_store_that_is_dropped_at_any_step_is_part_of_what_is_logged_next() {
        let steps: [fn(&mut Changes); 3] = [Changes::mark, |changes| assert!(changes.ready()), write];
        let part = Change { cut: 8, size: SIZE, ranges: Ranges::of(2..3), mtime: THEN };
        for dropped in [Change::of_all(SIZE, THEN), part] {
            for at in 1..=steps.len() {
                for last in at..=steps.len() {
                    let mut changes = Changes::default();
                    steps[..at].iter().for_each(|step| step(&mut changes));
                    assert!(changes.owe(dropped.clone()));
                    steps[at..last].iter().for_each(|step| step(&mut changes));
                    let mut expected = dropped.clone();
                    if last == steps.len() {
                        expected.ranges.add(0..1);
                    }
                    assert_eq!(changes.to_log(), Some(&expected), "dropped after {at} of {last} steps");
                }
            }
        }
        assert!(!Changes::Logged.owe(Change::of_all(SIZE, THEN)), "then it is a conflict");
    }

    #[test]
    fn of_several_stores_that_are_dropped_all_is_logged() {
        let mut changes = Changes::Marked;
        for start in [2, 6] {
            let ranges = Ranges::of(start..start + 1);
            assert!(changes.owe(Change { cut: SIZE, size: SIZE, ranges, mtime: THEN }));
        }
        let mut both = Ranges::of(2..3);
        both.add(6..7);
        assert_eq!(changes.to_log().map(|change| &change.ranges), Some(&both));
    }

    #[test]
    fn what_was_only_made_ready_is_not_logged() {
        let mut changes = Changes::default();
        assert!(!changes.ready());
        changes.mark();
        assert_eq!(changes.to_log(), None);
        assert!(changes.ready());
        assert_eq!(changes.to_log(), None);
        write(&mut changes);
        let change = changes.to_log().expect("changed");
        assert_eq!((change.cut, change.size, &change.ranges), (SIZE, SIZE, &Ranges::of(0..1)));
    }

    #[test]
    fn what_was_emptied_is_logged_as_empty() {
        let mut changes = Changes::Marked;
        changes.ready_empty(THEN);
        assert_eq!(changes.to_log(), Some(&Change::of_all(0, THEN)));
    }
}
