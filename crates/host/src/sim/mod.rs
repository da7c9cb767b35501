//! The simulated world: machines, their disks, and the links between them, in one thread, on
//! virtual time, under a seed.
//!
//! The seed decides everything that is open: which ready task runs next, how long a disk takes,
//! what a power loss leaves. The same seed gives the same run, and tests check that by
//! [`Sim::digest`]. Another seed gives another interleaving of the same, shipped code.
//!
//! ```
//! use host::sim::{Sim, SimDisk};
//! use host::Disk;
//!
//! let sim = Sim::new(7);
//! let disk = SimDisk::new(&sim, 1 << 30);
//! let machine = sim.machine("store");
//! let folder = disk.mount(&machine);
//! sim.block_on(async { folder.open("file", true).await.unwrap().write_at(0, vec!["lost".into()]).await.unwrap() });
//! machine.crash(); // as kill -9 does: what was written is still there
//! disk.power_loss(); // what was not synced may be gone or torn
//! let folder = disk.mount(&sim.machine("store"));
//! # let _ = folder;
//! ```

mod content;
mod digest;
mod disk;
mod executor;
mod image;
mod link;
mod machine;
mod mount;

pub use disk::{Counts, DiskSnapshot, SimDisk};
pub use executor::Sim;
pub use link::{LinkFaults, SimLink};
pub use machine::{Crashed, Machine};

/// Random numbers of a simulated machine; they depend only on the world's seed and the machine.
pub type SimRandom = crate::SplitMix64;
