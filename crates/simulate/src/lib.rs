//! Tries policies on traces: the studies of the papers, with the code that runs the file system.
//!
//! - [`cooperative`]: who keeps what in whose memory (Dahlin, chapter 3).
//! - [`mobile`]: a client with a slow link (Froese and Bunt).
//! - [`figure`]: what studies show.
//! - [`sweep`]: one study with many parameters.
//!
//! No effects: a trace and parameters in, figures out. The same trace, parameters and seed give the same figures everywhere.

pub mod cooperative;
pub mod figure;
pub mod mobile;
pub mod sweep;
