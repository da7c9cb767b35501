//! The behaviour that docs/semantics.md promises, on the whole core over simulated disks: the same
//! checks that the model, `MemFs`, passes.

use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::Disk;
use host::sim::{Sim, SimDisk};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const STORE_BYTES: u64 = 512 << 20;

fn run_all(block_size: u32, parity: u8) {
    let mut failed = Vec::new();
    for (number, (name, check)) in vfs::suite::all().into_iter().enumerate() {
        let passed = catch_unwind(AssertUnwindSafe(|| {
            let sim = Sim::new(number as u64);
            let machine = sim.machine("one");
            let host = machine.host();
            let places: Vec<StorePlace> =
                (0..5).map(|_| SimDisk::new(&sim, STORE_BYTES).mount(&machine).into()).collect();
            let consensus: Arc<dyn Disk> = SimDisk::new(&sim, STORE_BYTES).mount(&machine);
            let run = async move {
                let how = Create { parity, block_size, manager_count: 2, store_capacity_bytes: Some(STORE_BYTES / 2) };
                create(&host, &places, &consensus, how).await.expect("create");
                let how = Run {
                    cache_bytes: 16 << 20,
                    root_mode: 0o755,
                    root_uid: 0,
                    root_gid: 0,
                    index_range_len: INDEX_RANGE_LEN,
                    manager_lengths: Lengths::LARGEST,
                    accepts_loss: false,
                    claim: cluster::Claim::NONE,
                };
                let machine = CoreMachine::start(host, &places, &consensus, how).await.expect("start");
                check(Arc::new(machine.client.clone())).await;
                machine.stop().await.expect("stop");
                let machine = CoreMachine::start(machine.host(), &places, &consensus, how).await.expect("start again");
                let report = cluster::check::check(&machine, |_| {}).await.expect("check");
                assert_eq!(report.problems, Vec::<String>::new());
            };
            sim.block_on(run);
        }));
        if passed.is_err() {
            failed.push(name);
        }
    }
    assert_eq!(failed, Vec::<&str>::new(), "with blocks of {block_size} and parity {parity}");
}

#[test]
fn model_the_core_behaves_as_documented_with_large_blocks() {
    run_all(64 * 1024, 1);
}

#[test]
fn model_the_core_behaves_as_documented_with_small_blocks_and_two_parities() {
    run_all(4 * 1024, 2);
}
