//! One request after another, with known answers.

use crate::Delta;
use crate::api::{BlockAt, Manager, ManagerAdmin, ManagerError, SegmentDeltas, TokenUse, TokenWait};
use crate::frontier::{COUNTER_FIRST, RESERVE_RANGE_COUNT};
use crate::testing::{BLOCK, CLIENT_LOG, MANAGER_LOG, Running, Setup, inode};
use crate::token::Mode;
use std::collections::BTreeSet;
use std::sync::Arc;
use stripe::StripeError;
use types::{Answer, BlockAddr, ClientId, Extent, FileId, SegmentId};

const CLIENT: ClientId = ClientId::new(1);

pub(super) fn file(n: u64) -> FileId {
    FileId::in_slot(0, 0, COUNTER_FIRST + n)
}

/// Creates files with one block each, in one segment.
pub(super) async fn create(run: &mut Running, files: impl Iterator<Item = u64>) -> SegmentDeltas {
    let files: Vec<u64> = files.collect();
    let segment = run
        .client
        .commit(files.len() as u32 * BLOCK, |addr| {
            let block = |i: usize| BlockAddr { offset: addr.offset + i as u32 * BLOCK, len: BLOCK, ..addr };
            let deltas = |(i, &n): (usize, &u64)| {
                let extent = Extent { first: 0, count: 1, addr: block(i) };
                [Delta::Inode(inode(file(n), 1, n)), Delta::Blocks { file: file(n), extent }]
            };
            files.iter().enumerate().flat_map(deltas).collect()
        })
        .await;
    run.server.apply(vec![segment.clone()]).await.unwrap();
    segment
}

async fn live_segments(run: &Running) -> BTreeSet<SegmentId> {
    run.server.usage().await.unwrap().into_iter().map(|u| u.segment).collect()
}

/// Deletes the segments that cleaners may delete: covered ones without live bytes.
pub(super) async fn delete_free(run: &Running) -> usize {
    let covered = run.server.checkpoint().await.unwrap().covered;
    let live = live_segments(run).await;
    let all = run.stripe.segments().await.unwrap();
    let is_covered = |s: &SegmentId| covered.iter().any(|&(log, seq)| log == s.log && s.seq <= seq);
    let free: Vec<SegmentId> = all.into_keys().filter(|s| !live.contains(s) && is_covered(s)).collect();
    let count = free.len();
    run.stripe.delete(free).await;
    count
}

#[test]
fn an_empty_manager_knows_no_root_directory() {
    let setup = Setup::new(1);
    setup.sim.block_on(async {
        let run = setup.start().await.unwrap();
        let answer = run.server.open(CLIENT, FileId::ROOT, Mode::Read);
        assert!(matches!(answer, Answer::Now(Err(ManagerError::NotFound))));
        let deltas = Arc::new(vec![Delta::Inode(inode(FileId::ROOT, 2, 1))]);
        let place = run.client.writer.begin();
        run.server.apply(vec![SegmentDeltas { segment: place.id, order: place.order, deltas }]).await.unwrap();
        let opened = run.server.open(CLIENT, FileId::ROOT, Mode::Write).await.unwrap();
        assert_eq!(opened.inode, inode(FileId::ROOT, 2, 1));
        assert_eq!(opened.located.known_until, u64::MAX);
        assert_eq!(run.server.status().token_count, 1);
        run.server.release(CLIENT, FileId::ROOT, opened.grant.number);
        assert_eq!(run.server.status().token_count, 0);
    });
}

#[test]
fn another_clients_token_is_not_given_away() {
    let setup = Setup::new(2);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..1).await;
        let held = run.server.open(CLIENT, file(0), Mode::Write).await.unwrap();
        let other = run.server.open(ClientId::new(2), file(0), Mode::Read);
        let Answer::Later(other) = other else { panic!("a token in conflict was granted") };
        run.server.release(CLIENT, file(0), held.grant.number);
        other.await.unwrap();
    });
}

#[test]
fn regression_requests_for_a_file_are_served_in_the_order_in_which_they_came() {
    let setup = Setup::new(2);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..1).await;
        let held = run.server.open(CLIENT, file(0), Mode::Write).await.unwrap();
        let [first, second] = [2, 3].map(|client| {
            let opened = run.server.open(ClientId::new(client), file(0), Mode::Write);
            opened.into_future()
        });
        run.server.release(CLIENT, file(0), held.grant.number);
        // The tasks that wait for the answers run in another order.
        assert!(matches!(host::first(second, first).await, host::Either::Right(Ok(_))));
    });
}

#[test]
fn who_waits_for_a_file_is_told_in_order_until_it_waits_no_longer() {
    let setup = Setup::new(2);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..1).await;
        let held = run.server.open(CLIENT, file(0), Mode::Write).await.unwrap();
        let wait = |client, mode| TokenWait { client: ClientId::new(client), mode };
        let open = |TokenWait { client, mode }| run.server.open(client, file(0), mode).into_future();
        let first = open(wait(2, Mode::Write));
        let second = open(wait(3, Mode::Read));
        let known = run.server.file_use(file(0)).await.unwrap();
        assert_eq!(known.waiting, [wait(2, Mode::Write), wait(3, Mode::Read)]);
        let token = TokenUse { client: CLIENT, mode: Mode::Write, recalled: Some(Mode::Write) };
        assert_eq!(known.holders, [token]);
        drop(second);
        assert_eq!(run.server.file_use(file(0)).await.unwrap().waiting, [wait(2, Mode::Write)]);
        run.server.release(CLIENT, file(0), held.grant.number);
        first.await.unwrap();
        let known = run.server.file_use(file(0)).await.unwrap();
        let token = TokenUse { client: ClientId::new(2), mode: Mode::Write, recalled: None };
        assert_eq!((known.holders, known.waiting), (vec![token], vec![]));
    });
}

#[test]
fn repeated_segments_are_ignored_and_gaps_refused() {
    let setup = Setup::new(3);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        let first = create(&mut run, 0..1).await;
        let second = run.client.commit(0, |_| vec![Delta::Remove { file: file(0) }]).await;
        let third = run.client.commit(0, |_| vec![]).await;
        let gap = run.server.apply(vec![third.clone()]).await;
        assert!(matches!(gap, Err(ManagerError::BadRequest(_))));
        run.server.apply(vec![second, third]).await.unwrap();
        run.server.apply(vec![first]).await.unwrap();
        assert_eq!(run.server.open(CLIENT, file(0), Mode::Read).await, Err(ManagerError::NotFound));
        assert_eq!(run.server.status().file_count, 0);
        assert_eq!(run.server.applied(CLIENT_LOG), Some(3));
    });
}

#[test]
fn misfit_deltas_are_refused_whole() {
    let setup = Setup::new(4);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        let bad = run
            .client
            .commit(BLOCK, |addr| {
                let extent = Extent { first: 0, count: 3, addr };
                vec![Delta::Inode(inode(file(0), 1, 1)), Delta::Blocks { file: file(0), extent }]
            })
            .await;
        assert_eq!(run.server.apply(vec![bad]).await, Err(ManagerError::BadRequest("misfit blocks")));
        assert_eq!(run.server.status().file_count, 0);
    });
}

#[test]
fn blocks_may_come_before_the_inode_of_their_file() {
    let setup = Setup::new(5);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        let segment = run
            .client
            .commit(BLOCK, |addr| {
                let extent = Extent { first: 7, count: 1, addr };
                vec![Delta::Blocks { file: file(0), extent }, Delta::Inode(inode(file(0), 1, 1))]
            })
            .await;
        run.server.apply(vec![segment]).await.unwrap();
        let located = run.server.locate(CLIENT, file(0), 0).await.unwrap();
        assert_eq!(located.extents.len(), 1);
        assert!(run.server.audit().await.unwrap().is_clean());
    });
}

#[test]
fn numbers_are_never_handed_out_twice_through_crashes() {
    let setup = Setup::new(6);
    setup.sim.block_on(async {
        let mut seen = BTreeSet::new();
        for _ in 0..4 {
            let run = setup.start().await.unwrap();
            for _ in 0..RESERVE_RANGE_COUNT + 3 {
                let range = run.server.allocate(CLIENT, 0).await.unwrap();
                assert!(seen.insert(range.first) && range.first.raw() >= COUNTER_FIRST);
            }
            run.machine.crash();
        }
    });
}

#[test]
fn first_numbers_need_no_wait() {
    let setup = Setup::new(7);
    setup.sim.block_on(async {
        let run = setup.start().await.unwrap();
        assert!(matches!(run.server.allocate(CLIENT, 0), Answer::Now(Ok(_))));
    });
}

#[test]
fn checkpoint_with_nothing_new_writes_nothing() {
    let setup = Setup::new(8);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..5).await;
        let first = run.server.checkpoint().await.unwrap();
        assert!(first.covered.contains(&(CLIENT_LOG, 1)));
        let count = run.server.status().checkpoint_count;
        assert_eq!(run.server.checkpoint().await.unwrap(), first);
        assert_eq!(run.server.status().checkpoint_count, count);
        assert_eq!(run.server.status().dirty_count, 0);
    });
}

#[test]
fn concurrent_checkpoints_share_one() {
    let setup = Setup::new(9);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..5).await;
        let before = run.server.status().checkpoint_count;
        let many = (0..8).map(|_| run.server.checkpoint().into_future()).collect();
        let results = host::join_all(many).await;
        assert!(results.iter().all(|r| r.as_ref().is_ok_and(|c| c.covered.contains(&(CLIENT_LOG, 1)))));
        assert_eq!(run.server.status().checkpoint_count, before + 1);
    });
}

#[test]
fn what_changes_during_a_checkpoint_stays_dirty() {
    let setup = Setup::new(10);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..3).await;
        let server = run.server.clone();
        let writing = run.machine.run(async move { server.checkpoint().await });
        while run.server.core.state.lock().snapshot_count < 2 {
            run.machine.host().clock.sleep(std::time::Duration::from_micros(10)).await;
        }
        let during =
            run.client.submit(0, |_| vec![Delta::Inode(inode(file(1), 1, 99)), Delta::Remove { file: file(2) }]);
        assert!(matches!(run.server.apply(vec![during.clone()]), Answer::Now(Ok(()))));
        let covered = writing.await.unwrap().unwrap().covered;
        assert!(covered.contains(&(CLIENT_LOG, 1)), "the snapshot was taken before");
        assert_eq!(run.server.status().dirty_count, 2);
        run.client.writer.wait_committed(during.segment.seq).await.unwrap();
        run.server.checkpoint().await.unwrap();
        assert_eq!(run.server.status().dirty_count, 0);
        run.machine.crash();
        let run = setup.start().await.unwrap();
        assert_eq!(run.server.open(CLIENT, file(1), Mode::Read).await.unwrap().inode, inode(file(1), 1, 99));
        assert_eq!(run.server.open(CLIENT, file(2), Mode::Read).await, Err(ManagerError::NotFound));
        assert!(run.server.audit().await.unwrap().is_clean());
    });
}

#[test]
fn a_failed_checkpoint_leaves_all_dirty_and_a_later_one_succeeds() {
    let setup = Setup::new(11);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..3).await;
        setup.refuse_puts(true);
        for _ in 0..3 {
            assert_eq!(run.server.checkpoint().await, Err(ManagerError::Log));
            assert_eq!(run.server.status().dirty_count, 3);
        }
        setup.refuse_puts(false);
        let mut tries = 0;
        while run.server.checkpoint().await.is_err() {
            tries += 1;
            assert!(tries < 20, "checkpoints never succeed again");
        }
        assert_eq!(run.server.status().dirty_count, 0);
        assert!(run.server.audit().await.unwrap().is_clean());
        run.machine.crash();
        let run = setup.start().await.unwrap();
        assert_eq!(run.server.status().file_count, 3);
        assert!(run.server.audit().await.unwrap().is_clean());
    });
}

#[test]
fn crash_with_a_gap_before_the_root_falls_back_to_the_checkpoint_before() {
    let mut setup = Setup::new(20);
    setup.lengths.segment_len_max = 8192;
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..20).await;
        run.server.checkpoint().await.unwrap();
        create(&mut run, 20..90).await;
        let root = run.server.core.state.lock().root.as_ref().map(|r| r.record.segment.seq).unwrap();
        setup.refuse_own_segment(Some(root + 1));
        assert_eq!(run.server.checkpoint().await, Err(ManagerError::Log));
        assert!(run.server.core.state.lock().own_tail.len() > 2, "the checkpoint is one segment");
        run.machine.host().clock.sleep(std::time::Duration::from_secs(2)).await;
        run.machine.crash();
        setup.refuse_own_segment(None);
        let run = setup.start().await.unwrap();
        assert_eq!(run.server.status().file_count, 90);
        assert!(run.server.audit().await.unwrap().is_clean());
    });
}

#[test]
fn a_walk_through_many_files_reads_once_for_many() {
    let mut setup = Setup::new(12);
    setup.cached_inodes_max = 1000;
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..512).await;
        run.server.checkpoint().await.unwrap();
        run.machine.crash();
        let run = setup.start().await.unwrap();
        let before = setup.reads();
        for n in 0..512 {
            run.server.open(CLIENT, file(n), Mode::Read).await.unwrap();
        }
        let reads = setup.reads() - before;
        assert!(reads < 20, "{reads} reads for 512 files");
    });
}

#[test]
fn memory_is_bounded_by_eviction() {
    let setup = Setup::new(13);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..1500).await;
        run.server.checkpoint().await.unwrap();
        run.machine.crash();
        let run = setup.start().await.unwrap();
        for n in 0..1500 {
            let located = run.server.open(CLIENT, file(n), Mode::Read).await.unwrap().located;
            assert_eq!(located.extents.len(), 1);
            let cached = run.server.status().cached_count;
            assert!(cached < setup.cached_inodes_max as u64 + 512, "{cached} index nodes in memory");
        }
    });
}

/// Index nodes that many creates had brought into memory stayed there for good.
#[test]
fn regression_a_checkpoint_brings_memory_back_within_its_bound() {
    let setup = Setup::new(15);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        for n in 0..4 {
            create(&mut run, 1500 * n..1500 * (n + 1)).await;
        }
        assert!(run.server.status().cached_count > 5000, "what is dirty must stay");
        run.server.checkpoint().await.unwrap();
        let cached = run.server.status().cached_count;
        assert!(cached <= setup.cached_inodes_max as u64, "{cached} index nodes in memory");
    });
}

#[test]
fn evacuated_segments_become_free_and_nothing_is_lost() {
    let mut setup = Setup::new(14);
    setup.lengths.segment_len_max = 8192;
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..400).await;
        run.server.checkpoint().await.unwrap();
        // Write a second checkpoint that rewrites little, so that the segments of the first one
        // stay in use.
        create(&mut run, 1000..1001).await;
        run.server.checkpoint().await.unwrap();
        delete_free(&run).await;
        let own: Vec<SegmentId> = live_segments(&run).await.into_iter().filter(|s| s.log == MANAGER_LOG).collect();
        assert!(own.len() > 5, "{own:?}");
        run.server.evacuate(own.clone()).await.unwrap();
        run.server.checkpoint().await.unwrap();
        let live = live_segments(&run).await;
        assert!(own.iter().all(|s| !live.contains(s)));
        assert!(delete_free(&run).await >= own.len());
        assert!(run.server.audit().await.unwrap().is_clean());
        run.machine.crash();
        let run = setup.start().await.unwrap();
        for n in (0..400).chain([1000]) {
            assert_eq!(run.server.open(CLIENT, file(n), Mode::Read).await.unwrap().inode, inode(file(n), 1, n));
        }
        assert!(run.server.audit().await.unwrap().is_clean());
    });
}

#[test]
fn a_huge_files_checkpoint_rewrites_only_the_leaf_that_changed() {
    let setup = Setup::new(15);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        let id = file(0);
        // 200 separate blocks in each of 5 leaves.
        let segment = run
            .client
            .commit(1000 * BLOCK, |addr| {
                let block = |i: u32| BlockAddr { offset: addr.offset + i * BLOCK, len: BLOCK, ..addr };
                let extents = (0..1000u32).map(|i| Extent {
                    first: u64::from(i / 200) * 8192 + u64::from(i % 200) * 2,
                    count: 1,
                    addr: block(i),
                });
                let blocks = extents.map(|extent| Delta::Blocks { file: id, extent });
                std::iter::once(Delta::Inode(inode(id, 1, 1))).chain(blocks).collect()
            })
            .await;
        run.server.apply(vec![segment]).await.unwrap();
        run.server.checkpoint().await.unwrap();
        let written = |run: &Running| {
            let core = run.server.core.clone();
            async move {
                let root = core.state.lock().root.as_ref().map(|r| r.record.segment).unwrap();
                let directory =
                    crate::record::RecordDirectory::decode(&core.stripe.deltas(root).await.unwrap()).unwrap();
                let keys = directory.records(root).map(|(key, _)| key);
                keys.filter(|key| matches!(key, crate::record::RecordKey::Leaf(..))).count()
            }
        };
        assert_eq!(written(&run).await, 5);
        let change = run
            .client
            .commit(BLOCK, |addr| vec![Delta::Blocks { file: id, extent: Extent { first: 3 * 8192, count: 1, addr } }])
            .await;
        run.server.apply(vec![change]).await.unwrap();
        run.server.checkpoint().await.unwrap();
        assert_eq!(written(&run).await, 1);
        run.machine.crash();

        let mut run = setup.start().await.unwrap();
        let mut found = Vec::new();
        let mut at = 0;
        while at != u64::MAX {
            let located = run.server.locate(CLIENT, id, at).await.unwrap();
            assert!(located.known_until > at);
            found.extend(located.extents);
            at = located.known_until;
        }
        assert_eq!(found.iter().map(|e| u64::from(e.count)).sum::<u64>(), 1000);
        assert!(run.server.audit().await.unwrap().is_clean());
        // Most of the map is cut off. The rest is short again and has no leaf records.
        let cut = run.client.commit(0, |_| vec![Delta::Unmap { file: id, first: 10, end: u64::MAX }]).await;
        run.server.apply(vec![cut]).await.unwrap();
        run.server.checkpoint().await.unwrap();
        assert_eq!(written(&run).await, 0);
        let report = run.server.audit().await.unwrap();
        assert!(report.is_clean());
        assert_eq!(report.data_bytes, 5 * u64::from(BLOCK));
    });
}

#[test]
fn only_blocks_that_are_where_the_cleaner_found_them_are_live() {
    let setup = Setup::new(16);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        let mut at = None;
        let segment = run
            .client
            .commit(10 * BLOCK - 100, |addr| {
                at = Some(addr);
                let extent = Extent { first: 0, count: 10, addr };
                vec![Delta::Inode(inode(file(0), 1, 1)), Delta::Blocks { file: file(0), extent }]
            })
            .await;
        run.server.apply(vec![segment]).await.unwrap();
        let whole = Extent { first: 0, count: 10, addr: at.unwrap() };
        let overwrite = run
            .client
            .commit(2 * BLOCK, |addr| {
                vec![Delta::Blocks { file: file(0), extent: Extent { first: 4, count: 2, addr } }]
            })
            .await;
        run.server.apply(vec![overwrite]).await.unwrap();
        let found = run.server.live(vec![BlockAt { file: file(0), extent: whole }]).await.unwrap();
        let runs: Vec<(u64, u32)> = found.iter().map(|b| (b.extent.first, b.extent.count)).collect();
        assert_eq!(runs, [(0, 4), (6, 4)]);
        assert_eq!(found[1].extent.addr.len, 4 * BLOCK - 100);
        let nobody = BlockAt { file: file(9), extent: whole };
        assert_eq!(run.server.live(vec![nobody]).await.unwrap(), []);

        let moved =
            run.cleaner.commit(10 * BLOCK - 100, |to| vec![Delta::Move { file: file(0), from: whole, to }]).await;
        run.server.apply(vec![moved]).await.unwrap();
        assert_eq!(run.server.live(vec![BlockAt { file: file(0), extent: whole }]).await.unwrap(), []);
        let live: Vec<(u32, u64)> =
            run.server.usage().await.unwrap().iter().map(|u| (u.segment.log.raw(), u.live_bytes)).collect();
        assert!(live.contains(&(200, u64::from(8 * BLOCK - 100))) && live.contains(&(100, u64::from(2 * BLOCK))));
        assert!(run.server.audit().await.unwrap().is_clean());
    });
}

#[test]
fn orphans_survive_a_crash_and_go_when_removed() {
    let setup = Setup::new(17);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        create(&mut run, 0..3).await;
        let unlink = run.client.commit(0, |_| vec![Delta::Inode(inode(file(1), 0, 5))]).await;
        run.server.apply(vec![unlink]).await.unwrap();
        run.server.checkpoint().await.unwrap();
        run.machine.crash();
        let mut run = setup.start().await.unwrap();
        assert_eq!(run.server.orphans().await.unwrap(), [file(1)]);
        let remove = run.client.commit(0, |_| vec![Delta::Remove { file: file(1) }]).await;
        run.server.apply(vec![remove]).await.unwrap();
        assert_eq!(run.server.orphans().await.unwrap(), []);
        let report = run.server.audit().await.unwrap();
        assert!(report.is_clean() && report.files == 2, "{report:?}");
    });
}

#[test]
fn another_block_size_or_manager_is_refused() {
    let setup = Setup::new(18);
    setup.sim.block_on(async {
        let run = setup.start().await.unwrap();
        run.machine.crash();
        let machine = setup.sim.machine("node");
        let stripe = setup.stripe(&machine);
        let mut config = setup.config();
        config.block_size = 4096;
        let opened = crate::ManagerServer::open(machine.host(), stripe, config, 0).await;
        assert!(matches!(opened.err(), Some(ManagerError::BadRequest(_))));
    });
}

#[test]
fn files_of_other_managers_are_ignored_and_not_served() {
    let setup = Setup::new(19);
    setup.sim.block_on(async {
        let machine = setup.sim.machine("node");
        let stripe = setup.stripe(&machine);
        let mut config = setup.config();
        config.map = crate::ManagerMap { epoch: 4, owners: vec![config.id, types::ManagerId::new(1)] };
        let server = crate::ManagerServer::open(machine.host(), stripe, config, 0).await.unwrap();
        let theirs = FileId::in_slot(0, 1, 5000);
        let segment = SegmentId { log: CLIENT_LOG, epoch: 1, seq: 1 };
        let deltas = Arc::new(vec![Delta::Inode(inode(theirs, 1, 1)), Delta::Inode(inode(file(0), 1, 1))]);
        server.apply(vec![SegmentDeltas { segment, order: 1, deltas }]).await.unwrap();
        assert_eq!(server.status().file_count, 1);
        assert_eq!(server.open(CLIENT, theirs, Mode::Read).await, Err(ManagerError::StaleMap(4)));
        assert_eq!(server.allocate(CLIENT, 0).await.unwrap().first.slot() % 2, 0);
    });
}

/// The newest root could not be read, so an older one was taken. Segments that it needed had been
/// deleted since, and everything behind the first gap was discarded.
#[test]
fn regression_an_unreadable_newest_root_is_not_passed_over() {
    let setup = Setup::new(17);
    setup.sim.block_on(async {
        let mut run = setup.start().await.unwrap();
        let mut count = 0;
        for _ in 0..4 {
            create(&mut run, count..count + 20).await;
            run.server.checkpoint().await.unwrap();
            // Records that were written anew are elsewhere, and their old segments are free.
            create(&mut run, 0..count + 20).await;
            run.server.checkpoint().await.unwrap();
            delete_free(&run).await;
            count += 20;
        }
        let all = run.stripe.segments().await.unwrap().into_keys();
        let newest = all.filter(|s| s.log == MANAGER_LOG).max_by_key(|s| s.seq).unwrap();
        run.machine.crash();

        let before = setup.fragment_count();
        setup.rot([newest]);
        let refused = setup.start().await.err();
        assert_eq!(refused, Some(ManagerError::Stores(StripeError::Damaged(newest))));
        assert_eq!(setup.fragment_count(), before);
        setup.rot([]);
        let run = setup.start().await.unwrap();
        for n in 0..count {
            run.server.open(CLIENT, file(n), Mode::Read).await.unwrap();
        }
    });
}
