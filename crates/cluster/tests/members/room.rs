//! The last bytes of space, which several nodes share.

use crate::rig::*;
use host::timeout;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use types::{FileId, FsError, NodeId};
use vfs::fs::{Cred, FileSystem, SetAttr};

/// Bytes of each store.
const SMALL: u64 = 128 << 20;
/// Bytes of a file that fills it.
const FILE_LEN: usize = 512 << 10;

/// Writes files until there is no space; returns how many fit.
async fn fill(fs: Arc<dyn FileSystem>, prefix: String) -> Result<usize, FsError> {
    fill_with(fs, prefix, FILE_LEN).await
}

/// Writes files of this length until there is no space; returns how many fit.
async fn fill_with(fs: Arc<dyn FileSystem>, prefix: String, len: usize) -> Result<usize, FsError> {
    let mut count = 0;
    let data = vec![7; len];
    let end = loop {
        let name = format!("{prefix}{count}");
        let made = fs.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).await;
        let (entry, handle) = match made {
            Ok((entry, handle)) => (entry.attr.id, handle),
            Err(e) => break e,
        };
        let written = fs.write(&Cred::ROOT, entry, handle, 0, &data).await;
        fs.release(entry, handle, None).await?;
        match written {
            Ok(_) => count += 1,
            Err(e) => break e,
        }
    };
    // What was accepted can be made durable.
    fs.sync().await?;
    if end == FsError::NoSpace { Ok(count) } else { Err(end) }
}

#[test]
fn writers_at_several_nodes_fill_the_stores_and_each_write_is_kept_or_refused() {
    let rig = Rig::new(11, 128 << 20);
    let (_, first) = rig.joined("a");
    let (_, second) = rig.joined("b");
    let systems: Vec<Arc<dyn FileSystem>> = vec![first.fs.clone(), second.fs.clone(), Arc::new(rig.own())];
    let machines = [first.machine.clone(), second.machine.clone(), rig.first().machine.clone()];
    let results = systems
        .iter()
        .zip(&machines)
        .enumerate()
        .map(|(at, (fs, machine))| machine.run(fill(fs.clone(), format!("{at}-"))));
    let results = rig.sim.block_on(host::join_all(results.collect()));
    let counts: Vec<usize> = results.into_iter().map(|r| r.expect("up").expect("no space at the end")).collect();
    let bytes = counts.iter().sum::<usize>() as u64 * (512 << 10);
    let limit = rig.own().status().limit_bytes;
    assert!(bytes > limit / 2 && bytes <= limit, "{bytes} of {limit} bytes: {counts:?}");
    rig.run_for(20);
    // All of it is there, and there is room to remove it.
    for (at, count) in counts.iter().enumerate() {
        for number in 0..*count {
            let name = format!("{at}-{number}");
            assert_eq!(rig.read(&*systems[(at + 1) % 3], &name).expect("read").len(), 512 << 10, "{name}");
            let fs = systems[at].clone();
            let removed = async move { fs.unlink(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await };
            rig.sim.block_on(removed).expect("unlink");
        }
    }
    rig.run_for(60);
    let again = machines[0].run(fill(systems[0].clone(), "again".into()));
    let again = rig.sim.block_on(again).expect("up").expect("no space at the end");
    assert!(again as u64 * (512 << 10) > limit / 4, "the space is free again: {again}");
}

/// It waited until the first node had counted as many rounds as in its life before.
#[test]
fn regression_a_search_for_space_ends_soon_after_a_start_of_the_first_node() {
    let rig = Rig::new(12, 128 << 20);
    let (_, node) = rig.joined("a");
    let fill = |prefix: String| node.machine.run(fill(node.fs.clone(), prefix));
    rig.sim.block_on(fill("all".into())).expect("up").expect("no space at the end");
    for number in 0..20 {
        rig.sim.block_on(fill(format!("more-{number}-"))).expect("up").expect("no space at the end");
    }
    let last = fill("last".into());
    rig.sim.run_for(Duration::from_millis(500));
    rig.start_first();
    let dice = rig.sim.machine("dice").host();
    let ended = rig.sim.block_on(host::timeout(&*dice.clock, Duration::from_secs(10), last));
    ended.expect("it ends soon").expect("up").expect("no space at the end");
}

/// Makes a file in the root folder in the background. What came of it, once it has ended.
fn make(node: &Node, name: &'static str) -> Arc<Mutex<Option<Result<(), FsError>>>> {
    let (fs, ended) = (node.fs.clone(), Arc::new(Mutex::new(None)));
    let put = ended.clone();
    node.machine.host().tasks.spawn(Box::pin(async move {
        let made = fs.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).await;
        *put.lock().expect("ended") = Some(made.map(drop));
    }));
    ended
}

/// A full file system of three nodes, and a long file that the second of them has made.
fn full(seed: u64) -> (Rig, [(NodeId, Node); 3], FileId) {
    let rig = Rig::new(seed, SMALL);
    let nodes = ["a", "b", "c"].map(|name| rig.joined(name));
    let [(_, first), (_, second), _] = &nodes;
    let (long, _) = rig.write(&*second.fs, "long", &vec![1; 4 * FILE_LEN]).expect("write");
    rig.sync(&*second.fs).expect("sync");
    for (turn, len) in [FILE_LEN, 4 << 10, 0, 0].into_iter().enumerate() {
        let filled = first.machine.run(fill_with(first.fs.clone(), format!("{turn}-"), len));
        rig.sim.block_on(filled).expect("up").expect("no space at the end");
    }
    (rig, nodes, long)
}

/// The same, and the last node reports nothing any more: each look for space waits some seconds for
/// it, until its session ends.
fn slow_to_find_space(seed: u64) -> (Rig, [(NodeId, Node); 3], FileId) {
    let (rig, nodes, long) = full(seed);
    rig.way.cut(nodes[2].0, true);
    (rig, nodes, long)
}

/// What an operation held that waited for space, it kept from all others.
#[test]
fn regression_who_waits_for_space_keeps_no_folder_from_others() {
    let (rig, [(_, first), (_, second), _], _) = slow_to_find_space(13);
    let made = make(&first, "one-more");
    rig.sim.run_for(Duration::from_millis(500));
    assert!(made.lock().expect("ended").is_none(), "it waits for space");
    let clock = rig.sim.machine("dice").host().clock;
    let read = timeout(&*clock, Duration::from_secs(2), read(&*second.fs, "2-0"));
    let found = rig.sim.block_on(read).expect("the folder is free").expect("read");
    assert!(found.is_empty());
    assert!(made.lock().expect("ended").is_none(), "it still waits");
    rig.run_for(60);
    // There is room, or none: the last node does not need its share any more.
    assert!(made.lock().expect("ended").is_some());
}

/// A look for space that had begun before was not told of it, and it waited without end.
#[test]
fn regression_who_begins_to_wait_for_space_while_others_do_is_told_of_its_end() {
    for after_s in 1..=9 {
        let (rig, [(_, first), (_, second), _], long) = slow_to_find_space(14);
        let early = make(&first, "early");
        rig.run_for(after_s);
        let late = make(&first, "late");
        let fs = second.fs.clone();
        let cut = async move {
            fs.setattr(&Cred::ROOT, long, None, SetAttr { size: Some(0), ..SetAttr::default() }).await?;
            fs.sync().await
        };
        rig.sim.block_on(second.machine.run(cut)).expect("up").expect("cut");
        rig.run_for(60);
        let ended = [early, late].map(|made| *made.lock().expect("ended"));
        assert!(ended.iter().all(Option::is_some), "after {after_s} s: {ended:?}");
    }
}

/// The same while nothing becomes free.
#[test]
fn regression_who_begins_to_wait_for_space_last_is_told_that_there_is_none() {
    for after_s in 0..8 {
        let (rig, [(_, first), ..], _) = full(16);
        let early = make(&first, "early");
        rig.run_for(after_s);
        let late = make(&first, "late");
        rig.run_for(30);
        let ended = [early, late].map(|made| *made.lock().expect("ended"));
        assert_eq!(ended, [Some(Err(FsError::NoSpace)), Some(Err(FsError::NoSpace))], "after {after_s} s");
    }
}

/// It waited for two whole looks for space, although a checkpoint was all that it took.
#[test]
fn regression_a_new_session_uses_room_as_soon_as_there_is_some() {
    let rig = Rig::new(15, SMALL);
    let [(a, first), (_, second), (c, _third)] = ["a", "b", "c"].map(|name| rig.joined(name));
    rig.write(&*first.fs, "before", b"1").expect("write");
    rig.write(&*second.fs, "beside", b"2").expect("write");
    rig.run_for(20);
    rig.crash(a, &first);
    rig.way.cut(c, true);
    let again = rig.start(a);
    rig.sim.block_on(again.member.ready()).expect("ready");
    let made = make(&again, "after");
    rig.run_for(3);
    assert_eq!(*made.lock().expect("ended"), Some(Ok(())));
}
