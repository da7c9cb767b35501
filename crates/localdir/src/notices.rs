//! Notices that wait to be taken. The queue is bounded: if it overflows, all of it is lost, and the
//! next notice says so.
//!
//! Notices are hints to look again. So notices of the same entry are merged, and the order of
//! different ones is not guaranteed.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use tokio::sync::Notify;
use types::FileId;

/// Most notices that wait: the default of the kernel's own limit for one inotify instance.
pub const NOTICE_COUNT_MAX: usize = 16_384;

/// A hint that something in a watched directory may have changed.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum DirNotice {
    /// An entry of the directory. True if the name came or went, or means another file now. That
    /// changes the directory's own attributes, too.
    Entry(FileId, Vec<u8>, bool),
    /// The directory itself: its attributes or its place changed, or it is gone and is no longer
    /// watched.
    Directory(FileId),
    /// Notices were lost: everything that is watched may have changed.
    Lost,
}

/// A directory, with the name of an entry unless the notice is about the directory itself.
type Subject = (FileId, Option<Vec<u8>>);

/// The notices that wait, merged and bounded.
pub struct Notices {
    waiting: Mutex<Waiting>,
    more: Notify,
    count_max: usize,
}

#[derive(Default)]
struct Waiting {
    order: VecDeque<Subject>,
    /// Whether names changed, for each subject in `order`.
    names_changed: HashMap<Subject, bool>,
    /// `Lost` is the next notice. It covers everything that is noticed until then.
    lost: bool,
    /// There will be no more notices.
    ended: bool,
}

impl Notices {
    /// Makes a queue for at most `count_max` notices.
    pub fn new(count_max: usize) -> Notices {
        Notices { waiting: Mutex::default(), more: Notify::new(), count_max }
    }

    /// Adds a notice of an entry, or of the directory itself.
    pub fn push(&self, dir: FileId, name: Option<&[u8]>, names_changed: bool) {
        let mut waiting = self.waiting.lock();
        if waiting.lost {
            return;
        }
        let subject = (dir, name.map(<[u8]>::to_vec));
        if let Some(before) = waiting.names_changed.get_mut(&subject) {
            *before |= names_changed;
            return;
        }
        if waiting.order.len() >= self.count_max {
            drop(waiting);
            return self.lose();
        }
        waiting.order.push_back(subject.clone());
        waiting.names_changed.insert(subject, names_changed);
        drop(waiting);
        self.more.notify_one();
    }

    /// Replaces all notices by `Lost`.
    pub fn lose(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { lost: true, ended: waiting.ended, ..Waiting::default() };
        drop(waiting);
        self.more.notify_one();
    }

    /// Ends the queue. Once it is empty, each further notice is `Lost`.
    pub fn end(&self) {
        self.waiting.lock().ended = true;
        self.more.notify_one();
    }

    /// True if `Lost` is the next notice.
    #[cfg(test)]
    pub fn has_lost(&self) -> bool {
        self.waiting.lock().lost
    }

    /// Takes the notice that has waited longest.
    pub fn take(&self) -> Option<DirNotice> {
        let mut waiting = self.waiting.lock();
        if std::mem::take(&mut waiting.lost) {
            return Some(DirNotice::Lost);
        }
        let Some(subject) = waiting.order.pop_front() else { return waiting.ended.then_some(DirNotice::Lost) };
        let names_changed = waiting.names_changed.remove(&subject).unwrap_or(true);
        Some(match subject {
            (dir, Some(name)) => DirNotice::Entry(dir, name, names_changed),
            (dir, None) => DirNotice::Directory(dir),
        })
    }

    /// Waits for a notice, and takes the one that has waited longest. A caller that gives up the
    /// wait loses nothing. Only one caller at a time may wait.
    pub async fn next(&self) -> DirNotice {
        loop {
            if let Some(noticed) = self.take() {
                return noticed;
            }
            self.more.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: FileId = FileId::ROOT;

    fn all(notices: &Notices) -> Vec<DirNotice> {
        std::iter::from_fn(|| notices.take()).collect()
    }

    #[test]
    fn notices_of_the_same_entry_are_one_until_it_is_taken() {
        let notices = Notices::new(10);
        for (name, names_changed) in [("a", false), ("b", true), ("a", true), ("b", false)] {
            notices.push(DIR, Some(name.as_bytes()), names_changed);
        }
        notices.push(DIR, None, false);
        notices.push(DIR, None, false);
        let entry = |name: &str| DirNotice::Entry(DIR, name.into(), true);
        assert_eq!(all(&notices), [entry("a"), entry("b"), DirNotice::Directory(DIR)]);
        notices.push(DIR, Some(b"a"), false);
        assert_eq!(all(&notices), [DirNotice::Entry(DIR, b"a".into(), false)]);
    }

    #[test]
    fn too_many_notices_are_lost_and_this_is_said_once() {
        let notices = Notices::new(2);
        for name in ["a", "b", "a", "c", "d"] {
            notices.push(DIR, Some(name.as_bytes()), true);
        }
        assert_eq!(all(&notices), [DirNotice::Lost]);
        notices.push(DIR, Some(b"e"), true);
        assert_eq!(all(&notices), [DirNotice::Entry(DIR, b"e".into(), true)]);
    }

    #[test]
    fn what_waits_is_told_before_the_end() {
        let notices = Notices::new(2);
        notices.push(DIR, None, false);
        notices.end();
        assert_eq!(notices.take(), Some(DirNotice::Directory(DIR)));
        assert_eq!((notices.take(), notices.take()), (Some(DirNotice::Lost), Some(DirNotice::Lost)));
    }
}
