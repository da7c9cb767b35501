//! Makes durable what was done for clients ([`seen`](crate::seen)).
//!
//! A client is answered when an operation was done, and seen by all who look. It asks later until
//! when all is durable ([`Request::Durable`](roam_proto::message::Request::Durable)), and keeps the
//! operations that long. Many operations, of many clients, are made durable at once: the file
//! system is synced, then the home's log is written.
//!
//! What there was before a store stays in the home's own folder until the store is durable: after a
//! crash a store that is not goes back ([`Exported::finish_stores`]).

use crate::exported::Exported;
use host::Clock;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::FsError;

/// What was done is durable after so long, also if no client asks.
const DURABLE_TIME_MAX: Duration = Duration::from_secs(1);

impl Exported {
    /// Done when a client's operations are durable up to this one, as far as they were done. EIO.
    pub(crate) async fn durable(&self, author: u32, through: u64) -> Result<(), FsError> {
        if self.seen.is_durable(author, through) {
            return Ok(());
        }
        let _one_at_a_time = self.seen.settling.lock().await;
        // The first of several that wait has made it durable for all.
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

/// Makes durable what was done, soon, as long as the volume is exported.
pub(crate) async fn make_durable(volume: Weak<Exported>, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep(DURABLE_TIME_MAX).await;
        let Some(volume) = volume.upgrade() else { return };
        if volume.seen.is_all_durable() {
            continue;
        }
        let _one_at_a_time = volume.seen.settling.lock().await;
        if let Err(error) = volume.settle_seen().await {
            tracing::warn!(%error, volume = volume.name, "making durable what was done");
        }
    }
}
