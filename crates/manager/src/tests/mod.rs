//! A manager over stores in memory, in the simulated world.

mod deletion;
mod glimpse;
mod model;
mod order;
mod requests;
mod scale;
pub mod values;
