//! The simulated world: the whole core, as shipped, on simulated disks and time, in one thread under a seed, checked against
//! [`vfs::mem::MemFs`].
//!
//! A [run](run) makes a file system on small disks and lets workers do random operations on it, each in a directory of its own,
//! through a model of the kernel's caches. Whatever an operation answers must be what the model answers. Machines crash at any await, with
//! or without a loss of power; the tree that is found afterwards must be the model's after some prefix of what was done that
//! holds everything synced. Stores go bad, as many at a time as parity allows; nothing of that may show, and a scrub
//! must make it good. At the end the offline check finds nothing.
//!
//! - [`operation`], [`session`]: what workers do, and what they see.
//! - [`history`]: which part of it a crash left.
//! - [`kernel`]: what Linux keeps between an application and the client.
//! - [`faults`]: what happens to stores.
//! - `worker`, `world`: a worker, and a run.

pub mod faults;
pub mod history;
pub mod kernel;
pub mod operation;
pub mod session;
mod worker;
mod world;

pub use world::{Failure, Options, Outcome, run};
