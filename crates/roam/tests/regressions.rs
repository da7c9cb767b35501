//! What storms found, each reduced to what it takes.

mod rig;

use host::sim::{Machine, SimDisk};
use rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use rig::{Network, Rig};
use roam::Client;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;
use vfs::fs::{Cred, FileSystem};

const DELAY: Duration = Duration::from_millis(50);
/// A loss of power may go either way.
const SEED_COUNT: u64 = 20;

/// A client of a home, and all that it runs on.
struct Setup {
    rig: Rig,
    client: Client,
    network: Network,
    disk: SimDisk,
    machine: Machine,
}

impl Setup {
    fn new(seed: u64) -> Setup {
        let rig = Rig::new(seed);
        let (client, network, disk, machine) = rig.new_client(1, DELAY);
        Setup { rig, client, network, disk, machine }
    }

    fn done(&self, op: Op) {
        self.rig.sim.block_on(perform(&self.client, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }

    fn write(&self, path: &str, how: How, text: &str) {
        self.done(Op::Write(path.into(), how, text.into()));
    }

    fn read(&self, path: &str) -> String {
        let read = self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, path).await?).await });
        String::from_utf8_lossy(&read.expect(path)).into_owned()
    }

    fn at_home(&self, path: &str) -> Result<String, FsError> {
        let fs = &self.rig.fs;
        let read = self.rig.sim.block_on(async { read_all(fs, find(fs, path).await?).await });
        read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn online(&self, online: bool) {
        self.network.up.store(online, Relaxed);
        self.rig.sim.run_for(Duration::from_secs(60));
    }

    fn restart(self, power: bool) -> Setup {
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

/// Neither the number of the file of the cache was logged that has a new file's bytes, nor was that file's name durable.
#[test]
fn regression_what_was_closed_is_there_after_a_loss_of_power() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        setup.done(Op::List(String::new()));
        setup.online(false);
        setup.write("/file", How::Replace, "closed");
        let setup = setup.restart(true);
        assert_eq!(setup.read("/file"), "closed", "seed {seed}");
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("closed"), "seed {seed}");
    }
}

/// What was fetched before the first byte of a file was changed was not durable when it began to count as the user's own.
#[test]
fn regression_what_was_fetched_to_be_changed_is_there_after_a_loss_of_power() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        let (fs, old) = (setup.rig.fs.clone(), "old ".repeat(1000));
        setup.rig.sim.block_on(perform(&fs, &Op::Write("/file".into(), How::Replace, old.clone().into()))).unwrap();
        setup.rig.sim.block_on(async {
            let (id, handle) = open_to_write(&setup.client, "/file", How::Append).await.unwrap();
            setup.client.write(&Cred::ROOT, id, handle, 0, b"new").await.unwrap();
        });
        let setup = setup.restart(true);
        setup.online(true);
        let there = setup.at_home("/file").unwrap();
        assert!(there.starts_with(&old), "seed {seed}: {} bytes", there.len());
    }
}

/// What was found in the cache when it was opened was logged before it was durable.
#[test]
fn regression_what_a_crash_left_is_still_there_after_a_loss_of_power() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        setup.done(Op::List(String::new()));
        setup.online(false);
        setup.rig.sim.block_on(async {
            let (id, handle) = open_to_write(&setup.client, "/file", How::Append).await.unwrap();
            setup.client.write(&Cred::ROOT, id, handle, 0, b"written").await.unwrap();
        });
        setup.rig.sim.run_for(Duration::from_secs(1));
        let setup = setup.restart(false);
        assert_eq!(setup.read("/file"), "written", "seed {seed}");
        let setup = setup.restart(true);
        assert_eq!(setup.read("/file"), "written", "seed {seed}");
    }
}

/// A file of which only a part was cached, and which was being cut to nothing, came back with zeroes where nothing was cached.
#[test]
fn regression_half_of_a_file_is_not_passed_off_as_what_was_left_of_it() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        let (fs, old) = (setup.rig.fs.clone(), "old ".repeat(200_000));
        setup.rig.sim.block_on(perform(&fs, &Op::Write("/file".into(), How::Replace, old.clone().into()))).unwrap();
        setup.rig.sim.block_on(async {
            let id = find(&setup.client, "/file").await.unwrap();
            let flags = vfs::fs::OpenFlags { read: true, ..Default::default() };
            let handle = setup.client.open(&Cred::ROOT, id, flags).await.unwrap();
            setup.client.read(id, handle, 700_000, 1000).await.unwrap();
            close(&setup.client, id, handle).await.unwrap();
        });
        setup.rig.sim.run_for(Duration::from_secs(10));
        setup.online(false);
        setup.machine.crash_after(seed);
        let client = setup.client.clone();
        let cut = setup.machine.run(async move { open_to_write(&client, "/file", How::Replace).await.map(drop) });
        setup.rig.sim.run_for(Duration::from_secs(1));
        drop(cut);
        let setup = setup.restart(seed % 2 == 0);
        setup.online(true);
        let there = setup.at_home("/file").unwrap();
        assert!(there == old || there.is_empty(), "seed {seed}: {} bytes", there.len());
    }
}
