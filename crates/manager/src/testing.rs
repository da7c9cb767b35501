//! Helpers of tests: stores in memory in a simulated world, and writers of logs for managers to
//! apply.

use crate::api::{INDEX_RANGE_LEN, ManagerError, SegmentDeltas};
use crate::server::{Lengths, ManagerConfig, ManagerServer};
use crate::{Delta, DirectoryShape, InodeRecord};
use crate::{ManagerMap, WriterLog, roll_forward_all};
use bytes::Bytes;
use host::DiskSpace;
use host::sim::{Machine, Sim};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Seal, Seals, Storage, StorageError, StoreStatus};
use stripe::{LogTail, LogWriter, Options, Stripe};
use striped_log::builder::SegmentBuilder;
use striped_log::fragment::{Fragment, FragmentHeader};
use types::{BlockAddr, BoxFuture, FileId, FragmentId, FsUuid, Kind, LogId, ManagerId, Maps, SegmentId, StoreId, Time};

/// Bytes per block in all tests.
pub const BLOCK: u32 = 512;
pub const CLIENT_LOG: LogId = LogId::new(100);
pub const CLEANER_LOG: LogId = LogId::new(200);
pub const MANAGER_LOG: LogId = LogId::new(300);

#[derive(Default)]
struct Contents {
    fragments: BTreeMap<(SegmentId, u8), Fragment>,
    seals: Seals,
    /// Segments whose bytes have rotted.
    rotten: BTreeSet<SegmentId>,
    reads: u64,
    /// How many fragments and segments were listed.
    listed: u64,
}

/// A store that keeps everything in memory and survives crashes of the machine that asks it.
#[derive(Clone)]
pub struct MemStore {
    id: StoreId,
    contents: Arc<Mutex<Contents>>,
    refuses_puts: Arc<Mutex<bool>>,
    /// Refuses the segment of the manager's log with this seq.
    refuses_seq: Arc<Mutex<Option<u64>>>,
    clock: Arc<dyn host::Clock>,
    random: Arc<dyn host::Random>,
}

impl MemStore {
    fn serve<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Contents) -> Result<T, StorageError> + Send + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        let (contents, clock) = (self.contents.clone(), self.clock.clone());
        let delay = Duration::from_micros(self.random.next_u64() % 500);
        Box::pin(async move {
            clock.sleep(delay).await;
            let result = work(&mut contents.lock());
            clock.sleep(delay).await;
            result
        })
    }
}

impl Storage for MemStore {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        let (refuses, refuses_seq) = (self.refuses_puts.clone(), self.refuses_seq.clone());
        self.serve(move |contents| {
            let segment = fragment.header.id.segment;
            if *refuses.lock() || (segment.log == MANAGER_LOG && *refuses_seq.lock() == Some(segment.seq)) {
                return Err(StorageError::Full);
            }
            if contents.seals.newest(segment.log).is_some_and(|seal| segment.epoch < seal.epoch) {
                return Err(StorageError::Sealed(segment.log));
            }
            let key = (segment, fragment.header.id.index);
            if contents.fragments.get(&key).is_none_or(|f| f.header.attempt < fragment.header.attempt) {
                contents.fragments.insert(key, fragment);
            }
            Ok(())
        })
    }

    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.serve(move |contents| {
            contents.reads += 1;
            if contents.rotten.contains(&id.segment) {
                return Err(StorageError::Damaged(id));
            }
            let fragment = contents.fragments.get(&(id.segment, id.index)).filter(|f| f.header.attempt == attempt);
            let payload = &fragment.ok_or(StorageError::NotFound(id))?.payload;
            if range.end as usize > payload.len() {
                return Err(StorageError::BadRequest("range"));
            }
            Ok(payload.slice(range.start as usize..range.end as usize))
        })
    }

    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.serve(move |contents| {
            let of_segment = contents.fragments.range((segment, 0)..=(segment, u8::MAX));
            Ok(of_segment.map(|(_, f)| f.header.clone()).collect())
        })
    }

    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.serve(move |contents| {
            let of_log = contents.fragments.values().map(|f| &f.header).filter(|h| h.id.segment.log == log);
            let mut headers: Vec<FragmentHeader> = of_log.filter(|h| h.id.segment.seq >= from_seq).cloned().collect();
            headers.sort_by_key(|h| h.id.segment.seq);
            // Whole seqs only.
            if let [first, ..] = &headers[..]
                && let Some(beyond) = headers.get(count_max)
            {
                let (first, beyond) = (first.id.segment.seq, beyond.id.segment.seq);
                headers.retain(|h| h.id.segment.seq < beyond.max(first + 1));
            }
            contents.listed += headers.len() as u64;
            Ok(headers)
        })
    }

    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.serve(|contents| {
            let mut segments: BTreeMap<SegmentId, u64> = BTreeMap::new();
            for ((segment, _), fragment) in &contents.fragments {
                *segments.entry(*segment).or_insert(0) += u64::from(fragment.header.len);
            }
            contents.listed += segments.len() as u64;
            Ok(segments.into_iter().collect())
        })
    }

    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.serve(move |contents| {
            contents.fragments.retain(|(segment, _), _| !segments.contains(segment));
            Ok(())
        })
    }

    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.serve(move |contents| {
            contents.seals.take(seal.clone());
            if let Some(seal) = contents.seals.discarding(seal.log) {
                contents.fragments.retain(|(segment, _), _| !seal.discards(segment));
            }
            Ok(contents.seals.newest(seal.log).cloned().unwrap_or(seal))
        })
    }

    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.serve(|contents| Ok(contents.seals.iter().cloned().collect()))
    }

    fn put_maps(&self, _: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.serve(|_| Ok(()))
    }

    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.serve(|_| Ok(Maps::default()))
    }

    fn verify(&self, _: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.serve(|_| Ok(()))
    }

    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        let id = self.id;
        self.serve(move |contents| {
            let fragment_count = contents.fragments.len() as u64;
            Ok(StoreStatus {
                id,
                capacity_bytes: 1 << 40,
                allocated_bytes: 1 << 40,
                used_bytes: 0,
                parity_bytes: 0,
                fragment_count,
                writable: true,
                disk: DiskSpace { total_bytes: 1 << 40, free_bytes: 0, device: id.raw().into() },
            })
        })
    }
}

/// Three stores for one machine with a manager, a client's log and a cleaner's log.
pub struct Setup {
    pub sim: Sim,
    pub stores: Vec<MemStore>,
    pub cached_inodes_max: usize,
    pub lengths: Lengths,
}

/// The machine while it runs.
pub struct Running {
    pub machine: Machine,
    pub stripe: Arc<Stripe>,
    pub server: Arc<ManagerServer>,
    pub client: TestWriter,
    pub cleaner: TestWriter,
}

impl Setup {
    pub fn new(seed: u64) -> Setup {
        let sim = Sim::new(seed);
        let host = sim.machine("stores").host();
        let store = |id| MemStore {
            id: StoreId::new(id),
            contents: Arc::default(),
            refuses_puts: Arc::default(),
            refuses_seq: Arc::default(),
            clock: host.clock.clone(),
            random: host.random.clone(),
        };
        let stores = (1..=3).map(store).collect();
        Setup { sim, stores, cached_inodes_max: 8, lengths: Lengths::LARGEST }
    }

    pub fn refuse_puts(&self, refuse: bool) {
        self.stores.iter().for_each(|s| *s.refuses_puts.lock() = refuse);
    }

    pub fn refuse_own_segment(&self, seq: Option<u64>) {
        self.stores.iter().for_each(|s| *s.refuses_seq.lock() = seq);
    }

    /// Makes the bytes of these segments rotten on all stores, and those of all others good.
    pub fn rot(&self, segments: impl IntoIterator<Item = SegmentId>) {
        let rotten: BTreeSet<SegmentId> = segments.into_iter().collect();
        self.stores.iter().for_each(|s| s.contents.lock().rotten = rotten.clone());
    }

    /// Number of fragments on all stores.
    pub fn fragment_count(&self) -> usize {
        self.stores.iter().map(|s| s.contents.lock().fragments.len()).sum()
    }

    pub fn reads(&self) -> u64 {
        self.stores.iter().map(|s| s.contents.lock().reads).sum()
    }

    /// How many fragments and segments all stores have listed.
    pub fn listed(&self) -> u64 {
        self.stores.iter().map(|s| s.contents.lock().listed).sum()
    }

    pub fn config(&self) -> ManagerConfig {
        let id = ManagerId::new(0);
        ManagerConfig {
            id,
            log: MANAGER_LOG,
            block_size: BLOCK,
            map: ManagerMap::single(id),
            cached_inodes_max: self.cached_inodes_max,
            index_range_len: INDEX_RANGE_LEN,
            lengths: self.lengths,
            after_epoch: None,
        }
    }

    pub fn stripe(&self, machine: &Machine) -> Arc<Stripe> {
        let stores = self.stores.iter().map(|s| (s.id, Arc::new(s.clone()) as Arc<dyn Storage>)).collect();
        let options = Options { put_timeout: Duration::from_millis(200), ..Options::default() };
        Stripe::new(machine.host(), FsUuid([7; 16]), stores, options)
    }

    /// Opens the manager alone, without the client's and the cleaner's log.
    pub async fn start_manager(&self) -> Result<(Machine, Arc<Stripe>, Arc<ManagerServer>), ManagerError> {
        let machine = self.sim.machine("node");
        let stripe = self.stripe(&machine);
        let server = ManagerServer::open(machine.host(), stripe.clone(), self.config(), 0).await?;
        Ok((machine, stripe, server))
    }

    /// Mounts: opens the manager, then rolls the client's log and the cleaner's log forward.
    pub async fn start(&self) -> Result<Running, ManagerError> {
        let (machine, stripe, server) = self.start_manager().await?;
        let managers = [server.clone()];
        let mut rolled =
            roll_forward_all(&stripe, &managers, &[WriterLog::Ended(CLIENT_LOG)], &[WriterLog::Ended(CLEANER_LOG)])
                .await?;
        let mut writer = |log| rolled.take(log).map(|tail| TestWriter::new(&stripe, tail));
        let (client, cleaner) = (writer(CLIENT_LOG)?, writer(CLEANER_LOG)?);
        Ok(Running { machine, stripe, server, client, cleaner })
    }
}

/// Writes a log as clients and cleaners do.
pub struct TestWriter {
    pub writer: Arc<LogWriter>,
    pub next_seq: u64,
}

impl TestWriter {
    pub fn new(stripe: &Arc<Stripe>, tail: LogTail) -> TestWriter {
        let next_seq = tail.next_seq;
        TestWriter { writer: LogWriter::new(stripe.clone(), tail), next_seq }
    }

    /// Submits a segment with `len` bytes of blocks. `deltas` gets their address. The segment is in
    /// flight when this returns.
    pub fn submit(&mut self, len: u32, deltas: impl FnOnce(BlockAddr) -> Vec<Delta>) -> SegmentDeltas {
        let place = self.writer.begin();
        let segment = place.id;
        self.next_seq = segment.seq + 1;
        let mut builder = SegmentBuilder::new(place);
        let addr = match len {
            0 => BlockAddr { segment, offset: 0, len },
            _ => builder.push_block(Bytes::from(vec![0xa5; len as usize])),
        };
        let deltas = deltas(addr);
        let mut bytes = Vec::new();
        deltas.iter().for_each(|delta| delta.encode(&mut bytes));
        self.writer.submit(builder.finish(bytes));
        SegmentDeltas { segment, order: place.order, deltas: Arc::new(deltas) }
    }

    /// Like [`submit`](Self::submit), but waits until the segment is durable.
    pub async fn commit(&mut self, len: u32, deltas: impl FnOnce(BlockAddr) -> Vec<Delta>) -> SegmentDeltas {
        let segment = self.submit(len, deltas);
        self.writer.wait_committed(segment.segment.seq).await.expect("stores are well");
        segment
    }
}

/// An inode of a file. Inodes with another `version` differ.
pub fn inode(id: FileId, nlink: u32, version: u64) -> InodeRecord {
    let time = Time { sec: version as i64, nsec: 5 };
    InodeRecord {
        id,
        kind: Kind::File,
        mode: 0o644,
        nlink,
        uid: 1,
        gid: 2,
        rdev: 0,
        size: version * 1000,
        stored_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        parent: FileId::new(0),
        shape: DirectoryShape::default(),
    }
}
