//! The simulated world: the whole core, as shipped, on simulated disks, network and time, in one
//! thread under a seed, checked against [`vfs::mem::MemFs`].
//!
//! A [run](run) makes a file system on small disks and lets workers do random operations on it, all
//! in the same directories and as several users, through a model of the kernel's caches and locks.
//! Whatever an operation answers must be what the model answers at the instant at which it took
//! effect. Machines crash at any await, with or without a loss of power; the tree that is found
//! afterwards must be the model's after some prefix of what was done that holds everything synced.
//! Stores are on disks of the same machine, or on machines of their own behind a network. They go
//! bad, as many at a time as parity allows; nothing of that may show, and a scrub must make it
//! good. At the end the offline check finds nothing.
//!
//! - [`operation`], [`session`]: what workers do.
//! - [`locks`], [`kernel`]: whom Linux lets do it at the same time, and what it keeps between an
//!   application and the client.
//! - [`oracle`], [`twin`]: what must be answered, and what a crash may leave.
//! - [`faults`]: what happens to stores.
//! - [`node`], [`remote`]: stores on machines of their own, and the network to them.
//! - `worker`, `world`: a worker, and a run.

pub mod faults;
pub mod kernel;
pub mod locks;
pub mod node;
pub mod operation;
pub mod oracle;
pub mod remote;
pub mod session;
pub mod twin;
mod worker;
mod world;

pub use world::{Failure, Options, Outcome, run};
