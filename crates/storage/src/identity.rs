//! Which store this is, and its file system.

use crate::pages::PAGE;
use striped_log::fragment::FragmentHeader;
use types::{FsUuid, StoreId};

/// The identity of a store, and its capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreIdentity {
    /// The file system.
    pub fs: FsUuid,
    /// The store.
    pub store: StoreId,
    /// Bytes that the `fragments` file may take.
    pub capacity_bytes: u64,
}

impl StoreIdentity {
    /// True if the header names this store as the fragment's place.
    pub(crate) fn is_member(&self, header: &FragmentHeader) -> bool {
        header.geometry.members.get(usize::from(header.id.index)) == Some(&self.store)
    }

    /// Pages that the `fragments` file may have.
    pub(crate) fn page_count_max(&self) -> u32 {
        u32::try_from(self.capacity_bytes / u64::from(PAGE)).unwrap_or(u32::MAX)
    }
}
