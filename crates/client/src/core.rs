//! The plumbing of the client: fetching what attempts miss, cutting segments, and telling managers
//! what was committed.
//!
//! A **cut** puts everything that changed since the cut before into one segment, in one instant
//! under the state's lock. A segment is applied by recovery whole or not at all, and in order;
//! therefore what a crash leaves is always the state after some prefix of the operations. The dirty
//! set never outgrows one segment: an operation that would make it so cuts first.

use crate::cache::{DataCache, Expect};
use crate::directory::Bucket;
use crate::inode::Blocks;
use crate::state::{Attempt, ClientState, INODE_DELTA_BYTES, Miss, Stop};
use crate::tokens::{Look, Pins};
use crate::touched::{self, Needs};
use crate::under_way::UnderWay;
use bytes::Bytes;
use host::{Host, first, join_all};
use manager::Delta;
use manager::api::{Manager, ManagerError, SegmentDeltas, TokenRecall};
use manager::manager_map::ManagerMap;
use manager::planted::{self, Bug};
use manager::token::Mode;
use parking_lot::{Mutex, MutexGuard};
use policy::space::{Purpose, SpaceAccount};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stripe::{LogTail, LogWriter, Stripe, StripeError};
use striped_log::builder::{SegmentBuilder, SegmentDraft};
use striped_log::fragment::CHUNK_LEN;
use tokio::sync::{Notify, watch};
use types::{Answer, BlockAddr, BoxFuture, ClientId, FileId, FsError, ManagerId, Time};
use vfs::kernel::Kernel;
use vfs::locks::{LockService, Locks};

/// Bound of repetitions of one attempt. Each fetches something, so only a cache that is far too
/// small for the operation gets there.
const ATTEMPTS_MAX: usize = 10_000;
/// How often an operation has space searched for before it fails.
const SPACE_SEARCHES: u32 = 2;
/// Bound of repetitions that fetch into the streams' part of the cache. That part may be too small
/// for one read, or for all readers that share it; later repetitions use the whole cache.
const STREAM_ATTEMPTS_MAX: usize = 3;
/// Bytes of payload that may be on their way to the stores before a write that must cut waits.
pub const IN_FLIGHT_BYTES_MAX: u64 = 4 << 20;
/// Bound of the bytes on their way, and of the bytes in one segment, while a program syncs often:
/// its fsync waits for everything that others wrote before. It holds up only long writes, so a
/// program that writes little and syncs does not wait here.
const SYNCED_BYTES_MAX: u64 = 1 << 20;
/// Writes from this length on, in bytes, count as long.
const LONG_WRITE_BYTES_MIN: u64 = 256 << 10;
/// Time after a sync within which the next one is expected.
const SYNC_EXPECTED: Duration = Duration::from_secs(1);
/// Age of the oldest unsynced change at which the client cuts.
const CUT_AGE: Duration = Duration::from_secs(4);
/// Time between looks at that age. With [`CUT_AGE`], a change waits 5 s at most
/// (docs/core.md#client).
const CUT_TICK: Duration = Duration::from_secs(1);
/// Number of segments whose deltas go to a manager in one message, at most.
const APPLY_BATCH_MAX: usize = 256;
/// Number of cuts that managers may not have applied yet. At this bound, changes wait.
pub const UNAPPLIED_CUTS_MAX: usize = 1024;
/// How long a change waits for the managers before it fails. Where commits wait for stores, it
/// waits as much longer.
const APPLY_TIME_MAX: Duration = Duration::from_secs(60);
/// How long committed deltas wait for more to be sent with them. No program waits for this: an
/// operation that needs them applied says so. A program that has just synced needs the processor
/// itself.
const APPLY_PAUSE: Duration = Duration::from_millis(5);

/// How long a commit or a read waits at most for stores that are away.
const STORES_TIME_MAX: Duration = Duration::from_secs(120);
/// Pause before it tries again.
pub(crate) const STORES_PAUSE: Duration = Duration::from_millis(200);
/// The eviction hand lists at most as many removed files as there are inodes in memory, and this
/// many more.
const HAND_SLACK: usize = 1024;

/// How a client is set up.
#[derive(Clone)]
pub struct ClientConfig {
    /// The client's id.
    pub id: ClientId,
    /// Block size of the volume in bytes.
    pub block_size: u32,
    /// Bound of the data cache in bytes.
    pub cache_bytes: u64,
    /// Number of inodes in memory from which on the client evicts inodes for new ones. Inodes that
    /// must stay in memory count too, and may exceed it.
    pub inode_count_max: usize,
    /// How long kernels may cache names and attributes at most.
    pub lease: Duration,
    /// When the lease of the tokens is over, in nanoseconds of the host's clock; `None` if no other
    /// client can want the tokens. The kernel keeps no answer longer than that. The caller must not
    /// pass answers on while the lease is over.
    pub lease_until: Option<Arc<AtomicU64>>,
}

/// The managers, and which of them serves which slot.
pub struct Managers {
    map: ManagerMap,
    by_id: Vec<Arc<dyn Manager>>,
    /// Messages sent to managers. A caller that takes a manager sends it one message.
    message_count: AtomicU64,
}

impl Managers {
    /// All managers, by id, and the map that says which of them serves which slot.
    pub fn new(map: ManagerMap, by_id: Vec<Arc<dyn Manager>>) -> Managers {
        Managers { map, by_id, message_count: AtomicU64::new(0) }
    }

    /// The manager of a file, to send it one message.
    pub(crate) fn of(&self, file: FileId) -> &Arc<dyn Manager> {
        self.at(self.manager_of(file).raw() as usize)
    }

    pub(crate) fn manager_of(&self, file: FileId) -> ManagerId {
        self.map.owner_of(file)
    }

    /// The ids of all managers.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ManagerId> {
        (0..self.by_id.len() as u16).map(ManagerId::new)
    }

    /// One manager after the other, to send it one message.
    pub(crate) fn by_turns(&self, turn: u64) -> &Arc<dyn Manager> {
        self.at(turn as usize % self.by_id.len())
    }

    /// All managers, to send each one message.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Arc<dyn Manager>> {
        (0..self.by_id.len()).map(|i| self.at(i))
    }

    fn at(&self, index: usize) -> &Arc<dyn Manager> {
        self.message_count.fetch_add(1, Relaxed);
        &self.by_id[index]
    }

    /// Messages sent to managers since the start.
    pub(crate) fn message_count(&self) -> u64 {
        self.message_count.load(Relaxed)
    }
}

/// What an operation has done to find space.
#[derive(Default)]
struct SpaceSearch {
    /// Searches that it has begun.
    count: u32,
    /// The newest one has ended when so many rounds have.
    until: u64,
}

/// Everything a client is made of; shared by its operations and its background tasks.
pub struct Core {
    pub(crate) host: Host,
    pub(crate) config: ClientConfig,
    pub(crate) managers: Managers,
    pub(crate) stripe: Arc<Stripe>,
    pub(crate) log: Arc<LogWriter>,
    pub(crate) state: Mutex<ClientState>,
    pub(crate) cache: DataCache,
    pub(crate) under_way: UnderWay,
    segment_len_max: u64,
    /// Bytes of one attempt to write, at most, and so of one write that is atomic in a crash.
    pub(crate) write_len_max: usize,
    committed: Notify,
    /// Notified when an operation waits for deltas to be applied.
    apply_wanted: Notify,
    applied: watch::Sender<u64>,
    /// Counts which manager's turn it is to give numbers for new inodes.
    next_range_from: AtomicU64,
    /// Notified when an operation waits for free space.
    pub(crate) space_wanted: Notify,
    /// Decides about file locks.
    pub(crate) locks: OnceLock<Arc<dyn LockService>>,
    /// Number of inodes that the client asked managers for.
    pub(crate) inode_fetch_count: AtomicU64,
    /// Reads do not change access times.
    pub(crate) leaves_atime: AtomicBool,
    /// Counts the rounds in which maintenance looked for space.
    pub(crate) space_round: watch::Sender<u64>,
    /// Tells of each new share of the free space.
    pub(crate) space_share: watch::Sender<()>,
    /// Counts changes of pins, claims and recalls.
    pub(crate) tokens_change: watch::Sender<u64>,
    /// The kernel behind the mount, if there is one.
    pub(crate) kernel: OnceLock<Arc<dyn Kernel>>,
    pub(crate) stopped: AtomicBool,
    /// The client was declared dead: nothing is to be sent to managers any more.
    abandoned: AtomicBool,
}

impl Core {
    pub(crate) fn new(
        host: Host,
        config: ClientConfig,
        space: SpaceAccount,
        managers: Managers,
        stripe: Arc<Stripe>,
        tail: LogTail,
    ) -> Arc<Core> {
        let last_seq = tail.next_seq.saturating_sub(1);
        // A small tree needs one range of numbers per start: take it from another manager at each
        // start.
        let first_turn = tail.epoch.into();
        let log = LogWriter::new(stripe.clone(), tail);
        let payload = stripe.payload_len_max();
        let room = payload.saturating_sub(2 * config.block_size + CHUNK_LEN).min(1 << 20);
        let core = Arc::new(Core {
            write_len_max: (room / config.block_size).max(1) as usize * config.block_size as usize,
            cache: DataCache::new(config.cache_bytes),
            under_way: UnderWay::default(),
            segment_len_max: payload.into(),
            state: Mutex::new(ClientState::new(last_seq, space)),
            applied: watch::Sender::new(last_seq),
            committed: Notify::new(),
            apply_wanted: Notify::new(),
            next_range_from: AtomicU64::new(first_turn),
            space_wanted: Notify::new(),
            locks: OnceLock::new(),
            inode_fetch_count: AtomicU64::new(0),
            leaves_atime: AtomicBool::new(false),
            space_round: watch::Sender::new(0),
            space_share: watch::Sender::new(()),
            tokens_change: watch::Sender::new(0),
            kernel: OnceLock::new(),
            stopped: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            host,
            config,
            managers,
            stripe,
            log,
        });
        let weak = Arc::downgrade(&core);
        core.log.on_commit(Box::new(move |segment| {
            if let Some(core) = weak.upgrade() {
                core.cache.unpin(segment);
                core.committed.notify_one();
            }
        }));
        core.host.tasks.spawn(Box::pin(core.clone().apply_loop()));
        core.host.tasks.spawn(Box::pin(core.clone().age_loop()));
        core
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.committed.notify_one();
        self.apply_wanted.notify_one();
        self.tokens_change.send_modify(|count| *count += 1);
        self.space_share.send_replace(());
    }

    /// Begins an attempt: locks the state.
    pub(crate) fn begin(&self) -> MutexGuard<'_, ClientState> {
        touched::begin();
        self.state.lock()
    }

    /// What decides about file locks: the client itself, unless another one was set.
    pub(crate) fn locks(&self) -> &Arc<dyn LockService> {
        self.locks.get_or_init(|| Arc::new(Locks::default()))
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        self.stop();
        // Whoever waits for managers goes on, and finds that the client is over.
        self.applied.send_replace(u64::MAX);
    }

    pub(crate) fn wall(&self) -> Time {
        self.host.clock.wall()
    }

    /// Answers at once if the first attempt has succeeded or failed; otherwise fetches and repeats
    /// `again`.
    pub(crate) fn answer<T: Send + 'static, F>(
        self: &Arc<Self>,
        first: Attempt<T>,
        again: impl FnOnce() -> F,
    ) -> Answer<T>
    where
        F: FnMut(&Arc<Core>) -> Attempt<T> + Send + 'static,
    {
        match first {
            Ok(value) => Answer::Now(Ok(value)),
            Err(Stop::Fail(e)) => Answer::Now(Err(e)),
            Err(Stop::Miss(miss)) => Answer::Later(Box::pin(self.clone().repeat(miss, touched::needs(), again()))),
        }
    }

    /// Fetches `miss` and repeats the attempt until it succeeds or fails. `needs` are the tokens
    /// that the attempt looked at.
    pub(crate) async fn repeat<T>(
        self: Arc<Self>,
        mut miss: Miss,
        mut needs: Needs,
        mut attempt: impl FnMut(&Arc<Core>) -> Attempt<T>,
    ) -> Result<T, FsError> {
        let (mut search, mut gone) = (SpaceSearch::default(), None);
        let mut pins = Pins::new(&self);
        let mut count = 0;
        while count < ATTEMPTS_MAX {
            let mut seen = None;
            if let Miss::Data(_, _, expect) = &mut miss
                && count >= STREAM_ATTEMPTS_MAX
            {
                *expect = Expect::Reuse;
            }
            let taken = match &miss {
                Miss::Token(missed, _) => pins.take(&needs, *missed).await,
                Miss::Glimpse(file) => match pins.glimpse(&needs, *file).await {
                    Ok(Look::Seen(attributes)) => {
                        seen = Some(attributes);
                        Ok(())
                    }
                    Ok(Look::Again) => Ok(()),
                    Ok(Look::Held) => pins.take(&needs, *file).await,
                    Err(e) => Err(e),
                },
                Miss::Attributes(ids) => {
                    // Nothing is pinned while tokens are taken without order.
                    if !planted::is(Bug::BatchWaitsWithPins) {
                        pins.unpin_from(FileId::new(0));
                    }
                    self.fetch_inodes(ids).await;
                    Ok(())
                }
                // This may take long, and what ends it may need what would be pinned.
                Miss::Space => {
                    pins.unpin_from(FileId::new(0));
                    self.wait_for_space(&mut search).await?;
                    // This may go on for long, and be in vain each time.
                    count = 0;
                    Ok(())
                }
                Miss::Applied => {
                    pins.unpin_from(FileId::new(0));
                    self.wait_for_managers().await?;
                    Ok(())
                }
                other => {
                    pins.pin_held(&needs);
                    self.fetch(other).await?;
                    Ok(())
                }
            };
            match taken {
                Ok(()) => {}
                // The directory that named the file may have changed meanwhile. If the file is
                // missed again, the caller named it.
                Err((file, FsError::Stale)) if gone.replace(file) != Some(file) => pins.unpin_from(FileId::new(0)),
                Err((_, e)) => return Err(e),
            }
            if self.is_over() {
                return Err(FsError::Io);
            }
            match touched::with(seen, || attempt(&self)) {
                Ok(value) => return Ok(value),
                Err(Stop::Fail(e)) => return Err(e),
                Err(Stop::Miss(next)) => (miss, needs) = (next, touched::needs()),
            }
            count += 1;
        }
        tracing::error!(?miss, "an operation keeps missing what it fetches: is the cache far too small?");
        Err(FsError::Io)
    }

    async fn fetch(self: &Arc<Self>, miss: &Miss) -> Result<(), FsError> {
        match miss {
            Miss::Token(..) | Miss::Glimpse(_) | Miss::Attributes(_) | Miss::Applied | Miss::Space => Ok(()),
            Miss::Bucket(dir, bucket) => self.fetch_bucket(*dir, *bucket).await,
            Miss::Map(id) => self.fetch_map(*id, u64::MAX).await,
            Miss::MapUntil(id, block) => self.fetch_map(*id, *block).await,
            Miss::Data(id, addrs, expect) => {
                let (id, expect, reads) = (*id, *expect, addrs.iter().copied());
                let reads = reads.map(|addr| {
                    let core = self.clone();
                    Box::pin(async move { core.fetch_data(id, addr, expect).await.map(|_| ()) }) as types::BoxFuture<_>
                });
                host::join_all(reads.collect()).await.into_iter().collect()
            }
            Miss::Range => self.fetch_numbers().await,
            Miss::Room(below) => {
                self.log.wait_in_flight_below(*below).await;
                Ok(())
            }
        }
    }

    /// Waits until the managers have applied the oldest of the cuts.
    async fn wait_for_managers(&self) -> Result<(), FsError> {
        let first = self.state.lock().unapplied.keys().next().copied().unwrap_or(0);
        let (applied, time_max) = (self.wait_applied(first), APPLY_TIME_MAX + self.patience());
        host::timeout(&*self.host.clock, time_max, applied).await.map_err(|_| FsError::TimedOut)
    }

    /// Waits until there may be more room: the client has a new share, or a search for space has
    /// ended. Begins a search, unless one of this operation goes on.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if the operation's searches have found nothing.
    async fn wait_for_space(self: &Arc<Self>, search: &mut SpaceSearch) -> Result<(), FsError> {
        let (mut rounds, mut shares) = (self.space_round.subscribe(), self.space_share.subscribe());
        if self.is_over() {
            return Err(FsError::Io);
        }
        if *rounds.borrow_and_update() >= search.until {
            if search.count == SPACE_SEARCHES {
                return Err(FsError::NoSpace);
            }
            // Removals that are not committed hold space that no other party can free.
            self.commit().await?;
            // A round that is under way may have looked before that.
            *search = SpaceSearch { count: search.count + 1, until: *rounds.borrow_and_update() + 2 };
            self.space_wanted.notify_one();
        }
        // The senders live as long as the core.
        let _ = first(rounds.wait_for(|round| *round >= search.until), shares.changed()).await;
        Ok(())
    }

    /// Evicts inodes whose state the log and the managers have completely, until there is room for
    /// one more.
    pub(crate) fn make_room(self: &Arc<Self>, state: &mut ClientState) {
        if state.hand.len() > 2 * state.inodes.len() + HAND_SLACK {
            let inodes = &state.inodes;
            state.hand.retain(|id| inodes.contains_key(id));
        }
        let (mut looked, mut leaving) = (0, state.tokens.leaving());
        while state.inodes.len() >= self.config.inode_count_max + leaving && looked < 64 {
            looked += 1;
            let Some(id) = state.hand.pop_front() else { return };
            let applied = state.applied;
            let is_open = state.opens.contains_key(&id);
            let is_kept = state.tokens.keeps(id);
            let Some(inode) = state.inodes.get_mut(&id) else { continue };
            let held = inode.listed || is_open || is_kept || inode.last_cut > applied || !inode.logged;
            if held || inode.used || id == FileId::ROOT {
                inode.used = false;
                state.hand.push_back(id);
                continue;
            }
            let grant = inode.grant;
            if self.kernel.get().is_some() && !planted::is(Bug::EvictsUnknownToKernel) {
                // The kernel must forget the file before another client can change it.
                self.begin_recall(state, TokenRecall { file: id, number: grant, wanted: Mode::Write });
                leaving += 1;
                continue;
            }
            state.inodes.remove(&id);
            self.managers.of(id).release(self.config.id, id, grant);
        }
    }

    async fn fetch_map(self: &Arc<Self>, id: FileId, until: u64) -> Result<(), FsError> {
        loop {
            let place = |state: &ClientState| state.inodes.get(&id).map(|inode| (inode.known_until, inode.grant));
            let before = place(&self.state.lock());
            let Some((from, _)) = before.filter(|(from, _)| *from < until) else { return Ok(()) };
            let located = self.managers.of(id).locate(self.config.id, id, from).await.map_err(from_manager)?;
            let mut state = self.state.lock();
            if place(&state) != before {
                continue;
            }
            let Some(inode) = state.inodes.get_mut(&id) else { return Ok(()) };
            for extent in located.extents {
                inode.map.set(extent);
            }
            inode.known_until = located.known_until;
        }
    }

    async fn fetch_bucket(self: &Arc<Self>, dir: FileId, bucket: u32) -> Result<(), FsError> {
        self.fetch_map(dir, u64::from(bucket) + 1).await?;
        let address = |state: &ClientState| state.inodes.get(&dir).map(|inode| inode.map.block(bucket.into()));
        let addr = address(&self.state.lock());
        let Some(addr) = addr else { return Ok(()) };
        let bytes = match addr {
            None => Bytes::new(),
            Some(addr) => match self.fetch_bytes(dir, addr).await? {
                Some(bytes) => bytes,
                None => return Ok(()),
            },
        };
        let decoded = Bucket::decode(&bytes).map_err(|e| {
            tracing::error!(%dir, bucket, "directory block cannot be decoded: {e}");
            FsError::Io
        })?;
        let mut state = self.state.lock();
        if address(&state) == Some(addr)
            && let Some(directory) = state.inodes.get_mut(&dir).and_then(|inode| inode.directory.as_mut())
        {
            directory.loaded(bucket, decoded);
        }
        Ok(())
    }

    async fn fetch_numbers(self: &Arc<Self>) -> Result<(), FsError> {
        let turn = self.next_range_from.fetch_add(1, SeqCst);
        let range = self.managers.by_turns(turn).allocate(self.config.id, 0).await.map_err(from_manager)?;
        let mut state = self.state.lock();
        if state.numbers.next == state.numbers.end {
            state.numbers = crate::state::Numbers { next: range.first.raw(), end: range.first.raw() + range.count };
        }
        Ok(())
    }

    /// A fresh file id.
    pub(crate) fn number(&self, state: &mut ClientState) -> Attempt<FileId> {
        if state.numbers.next == state.numbers.end {
            return Err(Stop::Miss(Miss::Range));
        }
        let id = FileId::new(state.numbers.next);
        state.numbers.next += 1;
        Ok(id)
    }

    /// Every mutation calls this before it changes anything. It checks that the log can be written,
    /// that managers keep up, and that there is room for `need_bytes` more: in the segment, on the
    /// way to the stores, and on the stores.
    pub(crate) fn admit(&self, state: &mut ClientState, need_bytes: u64, purpose: Purpose) -> Attempt<()> {
        if self.log.ended().is_some() {
            return Err(FsError::ReadOnly.into());
        }
        if state.is_sealed {
            return Err(FsError::Io.into());
        }
        if state.unapplied.len() >= UNAPPLIED_CUTS_MAX {
            return Err(Stop::Miss(Miss::Applied));
        }
        let dirty = state.dirty_bytes + need_bytes;
        if !state.space.admits(purpose, dirty, |bytes| self.stripe.share_of(bytes)) {
            return Err(Stop::Miss(Miss::Space));
        }
        let is_long = need_bytes >= LONG_WRITE_BYTES_MIN;
        let (segment_max, in_flight_max) = self.bounds(state, is_long);
        if state.dirty_bytes + need_bytes + INODE_DELTA_BYTES > segment_max && state.is_dirty() {
            if self.log.in_flight().1 > in_flight_max {
                return Err(Stop::Miss(Miss::Room(in_flight_max)));
            }
            self.cut(state);
        }
        Ok(())
    }

    /// Bounds of the bytes in a segment, and of the bytes on their way before writers wait.
    fn bounds(&self, state: &ClientState, is_long: bool) -> (u64, u64) {
        match is_long && state.synced_at.is_some_and(|at| self.host.clock.now() < at + SYNC_EXPECTED) {
            true => (self.segment_len_max.min(SYNCED_BYTES_MAX), SYNCED_BYTES_MAX),
            false => (self.segment_len_max, IN_FLIGHT_BYTES_MAX),
        }
    }

    /// Cuts: puts everything dirty into a segment and sends it off.
    pub(crate) fn cut(&self, state: &mut ClientState) {
        if let Some(draft) = self.draft(state) {
            self.log.submit(draft);
        }
    }

    /// Everything dirty as a segment, which the caller must send off.
    fn draft(&self, state: &mut ClientState) -> Option<SegmentDraft> {
        if !state.is_dirty() || state.is_sealed {
            return None;
        }
        let committed = self.log.committed_seq().unwrap_or(0);
        while state.name_changes.pop_front_if(|change| change.seq <= committed).is_some() {}
        let bs = self.config.block_size;
        let place = self.log.begin();
        let segment = place.id;
        let mut builder = SegmentBuilder::new(place);
        let mut files = std::mem::take(&mut state.dirty_list);
        files.retain(|id| state.inodes.contains_key(id));
        let mut placed: Vec<Vec<(u64, BlockAddr)>> = vec![Vec::new(); files.len()];
        let mut short: Vec<(usize, u64, Bytes)> = Vec::new();
        let mut payload = 0u64;
        for (i, id) in files.iter().enumerate() {
            let Some(inode) = state.inodes.get_mut(id) else { continue };
            let buckets = inode.directory.as_mut().map(|d| d.take_dirty()).unwrap_or_default();
            for (b, bytes) in buckets {
                let before = inode.block_len(b.into());
                inode.record.stored_bytes = inode.record.stored_bytes - before + bytes.len() as u64;
                short.push((i, b.into(), Bytes::from(bytes)));
            }
            for (b, bytes) in std::mem::take(&mut inode.dirty) {
                let bytes = Bytes::from(bytes);
                if (bytes.len() as u32).is_multiple_of(CHUNK_LEN) {
                    payload += bytes.len() as u64;
                    let addr = builder.push_full_block(bytes.clone());
                    self.cache.pin(segment, addr.offset, bytes, true);
                    placed[i].push((b, addr));
                } else {
                    short.push((i, b, bytes));
                }
            }
        }
        for (i, b, bytes) in short {
            let addr = builder.push_block(bytes.clone());
            payload += u64::from(addr.len);
            let keep = state.inodes.get(&files[i]).is_none_or(|inode| inode.directory.is_none());
            self.cache.pin(segment, addr.offset, bytes, keep);
            placed[i].push((b, addr));
        }
        let (mut deltas, mut owed) = (Vec::new(), 0);
        for (id, mut placed) in files.into_iter().zip(placed) {
            placed.sort_by_key(|p| p.0);
            if let Some(inode) = state.inodes.get_mut(&id) {
                owed += inode.index_bytes(Blocks::of(placed.iter().map(|(block, _)| *block)));
                inode.listed = false;
                inode.cut(segment.seq, &placed, bs, &mut deltas);
            }
        }
        for file in std::mem::take(&mut state.removals) {
            deltas.push(Delta::Remove { file });
            state.gone.insert(file, segment.seq);
        }
        let mut encoded = Vec::new();
        deltas.iter().for_each(|d| d.encode(&mut encoded));
        payload += encoded.len() as u64;
        debug_assert!(payload <= state.dirty_bytes, "{payload} bytes cut, {} counted", state.dirty_bytes);
        state.space.cut(segment.seq, payload, owed, |bytes| self.stripe.share_of(bytes));
        let deltas = SegmentDeltas { segment, order: place.order, deltas: Arc::new(deltas) };
        state.unapplied.insert(segment.seq, deltas);
        state.dirty_bytes = 0;
        state.dirty_since = None;
        state.last_cut = segment.seq;
        Some(builder.finish(encoded))
    }

    /// Like [`commit`](Self::commit), for a program that is likely to sync again soon.
    pub(crate) fn fsync(self: &Arc<Self>) -> Answer<()> {
        self.state.lock().synced_at = Some(self.host.clock.now());
        self.commit()
    }

    /// Cuts, and answers when everything up to there is durable.
    pub(crate) fn commit(self: &Arc<Self>) -> Answer<()> {
        let (draft, seq) = {
            let mut state = self.state.lock();
            if state.is_sealed && state.is_dirty() {
                return Answer::err(FsError::Io);
            }
            (self.draft(&mut state), state.last_cut)
        };
        if let Some(draft) = draft {
            self.log.submit_here(draft);
        }
        if seq == 0 || self.log.committed_seq().is_some_and(|c| c >= seq) {
            return Answer::ok(());
        }
        let core = self.clone();
        Answer::later(async move {
            let give_up = core.host.clock.now() + core.patience();
            loop {
                match core.log.wait_committed(seq).await {
                    Ok(()) => return Ok(()),
                    Err(StripeError::NotEnoughStores) if core.host.clock.now() < give_up && !core.is_over() => {
                        core.host.clock.sleep(STORES_PAUSE).await;
                    }
                    Err(e) => {
                        tracing::error!(seq, "commit: {e}");
                        return Err(FsError::Io);
                    }
                }
            }
        })
    }

    /// How long a commit or a read waits for stores that are away. At another node than the first,
    /// they are often away together with the first one, and come back with it.
    pub(crate) fn patience(&self) -> Duration {
        self.config.lease_until.as_ref().map_or(Duration::ZERO, |_| STORES_TIME_MAX)
    }

    pub(crate) async fn wait_applied(&self, seq: u64) {
        let mut applied = self.applied.subscribe();
        if *applied.borrow() < seq {
            self.apply_wanted.notify_one();
        }
        let _ = applied.wait_for(|a| *a >= seq).await;
    }

    /// Waits until the managers have applied everything that was cut so far.
    pub(crate) async fn settle(&self) {
        let seq = self.state.lock().last_cut;
        self.wait_applied(seq).await;
    }

    /// Sends committed deltas to the managers, in order and in batches.
    async fn apply_loop(self: Arc<Self>) {
        loop {
            let batch: Vec<SegmentDeltas> = {
                let state = self.state.lock();
                let committed = self.log.committed_seq().unwrap_or(0);
                state.unapplied.range(..=committed).take(APPLY_BATCH_MAX).map(|(_, deltas)| deltas.clone()).collect()
            };
            let Some(last) = batch.last().map(|d| d.segment.seq) else {
                if self.stopped.load(SeqCst) {
                    return;
                }
                self.committed.notified().await;
                first(self.apply_wanted.notified(), self.host.clock.sleep(APPLY_PAUSE)).await;
                continue;
            };
            let parts = self.managers.each().zip(self.parts(&batch));
            let applied = parts.map(|(manager, part)| self.apply_at(manager, part, last)).collect();
            if join_all(applied).await.contains(&false) {
                return;
            }
            let mut state = self.state.lock();
            state.applied(last);
            drop(state);
            // If the client was abandoned meanwhile, whoever waits has been told so.
            self.applied.send_modify(|applied| *applied = last.max(*applied));
        }
    }

    /// What each manager is told of these segments. Over a network that is only what concerns its
    /// files.
    fn parts(&self, batch: &[SegmentDeltas]) -> Vec<Vec<SegmentDeltas>> {
        if self.config.lease_until.is_none() {
            return vec![batch.to_vec(); self.managers.ids().count()];
        }
        let part = |id| {
            let is_own = |delta: &&Delta| self.managers.manager_of(delta.file()) == id;
            let deltas = |all: &[Delta]| Arc::new(all.iter().filter(is_own).cloned().collect());
            batch.iter().map(|all| SegmentDeltas { deltas: deltas(&all.deltas), ..all.clone() }).collect()
        };
        self.managers.ids().map(part).collect()
    }

    /// Has a manager apply segments. False if the client is abandoned.
    fn apply_at(
        self: &Arc<Self>,
        manager: &Arc<dyn Manager>,
        segments: Vec<SegmentDeltas>,
        through: u64,
    ) -> BoxFuture<bool> {
        let (core, manager) = (self.clone(), manager.clone());
        Box::pin(async move {
            while let Err(e) = manager.apply(segments.clone()).await {
                if core.abandoned.load(SeqCst) {
                    return false;
                }
                tracing::error!(through, "a manager cannot apply committed deltas, trying again: {e}");
                core.host.clock.sleep(Duration::from_secs(1)).await;
            }
            true
        })
    }

    async fn age_loop(self: Arc<Self>) {
        while !self.stopped.load(SeqCst) {
            self.host.clock.sleep(CUT_TICK).await;
            let mut state = self.state.lock();
            if state.dirty_since.is_some_and(|since| self.host.clock.now() >= since + CUT_AGE) {
                self.cut(&mut state);
            }
        }
    }
}

pub(crate) fn from_manager(e: ManagerError) -> FsError {
    match e {
        ManagerError::NotFound => FsError::Stale,
        e => {
            tracing::error!("manager: {e}");
            FsError::Io
        }
    }
}
