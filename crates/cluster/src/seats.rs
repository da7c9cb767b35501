//! Which node serves which manager, decided by the first node.
//!
//! Managers move whole, between the first node and another one. The steps are always these, also if
//! the node that served a manager is gone:
//!
//! 1. *Stop*: the node that serves the manager closes its gate, and writes a checkpoint. Requests
//!    wait from now on. If that node is gone, nothing of this happens.
//! 2. *Claims*: each client says what it holds of the manager's files, and how far its log is
//!    durable. From then on it sends nothing to the former place, and takes no grant of it. A
//!    client whose session ends meanwhile need not say anything.
//! 3. *Open*: the next one opens the manager's log, which fences the former one, rolls the clients'
//!    logs forward up to these positions, and notes what they hold.
//! 4. *Tell*: clients hear where the manager is, and send there what has no answer.
//!
//! So nothing of a manager's memory travels, and a planned move is the same as the recovery after a
//! death. Which node serves what is in the first node's memory only: at its start it opens all
//! managers itself ([`crate::survivors`]).
//!
//! One manager stays at the first node. So there is always one that says how far each log is
//! applied.

use crate::config::{CLEANER_LOG, CLIENT_LOG, FIRST_NODE, FsConfig, KnownNode, client_id, client_log, manager_log};
use crate::gate::{Gate, last_checkpoint};
use crate::lease::with_drift;
use crate::maintenance::Maintenance;
use crate::manager_service::{Gone, ManagerService, NO_SESSION};
use crate::remote_manager::RemoteManager;
use crate::seat::{Here, HostWay, Place, Seat, ServingNode, There};
use crate::seating::{Reseating, Seated, Seating};
use crate::survivors::contradicting;
use crate::unreached::Unreached;
use client::{Client, Holdings};
use host::{Host, first};
use manager::admin_wire::{AdmittedClient, HostAnswer, HostRequest, Takeover};
use manager::api::{HeldToken, ManagerAdmin, ManagerError, TokenHolder};
use manager::planted::{self, Bug};
use manager::server::{ManagerConfig, ManagerServer};
use manager::{LivingLog, WriterLog, roll_forward_all};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use stripe::{LogTail, LogWriter, Stripe};
use tokio::sync::{Notify, OwnedMutexGuard};
use types::{LogId, ManagerId, NodeId};

/// The manager that stays at the first node.
const STAYS: ManagerId = ManagerId::new(0);
/// How long a node may take to open a manager.
const TAKE_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a node may take to answer before it gets a manager.
const REACH_TIME_MAX: Duration = Duration::from_secs(3);
/// Time between looks at whether a session has ended that owes a claim.
const CLAIM_TICK: Duration = Duration::from_millis(100);
/// Time before a manager or a log that cannot be opened is tried again: the first time, and at
/// most.
const TRY_AGAIN: Range<Duration> = Duration::from_millis(500)..Duration::from_secs(15);
/// How long a node gets no manager after some node could not reach it, or after it failed to open
/// one.
const AVOIDED_TIME: Duration = Duration::from_secs(300);

/// The ways to nodes that serve managers.
pub trait HostWays: Send + Sync + 'static {
    /// The way to a node. It does not connect yet.
    fn reach(&self, at: &KnownNode) -> Arc<dyn HostWay>;
    /// The fingerprint of the first node's own certificate.
    fn fingerprint(&self) -> [u8; 32];
}

/// A session that has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LiveSession {
    pub node: NodeId,
    pub number: u64,
    pub fingerprint: [u8; 32],
}

/// The sessions with the first node.
pub(crate) trait SessionBook: Send + Sync {
    /// Those that have not ended.
    fn live(&self) -> Vec<LiveSession>;
    /// A node's session, ended or not.
    fn of(&self, node: NodeId) -> Option<u64>;
    /// Ends a node's session.
    fn end(&self, node: NodeId);
}

/// What managers need that are opened here.
pub(crate) struct Opening {
    pub host: Host,
    pub stripe: Arc<Stripe>,
    /// By manager; the id and the log are those of each.
    pub config: ManagerConfig,
    pub client: Client,
    pub cleaner: Arc<LogWriter>,
    pub lease: Duration,
}

/// Which node serves which manager.
pub(crate) struct Seats {
    opening: Opening,
    seats: Vec<Arc<Seat>>,
    service: Arc<ManagerService>,
    maintenance: Arc<Maintenance>,
    ways: Option<Arc<dyn HostWays>>,
    /// The session of this node's own client with nodes that serve managers.
    own_session: u64,
    /// Held while managers move, and while the log of a client is opened for a new writer or after
    /// its writer's end.
    changing: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    /// Notified when a client has said what it holds.
    claimed: Notify,
}

struct State {
    seating: Seating,
    /// The nodes that serve managers, or did in their present session.
    nodes: BTreeMap<NodeId, Arc<ServingNode>>,
    /// Managers that move now, and what clients have said.
    moving: Option<(Reseating, BTreeMap<u64, Holdings>)>,
    /// How far the logs go whose writers are gone.
    ended: BTreeMap<LogId, LivingLog>,
    /// Nodes that get no manager up to this time.
    avoided: BTreeMap<NodeId, Duration>,
    /// Nodes that cannot be reached from here.
    unreached: Unreached,
}

/// The right to change who serves what, and to open clients' logs.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// What clients have said about managers that move.
struct Claims {
    term: u64,
    own: Holdings,
    by_node: BTreeMap<NodeId, (LiveSession, Holdings)>,
}

/// True if a node's session is one of these.
fn is_live(node: &ServingNode, live: &[LiveSession]) -> bool {
    live.iter().any(|session| session.number == node.session)
}

/// How far a log goes that was opened like this.
pub(crate) fn end_of(tail: &LogTail) -> LivingLog {
    LivingLog { log: tail.log, epoch: tail.epoch, committed_seq: tail.next_seq - 1 }
}

impl Seats {
    pub fn new(
        opening: Opening,
        seats: Vec<Arc<Seat>>,
        service: Arc<ManagerService>,
        maintenance: Arc<Maintenance>,
        ways: Option<Arc<dyn HostWays>>,
        (term, ended): (u64, BTreeMap<LogId, LivingLog>),
    ) -> Seats {
        let random = &opening.host.random;
        // Sessions of members are random, too.
        let own_session = random.next_u64() | 1;
        let managers = vec![Seated { term, at: None }; seats.len()];
        let seating = Seating { version: random.next_u64() >> 1 | 1, managers };
        for seat in &seats {
            if let Place::Here(Here { gate, .. }) = seat.place() {
                service.open(seat.id(), gate);
            }
        }
        let (nodes, moving, avoided, unreached) = Default::default();
        let state = State { seating, nodes, moving, ended, avoided, unreached };
        Seats {
            opening,
            seats,
            service,
            maintenance,
            ways,
            own_session,
            changing: Arc::default(),
            state: Mutex::new(state),
            claimed: Notify::new(),
        }
    }

    /// All managers.
    pub fn all(&self) -> &[Arc<Seat>] {
        &self.seats
    }

    /// Waits for the right to change who serves what, and to open clients' logs.
    pub async fn turn(&self) -> Turn {
        self.changing.clone().lock_owned().await
    }

    /// The same, if nothing changes now.
    pub fn try_turn(&self) -> Option<Turn> {
        self.changing.clone().try_lock_owned().ok()
    }

    /// Which node serves which manager, if the version that is known is another one.
    pub fn seating(&self, known: u64) -> Option<Seating> {
        Some(self.state.lock().seating.clone()).filter(|seating| seating.version != known)
    }

    /// The fingerprint of the first node's certificate; zeros if no other node serves managers.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.ways.as_ref().map_or([0; 32], |ways| ways.fingerprint())
    }

    /// The managers that move, if this session has not said yet what its client holds.
    pub fn owed(&self, session: u64) -> Option<Reseating> {
        let state = self.state.lock();
        let (reseating, claims) = state.moving.as_ref()?;
        (!claims.contains_key(&session)).then(|| reseating.clone())
    }

    /// Notes what a session's client holds, if managers move that begin this term. The first claim
    /// of a session counts.
    pub fn claim(&self, session: u64, term: u64, holdings: Holdings) {
        if let Some((_, claims)) = self.state.lock().moving.as_mut().filter(|(moving, _)| moving.term == term) {
            claims.entry(session).or_insert(holdings);
        }
        self.claimed.notify_waiters();
    }

    /// A node's session begins: its client's log has a writer from now on, and what was wrong with
    /// its managers may be over.
    pub fn begin(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.ended.remove(&client_log(node));
        state.avoided.remove(&node);
    }

    /// A client's log is about to be opened: how far it goes is not known until that is done.
    pub fn log_opens(&self, log: LogId) {
        self.state.lock().ended.remove(&log);
    }

    /// A client's log has no writer any more.
    pub fn log_ended(&self, tail: &LogTail) {
        self.state.lock().ended.insert(tail.log, end_of(tail));
    }

    /// Some node could not reach this one: it is to serve no managers for a while.
    pub fn avoid(&self, node: NodeId) {
        let until = self.opening.host.clock.now() + AVOIDED_TIME;
        if self.state.lock().avoided.insert(node, until).is_none() {
            tracing::warn!(%node, "not all nodes can reach this one: it serves no managers for a while");
        }
    }

    /// True if other nodes can serve managers at all.
    pub fn can_move(&self) -> bool {
        self.ways.is_some()
    }

    /// True if a node may be given managers.
    pub fn may_serve(&self, node: NodeId) -> bool {
        let now = self.opening.host.clock.now();
        let mut state = self.state.lock();
        state.avoided.retain(|_, until| now < *until);
        !state.avoided.contains_key(&node)
    }

    /// Where the managers are.
    pub fn places(&self) -> BTreeMap<ManagerId, NodeId> {
        let at = |seated: &Seated| seated.at.as_ref().map_or(FIRST_NODE, |at| at.node);
        (0..).map(ManagerId::new).zip(self.state.lock().seating.managers.iter().map(at)).collect()
    }

    /// The managers whose nodes are gone, and those that are on their way. With the turn, the
    /// latter are those whose move was cut short.
    pub fn lost(&self, live: &[LiveSession]) -> BTreeSet<ManagerId> {
        let is_lost = |seat: &&Arc<Seat>| match seat.place() {
            Place::There(There { at, .. }) => !is_live(&at, live),
            Place::Nowhere => true,
            Place::Here(_) => false,
        };
        self.seats.iter().filter(is_lost).map(|seat| seat.id()).collect()
    }

    /// The nodes that serve managers, and are there.
    fn serving(&self, live: &[LiveSession]) -> Vec<Arc<ServingNode>> {
        let at = |seat: &Arc<Seat>| match seat.place() {
            Place::There(There { at, .. }) => Some((at.session, at)),
            Place::Here(_) | Place::Nowhere => None,
        };
        let nodes: BTreeMap<u64, Arc<ServingNode>> = self.seats.iter().filter_map(at).collect();
        nodes.into_values().filter(|node| is_live(node, live)).collect()
    }

    /// Looks at the nodes that serve managers. Nothing waits for those whose sessions have ended. A
    /// node whose session goes on, and that cannot be reached from here for long, is to serve none.
    pub fn look_at_nodes(&self, live: &[LiveSession]) {
        let (mut unreached, now) = (BTreeSet::new(), self.opening.host.clock.now());
        let for_long = {
            let mut state = self.state.lock();
            for node in state.nodes.values() {
                if !is_live(node, live) {
                    node.end();
                } else if !node.is_up() {
                    unreached.insert(node.node);
                }
            }
            // A node that is down for all others as well loses its session in a lease.
            state.unreached.note(unreached, now, with_drift(self.opening.lease))
        };
        for_long.into_iter().filter(|node| self.may_serve(*node)).for_each(|node| self.avoid(node));
    }

    /// Has all nodes that serve managers do something. One that cannot be reached from here is to
    /// serve none. One whose session ends meanwhile serves none.
    async fn have_all(&self, request: &HostRequest, live: &[LiveSession]) -> Result<(), ManagerError> {
        for node in self.serving(live) {
            if let Err(error) = node.have(request.clone()).await
                && !node.is_gone()
            {
                self.avoid(node.node);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Lets a client in at all managers. The caller has the turn.
    pub async fn admit(&self, _: &Turn, session: &LiveSession, live: &[LiveSession]) -> Result<(), ManagerError> {
        let admitted = self.admitted(session);
        self.have_all(&HostRequest::Admit(admitted.clone()), live).await?;
        let holder = self.service.holder(session.number);
        for server in self.seats.iter().filter_map(|seat| seat.server()) {
            server.admit(admitted.client, admitted.log, holder.clone());
        }
        Ok(())
    }

    /// Ends the requests of a session at all managers.
    pub async fn refuse(&self, session: u64, live: &[LiveSession]) -> Result<(), ManagerError> {
        self.service.quiesce(session).await;
        self.have_all(&HostRequest::Refuse(session), live).await
    }

    /// Frees what a client holds at all managers. The caller has the turn, and has rolled the
    /// client's log forward.
    pub async fn expel(&self, _: &Turn, node: NodeId, live: &[LiveSession]) -> Result<(), ManagerError> {
        self.have_all(&HostRequest::Expel(client_id(node)), live).await?;
        self.seats.iter().filter_map(|seat| seat.server()).for_each(|server| server.expel(client_id(node)));
        Ok(())
    }

    fn admitted(&self, session: &LiveSession) -> AdmittedClient {
        let LiveSession { node, number, fingerprint } = *session;
        AdmittedClient { client: client_id(node), log: client_log(node), session: number, fingerprint }
    }

    /// Has managers move to a node, or to the first node. If the node does not take one, that stays
    /// here. Others than the first node get only managers that are here now.
    pub async fn change(
        &self,
        _: &Turn,
        moving: &BTreeSet<ManagerId>,
        to: Option<&(KnownNode, u64)>,
        config: &FsConfig,
        book: &dyn SessionBook,
    ) {
        if moving.is_empty() {
            return;
        }
        if let Some((at, session)) = to
            && !self.answers(at, *session).await
        {
            self.avoid(at.node);
            return;
        }
        let epochs = self.vacate(moving, book).await;
        let claims = self.claims(moving, book).await;
        let held = self.held(&claims, book).await;
        for &id in moving {
            let clients = self.clients_of(id, &claims, &held, book);
            let given = match (to, epochs.get(&id)) {
                (Some((at, session)), Some(epoch)) => {
                    let logs = self.logs(&claims, config, book).await;
                    let takeover = self.takeover(id, claims.term, *epoch, logs, clients.clone());
                    self.give(at, *session, takeover).await
                }
                _ => None,
            };
            let (place, at) = match given {
                Some(there) => (Place::There(there), to.map(|(at, _)| at.clone())),
                None => (Place::Here(self.open(id, &claims, &clients, config, book).await), None),
            };
            self.seats[usize::from(id.raw())].set(place);
            let node = at.as_ref().map_or(FIRST_NODE, |at| at.node);
            tracing::info!(manager = %id, %node, "a manager has moved");
            let mut state = self.state.lock();
            state.seating.version += 1;
            state.seating.managers[usize::from(id.raw())] = Seated { term: claims.term, at };
        }
        let live = book.live();
        {
            let mut state = self.state.lock();
            state.moving = None;
            state.nodes.extract_if(.., |_, node| !is_live(node, &live)).for_each(|(_, node)| node.end());
        }
        self.service.call_all();
    }

    /// Has the clients of all sessions renew their leases soon: they hear what has changed.
    pub fn call_all(&self) {
        self.service.call_all();
    }

    /// True if a node answers here.
    async fn answers(&self, at: &KnownNode, session: u64) -> bool {
        let Some(node) = self.serving_node(at, session) else { return false };
        node.ask_within(HostRequest::Progress, REACH_TIME_MAX).await.is_ok()
    }

    /// Stops managers where they are. For those that were here, returns the epoch of their logs.
    async fn vacate(&self, moving: &BTreeSet<ManagerId>, book: &dyn SessionBook) -> BTreeMap<ManagerId, u32> {
        let mut epochs = BTreeMap::new();
        for &id in moving {
            match self.seats[usize::from(id.raw())].set(Place::Nowhere) {
                Place::Here(Here { server, gate }) => {
                    gate.close().await;
                    last_checkpoint(&self.opening.host, &server).await;
                    self.service.forget(id);
                    self.maintenance.follow_manager(manager_log(id.raw()), server.committed_seq() + 1);
                    epochs.insert(id, server.epoch());
                }
                Place::There(There { at, .. }) => {
                    if is_live(&at, &book.live())
                        && at.is_up()
                        && let Err(error) = at.have(HostRequest::Release(id)).await
                    {
                        tracing::warn!(manager = %id, node = %at.node, "a manager is taken from its node: {error}");
                    }
                }
                Place::Nowhere => {}
            }
        }
        epochs
    }

    /// Waits until each client has said what it holds, or its session is over.
    async fn claims(&self, moving: &BTreeSet<ManagerId>, book: &dyn SessionBook) -> Claims {
        let host = &self.opening.host;
        let term = host.random.next_u64();
        let reseating = Reseating { term, managers: moving.iter().copied().collect() };
        self.state.lock().moving = Some((reseating, BTreeMap::new()));
        self.service.call_all();
        let own = self.opening.client.holdings(term, |id| moving.contains(&id));
        loop {
            let claimed = self.claimed.notified();
            let live = book.live();
            let claims = self.state.lock().moving.as_ref().map(|(_, claims)| claims.clone()).unwrap_or_default();
            if live.iter().all(|session| claims.contains_key(&session.number)) {
                let claim = |session: LiveSession| {
                    let holdings = claims.get(&session.number)?.clone();
                    Some((session.node, (session, holdings)))
                };
                return Claims { term, own, by_node: live.into_iter().filter_map(claim).collect() };
            }
            first(claimed, host.clock.sleep(CLAIM_TICK)).await;
        }
    }

    /// How far each client's log is to be read. Opens those of sessions that have ended.
    async fn logs(&self, claims: &Claims, config: &FsConfig, book: &dyn SessionBook) -> Vec<LivingLog> {
        if planted::is(Bug::MovesForgetLogs) {
            return Vec::new();
        }
        let living = |log, holdings: &Holdings| {
            let Holdings { epoch, committed_seq, .. } = *holdings;
            LivingLog { log, epoch, committed_seq }
        };
        let mut logs = vec![living(CLIENT_LOG, &claims.own)];
        for node in config.members_ever() {
            let log = client_log(node);
            let known = claims.by_node.get(&node).map(|(_, holdings)| living(log, holdings));
            let known = known.or_else(|| self.state.lock().ended.get(&log).copied());
            logs.push(match known {
                Some(known) => known,
                None => {
                    // What its writer still asks for must not count afterwards.
                    if let Some(session) = book.of(node)
                        && let Err(error) = self.refuse(session, &book.live()).await
                    {
                        tracing::warn!(%node, "a session has ended, and not all nodes know: {error}");
                    }
                    self.end_log(log).await
                }
            });
        }
        logs
    }

    /// Opens the log of a session that has ended.
    async fn end_log(&self, log: LogId) -> LivingLog {
        let Opening { host, stripe, .. } = &self.opening;
        let mut pause = TRY_AGAIN.start;
        loop {
            let progress = self.seats[usize::from(STAYS.raw())].progress().await;
            let error = match progress {
                Ok(progress) => match stripe.open_log(log, progress.of(log) + 1).await {
                    Ok(tail) => {
                        self.log_ended(&tail);
                        return end_of(&tail);
                    }
                    Err(error) => error.to_string(),
                },
                Err(error) => error.to_string(),
            };
            tracing::warn!(%log, error, "a log cannot be opened; managers that move wait until this succeeds");
            host.clock.sleep(pause).await;
            pause = (2 * pause).min(TRY_AGAIN.end);
        }
    }

    /// What each client holds. Nodes that contradict each other hold nothing: their sessions end,
    /// and it takes a lease until they serve nothing, either. The first node has no lease. What its
    /// own client says counts.
    async fn held(&self, claims: &Claims, book: &dyn SessionBook) -> BTreeMap<NodeId, Vec<HeldToken>> {
        let mut held: BTreeMap<NodeId, Vec<HeldToken>> =
            claims.by_node.iter().map(|(node, (_, holdings))| (*node, holdings.tokens.clone())).collect();
        held.insert(FIRST_NODE, claims.own.tokens.clone());
        let contradicting = contradicting(held.iter().map(|(node, tokens)| (*node, tokens.as_slice())));
        if !contradicting.is_empty() {
            tracing::error!(?contradicting, "nodes say that they hold what only one can: their sessions end");
            contradicting.iter().for_each(|node| book.end(*node));
            self.opening.host.clock.sleep(with_drift(self.opening.lease)).await;
            held.retain(|node, _| *node == FIRST_NODE || !contradicting.contains(node));
        }
        held
    }

    /// The clients of a manager that moves, and what each holds.
    fn clients_of(
        &self,
        id: ManagerId,
        claims: &Claims,
        held: &BTreeMap<NodeId, Vec<HeldToken>>,
        book: &dyn SessionBook,
    ) -> Vec<(AdmittedClient, Vec<HeldToken>)> {
        let live = book.live();
        let map = &self.opening.config.map;
        let tokens = |node: &NodeId| -> Vec<HeldToken> {
            let tokens = held.get(node).map(Vec::as_slice).unwrap_or_default();
            let tokens = if planted::is(Bug::ClaimsAreIgnored) { &[] } else { tokens };
            tokens.iter().copied().filter(|token| map.owner_of(token.file) == id).collect()
        };
        let own = LiveSession { node: FIRST_NODE, number: self.own_session, fingerprint: self.fingerprint() };
        let others = claims.by_node.iter().map(|(node, (session, _))| {
            // What a client holds whose session has just ended stays its own until that is
            // finished. But it asks for nothing any more.
            let number = if live.contains(session) { session.number } else { NO_SESSION };
            (self.admitted(&LiveSession { number, ..session.clone() }), tokens(node))
        });
        std::iter::once((self.admitted(&own), tokens(&FIRST_NODE))).chain(others).collect()
    }

    fn takeover(
        &self,
        manager: ManagerId,
        term: u64,
        after_epoch: u32,
        logs: Vec<LivingLog>,
        clients: Vec<(AdmittedClient, Vec<HeldToken>)>,
    ) -> Takeover {
        let ManagerConfig { index_range_len, lengths, .. } = self.opening.config;
        let cleaners = vec![self.cleaner_log()];
        Takeover { manager, term, after_epoch, index_range_len, lengths, logs, cleaners, clients }
    }

    fn cleaner_log(&self) -> LivingLog {
        let log = &self.opening.cleaner;
        LivingLog { log: CLEANER_LOG, epoch: log.epoch(), committed_seq: log.committed_seq().unwrap_or(0) }
    }

    /// Gives a manager to a node; `None` if that does not take it.
    async fn give(&self, at: &KnownNode, session: u64, takeover: Takeover) -> Option<There> {
        let Opening { host, client, .. } = &self.opening;
        let (node, id) = (self.serving_node(at, session)?, takeover.manager);
        match node.ask_within(HostRequest::Take(Box::new(takeover)), TAKE_TIME_MAX).await {
            Ok(HostAnswer::Done) => {}
            failed => {
                let why = failed.err().unwrap_or(ManagerError::Away);
                tracing::warn!(manager = %id, node = %at.node, "a node does not take a manager: {why}");
                self.avoid(at.node);
                return None;
            }
        }
        node.tell_recalls(self.own_session, Arc::new(client.clone()));
        let remote = RemoteManager::new(host, node.lane(), self.own_session, id, Arc::default());
        Some(There { at: node, remote })
    }

    /// The way to a node, in this session of it; `None` if there are no ways to other nodes.
    pub fn serving_node(&self, at: &KnownNode, session: u64) -> Option<Arc<ServingNode>> {
        let mut state = self.state.lock();
        if let Some(known) = state.nodes.get(&at.node).filter(|known| known.session == session) {
            return Some(known.clone());
        }
        let way = self.ways.as_ref()?.reach(at);
        let node = ServingNode::new(self.opening.host.clone(), at.node, session, way);
        if let Some(former) = state.nodes.insert(at.node, node.clone()) {
            former.end();
        }
        Some(node)
    }

    /// Opens a manager here. Tries until it succeeds: until then, all that need it wait.
    async fn open(
        &self,
        id: ManagerId,
        claims: &Claims,
        clients: &[(AdmittedClient, Vec<HeldToken>)],
        config: &FsConfig,
        book: &dyn SessionBook,
    ) -> Here {
        let mut pause = TRY_AGAIN.start;
        let server = loop {
            let logs = self.logs(claims, config, book).await;
            match self.try_open(id, &logs).await {
                Ok(server) => break server,
                Err(error) => {
                    tracing::warn!(manager = %id, "a manager cannot be opened; others wait until this succeeds: {error}");
                    self.opening.host.clock.sleep(pause).await;
                    pause = (2 * pause).min(TRY_AGAIN.end);
                }
            }
        };
        server.begin_term(claims.term);
        for (client, tokens) in clients {
            server.restore(client.client, tokens);
        }
        for (client, _) in clients {
            let holder: Arc<dyn TokenHolder> = match client.session {
                NO_SESSION => Arc::new(Gone),
                session if session == self.own_session => Arc::new(self.opening.client.clone()),
                session => self.service.holder(session),
            };
            server.admit(client.client, client.log, holder);
        }
        let gate = Gate::new(server.clone());
        self.service.open(id, gate.clone());
        Here { server, gate }
    }

    async fn try_open(&self, id: ManagerId, logs: &[LivingLog]) -> Result<Arc<ManagerServer>, ManagerError> {
        let Opening { host, stripe, config, .. } = &self.opening;
        let config = ManagerConfig { id, log: manager_log(id.raw()), ..config.clone() };
        let server = ManagerServer::open(host.clone(), stripe.clone(), config, 1).await?;
        let logs: Vec<WriterLog> = logs.iter().copied().map(WriterLog::ReadOnly).collect();
        let cleaners = [WriterLog::ReadOnly(self.cleaner_log())];
        roll_forward_all(stripe, std::slice::from_ref(&server), &logs, &cleaners).await?;
        Ok(server)
    }
}

/// A manager at a node that may serve none.
pub(crate) fn homeless(places: &BTreeMap<ManagerId, NodeId>, hosts: &BTreeSet<NodeId>) -> Option<ManagerId> {
    let homeless = places.iter().find(|(_, node)| **node != FIRST_NODE && !hosts.contains(node));
    homeless.map(|(id, _)| *id)
}

/// The next manager to move, and where to. `places` says where each is, `hosts` which nodes may
/// serve some besides the first one.
pub(crate) fn next_move(places: &BTreeMap<ManagerId, NodeId>, hosts: &BTreeSet<NodeId>) -> Option<(ManagerId, NodeId)> {
    if let Some(id) = homeless(places, hosts) {
        return Some((id, FIRST_NODE));
    }
    let count = |node: NodeId| places.values().filter(|at| **at == node).count();
    let (fewest, taker) = hosts.iter().map(|node| (count(*node), *node)).min()?;
    let (most, giver) = hosts.iter().chain([&FIRST_NODE]).map(|node| (count(*node), *node)).max()?;
    // One more at the first node is fair, too.
    let from = if count(FIRST_NODE) > fewest + 1 { FIRST_NODE } else { giver };
    if most < fewest + 2 {
        return None;
    }
    let (id, _) = places.iter().rev().find(|(id, at)| **at == from && **id != STAYS)?;
    Some((*id, if from == FIRST_NODE { taker } else { FIRST_NODE }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(manager_count: u16, hosts: &[u16], places: &mut BTreeMap<ManagerId, NodeId>) -> Vec<usize> {
        let hosts: BTreeSet<NodeId> = hosts.iter().copied().map(NodeId::new).collect();
        if places.is_empty() {
            places.extend((0..manager_count).map(|id| (ManagerId::new(id), FIRST_NODE)));
        }
        for moves in 0.. {
            assert!(moves < 4 * manager_count, "it goes on and on: {places:?}");
            let Some((id, to)) = next_move(places, &hosts) else { break };
            let from = places.insert(id, to).expect("a manager");
            assert!(id != STAYS && from != to && (from == FIRST_NODE || to == FIRST_NODE));
        }
        let count = |node| places.values().filter(|at| **at == node).count();
        std::iter::once(FIRST_NODE).chain(hosts.iter().copied()).map(count).collect()
    }

    #[test]
    fn managers_are_spread_evenly_and_come_home() {
        let mut places = BTreeMap::new();
        assert_eq!(spread(4, &[], &mut places), [4]);
        assert_eq!(spread(4, &[1], &mut places), [2, 2]);
        assert_eq!(spread(4, &[1, 2], &mut places), [1, 2, 1]);
        assert_eq!(spread(4, &[1, 2, 3], &mut places), [1, 1, 1, 1]);
        assert_eq!(spread(4, &[2], &mut places), [2, 2]);
        assert_eq!(spread(4, &[], &mut places), [4]);
        assert_eq!(spread(1, &[1], &mut BTreeMap::new()), [1, 0]);
        assert_eq!(spread(2, &[1, 2], &mut BTreeMap::new()), [1, 1, 0]);
        assert_eq!(spread(16, &[1, 2, 3], &mut BTreeMap::new()), [4, 4, 4, 4]);
    }
}
