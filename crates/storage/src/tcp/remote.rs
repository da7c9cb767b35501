//! The client's end of connections: a remote store.

use super::frames::{Inbox, Outbox};
use super::tls::ClientKeys;
use super::{CONNECT_TIME_MAX, REQUESTS_MAX, ReadEnd, WriteEnd, greet, invalid, prepare};
use crate::api::{Presence, RemoteStorage, StorageError, StoreIdentity};
use crate::calls::{Ask, is_done, what_is_there};
use crate::wire::{StoreAnswer, StoreRequest};
use host::{Clock, Either, Host, first, join_all, timeout};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use types::{BoxFuture, FsUuid, StoreId};

/// Fragments and reads of more bytes than this go over the second connection.
const SMALL_LEN_MAX: usize = 128 << 10;
/// How long making a store may take. It is long, since the store sets disk space aside.
const INITIALISE_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause after the first failed attempt to connect. It doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Where a storage server listens.
#[derive(Clone)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Keys for TLS; `None` means plain TCP.
    pub keys: Option<ClientKeys>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.keys.is_some() { "tls" } else { "tcp" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// A hint for users what to do about an error. It begins with a separator, or is empty.
    fn hint(&self, error: &io::Error) -> &'static str {
        let of_tls = error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>());
        match error.kind() {
            io::ErrorKind::ConnectionRefused => ": is `starling store` running there?",
            _ if of_tls => ": the keys on both sides must come from one `starling keys`, and both sides must use them",
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                if self.keys.is_none() =>
            {
                ": if it is a starling store with keys, use tls://"
            }
            _ => "",
        }
    }

    /// Connects and exchanges greetings.
    async fn dial(&self, clock: &dyn Clock) -> io::Result<(ReadEnd, WriteEnd)> {
        let dialing = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            prepare(&stream)?;
            let (mut from, mut to): (ReadEnd, WriteEnd) = match &self.keys {
                Some(keys) => keys.connect(stream).await?,
                None if !stream.peer_addr()?.ip().is_loopback() => {
                    return Err(io::Error::other("not on this machine: use --keys and tls://"));
                }
                None => {
                    let (from, to) = stream.into_split();
                    (Box::new(from), Box::new(to))
                }
            };
            greet(&mut from, &mut to).await?;
            Ok((from, to))
        };
        timeout(clock, CONNECT_TIME_MAX, dialing).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// Sends one request and reads its answer, outside of any link.
async fn ask(inbox: &mut Inbox, outbox: &Outbox, request: StoreRequest) -> io::Result<StoreAnswer> {
    outbox.send(request.encode(0));
    let (head, tail) = inbox.next().await?;
    let (_, answer) = StoreAnswer::decode(&head, tail).map_err(invalid)?;
    Ok(answer)
}

/// A store of another process. When a connection to it breaks, a new one is made, until this is
/// dropped.
pub struct Remote {
    host: Host,
    address: Address,
    expected: Mutex<Option<Expected>>,
}

/// The connections to the expected store.
struct Expected {
    links: [Arc<Link>; 2],
    /// When dropped, the connections' tasks end.
    alive: Vec<oneshot::Sender<()>>,
}

impl Drop for Expected {
    fn drop(&mut self) {
        // End the tasks before the connections, so that the tasks do not log a lost connection.
        self.alive.clear();
        self.links.iter().for_each(|link| link.down());
    }
}

impl Remote {
    /// A storage server at this address. It does not connect yet.
    pub fn new(host: Host, address: Address) -> Arc<Remote> {
        Arc::new(Remote { host, address, expected: Mutex::new(None) })
    }

    /// Sends one request over a connection of its own.
    fn ask_once(&self, request: StoreRequest, time: Duration) -> BoxFuture<io::Result<StoreAnswer>> {
        let (host, address) = (self.host.clone(), self.address.clone());
        Box::pin(async move {
            let asking = async {
                let (from, to) = address.dial(host.clock.as_ref()).await?;
                let (outbox, writing) = Outbox::new(to);
                host.tasks.spawn(Box::pin(writing));
                let answer = ask(&mut Inbox::new(from), &outbox, request).await;
                outbox.close();
                answer
            };
            let answer = timeout(host.clock.as_ref(), time, asking).await;
            let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            answer.map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}{}", address.hint(&e))))
        })
    }

    /// The connection for a request of `len` bytes, or the other one if that is down.
    fn link(&self, len: usize) -> Option<Arc<Link>> {
        let expected = self.expected.lock();
        let [small, large] = &expected.as_ref()?.links;
        let (wanted, other) = if len > SMALL_LEN_MAX { (large, small) } else { (small, large) };
        [wanted, other].into_iter().find(|link| link.is_up()).cloned()
    }
}

impl Ask for Remote {
    fn ask(&self, request: StoreRequest, len: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        let Some(link) = self.link(len) else {
            return Box::pin(std::future::ready(Err(StorageError::Unavailable)));
        };
        Box::pin(async move {
            let place = link.places.clone().acquire_owned().await;
            let (done, answered) = oneshot::channel();
            let (outbox, waiting) = link.register(done)?;
            outbox.send(request.encode(waiting.number));
            let answer = answered.await.map_err(|_| StorageError::Unavailable)?;
            drop(place);
            Ok(answer)
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
        let (mut links, mut alive, mut tried) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            let (ends, ended) = oneshot::channel();
            let (first_tried, has_tried) = oneshot::channel();
            let link = Arc::new(Link::new());
            let keeper =
                Keeper { host: self.host.clone(), address: self.address.clone(), fs, store, link: link.clone() };
            self.host.tasks.spawn(Box::pin(async move {
                let _: Either<_, ()> = first(ended, keeper.run(first_tried)).await;
            }));
            links.push(link);
            alive.push(ends);
            tried.push(has_tried);
        }
        if let Ok(links) = links.try_into() {
            let replaced = self.expected.lock().replace(Expected { links, alive });
            drop(replaced);
        }
        Box::pin(async move { drop(join_all(tried).await) })
    }
}

/// One connection, up or down.
struct Link {
    state: Mutex<LinkState>,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct LinkState {
    /// Where requests go while the connection is up.
    outbox: Option<Arc<Outbox>>,
    waiting: BTreeMap<u64, oneshot::Sender<StoreAnswer>>,
    last_number: u64,
}

/// A request under way. It is forgotten when its caller stops waiting.
struct Waiting {
    link: Weak<Link>,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.state.lock().waiting.remove(&self.number);
        }
    }
}

impl Link {
    fn new() -> Link {
        Link { state: Mutex::default(), places: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }

    fn is_up(&self) -> bool {
        self.state.lock().outbox.is_some()
    }

    /// Ends all requests under way.
    fn down(&self) {
        let (outbox, waiting) = {
            let mut state = self.state.lock();
            (state.outbox.take(), std::mem::take(&mut state.waiting))
        };
        // Drop these without the lock: waiters wake up and take it.
        drop(waiting);
        if let Some(outbox) = outbox {
            outbox.close();
        }
    }

    fn register(self: &Arc<Self>, done: oneshot::Sender<StoreAnswer>) -> Result<(Arc<Outbox>, Waiting), StorageError> {
        let state = &mut *self.state.lock();
        let outbox = state.outbox.clone().ok_or(StorageError::Unavailable)?;
        state.last_number += 1;
        state.waiting.insert(state.last_number, done);
        Ok((outbox, Waiting { link: Arc::downgrade(self), number: state.last_number }))
    }

    /// Hands answers out until the connection breaks.
    async fn receive(&self, mut inbox: Inbox) -> io::Error {
        loop {
            let decoded = match inbox.next().await {
                Ok((head, tail)) => StoreAnswer::decode(&head, tail).map_err(invalid),
                Err(error) => Err(error),
            };
            match decoded {
                Ok((number, answer)) => {
                    let waiting = self.state.lock().waiting.remove(&number);
                    // If the caller has stopped waiting, the answer is dropped.
                    let _ = waiting.map(|done| done.send(answer));
                }
                Err(error) => return error,
            }
        }
    }
}

/// Keeps a link connected and attached.
struct Keeper {
    host: Host,
    address: Address,
    fs: FsUuid,
    store: StoreId,
    link: Arc<Link>,
}

impl Keeper {
    async fn connect(&self) -> io::Result<Inbox> {
        let (from, to) = self.address.dial(self.host.clock.as_ref()).await?;
        let (outbox, writing) = Outbox::new(to);
        self.host.tasks.spawn(Box::pin(writing));
        let mut inbox = Inbox::new(from);
        let attach = StoreRequest::Attach { fs: self.fs, store: self.store };
        let asked = timeout(self.host.clock.as_ref(), CONNECT_TIME_MAX, ask(&mut inbox, &outbox, attach)).await;
        let asked = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match asked.and_then(is_done) {
            Ok(()) => {
                self.link.state.lock().outbox = Some(outbox);
                Ok(inbox)
            }
            Err(error) => {
                outbox.close();
                Err(error)
            }
        }
    }

    async fn run(self, first_tried: oneshot::Sender<()>) {
        let mut first_tried = Some(first_tried);
        let mut backoff = BACKOFF_MIN;
        let mut told = false;
        loop {
            let connected = self.connect().await;
            // Only the first attempt is waited for.
            let _ = first_tried.take().map(|tried| tried.send(()));
            match connected {
                Ok(inbox) => {
                    let error = self.link.receive(inbox).await;
                    self.link.down();
                    tracing::warn!(store = %self.store, address = %self.address, %error, "connection to store lost");
                    (backoff, told) = (BACKOFF_MIN, true);
                }
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(store = %self.store, address = %self.address, %error, "store cannot be reached");
                    }
                }
            }
            self.host.clock.sleep(backoff).await;
            backoff = (2 * backoff).min(BACKOFF_MAX);
        }
    }
}
