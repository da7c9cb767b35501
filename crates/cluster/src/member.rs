//! The side of a node that has joined: its sessions with the first node, one after the other.
//!
//! In a session, a client works with the managers and stores of the first node. Its answers reach
//! programs only within its lease, which it renews four times in the length of one. When the lease
//! runs out, answers wait. If the first node was away, or was started again, the session goes on
//! ([`crate::survivors`]), and so do the answers: no other client was given what this one holds.
//!
//! If the first node no longer knows the session, the client is over: what it had in memory may be
//! outdated, and stores refuse what it writes. Then the node says hello again, and goes on with a
//! new client on the same log. What was not durable is not in the file system; the node keeps it
//! aside ([`crate::aside`]).
//!
//! [`Member::file_system`] is the file system over whichever client there is.

use crate::aside::Aside;
use crate::config::{FsConfig, KnownNode, client_id};
use crate::control::{
    CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest, Hello, PROGRAM_VERSION, Renewed, Resume, Welcome,
};
use crate::host_service::{HostSession, ManagerHost};
use crate::lease::Lease;
use crate::machine::{inode_bytes, inode_count_max, stripe_options};
use crate::room::member_space;
use crate::seating::{Reseating, Seated, Seating};
use crate::shared_locks::{LockWay, SharedLocks};
use crate::unreached::Unreached;
use client::{Client, ClientConfig, Managers};
use host::{Either, Host, first};
use manager::api::{Manager, TokenHolder};
use manager::planted::{self, Bug};
use parking_lot::Mutex;
use policy::space::SpaceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use storage::api::Storage;
use stripe::{StoreHealth, StoreSet, StoreState, Stripe, StripeError};
use tokio::sync::{Notify, watch};
use types::{BoxFuture, ManagerId, Maps, NodeId, StoreId};
use vfs::fs::FileSystem;
use vfs::kernel::Kernel;

/// Number of renewals in the length of a lease.
const RENEWALS_PER_LEASE: u32 = 4;
/// A renewal is given up after this part of a lease.
const RENEWAL_PART: u32 = 3;
/// How often a failed renewal is tried again in the length of a lease.
const TRIES_PER_LEASE: u32 = 16;
/// How long a hello may take: the first node may have to end a former session first.
const HELLO_TIME_MAX: Duration = Duration::from_secs(60);
/// Time before a hello is tried again: the first time, and at most.
const HELLO_PAUSE: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(2);
/// Time between two questions whether the first node has found space.
const SPACE_PAUSE: Duration = Duration::from_millis(200);
/// Time between two questions where managers are that move.
const SEATS_PAUSE: Duration = Duration::from_millis(50);
/// Rounds of looking for space that must end until one of them began after the request.
const SPACE_ROUNDS: u64 = 2;
/// How long an answer waits for a session that goes on.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);
/// How long a node keeps what others wait for while too few stores answer it. The first node looks
/// at all stores twice a minute, and gives each ten seconds. So a store that has gone silent counts
/// as absent there, too, before this time is over.
const CUT_OFF_TIME: Duration = Duration::from_secs(45);
/// How long leaving may take.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(30);

/// The first node, as others reach it. Its methods do not wait for a connection; what they return
/// fails while there is none.
pub trait FirstNode: Send + Sync + 'static {
    /// Asks something about sessions.
    fn control(&self, request: ControlRequest) -> BoxFuture<Result<ControlAnswer, ControlError>>;
    /// The managers, in the order of their ids, for a session.
    fn managers(&self, session: u64, count: usize) -> Vec<Arc<dyn Manager>>;
    /// The stores of the file system, for a session.
    fn stores(&self, session: u64, config: &FsConfig) -> Vec<(StoreId, Arc<dyn Storage>)>;
    /// The way to the table of file locks, for a session.
    fn locks(&self, session: u64) -> Arc<dyn LockWay>;
    /// From now on, recalls for this session go to `holder`. Called again when the session goes on
    /// after a start of the first node, which counts recalls anew.
    fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>);
    /// These managers are served by these nodes from now on; `None`: by the first node, as all are
    /// when the session begins. What has no answer is sent there again, and recalls come from
    /// there.
    fn seat(&self, session: u64, managers: &[(ManagerId, Option<KnownNode>)]);
    /// Nothing is sent to these managers, until it is known who serves them.
    fn unseat(&self, session: u64, managers: &[ManagerId]);
    /// Waits until a node says that a manager is not there any more, or that the lease should be
    /// renewed soon.
    fn moved(&self) -> BoxFuture<()>;
    /// The nodes that serve managers, and that cannot be reached now.
    fn unreached(&self, session: u64) -> BTreeSet<NodeId>;
    /// True if nothing that belongs to a session has ended, so that it can go on after a start of
    /// the first node.
    fn can_resume(&self, session: u64) -> bool;
    /// The maps have changed during a session: stores may be elsewhere.
    fn follow(&self, config: &FsConfig);
    /// The session is over: nothing is sent for it any more.
    fn end(&self, session: u64);
}

/// How a node is a member.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The node.
    pub node: NodeId,
    /// Bound of all caches in bytes.
    pub cache_bytes: u64,
    /// It has the file system mounted.
    pub is_mounted: bool,
    /// Where other nodes reach it, as host:port; empty if they need not.
    pub address: String,
    /// It has folders for stores, and serves them at its address.
    pub takes_stores: bool,
    /// It serves managers at its address, if the first node gives it some.
    pub takes_managers: bool,
    /// It has a voter, if the first node gives it one.
    pub takes_votes: bool,
}

/// A session that serves.
pub(crate) struct Serving {
    /// Counts this node's sessions since its start.
    pub(crate) count: u64,
    pub(crate) client: Client,
    stripe: Arc<Stripe>,
    host: Host,
    session: u64,
    lease: Duration,
    /// The epoch of the maps that it follows.
    maps_epoch: AtomicU64,
    /// Its client had a share of the free room from the beginning.
    began_with_room: bool,
    seats: Mutex<KnownSeats>,
    /// When the lease is over, in nanoseconds of the host's clock; 0: the session is over.
    lease_until: Arc<AtomicU64>,
    locks: Arc<SharedLocks>,
    /// What the first node said, or why it said nothing, when a renewal failed.
    trouble: Mutex<Option<ControlError>>,
    /// True when the session is over. Tells also of a lease that begins again.
    is_over: watch::Sender<bool>,
    /// What it had not synced at its end was kept aside.
    is_kept: Mutex<bool>,
}

/// Where the client looks for managers.
#[derive(Default)]
struct KnownSeats {
    seating: Seating,
    /// Managers that move: the terms for which the client has said what it holds.
    unseated: BTreeMap<ManagerId, u64>,
    /// Nodes that serve managers and cannot be reached.
    unreached: Unreached,
}

impl KnownSeats {
    /// Takes in who serves which manager. Returns the managers whose place has changed.
    fn take(&mut self, seating: Seating) -> Vec<(ManagerId, Option<KnownNode>)> {
        let mut changed = Vec::new();
        for (id, seated) in (0..).map(ManagerId::new).zip(&seating.managers) {
            let is_new = match self.unseated.get(&id) {
                Some(term) => *term == seated.term,
                None => self.seating.managers.get(usize::from(id.raw())) != Some(seated),
            };
            if is_new {
                self.unseated.remove(&id);
                changed.push((id, seated.at.clone()));
            }
        }
        self.seating = seating;
        changed
    }

    /// The first node has started again: it serves all managers. Returns those that others served.
    fn restart(&mut self) -> Vec<(ManagerId, Option<KnownNode>)> {
        self.seating.version = 0;
        let unseated = std::mem::take(&mut self.unseated);
        let all = (0..).map(ManagerId::new).zip(&mut self.seating.managers);
        let has_moved = |(id, seated): (ManagerId, &mut Seated)| {
            let was_away = seated.at.take().is_some();
            (was_away || unseated.contains_key(&id)).then_some((id, None))
        };
        all.filter_map(has_moved).collect()
    }
}

impl Serving {
    /// The rest of the lease; zero if nothing may be served.
    pub(crate) fn lease_left(&self) -> Duration {
        Duration::from_nanos(self.lease_until.load(SeqCst)).saturating_sub(self.host.clock.now())
    }

    /// Notes that the request that was sent at `sent` was answered with this lease.
    fn renewed(&self, sent: Duration, lease: Duration) {
        self.lease_until.fetch_max(until(sent, lease), SeqCst);
        if self.trouble.lock().take().is_some() {
            tracing::info!("the session with the first node goes on");
        }
        // Answers may wait for this.
        self.is_over.send_modify(|_| {});
    }

    /// Why the session should end, though the first node renews it; `None` if it should go on. The
    /// stores of `absent` do not answer the first node.
    ///
    /// - The node's log was sealed. Nothing that it changes becomes durable any more.
    /// - For [`CUT_OFF_TIME`], others have waited for what this node holds, and it could not give
    ///   it back: it reaches too few stores to write its changes, and the first node has not found
    ///   that they do not answer. `cut_off_since` is when that began.
    fn is_of_no_use(&self, absent: StoreSet, cut_off_since: &mut Option<Duration>) -> Option<ControlError> {
        if self.client.status().read_only == Some(StripeError::Fenced) {
            return Some(ControlError::Unavailable("the log of this node was sealed".into()));
        }
        if !self.client.is_waited_for() || !self.stripe.is_cut_off(absent) {
            *cut_off_since = None;
            return None;
        }
        let now = self.host.clock.now();
        let is_long = now >= *cut_off_since.get_or_insert(now) + CUT_OFF_TIME;
        let why = "this node cannot write what others wait for: it reaches too few stores";
        is_long.then(|| ControlError::Unavailable(why.into()))
    }

    /// Notes that a renewal has failed, and why.
    fn failed(&self, error: Option<ControlError>) {
        let error = error.unwrap_or_else(|| ControlError::Unavailable("the first node is starting".into()));
        let trouble = &mut *self.trouble.lock();
        if trouble.as_ref() != Some(&error) {
            tracing::warn!("the lease is not renewed: {error}");
            *trouble = Some(error);
        }
    }

    /// Waits until an answer may reach a program. False if it never may, or not for very long.
    pub(crate) async fn may_answer(&self) -> bool {
        let mut is_over = self.is_over.subscribe();
        let may = || !self.lease_left().is_zero();
        let settled = is_over.wait_for(|is_over| *is_over || may());
        let _ = host::timeout(&*self.host.clock, ANSWER_TIME_MAX, settled).await;
        may()
    }

    /// Waits until the session is over, or its lease has been out for very long.
    pub(crate) async fn over(&self) {
        let mut is_over = self.is_over.subscribe();
        while !*is_over.borrow() {
            let until = Duration::from_nanos(self.lease_until.load(SeqCst)) + ANSWER_TIME_MAX;
            let rest = until.saturating_sub(self.host.clock.now());
            if rest.is_zero() {
                return;
            }
            // The sender lives as long as this.
            let _ = host::timeout(&*self.host.clock, rest, is_over.wait_for(|is_over| *is_over)).await;
        }
    }
}

/// When the lease is over that answered a request, in nanoseconds of the host's clock.
fn until(sent: Duration, lease: Duration) -> u64 {
    let mut held = Lease::default();
    held.renewed(sent, lease);
    held.until().as_nanos() as u64
}

/// What a node does at the moment.
#[derive(Clone)]
pub(crate) enum Phase {
    /// It has no session. Why, if the first node has refused one.
    Waiting(Option<ControlError>),
    /// It has one.
    Serving(Arc<Serving>),
    /// It has left.
    Left,
}

impl Phase {
    fn may_answer(&self) -> bool {
        matches!(self, Phase::Serving(serving) if !serving.lease_left().is_zero())
    }
}

/// A node that has joined.
pub struct Member {
    pub(crate) host: Host,
    config: MemberConfig,
    first: Arc<dyn FirstNode>,
    managers: Arc<ManagerHost>,
    /// The kernel behind the mount, if there is one.
    kernel: OnceLock<Arc<dyn Kernel>>,
    phase: watch::Sender<Phase>,
    /// The newest maps that sessions have brought.
    maps: watch::Sender<Maps>,
    /// The length of the lease of the newest session.
    lease: Mutex<Duration>,
    leaving: Notify,
    /// Where it keeps what would be lost with a session.
    aside: OnceLock<Arc<dyn Aside>>,
    /// Changes were lost with a session, and no program that relies on them was told yet.
    has_lost: AtomicBool,
    /// Changes were lost with a session since the start.
    has_ever_lost: AtomicBool,
}

impl Member {
    /// Starts to have sessions, one after the other. In them, the node serves the managers that the
    /// first node gives to `managers`.
    pub fn start(
        host: Host,
        config: MemberConfig,
        first: Arc<dyn FirstNode>,
        managers: Arc<ManagerHost>,
    ) -> Arc<Member> {
        let member = Arc::new(Member {
            host,
            config,
            first,
            managers,
            kernel: OnceLock::new(),
            phase: watch::Sender::new(Phase::Waiting(None)),
            maps: watch::Sender::default(),
            lease: Mutex::default(),
            leaving: Notify::new(),
            aside: OnceLock::new(),
            has_lost: AtomicBool::new(false),
            has_ever_lost: AtomicBool::new(false),
        });
        member.host.tasks.spawn(Box::pin(member.clone().run()));
        member
    }

    /// Tells the clients to come which kernel caches what they answer, and the present one.
    pub fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        self.kernel.get_or_init(|| kernel.clone());
        if let Phase::Serving(serving) = &*self.phase.borrow() {
            serving.client.set_kernel(kernel);
        }
    }

    /// Has what would be lost with a session kept there. Call it before programs use the file
    /// system.
    pub fn set_aside(&self, aside: Arc<dyn Aside>) {
        self.aside.get_or_init(|| aside);
    }

    /// Waits for a session.
    ///
    /// # Errors
    /// What the first node said when it refused one, unless trying again may help.
    pub async fn ready(&self) -> Result<(), ControlError> {
        let mut phase = self.phase.subscribe();
        let is_settled = |phase: &Phase| match phase {
            Phase::Waiting(error) => {
                !matches!(error, None | Some(ControlError::Unavailable(_) | ControlError::Restarted(_)))
            }
            Phase::Serving(_) => phase.may_answer(),
            Phase::Left => true,
        };
        // The sender lives as long as this.
        match phase.wait_for(is_settled).await.as_deref() {
            Ok(Phase::Waiting(Some(error))) => Err(error.clone()),
            Ok(Phase::Serving(_)) => Ok(()),
            _ => Err(ControlError::Unavailable("this node has left".into())),
        }
    }

    /// Why there is no session, if there is none: the answer to the newest hello.
    pub fn trouble(&self) -> Option<ControlError> {
        match &*self.phase.borrow() {
            Phase::Waiting(Some(error)) => Some(error.clone()),
            Phase::Waiting(None) => Some(ControlError::Unavailable("the first node has not answered yet".into())),
            Phase::Serving(serving) if serving.lease_left().is_zero() => serving.trouble.lock().clone(),
            Phase::Serving(_) | Phase::Left => None,
        }
    }

    /// True if there is no session, or its last renewal was not answered: another node may be the
    /// first one by now.
    pub fn is_unanswered(&self) -> bool {
        match &*self.phase.borrow() {
            Phase::Waiting(_) => true,
            Phase::Serving(serving) => serving.trouble.lock().is_some(),
            Phase::Left => false,
        }
    }

    /// The client of the present session, for `status`.
    pub fn client(&self) -> Option<Client> {
        self.session().map(|session| session.client.clone())
    }

    /// The stores that do not work, as this node sees them; `None` if there is no session.
    pub async fn stores_away(&self) -> Option<StoreSet> {
        let session = self.session()?;
        let fails = |store: &StoreHealth| {
            let is_readonly = store.status.as_ref().is_some_and(|status| !status.writable);
            store.state != StoreState::Up || is_readonly
        };
        let all = session.stripe.status().await;
        Some(all.iter().filter(|store| fails(store)).map(|store| store.id).collect())
    }

    /// The newest maps that sessions have brought, of epoch 0 if there was none.
    pub fn maps(&self) -> watch::Receiver<Maps> {
        self.maps.subscribe()
    }

    fn learn(&self, maps: Maps) {
        self.maps.send_if_modified(|known| {
            let is_newer = maps.epoch > known.epoch;
            if is_newer {
                *known = maps;
            }
            is_newer
        });
    }

    /// True if changes were lost with a session since this was asked last.
    pub fn take_loss(&self) -> bool {
        self.has_lost.swap(false, SeqCst)
    }

    /// True if changes were lost with a session since the start.
    pub fn has_ever_lost(&self) -> bool {
        self.has_ever_lost.load(SeqCst)
    }

    /// Commits everything, ends the session, and begins no other. Without a session it ends at
    /// once.
    pub async fn leave(&self) {
        let serving = self.session();
        if let Some(serving) = &serving {
            let client = &serving.client;
            let left = async {
                if let Err(e) = client.sync().await
                    // The stores may be away with the first node.
                    && !(serving.may_answer().await && client.sync().await.is_ok())
                {
                    tracing::error!("leaving: not everything could be synced: {e}");
                }
                if serving.lease_left().is_zero() {
                    // The first node reads the log when it is there again.
                    return;
                }
                client.settle().await;
                client.stop();
                self.phase.send_replace(Phase::Left);
                if let Err(e) = self.first.control(ControlRequest::Leave { session: serving.session }).await {
                    tracing::warn!("leaving: the first node ends the session when its lease is over: {e}");
                }
            };
            if host::timeout(&*self.host.clock, LEAVE_TIME_MAX, left).await.is_err() {
                tracing::warn!("leaving takes too long: what was not synced may be lost");
            }
            self.keep_aside(serving);
        }
        self.phase.send_replace(Phase::Left);
        self.leaving.notify_one();
    }

    /// The present session. Its lease may be out: see [`Serving::may_answer`].
    pub(crate) fn session(&self) -> Option<Arc<Serving>> {
        match &*self.phase.borrow() {
            Phase::Serving(serving) => Some(serving.clone()),
            _ => None,
        }
    }

    /// The present session, if it may answer now.
    pub(crate) fn serving(&self) -> Option<Arc<Serving>> {
        self.session().filter(|serving| !serving.lease_left().is_zero())
    }

    /// Waits for a session that may answer: a new one, or one that goes on. `None` if there is none
    /// for very long.
    pub(crate) async fn wait_serving(&self) -> Option<Arc<Serving>> {
        let mut phase = self.phase.subscribe();
        let begins = phase.wait_for(|phase| phase.may_answer() || matches!(phase, Phase::Left));
        let _ = host::timeout(&*self.host.clock, ANSWER_TIME_MAX, begins).await;
        self.serving()
    }

    async fn run(self: Arc<Self>) {
        let (mut pause, mut count) = (HELLO_PAUSE.start, 0);
        while !matches!(*self.phase.borrow(), Phase::Left) {
            match self.hello().await {
                Ok((sent, welcome)) => {
                    count += 1;
                    pause = HELLO_PAUSE.start;
                    match self.begin(count, sent, welcome) {
                        Ok(serving) => {
                            let why = self.serve(&serving).await;
                            self.end(&serving, why);
                            // With the next hello, others may change what the kernel still knows.
                            serving.client.leave_kernel().await;
                        }
                        Err(error) => self.wait(error),
                    }
                }
                Err(error) => {
                    self.wait(error);
                    first(self.host.clock.sleep(pause), self.leaving.notified()).await;
                    pause = (2 * pause).min(HELLO_PAUSE.end);
                }
            }
        }
    }

    /// Notes why there is no session.
    fn wait(&self, error: ControlError) {
        self.phase.send_if_modified(|phase| {
            let Phase::Waiting(before) = phase else { return false };
            let is_new = before.as_ref() != Some(&error);
            if is_new {
                tracing::warn!("no session with the first node: {error}");
            }
            *before = Some(error);
            is_new
        });
    }

    fn greeting(&self) -> Hello {
        let MemberConfig { node, is_mounted, address, takes_stores, takes_managers, takes_votes, .. } =
            self.config.clone();
        let (version, program) = (CONTROL_VERSION, PROGRAM_VERSION.into());
        Hello { node, version, is_mounted, address, takes_stores, takes_managers, takes_votes, program }
    }

    async fn ask(&self, request: ControlRequest, time_max: Duration) -> Result<ControlAnswer, ControlError> {
        let answer = host::timeout(&*self.host.clock, time_max, self.first.control(request)).await;
        answer.map_err(|_| ControlError::Unavailable("the first node does not answer".into()))?
    }

    /// Asks for a session. Returns when the request was sent, from which on the lease runs.
    async fn hello(&self) -> Result<(Duration, Welcome), ControlError> {
        let sent = self.host.clock.now();
        let welcome = match self.ask(ControlRequest::Hello(self.greeting()), HELLO_TIME_MAX).await? {
            ControlAnswer::Welcome(welcome) => welcome,
            _ => return Err(unexpected()),
        };
        *self.lease.lock() = welcome.lease;
        if self.host.clock.now() < sent + welcome.lease / 2 {
            return Ok((sent, welcome));
        }
        // The hello took long: renew before anything is served.
        let sent = self.host.clock.now();
        let Welcome { session, lease, maps_epoch, .. } = welcome;
        let known = (welcome.seating.version, Vec::new());
        let Renewed { lease, share, .. } =
            self.renew(session, &SpaceClaim::default(), false, maps_epoch, known, lease).await?;
        Ok((sent, Welcome { lease, share, ..welcome }))
    }

    async fn renew(
        &self,
        session: u64,
        claim: &SpaceClaim,
        wants_space: bool,
        maps_epoch: u64,
        known: (u64, Vec<NodeId>),
        time_max: Duration,
    ) -> Result<Renewed, ControlError> {
        let SpaceClaim { store_bytes, live_bytes, .. } = *claim;
        let (seating, unreached) = known;
        let renewal =
            ControlRequest::Renew { session, store_bytes, live_bytes, wants_space, maps_epoch, seating, unreached };
        match self.ask(renewal, time_max).await? {
            ControlAnswer::Renewed(renewed) => Ok(renewed),
            _ => Err(unexpected()),
        }
    }

    /// Tells a first node that has just started what the client of a session holds. The session
    /// goes on if its next renewal is answered.
    async fn resume(&self, serving: &Serving, term: u64) -> Result<(), ControlError> {
        let Serving { client, session, .. } = serving;
        let SpaceClaim { store_bytes, live_bytes, .. } = client.space_claim();
        if !self.first.can_resume(*session) {
            return Err(ControlError::UnknownSession);
        }
        // It serves all managers now. Nothing is sent to others that have served some.
        self.managers.drop_all();
        let moved = serving.seats.lock().restart();
        self.first.seat(*session, &moved);
        // It counts recalls anew, whether its answer gets here or not.
        self.first.recalls(*session, Arc::new(client.clone()));
        let (holdings, locks) = (client.holdings(term, |_| true), serving.locks.list());
        let hello = self.greeting();
        let resume = Resume { hello, session: *session, term, store_bytes, live_bytes, holdings, locks };
        match self.ask(ControlRequest::Resume(resume), serving.lease).await? {
            ControlAnswer::Noted => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Starts the client of a session.
    fn begin(&self, count: u64, sent: Duration, welcome: Welcome) -> Result<Arc<Serving>, ControlError> {
        let Welcome { session, lease, in_flight_max, tail, share, maps_epoch, first_node, seating, .. } = welcome;
        let config = FsConfig::decode(&welcome.config)?;
        self.learn(Maps { epoch: maps_epoch, bytes: welcome.config });
        let options = stripe_options(&config, in_flight_max, false);
        let stripe = Stripe::new(self.host.clone(), config.fs, self.first.stores(session, &config), options);
        let manager_count = config.manager_ids().len();
        let managers = self.first.managers(session, manager_count);
        let lease_until = Arc::new(AtomicU64::new(until(sent, lease)));
        let client_config = ClientConfig {
            id: client_id(self.config.node),
            block_size: config.block_size,
            cache_bytes: self.config.cache_bytes - inode_bytes(self.config.cache_bytes),
            inode_count_max: inode_count_max(self.config.cache_bytes),
            lease,
            lease_until: Some(lease_until.clone()),
        };
        let space = member_space(&config, &stripe, share);
        let managers = Managers::new(config.managers.clone(), managers);
        self.aside.get().inspect(|aside| aside.settle(tail.next_seq.saturating_sub(1), stripe.clone()));
        let client = Client::start(self.host.clone(), client_config, space, managers, stripe.clone(), tail);
        if let Some(kernel) = self.kernel.get() {
            client.set_kernel(kernel.clone());
        }
        let locks = Arc::new(SharedLocks::new(self.host.clone(), self.first.locks(session)));
        client.set_locks(locks.clone());
        self.first.recalls(session, Arc::new(client.clone()));
        // Before it is asked to serve some.
        let cached_inodes_max = inode_count_max(self.config.cache_bytes) / manager_count.max(1);
        let client_here = client.clone();
        let host_session = HostSession {
            number: session,
            first_node,
            stripe: stripe.clone(),
            config,
            cached_inodes_max,
            client: client_here,
        };
        self.managers.begin(host_session);
        let mut seats = KnownSeats::default();
        let seated = seats.take(seating).into_iter().filter(|(_, at)| at.is_some()).collect::<Vec<_>>();
        self.first.seat(session, &seated);
        let serving = Arc::new(Serving {
            count,
            client,
            stripe,
            host: self.host.clone(),
            session,
            lease,
            maps_epoch: AtomicU64::new(maps_epoch),
            began_with_room: share.is_some_and(|share| share.live.is_some()),
            seats: Mutex::new(seats),
            lease_until,
            locks,
            trouble: Mutex::default(),
            is_over: watch::Sender::new(false),
            is_kept: Mutex::default(),
        });
        tracing::info!(node = %self.config.node, session = count, "a session with the first node begins");
        let begins = |phase: &mut Phase| {
            let is_waiting = matches!(phase, Phase::Waiting(_));
            if is_waiting {
                *phase = Phase::Serving(serving.clone());
            }
            is_waiting
        };
        self.phase.send_if_modified(begins);
        Ok(serving)
    }

    /// Renews the lease until the session is over. Returns why it is.
    async fn serve(&self, serving: &Serving) -> ControlError {
        let mut pause = serving.lease / RENEWALS_PER_LEASE;
        let mut knows_room = serving.began_with_room;
        let mut search: Option<Search> = None;
        let (mut is_wanted, mut cut_off_since) = (false, None);
        loop {
            let sleep = first(self.host.clock.sleep(pause), self.first.moved());
            let wake = first(self.leaving.notified(), sleep);
            match first(serving.client.space_wanted(), wake).await {
                Either::Left(()) => is_wanted = true,
                Either::Right(Either::Left(())) => return ControlError::Unavailable("this node has left".into()),
                Either::Right(Either::Right(_)) => {}
            }
            let known = self.known_seats(serving);
            let sent = self.host.clock.now();
            let claim = serving.client.space_claim();
            let maps_epoch = serving.maps_epoch.load(SeqCst);
            let wants_space = is_wanted || search.is_some();
            // Another node may lead by now, which does not wait for this one for ever.
            let time_max = serving.lease / RENEWAL_PART;
            match self.renew(serving.session, &claim, wants_space, maps_epoch, known, time_max).await {
                Ok(Renewed { lease, share, round, maps, seating, reseating, absent }) => {
                    serving.renewed(sent, lease);
                    let absent = absent.into_iter().collect();
                    serving.stripe.heed(absent);
                    self.phase.send_modify(|_| {});
                    if let Some(why) = serving.is_of_no_use(absent, &mut cut_off_since) {
                        return why;
                    }
                    if let Some(maps) = maps {
                        self.follow(serving, &maps);
                    }
                    if let Some(seating) = seating {
                        let changed = serving.seats.lock().take(seating);
                        self.first.seat(serving.session, &changed);
                    }
                    if let Some(reseating) = reseating {
                        self.claim(serving, reseating).await;
                    }
                    if let Some(share) = share {
                        serving.client.take_share(&claim, &share);
                        knows_room |= share.live.is_some();
                    }
                    if std::mem::take(&mut is_wanted) {
                        // A search that goes on lasts longer, for the operation that came last.
                        search.get_or_insert(Search { seen: round, goal: 0 }).goal = round + SPACE_ROUNDS;
                    }
                    // A client that has had no share yet does not know whether there is room.
                    let tells = |search: &mut Search| knows_room && search.tell(&serving.client, round);
                    let is_found = search.as_mut().is_some_and(tells);
                    search = search.filter(|_| !is_found);
                    let waits = !serving.seats.lock().unseated.is_empty();
                    pause = match (waits, search.is_some()) {
                        (true, _) => SEATS_PAUSE,
                        (false, true) => SPACE_PAUSE,
                        (false, false) => serving.lease / RENEWALS_PER_LEASE,
                    };
                }
                Err(error) => {
                    let error = match error {
                        ControlError::Restarted(term) => {
                            // The first node that has started counts rounds anew.
                            is_wanted |= search.take().is_some();
                            self.resume(serving, term).await.err()
                        }
                        error => Some(error),
                    };
                    cut_off_since = None;
                    match error {
                        None | Some(ControlError::Unavailable(_)) => {
                            pause = serving.lease / TRIES_PER_LEASE;
                            serving.failed(error);
                        }
                        Some(error) => return error,
                    }
                }
            }
        }
    }

    /// The version of the seating that the client knows, and the nodes that it could not reach for
    /// long.
    fn known_seats(&self, serving: &Serving) -> (u64, Vec<NodeId>) {
        let (unreached, now) = (self.first.unreached(serving.session), self.host.clock.now());
        let mut seats = serving.seats.lock();
        let unreached = seats.unreached.note(unreached, now, serving.lease / 2);
        (seats.seating.version, unreached)
    }

    /// Says what the client holds of the files of managers that move. If the first node does not
    /// hear it, it asks again.
    async fn claim(&self, serving: &Serving, Reseating { term, managers }: Reseating) {
        // From now on nothing is sent to the former places.
        if !planted::is(Bug::ClaimantsGoOn) {
            self.first.unseat(serving.session, &managers);
        }
        serving.seats.lock().unseated.extend(managers.iter().map(|id| (*id, term)));
        let holdings = serving.client.holdings(term, |id| managers.contains(&id));
        let claim = ControlRequest::Claim { session: serving.session, term, holdings };
        if let Err(error) = self.ask(claim, serving.lease / 2).await {
            tracing::info!("the first node has not heard what this node holds: {error}");
        }
    }

    /// Follows maps that have changed.
    fn follow(&self, serving: &Serving, maps: &Maps) {
        match FsConfig::decode(&maps.bytes) {
            Ok(config) => {
                config.first_node.inspect(|first_node| self.managers.follow(*first_node));
                self.first.follow(&config);
                self.learn(maps.clone());
            }
            Err(e) => {
                tracing::warn!("the new maps cannot be read, the ones before stay in use: {e}");
                return;
            }
        }
        serving.maps_epoch.store(maps.epoch, SeqCst);
    }

    /// Ends a session that is over: its client is of no use any more.
    fn end(&self, serving: &Serving, why: ControlError) {
        let has_left = matches!(*self.phase.borrow(), Phase::Left);
        serving.lease_until.store(0, SeqCst);
        serving.is_over.send_replace(true);
        // Before a program finds that there is nothing to sync.
        let count = if has_left { 0 } else { self.keep_aside(serving) };
        self.phase.send_if_modified(|phase| {
            let is_serving = matches!(phase, Phase::Serving(_));
            if is_serving {
                *phase = Phase::Waiting(None);
            }
            is_serving
        });
        serving.client.abandon();
        self.managers.end(serving.session);
        self.first.end(serving.session);
        if has_left {
            return;
        }
        let session = serving.count;
        match count {
            0 => tracing::warn!(session, "the session is over; nothing is lost: {why}"),
            _ => tracing::warn!(session, "the session is over, and {count} changes were not synced: {why}"),
        }
    }

    /// Keeps aside what the client of a session that is over has not synced, once. Returns how many
    /// files and changes of names that is.
    fn keep_aside(&self, serving: &Serving) -> usize {
        // Who comes second returns when it is kept.
        let is_kept = &mut *serving.is_kept.lock();
        if std::mem::replace(is_kept, true) {
            return 0;
        }
        let unsynced = serving.client.unsynced();
        let count = unsynced.count();
        if count > 0 {
            self.has_lost.store(true, SeqCst);
            self.has_ever_lost.store(true, SeqCst);
            self.aside.get().inspect(|aside| aside.keep(unsynced));
        }
        count
    }
}

fn unexpected() -> ControlError {
    types::codec::DecodeError::Invalid("control answer").into()
}

/// A search for space that the first node does for operations here.
#[derive(Clone, Copy)]
struct Search {
    /// Rounds that the client was told of.
    seen: u64,
    /// The round whose end ends the search.
    goal: u64,
}

impl Search {
    /// Tells the client of the rounds that have ended. True if the search has ended.
    fn tell(&mut self, client: &Client, round: u64) -> bool {
        while self.seen < round.min(self.goal) {
            self.seen += 1;
            client.end_space_round();
        }
        self.seen >= self.goal
    }
}
