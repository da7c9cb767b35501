//! The first node's side of other nodes' sessions: who may begin one, how long it lasts, and what
//! happens when it ends.
//!
//! A session is one life of a member's client. It begins with a hello, which opens the client's log
//! under a new epoch. It ends when the member leaves, says hello again, or does not renew its
//! lease. However it ends, the same steps follow, in this order:
//!
//! 1. *Refuse*: no request of the session is accepted any more.
//! 2. *Quiesce*: requests that were accepted have ended.
//! 3. *Roll forward*: the log is opened anew, which fences its writer, and managers apply all that
//!    is durable in it. Until this succeeds, nobody else gets the client's tokens.
//! 4. *Expel*: managers free the client's tokens and opens, and the table of locks its locks.
//! 5. *Sweep*: files that have no name and that nobody has open are removed.
//!
//! The sessions of one node are handled one at a time, so a hello waits for the end of a former
//! session. If a hello is given up half-way, the loop that watches the leases finishes its work.
//!
//! After a start, the sessions go on that survive it ([`crate::survivors`]), under their numbers.

mod report;

use crate::cleaner::{Copier, Writers};
use crate::config::{CLIENT_LOG, FIRST_NODE, FsConfig, KnownNode, MemberEntry, client_id, client_log};
use crate::control::{
    CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest, Hello, Renewed, Resume, SpreadReport, Welcome,
};
use crate::leading::Leading;
use crate::lease::LeaseTable;
use crate::lock_server::LockServer;
use crate::machine::CoreMachine;
use crate::maintenance::Maintenance;
use crate::manager_service::{ManagerService, Sessions as ManagerSessions};
use crate::maps::Keeper;
use crate::node_writer::NodeWriter;
use crate::seat::ServingNode;
use crate::seats::{HostWays, LiveSession, Seats, SessionBook, Turn, homeless, next_move};
use crate::shared_locks::{NearLocks, SharedLocks};
use crate::space::OWN_SESSION;
use crate::survivors::Survivor;
use client::Client;
use host::Host;
use link::Peer;
use manager::api::ManagerError;
use manager::roll_forward::roll_forward;
use parking_lot::Mutex;
use policy::space::{SpaceClaim, SpaceShare};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use stripe::{LogTail, StoreSet, Stripe};
use tokio::sync::OwnedMutexGuard;
use types::{ClientId, LogId, ManagerId, NodeId, StoreId};
use vfs::fs::FileSystem;

/// Time between looks at the sessions, unless a lease ends before.
const TICK: Duration = Duration::from_millis(250);
/// How long a renewal may wait for a look at the stores: an answer without a share is better than
/// one after the lease.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a node has been there before it serves managers.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// How long managers stay at nodes that may serve them after others have opened here: their users
/// have just waited, and may still wait for stores that went with a node.
const REST_TIME: Duration = Duration::from_secs(10);
/// Time before a log that could not be rolled forward is tried again: the first time, and at most.
const TRY_AGAIN: std::ops::Range<Duration> = Duration::from_millis(500)..Duration::from_secs(15);

/// How the first node has members.
#[derive(Clone)]
pub struct MembersConfig {
    /// The length of members' leases. The same at each start.
    pub lease: Duration,
    /// The first node's name, for [`Members::nodes`].
    pub name: String,
    /// Where members reach it.
    pub address: String,
    /// It has the file system mounted itself.
    pub is_mounted: bool,
    /// The member whose process the first node is in, if a group of voters has elected it.
    pub member: Option<NodeId>,
    /// Until when it leads its group of voters; `None`: it has the only voter, for good.
    pub leading: Option<Arc<Leading>>,
}

/// One session.
#[derive(Clone, Debug)]
struct MemberSession {
    node: NodeId,
    /// Of the certificate of whoever began it.
    fingerprint: [u8; 32],
    is_mounted: bool,
    takes_stores: bool,
    takes_managers: bool,
    takes_votes: bool,
    program: String,
    began: Duration,
    /// The epoch of the maps that the node knew when it renewed its lease last.
    maps_epoch: u64,
    /// Its requests are refused. It is in the table until its tokens are free.
    is_ended: bool,
}

/// All sessions.
struct Sessions {
    leases: LeaseTable,
    by_number: BTreeMap<u64, MemberSession>,
    /// When each node's last session ended.
    ended_at: BTreeMap<NodeId, Duration>,
}

impl Sessions {
    /// Ends a session: from now on its requests are refused.
    fn end(&mut self, number: u64) {
        self.leases.end(number);
        if let Some(session) = self.by_number.get_mut(&number) {
            session.is_ended = true;
        }
    }

    /// A session that has not ended.
    fn live(&self, number: u64, now: Duration) -> Option<&MemberSession> {
        let session = self.by_number.get(&number).filter(|session| !session.is_ended)?;
        self.leases.left(number, now).filter(|left| !left.is_zero()).map(|_| session)
    }

    /// A node's session, ended or not.
    fn of(&self, node: NodeId) -> Option<u64> {
        self.by_number.iter().find(|(_, session)| session.node == node).map(|(number, _)| *number)
    }
}

/// The members' sessions, on the first node.
pub struct Members {
    host: Host,
    config: MembersConfig,
    in_flight_max: u64,
    stripe: Arc<Stripe>,
    seats: Seats,
    maps: Arc<Keeper>,
    maintenance: Arc<Maintenance>,
    client: Client,
    locks: Arc<LockServer>,
    sessions: Mutex<Sessions>,
    /// For each node, held by whoever begins or ends a session of it.
    turns: Mutex<BTreeMap<NodeId, Arc<tokio::sync::Mutex<()>>>>,
    /// Held during a sweep.
    sweeping: tokio::sync::Mutex<()>,
    /// What happens to the places of stores.
    spread: Mutex<SpreadReport>,
    stopped: AtomicBool,
    /// When this began.
    began: Duration,
    /// When managers have opened here last because their nodes were gone, if they have.
    opened_here: Mutex<Option<Duration>>,
}

impl CoreMachine {
    /// Lets other nodes in: from now on they may begin sessions, and the sessions that survive the
    /// start go on. The first node's own client is one of several then. `service` takes their
    /// requests to managers. With `ways`, other nodes serve managers, too. Call it once, before
    /// anything uses the client, and before any node can reach this one.
    pub async fn open_to_members(
        &self,
        config: MembersConfig,
        service: Arc<ManagerService>,
        ways: Option<Arc<dyn HostWays>>,
    ) -> Arc<Members> {
        for server in self.servers() {
            server.admit(client_id(FIRST_NODE), CLIENT_LOG, Arc::new(self.client.clone()));
        }
        let (maintenance, known) = (self.maintenance.clone(), (self.term, self.ended.clone()));
        let opening = self.opening(config.lease);
        let seats = Seats::new(opening, self.managers.clone(), service.clone(), maintenance, ways, known);
        let locks = Arc::new(LockServer::new(self.host()));
        let near = NearLocks { server: locks.clone(), client: client_id(FIRST_NODE) };
        self.client.set_locks(Arc::new(SharedLocks::new(self.host(), Arc::new(near))));
        let now = self.host().clock.now();
        let members = Arc::new(Members {
            host: self.host(),
            in_flight_max: self.limits.in_flight_max,
            stripe: self.stripe.clone(),
            seats,
            maps: self.maps.clone(),
            maintenance: self.maintenance.clone(),
            client: self.client.clone(),
            locks,
            sessions: Mutex::new(Sessions {
                leases: LeaseTable::new(config.lease),
                by_number: BTreeMap::new(),
                ended_at: BTreeMap::new(),
            }),
            config,
            turns: Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
            spread: Mutex::default(),
            stopped: AtomicBool::new(false),
            began: now,
            // All have, at a start that members have waited for.
            opened_here: Mutex::new((!self.survivors.is_empty()).then_some(now)),
        });
        service.serve_sessions(&members);
        self.maintenance.copy_with(Arc::new(NodeWriters(Arc::downgrade(&members))));
        for (node, survivor) in &self.survivors {
            members.take_up(*node, survivor).await;
        }
        if !self.survivors.is_empty() {
            members.host.tasks.spawn(Box::pin(members.clone().sweep()));
        }
        members.host.tasks.spawn(Box::pin(members.clone().watch()));
        members
    }
}

impl SessionBook for Members {
    fn live(&self) -> Vec<LiveSession> {
        let (sessions, now) = (self.sessions.lock(), self.host.clock.now());
        let live = |number: &u64| {
            let MemberSession { node, fingerprint, .. } = *sessions.live(*number, now)?;
            Some(LiveSession { node, number: *number, fingerprint })
        };
        sessions.by_number.keys().filter_map(live).collect()
    }

    fn of(&self, node: NodeId) -> Option<u64> {
        self.sessions.lock().of(node)
    }

    fn end(&self, node: NodeId) {
        let mut sessions = self.sessions.lock();
        sessions.of(node).into_iter().for_each(|number| sessions.end(number));
    }
}

impl ManagerSessions for Members {
    fn client(&self, session: u64, peer: &Peer) -> Option<ClientId> {
        self.client_of(session, &peer.fingerprint?)
    }
}

/// The nodes with a session, as the cleaner asks them.
struct NodeWriters(Weak<Members>);

impl Writers for NodeWriters {
    fn writer(&self, log: LogId) -> Option<Arc<dyn Copier>> {
        Some(Arc::new(NodeWriter(self.0.upgrade()?.writer_of(log)?)))
    }
}

impl Members {
    /// Stops watching the leases. Sessions stay as they are, and may go on after the next start.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
    }

    /// Answers a request of the node with this certificate.
    pub async fn control(
        self: &Arc<Self>,
        fingerprint: &[u8; 32],
        request: ControlRequest,
    ) -> Result<ControlAnswer, ControlError> {
        self.lease_to_give()?;
        match request {
            ControlRequest::Hello(hello) => {
                if hello.version != CONTROL_VERSION {
                    return Err(ControlError::Version(CONTROL_VERSION));
                }
                self.hello(&hello, fingerprint).await.map(ControlAnswer::Welcome)
            }
            ControlRequest::Renew { session, store_bytes, live_bytes, wants_space, maps_epoch, seating, unreached } => {
                let node = self.node_of(fingerprint)?;
                let claim = SpaceClaim { store_bytes, live_bytes, ..SpaceClaim::default() };
                let renewed = self.renew(node, session, &claim, wants_space).await?;
                self.sessions.lock().by_number.entry(session).and_modify(|session| session.maps_epoch = maps_epoch);
                let maps = Some(self.maps.maps()).filter(|maps| maps.epoch != maps_epoch);
                let (seating, reseating) = (self.seats.seating(seating), self.seats.owed(session));
                if seating.is_none() {
                    unreached.into_iter().filter(|host| *host != node).for_each(|host| self.seats.avoid(host));
                }
                let absent = self.stripe.absent().iter().collect();
                Ok(ControlAnswer::Renewed(Renewed { maps, seating, reseating, absent, ..renewed }))
            }
            ControlRequest::Leave { session } => {
                let node = self.node_of(fingerprint)?;
                self.leave(node, session).await.map(|()| ControlAnswer::Left)
            }
            ControlRequest::Nodes => {
                self.node_of(fingerprint)?;
                self.nodes().map(ControlAnswer::Nodes)
            }
            ControlRequest::Claim { session, term, holdings } => {
                let node = self.node_of(fingerprint)?;
                if !self.live().iter().any(|live| (live.number, live.node) == (session, node)) {
                    return Err(ControlError::UnknownSession);
                }
                self.seats.claim(session, term, holdings);
                Ok(ControlAnswer::Noted)
            }
            ControlRequest::Who(file) => {
                self.node_of(fingerprint)?;
                self.who(file).await.map(ControlAnswer::Who)
            }
            ControlRequest::FirstNode(_) => Ok(ControlAnswer::FirstNode(vec![self.config.address.clone()])),
            // The service that takes these requests answers them.
            ControlRequest::AuthorityKey => Err(ControlError::Unavailable("the key is not kept here".into())),
            ControlRequest::Order(_) => Err(ControlError::Unavailable("commands are not known here".into())),
            // It comes too late: all sessions that go on are known.
            ControlRequest::Resume(_) => Err(ControlError::UnknownSession),
        }
    }

    /// Lets the leases of all sessions run from now on: nodes can reach this one from now on.
    pub fn begin_leases(&self) {
        let (mut sessions, now) = (self.sessions.lock(), self.host.clock.now());
        let live = sessions.by_number.iter().filter(|(_, session)| !session.is_ended);
        let numbers: Vec<u64> = live.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| sessions.leases.begin(number, now));
    }

    /// Has the session of a survivor go on.
    async fn take_up(self: &Arc<Self>, node: NodeId, survivor: &Survivor) {
        let Survivor { resume: Resume { hello, session, store_bytes, live_bytes, locks, .. }, fingerprint } = survivor;
        self.locks.restore(client_id(node), locks);
        // Others get none of the space that the node may still take. Its next renewal says more.
        let (store_bytes, live_bytes) = (*store_bytes, *live_bytes);
        let claim = SpaceClaim { store_bytes, live_bytes, ..SpaceClaim::default() };
        // No other node serves managers yet, which could fail.
        let _ = self.begin(*session, hello, *fingerprint, &claim).await;
        tracing::info!(%node, "a session goes on");
    }

    /// The lease that a session gets now. Another node may lead after this one, and know when the
    /// leases of this one are over.
    fn lease_to_give(&self) -> Result<Duration, ControlError> {
        let given = match &self.config.leading {
            Some(leading) => leading.lease_for_member(self.config.lease),
            None => Some(self.config.lease),
        };
        given.ok_or_else(|| ControlError::Unavailable("this node does not lead the file system any more".into()))
    }

    fn maps_config(&self) -> Result<FsConfig, ControlError> {
        self.maps.config().map_err(|e| ControlError::Unavailable(format!("the maps in force: {e}")))
    }

    fn node_of(&self, fingerprint: &[u8; 32]) -> Result<NodeId, ControlError> {
        let config = self.maps_config()?;
        config.member_of(fingerprint).map(|(node, _)| node).ok_or(ControlError::NotMember)
    }

    /// Begins a session of a node, and ends its former one. Waits for that.
    ///
    /// # Errors
    /// [`ControlError::NotMember`]; [`ControlError::Unavailable`] if the node's log cannot be
    /// opened.
    pub async fn hello(self: &Arc<Self>, hello: &Hello, fingerprint: &[u8; 32]) -> Result<Welcome, ControlError> {
        let node = hello.node;
        let is_member = |(member, _): (NodeId, &MemberEntry)| member == node;
        if !self.maps_config()?.member_of(fingerprint).is_some_and(is_member) {
            return Err(ControlError::NotMember);
        }
        self.note_address(hello).await?;
        let turn = self.turn(node).lock_owned().await;
        let former = {
            let mut sessions = self.sessions.lock();
            let former = sessions.of(node);
            former.into_iter().for_each(|former| sessions.end(former));
            former
        };
        let log = client_log(node);
        let tail = match former {
            Some(former) => {
                tracing::info!(%node, "the node begins anew: its former session ends");
                self.bury(former, node).await
            }
            None => {
                let turn = self.seats.turn().await;
                self.recover(&turn).await;
                self.open_log(log).await.map_err(ControlError::Unavailable)?
            }
        };
        // The node may have been removed while this waited.
        let (maps, config) = (self.maps.maps(), self.maps_config()?);
        if !config.member_of(fingerprint).is_some_and(is_member) {
            return Err(ControlError::NotMember);
        }
        let session = self.new_number();
        self.begin(session, hello, *fingerprint, &SpaceClaim::default()).await?;
        drop(turn);
        tracing::info!(%node, epoch = tail.epoch, "a session begins");
        let share = self.share(session, log, &SpaceClaim::default()).await;
        Ok(Welcome {
            session,
            lease: self.lease_to_give()?,
            config: maps.bytes,
            maps_epoch: maps.epoch,
            in_flight_max: self.in_flight_max,
            tail: LogTail { segments: Vec::new(), lost: Vec::new(), ..tail },
            share,
            first_node: self.seats.fingerprint(),
            seating: self.seats.seating(0).unwrap_or_default(),
        })
    }

    /// Renews the lease of a node's session, and its share of the free space.
    ///
    /// # Errors
    /// [`ControlError::UnknownSession`]; [`ControlError::NotMember`] if the node was removed, which
    /// ends the session.
    pub async fn renew(
        &self,
        node: NodeId,
        session: u64,
        claim: &SpaceClaim,
        wants_space: bool,
    ) -> Result<Renewed, ControlError> {
        let is_member = self.maps_config()?.members.contains_key(&node);
        {
            let (mut sessions, now) = (self.sessions.lock(), self.host.clock.now());
            if sessions.live(session, now).is_none_or(|session| session.node != node) {
                return Err(ControlError::UnknownSession);
            }
            if !is_member {
                sessions.end(session);
                return Err(ControlError::NotMember);
            }
            sessions.leases.renew(session, now);
        }
        if wants_space {
            self.maintenance.want_space();
        }
        let round = self.maintenance.space_round();
        let share = self.share(session, client_log(node), claim).await;
        let (lease, absent) = (self.lease_to_give()?, BTreeSet::new());
        Ok(Renewed { lease, share, round, maps: None, seating: None, reseating: None, absent })
    }

    /// Ends a node's session. Its client has committed everything.
    ///
    /// # Errors
    /// [`ControlError::UnknownSession`].
    pub async fn leave(self: &Arc<Self>, node: NodeId, session: u64) -> Result<(), ControlError> {
        let turn = self.turn(node).lock_owned().await;
        {
            let (mut sessions, now) = (self.sessions.lock(), self.host.clock.now());
            if sessions.live(session, now).is_none_or(|session| session.node != node) {
                return Err(ControlError::UnknownSession);
            }
            sessions.end(session);
        }
        self.bury(session, node).await;
        drop(turn);
        tracing::info!(%node, "the node has left");
        Ok(())
    }

    /// The client of a session, if the session has not ended: requests of other sessions must be
    /// refused.
    pub fn client(&self, session: u64) -> Option<ClientId> {
        let now = self.host.clock.now();
        self.sessions.lock().live(session, now).map(|session| client_id(session.node))
    }

    /// The file locks of all clients.
    pub fn locks(&self) -> &Arc<LockServer> {
        &self.locks
    }

    /// As [`client`](Self::client), if the session is that of the node with this certificate.
    pub fn client_of(&self, session: u64, fingerprint: &[u8; 32]) -> Option<ClientId> {
        let now = self.host.clock.now();
        let sessions = self.sessions.lock();
        let session = sessions.live(session, now).filter(|session| session.fingerprint == *fingerprint)?;
        Some(client_id(session.node))
    }

    /// The nodes that take stores, and have a session now. Those that drain take none.
    pub fn takers(&self) -> Vec<KnownNode> {
        let takers = self.reachable(|session| session.takes_stores);
        let draining = self.draining();
        takers.into_iter().map(|(at, _)| at).filter(|at| !draining.contains(&at.node)).collect()
    }

    fn draining(&self) -> BTreeSet<NodeId> {
        self.maps_config().map(|config| config.draining.into_keys().collect()).unwrap_or_default()
    }

    /// The first node's name.
    pub(crate) fn first_name(&self) -> &str {
        &self.config.name
    }

    /// True if all sessions know maps of this epoch or newer ones.
    pub(crate) fn all_know(&self, maps_epoch: u64) -> bool {
        self.sessions.lock().by_number.values().all(|session| session.maps_epoch >= maps_epoch)
    }

    /// The node whose client writes a log, if it has a session now and can be reached.
    fn writer_of(&self, log: LogId) -> Option<Arc<ServingNode>> {
        let writers = self.reachable(|session| client_log(session.node) == log);
        let (at, session) = writers.into_iter().next()?;
        self.seats.serving_node(&at, session)
    }

    /// The nodes that are here and can be reached, and whether each takes a voter.
    pub(crate) fn present(&self) -> BTreeMap<NodeId, bool> {
        let taking = self.reachable(|session| session.takes_votes).into_iter().map(|(at, _)| (at.node, true));
        let others = self.reachable(|session| !session.takes_votes).into_iter().map(|(at, _)| (at.node, false));
        taking.chain(others).collect()
    }

    /// The members without a session, and how long each has been away, as far as this first node
    /// can know.
    pub(crate) fn away(&self) -> BTreeMap<NodeId, Duration> {
        let (now, Ok(config)) = (self.host.clock.now(), self.maps_config()) else { return BTreeMap::new() };
        let sessions = self.sessions.lock();
        let away = config.members.into_keys().filter(|node| sessions.of(*node).is_none());
        let since = |node: &NodeId| sessions.ended_at.get(node).copied().unwrap_or(self.began);
        away.map(|node| (node, now.saturating_sub(since(&node)))).collect()
    }

    /// The maps of the file system.
    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.maps
    }

    /// True until [`stop`](Self::stop).
    pub(crate) fn is_at_work(&self) -> bool {
        !self.stopped.load(SeqCst)
    }

    /// The host that this runs on.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The nodes without a session at addresses where they may be.
    pub fn absent(&self) -> Vec<KnownNode> {
        let Ok(config) = self.maps_config() else { return Vec::new() };
        let (sessions, now) = (self.sessions.lock(), self.host.clock.now());
        let is_here = |node| sessions.of(node).is_some_and(|number| sessions.live(number, now).is_some());
        config.reachable().filter(|at| !is_here(at.node)).collect()
    }

    /// The nodes with such a session that others can reach, and the sessions' numbers. `is_such` is
    /// called under the lock of the sessions.
    fn reachable(&self, is_such: impl Fn(&MemberSession) -> bool) -> Vec<(KnownNode, u64)> {
        let Ok(config) = self.maps_config() else { return Vec::new() };
        let (sessions, now) = (self.sessions.lock(), self.host.clock.now());
        let live = sessions.by_number.keys().filter_map(|number| Some((*number, sessions.live(*number, now)?)));
        let known = |(number, session): (u64, &MemberSession)| Some((config.reach(session.node)?, number));
        live.filter(|(_, session)| is_such(session)).filter_map(known).collect()
    }

    /// Changes what [`nodes`](Self::nodes) says of the places of stores.
    pub fn report_spread(&self, change: impl FnOnce(&mut SpreadReport)) {
        change(&mut self.spread.lock());
    }

    /// Has maintenance compare the stores soon, and restore what any of them lacks.
    pub fn compare_stores(&self) {
        self.maintenance.compare_stores();
    }

    /// A store is made anew in place of a lost one. It is out of service until it has what it needs
    /// for that.
    pub(crate) fn note_new_store(&self, store: StoreId) {
        self.stripe.note_new(store);
    }

    /// The stores that are out of service, as far as known.
    pub(crate) fn stores_away(&self) -> StoreSet {
        self.stripe.out_of_service()
    }

    /// The stores that are out of service. Asks all.
    pub(crate) async fn stores_out_of_service(&self) -> StoreSet {
        drop(self.stripe.status().await);
        self.stripe.out_of_service()
    }

    /// See [`Maintenance::are_whole`].
    pub(crate) fn are_stores_whole(&self) -> Option<bool> {
        self.maintenance.are_whole()
    }

    /// See [`Maintenance::has_compared_all`].
    pub(crate) async fn has_compared_all(&self) -> bool {
        self.maintenance.has_compared_all().await
    }

    /// Has the maps name the address at which others reach a node.
    async fn note_address(&self, hello: &Hello) -> Result<(), ControlError> {
        let is_new = |config: FsConfig| config.members.get(&hello.node).is_some_and(|m| m.address != hello.address);
        if !is_new(self.maps_config()?) {
            return Ok(());
        }
        let change = |config: &mut FsConfig| {
            if let Some(member) = config.members.get_mut(&hello.node) {
                member.address.clone_from(&hello.address);
            }
        };
        let changed = self.maps.change(change).await;
        changed.map(drop).map_err(|e| ControlError::Unavailable(format!("record the node's address: {e}")))
    }

    fn turn(&self, node: NodeId) -> Arc<tokio::sync::Mutex<()>> {
        self.turns.lock().entry(node).or_default().clone()
    }

    /// A random number that no session has.
    fn new_number(&self) -> u64 {
        let sessions = self.sessions.lock();
        loop {
            let number = self.host.random.next_u64();
            if number != OWN_SESSION && !sessions.by_number.contains_key(&number) {
                return number;
            }
        }
    }

    /// Begins a session: its requests are accepted from now on. Its client may take the claim
    /// already.
    async fn begin(
        &self,
        session: u64,
        hello: &Hello,
        fingerprint: [u8; 32],
        claim: &SpaceClaim,
    ) -> Result<(), ControlError> {
        let Hello { node, is_mounted, takes_stores, takes_managers, takes_votes, .. } = *hello;
        let log = client_log(node);
        {
            let turn = self.seats.turn().await;
            self.recover(&turn).await;
            let admitted = LiveSession { node, number: session, fingerprint };
            let is_in = self.seats.admit(&turn, &admitted, &self.live()).await;
            is_in.map_err(|e| ControlError::Unavailable(format!("let the node in: {e}")))?;
            self.seats.begin(node);
            let (mut sessions, now) = (self.sessions.lock(), self.host.clock.now());
            sessions.leases.begin(session, now);
            let (program, maps_epoch, is_ended) = (hello.program.clone(), 0, false);
            let begun = MemberSession {
                node,
                fingerprint,
                is_mounted,
                takes_stores,
                takes_managers,
                takes_votes,
                program,
                began: now,
                maps_epoch,
                is_ended,
            };
            sessions.by_number.insert(session, begun);
        }
        self.maintenance.join(session, log, claim).await;
        Ok(())
    }

    async fn share(&self, session: u64, log: LogId, claim: &SpaceClaim) -> Option<SpaceShare> {
        let share = self.maintenance.share(session, log, claim);
        host::timeout(&*self.host.clock, LOOK_TIME_MAX, share).await.ok().flatten()
    }

    /// Opens a log and rolls it forward. The error says why not. A node that leads no more lets the
    /// next one judge: that may let the log's writer go on.
    async fn open_log(&self, log: LogId) -> Result<LogTail, String> {
        self.lease_to_give().map_err(|e| e.to_string())?;
        self.seats.log_opens(log);
        let rolled = roll_forward(&self.stripe, self.seats.all(), log).await;
        let (tail, _) = rolled.map_err(|e| format!("{log} cannot be rolled forward: {e}"))?;
        self.seats.log_ended(&tail);
        Ok(tail)
    }

    /// Opens the managers here whose nodes are gone.
    async fn recover(&self, turn: &Turn) {
        let lost = self.seats.lost(&self.live());
        if let (false, Ok(config)) = (lost.is_empty(), self.maps_config()) {
            tracing::warn!(?lost, "the nodes of managers are gone: this node serves them");
            self.seats.change(turn, &lost, None, &config, self).await;
            *self.opened_here.lock() = Some(self.host.clock.now());
        }
    }

    /// The next manager to move, and where to; `None` is the first node.
    fn next_move(&self) -> Option<(ManagerId, Option<(KnownNode, u64)>)> {
        let now = self.host.clock.now();
        let takes = |session: &MemberSession| session.takes_managers && now >= session.began + SETTLE_TIME;
        let mut hosts = self.reachable(takes);
        let draining = self.draining();
        hosts.retain(|(at, _)| self.seats.may_serve(at.node) && !draining.contains(&at.node));
        let (places, nodes) = (self.seats.places(), hosts.iter().map(|(at, _)| at.node).collect());
        let rests = self.opened_here.lock().is_some_and(|opened| now < opened + REST_TIME);
        let (id, to) = match rests {
            true => (homeless(&places, &nodes)?, FIRST_NODE),
            false => next_move(&places, &nodes)?,
        };
        Some((id, hosts.into_iter().find(|(at, _)| at.node == to)))
    }

    /// Moves one manager, if the nodes should have others.
    async fn balance(self: Arc<Self>, turn: Turn) {
        self.recover(&turn).await;
        if let (Some((manager, to)), Ok(config)) = (self.next_move(), self.maps_config()) {
            self.seats.change(&turn, &[manager].into(), to.as_ref(), &config, &*self).await;
        }
    }

    /// Does what must follow the end of a session, and returns the node's log, opened anew. The
    /// caller has the node's turn, and has ended the session.
    async fn bury(self: &Arc<Self>, session: u64, node: NodeId) -> LogTail {
        let mut pause = TRY_AGAIN.start;
        let tail = loop {
            match self.try_bury(session, node).await {
                Ok(tail) => break tail,
                Err(error) => {
                    tracing::warn!(%node, error, "a session has ended; others wait for its files until this succeeds");
                    self.host.clock.sleep(pause).await;
                    pause = (2 * pause).min(TRY_AGAIN.end);
                }
            }
        };
        self.locks.leave(client_id(node));
        self.maintenance.leave(session).await;
        {
            let mut sessions = self.sessions.lock();
            sessions.by_number.remove(&session);
            sessions.ended_at.insert(node, self.host.clock.now());
        }
        self.host.tasks.spawn(Box::pin(self.clone().sweep()));
        tail
    }

    /// Refuses the session's requests, rolls its log forward, and frees what its client held. All
    /// of this can be repeated.
    async fn try_bury(&self, session: u64, node: NodeId) -> Result<LogTail, String> {
        let away = |e: ManagerError| e.to_string();
        self.seats.refuse(session, &self.live()).await.map_err(away)?;
        let turn = self.seats.turn().await;
        self.recover(&turn).await;
        // A manager may have moved meanwhile, and its node let the session in.
        self.seats.refuse(session, &self.live()).await.map_err(away)?;
        let tail = self.open_log(client_log(node)).await?;
        self.seats.expel(&turn, node, &self.live()).await.map_err(away)?;
        Ok(tail)
    }

    /// Removes files that have no name and that nobody has open.
    async fn sweep(self: Arc<Self>) {
        let _one_at_a_time = self.sweeping.lock().await;
        let mut pause = TRY_AGAIN.start;
        while !self.stopped.load(SeqCst) {
            let swept = async {
                let count = self.client.sweep_orphans().await?;
                self.client.sync().await?;
                Ok::<u64, types::FsError>(count)
            };
            match swept.await {
                Ok(0) => return,
                Ok(count) => {
                    tracing::info!(count, "removed files that an ended session had open without a name");
                    // The managers list them until they have applied this.
                    return self.client.settle().await;
                }
                // A manager may be on its way.
                Err(e) => tracing::info!("files without a name of an ended session are not removed yet: {e}"),
            }
            self.host.clock.sleep(pause).await;
            pause = (2 * pause).min(TRY_AGAIN.end);
        }
    }

    /// Declares sessions dead, and finishes what a hello that was given up has left.
    async fn watch(self: Arc<Self>) {
        while !self.stopped.load(SeqCst) {
            self.host.clock.sleep(self.until_next_look()).await;
            let ended = self.end_expired(self.host.clock.now());
            self.seats.look_at_nodes(&self.live());
            for (session, node) in ended {
                if let Ok(turn) = self.turn(node).try_lock_owned() {
                    self.host.tasks.spawn(Box::pin(self.clone().finish(session, node, turn)));
                }
            }
            if self.seats.can_move()
                && (self.next_move().is_some() || !self.seats.lost(&self.live()).is_empty())
                && let Some(turn) = self.seats.try_turn()
            {
                self.host.tasks.spawn(Box::pin(self.clone().balance(turn)));
            }
        }
    }

    /// Time until the next look at the sessions. Others wait for what a node holds until its lease
    /// is seen to be over.
    fn until_next_look(&self) -> Duration {
        let (end, now) = (self.sessions.lock().leases.first_end(), self.host.clock.now());
        end.map_or(TICK, |end| end.saturating_sub(now).min(TICK))
    }

    /// Ends the sessions whose lease is over. Returns all that have ended and are not buried.
    fn end_expired(&self, now: Duration) -> Vec<(u64, NodeId)> {
        let mut gone = BTreeSet::new();
        let ended = {
            let mut sessions = self.sessions.lock();
            let expired: Vec<u64> = sessions.leases.expired(now).collect();
            for number in expired {
                if let Some(session) = sessions.by_number.get(&number) {
                    tracing::warn!(node = %session.node, "the node has not renewed its lease: its session ends");
                    gone.insert(session.node);
                }
                sessions.end(number);
            }
            let ended = sessions.by_number.iter().filter(|(_, session)| session.is_ended);
            ended.map(|(number, session)| (*number, session.node)).collect()
        };
        if !gone.is_empty() {
            self.give_up_stores(&gone);
        }
        ended
    }

    /// Has no node wait for the stores of these nodes.
    fn give_up_stores(&self, gone: &BTreeSet<NodeId>) {
        let Ok(config) = self.maps_config() else { return };
        let stores: StoreSet = config.stores().filter(|store| gone.contains(&config.place(*store))).collect();
        if stores.iter().next().is_some() {
            self.stripe.note_gone(stores);
            self.seats.call_all();
        }
    }

    async fn finish(self: Arc<Self>, session: u64, node: NodeId, _turn: OwnedMutexGuard<()>) {
        if self.sessions.lock().by_number.contains_key(&session) {
            self.bury(session, node).await;
        }
    }
}
