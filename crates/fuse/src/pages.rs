//! Files of which the kernel holds pages, although they are open for direct I/O.
//!
//! Direct I/O keeps read(2) and write(2) out of the page cache. Private mappings, execve(2),
//! sendfile(2) and splice(2) still read through it. The kernel sends such reads without the owner
//! of locks, which every direct read names (fs/fuse/file.c).

use parking_lot::Mutex;
use std::collections::HashSet;

/// Most files that are remembered. With more, every file counts as one with pages.
const FILES_MAX: usize = 65_536;

/// The inodes that were read by pages.
#[derive(Default)]
pub(crate) struct Pages(Mutex<Inodes>);

#[derive(Default)]
struct Inodes {
    read: HashSet<u64>,
    are_too_many: bool,
}

impl Pages {
    /// Notes that the kernel is about to get pages of an inode. Call it in the section that answers
    /// the read.
    pub(crate) fn note(&self, inode: u64) {
        let mut inodes = self.0.lock();
        if inodes.read.len() < FILES_MAX {
            inodes.read.insert(inode);
        } else if !inodes.read.contains(&inode) {
            inodes.are_too_many = true;
        }
    }

    /// True if the kernel may hold pages of an inode. The caller makes it forget them.
    pub(crate) fn take(&self, inode: u64) -> bool {
        let mut inodes = self.0.lock();
        inodes.read.remove(&inode) || inodes.are_too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_has_pages_until_they_are_taken() {
        let pages = Pages::default();
        pages.note(1);
        assert_eq!([pages.take(2), pages.take(1), pages.take(1)], [false, true, false]);
    }

    #[test]
    fn all_inodes_have_pages_once_there_are_too_many_to_remember() {
        let pages = Pages::default();
        (0..=FILES_MAX as u64).for_each(|inode| pages.note(inode));
        assert!(pages.take(u64::MAX));
    }
}
