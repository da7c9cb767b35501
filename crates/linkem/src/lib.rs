//! Emulates a link between two places: delay, rate, loss, jitter, a bounded queue, and on or off,
//! for each direction.
//!
//! - [`model`]: one direction, as pure code.
//! - [`control`]: the common part of all running links: settings, on and off, counters.
//! - [`relay`]: a link for UDP. Needs no privileges; tests use it in their own process.
//! - [`namespace`]: network namespaces, and commands that run in them. Needs root.
//! - [`tun`]: a link for everything over IPv4, between two network namespaces. Needs root.
//! - [`units`]: rates, times and sizes as users write them.
//!
//! A link runs in user space; the kernel needs no netem. It is as exact as the machine's timers,
//! and as fast as one thread copies packets. Packets that come faster are lost in the kernel's
//! buffers and not counted.

pub mod control;
mod interface;
pub mod model;
pub mod namespace;
pub mod relay;
pub mod tun;
pub mod units;

pub use control::{Control, Direction, Settings};
pub use model::{Counters, Shape};
pub use namespace::Namespace;
pub use relay::Relay;
pub use tun::{Device, End, Tun, TunError};
pub use units::{Rate, UnitError};
