//! How the kernel has files open, and by which numbers it knows them, where it may read files
//! itself (FUSE passthrough). Pure.
//!
//! The kernel's rules (fs/fuse/iomode.c): an inode is open by way of the page cache, or has a
//! backing file. While it has one, each open must name that one too, or fails with EIO: it may then
//! have every read and write come here all the same, but what it maps is the backing file. While it
//! is open by way of the page cache, an open that names a backing file fails. Both end with the
//! last close, before the file system hears of it, so that what is counted here is never less than
//! what the kernel has.
//!
//! Whoever opens a file that is something else by now than what others have open (it has changed at
//! home) must not get their backing file. So it becomes another inode, as if it had been replaced
//! by a rename.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use types::FileId;

/// How an inode is open, by how many.
enum Mode<B> {
    Cached { count: u64 },
    Backed { number: u64, backing: Arc<B>, count: u64 },
}

/// How to answer an open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way<B> {
    /// As if there were no backing files.
    Cached,
    /// Reads go to the backing file.
    Passed(Arc<B>),
    /// Reads and writes come here.
    Direct(Arc<B>),
    /// Not at all: the file has another inode now.
    Elsewhere,
}

/// The local file that a file system offers for an open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Which.
    pub(crate) number: u64,
    /// Reads may go there.
    pub(crate) may_read: bool,
}

/// See the module's header; `B` stands for a backing file.
pub(crate) struct Inodes<B> {
    open: HashMap<u64, Mode<B>>,
    /// Files whose inode has another number than theirs.
    numbers: HashMap<FileId, u64>,
    /// The same the other way around, with all inodes that they have had: for as long as the mount
    /// is there, the kernel may ask by any of them.
    files: HashMap<u64, FileId>,
    next: u64,
}

impl<B> Inodes<B> {
    pub(crate) fn new() -> Self {
        // File systems number their files from below.
        Inodes { open: HashMap::new(), numbers: HashMap::new(), files: HashMap::new(), next: u64::MAX }
    }

    /// The file of an inode.
    pub(crate) fn file(&self, inode: u64) -> FileId {
        self.files.get(&inode).copied().unwrap_or(FileId::new(inode))
    }

    /// A file's inode, for whoever looks it up.
    pub(crate) fn inode(&self, file: FileId) -> u64 {
        self.numbers.get(&file).copied().unwrap_or(file.raw())
    }

    /// All inodes that a file has had.
    pub(crate) fn all(&self, file: FileId) -> Vec<u64> {
        let others = self.files.iter().filter(|(_, of)| **of == file).map(|(inode, _)| *inode);
        std::iter::once(file.raw()).chain(others).collect()
    }

    /// Decides how an inode is opened for which this is offered; `register` makes the kernel know
    /// the file that is offered. What is opened is to be closed, unless it is elsewhere.
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
        // Somebody else may have been faster.
        if self.inode(file) == inode {
            self.numbers.insert(file, self.next);
            self.files.insert(self.next, file);
            self.next -= 1;
        }
    }

    /// One of those who have an inode open has closed it. Gives the backing file if it is of no use
    /// any more.
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
        assert_eq!(inodes.open(INODE, WRITER, || panic!("nobody reads")), Way::Cached);
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
            // Whoever comes by the old number is sent to the same one.
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
