//! How a node joins a file system.
//!
//! - [`authority`]: the authority of a file system, and the keys and certificates of its nodes.
//! - [`invitation`]: an invitation as a line of text.
//! - [`message`]: what a node that joins and the first node say to each other.
//! - [`book`]: the invitations that the first node has given out.
//! - [`desk`]: the first node's answers.
//!
//! The first node makes an authority when it first listens. An invitation names the authority by
//! the SHA-256 of its certificate, and has a secret that is good once and for an hour. The node
//! that joins makes a key, which never leaves it, and sends the public half with the secret to a
//! server whose certificate the authority has signed. It gets a certificate for its key and its
//! number. Its certificate's SHA-256 is its name in the maps.
//!
//! Each step may be cut short. The node that joins keeps its key and the invitation until it is in.
//! The first node records which key took an invitation before it records the member, and answers
//! that key the same whenever it asks again.

pub mod authority;
pub mod book;
pub mod desk;
pub mod invitation;
pub mod message;

pub use authority::{Authority, NodeKey, fingerprint_of};
pub use desk::{AddMemberError, JoinDesk, MemberBook, NewMember, name_of_machine};
pub use invitation::NodeInvitation;
pub use message::{Admission, JoinAnswer, JoinRefusal, JoinRequest};

/// Length of an invitation's secret, in bytes.
pub const SECRET_LEN: usize = 16;

/// The secret of an invitation.
pub type JoinSecret = [u8; SECRET_LEN];

/// Longest name of a node, in bytes.
pub const NODE_NAME_LEN_MAX: usize = 64;

/// True if this can be the name of a node: 1 to 64 of the letters a-z and A-Z, digits, `.`, `_` and
/// `-`, the first of them a letter or a digit.
pub fn is_node_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    name.len() <= NODE_NAME_LEN_MAX && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(good)
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    hash
}
