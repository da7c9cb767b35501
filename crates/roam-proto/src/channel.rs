//! Authenticated connections that carry messages, as traits. QUIC and the simulated world implement
//! them.
//!
//! A connection carries requests and their answers, in any order, and messages that the home
//! pushes, in the order of pushing. It has no notion of time: callers bound their own waits. A
//! connection may outlive changes of the client's address, and hours of silence.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use types::BoxFuture;

/// Longest message, in bytes.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;
/// Most requests of one connection that a home answers at a time.
pub const REQUEST_COUNT_MAX: u32 = 256;

/// A peer's identity: the SHA-256 of its public key (its SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerKey(pub [u8; 32]);

/// A message's priority (docs/roaming.md#the-link), highest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// A program waits for a small answer: a validation or a lookup.
    Interactive,
    /// A program waits for contents.
    Demand,
    /// The client fetches ahead: no program waits yet.
    Prefetch,
    /// The client sends home what it did.
    Replay,
}

/// The connection has ended. The fate of requests that were under way is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the connection has ended")]
pub struct Lost;

/// Why a connection could not be made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DialError {
    /// No home answers, or the network does not reach the home.
    #[error("{0}")]
    Unreachable(String),
    /// Another program than the expected home answers.
    #[error(
        "the home at {address} has another key than expected: another program answers there, or the home was made anew; ask for another invitation"
    )]
    WrongKey {
        /// The address that was dialed.
        address: String,
    },
    /// The peer speaks another protocol, or another version of this one.
    #[error("{0}")]
    Incompatible(String),
}

/// Measurements of a connection's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// The current estimate of the round trip.
    pub round_trip: Duration,
    /// Bytes that may be under way at once.
    pub window: u64,
    /// Bytes sent so far, as payload of UDP: QUIC's own headers count.
    pub sent: u64,
    /// Bytes received so far, likewise.
    pub received: u64,
}

/// The client's end of a connection. Dropping it closes it.
pub trait Channel: Send + Sync + 'static {
    /// Sends a request and returns its answer. A caller that drops the future gives up waiting; the
    /// home may do the request nevertheless.
    fn ask(&self, class: Class, request: Bytes) -> BoxFuture<Result<Bytes, Lost>>;
    /// Returns the next message that the home pushed. Only one caller at a time may wait here.
    fn pushed(&self) -> BoxFuture<Result<Bytes, Lost>>;
    /// Waits until the home has said how many messages it has pushed, and the client has taken that
    /// many. Then no message that the home pushed before the call is still on its way, however long
    /// the home was out of reach.
    ///
    /// While a caller waits here, another task must take the pushed messages. The channel asks a
    /// silent home again now and then, so it notices soon that the home is back.
    fn caught_up(&self) -> BoxFuture<Result<(), Lost>>;
    /// Moves the connection to a new socket, since this machine's addresses may have changed.
    fn rebind(&self);
    /// Returns the measurements of the path.
    fn path(&self) -> Path;
    /// True once the connection has ended. A connection that is merely silent has not ended.
    fn has_ended(&self) -> bool;
    /// Ends the connection.
    fn close(&self);
}

/// Makes connections to one home.
pub trait Dialer: Send + Sync + 'static {
    /// Makes a connection. The caller bounds the wait.
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>>;
}

/// The home's end of a connection, for pushing messages.
pub trait Push: Send + Sync + 'static {
    /// Queues a message. Fails with `Lost` if the connection has ended. A queue that is full ends
    /// the connection, which also fails with `Lost`.
    fn push(&self, message: Bytes) -> Result<(), Lost>;
}

/// A home, as the connections see it.
pub trait Service: Send + Sync + 'static {
    /// Begins a session for a peer that has proved that it owns the key.
    fn connected(&self, peer: PeerKey, push: Arc<dyn Push>) -> Arc<dyn Session>;
    /// True if the home serves this peer. Connections from other peers get little room: they may
    /// only ask to enroll.
    fn knows(&self, peer: PeerKey) -> bool;
}

/// The home's state for one connection.
pub trait Session: Send + Sync + 'static {
    /// Answers a request. `None` ends the connection: the bytes were no valid request.
    fn answer(&self, request: Bytes) -> BoxFuture<Option<Bytes>>;
    /// Tells the session that its connection has ended.
    fn ended(&self);
}
