//! A [`Node`]'s store as another machine has it: over connections, as `storage::tcp` does it over a
//! network.
//!
//! Requests and answers travel as the frames of [`storage::wire`], and are answered by the code
//! that answers them over TCP. What holds of a connection there holds here:
//!
//! - It ends when the store's process does, or when nothing comes back for [`DEAD_TIME`]. What was
//!   under way then ends as `Unavailable`, and may have been done or not; it may even be done
//!   later, when whoever asked is long gone.
//! - Until another stands, and is attached to the store, requests fail at once.

use crate::node::{Listener, Node};
use bytes::Bytes;
use host::sim::Machine;
use host::{Clock, Either, SplitMix64, first, timeout};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use storage::api::{Identity, Presence, RemoteStorage, StorageError};
use storage::calls::{Ask, answer, attach, is_done, what_is_there};
use storage::server::Server;
use storage::wire::{Answer, Frame, LENGTHS_LEN, Request, lengths};
use tokio::sync::{oneshot, watch};
use types::{BoxFuture, FsUuid, StoreId};

/// How long a request outside of any connection may take, and being attached.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// How long making a store may take.
const INITIALISE_TIME_MAX: Duration = Duration::from_secs(60);
/// How long nothing comes back before a connection counts as broken.
const DEAD_TIME: Duration = Duration::from_secs(10);
/// Longest wait for one answer: what a network loses, it loses together with the connection.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed attempt to connect; doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest such pause.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// A connection, as long as it stands.
struct Connection {
    node: Arc<Node>,
    to: Listener,
    /// At the store's end: whom requests are for.
    attached: Mutex<Option<Arc<Server>>>,
    last_number: AtomicU64,
}

/// A frame's head and tail.
fn unframed(frame: &Frame) -> (&[u8], Bytes) {
    let [head, tail] = frame;
    let (sizes, head) = head.split_first_chunk::<LENGTHS_LEN>().expect("a frame begins with its lengths");
    assert_eq!(lengths(*sizes), Ok((head.len(), tail.len())));
    (head, tail.clone())
}

impl Connection {
    fn new(node: &Arc<Node>, from: &Machine) -> Option<Arc<Connection>> {
        let to = node.listener(from)?;
        Some(Arc::new(Connection {
            node: node.clone(),
            to,
            attached: Mutex::default(),
            last_number: AtomicU64::new(0),
        }))
    }

    /// Sends a request. Never done if that, or its answer, is lost.
    async fn ask(self: Arc<Self>, request: Request) -> Answer {
        let number = self.last_number.fetch_add(1, Relaxed) + 1;
        let (frame, lag, me) = (request.encode(number), self.node.lag(), self.clone());
        let served = self.to.link.call(move || {
            let (frame, me) = (frame.clone(), me.clone());
            async move {
                me.to.machine.host().clock.sleep(lag).await;
                me.serve(frame).await
            }
        });
        let frame = served.await;
        let (head, tail) = unframed(&frame);
        let (answered, answer) = Answer::decode(head, tail).expect("what a store encodes can be decoded");
        assert_eq!(answered, number);
        answer
    }

    /// At the store's end.
    async fn serve(&self, frame: Frame) -> Frame {
        let (head, tail) = unframed(&frame);
        let (number, request) = Request::decode(head, tail).expect("what a client encodes can be decoded");
        if let Request::Attach { fs, store } = request {
            let (server, answer) = attach(&self.to.site, fs, store);
            *self.attached.lock() = server;
            return answer.encode(number);
        }
        let store = self.attached.lock().clone();
        answer(&self.to.site, store.as_deref(), number, request).await
    }

    /// Done when it was noticed that it does not stand any more.
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
            // A process that ends has its connections closed; a machine that does says nothing.
            Either::Right(()) if random.chance(1, 3) => clock.sleep(DEAD_TIME).await,
            _ => {}
        }
    }
}

type Standing = Option<Arc<Connection>>;

/// See the module's header.
pub struct Remote {
    node: Arc<Node>,
    from: Machine,
    /// The connection to the store that is wanted.
    standing: Mutex<Option<watch::Receiver<Standing>>>,
}

impl Remote {
    /// A storage server that is not asked for anything yet, for roles on `from`.
    pub fn new(node: Arc<Node>, from: Machine) -> Arc<Remote> {
        Arc::new(Remote { node, from, standing: Mutex::default() })
    }

    /// One request over a connection of its own.
    fn ask_once(&self, request: Request, time: Duration) -> BoxFuture<io::Result<Answer>> {
        let (clock, connection) = (self.from.host().clock, Connection::new(&self.node, &self.from));
        Box::pin(async move {
            let connection = connection.ok_or(io::ErrorKind::ConnectionRefused)?;
            Ok(timeout(&*clock, time, connection.ask(request)).await.map_err(|_| io::ErrorKind::TimedOut)?)
        })
    }
}

impl Ask for Remote {
    fn ask(&self, request: Request, _: usize) -> BoxFuture<Result<Answer, StorageError>> {
        let standing = self.standing.lock().clone();
        let connection = standing.as_ref().and_then(|standing| standing.borrow().clone());
        let clock = self.from.host().clock;
        Box::pin(async move {
            let (Some(mut standing), Some(connection)) = (standing, connection) else {
                return Err(StorageError::Unavailable);
            };
            let broken = standing.wait_for(|now| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &connection)));
            let asked = timeout(&*clock, ANSWER_TIME_MAX, connection.clone().ask(request));
            match first(asked, broken).await {
                Either::Left(Ok(answer)) => Ok(answer),
                _ => Err(StorageError::Unavailable),
            }
        })
    }
}

impl RemoteStorage for Remote {
    fn presence(&self) -> BoxFuture<io::Result<Presence>> {
        let asked = self.ask_once(Request::Presence, 2 * CONNECT_TIME_MAX);
        Box::pin(async move { what_is_there(asked.await?) })
    }

    fn initialise(&self, identity: Identity) -> BoxFuture<io::Result<()>> {
        let asked = self.ask_once(Request::Initialise(identity), INITIALISE_TIME_MAX);
        Box::pin(async move { is_done(asked.await?) })
    }

    fn expect(&self, fs: FsUuid, store: StoreId) -> BoxFuture<()> {
        let (tell, standing) = watch::channel(None);
        let (first_tried, tried) = oneshot::channel();
        let (node, from) = (self.node.clone(), self.from.clone());
        self.from.host().tasks.spawn(Box::pin(async move {
            let kept = keep(node, from, Request::Attach { fs, store }, &tell, first_tried);
            first(kept, tell.closed()).await;
        }));
        *self.standing.lock() = Some(standing);
        Box::pin(async move {
            // It is told even if the connection does not come about.
            let _ = tried.await;
        })
    }
}

/// Keeps a connection standing and attached. Never ends.
async fn keep(
    node: Arc<Node>,
    from: Machine,
    attach: Request,
    tell: &watch::Sender<Standing>,
    first_tried: oneshot::Sender<()>,
) {
    let host = from.host();
    let random = SplitMix64::new(host.random.next_u64());
    let (mut first_tried, mut backoff) = (Some(first_tried), BACKOFF_MIN);
    loop {
        let connection = Connection::new(&node, &from);
        let attached = match &connection {
            Some(connection) => timeout(&*host.clock, CONNECT_TIME_MAX, connection.clone().ask(attach.clone())).await,
            None => Ok(Answer::Refused(StorageError::Unavailable)),
        };
        let stands = attached == Ok(Answer::Done);
        if stands {
            tell.send_replace(connection.clone());
        }
        // Nobody waits for later attempts.
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
