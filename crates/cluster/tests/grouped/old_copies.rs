//! Stores that are put back from copies that were made while the file system was mounted: more of
//! them than parity makes up for.

use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use cluster::{StartError, StorePlace};
use host::Disk;
use host::sim::{DiskSnapshot, Sim, SimDisk};
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const STORES: usize = 5;
const STORE_BYTES: u64 = 256 << 20;
const OLD: [usize; 2] = [1, 2];

struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
}

impl Rig {
    /// The last disk is that of the voter.
    fn new(seed: u64, stores: usize) -> Rig {
        let sim = Sim::new(seed);
        let disks = (0..=stores).map(|_| SimDisk::new(&sim, 2 * STORE_BYTES)).collect();
        Rig { sim, disks }
    }

    fn start(&self, is_new: bool, accepts_loss: bool) -> Result<CoreMachine, StartError> {
        self.start_without(None, is_new, accepts_loss)
    }

    fn start_without(&self, away: Option<usize>, is_new: bool, accepts_loss: bool) -> Result<CoreMachine, StartError> {
        self.sim.machine("one").crash();
        let on = self.sim.machine("one");
        let place = |at: usize| match Some(at) == away {
            true => StorePlace::Missing("it is dead".into()),
            false => StorePlace::from(self.disks[at].mount(&on) as Arc<dyn Disk>),
        };
        let count = self.disks.len() - 1;
        let places: Vec<StorePlace> = (0..count).map(place).collect();
        let consensus: Arc<dyn Disk> = self.disks[count].mount(&on);
        let run = Run {
            cache_bytes: 16 << 20,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            index_range_len: INDEX_RANGE_LEN,
            manager_lengths: Lengths::LARGEST,
            accepts_loss,
            claim: cluster::Claim::NONE,
        };
        self.sim.block_on(async {
            if is_new {
                let store_capacity_bytes = Some(STORE_BYTES);
                let how = Create { parity: 1, block_size: 64 * 1024, manager_count: 4, store_capacity_bytes };
                create(&on.host(), &places, &consensus, how).await.expect("create");
            }
            CoreMachine::start(on.host(), &places, &consensus, run).await
        })
    }

    /// Runs work that ends at once, or fails.
    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let clock = self.sim.machine("watch").host().clock;
        self.sim.block_on(host::timeout(&*clock, Duration::from_secs(100), work)).expect("it hangs")
    }

    fn write(&self, machine: &CoreMachine, name: &str) -> Result<(), FsError> {
        let write = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let client = &machine.client;
        self.run(async {
            let made = client.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, write).await;
            let (entry, handle) = made?;
            client.write(&Cred::ROOT, entry.attr.id, handle, 0, &name.repeat(50_000).into_bytes()).await?;
            client.fsync(entry.attr.id, handle, false).await?;
            client.release(entry.attr.id, handle, None).await
        })
    }

    fn read(&self, machine: &CoreMachine, name: &str) -> Result<bool, FsError> {
        let client = &machine.client;
        self.run(async {
            let entry = client.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await?;
            let handle =
                client.open(&Cred::ROOT, entry.attr.id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
            let len = name.len() * 50_000;
            let found = client.read(entry.attr.id, handle, 0, len as u32).await?;
            Ok(found.to_vec() == name.repeat(50_000).into_bytes())
        })
    }

    fn snapshots(&self) -> Vec<DiskSnapshot> {
        OLD.map(|at| self.disks[at].snapshot()).into()
    }

    fn put_in(&self, copies: &[DiskSnapshot]) {
        OLD.iter().zip(copies).for_each(|(at, copy)| self.disks[*at].restore(copy));
    }
}

/// Makes a file system, copies two of its stores while it goes on, and ends it. Returns the copies,
/// and what these stores had at the end.
fn begin(seed: u64) -> (Rig, Vec<DiskSnapshot>, Vec<DiskSnapshot>) {
    let rig = Rig::new(seed, STORES);
    let machine = rig.start(true, false).expect("start");
    (0..8).for_each(|number| rig.write(&machine, &format!("early-{number}")).expect("write"));
    let copies = rig.snapshots();
    (0..8).for_each(|number| rig.write(&machine, &format!("late-{number}")).expect("write"));
    rig.run(machine.stop()).expect("stop");
    rig.sim.machine("one").crash();
    let newest = rig.snapshots();
    (rig, copies, newest)
}

/// The start took segments that the copies lack for torn ones, and deleted the rest of them.
#[test]
fn regression_a_start_from_old_copies_is_refused_and_destroys_nothing() {
    for seed in 0..6 {
        let (rig, copies, newest) = begin(seed);
        rig.put_in(&copies);
        let refused = rig.start(false, false).err();
        assert!(matches!(refused, Some(StartError::Refused { .. })), "seed {seed}: {refused:?}");
        rig.put_in(&newest);
        let machine = rig.start(false, false).expect("start");
        rig.sim.run_for(Duration::from_secs(10));
        assert_eq!(machine.maintenance.done().redundancy.lost_count, 0);
        for number in 0..8 {
            assert_eq!(rig.read(&machine, &format!("early-{number}")), Ok(true));
            assert_eq!(rig.read(&machine, &format!("late-{number}")), Ok(true));
        }
    }
}

/// What cannot be read was passed over only while all stores answered.
#[test]
fn regression_a_loss_is_accepted_while_a_store_is_away() {
    for seed in 0..4 {
        let rig = Rig::new(seed, 3);
        let machine = rig.start(true, false).expect("start");
        let copy = rig.disks[1].snapshot();
        // So many that the newest checkpoints are striped, and one fragment of three is left.
        let client = &machine.client;
        let made = rig.run(async {
            for number in 0..4000 {
                let write = OpenFlags { write: true, ..OpenFlags::default() };
                let name = format!("file-{number}").into_bytes();
                let (entry, handle) = client.create(&Cred::ROOT, FileId::ROOT, &name, 0o644, 0, write).await?;
                client.release(entry.attr.id, handle, None).await?;
            }
            Ok::<(), FsError>(())
        });
        assert_eq!(made, Ok(()));
        rig.run(machine.stop()).expect("stop");
        rig.disks[1].restore(&copy);
        assert!(rig.start_without(Some(0), false, false).is_err());
        let machine = rig.start_without(Some(0), false, true).expect("the operator accepts the loss");
        rig.run(machine.stop()).expect("stop");
        rig.start_without(Some(0), false, false).expect("the loss was accepted");
    }
}

/// Some managers had applied segments that were lost, and others had not. The log went on with the
/// seqs of lost segments, so the former took new changes for ones that they had applied.
#[test]
fn regression_what_is_written_after_a_loss_is_kept() {
    let (mut whole, mut broken) = (0, 0);
    for seed in 0..12 {
        let (rig, copies, _) = begin(seed);
        rig.put_in(&copies);
        assert!(rig.start(false, false).is_err());
        let mut machine = rig.start(false, true).expect("the operator accepts the loss");
        // The root directory may be lost.
        let is_broken = (0..8).any(|number| rig.read(&machine, &format!("late-{number}")) == Err(FsError::Io));
        rig.sim.run_for(Duration::from_secs(10));
        let lost = machine.maintenance.done().redundancy.lost_count;
        assert!(!is_broken || lost > 0, "seed {seed}: what is lost is not told");
        broken += usize::from(is_broken);
        let made: Vec<bool> = (0..8).map(|number| rig.write(&machine, &format!("new-{number}")).is_ok()).collect();
        for is_clean in [false, true, false] {
            if is_clean {
                rig.run(machine.stop()).expect("stop");
            }
            machine = rig.start(false, false).expect("start");
            for (number, is_made) in made.iter().enumerate().filter(|(_, is_made)| **is_made) {
                assert_eq!(rig.read(&machine, &format!("new-{number}")), Ok(*is_made), "seed {seed}");
            }
        }
        whole += usize::from(made.iter().all(|is_made| *is_made));
    }
    assert!(whole >= 3 && broken >= 3, "{whole} root directories are there, {broken} file systems are broken");
}
