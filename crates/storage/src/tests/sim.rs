//! The server on simulated disks: crashes, power losses, failing writes and syncs, full disks, rot.

use super::model::{Model, below, check_opened, identity, live};
use crate::api::{Fence, Seal, Storage, StorageError};
use crate::pages::LANDING_PAGES;
use crate::pages::{PAGE, footprint};
use crate::server::{StoreIdentity, StoreOpenError, StoreServer};
use crate::shared::Growth;
use crate::site::is_empty;
use crate::testing::{fragment, fragment_of, list_fragments, segment};
use host::sim::{Sim, SimDisk};
use host::{Host, SplitMix64};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use striped_log::fragment::Fragment;
use types::{LogId, Maps, StoreId};

const DISK_BYTES: u64 = 64 << 20;
/// Where the first fragment of an empty store goes.
const BEGIN: u64 = LANDING_PAGES as u64 * PAGE as u64;
/// Starts of the store under each seed.
const LIVES: u32 = 12;

/// Perhaps causes a fault after a while.
async fn trouble(host: Host, disk: SimDisk, random: Arc<SplitMix64>) {
    host.clock.sleep(Duration::from_micros(below(&random, 20_000))).await;
    match below(&random, 6) {
        0 | 1 => disk.fail_next_syncs(1 + below(&random, 2) as u32),
        2 => disk.fail_next_writes(1),
        3 => disk.set_capacity(below(&random, 16) << 20),
        _ => {}
    }
}

/// Runs one store through several lives under one seed.
fn lives(seed: u64, count: u32) -> (Model, u64) {
    println!("replay: STORAGE_SEED={seed} cargo test -p storage crash_anything");
    let sim = Sim::new(seed);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    let model: Arc<Mutex<Model>> = Arc::default();
    let random = Arc::new(SplitMix64::new(seed));
    sim.block_on(async {
        let machine = sim.machine("store");
        let created = StoreServer::create(machine.host(), disk.mount(&machine), identity()).await.unwrap();
        drop(created);
        machine.crash();
        for _ in 0..count {
            let machine = sim.machine("store");
            // Opening must work after any crash, so no fault comes before it is done.
            disk.set_capacity(DISK_BYTES);
            let (host, mount) = (machine.host(), disk.mount(&machine));
            let (faulty, shared, random_in) = (disk.clone(), model.clone(), random.clone());
            if below(&random, 2) == 0 {
                machine.crash_after(below(&random, 3000));
            }
            let life = machine.run(async move {
                let server = StoreServer::open(host.clone(), mount).await.unwrap();
                check_opened(&server, &shared).await;
                host.tasks.spawn(Box::pin(trouble(host.clone(), faulty, random_in.clone())));
                let steps = below(&random_in, 60);
                live(server, shared, random_in, steps).await;
            });
            if life.await.is_err() {
                model.lock().crashed_into += 1;
            }
            machine.crash();
            model.lock().crash();
            disk.fail_next_syncs(0);
            disk.fail_next_writes(0);
            if below(&random, 2) == 0 {
                disk.power_loss();
            }
        }
    });
    let digest = sim.digest();
    let model = std::mem::take(&mut *model.lock());
    (model, digest)
}

#[test]
fn crash_anything_acknowledged_survives_and_the_rest_is_whole_or_not_at_all() {
    if let Ok(seed) = std::env::var("STORAGE_SEED") {
        lives(seed.parse().unwrap(), LIVES);
        return;
    }
    let (mut acknowledged, mut full, mut crashed) = (0, 0, 0);
    for seed in 0..16 {
        let (model, _) = lives(seed, LIVES);
        acknowledged += model.acknowledged;
        full += model.full;
        crashed += model.crashed_into;
    }
    assert!(acknowledged > 2000 && full > 20 && crashed > 20, "{acknowledged} {full} {crashed}");
}

#[test]
fn sim_same_seed_gives_the_same_run() {
    assert_eq!(lives(99, 4).1, lives(99, 4).1);
}

#[test]
fn regression_crash_at_any_point_of_creation_leaves_a_folder_to_create_in_or_an_empty_store() {
    let mut crash_count = 0;
    for polls in 0..200 {
        let sim = Sim::new(polls);
        let disk = SimDisk::new(&sim, DISK_BYTES);
        sim.block_on(async {
            let machine = sim.machine("store");
            machine.crash_after(polls);
            let (host, mount) = (machine.host(), disk.mount(&machine));
            let created =
                machine.run(async move { StoreServer::create(host, mount, identity()).await.map(drop) }).await;
            crash_count += u64::from(created.is_err());
            machine.crash();
            if polls % 2 == 0 {
                disk.power_loss();
            }
            let machine = sim.machine("store");
            let (host, mount) = (machine.host(), disk.mount(&machine));
            let server = match is_empty(mount.as_ref()).await.unwrap() {
                true => {
                    assert!(created.is_err(), "a store that was created is gone");
                    StoreServer::create(host, mount.clone(), identity()).await.unwrap()
                }
                false => StoreServer::open(host, mount.clone()).await.unwrap(),
            };
            assert!(!is_empty(mount.as_ref()).await.unwrap());
            server.put(fragment(1, 1, 0, 100)).await.unwrap();
        });
    }
    assert!(crash_count > 0, "nothing crashed");
}

/// Makes a store with some fragments and closes it, so that the disk is ready for another life.
fn closed_store(sim: &Sim, disk: &SimDisk, seqs: std::ops::Range<u64>) {
    sim.block_on(async {
        let machine = sim.machine("store");
        let (host, mount) = (machine.host(), disk.mount(&machine));
        let server = match StoreServer::open(host.clone(), mount.clone()).await {
            Err(StoreOpenError::NotAStore) => StoreServer::create(host, mount, identity()).await.unwrap(),
            other => other.unwrap(),
        };
        for seq in seqs {
            server.put(fragment(1, seq, 0, 100_000)).await.unwrap();
        }
        server.close().await.unwrap();
        machine.crash();
    });
}

fn open(sim: &Sim, disk: &SimDisk) -> Result<Arc<StoreServer>, StoreOpenError> {
    let machine = sim.machine("store");
    sim.block_on(StoreServer::open(machine.host(), disk.mount(&machine)))
}

#[test]
fn rot_in_one_fragment_is_noticed_and_costs_no_other() {
    let (sim, footprint) = (Sim::new(3), 102_400);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..5);
    // Rot in the second chunk of the third fragment.
    let begin = BEGIN + 2 * footprint;
    disk.rot("fragments", begin + 70_000..begin + 80_000, 1);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        for seq in 0..5 {
            let fragment = fragment(1, seq, 0, 100_000);
            let (id, read) = (fragment.header.id, server.read(fragment.header.id, 0, 0..100_000).await);
            if seq == 2 {
                assert_eq!(read, Err(StorageError::Damaged(id)));
                assert_eq!(server.verify(id).await, Err(StorageError::Damaged(id)));
                let intact = server.read(id, 0, 100..60_000).await;
                assert_eq!(intact, Ok(fragment.payload.slice(100..60_000)), "the other chunk still is good");
            } else {
                assert_eq!(read, Ok(fragment.payload));
                assert_eq!(server.verify(id).await, Ok(()));
            }
        }
    });
}

#[test]
fn putting_a_damaged_fragment_again_repairs_it() {
    let sim = Sim::new(3);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..1);
    disk.rot("fragments", BEGIN + 70_000..BEGIN + 80_000, 1);
    let good = fragment(1, 0, 0, 100_000);
    let id = good.header.id;
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        assert_eq!(server.verify(id).await, Err(StorageError::Damaged(id)));
        server.put(good.clone()).await.unwrap();
        assert_eq!(server.verify(id).await, Ok(()));
        let status = server.status().await.unwrap();
        assert_eq!((status.fragment_count, status.used_bytes), (1, 102_400));
        server.close().await.unwrap();
    });
    sim.machine("store").crash();
    disk.power_loss();
    let server = open(&sim, &disk).unwrap();
    assert_eq!(sim.block_on(server.read(id, 0, 0..100_000)), Ok(good.payload));
}

/// The checkpoint still listed the rotten fragment, so its acknowledged replacement was ignored at
/// the next start.
#[test]
fn regression_what_replaced_a_rotten_fragment_is_there_after_a_crash() {
    let sim = Sim::new(2);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..3);
    disk.rot("fragments", BEGIN + 1000..BEGIN + 2000, 1);
    let good = fragment(1, 0, 0, 100_000);
    let id = good.header.id;
    sim.block_on(async {
        let machine = sim.machine("store");
        let server = StoreServer::open(machine.host(), disk.mount(&machine)).await.unwrap();
        assert_eq!(server.verify(id).await, Err(StorageError::Damaged(id)));
        server.put(good.clone()).await.unwrap();
        assert_eq!(server.verify(id).await, Ok(()));
        machine.crash();
    });
    disk.power_loss();
    let server = open(&sim, &disk).unwrap();
    assert_eq!(sim.block_on(server.verify(id)), Ok(()));
    assert_eq!(sim.block_on(server.read(id, 0, 0..100_000)), Ok(good.payload));
}

#[test]
fn rot_in_what_no_checkpoint_lists_costs_that_fragment_only() {
    let (sim, footprint) = (Sim::new(3), 102_400);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        for seq in 0..3 {
            server.put(fragment(1, seq, 0, 100_000)).await.unwrap();
        }
    });
    sim.machine("store").crash();
    disk.rot("fragments", BEGIN + footprint + 1000..BEGIN + footprint + 2000, 1);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        for seq in 0..3 {
            let fragment = fragment(1, seq, 0, 100_000);
            let read = server.read(fragment.header.id, 0, 0..100_000).await;
            let rotten = Err(StorageError::NotFound(fragment.header.id));
            assert_eq!(read, if seq == 1 { rotten } else { Ok(fragment.payload) });
        }
    });
}

#[test]
fn a_rotten_checkpoint_is_reported_and_never_goes_back_in_time() {
    for (range, opens) in [(0..512, true), (4096..4608, true), (8192..8700, false)] {
        let sim = Sim::new(4);
        let disk = SimDisk::new(&sim, DISK_BYTES);
        closed_store(&sim, &disk, 0..5);
        // Rot in both files hits the newest checkpoint in any case.
        disk.rot("checkpoint-a", range.clone(), 1);
        disk.rot("checkpoint-b", range.clone(), 1);
        match open(&sim, &disk) {
            Ok(server) => {
                assert!(opens, "{range:?}");
                assert_eq!(sim.block_on(server.status()).unwrap().fragment_count, 5);
            }
            Err(error) => assert!(!opens && matches!(error, StoreOpenError::Damaged { .. }), "{range:?}: {error}"),
        }
    }
}

#[test]
fn crash_after_a_checkpoint_whose_last_sync_failed_finds_it_or_the_one_before() {
    let mut crash_count = 0;
    for polls in 0..60 {
        let sim = Sim::new(polls);
        let disk = SimDisk::new(&sim, DISK_BYTES);
        closed_store(&sim, &disk, 0..5);
        let seal = |epoch| Seal::new(LogId::new(2), Fence { epoch, through: 0 }, 0);

        // The body is durable. The heads can be read, but are not durable.
        let server = open(&sim, &disk).unwrap();
        let machine = sim.machine("store");
        sim.block_on(async {
            let syncs = disk.counts().syncs;
            let sealing = machine.run(async move { server.seal(seal(1)).await });
            while disk.counts().syncs == syncs {
                machine.host().clock.sleep(Duration::from_micros(1)).await;
            }
            disk.fail_next_syncs(1);
            assert!(matches!(sealing.await, Ok(Err(StorageError::Disk(_)))));
        });
        machine.crash();

        // The next life builds upon it and overwrites the checkpoint before.
        let server = open(&sim, &disk).unwrap();
        assert_eq!(sim.block_on(server.seals()), Ok(vec![seal(1)]), "the heads were to be seen");
        let machine = sim.machine("store");
        machine.crash_after(polls);
        let sealed = sim.block_on(machine.run(async move { server.seal(seal(2)).await }));
        crash_count += u64::from(sealed.is_err());
        machine.crash();
        disk.power_loss();
        let server = open(&sim, &disk).unwrap();
        assert_eq!(sim.block_on(server.status()).unwrap().fragment_count, 5);
        let seals = sim.block_on(server.seals()).unwrap();
        assert!(seals == [seal(2)] || (sealed.is_err() && seals == [seal(1)]), "{seals:?} after {sealed:?}");
    }
    assert!(crash_count > 0, "nothing crashed");
}

/// Both files of checkpoints.
fn checkpoints(sim: &Sim, disk: &SimDisk) -> Vec<u8> {
    sim.block_on(async {
        let folder = disk.mount(&sim.machine("reader"));
        let mut all = Vec::new();
        for name in ["checkpoint-a", "checkpoint-b"] {
            let file = folder.open(name, false).await.unwrap();
            let len = file.len().await.unwrap() as usize;
            let mut bytes = file.read_at(0, len).await.unwrap().to_vec();
            bytes.resize(4 << 20, 0);
            all.extend(bytes);
        }
        all
    })
}

/// A seal wrote all fragments again, a hundred bytes each. With ten million of them, this took
/// longer than callers wait for an answer.
#[test]
fn regression_a_seal_costs_the_same_in_a_large_store() {
    let written = [10, 2_000].map(|count| {
        let sim = Sim::new(6);
        let disk = SimDisk::new(&sim, DISK_BYTES);
        closed_store(&sim, &disk, 0..1);
        let headers = (1..=count).map(|seq| fragment(2, seq, 0, 100).header);
        sim.block_on(list_fragments(disk.mount(&sim.machine("maker")).as_ref(), headers)).unwrap();
        let server = open(&sim, &disk).unwrap();
        let before = checkpoints(&sim, &disk);
        sim.block_on(server.seal(Seal::new(LogId::new(7), Fence { epoch: 1, through: 0 }, 0))).unwrap();
        let changed = before.iter().zip(checkpoints(&sim, &disk)).filter(|(before, after)| *before != after).count();
        drop(server);
        assert_eq!(sim.block_on(open(&sim, &disk).unwrap().status()).unwrap().fragment_count, count + 1);
        changed
    });
    assert!(written[0] > 0 && written[1] < 2 * written[0], "{written:?} bytes");
}

/// Fragments behind a rotten header that no checkpoint lists counted as never written, and the
/// store counted as complete.
#[test]
fn regression_a_store_whose_newest_headers_have_rotted_says_so_until_the_next_epoch() {
    let sim = Sim::new(3);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    let log = LogId::new(1);
    let first = Seal::new(log, Fence { epoch: 1, through: 100 }, 5);
    closed_store(&sim, &disk, 0..1);
    sim.block_on(async {
        let machine = sim.machine("store");
        let server = StoreServer::open(machine.host(), disk.mount(&machine)).await.unwrap();
        server.seal(first.clone()).await.unwrap();
        for seq in 1..5 {
            server.put(fragment(1, seq, 0, 100)).await.unwrap();
        }
        machine.crash();
    });
    let has_lost = |server: &StoreServer| sim.block_on(server.seals()).unwrap()[0].has_lost;
    let whole = disk.snapshot();
    assert!(!has_lost(&open(&sim, &disk).unwrap()));
    disk.restore(&whole);
    // Four fragments of a page each come after the one that a checkpoint lists.
    let second = BEGIN + u64::from(footprint(100_000) + PAGE);
    disk.rot("fragments", second..second + 20, 1);
    for closes in [false, true, true] {
        let machine = sim.machine("store");
        let server = sim.block_on(StoreServer::open(machine.host(), disk.mount(&machine))).unwrap();
        assert!(has_lost(&server), "also when it has written a checkpoint since");
        if closes {
            sim.block_on(server.close()).unwrap();
        }
        machine.crash();
    }
    let server = open(&sim, &disk).unwrap();
    let next = first.next(Fence { epoch: 2, through: 100 }, None, 6);
    assert_eq!(sim.block_on(server.seal(next.clone())), Ok(next));
    assert!(!has_lost(&server));
}

#[test]
fn what_a_checkpoint_for_which_there_was_no_room_did_not_record_is_in_the_next() {
    let sim = Sim::new(7);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..1);
    sim.block_on(async {
        let machine = sim.machine("store");
        let server = StoreServer::open(machine.host(), disk.mount(&machine)).await.unwrap();
        for seq in 1..5 {
            server.put(fragment(1, seq, 0, 100)).await.unwrap();
        }
        let maps = |epoch, len: usize| Maps { epoch, bytes: vec![1; len].into() };
        disk.set_capacity(0);
        assert_eq!(server.put_maps(maps(1, 3 << 20)).await, Err(StorageError::Full));
        disk.set_capacity(DISK_BYTES);
        server.put_maps(maps(2, 10)).await.unwrap();
        machine.crash();
    });
    disk.power_loss();
    assert_eq!(sim.block_on(open(&sim, &disk).unwrap().status()).unwrap().fragment_count, 5);
}

#[test]
fn checkpoints_of_different_stores_do_not_mix() {
    let sim = Sim::new(5);
    let (disk, other) = (SimDisk::new(&sim, DISK_BYTES), SimDisk::new(&sim, DISK_BYTES));
    closed_store(&sim, &disk, 0..2);
    sim.block_on(async {
        let machine = sim.machine("store");
        let identity = StoreIdentity { store: StoreId::new(9), ..identity() };
        StoreServer::create(machine.host(), other.mount(&machine), identity).await.unwrap().close().await.unwrap();
        let (from, to) = (other.mount(&machine), disk.mount(&machine));
        let (from, to) =
            (from.open("checkpoint-a", false).await.unwrap(), to.open("checkpoint-b", false).await.unwrap());
        let bytes = from.read_at(0, from.len().await.unwrap() as usize).await.unwrap();
        to.write_and_sync(vec![(0, vec![bytes])]).await.unwrap();
        machine.crash();
    });
    assert!(matches!(open(&sim, &disk), Err(StoreOpenError::Foreign)));
}

#[test]
fn a_failed_sync_stops_changes_but_not_reads_until_reopened() {
    let sim = Sim::new(6);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..2);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        server.put(fragment(1, 2, 0, 10)).await.unwrap();
        disk.fail_next_syncs(1);
        assert!(matches!(server.put(fragment(1, 3, 0, 10)).await, Err(StorageError::Disk(_))));
        assert_eq!(server.put(fragment(1, 4, 0, 10)).await, Err(StorageError::Unavailable));
        let seal = Seal::new(LogId::new(1), Fence { epoch: 1, through: 0 }, 0);
        assert_eq!(server.seal(seal).await, Err(StorageError::Unavailable));
        assert_eq!(server.seals().await, Ok(vec![]), "a refused seal is not in force");
        assert!(!server.status().await.unwrap().writable);
        let fragment = fragment(1, 1, 0, 100_000);
        assert_eq!(server.read(fragment.header.id, 0, 0..100_000).await, Ok(fragment.payload));
    });
    sim.machine("store").crash();
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        server.put(fragment(1, 4, 0, 10)).await.unwrap();
    });
}

/// Its status said that it takes puts. So each process that put found out by itself, after as long
/// as it waits for a put, and one that waited for the others' puts waited for all these times.
#[test]
fn regression_a_store_whose_disk_hangs_takes_no_puts_until_it_goes_on() {
    let sim = Sim::new(6);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..2);
    let server = open(&sim, &disk).unwrap();
    let writable = || sim.block_on(async { server.status().await.unwrap().writable });
    // The first put makes room with a checkpoint, which may take longer.
    sim.block_on(server.put(fragment(1, 5, 0, 10))).unwrap();
    disk.hang(true);
    let (waits, answer) = (server.put(fragment(1, 2, 0, 10)), Arc::new(Mutex::new(None)));
    let there = answer.clone();
    sim.machine("client").host().tasks.spawn(Box::pin(async move { *there.lock() = Some(waits.await) }));
    sim.run_for(Duration::from_secs(2));
    assert!(writable(), "it may just be slow");
    sim.run_for(Duration::from_secs(1));
    assert!(!writable());
    assert_eq!(sim.block_on(server.put(fragment(1, 3, 0, 10))), Err(StorageError::Unavailable));
    assert_eq!(sim.block_on(server.put(fragment(1, 1, 0, 100_000))), Ok(()), "it has that one");
    // What can wait does so: a store that is filled anew is not given up.
    let behind = server.put_behind(fragment(1, 4, 0, 10));
    disk.hang(false);
    assert_eq!(sim.block_on(behind), Ok(()));
    sim.run_for(Duration::from_secs(1));
    assert!(writable());
    assert_eq!(*answer.lock(), Some(Ok(())));
    sim.block_on(async {
        server.put(fragment(1, 3, 0, 10)).await.unwrap();
    });
    // A store that has nothing to do does not hang.
    sim.run_for(Duration::from_secs(60));
    assert!(writable());
    let seal = Seal::new(LogId::new(1), Fence { epoch: 1, through: 0 }, 0);
    assert!(sim.block_on(server.seal(seal)).is_ok());
}

/// Their room was free when the write began. That woke a put which waits for room. It may run on
/// the thread that was about to wait for the disk, and stayed there as long as the disk hung.
#[test]
fn regression_a_put_has_its_room_until_it_is_written() {
    let sim = Sim::new(8);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    let free = || server.shared.room.available_permits();
    sim.block_on(server.put(fragment(1, 1, 0, 10))).unwrap();
    let all = free();
    disk.hang(true);
    let put = sim.machine("client").run(server.put_behind(fragment(1, 2, 0, 1 << 20)));
    sim.run_for(Duration::from_secs(1));
    assert!(all - free() >= (1 << 20) / 4096, "{} of {all}", free());
    disk.hang(false);
    assert_eq!(sim.block_on(put), Ok(Ok(())));
    assert_eq!(free(), all);
}

#[test]
fn a_small_put_costs_one_write_and_one_sync_and_those_that_wait_share_it() {
    let sim = Sim::new(7);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        server.put(fragment(1, 0, 0, 100)).await.unwrap();
        let before = disk.counts();
        server.put(fragment(1, 1, 0, 100)).await.unwrap();
        let after = disk.counts();
        assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (1, 1));
        let many = (2..52).map(|seq| server.put(fragment(1, seq, 0, 100))).collect();
        host::join_all(many).await.into_iter().collect::<Result<(), _>>().unwrap();
        // All puts queue up before the loop runs again, and are adjacent on the disk.
        assert_eq!((disk.counts().writes - after.writes, disk.counts().syncs - after.syncs), (1, 1));
    });
}

/// What can wait leaves a store alone that programs use, and has all of it otherwise.
#[test]
fn what_can_wait_rests_while_programs_use_the_store_and_not_because_of_itself() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    let puts = |log: u32, is_program: bool| {
        let server = server.clone();
        async move {
            let mut rest = Duration::ZERO;
            for seq in 1..100 {
                let one = fragment(log, seq, 0, 10_000);
                let (id, attempt) = (one.header.id, one.header.attempt);
                let put = if is_program { server.put(one) } else { server.put_behind(one) };
                put.await.unwrap();
                let read = match is_program {
                    true => server.read(id, attempt, 0..10_000),
                    false => server.read_behind(id, attempt, 0..10_000),
                };
                read.await.unwrap();
                rest = rest.max(server.rest().await.unwrap());
            }
            rest
        }
    };
    assert_eq!(sim.block_on(puts(1, false)), Duration::ZERO);
    let seen = sim.block_on(async { host::join_all(vec![puts(2, true), puts(3, false)]).await });
    assert!(seen[1] > Duration::from_millis(50), "{seen:?}");
    sim.run_for(Duration::from_secs(5));
    assert_eq!(sim.block_on(puts(4, false)), Duration::ZERO);
}

#[test]
fn fragments_are_moved_together_when_no_gap_is_long_enough() {
    let sim = Sim::new(8);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    let half = footprint(1 << 20) / 2 - 8192;
    let usable = sim.block_on(server.status()).unwrap().capacity_bytes / u64::from(footprint(half)) / 2;
    sim.block_on(async {
        for seq in 0..2 * usable {
            server.put(fragment(1, seq, 0, half)).await.unwrap();
        }
        let full = fragment(1, 1000, 0, 1 << 20);
        assert_eq!(server.put(full.clone()).await, Err(StorageError::Full));
        // Every other fragment is deleted: half of the store is free, but no gap holds a full
        // fragment.
        let odd = (0..usable).map(|i| fragment(1, 2 * i + 1, 0, 0).header.id.segment).collect();
        server.delete(odd).await.unwrap();
        for i in 0..usable / 2 - 1 {
            server.put(fragment(1, 1000 + i, 0, 1 << 20)).await.unwrap();
        }
        for i in 0..usable {
            let kept = fragment(1, 2 * i, 0, half);
            assert_eq!(server.read(kept.header.id, 0, 0..half).await, Ok(kept.payload));
        }
    });
    sim.machine("store").crash();
    disk.power_loss();
    let server = open(&sim, &disk).unwrap();
    assert_eq!(sim.block_on(server.status()).unwrap().fragment_count, usable + usable / 2 - 1);
}

/// A place where a fragment had rotted blocked later fragments there too: none could be moved, and
/// a store with enough free space stayed full.
#[test]
fn regression_what_replaces_a_rotten_fragment_can_be_moved() {
    let sim = Sim::new(10);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    let len = footprint(1 << 20) / 2 - 8192;
    let count = sim.block_on(server.status()).unwrap().capacity_bytes / u64::from(footprint(len));
    sim.block_on(async {
        for (log, is_rotten) in [(1, true), (2, false)] {
            for seq in 0..count {
                server.put(fragment(log, seq, 0, len)).await.unwrap();
            }
            let odd = (0..count / 2).map(|i| fragment(log, 2 * i + 1, 0, 0).header.id.segment).collect();
            server.delete(odd).await.unwrap();
            let full = server.put(fragment(log, 1000, 0, 1 << 20));
            if is_rotten {
                for i in 0..count {
                    let begin = BEGIN + i * u64::from(footprint(len)) + 1000;
                    disk.rot("fragments", begin..begin + 100, 1);
                }
                assert_eq!(full.await, Err(StorageError::Full));
                server
                    .delete((0..count).map(|seq| fragment(log, seq, 0, 0).header.id.segment).collect())
                    .await
                    .unwrap();
            } else {
                assert_eq!(full.await, Ok(()));
            }
        }
    });
}

/// All space that a store reports as free can be used, with fragments of all lengths, deleted in
/// any order.
#[test]
fn a_store_is_full_only_when_its_status_says_so() {
    let (mut refused, mut moved) = (0, 0);
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, DISK_BYTES);
        closed_store(&sim, &disk, 0..0);
        let server = open(&sim, &disk).unwrap();
        let random = SplitMix64::new(seed);
        let mut held: Vec<Fragment> = Vec::new();
        sim.block_on(async {
            for seq in 0..400 {
                let len = match below(&random, 4) {
                    0 => 1 << 20,
                    1 => 768 << 10,
                    _ => below(&random, 200_000) as u32,
                };
                let put = fragment(1, seq, 0, len);
                let before = disk.counts().writes;
                let result = server.put(put.clone()).await;
                moved += u64::from(disk.counts().writes > before + 4);
                let status = server.status().await.unwrap();
                match result {
                    Ok(()) => held.push(put),
                    Err(StorageError::Full) => {
                        refused += 1;
                        let free = status.capacity_bytes - status.used_bytes;
                        assert!(free < footprint(len).into(), "seed {seed}: {free} free, {len} refused");
                    }
                    Err(other) => panic!("seed {seed}: {other}"),
                }
                assert!(status.used_bytes <= status.capacity_bytes);
                while result == Err(StorageError::Full) && held.len() > 1 && below(&random, 8) > 0 {
                    let gone = held.swap_remove(below(&random, held.len() as u64) as usize);
                    server.delete(vec![gone.header.id.segment]).await.unwrap();
                }
            }
            for kept in &held {
                let range = 0..kept.header.len;
                assert_eq!(server.read(kept.header.id, 0, range).await.as_ref(), Ok(&kept.payload));
            }
        });
    }
    assert!(refused > 100 && moved > 100, "{refused} {moved}");
}

/// Free pages have bytes that users once wrote, and recovery may begin to read at any page. Bytes
/// that look like a fragment must not become one.
#[test]
fn what_users_write_is_never_taken_for_a_fragment() {
    (0..8).for_each(forge);
}

/// Forges fragments as a user could who knows everything but the checkpoint's random number. The
/// user guesses the number: that of the page, plus `guess`.
fn forge(guess: u64) {
    let sim = Sim::new(9);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    let forged = fragment(9, 9, 0, 100);
    // The forged headers are in a fragment's payload, one in each page from the second page on.
    let mut image = vec![0; 4096 - 512];
    for page in 1..256 {
        let begin = image.len();
        image.extend_from_slice(&forged.header.encode_with_generation(page + guess));
        image.extend_from_slice(&forged.payload);
        image.resize(begin + 4096, 0);
    }
    let mut carrier = fragment(1, 0, 0, image.len() as u32);
    carrier.header.chunk_crcs = striped_log::fragment::chunk_crcs(&image);
    carrier.payload = image.into();
    sim.block_on(async {
        server.put(carrier.clone()).await.unwrap();
        server.delete(vec![carrier.header.id.segment]).await.unwrap();
        for seq in 1..100 {
            // Each change of maps writes a checkpoint, which reserves the pages that follow.
            server.put_maps(Maps { epoch: seq, bytes: Default::default() }).await.unwrap();
            server.put(fragment(1, seq, 0, 100)).await.unwrap();
        }
    });
    sim.machine("store").crash();
    disk.power_loss();
    let server = open(&sim, &disk).unwrap();
    let held = sim.block_on(server.segments()).unwrap();
    assert!(held.iter().all(|(segment, _)| *segment != forged.header.id.segment), "{held:?}");
    assert_eq!(held.len(), 99);
}

#[test]
fn status_asks_the_disk_for_its_space() {
    let sim = Sim::new(11);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(server.put(fragment(1, 1, 0, 100))).unwrap();
    let clock = sim.machine("store").host().clock;
    let status = || sim.block_on(host::timeout(&*clock, Duration::from_secs(60), server.status()));
    assert!(matches!(status(), Ok(Ok(_))));
    disk.hang(true);
    assert!(matches!(status(), Ok(Ok(_))), "the kernel knows it");
    disk.hang(false);
    disk.offline(true);
    assert!(matches!(status(), Ok(Err(StorageError::Disk(_)))));
    disk.offline(false);
    assert!(matches!(status(), Ok(Ok(_))));
}

#[test]
fn what_a_disk_refuses_is_not_free_until_there_is_more_of_it() {
    let mut growth = Growth::Possible;
    assert_eq!(growth.free_bytes(100), 100);
    growth = Growth::Refused;
    assert_eq!([100, 90, 100].map(|said| growth.free_bytes(said)), [0, 0, 0]);
    assert_eq!([101, 50].map(|said| growth.free_bytes(said)), [101, 50]);
}

/// A crash in the middle of a compaction leaves fragments at their new places. The next compaction
/// must not count these places as free.
#[test]
fn regression_a_crash_while_fragments_are_moved_costs_none() {
    let (mut crashes, mut refused) = (0, 0);
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, DISK_BYTES);
        closed_store(&sim, &disk, 0..0);
        let random = Arc::new(SplitMix64::new(seed));
        let held: Arc<Mutex<BTreeMap<u64, Fragment>>> = Arc::default();
        let full: Arc<Mutex<u64>> = Arc::default();
        for life in 0..8 {
            let server = open(&sim, &disk).unwrap();
            sim.block_on(async {
                let all = held.lock().clone();
                for (seq, kept) in &all {
                    let read = server.read(kept.header.id, 0, 0..kept.header.len).await;
                    assert_eq!(read.as_ref(), Ok(&kept.payload), "seed {seed}, life {life}, seq {seq}");
                }
            });
            let machine = sim.machine("store");
            let (random, held, full) = (random.clone(), held.clone(), full.clone());
            let dying = machine.clone();
            let lived = machine.run(async move {
                for seq in 1000 * life..1000 * life + 60 {
                    let len = match below(&random, 3) {
                        0 => 1 << 20,
                        1 => 500_000 + below(&random, 400_000) as u32,
                        _ => below(&random, 300_000) as u32,
                    };
                    let put = fragment(1, seq, 0, len);
                    match server.put(put.clone()).await {
                        Ok(()) => drop(held.lock().insert(seq, put)),
                        Err(error) => {
                            assert_eq!(error, StorageError::Full);
                            *full.lock() += 1;
                            let mut gone = Vec::new();
                            held.lock().retain(|_, kept| {
                                let stays = below(&random, 3) > 0;
                                if !stays {
                                    gone.push(kept.header.id.segment);
                                }
                                stays
                            });
                            server.delete(gone).await.unwrap();
                            // A put that fits now does so because others have moved.
                            if below(&random, 3) == 0 {
                                dying.crash_after(below(&random, 200));
                            }
                        }
                    }
                }
            });
            crashes += u64::from(sim.block_on(lived).is_err());
            sim.machine("store").crash();
            disk.power_loss();
        }
        refused += *full.lock();
    }
    assert!(crashes > 100 && refused > 100, "{crashes} {refused}");
}

/// A store that knew only the newest seal took segments of epoch 1 up to where epoch 3 began.
#[test]
fn regression_a_store_holds_each_epoch_to_the_first_fence_against_it() {
    let sim = Sim::new(12);
    let disk = SimDisk::new(&sim, DISK_BYTES);
    closed_store(&sim, &disk, 0..0);
    let fence = |epoch, through| Fence { epoch, through };
    let first = Seal::new(LogId::new(1), fence(2, 10), 5);
    let second = first.next(fence(3, 20), Some(11), 6);
    let rival = first.next(fence(3, 20), Some(11), 7);
    let server = open(&sim, &disk).unwrap();
    sim.block_on(async {
        assert_eq!(server.seal(first.clone()).await, Ok(first.clone()));
        assert_eq!(server.seal(second.clone()).await, Ok(second.clone()));
        assert_eq!(server.seal(rival).await, Ok(second.clone()), "one seal of an epoch");
    });
    let put = |server: &Arc<StoreServer>, epoch, seq| {
        let id = segment(1, epoch, seq);
        sim.block_on(server.put(fragment_of(id, 0, 0, 100)))
    };
    let sealed = Err(StorageError::Sealed(LogId::new(1)));
    assert_eq!([put(&server, 1, 11), put(&server, 2, 21)], [sealed.clone(), sealed.clone()]);
    sim.machine("store").crash();
    disk.power_loss();
    let server = open(&sim, &disk).unwrap();
    assert_eq!([put(&server, 1, 11), put(&server, 1, 20)], [sealed.clone(), sealed.clone()]);
    assert_eq!([put(&server, 1, 10), put(&server, 2, 20), put(&server, 3, 21)], [Ok(()), Ok(()), Ok(())]);
}
