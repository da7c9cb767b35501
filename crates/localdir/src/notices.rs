//! What was noticed and nobody has taken yet. Bounded: what would be too much is lost, and said to
//! be so.
//!
//! Notices are hints to look again, so those of the same entry are one, and an order among
//! different ones is not promised.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use tokio::sync::Notify;
use types::FileId;

/// Most notices that wait; as many as the kernel keeps for us.
pub const NOTICE_COUNT_MAX: usize = 16_384;

/// Something in a watched directory may have changed: it is time to look.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Noticed {
    /// An entry of the directory. True if the name came, went, or is another file's now, which
    /// changes the directory's own attributes, too.
    Entry(FileId, Vec<u8>, bool),
    /// The directory itself: its attributes, its place, or it has gone and is not watched any more.
    Directory(FileId),
    /// Notices were lost: everything that is watched may have changed.
    Lost,
}

/// A directory, and an entry unless it is about itself.
type Subject = (FileId, Option<Vec<u8>>);

/// See the module's header.
pub struct Notices {
    waiting: Mutex<Waiting>,
    more: Notify,
    count_max: usize,
}

#[derive(Default)]
struct Waiting {
    order: VecDeque<Subject>,
    /// Whether names changed, of all that are in order.
    names_changed: HashMap<Subject, bool>,
    /// To be said next, and it covers all that is noticed until then.
    lost: bool,
    /// There will be no more.
    ended: bool,
}

impl Notices {
    /// At most so many wait.
    pub fn new(count_max: usize) -> Notices {
        Notices { waiting: Mutex::default(), more: Notify::new(), count_max }
    }

    /// An entry, or the directory itself, was noticed.
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

    /// Something was missed.
    pub fn lose(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { lost: true, ended: waiting.ended, ..Waiting::default() };
        drop(waiting);
        self.more.notify_one();
    }

    /// From now on, everything is missed.
    pub fn end(&self) {
        self.waiting.lock().ended = true;
        self.more.notify_one();
    }

    /// True if it will be said next that something was missed.
    #[cfg(test)]
    pub fn has_lost(&self) -> bool {
        self.waiting.lock().lost
    }

    /// What has waited longest.
    pub fn take(&self) -> Option<Noticed> {
        let mut waiting = self.waiting.lock();
        if std::mem::take(&mut waiting.lost) {
            return Some(Noticed::Lost);
        }
        let Some(subject) = waiting.order.pop_front() else { return waiting.ended.then_some(Noticed::Lost) };
        let names_changed = waiting.names_changed.remove(&subject).unwrap_or(true);
        Some(match subject {
            (dir, Some(name)) => Noticed::Entry(dir, name, names_changed),
            (dir, None) => Noticed::Directory(dir),
        })
    }

    /// What has waited longest, as soon as there is something. Nothing is lost by giving up the
    /// wait. One caller at a time.
    pub async fn next(&self) -> Noticed {
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

    fn all(notices: &Notices) -> Vec<Noticed> {
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
        let entry = |name: &str| Noticed::Entry(DIR, name.into(), true);
        assert_eq!(all(&notices), [entry("a"), entry("b"), Noticed::Directory(DIR)]);
        notices.push(DIR, Some(b"a"), false);
        assert_eq!(all(&notices), [Noticed::Entry(DIR, b"a".into(), false)]);
    }

    #[test]
    fn too_many_notices_are_lost_and_this_is_said_once() {
        let notices = Notices::new(2);
        for name in ["a", "b", "a", "c", "d"] {
            notices.push(DIR, Some(name.as_bytes()), true);
        }
        assert_eq!(all(&notices), [Noticed::Lost]);
        notices.push(DIR, Some(b"e"), true);
        assert_eq!(all(&notices), [Noticed::Entry(DIR, b"e".into(), true)]);
    }

    #[test]
    fn what_waits_is_told_before_the_end() {
        let notices = Notices::new(2);
        notices.push(DIR, None, false);
        notices.end();
        assert_eq!(notices.take(), Some(Noticed::Directory(DIR)));
        assert_eq!((notices.take(), notices.take()), (Some(Noticed::Lost), Some(Noticed::Lost)));
    }
}
