//! One client of a home.

use super::session::{Op, find, perform, read_all};
use super::{Network, Rig};
use host::sim::{Machine, SimDisk};
use roam::{Client, Durability};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;
use vfs::FileSystem;

const DELAY: Duration = Duration::from_millis(50);

/// A client of a home, with its network, disk and machine.
pub struct Setup {
    pub rig: Rig,
    pub client: Client,
    pub network: Network,
    pub disk: SimDisk,
    pub machine: Machine,
}

impl Setup {
    pub fn new(seed: u64) -> Setup {
        Setup::of(Rig::new(seed), 0)
    }

    /// A client of a user, in a world whose home may have any state.
    pub fn of(rig: Rig, uid: u32) -> Setup {
        let (client, network, disk, machine) = rig.client_of(uid, 1, DELAY);
        Setup { rig, client, network, disk, machine }
    }

    pub fn done(&self, op: Op) {
        self.rig.sim.block_on(perform(&self.client, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }

    pub fn at_home(&self, path: &str) -> Result<String, FsError> {
        let fs = &self.rig.fs;
        let read = self.rig.sim.block_on(async { read_all(fs, find(fs, path).await?).await });
        read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn online(&self, online: bool) {
        self.network.up.store(online, Relaxed);
        self.rig.sim.run_for(Duration::from_secs(60));
    }

    /// Makes the client answer operations only when they are durable.
    pub fn always(self) -> Setup {
        self.client.set(|settings| settings.durability = Durability::Always);
        self
    }

    /// Makes all that was done durable, if possible, and then does as [`crash`](Self::crash).
    pub fn restart(self, power: bool) -> Setup {
        if self.machine.is_up() {
            let _ = self.rig.sim.block_on(self.client.sync().into_future());
        }
        self.crash(power)
    }

    /// The client crashes, with or without a loss of power, and starts again.
    pub fn crash(self, power: bool) -> Setup {
        let Setup { rig, client, network, disk, machine } = self;
        machine.crash();
        drop(client);
        if power {
            disk.power_loss();
        }
        let machine = rig.sim.machine("laptop 1");
        let client = rig.client(&machine, &disk, &network);
        Setup { rig, client, network, disk, machine }
    }
}
