//! Messages on streams, their priorities, and the codes that close connections.

use bytes::Bytes;
use quinn::{Connection, Endpoint, ReadError, RecvStream, SendStream, StreamId, VarInt, WriteError};
use roam_proto::channel::{Class, MESSAGE_LEN_MAX};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much of a request is read, in bytes, before it needs a permit for long requests.
const SHORT_LEN_MAX: usize = 4 << 10;
/// The least room that a background message takes, in bytes. So many small messages cannot take all
/// streams.
const BACKGROUND_COST_MIN: usize = 16 << 10;
/// The code that resets a stream when no caller waits for it any more.
const GIVEN_UP: VarInt = VarInt::from_u32(0);

/// Longest answer that goes out at once, in bytes: it fits into a packet.
const AT_ONCE_LEN_MAX: usize = 1000;

/// Why this end closed a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Close {
    /// It is not needed any more.
    Done = 0,
    /// The home stops.
    Stopping = 1,
    /// The peer sent bytes that are no valid request or message.
    Refused = 2,
    /// The peer sent a message that is longer than [`MESSAGE_LEN_MAX`].
    TooLong = 3,
    /// The queue of pushed messages is full.
    Behind = 4,
    /// No request came in time.
    Silent = 5,
    /// The same client has made newer connections.
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

    /// Closes a connection with this code and reason.
    pub(crate) fn close(self, connection: &Connection) {
        connection.close(VarInt::from_u32(self as u32), self.reason().as_bytes());
    }

    /// Closes all connections of an endpoint with this code and reason, and then the endpoint.
    pub(crate) fn close_all(self, endpoint: &Endpoint) {
        endpoint.close(VarInt::from_u32(self as u32), self.reason().as_bytes());
    }
}

/// The priority of pushed messages. They say that the client's cache is outdated, so they go before
/// all else.
pub(crate) const PUSH_PRIORITY: i32 = 4 << INDEX_BITS;
/// Bits of a priority that order the streams of one class.
const INDEX_BITS: u32 = 28;

/// The first byte of a request. A higher byte is a higher priority.
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

/// Returns the priority of a request and its answer. Within a class, the first request goes first.
/// If the requests took turns, all would be late.
fn priority_of(class: Class, stream: StreamId) -> i32 {
    let index = stream.index() & ((1 << INDEX_BITS) - 1);
    (i32::from(byte_of(class)) << INDEX_BITS) - index as i32
}

/// Returns the priority of an answer. A short answer goes at once and delays nothing. At the
/// priority of its class it could wait for as long as other traffic fills the link, and the sender
/// of the request could not go on: replay would stand still with any number of tickets.
fn priority_of_answer(class: Class, stream: StreamId, len: usize) -> i32 {
    priority_of(if len <= AT_ONCE_LEN_MAX { Class::Interactive } else { class }, stream)
}

/// Room in a window for background messages: those that no program waits for. Without this bound
/// they would fill the window, and an urgent message would wait until they are through, even at
/// the highest priority.
pub(crate) struct Background {
    room: Arc<Semaphore>,
    bytes: usize,
}

impl Background {
    /// Takes three quarters of a window.
    pub(crate) fn of_window(window_bytes: u32) -> Background {
        let bytes = window_bytes as usize / 4 * 3;
        Background { room: Arc::new(Semaphore::new(bytes)), bytes }
    }

    /// Waits for room, if the class is a background class. The caller keeps the permit until the
    /// message has arrived.
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

/// An outgoing message's stream. It is reset when it is dropped before [`release`](Self::release):
/// a message that breaks off must not look like a whole one.
pub(crate) struct Outgoing {
    stream: SendStream,
    released: bool,
}

impl Outgoing {
    pub(crate) fn new(stream: SendStream, class: Class) -> Outgoing {
        // If the stream is gone already, the first write says so.
        let _ = stream.set_priority(priority_of(class, stream.id()));
        Outgoing { stream, released: false }
    }

    /// Sets the priority for an answer of `len` bytes.
    pub(crate) fn prepare_answer(&self, class: Class, len: usize) {
        let _ = self.stream.set_priority(priority_of_answer(class, self.stream.id(), len));
    }

    /// Writes all of a message and finishes the stream.
    pub(crate) async fn send(&mut self, mut pieces: [Bytes; 2]) -> Result<(), WriteError> {
        self.stream.write_all_chunks(&mut pieces).await?;
        self.stream.finish().map_err(|_| WriteError::ClosedStream)
    }

    /// Waits until all that was sent has arrived, or the peer does not want it.
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
            // The stream may have ended already.
            let _ = self.stream.reset(GIVEN_UP);
        }
    }
}

/// Why a message could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The other end gave up the message, or the connection has ended.
    Gone,
    /// The message breaks the rules.
    Wrong(Close),
}

impl From<ReadError> for Unread {
    fn from(_: ReadError) -> Unread {
        Unread::Gone
    }
}

/// Reads a request. A long request gets memory only with one of the `long` permits.
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
        // Copied, since a chunk keeps its whole datagram in memory.
        request.extend_from_slice(&chunk.bytes);
    }
    let class = request.first().and_then(|byte| class_of(*byte)).ok_or(Unread::Wrong(Close::Refused))?;
    Ok((class, Bytes::from(request).slice(1..)))
}

/// Resets the stream of an incomplete request, instead of sending an empty answer.
pub(crate) fn give_up(mut stream: SendStream) {
    // The stream may have ended already.
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
