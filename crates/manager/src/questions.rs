//! The questions for attributes that a manager has asked clients (the module `glimpse`). Pure.

use crate::InodeRecord;
use crate::api::{GlimpseAnswer, GlimpseQuestion};
use crate::planted::{self, Bug};
use std::collections::BTreeMap;
use tokio::sync::oneshot;
use types::{ClientId, FileId};

/// A question that was not answered yet.
struct Waiting {
    question: GlimpseQuestion,
    /// The client that was asked.
    holder: ClientId,
    tell: oneshot::Sender<Option<Box<InodeRecord>>>,
}

/// The questions that were not answered yet.
#[derive(Default)]
pub(crate) struct Questions {
    last_number: u64,
    waiting: BTreeMap<u64, Waiting>,
}

impl Questions {
    /// Ends all questions for a file. There is no answer to them.
    pub(crate) fn end(&mut self, file: FileId) {
        self.waiting.retain(|_, waiting| waiting.question.file != file);
    }

    /// The questions that a client has not answered.
    pub(crate) fn unanswered(&self, client: ClientId) -> Vec<GlimpseQuestion> {
        self.waiting.values().filter(|waiting| waiting.holder == client).map(|waiting| waiting.question).collect()
    }

    /// Notes a question to a client.
    pub(crate) fn ask(&mut self, holder: ClientId, file: FileId, term: u64) -> (GlimpseQuestion, Told) {
        self.last_number += 1;
        let question = GlimpseQuestion { file, term, number: self.last_number };
        let (tell, told) = oneshot::channel();
        self.waiting.insert(question.number, Waiting { question, holder, tell });
        (question, told)
    }

    /// No answer to this question counts any more.
    pub(crate) fn forget(&mut self, question: GlimpseQuestion) {
        self.waiting.remove(&question.number);
    }

    /// Takes an answer in.
    pub(crate) fn answered(&mut self, client: ClientId, answer: GlimpseAnswer) {
        let is_answer = |waiting: &Waiting| {
            let is_of_file = waiting.question.file == answer.question.file;
            let is_same = waiting.question == answer.question;
            waiting.holder == client && (is_same || (is_of_file && planted::is(Bug::GlimpseTakesAnyAnswer)))
        };
        let number = self.waiting.values().find(|waiting| is_answer(waiting)).map(|waiting| waiting.question.number);
        if let Some(waiting) = number.and_then(|number| self.waiting.remove(&number)) {
            // The client that wants to know may have gone.
            let _ = waiting.tell.send(answer.inode);
        }
    }
}

/// The answer to a question. It fails if there will be none.
pub(crate) type Told = oneshot::Receiver<Option<Box<InodeRecord>>>;
