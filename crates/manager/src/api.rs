//! The interface to a manager, the same in one process, over a network and in the simulated world.

use crate::token::{Mode, Scope};
use crate::{Delta, InodeRecord};
use bytes::Bytes;
use std::sync::Arc;
use stripe::StripeError;
use thiserror::Error;
use types::{Answer, ClientId, Extent, FileId, LogId, SegmentId};

/// Most extents in one answer.
pub const RUN_EXTENTS_MAX: usize = 128;
/// How many index numbers a client is handed at once, unless a manager is told otherwise.
pub const INDEX_RANGE_LEN: u64 = 16_384;

/// Why a manager did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ManagerError {
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// The file's slot is served elsewhere under a newer manager map.
    #[error("stale manager map: fetch epoch {0}")]
    StaleMap(u64),
    /// The index could not be read or written: too many stores are bad.
    #[error("the manager's log cannot be read or written")]
    Log,
    /// At a start: the stores do not give a log as a whole.
    #[error("{0}")]
    Stores(StripeError),
    /// The request makes no sense (deltas out of order, unknown client).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

/// A granted token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// What it covers; at least what was asked for, as much as does not conflict.
    pub scope: Scope,
    /// Read or write.
    pub mode: Mode,
}

/// Where a file's blocks are, for a stretch of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Located {
    /// Runs in ascending order; blocks of the stretch that are in none are holes.
    pub extents: Vec<Extent>,
    /// The stretch ends before this block (`u64::MAX`: the whole rest of the file is covered).
    pub known_until: u64,
}

/// What a client gets with a token on an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The inode.
    pub inode: InodeRecord,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<(Vec<u8>, Bytes)>,
    /// Symlinks: the target.
    pub target: Option<Bytes>,
    /// Locations from block 0 on, as many as fit an answer.
    pub located: Located,
    /// Tokens granted: on the inode and on all its blocks, when nobody else holds any.
    pub grants: Vec<Grant>,
}

/// Consecutive, fresh index numbers: a write token on files that do not exist yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexRange {
    /// The first id.
    pub first: FileId,
    /// How many.
    pub count: u64,
}

/// The deltas of one committed segment, those for one manager or for all (a manager ignores other
/// managers' files).
#[derive(Clone, Debug)]
pub struct SegmentDeltas {
    /// The segment; deltas of one log are applied in the order of its seq, without gaps (a segment
    /// without deltas for a manager is reported with none).
    pub segment: SegmentId,
    /// In log order.
    pub deltas: Arc<Vec<Delta>>,
}

/// Live bytes of one segment, as one manager counts them over its own files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentUsage {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes of it that this manager's files or index still point at.
    pub live_bytes: u64,
}

/// What changed in a manager's counts since its follower last asked.
///
/// A segment may be deleted when it is covered by all managers and none counts a live byte in it; a
/// count that reached zero in a covered segment stays zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UsageChanges {
    /// To be passed to the next call.
    pub until: u64,
    /// True: `changed` has every segment in which the manager counts live bytes, and `covered` is
    /// empty, as what was covered before is not known by name. False: only what changed.
    pub is_whole: bool,
    /// Counts as they are now, by segment; zero where nothing lives any more.
    pub changed: Vec<SegmentUsage>,
    /// Segments that the durable checkpoint has come to cover, those without a live byte among
    /// them; each once, in order of its log. Of the manager's own log: all that it has written up
    /// to the newest root.
    pub covered: Vec<SegmentId>,
}

/// A block that a cleaner wants to move: still where it found it?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockAt {
    /// The file, or, for the manager's own log, see [`Manager::live`].
    pub file: FileId,
    /// The run of blocks and where it was.
    pub extent: Extent,
}

/// How far a manager's durable state reaches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckpointState {
    /// For each client or cleaner log: all segments with seq up to this one are contained in the
    /// durable checkpoint. For the manager's own log: the seq of its newest durable root. A segment
    /// beyond what is covered must not be deleted, whatever its utilisation.
    pub covered: Vec<(LogId, u64)>,
}

/// What `status` shows of a manager.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManagerStatus {
    /// Files under its control.
    pub file_count: u64,
    /// Index nodes in memory.
    pub cached_count: u64,
    /// Of which differ from the log.
    pub dirty_count: u64,
    /// Tokens granted and not returned.
    pub token_count: u64,
    /// Checkpoints written since start.
    pub checkpoint_count: u64,
}

/// A manager.
pub trait Manager: Send + Sync + 'static {
    /// Takes a token on a file and tells what there is to know of it. ENOENT:
    /// [`ManagerError::NotFound`].
    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError>;
    /// The same for several files, in one message; the answers in the order of `files`.
    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let answers = files.iter().map(|&file| self.open(client, file, mode).into_future()).collect();
        Answer::later(async move { Ok(host::join_all(answers).await) })
    }
    /// Locations from block `first` on.
    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError>;
    /// Returns all of a client's tokens on a file (the client dropped it from its cache).
    fn release(&self, client: ClientId, file: FileId);
    /// Fresh index numbers of a volume. A dead client's unused numbers are abandoned, never handed
    /// out twice, not even after a crash of the manager.
    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError>;
    /// Applies committed deltas, in log order; segments at or below what was applied already are
    /// ignored (so that a repeated request is harmless). Includes the cleaner's `Move` deltas.
    /// Returns after they are applied in memory: they are durable already, in the log they come
    /// from.
    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError>;
    /// Which of these runs are still where the cleaner found them: the same order, clipped to the
    /// blocks that are still exactly there (a run can come back in several pieces, or in none).
    fn live(&self, candidates: Vec<BlockAt>) -> Answer<Vec<BlockAt>, ManagerError>;
    /// Utilisation of all segments in which this manager counts live bytes. Costs as much as there
    /// are: for start, fsck and tests.
    fn usage(&self) -> Answer<Vec<SegmentUsage>, ManagerError>;
    /// What changed since the answer with `until == since`, at the cost of what changed. The first
    /// call, any number that is not of the newest answers, and a follower that did not ask for very
    /// long get the whole table. One follower at a time.
    fn usage_changes(&self, since: u64) -> Answer<UsageChanges, ManagerError>;
    /// Writes a checkpoint and returns what the durable state covers. Concurrent calls share one
    /// checkpoint.
    fn checkpoint(&self) -> Answer<CheckpointState, ManagerError>;
    /// Moves index nodes and imap pieces of this manager's own log out of `segments` (part of the
    /// next checkpoint).
    fn evacuate(&self, segments: Vec<SegmentId>) -> Answer<(), ManagerError>;
    /// Orphans: files with nlink 0 that survived a crash; the recovering client removes them.
    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError>;
    /// For `status`.
    fn status(&self) -> ManagerStatus;
}
