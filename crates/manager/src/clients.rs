//! The clients of a manager: who they are, and how their requests for tokens wait for each other.
//!
//! Requests for one file are served in the order in which they came, so none starves. The first
//! one recalls what is in its way, and waits for each answer.

use crate::api::{FileUse, GiveBack, HeldToken, ManagerError, Opened, TokenHolder, TokenRecall, TokenWait};
use crate::planted::{self, Bug};
use crate::questions::Questions;
use crate::server::{Core, ManagerServer};
use crate::state::{ApplyStop, ManagerState};
use crate::token::Mode;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::{Notify, OwnedMutexGuard};
use types::{Answer, BoxFuture, ClientId, FileId, LogId};

/// What a step of an open came to.
pub(crate) enum Step {
    /// The token is granted.
    Opened(Box<Opened>),
    /// Other clients must give back first; these recalls were not sent before.
    Blocked(Vec<(ClientId, TokenRecall)>),
}

/// The requests that wait for one file.
#[derive(Default)]
struct Queue {
    /// Held by the request whose turn it is. It is fair.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Notified when a token on the file was given back, and when the file was removed.
    given_back: Notify,
    /// The requests, by the order in which they came.
    waiting: Mutex<Waiting>,
}

/// Requests that stand in a queue.
#[derive(Default)]
struct Waiting {
    last: u64,
    by_number: BTreeMap<u64, TokenWait>,
}

/// The clients, and the requests that wait.
#[derive(Default)]
pub(crate) struct Clients {
    holders: Mutex<BTreeMap<ClientId, Arc<dyn TokenHolder>>>,
    /// Taken before the manager's state, if both are needed.
    queues: Mutex<HashMap<FileId, Arc<Queue>>>,
    /// Questions for attributes. Taken after the manager's state, if both are needed.
    pub(crate) questions: Mutex<Questions>,
}

impl Clients {
    /// The way to a client.
    pub(crate) fn holder(&self, client: ClientId) -> Option<Arc<dyn TokenHolder>> {
        self.holders.lock().get(&client).cloned()
    }

    /// Does something while no request can begin to wait for the file; `None` if some wait already.
    pub(crate) fn unless_queued<T>(&self, file: FileId, work: impl FnOnce() -> T) -> Option<T> {
        let queues = self.queues.lock();
        (!queues.contains_key(&file)).then(work)
    }

    /// A token on the file was given back, or the file was removed.
    pub(crate) fn given_back(&self, file: FileId) {
        self.questions.lock().end(file);
        if let Some(queue) = self.queues.lock().get(&file) {
            queue.given_back.notify_one();
        }
    }

    /// Sends recalls. A client without a connection gets them when it has one.
    pub(crate) fn recall(&self, recalls: Vec<(ClientId, TokenRecall)>) {
        let mut by_client: BTreeMap<ClientId, Vec<TokenRecall>> = BTreeMap::new();
        for (client, recall) in recalls {
            by_client.entry(client).or_default().push(recall);
        }
        for (client, recalls) in by_client {
            if let Some(holder) = self.holder(client) {
                holder.recall(recalls);
            }
        }
    }
}

impl Queue {
    /// Notes a request that is about to stand in the queue. Returns its number.
    fn note(&self, wait: TokenWait) -> u64 {
        let waiting = &mut *self.waiting.lock();
        waiting.last += 1;
        waiting.by_number.insert(waiting.last, wait);
        waiting.last
    }

    /// Stands in the queue, behind all who came before, from this call on and not only when the
    /// future is polled.
    fn stand(&self) -> BoxFuture<OwnedMutexGuard<()>> {
        let turn = self.turn.clone().lock_owned();
        let mut turn: BoxFuture<OwnedMutexGuard<()>> = Box::pin(turn);
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Box::pin(std::future::ready(guard)),
            Poll::Pending => turn,
        }
    }
}

/// A request's place in a queue. The last one to leave takes the queue away.
struct Place {
    core: Arc<Core>,
    file: FileId,
    queue: Arc<Queue>,
    /// See [`Queue::note`].
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.waiting.lock().by_number.remove(&self.number);
        let mut queues = self.core.clients.queues.lock();
        // Two references are the map's and this one.
        if Arc::strong_count(&self.queue) <= 2 {
            queues.remove(&self.file);
        }
    }
}

/// A manager grants fewer tokens in one epoch of its log than two to the power of this.
const GRANTS_BITS: u32 = 36;

impl ManagerServer {
    /// Lets a client in that changes files through `log`. From now on only clients that were let
    /// in get tokens. If the client is in already, recalls and questions that it has not answered
    /// are sent anew.
    pub fn admit(&self, client: ClientId, log: LogId, holder: Arc<dyn TokenHolder>) {
        self.core.clients.holders.lock().insert(client, holder.clone());
        let unanswered = {
            let mut state = self.core.state.lock();
            state.owners.insert(log, client);
            state.tokens.unanswered(client)
        };
        if !unanswered.is_empty() {
            holder.recall(unanswered);
        }
        let questions = self.core.clients.questions.lock().unanswered(client);
        questions.into_iter().for_each(|question| holder.glimpse(question));
    }

    /// Begins the manager's term. Call it before any client gets a token.
    pub fn begin_term(&self, term: u64) {
        let after = u64::from(self.epoch()) << GRANTS_BITS;
        self.core.state.lock().tokens.begin(term, after);
    }

    /// Notes what a client held before this manager was opened: of these tokens, those on the files
    /// that this manager serves. Call it before any client gets a token. The caller has checked
    /// that no two clients say that they hold what only one can.
    pub fn restore(&self, client: ClientId, tokens: &[HeldToken]) {
        let state = &mut *self.core.state.lock();
        for token in tokens {
            if self.core.config.map.owner_of(token.file) == self.core.config.id {
                state.tokens.restore(client, *token);
            }
        }
    }

    /// Frees the tokens and opens of a client that is gone: its log is sealed, and this manager has
    /// applied all of it. The client gets no more tokens until it is let in again.
    pub fn expel(&self, client: ClientId) {
        self.core.clients.holders.lock().remove(&client);
        let freed = {
            let mut state = self.core.state.lock();
            state.owners.retain(|_, owner| *owner != client);
            state.tokens.release_client(client)
        };
        freed.into_iter().for_each(|file| self.core.clients.given_back(file));
    }

    /// The clients that were let in.
    pub fn clients(&self) -> BTreeSet<ClientId> {
        self.core.state.lock().owners.values().copied().collect()
    }
}

impl Core {
    /// Opens a file for a client, now or when others have given back.
    pub(crate) fn open(self: &Arc<Self>, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        // No request gets between a step that is blocked and its place in the queue. Otherwise the
        // holder could be granted the token anew, and the recall would be about an old grant.
        let mut queues = self.clients.queues.lock();
        let mut recalls = Vec::new();
        if !queues.contains_key(&file) {
            let first = self.state.lock().open(client, file, mode);
            match first {
                Ok(Step::Opened(opened)) => return Answer::ok(*opened),
                Ok(Step::Blocked(wanted)) => recalls = wanted,
                Err(ApplyStop::Refused(error)) => return Answer::err(error),
                Err(ApplyStop::Missing(_)) => {}
            }
        }
        let queue = queues.entry(file).or_default().clone();
        let number = queue.note(TokenWait { client, mode });
        let place = Place { core: self.clone(), file, queue, number };
        let turn = place.queue.stand();
        drop(queues);
        self.clients.recall(recalls);
        Answer::later(async move {
            let _turn = turn.await;
            place.core.open_in_turn(client, file, mode, &place.queue).await
        })
    }

    /// Opens a file, unless that means waiting for another client.
    pub(crate) async fn open_now(&self, client: ClientId, file: FileId, mode: Mode) -> Result<Opened, ManagerError> {
        loop {
            let step = self.clients.unless_queued(file, || self.state.lock().open(client, file, mode));
            match step.ok_or(ManagerError::Held)? {
                Ok(Step::Opened(opened)) => return Ok(*opened),
                Ok(Step::Blocked(recalls)) => {
                    self.clients.recall(recalls);
                    return Err(ManagerError::Held);
                }
                Err(ApplyStop::Refused(error)) => return Err(error),
                Err(ApplyStop::Missing(missing)) => {
                    self.load(missing).await?;
                    self.state.lock().evict();
                }
            }
        }
    }

    /// Opens a file for the request whose turn it is.
    async fn open_in_turn(
        &self,
        client: ClientId,
        file: FileId,
        mode: Mode,
        queue: &Queue,
    ) -> Result<Opened, ManagerError> {
        loop {
            let step = self.state.lock().open(client, file, mode);
            match step {
                Ok(Step::Opened(opened)) => {
                    self.state.lock().evict();
                    return Ok(*opened);
                }
                Ok(Step::Blocked(recalls)) => {
                    self.clients.recall(recalls);
                    queue.given_back.notified().await;
                }
                Err(ApplyStop::Refused(error)) => return Err(error),
                Err(ApplyStop::Missing(missing)) => self.load(missing).await?,
            }
        }
    }

    /// Who uses a file, and who waits for it.
    pub(crate) fn file_use(&self, file: FileId) -> FileUse {
        let queues = self.clients.queues.lock();
        let waits = |queue: &Arc<Queue>| queue.waiting.lock().by_number.values().copied().collect();
        let waiting = queues.get(&file).map(waits).unwrap_or_default();
        FileUse { waiting, ..self.state.lock().tokens.file_use(file) }
    }

    /// Takes a token back.
    pub(crate) fn take_back(&self, client: ClientId, back: GiveBack) {
        let changed = self.state.lock().tokens.give_back(client, back);
        if changed && !planted::is(Bug::GiveBackWakesNobody) {
            self.clients.given_back(back.file);
        }
    }
}

impl ManagerState {
    /// True if the client may have tokens. Before any client was let in, all may.
    pub(crate) fn is_client(&self, client: ClientId) -> bool {
        self.owners.is_empty() || self.owners.values().any(|owner| *owner == client)
    }

    /// Takes a token on a file for a client. The only client gets the right to change the file
    /// whatever it asks for, because that takes nothing from anybody.
    pub(crate) fn open(&mut self, client: ClientId, file: FileId, mode: Mode) -> Result<Step, ApplyStop> {
        if !self.is_client(client) {
            return Err(ManagerError::Expelled.into());
        }
        let mode = if self.owners.len() <= 1 { Mode::Write } else { mode };
        self.grant(client, file, mode)
    }
}
