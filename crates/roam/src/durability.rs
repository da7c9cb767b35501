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

use crate::cache::unwritten::Names;
use crate::client::Client;
use crate::live::Live;
use crate::settings::Durability;
use host::{Disk, join_all};
use parking_lot::Mutex;
use record_log::Gather;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use types::FsError;

/// An operation is durable after this time, unless the disk takes longer.
pub const COMMIT_TIME_MAX: Duration = Duration::from_secs(1);
/// With more files than this, all files of the disk are synced at once.
const SYNC_COUNT_MAX: usize = 2;

impl Live {
    /// True if the next call has to wait until some operations are durable, or until some contents
    /// are files of the cache.
    pub(crate) fn is_much_unwritten(&self) -> bool {
        self.cache.unwritten.is_much() || self.has_too_many_contents()
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
        let is_much = log.is_behind() || self.0.live.lock().cache.unwritten.is_much();
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
