//! What is durable without any sync, to the second of the simulated clock, and the answers of fsync
//! when nothing can become durable.

use cluster::StorePlace;
use cluster::config::CLIENT_LOG;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::Disk;
use host::sim::{Sim, SimDisk};
use std::sync::Arc;
use std::time::Duration;
use stripe::StripeError;
use types::{FileId, FsError};
use vfs::acl::{Acl, AclEntry, Tag, XATTR_ACCESS};
use vfs::fs::{Cred, FileSystem, OpenFlags, SetAttr, XattrMode};

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
const WRITE: OpenFlags = OpenFlags { write: true, read: true, append: false, truncate: false, execute: false };

/// Five stores and the consensus engine's disk.
struct Rig {
    sim: Sim,
    stores: Vec<SimDisk>,
    consensus: SimDisk,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let sim = Sim::new(seed);
        let disk = || SimDisk::new(&sim, STORE_BYTES);
        Rig { stores: (0..5).map(|_| disk()).collect(), consensus: disk(), sim: sim.clone() }
    }

    /// The file system on the machine, created if it is `new`.
    fn start(&self, new: bool) -> CoreMachine {
        let on = self.sim.machine("one");
        let places: Vec<StorePlace> = self.stores.iter().map(|disk| disk.mount(&on).into()).collect();
        let consensus: Arc<dyn Disk> = self.consensus.mount(&on);
        let host = on.host();
        self.sim.block_on(async move {
            if new {
                let store_capacity_bytes = Some(STORE_BYTES / 2);
                let how = Create { parity: 1, block_size: 65536, manager_count: 2, store_capacity_bytes };
                create(&host, &places, &consensus, how).await.expect("create");
            }
            CoreMachine::start(host, &places, &consensus, RUN).await.expect("start")
        })
    }

    /// The power fails, and everything starts again.
    fn restart(&self) -> CoreMachine {
        self.sim.machine("one").crash();
        self.stores.iter().chain([&self.consensus]).for_each(SimDisk::power_loss);
        self.start(false)
    }

    /// Makes a file with its name as contents.
    fn make(&self, machine: &CoreMachine, name: &'static [u8]) {
        let client = machine.client.clone();
        self.sim.block_on(async move {
            let made = client.create(&Cred::ROOT, FileId::ROOT, name, 0o644, 0, WRITE).await;
            let (entry, handle) = made.expect("create");
            client.write(&Cred::ROOT, entry.attr.id, handle, 0, name).await.expect("write");
            client.release(entry.attr.id, handle, None).await.expect("release");
        });
    }

    fn lookup(&self, machine: &CoreMachine, name: &'static [u8]) -> Result<u64, FsError> {
        let client = machine.client.clone();
        self.sim.block_on(async move { client.lookup(&Cred::ROOT, FileId::ROOT, name).await.map(|e| e.attr.size) })
    }

    fn sleep(&self, machine: &CoreMachine, time: Duration) {
        let clock = machine.host().clock;
        self.sim.block_on(async move { clock.sleep(time).await });
    }
}

#[test]
fn crash_five_seconds_after_a_change_it_is_durable_without_any_sync() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let machine = rig.start(true);
        rig.make(&machine, b"a");
        rig.sleep(&machine, Duration::from_secs(5));
        rig.make(&machine, b"too late");
        let machine = rig.restart();
        assert_eq!(rig.lookup(&machine, b"a"), Ok(1), "seed {seed}");
        assert_eq!(rig.lookup(&machine, b"too late"), Err(FsError::NotFound), "seed {seed}: nobody asked for this");
    }
}

#[test]
fn fsync_fails_while_too_few_stores_answer_and_a_later_one_covers_the_change() {
    let rig = Rig::new(100);
    let machine = rig.start(true);
    rig.make(&machine, b"a");
    rig.stores[..4].iter().for_each(|disk| disk.hang(true));
    let (client, clock) = (machine.client.clone(), machine.host().clock);
    let answered = rig.sim.block_on(async move {
        let handle = client.opendir(&Cred::ROOT, FileId::ROOT).await.expect("opendir");
        host::timeout(&*clock, Duration::from_secs(600), client.fsync_dir(FileId::ROOT, handle).into_future()).await
    });
    assert_eq!(answered.expect("fsync ends"), Err(FsError::Io));
    rig.stores.iter().for_each(|disk| disk.hang(false));
    let client = machine.client.clone();
    let again = rig.sim.block_on(async move { client.sync().await });
    assert_eq!(again, Ok(()), "what could not become durable was not forgotten");
    let machine = rig.restart();
    assert_eq!(rig.lookup(&machine, b"a"), Ok(1));
}

/// An access list of this many users, as an extended attribute.
fn access_list(users: u32) -> Vec<u8> {
    let entry = |tag, perm| AclEntry { tag, perm };
    let mut entries = vec![entry(Tag::UserObj, 6)];
    entries.extend((0..users).map(|user| entry(Tag::User(1000 + user), 4)));
    entries.extend([entry(Tag::GroupObj, 4), entry(Tag::Mask, 4), entry(Tag::Other, 0)]);
    Acl::new(entries).expect("a list").encode()
}

/// chmod writes the access list anew. It was once not counted, so enough of them made a segment
/// that no store takes, and every later fsync failed.
#[test]
fn regression_chmod_of_many_files_with_long_access_lists_can_be_synced() {
    for (users, files) in [(22, 20), (4000, 200)] {
        let rig = Rig::new(101);
        let machine = rig.start(true);
        let client = machine.client.clone();
        let (modes, ids) = rig.sim.block_on(async move {
            let mut ids = Vec::new();
            for number in 0..files {
                let name = format!("file{number}");
                let made = client.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o640, 0, WRITE).await;
                let (entry, handle) = made.expect("create");
                let (id, list) = (entry.attr.id, access_list(users));
                let set = client.setxattr(&Cred::ROOT, id, XATTR_ACCESS, &list, XattrMode::Any).await;
                set.expect("set the access list");
                client.release(id, handle, None).await.expect("release");
                ids.push(id);
            }
            client.sync().await.expect("sync");
            for id in &ids {
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                client.setattr(&Cred::ROOT, *id, None, set).await.expect("chmod");
            }
            client.sync().await.expect("sync after chmod");
            let mut modes = Vec::new();
            for id in &ids {
                modes.push(client.getattr(*id).await.expect("getattr").attr.mode);
            }
            (modes, ids)
        });
        assert_eq!(modes, vec![0o600; ids.len()]);
    }
}

/// A log that another writer has sealed cannot be written any more. From then on, the client
/// accepts nothing that could not become durable.
#[test]
fn regression_log_that_cannot_be_written_makes_the_mount_read_only_at_once() {
    let rig = Rig::new(102);
    let machine = rig.start(true);
    rig.make(&machine, b"a");
    let (client, stripe) = (machine.client.clone(), machine.stripe.clone());
    rig.sim.block_on(async move {
        client.sync().await.expect("sync");
        assert_eq!(client.status().read_only, None);
        stripe.open_log(CLIENT_LOG, 1).await.expect("another writer opens the log");
        let made = client.mkdir(&Cred::ROOT, FileId::ROOT, b"b", 0o755, 0).await;
        made.expect("nobody knows yet");
        assert_eq!(client.sync().await, Err(FsError::Io));
        assert_eq!(client.status().read_only, Some(StripeError::Fenced));
        let made = client.mkdir(&Cred::ROOT, FileId::ROOT, b"c", 0o755, 0).await;
        assert_eq!(made.map(|_| ()), Err(FsError::ReadOnly));
        let id = client.lookup(&Cred::ROOT, FileId::ROOT, b"a").await.expect("reading goes on").attr.id;
        assert_eq!(client.unlink(&Cred::ROOT, FileId::ROOT, b"a").await, Err(FsError::ReadOnly));
        assert_eq!(client.open(&Cred::ROOT, id, OpenFlags { truncate: true, ..WRITE }).await, Err(FsError::ReadOnly));
        let handle = client.open(&Cred::ROOT, id, WRITE).await.expect("open");
        assert_eq!(client.write(&Cred::ROOT, id, handle, 0, b"x").await, Err(FsError::ReadOnly));
        assert_eq!(&client.read(id, handle, 0, 9).await.expect("read")[..], b"a");
    });
}
