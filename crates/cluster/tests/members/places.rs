//! Where managers are: they move to members, and back when these end.

use crate::rig::*;
use crate::{ROOM, seats};
use cluster::config::{FIRST_NODE, client_id, manager_log};
use cluster::control::{CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest, Hello};
use manager::admin_wire::HostAnswer;
use manager::api::TokenUse;
use manager::token::Mode;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, NodeId};
use vfs::fs::{Cred, FileSystem};

#[test]
fn who_uses_a_file_is_told_wherever_its_manager_is() {
    let rig = Rig::spread(34, ROOM);
    let (a, mut node) = rig.joined("a");
    let (b, _second) = rig.joined("b");
    let mut places = BTreeSet::new();
    // Each session makes its first files at another manager.
    for session in 0..4 {
        // After a failure, they stay where they are for a while.
        rig.run_for(16);
        assert!(seats(&rig).iter().all(|count| *count > 0));
        let (file, _) = rig.write(&*node.fs, &format!("of-{session}"), b"text").expect("write");
        rig.sync(&*node.fs).expect("sync");
        // The manager learns who made the file when it applies that.
        rig.run_for(1);
        let members = rig.first().members.clone();
        let who = rig.sim.block_on(async move { members.who(file).await }).expect("an answer");
        assert_eq!(who.tokens.holders, [TokenUse { client: client_id(a), mode: Mode::Write, recalled: None }]);
        assert_eq!(who.names[&b], "b");
        places.insert(who.place);
        rig.crash(a, &node);
        node = rig.start(a);
        rig.sim.block_on(node.member.ready()).expect("ready");
    }
    assert!(places.len() > 1, "all files have their managers at one node: {places:?}");
    // A node that has joined asks the first one.
    let members = rig.first().members.clone();
    let asked = |node| {
        let members = members.clone();
        async move { members.control(&fingerprint(node), ControlRequest::Who(FileId::ROOT)).await }
    };
    assert!(matches!(rig.sim.block_on(asked(a)), Ok(ControlAnswer::Who(_))));
    assert_eq!(rig.sim.block_on(asked(NodeId::new(9))), Err(ControlError::NotMember));
}

#[test]
fn managers_move_to_members_and_back_when_their_nodes_end() {
    let rig = Rig::spread(30, ROOM);
    let (a, first) = rig.joined("a");
    rig.write(&*first.fs, "of-a", b"one").expect("write");
    rig.run_for(5);
    assert_eq!(seats(&rig), [2, 2]);
    let (_, second) = rig.joined("b");
    rig.write(&*second.fs, "of-b", b"two").expect("write");
    rig.write(&rig.own(), "own", b"three").expect("write");
    rig.run_for(5);
    assert_eq!(seats(&rig), [1, 2, 1]);
    let all: [Arc<dyn FileSystem>; 3] = [first.fs.clone(), second.fs.clone(), Arc::new(rig.own())];
    let read_all = |systems: &[Arc<dyn FileSystem>]| {
        for fs in systems {
            let found = ["of-a", "of-b", "own"].map(|name| rig.read(&**fs, name).expect("read"));
            assert_eq!(found, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
        }
    };
    read_all(&all);
    all.iter().for_each(|fs| rig.sync(&**fs).expect("sync"));
    // One leaves, and the other one dies.
    let member = second.member.clone();
    rig.sim.block_on(async move { member.leave().await });
    rig.run_for(5);
    assert_eq!(seats(&rig), [2, 2, 0]);
    read_all(&[all[0].clone(), all[2].clone()]);
    rig.crash(a, &first);
    rig.run_for(12);
    assert_eq!(seats(&rig), [4, 0, 0]);
    read_all(&all[2..]);
}

/// A move stalls the users of the manager, who have just waited for its node's lease.
#[test]
fn managers_stay_where_they_opened_for_a_while_after_a_failure() {
    let rig = Rig::spread(35, ROOM);
    let (a, first) = rig.joined("a");
    rig.run_for(5);
    let (_, _second) = rig.joined("b");
    rig.run_for(5);
    assert_eq!(seats(&rig), [1, 2, 1]);
    rig.crash(a, &first);
    let begin = rig.sim.now();
    while seats(&rig) != [3, 0, 1] {
        assert!(rig.sim.now() < begin + Duration::from_secs(15), "{:?}", seats(&rig));
        rig.run_for(1);
    }
    for _ in 0..8 {
        assert_eq!(seats(&rig), [3, 0, 1]);
        rig.run_for(1);
    }
    rig.run_for(5);
    assert_eq!(seats(&rig), [2, 0, 2]);
}

#[test]
fn segments_of_managers_at_other_nodes_are_deleted() {
    let rig = Rig::spread(31, ROOM);
    let (a, first) = rig.joined("a");
    rig.run_for(6);
    assert_eq!(seats(&rig), [2, 2]);
    let change = |rounds: u64| {
        for round in 0..rounds {
            for number in 0..20 {
                let name = format!("file-{number}");
                let contents = format!("{round} {number}");
                match rig.read(&*first.fs, &name) {
                    Ok(_) => rig.sim.block_on(async {
                        let id = first.fs.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes()).await?.attr.id;
                        let handle = first.fs.open(&Cred::ROOT, id, READ_WRITE).await?;
                        first.fs.write(&Cred::ROOT, id, handle, 0, contents.as_bytes()).await?;
                        first.fs.release(id, handle, None).await
                    }),
                    Err(_) => rig.write(&*first.fs, &name, contents.as_bytes()).map(drop),
                }
                .expect("change");
            }
            rig.sync(&*first.fs).expect("sync");
            // A checkpoint of changes is due.
            rig.run_for(40);
        }
    };
    let left = || {
        let segments = rig.sim.block_on(rig.first().core.stripe.segments()).expect("segments");
        let of_manager = |id: u16| segments.keys().filter(|segment| segment.log == manager_log(id)).count();
        (0..4).map(of_manager).collect::<Vec<usize>>()
    };
    change(20);
    let there = left();
    assert!(there.iter().all(|count| (1..10).contains(count)), "{there:?} segments of managers' logs are left");
    // What the member's managers put is deleted when they are at the first node again, too.
    rig.crash(a, &first);
    rig.run_for(100);
    assert_eq!(seats(&rig), [4, 0]);
    let here = left();
    assert!(here.iter().all(|count| (1..10).contains(count)), "{here:?} segments of managers' logs are left");
    rig.start_first();
    assert_eq!(rig.read(&rig.own(), "file-7").expect("read"), b"19 7");
}

#[test]
fn regression_a_node_that_the_first_one_alone_cannot_reach_serves_no_managers() {
    let rig = Rig::spread(35, ROOM);
    let (a, node) = rig.joined("a");
    rig.run_for(6);
    assert_eq!(seats(&rig), [2, 2]);
    // It renews its lease all the time.
    rig.way.part(FIRST_NODE, a);
    rig.run_for(20);
    assert_eq!(seats(&rig), [4, 0]);
    assert!(node.member.trouble().is_none() && !node.member.take_loss());
    rig.write(&rig.own(), "own", b"text").expect("write");
    rig.sync(&rig.own()).expect("sync");
    rig.way.join(FIRST_NODE, a);
    assert_eq!(rig.read(&*node.fs, "own").expect("read"), b"text");
}

#[test]
fn regression_nothing_waits_for_a_node_whose_session_has_ended() {
    let rig = Rig::spread(36, ROOM);
    let (a, _first) = rig.joined("a");
    let (b, second) = rig.joined("b");
    rig.run_for(10);
    assert!(seats(&rig)[1] > 0);
    // The second one says that it cannot reach the first one, which is cut off before its managers
    // move.
    rig.way.part(a, b);
    rig.run_for(LEASE.as_secs() / 2);
    rig.way.cut(a, true);
    rig.run_for(LEASE.as_secs() + 3);
    assert_eq!(seats(&rig)[1], 0);
    rig.write(&*second.fs, "file", b"text").expect("write");
}

#[test]
fn a_node_that_is_asked_too_late_leaves_a_manager_alone() {
    let rig = Rig::spread(32, ROOM);
    let (a, first) = rig.joined("a");
    rig.run_for(6);
    assert_eq!(seats(&rig), [2, 2]);
    // Another node cannot reach it, so the first node serves all managers again.
    let (b, second) = rig.joined("b");
    rig.way.part(a, b);
    rig.run_for(10);
    assert_eq!(seats(&rig)[1], 0);
    rig.write(&*first.fs, "file", b"durable").expect("write");
    rig.sync(&*first.fs).expect("sync");
    let answers = rig.sim.block_on(rig.way.repeat_takes(a));
    assert!(answers.len() >= 2 && answers.iter().all(|answer| matches!(answer, HostAnswer::Failed(_))), "{answers:?}");
    // Nobody was fenced.
    rig.write(&*second.fs, "other", b"durable, too").expect("write");
    for fs in [&*first.fs, &*second.fs, &rig.own() as &dyn FileSystem] {
        rig.sync(fs).expect("sync");
        assert_eq!(rig.read(fs, "other").expect("read"), b"durable, too");
    }
    rig.sim.block_on(rig.first().core.maintenance.tidy(false)).expect("all managers write checkpoints");
    assert!(first.member.trouble().is_none() && !first.member.take_loss());
}

/// A node dies that serves managers, and begins anew. After this time its connection breaks, while
/// its managers move to the first node. False if nothing was cut short.
fn a_move_is_cut_short(after: Duration) -> bool {
    let rig = Rig::spread(33, ROOM);
    let (a, first) = rig.joined("a");
    let (_, second) = rig.joined("b");
    rig.write(&*second.fs, "file", b"durable").expect("write");
    rig.run_for(8);
    assert!(seats(&rig)[1] > 0);
    rig.crash(a, &first);
    let (members, clock) = (rig.first().members.clone(), rig.sim.machine("dice").host().clock);
    let hello = Hello {
        node: a,
        version: CONTROL_VERSION,
        is_mounted: true,
        address: "10.0.0.2:7440".into(),
        takes_stores: false,
        takes_managers: true,
        takes_votes: false,
        program: "1.2.3".into(),
    };
    let hello = async { members.control(&fingerprint(a), ControlRequest::Hello(hello)).await };
    let is_cut = rig.sim.block_on(host::timeout(&*clock, after, hello)).is_err();
    rig.run_for(20);
    assert_eq!(seats(&rig)[1], 0);
    assert_eq!(rig.read(&rig.own(), "file").expect("read"), b"durable");
    rig.write(&*second.fs, "other", b"too").expect("write");
    rig.sync(&*second.fs).expect("sync");
    is_cut
}

#[test]
fn a_move_whose_caller_gives_up_is_finished() {
    let cut = (1..40).filter(|step| a_move_is_cut_short(*step * Duration::from_micros(500))).count();
    assert!(cut > 10, "only {cut}");
}
