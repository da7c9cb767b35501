//! Trouble that a machine makes for a roaming mount: a wrong clock, a full disk, a cache of
//! another version of the program.

mod common;
#[path = "common/roaming.rs"]
mod roaming;

use common::{refused, run, starling};
use roaming::{Home, Laptop};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const YEAR: i64 = 366 * 86_400;

/// A clock that is wrong by the number of seconds in a file, for processes that preload this
/// library.
const CLOCK: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    static volatile long *wrong_by;
    long result = syscall(SYS_clock_gettime, clock, time);
    if (!wrong_by) {
        wrong_by = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, open(getenv("WRONG_BY"), O_RDONLY), 0);
        if (wrong_by == MAP_FAILED) abort();
    }
    if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += *wrong_by;
    return result;
}
"#;

/// What was just changed in a mount comes home.
fn edit(laptop: &Laptop, home: &Home, text: &str) -> i64 {
    fs::write(laptop.mountpoint.join("mine"), text).expect("write");
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("mine")).expect("it is home"), text);
    fs::metadata(home.exported.join("mine")).expect("stat").mtime()
}

#[test]
fn a_clock_that_is_wrong_or_set_loses_nothing() {
    let below = tempfile::tempdir().expect("folder");
    let (source, library, wrong_by) =
        (below.path().join("clock.c"), below.path().join("clock.so"), below.path().join("wrong_by"));
    fs::write(&source, CLOCK).expect("write");
    run(Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]));
    let clock = File::create(&wrong_by).expect("create");
    let set = |seconds: i64| clock.write_all_at(&seconds.to_ne_bytes(), 0).expect("write");
    set(-YEAR);

    let home = Home::serve(below.path());
    fs::write(home.exported.join("theirs"), "1").expect("write");
    let environment = [("LD_PRELOAD", library.as_path()), ("WRONG_BY", wrong_by.as_path())];
    let mut laptop = Laptop::mount_in(&home, below.path(), "laptop", &[], &environment);
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a date").as_secs() as i64;
    // The writer's clock decides, as on a local disk.
    let near = |time: i64, other: i64| assert!((time - other).abs() < 3600, "{time}, {other}");
    near(edit(&laptop, &home, "a year ago"), now() - YEAR);
    assert_eq!(fs::read_to_string(laptop.mountpoint.join("theirs")).expect("read"), "1");

    // The clock is set while changes wait and others change files.
    run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
    fs::write(laptop.mountpoint.join("waits"), "text").expect("write");
    set(YEAR);
    let pending = laptop.ask(&["pending"]);
    assert!(pending.as_array().expect("a list").iter().any(|what| what["path"] == "waits"), "{pending}");
    fs::write(home.exported.join("theirs"), "2").expect("write");
    run(starling().arg("sync").arg(&laptop.mountpoint));
    laptop.stop(libc::SIGKILL);
    set(-3 * YEAR);
    laptop.mount_again();
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    near(edit(&laptop, &home, "three years ago"), now() - 3 * YEAR);
    assert_eq!(fs::read_to_string(home.exported.join("waits")).expect("it is home"), "text");
    laptop.wait(LONG, "what others have changed", |laptop| {
        fs::read_to_string(laptop.mountpoint.join("theirs")).is_ok_and(|text| text == "2")
    });
    set(0);
    near(edit(&laptop, &home, "now"), now());
    assert_eq!(laptop.ask(&["conflicts", "list"]), serde_json::json!([]));
}

/// The magic numbers of file heads, and the heads' lengths.
const MAGIC: &[u8] = b"STARRLOG";
const HEAD_LEN: usize = 512;

/// The heads below a folder: places in files.
fn heads(folder: &Path, found: &mut Vec<(PathBuf, u64)>) {
    for entry in fs::read_dir(folder).expect("list") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            heads(&path, found);
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cache-")) {
            let bytes = fs::read(&path).expect("read");
            let places = (0..bytes.len()).step_by(HEAD_LEN).filter(|at| bytes[*at..].starts_with(MAGIC));
            found.extend(places.map(|at| (path.clone(), at as u64)));
        }
    }
}

/// CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    let byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, byte)
}

/// Makes a head one of another version, with valid checksums.
fn set_version(path: &Path, at: u64, version: u16) {
    let file = File::options().read(true).write(true).open(path).expect("open");
    let mut head = [0; HEAD_LEN];
    file.read_exact_at(&mut head, at).expect("read");
    head[MAGIC.len()..MAGIC.len() + 2].copy_from_slice(&version.to_le_bytes());
    let sum = checksum(&head[..HEAD_LEN - 4]);
    head[HEAD_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&head, at).expect("write");
}

#[test]
fn a_cache_of_another_version_is_left_as_it_is() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let mut laptop = Laptop::mount(&home, below.path(), "laptop");
    // A directory must be cached before anything can be made in it without a network.
    assert_eq!(fs::read_dir(&laptop.mountpoint).expect("list").count(), 0);
    run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
    fs::write(laptop.mountpoint.join("waits"), "text").expect("write");
    laptop.stop(libc::SIGTERM);
    let mut found = Vec::new();
    heads(&laptop.cache, &mut found);
    assert!(!found.is_empty());
    let be = |version: u16| found.iter().for_each(|(path, at)| set_version(path, *at, version));
    be(99);
    let said = refused(starling().arg("mount").arg(&laptop.mountpoint).arg("--cache").arg(&laptop.cache));
    assert!(said.contains("version 99") && said.contains("use the version of starling that wrote it"), "{said}");
    be(1);
    laptop.mount_again();
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    assert_eq!(fs::read_to_string(home.exported.join("waits")).expect("it is home"), "text");
}

/// A small disk; unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this process may not mount any.
    fn mount(folder: PathBuf, size: &str) -> Option<SmallDisk> {
        fs::create_dir(&folder).expect("mkdir");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "small"]).arg(&folder);
        mount.output().expect("start").status.success().then_some(SmallDisk(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_refuses_what_has_no_room_and_loses_nothing() {
    let below = tempfile::tempdir().expect("folder");
    let Some(disk) = SmallDisk::mount(below.path().join("disk"), "24m") else {
        eprintln!("left out: only root can mount a small disk");
        return;
    };
    let home = Home::serve(below.path());
    fs::write(home.exported.join("theirs"), vec![1; 4 << 20]).expect("write");
    let mut laptop = Laptop::mount(&home, &disk.0, "laptop");
    assert_eq!(fs::read(laptop.mountpoint.join("theirs")).expect("read").len(), 4 << 20);
    run(starling().args(["connect", "off"]).arg(&laptop.mountpoint));
    let path = |number: usize| laptop.mountpoint.join(format!("mine-{number}"));
    // Each is either there or refused.
    let written: Vec<bool> = (0..40)
        .map(|number| {
            let result = File::create(path(number)).and_then(|mut file| {
                file.write_all(&vec![number as u8; 1 << 20])?;
                file.sync_all()
            });
            match result {
                Ok(()) => true,
                Err(error) if error.kind() == ErrorKind::StorageFull => false,
                Err(error) => panic!("{error}"),
            }
        })
        .collect();
    let count = written.iter().filter(|written| **written).count();
    assert!((4..24).contains(&count), "{count} files of 1 MiB on a disk of 24 MiB");
    run(starling().arg("sync").arg(&laptop.mountpoint));
    laptop.stop(libc::SIGKILL);
    laptop.mount_again();
    run(starling().args(["connect", "auto"]).arg(&laptop.mountpoint));
    laptop.wait_until_home(LONG);
    for (number, _) in written.iter().enumerate().filter(|(_, written)| **written) {
        let name = format!("mine-{number}");
        assert!(fs::read(home.exported.join(&name)).expect("it is home") == vec![number as u8; 1 << 20], "{name}");
    }
    // With that there is room again, and what had to go can be had.
    assert_eq!(fs::read(laptop.mountpoint.join("theirs")).expect("read").len(), 4 << 20);
    edit(&laptop, &home, "more");
    drop(laptop);
}
