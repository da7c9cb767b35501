use super::*;
use host::SplitMix64;
use host::sim::{Machine, Sim, SimDisk};
use std::time::Duration;

const OWNER: [u8; 4] = *b"test";

type Numbers = Arc<Mutex<Vec<u64>>>;

/// An owner whose state is a list of numbers. Each number is a record.
#[derive(Clone)]
struct Owner {
    numbers: Numbers,
    log: RecordLog,
    /// How many were acknowledged.
    acknowledged: Arc<Mutex<u64>>,
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

async fn start(machine: Machine, disk: Arc<dyn Disk>) -> Result<Owner, LogOpenError> {
    let found = open(disk.as_ref(), "log", OWNER).await?;
    go_on(machine, found).await
}

async fn start_patiently(machine: Machine, disk: Arc<dyn Disk>) -> Result<Owner, LogOpenError> {
    let found = open(disk.as_ref(), "log", OWNER).await?;
    go_on(machine, found.patiently()).await
}

async fn go_on(machine: Machine, found: FoundLog) -> Result<Owner, LogOpenError> {
    let snapshot = found.snapshot.clone().unwrap_or_default();
    let numbers: Vec<u64> =
        snapshot.chunks_exact(8).skip(1).chain(found.records.iter().map(|r| &r[..])).map(number).collect();
    let numbers = Arc::new(Mutex::new(numbers));
    let state = numbers.clone();
    let source: Source = Arc::new(move |cut| {
        let numbers = state.lock();
        cut();
        // The count comes first, so that no state is a prefix of another.
        [numbers.len() as u64].iter().chain(numbers.iter()).flat_map(|n| n.to_le_bytes()).collect()
    });
    let host = machine.host();
    let log = found.start(&host, &host.tasks, source).await.map_err(|e| LogOpenError::Disk(io::Error::other(e)))?;
    Ok(Owner { numbers, log, acknowledged: Arc::default() })
}

impl Owner {
    /// Adds the next number, in a record of `len` bytes.
    fn add(&self, len: usize) -> (u64, BoxFuture<Result<(), AppendError>>) {
        let mut numbers = self.numbers.lock();
        let next = numbers.len() as u64;
        numbers.push(next);
        let record = [&next.to_le_bytes()[..], &vec![7; len]].concat();
        (next, self.log.append(record.into()))
    }

    async fn add_and_wait(&self, len: usize) -> Result<(), AppendError> {
        let (number, durable) = self.add(len);
        durable.await?;
        let mut acknowledged = self.acknowledged.lock();
        *acknowledged = (*acknowledged).max(number + 1);
        Ok(())
    }
}

/// Adds numbers from several tasks until the machine crashes; returns how many were acknowledged.
fn run(sim: &Sim, disk: &SimDisk, random: &SplitMix64, len: usize, time: Duration) -> (u64, u64) {
    let machine = sim.machine("node");
    let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
    let before = owner.numbers.lock().len() as u64;
    *owner.acknowledged.lock() = before;
    assert!(owner.numbers.lock().iter().copied().eq(0..before), "all that are there are there in order");
    for _ in 0..1 + random.below(4) {
        let owner = owner.clone();
        machine.host().tasks.spawn(Box::pin(async move { while owner.add_and_wait(len).await.is_ok() {} }));
    }
    sim.run_for(time);
    let acknowledged = *owner.acknowledged.lock();
    machine.crash();
    (before, acknowledged)
}

#[test]
fn sim_no_record_that_was_durable_is_lost_in_crashes_and_power_losses() {
    let (mut snapshots, mut total) = (0, 0);
    for seed in 0..150 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        let random = SplitMix64::new(seed);
        // Long records fill the log soon.
        let len = if random.chance(1, 2) { 100 } else { 300_000 };
        let mut acknowledged = 0;
        for _ in 0..5 {
            let time = Duration::from_micros(random.below(20_000));
            let (found, now) = run(&sim, &disk, &random, len, time);
            assert!(found >= acknowledged, "seed {seed}: {found} of {acknowledged}");
            acknowledged = now;
            if random.chance(2, 3) {
                disk.power_loss();
            }
        }
        snapshots += u64::from(len > 100_000 && acknowledged > 14);
        total += acknowledged;
    }
    assert!(snapshots > 20 && total > 1000, "{snapshots}, {total}");
}

#[test]
fn sim_a_disk_that_fails_ends_the_log_and_what_was_durable_is_there() {
    for seed in 0..60 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        let random = SplitMix64::new(seed);
        let (_, acknowledged) = run(&sim, &disk, &random, 1000, Duration::from_millis(5));
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        match seed % 3 {
            0 => disk.fail_next_writes(1),
            1 => disk.fail_next_syncs(1),
            _ => disk.set_capacity(0),
        }
        let mut error = None;
        for _ in 0..10_000 {
            if let Err(e) = sim.block_on(owner.add_and_wait(1000)) {
                error = Some(e);
                break;
            }
        }
        match (seed % 3, error) {
            (0 | 1, Some(AppendError::Disk(_))) | (2, Some(AppendError::Full)) => {}
            (_, other) => panic!("seed {seed}: {other:?}"),
        }
        assert_eq!(sim.block_on(owner.add(1).1), Err(AppendError::Closed));
        let last = *owner.acknowledged.lock();
        machine.crash();
        disk.set_capacity(1 << 30);
        disk.power_loss();
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        let found = owner.numbers.lock().len() as u64;
        assert!(found >= last.max(acknowledged), "seed {seed}: {found} of {last}");
    }
}

#[test]
fn sim_a_patient_log_has_room_for_more_on_a_full_disk_and_waits_when_there_is_none() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        let machine = sim.machine("node");
        let owner = sim.block_on(start_patiently(machine.clone(), disk.mount(&machine))).expect("open");
        sim.block_on(owner.add_and_wait(10)).expect("added");
        assert_eq!(owner.log.room(), None);
        disk.set_capacity(0);
        let working = owner.clone();
        machine.host().tasks.spawn(Box::pin(async move { while working.add_and_wait(10_000).await.is_ok() {} }));
        sim.run_for(Duration::from_secs(60));
        let acknowledged = *owner.acknowledged.lock();
        assert!(acknowledged * 10_000 >= RESERVE_LEN - ALLOCATION_STEP, "{acknowledged} found room");
        assert!(owner.log.room().is_some_and(|room| room < 20_000) && !owner.log.is_closed());
        match seed % 2 {
            0 => {
                // With room again, the log goes on.
                disk.set_capacity(1 << 30);
                sim.run_for(Duration::from_secs(10));
                assert!(*owner.acknowledged.lock() > 2 * acknowledged);
                assert_eq!(owner.log.room(), None);
            }
            _ => {
                // The caller of `close` learns that records were not written.
                assert_eq!(sim.block_on(owner.log.close()), Err(AppendError::Full));
                assert_eq!(sim.block_on(owner.add(1).1), Err(AppendError::Closed));
            }
        }
        let acknowledged = *owner.acknowledged.lock();
        machine.crash();
        disk.set_capacity(1 << 30);
        disk.power_loss();
        let machine = sim.machine("node");
        let owner = sim.block_on(start_patiently(machine.clone(), disk.mount(&machine))).expect("open");
        let found = owner.numbers.lock().clone();
        assert!(found.len() as u64 >= acknowledged && found.iter().copied().eq(0..found.len() as u64), "seed {seed}");
    }
}

#[test]
fn a_patient_log_without_room_for_a_snapshot_ends_all_the_same_when_all_is_written() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let machine = sim.machine("node");
    let owner = sim.block_on(start_patiently(machine.clone(), disk.mount(&machine))).expect("open");
    for _ in 0..1000 {
        sim.block_on(owner.add_and_wait(1000)).expect("added");
    }
    disk.set_capacity(0);
    assert_eq!(sim.block_on(owner.log.close()), Ok(()));
    machine.crash();
    let machine = sim.machine("node");
    let refused = sim.block_on(start_patiently(machine.clone(), disk.mount(&machine))).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("make some on its disk")));
    disk.set_capacity(1 << 30);
    let owner = sim.block_on(start_patiently(machine.clone(), disk.mount(&machine))).expect("open");
    assert_eq!(owner.numbers.lock().len(), 1000);
}

#[test]
fn closing_leaves_nothing_to_replay_and_takes_nothing_more() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let machine = sim.machine("node");
    let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
    let waiting: Vec<_> = (0..100).map(|_| owner.add(10).1).collect();
    sim.block_on(owner.log.close()).expect("close");
    for added in waiting {
        assert_eq!(sim.block_on(added), Ok(()));
    }
    assert_eq!(sim.block_on(owner.add(10).1), Err(AppendError::Closed));
    assert_eq!(sim.block_on(owner.log.close()), Err(AppendError::Closed));
    let found = sim.block_on(open(disk.mount(&machine).as_ref(), "log", OWNER)).expect("open");
    assert_eq!((found.snapshot.map(|s| s.len()), found.records.len()), (Some(808), 0));
    assert!(matches!(sim.block_on(open(disk.mount(&machine).as_ref(), "log", *b"else")), Err(LogOpenError::Foreign)));
}

/// Such a record was refused, and owners that waited for the log to settle never learned of it.
#[test]
fn regression_a_record_that_is_too_long_for_the_log_is_durable_as_part_of_a_snapshot() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let machine = sim.machine("node");
    let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
    for len in [10, RECORD_LEN_MAX - 8, RECORD_LEN_MAX - 7, 10, 3 * RECORD_LEN_MAX, 10] {
        drop(owner.add(len).1);
        sim.block_on(owner.log.settled()).expect("settled");
    }
    machine.crash();
    disk.power_loss();
    let machine = sim.machine("node");
    let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
    assert_eq!(*owner.numbers.lock(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn what_is_more_than_a_group_is_durable_all_the_same() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let machine = sim.machine("node");
    let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
    let len = RECORD_LEN_MAX / 2;
    (0..3 * GROUP_LEN_MAX / len).for_each(|_| drop(owner.add(len).1));
    sim.block_on(owner.log.settled()).expect("settled");
}

/// A record that is too long costs a snapshot, and the snapshot must wait for the held record too.
#[test]
fn crash_what_is_held_is_not_durable_nor_what_comes_after_it() {
    for (len, releases) in [(10, false), (10, true), (RECORD_LEN_MAX, false), (RECORD_LEN_MAX, true)] {
        let sim = Sim::new(1);
        let disk = SimDisk::new(&sim, 1 << 30);
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        sim.block_on(owner.add_and_wait(10)).expect("add");
        let held_up = owner.log.held_up();
        let long = owner.add(len).1;
        {
            let mut numbers = owner.numbers.lock();
            let held = numbers.len() as u64;
            numbers.push(held);
            drop(owner.log.append_held(held.to_le_bytes().to_vec().into()));
        }
        drop(owner.add(10).1);
        let (log, settled) = (owner.log.clone(), Arc::new(Mutex::new(false)));
        let seen = settled.clone();
        drop(machine.run(async move {
            log.settled().await.expect("settled");
            *seen.lock() = true;
        }));
        sim.run_for(Duration::from_secs(1));
        assert_eq!((owner.log.held(), *settled.lock()), (Some(1), false));
        // The holder of the records learns that a snapshot waits for them.
        assert_eq!(held_up.has_changed().expect("open"), len == RECORD_LEN_MAX);
        if releases {
            owner.log.release(1);
            sim.run_for(Duration::from_secs(1));
            assert_eq!((owner.log.held(), *settled.lock()), (None, true));
            sim.block_on(long).expect("durable");
        }
        machine.crash();
        disk.power_loss();
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        let there = owner.numbers.lock().len();
        assert_eq!(there, if releases { 4 } else { 1 + usize::from(len < RECORD_LEN_MAX) });
    }
}

#[test]
fn rot_is_said() {
    let mut damaged = 0;
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        for _ in 0..20 {
            sim.block_on(owner.add_and_wait(100)).expect("add");
        }
        machine.crash();
        disk.rot("log-log", 0..20 * 128, 1);
        let machine = sim.machine("node");
        match sim.block_on(open(disk.mount(&machine).as_ref(), "log", OWNER)) {
            Err(LogOpenError::Damaged(_)) => damaged += 1,
            // Rot in the last record looks like a write that a crash has torn. Rot in the padding
            // between records has no effect.
            Ok(found) => assert!(found.records.len() >= 19, "seed {seed}: {}", found.records.len()),
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(damaged > 60, "{damaged}");
}

/// The newest snapshot's heads had been read, but were not on the disk. The next snapshot overwrote
/// the one before, and then the power failed.
#[test]
fn regression_what_was_only_read_is_made_durable_before_anything_goes_over_what_was_before() {
    for (seed, times) in (0..60u64).flat_map(|a| (0..60u64).map(move |b| [a, b])).enumerate() {
        let sim = Sim::new(seed as u64);
        let disk = SimDisk::new(&sim, 1 << 30);
        disk.set_latency(Duration::from_micros(20)..Duration::from_micros(40));
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        sim.block_on(owner.add_and_wait(100)).expect("add");
        sim.block_on(owner.log.close()).expect("close");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        sim.block_on(owner.add_and_wait(100)).expect("add");
        machine.crash();
        // One start fails at a sync, another loses power, each at any point.
        for (time, fails) in times.into_iter().zip([true, false]) {
            let machine = sim.machine("node");
            let folder = disk.mount(&machine);
            let begun = machine.clone();
            machine.host().tasks.spawn(Box::pin(async move { drop(start(begun, folder).await) }));
            sim.run_for(Duration::from_micros(20 * time));
            if fails {
                disk.fail_next_syncs(1);
                sim.run_for(Duration::from_millis(10));
                disk.fail_next_syncs(0);
            }
            machine.crash();
        }
        disk.power_loss();
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        assert_eq!(*owner.numbers.lock(), [0, 1], "after {times:?}");
    }
}

#[test]
fn everybody_is_answered_while_the_log_closes() {
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        let machine = sim.machine("node");
        let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
        let closing = owner.log.close();
        sim.run_for(Duration::from_micros(seed * 10));
        let (late, again) = (owner.add(10).1, owner.log.close());
        if seed % 2 == 1 {
            disk.fail_next_syncs(1);
        }
        let answers = sim.block_on(async { tokio::join!(closing, late, again) });
        assert!(answers.0.is_ok() || seed % 2 == 1, "seed {seed}: {answers:?}");
        assert!(
            answers.1.is_ok() || matches!(answers.1, Err(AppendError::Closed | AppendError::Disk(_))),
            "{answers:?}"
        );
    }
}

/// A lazy log whose records refer to numbers. The numbers become durable elsewhere when the log
/// asks for it.
struct Lazily {
    owner: Owner,
    gathered: Arc<Mutex<(u64, u64)>>,
}

/// A lazy log whose owner counts how often it was asked to gather, and for how many numbers.
fn start_lazily(sim: &Sim, machine: &Machine, disk: &SimDisk, log_len: u64) -> Lazily {
    let gathered = Arc::new(Mutex::new((0, 0)));
    let numbers: Arc<Mutex<Option<Numbers>>> = Arc::default();
    let (known, seen, clock) = (numbers.clone(), gathered.clone(), machine.host().clock);
    let gather: Gather = Arc::new(move |cut| {
        let known = known.lock().clone();
        let guard = known.as_ref().map(|numbers| numbers.lock());
        cut();
        let count = guard.map_or(0, |numbers| numbers.len() as u64);
        let (seen, clock) = (seen.clone(), clock.clone());
        Box::pin(async move {
            clock.sleep(Duration::from_millis(1)).await;
            let mut seen = seen.lock();
            *seen = (seen.0 + 1, seen.1.max(count));
            Ok(())
        })
    });
    let owner = sim.block_on(async {
        let found = open(&*disk.mount(machine), "log", OWNER).await?;
        go_on(machine.clone(), found.growing_to(log_len).lazily(Duration::from_secs(1), gather)).await
    });
    let owner = owner.expect("open");
    *numbers.lock() = Some(owner.numbers.clone());
    Lazily { owner, gathered }
}

#[test]
fn a_lazy_log_writes_in_time_or_when_it_is_waited_for() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let machine = sim.machine("node");
    let Lazily { owner, gathered } = start_lazily(&sim, &machine, &disk, LOG_LEN);
    let before = (disk.counts().syncs, gathered.lock().0);
    let appended: Vec<_> = (0..100).map(|_| owner.add(100).1).collect();
    sim.run_for(Duration::from_millis(900));
    assert_eq!((disk.counts().syncs, gathered.lock().0), before, "no owner waits");
    assert_eq!(owner.log.counts(), (100, 0));
    sim.run_for(Duration::from_millis(200));
    assert_eq!(owner.log.counts(), (100, 100));
    assert_eq!((disk.counts().syncs, gathered.lock().0), (before.0 + 1, before.1 + 1), "all of them together");
    appended.into_iter().for_each(|durable| sim.block_on(durable).expect("durable"));
    drop(owner.add(100));
    sim.block_on(owner.log.settled()).expect("settled");
    assert_eq!((disk.counts().syncs, gathered.lock().0), (before.0 + 2, before.1 + 2));
    // Many bytes of records do not wait for the period.
    let many: Vec<_> = (0..LAZY_LEN_MAX / 1000).map(|_| owner.add(1000).1).collect();
    sim.run_for(Duration::from_millis(100));
    assert_eq!(disk.counts().syncs, before.0 + 3);
    many.into_iter().for_each(|durable| sim.block_on(durable).expect("durable"));
    let late = owner.log.settled_in_time();
    let clock = machine.host().clock;
    let begun = clock.now();
    drop(owner.add(100));
    sim.block_on(late).expect("settled");
    assert!(clock.now() >= begun + Duration::from_millis(900), "it was not hurried");
}

/// The owner gathered something before it appended the record that names it, while another task
/// waited for the log. The gathering was dropped, since its group had no records.
#[test]
fn regression_what_is_gathered_is_made_durable_also_without_records() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let Lazily { owner, gathered } = start_lazily(&sim, &sim.machine("node"), &disk, LOG_LEN);
    let before = gathered.lock().0;
    sim.block_on(owner.log.settled()).expect("settled");
    assert_eq!(gathered.lock().0, before + 1);
}

/// After any crash, each number in the log was gathered before, and every number that was waited
/// for is in the log.
#[test]
fn sim_what_a_lazy_log_tells_of_is_durable_before() {
    let (mut lost, mut found_total) = (0, 0);
    for seed in 0..300 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        let random = SplitMix64::new(seed);
        let mut least = 0;
        for _ in 0..4 {
            let machine = sim.machine("node");
            let log_len = [100, 2000, LOG_LEN][random.below(3) as usize];
            let Lazily { owner, gathered } = start_lazily(&sim, &machine, &disk, log_len);
            let found = owner.numbers.lock().len() as u64;
            assert!(found >= least, "seed {seed}: {found} of {least}");
            assert!(owner.numbers.lock().iter().copied().eq(0..found), "a prefix");
            *owner.acknowledged.lock() = found;
            gathered.lock().1 = found;
            for _ in 0..random.below(30) {
                let (number, durable) = owner.add(random.below(300) as usize);
                match random.below(4) {
                    0 => {
                        let (log, acknowledged) = (owner.log.clone(), owner.acknowledged.clone());
                        machine.host().tasks.spawn(Box::pin(async move {
                            if log.settled().await.is_ok() {
                                let mut acknowledged = acknowledged.lock();
                                *acknowledged = (*acknowledged).max(number + 1);
                            }
                        }));
                    }
                    _ => drop(durable),
                }
                sim.run_for(Duration::from_micros(random.below(300_000)));
            }
            least = *owner.acknowledged.lock();
            let (all, gathered) = (owner.numbers.lock().len() as u64, gathered.lock().1);
            machine.crash();
            if random.chance(2, 3) {
                disk.power_loss();
            }
            let machine = sim.machine("node");
            let again = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
            let there = again.numbers.lock().len() as u64;
            assert!(there <= gathered, "seed {seed}: {there} are there, {gathered} were gathered");
            (lost, found_total) = (lost + all - there, found_total + there);
            machine.crash();
        }
    }
    assert!(lost > 300 && found_total > 3000, "{lost}, {found_total}");
}

#[test]
fn the_writer_ends_with_the_last_handle() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim, 1 << 30);
    let machine = sim.machine("node");
    let owner = sim.block_on(start(machine.clone(), disk.mount(&machine))).expect("open");
    let numbers = Arc::downgrade(&owner.numbers);
    let added = owner.add(10).1;
    drop(owner.clone());
    assert_eq!(sim.block_on(added), Ok(()));
    drop(owner);
    sim.run_until_idle();
    assert!(numbers.upgrade().is_none(), "the writer still has the owner's state");
}
