//! Rounds of maintenance ask stores for what changed, never for everything.

use bytes::Bytes;
use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::sim::{Sim, SimDisk};
use host::{Disk, Host};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use storage::api::{Presence, RemoteStorage, Seal, Storage, StorageError, StoreIdentity, StoreStatus};
use storage::server::StoreServer;
use striped_log::fragment::{Fragment, FragmentHeader};
use types::{BoxFuture, FileId, FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const STORES: u16 = 3;
const STORE_BYTES: u64 = 256 << 20;
const FILES: u64 = 60;
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

/// A store that counts what it has listed.
struct Counting {
    host: Host,
    disk: Arc<dyn Disk>,
    server: Arc<OnceLock<Arc<StoreServer>>>,
    listed: Arc<AtomicU64>,
}

impl Counting {
    fn server(&self) -> &StoreServer {
        self.server.get().expect("a store")
    }

    fn count<T: Send + 'static>(
        &self,
        listing: BoxFuture<Result<Vec<T>, StorageError>>,
    ) -> BoxFuture<Result<Vec<T>, StorageError>> {
        let listed = self.listed.clone();
        Box::pin(async move {
            let all = listing.await?;
            listed.fetch_add(all.len() as u64, SeqCst);
            Ok(all)
        })
    }
}

impl Storage for Counting {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.server().put(fragment)
    }
    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.server().read(id, attempt, range)
    }
    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.server().put_behind(fragment)
    }
    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.server().read_behind(id, attempt, range)
    }
    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        self.server().rest()
    }
    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.server().describe(segment)
    }
    fn list(&self, log: LogId, from_seq: u64, max: usize) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.count(self.server().list(log, from_seq, max))
    }
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.count(self.server().segments())
    }
    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.server().delete(segments)
    }
    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.server().seal(seal)
    }
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.server().seals()
    }
    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.server().put_maps(maps)
    }
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.server().maps()
    }
    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.server().verify(id)
    }
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        self.server().status()
    }
}

impl RemoteStorage for Counting {
    fn presence(&self) -> BoxFuture<io::Result<Presence>> {
        let (disk, identity) = (self.disk.clone(), self.server.get().map(|server| server.identity()));
        Box::pin(async move {
            Ok(match identity {
                Some(identity) => Presence::Store(identity),
                None => Presence::Empty(disk.space().await?),
            })
        })
    }
    fn initialise(&self, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        let (host, disk, server) = (self.host.clone(), self.disk.clone(), self.server.clone());
        Box::pin(async move {
            let made = StoreServer::create(host, disk, identity).await.map_err(io::Error::other)?;
            server.set(made).map_err(|_| io::ErrorKind::AlreadyExists.into())
        })
    }
    fn expect(&self, _: FsUuid, _: StoreId) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// A machine over stores that count, and what they have listed.
async fn start(sim: &Sim) -> (CoreMachine, Arc<AtomicU64>) {
    let on = sim.machine("one");
    let (host, listed) = (on.host(), Arc::new(AtomicU64::new(0)));
    let place = |_| {
        let disk: Arc<dyn Disk> = SimDisk::new(sim, 2 * STORE_BYTES).mount(&on);
        let (host, listed) = (host.clone(), listed.clone());
        StorePlace::Remote(Arc::new(Counting { host, disk, server: Arc::default(), listed }))
    };
    let places: Vec<StorePlace> = (0..STORES).map(place).collect();
    let consensus: Arc<dyn Disk> = SimDisk::new(sim, STORE_BYTES).mount(&on);
    let store_capacity_bytes = Some(STORE_BYTES);
    let how = Create { parity: 1, block_size: 64 * 1024, manager_count: 2, store_capacity_bytes };
    create(&host, &places, &consensus, how).await.expect("create");
    (CoreMachine::start(host, &places, &consensus, RUN).await.expect("start"), listed)
}

/// Makes a file of its own segment.
async fn save(machine: &CoreMachine, number: u64) {
    let (client, name) = (&machine.client, number.to_string().into_bytes());
    let write = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (entry, handle) = client.create(&Cred::ROOT, FileId::ROOT, &name, 0o644, 0, write).await.expect("create");
    client.write(&Cred::ROOT, entry.attr.id, handle, 0, &name).await.expect("write");
    client.fsync(entry.attr.id, handle, false).await.expect("fsync");
    client.release(entry.attr.id, handle, None).await.expect("release");
}

#[test]
fn regression_rounds_list_nothing_however_much_there_is() {
    let sim = Sim::new(5);
    let begun = sim.clone();
    sim.block_on(async move {
        let (machine, listed) = start(&begun).await;
        let clock = machine.host().clock;
        for number in 0..FILES {
            save(&machine, number).await;
        }
        clock.sleep(Duration::from_secs(5)).await;
        assert!(machine.stripe.segments().await.expect("segments").len() as u64 >= FILES);
        listed.store(0, SeqCst);
        for number in 0..3 {
            save(&machine, FILES + number).await;
            machine.maintenance.tidy(false).await.expect("round");
        }
        assert_eq!(listed.load(SeqCst), 0, "segments listed by rounds");
        // It is idle, and merges; then nothing happens for hours.
        clock.sleep(Duration::from_secs(3 * 3600)).await;
        let done = machine.maintenance.done();
        assert!(done.cleaned_count >= FILES, "{done:?}");
        assert_eq!(listed.load(SeqCst), 0, "segments listed while idle");

        let there = machine.stripe.segments().await.expect("segments");
        let stored: u64 = there.values().sum();
        assert_eq!(done.segment_count, there.len() as u64);
        assert!(done.segment_bytes <= stored && done.live_bytes <= done.segment_bytes, "{done:?}, {stored} stored");
        let mut live = 0;
        for manager in &machine.servers() {
            let usage = manager.usage().await.expect("usage");
            live += usage.iter().map(|usage| usage.live_bytes).sum::<u64>();
        }
        assert_eq!(done.live_bytes, live);
        machine.stop().await.expect("stop");
    });
}
