//! Nodes vote on who leads. Any of them may end, the leader too, and the others go on without a
//! person.

mod common;
#[path = "common/nodes.rs"]
mod on_loopback;

use common::{Mounted, refused, starling};
use on_loopback::{
    answer, contents, elsewhere, join, join_voter, leader, led_by_other_than, nodes, stores, voters, wait,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Three nodes that vote, with a store each. The first one listens at the address that is returned.
fn three_voters(below: &Path) -> ([Mounted; 3], String) {
    let listen = elsewhere();
    let one = Mounted::up(below, "one", &["--stores", "3", "--store-size", "256MiB", "--listen", &listen]);
    let [two, three] = ["two", "three"].map(|name| join_voter(below, &one, name));
    wait("the stores do not spread", || stores(&one) == json!([[0], [2], [1]]));
    wait("three nodes do not vote", || voters(&one) == 3);
    ([one, two, three], listen)
}

fn write(node: &Mounted, name: &str) {
    let mut file = fs::File::create(node.mountpoint.join(name)).expect("create");
    file.write_all(name.repeat(5000).as_bytes()).and_then(|()| file.sync_all()).expect("write and sync");
}

fn lacking(of: &Mounted) -> Value {
    answer(starling().arg("status").arg("--data").arg(&of.data))["leads"]["redundancy"]["lacking_segments"].clone()
}

#[test]
fn another_node_leads_when_the_leader_ends_and_programs_go_on() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let ([mut one, mut two, mut three], listen) = three_voters(dir.path());
    let first = leader(&two);
    for (node, name) in [(&one, "by-one"), (&two, "by-two"), (&three, "by-three")] {
        write(node, name);
    }
    let said = nodes(&three)["survives"].to_string();
    assert!(said.contains("the end of any node, and") && said.contains("3 nodes vote"), "{said}");
    // A program at the third node has a file open, a lock, and changes that are not synced.
    let path = three.mountpoint.join("open");
    let mut open = fs::OpenOptions::new().append(true).create(true).open(&path).expect("open");
    open.write_all(b"not synced").expect("write");
    flock(&open, FlockOperation::NonBlockingLockExclusive).expect("lock");
    let all = contents(&one);

    // The leader dies. To the others it was a pause.
    one.kill();
    let made = three.mountpoint.join("made-meanwhile");
    fs::write(made, "made").expect("make a file");
    open.write_all(b", and more").and_then(|()| open.sync_all()).expect("the session goes on");
    let leads = led_by_other_than(&three, &first);
    let theirs = fs::File::open(two.mountpoint.join("open")).expect("open");
    assert_eq!(flock(&theirs, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    drop((open, theirs));
    let now = contents(&two);
    assert_eq!(now, contents(&three));
    let has = |name: &str, bytes: &[u8]| now.iter().any(|(known, found)| known == name && found == bytes);
    assert!(has("open", b"not synced, and more") && has("made-meanwhile", b"made"));
    assert!(all.iter().filter(|(name, _)| name != "open").all(|(name, bytes)| has(name, bytes)));

    // The former leader comes back as a member, with its store.
    one.up_with(&["--listen", &listen]);
    assert_eq!(contents(&one), now);
    write(&one, "by-a-former-leader");
    wait("three nodes do not vote", || voters(&one) == 3 && nodes(&one).to_string().contains("3 nodes vote"));
    assert_eq!(leader(&one), leads);

    // The next leader dies, and another one leads. Any node invites.
    let (dead, alive) =
        if leads == "two" { (&mut two, [&mut one, &mut three]) } else { (&mut three, [&mut one, &mut two]) };
    dead.kill();
    write(alive[0], "after-the-second");
    led_by_other_than(alive[1], &leads);
    dead.up_again();
    assert_eq!(contents(dead), contents(alive[0]));
    let four = join_voter(dir.path(), dead, "four");
    let mut all = vec![one, two, three];
    write(&four, "by-four");
    all.push(four);

    // All end, and start together.
    let now = contents(&all[0]);
    for node in &all {
        node.down();
    }
    std::thread::scope(|scope| {
        for node in &mut all {
            scope.spawn(|| node.up_again());
        }
    });
    for node in &all {
        assert_eq!(contents(node), now);
    }
    for node in &all {
        node.down();
    }
}

/// It opened its own stores twice, and found them in use.
#[test]
fn regression_a_first_node_that_leads_others_starts_again_at_once() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let ([mut one, two, _three], listen) = three_voters(dir.path());
    write(&one, "synced");
    let all = contents(&two);
    one.kill();
    let mut with_servers = starling();
    with_servers.args(["up", "--no-mount", "--listen", &listen, "--data"]).arg(&one.data);
    for port in 1..=3 {
        with_servers.arg("--store").arg(format!("tcp://127.0.0.1:{port}"));
    }
    let said = refused(&mut with_servers);
    assert!(said.contains("tcp://127.0.0.1:1: only the node that leads would reach it"), "{said}");
    one.up_with(&["--listen", &listen]);
    assert_eq!(contents(&one), all);
    write(&one, "after");
    wait("no node leads", || !leader(&two).is_empty());
    assert_eq!(contents(&one), contents(&two));
}

#[test]
fn a_leader_that_stops_for_a_while_goes_on_as_a_member() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let ([one, two, three], _) = three_voters(dir.path());
    let first = leader(&two);
    write(&two, "before");
    let open = fs::File::open(two.mountpoint.join("before")).expect("open");
    one.signal(libc::SIGSTOP);
    write(&three, "meanwhile");
    let second = led_by_other_than(&two, &first);
    one.signal(libc::SIGCONT);
    // It starts again by itself.
    let is_there = || fs::read(one.mountpoint.join("meanwhile")).is_ok();
    wait("the former leader does not come back", is_there);
    write(&one, "by-the-former");
    assert_eq!(fs::metadata(two.mountpoint.join("before")).expect("stat").len(), 30_000);
    // A command that this test starts would close it, and wait for the stopped node.
    drop(open);
    // A member that leads stops, and needs no new start.
    let (stopped, others) = if second == "two" { (&two, [&one, &three]) } else { (&three, [&one, &two]) };
    stopped.signal(libc::SIGSTOP);
    write(others[0], "meanwhile-2");
    led_by_other_than(others[1], &second);
    // Longer than its lease.
    std::thread::sleep(Duration::from_secs(10));
    stopped.signal(libc::SIGCONT);
    wait("the former leader does not go on", || fs::read(stopped.mountpoint.join("meanwhile-2")).is_ok());
    write(stopped, "by-the-second");
    let now = contents(&one);
    assert_eq!((now.len(), &now, &now), (5, &contents(&two), &contents(&three)));
    for node in [&one, &two, &three] {
        node.down();
    }
}

#[test]
fn a_leader_that_is_lost_for_good_is_removed_and_its_store_made_anew() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let ([one, two, three], _) = three_voters(dir.path());
    let first = leader(&two);
    write(&one, "by-one");
    write(&two, "by-two");
    one.kill();
    let disks = dir.path().join("disks");
    fs::rename(&one.data, &disks).expect("its disks are lost");
    write(&three, "after");
    let leads = led_by_other_than(&three, &first);
    let leader = if leads == "two" { &two } else { &three };
    // A machine joins while one of three is gone.
    let client = join(dir.path(), leader, "client");
    write(&client, "by-client");
    let remove = || {
        let mut command = starling();
        command.args(["node", "remove", &first, "--dead", "--data"]).arg(&leader.data);
        command
    };
    let said = answer(&mut remove());
    assert_eq!(said, json!({"removed": first, "made_anew": [0]}));
    write(&two, "after-removal");
    wait("the lost store is not restored", || lacking(leader) == json!(0));
    // They are found again: what they have is of no use.
    fs::rename(&disks, &one.data).expect("they are back");
    let said = refused(starling().arg("up").arg(&one.mountpoint).arg("--data").arg(&one.data));
    assert!(said.contains("another node has become the first node"), "{said}");
    // The machine comes back with new disks, under its old name.
    let again = join_voter(dir.path(), leader, &first);
    wait("the new node does not vote", || voters(&again) == 3);
    let now = contents(&again);
    assert_eq!((now.len(), &now, &now), (5, &contents(&two), &contents(&three)));
    for node in [&client, &two, &three, &again] {
        node.down();
    }
}
