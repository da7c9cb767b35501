//! A week with many more writes, which tests how changes reach the home (Froese and Bunt, trace 2
//! of section 4.2).
//!
//! Stated there: a week with 7.0 hours of activity, 53,860 requests of which 67.9 % are writes,
//! 1000 files of 18 MB in all, 4718 MB read and 35 MB written. No file is removed: the paper's
//! trace has no removals. [`super::week`] sets the rest.

use super::week::{Requests, Week};
use crate::WorkloadError;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stress(pub Week);

impl Default for Stress {
    /// As in the paper.
    fn default() -> Stress {
        Stress(Week {
            days: 7,
            active_h: 7.0,
            requests: 53_860,
            writes: 0.679,
            files: 1000,
            unique_bytes: 18 << 20,
            read_bytes: 4718 << 20,
            written_bytes: 35 << 20,
            recency: 1.5,
            seed: 1,
        })
    }
}

impl Stress {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), WorkloadError> {
        self.0.check()
    }

    /// The requests, in the order of time. The parameters must pass [`check`](Self::check).
    pub fn records(self) -> Requests {
        self.0.records()
    }
}
