//! Copies a store to another place while it is used.
//!
//! The copy goes in passes. Each pass lists the store and copies what is new since the pass before,
//! so passes become short while the store is used. The [last](StoreCopy::finish) one needs a store
//! that does not change: it also deletes what was deleted meanwhile, and takes over the seals and
//! the maps. What is equal then is shown by the counts of both.

use crate::config::DrainRate;
use crate::restore::shuffle;
use host::{Host, join_all, join_at_most, timeout};
use policy::stride::Stride;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Seal, Storage, StorageError};
use striped_log::fragment::{Fragment, FragmentHeader};
use thiserror::Error;
use types::SegmentId;

/// Segments that are copied at the same time, at most.
const AT_ONCE_MAX: usize = 8;
/// How long copying some segments may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// While programs use the stores, a copy rests so many times as long as its last step took. It
/// costs processors and the network more than stores see.
const REST_PER_STEP: u32 = 3;
/// After this time it looks again, however long its last step took.
const REST_MAX: Duration = Duration::from_secs(2);
/// Segments deleted by one request.
const DELETED_AT_ONCE: usize = 1024;
/// How often a slow copy looks at its rate.
const PACE_TICK: Duration = Duration::from_secs(1);

/// Why a store was not copied. It is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CopyError {
    /// The store failed.
    #[error("the store that moves: {0}")]
    From(StorageError),
    /// The new place failed.
    #[error("its new place: {0}")]
    To(StorageError),
    /// The new place has not taken a seal of a log.
    #[error("its new place has not taken a seal of a log: {0:?}")]
    SealRefused(Seal),
    /// The copy is not complete, though nothing failed.
    #[error("its new place has {copied} fragments, and should have {wanted}")]
    Incomplete {
        /// Fragments at the new place.
        copied: u64,
        /// Fragments that should be there.
        wanted: u64,
    },
    /// One of them has not answered in time.
    #[error("it, or its new place, does not answer")]
    Late,
}

/// How far a copy is.
#[derive(Clone, Copy, Default)]
pub(crate) struct CopyProgress {
    /// Bytes of segments that it has copied since it began. They never decrease.
    pub copied_bytes: u64,
    /// Bytes that the pass has yet to copy.
    pub left_bytes: u64,
    /// Bytes of the whole store.
    pub all_bytes: u64,
}

/// A copy that is under way.
pub(crate) struct StoreCopy {
    host: Host,
    from: Arc<dyn Storage>,
    to: Arc<dyn Storage>,
    /// For each segment that was copied, the bytes that it took then; 0 if that was cut short.
    copied: BTreeMap<SegmentId, u64>,
    copied_bytes: u64,
    stride: Stride,
    /// For each segment, how many of its fragments cannot be read. They stay behind; the other
    /// stores have the rest of the stripe.
    damaged: BTreeMap<SegmentId, u64>,
}

impl StoreCopy {
    /// Copies from a store to an empty one.
    pub(crate) fn new(host: Host, from: Arc<dyn Storage>, to: Arc<dyn Storage>) -> StoreCopy {
        let (copied, damaged) = Default::default();
        StoreCopy { host, from, to, copied, copied_bytes: 0, stride: Stride::new(AT_ONCE_MAX), damaged }
    }

    /// Fragments that could not be read.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged.values().sum()
    }

    /// One pass, no faster than `rate` says at each moment. Without a rate, the first one lets
    /// programs go first. Tells `progress` how far it is before each step. Returns
    /// how many segments it had to copy.
    pub(crate) async fn pass(
        &mut self,
        progress: &(dyn Fn(CopyProgress) + Sync),
        rate: &(dyn Fn() -> DrainRate + Sync),
    ) -> Result<usize, CopyError> {
        // The later ones must be faster than programs write.
        let can_wait = self.copied.is_empty();
        self.copy(progress, rate, can_wait).await
    }

    async fn copy(
        &mut self,
        progress: &(dyn Fn(CopyProgress) + Sync),
        rate: &(dyn Fn() -> DrainRate + Sync),
        can_wait: bool,
    ) -> Result<usize, CopyError> {
        let listed = timeout(&*self.host.clock, ANSWER_TIME_MAX, self.from.segments()).await;
        let listed = listed.map_err(|_| CopyError::Late)?.map_err(CopyError::From)?;
        let is_new = |(segment, bytes): &&(SegmentId, u64)| self.copied.get(segment) != Some(bytes);
        let mut new: Vec<(SegmentId, u64)> = listed.iter().filter(is_new).copied().collect();
        shuffle(&mut new, &*self.host.random);
        let all_bytes = listed.iter().map(|(_, bytes)| bytes).sum();
        let mut left_bytes = new.iter().map(|(_, bytes)| bytes).sum();
        let mut left = &new[..];
        let mut last_step = Duration::ZERO;
        while !left.is_empty() {
            let now = |copied_bytes, left_bytes| progress(CopyProgress { copied_bytes, left_bytes, all_bytes });
            now(self.copied_bytes, left_bytes);
            if can_wait && rate() == DrainRate::default() {
                let rest = self.rest().await;
                if !rest.is_zero() {
                    self.host.clock.sleep(rest.max(REST_PER_STEP * last_step).min(REST_MAX)).await;
                    self.stride.rested();
                }
            }
            let (count, turn) = match can_wait {
                true if rate() == DrainRate::default() => (self.stride.count(), self.stride.turn(self.stride.count())),
                true => (self.stride.count(), self.stride.count()),
                false => (AT_ONCE_MAX, AT_ONCE_MAX),
            };
            let (some, others) = left.split_at(turn.min(left.len()));
            left = others;
            // If this is cut short, some of it is there.
            for (segment, _) in some {
                self.copied.entry(*segment).or_insert(0);
            }
            let begun = self.host.clock.now();
            let copies = some.iter().map(|(segment, _)| self.segment(*segment)).collect();
            let copies = timeout(&*self.host.clock, ANSWER_TIME_MAX, join_at_most(count, copies)).await;
            for ((segment, bytes), damaged) in some.iter().zip(copies.map_err(|_| CopyError::Late)?) {
                self.copied.insert(*segment, *bytes);
                match damaged? {
                    0 => self.damaged.remove(segment),
                    count => self.damaged.insert(*segment, count),
                };
            }
            last_step = self.host.clock.now() - begun;
            self.stride.took(some.len(), count, last_step);
            let bytes: u64 = some.iter().map(|(_, bytes)| bytes).sum();
            self.copied_bytes += bytes;
            left_bytes -= bytes;
            self.pace(bytes, begun, rate, &|| now(self.copied_bytes, left_bytes)).await;
        }
        progress(CopyProgress { copied_bytes: self.copied_bytes, left_bytes, all_bytes });
        Ok(new.len())
    }

    /// How long programs want both places for themselves.
    async fn rest(&self) -> Duration {
        let asked = [&self.from, &self.to].into_iter().map(|store| store.rest()).collect();
        let answers = timeout(&*self.host.clock, ANSWER_TIME_MAX, join_all(asked)).await.unwrap_or_default();
        answers.into_iter().filter_map(Result::ok).max().unwrap_or_default()
    }

    /// Waits until so many bytes may have been copied since `begun`. Calls `tell` meanwhile.
    async fn pace(&self, bytes: u64, begun: Duration, rate: &(dyn Fn() -> DrainRate + Sync), tell: &(dyn Fn() + Sync)) {
        loop {
            let DrainRate(rate) = rate();
            if rate == 0 {
                return;
            }
            let due = begun + Duration::from_secs_f64(bytes as f64 / rate as f64);
            let left = due.saturating_sub(self.host.clock.now());
            if left.is_zero() {
                return;
            }
            // The rate may change meanwhile.
            self.host.clock.sleep(left.min(PACE_TICK)).await;
            tell();
        }
    }

    /// Copies what is missing of a segment. Returns how many of its fragments cannot be read.
    async fn segment(&self, segment: SegmentId) -> Result<u64, CopyError> {
        let headers = self.from.describe(segment).await.map_err(CopyError::From)?;
        let known = match self.copied.get(&segment).is_some_and(|bytes| *bytes > 0) {
            true => self.to.describe(segment).await.map_err(CopyError::To)?,
            false => Vec::new(),
        };
        let mut damaged = 0;
        for header in headers.into_iter().filter(|header| !known.contains(header)) {
            damaged += u64::from(!self.fragment(header).await?);
        }
        Ok(damaged)
    }

    /// Copies a fragment; false if it cannot be read.
    async fn fragment(&self, header: FragmentHeader) -> Result<bool, CopyError> {
        match self.from.read_behind(header.id, header.attempt, 0..header.len).await {
            Ok(payload) => {
                self.to.put_behind(Fragment { header, payload }).await.map_err(CopyError::To)?;
                Ok(true)
            }
            // It was deleted since it was listed. The last pass sees that.
            Err(StorageError::NotFound(_)) => Ok(true),
            Err(StorageError::Damaged(id)) => {
                tracing::warn!(fragment = %id, "a damaged fragment is not moved; maintenance restores it");
                Ok(false)
            }
            Err(error) => Err(CopyError::From(error)),
        }
    }

    /// The last pass, while nothing changes the store. Both are equal afterwards, but for damaged
    /// fragments.
    pub(crate) async fn finish(&mut self) -> Result<(), CopyError> {
        self.copy(&|_| (), &DrainRate::default, false).await?;
        let listed: BTreeMap<SegmentId, u64> =
            self.from.segments().await.map_err(CopyError::From)?.into_iter().collect();
        let gone: Vec<SegmentId> =
            self.copied.keys().filter(|segment| !listed.contains_key(segment)).copied().collect();
        for some in gone.chunks(DELETED_AT_ONCE) {
            self.to.delete(some.to_vec()).await.map_err(CopyError::To)?;
        }
        self.damaged.retain(|segment, _| listed.contains_key(segment));
        let seals = self.from.seals().await.map_err(CopyError::From)?;
        // Of each log first the one under way: then nothing is deleted for the told one.
        for seal in seals.iter().rev() {
            self.to.seal(seal.clone()).await.map_err(CopyError::To)?;
        }
        let kept = self.to.seals().await.map_err(CopyError::To)?;
        if let Some(refused) = seals.into_iter().find(|seal| !kept.contains(seal)) {
            return Err(CopyError::SealRefused(refused));
        }
        let maps = self.from.maps().await.map_err(CopyError::From)?;
        self.to.put_maps(maps).await.map_err(CopyError::To)?;
        let wanted = self.from.status().await.map_err(CopyError::From)?.fragment_count;
        let copied = self.to.status().await.map_err(CopyError::To)?.fragment_count;
        let wanted = wanted.saturating_sub(self.damaged_count());
        match copied == wanted {
            true => Ok(()),
            false => Err(CopyError::Incomplete { copied, wanted }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::SwitchStore;
    use bytes::Bytes;
    use host::Clock;
    use host::sim::{Sim, SimDisk};
    use host::{Random, SplitMix64};
    use parking_lot::Mutex;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use storage::api::{Fence, StoreIdentity};
    use storage::server::StoreServer;
    use storage::testing::{FS, STORE, fragment_of, payload, segment};
    use types::{FragmentId, LogId, Maps};

    const CAPACITY: u64 = 64 << 20;
    const WRITERS: u32 = 3;
    /// Segments that a writer keeps.
    const SEGMENTS_MAX: usize = 100;

    /// What a store should have.
    #[derive(Default, PartialEq, Debug)]
    struct Contents {
        /// Fragments with their attempts and lengths.
        fragments: BTreeMap<(FragmentId, u16), u32>,
        seals: BTreeMap<LogId, Seal>,
        maps: Maps,
    }

    async fn contents(store: &dyn Storage) -> Contents {
        let mut fragments = BTreeMap::new();
        for (segment, _) in store.segments().await.expect("segments") {
            for header in store.describe(segment).await.expect("describe") {
                let read = store.read(header.id, header.attempt, 0..header.len).await;
                assert_eq!(read, Ok(payload(header.id, header.len)), "{:?}", header.id);
                fragments.insert((header.id, header.attempt), header.len);
            }
        }
        let seals = store.seals().await.expect("seals").into_iter().map(|seal| (seal.log, seal)).collect();
        Contents { fragments, seals, maps: store.maps().await.expect("maps") }
    }

    /// How writers reach the store: straight at first, and then through the switch.
    struct Way {
        straight: Arc<dyn Storage>,
        switch: SwitchStore,
        is_straight: AtomicBool,
        /// Those who are on the straight way have clones.
        under_way: Arc<()>,
    }

    impl Way {
        /// The way, and what shows that it is in use.
        fn take(&self) -> (Arc<dyn Storage>, Option<Arc<()>>) {
            match self.is_straight.load(SeqCst) {
                true => (self.straight.clone(), Some(self.under_way.clone())),
                false => (Arc::new(self.switch.clone()), None),
            }
        }

        /// Waits until all changes come through the switch.
        async fn come_through_switch(&self, clock: &dyn Clock) {
            self.is_straight.store(false, SeqCst);
            while Arc::strong_count(&self.under_way) > 1 {
                clock.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Changes its own segments and logs until `done`, and notes what was acknowledged.
    async fn write(
        (seed, number): (u64, u32),
        way: &Way,
        clock: Arc<dyn Clock>,
        known: &Mutex<Contents>,
        done: &AtomicBool,
    ) {
        let random = SplitMix64::new(seed << 8 | u64::from(number));
        let (mut seq, mut epoch) = (0, 1);
        let mut mine: BTreeSet<SegmentId> = BTreeSet::new();
        while !done.load(SeqCst) {
            let one_of_mine = || mine.iter().nth(random.below(mine.len().max(1) as u64) as usize).copied();
            let (store, _under_way) = way.take();
            // So that the store does not become full, however long the copy rests.
            let what = if mine.len() < SEGMENTS_MAX { random.below(12) } else { 9 };
            match what {
                0..7 => {
                    seq += 1;
                    let fragment = fragment_of(segment(number, 0, seq), 1, 0, random.below(30_000) as u32);
                    let (id, len) = (fragment.header.id, fragment.header.len);
                    store.put(fragment).await.expect("put");
                    known.lock().fragments.insert((id, 0), len);
                    mine.insert(id.segment);
                }
                7..9 => {
                    let Some(segment) = one_of_mine() else { continue };
                    let id = FragmentId { segment, index: 1 };
                    let len = known.lock().fragments[&(id, 0)];
                    store.put(fragment_of(segment, 1, 1, len)).await.expect("put again");
                    known.lock().fragments.insert((id, 1), len);
                }
                9 => {
                    let Some(segment) = one_of_mine() else { continue };
                    store.delete(vec![segment]).await.expect("delete");
                    known.lock().fragments.retain(|(id, _), _| id.segment != segment);
                    mine.remove(&segment);
                }
                10 => {
                    epoch += 1;
                    let seal = Seal::new(LogId::new(100 + number), Fence { epoch, through: seq }, random.next_u64());
                    let kept = store.seal(seal).await.expect("seal");
                    known.lock().seals.insert(kept.log, kept);
                }
                _ if number == 0 => {
                    let maps = Maps { epoch: known.lock().maps.epoch + 1, bytes: Bytes::from(vec![seq as u8; 9]) };
                    store.put_maps(maps.clone()).await.expect("maps");
                    known.lock().maps = maps;
                }
                _ => {}
            }
            clock.sleep(Duration::from_micros(random.below(3000))).await;
        }
    }

    /// Copies a store beside writers, switches over, and compares. The number of fragments.
    fn copied_beside_changes(seed: u64) -> usize {
        let sim = Sim::new(seed);
        let random = SplitMix64::new(seed);
        let stores = ["one", "two"].map(|name| {
            let (machine, disk) = (sim.machine(name), SimDisk::new(&sim, 2 * CAPACITY));
            disk.set_latency(Duration::from_micros(50)..Duration::from_micros(100 + random.below(3000)));
            let (host, disk) = (machine.host(), disk.mount(&machine));
            let identity = StoreIdentity { fs: FS, store: STORE, capacity_bytes: CAPACITY };
            sim.block_on(StoreServer::create(host, disk, identity)).expect("create")
        });
        let [from, to] = &stores;
        let clock = sim.machine("one").host().clock;
        let (switch, known, done) = (SwitchStore::of_server(from), Mutex::default(), AtomicBool::new(false));
        let (straight, under_way) = (from.clone() as Arc<dyn Storage>, Arc::default());
        let way = Way { straight, switch: switch.clone(), is_straight: AtomicBool::new(true), under_way };
        let move_it = async {
            clock.sleep(Duration::from_millis(random.below(200))).await;
            let mut copy = StoreCopy::new(sim.machine("one").host(), switch.now(), to.clone());
            for _ in 0..random.below(4) {
                copy.pass(&|_| (), &DrainRate::default).await.expect("pass");
            }
            way.come_through_switch(&*clock).await;
            if random.below(3) == 0 {
                // The last pass takes too long, and is tried again later.
                let held = switch.hold().await;
                let time = Duration::from_micros(random.below(50_000));
                if let Ok(finished) = timeout(&*clock, time, copy.finish()).await {
                    finished.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                }
                drop(held);
            }
            for _ in 0..random.below(2) {
                copy.pass(&|_| (), &DrainRate::default).await.expect("pass");
            }
            let held = switch.hold().await;
            copy.finish().await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            switch.set(to.clone());
            drop(held);
            clock.sleep(Duration::from_millis(random.below(50))).await;
            done.store(true, SeqCst);
        };
        let writers = (0..WRITERS).map(|number| write((seed, number), &way, clock.clone(), &known, &done));
        let mut all: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>> = vec![Box::pin(move_it)];
        writers.for_each(|writer| all.push(Box::pin(writer)));
        sim.block_on(join_all(all));
        let now = sim.block_on(contents(&**to));
        assert_eq!(now, known.into_inner(), "seed {seed}");
        now.fragments.len()
    }

    #[test]
    fn a_store_copied_beside_changes_is_the_same_store() {
        let count: usize = (0..60).map(copied_beside_changes).sum();
        assert!(count > 60 * 10, "little to compare: {count}");
    }

    #[test]
    fn damaged_fragments_stay_behind() {
        let sim = Sim::new(1);
        let (machine, disk) = (sim.machine("one"), SimDisk::new(&sim, 2 * CAPACITY));
        let other = SimDisk::new(&sim, 2 * CAPACITY);
        sim.block_on(async {
            let identity = StoreIdentity { fs: FS, store: STORE, capacity_bytes: CAPACITY };
            let from = StoreServer::create(machine.host(), disk.mount(&machine), identity).await.expect("create");
            let to = StoreServer::create(machine.host(), other.mount(&machine), identity).await.expect("create");
            for seq in 1..=20 {
                from.put(fragment_of(segment(1, 0, seq), 1, 0, 60_000)).await.expect("put");
            }
            assert!(!disk.rot("fragments", 0..4 << 20, 60).is_empty());
            let mut copy = StoreCopy::new(machine.host(), from.clone(), to.clone());
            copy.finish().await.expect("finish");
            let kept = to.status().await.expect("status").fragment_count;
            assert!((1..20).contains(&copy.damaged_count()), "{}", copy.damaged_count());
            assert_eq!(kept + copy.damaged_count(), 20);
            contents(&*to).await;
        });
    }
}
