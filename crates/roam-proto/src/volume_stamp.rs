//! Stamps of volumes: one comparison validates all that a client has cached of a volume (Mummert
//! and Satyanarayanan, section 3; docs/roaming.md#one-number-for-versions-stamps-and-the-journal).
//!
//! The home answers a stamp from the [journal](crate::volume_journal) of the volume.

use crate::{wire_enum, wire_struct};
use types::FileId;

/// A volume's version: grows with each change. Stamps of different epochs cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// The epoch. It is new whenever the home lost track of changes.
    pub epoch: u64,
    /// The number of the last change in this epoch. Numbers grow, and may leave gaps.
    pub seq: u64,
}
wire_struct!(Stamp { epoch, seq });

/// What changed since a stamp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Since {
    /// Nothing changed.
    Current,
    /// These files changed, in the order of their last changes. A client that drops what it cached
    /// of them is current at the new stamp.
    Changed {
        /// The changed files.
        files: Vec<FileId>,
        /// The newest stamp.
        stamp: Stamp,
    },
    /// The home cannot tell: for example, its journal does not reach back that far, or it does not
    /// know the stamp. The client must validate every file to be current at the new stamp.
    Reset {
        /// The newest stamp.
        stamp: Stamp,
    },
}
wire_enum!(Since {
    0 => Current,
    1 => Changed { files, stamp },
    2 => Reset { stamp },
});
