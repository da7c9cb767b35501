//! The clients that a home serves, its exports, and how mounts find it, as users see them: real
//! mounts over real folders.

mod common;
#[path = "common/roaming.rs"]
mod roaming;
#[path = "common/xattr.rs"]
mod xattr;

use common::{run, starling};
use roaming::{Home, LONG, Laptop, warm};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use xattr::get_xattr;

#[test]
fn status_says_why_a_home_is_not_the_one_that_was_meant() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    warm(&laptop.mountpoint);
    assert_eq!(laptop.ask(&["status"])["turned_away"], Value::Null);
    home.stop(libc::SIGTERM);
    fs::remove_dir_all(below.path().join("home")).expect("remove");
    home.start();
    let why = |laptop: &Laptop| laptop.ask(&["status"])["turned_away"].as_str().unwrap_or_default().to_string();
    laptop.wait(LONG, "another key", |laptop| why(laptop).contains("key"));
    assert!(run(starling().arg("status").arg(&laptop.mountpoint)).contains("turned away   "));
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("file")).expect("read"), "text", "what is cached stays");
}

#[test]
fn a_mount_is_known_by_its_volume_and_keeps_its_cache_with_its_user() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let mountpoint = below.path().join("work");
    let mount = |what: &str| {
        let mut command = starling();
        command.args(["mount", what]).arg(&mountpoint).env("XDG_DATA_HOME", below.path().join("data"));
        command
    };
    let down = || run(starling().arg("down").arg(&mountpoint));
    let address = home.address;
    run(mount(&home.invite(address)).arg("--background"));
    assert_eq!(fs::read_to_string(mountpoint.join("file")).expect("read"), "text");
    down();
    home.stop(libc::SIGTERM);
    run(mount("src").arg("--background"));
    assert_eq!(fs::read_to_string(mountpoint.join("file")).expect("read"), "text");
    down();
    let said = common::refused(mount("photos").arg("--background"));
    assert!(said.contains("photos"), "{said}");
    home.start();

    // Caches are private: nothing is written to a folder of another user, or to one that others can
    // look into.
    let cache = below.path().join("cache");
    fs::create_dir(&cache).expect("mkdir");
    let invitation = home.invite(address);
    fs::set_permissions(&cache, Permissions::from_mode(0o755)).expect("chmod");
    let said = common::refused(mount(&invitation).arg("--cache").arg(&cache));
    assert!(said.contains("chmod 700"), "{said}");
    fs::set_permissions(&cache, Permissions::from_mode(0o700)).expect("chmod");
    chown(&cache, Some(65_534), None).expect("chown");
    let said = common::refused(mount(&invitation).arg("--cache").arg(&cache));
    assert!(said.contains("another user's (number 65534)"), "{said}");
    assert_eq!(fs::read_dir(&cache).expect("list").count(), 0);
    // Nor was the invitation used up.
    chown(&cache, Some(fs::metadata(below.path()).expect("stat").uid()), None).expect("chown");
    run(mount(&invitation).arg("--background").arg("--cache").arg(&cache));
    down();
}

/// Other users of the machine can see a command line.
#[test]
fn an_invitation_is_read_from_a_file_or_from_standard_input() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let mountpoint = below.path().join("work");
    let mount = |from: &Path, cache: &str| {
        let mut command = starling();
        command.args(["mount", "--background", "--invitation"]).arg(from).arg(&mountpoint);
        command.arg("--cache").arg(below.path().join(cache));
        command
    };
    let paper = below.path().join("invitation");
    // As it was printed, with what may be around it.
    let write = || fs::write(&paper, format!("let in:\n{}\n\n", home.invite(home.address))).expect("write");
    for (from, cache) in [(&paper, "one"), (&PathBuf::from("-"), "two")] {
        write();
        run(mount(from, cache).stdin(File::open(&paper).expect("open")));
        assert_eq!(fs::read_to_string(mountpoint.join("file")).expect("read"), "text");
        run(starling().arg("down").arg(&mountpoint));
    }
    fs::write(&paper, "\n").expect("write");
    let said = common::refused(&mut mount(&paper, "three"));
    assert!(said.contains("has no invitation"), "{said}");
    let said = common::refused(mount(&below.path().join("nothing"), "three").arg("more"));
    assert!(said.contains("nothing"), "{said}");
}

#[test]
fn several_volumes_are_directories_of_one_mount() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve_more(below.path(), &["music", "photos"]);
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    let names = ["src", "music", "photos"];
    let (here, there) = (|path: &str| laptop.mountpoint.join(path), |path: &str| below.path().join(path));
    let listed = fs::read_dir(&laptop.mountpoint).expect("list").map(|entry| entry.expect("entry").file_name());
    assert_eq!(listed.collect::<BTreeSet<_>>(), names.map(Into::into).into());
    for name in names {
        fs::write(there(name).join("of the home"), name).expect("write");
        laptop.wait(LONG, "what is new at home", |_| here(name).join("of the home").exists());
        fs::create_dir(here(name).join("dir")).expect("mkdir");
        fs::write(here(name).join("dir/file"), name).expect("write");
    }
    laptop.wait_until_home(LONG);
    for name in names {
        assert_eq!(fs::read_to_string(there(name).join("dir/file")).expect("read"), name);
    }
    // Volumes are file systems of their own, and the root only holds them.
    let moved = fs::rename(here("src/dir/file"), here("music/file"));
    assert_eq!(moved.map_err(|e| e.kind()), Err(ErrorKind::CrossesDevices));
    assert_eq!(fs::create_dir(here("new")).map_err(|e| e.kind()), Err(ErrorKind::ReadOnlyFilesystem));
    fs::copy(here("src/dir/file"), here("music/copied")).expect("copy");
    run(starling().args(["hoard", "add"]).arg(here("music/dir")));
    assert_eq!(laptop.ask(&["hoard", "list"])[0]["path"], "music/dir");
    assert_eq!(laptop.ask(&["hoard", "walk"])["complete"], true);
    laptop.wait_until_home(LONG);
    // All volumes, or the one that a path leads to.
    laptop.link.off();
    for name in names {
        fs::write(here(name).join("dir/file"), "mine").expect("write");
    }
    let all = laptop.ask(&["pending"]);
    assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
    let some = run(starling().args(["pending", "--json"]).arg(here("photos/dir")));
    assert!(some.contains("photos/dir/file") && !some.contains("music"), "{some}");
    let status = laptop.ask(&["status"]);
    assert_eq!(
        (&status["pending"]["operations"], &status["volumes"][2]["pending"]["operations"]),
        (&3.into(), &1.into())
    );
    for name in ["music", "photos"] {
        fs::write(there(name).join("dir/file"), "theirs").expect("write");
    }
    laptop.stop(libc::SIGTERM);
    laptop.mount_again();
    let (here, there) = (|path: &str| laptop.mountpoint.join(path), |path: &str| below.path().join(path));
    assert_eq!(fs::read_to_string(here("photos/dir/file")).expect("read"), "mine");
    laptop.link.on();
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(there("src/dir/file")).expect("read"), "mine");
    let conflicts = laptop.ask(&["conflicts", "list"]);
    let paths: Vec<_> = conflicts.as_array().into_iter().flatten().map(|one| one["path"].as_str()).collect();
    assert_eq!(paths, [Some("music/dir/file"), Some("photos/dir/file")]);
    let number = conflicts[1]["number"].to_string();
    let refused = common::refused(starling().args(["conflicts", "show"]).arg(here("")).arg(&number));
    assert!(refused.contains("several volumes"), "{refused}");
    let conflict = |what: &[&str]| {
        let mut command = starling();
        run(command.args(["conflicts", what[0]]).arg(here("photos")).arg(&number).args(&what[1..]))
    };
    assert!(conflict(&["show"]).contains("+theirs"));
    conflict(&["resolve", "mine"]);
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(there("photos/dir/file")).expect("read"), "mine");
    assert_eq!(fs::read_to_string(there("music/dir/file")).expect("read"), "theirs");
    conflict(&["undo"]);
    assert_eq!(fs::read_to_string(here("photos/dir/file")).expect("read"), "theirs");
}

/// Both halves at once: the home's files are on a Starling file system.
#[test]
fn a_home_serves_what_is_on_a_starling_file_system() {
    let below = tempfile::tempdir().expect("folder");
    let core = common::Mounted::up(below.path(), "core", &[]);
    let exported = core.mountpoint.join("exported");
    fs::create_dir(&exported).expect("mkdir");
    std::os::unix::fs::symlink(&exported, below.path().join("src")).expect("symlink");
    let home = Home::serve(below.path());
    let (one, two) = (Laptop::mount(&home, below.path(), "one"), Laptop::mount(&home, below.path(), "two"));
    fs::create_dir(one.mountpoint.join("dir")).expect("mkdir");
    let long: Vec<u8> = (0..3_000_000u32).map(|i| (i / 977) as u8).collect();
    fs::write(one.mountpoint.join("dir/long"), &long).expect("write");
    one.wait_until_home(LONG);
    assert!(fs::read(exported.join("dir/long")).expect("read") == long);
    let long_is_there = |two: &Laptop| fs::read(two.mountpoint.join("dir/long")).is_ok_and(|bytes| bytes == long);
    two.wait(LONG, "what one has written", long_is_there);
    // By another program, on the file system itself.
    fs::write(exported.join("dir/long"), "short").expect("write");
    let short_is_there = |laptop: &Laptop| fs::read(laptop.mountpoint.join("dir/long")).is_ok_and(|b| b == b"short");
    two.wait(LONG, "what another program has written", short_is_there);
    one.link.off();
    fs::write(one.mountpoint.join("dir/away"), "in a tunnel").expect("write");
    fs::rename(one.mountpoint.join("dir"), one.mountpoint.join("renamed")).expect("rename");
    one.link.on();
    one.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(exported.join("renamed/away")).expect("read"), "in a tunnel");
    assert_eq!(one.ask(&["conflicts", "list"]), serde_json::json!([]));
}

/// syncfs(2) does not reach file systems in user space, and says that all is well.
#[test]
fn regression_what_is_home_on_a_starling_file_system_outlives_its_crash() {
    let below = tempfile::tempdir().expect("folder");
    let mut core = common::Mounted::up(below.path(), "core", &[]);
    let exported = core.mountpoint.join("exported");
    fs::create_dir(&exported).expect("mkdir");
    run(starling().arg("sync").arg(&core.mountpoint));
    std::os::unix::fs::symlink(&exported, below.path().join("src")).expect("symlink");
    let mut home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let long: Vec<u8> = (0..500_000u32).map(|i| (i / 977) as u8).collect();
    for round in 0..3 {
        fs::create_dir(laptop.mountpoint.join(format!("dir{round}"))).expect("mkdir");
        fs::write(laptop.mountpoint.join(format!("dir{round}/long")), &long).expect("write");
        fs::write(laptop.mountpoint.join(format!("dir{round}/short")), "short").expect("write");
    }
    run(starling().args(["sync", "--home"]).arg(&laptop.mountpoint));
    core.kill();
    home.stop(libc::SIGKILL);
    fs::write(laptop.mountpoint.join("dir0/short"), "changed meanwhile").expect("write");
    // The next mount gets the device number that the file system had.
    let _other = common::Mounted::up(below.path(), "other", &[]);
    core.up_again();
    for round in 0..3 {
        assert!(fs::read(exported.join(format!("dir{round}/long"))).is_ok_and(|bytes| bytes == long), "{round}");
        assert!(fs::read(exported.join(format!("dir{round}/short"))).is_ok_and(|bytes| bytes == b"short"), "{round}");
    }
    // They are the same files in the next mount: waiting changes go home, and cached files are not
    // fetched again.
    home.start();
    laptop.wait_until_home(LONG);
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    assert_eq!(fs::read_to_string(exported.join("dir0/short")).expect("read"), "changed meanwhile");
    for round in 0..3 {
        let path = laptop.mountpoint.join(format!("dir{round}/long"));
        assert_eq!(get_xattr(&path, "user.starling.state").expect("a state"), b"cached", "{round}");
        assert!(fs::read(path).is_ok_and(|bytes| bytes == long), "{round}");
    }
}

#[test]
fn a_client_that_is_turned_away_keeps_its_work_and_brings_it_home_when_it_is_invited_again() {
    let below = tempfile::tempdir().expect("folder");
    let mut home = Home::serve(below.path());
    fs::write(home.exported.join("file"), "text").expect("write");
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    let other = Laptop::mount(&home, below.path(), "other");
    warm(&laptop.mountpoint);
    let data = home.data.clone();
    let clients = || {
        let said = run(starling().args(["home", "clients", "--json", "--data"]).arg(&data));
        serde_json::from_str::<Value>(&said).expect("JSON")
    };
    let user = fs::metadata(&data).expect("data").uid();
    let connected = |at: usize| clients()[at]["connected"] == true;
    assert!(connected(0) && connected(1), "{}", clients());
    assert_eq!(clients()[0]["volumes"], serde_json::json!([{ "volume": "src", "user": user }]));
    let turn_away = |number: &str| {
        let mut command = starling();
        command.args(["home", "turn-away", number, "--data"]).arg(&data);
        command.output().expect("start")
    };
    assert!(common::text(&turn_away("9")).contains("there is no client 9"));
    assert!(turn_away("1").status.success());
    assert_eq!((&clients()[0]["turned_away"], &clients()[1]["turned_away"]), (&true.into(), &false.into()));
    assert!(run(starling().args(["home", "clients", "--data"]).arg(&data)).contains("   1  turned away  -  key "));
    // It goes on working offline, and its user can see why.
    laptop.wait(LONG, "why", |laptop| laptop.ask(&["status"])["turned_away"].is_string());
    fs::write(laptop.mountpoint.join("new"), "mine").expect("write");
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("file")).expect("read"), "text");
    fs::write(other.mountpoint.join("others"), "theirs").expect("write");
    other.wait_until_home(LONG);
    assert!(!home.exported.join("new").exists() && !laptop.mountpoint.join("others").exists());
    laptop.stop(libc::SIGTERM);
    laptop.mount_again();
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("new")).expect("read"), "mine");
    laptop.stop(libc::SIGTERM);

    let invitation = home.invite(laptop.link.address());
    laptop.mount_by(&invitation);
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("new")).expect("read"), "mine");
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    assert_eq!(clients()[0]["turned_away"], false);
    warm(&laptop.mountpoint);
    // The same invitation again needs no network, even after another client used it.
    laptop.stop(libc::SIGTERM);
    home.stop(libc::SIGTERM);
    laptop.mount_by(&invitation);
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("others")).expect("read"), "theirs");
    let said = common::refused(starling().args(["home", "clients", "--data"]).arg(&data));
    assert!(said.contains("no home serves from"), "{said}");
}

#[test]
fn invitations_are_for_one_use_and_caches_for_one_home() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let token = home.invite(home.address);
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    laptop.stop(libc::SIGTERM);
    let mount = |what: &str, cache: &Path| {
        let mut command = starling();
        command.arg("mount").arg(what).arg(below.path().join("mnt")).arg("--cache").arg(cache);
        common::refused(&mut command)
    };
    let other = below.path().join("other.cache");
    assert!(mount(&token[..token.len() - 4], &other).contains("invitation"));
    let mut elsewhere = token.clone();
    elsewhere.replace_range(20..21, if &token[20..21] == "a" { "b" } else { "a" });
    assert!(mount(&elsewhere, &other).contains("copy it again"));
    assert!(mount("work", &other).contains("give an invitation"));
    // Another client uses it up.
    let mut used = starling();
    used.arg("mount").arg(&token).arg(below.path().join("mnt")).arg("--cache").arg(below.path().join("first.cache"));
    let mut used = used.arg("--background").spawn().expect("start");
    assert!(used.wait().expect("wait").success());
    // Nothing is mounted over it.
    assert!(mount(&home.invite(home.address), &other).contains("is a mount of starling already"));
    run(starling().arg("down").arg(below.path().join("mnt")));
    assert!(mount(&token, &other).contains("used before"));
    assert!(!other.exists(), "what was made for it is there still");
    // Another home's invitation does not fit a cache.
    let second = tempfile::tempdir().expect("folder");
    let another = Home::serve(second.path());
    assert!(mount(&another.invite(another.address), &laptop.cache).contains("another home"));
    // A folder that others can look into is refused as a cache.
    let open = below.path().join("open.cache");
    fs::create_dir(&open).expect("mkdir");
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    assert!(mount(&home.invite(home.address), &open).contains("chmod 700"));
}
