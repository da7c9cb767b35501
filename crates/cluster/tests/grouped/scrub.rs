//! A scrub reports everything that is damaged, and nothing else.

use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::sim::{Sim, SimDisk};
use host::{Disk, Host};
use std::collections::BTreeSet;
use std::sync::Arc;
use stripe::ScrubReport;
use types::{FileId, SegmentId};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const STORE_BYTES: u64 = 256 << 20;
const FILES: u64 = 40;
const RUN: Run = Run {
    cache_bytes: 16 << 20,
    root_mode: 0o755,
    root_uid: 0,
    root_gid: 0,
    index_range_len: INDEX_RANGE_LEN,
    manager_lengths: Lengths::LARGEST,
    accepts_loss: false,
    claim: cluster::Claim::NONE,
};

/// The disks of a file system, which machines run one after the other.
struct Disks {
    sim: Sim,
    stores: Vec<SimDisk>,
    consensus: SimDisk,
}

impl Disks {
    fn new(seed: u64) -> Disks {
        let sim = Sim::new(seed);
        let disk = |_| SimDisk::new(&sim, 2 * STORE_BYTES);
        Disks { stores: (0..4).map(disk).collect(), consensus: disk(4), sim: sim.clone() }
    }

    fn mounted(&self) -> (Host, Vec<StorePlace>, Arc<dyn Disk>) {
        let on = self.sim.machine("one");
        let places = self.stores.iter().map(|disk| disk.mount(&on).into()).collect();
        (on.host(), places, self.consensus.mount(&on))
    }

    async fn create(&self) {
        let (host, places, consensus) = self.mounted();
        let store_capacity_bytes = Some(STORE_BYTES);
        let how = Create { parity: 1, block_size: 64 * 1024, manager_count: 1, store_capacity_bytes };
        create(&host, &places, &consensus, how).await.expect("create");
    }

    async fn start(&self) -> CoreMachine {
        let (host, places, consensus) = self.mounted();
        CoreMachine::start(host, &places, &consensus, RUN).await.expect("start")
    }
}

async fn save(machine: &CoreMachine, number: u64) {
    let (client, name) = (&machine.client, number.to_string().into_bytes());
    let write = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (entry, handle) = client.create(&Cred::ROOT, FileId::ROOT, &name, 0o644, 0, write).await.expect("create");
    client.write(&Cred::ROOT, entry.attr.id, handle, 0, &name.repeat(20_000)).await.expect("write");
    client.fsync(entry.attr.id, handle, false).await.expect("fsync");
    client.release(entry.attr.id, handle, None).await.expect("release");
}

async fn segments(machine: &CoreMachine) -> BTreeSet<SegmentId> {
    machine.stripe.segments().await.expect("segments").into_keys().collect()
}

async fn scrub(machine: &CoreMachine, repair: bool) -> ScrubReport {
    machine.maintenance.scrub(repair, |_| ()).await.expect("scrub")
}

/// A store lists deleted segments again, and lacks others: an old copy of its disk was put back.
/// The table of segments learned of the former only once everything had been listed. So a scrub
/// before that called them damaged.
#[test]
fn regression_segments_that_a_store_shows_again_are_no_damage() {
    let disks = Arc::new(Disks::new(7));
    let sim = disks.sim.clone();
    sim.block_on(async move {
        disks.create().await;
        let machine = disks.start().await;
        for number in 0..FILES {
            save(&machine, number).await;
        }
        let before = segments(&machine).await;
        machine.stop().await.expect("stop");
        let copy = disks.stores[0].snapshot();

        let machine = disks.start().await;
        for number in 0..FILES {
            let name = number.to_string().into_bytes();
            machine.client.unlink(&Cred::ROOT, FileId::ROOT, &name).await.expect("unlink");
        }
        save(&machine, FILES).await;
        machine.maintenance.clean().await.expect("clean");
        let after = segments(&machine).await;
        assert!(before.difference(&after).count() as u64 >= FILES, "nothing was deleted");
        machine.stop().await.expect("stop");
        disks.stores[0].restore(&copy);

        let machine = disks.start().await;
        assert!(!segments(&machine).await.is_subset(&after), "the copy shows nothing that was deleted");
        let report = scrub(&machine, false).await;
        let suspects: BTreeSet<SegmentId> = report.suspects().into_iter().collect();
        assert!(before.difference(&after).all(|deleted| !suspects.contains(deleted)), "{report:?}");
        assert!(report.missing > 0 && !report.unrepaired.is_empty(), "what the copy lacks: {report:?}");
        let repaired = scrub(&machine, true).await;
        assert_eq!((repaired.repaired as usize, repaired.unrepaired.len()), (suspects.len(), 0));
        assert!(scrub(&machine, false).await.suspects().is_empty());
    });
}

/// A scrub looks again at suspect segments; a bad one stays bad until it is repaired.
#[test]
fn rot_is_told_each_time_until_it_is_repaired() {
    let disks = Arc::new(Disks::new(8));
    let sim = disks.sim.clone();
    sim.block_on(async move {
        disks.create().await;
        let machine = disks.start().await;
        for number in 0..FILES {
            save(&machine, number).await;
        }
        assert!(scrub(&machine, false).await.suspects().is_empty());
        assert!(!disks.stores[1].rot("fragments", 1 << 20..3 << 20, 100).is_empty());
        let report = scrub(&machine, false).await;
        assert!(report.damaged > 0 && !report.unrepaired.is_empty() && report.repaired == 0, "{report:?}");
        assert_eq!(scrub(&machine, false).await, report);
        let repaired = scrub(&machine, true).await;
        assert_eq!((repaired.repaired as usize, repaired.unrepaired.len()), (report.unrepaired.len(), 0));
        assert!(scrub(&machine, false).await.suspects().is_empty());
    });
}
