//! File locks of clients on other nodes: requests and answers as bytes, and both ends.
//!
//! A request is the session (u64), then the number (u64) and the number below which the client
//! knows how all ended (u64), then a u8 that says what it asks, and its fields: the file (u64), and
//! a lock as in `lock_wire`. An answer is a u8 and its fields: 0, done; 1 and a lock, that lock is
//! in the way; 2 and an errno (u16), it failed; 3, the session is over. Integers are little-endian.

use crate::lock_server::{LockOperation, LockRequest};
use crate::lock_wire::{lock, put_lock, put_space, space};
use crate::members::Members;
use crate::shared_locks::LockWay;
use bytes::Bytes;
use host::{Either, Host, first};
use link::{LinkError, Message, NodeService, OrderedLane, Peer, kinds};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::codec::{DecodeError, Put, Reader};
use types::{BoxFuture, FileId, FsError};
use vfs::fs::FileLock;

/// Pause after the first node refused a request.
const PAUSE: Duration = Duration::from_secs(1);

fn file(reader: &mut Reader<'_>) -> Result<FileId, DecodeError> {
    Ok(FileId::new(reader.u64("locked file")?))
}

/// A request to the lock table, in a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockCall {
    /// The session.
    pub session: u64,
    /// What its client asks.
    pub request: LockRequest,
}

impl LockCall {
    /// As bytes. Of a lock's owner, the lower half.
    pub fn encode(&self) -> Vec<u8> {
        let LockRequest { number, known_below, operation } = self.request;
        let mut out = Vec::new();
        for number in [self.session, number, known_below] {
            out.put_u64(number);
        }
        match operation {
            LockOperation::Test(file, lock) => {
                out.put_u8(0);
                out.put_u64(file.raw());
                put_lock(&mut out, &lock);
            }
            LockOperation::Set(file, lock, waits) => {
                out.put_u8(1 + u8::from(waits));
                out.put_u64(file.raw());
                put_lock(&mut out, &lock);
            }
            LockOperation::Release(file, space, owner) => {
                out.put_u8(3);
                out.put_u64(file.raw());
                put_space(&mut out, space);
                out.put_u64(owner);
            }
            LockOperation::GiveUp(number) => {
                out.put_u8(4);
                out.put_u64(number);
            }
        }
        out
    }

    /// Reads a request.
    pub fn decode(bytes: &[u8]) -> Result<LockCall, DecodeError> {
        let mut r = Reader::new(bytes);
        let (session, number) = (r.u64("session")?, r.u64("number of a lock request")?);
        let known_below = r.u64("known lock requests")?;
        let operation = match r.u8("lock operation")? {
            0 => LockOperation::Test(file(&mut r)?, lock(&mut r)?),
            waits @ 1..=2 => LockOperation::Set(file(&mut r)?, lock(&mut r)?, waits == 2),
            3 => LockOperation::Release(file(&mut r)?, space(&mut r)?, r.u64("lock owner")?),
            4 => LockOperation::GiveUp(r.u64("given-up lock request")?),
            _ => return Err(DecodeError::Invalid("lock operation")),
        };
        match r.is_empty() {
            true => Ok(LockCall { session, request: LockRequest { number, known_below, operation } }),
            false => Err(DecodeError::Invalid("length")),
        }
    }
}

/// An answer of the lock table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockReply {
    /// How the request ended.
    Ended(Result<Option<FileLock>, FsError>),
    /// The session is over.
    NoSession,
}

impl LockReply {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            LockReply::Ended(Ok(None)) => out.put_u8(0),
            LockReply::Ended(Ok(Some(lock))) => {
                out.put_u8(1);
                put_lock(&mut out, lock);
            }
            LockReply::Ended(Err(error)) => {
                out.put_u8(2);
                out.put_u16(error.errno() as u16);
            }
            LockReply::NoSession => out.put_u8(3),
        }
        out
    }

    /// Reads an answer.
    pub fn decode(bytes: &[u8]) -> Result<LockReply, DecodeError> {
        let mut r = Reader::new(bytes);
        let reply = match r.u8("lock answer")? {
            0 => LockReply::Ended(Ok(None)),
            1 => LockReply::Ended(Ok(Some(lock(&mut r)?))),
            2 => {
                let errno = i32::from(r.u16("errno")?);
                let error = FsError::ALL.iter().find(|error| error.errno() == errno);
                LockReply::Ended(Err(*error.ok_or(DecodeError::Invalid("errno"))?))
            }
            3 => LockReply::NoSession,
            _ => return Err(DecodeError::Invalid("lock answer")),
        };
        if r.is_empty() { Ok(reply) } else { Err(DecodeError::Invalid("length")) }
    }
}

/// The lock table, as a service for other nodes.
pub struct LockTableService(pub Arc<Members>);

impl NodeService for LockTableService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let LockCall { session, request } = LockCall::decode(&head)?;
        let client = peer.fingerprint.and_then(|fingerprint| self.0.client_of(session, &fingerprint));
        let answer = client.map(|client| self.0.locks().ask(client, request));
        Ok(Box::pin(async move {
            let reply = match answer {
                Some(answer) => LockReply::Ended(answer.await),
                None => LockReply::NoSession,
            };
            Message::of_head(reply.encode())
        }))
    }
}

/// The way of one session to the lock table of another node.
pub struct RemoteLocks {
    host: Host,
    lane: Arc<dyn OrderedLane>,
    session: u64,
    is_over: watch::Sender<bool>,
}

impl RemoteLocks {
    /// A way by this lane.
    pub fn new(host: &Host, lane: Arc<dyn OrderedLane>, session: u64) -> Arc<RemoteLocks> {
        Arc::new(RemoteLocks { host: host.clone(), lane, session, is_over: watch::Sender::new(false) })
    }

    /// Ends the session: requests that wait, and later ones, fail with [`FsError::Io`].
    pub fn end(&self) {
        self.is_over.send_replace(true);
    }
}

impl LockWay for RemoteLocks {
    fn ask(&self, request: LockRequest) -> BoxFuture<Result<Option<FileLock>, FsError>> {
        let head = LockCall { session: self.session, request }.encode();
        let (host, lane, mut is_over) = (self.host.clone(), self.lane.clone(), self.is_over.subscribe());
        let asking = async move {
            let mut connection = lane.connection().unwrap_or(0);
            loop {
                match lane.ask_in(connection, kinds::LOCKS, Message::of_head(head.clone())).await {
                    Ok(answer) => match LockReply::decode(&answer.head) {
                        Ok(LockReply::Ended(outcome)) => return outcome,
                        Ok(LockReply::NoSession) => return Err(FsError::Io),
                        Err(error) => {
                            tracing::error!(%error, "the answer of the lock table cannot be read");
                            return Err(FsError::Io);
                        }
                    },
                    Err(LinkError::Down | LinkError::Lost) => connection = lane.next_connection(connection).await,
                    Err(error) => {
                        tracing::error!(%error, "the lock table's node does not serve a request");
                        host.clock.sleep(PAUSE).await;
                    }
                }
            }
        };
        Box::pin(async move {
            match first(is_over.wait_for(|is_over| *is_over), asking).await {
                Either::Left(_) => Err(FsError::Io),
                Either::Right(outcome) => outcome,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_wire::SPACES;
    use host::sim::Sim;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use vfs::fs::LockSpace;

    /// A lane whose second connection answers; on the first one, answers are lost.
    #[derive(Default)]
    struct LossyLane(Mutex<Vec<(u64, Vec<u8>)>>);

    impl OrderedLane for LossyLane {
        fn connection(&self) -> Option<u64> {
            Some(1)
        }
        fn next_connection(&self, after: u64) -> BoxFuture<u64> {
            Box::pin(async move { after + 1 })
        }
        fn ask_in(&self, connection: u64, kind: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
            assert_eq!(kind, kinds::LOCKS);
            let call = LockCall::decode(&message.head).unwrap();
            self.0.lock().push((connection, message.head));
            Box::pin(async move {
                match (connection, call.request.operation) {
                    (1, _) => Err(LinkError::Lost),
                    (_, LockOperation::Set(..)) => std::future::pending().await,
                    _ => Ok(Message::of_head(LockReply::Ended(Err(FsError::WouldBlock)).encode())),
                }
            })
        }
    }

    #[test]
    fn a_request_whose_answer_is_lost_is_repeated_until_the_session_is_over() {
        let sim = Sim::new(1);
        let host = sim.machine("one").host();
        sim.block_on(async {
            let lane = Arc::new(LossyLane::default());
            let locks = RemoteLocks::new(&host, lane.clone(), 5);
            let exclusive = Some(true);
            let lock = FileLock { space: LockSpace::Mixed, owner: 1, pid: 1, exclusive, start: 0, end: 9 };
            let request = |operation| LockRequest { number: 3, known_below: 3, operation };
            let test = request(LockOperation::Test(FileId::new(9), lock));
            assert_eq!(locks.ask(test).await, Err(FsError::WouldBlock));
            let head = LockCall { session: 5, request: test }.encode();
            assert_eq!(*lane.0.lock(), [(1, head.clone()), (2, head)]);

            let waits = locks.ask(request(LockOperation::Set(FileId::new(9), lock, true)));
            let (ending, clock) = (locks.clone(), host.clock.clone());
            host.tasks.spawn(Box::pin(async move {
                clock.sleep(Duration::from_millis(10)).await;
                ending.end();
            }));
            assert_eq!(waits.await, Err(FsError::Io));
            assert_eq!(locks.ask(test).await, Err(FsError::Io), "the session is over");
        });
    }

    fn any_lock() -> impl Strategy<Value = FileLock> {
        let exclusive = prop::option::of(any::<bool>());
        (0..3usize, any::<u64>(), any::<u32>(), exclusive, any::<u64>(), any::<u64>()).prop_map(
            |(space, owner, pid, exclusive, start, end)| FileLock {
                space: SPACES[space],
                owner: owner.into(),
                pid,
                exclusive,
                start,
                end,
            },
        )
    }

    fn any_operation() -> impl Strategy<Value = LockOperation> {
        let file = || any::<u64>().prop_map(FileId::new);
        prop_oneof![
            (file(), any_lock()).prop_map(|(file, lock)| LockOperation::Test(file, lock)),
            (file(), any_lock(), any::<bool>()).prop_map(|(file, lock, waits)| LockOperation::Set(file, lock, waits)),
            (file(), 0..3usize, any::<u64>()).prop_map(|(file, space, owner)| LockOperation::Release(
                file,
                SPACES[space],
                owner
            )),
            any::<u64>().prop_map(LockOperation::GiveUp),
        ]
    }

    proptest! {
        #[test]
        fn prop_requests_come_back_and_cut_or_longer_ones_are_refused(
            session in any::<u64>(), number in any::<u64>(), known_below in any::<u64>(), operation in any_operation(),
        ) {
            let call = LockCall { session, request: LockRequest { number, known_below, operation } };
            let mut bytes = call.encode();
            for len in 0..bytes.len() {
                prop_assert!(LockCall::decode(&bytes[..len]).is_err());
            }
            prop_assert_eq!(LockCall::decode(&bytes), Ok(call));
            bytes.push(0);
            prop_assert!(LockCall::decode(&bytes).is_err());
        }

        #[test]
        fn prop_answers_come_back(lock in prop::option::of(any_lock()), error in 0..FsError::ALL.len()) {
            for reply in [LockReply::Ended(Ok(lock)), LockReply::Ended(Err(FsError::ALL[error])), LockReply::NoSession] {
                let mut bytes = reply.encode();
                prop_assert_eq!(LockReply::decode(&bytes), Ok(reply));
                bytes.push(0);
                prop_assert!(LockReply::decode(&bytes).is_err());
            }
        }
    }
}
