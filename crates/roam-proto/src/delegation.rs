//! Delegations: what a client may do with its cache without asking the home
//! (docs/roaming.md#delegations; Zhao and Figueiredo, section 4.3).
//!
//! A client with a read delegation on a file may believe what it has cached of the file. A client
//! with a write delegation may also change the file, and tell the home later. The home recalls
//! delegations before another client or program does what they exclude. They end by themselves when
//! the home has not heard from the client for a lease. Both sides count durations, so no clock is
//! compared with another.

use crate::lock::Lock;
use crate::operation::Change;
use crate::{wire_enum, wire_struct};
use std::time::Duration;
use types::FileId;

/// How long delegations last after the home has last heard from the client. A longer lease lets a
/// client that is out of reach hold up others for longer; a shorter one costs more renewals.
pub const LEASE: Duration = Duration::from_secs(30);

/// The kinds of delegation. A write delegation includes a read delegation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hold {
    /// What the client has cached is current.
    Read,
    /// No other client believes the file or changes it.
    Write,
}
wire_enum!(Hold { 1 => Read, 2 => Write });

impl Hold {
    /// True if two clients cannot have these two on the same file.
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
    /// What others have changed, and recalls: the client works under delegations.
    Delegations {
        /// The run of the home that gave the client's delegations; 0 if it has none.
        run: u64,
        /// Files that it has changed and not sent home.
        changed: Vec<FileId>,
        /// Locks that the client has in this term.
        locks: Vec<Lock>,
        /// The term of these locks.
        term: u64,
    },
}
wire_enum!(Watch { 0 => Nothing, 1 => Changes, 2 => Delegations { run, changed, locks, term } });

/// What became of a client's delegations and locks when it attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The current run of the home.
    pub run: u64,
    /// The client still has all its delegations. Otherwise it has none.
    pub all: bool,
    /// The client still has all its locks. Otherwise it has none.
    pub locks: bool,
    /// The client's term from now on.
    pub term: u64,
}
wire_struct!(Kept { run, all, locks, term });

/// A recall: the home wants a delegation back. The client sends home what it did under it, and then
/// says that it returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// The recall's number.
    pub number: u64,
    /// The file.
    pub file: FileId,
    /// What the client has, as the home knows it. The answer that gave it may still be on its way.
    pub held: Hold,
    /// The client may keep a read delegation.
    pub keep: bool,
}
wire_struct!(Recall { number, file, held, keep });

/// A store that will come after its delegation is returned (partial write-back: Zhao and
/// Figueiredo, section 4.3). The client uploads its bytes by and by, first those that another
/// client waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Behind {
    /// The number of the store.
    pub seq: u64,
    /// The newest version of the file that the client knew.
    pub base: u64,
    /// What the store will change.
    pub change: Change,
}
wire_struct!(Behind { seq, base, change });
