//! Listings that the kernel of a shared mount keeps.
//!
//! The kernel keeps the listing of a directory in pages of that directory, if the answer to OPENDIR
//! allows it (`FOPEN_CACHE_DIR`). It drops them at an OPENDIR whose answer does not say that they
//! may stay (`FOPEN_KEEP_CACHE`). So nothing has to be dropped when a directory is recalled: its
//! next OPENDIR does that, in the thread of the program. What has to be told apart (fs/fuse/dir.c,
//! fs/fuse/readdir.c):
//!
//! - A program that is still listing adds to the pages what it was told before the recall. So while
//!   a directory is open from before, no new opening caches anything.
//! - A program whose OPENDIR is answered has not yet dropped the pages. Its first READDIR shows
//!   that it has. Until then, other openings drop them too.
//! - A program may list a directory that stays open from its first entry again (rewinddir(3)). The
//!   kernel then asks for the time of modification and compares it (`FUSE_AUTO_INVAL_DATA`). A
//!   program at another node may have set the earlier time again. So the pages of a directory that
//!   is open are dropped soon after a recall, too.

use fuser::FopenFlags;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Most directories that are remembered. What is not remembered is dropped at the next opening.
const DIRECTORIES_MAX: usize = 65_536;

/// The pages of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pages {
    /// They may be from before a recall.
    Old,
    /// All that have the directory open drop them, or have dropped them, before they list it.
    Dropping,
    /// There are none from before a recall.
    Current,
}

#[derive(Clone, Copy, Debug)]
struct Directory {
    open_count: u64,
    pages: Pages,
}

/// The directories of one mount, by inode.
#[derive(Default)]
pub(crate) struct Listings(Mutex<HashMap<u64, Directory>>);

impl Listings {
    /// The flags for the answer to an OPENDIR. Call it in the section that answers.
    pub(crate) fn opened(&self, inode: u64) -> FopenFlags {
        let mut directories = self.0.lock();
        if directories.len() >= DIRECTORIES_MAX {
            directories.retain(|_, directory| directory.open_count > 0);
        }
        let directory = directories.entry(inode).or_insert(Directory { open_count: 0, pages: Pages::Old });
        if directory.open_count == 0 && directory.pages == Pages::Old {
            directory.pages = Pages::Dropping;
        }
        directory.open_count += 1;
        match directory.pages {
            Pages::Old => FopenFlags::empty(),
            Pages::Dropping => FopenFlags::FOPEN_CACHE_DIR,
            Pages::Current => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    /// A program that has a directory open asks for its entries.
    pub(crate) fn asked(&self, inode: u64) {
        if let Some(directory) = self.0.lock().get_mut(&inode)
            && directory.pages == Pages::Dropping
        {
            directory.pages = Pages::Current;
        }
    }

    /// A program has closed a directory.
    pub(crate) fn closed(&self, inode: u64) {
        if let Some(directory) = self.0.lock().get_mut(&inode) {
            directory.open_count = directory.open_count.saturating_sub(1);
        }
    }

    /// A directory is recalled. True if a program has it open: the caller has its pages dropped.
    pub(crate) fn recalled(&self, inode: u64) -> bool {
        let mut directories = self.0.lock();
        match directories.get_mut(&inode) {
            Some(directory) if directory.open_count > 0 => {
                directory.pages = Pages::Old;
                true
            }
            _ => {
                directories.remove(&inode);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: u64 = 7;
    const NONE: FopenFlags = FopenFlags::empty();
    const DROP: FopenFlags = FopenFlags::FOPEN_CACHE_DIR;

    fn keep() -> FopenFlags {
        FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE
    }

    #[test]
    fn pages_stay_once_a_program_that_drops_them_has_asked() {
        let listings = Listings::default();
        assert_eq!([listings.opened(DIRECTORY), listings.opened(DIRECTORY)], [DROP, DROP]);
        listings.asked(DIRECTORY);
        assert_eq!(listings.opened(DIRECTORY), keep());
        (0..3).for_each(|_| listings.closed(DIRECTORY));
        assert_eq!(listings.opened(DIRECTORY), keep());
        assert_eq!(listings.opened(DIRECTORY + 1), DROP, "another directory");
    }

    #[test]
    fn pages_from_before_a_recall_are_dropped() {
        let listings = Listings::default();
        listings.opened(DIRECTORY);
        listings.asked(DIRECTORY);
        listings.closed(DIRECTORY);
        assert!(!listings.recalled(DIRECTORY));
        assert_eq!(listings.opened(DIRECTORY), DROP);
    }

    #[test]
    fn nothing_is_cached_while_a_directory_is_open_from_before_a_recall() {
        let listings = Listings::default();
        listings.opened(DIRECTORY);
        listings.asked(DIRECTORY);
        assert!(listings.recalled(DIRECTORY));
        listings.asked(DIRECTORY);
        assert_eq!(listings.opened(DIRECTORY), NONE);
        listings.closed(DIRECTORY);
        assert_eq!(listings.opened(DIRECTORY), NONE);
        (0..2).for_each(|_| listings.closed(DIRECTORY));
        assert_eq!(listings.opened(DIRECTORY), DROP);
    }

    #[test]
    fn a_recall_before_the_pages_were_dropped_counts() {
        let listings = Listings::default();
        listings.opened(DIRECTORY);
        assert!(listings.recalled(DIRECTORY));
        listings.asked(DIRECTORY);
        assert_eq!(listings.opened(DIRECTORY), NONE);
    }

    #[test]
    fn directories_that_are_closed_are_not_remembered_for_ever() {
        let listings = Listings::default();
        for inode in 0..2 * DIRECTORIES_MAX as u64 {
            listings.opened(inode);
            listings.asked(inode);
            listings.closed(inode);
        }
        assert!(listings.0.lock().len() <= DIRECTORIES_MAX);
        listings.opened(1);
        assert_eq!(listings.opened(1), DROP, "what was forgotten is dropped");
    }
}
