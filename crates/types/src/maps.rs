//! The maps of a file system, as opaque bytes for the crates that only keep them.

use bytes::Bytes;

/// What a file system is: its identity, its geometry and its manager map. `consensus` decides the
/// maps, and every store keeps the newest that it was given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Maps {
    /// Grows with each change.
    pub epoch: u64,
    /// Opaque to `consensus` and to stores.
    pub bytes: Bytes,
}
