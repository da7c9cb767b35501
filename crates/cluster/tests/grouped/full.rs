//! Stores that fill up.

use cluster::StorePlace;
use cluster::config::STORE_CAPACITY_BYTES_MIN;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::sim::{Sim, SimDisk};
use host::{Disk, Host};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::{Cred, FileSystem, OpenFlags, SetAttr, SetTime, XattrMode};

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
const STORES: u64 = 3;
/// Size of the file that is overwritten.
const FILE_BYTES: u64 = 8 << 20;
const WRITE_BYTES: u64 = 256 << 10;
/// Bytes that one run of the machine may write without looking for space.
const RUN_BYTES: u64 = 40 << 20;

/// Stores that are just large enough.
struct Rig {
    sim: Sim,
    stores: Vec<SimDisk>,
    consensus: SimDisk,
}

impl Rig {
    fn new(seed: u64, store_bytes: u64) -> Rig {
        let sim = Sim::new(seed);
        let disk = || SimDisk::new(&sim, 4 * store_bytes);
        let rig = Rig { stores: (0..STORES).map(|_| disk()).collect(), consensus: disk(), sim: sim.clone() };
        let (host, places, consensus) = rig.mounts();
        let store_capacity_bytes = Some(store_bytes);
        let how = Create { parity: 1, block_size: 65536, manager_count: 2, store_capacity_bytes };
        sim.block_on(create(&host, &places, &consensus, how)).expect("create");
        rig
    }

    /// Of a machine that has just crashed.
    fn mounts(&self) -> (Host, Vec<StorePlace>, Arc<dyn Disk>) {
        self.sim.machine("one").crash();
        let machine = self.sim.machine("one");
        let places = self.stores.iter().map(|disk| disk.mount(&machine).into()).collect();
        (machine.host(), places, self.consensus.mount(&machine))
    }

    fn start(&self) -> CoreMachine {
        let (host, places, consensus) = self.mounts();
        self.sim.block_on(CoreMachine::start(host, &places, &consensus, RUN)).expect("start")
    }

    /// The result of some work on the machine, if it ends in time.
    fn within<T: Send + 'static>(
        &self,
        machine: &CoreMachine,
        time: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let result = Arc::new(Mutex::new(None));
        let put = result.clone();
        machine.host().tasks.spawn(Box::pin(async move {
            let value = work.await;
            *put.lock().expect("result") = Some(value);
        }));
        for _ in 0..time.as_secs() * 10 {
            if result.lock().expect("result").is_some() {
                break;
            }
            self.sim.run_for(Duration::from_millis(100));
        }
        result.lock().expect("result").take()
    }

    /// Overwrites a file until this many bytes are written, or no write ends for some time; returns
    /// the bytes written.
    fn overwrite(&self, machine: &CoreMachine, bytes: u64) -> u64 {
        let (client, written) = (machine.client.clone(), Arc::new(AtomicU64::new(0)));
        let count = written.clone();
        machine.host().tasks.spawn(Box::pin(async move {
            let result: Result<(), FsError> = async {
                let flags = OpenFlags { write: true, ..OpenFlags::default() };
                let name = b"file";
                let (id, handle) = match client.create(&Cred::ROOT, FileId::ROOT, name, 0o644, 0, flags).await {
                    Err(FsError::Exists) => {
                        let id = client.lookup(&Cred::ROOT, FileId::ROOT, name).await?.attr.id;
                        (id, client.open(&Cred::ROOT, id, flags).await?)
                    }
                    made => made.map(|(entry, handle)| (entry.attr.id, handle))?,
                };
                loop {
                    let at = count.load(SeqCst);
                    let data = vec![(at / FILE_BYTES) as u8; WRITE_BYTES as usize];
                    client.write(&Cred::ROOT, id, handle, at % FILE_BYTES, &data).await?;
                    count.store(at + WRITE_BYTES, SeqCst);
                }
            }
            .await;
            result.expect("overwrite");
        }));
        let (mut before, mut pauses) = (0, 0);
        while written.load(SeqCst) < bytes && pauses < 50 {
            self.sim.run_for(Duration::from_millis(1));
            let now = written.load(SeqCst);
            pauses = if now == std::mem::replace(&mut before, now) { pauses + 1 } else { 0 };
        }
        before
    }
}

/// A machine overwrote a file, and crashed before anything was deleted, again and again. Each time
/// it ignored the dead segments that were there, until the stores refused more. Then nothing could
/// be deleted any more, since that takes checkpoints. Where the tail of a log could not be put
/// again, the machine did not start.
#[test]
fn regression_machine_starts_and_writes_on_though_dead_segments_fill_its_stores() {
    for seed in 0..2 {
        let rig = Rig::new(seed, STORE_CAPACITY_BYTES_MIN);
        let mut written = Vec::new();
        for run in 0..6 {
            let machine = rig.start();
            written.push(rig.overwrite(&machine, RUN_BYTES));
            rig.sim.run_for(Duration::from_micros(400 * seed));
            assert!(run > 0 || machine.maintenance.done().deleted_count == 0, "the first crash was too late");
        }
        let machine = rig.start();
        let report = rig.sim.block_on(cluster::check::check(&machine, |_| {})).expect("check");
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(written.iter().all(|bytes| *bytes >= RUN_BYTES), "one got stuck: {written:?}");
    }
}

/// Other programs fill disks too. The file system does without one full disk. When more are full,
/// it admits nothing more, and keeps everything that it accepted.
#[test]
fn disks_that_others_fill_are_done_without_as_far_as_parity_goes() {
    let rig = Rig::new(7, 8 * STORE_CAPACITY_BYTES_MIN);
    let machine = rig.start();
    let client = machine.client.clone();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let made = client.create(&Cred::ROOT, FileId::ROOT, b"file", 0o644, 0, flags);
    let (entry, handle) = rig.sim.block_on(async { made.await }).expect("create");
    // Eight MiB more each time.
    let mut end = 0;
    let mut write = || {
        rig.sim.block_on(async {
            for _ in 0..32 {
                let data = vec![end as u8; WRITE_BYTES as usize];
                client.write(&Cred::ROOT, entry.attr.id, handle, end, &data).await?;
                end += WRITE_BYTES;
            }
            client.fsync(entry.attr.id, handle, false).await
        })
    };
    let free = || rig.sim.block_on(async { client.statfs().await }).expect("statfs").free_bytes;
    let wait = || rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(write(), Ok(()));
    wait();
    let before = free();
    rig.stores[0].set_capacity(0);
    for _ in 0..2 {
        assert_eq!(write(), Ok(()), "two of three stores have room");
        wait();
    }
    assert!(free() > before / 2, "{} of {before}", free());

    rig.stores[1].set_capacity(0);
    wait();
    let left = free();
    assert!(left < before / 4, "{left} of {before}");
    let written = (0..100).take_while(|_| write() == Ok(())).count();
    assert!((written as u64) << 23 <= left, "{written} rounds, though {left} was left");
    wait();
    assert_eq!(write(), Err(FsError::NoSpace));
    assert!(free() < 2 * WRITE_BYTES, "{} free", free());

    rig.stores.iter().for_each(|disk| disk.set_capacity(32 * STORE_CAPACITY_BYTES_MIN));
    wait();
    assert_eq!(write(), Ok(()), "there is room again");
    let report = rig.sim.block_on(cluster::check::check(&machine, |_| {})).expect("check");
    assert_eq!(report.problems, Vec::<String>::new());
}

/// Every file was changed when nothing more fitted. The index nodes of the next checkpoint did not
/// fit beside the live data, and without a checkpoint nothing is deleted. Removals were accepted
/// that gave nothing back.
#[test]
fn regression_removing_works_and_gives_space_back_though_all_files_changed_on_full_stores() {
    const FILES: u64 = 2000;
    let rig = Rig::new(9, STORE_CAPACITY_BYTES_MIN);
    let machine = rig.start();
    let client = machine.client.clone();
    // Most of what lives is in index nodes.
    let filled = rig.within(&machine, Duration::from_secs(3600), async move {
        let mut ids = Vec::new();
        for number in 0..FILES {
            let name = format!("{number}");
            let flags = OpenFlags { write: true, ..OpenFlags::default() };
            let made = client.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, flags).await;
            let Ok((entry, handle)) = made else { break };
            client.release(entry.attr.id, handle, None).await.expect("release");
            let value = vec![number as u8; 60_000];
            let set = client.setxattr(&Cred::ROOT, entry.attr.id, b"user.long", &value, XattrMode::Any).await;
            ids.push(entry.attr.id);
            if set.is_err() {
                break;
            }
        }
        ids
    });
    let ids = filled.expect("filling ends");
    assert!(ids.len() > 500, "{} files", ids.len());
    let (client, all) = (machine.client.clone(), ids.clone());
    let changed = rig.within(&machine, Duration::from_secs(3600), async move {
        let mut changed = 0;
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        for set in [mode, owner, times] {
            for id in &all {
                changed += u64::from(client.setattr(&Cred::ROOT, *id, None, set).await.is_ok());
            }
        }
        client.sync().await.map(|()| changed)
    });
    assert!(matches!(changed, Some(Ok(_))), "{changed:?}");
    // By then there was a checkpoint, or there will never be one.
    rig.sim.run_for(Duration::from_secs(60));
    let client = machine.client.clone();
    let removed = rig.within(&machine, Duration::from_secs(3600), async move {
        for number in 0..ids.len() {
            client.unlink(&Cred::ROOT, FileId::ROOT, number.to_string().as_bytes()).await?;
        }
        client.sync().await
    });
    assert_eq!(removed, Some(Ok(())));
    rig.sim.run_for(Duration::from_secs(60));
    let (client, free) = (machine.client.clone(), machine.client.status());
    assert!(free.used_bytes < free.limit_bytes / 10, "{} of {} used", free.used_bytes, free.limit_bytes);
    let written = rig.within(&machine, Duration::from_secs(3600), async move {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let (entry, handle) = client.create(&Cred::ROOT, FileId::ROOT, b"again", 0o644, 0, flags).await?;
        for at in (0..32 << 20).step_by(WRITE_BYTES as usize) {
            client.write(&Cred::ROOT, entry.attr.id, handle, at, &[7; WRITE_BYTES as usize]).await?;
        }
        client.sync().await
    });
    assert_eq!(written, Some(Ok(())));
    let report = rig.sim.block_on(cluster::check::check(&machine, |_| {})).expect("check");
    assert_eq!(report.problems, Vec::<String>::new());
}
