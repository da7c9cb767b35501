//! Full caches and full disks: which writers wait, what the cache drops, and that nothing is lost.

mod rig;

use host::sim::SimDisk;
use rig::session::{How, Op, close, find, noise, open_to_write, perform, read_all};
use rig::setup::Setup;
use roam::{LinkState, Writes};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;
use vfs::fs::{Cred, FileSystem, OpenFlags};

/// Length of a file: more than a small file has.
const LEN: usize = 80 << 10;
const SECOND: Duration = Duration::from_secs(1);

fn path(number: usize) -> String {
    format!("/file-{number}")
}

/// The contents of a file, which differ from those of all others.
fn text(number: usize) -> Vec<u8> {
    format!("{number} ").into_bytes().into_iter().cycle().take(LEN).collect()
}

impl Setup {
    fn try_to_write(&self, number: usize) -> Result<(), FsError> {
        let op = Op::Write(path(number), How::Replace, text(number));
        self.rig.sim.block_on(perform(&self.client, &op))
    }

    fn read(&self, number: usize) -> Result<Vec<u8>, FsError> {
        self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, &path(number)).await?).await })
    }

    fn make_at_home(&self, count: usize) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        for number in 0..count {
            let op = Op::Write(path(number), How::Replace, text(number));
            self.rig.sim.block_on(perform(&tree, &op)).expect("made");
        }
        self.rig.sim.run_for(5 * SECOND);
    }

    fn is_cached(&self, number: usize) -> bool {
        self.client.look(|replica, _| match replica.at_path(path(number).as_bytes()) {
            roam::replica::Child::Is(id) => replica.node(id).is_ok_and(|node| node.facts.size > 0 && node.is_whole()),
            _ => false,
        })
    }

    fn waiting(&self) -> usize {
        self.client.look(|replica, _| replica.log().len())
    }

    fn conflicts(&self) -> usize {
        self.client.look(|replica, _| replica.conflicts().count())
    }

    /// Leaves this much room on the disk.
    fn leave_room(&self, bytes: u64) {
        let space = self.rig.sim.block_on(self.disk.mount(&self.machine).space()).expect("space");
        self.disk.set_capacity(space.total_bytes - space.free_bytes + bytes);
    }

    fn is_home(&self, number: usize) -> bool {
        self.at_home(&path(number)).map(String::into_bytes) == Ok(text(number))
    }
}

/// Every write was answered at once, even if nothing went home, and the cache grew without bound.
#[test]
fn whoever_writes_into_a_full_cache_waits_for_the_home() {
    let setup = Setup::new(1);
    let bound = 4 * LEN as u64;
    setup.client.set(|settings| settings.cache_bytes = bound);
    setup.network.lag_ms.store(1000, Relaxed);
    let (client, clock) = (setup.client.clone(), setup.machine.host().clock);
    let begun = clock.now();
    let done = setup.machine.run(async move {
        for number in 0..30 {
            perform(&client, &Op::Write(path(number), How::Replace, text(number))).await?;
        }
        Ok::<_, FsError>(())
    });
    let (mut waited, mut most) = (0, 0);
    while (0..30).any(|number| !setup.is_home(number)) {
        setup.rig.sim.run_for(SECOND / 10);
        let fullness = setup.client.fullness();
        waited += u32::from(fullness.writers_wait);
        most = most.max(fullness.beyond);
        assert!(clock.now() < begun + 300 * SECOND);
    }
    assert_eq!(setup.rig.sim.block_on(done).ok(), Some(Ok(())));
    assert!(waited > 10, "waited {waited} times");
    assert!(most < 3 * bound, "{most} bytes beyond the bound");
    setup.rig.sim.run_for(20 * SECOND);
    let fullness = setup.client.fullness();
    assert_eq!((fullness.beyond, fullness.writers_wait, setup.conflicts()), (0, false, 0));
    assert!(setup.client.cached_bytes() <= bound);
    for number in 0..30 {
        assert_eq!(setup.read(number), Ok(text(number)));
    }
}

#[test]
fn nobody_waits_for_a_home_that_is_out_of_reach_or_is_not_to_be_sent_anything() {
    for how in 0..3 {
        let setup = Setup::new(1);
        setup.make_at_home(1);
        assert_eq!(setup.read(0), Ok(text(0)));
        setup.client.set(|settings| settings.cache_bytes = 4 * LEN as u64);
        match how {
            0 => setup.online(false),
            1 => setup.client.pin(Some(LinkState::FetchOnly)),
            _ => setup.client.set(|settings| settings.writes = Writes::Manual),
        }
        let begun = setup.machine.host().clock.now();
        (1..21).for_each(|number| setup.try_to_write(number).expect("written"));
        let took = setup.machine.host().clock.now() - begun;
        assert!(took < 10 * SECOND, "{how}: {took:?}");
        let fullness = setup.client.fullness();
        assert_eq!((fullness.beyond, fullness.writers_wait), (16 * LEN as u64, false), "{how}");
        // Files that can be fetched again are not kept in their place.
        assert!(!setup.is_cached(0) && (1..21).all(|number| setup.is_cached(number)));
    }
}

#[test]
fn what_is_being_written_is_not_waited_for_since_it_cannot_go_home() {
    let setup = Setup::new(1);
    setup.client.set(|settings| settings.cache_bytes = LEN as u64);
    let begun = setup.machine.host().clock.now();
    setup.rig.sim.block_on(async {
        let (id, handle) = open_to_write(&setup.client, "/long", How::Append).await.expect("open");
        for number in 0..20 {
            setup.client.write(&Cred::ROOT, id, handle, 0, &text(number)).await.expect("written");
        }
        close(&setup.client, id, handle).await.expect("closed");
    });
    assert!(setup.machine.host().clock.now() < begun + 5 * SECOND);
}

#[test]
fn writers_have_room_made_of_what_is_least_dear() {
    let setup = Setup::new(1);
    setup.make_at_home(19);
    (0..19).for_each(|number| assert_eq!(setup.read(number), Ok(text(number))));
    setup.rig.sim.run_for(5 * SECOND);
    setup.rig.sim.block_on(setup.client.hoard(b"file-0", Some(50))).expect("hoarded");
    setup.rig.sim.block_on(setup.client.hoard(b"file-1", Some(10))).expect("hoarded");
    setup.client.set(|settings| settings.cache_bytes = 20 * LEN as u64);
    setup.online(false);
    (20..34).for_each(|number| setup.try_to_write(number).expect("written"));
    assert!(setup.is_cached(0) && setup.is_cached(1) && !setup.is_cached(2) && !setup.is_cached(3));
    (34..37).for_each(|number| setup.try_to_write(number).expect("written"));
    assert!(setup.is_cached(0) && !setup.is_cached(1));
    assert_eq!(setup.client.fullness().beyond, 0);
}

/// Writes were refused for want of room, though files that could be fetched again took it.
#[test]
fn regression_a_full_disk_loses_what_can_be_had_again_before_anybody_is_refused() {
    let setup = Setup::new(1);
    setup.make_at_home(40);
    (0..40).for_each(|number| assert_eq!(setup.read(number), Ok(text(number))));
    setup.rig.sim.run_for(5 * SECOND);
    setup.online(false);
    setup.leave_room(0);
    (40..60).for_each(|number| setup.try_to_write(number).expect("written"));
    (40..60).for_each(|number| assert_eq!(setup.read(number), Ok(text(number))));
    let setup = setup.restart(true);
    setup.online(true);
    assert_eq!((setup.waiting(), setup.conflicts()), (0, 0));
    assert!((0..60).all(|number| setup.is_home(number)));
}

/// The first record without room ended the log. Every operation from then on failed with EIO, until
/// the cache was opened again.
#[test]
fn regression_a_log_without_room_refuses_what_is_made_and_goes_on() {
    for restarts in [false, true] {
        let setup = Setup::new(1);
        setup.done(Op::List("/".into()));
        setup.online(false);
        setup.leave_room(0);
        let link = |number: usize| format!("/link-{number}");
        let make = |setup: &Setup, number| {
            let op = Op::MakeSymlink(link(number), "target".repeat(600));
            setup.rig.sim.block_on(perform(&setup.client, &op))
        };
        let made = (0..2000).find(|number| make(&setup, *number).is_err()).expect("refused");
        assert!(made > 200, "{made}");
        for number in made..made + 20 {
            assert_eq!(make(&setup, number), Err(FsError::NoSpace));
        }
        assert_eq!(setup.try_to_write(1), Err(FsError::NoSpace));
        // No refused file is there, and removing needs less room.
        let count = |setup: &Setup| setup.client.look(|replica, _| replica.log().len());
        assert_eq!(count(&setup), made);
        (0..100).for_each(|number| setup.done(Op::Unlink(link(number))));
        setup.disk.set_capacity(1 << 30);
        let setup = if restarts { setup.restart(true) } else { setup };
        // Operations that may have reached the home still wait.
        assert!((made - 100..made).contains(&count(&setup)));
        (0..100).for_each(|number| make(&setup, number).expect("there is room again"));
        setup.online(true);
        setup.rig.sim.run_for(600 * SECOND);
        assert_eq!((count(&setup), setup.conflicts()), (0, 0));
        let there = setup.rig.fs.dump().iter().filter(|entry| entry.path.starts_with(b"/link-")).count();
        assert_eq!(there, made);
    }
}

#[test]
fn a_full_disk_is_enospc_and_the_client_goes_on() {
    for seed in 0..10 {
        let setup = Setup::new(seed);
        setup.done(Op::List("/".into()));
        setup.online(false);
        setup.leave_room(10 * LEN as u64);
        let written: Vec<usize> = (0..40).filter(|number| setup.try_to_write(*number).is_ok()).collect();
        assert!((5..20).contains(&written.len()), "{written:?}");
        assert!(setup.client.fullness().disk_is_full && !setup.client.fullness().log_has_failed);
        for number in 0..40 {
            let refused = setup.try_to_write(number + 100);
            assert_eq!(refused, Err(FsError::NoSpace));
        }
        for number in &written {
            assert_eq!(setup.read(*number), Ok(text(*number)));
        }
        // Removing is possible, and makes room.
        written[..3].iter().for_each(|number| setup.done(Op::Unlink(path(*number))));
        setup.rig.sim.run_for(10 * SECOND);
        setup.try_to_write(200).expect("written");
        setup.disk.set_capacity(1 << 30);
        setup.rig.sim.run_for(5 * SECOND);
        setup.try_to_write(201).expect("written");
        assert!(!setup.client.fullness().disk_is_full);
        let setup = if seed % 2 == 0 { setup.restart(true) } else { setup };
        setup.online(true);
        assert_eq!((setup.waiting(), setup.conflicts()), (0, 0));
        assert!(written[3..].iter().chain(&[200, 201]).all(|number| setup.is_home(*number)));
    }
}

/// Waiting contents filled the disk, so the client could not set them aside. They never went home,
/// and the disk stayed full.
#[test]
fn regression_what_fills_the_disk_goes_home() {
    let setup = Setup::new(1);
    setup.done(Op::List("/".into()));
    setup.online(false);
    (0..10).for_each(|number| setup.try_to_write(number).expect("written"));
    // In pieces, with the old bytes between them.
    for offset in [100, 30_000, 60_000] {
        setup.done(Op::Write(path(3), How::At(offset), vec![b'x'; 10_000]));
    }
    setup.leave_room(0);
    assert_eq!(setup.try_to_write(20), Err(FsError::NoSpace));
    let expected = setup.read(3).expect("read");
    setup.online(true);
    assert_eq!((setup.waiting(), setup.conflicts()), (0, 0));
    assert!((0..10).filter(|number| *number != 3).all(|number| setup.is_home(number)));
    assert_eq!(setup.at_home(&path(3)).map(String::into_bytes), Ok(expected));
    setup.try_to_write(20).expect("there is room again");
}

/// A read of the home's bytes failed for want of room to cache them.
#[test]
fn regression_reading_needs_no_room() {
    let setup = Setup::new(1);
    setup.make_at_home(10);
    setup.done(Op::List("/".into()));
    // Files that were made here alone fill the disk.
    setup.network.lose_answers.store(true, Relaxed);
    setup.online(false);
    (10..20).for_each(|number| setup.try_to_write(number).expect("written"));
    setup.leave_room(0);
    setup.client.pin(Some(LinkState::FetchOnly));
    setup.network.lose_answers.store(false, Relaxed);
    setup.online(true);
    for number in 0..10 {
        assert_eq!(setup.read(number), Ok(text(number)), "{number}");
        assert!(!setup.is_cached(number));
    }
    (10..20).for_each(|number| assert_eq!(setup.read(number), Ok(text(number))));
}

#[test]
fn a_cache_on_a_full_disk_says_what_to_do_when_it_cannot_be_opened() {
    let setup = Setup::new(1).always();
    setup.done(Op::List("/".into()));
    setup.online(false);
    (0..10).for_each(|number| setup.try_to_write(number).expect("written"));
    let Setup { rig, client, network, disk, machine } = setup;
    machine.crash();
    drop(client);
    disk.power_loss();
    let machine = rig.sim.machine("laptop 1");
    let open = |disk: &SimDisk| {
        let settings = roam::Settings::new(rig::VOLUME);
        let mounted = disk.mount(&machine);
        let host = machine.host();
        let opening = roam::Client::open(
            &host,
            mounted,
            roam::Line::alone(&host, std::sync::Arc::new(network.clone())),
            settings,
        );
        rig.sim.block_on(opening)
    };
    disk.set_capacity(0);
    let refused = open(&disk).err().expect("no room").to_string();
    assert!(refused.contains("no room") && refused.contains("make some"), "{refused}");
    disk.set_capacity(1 << 30);
    let client = open(&disk).expect("open");
    assert_eq!(client.look(|replica, _| replica.log().len()), 20);
}

/// A file had a change that was not home, and the disk had no room for the rest of it. A read gave
/// the home's bytes without the change, or failed.
#[test]
fn regression_what_is_read_past_a_full_cache_has_what_was_written_here() {
    let setup = Setup::new(1);
    setup.make_at_home(1);
    setup.done(Op::List("/".into()));
    setup.client.set(|settings| settings.writes = Writes::Manual);
    setup.online(false);
    let change = [Op::Write(path(0), How::At(3), b"mine".to_vec()), Op::Write(path(0), How::Append, b"more".to_vec())];
    change.into_iter().for_each(|op| setup.done(op));
    let expected = {
        let mut bytes = [text(0), b"more".to_vec()].concat();
        bytes[3..7].copy_from_slice(b"mine");
        bytes
    };
    assert!(!setup.is_cached(0));
    setup.online(true);
    setup.disk.set_capacity(0);
    assert_eq!(setup.try_to_write(1), Err(FsError::NoSpace), "from here on there is no room");
    assert_eq!(setup.read(0).as_deref(), Ok(&expected[..]));
    setup.client.set(|settings| settings.writes = Writes::Lottery);
    setup.disk.set_capacity(1 << 30);
    setup.rig.sim.run_for(60 * SECOND);
    assert_eq!(setup.at_home(&path(0)).map(String::into_bytes), Ok(expected));
}

/// Another program learned the file's new attributes while it was read. The read gave the beginning
/// of the old contents, and the end of the new ones.
#[test]
fn regression_what_is_read_past_a_full_cache_is_of_one_version() {
    const BIG: usize = 1 << 20;
    let read_while_changed = |after: u64| {
        let setup = Setup::new(1);
        // Bytes that cannot be compressed. The new ones have their highest bit set.
        let change = |how, bit: u8| {
            let tree = setup.rig.home.lock().clone().expect("home").tree;
            let bytes = noise(BIG).into_iter().map(|byte| byte & 0x7f | bit).collect();
            let op = Op::Write("/big".into(), how, bytes);
            async move { perform(&tree, &op).await }
        };
        setup.rig.sim.block_on(change(How::Replace, 0)).expect("written");
        setup.make_at_home(2);
        setup.done(Op::List("/".into()));
        setup.rig.sim.run_for(60 * SECOND);
        setup.disk.set_capacity(0);
        assert_eq!(setup.try_to_write(1), Err(FsError::NoSpace), "from here on there is no room");
        // Attributes overtake bytes.
        setup.network.bytes_per_second.store(100_000, Relaxed);
        let (client, clock) = (setup.client.clone(), setup.machine.host().clock);
        let reading = setup.machine.run(async move {
            let id = find(&client, "/big").await?;
            let handle = client.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
            client.read(id, handle, 0, BIG as u32).await
        });
        let (client, changed) = (setup.client.clone(), change(How::At(0), 0x80));
        let learning = setup.machine.run(async move {
            clock.sleep(Duration::from_millis(after)).await;
            changed.await.expect("written");
            for _ in 0..200 {
                let id = find(&client, "/big").await.expect("found");
                client.getattr(id).await.expect("known");
                clock.sleep(Duration::from_millis(10)).await;
            }
        });
        setup.rig.sim.block_on(learning).expect("up");
        let read = setup.rig.sim.block_on(reading).expect("up");
        read.map(|bytes| (bytes.len(), bytes.iter().filter(|byte| **byte >= 0x80).count()))
    };
    let mut seen = Vec::new();
    for after in (0..16_000).step_by(500) {
        let (len, new) = read_while_changed(after).expect("read");
        assert_eq!(len, BIG);
        assert!(new == 0 || new == BIG, "{new} bytes of {BIG} are new, after {after} ms");
        seen.push(new);
    }
    assert!(seen.contains(&0) && seen.contains(&BIG), "{seen:?}");
}
