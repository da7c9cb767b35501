//! Managers that cannot keep up with what a client commits.

use client::{Client, Managers};
use cluster::StorePlace;
use cluster::config::STORE_CAPACITY_BYTES_MIN;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::Host;
use host::sim::{Sim, SimDisk};
use manager::api::{
    GiveBack, Glimpse, GlimpseAnswer, IndexRange, Located, Manager, ManagerError, ManagerStatus, Opened, SegmentDeltas,
};
use manager::token::Mode;
use policy::space::{Reserves, SpaceAccount};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use types::{Answer, ClientId, FileId, LogId};
use vfs::fs::{Cred, FileSystem, OpenFlags};

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
/// A log that the machine's own roles do not use.
const LOG: LogId = LogId::new(3);
const FILES: u64 = 2000;

/// A manager that applies nothing while it is told not to.
struct Halting {
    manager: Arc<dyn Manager>,
    halted: Arc<AtomicBool>,
    host: Host,
}

impl Manager for Halting {
    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        let (manager, halted, clock) = (self.manager.clone(), self.halted.clone(), self.host.clock.clone());
        Answer::later(async move {
            while halted.load(SeqCst) {
                clock.sleep(Duration::from_millis(100)).await;
            }
            manager.apply(segments).await
        })
    }

    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.manager.open(client, file, mode)
    }

    fn glimpse(&self, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        self.manager.glimpse(client, file)
    }

    fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer) {
        self.manager.glimpsed(client, answer);
    }

    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.manager.locate(client, file, first)
    }

    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        self.manager.open_many(client, files, mode)
    }

    fn release(&self, client: ClientId, file: FileId, number: u64) {
        self.manager.release(client, file, number);
    }

    fn give_back(&self, client: ClientId, back: GiveBack) {
        self.manager.give_back(client, back);
    }

    fn closed(&self, client: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.manager.closed(client, file)
    }

    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        self.manager.allocate(client, volume)
    }

    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        self.manager.orphans()
    }

    fn status(&self) -> ManagerStatus {
        self.manager.status()
    }
}

/// A client whose managers applied nothing once kept the deltas of all its commits in memory,
/// without a bound.
#[test]
fn regression_a_client_waits_for_managers_that_are_far_behind() {
    let sim = Sim::new(11);
    let disk = || SimDisk::new(&sim, 64 * STORE_CAPACITY_BYTES_MIN);
    let (stores, consensus): (Vec<SimDisk>, SimDisk) = ((0..3).map(|_| disk()).collect(), disk());
    let one = sim.machine("one");
    let host = one.host();
    let places: Vec<StorePlace> = stores.iter().map(|disk| disk.mount(&one).into()).collect();
    let consensus: Arc<dyn host::Disk> = consensus.mount(&one);
    let store_capacity_bytes = Some(16 * STORE_CAPACITY_BYTES_MIN);
    let how = Create { parity: 1, block_size: 65536, manager_count: 2, store_capacity_bytes };
    sim.block_on(create(&host, &places, &consensus, how)).expect("create");
    let machine = sim.block_on(CoreMachine::start(host.clone(), &places, &consensus, RUN)).expect("start");

    let first = machine.client.clone();
    sim.block_on(async { first.settle().await });

    let halted = Arc::new(AtomicBool::new(true));
    let managers = machine.servers().into_iter().map(|manager| {
        let (manager, halted, host) = (manager.clone(), halted.clone(), host.clone());
        Arc::new(Halting { manager, halted, host }) as Arc<dyn Manager>
    });
    let managers = Managers::new(machine.config.managers.clone(), managers.collect());
    let opened = manager::roll_forward::roll_forward(&machine.stripe, &machine.managers, LOG);
    let (tail, _) = sim.block_on(opened).expect("open the log");
    let config = client::ClientConfig {
        id: ClientId::new(2),
        block_size: machine.config.block_size,
        cache_bytes: 16 << 20,
        inode_count_max: 100,
        lease: Duration::from_secs(10),
        lease_until: None,
    };
    let space = SpaceAccount::new(Reserves::new(0, 0), u64::MAX, 0);
    let client = Client::start(host.clone(), config, space, managers, machine.stripe.clone(), tail);
    let made = Arc::new(AtomicU64::new(0));
    let count = made.clone();
    host.tasks.spawn(Box::pin(async move {
        for number in 0..FILES {
            let (name, flags) = (number.to_string(), OpenFlags::default());
            let created = client.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, flags).await;
            let (entry, handle) = created.expect("create a file");
            client.release(entry.attr.id, handle, None).await.expect("release");
            client.sync().await.expect("sync");
            count.fetch_add(1, SeqCst);
        }
    }));
    sim.run_for(Duration::from_secs(30));
    let waiting = made.load(SeqCst);
    assert!(waiting > 0 && waiting <= client::UNAPPLIED_CUTS_MAX as u64, "{waiting} cuts wait");
    halted.store(false, SeqCst);
    sim.run_for(Duration::from_secs(60));
    assert_eq!(made.load(SeqCst), FILES, "it goes on when the managers do");
}
