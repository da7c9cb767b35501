//! The interface to a manager. It is the same in one process, over a network and in the simulated
//! world.

use crate::token::{Mode, Scope};
use crate::{Delta, InodeRecord};
use bytes::Bytes;
use std::sync::Arc;
use stripe::StripeError;
use thiserror::Error;
use types::{Answer, ClientId, Extent, FileId, LogId, SegmentId};

/// Most extents in one answer. This bounds the length of answers; a client asks for more when it
/// needs them.
pub const RUN_EXTENTS_MAX: usize = 128;
/// How many index numbers a client gets at once, by default. More mean fewer requests, and more
/// numbers lost at each crash.
pub const INDEX_RANGE_LEN: u64 = 16_384;

/// Why a manager refused or failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ManagerError {
    /// There is no such file.
    #[error("no such file")]
    NotFound,
    /// A newer manager map gives the file's slot to another manager.
    #[error("stale manager map: fetch epoch {0}")]
    StaleMap(u64),
    /// The index could not be read or written: too many stores are bad.
    #[error("the manager's log cannot be read or written")]
    Log,
    /// At a start: the stores cannot give a whole log.
    #[error("{0}")]
    Stores(StripeError),
    /// The request can never succeed (deltas out of order, malformed deltas).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

/// A granted token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenGrant {
    /// The largest scope that takes nothing from other clients. It covers at least what the client
    /// asked for.
    pub scope: Scope,
    /// The right to read or to write.
    pub mode: Mode,
}

/// Where the blocks of a stretch of a file are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Located {
    /// Runs in ascending order. Blocks of the stretch that are in no run are holes.
    pub extents: Vec<Extent>,
    /// The stretch ends before this block; `u64::MAX` if it covers the whole rest of the file.
    pub known_until: u64,
}

/// The answer to an open: the file, and tokens on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The inode.
    pub inode: InodeRecord,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<(Vec<u8>, Bytes)>,
    /// Symlinks: the target.
    pub target: Option<Bytes>,
    /// Locations from block 0 on, as many as fit in an answer.
    pub located: Located,
    /// The tokens granted: on the inode, and on all its blocks if no other client has any.
    pub grants: Vec<TokenGrant>,
}

/// Consecutive, fresh index numbers. The range is a write token on files that do not exist yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexRange {
    /// The first id.
    pub first: FileId,
    /// Number of ids.
    pub count: u64,
}

/// The deltas of one committed segment. It may have deltas for all managers: a manager ignores
/// other managers' files.
#[derive(Clone, Debug)]
pub struct SegmentDeltas {
    /// The segment. Segments of one log are applied in the order of seq, without gaps. So a segment
    /// without deltas for a manager is reported too, with none.
    pub segment: SegmentId,
    /// The segment's order among the segments of all logs; 0 if an older program wrote it.
    pub order: u64,
    /// The deltas in log order.
    pub deltas: Arc<Vec<Delta>>,
}

/// Live bytes of one segment, as one manager counts them over its own files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentUsage {
    /// The segment.
    pub segment: SegmentId,
    /// Its bytes that this manager's files or index still point at.
    pub live_bytes: u64,
}

/// The changes of a manager's counts since its follower last asked.
///
/// A segment may be deleted when all managers' checkpoints cover it and no manager counts a live
/// byte in it. Once a count is zero in a covered segment, it stays zero.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UsageChanges {
    /// To be passed to the next call.
    pub until: u64,
    /// True if `changed` has every segment in which the manager counts live bytes. Then `covered`
    /// is empty: the segments that were covered before are not known by name. False if there are
    /// only changes.
    pub is_whole: bool,
    /// The present counts of segments; zero if a segment has no live bytes any more.
    pub changed: Vec<SegmentUsage>,
    /// Segments that the durable checkpoint has come to cover, also those without live bytes. Each
    /// is listed once, in the order of its log. The manager's own log is covered up to the newest
    /// root.
    pub covered: Vec<SegmentId>,
}

/// A run of blocks that a cleaner wants to move, and the address where it found the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockAt {
    /// The file.
    pub file: FileId,
    /// The run of blocks, and where it was.
    pub extent: Extent,
}

/// How far a manager's durable state reaches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckpointState {
    /// For each client's and cleaner's log: the durable checkpoint covers all segments with seq up
    /// to this one. For the manager's own log: the seq of its newest durable root. A segment beyond
    /// must not be deleted, whether it has live bytes or not.
    pub covered: Vec<(LogId, u64)>,
}

/// A manager as `status` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManagerStatus {
    /// Files under its control.
    pub file_count: u64,
    /// Index nodes in memory.
    pub cached_count: u64,
    /// Index nodes in memory that differ from the log.
    pub dirty_count: u64,
    /// Tokens granted and not returned.
    pub token_count: u64,
    /// Checkpoints written since the start.
    pub checkpoint_count: u64,
}

/// A manager.
pub trait Manager: Send + Sync + 'static {
    /// Takes a token on a file for a client, and returns the file's inode and locations. Fails with
    /// [`ManagerError::NotFound`] if there is no such file.
    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError>;
    /// Opens several files with one message. The answers are in the order of `files`.
    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let answers = files.iter().map(|&file| self.open(client, file, mode).into_future()).collect();
        Answer::later(async move { Ok(host::join_all(answers).await) })
    }
    /// Locations of a file from block `first` on.
    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError>;
    /// Returns all of a client's tokens on a file. The client has dropped the file from its cache.
    fn release(&self, client: ClientId, file: FileId);
    /// Fresh index numbers of a volume. No number is handed out twice, not even after a crash of
    /// the manager. The unused numbers of a dead client are lost.
    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError>;
    /// Applies committed deltas, in log order, also the cleaner's `Move` deltas. Segments that were
    /// applied already are ignored, so a repeated request is harmless. Answers when the deltas are
    /// applied in memory: they are durable already, in the log that they come from.
    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError>;
    /// The parts of these runs that are still where the cleaner found them, in the same order. A
    /// run may come back in several pieces, or not at all.
    fn live(&self, candidates: Vec<BlockAt>) -> Answer<Vec<BlockAt>, ManagerError>;
    /// Utilisation of all segments in which this manager counts live bytes. Its cost grows with
    /// their number. For start, fsck and tests.
    fn usage(&self) -> Answer<Vec<SegmentUsage>, ManagerError>;
    /// The changes since the answer with `until == since`, at the cost of what changed. Has the
    /// whole table at the first call, if `since` is not from one of the newest answers, and if the
    /// follower did not ask for very long. One follower at a time.
    fn usage_changes(&self, since: u64) -> Answer<UsageChanges, ManagerError>;
    /// Writes a checkpoint, and returns how far the durable state reaches. Concurrent calls share
    /// one checkpoint.
    fn checkpoint(&self) -> Answer<CheckpointState, ManagerError>;
    /// Has the next checkpoint write all records anew that are in use and in `segments`, which are
    /// of this manager's own log: index nodes, their leaves, pages and the root.
    fn evacuate(&self, segments: Vec<SegmentId>) -> Answer<(), ManagerError>;
    /// Orphans: files with nlink 0 that survived a crash. The recovering client removes them.
    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError>;
    /// The manager's numbers for `status`.
    fn status(&self) -> ManagerStatus;
}
