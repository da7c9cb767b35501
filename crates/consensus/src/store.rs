//! openraft's log and state machine over one [image](crate::image).
//!
//! Everything that openraft must find after a crash (vote, entries, truncations, purges, snapshots)
//! is durable before the call returns. The state machine itself is in memory: it is the snapshot
//! with the entries after it applied.

use crate::files::VoterFiles;
use crate::image::{Image, VoterState};
use crate::{Types, VoteOutcome};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftLogReader, RaftSnapshotBuilder, StorageError,
    StorageIOError, StoredMembership, Vote,
};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::io::{self, Cursor};
use std::ops::RangeBounds;
use std::sync::Arc;
use types::codec::{DecodeError, Reader};

struct Memory {
    image: Image,
    state: VoterState,
}

struct Shared {
    memory: Mutex<Memory>,
    /// Also keeps changes in order: a change of the image and its write happen under one lock.
    files: tokio::sync::Mutex<VoterFiles>,
}

/// A voter's storage; cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

type Done<T> = Result<T, StorageError<u64>>;

impl Store {
    /// A storage over files that hold `image`.
    pub fn new(files: VoterFiles, image: Image) -> Store {
        let state = image.snapshot.clone().unwrap_or_default();
        Store(Arc::new(Shared { memory: Mutex::new(Memory { image, state }), files: tokio::sync::Mutex::new(files) }))
    }

    /// The agreed state.
    pub fn state(&self) -> VoterState {
        self.0.memory.lock().state.clone()
    }

    /// Changes the image, durably.
    async fn change(&self, change: impl FnOnce(&mut Memory)) -> io::Result<()> {
        let mut files = self.0.files.lock().await;
        let image = {
            let mut memory = self.0.memory.lock();
            change(&mut memory);
            memory.image.clone()
        };
        files.write(&image).await
    }

    /// Waits for a change that is being written, and writes no other one.
    pub(crate) async fn end(&self) {
        self.0.files.lock().await.end();
    }

    /// The last entry of the log.
    pub(crate) fn last(&self) -> Option<LogId<u64>> {
        self.0.memory.lock().image.last()
    }

    /// A state as openraft passes it on.
    pub fn snapshot_of(state: &VoterState) -> Snapshot<Types> {
        let meta = SnapshotMeta {
            last_log_id: state.applied,
            last_membership: state.membership.clone(),
            snapshot_id: state.applied.map_or_else(String::new, |applied| applied.to_string()),
        };
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }
    }
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Done<Vec<Entry<Types>>> {
        let memory = self.0.memory.lock();
        Ok(memory.image.entries.iter().filter(|entry| range.contains(&entry.log_id.index)).cloned().collect())
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Store;

    async fn get_log_state(&mut self) -> Done<LogState<Types>> {
        let memory = self.0.memory.lock();
        Ok(LogState { last_purged_log_id: memory.image.purged, last_log_id: memory.image.last() })
    }

    async fn get_log_reader(&mut self) -> Store {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Done<()> {
        let written = self.change(|memory| memory.image.vote = Some(*vote)).await;
        written.map_err(|e| StorageIOError::write_vote(AnyError::new(&e)).into())
    }

    async fn read_vote(&mut self) -> Done<Option<Vote<u64>>> {
        Ok(self.0.memory.lock().image.vote)
    }

    /// It becomes durable with the next change. After a crash, the leader finds out again which
    /// entries are agreed on.
    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Done<()> {
        self.0.memory.lock().image.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Done<Option<LogId<u64>>> {
        Ok(self.0.memory.lock().image.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Done<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        let written = self.change(|memory| memory.image.entries.extend(entries)).await;
        let failure = written.as_ref().err().map(|e| StorageIOError::write_logs(AnyError::new(e)));
        callback.log_io_completed(written);
        match failure {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Done<()> {
        let written = self.change(|memory| memory.image.entries.retain(|entry| entry.log_id.index < from.index)).await;
        written.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }

    async fn purge(&mut self, through: LogId<u64>) -> Done<()> {
        let written = self.change(|memory| {
            // openraft says this before a snapshot that it received is there. The entries go when
            // it is there.
            if memory.image.snapshot.as_ref().and_then(|state| state.applied) >= Some(through) {
                memory.image.purge(through);
            }
        });
        written.await.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }
}

impl RaftSnapshotBuilder<Types> for Store {
    async fn build_snapshot(&mut self) -> Done<Snapshot<Types>> {
        let mut snapshot = VoterState::default();
        let written = self.change(|memory| {
            snapshot = memory.state.clone();
            memory.image.snapshot = Some(snapshot.clone());
        });
        written.await.map_err(|e| StorageIOError::write_snapshot(None, AnyError::new(&e)))?;
        Ok(Self::snapshot_of(&snapshot))
    }
}

impl RaftStateMachine<Types> for Store {
    type SnapshotBuilder = Store;

    async fn applied_state(&mut self) -> Done<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        let memory = self.0.memory.lock();
        Ok((memory.state.applied, memory.state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Done<Vec<VoteOutcome>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let state = &mut self.0.memory.lock().state;
        let outcomes = entries.into_iter().map(|entry| {
            state.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => Ok(state.maps.epoch),
                EntryPayload::Normal(change) => state.apply(change),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Ok(state.maps.epoch)
                }
            }
        });
        Ok(outcomes.collect())
    }

    async fn get_snapshot_builder(&mut self) -> Store {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Done<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Done<()> {
        let bytes = snapshot.into_inner();
        let r = &mut Reader::new(&bytes);
        let received = VoterState::decode(r).and_then(|state| match r.is_empty() {
            true => Ok(state),
            false => Err(DecodeError::Invalid("length of a snapshot")),
        });
        let state = received.map_err(|e| StorageIOError::read_snapshot(Some(meta.signature()), AnyError::new(&e)))?;
        let written = self.change(|memory| {
            memory.state = state.clone();
            memory.image.snapshot = Some(state);
            if let Some(through) = meta.last_log_id {
                memory.image.purge(through);
            }
        });
        written.await.map_err(|e| StorageIOError::write_snapshot(Some(meta.signature()), AnyError::new(&e)).into())
    }

    async fn get_current_snapshot(&mut self) -> Done<Option<Snapshot<Types>>> {
        Ok(self.0.memory.lock().image.snapshot.as_ref().map(Self::snapshot_of))
    }
}
