//! The cleaner moves blocks while a client knows their old places.

use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::Disk;
use host::sim::{Sim, SimDisk};
use manager::api::Manager;
use std::sync::Arc;
use std::time::Duration;
use stripe::StripeError;
use types::{ClientId, FileId, FsError, SegmentId};
use vfs::fs::{Cred, FileSystem, Handle, OpenFlags, SetAttr};

const STORE_BYTES: u64 = 256 << 20;
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
const READ: OpenFlags = OpenFlags { read: true, write: false, append: false, truncate: false, execute: false };
/// Length of the file: one block, alone in its segment, and short enough that moving it gains
/// something.
const LEN: u32 = 3_000;

/// A file system on simulated disks, with one file.
struct Rig {
    sim: Sim,
    stores: Vec<SimDisk>,
    consensus: SimDisk,
    file: FileId,
}

fn contents() -> Vec<u8> {
    (0..LEN).map(|i| (i % 251) as u8).collect()
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let sim = Sim::new(seed);
        let disk = || SimDisk::new(&sim, STORE_BYTES);
        let (stores, consensus) = ((0..5).map(|_| disk()).collect(), disk());
        let mut rig = Rig { sim, stores, consensus, file: FileId::ROOT };
        let (host, places, disk) = rig.mounts();
        let how =
            Create { parity: 1, block_size: 65536, manager_count: 2, store_capacity_bytes: Some(STORE_BYTES / 2) };
        rig.sim.block_on(create(&host, &places, &disk, how)).expect("create");
        let machine = rig.start();
        let client = &machine.client;
        rig.file = rig.sim.block_on(async {
            let flags = OpenFlags { write: true, ..READ };
            let made = client.create(&Cred::ROOT, FileId::ROOT, b"file", 0o644, 0, flags).await;
            let (entry, handle) = made.expect("create a file");
            let id = entry.attr.id;
            // The name in a segment of its own.
            client.fsync(id, handle, false).await.expect("fsync");
            client.write(&Cred::ROOT, id, handle, 0, &contents()).await.expect("write");
            client.fsync(id, handle, false).await.expect("fsync");
            client.release(id, handle, None).await.expect("release");
            machine.stop().await.expect("stop");
            id
        });
        rig
    }

    fn mounts(&self) -> (host::Host, Vec<StorePlace>, Arc<dyn Disk>) {
        let machine = self.sim.machine("one");
        let places = self.stores.iter().map(|disk| disk.mount(&machine).into()).collect();
        (machine.host(), places, self.consensus.mount(&machine))
    }

    /// Starts a machine that has nothing in memory, after a crash of the one before.
    fn start(&self) -> CoreMachine {
        self.sim.machine("one").crash();
        let (host, places, consensus) = self.mounts();
        self.sim.block_on(CoreMachine::start(host, &places, &consensus, RUN)).expect("start")
    }

    async fn open(&self, machine: &CoreMachine) -> Handle {
        machine.client.open(&Cred::ROOT, self.file, READ).await.expect("open")
    }

    /// The segment in which the file's block is, by its manager.
    async fn place(&self, machine: &CoreMachine) -> SegmentId {
        let manager = &machine.servers()[usize::from(machine.config.managers.owner_of(self.file).raw())];
        let located = manager.locate(ClientId::new(1), self.file, 0).await.expect("locate");
        assert_eq!(located.extents.len(), 1, "{located:?}");
        located.extents[0].addr.segment
    }

    /// All is well after another start.
    fn check(&self, machine: CoreMachine, expected: &[u8]) {
        self.sim.block_on(machine.stop()).expect("stop");
        let machine = self.start();
        self.sim.block_on(async {
            let handle = self.open(&machine).await;
            assert_eq!(machine.client.read(self.file, handle, 0, LEN).await.expect("read"), expected);
            let report = cluster::check::check(&machine, |_| {}).await.expect("check");
            assert_eq!(report.problems, Vec::<String>::new());
        });
    }
}

/// A read waited for a store whose disk hung. Meanwhile the cleaner moved the block, and the
/// segment was deleted: the read ended with EIO.
#[test]
fn regression_a_block_that_moves_while_its_store_hangs_is_read_at_its_new_place() {
    let rig = Rig::new(1);
    let machine = rig.start();
    let clock = machine.host().clock;
    rig.sim.block_on(async {
        let handle = rig.open(&machine).await;
        let old = rig.place(&machine).await;
        let geometry = machine.stripe.info(old).await.expect("info").geometry;
        rig.stores[usize::from(geometry.members[0].raw())].hang(true);

        // The cleaner waits first, and goes on without the store while the reader still waits.
        let moved = async {
            machine.maintenance.clean().await.expect("clean");
            clock.now()
        };
        let read = async {
            clock.sleep(Duration::from_millis(3_500)).await;
            let read = machine.client.read(rig.file, handle, 0, LEN).await;
            (read, clock.now())
        };
        let (moved_at, (read, read_at)) = tokio::join!(moved, read);
        assert_ne!(rig.place(&machine).await, old);
        let gone = machine.stripe.read(old, 0..LEN).await;
        assert_eq!(gone, Err(StripeError::SegmentNotFound(old)), "deleted, of which the hanging store heard too");
        assert!(moved_at < read_at, "the reader did not wait: moved at {moved_at:?}, read at {read_at:?}");
        assert_eq!(read.expect("read"), contents());
    });
    rig.stores.iter().for_each(|disk| disk.hang(false));
    rig.sim.run_for(Duration::from_secs(60));
    rig.check(machine, &contents());
}

/// A file was cut in the middle of a block, and before that was committed, the cleaner moved the
/// block: the cut named the block's old address, and the segment there had been deleted.
#[test]
fn regression_cutting_a_block_does_not_undo_the_cleaners_move() {
    const KEPT: u32 = 1_000;
    let rig = Rig::new(2);
    let machine = rig.start();
    let client = &machine.client;
    rig.sim.block_on(async {
        let old = rig.place(&machine).await;
        let cuts = client.status().last_cut;
        let set = SetAttr { size: Some(KEPT.into()), ..SetAttr::default() };
        client.setattr(&Cred::ROOT, rig.file, None, set).await.expect("truncate");
        machine.maintenance.clean().await.expect("clean");
        assert_eq!(machine.stripe.info(old).await, Err(StripeError::SegmentNotFound(old)), "moved");
        assert_eq!(client.status().last_cut, cuts, "committed before the move");
        client.sync().await.expect("sync");
    });
    rig.check(machine, &contents()[..KEPT as usize]);
}

/// A read that failed asked whether the block had moved. Before that it waited until all changes of
/// the client were committed, which was impossible: the access time is a change too.
#[test]
fn regression_a_read_that_fails_ends_though_nothing_can_be_committed() {
    let rig = Rig::new(3);
    let machine = rig.start();
    let clock = machine.host().clock;
    let read = rig.sim.block_on(async {
        let handle = rig.open(&machine).await;
        let members = machine.stripe.info(rig.place(&machine).await).await.expect("info").geometry.members;
        let left = (0..5).find(|&store| members.iter().all(|member| member.raw() != store));
        let hanging = |store: &usize| Some(*store as u16) != left;
        (0..5).filter(hanging).for_each(|store| rig.stores[store].hang(true));
        let read = machine.client.read(rig.file, handle, 0, LEN).into_future();
        host::timeout(&*clock, Duration::from_secs(600), read).await
    });
    assert_eq!(read.expect("the read ends").map(|bytes| bytes.len()), Err(FsError::Io));
    rig.stores.iter().for_each(|disk| disk.hang(false));
    rig.sim.run_for(Duration::from_secs(60));
    rig.check(machine, &contents());
}

/// A manager gives the map of a scattered file in parts. The first part did not have the block that
/// could not be read. The client took that for a move, ten thousand times.
#[test]
fn regression_a_block_that_cannot_be_read_far_into_a_scattered_file_is_given_up_soon() {
    const BLOCK: u64 = 65536;
    let rig = Rig::new(4);
    let machine = rig.start();
    rig.sim.block_on(async {
        let flags = OpenFlags { write: true, ..READ };
        let handle = machine.client.open(&Cred::ROOT, rig.file, flags).await.expect("open");
        for b in (0..300).step_by(2).chain(400..410) {
            let written = machine.client.write(&Cred::ROOT, rig.file, handle, b * BLOCK, &[7; BLOCK as usize]).await;
            assert_eq!(written, Ok(BLOCK as u32));
        }
        machine.stop().await.expect("stop");
    });
    let machine = rig.start();
    rig.sim.block_on(async {
        let handle = rig.open(&machine).await;
        assert_eq!(machine.client.read(rig.file, handle, 400 * BLOCK, 10).await.expect("read"), [7; 10].as_slice());
        for disk in &rig.stores {
            disk.rot("fragments", 0..u64::MAX, 50_000);
        }
        let before = machine.stripe.request_count();
        assert_eq!(machine.client.read(rig.file, handle, 408 * BLOCK, 10).await, Err(FsError::Io));
        let requests = machine.stripe.request_count() - before;
        assert!(requests < 500, "{requests} requests");
    });
}

/// A read also fetches bytes around those that it needs, for the next read. If these could not be
/// read, the read failed.
#[test]
fn regression_what_is_whole_is_read_beside_what_is_not() {
    const LONG: usize = 200_000;
    let rig = Rig::new(5);
    let machine = rig.start();
    let bytes: Vec<u8> = (0..LONG).map(|i| (i * 31 / 7) as u8 ^ (i / 251) as u8).collect();
    rig.sim.block_on(async {
        let flags = OpenFlags { write: true, ..READ };
        let handle = machine.client.open(&Cred::ROOT, rig.file, flags).await.expect("open");
        let written = machine.client.write(&Cred::ROOT, rig.file, handle, 0, &bytes).await;
        assert_eq!(written, Ok(LONG as u32));
        machine.stop().await.expect("stop");
    });
    let machine = rig.start();
    let node = rig.sim.machine("looker");
    rig.sim.block_on(async {
        let geometry = machine.stripe.info(rig.place(&machine).await).await.expect("info").geometry;
        let disk_of = |member: usize| &rig.stores[usize::from(geometry.members[member].raw())];
        let file = disk_of(0).mount(&node).open("fragments", false).await.expect("open");
        let stored = file.read_at(0, 8 << 20).await.expect("read");
        let at = stored.windows(100).position(|window| *window == bytes[..100]).expect("the first fragment") as u64;
        assert_eq!(disk_of(0).rot("fragments", at..at + 100, 1).len(), 1);
        assert!(disk_of(usize::from(geometry.k)).rot("fragments", 0..8 << 20, 50_000).len() > 40_000, "parity");

        let handle = rig.open(&machine).await;
        let whole = machine.client.read(rig.file, handle, 70_000, 10).await;
        assert_eq!(whole.expect("read"), bytes[70_000..70_010]);
        assert_eq!(machine.client.read(rig.file, handle, 0, 10).await, Err(FsError::Io));
    });
}
