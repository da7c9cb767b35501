//! The interface to a storage server, the same in one process, over a network and in the simulated
//! world.

pub use crate::checkpoint::Identity;
use crate::commit::LANDING_PAGES;
pub use crate::seal::{Fence, Seal};
use crate::space::PAGE;
use bytes::Bytes;
use host::DiskSpace;
use std::io;
use std::ops::Range;
use striped_log::fragment::{Fragment, FragmentHeader};
use thiserror::Error;
use types::{BoxFuture, FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};

/// Why a storage server did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StorageError {
    /// The fragment is not here (never was, or deleted).
    #[error("{0} is not on this store")]
    NotFound(FragmentId),
    /// The stored bytes do not match their checksum; the caller reads from the rest of the stripe.
    #[error("{0} is damaged on this store")]
    Damaged(FragmentId),
    /// The disk refused or failed. Whether a put got there is unknown; the store stops accepting
    /// puts until restarted.
    #[error("disk error: {0}")]
    Disk(String),
    /// No room for the fragment.
    #[error("store is full")]
    Full,
    /// The log is sealed against this epoch: the writer was declared dead.
    #[error("log {0} is sealed")]
    Sealed(LogId),
    /// The store does not answer, or refuses since it has failed before.
    #[error("store is not available")]
    Unavailable,
    /// The request makes no sense (foreign file system, range beyond the fragment).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

/// What a store says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// Which store.
    pub id: StoreId,
    /// Bytes it may use for fragments, if its disk has room for them.
    pub capacity_bytes: u64,
    /// Bytes for which it has taken room on its disk, those that it keeps for itself among them.
    pub allocated_bytes: u64,
    /// Bytes taken by live fragments, headers and rounding included.
    pub used_bytes: u64,
    /// Of them: bytes of parity fragments.
    pub parity_bytes: u64,
    /// Fragments held.
    pub fragment_count: u64,
    /// False after a failed write or sync: it still reads, but takes no puts until restarted.
    pub writable: bool,
    /// The disk that it is on, with what it lets the store have.
    pub disk: DiskSpace,
}

impl StoreStatus {
    /// Bytes it can use for fragments, when it is one of `sharer_count` stores that have what its
    /// disk has free among them.
    pub fn attainable_bytes(&self, sharer_count: u64) -> u64 {
        let on_disk = self.allocated_bytes.saturating_add(self.disk.free_bytes / sharer_count.max(1));
        self.capacity_bytes.min(on_disk.saturating_sub(u64::from(LANDING_PAGES) * u64::from(PAGE)))
    }
}

/// A storage server. Every future may take as long as a disk or a network takes; callers bound
/// their waits.
pub trait Storage: Send + Sync + 'static {
    /// Stores a fragment; Ok means durable. Putting the same (id, attempt) again is Ok, and
    /// replaces it if it was found damaged; with another header it is a `BadRequest`. Attempts at
    /// one fragment are kept beside each other until the segment is deleted: until the later one is
    /// complete on all its stores, the earlier may be all that makes the segment readable.
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>>;
    /// Payload bytes `range` of a fragment, verified: both ends are extended to chunk boundaries
    /// for the check, but exactly `range` is returned. `attempt`, when the fragment is there with
    /// another one, gives `NotFound`.
    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>>;
    /// Headers of all fragments of a segment that are here, all attempts.
    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>>;
    /// Headers of the fragments of a log with seq >= `from_seq`, ordered by seq, at most
    /// `count_max`, whole seqs only.
    fn list(&self, log: LogId, from_seq: u64, count_max: usize)
    -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>>;
    /// All segments of which this store holds a fragment, with the bytes taken here; for accounting
    /// checks (fsck, scrub).
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>>;
    /// Forgets all fragments of these segments. Not durable at once: a store that crashes may show
    /// them again.
    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>>;
    /// Durably fences a log. A seal with an epoch not above the present one changes nothing.
    /// Returns the seal in force.
    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>>;
    /// The seals in force.
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>>;
    /// Durably keeps `maps` if its epoch is above what is there.
    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>>;
    /// The newest maps seen.
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>>;
    /// Reads a whole fragment and checks header and checksums, past any cache.
    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>>;
    /// Space and health. Asks the disk for its space, which not every disk that hangs fails to
    /// tell.
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>>;
}

/// What a storage server of another process has to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// A store.
    Store(Identity),
    /// Nothing yet; what its disk has room for.
    Empty(DiskSpace),
}

/// A storage server of another process. Until it is told which store to [`expect`](Self::expect),
/// and whenever the server cannot be reached or has another store, everything of [`Storage`] is
/// [`StorageError::Unavailable`].
pub trait RemoteStorage: Storage {
    /// What is there. Errors say what is in the way: it cannot be reached, it does not know the
    /// caller, it speaks another version.
    fn presence(&self) -> BoxFuture<io::Result<Presence>>;
    /// Makes an empty store there. Refused if there is a store.
    fn initialise(&self, identity: Identity) -> BoxFuture<io::Result<()>>;
    /// From now on this store is used, whenever it is there. Done when it is, or when it was seen
    /// that it is not.
    fn expect(&self, fs: FsUuid, store: StoreId) -> BoxFuture<()>;
}
