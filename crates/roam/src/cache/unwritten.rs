//! Files of the cache whose bytes or names must be durable before records that tell of them.

use host::{Disk, File};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use types::FileId;

/// Most files that are kept open until they are durable.
const FILE_COUNT_MAX: usize = 128;

/// Which names of files of the cache are durable.
#[derive(Default)]
pub(crate) struct Names {
    /// How many files were made.
    made: AtomicU64,
    /// How many of these have durable names.
    durable: tokio::sync::Mutex<u64>,
}

impl Names {
    /// A file may have been made.
    pub(crate) fn made(&self) {
        self.made.fetch_add(1, Relaxed);
    }

    /// Makes all names durable, where any are not.
    pub(crate) async fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        let made = self.made.load(Relaxed);
        let mut durable = self.durable.lock().await;
        if *durable < made {
            let made = self.made.load(Relaxed);
            disk.sync_names().await?;
            *durable = made;
        }
        Ok(())
    }
}

/// Files of the cache that records name which are not written yet.
#[derive(Default)]
pub(crate) struct Unwritten {
    /// Files that were made since: no written record names them.
    fresh: BTreeSet<u64>,
    /// Files whose bytes must be durable before these records.
    changed: BTreeMap<u64, Arc<dyn File>>,
    /// Files about which the home has taken something in, with the number of records appended by
    /// then. Before these records are durable, a crash makes the files this client's own again.
    taken: BTreeMap<FileId, u64>,
}

impl Unwritten {
    /// Notes that a file of this number was made.
    pub(crate) fn made(&mut self, number: u64) {
        self.fresh.insert(number);
    }

    /// True if no written record names a file of this number.
    pub(crate) fn is_fresh(&self, number: u64) -> bool {
        self.fresh.contains(&number)
    }

    /// Notes that a record tells of bytes of this file.
    pub(crate) fn tells_of(&mut self, number: u64, file: Arc<dyn File>) {
        self.changed.insert(number, file);
    }

    /// Notes that all bytes of this file are durable.
    pub(crate) fn is_durable(&mut self, number: u64) {
        self.changed.remove(&number);
    }

    /// Notes that the home has taken in operations on these files, and that the log says so in its
    /// first `appended` records.
    pub(crate) fn were_taken(&mut self, files: Vec<FileId>, appended: u64) {
        self.taken.extend(files.into_iter().map(|file| (file, appended)));
    }

    /// True if a crash may make a file this client's own again, with this many durable records.
    pub(crate) fn may_be_own_again(&self, file: FileId, durable: u64) -> bool {
        self.taken.get(&file).is_some_and(|position| *position > durable)
    }

    /// Begins a new group of records.
    pub(crate) fn begin(&mut self) {
        self.fresh.clear();
    }

    /// Begins a new group, because all records so far are about to be written. `durable` records
    /// are durable already. Returns the files that must be durable before the write.
    pub(crate) fn cut(&mut self, durable: u64) -> Vec<Arc<dyn File>> {
        self.begin();
        self.taken.retain(|_, position| *position > durable);
        std::mem::take(&mut self.changed).into_values().collect()
    }

    /// True if so many files wait to be durable that calls have to wait for some.
    pub(crate) fn is_much(&self) -> bool {
        self.changed.len() >= FILE_COUNT_MAX
    }
}
