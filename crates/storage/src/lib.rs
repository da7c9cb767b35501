//! Storage servers: dumb and fast (design, section 3.1).
//!
//! - [`api`]: what anybody may ask of a storage server, and its errors.
//! - [`server`]: the server over a [`host::Disk`]: group commit, checkpoints, reads. Its pure parts are [`slots`] (where
//!   fragments go), [`index`] and [`packed`] (what is where), [`checkpoint`] (bytes of checkpoints) and [`recovery`] (what a
//!   crash left).

pub mod api;
pub mod checkpoint;
pub mod index;
pub mod packed;
pub mod slots;
#[cfg(test)]
mod testing;
