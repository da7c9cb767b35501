//! The tokens that an attempt looked at.
//!
//! An attempt runs on one thread from its beginning to its end. While it runs, this thread's list
//! has what it needed so far. If it stops because something is missing, the client pins these
//! tokens before it fetches that. So the next attempt finds them, and other clients' recalls cannot
//! make an operation begin anew for ever.

use manager::InodeRecord;
use manager::token::Mode;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use types::FileId;

/// Tokens that an operation needs.
pub(crate) type Needs = BTreeMap<FileId, Mode>;

/// The attributes of a file that the client has no token on, as another client had them while it
/// could change the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) inode: InodeRecord,
    /// How many grants the client had taken when it heard of them. They count until it takes
    /// another one: so no operation here has changed the file or its names since they were true.
    pub(crate) grant_count: u64,
}

thread_local! {
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
    static TOUCHED: RefCell<Vec<(FileId, Mode)>> = const { RefCell::new(Vec::new()) };
}

/// Begins an attempt.
pub(crate) fn begin() {
    TOUCHED.with_borrow_mut(Vec::clear);
}

/// Runs an attempt that may use attributes that another client has just told.
pub(crate) fn with<T>(seen: Option<Seen>, attempt: impl FnOnce() -> T) -> T {
    SEEN.set(seen);
    let result = attempt();
    SEEN.set(None);
    result
}

/// The attributes that the attempt on this thread may use of a file.
pub(crate) fn seen(file: FileId) -> Option<Seen> {
    SEEN.get().filter(|seen| seen.inode.id == file)
}

/// Notes that the attempt on this thread needs a token.
pub(crate) fn note(file: FileId, mode: Mode) {
    TOUCHED.with_borrow_mut(|touched| touched.push((file, mode)));
}

/// What the attempt on this thread needed.
pub(crate) fn needs() -> Needs {
    let mut needs = Needs::new();
    TOUCHED.with_borrow(|touched| {
        for (file, mode) in touched {
            let strongest = needs.entry(*file).or_insert(*mode);
            *strongest = (*strongest).max(*mode);
        }
    });
    needs
}
