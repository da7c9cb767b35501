//! Delegations: what a client may do with what it has cached without asking
//! (docs/roaming.md#delegations; Zhao and Figueiredo, section 4.3).
//!
//! Whoever has a read delegation on a file may believe what is cached of it; whoever has a write
//! delegation may change it, too, and tell the home later. The home recalls them before anybody
//! else does what they exclude. They end by themselves when the client was not heard of for a
//! while: both sides count durations, no clock is compared with another.

use crate::lock::Lock;
use crate::operation::Change;
use crate::{wire_enum, wire_struct};
use std::time::Duration;
use types::FileId;

/// Delegations of a client that was not heard of for so long are void.
pub const LEASE: Duration = Duration::from_secs(30);

/// What a delegation is good for; the later one includes the earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hold {
    /// What is cached is so.
    Read,
    /// Nobody else knows it, or changes it.
    Write,
}
wire_enum!(Hold { 1 => Read, 2 => Write });

impl Hold {
    /// True if two clients cannot have these of the same file.
    pub fn excludes(self, other: Hold) -> bool {
        self == Hold::Write || other == Hold::Write
    }
}

/// What a client wants to be told while it is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Nothing: it will ask.
    Nothing,
    /// What others have changed.
    Changes,
    /// That, and what others are about to do: it works under delegations.
    Delegations {
        /// Which run of the home gave those that it has; 0: it has none.
        run: u64,
        /// What it has changed that the home has not heard of.
        changed: Vec<FileId>,
        /// Locks that it has,
        locks: Vec<Lock>,
        /// since this term began.
        term: u64,
    },
}
wire_enum!(Watch { 0 => Nothing, 1 => Changes, 2 => Delegations { run, changed, locks, term } });

/// What became of a client's delegations when it attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Which run of the home this is.
    pub run: u64,
    /// It has them still; otherwise it has none.
    pub all: bool,
    /// It has its locks still; otherwise it has none.
    pub locks: bool,
    /// The term in which it locks from now on.
    pub term: u64,
}
wire_struct!(Kept { run, all, locks, term });

/// The home wants a delegation back: the client is to send what it has changed, and to say that it
/// has returned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// Which recall.
    pub number: u64,
    /// Of what.
    pub file: FileId,
    /// What the home thinks that the client has: perhaps the answer that gave it is still on its
    /// way.
    pub held: Hold,
    /// The client may keep a read delegation.
    pub keep: bool,
}
wire_struct!(Recall { number, file, held, keep });

/// What a client has changed under a delegation that it returns before the home has all of it: the
/// bytes come by and by, those first that somebody wants to read (partial write-back: Zhao and
/// Figueiredo, section 4.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Behind {
    /// The number of the store that will bring it.
    pub seq: u64,
    /// The newest version of the file that the client knew.
    pub base: u64,
    /// What the store will change.
    pub change: Change,
}
wire_struct!(Behind { seq, base, change });
