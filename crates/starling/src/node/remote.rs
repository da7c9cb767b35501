//! The first node, as a joined node reaches it: over one link.

use crate::location::split_port;
use crate::node::identity::NodeIdentity;
use crate::node::joined::AboutNode;
use crate::node::joining::{DialError, JoinDialer};
use crate::usage;
use cluster::FsConfig;
use cluster::control::{ControlAnswer, ControlError, ControlRequest};
use cluster::member::FirstNode;
use cluster::remote_locks::RemoteLocks;
use cluster::remote_manager::{RemoteManager, receive_recalls};
use cluster::shared_locks::LockWay;
use host::Host;
use link::wire::Refused;
use link::{Address, ClientKeys, LinkError, Message, NodeLink, ask_once, kinds};
use manager::api::{Manager, TokenHolder};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage::api::Storage;
use storage::tcp::LinkedStore;
use storage::wire::StoreName;
use tokio::task::JoinHandle;
use types::{BoxFuture, ManagerId, StoreId};

/// How long a request to join may take at one address.
const JOIN_TIME_MAX: Duration = Duration::from_secs(20);

fn address(text: &str, keys: &ClientKeys) -> Option<Address> {
    let (host, port) = split_port(text)?;
    Some(Address { host: host.to_string(), port, keys: Some(keys.clone()) })
}

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

/// The first node.
pub struct RemoteFirstNode {
    host: Host,
    link: Arc<NodeLink>,
    state: Mutex<RemoteState>,
}

#[derive(Default)]
struct RemoteState {
    /// The configuration that the newest session got.
    config: Option<FsConfig>,
    /// The managers of each session.
    managers: HashMap<u64, Vec<Arc<RemoteManager>>>,
    /// The way to the lock table of each session.
    locks: HashMap<u64, Arc<RemoteLocks>>,
    /// The tasks that receive the recalls of each session.
    recalls: HashMap<u64, JoinHandle<()>>,
}

impl RemoteFirstNode {
    /// Keeps connections to the first node, at the first of its addresses that can be reached now,
    /// or else at the first one.
    pub async fn connect(host: &Host, about: &AboutNode, keys: &NodeIdentity) -> anyhow::Result<Arc<RemoteFirstNode>> {
        let made = ClientKeys::new(keys.authority.as_bytes(), keys.certificate.as_bytes(), keys.key.as_bytes());
        let keys = made.map_err(|e| usage(format!("the keys of this node: {e}: restore them from a copy")))?;
        let mut chosen = None;
        for text in &about.first_node {
            let address = address(text, &keys).ok_or_else(|| usage(format!("node.json: {text} is not HOST:PORT")))?;
            let (link, tried) = NodeLink::keep(host, address, "the first node".into(), None);
            tried.await;
            let is_up = link.is_up();
            if is_up || chosen.is_none() {
                chosen = Some(link);
            }
            if is_up {
                break;
            }
        }
        let link = chosen.ok_or_else(|| usage("node.json names no address of the first node"))?;
        Ok(Arc::new(RemoteFirstNode { host: host.clone(), link, state: Mutex::default() }))
    }

    /// The configuration of the file system; `None` before the first session.
    pub fn config(&self) -> Option<FsConfig> {
        self.state().config.clone()
    }

    fn state(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let manager = |index| RemoteManager::new(&self.host, self.link.ordered(), session, ManagerId::new(index));
        let managers: Vec<_> = (0..).take(count).map(manager).collect();
        self.state().managers.insert(session, managers.clone());
        managers.into_iter().map(|manager| manager as Arc<dyn Manager>).collect()
    }

    fn stores(&self, _: u64, config: &FsConfig) -> Vec<(StoreId, Arc<dyn Storage>)> {
        self.state().config = Some(config.clone());
        let store = |store| {
            let linked = LinkedStore::new(self.link.clone(), StoreName { fs: config.fs, store });
            (store, Arc::new(linked) as Arc<dyn Storage>)
        };
        config.stores().map(store).collect()
    }
    fn locks(&self, session: u64) -> Arc<dyn LockWay> {
        let locks = RemoteLocks::new(&self.host, self.link.ordered(), session);
        self.state().locks.insert(session, locks.clone());
        locks
    }

    fn recalls(&self, session: u64, holder: Arc<dyn TokenHolder>) {
        let receiving = receive_recalls(self.host.clone(), self.link.ordered(), session, holder);
        self.state().recalls.insert(session, tokio::spawn(receiving));
    }

    fn end(&self, session: u64) {
        let (managers, locks, recalls) = {
            let mut state = self.state();
            (state.managers.remove(&session), state.locks.remove(&session), state.recalls.remove(&session))
        };
        locks.inspect(|locks| locks.end());
        managers.into_iter().flatten().for_each(|manager| manager.end());
        if let Some(recalls) = recalls {
            recalls.abort();
        }
    }
}
