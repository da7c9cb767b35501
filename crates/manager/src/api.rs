//! The interface to a manager. It is the same in one process, over a network and in the simulated
//! world.

use crate::token::Mode;
pub use crate::token_table::{GiveBack, HeldToken, TokenRecall};
use crate::{Delta, InodeRecord};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stripe::StripeError;
use thiserror::Error;
use types::{Answer, ClientId, Extent, FileId, LogId, ManagerId, SegmentId};

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
    /// Another client has a token in conflict, and was asked to give it back: ask for this file
    /// alone, and wait.
    #[error("another client has a token on the file")]
    Held,
    /// The client is not, or no longer, among the clients of this manager: it was declared dead, or
    /// it has begun anew.
    #[error("this client was declared dead")]
    Expelled,
    /// The node that serves the manager cannot be reached now, or the manager moves to another one.
    /// Whether the request was done is unknown; all requests that end so can be repeated.
    #[error("the node of this manager cannot be reached")]
    Away,
    /// The request can never succeed (deltas out of order, malformed deltas).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

/// A granted token on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenGrant {
    /// The right to read or to write, at least what the client asked for.
    pub mode: Mode,
    /// Greater than the numbers of all earlier grants of this manager in this term.
    pub number: u64,
    /// The manager's term: another one after each start. A manager knows only what it granted in
    /// its term, and what clients said that they held before.
    pub term: u64,
    /// Another client has the file open, without a token. Who removes the file's last name leaves
    /// its contents to that client.
    pub open_elsewhere: bool,
}

/// Where the blocks of a stretch of a file are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Located {
    /// Runs in ascending order. Blocks of the stretch that are in no run are holes.
    pub extents: Vec<Extent>,
    /// The stretch ends before this block; `u64::MAX` if it covers the whole rest of the file.
    pub known_until: u64,
}

/// The answer to an open: the file, and a token on it.
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
    /// The token granted.
    pub grant: TokenGrant,
    /// The highest order of a segment that the manager has applied. What the client changes under
    /// the token goes into segments of a higher order.
    pub order: u64,
}

/// A question for the attributes of a file that a client may be changing (docs/core.md#tokens).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlimpseQuestion {
    /// The file.
    pub file: FileId,
    /// The manager's term.
    pub term: u64,
    /// The number of the question; no other one of the term has it.
    pub number: u64,
}

/// A client's answer to a question for attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GlimpseAnswer {
    /// The question.
    pub question: GlimpseQuestion,
    /// The inode as it is at the client now; `None` if the client cannot change the file.
    pub inode: Option<Box<InodeRecord>>,
}

/// What a client gets that asks for the attributes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Glimpse {
    /// A token to read, since no other client could change the file.
    Opened(Box<Opened>),
    /// The inode as another client has it that can change the file. It was so at a moment after the
    /// client had asked, and the client may keep nothing of it.
    Seen {
        /// The inode.
        inode: Box<InodeRecord>,
        /// The manager's term.
        term: u64,
    },
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
#[derive(Clone, PartialEq, Eq, Debug)]
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

/// How much a checkpoint writes for an index node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSize {
    /// Bytes of attributes and target.
    pub attribute_bytes: u64,
    /// Number of extents and addresses of leaves, at most.
    pub extent_count: u64,
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

/// Which changes a manager has applied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// For each client's and cleaner's log from which something is applied: all segments up to this
    /// seq are.
    pub applied: BTreeMap<LogId, u64>,
    /// The highest order of a segment that was applied, since the file system was made; 0 if none
    /// had an order. A writer that gets something from this manager afterwards gives its segments
    /// higher orders (`stripe::LogWriter::learn_order`).
    pub order: u64,
}

impl Progress {
    /// The seq up to which all segments of a log are applied; 0 if none is.
    pub fn of(&self, log: LogId) -> u64 {
        self.applied.get(&log).copied().unwrap_or(0)
    }
}

/// A client's token on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenUse {
    /// The client.
    pub client: ClientId,
    /// Its right.
    pub mode: Mode,
    /// What another client wants, for which this one was asked to give the token back. With
    /// [`Mode::Read`] it may keep the right to read.
    pub recalled: Option<Mode>,
}

/// A request for a token that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenWait {
    /// The client.
    pub client: ClientId,
    /// The right that it wants.
    pub mode: Mode,
}

/// Who uses a file, as its manager knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileUse {
    /// The tokens of clients.
    pub holders: Vec<TokenUse>,
    /// The clients that have the file open without a token.
    pub open_at: Vec<ClientId>,
    /// The requests that wait, in the order in which they are served.
    pub waiting: Vec<TokenWait>,
}

/// A client, as its managers see it.
pub trait TokenHolder: Send + Sync + 'static {
    /// Asks the client to give tokens back. Returns at once; the client answers each recall with
    /// [`Manager::give_back`], when its changes are durable and the managers have applied them. A
    /// recall may come twice, and before the answer that grants the token.
    fn recall(&self, recalls: Vec<TokenRecall>);
    /// Asks the client for the attributes of a file that it may change. Returns at once. The client
    /// answers with [`Manager::glimpsed`], and keeps its token. If it does not change the file at
    /// the moment, it keeps only the right to read instead, and says so with
    /// [`Manager::give_back`]. A question may come twice, and before the answer that grants the
    /// token.
    fn glimpse(&self, question: GlimpseQuestion);
}

/// A manager.
pub trait Manager: Send + Sync + 'static {
    /// Takes a token on a file for a client, and returns the file's inode and locations. Waits
    /// until other clients have given back theirs, in the order in which the requests came. Fails
    /// with [`ManagerError::NotFound`] if there is no such file.
    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError>;
    /// Opens several files with one message. The answers are in the order of `files`. Does not wait
    /// for other clients: what they hold answers [`ManagerError::Held`]. So a client never has
    /// tokens that it does not know of yet while it waits for others.
    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError>;
    /// The attributes of a file: with a token to read, or without one if another client changes the
    /// file at the moment. Never waits until another client gives a token back: if that is
    /// necessary, it fails with [`ManagerError::Held`], and the caller opens the file.
    fn glimpse(&self, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError>;
    /// A client's answer to a question for attributes.
    fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer);
    /// Locations of a file from block `first` on.
    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError>;
    /// Returns a client's token on a file, if `number` is that of the newest grant. The client has
    /// dropped the file from its cache, and no program there has it open.
    fn release(&self, client: ClientId, file: FileId, number: u64);
    /// A client's answer to a recall.
    fn give_back(&self, client: ClientId, back: GiveBack);
    /// Notes that no program at the client has a file open any more that was open when the client
    /// gave its token back. Answers true if the file has no name any more: the caller then takes
    /// the right to change it, and removes it if no other client has it open.
    fn closed(&self, client: ClientId, file: FileId) -> Answer<bool, ManagerError>;
    /// Fresh index numbers of a volume. No number is handed out twice, not even after a crash of
    /// the manager. The unused numbers of a dead client are lost.
    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError>;
    /// Applies committed deltas, in log order, also the cleaner's `Move` deltas. Segments that were
    /// applied already are ignored, so a repeated request is harmless. Answers when the deltas are
    /// applied in memory: they are durable already, in the log that they come from.
    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError>;
    /// Orphans: files with nlink 0. They survived a crash of the manager or of a client. Leaves out
    /// those that a client without a token has open. A client with a token may have one open too:
    /// so the caller takes the right to change it before it removes it.
    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError>;
    /// The manager's numbers for `status`.
    fn status(&self) -> ManagerStatus;
}

/// A manager, as the node sees it that recovers logs, cleans and deletes.
pub trait ManagerAdmin: Send + Sync + 'static {
    /// Its id.
    fn id(&self) -> ManagerId;
    /// Which changes it has applied.
    fn progress(&self) -> Answer<Progress, ManagerError>;
    /// As [`Manager::apply`], with segments that were read from a log, or that a cleaner wrote.
    fn replay(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError>;
    /// How much the next checkpoint writes for a file if this run of it is moved; `None` if the
    /// file is gone.
    fn size(&self, run: BlockAt) -> Answer<Option<NodeSize>, ManagerError>;
    /// The parts of these runs that are still where the cleaner found them, in the same order. A
    /// run may come back in several pieces, or not at all.
    fn live(&self, candidates: Vec<BlockAt>) -> Answer<Vec<BlockAt>, ManagerError>;
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
    /// Who uses a file. Changes nothing. If there is no such file, nothing does.
    fn file_use(&self, file: FileId) -> Answer<FileUse, ManagerError>;
}
