//! Connections between nodes: numbered requests and answers.
//!
//! A node has one listener for all its services. Each request names the kind of service that it is
//! for ([`kinds`]). The service sees an opaque message: a head of fields, and a tail that is not
//! copied.
//!
//! - [`wire`]: the bytes of greetings and frames. Pure.
//! - [`frames`]: frames on a connection, written and read with few copies, system calls and
//!   hand-overs.
//! - [`service`]: what a node offers: [`NodeService`], and the [`Peer`] that asks.
//! - [`listener`]: serves peers.
//! - [`address`]: where a node listens, and how to reach it.
//! - [`lane`]: one connection, made anew when it breaks; [`node_link`]: the two lanes to a node.
//! - [`tls`]: keys, and connections that use them.
//!
//! One connection carries many requests at a time, and answers come in any order. A request may
//! wait at the peer for as long as it takes: an idle connection is probed by TCP, and a peer whose
//! machine does not answer for [`DEAD_TIME`](stream::DEAD_TIME) counts as gone.
//!
//! When a connection breaks, all requests under way on it end as [`LinkError::Lost`], which for a
//! change means *unknown*. Later requests fail at once as [`LinkError::Down`] until there is a new
//! connection. Plain TCP has no authentication and no encryption: it is only for the loopback
//! interface.

pub mod address;
pub mod frames;
pub mod kinds;
pub mod lane;
pub mod listener;
pub mod node_link;
pub mod service;
pub mod stream;
pub mod tls;
pub mod wire;

pub use address::{Address, Addresses, ask_once};
pub use lane::{Lane, LinkError, Opening, OrderedLane};
pub use listener::{serve, serve_until};
pub use node_link::NodeLink;
pub use service::{NodeService, Peer, Services};
pub use tls::{ClientKeys, Fingerprint, KeyError, NodeKeys, ServerKeys, TLS_NAME, fingerprint};
pub use wire::Message;
