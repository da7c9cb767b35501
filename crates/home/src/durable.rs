//! Makes durable what was done for clients ([`seen`](crate::seen)).
//!
//! The home answers a client when an operation is done and visible to all. Later the client asks
//! which operations are durable ([`Request::Durable`](roam_proto::message::Request::Durable)), and
//! keeps them until they are. The home makes many operations of many clients durable at once: it
//! syncs the file system, and then writes its log.
//!
//! The old contents of a stored file stay in the home's own folder until the store is durable.
//! After a crash, the home undoes a store that is not ([`Exported::finish_stores`]).

use crate::exported::Exported;
use host::Clock;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::FsError;

/// The home begins to make operations durable within this time, even if no client asks. A longer
/// time would batch more operations per sync, and leave clients with more to send again after a
/// crash.
const DURABLE_TIME_MAX: Duration = Duration::from_secs(1);

impl Exported {
    /// Waits until a client's operations up to `through` are durable, as far as they were done.
    /// EIO.
    pub(crate) async fn durable(&self, author: u32, through: u64) -> Result<(), FsError> {
        if self.seen.is_durable(author, through) {
            return Ok(());
        }
        let _one_at_a_time = self.seen.settling.lock().await;
        // Another request that waited may have made them durable.
        match self.seen.is_durable(author, through) {
            true => Ok(()),
            false => self.settle_seen().await,
        }
    }

    async fn settle_seen(&self) -> Result<(), FsError> {
        let done: Vec<(u32, u64)> =
            self.seen.of.lock().iter().map(|(author, progress)| (*author, progress.done)).collect();
        let replaced = self.seen.replaced.lock().clone();
        let log = self.live.lock().log.clone().ok_or(FsError::Io)?;
        log.settled().await?;
        let is_done = |(author, seq): &&(u32, u64)| done.iter().any(|(of, done)| of == author && seq <= done);
        let before: Vec<(u32, u64)> = self.kept_before.lock().iter().filter(is_done).copied().collect();
        {
            let mut of = self.seen.of.lock();
            for &(author, done) in &done {
                if let Some(progress) = of.get_mut(&author) {
                    progress.durable = progress.durable.max(done.min(progress.done));
                }
            }
            self.seen.replaced.lock().retain(|name| !replaced.contains(name));
        }
        for name in replaced {
            self.remove_own(&name).await;
        }
        for (author, seq) in before {
            self.drop_before(author, seq).await;
        }
        Ok(())
    }
}

/// Makes durable what was done, as long as the volume is exported.
pub(crate) async fn make_durable(volume: Weak<Exported>, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep(DURABLE_TIME_MAX).await;
        let Some(volume) = volume.upgrade() else { return };
        if volume.seen.is_all_durable() {
            continue;
        }
        let _one_at_a_time = volume.seen.settling.lock().await;
        if let Err(error) = volume.settle_seen().await {
            tracing::warn!(%error, volume = volume.name, "cannot make operations durable");
        }
    }
}
