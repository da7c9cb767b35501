//! The kinds of services.

/// Requests to a store of the node.
pub const STORAGE: u8 = 1;
/// Requests to a manager of the node, and the recalls that wait for a client.
pub const MANAGER: u8 = 2;
/// Sessions, leases and what nodes tell each other about themselves.
pub const CONTROL: u8 = 3;
/// A machine that has an invitation asks to become a member.
pub const JOIN: u8 = 4;
/// Requests to the table of file locks.
pub const LOCKS: u8 = 5;
/// The first node's requests about the managers that the node serves.
pub const HOST: u8 = 6;

/// What voters ask each other.
pub const CONSENSUS: u8 = 7;

/// True if only a bounded number of requests of this kind may be under way on a connection, and
/// further ones wait. Requests of all other kinds may wait long at the peer, for instance until
/// another client gives a token back, so they must not use up places that others need.
pub const fn is_limited(kind: u8) -> bool {
    kind == STORAGE
}
