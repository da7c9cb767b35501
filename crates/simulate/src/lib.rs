//! Tries policies on traces: the studies of the papers, with the code that runs the file system.
//!
//! - [`cooperative`]: who keeps what in whose memory (Dahlin, chapter 3).
//!
//! Pure: a trace and parameters in, figures out. The same trace, parameters and seed give the same figures everywhere.

pub mod cooperative;
