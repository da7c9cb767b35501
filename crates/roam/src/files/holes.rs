//! Files that are changed though not all of them is cached: what is not is a hole.
//!
//! A hole is as the home has the file in the version that the client knows: nothing that waits has
//! written or cut there. So what is read there is fetched, in that version, and what goes home is
//! what was written. When a change begins, what is there is durable, and the log says what that is
//! and how long the file is ([`Record::Dirty`](crate::replica::Record::Dirty)). After a crash, all
//! that was there or lies beyond may have been changed, and all else is a hole still. A cut of such
//! a file is logged at once, since zeroes that follow it cannot be told from a hole.
//!
//! When others have changed the file at home, the version that the holes are of is nowhere. Reading
//! them fails then (ETIMEDOUT), until what was written is home. There it is a conflict, and this
//! client's version is the home's with what was written here
//! ([`Operation::Copy`](roam_proto::operation::Operation::Copy)).

use crate::cache::fetch::SILENCE_MAX;
use crate::client::Client;
use host::timeout;
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::ops::Range;
use std::time::Duration;
use types::{FileId, FsError};

/// Changes of a file of which not all is here are at most in so many places. In more of them, the
/// rest is fetched first.
const PLACE_COUNT_MAX: usize = 1024;

impl Client {
    /// Has all of a file in the cache before it is changed, unless fetching the rest would take
    /// long, or cannot be done now: then some of it may be missing, which is true.
    pub(crate) async fn complete_or_leave(&self, id: FileId) -> Result<bool, FsError> {
        let (size, is_mapped) = {
            let live = self.0.live.lock();
            let node = live.replica.node(id)?;
            (node.facts.size, live.mapped.contains_key(&node.data))
        };
        if !is_mapped && !self.wants_whole(size) {
            return Ok(true);
        }
        match self.complete(id).await {
            Err(FsError::TimedOut) if !is_mapped => Ok(true),
            completed => completed.map(|()| false),
        }
    }

    /// Fetches the rest of a file that was changed in very many places. The caller is its only
    /// writer.
    pub(crate) async fn fill_scattered(&self, id: FileId) -> Result<(), FsError> {
        let is_scattered = {
            let live = self.0.live.lock();
            let count = |change: Option<Change>| change.map_or(0, |change| change.ranges.count());
            let node = live.replica.node(id)?;
            // What waits is counted for files with holes only.
            !node.is_whole() && count(live.replica.written(id)) + count(node.to_log()) >= PLACE_COUNT_MAX
        };
        if is_scattered { self.complete(id).await } else { Ok(()) }
    }

    /// What of a range is in the cache. The rest is fetched over whatever is there.
    pub(crate) fn there(&self, id: FileId, range: Range<u64>) -> Result<Ranges, FsError> {
        let (live, mut there) = (self.0.live.lock(), Ranges::default());
        let node = live.replica.node(id)?;
        node.have.within(range).for_each(|(range, _)| there.add(range));
        Ok(there)
    }

    /// The home's version of a file that was changed here is another than what it was changed from.
    /// If that is this client's own doing, waits until it knows. ETIMEDOUT if others have done it:
    /// what there was before is nowhere, and what they have made of it is shown when the home has
    /// what was changed here.
    pub(crate) async fn wait_for_answer(&self, id: FileId, contents: u64, until: Duration) -> Result<(), FsError> {
        let inner = &self.0;
        if inner.host.clock.now() >= until {
            return Err(FsError::TimedOut);
        }
        let mut tick = inner.tick.subscribe();
        let is_sent = {
            let live = inner.live.lock();
            if !live.replica.is_own(id) || live.replica.node(id)?.facts.contents != contents {
                return Ok(());
            }
            let log = live.replica.log();
            log.naming(live.replica.real(id)).any(|(seq, _)| seq <= log.pinned())
        };
        if !is_sent {
            tracing::warn!(
                file = id.raw(),
                "others have changed a file at home of which not all was fetched before it was changed here"
            );
            return Err(FsError::TimedOut);
        }
        match timeout(&*inner.host.clock, SILENCE_MAX, tick.changed()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(FsError::TimedOut),
        }
    }
}
