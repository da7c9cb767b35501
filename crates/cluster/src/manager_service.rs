//! Serves managers to clients on other nodes.
//!
//! A request is served once, whatever happens to connections. The client sends its requests to a
//! manager in order, and sends those without an answer again, in order, on each new connection
//! ([`crate::remote_manager`]). So for each session and manager this keeps the requests under way,
//! and the answers that the client has not confirmed. If an answer was lost, the repeated request
//! gets the same one. This is more than a matter of cost. A repeated `open` would wait behind
//! another client's, which waits until the token of the first one comes back.
//!
//! Two connections of a client may be alive at the same time. What comes over the older one after
//! anything came over the newer one is ignored.

use crate::members::{Holders, Members};
use bytes::Bytes;
use host::{Either, Host, first};
use link::{Message, NodeService, Peer};
use manager::api::{Manager, ManagerError, TokenHolder, TokenRecall};
use manager::wire::{ClientMessage, ManagerAnswer, ManagerCall, ManagerRequest};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::{Notify, oneshot, watch};
use types::codec::DecodeError;
use types::{Answer, BoxFuture, ClientId, ManagerId};

/// Most requests of a session to one manager that are under way, or whose answers are kept. Further
/// ones are refused.
const REQUESTS_MAX: usize = 64 << 10;
/// Most recalls in one answer.
const RECALLS_MAX: usize = 16 << 10;

/// The sessions of clients.
pub trait Sessions: Send + Sync + 'static {
    /// The client that has this session; `None` if the session is over, or belongs to another peer.
    fn client(&self, session: u64, peer: &Peer) -> Option<ClientId>;
}

impl Sessions for Members {
    fn client(&self, session: u64, peer: &Peer) -> Option<ClientId> {
        self.client_of(session, &peer.fingerprint?)
    }
}

/// The managers of a node, as a service for other nodes.
pub struct ManagerService {
    host: Host,
    managers: BTreeMap<ManagerId, Arc<dyn Manager>>,
    sessions: OnceLock<Weak<dyn Sessions>>,
    begun: Arc<Mutex<HashMap<u64, Arc<Session>>>>,
}

impl ManagerService {
    /// Serves these managers, once the sessions [are known](Self::serve_sessions).
    pub fn new(host: Host, managers: impl IntoIterator<Item = (ManagerId, Arc<dyn Manager>)>) -> Arc<ManagerService> {
        let (managers, sessions, begun) = (managers.into_iter().collect(), OnceLock::new(), Arc::default());
        Arc::new(ManagerService { host, managers, sessions, begun })
    }

    /// Serves these sessions from now on. Until this was called, and when they are gone, requests
    /// get no answer. The first call counts.
    pub fn serve_sessions(&self, sessions: &Arc<impl Sessions>) {
        let sessions: Arc<dyn Sessions> = sessions.clone();
        self.sessions.get_or_init(|| Arc::downgrade(&sessions));
    }

    fn sessions(&self) -> Option<Arc<dyn Sessions>> {
        self.sessions.get()?.upgrade()
    }
}

impl Holders for ManagerService {
    /// Begins a session. The recalls for its client go to what this returns, and from there to the
    /// client, when it asks for them. Requests of a session that was not begun are refused.
    fn holder(&self, session: u64) -> Arc<dyn TokenHolder> {
        self.begun.lock().entry(session).or_default().recalls.clone()
    }

    /// Ends a session. From now on its requests are refused. Done when none of them is inside a
    /// manager any more. Requests that wait for other clients do not get their tokens; an `apply`
    /// that has begun is finished.
    fn quiesce(&self, session: u64) -> BoxFuture<()> {
        let (begun, ending) = (self.begun.clone(), self.begun.lock().get(&session).cloned());
        if let Some(ending) = &ending {
            ending.end();
        }
        Box::pin(async move {
            if let Some(ending) = ending {
                ending.empty().await;
                begun.lock().remove(&session);
            }
        })
    }
}

impl NodeService for ManagerService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let message = ClientMessage::decode(&head)?;
        let id = match &message {
            ClientMessage::Call(call) => call.session,
            ClientMessage::NextRecalls { session, .. } => *session,
        };
        let Some(sessions) = self.sessions() else {
            // This node ends. The session may go on after its next start.
            return Ok(Box::pin(std::future::pending()));
        };
        let client = sessions.client(id, peer);
        let session = self.begun.lock().get(&id).cloned();
        let (Some(client), Some(session)) = (client, session) else {
            return Ok(at_once(ManagerAnswer::Failed(ManagerError::Expelled).encode()));
        };
        Ok(match message {
            ClientMessage::NextRecalls { seen, .. } => session.recalls.clone().next(seen),
            ClientMessage::Call(call) => self.call(session, client, call),
        })
    }
}

fn at_once(answer: Vec<u8>) -> BoxFuture<Message> {
    Box::pin(std::future::ready(Message::of_head(answer)))
}

impl ManagerService {
    fn call(&self, session: Arc<Session>, client: ClientId, call: ManagerCall) -> BoxFuture<Message> {
        let key = (call.manager, call.number);
        let Some(manager) = self.managers.get(&call.manager) else {
            return at_once(ManagerAnswer::Failed(ManagerError::BadRequest("there is no such manager")).encode());
        };
        let can_be_cut = matches!(call.request, ManagerRequest::Open { .. } | ManagerRequest::OpenMany { .. });
        let (answered, later) = {
            // The manager takes the request under this lock, so that requests reach it in order
            // even if they come over two connections.
            let mut state = session.state.lock();
            match state.take(call) {
                Err(answer) => return at_once(answer),
                Ok(Taken::UnderWay(answered)) => (answered, None),
                Ok(Taken::New(request)) => match begin(manager.as_ref(), client, request) {
                    Begun::Now(answer) => {
                        let answer = answer.encode();
                        state.keep(key, answer.clone());
                        return at_once(answer);
                    }
                    Begun::Later(later) => (state.begin(key), Some(later)),
                },
            }
        };
        if let Some(later) = later {
            let session = session.clone();
            // A request inside a manager goes on without its connection: it may be asked for again.
            self.host.tasks.start(Box::pin(async move {
                let answer = match can_be_cut {
                    true => session.unless_ended(later).await,
                    false => later.await,
                };
                session.finish(key, answer.encode());
            }));
        }
        Box::pin(async move {
            let expelled = |_| ManagerAnswer::Failed(ManagerError::Expelled).encode();
            Message::of_head(answered.await.unwrap_or_else(expelled))
        })
    }
}

/// A request that a manager has taken.
enum Begun {
    Now(ManagerAnswer),
    Later(BoxFuture<ManagerAnswer>),
}

/// Turns the result of a call into an answer.
fn begun<T: Send + 'static>(result: Answer<T, ManagerError>, meaning: fn(T) -> ManagerAnswer) -> Begun {
    let answer = move |result: Result<T, ManagerError>| result.map_or_else(ManagerAnswer::Failed, meaning);
    match result {
        Answer::Now(result) => Begun::Now(answer(result)),
        Answer::Later(later) => Begun::Later(Box::pin(async move { answer(later.await) })),
    }
}

/// Has a manager take a request.
fn begin(manager: &dyn Manager, client: ClientId, request: ManagerRequest) -> Begun {
    match request {
        ManagerRequest::Open { file, mode } => {
            begun(manager.open(client, file, mode), |opened| ManagerAnswer::Opened(Box::new(opened)))
        }
        ManagerRequest::OpenMany { files, mode } => {
            begun(manager.open_many(client, &files, mode), ManagerAnswer::OpenedMany)
        }
        ManagerRequest::Locate { file, first } => begun(manager.locate(client, file, first), ManagerAnswer::Located),
        ManagerRequest::GiveBack(backs) => {
            backs.into_iter().for_each(|back| manager.give_back(client, back));
            Begun::Now(ManagerAnswer::Done)
        }
        ManagerRequest::Closed { file } => begun(manager.closed(client, file), ManagerAnswer::Closed),
        ManagerRequest::Allocate { volume } => begun(manager.allocate(client, volume), ManagerAnswer::Allocated),
        ManagerRequest::Apply(segments) => begun(manager.apply(segments), |()| ManagerAnswer::Done),
        ManagerRequest::Status => Begun::Now(ManagerAnswer::Status(manager.status())),
    }
}

/// Names a request of a session.
type RequestKey = (ManagerId, u64);

/// A session's requests and recalls.
struct Session {
    state: Mutex<SessionState>,
    recalls: Arc<RecallQueue>,
    /// True when the session is over.
    ended: watch::Sender<bool>,
    /// Notified when no request is inside a manager.
    emptied: Notify,
}

impl Default for Session {
    fn default() -> Session {
        let (state, recalls) = (Mutex::default(), Arc::default());
        Session { state, recalls, ended: watch::channel(false).0, emptied: Notify::new() }
    }
}

#[derive(Default)]
struct SessionState {
    is_ended: bool,
    /// Requests inside a manager.
    inside: usize,
    by_manager: BTreeMap<ManagerId, Incoming>,
}

/// What came from a session for one manager.
#[derive(Default)]
struct Incoming {
    /// The newest connection over which something came.
    connection: u64,
    requests: HashMap<u64, Served>,
}

/// A request that a manager has taken.
enum Served {
    /// It is under way; its answer goes to all of these.
    UnderWay(Vec<oneshot::Sender<Vec<u8>>>),
    /// Its answer, which may have to be sent again.
    Answered(Vec<u8>),
}

/// What becomes of a request that has no answer yet.
enum Taken {
    /// It is for the manager.
    New(ManagerRequest),
    /// It has come before.
    UnderWay(oneshot::Receiver<Vec<u8>>),
}

impl SessionState {
    /// Takes a request in. An error is the answer.
    fn take(&mut self, call: ManagerCall) -> Result<Taken, Vec<u8>> {
        if self.is_ended {
            return Err(ManagerAnswer::Failed(ManagerError::Expelled).encode());
        }
        let incoming = self.by_manager.entry(call.manager).or_default();
        if call.connection < incoming.connection {
            return Err(ManagerAnswer::Stale.encode());
        }
        incoming.connection = call.connection;
        for number in &call.received {
            incoming.requests.remove(number);
        }
        let is_full = incoming.requests.len() >= REQUESTS_MAX;
        match incoming.requests.get_mut(&call.number) {
            Some(Served::Answered(answer)) => Err(answer.clone()),
            Some(Served::UnderWay(waiting)) => {
                let (tell, answered) = oneshot::channel();
                waiting.push(tell);
                Ok(Taken::UnderWay(answered))
            }
            None if is_full => Err(ManagerAnswer::Failed(ManagerError::BadRequest("too many requests")).encode()),
            None => Ok(Taken::New(call.request)),
        }
    }

    /// Notes an answer.
    fn keep(&mut self, (manager, number): RequestKey, answer: Vec<u8>) -> Option<Served> {
        self.by_manager.entry(manager).or_default().requests.insert(number, Served::Answered(answer))
    }

    /// Notes that a request is inside a manager.
    fn begin(&mut self, (manager, number): RequestKey) -> oneshot::Receiver<Vec<u8>> {
        self.inside += 1;
        let (tell, answered) = oneshot::channel();
        self.by_manager.entry(manager).or_default().requests.insert(number, Served::UnderWay(vec![tell]));
        answered
    }
}

impl Session {
    /// Ends a request that was inside a manager.
    fn finish(&self, key: RequestKey, answer: Vec<u8>) {
        let (served, is_empty) = {
            let mut state = self.state.lock();
            state.inside -= 1;
            (state.keep(key, answer.clone()), state.inside == 0)
        };
        if let Some(Served::UnderWay(waiting)) = served {
            for tell in waiting {
                // Whoever waited may have gone.
                let _ = tell.send(answer.clone());
            }
        }
        if is_empty {
            self.emptied.notify_waiters();
        }
    }

    /// Waits for a request, but drops it when the session ends.
    async fn unless_ended(&self, request: BoxFuture<ManagerAnswer>) -> ManagerAnswer {
        let mut ended = self.ended.subscribe();
        match first(request, ended.wait_for(|ended| *ended)).await {
            Either::Left(answer) => answer,
            Either::Right(_) => ManagerAnswer::Failed(ManagerError::Expelled),
        }
    }

    fn end(&self) {
        self.state.lock().is_ended = true;
        self.ended.send_replace(true);
        self.recalls.end();
    }

    /// Waits until no request is inside a manager.
    async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.state.lock().inside == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// The recalls that wait until a client asks for them.
#[derive(Default)]
struct RecallQueue {
    state: Mutex<Recalls>,
    /// Notified when `state` changes.
    changed: Notify,
}

#[derive(Default)]
struct Recalls {
    /// Recalls that the client may not have seen.
    waiting: VecDeque<TokenRecall>,
    /// The number of the newest recall, which is the last one that waits.
    last: u64,
    /// How often the client has asked. Only its newest question is answered with recalls.
    asked: u64,
    is_ended: bool,
}

impl TokenHolder for RecallQueue {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        {
            let mut state = self.state.lock();
            state.last += recalls.len() as u64;
            state.waiting.extend(recalls);
        }
        self.changed.notify_waiters();
    }
}

impl RecallQueue {
    fn end(&self) {
        self.state.lock().is_ended = true;
        self.changed.notify_waiters();
    }

    /// Answers with the recalls after `seen`, when there are some.
    fn next(self: Arc<Self>, seen: u64) -> BoxFuture<Message> {
        let asked = {
            let state = &mut *self.state.lock();
            let first = state.last - state.waiting.len() as u64 + 1;
            let arrived = seen.saturating_add(1).saturating_sub(first);
            state.waiting.drain(..state.waiting.len().min(usize::try_from(arrived).unwrap_or(usize::MAX)));
            state.asked += 1;
            state.asked
        };
        self.changed.notify_waiters();
        Box::pin(async move {
            loop {
                let changed = self.changed.notified();
                let answer = self.state.lock().answer(asked);
                if let Some(answer) = answer {
                    return Message::of_head(answer.encode());
                }
                changed.await;
            }
        })
    }
}

impl Recalls {
    /// The answer to question `asked`; `None` while there is none.
    fn answer(&self, asked: u64) -> Option<ManagerAnswer> {
        if self.is_ended {
            return Some(ManagerAnswer::Failed(ManagerError::Expelled));
        }
        if self.asked != asked {
            return Some(ManagerAnswer::Stale);
        }
        let recalls: Vec<TokenRecall> = self.waiting.iter().take(RECALLS_MAX).copied().collect();
        let last = self.last - (self.waiting.len() - recalls.len()) as u64;
        (!recalls.is_empty()).then_some(ManagerAnswer::Recalls { last, recalls })
    }
}
