//! The ways of a node's clients to managers, wherever these are, and the recalls that come back.

use crate::config::KnownNode;
use crate::remote_manager::{Alive, RemoteManager, begin_recalls};
use crate::switch_lane::SwitchLane;
use host::Host;
use link::OrderedLane;
use manager::api::{Manager, TokenHolder};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;
use types::{BoxFuture, ManagerId, NodeId};

/// A lane to the node that serves a manager.
pub type ToManager = Arc<dyn OrderedLane>;

/// The way to one manager.
struct Way {
    manager: Arc<RemoteManager>,
    lane: SwitchLane,
    /// The node that serves it; `None`: the first node.
    at: Option<KnownNode>,
}

#[derive(Default)]
struct SessionWays {
    managers: Vec<Way>,
    holder: Option<Arc<dyn TokenHolder>>,
    /// The tasks that receive recalls, by node; `None`: from the first node.
    recalls: BTreeMap<Option<NodeId>, Alive>,
}

/// The ways to managers, of each session.
pub struct ManagerWays {
    host: Host,
    /// Notified when a node says that a manager is not there any more.
    moved: Arc<Notify>,
    sessions: Mutex<HashMap<u64, SessionWays>>,
}

impl ManagerWays {
    /// No session yet.
    pub fn new(host: Host) -> ManagerWays {
        ManagerWays { host, moved: Arc::default(), sessions: Mutex::default() }
    }

    /// The managers of a new session, all of them at the first node.
    pub fn managers(&self, session: u64, count: usize, to_first: &ToManager) -> Vec<Arc<dyn Manager>> {
        let way = |index| {
            let lane = SwitchLane::new();
            lane.set(Some(to_first.clone()));
            let (below, moved) = (Arc::new(lane.clone()), self.moved.clone());
            let manager = RemoteManager::new(&self.host, below, session, ManagerId::new(index), moved);
            Way { manager, lane, at: None }
        };
        let ways: Vec<Way> = (0..).take(count).map(way).collect();
        let managers = ways.iter().map(|way| way.manager.clone() as Arc<dyn Manager>).collect();
        self.sessions.lock().insert(session, SessionWays { managers: ways, ..Default::default() });
        managers
    }

    fn receive(&self, lane: ToManager, session: u64, holder: Arc<dyn TokenHolder>) -> Alive {
        begin_recalls(&self.host, lane, session, holder, self.moved.clone())
    }

    /// Recalls for a session go to `holder` from now on, and the first node counts them anew.
    pub fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>, to_first: ToManager) {
        let alive = self.receive(to_first, session, holder.clone());
        let mut sessions = self.sessions.lock();
        let ways = sessions.entry(session).or_default();
        ways.holder = Some(holder);
        ways.recalls.insert(None, alive);
    }

    /// These managers are at these nodes from now on. `lane_to` gives the lane to a node, if it can
    /// be reached at all.
    pub fn seat(
        &self,
        session: u64,
        managers: &[(ManagerId, Option<KnownNode>)],
        mut lane_to: impl FnMut(Option<&KnownNode>) -> Option<ToManager>,
    ) {
        let mut sessions = self.sessions.lock();
        let Some(SessionWays { managers: ways, holder, recalls }) = sessions.get_mut(&session) else { return };
        let mut receiving: BTreeMap<NodeId, Option<ToManager>> = BTreeMap::new();
        for (id, at) in managers {
            let Some(way) = ways.get_mut(usize::from(id.raw())) else { continue };
            way.at.clone_from(at);
            way.lane.set(lane_to(at.as_ref()));
            if let Some(at) = at {
                receiving.entry(at.node).or_insert_with(|| lane_to(Some(at)));
            }
        }
        let serves = |node: &NodeId| ways.iter().any(|way| way.at.as_ref().is_some_and(|at| at.node == *node));
        recalls.retain(|from, _| from.as_ref().is_none_or(serves));
        for (node, lane) in receiving {
            // A node that serves managers again counts recalls anew.
            if let (Some(lane), Some(holder)) = (lane, holder.clone()) {
                recalls.insert(Some(node), self.receive(lane, session, holder));
            }
        }
    }

    /// Sends nothing to these managers, until they are seated.
    pub fn unseat(&self, session: u64, managers: &[ManagerId]) {
        let sessions = self.sessions.lock();
        let ways = sessions.get(&session).into_iter().flat_map(|ways| (0..).map(ManagerId::new).zip(&ways.managers));
        ways.filter(|(id, _)| managers.contains(id)).for_each(|(_, way)| way.lane.set(None));
    }

    /// Waits until a node says that a manager is not there any more.
    pub fn moved(&self) -> BoxFuture<()> {
        let moved = self.moved.clone();
        Box::pin(async move { moved.notified().await })
    }

    /// The nodes that serve managers, besides the first one.
    pub fn nodes(&self, session: u64) -> Vec<KnownNode> {
        let sessions = self.sessions.lock();
        let ways = sessions.get(&session).into_iter().flat_map(|ways| &ways.managers);
        ways.filter_map(|way| way.at.clone()).collect()
    }

    /// The nodes that serve managers to any session, besides the first one.
    pub fn all_nodes(&self) -> Vec<KnownNode> {
        let sessions: Vec<u64> = self.sessions.lock().keys().copied().collect();
        sessions.into_iter().flat_map(|session| self.nodes(session)).collect()
    }

    /// True if no manager has ended the session.
    pub fn can_go_on(&self, session: u64) -> bool {
        let sessions = self.sessions.lock();
        sessions.get(&session).is_some_and(|ways| ways.managers.iter().all(|way| !way.manager.is_ended()))
    }

    /// The session is over.
    pub fn end(&self, session: u64) {
        let ended = self.sessions.lock().remove(&session);
        ended.iter().flat_map(|ways| &ways.managers).for_each(|way| way.manager.end());
    }
}
