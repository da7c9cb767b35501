//! How long the kernel may keep what it is told, given what the file system allows.
//!
//! On a shared mount, the kernel must be able to forget everything at any moment. A reply that is
//! written may still be on its way to the kernel's caches: the program's thread has yet to run. If
//! the kernel is told to forget just then, it must not take the reply for new (fs/fuse/dir.c):
//!
//! - *Names*: LOOKUP, CREATE and the like note the epoch before they ask, so their names are old
//!   after a new epoch. READDIRPLUS notes the epoch after the reply. So a shared mount does not ask
//!   for it.
//! - *Attributes*: GETATTR notes a version before it asks, and forgetting an inode raises the
//!   version. SETATTR, CREATE, MKNOD, MKDIR, SYMLINK and LINK do not look at it. LOOKUP does, but
//!   forgetting fails for an inode that the kernel is only about to make. So on a shared mount only
//!   replies to GETATTR carry attributes that the kernel may keep. A change of a name makes the
//!   kernel ask for the directory's attributes again, and does not raise their version either. So
//!   the front end makes it forget them before it answers.
//! - *Names that do not exist* are names, too.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use vfs::fs::Entry;

/// How much later than we the kernel may begin to count the time of a name. It counts from the
/// moment when the program's thread runs.
const LAG_MAX: Duration = Duration::from_secs(1);

/// How long the kernel may keep a name, and the attributes that come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryValid {
    pub(crate) name: Duration,
    pub(crate) attributes: Duration,
}

/// Whether the kernel keeps names, and until when it keeps those that it was told.
#[derive(Clone, Copy, Debug)]
struct Names {
    are_kept: bool,
    kept_until: Option<Instant>,
}

/// The rules of one mount.
#[derive(Debug)]
pub(crate) struct Validity {
    /// The mount is shared; names as the kernel keeps them.
    shared: Option<Mutex<Names>>,
    /// The longest time for which the kernel may keep a name.
    name_max: OnceLock<Duration>,
}

impl Validity {
    /// The rules of a mount. On a shared one, the kernel keeps no names until
    /// [`keep_names`](Self::keep_names) is called.
    pub(crate) fn new(is_shared: bool) -> Self {
        let names = Names { are_kept: false, kept_until: None };
        Validity { shared: is_shared.then_some(Mutex::new(names)), name_max: OnceLock::new() }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Limits how long the kernel keeps names from now on.
    pub(crate) fn bound_names(&self, max: Duration) {
        self.name_max.get_or_init(|| max);
    }

    /// For a reply with a name and its attributes.
    pub(crate) fn entry(&self, allowed: &Entry) -> EntryValid {
        let attributes = if self.is_shared() { Duration::ZERO } else { self.bounded(allowed.valid) };
        EntryValid { name: self.name(allowed.name_valid), attributes }
    }

    /// For a name that the file system allows to keep for `allowed`.
    fn name(&self, allowed: Duration) -> Duration {
        let bounded = self.bounded(allowed);
        let Some(names) = &self.shared else { return bounded };
        let mut names = names.lock();
        let name = if names.are_kept { bounded } else { Duration::ZERO };
        if !name.is_zero() {
            names.kept_until = names.kept_until.max(Instant::now().checked_add(name + LAG_MAX));
        }
        name
    }

    fn bounded(&self, allowed: Duration) -> Duration {
        self.name_max.get().map_or(allowed, |max| allowed.min(*max))
    }

    /// For a reply that has one time for the name and the attributes.
    pub(crate) fn whole_entry(&self, allowed: Duration) -> Duration {
        if self.is_shared() { Duration::ZERO } else { self.bounded(allowed) }
    }

    /// For a reply to a change of attributes.
    pub(crate) fn changed_attributes(&self, allowed: Duration) -> Duration {
        if self.is_shared() { Duration::ZERO } else { allowed }
    }

    /// For a name that does not exist.
    pub(crate) fn absence(&self, allowed: Duration) -> Duration {
        if self.is_shared() { self.name(allowed) } else { allowed }
    }

    /// Lets the kernel keep names from now on.
    pub(crate) fn keep_names(&self) {
        if let Some(names) = &self.shared {
            names.lock().are_kept = true;
        }
    }

    /// Lets the kernel keep no names from now on.
    pub(crate) fn stop_keeping_names(&self) {
        if let Some(names) = &self.shared {
            names.lock().are_kept = false;
        }
    }

    /// How long the kernel still keeps names that it was told.
    pub(crate) fn names_kept_for(&self) -> Duration {
        let until = self.shared.as_ref().and_then(|names| names.lock().kept_until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_secs(8);

    /// An entry whose name and attributes the kernel may keep for these times.
    fn entry(name_valid: Duration, valid: Duration) -> Entry {
        let attr = types::Attr {
            id: types::FileId::ROOT,
            kind: types::Kind::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            crtime: Default::default(),
        };
        Entry { attr, valid, name_valid }
    }

    fn kept(valid: Duration) -> Entry {
        entry(valid, valid)
    }

    #[test]
    fn a_mount_that_is_not_shared_keeps_what_the_file_system_allows() {
        let validity = Validity::new(false);
        assert_eq!(validity.entry(&kept(ALLOWED)), EntryValid { name: ALLOWED, attributes: ALLOWED });
        assert_eq!([validity.whole_entry(ALLOWED), validity.changed_attributes(ALLOWED)], [ALLOWED; 2]);
        let glimpsed = EntryValid { name: ALLOWED, attributes: Duration::ZERO };
        assert_eq!(validity.entry(&entry(ALLOWED, Duration::ZERO)), glimpsed);
        let second = Duration::from_secs(1);
        validity.bound_names(second);
        assert_eq!(validity.entry(&kept(ALLOWED)), EntryValid { name: second, attributes: second });
        assert_eq!(validity.absence(ALLOWED), ALLOWED);
    }

    #[test]
    fn a_shared_mount_keeps_no_attributes_but_those_that_were_asked_for() {
        let validity = Validity::new(true);
        validity.keep_names();
        assert_eq!(validity.entry(&kept(ALLOWED)), EntryValid { name: ALLOWED, attributes: Duration::ZERO });
        assert_eq!(validity.absence(ALLOWED), ALLOWED);
        let glimpsed = entry(ALLOWED, Duration::ZERO);
        assert_eq!(validity.entry(&glimpsed), EntryValid { name: ALLOWED, attributes: Duration::ZERO });
        assert_eq!([validity.whole_entry(ALLOWED), validity.changed_attributes(ALLOWED)], [Duration::ZERO; 2]);
    }

    #[test]
    fn names_count_as_kept_until_the_longest_of_them_ends() {
        let validity = Validity::new(true);
        assert!(validity.entry(&kept(ALLOWED)).name.is_zero() && validity.absence(ALLOWED).is_zero());
        assert!(validity.names_kept_for().is_zero(), "none was kept");
        validity.keep_names();
        validity.entry(&kept(ALLOWED));
        validity.entry(&kept(Duration::from_millis(1)));
        validity.stop_keeping_names();
        assert!(validity.entry(&kept(2 * ALLOWED)).name.is_zero());
        let rest = validity.names_kept_for();
        assert!(rest > ALLOWED / 2 && rest <= ALLOWED + LAG_MAX, "{rest:?}");
    }
}
