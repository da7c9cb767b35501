//! What was done for clients and may not be durable yet.
//!
//! A client is answered when an operation was done, and seen by all who look. It asks later until when all is
//! durable ([`Request::Durable`](roam_proto::message::Request::Durable)), and keeps the operations that long.
//! Many operations, of many clients, are made durable at once: the file system is synced, then the home's log
//! is written.
//!
//! What there was before a store stays in the home's own folder until the store is durable: after a crash a
//! store that is not goes back ([`Exported::finish_stores`]).

use crate::exported::Exported;
use host::Clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::FsError;

/// What was done is durable after so long, also if no client asks.
const DURABLE_TIME_MAX: Duration = Duration::from_secs(1);

/// How far a client's operations are.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// The last that was done, or refused.
    done: u64,
    /// The last of these that is durable.
    durable: u64,
}

/// What was done to a volume.
#[derive(Default)]
pub(crate) struct Seen {
    of: Mutex<BTreeMap<u32, Progress>>,
    /// Files of the home's own folder that are not needed when all is durable that was done.
    replaced: Mutex<BTreeSet<String>>,
    /// Stores that are in place before the client has asked for them (again), by author and operation:
    /// those that a crash has left, and those that came with what made the file.
    in_place: Mutex<BTreeSet<(u32, u64)>>,
    settling: tokio::sync::Mutex<()>,
}

impl Seen {
    /// A client's operations were done up to this one.
    pub(crate) fn did(&self, author: u32, seq: u64) {
        let mut of = self.of.lock();
        let progress = of.entry(author).or_default();
        progress.done = progress.done.max(seq);
        drop(of);
        self.in_place.lock().retain(|(of, store)| *of != author || *store > seq);
    }

    /// Up to which operation a client's are durable.
    pub(crate) fn durable(&self, author: u32) -> u64 {
        self.of.lock().get(&author).map_or(0, |progress| progress.durable)
    }

    /// A client begins another log.
    pub(crate) fn forget(&self, author: u32) {
        self.of.lock().remove(&author);
        self.in_place.lock().retain(|(of, _)| *of != author);
    }

    /// A file of the home's own folder has what there was before a store.
    pub(crate) fn keep(&self, name: String) {
        self.replaced.lock().insert(name);
    }

    /// A store is in place before the client has asked for it.
    pub(crate) fn stored(&self, author: u32, seq: u64) {
        self.in_place.lock().insert((author, seq));
    }

    /// True if a store is in place already.
    pub(crate) fn has_stored(&self, author: u32, seq: u64) -> bool {
        self.in_place.lock().contains(&(author, seq))
    }

    fn is_durable(&self, author: u32, through: u64) -> bool {
        self.of.lock().get(&author).is_none_or(|progress| progress.durable >= through.min(progress.done))
    }

    fn is_all_durable(&self) -> bool {
        self.of.lock().values().all(|progress| progress.durable >= progress.done)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of a client's next log begin again: what was in place of the log before is not done there.
    #[test]
    fn regression_a_store_that_was_in_place_is_not_taken_for_one_of_the_next_log() {
        let seen = Seen::default();
        seen.stored(1, 17);
        seen.stored(2, 17);
        assert!(seen.has_stored(1, 17) && !seen.has_stored(1, 18));
        seen.forget(1);
        assert!(!seen.has_stored(1, 17) && seen.has_stored(2, 17));
    }

    #[test]
    fn a_store_that_was_answered_is_not_remembered() {
        let seen = Seen::default();
        [17, 19].into_iter().for_each(|seq| seen.stored(1, seq));
        seen.did(1, 18);
        assert!(!seen.has_stored(1, 17) && seen.has_stored(1, 19));
    }
}
