//! One connection to a node, made anew whenever it breaks.

use crate::frames::{Inbox, Outbox, Received};
use crate::kinds;
use crate::stream::invalid;
use crate::wire::{Message, Refused, frame};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use thiserror::Error;
use tokio::sync::{Notify, Semaphore, oneshot};
use types::BoxFuture;

/// Most requests of a [limited](kinds::is_limited) kind under way on one connection. Further ones
/// wait.
pub(crate) const REQUESTS_MAX: usize = 128;

/// Why a request has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LinkError {
    /// There is no connection at present. The request was not sent.
    #[error("no connection")]
    Down,
    /// The connection broke before the answer came: it is unknown whether the request was served.
    #[error("the connection broke")]
    Lost,
    /// The peer refused the request.
    #[error("refused: {0}")]
    Refused(Refused),
    /// The request is too long for a frame. It was not sent.
    #[error("the request is too long")]
    TooLong,
}

impl LinkError {
    /// True if this error of [`ask_once`](crate::ask_once) says that the peer has refused.
    pub fn is_refusal(error: &io::Error) -> bool {
        matches!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(LinkError::Refused(_)))
    }
}

/// A lane as its users see it who rely on the order of requests.
pub trait OrderedLane: Send + Sync + 'static {
    /// The number of the connection that is up; `None` while none is. Each new connection has a
    /// greater number than those before.
    fn connection(&self) -> Option<u64>;

    /// Waits until a connection is up whose number is greater than `after`, and returns its number.
    fn next_connection(&self, after: u64) -> BoxFuture<u64>;

    /// Sends a request, unless this connection is not up any more. Requests arrive in the order of
    /// these calls. The request was sent when this returns, so its future need not be polled for
    /// that.
    fn ask_in(&self, connection: u64, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>>;
}

/// A request that is sent first on each new connection. Until it is answered well, the connection
/// does not count as up.
#[derive(Clone)]
pub struct Opening {
    /// The kind of service.
    pub kind: u8,
    /// The request's head.
    pub head: Vec<u8>,
    /// Reads the answer.
    pub check: fn(Message) -> io::Result<()>,
}

/// One connection, up or down. Cheap to clone.
#[derive(Clone)]
pub struct Lane(Arc<Shared>);

struct Shared {
    state: Mutex<LaneState>,
    places: Arc<Semaphore>,
    /// Notified when a connection is up.
    up: Notify,
}

#[derive(Default)]
struct LaneState {
    /// Where requests go while the connection is up.
    outbox: Option<Arc<Outbox>>,
    /// The number of the newest connection.
    connection: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Result<Message, LinkError>>>,
    last_number: u64,
}

/// A request under way. It is forgotten when its caller stops waiting.
struct Waiting {
    lane: Weak<Shared>,
    number: u64,
    answer: oneshot::Receiver<Result<Message, LinkError>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.upgrade() {
            lane.state.lock().waiting.remove(&self.number);
        }
    }
}

impl Waiting {
    async fn answered(mut self) -> Result<Message, LinkError> {
        (&mut self.answer).await.unwrap_or(Err(LinkError::Lost))
    }
}

impl Lane {
    pub(crate) fn new() -> Lane {
        let (state, places) = (Mutex::default(), Arc::new(Semaphore::new(REQUESTS_MAX)));
        Lane(Arc::new(Shared { state, places, up: Notify::new() }))
    }

    /// True while a connection is up.
    pub fn is_up(&self) -> bool {
        self.0.state.lock().outbox.is_some()
    }

    /// Sends a request. A request of a [limited](kinds::is_limited) kind waits for a place first;
    /// any other was sent when this returns.
    pub fn ask(&self, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        if !kinds::is_limited(kind) {
            return self.begun(None, kind, message);
        }
        let lane = self.clone();
        Box::pin(async move {
            let place = lane.0.places.clone().acquire_owned().await;
            let answer = lane.begin(None, kind, message)?.answered().await;
            drop(place);
            answer
        })
    }

    fn begun(&self, within: Option<u64>, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        match self.begin(within, kind, message) {
            Ok(waiting) => Box::pin(waiting.answered()),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    /// Sends a request on the connection that is up, or on this one only.
    fn begin(&self, within: Option<u64>, kind: u8, message: Message) -> Result<Waiting, LinkError> {
        if !message.fits() {
            return Err(LinkError::TooLong);
        }
        let (done, answer) = oneshot::channel();
        let (outbox, number) = {
            let state = &mut *self.0.state.lock();
            let outbox = state.outbox.clone().filter(|_| within.is_none_or(|within| within == state.connection));
            let outbox = outbox.ok_or(LinkError::Down)?;
            state.last_number += 1;
            state.waiting.insert(state.last_number, done);
            (outbox, state.last_number)
        };
        outbox.send(frame(number, kind, message));
        Ok(Waiting { lane: Arc::downgrade(&self.0), number, answer })
    }

    /// Requests go to this connection from now on.
    pub(crate) fn rise(&self, outbox: Arc<Outbox>) {
        {
            let mut state = self.0.state.lock();
            state.connection += 1;
            state.outbox = Some(outbox);
        }
        self.0.up.notify_waiters();
    }

    /// Ends all requests under way.
    pub(crate) fn fall(&self) {
        let (outbox, waiting) = {
            let mut state = self.0.state.lock();
            (state.outbox.take(), std::mem::take(&mut state.waiting))
        };
        // Drop these without the lock: waiters wake up and take it.
        drop(waiting);
        if let Some(outbox) = outbox {
            outbox.close();
        }
    }

    /// Hands answers out until the connection breaks.
    pub(crate) async fn receive(&self, mut inbox: Inbox) -> io::Error {
        loop {
            let (number, answer) = match inbox.next().await {
                Ok(Received { number, kind, message }) => match Refused::decode(kind) {
                    Ok(verdict) => (number, verdict.map(|()| message).map_err(LinkError::Refused)),
                    Err(error) => return invalid(error),
                },
                Err(error) => return error,
            };
            let waiting = self.0.state.lock().waiting.remove(&number);
            // If the caller has stopped waiting, the answer is dropped.
            let _ = waiting.map(|done| done.send(answer));
        }
    }
}

impl OrderedLane for Lane {
    fn connection(&self) -> Option<u64> {
        let state = self.0.state.lock();
        state.outbox.as_ref().map(|_| state.connection)
    }

    fn next_connection(&self, after: u64) -> BoxFuture<u64> {
        let lane = self.clone();
        Box::pin(async move {
            loop {
                let risen = lane.0.up.notified();
                if let Some(connection) = lane.connection().filter(|connection| *connection > after) {
                    return connection;
                }
                risen.await;
            }
        })
    }

    fn ask_in(&self, connection: u64, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        self.begun(Some(connection), kind, message)
    }
}
