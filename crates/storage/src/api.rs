//! The interface to a storage server. It is the same in one process, over a network and in the
//! simulated world.

pub use crate::identity::StoreIdentity;
use crate::pages::{LANDING_PAGES, PAGE};
pub use crate::seal::{Fence, Seal};
pub use crate::seals::Seals;
use bytes::Bytes;
use host::DiskSpace;
use std::io;
use std::ops::Range;
use std::time::Duration;
use striped_log::fragment::{Fragment, FragmentHeader};
use thiserror::Error;
use types::{BoxFuture, FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};

/// Why a storage server refused or failed a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StorageError {
    /// The fragment is not here (never was, or deleted).
    #[error("{0} is not on this store")]
    NotFound(FragmentId),
    /// The stored bytes do not match their checksum. The caller reads the rest of the stripe
    /// instead.
    #[error("{0} is damaged on this store")]
    Damaged(FragmentId),
    /// The disk failed. It is unknown whether a put is on the disk. The store takes no more puts
    /// until it is started again.
    #[error("disk error: {0}")]
    Disk(String),
    /// No room for the fragment.
    #[error("store is full")]
    Full,
    /// The log is sealed against this epoch: its writer was declared dead.
    #[error("log {0} is sealed")]
    Sealed(LogId),
    /// The store does not answer, or it refuses since a write has failed before, or since its disk
    /// hangs.
    #[error("store is not available")]
    Unavailable,
    /// The request can never succeed (foreign file system, range beyond the fragment).
    #[error("bad request: {0}")]
    BadRequest(&'static str),
}

/// The space and health of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreStatus {
    /// The store.
    pub id: StoreId,
    /// Bytes that it may use for fragments, if its disk has room for them.
    pub capacity_bytes: u64,
    /// Bytes that it has set aside on its disk, including those that it keeps for itself.
    pub allocated_bytes: u64,
    /// Bytes taken by live fragments, headers and rounding included.
    pub used_bytes: u64,
    /// The part of `used_bytes` in parity fragments.
    pub parity_bytes: u64,
    /// Number of fragments.
    pub fragment_count: u64,
    /// False after a failed write or sync: the store is still read from, but takes no puts until it
    /// is started again. False, too, while its disk hangs.
    pub writable: bool,
    /// The disk that it is on, with the space that the store may have.
    pub disk: DiskSpace,
}

impl StoreStatus {
    /// Bytes that it can use for fragments. `sharer_count` is the number of stores that share the
    /// free space of its disk, itself included.
    pub fn attainable_bytes(&self, sharer_count: u64) -> u64 {
        let on_disk = self.allocated_bytes.saturating_add(self.disk.free_bytes / sharer_count.max(1));
        self.capacity_bytes.min(on_disk.saturating_sub(u64::from(LANDING_PAGES) * u64::from(PAGE)))
    }
}

/// A storage server. Every future may take as long as a disk or a network takes; callers bound
/// their waits.
pub trait Storage: Send + Sync + 'static {
    /// Stores a fragment. `Ok` means durable. Putting the same (id, attempt) again succeeds, and
    /// replaces the fragment if it was found damaged; with another header it is a `BadRequest`.
    /// Attempts at one fragment are kept beside each other until the segment is deleted: until the
    /// later attempt is complete on all its stores, the segment may be readable only by the earlier
    /// one.
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>>;
    /// Payload bytes `range` of a fragment, verified. All chunks that the range touches are
    /// checked, but exactly `range` is returned. If the fragment is here only with another attempt,
    /// this is `NotFound`.
    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>>;
    /// Like [`put`](Self::put), for work that can [wait](Self::rest).
    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.put(fragment)
    }
    /// Like [`read`](Self::read), for work that can [wait](Self::rest).
    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.read(id, attempt, range)
    }
    /// How long work that can wait should rest, so that programs keep the most of a store that they
    /// use: work that restores redundancy or moves stores. Who does such work asks again after each
    /// step. A fake need not tell such work from that of programs.
    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        Box::pin(std::future::ready(Ok(Duration::ZERO)))
    }
    /// Headers of all fragments of a segment that are here, all attempts.
    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>>;
    /// Headers of the fragments of a log from `from_seq` on, ordered by seq. Lists whole seqs, and
    /// at most `count_max` headers unless one seq alone has more.
    fn list(&self, log: LogId, from_seq: u64, count_max: usize)
    -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>>;
    /// All segments that have a fragment on this store, with the bytes taken here. Scrub compares
    /// them with the managers' segments.
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>>;
    /// Deletes all fragments of these segments. This is not durable at once: a store that crashes
    /// may show them again.
    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>>;
    /// Fences a log durably. A seal that is not [taken](Seals::take) changes nothing. Returns the
    /// seal of the log with the latest epoch.
    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>>;
    /// All seals: of each log the told one, then one that is under way.
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>>;
    /// Keeps `maps` durably if their epoch is above that of the present ones.
    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>>;
    /// The newest maps that the store was given.
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>>;
    /// Reads all attempts at a fragment whole, and checks headers and checksums, past any cache.
    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>>;
    /// Space and health. Asks the disk for its space. A disk that hangs may still answer that.
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>>;
}

/// The contents of the folder that a store's process serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// A store.
    Store(StoreIdentity),
    /// No store yet, and the room on the disk.
    Empty(DiskSpace),
}

/// A storage server of another process. All methods of [`Storage`] fail with
/// [`StorageError::Unavailable`] until the caller names the store to [`expect`](Self::expect), and
/// while the server cannot be reached or has another store.
pub trait RemoteStorage: Storage {
    /// What the server has. The error says what is in the way: the server cannot be reached, does
    /// not know the caller, or speaks another version.
    fn presence(&self) -> BoxFuture<io::Result<Presence>>;
    /// Makes an empty store there. Fails if there is a store.
    fn initialise(&self, identity: StoreIdentity) -> BoxFuture<io::Result<()>>;
    /// Uses this store from now on, whenever it is there. Done when it is reached, or when it was
    /// seen that it cannot be.
    fn expect(&self, fs: FsUuid, store: StoreId) -> BoxFuture<()>;
}
