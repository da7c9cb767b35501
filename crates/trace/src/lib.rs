//! Traces: what clients did with files, in the order of time. The crate `studies` makes its figures
//! from them.
//!
//! - [`mod@format`]: the trace format; docs/trace-format.md describes it for authors of other
//!   programs.
//! - [`import`]: traces from the output of other programs.
//! - [`merge`]: several traces as one.
//! - [`summary`]: the facts of a trace.
//! - [`synth`]: traces like those of the papers.
//! - [`worst_case`]: the workload that hurts cooperative caching most (Dahlin, section 3.3.4.3).
//!
//! A trace contains no names and no contents: files are numbers.

pub mod format;
pub mod import;
pub mod merge;
pub mod summary;
pub mod synth;
mod workload_error;
pub mod worst_case;

pub use workload_error::WorkloadError;

/// What a client did to a file.
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
    /// It removed the file, or emptied it; an emptied file keeps its number.
    Delete,
}

/// One thing that a client did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, in microseconds since the trace began.
    pub time_us: u64,
    /// The client: numbers from 0.
    pub client: u32,
    /// The file.
    pub file: u64,
    /// The deed.
    pub deed: Deed,
}
