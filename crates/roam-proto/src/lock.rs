//! Locks of files between mounts that work under delegations.
//!
//! The home has one table of locks for a volume, and decides about each lock. A client asks the
//! home for each lock, and tells it of each unlock. The home forgets all locks of a client at once,
//! as it does with delegations, when it has not heard from the client for a lease.
//!
//! A client numbers its requests. The home does each number once, however often the request
//! arrives, and ignores a request that the client knows to be over. All numbers belong to a *term*.
//! A client gets a new term when it has lost its locks.

use crate::{wire_enum, wire_struct};
use types::FileId;

/// Most locks that a client may have. It names all of them in the message that attaches.
pub const LOCK_COUNT_MAX: usize = 1 << 12;

/// Most open requests of a client: those that the client does not know to be over.
pub const OPEN_COUNT_MAX: usize = 1 << 12;

/// Which kind of lock it is. Locks of different kinds do not exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// fcntl(2).
    Posix,
    /// flock(2).
    Flock,
    /// One of the two; the client does not know which. Such locks exclude each other.
    Mixed,
}
wire_enum!(LockKind { 1 => Posix, 2 => Flock, 3 => Mixed });

/// A lock of a byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The locked file.
    pub file: FileId,
    /// Which locks this one excludes.
    pub space: LockKind,
    /// The owner's number on its client.
    pub owner: u64,
    /// The owner's process on its client, for fcntl(2) to report.
    pub pid: u32,
    /// `None` unlocks, `Some(false)` is a shared lock, `Some(true)` an exclusive one.
    pub exclusive: Option<bool>,
    /// The first locked byte.
    pub start: u64,
    /// The last locked byte.
    pub end: u64,
}
wire_struct!(Lock { file, space, owner, pid, exclusive, start, end });

/// A request for a lock, or news of an unlock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Locking {
    /// The client's term.
    pub term: u64,
    /// The request's number. It grows with each request.
    pub number: u64,
    /// The client knows how all requests up to this number ended, except for those in `open`.
    pub over: u64,
    /// Requests up to `over` that have not ended.
    pub open: Vec<u64>,
    /// The lock or unlock.
    pub lock: Lock,
    /// The request waits until the owners of conflicting locks have unlocked.
    pub waits: bool,
    /// If not 0, the client gives up the request of this number, which asked for this same lock. If
    /// the home has granted it already, the home takes it back, and leaves what it replaced.
    pub gives_up: u64,
}
wire_struct!(Locking { term, number, over, open, lock, waits, gives_up });
