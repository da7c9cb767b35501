//! Whole histories under a seed: a writer is killed and started again over stores that fail, at
//! most `m` at a time. Every acknowledged segment stays: byte for byte, in order, in one chain,
//! readable without any `m` stores.
//!
//! The same histories run over stores in memory and over real storage servers on simulated machines
//! and disks.

use crate::testing::{FS, Fault, LOG, Rig};
use crate::{LogTail, LogWriter, Options, Stripe, StripeError};
use bytes::Bytes;
use host::sim::{LinkFaults, Machine, Sim, SimDisk, SimLink, SimRandom};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Fence, Seal, Storage, StorageError, StoreStatus};
use storage::server::{StoreIdentity, StoreServer};
use striped_log::builder::SegmentBuilder;
use striped_log::fragment::{Fragment, FragmentHeader};
use striped_log::segment::Segment;
use types::{BoxFuture, FragmentId, LogId, Maps, SegmentId, StoreId};

/// Stores that can be hurt.
trait Cluster {
    fn sim(&self) -> &Sim;
    fn store_count(&self) -> usize;
    fn stripe(&self, client: &Machine) -> Arc<Stripe>;
    /// Makes one store bad in some way.
    fn hurt(&self, at: usize, random: &SimRandom);
    /// Makes one store unreachable.
    fn cut(&self, at: usize);
    /// Makes all stores well.
    fn heal(&self);
}

/// A history so far, and the segments that must be readable at its end.
struct History<'a, C> {
    cluster: &'a C,
    parity: usize,
    random: SimRandom,
    submitted: BTreeMap<SegmentId, Segment>,
    /// In log order.
    acknowledged: Arc<Mutex<Vec<SegmentId>>>,
}

impl<C: Cluster> History<'_, C> {
    fn client(&self) -> Machine {
        self.cluster.sim().machine("client")
    }

    /// Hurts up to `m` stores and heals all others.
    fn shake(&self) {
        self.cluster.heal();
        for _ in 0..self.random.below(self.parity as u64 + 1) {
            self.cluster.hurt(self.random.below(self.cluster.store_count() as u64) as usize, &self.random);
        }
    }

    /// Opens the log; `None` if the opener was killed.
    fn open(&self) -> Option<(Arc<Stripe>, LogTail)> {
        let client = self.client();
        if self.random.chance(1, 3) {
            client.crash_after(1 + self.random.below(200));
        }
        let stripe = self.cluster.stripe(&client);
        let opening = {
            let stripe = stripe.clone();
            client.run(async move { stripe.open_log(LOG, 1).await })
        };
        let tail = match self.cluster.sim().block_on(opening) {
            Err(_) => return None,
            Ok(Ok(tail)) => tail,
            Ok(Err(StripeError::NotEnoughStores)) => {
                self.cluster.heal();
                let mut tries = 0;
                loop {
                    let stripe = stripe.clone();
                    let again = client.run(async move { stripe.open_log(LOG, 1).await });
                    match self.cluster.sim().block_on(again) {
                        Err(_) => return None,
                        Ok(Ok(tail)) => break tail,
                        Ok(Err(error)) => assert!(tries < 5, "all stores are well: {error}"),
                    }
                    // Until it has found that they are.
                    self.cluster.sim().run_for(Duration::from_secs(1));
                    tries += 1;
                }
            }
            Ok(Err(error)) => panic!("log does not open: {error}"),
        };
        // The client no longer crashes at a set point. It may have crashed just after the answer.
        client.crash_after(u64::MAX);
        client.is_up().then_some((stripe, tail))
    }

    /// Checks that an opened log has all acknowledged segments. Other segments that counted are
    /// acknowledged from now on.
    fn check(&self, stripe: &Arc<Stripe>, tail: &LogTail) {
        let mut acknowledged = self.acknowledged.lock();
        assert!(tail.segments.starts_with(&acknowledged), "{:?} lost some of {:?}", tail.segments, *acknowledged);
        assert_eq!(tail.next_seq, tail.segments.len() as u64 + 1);
        let mut previous = None;
        for id in &tail.segments {
            let info = self.cluster.sim().block_on(stripe.info(*id)).expect("segment is there");
            assert_eq!(info.previous, previous, "{id} breaks the chain");
            previous = Some(*id);
            self.check_segment(stripe, *id);
        }
        *acknowledged = tail.segments.clone();
    }

    fn check_segment(&self, stripe: &Arc<Stripe>, id: SegmentId) {
        let expected = &self.submitted[&id].payload;
        let read = self.cluster.sim().block_on(stripe.read(id, 0..expected.len() as u32));
        assert_eq!(read.as_ref(), Ok(expected), "{id}");
        let of_it = read.map(|bytes| bytes.len() as u64).unwrap_or_default();
        self.cluster.sim().note(of_it);
    }

    fn submit(&mut self, writer: &Arc<LogWriter>) {
        let len = match self.random.below(4) {
            0 => self.random.below(1 << 20),
            1 => self.random.below(200_000),
            _ => self.random.below(10_000),
        };
        let place = writer.begin();
        let mut builder = SegmentBuilder::new(place);
        let (a, b) = (self.random.below(256) as u8, self.random.below(251) + 1);
        let bytes: Bytes = (0..len).map(|i| a ^ (i % b) as u8 ^ (i >> 12) as u8).collect();
        builder.push_block(bytes);
        let draft = builder.finish(vec![a; b as usize]);
        self.submitted.insert(place.id, draft.clone().assemble());
        writer.submit(draft);
    }

    /// Opens the log from a seq on, on a machine that may die half way. True if it is opened.
    fn is_opened(&self, from_seq: u64) -> bool {
        let leader = self.cluster.sim().machine("leader");
        leader.crash_after(1 + self.random.below(60));
        let opening = {
            let stripe = self.cluster.stripe(&leader);
            leader.run(async move { stripe.open_log(LOG, from_seq).await })
        };
        let opened = self.cluster.sim().block_on(opening);
        leader.crash();
        leader.crash_after(u64::MAX);
        matches!(opened, Ok(Ok(_)))
    }

    /// What a machine leaves that opens the log and dies when only some stores have its seal.
    fn seal_half_way(&self, stripe: &Stripe, epoch: u32) {
        self.cluster.heal();
        let counted = self.acknowledged.lock().clone();
        let fence = Fence { epoch: epoch + 1 + self.random.below(2) as u32, through: counted.len() as u64 };
        let seals = |at| self.cluster.sim().block_on(stripe.ask(at, |s| s.seals())).unwrap_or_default();
        let all = stripe.everyone().into_iter().flat_map(seals).filter(|seal| seal.log == LOG && seal.is_told());
        let Some(present) = all.max_by_key(|seal| seal.epoch) else { return };
        let first = counted.iter().find(|segment| segment.epoch >= present.epoch).map(|segment| segment.seq);
        let seal = present.next(fence, first, self.random.below(u64::MAX));
        for _ in 0..=self.random.below(self.parity as u64) {
            let at = self.random.below(self.cluster.store_count() as u64) as usize;
            let _ = self.cluster.sim().block_on(stripe.ask(at, |s| s.seal(seal.clone())));
        }
    }

    /// A leader takes the writer for dead and opens its log, and may die half way. Then a new
    /// leader may let the writer go on: true if it does. Meanwhile the writer acknowledges nothing,
    /// since its lease is over.
    fn is_let_go_on(&self, stripe: &Stripe, writer: &LogWriter, epoch: u32) -> bool {
        let before = self.acknowledged.lock().clone();
        let is_opened = match self.random.chance(1, 2) {
            true => self.is_opened(1),
            false => {
                self.seal_half_way(stripe, epoch);
                false
            }
        };
        if !is_opened {
            let leader = self.cluster.sim().machine("next-leader");
            let stripe = self.cluster.stripe(&leader);
            match self.random.chance(1, 2) {
                true => self.shake(),
                false => self.cut_sealed_after(&stripe, epoch),
            }
            let through = writer.committed_seq().unwrap_or(0);
            if self.cluster.sim().block_on(stripe.let_go_on(LOG, 1, epoch, through)).is_ok() {
                return true;
            }
        }
        self.client().crash();
        *self.acknowledged.lock() = before;
        false
    }

    /// Cuts the stores that show a seal after this epoch, if that is not too many.
    fn cut_sealed_after(&self, stripe: &Stripe, epoch: u32) {
        self.cluster.heal();
        let seals = |at| self.cluster.sim().block_on(stripe.ask(at, |s| s.seals())).unwrap_or_default();
        let is_after = |at: &usize| seals(*at).iter().any(|seal| seal.log == LOG && seal.epoch > epoch);
        let sealed: Vec<usize> = (0..self.cluster.store_count()).filter(is_after).collect();
        if sealed.len() <= self.parity {
            sealed.into_iter().for_each(|at| self.cluster.cut(at));
        }
    }

    /// One life of the writer.
    fn live(&mut self) {
        self.shake();
        if self.random.chance(1, 2) {
            // As one that has applied all of this.
            let durable = self.acknowledged.lock().len() as u64;
            self.is_opened(1 + durable - self.random.below(durable + 1) / 2);
        }
        let Some((stripe, tail)) = self.open() else { return };
        self.check(&stripe, &tail);
        let epoch = tail.epoch;
        let writer = LogWriter::new(stripe.clone(), tail);
        let mut is_alone = true;
        let acknowledged = self.acknowledged.clone();
        writer.on_commit(Box::new(move |id| acknowledged.lock().push(id)));
        for _ in 0..self.random.below(12) {
            match self.random.below(7) {
                0 => self.shake(),
                6 => {
                    is_alone = false;
                    if !self.is_let_go_on(&stripe, &writer, epoch) {
                        return;
                    }
                }
                1 => {
                    let time = Duration::from_micros(self.random.below(2_000_000));
                    self.cluster.sim().run_for(time);
                }
                2 => {
                    let known = self.acknowledged.lock().clone();
                    if let Some(id) = known.get(self.random.below(known.len() as u64) as usize) {
                        self.check_segment(&stripe, *id);
                    }
                }
                _ => self.submit(&writer),
            }
        }
        // A store with the seal of a leader that died refuses the writer, and this ends it.
        if is_alone && self.random.chance(1, 2) {
            self.cluster.heal();
            self.cluster.sim().block_on(writer.wait_in_flight_below(1));
            let last = self.acknowledged.lock().last().map(|id| id.seq);
            assert_eq!(writer.committed_seq(), last);
        }
        self.client().crash();
    }

    /// Ends a history: all stores are well, and then any `m` of them are away.
    fn end(&self) {
        self.client().crash();
        self.cluster.heal();
        let client = self.client();
        let stripe = self.cluster.stripe(&client);
        let tail = self.cluster.sim().block_on(stripe.open_log(LOG, 1)).expect("all stores are well");
        self.check(&stripe, &tail);
        let report = self.cluster.sim().block_on(stripe.scrub(false, |_| ())).expect("all stores are well");
        let bad = |id: &SegmentId| report.unrepaired.contains(id) || report.unreadable.contains(id);
        assert!(!tail.segments.iter().any(bad), "something acknowledged lacks redundancy: {report:?}");
        let n = self.cluster.store_count();
        let first = self.random.below(n as u64) as usize;
        for at in 0..self.parity {
            self.cluster.cut((first + at * (n / 2)) % n);
        }
        let stripe = self.cluster.stripe(&client);
        tail.segments.iter().for_each(|id| self.check_segment(&stripe, *id));
        self.cluster.heal();
    }
}

/// Runs a history. Returns the number of acknowledged segments.
fn run(cluster: &impl Cluster, seed: u64, parity: usize, lives: usize) -> usize {
    let random = SimRandom::new(seed.wrapping_mul(0x9e37_79b9));
    let mut history = History { cluster, parity, random, submitted: BTreeMap::new(), acknowledged: Arc::default() };
    for _ in 0..lives {
        history.live();
    }
    history.end();
    history.acknowledged.lock().len()
}

impl Cluster for Rig {
    fn sim(&self) -> &Sim {
        &self.sim
    }
    fn store_count(&self) -> usize {
        self.stores.len()
    }
    fn stripe(&self, _: &Machine) -> Arc<Stripe> {
        Rig::stripe(self)
    }
    fn hurt(&self, at: usize, random: &SimRandom) {
        let faults = [Fault::Silent, Fault::Mute, Fault::Down, Fault::ReadOnly, Fault::Full];
        self.stores[at].set(faults[random.below(5) as usize]);
    }
    fn cut(&self, at: usize) {
        self.stores[at].set(Fault::Down);
    }
    fn heal(&self) {
        Rig::heal(self);
    }
}

/// A storage server on a machine and a disk of its own.
struct Node {
    id: StoreId,
    disk: SimDisk,
    machine: Mutex<Machine>,
    server: Mutex<Option<Arc<StoreServer>>>,
    cut: Mutex<bool>,
    faults: Mutex<LinkFaults>,
}

/// Real storage servers, over links.
struct Servers {
    sim: Sim,
    nodes: Vec<Arc<Node>>,
    parity: u8,
}

impl Servers {
    fn new(seed: u64, count: u16, parity: u8) -> Servers {
        let sim = Sim::new(seed);
        let nodes = (0..count).map(|id| {
            let node = Node {
                id: StoreId::new(id),
                disk: SimDisk::new(&sim, 1 << 30),
                machine: Mutex::new(sim.machine(&format!("store-{id}"))),
                server: Mutex::new(None),
                cut: Mutex::new(false),
                faults: Mutex::default(),
            };
            let machine = node.machine.lock().clone();
            let identity = StoreIdentity { fs: FS, store: node.id, capacity_bytes: 200 << 20 };
            let made = StoreServer::create(machine.host(), node.disk.mount(&machine), identity);
            *node.server.lock() = Some(sim.block_on(machine.run(made)).expect("machine is up").expect("store is made"));
            Arc::new(node)
        });
        let nodes = nodes.collect();
        Servers { sim, nodes, parity }
    }

    /// Replaces a store's disk by a new one.
    fn replace_disk(&self, node: &Node) {
        node.machine.lock().crash();
        *node.server.lock() = None;
        node.disk.wipe();
        let machine = self.sim.machine(&format!("store-{}", node.id.raw()));
        let identity = StoreIdentity { fs: FS, store: node.id, capacity_bytes: 200 << 20 };
        let made = StoreServer::create(machine.host(), node.disk.mount(&machine), identity);
        *node.server.lock() =
            Some(self.sim.block_on(machine.run(made)).expect("machine is up").expect("store is made"));
        *node.machine.lock() = machine;
    }

    fn restart(&self, node: &Node) {
        node.machine.lock().crash();
        *node.server.lock() = None;
        node.disk.hang(false);
        let machine = self.sim.machine(&format!("store-{}", node.id.raw()));
        let opened = StoreServer::open(machine.host(), node.disk.mount(&machine));
        *node.server.lock() =
            Some(self.sim.block_on(machine.run(opened)).expect("machine is up").expect("store opens"));
        *node.machine.lock() = machine;
    }
}

impl Cluster for Servers {
    fn sim(&self) -> &Sim {
        &self.sim
    }
    fn store_count(&self) -> usize {
        self.nodes.len()
    }
    fn stripe(&self, client: &Machine) -> Arc<Stripe> {
        let remote = |node: &Arc<Node>| {
            let remote = Remote { node: node.clone(), client: client.clone() };
            (node.id, Arc::new(remote) as Arc<dyn Storage>)
        };
        let options = Options {
            parity: self.parity,
            put_timeout: Duration::from_secs(2),
            probe_interval: Duration::from_millis(300),
            ..Options::default()
        };
        Stripe::new(client.host(), FS, self.nodes.iter().map(remote).collect(), options)
    }
    fn hurt(&self, at: usize, random: &SimRandom) {
        let node = &self.nodes[at];
        match random.below(6) {
            0 => node.machine.lock().crash(),
            1 => {
                node.machine.lock().crash();
                node.disk.power_loss();
            }
            2 => node.machine.lock().crash_after(1 + random.below(300)),
            3 => node.disk.fail_next_syncs(1),
            4 => *node.cut.lock() = true,
            _ => *node.faults.lock() = LinkFaults { lost_requests: 100, lost_answers: 100, repeated_requests: 200 },
        }
    }
    fn cut(&self, at: usize) {
        *self.nodes[at].cut.lock() = true;
    }
    fn heal(&self) {
        for node in &self.nodes {
            *node.cut.lock() = false;
            *node.faults.lock() = LinkFaults::default();
            node.disk.fail_next_syncs(0);
            node.machine.lock().crash_after(u64::MAX);
            let server = node.server.lock().clone();
            let (up, status) = (node.machine.lock().is_up(), server.map(|s| s.status()));
            let writable = up && status.is_some_and(|s| self.sim.block_on(s).is_ok_and(|s| s.writable));
            if !writable {
                self.restart(node);
            }
        }
    }
}

/// A store as a client sees it over the network.
struct Remote {
    node: Arc<Node>,
    client: Machine,
}

impl Remote {
    fn call<T: Send + 'static>(
        &self,
        request: impl Fn(&StoreServer) -> BoxFuture<Result<T, StorageError>> + Send + Sync + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        let link = SimLink::new(&self.client, &self.node.machine.lock(), Duration::ZERO..Duration::from_millis(2));
        link.cut(*self.node.cut.lock());
        link.set_faults(*self.node.faults.lock());
        let server = self.node.server.lock().clone();
        match server {
            Some(server) => link.call(move || request(&server)),
            None => Box::pin(pending()),
        }
    }
}

impl Storage for Remote {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.call(move |s| s.put(fragment.clone()))
    }
    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.call(move |s| s.read(id, attempt, range.clone()))
    }
    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.call(move |s| s.put_behind(fragment.clone()))
    }
    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.call(move |s| s.read_behind(id, attempt, range.clone()))
    }
    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        self.call(|s| s.rest())
    }
    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.call(move |s| s.describe(segment))
    }
    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.call(move |s| s.list(log, from_seq, count_max))
    }
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.call(|s| s.segments())
    }
    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.call(move |s| s.delete(segments.clone()))
    }
    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.call(move |s| s.seal(seal.clone()))
    }
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.call(|s| s.seals())
    }
    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.call(move |s| s.put_maps(maps.clone()))
    }
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.call(|s| s.maps())
    }
    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.call(move |s| s.verify(id))
    }
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        self.call(|s| s.status())
    }
}

const SHAPES: [(u16, u8); 7] = [(2, 1), (3, 1), (5, 1), (4, 2), (5, 2), (7, 2), (3, 2)];

/// The seeds to run: only `STARLING_SEED` if that is set.
fn seeds(count: u64) -> Range<u64> {
    match std::env::var("STARLING_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

/// Names the seed of a failure.
struct OnPanic(&'static str, u64);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: STARLING_SEED={} cargo test -p stripe {}", self.1, self.0);
        }
    }
}

#[test]
fn sim_nothing_acknowledged_is_lost_over_stores_in_memory() {
    let mut acknowledged = 0;
    for seed in seeds(150) {
        let _replay = OnPanic("sim_nothing_acknowledged_is_lost_over_stores_in_memory", seed);
        let (n, m) = SHAPES[(seed % 7) as usize];
        acknowledged += run(&Rig::new(seed, n, m), seed, usize::from(m), 6);
    }
    assert!(acknowledged > 0 || std::env::var("STARLING_SEED").is_ok(), "nothing was tested");
}

#[test]
fn sim_nothing_acknowledged_is_lost_over_real_stores() {
    let mut acknowledged = 0;
    for seed in seeds(40) {
        let _replay = OnPanic("sim_nothing_acknowledged_is_lost_over_real_stores", seed);
        let (n, m) = SHAPES[(seed % 7) as usize];
        acknowledged += run(&Servers::new(seed, n, m), seed, usize::from(m), 5);
    }
    assert!(acknowledged > 0 || std::env::var("STARLING_SEED").is_ok(), "nothing was tested");
}

#[test]
fn sim_scrub_repairs_rot_and_a_new_disk_of_real_stores() {
    let cluster = Servers::new(1, 5, 1);
    let stripe = cluster.stripe(&cluster.sim.machine("client"));
    let random = SimRandom::new(1);
    let mut history =
        History { cluster: &cluster, parity: 1, random, submitted: BTreeMap::new(), acknowledged: Arc::default() };
    let tail = cluster.sim.block_on(stripe.open_log(LOG, 1)).expect("all stores are well");
    let writer = LogWriter::new(stripe.clone(), tail);
    for _ in 0..20 {
        history.submit(&writer);
    }
    cluster.sim.block_on(writer.wait_committed(20)).expect("all stores are well");

    assert!(!cluster.nodes[1].disk.rot("fragments", 1 << 20..3 << 20, 100).is_empty());
    let report = cluster.sim.block_on(stripe.scrub(true, |_| ())).expect("all stores answer");
    assert!(report.damaged > 0 && report.unrepaired.is_empty() && report.unreadable.is_empty(), "{report:?}");
    cluster.replace_disk(&cluster.nodes[0]);
    let report = cluster.sim.block_on(stripe.scrub(true, |_| ())).expect("all stores answer");
    assert!(report.missing > 0 && report.unrepaired.is_empty() && report.unreadable.is_empty(), "{report:?}");
    let clean = cluster.sim.block_on(stripe.scrub(true, |_| ())).expect("all stores answer");
    assert_eq!((clean.segments, clean.missing, clean.damaged), (20, 0, 0));
    cluster.cut(2);
    for id in history.submitted.keys() {
        history.check_segment(&stripe, *id);
    }
}

#[test]
fn sim_same_seed_gives_the_same_history() {
    let digest = |seed| {
        let cluster = Servers::new(seed, 5, 1);
        run(&cluster, seed, 1, 3);
        cluster.sim.digest()
    };
    assert_eq!(digest(11), digest(11));
    assert_ne!(digest(11), digest(12));
}
