//! Synthetic traces like those of the papers, which are not published. They match what the papers
//! state of their traces, and nothing else.
//!
//! - [`sprite`], [`auspex`]: many clients and a server (Dahlin, chapter 3).
//! - [`office`], [`stress`]: the week of one user (Froese and Bunt).
//! - [`community`]: the clients of a server; [`week`]: the work of one user.
//! - `draw`: random choices, sizes of files; `hours`: working hours.
//!
//! Traces are made record by record, so their length is unlimited. The same parameters and seed
//! give the same trace everywhere.

pub mod auspex;
pub mod community;
mod draw;
mod hours;
pub mod office;
pub mod sprite;
pub mod stress;
pub mod week;
