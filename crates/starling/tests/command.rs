//! The command as people use and misuse it: a mount between `up` and `down`. Every misuse is
//! refused in one line with exit code 2, and changes nothing.

mod common;

use common::{Mounted, refused, run, starling};
use record_log::checkpoint_pair::HEAD_LEN;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use striped_log::fragment::crc32c;

fn up(mountpoint: &Path, data: &Path) -> Command {
    let mut command = starling();
    command.arg("up").arg(mountpoint).arg("--data").arg(data).args(["--store-size", "128MiB"]);
    command
}

#[test]
fn a_file_system_lives_through_up_sync_down_and_up() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", &["--store-size", "128MiB", "--stores", "3", "--block-size", "16KiB"]);
    fs::write(fs.mountpoint.join("a"), "hello").expect("write");
    run(starling().arg("sync").arg(&fs.mountpoint));
    let json = run(starling().args(["status", "--json"]).arg(fs.mountpoint.join("a")));
    let status: serde_json::Value = serde_json::from_str(&json).expect("status");
    assert_eq!(status["stores"].as_array().map(Vec::len), Some(3));
    assert_eq!((&status["block_size"], &status["uncommitted_bytes"]), (&16384.into(), &0.into()));
    assert!(run(starling().arg("status").arg(&fs.mountpoint)).contains("store 2"));

    let other = dir.path().join("other");
    fs::create_dir(&other).expect("folder");
    let said = refused(&mut up(&other, &fs.data));
    assert!(said.contains("in use by process"), "{said}");

    fs.down();
    assert!(!fs.mountpoint.join("a").exists(), "still mounted");
    let said = refused(starling().arg("up").arg(&fs.mountpoint).arg("--data").arg(&fs.data).args(["--parity", "2"]));
    assert!(said.contains("--parity was fixed at 1"), "{said}");
    fs.up_again();
    assert_eq!(fs::read_to_string(fs.mountpoint.join("a")).expect("read"), "hello");
    fs.down();
}

#[test]
fn a_signal_commits_and_unmounts() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", &["--store-size", "128MiB"]);
    fs::write(fs.mountpoint.join("a"), "not synced").expect("write");
    let pid: i32 = fs::read_to_string(fs.data.join("lock")).expect("lock").trim().parse().expect("process id");
    // SAFETY: kill takes numbers only; the process is one that this test started.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let log = fs.data.join("control.sock");
    for _ in 0..500 {
        if !log.exists() && !fs.mountpoint.join("a").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(!fs.mountpoint.join("a").exists(), "still mounted 10 s after SIGTERM");
    fs.kill();
    fs.up_again();
    assert_eq!(fs::read_to_string(fs.mountpoint.join("a")).expect("read"), "not synced");
    fs.down();
}

#[test]
fn what_cannot_be_mounted_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (mountpoint, data) = (dir.path().join("mnt"), dir.path().join("data"));
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).expect("symlink");
    for (mountpoint, word) in [
        (dir.path().join("not/there"), "mkdir -p"),
        (file, "not a directory"),
        (data.join("mnt"), "beside each other"),
        (dir.path().join("elsewhere/s1/mnt"), "mkdir -p"),
        (dir.path().join("link/data/mnt"), "beside each other"),
        (dir.path().to_path_buf(), "beside each other"),
    ] {
        for flags in [&[][..], &["--background"]] {
            let said = refused(up(&mountpoint, &data).args(flags));
            assert!(said.contains(word), "{said}");
            assert!(!data.exists(), "a data folder was made");
        }
    }

    fs::create_dir(&mountpoint).expect("mount point");
    for (flags, word) in [
        (&["--parity", "3"][..], "--parity"),
        (&["--block-size", "5000"], "--block-size"),
        (&["--block-size", "many"], "not a size"),
        (&["--stores", "1"], "stores"),
        (&["--cache-size", "1KiB"], "--cache-size"),
        (&["--config", "/nonexistent.toml"], "configuration file"),
        (&["--stores", "many"], "--stores"),
        (&["--sotres", "4"], "--stores"),
        (&["--store-size", "1MiB"], "at least"),
        (&["--store-size", "1000TiB"], "no room for stores"),
        (&["--store", "/proc/nothing/here", "--store", "/proc/nothing/there"], "/proc/nothing/here"),
    ] {
        for more in [&[][..], &["--background"]] {
            let mut command = starling();
            command.arg("up").arg(&mountpoint).arg("--data").arg(data.join("below")).args(flags).args(more);
            let said = refused(&mut command);
            assert!(said.contains(word), "{flags:?}: {said}");
            assert!(!data.exists(), "{flags:?} left a data folder");
        }
    }
    for command in ["up", "frobnicate", "fsck"] {
        assert!(refused(starling().arg(command)).contains("see --help"));
    }

    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).expect("folder");
    fs::write(foreign.join("thesis.txt"), "precious").expect("write");
    let store = |folder: &Path| {
        let mut command = starling();
        command.arg("store").arg(folder).args(["--listen", "127.0.0.1:0"]);
        command
    };
    for mut command in [up(&mountpoint, &foreign), store(&foreign)] {
        for _ in 0..2 {
            let said = refused(&mut command);
            assert!(said.contains("foreign"), "{said}");
            assert_eq!(fs::read_dir(&foreign).expect("list").count(), 1, "something was added to a foreign folder");
            command.arg("--background");
        }
    }

    let said = refused(starling().arg("status").arg(dir.path()));
    assert!(said.contains("not on a mounted starling"), "{said}");
    let said = refused(starling().arg("fsck").arg("--data").arg(dir.path().join("nowhere")));
    assert!(said.contains("does not exist"), "{said}");
}

#[test]
fn help_is_by_command_and_by_topic_with_man_pages_and_completions() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let said = |arguments: &[&str]| run(starling().args(arguments));
    assert_eq!(said(&["help", "conflicts", "resolve"]), said(&["conflicts", "resolve", "--help"]));
    let all = said(&["help"]);
    assert!(all.contains("fsck") && all.contains("A disk died"), "{all}");
    let topic = said(&["help", "disk", "died"]);
    assert!(topic.starts_with("A disk died\n") && topic.contains("absent"), "{topic}");
    let several = said(&["help", "disk"]);
    assert!(several.contains("A disk died") && several.contains("A disk is full"), "{several}");
    assert!(refused(starling().args(["help", "frobnicate"])).contains("`starling help` lists them"));
    run(starling().arg("man").arg(dir.path().join("man")));
    let page = fs::read_to_string(dir.path().join("man/starling-mount.1")).expect("a page");
    assert!(page.contains(".TH starling-mount 1"), "{page}");
    assert!(said(&["completions", "bash"]).contains("starling,mount)"));
}

#[test]
fn mount_whose_process_died_is_taken_away_by_the_next() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", &["--store-size", "128MiB"]);
    let pid: i32 = fs::read_to_string(fs.data.join("lock")).expect("lock").trim().parse().expect("process id");
    // SAFETY: kill takes numbers only; the process is one that this test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while fs::metadata(&fs.mountpoint).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs.up_again();
    fs.down();
}

/// The next mount went on top of the dead one when the kernel answered for the dead one from its
/// cache. The dead one came to light when that ended.
#[test]
fn regression_dead_mount_with_cached_attributes_is_taken_away() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", &["--store-size", "128MiB"]);
    let pid: i32 = fs::read_to_string(fs.data.join("lock")).expect("lock").trim().parse().expect("process id");
    // The kernel learns from the first call that Starling has no statx. From then on it answers
    // from its cache.
    for _ in 0..2 {
        fs::metadata(&fs.mountpoint).expect("a mount");
    }
    // SAFETY: kill takes numbers only; the process is one that this test started.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let has_ended = || fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    while !has_ended() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs::metadata(&fs.mountpoint).expect("the kernel's cache answers");
    fs.up_again();
    fs.down();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(fs.mountpoint.to_str().expect("a path")), "{mounts}");
}

#[test]
fn stores_that_were_set_back_are_refused_until_the_loss_is_accepted() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", &["--store-size", "128MiB"]);
    fs::write(fs.mountpoint.join("file"), "contents").expect("write");
    fs.down();
    let stores = ["store-1", "store-3"];
    let copy = |from: &Path, to: &Path| drop(run(Command::new("cp").arg("-a").arg(from).arg(to)));
    stores.iter().for_each(|store| copy(&fs.data.join(store), &dir.path().join(store)));
    fs.up_again();
    fs.kill();
    for store in stores {
        fs::remove_dir_all(fs.data.join(store)).expect("remove");
        copy(&dir.path().join(store), &fs.data.join(store));
    }
    let mut up = starling();
    up.arg("up").arg(&fs.mountpoint).arg("--data").arg(&fs.data);
    for _ in 0..2 {
        let said = refused(&mut up);
        assert!(said.contains("store-1, store-3") && said.contains("--accept-loss"), "{said}");
    }
    fs.up_with(&["--accept-loss"]);
    assert_eq!(fs::read_to_string(fs.mountpoint.join("file")).expect("read"), "contents");
    fs.down();
    fs.up_again();
    fs.down();
}

#[test]
fn too_few_damaged_or_future_stores_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", &["--store-size", "128MiB", "--stores", "3"]);
    fs::write(fs.mountpoint.join("a"), "x").expect("write");
    fs.down();
    let again = || {
        let mut command = starling();
        command.arg("up").arg(&fs.mountpoint).arg("--data").arg(&fs.data);
        command
    };
    for store in ["store-0", "store-1"] {
        fs::rename(fs.data.join(store), dir.path().join(store)).expect("take away");
    }
    let said = refused(&mut again());
    assert!(said.contains("only 1 of 3 stores") && said.contains("folder is missing"), "{said}");
    for store in ["store-0", "store-1"] {
        fs::rename(dir.path().join(store), fs.data.join(store)).expect("bring back");
    }
    let stores = fs::read_to_string(fs.data.join("stores.json")).expect("stores.json");
    let newer = stores.replace("\"version\": 4", "\"version\": 9");
    assert_ne!(newer, stores);
    fs::write(fs.data.join("stores.json"), newer).expect("write");
    let said = refused(&mut again());
    assert!(said.contains("newer starling"), "{said}");
    fs::write(fs.data.join("stores.json"), "garbage").expect("write");
    assert!(refused(&mut again()).contains("damaged"));
    fs::write(fs.data.join("stores.json"), stores).expect("write");
    let checked = run(starling().arg("fsck").arg("--data").arg(&fs.data));
    assert!(checked.contains("no problems"), "{checked}");

    // Files that a newer program wrote.
    let fsck = || {
        let mut command = starling();
        command.arg("fsck").arg("--data").arg(&fs.data);
        command
    };
    let of_the_future = |files: &[PathBuf]| {
        let before: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("read")).collect();
        files.iter().for_each(|file| raise_version(file));
        for mut command in [again(), fsck()] {
            let said = refused(&mut command);
            assert!(said.contains("version 999"), "{said}");
        }
        for (file, before) in files.iter().zip(before) {
            fs::write(file, before).expect("write");
        }
    };
    let checkpoints = |store: &str| ["checkpoint-a", "checkpoint-b"].map(|name| fs.data.join(store).join(name));
    of_the_future(&[checkpoints("store-0"), checkpoints("store-1")].concat());
    of_the_future(&["state-a", "state-b"].map(|name| fs.data.join("consensus").join(name)));
    let checked = run(&mut fsck());
    assert!(checked.contains("no problems"), "{checked}");
}

/// Makes the heads of a pair of checkpoints say that a newer program wrote them.
fn raise_version(file: &Path) {
    let mut bytes = fs::read(file).expect("read");
    for at in [0, 4096] {
        if let Some(head) = bytes.get_mut(at..at + HEAD_LEN).filter(|head| head.iter().any(|byte| *byte != 0)) {
            head[8..10].copy_from_slice(&999u16.to_le_bytes());
            let sum = crc32c(&head[..HEAD_LEN - 4]).to_le_bytes();
            head[HEAD_LEN - 4..].copy_from_slice(&sum);
        }
    }
    fs::write(file, bytes).expect("write");
}

#[test]
fn a_deleted_or_foreign_consensus_folder_costs_nothing_and_is_said() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let flags = &["--store-size", "128MiB", "--stores", "3"];
    let mut fs = Mounted::up(dir.path(), "fs", flags);
    let status = |path: &Path| -> serde_json::Value {
        serde_json::from_str(&run(starling().args(["status", "--json"]).arg(path))).expect("status")
    };
    assert_eq!(status(&fs.mountpoint)["consensus"]["state"], "ok");
    fs::write(fs.mountpoint.join("a"), "hello").expect("write");
    fs.down();

    let consensus = fs.data.join("consensus");
    fs::remove_dir_all(&consensus).expect("delete the folder");
    fs.up_again();
    assert_eq!(fs::read_to_string(fs.mountpoint.join("a")).expect("read"), "hello");
    assert_eq!(status(&fs.mountpoint)["consensus"]["state"], "rebuilt from the stores");
    fs::write(fs.mountpoint.join("b"), "world").expect("write");
    fs.down();

    for name in ["state-a", "state-b"] {
        fs::write(consensus.join(name), vec![0xee; 9000]).expect("damage");
    }
    let said = run(starling().args(["fsck", "--data"]).arg(&fs.data));
    assert!(said.contains("consensus: rebuilt from the stores") && said.contains("no problems"), "{said}");
    let said = run(starling().args(["fsck", "--data"]).arg(&fs.data));
    assert!(said.contains("consensus: ok, maps of epoch"), "{said}");

    let other = Mounted::up(dir.path(), "other", flags);
    other.down();
    fs::rename(&consensus, dir.path().join("own")).expect("rename");
    fs::rename(other.data.join("consensus"), &consensus).expect("rename");
    let said = refused(&mut up(&fs.mountpoint, &fs.data));
    assert!(said.contains("the consensus folder belongs to file system"), "{said}");
    fs::remove_dir_all(&consensus).expect("delete the folder");
    fs::rename(dir.path().join("own"), &consensus).expect("rename");
    fs.up_again();
    assert_eq!(status(&fs.mountpoint)["consensus"]["state"], "ok");
    assert_eq!(fs::read_to_string(fs.mountpoint.join("b")).expect("read"), "world");
    fs.down();
}
