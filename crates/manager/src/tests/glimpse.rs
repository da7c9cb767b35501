//! Attributes that the client tells which may change the file.

use super::requests::{create, file};
use crate::InodeRecord;
use crate::api::{
    GiveBack, Glimpse, GlimpseAnswer, GlimpseQuestion, Manager, ManagerAdmin, ManagerError, TokenHolder, TokenRecall,
};
use crate::testing::{CLIENT_LOG, Running, Setup, inode};
use crate::token::Mode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use types::{BoxFuture, ClientId, LogId};

const WRITER: ClientId = ClientId::new(1);
const READER: ClientId = ClientId::new(2);
const OTHER: ClientId = ClientId::new(3);

/// Notes what it is asked.
#[derive(Default)]
struct Holder {
    questions: Mutex<Vec<GlimpseQuestion>>,
    recalls: Mutex<Vec<TokenRecall>>,
}

impl TokenHolder for Holder {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        self.recalls.lock().extend(recalls);
    }

    fn glimpse(&self, question: GlimpseQuestion) {
        self.questions.lock().push(question);
    }
}

/// A request that waits.
type Waiting = BoxFuture<Result<Glimpse, ManagerError>>;

/// A manager whose writer holds the file, with the number of its grant.
async fn held(setup: &Setup) -> (Running, Arc<Holder>, u64) {
    let mut run = setup.start().await.unwrap();
    run.server.begin_term(9);
    let holder = Arc::new(Holder::default());
    let logs = [(WRITER, CLIENT_LOG), (READER, LogId::new(1001)), (OTHER, LogId::new(1002))];
    logs.into_iter().for_each(|(client, log)| run.server.admit(client, log, holder.clone()));
    create(&mut run, 0..1).await;
    let opened = run.server.open(WRITER, file(0), Mode::Write).await.unwrap();
    (run, holder, opened.grant.number)
}

/// Asks for the attributes. The writer has been asked when this returns.
fn ask(run: &Running, client: ClientId) -> Waiting {
    let mut waiting = run.server.glimpse(client, file(0)).into_future();
    expect_no_answer(&mut waiting);
    waiting
}

fn expect_no_answer(waiting: &mut Waiting) {
    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "answered {polled:?}");
}

/// The file after a change.
fn changed(size: u64) -> InodeRecord {
    InodeRecord { size, ..inode(file(0), 1, 0) }
}

fn answer(run: &Running, question: GlimpseQuestion, size: u64) {
    run.server.glimpsed(WRITER, GlimpseAnswer { question, inode: Some(Box::new(changed(size))) });
}

fn seen(size: u64) -> Result<Glimpse, ManagerError> {
    Ok(Glimpse::Seen { inode: Box::new(changed(size)), term: 9 })
}

fn give_back(run: &Running, number: u64, keep: Option<Mode>) {
    run.server.give_back(WRITER, GiveBack { file: file(0), number, keep, is_open: false });
}

#[test]
fn the_writer_tells_and_keeps_its_token() {
    let setup = Setup::new(71);
    setup.sim.block_on(async {
        let (run, holder, _) = held(&setup).await;
        let before = run.server.status().token_count;
        let waiting = ask(&run, READER);
        let question = holder.questions.lock()[0];
        answer(&run, question, 77);
        assert_eq!(waiting.await, seen(77));
        assert_eq!((run.server.status().token_count, holder.recalls.lock().len()), (before, 0));
        // The writer itself needs to ask nobody.
        assert!(matches!(run.server.glimpse(WRITER, file(0)).await, Ok(Glimpse::Opened(_))));
    });
}

#[test]
fn an_answer_is_for_one_question_only() {
    let setup = Setup::new(72);
    setup.sim.block_on(async {
        let (run, holder, _) = held(&setup).await;
        let first = ask(&run, READER);
        let earlier = holder.questions.lock()[0];
        answer(&run, earlier, 1);
        assert_eq!(first.await, seen(1));
        let mut second = ask(&run, READER);
        let later = holder.questions.lock()[1];
        // What came late, from another term, or from a client that was not asked.
        answer(&run, earlier, 1);
        answer(&run, GlimpseQuestion { term: 8, ..later }, 2);
        run.server.glimpsed(OTHER, GlimpseAnswer { question: later, inode: Some(Box::new(changed(3))) });
        expect_no_answer(&mut second);
        answer(&run, later, 4);
        assert_eq!(second.await, seen(4));
    });
}

#[test]
fn several_clients_get_answers_of_their_own() {
    let setup = Setup::new(73);
    setup.sim.block_on(async {
        let (run, holder, _) = held(&setup).await;
        let (first, second) = (ask(&run, READER), ask(&run, OTHER));
        let questions = holder.questions.lock().clone();
        answer(&run, questions[1], 2);
        answer(&run, questions[0], 1);
        assert_eq!((first.await, second.await), (seen(1), seen(2)));
    });
}

#[test]
fn a_writer_that_may_only_read_from_now_on_ends_the_question() {
    let setup = Setup::new(74);
    setup.sim.block_on(async {
        let (run, holder, number) = held(&setup).await;
        let waiting = ask(&run, READER);
        let question = holder.questions.lock()[0];
        give_back(&run, number, Some(Mode::Read));
        // Another client may have changed the file by now.
        answer(&run, question, 5);
        let Ok(Glimpse::Opened(opened)) = waiting.await else { panic!("no token") };
        assert_eq!((opened.grant.mode, opened.inode.size), (Mode::Read, inode(file(0), 1, 0).size));
        assert_eq!(holder.recalls.lock().len(), 0);
    });
}

#[test]
fn a_file_that_another_client_waits_for_is_held() {
    let setup = Setup::new(75);
    setup.sim.block_on(async {
        let (run, holder, number) = held(&setup).await;
        let waits = run.server.open(OTHER, file(0), Mode::Write).into_future();
        // The writer still has it, and tells.
        let waiting = ask(&run, READER);
        let question = holder.questions.lock()[0];
        answer(&run, question, 6);
        assert_eq!(waiting.await, seen(6));
        // Now it goes to the other client, which comes first.
        let waiting = ask(&run, READER);
        give_back(&run, number, None);
        assert_eq!(waiting.await, Err(ManagerError::Held));
        waits.await.unwrap();
    });
}

#[test]
fn a_writer_that_does_not_hold_the_file_or_is_silent_is_asked_for_the_token() {
    let setup = Setup::new(76);
    setup.sim.block_on(async {
        for is_silent in [false, true] {
            let (run, holder, number) = held(&setup).await;
            let waiting = ask(&run, READER);
            let question = holder.questions.lock()[0];
            if !is_silent {
                run.server.glimpsed(WRITER, GlimpseAnswer { question, inode: None });
            }
            assert_eq!(waiting.await, Err(ManagerError::Held));
            let recall = TokenRecall { file: file(0), number, wanted: Mode::Read };
            assert_eq!(*holder.recalls.lock(), [recall]);
        }
    });
}

#[test]
fn a_question_is_asked_again_when_its_client_comes_back_and_ends_with_its_session() {
    let setup = Setup::new(77);
    setup.sim.block_on(async {
        let (run, holder, _) = held(&setup).await;
        let waiting = ask(&run, READER);
        run.server.admit(WRITER, CLIENT_LOG, holder.clone());
        let questions = holder.questions.lock().clone();
        assert_eq!(questions, [questions[0]; 2]);
        run.server.expel(WRITER);
        assert!(matches!(waiting.await, Ok(Glimpse::Opened(_))));
        assert_eq!(run.server.glimpse(WRITER, file(0)).await, Err(ManagerError::Expelled));
    });
}

#[test]
fn a_file_that_is_gone_ends_the_question() {
    let setup = Setup::new(78);
    setup.sim.block_on(async {
        let (mut run, _, _) = held(&setup).await;
        let waiting = ask(&run, READER);
        let removal = run.client.commit(0, |_| vec![crate::Delta::Remove { file: file(0) }]).await;
        run.server.apply(vec![removal]).await.unwrap();
        assert_eq!(waiting.await, Err(ManagerError::NotFound));
        assert_eq!(run.server.glimpse(READER, file(0)).await, Err(ManagerError::NotFound));
    });
}

/// It belongs to a token of an earlier term. Its number was higher than those of the next term,
/// which began anew, and freed a token that the client had been granted again.
#[test]
fn regression_what_comes_back_late_from_an_earlier_term_frees_no_token() {
    let setup = Setup::new(1);
    setup.sim.block_on(async {
        let (run, _, _) = held(&setup).await;
        let release = |run: &Running, number| run.server.release(WRITER, file(0), number);
        for _ in 0..5 {
            let number = run.server.open(WRITER, file(0), Mode::Write).await.unwrap().grant.number;
            release(&run, number);
        }
        let late = run.server.open(WRITER, file(0), Mode::Write).await.unwrap().grant.number;
        run.server.checkpoint().await.unwrap();
        drop(run);
        let run = setup.start().await.unwrap();
        run.server.begin_term(10);
        let holder = Arc::new(Holder::default());
        let logs = [(WRITER, CLIENT_LOG), (READER, LogId::new(1001))];
        logs.into_iter().for_each(|(client, log)| run.server.admit(client, log, holder.clone()));
        run.server.open(WRITER, file(0), Mode::Write).await.unwrap();
        release(&run, late);
        let file_use = run.server.file_use(file(0)).await.unwrap();
        assert!(file_use.holders.iter().any(|holder| holder.client == WRITER));
    });
}
