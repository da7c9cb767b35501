//! Several clients, a cleaner and two managers that crash together: what the merged logs give must
//! be the state before the crash.
//!
//! Files change hands as tokens make them: only when the file's manager has applied what the holder
//! changed, and the taker learns that manager's order and nothing else.

use crate::api::{BlockAt, Manager, ManagerAdmin, SegmentDeltas};
use crate::frontier::COUNTER_FIRST;
use crate::testing::{BLOCK, CLEANER_LOG, CLIENT_LOG, MANAGER_LOG, Setup, TestWriter, inode};
use crate::tests::model::{Model, compare_file};
use crate::{Delta, LivingLog, ManagerMap, ManagerServer, WriterLog, roll_forward, roll_forward_all};
use host::SplitMix64;
use host::sim::Machine;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use stripe::Stripe;
use types::{BlockAddr, Extent, FileId, LogId, ManagerId, SegmentId};

const CLIENTS: usize = 3;
const MANAGERS: usize = 2;
/// Number of files at a time. A removed file's id is never used again.
const FILES: usize = 6;
/// Bytes of blocks that a change of one file writes, at most.
const CHANGE_LEN: u32 = 4 * BLOCK;

/// The log of a client.
fn client_log(client: usize) -> LogId {
    LogId::new(CLIENT_LOG.raw() + client as u32)
}

/// A file, which one client may change.
struct Held {
    id: FileId,
    holder: usize,
    /// The segments that changed it.
    changes: Vec<SegmentId>,
}

impl Held {
    /// The seq of the holder's last change; 0 if there is none.
    fn last_change(&self) -> u64 {
        self.changes.last().filter(|s| s.log == client_log(self.holder)).map_or(0, |s| s.seq)
    }
}

/// A client or the cleaner, while it runs.
struct Writer {
    log: TestWriter,
    /// For each manager: committed segments that it has not got yet.
    unsent: [VecDeque<SegmentDeltas>; MANAGERS],
}

/// Everything that a crash ends.
struct Running {
    machine: Machine,
    stripe: Arc<Stripe>,
    managers: Vec<Arc<ManagerServer>>,
    /// The clients, and then the cleaner.
    writers: Vec<Writer>,
}

struct World {
    setup: Setup,
    map: ManagerMap,
    random: SplitMix64,
    model: Model,
    files: Vec<Held>,
    next_id: u64,
    version: u64,
    /// The highest order of a segment that is certainly in a log.
    order: u64,
    /// How often a start had to read several clients' changes to one file from the logs.
    contended: u64,
    /// How often a client went on when managers were opened anew.
    followed: u64,
}

impl Writer {
    fn new(stripe: &Arc<Stripe>, tail: stripe::LogTail) -> Writer {
        Writer { log: TestWriter::new(stripe, tail), unsent: Default::default() }
    }

    fn committed(&mut self, segment: &SegmentDeltas) {
        self.unsent.iter_mut().for_each(|unsent| unsent.push_back(segment.clone()));
    }

    /// Takes what a manager has not got yet, through this seq.
    fn take(&mut self, manager: usize, through: u64) -> Vec<SegmentDeltas> {
        let unsent = &mut self.unsent[manager];
        let count = unsent.iter().take_while(|s| s.segment.seq <= through).count();
        unsent.drain(..count).collect()
    }
}

impl Running {
    async fn send(&mut self, writer: usize, manager: usize, through: u64) {
        let segments = self.writers[writer].take(manager, through);
        self.managers[manager].apply(segments).await.unwrap();
    }
}

impl World {
    fn new(seed: u64) -> World {
        let owners = (0..MANAGERS as u16).map(ManagerId::new).collect();
        let mut world = World {
            setup: Setup::new(seed),
            map: ManagerMap { epoch: 1, owners },
            random: SplitMix64::new(seed ^ 0x04de4),
            model: Model::default(),
            files: Vec::new(),
            next_id: 0,
            version: 0,
            order: 0,
            contended: 0,
            followed: 0,
        };
        world.setup.cached_inodes_max = [2, 1000][world.below(2)];
        for _ in 0..FILES {
            let (id, holder) = (world.fresh_id(), world.below(CLIENTS));
            world.files.push(Held { id, holder, changes: Vec::new() });
        }
        world
    }

    fn below(&self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn fresh_id(&mut self) -> FileId {
        self.next_id += 1;
        FileId::in_slot(0, self.below(MANAGERS) as u16, COUNTER_FIRST + self.next_id)
    }

    fn manager_of(&self, file: FileId) -> usize {
        usize::from(self.map.owner_of(file).raw())
    }

    /// Opens the managers.
    async fn open_managers(&mut self, machine: &Machine, stripe: &Arc<Stripe>) -> Vec<Arc<ManagerServer>> {
        let mut managers = Vec::new();
        for (id, log) in (0..MANAGERS as u16).zip(MANAGER_LOG.raw()..) {
            let (id, log, map) = (ManagerId::new(id), LogId::new(log), self.map.clone());
            let config = crate::ManagerConfig { id, log, map, ..self.setup.config() };
            managers.push(ManagerServer::open(machine.host(), stripe.clone(), config, 0).await.unwrap());
        }
        for file in &self.files {
            let manager = &managers[self.manager_of(file.id)];
            let to_read = file.changes.iter().filter(|s| manager.applied(s.log).is_none_or(|seq| seq < s.seq));
            self.contended += u64::from(to_read.map(|s| s.log).collect::<BTreeSet<_>>().len() > 1);
        }
        managers
    }

    /// Opens the managers and rolls all logs forward.
    async fn start(&mut self) -> Running {
        let machine = self.setup.sim.machine("node");
        let stripe = self.setup.stripe(&machine);
        let managers = self.open_managers(&machine, &stripe).await;
        let clients: Vec<WriterLog> = (0..CLIENTS).map(client_log).map(WriterLog::Ended).collect();
        let mut rolled =
            roll_forward_all(&stripe, &managers, &clients, &[WriterLog::Ended(CLEANER_LOG)]).await.unwrap();
        let mut writers = Vec::new();
        for log in clients.iter().map(WriterLog::id).chain([CLEANER_LOG]) {
            let tail = rolled.take(log).unwrap();
            assert!(tail.order >= self.order, "{log} goes on with {}, and {} was there", tail.order, self.order);
            writers.push(Writer::new(&stripe, tail));
        }
        Running { machine, stripe, managers, writers }
    }

    /// Random deltas of files that a client holds. The segment's blocks begin at `addr`.
    fn deltas(&mut self, client: usize, mut addr: BlockAddr) -> Vec<Delta> {
        let mut out = Vec::new();
        for at in 0..FILES {
            if self.files[at].holder != client || self.below(2) == 0 {
                continue;
            }
            let file = self.files[at].id;
            self.files[at].changes.push(addr.segment);
            self.version += 1;
            if !self.model.0.contains_key(&file) || self.below(3) == 0 {
                out.push(Delta::Inode(inode(file, 1, self.version)));
            }
            match self.below(10) {
                0..=4 => {
                    let count = 1 + self.below(4) as u32;
                    addr.len = count * BLOCK;
                    let extent = Extent { first: self.below(8) as u64, count, addr };
                    addr.offset += addr.len;
                    out.push(Delta::Blocks { file, extent });
                }
                5 => {
                    let first = self.below(8) as u64;
                    out.push(Delta::Unmap { file, first, end: first + self.below(8) as u64 });
                }
                6..=8 => {
                    let value = (self.below(4) > 0).then(|| self.version.to_le_bytes().to_vec());
                    out.push(Delta::Xattr { file, name: vec![b'u', self.below(2) as u8], value });
                }
                _ => {
                    out.push(Delta::Remove { file });
                    let id = self.fresh_id();
                    self.files[at] = Held { id, holder: client, changes: Vec::new() };
                }
            }
        }
        out
    }

    /// Notes a segment that is in its log for good.
    fn committed(&mut self, segment: &SegmentDeltas) {
        segment.deltas.iter().for_each(|delta| self.model.apply(delta));
        self.order = self.order.max(segment.order);
    }

    /// A client changes files that it holds.
    async fn change(&mut self, run: &mut Running) {
        let client = self.below(CLIENTS);
        let writer = &mut run.writers[client];
        let segment = writer.log.commit(FILES as u32 * CHANGE_LEN, |addr| self.deltas(client, addr)).await;
        writer.committed(&segment);
        self.committed(&segment);
    }

    /// Another client takes a file. Its holder sends no more than it must.
    async fn hand_over(&mut self, run: &mut Running) {
        let (at, taker) = (self.below(FILES), self.below(CLIENTS));
        let file = &self.files[at];
        let manager = self.manager_of(file.id);
        run.send(file.holder, manager, file.last_change()).await;
        run.writers[taker].log.writer.learn_order(run.managers[manager].order());
        self.files[at].holder = taker;
    }

    /// The cleaner moves a block.
    async fn clean(&mut self, run: &mut Running) {
        let file = self.files[self.below(FILES)].id;
        let Some((&first, &addr)) = self.model.0.get(&file).and_then(|file| file.blocks.first_key_value()) else {
            return;
        };
        let manager = self.manager_of(file);
        run.send(CLIENTS, manager, u64::MAX).await;
        let candidate = BlockAt { file, extent: Extent { first, count: 1, addr } };
        for BlockAt { file, extent } in run.managers[manager].live(vec![candidate]).await.unwrap() {
            let cleaner = &mut run.writers[CLIENTS];
            let moved = |to| vec![Delta::Move { file, from: extent, to }];
            let segment = cleaner.log.commit(extent.addr.len, moved).await;
            cleaner.committed(&segment);
            self.committed(&segment);
        }
    }

    /// Deletes the segments that nothing uses and that the checkpoints of all managers cover.
    async fn reclaim(&self, run: &Running) {
        let mut free: BTreeSet<SegmentId> = run.stripe.segments().await.unwrap().into_keys().collect();
        for manager in &run.managers {
            let covered: BTreeMap<LogId, u64> = manager.checkpoint().await.unwrap().covered.into_iter().collect();
            let used: BTreeSet<SegmentId> = manager.usage().await.unwrap().iter().map(|u| u.segment).collect();
            free.retain(|s| covered.get(&s.log).is_some_and(|&seq| s.seq <= seq) && !used.contains(s));
        }
        run.stripe.delete(free.into_iter().collect()).await;
    }

    /// A client dies alone, and comes back.
    async fn lose_client(&mut self, run: &mut Running) {
        let client = self.below(CLIENTS);
        let (tail, _) = roll_forward(&run.stripe, &run.managers, client_log(client)).await.unwrap();
        assert!(run.managers.iter().all(|manager| manager.order() <= tail.order));
        run.writers[client] = Writer::new(&run.stripe, tail);
    }

    /// The managers are gone, and are opened anew. Some clients go on, and do so at once.
    async fn restart_managers(&mut self, run: &mut Running) {
        let machine = run.machine.clone();
        run.managers = self.open_managers(&machine, &run.stripe).await;
        let log = |client: usize, writer: &Writer, is_living: bool| match is_living {
            true => WriterLog::Living(LivingLog {
                log: client_log(client),
                epoch: writer.log.writer.epoch(),
                committed_seq: writer.log.writer.committed_seq().unwrap_or(0),
            }),
            false => WriterLog::Ended(client_log(client)),
        };
        let clients: Vec<WriterLog> =
            (0..CLIENTS).map(|client| log(client, &run.writers[client], self.below(3) > 0)).collect();
        for _ in 0..self.below(3) {
            self.change(run).await;
        }
        let mut rolled =
            roll_forward_all(&run.stripe, &run.managers, &clients, &[WriterLog::Ended(CLEANER_LOG)]).await.unwrap();
        for (at, log) in clients.iter().map(WriterLog::id).chain([CLEANER_LOG]).enumerate() {
            if rolled.is_open(log) {
                run.writers[at] = Writer::new(&run.stripe, rolled.take(log).unwrap());
            } else {
                self.followed += 1;
            }
        }
    }

    /// Everything crashes while managers apply, write checkpoints and clients commit.
    async fn crash(&mut self, run: Running) -> Running {
        let Running { machine, managers, mut writers, .. } = run;
        machine.crash_after(self.random.below(500));
        let mut in_doubt = Vec::new();
        let mut work = Vec::new();
        for (client, writer) in writers.iter_mut().enumerate() {
            if client < CLIENTS && self.below(2) == 0 {
                in_doubt.push(writer.log.submit(0, |addr| self.touch(client, addr.segment)));
            }
            for (at, manager) in managers.iter().enumerate() {
                if self.below(2) == 0 {
                    let (segments, manager, checkpoints) = (writer.take(at, u64::MAX), manager.clone(), self.below(4));
                    work.push(machine.run(async move {
                        manager.apply(segments).await.unwrap();
                        if checkpoints == 0 {
                            let _ = manager.checkpoint().await;
                        }
                    }));
                }
            }
        }
        for done in work {
            let _ = done.await;
        }
        machine.crash();
        drop((machine, managers, writers));
        let run = self.start().await;
        for segment in in_doubt {
            let client = (segment.segment.log.raw() - CLIENT_LOG.raw()) as usize;
            match segment.segment.seq < run.writers[client].log.next_seq {
                true => self.committed(&segment),
                false => self.files.iter_mut().for_each(|file| file.changes.retain(|s| *s != segment.segment)),
            }
        }
        run
    }

    /// New attributes of one of a client's files.
    fn touch(&mut self, client: usize, segment: SegmentId) -> Vec<Delta> {
        self.version += 1;
        let version = self.version;
        let file = self.files.iter_mut().find(|file| file.holder == client);
        let touched = file.map(|file| {
            file.changes.push(segment);
            Delta::Inode(inode(file.id, 1, version))
        });
        touched.into_iter().collect()
    }

    /// Checks that the managers have what the model has.
    async fn compare(&self, run: &mut Running) {
        for (writer, manager) in (0..=CLIENTS).flat_map(|writer| (0..MANAGERS).map(move |manager| (writer, manager))) {
            run.send(writer, manager, u64::MAX).await;
        }
        for (&id, file) in &self.model.0 {
            compare_file(&run.managers[self.manager_of(id)], id, file).await;
        }
        let (mut file_count, mut usage) = (0, BTreeMap::new());
        for manager in &run.managers {
            file_count += manager.status().file_count;
            for used in manager.usage().await.unwrap().iter().filter(|u| u.segment.log < MANAGER_LOG) {
                *usage.entry(used.segment).or_insert(0) += used.live_bytes;
            }
            assert!(manager.audit().await.unwrap().is_clean());
        }
        assert_eq!((file_count, usage), (self.model.0.len() as u64, self.model.usage()));
    }
}

/// Runs a history, and returns how often the order of the logs mattered, and how often clients went
/// on.
fn run(seed: u64, steps: u32) -> [u64; 2] {
    let mut world = World::new(seed);
    let sim = world.setup.sim.clone();
    sim.block_on(async {
        let mut run = world.start().await;
        for _ in 0..steps {
            match world.below(32) {
                0..=12 => world.change(&mut run).await,
                13..=22 => world.hand_over(&mut run).await,
                23 | 24 => run.send(world.below(CLIENTS + 1), world.below(MANAGERS), u64::MAX).await,
                25 => drop(run.managers[world.below(MANAGERS)].checkpoint().await.unwrap()),
                26 | 27 => world.clean(&mut run).await,
                28 => world.reclaim(&run).await,
                29 => world.lose_client(&mut run).await,
                30 => world.restart_managers(&mut run).await,
                _ => {
                    run = world.crash(run).await;
                    world.compare(&mut run).await;
                }
            }
        }
        world.compare(&mut run).await;
    });
    [world.contended, world.followed]
}

#[test]
fn model_merged_logs_give_the_state_before_the_crash() {
    let mut counts = [0; 2];
    for seed in 0..500 {
        println!("seed {seed}");
        let [contended, followed] = run(seed, 80);
        counts = [counts[0] + contended, counts[1] + followed];
    }
    let [contended, followed] = counts;
    assert!(contended > 500, "the order of logs mattered {contended} times only");
    assert!(followed > 1000, "clients went on {followed} times only");
}
