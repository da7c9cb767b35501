//! Synthetic traces like those of the papers, which are not published: made to match what the papers state of theirs, and nothing else.
//!
//! - [`sprite`]: many clients and a server (Dahlin, chapter 3).
//! - [`community`]: what clients of a server do.
//! - `draw`: chances, sizes of files; `hours`: when there is work.
//!
//! Traces are made record by record: they may be as long as one likes. The same parameters and seed give the same trace everywhere.

pub mod community;
mod draw;
mod hours;
pub mod sprite;

/// Finds the first fault, and says it.
fn first_fault(faults: impl IntoIterator<Item = (bool, &'static str)>) -> Result<(), String> {
    faults.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err(what.into()))
}
