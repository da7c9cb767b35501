//! The cost of a checkpoint after one small change, in stores of different sizes.

use crate::Delta;
use crate::api::{Manager, ManagerAdmin, SegmentDeltas};
use crate::record::{RecordDirectory, RecordKey};
use crate::server::ManagerServer;
use crate::testing::{BLOCK, CLIENT_LOG, Setup, inode};
use crate::tests::requests::file;
use crate::token::Mode;
use std::sync::Arc;
use stripe::Stripe;
use types::{BlockAddr, ClientId, Extent, SegmentId};

/// Number of segments whose deltas are applied together.
const BATCH: u64 = 1000;
/// Distance of index numbers in the sparse case.
const SPARSE: u64 = 100_000;

/// Deltas of a made-up client's segment `n`: a file with one block.
fn segment(n: u64, id: u64) -> SegmentDeltas {
    let segment = SegmentId { log: CLIENT_LOG, epoch: 1, seq: n + 1 };
    let extent = Extent { first: 0, count: 1, addr: BlockAddr { segment, offset: 0, len: BLOCK } };
    let deltas = vec![Delta::Inode(inode(file(id), 1, n)), Delta::Blocks { file: file(id), extent }];
    SegmentDeltas { segment, order: segment.seq, deltas: Arc::new(deltas) }
}

/// What a checkpoint wrote since `before`.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    records: u64,
    bytes: u64,
    root_bytes: u64,
}

async fn checkpoint(stripe: &Stripe, server: &ManagerServer) -> Cost {
    let newest = || server.core.state.lock().root.as_ref().map_or(0, |root| root.record.segment.seq);
    let before = newest();
    server.checkpoint().await.unwrap();
    let mut cost = Cost { records: 0, bytes: 0, root_bytes: 0 };
    let tail: Vec<SegmentId> = stripe.segments().await.unwrap().into_keys().collect();
    for segment in tail.into_iter().filter(|s| s.log == server.core.config.log && s.seq > before) {
        let directory = RecordDirectory::decode(&stripe.deltas(segment).await.unwrap()).unwrap();
        for (key, addr) in directory.records(segment) {
            cost.records += 1;
            cost.bytes += u64::from(addr.len);
            cost.root_bytes += if key == RecordKey::Root { u64::from(addr.len) } else { 0 };
        }
    }
    cost
}

/// The cost of a checkpoint after one file has changed, in a store with `count` files. Their index
/// numbers are `apart`, and each has a segment of its own.
fn cost_of_a_small_change(count: u64, apart: u64) -> Cost {
    let setup = Setup::new(count);
    setup.sim.block_on(async {
        let (machine, stripe, server) = setup.start_manager().await.unwrap();
        for from in (0..count).step_by(BATCH as usize) {
            let batch = (from..(from + BATCH).min(count)).map(|n| segment(n, n * apart)).collect();
            server.apply(batch).await.unwrap();
        }
        checkpoint(&stripe, &server).await;
        machine.crash();
        // Start the manager from the stores, so that only needed records are in memory.
        let (_machine, stripe, server) = setup.start_manager().await.unwrap();
        let changed = count / 2 * apart;
        server.apply(vec![segment(count, changed)]).await.unwrap();
        let cost = checkpoint(&stripe, &server).await;
        let opened = server.open(ClientId::new(1), file(changed), Mode::Read).await.unwrap();
        assert_eq!(opened.located.extents[0].addr.segment.seq, count + 1);
        assert!(server.core.state.lock().cached_count() < 500, "index nodes came along");
        cost
    })
}

/// The root grew by 32 bytes for each 256 files and by 24 for each segment, and was written with
/// each checkpoint.
#[test]
fn regression_a_checkpoint_after_a_small_change_costs_the_same_in_a_large_store() {
    for apart in [1, SPARSE] {
        let small = cost_of_a_small_change(1_000, apart);
        println!("files and segments, {apart} apart: 1000: {small:?}");
        for count in [10_000, 100_000] {
            let cost = cost_of_a_small_change(count, apart);
            println!("files and segments, {apart} apart: {count}: {cost:?}");
            assert!(cost.root_bytes < 16 << 10, "{count}: {cost:?}");
            // At most one level more in each of three tables.
            assert!(cost.records <= small.records + 6, "{count}: {cost:?}, {small:?}");
            assert!(cost.bytes < small.bytes + (32 << 10), "{count}: {cost:?}, {small:?}");
        }
    }
}

/// A start looked for the newest checkpoint in a list of all segments of all stores.
#[test]
fn regression_a_start_lists_only_the_end_of_the_log() {
    let listed_at_start = |checkpoints: u64| {
        let setup = Setup::new(checkpoints);
        setup.sim.block_on(async {
            let (machine, _stripe, server) = setup.start_manager().await.unwrap();
            for n in 0..checkpoints {
                server.apply(vec![segment(n, n)]).await.unwrap();
                server.checkpoint().await.unwrap();
            }
            machine.crash();
            let before = setup.listed();
            let (_machine, _stripe, server) = setup.start_manager().await.unwrap();
            assert_eq!(server.status().file_count, checkpoints);
            setup.listed() - before
        })
    };
    let (few, many) = (listed_at_start(100), listed_at_start(2000));
    println!("fragments listed at start: {few} with 100 segments, {many} with 2000");
    assert!(many < 2 * few + 1000, "{few} with 100 segments, {many} with 2000");
}
