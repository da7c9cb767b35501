//! The host: everything a role may ask of the machine it runs on, as traits.
//!
//! Decisions in Starling are pure; their plumbing reaches clock, disk, randomness and task runner
//! only through [`Host`], so that the same code runs on threads and real files ([`real`]) and in
//! the simulated world ([`sim`]), where one thread runs everything under a seed. Locks are never
//! held across an await, and no code outside this crate calls `std::time`, `std::fs`, `std::thread`
//! or tokio's runtime on behalf of a role.

mod random;
pub mod real;
pub mod sim;
mod wait;

pub use random::SplitMix64;
pub use wait::{Either, Elapsed, Interval, JoinAll, first, interval, join_all, timeout, yield_now};

use bytes::Bytes;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use types::{BoxFuture, Time};

/// What a role runs on. Cheap to clone.
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
    /// Monotonic time since an arbitrary start. It goes on while the machine is suspended, as the
    /// time of others does who have promised it something.
    fn now(&self) -> Duration;
    /// Wall-clock time.
    fn wall(&self) -> Time;
    /// Done after `time` has passed in which the machine was not suspended.
    fn sleep(&self, time: Duration) -> BoxFuture<()>;
}

/// Starts tasks that run until they end or their machine stops.
pub trait Tasks: Send + Sync + 'static {
    /// Runs `task` in the background.
    fn spawn(&self, task: BoxFuture<()>);

    /// Runs `task` here until it first waits for something, and the rest in the background. The
    /// caller holds no lock; a panic of that first part is his.
    fn start(&self, mut task: BoxFuture<()>) {
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(task);
        }
    }

    /// As [`start`](Self::start), for a task that has little to do each time it goes on: where it
    /// waited for a disk to write, it goes on on that disk's thread, which saves a hand-over to
    /// another.
    fn start_short(&self, task: BoxFuture<()>) {
        self.start(task);
    }
}

/// Random numbers; reproducible in the simulated world. Not for secrets.
pub trait Random: Send + Sync + 'static {
    /// 64 uniform bits.
    fn next_u64(&self) -> u64;
}

/// One folder on a disk, flat: names are plain file names (`InvalidInput` for others). What
/// survives a power loss: the bytes of files up to their last [`File::sync_data`], and names up to
/// the last [`Disk::sync_names`] (a created file's name counts as a name). Anything later may be
/// there, torn at 512 bytes, reordered, or not be there.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing; creates it empty if `create` and it is not there.
    fn open(&self, name: &str, create: bool) -> BoxFuture<io::Result<Arc<dyn File>>>;
    /// Names of all files, sorted.
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>>;
    /// Renames atomically, replacing `to`.
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>>;
    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> BoxFuture<io::Result<()>>;
    /// Makes all files and names durable that were changed before, with one wait (syncfs); what
    /// others have on the same file system, too. `Unsupported` where the file system cannot be
    /// asked for that.
    fn sync_all(&self) -> BoxFuture<io::Result<()>>;
    /// Bytes the disk under the folder has in all, and bytes still free.
    fn space(&self) -> BoxFuture<io::Result<DiskSpace>>;
    /// Where a task is spawned best that does little but change this disk, by a role that runs on
    /// `host`. It runs for as long as somebody has the disk or a file of it open.
    fn tasks(&self, host: &Host) -> Arc<dyn Tasks> {
        host.tasks.clone()
    }
}

/// What a disk can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Equal for folders that share all this, whichever process of the machine asks; not for
    /// subvolumes, which share it under numbers of their own.
    pub device: u64,
}

/// One open file. Operations on disjoint ranges may run at the same time. Like every future, an
/// operation starts when it is first polled; dropping it after that leaves it *unknown*: it may
/// take effect later.
// An `is_empty` would be one more trip to the disk that no role has a use for.
#[allow(clippy::len_without_is_empty)]
pub trait File: Send + Sync + 'static {
    /// Exactly `len` bytes at `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, len: usize) -> BoxFuture<io::Result<Bytes>>;
    /// Writes the pieces, one after the other, at `offset`, extending the file if needed.
    fn write_at(&self, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<io::Result<()>>;
    /// Writes all of `writes` as with [`write_at`](Self::write_at), then makes the whole file
    /// durable: one trip to the disk thread for a group commit. On error everything written since
    /// the last success is unknown, and must not be retried into silence: the caller treats the
    /// file as failed.
    fn write_and_sync(&self, writes: Vec<(u64, Vec<Bytes>)>) -> BoxFuture<io::Result<()>>;
    /// Makes all completed writes durable (fdatasync).
    fn sync_data(&self) -> BoxFuture<io::Result<()>>;
    /// Length in bytes.
    fn len(&self) -> BoxFuture<io::Result<u64>>;
    /// Cuts or extends (with zeroes).
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>>;
    /// Sets disk space aside up to `len` and extends the file to it; existing bytes stay.
    /// `StorageFull` if there is none.
    fn allocate(&self, len: u64) -> BoxFuture<io::Result<()>>;
    /// Another number whenever the bytes or the length have changed since this was asked last, by
    /// whatever way.
    fn change_mark(&self) -> BoxFuture<io::Result<u128>>;
    /// The file itself, for whoever reads or maps it by other ways; `None` where it is not one of
    /// the machine's.
    fn descriptor(&self) -> Option<Arc<dyn AsFd + Send + Sync>>;
}

/// Both disks take the same names.
fn check_name(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(())
}
