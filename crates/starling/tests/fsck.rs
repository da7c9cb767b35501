//! `starling fsck` on a file system that lost more than its parity makes up for.

mod common;

use common::{Mounted, run, starling, text};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const STORES: &[&str] = &["--stores", "3", "--store-size", "128MiB"];
/// Whole blocks, so that no other data lie in a damaged one.
const LEN: usize = 4 << 16;

/// Contents whose stretches all differ from each other.
fn contents(mark: &[u8]) -> Vec<u8> {
    mark.iter().copied().cycle().take(LEN).collect()
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|window| window == mark)
}

/// Overwrites everything in a store that has one of the marks, in stretches of 512 bytes.
fn damage(store: &Path, marks: &[&[u8]]) -> usize {
    let path = store.join("fragments");
    let bytes = fs::read(&path).expect("fragments");
    let file = OpenOptions::new().write(true).open(&path).expect("fragments");
    let mut count = 0;
    for (i, stretch) in bytes.chunks(512).enumerate() {
        if marks.iter().any(|mark| contains(stretch, mark)) {
            file.write_all_at(&vec![0xdb; stretch.len()], i as u64 * 512).expect("write");
            count += 1;
        }
    }
    count
}

fn sync(fs: &Mounted) {
    run(starling().arg("sync").arg(&fs.mountpoint));
}

fn fsck(data: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let output = starling().arg("fsck").arg("--data").arg(data).args(flags).output().expect("start");
    (output.status.code(), text(&output))
}

#[test]
fn files_that_are_lost_are_named_with_what_is_lost_of_them() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", STORES);
    let at = |name: &str| fs.mountpoint.join(name);
    fs::create_dir_all(at("d/deep")).expect("mkdir");
    fs::write(at("whole"), contents(b"whole file.")).expect("write");
    sync(&fs);
    fs::write(at("lost"), contents(b"LOST FILE..")).expect("write");
    fs::write(at("d/deep/lost too"), contents(b"LOST TOO...")).expect("write");
    sync(&fs);
    fs::write(at("d/small"), "small and whole").expect("write");
    fs.down();

    // Damage to one store loses nothing.
    assert!(damage(&fs.data.join("store-0"), &[b"LOST FILE..", b"LOST TOO..."]) > 0);
    let (code, said) = fsck(&fs.data, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no problems"), "{said}");
    for store in ["store-1", "store-2"] {
        assert!(damage(&fs.data.join(store), &[b"LOST FILE..", b"LOST TOO..."]) > 0);
    }
    let (code, said) = fsck(&fs.data, &[]);
    assert_eq!(code, Some(1), "{said}");
    for name in ["/lost", "/d/deep/lost too"] {
        let line = said.lines().find(|line| line.starts_with(&format!("problem: {name}: file 0x")));
        assert!(line.is_some_and(|l| l.ends_with("cannot be read at bytes 0..262144")), "{name}: {said}");
    }
    assert!(said.contains("2 problems\n") && said.contains("what to do: ") && said.contains("from a copy"), "{said}");
    let (code, said) = fsck(&fs.data, &["--json"]);
    let report: serde_json::Value =
        serde_json::from_str(&said[said.find('{').expect("JSON")..=said.rfind('}').expect("JSON")]).expect("JSON");
    assert_eq!((code, &report["problem_count"], &report["stores_away"]), (Some(1), &2.into(), &serde_json::json!([])));

    fs.up_again();
    assert_eq!(fs::read(fs.mountpoint.join("whole")).expect("read"), contents(b"whole file."));
    assert_eq!(fs::read_to_string(fs.mountpoint.join("d/small")).expect("read"), "small and whole");
    let lost = fs::read(fs.mountpoint.join("lost")).expect_err("read what is lost");
    assert_eq!(lost.raw_os_error(), Some(libc::EIO));
    // As fsck advises: put back the lost files.
    fs::write(fs.mountpoint.join("lost"), "from a copy").expect("write");
    fs::remove_file(fs.mountpoint.join("d/deep/lost too")).expect("remove");
    fs.down();
    let (code, said) = fsck(&fs.data, &[]);
    assert!(code == Some(0) && said.contains("no problems"), "{said}");
}

#[test]
fn a_directory_that_is_lost_is_named_and_the_others_are_checked() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", STORES);
    let at = |name: &str| fs.mountpoint.join(name);
    for name in ["lost", "whole"] {
        fs::create_dir(at(name)).expect("mkdir");
        sync(&fs);
        (0..20).for_each(|i| fs::write(at(&format!("{name}/NAME-{name}-{i}")), "contents").expect("write"));
        sync(&fs);
    }
    fs.down();
    let damaged: usize = (0..3).map(|i| damage(&fs.data.join(format!("store-{i}")), &[b"NAME-lost-"])).sum();
    assert!(damaged >= 2, "{damaged}");
    let (code, said) = fsck(&fs.data, &[]);
    assert_eq!(code, Some(1), "{said}");
    let line = said.lines().find(|line| line.starts_with("problem: /lost/: directory 0x"));
    assert!(line.is_some_and(|line| line.contains("cannot be listed beyond 0 names")), "{said}");
    assert!(said.contains("the managers know 43 files, 23 are reachable from the root"), "{said}");
    assert!(!said.contains("/whole"), "{said}");
}

#[test]
fn of_very_many_problems_some_are_listed_and_all_are_counted() {
    const COUNT: usize = 1050;
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", &[STORES, &["--block-size", "4KiB"]].concat());
    let at = |i: usize| fs.mountpoint.join(i.to_string());
    // First the names, so that no directory lies beside the contents.
    (0..COUNT).for_each(|i| fs::write(at(i), "").expect("create"));
    sync(&fs);
    (0..COUNT).for_each(|i| fs::write(at(i), &contents(b"LOST FILE..")[..4096]).expect("write"));
    sync(&fs);
    fs.down();
    (0..3).for_each(|i| assert!(damage(&fs.data.join(format!("store-{i}")), &[b"LOST FILE.."]) > 0));
    let (code, said) = fsck(&fs.data, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("problem: ")).count(), 1000);
    assert!(said.contains("1050 problems, 50 of them not listed"), "{said}");
}

#[test]
fn stores_that_are_away_are_named_with_the_files_that_need_them() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", STORES);
    fs::write(fs.mountpoint.join("needs them"), contents(b"LOST FILE..")).expect("write");
    fs.down();
    damage(&fs.data.join("store-1"), &[b"LOST FILE.."]);
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(fs.data.join("store-0"), &elsewhere).expect("take away");
    let (code, said) = fsck(&fs.data, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("store store-0 is not there or fails") && said.contains("bring the stores back"), "{said}");
    assert!(said.contains("problem: /needs them: file 0x"), "{said}");
    fs::rename(&elsewhere, fs.data.join("store-0")).expect("bring back");
    let (code, said) = fsck(&fs.data, &[]);
    assert!(code == Some(0) && said.contains("no problems"), "{said}");
}

#[test]
fn damage_that_leaves_nothing_to_walk_is_said_to_be_that() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", STORES);
    // A target is kept with the inode, in the log of a manager.
    std::os::unix::fs::symlink("TARGET-IN-AN-INODE", fs.mountpoint.join("link")).expect("symlink");
    fs.down();
    let damaged: usize = (0..3).map(|i| damage(&fs.data.join(format!("store-{i}")), &[b"TARGET-IN-AN-INODE"])).sum();
    assert!(damaged >= 2, "{damaged}");
    let (code, said) = fsck(&fs.data, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("put back the right ones") && said.contains("from a copy"), "{said}");
}

#[test]
fn regression_a_check_leaves_access_times_alone() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", STORES);
    let path = fs.mountpoint.join("file");
    fs::write(&path, "read by nobody").expect("write");
    // Older than the last change: the next read would move it.
    run(Command::new("touch").args(["-a", "-d", "2001-02-03 UTC"]).arg(&path));
    let atime = |path: &Path| fs::metadata(path).and_then(|m| m.accessed()).expect("access time");
    let before = atime(&path);
    fs.down();
    assert_eq!(fsck(&fs.data, &[]).0, Some(0));
    fs.up_again();
    assert_eq!(atime(&path), before);
    fs::read(&path).expect("read");
    assert_ne!(atime(&path), before, "this one counts");
    fs.down();
}
