//! For which client and user the home does an operation.

use crate::state::ClientKey;
use roam_proto::message::User;
use vfs::fs::Cred;

/// A client of a volume.
#[derive(Clone)]
pub(crate) struct Whose {
    pub(crate) key: ClientKey,
    pub(crate) author: u32,
    pub(crate) user: User,
    /// The log that its operations' numbers belong to.
    pub(crate) incarnation: u64,
}

/// The credentials as which the file system acts for a user.
pub(crate) fn cred(user: &User) -> Cred {
    Cred { uid: user.uid, gid: user.gid, groups: user.groups.clone() }
}
