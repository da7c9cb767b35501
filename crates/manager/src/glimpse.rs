//! Glimpses: attributes of a file that another client is changing, without its token
//! (docs/core.md#tokens).
//!
//! The manager asks the client that may change the file, and passes its answer on. The answer
//! counts only while that client has its token: a question ends when the client gives the token
//! back, and when its session ends. Nothing here waits until a token is given back.

use crate::api::{Glimpse, GlimpseAnswer, GlimpseQuestion, ManagerError};
use crate::clients::Step;
use crate::planted::{self, Bug};
use crate::questions::Told;
use crate::server::Core;
use crate::state::{ApplyStop, ManagerState};
use crate::token::Mode;
use std::sync::Arc;
use std::time::Duration;
use types::{Answer, ClientId, FileId, Kind};

/// How long a client may take to answer a question. Then its token is recalled.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// A question that the manager waits for. When this is dropped, an answer counts no more.
struct Asked {
    core: Arc<Core>,
    question: GlimpseQuestion,
    told: Told,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.core.clients.questions.lock().forget(self.question);
    }
}

impl Core {
    pub(crate) fn glimpse(self: &Arc<Self>, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        let first = self.clients.unless_queued(file, || {
            let state = &mut *self.state.lock();
            let is_free = state.tokens.writer_beside(client, file).is_none();
            is_free.then(|| state.open(client, file, Mode::Read))
        });
        match first.flatten() {
            Some(Ok(Step::Opened(opened))) => return Answer::ok(Glimpse::Opened(opened)),
            Some(Ok(Step::Blocked(recalls))) => {
                self.clients.recall(recalls);
                return Answer::err(ManagerError::Held);
            }
            Some(Err(ApplyStop::Refused(error))) => return Answer::err(error),
            Some(Err(ApplyStop::Missing(_))) | None => {}
        }
        let core = self.clone();
        Answer::later(async move { core.glimpse_later(client, file).await })
    }

    async fn glimpse_later(self: Arc<Self>, client: ClientId, file: FileId) -> Result<Glimpse, ManagerError> {
        loop {
            match self.ask_writer(client, file) {
                Ok(None) => break,
                Ok(Some(_)) if planted::is(Bug::GlimpseIsOld) => {
                    let (node, term) = {
                        let state = self.state.lock();
                        (state.node(file).map(|node| node.inode), state.tokens.term())
                    };
                    let inode = Box::new(node.ok_or(ManagerError::NotFound)?);
                    return Ok(Glimpse::Seen { inode, term });
                }
                Ok(Some(mut asked)) => {
                    let clock = self.stripe.host().clock.clone();
                    match host::timeout(&*clock, ANSWER_TIME_MAX, &mut asked.told).await {
                        Ok(Ok(Some(inode))) => {
                            return Ok(Glimpse::Seen { inode, term: asked.question.term });
                        }
                        // The client has given the token back, is gone, or does not answer.
                        _ => break,
                    }
                }
                Err(ApplyStop::Refused(error)) => return Err(error),
                Err(ApplyStop::Missing(missing)) => {
                    self.load(missing).await?;
                    self.state.lock().evict();
                }
            }
        }
        let opened = self.open_now(client, file, Mode::Read).await?;
        Ok(Glimpse::Opened(Box::new(opened)))
    }

    /// Asks the client that may change a file; `None` if there is no other one.
    fn ask_writer(self: &Arc<Self>, client: ClientId, file: FileId) -> Result<Option<Asked>, ApplyStop> {
        let (holder, question, told) = {
            // Under the state's lock: so the question ends if the token is given back after this.
            let state = &mut *self.state.lock();
            let Some(holder) = state.writer_to_ask(client, file)? else { return Ok(None) };
            let term = state.tokens.term();
            let (question, told) = self.clients.questions.lock().ask(holder, file, term);
            (holder, question, told)
        };
        // A client without a connection gets the question when it has one.
        if let Some(holder) = self.clients.holder(holder) {
            holder.glimpse(question);
        }
        Ok(Some(Asked { core: self.clone(), question, told }))
    }

    pub(crate) fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer) {
        self.clients.questions.lock().answered(client, answer);
    }
}

impl ManagerState {
    /// The other client that may change a regular file.
    fn writer_to_ask(&mut self, client: ClientId, file: FileId) -> Result<Option<ClientId>, ApplyStop> {
        if !self.is_client(client) {
            return Err(ManagerError::Expelled.into());
        }
        self.serves(file)?;
        if !self.find(file)? {
            return Err(ManagerError::NotFound.into());
        }
        let is_regular = self.node(file).is_some_and(|node| node.inode.kind == Kind::File);
        Ok(self.tokens.writer_beside(client, file).filter(|_| is_regular))
    }
}
