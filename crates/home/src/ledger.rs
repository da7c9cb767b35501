//! The home's log, and what must be durable in the file systems behind before it may say so.
//!
//! What clients do is done to a file system first, and known at once. If what is known of it were durable before it is, a loss of power would
//! leave the home with files that are not there, and that it thinks it has made. So records of what clients have done are held until the file
//! system is synced, and whoever waits for the log has it synced.

use crate::export::Export;
use crate::state::Record;
use parking_lot::Mutex;
use record_log::RecordLog;
use roam_wire::codec::Wire;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::FsError;

/// See the module's header.
pub(crate) struct Ledger {
    log: RecordLog,
    exports: BTreeMap<String, Arc<dyn Export>>,
    /// Volumes that records which are held tell of.
    unsynced: Mutex<BTreeSet<String>>,
    syncing: tokio::sync::Mutex<()>,
}

impl Ledger {
    pub(crate) fn new(log: RecordLog, exports: &[(String, Arc<dyn Export>)]) -> Arc<Ledger> {
        let exports = exports.iter().cloned().collect();
        Arc::new(Ledger { log, exports, unsynced: Mutex::default(), syncing: Default::default() })
    }

    /// Adds a record. Whoever must know that it is durable waits for the log to settle.
    pub(crate) fn append(&self, record: &Record) {
        drop(self.log.append(record.to_bytes().into()));
    }

    /// Adds a record of what was done to a volume, before which that is durable.
    pub(crate) fn append_done(&self, volume: &str, record: &Record) {
        let mut unsynced = self.unsynced.lock();
        unsynced.insert(volume.to_string());
        drop(self.log.append_held(record.to_bytes().into()));
    }

    /// Makes what was done durable that the log tells of. Gives the volumes that were synced for that.
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
        self.synced().await?;
        self.log.settled().await.map_err(|_| FsError::Io)
    }

    /// As [`settled`](Self::settled), at the end.
    pub(crate) async fn close(&self) -> Result<(), FsError> {
        self.synced().await?;
        self.log.close().await.map_err(|_| FsError::Io)
    }
}
