//! Synthetic traces like those of the papers, which are not published: made to match what the
//! papers state of theirs, and nothing else.
//!
//! - [`sprite`], [`auspex`]: many clients and a server (Dahlin, chapter 3).
//! - [`office`], [`stress`]: the week of one user (Froese and Bunt).
//! - [`community`]: what clients of a server do; [`week`]: what a user does.
//! - `draw`: chances, sizes of files; `hours`: when there is work.
//!
//! Traces are made record by record: they may be as long as one likes. The same parameters and seed
//! give the same trace everywhere.

pub mod auspex;
pub mod community;
mod draw;
mod hours;
pub mod office;
pub mod sprite;
pub mod stress;
pub mod week;

/// Finds the first fault, and says it.
fn first_fault(faults: impl IntoIterator<Item = (bool, &'static str)>) -> Result<(), String> {
    faults.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, what)| Err(what.into()))
}
