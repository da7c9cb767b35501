//! The home's logs, and what must be durable in the file systems behind before their records are.
//!
//! The home does an operation to a file system first, and all clients see it at once. If the home's
//! record of it became durable before the operation itself, a loss of power would leave the home
//! with files that it thinks it has made and that do not exist. So records of operations are held
//! until the file system is synced. A task that waits for the log syncs the file system first.
//! [Announcements](crate::announced) of operations have a log of their own, which waits for no file
//! system.

use crate::announced::{Announced, Announcement};
use crate::export::Export;
use crate::state::{ClientKey, HomeRecord};
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
    /// Volumes that held records tell of.
    unsynced: Mutex<BTreeSet<String>>,
    syncing: tokio::sync::Mutex<()>,
    /// How many records the log had after it last gave a file an id that clients may be told.
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

    /// Adds a record. A caller that needs it durable waits until the log has settled.
    pub(crate) fn append(&self, record: &HomeRecord) {
        self.log.post(record.to_bytes().into());
    }

    /// Adds a record of what was done to a volume. The record becomes durable only after the volume
    /// does.
    pub(crate) fn append_done(&self, volume: &str, record: &HomeRecord) {
        let mut unsynced = self.unsynced.lock();
        if !unsynced.contains(volume) {
            unsynced.insert(volume.to_string());
        }
        self.log.post_held(record.to_bytes().into());
    }

    /// Notes that the last record gives an id to a file. Clients hear of the file only when that
    /// record is durable.
    pub(crate) fn gave_id(&self) {
        self.given.store(self.log.counts().0, Relaxed);
    }

    /// Waits until all ids that clients may be told are durable. EIO.
    pub(crate) async fn ids_are_durable(&self) -> Result<(), FsError> {
        match self.log.counts().1 >= self.given.load(Relaxed) && !self.log.is_closed() {
            true => Ok(()),
            false => self.settled().await,
        }
    }

    /// True if more operations of a client can be announced; see [`Announced::have_room`].
    pub(crate) fn can_announce(&self, whose: (ClientKey, &str), through: u64, more: &[Sent]) -> bool {
        self.announced.lock().have_room(whose, through, more)
    }

    /// Announces operations, and waits until that is durable. EIO.
    pub(crate) async fn announce(&self, announcement: Announcement) -> Result<(), FsError> {
        let announcing = {
            let mut announced = self.announced.lock();
            let announcing = self.announcements.append(announcement.to_bytes().into());
            announced.add(announcement);
            announcing
        };
        announcing.await.map_err(|_| FsError::Io)
    }

    /// Makes the operations that held records tell of durable, and releases the records. Returns
    /// the volumes that it synced.
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

    /// Waits until all records appended before are durable, and so is what they tell of. EIO.
    pub(crate) async fn settled(&self) -> Result<(), FsError> {
        // Records that come while the file systems are synced are held, and not waited for.
        let mut held_up = self.log.held_up();
        let mut settled = self.log.settled();
        loop {
            self.synced().await?;
            // If the log begins anew with a snapshot, the snapshot waits until all held records are
            // released, also those that came later. So this releases them, too.
            match first(&mut settled, held_up.changed()).await {
                Either::Left(settled) => return settled.map_err(|_| FsError::Io),
                Either::Right(Ok(())) => {}
                Either::Right(Err(_)) => return Err(FsError::Io),
            }
        }
    }

    /// Settles and closes the logs.
    pub(crate) async fn close(&self) -> Result<(), FsError> {
        self.synced().await?;
        self.log.close().await.map_err(|_| FsError::Io)?;
        self.announcements.close().await.map_err(|_| FsError::Io)
    }
}
