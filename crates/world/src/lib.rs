//! The simulated world: the whole core, as shipped, on simulated disks, network and time. It runs
//! in one thread under a seed, and is checked against [`vfs::mem::MemFs`].
//!
//! A [run](run) creates a file system on small disks. Workers do random operations on it, all in
//! the same directories and as several users, through a model of the kernel's caches and locks.
//! Every answer must be the model's answer at the instant at which the operation took effect.
//! Machines crash at any await, with or without a loss of power. The tree found afterwards must be
//! the model's after some prefix of the operations, with everything synced. Stores are on disks of
//! the same machine, or on machines of their own behind a network. They fail, as many at a time as
//! parity allows: users must notice nothing, and a scrub must repair everything. At the end the
//! offline check must find nothing.
//!
//! - [`operation`], [`session`]: the operations of workers.
//! - [`locks`], [`kernel`]: the kernel's locks and caches between applications and the client.
//! - [`oracle`], [`twin`]: the right answers, and the states that a crash may leave.
//! - [`faults`]: faults of stores.
//! - [`node`], [`remote`]: stores on machines of their own, and the network to them.
//! - `worker`, `world`: a worker, and a run.
//! - [`clients`]: several clients of one file system.

pub mod clients;
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

pub use clients::{ClientsOptions, ClientsOutcome, run_clients};
pub use world::{Failure, Options, Outcome, run};
