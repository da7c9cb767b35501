//! Bugs that were found with homes on real mounts.

mod common;
#[path = "common/roaming.rs"]
mod roaming;

use roaming::{Home, LONG, Laptop};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A home whose data folder is on another file system than what it exports.
fn apart(below: &Path) -> (tempfile::TempDir, Home) {
    let exported = tempfile::tempdir_in("/dev/shm").expect("folder");
    std::os::unix::fs::symlink(exported.path(), below.join("src")).expect("symlink");
    (exported, Home::serve(below))
}

/// All names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let listed = fs::read_dir(folder).expect("list").map(|entry| entry.expect("entry").file_name());
    let mut names: Vec<String> = listed.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// As after `git clean -fdx` or `rsync --delete`: three files that were saved became 1,338
/// conflicts in four seconds.
#[test]
fn regression_what_is_saved_goes_home_when_the_homes_folder_was_removed() {
    let below = tempfile::tempdir().expect("folder");
    let (exported, home) = apart(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    for round in 0..3 {
        fs::remove_dir_all(exported.path().join(".starling")).expect("it is there");
        // The first goes home with the operation that stores it. The others are uploaded before.
        for (name, count) in [("a", 10_000), ("b", 200_000), ("c", 200_000)] {
            fs::write(laptop.mountpoint.join(name), format!("{name}{round}").repeat(count)).expect("write");
        }
        laptop.wait_until_home(LONG);
        assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
        assert_eq!(names(exported.path()), [".starling", "a", "b", "c"]);
        assert_eq!(fs::read_to_string(exported.path().join("b")).expect("read"), format!("b{round}").repeat(200_000));
    }
    assert_eq!(names(&laptop.mountpoint), ["a", "b", "c"]);
}

#[test]
fn a_home_keeps_what_it_makes_in_its_data_folder_where_it_can() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let long = roaming::noise("long", 300_000);
    for text in ["first", &long, "last"] {
        fs::write(laptop.mountpoint.join("file"), text).expect("write");
        laptop.wait_until_home(LONG);
        assert_eq!(fs::read_to_string(home.exported.join("file")).expect("read"), text);
    }
    assert_eq!(names(&home.exported), ["file"]);
    assert_eq!(names(&home.data.join("uploads/src")), Vec::<String>::new());
}

/// The home looked up names from the root of what it exports, by paths that could be too long for
/// Linux.
#[test]
fn regression_paths_may_be_longer_than_linux_takes_at_once() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).expect("open");
    // The first names together are a path that Linux takes, and with the next one they are not.
    let names: Vec<String> = [255; 15].into_iter().chain([150, 255]).map(|len| "n".repeat(len)).collect();
    let last = "f".repeat(255);
    let mut here: OwnedFd = open(&laptop.mountpoint);
    for name in &names {
        rustix::fs::mkdirat(&here, &**name, Mode::RWXU).expect("mkdir");
        here = rustix::fs::openat(&here, &**name, flags, Mode::empty()).expect("open");
    }
    let make = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&here, &*last, make, Mode::RUSR | Mode::WUSR).expect("make");
    rustix::io::write(&file, b"deep").expect("write");
    drop(file);
    laptop.wait_until_home(LONG);
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
    let mut there = open(&home.exported);
    for name in &names {
        there = rustix::fs::openat(&there, &**name, flags, Mode::empty()).expect("it is at home");
    }
    let file = rustix::fs::openat(&there, &*last, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("open");
    let mut bytes = [0; 10];
    assert_eq!(rustix::io::read(&file, &mut bytes), Ok(4));
    // Temporary folders are removed by whole paths, which are too long.
    drop((here, there, file));
    let removed = std::process::Command::new("rm").arg("-rf").arg(home.exported.join(&names[0])).status();
    assert!(removed.expect("start").success());
}
