//! What is durable on a mount whose process is killed or ended by a signal.

mod common;

use common::{Mounted, run, starling};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Error};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SMALL: &[&str] = &["--stores", "3", "--store-size", "128MiB"];
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Changes the first byte of a file through a shared mapping of 4 KiB, which `f` gets as it is
/// then.
fn with_mapping(file: &File, f: impl FnOnce(*mut libc::c_void)) {
    // SAFETY: a fresh mapping of an open file that has these bytes, gone before this returns.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
        map.cast::<u8>().write_volatile(b'M');
        f(map);
        assert_eq!(libc::munmap(map, 4096), 0);
    }
}

fn page(path: &Path) -> File {
    fs::write(path, [b'.'; 4096]).expect("write");
    OpenOptions::new().read(true).write(true).open(path).expect("open")
}

#[test]
fn crash_msync_and_fsync_keep_mapped_changes() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    let (by_msync, by_fsync) = (page(&fs.mountpoint.join("msync")), page(&fs.mountpoint.join("fsync")));
    with_mapping(&by_fsync, |_| by_fsync.sync_all().expect("fsync"));
    with_mapping(&by_msync, |map| {
        // SAFETY: the mapping has this length.
        assert_eq!(unsafe { libc::msync(map, 4096, libc::MS_SYNC) }, 0);
        // Before it is unmapped, which writes it too.
        fs.kill();
    });
    drop((by_msync, by_fsync));
    fs.up_again();
    for name in ["msync", "fsync"] {
        assert_eq!(fs::read(fs.mountpoint.join(name)).expect("read")[..2], *b"M.", "{name}");
    }
    fs.down();
}

#[test]
fn crash_fsync_of_anything_keeps_everything_before() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    let at = |name: &str| fs.mountpoint.join(name);
    fs::create_dir(at("d")).expect("mkdir");
    fs::write(at("d/a"), "first").expect("write");
    fs::write(at("b"), "second").expect("write");
    fs::rename(at("b"), at("d/c")).expect("rename");
    File::open(at("d")).expect("open").sync_all().expect("fsync of a directory");
    fs.kill();
    fs.up_again();
    let read = |name: &str| fs::read_to_string(fs.mountpoint.join(name)).expect("read");
    assert_eq!((read("d/a"), read("d/c")), ("first".into(), "second".into()));
    assert!(!fs.mountpoint.join("b").exists());

    fs::write(fs.mountpoint.join("d/a"), "third").expect("write");
    fs::remove_file(fs.mountpoint.join("d/c")).expect("remove");
    File::create(fs.mountpoint.join("other")).expect("create").sync_data().expect("fdatasync of a file");
    fs.kill();
    fs.up_again();
    assert_eq!(fs::read_to_string(fs.mountpoint.join("d/a")).expect("read"), "third");
    assert!(!fs.mountpoint.join("d/c").exists());
    fs.down();
}

#[test]
fn crash_the_sync_command_keeps_everything() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    for i in 0..100 {
        fs::write(fs.mountpoint.join(i.to_string()), i.to_string()).expect("write");
    }
    // Neither of these calls reaches a FUSE file system; they succeed, and the command does the
    // rest.
    let root = File::open(&fs.mountpoint).expect("open");
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::syncfs(root.as_raw_fd()) }, 0);
    drop(root);
    run(starling().arg("sync").arg(&fs.mountpoint));
    fs.kill();
    fs.up_again();
    for i in 0..100 {
        assert_eq!(fs::read_to_string(fs.mountpoint.join(i.to_string())).expect("read"), i.to_string());
    }
    fs.down();
}

fn uncommitted_bytes(fs: &Mounted) -> u64 {
    let json = run(starling().args(["status", "--json"]).arg(&fs.mountpoint));
    let status: serde_json::Value = serde_json::from_str(&json).expect("status");
    status["uncommitted_bytes"].as_u64().expect("uncommitted_bytes")
}

#[test]
fn crash_changes_become_durable_without_any_sync() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    fs::create_dir(fs.mountpoint.join("d")).expect("mkdir");
    fs::write(fs.mountpoint.join("d/a"), vec![7; 100_000]).expect("write");
    let deadline = Instant::now() + PATIENCE;
    while uncommitted_bytes(&fs) > 0 {
        assert!(Instant::now() < deadline, "never committed");
        std::thread::sleep(Duration::from_millis(100));
    }
    fs.kill();
    fs.up_again();
    assert_eq!(fs::read(fs.mountpoint.join("d/a")).expect("read"), vec![7; 100_000]);
    fs.down();
}

/// A process that is killed when the test fails.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signals_to_a_foreground_process_commit_unmount_and_end_with_zero() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    fs.down();
    for (name, signal) in [("interrupted", libc::SIGINT), ("terminated", libc::SIGTERM)] {
        let mut up = starling();
        up.arg("up").arg(&fs.mountpoint).arg("--data").arg(&fs.data).stdout(Stdio::piped());
        let mut process = Foreground(up.spawn().expect("start"));
        let mut lines = BufReader::new(process.0.stdout.take().expect("output")).lines();
        let line = lines.next().expect("a line").expect("text");
        assert!(line.starts_with("mounted at "), "{line}");
        fs::write(fs.mountpoint.join(name), name).expect("write");
        // SAFETY: kill takes numbers only; the process is a child that has not been waited for.
        unsafe { libc::kill(process.0.id() as i32, signal) };
        let said: Vec<String> = lines.map(|line| line.expect("text")).collect();
        assert!(said.iter().any(|line| line.contains("everything is committed")), "{said:?}");
        assert_eq!(process.0.wait().expect("wait").code(), Some(0), "{name}");
        assert!(!fs.mountpoint.join(name).exists(), "still mounted");
    }
    fs.up_again();
    for name in ["interrupted", "terminated"] {
        assert_eq!(fs::read_to_string(fs.mountpoint.join(name)).expect("read"), name);
    }
    fs.down();
}

#[test]
fn an_unmount_by_others_commits_and_ends_the_process_with_zero() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    fs.down();
    let mut up = starling();
    up.arg("up").arg(&fs.mountpoint).arg("--data").arg(&fs.data).stdout(Stdio::piped());
    let mut process = Foreground(up.spawn().expect("start"));
    let mut lines = BufReader::new(process.0.stdout.take().expect("output")).lines();
    lines.next().expect("a line").expect("text");
    fs::write(fs.mountpoint.join("a"), "not synced").expect("write");
    run(Command::new("fusermount3").arg("-u").arg(&fs.mountpoint));
    assert!(lines.any(|line| line.expect("text").contains("everything is committed")));
    assert_eq!(process.0.wait().expect("wait").code(), Some(0));
    fs.up_again();
    assert_eq!(fs::read_to_string(fs.mountpoint.join("a")).expect("read"), "not synced");
    fs.down();
}
