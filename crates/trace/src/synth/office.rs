//! A week of everyday work in a computer science department: text, programs, documents, browsing
//! (Froese and Bunt, trace 1 of section 4.2).
//!
//! Stated there (table of trace characteristics): a week with 12.9 hours of activity, 21,013
//! requests of which 37.8 % are writes, 383 files of 17 MB in all, 4596 MB read and 4 MB written.
//! No file is removed: the paper's trace has no removals. [`super::week`] sets the rest.

use super::week::{Requests, Week};
use crate::WorkloadError;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Office(pub Week);

impl Default for Office {
    /// As in the paper.
    fn default() -> Office {
        Office(Week {
            days: 7,
            active_h: 12.9,
            requests: 21_013,
            writes: 0.378,
            files: 383,
            unique_bytes: 17 << 20,
            read_bytes: 4596 << 20,
            written_bytes: 4 << 20,
            recency: 1.5,
            seed: 1,
        })
    }
}

impl Office {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), WorkloadError> {
        self.0.check()
    }

    /// The requests, in the order of time. The parameters must pass [`check`](Self::check).
    pub fn records(self) -> Requests {
        self.0.records()
    }
}
