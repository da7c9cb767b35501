//! Random deltas, checkpoints, crashes and cleaning, against a model that keeps one address per
//! block.

use crate::api::{BlockAt, GiveBack, Manager, ManagerAdmin, ManagerError, SegmentDeltas, SegmentUsage};
use crate::frontier::COUNTER_FIRST;
use crate::testing::{BLOCK, Running, Setup, TestWriter, inode};
use crate::token::Mode;
use crate::{Delta, InodeRecord};
use host::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};
use types::{BlockAddr, ClientId, Extent, FileId, LogId, SegmentId};

const CLIENT: ClientId = ClientId::new(1);
/// Number of ids in use at a time. A removed file's id is never used again.
const FILES: u64 = 24;

/// A file of the model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ModelFile {
    inode: Option<InodeRecord>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Option<Vec<u8>>,
    pub(super) blocks: BTreeMap<u64, BlockAddr>,
}

/// All files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Model(pub(super) BTreeMap<FileId, ModelFile>);

impl Model {
    pub(super) fn apply(&mut self, delta: &Delta) {
        let id = delta.file();
        match delta {
            Delta::Inode(inode) => self.0.entry(id).or_default().inode = Some(*inode),
            Delta::Remove { .. } => drop(self.0.remove(&id)),
            other => {
                let Some(file) = self.0.get_mut(&id) else { return };
                match other {
                    Delta::Blocks { extent, .. } => file.blocks.extend(blocks_of(extent)),
                    Delta::Unmap { first, end, .. } => file.blocks.retain(|b, _| b < first || b >= end),
                    Delta::Xattr { name, value: Some(value), .. } => {
                        drop(file.xattrs.insert(name.clone(), value.clone()))
                    }
                    Delta::Xattr { name, value: None, .. } => drop(file.xattrs.remove(name)),
                    Delta::Symlink { target, .. } => file.target = Some(target.clone()),
                    Delta::Move { from, to, .. } => {
                        let targets = blocks_of(&Extent { addr: *to, ..*from });
                        for ((block, from), (_, to)) in blocks_of(from).zip(targets) {
                            if file.blocks.get(&block) == Some(&from) {
                                file.blocks.insert(block, to);
                            }
                        }
                    }
                    Delta::Inode(_) | Delta::Remove { .. } => {}
                }
            }
        }
    }

    /// Live bytes per segment.
    pub(super) fn usage(&self) -> BTreeMap<SegmentId, u64> {
        let mut usage = BTreeMap::new();
        for addr in self.0.values().flat_map(|file| file.blocks.values()) {
            *usage.entry(addr.segment).or_insert(0) += u64::from(addr.len);
        }
        usage
    }
}

/// Checks that the manager has the file as the model has it.
pub(super) async fn compare_file(server: &crate::ManagerServer, id: FileId, file: &ModelFile) {
    let opened = server.open(CLIENT, id, Mode::Write).await.unwrap_or_else(|e| panic!("{id:?}: {e}"));
    assert_eq!(Some(opened.inode), file.inode);
    let xattrs: BTreeMap<_, _> = opened.xattrs.iter().map(|(k, v)| (k.clone(), v.to_vec())).collect();
    assert_eq!(xattrs, file.xattrs);
    assert_eq!(opened.target.map(|t| t.to_vec()), file.target);
    let (mut located, mut blocks, mut at) = (opened.located, BTreeMap::new(), 0);
    loop {
        for extent in &located.extents {
            assert!(extent.first >= at && extent.end() <= located.known_until);
            blocks.extend(blocks_of(extent));
        }
        at = located.known_until;
        if at == u64::MAX {
            break;
        }
        located = server.locate(CLIENT, id, at).await.unwrap();
        assert!(located.known_until > at, "no progress");
    }
    assert_eq!(blocks, file.blocks, "{id:?}");
}

fn blocks_of(extent: &Extent) -> impl Iterator<Item = (u64, BlockAddr)> + use<> {
    let extent = *extent;
    (extent.first..extent.end()).filter_map(move |b| Some((b, extent.slice(b, b + 1, BLOCK)?.addr)))
}

/// A client, a cleaner and an operator that do random things.
struct World {
    setup: Setup,
    random: SplitMix64,
    model: Model,
    /// Ids that may be used, with holes where files were removed.
    ids: Vec<FileId>,
    next_id: u64,
    version: u64,
    /// Deltas that are committed and known to the model, but not sent to the manager yet.
    unsent: Vec<SegmentDeltas>,
    follower: Follower,
}

/// Follows the manager's counts by their changes.
#[derive(Default)]
struct Follower {
    since: u64,
    live: BTreeMap<SegmentId, u64>,
    /// Segments that were reported as covered since the manager's start.
    covered: BTreeSet<SegmentId>,
    /// How far the checkpoint covered each log when the whole table was reported.
    before: BTreeMap<LogId, u64>,
}

impl Follower {
    /// Takes in the changes. Sometimes the answer is lost on its way.
    async fn follow(&mut self, server: &crate::ManagerServer, is_lost: bool) {
        let covered = server.core.state.lock().covered();
        let told = server.usage_changes(self.since).await.unwrap();
        if is_lost {
            return;
        }
        self.since = told.until;
        if told.is_whole {
            self.live.clear();
            self.covered.clear();
            self.before = covered.into_iter().collect();
        }
        for SegmentUsage { segment, live_bytes } in told.changed {
            match live_bytes {
                0 => drop(self.live.remove(&segment)),
                _ => drop(self.live.insert(segment, live_bytes)),
            }
        }
        for segment in told.covered {
            assert!(self.before.get(&segment.log).is_none_or(|&seq| seq < segment.seq), "{segment} covered again");
            assert!(self.covered.insert(segment), "{segment} covered twice");
        }
    }

    /// Checks that the follower has the counts that the manager would report anew, and knows every
    /// covered segment.
    async fn compare(&mut self, run: &Running) {
        let covered: BTreeMap<_, _> = run.server.checkpoint().await.unwrap().covered.into_iter().collect();
        self.follow(&run.server, false).await;
        let usage = run.server.usage().await.unwrap();
        let usage: BTreeMap<_, _> = usage.into_iter().map(|u| (u.segment, u.live_bytes)).collect();
        assert_eq!(self.live, usage);
        for segment in run.stripe.segments().await.unwrap().into_keys() {
            let is_covered = covered.get(&segment.log).is_some_and(|&seq| segment.seq <= seq);
            let was_covered = self.before.get(&segment.log).is_some_and(|&seq| segment.seq <= seq);
            assert_eq!(is_covered && !was_covered, self.covered.contains(&segment), "{segment}");
        }
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut setup = Setup::new(seed);
        let random = SplitMix64::new(seed ^ 0x5eed);
        setup.cached_inodes_max = [2, 6, 1000][random.below(3) as usize];
        setup.lengths.segment_len_max = [9_000, 40_000, 1 << 20][random.below(3) as usize];
        setup.lengths.page_rows_max = [4, 8, 20, 128][random.below(4) as usize];
        let ids = (0..FILES).map(|n| FileId::in_slot(0, 0, COUNTER_FIRST + n * 40)).collect();
        let model = Model::default();
        World {
            setup,
            random,
            model,
            ids,
            next_id: FILES,
            version: 0,
            unsent: Vec::new(),
            follower: Follower::default(),
        }
    }

    fn below(&self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// A block near the beginning of a leaf, mostly the first.
    fn block(&self) -> u64 {
        [0, 0, 0, 8192, 16384, 3 * 8192][self.below(6) as usize] + self.below(40)
    }

    fn some_file(&self) -> FileId {
        self.ids[self.below(self.ids.len() as u64) as usize]
    }

    /// Random deltas of a client. Their blocks are stored from `addr` on.
    fn client_deltas(&mut self, addr: BlockAddr) -> Vec<Delta> {
        let mut out = Vec::new();
        let mut offset = 0;
        let mut known: BTreeSet<FileId> = self.model.0.keys().copied().collect();
        for _ in 0..1 + self.below(6) {
            let at = self.below(self.ids.len() as u64) as usize;
            let file = self.ids[at];
            self.version += 1;
            if known.insert(file) || self.below(5) == 0 {
                let nlink = u32::from(self.below(6) > 0);
                out.push(Delta::Inode(inode(file, nlink, self.version)));
            }
            match self.below(12) {
                0..=4 => {
                    let extent = self.extent(addr, &mut offset, 1 + self.below(12) as u32);
                    out.push(Delta::Blocks { file, extent });
                }
                5 => {
                    // Map every other block, to make the map long.
                    let base = self.block();
                    for i in 0..40 {
                        let one = self.extent(addr, &mut offset, 1);
                        out.push(Delta::Blocks { file, extent: Extent { first: base + 2 * i, ..one } });
                    }
                }
                6 => {
                    let first = self.block();
                    let end = [first + self.below(30), u64::MAX][self.below(2) as usize];
                    out.push(Delta::Unmap { file, first, end });
                }
                7 | 8 => {
                    let value = (self.below(3) > 0).then(|| vec![self.version as u8; 20]);
                    out.push(Delta::Xattr { file, name: vec![b'u', self.below(4) as u8], value });
                }
                9 => out.push(Delta::Symlink { file, target: self.version.to_le_bytes().to_vec() }),
                _ => {
                    out.push(Delta::Remove { file });
                    self.ids[at] = FileId::in_slot(0, 0, COUNTER_FIRST + self.next_id * 40);
                    self.next_id += 1;
                }
            }
        }
        assert!(offset <= addr.len);
        out
    }

    fn extent(&self, addr: BlockAddr, offset: &mut u32, count: u32) -> Extent {
        let cut = [0, 0, self.below(u64::from(BLOCK)) as u32][self.below(3) as usize];
        let len = count * BLOCK - cut;
        let extent =
            Extent { first: self.block(), count, addr: BlockAddr { offset: addr.offset + *offset, len, ..addr } };
        *offset += len;
        extent
    }

    /// The client commits changes. The manager may get them later.
    async fn change(&mut self, run: &mut Running) {
        let deltas = run.client.commit(6 * 40 * BLOCK, |addr| self.client_deltas(addr)).await;
        deltas.deltas.iter().for_each(|delta| self.model.apply(delta));
        self.unsent.push(deltas);
        if self.below(3) > 0 {
            self.send(run).await;
        }
    }

    async fn send(&mut self, run: &Running) {
        run.server.apply(std::mem::take(&mut self.unsent)).await.unwrap();
    }

    /// The cleaner moves runs that it saw a while ago. Some are not there any more when it offers
    /// the copies.
    async fn clean(&mut self, run: &mut Running) {
        self.send(run).await;
        let mut moves = Vec::new();
        for _ in 0..self.below(4) {
            let Some(file) = self.model.0.get(&self.some_file()) else { continue };
            let Some((&first, &addr)) = file.blocks.iter().next() else { continue };
            // Extend the run while it continues in the file and in the segment.
            let mut whole = Extent { first, count: 1, addr };
            for (&b, &addr) in file.blocks.range(first + 1..) {
                let next = Extent { first: b, count: 1, addr };
                if !whole.continues(&next, BLOCK) {
                    break;
                }
                whole.count += 1;
                whole.addr.len += addr.len;
            }
            let id = file.inode.map(|i| i.id).unwrap_or(FileId::ROOT);
            moves.push(BlockAt { file: id, extent: whole });
        }
        if self.below(2) == 0 {
            self.change(run).await;
            self.send(run).await;
        }
        let live = run.server.live(moves.clone()).await.unwrap();
        for BlockAt { file, extent } in &live {
            for (b, addr) in blocks_of(extent) {
                assert_eq!(self.model.0[file].blocks.get(&b), Some(&addr), "not live");
            }
        }
        let len = moves.iter().map(|m| m.extent.addr.len).sum();
        let moved = run
            .cleaner
            .commit(len, |mut to| {
                let offer = |m: &BlockAt| {
                    to.len = m.extent.addr.len;
                    let delta = Delta::Move { file: m.file, from: m.extent, to };
                    to.offset += to.len;
                    delta
                };
                moves.iter().map(offer).collect()
            })
            .await;
        moved.deltas.iter().for_each(|delta| self.model.apply(delta));
        run.server.apply(vec![moved]).await.unwrap();
    }

    /// Evacuates some of the manager's own segments, then deletes all segments that cleaners may
    /// delete.
    async fn reclaim(&mut self, run: &Running) {
        let own: Vec<SegmentId> =
            run.stripe.segments().await.unwrap().into_keys().filter(|s| s.log.raw() == 300).collect();
        let victims = own.into_iter().filter(|_| self.below(3) == 0).collect();
        run.server.evacuate(victims).await.unwrap();
        let covered: BTreeMap<_, _> = run.server.checkpoint().await.unwrap().covered.into_iter().collect();
        let used: BTreeSet<SegmentId> = run.server.usage().await.unwrap().iter().map(|u| u.segment).collect();
        let all = run.stripe.segments().await.unwrap();
        let free =
            all.into_keys().filter(|s| !used.contains(s) && covered.get(&s.log).is_some_and(|&seq| s.seq <= seq));
        run.stripe.delete(free.collect()).await;
    }

    /// Does everything at the same time: deltas, checkpoints, evacuation and its deletions, and
    /// opens of files.
    async fn bustle(&mut self, run: &mut Running) {
        for _ in 0..1 + self.below(4) {
            let deltas = run.client.commit(6 * 40 * BLOCK, |addr| self.client_deltas(addr)).await;
            deltas.deltas.iter().for_each(|delta| self.model.apply(delta));
            self.unsent.push(deltas);
        }
        let segments = std::mem::take(&mut self.unsent);
        let server = run.server.clone();
        let applying = run.machine.run(async move {
            for segment in segments {
                server.apply(vec![segment]).await.unwrap();
            }
        });
        let (server, ids) = (run.server.clone(), self.ids.clone());
        let opening = run.machine.run(async move {
            for _ in 0..2 {
                for &file in &ids {
                    let opened = server.open(CLIENT, file, Mode::Read).await;
                    assert!(matches!(opened, Ok(_) | Err(ManagerError::NotFound)), "{opened:?}");
                }
            }
        });
        self.reclaim(run).await;
        drop(run.server.checkpoint().await.unwrap());
        applying.await.unwrap();
        opening.await.unwrap();
    }

    /// Crashes the machine, at once or in the middle of something, and mounts again.
    async fn crash(&mut self, run: Running) -> Running {
        let Running { machine, server, mut client, .. } = run;
        let mut in_doubt = None;
        if self.below(3) > 0 {
            machine.crash_after(self.below(400));
            if self.below(2) == 0 {
                in_doubt = Some(submit_in_doubt(self, &mut client));
            }
            let (unsent, both) = (std::mem::take(&mut self.unsent), self.below(2) == 0);
            let work = machine.run(async move {
                let applied = server.apply(unsent).await;
                let checkpoint = server.checkpoint().await;
                if both {
                    let _ = server.checkpoint().await;
                }
                (applied, checkpoint)
            });
            if let Ok((applied, _)) = work.await {
                applied.expect("deltas can be applied while the machine is up");
            }
        }
        machine.crash();
        drop(machine);
        self.unsent.clear();
        self.follower = Follower::default();
        // Recovery itself may crash too.
        if self.below(3) == 0 {
            let node = self.setup.sim.machine("node");
            node.crash_after(self.below(80));
            let (stripe, config) = (self.setup.stripe(&node), self.setup.config());
            let host = node.host();
            let opening = node.run(async move { crate::ManagerServer::open(host, stripe, config, 0).await });
            if let Ok(opened) = opening.await {
                opened.expect("opens while all stores are up");
            }
            node.crash();
        }
        let run = self.setup.start().await.expect("opens while all stores are up");
        if let Some(segment) = in_doubt
            && segment.segment.seq < run.client.next_seq
        {
            segment.deltas.iter().for_each(|delta| self.model.apply(delta));
        }
        run
    }

    /// Checks that the manager agrees with the model about every file, and that its counts are
    /// right.
    async fn compare(&mut self, run: &Running) {
        self.send(run).await;
        let mut orphans = Vec::new();
        for (&id, file) in &self.model.0 {
            compare_file(&run.server, id, file).await;
            if file.inode.is_some_and(|inode| inode.nlink == 0) {
                orphans.push(id);
                let back = GiveBack { file: id, number: u64::MAX, keep: None, is_open: true };
                run.server.give_back(CLIENT, back);
                assert!(!run.server.orphans().await.unwrap().contains(&id), "a client has it open");
                run.server.closed(CLIENT, id).await.unwrap();
            }
        }
        assert_eq!(run.server.orphans().await.unwrap(), orphans);
        assert_eq!(run.server.status().file_count, self.model.0.len() as u64);
        let usage = run.server.usage().await.unwrap().into_iter().filter(|u| u.segment.log.raw() != 300);
        assert_eq!(usage.map(|u| (u.segment, u.live_bytes)).collect::<BTreeMap<_, _>>(), self.model.usage());
        let report = run.server.audit().await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        self.follower.compare(run).await;
    }
}

/// The client submits a segment without waiting. Whether it survived the crash shows afterwards.
fn submit_in_doubt(world: &mut World, client: &mut TestWriter) -> SegmentDeltas {
    client.submit(6 * 40 * BLOCK, |addr| world.client_deltas(addr))
}

fn run(seed: u64, steps: u32) -> u64 {
    let mut world = World::new(seed);
    let sim = world.setup.sim.clone();
    sim.block_on(async {
        let mut run = world.setup.start().await.unwrap();
        for _ in 0..steps {
            match world.below(22) {
                0..=9 => world.change(&mut run).await,
                10..=12 => world.clean(&mut run).await,
                13..=15 => drop(run.server.checkpoint().await.unwrap()),
                16 => world.reclaim(&run).await,
                17 => world.compare(&run).await,
                18 => world.bustle(&mut run).await,
                19 => {
                    let is_lost = world.below(3) == 0;
                    world.follower.follow(&run.server, is_lost).await;
                }
                _ => {
                    run = world.crash(run).await;
                    world.compare(&run).await;
                }
            }
        }
        world.compare(&run).await;
    });
    sim.digest()
}

#[test]
fn model_random_deltas_checkpoints_crashes_and_cleaning() {
    for seed in 0..400 {
        println!("seed {seed}");
        run(seed, 60);
    }
}

#[test]
fn sim_same_seed_gives_the_same_run() {
    assert_eq!(run(7, 40), run(7, 40));
}
