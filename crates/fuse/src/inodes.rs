//! How the kernel has files open, and by which inode numbers it knows them, while passthrough is on
//! (the kernel reads files itself). Pure.
//!
//! The kernel's rules (fs/fuse/iomode.c): an inode is either open through the page cache, or has a
//! backing file. While it has a backing file, every open must name the same one, or it fails with
//! EIO. Such an open may still send all its reads and writes here, but what a program maps is the
//! backing file. While an inode is open through the page cache, an open that names a backing file
//! fails. Both states end with the last close, before the file system hears of it. So the count
//! here is never less than the kernel's.
//!
//! A file may have changed at home since other programs opened it. A program that opens it now must
//! not get the old backing file. So the file gets a new inode number, as if a rename had replaced
//! it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use types::FileId;

/// How an inode is open, and how many times.
enum Mode<B> {
    Cached { count: u64 },
    Backed { number: u64, backing: Arc<B>, count: u64 },
}

/// How to answer an open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way<B> {
    /// Through the page cache, without a backing file.
    Cached,
    /// The kernel reads the backing file.
    Passed(Arc<B>),
    /// Reads and writes come here; maps go to the backing file.
    Direct(Arc<B>),
    /// The open fails: the file has another inode number now.
    Elsewhere,
}

/// The local file that a file system offers for an open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// The number that tells one offered file from another.
    pub(crate) number: u64,
    /// The kernel may read from it.
    pub(crate) may_read: bool,
}

/// The inodes that the kernel has open; `B` stands for a backing file.
pub(crate) struct Inodes<B> {
    open: HashMap<u64, Mode<B>>,
    /// Files whose inode number differs from their id.
    numbers: HashMap<FileId, u64>,
    /// The file of each such number, including earlier numbers of a file: as long as the mount
    /// lives, the kernel may use any of them.
    files: HashMap<u64, FileId>,
    next: u64,
}

impl<B> Inodes<B> {
    pub(crate) fn new() -> Self {
        // File systems number their files upwards from the bottom, so these numbers come down from
        // the top.
        Inodes { open: HashMap::new(), numbers: HashMap::new(), files: HashMap::new(), next: u64::MAX }
    }

    /// The file with this inode number.
    pub(crate) fn file(&self, inode: u64) -> FileId {
        self.files.get(&inode).copied().unwrap_or(FileId::new(inode))
    }

    /// The inode number that a lookup of the file returns now.
    pub(crate) fn inode(&self, file: FileId) -> u64 {
        self.numbers.get(&file).copied().unwrap_or(file.raw())
    }

    /// All inode numbers that a file has had.
    pub(crate) fn all(&self, file: FileId) -> Vec<u64> {
        let others = self.files.iter().filter(|(_, of)| **of == file).map(|(inode, _)| *inode);
        std::iter::once(file.raw()).chain(others).collect()
    }

    /// Decides how to open an inode for which the file system offers `offer`; `register` makes the
    /// offered file known to the kernel. The caller must close what it opened, unless the answer is
    /// [`Way::Elsewhere`].
    pub(crate) fn open(&mut self, inode: u64, offer: Option<Offer>, register: impl FnOnce() -> Option<B>) -> Way<B> {
        match self.open.entry(inode) {
            Entry::Occupied(mut mode) => match (mode.get_mut(), offer) {
                (Mode::Cached { count }, _) => {
                    *count += 1;
                    Way::Cached
                }
                (Mode::Backed { number, backing, count }, Some(offer)) if offer.number == *number => {
                    *count += 1;
                    let backing = backing.clone();
                    if offer.may_read { Way::Passed(backing) } else { Way::Direct(backing) }
                }
                (Mode::Backed { .. }, _) => {
                    self.replace(inode);
                    Way::Elsewhere
                }
            },
            Entry::Vacant(vacant) => match offer.filter(|offer| offer.may_read).map(|offer| (offer, register())) {
                Some((Offer { number, .. }, Some(backing))) => {
                    let backing = Arc::new(backing);
                    vacant.insert(Mode::Backed { number, backing: backing.clone(), count: 1 });
                    Way::Passed(backing)
                }
                _ => {
                    vacant.insert(Mode::Cached { count: 1 });
                    Way::Cached
                }
            },
        }
    }

    fn replace(&mut self, inode: u64) {
        let file = self.file(inode);
        // Another open may have replaced the number already.
        if self.inode(file) == inode {
            self.numbers.insert(file, self.next);
            self.files.insert(self.next, file);
            self.next -= 1;
        }
    }

    /// Counts one close of an inode. Returns the backing file if that was the last one.
    pub(crate) fn close(&mut self, inode: u64) -> Option<Arc<B>> {
        let Entry::Occupied(mut mode) = self.open.entry(inode) else { return None };
        let (Mode::Cached { count } | Mode::Backed { count, .. }) = mode.get_mut();
        *count -= 1;
        if *count > 0 {
            return None;
        }
        match mode.remove() {
            Mode::Cached { .. } => None,
            Mode::Backed { backing, .. } => Some(backing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: u64 = 7;
    const READER: Option<Offer> = Some(Offer { number: 1, may_read: true });
    const WRITER: Option<Offer> = Some(Offer { number: 1, may_read: false });
    const OTHER: Option<Offer> = Some(Offer { number: 2, may_read: true });

    fn new() -> Inodes<&'static str> {
        Inodes::new()
    }

    fn open(inodes: &mut Inodes<&'static str>, inode: u64, offer: Option<Offer>) -> Way<&'static str> {
        inodes.open(inode, offer, || Some("backing"))
    }

    fn passed() -> Way<&'static str> {
        Way::Passed(Arc::new("backing"))
    }

    fn direct() -> Way<&'static str> {
        Way::Direct(Arc::new("backing"))
    }

    #[test]
    fn whoever_only_reads_passes_and_shares_what_is_registered() {
        let mut inodes = new();
        assert_eq!(open(&mut inodes, INODE, READER), passed());
        assert_eq!(inodes.open(INODE, READER, || panic!("it is registered")), passed());
        assert!(inodes.close(INODE).is_none());
        assert!(inodes.close(INODE).is_some());
        assert_eq!(open(&mut inodes, INODE, OTHER), passed());
    }

    #[test]
    fn whoever_writes_what_others_read_so_does_it_by_calls() {
        let mut inodes = new();
        assert_eq!(open(&mut inodes, INODE, READER), passed());
        assert_eq!(open(&mut inodes, INODE, WRITER), direct());
        assert!(inodes.close(INODE).is_none());
        assert_eq!(open(&mut inodes, INODE, READER), passed());
        inodes.close(INODE);
        assert_eq!(open(&mut inodes, INODE, WRITER), direct());
    }

    #[test]
    fn what_is_open_by_way_of_the_page_cache_stays_so_until_the_last_close() {
        let mut inodes = new();
        assert_eq!(inodes.open(INODE, WRITER, || panic!("the open only writes")), Way::Cached);
        assert_eq!(open(&mut inodes, INODE, READER), Way::Cached);
        inodes.close(INODE);
        assert_eq!(open(&mut inodes, INODE, READER), Way::Cached);
        inodes.close(INODE);
        inodes.close(INODE);
        assert_eq!(open(&mut inodes, INODE, READER), passed());
    }

    #[test]
    fn without_a_backing_file_it_is_the_page_cache() {
        let mut inodes = new();
        assert_eq!(open(&mut inodes, INODE, None), Way::Cached);
        assert_eq!(inodes.open(INODE + 1, READER, || None), Way::Cached);
        assert_eq!(open(&mut inodes, INODE + 1, READER), Way::Cached);
    }

    #[test]
    fn another_version_is_another_inode_of_the_same_file() {
        let mut inodes = new();
        let file = FileId::new(INODE);
        for offer in [OTHER, None, Some(Offer { number: 2, may_read: false })] {
            let inode = inodes.inode(file);
            assert_eq!(open(&mut inodes, inode, READER), passed());
            assert_eq!(open(&mut inodes, inode, offer), Way::Elsewhere);
            let next = inodes.inode(file);
            assert_ne!(next, inode);
            // An open of the old number leads to the same new one.
            assert_eq!(open(&mut inodes, inode, offer), Way::Elsewhere);
            assert_eq!(inodes.inode(file), next);
            assert_eq!((inodes.file(inode), inodes.file(next)), (file, file));
        }
        assert_eq!(inodes.all(file).len(), 4);
        assert_eq!(inodes.all(FileId::new(8)), [8]);
        // The first readers go on.
        assert_eq!(open(&mut inodes, INODE, READER), passed());
        inodes.close(INODE);
        assert!(inodes.close(INODE).is_some());
    }

    #[test]
    fn closing_what_was_never_counted_does_nothing() {
        assert!(new().close(INODE).is_none());
    }
}
