//! The first node, as a joined node reaches it: over one link. And the stores at other nodes.

use crate::node::identity::{NodeIdentity, address_of};
use crate::node::joining::{DialError, JoinDialer};
use crate::node::rack::StoreRack;
use crate::node::whereabouts::{Whereabouts, address, ask_for_news};
use anyhow::Context;
use cluster::config::FIRST_NODE;
use cluster::control::{ControlAnswer, ControlError, ControlRequest};
use cluster::host_service::ManagerHost;
use cluster::manager_ways::ManagerWays;
use cluster::member::FirstNode;
use cluster::remote_locks::RemoteLocks;
use cluster::shared_locks::LockWay;
use cluster::switch::SwitchStore;
use cluster::{FsConfig, KnownNode};
use host::Host;
use link::wire::Refused;
use link::{Address, ClientKeys, LinkError, Message, NodeLink, OrderedLane, ask_once, kinds};
use manager::api::{Manager, TokenHolder};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use storage::api::{Storage, StorageError};
use storage::calls::{Ask, ServedStores};
use storage::tcp::LinkedStore;
use storage::wire::{StoreAnswer, StoreName, StoreRequest};
use tokio::sync::watch;
use types::{BoxFuture, ManagerId, NodeId, StoreId};

/// How long a request to join may take at one address.
const JOIN_TIME_MAX: Duration = Duration::from_secs(20);
/// Time between two questions to other nodes where the first node is.
const SEEK_PERIOD: Duration = Duration::from_secs(1);
/// The refusal where this node needs a session with the machine that leads, and has none.
pub const NO_SESSION: &str =
    "there is no session with the machine that leads: try again when `starling status` says *session up*";
/// The refusal where the machine that leads answers with something else than was asked for.
pub const OTHER_ANSWER: &str = "the machine that leads gave another answer: let both have the same version of starling";

/// Carries requests to join.
pub struct LinkDialer(pub Host);

impl JoinDialer for LinkDialer {
    fn ask(&self, at: &str, authority: [u8; 32], request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, DialError>> {
        let (host, at) = (self.0.clone(), at.to_string());
        Box::pin(async move {
            let not_sent = |why: String| DialError::NotSent(why);
            let keys = ClientKeys::joining(authority).map_err(|e| not_sent(e.to_string()))?;
            let address = address(&at, &keys).ok_or_else(|| not_sent("not HOST:PORT".into()))?;
            match ask_once(&host, &address, kinds::JOIN, Message::of_head(request), JOIN_TIME_MAX).await {
                Ok(answer) => Ok(answer.head),
                Err(e) if Address::is_about_keys(&e) => {
                    Err(not_sent("another file system listens there: ask for another invitation".into()))
                }
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Err(not_sent(e.to_string())),
                Err(e) => Err(DialError::Unknown(e.to_string())),
            }
        })
    }
}

/// The first node, and the stores at other nodes.
pub struct RemoteFirstNode {
    host: Host,
    link: Arc<NodeLink>,
    whereabouts: Arc<Whereabouts>,
    /// This node, and its own stores.
    own: (NodeId, Arc<StoreRack>),
    /// The managers that this node serves.
    hosted: Arc<ManagerHost>,
    /// The keys with which it connects to other members, and the fingerprint of its certificate.
    keys: ClientKeys,
    fingerprint: [u8; 32],
    /// The ways to managers.
    managers: ManagerWays,
    /// The newest maps that an earlier process of this node had.
    earlier: Option<FsConfig>,
    /// True while the first node does not answer.
    in_trouble: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    state: Mutex<RemoteState>,
}

/// A store of another member: reached directly, or through the first node while that is not
/// possible.
struct NearestWay {
    link: Arc<NodeLink>,
    direct: LinkedStore,
    through_first: LinkedStore,
}

impl Ask for NearestWay {
    fn ask(&self, request: StoreRequest, len: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        match self.link.is_up() {
            true => self.direct.ask(request, len),
            false => self.through_first.ask(request, len),
        }
    }
}

/// Where a store is: the node, and how it is reached if that is a member.
type Route = (NodeId, Option<KnownNode>);

#[derive(Default)]
struct RemoteState {
    /// The configuration that the newest session got.
    config: Option<FsConfig>,
    /// The stores of the newest session, and where each is.
    stores: BTreeMap<StoreId, (Route, SwitchStore)>,
    /// The connections to other members.
    links: Vec<(KnownNode, Arc<NodeLink>)>,
    /// The way to the lock table of each session.
    locks: HashMap<u64, Arc<RemoteLocks>>,
}

impl RemoteFirstNode {
    /// Keeps connections to the first node. While it cannot be reached, asks other nodes where it
    /// is.
    pub async fn connect(
        host: &Host,
        node: NodeId,
        whereabouts: Arc<Whereabouts>,
        keys: &NodeIdentity,
        rack: Arc<StoreRack>,
        hosted: Arc<ManagerHost>,
        earlier: Option<FsConfig>,
    ) -> anyhow::Result<Arc<RemoteFirstNode>> {
        let fingerprint = join::fingerprint_of(&keys.certificate).context("the certificate of this node")?;
        let keys = keys.for_connections()?;
        let (link, tried) = NodeLink::keep(host, whereabouts.addresses(), "the first node".into(), None);
        tried.await;
        let own = (node, rack);
        let (host, managers, state) = (host.clone(), ManagerWays::new(host.clone()), Mutex::default());
        let first = Arc::new(RemoteFirstNode {
            host,
            link,
            whereabouts,
            own,
            hosted,
            keys,
            fingerprint,
            managers,
            earlier,
            in_trouble: OnceLock::new(),
            state,
        });
        first.host.tasks.spawn(Box::pin(seek(Arc::downgrade(&first))));
        let changes = first.own.1.changes();
        first.host.tasks.spawn(Box::pin(follow_rack(Arc::downgrade(&first), changes)));
        Ok(first)
    }

    /// Where the first node is.
    pub fn addresses(&self) -> Vec<String> {
        self.whereabouts.known()
    }

    /// Has other nodes be asked where the first node is also while this is true: a connection may
    /// lead to one that is the first node no longer, and does not say so.
    pub fn ask_while(&self, in_trouble: impl Fn() -> bool + Send + Sync + 'static) {
        self.in_trouble.get_or_init(|| Box::new(in_trouble));
    }

    /// The nodes to ask where the first node is, if it cannot be reached, or gives no lease.
    fn to_ask(&self) -> Vec<KnownNode> {
        let in_trouble = self.in_trouble.get().is_some_and(|in_trouble| in_trouble());
        if self.link.is_up() && !in_trouble {
            return Vec::new();
        }
        let state = self.state();
        let known = state.config.as_ref().or(self.earlier.as_ref());
        known.into_iter().flat_map(FsConfig::reachable).filter(|at| at.node != self.own.0).collect()
    }

    /// Where to reach a store.
    fn route(config: &FsConfig, store: StoreId) -> Route {
        let is_behind_first = config.through_first.contains(&store);
        let node = if is_behind_first { FIRST_NODE } else { config.place(store) };
        (node, config.reach(node))
    }

    /// The store at a place.
    fn store_at(&self, state: &mut RemoteState, (node, reached): &Route, name: StoreName) -> Arc<dyn Storage> {
        if *node == self.own.0
            && let Some(own) = self.own.1.store(name)
        {
            return own;
        }
        let through_first = LinkedStore::new(self.link.clone(), name);
        let direct = reached.as_ref().filter(|_| *node != FIRST_NODE && *node != self.own.0);
        let Some(link) = direct.and_then(|at| self.link_to(state, at)) else { return Arc::new(through_first) };
        let direct = LinkedStore::new(link.clone(), name);
        Arc::new(NearestWay { link, direct, through_first })
    }

    /// The connection to another member; `None` if its address cannot be read.
    fn link_to(&self, state: &mut RemoteState, at: &KnownNode) -> Option<Arc<NodeLink>> {
        if let Some((_, link)) = state.links.iter().find(|(known, _)| known == at) {
            return Some(link.clone());
        }
        let address = address_of(at, &self.keys).ok()?;
        // This waits for no connection. Until there is one, the first node passes requests on.
        let (link, tried) = NodeLink::keep(&self.host, address, at.node.to_string(), None);
        drop(tried);
        state.links.push((at.clone(), link.clone()));
        Some(link)
    }

    /// The lane to the managers of a node, if its address can be read.
    fn lane_to(&self, state: &mut RemoteState, at: Option<&KnownNode>) -> Option<Arc<dyn OrderedLane>> {
        match at {
            None => Some(self.link.ordered()),
            Some(at) if at.node == self.own.0 => Some(self.hosted.lane(self.fingerprint)),
            Some(at) => Some(self.link_to(state, at)?.ordered()),
        }
    }

    /// Drops the connections that nothing uses any more.
    fn drop_links(&self, state: &mut RemoteState) {
        let stores = state.stores.values().filter_map(|((_, used), _)| used.clone());
        let used: Vec<KnownNode> = stores.chain(self.managers.all_nodes()).collect();
        state.links.retain(|(at, _)| used.contains(at));
    }

    /// Has requests to this node's own stores go to what its folders have now.
    fn reach_own_stores(&self) {
        let mut state = self.state();
        let Some(fs) = state.config.as_ref().map(|config| config.fs) else { return };
        let stores = std::mem::take(&mut state.stores);
        for (id, (route, store)) in stores.iter().filter(|(_, ((node, _), _))| *node == self.own.0) {
            store.set(self.store_at(&mut state, route, StoreName { fs, store: *id }));
        }
        state.stores = stores;
    }

    /// The configuration of the file system; `None` before the first session.
    pub fn config(&self) -> Option<FsConfig> {
        self.state().config.clone()
    }

    fn state(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks other nodes where the first node is, while that is in question. Ends when it is dropped.
async fn seek(first: Weak<RemoteFirstNode>) {
    loop {
        let Some(first) = first.upgrade() else { return };
        // They are asked although there is a connection: it leads to a node that gives no lease.
        let is_up = first.link.is_up();
        // What one of them knows does not wait for another one, which may be gone.
        for at in first.to_ask() {
            let (host, keys, known) = (first.host.clone(), first.keys.clone(), first.whereabouts.clone());
            first.host.tasks.spawn(Box::pin(async move {
                let news = ask_for_news(&host, &at, &keys, &known.known(), is_up).await;
                if let Err(error) = known.take(news).await {
                    tracing::warn!(error = format!("{error:#}"), "where the first node is");
                }
            }));
        }
        let clock = first.host.clock.clone();
        drop(first);
        clock.sleep(SEEK_PERIOD).await;
    }
}

/// Follows the stores that this node makes and gives up. Ends when it is dropped.
async fn follow_rack(first: Weak<RemoteFirstNode>, mut changes: watch::Receiver<()>) {
    while changes.changed().await.is_ok() {
        let Some(first) = first.upgrade() else { return };
        first.reach_own_stores();
    }
}

impl RemoteFirstNode {
    /// Has the first node carry out a command. Returns what was done, as JSON.
    ///
    /// # Errors
    /// Why nothing was done, or that it is unknown.
    pub async fn order(&self, order: String) -> Result<String, String> {
        match self.link.control(ControlRequest::Order(order).encode().to_vec()).await {
            Ok(answer) => match ControlAnswer::decode(&answer) {
                Ok(ControlAnswer::Done(done)) => done,
                Ok(_) => Err(OTHER_ANSWER.into()),
                Err(why) => Err(format!("nothing was done ({why}): try again")),
            },
            Err(LinkError::Lost) => {
                Err("the connection to the node that leads broke, and the command may have been carried out: \
                                         see `starling nodes`, and give it again"
                    .into())
            }
            Err(why) => {
                Err(format!("nothing was done, since the node that leads cannot be reached ({why}): try again"))
            }
        }
    }
}

impl FirstNode for RemoteFirstNode {
    fn control(&self, request: ControlRequest) -> BoxFuture<Result<ControlAnswer, ControlError>> {
        let asked = self.link.control(request.encode().to_vec());
        Box::pin(async move {
            match asked.await {
                Ok(answer) => ControlAnswer::decode(&answer),
                Err(LinkError::Refused(Refused::NotAdmitted)) => Err(ControlError::NotMember),
                Err(e) => Err(ControlError::Unavailable(format!("the first node: {e}"))),
            }
        })
    }

    fn managers(&self, session: u64, count: usize) -> Vec<Arc<dyn Manager>> {
        self.managers.managers(session, count, &self.link.ordered())
    }

    fn seat(&self, session: u64, managers: &[(ManagerId, Option<KnownNode>)]) {
        let state = &mut *self.state();
        self.managers.seat(session, managers, |at| self.lane_to(state, at));
        self.drop_links(state);
    }

    fn unseat(&self, session: u64, managers: &[ManagerId]) {
        self.managers.unseat(session, managers);
    }

    fn moved(&self) -> BoxFuture<()> {
        self.managers.moved()
    }

    fn unreached(&self, session: u64) -> BTreeSet<NodeId> {
        let state = self.state();
        let is_up = |at: &KnownNode| state.links.iter().any(|(known, link)| known == at && link.is_up());
        let nodes = self.managers.nodes(session).into_iter();
        nodes.filter(|at| at.node != self.own.0 && !is_up(at)).map(|at| at.node).collect()
    }

    fn stores(&self, _: u64, config: &FsConfig) -> Vec<(StoreId, Arc<dyn Storage>)> {
        let mut state = self.state();
        state.config = Some(config.clone());
        state.stores.clear();
        for store in config.stores() {
            let route = Self::route(config, store);
            let there = self.store_at(&mut state, &route, StoreName { fs: config.fs, store });
            state.stores.insert(store, (route, SwitchStore::new(there)));
        }
        let all = state.stores.iter();
        all.map(|(id, (_, store))| (*id, Arc::new(store.clone()) as Arc<dyn Storage>)).collect()
    }

    fn can_resume(&self, session: u64) -> bool {
        self.managers.can_go_on(session)
    }

    fn follow(&self, config: &FsConfig) {
        let mut state = self.state();
        state.config = Some(config.clone());
        let mut stores = std::mem::take(&mut state.stores);
        for (id, (route, store)) in &mut stores {
            let next = Self::route(config, *id);
            if next != *route {
                store.set(self.store_at(&mut state, &next, StoreName { fs: config.fs, store: *id }));
                *route = next;
            }
        }
        state.stores = stores;
        self.drop_links(&mut state);
    }

    fn locks(&self, session: u64) -> Arc<dyn LockWay> {
        let locks = RemoteLocks::new(&self.host, self.link.ordered(), session);
        self.state().locks.insert(session, locks.clone());
        locks
    }

    fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>) {
        self.managers.recalls(session, holder, self.link.ordered());
    }

    fn end(&self, session: u64) {
        let locks = self.state().locks.remove(&session);
        locks.inspect(|locks| locks.end());
        self.managers.end(session);
    }
}
