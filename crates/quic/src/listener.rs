//! The home's end: accepts connections from peers that prove a key, and hands their requests to a
//! [`Service`].
//!
//! Any machine can reach the listener, so everything is bounded: connections, handshakes under way,
//! connections of one peer, requests and bytes of one connection, and the time to the first
//! request. A connection gets less of all that until its first request is answered. Peers that the
//! service does not know share a few connections, for a short time. They can ask to enroll, and
//! cannot keep known peers out.

use crate::count;
use crate::identity::Identity;
use crate::stream::{Background, Close, Outgoing, PUSH_PRIORITY, Unread, give_up, read_request};
use crate::tls::key_of_certificate;
use crate::transport::{self, ConfigError, DOWN_WINDOW_BYTES};
use bytes::Bytes;
use parking_lot::Mutex;
use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream, TokioRuntime, WriteError};
use roam_proto::channel::{Lost, MESSAGE_LEN_MAX, PeerKey, Push, Service, Session};
use rustls::pki_types::CertificateDer;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};
use tokio::time::{sleep, timeout};

/// Most connections at a time. Connections that have ended count while they still answer requests.
/// The listener refuses further ones.
const CONNECTION_COUNT_MAX: usize = 256;
/// Most connections of one peer. A further one replaces the oldest, which has probably lost its
/// other end.
const PEER_CONNECTION_COUNT_MAX: usize = 4;
/// Most connections of peers that the service does not know. A further one replaces the oldest.
const STRANGER_COUNT_MAX: usize = 32;
/// Most handshakes under way. A client has to try further ones again.
const HANDSHAKE_COUNT_MAX: usize = 64;
/// From this number of handshakes under way on, clients first have to prove their address, which
/// costs them a round trip.
const UNPROVEN_HANDSHAKE_COUNT_MAX: usize = 16;
/// How long a handshake may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(60);
/// A known peer must send its first request within this time after the handshake. A peer that is
/// still unknown by then loses its connection, even if it has sent requests.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(120);
/// Most long requests of one connection that have arrived in part. This bounds the memory for them.
const LONG_REQUEST_COUNT_MAX: usize = 4;
/// Most bytes that wait to be pushed on one connection. A client that falls further behind loses
/// its connection.
const PUSH_QUEUE_BYTES_MAX: usize = 4 << 20;
/// What a pushed message costs of [`PUSH_QUEUE_BYTES_MAX`] beyond its own bytes.
const PUSH_OVERHEAD_BYTES: usize = 128;
/// How long [`Listener::close`] waits until clients are told and requests are answered.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// Why a listener could not start.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address cannot be used.
    #[error("cannot listen on UDP {address}: {error}: choose another address or port")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The key cannot be used.
    #[error("the key cannot be used: {0}")]
    Key(String),
}

impl From<ConfigError> for ListenError {
    fn from(error: ConfigError) -> ListenError {
        ListenError::Key(error.to_string())
    }
}

/// A home's socket. Clients can reach the home until this is closed or dropped.
pub struct Listener {
    endpoint: Endpoint,
    local_address: SocketAddr,
    /// A permit for each connection that can still be made.
    places: Arc<Semaphore>,
}

impl Listener {
    /// Listens on a UDP address; with port 0, on any free port. Must be called in a tokio runtime.
    pub fn listen(
        address: SocketAddr,
        identity: &Identity,
        service: Arc<dyn Service>,
    ) -> Result<Listener, ListenError> {
        let config = transport::of_home(identity)?;
        let open = || {
            let socket = transport::socket(address)?;
            let local_address = socket.local_addr()?;
            let runtime = Arc::new(TokioRuntime);
            let endpoint = Endpoint::new(transport::home_endpoint(identity), Some(config), socket, runtime)?;
            Ok((endpoint, local_address))
        };
        let (endpoint, local_address) = open().map_err(|error| ListenError::Address { address, error })?;
        let places = Arc::new(Semaphore::new(CONNECTION_COUNT_MAX));
        tokio::spawn(accept(endpoint.clone(), places.clone(), service));
        Ok(Listener { endpoint, local_address, places })
    }

    /// Returns the address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_address
    }

    /// Ends all connections. When it returns, all sessions have been told. All requests have been
    /// answered and all clients told, unless that took longer than a few seconds.
    pub async fn close(self) {
        Close::Stopping.close_all(&self.endpoint);
        let closing = async {
            let _ = self.places.acquire_many(CONNECTION_COUNT_MAX as u32).await;
            self.endpoint.wait_idle().await;
        };
        if timeout(CLOSE_TIME_MAX, closing).await.is_err() {
            tracing::debug!("some connections did not end in time");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        Close::Stopping.close_all(&self.endpoint);
    }
}

/// Takes connections until the endpoint is closed.
async fn accept(endpoint: Endpoint, places: Arc<Semaphore>, service: Arc<dyn Service>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKE_COUNT_MAX));
    let peers = Arc::new(Peers::default());
    while let Some(incoming) = endpoint.accept().await {
        let Ok(place) = places.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let Ok(handshake) = handshakes.clone().try_acquire_owned() else {
            // The client will send its first packet again.
            incoming.ignore();
            continue;
        };
        let under_way = HANDSHAKE_COUNT_MAX - handshakes.available_permits();
        if under_way > UNPROVEN_HANDSHAKE_COUNT_MAX && !incoming.remote_address_validated() {
            // A client that has not proved its address can be asked to.
            let _ = incoming.retry();
            continue;
        }
        tokio::spawn(connection(incoming, handshake, place, peers.clone(), service.clone()));
    }
}

/// The open connections of each peer, the oldest first.
#[derive(Default)]
struct Peers(Mutex<Open>);

#[derive(Default)]
struct Open {
    by_peer: BTreeMap<PeerKey, VecDeque<Connection>>,
    /// Connections of peers that the service did not know when they came.
    strangers: VecDeque<(PeerKey, Connection)>,
}

impl Peers {
    fn add(&self, peer: PeerKey, connection: &Connection, service: &dyn Service) {
        let mut replaced = Vec::new();
        {
            let mut open = self.0.lock();
            let connections = open.by_peer.entry(peer).or_default();
            connections.push_back(connection.clone());
            if connections.len() > PEER_CONNECTION_COUNT_MAX {
                replaced.extend(connections.pop_front());
            }
            open.strangers.retain(|(peer, _)| !service.knows(*peer));
            if !service.knows(peer) {
                open.strangers.push_back((peer, connection.clone()));
            }
            if open.strangers.len() > STRANGER_COUNT_MAX {
                replaced.extend(open.strangers.pop_front().map(|(_, connection)| connection));
            }
        }
        replaced.into_iter().for_each(|replaced| Close::Replaced.close(&replaced));
    }

    fn remove(&self, peer: PeerKey, connection: &Connection) {
        let mut open = self.0.lock();
        open.strangers.retain(|(_, other)| other.stable_id() != connection.stable_id());
        if let Some(connections) = open.by_peer.get_mut(&peer) {
            connections.retain(|other| other.stable_id() != connection.stable_id());
            if connections.is_empty() {
                open.by_peer.remove(&peer);
            }
        }
    }
}

/// One connection, from its first packet to its end.
async fn connection(
    incoming: Incoming,
    handshake: OwnedSemaphorePermit,
    place: OwnedSemaphorePermit,
    peers: Arc<Peers>,
    service: Arc<dyn Service>,
) {
    let address = incoming.remote_address();
    let connection = match timeout(HANDSHAKE_TIME_MAX, incoming.into_future()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!(%address, %error, "the handshake failed"),
        Err(_) => return tracing::debug!(%address, "a handshake took too long"),
    };
    drop(handshake);
    // TLS has verified the key.
    let Some(peer) = peer_of(&connection) else { return Close::Refused.close(&connection) };
    peers.add(peer, &connection, &*service);
    let (pushing, queue, failed) = Pushing::new();
    let pushed = pushing.pushed.clone();
    let session = service.connected(peer, Arc::new(pushing));
    tokio::spawn(push(connection.clone(), queue));
    tokio::spawn(count::answer(connection.clone(), pushed));
    let serving = Arc::new(Serving {
        connection,
        session,
        asked: AtomicBool::new(false),
        welcome: AtomicBool::new(false),
        long: Semaphore::new(LONG_REQUEST_COUNT_MAX),
        background: Background::of_window(DOWN_WINDOW_BYTES),
        _place: place,
    });
    requests(&serving, failed, || service.knows(peer)).await;
    peers.remove(peer, &serving.connection);
    serving.session.ended();
}

fn peer_of(connection: &Connection) -> Option<PeerKey> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    key_of_certificate(chain.first()?).ok()
}

/// What a connection's requests share.
struct Serving {
    connection: Connection,
    session: Arc<dyn Session>,
    /// A request has come.
    asked: AtomicBool,
    /// A request was answered.
    welcome: AtomicBool,
    /// Permits for long requests.
    long: Semaphore,
    /// Room for answers that no program waits for.
    background: Background,
    /// The connection's place, shared with its requests. A client that reconnects again and again
    /// cannot have more requests under way.
    _place: OwnedSemaphorePermit,
}

/// Takes requests until the connection ends.
async fn requests(serving: &Arc<Serving>, mut failed: mpsc::UnboundedReceiver<Close>, is_known: impl Fn() -> bool) {
    let mut silence = pin!(sleep(SILENCE_TIME_MAX));
    let mut silent = true;
    loop {
        tokio::select! {
            accepted = serving.connection.accept_bi() => match accepted {
                Ok((to, from)) => drop(tokio::spawn(request(serving.clone(), to, from))),
                Err(_) => return,
            },
            Some(close) = failed.recv() => return close.close(&serving.connection),
            () = silence.as_mut(), if silent => match serving.asked.load(Ordering::Relaxed) && is_known() {
                true => silent = false,
                false => return Close::Silent.close(&serving.connection),
            },
        }
    }
}

/// Closes the connection when it is dropped, unless it was disarmed: the client must not wait for
/// an answer that will not come.
struct Unanswered<'a>(Option<&'a Connection>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            Close::Failed.close(connection);
        }
    }
}

/// Answers one request. Once begun, the request is worked on to its end, even if the connection
/// ends: it may be half done.
async fn request(serving: Arc<Serving>, to: SendStream, mut from: RecvStream) {
    let (class, request) = match read_request(&mut from, &serving.long).await {
        Ok(request) => request,
        Err(Unread::Gone) => return give_up(to),
        Err(Unread::Wrong(close)) => return close.close(&serving.connection),
    };
    serving.asked.store(true, Ordering::Relaxed);
    let mut to = Outgoing::new(to, class);
    let mut unanswered = Unanswered(Some(&serving.connection));
    let answer = serving.session.answer(request).await;
    unanswered.0 = None;
    let Some(answer) = answer else { return Close::Refused.close(&serving.connection) };
    if answer.len() > MESSAGE_LEN_MAX {
        tracing::error!(len = answer.len(), "an answer is longer than a message may be");
        return Close::Failed.close(&serving.connection);
    }
    if !serving.welcome.swap(true, Ordering::Relaxed) {
        transport::welcome(&serving.connection);
    }
    to.prepare_answer(class, answer.len());
    let room = serving.background.enter(class, answer.len()).await;
    match to.send([answer, Bytes::new()]).await {
        Ok(()) => {
            if room.is_some() {
                to.arrived().await;
            }
            to.release();
        }
        // The client gave up the request, or the connection is lost. The client knows either way.
        Err(WriteError::Stopped(_) | WriteError::ConnectionLost(_)) => {}
        Err(_) => Close::Failed.close(&serving.connection),
    }
}

/// A message with its permits for room in the queue.
type Queued = (Bytes, OwnedSemaphorePermit);

/// The service's end of the queue of pushed messages. The service may keep it after the connection
/// has ended.
struct Pushing {
    queue: mpsc::UnboundedSender<Queued>,
    /// A permit for each byte that the queue has room for.
    room: Arc<Semaphore>,
    /// How many messages were pushed so far.
    pushed: Arc<AtomicU64>,
    failed: mpsc::UnboundedSender<Close>,
}

impl Pushing {
    /// Returns it with the queue's other end, and with the reasons to close the connection.
    fn new() -> (Pushing, mpsc::UnboundedReceiver<Queued>, mpsc::UnboundedReceiver<Close>) {
        let ((queue, queued), (failed, failing)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let room = Arc::new(Semaphore::new(PUSH_QUEUE_BYTES_MAX));
        (Pushing { queue, room, pushed: Arc::default(), failed }, queued, failing)
    }

    /// Ends the connection. The first reason counts.
    fn fail(&self, close: Close) -> Lost {
        self.room.close();
        // The connection may have ended already.
        let _ = self.failed.send(close);
        Lost
    }
}

impl Push for Pushing {
    fn push(&self, message: Bytes) -> Result<(), Lost> {
        if message.len() > MESSAGE_LEN_MAX {
            tracing::error!(len = message.len(), "a pushed message is longer than a message may be");
            return Err(self.fail(Close::Failed));
        }
        match self.room.clone().try_acquire_many_owned((message.len() + PUSH_OVERHEAD_BYTES) as u32) {
            Ok(room) => {
                self.queue.send((message, room)).map_err(|_| Lost)?;
                // Counted only after the message is queued, since a client that is told the count
                // waits for the message.
                self.pushed.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(TryAcquireError::NoPermits) => Err(self.fail(Close::Behind)),
            Err(TryAcquireError::Closed) => Err(Lost),
        }
    }
}

/// Sends pushed messages, in order, until the connection ends.
async fn push(connection: Connection, mut queue: mpsc::UnboundedReceiver<Queued>) {
    let Ok(mut stream) = connection.open_uni().await else { return };
    // If the stream is gone already, the first write says so.
    let _ = stream.set_priority(PUSH_PRIORITY);
    loop {
        let queued = tokio::select! {
            queued = queue.recv() => queued,
            _ = connection.closed() => return,
        };
        let Some((message, room)) = queued else { break };
        let len = (message.len() as u32).to_le_bytes();
        let mut pieces = [Bytes::copy_from_slice(&len), message];
        if stream.write_all_chunks(&mut pieces).await.is_err() {
            return Close::Refused.close(&connection);
        }
        drop(room);
    }
    // A service that pushes no more still answers. A stream that ends would tell the client
    // otherwise.
    connection.closed().await;
}
