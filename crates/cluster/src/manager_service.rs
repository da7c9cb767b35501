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

use crate::gate::{Gate, Inside};
use bytes::Bytes;
use host::{Either, Host, first};
use link::{Message, NodeService, Peer};
use manager::api::{GlimpseQuestion, Manager, ManagerError, TokenHolder, TokenRecall};
use manager::wire::{ClientMessage, HolderRequest, ManagerAnswer, ManagerCall, ManagerRequest};
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
    /// The answer to requests of such sessions.
    fn refusal(&self) -> ManagerAnswer {
        ManagerAnswer::Failed(ManagerError::Expelled)
    }
}

/// Takes recalls for a client that is gone.
pub(crate) struct Gone;

impl TokenHolder for Gone {
    fn recall(&self, _: Vec<TokenRecall>) {}

    fn glimpse(&self, _: GlimpseQuestion) {}
}

/// The session of a client that has none any more.
pub(crate) const NO_SESSION: u64 = 0;

/// The managers of a node, as a service for other nodes.
pub struct ManagerService {
    host: Host,
    gates: Mutex<BTreeMap<ManagerId, Arc<Gate>>>,
    sessions: OnceLock<Weak<dyn Sessions>>,
    begun: Arc<Mutex<HashMap<u64, Arc<Session>>>>,
}

impl ManagerService {
    /// Serves the sessions of clients, once they [are known](Self::serve_sessions).
    pub fn new(host: Host) -> Arc<ManagerService> {
        let (gates, sessions, begun) = (Mutex::default(), OnceLock::new(), Arc::default());
        Arc::new(ManagerService { host, gates, sessions, begun })
    }

    /// Serves a manager, until its gate closes.
    pub(crate) fn open(&self, manager: ManagerId, gate: Arc<Gate>) {
        self.gates.lock().insert(manager, gate);
    }

    /// Serves a manager.
    pub fn serve_manager(&self, id: ManagerId, manager: Arc<dyn Manager>) {
        self.open(id, Gate::new(manager));
    }

    /// Forgets a manager whose gate is closed. Requests that were answered can be made again
    /// elsewhere.
    pub(crate) fn forget(&self, manager: ManagerId) {
        self.gates.lock().remove(&manager);
        for session in self.begun.lock().values() {
            session.state.lock().by_manager.remove(&manager);
        }
    }

    /// Tells no recalls any more, and forgets all sessions. They may go on elsewhere.
    pub(crate) fn end_recalls(&self) {
        let begun = std::mem::take(&mut *self.begun.lock());
        begun.values().for_each(|session| session.recalls.end());
    }

    /// Has the clients of all sessions renew their leases soon: they hear what has changed.
    pub(crate) fn call_all(&self) {
        self.begun.lock().values().for_each(|session| session.recalls.call());
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

impl ManagerService {
    /// Begins a session. The recalls for its client go to what this returns, and from there to the
    /// client, when it asks for them. Requests of a session that was not begun are refused.
    pub fn holder(&self, session: u64) -> Arc<dyn TokenHolder> {
        self.begun.lock().entry(session).or_default().recalls.clone()
    }

    /// Ends a session. From now on its requests are refused. Done when none of them is inside a
    /// manager any more. Requests that wait for other clients do not get their tokens; an `apply`
    /// that has begun is finished.
    pub fn quiesce(&self, session: u64) -> BoxFuture<()> {
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
            return Ok(at_once(sessions.refusal().encode()));
        };
        Ok(match message {
            ClientMessage::NextRecalls { seen, .. } => session.recalls.clone().next(seen),
            ClientMessage::Call(call) => self.call(session, client, call, sessions.refusal()),
        })
    }
}

fn at_once(answer: Vec<u8>) -> BoxFuture<Message> {
    Box::pin(std::future::ready(Message::of_head(answer)))
}

impl ManagerService {
    /// `refusal` is the answer if the manager is forgotten before there is one.
    fn call(
        &self,
        session: Arc<Session>,
        client: ClientId,
        call: ManagerCall,
        refusal: ManagerAnswer,
    ) -> BoxFuture<Message> {
        let key = (call.manager, call.number);
        let gate = self.gates.lock().get(&call.manager).cloned();
        let Some(inside) = gate.and_then(|gate| gate.enter()) else {
            return at_once(ManagerAnswer::Moved.encode());
        };
        let can_be_cut = matches!(
            call.request,
            ManagerRequest::Open { .. } | ManagerRequest::OpenMany { .. } | ManagerRequest::Glimpse { .. }
        );
        let (answered, later) = {
            // The manager takes the request under this lock, so that requests reach it in order
            // even if they come over two connections.
            let mut state = session.state.lock();
            match state.take(call) {
                Err(answer) => return at_once(answer),
                Ok(Taken::UnderWay(answered)) => (answered, None),
                Ok(Taken::New(request)) => match begin(inside.manager(), client, request) {
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
                    true => session.unless_ended(later, &inside).await,
                    false => later.await,
                };
                session.finish(key, answer);
                drop(inside);
            }));
        }
        Box::pin(async move { Message::of_head(answered.await.unwrap_or_else(|_| refusal.encode())) })
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
        ManagerRequest::Glimpse { file } => begun(manager.glimpse(client, file), ManagerAnswer::of_glimpse),
        ManagerRequest::Glimpsed(answer) => {
            manager.glimpsed(client, answer);
            Begun::Now(ManagerAnswer::Done)
        }
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

    /// Forgets a request that was not done.
    fn drop_request(&mut self, (manager, number): RequestKey) -> Option<Served> {
        self.by_manager.get_mut(&manager)?.requests.remove(&number)
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
    fn finish(&self, key: RequestKey, answer: ManagerAnswer) {
        let (has_moved, answer) = (answer == ManagerAnswer::Moved, answer.encode());
        let (served, is_empty) = {
            let mut state = self.state.lock();
            state.inside -= 1;
            let served = match has_moved {
                true => state.drop_request(key),
                false => state.keep(key, answer.clone()),
            };
            (served, state.inside == 0)
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

    /// Waits for a request, but drops it when the session ends, or the manager moves.
    async fn unless_ended(&self, request: BoxFuture<ManagerAnswer>, inside: &Inside) -> ManagerAnswer {
        let mut ended = self.ended.subscribe();
        let cut = first(ended.wait_for(|ended| *ended), inside.closing());
        match first(request, cut).await {
            Either::Left(answer) => answer,
            Either::Right(Either::Left(_)) => ManagerAnswer::Failed(ManagerError::Expelled),
            Either::Right(Either::Right(())) => ManagerAnswer::Moved,
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

/// The recalls and questions that wait until a client asks for them.
#[derive(Default)]
struct RecallQueue {
    state: Mutex<Recalls>,
    /// Notified when `state` changes.
    changed: Notify,
}

#[derive(Default)]
struct Recalls {
    /// Recalls that the client may not have seen.
    waiting: VecDeque<HolderRequest>,
    /// The number of the newest recall, which is the last one that waits.
    last: u64,
    /// How often the client has asked. Only its newest question is answered with recalls.
    asked: u64,
    is_ended: bool,
    /// The client is to renew its lease.
    is_called: bool,
}

impl TokenHolder for RecallQueue {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        self.add(recalls.into_iter().map(HolderRequest::Recall));
    }

    fn glimpse(&self, question: GlimpseQuestion) {
        self.add(std::iter::once(HolderRequest::Glimpse(question)));
    }
}

impl RecallQueue {
    fn add(&self, requests: impl ExactSizeIterator<Item = HolderRequest>) {
        {
            let mut state = self.state.lock();
            state.last += requests.len() as u64;
            state.waiting.extend(requests);
        }
        self.changed.notify_waiters();
    }

    /// Has the client renew its lease soon.
    fn call(&self) {
        self.state.lock().is_called = true;
        self.changed.notify_waiters();
    }

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
    fn answer(&mut self, asked: u64) -> Option<ManagerAnswer> {
        if self.is_ended {
            return Some(ManagerAnswer::Failed(ManagerError::Expelled));
        }
        if self.asked != asked {
            return Some(ManagerAnswer::Stale);
        }
        if std::mem::take(&mut self.is_called) {
            return Some(ManagerAnswer::Moved);
        }
        let recalls: Vec<HolderRequest> = self.waiting.iter().take(RECALLS_MAX).copied().collect();
        let last = self.last - (self.waiting.len() - recalls.len()) as u64;
        (!recalls.is_empty()).then_some(ManagerAnswer::Recalls { last, recalls })
    }
}
