//! The two lanes to a node: one for large messages, one for all others, so that a small request
//! does not wait behind megabytes of a stream.

use crate::address::{Address, Addresses, ask_alone};
use crate::frames::{Inbox, Outbox};
use crate::kinds;
use crate::lane::{Lane, LinkError, Opening, OrderedLane};
use crate::stream::CONNECT_TIME_MAX;
use crate::wire::Message;
use host::{Either, Host, first, join_all, timeout};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use types::BoxFuture;

/// Requests with more bytes than this, in them or in their answers, go over the second lane.
const SMALL_LEN_MAX: usize = 128 << 10;
/// Pause after the first failed attempt to connect. It doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts to connect.
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// The connections to a node. When one breaks, a new one is made, until this is dropped.
pub struct NodeLink {
    small: Lane,
    large: Lane,
    /// When dropped, the connections' tasks end.
    alive: Vec<oneshot::Sender<()>>,
}

impl Drop for NodeLink {
    fn drop(&mut self) {
        // End the tasks before the connections, so that the tasks do not log a lost connection.
        self.alive.clear();
        self.small.fall();
        self.large.fall();
    }
}

impl NodeLink {
    /// Keeps connections to a node, which the log calls `name`, at one of its addresses. The future
    /// is done when both were made, or when it was seen that they cannot be at any address; it need
    /// not be awaited.
    pub fn keep(
        host: &Host,
        addresses: impl Into<Addresses>,
        name: String,
        opening: Option<Opening>,
    ) -> (Arc<NodeLink>, BoxFuture<()>) {
        let addresses = addresses.into();
        let (small, large) = (Lane::new(), Lane::new());
        let (mut alive, mut tried) = (Vec::new(), Vec::new());
        for lane in [&small, &large] {
            let (ends, ended) = oneshot::channel();
            let (first_tried, has_tried) = oneshot::channel();
            let (addresses, name, opening) = (addresses.clone(), name.clone(), opening.clone());
            let keeper = Keeper { host: host.clone(), addresses, name, opening, lane: lane.clone() };
            host.tasks.spawn(Box::pin(async move {
                let _: Either<_, ()> = first(ended, keeper.run(first_tried)).await;
            }));
            alive.push(ends);
            tried.push(has_tried);
        }
        let link = Arc::new(NodeLink { small, large, alive });
        (link, Box::pin(async move { drop(join_all(tried).await) }))
    }

    /// True while a connection is up.
    pub fn is_up(&self) -> bool {
        self.small.is_up() || self.large.is_up()
    }

    /// The lane for small messages, for those who rely on the order of requests. It outlives this
    /// link, but then stays down.
    pub fn ordered(&self) -> Arc<dyn OrderedLane> {
        Arc::new(self.small.clone())
    }

    /// Sends a request. `len` is the number of bytes that it or its answer has beside a few fields;
    /// it decides between the lanes. If that lane is down, the other one is used. A request of a
    /// kind that is not [limited](kinds::is_limited) was sent when this returns.
    pub fn ask(&self, kind: u8, message: Message, len: usize) -> BoxFuture<Result<Message, LinkError>> {
        let (wanted, other) = match len > SMALL_LEN_MAX {
            true => (&self.large, &self.small),
            false => (&self.small, &self.large),
        };
        match [wanted, other].into_iter().find(|lane| lane.is_up()) {
            Some(lane) => lane.ask(kind, message),
            None => Box::pin(std::future::ready(Err(LinkError::Down))),
        }
    }

    /// Tells a node's control service something, and returns what it answers. Both are opaque here.
    pub fn control(&self, request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, LinkError>> {
        let asked = self.ask(kinds::CONTROL, Message::of_head(request), 0);
        Box::pin(async move { Ok(asked.await?.head) })
    }
}

/// Keeps a lane connected.
struct Keeper {
    host: Host,
    addresses: Addresses,
    name: String,
    opening: Option<Opening>,
    lane: Lane,
}

impl Keeper {
    async fn connect(&self, address: &Address) -> io::Result<(Inbox, Arc<Outbox>)> {
        let (from, to) = address.dial(self.host.clock.as_ref()).await?;
        let (outbox, writing) = Outbox::new(to);
        self.host.tasks.spawn(Box::pin(writing));
        let mut inbox = Inbox::new(from);
        if let Some(Opening { kind, head, check }) = self.opening.clone() {
            let asking = ask_alone(&mut inbox, &outbox, kind, Message::of_head(head));
            let asked = timeout(self.host.clock.as_ref(), CONNECT_TIME_MAX, asking).await;
            let opened = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).and_then(check);
            if let Err(error) = opened {
                outbox.close();
                return Err(error);
            }
        }
        Ok((inbox, outbox))
    }

    /// Waits until there is a connection to the first address, if `at` is another one.
    async fn elsewhere(
        &self,
        changes: &mut watch::Receiver<Vec<Address>>,
        at: &Address,
    ) -> (Address, (Inbox, Arc<Outbox>)) {
        loop {
            let best = changes.borrow_and_update().first().cloned();
            let other = best.filter(|best| (&best.host, best.port) != (&at.host, at.port));
            let Some(other) = other else {
                if changes.changed().await.is_err() {
                    // No change comes any more.
                    std::future::pending::<()>().await;
                }
                continue;
            };
            if let Ok(connected) = self.connect(&other).await {
                return (other, connected);
            }
            let _: Either<(), _> = first(self.host.clock.sleep(BACKOFF_MAX), changes.changed()).await;
        }
    }

    /// Uses a connection, and those that take its place because the node is elsewhere, until one
    /// breaks.
    async fn serve(
        &self,
        mut at: Address,
        mut connected: (Inbox, Arc<Outbox>),
        changes: &mut watch::Receiver<Vec<Address>>,
    ) {
        loop {
            let (inbox, outbox) = connected;
            self.lane.rise(outbox);
            let received = first(self.lane.receive(inbox), self.elsewhere(changes, &at)).await;
            self.lane.fall();
            match received {
                Either::Left(error) => {
                    tracing::warn!(to = self.name, address = %at, %error, "connection lost");
                    return;
                }
                Either::Right((other, to_other)) => {
                    tracing::info!(to = self.name, address = %other, "is elsewhere now");
                    (at, connected) = (other, to_other);
                }
            }
        }
    }

    async fn run(self, first_tried: oneshot::Sender<()>) {
        let mut first_tried = Some(first_tried);
        let mut changes = self.addresses.follow();
        let (mut at, mut backoff, mut told) = (0, BACKOFF_MIN, false);
        loop {
            if changes.has_changed().unwrap_or(false) {
                (at, backoff, told) = (0, BACKOFF_MIN, false);
            }
            let address = changes.borrow_and_update().get(at).cloned();
            let Some(address) = address else {
                // No address is left. Only these first attempts are waited for.
                let _ = first_tried.take().map(|tried| tried.send(()));
                if let Either::Right(_) = first(self.host.clock.sleep(backoff), changes.changed()).await {
                    changes.mark_changed();
                }
                (at, backoff) = (0, (2 * backoff).min(BACKOFF_MAX));
                continue;
            };
            match first(self.connect(&address), changes.changed()).await {
                Either::Left(Ok(connected)) => {
                    let _ = first_tried.take().map(|tried| tried.send(()));
                    self.serve(address, connected, &mut changes).await;
                    (backoff, told) = (BACKOFF_MIN, true);
                    self.host.clock.sleep(backoff).await;
                }
                Either::Left(Err(error)) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(to = self.name, %address, %error, "cannot be reached");
                    }
                    at += 1;
                }
                Either::Right(_) => changes.mark_changed(),
            }
        }
    }
}
