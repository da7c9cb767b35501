//! A [`Node`]'s store as another machine sees it: over connections, as `storage::tcp` makes them
//! over a network.
//!
//! Requests and answers travel as the messages of [`storage::wire`]. The code that answers them
//! over TCP answers them here. Connections also behave alike:
//!
//! - A connection ends when the store's process does, or when nothing comes back for [`DEAD_TIME`].
//!   Requests under way then end as `Unavailable`: they may have been done or not. They may even be
//!   done later, when the caller has long gone.
//! - Until another connection stands, at whose end the store is, requests fail at once.

use crate::node::{Listener, Node};
use host::sim::Machine;
use host::{Clock, Either, SplitMix64, first, timeout};
use link::Message;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Presence, RemoteStorage, StorageError, StoreIdentity};
use storage::calls::{Ask, ServedStores, answer, is_done, what_is_there};
use storage::wire::{StoreAnswer, StoreName, StoreRequest};
use tokio::sync::{oneshot, watch};
use types::{BoxFuture, FsUuid, StoreId};

/// How long a request outside of a connection may take, and the first one of a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// How long making a store may take.
const INITIALISE_TIME_MAX: Duration = Duration::from_secs(60);
/// Time without an answer after which a connection counts as broken.
const DEAD_TIME: Duration = Duration::from_secs(10);
/// Longest wait for one answer: a network loses single messages only together with the connection.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed attempt to connect; doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest such pause.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// A connection, as long as it stands.
struct Connection {
    node: Arc<Node>,
    to: Listener,
}

impl Connection {
    fn new(node: &Arc<Node>, from: &Machine) -> Option<Arc<Connection>> {
        let to = node.listener(from)?;
        Some(Arc::new(Connection { node: node.clone(), to }))
    }

    /// Sends a request. Waits for ever if the request or its answer is lost.
    async fn ask(self: Arc<Self>, to: StoreName, request: StoreRequest) -> StoreAnswer {
        let (message, lag, me) = (request.encode(to), self.node.lag(), self.clone());
        let served = self.to.link.call(move || {
            let (message, me) = (message.clone(), me.clone());
            async move {
                me.to.machine.host().clock.sleep(lag).await;
                me.serve(message).await
            }
        });
        let Message { head, tail } = served.await;
        StoreAnswer::decode(&head, tail).expect("what a store encodes can be decoded")
    }

    /// Serves a request at the store's end.
    async fn serve(&self, message: Message) -> Message {
        let decoded = StoreRequest::decode(&message.head, message.tail);
        let (to, request) = decoded.expect("what a client encodes can be decoded");
        let stores: Arc<dyn ServedStores> = self.to.site.clone();
        answer(&stores, to, request).await
    }

    /// Waits until the client notices that the connection is broken.
    async fn broken(&self, clock: &dyn Clock, random: &SplitMix64) {
        let dead = async {
            loop {
                clock.sleep(DEAD_TIME / 4).await;
                if timeout(clock, DEAD_TIME, self.to.link.call(|| async {})).await.is_err() {
                    return;
                }
            }
        };
        match first(dead, self.to.machine.crashed()).await {
            // When a process ends, its connections are closed. When a machine crashes, it says
            // nothing.
            Either::Right(()) if random.chance(1, 3) => clock.sleep(DEAD_TIME).await,
            _ => {}
        }
    }
}

type Standing = Option<Arc<Connection>>;

/// A storage server on another machine.
pub struct Remote {
    node: Arc<Node>,
    from: Machine,
    /// The store that is wanted, and the connection to it.
    wanted: Mutex<Option<(StoreName, watch::Receiver<Standing>)>>,
}

impl Remote {
    /// A storage server without a connection yet, for roles on `from`.
    pub fn new(node: Arc<Node>, from: Machine) -> Arc<Remote> {
        Arc::new(Remote { node, from, wanted: Mutex::default() })
    }

    /// One request over a connection of its own.
    fn ask_once(&self, request: StoreRequest, time: Duration) -> BoxFuture<io::Result<StoreAnswer>> {
        let (clock, connection) = (self.from.host().clock, Connection::new(&self.node, &self.from));
        Box::pin(async move {
            let connection = connection.ok_or(io::ErrorKind::ConnectionRefused)?;
            Ok(timeout(&*clock, time, connection.ask(StoreName::NONE, request))
                .await
                .map_err(|_| io::ErrorKind::TimedOut)?)
        })
    }
}

impl Ask for Remote {
    fn ask(&self, request: StoreRequest, _: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        let wanted = self.wanted.lock().clone();
        let clock = self.from.host().clock;
        let connection = wanted.as_ref().and_then(|(_, standing)| standing.borrow().clone());
        Box::pin(async move {
            let (Some((name, mut standing)), Some(connection)) = (wanted, connection) else {
                return Err(StorageError::Unavailable);
            };
            let broken = standing.wait_for(|now| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &connection)));
            let asked = timeout(&*clock, ANSWER_TIME_MAX, connection.clone().ask(name, request));
            match first(asked, broken).await {
                Either::Left(Ok(answer)) => Ok(answer),
                _ => Err(StorageError::Unavailable),
            }
        })
    }
}

impl RemoteStorage for Remote {
    fn presence(&self) -> BoxFuture<io::Result<Presence>> {
        let asked = self.ask_once(StoreRequest::Presence, 2 * CONNECT_TIME_MAX);
        Box::pin(async move { what_is_there(asked.await?) })
    }

    fn initialise(&self, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        let asked = self.ask_once(StoreRequest::Initialise(identity), INITIALISE_TIME_MAX);
        Box::pin(async move { is_done(asked.await?) })
    }

    fn expect(&self, fs: FsUuid, store: StoreId) -> BoxFuture<()> {
        let (tell, standing) = watch::channel(None);
        let (first_tried, tried) = oneshot::channel();
        let (node, from, name) = (self.node.clone(), self.from.clone(), StoreName { fs, store });
        self.from.host().tasks.spawn(Box::pin(async move {
            let kept = keep(node, from, name, &tell, first_tried);
            first(kept, tell.closed()).await;
        }));
        *self.wanted.lock() = Some((name, standing));
        Box::pin(async move {
            // This ends even if the first attempt to connect fails.
            let _ = tried.await;
        })
    }
}

/// Keeps a connection to the store standing. Never ends.
async fn keep(
    node: Arc<Node>,
    from: Machine,
    name: StoreName,
    tell: &watch::Sender<Standing>,
    first_tried: oneshot::Sender<()>,
) {
    let host = from.host();
    let random = SplitMix64::new(host.random.next_u64());
    let (mut first_tried, mut backoff) = (Some(first_tried), BACKOFF_MIN);
    loop {
        let connection = Connection::new(&node, &from);
        let is_here = match &connection {
            Some(connection) => {
                let asking = connection.clone().ask(name, StoreRequest::IsHere);
                timeout(&*host.clock, CONNECT_TIME_MAX, asking).await
            }
            None => Ok(StoreAnswer::Refused(StorageError::Unavailable)),
        };
        let stands = is_here == Ok(StoreAnswer::Done);
        if stands {
            tell.send_replace(connection.clone());
        }
        // Only the first attempt is waited for.
        let _ = first_tried.take().map(|tried| tried.send(()));
        if let (Some(connection), true) = (connection, stands) {
            connection.broken(&*host.clock, &random).await;
            tell.send_replace(None);
            backoff = BACKOFF_MIN;
        }
        host.clock.sleep(backoff).await;
        backoff = (2 * backoff).min(BACKOFF_MAX);
    }
}
