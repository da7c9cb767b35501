//! The managers of another node, as its clients use them.
//!
//! Requests to a manager are numbered and sent in order. Those without an answer are sent again, in
//! order, on each new connection, until the session is over. The other end serves each number once
//! ([`crate::manager_service`]). So a caller sees a broken connection only as a delay, and what it
//! gives back is there before what it asks for afterwards.

use host::{Either, Host, first, join_all, yield_now};
use link::{LinkError, Message, OrderedLane, kinds};
use manager::api::{
    GiveBack, Glimpse, GlimpseAnswer, IndexRange, Located, Manager, ManagerError, ManagerStatus, Opened, SegmentDeltas,
    TokenHolder, TokenRecall,
};
use manager::token::Mode;
use manager::wire::{ClientMessage, HolderRequest, ManagerAnswer, ManagerCall, ManagerRequest, OPEN_FILES_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use types::{Answer, ClientId, FileId, ManagerId};

/// How old a status may become before the manager is asked again.
const STATUS_AGE_MAX: Duration = Duration::from_secs(1);
/// Pause after an answer to a question for recalls that makes no sense.
const RECALLS_PAUSE: Duration = Duration::from_secs(1);
/// Pause after the other end has said that managers move.
const MOVED_PAUSE: Duration = Duration::from_millis(50);
/// The refusal of requests that only the managers' own node makes.
const NOT_HERE: ManagerError = ManagerError::BadRequest("only the first node asks this");

type AnswerOrError = Result<ManagerAnswer, ManagerError>;

/// A manager of another node. It implements [`Manager`]. The calls are those of the client whose
/// session it is, whatever client they name. When this is dropped, its requests end.
pub struct RemoteManager(Arc<Shared>);

struct Shared {
    host: Host,
    lane: Arc<dyn OrderedLane>,
    session: u64,
    manager: ManagerId,
    /// Never held across an await. Requests are sent under it, so that they leave in order.
    state: Mutex<State>,
    /// True when the session is over.
    ended: watch::Sender<bool>,
    /// Notified when the other end says that the manager is elsewhere.
    moved: Arc<Notify>,
}

#[derive(Default)]
struct State {
    is_ended: bool,
    /// The connection on which all requests under way were sent.
    connection: Option<u64>,
    last_number: u64,
    /// Requests without an answer, by number.
    under_way: BTreeMap<u64, UnderWay>,
    /// Requests whose answers have arrived, which the other end need not keep any more.
    received: Vec<u64>,
    /// Tokens that go back with the next message.
    backs: Vec<GiveBack>,
    status: ManagerStatus,
    status_asked: Option<Duration>,
}

struct UnderWay {
    request: ManagerRequest,
    /// What the messages with this request have said about received answers.
    received: Vec<u64>,
    done: Option<oneshot::Sender<AnswerOrError>>,
}

impl Drop for RemoteManager {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl RemoteManager {
    /// A manager at the other end of a lane. `moved` is notified when the other end says that the
    /// manager is elsewhere.
    pub fn new(
        host: &Host,
        lane: Arc<dyn OrderedLane>,
        session: u64,
        manager: ManagerId,
        moved: Arc<Notify>,
    ) -> Arc<RemoteManager> {
        let (state, ended) = (Mutex::default(), watch::channel(false).0);
        let shared = Arc::new(Shared { host: host.clone(), lane, session, manager, state, ended, moved });
        let resending = shared.clone();
        host.tasks.spawn(Box::pin(async move {
            let mut ended = resending.ended.subscribe();
            let _: Either<_, ()> = first(ended.wait_for(|ended| *ended), resending.resend_loop()).await;
        }));
        Arc::new(RemoteManager(shared))
    }

    /// The session is over: all requests under way and all later ones end as
    /// [`ManagerError::Expelled`].
    pub fn end(&self) {
        self.0.end();
    }

    /// True if the session is over.
    pub fn is_ended(&self) -> bool {
        self.0.state.lock().is_ended
    }

    fn call<T: Send + 'static>(
        &self,
        request: ManagerRequest,
        meaning: impl FnOnce(ManagerAnswer) -> Option<T> + Send + 'static,
    ) -> Answer<T, ManagerError> {
        let answer = Shared::submit(&self.0, request);
        let manager = self.0.manager;
        Answer::later(async move {
            meaning(answer.await.unwrap_or(Err(ManagerError::Expelled))?).ok_or_else(|| {
                tracing::error!(%manager, "the answer is of another kind than the request asks for");
                ManagerError::Log
            })
        })
    }

    fn give(&self, back: GiveBack) {
        let is_first = {
            let mut state = self.0.state.lock();
            if state.is_ended {
                return;
            }
            state.backs.push(back);
            state.backs.len() == 1
        };
        if is_first {
            let shared = self.0.clone();
            self.0.host.tasks.spawn(Box::pin(async move {
                // What else goes back at this time travels in the same message.
                yield_now().await;
                shared.flush(&mut shared.state.lock());
            }));
        }
    }
}

impl Shared {
    /// Sends a request, now or when there is a connection. The receiver gets no answer if the
    /// session is over.
    fn submit(self: &Arc<Self>, request: ManagerRequest) -> oneshot::Receiver<AnswerOrError> {
        let (done, answer) = oneshot::channel();
        let mut state = self.state.lock();
        if !state.is_ended {
            self.flush(&mut state);
            self.add(&mut state, request, Some(done));
        }
        answer
    }

    /// Sends the tokens that go back.
    fn flush(self: &Arc<Self>, state: &mut State) {
        if !state.backs.is_empty() {
            let backs = std::mem::take(&mut state.backs);
            self.add(state, ManagerRequest::GiveBack(backs), None);
        }
    }

    fn add(self: &Arc<Self>, state: &mut State, request: ManagerRequest, done: Option<oneshot::Sender<AnswerOrError>>) {
        state.last_number += 1;
        let number = state.last_number;
        state.under_way.insert(number, UnderWay { request, received: Vec::new(), done });
        self.send(state, number);
    }

    /// Sends a request that is under way on the present connection.
    fn send(self: &Arc<Self>, state: &mut State, number: u64) {
        let (Some(connection), Some(sent)) = (state.connection, state.under_way.get_mut(&number)) else { return };
        sent.received.append(&mut state.received);
        let message = ClientMessage::Call(ManagerCall {
            session: self.session,
            manager: self.manager,
            connection,
            number,
            received: sent.received.clone(),
            request: sent.request.clone(),
        });
        let asked = self.lane.ask_in(connection, kinds::MANAGER, Message::of_head(message.encode()));
        let shared = self.clone();
        self.host.tasks.spawn(Box::pin(async move {
            match asked.await {
                Ok(answer) => shared.on_answer(connection, number, &answer.head),
                // It is sent again on the next connection.
                Err(LinkError::Down | LinkError::Lost) => {}
                Err(error @ (LinkError::Refused(_) | LinkError::TooLong)) => {
                    tracing::error!(manager = %shared.manager, %error, "a manager's node refuses a request");
                    shared.finish(number, Err(ManagerError::BadRequest("refused by the manager's node")));
                }
            }
        }));
    }

    fn on_answer(&self, connection: u64, number: u64, answer: &[u8]) {
        if self.state.lock().connection != Some(connection) {
            // The request was sent again on another connection, perhaps to another node, and will
            // be answered there.
            return;
        }
        match ManagerAnswer::decode(answer) {
            Ok(ManagerAnswer::Failed(ManagerError::Expelled)) => self.end(),
            Ok(ManagerAnswer::Failed(error)) => self.finish(number, Err(error)),
            // It came over a connection that was replaced. It is sent again on the new one.
            Ok(ManagerAnswer::Stale) => {}
            // It is sent again when the lane leads to where the manager is.
            Ok(ManagerAnswer::Moved) => self.moved.notify_one(),
            Ok(answer) => self.finish(number, Ok(answer)),
            Err(error) => {
                tracing::error!(manager = %self.manager, %error, "a manager's answer cannot be read");
                self.finish(number, Err(ManagerError::Log));
            }
        }
    }

    fn finish(&self, number: u64, answer: AnswerOrError) {
        let finished = {
            let mut state = self.state.lock();
            if let Ok(ManagerAnswer::Status(status)) = &answer {
                state.status = status.clone();
            }
            let finished = state.under_way.remove(&number);
            if finished.is_some() {
                state.received.push(number);
            }
            finished
        };
        if let Some(done) = finished.and_then(|finished| finished.done) {
            // The caller may have gone.
            let _ = done.send(answer);
        }
    }

    fn end(&self) {
        let under_way = {
            let mut state = self.state.lock();
            state.is_ended = true;
            state.backs.clear();
            std::mem::take(&mut state.under_way)
        };
        // Drop these without the lock: their callers wake up.
        drop(under_way);
        self.ended.send_replace(true);
    }

    /// Sends everything that has no answer again, whenever there is a new connection.
    async fn resend_loop(self: &Arc<Self>) {
        let mut connection = 0;
        loop {
            connection = self.lane.next_connection(connection).await;
            let mut state = self.state.lock();
            state.connection = Some(connection);
            let numbers: Vec<u64> = state.under_way.keys().copied().collect();
            numbers.into_iter().for_each(|number| self.send(&mut state, number));
        }
    }
}

/// Makes a `meaning` that accepts one kind of answer.
macro_rules! answer {
    ($pattern:pat => $value:expr) => {
        |answer| match answer {
            $pattern => Some($value),
            _ => None,
        }
    };
}

impl Manager for RemoteManager {
    fn open(&self, _: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.call(ManagerRequest::Open { file, mode }, answer!(ManagerAnswer::Opened(opened) => *opened))
    }

    fn open_many(
        &self,
        _: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let open = |files: &[FileId]| {
            let (count, files) = (files.len(), files.to_vec());
            let answer = self.call(ManagerRequest::OpenMany { files, mode }, move |answer| match answer {
                ManagerAnswer::OpenedMany(all) if all.len() == count => Some(all),
                _ => None,
            });
            answer.into_future()
        };
        let parts = files.chunks(OPEN_FILES_MAX).map(open).collect();
        Answer::later(async move {
            let parts: Result<Vec<_>, _> = join_all(parts).await.into_iter().collect();
            Ok(parts?.into_iter().flatten().collect())
        })
    }

    fn glimpse(&self, _: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        self.call(ManagerRequest::Glimpse { file }, ManagerAnswer::into_glimpse)
    }

    fn glimpsed(&self, _: ClientId, answer: GlimpseAnswer) {
        drop(Shared::submit(&self.0, ManagerRequest::Glimpsed(answer)));
    }

    fn locate(&self, _: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.call(ManagerRequest::Locate { file, first }, answer!(ManagerAnswer::Located(located) => located))
    }

    fn release(&self, _: ClientId, file: FileId, number: u64) {
        self.give(GiveBack { file, number, keep: None, is_open: false });
    }

    fn give_back(&self, _: ClientId, back: GiveBack) {
        self.give(back);
    }

    fn closed(&self, _: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.call(ManagerRequest::Closed { file }, answer!(ManagerAnswer::Closed(is_abandoned) => is_abandoned))
    }

    fn allocate(&self, _: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        self.call(ManagerRequest::Allocate { volume }, answer!(ManagerAnswer::Allocated(range) => range))
    }

    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        self.call(ManagerRequest::Apply(segments), answer!(ManagerAnswer::Done => ()))
    }

    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        Answer::err(NOT_HERE)
    }

    /// The last one that is known. It is asked for anew at most once in [`STATUS_AGE_MAX`].
    fn status(&self) -> ManagerStatus {
        let now = self.0.host.clock.now();
        let (status, is_old) = {
            let mut state = self.0.state.lock();
            let is_old = state.status_asked.is_none_or(|asked| asked + STATUS_AGE_MAX <= now);
            if is_old {
                state.status_asked = Some(now);
            }
            (state.status.clone(), is_old)
        };
        if is_old {
            drop(Shared::submit(&self.0, ManagerRequest::Status));
        }
        status
    }
}

/// Ends a task when it is dropped.
pub type Alive = oneshot::Sender<Infallible>;

/// Has recalls received, as [`receive_recalls`], until what this returns is dropped.
pub fn begin_recalls(
    host: &Host,
    lane: Arc<dyn OrderedLane>,
    session: u64,
    holder: Arc<dyn TokenHolder>,
    moved: Arc<Notify>,
) -> Alive {
    let (alive, ended) = oneshot::channel();
    let receiving = receive_recalls(host.clone(), lane, session, holder, moved);
    host.tasks.spawn(Box::pin(async move {
        let _: Either<_, ()> = first(ended, receiving).await;
    }));
    alive
}

/// Asks for the recalls of a session and passes them to its client, until the session is over.
/// `moved` is notified when the other end wants the lease to be renewed soon.
pub async fn receive_recalls(
    host: Host,
    lane: Arc<dyn OrderedLane>,
    session: u64,
    holder: Arc<dyn TokenHolder>,
    moved: Arc<Notify>,
) {
    let (mut seen, mut connection) = (0, 0);
    loop {
        let message = Message::of_head(ClientMessage::NextRecalls { session, seen }.encode());
        let answer = match lane.ask_in(connection, kinds::MANAGER, message).await {
            Ok(answer) => ManagerAnswer::decode(&answer.head),
            Err(LinkError::Down | LinkError::Lost) => {
                connection = lane.next_connection(connection).await;
                continue;
            }
            Err(error) => {
                tracing::error!(%error, "the managers' node does not tell recalls");
                host.clock.sleep(RECALLS_PAUSE).await;
                continue;
            }
        };
        match answer {
            Ok(ManagerAnswer::Recalls { last, mut recalls }) => {
                let new = usize::try_from(last.saturating_sub(seen)).unwrap_or(usize::MAX).min(recalls.len());
                seen = seen.max(last);
                pass_on(&*holder, recalls.split_off(recalls.len() - new));
            }
            Ok(ManagerAnswer::Moved) => {
                moved.notify_one();
                host.clock.sleep(MOVED_PAUSE).await;
            }
            Ok(ManagerAnswer::Failed(ManagerError::Expelled)) => return,
            other => {
                tracing::error!(?other, "the managers' node answers a question for recalls with something else");
                host.clock.sleep(RECALLS_PAUSE).await;
            }
        }
    }
}

/// Passes recalls and questions on, in order; recalls that follow each other at once.
fn pass_on(holder: &dyn TokenHolder, requests: Vec<HolderRequest>) {
    let mut recalls: Vec<TokenRecall> = Vec::new();
    for request in requests {
        match request {
            HolderRequest::Recall(recall) => recalls.push(recall),
            HolderRequest::Glimpse(question) => {
                holder.recall(std::mem::take(&mut recalls));
                holder.glimpse(question);
            }
        }
    }
    holder.recall(recalls);
}
