//! A manager: plumbing around [`crate::state`].
//!
//! Every request is tried in memory first, under one short lock, and answered at once if memory is
//! enough. Otherwise the missing records are read from the manager's own log without the lock, and
//! the request is tried again. Deltas are applied by one caller at a time, in the order in which
//! the calls take their turn.
//!
//! What it must survive:
//!
//! - A crash at any point: recovery finds the newest root (the module `roll_forward`).
//! - Futures that are dropped half-way.
//! - Stores that refuse writes: everything stays dirty, and the next checkpoint tries again.
//! - Records that a checkpoint moved, and a cleaner deleted, between a lookup and the read: they
//!   are looked up again.

use crate::Delta;
use crate::api::{
    BlockAt, CheckpointState, FileUse, GiveBack, Glimpse, GlimpseAnswer, IndexRange, Located, Manager, ManagerAdmin,
    ManagerError, ManagerStatus, NodeSize, Opened, Progress, SegmentDeltas, SegmentUsage, UsageChanges,
};
use crate::apply::Turn;
use crate::clients::Clients;
use crate::frontier::Allocation;
use crate::manager_map::ManagerMap;
use crate::planted::{self, Bug};
use crate::record::{RecordDirectory, RecordKey};
use crate::root::page_rows_max;
use crate::state::{ApplyStop, EVICTION_STEPS_MAX, ManagerIdentity, ManagerState, MissingRecord, PageAt};
use crate::token::Mode;
use crate::tree::{PAGE_ROWS_MAX, Unloaded};
use parking_lot::Mutex;
use std::sync::Arc;
use stripe::{LogWriter, Stripe, StripeError};
use tokio::sync::OwnedMutexGuard;
use types::codec::DecodeError;
use types::{Answer, BlockAddr, ClientId, FileId, LogId, ManagerId, SegmentId};

/// The configuration of a manager.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// The manager.
    pub id: ManagerId,
    /// Its own log.
    pub log: LogId,
    /// Length of a block in bytes, the same for all files, for good.
    pub block_size: u32,
    /// Which manager serves which file.
    pub map: ManagerMap,
    /// Most index nodes to keep in memory, about 1.2 KiB each. Dirty ones may be more.
    pub cached_inodes_max: usize,
    /// How many index numbers a client gets at once.
    pub index_range_len: u64,
    /// Bounds of what it writes into its log.
    pub lengths: Lengths,
    /// The epoch of the manager that wrote the log before, if it is known. If the log was opened
    /// after that, it is not opened again: the request for it came too late.
    pub after_epoch: Option<u32>,
}

/// Bounds of what a manager writes into its log. Tests use small ones, so that small stores have
/// the structure of large ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Longest payload of a segment in bytes, unless the stripe's is shorter.
    pub segment_len_max: u32,
    /// Most rows of a page of its tables, unless a segment has room for fewer.
    pub page_rows_max: usize,
}

impl Lengths {
    /// The largest bounds.
    pub const LARGEST: Lengths = Lengths { segment_len_max: u32::MAX, page_rows_max: PAGE_ROWS_MAX };
}

impl ManagerConfig {
    pub(crate) fn identity(&self) -> ManagerIdentity {
        ManagerIdentity {
            id: self.id,
            log: self.log,
            map: self.map.clone(),
            block_size: self.block_size,
            cached_inodes_max: self.cached_inodes_max,
            index_range_len: self.index_range_len,
            rows_max: page_rows_max(self.lengths.page_rows_max, self.lengths.segment_len_max),
        }
    }
}

/// A manager. It implements [`Manager`].
pub struct ManagerServer {
    pub(crate) core: Arc<Core>,
}

/// The part of a manager that requests keep alive while they wait.
pub(crate) struct Core {
    pub(crate) config: ManagerConfig,
    pub(crate) stripe: Arc<Stripe>,
    pub(crate) writer: Arc<LogWriter>,
    pub(crate) state: Mutex<ManagerState>,
    pub(crate) clients: Clients,
    /// Held by the caller whose turn it is to apply deltas, also across awaits. No caller waits for
    /// it while it holds `state`.
    pub(crate) order: Arc<tokio::sync::Mutex<()>>,
    /// Held by the caller whose turn it is to write a checkpoint.
    pub(crate) checkpointing: tokio::sync::Mutex<()>,
}

/// Deltas that are being applied.
struct Batch {
    segments: Vec<SegmentDeltas>,
    /// Where to go on: the segment, and the delta in it.
    at: (usize, usize),
}

impl ManagerServer {
    /// The seq up to which all segments of a log are applied; `None` if no segment is.
    pub fn applied(&self, log: LogId) -> Option<u64> {
        self.core.state.lock().positions.get(&log).copied()
    }

    /// The epoch in which it writes its log.
    pub fn epoch(&self) -> u32 {
        self.core.writer.epoch()
    }

    /// The seq of the newest segment of its log that is durable; 0 if none is.
    pub fn committed_seq(&self) -> u64 {
        self.core.writer.committed_seq().unwrap_or(0)
    }

    /// See [`Progress::order`].
    pub fn order(&self) -> u64 {
        self.core.state.lock().order
    }

    /// Utilisation of all segments in which this manager counts live bytes. Its cost grows with
    /// their number. For start, fsck and tests.
    pub fn usage(&self) -> Answer<Vec<SegmentUsage>, ManagerError> {
        let core = self.core.clone();
        Answer::later(async move { core.usage().await })
    }

    /// The files that the next checkpoint writes, with the size of their nodes: see
    /// [`ManagerState::owed`](crate::state::ManagerState::owed).
    pub fn owed(&self) -> Vec<(FileId, Option<NodeSize>)> {
        self.core.state.lock().owed()
    }
}

impl Core {
    pub(crate) fn new(config: ManagerConfig, stripe: Arc<Stripe>, writer: Arc<LogWriter>, state: ManagerState) -> Self {
        Core {
            config,
            stripe,
            writer,
            state: Mutex::new(state),
            clients: Clients::default(),
            order: Arc::default(),
            checkpointing: tokio::sync::Mutex::new(()),
        }
    }

    /// Reads one record of the own log.
    pub(crate) async fn read(&self, addr: BlockAddr) -> Result<bytes::Bytes, StripeError> {
        self.stripe.read(addr.segment, addr.offset..addr.offset + addr.len).await
    }

    /// Reads a missing record into memory. Succeeds also if the record is not there any more: the
    /// request looks it up again.
    pub(crate) async fn load(&self, missing: MissingRecord) -> Result<(), ManagerError> {
        let read = match missing {
            MissingRecord::Page(page) => {
                self.read(page.home).await.map(|bytes| self.state.lock().install_page(&page, &bytes))
            }
            MissingRecord::Leaf { file, index, addr } => {
                self.read(addr).await.map(|bytes| self.state.lock().install_leaf(file, index, addr, &bytes))
            }
            MissingRecord::Node { file, addr } => self.load_nodes(file, addr).await,
        };
        match read {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::error!(manager = %self.config.id, ?missing, %error, "a record of the manager's log is rotten");
                Err(ManagerError::Log)
            }
            Err(error) if self.state.lock().is_current(&missing) => {
                tracing::error!(manager = %self.config.id, ?missing, %error, "the manager's log cannot be read");
                Err(ManagerError::Log)
            }
            Err(_) => Ok(()),
        }
    }

    /// Reads an index node, together with those that come right after it in the log.
    async fn load_nodes(&self, file: FileId, addr: BlockAddr) -> Result<Result<(), DecodeError>, StripeError> {
        let wanted = self.state.lock().around(file, addr);
        let end = wanted.iter().map(|(_, a)| a.offset + a.len).fold(addr.offset + addr.len, u32::max);
        let bytes = self.stripe.read(addr.segment, addr.offset..end).await?;
        let mut state = self.state.lock();
        for (file, node) in wanted {
            let begin = (node.offset - addr.offset) as usize;
            let Some(record) = bytes.get(begin..begin + node.len as usize) else {
                return Ok(Err(DecodeError::Truncated("index node")));
            };
            if let Err(error) = state.install_node(file, node, record) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Repeats a step until it has a result, and loads the records that it misses.
    pub(crate) async fn run<T>(
        &self,
        mut missing: MissingRecord,
        mut step: impl FnMut(&mut ManagerState) -> Result<T, ApplyStop>,
    ) -> Result<T, ManagerError> {
        loop {
            self.load(missing).await?;
            let result = step(&mut self.state.lock());
            match result {
                Err(ApplyStop::Missing(next)) => missing = next,
                Err(ApplyStop::Refused(error)) => return Err(error),
                Ok(value) => {
                    self.state.lock().evict();
                    return Ok(value);
                }
            }
        }
    }

    /// Answers at once if memory is enough, otherwise later.
    fn answer<T: Send + 'static>(
        self: &Arc<Self>,
        mut step: impl FnMut(&mut ManagerState) -> Result<T, ApplyStop> + Send + 'static,
    ) -> Answer<T, ManagerError> {
        let first = step(&mut self.state.lock());
        match first {
            Ok(value) => Answer::ok(value),
            Err(ApplyStop::Refused(error)) => Answer::err(error),
            Err(ApplyStop::Missing(missing)) => {
                let core = self.clone();
                Answer::later(async move { core.run(missing, step).await })
            }
        }
    }

    /// Applies a batch until a record is missing in memory. `Ok` if the whole batch is applied.
    fn step(&self, batch: &mut Batch) -> Result<(), ApplyStop> {
        while let Some(SegmentDeltas { segment, order, deltas }) = batch.segments.get(batch.at.0) {
            // Lock anew for each segment, so that other requests need not wait for a whole batch.
            let mut state = self.state.lock();
            let turn = state.turn(*segment);
            match turn {
                Turn::Old => {}
                Turn::TooEarly => {
                    return Err(ManagerError::BadRequest("segments before this one were not applied").into());
                }
                Turn::TooMany => return Err(ManagerError::BadRequest("too many logs").into()),
                Turn::Next => {
                    if batch.at.1 == 0 {
                        deltas.iter().try_for_each(|delta| state.check(delta))?;
                    }
                    let author = state.owners.get(&segment.log).copied();
                    while batch.at.1 < deltas.len() {
                        state.apply(author, &deltas[batch.at.1..])?;
                        batch.at.1 += 1;
                    }
                    state.advance(*segment, *order);
                }
            }
            state.evict();
            drop(state);
            // Whoever waits for a token on a removed file learns that there is no such file.
            let is_removal =
                |delta: &&Delta| matches!(delta, Delta::Remove { .. }) && !planted::is(Bug::RemovalWakesNobody);
            if turn == Turn::Next {
                deltas.iter().filter(is_removal).for_each(|delta| self.clients.given_back(delta.file()));
            }
            batch.at = (batch.at.0 + 1, 0);
        }
        Ok(())
    }

    /// Applies the rest of a batch, and loads the records that it misses.
    async fn finish(&self, mut batch: Batch, turn: OwnedMutexGuard<()>) -> Result<(), ManagerError> {
        let result = loop {
            match self.step(&mut batch) {
                Ok(()) => break Ok(()),
                Err(ApplyStop::Refused(error)) => break Err(error),
                Err(ApplyStop::Missing(missing)) => {
                    if let Err(error) = self.load(missing).await {
                        break Err(error);
                    }
                }
            }
        };
        drop(turn);
        result
    }

    /// Writes a checkpoint of the state at this call or later, or shares one that another caller
    /// writes.
    pub(crate) async fn checkpoint(&self) -> Result<CheckpointState, ManagerError> {
        // A snapshot that was taken before this call may lack changes. The next one has them all.
        let wanted = self.state.lock().snapshot_count + 1;
        let _turn = self.checkpointing.lock().await;
        let snapshot = {
            let mut state = self.state.lock();
            match state.installed >= wanted || !state.needs_checkpoint() {
                true => return Ok(CheckpointState { covered: state.covered() }),
                false => state.snapshot(),
            }
        };
        let written = self.write(&snapshot).await?;
        let (covered, cached_count) = {
            let mut state = self.state.lock();
            state.install(snapshot, written);
            (state.covered(), state.cached_count())
        };
        // Nodes that were dirty can be evicted now: as many as changed since the last checkpoint.
        // Going around twice is enough: a used node goes the second time. The lock is taken anew
        // each time, so that other requests get in between.
        for _ in 0..=2 * cached_count / EVICTION_STEPS_MAX {
            if !self.state.lock().evict() {
                break;
            }
        }
        Ok(CheckpointState { covered })
    }

    async fn evacuate(&self, segments: Vec<SegmentId>) -> Result<(), ManagerError> {
        for segment in segments.into_iter().filter(|s| s.log == self.config.log) {
            let directory = match self.stripe.deltas(segment).await {
                Ok(bytes) => RecordDirectory::decode(&bytes).map_err(|error| error.to_string()),
                Err(StripeError::SegmentNotFound(_)) => continue,
                Err(error) => Err(error.to_string()),
            };
            let directory = directory.map_err(|error| {
                tracing::error!(%segment, error, "a segment of the manager's log cannot be read");
                ManagerError::Log
            })?;
            for (key, addr) in directory.records(segment) {
                let step = |state: &mut ManagerState| state.rewrite(key, addr).map_err(ApplyStop::from);
                let first = step(&mut self.state.lock());
                if let Err(ApplyStop::Missing(missing)) = first {
                    self.run(missing, step).await?;
                }
            }
        }
        Ok(())
    }
}

impl ManagerState {
    /// Has the next checkpoint write a record anew, if the record is still in use.
    fn rewrite(&mut self, key: RecordKey, addr: BlockAddr) -> Result<(), MissingRecord> {
        match key {
            RecordKey::Node(raw) => {
                if self.node_record(FileId::new(raw))? == Some(addr) && self.find(FileId::new(raw))? {
                    self.node_mut(FileId::new(raw));
                }
            }
            RecordKey::Leaf(raw, index) => {
                let file = FileId::new(raw);
                if self.find(file)? && self.cache.get(&file).is_some_and(|e| e.homes.get(&index) == Some(&addr)) {
                    let first = index.saturating_mul(crate::index_node::LEAF_BLOCKS);
                    self.find_blocks(file, first, first.saturating_add(crate::index_node::LEAF_BLOCKS))?;
                    if let Some((node, stamp)) = self.node_mut(file) {
                        node.touch_leaf(index, stamp);
                    }
                }
            }
            RecordKey::Page { table, level, first } => {
                self.forced_pages.insert(PageAt { table, page: Unloaded { level, first, home: addr } });
            }
            RecordKey::Root => {
                self.force_root |= self.root.as_ref().is_some_and(|root| root.record == addr);
            }
        }
        Ok(())
    }
}

impl Manager for ManagerServer {
    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.core.open(client, file, mode)
    }

    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let (core, files) = (self.core.clone(), files.to_vec());
        Answer::later(async move {
            let answers = files.into_iter().map(|file| {
                let core = core.clone();
                Box::pin(async move {
                    match planted::is(Bug::BatchWaits) {
                        true => core.open(client, file, mode).await,
                        false => core.open_now(client, file, mode).await,
                    }
                }) as types::BoxFuture<_>
            });
            Ok(host::join_all(answers.collect()).await)
        })
    }

    fn glimpse(&self, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        self.core.glimpse(client, file)
    }

    fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer) {
        self.core.glimpsed(client, answer);
    }

    fn locate(&self, _client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.core.answer(move |state| state.locate(file, first))
    }

    fn release(&self, client: ClientId, file: FileId, number: u64) {
        self.core.take_back(client, GiveBack { file, number, keep: None, is_open: false });
    }

    fn give_back(&self, client: ClientId, back: GiveBack) {
        self.core.take_back(client, back);
    }

    fn closed(&self, client: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.core.state.lock().tokens.closed(client, file);
        self.core.answer(move |state| state.is_abandoned(file))
    }

    fn allocate(&self, _client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        let exhausted = || ManagerError::BadRequest("this manager has no index numbers left for the volume");
        let first = self.core.state.lock().frontiers.allocate(volume);
        match first {
            Allocation::Range(range) => return Answer::ok(range),
            Allocation::Exhausted => return Answer::err(exhausted()),
            Allocation::NeedsReserve => {}
        }
        let core = self.core.clone();
        Answer::later(async move {
            loop {
                core.checkpoint().await?;
                // Other clients may have taken all reserved numbers, so one checkpoint may not be
                // enough.
                let next = core.state.lock().frontiers.allocate(volume);
                match next {
                    Allocation::Range(range) => return Ok(range),
                    Allocation::Exhausted => return Err(exhausted()),
                    Allocation::NeedsReserve => {}
                }
            }
        })
    }

    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        let mut batch = Batch { segments, at: (0, 0) };
        let core = self.core.clone();
        match self.core.order.clone().try_lock_owned() {
            Ok(turn) => match core.step(&mut batch) {
                Ok(()) => Answer::ok(()),
                Err(ApplyStop::Refused(error)) => Answer::err(error),
                Err(ApplyStop::Missing(missing)) => Answer::later(async move {
                    core.load(missing).await?;
                    core.finish(batch, turn).await
                }),
            },
            Err(_) => Answer::later(async move {
                let turn = core.order.clone().lock_owned().await;
                core.finish(batch, turn).await
            }),
        }
    }

    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        let core = self.core.clone();
        Answer::later(async move { core.orphans().await })
    }

    fn status(&self) -> ManagerStatus {
        self.core.state.lock().status()
    }
}

impl ManagerAdmin for ManagerServer {
    fn id(&self) -> ManagerId {
        self.core.config.id
    }

    fn progress(&self) -> Answer<Progress, ManagerError> {
        Answer::ok(self.core.state.lock().progress())
    }

    fn replay(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        self.apply(segments)
    }

    fn size(&self, run: BlockAt) -> Answer<Option<NodeSize>, ManagerError> {
        self.core.answer(move |state| Ok(state.size(&run)?))
    }

    fn live(&self, candidates: Vec<BlockAt>) -> Answer<Vec<BlockAt>, ManagerError> {
        let (mut done, mut found) = (0, Vec::new());
        self.core.answer(move |state| {
            while let Some(candidate) = candidates.get(done) {
                found.append(&mut state.live(candidate)?);
                done += 1;
            }
            Ok(std::mem::take(&mut found))
        })
    }

    fn usage_changes(&self, since: u64) -> Answer<UsageChanges, ManagerError> {
        let core = self.core.clone();
        Answer::later(async move { core.usage_changes(since).await })
    }

    fn checkpoint(&self) -> Answer<CheckpointState, ManagerError> {
        let core = self.core.clone();
        Answer::later(async move { core.checkpoint().await })
    }

    fn evacuate(&self, segments: Vec<SegmentId>) -> Answer<(), ManagerError> {
        let core = self.core.clone();
        Answer::later(async move { core.evacuate(segments).await })
    }

    fn file_use(&self, file: FileId) -> Answer<FileUse, ManagerError> {
        Answer::ok(self.core.file_use(file))
    }
}
