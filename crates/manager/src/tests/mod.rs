//! A manager over stores in memory, in the simulated world.

mod deletion;
mod model;
mod requests;
mod scale;
pub mod values;
