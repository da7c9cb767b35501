//! Cleaning: a node copies what its own client wrote, and the first node does the rest.

use crate::ROOM;
use crate::rig::*;
use cluster::config::{CLEANER_LOG, client_log};
use std::time::Duration;
use types::{FileId, LogId, NodeId};
use vfs::fs::{Cred, FileSystem};

/// Files of each round.
const FILES: u64 = 24;

fn name(round: u64, number: u64) -> String {
    format!("{round}-{number}")
}

fn contents(round: u64, number: u64) -> Vec<u8> {
    name(round, number).repeat(30_000).into_bytes()
}

/// Makes files, two of them durable at a time, and removes every other one.
fn make(rig: &Rig, fs: &dyn FileSystem, round: u64) {
    for number in 0..FILES {
        let (file, handle) = rig.write(fs, &name(round, number), &contents(round, number)).expect("write");
        rig.sim.block_on(async { fs.release(file, handle, None).await }).expect("close");
        if number % 2 == 1 {
            rig.sync(fs).expect("sync");
        }
    }
    for number in (0..FILES).step_by(2) {
        let removed =
            rig.sim.block_on(async { fs.unlink(&Cred::ROOT, FileId::ROOT, name(round, number).as_bytes()).await });
        removed.expect("remove");
    }
    rig.sync(fs).expect("sync");
    rig.run_for(1);
}

/// The files of a round are what they should be.
fn check(rig: &Rig, fs: &dyn FileSystem, round: u64) {
    for number in (1..FILES).step_by(2) {
        assert_eq!(rig.read(fs, &name(round, number)).expect("read"), contents(round, number));
    }
}

fn clean(rig: &Rig) -> u64 {
    let maintenance = rig.first().core.maintenance.clone();
    rig.sim.block_on(maintenance.clean()).expect("clean").moved_bytes
}

/// Number of segments of a log.
fn segments(rig: &Rig, log: LogId) -> usize {
    let stripe = rig.first().core.stripe.clone();
    rig.sim.block_on(async move { stripe.survey(log, 0).await }).expect("survey").segments.len()
}

#[test]
fn a_node_copies_what_its_client_wrote() {
    let rig = Rig::spread(40, ROOM);
    let (a, first) = rig.joined("a");
    let (b, second) = rig.joined("b");
    make(&rig, &*first.fs, 0);
    // The other node knows where the blocks are, and so does the writer.
    check(&rig, &*second.fs, 0);
    check(&rig, &*first.fs, 0);
    let before = segments(&rig, client_log(a));
    let moved = clean(&rig);
    assert!(moved > 0 && segments(&rig, client_log(a)) < before / 2, "{moved} bytes moved");
    let copied = |node: NodeId| rig.way.asked_to_copy(node);
    assert!(copied(a) > 0 && copied(b) == 0);
    assert_eq!(segments(&rig, CLEANER_LOG), 0);
    for fs in [&*first.fs, &*second.fs, &rig.own() as &dyn FileSystem] {
        check(&rig, fs, 0);
    }
    // The first node copies what it wrote, and what nodes wrote that are away.
    make(&rig, &*second.fs, 1);
    rig.crash(b, &second);
    rig.run_for(20);
    make(&rig, &rig.own(), 2);
    assert!(clean(&rig) > 0);
    assert!(copied(b) == 0 && segments(&rig, CLEANER_LOG) > 0);
    for fs in [&*first.fs, &rig.own() as &dyn FileSystem] {
        (0..3).for_each(|round| check(&rig, fs, round));
    }
    // What a client copied is in its log like all else that it did.
    rig.crash(a, &first);
    rig.run_for(20);
    (0..3).for_each(|round| check(&rig, &rig.own(), round));
    let report = rig.sim.block_on(async { cluster::check::check(&rig.first().core, |_| {}).await }).expect("check");
    assert_eq!(report.problems, Vec::<String>::new());
}

#[test]
fn the_first_node_copies_what_a_node_does_not() {
    let rig = Rig::spread(41, ROOM);
    let (a, first) = rig.joined("a");
    make(&rig, &*first.fs, 0);
    rig.way.refuse_copies(true);
    assert!(clean(&rig) > 0);
    let asked = rig.way.asked_to_copy(a);
    assert!(asked > 0 && segments(&rig, CLEANER_LOG) > 0);
    check(&rig, &*first.fs, 0);
    // It is not asked again at once.
    rig.way.refuse_copies(false);
    make(&rig, &*first.fs, 1);
    assert!(clean(&rig) > 0);
    assert_eq!(rig.way.asked_to_copy(a), asked);
    rig.run_for(300);
    make(&rig, &*first.fs, 2);
    assert!(clean(&rig) > 0);
    assert!(rig.way.asked_to_copy(a) > asked);
    (0..3).for_each(|round| check(&rig, &*first.fs, round));
}

/// Copies are no changes that would be worth another look at what could be merged.
#[test]
fn cleaning_ends_when_nothing_changes() {
    let rig = Rig::spread(42, ROOM);
    let (a, first) = rig.joined("a");
    make(&rig, &*first.fs, 0);
    rig.run_for(120);
    assert!(rig.way.asked_to_copy(a) > 0, "small segments are merged");
    let done = || (rig.way.asked_to_copy(a), rig.first().core.maintenance.done());
    let before = done();
    rig.run_for(1200);
    assert_eq!(done(), before);
    check(&rig, &*first.fs, 0);
}

/// The cleaner had moved blocks of which a client knew the old places. The stores that answered had
/// nothing there any more. So the client waited for the one that did not answer, and asked the
/// manager only then.
#[test]
fn regression_a_block_that_has_moved_is_not_looked_for_at_a_store_that_is_silent() {
    const LONG: usize = 24 << 20;
    const SILENCE_MAX: Duration = Duration::from_secs(4);
    let rig = Rig::new(43, ROOM);
    let (_, first) = rig.joined("a");
    let (b, second) = rig.joined("b");
    for store in 0..3 {
        let round = u64::from(store);
        make(&rig, &*first.fs, round);
        check(&rig, &*second.fs, round);
        // These blocks take the place of the others in the cache.
        let (file, handle) = rig.write(&*second.fs, &format!("long-{store}"), &vec![7; LONG]).expect("write");
        rig.sim.block_on(async { second.fs.release(file, handle, None).await }).expect("close");
        rig.sync(&*second.fs).expect("sync");
        assert!(clean(&rig) > 0);
        rig.way.silence(b, store..store + 1);
        let begin = rig.sim.now();
        check(&rig, &*second.fs, round);
        let took = rig.sim.now() - begin;
        assert!(took < SILENCE_MAX, "{took:?}, store {store}");
        rig.way.silence(b, 0..0);
        rig.run_for(30);
    }
}
