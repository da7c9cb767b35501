//! Files that are changed while only partly cached. A part that is not cached is a hole.
//!
//! A hole stands for what the home has there, in the version that the client knows; no waiting
//! operation has written or cut there. So a read of a hole fetches that version, and only what was
//! written goes home. Before the first change, the cached bytes are durable, and the log says which
//! they are and how long the file is ([`Record::Dirty`](crate::replica::Record::Dirty)). After a
//! crash, everything that was cached then, or lies beyond the old end, may have been changed; the
//! rest is still a hole. A cut of such a file is logged at once, because zeroes after it could not
//! be told from a hole.
//!
//! If others change the file at home, the version that the holes stand for is gone. Reads of holes
//! then fail (ETIMEDOUT) until the changes are home. There they meet a conflict, and this client's
//! version becomes the home's file with the changes made here
//! ([`Operation::Copy`](roam_proto::operation::Operation::Copy)).

use crate::cache::fetch::SILENCE_MAX;
use crate::client::Client;
use host::timeout;
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::ops::Range;
use std::time::Duration;
use types::{FileId, FsError};

/// Most places in which a file with holes may be changed. Before it is changed in more, the rest is
/// fetched.
const PLACE_COUNT_MAX: usize = 1024;

impl Client {
    /// Fetches all of a file before it is changed, unless that would take long or is impossible
    /// now. True if some of it may still be missing.
    pub(crate) async fn complete_or_leave(&self, id: FileId) -> Result<bool, FsError> {
        let (size, is_mapped) = {
            let live = self.0.live.lock();
            let node = live.replica.node(id)?;
            (node.facts.size, live.cache.is_mapped(node.data))
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
            // Waiting changes are counted only for files with holes.
            !node.is_whole() && count(live.replica.written(id)) + count(node.to_log()) >= PLACE_COUNT_MAX
        };
        if is_scattered { self.complete(id).await } else { Ok(()) }
    }

    /// The cached part of a range.
    pub(crate) fn there(&self, id: FileId, range: Range<u64>) -> Result<Ranges, FsError> {
        let (live, mut there) = (self.0.live.lock(), Ranges::default());
        let node = live.replica.node(id)?;
        node.have.within(range).for_each(|(range, _)| there.add(range));
        Ok(there)
    }

    /// Handles a read of a hole whose version the home no longer has, because the file was changed
    /// at home. If an operation that this client has sent may have done that, waits for its answer.
    /// ETIMEDOUT if others did: the earlier version is gone, and theirs is shown only after the
    /// changes made here are home.
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
                "others have changed a file at home that was only partly fetched before it was changed here"
            );
            return Err(FsError::TimedOut);
        }
        match timeout(&*inner.host.clock, SILENCE_MAX, tick.changed()).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(FsError::TimedOut),
        }
    }
}
