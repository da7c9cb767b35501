//! The set of stores, and the ways to ask them.

use crate::StripeError;
use crate::health::{Health, StoreState};
use crate::layout::LayoutCache;
use host::{Either, Host, first, join_all, timeout};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use storage::api::{Storage, StorageError};
use striped_log::fragment::{DATA_FRAGMENTS_MAX, FRAGMENT_LEN_MAX, Fragment, Geometry, PARITY_FRAGMENTS_MAX};
use striped_log::tail::IN_FLIGHT_MAX;
use tokio::sync::Notify;
use types::{BoxFuture, FsUuid, SegmentId, StoreId};

/// Which stores are asked, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// Stores that are not absent, while they answer soon.
    WhoAnswers,
    /// All stores, and each may take its full time.
    Everybody,
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A program waits for it, or may.
    Program,
    /// Work that can wait.
    Upkeep,
}

/// How a [`Stripe`] behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Parity fragments of each stripe (`m`), 1 or 2: how many stores may be bad at a time.
    pub parity: u8,
    /// How long a request to a store may take before the store counts as absent. Also how long a
    /// put waits for enough healthy stores before it fails.
    pub put_timeout: Duration,
    /// How often stores that are out of service are probed.
    pub probe_interval: Duration,
    /// Most segments of one log that are in flight at the same time. It must be the same for all
    /// writers of the file system, ever: by it an opener tells a gap that a crash has left from a
    /// gap that lost stores have left.
    pub in_flight_max: u64,
    /// The operator accepts that absent stores do not come back. A log whose end is a guess is
    /// opened all the same, and segments that cannot be read, and those behind them, are given up
    /// for good.
    pub accepts_loss: bool,
}

impl Options {
    /// How long a reader waits for a store that answers nothing, before it turns to the other
    /// fragments of the stripe.
    pub(crate) fn read_patience(&self) -> Duration {
        self.put_timeout / 10
    }

    /// How long readers wait.
    pub(crate) fn reader_patience(&self) -> Patience {
        Patience { quiet: self.read_patience(), busy: self.put_patience() }
    }

    /// How long a put waits for a store that answers nothing, before the segment is put again to a
    /// group without the store. It is longer than for reads, since a sync may wait for the writes
    /// ahead of it.
    pub(crate) fn put_patience(&self) -> Duration {
        self.put_timeout * 3 / 10
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            parity: 1,
            put_timeout: Duration::from_secs(10),
            probe_interval: Duration::from_secs(1),
            in_flight_max: IN_FLIGHT_MAX,
            accepts_loss: false,
        }
    }
}

/// One store.
pub(crate) struct Store {
    pub(crate) id: StoreId,
    pub(crate) api: Arc<dyn Storage>,
    /// Of readers and puts.
    answers: Answers,
    /// Of puts only: a store whose disk hangs may still answer readers from memory.
    pub(crate) puts: Answers,
    /// Requests that nobody waits for any more, and that have not ended.
    abandoned: AtomicUsize,
}

/// How long a request is waited for that its caller can do without.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// With a store that answers neither readers nor puts.
    pub(crate) quiet: Duration,
    /// With a store that answers others, while enough other stores answer soon.
    pub(crate) busy: Duration,
}

/// When a store answers requests of some kind.
#[derive(Default)]
pub(crate) struct Answers {
    /// When it last did, in nanoseconds of the host's clock.
    last_at: AtomicU64,
    /// It has let one wait for too long, and has answered none since.
    slow: AtomicBool,
}

impl Answers {
    fn note(&self, now: Duration) {
        self.last_at.store(now.as_nanos() as u64, Relaxed);
        self.slow.store(false, Relaxed);
    }

    /// True if there was none for this time.
    pub(crate) fn are_quiet(&self, now: Duration, time: Duration) -> bool {
        now.saturating_sub(Duration::from_nanos(self.last_at.load(Relaxed))) >= time
    }
}

/// Called with a segment that is complete, and the bytes that it takes on the stores.
type OnStored = Box<dyn Fn(SegmentId, u64) + Send + Sync>;

/// The stores of one file system, as one reliable log store. Inside this crate a store is numbered
/// by its place in ascending order of ids (`at`).
pub struct Stripe {
    /// For its own tasks, which must not keep it alive.
    pub(crate) me: Weak<Stripe>,
    pub(crate) host: Host,
    pub(crate) fs: FsUuid,
    pub(crate) stores: Vec<Store>,
    pub(crate) options: Options,
    pub(crate) health: Mutex<Health>,
    /// Notified when a store leaves service.
    pub(crate) left: Notify,
    pub(crate) layouts: Mutex<LayoutCache>,
    /// For each segment that is [being put](Self::being_put): the attempt to use next. A writer
    /// never uses an attempt number twice with different fragments. An opener goes by what the
    /// stores show, so it may use a number again of which they have shown nothing; readers tell
    /// geometries apart.
    pub(crate) attempts: Mutex<BTreeMap<SegmentId, u16>>,
    /// The follower that learns of each segment that was put.
    pub(crate) on_stored: OnceLock<OnStored>,
    /// Requests sent to stores.
    request_count: AtomicU64,
    /// Parts of reads that were rebuilt from the rest of their stripes.
    pub(crate) rebuilt_count: AtomicU64,
}

impl Stripe {
    /// Makes one of these stores. All count as healthy until a request fails. `options.parity` is
    /// clamped to 1..=2. With fewer than `parity + 1` stores nothing can ever be put.
    pub fn new(host: Host, fs: FsUuid, stores: Vec<(StoreId, Arc<dyn Storage>)>, mut options: Options) -> Arc<Stripe> {
        options.parity = options.parity.clamp(1, PARITY_FRAGMENTS_MAX as u8);
        let mut stores: Vec<Store> = stores
            .into_iter()
            .map(|(id, api)| Store {
                id,
                api,
                answers: Answers::default(),
                puts: Answers::default(),
                abandoned: AtomicUsize::new(0),
            })
            .collect();
        stores.sort_by_key(|s| s.id);
        stores.dedup_by_key(|s| s.id);
        Arc::new_cyclic(|me| Stripe {
            me: me.clone(),
            host,
            fs,
            health: Mutex::new(Health::new(stores.len())),
            left: Notify::new(),
            stores,
            options,
            layouts: Mutex::new(LayoutCache::default()),
            attempts: Mutex::new(BTreeMap::new()),
            on_stored: OnceLock::new(),
            request_count: AtomicU64::new(0),
            rebuilt_count: AtomicU64::new(0),
        })
    }

    /// The host that it runs on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Calls `follow` for every segment that is put from now on, once it is complete, with the
    /// bytes that it takes on the stores. `follow` must be short and must not wait. There is only
    /// one follower, for good: false if there is one already.
    pub fn on_stored(&self, follow: impl Fn(SegmentId, u64) + Send + Sync + 'static) -> bool {
        self.on_stored.set(Box::new(follow)).is_ok()
    }

    /// Requests sent to stores since the start.
    pub fn request_count(&self) -> u64 {
        self.request_count.load(Relaxed)
    }

    /// Parts of reads that were rebuilt from the rest of their stripes since the start.
    pub fn rebuilt_count(&self) -> u64 {
        self.rebuilt_count.load(Relaxed)
    }

    /// True if the operator accepts that absent stores do not come back:
    /// [`Options::accepts_loss`].
    pub fn accepts_loss(&self) -> bool {
        self.options.accepts_loss
    }

    /// The widest stripe: data fragments and parity fragments, `(k_max, m)`. `k_max` is 0 if there
    /// are too few stores.
    pub fn redundancy(&self) -> (u8, u8) {
        let m = self.options.parity;
        (self.stores.len().saturating_sub(usize::from(m)).min(DATA_FRAGMENTS_MAX) as u8, m)
    }

    /// Longest payload of a segment in bytes: `max(k_max - m, 1)` MiB. Stripes hold this much even
    /// after the loss of `m` stores, so every accepted segment can still be put then. With all
    /// stores, a full segment is striped over `k_max` shorter fragments (4 + 1: 3 MiB in fragments
    /// of 768 KiB).
    pub fn payload_len_max(&self) -> u32 {
        let (k_max, m) = self.redundancy();
        u32::from(k_max.saturating_sub(m).max(1)) * FRAGMENT_LEN_MAX
    }

    /// Bytes that segments with `payload_bytes` of payload in all take on one store, at most. They
    /// take most when they are striped while `m` stores are lost.
    pub fn share_of(&self, payload_bytes: u64) -> u64 {
        let (k_max, m) = self.redundancy();
        let share = |payload_len| {
            let (_, fragment_len) = Geometry::plan(payload_len, k_max.saturating_sub(m).max(1), m);
            u64::from(storage::footprint(fragment_len))
        };
        let segment_len = u64::from(self.payload_len_max());
        payload_bytes / segment_len * share(self.payload_len_max()) + share((payload_bytes % segment_len) as u32)
    }

    /// How many stores must answer before a log is judged by their answers, and how many must have
    /// taken a seal or maps: at least all but `m`, so that acknowledged segments are seen, and more
    /// than half, so that any two quorums meet.
    pub(crate) fn quorum(&self) -> usize {
        let n = self.stores.len();
        n.saturating_sub(usize::from(self.options.parity)).max(n / 2 + 1)
    }

    /// The place (`at`) of a store.
    pub(crate) fn place(&self, id: StoreId) -> Option<usize> {
        self.stores.binary_search_by_key(&id, |s| s.id).ok()
    }

    /// The places of all stores.
    pub(crate) fn everyone(&self) -> Vec<usize> {
        (0..self.stores.len()).collect()
    }

    /// The stores that answered when last asked, and those that did not. Ones that are made anew
    /// are neither.
    pub(crate) fn present_and_absent(&self) -> (Vec<usize>, Vec<usize>) {
        let health = self.health.lock();
        self.everyone()
            .into_iter()
            .filter(|at| !health.is_new(*at))
            .partition(|&at| health.state(at) != StoreState::Absent)
    }

    /// Sends one request to one store, with a deadline. A store that does not answer, or says that
    /// it is not available, is noted as absent.
    pub(crate) async fn ask<T>(
        &self,
        at: usize,
        request: impl FnOnce(&dyn Storage) -> BoxFuture<Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        self.request_count.fetch_add(1, Relaxed);
        let answer = timeout(&*self.host.clock, self.options.put_timeout, request(&*self.stores[at].api)).await.ok();
        self.judge(at, answer)
    }

    /// Like [`ask`](Self::ask), for callers that can do without the answer. Returns `None` when
    /// their patience is over, if the store is noted as slow already, or as absent meanwhile. The
    /// request goes on, so that a store that never answers is noted as absent in time.
    pub(crate) async fn ask_briefly<T: Send + 'static>(
        &self,
        at: usize,
        patience: Patience,
        request: impl FnOnce(&dyn Storage) -> BoxFuture<Result<T, StorageError>>,
    ) -> Option<Result<T, StorageError>> {
        self.request_count.fetch_add(1, Relaxed);
        let clock = self.host.clock.clone();
        let is_noted = self.stores[at].answers.slow.load(Relaxed);
        let quiet = if is_noted { Duration::ZERO } else { patience.quiet };
        let (begun, deadline) = (clock.now(), clock.now() + self.options.put_timeout);
        let mut answer = request(&*self.stores[at].api);
        let is_absent = || self.health.lock().state(at) == StoreState::Absent;
        let was_absent = is_absent();
        let mut waits = clock.sleep(quiet);
        while clock.now() < deadline {
            let left = pin!(self.left.notified());
            let is_over = match first(&mut answer, first(&mut waits, left)).await {
                Either::Left(answer) => {
                    self.note_answer(at);
                    return Some(self.judge(at, Some(answer)));
                }
                Either::Right(Either::Left(())) => true,
                Either::Right(Either::Right(())) => false,
            };
            let now = clock.now();
            let has_left = !was_absent && is_absent();
            let is_quiet = is_over && self.stores[at].answers.are_quiet(now, quiet);
            let is_busy = is_over && now.saturating_sub(begun) >= patience.busy;
            if has_left || is_quiet || is_busy && self.others_suffice(at) {
                if is_quiet {
                    self.note_slow(at);
                }
                self.stores[at].abandoned.fetch_add(1, Relaxed);
                let me = self.me.clone();
                self.host.tasks.spawn(Box::pin(async move {
                    let rest = deadline.saturating_sub(clock.now());
                    let answer = timeout(&*clock, rest, answer).await.ok();
                    if let Some(me) = me.upgrade() {
                        me.stores[at].abandoned.fetch_sub(1, Relaxed);
                        if answer.is_some() {
                            me.note_answer(at);
                        }
                        // The caller does not wait for the answer itself any more.
                        let _ = me.judge(at, answer);
                    }
                }));
                return None;
            }
            if is_over {
                waits = clock.sleep(quiet);
            }
        }
        Some(self.judge(at, None))
    }

    /// [Asks](Self::ask) a store, or asks it [briefly](Self::ask_briefly): then it is not available
    /// if it does not answer soon.
    pub(crate) async fn ask_whom<T: Send + 'static>(
        &self,
        at: usize,
        whom: Whom,
        request: impl FnOnce(&dyn Storage) -> BoxFuture<Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        match whom {
            Whom::WhoAnswers => {
                let answer = self.ask_briefly(at, self.options.reader_patience(), request).await;
                answer.unwrap_or(Err(StorageError::Unavailable))
            }
            Whom::Everybody => self.ask(at, request).await,
        }
    }

    /// Sends one put to one store. If the store refuses for any other reason than that the log is
    /// sealed, it gets no puts until a probe finds it well. It is still read from.
    pub(crate) async fn ask_put(&self, at: usize, fragment: Fragment, purpose: Purpose) -> Result<(), StorageError> {
        self.request_count.fetch_add(1, Relaxed);
        let put = match purpose {
            Purpose::Program => self.stores[at].api.put(fragment),
            Purpose::Upkeep => self.stores[at].api.put_behind(fragment),
        };
        let Ok(answer) = timeout(&*self.host.clock, self.options.put_timeout, put).await else {
            return self.judge(at, None);
        };
        self.note_answer(at);
        // A refusal may come from memory.
        if answer.is_ok() {
            self.stores[at].puts.note(self.host.clock.now());
        }
        if let Err(error) = &answer
            && !matches!(error, StorageError::Sealed(_))
        {
            self.mark_bad(at, StoreState::Failing, &error.to_string());
        }
        answer
    }

    /// Judges a store by an answer, or by the lack of one (`None`): marks it absent if it is not
    /// available.
    fn judge<T>(&self, at: usize, answer: Option<Result<T, StorageError>>) -> Result<T, StorageError> {
        let why = if answer.is_some() { "is not available" } else { "does not answer" };
        let answer = answer.unwrap_or(Err(StorageError::Unavailable));
        if matches!(answer, Err(StorageError::Unavailable)) {
            self.mark_bad(at, StoreState::Absent, why);
            // The probing task looks after the store from now on.
            self.stores[at].answers.slow.store(false, Relaxed);
            self.stores[at].puts.slow.store(false, Relaxed);
        }
        answer
    }

    fn note_answer(&self, at: usize) {
        self.stores[at].answers.note(self.host.clock.now());
    }

    /// Notes that a store lets a request wait. Until it answers, other requests do without it.
    pub(crate) fn note_slow(&self, at: usize) {
        if !self.stores[at].answers.slow.swap(true, Relaxed) {
            tracing::warn!(store = %self.stores[at].id, "store does not answer; reads and puts go on without it");
        }
    }

    /// Notes that a store lets a put wait. Until it answers one, other puts do without it.
    pub(crate) fn note_hanging_puts(&self, at: usize) {
        if !self.stores[at].puts.slow.swap(true, Relaxed) {
            tracing::warn!(store = %self.stores[at].id, "store answers no puts; these go on without it");
        }
    }

    /// True if a store was noted as slow, and has not answered since, or has a request that was
    /// waited for too long.
    pub(crate) fn is_slow(&self, at: usize) -> bool {
        let store = &self.stores[at];
        store.answers.slow.load(Relaxed) || store.abandoned.load(Relaxed) > 0
    }

    /// True if enough stores answer soon besides this one.
    fn others_suffice(&self, at: usize) -> bool {
        let others = self.everyone().into_iter().filter(|&other| other != at && self.answers_soon(other));
        self.suffice(others.count())
    }

    /// True if the store is expected to answer a put soon.
    pub(crate) fn takes_puts_soon(&self, at: usize) -> bool {
        !self.is_slow(at) && !self.stores[at].puts.slow.load(Relaxed)
    }

    /// True if the store is expected to answer soon.
    pub(crate) fn answers_soon(&self, at: usize) -> bool {
        !self.is_slow(at) && self.health.lock().state(at) != StoreState::Absent
    }

    /// Sends the same request to several stores at once. Returns each store's answer, in the order
    /// of `whom`.
    pub(crate) async fn ask_each<T>(
        &self,
        whom: &[usize],
        request: impl Fn(&dyn Storage) -> BoxFuture<Result<T, StorageError>>,
    ) -> Vec<(usize, Result<T, StorageError>)> {
        let request = &request;
        let answers = join_all(whom.iter().map(|&at| self.ask(at, move |s| request(s))).collect()).await;
        whom.iter().copied().zip(answers).collect()
    }

    /// Asks the stores that are not absent. If fewer than a quorum answer, asks the absent ones
    /// too. Fails unless a quorum answers.
    pub(crate) async fn ask_quorum<T>(
        &self,
        request: impl Fn(&dyn Storage) -> BoxFuture<Result<T, StorageError>>,
    ) -> Result<Vec<(usize, T)>, StripeError> {
        let (present, absent) = self.present_and_absent();
        let mut answers = Vec::new();
        for whom in [present, absent] {
            let new = self.ask_each(&whom, &request).await;
            answers.extend(new.into_iter().filter_map(|(at, answer)| Some((at, answer.ok()?))));
            if answers.len() >= self.quorum() {
                return Ok(answers);
            }
        }
        Err(StripeError::NotEnoughStores)
    }

    /// Like [`ask_quorum`](Self::ask_quorum), but does not wait for stores that hang, if the others
    /// are a quorum. What those were asked goes on: each has then done it, or is absent and is
    /// brought up to date before it is used again.
    pub(crate) async fn ask_quorum_briefly<T: Send + 'static>(
        &self,
        patience: Duration,
        request: impl Fn(&dyn Storage) -> BoxFuture<Result<T, StorageError>>,
    ) -> Result<Vec<(usize, T)>, StripeError> {
        let (present, _) = self.present_and_absent();
        let patience = Patience { quiet: patience, busy: self.options.put_timeout };
        let request = &request;
        let asked = present.iter().map(|&at| self.ask_briefly(at, patience, move |s| request(s)));
        let answers = join_all(asked.collect()).await;
        let answers: Vec<(usize, T)> =
            present.into_iter().zip(answers).filter_map(|(at, answer)| Some((at, answer?.ok()?))).collect();
        match answers.len() >= self.quorum() {
            true => Ok(answers),
            false => self.ask_quorum(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::LogId;

    /// Compiles only if all operations can be spawned as tasks.
    #[allow(dead_code)]
    fn operations_can_be_spawned(stripe: Arc<Stripe>, segment: striped_log::segment::Segment) -> Vec<BoxFuture<()>> {
        let s = || stripe.clone();
        let (a, b, c, d, e, f) = (s(), s(), s(), s(), s(), s());
        vec![
            Box::pin(async move { a.put(&segment).await.unwrap_or_default() }),
            Box::pin(async move { drop(b.open_log(LogId::new(1), 1).await) }),
            Box::pin(async move { drop(c.scrub(true, |_| ()).await) }),
            Box::pin(async move { drop(d.maps().await) }),
            Box::pin(async move { drop(e.status().await) }),
            Box::pin(async move { f.delete(Vec::new()).await }),
        ]
    }
}
