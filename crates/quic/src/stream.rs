//! Messages on streams, and what connections are closed with.

use bytes::Bytes;
use quinn::{Connection, Endpoint, ReadError, RecvStream, SendStream, StreamId, VarInt, WriteError};
use roam_proto::channel::{Class, MESSAGE_LEN_MAX};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest part of a message that is read without a place for long ones, in bytes.
const SHORT_LEN_MAX: usize = 4 << 10;
/// What any message takes of the room for those that nobody waits for, so that neither can they
/// take all streams.
const BACKGROUND_COST_MIN: usize = 16 << 10;
/// What streams are reset with that nobody waits for any more.
const GIVEN_UP: VarInt = VarInt::from_u32(0);

/// An answer of up to so many bytes goes at once, since it fits into a packet.
const AT_ONCE_LEN_MAX: usize = 1000;

/// Why this end closed a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Close {
    /// It is not needed any more.
    Done = 0,
    /// The home stops.
    Stopping = 1,
    /// A request or a message that is none.
    Refused = 2,
    /// A message longer than any may be.
    TooLong = 3,
    /// More is waiting to be pushed than there is room for.
    Behind = 4,
    /// Nothing was asked in time.
    Silent = 5,
    /// The same client has made newer ones.
    Replaced = 6,
    /// The home could not answer.
    Failed = 7,
}

impl Close {
    fn reason(self) -> &'static str {
        match self {
            Close::Done => "done",
            Close::Stopping => "the home stops",
            Close::Refused => "not a request",
            Close::TooLong => "message too long",
            Close::Behind => "too many messages wait",
            Close::Silent => "nothing was asked",
            Close::Replaced => "replaced by newer connections",
            Close::Failed => "the home failed",
        }
    }

    /// Closes a connection with this as its reason.
    pub(crate) fn close(self, connection: &Connection) {
        connection.close(VarInt::from_u32(self as u32), self.reason().as_bytes());
    }

    /// Closes all of an endpoint's connections likewise, and the endpoint.
    pub(crate) fn close_all(self, endpoint: &Endpoint) {
        endpoint.close(VarInt::from_u32(self as u32), self.reason().as_bytes());
    }
}

/// The priority of what is pushed: it tells that what the other end holds is no longer true, so it
/// goes before all.
pub(crate) const PUSH_PRIORITY: i32 = 4 << INDEX_BITS;
/// Bits of a priority that order the streams of one class.
const INDEX_BITS: u32 = 28;

/// The first byte of a request: the higher, the sooner.
pub(crate) fn byte_of(class: Class) -> u8 {
    match class {
        Class::Interactive => 3,
        Class::Demand => 2,
        Class::Prefetch => 1,
        Class::Replay => 0,
    }
}

fn class_of(byte: u8) -> Option<Class> {
    [Class::Interactive, Class::Demand, Class::Prefetch, Class::Replay]
        .into_iter()
        .find(|class| byte_of(*class) == byte)
}

/// The priority of a request and its answer. Of one class the first goes first: taking turns, all
/// would be late.
fn priority_of(class: Class, stream: StreamId) -> i32 {
    let index = stream.index() & ((1 << INDEX_BITS) - 1);
    (i32::from(byte_of(class)) << INDEX_BITS) - index as i32
}

/// The priority of an answer. A short one keeps nobody waiting, but whoever sent what it answers
/// could not go on for as long as others want more than the link carries: replay would stand still
/// whatever tickets it has.
fn priority_of_answer(class: Class, stream: StreamId, len: usize) -> i32 {
    priority_of(if len <= AT_ONCE_LEN_MAX { Class::Interactive } else { class }, stream)
}

/// Room in a window for messages that nobody waits for. Without this bound they would fill all of
/// it, and an urgent one would wait until they are through, whatever its priority.
pub(crate) struct Background {
    room: Arc<Semaphore>,
    bytes: usize,
}

impl Background {
    /// Three quarters of a window.
    pub(crate) fn of_window(window_bytes: u32) -> Background {
        let bytes = window_bytes as usize / 4 * 3;
        Background { room: Arc::new(Semaphore::new(bytes)), bytes }
    }

    /// Waits for room, if it is that class's to wait. To be kept until the message has arrived.
    pub(crate) async fn enter(&self, class: Class, len: usize) -> Option<OwnedSemaphorePermit> {
        match class {
            Class::Interactive | Class::Demand => None,
            Class::Prefetch | Class::Replay => {
                let cost = len.max(BACKGROUND_COST_MIN).min(self.bytes);
                self.room.clone().acquire_many_owned(cost as u32).await.ok()
            }
        }
    }
}

/// A stream that is reset when it is dropped before it was released: a message that breaks off must
/// not look like a whole one.
pub(crate) struct Outgoing {
    stream: SendStream,
    released: bool,
}

impl Outgoing {
    pub(crate) fn new(stream: SendStream, class: Class) -> Outgoing {
        // A stream that is gone already says so when it is written to.
        let _ = stream.set_priority(priority_of(class, stream.id()));
        Outgoing { stream, released: false }
    }

    /// An answer of so many bytes is to be sent.
    pub(crate) fn prepare_answer(&self, class: Class, len: usize) {
        let _ = self.stream.set_priority(priority_of_answer(class, self.stream.id(), len));
    }

    /// Writes all of a message and finishes.
    pub(crate) async fn send(&mut self, mut pieces: [Bytes; 2]) -> Result<(), WriteError> {
        self.stream.write_all_chunks(&mut pieces).await?;
        self.stream.finish().map_err(|_| WriteError::ClosedStream)
    }

    /// Done when all that was sent has arrived, or is not wanted.
    pub(crate) async fn arrived(&self) {
        let _ = self.stream.stopped().await;
    }

    /// Lets what was written go on to the other end.
    pub(crate) fn release(mut self) {
        self.released = true;
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.released {
            // Ended otherwise already.
            let _ = self.stream.reset(GIVEN_UP);
        }
    }
}

/// Why there is no message.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The other end gave it up, or the connection has ended.
    Gone,
    /// It is against the rules.
    Wrong(Close),
}

impl From<ReadError> for Unread {
    fn from(_: ReadError) -> Unread {
        Unread::Gone
    }
}

/// Reads a request. Memory for a long one is taken only with one of the `long` places.
pub(crate) async fn read_request(stream: &mut RecvStream, long: &Semaphore) -> Result<(Class, Bytes), Unread> {
    let (mut request, mut place) = (Vec::new(), None);
    while let Some(chunk) = stream.read_chunk(SHORT_LEN_MAX, true).await? {
        let len = request.len() + chunk.bytes.len();
        if len > 1 + MESSAGE_LEN_MAX {
            return Err(Unread::Wrong(Close::TooLong));
        }
        if len > SHORT_LEN_MAX && place.is_none() {
            place = Some(long.acquire().await.map_err(|_| Unread::Gone)?);
        }
        // Copied, since a chunk keeps the whole datagram that it came in.
        request.extend_from_slice(&chunk.bytes);
    }
    let class = request.first().and_then(|byte| class_of(*byte)).ok_or(Unread::Wrong(Close::Refused))?;
    Ok((class, Bytes::from(request).slice(1..)))
}

/// Resets the stream of a request that is none, at once rather than with an empty answer.
pub(crate) fn give_up(mut stream: SendStream) {
    // Ended otherwise already.
    let _ = stream.reset(GIVEN_UP);
}

/// Reads the next pushed message.
pub(crate) async fn read_pushed(stream: &mut RecvStream) -> Result<Bytes, Unread> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await.map_err(|_| Unread::Gone)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MESSAGE_LEN_MAX {
        return Err(Unread::Wrong(Close::TooLong));
    }
    let mut message = vec![0; len];
    stream.read_exact(&mut message).await.map_err(|_| Unread::Gone)?;
    Ok(message.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn::{Dir, Side};

    #[test]
    fn classes_go_before_each_other_and_within_one_the_first_goes_first() {
        let stream = |index| StreamId::new(Side::Client, Dir::Bi, index);
        let classes = [Class::Interactive, Class::Demand, Class::Prefetch, Class::Replay];
        let mut last = PUSH_PRIORITY + 1;
        for class in classes {
            for index in [0, 1, 2, 1000, (1 << INDEX_BITS) - 1] {
                let priority = priority_of(class, stream(index));
                assert!(priority < last, "{class:?} {index}");
                last = priority;
            }
            assert_eq!(priority_of(class, stream(1 << INDEX_BITS)), priority_of(class, stream(0)));
            assert_eq!(class_of(byte_of(class)), Some(class));
        }
        assert_eq!((class_of(4), class_of(255)), (None, None));
    }

    #[test]
    fn regression_replay_is_told_that_it_arrived_although_others_fetch_all_the_time() {
        let stream = |index| StreamId::new(Side::Client, Dir::Bi, index);
        let fetched = priority_of_answer(Class::Demand, stream(1), 20_000);
        assert!(priority_of_answer(Class::Replay, stream(2), 10) > fetched);
        assert!(priority_of_answer(Class::Replay, stream(2), 20_000) < fetched);
        assert!(priority_of_answer(Class::Replay, stream(2), 10) < PUSH_PRIORITY);
    }
}
