//! When operations are durable at the client.
//!
//! A call is answered when its operation is in its place in the log, in memory. The log is written
//! [`COMMIT_TIME_MAX`] later, when a program waits for it (fsync, `starling sync`), and before any
//! of it is sent home. Contents of files are durable before the records that tell of them. So after
//! a crash the mount is as it was after some operation, and every operation that a program waited
//! for comes before that one.
//!
//! A file of the cache that no written record names may be changed without waiting: after a crash,
//! no record needs its earlier contents.

use crate::client::Client;
use crate::live::Live;
use crate::settings::Durability;
use host::{Disk, File, join_all};
use parking_lot::Mutex;
use record_log::Gather;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use types::{FileId, FsError};

/// An operation is durable after this time, unless the disk takes longer.
pub const COMMIT_TIME_MAX: Duration = Duration::from_secs(1);
/// Most files that are kept open until they are durable.
const FILE_COUNT_MAX: usize = 128;
/// With more files than this, all files of the disk are synced at once.
const SYNC_COUNT_MAX: usize = 2;

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
}

impl Live {
    /// True if the next call has to wait until some operations are durable, or until some contents
    /// are files of the cache.
    pub(crate) fn is_much_unwritten(&self) -> bool {
        self.cache.unwritten.changed.len() >= FILE_COUNT_MAX || self.has_too_many_contents()
    }
}

/// Makes files durable before the log records that tell of them are written.
pub(crate) fn gather(live: &Arc<Mutex<Live>>, disk: &Arc<dyn Disk>, names: &Arc<Names>) -> Gather {
    let (live, disk, names) = (Arc::downgrade(live), disk.clone(), names.clone());
    Arc::new(move |cut| {
        let Some(live) = live.upgrade() else {
            cut();
            return Box::pin(std::future::ready(Ok(())));
        };
        let files = {
            let mut live = live.lock();
            live.hold_small();
            cut();
            let durable = live.log().map_or(0, |log| log.counts().1);
            live.cache.unwritten.cut(durable)
        };
        let (disk, names) = (disk.clone(), names.clone());
        Box::pin(async move {
            if files.len() > SYNC_COUNT_MAX {
                match disk.sync_all().await {
                    Err(error) if error.kind() == ErrorKind::Unsupported => {}
                    synced => return synced,
                }
            }
            let synced = join_all(files.iter().map(|file| file.sync_data()).collect()).await;
            synced.into_iter().collect::<io::Result<()>>()?;
            names.sync(&*disk).await
        })
    })
}

impl Client {
    /// True if a call that did an operation has to wait, for the log or for the home.
    pub(crate) fn waits(&self, live: &Live) -> bool {
        let (durability, writes) = {
            let settings = self.0.settings.lock();
            (settings.durability, settings.writes)
        };
        durability == Durability::Always
            || self.0.log.is_behind()
            || self.0.log.is_closed()
            || live.is_much_unwritten()
            || live.waits_for_home(writes)
    }

    /// Wakes the replay task after an operation that no call waits for.
    pub(crate) fn logged_more(&self, live: &Live) {
        if !live.link.is_offline() {
            self.0.wake_replay();
        }
    }

    /// Waits until earlier records are in their place in the log. Under `always` they are durable
    /// then. EIO if the log has failed.
    pub(crate) async fn logged(&self) -> Result<(), FsError> {
        let log = &self.0.log;
        let has_too_many_contents = self.0.live.lock().has_too_many_contents();
        if has_too_many_contents {
            // If they cannot be written to files now, they stay in the log.
            let _ = self.file_contents().await;
        }
        let is_much = log.is_behind() || self.0.live.lock().cache.unwritten.changed.len() >= FILE_COUNT_MAX;
        let waits = is_much || self.0.settings.lock().durability == Durability::Always;
        match waits {
            true => self.durable().await,
            false if log.is_closed() => Err(FsError::Io),
            false => Ok(()),
        }
    }

    /// Waits until earlier records are durable. EIO if they cannot be.
    pub(crate) async fn durable(&self) -> Result<(), FsError> {
        self.0.log.settled().await.map_err(|_| FsError::Io)
    }
}
