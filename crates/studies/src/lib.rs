//! The papers' studies: policies tried on traces, with the code that runs the file system.
//!
//! - [`advise`]: what to set, for a user's own trace.
//! - [`availability`]: how long data are unavailable, by parities and stripe groups, and what that
//!   costs (Dahlin, chapter 4.1 and 4.2).
//! - [`cleaning`]: what making room costs a log (Dahlin, sections 4.2 to 4.4).
//! - [`cooperative`]: cooperative caching (Dahlin, chapter 3).
//! - [`locality`]: which machine manages which files, and the messages that this takes (Dahlin,
//!   section 5.3).
//! - [`mobile`]: a client with a slow link (Froese and Bunt).
//! - [`figure`]: the results of studies, as data.
//! - [`sweep`]: one study with many parameters.
//!
//! The studies have no effects: a trace and parameters go in, figures come out. The same trace,
//! parameters and seed give the same figures everywhere.

pub mod advise;
pub mod availability;
pub mod cleaning;
pub mod cooperative;
pub mod figure;
pub mod locality;
pub mod mobile;
mod parameter_error;
pub mod sweep;

pub use parameter_error::ParameterError;
