//! Stores in processes of their own, over TCP and TLS: the promises of a mount while they come and
//! go, and the refusal of setups that cannot work.

mod common;

use common::{Mounted, StoreProcess, refused, run, starling, tree};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn stores(below: &Path, count: usize, keys: Option<&Path>) -> Vec<StoreProcess> {
    (0..count).map(|i| StoreProcess::start(below.join(format!("s{i}")), keys)).collect()
}

/// `--store` for each.
fn places<'a>(stores: impl IntoIterator<Item = &'a StoreProcess>) -> Vec<String> {
    stores.into_iter().flat_map(|store| ["--store".to_string(), store.place()]).collect()
}

fn up(below: &Path, flags: &[String]) -> Mounted {
    let mut all = vec!["--store-size", "256MiB"];
    all.extend(flags.iter().map(String::as_str));
    Mounted::up(below, "fs", &all)
}

fn status(fs: &Mounted) -> Value {
    serde_json::from_str(&run(starling().args(["status", "--json"]).arg(&fs.mountpoint))).expect("status")
}

fn state(fs: &Mounted, store: usize) -> String {
    status(fs)["stores"][store]["state"].as_str().unwrap_or("?").to_string()
}

/// Probes come every few seconds.
fn wait_until_up(fs: &Mounted, store: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while state(fs, store) != "up" {
        assert!(Instant::now() < deadline, "store {store} does not come back: {}", status(fs)["stores"]);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Small files in a folder, and a large one.
fn write(folder: &Path) {
    fs::create_dir(folder).expect("folder");
    for i in 0..50 {
        fs::write(folder.join(format!("small-{i}")), format!("{i} ").repeat(i)).expect("write");
    }
    let large: Vec<u8> = (0..5_000_000u32).map(|i| (i ^ i >> 8) as u8).collect();
    fs::write(folder.join("large"), large).expect("write");
}

fn scrub(fs: &Mounted) -> Value {
    run(starling().args(["scrub", "--repair"]).arg(&fs.mountpoint));
    serde_json::from_str(&run(starling().args(["scrub", "--json"]).arg(&fs.mountpoint))).expect("scrub")
}

fn assert_clean(report: &Value) {
    assert_eq!((&report["missing"], &report["damaged"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn a_mount_over_five_processes_outlives_the_death_of_each() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut stores = stores(dir.path(), 5, None);
    let mut fs = up(dir.path(), &places(&stores));
    assert_eq!(status(&fs)["stores"][4]["place"], Value::from(stores[4].place()));

    write(&fs.mountpoint.join("before"));
    run(starling().arg("sync").arg(&fs.mountpoint));
    stores[3].kill();
    write(&fs.mountpoint.join("without"));
    run(starling().arg("sync").arg(&fs.mountpoint));
    assert_ne!(state(&fs, 3), "up");
    stores[3].restart();
    wait_until_up(&fs, 3);
    assert_clean(&scrub(&fs));
    // Another one may go now: all that was written while store 3 was away has its redundancy back.
    stores[0].kill();
    let synced = tree(&fs.mountpoint);
    assert_eq!(synced.len(), 102);
    fs::write(fs.mountpoint.join("not-synced"), "may be lost").expect("write");
    fs.kill();

    fs.up_again();
    let mut found = tree(&fs.mountpoint);
    found.remove(&fs.mountpoint.join("not-synced"));
    assert!(found == synced, "what was synced is not all there: {} files", found.len());
    stores[0].restart();
    wait_until_up(&fs, 0);
    assert_clean(&scrub(&fs));
    fs.down();
    assert!(run(starling().arg("fsck").arg("--data").arg(&fs.data)).contains("no problems"));
    assert!(stores.iter_mut().all(StoreProcess::terminate), "a store did not close cleanly");
}

#[test]
fn a_store_that_lost_everything_is_made_anew_and_folders_and_processes_mix() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut processes = stores(dir.path(), 2, None);
    let mut flags = places(&processes);
    flags.extend(["--store".to_string(), dir.path().join("s2").display().to_string()]);
    let mut fs = up(dir.path(), &flags);
    write(&fs.mountpoint.join("a"));
    fs.down();
    // The folder's process may be another one next time, and the other way round.
    processes[0].kill();
    fs::remove_dir_all(dir.path().join("s0")).expect("lose a store");
    processes[0].restart();
    let moved = StoreProcess::start(dir.path().join("s2"), None);
    let flags = places(processes.iter().chain([&moved]));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    fs.up_with(&flags);
    assert_clean(&scrub(&fs));
    assert!(status(&fs)["stores"][0]["fragments"].as_u64() > Some(0), "its share was not restored");
    fs.down();
    fs.up_again();
    assert_eq!(status(&fs)["stores"][2]["place"], Value::from(moved.place()));
    assert_eq!(tree(&fs.mountpoint).len(), 51);
    fs.down();
}

#[test]
fn of_two_stores_one_may_be_replaced_but_not_missing() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mountpoint = dir.path().join("fs.mnt");
    let mut command = starling();
    command.arg("up").arg(&mountpoint).arg("--data").arg(dir.path().join("fs.data"));
    let made = command.args(["--stores", "2", "--store-size", "64MiB", "--background"]).output().expect("start");
    assert!(common::text(&made).contains("it starts only while 2 of 2 are there"), "{made:?}");
    let mut fs = Mounted { mountpoint, data: dir.path().join("fs.data") };
    write(&fs.mountpoint.join("a"));
    fs.down();
    let (store, away) = (fs.data.join("store-1"), dir.path().join("away"));
    fs::rename(&store, &away).expect("take it away");
    let said = refused(starling().arg("up").arg(&fs.mountpoint).arg("--data").arg(&fs.data));
    assert!(said.contains("only 1 of 2 stores can be opened and at least 2 are needed"), "{said}");
    fs::create_dir(&store).expect("another in its place");
    fs.up_again();
    assert_eq!(tree(&fs.mountpoint).len(), 51);
    assert!(wait_until_whole(&fs) > 0);
    fs.down();
}

/// Waits until maintenance has compared the stores and restored what they lacked; how many segments
/// that was.
fn wait_until_whole(fs: &Mounted) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let redundancy = &status(fs)["redundancy"];
        if redundancy["lacking_segments"] == 0 {
            return redundancy["restored_segments"].as_u64().expect("a number");
        }
        assert!(Instant::now() < deadline, "redundancy is not restored: {redundancy}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn regression_stores_that_come_back_old_one_after_the_other_lose_nothing() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = up(dir.path(), &[]);
    fs.down();
    let folder = |store: usize| fs.data.join(format!("store-{store}"));
    let aside = |store: usize| dir.path().join(format!("old-{store}"));
    for store in [0, 1] {
        run(Command::new("cp").arg("-r").arg(folder(store)).arg(aside(store)));
    }
    let folders = [folder(0), folder(1), folder(2)];
    fs.up_again();
    write(&fs.mountpoint.join("tree"));
    let written = tree(&fs.mountpoint);
    // Through a checkpoint: what is younger, a start puts again from the log.
    fs.down();
    for store in [0, 1] {
        fs::remove_dir_all(&folders[store]).expect("remove");
        fs::rename(aside(store), &folders[store]).expect("an old store");
        fs.up_again();
        assert!(wait_until_whole(&fs) > 0);
        assert_eq!(status(&fs)["stores"][store]["damaged"], 0);
        fs.down();
    }
    fs::rename(&folders[2], dir.path().join("away")).expect("take one away");
    fs.up_again();
    assert!(tree(&fs.mountpoint) == written, "all is there without a third one");
    let status = status(&fs);
    assert_eq!(status["redundancy"]["lacking_segments"], Value::Null, "nobody knows what it has");
    let at_least = |value: &Value, least: u64| assert!(value.as_u64() >= Some(least), "{status}");
    at_least(&status["cache"]["rebuilt"], 1);
    at_least(&status["cache"]["inode_misses"], 51);
    at_least(&status["space"]["parity_bytes"], 500_000);
    fs.down();
}

#[test]
fn a_mount_over_tls_outlives_a_store_and_itself() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let keys = dir.path().join("keys");
    let said = run(starling().arg("keys").arg(&keys));
    assert!(said.contains("ca.pem store.pem store-key.pem"), "{said}");
    let mut stores = stores(dir.path(), 3, Some(&keys));
    let mut flags = places(&stores);
    flags.extend(["--keys".to_string(), keys.display().to_string()]);
    let mut fs = up(dir.path(), &flags);
    write(&fs.mountpoint.join("a"));
    run(starling().arg("sync").arg(&fs.mountpoint));
    stores[1].kill();
    fs::write(fs.mountpoint.join("b"), "b").expect("write");
    run(starling().arg("sync").arg(&fs.mountpoint));
    let synced = tree(&fs.mountpoint);
    fs.kill();
    stores[1].restart();
    fs.up_again();
    assert!(tree(&fs.mountpoint) == synced, "what was synced is not all there");
    assert_clean(&scrub(&fs));
    fs.down();

    // Keys that were made elsewhere, and none.
    let others = dir.path().join("others");
    run(starling().arg("keys").arg(&others));
    let (mountpoint, data) = (dir.path().join("mnt"), dir.path().join("data"));
    fs::create_dir(&mountpoint).expect("mount point");
    let again = |flags: &[String]| {
        let mut command = starling();
        command.arg("up").arg(&mountpoint).arg("--data").arg(&data).args(flags);
        command
    };
    for keys in [Some(&others), None] {
        let mut flags = places(&stores);
        if let Some(keys) = keys {
            flags.extend(["--keys".to_string(), keys.display().to_string()]);
        }
        let said = refused(&mut again(&flags));
        assert!(said.contains(if keys.is_some() { "one `starling keys`" } else { "give --keys" }), "{said}");
    }
    let plain: Vec<String> = places(&stores).iter().map(|flag| flag.replace("tls:", "tcp:")).collect();
    let said = refused(&mut again(&plain));
    assert!(said.contains("use tls://"), "{said}");
    assert!(!data.join("stores.json").exists());
}

#[test]
fn what_cannot_be_served_or_reached_is_refused() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| dir.path().join(name);
    let store = |folder: &Path, listen: &str| {
        let mut command = starling();
        command.arg("store").arg(folder).args(["--listen", listen]);
        command
    };
    for (listen, word) in [
        ("0.0.0.0:0", "--keys"),
        ("[::]:0", "--keys"),
        ("127.0.0.1", "ADDRESS:PORT"),
        ("nowhere.invalid:1", "--listen nowhere.invalid:1"),
    ] {
        let said = refused(&mut store(&path("s"), listen));
        assert!(said.contains(word), "{listen}: {said}");
    }
    let said = refused(store(&path("s"), "127.0.0.1:0").arg("--keys").arg(path("nokeys")));
    assert!(said.contains("starling keys"), "{said}");
    assert!(!path("s").exists(), "a folder was made for nothing");

    let taken = TcpListener::bind("127.0.0.1:0").expect("listen");
    let said = refused(&mut store(&path("s"), &taken.local_addr().expect("address").to_string()));
    assert!(said.contains("in use"), "{said}");
    let running = StoreProcess::start(path("s0"), None);
    let said = refused(&mut store(&path("s0"), "127.0.0.1:0"));
    assert!(said.contains("in use by another process"), "{said}");
    fs::create_dir(path("foreign")).expect("folder");
    fs::write(path("foreign/thesis.txt"), "precious").expect("write");
    let said = refused(&mut store(&path("foreign"), "127.0.0.1:0"));
    assert!(said.contains("not a store"), "{said}");
    assert_eq!(fs::read_dir(path("foreign")).expect("list").count(), 1);

    // A store that greets with the version after ours.
    let future = TcpListener::bind("127.0.0.1:0").expect("listen");
    let future_port = future.local_addr().expect("address").port();
    std::thread::spawn(move || {
        for mut stream in future.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"STARWIRE\x63\0");
            let _ = std::io::Read::read(&mut stream, &mut [0; 64]);
        }
    });
    drop(taken);
    let (mountpoint, data) = (path("mnt"), path("data"));
    fs::create_dir(&mountpoint).expect("mount point");
    let mount = |second: &str| -> Command {
        let mut command = starling();
        command.arg("up").arg(&mountpoint).arg("--data").arg(&data).args(["--store-size", "128MiB"]);
        command.args(["--store", &running.place(), "--store", second]);
        command
    };
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("address");
    for (second, word) in [
        (format!("tcp://{closed}"), format!("store-1: tcp://{closed}: Connection refused")),
        (format!("tcp://127.0.0.1:{future_port}"), "version 99".into()),
        ("tls://nowhere.invalid:7450".into(), "needs keys".into()),
        ("tcp://192.0.2.1:7450".into(), "--keys".into()),
        ("udp://127.0.0.1:7450".into(), "tcp://HOST:PORT".into()),
    ] {
        let said = refused(&mut mount(&second));
        assert!(said.contains(&word), "{second}: {said}");
    }
    assert_eq!(fs::read_dir(path("s0")).expect("list").count(), 0, "a store was made for nothing");
    assert!(!data.exists(), "a data folder was made for nothing");
    let said = refused(&mut mount(&mountpoint.join("s1").display().to_string()));
    assert!(said.contains("beside each other"), "{said}");
    fs::write(path("file"), "").expect("write");
    let said = refused(&mut mount(&path("file").display().to_string()));
    assert!(said.contains("file"), "{said}");
    assert!(!data.exists() && fs::read_dir(&mountpoint).expect("list").count() == 0);

    let folder = path("s1");
    let second = StoreProcess::start(folder.clone(), None);
    let fs = up(dir.path(), &places([&running, &second]));
    let said = refused(&mut mount(&second.place()));
    assert!(said.contains("holds a file system already"), "{said}");
    let said = refused(&mut store(&folder, "127.0.0.1:0"));
    assert!(said.contains("in use by another process"), "{said}");
    fs.down();
    // The other way round, each store says what it is.
    let turned = places([&second, &running]);
    let said = refused(starling().arg("up").arg(&mountpoint).arg("--data").arg(&fs.data).args(&turned));
    assert!(said.contains("in their order"), "{said}");
}
