//! The host: everything that a role may ask of its machine, as traits.
//!
//! Decisions in Starling are pure. The code around them reaches clock, disk, randomness and task
//! runner only through [`Host`]. So the same code runs on threads and real files ([`real`]) and in
//! the simulated world ([`sim`]), where one thread runs everything under a seed. Locks are never
//! held across an await, and no code outside this crate calls `std::time`, `std::fs`, `std::thread`
//! or tokio's runtime on behalf of a role.

mod random;
pub mod real;
pub mod sim;
mod wait;

pub use random::SplitMix64;
pub use wait::{Either, Elapsed, Interval, JoinAll, first, interval, join_all, join_at_most, timeout, yield_now};

use bytes::Bytes;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use types::{BoxFuture, Time};

/// The machine that a role runs on. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Starts tasks.
    pub tasks: Arc<dyn Tasks>,
    /// Random numbers.
    pub random: Arc<dyn Random>,
}

/// Time. Protocol decisions use [`now`](Self::now) only; wall time is for timestamps that users
/// see.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time since an arbitrary start. It goes on while the machine is suspended, like the
    /// clocks of the machines whose leases and promises it measures.
    fn now(&self) -> Duration;
    /// Wall-clock time.
    fn wall(&self) -> Time;
    /// Completes after `time` has passed, not counting time in which the machine was suspended.
    fn sleep(&self, time: Duration) -> BoxFuture<()>;
}

/// Starts tasks that run until they end or their machine stops.
pub trait Tasks: Send + Sync + 'static {
    /// Runs `task` in the background.
    fn spawn(&self, task: BoxFuture<()>);

    /// Runs `task` here until it first waits, and the rest in the background. The caller must hold
    /// no lock, and a panic in that first part is the caller's.
    fn start(&self, mut task: BoxFuture<()>) {
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(task);
        }
    }

    /// As [`start`](Self::start), for a task that does little each time it goes on. If it waited
    /// for a disk's write, it goes on on that disk's thread, which saves a hand-over to another
    /// thread.
    fn start_short(&self, task: BoxFuture<()>) {
        self.start(task);
    }
}

/// Random numbers; reproducible in the simulated world. Not for secrets.
pub trait Random: Send + Sync + 'static {
    /// 64 uniform bits.
    fn next_u64(&self) -> u64;
}

/// One folder on a disk, flat: names are plain file names (`InvalidInput` for others). A power loss
/// keeps the bytes of files up to their last [`File::sync_data`], and names up to the last
/// [`Disk::sync_names`] (creating a file changes a name). Anything later may be kept, torn at 512
/// bytes, reordered, or lost.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing; with `create`, creates it empty if it is missing.
    fn open(&self, name: &str, create: bool) -> BoxFuture<io::Result<Arc<dyn File>>>;
    /// Names of all files, sorted.
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>>;
    /// Renames atomically, replacing `to`.
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>>;
    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> BoxFuture<io::Result<()>>;
    /// Makes all earlier changes of files and names durable, with one wait (syncfs); also those of
    /// other programs on the same file system. `Unsupported` if the file system cannot do that.
    fn sync_all(&self) -> BoxFuture<io::Result<()>>;
    /// The size of the disk under the folder, and its free bytes.
    fn space(&self) -> BoxFuture<io::Result<DiskSpace>>;
    /// The tasks of this disk's own thread, for a role on `host` to spawn a task that does little
    /// but change this disk. Such a task runs as long as the disk or a file of it is open
    /// somewhere.
    fn tasks(&self, host: &Host) -> Arc<dyn Tasks> {
        host.tasks.clone()
    }
}

/// The size and free space of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Equal for folders that share this space, for every process of the machine. Not so for
    /// subvolumes, which share space under different numbers.
    pub device: u64,
}

/// One open file. Operations on disjoint ranges may run at the same time. Like every future, an
/// operation starts when it is first polled; dropping it after that leaves it *unknown*: it may
/// take effect later.
// An `is_empty` would be one more trip to the disk, and no role needs it.
#[allow(clippy::len_without_is_empty)]
pub trait File: Send + Sync + 'static {
    /// Exactly `len` bytes at `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, len: usize) -> BoxFuture<io::Result<Bytes>>;
    /// Writes the pieces, one after the other, at `offset`, extending the file if needed.
    fn write_at(&self, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<io::Result<()>>;
    /// Writes all of `writes` as with [`write_at`](Self::write_at), then makes the whole file
    /// durable: one trip to the disk thread for a group commit. On error everything written since
    /// the last success is unknown. The error must not be retried into silence: the caller treats
    /// the file as failed.
    fn write_and_sync(&self, writes: Vec<(u64, Vec<Bytes>)>) -> BoxFuture<io::Result<()>>;
    /// Makes all completed writes durable (fdatasync).
    fn sync_data(&self) -> BoxFuture<io::Result<()>>;
    /// Length in bytes.
    fn len(&self) -> BoxFuture<io::Result<u64>>;
    /// Cuts or extends (with zeroes).
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>>;
    /// Reserves disk space up to `len` and extends the file to it; existing bytes stay.
    /// `StorageFull` if there is no space.
    fn allocate(&self, len: u64) -> BoxFuture<io::Result<()>>;
    /// A number that differs from the last one if the bytes or the length have changed since,
    /// through this handle or otherwise.
    fn change_mark(&self) -> BoxFuture<io::Result<u128>>;
    /// The file itself, for callers that read or map it by other means; `None` if it is not a file
    /// of the machine.
    fn descriptor(&self) -> Option<Arc<dyn AsFd + Send + Sync>>;
}

/// Both disks accept the same names.
fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(())
}
