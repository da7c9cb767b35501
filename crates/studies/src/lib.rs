//! Tries policies on traces: the studies of the papers, with the code that runs the file system.
//!
//! - [`advise`]: what to set, for somebody's own trace.
//! - [`availability`]: how long data are out of reach, by parities and stripe groups, and what that
//!   costs (Dahlin, chapter 4.1 and 4.2).
//! - [`cleaning`]: what making room costs a log (Dahlin, sections 4.2 to 4.4).
//! - [`cooperative`]: who keeps what in whose memory (Dahlin, chapter 3).
//! - [`locality`]: who manages which files, and the messages that takes (Dahlin, section 5.3).
//! - [`mobile`]: a client with a slow link (Froese and Bunt).
//! - [`figure`]: what studies show.
//! - [`sweep`]: one study with many parameters.
//!
//! No effects: a trace and parameters in, figures out. The same trace, parameters and seed give the
//! same figures everywhere.

pub mod advise;
pub mod availability;
pub mod cleaning;
pub mod cooperative;
pub mod figure;
pub mod locality;
pub mod mobile;
pub mod sweep;
