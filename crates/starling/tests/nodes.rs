//! Nodes that serve one file system together.

mod common;
#[path = "common/nodes.rs"]
mod on_loopback;

use common::{Mounted, refused, run, starling, text};
use on_loopback::{
    answer, contents, elsewhere, first_node, free_port, invite, join, join_with_store, joining, stores, wait,
};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The states of all nodes, as a node says.
fn states(of: &Mounted) -> Vec<(String, String)> {
    let all = answer(starling().arg("nodes").arg(&of.mountpoint));
    let text = |value: &Value| value.as_str().expect("text").to_string();
    let nodes = all["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| (text(&node["name"]), text(&node["state"]))).collect()
}

#[test]
fn two_nodes_see_each_others_changes_and_both_end_and_come_back() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (mut one, listen) = first_node(dir.path(), "one");
    fs::write(one.mountpoint.join("before"), "from one").expect("write");
    let mut two = join(dir.path(), &one, "two");
    assert_eq!(fs::read_to_string(two.mountpoint.join("before")).expect("read"), "from one");

    fs::create_dir(two.mountpoint.join("dir")).expect("mkdir");
    fs::write(two.mountpoint.join("dir/new"), "from two").expect("write");
    assert_eq!(fs::read_to_string(one.mountpoint.join("dir/new")).expect("read"), "from two");
    for round in 0..20 {
        let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let written = format!("round {round} ").repeat(round + 1);
        fs::write(writer.mountpoint.join("before"), &written).expect("write");
        assert_eq!(fs::read_to_string(reader.mountpoint.join("before")).expect("read"), written);
        let name = format!("dir/{round}");
        fs::rename(writer.mountpoint.join("dir/new"), writer.mountpoint.join(&name)).expect("rename");
        assert!(!reader.mountpoint.join("dir/new").exists(), "it was there before");
        fs::rename(reader.mountpoint.join(&name), reader.mountpoint.join("dir/new")).expect("rename back");
    }
    assert_eq!(contents(&one), contents(&two));

    let names = |states: Vec<(String, String)>| states.into_iter().skip(1).collect::<Vec<_>>();
    for node in [&one, &two] {
        assert_eq!(names(states(node)), [("two".to_string(), "up".to_string())]);
    }
    let all = answer(starling().args(["nodes", "--data"]).arg(&one.data));
    assert_eq!((&all["nodes"][0]["address"], &all["nodes"][0]["name"]), (&Value::from(listen), &all["leader"]));
    let field = |name: &str| all["nodes"].as_array().expect("nodes").iter().map(|node| node[name].clone()).collect();
    let [roles, versions, leases]: [Vec<Value>; 3] = ["roles", "version", "lease_s"].map(field);
    assert_eq!(roles, [json!(["client", "storage", "manager", "voter"]), json!(["client"])]);
    assert_eq!(versions, [env!("CARGO_PKG_VERSION"); 2]);
    assert!(leases[0].is_null() && leases[1].as_f64().is_some_and(|left| left > 0.0), "{leases:?}");
    let status = answer(starling().arg("status").arg(&two.mountpoint));
    assert_eq!((&status["node"]["name"], &status["node"]["in_session"]), (&Value::from("two"), &Value::from(true)));
    for entry in fs::read_dir(&two.data).expect("list").flatten() {
        let name = entry.file_name();
        let is_secret = name.to_string_lossy().ends_with(".key");
        assert!(!is_secret || entry.metadata().expect("stat").permissions().mode() & 0o077 == 0, "{name:?}");
    }

    fs::write(two.mountpoint.join("last"), "not synced").expect("write");
    two.down();
    assert_eq!(fs::read_to_string(one.mountpoint.join("last")).expect("read"), "not synced");
    assert_eq!(names(states(&one)), [("two".to_string(), "down".to_string())]);
    two.up_again();
    fs::write(two.mountpoint.join("again"), "back").expect("write");
    let all = contents(&one);
    assert_eq!(all, contents(&two));
    two.down();
    one.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&one.data)).contains("no problems"));
    one.up_with(&["--listen", "127.0.0.1:0"]);
    assert_eq!(contents(&one), all);
    one.down();
}

#[test]
fn a_stat_does_not_hold_up_a_writer_on_another_node() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let two = join(dir.path(), &one, "two");
    let claims = |of: &Mounted| {
        let status = answer(starling().arg("status").arg(&of.mountpoint));
        status["cache"]["inode_misses"].as_u64().expect("a count")
    };
    for (name, writer, looker) in [("by-two", &two, &one), ("by-one", &one, &two)] {
        let mut log = fs::File::create(writer.mountpoint.join(name)).expect("create");
        let size = || fs::metadata(looker.mountpoint.join(name)).expect("stat").len();
        assert_eq!(size(), 0);
        log.write_all(b"first").expect("write");
        let before = claims(writer);
        for round in 1..=50 {
            log.write_all(&[7; 100]).expect("write");
            assert_eq!(size(), 5 + 100 * round);
        }
        assert_eq!(claims(writer), before, "the writer had to take its token back");
        assert_eq!(fs::read(looker.mountpoint.join(name)).expect("read").len(), 5005);
        log.write_all(b"last").expect("write");
        assert!(claims(writer) > before, "a read takes the token");
    }
    two.down();
    one.down();
}

#[test]
fn locks_exclude_programs_on_other_nodes_and_end_with_their_node() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let two = join(dir.path(), &one, "two");
    fs::write(one.mountpoint.join("locked"), "").expect("write");
    let [ours, theirs] = [&one, &two].map(|node| fs::File::open(node.mountpoint.join("locked")).expect("open"));
    let lock = |file: &fs::File| flock(file, FlockOperation::NonBlockingLockExclusive);
    lock(&theirs).expect("nobody has it");
    assert_eq!(lock(&ours), Err(Errno::WOULDBLOCK));
    flock(&theirs, FlockOperation::Unlock).expect("unlock");
    lock(&ours).expect("it is free");
    assert_eq!(lock(&theirs), Err(Errno::WOULDBLOCK));
    flock(&ours, FlockOperation::Unlock).expect("unlock");
    lock(&theirs).expect("it is free");
    two.kill();
    wait("the lock of a dead node is not free", || lock(&ours).is_ok());
    one.down();
}

#[test]
fn what_a_node_synced_outlives_its_death() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let mut two = join(dir.path(), &one, "two");
    fs::write(two.mountpoint.join("synced"), "durable").expect("write");
    run(starling().arg("sync").arg(&two.mountpoint));
    two.kill();
    assert_eq!(fs::read_to_string(one.mountpoint.join("synced")).expect("read"), "durable");
    fs::write(one.mountpoint.join("synced"), "changed by one").expect("write");
    two.up_again();
    assert_eq!(fs::read_to_string(two.mountpoint.join("synced")).expect("read"), "changed by one");
    two.down();
    one.down();
}

#[test]
fn a_node_goes_on_when_the_first_one_was_killed_and_is_back() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (mut one, listen) = first_node(dir.path(), "one");
    let two = join(dir.path(), &one, "two");
    fs::write(two.mountpoint.join("file"), "durable").expect("write");
    run(starling().arg("sync").arg(&two.mountpoint));
    // A program at the second node has a file open, a lock, and changes that are not synced.
    let path = two.mountpoint.join("file");
    let mut open = fs::OpenOptions::new().read(true).append(true).open(path).expect("open");
    open.write_all(b", changed").expect("write");
    flock(&open, FlockOperation::NonBlockingLockExclusive).expect("lock");
    for (round, ending) in ["killed", "ended"].into_iter().enumerate() {
        match ending {
            "killed" => one.kill(),
            _ => one.down(),
        }
        // This waits until the first node is there again.
        let name = format!("made while it was {ending}");
        let (made, contents) = (two.mountpoint.join(&name), name.clone());
        let making = std::thread::spawn(move || fs::write(made, contents));
        one.up_with(&["--listen", &listen]);
        making.join().expect("thread").expect("make a file");
        let wanted = format!("durable, changed{}", " more".repeat(round));
        for node in [&one, &two] {
            assert_eq!(fs::read_to_string(node.mountpoint.join("file")).expect("read"), wanted);
            assert_eq!(fs::read_to_string(node.mountpoint.join(&name)).expect("read"), name);
        }
        open.write_all(b" more").expect("the handle goes on");
        open.sync_all().expect("nothing was lost");
        let theirs = fs::File::open(one.mountpoint.join("file")).expect("open");
        assert_eq!(flock(&theirs, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    }
    drop(open);
    // Nothing is left to be committed, so the node need not wait for the first one.
    one.down();
    two.down();
}

/// Joins a node that others reach.
fn join_listening(below: &Path, first: &Mounted, name: &str) -> Mounted {
    let listen = elsewhere();
    let flags = ["--name", name, "--background", "--listen", &listen];
    let (node, mut command) = joining(below, name, &invite(first, &[]), &flags);
    run(&mut command);
    node
}

#[test]
fn nodes_find_the_first_one_at_another_address() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (mut one, _) = first_node(dir.path(), "one");
    let mut two = join_listening(dir.path(), &one, "two");
    let mut three = join(dir.path(), &one, "three");
    let open = |node: &Mounted, name: &str| {
        let path = node.mountpoint.join(name);
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).expect("open");
        file.write_all(b"not synced").expect("write");
        file
    };
    let mut files = [open(&two, "by-two"), open(&three, "by-three")];
    // The first node tells the one, which listens. The other one asks that.
    one.kill();
    one.up_with(&["--listen", &elsewhere()]);
    for file in &mut files {
        file.write_all(b", and more").and_then(|()| file.sync_all()).expect("the session goes on");
    }
    for name in ["by-two", "by-three"] {
        assert_eq!(fs::read_to_string(one.mountpoint.join(name)).expect("read"), "not synced, and more");
    }
    drop(files);

    // All are off meanwhile.
    two.down();
    three.down();
    one.down();
    let listen = elsewhere();
    one.up_with(&["--listen", &listen]);
    two.up_again();
    let refused_at = refused(
        starling().arg("up").arg(&three.mountpoint).args(["--first-node", "nowhere", "--data"]).arg(&three.data),
    );
    assert!(refused_at.contains("--first-node nowhere: give ADDRESS:PORT"), "{refused_at}");
    three.up_with(&["--first-node", &listen]);
    three.down();
    three.up_again();
    assert_eq!((&contents(&two), contents(&two).len()), (&contents(&three), 2));
    three.down();
    two.down();
    one.down();
    let of_first =
        refused(starling().arg("up").arg(&one.mountpoint).args(["--first-node", &listen, "--data"]).arg(&one.data));
    assert!(of_first.contains("for a node that has joined"), "{of_first}");
}

/// How many managers each node serves, as a node says.
fn managers(of: &Mounted) -> Vec<u64> {
    let all = answer(starling().arg("nodes").arg(&of.mountpoint));
    let nodes = all["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["managers"].as_u64().expect("a number")).collect()
}

/// Appends lines to a file, each of them synced, until it is told to end. Returns how many.
fn append_and_sync(path: &Path, ends: &AtomicBool) -> std::io::Result<u64> {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path)?;
    let mut count = 0;
    while !ends.load(SeqCst) {
        writeln!(file, "{count}")?;
        file.sync_all()?;
        // Other files belong to other managers.
        fs::write(path.with_extension(format!("{}", count % 16)), format!("{count}"))?;
        count += 1;
    }
    Ok(count)
}

#[test]
fn managers_are_spread_over_nodes_and_one_of_these_may_die() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (mut one, listen) = first_node(dir.path(), "one");
    fs::write(one.mountpoint.join("before"), "durable").expect("write");
    run(starling().arg("sync").arg(&one.mountpoint));
    let two = join_listening(dir.path(), &one, "two");
    let mut three = join_listening(dir.path(), &one, "three");
    let ends = Arc::new(AtomicBool::new(false));
    let work = |node: &Mounted, name: &str| {
        let (path, ends) = (node.mountpoint.join(name), ends.clone());
        std::thread::spawn(move || append_and_sync(&path, &ends))
    };
    let works = [work(&one, "by-one"), work(&two, "by-two")];
    let is_spread = |of: &Mounted| managers(of).iter().all(|count| *count > 0);
    wait("the managers do not spread", || is_spread(&two));
    three.kill();
    wait("no other node serves its managers", || managers(&two)[2] == 0);
    three.up_again();
    wait("the managers do not spread again", || is_spread(&three));
    // At its start, the first node serves all managers.
    one.kill();
    one.up_with(&["--listen", &listen]);
    let asks = || starling().arg("nodes").arg(&three.mountpoint).output().expect("start");
    wait("a node does not find the first one again", || asks().status.success());
    wait("the managers do not spread after a start", || is_spread(&three));
    three.down();
    assert_eq!(managers(&one)[2], 0);
    ends.store(true, SeqCst);
    let [by_one, by_two] = works.map(|work| work.join().expect("thread"));
    assert!(by_one.is_err(), "its mount has ended");
    let count = by_two.expect("a node whose managers' nodes die only waits");
    let lines: String = (0..count).map(|line| format!("{line}\n")).collect();
    assert_eq!(fs::read_to_string(one.mountpoint.join("by-two")).expect("read"), lines);
    assert_eq!(fs::read_to_string(one.mountpoint.join("before")).expect("read"), "durable");
    assert_eq!(contents(&one), contents(&two));
    two.down();
    one.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&one.data)).contains("no problems"));
}

#[test]
fn stores_move_to_nodes_and_one_of_them_may_be_lost() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let listen = format!("127.0.0.1:{}", free_port());
    let mut one = Mounted::up(dir.path(), "one", &["--stores", "3", "--store-size", "256MiB", "--listen", &listen]);
    let write = |node: &Mounted, name: &str| {
        let bytes = name.repeat(5000);
        let mut file = fs::File::create(node.mountpoint.join(name)).expect("create");
        file.write_all(bytes.as_bytes()).and_then(|()| file.sync_all()).expect("write and sync");
    };
    write(&one, "before");
    let mut two = join_with_store(dir.path(), &one, "two");
    let mut three = join_with_store(dir.path(), &one, "three");
    for node in [&one, &two, &three] {
        write(node, &format!("beside-{}", node.data.file_stem().expect("name").display()));
    }
    let spread = json!([[0], [2], [1]]);
    wait("the stores do not spread", || stores(&three) == spread);
    let all = answer(starling().arg("nodes").arg(&two.mountpoint));
    let survives = all["survives"].as_str().expect("text");
    assert!(survives.contains("the loss of the stores of any one node"), "{survives}");
    assert!(!one.data.join("store-1").exists() && !one.data.join("store-2").exists(), "moved stores are still here");
    for node in [&one, &two, &three] {
        write(node, &format!("after-{}", node.data.file_stem().expect("name").display()));
    }
    let all = contents(&one);
    assert_eq!((all.len(), &all), (7, &contents(&three)));

    // A node with a store dies; it is not needed, and comes back at another address.
    two.kill();
    write(&three, "without-two");
    write(&one, "without-two-either");
    two.up_with(&["--listen", &format!("127.0.0.1:{}", free_port())]);
    write(&two, "two-again");
    let all = contents(&one);
    assert_eq!((&all, &all), (&contents(&two), &contents(&three)));

    // All end, and a store is lost for good.
    let trouble = || answer(starling().arg("status").arg(&one.mountpoint))["redundancy"]["lacking_segments"].clone();
    wait("what the store of two lacks is not restored", || trouble() == json!(0));
    // The first node ends first: it commits to the stores of the others.
    one.down();
    two.down();
    three.down();
    let lost = dir.path().join("three.stores/store-1");
    fs::remove_dir_all(&lost).expect("remove");
    let mut up = starling();
    up.arg("up").arg(&two.mountpoint).arg("--data").arg(&two.data).arg("--background");
    let mut starting = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
    one.up_with(&["--listen", &listen]);
    assert!(starting.wait().expect("wait").success(), "two is not mounted");
    assert_eq!((&contents(&one), &contents(&two)), (&all, &all));
    // An empty folder says that the store is lost for good.
    fs::create_dir(&lost).expect("make the folder");
    three.up_again();
    write(&three, "three-again");
    one.down();
    two.down();
    three.down();
}

/// A disk of a node dies: the node starts without it, gets another one, and all go on. The old disk
/// comes back, and is of no use.
#[test]
fn a_disk_of_a_node_is_replaced_while_all_go_on() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let one = Mounted::up(dir.path(), "one", &["--stores", "3", "--store-size", "256MiB", "--listen", &elsewhere()]);
    let mut two = join_with_store(dir.path(), &one, "two");
    let mut three = join_with_store(dir.path(), &one, "three");
    let data = two.data.clone();
    wait("the stores do not spread", || stores(&three) == json!([[0], [2], [1]]));
    let write = |node: &Mounted, name: &str| {
        let mut file = fs::File::create(node.mountpoint.join(name)).expect("create");
        file.write_all(name.repeat(5000).as_bytes()).and_then(|()| file.sync_all()).expect("write and sync");
    };
    write(&two, "before");
    let status = |of: &Mounted| answer(starling().arg("status").arg("--data").arg(&of.data));
    let lacking = || status(&one)["redundancy"]["lacking_segments"].clone();
    wait("the stores are not compared", || lacking() == json!(0));
    let replace = |flags: &[&str]| {
        let mut command = starling();
        command.args(["store", "replace", "store-2"]).arg(dir.path().join("new")).arg("--data").arg(&data);
        command.args(flags);
        command
    };
    assert!(refused(&mut replace(&[])).contains("store-2 in ") && dir.path().join("two.stores/store-2").exists());

    two.kill();
    let (disk, dead) = (dir.path().join("two.stores"), dir.path().join("dead"));
    fs::rename(&disk, &dead).expect("rename");
    fs::write(&disk, "not a folder").expect("write");
    write(&three, "without-two");
    two.up_again();
    let broken = status(&two)["stores"][0].clone();
    assert_eq!(broken["store"], json!(2));
    assert!(broken["trouble"].is_string(), "{broken}");
    write(&two, "without-its-disk");
    let said = run(&mut replace(&[]));
    assert!(said.contains("new/store-2 from now on"), "{said}");
    let is_up = || status(&one)["stores"].as_array().expect("stores").iter().all(|store| store["state"] == json!("up"));
    wait("the store is not in service", is_up);
    wait("what the lost disk had is not restored", || lacking() == json!(0));
    assert_eq!(status(&two)["stores"][0]["trouble"], json!(null));
    write(&two, "after");

    // The old one is back.
    two.down();
    fs::remove_file(&disk).and_then(|()| fs::rename(&dead, &disk)).expect("rename");
    two.up_again();
    let folder = status(&two)["stores"][0]["folder"].as_str().expect("a folder").to_string();
    assert!(folder.ends_with("new/store-2"), "{folder}");
    wait("the store is not in service", is_up);
    // Another one is lost for good.
    three.kill();
    let all = contents(&one);
    assert_eq!((all.len(), &all), (4, &contents(&two)));
    let is_away = || refused(&mut replace(&["--dead"])).contains("store-1 is away, too");
    wait("a store may be given up though another one is away", is_away);
    let at_first = refused(starling().args(["store", "replace", "0", "./new", "--data"]).arg(&one.data));
    assert!(at_first.contains("store-0 is used by the first node itself, in store-0"), "{at_first}");
    three.up_again();
    one.down();
    two.down();
    three.down();
}

#[test]
fn stores_of_nodes_are_found_after_all_have_other_addresses() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let listen = elsewhere();
    let mut one = Mounted::up(dir.path(), "one", &["--stores", "3", "--store-size", "256MiB", "--listen", &listen]);
    let nodes = ["two", "three"].map(|name| join_with_store(dir.path(), &one, name));
    fs::write(one.mountpoint.join("file"), "durable").expect("write");
    wait("the stores do not spread", || stores(&one) == json!([[0], [2], [1]]));
    one.down();
    nodes.iter().for_each(Mounted::down);
    // They serve their stores, and wait for the first node.
    let mut starting = nodes.each_ref().map(|node| {
        let mut up = starling();
        up.arg("up").arg(&node.mountpoint).arg("--data").arg(&node.data).args([
            "--listen",
            &elsewhere(),
            "--background",
        ]);
        up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start")
    });
    let status = || starling().args(["status", "--data"]).arg(&nodes[0].data).output().expect("start");
    wait("a node that waits is not found", || String::from_utf8_lossy(&status().stdout).contains("NO SESSION"));
    one.up_with(&["--listen", &listen]);
    assert!(starting.iter_mut().all(|node| node.wait().expect("wait").success()), "a node is not mounted");
    for node in nodes.iter().chain([&one]) {
        assert_eq!(fs::read_to_string(node.mountpoint.join("file")).expect("read"), "durable");
    }
    // What the first node has recorded is enough now.
    one.down();
    one.up_with(&["--listen", &listen]);
    one.down();
    nodes.iter().for_each(Mounted::down);
}

#[test]
fn stores_of_nodes_need_an_address_and_folders() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let (two, mut command) = joining(dir.path(), "two", &invite(&one, &[]), &["--store", "./stores"]);
    assert!(refused(&mut command).contains("add --listen ADDRESS:PORT"));
    let up = |flags: &[&str]| {
        let mut up = starling();
        up.arg("up").arg(&two.mountpoint).arg("--data").arg(&two.data).args(flags);
        refused(&mut up)
    };
    assert!(up(&["--store", "tcp://127.0.0.1:1"]).contains("takes folders"));
    let inside = two.mountpoint.join("stores").display().to_string();
    assert!(up(&["--listen", "127.0.0.1:0", "--store", &inside]).contains("choose folders beside each other"));
    one.down();
}

#[test]
fn invitations_are_for_one_node_and_for_one_file_system() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (mut one, _) = first_node(dir.path(), "one");
    let invitation = invite(&one, &["--name", "two"]);
    // The invitation on standard input.
    let (two, mut command) = joining(dir.path(), "two", "-", &["--background"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    let mut stdin = child.stdin.take().expect("input");
    writeln!(stdin, "# an invitation\n{invitation}").expect("write");
    drop(stdin);
    let joined = child.wait_with_output().expect("wait");
    assert!(joined.status.success(), "{}", text(&joined));

    let refuse = |name: &str, invitation: &str, flags: &[&str], word: &str| {
        let (node, mut command) = joining(dir.path(), name, invitation, flags);
        let said = refused(&mut command);
        assert!(said.contains(word), "{said}");
        assert!(!node.data.exists() && !node.mountpoint.exists(), "something is left behind");
    };
    refuse("three", &invitation, &[], "another node has used this invitation");
    refuse("three", &invite(&one, &[]), &["--name", "two"], "a node is called two already");
    refuse("three", &invite(&one, &["--name", "four"]), &["--name", "three"], "for a node called four");
    refuse("three", &invite(&one, &[]), &["--name", "a b"], "cannot be a node's name");
    refuse("three", "starlingnode1-aaaa", &[], "invitation");
    refuse("three", "starling1-aaaa", &[], "begins with starlingnode1-");
    let (other, other_listen) = first_node(dir.path(), "other");
    let of_other = invite(&other, &[]);
    other.down();
    refuse("three", &of_other, &[], &other_listen);

    // A data folder belongs to one node.
    let again = |invitation: &str| {
        let mut command = starling();
        command.args(["node", "join", invitation]).arg(dir.path().join("x.mnt")).arg("--data").arg(&two.data);
        refused(&mut command)
    };
    assert!(again(&invitation).contains("in use by process"));
    two.down();
    assert!(again(&of_other).contains("belongs to node two of another file system"));
    let mut up = starling();
    up.arg("up").arg(&two.mountpoint).arg("--data").arg(&two.data).args(["--parity", "2"]);
    assert!(refused(&mut up).contains("--parity is for the first node"));
    one.down();

    // Without a listener, no node can join, and one that has joined is not let in.
    let invite = |data: &Path| refused(starling().args(["node", "invite", "--data"]).arg(data));
    assert!(invite(&one.data).contains("starling up"));
    one.up_again();
    assert!(invite(&one.data).contains("--listen"));
    one.down();
}

/// A node without a mount. It ends with the test.
struct Unmounted {
    data: PathBuf,
}

impl Unmounted {
    /// Runs a command that starts it; what that says.
    fn start(data: &Path, command: &mut Command) -> (Unmounted, String) {
        let node = Unmounted { data: data.to_path_buf() };
        let said = run(command.arg("--no-mount").arg("--data").arg(data).arg("--background"));
        (node, said)
    }

    fn nodes(&self) -> Value {
        answer(starling().args(["nodes", "--data"]).arg(&self.data))["nodes"].clone()
    }

    fn down(&self) -> String {
        run(starling().args(["down", "--data"]).arg(&self.data))
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        // It may have ended.
        let _ = starling().args(["down", "--data"]).arg(&self.data).output();
    }
}

#[test]
fn a_node_without_a_mount_serves_stores_and_managers() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let data = dir.path().join("two.data");
    let join = |flags: &[&str]| {
        let mut command = starling();
        command.args(["node", "join", &invite(&one, &[]), "--name", "two"]).args(flags);
        command
    };
    assert!(refused(join(&["--no-mount"]).arg("--data").arg(&data)).contains("add --listen ADDRESS:PORT"));
    assert!(refused(join(&[]).arg("--data").arg(&data)).contains("MOUNTPOINT"));
    assert!(!data.exists(), "something is left behind");

    let listen = format!("127.0.0.1:{}", free_port());
    let stores = dir.path().join("two.stores").display().to_string();
    let (two, said) = Unmounted::start(&data, &mut join(&["--listen", &listen, "--store", &stores]));
    assert!(said.starts_with(&format!("serves managers and stores at {listen}; no mount\n")), "{said}");
    wait("it gets no store and no managers", || {
        let two = &two.nodes()[1];
        two["roles"] == json!(["storage", "manager"]) && two["managers"].as_u64() > Some(0)
    });
    fs::write(one.mountpoint.join("file"), "over both").expect("write");
    run(starling().arg("sync").arg(&one.mountpoint));
    let status = answer(starling().args(["status", "--data"]).arg(&data));
    assert_eq!((&status["node"]["name"], &status["node"]["in_session"]), (&json!("two"), &json!(true)));

    // The node remembers that it mounts nothing, until it is given a mount point.
    assert!(two.down().contains("everything is committed"));
    let up = |what: &[&str]| {
        let mut command = starling();
        command.arg("up").args(what).arg("--data").arg(&data).arg("--background");
        run(&mut command)
    };
    assert!(up(&[]).starts_with(&format!("serves managers and stores at {listen}; no mount\n")));
    two.down();
    let mounted = Mounted { mountpoint: dir.path().join("two.mnt"), data: data.clone() };
    up(&[&mounted.mountpoint.display().to_string()]);
    assert_eq!(fs::read_to_string(mounted.mountpoint.join("file")).expect("read"), "over both");
    assert_eq!(two.nodes()[1]["roles"][0], "client");
    mounted.down();
    assert!(refused(starling().arg("up").arg("--data").arg(&data)).contains("give the mount point, or --no-mount"));
    one.down();
}

#[test]
fn a_first_node_without_a_mount_serves_others() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (data, listen) = (dir.path().join("one.data"), format!("127.0.0.1:{}", free_port()));
    let said = refused(starling().args(["up", "--no-mount", "--data"]).arg(&data));
    assert!(said.contains("add --listen ADDRESS:PORT") && !data.exists(), "{said}");
    assert!(refused(starling().args(["up", "--data"]).arg(&data)).contains("give the mount point, or --no-mount"));

    let (one, said) = Unmounted::start(&data, starling().args(["up", "--store-size", "256MiB", "--listen", &listen]));
    assert!(said.starts_with(&format!("serves managers and stores at {listen}; no mount\n")), "{said}");
    assert_eq!(one.nodes()[0]["roles"], json!(["storage", "manager", "voter"]));
    let first = Mounted { mountpoint: dir.path().join("none"), data: data.clone() };
    let two = join(dir.path(), &first, "two");
    fs::write(two.mountpoint.join("file"), "at the first node").expect("write");
    assert_eq!(answer(starling().args(["scrub", "--data"]).arg(&data))["missing"], 0);
    two.down();
    assert!(answer(starling().args(["status", "--data"]).arg(&data))["stores"].is_array());
    one.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&data)).contains("no problems"));
    // With a mount point, it mounts.
    let mut first = first;
    first.up_again();
    assert_eq!(fs::read_to_string(first.mountpoint.join("file")).expect("read"), "at the first node");
    first.down();
}

#[test]
fn nodes_do_what_their_roles_say() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let listen = format!("127.0.0.1:{}", free_port());
    let data = dir.path().join("bad.data");
    let refuse = |flags: &[&str], word: &str| {
        let mut command = starling();
        let said = refused(command.args(["node", "join", &invite(&one, &[]), "--data"]).arg(&data).args(flags));
        assert!(said.contains(word) && !data.exists(), "{flags:?}: {said}");
    };
    let mountpoint = dir.path().join("bad.mnt").display().to_string();
    refuse(&["--roles", "client"], "--roles client: give the mount point");
    refuse(&["--roles", "manager", &mountpoint, "--listen", &listen], "--roles has no client");
    refuse(&["--roles", "manager"], "--roles manager: other nodes must reach this one");
    refuse(&["--roles", "storage", "--listen", &listen], "--roles storage: add --store DIR");
    refuse(&["--roles", "manager", "--store", "./s", "--listen", &listen], "--store: --roles has no storage");
    refuse(&["--roles", "driver"], "driver");

    // A node that listens and is to serve no managers.
    let flags = ["--name", "two", "--background", "--listen", &listen, "--roles", "client"];
    let (mut two, mut command) = joining(dir.path(), "two", &invite(&one, &[]), &flags);
    run(&mut command);
    let (data, listen) = (dir.path().join("three.data"), format!("127.0.0.1:{}", free_port()));
    let mut command = starling();
    command.args(["node", "join", &invite(&one, &[]), "--name", "three", "--listen", &listen, "--data"]);
    let said = run(command.arg(&data).args(["--roles", "manager", "--background"]));
    let three = Unmounted { data };
    assert!(said.starts_with(&format!("serves managers at {listen}; no mount\n")), "{said}");
    wait("the managers do not spread", || managers(&one) == [2, 0, 2]);
    let all = three.nodes();
    assert_eq!((&all[1]["roles"], &all[2]["roles"]), (&json!(["client"]), &json!(["manager"])));
    // It remembers that.
    two.down();
    two.up_again();
    assert_eq!(three.nodes()[1]["roles"], json!(["client"]));
    two.down();
    two.up_with(&["--roles", "client,manager"]);
    wait("the managers do not spread to two", || managers(&one).iter().all(|count| *count > 0));
    assert_eq!(three.nodes()[1]["roles"], json!(["client", "manager"]));
    two.down();
    three.down();
    one.down();
}

/// What a node says about a file.
fn who(of: &Mounted, name: &str) -> Value {
    let mut said = answer(starling().arg("who").arg(of.mountpoint.join(name)));
    assert_eq!(said["path"], of.mountpoint.join(name).display().to_string());
    said["path"] = Value::Null;
    said
}

#[test]
fn who_holds_and_who_waits_is_shown_on_all_nodes() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    let first = answer(starling().args(["nodes", "--data"]).arg(&one.data))["leader"].clone();
    let two = join(dir.path(), &one, "two");
    fs::create_dir(two.mountpoint.join("dir")).expect("mkdir");
    let ours = fs::File::create_new(two.mountpoint.join("dir/file")).expect("create");
    (&ours).write_all(b"changed").expect("write");

    // To look takes nothing from the node that holds the file.
    let holds = json!([{ "node": "two", "mode": "write", "recalled": null }]);
    for _ in 0..2 {
        let said = who(&one, "dir/file");
        assert_eq!((&said["tokens"]["holders"], &said["shared"]), (&holds, &json!(true)), "{said}");
        assert_eq!(said["manager"]["node"], first);
        assert_eq!((&said["locks"]["held"], &said), (&json!([]), &who(&two, "dir/file")));
    }
    let number = who(&one, "dir/file")["file"].as_u64();
    flock(&ours, FlockOperation::NonBlockingLockExclusive).expect("lock");
    let theirs = fs::File::open(one.mountpoint.join("dir/file")).expect("open");
    assert_eq!(number, Some(theirs.metadata().expect("stat").ino()));
    let waits = std::thread::spawn(move || flock(&theirs, FlockOperation::LockExclusive).map(|()| theirs));
    wait("nothing waits for the lock", || who(&two, "dir/file")["locks"]["waiting"][0].is_object());
    let said = who(&one, "dir/file");
    let (held, waiting) = (&said["locks"]["held"], &said["locks"]["waiting"]);
    assert_eq!((&held[0]["node"], &held[0]["mode"]), (&json!("two"), &json!("exclusive")), "{said}");
    assert_eq!((&waiting[0]["node"], &waiting[0]["for"][0]["node"]), (&first, &json!("two")), "{said}");
    assert_eq!((held.as_array().map(Vec::len), waiting.as_array().map(Vec::len)), (Some(1), Some(1)));
    assert_eq!(said, who(&two, "dir/file"));
    let text = run(starling().arg("who").arg(two.mountpoint.join("dir/file")));
    assert!(text.contains("lock waits") && text.contains("for two (process"), "{text}");

    drop(ours);
    let theirs = waits.join().expect("thread").expect("the lock");
    wait("the lock is still another's", || who(&two, "dir/file")["locks"]["held"][0]["node"] == first);
    assert_eq!(who(&one, "dir/file")["locks"]["waiting"], json!([]));
    drop(theirs);
    for path in [&one.mountpoint, &two.mountpoint] {
        assert!(run(starling().arg("who").arg(path)).contains("number 1\n"), "the root");
        assert!(refused(starling().arg("who").arg(path.join("dir/none"))).contains("no such file"));
        assert!(refused(starling().arg("who").arg(path.join("none/file"))).contains("No such file"));
    }
    assert!(refused(starling().arg("who").arg(dir.path())).contains("is not on a mounted starling"));
    two.down();
    one.down();

    // Without other nodes, nothing is shared.
    let alone = Mounted::up(dir.path(), "alone", &["--store-size", "256MiB"]);
    fs::write(alone.mountpoint.join("file"), "").expect("write");
    assert_eq!(who(&alone, "file")["shared"], json!(false));
    assert!(run(starling().arg("who").arg(alone.mountpoint.join("file"))).contains("nothing is shared"));
    assert!(refused(starling().arg("who").arg(alone.mountpoint.join("none"))).contains("No such file"));
    alone.down();
}

/// The one session of which a node keeps something.
fn kept(of: &Mounted) -> Value {
    let all = answer(starling().args(["kept", "list", "--data"]).arg(&of.data));
    all.as_array().and_then(|all| all.first().cloned()).unwrap_or_default()
}

#[test]
fn what_a_node_that_hung_had_not_synced_is_kept_aside() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (one, _) = first_node(dir.path(), "one");
    fs::write(one.mountpoint.join("base"), "from one ".repeat(50_000)).expect("write");
    fs::write(one.mountpoint.join("gone"), "from one").expect("write");
    let two = join(dir.path(), &one, "two");
    assert_eq!(kept(&two), Value::Null);
    let at = |name: &str| two.mountpoint.join(name);
    fs::write(at("synced"), "from two").expect("write");
    fs::File::open(at("synced")).and_then(|file| file.sync_all()).expect("sync");

    fs::create_dir(at("dir")).expect("mkdir");
    let report = "not synced ".repeat(10_000);
    fs::write(at("dir/report"), &report).expect("write");
    let mut base = fs::OpenOptions::new().append(true).open(at("base")).expect("open");
    base.write_all(b"and from two").expect("write");
    drop(base);
    fs::remove_file(at("gone")).expect("remove");
    fs::set_permissions(at("synced"), fs::Permissions::from_mode(0o600)).expect("chmod");
    two.signal(libc::SIGSTOP);
    // Waits until the node is declared dead.
    fs::write(one.mountpoint.join("base"), "changed meanwhile").expect("write");
    two.signal(libc::SIGCONT);
    wait("the node does not come back", || {
        fs::read_to_string(at("base")).is_ok_and(|base| base == "changed meanwhile")
    });
    assert!(!at("dir").exists() && at("gone").exists(), "the changes have come in time");

    let is_settled =
        || kept(&two)["names"].as_array().is_some_and(|names| names.iter().all(|name| name["is_lost"] == true));
    wait("nothing is kept", is_settled);
    let kept_now = kept(&two);
    let folder = two.data.join("kept/1");
    let copy = |name: &str| fs::read_to_string(folder.join("files").join(name)).expect("a copy");
    assert_eq!(copy("dir/report"), report);
    assert_eq!(copy("base"), "from one ".repeat(50_000) + "and from two");
    let files = kept_now["files"].as_array().expect("files");
    let paths: Vec<_> = files.iter().map(|file| (file["path"].as_str(), file["is_whole"].as_bool())).collect();
    assert!(paths.contains(&(Some("dir/report"), Some(true))) && paths.contains(&(Some("base"), Some(true))));
    assert!(paths.contains(&(Some("synced"), None)) && files.len() == 3, "{files:?}");
    let did = |name: &Value| format!("{} {}", name["did"].as_str().expect("did"), name["path"].as_str().expect("path"));
    let mut names: Vec<_> = kept_now["names"].as_array().expect("names").iter().map(did).collect();
    names.sort();
    assert_eq!(names, ["made dir", "made dir/report", "removed gone"]);
    let said = run(starling().args(["kept", "list", "--data"]).arg(&two.data));
    assert!(said.contains("changed   dir/report, 107.4 KiB: ") && said.contains("removed   gone\n"), "{said}");
    let status = run(starling().arg("status").arg(&two.mountpoint));
    assert!(status.contains("KEPT          what was not synced of a session that has ended"), "{status}");

    // No program was told of the loss yet.
    let down = starling().arg("down").arg(&two.mountpoint).output().expect("start");
    let said = text(&down);
    assert!(
        !down.status.success()
            && said.contains("was over before all changes were synced")
            && said.contains("kept list"),
        "{said}"
    );
    run(starling().args(["kept", "forget", "1", "--data"]).arg(&two.data));
    let said = run(starling().args(["kept", "list", "--data"]).arg(&two.data));
    assert!(said.starts_with("nothing is kept") && !folder.exists(), "{said}");
    one.down();
}
