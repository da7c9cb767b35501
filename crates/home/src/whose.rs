//! For whom the home does an operation.

use crate::state::Key;
use roam_proto::message::User;
use vfs::fs::Cred;

/// A client of a volume.
#[derive(Clone)]
pub(crate) struct Whose {
    pub(crate) key: Key,
    pub(crate) author: u32,
    pub(crate) user: User,
    /// Which log its numbers are of.
    pub(crate) incarnation: u64,
}

/// As whom the file system does what a user asks.
pub(crate) fn cred(user: &User) -> Cred {
    Cred { uid: user.uid, gid: user.gid, groups: user.groups.clone() }
}
