//! A manager over stores in memory, in the simulated world.

mod model;
mod requests;
