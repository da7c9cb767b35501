//! Stores in memory that can be made to fail, and a test rig around them.

use crate::stripe::Purpose;
use crate::{LogTail, LogWriter, Options, Stripe};
use bytes::Bytes;
use host::DiskSpace;
use host::sim::{Machine, Sim, SimRandom};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, pending};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Fence, Seal, Seals, Storage, StorageError, StoreStatus};
use striped_log::builder::{LogPlace, SegmentBuilder, SegmentDraft};
use striped_log::fragment::{CHUNK_LEN, Fragment, FragmentHeader};
use striped_log::geometry::Geometry;
use striped_log::segment::Segment;
use types::{BoxFuture, FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};

pub const FS: FsUuid = FsUuid([7; 16]);
pub const LOG: LogId = LogId::new(3);

/// How a store misbehaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// Does nothing and never answers.
    Silent,
    /// Its disk hangs. It still answers what it knows without it, and has the first segment of each
    /// log in memory.
    Hanging,
    /// Does what is asked and never answers.
    Mute,
    /// Answers that it is not available.
    Down,
    /// Its disk takes no writes.
    ReadOnly,
    Full,
}

#[derive(Clone, Default)]
pub struct Contents {
    pub fragments: BTreeMap<(SegmentId, u8, u16), Fragment>,
    pub damaged: BTreeSet<(SegmentId, u8, u16)>,
    pub seals: Seals,
    pub maps: Maps,
    pub put_count: u64,
    pub read_count: u64,
}

/// A store that keeps everything in memory, on a machine of its own.
pub struct MemStore {
    pub id: StoreId,
    machine: Machine,
    random: SimRandom,
    pub fault: Mutex<Fault>,
    pub contents: Arc<Mutex<Contents>>,
}

impl MemStore {
    fn new(sim: &Sim, id: u16) -> Arc<MemStore> {
        Arc::new(MemStore {
            id: StoreId::new(id),
            machine: sim.machine(&format!("store-{id}")),
            random: SimRandom::new(sim.seed() ^ u64::from(id) << 32),
            fault: Mutex::new(Fault::None),
            contents: Arc::default(),
        })
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }

    /// Loses everything, as with a new disk.
    pub fn wipe(&self) {
        *self.contents.lock() = Contents::default();
    }

    /// Damages the fragments of a segment. Returns how many there are.
    pub fn damage(&self, segment: SegmentId) -> usize {
        let contents = &mut *self.contents.lock();
        let keys: Vec<_> = contents.fragments.keys().filter(|key| key.0 == segment).copied().collect();
        contents.damaged.extend(&keys);
        keys.len()
    }

    pub fn holds(&self, segment: SegmentId) -> usize {
        self.contents.lock().fragments.keys().filter(|key| key.0 == segment).count()
    }

    fn serve<T: Send + 'static>(
        &self,
        writes: bool,
        work: impl FnOnce(&mut Contents) -> Result<T, StorageError> + Send + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        let (contents, fault) = (self.contents.clone(), *self.fault.lock());
        let clock = self.machine.host().clock;
        let delay = || Duration::from_micros(self.random.below(3_000));
        let (there, back) = (delay(), delay());
        let served = self.machine.run(async move {
            clock.sleep(there).await;
            match fault {
                Fault::Silent => pending().await,
                Fault::Hanging if writes => pending().await,
                Fault::Down => return Err(StorageError::Unavailable),
                Fault::ReadOnly if writes => return Err(StorageError::Disk("injected".into())),
                Fault::Full if writes => return Err(StorageError::Full),
                _ => {}
            }
            let result = work(&mut contents.lock());
            if fault == Fault::Mute {
                pending().await
            }
            clock.sleep(back).await;
            result
        });
        Box::pin(async move { served.await.unwrap_or(Err(StorageError::Unavailable)) })
    }
}

impl Storage for MemStore {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        let id = self.id;
        self.serve(true, move |contents| {
            fragment.check().map_err(|_| StorageError::BadRequest("fragment"))?;
            if fragment.header.member() != Some(id) {
                return Err(StorageError::BadRequest("not a member"));
            }
            let segment = fragment.header.id.segment;
            if contents.seals.refuse(&segment) {
                return Err(StorageError::Sealed(segment.log));
            }
            contents.put_count += 1;
            let key = (segment, fragment.header.id.index, fragment.header.attempt);
            let held = contents.fragments.entry(key).or_insert_with(|| fragment.clone());
            match held.header == fragment.header {
                true => Ok(()),
                false => Err(StorageError::BadRequest("this attempt is here with other contents")),
            }
        })
    }

    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        if *self.fault.lock() == Fault::Hanging && id.segment.seq > 1 {
            return Box::pin(pending());
        }
        self.serve(false, move |contents| {
            contents.read_count += 1;
            let key = (id.segment, id.index, attempt);
            let fragment = contents.fragments.get(&key).ok_or(StorageError::NotFound(id))?;
            if contents.damaged.contains(&key) {
                return Err(StorageError::Damaged(id));
            }
            if range.end > fragment.header.len {
                return Err(StorageError::BadRequest("range"));
            }
            Ok(fragment.payload.slice(range.start as usize..range.end as usize))
        })
    }

    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.serve(false, move |contents| {
            let of_segment = contents.fragments.iter().filter(|(key, _)| key.0 == segment);
            Ok(of_segment.map(|(_, f)| f.header.clone()).collect())
        })
    }

    fn list(&self, log: LogId, from_seq: u64, _: usize) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.serve(false, move |contents| {
            let mut headers: Vec<FragmentHeader> = contents.fragments.values().map(|f| f.header.clone()).collect();
            headers.retain(|h| h.id.segment.log == log && h.id.segment.seq >= from_seq);
            headers.sort_by_key(|h| h.id.segment.seq);
            // Whole seqs, three at a time.
            let seqs: BTreeSet<u64> = headers.iter().map(|h| h.id.segment.seq).take(3).collect();
            headers.retain(|h| seqs.contains(&h.id.segment.seq));
            Ok(headers)
        })
    }

    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.serve(false, |contents| {
            let mut segments: BTreeMap<SegmentId, u64> = BTreeMap::new();
            for ((segment, _, _), fragment) in &contents.fragments {
                *segments.entry(*segment).or_insert(0) += u64::from(fragment.header.len);
            }
            Ok(segments.into_iter().collect())
        })
    }

    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.serve(true, move |contents| {
            contents.fragments.retain(|key, _| !segments.contains(&key.0));
            Ok(())
        })
    }

    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.serve(true, move |contents| {
            contents.seals.take(seal.clone());
            if let Some(seal) = contents.seals.discarding(seal.log) {
                contents.fragments.retain(|key, _| !seal.discards(&key.0));
            }
            Ok(contents.seals.newest(seal.log).cloned().unwrap_or(seal))
        })
    }

    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.serve(false, |contents| Ok(contents.seals.iter().cloned().collect()))
    }

    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.serve(true, move |contents| {
            if maps.epoch > contents.maps.epoch {
                contents.maps = maps;
            }
            Ok(())
        })
    }

    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.serve(false, |contents| Ok(contents.maps.clone()))
    }

    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.serve(false, move |contents| {
            let all = || contents.fragments.keys().filter(|key| (key.0, key.1) == (id.segment, id.index));
            if all().any(|key| contents.damaged.contains(key)) {
                return Err(StorageError::Damaged(id));
            }
            if all().next().is_none() { Err(StorageError::NotFound(id)) } else { Ok(()) }
        })
    }

    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        let (id, fault) = (self.id, *self.fault.lock());
        self.serve(false, move |contents| {
            let capacity_bytes = 1 << 40;
            Ok(StoreStatus {
                id,
                capacity_bytes,
                allocated_bytes: capacity_bytes,
                used_bytes: if fault == Fault::Full { capacity_bytes } else { 0 },
                parity_bytes: 0,
                fragment_count: contents.fragments.len() as u64,
                writable: fault != Fault::ReadOnly,
                disk: DiskSpace { total_bytes: capacity_bytes, free_bytes: 0, device: id.raw().into() },
            })
        })
    }
}

/// Some stores and a client machine.
pub struct Rig {
    pub sim: Sim,
    pub stores: Vec<Arc<MemStore>>,
    pub options: Options,
    pub random: SimRandom,
}

impl Rig {
    pub fn new(seed: u64, store_count: u16, parity: u8) -> Rig {
        let sim = Sim::new(seed);
        let stores = (0..store_count).map(|id| MemStore::new(&sim, id)).collect();
        let options = Options {
            parity,
            put_timeout: Duration::from_millis(500),
            probe_interval: Duration::from_millis(100),
            ..Options::default()
        };
        Rig { sim, stores, options, random: SimRandom::new(!seed) }
    }

    /// The stores as one, seen from the client machine that runs now.
    pub fn stripe(&self) -> Arc<Stripe> {
        let stores = self.stores.iter().map(|s| (s.id, s.clone() as Arc<dyn Storage>));
        Stripe::new(self.client().host(), FS, stores.collect(), self.options)
    }

    pub fn client(&self) -> Machine {
        self.sim.machine("client")
    }

    /// Opens the log of the tests and writes to it.
    pub fn writer(&self) -> (Arc<Stripe>, LogTail, Arc<LogWriter>) {
        let stripe = self.stripe();
        let tail = self.run(stripe.open_log(LOG, 1)).expect("log opens");
        (stripe.clone(), tail.clone(), LogWriter::new(stripe, tail))
    }

    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.sim.block_on(future)
    }

    /// Puts one fragment of an attempt at its store.
    pub fn put_fragment(&self, stripe: &Stripe, segment: &Segment, geometry: &Geometry, attempt: u16, index: usize) {
        let fragment = segment.stripe(stripe.fs, attempt, geometry.clone()).swap_remove(index);
        let at = stripe.place(geometry.members[index]).expect("a store of this file system");
        self.run(stripe.ask_put(at, fragment, Purpose::Program)).expect("put");
    }

    /// Two geometries of a segment of 131,534 bytes on three stores: of two data fragments, and of
    /// one. Both begin with the same stores.
    pub fn two_geometries(&self, stripe: &Stripe) -> (Segment, Geometry, Geometry) {
        const LEN: u32 = 131_534;
        let segment = self.segment(1, LEN as usize);
        let of_two = stripe.choose_group(&segment).expect("all stores are up");
        assert_eq!((of_two.k, of_two.m), (2, 1));
        let members = of_two.members[..2].to_vec();
        let of_one = Geometry { k: 1, fragment_len: LEN, members, ..of_two.clone() };
        (segment, of_two, of_one)
    }

    pub fn heal(&self) {
        self.stores.iter().for_each(|s| s.set(Fault::None));
    }

    pub fn bytes(&self, len: usize) -> Bytes {
        (0..len.div_ceil(8)).flat_map(|_| self.random.below(u64::MAX).to_le_bytes()).take(len).collect()
    }

    /// A draft with about `len` bytes of payload: full blocks, a short one, deltas.
    pub fn draft(&self, place: LogPlace, len: usize) -> SegmentDraft {
        let mut builder = SegmentBuilder::new(place);
        let chunk = CHUNK_LEN as usize;
        for _ in 0..len / chunk {
            builder.push_full_block(self.bytes(chunk));
        }
        let rest = len % chunk;
        builder.push_block(self.bytes(rest / 2));
        builder.finish(self.bytes(rest - rest / 2).to_vec())
    }

    /// A segment of epoch 1. Seals the stores with that epoch, as if a writer had opened the log.
    pub fn segment(&self, seq: u64, len: usize) -> Segment {
        for store in &self.stores {
            store.contents.lock().seals.take(Seal::new(LOG, Fence { epoch: 1, through: 0 }, 1));
        }
        let name = |seq| SegmentId { log: LOG, epoch: 1, seq };
        let previous = (seq > 1).then(|| name(seq - 1));
        self.draft(LogPlace { id: name(seq), previous, order: 10 * seq }, len).assemble()
    }
}
