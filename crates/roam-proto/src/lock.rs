//! Locks of files between mounts that work under delegations.
//!
//! The home has one table of locks for a volume, and decides. A client asks it for each lock, and
//! tells it of each unlock. What a client has ends as its delegations do: it loses all of it at
//! once, when it was not heard of for a lease.
//!
//! A client numbers what it asks. The home does what has a number once, however often that arrives,
//! and nothing that the client knows to be over. All numbers are of one *term*: a client gets a new
//! one when it has lost what it had.

use crate::{wire_enum, wire_struct};
use types::FileId;

/// Most locks that a client may have: it names them all when it attaches.
pub const LOCK_COUNT_MAX: usize = 1 << 12;

/// Most requests of a client that are open at a time.
pub const OPEN_COUNT_MAX: usize = 1 << 12;

/// Which locks exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// fcntl(2).
    Posix,
    /// flock(2).
    Flock,
    /// Either of them, which is not known.
    Mixed,
}
wire_enum!(Space { 1 => Posix, 2 => Flock, 3 => Mixed });

/// A lock of a byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Of which file.
    pub file: FileId,
    /// Which locks it excludes.
    pub space: Space,
    /// Who has it, among those on the client.
    pub owner: u64,
    /// The owner's process on the client, for others to see.
    pub pid: u32,
    /// `None` unlocks; `Some(true)` is exclusive.
    pub exclusive: Option<bool>,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}
wire_struct!(Lock { file, space, owner, pid, exclusive, start, end });

/// A client asks for a lock, or tells of an unlock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Locking {
    /// The client's term.
    pub term: u64,
    /// Grows with each that the client asks.
    pub number: u64,
    /// All up to this number are over, since the client knows how they ended,
    pub over: u64,
    /// but for these.
    pub open: Vec<u64>,
    /// What it asks for.
    pub lock: Lock,
    /// It waits until others have unlocked.
    pub waits: bool,
    /// If not 0: the client gives up what it asked for by this number, with this very lock, and has
    /// it no more if it was granted.
    pub gives_up: u64,
}
wire_struct!(Locking { term, number, over, open, lock, waits, gives_up });
