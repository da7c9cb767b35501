//! The tokens that an attempt looked at.
//!
//! An attempt runs on one thread from its beginning to its end. While it runs, this thread's list
//! has what it needed so far. If it stops because something is missing, the client pins these
//! tokens before it fetches that. So the next attempt finds them, and other clients' recalls cannot
//! make an operation begin anew for ever.

use manager::token::Mode;
use std::cell::RefCell;
use std::collections::BTreeMap;
use types::FileId;

/// Tokens that an operation needs.
pub(crate) type Needs = BTreeMap<FileId, Mode>;

thread_local! {
    static TOUCHED: RefCell<Vec<(FileId, Mode)>> = const { RefCell::new(Vec::new()) };
}

/// Begins an attempt.
pub(crate) fn begin() {
    TOUCHED.with_borrow_mut(Vec::clear);
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
