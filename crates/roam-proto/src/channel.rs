//! How messages get across: authenticated connections as traits, for QUIC and for the simulated
//! world.
//!
//! A connection carries requests with their answers, in any order, and messages that the home
//! pushes, in theirs. It has no notion of time: whoever waits says how long. It may outlive changes
//! of the client's address, and hours without a word.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use types::BoxFuture;

/// Longest message, in bytes.
pub const MESSAGE_LEN_MAX: usize = 1 << 20;
/// Most requests of one connection that a home answers at a time.
pub const REQUEST_COUNT_MAX: u32 = 256;

/// SHA-256 of a peer's public key (its SubjectPublicKeyInfo): who it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerKey(pub [u8; 32]);

/// What a message is for (docs/roaming.md#the-link); the first goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Somebody waits for a small answer: validation, lookups.
    Interactive,
    /// Somebody waits for contents.
    Demand,
    /// Nobody waits yet.
    Prefetch,
    /// What was done here goes home.
    Replay,
}

/// The connection has ended: whether what was under way got there is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the connection has ended")]
pub struct Lost;

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DialError {
    /// Nobody answers, or the network does not get there.
    #[error("{0}")]
    Unreachable(String),
    /// Whoever answers is not the home that was meant.
    #[error(
        "the key of the home at {address} is not the one that was expected: somebody else answers there, or the home was made anew; ask for another invitation"
    )]
    WrongKey {
        /// Where.
        address: String,
    },
    /// It speaks another protocol, or an older or newer one.
    #[error("{0}")]
    Incompatible(String),
}

/// What a connection knows of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// Round trip as it is estimated now.
    pub round_trip: Duration,
    /// Bytes that may be under way at once.
    pub window: u64,
    /// Bytes sent so far, with all headers below UDP's.
    pub sent: u64,
    /// Bytes received so far, likewise.
    pub received: u64,
}

/// The client's end of a connection. Dropping it closes it.
pub trait Channel: Send + Sync + 'static {
    /// Sends a request and gives its answer. Dropping the future gives up waiting; the home may
    /// answer nevertheless.
    fn ask(&self, class: Class, request: Bytes) -> BoxFuture<Result<Bytes, Lost>>;
    /// The next message that the home pushed. For one caller at a time.
    fn pushed(&self) -> BoxFuture<Result<Bytes, Lost>>;
    /// Done when the home has said how much it has pushed, and all of that was taken: then nothing
    /// that was pushed before this was called is still on its way, however long the other end was
    /// out of reach. While this is waited for, somebody has to take what was pushed, and an end
    /// that is out of reach is called now and then, so that it is soon noticed when it is back.
    fn caught_up(&self) -> BoxFuture<Result<(), Lost>>;
    /// This machine's addresses may have changed: go on from wherever it is now.
    fn rebind(&self);
    /// What is known of the path.
    fn path(&self) -> Path;
    /// True once it has ended. One that is merely silent has not.
    fn has_ended(&self) -> bool;
    /// Ends it.
    fn close(&self);
}

/// Makes connections to one home.
pub trait Dialer: Send + Sync + 'static {
    /// Makes one. The caller bounds the wait.
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>>;
}

/// The home's end of a connection, to push messages.
pub trait Push: Send + Sync + 'static {
    /// Queues a message. `Lost` if the connection has ended, or as many messages wait as there is
    /// room for, which ends it.
    fn push(&self, message: Bytes) -> Result<(), Lost>;
}

/// What a home does for whom it is connected with.
pub trait Service: Send + Sync + 'static {
    /// Somebody who has proved that this key is his.
    fn connected(&self, peer: PeerKey, push: Arc<dyn Push>) -> Arc<dyn Session>;
    /// True if this peer is one of those that are served. There is little room for others, who may
    /// ask to be.
    fn knows(&self, peer: PeerKey) -> bool;
}

/// What a home does for one connection.
pub trait Session: Send + Sync + 'static {
    /// Answers a request. `None` ends the connection: the request is not one.
    fn answer(&self, request: Bytes) -> BoxFuture<Option<Bytes>>;
    /// The connection has ended.
    fn ended(&self);
}
