//! Messages between the first node and the nodes that have joined: sessions, leases, space.
//!
//! A node says [hello](ControlRequest::Hello), which ends its former session and begins a new one.
//! It [renews](ControlRequest::Renew) the session's lease, and [leaves](ControlRequest::Leave) when
//! it stops. The messages are bytes to the layer that carries them; that layer knows which
//! certificate the sender has.

mod wire;

pub use client::Holdings;

use crate::lock_server::LocksOnFile;
use crate::seating::{Reseating, Seating};
use bytes::Bytes;
use manager::api::FileUse;
use policy::space::SpaceShare;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use stripe::LogTail;
use thiserror::Error;
use types::codec::DecodeError;
use types::{FileId, ManagerId, Maps, NodeId, StoreId};
use vfs::fs::FileLock;

/// Version of these messages. A node and the first node must speak the same.
pub const CONTROL_VERSION: u16 = 11;

/// The version of this program, which nodes tell the first one.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// A node that begins a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Who asks.
    pub node: NodeId,
    /// [`CONTROL_VERSION`] of the sender.
    pub version: u16,
    /// The node has the file system mounted.
    pub is_mounted: bool,
    /// Where other nodes reach it, as host:port; empty if they need not.
    pub address: String,
    /// It has folders for stores, and serves them at its address.
    pub takes_stores: bool,
    /// It serves managers at its address, if it is given some.
    pub takes_managers: bool,
    /// It has a voter, if it is given one, and leads when that is elected.
    pub takes_votes: bool,
    /// The version of its program.
    pub program: String,
}

/// A node whose session is to go on after the first node was started again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The node.
    pub hello: Hello,
    /// The session.
    pub session: u64,
    /// The term for which the first node has started.
    pub term: u64,
    /// Bytes of each store that its client may still take; see [`policy::space::SpaceClaim`].
    pub store_bytes: u64,
    /// Payload bytes that it may still add to what lives.
    pub live_bytes: u64,
    /// What its client holds.
    pub holdings: Holdings,
    /// The file locks of its programs. Owners are the client's own numbers.
    pub locks: Vec<(FileId, FileLock)>,
}

/// A request to the first node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlRequest {
    /// Begins a session, and ends the node's former one.
    Hello(Hello),
    /// Renews a session's lease and its share of the free space.
    Renew {
        /// The session.
        session: u64,
        /// Bytes of each store that its client may still take; see [`policy::space::SpaceClaim`].
        store_bytes: u64,
        /// Payload bytes that it may still add to what lives.
        live_bytes: u64,
        /// An operation waits for space. The first node is to look for some.
        wants_space: bool,
        /// The epoch of the maps that the node knows.
        maps_epoch: u64,
        /// The version of the seating of managers that it knows; 0: none.
        seating: u64,
        /// Nodes that serve managers, and that it could not reach for a while.
        unreached: Vec<NodeId>,
    },
    /// Ends a session whose client has committed everything.
    Leave {
        /// The session.
        session: u64,
    },
    /// Asks who belongs to the file system.
    Nodes,
    /// Has a session go on. Only a first node that has just started takes this.
    Resume(Resume),
    /// Says what a client holds of the files of managers that move.
    Claim {
        /// The session.
        session: u64,
        /// See [`Reseating::term`].
        term: u64,
        /// What the client holds.
        holdings: Holdings,
    },
    /// Asks who uses a file.
    Who(FileId),
    /// Asks a node where the first node is. The first node asks too, and says where it is: its
    /// addresses, best first; other nodes say nothing. A node that has joined takes no other
    /// request.
    FirstNode(Vec<String>),
    /// Asks for the key of the file system's authority, so that this node can succeed the first one
    /// if that is lost.
    AuthorityKey,
    /// A command of a user that changes which nodes there are, as JSON. The program of the first
    /// node knows it.
    Order(String),
}

/// The private key of the file system's authority, in PEM: a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityKey(pub String);

impl fmt::Debug for AuthorityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorityKey")
    }
}

/// A new session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Its number, random.
    pub session: u64,
    /// The length of its lease, which runs from the sending of the hello.
    pub lease: Duration,
    /// The file system's configuration, as [`FsConfig::decode`](crate::FsConfig::decode) reads it.
    pub config: Bytes,
    /// The epoch of the maps that it is from.
    pub maps_epoch: u64,
    /// See [`stripe::Options::in_flight_max`].
    pub in_flight_max: u64,
    /// The node's log, opened for this session. Its segments are not listed.
    pub tail: LogTail,
    /// The session's share of the free space; `None` if the stores could not be asked yet.
    pub share: Option<SpaceShare>,
    /// The fingerprint of the first node's certificate.
    pub first_node: [u8; 32],
    /// Which node serves which manager.
    pub seating: Seating,
}

/// A renewed lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// Its length. It runs from the sending of the renewal.
    pub lease: Duration,
    /// The session's share of the free space from now on; `None`: it keeps what it has.
    pub share: Option<SpaceShare>,
    /// How many rounds of looking for space had ended before the share was made.
    pub round: u64,
    /// The maps in force, if the node does not know them.
    pub maps: Option<Maps>,
    /// Which node serves which manager, if the node does not know it.
    pub seating: Option<Seating>,
    /// Managers that move now, if the node has not said yet what its client holds.
    pub reseating: Option<Reseating>,
    /// The stores that do not answer the first node.
    pub absent: BTreeSet<StoreId>,
}

/// Whether a node has a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It has one.
    Up {
        /// Time until its lease is over.
        lease_left: Duration,
    },
    /// It has none.
    Down {
        /// How long ago its last session ended; `None` if it had none since the first node's start.
        since: Option<Duration>,
    },
}

/// A node, for `starling nodes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeReport {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where others reach it; may be empty.
    pub address: String,
    /// Whether it has a session.
    pub state: NodeState,
    /// It has the file system mounted.
    pub is_mounted: bool,
    /// Number of managers that it serves.
    pub manager_count: u16,
    /// It serves managers, if it is given some.
    pub takes_managers: bool,
    /// It has a voter.
    pub is_voter: bool,
    /// It is to have neither stores nor managers any more.
    pub is_draining: bool,
    /// The version of its program; empty while it has no session.
    pub program: String,
}

/// A move of a store that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moving {
    /// The store.
    pub store: StoreId,
    /// Its new place.
    pub to: NodeId,
    /// How much of it is copied, in percent.
    pub percent: u8,
    /// How long the rest takes, if that can be told.
    pub time_left: Option<Duration>,
}

/// What happens to the places of stores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpreadReport {
    /// The move that is under way.
    pub moving: Option<Moving>,
    /// Why the last move failed; empty if it did not.
    pub trouble: String,
}

/// Whether the stores have all fragments that they should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Redundancy {
    /// Not known: they were not compared yet, or a store is out of service.
    #[default]
    Unknown,
    /// They have.
    Whole,
    /// They lack some, which are being restored.
    Lacks {
        /// Bytes of the fragments.
        bytes: u64,
        /// How long restoring takes, if that is known.
        time_left: Option<Duration>,
    },
}

/// All nodes, for `starling nodes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodesReport {
    /// The nodes. The first node has an entry of its own unless it is one of the members.
    pub nodes: Vec<NodeReport>,
    /// The entry of the first node.
    pub leader: NodeId,
    /// Where the stores are.
    pub places: BTreeMap<StoreId, NodeId>,
    /// Those that are out of service.
    pub away: BTreeSet<StoreId>,
    /// What happens to them.
    pub spread: SpreadReport,
    /// Whether they have everything.
    pub redundancy: Redundancy,
}

/// Who uses a file, for `starling who`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WhoReport {
    /// The file's manager.
    pub manager: ManagerId,
    /// The node that serves it.
    pub place: NodeId,
    /// Tokens on the file.
    pub tokens: FileUse,
    /// Locks on the file.
    pub locks: LocksOnFile,
    /// The names of all nodes.
    pub names: BTreeMap<NodeId, String>,
}

/// An answer of the first node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlAnswer {
    /// To a hello.
    Welcome(Welcome),
    /// To a renewal.
    Renewed(Renewed),
    /// The session has ended.
    Left,
    /// All nodes.
    Nodes(NodesReport),
    /// To a resume: the session goes on when its next renewal is answered. To a claim.
    Noted,
    /// Who uses a file.
    Who(WhoReport),
    /// The addresses of the first node, best first.
    FirstNode(Vec<String>),
    /// The authority's key.
    AuthorityKey(AuthorityKey),
    /// To an order: what was done, as JSON, or why nothing was.
    Done(Result<String, String>),
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ControlError {
    /// There is no such session: it was declared dead, or it did not go on when the first node
    /// started again. The node must begin a new one.
    #[error("the first node does not know this session")]
    UnknownSession,
    /// The first node has started again, for this term. The session goes on if the node says
    /// [resume](ControlRequest::Resume) now.
    #[error("the first node has started again")]
    Restarted(u64),
    /// The sender is not among the members, or has another certificate.
    #[error("this node does not belong to the file system, or no longer: join it again")]
    NotMember,
    /// The two nodes speak different versions.
    #[error(
        "the first node speaks version {0} of the messages between nodes, this one {CONTROL_VERSION}: use the same starling on both"
    )]
    Version(u16),
    /// The first node cannot be reached, or cannot do it now. Trying again may help.
    #[error("{0}")]
    Unavailable(String),
    /// The other side does not keep to the protocol.
    #[error("the other node sent nonsense: {0}")]
    Malformed(#[from] DecodeError),
}
