//! The home's logs, and what must be durable in the file systems behind before they may say so.
//!
//! What clients do is done to a file system first, and known at once. If what is known of it were
//! durable before it is, a loss of power would leave the home with files that are not there, and
//! that it thinks it has made. So records of what clients have done are held until the file system
//! is synced, and a task that waits for the log syncs it first. What is about to be done is
//! [announced](crate::announced) in a log of its own, which waits for no file system.

use crate::announced::{Announced, Announcement};
use crate::export::Export;
use crate::state::{Key, Record};
use host::{Either, first};
use parking_lot::Mutex;
use record_log::RecordLog;
use roam_proto::codec::Wire;
use roam_proto::message::Sent;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use types::FsError;

/// The logs, and the file systems behind.
pub(crate) struct Ledger {
    log: RecordLog,
    announcements: RecordLog,
    announced: Arc<Mutex<Announced>>,
    exports: BTreeMap<String, Arc<dyn Export>>,
    /// Volumes that records which are held tell of.
    unsynced: Mutex<BTreeSet<String>>,
    syncing: tokio::sync::Mutex<()>,
    /// How many records there were when a file was last given an id that clients may be told.
    given: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(
        log: RecordLog,
        (announcements, announced): (RecordLog, Arc<Mutex<Announced>>),
        exports: &[(String, Arc<dyn Export>)],
    ) -> Arc<Ledger> {
        Arc::new(Ledger {
            log,
            announcements,
            announced,
            exports: exports.iter().cloned().collect(),
            unsynced: Mutex::default(),
            syncing: Default::default(),
            given: AtomicU64::new(0),
        })
    }

    /// Adds a record. Whoever must know that it is durable waits for the log to settle.
    pub(crate) fn append(&self, record: &Record) {
        self.log.post(record.to_bytes().into());
    }

    /// Adds a record of what was done to a volume, before which that is durable.
    pub(crate) fn append_done(&self, volume: &str, record: &Record) {
        let mut unsynced = self.unsynced.lock();
        if !unsynced.contains(volume) {
            unsynced.insert(volume.to_string());
        }
        self.log.post_held(record.to_bytes().into());
    }

    /// The record that was added last gives an id to a file. A client hears of the file when the
    /// record is durable.
    pub(crate) fn gave_id(&self) {
        self.given.store(self.log.counts().0, Relaxed);
    }

    /// Done when all ids are durable that clients may be told. EIO.
    pub(crate) async fn ids_are_durable(&self) -> Result<(), FsError> {
        match self.log.counts().1 >= self.given.load(Relaxed) && !self.log.is_closed() {
            true => Ok(()),
            false => self.settled().await,
        }
    }

    /// See [`Announced::have_room`].
    pub(crate) fn can_announce(&self, whose: (Key, &str), through: u64, more: &[Sent]) -> bool {
        self.announced.lock().have_room(whose, through, more)
    }

    /// Announces operations. Done when that is durable. EIO.
    pub(crate) async fn announce(&self, announcement: Announcement) -> Result<(), FsError> {
        let announcing = {
            let mut announced = self.announced.lock();
            let announcing = self.announcements.append(announcement.to_bytes().into());
            announced.add(announcement);
            announcing
        };
        announcing.await.map_err(|_| FsError::Io)
    }

    /// Makes what was done durable that the log tells of. Gives the volumes that were synced for
    /// that.
    pub(crate) async fn synced(&self) -> Result<BTreeSet<String>, FsError> {
        let _one_at_a_time = self.syncing.lock().await;
        let Some(held) = self.log.held() else { return Ok(BTreeSet::new()) };
        let unsynced = self.unsynced.lock().clone();
        for volume in &unsynced {
            if let Some(fs) = self.exports.get(volume) {
                fs.sync().await?;
            }
        }
        self.log.release(held);
        let mut names = self.unsynced.lock();
        if self.log.held().is_none() {
            names.clear();
        }
        Ok(unsynced)
    }

    /// Done when all that was appended before is durable, and what it tells of. EIO.
    pub(crate) async fn settled(&self) -> Result<(), FsError> {
        // What comes while the file systems are synced is held, and not waited for.
        let mut held_up = self.log.held_up();
        let mut settled = self.log.settled();
        loop {
            self.synced().await?;
            // The log may have to be written anew, which nothing that is held may wait for,
            // whenever it came.
            match first(&mut settled, held_up.changed()).await {
                Either::Left(settled) => return settled.map_err(|_| FsError::Io),
                Either::Right(Ok(())) => {}
                Either::Right(Err(_)) => return Err(FsError::Io),
            }
        }
    }

    /// As [`settled`](Self::settled), at the end.
    pub(crate) async fn close(&self) -> Result<(), FsError> {
        self.synced().await?;
        self.log.close().await.map_err(|_| FsError::Io)?;
        self.announcements.close().await.map_err(|_| FsError::Io)
    }
}
