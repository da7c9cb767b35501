//! What clients did with files, in the order of time: traces, from which the crate `studies` makes
//! its figures.
//!
//! - [`mod@format`]: how traces are kept; docs/trace-format.md is for whoever writes other
//!   programs.
//! - [`import`]: what other programs write.
//! - [`merge`]: several traces as one.
//! - [`summary`]: what is in a trace.
//! - [`synth`]: traces like those of the papers.
//! - [`worst_case`]: the workload that hurts cooperative caching most (Dahlin, section 3.3.4.3).
//!
//! Names and contents are in no trace: files are numbers.

pub mod format;
pub mod import;
pub mod merge;
pub mod summary;
pub mod synth;
pub mod worst_case;

/// What a client did with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// It read these bytes.
    Read {
        /// First byte.
        offset: u64,
        /// How many, at least one.
        len: u64,
    },
    /// It wrote these bytes.
    Write {
        /// First byte.
        offset: u64,
        /// How many, at least one.
        len: u64,
    },
    /// It removed the file, or emptied it: then it goes on under its number.
    Delete,
}

/// One thing that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, in microseconds since the trace began.
    pub time_us: u64,
    /// Who: numbers from 0.
    pub client: u32,
    /// With which file.
    pub file: u64,
    /// What.
    pub deed: Deed,
}
