//! Machines leave, or are lost for good: the first one, whose place a node takes, or another one,
//! which is removed.

mod common;
#[path = "common/nodes.rs"]
mod on_loopback;

use common::{Mounted, refused, run, starling, text};
use on_loopback::{
    answer, contents, elsewhere, invite, join_voter, join_with_store, joining, leader, nodes, stores, voters, wait,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn recover(data: &Path, flags: &[&str]) -> Command {
    let mut command = starling();
    command.args(["node", "recover", "--data"]).arg(data).args(flags);
    command
}

/// The first machine, and two nodes with a store each.
fn three_nodes(below: &Path) -> [Mounted; 3] {
    let listen = elsewhere();
    let one = Mounted::up(below, "one", &["--stores", "3", "--store-size", "256MiB", "--listen", &listen]);
    let [two, three] = ["two", "three"].map(|name| join_with_store(below, &one, name));
    wait("the stores do not spread", || stores(&one) == json!([[0], [2], [1]]));
    [one, two, three]
}

fn write(node: &Mounted, name: &str) {
    let mut file = fs::File::create(node.mountpoint.join(name)).expect("create");
    file.write_all(name.repeat(5000).as_bytes()).and_then(|()| file.sync_all()).expect("write and sync");
}

#[test]
fn a_node_takes_the_place_of_the_first_one_and_programs_at_others_go_on() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let [one, mut two, three] = three_nodes(dir.path());
    for (node, name) in [(&one, "by-one"), (&two, "by-two"), (&three, "by-three")] {
        write(node, name);
    }
    assert!(refused(&mut recover(&two.data, &["--yes"])).contains("in use by process"));
    // A program at the third node has a file open, a lock, and changes that are not synced.
    let path = three.mountpoint.join("open");
    let mut open = fs::OpenOptions::new().append(true).create(true).open(&path).expect("open");
    open.write_all(b"not synced").expect("write");
    flock(&open, FlockOperation::NonBlockingLockExclusive).expect("lock");
    let all = contents(&one);

    // The machine is lost, with its disks.
    one.kill();
    let old = dir.path().join("old.data");
    fs::rename(&one.data, &old).expect("rename");
    let made = three.mountpoint.join("made-meanwhile");
    let making = std::thread::spawn(move || fs::write(made, "made"));
    two.kill();
    let asked = refused(&mut recover(&two.data, &[]));
    assert!(asked.contains("nothing was changed: say --yes"), "{asked}");
    let said = answer(&mut recover(&two.data, &["--yes"]));
    assert_eq!((&said["here"], &said["elsewhere"], &said["lost"]), (&json!([2]), &json!([1]), &json!([0])));
    assert!(refused(&mut recover(&two.data, &["--yes"])).contains("is the first node's"));
    let listen = elsewhere();
    two.up_with(&["--listen", &listen]);

    // To the third node it was a pause.
    making.join().expect("thread").expect("make a file");
    open.write_all(b", and more").and_then(|()| open.sync_all()).expect("the session goes on");
    let theirs = fs::File::open(two.mountpoint.join("open")).expect("open");
    assert_eq!(flock(&theirs, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    drop((open, theirs));
    let now = contents(&two);
    assert_eq!(now, contents(&three));
    let has = |name: &str, bytes: &[u8]| now.iter().any(|(known, found)| known == name && found == bytes);
    assert!(has("open", b"not synced, and more") && has("made-meanwhile", b"made"));
    assert!(all.iter().filter(|(name, _)| name != "open").all(|(name, bytes)| has(name, bytes)));
    for node in [&two, &three] {
        write(node, &format!("after-{}", node.data.file_stem().expect("name").display()));
    }

    // The old one does not come back, and others may join.
    let mut old_one = starling();
    old_one.arg("up").arg(&one.mountpoint).arg("--data").arg(&old).args(["--listen", &elsewhere()]);
    let said = old_one.output().expect("start");
    assert_eq!(said.status.code(), Some(2));
    let said = text(&said);
    assert!(said.contains("another node has become the first node"), "{said}");
    let lacking = || answer(starling().arg("status").arg(&two.mountpoint))["redundancy"]["lacking_segments"].clone();
    wait("the lost store is not restored", || lacking() == json!(0));
    let four = join_with_store(dir.path(), &two, "four");
    wait("no store moves to the new node", || {
        stores(&two).to_string().matches('[').count() > 3 && {
            let all = stores(&two);
            all.as_array()
                .expect("nodes")
                .iter()
                .all(|of_node| of_node.as_array().is_some_and(|of_node| of_node.len() == 1))
        }
    });
    let survives = answer(starling().arg("nodes").arg(&four.mountpoint))["survives"].to_string();
    assert!(survives.contains("the loss of the stores of any one node"), "{survives}");
    let now = contents(&two);
    assert_eq!((&now, &now), (&contents(&three), &contents(&four)));

    // It starts again as any first node.
    two.down();
    two.up_with(&["--listen", &listen]);
    assert_eq!(contents(&three), now);
    two.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&two.data)).contains("no problems"));
    three.down();
    four.down();
}

/// The first node had another address by then, and only the old one was asked. So the node took the
/// place of one that was there, and all stores refused that one from then on.
#[test]
fn regression_a_first_node_that_is_elsewhere_is_not_given_up() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let [mut one, two, three] = three_nodes(dir.path());
    three.kill();
    one.kill();
    one.up_with(&["--listen", &elsewhere()]);
    write(&two, "the first node is there");
    let said = refused(&mut recover(&three.data, &["--yes"]));
    assert!(said.contains("the first node answers at"), "{said}");
}

#[test]
fn a_node_does_not_take_the_place_of_a_first_one_that_is_there_or_without_enough_stores() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let [one, two, three] = three_nodes(dir.path());
    write(&one, "by-one");
    three.down();
    let said = refused(&mut recover(&three.data, &["--yes"]));
    assert!(said.contains("the first node answers at"), "{said}");
    two.kill();
    one.kill();
    let said = refused(&mut recover(&three.data, &["--yes"]));
    assert!(
        said.contains("only 1 of 3 stores are there") && said.contains("node two, which does not answer"),
        "{said}"
    );
    // Nothing has changed: it joins in again.
    let mut one = one;
    let about = fs::read_to_string(three.data.join("node.json")).expect("node.json");
    let at = about.split('"').find(|part| part.starts_with("127.0.0.1:")).expect("an address");
    let mut up = starling();
    up.arg("up").arg(&three.mountpoint).arg("--data").arg(&three.data).arg("--background");
    let mut starting = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    one.up_with(&["--listen", at]);
    assert!(starting.wait().expect("wait").success(), "three is not mounted");
    assert_eq!(contents(&three), contents(&one));
    one.down();
    three.down();
    let nowhere = dir.path().join("nowhere");
    assert!(refused(&mut recover(&nowhere, &[])).contains("belongs to no node"));
    assert!(refused(&mut recover(&one.data, &[])).contains("is the first node's"));
}

#[test]
fn a_node_that_is_lost_is_removed_and_its_store_made_anew() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let [one, two, mut three] = three_nodes(dir.path());
    for (node, name) in [(&one, "by-one"), (&two, "by-two"), (&three, "by-three")] {
        write(node, name);
    }
    let remove = |flags: &[&str]| {
        let mut command = starling();
        command.args(["node", "remove", "--data"]).arg(&one.data).args(flags);
        command
    };
    assert!(refused(&mut remove(&["three", "--dead"])).contains("node three is up"));
    assert!(refused(&mut remove(&["four"])).contains("there is no node four"));
    // A node that has joined passes the command on.
    let remove_by_two = || {
        let mut command = starling();
        command.args(["node", "remove", "three", "--dead", "--data"]).arg(&two.data);
        command
    };
    assert!(refused(&mut remove_by_two()).contains("node three is up"));
    // All stores were compared when all were there.
    let lacking = || answer(starling().arg("status").arg(&one.mountpoint))["redundancy"]["lacking_segments"].clone();
    wait("the stores are not compared", || lacking() == json!(0));
    three.kill();
    // What it had is written while it is away.
    write(&two, "without-three");
    let state = || answer(starling().arg("nodes").arg(&one.mountpoint))["nodes"][2]["state"].clone();
    wait("the node is not declared dead", || state() == json!("down"));
    let said = refused(&mut remove(&["three"]));
    assert!(said.contains("node three has store-1: if its disks are lost for good, say --dead"), "{said}");
    let said = answer(&mut remove_by_two());
    assert_eq!(said, json!({"removed": "three", "made_anew": [1]}));
    write(&two, "after-three");
    wait("the lost store is not restored", || lacking() == json!(0));
    assert_eq!(stores(&two), json!([[0, 1], [2]]));

    // It comes back, with its store: its key opens nothing.
    let mut again = starling();
    again.arg("up").arg(&three.mountpoint).arg("--data").arg(&three.data);
    let said = again.output().expect("start");
    assert_eq!(said.status.code(), Some(2));
    let said = text(&said);
    assert!(said.contains("does not belong to the file system, or no longer"), "{said}");
    three = join_with_store(dir.path(), &one, "another");
    wait("no store moves to the new node", || stores(&two) == json!([[0], [2], [1]]));
    let now = contents(&one);
    assert_eq!((now.len(), &now, &now), (5, &contents(&two), &contents(&three)));
    one.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&one.data)).contains("no problems"));
    two.down();
    three.down();
}

#[test]
fn a_node_drains_while_all_go_on_and_is_removed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let [one, two, three] = three_nodes(dir.path());
    let mut nodes = vec![&one, &two, &three];
    let command = |what: &str, flags: &[&str]| {
        let mut command = starling();
        command.args(["node", what, "three", "--data"]).arg(&one.data).args(flags);
        command
    };
    let node = || answer(starling().arg("nodes").arg(&two.mountpoint))["nodes"][2].clone();
    wait("managers do not spread", || node()["managers"] == json!(1));
    let said = |rate: Value| json!({"node": "three", "drains": true, "rate_bytes_per_second": rate});
    let why = refused(&mut command("drain", &[]));
    assert!(why.contains("would have 2 stores, and parity makes up for the loss of 1"), "{why}");
    assert_eq!(answer(&mut command("drain", &["--rate", "1MiB", "--accept-risk"])), said(json!(1 << 20)));
    assert_eq!(answer(&mut command("drain", &[])), said(Value::Null));
    let mut count = 0;
    let mut write_all = |nodes: &[&Mounted]| {
        for node in nodes {
            write(node, &format!("file-{count}"));
            count += 1;
        }
    };
    wait("the node does not drain", || {
        write_all(&nodes);
        let node = node();
        assert_eq!(node["state"], json!("draining"));
        node["stores"] == json!([]) && node["managers"] == json!(0) && stores(&two) == json!([[0, 1], [2], []])
    });
    write_all(&nodes);
    assert!(refused(&mut command("remove", &[])).contains("node three is up"));
    three.down();
    nodes.pop();
    assert!(run(&mut command("remove", &[])).contains("node three is removed"));
    write_all(&nodes);
    let now = contents(&one);
    assert_eq!(now, contents(&two));
    assert_eq!(now.len(), count);
    let report = run(starling().arg("scrub").arg(&one.mountpoint));
    assert!(report.contains("0 missing, 0 damaged"), "{report}");
    one.down();
    two.down();
}

#[test]
fn the_first_node_leaves_and_nothing_is_made_anew() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let [one, mut two, three] = three_nodes(dir.path());
    let first = answer(starling().arg("nodes").arg(&two.mountpoint))["nodes"][0].clone();
    let name = first["name"].as_str().expect("a name").to_string();
    run(starling().args(["node", "drain", &name, "--accept-risk", "--data"]).arg(&one.data));
    wait("the first node does not drain", || {
        for node in [&one, &two, &three] {
            write(node, &format!("of-{}", node.data.file_stem().expect("name").display()));
        }
        stores(&three)[0] == json!([])
    });
    let before = contents(&three);
    one.down();
    two.kill();
    let said = answer(&mut recover(&two.data, &["--yes"]));
    assert_eq!(said["lost"], json!([]));
    two.up_with(&["--listen", &elsewhere()]);
    assert_eq!((&before, &before), (&contents(&two), &contents(&three)));
    write(&three, "after");
    two.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&two.data)).contains("no problems"));
    three.down();
}

/// Two of three voters are lost. Their machines come back later, when another group leads: they are
/// a majority of the old one.
#[test]
fn a_new_group_goes_on_without_the_majority_of_the_old_one() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let listens = elsewhere();
    let flags = ["--stores", "3", "--store-size", "256MiB", "--listen", &listens];
    let mut one = Mounted::up(dir.path(), "one", &flags);
    let mut two = join_with_store(dir.path(), &one, "two");
    let three = join_voter(dir.path(), &one, "three");
    let flags = ["--name", "four", "--background", "--listen", &elsewhere(), "--roles", "client,voter"];
    let (mut four, mut command) = joining(dir.path(), "four", &invite(&one, &[]), &flags);
    run(&mut command);
    wait("the stores do not spread", || stores(&one) == json!([[0], [2], [1], []]));
    wait("three nodes do not vote", || voters(&one) == 3);
    for (node, name) in [(&one, "by-one"), (&two, "by-two"), (&three, "by-three"), (&four, "by-four")] {
        write(node, name);
    }
    let all = contents(&two);

    one.kill();
    four.kill();
    two.kill();
    let said = answer(&mut recover(&two.data, &["--yes"]));
    assert_eq!((&said["here"], &said["elsewhere"], &said["lost"]), (&json!([2]), &json!([1]), &json!([0])));
    two.up_with(&["--listen", &elsewhere()]);
    wait("the third node does not find the leader", || leader(&three) == leader(&two));
    assert_eq!((&contents(&two), &contents(&three)), (&all, &all));
    write(&three, "after");

    // The others come back with the votes of the old group: the former leader is refused, and the
    // other one belongs to the new group.
    let again = |node: &mut Mounted| {
        let mut up = starling();
        up.arg("up").arg(&node.mountpoint).arg("--data").arg(&node.data).arg("--background");
        up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start")
    };
    let starting = [&mut one, &mut four].map(again);
    write(&two, "meanwhile");
    assert_eq!(starting.map(|mut node| node.wait().expect("wait").success()), [false, true]);
    // A store was made anew at the node that leads.
    let said = nodes(&four)["votes_alone"].to_string();
    assert!(said.contains("it has 2 stores"), "{said}");
    let five = join_voter(dir.path(), &four, "five");
    wait("three nodes do not vote", || voters(&four) == 3);
    let now = contents(&five);
    assert_eq!((now.len(), &now, &now), (6, &contents(&two), &contents(&three)));
}
